//! Many queue pairs, long runs over small rings, rings that overrun, numbers that wrap.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_sim::suite::{Conn, Pair, Setup, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, Qp, QpCaps, wr};
use vrdma_abi::control::QP_STATE_ERR;
use vrdma_abi::event::{EVENT_CQ_ERR, EVENT_QP_FATAL};
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::Test;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("two_hundred_queue_pairs_at_once", &[], many),
        Test::new("thousands_of_operations_over_small_rings", &[], small_rings),
        Test::new("a_completion_queue_that_overruns", &[], overrun),
        Test::new("packet_numbers_that_wrap", &[], psn_wrap),
        Test::new("both_directions_at_once", &[], both_directions),
        Test::new("objects_come_and_go", &[], come_and_go),
    ]
}

fn many(p: &Pair) {
    const COUNT: usize = 200;
    const LEN: usize = 3000;
    let setup = Setup::default();
    let (cq_a, cq_b) = (p.a.ctx.create_cq(4096, 0).unwrap(), p.b.ctx.create_cq(4096, 0).unwrap());
    let conns: Vec<Conn> = (0..COUNT)
        .map(|_| {
            let a = p.a.pd.create_qp(&cq_a, &cq_a, &setup.caps_a).unwrap();
            let b = p.b.pd.create_qp(&cq_b, &cq_b, &setup.caps_b).unwrap();
            let c = Conn { a, b };
            c.connect(p, &setup);
            c
        })
        .collect();
    let (here, there) = (p.a.buffer(COUNT * LEN), p.b.buffer(COUNT * LEN));
    let data = pattern(3, COUNT * LEN);
    here.write(0, &data);
    for (k, c) in conns.iter().enumerate() {
        c.b.post_recv(k as u64, &[]).unwrap();
        let write = SendRequest { flags: 0, ..wr::rdma(SEND_OP_RDMA_WRITE, 0, &there, k * LEN) };
        let send = wr::request(SEND_OP_SEND, k as u64);
        c.a.post_sends(&[(write, vec![here.sge(k * LEN, LEN)]), (send, vec![])]).unwrap();
    }
    // Each queue pair's completion, in any order among them.
    for (cq, flags) in [(&cq_b, CQE_RECV), (&cq_a, 0)] {
        let mut cookies: HashMap<u32, u64> = conns
            .iter()
            .enumerate()
            .map(|(k, c)| (if flags == 0 { c.a.cookie } else { c.b.cookie }, k as u64))
            .collect();
        for _ in 0..COUNT {
            let cqe = cq.wait(Duration::from_secs(10)).expect("a completion of each");
            assert_status(&cqe, WC_SUCCESS);
            assert_eq!(cookies.remove(&cqe.cookie), Some(cqe.wr_id), "{cqe:?}");
        }
    }
    assert_same(&there.read(0, COUNT * LEN), &data, "written");
}

fn small_rings(p: &Pair) {
    const OPS: u64 = 4000;
    let caps = QpCaps { send_wr: 8, recv_wr: 16, ..QpCaps::default() };
    let c = p.connect_with(&Setup { cqe: 32, ..Setup::caps(caps) });
    let there = p.b.buffer(16 * 64);
    let recv = |k: u64| c.b.post_recv(k, &[there.sge(64 * (k % 16) as usize, 64)]).unwrap();
    (0..16).for_each(recv);
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    let deadline = Instant::now() + Duration::from_secs(20);
    while received < OPS || sent < OPS {
        assert!(Instant::now() < deadline, "stuck at {posted} posted, {sent} sent, {received} received");
        while posted < OPS && c.a.send_room() > 0 {
            let data = (posted as u32).to_le_bytes();
            c.a.post_inline(&wr::request(SEND_OP_SEND, posted), &data).unwrap();
            posted += 1;
        }
        while let Some(cqe) = c.a.send_cq().poll() {
            assert_status(&cqe, WC_SUCCESS);
            assert_eq!((cqe.wr_id, cqe.consumer), (sent, sent as u32 + 1));
            c.a.retire(&cqe);
            sent += 1;
        }
        while let Some(cqe) = c.b.recv_cq().poll() {
            assert_status(&cqe, WC_SUCCESS);
            assert_eq!((cqe.wr_id, cqe.byte_len), (received, 4));
            let data = there.read(64 * (received % 16) as usize, 4);
            assert_eq!(data, (received as u32).to_le_bytes());
            c.b.retire(&cqe);
            recv(received + 16);
            received += 1;
        }
        // On few cores a guest that spins keeps masqd from running.
        std::thread::sleep(Duration::from_micros(10));
    }
}

