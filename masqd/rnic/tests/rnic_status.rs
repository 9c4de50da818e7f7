//! Each way in which a request between two guests of one RNIC can fail: what both ends are told. The remote path's
//! tests expect the same (`transport_status.rs`, and the suite of tests/guest-sim over both).

mod common;

use common::*;
use masq_driver::*;
use masq_rnic::RnicConfig;
use vrdma_abi::ring::*;
use vrdma_rings::{Operands, SendRequest};

struct Two {
    net: Net,
    a: Guest,
    b: Guest,
    a_cq: TestCq,
    b_cq: TestCq,
    a_qp: TestQp,
    b_qp: TestQp,
    a_mr: Mr,
    b_mr: Mr,
}

const MR: u64 = 1 << 20;

fn two_with(options: Options, b_access: Access, connected: bool) -> Two {
    let mut net = Net::new(&[RnicConfig::default()]);
    let address = fresh_address();
    let mut a = Guest::attach(&mut net, 0, 1, 100, &address, 4 << 20);
    let mut b = Guest::attach(&mut net, 0, 2, 100, &address, 4 << 20);
    let (a_cq, b_cq) = (a.cq(&mut net, 64), b.cq(&mut net, 64));
    let (a_qp, b_qp) = (a.qp(&mut net, &a_cq, &a_cq), b.qp(&mut net, &b_cq, &b_cq));
    let (a_mr, b_mr) = (a.mr(&mut net, MR, all_access()), b.mr(&mut net, MR, b_access));
    if connected {
        connect(&mut net, (&a, &a_qp), (&b, &b_qp), &options);
    }
    Two { net, a, b, a_cq, b_cq, a_qp, b_qp, a_mr, b_mr }
}

fn two(options: Options) -> Two {
    two_with(options, all_access(), true)
}

impl Two {
    /// Posts a request that fails and one behind it; the first gets `status`, the second is flushed.
    fn expect_failure(&mut self, r: &SendRequest, sges: &[Sge], status: u8) {
        self.a.post(&mut self.a_qp, r, sges);
        self.a.post(&mut self.a_qp, &request(SEND_OP_SEND, 999), &[]);
        let c = wait(&mut self.net, &mut self.a_cq);
        assert_eq!((c.wr_id, c.status), (r.wr_id, status), "{c:?}");
        assert_ne!(c.vendor_err, 0);
        assert_ne!(c.flags & CQE_SOLICITED, 0);
        let c = wait(&mut self.net, &mut self.a_cq);
        assert_eq!((c.wr_id, c.status), (999, WC_WR_FLUSH_ERR));
        assert_eq!(self.a.state(&mut self.net, &self.a_qp), QpState::Err);
    }

    /// The faults that B's guest is told of.
    fn faults(&mut self) -> Vec<(QpHandle, QpFault)> {
        let fault = |e: Event| match e {
            Event::QpFault { vnic, qp, fault, .. } if vnic == self.b.id => Some((qp, fault)),
            Event::QpFault { .. } => panic!("{e:?}"),
            _ => None,
        };
        self.net.events[0].take().into_iter().filter_map(fault).collect()
    }

    /// B's queue pair has failed with `fault`, or with none but a completion.
    fn expect_peer_failed(&mut self, fault: Option<QpFault>) {
        assert_eq!(self.b.state(&mut self.net, &self.b_qp), QpState::Err);
        let expected: Vec<_> = fault.map(|f| (self.b_qp.handle, f)).into_iter().collect();
        assert_eq!(self.faults(), expected);
    }

    fn expect_peer_alive(&mut self) {
        assert_eq!(self.b.state(&mut self.net, &self.b_qp), QpState::Rts);
        assert_eq!(self.faults(), []);
    }

    fn write(&self) -> SendRequest {
        to(&self.b_mr, 0, request(SEND_OP_RDMA_WRITE, 1))
    }
}

fn atomic(mr: &Mr, offset: u64) -> SendRequest {
    let operands = Operands::Atomic(AtomicSegment { compare_add: 1, swap: 0 });
    SendRequest { operands, ..to(mr, offset, request(SEND_OP_FETCH_ADD, 1)) }
}

