"""scripts/lab: see docs/lab.md, or --help."""

import argparse
import json
import os
import signal
import sys

from masqlab import state
from masqlab.paths import CACHE, STATE
from masqlab.ui import LabError


def main():
    args = _parser().parse_args()
    try:
        return args.act(args) or 0
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted; `scripts/lab down` clears up", file=sys.stderr)
        return 130


# Each command imports what it needs itself: `exec` runs often and must begin at once.

def _setup(args):
    from masqlab import lifecycle
    lifecycle.setup(args.without_masqd, args.only, args.root)


def _up(args):
    from masqlab import lifecycle
    only = args.only.split(",") if args.only else None
    extra = [f"--engines={args.engines}"] if args.engines else []
    lifecycle.up(args.file, args.vms, args.vcpus, args.memory, only, "systemd" if args.systemd else "fast",
                 args.without_masqd, extra, args.root)


def _down(_args):
    from masqlab import lifecycle
    lifecycle.down()


def _exec(args):
    from masqlab import ssh
    return ssh.execute(state.require(), args.vm, _command(args.command), args.tty)


def _shell(args):
    from masqlab import ssh
    ssh.shell(state.require(), args.vm)


def _cp(args):
    from masqlab import ssh
    return ssh.copy(state.require(), args.paths[:-1], args.paths[-1])


def _host(args):
    from masqlab import netns
    host = state.host(state.require(), args.host)
    argv = netns.inside(host["netns"], _command(args.command))
    os.execvp(argv[0], argv)


def _masqctl(args):
    lab = state.require()
    if not lab["masqctl"]:
        raise LabError("this lab was brought up --without-masqd")
    host = state.host(lab, args.host)
    os.execv(lab["masqctl"], [lab["masqctl"], "--socket", f"{host['run_dir']}/masqd.sock", *_command(args.command)])


