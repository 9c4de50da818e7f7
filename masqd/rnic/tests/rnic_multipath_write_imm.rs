//! Large RDMA WRITEs with immediate data by several paths: the receiver is told of the whole when all of it is there.

mod common;

use common::multipath::*;
use common::*;
use masq_driver::*;
use masq_rnic::FaultInjection;
use masq_types::Features;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

const CHUNK: u32 = 16 << 10;

/// The end of a message, of which `before` bytes have been written by chunks.
fn end(m: &mut Multi, wr_id: u64, offset: u64, before: u32, len: u32) {
    let request = SendRequest {
        flags: SEND_SIGNALED | SEND_SOLICITED,
        imm_or_inv: u32::from_ne_bytes(*b"imm!") ^ wr_id as u32,
        before_bytes: before,
        ..request(SEND_OP_RDMA_WRITE_IMM, wr_id)
    };
    let at = offset + u64::from(before);
    m.a.post(&mut m.a_qp.qp, &to(&m.b_mr, at, request), &[sge(&m.a_mr, at, len)]);
}

/// A large message as a guest's library posts it, at `offset` of both regions. Returns the index behind its chunks.
fn write_imm(m: &mut Multi, wr_id: u64, offset: u64, len: u32, tail: u32) -> u32 {
    let at = len - tail;
    let until = m.chunks(SEND_OP_RDMA_WRITE, offset, at, CHUNK);
    m.wait_for(wr_id, until);
    end(m, wr_id, offset, at, tail);
    until
}

fn received(m: &mut Multi) -> Cqe {
    wait(&mut m.net, &mut m.b_cq)
}

/// Both ends of a message are told of it once, and of all its bytes; also where its end has several packets, and beside requests of other kinds.
fn messages(m: &mut Multi, rounds: u64) {
    const OTHER: u64 = 3 << 20;
    for round in 0..rounds {
        let tail = [4096, 1000, 1, 1024][round as usize % 4];
        let (len, offset) = ((300 << 10) + 4321 * round as u32 + tail, 77 * round);
        let data = pattern(len as usize, round as u8);
        m.a.write(m.a_mr.gpa + offset, &data);
        m.a.write(m.a_mr.gpa + OTHER, &pattern(64, round as u8));
        for recv in 0..3 {
            m.b.post_recv(&mut m.b_qp.qp, 10 * round + recv, &[sge(&m.b_mr, OTHER + 1024 * recv, 64)]);
        }
        m.a.post(&mut m.a_qp.qp, &request(SEND_OP_SEND, 1), &[sge(&m.a_mr, OTHER, 64)]);
        let until = write_imm(m, 2, offset, len, tail);
        end(m, 3, OTHER, 0, 10);
        for wr_id in 1..4 {
            assert_eq!(m.completion(), (wr_id, WC_SUCCESS), "round {round}");
        }
        let told = [0, 1, 2].map(|_| received(m));
        let said = told.map(|cqe| (cqe.wr_id - 10 * round, cqe.opcode, cqe.byte_len));
        let imm = WC_RECV_RDMA_WITH_IMM;
        assert_eq!(said, [(0, WC_RECV, 64), (1, imm, len), (2, imm, 10)], "round {round}");
        assert_eq!(told[1].imm_or_inv, u32::from_ne_bytes(*b"imm!") ^ 2);
        assert!(m.b.read(m.b_mr.gpa + offset, len as usize) == data, "round {round}");
        assert_eq!(m.a_qp.chunks.done(), until);
        let sent = m.a_qp.qp.sq.producer();
        m.a_qp.qp.sq.complete(sent);
        m.b_qp.qp.rq.complete(told[2].consumer);
    }
    assert!(m.paths().iter().all(|path| path.chunks > 0));
}

#[test]
fn the_receiver_is_told_of_the_whole() {
    let mut m = Multi::new(4);
    assert_eq!(m.a_qp.chunks.splits(), SPLIT_WRITE_IMM);
    messages(&mut m, 8);
}

#[test]
fn losses_change_nothing() {
    let faults = FaultInjection { drop: 0.02, duplicate: 0.01, reorder: 0.05, ..FaultInjection::default() };
    messages(&mut Multi::with(4, Some(faults), &Options::default()), 20);
}

/// Nothing is told before all is there, and a receive that comes late is waited for.
#[test]
fn the_end_waits_for_a_receive() {
    const LEN: u32 = 512 << 10;
    let mut m = Multi::new(4);
    let until = write_imm(&mut m, 7, 0, LEN, 4096);
    m.net.run(40);
    assert_eq!(m.a_qp.chunks.done(), until);
    assert!(m.a_cq.ring.poll().is_none() && m.b_cq.ring.poll().is_none());
    m.b.post_recv(&mut m.b_qp.qp, 5, &[]);
    assert_eq!(m.completion(), (7, WC_SUCCESS));
    let told = received(&mut m);
    assert_eq!((told.wr_id, told.byte_len, told.status), (5, LEN, WC_SUCCESS));
}

/// A peer of an older version does not know such an end: the guest is told so, and one that posts it all the same fails by itself.
#[test]
fn older_peers_get_messages_whole() {
    let features = Features::SELECTIVE | Features::MULTIPATH;
    let mut m = Multi::with(4, None, &Options { features, ..Options::default() });
    assert_eq!((m.a_qp.chunks.paths(), m.a_qp.chunks.splits()), (4, 0));
    m.b.post_recv(&mut m.b_qp.qp, 1, &[]);
    end(&mut m, 1, 0, 0, 1 << 20);
    assert_eq!(m.completion(), (1, WC_SUCCESS));
    let told = received(&mut m);
    assert_eq!((told.wr_id, told.byte_len), (1, 1 << 20));
    m.b.post_recv(&mut m.b_qp.qp, 2, &[]);
    write_imm(&mut m, 2, 0, 256 << 10, 4096);
    assert_eq!(m.completion(), (2, WC_LOC_QP_OP_ERR));
    m.net.run(20);
    assert_eq!(m.states(), [QpState::Err, QpState::Rts]);
    assert!(m.b_cq.ring.poll().is_none());
}

/// What came before counts for the longest message that there is.
#[test]
fn parts_are_no_longer_than_a_message_can_be() {
    for (before, status) in
        [(1 << 31, WC_LOC_LEN_ERR), (u32::MAX, WC_LOC_LEN_ERR), ((1 << 31) - 64, WC_SUCCESS)]
    {
        let mut m = Multi::new(4);
        m.b.post_recv(&mut m.b_qp.qp, 2, &[]);
        let request = SendRequest { before_bytes: before, ..request(SEND_OP_RDMA_WRITE_IMM, 1) };
        m.a.post(&mut m.a_qp.qp, &to(&m.b_mr, 0, request), &[sge(&m.a_mr, 0, 64)]);
        assert_eq!(m.completion(), (1, status), "{before}");
        if status == WC_SUCCESS {
            assert_eq!(received(&mut m).byte_len, 1 << 31);
        }
    }
}
