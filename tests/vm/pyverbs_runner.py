"""Runs rdma-core's own test suite in a VM, each test in a process of its own, so that one that hangs or crashes ends alone.

    python3 pyverbs_runner.py SUITE DEVICE GID_INDEX SECONDS [WORD...]

Prints one JSON object a line and test: {"id", "outcome": passed, failed, skipped, hung or crashed, "reason", "seconds"}. With words,
only tests whose id has one of them.
"""

import json
import os
import select
import signal
import sys
import time
import traceback
import unittest


def main():
    suite, device, index, limit, words = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5:]
    sys.path.insert(0, suite)
    from args_parser import parser
    sys.argv[1:] = ["--dev", device, "--port", "1", "--gid", index]
    parser.parse_args()
    sys.path.insert(0, os.path.dirname(suite))
    modules = sorted(name[:-3] for name in os.listdir(suite) if name.startswith("test_") and name.endswith(".py"))
    loader = unittest.TestLoader()
    for module in modules:
        for test in flat(loader.loadTestsFromName(f"tests.{module}")):
            if not words or any(word in test.id() for word in words):
                print(json.dumps(run(test, limit)), flush=True)


def flat(suite):
    for entry in suite:
        if isinstance(entry, unittest.TestSuite):
            yield from flat(entry)
        else:
            yield entry


def run(test, limit):
    """Runs one test in a process group of its own; whatever it leaves there is ended."""
    begin = time.monotonic()
    end, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(end)
        # What tests print is not for our reader.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.write(told, json.dumps(outcome(test)).encode())
        os._exit(0)
    os.close(told)
    ready, _, _ = select.select([end], [], [], limit)
    said = os.read(end, 1 << 16) if ready else b""
    if not said and ready:
        result = {"outcome": "crashed", "reason": f"wait status {os.waitpid(child, 0)[1]}"}
    elif not said:
        result = {"outcome": "hung", "reason": where(child)}
    else:
        result = json.loads(said)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if result["outcome"] != "crashed":
        os.waitpid(child, 0)
    os.close(end)
    return {"id": test.id().removeprefix("tests."), **result, "seconds": round(time.monotonic() - begin, 1)}


def outcome(test):
    result = unittest.TestResult()
    try:
        test.run(result)
    except BaseException:  # SystemExit of a test is a failure of it
        return {"outcome": "failed", "reason": traceback.format_exc()[-3000:]}
    bad = result.failures + result.errors + [(test, "passed unexpectedly")] * len(result.unexpectedSuccesses)
    if bad:
        return {"outcome": "failed", "reason": "\n".join(text for _, text in bad)[-3000:]}
    if result.skipped:
        return {"outcome": "skipped", "reason": result.skipped[0][1]}
    return {"outcome": "passed", "reason": ""}


def where(pid):
    """Where a process and its children are in the kernel."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = open(f"/proc/{entry}/stat").read().rsplit(")", 1)[1].split()
            if int(fields[3]) == pid:
                found.append(f"{entry}: {fields[0]} {open(f'/proc/{entry}/wchan').read()}")
        except OSError:
            continue
    return "no end in time; " + ", ".join(found)


main()
