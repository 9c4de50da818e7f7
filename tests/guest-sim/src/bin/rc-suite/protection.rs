//! Keys, rights and bounds: every access that a region does not allow is refused, and changes nothing.

use std::sync::Arc;
use std::time::Duration;

use guest_sim::suite::{Conn, Pair, Setup, assert_same, assert_status, pattern};
use guest_sim::verbs::{ACCESS_ALL, ConnectAttr, Mr, Pd, wr};
use vrdma_abi::control::*;
use vrdma_abi::event::{EVENT_QP_ACCESS_ERR, EVENT_QP_REQ_ERR};
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::Test;
use crate::matrix::Cell::Status;

const REMOTE: &[crate::Cell] = &[Status(WC_REM_ACCESS_ERR)];
const LOCAL: &[crate::Cell] = &[Status(WC_LOC_PROT_ERR)];

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("remote_bounds_by_one_byte", REMOTE, remote_bounds),
        Test::new("remote_keys", REMOTE, remote_keys),
        Test::new("remote_rights_of_the_region", REMOTE, remote_rights),
        Test::new("remote_rights_of_the_queue_pair", &[Status(WC_REM_INV_REQ_ERR)], queue_pair_rights),
        Test::new("local_keys_and_bounds_of_sends", LOCAL, local_sends),
        Test::new("local_rights_of_reads", LOCAL, local_reads),
        Test::new(
            "receives_into_forbidden_memory",
            &[Status(WC_LOC_PROT_ERR), Status(WC_REM_OP_ERR)],
            bad_receives,
        ),
        Test::new(
            "a_write_with_immediate_to_forbidden_memory",
            &[Status(WC_LOC_ACCESS_ERR), Status(WC_REM_ACCESS_ERR)],
            write_imm_refused,
        ),
        Test::new("nothing_is_checked_for_no_bytes", &[], zero_length),
        Test::new("a_region_destroyed_while_used", REMOTE, destroyed_while_used),
    ]
}

const LEN: usize = 8192;

/// Carries out a request that the peer must refuse with a NAK for remote access; it must not change `there`.
#[track_caller]
fn refused(p: &Pair, what: &str, request: &SendRequest, here: &Mr, len: usize, there: &Mr) {
    let before = there.memory().read(0, there.memory().len());
    let c = p.connect();
    c.a.post_send(request, &[here.sge(0, len)]).unwrap();
    let cqe = c.a.send_completion();
    assert!(cqe.status == WC_REM_ACCESS_ERR, "{what}: {cqe:?}");
    p.b.guest.expect_event(EVENT_QP_ACCESS_ERR, c.b.handle());
    assert_eq!((c.a.state(), c.b.state()), (QP_STATE_ERR, QP_STATE_ERR), "{what}");
    assert_same(&there.memory().read(0, before.len()), &before, what);
    for qp in [&c.a, &c.b] {
        qp.destroy().unwrap();
    }
}

