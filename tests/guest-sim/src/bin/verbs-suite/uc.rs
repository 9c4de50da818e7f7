//! Unreliable connections: what arrives is whole and in order; what does not is lost without a word.

use std::time::Duration;

use guest_sim::suite::{Conn, Pair, Setup, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, QpCaps, wr};
use vrdma_abi::control::*;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("unreliable_operations", operations),
    ("unreliable_messages_of_many_sizes", sizes),
    ("an_unreliable_message_without_receive_is_lost", no_receive),
    ("an_unreliable_write_that_is_not_allowed_is_lost", forbidden),
    ("an_unreliable_message_longer_than_its_receive", too_long),
    ("unreliable_connections_do_not_read", no_reads),
    ("unreliable_messages_go_into_a_shared_queue", shared_queue),
    ("an_unreliable_peer_that_is_gone", gone),
];

pub const ON_A_BAD_LINK: &[Test] = &[
    ("unreliable_messages_are_whole_or_lost", lossy),
    ("unreliable_writes_are_whole_when_told", lossy_writes),
];

fn setup() -> Setup {
    Setup::caps(QpCaps::of(QP_TYPE_UC))
}

const IMM: u32 = 0x0403_0201;

fn operations(p: &Pair) {
    let c = p.connect_with(&setup());
    let (here, there) = (p.a.buffer(1 << 16), p.b.buffer(1 << 16));
    let data = pattern(41, 5000);
    here.write(0, &data);
    for (opcode, done, received) in [
        (SEND_OP_SEND, WC_SEND, Some(WC_RECV)),
        (SEND_OP_SEND_IMM, WC_SEND, Some(WC_RECV)),
        (SEND_OP_RDMA_WRITE, WC_RDMA_WRITE, None),
        (SEND_OP_RDMA_WRITE_IMM, WC_RDMA_WRITE, Some(WC_RECV_RDMA_WITH_IMM)),
    ] {
        there.fill(0, 1 << 16, 0);
        let write = matches!(opcode, SEND_OP_RDMA_WRITE | SEND_OP_RDMA_WRITE_IMM);
        if received.is_some() {
            c.b.post_recv(7, &[there.sge(100, 5000)]).unwrap();
        }
        let request = if write { wr::rdma(opcode, 1, &there, 100) } else { wr::request(opcode, 1) };
        c.a.post_send(&SendRequest { imm_or_inv: IMM, ..request }, &[here.sge(0, 5000)]).unwrap();
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!((cqe.wr_id, cqe.opcode), (1, done));
        if let Some(opcode_there) = received {
            let cqe = c.b.recv_completion();
            assert_status(&cqe, WC_SUCCESS);
            assert_eq!((cqe.wr_id, cqe.opcode, cqe.byte_len), (7, opcode_there, 5000));
            let imm = matches!(opcode, SEND_OP_SEND_IMM | SEND_OP_RDMA_WRITE_IMM);
            assert_eq!(cqe.flags & (CQE_WITH_IMM | CQE_GRH), if imm { CQE_WITH_IMM } else { 0 });
            assert!(!imm || cqe.imm_or_inv == IMM, "{cqe:?}");
        } else {
            // A write without a word: a message behind it tells that it is there.
            c.b.post_recv(8, &[]).unwrap();
            c.a.post_send(&wr::request(SEND_OP_SEND, 2), &[]).unwrap();
            assert_status(&c.b.recv_completion(), WC_SUCCESS);
            assert_status(&c.a.send_completion(), WC_SUCCESS);
        }
        assert_same(&there.read(100, 5000), &data, "at the receiver");
        assert_eq!(there.read(5100, 100), [0; 100], "nothing behind the message");
    }
    c.b.post_recv(9, &[there.sge(0, 64)]).unwrap();
    c.a.post_inline(&wr::request(SEND_OP_SEND, 3), b"inline").unwrap();
    assert_status(&c.b.recv_completion(), WC_SUCCESS);
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_eq!(there.read(0, 6), b"inline");
}

fn sizes(p: &Pair) {
    let c = p.connect_with(&setup());
    let (here, there) = (p.a.buffer(1 << 18), p.b.buffer(1 << 18));
    let data = pattern(42, 1 << 18);
    here.write(0, &data);
    for len in [0, 1, 7, 64, 1023, 1024, 1025, 2048, 4096, 10_000, 65_536, 200_000] {
        c.b.post_recv(1, &[there.sge(0, 1 << 18)]).unwrap();
        c.a.post_send(&wr::request(SEND_OP_SEND, len as u64), &[here.sge(3, len)]).unwrap();
        let cqe = c.b.recv_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.byte_len as usize, len);
        assert_same(&there.read(0, len), &data[3..3 + len], &format!("{len} bytes"));
        assert_status(&c.a.send_completion(), WC_SUCCESS);
    }
}

