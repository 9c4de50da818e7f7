"""Consumers in the guests' kernels: NVMe over Fabrics and NFS over RDMA, each checked by fio's checksums. With --all only."""

import contextlib

import metrics
from registry import complaints, each_place

# What fio writes, and reads back to compare. An emulated CPU moves a few MB/s.
MEBIBYTES = 16
FIO = (f"fio --name=verify --size={MEBIBYTES}m --rw=randwrite --bsrange=4k-128k --ioengine=libaio --iodepth=8 --direct=1 "
       "--verify=crc32c --verify_fatal=1 --randrepeat=0 --group_reporting")


@contextlib.contextmanager
def by_rdma_only(lab, vm):
    """Within the block the VM writes and reads fio's data over RDMA, and hardly anything over its network interface."""
    def moved():
        vnic = metrics.of_vnic(lab, vm)
        ethernet = vm.run("cat /sys/class/net/eth0/statistics/[rt]x_bytes").split()
        return vnic["tx_bytes_total"], vnic["rx_bytes_total"], sum(map(int, ethernet))
    before = moved()
    yield
    written, read, other = (after - b for after, b in zip(moved(), before))
    payload = MEBIBYTES << 20
    assert written >= payload and read >= payload, f"the RNIC sent {written:.0f} bytes and received {read:.0f}, of {payload} each"
    assert other < payload / 16, f"{other} bytes went over eth0"


def no_complaints(*vms):
    for vm in vms:
        bad = complaints(vm)
        assert not bad, f"{vm}: {bad}"


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
    with nvme_target(server_vm):
        client_vm.run(f"modprobe nvme-rdma && nvme connect -t rdma -a {server_vm.address} -s 4420 -n masq -i 1 -Q 32", timeout=180)
        try:
            disk = client_vm.run("for i in $(seq 50); do ls /dev/nvme*n1 2>/dev/null && exit; sleep 0.2; done; exit 1").strip()
            with by_rdma_only(lab, client_vm):
                client_vm.run(f"{FIO} --filename={disk}", timeout=300)
        finally:
            client_vm.run("nvme disconnect -n masq", timeout=60)
    no_complaints(server_vm, client_vm)


@contextlib.contextmanager
def nfs_server(vm):
    """A folder that a VM exports over RDMA, for the length of a block."""
    vm.run("""set -e
mkdir -p /srv/masq
mount -t tmpfs none /srv/masq
echo '/srv/masq *(rw,no_root_squash,insecure,fsid=1)' >/etc/exports
modprobe -a nfsd rpcrdma
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
rpcbind 2>/dev/null || true
exportfs -ra
rpc.nfsd -N 3 4
rpc.mountd -N 3
# Nobody has state of before to reclaim; else the first write would wait for 90 s.
echo Y >/proc/fs/nfsd/v4_end_grace
echo 'rdma 20049' >/proc/fs/nfsd/portlist""")
    try:
        yield
    finally:
        vm.run("rpc.nfsd 0; pkill -x rpc.mountd; exportfs -ua; umount /srv/masq; true")


@each_place(full=True)
def nfs_over_rdma_keeps_its_files(lab, place):
    _, server_vm, client_vm = place
    with nfs_server(server_vm):
        client_vm.run(f"modprobe rpcrdma && mkdir -p /mnt/masq && mount -t nfs -o vers=4.2,proto=rdma,port=20049,sec=sys "
                      f"{server_vm.address}:/srv/masq /mnt/masq && grep -q proto=rdma /proc/mounts", timeout=180)
        try:
            with by_rdma_only(lab, client_vm):
                client_vm.run(f"{FIO} --filename=/mnt/masq/data", timeout=300)
            client_vm.run("""set -e
mkdir /mnt/masq/many
for i in $(seq 100); do echo $i >/mnt/masq/many/$i; done
echo 3 >/proc/sys/vm/drop_caches
[ "$(cat /mnt/masq/many/* | sort -n | tail -n 1)" = 100 ]""", timeout=180)
        finally:
            client_vm.run("umount /mnt/masq", timeout=60)
    no_complaints(server_vm, client_vm)
