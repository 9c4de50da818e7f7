//! Unreliable connections (IBTA Vol 1 §9.8.3), between guests of one RNIC and of two.

mod common;

use common::two::*;
use common::*;
use masq_driver::*;
use masq_rnic::FaultInjection;
use masq_types::Mtu;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

struct Uc {
    two: Two,
    a_qp: TestQp,
    b_qp: TestQp,
}

fn uc(way: Way) -> Uc {
    uc_with(way, None, &Options::default())
}

fn uc_with(way: Way, faults: Option<FaultInjection>, options: &Options) -> Uc {
    let mut two = Two::with_faults(way, faults);
    let Two { net, a, b, a_cq, b_cq, .. } = &mut two;
    let a_qp = a.qp_with(net, a_cq, a_cq, |init| init.qp_type = QpType::Uc);
    let b_qp = b.qp_with(net, b_cq, b_cq, |init| init.qp_type = QpType::Uc);
    connect(net, (a, &a_qp), (b, &b_qp), options);
    Uc { two, a_qp, b_qp }
}

impl Uc {
    fn post(&mut self, r: &SendRequest, len: u32) {
        let data = sge(&self.two.a_mr, 0, len);
        self.two.a.post(&mut self.a_qp, r, &[data]);
    }

    fn post_recv(&mut self, wr_id: u64, len: u32) {
        let buffer = sge(&self.two.b_mr, 0, len);
        self.two.b.post_recv(&mut self.b_qp, wr_id, &[buffer]);
    }

    fn sent(&mut self) -> Cqe {
        wait(&mut self.two.net, &mut self.two.a_cq)
    }

    fn received(&mut self) -> Cqe {
        wait(&mut self.two.net, &mut self.two.b_cq)
    }

    /// Sends what is lost: A is told of success, and B of nothing.
    fn expect_lost(&mut self, r: &SendRequest, len: u32) {
        self.post(r, len);
        let c = self.sent();
        assert_eq!((c.wr_id, c.status), (r.wr_id, WC_SUCCESS), "{c:?}");
        self.two.net.run(10);
        assert!(self.two.b_cq.ring.poll().is_none());
        assert_eq!(self.two.b.state(&mut self.two.net, &self.b_qp), QpState::Rts);
        let faults = self.two.b_events();
        assert!(faults.iter().all(|e| !matches!(e, Event::QpFault { .. })), "{faults:?}");
    }

    /// What comes next arrives.
    fn expect_arrival(&mut self, wr_id: u64) {
        self.post(&request(SEND_OP_SEND, 77), 8);
        assert_eq!(self.sent().status, WC_SUCCESS);
        let c = self.received();
        assert_eq!((c.wr_id, c.status, c.byte_len), (wr_id, WC_SUCCESS, 8));
    }
}

#[test]
fn messages_arrive() {
    for way in WAYS {
        let mut t = uc(way);
        t.two.a.write(t.two.a_mr.gpa, &pattern(400_000, 3));
        let operations = [SEND_OP_SEND, SEND_OP_SEND_IMM, SEND_OP_RDMA_WRITE, SEND_OP_RDMA_WRITE_IMM];
        for (i, opcode) in operations.into_iter().enumerate() {
            for (j, len) in [0, 1, 1024, 400_000].into_iter().enumerate() {
                let id = (i * 10 + j) as u64;
                t.two.b.write(t.two.b_mr.gpa, &vec![0; 400_000]);
                t.post_recv(id, 400_000);
                let r = SendRequest { imm_or_inv: 0x1234, ..to(&t.two.b_mr, 0, request(opcode, id)) };
                t.post(&r, len);
                let c = t.sent();
                assert_eq!((c.wr_id, c.status), (id, WC_SUCCESS));
                if opcode == SEND_OP_RDMA_WRITE {
                    t.two.net.run(5);
                    assert!(t.two.b_cq.ring.poll().is_none());
                    t.expect_arrival(id);
                    continue;
                }
                let c = t.received();
                assert_eq!((c.wr_id, c.status, c.byte_len), (id, WC_SUCCESS, len));
                let with_imm = opcode != SEND_OP_SEND;
                assert_eq!(
                    (c.flags & CQE_WITH_IMM != 0, c.imm_or_inv),
                    (with_imm, if with_imm { 0x1234 } else { 0 })
                );
                assert_eq!(t.two.b.read(t.two.b_mr.gpa, len as usize), pattern(len as usize, 3));
            }
        }
    }
}