#[test]
fn own_key_and_range() {
    for bad in [Sge { addr: 0, length: 1, lkey: 0x1234_5600 }, Sge { addr: 1, length: 1, lkey: 0 }] {
        let mut t = two(Options::default());
        let write = t.write();
        t.expect_failure(&write, &[bad], WC_LOC_PROT_ERR);
        t.expect_peer_alive();
    }
    let mut t = two(Options::default());
    let long = sge(&t.a_mr, MR - 10, 11);
    let write = t.write();
    t.expect_failure(&write, &[long], WC_LOC_PROT_ERR);
    let mut t = two(Options::default());
    let foreign = t.a.mr_at(&mut t.net, t.a_mr.gpa, MR, all_access(), PdHandle(2));
    let write = t.write();
    t.expect_failure(&write, &[sge(&foreign, 0, 1)], WC_LOC_PROT_ERR);
    // A read's result needs the right to write.
    let mut t = two(Options::default());
    let readable = t.a.mr_at(&mut t.net, t.a_mr.gpa, MR, Access::default(), PD);
    let read = to(&t.b_mr, 0, request(SEND_OP_RDMA_READ, 1));
    t.expect_failure(&read, &[sge(&readable, 0, 1)], WC_LOC_PROT_ERR);
    t.expect_peer_alive();
}

#[test]
fn malformed_requests() {
    let mut t = two(Options::default());
    t.expect_failure(&request(SEND_OP_WAIT, 1), &[], WC_LOC_QP_OP_ERR);
    t.expect_peer_alive();
    let mut t = two(Options { max_rd_atomic: 0, ..Options::default() });
    let read = to(&t.b_mr, 0, request(SEND_OP_RDMA_READ, 1));
    t.expect_failure(&read, &[sge(&t.a_mr, 0, 8)], WC_LOC_QP_OP_ERR);
    let mut t = two(Options::default());
    let small = sge(&t.a_mr, 0, 7);
    let r = atomic(&t.b_mr, 0);
    t.expect_failure(&r, &[small], WC_LOC_LEN_ERR);
    let mut t = two(Options::default());
    let huge: Vec<Sge> = (0..3).map(|_| sge(&t.a_mr, 0, 1 << 30)).collect();
    let write = t.write();
    t.expect_failure(&write, &huge, WC_LOC_LEN_ERR);
    t.expect_peer_alive();
}

#[test]
fn keys_ranges_and_rights_of_the_peer() {
    let nothing = Access { local_write: true, ..Access::default() };
    let ok = all_access();
    type Adjust = fn(&mut SendRequest);
    let cases: [(Access, Adjust); 5] = [
        (ok, |r| r.rkey ^= 0x100),
        (ok, |r| r.remote_addr += MR - 7),
        (ok, |r| r.remote_addr = u64::MAX - 7),
        (ok, |r| r.remote_addr -= 8),
        (nothing, |_| {}),
    ];
    for (access, adjust) in cases {
        for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ, SEND_OP_FETCH_ADD] {
            let mut t = two_with(Options::default(), access, true);
            let mut r = if opcode == SEND_OP_FETCH_ADD {
                atomic(&t.b_mr, 0)
            } else {
                to(&t.b_mr, 0, request(opcode, 1))
            };
            adjust(&mut r);
            // An atomic's address must be aligned before its range matters.
            if opcode == SEND_OP_FETCH_ADD && r.remote_addr % 8 != 0 {
                r.remote_addr = (r.remote_addr | 7).wrapping_add(1);
            }
            let before = t.b.read(t.b_mr.gpa, MR as usize);
            t.a.write(t.a_mr.gpa, &[9; 64]);
            let data = sge(&t.a_mr, 0, 8);
            t.expect_failure(&r, &[data], WC_REM_ACCESS_ERR);
            t.expect_peer_failed(Some(QpFault::Access));
            assert!(t.b.read(t.b_mr.gpa, MR as usize) == before, "nothing was written");
            assert_eq!(t.a.read(t.a_mr.gpa, 64), [9; 64], "nothing was read");
        }
    }
    let mut t = two(Options::default());
    let foreign = t.b.mr_at(&mut t.net, t.b_mr.gpa, MR, all_access(), PdHandle(2));
    let data = sge(&t.a_mr, 0, 8);
    t.expect_failure(&to(&foreign, 0, request(SEND_OP_RDMA_WRITE, 1)), &[data], WC_REM_ACCESS_ERR);
    t.expect_peer_failed(Some(QpFault::Access));
}

