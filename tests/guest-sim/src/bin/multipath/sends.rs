//! Large SENDs: their chunks go to their places in receives of the peer's.

use std::sync::Arc;
use std::time::Duration;

use guest_sim::suite::{Conn, Rng, Setup, World, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, Mr, QpCaps, Srq, wr};
use vrdma_abi::control::QP_STATE_ERR;
use vrdma_abi::event::EVENT_QP_REQ_ERR;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::{CHUNK, Ends, PATHS, TAIL, Test, sent};

pub const TESTS: &[Test] = &[
    ("a_send_goes_by_all_paths", |w| by_all_paths(w, false)),
    ("a_send_to_a_shared_queue_goes_by_all_paths", |w| by_all_paths(w, true)),
    ("sends_among_small_ones_and_writes_with_immediate", among_others),
    ("senders_wait_for_receives_that_come_one_by_one", one_by_one),
    ("random_sends", random),
    ("sends_that_are_too_long", too_long),
    ("lies_about_receives", lies),
];

pub const LOSSY_TESTS: &[Test] = &[("random_sends_over_bad_links", random)];
pub const ENGINE_TESTS: &[Test] = &[("random_sends_on_several_engines", random)];

const BYTES: usize = 3 << 20;

/// A chunk for the receive `number`, of `len` bytes at `at` in the message that begins at `from` of a region.
fn steer(c: &Conn, number: u32, here: &Mr, from: usize, at: usize, len: usize) {
    let chunk =
        SendRequest { opcode: SEND_OP_STEER, remote_addr: at as u64, rkey: number, ..SendRequest::default() };
    c.a.post_chunk(&chunk, &[here.sge(from + at, len)]).expect("room for a chunk");
}

/// The end of a message, behind all chunks.
fn end(c: &Conn, opcode: u8, wr_id: u64, here: &Mr, from: usize, at: usize, len: usize) {
    c.a.post_wait(wr_id, c.a.chunk_indexes().0).expect("room to wait");
    let request = wr::request(opcode, wr_id);
    let flags = request.flags | SEND_STEERED;
    let request = SendRequest { flags, remote_addr: at as u64, imm_or_inv: wr_id as u32, ..request };
    c.a.post_send(&request, &[here.sge(from + at, len)]).expect("room for the end");
}

/// A large SEND as a guest's library posts it.
fn send(c: &Conn, opcode: u8, wr_id: u64, number: u32, here: &Mr, from: usize, len: usize) {
    let rest = len - TAIL;
    for at in (0..rest).step_by(CHUNK) {
        steer(c, number, here, from, at, CHUNK.min(rest - at));
    }
    end(c, opcode, wr_id, here, from, rest, TAIL);
}

fn sent_is_done(c: &Conn, wr_id: u64) {
    let cqe = c.a.send_completion();
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!(cqe.wr_id, wr_id);
    c.a.retire(&cqe);
}

fn received(c: &Conn, wr_id: u64, len: usize) -> Cqe {
    let cqe = c.b.recv_completion();
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!((cqe.wr_id, cqe.byte_len as usize), (wr_id, len));
    c.b.retire(&cqe);
    cqe
}

fn by_all_paths(world: &World, shared: bool) {
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES + 4096));
    let srq: Option<Arc<Srq>> = shared.then(|| e.b.pd.create_srq(16, 4).expect("CREATE_SRQ"));
    let caps_b = QpCaps { srq: srq.clone(), ..QpCaps::multipath() };
    let c = e.connect_with(&Setup { caps_b, ..Setup::caps(QpCaps::multipath()) });
    for (i, opcode) in [SEND_OP_SEND, SEND_OP_SEND_IMM, SEND_OP_SEND].into_iter().enumerate() {
        let (id, data) = (i as u64, pattern(i as u64, BYTES));
        here.write(0, &data);
        there.fill(0, BYTES + 4096, 0);
        // In pieces, which are not whole chunks.
        let sges = [
            there.sge(0, 10_001),
            there.sge(10_001, BYTES / 2),
            there.sge(10_001 + BYTES / 2, BYTES / 2 - 10_001),
        ];
        match &srq {
            Some(srq) => srq.post_recv(id, &sges).unwrap(),
            None => c.b.post_recv(id, &sges).unwrap(),
        }
        let before = sent(world, PATHS);
        send(&c, opcode, 10 + id, i as u32, &here, 0, BYTES);
        let cqe = received(&c, id, BYTES);
        sent_is_done(&c, 10 + id);
        let imm = if opcode == SEND_OP_SEND_IMM { (CQE_WITH_IMM, 10 + id as u32) } else { (0, 0) };
        assert_eq!((cqe.flags & CQE_WITH_IMM, cqe.imm_or_inv), imm);
        assert_same(&there.read(0, BYTES), &data, "the message");
        assert_same(&there.read(BYTES, 4096), &[0; 4096], "what is behind it");
        for (path, (before, after)) in before.iter().zip(sent(world, PATHS)).enumerate() {
            let bytes = after[0] - before[0];
            assert!(bytes > CHUNK as u64, "path {path} has carried {bytes} bytes");
        }
    }
    assert_eq!(c.a.paths(), u32::from(PATHS));
    assert!(c.a.send_cq().poll().is_none() && c.b.recv_cq().poll().is_none(), "one completion each");
}

