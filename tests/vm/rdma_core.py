"""rdma-core's own test suite (pyverbs, as Debian ships it) on one vrdma device, in loopback.

Every test passes, or is in pyverbs-skips.txt with the reason why it cannot run here. A skip that is not listed is a failure, and so
is a listed test that does run.
"""

import fnmatch
import json
import pathlib
import subprocess

import client as labclient
from client import Failed
from registry import Counts, test, vm_with

HERE = pathlib.Path(__file__).parent
SKIPS = HERE / "pyverbs-skips.txt"
SUITE = "/tmp/rdma-core/tests"
# Of a test; the slowest take some seconds on an emulated CPU.
LIMIT_SECONDS = 60


def allowed_skips(text):
    """[(pattern of test ids, reason)] of a list: one a line, `#` begins a comment."""
    lines = [line.strip() for line in text.splitlines()]
    entries = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    for entry in entries:
        assert len(entry) == 2, f"{SKIPS.name}: no reason is given for {entry[0]}"
    return [tuple(entry) for entry in entries]


def judge(results, allowed):
    """What is wrong about the results of a whole run."""
    problems, used = [], set()
    for result in results:
        patterns = [pattern for pattern, _ in allowed if fnmatch.fnmatchcase(result["id"], pattern)]
        used.update(patterns)
        if result["outcome"] == "skipped" and not patterns:
            problems.append(f"{result['id']}: skipped, but not on the list: {result['reason']}")
        elif result["outcome"] == "passed" and patterns:
            problems.append(f"{result['id']}: passed, so `{patterns[0]}` does not belong on the list of skips")
        elif result["outcome"] not in ("passed", "skipped"):
            problems.append(f"{result['id']}: {result['outcome']}: {result['reason']}")
    problems += [f"`{pattern}` is on the list of skips, but no test has such a name" for pattern, _ in allowed if pattern not in used]
    return problems


def run(vm, words=""):
    """Runs the suite, or the tests whose ids have one of the words; returns the results."""
    subprocess.run([labclient.LAB, "cp", str(HERE / "pyverbs_runner.py"), f"{vm}:/tmp/pyverbs_runner.py"], check=True, capture_output=True)
    vm.run(f"test -d {SUITE} || {{ mkdir -p {SUITE} && cp -r /usr/share/doc/rdma-core/tests/. {SUITE} && gunzip -rq {SUITE}; }}")
    # Some tests want huge pages.
    vm.run("sysctl -q vm.nr_hugepages=8")
    command = f"python3 /tmp/pyverbs_runner.py {SUITE} {vm.device} {vm.gid_index} {LIMIT_SECONDS} {words}"
    try:
        status, output = vm.status(command, timeout=1500)
    finally:
        vm.run("sysctl -q vm.nr_hugepages=0")
    if status != 0:
        raise Failed(vm, command, status, output[-4000:])
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"id"')]


def resources(vm):
    """What the guest's kernel counts of the device's objects."""
    return vm.run("rdma resource").strip()


@test
def pyverbs_suite(lab):
    vm = vm_with(lab, "several CPUs")
    before = resources(vm)
    results = run(vm)
    problems = judge(results, allowed_skips(SKIPS.read_text()))
    if (after := resources(vm)) != before:
        problems.append(f"objects are left behind: {before} before, {after} after")
    count = [result["outcome"] for result in results].count
    return Counts(count("passed"), count("skipped"), problems)