#[test]
fn rights_of_the_peers_queue_pair() {
    let a_access = Access { local_write: true, ..Access::default() };
    let options = Options { access: a_access, ..Options::default() };
    for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ] {
        let mut t = two(options);
        let (r, data) = (to(&t.b_mr, 0, request(opcode, 1)), sge(&t.a_mr, 0, 8));
        t.expect_failure(&r, &[data], WC_REM_INV_REQ_ERR);
        t.expect_peer_failed(Some(QpFault::Request));
    }
    let mut t = two(options);
    let data = sge(&t.a_mr, 0, 8);
    let r = atomic(&t.b_mr, 0);
    t.expect_failure(&r, &[data], WC_REM_INV_REQ_ERR);
    for (options, offset) in
        [(Options { max_dest_rd_atomic: 0, ..Options::default() }, 0), (Options::default(), 4)]
    {
        let mut t = two(options);
        let data = sge(&t.a_mr, 0, 8);
        let r = atomic(&t.b_mr, offset);
        t.expect_failure(&r, &[data], WC_REM_INV_REQ_ERR);
        t.expect_peer_failed(Some(QpFault::Request));
    }
}

#[test]
fn a_receive_that_is_too_short_or_not_writable() {
    let mut t = two(Options::default());
    t.b.post_recv(&mut t.b_qp, 5, &[sge(&t.b_mr, 0, 100)]);
    t.b.post_recv(&mut t.b_qp, 6, &[]);
    let data = sge(&t.a_mr, 0, 101);
    t.expect_failure(&request(SEND_OP_SEND, 1), &[data], WC_REM_INV_REQ_ERR);
    let c = wait(&mut t.net, &mut t.b_cq);
    assert_eq!((c.wr_id, c.status), (5, WC_LOC_LEN_ERR));
    let c = wait(&mut t.net, &mut t.b_cq);
    assert_eq!((c.wr_id, c.status), (6, WC_WR_FLUSH_ERR));
    t.expect_peer_failed(None);

    let mut t = two(Options::default());
    t.b.post_recv(&mut t.b_qp, 5, &[Sge { addr: 0, length: 8, lkey: 0x77 }]);
    let data = sge(&t.a_mr, 0, 8);
    t.expect_failure(&request(SEND_OP_SEND, 1), &[data], WC_REM_OP_ERR);
    let c = wait(&mut t.net, &mut t.b_cq);
    assert_eq!((c.wr_id, c.status), (5, WC_LOC_PROT_ERR));
    t.expect_peer_failed(None);

    // With immediate data, a write that is refused takes its receive along.
    let mut t = two(Options::default());
    t.b.post_recv(&mut t.b_qp, 5, &[]);
    let data = sge(&t.a_mr, 0, 8);
    let r = SendRequest { rkey: 0x55, ..to(&t.b_mr, 0, request(SEND_OP_RDMA_WRITE_IMM, 1)) };
    t.expect_failure(&r, &[data], WC_REM_ACCESS_ERR);
    let c = wait(&mut t.net, &mut t.b_cq);
    assert_eq!((c.wr_id, c.status), (5, WC_LOC_ACCESS_ERR));
    t.expect_peer_failed(Some(QpFault::Access));
}

#[test]
fn no_receive() {
    // Without end: a receive that comes late is used.
    let mut t = two(Options::default());
    let data = sge(&t.a_mr, 0, 8);
    t.a.post(&mut t.a_qp, &request(SEND_OP_SEND, 1), &[data]);
    t.net.run(1000);
    assert!(t.a_cq.ring.poll().is_none());
    t.b.post_recv(&mut t.b_qp, 5, &[sge(&t.b_mr, 0, 8)]);
    assert_eq!(wait(&mut t.net, &mut t.a_cq).status, WC_SUCCESS);
    assert_eq!(wait(&mut t.net, &mut t.b_cq).wr_id, 5);
    // Three times, 0.64 ms apart (IBTA Vol 1 table 45, code 12).
    let mut t = two(Options { rnr_retry: 3, min_rnr_timer: 12, ..Options::default() });
    let begin = t.net.now;
    let data = sge(&t.a_mr, 0, 8);
    t.expect_failure(&request(SEND_OP_SEND, 1), &[data], WC_RNR_RETRY_EXC_ERR);
    let waited = t.net.now - begin;
    assert!((1_920_000..2_500_000).contains(&waited), "{waited}");
    t.expect_peer_alive();
    assert_eq!(t.net.counter(0, "rnr_nak_retry_err"), 1);
    // A write needs a receive for its immediate data only.
    let mut t = two(Options { rnr_retry: 0, ..Options::default() });
    let data = sge(&t.a_mr, 0, 8);
    let r = to(&t.b_mr, 0, request(SEND_OP_RDMA_WRITE_IMM, 1));
    t.expect_failure(&r, &[data], WC_RNR_RETRY_EXC_ERR);
}

