//! Shared receive queues: one serves many queue pairs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use guest_sim::suite::{Conn, Pair, Setup, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, Cq, Mr, QpCaps, Srq, wr};
use vrdma_abi::event::EVENT_SRQ_LIMIT;
use vrdma_abi::ring::*;
use vrdma_rings::PostError;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("many_queue_pairs_share_one_queue", shared_by_many),
    ("a_shared_queue_wraps_around", wraps),
    ("room_comes_back_when_a_receive_is_taken", room),
    ("a_shared_queue_gives_its_limit_event_once", limit),
    ("a_limit_from_the_beginning", limit_from_the_beginning),
    ("senders_wait_while_a_shared_queue_is_empty", posted_late),
    ("senders_give_up_when_a_shared_queue_stays_empty", never_posted),
    ("a_write_with_immediate_takes_a_shared_receive", write_imm),
];

pub const ON_A_BAD_LINK: &[Test] =
    &[("many_queue_pairs_share_one_queue", shared_by_many), ("a_shared_queue_wraps_around", wraps)];

/// Connections whose receiving ends share a queue.
pub struct Shared {
    pub srq: Arc<Srq>,
    /// Of all receives.
    pub cq: Arc<Cq>,
    pub conns: Vec<Conn>,
}

impl Shared {
    #[track_caller]
    pub fn connect(p: &Pair, entries: u32, conns: usize, attr: &ConnectAttr) -> Self {
        let srq = p.b.pd.create_srq(entries, 4).expect("CREATE_SRQ");
        let cq = p.b.ctx.create_cq(1024, 0).expect("CREATE_CQ");
        let setup = Setup { caps_b: QpCaps::on(&srq), ..Setup::attr(attr.clone()) };
        let connect = |_| {
            let send = p.b.ctx.create_cq(64, 0).expect("CREATE_CQ");
            let b = p.b.pd.create_qp(&send, &cq, &setup.caps_b).expect("CREATE_QP");
            let c = Conn { a: p.a.qp(&setup.caps_a, 128), b };
            c.connect(p, &setup);
            c
        };
        let conns = (0..conns).map(connect).collect();
        Shared { srq, cq, conns }
    }

    /// The next completion of a receive, whichever queue pair has taken it, and that queue pair's place.
    #[track_caller]
    pub fn received(&self) -> (usize, Cqe) {
        let cqe = self.cq.wait(Duration::from_secs(10)).expect("a completion of a receive");
        assert_eq!(cqe.flags & (CQE_RECV | CQE_SRQ), CQE_RECV | CQE_SRQ, "{cqe:?}");
        let taker = self.conns.iter().position(|c| c.b.cookie == cqe.cookie);
        let taker = taker.unwrap_or_else(|| panic!("a completion of nobody's: {cqe:?}"));
        assert_eq!(cqe.qpn, self.conns[taker].b.qpn, "{cqe:?}");
        (taker, cqe)
    }
}

