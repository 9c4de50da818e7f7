//! Rates, weights and classes, over both paths, in time that jumps: what is sent is counted, not measured.

mod common;

use common::*;
use masq_driver::*;
use masq_rnic::RnicConfig;
use masq_rnic::transport::Time;
use masq_types::Mtu;
use vrdma_abi::ring::*;

const MR: u64 = 4 << 20;
const MBIT: u64 = 1_000_000;
const MS: u64 = 1_000_000;

/// A connection, and what its sender has to do.
struct Flow {
    a: Guest,
    b: Guest,
    a_cq: TestCq,
    b_cq: TestCq,
    a_qp: TestQp,
    b_qp: TestQp,
    a_mr: Mr,
    b_mr: Mr,
    posted: u64,
    done: u64,
}

impl Flow {
    /// On one RNIC, or between the first two.
    fn new(net: &mut Net, id: u32, remote: bool, options: Options) -> Self {
        let mut a = Guest::attach(net, 0, id, 100, &fresh_address(), 10 << 20);
        let mut b = Guest::attach(net, usize::from(remote), id + 1, 100, &fresh_address(), 10 << 20);
        let (a_cq, b_cq) = (a.cq(net, 64), b.cq(net, 64));
        let (a_qp, b_qp) = (a.qp(net, &a_cq, &a_cq), b.qp(net, &b_cq, &b_cq));
        let (a_mr, b_mr) = (a.mr(net, MR, all_access()), b.mr(net, MR, all_access()));
        connect(net, (&a, &a_qp), (&b, &b_qp), &options);
        Flow { a, b, a_cq, b_cq, a_qp, b_qp, a_mr, b_mr, posted: 0, done: 0 }
    }

    /// Keeps eight messages posted.
    fn feed(&mut self, opcode: u8, len: u32) {
        self.reap();
        while self.posted < self.done + 8 {
            self.post(opcode, len);
        }
    }

    fn post(&mut self, opcode: u8, len: u32) {
        self.posted += 1;
        let r = to(&self.b_mr, 0, request(opcode, self.posted));
        self.a.post(&mut self.a_qp, &r, &[sge(&self.a_mr, 0, len)]);
    }

    fn reap(&mut self) {
        while let Some(c) = self.a_cq.ring.poll() {
            assert_eq!(c.status, WC_SUCCESS, "{c:?}");
            self.done += 1;
            self.a_qp.sq.complete(c.consumer);
        }
        self.a_cq.ring.publish();
    }

    /// Sends without end for `ms`.
    fn run(&mut self, net: &mut Net, ms: u64, opcode: u8, len: u32) {
        net.run_until(ms, |_| {
            self.feed(opcode, len);
            false
        });
    }
}

fn net(remote: bool) -> Net {
    let configs = [RnicConfig::default(), RnicConfig::default()];
    Net::new(if remote { &configs } else { &configs[..1] })
}

fn limit(net: &mut Net, guest: &Guest, limits: Limits) {
    net.execute(guest.engine, Command::SetLimits { vnic: guest.id, limits }).unwrap();
}

fn rate(bits_per_sec: u64) -> Limits {
    Limits { rate: Some(Rate::with_default_burst(bits_per_sec)), ..Limits::default() }
}

fn counters(net: &mut Net, guest: &Guest) -> VnicCounters {
    match net.execute(guest.engine, Command::VnicCounters { vnic: guest.id }) {
        Ok(Reply::VnicCounters(counters)) => counters,
        other => panic!("{other:?}"),
    }
}

fn traffic(net: &mut Net, guest: &Guest, qp: &TestQp) -> QpTraffic {
    match net.execute(guest.engine, Command::QpTraffic { vnic: guest.id }) {
        Ok(Reply::QpTraffic(all)) => all.iter().find(|(h, _)| *h == qp.handle).unwrap().1,
        other => panic!("{other:?}"),
    }
}

