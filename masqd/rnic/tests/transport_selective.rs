//! Two ends that repair selectively: what is lost is sent again, and little else.

mod transport_support;

use std::collections::HashSet;
use std::time::Duration;

use masq_driver::QpState;
use masq_rnic::transport::*;
use masq_types::{Features, Mtu, Psn, Rkey};
use masq_wire::{
    AethRepr, ArrivedRepr, Credits, Extension, HoldRepr, Kind, Msn, Opcode, PacketRepr, Syndrome, parse,
};
use transport_support::*;

const KEY: u32 = 1;
const LEN: usize = 64 * 1024;
const MTU: usize = 256;

fn setup() -> Setup {
    Setup { features: [Features::SELECTIVE; 2], ..Setup::default() }
}

fn connected(setup: &Setup) -> Pair {
    let mut pair = Pair::connected(setup, 1);
    let mut rng = Seeded::new(7);
    for end in 0..2 {
        let mut region = Region::open(KEY, 0, LEN);
        rng.fill(&mut region.data);
        pair.world(end).regions.push(region);
    }
    pair
}

fn work(op: SendOp, wr_id: u64, at: usize, len: usize) -> SendWork {
    SendWork {
        wr_id,
        op,
        signalled: true,
        sges: vec![sge(KEY, at as u64, len as u32)],
        remote_addr: at as u64,
        rkey: Rkey(KEY),
        compare_add: 1,
        ..SendWork::default()
    }
}

/// Loses the datagrams for `to` that `is_lost` names: a datagram's place among those of its PSN, counted from 0, and its packet.
fn run_losing(pair: &mut Pair, to: usize, mut is_lost: impl FnMut(u32, Kind, u32) -> bool) {
    let mut seen = std::collections::HashMap::new();
    pair.run_with(|receiver, datagram| {
        let packet = parse(datagram).unwrap();
        if receiver != to {
            return true;
        }
        let psn = packet.repr.bth.psn.get();
        let times: &mut u32 = seen.entry((packet.info.kind, psn)).or_default();
        *times += 1;
        !is_lost(psn, packet.info.kind, *times - 1)
    });
}

fn assert_equal_memory(pair: &Pair) {
    assert!(pair.ends[0].world.region(KEY).data == pair.ends[1].world.region(KEY).data);
}

fn succeeded(pair: &Pair, end: usize) -> usize {
    let statuses = pair.ends[end].world.statuses(WorkQueue::Send);
    assert!(statuses.iter().all(|(_, s)| *s == Status::Success), "{statuses:?}");
    assert!(statuses.is_sorted_by_key(|(wr_id, _)| *wr_id), "in order");
    statuses.len()
}

/// The place of PSN `n` after the first, in the default set-up.
fn nth(n: u32) -> u32 {
    Psn::new(Setup::default().psn[0]).plus(n).get()
}

#[test]
fn only_what_was_lost_is_sent_again() {
    let mut pair = connected(&setup());
    for i in 0..4 {
        pair.post_send(0, work(SendOp::Write, i, i as usize * LEN / 4, LEN / 4));
    }
    let lost = [nth(3), nth(20), nth(21), nth(140)];
    run_losing(&mut pair, 1, |psn, _, times| times == 0 && lost.contains(&psn));
    assert_eq!(succeeded(&pair, 0), 4);
    assert_equal_memory(&pair);
    let c = pair.ends[0].qp.counters();
    assert_eq!((c.retransmitted_pkts, c.selective_repairs, c.probes), (4, 4, 0));
    assert_eq!((c.local_ack_timeout_err, c.packet_seq_err), (0, 0));
    let c = pair.ends[1].qp.counters();
    assert_eq!(c.duplicate_request, 0);
    assert!(c.sent_selective_acks > 0 && c.early_pkts_kept > 100, "{c:?}");
    assert_eq!([0, 1].map(|end| pair.ends[end].qp.early_bytes()), [0, 0], "nothing is kept afterwards");
}

/// What the peer writes shows in the order of the requests, whatever arrives first.
#[test]
fn later_data_never_shows_before_earlier() {
    let setup = Setup { config: QpConfig { window_packets: 1024, ..setup().config }, ..setup() };
    let mut pair = connected(&setup);
    pair.faults = Faults { loss: 10, duplication: 10, reorder: 10 };
    pair.post_send(0, work(SendOp::Write, 0, 0, LEN));
    pair.run();
    assert_eq!(succeeded(&pair, 0), 1);
    assert_equal_memory(&pair);
    let places: Vec<usize> = pair.ends[1].world.writes.iter().map(|(_, at, _)| *at).collect();
    assert_eq!(places, (0..LEN).step_by(MTU).collect::<Vec<_>>(), "each once, and in order");
}

