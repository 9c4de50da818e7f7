"""The VPC control plane, seen from the lab's VMs: rules that change, quotas, addresses that are somebody else's."""

import contextlib
import json
import re
import subprocess
import time

import client as labclient
from client import Lab, client_server, finish, on, until
from registry import each_place, some_vm, test


def masqctl(host, *arguments, status=0):
    """Runs masqctl against a host's masqd; returns what it prints."""
    done = subprocess.run([labclient.LAB, "masqctl", host, "--", *arguments], capture_output=True, text=True)
    assert done.returncode == status, \
        f"masqctl {' '.join(arguments)}: status {done.returncode}, not {status}: {done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def rule(vm, name, *arguments):
    """A rule of a VM's group for the length of a block, in force at both ends when the block begins."""
    masqctl(vm.host, "rule", "create", vm.tenant, name, *arguments, "--wait", "30")
    try:
        yield
    finally:
        masqctl(vm.host, "rule", "delete", vm.tenant, name, "--wait", "30")


@contextlib.contextmanager
def transfer(place, seconds):
    """ib_write_bw between a pair for the length of a block; yields the client's process."""
    _, server_vm, client_vm = place
    server_vm.kill_all("ib_write_bw")
    process = server_vm.popen(f"ib_write_bw {on(server_vm)} -F -D {seconds} -s 65536")
    try:
        server_vm.wait_port(18515)
        peer = client_vm.popen(f"ib_write_bw {on(client_vm)} -F -D {seconds} -s 65536 {server_vm.address}")
        # Until the connection is there.
        assert until(lambda: connections(client_vm), 20), "there is no connection"
        time.sleep(1)
        yield peer
    finally:
        process.kill()
        server_vm.kill_all("ib_write_bw")
        client_vm.kill_all("ib_write_bw")


def connections(vm):
    """A VM's connections, as masqd tracks them."""
    return json.loads(masqctl(vm.host, "connections", "--vnic", vm.name, "-o", "json"))


def other_tenants_pair(lab, place):
    """A pair of another tenant than `place`'s."""
    vms = [vm for vm in lab.vms.values() if vm.tenant != place[1].tenant]
    return ("", vms[0], next(vm for vm in vms[1:] if vm.tenant == vms[0].tenant))


@each_place
def rule_that_denies_ends_a_running_transfer_and_no_other_tenants(lab, place):
    _, server_vm, client_vm = place
    other = other_tenants_pair(lab, place)
    watcher = client_vm.popen(f"stdbuf -oL timeout 90 ibv_asyncwatch -d {client_vm.device}")
    with transfer(place, 60) as peer:
        bystander = other[1].popen(f"ibv_rc_pingpong -c -n 20000 -s 4096 -p 19700 {on(other[1], '-g')}")
        other[1].wait_port(19700)
        others = other[2].popen(f"ibv_rc_pingpong -c -n 20000 -s 4096 -p 19700 {on(other[2], '-g')} {other[1].address}")
        with rule(server_vm, "stop", "--egress", "--deny"):
            assert not connections(server_vm) and not connections(client_vm), "a connection outlives its rule"
            output, status = finish(peer, 40)
            assert status not in (0, 124), f"the client did not notice:\n{output}"
            # A new one is refused, and masqd says why.
            refused = masqctl(server_vm.host, "explain", server_vm.name, client_vm.name, status=5)
            assert f"{server_vm.tenant}/stop" in refused, refused
            tried, output = client_vm.status(f"ib_write_bw {on(client_vm)} -F -n 5 {server_vm.address}", timeout=30)
            assert tried != 0, output
        for process in (bystander, others):
            output, status = finish(process, 120)
            assert status == 0, f"another tenant was disturbed: {output}"
    client_vm.kill_all("ibv_asyncwatch")
    finish(watcher, 20)
    client_server(place, "ibv_rc_pingpong", "-c -n 50 -s 4096")


@each_place
def rules_about_others_disturb_no_running_transfer(lab, place):
    _, server_vm, client_vm = place
    with transfer(place, 12) as peer:
        for n in range(3):
            with rule(server_vm, f"elsewhere-{n}", "--egress", "--remote-prefix", "203.0.113.0/24", "--deny"):
                pass
            with rule(server_vm, f"datagrams-{n}", "--ingress", "--transport", "ud", "--deny"):
                pass
        output, status = finish(peer, 60)
        assert status == 0 and labclient.last_numbers(output), output


@test
def quota_of_queue_pairs_is_refused_with_a_reason(lab):
    vm = some_vm(lab)
    masqctl(vm.host, "vnic", "set", vm.name, "--quota-qps", "0", "--wait", "30")
    try:
        status, output = vm.status(f"ibv_rc_pingpong {on(vm, '-g')}", timeout=20)
        assert status not in (0, 124) and "create QP" in output, f"status {status}: {output}"
        log = masqd_log(vm.host)
        assert re.search(rf'create_qp refused with EDQUOT: the quota of 0 queue pairs.*vnic="{vm.name}"', log), log[-2000:]
    finally:
        masqctl(vm.host, "vnic", "set", vm.name, "--unset", "quota-qps", "--wait", "30")
    place = next(p for p in lab.pairs() if vm in p)
    client_server(place, "ibv_rc_pingpong", "-c -n 20 -s 4096")


def masqd_log(host):
    return subprocess.run([labclient.LAB, "logs", host], check=True, capture_output=True, text=True).stdout


def gid_index(vm, address):
    """Where a VM's device has the RoCE v2 GID of an address, or None."""
    table = vm.run(f"cd /sys/class/infiniband/{vm.device}/ports/1/gids && grep -H . *")
    wanted = "0000:0000:0000:0000:0000:ffff:" + "{:02x}{:02x}:{:02x}{:02x}".format(*map(int, address.split(".")))
    return next((int(line.split(":", 1)[0]) for line in table.splitlines() if line.endswith(wanted)), None)


@test
def address_of_another_guest_cannot_be_taken_and_an_allowed_one_can(lab):
    place = lab.pairs()[0]
    _, server_vm, client_vm = place
    foreign, allowed = "192.168.0.77", "192.168.0.78"
    masqctl(server_vm.host, "vnic", "set", server_vm.name, "--add-allowed-address-pair", f"{allowed}/32", "--wait", "30")
    server_vm.run(f"ip address add {foreign}/24 dev eth0 && ip address add {allowed}/24 dev eth0")
    try:
        assert until(lambda: f"{foreign} does not belong to this vNIC" in masqd_log(server_vm.host), 20), \
            masqd_log(server_vm.host)[-2000:]
        assert until(lambda: gid_index(server_vm, allowed) is not None, 20), "the allowed address has no GID"
        index = gid_index(server_vm, allowed)
        with labclient.server(server_vm, f"ibv_rc_pingpong -c -d {server_vm.device} -g {index}", 18515):
            client_vm.run(f"ibv_rc_pingpong -c {on(client_vm, '-g')} {server_vm.address}")
    finally:
        server_vm.run(f"ip address del {foreign}/24 dev eth0; ip address del {allowed}/24 dev eth0; true")
        masqctl(server_vm.host, "vnic", "set", server_vm.name, "--unset", "allowed-address-pair", "--wait", "30")
    client_server(place, "ibv_rc_pingpong", "-c -n 20 -s 4096")
