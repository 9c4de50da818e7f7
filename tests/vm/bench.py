"""Measures vrdma beside its peers in the lab's VMs. Runs take turns; figures are medians.

What is measured is a program in the VMs, with all that is under it: the guests' kernels, QEMU, and masqd.
"""

import argparse
import json
import pathlib
import re
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts" / "lab.d"))
from client import Lab, client_server, last_numbers, on, server  # noqa: E402

ROUNDS = 3
RXE_GID = """
for i in $(seq 0 15); do
    gid=/sys/class/infiniband/rxe0/ports/1
    case $(cat $gid/gids/$i) in 0000:0000:0000:0000:0000:ffff:*)
        grep -q v2 $gid/gid_attrs/types/$i 2>/dev/null && echo $i && exit 0;; esac
done
exit 1
"""


def add_rxe(vm):
    """Puts kernel rxe on the VM's virtual NIC; returns how perftest names it."""
    vm.run("modprobe rdma_rxe && { rdma link show rxe0/1 >/dev/null 2>&1 || rdma link add rxe0 type rxe netdev eth0; }")
    return f"-d rxe0 -x {vm.run(RXE_GID).strip()}"


def perftest(place, program, options, select):
    """One run; `select` gives a VM's device options. Returns the numbers of the result line."""
    return last_numbers(client_server(place, program, options, timeout=90, select=lambda vm: f"{select[vm.name]} -F"))


def tcp_mib(place):
    _, serving, asking = place
    with server(serving, "iperf3 -s -1", 5201):
        result = json.loads(asking.run(f"iperf3 -c {serving.address} -t 4 -J"))
    return result["end"]["sum_received"]["bits_per_second"] / 8 / (1 << 20)


def tcp_latency_us(place):
    """Half a round trip of 2 bytes, as perftest counts latency."""
    _, serving, asking = place
    serving.kill_all("qperf")
    process = serving.popen("qperf")
    try:
        serving.wait_port(19765)
        text = asking.run(f"qperf {serving.address} -t 3 -m 2 tcp_lat")
    finally:
        process.kill()
        serving.kill_all("qperf")
    value, unit = re.search(r"latency\s+=\s+([\d.]+)\s+(ns|us|ms)", text).groups()
    return float(value) * {"ns": 1e-3, "us": 1, "ms": 1e3}[unit]


def record(name, scope, command, ours, peers, unit, bar, peer, smaller=False, paired=False):
    """A figure beside its peer's: the ratio is that of their medians or, of runs that stand in pairs, the median of theirs."""
    value, other = statistics.median(ours), statistics.median(peers)
    ratio = statistics.median(a / b for a, b in zip(ours, peers)) if paired else value / other
    met = None if bar is None else (ratio <= bar if smaller else ratio >= bar)
    shown = {True: "met", False: "MISSED", None: "no aim"}[met]
    print(f"  {name:<34} {scope:<10} {value:10.1f} {unit:<6} {peer} {other:10.1f}  ratio {ratio:8.2f}  "
          f"aim {'-' if bar is None else ('<= ' if smaller else '>= ') + str(bar)}  {shown}", flush=True)
    return {"name": name, "scope": scope, "value": value, "unit": unit, "peer": peer, "peer_value": other,
            "ratio": ratio, "bar": bar, "met": met, "command": command, "process": command.split()[0] + " in the VMs",
            "values": ours, "peer_values": peers}


# What is run on vrdma and, with fewer messages, on rxe: name of the figure, program, options, messages on either,
# and which number of the result line it is.
PERFTEST = {
    "write_bw_64k": ("ib_write_bw", "-s 65536", 2000, 100, 3),
    "send_bw_64k": ("ib_send_bw", "-s 65536", 2000, 100, 3),
    "read_bw_64k": ("ib_read_bw", "-s 65536", 2000, 100, 3),
    "write_rate_2b_1_qp": ("ib_write_bw", "-s 2", 20000, 500, 4),
    "write_rate_2b_16_qps": ("ib_write_bw", "-s 2 -q 16", 2000, 50, 4),
    "write_lat_2b_polling": ("ib_write_lat", "-s 2", 1000, 200, 4),
    "send_lat_2b_polling": ("ib_send_lat", "-s 2", 1000, 200, 4),
    "send_lat_2b_events": ("ib_send_lat", "-s 2 -e", 500, 100, 4),
}
# The least of rxe's bandwidth and message rate, and of guest TCP's bandwidth; the most of its latency.
RXE_BW, RXE_RATE = 100, 50
TCP_BW = {"one host": 20, "two hosts": 5}
POLLING, EVENTS = 1 / 4, 1 / 2


def measure(place, ours, rxe, rounds):
    scope = place[0]
    figures, tcp, tcp_latency = {}, [], []
    for _ in range(rounds):
        for name, (program, options, messages, rxe_messages, column) in PERFTEST.items():
            mine, others = figures.setdefault(name, ([], []))
            mine.append(perftest(place, program, f"{options} -n {messages}", ours)[column])
            others.append(perftest(place, program, f"{options} -n {rxe_messages}", rxe)[column])
        tcp.append(tcp_mib(place))
        tcp_latency.append(tcp_latency_us(place))
    records = []

    def add(name, peer, unit, bar, peers=None, smaller=False, scale=1):
        program, options, messages, _, _ = PERFTEST[name]
        mine, others = figures[name]
        records.append(record(f"vm_{name}_vs_{peer}", scope, f"{program} {options} -n {messages}",
                              [v * scale for v in mine], [v * scale for v in peers or others],
                              unit, bar, peer, smaller))

    for name in ("write_bw_64k", "send_bw_64k", "read_bw_64k"):
        add(name, "rxe", "MiB/s", RXE_BW)
        add(name, "iperf3", "MiB/s", TCP_BW[scope] if name == "write_bw_64k" else None, tcp)
    for name in ("write_rate_2b_1_qp", "write_rate_2b_16_qps"):
        add(name, "rxe", "k/s", RXE_RATE, scale=1000)
    for name, bar in (("write_lat_2b_polling", POLLING), ("send_lat_2b_polling", POLLING), ("send_lat_2b_events", EVENTS)):
        add(name, "qperf", "us", bar, tcp_latency, smaller=True)
        add(name, "rxe", "us", None, smaller=True)
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the records here")
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args()
    lab = Lab()
    records = []
    for place in lab.pairs():
        pair = place[1:]
        ours = {vm.name: on(vm) for vm in pair}
        rxe = {vm.name: add_rxe(vm) for vm in pair}
        try:
            records += measure(place, ours, rxe, 1 if options.quick else ROUNDS)
        finally:
            for vm in pair:
                vm.run("rdma link delete rxe0; true")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(records, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
