//! Two ends and what lies between them.
//!
//! The simulator has what RC promises and what it does not: a queue pair's work is executed in order; what is not answered in time fails, and nobody knows
//! whether it was executed; packets of a path that is down come when it is up again, however late, if they still find their queue pair.

use alloc::collections::{BTreeMap, VecDeque};
use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::{format, vec};

use proptest::prelude::*;

use super::super::*;

pub const LOCAL: u32 = 1;
pub const TARGET: u32 = 2;
pub const RECEIVES: u32 = 3;
const RETRY: Nanos = 2_000_000;
pub const SECOND: Nanos = 1_000_000_000;
pub const SCRIBBLE: u8 = 0xee;

struct Random(u64);

impl Random {
    /// SplitMix64.
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub bytes_per_sec: u64,
    pub delay: Nanos,
    /// Work requests of more bytes are lost.
    pub loses_above: u64,
    pub down_since: Option<Nanos>,
    pub busy_until: [Nanos; 2],
}

impl Link {
    pub fn new(bytes_per_sec: u64, delay: Nanos) -> Self {
        Self { bytes_per_sec, delay, loses_above: u64::MAX, down_since: None, busy_until: [0; 2] }
    }
}

/// To which end, from which queue pair, token, what, and with which data.
type Packet = (usize, u32, u64, Op, Vec<u8>);

#[derive(Debug)]
pub struct Sent {
    work: Work,
    /// The answer has been sent: what was read.
    executed: Option<Vec<u8>>,
    lost: bool,
}

#[derive(Debug, Default)]
pub struct Qp {
    pub number: u32,
    pub peer: Option<u32>,
    pub failed: bool,
    pub queue: VecDeque<Work>,
    pub last_arrival: Nanos,
    pub sent: VecDeque<Sent>,
}

pub struct End {
    pub endpoint: Endpoint,
    pub qps: Vec<Qp>,
    pub memory: BTreeMap<u32, Vec<u8>>,
    /// Completions that have not been polled.
    pub completed: VecDeque<(u64, Status)>,
    pub received: VecDeque<(usize, u32, Control)>,
    pub script: VecDeque<Request>,
    pub receives: VecDeque<Receive>,
    pub completions: Vec<Completion>,
    /// What each receive must bring.
    pub expected: VecDeque<Vec<u8>>,
    pub overwrites: bool,
    pub next_qp: u32,
    pub leave: bool,
    /// It does not poll.
    pub sleeps: bool,
    /// When it polls next, if there is a reason.
    pub polls_at: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Tick(usize),
    Arrive { to: usize, path: usize, from: u32, token: u64 },
    Answer { to: usize, path: usize, qp: u32 },
    Timeout { of: usize, path: usize, qp: u32 },
    Down(usize),
    Up(usize),
}

pub struct Sim {
    pub now: Nanos,
    pub links: Vec<Link>,
    pub ends: [End; 2],
    pub events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    pub count: u64,
    random: Random,
    /// Packets that arrived while the path was down.
    held: Vec<VecDeque<Packet>>,
    pub on_the_way: BTreeMap<(usize, u32, u64), (Op, Vec<u8>)>,
}

impl Sim {
    pub fn new(links: Vec<Link>, seed: u64, mut config: Config, policies: [Policies; 2]) -> Self {
        config.paths = links.len();
        let [a, b] = policies;
        let end = |odd, policies| End {
            endpoint: Endpoint::new(Config { odd, ..config }, policies),
            qps: (0..links.len() as u32).map(|i| Qp { number: i, peer: Some(i), ..Qp::default() }).collect(),
            memory: BTreeMap::new(),
            completed: VecDeque::new(),
            received: VecDeque::new(),
            script: VecDeque::new(),
            receives: VecDeque::new(),
            completions: vec![],
            expected: VecDeque::new(),
            overwrites: false,
            next_qp: links.len() as u32,
            leave: false,
            sleeps: false,
            polls_at: None,
        };
        let mut sim = Self {
            now: 0,
            held: links.iter().map(|_| VecDeque::new()).collect(),
            ends: [end(true, a), end(false, b)],
            links,
            events: BinaryHeap::new(),
            count: 0,
            random: Random(seed),
            on_the_way: BTreeMap::new(),
        };
        sim.wake(0, 0);
        sim.wake(1, 0);
        sim
    }

