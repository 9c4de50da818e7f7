//! Receivers that are not ready.

use std::time::{Duration, Instant};

use guest_sim::suite::{Conn, Pair, Setup, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, wr};
use vrdma_abi::control::QP_STATE_ERR;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::Test;
use crate::matrix::Cell::Status;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("a_receive_posted_late", &[], posted_late),
        Test::new("a_receive_posted_within_the_retries", &[], posted_within_retries),
        Test::new(
            "no_receive_at_all",
            &[Status(WC_RNR_RETRY_EXC_ERR), Status(WC_WR_FLUSH_ERR)],
            never_posted,
        ),
        Test::new("no_receive_and_no_retry", &[Status(WC_RNR_RETRY_EXC_ERR)], no_retry),
        Test::new("a_burst_with_few_receives", &[], few_receives),
    ]
}

/// `min_rnr_timer` codes (IBTA Vol 1 table 45).
const RNR_0_01_MS: u8 = 1;
const RNR_0_64_MS: u8 = 12;
const RNR_20_MS: u8 = 22;

fn setup(rnr_retry: u8, timer: u8) -> Setup {
    let a = ConnectAttr { rnr_retry, ..ConnectAttr::default() };
    let b = ConnectAttr { min_rnr_timer: timer, ..ConnectAttr::default() };
    Setup { a, b, ..Setup::default() }
}

fn posted_late(p: &Pair) {
    let (here, there) = (p.a.buffer(8192), p.b.buffer(8192));
    let data = pattern(4, 5000);
    here.write(0, &data);
    for opcode in [SEND_OP_SEND, SEND_OP_RDMA_WRITE_IMM] {
        let c = p.connect_with(&setup(7, RNR_0_64_MS));
        let request = wr::rdma(opcode, 1, &there, 0);
        let request = if opcode == SEND_OP_SEND { wr::request(opcode, 1) } else { request };
        c.a.post_send(&request, &[here.sge(0, 5000)]).unwrap();
        assert!(c.a.send_cq().wait(Duration::from_millis(30)).is_none(), "nothing to receive into yet");
        let sges = [there.sge(0, 5000)];
        c.b.post_recv(9, if opcode == SEND_OP_SEND { &sges } else { &[] }).unwrap();
        assert_eq!(c.b.recv_completion().wr_id, 9);
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        assert_same(&there.read(0, 5000), &data, "received");
        there.fill(0, 5000, 0);
    }
}

fn posted_within_retries(p: &Pair) {
    let c = p.connect_with(&setup(6, RNR_20_MS));
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    here.write(0, b"late");
    c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, 4)]).unwrap();
    std::thread::sleep(Duration::from_millis(25));
    c.b.post_recv(1, &[there.sge(0, 64)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_status(&c.b.recv_completion(), WC_SUCCESS);
    assert_eq!(there.read(0, 4), b"late");
}

/// The first send fails, those behind it are flushed, the queue pair is in ERR; the peer's stays as it was.
fn exhaust(c: &Conn, here: &guest_sim::verbs::Mr) {
    for k in 0..3 {
        c.a.post_send(&wr::request(SEND_OP_SEND, k), &[here.sge(0, 4)]).unwrap();
    }
    let cqe = c.a.send_completion();
    assert_status(&cqe, WC_RNR_RETRY_EXC_ERR);
    assert_eq!(cqe.wr_id, 0);
    for k in 1..3 {
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_WR_FLUSH_ERR);
        assert_eq!(cqe.wr_id, k);
    }
    assert_eq!(c.a.state(), QP_STATE_ERR);
    assert_ne!(c.b.state(), QP_STATE_ERR);
}

fn never_posted(p: &Pair) {
    let here = p.a.buffer(64);
    let started = Instant::now();
    exhaust(&p.connect_with(&setup(3, RNR_20_MS)), &here);
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(60), "three timers of 20 ms were waited for, not {took:?}");
    exhaust(&p.connect_with(&setup(6, RNR_0_01_MS)), &here);
}

fn no_retry(p: &Pair) {
    exhaust(&p.connect_with(&setup(0, RNR_0_64_MS)), &p.a.buffer(64));
}

/// Sends, writes and reads in a burst, while receives come one by one: order must hold over each RNR NAK.
fn few_receives(p: &Pair) {
    let c = p.connect_with(&setup(7, RNR_0_01_MS));
    let (here, there) = (p.a.buffer(1 << 16), p.b.buffer(1 << 16));
    let data = pattern(12, 1 << 15);
    here.write(0, &data);
    for k in 0..20usize {
        let sge = here.sge(1000 * k, 1500);
        let send = wr::request(SEND_OP_SEND, 2 * k as u64);
        let write = wr::rdma(SEND_OP_RDMA_WRITE, 2 * k as u64 + 1, &there, 40_000);
        let write = SendRequest { flags: 0, ..write };
        c.a.post_sends(&[(send, vec![sge]), (write, vec![sge])]).unwrap();
    }
    for k in 0..20usize {
        there.fill(0, 1500, 0);
        c.b.post_recv(k as u64, &[there.sge(0, 1500)]).unwrap();
        let cqe = c.b.recv_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.wr_id, k as u64);
        assert_same(&there.read(0, 1500), &data[1000 * k..][..1500], "message");
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.wr_id, 2 * k as u64);
    }
}
