"""The Rust programs of the checkout, by cargo, which knows by itself what is up to date."""

import json
import os
import shutil
import subprocess

from . import apt
from .paths import REPO
from .ui import LabError, run, say, step

PACKAGES = ["masqd", "masqctl", "vrdma-provider"]


def ensure():
    """Builds them and returns {"masqd": path, "masqctl": path, "provider": path}.

    With MASQ_PROGRAMS naming a folder, they are taken from there as they are.
    """
    if os.environ.get("MASQ_PROGRAMS"):
        return _ready_made(os.environ["MASQ_PROGRAMS"])
    cargo = _cargo()
    argv = [cargo, "build", "--release", "--message-format=json-render-diagnostics"]
    for package in PACKAGES:
        argv += ["-p", package]
    with step("masqd, masqctl, provider: cargo build"):
        done = subprocess.run(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise LabError(f"cargo build failed; to go without masqd and RDMA: --without-masqd\n{done.stderr[-4000:]}")
    found = {}
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact":
            continue
        target = message["target"]
        if message.get("executable") and target["name"] in ("masqd", "masqctl"):
            found[target["name"]] = message["executable"]
        elif "cdylib" in target["crate_types"]:
            for file in message["filenames"]:
                if os.path.basename(file) == "libvrdma.so":
                    found["provider"] = file
    for name in ("masqd", "masqctl", "provider"):
        if name not in found:
            raise LabError(f"cargo built no {'libvrdma.so' if name == 'provider' else name}; is its crate in Cargo.toml?")
    return found


def _ready_made(folder):
    found = {name: os.path.join(os.path.abspath(folder), file)
             for name, file in (("masqd", "masqd"), ("masqctl", "masqctl"), ("provider", "libvrdma.so"))}
    for path in found.values():
        if not os.path.exists(path):
            raise LabError(f"MASQ_PROGRAMS={folder}: there is no {path}")
    say(f"masqd, masqctl, provider: taken from {folder}")
    return found


def _cargo():
    cargo = shutil.which("cargo") or shutil.which("cargo", path=os.path.expanduser("~/.cargo/bin"))
    if cargo is None and apt.codename() == "trixie":
        run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "cargo"], "apt-get install cargo", env=apt.ENV)
        cargo = shutil.which("cargo")
    if cargo is None:
        raise LabError("cargo is missing and Debian 12's is too old for this workspace (see rust-version in Cargo.toml): "
                       "install Rust with rustup, then try again")
    return cargo