fn allowed(p: &Pair, request: &SendRequest, here: &Mr, len: usize) {
    let c = p.connect();
    c.a.post_send(request, &[here.sge(0, len)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
}

fn remote_bounds(p: &Pair) {
    let here = p.a.buffer(2 * LEN);
    here.write(0, &[0xbb; 2 * LEN]);
    // A region in the middle of its pages, so that what lies beyond it is mapped all the same.
    let memory = p.b.buffer(4 * LEN);
    let there = p.b.pd.reg_mr(memory.memory(), LEN + 24, LEN, ACCESS_ALL).unwrap();
    for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ] {
        let at = |addr: u64| SendRequest { remote_addr: addr, ..wr::rdma(opcode, 1, &there, 0) };
        let (start, end) = (there.addr, there.addr + LEN as u64);
        allowed(p, &at(start), &here, LEN);
        allowed(p, &at(end - 1), &here, 1);
        for (what, addr, len) in [
            ("a byte before", start - 1, 1),
            ("from a byte before", start - 1, LEN),
            ("a byte behind", end, 1),
            ("to a byte behind", start, LEN + 1),
            ("across the end", end - 100, 101),
            ("far behind", start + (1 << 40), 8),
            ("at 0", 0, 8),
            ("at the end of all addresses", u64::MAX - 3, 4),
            ("across the end of all addresses", u64::MAX - 3, 8),
            ("around to the region", u64::MAX, 2 * LEN),
        ] {
            refused(p, what, &at(addr), &here, len, &memory);
        }
    }
    for opcode in [SEND_OP_FETCH_ADD, SEND_OP_CMP_SWAP] {
        let atomic = |addr: u64| SendRequest { remote_addr: addr, ..wr::atomic(opcode, 1, &there, 0, 0, 1) };
        allowed(p, &atomic(there.addr + LEN as u64 - 8), &here, 8);
        refused(p, "an atomic behind", &atomic(there.addr + LEN as u64), &here, 8, &memory);
        refused(p, "an atomic before", &atomic(there.addr - 8), &here, 8, &memory);
        refused(p, "an atomic at the end of all", &atomic(u64::MAX - 7), &here, 8, &memory);
    }
}

fn remote_keys(p: &Pair) {
    let here = p.a.buffer(64);
    let there = p.b.buffer(64);
    let other_pd = p.b.ctx.alloc_pd().unwrap();
    let foreign = other_pd.buffer(64).unwrap();
    let other_ctx = p.b.guest.open().unwrap();
    let stranger = other_ctx.alloc_pd().unwrap().buffer(64).unwrap();
    let gone = p.b.buffer(64);
    gone.destroy().unwrap();
    for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ, SEND_OP_FETCH_ADD, SEND_OP_CMP_SWAP] {
        let with = |target: &Mr, rkey: u32| match opcode {
            SEND_OP_RDMA_WRITE | SEND_OP_RDMA_READ => SendRequest { rkey, ..wr::rdma(opcode, 1, target, 0) },
            _ => SendRequest { rkey, ..wr::atomic(opcode, 1, target, 0, 0, 1) },
        };
        allowed(p, &with(&there, there.rkey), &here, 8);
        for (what, target, rkey) in [
            ("a key that is off by one", &there, there.rkey.wrapping_add(1)),
            ("a key that is off in its upper part", &there, there.rkey ^ 0x100),
            ("key 0", &there, 0),
            ("all bits", &there, u32::MAX),
            ("a region of another protection domain", &foreign, foreign.rkey),
            ("a region of another process", &stranger, stranger.rkey),
            ("a region that is gone", &gone, gone.rkey),
            ("a key of the guest that asks", &there, here.rkey),
        ] {
            refused(p, what, &with(target, rkey), &here, 8, target);
        }
    }
    other_ctx.destroy().unwrap();
}

fn remote_rights(p: &Pair) {
    let here = p.a.buffer(64);
    for (opcode, needed) in [
        (SEND_OP_RDMA_WRITE, ACCESS_REMOTE_WRITE),
        (SEND_OP_RDMA_READ, ACCESS_REMOTE_READ),
        (SEND_OP_FETCH_ADD, ACCESS_REMOTE_ATOMIC),
        (SEND_OP_CMP_SWAP, ACCESS_REMOTE_ATOMIC),
    ] {
        let request = |there: &Mr| match opcode {
            SEND_OP_RDMA_WRITE | SEND_OP_RDMA_READ => wr::rdma(opcode, 1, there, 0),
            _ => wr::atomic(opcode, 1, there, 0, 0, 1),
        };
        // Remote writes and atomics need local write as well (IBTA Vol 1 §10.6.3.1).
        let least = if needed == ACCESS_REMOTE_READ { needed } else { needed | ACCESS_LOCAL_WRITE };
        let there = p.b.pd.buffer_with(64, least).unwrap();
        allowed(p, &request(&there), &here, 8);
        let there = p.b.pd.buffer_with(64, ACCESS_ALL & !needed).unwrap();
        refused(p, "all rights but the one", &request(&there), &here, 8, &there);
        let there = p.b.pd.buffer_with(64, ACCESS_LOCAL_WRITE).unwrap();
        refused(p, "no remote right", &request(&there), &here, 8, &there);
    }
}

