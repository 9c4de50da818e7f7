"""The initramfs that starts a VM: what finds the disk, and what goes into it at boot.

Module, provider and start-up scripts change often, so they travel here and not in the image.
"""

import os
import stat

from .paths import CACHE, GUEST_FILES
from .ui import run


def ssh_keys():
    """One key for the lab's user and one for its VMs, made once and kept in the cache."""
    home = CACHE / "ssh"
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    for name in ("id_lab", "host_key"):
        if not (home / name).exists():
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "masq-lab", "-f", str(home / name)])
    return home


def write(root, layer, out):
    """The initramfs for VMs of a root: early files, and under `payload/` what goes into the VM's disk."""
    archive = root.early_files()
    keys = ssh_keys()
    for name, path in layer.shipped() if layer else []:
        if path.is_symlink():
            archive.add_link(f"payload/{name}", os.readlink(path))
        else:
            archive.add_file(f"payload/{name}", path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
    for name, path, mode in [
        ("etc/masq/rc", GUEST_FILES / "rc", 0o755),
        ("etc/inittab", GUEST_FILES / "inittab", 0o644),
        ("etc/masq/gid", GUEST_FILES / "gid", 0o755),
        ("etc/ssh/sshd_config", GUEST_FILES / "sshd_config", 0o644),
        ("etc/ssh/masq_host_key", keys / "host_key", 0o600),
        ("root/.ssh/authorized_keys", keys / "id_lab.pub", 0o600),
        ("etc/systemd/system/masq.service", GUEST_FILES / "masq.service", 0o644),
    ]:
        archive.add_file(f"payload/{name}", path.read_bytes(), mode)
    archive.add_link("payload/etc/systemd/system/multi-user.target.wants/masq.service", "../masq.service")
    out.write_bytes(archive.bytes())