/// What is sent to fill a gap is lost, too: that shows when something that was sent later has arrived.
#[test]
fn a_repair_that_is_lost_is_repeated_without_a_timeout() {
    let setup = Setup { config: QpConfig { window_packets: 64, ..setup().config }, ..setup() };
    let mut pair = connected(&setup);
    pair.post_send(0, work(SendOp::Write, 0, 0, LEN));
    run_losing(&mut pair, 1, |psn, _, times| psn == nth(30) && times < 2);
    let c = pair.ends[0].qp.counters();
    assert_eq!((c.selective_repairs, c.probes, c.local_ack_timeout_err), (2, 0, 0));
    assert_equal_memory(&pair);
}

/// When the end of all that was sent is lost, or every acknowledgement, nothing tells: a probe asks, well before the ACK timeout, and costs no retry.
#[test]
fn lost_ends_are_probed_for() {
    let mut pair = connected(&Setup { timeout: 16, retry_cnt: 0, ..setup() });
    let started = pair.now;
    pair.post_send(0, work(SendOp::Write, 0, 0, 40 * MTU));
    run_losing(&mut pair, 1, |psn, _, times| times == 0 && psn.wrapping_sub(nth(31)) & 0xff_ffff < 9);
    pair.post_send(0, work(SendOp::Write, 1, 40 * MTU, MTU));
    run_losing(&mut pair, 0, |_, _, times| times == 0);
    assert_eq!(succeeded(&pair, 0), 2);
    let c = pair.ends[0].qp.counters();
    assert_eq!((c.probes, c.local_ack_timeout_err), (2, 0), "{c:?}");
    assert_eq!(c.retransmitted_pkts, 1 + 8 + 1, "the probe, what it showed, and the other probe");
    assert!(pair.now.since(started) < Duration::from_millis(20), "{:?}", pair.now.since(started));
}

/// A peer that does not answer at all: probes come ever more seldom, and the ACK timeouts decide.
#[test]
fn probes_use_up_no_retries_and_end_with_them() {
    let mut pair = connected(&Setup { timeout: 14, retry_cnt: 2, ..setup() });
    pair.deaf[1] = true;
    pair.post_send(0, work(SendOp::Write, 0, 0, MTU));
    let started = pair.now;
    pair.run();
    assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), [(0, Status::RetryExcErr)]);
    let c = pair.ends[0].qp.counters();
    assert_eq!(c.local_ack_timeout_err, 3);
    assert!((6..=18).contains(&c.probes), "{}", c.probes);
    let timeout = Duration::from_nanos(4096 << 14);
    assert!(pair.now.since(started) >= timeout * 3 && pair.now.since(started) < timeout * 4);
}

#[test]
fn gaps_in_answers_are_asked_for_and_nothing_else() {
    for ops in [&[SendOp::Read][..], &[SendOp::Read, SendOp::FetchAdd, SendOp::Write, SendOp::Read]] {
        let mut pair = connected(&setup());
        for (i, op) in ops.iter().enumerate() {
            let (at, len) = (i * 16_384, if op.is_atomic() { 8 } else { 16_384 });
            pair.post_send(0, work(*op, i as u64, at, len));
        }
        let before = pair.ends[1].world.region(KEY).data[16_384..16_392].to_vec();
        let lost = [nth(2), nth(3), nth(60), nth(64), nth(65)];
        run_losing(&mut pair, 0, |psn, kind, times| {
            times == 0 && lost.contains(&psn) && matches!(kind, Kind::ReadResponse | Kind::AtomicAck)
        });
        assert_eq!(succeeded(&pair, 0), ops.len());
        let [a, b] = [0, 1].map(|end| &pair.ends[end].world.region(KEY).data);
        assert!(a[..16_384] == b[..16_384]);
        let (c, there) = (pair.ends[0].qp.counters(), pair.ends[1].qp.counters());
        if ops.len() > 1 {
            assert_eq!(a[16_384..16_392], before, "the value before the only execution");
            let now = u64::from_ne_bytes(b[16_384..16_392].try_into().unwrap());
            assert_eq!(now, u64::from_ne_bytes(before.try_into().unwrap()).wrapping_add(1), "once");
            assert!(a[3 * 16_384..] == b[3 * 16_384..]);
            // 2 and 3, 60, and the atomic's.
            assert_eq!((c.selective_repairs, there.duplicate_request), (3, 3), "{c:?}");
        } else {
            // 2 and 3 in one request, 60 in another.
            assert_eq!((c.selective_repairs, there.duplicate_request), (2, 2), "{c:?}");
        }
        assert_eq!((c.probes, c.local_ack_timeout_err), (0, 0));
        let answers = pair.sent.iter().filter(|(to, d)| {
            let kind = parse(d).unwrap().info.kind;
            *to == 0 && kind == Kind::ReadResponse
        });
        let reads = ops.iter().filter(|op| **op == SendOp::Read).count();
        assert_eq!(answers.count(), reads * 64 + 3, "each answer once, and the lost ones again");
    }
}

