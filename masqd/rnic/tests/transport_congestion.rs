//! What congestion control does to a queue pair: notifications both ways, windows and rates that hold and release.

mod transport_support;

use std::time::Duration;

use masq_driver::QpType;
use masq_rnic::transport::*;
use masq_types::{Features, Psn};
use masq_wire::{Ecn, Extension, Kind, Opcode, PacketRepr, parse};
use transport_support::*;

const LEN: u32 = 100_000;
const MS: Duration = Duration::from_millis(1);

fn setup(congestion: Congestion) -> Setup {
    let config = QpConfig { congestion, ..Setup::default().config };
    // 67 ms, so that nothing is lost for having been slow.
    Setup { config, timeout: 14, ..Setup::default() }
}

fn cnp(to: usize) -> Vec<u8> {
    let mut repr = PacketRepr::new(Opcode::CNP, qpn(to), Psn::new(0), Extension::None);
    repr.bth.becn = true;
    let mut datagram = vec![0; repr.udp_payload_len(16)];
    repr.emit_headers(&mut datagram).unwrap();
    datagram
}

fn count(pair: &Pair, to: usize, kind: Kind) -> usize {
    pair.sent.iter().filter(|(t, d)| *t == to && parse(d).unwrap().info.kind == kind).count()
}

fn rate(pair: &Pair, end: usize) -> Option<u64> {
    pair.ends[end].qp.congestion().and_then(|c| c.rate_bits_per_sec)
}

/// Lets the first end send until nothing limits it, as Swift begins with a small window.
fn warm_up(pair: &mut Pair) {
    for _ in 0..40 {
        pair.post_send(0, send(SendOp::Write, 0, LEN));
        pair.run();
    }
    assert_eq!(rate(pair, 0), None);
    pair.ends[0].world.completions.clear();
    pair.sent.clear();
}

/// Hands over what was sent to `end` and not delivered, with a mark.
fn deliver_marked(pair: &mut Pair, end: usize) {
    let packets: Vec<_> = std::mem::take(&mut pair.sent).into_iter().filter(|(to, _)| *to == end).collect();
    let receipt = Receipt { at: pair.now, ecn: Ecn::Ce };
    packets.iter().for_each(|(_, packet)| pair.inject_with(end, packet, receipt));
}

#[test]
fn marks_are_answered_with_one_cnp_in_50_us() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut setup = setup(Congestion::None);
        setup.config.qp_type = qp_type;
        let mut pair = Pair::with_memory(&setup);
        pair.deaf = [true; 2];
        let mut cnps = Vec::new();
        // A train each 20 µs for a millisecond: the first of them, and those 60 µs after the last that counted.
        for _ in 0..50 {
            pair.post_send(0, send(SendOp::Write, 1, 1000));
            pair.pump();
            deliver_marked(&mut pair, 1);
            pair.pump();
            cnps.extend(pair.sent.iter().filter(|(to, d)| *to == 0 && d.len() == 32).cloned());
            pair.now = pair.now.plus(Duration::from_micros(20));
        }
        assert_eq!(cnps.len(), 17, "{qp_type:?}");
        let packet = parse(&cnps[0].1).unwrap();
        assert_eq!((packet.info.opcode, packet.repr.bth.dest_qp), (Opcode::CNP, qpn(0)));
        assert!(packet.repr.bth.becn && cnps[0].1[12..].iter().all(|b| *b == 0));
        let counters = pair.ends[1].qp.counters();
        assert_eq!((counters.np_cnp_sent, counters.np_ecn_marked_roce_packets), (17, 200));
        // Nothing is controlled at the other end.
        pair.inject(0, &cnps[0].1);
        let counters = pair.ends[0].qp.counters();
        assert_eq!((counters.rp_cnp_handled, counters.rp_cnp_ignored), (0, 1));
    }
}