#[test]
fn a_peer_that_does_not_answer() {
    // In RESET, then gone.
    for gone in [false, true] {
        let options = Options { timeout: 12, retry_cnt: 2, ..Options::default() };
        let mut t = two_with(options, all_access(), false);
        t.a.to_rtr(&mut t.net, &t.a_qp, &t.b_qp, &options);
        t.a.to_rts(&mut t.net, &t.a_qp, &options);
        if gone {
            let destroy = Command::DestroyQp { vnic: t.b.id, qp: t.b_qp.handle };
            t.net.execute(0, destroy).unwrap();
        }
        let begin = t.net.now;
        let data = sge(&t.a_mr, 0, 8);
        let write = t.write();
        t.expect_failure(&write, &[data], WC_RETRY_EXC_ERR);
        // 4.096 µs · 2^12, three times.
        let waited = t.net.now - begin;
        assert!((50_300_000..60_000_000).contains(&waited), "{waited}");
    }
}

#[test]
fn a_peer_that_becomes_ready_late() {
    for timeout in [0, 14] {
        let options = Options { timeout, retry_cnt: 1, ..Options::default() };
        let mut t = two_with(options, all_access(), false);
        t.a.to_rtr(&mut t.net, &t.a_qp, &t.b_qp, &options);
        t.a.to_rts(&mut t.net, &t.a_qp, &options);
        let data = sge(&t.a_mr, 0, 8);
        let write = t.write();
        t.a.post(&mut t.a_qp, &write, &[data]);
        t.net.run(50);
        assert!(t.a_cq.ring.poll().is_none());
        t.b.to_rtr(&mut t.net, &t.b_qp, &t.a_qp, &options);
        assert_eq!(wait(&mut t.net, &mut t.a_cq).status, WC_SUCCESS);
        let events = t.net.events[0].take();
        assert_eq!(events, [Event::CommEstablished { vnic: t.b.id, qp: t.b_qp.handle }]);
    }
}

#[test]
fn a_peer_in_error_or_revoked_does_not_answer() {
    for revoke in [false, true] {
        let mut t = two(Options { timeout: 1, retry_cnt: 0, ..Options::default() });
        t.b.post_recv(&mut t.b_qp, 8, &[]);
        if revoke {
            let revoke = Command::RevokeQp { vnic: t.b.id, qp: t.b_qp.handle };
            t.net.execute(0, revoke).unwrap();
            t.expect_peer_failed(Some(QpFault::Fatal));
        } else {
            let err = QpChange { to: Some(QpState::Err), ..QpChange::default() };
            t.b.modify(&mut t.net, &t.b_qp, err).unwrap();
            t.expect_peer_failed(None);
        }
        assert_eq!(wait(&mut t.net, &mut t.b_cq).status, WC_WR_FLUSH_ERR);
        let data = sge(&t.a_mr, 0, 8);
        let write = t.write();
        t.expect_failure(&write, &[data], WC_RETRY_EXC_ERR);
    }
}

