"""Set-up, and a lab's whole life: up, down, and what happens to its parts in between."""

import concurrent.futures
import os
import shutil
import signal
import subprocess

from . import apt, debs, initramfs, netns, programs, qemu, services, ssh, state, topology, vms
from .paths import CACHE, LOGS, PREFIX, STATE
from .roots import DEFAULT_KIND, Root
from .ui import LabError, say, step

BOOT_TIMEOUT = {"fast": 180, "systemd": 600}
DEVICE_TIMEOUT = 60


STEPS = ("packages", "root", "qemu", "module", "programs")


def setup(without_masqd=False, only=None, kinds=None):
    """Everything that `up` needs; what is there already is skipped.

    `kinds` names the guest roots (by default the default one); `only` names one of STEPS: then just that step runs, and those that it stands on.
    Returns {kind: (root, topmost layer)} and the programs.
    """
    if os.geteuid() != 0:
        raise LabError("the lab needs root: it installs packages and makes network namespaces")
    CACHE.mkdir(parents=True, exist_ok=True)
    wanted = {"root": ("packages", "root"), "qemu": ("packages", "qemu"), "module": ("packages", "root", "module"),
              "packages": ("packages",), "programs": ("packages", "programs")}.get(only, STEPS)
    if without_masqd:
        wanted = [step for step in wanted if step not in ("module", "programs")]
    guests, built = {kind: (Root(kind), None) for kind in kinds or [DEFAULT_KIND]}, {}
    with state.lock("setup", wait=True):
        if "packages" in wanted:
            apt.ensure_host_packages()
        if "root" in wanted:
            for root, _ in guests.values():
                root.ensure()
        if "qemu" in wanted:
            qemu.ensure()
        if "module" in wanted:
            for kind, (root, _) in guests.items():
                guests[kind] = root, debs.module(root)
                guests[kind][1].ensure()
        if only is None:
            initramfs.ssh_keys()
    # cargo has a lock of its own, and takes long enough not to keep others waiting.
    if "programs" in wanted:
        built = programs.ensure()
    if "programs" in wanted and "module" in wanted:
        with state.lock("setup", wait=True):
            for kind, (root, module) in guests.items():
                guests[kind] = root, debs.provider(module, built["providers"])
                guests[kind][1].ensure()
            _prune(guests)
    return guests, built


def up(file, count=None, vcpus=None, memory=None, only=None, init="fast", without_masqd=False, extra_masqd_args=(),
       kind=None):
    topo = topology.load(file, count, vcpus, memory, kind or DEFAULT_KIND)
    names = [v.name for v in topo.vms]
    for name in only or []:
        if name not in names:
            raise LabError(f"--only: no VM {name!r} in the topology; there are: {', '.join(names)}")
    guests, built = setup(without_masqd, kinds=sorted({vm.root for vm in topo.vms}))
    with state.lock():
        old = state.load()
        if old and old["complete"]:
            raise LabError("a lab is up already; end it with `scripts/lab down` first")
        if old or netns.existing():
            say("clearing what an unfinished `up` left")
            _down()
        for folder in ("logs", "qmp", *(h.name for h in topo.hosts)):
            (STATE / folder).mkdir(parents=True, exist_ok=True)
        _write_initramfs(guests)
        lab = _describe(topo, guests, built, init, extra_masqd_args)
        root, _ = next(iter(guests.values()))
        lab["accelerator"] = vms.accelerator(root, _initramfs(root.name))
        state.save(lab)
        with step(f"hosts: {len(topo.hosts)} namespaces, underlay, overlay of {len(topo.tenants)} tenants"):
            netns.build(topo)
        if lab["rdma"]:
            with step("etcd and masqd"):
                lab["etcd"] = services.start_etcd()
                state.save(lab)
                for name in lab["hosts"]:
                    services.start_masqd(lab, name)
                    state.save(lab)
                services.apply_desired(lab, topo)
        ssh.write_config(lab)
        started = only or names
        with step(f"VMs: {len(started)} under {lab['accelerator']}"):
            _boot(lab, started)
        lab["complete"] = True
        state.save(lab)
    say("the lab is up: scripts/lab status, scripts/lab exec VM -- CMD")


