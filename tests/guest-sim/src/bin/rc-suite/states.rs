//! Queue pair states.

use std::time::Duration;

use guest_sim::suite::{Conn, Pair, Setup, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, Mr, wr};
use masq_types::Gid;
use vrdma_abi::control::*;
use vrdma_abi::event::{EVENT_COMM_EST, EVENT_SQ_DRAINED};
use vrdma_abi::ring::*;

use crate::Test;
use crate::matrix::Cell::Status;

const QUIET: Duration = Duration::from_millis(20);

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("err_flushes_both_queues", &[Status(WC_WR_FLUSH_ERR)], err_flushes),
        Test::new("err_flushes_what_is_posted_later", &[Status(WC_WR_FLUSH_ERR)], err_flushes_later),
        Test::new("sqd_drains_and_holds", &[], sqd),
        Test::new("reset_and_connect_again", &[], reset),
        Test::new("query_tells_virtual_values", &[], query),
        Test::new("illegal_transitions_change_nothing", &[], illegal),
        Test::new("attributes_out_of_range", &[], out_of_range),
        Test::new("sends_wait_for_rts", &[], sends_wait),
        Test::new("the_first_packet_in_rtr_is_an_event", &[], comm_established),
        Test::new("rights_change_in_rts", &[Status(WC_REM_INV_REQ_ERR)], rights_change),
    ]
}

fn write(c: &Conn, wr_id: u64, here: &Mr, there: &Mr, len: usize) {
    c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, wr_id, there, 0), &[here.sge(0, len)]).unwrap();
}

fn err_flushes(p: &Pair) {
    let c = p.connect();
    let (here, there) = (p.a.buffer(4096), p.b.buffer(4096));
    for k in 0..5 {
        c.a.post_recv(100 + k, &[here.sge(0, 64)]).unwrap();
    }
    // In SQD the sends wait.
    c.a.to_state(QP_STATE_SQD).unwrap();
    for k in 0..5 {
        write(&c, k, &here, &there, 64);
    }
    assert!(c.a.send_cq().wait(QUIET).is_none());
    c.a.to_state(QP_STATE_ERR).unwrap();
    for k in 0..5 {
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_WR_FLUSH_ERR);
        assert_eq!((cqe.wr_id, cqe.consumer), (k, k as u32 + 1));
        let cqe = c.a.recv_completion();
        assert_status(&cqe, WC_WR_FLUSH_ERR);
        assert_eq!((cqe.wr_id, cqe.consumer, cqe.flags & CQE_RECV), (100 + k, k as u32 + 1, CQE_RECV));
    }
    assert_eq!(c.a.state(), QP_STATE_ERR);
}

fn err_flushes_later(p: &Pair) {
    let c = p.connect();
    let (here, there) = (p.a.buffer(4096), p.b.buffer(4096));
    c.a.to_state(QP_STATE_ERR).unwrap();
    for k in 0..200 {
        c.a.post_recv(k, &[]).unwrap();
        write(&c, k, &here, &there, 64);
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_WR_FLUSH_ERR);
        assert_eq!(cqe.wr_id, k);
        let cqe = c.a.recv_completion();
        assert_status(&cqe, WC_WR_FLUSH_ERR);
        assert_eq!(cqe.wr_id, k);
    }
    // Unsignalled requests are flushed with a completion as well.
    let silent = vrdma_rings::SendRequest { flags: 0, ..wr::rdma(SEND_OP_RDMA_WRITE, 7, &there, 0) };
    c.a.post_send(&silent, &[here.sge(0, 8)]).unwrap();
    assert_status(&c.a.send_completion(), WC_WR_FLUSH_ERR);
}