/// No more than the rate and a burst, no less than the rate but for a wait, whoever's memory the bytes come out of.
#[test]
fn a_rate_is_kept_on_both_paths() {
    for remote in [false, true] {
        for (opcode, len) in
            [(SEND_OP_RDMA_WRITE, 1 << 20), (SEND_OP_RDMA_WRITE, 100), (SEND_OP_RDMA_READ, 1 << 20)]
        {
            for mbits in [2, 50] {
                let mut net = net(remote);
                // No connection breaks because its peer may not answer for a while.
                let options = Options { timeout: 18, mtu: Mtu::B4096, ..Options::default() };
                let mut f = Flow::new(&mut net, 1, remote, options);
                let limits = rate(mbits * MBIT);
                let reads = opcode == SEND_OP_RDMA_READ;
                limit(&mut net, if reads { &f.b } else { &f.a }, limits);
                let ms = 1000;
                f.run(&mut net, ms, opcode, len);
                let (from, to) = if reads { (&f.b, &f.a) } else { (&f.a, &f.b) };
                let sent = counters(&mut net, from);
                let due = mbits * MBIT * ms / 8000;
                let what = format!("remote {remote}, opcode {opcode}, {len} bytes, {mbits} Mbit/s: {sent:?}");
                assert!(sent.tx_ip_bytes <= due + limits.rate.unwrap().burst_bytes + 5_000, "{what}");
                assert!(sent.tx_ip_bytes + due / 100 + 10_000 >= due, "{what}");
                assert!(sent.limited_ns > ms * MS / 2 && sent.limited_ns <= ms * MS, "{what}");
                assert_eq!(counters(&mut net, to).limited_ns, 0, "{what}");
                assert_eq!(net.counter(0, "local_ack_timeout_err"), 0, "{what}");
                assert_eq!(net.counter(0, "retransmitted_pkts"), 0, "{what}");
            }
        }
    }
}

/// Once the burst is used up, what is limited leaves in trains of a millisecond, as what a queue pair's pacer holds back does; whether the rate is the
/// vNIC's or its class's.
#[test]
fn a_rate_is_sent_in_trains() {
    for (remote, by_class, mbits) in
        [(false, false, 200), (false, true, 1000), (true, false, 200), (true, false, 1000), (true, true, 200)]
    {
        let mut net = net(remote);
        let mut f = Flow::new(&mut net, 1, remote, Options { mtu: Mtu::B4096, ..Options::default() });
        let limited = Rate::with_default_burst(mbits * MBIT);
        if by_class {
            net.execute(0, Command::SetClassRate { class: 0, rate: Some(limited) }).unwrap();
        } else {
            limit(&mut net, &f.a, Limits { rate: Some(limited), ..Limits::default() });
        }
        f.run(&mut net, 100, SEND_OP_RDMA_WRITE, 1 << 20);
        let mut last = (net.now, counters(&mut net, &f.a).tx_ip_bytes);
        let mut trains = Vec::new();
        net.run_until(100, |net| {
            f.feed(SEND_OP_RDMA_WRITE, 1 << 20);
            let sent = counters(net, &f.a).tx_ip_bytes - last.1;
            if sent > 0 {
                match trains.last_mut() {
                    Some(train) if net.now - last.0 < MS / 5 => *train += sent,
                    _ => trains.push(sent),
                }
                last = (net.now, last.1 + sent);
            }
            false
        });
        // The first may have begun before.
        trains.remove(0);
        let worth = mbits * MBIT / 8000;
        let what = format!("remote {remote}, by class {by_class}, {mbits} Mbit/s: {trains:?}");
        // A packet more or less; and what comes in while a train leaves.
        assert!(trains.iter().all(|n| (worth * 3 / 4 - 4200..worth * 5 / 4 + 4200).contains(n)), "{what}");
        assert!((80..=125).contains(&trains.len()), "{} trains; {what}", trains.len());
    }
}

/// What is held back has not been sent: no timer runs for it, even when the shortest timeout is a fraction of the wait.
#[test]
fn no_timeout_counts_what_is_held_back() {
    for (opcode, len) in [(SEND_OP_RDMA_WRITE, 300_000), (SEND_OP_SEND, 40), (SEND_OP_RDMA_READ, 8)] {
        let mut net = net(true);
        let options = Options { timeout: 1, retry_cnt: 0, mtu: Mtu::B4096, ..Options::default() };
        let mut f = Flow::new(&mut net, 1, true, options);
        // A packet takes half a second.
        let slow = Rate { bits_per_sec: 64_000, burst_bytes: Rate::MIN_BURST_BYTES };
        limit(&mut net, &f.a, Limits { rate: Some(slow), ..Limits::default() });
        for i in 0..40 {
            f.b.post_recv(&mut f.b_qp, i, &[sge(&f.b_mr, 0, 64)]);
        }
        if len < 100 {
            // Uses the burst up.
            f.post(SEND_OP_RDMA_WRITE, 16_300);
            net.run(1);
        }
        for _ in 0..3 {
            f.post(opcode, len);
        }
        assert!(net.run_until(200_000, |_| {
            f.reap();
            f.done == f.posted
        }));
        assert!(counters(&mut net, &f.a).limited_ns > 0);
        assert_eq!(net.counter(0, "local_ack_timeout_err"), 0);
    }
}

