"""rdma_cm by virtual addresses: librdmacm's programs, and perftest with -R."""

import concurrent.futures
import subprocess

import client as labclient
from client import both_sides, client_server, until
from registry import each_place, register_for_each_place, test

# name: [(server, client, port)]
PROGRAMS = {
    "rping": [
        ("rping -s -a {server} -C 20 -V", "rping -c -a {server} -C 20 -V", 7174),
        ("rping -s -a {server} -C 10 -V -S 60000", "rping -c -a {server} -C 10 -V -S 60000", 7174),
        ("rping -s -q -a {server} -C 10 -V", "rping -c -q -a {server} -C 10 -V", 7174),
    ],
    "ucmatose": [("ucmatose -b {server} -c 100", "ucmatose -s {server} -c 100", 7471)],
    "udaddy": [("udaddy -b {server} -c 10", "udaddy -s {server} -c 10", 7174)],
    "rdma_server and rdma_client": [("rdma_server", "rdma_client -s {server}", 7471)],
    "rdma_xserver and rdma_xclient": [
        ("rdma_xserver -c r", "rdma_xclient -c r -s {server}", 7471), ("rdma_xserver -c x", "rdma_xclient -c x -s {server}", 7471),
    ],
    # Not with -T a: there the client takes the end of a server that is done for a failure, if it comes before the last bytes are read.
    "rstream": [
        ("rstream -b {server} -I 5 -C 20 -S all -T v", "rstream -s {server} -I 5 -C 20 -S all -T v", 7471),
        ("rstream -b {server} -I 5 -C 20 -S 65536 -T n -T v", "rstream -s {server} -I 5 -C 20 -S 65536 -T n -T v", 7471),
    ],
    "riostream": [("riostream -b {server} -I 5 -C 20 -S 65536 -T v", "riostream -s {server} -I 5 -C 20 -S 65536 -T v", 7471)],
}

PERFTEST = [
    ("ib_write_bw", "-R -n 100 -s 65536"), ("ib_send_bw", "-R -n 100 -s 65536"), ("ib_read_lat", "-R -n 100 -s 2"),
    ("ib_send_bw", "-R -c UD -n 100 -s 1024"),
]


def programs(entries):
    def run(lab, place):
        for entry in entries:
            both_sides(place, *entry)
    return run


for name, entries in PROGRAMS.items():
    register_for_each_place(name, __name__, programs(entries))


@each_place
def perftest_connects_by_rdma_cm(lab, place):
    for program, options in PERFTEST:
        output = client_server(place, program, options)
        assert labclient.last_numbers(output), f"{program} {options} printed no result:\n{output}"


@each_place
def eight_rping_clients_at_once(lab, place):
    _, server_vm, client_vm = place
    server_vm.kill_all("rping")
    process = server_vm.popen(f"rping -s -P -a {server_vm.address}")
    try:
        server_vm.wait_port(7174)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(client_vm.run, f"rping -c -a {server_vm.address} -C 20 -V") for _ in range(8)]
            for job in jobs:
                job.result()
    finally:
        process.kill()
        process.communicate()
        server_vm.kill_all("rping")


def sent(vm, kind):
    """How many MADs of a kind (msgs or retries) ib_cm has sent, of all that a connection takes."""
    return [int(n) for n in vm.run(f"cd /sys/class/infiniband/{vm.device}/ports/1/cm_tx_{kind} && cat req rep rtu dreq drep").split()]


def has_sent_nothing(vm):
    """Whether its device is there and ib_cm has sent nothing by it; while masqd starts, the device goes and comes again."""
    try:
        return sum(sent(vm, "msgs")) == 0
    except labclient.Failed:
        return False


@test
def first_connection_between_new_devices_needs_no_retry(lab):
    # With masqd anew, hosts and RNICs have never heard of this pair, and the guests' counters begin at 0.
    place = next(p for p in lab.pairs() if p[0] == "two hosts")
    for host in dict.fromkeys(vm.host for vm in place[1:]):
        subprocess.run([labclient.LAB, "restart-masqd", host], check=True, capture_output=True)
    for vm in place[1:]:
        assert until(lambda: has_sent_nothing(vm) and "ACTIVE" in vm.run("rdma link"), 40), vm.run("rdma link; dmesg | tail")
    both_sides(place, "rping -s -a {server} -C 5", "rping -c -a {server} -C 5", 7174)
    for vm in place[1:]:
        assert sum(sent(vm, "msgs")) > 0 and sum(sent(vm, "retries")) == 0, f"{vm}: sent {sent(vm, 'msgs')}, again {sent(vm, 'retries')}"