/// Eight senders in bursts: each message lands once, in the receive that its completion names, in the order of its connection.
fn shared_by_many(p: &Pair) {
    const CONNS: usize = 8;
    const PER_CONN: usize = 40;
    const LEN: usize = 3000;
    let s = Shared::connect(p, 64, CONNS, &ConnectAttr::default());
    let here = p.a.buffer(CONNS * PER_CONN * LEN);
    let data = pattern(31, CONNS * PER_CONN * LEN);
    here.write(0, &data);
    let there = p.b.buffer(64 * LEN);
    let post = |place: usize| s.srq.post_recv(place as u64, &[there.sge(place * LEN, LEN)]).unwrap();
    (0..64).for_each(post);
    for (n, c) in s.conns.iter().enumerate() {
        let sends: Vec<_> = (0..PER_CONN)
            .map(|k| (wr::request(SEND_OP_SEND, k as u64), vec![here.sge((n * PER_CONN + k) * LEN, LEN - k)]))
            .collect();
        c.a.post_sends(&sends).unwrap();
    }
    let mut next = [0; CONNS];
    for _ in 0..CONNS * PER_CONN {
        let (n, cqe) = s.received();
        assert_status(&cqe, WC_SUCCESS);
        let k = next[n];
        next[n] += 1;
        assert_eq!(cqe.byte_len as usize, LEN - k, "message {k} of connection {n}");
        let place = cqe.wr_id as usize;
        assert_same(
            &there.read(place * LEN, LEN - k),
            &data[(n * PER_CONN + k) * LEN..][..LEN - k],
            &format!("message {k} of connection {n}"),
        );
        post(place);
    }
    for c in &s.conns {
        for k in 0..PER_CONN {
            let cqe = c.a.send_completion();
            assert_status(&cqe, WC_SUCCESS);
            assert_eq!(cqe.wr_id, k as u64);
        }
    }
    assert_eq!(s.srq.taken() as usize, CONNS * PER_CONN, "each receive was taken once");
}

fn send(c: &Conn, here: &Mr, len: usize) {
    c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(0, len)]).unwrap();
}

/// Receives are taken in the order in which they were posted, over many rounds of a small queue.
fn wraps(p: &Pair) {
    let s = Shared::connect(p, 4, 3, &ConnectAttr::default());
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    let mut posted = 0;
    for round in 0..300 {
        while s.srq.post_recv(posted, &[there.sge(0, 64)]).is_ok() {
            posted += 1;
        }
        here.write_u64(0, round);
        let c = &s.conns[round as usize % 3];
        send(c, &here, 8);
        let (n, cqe) = s.received();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!((n, cqe.wr_id), (round as usize % 3, round));
        assert_eq!(there.read_u64(0), round);
        assert_status(&c.a.send_completion(), WC_SUCCESS);
    }
    assert_eq!(posted, 303, "one place is free again after each message, and four were in the beginning");
}

/// An entry is free again as soon as it is taken, although nobody has polled its completion.
fn room(p: &Pair) {
    let s = Shared::connect(p, 4, 1, &ConnectAttr::default());
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    let post = |k| s.srq.post_recv(k, &[there.sge(8 * k as usize, 8)]);
    for k in 0..4 {
        post(k).unwrap();
    }
    assert_eq!(post(4), Err(PostError::Full));
    send(&s.conns[0], &here, 8);
    assert_status(&s.conns[0].a.send_completion(), WC_SUCCESS);
    assert_eq!(s.srq.taken(), 1);
    post(4).expect("the place of the first");
    assert_eq!(post(5), Err(PostError::Full));
    for k in 1..5 {
        send(&s.conns[0], &here, 8);
        assert_status(&s.conns[0].a.send_completion(), WC_SUCCESS);
        assert_eq!(s.srq.taken(), k + 1);
    }
    let order: Vec<u64> = (0..5).map(|_| s.received().1.wr_id).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
}

/// No event for `quiet`.
#[track_caller]
fn no_event(p: &Pair) {
    let event = p.b.guest.next_async_event(Duration::from_millis(50));
    assert!(event.is_none(), "an event that nobody asked for: {event:?}");
}

fn limit(p: &Pair) {
    let s = Shared::connect(p, 16, 2, &ConnectAttr::default());
    let here = p.a.buffer(64);
    for k in 0..12 {
        s.srq.post_recv(k, &[]).unwrap();
    }
    assert_eq!(s.srq.limit().unwrap(), 0);
    let take = |n: usize| {
        send(&s.conns[n % 2], &here, 0);
        assert_status(&s.conns[n % 2].a.send_completion(), WC_SUCCESS);
    };
    s.srq.modify(10).unwrap();
    assert_eq!(s.srq.limit().unwrap(), 10);
    take(0); // 11 are left
    take(1); // 10
    no_event(p);
    assert_eq!(s.srq.limit().unwrap(), 10);
    take(2); // 9
    p.b.guest.expect_event(EVENT_SRQ_LIMIT, s.srq.handle());
    assert_eq!(s.srq.limit().unwrap(), 0, "once, then it is armed no more");
    take(3); // 8
    no_event(p);
    s.srq.modify(8).unwrap();
    take(4); // 7
    p.b.guest.expect_event(EVENT_SRQ_LIMIT, s.srq.handle());
    s.srq.modify(7).unwrap();
    s.srq.modify(0).unwrap();
    take(5);
    no_event(p);
}