/// Whoever is not connected back, or is in another network, is not there.
#[test]
fn a_connection_needs_both_ends_and_one_network() {
    let options = Options { timeout: 1, retry_cnt: 0, ..Options::default() };
    // B is connected to another queue pair of A.
    let mut t = two_with(options, all_access(), false);
    let other = t.a.qp(&mut t.net, &t.a_cq, &t.a_cq);
    t.a.to_rtr(&mut t.net, &t.a_qp, &t.b_qp, &options);
    t.a.to_rts(&mut t.net, &t.a_qp, &options);
    t.b.to_rtr(&mut t.net, &t.b_qp, &other, &options);
    let data = sge(&t.a_mr, 0, 8);
    let write = t.write();
    t.expect_failure(&write, &[data], WC_RETRY_EXC_ERR);
    assert_eq!(t.b.state(&mut t.net, &t.b_qp), QpState::Rtr);
    // Both are connected to one another, in two networks.
    let mut net = Net::new(&[RnicConfig::default()]);
    let address = fresh_address();
    let mut a = Guest::attach(&mut net, 0, 1, 100, &address, 4 << 20);
    let mut b = Guest::attach(&mut net, 0, 2, 101, &address, 4 << 20);
    let (a_cq, b_cq) = (a.cq(&mut net, 64), b.cq(&mut net, 64));
    let (a_qp, b_qp) = (a.qp(&mut net, &a_cq, &a_cq), b.qp(&mut net, &b_cq, &b_cq));
    let (a_mr, b_mr) = (a.mr(&mut net, MR, all_access()), b.mr(&mut net, MR, all_access()));
    connect(&mut net, (&a, &a_qp), (&b, &b_qp), &options);
    let mut t = Two { net, a, b, a_cq, b_cq, a_qp, b_qp, a_mr, b_mr };
    t.a.write(t.a_mr.gpa, &[1; 8]);
    let data = sge(&t.a_mr, 0, 8);
    let write = t.write();
    t.expect_failure(&write, &[data], WC_RETRY_EXC_ERR);
    assert_eq!(t.b.read(t.b_mr.gpa, 8), [0; 8]);
    t.expect_peer_alive();
}

#[test]
fn a_region_that_goes_while_a_message_is_copied() {
    for own in [false, true] {
        let mut t = two(Options::default());
        let data = sge(&t.a_mr, 0, MR as u32);
        let write = t.write();
        t.a.post(&mut t.a_qp, &write, &[data]);
        t.net.engines[0].turn(masq_rnic::transport::Time::from_nanos(t.net.now));
        assert!(t.a_cq.ring.poll().is_none(), "a message of 1 MiB takes more than a turn");
        let (vnic, mr) = if own { (t.a.id, t.a_mr.handle) } else { (t.b.id, t.b_mr.handle) };
        t.net.execute(0, Command::DestroyMr { vnic, mr }).unwrap();
        let before = t.b.read(t.b_mr.gpa, MR as usize);
        let c = wait(&mut t.net, &mut t.a_cq);
        assert_eq!(c.status, if own { WC_LOC_PROT_ERR } else { WC_REM_ACCESS_ERR });
        assert!(t.b.read(t.b_mr.gpa, MR as usize) == before, "no access through a destroyed region");
    }
}

#[test]
fn receives_posted_in_error_are_flushed() {
    let mut t = two(Options::default());
    let err = QpChange { to: Some(QpState::Err), ..QpChange::default() };
    t.b.modify(&mut t.net, &t.b_qp, err).unwrap();
    t.net.run(500);
    for wr_id in 0..3 {
        t.b.post_recv(&mut t.b_qp, wr_id, &[]);
        let begin = t.net.now;
        let c = wait(&mut t.net, &mut t.b_cq);
        assert_eq!((c.wr_id, c.status), (wr_id, WC_WR_FLUSH_ERR));
        assert!(t.net.now - begin < 600_000_000);
    }
    t.b.post(&mut t.b_qp, &request(SEND_OP_SEND, 77), &[]);
    let c = wait(&mut t.net, &mut t.b_cq);
    assert_eq!((c.wr_id, c.status), (77, WC_WR_FLUSH_ERR));
}

