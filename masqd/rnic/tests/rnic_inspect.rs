//! What is told of single vNICs and queue pairs: counters, how they are, and their packets.

mod common;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::two::{Two, WAYS, Way};
use common::*;
use masq_driver::*;
use masq_types::Psn;
use masq_wire::{ICRC_BYTES, IcrcFlow, Kind, parse};
use vrdma_abi::counters::COUNTER_NAMES;
use vrdma_abi::ring::*;

/// A connected queue pair of A and one of B.
fn pair(t: &mut Two, options: &Options) -> (TestQp, TestQp) {
    let a_qp = t.a.qp(&mut t.net, &t.a_cq, &t.a_cq);
    let b_qp = t.b.qp(&mut t.net, &t.b_cq, &t.b_cq);
    connect(&mut t.net, (&t.a, &a_qp), (&t.b, &b_qp), options);
    (a_qp, b_qp)
}

/// A writes `len` bytes to B.
fn write(t: &mut Two, qp: &mut TestQp, len: u32) -> u8 {
    let data = sge(&t.a_mr, 0, len);
    t.a.post(qp, &to(&t.b_mr, 0, request(SEND_OP_RDMA_WRITE, 1)), &[data]);
    wait(&mut t.net, &mut t.a_cq).status
}

fn event(net: &mut Net, guest: &Guest, name: &str) -> u64 {
    match net.execute(guest.engine, Command::VnicEvents { vnic: guest.id }) {
        Ok(Reply::Counters(all)) => all.iter().find(|(n, _)| *n == name).unwrap().1,
        other => panic!("{other:?}"),
    }
}

