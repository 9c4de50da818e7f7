//! How many reads and atomics may be on their way.

use guest_sim::suite::{Pair, Setup, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, wr};
use vrdma_abi::event::EVENT_QP_REQ_ERR;
use vrdma_abi::ring::*;

use crate::Test;
use crate::matrix::Cell::{Op, Status};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("one_read_at_a_time", &[Op(SEND_OP_RDMA_READ)], |p| many_reads(p, 1)),
        Test::new("sixteen_reads_at_a_time", &[Op(SEND_OP_RDMA_READ)], |p| many_reads(p, 16)),
        Test::new("reads_of_a_queue_pair_without_depth", &[Status(WC_LOC_QP_OP_ERR)], no_initiator_depth),
        Test::new("reads_from_a_queue_pair_without_depth", &[Status(WC_REM_INV_REQ_ERR)], no_responder_depth),
    ]
}

fn depth(initiator: u8, responder: u8) -> Setup {
    let a = ConnectAttr { max_rd_atomic: initiator, ..ConnectAttr::default() };
    let b = ConnectAttr { max_dest_rd_atomic: responder, ..ConnectAttr::default() };
    Setup { a, b, ..Setup::default() }
}

/// Many more reads and atomics than may be outstanding, mixed with writes.
fn many_reads(p: &Pair, limit: u8) {
    let c = p.connect_with(&depth(limit, limit));
    let (here, there) = (p.a.buffer(1 << 18), p.b.buffer(1 << 18));
    const LEN: usize = 4000;
    let data = pattern(u64::from(limit), 1 << 17);
    there.write(0, &data);
    let mut posted = Vec::new();
    for k in 0..60usize {
        posted.push(match k % 4 {
            3 => (
                wr::atomic(SEND_OP_FETCH_ADD, k as u64, &there, 200_000, 1, 0),
                vec![here.sge(250_000 + 8 * k, 8)],
            ),
            2 => (wr::rdma(SEND_OP_RDMA_WRITE, k as u64, &there, 210_000), vec![here.sge(0, LEN)]),
            _ => (wr::rdma(SEND_OP_RDMA_READ, k as u64, &there, 2000 * k), vec![here.sge(LEN * k, LEN)]),
        });
    }
    c.a.post_sends(&posted).unwrap();
    for k in 0..60 {
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.wr_id, k);
    }
    for k in 0..60usize {
        match k % 4 {
            3 => assert_eq!(here.read_u64(250_000 + 8 * k), k as u64 / 4),
            2 => {}
            _ => assert_same(&here.read(LEN * k, LEN), &data[2000 * k..][..LEN], &format!("read {k}")),
        }
    }
    assert_eq!(there.read_u64(200_000), 15);
}

fn no_initiator_depth(p: &Pair) {
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    let read = wr::rdma(SEND_OP_RDMA_READ, 1, &there, 0);
    let atomic = wr::atomic(SEND_OP_FETCH_ADD, 1, &there, 0, 1, 0);
    for request in [read, atomic] {
        let c = p.connect_with(&depth(0, 16));
        c.a.post_send(&request, &[here.sge(0, 8)]).unwrap();
        assert_status(&c.a.send_completion(), WC_LOC_QP_OP_ERR);
    }
    assert_eq!(there.read_u64(0), 0);
}

fn no_responder_depth(p: &Pair) {
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    let read = wr::rdma(SEND_OP_RDMA_READ, 1, &there, 0);
    let atomic = wr::atomic(SEND_OP_FETCH_ADD, 1, &there, 0, 1, 0);
    for request in [read, atomic] {
        let c = p.connect_with(&depth(16, 0));
        c.a.post_send(&request, &[here.sge(0, 8)]).unwrap();
        assert_status(&c.a.send_completion(), WC_REM_INV_REQ_ERR);
        p.b.guest.expect_event(EVENT_QP_REQ_ERR, c.b.handle());
    }
    assert_eq!(there.read_u64(0), 0);
}
