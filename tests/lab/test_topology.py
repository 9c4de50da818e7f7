"""The topology file: defaults, refusals with a reason, and the desired state made from it."""

import pathlib
import sys
import tempfile
import tomllib
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts" / "lab.d"))

from masqlab import services, topology  # noqa: E402
from masqlab.cpio import Cpio  # noqa: E402
from masqlab.ui import LabError  # noqa: E402

GOOD = """
[underlay]
paths = 2
mtu = 1500
[[host]]
name = "a"
[[host]]
name = "b"
[[host]]
name = "c"
[[tenant]]
name = "green"
vni = 70000
cidr = "10.0.0.0/16"
[[vm]]
name = "g1"
tenant = "green"
host = "a"
[[vm]]
name = "g2"
tenant = "green"
host = "c"
address = "10.0.9.9"
vcpus = 2
memory = "512M"
root = "bookworm"
"""


def load(text, **options):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        return topology.load(file.name, **options)


class Default(unittest.TestCase):
    def test_has_both_kinds_of_pairs_and_the_same_addresses_in_two_tenants(self):
        topo = topology.load(None)
        blue = [v for v in topo.vms if v.tenant.name == "blue"]
        red = [v for v in topo.vms if v.tenant.name == "red"]
        self.assertEqual(len(topo.vms), 5)
        self.assertEqual({v.host.name for v in blue}, {"h1", "h2"})
        self.assertEqual(sorted(v.host.name for v in blue), ["h1", "h1", "h2"])
        self.assertEqual({v.host.name for v in red}, {"h1", "h2"})
        self.assertLess({v.address for v in red}, {v.address for v in blue})
        self.assertEqual(topo.guest_mtu, 9000)

    def test_count_takes_the_first_or_adds_more(self):
        self.assertEqual([v.name for v in topology.load(None, count=2).vms], ["blue-1", "blue-2"])
        names = [v.name for v in topology.load(None, count=20).vms]
        self.assertEqual(len(set(names)), 20)

    def test_desired_state_is_what_masqd_reads(self):
        state = tomllib.loads(services.desired(topology.load(None)))
        self.assertEqual(state["host"][1], {"name": "h2", "underlay": ["10.77.0.2"]})
        self.assertEqual(state["vpc"][0], {"name": "blue", "vni": 100})
        self.assertEqual(state["vnic"][0], {"name": "blue-1", "vpc": "blue", "host": "h1", "mac": "52:54:00:64:00:01",
                                            "addresses": ["192.168.0.1"], "security_groups": ["blue"]})
        self.assertEqual(state["security_group"][1], {"name": "red", "vpc": "red"})


class Stations(unittest.TestCase):
    TEXT = GOOD.replace('address = "10.0.9.9"', 'underlay = ["10.77.0.100", "fd77::64"]') + """
[[vm]]
name = "g3"
tenant = "green"
host = "a"
aliases = ["10.77.0.50", "fd77::32"]
"""

    def test_a_station_is_a_static_endpoint_for_each_address(self):
        state = tomllib.loads(services.desired(load(self.TEXT)))
        self.assertEqual([v["name"] for v in state["vnic"]], ["g1", "g3"])
        self.assertEqual(state["static_endpoint"], [
            {"name": "g2", "vpc": "green", "addresses": ["10.77.0.100"], "underlay_address": "10.77.0.100", "security_groups": ["green"]},
            {"name": "g2-2", "vpc": "green", "addresses": ["fd77::64"], "underlay_address": "fd77::64", "security_groups": ["green"]},
        ])

    def test_aliases_are_the_hosts_and_the_vnics(self):
        state = tomllib.loads(services.desired(load(self.TEXT)))
        self.assertEqual(state["host"][0]["aliases"], [{"address": "10.77.0.50/24", "link": "ul0"}, {"address": "fd77::32/64", "link": "ul0"}])
        self.assertNotIn("aliases", state["host"][2])
        self.assertEqual(state["vnic"][1]["addresses"], ["10.0.0.3", "10.77.0.50", "fd77::32"])
        self.assertEqual(state["vnic"][1]["dedicated_alias"], "10.77.0.50")

    def test_mistakes_are_named(self):
        for change, says in [
            (("10.77.0.50", "10.78.0.50"), "outside"),
            (("10.77.0.50", "10.77.0.100"), "twice"),
            (("10.77.0.50", "10.77.0.3"), "twice"),
            (("fd77::32", "nowhere"), "aliases"),
            (('aliases = ["10.77.0.50"', 'underlay = ["10.77.0.7"]\naliases = ["10.77.0.50"'), "no vNIC"),
        ]:
            with self.subTest(says), self.assertRaisesRegex(LabError, says):
                load(self.TEXT.replace(*change, 1))


