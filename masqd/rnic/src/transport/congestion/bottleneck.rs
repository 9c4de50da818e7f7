//! Flows through one bottleneck: a queue of a rate that marks when it is long and drops when it is full. Everything takes its time,
//! so that what the algorithms do can be told in numbers, the same in each run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use masq_types::Psn;

use super::*;
use crate::transport::rtt::Rtt;

/// Bytes of a packet on the wire, and those of the window of an RNIC.
const PACKET: u64 = 4096 + 60;
const WINDOW: u32 = 1024;

#[derive(Clone, Copy, Debug)]
struct Link {
    rate: u64,
    /// Bytes that fit in the queue.
    room: u64,
    /// Bytes beyond which packets are marked.
    mark_from: u64,
    /// There and back, without the queue.
    way: Duration,
    /// Every so many measurements of a flow come so much too late: a thread was preempted between time stamp and system call.
    late: Option<(u32, Duration)>,
    /// Every so many packets are lost for no reason.
    loses: Option<u64>,
}

impl Link {
    /// As the queues that the lab has: a token bucket whose queue holds 10 ms and 256 KiB.
    fn of(rate: u64) -> Self {
        let room = rate / 800 + (256 << 10);
        let way = Duration::from_micros(100);
        Self { rate, room, mark_from: u64::MAX, way, late: None, loses: None }
    }

    /// A switch that marks.
    fn marking(rate: u64) -> Self {
        Self { mark_from: rate / 8 / 500, ..Self::of(rate) }
    }
}

#[derive(Debug)]
struct Sender {
    flow: Flow,
    rtt: Rtt,
    next: u32,
    /// Unacknowledged packets.
    outstanding: VecDeque<u32>,
    heard: Time,
    samples: u32,
    marked_at: Option<Time>,
    delivered: u64,
    starts: Time,
    ends: Time,
    /// The next look that counts.
    looks_at: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A sender looks whether it may send.
    Look(usize),
    Answer {
        to: usize,
        packet: u32,
        marked: bool,
    },
}

struct Simulation {
    link: Link,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    number: u64,
    senders: Vec<Sender>,
    /// When the queue will be empty.
    busy_until: Time,
    sent: u64,
    lost: u64,
    /// Waits in the queue in ns, since the measurement began.
    waits: Vec<u64>,
}

/// What came of it, since a given moment.
#[derive(Debug)]
struct Outcome {
    jain: f64,
    utilisation: f64,
    wait_p50: Duration,
    wait_p99: Duration,
    lost: u64,
    shares: Vec<u64>,
}

impl Simulation {
    fn new(kind: Congestion, flows: usize, link: Link) -> Self {
        let sender = |i| Sender {
            flow: Flow::acknowledged_by_peer(kind, PACKET as u32, WINDOW, true),
            rtt: Rtt::default(),
            next: 0,
            outstanding: VecDeque::new(),
            heard: Time::ZERO,
            samples: 0,
            marked_at: None,
            delivered: 0,
            starts: Time::from_nanos(1_000_000_000 + i as u64 * 1_000_000),
            ends: Time::from_nanos(u64::MAX),
            looks_at: None,
        };
        let mut simulation = Self {
            link,
            now: Time::ZERO,
            events: BinaryHeap::new(),
            number: 0,
            senders: (0..flows).map(sender).collect(),
            busy_until: Time::ZERO,
            sent: 0,
            lost: 0,
            waits: Vec::new(),
        };
        for i in 0..flows {
            simulation.at(simulation.senders[i].starts, Event::Look(i));
        }
        simulation
    }

