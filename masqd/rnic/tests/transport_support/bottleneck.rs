//! Many pairs between two hosts whose way passes a slow link in each direction, as a token bucket makes it (tc-tbf). Whole transports send through it, so that windows,
//! trains, losses and repairs meet one another as they do between hosts. Everything takes its time, and runs with the same seed are the same.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use masq_rnic::transport::*;

use super::{BASE, End, LOCAL, REMOTE, Region, Seeded, Setup, World, send, to_rts};

/// A slow link. Bytes are those of packets, their headers left out but for RoCE's.
#[derive(Clone, Copy, Debug)]
pub struct Slow {
    pub bits_per_sec: u64,
    /// Bytes that pass at once after a pause.
    pub burst: u64,
    /// Bytes that wait at most. A train that does not fit is lost as a whole.
    pub room: u64,
    /// One way, without the queue.
    pub way: Duration,
}

impl Slow {
    /// As `tc` makes it of `rate RATE burst 256k latency 10ms`.
    pub fn tbf(bits_per_sec: u64) -> Self {
        let burst = 256 << 10;
        Self { bits_per_sec, burst, room: bits_per_sec / 800 + burst, way: Duration::from_micros(30) }
    }

    fn nanos(&self, bytes: u64) -> u64 {
        bytes * 8_000_000_000 / self.bits_per_sec
    }
}

/// What a flow keeps doing.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// RDMA WRITEs or READs.
    pub op: SendOp,
    /// The host that has the data, whichever asks.
    pub from: usize,
    /// Bytes of each.
    pub len: u32,
    /// How many are on their way.
    pub depth: usize,
    /// The other end asks for the same of this one.
    pub both: bool,
}

/// What has come of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Messages that are done, and those of the other end.
    pub messages: u64,
    pub back: u64,
    /// Times that the local ACK timeout has expired.
    pub timeouts: u64,
    /// Packets that the requester has sent, and those that it has sent again.
    pub sent: u64,
    pub repeated: u64,
    /// Packets that have passed the link or were lost before it.
    pub passed: u64,
}

/// One pair, whose requester is the first end, wherever that is.
struct Flow {
    ends: [End; 2],
    load: Load,
    /// When each message that is on its way was posted.
    posted: VecDeque<Time>,
    messages: u64,
    /// Messages that the other end has on their way, and those that are done.
    back: (usize, u64),
    /// From post to completion of each.
    times: Vec<Duration>,
    /// Something has arrived for each end, or its deadline has come.
    due: [bool; 2],
}

struct Train {
    flow: usize,
    packets: Vec<Vec<u8>>,
}

impl Train {
    fn bytes(&self) -> u64 {
        self.packets.iter().map(|p| p.len() as u64).sum()
    }
}

/// In a turn of a host its engine does what there is to do.
enum Event {
    Turn(usize),
    Arrival(usize, Train),
    /// The link away from a host may send the first train of its queue.
    Link(usize),
}

struct Queue {
    trains: VecDeque<Train>,
    bytes: u64,
    /// What may pass at once, in nanoseconds of the link, when it was counted.
    tokens: u64,
    counted: Time,
    sends_at: Option<Time>,
}

pub struct Bottleneck {
    now: Time,
    link: Slow,
    flows: Vec<Flow>,
    /// What waits for the link away from each host.
    queues: [Queue; 2],
    /// The next turn of each host, and the flow that is first then.
    turns: [Option<Time>; 2],
    first: usize,
    /// What arrived at each host since its last turn.
    arrived: [Vec<(Time, Train)>; 2],
    /// Moments of events, and where these are.
    agenda: BinaryHeap<Reverse<(Time, u64)>>,
    events: std::collections::HashMap<u64, Event>,
    number: u64,
    rng: Seeded,
}

