"""One connection over several ordinary queue pairs (vrdma-guest/mp-verbs), on vrdma and on kernel rxe. mp_bw checks every byte."""

import contextlib
import functools
import os
import pathlib
import re
import subprocess
import threading
import time

import client as labclient
from client import Failed, server, until
from registry import HERE, test

CRATE = labclient.ROOT / "vrdma-guest" / "mp-verbs"
PORT = 18555
# Path 0 has the VM's own address, the others these beside it: 192.168.0.N, .N + 100, .N + 200.
PATHS = 3


@functools.cache
def binaries():
    """mp_bw and the shared library, by cargo."""
    subprocess.run(["cargo", "build", "--release", "-p", "mp-verbs", "--lib", "--example", "mp_bw"],
                   cwd=labclient.ROOT, check=True, capture_output=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", labclient.ROOT / "target")) / "release"
    return [str(target / "examples" / "mp_bw"), str(target / "libmp_verbs.so")]


def addresses(vm):
    network, last = vm.address.rsplit(".", 1)
    return [f"{network}.{int(last) + 100 * path}" for path in range(PATHS)]


def gids(vm, device):
    """How many GIDs a connection can use."""
    folder = f"/sys/class/infiniband/{device}/ports/1"
    return int(vm.run(f"cd {folder}; for t in gid_attrs/types/*; do i=${{t##*/}};"
                      " [ \"$(cat $t 2>/dev/null)\" = 'RoCE v2' ] && grep -v ^fe80 gids/$i; done | wc -l"))


def allow(vm, verb):
    """Says whether the VM may have the addresses: a GID of vrdma is one that its host lets it take on."""
    pairs = [word for address in addresses(vm)[1:] for word in (f"--{verb}-allowed-address-pair", f"{address}/32")]
    done = subprocess.run([labclient.LAB, "masqctl", vm.host, "--", "vnic", "set", vm.name, *pairs, "--wait", "30"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def several_gids(vms, device):
    """VMs with the programs and with addresses for so many paths; yields each one's device."""
    try:
        devices = []
        for vm in vms:
            subprocess.run([labclient.LAB, "cp", *binaries(), f"{vm}:/tmp/"], check=True, capture_output=True)
            if device == "vrdma":
                allow(vm, "add")
            for address in addresses(vm)[1:]:
                vm.run(f"ip addr add {address}/24 dev eth0")
            if device == "rxe":
                vm.run("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0")
            devices.append("rxe0" if device == "rxe" else vm.device)
            found = until(lambda vm=vm: gids(vm, devices[-1]) == PATHS, 20)
            assert found, f"{vm} has {gids(vm, devices[-1])} usable GIDs:\n" + vm.run("ip addr show eth0; rdma link")
        yield devices
    finally:
        for vm in vms:
            vm.run("rdma link del rxe0 2>/dev/null; true")
            for address in addresses(vm)[1:]:
                vm.run(f"ip addr del {address}/24 dev eth0; true", check=False)
            if device == "vrdma":
                allow(vm, "remove")


def pair(lab):
    """On two hosts if there is such a pair."""
    return lab.pairs()[-1][1:]


def mp_bw(vms, devices, options, meanwhile=lambda: None):
    """Runs the program between two VMs; returns for each path of the client its bytes, whether it lives, and how often it has failed."""
    serve, ask = vms
    with server(serve, f"/tmp/mp_bw -d {devices[0]} {options}", PORT, timeout=200) as process:
        thread = threading.Thread(target=meanwhile)
        thread.start()
        try:
            output = ask.run(f"/tmp/mp_bw -d {devices[1]} {options} {serve.address}", timeout=200)
        finally:
            thread.join()
    if process.ended != 0:
        raise Failed(serve, "mp_bw", process.ended, process.text)
    assert "all right" in output and "all right" in process.text, output + process.text
    found = re.findall(r"^path \d+: (\d+) bytes, alive (\w+), failures (\d+)", output, re.M)
    return [(int(moved), alive == "true", int(failures)) for moved, alive, failures in found]


def all_paths_carry(lab, device):
    vms = pair(lab)
    with several_gids(vms, device) as devices:
        for options in ("-o write -s 1000001 -n 12", "-o read -s 1000001 -n 12", "-o send -s 1000001 -n 12 -e"):
            paths = mp_bw(vms, devices, options)
            assert len(paths) == PATHS and all(moved > 0 for moved, _, _ in paths), f"{options}: {paths}"
            assert all(alive and not failures for _, alive, failures in paths), f"{options}: {paths}"
        for options in ("-o write -s 20 -n 40 -e", "-o send -s 20 -n 40", "-o send -s 0 -n 10"):
            mp_bw(vms, devices, options)


@test
def all_paths_carry_on_vrdma(lab):
    all_paths_carry(lab, "vrdma")


@test
def all_paths_carry_on_rxe(lab):
    all_paths_carry(lab, "rxe")


@test
def ends_with_unequal_numbers_of_paths_use_the_smaller(lab):
    vms = pair(lab)
    with several_gids(vms, "rxe") as devices:
        serve, ask = vms
        serve.run(f"ip addr del {addresses(serve)[2]}/24 dev eth0")
        assert until(lambda: gids(serve, devices[0]) == PATHS - 1, 20)
        paths = mp_bw(vms, devices, "-o write -s 1000001 -n 4")
        assert len(paths) == PATHS - 1 and all(moved > 0 for moved, _, _ in paths), paths


@test(full=True)
def a_path_of_rxe_that_dies_is_left_and_taken_up_again(lab):
    vms = pair(lab)
    _, ask = vms
    victim = addresses(vms[0])[1]

    def break_and_mend():
        # Packets to the address go to a machine that there is not.
        time.sleep(3)
        ask.run(f"ip neigh replace {victim} lladdr 52:54:00:00:00:fe nud permanent dev eth0")
        time.sleep(8)
        ask.run(f"ip neigh del {victim} dev eth0")

    with several_gids(vms, "rxe") as devices:
        for kind in ("write", "send"):
            before = time.monotonic()
            # An emulated rxe is slow to answer: with four times 0.5 s no path fails but the one that is broken.
            paths = mp_bw(vms, devices, f"-o {kind} -s 1000000 -n 150 -u 17", meanwhile=break_and_mend)
            took = time.monotonic() - before
            assert paths[1][2] > 0, f"path 1 has not failed, in {took:.0f} s: {paths}"
            assert all(failures == 0 for _, _, failures in (paths[0], paths[2])), paths


@test
def the_c_interface_keeps_its_word(lab):
    vm = pair(lab)[0]
    with several_gids([vm], "vrdma"):
        sources = [str(HERE / "multipath.c"), str(HERE / "check.h"), str(CRATE / "include" / "mp_verbs.h")]
        subprocess.run([labclient.LAB, "cp", *sources, f"{vm}:/tmp/"], check=True, capture_output=True)
        vm.run("cd /tmp && gcc -O1 -Wall -Wextra -Werror -o multipath multipath.c -L. -lmp_verbs -libverbs -lpthread")
        vm.run(f"cd /tmp && LD_LIBRARY_PATH=. timeout 60 ./multipath {vm.device} {PATHS}", timeout=90)
