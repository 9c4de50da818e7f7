"""What is asked once all else has run."""

from registry import complaints, test

@test
def guest_kernels_have_complained_about_nothing(lab):
    for vm in lab.vms.values():
        bad = complaints(vm)
        assert not bad, f"{vm}: {bad}"
