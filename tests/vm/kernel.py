"""Consumers in the guests' kernels: NVMe over Fabrics and NFS over RDMA. With --all only."""

import contextlib

from registry import complaints, each_place

DATA = "/tmp/data"
MEBIBYTES = 8


def make_data(vm):
    vm.run(f"dd if=/dev/urandom of={DATA} bs=1M count={MEBIBYTES} status=none")


@contextlib.contextmanager
def nvme_target(vm):
    """A RAM disk that a VM offers over RDMA, for the length of a block."""
    port, subsystem = "/sys/kernel/config/nvmet/ports/1", "/sys/kernel/config/nvmet/subsystems/masq"
    vm.run(f"""set -e
modprobe -a nvmet nvmet-rdma
modprobe brd rd_nr=1 rd_size=65536
mkdir {subsystem}
echo 1 >{subsystem}/attr_allow_any_host
mkdir {subsystem}/namespaces/1
echo -n /dev/ram0 >{subsystem}/namespaces/1/device_path
echo 1 >{subsystem}/namespaces/1/enable
mkdir {port}
echo rdma >{port}/addr_trtype
echo ipv4 >{port}/addr_adrfam
echo {vm.address} >{port}/addr_traddr
echo 4420 >{port}/addr_trsvcid
ln -s {subsystem} {port}/subsystems/masq""")
    try:
        yield
    finally:
        vm.run(f"rm {port}/subsystems/masq; rmdir {port} {subsystem}/namespaces/1 {subsystem}; rmmod brd")


@each_place(full=True)
def nvme_disk_over_rdma_keeps_its_data(lab, place):
    _, server_vm, client_vm = place
    make_data(client_vm)
    with nvme_target(server_vm):
        client_vm.run(f"modprobe nvme-rdma && nvme connect -t rdma -a {server_vm.address} -s 4420 -n masq -i 1 -Q 32", timeout=180)
        try:
            client_vm.run(f"""set -e
for i in $(seq 50); do dev=$(ls /dev/nvme*n1 2>/dev/null | head -n 1); [ -b "$dev" ] && break; sleep 0.2; done
dd if={DATA} of=$dev bs=1M oflag=direct status=none
dd if=$dev of={DATA}.back bs=1M count={MEBIBYTES} iflag=direct status=none
cmp {DATA} {DATA}.back
dd if=$dev of=/dev/null bs=4k count=500 iflag=direct status=none""", timeout=180)
        finally:
            client_vm.run("nvme disconnect -n masq", timeout=60)
    for vm in (server_vm, client_vm):
        bad = complaints(vm)
        assert not bad, f"{vm}: {bad}"


@contextlib.contextmanager
def nfs_server(vm):
    """A folder that a VM exports over RDMA, for the length of a block."""
    vm.run(f"""set -e
mkdir -p /srv/masq /run/rpc_pipefs
mount -t tmpfs none /srv/masq
echo '/srv/masq *(rw,no_root_squash,insecure,fsid=1)' >/etc/exports
modprobe -a nfsd rpcrdma
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
rpcbind 2>/dev/null || true
exportfs -ra
rpc.nfsd -N 3 4
rpc.mountd -N 3 || true
echo 'rdma 20049' >/proc/fs/nfsd/portlist""")
    try:
        yield
    finally:
        vm.run("rpc.nfsd 0; pkill -x rpc.mountd; exportfs -ua; umount /srv/masq; true")


@each_place(full=True)
def nfs_over_rdma_keeps_its_files(lab, place):
    _, server_vm, client_vm = place
    make_data(client_vm)
    with nfs_server(server_vm):
        client_vm.run(f"modprobe rpcrdma && mkdir -p /mnt/masq && mount -t nfs -o vers=4.2,proto=rdma,port=20049,sec=sys "
                      f"{server_vm.address}:/srv/masq /mnt/masq", timeout=180)
        try:
            client_vm.run(f"""set -e
grep -q 'proto=rdma' /proc/mounts
dd if={DATA} of=/mnt/masq/data bs=1M conv=fsync status=none
echo 3 >/proc/sys/vm/drop_caches
cmp {DATA} /mnt/masq/data
mkdir /mnt/masq/many
for i in $(seq 100); do echo $i >/mnt/masq/many/$i; done
echo 3 >/proc/sys/vm/drop_caches
[ "$(cat /mnt/masq/many/* | sort -n | tail -n 1)" = 100 ]""", timeout=180)
        finally:
            client_vm.run("umount /mnt/masq", timeout=60)
    for vm in (server_vm, client_vm):
        bad = complaints(vm)
        assert not bad, f"{vm}: {bad}"
