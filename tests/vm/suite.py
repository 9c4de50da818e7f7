"""Runs programs in the lab's VMs: ours, and suites that others wrote. See docs/lab.md."""

import argparse
import dataclasses
import importlib
import json
import pathlib
import subprocess
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts" / "lab.d"))
from client import LAB, Failed, Lab  # noqa: E402
from registry import TESTS, Counts  # noqa: E402

# In the order in which they run: what takes a VM or masqd away comes late.
SUITES = ["rc", "programs", "cm", "rdma_core", "stacks", "kernel", "soak", "objects", "introspection", "ends", "vpc", "multipath", "last", "releases", "sockets", "paths", "interop"]
# How each lab is brought up, and the VMs by which it is known.
LABS = {
    "default": (["--vcpus", "blue-1=2"], {"blue-1", "blue-2", "blue-3", "red-1", "red-2"}),
    "releases": ([str(HERE / "releases.toml")], {"old-1", "old-2", "sid-1", "sid-2", "new-1"}),
    "paths": ([str(HERE / "paths.toml")], {"wide-1", "wide-2", "narrow"}),
    "interop": ([str(HERE / "interop.toml")], {"blue-1", "metal"}),
}


@dataclasses.dataclass
class Row:
    """A line of the table."""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="the long ones too, with the larger guest root, and other releases of Debian")
    parser.add_argument("--only", metavar="WORD", help="tests whose name or suite has WORD")
    parser.add_argument("--list", action="store_true", help="list the tests")
    options = parser.parse_args()
    for suite in SUITES:
        importlib.import_module(suite)
    wanted = options.only or ""
    tests = [t for t in TESTS if (options.all or not t.full) and (wanted in t.name or wanted in t.suite)]
    if options.list:
        print("\n".join(f"{t.suite}: {t.name}" for t in tests))
        return 0
    rows = {}
    for lab in LABS:
        group = [t for t in tests if t.lab == lab]
        if group:
            bring_up(lab, ["--root", "full"] if options.all and lab == "default" else [])
        for test in group:
            run(test, rows.setdefault(test.suite, Row()))
    table(rows)
    failed = sum(row.failed for row in rows.values())
    print(f"{sum(row.passed for row in rows.values())} passed, {failed} failed")
    return 1 if failed or not tests else 0


def bring_up(lab, more):
    """Sees to it that this lab is up; one of other VMs gives way."""
    arguments, names = LABS[lab]
    status = subprocess.run([LAB, "status", "-o", "json"], capture_output=True, text=True)
    if status.returncode == 0:
        if {vm["name"] for vm in json.loads(status.stdout)["vms"]} <= names:
            return
        subprocess.run([LAB, "down"], check=True)
    subprocess.run([LAB, "up", *arguments, *more], check=True)


def run(test, row):
    began = time.monotonic()
    print(f"{test.suite}: {test.name} ... ", end="", flush=True)
    try:
        counts = test.function(Lab()) or Counts(1, 0, [])
        row.passed, row.skipped = row.passed + counts.passed, row.skipped + counts.skipped
        problems, notes = counts.problems, counts.notes
    except Exception as error:  # a failed test is reported, and the next one runs
        problems, notes = [str(error) if isinstance(error, (AssertionError, Failed)) else traceback.format_exc()], []
    row.failed += len(problems)
    seconds = time.monotonic() - began
    row.seconds += seconds
    print(f"FAILED ({seconds:.1f} s)" if problems else f"ok ({seconds:.1f} s)", flush=True)
    for text in problems + notes:
        print("    " + text.replace("\n", "\n    "), flush=True)


def table(rows):
    cells = [("suite", "passed", "failed", "skipped", "seconds")]
    cells += [(name, r.passed, r.failed, r.skipped, round(r.seconds)) for name, r in rows.items()]
    width = max(len(row[0]) for row in cells)
    print()
    for name, *numbers in cells:
        print(name.ljust(width) + "".join(str(n).rjust(10) for n in numbers))


if __name__ == "__main__":
    sys.exit(main())
