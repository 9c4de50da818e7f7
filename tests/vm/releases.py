"""Guests of other releases of Debian, among themselves and with Debian 13. With --all only."""

import client as labclient
from client import both_sides, client_server
from registry import complaints, test

PAIRS = {"Debian 12": ("old-1", "old-2"), "Debian 12 and 13": ("old-1", "new-1"), "Debian sid and 13": ("sid-1", "new-1")}

PINGPONGS = {"ibv_rc_pingpong": "-c -n 200", "ibv_uc_pingpong": "-c -n 200", "ibv_ud_pingpong": "-c -n 200",
             "ibv_srq_pingpong": "-c -e -q 4 -n 50", "ibv_xsrq_pingpong": "-n 20"}
PERFTEST = [("ib_write_bw", "-n 200 -s 65536"), ("ib_send_lat", "-n 200 -s 2"), ("ib_read_bw", "-e -n 100 -s 4096"),
            ("ib_send_bw", "-c UD -n 200 -s 1024"), ("ib_send_bw", "-R -n 100 -s 4096")]


def for_each_pair(function):
    for name, vms in PAIRS.items():
        def run(lab, vms=vms):
            function((name, *(lab.vms[vm] for vm in vms)))
        run.__name__, run.__module__ = f"{function.__name__} ({name})", __name__
        test(run, full=True, lab="releases")
    return function


@for_each_pair
def pingpongs_run(place):
    for program, options in PINGPONGS.items():
        client_server(place, program, options)


@for_each_pair
def perftest_runs(place):
    for program, options in PERFTEST:
        output = client_server(place, program, options)
        assert labclient.last_numbers(output), f"{program} {options} printed no result:\n{output}"


@for_each_pair
def rdma_cm_programs_run(place):
    both_sides(place, "rping -s -a {server} -C 20 -V", "rping -c -a {server} -C 20 -V", 7174)
    both_sides(place, "ucmatose -b {server} -c 20", "ucmatose -s {server} -c 20", 7471)
    both_sides(place, "udaddy -b {server}", "udaddy -s {server}", 7174)


@test(full=True, lab="releases")
def libibverbs_of_each_release_has_its_provider(lab):
    for vm in lab.vms.values():
        info = vm.run("ibv_devinfo")
        assert "PORT_ACTIVE" in info and "no userspace device-specific driver" not in info, info


@test(full=True, lab="releases")
def kernels_of_other_releases_have_complained_about_nothing(lab):
    for vm in lab.vms.values():
        bad = complaints(vm)
        assert not bad, f"{vm}: {bad}"
