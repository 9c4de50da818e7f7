"""The guests' side: Debian 13 root and image, module, and the initramfs that starts a VM.

The root is used twice: as the VMs' disk image and as the place where the module is built. The module,
the provider and the start-up scripts change often, so they travel in the initramfs and are put into the
(throw-away) disk at boot.
"""

import lzma
import pathlib
import shutil
import subprocess

from . import paths
from .cpio import Cpio
from .paths import CACHE, GUEST_FILES, LOGS, REPO, digest, package_list
from .ui import LabError, run, say, step

SUITE = "trixie"
# Raise it when build() below changes what a root contains.
RECIPE = "1"
IMAGE_HEADROOM = 2 << 30

# What the initramfs loads before the disk is there.
EARLY_MODULES = ["virtio_blk", "ext4", "virtio_net", "virtio_rng"]
# Units that cost time at boot and mean nothing in a throw-away VM (for boots with systemd).
MASKED_UNITS = [
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer",
    "e2scrub_all.timer", "e2scrub_reap.service", "systemd-pstore.service", "sshd-keygen.service",
    "systemd-remount-fs.service", "ldconfig.service", "systemd-update-done.service", "getty@.service",
    "serial-getty@.service",
]
APPLETS = ["sh", "mount", "insmod", "switch_root", "ip", "cp", "poweroff", "ls", "sleep", "cat"]

# 34 is the private ABI of Debian 13's libibverbs.
PROVIDER = "usr/lib/x86_64-linux-gnu/libibverbs/libvrdma-rdmav34.so"

KMOD = REPO / "vrdma-guest" / "kmod"
ABI = REPO / "vrdma-guest" / "abi"


class Guest:
    """The root of the present package list: its folder, kernel and image."""

    def __init__(self):
        self.home = CACHE / f"root-{digest(RECIPE, *package_list('guest'), *MASKED_UNITS)}"
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
            say(f"guest root: up to date ({self.home})")
            return
        fresh = self.home.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        root = fresh / "root"
        log = str(LOGS / "root.log")
        with step("guest root: Debian 13 by mmdebstrap (1 to 2 minutes)"):
            # INITRD=No: the lab has its own initramfs; Debian's would take long to make and to boot.
            run(["nice", "env", "INITRD=No", "mmdebstrap", "--variant=minbase",
                 "--include=" + ",".join(package_list("guest")), SUITE, str(root)], "mmdebstrap", log=log)
        with step("guest root: adjusting"):
            self._adjust(root)
        with step("guest root: making the disk image"):
            _make_image(root, fresh / "image.ext4")
        fresh.rename(self.home)

    def _adjust(self, root):
        for unit in MASKED_UNITS:
            link = root / "etc/systemd/system" / unit
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/null")
        # RDMA modules unpacked: an emulated CPU takes seconds for what is a moment here.
        modules = root / "lib/modules"
        version = next(modules.iterdir()).name
        kernel = modules / version / "kernel"
        for part in ("drivers/infiniband", "drivers/net/virtio_net.ko.xz", "drivers/block/virtio_blk.ko.xz",
                     "drivers/net/net_failover.ko.xz", "net/core", "fs/configfs", "net/ipv4/udp_tunnel.ko.xz",
                     "net/ipv6/ip6_udp_tunnel.ko.xz", "net/rds", "net/smc"):
            path = kernel / part
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
        """Adds busybox and the modules that find the disk to a cpio."""
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


