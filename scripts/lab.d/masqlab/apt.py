"""Debian packages of the host, and sources from a suite that the host does not follow.

What comes from elsewhere (Debian 12's backports, Debian 13's sources) goes through a private
apt configuration in the cache: the machine's own sources stay as they are.
"""

import contextlib
import os
import pathlib
import subprocess

from .paths import CACHE, package_list
from .ui import LabError, run, say, step

GUEST_SUITE = "trixie"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
POLICY = pathlib.Path("/usr/sbin/policy-rc.d")
ENV = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}


def codename():
    """The host's Debian release, by name."""
    fields = dict(line.split("=", 1) for line in open("/etc/os-release") if "=" in line)
    name = fields.get("VERSION_CODENAME", "").strip().strip('"')
    if name not in ("bookworm", "trixie"):
        raise LabError(f"the lab runs on Debian 12 (bookworm) or 13 (trixie); this is {name or 'neither'}")
    return name


def ensure_host_packages():
    """Installs what is missing from the host's lists."""
    release = codename()
    wanted = package_list("host")
    special = package_list("host-trixie" if release == "trixie" else "host-bookworm-backports")
    missing = _missing(wanted)
    missing_special = _missing(special)
    if not missing and not missing_special:
        say("host packages: all installed")
        return
    with step(f"host packages: installing {len(missing) + len(missing_special)}"), _no_services():
        run(["apt-get", "update", "-q"], "apt-get update", log=_log(), env=ENV)
        if missing:
            _install(missing, [])
        if missing_special and release == "trixie":
            _install(missing_special, [])
        elif missing_special:
            options = private_apt("backports", [f"deb {{mirror}} {release} main",
                                                f"deb {{mirror}} {release}-backports main"])
            _install(missing_special, options + ["-t", f"{release}-backports"])


def private_apt(name, lines):
    """An apt configuration of our own with these sources; returns the options that select it."""
    base = CACHE / "apt" / name
    for sub in ("parts", "lists/partial", "cache/archives/partial"):
        (base / sub).mkdir(parents=True, exist_ok=True)
    signed = f"[signed-by={KEYRING}]" if os.path.exists(KEYRING) else ""
    text = "".join(line.format(mirror=f"{signed} {mirror()}") + "\n" for line in lines)
    (base / "sources.list").write_text(text)
    options = []
    for key, value in (("Dir::Etc::SourceList", "sources.list"), ("Dir::Etc::SourceParts", "parts"),
                       ("Dir::State::Lists", "lists"), ("Dir::Cache", "cache")):
        options += ["-o", f"{key}={base / value}"]
    options += ["-o", "APT::Sandbox::User=root"]
    run(["apt-get", *options, "update", "-q"], f"apt-get update ({name})", log=_log(), env=ENV)
    return options


def mirror():
    """The Debian archive that this machine is configured for."""
    release = codename()
    fields = "$(REPO_URI)|$(CODENAME)|$(ORIGIN)|$(COMPONENT)"
    for attempt in range(2):
        out = run(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]).stdout
        for line in out.splitlines():
            uri, name, origin, component = line.split("|")
            if (name, origin, component) == (release, "Debian", "main"):
                return uri
        if attempt == 0:
            run(["apt-get", "update", "-q"], "apt-get update", log=_log(), env=ENV)
    raise LabError(f"no apt source of this machine serves Debian {release} main; add one to /etc/apt")


def _missing(packages):
    out = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages],
                         capture_output=True, text=True).stdout
    installed = {line.split()[0] for line in out.splitlines() if line.endswith(" installed")}
    return [p for p in packages if p not in installed]


def _install(packages, options):
    run(["apt-get", *options, "install", "-y", "-q", "--no-install-recommends", *packages],
        f"apt-get install {' '.join(packages)}", log=_log(), env=ENV)


@contextlib.contextmanager
def _no_services():
    """Keeps packages from starting services (etcd): the lab starts its own in its namespaces."""
    had_etcd = os.path.exists("/usr/bin/etcd")
    mine = not POLICY.exists()
    if mine:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if mine:
            POLICY.unlink()
        if not had_etcd and os.path.isdir("/run/systemd/system"):
            subprocess.run(["systemctl", "disable", "etcd"], capture_output=True)


def _log():
    return str(CACHE / "logs" / "apt.log")
