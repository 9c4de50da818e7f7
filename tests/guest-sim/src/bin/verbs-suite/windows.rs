//! Memory windows: what they open to peers, and when they stop.

use std::sync::Arc;

use guest_sim::suite::{Conn, Pair, assert_same, assert_status, pattern};
use guest_sim::verbs::{ACCESS_ALL, Mr, Mw, Qp, wr};
use vrdma_abi::control::*;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("a_window_opens_a_part_of_a_region", part),
    ("a_window_has_rights_of_its_own", rights),
    ("a_window_of_type_1_is_moved", moved),
    ("a_window_of_type_1_serves_every_queue_pair", every_queue_pair),
    ("a_window_of_type_2_serves_its_queue_pair_alone", one_queue_pair),
    ("a_window_is_invalidated_by_its_owner", local_invalidate),
    ("a_window_is_invalidated_by_a_peer", remote_invalidate),
    ("a_window_that_begins_at_zero", zero_based),
    ("a_destroyed_window_opens_nothing", destroyed),
    ("binding_waits_for_what_is_before_it", in_order),
];

pub const LEN: usize = 8192;

/// A region of the answering side that windows can be bound to.
#[track_caller]
pub fn region(p: &Pair) -> Mr {
    p.b.pd.buffer_with(LEN, ACCESS_ALL | ACCESS_MW_BIND).expect("CREATE_MR")
}

#[track_caller]
pub fn window(p: &Pair, mw_type: u8) -> Mw {
    p.b.pd.alloc_mw(mw_type).expect("CREATE_MW")
}

/// Posts a request about keys; its completion, which must be of the right operation.
#[track_caller]
pub fn run(qp: &Arc<Qp>, request: SendRequest) -> Cqe {
    qp.post_send(&request, &[]).expect("room");
    let cqe = qp.send_completion();
    assert_eq!(cqe.wr_id, request.wr_id);
    if cqe.status == WC_SUCCESS {
        let opcode = match request.opcode {
            SEND_OP_BIND_MW => WC_BIND_MW,
            SEND_OP_LOCAL_INV => WC_LOCAL_INV,
            SEND_OP_REG_MR => WC_REG_MR,
            _ => WC_SEND,
        };
        assert_eq!(cqe.opcode, opcode, "{cqe:?}");
    }
    cqe
}

/// Binds, which must succeed.
#[track_caller]
pub fn bind(qp: &Arc<Qp>, rkey: u32, region: &Mr, offset: usize, len: usize, access: u32) {
    assert_status(&run(qp, wr::bind(31, rkey, region, offset, len, access)), WC_SUCCESS);
}

/// A request of the peer's by `rkey`, at an address, of eight bytes.
fn access(opcode: u8, rkey: u32, addr: u64) -> SendRequest {
    let request = SendRequest { remote_addr: addr, rkey, ..wr::request(opcode, 1) };
    match opcode {
        SEND_OP_CMP_SWAP | SEND_OP_FETCH_ADD => {
            let operands = vrdma_rings::Operands::Atomic(AtomicSegment { compare_add: 0, swap: 0 });
            SendRequest { operands, ..request }
        }
        _ => request,
    }
}

/// `a` may do it over a connection.
#[track_caller]
pub fn allowed(c: &Conn, opcode: u8, here: &Mr, rkey: u32, addr: u64) {
    c.a.post_send(&access(opcode, rkey, addr), &[here.sge(0, 8)]).expect("room");
    assert_status(&c.a.send_completion(), WC_SUCCESS);
}

/// `a` may not, and the connection fails.
#[track_caller]
pub fn refused(what: &str, c: &Conn, opcode: u8, here: &Mr, rkey: u32, addr: u64) {
    c.a.post_send(&access(opcode, rkey, addr), &[here.sge(0, 8)]).expect("room");
    let cqe = c.a.send_completion();
    assert!(cqe.status == WC_REM_ACCESS_ERR, "{what}: {cqe:?}");
}

const WRITE: u8 = SEND_OP_RDMA_WRITE;
const READ: u8 = SEND_OP_RDMA_READ;

const BOTH: u32 = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ;

fn part(p: &Pair) {
    let (here, there) = (p.a.buffer(LEN), region(p));
    let data = pattern(51, 2000);
    here.write(0, &data);
    for mw_type in [MW_TYPE_1, MW_TYPE_2] {
        let mw = window(p, mw_type);
        let c = p.connect();
        bind(&c.b, mw.rkey, &there, 1000, 2000, BOTH);
        there.fill(0, LEN, 0);
        let write = SendRequest { rkey: mw.rkey, ..wr::rdma(WRITE, 1, &there, 1000) };
        c.a.post_send(&write, &[here.sge(0, 2000)]).unwrap();
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        assert_same(&there.read(1000, 2000), &data, "written");
        let read = SendRequest { rkey: mw.rkey, ..wr::rdma(READ, 2, &there, 2990) };
        c.a.post_send(&read, &[here.sge(4000, 10)]).unwrap();
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        assert_same(&here.read(4000, 10), &data[1990..], "read");
        for (what, from) in [
            ("a byte before", 999),
            ("a byte behind", 2993),
            ("far behind", 7000),
            ("at its region's start", 0),
        ] {
            let (mw, c) = (window(p, mw_type), p.connect());
            bind(&c.b, mw.rkey, &there, 1000, 2000, BOTH);
            refused(what, &c, WRITE, &here, mw.rkey, there.addr + from);
        }
        let (mw, c) = (window(p, mw_type), p.connect());
        refused("a window that is bound to nothing", &c, WRITE, &here, mw.rkey, there.addr + 1000);
    }
}

