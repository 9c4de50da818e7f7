//! Each operation once, with all that its completions must tell.

use guest_sim::suite::{Conn, Pair, Setup, assert_same, assert_status, pattern};
use guest_sim::verbs::{ACCESS_ALL, Mr, Mw, QpCaps, wr};
use vrdma_abi::control::{ACCESS_MW_BIND, ACCESS_REMOTE_WRITE, MW_TYPE_2};
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::Test;
use crate::matrix::Cell::{Op, Status};

const LEN: usize = 3000;
const IMM: [u8; 4] = [0xde, 0xad, 0x01, 0x02];

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("send", &[Op(SEND_OP_SEND), Status(WC_SUCCESS)], send),
        Test::new("send_with_imm", &[Op(SEND_OP_SEND_IMM)], send_with_imm),
        Test::new("write", &[Op(SEND_OP_RDMA_WRITE)], write),
        Test::new("write_with_imm", &[Op(SEND_OP_RDMA_WRITE_IMM)], write_with_imm),
        Test::new("read", &[Op(SEND_OP_RDMA_READ)], read),
        Test::new("cmp_swap", &[Op(SEND_OP_CMP_SWAP)], cmp_swap),
        Test::new("fetch_add", &[Op(SEND_OP_FETCH_ADD)], fetch_add),
        Test::new("bind_and_local_inv", &[Op(SEND_OP_BIND_MW), Op(SEND_OP_LOCAL_INV)], bind_and_local_inv),
        Test::new("send_with_inv", &[Op(SEND_OP_SEND_INV)], send_with_inv),
        Test::new("unsignalled_sends_complete_in_silence", &[], unsignalled),
        Test::new("signal_all", &[], signal_all),
        Test::new("fence_waits_for_reads", &[], fence),
        Test::new("mixed_operations_in_one_burst", &[], mixed),
        Test::new("a_queue_pair_connected_to_itself", &[], loopback),
        Test::new("two_queue_pairs_of_one_guest", &[], two_of_one_guest),
    ]
}

/// The request's completion has succeeded and says so in all its fields.
#[track_caller]
fn assert_sent(cqe: &Cqe, request: &SendRequest, opcode: u8) {
    assert_status(cqe, WC_SUCCESS);
    assert_eq!((cqe.wr_id, cqe.opcode, cqe.vendor_err), (request.wr_id, opcode, 0), "{cqe:?}");
    assert_eq!(cqe.flags & (CQE_RECV | CQE_WITH_IMM), 0, "{cqe:?}");
    if matches!(opcode, WC_RDMA_READ | WC_COMP_SWAP | WC_FETCH_ADD) {
        let want = if opcode == WC_RDMA_READ { LEN as u32 } else { 8 };
        assert_eq!(cqe.byte_len, want, "{cqe:?}");
    }
}

#[track_caller]
fn assert_received(cqe: &Cqe, wr_id: u64, opcode: u8, imm: Option<[u8; 4]>) {
    assert_status(cqe, WC_SUCCESS);
    assert_eq!((cqe.wr_id, cqe.opcode, cqe.byte_len), (wr_id, opcode, LEN as u32), "{cqe:?}");
    let flags = CQE_RECV | if imm.is_some() { CQE_WITH_IMM } else { 0 };
    assert_eq!(cqe.flags & !CQE_SOLICITED, flags, "{cqe:?}");
    if let Some(imm) = imm {
        assert_eq!(cqe.imm_or_inv, u32::from_ne_bytes(imm), "the four bytes of the wire, in order");
    }
}

fn with_imm(request: SendRequest) -> SendRequest {
    SendRequest { imm_or_inv: u32::from_ne_bytes(IMM), ..request }
}

/// Two buffers, the first filled.
fn buffers(p: &Pair, seed: u64) -> (Mr, Mr, Vec<u8>) {
    let (src, dst) = (p.a.buffer(8192), p.b.buffer(8192));
    let data = pattern(seed, LEN);
    src.write(10, &data);
    (src, dst, data)
}

fn send(p: &Pair) {
    let c = p.connect();
    let (src, dst, data) = buffers(p, 1);
    c.b.post_recv(77, &[dst.sge(20, LEN + 100)]).unwrap();
    let request = wr::request(SEND_OP_SEND, 5);
    c.a.post_send(&request, &[src.sge(10, LEN)]).unwrap();
    assert_received(&c.b.recv_completion(), 77, WC_RECV, None);
    assert_sent(&c.a.send_completion(), &request, WC_SEND);
    assert_same(&dst.read(20, LEN), &data, "received data");
    assert_eq!(dst.read(20 + LEN, 100), vec![0; 100], "nothing behind the message");
}