#[test]
fn a_cnp_slows_down_and_the_rate_comes_back() {
    for (congestion, qp_type) in
        [(Congestion::Dcqcn, QpType::Rc), (Congestion::Swift, QpType::Rc), (Congestion::Swift, QpType::Uc)]
    {
        let mut setup = setup(congestion);
        setup.config.qp_type = qp_type;
        let mut pair = Pair::with_memory(&setup);
        warm_up(&mut pair);
        (0..20).for_each(|i| pair.post_send(0, send(SendOp::Write, i, LEN)));
        pair.run_for(MS / 20);
        assert_eq!((rate(&pair, 0), pair.ends[0].qp.counters().rp_cnp_handled), (None, 0), "{congestion:?}");
        pair.inject(0, &cnp(0));
        let limited = rate(&pair, 0).expect("a rate");
        assert_eq!(pair.ends[0].qp.counters().rp_cnp_handled, 1);
        pair.inject(0, &cnp(0));
        assert_eq!(
            pair.ends[0].qp.counters().rp_cnp_ignored,
            1,
            "{congestion:?}: one soon after says the same"
        );
        pair.run();
        assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send).len(), 20);
        pair.now = pair.now.plus(Duration::from_secs(2));
        for i in 20..400 {
            pair.post_send(0, send(SendOp::Write, i, LEN));
            pair.run();
        }
        assert!(
            rate(&pair, 0).is_none_or(|r| r > 4 * limited),
            "{congestion:?} {:?} {limited}",
            rate(&pair, 0)
        );
        assert!(pair.ends[0].world.of(WorkQueue::Send).iter().all(|c| c.status == Status::Success));
        assert_eq!(
            pair.ends[0].qp.counters().retransmitted_pkts,
            0,
            "{congestion:?}: no timer ran for what was held"
        );
    }
}

/// A peer that sends notifications without end makes a queue pair slow; it goes on at the lowest rate.
#[test]
fn a_flood_of_cnps_does_not_stop_it() {
    for congestion in [Congestion::Dcqcn, Congestion::Swift] {
        let mut pair = Pair::with_memory(&setup(congestion));
        (0..20).for_each(|i| pair.post_send(0, send(SendOp::Write, i, LEN)));
        let mut floods = 0;
        while pair.ends[0].world.completions.len() < 20 {
            pair.run_for(MS / 10);
            (0..10).for_each(|_| pair.inject(0, &cnp(0)));
            assert!(rate(&pair, 0).is_none_or(|r| r >= 1_000_000), "{:?}", rate(&pair, 0));
            floods += 1;
            // 2 MB at a megabit a second take 16 s.
            assert!(
                floods < 200_000,
                "{congestion:?} has come no further than {}",
                pair.ends[0].world.completions.len()
            );
        }
        assert!(floods > 100, "{congestion:?}: it was slow");
        assert_eq!(pair.ends[0].qp.counters().retransmitted_pkts, 0);
    }
}

/// Answers to READs obey the notifications that their sender gets.
#[test]
fn answers_to_reads_are_paced() {
    for congestion in [Congestion::Dcqcn, Congestion::Swift] {
        let took = |notified: bool| {
            let mut pair = Pair::with_memory(&setup(congestion));
            (0..10).for_each(|i| pair.post_send(0, send(SendOp::Read, i, LEN)));
            for _ in 0..40 {
                pair.run_for(MS / 20);
                if notified {
                    pair.inject(1, &cnp(1));
                }
            }
            let begun = pair.now;
            pair.run();
            assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send).len(), 10);
            (pair.now.since(begun), pair.ends[1].qp.counters().rp_cnp_handled)
        };
        let (fast, none) = took(false);
        let (slow, handled) = took(true);
        assert!(
            none == 0 && handled > 0 && slow > fast + MS * 10,
            "{congestion:?} {fast:?} {slow:?} {handled}"
        );
    }
}

/// One packet in twenty is lost, without a queue: as with TCP some five packets are on their way then, of a READ as of a WRITE. What is sent again spoils most
/// measurements of the round trip.
#[test]
fn a_bad_link_leaves_a_share_of_the_speed() {
    let took = |op, congestion| {
        let features = Features::SELECTIVE | Features::TIMED_READS;
        let setup = Setup { features: [features; 2], ..setup(congestion) };
        let mut pair = Pair::with_memory(&setup);
        pair.faults = Faults { loss: 5, ..Faults::default() };
        let begun = pair.now;
        for i in 0..100 {
            pair.post_send(0, send(op, i, LEN));
            pair.run();
        }
        assert!(pair.ends[0].world.of(WorkQueue::Send).iter().all(|c| c.status == Status::Success));
        pair.now.since(begun)
    };
    let free = took(SendOp::Write, Congestion::None);
    for op in [SendOp::Write, SendOp::Read] {
        let held = took(op, Congestion::Swift);
        assert!(held < free * 20, "{op:?}: {held:?}, a WRITE without control {free:?}");
    }
}

