//! What waits for what.

use std::time::Duration;

use guest_sim::suite::{World, assert_same, assert_status, pattern};
use guest_sim::verbs::wr;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::{Ends, Test, chunk, post_message};

pub const TESTS: &[Test] = &[
    ("completions_come_in_the_order_of_the_requests", completions),
    ("a_send_comes_after_the_chunks_that_it_waits_for", send_after_chunks),
    ("a_chunk_waits_for_chunks", after_chunk),
    ("a_chunk_waits_for_requests", after_request),
];

const BYTES: usize = 2 << 20;

fn completions(world: &World) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    let c = e.connect();
    for round in 0..8u64 {
        for id in [4 * round, 4 * round + 2] {
            post_message(&c, SEND_OP_RDMA_WRITE, id, (&here, &there), 0, 500_000);
            c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, id + 1, &there, 0), &[here.sge(0, 8)]).unwrap();
        }
        for id in 4 * round..4 * round + 4 {
            let cqe = c.a.send_completion();
            assert_status(&cqe, WC_SUCCESS);
            assert_eq!(cqe.wr_id, id);
        }
    }
}

/// When the receive is there, so is the data.
fn send_after_chunks(world: &World) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    let c = e.connect();
    for round in 0..20 {
        let data = pattern(round, BYTES);
        here.write(0, &data);
        c.b.post_recv(round, &[there.sge(BYTES - 8, 8)]).unwrap();
        let mut until = 0;
        for at in (0..BYTES - 4096).step_by(crate::CHUNK) {
            let (request, sge) =
                chunk(SEND_OP_RDMA_WRITE, &here, &there, at, crate::CHUNK.min(BYTES - 8 - at));
            until = c.a.post_chunk(&request, &[sge]).unwrap();
        }
        c.a.post_wait(round, until).unwrap();
        c.a.post_send(&wr::request(SEND_OP_SEND, round), &[here.sge(BYTES - 8, 8)]).unwrap();
        assert_status(&c.b.recv_completion(), WC_SUCCESS);
        assert_same(&there.read(0, BYTES), &data, "what the receive tells of");
        assert_status(&c.a.send_completion(), WC_SUCCESS);
    }
}

/// A small chunk over the end of a large one: without waiting it would be there first.
fn after_chunk(world: &World) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(2 * BYTES), e.b.buffer(2 * BYTES));
    let c = e.connect();
    for round in 0..10 {
        here.write(0, &pattern(round, 2 * BYTES));
        // One path takes two: this one and the long one. The short one is left to another.
        let (request, sge) = chunk(SEND_OP_RDMA_WRITE, &here, &there, BYTES + 4096, 8);
        c.a.post_chunk(&request, &[sge]).unwrap();
        let (request, sge) = chunk(SEND_OP_RDMA_WRITE, &here, &there, 0, BYTES);
        let first = c.a.post_chunk(&request, &[sge]).unwrap();
        let after = SendRequest {
            flags: SEND_AFTER_CHUNK,
            imm_or_inv: first,
            ..wr::rdma(SEND_OP_RDMA_WRITE, 0, &there, BYTES - 64)
        };
        let until = c.a.post_chunk(&after, &[here.sge(BYTES, 64)]).unwrap();
        c.a.post_wait(round, until).unwrap();
        c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, round, &there, BYTES), &[here.sge(0, 8)]).unwrap();
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        let data = pattern(round, 2 * BYTES);
        assert_same(&there.read(BYTES - 64, 64), &data[BYTES..BYTES + 64], "the second");
        assert_same(&there.read(0, BYTES - 64), &data[..BYTES - 64], "the first");
    }
}

/// A chunk that waits for a send whose receive comes late.
fn after_request(world: &World) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    let c = e.connect();
    here.write(0, &pattern(1, BYTES));
    let after = SendRequest {
        flags: SEND_AFTER_SQ,
        ..wr::rdma(SEND_OP_RDMA_WRITE, u64::from(c.a.send_index()) + 1, &there, 0)
    };
    c.a.post_chunk(&after, &[here.sge(0, 4096)]).unwrap();
    c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, 8)]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(c.a.chunk_indexes(), (1, 0));
    assert_eq!(there.read(0, 4096), vec![0; 4096]);
    c.b.post_recv(1, &[there.sge(BYTES - 8, 8)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    c.a.post_wait(2, 1).unwrap();
    c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 2, &there, 8192), &[here.sge(0, 8)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_same(&there.read(0, 4096), &pattern(1, BYTES)[..4096], "the chunk");
}
