"""Queue pairs with several paths of the underlay: programs that know nothing of them, in a lab whose hosts have four."""

import json
import subprocess

import client as labclient
from client import both_sides, client_server, on
from registry import built, complaints, test

PATHS = 4
OFF = "VRDMA_MULTIPATH=0"


def wide(lab):
    """A pair whose vNICs have all paths."""
    return ("two hosts", lab.vms["wide-1"], lab.vms["wide-2"])


def sent(host):
    """Bytes that a host has sent, by path."""
    links = json.loads(subprocess.run([labclient.LAB, "host", host, "--", "ip", "-j", "-s", "link"],
                                      check=True, capture_output=True, text=True).stdout)
    found = {link["ifname"]: link["stats64"]["tx"]["bytes"] for link in links}
    return [found[f"ul{path}"] for path in range(PATHS)]


def shares(host, run):
    """What part of the bytes that a host sends meanwhile takes each path."""
    before = sent(host)
    run()
    bytes = [after - old for after, old in zip(sent(host), before)]
    return [part / sum(bytes) for part in bytes]


@test(lab="paths")
def large_messages_take_all_paths_and_small_ones_the_first(lab):
    place = _, server_vm, client_vm = wide(lab)
    for program, sender in (("ib_write_bw", client_vm), ("ib_read_bw", server_vm)):
        large = shares(sender.host, lambda: client_server(place, program, "-n 30 -s 4194304 -t 4"))
        assert min(large) > 0.05, f"{program}: of 4 MiB messages the paths take {large}"
        # An engine that waits for its processor can take the first path for dead for a while.
        small = [shares(sender.host, lambda: client_server(place, program, "-n 500 -s 65536"))]
        while small[-1][0] <= 0.95 and len(small) < 3:
            small.append(shares(sender.host, lambda: client_server(place, program, "-n 500 -s 65536")))
        assert small[-1][0] > 0.95, f"{program}: of 64 KiB messages the paths take {small}"


@test(lab="paths")
def one_path_is_used_where_that_is_all_or_all_that_is_wanted(lab):
    place = _, server_vm, client_vm = wide(lab)
    off = [(server_vm, f"{OFF} ib_write_bw {on(server_vm)} -F -n 30 -s 4194304"),
           (client_vm, f"{OFF} ib_write_bw {on(client_vm)} -F -n 30 -s 4194304 {{server}}")]
    parts = shares(client_vm.host, lambda: both_sides(place, off[0][1], off[1][1], 18515))
    assert parts[0] > 0.95, f"switched off: the paths take {parts}"
    narrow = ("two hosts", lab.vms["narrow"], lab.vms["wide-1"])
    parts = shares("h1", lambda: client_server(narrow, "ib_write_bw", "-n 30 -s 4194304"))
    assert parts[0] > 0.95, f"to a vNIC with one path: the paths take {parts}"


@test(lab="paths")
def a_program_has_as_many_paths_as_its_environment_says(lab):
    place = _, server_vm, client_vm = wide(lab)

    def run(value):
        setting = f"VRDMA_MULTIPATH={value} ib_write_bw"
        return both_sides(place, f"ib_write_bw {on(server_vm)} -F -n 30 -s 4194304 -t 4",
                          f"{setting} {on(client_vm)} -F -n 30 -s 4194304 -t 4 {{server}}", 18515)[1]

    for value, used in (("1", 1), ("2", 2), ("3", 3), ("99", PATHS), ("four", PATHS)):
        said = []
        parts = shares(client_vm.host, lambda: said.append(run(value)))
        # The links have no rate, so that paths share as the hosts' processors have it.
        assert min(parts[:used]) > 0.02 and sum(parts[used:]) < 0.01, f"{value}: the paths take {parts}"
        complaint = f"VRDMA_MULTIPATH={value} is not a number of paths"
        assert said[0].count(complaint) == (value == "four"), said[0]


@test(lab="paths")
def every_byte_arrives_and_every_request_completes_once_and_in_order(lab):
    wide_1, wide_2, narrow = (lab.vms[name] for name in ("wide-1", "wide-2", "narrow"))
    for server_vm, client_vm, setting in ((wide_1, wide_2, ""), (wide_1, wide_2, OFF), (narrow, wide_1, ""), (wide_1, narrow, "")):
        commands = {vm: f"{setting} {built(vm, 'paths')}" for vm in (server_vm, client_vm)}
        _, said = both_sides(("", server_vm, client_vm), f"{commands[server_vm]} 7900",
                             f"{commands[client_vm]} 7900 {{server}}", 7900, timeout=300)
        assert "all checks passed" in said, said


@test(lab="paths")
def perftest_runs_with_all_sizes(lab):
    place = wide(lab)
    for program in ("ib_write_bw", "ib_read_bw", "ib_send_bw"):
        client_server(place, program, "-a -n 10", timeout=300)
    client_server(place, "ib_write_lat", "-a -n 10", timeout=300)
    for size in (131073, 1000001, 5000003):
        client_server(place, "ib_write_bw", f"-n 20 -s {size} -q 4")
        client_server(place, "ib_read_bw", f"-n 20 -s {size} -e")
        client_server(place, "ib_send_bw", f"-n 20 -s {size} -e -b")
    client_server(place, "ib_atomic_bw", "-n 500")


@test(lab="paths")
def pingpong_checks_large_messages(lab):
    for size in (131071, 131072, 1 << 20, 4 << 20):
        client_server(wide(lab), "ibv_rc_pingpong", f"-c -e -n 5 -s {size}")


@test(lab="paths")
def kernels_have_complained_about_nothing(lab):
    for vm in lab.vms.values():
        bad = complaints(vm)
        assert not bad, f"{vm}: {bad}"