def down():
    with state.lock(wait=True):
        if state.load() is None and not netns.existing() and not STATE.exists():
            say("no lab is up")
            return
        with step("lab down"):
            _down()


def start_vms(names):
    with state.lock(wait=True):
        lab = state.require()
        for name in names:
            if state.alive(state.vm(lab, name).get("process")):
                raise LabError(f"VM {name} is running already")
        _boot(lab, names)
        state.save(lab)


def kill_vm(name):
    """Ends a VM as a power failure would."""
    with state.lock(wait=True):
        lab = state.require()
        entry = state.vm(lab, name)
        state.end([entry.get("process")], signal.SIGKILL)
        ssh.disconnect(lab, name)
        entry["process"] = None
        state.save(lab)
    say(f"VM {name}: killed")


def stop_masqd(name, sig=signal.SIGKILL):
    with state.lock(wait=True):
        lab = state.require()
        state.end([state.host(lab, name).get("process")], sig)
        lab["hosts"][name]["process"] = None
        state.save(lab)


def start_masqd(name, more=()):
    with state.lock(wait=True):
        lab = state.require()
        if not lab["rdma"]:
            raise LabError("this lab was brought up --without-masqd")
        if state.alive(state.host(lab, name).get("process")):
            raise LabError(f"masqd on {name} is running already")
        services.start_masqd(lab, name, more)
        state.save(lab)


def update():
    """Builds module, provider and masqd anew and puts them into the running lab."""
    lab = state.require()
    if not lab["rdma"]:
        raise LabError("this lab was brought up --without-masqd")
    guests, built = setup(kinds=sorted({entry["root"] for entry in lab["vms"].values()}))
    with state.lock(wait=True):
        lab = state.require()
        _write_initramfs(guests)
        lab["masqd"], lab["masqctl"] = built["masqd"], built["masqctl"]
        with step("masqd: restarting on all hosts"):
            for name, host in lab["hosts"].items():
                state.end([host.get("process")])
                services.start_masqd(lab, name)
                state.save(lab)

        def renew(name):
            _, layer = guests[lab["vms"][name]["root"]]
            for path, source in layer.shipped():
                # The module indexes stay as they are: they know vrdma since the VM has booted.
                if ".ko" in path or "/libibverbs/" in path:
                    # A rename, so that programs which have the old provider mapped keep it.
                    ssh.push(lab, name, source, f"/{path}")
            status, text = ssh.output(lab, name, "rmmod vrdma && modprobe vrdma")
            if status:
                raise LabError(f"VM {name}: reloading vrdma failed: {text}")

        running = _running(lab)
        with step(f"VMs: new module and provider in {len(running)}"):
            with concurrent.futures.ThreadPoolExecutor(max(1, len(running))) as pool:
                list(pool.map(renew, running))
        _devices(lab, [name for name in _running(lab) if not lab["vms"][name]["underlay"]], DEVICE_TIMEOUT)


def status():
    lab = state.require()
    found = _devices(lab, _running(lab), 0) if lab["rdma"] else {}
    listed = []
    for name, entry in lab["vms"].items():
        device, index = found.get(name) or (None, None)
        listed.append({
            "name": name, "tenant": entry["tenant"], "host": entry["host"], "address": entry["address"],
            "device": device, "gid_index": index, "mac": entry["mac"],
            "state": "running" if state.alive(entry.get("process")) else "stopped",
        })
    hosts = [{
        "name": name, "netns": host["netns"], "underlay": host["underlay"], "masqd_socket": f"{host['run_dir']}/masqd.sock",
        "masqd": ("running" if state.alive(host.get("process")) else "stopped") if lab["rdma"] else "absent",
    } for name, host in lab["hosts"].items()]
    return {"vms": listed, "hosts": hosts, "accelerator": lab["accelerator"],
            "desired_state": str(services.DESIRED) if lab["rdma"] else None}


def _boot(lab, names):
    for name in names:
        vms.start(lab, lab["vms"][name])
        state.save(lab)
    vms.wait_ready(lab, names, BOOT_TIMEOUT[lab["init"]])
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: ssh.connect(lab, name, tries=20), names))
    if lab["rdma"]:
        tenants = [name for name in names if not lab["vms"][name]["underlay"]]
        missing = [n for n, found in _devices(lab, tenants, DEVICE_TIMEOUT).items() if found is None]
        if missing:
            raise LabError(f"no RDMA device with a GID for its address after {DEVICE_TIMEOUT} s in: {', '.join(missing)}\n"
                           f"look at: scripts/lab logs {missing[0]}; scripts/lab exec {missing[0]} -- dmesg; "
                           f"scripts/lab logs {lab['vms'][missing[0]]['host']}")


