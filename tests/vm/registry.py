"""How tests are written down, and what many of them ask of the lab."""

TESTS = []


def test(function):
    TESTS.append(function)
    return function


def each_place(function):
    """Runs a test for a pair on one host and for a pair on two."""
    for wanted in ("one host", "two hosts"):
        def run(lab, wanted=wanted):
            places = [p for p in lab.pairs() if p[0] == wanted]
            assert places, f"the lab has no pair on {wanted}"
            function(lab, places[0])
        run.__name__ = f"{function.__name__} ({wanted})"
        TESTS.append(run)
    return function


def each_cpu_count(function):
    """Runs a test in a guest with one CPU and in one with several: both have rules of their own for shared memory."""
    for wanted in ("one CPU", "several CPUs"):
        def run(lab, wanted=wanted):
            function(lab, vm_with(lab, wanted))
        run.__name__ = f"{function.__name__} ({wanted})"
        TESTS.append(run)
    return function


def vm_with(lab, wanted):
    """A VM with so many CPUs that has a partner."""
    for vm in (vm for pair in lab.pairs() for vm in pair[1:]):
        if (int(vm.run("nproc")) > 1) == (wanted != "one CPU"):
            return vm
    raise AssertionError(f"the lab has no VM with {wanted}: scripts/lab up --vcpus blue-1=2")


def some_vm(lab):
    return next(iter(lab.vms.values()))


def complaints(vm):
    """What a guest's kernel has said that none should."""
    return vm.run(r"dmesg | grep -E 'BUG|WARNING|Oops|Call Trace|refcount|use-after-free|hung_task|blocked for' || true").strip()
