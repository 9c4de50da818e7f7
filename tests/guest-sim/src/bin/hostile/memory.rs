//! Guest memory that masqd must not use, and memory that goes away.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use guest_sim::suite::{Setup, Side, World};
use guest_sim::verbs::wr;
use guest_sim::{Device, GuestRam};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use vrdma_abi::ring::*;

use crate::{ATTACKERS, Test};

pub const TESTS: &[Test] = &[
    ("memory_that_can_shrink_is_refused", unsealed),
    ("memory_that_is_no_memfd_is_refused", no_memfd),
    ("memory_tables_that_cannot_be", bad_tables),
    ("memory_that_goes_while_it_is_used", taken_away),
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
