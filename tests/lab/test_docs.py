"""docs/spec-coverage.md names files that exist, and the skipped tests that the VM tests allow."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/spec-coverage.md").read_text()
# The page's short names.
SHORT = {"rnic": "masqd/rnic", "abi": "vrdma-guest/abi", "kmod": "vrdma-guest/kmod", "sim": "tests/guest-sim/src/bin", "vm": "tests/vm"}


class SpecCoverage(unittest.TestCase):
    def test_files_exist(self):
        named = re.findall(r"`([\w.-]+(?:/[\w.-]+)+)`", PAGE)
        self.assertGreater(len(named), 60)
        for name in named:
            first, rest = name.split("/", 1)
            with self.subTest(name):
                self.assertTrue((ROOT / SHORT.get(first, first) / rest).exists())

    def test_skips_are_those_that_the_vm_tests_allow(self):
        lines = (ROOT / "tests/vm/pyverbs-skips.txt").read_text().splitlines()
        allowed = [tuple(line.split(None, 1)) for line in lines if line.strip() and not line.startswith("#")]
        section = PAGE.split("## Tests of rdma-core that skip")[1]
        self.assertEqual(re.findall(r"^\| `(\S+)` \| (.+) \|$", section, re.MULTILINE), allowed)


if __name__ == "__main__":
    unittest.main()