/// Requests for data that are lost on their way are asked for again, and what came behind them waits.
#[test]
fn lost_requests_for_data_are_sent_again() {
    let mut pair = connected(&setup());
    for i in 0..4 {
        pair.post_send(0, work(SendOp::Read, i, i as usize * LEN / 4, LEN / 4));
    }
    run_losing(&mut pair, 1, |psn, _, times| times == 0 && [nth(0), nth(128)].contains(&psn));
    assert_eq!(succeeded(&pair, 0), 4);
    assert_equal_memory(&pair);
    let c = pair.ends[0].qp.counters();
    assert_eq!((c.selective_repairs, c.local_ack_timeout_err), (2, 0), "{c:?}");
}

/// Who takes the peer for a stranger sends it standard RoCEv2 only, and what is stranger's is handled as the standard says.
#[test]
fn a_stranger_never_sees_an_opcode_of_ours() {
    for thinks in [[false, false], [true, false], [false, true], [true, true]] {
        let features = thinks.map(|t| if t { Features::SELECTIVE } else { Features::NONE });
        let mut pair = connected(&Setup { features, ..setup() });
        pair.faults.loss = 5;
        for end in 0..2 {
            pair.post_send(end, work(SendOp::Write, 0, end * LEN / 2, LEN / 2));
            pair.post_send(end, work(SendOp::Read, 1, end * LEN / 2, LEN / 2));
        }
        pair.run();
        // What nothing else acknowledges.
        for end in 0..2 {
            pair.post_send(end, work(SendOp::Write, 2, end * LEN / 2, MTU));
        }
        pair.run();
        for end in 0..2 {
            assert_eq!(succeeded(&pair, end), 3);
        }
        assert_equal_memory(&pair);
        let opcodes = |to| -> HashSet<Opcode> {
            let of = |(_, d): &(usize, Vec<u8>)| parse(d).unwrap().info.opcode;
            pair.sent.iter().filter(|(receiver, _)| *receiver == to).map(of).collect()
        };
        for end in 0..2 {
            let ours = opcodes(1 - end).iter().any(|o| o.is_manufacturer());
            assert_eq!(ours, thinks[end], "{thinks:?}, sent by {end}");
            let c = pair.ends[end].qp.counters();
            assert!(thinks[end] || c.early_pkts_kept == 0, "nothing is kept of a stranger's");
            assert_eq!(c.sent_selective_acks > 0, thinks[end]);
        }
    }
}

/// Bytes of the buffer that a packet is kept in, whatever its own size.
const BUFFER: usize = 4096;

/// Without room for early packets it is go-back-N.
#[test]
fn no_room_for_early_packets() {
    for room in [0, BUFFER + 600, 3 * (BUFFER + 600)] {
        let mut pair = connected(&setup());
        pair.faults.loss = 5;
        for end in 0..2 {
            pair.world(end).keep_at_most = Some(room);
            pair.post_send(end, work(SendOp::Write, 0, end * LEN / 2, LEN / 2));
            pair.post_send(end, work(SendOp::Read, 1, end * LEN / 2, LEN / 2));
        }
        pair.run();
        for end in 0..2 {
            assert_eq!(succeeded(&pair, end), 2);
            let c = pair.ends[end].qp.counters();
            assert!(c.early_pkts_dropped > 0 && (room > 0) == (c.early_pkts_kept > 0), "{room}: {c:?}");
        }
        assert_equal_memory(&pair);
    }
}

/// A receiver that is not ready lets go of what it keeps, and gets all of it again.
#[test]
fn early_packets_go_when_there_is_no_receive() {
    let mut pair = connected(&setup());
    for i in 0..20 {
        pair.post_send(0, SendWork { rkey: Rkey(0), ..work(SendOp::Send, i, i as usize * MTU, MTU) });
    }
    let recv = |i: u64| RecvWork {
        wr_id: i,
        sges: vec![sge(KEY, i * MTU as u64, MTU as u32)],
        ..RecvWork::default()
    };
    pair.post_recv(1, recv(0));
    let mut lost = false;
    pair.run_within(Duration::from_micros(300), |to, datagram| {
        let second = to == 1 && parse(datagram).unwrap().repr.bth.psn.get() == nth(1);
        !second || std::mem::replace(&mut lost, true)
    });
    let c = *pair.ends[1].qp.counters();
    assert!(c.early_pkts_kept > 0 && c.send_rnr_err > 0, "{c:?}");
    assert_eq!(pair.ends[1].qp.early_bytes(), 0, "the second has no receive");
    for i in 1..20 {
        pair.post_recv(1, recv(i));
    }
    pair.run();
    assert_eq!(succeeded(&pair, 0), 20);
    assert!(
        pair.ends[0].world.region(KEY).data[..20 * MTU] == pair.ends[1].world.region(KEY).data[..20 * MTU]
    );
}

