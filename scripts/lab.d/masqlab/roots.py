"""The guests' Debian roots and their disk images: what all VMs of a kind share, and none writes to."""

import dataclasses
import lzma
import shutil

from . import apt
from .cpio import Cpio
from .paths import CACHE, GUEST_FILES, LOGS, digest, package_list
from .ui import LabError, run, say, step

# Raise it when Root changes what a root contains.
RECIPE = "2"
IMAGE_HEADROOM = 2 << 30

# What the initramfs loads before the disk is there.
EARLY_MODULES = ["virtio_pci", "virtio_blk", "ext4", "virtio_net", "virtio_rng"]
# Units that cost time at boot and mean nothing in a throw-away VM (for boots with systemd).
MASKED_UNITS = [
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer",
    "e2scrub_all.timer", "e2scrub_reap.service", "systemd-pstore.service", "sshd-keygen.service",
    "systemd-remount-fs.service", "ldconfig.service", "systemd-update-done.service", "getty@.service",
    "serial-getty@.service",
]
APPLETS = ["sh", "mount", "insmod", "switch_root", "ip", "cp", "poweroff", "ls", "sleep", "cat"]
# What is unpacked in the root: an emulated CPU takes seconds for what is a moment here.
UNPACKED_MODULES = (
    "drivers/infiniband", "drivers/net/virtio_net.ko.xz", "drivers/block/virtio_blk.ko.xz", "drivers/net/net_failover.ko.xz",
    "net/core", "fs/configfs", "net/ipv4/udp_tunnel.ko.xz", "net/ipv6/ip6_udp_tunnel.ko.xz", "net/rds", "net/smc",
)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of root: a Debian suite and package lists of scripts/packages."""
    suite: str
    lists: tuple
    text: str
    # The suite that the kernel comes from, where it is another.
    kernel_suite: str = None


KINDS = {
    "trixie": Kind("trixie", ("guest",), "Debian 13"),
    "full": Kind("trixie", ("guest", "guest-full"), "Debian 13 with the programs of `scripts/test --all`"),
    "bookworm": Kind("bookworm", ("guest",), "Debian 12"),
    "sid": Kind("sid", ("guest", "guest-sockets"), "Debian sid with Debian 13's kernel", kernel_suite="trixie"),
}
DEFAULT_KIND = "trixie"


class Root:
    """One kind of root as its package list is now: its folder, kernel and image."""

    def __init__(self, kind=DEFAULT_KIND):
        if kind not in KINDS:
            raise LabError(f"no guest root is called {kind!r}; there are: {', '.join(KINDS)}")
        self.name, self.kind = kind, KINDS[kind]
        self.packages = [p for name in self.kind.lists for p in package_list(name)]
        self.home = CACHE / f"root-{kind}-{digest(RECIPE, repr(self.kind), *self.packages, *MASKED_UNITS)}"
        self.root = self.home / "root"
        self.image = self.home / "image.ext4"

    @property
    def kernel_version(self):
        found = sorted(p.name for p in (self.root / "lib/modules").iterdir())
        if not found:
            raise LabError(f"no kernel in {self.root}; does scripts/packages/guest.list name one?")
        return found[-1]

    @property
    def kernel(self):
        return self.root / "boot" / f"vmlinuz-{self.kernel_version}"

    def ensure(self):
        if self.image.exists():
            say(f"guest root {self.name}: up to date ({self.home})")
            return
        fresh = self.home.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        root = fresh / "root"
        log = str(LOGS / f"root-{self.name}.log")
        with step(f"guest root {self.name}: {self.kind.text} by mmdebstrap (1 to 3 minutes)"):
            # INITRD=No: the lab has its own initramfs; Debian's would take long to make and to boot.
            run(["nice", "env", "INITRD=No", "mmdebstrap", "--variant=minbase", "--include=" + ",".join(self.packages),
                 *self._sources(root)], "mmdebstrap", log=log)
        with step(f"guest root {self.name}: adjusting"):
            self._adjust(root)
        with step(f"guest root {self.name}: making the disk image"):
            _make_image(root, fresh / "image.ext4")
        fresh.rename(self.home)

    def _sources(self, root):
        """mmdebstrap's suite, target and archives."""
        kind = self.kind
        if kind.kernel_suite is None:
            return [kind.suite, str(root)]
        pin = f"Package: linux-image-amd64 linux-headers-amd64\\nPin: release n={kind.kernel_suite}\\nPin-Priority: 990\\n"
        hook = f"""mkdir -p "$1/etc/apt/preferences.d" && printf '{pin}' >"$1/etc/apt/preferences.d/kernel" """
        archives = [f"deb {apt.mirror()} {suite} main" for suite in (kind.suite, kind.kernel_suite)]
        # Sid's index is good for a week; a mirror that is behind serves as well here.
        late = '--aptopt=Acquire::Check-Valid-Until "false"'
        return [f"--setup-hook={hook}", late, kind.suite, str(root), *archives]

    def _adjust(self, root):
        for unit in MASKED_UNITS:
            link = root / "etc/systemd/system" / unit
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/null")
        modules = root / "lib/modules"
        version = next(modules.iterdir()).name
        for part in UNPACKED_MODULES:
            path = modules / version / "kernel" / part
            for packed in ([path] if path.is_file() else path.rglob("*.ko.xz")):
                packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
                packed.unlink()
        run(["chroot", str(root), "depmod", version], "depmod in the guest root")
        passwd = root / "etc/passwd"
        passwd.write_text(passwd.read_text().replace("root:x:0:0:root:/root:/bin/bash", "root:x:0:0:root:/root:/bin/sh"))
        (root / "etc/fstab").write_text("# the root comes mounted from the initramfs\n")
        for leftover in ("etc/resolv.conf", "etc/hostname"):
            (root / leftover).unlink(missing_ok=True)
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
        # An unprivileged user, for what a tenant's ordinary processes may do.
        run(["chroot", str(root), "useradd", "--create-home", "--uid", "1000", "--shell", "/bin/sh", "tenant"],
            "adding the user `tenant`")

    def early_files(self):
        """A cpio with busybox and the modules that find the disk."""
        archive = Cpio()
        for folder in ("proc", "sys", "dev", "newroot"):
            archive.add_dir(folder)
        archive.add_file("bin/busybox", (self.root / "bin/busybox").read_bytes(), 0o755)
        for applet in APPLETS:
            archive.add_link(f"bin/{applet}", "busybox")
        order = []
        for module in EARLY_MODULES:
            out = run(["chroot", str(self.root), "modprobe", "-S", self.kernel_version, "--show-depends", module],
                      f"finding what {module} needs").stdout
            for line in out.splitlines():
                if line.startswith("insmod ") and line.split()[1] not in order:
                    order.append(line.split()[1])
        names = []
        for module in order:
            path = self.root / module.lstrip("/")
            data = path.read_bytes()
            name = path.name.split(".ko")[0] + ".ko"
            archive.add_file(f"modules/{name}", lzma.decompress(data) if path.suffix == ".xz" else data)
            names.append(name)
        archive.add_file("modules/order", "".join(n + "\n" for n in names).encode())
        archive.add_file("init", (GUEST_FILES / "initramfs-init").read_bytes(), 0o755)
        return archive


def _make_image(root, image):
    used = int(run(["du", "-s", "--block-size=1", str(root)]).stdout.split()[0])
    blocks = (used * 5 // 4 + IMAGE_HEADROOM) // 4096
    run(["mke2fs", "-q", "-t", "ext4", "-b", "4096", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1",
         "-L", "masq-root", "-d", str(root), str(image), str(blocks)], "making the disk image")