fn send_with_imm(p: &Pair) {
    let c = p.connect();
    let (src, dst, data) = buffers(p, 2);
    c.b.post_recv(78, &[dst.sge(20, LEN)]).unwrap();
    let request = with_imm(wr::request(SEND_OP_SEND_IMM, 6));
    c.a.post_send(&request, &[src.sge(10, LEN)]).unwrap();
    assert_received(&c.b.recv_completion(), 78, WC_RECV, Some(IMM));
    assert_sent(&c.a.send_completion(), &request, WC_SEND);
    assert_same(&dst.read(20, LEN), &data, "received data");
}

fn write(p: &Pair) {
    let c = p.connect();
    let (src, dst, data) = buffers(p, 3);
    let request = wr::rdma(SEND_OP_RDMA_WRITE, 7, &dst, 33);
    c.a.post_send(&request, &[src.sge(10, LEN)]).unwrap();
    assert_sent(&c.a.send_completion(), &request, WC_RDMA_WRITE);
    assert_same(&dst.read(33, LEN), &data, "written data");
    assert!(c.b.recv_cq().poll().is_none(), "a write completes no receive");
}

fn write_with_imm(p: &Pair) {
    let c = p.connect();
    let (src, dst, data) = buffers(p, 4);
    c.b.post_recv(79, &[]).unwrap();
    let request = with_imm(wr::rdma(SEND_OP_RDMA_WRITE_IMM, 8, &dst, 33));
    c.a.post_send(&request, &[src.sge(10, LEN)]).unwrap();
    assert_received(&c.b.recv_completion(), 79, WC_RECV_RDMA_WITH_IMM, Some(IMM));
    assert_sent(&c.a.send_completion(), &request, WC_RDMA_WRITE);
    assert_same(&dst.read(33, LEN), &data, "written data");
}

fn read(p: &Pair) {
    let c = p.connect();
    let (dst, src) = (p.a.buffer(8192), p.b.buffer(8192));
    let data = pattern(5, LEN);
    src.write(100, &data);
    let request = wr::rdma(SEND_OP_RDMA_READ, 9, &src, 100);
    c.a.post_send(&request, &[dst.sge(10, LEN)]).unwrap();
    assert_sent(&c.a.send_completion(), &request, WC_RDMA_READ);
    assert_same(&dst.read(10, LEN), &data, "read data");
}

fn cmp_swap(p: &Pair) {
    let c = p.connect();
    let (result, word) = (p.a.buffer(64), p.b.buffer(64));
    word.write_u64(8, 0x1122_3344_5566_7788);
    for (compare, swap, before, after) in [
        (0x1122_3344_5566_7788, 42, 0x1122_3344_5566_7788, 42), // equal: swaps
        (7, 99, 42, 42),                                        // not equal: stays
        (42, u64::MAX, 42, u64::MAX),
    ] {
        let request = wr::atomic(SEND_OP_CMP_SWAP, 10, &word, 8, compare, swap);
        c.a.post_send(&request, &[result.sge(16, 8)]).unwrap();
        assert_sent(&c.a.send_completion(), &request, WC_COMP_SWAP);
        assert_eq!((result.read_u64(16), word.read_u64(8)), (before, after));
    }
    assert_eq!((word.read_u64(0), word.read_u64(16)), (0, 0), "the neighbours");
}

fn fetch_add(p: &Pair) {
    let c = p.connect();
    let (result, word) = (p.a.buffer(64), p.b.buffer(64));
    word.write_u64(8, u64::MAX - 1);
    for (add, before, after) in [(1, u64::MAX - 1, u64::MAX), (2, u64::MAX, 1), (1 << 40, 1, (1 << 40) + 1)] {
        let request = wr::atomic(SEND_OP_FETCH_ADD, 11, &word, 8, add, 0);
        c.a.post_send(&request, &[result.sge(24, 8)]).unwrap();
        assert_sent(&c.a.send_completion(), &request, WC_FETCH_ADD);
        assert_eq!((result.read_u64(24), word.read_u64(8)), (before, after));
    }
    assert_eq!((word.read_u64(0), word.read_u64(16)), (0, 0), "the neighbours");
}

