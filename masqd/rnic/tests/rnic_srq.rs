//! Shared receive queues, between guests of one RNIC and of two.

mod common;

use common::two::*;
use common::*;
use masq_driver::*;
use vrdma_abi::ring::*;

struct Shared {
    two: Two,
    srq: TestSrq,
    /// Queue pairs of A, and of B with the shared receive queue.
    pairs: Vec<(TestQp, TestQp)>,
}

fn shared(way: Way, count: usize, options: &Options) -> Shared {
    let mut two = Two::new(way);
    let Two { net, a, b, a_cq, b_cq, .. } = &mut two;
    let srq = b.srq(net, None);
    let pairs = (0..count)
        .map(|_| {
            let (x, y) = (a.qp(net, a_cq, a_cq), b.qp_with_srq(net, b_cq, &srq));
            connect(net, (a, &x), (b, &y), options);
            (x, y)
        })
        .collect();
    Shared { two, srq, pairs }
}

impl Shared {
    fn send(&mut self, pair: usize, wr_id: u64, len: u32) {
        let data = sge(&self.two.a_mr, 0, len);
        self.two.a.post(&mut self.pairs[pair].0, &request(SEND_OP_SEND, wr_id), &[data]);
    }

    fn post(&mut self, wr_id: u64, len: u32) {
        let buffer = sge(&self.two.b_mr, 4096 * wr_id, len);
        self.two.b.post_srq_recv(&mut self.srq, wr_id, &[buffer]);
    }

    fn set_limit(&mut self, limit: u32) {
        let modify = Command::ModifySrq { vnic: self.two.b.id, srq: self.srq.handle, limit };
        self.two.net.execute(self.two.b.engine, modify).unwrap();
    }

    fn limit(&mut self) -> Reply {
        let query = Command::QuerySrq { vnic: self.two.b.id, srq: self.srq.handle };
        self.two.net.execute(self.two.b.engine, query).unwrap()
    }
}

#[test]
fn queue_pairs_share_receives_in_order() {
    for way in WAYS {
        let mut s = shared(way, 3, &Options::default());
        s.two.a.write(s.two.a_mr.gpa, &pattern(3000, 1));
        // More than the ring has, so that entries are used again.
        for wr_id in 0..150 {
            let pair = wr_id as usize % 3;
            s.post(wr_id, 3000);
            s.send(pair, wr_id, 3000);
            let received = wait(&mut s.two.net, &mut s.two.b_cq);
            assert_eq!((received.wr_id, received.status, received.byte_len), (wr_id, WC_SUCCESS, 3000));
            assert_eq!((received.flags, received.consumer), (CQE_RECV | CQE_SRQ, 0));
            assert_eq!(received.cookie, 0xc0 + s.pairs[pair].1.handle.0, "the queue pair that took it");
            assert_eq!(s.two.b.read(s.two.b_mr.gpa + 4096 * wr_id, 3000), pattern(3000, 1));
            let sent = wait(&mut s.two.net, &mut s.two.a_cq);
            assert_eq!((sent.wr_id, sent.status), (wr_id, WC_SUCCESS));
            s.pairs[pair].0.sq.complete(sent.consumer);
        }
    }
}

#[test]
fn an_empty_queue_is_not_ready() {
    for way in WAYS {
        let mut s = shared(way, 1, &Options::default());
        s.send(0, 1, 10);
        s.two.net.run(50);
        assert!(s.two.a_cq.ring.poll().is_none());
        s.post(1, 10);
        assert_eq!(wait(&mut s.two.net, &mut s.two.b_cq).wr_id, 1);
        assert_eq!(wait(&mut s.two.net, &mut s.two.a_cq).status, WC_SUCCESS);
        let mut s = shared(way, 1, &Options { rnr_retry: 1, ..Options::default() });
        s.send(0, 1, 10);
        assert_eq!(wait(&mut s.two.net, &mut s.two.a_cq).status, WC_RNR_RETRY_EXC_ERR);
    }
}

#[test]
fn the_limit_is_told_once() {
    for way in WAYS {
        let mut s = shared(way, 1, &Options::default());
        let (vnic, srq) = (s.two.b.id, s.srq.handle);
        (0..4).for_each(|wr_id| s.post(wr_id, 10));
        s.set_limit(3);
        assert_eq!(s.limit(), Reply::SrqLimit(3));
        for wr_id in 0..4 {
            s.send(0, wr_id, 10);
            wait(&mut s.two.net, &mut s.two.b_cq);
            let expected = if wr_id == 1 { vec![Event::SrqLimit { vnic, srq }] } else { vec![] };
            assert_eq!(s.two.b_events(), expected, "{way:?} {wr_id}");
        }
        assert_eq!(s.limit(), Reply::SrqLimit(0));
        // It is also told when there is none left to take.
        s.set_limit(1);
        s.send(0, 9, 10);
        s.two.net.run(20);
        assert_eq!(s.two.b_events(), [Event::SrqLimit { vnic, srq }]);
    }
}

