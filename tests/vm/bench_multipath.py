"""Programs that know nothing of paths, in VMs of two hosts: their rates over four slow links beside one, and what several paths cost short messages.

Runs take turns with those of VRDMA_MULTIPATH=0, in the same VMs. Ratios are medians of those of a run and the one beside it. With a lab of the name
`links` or `short` up, it is used, and stays.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts" / "lab.d"))
import client as labclient  # noqa: E402
import mpi  # noqa: E402
from bench import record  # noqa: E402
from client import Failed, Lab, both_sides, last_numbers, on, server  # noqa: E402

PATHS = 4
MIB = 1 << 20
# What each path carries in a run: 4 s on one path of links.toml. As much for each path, so that the burst that each link has at its start counts alike.
MIB_EACH = 48
SIZES = (MIB, 8 * MIB)
# Of one path's rate, at least; of the latency and the message rate with one path, at most and at least.
RATE, LATENCY, MESSAGES = 3.6, 1.05, 0.95
ROUNDS, PAIRS = 5, 15
# How the labs are brought up.
LABS = {
    "links": [str(HERE / "links.toml")],
    "short": [str(HERE / "paths.toml"), "--only", "wide-1,wide-2", "--vcpus", "1"],
}
# By itself UCX reads.
WRITES = {"UCX_RNDV_SCHEME": "put_zcopy"}


def switch(paths):
    """What a program's environment says of its paths: {variable: value}."""
    return {"VRDMA_MULTIPATH": paths if paths > 1 else 0}


def assignments(variables):
    return " ".join(f"{name}={value}" for name, value in variables.items())


@dataclasses.dataclass
class Transfer:
    """A program that moves large messages: its figure's name, what it is called with, and a function of a pair, the length of a message in bytes, how many
    of them, and the paths, which runs it and returns its rate in MiB/s. `sends` tells which of the pair the bytes leave: 1 is the server, 2 the client."""
    name: str
    words: str
    run: object
    sends: int


def perftest(program, sends):
    def run(place, size, count, paths):
        words = f"{assignments(switch(paths))} {program} {{}} -F -s {size} -n {count}"
        _, said = both_sides(place, words.format(on(place[1])), words.format(on(place[2])) + " {server}", 18515)
        return last_numbers(said)[3]
    return Transfer(program.removeprefix("ib_"), program, run, sends)


def ucx(name, settings):
    def run(place, size, count, paths):
        _, serving, asking = place

        def words(vm, more):
            variables = {"UCX_TLS": "rc_v", "UCX_NET_DEVICES": f"{vm.device}:1", "UCX_IB_GID_INDEX": vm.gid_index, **settings, **switch(paths)}
            # Without a terminal Debian's ucx_perftest takes itself for a program of MPI.
            return f"{assignments(variables)} script -qec 'ucx_perftest -f -p 13337{more}' /dev/null"
        with server(serving, words(serving, ""), 13337, 180):
            said = asking.run(words(asking, f" {serving.address} -t tag_bw -s {size} -n {count} -w 2"), timeout=180)
        return last_numbers(said)[5]  # the rate of the whole run
    return Transfer(name, f"{assignments(settings)} ucx_perftest -t tag_bw".strip(), run, 2)


def alltoall(name, settings):
    def run(place, size, count, paths):
        vms = place[1:]
        calls = count // 4 or 1
        words = mpi.command(vms, f"python3 alltoall.py {size} {calls} {count // calls}", settings={**settings, **switch(paths)})
        said = vms[0].run(words, timeout=300)
        found = re.search(r"([\d.]+) MiB/s to other ranks, 0 of \d+ results wrong", said)
        if not found:
            raise Failed(vms[0], words, 0, said)
        return float(found[1])
    return Transfer(name, f"{assignments(settings)} mpirun -np 2 alltoall.py".strip(), run, 1)


TRANSFERS = [perftest("ib_write_bw", 2), perftest("ib_read_bw", 1), perftest("ib_send_bw", 2),
             ucx("ucx_tag_bw", {}), ucx("ucx_tag_bw_writes", WRITES), alltoall("mpi_alltoall", {}), alltoall("mpi_alltoall_writes", WRITES)]

# Short messages: name of the figure, program, options, which number of its result line, the unit and its scale, and whether less is better.
SHORT = [
    ("write_lat_2b", "ib_write_lat", "-s 2 -n 5000", 4, "us", 1, True),
    ("send_lat_2b", "ib_send_lat", "-s 2 -n 5000", 4, "us", 1, True),
    ("write_rate_2b", "ib_write_bw", "-s 2 -n 100000", 4, "k/s", 1000, False),
    ("send_rate_2b", "ib_send_bw", "-s 2 -n 100000", 4, "k/s", 1000, False),
]


