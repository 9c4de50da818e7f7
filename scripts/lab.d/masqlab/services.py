"""The lab's daemons: etcd beside the hosts, masqd in each, and the desired state they are given."""

import shutil
import socket
import subprocess
import time

from . import netns, state, topology as topologies
from .paths import STATE
from .ui import LabError, run

ETCD_PORT = 2379
STORE = f"etcd:http://{netns.STORE_ADDRESS}:{ETCD_PORT}"
DESIRED = STATE / "desired.toml"


def start_etcd():
    """Starts the store; returns its process."""
    program = shutil.which("etcd")
    if not program:
        raise LabError("etcd is not installed; run `scripts/lab setup`")
    url = f"http://{netns.STORE_ADDRESS}:{ETCD_PORT}"
    argv = [program, "--name", "lab", "--data-dir", str(STATE / "etcd"),
            "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380",
            "--initial-cluster", "lab=http://127.0.0.1:2380", "--logger", "zap"]
    process = _start(netns.CONTROL_NS, argv, "etcd")
    # Ready when a client can connect, asked from inside the namespace.
    probe = netns.inside(netns.CONTROL_NS, ["bash", "-c", f": </dev/tcp/{netns.STORE_ADDRESS}/{ETCD_PORT}"])
    _wait(lambda: subprocess.run(probe, capture_output=True).returncode == 0, process, "etcd", 20)
    return process


def start_masqd(lab, name, more=()):
    """Starts masqd on one host, with more arguments this time, and waits for its control socket; the state gets its process."""
    host = lab["hosts"][name]
    sock = STATE / name / "masqd.sock"
    sock.unlink(missing_ok=True)
    argv = [lab["masqd"], "--host", name, "--store", STORE, "--run-dir", host["run_dir"], *lab["masqd_args"], *more]
    host["process"] = _start(host["netns"], argv, f"masqd-{name}")
    _wait(lambda: _connects(sock), host["process"], f"masqd-{name}", 20)


def apply_desired(lab, topology):
    """Writes the topology as masqd's desired state and hands it over once (the store tells all hosts)."""
    DESIRED.write_text(desired(topology))
    first = next(iter(lab["hosts"]))
    run([lab["masqctl"], "--socket", f"{lab['hosts'][first]['run_dir']}/masqd.sock", "apply", "--prune", "-f", str(DESIRED)],
        "masqctl apply")


def desired(topology):
    """The desired state of a topology, in masqd's TOML."""
    out = ["# Made by scripts/lab from the topology."]
    for host in topology.hosts:
        out += ["", "[[host]]", f'name = "{host.name}"', f"underlay = {_list(topology.host_underlay(host))}"]
        for alias in (a for vm in topology.vms if vm.host is host for a in vm.aliases):
            out += ["[[host.aliases]]", f'address = "{topologies.on_link(alias)}"', 'link = "ul0"']
    for tenant in topology.tenants:
        out += ["", "[[vpc]]", f'name = "{tenant.name}"', f"vni = {tenant.vni}"]
        out += ["", "[[security_group]]", f'name = "{tenant.name}"', f'vpc = "{tenant.name}"']
    for vm in topology.vms:
        groups = [f"security_groups = {_list([vm.tenant.name])}"] if vm.tenant.rules == "allow" else []
        # One for each address: a static endpoint has one on the underlay.
        for i, address in enumerate(vm.underlay):
            name = vm.name if i == 0 else f"{vm.name}-{i + 1}"
            out += ["", "[[static_endpoint]]", f'name = "{name}"', f'vpc = "{vm.tenant.name}"', f"addresses = {_list([address])}",
                    f'underlay_address = "{address}"', *groups]
        if vm.underlay:
            continue
        out += ["", "[[vnic]]", f'name = "{vm.name}"', f'vpc = "{vm.tenant.name}"', f'host = "{vm.host.name}"',
                f'mac = "{vm.mac}"', f"addresses = {_list([vm.address, *vm.aliases])}", *groups]
        if vm.paths > 1:
            out.append(f"paths = {vm.paths}")
        if vm.aliases:
            out.append(f'dedicated_alias = "{vm.aliases[0]}"')
    return "\n".join(out) + "\n"


def _start(ns, argv, name):
    log = STATE / "logs" / f"{name}.log"
    with open(log, "ab") as out:
        process = subprocess.Popen(netns.inside(ns, argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                   start_new_session=True)
    return state.process(process.pid)


def _wait(ready, process, name, timeout):
    deadline = time.monotonic() + timeout
    while not ready():
        late = time.monotonic() > deadline
        if late or not state.alive(process):
            log = STATE / "logs" / f"{name}.log"
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
            raise LabError(f"{name} {'is not ready after %d s' % timeout if late else 'ended at start'}; {log} ends:\n{tail}")
        time.sleep(0.05)


def _connects(path):
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _list(texts):
    return "[" + ", ".join(f'"{t}"' for t in texts) + "]"
