"""The packages that guests install, in the guests' Debian 13 root: that they are whole, and that their removal leaves nothing.

Needs root and set-up. What happens to the root happens in an overlay that goes with its mount namespace.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lab.d"))

from masqlab import debs, roots  # noqa: E402


def in_root(layer, script):
    """Runs a shell script in a root with a layer over it; returns what it prints."""
    with tempfile.TemporaryDirectory() as scratch:
        # The overlay's changes stay in memory.
        outer = f"""mount -t tmpfs none {scratch}
mkdir {scratch}/upper {scratch}/work {scratch}/root
mount -t overlay overlay -o lowerdir={layer.files}:{layer.below.root},upperdir={scratch}/upper,workdir={scratch}/work {scratch}/root
mount -t proc proc {scratch}/root/proc
cp {' '.join(str(p) for p in layer.deb.parent.glob('*.deb'))} {scratch}/root/tmp/
chroot {scratch}/root sh -ec "$1" """
        done = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-ec", outer, "sh", script],
                              capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.layer = debs.module(roots.Root())
        assert cls.layer.home.exists(), "run `scripts/lab setup` first"

    def test_module_is_built_without_warnings_and_found_by_the_device(self):
        logs = list(self.layer.files.glob("var/lib/dkms/vrdma/*/*/x86_64/log/make.log"))
        self.assertEqual(len(logs), 1)
        self.assertNotIn("warning:", logs[0].read_text())
        version = self.layer.below.kernel_version
        self.assertIn("virtio:d0000002Av*", in_root(self.layer, f"modinfo -k {version} -F alias vrdma"))

    def test_the_same_sources_give_the_same_package(self):
        before = self.layer.deb.read_bytes()
        self.assertEqual(debs.build("vrdma-dkms").read_bytes(), before)

    def test_provider_installs_beside_it_and_purging_both_leaves_nothing(self):
        left = in_root(self.layer, """export DEBIAN_FRONTEND=noninteractive
dpkg -i /tmp/vrdma-provider_*.deb >/dev/null
ls /usr/lib/x86_64-linux-gnu/libibverbs/libvrdma-rdmav34.so /usr/lib/x86_64-linux-gnu/libibverbs/libvrdma-rdmav65.so >/dev/null
[ "$(cat /etc/libibverbs.d/vrdma.driver)" = "driver vrdma" ]
apt-get purge -y -q vrdma-provider vrdma-dkms >/dev/null
find / -xdev -name '*vrdma*' -not -name '*pvrdma*' -not -path '/tmp/*' -not -path '/var/log/*' -not -path '/var/lib/dpkg/*'""")
        self.assertEqual(left, "")


if __name__ == "__main__":
    unittest.main()
