//! Tenants on the same addresses.

use guest_sim::suite::{Conn, Setup, Side, World, assert_same, assert_status, pattern};
use guest_sim::verbs::wr;
use vrdma_abi::ring::*;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("two_tenants_on_the_same_addresses_at_the_same_time", same_addresses),
    ("a_region_of_another_tenant", foreign_region),
];

/// Blue and red, on one host and on two, all at once, with the same virtual addresses: each gets its own data only.
fn same_addresses(world: &mut World) {
    const LEN: usize = 40_000;
    const ROUNDS: u64 = 60;
    let world = &*world;
    let pairs = [("blue-1", "blue-2"), ("red-1", "red-2"), ("blue-4", "blue-3"), ("red-4", "red-3")];
    let run = |(from, to): (&'static str, &'static str), seed: u64| {
        let (a, b) = (Side::open(world, from), Side::open(world, to));
        let setup = Setup::default();
        let c = Conn { a: a.qp(&setup.caps_a, 64), b: b.qp(&setup.caps_b, 64) };
        c.a.connect(&setup.a, b.address, c.b.qpn).expect("a connects");
        c.b.connect(&setup.b, a.address, c.a.qpn).expect("b connects");
        let (here, there) = (a.buffer(LEN), b.buffer(2 * LEN));
        for round in 0..ROUNDS {
            let data = pattern(seed << 32 | round, LEN);
            here.write(0, &data);
            c.b.post_recv(round, &[there.sge(LEN, LEN)]).unwrap();
            c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[here.sge(0, LEN)]).unwrap();
            c.a.post_send(&wr::request(SEND_OP_SEND, 2), &[here.sge(0, LEN)]).unwrap();
            assert_status(&c.a.send_completion(), WC_SUCCESS);
            assert_status(&c.a.send_completion(), WC_SUCCESS);
            assert_status(&c.b.recv_completion(), WC_SUCCESS);
            assert_same(&there.read(0, LEN), &data, &format!("{from} writes to {to}"));
            assert_same(&there.read(LEN, LEN), &data, &format!("{from} sends to {to}"));
        }
        a.ctx.destroy().unwrap();
        b.ctx.destroy().unwrap();
    };
    std::thread::scope(|s| {
        for (k, pair) in pairs.into_iter().enumerate() {
            s.spawn(move || run(pair, k as u64 + 1));
        }
    });
}

/// A key of another tenant's region opens nothing, on one host and on two.
fn foreign_region(world: &mut World) {
    for (from, to, other) in [("blue-1", "blue-2", "red-2"), ("blue-1", "blue-3", "red-3")] {
        let (a, b, foreign) = (Side::open(world, from), Side::open(world, to), Side::open(world, other));
        let target = foreign.buffer(4096);
        target.write(0, b"red's own");
        let here = a.buffer(4096);
        for opcode in [SEND_OP_RDMA_READ, SEND_OP_RDMA_WRITE] {
            let setup = Setup::default();
            let c = Conn { a: a.qp(&setup.caps_a, 64), b: b.qp(&setup.caps_b, 64) };
            c.a.connect(&setup.a, b.address, c.b.qpn).unwrap();
            c.b.connect(&setup.b, a.address, c.a.qpn).unwrap();
            c.a.post_send(&wr::rdma(opcode, 1, &target, 0), &[here.sge(0, 9)]).unwrap();
            assert_status(&c.a.send_completion(), WC_REM_ACCESS_ERR);
        }
        assert_eq!(here.read(0, 9), [0; 9]);
        assert_eq!(target.read(0, 9), b"red's own");
        for side in [a, b, foreign] {
            side.ctx.destroy().unwrap();
        }
    }
}
