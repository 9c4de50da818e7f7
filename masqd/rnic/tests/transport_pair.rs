//! Two queue pairs, one behaviour of the transport at a time.

mod transport_support;

use std::time::Duration;

use masq_driver::{QpChange, QpState};
use masq_rnic::transport::*;
use masq_types::{Mtu, Psn, Rkey};
use masq_wire::{Kind, Opcode, Position, Syndrome, parse};
use transport_support::*;

const PSN: u32 = 0xff_fff0;

fn tuned(config: QpConfig) -> Setup {
    let config = QpConfig { min_ack_timeout: Duration::ZERO, ..config };
    Setup { config, ..Setup::default() }
}

fn succeeded(pair: &Pair, end: usize, queue: WorkQueue) -> Vec<u64> {
    let done = pair.ends[end].world.of(queue);
    assert!(done.iter().all(|c| c.status == Status::Success), "{done:?}");
    done.iter().map(|c| c.wr_id).collect()
}

/// The kinds of packets sent to an end.
fn kinds(pair: &Pair, to: usize) -> Vec<Kind> {
    pair.sent_to(to).iter().map(|(opcode, _)| opcode.info().unwrap().kind).collect()
}

#[test]
fn every_operation_at_every_mtu() {
    for mtu in Mtu::ALL {
        let setup = Setup { mtu, ..Setup::default() };
        let mut pair = Pair::with_memory(&setup);
        let len = 3 * mtu.bytes() + 5;
        let at = REGION_BYTES / 2;
        let source = pair.bytes(0, LOCAL, 0, len as usize);
        pair.post_recv(1, recv(1, len));
        pair.post_recv(1, recv(2, 0));
        pair.post_send(0, send(SendOp::Send, 1, len));
        pair.post_send(0, send(SendOp::WriteImm, 2, len));
        pair.run();
        assert_eq!(pair.bytes(1, LOCAL, at, len as usize), source);
        assert_eq!(pair.bytes(1, REMOTE, 0, len as usize), source);
        let back = SendWork { sges: vec![sge(LOCAL, BASE + 64 * 1024, len)], ..send(SendOp::Read, 3, len) };
        pair.post_send(0, back);
        pair.run();
        assert_eq!(pair.bytes(0, LOCAL, 64 * 1024, len as usize), source);
        assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [1, 2, 3]);
        assert_eq!(succeeded(&pair, 1, WorkQueue::Recv), [1, 2]);
        assert_eq!(pair.sent_to(1).len(), 4 + 4 + 1);
    }
}

/// A message becomes few transmits of many equal segments.
#[test]
fn segments_fill_a_transmit() {
    let setup = Setup { mtu: Mtu::B4096, ..tuned(QpConfig::default()) };
    let mut pair = Pair::with_memory(&setup);
    pair.ends[0].world.post_send(send(SendOp::Write, 1, 1 << 16));
    pair.ends[0].world.post_send(send(SendOp::Send, 2, 1 << 16));
    pair.doorbell(0);
    let now = pair.now;
    let End { qp, world } = &mut pair.ends[0];
    let mut buf = vec![0xee; 10];
    let mut transmits = Vec::new();
    while let Some(t) = qp.poll_transmit(now, world, &mut buf, 64) {
        transmits.push((t.segments, t.segment_bytes));
    }
    // The first packet of a WRITE is longer by its RETH, so that one more can follow as a shorter last. 15 full
    // packets are as many as a datagram's length allows. The two messages share the second transmit.
    let first = 12 + 16 + 4096 + 4;
    let middle = 12 + 4096 + 4;
    assert_eq!(transmits, [(2, first), (15, middle), (15, middle)]);
    let bytes = first + 31 * middle;
    assert_eq!(buf.len(), 10 + bytes);
    assert!(buf[..10].iter().all(|&b| b == 0xee));
}