fn sqd(p: &Pair) {
    const LEN: usize = 1 << 18;
    const COUNT: u64 = 40;
    let c = p.connect();
    let (here, there) = (p.a.buffer(LEN), p.b.buffer(LEN));
    here.write(0, &pattern(5, LEN));
    let posts: Vec<_> =
        (0..COUNT).map(|k| (wr::rdma(SEND_OP_RDMA_WRITE, k, &there, 0), vec![here.sge(0, LEN)])).collect();
    c.a.post_sends(&posts).unwrap();
    let notify = QpAttr { state: QP_STATE_SQD, sq_drained_notify: 1, ..QpAttr::ZERO };
    c.a.modify(QP_ATTR_STATE | QP_ATTR_EN_SQD_ASYNC_NOTIFY, notify).unwrap();
    p.a.guest.expect_event(EVENT_SQ_DRAINED, c.a.handle());
    let status = c.a.query().unwrap();
    assert_eq!((status.attr.state, status.sq_draining), (QP_STATE_SQD, 0));
    // What is done now is done, and nothing more begins.
    let mut done = 0;
    while let Some(cqe) = c.a.send_cq().poll() {
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.wr_id, done);
        c.a.retire(&cqe);
        done += 1;
    }
    there.fill(0, LEN, 0);
    write(&c, COUNT, &here, &there, LEN);
    assert!(c.a.send_cq().wait(QUIET).is_none(), "a drained queue sends nothing");
    assert_eq!(there.read(0, LEN), vec![0; LEN]);
    // As responder it goes on.
    let back = wr::rdma(SEND_OP_RDMA_READ, 1, &here, 0);
    c.b.post_send(&back, &[there.sge(0, 100)]).unwrap();
    assert_status(&c.b.send_completion(), WC_SUCCESS);
    c.a.to_state(QP_STATE_RTS).unwrap();
    for k in done..=COUNT {
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.wr_id, k);
    }
    assert_same(&there.read(0, LEN), &pattern(5, LEN), "written");
}

fn reset(p: &Pair) {
    let setup = Setup::default();
    let c = p.create(&setup);
    let (here, there) = (p.a.buffer(4096), p.b.buffer(4096));
    for round in 0..5u64 {
        c.connect(p, &setup);
        let data = pattern(round, 3000);
        here.write(0, &data);
        c.b.post_recv(round, &[there.sge(0, 3000)]).unwrap();
        c.b.post_recv(99, &[]).unwrap(); // never used, and gone with the reset
        c.a.post_send(&wr::request(SEND_OP_SEND, round), &[here.sge(0, 3000)]).unwrap();
        let cqe = c.b.recv_completion();
        assert_eq!((cqe.wr_id, cqe.consumer), (round, 1), "indexes begin anew");
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        assert_same(&there.read(0, 3000), &data, "received");
        if round % 2 == 1 {
            c.a.to_state(QP_STATE_ERR).unwrap();
        }
        for qp in [&c.a, &c.b] {
            qp.to_state(QP_STATE_RESET).unwrap();
            assert_eq!(qp.state(), QP_STATE_RESET);
        }
        assert!(c.b.recv_cq().poll().is_none(), "a reset flushes nothing");
    }
}

fn query(p: &Pair) {
    let attr = ConnectAttr {
        path_mtu: 2,
        sq_psn: 0x12_3456,
        rq_psn: 0x65_4321,
        max_rd_atomic: 3,
        max_dest_rd_atomic: 5,
        min_rnr_timer: 17,
        timeout: 15,
        retry_cnt: 4,
        rnr_retry: 2,
        access: ACCESS_REMOTE_READ,
        ..ConnectAttr::default()
    };
    let c = p.create(&Setup::default());
    assert_eq!(c.a.state(), QP_STATE_RESET);
    c.a.to_init(&attr).unwrap();
    assert_eq!(c.a.state(), QP_STATE_INIT);
    c.a.to_rtr(&attr, p.b.address, c.b.qpn).unwrap();
    assert_eq!(c.a.state(), QP_STATE_RTR);
    c.a.to_rts(&attr).unwrap();
    let got = c.a.query().unwrap().attr;
    assert_eq!(got.state, QP_STATE_RTS);
    assert_eq!(Gid(got.sgid), Gid::from(p.a.address), "our own address is the tenant's");
    assert_eq!(Gid(got.dgid), Gid::from(p.b.address), "the peer's address is the tenant's");
    assert_eq!((got.dest_qpn, got.sgid_index, got.hop_limit), (c.b.qpn, 0, 64));
    assert_eq!((got.path_mtu, got.sq_psn, got.rq_psn), (2, 0x12_3456, 0x65_4321));
    assert_eq!((got.max_rd_atomic, got.max_dest_rd_atomic), (3, 5));
    assert_eq!((got.min_rnr_timer, got.timeout, got.retry_cnt, got.rnr_retry), (17, 15, 4, 2));
    assert_eq!(got.access, ACCESS_REMOTE_READ);
}

