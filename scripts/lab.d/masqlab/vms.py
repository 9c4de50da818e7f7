"""QEMU: the accelerator, a VM's command line, start and readiness."""

import os
import pathlib
import subprocess
import tempfile
import time

from . import netns, qemu, state, vhost
from .paths import CACHE, STATE, digest
from .ui import LabError, say, step

FIRMWARE = ["-L", "/usr/share/seabios", "-L", "/usr/share/qemu"]
# No timer calibration, no self-tests, no mitigations: nothing is attacked in a lab, and emulation is slow.
# noreplace-smp: a kernel on one CPU patches its LOCK prefixes out, and the host shares words with it.
KERNEL_ARGS = ("console=ttyS0 net.ifnames=0 mitigations=off tsc=reliable no_timer_check cryptomgr.notests"
               " random.trust_cpu=on noreplace-smp panic=-1 loglevel=5")
ACCELERATORS = {
    "kvm": ["-accel", "kvm", "-cpu", "host"],
    # Five-level paging and nested virtualisation only cost time under emulation.
    "tcg": ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off,svm=off"],
}
MACHINE = "q35,memory-backend=mem,sata=off,smbus=off,i8042=off,usb=off,vmport=off"


def console_log(name):
    return STATE / "logs" / f"{name}.console.log"


def accelerator(root, initramfs):
    """kvm if it really boots this kernel here, else tcg. The answer is kept until machine or build changes."""
    if not os.path.exists("/dev/kvm"):
        return "tcg"
    boot_id = open("/proc/sys/kernel/random/boot_id").read().strip()
    kept = CACHE / f"accelerator-{digest(boot_id, qemu.home().name, root.home.name, KERNEL_ARGS)}"
    if kept.exists():
        return kept.read_text().strip()
    with step("KVM: probing by booting the guest kernel"), tempfile.TemporaryDirectory(prefix="masq-probe-") as folder:
        console = pathlib.Path(folder) / "console"
        argv = [str(qemu.binary()), *FIRMWARE, *_board(256, 1), *ACCELERATORS["kvm"], *_kernel(root.kernel, initramfs),
                "-append", KERNEL_ARGS + " masq.probe", "-serial", f"file:{console}"]
        # A kernel that dies at once is started again by nobody: it ends or times out.
        probe = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 10
            while probe.poll() is None and time.monotonic() < deadline and not _says(console, "probe ok"):
                time.sleep(0.1)
            answer = "kvm" if _says(console, "probe ok") else "tcg"
        finally:
            probe.kill()
            probe.wait()
    say(f"accelerator: {answer}" + ("" if answer == "kvm" else " (/dev/kvm is there but does not boot this kernel)"))
    for old in CACHE.glob("accelerator-*"):
        old.unlink()
    kept.write_text(answer + "\n")
    return answer


