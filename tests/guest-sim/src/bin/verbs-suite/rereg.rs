//! Memory regions that are registered anew under the same keys.

use std::sync::Arc;

use guest_sim::ControlError;
use guest_sim::suite::{Conn, Pair, Setup, assert_status};
use guest_sim::verbs::{ACCESS_ALL, Mr, QpCaps, wr};
use vrdma_abi::control::*;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("a_region_gets_other_rights", rights),
    ("a_region_gets_other_memory", memory),
    ("a_region_gets_another_domain", domain),
    ("a_region_changes_altogether", everything),
    ("a_change_of_a_region_that_is_refused", refused_change),
    ("a_region_changes_while_peers_write", under_load),
];

const LEN: usize = 8192;

fn try_to(c: &Conn, opcode: u8, here: &Mr, there: &Mr, status: u8) {
    c.a.post_send(&wr::rdma(opcode, 1, there, 0), &[here.sge(0, 8)]).unwrap();
    assert_status(&c.a.send_completion(), status);
}

/// What each of write and read come to.
#[track_caller]
fn probe(p: &Pair, here: &Mr, there: &Mr, write: u8, read: u8) {
    for (opcode, status) in [(SEND_OP_RDMA_WRITE, write), (SEND_OP_RDMA_READ, read)] {
        try_to(&p.connect(), opcode, here, there, status);
    }
}

fn rights(p: &Pair) {
    let (here, there) = (p.a.buffer(LEN), p.b.buffer(LEN));
    probe(p, &here, &there, WC_SUCCESS, WC_SUCCESS);
    let there = there.rereg(None, Some(ACCESS_REMOTE_READ), None).unwrap();
    probe(p, &here, &there, WC_REM_ACCESS_ERR, WC_SUCCESS);
    let there = there.rereg(None, Some(ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE), None).unwrap();
    probe(p, &here, &there, WC_SUCCESS, WC_REM_ACCESS_ERR);
    let there = there.rereg(None, Some(0), None).unwrap();
    probe(p, &here, &there, WC_REM_ACCESS_ERR, WC_REM_ACCESS_ERR);
    // Local rights as well.
    let c = p.connect();
    c.b.post_recv(1, &[there.sge(0, 64)]).unwrap();
    c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, 64)]).unwrap();
    assert_status(&c.b.recv_completion(), WC_LOC_PROT_ERR);
    assert_status(&c.a.send_completion(), WC_REM_OP_ERR);
}