#[track_caller]
fn refused(result: Result<(), guest_sim::ControlError>, errno: i32, what: &str) {
    let got = result.expect_err(what).errno();
    assert_eq!(got, errno, "{what}");
}

fn illegal(p: &Pair) {
    let a = ConnectAttr::default();
    let setup = Setup::default();
    let c = p.create(&setup);
    let qp = &c.a;
    let (peer, qpn) = (p.b.address, c.b.qpn);
    refused(qp.to_rtr(&a, peer, qpn), libc::EINVAL, "RESET to RTR");
    refused(qp.to_rts(&a), libc::EINVAL, "RESET to RTS");
    refused(qp.to_state(QP_STATE_SQD), libc::EINVAL, "RESET to SQD");
    refused(qp.to_state(QP_STATE_INIT), libc::EINVAL, "RESET to INIT without attributes");
    assert_eq!(qp.state(), QP_STATE_RESET);
    qp.to_init(&a).unwrap();
    refused(qp.to_rts(&a), libc::EINVAL, "INIT to RTS");
    refused(qp.to_state(QP_STATE_RTR), libc::EINVAL, "INIT to RTR without attributes");
    refused(qp.to_state(QP_STATE_SQE), libc::EINVAL, "INIT to SQE");
    assert_eq!(qp.state(), QP_STATE_INIT);
    qp.to_rtr(&a, peer, qpn).unwrap();
    refused(qp.to_init(&a), libc::EINVAL, "RTR to INIT");
    refused(qp.to_state(QP_STATE_RTS), libc::EINVAL, "RTR to RTS without attributes");
    refused(qp.to_state(QP_STATE_SQD), libc::EINVAL, "RTR to SQD");
    assert_eq!(qp.state(), QP_STATE_RTR);
    qp.to_rts(&a).unwrap();
    refused(qp.to_rtr(&a, peer, qpn), libc::EINVAL, "RTS to RTR");
    refused(qp.modify(QP_ATTR_PATH_MTU, QpAttr { path_mtu: 1, ..QpAttr::ZERO }), libc::EINVAL, "MTU in RTS");
    refused(qp.to_state(9), libc::EINVAL, "a state that does not exist");
    assert_eq!(qp.state(), QP_STATE_RTS);
    qp.to_state(QP_STATE_ERR).unwrap();
    refused(qp.to_rts(&a), libc::EINVAL, "ERR to RTS");
    refused(qp.to_init(&a), libc::EINVAL, "ERR to INIT");
    assert_eq!(qp.state(), QP_STATE_ERR);
    // The guest believes the queue pair to be in another state than it is.
    let c = p.connect();
    let mask = QP_ATTR_STATE | QP_ATTR_CUR_STATE;
    let attr = QpAttr { state: QP_STATE_RTS, cur_state: QP_STATE_SQD, ..QpAttr::ZERO };
    refused(c.a.modify(mask, attr), libc::EINVAL, "RTS to RTS, believed to be in SQD");
}

