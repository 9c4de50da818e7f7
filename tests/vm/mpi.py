"""Programs of MPI in the lab's VMs: Open MPI with UCX, a rank in each VM."""

import pathlib
import subprocess

import client as labclient

KEY = pathlib.Path("/var/cache/masq/ssh/id_lab")


def prepare(first):
    """Lets a VM start processes in the others."""
    subprocess.run([labclient.LAB, "cp", str(KEY), f"{first}:/tmp/key"], check=True, capture_output=True)
    first.run("chmod 600 /tmp/key")


def command(vms, program, folder="/tmp", settings=None):
    """The command that runs a program with a rank in each of these VMs, in a folder, for the first of them. `settings` are more variables of the environment."""
    first = vms[0]
    variables = {"UCX_TLS": "rc_v,self", "UCX_NET_DEVICES": f"{first.device}:1", "UCX_IB_GID_INDEX": first.gid_index, **(settings or {})}
    hosts = ",".join(f"{vm.address}:2" for vm in vms)
    return (f"OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --host {hosts} -np {len(vms)} --map-by ppr:1:node --wdir {folder} "
            "--mca pml ucx --mca btl ^tcp --prtemca plm_ssh_args '-i /tmp/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null' "
            + "".join(f"-x {name}={value} " for name, value in variables.items()) + program)
