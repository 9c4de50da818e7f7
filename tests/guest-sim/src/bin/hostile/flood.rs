//! Guests that want everything for themselves.

use std::time::{Duration, Instant};

use guest_sim::suite::{Setup, Side, World, assert_status};
use guest_sim::verbs::{QpCaps, wr};
use vrdma_abi::ring::*;

use crate::{ATTACKERS, Test};

pub const TESTS: &[Test] = &[
    ("a_guest_that_writes_without_pause", writes),
    ("a_guest_that_kicks_without_pause", kicks),
    ("a_guest_that_never_takes_its_completions", never_polls),
];

/// Sixteen queue pairs with a megabyte in each request, for half a second.
fn writes(world: &mut World) {
    const LEN: usize = 1 << 20;
    for peer in ["blue-2", "blue-3"] {
        let (own, other) = (Side::open(world, ATTACKERS[0]), Side::open(world, peer));
        let setup = Setup::default();
        let (here, there) = (own.buffer(LEN), other.buffer(LEN));
        let qps: Vec<_> = (0..16)
            .map(|_| {
                let (a, b) = (own.qp(&setup.caps_a, 128), other.qp(&setup.caps_b, 64));
                a.connect(&setup.a, other.address, b.qpn).unwrap();
                b.connect(&setup.b, own.address, a.qpn).unwrap();
                a
            })
            .collect();
        let write = wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0);
        let until = Instant::now() + Duration::from_millis(500);
        while Instant::now() < until {
            for qp in &qps {
                while qp.send_room() > 0 {
                    qp.post_send(&write, &[here.sge(0, LEN)]).unwrap();
                }
                while let Some(cqe) = qp.send_cq().poll() {
                    assert_status(&cqe, WC_SUCCESS);
                    qp.retire(&cqe);
                }
            }
        }
        own.ctx.destroy().unwrap();
        other.ctx.destroy().unwrap();
        world.stop_guest(peer);
    }
}

fn kicks(world: &mut World) {
    let guest = world.guest(ATTACKERS[0]);
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        for slot in 0..guest.config.num_db_slots {
            guest.kick(slot);
        }
    }
}

fn never_polls(world: &mut World) {
    let own = Side::open(world, ATTACKERS[0]);
    let caps = QpCaps { send_wr: 4096, ..QpCaps::default() };
    let buffer = own.buffer(4096);
    for _ in 0..8 {
        let qp = own.qp(&caps, 16);
        qp.connect(&Default::default(), own.address, qp.qpn).unwrap();
        let write = wr::rdma(SEND_OP_RDMA_WRITE, 1, &buffer, 0);
        let posts: Vec<_> = (0..4000).map(|_| (write, vec![buffer.sge(0, 8)])).collect();
        qp.post_sends(&posts).unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    own.ctx.destroy().unwrap();
}
