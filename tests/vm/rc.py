"""The device, reliable connected programs, the contract of verbs, and tenants beside one another."""

import concurrent.futures
import re
import time

import client as labclient
from client import Failed, client_server, finish, on
from registry import built, each_cpu_count, each_place, some_vm, test

# ---- the device ----

@test
def every_vm_sees_an_active_roce_device(lab):
    for vm in lab.vms.values():
        info = vm.run(f"ibv_devinfo -v -d {vm.device}")
        for want in ("PORT_ACTIVE", "link_layer:\t\tEthernet", "RoCE v2", "max_sge:\t\t\t30"):
            assert want in info, f"{vm}: no '{want}' in ibv_devinfo:\n{info}"
        assert re.search(r"RoCE v1", info) is None, info
        link = vm.run("rdma link")
        assert re.search(rf"{vm.device}/1 state ACTIVE physical_state LINK_UP netdev eth0", link), link


@test
def gids_follow_the_addresses_of_the_interface(lab):
    vm = some_vm(lab)
    shown = vm.run(f"cat /sys/class/infiniband/{vm.device}/ports/1/gids/{vm.gid_index}").strip()
    last = [int(part, 16) for part in shown.split(":")][-2:]
    dotted = ".".join(str(b) for part in last for b in (part >> 8, part & 255))
    assert dotted == vm.address, f"GID {shown} is not {vm.address}"


# ---- programs: the server of each pair has several CPUs, the client one ----

@test
def pairs_have_a_server_with_several_cpus_and_a_client_with_one(lab):
    for place, server_vm, client_vm in lab.pairs():
        cpus = [int(vm.run("nproc")) for vm in (server_vm, client_vm)]
        assert cpus[0] > 1 and cpus[1] == 1, f"the pair on {place} has {cpus} CPUs: scripts/lab up --vcpus blue-1=2"


PERFTEST = {
    "ib_write_bw": "-n 200 -s 65536", "ib_read_bw": "-n 200 -s 65536", "ib_send_bw": "-n 200 -s 65536",
    "ib_atomic_bw": "-n 500", "ib_write_lat": "-n 300 -s 2", "ib_read_lat": "-n 300 -s 2",
    "ib_send_lat": "-n 300 -s 2", "ib_atomic_lat": "-n 300",
}


@each_place
def all_perftest_rc_programs_run(lab, place):
    for program, options in PERFTEST.items():
        output = client_server(place, program, options)
        assert labclient.last_numbers(output), f"{program} printed no result:\n{output}"


@each_place
def perftest_sleeping_on_events_runs(lab, place):
    # Not for writes: perftest refuses it there.
    for program in ("ib_read_bw", "ib_send_bw", "ib_send_lat"):
        client_server(place, program, "-e -n 100 -s 4096")


@each_place
def perftest_runs_all_sizes(lab, place):
    for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        client_server(place, program, "-a -n 10", timeout=240)


@each_place
def bidirectional_and_many_qps(lab, place):
    client_server(place, "ib_write_bw", "-b -n 100 -s 65536")
    client_server(place, "ib_send_bw", "-q 8 -n 100 -s 16384")


@each_place
def pingpong_checks_its_data_at_every_size(lab, place):
    for size in (1, 2, 63, 64, 1023, 1024, 1025, 4096, 65535, 1 << 20, 4 << 20):
        client_server(place, "ibv_rc_pingpong", f"-c -n {20 if size < 1 << 20 else 5} -s {size}")


@each_place
def pingpong_with_events_and_each_mtu(lab, place):
    for mtu in (256, 512, 1024, 2048, 4096):
        client_server(place, "ibv_rc_pingpong", f"-c -e -m {mtu} -n 20 -s 10000")


@each_place
def eight_processes_at_once(lab, place):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(pair_of_processes, place, 19000 + n) for n in range(8)]
        for job in jobs:
            job.result()


def pair_of_processes(place, port):
    _, server_vm, client_vm = place
    command = f"ibv_rc_pingpong -c -n 200 -s 8192 -p {port} "
    process = server_vm.popen(command + on(server_vm, "-g"))
    try:
        server_vm.wait_port(port)
        client_vm.run(command + on(client_vm, "-g") + " " + server_vm.address)
        output, status = finish(process, 60)
        if status != 0:
            raise Failed(server_vm, command, status, output)
    finally:
        process.kill()


@each_cpu_count
def verbs_keep_their_promises_to_a_program(lab, vm):
    vm.run(built(vm, "contract"), timeout=120)
    # It has closed everything itself.
    left = vm.run("rdma resource show qp | grep -c contract || true").strip()
    assert left == "0", f"{left} queue pairs are left"


# ---- tenants ----

@test
def two_tenants_on_the_same_addresses_do_not_notice_each_other(lab):
    pairs = {}
    for server_vm in lab.vms.values():
        for client_vm in lab.vms.values():
            if server_vm is not client_vm and server_vm.tenant == client_vm.tenant:
                pairs.setdefault(server_vm.tenant, ("", server_vm, client_vm))
    if len(pairs) < 2:
        raise AssertionError("the lab needs two tenants with two VMs each")
    assert len({p[1].address for p in pairs.values()}) < len(pairs), "the tenants' addresses differ"
    with concurrent.futures.ThreadPoolExecutor(len(pairs)) as pool:
        for job in [pool.submit(client_server, p, "ibv_rc_pingpong", "-c -n 500 -s 65536") for p in pairs.values()]:
            job.result()


@test
def hostile_process_harms_no_other_process_of_its_guest(lab):
    place = next(p for p in lab.pairs() if p[0] == "two hosts")
    _, server_vm, client_vm = place
    hostile = built(server_vm, "hostile")
    # The victim checks every byte of its transfers while the attack goes on.
    victim = server_vm.popen(f"ibv_rc_pingpong -c {on(server_vm, '-g')} -p 19600 -n 20000 -s 4096")
    server_vm.wait_port(19600)
    peer = client_vm.popen(f"ibv_rc_pingpong -c {on(client_vm, '-g')} -p 19600 -n 20000 -s 4096 {server_vm.address}")
    time.sleep(1)
    qpns = re.findall(r"lqpn (\d+)", server_vm.run("rdma resource show qp | grep ibv_rc_pingpong"))
    for seed in (1, 2, 3):
        target = qpns[seed % len(qpns)] if qpns else ""
        status, output = server_vm.status(
            "setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all "
            f"{hostile} 4 {seed} {target}")
        assert status == 0, f"seed {seed}: status {status}: {output}"
    for process in (victim, peer):
        output, status = finish(process, 120)
        assert status == 0, f"the victim was harmed: {output}"