#[test]
fn draining_waits_for_the_message_at_hand() {
    let mut t = two(Options::default());
    let data = sge(&t.a_mr, 0, MR as u32);
    let write = t.write();
    t.a.post(&mut t.a_qp, &write, &[data]);
    t.net.engines[0].turn(masq_rnic::transport::Time::from_nanos(t.net.now));
    let change = QpChange { to: Some(QpState::Sqd), sq_drained_notify: Some(true), ..QpChange::default() };
    t.a.modify(&mut t.net, &t.a_qp, change).unwrap();
    assert_eq!(t.net.events[0].take(), []);
    let query = |t: &mut Two| match t.net.execute(0, Command::QueryQp { vnic: t.a.id, qp: t.a_qp.handle }) {
        Ok(Reply::Qp(status)) => status,
        other => panic!("{other:?}"),
    };
    assert!(query(&mut t).sq_draining);
    t.a.post(&mut t.a_qp, &request(SEND_OP_SEND, 2), &[]);
    assert_eq!(wait(&mut t.net, &mut t.a_cq).wr_id, 1);
    t.net.run(100);
    assert_eq!(t.net.events[0].take(), [Event::SqDrained { vnic: t.a.id, qp: t.a_qp.handle }]);
    assert!(!query(&mut t).sq_draining);
    assert!(t.a_cq.ring.poll().is_none(), "nothing is begun in SQD");
    t.b.post_recv(&mut t.b_qp, 5, &[]);
    let rts = QpChange { to: Some(QpState::Rts), ..QpChange::default() };
    t.a.modify(&mut t.net, &t.a_qp, rts).unwrap();
    assert_eq!(wait(&mut t.net, &mut t.a_cq).wr_id, 2);
}

#[test]
fn after_a_reset_everything_begins_anew() {
    let mut t = two(Options::default());
    let data = sge(&t.a_mr, 0, 8);
    for round in 0..3 {
        let write = t.write();
        t.a.post(&mut t.a_qp, &write, &[data]);
        assert_eq!(wait(&mut t.net, &mut t.a_cq).consumer, 1, "round {round}");
        // Left behind on purpose: neither completes.
        t.a.post(&mut t.a_qp, &request(SEND_OP_SEND, 4), &[data]);
        t.net.run(2);
        let reset = QpChange { to: Some(QpState::Reset), ..QpChange::default() };
        for (guest, qp) in [(&t.a, &mut t.a_qp), (&t.b, &mut t.b_qp)] {
            guest.modify(&mut t.net, qp, reset.clone()).unwrap();
            qp.sq.reset();
            qp.rq.reset();
        }
        t.net.run(2);
        assert!(t.a_cq.ring.poll().is_none());
        connect(&mut t.net, (&t.a, &t.a_qp), (&t.b, &t.b_qp), &Options::default());
    }
}

#[test]
fn a_completion_queue_that_overruns_takes_its_queue_pairs_along() {
    let mut t = two(Options::default());
    let tiny = t.a.cq(&mut t.net, 2);
    let qp = t.a.qp(&mut t.net, &t.a_cq, &tiny);
    let mut peer = t.b.qp(&mut t.net, &t.b_cq, &t.b_cq);
    connect(&mut t.net, (&t.a, &qp), (&t.b, &peer), &Options { timeout: 1, ..Options::default() });
    let mut qp = qp;
    for i in 0..4 {
        t.a.post_recv(&mut qp, i, &[]);
        t.b.post(&mut peer, &request(SEND_OP_SEND, i), &[]);
    }
    t.net.run(100);
    assert_eq!(t.a.state(&mut t.net, &qp), QpState::Err);
    let events = t.net.events[0].take();
    let (vnic, cq) = (t.a.id, tiny.handle);
    assert_eq!(events.iter().filter(|e| **e == Event::CqOverrun { vnic, cq }).count(), 1, "{events:?}");
    let fatal = |e: &&Event| matches!(e, Event::QpFault { fault: QpFault::Fatal, .. });
    assert_eq!(events.iter().filter(fatal).count(), 1, "{events:?}");
    assert_eq!(events.first(), Some(&Event::CqOverrun { vnic, cq }), "the cause comes first");
    assert_eq!(t.a.state(&mut t.net, &t.a_qp), QpState::Rts, "its completions go elsewhere");
    // Whoever uses the queue later fares no better.
    let mut late = t.a.qp(&mut t.net, &tiny, &tiny);
    connect(&mut t.net, (&t.a, &late), (&t.a, &late), &Options::default());
    t.a.post_recv(&mut late, 1, &[]);
    t.a.post(&mut late, &request(SEND_OP_SEND, 1), &[]);
    t.net.run(100);
    assert_eq!(t.a.state(&mut t.net, &late), QpState::Err);
    assert!(!t.net.events[0].take().contains(&Event::CqOverrun { vnic, cq }), "it is told once");
}

