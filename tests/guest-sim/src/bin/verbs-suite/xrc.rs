//! Extended reliable connections: a message names the shared receive queue that it goes to.

use std::sync::Arc;
use std::time::Duration;

use guest_sim::ControlError;
use guest_sim::suite::{Pair, Setup, Side, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, Context, Cq, Mr, Qp, QpCaps, Srq, Xrcd, wr};
use vrdma_abi::control::*;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("messages_go_to_the_queue_that_they_name", by_number),
    ("xrc_operations", operations),
    ("processes_share_a_domain", processes),
    ("xrc_waits_for_a_receive", not_ready),
    ("a_shared_queue_that_does_not_exist", unknown),
    ("domains_of_xrc_keep_apart", other_domain),
    ("what_xrc_refuses", refused),
];

pub const ON_A_BAD_LINK: &[Test] =
    &[("messages_go_to_the_queue_that_they_name", by_number), ("xrc_operations", operations)];

/// An initiator at `a`, a target at `b` in a domain.
struct Link {
    kernel: Arc<Context>,
    xrcd: Xrcd,
    initiator: Arc<Qp>,
    target: Arc<Qp>,
}

impl Link {
    #[track_caller]
    fn connect(p: &Pair) -> Self {
        Self::connect_with(p, &ConnectAttr::default())
    }

    #[track_caller]
    fn connect_with(p: &Pair, attr: &ConnectAttr) -> Self {
        let kernel = p.b.guest.open_kernel().expect("CREATE_CONTEXT");
        let xrcd = p.b.guest.open_xrcd().expect("CREATE_XRCD");
        let target = Qp::create_xrc_target(&kernel, &xrcd).expect("CREATE_QP");
        let initiator = p.a.qp(&QpCaps::of(QP_TYPE_XRC_INI), 256);
        for (qp, peer, qpn) in [(&initiator, p.b.address, target.qpn), (&target, p.a.address, initiator.qpn)]
        {
            qp.connect(attr, peer, qpn).expect("RESET to RTS");
        }
        Link { kernel, xrcd, initiator, target }
    }

    #[track_caller]
    fn srq(&self, side: &Side) -> Arc<Srq> {
        let cq = side.ctx.create_cq(256, 0).expect("CREATE_CQ");
        side.pd.create_xrc_srq(64, 4, &self.xrcd, &cq).expect("CREATE_SRQ")
    }

    #[track_caller]
    fn run(&self, srq: &Srq, request: SendRequest, sges: &[Sge]) -> Cqe {
        self.initiator.post_send(&wr::xrc(srq.srqn, request), sges).expect("room");
        let cqe = self.initiator.send_completion();
        assert_eq!(cqe.wr_id, request.wr_id);
        cqe
    }

    fn close(self) {
        self.initiator.destroy().unwrap();
        self.target.destroy().unwrap();
        self.xrcd.destroy().expect("nobody uses it any more");
        self.kernel.destroy().unwrap();
    }
}

#[track_caller]
fn received(target: &Qp, cq: &Cq) -> Cqe {
    let cqe = cq.wait(Duration::from_secs(10)).expect("a completion of a receive");
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!((cqe.qpn, cqe.cookie), (target.qpn, target.cookie), "{cqe:?}");
    assert_eq!(cqe.flags & (CQE_RECV | CQE_SRQ), CQE_RECV | CQE_SRQ, "{cqe:?}");
    cqe
}

/// Messages of one connection to three queues in turn.
fn by_number(p: &Pair) {
    const LEN: usize = 3000;
    let link = Link::connect(p);
    let srqs = [0; 3].map(|_| link.srq(&p.b));
    let (here, there) = (p.a.buffer(LEN), p.b.buffer(3 * LEN));
    for round in 0..60 {
        let n = round % 3;
        let data = pattern(round as u64 + 1, LEN - round);
        here.write(0, &data);
        srqs[n].post_recv(round as u64, &[there.sge(n * LEN, LEN)]).unwrap();
        assert_status(
            &link.run(&srqs[n], wr::request(SEND_OP_SEND, 1), &[here.sge(0, LEN - round)]),
            WC_SUCCESS,
        );
        let cqe = received(&link.target, srqs[n].cq());
        assert_eq!((cqe.wr_id, cqe.byte_len as usize), (round as u64, LEN - round));
        assert_same(&there.read(n * LEN, LEN - round), &data, "received");
        for other in &srqs {
            assert!(other.cq().poll().is_none(), "a message for another queue");
        }
    }
    for srq in srqs {
        srq.destroy().unwrap();
        srq.cq().destroy().unwrap();
    }
    link.close();
}

