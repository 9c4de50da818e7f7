//! Guest memory that masqd must not use, and memory that goes away.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use guest_sim::suite::{Setup, Side, World, assert_same, assert_status, pattern};
use guest_sim::verbs::{Guest, wr};
use guest_sim::{Device, GuestRam, HUGE_PAGE, HugePage, HugePool};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use vrdma_abi::config::{QUEUE_CONTROL, QUEUE_FIRST_COMP};
use vrdma_abi::control::*;
use vrdma_abi::event::EVENT_DEVICE_FATAL;
use vrdma_abi::ring::*;

use crate::{ATTACKERS, Test};

pub const TESTS: &[Test] = &[
    ("memory_that_can_shrink_is_refused", unsealed),
    ("memory_that_is_no_memfd_is_refused", no_memfd),
    ("memory_tables_that_cannot_be", bad_tables),
    ("memory_that_goes_while_it_is_used", taken_away),
    ("huge_pages_are_memory_as_any_other", huge_pages),
    ("huge_pages_that_the_host_has_not", no_huge_pages),
];

/// The device does not start with this memory, and the log says what to do about it.
fn refused(world: &World, ram: GuestRam) {
    let mark = world.cluster.log(1).len();
    let result = Device::connect_with(&world.cluster.socket(ATTACKERS[0]), ram);
    assert!(result.is_err(), "a device with such memory starts");
    world.cluster.expect_log(1, mark, &[ATTACKERS[0], "memory-backend-memfd"]);
}

fn unsealed(world: &mut World) {
    refused(world, GuestRam::with_seals(16 << 20, 0).unwrap());
    refused(world, GuestRam::with_seals(16 << 20, libc::F_SEAL_GROW).unwrap());
    world.guest(ATTACKERS[0]).open().expect("sealed memory is fine");
}

fn no_memfd(world: &mut World) {
    let path = std::env::temp_dir().join(format!("masq-sim-ram-{}", std::process::id()));
    let file = |at: &Path| OpenOptions::new().read(true).write(true).create_new(true).open(at);
    let opened = file(&path).expect("a file");
    std::fs::remove_file(&path).expect("the file's name");
    opened.set_len(16 << 20).unwrap();
    refused(world, GuestRam::from_file(opened, 16 << 20).unwrap());
}

fn bad_tables(world: &mut World) {
    let socket = world.cluster.socket(ATTACKERS[0]);
    let ram = GuestRam::new(16 << 20).unwrap();
    let good = ram.regions();
    type Spoil = fn(&mut VhostUserMemoryRegionInfo);
    let spoils: [(&str, Spoil); 7] = [
        ("overlaps the first", |r| r.guest_phys_addr = 4096),
        ("wraps around", |r| r.guest_phys_addr = u64::MAX - 4095),
        ("is longer than its file", |r| r.memory_size = 1 << 40),
        ("has a length without end", |r| r.memory_size = u64::MAX),
        ("begins behind its file", |r| r.mmap_offset = 1 << 40),
        ("begins at an offset without end", |r| r.mmap_offset = u64::MAX - 4095),
        ("is not a page's multiple", |r| r.mmap_offset += 1),
    ];
    for (what, spoil) in spoils {
        let mut regions = good.clone();
        spoil(&mut regions[1]);
        let frontend = Device::connect_partly(&socket, &ram, 1).expect("negotiation");
        assert!(frontend.set_mem_table(&regions).is_err(), "a region that {what} is accepted");
    }
    world.guest(ATTACKERS[0]).open().expect("a working device");
}

/// The memory table shrinks to half while regions and rings in the other half are in use.
fn taken_away(world: &mut World) {
    for vnic in ATTACKERS {
        let own = Side::open(world, vnic);
        let peer = Side::open(world, "blue-1");
        let setup = Setup::default();
        let (a, b) = (own.qp(&setup.caps_a, 64), peer.qp(&setup.caps_b, 64));
        a.connect(&setup.a, peer.address, b.qpn).unwrap();
        b.connect(&setup.b, own.address, a.qpn).unwrap();
        let (here, there) = (own.buffer(60 * 4096), peer.buffer(60 * 4096));
        for k in 0..30 {
            a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, k, &there, 0), &[here.sge(0, 60 * 4096)]).unwrap();
            b.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, k, &here, 0), &[there.sge(0, 60 * 4096)]).unwrap();
        }
        let low = own.guest.ram.regions()[..1].to_vec();
        // Either it is refused, or what was in the other half is out of reach.
        let _ = own.guest.device().frontend().set_mem_table(&low);
        std::thread::sleep(Duration::from_millis(30));
        drop((here, a, own));
        world.stop_guest(vnic);
        for _ in 0..30 {
            b.send_completion();
        }
        peer.ctx.destroy().unwrap();
    }
    world.stop_guest("blue-1");
}