#[test]
fn what_cannot_be_taken_is_lost() {
    for way in WAYS {
        let mut t = uc(way);
        // No receive.
        t.expect_lost(&request(SEND_OP_SEND, 1), 8);
        t.expect_lost(&request(SEND_OP_SEND, 2), 300_000);
        let write_imm = to(&t.two.b_mr, 0, request(SEND_OP_RDMA_WRITE_IMM, 3));
        t.expect_lost(&write_imm, 8);
        // Longer than the receive, which stays for the next.
        t.post_recv(10, 100);
        t.expect_lost(&request(SEND_OP_SEND, 4), 101);
        t.expect_lost(&request(SEND_OP_SEND, 5), 5000);
        // No such key, no such range.
        let before = t.two.b.read(t.two.b_mr.gpa, MR as usize);
        for adjust in [(0x100, 0), (0, MR - 4)] {
            let r = to(&t.two.b_mr, adjust.1, request(SEND_OP_RDMA_WRITE, 6));
            t.expect_lost(&SendRequest { rkey: r.rkey ^ adjust.0, ..r }, 8);
        }
        assert!(t.two.b.read(t.two.b_mr.gpa, MR as usize) == before, "nothing was written");
        t.expect_arrival(10);
    }
}

#[test]
fn a_queue_pair_without_the_right_takes_no_writes() {
    for way in WAYS {
        let access = Access { local_write: true, ..Access::default() };
        let mut t = uc_with(way, None, &Options { access, ..Options::default() });
        let write = to(&t.two.b_mr, 0, request(SEND_OP_RDMA_WRITE, 1));
        t.expect_lost(&write, 8);
        t.post_recv(10, 100);
        t.expect_arrival(10);
    }
}

#[test]
fn what_uc_does_not_have_fails_here() {
    for way in WAYS {
        for opcode in [SEND_OP_RDMA_READ, SEND_OP_FETCH_ADD, SEND_OP_SEND_INV] {
            let mut t = uc(way);
            let operands = if opcode == SEND_OP_FETCH_ADD {
                vrdma_rings::Operands::Atomic(AtomicSegment { compare_add: 1, swap: 0 })
            } else {
                vrdma_rings::Operands::None
            };
            let r = SendRequest { operands, ..to(&t.two.b_mr, 0, request(opcode, 1)) };
            t.post(&r, 8);
            assert_eq!(t.sent().status, WC_LOC_QP_OP_ERR);
            assert_eq!(t.two.a.state(&mut t.two.net, &t.a_qp), QpState::Sqe);
            assert_eq!(t.two.b.state(&mut t.two.net, &t.b_qp), QpState::Rts);
        }
        let mut t = uc(way);
        let bad = Sge { addr: 0, length: 8, lkey: 0x77 };
        t.two.a.post(&mut t.a_qp, &request(SEND_OP_SEND, 1), &[bad]);
        assert_eq!(t.sent().status, WC_LOC_PROT_ERR);
    }
}

/// A send that fails flushes those behind it and leaves the receives alone; the queue pair sends again when it is told to.
#[test]
fn a_failed_send_stops_sending_only() {
    for way in WAYS {
        let mut t = uc(way);
        let bad = Sge { addr: 0, length: 8, lkey: 0x77 };
        t.two.a.post(&mut t.a_qp, &request(SEND_OP_SEND, 1), &[bad]);
        t.post(&request(SEND_OP_SEND, 2), 8);
        assert_eq!(t.sent().status, WC_LOC_PROT_ERR);
        assert_eq!(t.sent().status, WC_WR_FLUSH_ERR);
        t.post(&request(SEND_OP_SEND, 3), 8);
        assert_eq!(t.sent().status, WC_WR_FLUSH_ERR);
        assert_eq!(t.two.a.state(&mut t.two.net, &t.a_qp), QpState::Sqe);
        let Uc { two, a_qp, b_qp } = &mut t;
        two.a.post_recv(a_qp, 8, &[sge(&two.a_mr, 0, 8)]);
        two.b.post(b_qp, &request(SEND_OP_SEND, 4), &[sge(&two.b_mr, 0, 8)]);
        let c = wait(&mut two.net, &mut two.a_cq);
        assert_eq!((c.wr_id, c.status), (8, WC_SUCCESS));
        assert_eq!(wait(&mut two.net, &mut two.b_cq).status, WC_SUCCESS);
        let rts = QpChange { to: Some(QpState::Rts), ..QpChange::default() };
        two.a.modify(&mut two.net, a_qp, rts).unwrap();
        t.post_recv(10, 8);
        t.expect_arrival(10);
        assert!(!t.two.b_events().iter().any(|e| matches!(e, Event::QpFault { .. })));
    }
}