#[test]
fn a_rate_changes_while_traffic_flows() {
    for remote in [false, true] {
        let mut net = net(remote);
        let mut f = Flow::new(&mut net, 1, remote, Options { mtu: Mtu::B4096, ..Options::default() });
        let sent = |net: &mut Net, f: &mut Flow, ms| {
            let before = counters(net, &f.a).tx_ip_bytes;
            f.run(net, ms, SEND_OP_RDMA_WRITE, 100_000);
            counters(net, &f.a).tx_ip_bytes - before
        };
        limit(&mut net, &f.a, rate(MBIT));
        assert!(sent(&mut net, &mut f, 1000) < 230_000);
        // At once, although the vNIC waits at the old rate.
        limit(&mut net, &f.a, rate(100 * MBIT));
        let fast = sent(&mut net, &mut f, 100);
        assert!((1_100_000..1_500_000).contains(&fast), "{fast}");
        limit(&mut net, &f.a, rate(MBIT));
        let slow = sent(&mut net, &mut f, 1000);
        assert!((100_000..230_000).contains(&slow), "{slow}");
        limit(&mut net, &f.a, Limits::default());
        assert!(sent(&mut net, &mut f, 1) > 2_000_000);
        let class = |rate| Command::SetClassRate { class: 0, rate };
        net.execute(0, class(Some(Rate::with_default_burst(MBIT)))).unwrap();
        assert!(sent(&mut net, &mut f, 1000) < 230_000);
        net.execute(0, class(None)).unwrap();
        assert!(sent(&mut net, &mut f, 1) > 2_000_000);
    }
}

/// Turns that a rate has cut short are not made up for, when it goes, by a long one.
#[test]
fn a_turn_stays_bounded_when_a_limit_goes() {
    for remote in [false, true] {
        let mut net = net(remote);
        let mut f = Flow::new(&mut net, 1, remote, Options { mtu: Mtu::B4096, ..Options::default() });
        limit(&mut net, &f.a, rate(50 * MBIT));
        f.run(&mut net, 300, SEND_OP_RDMA_WRITE, MR as u32);
        limit(&mut net, &f.a, Limits::default());
        for _ in 0..8 {
            f.feed(SEND_OP_RDMA_WRITE, MR as u32);
            let before = counters(&mut net, &f.a).tx_ip_bytes;
            net.now += 1000;
            net.engines[0].turn(Time::from_nanos(net.now));
            let sent = counters(&mut net, &f.a).tx_ip_bytes - before;
            // A quantum, and what the last piece has too many.
            assert!((100_000..600_000).contains(&sent), "{sent}, remote {remote}");
            if remote {
                net.engines[1].turn(Time::from_nanos(net.now));
            }
        }
    }
}

/// The engine sleeps while nothing may be sent.
#[test]
fn who_waits_does_not_spin() {
    for remote in [false, true] {
        for by_class in [false, true] {
            let mut net = net(remote);
            let mut f = Flow::new(&mut net, 1, remote, Options::default());
            let fifty = Rate::with_default_burst(50 * MBIT);
            if by_class {
                net.execute(0, Command::SetClassRate { class: 0, rate: Some(fifty) }).unwrap();
            } else {
                limit(&mut net, &f.a, Limits { rate: Some(fifty), ..Limits::default() });
            }
            f.run(&mut net, 100, SEND_OP_RDMA_WRITE, MR as u32);
            let (mut turns, end) = (0, net.now + 1000 * MS);
            while net.now < end {
                let now = Time::from_nanos(net.now);
                let worked = net.engines.iter_mut().fold(false, |w, e| e.turn(now) | w);
                f.feed(SEND_OP_RDMA_WRITE, MR as u32);
                turns += 1;
                let next = net.engines.iter().filter_map(masq_rnic::Engine::deadline).min();
                net.now += if worked { 10_000 } else { 0 };
                if !worked {
                    net.now = next.expect("it waits for a moment").as_nanos().max(net.now + 1000);
                }
            }
            // A wait is a millisecond; packets and their acknowledgements take some turns more.
            assert!(turns < 8000, "{turns} turns, remote {remote}, by class {by_class}");
        }
    }
}