/// A window of `b` to the first LEN bytes of its new region, bound by the connection's end there.
fn bound_window(p: &Pair, c: &Conn) -> (Mr, Mw) {
    let there = p.b.pd.buffer_with(8192, ACCESS_ALL | ACCESS_MW_BIND).unwrap();
    let window = p.b.pd.alloc_mw(MW_TYPE_2).unwrap();
    let bind = wr::bind(1, window.rkey, &there, 0, LEN, ACCESS_REMOTE_WRITE);
    c.b.post_send(&bind, &[]).unwrap();
    assert_sent(&c.b.send_completion(), &bind, WC_BIND_MW);
    (there, window)
}

fn bind_and_local_inv(p: &Pair) {
    let c = p.connect();
    let (src, _, data) = buffers(p, 12);
    let (there, window) = bound_window(p, &c);
    let write = SendRequest { rkey: window.rkey, ..wr::rdma(SEND_OP_RDMA_WRITE, 2, &there, 0) };
    c.a.post_send(&write, &[src.sge(10, LEN)]).unwrap();
    assert_sent(&c.a.send_completion(), &write, WC_RDMA_WRITE);
    assert_same(&there.read(0, LEN), &data, "written through the window");
    let invalidate = wr::local_inv(3, window.rkey);
    c.b.post_send(&invalidate, &[]).unwrap();
    assert_sent(&c.b.send_completion(), &invalidate, WC_LOCAL_INV);
    c.a.post_send(&write, &[src.sge(10, LEN)]).unwrap();
    assert_status(&c.a.send_completion(), WC_REM_ACCESS_ERR);
}

fn send_with_inv(p: &Pair) {
    let c = p.connect();
    let (src, dst, data) = buffers(p, 13);
    let (_there, window) = bound_window(p, &c);
    c.b.post_recv(77, &[dst.sge(20, LEN)]).unwrap();
    let request = wr::send_inv(5, window.rkey);
    c.a.post_send(&request, &[src.sge(10, LEN)]).unwrap();
    let cqe = c.b.recv_completion();
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!((cqe.wr_id, cqe.opcode, cqe.byte_len), (77, WC_RECV, LEN as u32));
    assert_eq!((cqe.flags & !CQE_SOLICITED, cqe.imm_or_inv), (CQE_RECV | CQE_WITH_INV, window.rkey));
    assert_sent(&c.a.send_completion(), &request, WC_SEND);
    assert_same(&dst.read(20, LEN), &data, "received data");
}

fn unsignalled(p: &Pair) {
    let c = p.connect();
    let (src, dst, data) = buffers(p, 6);
    for k in 0..20 {
        let silent = SendRequest { flags: 0, ..wr::rdma(SEND_OP_RDMA_WRITE, k, &dst, 0) };
        c.a.post_send(&silent, &[src.sge(0, 64)]).unwrap();
    }
    let last = wr::rdma(SEND_OP_RDMA_WRITE, 100, &dst, 0);
    c.a.post_send(&last, &[src.sge(10, LEN)]).unwrap();
    let cqe = c.a.send_completion();
    assert_sent(&cqe, &last, WC_RDMA_WRITE);
    assert_eq!(cqe.consumer, 21, "the completion frees the silent entries as well");
    assert!(c.a.send_cq().poll().is_none(), "unsignalled requests write no completion");
    assert_same(&dst.read(0, LEN), &data, "written data");
}

fn signal_all(p: &Pair) {
    let c = p.connect_with(&Setup::caps(QpCaps { signal_all: true, ..QpCaps::default() }));
    let (src, dst, _) = buffers(p, 7);
    for k in 0..10 {
        let silent = SendRequest { flags: 0, ..wr::rdma(SEND_OP_RDMA_WRITE, k, &dst, 0) };
        c.a.post_send(&silent, &[src.sge(0, 64)]).unwrap();
    }
    for k in 0..10 {
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!((cqe.wr_id, cqe.consumer), (k, k as u32 + 1));
    }
}

/// A fenced send of what a read brings must carry the read's result.
fn fence(p: &Pair) {
    let c = p.connect();
    let (at_a, at_b) = (p.a.buffer(1 << 16), p.b.buffer(1 << 17));
    for round in 0..20u64 {
        let data = pattern(round, 40_000);
        at_a.fill(0, 1 << 16, 0);
        at_b.write(0, &data);
        c.b.post_recv(round, &[at_b.sge(1 << 16, 40_000)]).unwrap();
        let read = wr::rdma(SEND_OP_RDMA_READ, 1, &at_b, 0);
        let fenced = wr::request(SEND_OP_SEND, 2);
        let fenced = SendRequest { flags: fenced.flags | SEND_FENCE, ..fenced };
        let sge = at_a.sge(0, 40_000);
        c.a.post_sends(&[(read, vec![sge]), (fenced, vec![sge])]).unwrap();
        assert_eq!(c.a.send_completion().wr_id, 1);
        assert_status(&c.b.recv_completion(), WC_SUCCESS);
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        assert_same(&at_b.read(1 << 16, 40_000), &data, "what the fenced send carried");
    }
}