def _status(args):
    from masqlab import lifecycle
    found = lifecycle.status()
    if args.output == "json":
        print(json.dumps(found, indent=2))
        return
    columns = ("name", "tenant", "host", "address", "device", "gid_index", "state")
    rows = [columns] + [tuple("-" if vm[c] is None else str(vm[c]) for c in columns) for vm in found["vms"]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
    for host in found["hosts"]:
        print(f"host {host['name']}: masqd {host['masqd']}, underlay {', '.join(host['underlay'])}, netns {host['netns']}")


def _logs(args):
    home = STATE / "logs" if (STATE / "logs").is_dir() else CACHE / "logs" / f"last-{STATE.name}"
    if not home.is_dir():
        raise LabError("no lab is up and none has left logs")
    files = sorted(p for p in home.iterdir() if p.stat().st_size)
    if args.name:
        wanted = {f"{args.name}.console.log", f"{args.name}.qemu.log", f"masqd-{args.name}.log", f"{args.name}.log"}
        files = [p for p in files if p.name in wanted]
        if not files:
            raise LabError(f"no log of {args.name!r} in {home}")
    if args.follow:
        os.execvp("tail", ["tail", "-n", "20", "-F", *map(str, files)])
    for path in files:
        lines = path.read_text(errors="replace").splitlines()
        print(f"==> {path} <==")
        print("\n".join(lines if args.name else lines[-10:]))


def _start(args):
    from masqlab import lifecycle
    lifecycle.start_vms(args.vm)


def _kill(args):
    from masqlab import lifecycle
    lifecycle.kill_vm(args.vm)


def _stop_masqd(args):
    from masqlab import lifecycle
    lifecycle.stop_masqd(args.host, signal.SIGTERM if args.term else signal.SIGKILL)


def _start_masqd(args):
    from masqlab import lifecycle
    lifecycle.start_masqd(args.host, args.args or ())


def _restart_masqd(args):
    _stop_masqd(args)
    _start_masqd(args)


def _update(_args):
    from masqlab import lifecycle
    lifecycle.update()


def _vcpus(text):
    """{VM: number}; "*" stands for every VM."""
    parts = [part.split("=") if "=" in part else ("*", part) for part in text.split(",")]
    return {name: int(number) for name, number in parts}


def _command(words):
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise LabError("no command given; write: ... -- CMD ARGS")
    return words


def _parser():
    parser = argparse.ArgumentParser(prog="lab", description="Tenants' VMs with RDMA devices, on hosts made of network "
                                     "namespaces. docs/lab.md tells more.")
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")

    def add(name, act, text):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(act=act)
        return command

    def without_masqd(command):
        command.add_argument("--without-masqd", action="store_true",
                             help="plain VMs: no masqd, no RDMA device (kernel rxe still works)")

    command = add("setup", _setup, "make everything that `up` needs; skip what is there")
    command.add_argument("--only", choices=["packages", "root", "qemu", "module", "programs"],
                         help="just this step and those that it stands on")
    command.add_argument("--root", action="append", metavar="KIND", help="the guests' root: trixie (default), full, bookworm or sid; can be given several times")
    without_masqd(command)

    command = add("up", _up, "bring up a topology (default: 2 hosts, 2 tenants on the same addresses, 5 VMs)")
    command.add_argument("file", nargs="?", help="topology file (TOML)")
    command.add_argument("--vms", type=int, metavar="N", help="only the first N VMs")
    command.add_argument("--vcpus", type=_vcpus, metavar="N | VM=N,VM=N", default={},
                         help="virtual CPUs of each VM, or of some (default 1)")
    command.add_argument("--memory", metavar="SIZE", help="memory of each VM, such as 512M or 2G (default 1G)")
    command.add_argument("--root", metavar="KIND", help="the root of guests that the topology names none for: trixie (default), full, bookworm or sid")
    command.add_argument("--only", metavar="VM,VM", help="start just these VMs; `start` brings up the others later")
    command.add_argument("--engines", type=int, metavar="N", help="masqd's number of engines")
    command.add_argument("--systemd", action="store_true", help="boot guests with systemd and udev (stock, but slow)")
    without_masqd(command)

    add("down", _down, "end the lab; nothing stays but the cache")

    command = add("exec", _exec, "run a command in a VM; its exit status is ours")
    command.add_argument("-t", "--tty", action="store_true", help="give it a terminal")
    command.add_argument("vm")
    command.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD")

    add("shell", _shell, "a shell in a VM").add_argument("vm")

    command = add("cp", _cp, "copy files or folders; VM:PATH names a place in a VM")
    command.add_argument("paths", nargs="+", metavar="PATH")

    command = add("host", _host, "run a command on a host (in its network namespace)")
    command.add_argument("host")
    command.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD")

    command = add("masqctl", _masqctl, "run masqctl for a host's masqd")
    command.add_argument("host")
    command.add_argument("command", nargs=argparse.REMAINDER, metavar="-- ARGS")

    command = add("status", _status, "VMs with their devices and GID indexes, and hosts")
    command.add_argument("-o", "--output", choices=["table", "json"], default="table")

    command = add("logs", _logs, "logs of everything, or of one VM, host or etcd")
    command.add_argument("name", nargs="?")
    command.add_argument("-f", "--follow", action="store_true")

    command = add("start", _start, "start VMs that are stopped")
    command.add_argument("vm", nargs="+")

    add("kill", _kill, "end a VM as a power failure would").add_argument("vm")

    for name, act, text in (("stop-masqd", _stop_masqd, "end masqd on a host"),
                            ("restart-masqd", _restart_masqd, "end masqd on a host and start it again")):
        command = add(name, act, text)
        command.add_argument("host")
        command.add_argument("--term", action="store_true", help="with SIGTERM instead of SIGKILL")
        if act is _restart_masqd:
            command.add_argument("--arg", action="append", dest="args", metavar="ARG", help="one more argument for masqd, this time; can be given several times")
    command = add("start-masqd", _start_masqd, "start masqd on a host")
    command.add_argument("host")
    command.add_argument("--arg", action="append", dest="args", metavar="ARG", help="one more argument for masqd, this time; can be given several times")

    add("update", _update, "build module, provider and masqd anew and put them into the running lab")
    return parser


if __name__ == "__main__":
    sys.exit(main())