    fn at(&mut self, time: Time, event: Event) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, event)));
    }

    fn run(&mut self, until: Duration) {
        let until = Time::ZERO.plus(until);
        while self.events.peek().is_some_and(|Reverse((time, ..))| *time <= until) {
            let Some(Reverse((time, _, event))) = self.events.pop() else { return };
            self.now = time;
            match event {
                Event::Look(i) if self.senders[i].looks_at.is_none_or(|t| t == time) => {
                    self.senders[i].looks_at = None;
                    self.look(i);
                }
                Event::Look(_) => {}
                Event::Answer { to, packet, marked } => self.answer(to, packet, marked),
            }
        }
        self.now = until;
    }

    /// Runs until `warm`, and measures until `end`.
    fn measure(&mut self, warm: Duration, end: Duration) -> Outcome {
        self.run(warm);
        self.waits.clear();
        let lost = self.lost;
        self.senders.iter_mut().for_each(|s| s.delivered = 0);
        self.run(end);
        let running = self.senders.iter().filter(|s| s.ends > self.now);
        let shares: Vec<u64> = running.map(|s| s.delivered).collect();
        let sum: f64 = shares.iter().map(|x| *x as f64).sum();
        let squares: f64 = shares.iter().map(|x| (*x as f64).powi(2)).sum();
        let capacity = self.link.rate as f64 / 8.0 * (end - warm).as_secs_f64();
        self.waits.sort_unstable();
        let wait = |share: usize| {
            Duration::from_nanos(self.waits.get(self.waits.len() * share / 100).copied().unwrap_or(0))
        };
        Outcome {
            jain: sum * sum / (shares.len() as f64 * squares),
            utilisation: sum / capacity,
            wait_p50: wait(50),
            wait_p99: wait(99),
            lost: self.lost - lost,
            shares,
        }
    }

    fn look(&mut self, i: usize) {
        let now = self.now;
        let sender = &mut self.senders[i];
        sender.flow.handle_timeout(now);
        if !sender.outstanding.is_empty() && now.since(sender.heard) >= Duration::from_millis(100) {
            sender.flow.timed_out(now);
            sender.flow.gone_back();
            sender.rtt.forget();
            sender.outstanding.clear();
        }
        loop {
            let sender = &mut self.senders[i];
            let full = sender.outstanding.len() as u32 >= WINDOW;
            if now >= sender.ends
                || full
                || !sender.flow.may_send(now, PACKET, !sender.outstanding.is_empty())
            {
                break;
            }
            sender.flow.sent(now, PACKET);
            let packet = sender.next;
            sender.next += 1;
            if sender.outstanding.is_empty() {
                sender.heard = now;
            }
            sender.outstanding.push_back(packet);
            sender.rtt.sent(now, Psn::new(packet).plus(1));
            self.enqueue(i, packet);
        }
        let sender = &self.senders[i];
        let silence = (!sender.outstanding.is_empty()).then(|| sender.heard.plus(Duration::from_millis(100)));
        if let Some(t) = [sender.flow.deadline(), silence].into_iter().flatten().min() {
            let t = t.max(now);
            if sender.looks_at.is_none_or(|planned| t < planned || planned <= now) {
                self.senders[i].looks_at = Some(t);
                self.at(t, Event::Look(i));
            }
        }
    }

    fn enqueue(&mut self, to: usize, packet: u32) {
        self.sent += 1;
        let wait = self.busy_until.since(self.now);
        let queued = (wait.as_nanos() * u128::from(self.link.rate) / 8_000_000_000) as u64;
        let unlucky = self.link.loses.is_some_and(|n| self.sent.is_multiple_of(n));
        if queued + PACKET > self.link.room || unlucky {
            self.lost += 1;
            return;
        }
        self.waits.push(wait.as_nanos() as u64);
        let takes = Duration::from_nanos(nanos_at(self.link.rate, PACKET));
        self.busy_until = self.busy_until.max(self.now).plus(takes);
        let marked = queued > self.link.mark_from;
        self.at(self.busy_until.plus(self.link.way), Event::Answer { to, packet, marked });
    }

    /// The queue keeps the order: what was sent before and is not answered is lost.
    fn answer(&mut self, to: usize, packet: u32, marked: bool) {
        let now = self.now;
        let late = self.link.late;
        let sender = &mut self.senders[to];
        sender.heard = now;
        let before = sender.outstanding.len() as u32;
        while sender.outstanding.front().is_some_and(|p| *p <= packet) {
            let Some(oldest) = sender.outstanding.pop_front() else { break };
            if oldest < packet {
                sender.rtt.forget();
                sender.flow.lost(now, false);
            }
        }
        let after = sender.outstanding.len() as u32;
        let mut told = sender.rtt.answered(now, now, Psn::new(packet).plus(1), Some(Duration::ZERO));
        if let (Some(Told::Sample(sample)), Some((every, by))) = (&mut told, late) {
            sender.samples += 1;
            if sender.samples.is_multiple_of(every) {
                sample.fabric += by;
                sample.round_trip += by;
            }
        }
        sender.flow.acknowledged(now, before, after, told.as_ref());
        sender.delivered += PACKET;
        let may_tell = sender.marked_at.is_none_or(|t| now.since(t) >= Duration::from_micros(50));
        if marked && may_tell {
            sender.marked_at = Some(now);
            sender.flow.cnp(now);
        }
        self.look(to);
    }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
