//! Verbs between guests of two RNICs, over UDP on the loopback interface.

mod common;

use common::*;
use masq_rnic::{FaultInjection, RnicConfig};
use masq_types::{Features, Mtu};
use vrdma_abi::ring::*;

struct Two {
    net: Net,
    a: Guest,
    b: Guest,
    a_cq: TestCq,
    b_cq: TestCq,
    a_qp: TestQp,
    b_qp: TestQp,
    a_mr: Mr,
    b_mr: Mr,
}

const MEMORY: u64 = 16 << 20;
const MR: u64 = 4 << 20;

/// Two hosts.
fn two(options: Options, faults: Option<FaultInjection>) -> Two {
    let config = RnicConfig { faults, ..RnicConfig::default() };
    let mut net = Net::new(&[config.clone(), config]);
    let mut a = Guest::attach(&mut net, 0, 1, 100, &fresh_address(), MEMORY);
    let mut b = Guest::attach(&mut net, 1, 2, 100, &fresh_address(), MEMORY);
    let (a_cq, b_cq) = (a.cq(&mut net, 64), b.cq(&mut net, 64));
    let (a_qp, b_qp) = (a.qp(&mut net, &a_cq, &a_cq), b.qp(&mut net, &b_cq, &b_cq));
    let (a_mr, b_mr) = (a.mr(&mut net, MR, all_access()), b.mr(&mut net, MR, all_access()));
    connect(&mut net, (&a, &a_qp), (&b, &b_qp), &options);
    Two { net, a, b, a_cq, b_cq, a_qp, b_qp, a_mr, b_mr }
}

/// Some of everything, in both directions at once.
fn everything(t: &mut Two) {
    let len = 300_001;
    t.a.write(t.a_mr.gpa, &pattern(len, 1));
    t.b.write(t.b_mr.gpa, &pattern(len, 2));
    let half = 2 << 20;
    for i in 0..8 {
        t.a.post_recv(&mut t.a_qp, 100 + i, &[sge(&t.a_mr, half + (1 << 19), 5000)]);
        t.b.post_recv(&mut t.b_qp, 100 + i, &[sge(&t.b_mr, half + (1 << 19), 5000)]);
    }
    let atomic = |wr_id| vrdma_rings::SendRequest {
        operands: vrdma_rings::Operands::Atomic(AtomicSegment { compare_add: 3, swap: 0 }),
        ..request(SEND_OP_FETCH_ADD, wr_id)
    };
    let counter = MR - 4096;
    for round in 0..4u64 {
        for own_is_a in [true, false] {
            let (guest, qp, own, peer) = if own_is_a {
                (&t.a, &mut t.a_qp, &t.a_mr, &t.b_mr)
            } else {
                (&t.b, &mut t.b_qp, &t.b_mr, &t.a_mr)
            };
            let id = round * 10;
            guest.post(qp, &to(peer, half, request(SEND_OP_RDMA_WRITE, id)), &[sge(own, 0, len as u32)]);
            guest.post(qp, &request(SEND_OP_SEND, id + 1), &[sge(own, 7, 4321)]);
            guest.post(
                qp,
                &to(peer, 0, request(SEND_OP_RDMA_READ, id + 2)),
                &[sge(own, 1 << 20, len as u32)],
            );
            guest.post(qp, &to(peer, counter, atomic(id + 3)), &[sge(own, counter + 64, 8)]);
        }
    }
    let (mut a_seen, mut b_seen) = (Vec::new(), Vec::new());
    let done = t.net.run_until(60_000, |_| {
        for (cq, seen) in [(&mut t.a_cq, &mut a_seen), (&mut t.b_cq, &mut b_seen)] {
            while let Some(c) = cq.ring.poll() {
                assert_eq!(c.status, WC_SUCCESS, "{c:?}");
                seen.push((c.flags & CQE_RECV != 0, c.wr_id));
            }
            cq.ring.publish();
        }
        a_seen.len() >= 20 && b_seen.len() >= 20
    });
    assert!(done, "{a_seen:?} {b_seen:?}");
    let sends = (0..4).flat_map(|r| (0..4).map(move |i| r * 10 + i)).collect::<Vec<u64>>();
    for seen in [a_seen, b_seen] {
        let of = |recv| seen.iter().filter(|s| s.0 == recv).map(|s| s.1).collect::<Vec<_>>();
        assert_eq!(of(false), sends);
        assert_eq!(of(true), [100, 101, 102, 103]);
    }
    for (guest, mr, own, peer) in [(&t.a, &t.a_mr, 1, 2), (&t.b, &t.b_mr, 2, 1)] {
        assert_eq!(guest.read(mr.gpa + half, len), pattern(len, peer));
        assert_eq!(guest.read(mr.gpa + (1 << 20), len), pattern(len, peer));
        assert_eq!(guest.read(mr.gpa + half + (1 << 19), 4321), pattern(len, peer)[7..7 + 4321]);
        assert_eq!(guest.read(mr.gpa, len), pattern(len, own));
        assert_eq!(guest.read_u64(mr.gpa + counter), 12);
        assert_eq!(guest.read_u64(mr.gpa + counter + 64), 9);
    }
}

