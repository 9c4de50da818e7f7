"""Hosts as network namespaces: underlay, control network, tenants' overlay. Nothing is made outside of them."""

import os
import subprocess

from .paths import PREFIX
from .ui import run

CONTROL_NS = f"{PREFIX}-ctl"
FABRIC_NS = f"{PREFIX}-fabric"
STORE_ADDRESS = "10.78.0.254"
VXLAN_PORT = 4789
MANAGEMENT_MTU = 9000


def host_ns(name):
    return f"{PREFIX}-{name}"


def management_address(vm):
    return f"10.79.{vm.host.index}.{vm.index}"


def inside(netns, argv):
    """The command line that runs a program in a namespace (same process: nsenter execs)."""
    return ["nsenter", f"--net=/run/netns/{netns}", *argv]


def build(topology):
    """Makes all namespaces and links of a topology, taps included."""
    for name in [CONTROL_NS, *(host_ns(h.name) for h in topology.hosts)]:
        _add_ns(name)
    _batch(CONTROL_NS, ["link add ctl0 type bridge", f"addr add {STORE_ADDRESS}/24 dev ctl0", "link set ctl0 up"])
    for host in topology.hosts:
        _host(topology, host)
    _underlay(topology)
    for host in topology.hosts:
        _overlay(topology, host)


def existing():
    """The lab's namespaces that are there now."""
    try:
        names = os.listdir("/run/netns")
    except FileNotFoundError:
        return []
    return sorted(n for n in names if n.startswith(PREFIX + "-"))


def processes(netns):
    out = subprocess.run(["ip", "netns", "pids", netns], capture_output=True, text=True).stdout
    return [int(pid) for pid in out.split()]


def delete(netns):
    subprocess.run(["ip", "netns", "del", netns], capture_output=True)


def tap(vm):
    return f"t{vm.index}"


def underlay_tap(vm):
    return f"u{vm.index}"


def management_tap(vm):
    return f"m{vm.index}"


def _add_ns(name):
    run(["ip", "netns", "add", name])
    run(["ip", "-n", name, "link", "set", "lo", "up"])


def _host(topology, host):
    ns = host_ns(host.name)
    run(["ip", "link", "add", "ctl0", "netns", ns, "type", "veth", "peer", "name", f"h{host.index}", "netns", CONTROL_NS])
    _batch(CONTROL_NS, [f"link set h{host.index} master ctl0 up"])
    _batch(ns, [f"addr add 10.78.0.{host.index}/24 dev ctl0", "link set ctl0 up",
                f"link add mgmt mtu {MANAGEMENT_MTU} type bridge", f"addr add 10.79.{host.index}.254/24 dev mgmt", "link set mgmt up"])


def _underlay(topology):
    """Path p is a network 10.77.p.0/24: a veth pair between two hosts, a switch between more, or where stations are."""
    hosts, under = topology.hosts, topology.underlay
    switched = len(hosts) != 2 or topology.stations
    if switched:
        _add_ns(FABRIC_NS)
    for path in range(under.paths):
        link = f"ul{path}"
        if not switched:
            first, second = (host_ns(h.name) for h in hosts)
            run(["ip", "link", "add", link, "netns", first, "type", "veth", "peer", "name", link, "netns", second])
        else:
            _batch(FABRIC_NS, [f"link add sw{path} mtu {under.mtu} type bridge", f"link set sw{path} up"])
            for host in hosts:
                port = f"p{path}h{host.index}"
                run(["ip", "link", "add", link, "netns", host_ns(host.name), "type", "veth",
                     "peer", "name", port, "netns", FABRIC_NS])
                _batch(FABRIC_NS, [f"link set {port} mtu {under.mtu} master sw{path} up"])
                _shape(FABRIC_NS, port, under)
        for host in hosts:
            ns = host_ns(host.name)
            gso = "" if under.gso else " gso_max_segs 1"
            _batch(ns, [f"link set {link} mtu {under.mtu}{gso}",
                        f"addr add 10.77.{path}.{host.index}/24 dev {link}", f"link set {link} up"])
            _shape(ns, link, under)
    for vm in topology.stations:
        _station(under, vm)


def _station(under, vm):
    """A VM's interface on path 0: a bridge in its host's namespace, where its QEMU runs, joins its tap to the switch."""
    ns, bridge, inner, port = host_ns(vm.host.name), f"sb{vm.index}", f"sl{vm.index}", f"ps{vm.index}"
    run(["ip", "link", "add", inner, "netns", ns, "type", "veth", "peer", "name", port, "netns", FABRIC_NS])
    _batch(FABRIC_NS, [f"link set {port} mtu {under.mtu} master sw0 up"])
    commands = [f"link add {bridge} mtu {under.mtu} type bridge", f"link set {bridge} addrgenmode none", f"link set {bridge} up",
                f"tuntap add {underlay_tap(vm)} mode tap"]
    for link in (inner, underlay_tap(vm)):
        commands += [f"link set {link} addrgenmode none", f"link set {link} mtu {under.mtu} master {bridge} up"]
    _batch(ns, commands)
    _shape(FABRIC_NS, port, under)


def _shape(ns, link, under):
    if under.rate_mbit:
        run(["tc", "-n", ns, "qdisc", "add", "dev", link, "root", "tbf", "rate", f"{under.rate_mbit}mbit",
             "burst", f"{under.burst_bytes}b", "latency", "10ms"])


def _overlay(topology, host):
    """Per tenant with VMs here: a bridge, VXLAN to the other hosts, and the VMs' taps."""
    ns, mtu = host_ns(host.name), topology.guest_mtu
    mine = [v for v in topology.vms if v.host is host]
    commands, forwarding = [], []
    for tenant in topology.tenants:
        if not any(v.tenant is tenant for v in mine):
            continue
        bridge, vxlan = f"br{tenant.vni}", f"vx{tenant.vni}"
        commands += [
            f"link add {bridge} mtu {mtu} type bridge", f"link set {bridge} addrgenmode none", f"link set {bridge} up",
            f"link add {vxlan} mtu {mtu} type vxlan id {tenant.vni} dstport {VXLAN_PORT}"
            f" local {topology.host_underlay(host)[0]}",
            f"link set {vxlan} addrgenmode none", f"link set {vxlan} master {bridge} up",
        ]
        for other in topology.hosts:
            if other is not host and any(v.tenant is tenant and v.host is other for v in topology.vms):
                forwarding.append(f"fdb append 00:00:00:00:00:00 dev {vxlan} dst {topology.host_underlay(other)[0]}")
    for vm in mine:
        commands += [
            f"tuntap add {tap(vm)} mode tap",
            f"link set {tap(vm)} addrgenmode none", f"link set {tap(vm)} mtu {mtu} master br{vm.tenant.vni} up",
            f"tuntap add {management_tap(vm)} mode tap",
            f"link set {management_tap(vm)} addrgenmode none", f"link set {management_tap(vm)} mtu {MANAGEMENT_MTU} master mgmt up",
        ]
    _batch(ns, commands)
    if forwarding:
        run(["bridge", "-n", ns, "-batch", "-"], "VXLAN forwarding", input="\n".join(forwarding) + "\n")


def _batch(ns, commands):
    if commands:
        run(["ip", "-n", ns, "-batch", "-"], f"network of {ns}", input="\n".join(commands) + "\n")