#[test]
fn small_messages_share_a_transmit_and_an_acknowledgement() {
    let mut pair = Pair::with_memory(&Setup::default());
    for i in 0..10 {
        pair.ends[0].world.post_send(send(SendOp::Write, i, 64));
    }
    pair.doorbell(0);
    let now = pair.now;
    let End { qp, world } = &mut pair.ends[0];
    let mut buf = Vec::new();
    let transmit = qp.poll_transmit(now, world, &mut buf, 16).unwrap();
    assert_eq!((transmit.segments, transmit.segment_bytes), (10, 12 + 16 + 64 + 4));
    for datagram in buf.chunks(transmit.segment_bytes) {
        pair.inject(1, datagram);
    }
    pair.run();
    assert_eq!(pair.sent_to(0), [(Opcode::RC_ACK, Psn::new(PSN).plus(9).get())]);
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), (0..10).collect::<Vec<_>>());
}

#[test]
fn the_window_is_kept_and_its_last_packet_asks() {
    let setup = tuned(QpConfig { window_packets: 10, ack_every: 4, ..QpConfig::default() });
    let mut pair = Pair::with_memory(&setup);
    pair.deaf[0] = true;
    pair.post_send(0, send(SendOp::Write, 1, 256 * 100));
    pair.pump();
    let asks: Vec<_> = pair.sent.iter().map(|(_, d)| parse(d).unwrap().repr.bth.ack_req).collect();
    assert_eq!(asks, [false, false, false, true, false, false, false, true, false, true]);
    pair.deaf[0] = false;
    pair.run();
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [1]);
}

/// No more requests are taken out of the ring than may be held, and one always may; the rest follows.
#[test]
fn held_requests_are_bounded() {
    for (max_requests, hold_at_most, expected) in
        [(4, None, 4), (0, None, 1), (u32::MAX, Some(3), 3), (u32::MAX, Some(0), 1), (2, Some(7), 2)]
    {
        let mut pair = Pair::with_memory(&tuned(QpConfig { max_requests, ..QpConfig::default() }));
        pair.world(0).hold_at_most = hold_at_most;
        pair.deaf[0] = true;
        for wr_id in 0..20 {
            pair.post_send(0, send(SendOp::Write, wr_id, 8));
        }
        pair.pump();
        assert_eq!((pair.world(0).sq.len(), pair.ends[0].qp.buffers()), (20 - expected, expected));
        assert_eq!(pair.sent_to(1).len(), expected);
        pair.deaf[0] = false;
        pair.run();
        assert_eq!(succeeded(&pair, 0, WorkQueue::Send), (0..20).collect::<Vec<_>>());
        assert!(pair.ends[0].qp.buffers() <= expected.min(4));
    }
}

/// READs are asked for in pieces, never more at once than agreed.
#[test]
fn reads_are_limited() {
    let setup = Setup {
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        ..tuned(QpConfig { read_packets: 4, ..QpConfig::default() })
    };
    let mut pair = Pair::with_memory(&setup);
    pair.post_send(0, send(SendOp::Read, 1, 256 * 10));
    pair.post_send(0, send(SendOp::FetchAdd, 2, 8));
    pair.pump();
    assert_eq!(
        pair.sent_to(1),
        [(Opcode::RC_READ_REQUEST, PSN), (Opcode::RC_READ_REQUEST, PSN + 4)],
        "two at once"
    );
    pair.run();
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [1, 2]);
    let requests: Vec<_> = pair.sent_to(1).iter().map(|(_, psn)| psn.wrapping_sub(PSN)).collect();
    assert_eq!(requests, [0, 4, 8, 10], "and each once");
}

#[test]
fn a_fence_waits_for_reads() {
    let setup = tuned(QpConfig { read_packets: 2, ..QpConfig::default() });
    for fence in [false, true] {
        let mut pair = Pair::with_memory(&setup);
        pair.post_send(0, send(SendOp::Read, 1, 256 * 3));
        pair.post_send(0, SendWork { fence, ..send(SendOp::Write, 2, 8) });
        pair.pump();
        assert_eq!(kinds(&pair, 1).contains(&Kind::Write), !fence);
        pair.run();
        assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [1, 2]);
    }
}