@contextlib.contextmanager
def lab_of(name):
    """The lab of that name; it is brought up if it is not, and taken down then."""
    os.environ["MASQ_LAB"] = name
    is_up = subprocess.run([labclient.LAB, "status"], capture_output=True).returncode == 0
    if not is_up:
        subprocess.run([labclient.LAB, "up", *LABS[name]], check=True)
    try:
        yield Lab()
    finally:
        if not is_up:
            subprocess.run([labclient.LAB, "down"], check=True)


def sent(vm):
    """Bytes that a VM's host has sent, by path."""
    links = json.loads(subprocess.run([labclient.LAB, "host", vm.host, "--", "ip", "-j", "-s", "link"], check=True, capture_output=True, text=True).stdout)
    found = {link["ifname"]: link["stats64"]["tx"]["bytes"] for link in links}
    return [found[f"ul{path}"] for path in range(PATHS)]


def moved(transfer, place, size, mib_each, paths):
    """Runs a transfer; returns its rate in MiB/s, and sees to it that it has taken the paths that it is said to take."""
    sender = place[transfer.sends]
    before = sent(sender)
    rate = transfer.run(place, size, mib_each * MIB // size * paths, paths)
    bytes = [after - old for after, old in zip(sent(sender), before)]
    shares = [round(part / sum(bytes), 3) for part in bytes]
    if (shares[0] < 0.95) if paths == 1 else (min(shares) < 0.1):
        raise Failed(sender, f"{transfer.words}, {size} bytes, {paths} paths", 0, f"its bytes were spread over the links as {shares}")
    return rate, shares


def rates(wanted, rounds, mib_each):
    """Records of large messages over four links beside one."""
    figures = {}
    with lab_of("links") as lab:
        place = ("two hosts", lab.vms["wide-1"], lab.vms["wide-2"])
        mpi.prepare(place[1])
        for vm in place[1:]:
            subprocess.run([labclient.LAB, "cp", str(HERE / "alltoall.py"), f"{vm}:/tmp/"], check=True, capture_output=True)
        for turn in range(rounds):
            for transfer in (t for t in TRANSFERS if wanted in t.name):
                for size in SIZES:
                    both = {}
                    for paths in (1, PATHS) if turn % 2 else (PATHS, 1):
                        both[paths], shares = moved(transfer, place, size, mib_each, paths)
                        print(f"    {transfer.name} {size // MIB} MiB, {paths} paths: {both[paths]:.1f} MiB/s, by links {shares}", flush=True)
                    figures.setdefault((transfer.name, transfer.words, size), []).append(both)
    return [
        record(f"vm_{name}_{size // MIB}MiB_{PATHS}_paths", "two hosts, tbf 4 x 100mbit", f"{words}, {size} bytes", [b[PATHS] for b in turns], [b[1] for b in turns],
               "MiB/s", RATE, "one path", paired=True)
        for (name, words, size), turns in figures.items()
    ]


def short_messages(wanted, pairs):
    """Records of short messages with several paths beside one, over links without a limit."""
    figures = {}
    with lab_of("short") as lab:
        place = ("two hosts", lab.vms["wide-1"], lab.vms["wide-2"])
        for turn in range(pairs):
            for name, program, options, column, *_ in (s for s in SHORT if wanted in s[0]):
                for paths in (1, PATHS) if turn % 2 else (PATHS, 1):
                    words = f"{assignments(switch(paths))} {program} {{}} -F {options}"
                    _, said = both_sides(place, words.format(on(place[1])), words.format(on(place[2])) + " {server}", 18515)
                    value = last_numbers(said)[column]
                    print(f"    {name}, {paths} paths: {value}", flush=True)
                    figures.setdefault(name, {}).setdefault(paths, []).append(value)
    return [
        record(f"vm_{name}_{PATHS}_paths", "two hosts", f"{program} {options}", [v * scale for v in figures[name][PATHS]], [v * scale for v in figures[name][1]],
               unit, LATENCY if smaller else MESSAGES, "one path", smaller, paired=True)
        for name, program, options, _, unit, scale, smaller in SHORT if name in figures
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the records here")
    parser.add_argument("--quick", action="store_true", help="one round of short runs")
    parser.add_argument("--only", metavar="WORD", default="", help="figures whose name has WORD")
    parser.add_argument("--rounds", type=int, metavar="N", default=ROUNDS, help=f"of large messages ({ROUNDS})")
    parser.add_argument("--pairs", type=int, metavar="N", default=PAIRS, help=f"of runs of short messages ({PAIRS})")
    options = parser.parse_args()
    rounds, pairs, mib_each = (1, 1, 16) if options.quick else (options.rounds, options.pairs, MIB_EACH)
    records = []
    if rounds and any(options.only in t.name for t in TRANSFERS):
        records += rates(options.only, rounds, mib_each)
    if pairs and any(options.only in s[0] for s in SHORT):
        records += short_messages(options.only, pairs)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(records, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