fn overrun(p: &Pair) {
    let c = p.connect_with(&Setup { cqe: 4, ..Setup::default() });
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    for k in 0..10 {
        c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, k, &there, 0), &[here.sge(0, 8)]).unwrap();
    }
    let of_queue = (EVENT_CQ_ERR, c.a.send_cq().handle());
    p.a.guest.expect_events(&[of_queue, (EVENT_QP_FATAL, c.a.handle())]);
    assert_eq!(c.a.state(), QP_STATE_ERR);
    for k in 0..4 {
        let cqe = c.a.send_cq().poll().expect("what fitted is there");
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.wr_id, k);
    }
}

fn psn_wrap(p: &Pair) {
    let attr = |sq_psn, rq_psn| ConnectAttr { sq_psn, rq_psn, path_mtu: 1, ..ConnectAttr::default() };
    let a = attr(0xff_fff0, 0xff_ffff);
    let b = attr(0xff_ffff, 0xff_fff0);
    let c = p.connect_with(&Setup { a, b, ..Setup::default() });
    const LEN: usize = 20_000;
    let (here, there) = (p.a.buffer(1 << 16), p.b.buffer(1 << 16));
    for round in 0..3 {
        let data = pattern(round, LEN);
        here.write(0, &data);
        c.b.post_recv(1, &[there.sge(LEN, LEN)]).unwrap();
        c.a.post_sends(&[
            (wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), vec![here.sge(0, LEN)]),
            (wr::request(SEND_OP_SEND, 2), vec![here.sge(0, LEN)]),
            (wr::rdma(SEND_OP_RDMA_READ, 3, &there, 0), vec![here.sge(LEN, LEN)]),
            (wr::atomic(SEND_OP_FETCH_ADD, 4, &there, 60_000, 1, 0), vec![here.sge(60_000, 8)]),
        ])
        .unwrap();
        for _ in 0..4 {
            assert_status(&c.a.send_completion(), WC_SUCCESS);
        }
        assert_same(&there.read(0, LEN), &data, "written");
        assert_same(&there.read(LEN, LEN), &data, "sent");
        assert_same(&here.read(LEN, LEN), &data, "read");
        assert_eq!(here.read_u64(60_000), round);
        c.b.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &here, 2 * LEN), &[there.sge(0, LEN)]).unwrap();
        assert_status(&c.b.send_completion(), WC_SUCCESS);
        assert_same(&here.read(2 * LEN, LEN), &data, "written back");
    }
}

/// Keeps `window` messages of `len` bytes on their way until `count` are done.
fn stream(from: &Arc<Qp>, request: impl Fn(u64) -> SendRequest, sge: Sge, count: u64) {
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted < done + 8 {
            from.post_send(&request(posted), &[sge]).unwrap();
            posted += 1;
        }
        assert_status(&from.send_completion(), WC_SUCCESS);
        done += 1;
    }
}

fn both_directions(p: &Pair) {
    const LEN: usize = 50_000;
    let c = p.connect();
    let (here, there) = (p.a.buffer(4 * LEN), p.b.buffer(4 * LEN));
    let of_a = pattern(1, LEN);
    here.write(0, &of_a);
    std::thread::scope(|s| {
        s.spawn(|| stream(&c.a, |k| wr::rdma(SEND_OP_RDMA_WRITE, k, &there, LEN), here.sge(0, LEN), 150));
        s.spawn(|| stream(&c.b, |k| wr::rdma(SEND_OP_RDMA_READ, k, &here, 0), there.sge(2 * LEN, LEN), 150));
    });
    assert_same(&there.read(LEN, LEN), &of_a, "written");
    assert_same(&there.read(2 * LEN, LEN), &of_a, "read");
}

fn come_and_go(p: &Pair) {
    let (here, there) = (p.a.buffer(4096), p.b.buffer(4096));
    for k in 0..100u8 {
        let c = p.connect();
        here.fill(0, 4096, k);
        c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[here.sge(0, 4096)]).unwrap();
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        assert_eq!(there.read(0, 4096), [k; 4096]);
        for qp in [&c.a, &c.b] {
            qp.destroy().unwrap();
            qp.destroy().expect("destroying what is gone succeeds");
            qp.send_cq().destroy().unwrap();
            qp.recv_cq().destroy().unwrap();
        }
    }
}