class File(unittest.TestCase):
    def test_a_file_is_read_whole(self):
        topo = load(GOOD)
        self.assertEqual(topo.guest_mtu, 1450)
        self.assertEqual(topo.host_underlay(topo.hosts[2]), ["10.77.0.3", "10.77.1.3"])
        first, second = topo.vms
        self.assertEqual((first.address, first.vcpus, first.memory_mib), ("10.0.0.1", 1, 1024))
        self.assertEqual((second.address, second.vcpus, second.memory_mib), ("10.0.9.9", 2, 512))
        self.assertEqual(load(GOOD, vcpus={"*": 4}, memory="2G").vms[1].memory_mib, 2048)
        self.assertEqual([vm.root for vm in load(GOOD, root="full").vms], ["full", "bookworm"])
        cpus = [vm.vcpus for vm in load(GOOD, vcpus={"g1": 3}).vms]
        self.assertEqual(cpus, [3, 2])
        with self.assertRaisesRegex(LabError, "g7"):
            load(GOOD, vcpus={"g7": 3})

    def test_links_with_a_rate_have_a_burst_of_a_train_or_2_ms(self):
        bursts = [load(GOOD.replace("mtu = 1500", f"rate_mbit = {rate}")).underlay.burst_bytes for rate in (1, 100, 1000, 100_000)]
        self.assertEqual(bursts, [65536, 65536, 250_000, 25_000_000])

    def test_mistakes_are_named(self):
        for change, says in [
            (("vni = 70000", "vni = 0"), "vni"),
            (('tenant = "green"', 'tenant = "grean"'), "grean"),
            (('host = "c"', 'host = "d"'), "'d'"),
            (("10.0.9.9", "10.1.9.9"), "outside"),
            (("10.0.9.9", "10.0.0.1"), "twice"),
            (('name = "g2"', 'name = "g1"'), "twice"),
            (('name = "g2"', 'name = "G 2"'), "name"),
            (("512M", "lots"), "memory"),
            (("vcpus = 2", "vcpu = 2"), "unknown key 'vcpu'"),
            (('root = "bookworm"', 'root = "buster"'), "'buster'"),
            (("paths = 2", "paths = 0"), "paths"),
            (("paths = 2", "paths = 17"), "paths"),
            (("vcpus = 2", "paths = 3"), "paths"),
            (("paths = 2", 'paths = "2"'), "paths"),
            (("mtu = 1500", "mtu = 1500.5"), "mtu"),
            (("mtu = 1500", "rate_mbit = -1"), "rate_mbit must be 1 to"),
            (("mtu = 1500", "rate_mbit = 100001"), "rate_mbit must be 1 to"),
            (("mtu = 1500", 'rate_mbit = "100"'), "rate_mbit must be 1 to"),
            (("mtu = 1500", "rate_mbit = true"), "rate_mbit must be 1 to"),
            (("mtu = 1500", 'gso = "no"'), "gso"),
            (("[[host]]", "[[host"), "not TOML"),
        ]:
            with self.subTest(says), self.assertRaisesRegex(LabError, says):
                load(GOOD.replace(*change, 1))


class Initramfs(unittest.TestCase):
    def test_cpio_has_the_newc_layout(self):
        archive = Cpio()
        archive.add_file("a/b", b"xyz", 0o600)
        data = archive.bytes()
        self.assertEqual(data[:6], b"070701")
        self.assertEqual(int(data[14:22], 16), 0o040755)
        second = 112  # header 110, "a\0", no padding, no data
        self.assertEqual(int(data[second + 14:second + 22], 16), 0o100600)
        self.assertEqual(int(data[second + 54:second + 62], 16), 3)
        self.assertIn(b"a/b\0", data)
        self.assertIn(b"TRAILER!!!", data)
        self.assertEqual(len(data) % 512, 0)


if __name__ == "__main__":
    unittest.main()