/// A vNIC that waits holds up no other, and what it receives is acknowledged.
#[test]
fn only_the_vnic_itself_waits() {
    for remote in [false, true] {
        let mut net = net(remote);
        let mut slow =
            Flow::new(&mut net, 1, remote, Options { timeout: 1, retry_cnt: 0, ..Options::default() });
        let mut free = Flow::new(&mut net, 3, remote, Options::default());
        let crawl = Rate { bits_per_sec: 64_000, burst_bytes: Rate::MIN_BURST_BYTES };
        limit(&mut net, &slow.a, Limits { rate: Some(crawl), ..Limits::default() });
        slow.post(SEND_OP_RDMA_WRITE, MR as u32);
        net.run(5);
        let begin = net.now;
        for i in 0..50 {
            free.post(SEND_OP_RDMA_WRITE, 100_000);
            // To the waiting vNIC, from its peer.
            slow.b.post(
                &mut slow.b_qp,
                &to(&slow.a_mr, 64, request(SEND_OP_RDMA_WRITE, i)),
                &[sge(&slow.b_mr, 0, 9000)],
            );
            assert_eq!(wait(&mut net, &mut slow.b_cq).status, WC_SUCCESS);
            wait(&mut net, &mut free.a_cq);
        }
        assert!(net.now - begin < 50 * MS, "it took {} ns", net.now - begin);
        // So is what fails, or is flushed.
        let revoke = Command::RevokeQp { vnic: slow.a.id, qp: slow.a_qp.handle };
        for i in 0..3 {
            slow.a.post(&mut slow.a_qp, &request(SEND_OP_SEND, 100 + i), &[]);
        }
        net.execute(0, revoke).unwrap();
        for _ in 0..4 {
            assert_eq!(wait(&mut net, &mut slow.a_cq).status, WC_WR_FLUSH_ERR);
        }
        slow.a.post(&mut slow.a_qp, &request(SEND_OP_SEND, 200), &[]);
        assert_eq!(wait(&mut net, &mut slow.a_cq).status, WC_WR_FLUSH_ERR);
        assert!(net.now - begin < 60 * MS);
    }
}

/// A reader waits for the vNIC that it reads from; its own other traffic does not, and it does not hang when that goes.
#[test]
fn a_reader_waits_for_who_pays() {
    let mut net = net(false);
    let mut f = Flow::new(&mut net, 1, false, Options { timeout: 1, retry_cnt: 1, ..Options::default() });
    let mut other = Flow::new(&mut net, 3, false, Options::default());
    let mut own = f.a.qp(&mut net, &f.a_cq, &f.a_cq);
    connect(&mut net, (&f.a, &own), (&f.a, &own), &Options::default());
    let crawl = Rate { bits_per_sec: 64_000, burst_bytes: Rate::MIN_BURST_BYTES };
    limit(&mut net, &f.b, Limits { rate: Some(crawl), ..Limits::default() });
    f.post(SEND_OP_RDMA_READ, MR as u32);
    net.run(5);
    let begin = net.now;
    f.a.post(&mut own, &to(&f.a_mr, 0, request(SEND_OP_RDMA_WRITE, 77)), &[sge(&f.a_mr, 64, 8)]);
    assert_eq!(wait(&mut net, &mut f.a_cq).wr_id, 77);
    other.post(SEND_OP_RDMA_WRITE, 8);
    assert_eq!(wait(&mut net, &mut other.a_cq).status, WC_SUCCESS);
    assert!(net.now - begin < MS);
    assert!(counters(&mut net, &f.b).limited_ns > 0 && counters(&mut net, &f.a).limited_ns == 0);
    f.b.detach(&mut net);
    let c = wait(&mut net, &mut f.a_cq);
    assert_eq!((c.wr_id, c.status), (1, WC_RETRY_EXC_ERR));
}