fn queue_pair_rights(p: &Pair) {
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    let all = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;
    for (request, needed) in [
        (wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), ACCESS_REMOTE_WRITE),
        (wr::rdma(SEND_OP_RDMA_READ, 1, &there, 0), ACCESS_REMOTE_READ),
        (wr::atomic(SEND_OP_FETCH_ADD, 1, &there, 0, 1, 0), ACCESS_REMOTE_ATOMIC),
        (wr::atomic(SEND_OP_CMP_SWAP, 1, &there, 0, 0, 1), ACCESS_REMOTE_ATOMIC),
    ] {
        let b = ConnectAttr { access: all & !needed, ..ConnectAttr::default() };
        let c = p.connect_with(&Setup { b, ..Setup::default() });
        c.a.post_send(&request, &[here.sge(0, 8)]).unwrap();
        assert_status(&c.a.send_completion(), WC_REM_INV_REQ_ERR);
        p.b.guest.expect_event(EVENT_QP_REQ_ERR, c.b.handle());
        assert_eq!(there.read(0, 64), [0; 64]);
    }
}

/// Scatter/gather entries that this queue pair must not use, each with its name.
fn bad_sges(own: &Mr, foreign: &Mr, gone: &Mr) -> Vec<(&'static str, Sge)> {
    let sge = own.sge(0, 16);
    let end = own.addr + own.len as u64;
    vec![
        ("a key that is off by one", Sge { lkey: own.lkey.wrapping_add(1), ..sge }),
        ("key 0", Sge { lkey: 0, ..sge }),
        ("a region of another protection domain", foreign.sge(0, 16)),
        ("a region that is gone", gone.sge(0, 16)),
        ("a byte before", Sge { addr: own.addr - 1, ..sge }),
        ("to a byte behind", Sge { addr: end - 15, ..sge }),
        ("longer than the region", Sge { length: own.len as u32 + 1, ..sge }),
        ("across the end of all addresses", Sge { addr: u64::MAX - 7, ..sge }),
    ]
}

struct Regions {
    own: Mr,
    foreign: Mr,
    gone: Mr,
}

impl Regions {
    fn new(pd: &Arc<Pd>) -> Self {
        let other = pd.context().alloc_pd().unwrap();
        let gone = pd.buffer(64).unwrap();
        gone.destroy().unwrap();
        Regions { own: pd.buffer(64).unwrap(), foreign: other.buffer(64).unwrap(), gone }
    }

    fn bad(&self) -> Vec<(&'static str, Sge)> {
        bad_sges(&self.own, &self.foreign, &self.gone)
    }
}

fn local_sends(p: &Pair) {
    let regions = Regions::new(&p.a.pd);
    let there = p.b.buffer(4096);
    for (what, bad) in regions.bad() {
        for request in [wr::request(SEND_OP_SEND, 1), wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0)] {
            let c = p.connect();
            c.b.post_recv(1, &[there.sge(0, 4096)]).unwrap();
            // The first entry is good: a request fails as a whole.
            c.a.post_send(&request, &[regions.own.sge(0, 8), bad]).unwrap();
            let cqe = c.a.send_completion();
            assert!(cqe.status == WC_LOC_PROT_ERR, "{what}: {cqe:?}");
            assert_eq!(there.read(0, 64), [0; 64], "{what}");
            assert_ne!(c.b.state(), QP_STATE_ERR, "{what}: the peer learns nothing");
        }
    }
}