    pub fn at(&mut self, when: Nanos, event: Event) {
        self.count += 1;
        self.events.push(Reverse((when, self.count, event)));
    }

    /// An end polls within a while of this time.
    pub fn wake(&mut self, end: usize, when: Nanos) {
        let when = when.max(self.now) + 1 + self.random.next(50_000);
        if self.ends[end].polls_at.is_none_or(|at| when < at) {
            self.ends[end].polls_at = Some(when);
            self.at(when, Event::Tick(end));
        }
    }

    /// Runs until both ends have done what they were to do, and says when that was.
    pub fn run(&mut self, done: impl Fn(&Self) -> bool, limit: Nanos) -> Result<Nanos, TestCaseError> {
        while !done(self) {
            let Some(Reverse((when, _, event))) = self.events.pop() else {
                return Err(TestCaseError::fail(format!("nothing happens any more: {}", self.state())));
            };
            self.now = when;
            prop_assert!(when < limit, "stuck: {}", self.state());
            self.handle(event)?;
        }
        Ok(self.now)
    }

    /// Runs until a time, or until nothing happens any more.
    pub fn pass(&mut self, until: Nanos) -> Result<(), TestCaseError> {
        while let Some(Reverse((when, _, event))) = self.events.pop() {
            self.now = when;
            self.handle(event)?;
            if when > until {
                break;
            }
        }
        Ok(())
    }

    pub fn state(&self) -> alloc::string::String {
        let end = |end: &End| format!("{:?}\n{:?}", end.endpoint.paths, end.endpoint.out);
        format!("{}\n{}", end(&self.ends[0]), end(&self.ends[1]))
    }