impl Bottleneck {
    /// All of them begin at once.
    pub fn new(setup: &Setup, link: Slow, loads: &[Load], seed: u64) -> Self {
        let now = Time::from_nanos(1_000_000_000);
        let mut new = Self {
            now,
            link,
            flows: loads.iter().map(|load| Flow::new(setup, now, *load)).collect(),
            queues: [0, 1].map(|_| Queue {
                trains: VecDeque::new(),
                bytes: 0,
                tokens: link.nanos(link.burst),
                counted: now,
                sends_at: None,
            }),
            turns: [None; 2],
            first: 0,
            arrived: Default::default(),
            agenda: BinaryHeap::new(),
            events: Default::default(),
            number: 0,
            rng: Seeded::new(seed),
        };
        (0..2).for_each(|host| new.plan_turn(host, now));
        new
    }

    pub fn run_for(&mut self, duration: Duration) {
        let limit = self.now.plus(duration);
        while let Some(Reverse((time, number))) =
            self.agenda.peek().copied().filter(|Reverse((t, _))| *t <= limit)
        {
            self.agenda.pop();
            self.now = time;
            match self.events.remove(&number) {
                Some(Event::Turn(host)) if self.turns[host] == Some(time) => {
                    self.turns[host] = None;
                    self.turn(host);
                }
                Some(Event::Arrival(host, train)) => {
                    self.flows[train.flow].due[host] = true;
                    self.arrived[host].push((time, train));
                    self.plan_turn(host, time);
                }
                Some(Event::Link(from)) if self.queues[from].sends_at == Some(time) => {
                    self.queues[from].sends_at = None;
                    self.dequeue(from);
                }
                _ => {}
            }
        }
        self.now = limit;
    }

    /// Since the beginning.
    pub fn shares(&self) -> Vec<Share> {
        let share = |flow: &Flow| {
            let c = flow.ends[0].qp.counters();
            let timeouts = c.local_ack_timeout_err;
            let passed = flow.ends[flow.load.from ^ flow.requester()].qp.counters().sent_pkts;
            let (sent, repeated) = (c.sent_pkts, c.retransmitted_pkts);
            Share { messages: flow.messages, back: flow.back.1, timeouts, sent, repeated, passed }
        };
        self.flows.iter().map(share).collect()
    }

    /// From post to completion of the messages of a flow since this was asked last, the shortest first.
    pub fn times(&mut self, flow: usize) -> Vec<Duration> {
        let mut times = std::mem::take(&mut self.flows[flow].times);
        times.sort_unstable();
        times
    }

    fn at(&mut self, time: Time, event: Event) {
        self.number += 1;
        self.agenda.push(Reverse((time, self.number)));
        self.events.insert(self.number, event);
    }

    /// A host's thread has something to do at `time`, and runs some time later: others want its processor, too.
    fn plan_turn(&mut self, host: usize, time: Time) {
        if self.turns[host].is_some_and(|t| t <= time) {
            return;
        }
        let late = match self.rng.below(200) {
            0 => self.rng.below(4_000_000),
            1..20 => self.rng.below(500_000),
            _ => 5_000 + self.rng.below(60_000),
        };
        let time = time.max(self.now).plus(Duration::from_nanos(late));
        if self.turns[host].is_none_or(|t| time < t) {
            self.turns[host] = Some(time);
            self.at(time, Event::Turn(host));
        }
    }

    fn turn(&mut self, host: usize) {
        let now = self.now;
        for (at, train) in std::mem::take(&mut self.arrived[host]) {
            let End { qp, world } = self.flows[train.flow].end(host);
            for datagram in &train.packets {
                let packet = masq_wire::parse(datagram).expect("what is sent makes sense");
                qp.handle_packet(now, world, &packet, Receipt::unmarked(at));
            }
        }
        let count = self.flows.len();
        self.first = (self.first + 1) % count;
        for i in (self.first..count).chain(0..self.first) {
            if !self.flows[i].work(host, now) {
                continue;
            }
            while let Some(packets) = self.flows[i].transmit(host, now) {
                self.enqueue(host, Train { flow: i, packets });
            }
        }
        let next = self.flows.iter().filter_map(|f| f.ends[host ^ f.requester()].qp.poll_timeout()).min();
        if let Some(next) = next {
            self.plan_turn(host, next);
        }
    }