#[test]
fn empty_messages_need_no_key() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.post_recv(1, RecvWork { wr_id: 7, ..RecvWork::default() });
    for op in [SendOp::Write, SendOp::Read, SendOp::Send] {
        let work = SendWork { rkey: Rkey(77), sges: vec![sge(88, 3, 0)], ..send(op, 1, 0) };
        pair.post_send(0, work);
    }
    pair.run();
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [1, 1, 1]);
    assert_eq!(pair.ends[1].world.writes, []);
}

#[test]
fn a_lost_packet_is_asked_for_once() {
    let mut pair = Pair::with_memory(&Setup::default());
    let source = pair.bytes(0, LOCAL, 0, 256 * 20);
    pair.post_send(0, send(SendOp::Write, 1, 256 * 20));
    let datagrams = drain(&mut pair, 0);
    for (i, datagram) in datagrams.iter().enumerate() {
        if i != 3 {
            pair.inject(1, datagram);
            pair.pump();
        }
    }
    let answers: Vec<_> =
        pair.sent.iter().map(|(_, d)| *parse(d).unwrap().repr.ext.aeth().unwrap()).collect();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].syndrome, Syndrome::Nak(masq_wire::NakCode::PsnSequenceError));
    assert_eq!(pair.ends[1].qp.counters().out_of_sequence, 16);
    assert!(
        pair.ends[1].world.writes.iter().all(|w| w.1 + w.2 <= 256 * 3),
        "nothing is placed past the hole"
    );
    let begin = pair.now;
    pair.run();
    assert!(pair.now.since(begin) < Duration::from_millis(1), "without a timeout");
    assert_eq!(pair.bytes(1, REMOTE, 0, 256 * 20), source);
    assert_eq!(pair.ends[0].qp.counters().packet_seq_err, 1);
    assert_eq!(pair.ends[0].qp.counters().retransmitted_pkts, 17);
}

/// All datagrams that an end has to send now, without sending them.
fn drain(pair: &mut Pair, end: usize) -> Vec<Vec<u8>> {
    let now = pair.now;
    let End { qp, world } = &mut pair.ends[end];
    let (mut datagrams, mut buf) = (Vec::new(), Vec::new());
    while let Some(t) = qp.poll_transmit(now, world, &mut buf, 64) {
        datagrams.extend(buf.chunks(t.segment_bytes).map(<[u8]>::to_vec));
        buf.clear();
    }
    datagrams
}

/// PSN and syndrome of acknowledgements.
fn answers(datagrams: &[Vec<u8>]) -> Vec<(u32, Syndrome, u32)> {
    let answer = |datagram: &Vec<u8>| {
        let repr = parse(datagram).unwrap().repr;
        let aeth = repr.ext.aeth().unwrap();
        (repr.bth.psn.since(Psn::new(PSN)), aeth.syndrome, aeth.msn.get())
    };
    datagrams.iter().map(answer).collect()
}

/// The missing packet comes before the peer is told of the gap: what was dropped behind it is still asked for.
#[test]
fn a_gap_that_closes_half() {
    let missing = Syndrome::Nak(masq_wire::NakCode::PsnSequenceError);
    let ack = Syndrome::Ack(masq_wire::Credits::UNLIMITED);
    for (order, want) in [
        (&[1, 0][..], (1, missing, 1)),
        (&[2, 1, 0], (1, missing, 1)),
        (&[2, 0, 1], (2, missing, 2)),
        (&[1, 0, 1, 2], (2, ack, 3)),
        (&[2, 0, 1, 2], (2, ack, 3)),
    ] {
        let mut pair = Pair::with_memory(&Setup::default());
        for i in 0..3 {
            pair.post_send(0, send(SendOp::Write, i, 8));
        }
        let datagrams = drain(&mut pair, 0);
        for &i in order {
            pair.inject(1, &datagrams[i]);
        }
        assert_eq!(answers(&drain(&mut pair, 1)), [want], "{order:?}");
    }
    // The same when it was a receive that was missing.
    let mut pair = Pair::with_memory(&Setup::default());
    for i in 0..2 {
        pair.post_send(0, send(SendOp::Send, i, 8));
    }
    let datagrams = drain(&mut pair, 0);
    pair.inject(1, &datagrams[0]);
    pair.inject(1, &datagrams[1]);
    pair.post_recv(1, recv(0, 8));
    pair.inject(1, &datagrams[0]);
    assert_eq!(answers(&drain(&mut pair, 1)), [(1, missing, 1)]);
}