/// All operations posted with one doorbell; their effects and completions come in order.
fn mixed(p: &Pair) {
    let c = p.connect();
    let (local, remote) = (p.a.buffer(1 << 16), p.b.buffer(1 << 16));
    let data = pattern(9, 5000);
    local.write(0, &data);
    remote.write_u64(40_000, 10);
    for k in 0..3 {
        c.b.post_recv(k, &[remote.sge(10_000 + 6000 * k as usize, 6000)]).unwrap();
    }
    let sge = |at, len| vec![local.sge(at, len)];
    c.a.post_sends(&[
        (wr::rdma(SEND_OP_RDMA_WRITE, 0, &remote, 0), sge(0, 5000)),
        (wr::request(SEND_OP_SEND, 1), sge(0, 5000)),
        (wr::atomic(SEND_OP_FETCH_ADD, 2, &remote, 40_000, 5, 0), sge(30_000, 8)),
        (wr::rdma(SEND_OP_RDMA_READ, 3, &remote, 0), sge(20_000, 5000)),
        (with_imm(wr::request(SEND_OP_SEND_IMM, 4)), sge(100, 700)),
        (wr::atomic(SEND_OP_CMP_SWAP, 5, &remote, 40_000, 15, 77), sge(30_008, 8)),
        (with_imm(wr::rdma(SEND_OP_RDMA_WRITE_IMM, 6, &remote, 50_000)), sge(0, 3000)),
    ])
    .unwrap();
    for k in 0..7 {
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.wr_id, k, "completions come in the order of posting");
    }
    assert_same(&remote.read(0, 5000), &data, "written");
    assert_same(&local.read(20_000, 5000), &data, "read back");
    assert_eq!((local.read_u64(30_000), local.read_u64(30_008), remote.read_u64(40_000)), (10, 15, 77));
    assert_same(&remote.read(50_000, 3000), &data[..3000], "written with immediate");
    let received: Vec<_> = (0..3).map(|_| c.b.recv_completion()).collect();
    let told: Vec<_> = received.iter().map(|r| (r.wr_id, r.opcode, r.byte_len)).collect();
    assert_eq!(told, [(0, WC_RECV, 5000), (1, WC_RECV, 700), (2, WC_RECV_RDMA_WITH_IMM, 3000)]);
    assert_same(&remote.read(10_000, 5000), &data, "first send");
    assert_same(&remote.read(16_000, 700), &data[100..800], "second send");
}

fn exchange(c: &Conn, from: &Mr, to: &Mr) {
    let data = pattern(11, 9000);
    from.write(0, &data);
    c.b.post_recv(1, &[to.sge(10_000, 9000)]).unwrap();
    c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[from.sge(0, 9000)]).unwrap();
    assert_status(&c.b.recv_completion(), WC_SUCCESS);
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_same(&to.read(10_000, 9000), &data, "sent");
    c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 2, to, 20_000), &[from.sge(0, 9000)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_same(&to.read(20_000, 9000), &data, "written");
    c.a.post_send(&wr::rdma(SEND_OP_RDMA_READ, 3, to, 20_000), &[from.sge(40_000, 9000)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_same(&from.read(40_000, 9000), &data, "read");
    c.a.post_send(&wr::atomic(SEND_OP_FETCH_ADD, 4, to, 0, 3, 0), &[from.sge(50_000, 8)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
}

fn loopback(p: &Pair) {
    for side in [&p.a, &p.b] {
        let qp = side.qp(&QpCaps::default(), 64);
        qp.connect(&Default::default(), side.address, qp.qpn).unwrap();
        let buffer = side.buffer(1 << 16);
        let both = Conn { a: qp.clone(), b: qp };
        exchange(&both, &buffer, &buffer);
    }
}

fn two_of_one_guest(p: &Pair) {
    let setup = Setup::default();
    let side = &p.b;
    let (a, b) = (side.qp(&setup.caps_a, 64), side.qp(&setup.caps_b, 64));
    a.connect(&setup.a, side.address, b.qpn).unwrap();
    b.connect(&setup.b, side.address, a.qpn).unwrap();
    exchange(&Conn { a, b }, &side.buffer(1 << 16), &side.buffer(1 << 16));
}
