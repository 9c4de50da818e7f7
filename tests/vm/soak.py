"""Many connections by rdma_cm: 10,000 one after another, 1,000 of them alive at once; and nothing that stays. With --all only."""

import metrics
from client import both_sides, until
from registry import complaints, test

ROUNDS, AT_ONCE = 10, 1000


def counted(lab, vm):
    """A VM's objects, as the guest's kernel, the host's session and the RNIC count them."""
    vnic = metrics.of_vnic(lab, vm)
    return {"guest": vm.run("rdma resource").split(), "session": vnic["objects"], "RNIC": vnic["rnic_objects"]}


@test(full=True)
def ten_thousand_connections_leave_nothing_behind(lab):
    place = next(p for p in lab.pairs() if p[0] == "two hosts")
    vms = place[1:]
    before = {vm.name: counted(lab, vm) for vm in vms}
    for _ in range(ROUNDS):
        both_sides(place, f"ucmatose -b {{server}} -c {AT_ONCE} -C 1", f"ucmatose -s {{server}} -c {AT_ONCE} -C 1", 7471, 600)
    for vm in vms:
        assert until(lambda: counted(lab, vm) == before[vm.name], 60), \
            f"{vm}: {before[vm.name]} before, {counted(lab, vm)} after"
        bad = complaints(vm)
        assert not bad, f"{vm}: {bad}"
