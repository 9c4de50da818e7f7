//! Extended reliable connections (IBTA Vol 1 Annex A14), between guests of one RNIC and of two.

mod common;

use common::two::*;
use common::*;
use masq_driver::*;
use vrdma_abi::ring::*;
use vrdma_rings::{Operands, SendRequest, Target};

const DOMAIN: XrcdHandle = XrcdHandle(3);
const SRQN: u32 = 0x12_3456;
const OTHER_SRQN: u32 = 0x65_4321;

struct Xrc {
    two: Two,
    ini: TestQp,
    tgt: TestQp,
    srq: TestSrq,
    srq_cq: TestCq,
    /// Another queue of the same domain, with its own completion queue.
    other: TestSrq,
    other_cq: TestCq,
}

fn ends(two: &mut Two, options: &Options) -> (TestQp, TestQp) {
    let Two { net, a, b, a_cq, b_cq, .. } = two;
    let ini = a.qp_with(net, a_cq, a_cq, |init| {
        (init.qp_type, init.recv_cq, init.receives) = (QpType::XrcIni, None, Receives::None);
    });
    let tgt = b.qp_with(net, b_cq, b_cq, |init| {
        (init.qp_type, init.receives) = (QpType::XrcTgt, Receives::Named(DOMAIN));
        (init.pd, init.sq, init.send_cq, init.recv_cq) = (None, None, None, None);
    });
    connect(net, (a, &ini), (b, &tgt), options);
    (ini, tgt)
}

fn xrc_with(way: Way, options: &Options) -> Xrc {
    let mut two = Two::new(way);
    let (srq_cq, other_cq) = (two.b.cq(&mut two.net, 64), two.b.cq(&mut two.net, 64));
    let with = |srqn, cq: &TestCq| Some(XrcSrq { xrcd: DOMAIN, cq: cq.handle, srqn });
    let srq = two.b.srq(&mut two.net, with(SRQN, &srq_cq));
    let other = two.b.srq(&mut two.net, with(OTHER_SRQN, &other_cq));
    let (ini, tgt) = ends(&mut two, options);
    Xrc { two, ini, tgt, srq, srq_cq, other, other_cq }
}

fn xrc(way: Way) -> Xrc {
    xrc_with(way, &Options::default())
}

fn named(srqn: u32, r: SendRequest) -> SendRequest {
    SendRequest { target: Target::Xrc(XrcSegment { srqn, reserved: [0; 3] }), ..r }
}

impl Xrc {
    fn post(&mut self, r: &SendRequest, len: u32) {
        let data = sge(&self.two.a_mr, 0, len);
        self.two.a.post(&mut self.ini, r, &[data]);
    }

    fn sent(&mut self) -> Cqe {
        wait(&mut self.two.net, &mut self.two.a_cq)
    }

    fn b(&mut self, command: Command) -> Result<Reply, DriverError> {
        self.two.net.execute(self.two.b.engine, command)
    }

    fn expect_failure(&mut self, r: &SendRequest, status: u8, fault: QpFault) {
        self.post(r, 8);
        assert_eq!(self.sent().status, status);
        let (vnic, qp) = (self.two.b.id, self.tgt.handle);
        let told = self.two.b_events();
        let is_told = |e: &Event| matches!(e, Event::QpFault { vnic: v, qp: q, fault: f, .. } if (*v, *q, *f) == (vnic, qp, fault));
        assert!(told.len() == 1 && is_told(&told[0]), "{told:?}");
    }
}

#[test]
fn each_message_names_its_queue() {
    for way in WAYS {
        let mut t = xrc(way);
        t.two.a.write(t.two.a_mr.gpa, &pattern(70_000, 1));
        for (round, len) in [0, 8, 1024, 70_000].into_iter().enumerate() {
            let wr_id = round as u64;
            let buffer = sge(&t.two.b_mr, 0, 70_000);
            t.two.b.post_srq_recv(&mut t.srq, wr_id, &[buffer]);
            t.two.b.post_srq_recv(&mut t.other, wr_id, &[buffer]);
            for (srqn, opcode) in [(SRQN, SEND_OP_SEND), (OTHER_SRQN, SEND_OP_RDMA_WRITE_IMM)] {
                let r = SendRequest { imm_or_inv: 5, ..to(&t.two.b_mr, 0, request(opcode, wr_id)) };
                t.post(&named(srqn, r), len);
                assert_eq!(t.sent().status, WC_SUCCESS);
                let cq = if srqn == SRQN { &mut t.srq_cq } else { &mut t.other_cq };
                let c = wait(&mut t.two.net, cq);
                assert_eq!((c.wr_id, c.status, c.byte_len), (wr_id, WC_SUCCESS, len));
                assert_eq!((c.qpn, c.cookie), (t.tgt.wire.get(), 0xc0 + t.tgt.handle.0));
                assert_eq!((c.flags & CQE_SRQ, c.consumer), (CQE_SRQ, 0));
                assert_eq!(t.two.b.read(t.two.b_mr.gpa, len as usize), pattern(len as usize, 1));
            }
        }
    }
}