/// With a window of a part of a packet one is on its way at a time and asks for its answer; nothing waits for a timeout.
#[test]
fn the_smallest_window_sends_one_packet_at_a_time() {
    let mut pair = Pair::with_memory(&setup(Congestion::Swift));
    pair.post_send(0, send(SendOp::Write, 0, LEN));
    pair.run();
    for _ in 0..40 {
        pair.inject(0, &cnp(0));
        pair.now = pair.now.plus(MS);
    }
    assert_eq!(pair.ends[0].qp.congestion().and_then(|c| c.window_bytes).map(|w| w < 256), Some(true));
    pair.sent.clear();
    pair.post_send(0, send(SendOp::Write, 1, 5000));
    let mut small = 0;
    for _ in 0..1000 {
        let window = pair.ends[0].qp.congestion().and_then(|c| c.window_bytes);
        pair.pump();
        if window.is_some_and(|w| w < 256) {
            small += 1;
            assert!(count(&pair, 1, Kind::Write) <= count(&pair, 0, Kind::Ack) + 1, "one on its way");
        }
        if !pair.step(pair.now.plus(Duration::from_secs(1))) {
            break;
        }
    }
    assert!(small > 3, "{small}");
    assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send).len(), 2);
    assert_eq!(pair.ends[0].qp.counters().local_ack_timeout_err, 0);
}

/// The window shrinks while packets that ask for no answer are on their way: what comes next asks.
#[test]
fn a_window_that_shrinks_below_what_is_on_its_way_stops_nothing() {
    let mut pair = Pair::with_memory(&setup(Congestion::Swift));
    warm_up(&mut pair);
    pair.post_send(0, send(SendOp::Write, 0, 256 * 40));
    let now = pair.now;
    let End { qp, world } = &mut pair.ends[0];
    let (mut buf, mut packets) = (Vec::new(), Vec::new());
    while packets.len() < 10 {
        buf.clear();
        let train = qp.poll_transmit(now, world, &mut buf, 4).unwrap();
        packets.extend(buf.chunks(train.segment_bytes).map(<[u8]>::to_vec));
    }
    assert!(packets.iter().all(|p| !parse(p).unwrap().repr.bth.ack_req));
    packets.iter().for_each(|p| pair.inject(1, p));
    for _ in 0..40 {
        pair.inject(0, &cnp(0));
        pair.now = pair.now.plus(MS);
    }
    pair.run();
    assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), [(0, Status::Success)]);
    assert_eq!(pair.ends[0].qp.counters().local_ack_timeout_err, 0);
}

/// READs are asked for in pieces of which four fill the window; what is short, whole; without a limit, as long as they may be.
#[test]
fn what_reads_ask_for_follows_the_window() {
    let mut pair =
        Pair::with_memory(&Setup { max_rd_atomic: 16, max_dest_rd_atomic: 16, ..setup(Congestion::Swift) });
    let asked = |pair: &mut Pair, len: u32| {
        pair.sent.clear();
        pair.post_send(0, send(SendOp::Read, 0, len));
        pair.pump();
        let requests = pair
            .sent
            .iter()
            .filter_map(|(to, d)| parse(d).unwrap().repr.ext.reth().filter(|_| *to == 1).copied());
        let lengths: Vec<u32> = requests.map(|reth| reth.dma_len.div_ceil(256)).collect();
        pair.run();
        lengths
    };
    assert_eq!(asked(&mut pair, LEN), [2, 2, 2], "a window of eight packets, requests and headers included");
    warm_up(&mut pair);
    assert_eq!(asked(&mut pair, LEN)[..2], [64, 64]);
    for _ in 0..6 {
        pair.inject(0, &cnp(0));
        pair.now = pair.now.plus(MS);
    }
    let window = pair.ends[0].qp.congestion().and_then(|c| c.window_bytes).unwrap();
    let packets = window / (256 + 42 + 16);
    assert!((4..64).contains(&packets), "{packets}");
    let lengths = asked(&mut pair, LEN);
    assert!(
        lengths.len() >= 3 && lengths.iter().all(|n| u64::from(*n) == packets / 4),
        "{packets}: {lengths:?}"
    );
    assert_eq!(asked(&mut pair, 4 * 256), [4]);
}