fn local_reads(p: &Pair) {
    let regions = Regions::new(&p.a.pd);
    let there = p.b.buffer(4096);
    let read_only = p.a.pd.buffer_with(64, 0).unwrap();
    let mut bad = regions.bad();
    bad.push(("a region without local write", read_only.sge(0, 16)));
    for (what, bad) in bad {
        let c = p.connect();
        c.a.post_send(&wr::rdma(SEND_OP_RDMA_READ, 1, &there, 0), &[bad]).unwrap();
        let cqe = c.a.send_completion();
        assert!(cqe.status == WC_LOC_PROT_ERR, "{what}: {cqe:?}");
        let c = p.connect();
        let bad = Sge { length: bad.length.max(8), ..bad };
        c.a.post_send(&wr::atomic(SEND_OP_FETCH_ADD, 1, &there, 0, 1, 0), &[bad]).unwrap();
        let cqe = c.a.send_completion();
        assert!(cqe.status == WC_LOC_PROT_ERR, "atomic, {what}: {cqe:?}");
        assert_eq!(there.read_u64(0), 0, "{what}: nothing was added");
    }
    // Sending from memory without local write is fine.
    let c = p.connect();
    c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[read_only.sge(0, 16)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
}

fn bad_receives(p: &Pair) {
    let regions = Regions::new(&p.b.pd);
    let here = p.a.buffer(4096);
    here.write(0, &[1; 4096]);
    let read_only = p.b.pd.buffer_with(64, ACCESS_REMOTE_READ).unwrap();
    let mut bad = regions.bad();
    bad.push(("a region without local write", read_only.sge(0, 16)));
    for (what, bad) in bad {
        let c = p.connect();
        c.b.post_recv(1, &[bad]).unwrap();
        c.b.post_recv(2, &[]).unwrap();
        c.a.post_send(&wr::request(SEND_OP_SEND, 5), &[here.sge(0, 16)]).unwrap();
        let cqe = c.b.recv_completion();
        assert!(cqe.status == WC_LOC_PROT_ERR, "{what}: {cqe:?}");
        assert_status(&c.b.recv_completion(), WC_WR_FLUSH_ERR);
        let cqe = c.a.send_completion();
        assert!(cqe.status == WC_REM_OP_ERR, "{what}: {cqe:?}");
        for region in [&regions.own, &regions.foreign, &regions.gone, &read_only] {
            assert_eq!(region.read(0, 64), [0; 64], "{what}");
        }
    }
}

fn write_imm_refused(p: &Pair) {
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    let c = p.connect();
    c.b.post_recv(1, &[]).unwrap();
    c.b.post_recv(2, &[]).unwrap();
    let request = SendRequest { rkey: !there.rkey, ..wr::rdma(SEND_OP_RDMA_WRITE_IMM, 1, &there, 0) };
    c.a.post_send(&request, &[here.sge(0, 8)]).unwrap();
    let cqe = c.b.recv_completion();
    assert_status(&cqe, WC_LOC_ACCESS_ERR);
    assert_eq!(cqe.wr_id, 1);
    assert_status(&c.b.recv_completion(), WC_WR_FLUSH_ERR);
    assert_status(&c.a.send_completion(), WC_REM_ACCESS_ERR);
}

/// IBTA Vol 1 §9.7.4.1.5: a request for no bytes names no memory, so its key and address do not matter.
fn zero_length(p: &Pair) {
    let c = p.connect();
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    let nothing = Sge { addr: u64::MAX, length: 0, lkey: !here.lkey };
    for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ, SEND_OP_RDMA_WRITE_IMM, SEND_OP_SEND] {
        for sges in [&[nothing][..], &[]] {
            c.b.post_recv(1, &[nothing]).unwrap();
            let request = SendRequest { remote_addr: 3, rkey: !there.rkey, ..wr::rdma(opcode, 1, &there, 0) };
            c.a.post_send(&request, sges).unwrap();
            assert_status(&c.a.send_completion(), WC_SUCCESS);
        }
    }
    for _ in 0..4 {
        let cqe = c.b.recv_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.byte_len, 0);
    }
}

/// While the peer writes without pause, its target is destroyed: after that no byte of it changes.
fn destroyed_while_used(p: &Pair) {
    let c: Conn = p.connect();
    const LEN: usize = 100_000;
    let (here, there) = (p.a.buffer(2 * LEN), p.b.buffer(LEN));
    here.write(0, &pattern(1, 2 * LEN));
    let mut posted = 0;
    let mut done = 0;
    let failed = loop {
        while posted < done + 16 {
            let from = if posted % 2 == 0 { 0 } else { LEN };
            let request = wr::rdma(SEND_OP_RDMA_WRITE, posted, &there, 0);
            c.a.post_send(&request, &[here.sge(from, LEN)]).unwrap();
            posted += 1;
        }
        if done == 20 {
            there.destroy().unwrap();
            let before = there.read(0, LEN);
            std::thread::sleep(Duration::from_millis(20));
            assert_same(&there.read(0, LEN), &before, "after the region's end");
        }
        let cqe = c.a.send_completion();
        if cqe.status != WC_SUCCESS {
            break cqe;
        }
        done += 1;
    };
    assert_status(&failed, WC_REM_ACCESS_ERR);
    assert!(done >= 20);
    for _ in done + 1..posted {
        assert_status(&c.a.send_completion(), WC_WR_FLUSH_ERR);
    }
}
