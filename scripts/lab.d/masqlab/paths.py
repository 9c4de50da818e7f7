"""Where things are: checkout, cache, state of the running lab."""

import hashlib
import os
import pathlib

REPO = pathlib.Path(__file__).resolve().parents[3]
PACKAGES = REPO / "scripts" / "packages"
GUEST_FILES = REPO / "scripts" / "lab.d" / "guest"
PATCHES = REPO / "qemu-patches"

CACHE = pathlib.Path(os.environ.get("MASQ_CACHE") or "/var/cache/masq")
LOGS = CACHE / "logs"

# Several labs can run side by side under different names; each touches only what carries its own.
LAB = os.environ.get("MASQ_LAB") or "lab"
PREFIX = f"masq-{LAB}"
STATE = pathlib.Path("/run") / PREFIX


def digest(*parts):
    """A short hash of strings, files and whole folders (names and contents)."""
    whole = hashlib.sha256()
    for part in parts:
        if isinstance(part, pathlib.Path):
            files = [part] if part.is_file() else sorted(p for p in part.rglob("*") if p.is_file())
            for file in files:
                whole.update(str(file.relative_to(part.parent)).encode() + b"\0")
                whole.update(file.read_bytes() + b"\0")
        else:
            whole.update(str(part).encode() + b"\0")
    return whole.hexdigest()[:12]


def package_list(name):
    """The packages of one list: one a line, `#` begins a comment."""
    lines = (PACKAGES / f"{name}.list").read_text().splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]
