"""Kernel rxe on a machine of the underlay and vrdma: each with the other, in both directions.

A cell is one program run once. Its line tells who begins (the client), what crosses and in which direction, path MTU, loss, and
rxe's hw_counters before and after. Loss is injected by masqd's RNIC into what comes to it: requests of rxe, and rxe's answers.
"""

import dataclasses
import ipaddress
import itertools
import re
import subprocess
import time

import client as labclient
from client import Failed, client_server, finish, last_numbers, server, until
from registry import Counts, complaints, test

ADDRESSES = {"IPv4": {"blue-1": "10.77.0.50", "metal": "10.77.0.100"}, "IPv6": {"blue-1": "fd77::32", "metal": "fd77::64"}}
STATIC_ENDPOINT = {"IPv4": "metal", "IPv6": "metal-2"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What holds for a group of cells."""
    family: str
    mtu: int
    loss_percent: int
    client: str

    def __str__(self):
        return f"{self.family}, MTU {self.mtu}, {self.loss_percent} % loss, client {'rxe' if self.client == 'metal' else 'vrdma'}"


# Program, options, and the direction of its payload seen from the client. Datagrams that are lost are not sent again, so that
# what counts them would wait for ever: those without loss only. Reads and atomics that are outstanding: 16, which is vrdma's limit; by
# itself perftest takes the peer's, rxe's 128, and no device takes more than it can. ACK timeout: 0.5 s (-u 17), since an emulated rxe with
# many packets before it takes longer than perftest's 67 ms to answer, also without loss, as its own completer_retry_err shows.
RELIABLE = [
    ("ib_write_bw", "-n 50 -s 16384", "to the server"), ("ib_read_bw", "-o 16 -n 50 -s 16384", "from the server"),
    ("ib_send_bw", "-n 50 -s 16384", "to the server"), ("ib_atomic_bw", "-o 16 -n 50", "both ways"),
    ("ib_write_lat", "-n 20 -s 2", "both ways"), ("ib_read_lat", "-o 16 -n 20 -s 2", "from the server"),
    ("ib_send_lat", "-n 20 -s 2", "both ways"), ("ib_atomic_lat", "-o 16 -n 20", "both ways"),
]
DATAGRAMS = [("ib_send_bw", "-c UD -n 50 -s 1024", "to the server"), ("ib_send_lat", "-c UD -n 20 -s 64", "both ways")]
PINGPONGS = [("ibv_rc_pingpong", "-c -n 20 -s 16384", "both ways, checked")]
# Datagrams that are lost end these as well.
PINGPONGS_WITHOUT_LOSS = [("ibv_ud_pingpong", "-c -n 20 -s 1000", "both ways, checked")]


class Ends:
    """The two, set up for a family and a loss."""

    current = None

    def __init__(self, lab, family, loss_percent):
        self.lab, self.family = lab, family
        self.vrdma, self.rxe = lab.vms["blue-1"], lab.vms["metal"]
        if Ends.current != (family, loss_percent):
            self._set(family, loss_percent)
        self.devices = {}
        for vm in (self.vrdma, self.rxe):
            found = until(lambda vm=vm: gid_of(vm, ADDRESSES[family][vm.name]), 40)
            assert found, f"{vm} has no GID of {ADDRESSES[family][vm.name]}:\n" + vm.run("rdma link; ip addr; dmesg | tail -20")
            self.devices[vm.name] = found
        Ends.current = (family, loss_percent)

    def _set(self, family, loss_percent):
        """Gives the vNIC the alias of the family, and masqd's RNIC the loss; the guest gets another device."""
        Ends.current = None
        masqctl(self.vrdma.host, "vnic", "set", "blue-1", "--dedicated-alias", ADDRESSES[family]["blue-1"], "--wait", "30")
        faults = [f"--arg=--inject-faults=drop={loss_percent / 100},seed=1"] if loss_percent else []
        before = device_number(self.vrdma)
        subprocess.run([labclient.LAB, "restart-masqd", self.vrdma.host, *faults], check=True, capture_output=True)
        # The device of before looks active until the guest has noticed.
        assert until(lambda: has_settled(self.vrdma, before), 60), self.vrdma.run("rdma dev; dmesg | tail -20")
        assert until(lambda: "ACTIVE" in self.vrdma.run("rdma link"), 60), self.vrdma.run("rdma link; dmesg | tail -20")

    def place(self, client):
        client_vm = self.lab.vms[client]
        server_vm = self.rxe if client_vm is self.vrdma else self.vrdma
        return ("underlay", server_vm, client_vm)

    def on(self, vm, gid):
        device, index = self.devices[vm.name]
        return f"-d {device} {gid} {index}"


def device_number(vm):
    """The kernel's number of the vRDMA device, another one each time that it is registered; None while there is none."""
    found = re.search(r"^(\d+): vrdma", vm.run("rdma dev"), re.MULTILINE)
    return found and found[1]


def has_settled(vm, before):
    """Whether it has a device other than the one with the number before, and still has it two seconds later."""
    number = device_number(vm)
    if number in (None, before):
        return False
    time.sleep(2)
    return device_number(vm) == number


def masqctl(host, *words):
    done = subprocess.run([labclient.LAB, "masqctl", host, "--", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"masqctl {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def gid_of(vm, address):
    """Device and index of the GID of an address, RoCEv2's, in a VM."""
    text = vm.run("for d in /sys/class/infiniband/*; do for f in $d/ports/1/gids/*; do i=${f##*/};"
                  " read -r t 2>/dev/null <$d/ports/1/gid_attrs/types/$i || continue; [ \"$t\" = 'RoCE v2' ] || continue;"
                  " read -r g <$f; echo ${d##*/} $i $g; done; done", check=False)
    packed = ipaddress.ip_address(address).packed
    digits = (bytes(10) + b"\xff\xff" + packed if len(packed) == 4 else packed).hex()
    want = ":".join(digits[i:i + 4] for i in range(0, 32, 4))
    for line in text.splitlines():
        device, index, gid = line.split()
        if gid == want:
            return device, int(index)
    return None


def counters(vm):
    """rxe's hw_counters."""
    text = vm.run("cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *")
    return {name: int(value) for name, value in (line.split(":") for line in text.splitlines() if line.split(":")[1].lstrip("-").isdigit())}


def told(before, after):
    """All counters that are or were not 0, before and after."""
    return " ".join(f"{name}={before[name]}>{after[name]}" for name in after if before[name] or after[name]) or "all 0"


def perftest(ends, setting, program, options):
    place = ends.place(setting.client)
    timeout = "" if "UD" in options else "-u 17"
    output = client_server(place, program, f"{options} -m {setting.mtu} {timeout}", select=lambda vm: ends.on(vm, "-x") + " -F", timeout=90)
    numbers = last_numbers(output)
    assert numbers, f"no result:\n{output}"
    return "figures " + " ".join(f"{n:g}" for n in numbers[2:])


def pingpong(ends, setting, program, options):
    # Their messages of datagrams fit the MTU; what is checked is the data.
    mtu = "" if "ud" in program else f"-m {setting.mtu}"
    output = client_server(ends.place(setting.client), program, f"{options} {mtu}", select=lambda vm: ends.on(vm, "-g"), timeout=90)
    assert "invalid data" not in output, output
    return "data right"


def rping(ends, setting):
    """By rdma_cm: requests, answers and private data cross between the two kernels' ib_cm, and rping checks its data with -V."""
    _, server_vm, client_vm = ends.place(setting.client)
    address = ADDRESSES[setting.family][server_vm.name]
    with server(server_vm, f"rping -s -a {address} -C 10 -V", 7174, 90) as process:
        client_vm.run(f"rping -c -a {address} -C 10 -V", timeout=90)
    assert process.ended == 0, process.text
    return "data right"


def cells(setting, quick):
    """Name, payload's direction and function of each."""
    lossless = setting.loss_percent == 0
    for program, options, direction in RELIABLE + (DATAGRAMS if lossless else []):
        if not quick or program in ("ib_write_bw", "ib_read_bw", "ib_send_lat", "ib_atomic_lat"):
            yield f"{program} {options}", direction, lambda e, s, p=program, o=options: perftest(e, s, p, o)
    for program, options, direction in PINGPONGS + (PINGPONGS_WITHOUT_LOSS if lossless else []):
        if not quick or "rc" in program:
            yield f"{program} {options}", direction, lambda e, s, p=program, o=options: pingpong(e, s, p, o)
    yield "rping -C 10 -V", "both ways, checked", rping


def run_cells(lab, setting, quick=False):
    ends = Ends(lab, setting.family, setting.loss_percent)
    passed, problems, notes = 0, [], []
    for name, direction, function in cells(setting, quick):
        before = counters(ends.rxe)
        try:
            result = function(ends, setting)
            passed += 1
        except (AssertionError, Failed) as error:
            result = "FAILED"
            problems.append(f"{setting}: {name}: {error}")
        notes.append(f"{setting}: {name}: payload {direction}: {result}; rxe: {told(before, counters(ends.rxe))}")
    for vm in (ends.vrdma, ends.rxe):
        bad = complaints(vm)
        if bad:
            problems.append(f"{vm}: {bad}")
    return Counts(passed, 0, problems, notes)


@test(lab="interop")
def rxe_and_vrdma_talk(lab):
    both = [run_cells(lab, Setting("IPv4", 1024, 0, client), quick=True) for client in ("metal", "blue-1")]
    return Counts(sum(c.passed for c in both), 0, [p for c in both for p in c.problems], [n for c in both for n in c.notes])


def matrix():
    """Settings in an order in which masqd starts anew as seldom as can be."""
    for family, loss in itertools.product(("IPv4", "IPv6"), (0, 1)):
        for mtu, client in itertools.product((1024, 4096), ("metal", "blue-1")):
            def run(lab, setting=Setting(family, mtu, loss, client)):
                return run_cells(lab, setting)
            run.__name__, run.__module__ = str(Setting(family, mtu, loss, client)), __name__
            test(run, full=True, lab="interop")


matrix()


@test(full=True, lab="interop")
def without_an_alias_nobody_reaches_a_stranger(lab):
    ends = Ends(lab, "IPv4", 0)
    try:
        masqctl(ends.vrdma.host, "vnic", "set", "blue-1", "--unset", "dedicated-alias", "--wait", "30")
        assert until(lambda: "ACTIVE" in ends.vrdma.run("rdma link"), 60)
        found = until(lambda: gid_of(ends.vrdma, ADDRESSES["IPv4"]["blue-1"]), 40)
        assert found, "no GID"
        before = counter(ends.vrdma.host, "no_alias")
        client = f"ibv_rc_pingpong -d {found[0]} -g {found[1]} -n 5 {ends.rxe.address}"
        with server(ends.rxe, f"timeout 20 ibv_rc_pingpong {ends.on(ends.rxe, '-g')} -n 5", 18515):
            status, output = ends.vrdma.status(client)
            ends.rxe.kill_all("ibv_rc_pingpong")
        assert status != 0 and "RTR" in output, output
        assert counter(ends.vrdma.host, "no_alias") > before, "the reason is not counted"
        explained = subprocess.run([labclient.LAB, "masqctl", ends.vrdma.host, "--", "explain", "blue-1", "metal"], capture_output=True, text=True)
        assert explained.returncode == 5 and "dedicated alias" in explained.stdout, explained
    finally:
        Ends.current = None
        Ends(lab, "IPv4", 0)


def counter(host, reason):
    """How often requests were refused for a reason on a host."""
    text = subprocess.run([labclient.LAB, "host", host, "--", "curl", "-s", "--unix-socket", labclient.Lab().sockets[host], "http://masqd/metrics"],
                          check=True, capture_output=True, text=True).stdout
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("masqd_") and f'reason="{reason}"' in line)


@test(full=True, lab="interop")
def what_a_deleted_static_endpoint_had_is_cut(lab):
    ends = Ends(lab, "IPv4", 0)
    name = STATIC_ENDPOINT["IPv4"]
    _, server_vm, client_vm = ends.place("blue-1")
    server_vm.kill_all("ib_write_bw")
    process = server_vm.popen(f"ib_write_bw {ends.on(server_vm, '-x')} -F -D 60 -s 16384")
    server_vm.wait_port(18515)
    peer = client_vm.popen(f"ib_write_bw {ends.on(client_vm, '-x')} -F -D 60 -s 16384 {server_vm.address}")
    try:
        assert until(lambda: "metal" in masqctl(client_vm.host, "connections"), 20), "no connection"
        masqctl(client_vm.host, "static-endpoint", "delete", name, "--wait", "20")
        output, status = finish(peer, 40)
        assert status not in (0, 124) and "metal" not in masqctl(client_vm.host, "connections"), output
    finally:
        process.kill()
        server_vm.kill_all("ib_write_bw")
        client_vm.kill_all("ib_write_bw")
        address = ADDRESSES["IPv4"]["metal"]
        masqctl(client_vm.host, "static-endpoint", "create", name, "--vpc", "blue", "--address", address, "--underlay", address,
                "--security-group", "blue", "--wait", "20")
    assert perftest(ends, Setting("IPv4", 1024, 0, "blue-1"), "ib_write_bw", "-n 20 -s 4096")
