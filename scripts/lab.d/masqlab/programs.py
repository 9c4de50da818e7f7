"""The Rust programs of the checkout, by cargo, which knows by itself what is up to date."""

import json
import os
import shutil
import subprocess

from . import apt
from .paths import REPO
from .ui import LabError, run, say, step

PACKAGES = ["masqd", "masqctl", "vrdma-provider", "vrdma-provider65"]
# What cargo calls the providers, and what libibverbs looks for.
PROVIDERS = {"libvrdma.so": "libvrdma-rdmav34.so", "libvrdma65.so": "libvrdma-rdmav65.so"}


def ensure():
    """Builds them and returns {"masqd": path, "masqctl": path, "providers": folder}.

    With MASQ_PROGRAMS naming a folder, they are taken from there as they are.
    """
    if os.environ.get("MASQ_PROGRAMS"):
        return _ready_made(os.path.abspath(os.environ["MASQ_PROGRAMS"]))
    cargo = _cargo()
    argv = [cargo, "build", "--release", "--message-format=json-render-diagnostics"]
    for package in PACKAGES:
        argv += ["-p", package]
    with step("masqd, masqctl, providers: cargo build"):
        done = subprocess.run(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise LabError(f"cargo build failed; to go without masqd and RDMA: --without-masqd\n{done.stderr[-4000:]}")
    found = {}
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact":
            found |= {os.path.basename(file): file for file in message["filenames"]}
    for name in ("masqd", "masqctl", *PROVIDERS):
        if name not in found:
            raise LabError(f"cargo built no {name}; is its crate in Cargo.toml?")
    return {"masqd": found["masqd"], "masqctl": found["masqctl"], "providers": _collect({n: found[n] for n in PROVIDERS})}


def _collect(built):
    """A folder with the providers under the names that libibverbs looks for."""
    folder = os.path.join(os.path.dirname(next(iter(built.values()))), "providers")
    os.makedirs(folder, exist_ok=True)
    for name, path in built.items():
        shutil.copyfile(path, os.path.join(folder, PROVIDERS[name]))
    return folder


def _ready_made(folder):
    for name in ("masqd", "masqctl", *PROVIDERS.values()):
        if not os.path.exists(os.path.join(folder, name)):
            raise LabError(f"MASQ_PROGRAMS={folder}: there is no {name}")
    say(f"masqd, masqctl, providers: taken from {folder}")
    return {"masqd": os.path.join(folder, "masqd"), "masqctl": os.path.join(folder, "masqctl"), "providers": folder}


def _cargo():
    cargo = shutil.which("cargo") or shutil.which("cargo", path=os.path.expanduser("~/.cargo/bin"))
    if cargo is None and apt.codename() == "trixie":
        run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "cargo"], "apt-get install cargo", env=apt.ENV)
        cargo = shutil.which("cargo")
    if cargo is None:
        raise LabError("cargo is missing and Debian 12's is too old for this workspace (see rust-version in Cargo.toml): "
                       "install Rust with rustup, then try again")
    return cargo