/// Of a class's rate, vNICs get as much as their weights say; alone, one gets all.
#[test]
fn weights_share_a_class() {
    for remote in [false, true] {
        for lens in [[100_000, 100_000], [MR as u32, 20_000]] {
            let mut net = net(remote);
            let options = Options { mtu: Mtu::B4096, timeout: 18, ..Options::default() };
            let mut flows =
                [Flow::new(&mut net, 1, remote, options), Flow::new(&mut net, 3, remote, options)];
            for (f, weight) in flows.iter().zip([1, 3]) {
                limit(&mut net, &f.a, Limits { weight, class: 5, ..Limits::default() });
            }
            let shared = Rate::with_default_burst(100 * MBIT);
            net.execute(0, Command::SetClassRate { class: 5, rate: Some(shared) }).unwrap();
            net.run_until(2000, |_| {
                flows.iter_mut().zip(lens).for_each(|(f, len)| f.feed(SEND_OP_RDMA_WRITE, len));
                false
            });
            let [one, three] = [0, 1].map(|i| counters(&mut net, &flows[i].a));
            let all = one.tx_ip_bytes + three.tx_ip_bytes;
            assert!((24_500_000..26_500_000).contains(&all), "{all} of 25 MB");
            let share = three.tx_ip_bytes as f64 / one.tx_ip_bytes as f64;
            assert!((2.7..3.3).contains(&share), "remote {remote}, {lens:?}: {share}");
            assert!(one.limited_ns > 1000 * MS && three.limited_ns > 500 * MS, "{one:?} {three:?}");
            let before = one.tx_ip_bytes;
            flows[0].run(&mut net, 1000, SEND_OP_RDMA_WRITE, 100_000);
            let alone = counters(&mut net, &flows[0].a).tx_ip_bytes - before;
            assert!(alone > 11_500_000, "{alone} of 12.5 MB");
        }
    }
}

/// A higher class comes first, and its lower neighbours get what its rate leaves.
#[test]
fn classes_are_served_in_strict_order() {
    let mut net = net(false);
    let mut low = Flow::new(&mut net, 1, false, Options::default());
    let mut high = Flow::new(&mut net, 3, false, Options::default());
    limit(&mut net, &high.a, Limits { class: 7, ..Limits::default() });
    for f in [&mut low, &mut high] {
        for _ in 0..4 {
            f.post(SEND_OP_RDMA_WRITE, MR as u32);
        }
    }
    net.run_until(1000, |_| {
        low.reap();
        high.reap();
        high.done == 4
    });
    assert_eq!((low.done, counters(&mut net, &low.a).tx_ip_bytes), (0, 0));
    // Receiving and acknowledging is everybody's.
    high.post(SEND_OP_RDMA_WRITE, MR as u32);
    assert!(net.run_until(1000, |_| {
        low.reap();
        low.done == 4
    }));
    let ten = Rate::with_default_burst(10 * MBIT);
    net.execute(0, Command::SetClassRate { class: 7, rate: Some(ten) }).unwrap();
    let before = counters(&mut net, &low.a).tx_ip_bytes;
    net.run_until(1, |_| {
        low.feed(SEND_OP_RDMA_WRITE, 100_000);
        high.feed(SEND_OP_RDMA_WRITE, 100_000);
        false
    });
    assert!(counters(&mut net, &low.a).tx_ip_bytes - before > 2_000_000);
}

#[test]
fn impossible_limits_change_nothing() {
    let mut net = net(false);
    let f = Flow::new(&mut net, 1, false, Options::default());
    let vnic = f.a.id;
    let bad = [
        Limits { rate: Some(Rate { bits_per_sec: 0, burst_bytes: 1 << 20 }), ..Limits::default() },
        Limits { rate: Some(Rate { bits_per_sec: MBIT, burst_bytes: 0 }), ..Limits::default() },
        Limits { weight: 0, ..rate(MBIT) },
        Limits { class: 8, ..rate(MBIT) },
        Limits { dscp: Some(64), ..rate(MBIT) },
    ];
    for limits in bad {
        let e = net.execute(0, Command::SetLimits { vnic, limits }).unwrap_err();
        assert!(
            matches!(&e, DriverError::Invalid(why) if why.contains("not possible") || why.contains("no class")),
            "{e}"
        );
    }
    let class = |class, bits_per_sec| Command::SetClassRate {
        class,
        rate: Some(Rate::with_default_burst(bits_per_sec)),
    };
    assert!(matches!(net.execute(0, class(8, MBIT)), Err(DriverError::Invalid(_))));
    assert!(matches!(net.execute(0, class(0, 1)), Err(DriverError::Invalid(_))));
    let nobody = VnicId(77);
    let unknown = [
        Command::SetLimits { vnic: nobody, limits: Limits::default() },
        Command::VnicCounters { vnic: nobody },
        Command::QpTraffic { vnic: nobody },
    ];
    for command in unknown {
        assert!(matches!(net.execute(0, command), Err(DriverError::UnknownObject(_))));
    }
    let mut f = f;
    f.post(SEND_OP_RDMA_WRITE, MR as u32);
    assert!(
        net.run_until(20, |_| {
            f.reap();
            f.done == 1
        }),
        "nothing is limited"
    );
}