def start(lab, entry):
    """Starts one VM of the state `lab`; returns at once. `entry` gets its process."""
    name = entry["name"]
    if lab["rdma"] and not entry["underlay"] and not lab.get("queues"):
        sock = f"{lab['hosts'][entry['host']]['run_dir']}/{name}.sock"
        _wait_for_socket(sock, name, entry["host"])
        lab["queues"] = vhost.queue_count(sock)
    log = console_log(name)
    log.unlink(missing_ok=True)
    with open(STATE / "logs" / f"{name}.qemu.log", "ab") as out:
        process = subprocess.Popen(netns.inside(lab["hosts"][entry["host"]]["netns"], _command(lab, entry, log)),
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    entry["process"] = state.process(process.pid)


def wait_ready(lab, names, timeout):
    """Waits until these VMs say on their consoles that they are up.

    QEMU's emulator keeps a pointer into a TLB while it waits for a lock, so that a vCPU can write to another device's
    registers than it means when a second one changes mappings (QEMU 10.0 to 11.1; it shows as the assertion of msix_table_mmio_write, as
    the kernel sets up its devices). That is no fault of what is tested: such a VM is started once more, and it is said.
    """
    begin = time.monotonic()
    waiting = list(names)
    restarted = set()
    while waiting:
        for name in list(waiting):
            entry = lab["vms"][name]
            if _says(console_log(name), f"masq-lab: {name} ready"):
                waiting.remove(name)
                say(f"VM {name}: up after {time.monotonic() - begin:.1f} s")
            elif not state.alive(entry["process"]):
                if lab["accelerator"] == "tcg" and name not in restarted and _emulator_failed(name):
                    restarted.add(name)
                    say(f"VM {name}: QEMU's emulator failed an assertion of its own; starting it again")
                    start(lab, entry)
                    state.save(lab)
                    continue
                raise LabError(f"VM {name} ended while starting:\n{_tail(STATE / 'logs' / f'{name}.qemu.log')}"
                               f"{_tail(console_log(name))}")
        if time.monotonic() - begin > timeout:
            raise LabError(f"not up after {timeout} s: {', '.join(waiting)}; the last one's console ends:\n"
                           f"{_tail(console_log(waiting[-1]))}{_tail(STATE / 'logs' / f'{waiting[-1]}.qemu.log')}")
        time.sleep(0.1)


def _emulator_failed(name):
    """Whether QEMU has ended by an assertion, in other code than that of our device."""
    last = _tail(STATE / "logs" / f"{name}.qemu.log", lines=1)
    return "Assertion" in last and "rdma" not in last


def _command(lab, entry, console):
    name, host = entry["name"], lab["hosts"][entry["host"]]
    rdma = lab["rdma"] and not entry["underlay"]
    append = (f"{KERNEL_ARGS} masq.name={name} masq.address={entry['address']}/{entry['prefix_length']}"
              f" masq.mgmt={entry['management']}/24 masq.init={lab['init']} masq.rdma={int(rdma)}"
              f" masq.aliases={','.join(entry['aliases'])} masq.underlay={','.join(entry['underlay'])}")
    argv = [
        lab["qemu"], *FIRMWARE, "-name", f"{name},process=masq-{name}", *_board(entry["memory_mib"], entry["vcpus"]),
        *ACCELERATORS[lab["accelerator"]], *_kernel(entry["kernel"], entry["initramfs"]), "-append", append,
        "-drive", f"if=none,id=disk,file={entry['image']},format=raw,snapshot=on,cache=unsafe",
        "-device", "virtio-blk-pci,drive=disk",
        # The order on the bus gives the interfaces their names: the tenant's is eth0.
        "-netdev", f"tap,id=tenant,ifname={entry['tap']},script=no,downscript=no",
        "-device", f"virtio-net-pci,netdev=tenant,mac={entry['mac']},host_mtu={lab['guest_mtu']},romfile=",
        "-netdev", f"tap,id=mgmt,ifname={entry['management_tap']},script=no,downscript=no",
        "-device", f"virtio-net-pci,netdev=mgmt,mac={entry['management_mac']},host_mtu={netns.MANAGEMENT_MTU},romfile=",
        "-device", "virtio-rng-pci",
        "-serial", f"file:{console}",
        "-qmp", f"unix:{STATE}/qmp/{name}.sock,server=on,wait=off",
    ]
    if entry["underlay"]:
        argv += ["-netdev", f"tap,id=underlay,ifname={entry['underlay_tap']},script=no,downscript=no",
                 "-device", f"virtio-net-pci,netdev=underlay,mac={entry['underlay_mac']},host_mtu={lab['underlay_mtu']},romfile="]
    if rdma:
        argv += ["-chardev", f"socket,id=rdma,path={host['run_dir']}/{name}.sock,reconnect-ms=1000",
                 "-device", f"vhost-user-rdma-pci,chardev=rdma,num_vqs={lab['queues']}"]
    return argv


def _wait_for_socket(path, name, host, timeout=20):
    """masqd listens as soon as the store has told it of the vNIC."""
    deadline = time.monotonic() + timeout
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise LabError(f"masqd on {host} does not serve vNIC {name}: no {path} after {timeout} s; "
                           f"see `scripts/lab logs {host}`")
        time.sleep(0.05)


def _board(memory_mib, vcpus):
    # A second CPU that may come makes QEMU emulate atomic operations as such, also for one CPU.
    return [
        "-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot",
        "-machine", MACHINE, "-smp", f"{vcpus},maxcpus={max(2, vcpus)}", "-m", f"{memory_mib}M",
        "-object", f"memory-backend-memfd,id=mem,size={memory_mib}M,share=on",
    ]


def _kernel(kernel, initramfs):
    return ["-kernel", str(kernel), "-initrd", str(initramfs)]


def _says(log, text):
    try:
        return text.encode() in log.read_bytes()
    except FileNotFoundError:
        return False


def _tail(path, lines=8):
    try:
        text = path.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return ""
    return "".join(f"  {line}\n" for line in text)