/// Acknowledgements and responses count the messages that are done (the MSN).
#[test]
fn messages_are_counted() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.post_recv(1, recv(0, 2000));
    for (i, op) in [SendOp::Write, SendOp::Send, SendOp::Read, SendOp::FetchAdd].into_iter().enumerate() {
        pair.post_send(0, send(op, i as u64, if op.is_atomic() { 8 } else { 600 }));
        pair.run();
    }
    let to_requester: Vec<_> = pair.sent.iter().filter(|(to, _)| *to == 0).collect();
    let msn = |d: &[u8]| parse(d).unwrap().repr.ext.aeth().map(|a| a.msn.get());
    let msns: Vec<_> = to_requester.iter().map(|(_, d)| msn(d)).collect();
    assert_eq!(msns, [Some(1), Some(2), Some(3), None, Some(3), Some(4)]);
}

/// A queue pair that its owner moves to ERR, or that something outside stops, says nothing any more, not even what
/// it owes.
#[test]
fn silent_in_err() {
    for outside in [false, true] {
        let mut pair = Pair::with_memory(&Setup::default());
        pair.post_send(0, send(SendOp::Write, 1, 8));
        pair.post_send(0, send(SendOp::Read, 2, 5000));
        for datagram in drain(&mut pair, 0) {
            pair.inject(1, &datagram);
        }
        let now = pair.now;
        let End { qp, world } = &mut pair.ends[1];
        match outside {
            true => qp.fail(now, world, None, "a test"),
            false => pair.enter(1, QpState::Err),
        }
        assert_eq!(pair.ends[1].qp.state(), QpState::Err);
        assert_eq!(drain(&mut pair, 1), Vec::<Vec<u8>>::new());
    }
}

/// A lost response shows by the next one; the READ goes on from there.
#[test]
fn a_lost_response_is_asked_for_again() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.post_send(0, send(SendOp::Read, 1, 256 * 8));
    pair.pump();
    let request = pair.sent.pop().unwrap().1;
    pair.inject(1, &request);
    let responses = drain(&mut pair, 1);
    for response in responses[..2].iter().chain(&responses[5..]) {
        pair.inject(0, response);
    }
    pair.sent.clear();
    pair.pump();
    let again = parse(&pair.sent[0].1).unwrap();
    let reth = again.repr.ext.reth().unwrap();
    assert_eq!(pair.sent.len(), 1);
    assert_eq!((reth.va, reth.dma_len), (BASE + 512, 256 * 6));
    assert_eq!(again.repr.bth.psn, Psn::new(PSN + 2));
    pair.run();
    assert_eq!(pair.bytes(0, LOCAL, 0, 2048), pair.bytes(1, REMOTE, 0, 2048));
    assert_eq!(pair.ends[0].qp.counters().implied_nak_request, 3, "the others of the same gap mean nothing");
    let mut positions = pair.sent_to(0).into_iter().map(|(opcode, _)| opcode.info().unwrap().position);
    assert_eq!(positions.next(), Some(Position::First), "a repetition is a message of its own");
}

/// Acknowledgements may be lost as long as a later one comes.
#[test]
fn acknowledgements_are_cumulative() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.deaf[0] = true;
    pair.post_send(0, send(SendOp::Write, 1, 600));
    pair.post_send(0, send(SendOp::Write, 2, 600));
    pair.run_for(LATENCY * 3);
    assert_eq!(pair.ends[0].world.completions, []);
    pair.deaf[0] = false;
    pair.post_send(0, send(SendOp::Write, 3, 1));
    pair.run_for(LATENCY * 3);
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [1, 2, 3]);
    assert_eq!(pair.sent_to(1).len(), 7, "nothing was sent twice");
}

