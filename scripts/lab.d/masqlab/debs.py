"""vrdma's own packages: built from the checkout, and installed into the guests' roots as users install them.

A root never changes. What apt does to it lands in a layer over it (an overlay's upper folder), which is kept as long as
root and package stay the same, and which the initramfs puts into the VMs' throw-away disks.
"""

import os
import pathlib
import shutil
import stat

from .paths import CACHE, LOGS, REPO, digest
from .ui import LabError, run, say, step

BUILD = REPO / "packaging" / "deb" / "build"
KMOD = REPO / "vrdma-guest" / "kmod"
# Any fixed time will do: the same sources are to give the same package, and so the same layer.
ENV = {**os.environ, "SOURCE_DATE_EPOCH": "1767225600"}
# Leftovers of apt, and what a running system mounts over.
NOT_SHIPPED = ("dev", "run", "tmp", "var/cache", "var/lib/apt", "var/log")

INSTALL = """
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/files,workdir=$2/work" "$2/root"
mount -t proc proc "$2/root/proc"  # Debian 12's dkms wants /dev/fd
cp "$3" "$2/root/tmp/"
chroot "$2/root" apt-get install -y -q --no-install-recommends -o Dpkg::Use-Pty=0 "/tmp/${3##*/}" || {
	cat "$2"/root/var/lib/dkms/*/*/build/make.log 2>/dev/null
	exit 1
}
rm "$2/root/tmp/${3##*/}"
"""


def build(package, providers=None):
    """Builds a package; returns its file. `providers` is the folder of those that cargo has built."""
    env = {**ENV, "MASQ_PROVIDERS": str(providers)} if providers else ENV
    done = run([str(BUILD), str(CACHE / "debs"), package], f"building {package}", env=env)
    return pathlib.Path(done.stdout.strip())


class Layer:
    """What installing a package changes in a root, or in a root with other layers over it."""

    def __init__(self, below, deb):
        self.below, self.deb = below, deb
        self.home = CACHE / f"layer-{digest(below.home.name, deb)}"
        self.files = self.home / "files"

    def ensure(self):
        package = self.deb.name.split("_")[0]
        if self.home.exists():
            say(f"{package}: up to date ({self.home})")
            return
        fresh = self.home.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        for folder in ("files", "work", "root"):
            (fresh / folder).mkdir(parents=True)
        log = LOGS / f"{package}.log"
        log.unlink(missing_ok=True)
        with step(f"{package}: installing into {self._root().home.name}"):
            # The mount lives in a namespace of its own and goes with it.
            run(["unshare", "--mount", "--propagation", "private", "nice", "sh", "-ec", INSTALL, "sh",
                 ":".join(self._lower()), str(fresh), str(self.deb)], f"installing {self.deb.name}", log=str(log),
                env={**ENV, "DEBIAN_FRONTEND": "noninteractive"})
        for folder in ("work", "root"):
            shutil.rmtree(fresh / folder)
        fresh.rename(self.home)

    def shipped(self):
        """(path in the guest, path here) of all that this and the layers below add."""
        found = self.below.shipped() if isinstance(self.below, Layer) else []
        for path in sorted(self.files.rglob("*")):
            name = path.relative_to(self.files).as_posix()
            if path.is_dir() and not path.is_symlink() or name.startswith(NOT_SHIPPED):
                continue
            if stat.S_ISCHR(path.lstat().st_mode):
                raise LabError(f"{self.deb.name} removes /{name} of the root, which the initramfs cannot")
            found.append((name, path))
        return found

    def _lower(self):
        """The folders below, topmost first."""
        below = self.below
        return [str(below.files), *below._lower()] if isinstance(below, Layer) else [str(below.root)]

    def _root(self):
        return self.below._root() if isinstance(self.below, Layer) else self.below


def module(root):
    """The layer of vrdma.ko over a root."""
    if not (KMOD / "Makefile").exists():
        raise LabError(f"no kernel module in {KMOD} (Makefile missing); to go without RDMA: --without-masqd")
    return Layer(root, build("vrdma-dkms"))


def provider(over, providers):
    """The layer of the provider over the module's."""
    return Layer(over, build("vrdma-provider", providers))