fn operations(p: &Pair) {
    let link = Link::connect(p);
    let srq = link.srq(&p.b);
    let (here, there) = (p.a.buffer(1 << 16), p.b.buffer(1 << 16));
    let data = pattern(61, 20_000);
    here.write(0, &data);
    let sge = [here.sge(0, 20_000)];
    assert_status(&link.run(&srq, wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 64), &sge), WC_SUCCESS);
    assert_same(&there.read(64, 20_000), &data, "written");
    srq.post_recv(5, &[]).unwrap();
    let write = SendRequest { imm_or_inv: 0x55, ..wr::rdma(SEND_OP_RDMA_WRITE_IMM, 2, &there, 32_768) };
    assert_status(&link.run(&srq, write, &sge), WC_SUCCESS);
    let cqe = received(&link.target, srq.cq());
    assert_eq!((cqe.wr_id, cqe.opcode, cqe.imm_or_inv), (5, WC_RECV_RDMA_WITH_IMM, 0x55));
    assert_same(&there.read(32_768, 20_000), &data, "written");
    let read = wr::rdma(SEND_OP_RDMA_READ, 3, &there, 64);
    assert_status(&link.run(&srq, read, &[here.sge(32_768, 20_000)]), WC_SUCCESS);
    assert_same(&here.read(32_768, 20_000), &data, "read");
    there.write_u64(0, 41);
    let add = wr::atomic(SEND_OP_FETCH_ADD, 4, &there, 0, 1, 0);
    assert_status(&link.run(&srq, add, &[here.sge(0, 8)]), WC_SUCCESS);
    let swap = wr::atomic(SEND_OP_CMP_SWAP, 5, &there, 0, 42, 77);
    assert_status(&link.run(&srq, swap, &[here.sge(8, 8)]), WC_SUCCESS);
    assert_eq!((here.read_u64(0), here.read_u64(8), there.read_u64(0)), (41, 42, 77));
    srq.post_recv(6, &[there.sge(0, 20_000)]).unwrap();
    let send = SendRequest { imm_or_inv: 0x66, ..wr::request(SEND_OP_SEND_IMM, 6) };
    link.initiator.post_inline(&wr::xrc(srq.srqn, send), b"inline").unwrap();
    assert_status(&link.initiator.send_completion(), WC_SUCCESS);
    let cqe = received(&link.target, srq.cq());
    assert_eq!((cqe.byte_len, cqe.imm_or_inv, cqe.flags & CQE_WITH_IMM), (6, 0x66, CQE_WITH_IMM));
    assert_eq!(there.read(0, 6), b"inline");
    srq.destroy().unwrap();
    link.close();
}

/// Two processes of a guest have a queue each; a request that names one reaches that process's memory only.
fn processes(p: &Pair) {
    let link = Link::connect(p);
    let sides = [0; 2].map(|_| {
        let ctx = p.b.guest.open().unwrap();
        let pd = ctx.alloc_pd().unwrap();
        Side { guest: p.b.guest.clone(), ctx, pd, address: p.b.address }
    });
    let srqs = sides.each_ref().map(|side| link.srq(side));
    let regions = sides.each_ref().map(|side| side.buffer(4096));
    let here = p.a.buffer(4096);
    here.write(0, b"for this one");
    for (srq, region) in srqs.iter().zip(&regions) {
        srq.post_recv(1, &[region.sge(0, 64)]).unwrap();
        assert_status(&link.run(srq, wr::request(SEND_OP_SEND, 1), &[here.sge(0, 12)]), WC_SUCCESS);
        received(&link.target, srq.cq());
        assert_eq!(region.read(0, 12), b"for this one");
        assert_status(
            &link.run(srq, wr::rdma(SEND_OP_RDMA_WRITE, 2, region, 100), &[here.sge(0, 12)]),
            WC_SUCCESS,
        );
    }
    // One process ends; the other's connection lives.
    sides[0].ctx.destroy().unwrap();
    srqs[1].post_recv(2, &[]).unwrap();
    assert_status(&link.run(&srqs[1], wr::request(SEND_OP_SEND, 3), &[]), WC_SUCCESS);
    received(&link.target, srqs[1].cq());
    let cross = wr::rdma(SEND_OP_RDMA_WRITE, 4, &regions[0], 0);
    assert_status(&link.run(&srqs[1], cross, &[here.sge(0, 8)]), WC_REM_ACCESS_ERR);
    sides[1].ctx.destroy().unwrap();
    link.close();
}

