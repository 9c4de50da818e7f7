"""What a lab consists of: read from a TOML file, or the default one. docs/lab.md describes the file."""

import dataclasses
import ipaddress
import re
import tomllib

from .roots import DEFAULT_KIND, KINDS
from .ui import LabError

NAME = re.compile(r"[a-z][a-z0-9-]{0,20}")
VXLAN_OVERHEAD = 50
# Where path 0 of the underlay is: addresses of hosts, aliases and stations.
UNDERLAY = [ipaddress.ip_network("10.77.0.0/24"), ipaddress.ip_network("fd77::/64")]
GUEST_MTU_MAX = 9000
# In Mbit/s; what a token bucket can keep.
RATE_MAX = 100_000

# Blue has a pair on one host (1, 2) and pairs on two (1-3, 2-3); red, on the very same addresses, a pair on two.
# `--vms N` takes the first N: 2 and 3 are blue alone, 4 adds one red VM, 5 is the default.
DEFAULT_VMS = [("blue-1", "h1"), ("blue-2", "h1"), ("blue-3", "h2"), ("red-1", "h1"), ("red-2", "h2"),
               ("red-3", "h1"), ("blue-4", "h2"), ("red-4", "h2")]
DEFAULT_COUNT = 5
DEFAULT_TENANTS = [("blue", 100), ("red", 200)]
DEFAULT_CIDR = "192.168.0.0/24"


@dataclasses.dataclass
class Host:
    name: str
    index: int


@dataclasses.dataclass
class Tenant:
    name: str
    vni: int
    cidr: str
    rules: str


@dataclasses.dataclass
class Vm:
    name: str
    index: int
    tenant: Tenant
    host: Host
    address: str
    mac: str
    vcpus: int
    memory_mib: int
    root: str
    # Underlay addresses that are also its virtual ones; the first is its vNIC's dedicated alias.
    aliases: list
    # It is a station of the underlay with these addresses, and has rxe there instead of a vNIC.
    underlay: list
    # Of the underlay's paths, how many its vNIC has.
    paths: int


@dataclasses.dataclass
class Underlay:
    paths: int = 1
    mtu: int = 9216
    # What each link carries in each direction; 0: all it can.
    rate_mbit: int = 0
    gso: bool = True

    @property
    def burst_bytes(self):
        """What a link with a rate may send at once after a pause: a train of segments, or what 2 ms bring. More than that and its queue overflows after each pause."""
        return max(64 << 10, self.rate_mbit * 250)


@dataclasses.dataclass
class Topology:
    hosts: list
    tenants: list
    vms: list
    underlay: Underlay
    masqd_args: list

    @property
    def guest_mtu(self):
        return min(GUEST_MTU_MAX, self.underlay.mtu - VXLAN_OVERHEAD)

    def host_underlay(self, host):
        """The physical addresses of a host, one per path."""
        return [f"10.77.{path}.{host.index}" for path in range(self.underlay.paths)]

    @property
    def stations(self):
        return [vm for vm in self.vms if vm.underlay]


def on_link(address):
    """An address of the underlay with the length of its network's prefix."""
    return f"{address}/{next(net.prefixlen for net in UNDERLAY if ipaddress.ip_address(address) in net)}"


def load(path, count=None, vcpus=None, memory=None, root=DEFAULT_KIND):
    """Reads the file (or takes the default), applies the command line's options, and checks it all.

    `vcpus` gives VMs, by name, numbers of CPUs; "*" stands for every other VM. `root` is the kind of those that name none.
    """
    vcpus = vcpus or {}
    data = _default(count or DEFAULT_COUNT) if path is None else _read(path)
    _only(data, {"underlay", "masqd", "host", "tenant", "vm"}, "the file")
    _only(data.get("masqd", {}), {"args"}, "[masqd]")
    underlay = _underlay(data.get("underlay", {}))
    hosts = [Host(_name(h, "host"), i) for i, h in enumerate(data.get("host", []), 1)]
    tenants = [_tenant(t) for t in data.get("tenant", [])]
    _unique([h.name for h in hosts], "host")
    _unique([t.name for t in tenants], "tenant")
    _unique([t.vni for t in tenants], "VNI")
    entries = data.get("vm", [])
    if path is not None and count is not None:
        entries = entries[:count]
    vms, members = [], {}
    for index, entry in enumerate(entries, 1):
        vm = _vm(entry, index, hosts, tenants, members, vcpus, memory, root, underlay.paths)
        vms.append(vm)
    _unique([v.name for v in vms], "VM")
    for name in vcpus:
        if name != "*":
            _find(vms, name, "--vcpus: VM")
    for what in ("address", "mac"):
        _unique([(v.tenant.name, getattr(v, what)) for v in vms], f"tenant and {what}")
    taken = [a for vm in vms for a in vm.aliases + vm.underlay] + [f"10.77.0.{h.index}" for h in hosts]
    _unique(taken, "underlay address")
    if not hosts or not vms:
        raise LabError("a topology needs at least one [[host]] and one [[vm]]")
    if len(hosts) > 200 or len(vms) > 200:
        raise LabError("the lab goes up to 200 hosts and 200 VMs")
    return Topology(hosts, tenants, vms, underlay, [str(a) for a in data.get("masqd", {}).get("args", [])])


