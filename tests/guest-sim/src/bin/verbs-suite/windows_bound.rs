//! Windows that must not be bound or invalidated, and regions that are bound to.

use guest_sim::ControlError;
use guest_sim::suite::{Pair, assert_status};
use guest_sim::verbs::{ACCESS_ALL, Mr, Mw, wr};
use vrdma_abi::control::*;
use vrdma_abi::ring::*;
use vrdma_rings::{Operands, SendRequest};

use crate::Test;
use crate::windows::{LEN, allowed, bind, refused, region, run, window};

pub const TESTS: &[Test] = &[
    ("bindings_that_are_refused", refused_bindings),
    ("a_window_of_type_2_is_bound_once", bound_once),
    ("a_window_of_type_1_is_not_invalidated", type_1_stays),
    ("keys_that_cannot_be_invalidated", wrong_invalidation),
    ("a_region_with_a_window_stays", region_in_use),
    ("windows_that_cannot_be", impossible),
];

const BOTH: u32 = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ;

/// The binding fails at `b`, with its queue pair, and opens nothing.
#[track_caller]
fn not_bound(p: &Pair, what: &str, request: SendRequest) {
    let c = p.connect();
    let cqe = run(&c.b, request);
    assert!(cqe.status == WC_MW_BIND_ERR || cqe.status == WC_LOC_PROT_ERR, "{what}: {cqe:?}");
    assert_eq!(c.b.state(), QP_STATE_ERR, "{what}");
    let (other, here) = (p.connect(), p.a.buffer(64));
    let Operands::Bind(segment) = request.operands else { unreachable!("a binding") };
    refused(what, &other, SEND_OP_RDMA_READ, &here, request.rkey, segment.addr);
}

fn refused_bindings(p: &Pair) {
    let good = region(p);
    let no_windows = p.b.buffer(LEN);
    let read_only = p.b.pd.buffer_with(LEN, ACCESS_REMOTE_READ | ACCESS_MW_BIND).unwrap();
    let domain = p.b.ctx.alloc_pd().unwrap();
    let other_domain = domain.buffer_with(LEN, ACCESS_ALL | ACCESS_MW_BIND).unwrap();
    let gone = region(p);
    gone.destroy().unwrap();
    let spoil = |request: SendRequest, change: fn(&mut BindSegment)| {
        let Operands::Bind(mut segment) = request.operands else { unreachable!("a binding") };
        change(&mut segment);
        SendRequest { operands: Operands::Bind(segment), ..request }
    };
    for mw_type in [MW_TYPE_1, MW_TYPE_2] {
        let to = |mw: &Mw, region: &Mr| wr::bind(1, mw.rkey, region, 0, 64, BOTH);
        for (what, region) in [
            ("a region without the right", &no_windows),
            ("a region that cannot be written locally", &read_only),
            ("a region of another domain", &other_domain),
            ("a region that is gone", &gone),
        ] {
            let mw = window(p, mw_type);
            not_bound(p, what, to(&mw, region));
        }
        let mw = window(p, mw_type);
        not_bound(p, "behind the region", wr::bind(1, mw.rkey, &good, LEN - 8, 9, BOTH));
        not_bound(p, "a length beyond all", spoil(to(&mw, &good), |s| s.length = u64::MAX));
        not_bound(p, "before the region", spoil(to(&mw, &good), |s| s.addr -= 1));
        not_bound(p, "no window's key", SendRequest { rkey: mw.rkey ^ 0x100, ..to(&mw, &good) });
        not_bound(p, "a region's key", SendRequest { rkey: good.rkey ^ 1, ..to(&mw, &good) });
        let foreign = domain.alloc_mw(mw_type).unwrap();
        not_bound(p, "a window of another domain", to(&foreign, &good));
        let there = wr::bind(1, foreign.rkey, &other_domain, 0, 64, BOTH);
        not_bound(p, "a window and a region of another domain", there);
        // It is none the worse for it.
        let c = p.connect();
        bind(&c.b, mw.rkey, &good, 0, 64, BOTH);
        allowed(&c, SEND_OP_RDMA_READ, &p.a.buffer(64), mw.rkey, good.addr);
    }
}

fn bound_once(p: &Pair) {
    let (here, there) = (p.a.buffer(64), region(p));
    let (mw, c) = (window(p, MW_TYPE_2), p.connect());
    bind(&c.b, mw.rkey, &there, 0, 64, BOTH);
    allowed(&c, SEND_OP_RDMA_READ, &here, mw.rkey, there.addr);
    let cqe = run(&c.b, wr::bind(2, Mw::next_key(mw.rkey), &there, 64, 64, BOTH));
    assert_status(&cqe, WC_MW_BIND_ERR);
    // Another queue pair cannot take it away either.
    let mw = window(p, MW_TYPE_2);
    let (owner, other) = (p.connect(), p.connect());
    bind(&owner.b, mw.rkey, &there, 0, 64, BOTH);
    assert_status(&run(&other.b, wr::bind(3, Mw::next_key(mw.rkey), &there, 0, 64, BOTH)), WC_MW_BIND_ERR);
    allowed(&owner, SEND_OP_RDMA_READ, &here, mw.rkey, there.addr);
}

