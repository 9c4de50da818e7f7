"""How tests are written down, and what many of them ask of the lab."""

import dataclasses
import pathlib
import subprocess

import client as labclient

HERE = pathlib.Path(__file__).parent
TESTS = []


@dataclasses.dataclass
class Test:
    """A test of a suite. `full` ones run only with --all; `lab` says in which of suite.py's labs it runs.

    Its function takes the lab, and may return Counts.
    """
    name: str
    suite: str
    function: object
    full: bool = False
    lab: str = "default"


@dataclasses.dataclass
class Counts:
    """How a test went that says more than that it passed: how many of a suite that is not ours, and in words what went wrong.

    Notes are figures that it took on the way. Nothing depends on them.
    """
    passed: int
    skipped: int
    problems: list
    notes: list = dataclasses.field(default_factory=list)


def test(function=None, *, full=False, lab="default"):
    """Registers a function as a test; its name tells what holds, its module's name is the suite."""
    if function is None:
        return lambda function: test(function, full=full, lab=lab)
    TESTS.append(Test(function.__name__, function.__module__, function, full, lab))
    return function


def each_place(function=None, *, full=False):
    """Runs a test for a pair on one host and for a pair on two."""
    if function is None:
        return lambda function: each_place(function, full=full)
    register_for_each_place(function.__name__, function.__module__, function, full)
    return function


def register_for_each_place(name, suite, function, full=False):
    for wanted in ("one host", "two hosts"):
        def run(lab, wanted=wanted):
            places = [p for p in lab.pairs() if p[0] == wanted]
            assert places, f"the lab has no pair on {wanted}"
            return function(lab, places[0])
        TESTS.append(Test(f"{name} ({wanted})", suite, run, full))


def each_cpu_count(function):
    """Runs a test in a guest with one CPU and in one with several: both have rules of their own for shared memory."""
    for wanted in ("one CPU", "several CPUs"):
        def run(lab, wanted=wanted):
            function(lab, vm_with(lab, wanted))
        TESTS.append(Test(f"{function.__name__} ({wanted})", function.__module__, run))
    return function


def vm_with(lab, wanted):
    """A VM with so many CPUs that has a partner."""
    for vm in (vm for pair in lab.pairs() for vm in pair[1:]):
        if (int(vm.run("nproc")) > 1) == (wanted != "one CPU"):
            return vm
    raise AssertionError(f"the lab has no VM with {wanted}: scripts/lab up --vcpus blue-1=2")


def some_vm(lab):
    return next(iter(lab.vms.values()))


def built(vm, name):
    """Builds a C program of this folder in a VM and returns the command that runs it on the VM's device."""
    sources = [str(HERE / f"{name}.c"), str(HERE / "check.h")]
    subprocess.run([labclient.LAB, "cp", *sources, f"{vm}:/tmp/"], check=True, capture_output=True)
    vm.run(f"gcc -O1 -Wall -Werror -o /tmp/{name} /tmp/{name}.c -libverbs -lpthread && chmod 755 /tmp/{name}")
    return f"/tmp/{name} {vm.device} {vm.gid_index}"


def complaints(vm):
    """What a guest's kernel has said that none should."""
    return vm.run(r"dmesg | grep -E 'BUG|WARNING|Oops|Call Trace|refcount|use-after-free|hung_task|blocked for' || true").strip()