    fn handle(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Tick(end) if self.ends[end].sleeps => self.ends[end].polls_at = None,
            Event::Tick(end) if self.ends[end].polls_at == Some(self.now) => {
                self.ends[end].polls_at = None;
                self.tick(end)?;
            }
            Event::Tick(_) => {}
            Event::Arrive { to, path, from, token } => {
                if let Some((op, data)) = self.on_the_way.remove(&(to, from, token)) {
                    self.held[path].push_back((to, from, token, op, data));
                    self.deliver(path);
                }
            }
            Event::Answer { to, path, qp } => self.answer(to, path, qp),
            Event::Timeout { of, path, qp } => self.timeout(of, path, qp),
            Event::Down(path) => self.links[path].down_since = Some(self.now),
            Event::Up(path) => {
                self.links[path].down_since = None;
                self.deliver(path);
                for end in 0..2 {
                    let qp = self.ends[end].qps[path].number;
                    self.answer(end, path, qp);
                }
            }
        }
        for end in 0..2 {
            if !self.ends[end].completed.is_empty() || !self.ends[end].received.is_empty() {
                self.wake(end, self.now);
            }
        }
        Ok(())
    }

    /// Sends what a queue pair has to send: nothing behind a READ before its answer.
    fn send(&mut self, end: usize, path: usize) {
        loop {
            let qp = &mut self.ends[end].qps[path];
            let reads = qp.sent.iter().any(|sent| matches!(sent.work.op, Op::Read { .. }));
            if qp.failed || reads {
                return;
            }
            let Some(work) = qp.queue.pop_front() else { return };
            let from = qp.number;
            let link = &mut self.links[path];
            let bytes = match work.op {
                Op::Write { bytes, .. } | Op::Read { bytes, .. } | Op::Probe(bytes) => u64::from(bytes),
                Op::Control(_) => 40,
            };
            let lost = bytes > link.loses_above;
            qp.sent.push_back(Sent { work, executed: None, lost });
            // What is read takes the other direction, and counts there.
            let direction = if matches!(work.op, Op::Read { .. }) { 1 - end } else { end };
            let start = link.busy_until[direction].max(self.now);
            let arrival = start + (bytes + 60) * SECOND / link.bytes_per_sec;
            link.busy_until[direction] = arrival;
            let arrival = (arrival + link.delay).max(qp.last_arrival + 1);
            qp.last_arrival = arrival;
            let data = match work.op {
                Op::Write { local, bytes, .. } => {
                    self.ends[end].memory[&local.key][local.addr as usize..][..bytes as usize].to_vec()
                }
                _ => vec![],
            };
            let to = 1 - end;
            if !lost {
                self.on_the_way.insert((to, from, work.token), (work.op, data));
                self.at(arrival, Event::Arrive { to, path, from, token: work.token });
            }
            self.at(arrival + RETRY, Event::Timeout { of: end, path, qp: from });
        }
    }

    /// Delivers packets that wait, if the path is up: those whose queue pair is gone are lost.
    fn deliver(&mut self, path: usize) {
        if self.links[path].down_since.is_some() {
            return;
        }
        for _ in 0..self.held[path].len() {
            let Some((to, from, token, op, data)) = self.held[path].pop_front() else { return };
            let qp = &self.ends[to].qps[path];
            if qp.peer == Some(from) && !qp.failed {
                self.execute(to, path, from, token, op, &data);
            }
        }
    }

    fn execute(&mut self, to: usize, path: usize, from: u32, token: u64, op: Op, data: &[u8]) {
        let (mut read, end) = (vec![], &mut self.ends[to]);
        match op {
            Op::Write { remote, .. } => {
                if let Some(memory) = end.memory.get_mut(&remote.key) {
                    memory[remote.addr as usize..][..data.len()].copy_from_slice(data);
                }
            }
            Op::Read { remote, bytes, .. } => {
                read = end.memory[&remote.key][remote.addr as usize..][..bytes as usize].to_vec();
            }
            Op::Control(control) => end.received.push_back((path, end.qps[path].number, control)),
            Op::Probe(_) => {}
        }
        let sender = &mut self.ends[1 - to].qps[path];
        if sender.number == from
            && let Some(sent) = sender.sent.iter_mut().find(|sent| sent.work.token == token)
        {
            sent.executed = Some(read);
            let when = self.now + self.links[path].delay;
            self.at(when, Event::Answer { to: 1 - to, path, qp: from });
        }
    }

    /// Answers arrive, if the path is up.
    fn answer(&mut self, to: usize, path: usize, number: u32) {
        let end = &mut self.ends[to];
        let qp = &mut end.qps[path];
        if qp.number != number || qp.failed || self.links[path].down_since.is_some() {
            return;
        }
        while let Some(Sent { executed: Some(data), .. }) = qp.sent.front() {
            let data = data.clone();
            let Some(Sent { work, .. }) = qp.sent.pop_front() else { break };
            if let (Op::Read { local, .. }, Some(memory)) = (work.op, end.memory.get_mut(&LOCAL)) {
                memory[local.addr as usize..][..data.len()].copy_from_slice(&data);
            }
            end.completed.push_back((work.token, Status::SUCCESS));
        }
        self.send(to, path);
    }

    fn timeout(&mut self, of: usize, path: usize, number: u32) {
        let peer = &self.ends[1 - of].qps[path];
        let peer_is_there = !peer.failed && peer.peer == Some(number);
        let is_down = self.links[path].down_since.is_some_and(|since| self.now >= since + RETRY);
        let qp = &mut self.ends[of].qps[path];
        let Some(oldest) = qp.sent.front() else { return };
        if qp.number != number || qp.failed {
            return;
        }
        if peer_is_there && !is_down && !oldest.lost {
            return self.at(self.now + RETRY, Event::Timeout { of, path, qp: number });
        }
        qp.failed = true;
        let tokens = qp.sent.iter().map(|sent| sent.work.token).chain(qp.queue.iter().map(|work| work.token));
        let status = [Status::RETRY_EXC_ERR].into_iter().chain(core::iter::repeat(Status::WR_FLUSH_ERR));
        self.ends[of].completed.extend(tokens.zip(status));
    }

    /// A program polls.
    fn tick(&mut self, index: usize) -> Result<(), TestCaseError> {
        let now = self.now;
        let end = &mut self.ends[index];
        while let Some((path, qp, control)) = end.received.pop_front() {
            prop_assert_eq!(end.qps[path].number, qp);
            end.endpoint.handle_control(path, Control::from_bytes(&control.to_bytes()));
        }
        while let Some((token, status)) = end.completed.pop_front() {
            end.endpoint.handle_completion(token, status, now);
        }
        while let Some(receive) = end.receives.front() {
            if end.endpoint.post_receive(*receive).is_err() {
                break;
            }
            end.receives.pop_front();
        }
        while let Some(request) = end.script.front() {
            if self.random.next(4) == 0 || end.endpoint.post(*request).is_err() {
                break;
            }
            end.script.pop_front();
        }
        if end.leave && end.script.is_empty() {
            end.endpoint.disconnect();
        }
        while let Some(action) = self.ends[index].endpoint.poll(now) {
            self.act(index, action);
        }
        self.take_completions(index)?;
        let end = &self.ends[index];
        if !end.script.is_empty() || !end.receives.is_empty() || !end.completed.is_empty() {
            self.wake(index, now);
        } else if let Some(timeout) = end.endpoint.next_timeout() {
            self.wake(index, timeout);
        }
        Ok(())
    }

    fn act(&mut self, index: usize, action: Action) {
        let end = &mut self.ends[index];
        match action {
            Action::Post(work) => {
                if end.qps[work.path].failed {
                    end.completed.push_back((work.token, Status::WR_FLUSH_ERR));
                } else {
                    end.qps[work.path].queue.push_back(work);
                    self.send(index, work.path);
                }
            }
            Action::Renew { path } => {
                let old = core::mem::take(&mut end.received);
                for (of, qp, control) in old {
                    match of == path {
                        true => end.endpoint.handle_control(path, Some(control)),
                        false => end.received.push_back((of, qp, control)),
                    }
                }
                end.qps[path] = Qp { number: end.next_qp, ..Qp::default() };
                end.next_qp += 1;
                end.endpoint.handle_renewed(path, PathParams { qpn: end.qps[path].number, psn: 0 });
            }
            Action::Connect { path, peer } => {
                end.qps[path].peer = Some(peer.qpn);
                self.deliver(path);
            }
            Action::Shut => {
                for qp in &mut end.qps {
                    qp.failed = true;
                }
                for (path, _, control) in core::mem::take(&mut end.received) {
                    end.endpoint.handle_control(path, Some(control));
                }
                end.endpoint.handle_shut();
            }
        }
    }

    fn take_completions(&mut self, index: usize) -> Result<(), TestCaseError> {
        let End { endpoint, memory, completions, expected, overwrites, .. } = &mut self.ends[index];
        let mut overwritten = vec![];
        while let Some(completion) = endpoint.poll_completion() {
            if completion.status == Status::SUCCESS && completion.what == Completed::Received {
                let place = completion.wr_id as usize * 4096;
                let data = expected.pop_front().unwrap_or_default();
                let Some(memory) = memory.get_mut(&RECEIVES) else { break };
                prop_assert_eq!(completion.bytes as usize, data.len());
                prop_assert_eq!(&memory[place..][..data.len()], &data[..]);
                // The program uses the memory again; nothing may come there any more.
                memory[place..][..4096].fill(SCRIBBLE);
            }
            if *overwrites && completion.what == Completed::Sent(Kind::Write) {
                overwritten.push(completion);
            }
            completions.push(completion);
        }
        for completion in overwritten {
            if let Some(target) = self.ends[1 - index].memory.get_mut(&TARGET) {
                target[completion.wr_id as usize * 512..][..512].fill(SCRIBBLE);
            }
        }
        Ok(())
    }
}
