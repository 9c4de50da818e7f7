//! Shared receive queues that must not be used, and queue pairs that fail on one.

use std::time::Duration;

use guest_sim::ControlError;
use guest_sim::suite::{Pair, Setup, assert_status};
use guest_sim::verbs::{ConnectAttr, QpCaps, wr};
use vrdma_abi::control::*;
use vrdma_abi::event::EVENT_QP_LAST_WQE;
use vrdma_abi::ring::*;

use crate::Test;
use crate::srq::Shared;

pub const TESTS: &[Test] = &[
    ("the_last_receive_of_a_queue_pair_is_told", last_wqe),
    ("a_receive_too_short_in_a_shared_queue", too_short),
    ("a_shared_receive_with_a_key_of_another_domain", foreign_key),
    ("shared_queues_of_others_cannot_be_joined", foreign_queues),
    ("shared_queues_in_use_stay", in_use),
    ("shared_queues_that_cannot_be", impossible),
];

fn errno<T>(result: Result<T, ControlError>) -> i32 {
    result.err().expect("refused").errno()
}

/// A queue pair that fails, by itself or by command, leaves the receives to the others, and says that it takes no more.
fn last_wqe(p: &Pair) {
    let s = Shared::connect(p, 16, 3, &ConnectAttr { timeout: 10, retry_cnt: 1, ..ConnectAttr::default() });
    let here = p.a.buffer(64);
    for k in 0..4 {
        s.srq.post_recv(k, &[]).unwrap();
    }
    s.conns[0].b.to_state(QP_STATE_ERR).unwrap();
    p.b.guest.expect_event(EVENT_QP_LAST_WQE, s.conns[0].b.handle());
    // A request that the receiver refuses.
    let there = p.b.pd.buffer_with(64, 0).unwrap();
    let write = wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0);
    s.conns[1].a.post_send(&write, &[here.sge(0, 8)]).unwrap();
    assert_status(&s.conns[1].a.send_completion(), WC_REM_ACCESS_ERR);
    p.b.guest.expect_event(EVENT_QP_LAST_WQE, s.conns[1].b.handle());
    assert!(s.cq.wait(Duration::from_millis(20)).is_none(), "receives of a shared queue are not flushed");
    for k in 0..4 {
        let request = wr::request(SEND_OP_SEND, k);
        s.conns[2].a.post_send(&request, &[here.sge(0, 0)]).unwrap();
        assert_status(&s.conns[2].a.send_completion(), WC_SUCCESS);
        let (n, cqe) = s.received();
        assert_eq!((n, cqe.wr_id), (2, k));
    }
}

/// The message's queue pair fails with the receive that it took; the queue and its other users go on.
fn too_short(p: &Pair) {
    let s = Shared::connect(p, 16, 2, &ConnectAttr::default());
    let (here, there) = (p.a.buffer(8192), p.b.buffer(8192));
    s.srq.post_recv(1, &[there.sge(0, 100)]).unwrap();
    s.srq.post_recv(2, &[there.sge(0, 8192)]).unwrap();
    let send = wr::request(SEND_OP_SEND, 7);
    s.conns[0].a.post_send(&send, &[here.sge(0, 5000)]).unwrap();
    let (n, cqe) = s.received();
    assert_status(&cqe, WC_LOC_LEN_ERR);
    assert_eq!((n, cqe.wr_id), (0, 1));
    assert_status(&s.conns[0].a.send_completion(), WC_REM_INV_REQ_ERR);
    p.b.guest.expect_event(EVENT_QP_LAST_WQE, s.conns[0].b.handle());
    s.conns[1].a.post_send(&send, &[here.sge(0, 5000)]).unwrap();
    assert_status(&s.conns[1].a.send_completion(), WC_SUCCESS);
    assert_eq!(s.received().1.wr_id, 2);
}

/// Receives are checked against the domain of the queue.
fn foreign_key(p: &Pair) {
    let s = Shared::connect(p, 16, 1, &ConnectAttr::default());
    let here = p.a.buffer(64);
    let foreign = p.b.ctx.alloc_pd().unwrap().buffer(64).unwrap();
    s.srq.post_recv(1, &[foreign.sge(0, 64)]).unwrap();
    s.conns[0].a.post_send(&wr::request(SEND_OP_SEND, 7), &[here.sge(0, 64)]).unwrap();
    assert_status(&s.received().1, WC_LOC_PROT_ERR);
    assert_status(&s.conns[0].a.send_completion(), WC_REM_OP_ERR);
    assert_eq!(foreign.read(0, 64), [0; 64]);
}

fn foreign_queues(p: &Pair) {
    let other = p.b.guest.open().unwrap();
    let of_other = other.alloc_pd().unwrap().create_srq(16, 1).unwrap();
    let cq = p.b.ctx.create_cq(64, 0).unwrap();
    assert_eq!(errno(p.b.pd.create_qp(&cq, &cq, &QpCaps::on(&of_other))), libc::EINVAL, "another process's");
    let own = p.b.pd.create_srq(16, 1).unwrap();
    p.b.pd.create_qp(&cq, &cq, &QpCaps::on(&own)).expect("its own");
    own.destroy().expect_err("it is in use");
    other.destroy().unwrap();
    assert_eq!(errno(p.b.pd.create_qp(&cq, &cq, &QpCaps::on(&of_other))), libc::ENOENT, "one that is gone");
}

fn in_use(p: &Pair) {
    let srq = p.b.pd.create_srq(16, 1).unwrap();
    let qp = p.b.qp(&QpCaps::on(&srq), 64);
    assert_eq!(errno(srq.destroy()), libc::EBUSY);
    qp.destroy().unwrap();
    srq.destroy().unwrap();
    srq.destroy().expect("what is gone is destroyed");
    assert_eq!(errno(srq.modify(1)), libc::ENOENT);
    assert_eq!(errno(srq.limit()), libc::ENOENT);
    let in_domain = p.b.ctx.alloc_pd().unwrap();
    let srq = in_domain.create_srq(16, 1).unwrap();
    assert_eq!(errno(in_domain.destroy()), libc::EBUSY, "the domain of a queue");
    srq.destroy().unwrap();
    in_domain.destroy().unwrap();
}

fn impossible(p: &Pair) {
    let config = &p.b.guest.config;
    assert!(config.max_srqs > 0 && config.max_srq_wr > 0 && config.max_srq_sge > 0, "{config:?}");
    assert_eq!(errno(p.b.pd.create_srq(config.max_srq_wr + 1, 1)), libc::EINVAL);
    assert_eq!(errno(p.b.pd.create_srq(16, config.max_srq_sge + 1)), libc::EINVAL);
    let srq = p.b.pd.create_srq(config.max_srq_wr, 1).expect("the largest");
    assert_eq!(errno(srq.modify(config.max_srq_wr + 1)), libc::EINVAL, "a limit beyond the queue");
    // The most scatter/gather entries are of use.
    let srq = p.b.pd.create_srq(16, config.max_srq_sge).unwrap();
    let c = p.connect_with(&Setup { caps_b: QpCaps::on(&srq), ..Setup::default() });
    let (here, there) = (p.a.buffer(4096), p.b.buffer(4096));
    here.fill(0, 4096, 0x5a);
    let pieces = usize::from(config.max_srq_sge);
    let sges: Vec<_> = (0..pieces).map(|k| there.sge(8 * k, 7)).collect();
    srq.post_recv(1, &sges).unwrap();
    c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, 7 * pieces)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    for k in 0..pieces {
        assert_eq!(there.read(8 * k, 8), [0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0]);
    }
}