#[test]
fn no_timeout_means_no_repetition() {
    let mut pair = Pair::with_memory(&Setup { timeout: 0, ..Setup::default() });
    pair.deaf[1] = true;
    pair.post_send(0, send(SendOp::Write, 1, 8));
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.ends[0].qp.poll_timeout(), None);
    assert_eq!((pair.sent.len(), pair.ends[0].qp.state()), (1, QpState::Rts));
}

/// The last packet of a WRITE with immediate data waits for a receive; those before it are not sent again.
#[test]
fn rnr_in_mid_message() {
    let mut pair = Pair::with_memory(&Setup { min_rnr_timer: 6, ..Setup::default() });
    pair.post_send(0, send(SendOp::WriteImm, 1, 256 * 3));
    pair.post_send(0, send(SendOp::Write, 2, 8));
    pair.run_for(LATENCY * 3);
    pair.post_recv(1, recv(5, 0));
    pair.run();
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [1, 2]);
    assert_eq!(succeeded(&pair, 1, WorkQueue::Recv), [5]);
    let psns: Vec<_> = pair.sent_to(1).iter().map(|(_, psn)| psn - PSN).collect();
    assert_eq!(psns, [0, 1, 2, 3, 2, 3]);
    assert_eq!(pair.ends[1].qp.counters().send_rnr_err, 1);
}

/// The answer to a READ acknowledges what came before it.
#[test]
fn a_response_is_an_acknowledgement() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.post_send(0, send(SendOp::Write, 1, 8));
    pair.post_send(0, send(SendOp::Read, 2, 8));
    for datagram in drain(&mut pair, 0) {
        pair.inject(1, &datagram);
    }
    pair.run();
    assert_eq!(kinds(&pair, 0), [Kind::ReadResponse]);
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [1, 2]);
}

/// A receive is posted and the request comes again by itself, while the requester waits as it was told: its
/// acknowledgement ends the wait.
#[test]
fn an_acknowledgement_ends_an_rnr_wait() {
    let mut pair = Pair::with_memory(&Setup { min_rnr_timer: 31, ..Setup::default() });
    let begin = pair.now;
    pair.post_send(0, send(SendOp::Send, 1, 8));
    pair.run_for(LATENCY * 3);
    pair.post_recv(1, recv(1, 8));
    let request = pair.sent[0].1.clone();
    pair.inject(1, &request);
    pair.post_send(0, send(SendOp::Write, 2, 8));
    pair.run();
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [1, 2]);
    assert!(pair.now.since(begin) < LATENCY * 10, "the timer said half a second");
}

/// Whatever comes late or twice after all is over changes nothing: not memory, not completions, not PSNs.
#[test]
fn late_packets_change_nothing() {
    let setup = Setup { max_dest_rd_atomic: 16, max_rd_atomic: 16, ..Setup::default() };
    let mut pair = Pair::with_memory(&setup);
    for i in 0..3 {
        pair.post_recv(0, recv(i, 2000));
        pair.post_recv(1, recv(i, 2000));
    }
    for end in 0..2 {
        for (i, op) in SendOp::MESSAGES.into_iter().enumerate() {
            let work = send(op, i as u64, if op.is_atomic() { 8 } else { 700 });
            pair.post_send(end, SendWork { compare_add: 1, swap: 5, ..work });
        }
    }
    pair.run();
    let summary = |pair: &Pair| {
        let end = |end: &End| {
            let world = &end.world;
            (world.completions.clone(), world.events.clone(), world.writes.clone(), end.qp.status())
        };
        [end(&pair.ends[0]), end(&pair.ends[1])]
    };
    // Changes that a second execution would undo.
    for end in 0..2 {
        pair.world(end).region_mut(REMOTE).data.fill(0x5a);
        pair.world(end).region_mut(LOCAL).data.fill(0xa5);
    }
    let before = summary(&pair);
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [0, 1, 2, 3, 4, 5, 6]);
    let all = std::mem::take(&mut pair.sent);
    assert!(all.len() > 30);
    for (to, datagram) in all.iter().chain(all.iter().rev()) {
        pair.inject(*to, datagram);
        pair.run();
    }
    assert_eq!(summary(&pair), before);
    for end in 0..2 {
        assert!(pair.bytes(end, REMOTE, 0, REGION_BYTES).iter().all(|&b| b == 0x5a));
        assert!(pair.bytes(end, LOCAL, 0, REGION_BYTES).iter().all(|&b| b == 0xa5));
        // Now the regions are gone, too.
        pair.world(end).regions.clear();
    }
    for (to, datagram) in &all {
        pair.inject(*to, datagram);
        pair.run();
    }
    assert_eq!(summary(&pair), before);
    // And they still talk to one another.
    pair.post_recv(1, RecvWork { wr_id: 9, ..RecvWork::default() });
    pair.post_send(0, SendWork { sges: Vec::new(), ..send(SendOp::Send, 9, 0) });
    pair.run();
    assert_eq!(succeeded(&pair, 1, WorkQueue::Recv), [0, 1, 2, 9]);
}

