"""Tests that run verbs programs in the lab's VMs. Each is a function with a name that tells what holds."""

import argparse
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts" / "lab.d"))
import client as labclient  # noqa: E402
from client import Failed, Lab, client_server, finish, on, server, until  # noqa: E402
from registry import TESTS, complaints, each_cpu_count, each_place, some_vm, test  # noqa: E402

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


def built_contract(vm):
    """Builds contract.c in a VM and returns the command that runs it."""
    subprocess.run([labclient.LAB, "cp", str(pathlib.Path(__file__).with_name("contract.c")), f"{vm}:/tmp/contract.c"],
                   check=True, capture_output=True)
    vm.run("gcc -O1 -Wall -Werror -o /tmp/contract /tmp/contract.c -libverbs -lpthread")
    return f"/tmp/contract {vm.device} {vm.gid_index}"


@each_cpu_count
def verbs_keep_their_promises_to_a_program(lab, vm):
    vm.run(built_contract(vm), timeout=120)
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
    subprocess.run([labclient.LAB, "cp", str(pathlib.Path(__file__).with_name("hostile.c")), f"{server_vm}:/tmp/hostile.c"],
                   check=True, capture_output=True)
    server_vm.run("gcc -O1 -o /tmp/hostile /tmp/hostile.c -libverbs && chmod 755 /tmp/hostile")
    # The victim checks every byte of its transfers while the attack goes on.
    victim = server_vm.popen(f"ibv_rc_pingpong -c {on(server_vm, '-g')} -p 19600 -n 20000 -s 4096")
    server_vm.wait_port(19600)
    peer = client_vm.popen(f"ibv_rc_pingpong -c {on(client_vm, '-g')} -p 19600 -n 20000 -s 4096 {server_vm.address}")
    time.sleep(1)
    qpns = re.findall(r"lqpn (\d+)", server_vm.run("rdma resource show qp"))
    for seed in (1, 2, 3):
        target = qpns[seed % len(qpns)] if qpns else ""
        status, output = server_vm.status(
            "setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all "
            f"/tmp/hostile {server_vm.device} {server_vm.gid_index} 4 {seed} {target}")
        assert status == 0, f"seed {seed}: status {status}: {output}"
    for process in (victim, peer):
        output, status = finish(process, 120)
        assert status == 0, f"the victim was harmed: {output}"


# ---- ends that come early ----

@each_place
def peer_of_a_killed_process_sees_retry_exceeded(lab, place):
    _, server_vm, client_vm = place
    serve = f"ib_write_bw {on(server_vm)} -F -D 60 -s 65536"
    with_client = f"ib_write_bw {on(client_vm)} -F -D 60 -s 65536 {server_vm.address}"
    server_vm.kill_all("ib_write_bw")
    process = server_vm.popen(serve)
    server_vm.wait_port(18515)
    peer = client_vm.popen(with_client)
    time.sleep(4)
    server_vm.run("pkill -9 -x ib_write_bw")
    output, status = finish(peer, 60)
    process.kill()
    assert status not in (0, 124), f"the client did not notice:\n{output}"
    assert "status 12" in output or "transport retry counter exceeded" in output.lower(), output
    left = server_vm.run("rdma resource show qp 2>/dev/null | grep -c vrdma || true").strip()
    assert left in ("", "0"), f"{left} queue pairs are left of the killed process"
    client_server(place, "ibv_rc_pingpong", "-c -n 20 -s 4096")


@each_cpu_count
def module_unloads_with_contexts_open_and_loads_again(lab, vm):
    holder = vm.popen(f"ibv_rc_pingpong {on(vm, '-g')} -p 19500")
    vm.wait_port(19500)
    vm.run("rmmod vrdma", timeout=60)
    vm.run("pkill -9 -x ibv_rc_pingpong; true")
    finish(holder, 20)
    vm.run("modprobe vrdma")
    assert until(lambda: "ACTIVE" in vm.run("rdma link"), 30), vm.run("rdma link; dmesg | tail -20")
    place = next(p for p in lab.pairs() if vm in p)
    client_server(place, "ibv_rc_pingpong", "-c -n 20 -s 4096")


@test
def masqd_restart_is_survived(lab):
    place = next(p for p in lab.pairs() if p[0] == "one host")
    _, server_vm, client_vm = place
    holder = server_vm.popen(f"ibv_asyncwatch -d {server_vm.device}")
    time.sleep(2)
    subprocess.run([labclient.LAB, "restart-masqd", server_vm.host], check=True, capture_output=True)
    output, _ = finish(holder, 20)
    assert "fatal" in output.lower(), f"no device-fatal event: {output}"
    for vm in (server_vm, client_vm):
        assert until(lambda: "ACTIVE" in vm.run("rdma link"), 40), vm.run("rdma link; dmesg | tail -20")
    lab = Lab()
    place = next(p for p in lab.pairs() if p[0] == "one host")
    client_server(place, "ibv_rc_pingpong", "-c -n 50 -s 4096")
    client_server(next(p for p in lab.pairs() if p[0] == "two hosts"), "ibv_rc_pingpong", "-c -n 50 -s 4096")


