//! Peers towards whom there is one path: connections as any other, and masqd says why.

use guest_sim::suite::{Setup, World, assert_same, assert_status, pattern};
use guest_sim::verbs::{QpCaps, wr};
use vrdma_abi::ring::*;

use crate::{Ends, Test};

pub const TESTS: &[Test] = &[
    ("a_peer_with_one_path", peer),
    ("a_peer_on_the_same_host", local),
    ("a_peer_whose_queue_pair_is_an_ordinary_one", plain),
    ("a_vnic_with_one_path_has_no_groups", refused),
];

const BYTES: usize = 1 << 20;

/// What is posted to the send queue alone works, and is right; a WAIT is no request that the queue pair knows.
fn works(e: &Ends, caps_a: QpCaps, caps_b: QpCaps) {
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    let setup = Setup { caps_a, caps_b, ..Setup::default() };
    let c = e.connect_with(&setup);
    assert_eq!(c.a.paths(), 1);
    here.write(0, &pattern(1, BYTES));
    for (id, opcode) in [(1, SEND_OP_RDMA_WRITE), (2, SEND_OP_RDMA_READ)] {
        c.a.post_send(&wr::rdma(opcode, id, &there, 0), &[here.sge(0, BYTES)]).unwrap();
        assert_status(&c.a.send_completion(), WC_SUCCESS);
    }
    assert_same(&there.read(0, BYTES), &pattern(1, BYTES), "the message");
    c.a.post_wait(3, 0).unwrap();
    assert_status(&c.a.send_completion(), WC_LOC_QP_OP_ERR);
}

/// Two connections, and one line in the log.
fn told_once(world: &World, e: &Ends, caps_b: &QpCaps, peer: &str, why: &str) {
    let before = world.cluster.log(1).len();
    let peer = format!("peer={peer}");
    let line = ["one path is used", &peer, why];
    for _ in 0..2 {
        works(e, QpCaps::multipath(), caps_b.clone());
    }
    world.cluster.expect_log(1, before, &line);
    let log = world.cluster.log(1);
    let lines = log[before..].lines().filter(|l| line.iter().all(|word| l.contains(word)));
    assert_eq!(lines.count(), 1, "{}", &log[before..]);
}

fn peer(world: &World) {
    let e = Ends::of(world, "blue-1", "blue-5");
    told_once(world, &e, &QpCaps::default(), "blue-5", "no second underlay address");
}

fn local(world: &World) {
    let e = Ends::of(world, "blue-1", "blue-2");
    told_once(world, &e, &QpCaps::multipath(), "blue-2", "on the same host");
}

fn plain(world: &World) {
    let e = Ends::open(world);
    told_once(world, &e, &QpCaps::default(), "blue-3", "not one with several paths");
    // The other way round it is the ordinary one's own affair.
    let (here, there) = (e.b.buffer(4096), e.a.buffer(4096));
    let setup = Setup { caps_a: QpCaps::multipath(), ..Setup::default() };
    let c = e.connect_with(&setup);
    c.b.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[here.sge(0, 4096)]).unwrap();
    assert_status(&c.b.send_completion(), WC_SUCCESS);
}

fn refused(world: &World) {
    let e = Ends::of(world, "blue-5", "blue-1");
    let Err(refusal) = e.a.try_qp(&QpCaps::multipath(), 64) else { panic!("it is created") };
    assert_eq!(refusal.errno(), libc::EOPNOTSUPP);
}