fn type_1_stays(p: &Pair) {
    let (here, there) = (p.a.buffer(64), region(p));
    let (mw, c) = (window(p, MW_TYPE_1), p.connect());
    bind(&c.b, mw.rkey, &there, 0, 64, BOTH);
    let cqe = run(&c.b, wr::local_inv(1, mw.rkey));
    assert_ne!(cqe.status, WC_SUCCESS, "type 1 is unbound by a binding of length 0 only");
    allowed(&p.connect(), SEND_OP_RDMA_READ, &here, mw.rkey, there.addr);
    let c = p.connect();
    c.b.post_recv(1, &[]).unwrap();
    assert_ne!(run(&c.a, wr::send_inv(2, mw.rkey)).status, WC_SUCCESS);
    allowed(&p.connect(), SEND_OP_RDMA_READ, &here, mw.rkey, there.addr);
}

/// A queue pair can end what is its own only: neither plain regions, nor what other queue pairs or domains have.
fn wrong_invalidation(p: &Pair) {
    let (here, there) = (p.a.buffer(64), region(p));
    let (mw, owner) = (window(p, MW_TYPE_2), p.connect());
    bind(&owner.b, mw.rkey, &there, 0, 64, BOTH);
    let foreign = p.b.ctx.alloc_pd().unwrap().alloc_mw(MW_TYPE_2).unwrap();
    for (what, key) in [
        ("a region", there.rkey),
        ("another queue pair's window", mw.rkey),
        ("a key from before", mw.rkey.wrapping_sub(1)),
        ("another domain's window", foreign.rkey),
        ("nobody's key", !mw.rkey),
        ("key 0", 0),
    ] {
        let c = p.connect();
        let cqe = run(&c.b, wr::local_inv(1, key));
        assert_ne!(cqe.status, WC_SUCCESS, "{what}, locally");
        assert_eq!(c.b.state(), QP_STATE_ERR, "{what}, locally");
        let c = p.connect();
        c.b.post_recv(1, &[]).unwrap();
        let cqe = run(&c.a, wr::send_inv(2, key));
        assert_ne!(cqe.status, WC_SUCCESS, "{what}, by the peer");
        allowed(&owner, SEND_OP_RDMA_READ, &here, mw.rkey, there.addr);
        allowed(&p.connect(), SEND_OP_RDMA_READ, &here, there.rkey, there.addr);
    }
}

fn errno<T>(result: Result<T, ControlError>) -> i32 {
    result.err().expect("refused").errno()
}

fn region_in_use(p: &Pair) {
    for mw_type in [MW_TYPE_1, MW_TYPE_2] {
        let there = region(p);
        let (mw, c) = (window(p, mw_type), p.connect());
        bind(&c.b, mw.rkey, &there, 0, 64, BOTH);
        assert_eq!(errno(there.destroy()), libc::EBUSY);
        assert_eq!(errno(there.rereg(None, Some(0), None)), libc::EBUSY);
        allowed(&c, SEND_OP_RDMA_READ, &p.a.buffer(64), mw.rkey, there.addr);
        if mw_type == MW_TYPE_1 {
            bind(&c.b, Mw::next_key(mw.rkey), &there, 0, 0, 0);
        } else {
            assert_status(&run(&c.b, wr::local_inv(1, mw.rkey)), WC_SUCCESS);
        }
        there.destroy().expect("no window is bound to it any more");
    }
}

fn impossible(p: &Pair) {
    assert!(p.b.guest.config.max_mws > 0);
    for mw_type in [0, 3, 255] {
        assert_eq!(errno(p.b.pd.alloc_mw(mw_type)), libc::EINVAL);
    }
    let domain = p.b.ctx.alloc_pd().unwrap();
    let mw = domain.alloc_mw(MW_TYPE_1).unwrap();
    assert_eq!(errno(domain.destroy()), libc::EBUSY, "the domain of a window");
    mw.destroy().unwrap();
    domain.destroy().unwrap();
    // A process that ends takes its windows with it, and so its regions are free.
    let ctx = p.b.guest.open().unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let _region = pd.buffer_with(64, ACCESS_ALL | ACCESS_MW_BIND).unwrap();
    let _window = pd.alloc_mw(MW_TYPE_2).unwrap();
    ctx.destroy().unwrap();
}
