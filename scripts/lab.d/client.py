"""Drives a lab that is up: for the demo, the tests and the benchmarks. Everything goes through `scripts/lab`."""

import contextlib
import json
import os
import pathlib
import shlex
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAB = str(ROOT / "scripts" / "lab")


class Failed(Exception):
    """A command in a VM ended otherwise than it should."""

    def __init__(self, vm, command, status, output):
        super().__init__(f"{vm}: `{command}` ended with status {status}:\n{output.strip()}")
        self.output = output


class Vm:
    """One VM of the lab."""

    def __init__(self, entry):
        self.name, self.tenant, self.host = entry["name"], entry["tenant"], entry["host"]
        self.address, self.device, self.gid_index = entry["address"], entry["device"], entry["gid_index"]

    def __repr__(self):
        return self.name

    def popen(self, command, **options):
        """Starts a shell command; the process is that of `lab exec`."""
        return subprocess.Popen(
            [LAB, "exec", self.name, "--", "sh", "-c", command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)

    def run(self, command, timeout=120, check=True):
        """Runs a shell command and returns its output; raises Failed when its status is not 0."""
        process = self.popen(command)
        output, status = finish(process, timeout)
        if check and status != 0:
            raise Failed(self, command, status, output)
        return output

    def status(self, command, timeout=120):
        """Runs a shell command; returns its status and output."""
        process = self.popen(command)
        output, status = finish(process, timeout)
        return status, output

    def wait_port(self, port, timeout=30):
        """Waits until something listens on a port of the VM: TCP's, or the RDMA connection manager's."""
        tries = int(timeout / 0.2)
        self.run(f"for i in $(seq {tries}); do ss -Hltn | grep -q ':{port} ' && exit 0;"
                 f" rdma resource show cm_id | grep -qE 'LISTEN.*:{port}( |$)' && exit 0; sleep 0.2; done; exit 1")

    def kill_all(self, name):
        """Kills what may be left of a program."""
        self.run(f"pkill -9 -x {shlex.quote(name[:15])}; true")


def finish(process, timeout):
    """Waits for a process; returns its output and status. A process that takes too long is ended, status 124."""
    try:
        output, _ = process.communicate(timeout=timeout)
        return output, process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        return output + f"\n(no end within {timeout} s)", 124


class Lab:
    """The lab that is up."""

    def __init__(self):
        text = subprocess.run([LAB, "status", "-o", "json"], check=True, capture_output=True, text=True).stdout
        status = json.loads(text)
        self.vms = {entry["name"]: Vm(entry) for entry in status["vms"]}
        self.desired_state = status["desired_state"]
        self.sockets = {entry["name"]: entry["masqd_socket"] for entry in status["hosts"]}

    def pairs(self):
        """A pair of VMs of one tenant on one host, and one on two hosts: [(place, server, client)]."""
        found = {}
        vms = list(self.vms.values())
        for server in vms:
            for client in vms:
                if server is not client and server.tenant == client.tenant:
                    place = "one host" if server.host == client.host else "two hosts"
                    found.setdefault(place, (place, server, client))
        return [found[p] for p in ("one host", "two hosts") if p in found]


def on(vm, gid=None):
    """The options by which verbs programs name a VM's device and GID."""
    return f"-d {vm.device} {gid or '-x'} {vm.gid_index}"


@contextlib.contextmanager
def server(vm, command, port, timeout=60):
    """A server in a VM for the length of a block, at whose end it ends by itself; yields its process.

    Its output is in `.text` afterwards, its status in `.ended`. `command` may begin with settings of variables.
    """
    program = next(os.path.basename(word) for word in command.split() if "=" not in word)
    vm.kill_all(program)
    process = vm.popen(command)
    try:
        try:
            vm.wait_port(port)
        except Failed:
            output, status = finish(process, 0)
            raise Failed(vm, command, status, f"nothing listens on port {port}; it said:\n{output}") from None
        yield process
        process.text, process.ended = finish(process, timeout)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
            vm.kill_all(program)


def client_server(place, program, options="", port=18515, timeout=120, select=None):
    """Runs a perftest program or an ibv_ pingpong between a pair; returns the client's output.

    `select` gives the device options of a VM; by default they name its vrdma device.
    """
    _, server_vm, client_vm = place
    if select is None:
        pingpong = program.startswith("ibv_")
        select = (lambda vm: on(vm, "-g")) if pingpong else (lambda vm: on(vm) + " -F")
    with server(server_vm, f"{program} {select(server_vm)} -p {port} {options}", port, timeout) as process:
        output = client_vm.run(
            f"{program} {select(client_vm)} -p {port} {options} {server_vm.address}", timeout=timeout)
    if process.ended != 0:
        raise Failed(server_vm, program, process.ended, process.text)
    return output


def both_sides(place, server_command, client_command, port, timeout=120):
    """Runs a server and a client that end by themselves; returns both outputs. {server} stands for the server's address."""
    _, server_vm, client_vm = place
    there = {"server": server_vm.address}
    with server(server_vm, server_command.format(**there), port, timeout) as process:
        output = client_vm.run(client_command.format(**there), timeout=timeout)
    if process.ended != 0:
        raise Failed(server_vm, server_command, process.ended, f"{process.text}\nThe client said:\n{output}")
    return process.text, output


def last_numbers(output):
    """The numbers of the last line of a perftest table."""
    rows = [line.split() for line in output.splitlines() if line.strip() and line.split()[0].isdigit()]
    return [float(word) for word in rows[-1]] if rows else []


def until(condition, timeout, step=0.5):
    """Waits until `condition()` gives something true; returns it, or None after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(step)
    return None