def _devices(lab, names, timeout):
    """{VM: (device, GID index)} as the guests themselves say, or None for a VM without."""
    def ask(name):
        try:
            code, text = ssh.output(lab, name, f"/etc/masq/gid {timeout}", timeout + 60)
        except (LabError, subprocess.TimeoutExpired):
            return None
        return (text.split()[0], int(text.split()[1])) if code == 0 else None
    if not names:
        return {}
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(ask, names)))


def _running(lab):
    return [name for name, entry in lab["vms"].items() if state.alive(entry.get("process"))]


def _down():
    lab = state.load()
    if lab:
        procs = [entry.get("process") for entry in lab["vms"].values()]
        procs += [host.get("process") for host in lab["hosts"].values()] + [lab.get("etcd")]
        # Disks are throw-away: no guest needs to shut down.
        state.end(procs[:len(lab["vms"])], signal.SIGKILL)
        state.end(procs[len(lab["vms"]):])
    for ns in netns.existing():
        state.end([state.process(pid) for pid in netns.processes(ns)])
        netns.delete(ns)
    if (STATE / "logs").is_dir():
        kept = LOGS / f"last-{PREFIX}"
        shutil.rmtree(kept, ignore_errors=True)
        LOGS.mkdir(parents=True, exist_ok=True)
        shutil.move(STATE / "logs", kept)
    shutil.rmtree(STATE, ignore_errors=True)


def _initramfs(kind):
    return STATE / f"initramfs-{kind}"


def _write_initramfs(guests):
    for kind, (root, layer) in guests.items():
        initramfs.write(root, layer, _initramfs(kind))


def _describe(topo, guests, built, init, extra_masqd_args):
    return {
        "complete": False, "init": init, "rdma": bool(built), "qemu": str(qemu.binary()), "guest_mtu": topo.guest_mtu,
        "underlay_mtu": topo.underlay.mtu,
        "masqd": built.get("masqd"), "masqctl": built.get("masqctl"),
        "masqd_args": [*topo.masqd_args, *extra_masqd_args],
        "hosts": {h.name: {
            "netns": netns.host_ns(h.name), "run_dir": str(STATE / h.name), "underlay": topo.host_underlay(h),
        } for h in topo.hosts},
        "vms": {v.name: {
            "name": v.name, "tenant": v.tenant.name, "host": v.host.name, "address": v.address,
            "prefix_length": v.tenant.cidr.split("/")[1], "mac": v.mac, "vcpus": v.vcpus, "memory_mib": v.memory_mib,
            "root": v.root, "kernel": str(guests[v.root][0].kernel), "image": str(guests[v.root][0].image),
            "initramfs": str(_initramfs(v.root)),
            "tap": netns.tap(v), "management": netns.management_address(v), "management_tap": netns.management_tap(v),
            "aliases": [topology.on_link(a) for a in v.aliases], "underlay": [topology.on_link(a) for a in v.underlay],
            "underlay_tap": netns.underlay_tap(v), "underlay_mac": f"52:54:00:fe:{v.host.index:02x}:{v.index:02x}",
            "management_mac": f"52:54:00:ff:{v.host.index:02x}:{v.index:02x}",
        } for v in topo.vms},
    }


def _prune(guests):
    """Drops what older inputs left in the cache, but for the last few (another checkout may use them)."""
    current, layers = {qemu.home()}, 6
    for root, layer in guests.values():
        current |= {root.home, layer.home, layer.below.home}
    patterns = {f"root-{kind}-*": 2 for kind in guests} | {"qemu-*": 2, "layer-*": layers + 2 * len(guests)}
    for pattern, keep in patterns.items():
        found = sorted(CACHE.glob(pattern), key=lambda p: p.stat().st_mtime)
        for path in found[:-keep]:
            if path not in current:
                say(f"cache: dropping {path.name}")
                shutil.rmtree(path, ignore_errors=True)
