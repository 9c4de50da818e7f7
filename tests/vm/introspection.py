"""What a guest and its host are told of RDMA traffic: rdma statistic, masqd's metrics, masqctl qp and capture."""

import json
import pathlib
import subprocess
import tempfile

import client as labclient
import metrics
from client import client_server, finish, on, until
from registry import each_place
from vpc import masqctl

COUNTERS = "/sys/class/infiniband/{}/ports/1/hw_counters"
# Counted for the guest by other names than those of masqd's metrics of events.
TRAFFIC = {"tx_bytes": "tx_bytes_total", "tx_pkts": "tx_packets_total", "rx_bytes": "rx_bytes_total", "rx_pkts": "rx_packets_total"}


def of_guest(vm):
    """{name: value} of all counters, as the guest's kernel shows them."""
    lines = vm.run(f"sleep 0.1; cd {COUNTERS.format(vm.device)} && grep . *").split()
    counters = dict(line.split(":") for line in lines)
    counters.pop("lifespan", None)
    return {name: int(value) for name, value in counters.items()}


def of_host(lab, vm):
    """The same counters, as masqd's metrics show them for the VM's vNIC."""
    traffic, events = metrics.of_vnic(lab, vm), metrics.events_of_vnic(lab, vm)
    return {**events, **{name: int(traffic[metric]) for name, metric in TRAFFIC.items()}}


@each_place
def guest_counts_its_traffic_as_its_host_does(lab, place):
    where, server_vm, client_vm = place
    client_server(place, "ib_write_bw", "-n 50 -s 65536")
    for vm in (server_vm, client_vm):
        told = {}
        assert until(lambda: told.update(guest=of_guest(vm), host=of_host(lab, vm)) or told["guest"] == told["host"], 20), told
    sender, receiver = of_guest(client_vm), of_guest(server_vm)
    assert sender["tx_bytes"] > 50 * 65536 and sender["sent_msgs"] >= 50, sender
    assert receiver["rx_bytes"] > 50 * 65536 and receiver["rcvd_msgs"] >= 50, receiver
    if where == "two hosts":
        assert sender["sent_pkts"] >= 50 * 16 and receiver["rcvd_pkts"] >= 50 * 16, (sender, receiver)
    # iproute2's view of the same.
    shown = json.loads(client_vm.run(f"rdma -j statistic show link {client_vm.device}/1"))[0]
    assert shown["sent_msgs"] >= sender["sent_msgs"] and set(sender) <= set(shown), shown


@each_place
def queue_pair_under_load_can_be_looked_at(lab, place):
    where, server_vm, client_vm = place
    server_vm.kill_all("ib_write_bw")
    serve = server_vm.popen(f"ib_write_bw {on(server_vm)} -F -D 10 -s 65536")
    server_vm.wait_port(18515)
    load = client_vm.popen(f"ib_write_bw {on(client_vm)} -F -D 10 -s 65536 {server_vm.address}")
    try:
        def busy():
            all = json.loads(masqctl(client_vm.host, "qp", "list", client_vm.name, "-o", "json"))
            return [q for q in all if q["state"] == "rts" and q["transport"] == "rc" and q["tx_bytes"] > 1 << 20]
        assert until(busy, 30), masqctl(client_vm.host, "qp", "list")
        qp = busy()[0]
        assert qp["connection"]["remote"] == server_vm.address and qp["connection"]["peer"] == server_vm.name, qp
        assert qp["connection"]["same_host"] == (where == "one host"), qp
        text = masqctl(client_vm.host, "qp", "show", client_vm.name, hex(qp["qpn"]))
        assert "RTS" in text and server_vm.address in text, text
        listed = client_vm.run("rdma resource show qp")
        assert f"lqpn {qp['qpn']}" in listed and "ib_write_bw" in listed, listed
        capture(where, client_vm, qp)
    finally:
        finish(load, 60)
        finish(serve, 60)


def capture(where, vm, qp):
    """Wireshark reads what is captured of a connection between hosts; one within a host has no packets."""
    arguments = ["capture", vm.name, str(qp["qpn"]), "--count", "200", "--seconds", "20"]
    if where == "one host":
        masqctl(vm.host, *arguments, "-w", "/dev/null", status=1)
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "capture.pcapng"
        subprocess.run([labclient.LAB, "masqctl", vm.host, "--", *arguments, "-w", str(path)], check=True, capture_output=True)
        fields = ["-T", "fields", "-e", "frame.packet_flags_direction", "-e", "infiniband.bth.destqp", "-e", "ip.dst"]
        dissected = subprocess.run(["tshark", "-r", str(path), "-Y", "infiniband.bth && !_ws.malformed", *fields],
                                   check=True, capture_output=True, text=True).stdout.splitlines()
        assert len(dissected) == 200, f"{len(dissected)} of 200 packets are dissected"
        assert sum(qp["connection"]["remote_underlay"] in line for line in dissected) > 100, dissected[:5]
