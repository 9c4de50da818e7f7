//! Completion events: armed queues get one, and only then.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use guest_sim::suite::{Conn, Pair, Setup, assert_status};
use guest_sim::verbs::{Cq, Guest, Mr, QpCaps, wr};
use vrdma_abi::ring::*;
use vrdma_rings::{Arm, SendRequest};

use crate::Test;

/// Long enough for an event that comes to come, short enough to wait for one that does not.
const QUIET: Duration = Duration::from_millis(20);
const SOON: Duration = Duration::from_secs(5);

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("an_event_for_each_arming", &[], armed_next),
        Test::new("an_event_for_solicited_completions", &[], armed_solicited),
        Test::new("an_event_for_a_failed_completion", &[], failed_is_solicited),
        Test::new("a_burst_is_one_event", &[], burst),
        Test::new("arming_for_any_completion_is_not_weakened", &[], stronger_wish_stays),
        Test::new("events_go_to_their_vectors", &[], vectors),
        Test::new("more_events_than_buffers", &[], more_than_buffers),
    ]
}

fn send(c: &Conn, here: &Mr, flags: u8) {
    c.b.post_recv(1, &[]).unwrap();
    let request = wr::request(SEND_OP_SEND, 1);
    let request = SendRequest { flags: request.flags | flags, ..request };
    c.a.post_send(&request, &[here.sge(0, 0)]).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
}

#[track_caller]
fn expect(guest: &Guest, cq: &Cq) {
    let event = guest.next_comp_event(0, SOON).expect("an event");
    assert_eq!((event.cq, event.epoch), (cq.handle(), guest.config.epoch));
}

#[track_caller]
fn expect_none(guest: &Guest) {
    let event = guest.next_comp_event(0, QUIET);
    assert!(event.is_none(), "an event that nobody asked for: {event:?}");
}

fn armed_next(p: &Pair) {
    let c = p.connect();
    let here = p.a.buffer(64);
    let (guest, cq) = (&p.b.guest, c.b.recv_cq());
    send(&c, &here, 0);
    c.b.recv_completion();
    expect_none(guest);
    for _ in 0..20 {
        cq.arm(Arm::Next);
        send(&c, &here, 0);
        expect(guest, cq);
        c.b.recv_completion();
    }
    send(&c, &here, 0);
    c.b.recv_completion();
    expect_none(guest);
    // The sender's queue, armed, tells of sends.
    c.a.send_cq().arm(Arm::Next);
    send(&c, &here, 0);
    expect(&p.a.guest, c.a.send_cq());
}

fn armed_solicited(p: &Pair) {
    let c = p.connect();
    let here = p.a.buffer(64);
    let (guest, cq) = (&p.b.guest, c.b.recv_cq());
    cq.arm(Arm::Solicited);
    for _ in 0..3 {
        send(&c, &here, 0);
        assert_eq!(c.b.recv_completion().flags & CQE_SOLICITED, 0);
    }
    expect_none(guest);
    send(&c, &here, SEND_SOLICITED);
    expect(guest, cq);
    assert_ne!(c.b.recv_completion().flags & CQE_SOLICITED, 0);
    send(&c, &here, SEND_SOLICITED);
    c.b.recv_completion();
    expect_none(guest);
}

fn failed_is_solicited(p: &Pair) {
    let c = p.connect();
    let (guest, cq) = (&p.b.guest, c.b.recv_cq());
    c.b.post_recv(1, &[]).unwrap();
    cq.arm(Arm::Solicited);
    c.b.to_state(vrdma_abi::control::QP_STATE_ERR).unwrap();
    assert_status(&c.b.recv_completion(), WC_WR_FLUSH_ERR);
    expect(guest, cq);
}

fn burst(p: &Pair) {
    let c = p.connect();
    let here = p.a.buffer(64);
    let (guest, cq) = (&p.b.guest, c.b.recv_cq());
    for k in 0..20 {
        c.b.post_recv(k, &[]).unwrap();
    }
    cq.arm(Arm::Next);
    let posts: Vec<_> = (0..20).map(|k| (wr::request(SEND_OP_SEND, k), vec![here.sge(0, 0)])).collect();
    c.a.post_sends(&posts).unwrap();
    for _ in 0..20 {
        c.b.recv_completion();
        c.a.send_completion();
    }
    expect(guest, cq);
    expect_none(guest);
}

fn stronger_wish_stays(p: &Pair) {
    let c = p.connect();
    let here = p.a.buffer(64);
    let cq = c.b.recv_cq();
    cq.arm(Arm::Next);
    cq.arm(Arm::Solicited);
    send(&c, &here, 0);
    expect(&p.b.guest, cq);
    c.b.recv_completion();
}

fn vectors(p: &Pair) {
    let vectors = p.b.guest.config.num_comp_vectors;
    assert!(vectors > 1, "a device with several vectors");
    let setup = Setup::default();
    let mut conns = Vec::new();
    for n in 0..3 * vectors {
        let cq = p.b.ctx.create_cq(64, u32::from(n % vectors)).unwrap();
        let b = p.b.pd.create_qp(&cq, &cq, &setup.caps_b).unwrap();
        let c = Conn { a: p.a.qp(&setup.caps_a, 64), b };
        c.connect(p, &setup);
        conns.push(c);
    }
    let here = p.a.buffer(64);
    for c in &conns {
        c.b.recv_cq().arm(Arm::Next);
        send(c, &here, 0);
    }
    for vector in 0..vectors {
        let mut got: Vec<u32> = (0..3)
            .map(|_| p.b.guest.next_comp_event(vector, SOON).expect("an event on this vector").cq)
            .collect();
        got.sort_unstable();
        let of_vector = conns.iter().skip(usize::from(vector)).step_by(usize::from(vectors));
        let mut want: Vec<u32> = of_vector.map(|c| c.b.recv_cq().handle()).collect();
        want.sort_unstable();
        assert_eq!(got, want);
    }
}

/// The guest offers 256 buffers and takes none back for a while: events wait for buffers, none is lost.
fn more_than_buffers(p: &Pair) {
    const COUNT: usize = 300;
    let side = &p.b;
    let caps = QpCaps { send_wr: 1, recv_wr: 1, send_sge: 1, recv_sge: 1, ..QpCaps::default() };
    let cqs: Vec<Arc<Cq>> = (0..COUNT).map(|_| side.ctx.create_cq(2, 1).unwrap()).collect();
    let qps: Vec<_> = cqs.iter().map(|cq| side.pd.create_qp(cq, cq, &caps).unwrap()).collect();
    for qp in &qps {
        qp.to_init(&Default::default()).unwrap();
        qp.post_recv(1, &[]).unwrap();
        qp.recv_cq().arm(Arm::Next);
    }
    for qp in &qps {
        qp.to_state(vrdma_abi::control::QP_STATE_ERR).unwrap(); // flushes the receive
    }
    let mut missing: HashSet<u32> = cqs.iter().map(|cq| cq.handle()).collect();
    while !missing.is_empty() {
        let event = side.guest.next_comp_event(1, SOON);
        let event = event.unwrap_or_else(|| panic!("{} events are lost", missing.len()));
        assert!(missing.remove(&event.cq), "a second event of one queue");
    }
}