#[test]
fn memory_is_seen_as_the_queues_domain_sees_it() {
    for way in WAYS {
        let mut t = xrc(way);
        t.two.b.write(t.two.b_mr.gpa, &pattern(70_000, 4));
        let r = to(&t.two.b_mr, 0, request(SEND_OP_RDMA_READ, 1));
        t.post(&named(SRQN, r), 70_000);
        assert_eq!(t.sent().status, WC_SUCCESS);
        assert_eq!(t.two.a.read(t.two.a_mr.gpa, 70_000), pattern(70_000, 4));
        t.two.b.write(t.two.b_mr.gpa, &5u64.to_ne_bytes());
        let operands = Operands::Atomic(AtomicSegment { compare_add: 3, swap: 0 });
        let r = SendRequest { operands, ..to(&t.two.b_mr, 0, request(SEND_OP_FETCH_ADD, 2)) };
        t.post(&named(SRQN, r), 8);
        assert_eq!(t.sent().status, WC_SUCCESS);
        assert_eq!((t.two.a.read_u64(t.two.a_mr.gpa), t.two.b.read_u64(t.two.b_mr.gpa)), (5, 8));
        let write = to(&t.two.b_mr, 0, request(SEND_OP_RDMA_WRITE, 3));
        t.post(&named(OTHER_SRQN, write), 8);
        assert_eq!(t.sent().status, WC_SUCCESS);
        // A region of another domain, whatever the message names.
        for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ] {
            let (gpa, access) = (t.two.b_mr.gpa, all_access());
            let foreign = t.two.b.mr_at(&mut t.two.net, gpa, MR, access, PdHandle(9));
            let r = named(SRQN, to(&foreign, 0, request(opcode, 4)));
            t.expect_failure(&r, WC_REM_ACCESS_ERR, QpFault::Access);
            (t.ini, t.tgt) = ends(&mut t.two, &Options::default());
        }
    }
}

#[test]
fn a_queue_that_is_not_there_is_an_invalid_request() {
    for way in WAYS {
        // Unknown, reserved, of another domain.
        for case in 0..3 {
            let mut t = xrc(way);
            let cq = t.srq_cq.handle;
            t.two.b.srq(&mut t.two.net, Some(XrcSrq { xrcd: XrcdHandle(4), cq, srqn: 77 }));
            let r = named([76, 0, 77][case], request(SEND_OP_SEND, 1));
            t.expect_failure(&r, WC_REM_INV_REQ_ERR, QpFault::Request);
        }
        let mut t = xrc(way);
        let destroy = Command::DestroySrq { vnic: t.two.b.id, srq: t.srq.handle };
        t.b(destroy).unwrap();
        let r = named(SRQN, to(&t.two.b_mr, 0, request(SEND_OP_RDMA_WRITE, 1)));
        t.expect_failure(&r, WC_REM_INV_REQ_ERR, QpFault::Request);
    }
}

#[test]
fn an_empty_queue_is_not_ready() {
    for way in WAYS {
        let mut t = xrc(way);
        t.post(&named(SRQN, request(SEND_OP_SEND, 1)), 8);
        t.two.net.run(50);
        assert!(t.two.a_cq.ring.poll().is_none());
        t.two.b.post_srq_recv(&mut t.other, 1, &[]);
        t.two.net.run(50);
        assert!(t.two.a_cq.ring.poll().is_none(), "another queue's receive is of no use");
        let buffer = sge(&t.two.b_mr, 0, 8);
        t.two.b.post_srq_recv(&mut t.srq, 2, &[buffer]);
        assert_eq!(t.sent().status, WC_SUCCESS);
        assert_eq!(wait(&mut t.two.net, &mut t.srq_cq).wr_id, 2);
    }
}

#[test]
fn a_failed_receive_completes_where_its_queue_says() {
    for way in WAYS {
        let mut t = xrc(way);
        let buffer = sge(&t.two.b_mr, 0, 7);
        (0..2).for_each(|wr_id| t.two.b.post_srq_recv(&mut t.srq, wr_id, &[buffer]));
        t.post(&named(SRQN, request(SEND_OP_SEND, 1)), 8);
        assert_eq!(t.sent().status, WC_REM_INV_REQ_ERR);
        let c = wait(&mut t.two.net, &mut t.srq_cq);
        assert_eq!((c.wr_id, c.status), (0, WC_LOC_LEN_ERR));
        t.two.net.run(10);
        assert!(t.srq_cq.ring.poll().is_none(), "the other receive stays");
        assert_eq!(t.two.b.state(&mut t.two.net, &t.tgt), QpState::Err);
    }
}

#[test]
fn malformed_entries_and_missing_parts() {
    let mut t = xrc(Way::Local);
    for segment in
        [XrcSegment { srqn: 1 << 24, reserved: [0; 3] }, XrcSegment { srqn: SRQN, reserved: [1, 0, 0] }]
    {
        let r = SendRequest { target: Target::Xrc(segment), ..request(SEND_OP_SEND, 1) };
        t.post(&r, 8);
        assert_eq!(t.sent().status, WC_LOC_QP_OP_ERR);
        (t.ini, t.tgt) = ends(&mut t.two, &Options::default());
    }
    // Each type has what it has, and no more.
    let Two { net, b, b_cq, .. } = &mut t.two;
    type Adjust = fn(&mut QpInit);
    let bad: [Adjust; 6] = [
        |init| init.pd = None,
        |init| init.sq = None,
        |init| init.recv_cq = None,
        |init| init.receives = Receives::None,
        |init| init.qp_type = QpType::XrcIni,
        |init| init.receives = Receives::Named(DOMAIN),
    ];
    for adjust in bad {
        let refused = b.try_qp_with(net, b_cq, b_cq, adjust);
        assert!(matches!(refused.map(|_| ()), Err(DriverError::Invalid(_))));
    }
    let Ok(Reply::Objects(all)) = t.b(Command::List) else { panic!("no list") };
    assert_eq!(all.iter().map(|v| v.qps.len()).sum::<usize>(), 6, "nothing of the refused ones is left");
}
