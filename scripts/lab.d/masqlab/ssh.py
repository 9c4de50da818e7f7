"""Ways into a VM: ssh over the management network, one shared connection per VM.

The first connection costs about a second on an emulated CPU; commands over it cost tens of milliseconds.
Every ssh runs in the VM's host's namespace, since the addresses mean nothing outside of it.
"""

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import time
import uuid

from . import state
from .netns import inside
from .paths import CACHE, STATE
from .ui import LabError

HOME = STATE / "ssh"
CONFIG = HOME / "config"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def write_config(lab):
    HOME.mkdir(exist_ok=True)
    key = (CACHE / "ssh/host_key.pub").read_text().split()
    (HOME / "known_hosts").write_text(f"masq-lab-vm {key[0]} {key[1]}\n")
    lines = [
        "Host *", "  User root", f"  IdentityFile {CACHE}/ssh/id_lab", "  IdentitiesOnly yes", "  BatchMode yes",
        f"  UserKnownHostsFile {HOME}/known_hosts", "  HostKeyAlias masq-lab-vm", "  StrictHostKeyChecking yes",
        "  LogLevel ERROR", "  ConnectTimeout 10", "  ServerAliveInterval 20", "  ServerAliveCountMax 6",
        f"  ControlPath {HOME}/%n.ctl", "  KexAlgorithms curve25519-sha256", "  GSSAPIAuthentication no",
        "  Ciphers aes128-gcm@openssh.com,aes128-ctr",
    ]
    for entry in lab["vms"].values():
        lines += [f"Host {entry['name']}", f"  HostName {entry['management']}"]
    CONFIG.write_text("\n".join(lines) + "\n")


def connect(lab, name, tries=3):
    """Sees to it that the VM's shared connection is there."""
    entry = state.vm(lab, name)
    if not state.alive(entry.get("process")):
        raise LabError(f"VM {name} is not running; start it with `scripts/lab start {name}`")
    if (HOME / f"{name}.ctl").exists() and _client(lab, entry, ["-O", "check"]).returncode == 0:
        return
    for attempt in range(tries):
        with open(STATE / "logs" / "ssh.log", "ab") as log:
            argv = _argv(lab, entry, ["-o", "ControlMaster=yes", "-o", "ControlPersist=yes", "-f", "-N"])
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if done.returncode == 0 or (HOME / f"{name}.ctl").exists():
            return
        time.sleep(0.5)
    raise LabError(f"cannot reach VM {name} over ssh; see `scripts/lab logs {name}` and {STATE}/logs/ssh.log")


def disconnect(lab, name):
    if (HOME / f"{name}.ctl").exists():
        _client(lab, lab["vms"][name], ["-O", "exit"])
        (HOME / f"{name}.ctl").unlink(missing_ok=True)


def output(lab, name, command, timeout=60):
    """Runs a short command in a VM and returns (status, its output)."""
    connect(lab, name)
    done = subprocess.run(_argv(lab, lab["vms"][name], []) + [command], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout + done.stderr


def execute(lab, name, command, tty=False):
    """Runs a command with our own standard streams; returns its exit status (128 + N for signal N).

    Whatever ends us early, SIGKILL included, ends the remote command too, with what it started.
    """
    connect(lab, name)
    entry = lab["vms"][name]
    if tty:
        return subprocess.run(_argv(lab, entry, ["-tt"]) + [shlex.join(command) + "; exit $?"]).returncode
    ticket = f"/run/masq/{uuid.uuid4().hex}"
    # sshd gives each command a session of its own: the shell's id is the process group's.
    remote = f"echo $$ >{ticket}; {shlex.join(command)}; exit $?"
    kill = f"read p <{ticket} && kill -TERM -$p && sleep 0.3 && kill -KILL -$p"
    watcher, leash = _watcher(_argv(lab, entry, []) + [kill])

    def give_up(number, _frame):
        # `timeout` signals twice, for instance. What was started in the VM is gone when we are.
        for one in ENDING:
            signal.signal(one, signal.SIG_IGN)
        with contextlib.suppress(ProcessLookupError):
            os.kill(ssh.pid, signal.SIGTERM)
        os.close(leash)
        os.waitpid(watcher, 0)
        os._exit(128 + number)

    ssh = subprocess.Popen(_argv(lab, entry, []) + [remote], preexec_fn=_die_with_parent)
    for number in ENDING:
        signal.signal(number, give_up)
    status = ssh.wait()
    os.write(leash, b"ended")
    return status


def _watcher(on_death):
    """A process that runs `on_death` if we are gone before we have written to the leash; returns both."""
    end, leash = os.pipe()
    watcher = os.fork()
    if watcher:
        os.close(end)
        return watcher, leash
    os.setsid()
    os.close(leash)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    if not os.read(end, 1):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(on_death, timeout=20)
    os._exit(0)


def _die_with_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def push(lab, name, source, target):
    """Replaces one file in a VM at once (by a rename)."""
    connect(lab, name)
    with open(source, "rb") as file:
        done = subprocess.run(_argv(lab, lab["vms"][name], []) + [f"cat >{target}.new && mv {target}.new {target}"],
                              stdin=file, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"VM {name}: cannot write {target}: {done.stderr}")


def shell(lab, name):
    connect(lab, name)
    argv = _argv(lab, lab["vms"][name], ["-t"]) + ["exec bash -l"]
    os.execvp(argv[0], argv)


def copy(lab, sources, target):
    """scp with `VM:path` on either side."""
    names = [p.split(":")[0] for p in [*sources, target] if ":" in p]
    if not names:
        raise LabError("cp needs a VM on one side: scripts/lab cp FILE VM:PATH, or VM:PATH FILE")
    for name in names:
        connect(lab, name)
    entry = lab["vms"][names[0]]
    ns = lab["hosts"][entry["host"]]["netns"]
    argv = inside(ns, ["scp", "-F", str(CONFIG), "-q", "-r", "-p", "-3", *sources, target])
    return subprocess.run(argv, stdin=subprocess.DEVNULL).returncode


def _argv(lab, entry, options):
    return inside(lab["hosts"][entry["host"]]["netns"], ["ssh", "-F", str(CONFIG), *options, entry["name"]])


def _client(lab, entry, options):
    return subprocess.run(_argv(lab, entry, options), stdin=subprocess.DEVNULL, capture_output=True)