fn rights(p: &Pair) {
    let (here, there) = (p.a.buffer(64), region(p));
    for mw_type in [MW_TYPE_1, MW_TYPE_2] {
        for (right, opcodes) in [
            (ACCESS_REMOTE_WRITE, &[WRITE][..]),
            (ACCESS_REMOTE_READ, &[READ][..]),
            (ACCESS_REMOTE_ATOMIC, &[SEND_OP_CMP_SWAP, SEND_OP_FETCH_ADD][..]),
        ] {
            for opcode in [WRITE, READ, SEND_OP_CMP_SWAP, SEND_OP_FETCH_ADD] {
                let (mw, c) = (window(p, mw_type), p.connect());
                bind(&c.b, mw.rkey, &there, 0, LEN, right);
                if opcodes.contains(&opcode) {
                    allowed(&c, opcode, &here, mw.rkey, there.addr + 8);
                } else {
                    refused(
                        "a right that the window does not have",
                        &c,
                        opcode,
                        &here,
                        mw.rkey,
                        there.addr + 8,
                    );
                }
            }
        }
    }
}

/// Each binding has a key of its own, and the key before it is no key any more.
fn moved(p: &Pair) {
    let (here, there) = (p.a.buffer(64), region(p));
    let (mw, owner) = (window(p, MW_TYPE_1), p.connect());
    let mut key = mw.rkey;
    for at in [0, 64, 4000, 8128] {
        let stale = key;
        key = Mw::next_key(key);
        bind(&owner.b, key, &there, at, 64, BOTH);
        allowed(&owner, WRITE, &here, key, there.addr + at as u64);
        refused("the key before", &p.connect(), WRITE, &here, stale, there.addr + at as u64);
    }
    // A length of 0 ends it.
    let last = key;
    key = Mw::next_key(key);
    bind(&owner.b, key, &there, 0, 0, 0);
    refused("the key before", &p.connect(), WRITE, &here, last, there.addr + 8128);
    refused("a window that was unbound", &p.connect(), WRITE, &here, key, there.addr);
}

fn every_queue_pair(p: &Pair) {
    let (here, there) = (p.a.buffer(64), region(p));
    let (mw, owner, other) = (window(p, MW_TYPE_1), p.connect(), p.connect());
    bind(&owner.b, mw.rkey, &there, 0, 64, BOTH);
    allowed(&other, WRITE, &here, mw.rkey, there.addr);
    let key = Mw::next_key(mw.rkey);
    bind(&other.b, key, &there, 0, 64, BOTH);
    allowed(&owner, WRITE, &here, key, there.addr);
    owner.b.destroy().unwrap();
    other.b.destroy().unwrap();
    allowed(&p.connect(), WRITE, &here, key, there.addr);
}

fn one_queue_pair(p: &Pair) {
    let (here, there) = (p.a.buffer(64), region(p));
    let (mw, owner) = (window(p, MW_TYPE_2), p.connect());
    bind(&owner.b, mw.rkey, &there, 0, 64, BOTH);
    for opcode in [WRITE, READ] {
        refused("another queue pair of the domain", &p.connect(), opcode, &here, mw.rkey, there.addr);
        allowed(&owner, opcode, &here, mw.rkey, there.addr);
    }
}

fn local_invalidate(p: &Pair) {
    let (here, there) = (p.a.buffer(64), region(p));
    let (mw, owner) = (window(p, MW_TYPE_2), p.connect());
    let mut key = mw.rkey;
    for round in 0..300 {
        bind(&owner.b, key, &there, 0, 64, BOTH);
        allowed(&owner, WRITE, &here, key, there.addr);
        assert_status(&run(&owner.b, wr::local_inv(2, key)), WC_SUCCESS);
        // The low byte comes around.
        key = Mw::next_key(key);
        assert!(round < 256 || key & 0xffff_ff00 == mw.rkey & 0xffff_ff00);
    }
    let stale = p.connect();
    bind(&stale.b, key, &there, 0, 64, BOTH);
    allowed(&stale, WRITE, &here, key, there.addr);
    assert_status(&run(&stale.b, wr::local_inv(2, key)), WC_SUCCESS);
    refused("an invalidated key", &stale, WRITE, &here, key, there.addr);
}