/// The sender does not learn of it, and what comes later is received.
fn no_receive(p: &Pair) {
    let c = p.connect_with(&setup());
    let (here, there) = (p.a.buffer(8192), p.b.buffer(8192));
    for k in 0..3 {
        here.write_u64(0, k);
        c.a.post_send(&wr::request(SEND_OP_SEND, k), &[here.sge(0, 5000)]).unwrap();
        assert_status(&c.a.send_completion(), WC_SUCCESS);
    }
    // They have arrived, or are gone, when this one has.
    let sent = wr::rdma(SEND_OP_RDMA_WRITE, 9, &there, 4096);
    c.a.post_inline(&sent, &[0x77]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    wait_until(|| there.load_u8(4096) == 0x77);
    c.b.post_recv(1, &[there.sge(0, 8192)]).unwrap();
    assert!(c.b.recv_cq().wait(Duration::from_millis(20)).is_none(), "a lost message is not received later");
    here.write_u64(0, 100);
    c.a.post_send(&wr::request(SEND_OP_SEND, 4), &[here.sge(0, 5000)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_status(&c.b.recv_completion(), WC_SUCCESS);
    assert_eq!(there.read_u64(0), 100);
    assert_eq!((c.a.state(), c.b.state()), (QP_STATE_RTS, QP_STATE_RTS));
}

#[track_caller]
fn wait_until(done: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(std::time::Instant::now() < deadline, "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The sender succeeds; nothing is written.
fn forbidden(p: &Pair) {
    let here = p.a.buffer(64);
    let there = p.b.buffer(64);
    let read_only = p.b.pd.buffer_with(64, ACCESS_REMOTE_READ).unwrap();
    let other_domain = p.b.ctx.alloc_pd().unwrap().buffer(64).unwrap();
    here.fill(0, 64, 0xee);
    for (what, request) in [
        ("a region that peers may only read", wr::rdma(SEND_OP_RDMA_WRITE, 1, &read_only, 0)),
        ("a region of another domain", wr::rdma(SEND_OP_RDMA_WRITE, 1, &other_domain, 0)),
        ("behind a region", wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 60)),
        ("no region", SendRequest { rkey: !there.rkey, ..wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0) }),
    ] {
        let c = p.connect_with(&setup());
        c.a.post_send(&request, &[here.sge(0, 8)]).unwrap();
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        std::thread::sleep(Duration::from_millis(10));
        for region in [&there, &read_only, &other_domain] {
            assert_eq!(region.read(0, 64), [0; 64], "{what}");
        }
        assert_eq!(c.a.state(), QP_STATE_RTS, "{what}");
    }
    let no_right = Setup { b: ConnectAttr { access: 0, ..ConnectAttr::default() }, ..setup() };
    let c = p.connect_with(&no_right);
    c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[here.sge(0, 8)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(there.read(0, 64), [0; 64], "a queue pair without the right");
}

/// The message is lost, and the receive is there for another one.
fn too_long(p: &Pair) {
    let c = p.connect_with(&setup());
    let (here, there) = (p.a.buffer(8192), p.b.buffer(8192));
    here.fill(0, 8192, 0xaa);
    c.b.post_recv(1, &[there.sge(0, 100)]).unwrap();
    for len in [101, 5000] {
        c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, len)]).unwrap();
        assert_status(&c.a.send_completion(), WC_SUCCESS);
    }
    c.a.post_send(&wr::request(SEND_OP_SEND, 2), &[here.sge(0, 100)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    let cqe = c.b.recv_completion();
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!((cqe.wr_id, cqe.byte_len), (1, 100));
    assert!(c.b.recv_cq().poll().is_none());
    assert_eq!(there.read(100, 8000), vec![0; 8000], "nothing behind the receive");
}

/// Reads and atomics are no operations of this type: the request fails, with it the send queue, and nothing is sent.
fn no_reads(p: &Pair) {
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    let requests =
        [wr::rdma(SEND_OP_RDMA_READ, 1, &there, 0), wr::atomic(SEND_OP_FETCH_ADD, 1, &there, 0, 1, 0)];
    for request in requests {
        let c = p.connect_with(&setup());
        c.a.post_send(&request, &[here.sge(0, 8)]).unwrap();
        assert_status(&c.a.send_completion(), WC_LOC_QP_OP_ERR);
        c.a.post_send(&wr::request(SEND_OP_SEND, 2), &[here.sge(0, 8)]).unwrap();
        assert_status(&c.a.send_completion(), WC_WR_FLUSH_ERR);
        assert!([QP_STATE_SQE, QP_STATE_ERR].contains(&c.a.state()), "state {}", c.a.state());
    }
    assert_eq!(there.read_u64(0), 0);
}

fn shared_queue(p: &Pair) {
    let srq = p.b.pd.create_srq(64, 2).unwrap();
    let caps_b = QpCaps { srq: Some(srq.clone()), ..QpCaps::of(QP_TYPE_UC) };
    let setup = Setup { caps_b, ..setup() };
    let conns = [p.connect_with(&setup), p.connect_with(&setup)];
    let (here, there) = (p.a.buffer(8192), p.b.buffer(8192));
    for round in 0..40u64 {
        srq.post_recv(round, &[there.sge(0, 8192)]).unwrap();
        let data = pattern(round + 900, 3000);
        here.write(0, &data);
        let c = &conns[round as usize % 2];
        c.a.post_send(&wr::request(SEND_OP_SEND, round), &[here.sge(0, 3000)]).unwrap();
        let cqe = c.b.recv_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!((cqe.wr_id, cqe.flags & CQE_SRQ), (round, CQE_SRQ));
        assert_same(&there.read(0, 3000), &data, "received");
        assert_status(&c.a.send_completion(), WC_SUCCESS);
    }
}

fn gone(p: &Pair) {
    let c = p.connect_with(&setup());
    let here = p.a.buffer(64);
    c.b.destroy().unwrap();
    for k in 0..100 {
        c.a.post_send(&wr::request(SEND_OP_SEND, k), &[here.sge(0, 8)]).unwrap();
        assert_status(&c.a.send_completion(), WC_SUCCESS);
    }
    assert_eq!(c.a.state(), QP_STATE_RTS);
}

const MESSAGES: u64 = 600;
/// Three packets.
const LEN: usize = 3000;

/// Sends numbered messages, and a few that nothing depends on, so that the last of the others is not left unfinished.
fn send_all(p: &Pair, c: &Conn, request: impl Fn(u64) -> SendRequest) {
    let here = p.a.buffer(LEN);
    for number in 0..MESSAGES {
        here.write(0, &pattern(number + 1, LEN));
        here.write_u64(0, number);
        c.a.post_send(&request(number), &[here.sge(0, LEN)]).unwrap();
        assert_status(&c.a.send_completion(), WC_SUCCESS);
    }
}

#[track_caller]
fn assert_whole(bytes: &[u8], number: u64) {
    assert_eq!(bytes[..8], number.to_ne_bytes());
    assert_same(&bytes[8..], &pattern(number + 1, LEN)[8..], &format!("message {number}"));
}

/// Of messages on a link that loses packets some are lost; each other one is whole, and they are in order.
fn lossy(p: &Pair) {
    let c = p.connect_with(&Setup::caps(QpCaps { recv_wr: 1024, ..QpCaps::of(QP_TYPE_UC) }));
    let there = p.b.buffer(MESSAGES as usize * LEN);
    for k in 0..MESSAGES {
        c.b.post_recv(k, &[there.sge(k as usize * LEN, LEN)]).unwrap();
    }
    send_all(p, &c, |number| wr::request(SEND_OP_SEND, number));
    let mut last = None;
    let mut received = 0;
    while let Some(cqe) = c.b.recv_cq().wait(Duration::from_millis(200)) {
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!((cqe.byte_len as usize, cqe.wr_id), (LEN, received), "receives are taken in order");
        let at = cqe.wr_id as usize * LEN;
        let number = there.read_u64(at);
        assert!(last.is_none_or(|l| number > l), "message {number} after {last:?}");
        assert_whole(&there.read(at, LEN), number);
        last = Some(number);
        received += 1;
    }
    assert!(received > MESSAGES / 4, "only {received} of {MESSAGES} messages have arrived");
    assert!(received < MESSAGES, "the link loses nothing");
    assert_eq!((c.a.state(), c.b.state()), (QP_STATE_RTS, QP_STATE_RTS));
}

/// A write with immediate that is told has been written whole.
fn lossy_writes(p: &Pair) {
    let c = p.connect_with(&Setup::caps(QpCaps { recv_wr: 1024, ..QpCaps::of(QP_TYPE_UC) }));
    let there = p.b.buffer(MESSAGES as usize * LEN);
    for k in 0..MESSAGES {
        c.b.post_recv(k, &[]).unwrap();
    }
    send_all(p, &c, |number| {
        let write = wr::rdma(SEND_OP_RDMA_WRITE_IMM, number, &there, number as usize * LEN);
        SendRequest { imm_or_inv: number as u32, ..write }
    });
    let mut received = 0;
    while let Some(cqe) = c.b.recv_cq().wait(Duration::from_millis(200)) {
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.byte_len as usize, LEN);
        let number = u64::from(cqe.imm_or_inv);
        assert_whole(&there.read(number as usize * LEN, LEN), number);
        received += 1;
    }
    assert!(received > MESSAGES / 4 && received < MESSAGES, "{received} of {MESSAGES} messages have arrived");
}