fn details(net: &mut Net, guest: &Guest, qp: &TestQp) -> QpDetails {
    match net.execute(guest.engine, Command::DescribeQps { vnic: guest.id, qps: vec![qp.handle] }) {
        Ok(Reply::QpDetails(all)) => <[_; 1]>::try_from(all).unwrap().into_iter().next().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_vnic_counts_what_is_its_own_and_keeps_it() {
    for way in WAYS {
        let mut t = Two::new(way);
        let (mut a_qp, b_qp) = pair(&mut t, &Options::default());
        for _ in 0..3 {
            assert_eq!(write(&mut t, &mut a_qp, 5000), WC_SUCCESS);
        }
        let told = |t: &mut Two| {
            let of = |net: &mut Net, guest: &Guest| ["sent_msgs", "rcvd_msgs"].map(|n| event(net, guest, n));
            (of(&mut t.net, &t.a), of(&mut t.net, &t.b))
        };
        assert_eq!(told(&mut t), ([3, 0], [0, 3]), "{way:?}");
        let packets = event(&mut t.net, &t.a, "sent_pkts");
        assert_eq!(packets > 0, way == Way::Remote, "{packets} packets");
        let all = t.net.counter(0, "sent_msgs");
        t.net.execute(t.a.engine, Command::DestroyQp { vnic: t.a.id, qp: a_qp.handle }).unwrap();
        t.net.execute(t.b.engine, Command::DestroyQp { vnic: t.b.id, qp: b_qp.handle }).unwrap();
        assert_eq!(told(&mut t), ([3, 0], [0, 3]), "{way:?}, when the queue pairs are gone");
        assert_eq!(t.net.counter(0, "sent_msgs"), all);
        t.net.execute(t.a.engine, Command::DetachVnic { vnic: t.a.id }).unwrap();
        assert_eq!(t.net.counter(0, "sent_msgs"), all, "{way:?}, when the vNIC is gone");
        assert!(t.net.execute(0, Command::VnicEvents { vnic: t.a.id }).is_err());
    }
}

#[test]
fn both_queries_name_the_same_counters_of_queue_pairs() {
    let mut t = Two::new(Way::Local);
    let names = |reply| match reply {
        Ok(Reply::Counters(all)) => all.into_iter().map(|(name, _)| name).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let of_vnic = names(t.net.execute(0, Command::VnicEvents { vnic: t.a.id }));
    let of_all = names(t.net.execute(0, Command::Counters));
    assert!(of_vnic.len() > 20 && of_all.starts_with(&of_vnic));
}

#[test]
fn a_queue_pair_tells_how_far_it_is() {
    for way in WAYS {
        let mut t = Two::new(way);
        let options = Options { retry_cnt: 5, rnr_retry: 3, timeout: 14, ..Options::default() };
        let (mut a_qp, b_qp) = pair(&mut t, &options);
        assert_eq!(write(&mut t, &mut a_qp, 5000), WC_SUCCESS);
        let (a, b) = (details(&mut t.net, &t.a, &a_qp), details(&mut t.net, &t.b, &b_qp));
        assert_eq!((a.state, a.retries_left, a.rnr_retries_left, a.requests), (QpState::Rts, 5, 3, 0));
        assert_eq!((a.waits_for, &a.last_error), (None, &None));
        let path = a.path.unwrap();
        assert_eq!((path.local, path.remote, path.remote_qpn), (t.a.address, t.b.address, b_qp.wire));
        assert_eq!(path.is_local, way != Way::Remote);
        assert!(a.traffic.tx_bytes > 5000 && b.traffic.rx_bytes == a.traffic.tx_bytes);
        assert!(a.counters.contains(&("sent_msgs", 1)) && a.counters.iter().all(|(_, n)| *n > 0));
        match way {
            Way::Local | Way::Across => assert_eq!((a.protocol, b.protocol), (None, None)),
            Way::Remote => {
                let (a, b) = (a.protocol.unwrap(), b.protocol.unwrap());
                // Five packets, across the wrap.
                let end = Psn::new(0xff_fff0).plus(5);
                assert_eq!((a.una, a.next, a.high, b.expected), (end, end, end, end));
                assert_eq!((a.path_mtu, a.outstanding_packets), (options.mtu, 0));
                assert!(a.window_packets > 1 && a.ack_timeout.is_some());
                assert!(
                    a.round_trip.unwrap().min <= a.round_trip.unwrap().smoothed && b.round_trip.is_none()
                );
            }
        }
    }
}

#[test]
fn queue_pairs_are_described_in_the_order_asked_for_and_not_too_many_at_once() {
    let mut t = Two::new(Way::Local);
    let (a_qp, _b_qp) = pair(&mut t, &Options::default());
    let other = t.a.qp(&mut t.net, &t.a_cq, &t.a_cq);
    let mut describe = |qps: Vec<QpHandle>| match t.net.execute(0, Command::DescribeQps { vnic: t.a.id, qps })
    {
        Ok(Reply::QpDetails(all)) => Ok(all.iter().map(|d| (d.qp, d.path.is_some())).collect::<Vec<_>>()),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    };
    let asked = vec![other.handle, QpHandle(NOBODY), a_qp.handle];
    assert_eq!(describe(asked).unwrap(), [(other.handle, false), (a_qp.handle, true)]);
    assert_eq!(describe(vec![a_qp.handle; MAX_DESCRIBED_QPS]).unwrap().len(), MAX_DESCRIBED_QPS);
    let refused = describe(vec![a_qp.handle; MAX_DESCRIBED_QPS + 1]).unwrap_err();
    assert!(matches!(refused, DriverError::Invalid(_)), "{refused}");
}

#[test]
fn the_last_error_stays_with_what_caused_it() {
    for way in WAYS {
        let mut t = Two::new(way);
        let options = Options { retry_cnt: 1, timeout: 12, ..Options::default() };
        let (mut a_qp, b_qp) = pair(&mut t, &options);
        assert_eq!(write(&mut t, &mut a_qp, 8), WC_SUCCESS);
        t.net.execute(t.b.engine, Command::DestroyQp { vnic: t.b.id, qp: b_qp.handle }).unwrap();
        assert_eq!(write(&mut t, &mut a_qp, 8), WC_RETRY_EXC_ERR);
        t.net.run(50);
        let told = details(&mut t.net, &t.a, &a_qp);
        assert_eq!(told.state, QpState::Err);
        assert!(told.path.is_some(), "whom it was connected to");
        let error = told.last_error.unwrap();
        assert_eq!(error.reason, "a send request failed");
        let request = error.request.unwrap();
        assert_eq!((request.is_receive, request.status), (false, "WC_RETRY_EXC_ERR"));
        assert_eq!(request.cause, "the peer did not answer");
        assert!((50..100).contains(&error.age.as_millis()), "{:?}", error.age);
        let second = (way == Way::Remote).then_some(Psn::new(0xff_fff1));
        assert_eq!(error.una, second);
    }
}

#[test]
fn a_revoked_and_a_moved_queue_pair_tell_it() {
    let mut t = Two::new(Way::Remote);
    let (a_qp, b_qp) = pair(&mut t, &Options::default());
    t.net.execute(t.a.engine, Command::RevokeQp { vnic: t.a.id, qp: a_qp.handle }).unwrap();
    common::two::to_error(&mut t.net, &t.b, &b_qp);
    let a = details(&mut t.net, &t.a, &a_qp).last_error.unwrap();
    let b = details(&mut t.net, &t.b, &b_qp).last_error.unwrap();
    assert_eq!((a.reason, a.request), ("its connection has been revoked", None));
    assert_eq!((b.reason, b.request), ("its guest has moved it there", None));
}

#[test]
fn what_a_queue_pair_waits_for_is_told() {
    for way in WAYS {
        let mut t = Two::new(way);
        // 491.52 ms.
        let options = Options { min_rnr_timer: 0, ..Options::default() };
        let (mut a_qp, _b_qp) = pair(&mut t, &options);
        let data = sge(&t.a_mr, 0, 8);
        t.a.post(&mut a_qp, &request(SEND_OP_SEND, 1), &[data]);
        t.net.run(100);
        let told = details(&mut t.net, &t.a, &a_qp);
        assert_eq!((told.waits_for, told.requests), (Some("a receive of the peer's (RNR)"), 1), "{way:?}");
    }
}

/// Keeps packets, as many as it wants.
#[derive(Debug)]
struct Tap {
    wanted: AtomicUsize,
    packets: Mutex<Vec<Packet>>,
}

#[derive(Clone, Debug)]
struct Packet {
    is_sent: bool,
    source: SocketAddr,
    destination: SocketAddr,
    id: u16,
    bytes: Vec<u8>,
}

impl Tap {
    fn new(wanted: usize) -> Arc<Tap> {
        Arc::new(Tap { wanted: wanted.into(), packets: Mutex::default() })
    }

    fn take(&self) -> Vec<Packet> {
        std::mem::take(&mut self.packets.lock().unwrap())
    }
}

impl PacketTap for Tap {
    fn packet(&self, p: &TappedPacket<'_>) -> bool {
        self.packets.lock().unwrap().push(Packet {
            is_sent: p.is_sent,
            source: p.source,
            destination: p.destination,
            id: p.ipv4_id,
            bytes: p.bytes.to_vec(),
        });
        self.wanted.fetch_sub(1, Ordering::Relaxed) > 1
    }
}

fn start(t: &mut Two, qp: &TestQp, tap: &Arc<Tap>) -> Result<Reply, DriverError> {
    t.net.execute(0, Command::StartCapture { vnic: t.a.id, qp: qp.handle, tap: tap.clone() })
}

/// Each packet of a connection is shown once, with an ICRC that its addresses and Identification explain.
#[test]
fn a_tap_sees_all_packets_of_its_queue_pair_and_no_others() {
    let mut t = Two::new(Way::Remote);
    let (mut a_qp, b_qp) = pair(&mut t, &Options::default());
    let (mut other, _peer) = pair(&mut t, &Options::default());
    let tap = Tap::new(usize::MAX);
    start(&mut t, &a_qp, &tap).unwrap();
    assert_eq!(write(&mut t, &mut other, 5000), WC_SUCCESS);
    assert_eq!(tap.take().len(), 0);
    assert_eq!(write(&mut t, &mut a_qp, 5000), WC_SUCCESS);
    let packets = tap.take();
    assert_eq!(packets.iter().filter(|p| p.is_sent).count(), 5);
    assert!(packets.iter().any(|p| p.is_sent && p.id > 0), "trains are numbered");
    assert!(packets.iter().any(|p| !p.is_sent), "the acknowledgement");
    for p in &packets {
        let (from, to, qpn) = if p.is_sent { (&t.a, &t.b, b_qp.wire) } else { (&t.b, &t.a, a_qp.wire) };
        assert_eq!(
            (p.source.ip(), p.destination.ip(), p.destination.port()),
            (from.address, to.address, 4791)
        );
        let parsed = parse(&p.bytes).unwrap();
        assert_eq!(parsed.repr.bth.dest_qp, qpn);
        assert_eq!(parsed.info.kind == Kind::Ack, !p.is_sent);
        let flow = IcrcFlow::new(p.source.ip(), p.destination.ip(), p.source.port()).unwrap();
        let (covered, icrc) = p.bytes.split_last_chunk::<ICRC_BYTES>().unwrap();
        assert_eq!(flow.compute(covered, p.id).to_le_bytes(), *icrc);
    }
}

#[test]
fn a_tap_is_let_go_of_when_it_has_enough_or_its_queue_pair_ends() {
    let mut t = Two::new(Way::Remote);
    let (mut a_qp, _b_qp) = pair(&mut t, &Options::default());
    let enough = Tap::new(2);
    start(&mut t, &a_qp, &enough).unwrap();
    assert_eq!(write(&mut t, &mut a_qp, 5000), WC_SUCCESS);
    assert_eq!((enough.take().len(), Arc::strong_count(&enough)), (2, 1));
    let (first, second) = (Tap::new(usize::MAX), Tap::new(usize::MAX));
    start(&mut t, &a_qp, &first).unwrap();
    assert!(matches!(start(&mut t, &a_qp, &second), Err(DriverError::Busy(_))));
    // What was never begun is not ended.
    let stop = |tap: &Arc<Tap>| Command::StopCapture { vnic: t.a.id, qp: a_qp.handle, tap: tap.clone() };
    t.net.execute(0, stop(&second)).unwrap();
    assert_eq!(Arc::strong_count(&first), 2);
    t.net.execute(0, stop(&first)).unwrap();
    assert_eq!(Arc::strong_count(&first), 1);
    start(&mut t, &a_qp, &second).unwrap();
    t.net.execute(0, Command::DestroyQp { vnic: t.a.id, qp: a_qp.handle }).unwrap();
    assert_eq!(Arc::strong_count(&second), 1);
}

#[test]
fn without_packets_there_is_nothing_to_capture() {
    let mut t = Two::new(Way::Local);
    let (a_qp, _b_qp) = pair(&mut t, &Options::default());
    let fresh = t.a.qp(&mut t.net, &t.a_cq, &t.a_cq);
    let datagrams = t.a.qp_with(&mut t.net, &t.a_cq, &t.a_cq, |init| init.qp_type = QpType::Ud);
    let tap = Tap::new(usize::MAX);
    for (qp, why) in [(&a_qp, "same host"), (&fresh, "not connected"), (&datagrams, "no connection")] {
        match start(&mut t, qp, &tap) {
            Err(DriverError::Invalid(told)) => assert!(told.contains(why), "{told}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(Arc::strong_count(&tap), 1);
}

/// Guests ask by the contract's names: none of them is empty for want of a counter, and none is missing there.
#[test]
fn the_contract_names_all_counters_of_queue_pairs() {
    let mut t = Two::new(Way::Local);
    let Ok(Reply::Counters(all)) = t.net.execute(0, Command::VnicEvents { vnic: t.a.id }) else { panic!() };
    let ours: BTreeSet<&str> = all.iter().map(|(name, _)| *name).collect();
    let traffic = ["tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts"];
    let named: BTreeSet<&str> = COUNTER_NAMES.iter().copied().filter(|n| !traffic.contains(n)).collect();
    assert_eq!(named.len() + traffic.len(), COUNTER_NAMES.len(), "each once");
    assert_eq!(ours.symmetric_difference(&named).collect::<Vec<_>>(), Vec::<&&str>::new());
}