/// A send of the peer's ends the window, and the receiver's completion tells which.
fn remote_invalidate(p: &Pair) {
    let (here, there) = (p.a.buffer(64), region(p));
    let (mw, c) = (window(p, MW_TYPE_2), p.connect());
    let into = p.b.buffer(8192);
    let data = pattern(52, 64);
    here.write(0, &data);
    let mut key = mw.rkey;
    for round in 0..20 {
        bind(&c.b, key, &there, 0, 64, BOTH);
        allowed(&c, WRITE, &here, key, there.addr);
        c.b.post_recv(round, &[into.sge(0, 64)]).unwrap();
        c.a.post_send(&wr::send_inv(9, key), &[here.sge(0, 64)]).unwrap();
        let cqe = c.b.recv_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!((cqe.wr_id, cqe.byte_len, cqe.opcode), (round, 64, WC_RECV));
        assert_eq!(
            (cqe.flags & (CQE_WITH_INV | CQE_WITH_IMM), cqe.imm_or_inv),
            (CQE_WITH_INV, key),
            "{cqe:?}"
        );
        assert_same(&into.read(0, 64), &data, "received");
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!((cqe.wr_id, cqe.opcode), (9, WC_SEND));
        key = Mw::next_key(key);
    }
    let gone = key.wrapping_sub(1) & 0xff | key & 0xffff_ff00;
    refused("an invalidated key", &c, WRITE, &here, gone, there.addr);
    // A long message: the invalidation is the last packet's.
    let c = p.connect();
    let large = p.a.buffer(LEN);
    bind(&c.b, key, &there, 0, 64, BOTH);
    c.b.post_recv(1, &[into.sge(0, LEN)]).unwrap();
    c.a.post_send(&wr::send_inv(9, key), &[large.sge(0, LEN)]).unwrap();
    let cqe = c.b.recv_completion();
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!((cqe.byte_len as usize, cqe.imm_or_inv), (LEN, key));
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    refused("an invalidated key", &c, READ, &here, key, there.addr);
}

fn zero_based(p: &Pair) {
    let (here, there) = (p.a.buffer(64), region(p));
    here.write(0, b"zero-based");
    let (mw, c) = (window(p, MW_TYPE_2), p.connect());
    bind(&c.b, mw.rkey, &there, 5000, 100, BOTH | ACCESS_ZERO_BASED);
    allowed(&c, WRITE, &here, mw.rkey, 92);
    assert_eq!(there.read(5092, 8), b"zero-bas");
    allowed(&c, READ, &here, mw.rkey, 0);
    refused("behind it", &c, WRITE, &here, mw.rkey, 93);
    let (mw, c) = (window(p, MW_TYPE_2), p.connect());
    bind(&c.b, mw.rkey, &there, 5000, 100, BOTH | ACCESS_ZERO_BASED);
    refused("an address of the region", &c, WRITE, &here, mw.rkey, there.addr + 5000);
    // Those of type 1 have the region's addresses always (IBTA Vol 1 §10.6.7.2).
    let (mw, c) = (window(p, MW_TYPE_1), p.connect());
    let request = wr::bind(1, mw.rkey, &there, 5000, 100, BOTH | ACCESS_ZERO_BASED);
    assert_status(&run(&c.b, request), WC_MW_BIND_ERR);
}

fn destroyed(p: &Pair) {
    let (here, there) = (p.a.buffer(64), region(p));
    for mw_type in [MW_TYPE_1, MW_TYPE_2] {
        let (mw, c) = (window(p, mw_type), p.connect());
        bind(&c.b, mw.rkey, &there, 0, 64, BOTH);
        allowed(&c, WRITE, &here, mw.rkey, there.addr);
        mw.destroy().unwrap();
        refused("a destroyed window", &c, WRITE, &here, mw.rkey, there.addr);
        mw.destroy().expect("what is gone is destroyed");
    }
    there.destroy().expect("no window is bound to it any more");
}

/// Binding, using and invalidating in one burst; completions come in the order of posting.
fn in_order(p: &Pair) {
    let (here, there) = (p.a.buffer(1 << 17), region(p));
    let at_b = p.b.buffer(1 << 17);
    let (mw, c) = (window(p, MW_TYPE_2), p.connect());
    let mut key = mw.rkey;
    let mut posts = Vec::new();
    for round in 0..5u64 {
        let big = wr::rdma(WRITE, 10 * round, &here, 0);
        posts.push((big, vec![at_b.sge(0, 1 << 17)]));
        posts.push((wr::bind(10 * round + 1, key, &there, 0, 64, BOTH), vec![]));
        posts.push((wr::rdma(READ, 10 * round + 2, &here, 0), vec![at_b.sge(0, 1 << 16)]));
        let inv = wr::local_inv(10 * round + 3, key);
        posts.push((SendRequest { flags: inv.flags | SEND_FENCE, ..inv }, vec![]));
        key = Mw::next_key(key);
    }
    c.b.post_sends(&posts).unwrap();
    for (request, _) in &posts {
        let cqe = c.b.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.wr_id, request.wr_id);
    }
}