/// A responder replays an atomic's result and executes it once, even when it is asked many times.
#[test]
fn atomics_execute_once() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.world(1).region_mut(REMOTE).data[..8].fill(0);
    pair.deaf[0] = true;
    pair.post_send(0, SendWork { compare_add: 5, ..send(SendOp::FetchAdd, 1, 8) });
    pair.post_send(0, SendWork { compare_add: 5, swap: 99, ..send(SendOp::CmpSwap, 2, 8) });
    pair.run_for(Duration::from_millis(5));
    assert!(pair.ends[1].qp.counters().duplicate_request >= 4);
    pair.deaf[0] = false;
    pair.run();
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [1, 2]);
    assert_eq!(pair.bytes(1, REMOTE, 0, 8), 99u64.to_ne_bytes());
    assert_eq!(pair.bytes(0, LOCAL, 0, 8), 5u64.to_ne_bytes());
}

#[test]
fn the_first_packet_in_rtr_is_reported() {
    let setup = Setup::default();
    let mut pair = Pair::unconnected(&setup, 1);
    for change in to_rts(&setup, 0) {
        pair.modify(0, change).unwrap();
    }
    let [init, rtr, rts] = to_rts(&setup, 1);
    pair.modify(1, init).unwrap();
    let regions = Pair::with_memory(&setup).ends.map(|e| e.world.regions);
    for (end, regions) in regions.into_iter().enumerate() {
        pair.world(end).regions = regions;
    }
    // INIT: receives can be posted, packets are dropped.
    pair.post_recv(1, recv(1, 100));
    pair.post_recv(1, recv(2, 100));
    pair.post_send(0, send(SendOp::Send, 1, 10));
    pair.run_for(LATENCY * 3);
    assert_eq!((pair.sent_to(0), pair.ends[1].world.events.len()), (vec![], 0));
    pair.modify(1, rtr).unwrap();
    pair.post_send(0, send(SendOp::Send, 2, 10));
    pair.run();
    assert_eq!(pair.ends[1].world.events, [QpEvent::CommEstablished], "once");
    assert_eq!(succeeded(&pair, 1, WorkQueue::Recv), [1, 2]);
    pair.modify(1, rts).unwrap();
    assert_eq!(pair.ends[1].qp.status().sq_psn, Psn::new(5));
}

