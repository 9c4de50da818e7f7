"""Programs that know sockets only, over rsockets: their figures beside those over TCP. With --all only.

Between guests of Debian sid: before rdma-core 65 librspreload knows neither epoll nor accept4, and a poll that times out hangs the next one.
"""

import json
import re

import metrics
from client import both_sides
from registry import Counts, test

RSPRELOAD = "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"


def between_sids(function):
    """Runs a test for the pair of guests that have Debian sid."""
    def run(lab):
        return function(lab, ("two hosts", lab.vms["sid-1"], lab.vms["sid-2"]))
    run.__name__, run.__module__ = function.__name__, __name__
    return test(run, full=True, lab="releases")


def beside_tcp(lab, vm, measure):
    """Takes a figure over rsockets, where the RNIC must carry it, and over TCP."""
    before = metrics.sent(lab, vm)
    rdma = measure(RSPRELOAD)
    assert metrics.sent(lab, vm) > before + (64 << 10), "it went over TCP"
    return rdma, measure("")


def iperf3(what, options):
    def run(lab, place):
        def rate(preload):
            _, text = both_sides(place, f"{preload} iperf3 -s -1 -p 5301", f"{preload} iperf3 -c {{server}} -p 5301 -t 5 --json {options}",
                                 5301, 180)
            end = json.loads(text[text.index("{"):text.rindex("}") + 1])["end"]
            received = [end[way]["bytes"] for way in ("sum_received", "sum_received_bidir_reverse") if way in end]
            assert min(received) > 1 << 20, text
            return sum(received) / 5e6
        rdma, tcp = beside_tcp(lab, place[2], rate)
        return Counts(1, 0, [], [f"{rdma:.1f} MB/s over rsockets, {tcp:.1f} MB/s over TCP"])
    run.__name__ = f"iperf3_{what}"
    return between_sids(run)


iperf3("one_stream", "")
iperf3("both_ways_at_once", "--bidir")
iperf3("eight_streams", "-P 8")


@between_sids
def files_arrive_whole(lab, place):
    _, server_vm, client_vm = place
    client_vm.run("dd if=/dev/urandom of=/tmp/sent bs=1M count=16 status=none")
    server_vm.kill_all("rcopy")
    process = server_vm.popen("rcopy")
    try:
        server_vm.wait_port(7427)
        client_vm.run(f"rcopy /tmp/sent {server_vm.address}:/tmp/received", timeout=180)
    finally:
        process.kill()
        process.communicate()
        server_vm.kill_all("rcopy")
    assert server_vm.run("sha256sum </tmp/received") == client_vm.run("sha256sum </tmp/sent")


def key_value(server_command, port, load, figure):
    """Rates of a key-value server under its own load generator."""
    program = server_command.split()[0]

    def run(lab, place):
        _, server_vm, client_vm = place

        def rate(preload):
            server_vm.kill_all(program)
            process = server_vm.popen(f"{preload} {server_command.format(server=server_vm.address)}")
            try:
                server_vm.wait_port(port)
                output = client_vm.run(f"{preload} timeout 150 {load.format(server=server_vm.address)}", timeout=180)
                found = re.search(figure, output)
                assert found, output
                return float(found[1])
            finally:
                process.kill()
                process.communicate()
                server_vm.kill_all(program)
        rdma, tcp = beside_tcp(lab, client_vm, rate)
        return Counts(1, 0, [], [f"{rdma:.0f} gets/s over rsockets, {tcp:.0f} gets/s over TCP"])
    run.__name__ = program.replace("-", "_")
    return between_sids(run)


key_value("valkey-server --bind {server} --port 6390 --protected-mode no --save ''", 6390,
          "valkey-benchmark -h {server} -p 6390 -t get -n 2000 -c 4 --csv", r'"GET","([\d.]+)"')
key_value("memcached -u root -l {server} -p 11211 -t 1", 11211,
          "memcaslap -s {server}:11211 -T 1 -c 4 -x 2000", r"TPS: (\d+)")