#[test]
fn a_queue_pair_can_talk_to_itself() {
    let mut net = Net::new(&[RnicConfig::default()]);
    let address = fresh_address();
    let mut a = Guest::attach(&mut net, 0, 1, 100, &address, 4 << 20);
    let mut cq = a.cq(&mut net, 64);
    let mut qp = a.qp(&mut net, &cq, &cq);
    let mr = a.mr(&mut net, MR, all_access());
    let options = Options::default();
    a.to_rtr(&mut net, &qp, &qp, &options);
    a.to_rts(&mut net, &qp, &options);
    a.write(mr.gpa, &pattern(1000, 3));
    a.post_recv(&mut qp, 1, &[sge(&mr, 4096, 1000)]);
    a.post(&mut qp, &request(SEND_OP_SEND, 2), &[sge(&mr, 0, 1000)]);
    let both = [wait(&mut net, &mut cq), wait(&mut net, &mut cq)].map(|c| (c.wr_id, c.status));
    assert_eq!(both, [(1, WC_SUCCESS), (2, WC_SUCCESS)]);
    assert_eq!(a.read(mr.gpa + 4096, 1000), pattern(1000, 3));
    // Overlapping: as if moved.
    a.post(&mut qp, &to(&mr, 1, request(SEND_OP_RDMA_WRITE, 3)), &[sge(&mr, 0, 1000)]);
    assert_eq!(wait(&mut net, &mut cq).status, WC_SUCCESS);
    assert_eq!(a.read(mr.gpa + 1, 1000), pattern(1000, 3));
    a.post(&mut qp, &to(&mr, MR, request(SEND_OP_RDMA_WRITE, 4)), &[sge(&mr, 0, 8)]);
    a.post(&mut qp, &request(SEND_OP_SEND, 5), &[]);
    let both = [wait(&mut net, &mut cq), wait(&mut net, &mut cq)].map(|c| (c.wr_id, c.status));
    assert_eq!(both, [(4, WC_REM_ACCESS_ERR), (5, WC_WR_FLUSH_ERR)]);
}

#[test]
fn guest_memory_that_goes_is_an_error_and_nothing_else() {
    let mut t = two(Options::default());
    let regions = vec![];
    t.net.execute(0, Command::SetMemory { vnic: t.b.id, regions }).unwrap();
    let data = sge(&t.a_mr, 0, 8);
    let write = t.write();
    t.expect_failure(&write, &[data], WC_REM_OP_ERR);
    assert_eq!(t.b.state(&mut t.net, &t.b_qp), QpState::Err);
    t.b.set_memory(&mut t.net);
}

/// A message that is being copied, on either side, when its queue pair is moved to ERR.
#[test]
fn what_was_begun_is_flushed_first() {
    let err = QpChange { to: Some(QpState::Err), ..QpChange::default() };
    let mut t = two(Options::default());
    let data = sge(&t.a_mr, 0, MR as u32);
    t.b.post_recv(&mut t.b_qp, 10, &[sge(&t.b_mr, 0, MR as u32)]);
    t.b.post_recv(&mut t.b_qp, 11, &[]);
    t.a.post(&mut t.a_qp, &request(SEND_OP_SEND, 1), &[data]);
    t.a.post(&mut t.a_qp, &request(SEND_OP_SEND, 2), &[]);
    t.net.engines[0].turn(masq_rnic::transport::Time::from_nanos(t.net.now));
    t.a.modify(&mut t.net, &t.a_qp, err.clone()).unwrap();
    t.b.modify(&mut t.net, &t.b_qp, err).unwrap();
    for (cq, ids) in [(&mut t.a_cq, [1, 2]), (&mut t.b_cq, [10, 11])] {
        for wr_id in ids {
            let c = wait(&mut t.net, cq);
            assert_eq!((c.wr_id, c.status), (wr_id, WC_WR_FLUSH_ERR));
        }
    }
}