#[test]
fn draining() {
    let setup = tuned(QpConfig { window_packets: 2, ..QpConfig::default() });
    let mut pair = Pair::with_memory(&setup);
    pair.post_send(0, send(SendOp::Write, 1, 256 * 9));
    pair.post_send(0, send(SendOp::Write, 2, 8));
    pair.run_for(LATENCY * 3);
    let sqd = QpChange { to: Some(QpState::Sqd), sq_drained_notify: Some(true), ..QpChange::default() };
    pair.modify(0, sqd).unwrap();
    assert!(pair.ends[0].qp.status().sq_draining);
    assert_eq!(pair.ends[0].world.events, []);
    pair.post_send(0, send(SendOp::Write, 3, 8));
    pair.run();
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [1], "what had begun is done, nothing else began");
    assert_eq!(pair.ends[0].world.events, [QpEvent::SqDrained]);
    assert!(!pair.ends[0].qp.status().sq_draining);
    // It still answers its peer.
    pair.post_send(1, send(SendOp::Write, 7, 8));
    pair.run();
    assert_eq!(succeeded(&pair, 1, WorkQueue::Send), [7]);
    let more = QpChange { max_rd_atomic: Some(1), timeout: Some(9), ..QpChange::default() };
    pair.modify(0, more).unwrap();
    pair.enter(0, QpState::Rts);
    pair.run();
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [1, 2, 3]);
    assert_eq!(pair.ends[0].world.events, [QpEvent::SqDrained], "once");
    // An idle queue is drained at once.
    pair.enter(0, QpState::Sqd);
    assert_eq!(pair.ends[0].world.events, [QpEvent::SqDrained; 2]);
}

/// RESET drops all work without a word; the queue pair can be connected again, and old packets mean nothing.
#[test]
fn reset_and_again() {
    let setup = Setup::default();
    let mut pair = Pair::with_memory(&setup);
    pair.deaf[1] = true;
    pair.post_send(0, send(SendOp::Write, 1, 600));
    pair.run_for(LATENCY);
    pair.deaf[1] = false;
    for end in 0..2 {
        pair.enter(end, QpState::Reset);
        pair.world(end).sq.clear();
    }
    assert_eq!(pair.ends[0].qp.poll_timeout(), None);
    let again = Setup { psn: [100, 200], ..setup };
    for end in 0..2 {
        for change in to_rts(&again, end) {
            pair.modify(end, change).unwrap();
        }
    }
    pair.run();
    assert_eq!(pair.ends[0].world.completions, []);
    pair.post_send(0, send(SendOp::Write, 2, 600));
    pair.run();
    assert_eq!(succeeded(&pair, 0, WorkQueue::Send), [2]);
    assert_eq!(pair.ends[0].qp.status().sq_psn, Psn::new(103));
}

#[test]
fn a_refused_change_changes_nothing() {
    let mut pair = Pair::with_memory(&Setup::default());
    let before = (pair.ends[0].qp.attributes().clone(), pair.ends[0].qp.status());
    let bad = [
        QpChange { to: Some(QpState::Rtr), ..QpChange::default() },
        QpChange { path_mtu: Some(Mtu::B4096), ..QpChange::default() },
        QpChange { from: Some(QpState::Sqd), to: Some(QpState::Err), ..QpChange::default() },
        QpChange { min_rnr_timer: Some(32), ..QpChange::default() },
    ];
    for change in bad {
        assert!(pair.modify(0, change.clone()).is_err(), "{change:?}");
        assert_eq!((pair.ends[0].qp.attributes().clone(), pair.ends[0].qp.status()), before);
    }
}

/// Twice round the space of PSNs' end, with more in flight than lies before it.
#[test]
fn psns_wrap_in_mid_window() {
    for faults in [Faults::default(), Faults { loss: 10, duplication: 10, reorder: 10 }] {
        let mut pair = Pair::with_memory(&Setup { psn: [0xff_fffa, 0xff_fffe], ..Setup::default() });
        pair.faults = faults;
        let source = [0, 1].map(|end| pair.bytes(end, LOCAL, 0, 256 * 40));
        for end in 0..2 {
            pair.post_send(end, send(SendOp::Write, 1, 256 * 40));
            let back = vec![sge(LOCAL, BASE + 0x8000, 256 * 40)];
            pair.post_send(end, SendWork { sges: back, ..send(SendOp::Read, 2, 0) });
        }
        pair.run();
        for (end, source) in source.iter().enumerate() {
            assert_eq!(succeeded(&pair, end, WorkQueue::Send), [1, 2]);
            assert_eq!(&pair.bytes(end, LOCAL, 0x8000, 256 * 40), source);
        }
        assert_eq!(pair.ends[0].qp.status().sq_psn, Psn::new(0xff_fffa).plus(80));
    }
}
