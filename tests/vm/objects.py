"""Every kind of object that the guest's kernel makes: that it works, and that nothing is left of it."""

import subprocess

import client as labclient
from client import finish, until
from registry import built, each_cpu_count, some_vm, test

KINDS = ("qp", "cq", "mr", "pd", "srq", "ctx")


def count(vm):
    """How many objects of each kind the guest's kernel knows."""
    return {kind: int(vm.run(f"rdma resource show {kind} | wc -l")) for kind in KINDS}


def held(vm):
    """A process that holds one of each, and ends them when the device has gone."""
    process = vm.popen(built(vm, "objects") + " hold")
    assert until(lambda: "objects" in vm.run("rdma resource show srq"), 20), "the objects are not made"
    return process


def ends_in_order(process):
    output, status = finish(process, 60)
    assert status == 0 and "gone" in output, f"status {status}: {output}"


@each_cpu_count
def objects_of_every_kind_work_and_leave_nothing(lab, vm):
    before = count(vm)
    vm.run(built(vm, "objects"), timeout=180)
    assert count(vm) == before, f"before {before}, after {count(vm)}"


@test
def rings_count_as_locked_memory(lab):
    vm = some_vm(lab)
    vm.run("setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all " + built(vm, "objects") + " limit")


def load_again(vm, meanwhile=lambda: None):
    """Takes the module out and loads it again."""
    vm.run("rmmod vrdma", timeout=60)
    meanwhile()
    vm.run("modprobe vrdma")
    assert until(lambda: "ACTIVE" in vm.run("rdma link"), 30), vm.run("rdma link; dmesg | tail -20")


def count_afresh(vm):
    """Objects of a device that has just come: storage that has used one leaves queues in its kernel's pool."""
    load_again(vm)
    return count(vm)


@test
def objects_of_every_kind_end_with_the_module(lab):
    vm = some_vm(lab)
    before = count_afresh(vm)
    process = held(vm)
    load_again(vm, meanwhile=lambda: ends_in_order(process))
    assert until(lambda: count(vm) == before, 10), f"before {before}, after {count(vm)}"


@test
def objects_of_every_kind_end_with_the_epoch(lab):
    vm = some_vm(lab)
    before = count_afresh(vm)
    process = held(vm)
    subprocess.run([labclient.LAB, "restart-masqd", vm.host], check=True, capture_output=True)
    ends_in_order(process)
    assert until(lambda: "ACTIVE" in vm.run("rdma link"), 40), vm.run("rdma link; dmesg | tail -20")
    assert until(lambda: count(vm) == before, 10), f"before {before}, after {count(vm)}"