fn memory(p: &Pair) {
    let (here, old) = (p.a.buffer(LEN), p.b.buffer(LEN));
    here.write(0, b"somewhere else");
    let other = Arc::new(p.b.guest.ram.alloc_scattered(5).unwrap());
    let new = old.rereg(None, None, Some((&other, 100, 4 * 4096))).unwrap();
    try_to(&p.connect(), SEND_OP_RDMA_WRITE, &here, &new, WC_SUCCESS);
    assert_eq!(other.read(100, 8), b"somewher");
    assert_eq!(old.read(0, 64), [0; 64]);
    // The end is another one, and so is the beginning.
    let c = p.connect();
    let end = wr::rdma(SEND_OP_RDMA_WRITE, 1, &new, 4 * 4096 - 8);
    c.a.post_send(&end, &[here.sge(0, 8)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    c.a.post_send(&SendRequest { remote_addr: end.remote_addr + 1, ..end }, &[here.sge(0, 8)]).unwrap();
    assert_status(&c.a.send_completion(), WC_REM_ACCESS_ERR);
    try_to(&p.connect(), SEND_OP_RDMA_WRITE, &here, &old, WC_REM_ACCESS_ERR);
    assert_eq!(old.read(0, 64), [0; 64]);
}

/// A connection whose end at `b` is in another domain.
fn in_domain(p: &Pair, pd: &Arc<guest_sim::verbs::Pd>) -> Conn {
    let cq = p.b.ctx.create_cq(64, 0).unwrap();
    let setup = Setup::default();
    let b = pd.create_qp(&cq, &cq, &QpCaps::default()).unwrap();
    let c = Conn { a: p.a.qp(&setup.caps_a, 64), b };
    c.connect(p, &setup);
    c
}

fn domain(p: &Pair) {
    let (here, there) = (p.a.buffer(LEN), p.b.buffer(LEN));
    let second = p.b.ctx.alloc_pd().unwrap();
    try_to(&in_domain(p, &second), SEND_OP_RDMA_WRITE, &here, &there, WC_REM_ACCESS_ERR);
    let there = there.rereg(Some(&second), None, None).unwrap();
    try_to(&in_domain(p, &second), SEND_OP_RDMA_WRITE, &here, &there, WC_SUCCESS);
    probe(p, &here, &there, WC_REM_ACCESS_ERR, WC_REM_ACCESS_ERR);
    // The first domain has lost a user, the second has one more.
    assert_eq!(second.destroy().expect_err("in use").errno(), libc::EBUSY);
    there.destroy().unwrap();
}

fn everything(p: &Pair) {
    let (here, old) = (p.a.buffer(LEN), p.b.buffer(LEN));
    let second = p.b.ctx.alloc_pd().unwrap();
    let other = Arc::new(p.b.guest.ram.alloc_scattered(2).unwrap());
    let new = old.rereg(Some(&second), Some(ACCESS_REMOTE_READ), Some((&other, 0, 4096))).unwrap();
    other.write(0, b"readable");
    try_to(&in_domain(p, &second), SEND_OP_RDMA_READ, &here, &new, WC_SUCCESS);
    assert_eq!(here.read(0, 8), b"readable");
    try_to(&in_domain(p, &second), SEND_OP_RDMA_WRITE, &here, &new, WC_REM_ACCESS_ERR);
    try_to(&in_domain(p, &second), SEND_OP_RDMA_READ, &here, &old, WC_REM_ACCESS_ERR);
}

fn errno<T>(result: Result<T, ControlError>) -> i32 {
    result.err().expect("refused").errno()
}

/// What is refused has changed nothing.
fn refused_change(p: &Pair) {
    let (here, there) = (p.a.buffer(LEN), p.b.buffer(LEN));
    let stranger = p.b.guest.open().unwrap().alloc_pd().unwrap();
    assert_eq!(errno(there.rereg(Some(&stranger), Some(0), None)), libc::EINVAL, "another process's domain");
    assert_eq!(errno(there.rereg(None, Some(1 << 10), None)), libc::EOPNOTSUPP, "an unknown right");
    assert_eq!(
        errno(there.rereg(None, Some(ACCESS_REMOTE_WRITE), None)),
        libc::EINVAL,
        "no right to write locally"
    );
    let control = p.b.guest.control();
    let rereg = |command: ReregMr| control.call::<_, CreateMrReply>(OP_REREG_MR, &command);
    let change = ReregMr { mr: there.handle(), flags: REREG_ACCESS, pd: HANDLE_NONE, ..ReregMr::ZERO };
    assert_eq!(errno(rereg(ReregMr { flags: 8, ..change })), libc::EOPNOTSUPP, "an unknown bit");
    assert_eq!(errno(rereg(ReregMr { mr: 0x7777_0000, ..change })), libc::ENOENT);
    assert_eq!(errno(rereg(ReregMr { pd: 0x7777_0000, flags: REREG_PD, ..change })), libc::ENOENT);
    let few = PageTable { addr: 0, count: 1, page_shift: 12, levels: 0, reserved: 0 };
    let translation = ReregMr { flags: REREG_TRANSLATION | REREG_ACCESS, length: 8192, pages: few, ..change };
    assert_eq!(errno(rereg(translation)), libc::EINVAL, "fewer pages than the length");
    probe(p, &here, &there, WC_SUCCESS, WC_SUCCESS);
    stranger.context().destroy().unwrap();
}

/// Nothing is written into the old memory after the reply, whatever is under way.
fn under_load(p: &Pair) {
    const LARGE: usize = 1 << 18;
    let here = p.a.buffer(LARGE);
    here.fill(0, LARGE, 0xee);
    for _ in 0..10 {
        let there = p.b.buffer(LARGE);
        let c = p.connect();
        for k in 0..20 {
            c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, k, &there, 0), &[here.sge(0, LARGE)]).unwrap();
        }
        let other = Arc::new(p.b.guest.ram.alloc(LARGE / 4096));
        let new = there.rereg(None, Some(ACCESS_ALL), Some((&other, 0, LARGE))).unwrap();
        there.fill(0, LARGE, 0);
        let mut statuses: Vec<u8> = (0..20).map(|_| c.a.send_completion().status).collect();
        statuses.dedup();
        assert!(statuses.len() <= 3, "successes, at most one failure, and what it flushes: {statuses:?}");
        assert!(there.read(0, LARGE).iter().all(|&b| b == 0), "the memory from before was written");
        new.destroy().unwrap();
    }
}
