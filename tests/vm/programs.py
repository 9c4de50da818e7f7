"""Verbs programs on what is not a plain reliable connection: UC, UD, shared receive queues, XRC, extended verbs."""

import client as labclient
from client import client_server
from registry import each_place, register_for_each_place

# Pingpongs check their data with -c (but xsrq_pingpong, where it counts clients).
PINGPONGS = {
    "ibv_rc_pingpong": ["-c -N -n 200", "-c -t -n 200"],
    "ibv_uc_pingpong": ["-c -n 200", "-c -e -n 100 -s 10000", "-c -m 4096 -n 20 -s 1000000"],
    "ibv_ud_pingpong": ["-c -n 200", "-c -e -n 100 -s 1000"],
    "ibv_srq_pingpong": ["-c -q 4 -n 100", "-c -e -q 16 -n 50 -s 10000"],
    "ibv_xsrq_pingpong": ["-n 50", "-e -n 50 -s 10000"],
}

PERFTEST = {
    "perftest over UC": [
        ("ib_send_bw", "-c UC -n 200 -s 65536"), ("ib_write_bw", "-c UC -n 200 -s 65536"),
        ("ib_send_lat", "-c UC -n 200 -s 2"), ("ib_write_lat", "-c UC -n 200 -s 2"),
    ],
    "perftest over UD": [
        ("ib_send_bw", "-c UD -n 200 -s 1024"), ("ib_send_lat", "-c UD -n 200 -s 64"), ("ib_send_lat", "-c UD -e -n 100 -s 64"),
    ],
    "perftest over XRC and shared receive queues": [
        ("ib_send_bw", "-c XRC -n 200 -s 16384"), ("ib_send_lat", "-c XRC -n 200 -s 2"),
        ("ib_send_bw", "--use-srq -q 4 -n 200 -s 16384"), ("ib_send_lat", "--use-srq -n 200 -s 2"),
    ],
}

PERFTEST_ALL = [
    ("ib_send_bw", "-a -c UC -n 10"), ("ib_write_bw", "-a -c UC -n 10"), ("ib_send_bw", "-a -c UD -n 100"),
    ("ib_send_lat", "-a -n 20"), ("ib_write_lat", "-a -n 20"), ("ib_read_lat", "-a -n 20"), ("ib_send_lat", "-a -c UD -n 100"),
    ("ib_send_bw", "-b -c UC -n 100 -s 65536"), ("ib_send_bw", "-b -c UD -n 100 -s 1024"),
    ("ib_send_bw", "-q 8 -c UD -n 100 -s 1024"), ("ib_write_bw", "-q 16 -c UC -n 50 -s 16384"),
]


def pingpongs(program):
    def run(lab, place):
        for options in PINGPONGS[program]:
            client_server(place, program, options)
    return run


def perftest(programs):
    def run(lab, place):
        for program, options in programs:
            output = client_server(place, program, options, timeout=240)
            assert labclient.last_numbers(output), f"{program} {options} printed no result:\n{output}"
    return run


for name in PINGPONGS:
    register_for_each_place(name, __name__, pingpongs(name))
for name, programs in PERFTEST.items():
    register_for_each_place(name, __name__, perftest(programs))
register_for_each_place("perftest, all sizes", __name__, perftest(PERFTEST_ALL), full=True)


@each_place
def datagrams_of_every_size_arrive_whole(lab, place):
    for size in (1, 63, 1023, 2048, 4096):
        client_server(place, "ibv_ud_pingpong", f"-c -n 20 -s {size}")
