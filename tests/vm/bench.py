"""Measures vrdma beside its peers in the lab's VMs. Runs take turns; figures are medians."""

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


def record(name, scope, ours, peers, unit, bar, peer, smaller=False):
    value, other = statistics.median(ours), statistics.median(peers)
    ratio = value / other
    met = None if bar is None else (ratio <= bar if smaller else ratio >= bar)
    shown = {True: "met", False: "MISSED", None: "no aim"}[met]
    print(f"  {name:<28} {scope:<10} {value:10.1f} {unit:<6} {peer} {other:10.1f}  ratio {ratio:8.2f}  "
          f"aim {'-' if bar is None else ('<= ' if smaller else '>= ') + str(bar)}  {shown}", flush=True)
    return {"name": name, "scope": scope, "value": value, "unit": unit, "peer": peer, "peer_value": other,
            "ratio": ratio, "bar": bar, "met": met, "runs": len(ours), "values": ours, "peer_values": peers}


def measure(place, ours, rxe):
    scope, records = place[0], []
    figures = {key: [] for key in ("w", "s", "r", "lat", "rxe_w", "rxe_s", "rxe_r", "rxe_lat", "tcp", "tcp_lat")}
    for _ in range(ROUNDS):
        for key, program in (("w", "ib_write_bw"), ("s", "ib_send_bw"), ("r", "ib_read_bw")):
            figures[key].append(perftest(place, program, "-s 65536 -n 2000", ours)[3])
            figures["rxe_" + key].append(perftest(place, program, "-s 65536 -n 100", rxe)[3])
        figures["tcp"].append(tcp_mib(place))
        figures["lat"].append(perftest(place, "ib_write_lat", "-s 2 -n 1000", ours)[4])
        figures["rxe_lat"].append(perftest(place, "ib_write_lat", "-s 2 -n 200", rxe)[4])
        figures["tcp_lat"].append(tcp_latency_us(place))
    for key, name in (("w", "write_bw_64k"), ("s", "send_bw_64k"), ("r", "read_bw_64k")):
        records.append(record(f"vm_{name}_vs_rxe", scope, figures[key], figures["rxe_" + key], "MiB/s", 20, "rxe"))
    records.append(record("vm_write_bw_64k_vs_tcp", scope, figures["w"], figures["tcp"], "MiB/s", None, "iperf3"))
    records.append(record("vm_write_lat_2b_vs_tcp", scope, figures["lat"], figures["tcp_lat"], "us", 1, "qperf", True))
    records.append(record("vm_write_lat_2b_vs_rxe", scope, figures["lat"], figures["rxe_lat"], "us", None, "rxe", True))
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the records here")
    options = parser.parse_args()
    lab = Lab()
    records = []
    for place in lab.pairs():
        pair = place[1:]
        ours = {vm.name: on(vm) for vm in pair}
        rxe = {vm.name: add_rxe(vm) for vm in pair}
        try:
            records += measure(place, ours, rxe)
        finally:
            for vm in pair:
                vm.run("rdma link delete rxe0; true")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(records, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
