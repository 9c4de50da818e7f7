//! Peers that are gone: requests fail within their timeouts.

use std::time::{Duration, Instant};

use guest_sim::suite::{Conn, Pair, Setup, Side, assert_status};
use guest_sim::verbs::{ConnectAttr, Mr, wr};
use vrdma_abi::control::{QP_STATE_ERR, QP_STATE_RESET};
use vrdma_abi::ring::*;

use crate::Test;
use crate::matrix::Cell::Status;

const RETRY: &[crate::Cell] = &[Status(WC_RETRY_EXC_ERR)];

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("the_peer_queue_pair_is_destroyed", RETRY, destroyed),
        Test::new("the_peer_queue_pair_is_in_another_state", RETRY, other_state),
        Test::new("the_peer_queue_pair_is_connected_elsewhere", RETRY, connected_elsewhere),
        Test::new("the_peer_process_ends", RETRY, process_ends),
        Test::new("the_peer_guest_dies_while_data_flows", RETRY, guest_dies),
        Test::new("a_timeout_of_0_waits_without_end", &[], no_timeout),
    ]
}

/// 4.096 µs · 2^11 = 8.4 ms, three times.
fn quick() -> Setup {
    Setup::attr(ConnectAttr { timeout: 11, retry_cnt: 2, ..ConnectAttr::default() })
}

/// The peer does not answer: the request fails after its retries, and not much later; the rest is flushed.
#[track_caller]
fn unanswered(c: &Conn, here: &Mr) {
    let started = Instant::now();
    for k in 0..3 {
        c.a.post_send(&wr::request(SEND_OP_SEND, k), &[here.sge(0, 8)]).unwrap();
    }
    let cqe = c.a.send_completion();
    let took = started.elapsed();
    assert_status(&cqe, WC_RETRY_EXC_ERR);
    assert_eq!(cqe.wr_id, 0);
    for k in 1..3 {
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_WR_FLUSH_ERR);
        assert_eq!(cqe.wr_id, k);
    }
    assert_eq!(c.a.state(), QP_STATE_ERR);
    let (least, most) = (Duration::from_millis(3 * 8), Duration::from_secs(2));
    assert!(took >= least && took < most, "{took:?} for three timeouts of 8.4 ms");
}

fn destroyed(p: &Pair) {
    let c = p.connect_with(&quick());
    c.b.destroy().unwrap();
    unanswered(&c, &p.a.buffer(64));
}

fn other_state(p: &Pair) {
    let here = p.a.buffer(64);
    for state in [QP_STATE_ERR, QP_STATE_RESET] {
        let c = p.connect_with(&quick());
        c.b.to_state(state).unwrap();
        unanswered(&c, &here);
    }
}

/// The peer's queue pair exists and works, but for somebody else.
fn connected_elsewhere(p: &Pair) {
    let setup = quick();
    let friend = p.connect_with(&setup);
    let here = p.a.buffer(64);
    let intruder = p.a.qp(&setup.caps_a, 64);
    intruder.connect(&setup.a, p.b.address, friend.b.qpn).unwrap();
    friend.b.post_recv(1, &[]).unwrap();
    unanswered(&Conn { a: intruder, b: friend.b.clone() }, &here);
    friend.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, 0)]).unwrap();
    assert_status(&friend.b.recv_completion(), WC_SUCCESS);
    assert_status(&friend.a.send_completion(), WC_SUCCESS);
}

/// A process ends with its queue pairs open.
fn process_ends(p: &Pair) {
    let setup = quick();
    let ctx = p.b.guest.open().unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let b = Side { guest: p.b.guest.clone(), ctx: ctx.clone(), pd, address: p.b.address };
    let c = Conn { a: p.a.qp(&setup.caps_a, 64), b: b.qp(&setup.caps_b, 64) };
    c.connect(p, &setup);
    ctx.destroy().unwrap();
    unanswered(&c, &p.a.buffer(64));
}

fn guest_dies(p: &Pair) {
    const LEN: usize = 100_000;
    let setup = quick();
    let vnic = p.placement.spare_vnic();
    let here = p.a.buffer(LEN);
    let c = {
        let victim = Side::open(p.world, vnic);
        let there = victim.buffer(LEN);
        let b = victim.qp(&setup.caps_b, 64);
        let a = p.a.qp(&setup.caps_a, 64);
        a.connect(&setup.a, victim.address, b.qpn).unwrap();
        b.connect(&setup.b, p.a.address, a.qpn).unwrap();
        for k in 0..60 {
            a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, k, &there, 0), &[here.sge(0, LEN)]).unwrap();
        }
        assert_status(&a.send_completion(), WC_SUCCESS);
        p.world.stop_guest(vnic);
        a
    };
    // Its last handle went with the block above: the connection to masqd is closed.
    let mut statuses = Vec::new();
    for _ in 1..60 {
        statuses.push(c.send_completion().status);
    }
    let failed = statuses.iter().position(|&s| s != WC_SUCCESS);
    if let Some(at) = failed {
        assert_eq!(statuses[at], WC_RETRY_EXC_ERR);
        assert!(statuses[at + 1..].iter().all(|&s| s == WC_WR_FLUSH_ERR));
    } else {
        // It was quicker than the guest's end; the next one is not.
        c.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, 8)]).unwrap();
        assert_status(&c.send_completion(), WC_RETRY_EXC_ERR);
    }
    // The vNIC takes a new guest.
    let again = Side::open(p.world, vnic);
    let (a, b) = (p.a.qp(&setup.caps_a, 64), again.qp(&setup.caps_b, 64));
    a.connect(&setup.a, again.address, b.qpn).unwrap();
    b.connect(&setup.b, p.a.address, a.qpn).unwrap();
    b.post_recv(1, &[]).unwrap();
    a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, 0)]).unwrap();
    assert_status(&a.send_completion(), WC_SUCCESS);
    again.ctx.destroy().unwrap();
}

fn no_timeout(p: &Pair) {
    let attr = ConnectAttr { timeout: 0, retry_cnt: 1, ..ConnectAttr::default() };
    let c = p.connect_with(&Setup::attr(attr));
    c.b.to_state(QP_STATE_ERR).unwrap();
    let here = p.a.buffer(64);
    c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, 8)]).unwrap();
    assert!(c.a.send_cq().wait(Duration::from_millis(100)).is_none(), "a timeout of 0 means none");
    c.a.to_state(QP_STATE_ERR).unwrap();
    assert_status(&c.a.send_completion(), WC_WR_FLUSH_ERR);
}
