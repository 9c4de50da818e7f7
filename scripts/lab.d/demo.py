"""What scripts/demo shows in a lab that is up."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import client
from client import LAB, ROOT, Lab, client_server, last_numbers, server

PROGRAMS = [
    ("ibv_rc_pingpong", "-c -n 500 -s 4096"),
    ("ib_write_bw", "-s 65536 -n 1000"),
    ("ib_send_bw", "-s 65536 -n 1000"),
    ("ib_read_bw", "-s 65536 -n 1000"),
    ("ib_atomic_bw", "-n 1000"),
    ("ib_write_lat", "-s 2 -n 500"),
    ("ib_send_lat", "-s 2 -n 500"),
]

# Takes a queue pair to RTR and tells what the kernel says.
CONNECT = """
import errno, ipaddress, sys
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
import pyverbs.enums as e
device, index, address, qpn = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4], 0)
ctx = Context(name=device)
cq = CQ(ctx, 8)
qp = QP(PD(ctx), QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(4, 4, 1, 1)))
attr = QPAttr(port_num=1)
qp.to_init(attr)
mapped = ipaddress.IPv6Address("::ffff:" + address).packed.hex()
route = GlobalRoute(dgid=GID(":".join(mapped[i:i + 4] for i in range(0, 32, 4))), sgid_index=index)
attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
attr.dest_qp_num, attr.path_mtu, attr.max_dest_rd_atomic, attr.min_rnr_timer = qpn, e.IBV_MTU_1024, 1, 12
try:
    qp.to_rtr(attr)
    print("connected")
except PyverbsError as error:
    code = getattr(error, "error_code", None) or error.args[-1]
    print("refused:", errno.errorcode.get(code, code) if isinstance(code, int) else code)
"""


def say(text=""):
    print(text, flush=True)


def section(title):
    say(f"\n== {title} ==")


def main():
    began = time.monotonic()
    lab = Lab()
    vms = list(lab.vms.values())
    section("The device that each VM sees")
    vm = vms[0]
    wanted = r"hca_id|transport|fw_ver|vendor_part_id|state|active_mtu|link_layer|GID\["
    say(f"{vm}: ibv_devinfo -v -d {vm.device}")
    for line in vm.run(f"ibv_devinfo -v -d {vm.device}").splitlines():
        if re.search(wanted, line):
            say("    " + line.strip())

    rows = []
    for place in lab.pairs():
        section(f"{place[2]} to {place[1]}: {place[0]}, tenant {place[1].tenant}")
        for program, options in PROGRAMS:
            say(f"  {program} {options}")
            output = client_server(place, program, options)
            rows.append((program, place[0], measure(program, output)))

    tenants_apart(lab)
    wire = the_wire(lab)
    table(rows)
    say(f"\n{wire}")
    say(f"The demo took {time.monotonic() - began:.0f} s.")


def measure(program, output):
    """The figure that a program is run for, as text."""
    if program == "ibv_rc_pingpong":
        rate = re.search(r"= ([\d.]+) usec/iter", output)
        return f"{float(rate[1]):.0f} µs a round trip of 4096 B, data checked"
    numbers = last_numbers(output)
    if program.endswith("_lat"):
        return f"{numbers[4]:.1f} µs typical, {numbers[6] if len(numbers) > 6 else numbers[-1]:.1f} µs p99, 2 B"
    if "atomic" in program:
        return f"{numbers[4] * 1e6:.0f} operations/s"
    return f"{numbers[3]:.0f} MiB/s, 64 KiB messages"


def tenants_apart(lab):
    section("Two tenants on the same addresses")
    for vm in lab.vms.values():
        say(f"  {vm.name}: tenant {vm.tenant}, {vm.address}, on {vm.host}")
    red = next(v for v in lab.vms.values() if v.tenant != next(iter(lab.vms.values())).tenant)
    victim = next(v for v in lab.vms.values() if v.tenant != red.tenant)
    with_python = "cat > /tmp/connect.py <<'EOF'\n" + CONNECT + "\nEOF\n"
    red.run(with_python)
    victim.kill_all("ibv_rc_pingpong")
    process = victim.popen(f"ibv_rc_pingpong {client.on(victim, '-g')} -p 19900")
    victim.wait_port(19900)
    qpn = re.search(r"lqpn (\d+)", victim.run("rdma resource show qp | grep ibv_rc_pingpong"))[1]
    say(f"  {victim} has a queue pair {int(qpn):#x}. {red} tries to connect to {victim.address}, queue pair {int(qpn):#x}:")
    say("    " + attempt(red, victim.address, qpn))
    free = f"{victim.address.rsplit('.', 1)[0]}.99"
    red.run(f"ip neigh replace {free} lladdr 52:54:00:00:00:99 dev eth0")
    say(f"  {red} tries to connect to {free}, which nobody has:")
    say("    " + attempt(red, free, qpn))
    process.kill()
    process.communicate()
    victim.kill_all("ibv_rc_pingpong")
    logs = subprocess.run([LAB, "logs", red.host], capture_output=True, text=True).stdout
    say(f"  masqd on {red.host} logged:")
    for line in [l for l in logs.splitlines() if "refused" in l.lower()][-2:]:
        say("    " + line.strip())


def attempt(vm, address, qpn):
    return vm.run(f"python3 /tmp/connect.py {vm.device} {vm.gid_index} {address} {qpn} 2>&1").strip().splitlines()[-1]


def the_wire(lab):
    section("What the wire carries")
    place = next(p for p in lab.pairs() if p[0] == "two hosts")
    hosts = json.loads(subprocess.run([LAB, "status", "-o", "json"], capture_output=True, text=True, check=True).stdout)["hosts"]
    physical = {h["name"]: h["underlay"] for h in hosts}
    say(f"  {place[2]} ({place[2].address}) and {place[1]} ({place[1].address}) exchange messages; tcpdump listens on the underlay of "
        f"{place[2].host}.")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "wire.pcap")
        listener = subprocess.Popen(
            [LAB, "host", place[2].host, "--", "tcpdump", "-i", "ul0", "-U", "-s", "0", "-w", path, "udp port 4791"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client.until(lambda: os.path.exists(path), 10, 0.1)
        client_server(place, "ibv_rc_pingpong", "-c -n 20 -s 1000")
        time.sleep(0.5)
        listener.terminate()
        listener.wait()
        shown = subprocess.run(
            ["cargo", "run", "-q", "--release", "-p", "masq-wire", "--example", "check-pcap", "--", "--list", path],
            cwd=ROOT, capture_output=True, text=True)
    lines = shown.stdout.splitlines()
    for line in lines[:4]:
        say("    " + line)
    say("    …")
    say("    " + lines[-1])
    assert shown.returncode == 0, shown.stdout[-2000:] + shown.stderr
    addresses = set(re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", "\n".join(lines[:-1])))
    expected = {a for host in (place[1].host, place[2].host) for a in physical[host]}
    assert addresses and addresses <= expected, f"addresses on the wire: {addresses}"
    return f"On the wire: only {', '.join(sorted(addresses))}. {lines[-1]}"


def table(rows):
    section("Results")
    programs = list(dict.fromkeys(r[0] for r in rows))
    places = list(dict.fromkeys(r[1] for r in rows))
    cells = [["program", *places]]
    for program in programs:
        cells.append([program] + [next((v for p, w, v in rows if (p, w) == (program, place)), "-") for place in places])
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for n, row in enumerate(cells):
        say("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
        if n == 0:
            say("  ".join("-" * width for width in widths))


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    main()