#[test]
fn an_error_leaves_the_receives_to_the_others() {
    for way in WAYS {
        let mut s = shared(way, 2, &Options::default());
        let vnic = s.two.b.id;
        (0..3).for_each(|wr_id| s.post(wr_id, 10));
        // Too long for its receive: that one fails, and with it the queue pair.
        s.send(0, 1, 11);
        let c = wait(&mut s.two.net, &mut s.two.b_cq);
        assert_eq!((c.wr_id, c.status, c.flags & CQE_SRQ), (0, WC_LOC_LEN_ERR, CQE_SRQ));
        assert_eq!(wait(&mut s.two.net, &mut s.two.a_cq).status, WC_REM_INV_REQ_ERR);
        assert_eq!(s.two.b_events(), [Event::LastWqe { vnic, qp: s.pairs[0].1.handle }]);
        s.send(1, 2, 10);
        assert_eq!(wait(&mut s.two.net, &mut s.two.b_cq).wr_id, 1);
        assert_eq!(wait(&mut s.two.net, &mut s.two.a_cq).status, WC_SUCCESS);
        // By command likewise, and once.
        let Shared { two, pairs, .. } = &mut s;
        to_error(&mut two.net, &two.b, &pairs[1].1);
        to_error(&mut two.net, &two.b, &pairs[1].1);
        two.net.run(10);
        assert_eq!(two.b_events(), [Event::LastWqe { vnic, qp: pairs[1].1.handle }]);
        assert!(two.b_cq.ring.poll().is_none(), "the third receive is still there");
    }
}

/// A message that had begun to fill a receive: that one is flushed with its queue pair.
#[test]
fn a_receive_that_was_begun_is_flushed() {
    for way in WAYS {
        let mut s = shared(way, 1, &Options::default());
        let buffer = sge(&s.two.b_mr, 0, MR as u32);
        s.two.b.post_srq_recv(&mut s.srq, 7, &[buffer]);
        s.post(8, 10);
        s.send(0, 1, MR as u32);
        let taken = s.srq.gpa + std::mem::offset_of!(WorkHeader, taken) as u64;
        let begun = |s: &Shared| s.two.b.read(taken, 4) == 1u32.to_ne_bytes();
        for _ in 0..1000 {
            s.two.net.now += 1000;
            let now = masq_rnic::transport::Time::from_nanos(s.two.net.now);
            s.two.net.engines.iter_mut().for_each(|e| {
                e.turn(now);
            });
            if begun(&s) {
                break;
            }
        }
        assert!(begun(&s) && s.two.b_cq.ring.poll().is_none());
        let Shared { two, pairs, .. } = &mut s;
        to_error(&mut two.net, &two.b, &pairs[0].1);
        let c = wait(&mut two.net, &mut two.b_cq);
        assert_eq!((c.wr_id, c.status, c.flags & CQE_SRQ), (7, WC_WR_FLUSH_ERR, CQE_SRQ));
        two.net.run(10);
        assert!(two.b_cq.ring.poll().is_none(), "the other one stays");
    }
}

#[test]
fn a_broken_queue_fails_all_who_use_it() {
    for way in WAYS {
        let mut s = shared(way, 2, &Options { timeout: 12, retry_cnt: 1, ..Options::default() });
        let vnic = s.two.b.id;
        s.two.b.write(s.srq.gpa, &65u32.to_ne_bytes());
        s.send(0, 1, 10);
        let c = wait(&mut s.two.net, &mut s.two.a_cq);
        assert_ne!(c.status, WC_SUCCESS);
        let events = s.two.b_events();
        let of_srq = |e: &Event| matches!(e, Event::SrqFault { srq, .. } if *srq == s.srq.handle);
        assert!(events.first().is_some_and(of_srq), "{events:?}");
        assert_eq!(events.iter().filter(|e| of_srq(e)).count(), 1);
        for (_, qp) in &s.pairs {
            let fatal = |e: &&Event| matches!(e, Event::QpFault { qp: q, fault: QpFault::Fatal, .. } if *q == qp.handle);
            assert_eq!(events.iter().filter(fatal).count(), 1, "{events:?}");
            assert!(events.contains(&Event::LastWqe { vnic, qp: qp.handle }));
            assert_eq!(s.two.b.state(&mut s.two.net, qp), QpState::Err);
        }
    }
}

#[test]
fn a_queue_lives_as_long_as_its_users() {
    let mut s = shared(Way::Local, 1, &Options::default());
    let (vnic, srq) = (s.two.b.id, s.srq.handle);
    let destroy = |s: &mut Shared| s.two.net.execute(0, Command::DestroySrq { vnic, srq });
    assert!(matches!(destroy(&mut s), Err(DriverError::Busy(_))));
    let qp = s.pairs[0].1.handle;
    s.two.net.execute(0, Command::DestroyQp { vnic, qp }).unwrap();
    destroy(&mut s).unwrap();
    destroy(&mut s).unwrap();
    let Ok(Reply::Objects(all)) = s.two.net.execute(0, Command::List) else { panic!("no list") };
    assert!(all.iter().all(|v| v.srqs.is_empty()));
    let refused = s.two.net.execute(0, Command::QuerySrq { vnic, srq });
    assert!(matches!(refused, Err(DriverError::UnknownObject(_))));
}