/// Adds a huge page to a guest's memory, and makes it a region; its keys.
fn with_huge_page(side: &Side, page: &HugePage) -> CreateMrReply {
    let guest = &side.guest;
    let mut regions = guest.ram.regions();
    regions.push(page.region());
    guest.device().frontend().set_mem_table(&regions).expect("huge pages are accepted");
    let command = CreateMr {
        mr: guest.handle(),
        pd: side.pd.handle(),
        access: ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE,
        flags: 0,
        iova: HugePage::GPA,
        length: HUGE_PAGE as u64,
        pages: PageTable { addr: HugePage::GPA, count: 1, page_shift: 21, levels: 0, reserved: 0 },
    };
    guest.control().call(OP_CREATE_MR, &command).expect("CREATE_MR")
}

fn huge_pages(world: &mut World) {
    let pool = HugePool::grow(1).expect("the host's pool grows");
    let page = HugePage::reserved().expect("a huge page");
    let own = Side::open(world, ATTACKERS[0]);
    let keys = with_huge_page(&own, &page);
    for peer in ["blue-2", "blue-3"] {
        let peer = Side::open(world, peer);
        let setup = Setup::default();
        let (a, b) = (own.qp(&setup.caps_a, 64), peer.qp(&setup.caps_b, 64));
        a.connect(&setup.a, peer.address, b.qpn).unwrap();
        b.connect(&setup.b, own.address, a.qpn).unwrap();
        let data = pattern(u64::from(b.qpn), HUGE_PAGE);
        let from = peer.buffer(HUGE_PAGE);
        from.write(0, &data);
        let mut write = wr::request(SEND_OP_RDMA_WRITE, 1);
        (write.remote_addr, write.rkey) = (HugePage::GPA, keys.rkey);
        b.post_send(&write, &[from.sge(0, HUGE_PAGE)]).unwrap();
        assert_status(&b.send_completion(), WC_SUCCESS);
        assert_same(&page.read(HUGE_PAGE), &data, "written into a huge page");
        from.fill(0, HUGE_PAGE, 0);
        let sge = Sge { addr: HugePage::GPA, length: HUGE_PAGE as u32, lkey: keys.lkey };
        a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 2, &from, 0), &[sge]).unwrap();
        assert_status(&a.send_completion(), WC_SUCCESS);
        assert_same(&from.read(0, HUGE_PAGE), &data, "written out of a huge page");
        peer.ctx.destroy().unwrap();
    }
    drop((own, page, pool));
    world.stop_guest("blue-2");
    world.stop_guest("blue-3");
}

/// Whoever touches such a page would be ended by SIGBUS: the RNIC for a region, a status page or a queue of completion
/// events, masqd itself for the control queue. Only this device may fail of it, and it must tell its guest.
fn no_huge_pages(world: &mut World) {
    let taken = HugePool::exhaust().expect("the pool can be emptied");
    for vnic in ATTACKERS {
        let fails = |guest: &Guest, mark: usize| {
            guest.expect_event(EVENT_DEVICE_FATAL, 0);
            world.cluster.expect_log(world.host(vnic), mark, &[vnic, "page of the guest's memory"]);
        };
        // A region that the guest sends from.
        let mark = world.cluster.log(world.host(vnic)).len();
        let page = HugePage::promised().unwrap();
        let own = Side::open(world, vnic);
        let qp = own.qp(&Setup::default().caps_a, 64);
        qp.connect(&Setup::default().a, own.address, qp.qpn).unwrap();
        let keys = with_huge_page(&own, &page);
        let sge = Sge { addr: HugePage::GPA, length: 64, lkey: keys.lkey };
        let there = own.buffer(64);
        qp.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[sge]).unwrap();
        fails(&own.guest, mark);
        drop((qp, there, own));
        world.stop_guest(vnic);

        // The status page.
        let mark = world.cluster.log(world.host(vnic)).len();
        let ram = GuestRam::new(16 << 20).unwrap();
        let mut device = Device::connect_with(&world.cluster.socket(vnic), ram).expect("a device");
        let mut regions = device.ram.regions();
        regions.push(page.region());
        device.frontend().set_mem_table(&regions).unwrap();
        let init = DeviceInit {
            abi_major: vrdma_abi::config::ABI_MAJOR,
            abi_minor: vrdma_abi::config::ABI_MINOR,
            status_page: HugePage::GPA,
            ..DeviceInit::ZERO
        };
        // It may be answered before the page is touched.
        let _ = device.control().run(OP_DEVICE_INIT, &init);
        world.cluster.expect_log(world.host(vnic), mark, &[vnic, "page of the guest's memory"]);
        drop(device);

        // Queues of the RNIC's and of masqd's own.
        for queue in [QUEUE_CONTROL, QUEUE_FIRST_COMP] {
            let mark = world.cluster.log(world.host(vnic)).len();
            let ram = GuestRam::new(16 << 20).unwrap();
            let mut frontend =
                Device::connect_partly(&world.cluster.socket(vnic), &ram, 1).expect("negotiation");
            let mut regions = ram.regions();
            regions.push(page.region());
            frontend.set_mem_table(&regions).unwrap();
            Device::place_queue(&mut frontend, queue, HugePage::USER_ADDR).unwrap();
            world.cluster.expect_log(world.host(vnic), mark, &[vnic, "the device has failed"]);
        }
    }
    drop(taken);
}
