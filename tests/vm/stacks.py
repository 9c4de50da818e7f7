"""Communication libraries, MPI, sockets over verbs, and other programs that bring their own use of verbs. All with --all only."""

import json
import pathlib
import re
import subprocess

import client as labclient
from client import Failed, both_sides, finish, server
from registry import each_place

RSPRELOAD = "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"


def ucx(vm, transports):
    return f"UCX_TLS={transports} UCX_NET_DEVICES={vm.device}:1 UCX_IB_GID_INDEX={vm.gid_index} UCX_WARN_UNUSED_ENV_VARS=n"


def sent_by_rnic(vm):
    """Messages that the RNIC of a VM's host has sent."""
    text = subprocess.run([labclient.LAB, "masqctl", vm.host, "--", "counters", "-o", "json"], check=True, capture_output=True,
                          text=True).stdout
    return int(re.search(r'"sent_msgs":\s*"?(\d+)', text)[1])


@each_place(full=True)
def ucx_perftest_runs(lab, place):
    _, server_vm, client_vm = place
    for transports, tests in (("rc_verbs", ("tag_lat", "tag_bw", "ucp_put_bw", "ucp_get", "ucp_fadd")), ("ud_verbs", ("tag_lat", "tag_bw"))):
        for name in tests:
            size = 8 if name in ("tag_lat", "ucp_fadd") else 65536
            common = f"-p 13337 -t {name} -s {size} -n 200 -w 10"
            before = sent_by_rnic(client_vm)
            with server(server_vm, f"{ucx(server_vm, transports)} ucx_perftest -p 13337", 13337, 180):
                client_vm.run(f"{ucx(client_vm, transports)} ucx_perftest {server_vm.address} {common}", timeout=180)
            assert sent_by_rnic(client_vm) > before, f"{transports} {name} went another way"


@each_place(full=True)
def libfabric_pingpong_runs(lab, place):
    _, server_vm, client_vm = place
    for options in ("-p verbs -e msg", "-p 'verbs;ofi_rxm' -e rdm", "-p 'verbs;ofi_rxd' -e rdm"):
        both_sides(place, f"fi_pingpong {options} -I 20 -S all", f"fi_pingpong {options} -I 20 -S all {{server}}", 47592, 180)


@each_place(full=True)
def open_mpi_passes_hpcc(lab, place):
    _, server_vm, client_vm = place
    key = pathlib.Path("/var/cache/masq/ssh/id_lab")
    subprocess.run([labclient.LAB, "cp", str(key), f"{server_vm}:/tmp/key"], check=True, capture_output=True)
    server_vm.run("chmod 600 /tmp/key && sed -e 's/^1 .*# of problems sizes.*/1 problems/' "
                  "/usr/share/doc/hpcc/examples/_hpccinf.txt > /tmp/hpccinf.txt")
    for vm in (server_vm, client_vm):
        vm.run("mkdir -p /tmp/hpcc")
    server_vm.run("cp /tmp/hpccinf.txt /tmp/hpcc/")
    before = sent_by_rnic(server_vm)
    output = server_vm.run(
        "cd /tmp/hpcc && rm -f hpccoutf.txt && OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        f"mpirun --host {server_vm.address},{client_vm.address} -np 2 --wdir /tmp/hpcc --mca pml ucx --mca btl ^openib,tcp "
        "--prtemca plm_ssh_args '-i /tmp/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null' "
        f"-x UCX_TLS=rc_verbs,ud_verbs,self -x UCX_NET_DEVICES={server_vm.device}:1 -x UCX_IB_GID_INDEX={server_vm.gid_index} hpcc "
        "&& cat hpccoutf.txt", timeout=900)
    assert "Success=1" in output, output[-3000:]
    assert sent_by_rnic(server_vm) > before, "MPI went another way"


@each_place(full=True)
def qperf_runs(lab, place):
    _, server_vm, client_vm = place
    server_vm.kill_all("qperf")
    process = server_vm.popen("qperf")
    try:
        server_vm.wait_port(19765)
        output = client_vm.run(f"qperf {server_vm.address} -cm 1 -t 2 rc_bw rc_lat rc_rdma_read_bw rc_rdma_write_bw rc_rdma_write_lat "
                               "rc_compare_swap_mr rc_fetch_add_mr", timeout=180)
        assert len(re.findall(r"(bw|latency|msg_rate)\s+=", output)) >= 7, output
    finally:
        process.kill()
        process.communicate()
        server_vm.kill_all("qperf")


@each_place(full=True)
def fio_rdma_engine_runs(lab, place):
    for verb in ("write", "read", "send"):
        common = "--ioengine=rdma --port=8888 --bs=64k --size=8m --thread"
        _, text = both_sides(place, f"fio --name=receiver {common} --rw=read --iodepth=16",
                             f"fio --name=sender {common} --hostname={{server}} --verb={verb} --rw=write --iodepth=4", 8888, 180)
        assert "err= 0" in text, text


@each_place(full=True)
def iperf3_over_rsockets_moves_data(lab, place):
    _, _, client_vm = place
    before = sent_by_rnic(client_vm)
    _, text = both_sides(place, f"{RSPRELOAD} iperf3 -s -1 -p 5301 --json", f"{RSPRELOAD} iperf3 -c {{server}} -p 5301 -n 4M --json",
                         5301, 180)
    moved = json.loads(text[text.index("{"):])["end"]["sum_received"]["bytes"]
    assert moved >= 4 << 20, text
    assert sent_by_rnic(client_vm) > before, "iperf3 went over TCP"


@each_place(full=True)
def memcached_over_rsockets_keeps_what_it_is_given(lab, place):
    _, server_vm, client_vm = place
    server_vm.kill_all("memcached")
    # rsockets know poll and select, not epoll.
    process = server_vm.popen(f"EVENT_NOEPOLL=1 {RSPRELOAD} memcached -u root -l {server_vm.address} -p 11211 -t 1 -v")
    try:
        server_vm.wait_port(11211)
        before = sent_by_rnic(client_vm)
        client_vm.run(f"{RSPRELOAD} timeout 100 memcslap -s {server_vm.address}:11211 --test=get --execute-number=200 --initial-load=200 "
                      "--concurrency=1", timeout=120)
        assert sent_by_rnic(client_vm) > before, "memcached was reached over TCP"
    finally:
        process.kill()
        process.communicate()
        server_vm.kill_all("memcached")
