//! The unreliable connection, packet by packet (IBTA Vol 1 §9.8.3).

mod transport_support;

use masq_driver::QpType;
use masq_rnic::transport::*;
use masq_types::Rkey;
use transport_support::*;

const LEN: u32 = 1000;

fn setup() -> Setup {
    let config = QpConfig { qp_type: QpType::Uc, window_packets: 2, ..Setup::default().config };
    Setup { config, ..Setup::default() }
}

/// A pair, and the packets of `count` SENDs of four packets each; none has arrived.
fn sent(count: u64) -> (Pair, Vec<Vec<u8>>) {
    let mut pair = Pair::with_memory(&setup());
    pair.deaf[1] = true;
    (0..count).for_each(|wr_id| pair.post_send(0, send(SendOp::Send, wr_id, LEN)));
    pair.pump();
    let packets: Vec<_> = pair.sent.iter().map(|(_, d)| d.clone()).collect();
    assert_eq!(packets.len(), 4 * count as usize);
    (pair, packets)
}

fn received(pair: &Pair) -> Vec<(u64, Status)> {
    pair.ends[1].world.statuses(WorkQueue::Recv)
}

#[test]
fn sent_is_done_and_nobody_answers() {
    let (mut pair, packets) = sent(3);
    assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), [0, 1, 2].map(|i| (i, Status::Success)));
    assert!(packets.iter().all(|p| !masq_wire::parse(p).unwrap().repr.bth.ack_req));
    assert_eq!(pair.ends[0].qp.poll_timeout(), None);
    (0..3).for_each(|wr_id| pair.post_recv(1, recv(wr_id, LEN)));
    packets.iter().for_each(|p| pair.inject(1, p));
    assert_eq!(received(&pair), [0, 1, 2].map(|i| (i, Status::Success)));
    pair.run();
    assert!(pair.sent.iter().all(|(to, _)| *to == 1));
}

/// Whichever packet of the second message is lost, that one is, and its receive takes the third.
#[test]
fn a_gap_loses_its_message() {
    for lost in 4..8 {
        let (mut pair, packets) = sent(3);
        (10..13).for_each(|wr_id| pair.post_recv(1, recv(wr_id, LEN)));
        for (i, packet) in packets.iter().enumerate().filter(|(i, _)| *i != lost) {
            pair.inject(1, packet);
            let whole = [3, 11].iter().filter(|last| i >= **last).count();
            assert_eq!(received(&pair).len(), whole, "{lost} {i}");
        }
        assert_eq!(received(&pair), [(10, Status::Success), (11, Status::Success)], "{lost}");
        let expected = masq_types::Psn::new(setup().psn[0]).plus(12);
        assert_eq!(pair.ends[1].qp.status().rq_psn, expected);
    }
}

#[test]
fn a_duplicate_or_late_packet_carries_nothing_out_twice() {
    let (mut pair, packets) = sent(2);
    (10..13).for_each(|wr_id| pair.post_recv(1, recv(wr_id, LEN)));
    for i in [0, 1, 1, 2, 3, 4, 5, 6, 7, 3, 6] {
        pair.inject(1, &packets[i]);
    }
    assert_eq!(received(&pair), [(10, Status::Success)], "the repeated middle ends the first message");
}

#[test]
fn a_message_without_a_receive_is_dropped_as_a_whole() {
    let (mut pair, packets) = sent(2);
    pair.inject(1, &packets[0]);
    pair.post_recv(1, recv(10, LEN));
    packets[1..].iter().for_each(|p| pair.inject(1, p));
    assert_eq!(received(&pair), [(10, Status::Success)], "the second message");
    assert_eq!(pair.ends[1].world.events, []);
}

/// A refused write has changed nothing behind the packet that was refused.
#[test]
fn a_write_without_the_right_is_dropped() {
    let mut pair = Pair::with_memory(&setup());
    let before = pair.ends[1].world.regions.iter().map(|r| r.data.clone()).collect::<Vec<_>>();
    for rkey in [READ_ONLY, FOREIGN, 99] {
        pair.post_send(0, SendWork { rkey: Rkey(rkey), ..send(SendOp::Write, 1, LEN) });
        pair.run();
    }
    let after = pair.ends[1].world.regions.iter().map(|r| r.data.clone()).collect::<Vec<_>>();
    assert!(before == after);
    assert_eq!(pair.ends[1].world.events, []);
    assert_eq!(pair.ends[1].qp.counters().rx_dropped, 12);
    pair.post_send(0, send(SendOp::Write, 2, LEN));
    pair.run();
    assert_eq!(pair.bytes(1, REMOTE, 0, LEN as usize), pair.bytes(0, LOCAL, 0, LEN as usize));
}

/// Packets of other transports are none of its business.
#[test]
fn other_transports_are_dropped() {
    let mut rc = Pair::with_memory(&Setup::default());
    rc.post_send(0, send(SendOp::Write, 1, 8));
    rc.pump();
    let packet = rc.sent[0].1.clone();
    let mut uc = Pair::with_memory(&setup());
    uc.inject(1, &packet);
    assert_eq!(uc.ends[1].qp.counters().rx_dropped, 1);
    let (mut uc, packets) = sent(1);
    packets.iter().for_each(|p| rc.inject(1, p));
    assert_eq!(rc.ends[1].qp.counters().rx_dropped, 4);
    uc.run();
}
