"""The patched QEMU: source from Debian 13, pinned by hash, plus the series in qemu-patches/."""

import hashlib
import os
import shutil

from . import apt
from .paths import CACHE, LOGS, PATCHES, digest
from .ui import LabError, run, say, step

CONFIGURE = [
    "--python=/usr/bin/python3", "--target-list=x86_64-softmmu",
    "--without-default-features", "--without-default-devices", "--with-devices-x86_64=minimal",
    "--enable-system", "--enable-kvm", "--enable-tcg", "--enable-vhost-user",
    "--disable-install-blobs", "--disable-download", "--disable-werror", "--disable-debug-info",
    "--prefix=/usr",
]


def home():
    """The folder of the build that belongs to the present series."""
    series = [PATCHES / name for name in _series()]
    return CACHE / f"qemu-{digest(PATCHES / 'source.sha256', *series, *CONFIGURE, apt.codename())}"


def binary():
    return home() / "qemu-system-x86_64"


def ensure():
    out = home()
    if binary().exists():
        say(f"QEMU: up to date ({out})")
        return
    tarball = _source()
    work = CACHE / "build" / "qemu"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    log = LOGS / "qemu.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    with step("QEMU: unpacking and patching"):
        run(["tar", "-C", str(work), "-xf", str(tarball), "--strip-components=1"], "unpacking QEMU")
        for name in _series():
            run(["patch", "-p1", "-s", "-i", str(PATCHES / name)], f"applying {name}", cwd=work)
    build = work / "build"
    build.mkdir()
    with step("QEMU: configuring"):
        run(["../configure", *CONFIGURE], "configuring QEMU", log=str(log), cwd=build)
    with step("QEMU: building (4 to 6 minutes on 2 cores)"):
        run(["nice", "ninja", "qemu-system-x86_64"], "building QEMU", log=str(log), cwd=build)
    # The folder appears whole or not at all.
    fresh = out.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    shutil.copy2(build / "qemu-system-x86_64", fresh)
    fresh.rename(out)
    shutil.rmtree(work)


def _series():
    lines = (PATCHES / "series").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _source():
    """The source tarball, from the cache or from Debian 13's archive."""
    want, name = (PATCHES / "source.sha256").read_text().split()
    tarball = CACHE / "src" / name
    if not tarball.exists():
        version = name.removeprefix("qemu_").removesuffix(".orig.tar.xz")
        with step(f"QEMU: fetching the source of {version}"):
            _fetch(tarball, version)
    have = hashlib.sha256(tarball.read_bytes()).hexdigest()
    if have != want:
        raise LabError(
            f"{tarball} has SHA-256 {have}, but qemu-patches/source.sha256 pins {want}.\n"
            "Nothing was built. Delete the file to fetch it again; if it stays different, do not trust it.")
    return tarball


def _fetch(tarball, version):
    options = apt.private_apt("sources", [f"deb-src {{mirror}} {apt.GUEST_SUITE} main"])
    listing = run(["apt-cache", *options, "showsrc", "qemu"]).stdout
    versions = [line.split()[1] for line in listing.splitlines() if line.startswith("Version:")]
    # Any Debian revision will do: the hash pins the upstream part.
    match = next((v for v in versions if v.split(":")[-1].rsplit("-", 1)[0] == version), None)
    if match is None:
        raise LabError(
            f"Debian 13 offers QEMU {', '.join(versions) or 'nothing'}, but the series is based on {version}.\n"
            f"Put {tarball.name} into {tarball.parent} by hand, or rebase the series (qemu-patches/README.md).")
    fetched = tarball.parent / "fetch"
    shutil.rmtree(fetched, ignore_errors=True)
    fetched.mkdir(parents=True)
    run(["apt-get", *options, "source", "-q", "--download-only", f"qemu={match}"],
        "fetching QEMU's source", log=str(LOGS / "apt.log"), cwd=fetched)
    os.replace(fetched / tarball.name, tarball)
    shutil.rmtree(fetched)