#[test]
fn everything_over_a_clean_link() {
    let mut t = two(Options { mtu: Mtu::B4096, ..Options::default() }, None);
    everything(&mut t);
    for engine in [0, 1] {
        for quiet in ["rx_icrc_errors", "rx_malformed", "rx_no_qp", "rx_wrong_peer", "retransmitted_pkts"] {
            assert_eq!(t.net.counter(engine, quiet), 0, "{quiet}");
        }
        // Each segment had the Identification that its ICRC was made for.
        assert_eq!(t.net.counter(engine, "rx_icrc_explained"), 0);
    }
}

#[test]
fn everything_over_a_bad_link() {
    for seed in 0..2 {
        let faults = FaultInjection {
            seed,
            drop: 0.03,
            duplicate: 0.03,
            reorder: 0.03,
            corrupt: 0.01,
            ..FaultInjection::default()
        };
        let features = if seed == 0 { Features::SELECTIVE } else { Features::NONE };
        let mut t = two(Options { features, ..Options::default() }, Some(faults));
        everything(&mut t);
        assert!(t.net.counter(0, "retransmitted_pkts") > 0);
        assert_eq!(t.net.counter(0, "selective_repairs") > 0, seed == 0);
        assert!(t.net.counter(0, "rx_icrc_errors") + t.net.counter(1, "rx_icrc_errors") > 0);
    }
}

#[test]
fn every_mtu() {
    for mtu in Mtu::ALL {
        let mut t = two(Options { mtu, ..Options::default() }, None);
        everything(&mut t);
    }
}

/// A second queue pair that is connected to somebody's peer cannot speak in its place.
#[test]
fn only_one_queue_pair_speaks_to_a_peer() {
    let options = Options { timeout: 1, retry_cnt: 1, ..Options::default() };
    let mut t = two(options, None);
    let mut intruder = t.a.qp(&mut t.net, &t.a_cq, &t.a_cq);
    t.a.to_rtr(&mut t.net, &intruder, &t.b_qp, &options);
    t.a.to_rts(&mut t.net, &intruder, &options);
    t.b.post_recv(&mut t.b_qp, 1, &[]);
    t.a.post(&mut intruder, &request(SEND_OP_SEND, 2), &[]);
    let c = wait(&mut t.net, &mut t.a_cq);
    assert_eq!((c.wr_id, c.status), (2, WC_RETRY_EXC_ERR));
    assert!(t.b_cq.ring.poll().is_none());
    t.a.post(&mut t.a_qp, &request(SEND_OP_SEND, 3), &[]);
    let c = wait(&mut t.net, &mut t.a_cq);
    assert_eq!((c.wr_id, c.status), (3, WC_SUCCESS));
    assert_eq!(wait(&mut t.net, &mut t.b_cq).wr_id, 1);
    // When the first has failed, its peer is free for another.
    let change = |state| masq_driver::QpChange { to: Some(state), ..Default::default() };
    t.a.modify(&mut t.net, &t.a_qp, change(masq_driver::QpState::Err)).unwrap();
    for (guest, qp) in [(&t.a, &mut intruder), (&t.b, &mut t.b_qp)] {
        guest.modify(&mut t.net, qp, change(masq_driver::QpState::Reset)).unwrap();
        qp.sq.reset();
        qp.rq.reset();
    }
    connect(&mut t.net, (&t.a, &intruder), (&t.b, &t.b_qp), &Options::default());
    t.b.post_recv(&mut t.b_qp, 4, &[]);
    t.a.post(&mut intruder, &request(SEND_OP_SEND, 5), &[]);
    assert_eq!(wait(&mut t.net, &mut t.b_cq).wr_id, 4);
}
