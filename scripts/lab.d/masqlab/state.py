"""The running lab, as a file: what was started, where, and the ids of its processes."""

import contextlib
import fcntl
import json
import os
import signal
import time

from .paths import CACHE, PREFIX, STATE
from .ui import LabError, say

FILE = STATE / "state.json"


def load():
    """The state, or None when no lab is up."""
    try:
        return json.loads(FILE.read_text())
    except FileNotFoundError:
        return None


def require():
    state = load()
    if state is None:
        raise LabError("no lab is up; start one with `scripts/lab up`")
    return state


def save(state):
    fresh = FILE.with_suffix(".new")
    fresh.write_text(json.dumps(state, indent=1))
    fresh.rename(FILE)


def vm(state, name):
    try:
        return state["vms"][name]
    except KeyError:
        raise LabError(f"no VM {name!r}; there are: {', '.join(state['vms'])}") from None


def host(state, name):
    try:
        return state["hosts"][name]
    except KeyError:
        raise LabError(f"no host {name!r}; there are: {', '.join(state['hosts'])}") from None


@contextlib.contextmanager
def lock(what=PREFIX, wait=False):
    """One command at a time may change the lab (or, with another `what`, the cache)."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{what}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise LabError("another lab command (up, down, start, ...) is at work; wait for it") from None
            say(f"waiting for another lab command ({what}) ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def process(pid):
    """What identifies a process for good: its id and when it started."""
    try:
        stat = open(f"/proc/{pid}/stat").read()
    except OSError:
        return None
    return {"pid": pid, "start": stat.rsplit(")", 1)[1].split()[19]}


def alive(proc):
    if not proc or process(proc["pid"]) != proc:
        return False
    return open(f"/proc/{proc['pid']}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"


def end(procs, sig=signal.SIGTERM, patience=3.0):
    """Ends processes: asks first, insists after `patience` seconds."""
    procs = [p for p in procs if alive(p)]
    for proc in procs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(proc["pid"], sig)
    deadline = time.monotonic() + patience
    while any(alive(p) for p in procs):
        if time.monotonic() > deadline:
            for proc in procs:
                if alive(proc):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(proc["pid"], signal.SIGKILL)
            deadline += 5
        time.sleep(0.02)
