//! Chunks that fail, guests that mean no good.

use guest_sim::suite::{Conn, Rng, World, assert_same, assert_status, pattern};
use guest_sim::verbs::wr;
use vrdma_abi::control::QP_STATE_ERR;
use vrdma_abi::event::{EVENT_QP_ACCESS_ERR, EVENT_QP_FATAL};
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::{Ends, Test, chunk, post_message};

pub const TESTS: &[Test] = &[
    ("a_refused_chunk_fails_the_group_in_order", refused),
    ("a_chunk_of_memory_that_is_not_registered", unregistered),
    ("entries_that_are_no_chunks", no_chunks),
    ("a_chunk_ring_that_jumps", jumps),
    ("a_wait_for_chunks_that_never_come", waits_forever),
    ("chunk_rings_full_of_noise", noise),
];

const BYTES: usize = 1 << 20;

fn statuses(c: &Conn, expected: &[(u64, u8)]) {
    for (wr_id, status) in expected {
        let cqe = c.a.send_completion();
        assert_status(&cqe, *status);
        assert_eq!(cqe.wr_id, *wr_id);
    }
}

fn refused(world: &World) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ] {
        for place in 0..5 {
            let c = e.connect();
            e.b.guest.drain_events();
            post_message(&c, SEND_OP_RDMA_WRITE, 1, (&here, &there), 0, BYTES);
            statuses(&c, &[(1, WC_SUCCESS)]);
            for i in 0..8 {
                let (request, sge) = chunk(opcode, &here, &there, 0, crate::CHUNK);
                let rkey = if i == place { request.rkey ^ 0x100 } else { request.rkey };
                c.a.post_chunk(&SendRequest { rkey, ..request }, &[sge]).unwrap();
            }
            c.a.post_wait(2, c.a.chunk_indexes().0).unwrap();
            for id in [3, 4] {
                let small = wr::rdma(SEND_OP_RDMA_WRITE, id, &there, 0);
                c.a.post_send(&small, &[here.sge(0, 8)]).unwrap();
            }
            statuses(&c, &[(3, WC_REM_ACCESS_ERR), (4, WC_WR_FLUSH_ERR)]);
            e.b.guest.expect_event(EVENT_QP_ACCESS_ERR, c.b.handle());
            assert_eq!((c.a.state(), c.b.state()), (QP_STATE_ERR, QP_STATE_ERR));
        }
    }
}

fn unregistered(world: &World) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(4096), e.b.buffer(4096));
    let c = e.connect();
    let (request, sge) = chunk(SEND_OP_RDMA_WRITE, &here, &there, 0, 8192);
    c.a.post_chunk(&request, &[sge]).unwrap();
    c.a.post_wait(1, 1).unwrap();
    c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[here.sge(0, 8)]).unwrap();
    statuses(&c, &[(1, WC_LOC_PROT_ERR)]);
    assert_eq!(c.a.state(), QP_STATE_ERR);
}

fn no_chunks(world: &World) {
    let e = Ends::of(world, "red-1", "red-3");
    let (here, there) = (e.a.buffer(4096), e.b.buffer(4096));
    let cases = [
        (SEND_OP_WAIT, 0),
        (SEND_OP_SEND, 0),
        (SEND_OP_RDMA_WRITE_IMM, 0),
        (SEND_OP_FETCH_ADD, 0),
        (SEND_OP_REG_MR, 0),
        (0x7f, 0),
        (SEND_OP_RDMA_WRITE, SEND_SIGNALED),
        (SEND_OP_RDMA_WRITE, SEND_STEERED),
    ];
    for (opcode, flags) in cases {
        let c = e.connect();
        let (request, sge) = chunk(opcode, &here, &there, 0, 64);
        c.a.post_chunk(&SendRequest { flags, ..request }, &[sge]).unwrap();
        c.a.post_wait(1, 1).unwrap();
        c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[here.sge(0, 8)]).unwrap();
        statuses(&c, &[(1, WC_LOC_QP_OP_ERR)]);
    }
    // And what only a chunk ring knows, in a send queue.
    for (opcode, flags) in [
        (SEND_OP_RDMA_WRITE, SEND_AFTER_CHUNK),
        (SEND_OP_RDMA_WRITE, SEND_AFTER_SQ),
        (SEND_OP_STEER, 0),
        (SEND_OP_WAIT, SEND_SIGNALED),
    ] {
        let c = e.connect();
        let (request, _) = chunk(opcode, &here, &there, 0, 64);
        c.a.post_send(&SendRequest { flags, wr_id: 1, ..request }, &[]).unwrap();
        statuses(&c, &[(1, WC_LOC_QP_OP_ERR)]);
    }
}

fn jumps(world: &World) {
    let e = Ends::of(world, "red-1", "red-3");
    for jump in [65u32, 1 << 20, u32::MAX] {
        let c = e.connect();
        e.a.guest.drain_events();
        c.a.chunk_memory().write(0, &jump.to_ne_bytes());
        c.a.ring_doorbell();
        e.a.guest.expect_event(EVENT_QP_FATAL, c.a.handle());
        assert_eq!(c.a.state(), QP_STATE_ERR);
    }
}

/// It holds its queue pair up, and nobody and nothing else.
fn waits_forever(world: &World) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    let stuck: Vec<Conn> = (0..4).map(|_| e.connect()).collect();
    for (c, until) in stuck.iter().zip([1, 65, 1000, (1 << 31) - 1]) {
        c.a.post_wait(1, until).unwrap();
        c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 2, &there, 0), &[here.sge(0, 8)]).unwrap();
    }
    let c = e.connect();
    post_message(&c, SEND_OP_RDMA_WRITE, 1, (&here, &there), 0, BYTES);
    statuses(&c, &[(1, WC_SUCCESS)]);
    for c in &stuck {
        assert!(c.a.send_cq().poll().is_none());
        c.a.destroy().expect("DESTROY_QP");
    }
}

/// Random bytes in the chunk ring, its header and the send queue, again and again, beside a connection whose data must stay right.
fn noise(world: &World) {
    let victim = Ends::open(world);
    let (here, there) = (victim.a.buffer(BYTES), victim.b.buffer(BYTES));
    let c = victim.connect();
    let e = Ends::of(world, "red-1", "red-3");
    let mut rng = Rng::new(99);
    for round in 0..40 {
        let hostile = e.connect();
        for memory in [hostile.a.chunk_memory(), hostile.a.sq_memory()] {
            memory.write(64, &rng.bytes(memory.len() - 64));
            memory.write(0, &(1 + rng.below(64) as u32).to_ne_bytes());
        }
        hostile.a.ring_doorbell();
        let data = pattern(round, BYTES);
        here.write(0, &data);
        post_message(&c, SEND_OP_RDMA_WRITE, round, (&here, &there), 0, BYTES);
        statuses(&c, &[(round, WC_SUCCESS)]);
        assert_same(&there.read(0, BYTES), &data, "the victim's data");
        hostile.a.destroy().expect("DESTROY_QP");
        hostile.b.destroy().expect("DESTROY_QP");
    }
    assert!(world.cluster.masqd_runs(1) && world.cluster.masqd_runs(2));
}
