//! Requests that change keys and send nothing: when they are carried out, and when they complete.

mod transport_support;

use std::time::Duration;

use masq_driver::QpState;
use masq_rnic::transport::*;
use masq_types::Rkey;
use transport_support::*;

fn invalidate(wr_id: u64) -> SendWork {
    let key_change = Some(KeyChange::Invalidate(Rkey(wr_id as u32)));
    SendWork { op: SendOp::LocalInv, wr_id, signalled: true, key_change, ..SendWork::default() }
}

fn changes(pair: &Pair) -> usize {
    pair.ends[0].world.changes.len()
}

fn done(pair: &Pair) -> Vec<(u64, Status)> {
    pair.ends[0].world.statuses(WorkQueue::Send)
}

#[test]
fn carried_out_in_order_and_completed_in_order() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.deaf[0] = true;
    pair.post_send(0, send(SendOp::Write, 1, 1000));
    pair.post_send(0, invalidate(2));
    pair.post_send(0, invalidate(3));
    pair.post_send(0, send(SendOp::Write, 4, 100));
    assert_eq!(changes(&pair), 0, "the write before it has not been sent");
    pair.pump();
    assert_eq!(changes(&pair), 2);
    pair.run_for(Duration::from_micros(500));
    assert_eq!(done(&pair), [], "the write before it is not acknowledged");
    pair.deaf[0] = false;
    pair.run();
    assert_eq!(done(&pair), [1, 2, 3, 4].map(|wr_id| (wr_id, Status::Success)));
    let opcodes: Vec<_> =
        pair.ends[0].world.of(WorkQueue::Send).iter().map(|c| (c.opcode, c.byte_len)).collect();
    assert_eq!(opcodes[1..3], [(WcOpcode::LocalInv, 0); 2]);
    assert_eq!(pair.ends[0].qp.counters().retransmitted_pkts, 5, "the writes were sent twice");
    assert_eq!(changes(&pair), 2, "and nothing else was done twice");
}

#[test]
fn alone_they_complete_at_once_and_take_no_number() {
    let mut pair = Pair::with_memory(&Setup::default());
    let psn = pair.ends[0].qp.status().sq_psn;
    pair.post_send(0, invalidate(1));
    pair.post_send(0, SendWork { signalled: false, ..invalidate(2) });
    assert_eq!((changes(&pair), done(&pair)), (2, vec![(1, Status::Success)]));
    assert_eq!(pair.ends[0].qp.status().sq_psn, psn);
    pair.pump();
    assert_eq!(pair.sent.len(), 0);
}

#[test]
fn a_fence_waits_for_reads() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.post_send(0, send(SendOp::Read, 1, 1000));
    pair.post_send(0, SendWork { fence: true, ..invalidate(2) });
    pair.pump();
    assert_eq!(changes(&pair), 0);
    pair.run();
    assert_eq!((changes(&pair), done(&pair).len()), (1, 2));
    // Without one it does not wait, but completes in order.
    pair.post_send(0, send(SendOp::Read, 3, 1000));
    pair.post_send(0, invalidate(4));
    pair.pump();
    pair.doorbell(0);
    assert_eq!((changes(&pair), done(&pair).len()), (2, 2));
    pair.run();
    assert_eq!(done(&pair).iter().map(|d| d.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

/// A message that is lost is read from memory once more, by a key that must still be there.
#[test]
fn a_fence_waits_until_messages_are_acknowledged() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.deaf[0] = true;
    pair.post_send(0, send(SendOp::Write, 1, 1000));
    pair.post_send(0, SendWork { fence: true, ..invalidate(2) });
    pair.pump();
    pair.run_for(Duration::from_micros(500));
    assert_eq!(changes(&pair), 0);
    pair.deaf[0] = false;
    pair.run();
    assert!(pair.ends[0].qp.counters().retransmitted_pkts > 0);
    assert_eq!((changes(&pair), done(&pair).len()), (1, 2));
}

#[test]
fn one_that_fails_fails_in_its_turn() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.world(0).refuses_changes = true;
    pair.post_send(0, send(SendOp::Write, 1, 1000));
    pair.post_send(0, invalidate(2));
    pair.post_send(0, send(SendOp::Write, 3, 8));
    pair.pump();
    assert_eq!(done(&pair), []);
    pair.run();
    let expected = [(1, Status::Success), (2, Status::MwBindErr), (3, Status::WrFlushErr)];
    assert_eq!(done(&pair), expected);
    assert_eq!(pair.ends[0].world.of(WorkQueue::Send)[1].cause, Cause::KeyInUse);
    assert_eq!(pair.ends[0].qp.state(), QpState::Err);
    assert_eq!(pair.ends[1].qp.state(), QpState::Rts);
}

#[test]
fn what_was_carried_out_is_flushed_with_what_is_before_it() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.deaf[1] = true;
    pair.post_send(0, send(SendOp::Write, 1, 8));
    pair.post_send(0, invalidate(2));
    pair.pump();
    pair.doorbell(0);
    assert_eq!(changes(&pair), 1);
    pair.enter(0, QpState::Err);
    assert_eq!(done(&pair), [(1, Status::WrFlushErr), (2, Status::WrFlushErr)]);
}

/// One call carries out so many, and says that there are more.
#[test]
fn many_are_carried_out_in_parts() {
    let mut pair = Pair::with_memory(&Setup::default());
    for wr_id in 0..200 {
        pair.world(0).post_send(SendWork { signalled: false, ..invalidate(wr_id) });
    }
    pair.world(0).post_send(send(SendOp::Write, 200, 8));
    let now = pair.now;
    let End { qp, world } = &mut pair.ends[0];
    assert!(qp.handle_work(now, world) && qp.wants_work());
    assert_eq!(world.changes.len(), 64);
    let mut buf = Vec::new();
    assert_eq!(qp.poll_transmit(now, world, &mut buf, 16), None);
    assert_eq!((world.changes.len(), qp.wants_work()), (128, true));
    pair.run();
    assert_eq!((changes(&pair), done(&pair)), (200, vec![(200, Status::Success)]));
}

#[test]
fn in_sqd_none_begins() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.enter(0, QpState::Sqd);
    pair.post_send(0, invalidate(1));
    pair.run_for(Duration::from_millis(1));
    assert_eq!((changes(&pair), done(&pair)), (0, vec![]));
    pair.enter(0, QpState::Rts);
    pair.doorbell(0);
    assert_eq!((changes(&pair), done(&pair)), (1, vec![(1, Status::Success)]));
}

/// A message's key becomes invalid before its receive completes, and after its data is there.
#[test]
fn a_message_invalidates_once() {
    for len in [8, 1000] {
        let mut pair = Pair::with_memory(&Setup::default());
        pair.post_recv(1, recv(7, 1000));
        pair.post_send(0, SendWork { inv: Rkey(0x1234), ..send(SendOp::SendInv, 1, len) });
        pair.run();
        assert_eq!(pair.ends[1].world.changes, [KeyChange::Invalidate(Rkey(0x1234))]);
        let received = pair.ends[1].world.of(WorkQueue::Recv);
        assert_eq!((received[0].inv, received[0].imm, received[0].byte_len), (Some(Rkey(0x1234)), None, len));
        // Once more: a duplicate.
        let all: Vec<_> = pair.sent.iter().filter(|(to, _)| *to == 1).map(|(_, d)| d.clone()).collect();
        all.iter().for_each(|d| pair.inject(1, d));
        assert_eq!(pair.ends[1].world.changes.len(), 1);
    }
}
