"""Ends that come early: of processes, modules, masqd, VMs and vNICs."""

import pathlib
import subprocess
import tempfile
import time

import client as labclient
from client import Lab, client_server, finish, on, until
from registry import built, complaints, each_cpu_count, each_place, some_vm, test

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
    left = server_vm.run("rdma resource show qp | grep ib_write_bw || true")
    assert not left, f"queue pairs are left of the killed process:\n{left}"
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
    process = vm.popen(built(vm, "contract") + " gone")
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