#[ignore = "prints what the algorithms do at many rates"]
fn survey() {
    for kind in [Congestion::Dcqcn] {
        for rate in [200_000_000u64, 1_000_000_000] {
            for flows in [1, 2, 8] {
                let link = if kind == Congestion::Dcqcn { Link::marking(rate) } else { Link::of(rate) };
                let o = Simulation::new(kind, flows, link).measure(secs(2), secs(6));
                println!(
                    "{kind:?} {} Mbit/s, {flows}: Jain {:.4}, utilisation {:.3}, wait {:?} / {:?}, lost {}, {:?}",
                    rate / 1_000_000,
                    o.jain,
                    o.utilisation,
                    o.wait_p50,
                    o.wait_p99,
                    o.lost,
                    (o.shares.iter().min(), o.shares.iter().max()),
                );
            }
        }
    }
}

/// Equal shares, a link in use, and a queue near the target, at each rate and number of flows.
#[test]
fn swift_shares_a_link_and_keeps_the_queue_short() {
    for (rate, flows) in [(200_000_000, 1), (200_000_000, 8), (1_000_000_000, 2), (1_000_000_000, 16)] {
        let o = Simulation::new(Congestion::Swift, flows, Link::of(rate)).measure(secs(2), secs(4));
        assert!(o.jain >= 0.97 && o.utilisation >= 0.9, "{rate} {flows} {o:?}");
        assert!(o.wait_p99 <= Duration::from_millis(6) && o.lost == 0, "{rate} {flows} {o:?}");
    }
}

/// Sixty-four flows of three megabits: each has a packet on its way now and then, and one of each would fill half of the queue.
#[test]
fn swift_shares_among_flows_whose_windows_are_parts_of_a_packet() {
    let o = Simulation::new(Congestion::Swift, 64, Link::of(200_000_000)).measure(secs(4), secs(14));
    assert!(o.jain >= 0.97 && o.utilisation >= 0.8 && o.lost == 0, "{o:?}");
    assert!(o.wait_p50 <= Duration::from_millis(5), "{o:?}");
}

/// The same from marks alone.
#[test]
fn dcqcn_shares_a_link_that_marks() {
    for flows in [1, 2, 8] {
        let link = Link::marking(200_000_000);
        let o = Simulation::new(Congestion::Dcqcn, flows, link).measure(secs(2), secs(6));
        assert!(o.jain >= 0.97 && o.utilisation >= 0.8 && o.lost == 0, "{flows} {o:?}");
        // Full, it would be 20 ms.
        assert!(o.wait_p99 <= Duration::from_millis(18), "{flows} {o:?}");
    }
}

/// Without control, the same queue is full all the time, and shares are what chance makes them.
#[test]
fn without_control_the_queue_is_full() {
    let o = Simulation::new(Congestion::None, 2, Link::of(200_000_000)).measure(secs(2), secs(3));
    assert!(o.wait_p50 > Duration::from_millis(19) && o.lost > 0, "{o:?}");
}

/// Who comes later gets its share, and who goes leaves it to the others.
#[test]
fn swift_makes_room_and_takes_it_back() {
    let mut s = Simulation::new(Congestion::Swift, 4, Link::of(200_000_000));
    s.senders[3].starts = Time::ZERO.plus(secs(3));
    s.events.clear();
    (0..4).for_each(|i| s.at(s.senders[i].starts, Event::Look(i)));
    let three = s.measure(secs(2), secs(3));
    assert!(three.shares[3] == 0 && three.utilisation >= 0.9, "{three:?}");
    let four = s.measure(secs(5), secs(7));
    assert!(four.jain >= 0.97 && four.utilisation >= 0.9, "{four:?}");
    (0..3).for_each(|i| s.senders[i].ends = s.now);
    let one = s.measure(secs(8), secs(9));
    assert!(one.utilisation >= 0.9, "{one:?}");
}

/// Threads that are preempted between a time stamp and a system call are no queue, and a lossy link is none either.
#[test]
fn swift_takes_neither_preemption_nor_chance_for_a_queue() {
    let link = Link { late: Some((5, Duration::from_millis(8))), ..Link::of(1_000_000_000) };
    let late = Simulation::new(Congestion::Swift, 2, link).measure(secs(4), secs(10));
    assert!(late.utilisation >= 0.85 && late.jain >= 0.97, "{late:?}");
    let link = Link { loses: Some(100), ..Link::of(1_000_000_000) };
    let lossy = Simulation::new(Congestion::Swift, 2, link).measure(secs(2), secs(4));
    assert!(lossy.utilisation >= 0.9, "{lossy:?}");
}
