//! Front ends that misuse vhost-user, or go away at any moment.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use guest_sim::suite::{Rng, Setup, Side, World, assert_status};
use guest_sim::verbs::wr;
use guest_sim::{Device, GuestRam};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vmm_sys_util::eventfd::EventFd;
use vrdma_abi::ring::*;

use crate::{ATTACKERS, Test};

pub const TESTS: &[Test] = &[
    ("a_front_end_that_leaves_at_any_moment", leaves),
    ("bytes_that_are_no_vhost_user", not_vhost_user),
    ("vhost_user_requests_out_of_place", out_of_place),
    ("a_guest_that_leaves_with_work_in_flight", leaves_with_work),
    ("a_second_front_end_while_the_first_is_there", second),
];

fn leaves(world: &mut World) {
    let socket = world.cluster.socket(ATTACKERS[0]);
    let ram = GuestRam::new(64 << 20).unwrap();
    for steps in 0..=16 {
        drop(Device::connect_partly(&socket, &ram, steps).expect("a part of the start"));
    }
    drop(Device::connect_with(&socket, ram).expect("the whole start"));
    world.guest(ATTACKERS[0]).open().expect("a working device");
}

fn not_vhost_user(world: &mut World) {
    let socket = world.cluster.socket(ATTACKERS[0]);
    let mut rng = Rng::new(11);
    for round in 0..60 {
        let mut stream = connect(&socket);
        let mut bytes = rng.bytes(12 + rng.clone().below(300) as usize);
        if round % 2 == 0 {
            // A header that looks right: a request, version 1, some length.
            bytes[..4].copy_from_slice(&(rng.below(45) as u32).to_le_bytes());
            bytes[4..8].copy_from_slice(&1u32.to_le_bytes());
            let len = if round % 4 == 0 { bytes.len() as u32 - 12 } else { rng.next_u64() as u32 };
            bytes[8..12].copy_from_slice(&len.to_le_bytes());
        }
        // masqd may have hung up already.
        let _ = stream.write_all(&bytes);
    }
    world.guest(ATTACKERS[0]).open().expect("a working device");
}

fn connect(socket: &std::path::Path) -> UnixStream {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match UnixStream::connect(socket) {
            Ok(s) => return s,
            Err(e) => assert!(Instant::now() < deadline, "cannot connect: {e}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Each on a connection of its own, as a refusal may end it.
fn out_of_place(world: &mut World) {
    let socket = world.cluster.socket(ATTACKERS[0]);
    type Misuse = fn(&mut vhost::vhost_user::Frontend, &GuestRam);
    let misuses: [Misuse; 9] = [
        |f, _| drop(f.set_vring_num(0, 0)),
        |f, _| drop(f.set_vring_num(0, 3)),
        |f, _| drop(f.set_vring_num(0, u16::MAX)),
        |f, _| drop(f.set_vring_num(63, 256)),
        |f, _| drop(f.set_vring_base(0, u16::MAX)),
        |f, ram| {
            let address = ram.regions()[0].userspace_addr;
            for (desc, used) in
                [(1, 2), (address + 1, address), (u64::MAX - 7, address), (address, u64::MAX - 4095)]
            {
                let config = vhost::VringConfigData {
                    queue_max_size: 256,
                    queue_size: 256,
                    desc_table_addr: desc,
                    avail_ring_addr: address,
                    used_ring_addr: used,
                    ..Default::default()
                };
                let _ = f.set_vring_addr(0, &config);
            }
        },
        // A file descriptor that is no eventfd, and an eventfd without a queue.
        |f, _| {
            let kick = EventFd::new(0).unwrap();
            let _ = f.set_vring_kick(0, &kick);
            let _ = f.set_vring_kick(60, &kick);
            let _ = f.set_vring_enable(0, true);
        },
        |f, _| drop(f.set_features(u64::MAX)),
        |f, _| {
            let _ = f.get_vring_base(0);
            let _ = f.get_vring_base(2);
            let _ = f.get_vring_base(13);
            let _ = f.reset_owner();
        },
    ];
    for (k, misuse) in misuses.iter().enumerate() {
        for steps in [1, 2, 16] {
            let ram = GuestRam::new(16 << 20).unwrap();
            let mut frontend = Device::connect_partly(&socket, &ram, steps)
                .unwrap_or_else(|e| panic!("before misuse {k} after {steps} steps: {e}"));
            misuse(&mut frontend, &ram);
        }
    }
    world.guest(ATTACKERS[0]).open().expect("a working device");
}

/// Writes, reads and receives are on their way when the guest's memory goes.
fn leaves_with_work(world: &mut World) {
    const LEN: usize = 1 << 20;
    for (round, peer) in ["blue-2", "blue-3"].into_iter().cycle().take(12).enumerate() {
        let own = Side::open(world, ATTACKERS[0]);
        let other = Side::open(world, peer);
        let setup = Setup::default();
        let (a, b) = (own.qp(&setup.caps_a, 64), other.qp(&setup.caps_b, 64));
        a.connect(&setup.a, other.address, b.qpn).unwrap();
        b.connect(&setup.b, own.address, a.qpn).unwrap();
        let (here, there) = (own.buffer(LEN), other.buffer(LEN));
        for k in 0..10 {
            a.post_recv(k, &[here.sge(0, LEN)]).unwrap();
            a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, k, &there, 0), &[here.sge(0, LEN)]).unwrap();
            a.post_send(&wr::rdma(SEND_OP_RDMA_READ, k, &there, 0), &[here.sge(0, LEN)]).unwrap();
            b.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, k, &here, 0), &[there.sge(0, LEN)]).unwrap();
            b.post_send(&wr::request(SEND_OP_SEND, k), &[there.sge(0, LEN)]).unwrap();
        }
        std::thread::sleep(Duration::from_micros(300 * round as u64));
        drop((here, a, own));
        world.stop_guest(ATTACKERS[0]);
        // The peer's requests end one way or the other.
        for _ in 0..20 {
            let status = b.send_completion().status;
            let may_be = [WC_SUCCESS, WC_RETRY_EXC_ERR, WC_WR_FLUSH_ERR];
            assert!(may_be.contains(&status), "{}", guest_sim::suite::status_name(status));
        }
        other.ctx.destroy().unwrap();
    }
    world.stop_guest("blue-2");
    world.stop_guest("blue-3");
}

/// One guest has the device; another that connects to the same socket must not disturb it.
fn second(world: &mut World) {
    let side = Side::open(world, ATTACKERS[0]);
    let qp = side.qp(&Default::default(), 64);
    qp.connect(&Default::default(), side.address, qp.qpn).unwrap();
    let buffer = side.buffer(4096);
    let intruder = UnixStream::connect(world.cluster.socket(ATTACKERS[0]));
    for _ in 0..50 {
        qp.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &buffer, 2048), &[buffer.sge(0, 100)]).unwrap();
        assert_status(&qp.send_completion(), WC_SUCCESS);
    }
    drop(intruder);
    side.ctx.destroy().unwrap();
}