/// Whatever takes receives takes them in the order of the requests.
fn among_others(world: &World) {
    const LEN: usize = 500_000;
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(LEN), e.b.buffer(6 * LEN));
    let c = e.connect();
    for round in 0..6 {
        let data = pattern(round, LEN);
        here.write(0, &data);
        (0..5).for_each(|i| c.b.post_recv(i, &[there.sge(i as usize * LEN, LEN)]).unwrap());
        let first = 5 * round as u32;
        c.a.post_send(&wr::request(SEND_OP_SEND, 0), &[here.sge(0, 64)]).unwrap();
        send(&c, SEND_OP_SEND, 1, first + 1, &here, 0, LEN);
        let write = wr::rdma(SEND_OP_RDMA_WRITE_IMM, 2, &there, 5 * LEN);
        c.a.post_send(&write, &[here.sge(0, 8)]).unwrap();
        send(&c, SEND_OP_SEND_IMM, 3, first + 3, &here, 0, LEN);
        c.a.post_send(&wr::request(SEND_OP_SEND_IMM, 4), &[here.sge(0, 64)]).unwrap();
        for (id, len) in [64, LEN, 8, LEN, 64].into_iter().enumerate() {
            received(&c, id as u64, len);
            sent_is_done(&c, id as u64);
            if len == LEN {
                assert_same(&there.read(id * LEN, LEN), &data, "a message");
            }
        }
    }
}

/// The application posts a receive when it has the message before, and not before.
fn one_by_one(world: &World) {
    const LEN: usize = 300_000;
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(LEN), e.b.buffer(LEN));
    let setup = Setup::attr(ConnectAttr { min_rnr_timer: 1, rnr_retry: 7, ..ConnectAttr::default() });
    let caps = QpCaps::multipath();
    let c = e.connect_with(&Setup { caps_a: caps.clone(), caps_b: caps, ..setup });
    here.write(0, &pattern(1, LEN));
    for id in 0..8u64 {
        match id % 4 {
            0 => c.a.post_send(&wr::request(SEND_OP_SEND, id), &[here.sge(0, 64)]).unwrap(),
            _ => send(&c, SEND_OP_SEND, id, id as u32, &here, 0, LEN),
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    assert!(c.a.send_cq().poll().is_none());
    for id in 0..8u64 {
        there.fill(0, LEN, 0);
        c.b.post_recv(id, &[there.sge(0, LEN)]).unwrap();
        let len = if id % 4 == 0 { 64 } else { LEN };
        received(&c, id, len);
        assert_same(&there.read(0, len), &pattern(1, LEN)[..len], "the message");
        sent_is_done(&c, id);
    }
}

/// Messages of any length, several at once, receives for them in any number of pieces and sometimes late.
fn random(world: &World) {
    const SLOTS: usize = 4;
    const SLOT: usize = BYTES / SLOTS;
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(BYTES), e.b.buffer(BYTES));
    let c = e.connect();
    let mut rng = Rng::new(6);
    for round in 0..15u64 {
        let data = pattern(round, BYTES);
        here.write(0, &data);
        let lens: Vec<usize> = (0..SLOTS).map(|_| 1 + rng.below(SLOT as u64) as usize).collect();
        let id = |i: usize| round * SLOTS as u64 + i as u64;
        let late = rng.below(SLOTS as u64 + 1) as usize;
        let mut post = |i: usize| {
            let first = rng.below(lens[i] as u64 + 1) as usize;
            let sges = [there.sge(i * SLOT, first), there.sge(i * SLOT + first, lens[i] - first)];
            c.b.post_recv(id(i), &sges).unwrap();
        };
        (0..late).for_each(&mut post);
        for (i, &len) in lens.iter().enumerate() {
            let from = i * SLOT;
            if len > 2 * TAIL {
                send(&c, SEND_OP_SEND, id(i), id(i) as u32, &here, from, len);
            } else {
                c.a.post_send(&wr::request(SEND_OP_SEND, id(i)), &[here.sge(from, len)]).unwrap();
            }
        }
        (late..SLOTS).for_each(&mut post);
        for (i, &len) in lens.iter().enumerate() {
            received(&c, id(i), len);
            sent_is_done(&c, id(i));
            assert_same(&there.read(i * SLOT, len), &data[i * SLOT..i * SLOT + len], "a message");
        }
    }
}