fn out_of_range(p: &Pair) {
    let good = ConnectAttr::default();
    let limits = &p.a.guest.config;
    let c = p.create(&Setup::default());
    c.a.to_init(&good).unwrap();
    for (what, bad) in [
        ("path MTU 0", ConnectAttr { path_mtu: 0, ..good.clone() }),
        ("path MTU 6", ConnectAttr { path_mtu: 6, ..good.clone() }),
        (
            "max_dest_rd_atomic",
            ConnectAttr { max_dest_rd_atomic: limits.max_dest_rd_atomic + 1, ..good.clone() },
        ),
        ("min_rnr_timer 32", ConnectAttr { min_rnr_timer: 32, ..good.clone() }),
    ] {
        refused(c.a.to_rtr(&bad, p.b.address, c.b.qpn), libc::EINVAL, what);
    }
    c.a.to_rtr(&good, p.b.address, c.b.qpn).unwrap();
    for (what, bad) in [
        ("timeout 32", ConnectAttr { timeout: 32, ..good.clone() }),
        ("retry_cnt 8", ConnectAttr { retry_cnt: 8, ..good.clone() }),
        ("rnr_retry 8", ConnectAttr { rnr_retry: 8, ..good.clone() }),
        ("max_rd_atomic", ConnectAttr { max_rd_atomic: limits.max_rd_atomic + 1, ..good.clone() }),
    ] {
        refused(c.a.to_rts(&bad), libc::EINVAL, what);
    }
    assert_eq!(c.a.state(), QP_STATE_RTR);
    c.a.to_rts(&good).unwrap();
}

/// Receives may be posted from INIT on. A send that is posted too early does nothing before RTS.
fn sends_wait(p: &Pair) {
    let setup = Setup::default();
    let c = p.create(&setup);
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    here.write(0, b"early");
    for qp in [&c.a, &c.b] {
        qp.to_init(&setup.a).unwrap();
    }
    c.b.post_recv(1, &[there.sge(0, 64)]).unwrap();
    write(&c, 1, &here, &there, 5);
    c.a.to_rtr(&setup.a, p.b.address, c.b.qpn).unwrap();
    c.b.to_rtr(&setup.b, p.a.address, c.a.qpn).unwrap();
    write(&c, 2, &here, &there, 5);
    assert!(c.a.send_cq().wait(QUIET).is_none(), "nothing completes before RTS");
    assert_eq!(there.read(0, 5), [0; 5], "nothing is sent before RTS");
    c.a.to_rts(&setup.a).unwrap();
    c.b.to_rts(&setup.b).unwrap();
    c.a.post_send(&wr::request(SEND_OP_SEND, 3), &[here.sge(0, 5)]).unwrap();
    let cqe = c.b.recv_completion();
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!((cqe.wr_id, cqe.byte_len), (1, 5));
}

fn comm_established(p: &Pair) {
    let setup = Setup::default();
    let c = p.create(&setup);
    let here = p.a.buffer(64);
    for qp in [&c.a, &c.b] {
        qp.to_init(&setup.a).unwrap();
    }
    c.b.post_recv(1, &[]).unwrap();
    c.b.to_rtr(&setup.b, p.a.address, c.a.qpn).unwrap();
    c.a.to_rtr(&setup.a, p.b.address, c.b.qpn).unwrap();
    c.a.to_rts(&setup.a).unwrap();
    c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, 0)]).unwrap();
    assert_status(&c.b.recv_completion(), WC_SUCCESS);
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    p.b.guest.expect_event(EVENT_COMM_EST, c.b.handle());
}

fn rights_change(p: &Pair) {
    let c = p.connect();
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    write(&c, 1, &here, &there, 8);
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    let attr = QpAttr { access: ACCESS_REMOTE_READ, ..QpAttr::ZERO };
    c.b.modify(QP_ATTR_ACCESS_FLAGS, attr).unwrap();
    let read = wr::rdma(SEND_OP_RDMA_READ, 2, &there, 0);
    c.a.post_send(&read, &[here.sge(0, 8)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    write(&c, 3, &here, &there, 8);
    assert_status(&c.a.send_completion(), WC_REM_INV_REQ_ERR);
}