def _default(count):
    vms = list(DEFAULT_VMS)
    while len(vms) < count:
        number = len(vms) // 2 + 1
        vms.append((f"{('blue', 'red')[len(vms) % 2]}-{number}", f"h{1 + number % 2}"))
    return {
        "host": [{"name": "h1"}, {"name": "h2"}],
        "tenant": [{"name": n, "vni": v, "cidr": DEFAULT_CIDR} for n, v in DEFAULT_TENANTS],
        "vm": [{"name": n, "tenant": n.split("-")[0], "host": h} for n, h in vms[:count]],
    }


def _read(path):
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise LabError(f"no topology file {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"{path} is not TOML: {error}") from None


def _underlay(data):
    _only(data, {f.name for f in dataclasses.fields(Underlay)}, "[underlay]")
    underlay = Underlay(**data)
    if not _between(1, underlay.paths, 16):
        raise LabError("[underlay] paths must be 1 to 16")
    if not _between(1280 + VXLAN_OVERHEAD, underlay.mtu, 65535):
        raise LabError("[underlay] mtu must be 1330 to 65535")
    if not _between(0, underlay.rate_mbit, RATE_MAX):
        raise LabError(f"[underlay] rate_mbit must be 1 to {RATE_MAX}, or 0 for links without a limit")
    if not isinstance(underlay.gso, bool):
        raise LabError("[underlay] gso must be true or false")
    return underlay


def _between(least, value, most):
    return type(value) is int and least <= value <= most


def _tenant(data):
    _only(data, {"name", "vni", "cidr", "rules"}, "[[tenant]]")
    name = _name(data, "tenant")
    vni = data.get("vni")
    if not isinstance(vni, int) or not 1 <= vni < 1 << 24:
        raise LabError(f"tenant {name}: vni must be 1 to 16777215")
    try:
        cidr = ipaddress.IPv4Network(data.get("cidr", DEFAULT_CIDR))
    except ValueError as error:
        raise LabError(f"tenant {name}: cidr: {error}") from None
    rules = data.get("rules", "allow")
    if rules not in ("allow", "none"):
        raise LabError(f'tenant {name}: rules must be "allow" (members may talk) or "none"')
    return Tenant(name, vni, str(cidr), rules)


def _vm(data, index, hosts, tenants, members, vcpus, memory, root, most_paths):
    _only(data, {"name", "tenant", "host", "address", "mac", "vcpus", "memory", "root", "aliases", "underlay", "paths"}, "[[vm]]")
    name = _name(data, "vm")
    tenant = _find(tenants, data.get("tenant"), f"VM {name}: tenant")
    host = _find(hosts, data.get("host"), f"VM {name}: host")
    number = members[tenant.name] = members.get(tenant.name, 0) + 1
    network = ipaddress.IPv4Network(tenant.cidr)
    try:
        address = ipaddress.IPv4Address(data.get("address") or network[number])
    except (ValueError, IndexError) as error:
        raise LabError(f"VM {name}: address: {error}") from None
    if address not in network:
        raise LabError(f"VM {name}: address {address} is outside {tenant.cidr} of tenant {tenant.name}")
    mac = data.get("mac") or f"52:54:00:{tenant.vni & 0xff:02x}:{number >> 8:02x}:{number & 0xff:02x}"
    cpus = vcpus.get(name) or vcpus.get("*") or data.get("vcpus", 1)
    if not isinstance(cpus, int) or not 1 <= cpus <= 64:
        raise LabError(f"VM {name}: vcpus must be 1 to 64")
    root = data.get("root", root)
    if root not in KINDS:
        raise LabError(f"VM {name}: no guest root is called {root!r}; there are: {', '.join(KINDS)}")
    aliases, underlay = (_underlay_addresses(data.get(key, []), f"VM {name}: {key}") for key in ("aliases", "underlay"))
    if aliases and underlay:
        raise LabError(f"VM {name}: a station of the underlay has no vNIC that could have aliases")
    memory = _mebibytes(memory or data.get("memory", "1G"), name)
    paths = data.get("paths", 1)
    if not isinstance(paths, int) or not 1 <= paths <= most_paths:
        raise LabError(f"VM {name}: paths must be at least 1, and no more than [underlay] has")
    return Vm(name, index, tenant, host, str(address), mac, cpus, memory, root, aliases, underlay, paths)


def _underlay_addresses(texts, what):
    found = []
    for text in texts:
        try:
            address = ipaddress.ip_address(text)
        except ValueError as error:
            raise LabError(f"{what}: {error}") from None
        if not any(address in net for net in UNDERLAY):
            raise LabError(f"{what}: {address} is outside of {' and '.join(map(str, UNDERLAY))}")
        found.append(str(address))
    return found


def _mebibytes(text, name):
    match = re.fullmatch(r"(\d+)([MG])", str(text))
    size = int(match[1]) * (1024 if match[2] == "G" else 1) if match else 0
    if size < 256:
        raise LabError(f"VM {name}: memory is written like 512M or 2G, and is at least 256M")
    return size


def _name(data, what):
    name = data.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise LabError(f"a {what} needs a name of small letters, digits and '-' (at most 21); got {name!r}")
    return name


def _find(items, name, what):
    for item in items:
        if item.name == name:
            return item
    raise LabError(f"{what} {name!r} is not described; there are: {', '.join(i.name for i in items) or 'none'}")


def _only(data, known, where):
    unknown = sorted(set(data) - known)
    if unknown:
        raise LabError(f"unknown key {unknown[0]!r} in {where}; known: {', '.join(sorted(known))}")


def _unique(values, what):
    for value in values:
        if values.count(value) > 1:
            raise LabError(f"{what} {value} is there twice")