/// The receive fails as that of any message that is too long for it; its neighbours are not touched.
fn too_long(world: &World) {
    const LEN: usize = 300_000;
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(LEN), e.b.buffer(2 * LEN));
    here.write(0, &pattern(1, LEN));
    for room in [1000, LEN / 2, LEN - 1] {
        let c = e.connect();
        there.fill(0, 2 * LEN, 0);
        c.b.post_recv(1, &[there.sge(0, room)]).unwrap();
        c.b.post_recv(2, &[there.sge(LEN, LEN)]).unwrap();
        send(&c, SEND_OP_SEND, 7, 0, &here, 0, LEN);
        assert_status(&c.a.send_completion(), WC_REM_INV_REQ_ERR);
        for (wr_id, status) in [(1, WC_LOC_LEN_ERR), (2, WC_WR_FLUSH_ERR)] {
            let cqe = c.b.recv_completion();
            assert_status(&cqe, status);
            assert_eq!(cqe.wr_id, wr_id);
        }
        assert_same(&there.read(room, 2 * LEN - room), &vec![0; 2 * LEN - room], "what is behind it");
        assert_eq!((c.a.state(), c.b.state()), (QP_STATE_ERR, QP_STATE_ERR));
    }
}

/// A peer that lies harms its own connection; the other end's receives come back, once and in order.
fn lies(world: &World) {
    const LEN: usize = 64 << 10;
    let e = Ends::open(world);
    let (here, there) = (e.a.buffer(2 * LEN), e.b.buffer(3 * LEN));
    here.write(0, &pattern(1, 2 * LEN));
    type Lie = fn(&Conn, &Mr);
    let cases: [(&str, Lie); 6] = [
        ("a receive far ahead", |c, here| {
            steer(c, 256, here, 0, 0, LEN);
            end(c, SEND_OP_SEND, 1, here, 0, LEN, 8);
        }),
        ("a receive before the first", |c, here| {
            steer(c, u32::MAX, here, 0, 0, LEN);
            end(c, SEND_OP_SEND, 1, here, 0, LEN, 8);
        }),
        ("the end of nothing", |c, here| end(c, SEND_OP_SEND_IMM, 1, here, 0, 0, 8)),
        ("the end of what has not come", |c, here| end(c, SEND_OP_SEND, 1, here, 0, LEN, 8)),
        ("a hole", |c, here| {
            steer(c, 0, here, 0, 8, LEN - 8);
            end(c, SEND_OP_SEND, 1, here, 0, LEN, 8);
        }),
        ("a beginning without an end", |c, here| {
            steer(c, 0, here, 0, 0, LEN);
            c.a.post_wait(1, 1).unwrap();
            c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, 8)]).unwrap();
        }),
    ];
    for (what, lie) in cases {
        let c = e.connect();
        e.b.guest.drain_events();
        there.fill(0, 3 * LEN, 0);
        (0..2).for_each(|i| c.b.post_recv(i, &[there.sge(i as usize * LEN, LEN + 8)]).unwrap());
        lie(&c, &here);
        let cqe = c.a.send_completion();
        assert_eq!((cqe.wr_id, cqe.status), (1, WC_REM_INV_REQ_ERR), "{what}");
        e.b.guest.expect_event(EVENT_QP_REQ_ERR, c.b.handle());
        for wr_id in 0..2 {
            let cqe = c.b.recv_completion();
            assert_eq!((cqe.wr_id, cqe.status), (wr_id, WC_WR_FLUSH_ERR), "{what}");
        }
        assert_same(&there.read(LEN + 8, 2 * LEN - 8), &vec![0; 2 * LEN - 8], what);
        assert_eq!((c.a.state(), c.b.state()), (QP_STATE_ERR, QP_STATE_ERR), "{what}");
    }
}
