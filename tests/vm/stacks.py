"""Communication libraries, MPI, and other programs that bring their own use of verbs. All with --all only."""

import re

import metrics
import mpi
from client import both_sides, server
from registry import each_place


def ucx(vm, transports):
    return f"UCX_TLS={transports} UCX_NET_DEVICES={vm.device}:1 UCX_IB_GID_INDEX={vm.gid_index} UCX_WARN_UNUSED_ENV_VARS=n"


@each_place(full=True)
def ucx_perftest_runs(lab, place):
    _, server_vm, client_vm = place
    # Transports as UCX names them: each connects by datagrams, and rc_v then goes on by rc_verbs.
    for transports, tests in (("rc_v", ("tag_lat", "tag_bw", "ucp_put_bw", "ucp_get", "ucp_fadd")), ("ud_v", ("tag_lat", "tag_bw"))):
        for name in tests:
            size = 8 if name in ("tag_lat", "ucp_fadd") else 65536
            # Without a terminal Debian's ucx_perftest takes itself for a program of MPI.
            command = "script -qec 'ucx_perftest -f -p 13337{}' /dev/null"
            before = metrics.sent(lab, client_vm)
            with server(server_vm, f"{ucx(server_vm, transports)} {command.format('')}", 13337, 180):
                client_vm.run(f"{ucx(client_vm, transports)} " + command.format(f" {server_vm.address} -t {name} -s {size} -n 200 -w 10"),
                              timeout=180)
            assert metrics.sent(lab, client_vm) > before, f"{transports} {name} went another way"


@each_place(full=True)
def libfabric_pingpong_runs(lab, place):
    _, server_vm, client_vm = place
    for options in ("-p verbs -e msg", "-p 'verbs;ofi_rxm' -e rdm", "-p 'verbs;ofi_rxd' -e rdm"):
        both_sides(place, f"fi_pingpong {options} -I 20 -S all", f"fi_pingpong {options} -I 20 -S all {{server}}", 47592, 180)


@each_place(full=True)
def open_mpi_passes_hpcc(lab, place):
    _, server_vm, client_vm = place
    mpi.prepare(server_vm)
    # Two processes, and a problem that emulated CPUs solve within minutes.
    server_vm.run("mkdir -p /tmp/hpcc && sed -e 's/^1000 .*Ns/300 Ns/; s/^80 .*NBs/32 NBs/; s/^2 .*Ps/1 Ps/' "
                  "/usr/share/doc/hpcc/examples/_hpccinf.txt >/tmp/hpcc/hpccinf.txt")
    client_vm.run("mkdir -p /tmp/hpcc")
    before = metrics.sent(lab, server_vm)
    output = server_vm.run(f"cd /tmp/hpcc && rm -f hpccoutf.txt && {mpi.command([server_vm, client_vm], 'hpcc', '/tmp/hpcc')} && cat hpccoutf.txt",
                           timeout=900)
    assert "Success=1" in output, output[-3000:]
    assert metrics.sent(lab, server_vm) > before, "MPI went another way"


# Not ud_bw and ud_lat: qperf's address handles have no GRH, which no RoCE device can do without.
QPERF = ("rc_bw", "rc_lat", "rc_rdma_read_bw", "rc_rdma_write_bw", "rc_rdma_write_lat", "rc_compare_swap_mr", "rc_fetch_add_mr")


@each_place(full=True)
def qperf_runs(lab, place):
    _, server_vm, client_vm = place
    server_vm.kill_all("qperf")
    process = server_vm.popen("qperf")
    try:
        server_vm.wait_port(19765)
        for name in QPERF:
            # qperf 0.4.11 tells its port before it listens there: a client that is faster is rejected, and may come again.
            for _ in range(10):
                status, output = client_vm.status(f"qperf {server_vm.address} -cm 1 -t 2 {name}", timeout=60)
                if "Event rejected" not in output:
                    break
            assert status == 0 and re.search(r"(bw|latency|msg_rate)\s+=", output), output
    finally:
        process.kill()
        process.communicate()
        server_vm.kill_all("qperf")


@each_place(full=True)
def qperf_has_no_datagrams_on_rxe_either(lab, place):
    _, server_vm, client_vm = place
    for vm in (server_vm, client_vm):
        vm.run("modprobe rdma_rxe && rdma link add rxe_q type rxe netdev eth0")
    server_vm.kill_all("qperf")
    process = server_vm.popen("qperf")
    try:
        server_vm.wait_port(19765)
        for devices in ("-li rxe_q -ri rxe_q", f"-li {client_vm.device} -ri {server_vm.device}"):
            status, output = client_vm.status(f"qperf {server_vm.address} {devices} -t 1 ud_lat", timeout=60)
            assert status != 0 and "failed to create address handle: Invalid argument" in output, f"{devices}: {output}"
    finally:
        process.kill()
        process.communicate()
        server_vm.kill_all("qperf")
        for vm in (server_vm, client_vm):
            vm.run("rdma link delete rxe_q; true")


@each_place(full=True)
def fio_rdma_engine_runs(lab, place):
    for verb in ("write", "read", "send"):
        common = "--ioengine=rdma --port=8888 --bs=64k --size=8m --thread"
        # All receives at once: fio's senders fail when they find none, since it sets no RNR retries.
        _, text = both_sides(place, f"fio --name=receiver {common} --rw=read --iodepth=128",
                             f"fio --name=sender {common} --hostname={{server}} --verb={verb} --rw=write --iodepth=4", 8888, 180)
        assert "err= 0" in text, text