fn not_ready(p: &Pair) {
    let attr = ConnectAttr { rnr_retry: 7, min_rnr_timer: 12, ..ConnectAttr::default() };
    let link = Link::connect_with(p, &attr);
    let (empty, other) = (link.srq(&p.b), link.srq(&p.b));
    let here = p.a.buffer(64);
    other.post_recv(1, &[]).unwrap();
    let send = wr::xrc(empty.srqn, wr::request(SEND_OP_SEND, 1));
    link.initiator.post_send(&send, &[here.sge(0, 0)]).unwrap();
    assert!(link.initiator.send_cq().wait(Duration::from_millis(20)).is_none(), "nothing to receive into");
    empty.post_recv(2, &[]).unwrap();
    assert_status(&link.initiator.send_completion(), WC_SUCCESS);
    assert_eq!(received(&link.target, empty.cq()).wr_id, 2);
    assert!(other.cq().poll().is_none(), "the receive of another queue");
    for srq in [empty, other] {
        srq.destroy().unwrap();
    }
    link.close();
}

/// The request fails at both ends.
fn fails(link: &Link, srqn: u32, here: &Mr) {
    let request = wr::xrc(srqn, wr::request(SEND_OP_SEND, 1));
    link.initiator.post_send(&request, &[here.sge(0, 8)]).unwrap();
    assert_status(&link.initiator.send_completion(), WC_REM_INV_REQ_ERR);
    assert_eq!((link.initiator.state(), link.target.state()), (QP_STATE_ERR, QP_STATE_ERR));
}

fn unknown(p: &Pair) {
    let here = p.a.buffer(64);
    let gone = {
        let link = Link::connect(p);
        let srq = link.srq(&p.b);
        srq.destroy().unwrap();
        fails(&link, srq.srqn, &here);
        link.close();
        srq.srqn
    };
    for srqn in [0, 0xff_ffff, gone ^ 1] {
        let link = Link::connect(p);
        fails(&link, srqn, &here);
        link.close();
    }
}

fn other_domain(p: &Pair) {
    let here = p.a.buffer(64);
    let (one, two) = (Link::connect(p), Link::connect(p));
    let srq = two.srq(&p.b);
    srq.post_recv(1, &[]).unwrap();
    fails(&one, srq.srqn, &here);
    assert_status(&two.run(&srq, wr::request(SEND_OP_SEND, 2), &[]), WC_SUCCESS);
    received(&two.target, srq.cq());
    srq.destroy().unwrap();
    one.close();
    two.close();
}

fn errno<T>(result: Result<T, ControlError>) -> i32 {
    result.err().expect("refused").errno()
}

fn refused(p: &Pair) {
    let link = Link::connect(p);
    let srq = link.srq(&p.b);
    assert_eq!(errno(link.xrcd.destroy()), libc::EBUSY);
    assert_eq!(errno(srq.cq().destroy()), libc::EBUSY);
    // A queue for XRC serves no other queue pair, and one for others no XRC.
    let setup = Setup::default();
    let cq = p.b.ctx.create_cq(64, 0).unwrap();
    assert_eq!(
        errno(p.b.pd.create_qp(&cq, &cq, &QpCaps { srq: Some(srq.clone()), ..setup.caps_b })),
        libc::EINVAL
    );
    let gone = p.b.guest.open_xrcd().unwrap();
    gone.destroy().unwrap();
    assert_eq!(errno(p.b.pd.create_xrc_srq(16, 1, &gone, &cq)), libc::ENOENT);
    assert_eq!(errno(Qp::create_xrc_target(&link.kernel, &gone)), libc::ENOENT);
    srq.destroy().unwrap();
    link.close();
}