class Module:
    """vrdma.ko for a guest root, with the module indexes that know it."""

    def __init__(self, guest):
        if not (KMOD / "Makefile").exists():
            raise LabError(f"no kernel module in {KMOD} (Makefile missing); to go without RDMA: --without-masqd")
        self.guest = guest
        headers = sorted(ABI.rglob("*.h"))
        sources = sorted(p for p in KMOD.rglob("*") if p.suffix in (".c", ".h") or p.name in ("Makefile", "Kbuild"))
        sources = [p for p in sources if not p.name.endswith(".mod.c")]
        self.home = CACHE / f"kmod-{digest(guest.home.name, guest.kernel_version, *headers, *sources)}"
        self.sources = headers + sources

    def ensure(self):
        if self.home.exists():
            say(f"vrdma.ko: up to date ({self.home})")
            return
        root, version = self.guest.root, self.guest.kernel_version
        inside = root / "tmp" / f"build-{self.home.name}"
        shutil.rmtree(inside, ignore_errors=True)
        log = LOGS / "kmod.log"
        log.unlink(missing_ok=True)
        try:
            with step(f"vrdma.ko: building for {version}"):
                for source in self.sources:
                    target = inside / source.relative_to(REPO)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, target)
                there = "/" + str((inside / KMOD.relative_to(REPO)).relative_to(root))
                run(["chroot", str(root), "make", "-C", f"/lib/modules/{version}/build", f"M={there}", "modules"],
                    "building vrdma.ko", log=str(log))
                self._publish(inside / KMOD.relative_to(REPO) / "vrdma.ko", inside)
        finally:
            shutil.rmtree(inside, ignore_errors=True)

    def files(self):
        """(path in the guest, path here) of the module and its indexes."""
        return [(str(p.relative_to(self.home)), p) for p in sorted(self.home.rglob("*")) if p.is_file()]

    def _publish(self, built, inside):
        """Runs depmod over the root's modules plus ours, on hard links, and keeps what it wrote."""
        version = self.guest.kernel_version
        base = inside / "depmod"
        tree = base / "lib/modules" / version
        tree.parent.mkdir(parents=True)
        shutil.copytree(self.guest.root / "lib/modules" / version, tree, copy_function=_hard_link, symlinks=True)
        for index in tree.glob("modules.*"):
            data = index.read_bytes()
            index.unlink()
            index.write_bytes(data)
        (tree / "updates").mkdir(exist_ok=True)
        shutil.copyfile(built, tree / "updates" / "vrdma.ko")
        run(["chroot", str(self.guest.root), "depmod", "-b", "/" + str(base.relative_to(self.guest.root)), version],
            "depmod for vrdma.ko")
        fresh = self.home.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        out = fresh / "usr/lib/modules" / version
        (out / "updates").mkdir(parents=True)
        shutil.copyfile(built, out / "updates/vrdma.ko")
        for name in ("dep", "dep.bin", "alias", "alias.bin", "symbols", "symbols.bin", "softdep", "devname"):
            if (tree / f"modules.{name}").exists():
                shutil.copyfile(tree / f"modules.{name}", out / f"modules.{name}")
        fresh.rename(self.home)


def ssh_keys():
    """One key for the lab's user and one for its VMs, made once and kept in the cache."""
    home = CACHE / "ssh"
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    for name in ("id_lab", "host_key"):
        if not (home / name).exists():
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "masq-lab", "-f", str(home / name)])
    return home


def write_initramfs(guest, module, provider, out):
    """The initramfs of this lab: early files, and under `payload/` what goes into the VM's disk."""
    archive = guest.early_files()
    keys = ssh_keys()
    payload = [
        ("etc/masq/rc", GUEST_FILES / "rc", 0o755),
        ("etc/inittab", GUEST_FILES / "inittab", 0o644),
        ("etc/masq/gid", GUEST_FILES / "gid", 0o755),
        ("etc/ssh/sshd_config", GUEST_FILES / "sshd_config", 0o644),
        ("etc/ssh/masq_host_key", keys / "host_key", 0o600),
        ("root/.ssh/authorized_keys", keys / "id_lab.pub", 0o600),
        ("etc/systemd/system/masq.service", GUEST_FILES / "masq.service", 0o644),
    ]
    if module:
        payload += [(name, path, 0o644) for name, path in module.files()]
    if provider:
        payload.append((PROVIDER, pathlib.Path(provider), 0o644))
        archive.add_file("payload/etc/libibverbs.d/vrdma.driver", b"driver vrdma\n")
    for name, path, mode in payload:
        archive.add_file(f"payload/{name}", path.read_bytes(), mode)
    archive.add_link("payload/etc/systemd/system/multi-user.target.wants/masq.service", "../masq.service")
    out.write_bytes(archive.bytes())


def _hard_link(source, target):
    pathlib.Path(target).hardlink_to(source)


def _make_image(root, image):
    used = int(run(["du", "-s", "--block-size=1", str(root)]).stdout.split()[0])
    blocks = (used * 5 // 4 + IMAGE_HEADROOM) // 4096
    run(["mke2fs", "-q", "-t", "ext4", "-b", "4096", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1",
         "-L", "masq-root", "-d", str(root), str(image), str(blocks)], "making the disk image")
