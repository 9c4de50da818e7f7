"""Many connections by rdma_cm: 10,000 one after another, 1,000 of them alive at once; and nothing that stays. With --all only."""

import json
import re
import subprocess

import client as labclient
from client import both_sides, until
from registry import complaints, test

ROUNDS, AT_ONCE = 10, 1000


def counted(vm):
    """What the guest's kernel and the host's session count of a VM's objects."""
    guest = re.sub(r"\s+", " ", vm.run("rdma resource").strip())
    status = json.loads(subprocess.run([labclient.LAB, "masqctl", vm.host, "--", "status", "-o", "json"], check=True,
                                       capture_output=True, text=True).stdout)
    session = next(v["objects"] for v in status["vnics"] if v["name"] == vm.name)
    return guest, session


@test(full=True)
def ten_thousand_connections_leave_nothing_behind(lab):
    place = next(p for p in lab.pairs() if p[0] == "two hosts")
    vms = place[1:]
    before = {vm.name: counted(vm) for vm in vms}
    for _ in range(ROUNDS):
        both_sides(place, f"ucmatose -b {{server}} -c {AT_ONCE} -C 1", f"ucmatose -s {{server}} -c {AT_ONCE} -C 1", 7471, 600)
    for vm in vms:
        assert until(lambda: counted(vm) == before[vm.name], 60), f"{vm}: {before[vm.name]} before, {counted(vm)} after"
        bad = complaints(vm)
        assert not bad, f"{vm}: {bad}"