/// Its own memory is the receiver's affair: the queue pair fails, and the sender does not know.
#[test]
fn a_receive_that_cannot_be_written_fails() {
    for way in WAYS {
        let mut t = uc(way);
        t.two.b.post_recv(&mut t.b_qp, 5, &[Sge { addr: 0, length: 8, lkey: 0x77 }]);
        t.post(&request(SEND_OP_SEND, 1), 8);
        assert_eq!(t.sent().status, WC_SUCCESS);
        let c = t.received();
        assert_eq!((c.wr_id, c.status), (5, WC_LOC_PROT_ERR));
        assert_eq!(t.two.b.state(&mut t.two.net, &t.b_qp), QpState::Err);
        t.post(&request(SEND_OP_SEND, 2), 8);
        assert_eq!(t.sent().status, WC_SUCCESS);
    }
}

#[test]
fn a_peer_that_is_not_there_is_not_missed() {
    for way in WAYS {
        let mut two = Two::new(way);
        let Two { net, a, b, a_cq, b_cq, .. } = &mut two;
        let mut a_qp = a.qp_with(net, a_cq, a_cq, |init| init.qp_type = QpType::Uc);
        // It is of another type, and not connected.
        let b_qp = b.qp(net, b_cq, b_cq);
        a.to_rtr(net, &a_qp, &b_qp, &Options::default());
        a.to_rts(net, &a_qp, &Options::default());
        for wr_id in 0..3 {
            a.post(&mut a_qp, &request(SEND_OP_SEND, wr_id), &[]);
            assert_eq!(wait(net, a_cq).status, WC_SUCCESS);
        }
        // Nor do the two talk when it is connected.
        b.to_rtr(net, &b_qp, &a_qp, &Options::default());
        a.post(&mut a_qp, &request(SEND_OP_SEND, 9), &[]);
        assert_eq!(wait(net, a_cq).status, WC_SUCCESS);
        assert_eq!(b.state(net, &b_qp), QpState::Rtr);
        assert_eq!(net.events[b.engine].take(), [], "{way:?}");
    }
}

#[test]
fn the_first_packet_establishes() {
    for way in WAYS {
        let mut two = Two::new(way);
        let Two { net, a, b, a_cq, b_cq, .. } = &mut two;
        let mut a_qp = a.qp_with(net, a_cq, a_cq, |init| init.qp_type = QpType::Uc);
        let mut b_qp = b.qp_with(net, b_cq, b_cq, |init| init.qp_type = QpType::Uc);
        a.to_rtr(net, &a_qp, &b_qp, &Options::default());
        b.to_rtr(net, &b_qp, &a_qp, &Options::default());
        a.to_rts(net, &a_qp, &Options::default());
        for wr_id in 0..2 {
            b.post_recv(&mut b_qp, wr_id, &[]);
            a.post(&mut a_qp, &request(SEND_OP_SEND, wr_id), &[]);
            assert_eq!(wait(net, b_cq).wr_id, wr_id);
        }
        assert_eq!(net.events[b.engine].take(), [Event::CommEstablished { vnic: b.id, qp: b_qp.handle }]);
    }
}

/// Over a bad link some messages are lost, and those that arrive are whole and in order.
#[test]
fn lost_packets_lose_their_messages() {
    let faults = FaultInjection { seed: 5, drop: 0.05, ..FaultInjection::default() };
    let mut t = uc_with(Way::Remote, Some(faults), &Options { mtu: Mtu::B256, ..Options::default() });
    const MESSAGES: u32 = 200;
    const LEN: u32 = 2000;
    let mut arrived = Vec::new();
    t.post_recv(0, LEN);
    for i in 0..MESSAGES {
        t.two.a.write(t.two.a_mr.gpa, &pattern(LEN as usize, i as u8));
        t.post(&SendRequest { imm_or_inv: i, ..request(SEND_OP_SEND_IMM, i.into()) }, LEN);
        let c = t.sent();
        assert_eq!(c.status, WC_SUCCESS);
        t.a_qp.sq.complete(c.consumer);
        t.two.net.run(1);
        if let Some(c) = t.two.b_cq.ring.poll() {
            assert_eq!((c.status, c.byte_len, c.wr_id), (WC_SUCCESS, LEN, arrived.len() as u64));
            assert_eq!(t.two.b.read(t.two.b_mr.gpa, LEN as usize), pattern(LEN as usize, c.imm_or_inv as u8));
            arrived.push(c.imm_or_inv);
            t.two.b_cq.ring.publish();
            t.b_qp.rq.complete(c.consumer);
            t.post_recv(arrived.len() as u64, LEN);
        }
    }
    assert!(arrived.is_sorted());
    // Eight packets each, so about two of three arrive.
    assert!((80..180).contains(&arrived.len()), "{}", arrived.len());
    assert_eq!(t.two.net.counter(0, "retransmitted_pkts"), 0);
    assert_eq!(t.two.net.counter(1, "sent_pkts"), 0, "nobody answers");
}