/// A peer that was reset and connected anew has forgotten the first half of a message: it begins again.
#[test]
fn a_message_begins_again_with_a_new_connection() {
    let options = Options::default();
    let mut t = two(options);
    t.a.write(t.a_mr.gpa, &pattern(MR as usize, 5));
    t.b.post_recv(&mut t.b_qp, 10, &[sge(&t.b_mr, 0, MR as u32)]);
    let data = sge(&t.a_mr, 0, MR as u32);
    t.a.post(&mut t.a_qp, &request(SEND_OP_SEND, 1), &[data]);
    t.net.engines[0].turn(masq_rnic::transport::Time::from_nanos(t.net.now));
    let reset = QpChange { to: Some(QpState::Reset), ..QpChange::default() };
    t.b.modify(&mut t.net, &t.b_qp, reset).unwrap();
    t.b_qp.rq.reset();
    t.b.write(t.b_mr.gpa, &vec![0; MR as usize]);
    t.b.to_rtr(&mut t.net, &t.b_qp, &t.a_qp, &options);
    t.b.post_recv(&mut t.b_qp, 20, &[sge(&t.b_mr, 0, MR as u32)]);
    let c = wait(&mut t.net, &mut t.b_cq);
    assert_eq!((c.wr_id, c.status, c.byte_len), (20, WC_SUCCESS, MR as u32));
    assert!(t.b.read(t.b_mr.gpa, MR as usize) == pattern(MR as usize, 5));
}

/// A region may name pages that are no guest memory: whoever reaches one gets an error, and nothing is touched.
#[test]
fn pages_of_a_region_outside_guest_memory_fail_the_access() {
    type Region = fn(&Guest, &Mr) -> PageList;
    let outside: [Region; 3] = [
        |_, mr| PageList { shift: 12, pages: vec![mr.gpa, BASE + (64 << 20)] },
        |_, mr| PageList { shift: 12, pages: vec![mr.gpa, u64::MAX - 0xfff] },
        |_, mr| PageList { shift: 12, pages: vec![mr.gpa, u64::MAX] },
    ];
    let create = |t: &mut Two, b_side: bool, region: Region| {
        let (guest, whole) = if b_side { (&mut t.b, &t.b_mr) } else { (&mut t.a, &t.a_mr) };
        let mr = MrAttr {
            mr: MrHandle(guest.handle()),
            pd: PD,
            access: all_access(),
            kind: MrKind::Pages { iova: whole.gpa, length: 2 * PAGE, pages: region(guest, whole) },
        };
        let handle = mr.mr;
        match t.net.execute(0, Command::CreateMr { vnic: guest.id, mr }) {
            Ok(Reply::MrCreated { lkey, .. }) => Mr { gpa: whole.gpa, key: lkey.0, handle },
            other => panic!("{other:?}"),
        }
    };
    for region in outside {
        for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ, SEND_OP_FETCH_ADD] {
            let mut t = two(Options::default());
            let mr = create(&mut t, true, region);
            let r = match opcode {
                SEND_OP_FETCH_ADD => atomic(&mr, PAGE),
                _ => to(&mr, PAGE, request(opcode, 1)),
            };
            let before = (t.a.read(t.a_mr.gpa, MR as usize), t.b.read(t.b_mr.gpa, MR as usize));
            let data = sge(&t.a_mr, 0, 8);
            t.expect_failure(&r, &[data], WC_REM_OP_ERR);
            t.expect_peer_failed(Some(QpFault::Fatal));
            assert!((t.a.read(t.a_mr.gpa, MR as usize), t.b.read(t.b_mr.gpa, MR as usize)) == before);
        }
        for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ] {
            let mut t = two(Options::default());
            let mr = create(&mut t, false, region);
            let before = (t.a.read(t.a_mr.gpa, MR as usize), t.b.read(t.b_mr.gpa, MR as usize));
            let r = to(&t.b_mr, 0, request(opcode, 1));
            t.expect_failure(&r, &[sge(&mr, PAGE, 8)], WC_LOC_PROT_ERR);
            assert!((t.a.read(t.a_mr.gpa, MR as usize), t.b.read(t.b_mr.gpa, MR as usize)) == before);
        }
        // As a receive.
        let mut t = two(Options::default());
        let mr = create(&mut t, true, region);
        t.b.post_recv(&mut t.b_qp, 5, &[sge(&mr, PAGE, 8)]);
        let data = sge(&t.a_mr, 0, 8);
        t.expect_failure(&request(SEND_OP_SEND, 1), &[data], WC_REM_OP_ERR);
        assert_eq!(wait(&mut t.net, &mut t.b_cq).status, WC_LOC_PROT_ERR);
    }
}