fn limit_from_the_beginning(p: &Pair) {
    let srq = p.b.pd.create_srq_with_limit(16, 1, 3).unwrap();
    assert_eq!(srq.limit().unwrap(), 3);
    let setup = Setup { caps_b: QpCaps::on(&srq), ..Setup::default() };
    let c = p.connect_with(&setup);
    let here = p.a.buffer(64);
    for k in 0..3 {
        srq.post_recv(k, &[]).unwrap();
    }
    no_event(p);
    send(&c, &here, 0);
    p.b.guest.expect_event(EVENT_SRQ_LIMIT, srq.handle());
    assert_eq!(srq.limit().unwrap(), 0);
}

fn posted_late(p: &Pair) {
    let s = Shared::connect(p, 16, 4, &ConnectAttr::default());
    let (here, there) = (p.a.buffer(64), p.b.buffer(4096));
    for (n, c) in s.conns.iter().enumerate() {
        here.write_u64(8 * n, n as u64 + 100);
        c.a.post_send(&wr::request(SEND_OP_SEND, 1), &[here.sge(8 * n, 8)]).unwrap();
    }
    assert!(s.cq.wait(Duration::from_millis(30)).is_none(), "nothing to receive into yet");
    for k in 0..4 {
        s.srq.post_recv(k, &[there.sge(64 * k as usize, 8)]).unwrap();
    }
    let mut senders = BTreeSet::new();
    for k in 0..4 {
        let (n, cqe) = s.received();
        assert_eq!(cqe.wr_id, k, "in the order of posting");
        assert_eq!(there.read_u64(64 * k as usize), n as u64 + 100);
        assert!(senders.insert(n));
        assert_status(&s.conns[n].a.send_completion(), WC_SUCCESS);
    }
}

fn never_posted(p: &Pair) {
    let attr = ConnectAttr { rnr_retry: 2, min_rnr_timer: 1, ..ConnectAttr::default() };
    let s = Shared::connect(p, 16, 2, &attr);
    let here = p.a.buffer(64);
    send(&s.conns[0], &here, 8);
    assert_status(&s.conns[0].a.send_completion(), WC_RNR_RETRY_EXC_ERR);
    // The other one, and the queue, go on.
    s.srq.post_recv(1, &[]).unwrap();
    send(&s.conns[1], &here, 0);
    assert_status(&s.conns[1].a.send_completion(), WC_SUCCESS);
    assert_eq!(s.received().0, 1);
}

fn write_imm(p: &Pair) {
    let s = Shared::connect(p, 16, 1, &ConnectAttr::default());
    let (here, there) = (p.a.buffer(8192), p.b.buffer(8192));
    let data = pattern(32, 5000);
    here.write(0, &data);
    s.srq.post_recv(7, &[]).unwrap();
    let write = wr::rdma(SEND_OP_RDMA_WRITE_IMM, 1, &there, 100);
    s.conns[0]
        .a
        .post_send(&vrdma_rings::SendRequest { imm_or_inv: 0x1234, ..write }, &[here.sge(0, 5000)])
        .unwrap();
    let (_, cqe) = s.received();
    assert_status(&cqe, WC_SUCCESS);
    assert_eq!((cqe.wr_id, cqe.opcode, cqe.imm_or_inv), (7, WC_RECV_RDMA_WITH_IMM, 0x1234));
    assert_same(&there.read(100, 5000), &data, "written");
}
