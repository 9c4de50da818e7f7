"""What the lab says while it works, and how it runs other programs."""

import contextlib
import os
import subprocess
import sys
import time

START = time.monotonic()


class LabError(Exception):
    """Something a person must know or do; its text is the whole message."""


def say(text):
    print(f"[{time.monotonic() - START:6.1f}s] {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(text):
    """Says what begins, and how long it took once it is done."""
    say(f"{text} ...")
    begin = time.monotonic()
    yield
    say(f"{text}: done in {time.monotonic() - begin:.1f} s")


def run(argv, what=None, log=None, **kwargs):
    """Runs a program; its output goes to `log` or is kept for the error message."""
    what = what or " ".join(str(a) for a in argv[:3])
    try:
        if log:
            os.makedirs(os.path.dirname(log), exist_ok=True)
            with open(log, "ab") as out:
                done = subprocess.run(argv, stdout=out, stderr=subprocess.STDOUT,
                                      stdin=subprocess.DEVNULL, **kwargs)
        else:
            kwargs.setdefault("stdin", subprocess.DEVNULL if "input" not in kwargs else None)
            if "input" in kwargs:
                kwargs.pop("stdin")
            done = subprocess.run(argv, capture_output=True, text=True, **kwargs)
    except FileNotFoundError:
        raise LabError(f"{what}: program {argv[0]} not found; run `scripts/lab setup`") from None
    if done.returncode != 0:
        if log:
            with open(log, errors="replace") as out:
                tail = "".join(out.readlines()[-15:])
            tail += f"(whole output: {log})"
        else:
            tail = (done.stdout + done.stderr).strip()[-2000:]
        raise LabError(f"{what} failed with status {done.returncode}:\n{tail}")
    return done