    fn enqueue(&mut self, from: usize, train: Train) {
        let bytes = train.bytes();
        let queue = &mut self.queues[from];
        if queue.bytes + bytes <= self.link.room {
            queue.bytes += bytes;
            queue.trains.push_back(train);
            self.dequeue(from);
        }
    }

    fn dequeue(&mut self, from: usize) {
        let (now, link) = (self.now, self.link);
        let queue = &mut self.queues[from];
        let passed = now.since(queue.counted).as_nanos() as u64;
        queue.tokens = (queue.tokens + passed).min(link.nanos(link.burst));
        queue.counted = now;
        while let Some(train) = self.queues[from].trains.pop_front() {
            let queue = &mut self.queues[from];
            let bytes = train.bytes();
            let costs = link.nanos(bytes);
            if costs > queue.tokens {
                queue.trains.push_front(train);
                let at = now.plus(Duration::from_nanos(costs - queue.tokens));
                if queue.sends_at.is_none() {
                    queue.sends_at = Some(at);
                    self.at(at, Event::Link(from));
                }
                return;
            }
            queue.tokens -= costs;
            queue.bytes -= bytes;
            self.at(now.plus(link.way), Event::Arrival(1 - from, train));
        }
    }
}

impl Flow {
    fn new(setup: &Setup, now: Time, load: Load) -> Self {
        let ends = [0, 1].map(|end| {
            let mut new = End { qp: QpCore::new(setup.config.clone()), world: World::default() };
            new.world.regions = [LOCAL, REMOTE].map(|key| Region::open(key, BASE, load.len as usize)).into();
            for change in to_rts(setup, end) {
                new.qp.modify(now, &mut new.world, &change).expect("a legal change");
            }
            new
        });
        Self {
            ends,
            load,
            posted: VecDeque::new(),
            messages: 0,
            back: (0, 0),
            times: Vec::new(),
            due: [true; 2],
        }
    }

    /// The host that asks.
    fn requester(&self) -> usize {
        self.load.from ^ usize::from(self.load.op == SendOp::Read)
    }

    fn end(&mut self, host: usize) -> &mut End {
        let end = host ^ self.requester();
        &mut self.ends[end]
    }

    /// Timers, completions and new requests. Returns whether there was anything.
    fn work(&mut self, host: usize, now: Time) -> bool {
        let requests = self.requester() == host;
        let End { qp, world } = self.end(host);
        let expired = qp.poll_timeout().is_some_and(|t| t <= now);
        if expired {
            qp.handle_timeout(now, world);
        }
        if !std::mem::take(&mut self.due[host]) && !expired {
            return false;
        }
        let End { qp, world } = &mut self.ends[usize::from(!requests)];
        world.writes.clear();
        if requests {
            for completion in std::mem::take(&mut world.completions) {
                assert_eq!(completion.status, Status::Success, "a queue pair gave up");
                let posted = self.posted.pop_front().expect("a completion of something");
                self.times.push(now.since(posted));
                self.messages += 1;
            }
            while self.posted.len() < self.load.depth {
                self.posted.push_back(now);
                world.post_send(send(self.load.op, self.messages, self.load.len));
            }
        }
        if !requests && self.load.both {
            for completion in std::mem::take(&mut world.completions) {
                assert_eq!(completion.status, Status::Success, "a queue pair gave up");
                self.back = (self.back.0 - 1, self.back.1 + 1);
            }
            while self.back.0 < self.load.depth {
                self.back.0 += 1;
                world.post_send(send(self.load.op, self.back.1, self.load.len));
            }
        }
        while qp.handle_work(now, world) {}
        true
    }

    fn transmit(&mut self, host: usize, now: Time) -> Option<Vec<Vec<u8>>> {
        let End { qp, world } = self.end(host);
        let mut buf = Vec::new();
        let transmit = qp.poll_transmit(now, world, &mut buf, 64)?;
        Some(buf.chunks(transmit.segment_bytes).map(<[u8]>::to_vec).collect())
    }
}