@test
def program_learns_that_the_device_is_gone_and_uses_it_again(lab):
    vm = some_vm(lab)
    process = vm.popen(built_contract(vm) + " gone")
    time.sleep(3)
    subprocess.run([labclient.LAB, "restart-masqd", vm.host], check=True, capture_output=True)
    output, status = finish(process, 90)
    assert status == 0 and "ready" in output, f"status {status}: {output}"


@test
def killed_vm_harms_nobody(lab):
    place = next(p for p in lab.pairs() if p[0] == "two hosts")
    _, server_vm, client_vm = place
    server_vm.kill_all("ib_write_bw")
    process = server_vm.popen(f"ib_write_bw {on(server_vm)} -F -D 60 -s 65536")
    server_vm.wait_port(18515)
    peer = client_vm.popen(f"ib_write_bw {on(client_vm)} -F -D 60 -s 65536 {server_vm.address}")
    time.sleep(4)
    subprocess.run([labclient.LAB, "kill", server_vm.name], check=True, capture_output=True)
    output, status = finish(peer, 60)
    process.kill()
    assert status not in (0, 124), f"the client did not notice:\n{output}"
    subprocess.run([labclient.LAB, "start", server_vm.name], check=True, capture_output=True)
    lab = Lab()
    client_server(next(p for p in lab.pairs() if p[0] == "two hosts"), "ibv_rc_pingpong", "-c -n 50 -s 4096")


def without_vnic(state, name):
    """The desired state without one vNIC."""
    blocks = state.split("\n\n")
    kept = [b for b in blocks if not (b.startswith("[[vnic]]") and f'name = "{name}"' in b)]
    assert len(kept) == len(blocks) - 1, f"vNIC {name} is not in:\n{state}"
    return "\n\n".join(kept)


def apply(lab, vm, state):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(state)
        file.flush()
        subprocess.run([labclient.LAB, "masqctl", vm.host, "--", "apply", "--prune", "-f", file.name], check=True, capture_output=True)


@each_cpu_count
def vnic_that_is_taken_away_fails_its_programs_and_comes_back(lab, vm):
    place = next(p for p in lab.pairs() if vm in p)
    _, server_vm, client_vm = place
    whole = pathlib.Path(lab.desired_state).read_text()
    server_vm.kill_all("ib_write_bw")
    watcher = vm.popen(f"stdbuf -oL timeout 60 ibv_asyncwatch -d {vm.device}")
    process = server_vm.popen(f"ib_write_bw {on(server_vm)} -F -D 60 -s 65536")
    server_vm.wait_port(18515)
    peer = client_vm.popen(f"ib_write_bw {on(client_vm)} -F -D 60 -s 65536 {server_vm.address}")
    time.sleep(4)
    apply(lab, vm, without_vnic(whole, vm.name))
    try:
        output, status = finish(peer, 40)
        assert status not in (0, 124), f"the client did not notice:\n{output}"
        assert until(lambda: vm.device not in vm.run("rdma link"), 20), vm.run("rdma link; dmesg | tail -20")
        vm.kill_all("ibv_asyncwatch")
        events, _ = finish(watcher, 20)
        down, fatal = events.find("PORT_ERR"), events.find("DEVICE_FATAL")
        assert 0 <= down < fatal, f"the port is to go down before the device fails:\n{events}"
    finally:
        apply(lab, vm, whole)
        process.kill()
        server_vm.kill_all("ib_write_bw")
        vm.kill_all("ibv_asyncwatch")
    assert until(lambda: "ACTIVE" in vm.run("rdma link"), 40), vm.run("rdma link; dmesg | tail -20")
    bad = complaints(vm)
    assert not bad, f"{vm}: {bad}"
    lab = Lab()
    client_server(next(p for p in lab.pairs() if vm.name in [v.name for v in p[1:]]), "ibv_rc_pingpong", "-c -n 50 -s 4096")


import vpc  # noqa: E402,F401  its tests come here


@test
def guest_kernels_have_complained_about_nothing(lab):
    for vm in lab.vms.values():
        bad = complaints(vm)
        assert not bad, f"{vm}: {bad}"


def main():
    parser = argparse.ArgumentParser(description="Runs verbs programs in the lab's VMs.")
    parser.add_argument("--only", metavar="WORD", help="tests whose name has WORD")
    parser.add_argument("--list", action="store_true", help="list the tests")
    options = parser.parse_args()
    tests = [t for t in TESTS if not options.only or options.only in t.__name__]
    if options.list:
        print("\n".join(t.__name__ for t in tests))
        return 0
    failed = 0
    for function in tests:
        began = time.monotonic()
        print(f"{function.__name__} ... ", end="", flush=True)
        try:
            function(Lab())
            print(f"ok ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception as error:  # a failed test is reported, and the next one runs
            failed += 1
            detail = str(error) if isinstance(error, (AssertionError, Failed)) else traceback.format_exc()
            print(f"FAILED ({time.monotonic() - began:.1f} s)\n    " + detail.replace("\n", "\n    "), flush=True)
    print(f"{len(tests) - failed} passed, {failed} failed")
    return 1 if failed or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