/// The same messages count the same on both paths, acknowledgements aside, and at both ends.
#[test]
fn both_paths_count_alike() {
    let mut seen = Vec::new();
    for remote in [false, true] {
        let mut net = net(remote);
        let options = Options { mtu: Mtu::B1024, ..Options::default() };
        let mut f = Flow::new(&mut net, 1, remote, options);
        f.b.post_recv(&mut f.b_qp, 1, &[sge(&f.b_mr, 0, 5000)]);
        for (opcode, len) in [(SEND_OP_RDMA_WRITE, 10_001), (SEND_OP_SEND, 3000), (SEND_OP_RDMA_READ, 5003)] {
            f.post(opcode, len);
        }
        let add = vrdma_rings::SendRequest {
            operands: vrdma_rings::Operands::Atomic(AtomicSegment { compare_add: 3, swap: 0 }),
            ..request(SEND_OP_FETCH_ADD, 9)
        };
        f.a.post(&mut f.a_qp, &to(&f.b_mr, 0, add), &[sge(&f.a_mr, 0, 8)]);
        for _ in 0..4 {
            assert_eq!(wait(&mut net, &mut f.a_cq).status, WC_SUCCESS);
        }
        net.run(1);
        let (a, b) = (counters(&mut net, &f.a), counters(&mut net, &f.b));
        assert_eq!((a.tx_ip_bytes, a.tx_packets), (b.rx_ip_bytes, b.rx_packets));
        assert_eq!((b.tx_ip_bytes, b.tx_packets), (a.rx_ip_bytes, a.rx_packets));
        assert_eq!((a.tx_messages, a.rx_messages, b.tx_messages, b.rx_messages), (3, 1, 1, 3));
        let (qa, qb) = (traffic(&mut net, &f.a, &f.a_qp), traffic(&mut net, &f.b, &f.b_qp));
        assert_eq!((qa.tx_bytes, qa.rx_bytes), (a.tx_ip_bytes, a.rx_ip_bytes));
        assert_eq!((qb.tx_bytes, qb.rx_bytes), (b.tx_ip_bytes, b.rx_ip_bytes));
        assert_eq!((net.counter(0, "sent_msgs"), a.held_requests <= 4), (if remote { 3 } else { 4 }, true));
        seen.push((a, b));
    }
    let [(a_local, b_local), (a_remote, b_remote)] = seen[..] else { panic!() };
    assert_eq!((a_local.tx_ip_bytes, a_local.tx_packets), (a_remote.tx_ip_bytes, a_remote.tx_packets));
    let acks = b_remote.tx_packets - b_local.tx_packets;
    // IP, UDP, BTH, AETH, how long it was held, ICRC.
    assert_eq!(b_remote.tx_ip_bytes, b_local.tx_ip_bytes + acks * (20 + 8 + 12 + 4 + 4 + 4));
    assert!(acks <= 3, "{acks}");
}

/// A guest that overwrites its ring and moves its producer on, for requests that nobody answers.
#[test]
fn requests_held_are_no_more_than_the_ring_has_entries() {
    let mut net = net(true);
    let mut f = Flow::new(&mut net, 1, true, Options { timeout: 0, ..Options::default() });
    let silent = QpChange { to: Some(QpState::Err), ..QpChange::default() };
    f.b.modify(&mut net, &f.b_qp, silent).unwrap();
    for _ in 0..64 {
        f.post(SEND_OP_RDMA_WRITE, 8);
    }
    net.run(1);
    let ring = f.a.mapping(f.a_qp.sq_gpa, 1);
    for _ in 0..20 {
        let producer = vrdma_rings::SharedMemory::load_acquire(&ring, 0);
        vrdma_rings::SharedMemory::store_release(&ring, 0, producer.wrapping_add(32));
        f.a.mark(f.a_qp.slot, f.a_qp.index);
        net.run(1);
        assert!(counters(&mut net, &f.a).held_requests <= 64);
    }
    assert_eq!(counters(&mut net, &f.a).held_requests, 64);
    net.execute(0, Command::DestroyQp { vnic: f.a.id, qp: f.a_qp.handle }).unwrap();
    assert_eq!(counters(&mut net, &f.a).held_requests, 0);
}