fn selective_ack(psn: Psn, places: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let aeth = AethRepr { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: Msn::new(0) };
    let ext = Extension::AethHold(aeth, HoldRepr { nanos: u32::MAX });
    let repr = PacketRepr::new(Opcode::MASQ_SELECTIVE_ACK, qpn(0), psn, ext);
    let mut datagram = vec![0; repr.header_len()];
    repr.emit_headers(&mut datagram).unwrap();
    datagram.extend_from_slice(ArrivedRepr::of(places).bytes());
    datagram.extend_from_slice(&[0; 4]);
    datagram
}

/// A peer claims to have what was never sent, or what it has not: what it does not acknowledge in order does not complete, and a timeout starts afresh.
#[test]
fn what_a_peer_claims_to_have_completes_nothing() {
    let first = Psn::new(Setup::default().psn[0]);
    let claims: [(Psn, Vec<u32>); 6] = [
        (first.minus(1), (0..1024).collect()),
        (first.minus(1), vec![1023]),
        (first.plus(3), vec![0, 5, 30]),
        (first.plus(41), vec![0]),
        (first.minus(100), vec![0]),
        (first.plus(Psn::HALF), vec![0, 1]),
    ];
    for order in 0..claims.len() {
        let mut pair = connected(&Setup { timeout: 10, retry_cnt: 1, ..setup() });
        pair.deaf[1] = true;
        pair.post_send(0, work(SendOp::Write, 0, 0, 40 * MTU));
        pair.pump();
        for i in 0..claims.len() {
            let (psn, places) = &claims[(i + order) % claims.len()];
            pair.inject(0, &selective_ack(*psn, places.iter().copied()));
            pair.pump();
        }
        assert_eq!(pair.ends[0].world.completions, []);
        assert!(pair.sent.len() < 400, "claims provoke only so many repetitions: {}", pair.sent.len());
        pair.run();
        assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), [(0, Status::RetryExcErr)]);
        assert_eq!(pair.ends[0].qp.early_bytes(), 0);
    }
}

/// A flood of packets behind a gap that is never filled: what is kept is bounded by what can be named, and goes with the connection.
#[test]
fn a_flood_behind_a_gap_is_bounded() {
    let mut pair = connected(&setup());
    pair.deaf = [true; 2];
    let expected = pair.ends[1].qp.status().rq_psn;
    let middle = |psn| {
        let repr = PacketRepr::new(Opcode::RC_WRITE_MIDDLE, qpn(1), psn, Extension::None);
        let mut datagram = vec![0; repr.header_len()];
        repr.emit_headers(&mut datagram).unwrap();
        datagram.resize(datagram.len() + MTU + 4, 0xdd);
        datagram
    };
    for round in 0..3 {
        for place in 1..3000 {
            pair.inject(1, &middle(expected.plus(place * (1 + round))));
        }
    }
    let bytes = pair.ends[1].qp.early_bytes();
    assert!((1024 * BUFFER..1024 * (BUFFER + 512)).contains(&bytes), "{bytes}");
    pair.enter(1, QpState::Err);
    assert_eq!(pair.ends[1].qp.early_bytes(), 0);

    let mut pair = connected(&setup());
    pair.inject(1, &middle(expected.plus(1)));
    assert!(pair.ends[1].qp.early_bytes() > 0);
    pair.enter(1, QpState::Reset);
    assert_eq!(pair.ends[1].qp.early_bytes(), 0);
}

/// On a link that loses requests and no answers, next to nothing is sent again that was not lost, and the ACK timeouts never come.
#[test]
fn little_is_sent_in_vain() {
    for loss in [1, 5, 20] {
        let config = QpConfig { window_packets: 1024, ..setup().config };
        let mut pair = connected(&Setup { timeout: 16, config, mtu: Mtu::B256, ..setup() });
        let mut rng = Seeded::new(loss.into());
        for i in 0..16 {
            pair.post_send(0, work(SendOp::Write, i, (i as usize % 4) * LEN / 4, LEN / 4));
        }
        pair.run_with(|to, _| to == 0 || !rng.percent(loss));
        assert_eq!(succeeded(&pair, 0), 16);
        let (c, there) = (pair.ends[0].qp.counters(), pair.ends[1].qp.counters());
        assert!(c.selective_repairs > 0);
        assert!(there.duplicate_request <= 16 + c.probes, "{loss} %: {} in vain", there.duplicate_request);
        assert_eq!(c.local_ack_timeout_err, 0);
    }
}
