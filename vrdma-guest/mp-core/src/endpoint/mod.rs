//! A connection of several ordinary queue pairs, one for each path, on any RNIC.
//!
//! # What a program sees
//!
//! WRITEs, READs and SENDs of any length, receives, and one completion for each, in the order of posting. Effects are in order as on one RC
//! queue pair, save that the bytes of a message longer than [`Config::small_bytes`] land in any order: who wants to know that it has come polls for a
//! completion, or for what a later small WRITE brings.
//!
//! # How
//!
//! - **Small messages** go over one path, one behind the other, and change it only when none is under way.
//! - **Large ones** are cut into chunks, which all paths take. One follows another at once unless they touch the same memory; between
//!   large and small ones, the later kind waits for the earlier to be complete.
//! - **A SEND** is a WRITE into a receive that the peer has [granted](control::Control::Grant), and then, behind all its data,
//!   [`Done`](control::Control::Done). Receives are therefore memory that the peer may write to.
//! - **A path fails** when a work request on it gets no answer. What was under way there is of unknown fate, and nothing of it is done again before both ends
//!   have closed their queue pairs of that path and so cannot be reached by packets that are late: one end asks with
//!   [`Reopen`](control::Control::Reopen), by a path that lives, and the other answers when it has done so. Each tells with it
//!   how many SENDs it has received: they are numbered, and none comes twice. WRITEs and READs whose fate nobody knows are done again.
//! - **It comes back** with a new queue pair, on which a [`Ping`](control::Control::Ping) must have been answered; if it is not, the next attempt follows
//!   after 1 s, 2 s, … 30 s.
//! - **The connection fails** when its last path does, or a work request fails for another reason than silence.
//!
//! Both ends must be polled for this: an end that never is grants nothing and closes nothing.
//!
//! # How to drive it
//!
//! [`post`](Endpoint::post) and [`post_receive`](Endpoint::post_receive) as the program does; `handle_*` as the queue pairs do; after
//! each of these, and at [`next_timeout`](Endpoint::next_timeout), take [`poll`](Endpoint::poll) until it has nothing, and then
//! [`poll_completion`](Endpoint::poll_completion).

pub mod control;
mod flight;
mod outbound;
mod path;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;

use crate::Nanos;
use crate::monitor::{PROBE_BYTES_MIN, Passive, PathMonitor};
use crate::pace::{ChunkControl, Lossless};
use crate::schedule::{LeastLoaded, PathScheduler, PathView};
use crate::split::Place;
use control::{Control, PathParams};
use flight::{Flight, Flights, Load};
use outbound::Outbound;
use path::{Path, Phase};

/// How many receives of an end may be outstanding; a peer that grants more is refused.
pub const RECEIVES_MAX: u32 = 1 << 16;

/// What a connection is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of paths; not 0.
    pub paths: usize,
    /// Work requests that each queue pair takes; at least 2.
    pub depth: u32,
    /// Messages of no more bytes are posted as one work request on one path.
    pub small_bytes: u32,
    /// Shares of a message are multiples of this, in bytes; not 0.
    pub unit_bytes: u32,
    /// Outstanding messages; so many receives may be as well, but no more than [`RECEIVES_MAX`].
    pub messages: u32,
    /// Bytes that a probing flow may have; 0 if there are to be none. Less than [`PROBE_BYTES_MIN`] means none as well.
    pub probe_bytes: u32,
    /// Whether the numbers of this end's attempts to reopen a path are odd. Those of the other end are not.
    pub odd: bool,
}

impl Config {
    /// For so many paths: messages of more than 32 KiB are split, in multiples of 16 KiB; up to 1,024 of them, 64 work requests on each path.
    pub fn new(paths: usize, odd: bool) -> Self {
        Self {
            paths,
            depth: 64,
            small_bytes: 32 << 10,
            unit_bytes: 16 << 10,
            messages: 1024,
            probe_bytes: 0,
            odd,
        }
    }
}

/// What can be plugged in.
pub struct Policies {
    /// Chooses paths.
    pub scheduler: Box<dyn PathScheduler + Send>,
    /// Measures them.
    pub monitor: Box<dyn PathMonitor + Send>,
    /// Bounds what they are given.
    pub control: Box<dyn ChunkControl + Send>,
}

impl Default for Policies {
    /// The least loaded path, as completions tell, on a network that loses nothing.
    fn default() -> Self {
        Self {
            scheduler: Box::new(LeastLoaded),
            monitor: Box::new(Passive::default()),
            control: Box::new(Lossless::default()),
        }
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Policies")
    }
}

/// A value of enum ibv_wc_status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// IBV_WC_SUCCESS.
    pub const SUCCESS: Self = Self(0);
    /// IBV_WC_LOC_LEN_ERR: a SEND that its receive does not hold, told to the receiver.
    pub const LOC_LEN_ERR: Self = Self(1);
    /// IBV_WC_WR_FLUSH_ERR: not done, or of unknown fate, because the connection has ended.
    pub const WR_FLUSH_ERR: Self = Self(5);
    /// IBV_WC_REM_INV_REQ_ERR: a SEND that its receive does not hold, told to the sender; and a peer that does not keep to the protocol.
    pub const REM_INV_REQ_ERR: Self = Self(9);
    /// IBV_WC_RETRY_EXC_ERR: no answer.
    pub const RETRY_EXC_ERR: Self = Self(12);
}

/// What a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND; the peer's memory is that of its next receive.
    Send,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub kind: Kind,
    /// How many bytes.
    pub bytes: u32,
    /// This side's memory.
    pub local: Place,
    /// The peer's memory, for WRITE and READ.
    pub remote: Place,
}

/// A receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Bytes of the buffer.
    pub bytes: u32,
    /// The buffer, as the peer names it for a remote write.
    pub place: Place,
}

/// What a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// A message.
    Sent(Kind),
    /// A receive.
    Received,
}

/// The end of a message or receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's.
    pub wr_id: u64,
    /// What it was.
    pub what: Completed,
    /// How it ended.
    pub status: Status,
    /// Bytes of the message, if it succeeded.
    pub bytes: u32,
}

/// Why nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// Too many are outstanding (ENOMEM).
    Full,
    /// The connection has ended, or is about to (EINVAL).
    Ended,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "too many messages or receives are outstanding",
            Self::Ended => "the connection has ended",
        })
    }
}

impl core::error::Error for PostError {}

/// A work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The path whose queue pair gets it.
    pub path: usize,
    /// For [`Endpoint::handle_completion`]: it must be signalled. The highest bit is 0.
    pub token: u64,
    /// What it does.
    pub op: Op,
}

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// RDMA WRITE, with a fence if there are READs before it.
    Write {
        /// From here,
        local: Place,
        /// to there,
        remote: Place,
        /// so many bytes.
        bytes: u32,
    },
    /// RDMA READ.
    Read {
        /// To here,
        local: Place,
        /// from there,
        remote: Place,
        /// so many bytes.
        bytes: u32,
    },
    /// SEND of a control message, with a fence if there are READs before it.
    Control(Control),
    /// RDMA WRITE of so many bytes of whatever, to where they hurt nobody.
    Probe(u32),
}

/// What is to be done with the queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Post a work request.
    Post(Work),
    /// Move the path's queue pair to ERR, hand over the control messages that it has received, destroy it, and make a new one: then
    /// [`Endpoint::handle_renewed`]. Completions of the old one count no more.
    Renew {
        /// The path.
        path: usize,
    },
    /// Connect the path's queue pair, which was renewed, to this one of the peer.
    Connect {
        /// The path.
        path: usize,
        /// The peer's queue pair.
        peer: PathParams,
    },
    /// The connection has ended: move all queue pairs to ERR, hand over the control messages that they have received, then [`Endpoint::handle_shut`].
    Shut,
}

/// What is known of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// Whether it is used.
    pub alive: bool,
    /// Payload bytes whose transfer this end has asked for and which are complete.
    pub bytes: u64,
    /// Bytes under way.
    pub in_flight_bytes: u64,
    /// What it carries, in bytes per second; 0 if unknown.
    pub bytes_per_sec: u64,
    /// How often it has failed.
    pub failures: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The program has disconnected; Bye follows what it had posted.
    Leaving,
    /// Nothing is begun any more; the peer is told.
    Ending,
    /// Queue pairs are being shut.
    Shutting,
    Ended,
}

/// One end of a connection. See the module's text.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    policies: Policies,
    state: State,
    paths: Vec<Path>,
    flights: Flights,
    actions: VecDeque<Action>,
    /// To be sent by whichever path lives.
    notices: VecDeque<Control>,
    bye: bool,
    /// The peer knows that the connection ends, and may be gone already.
    parted: bool,
    out: Outbound,
    /// Our receives, from number `received` on, and how long the SENDs are that have come.
    receives: VecDeque<(Receive, Option<u32>)>,
    received: u32,
    /// The peer's receives, from number `granted` on.
    grants: VecDeque<Option<(Place, u32)>>,
    granted: u32,
    completions: VecDeque<Completion>,
    /// The message that ended the connection, and how.
    culprit: Option<(u64, Status)>,
    views: Vec<PathView>,
    capacities: Vec<u64>,
    shares: Vec<u64>,
}

impl Endpoint {
    /// One end of a connection all of whose queue pairs are connected.
    pub fn new(config: Config, policies: Policies) -> Self {
        assert!(config.paths > 0 && config.depth >= 2 && config.unit_bytes > 0);
        Self {
            config,
            policies,
            state: State::Open,
            paths: (0..config.paths).map(|_| Path::new()).collect(),
            flights: Flights::default(),
            actions: VecDeque::new(),
            notices: VecDeque::new(),
            bye: false,
            parted: false,
            out: Outbound::default(),
            receives: VecDeque::new(),
            received: 0,
            grants: VecDeque::new(),
            granted: 0,
            completions: VecDeque::new(),
            culprit: None,
            views: Vec::new(),
            capacities: Vec::new(),
            shares: Vec::new(),
        }
    }

    /// Takes a message.
    pub fn post(&mut self, request: Request) -> Result<(), PostError> {
        if self.state != State::Open {
            return Err(PostError::Ended);
        }
        if self.out.len() >= self.config.messages as usize {
            return Err(PostError::Full);
        }
        self.out.push(request, request.bytes <= self.config.small_bytes);
        Ok(())
    }

    /// Takes a receive.
    pub fn post_receive(&mut self, receive: Receive) -> Result<(), PostError> {
        if !matches!(self.state, State::Open | State::Leaving) {
            return Err(PostError::Ended);
        }
        if self.receives.len() >= self.config.messages.min(RECEIVES_MAX) as usize {
            return Err(PostError::Full);
        }
        let sequence = self.received.wrapping_add(self.receives.len() as u32);
        self.receives.push_back((receive, None));
        self.notices.push_back(Control::Grant { sequence, bytes: receive.bytes, place: receive.place });
        Ok(())
    }

    /// Ends the connection when all messages that were posted are complete. Receives end flushed, at both ends.
    pub fn disconnect(&mut self) {
        if self.state == State::Open {
            self.state = State::Leaving;
        }
    }

    /// Whether the connection has ended: there is nothing left but completions.
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// The status that ended the connection, if it was neither end's wish.
    pub fn failure(&self) -> Option<Status> {
        self.culprit.map(|(_, status)| status)
    }

    /// A path as it is.
    pub fn path(&self, path: usize) -> PathStats {
        let Some(state) = self.paths.get(path) else { return PathStats::default() };
        PathStats {
            alive: state.is_alive(),
            bytes: state.bytes,
            in_flight_bytes: state.in_flight_bytes,
            bytes_per_sec: self.policies.monitor.bytes_per_sec(path),
            failures: state.failures,
        }
    }

    /// The next completion of a message or receive.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Whether there are completions to poll.
    pub fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// When [`poll`](Self::poll) has something to do even if nothing happens until then.
    pub fn next_timeout(&self) -> Option<Nanos> {
        let resting = self.paths.iter().filter_map(|path| match path.phase {
            Phase::Resting { until } => Some(until),
            _ => None,
        });
        let probe = self.may_probe().then(|| self.policies.monitor.next_probe()).flatten();
        resting.chain(probe).min()
    }

    /// The next thing to do.
    pub fn poll(&mut self, now: Nanos) -> Option<Action> {
        self.wake_paths(now);
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if matches!(self.state, State::Shutting | State::Ended) {
            return None;
        }
        if self.state == State::Leaving && self.out.is_empty() && !self.bye {
            self.bye = true;
            self.notices.push_back(Control::Bye);
        }
        if let Some(work) = self.notice_work(now) {
            return Some(Action::Post(work));
        }
        if self.state == State::Ending {
            let told = self.notices.is_empty() && !self.flights.has_notices();
            if told || self.parted || !self.paths.iter().any(Path::is_alive) {
                self.state = State::Shutting;
                return Some(Action::Shut);
            }
            return None;
        }
        let work = self
            .again_work(now)
            .or_else(|| self.done_work(now))
            .or_else(|| self.cursor_work(now))
            .or_else(|| self.probe_work(now));
        work.map(Action::Post)
    }

    /// A work request has ended. Tokens that are not known any more are of queue pairs that have been renewed.
    pub fn handle_completion(&mut self, token: u64, status: Status, now: Nanos) {
        let Some(flight) = self.flights.remove(token) else { return };
        let path = &mut self.paths[flight.path];
        path.flights -= 1;
        path.in_flight_bytes -= u64::from(flight.load.bytes());
        match status {
            Status::SUCCESS => self.flight_done(flight, now),
            // What was flushed behind it is lost with it, and its tokens are forgotten. A queue pair that flushes without this has not failed for
            // silence: kernel rxe, for one, tells of errors of local memory in no other way.
            Status::RETRY_EXC_ERR => {
                if flight.load.bytes() > 0 {
                    self.policies.control.lost(flight.path, u64::from(flight.load.bytes()));
                }
                self.flight_lost(flight);
                self.path_failed(flight.path, now);
            }
            _ => {
                let message = match flight.load {
                    Load::Data { message, .. } | Load::Done { message } => Some(message),
                    Load::Notice(_) | Load::Probe { .. } => None,
                };
                self.fail(message, status);
            }
        }
    }

    /// A control message has come by `path`; `None` if its bytes are none.
    pub fn handle_control(&mut self, path: usize, message: Option<Control>) {
        if matches!(self.state, State::Shutting | State::Ended) {
            // What has come completely before the end is received.
            if let Some(Control::Done { sequence, bytes }) = message {
                self.receive_done(sequence, bytes);
            }
            return;
        }
        match message {
            Some(Control::Grant { sequence, bytes, place }) => self.grant(sequence, bytes, place),
            Some(Control::Done { sequence, bytes }) => self.receive_done(sequence, bytes),
            Some(Control::Reopen { path, round, params, received }) => {
                self.peer_reopens(path, round, params, received);
            }
            Some(Control::Reopened { path, round, params, received }) => {
                self.peer_reopened(path, round, params, received);
            }
            Some(Control::Ping) => self.pinged(path),
            Some(Control::Abort { .. } | Control::Bye) => self.part(),
            None => self.fail(None, Status::REM_INV_REQ_ERR),
        }
    }

    /// All queue pairs are in ERR, and what they had received has been handed over.
    pub fn handle_shut(&mut self) {
        if self.state == State::Ended {
            return;
        }
        self.state = State::Ended;
        let culprit = self.culprit;
        for (number, message) in self.out.drain() {
            let status = match culprit {
                _ if message.is_done() => Status::SUCCESS,
                Some((culprit, status)) if culprit == number => status,
                _ => Status::WR_FLUSH_ERR,
            };
            self.completions.push_back(message.completion(status));
        }
        for (receive, _) in self.receives.drain(..) {
            let Receive { wr_id, .. } = receive;
            let status = Status::WR_FLUSH_ERR;
            self.completions.push_back(Completion { wr_id, what: Completed::Received, status, bytes: 0 });
        }
        self.grants.clear();
        self.notices.clear();
        self.actions.clear();
        self.flights = Flights::default();
        for path in &mut self.paths {
            path.end();
        }
    }

    /// The connection ends, and both ends know it.
    fn part(&mut self) {
        (self.state, self.parted) = (State::Ending, true);
        self.notices.clear();
    }

    /// Ends the connection because of `message`, or of none.
    fn fail(&mut self, message: Option<u64>, status: Status) {
        if matches!(self.state, State::Open | State::Leaving) {
            self.state = State::Ending;
            self.culprit = Some((message.unwrap_or(u64::MAX), status));
            self.notices.clear();
            self.notices.push_back(Control::Abort { status: status.0 });
        }
    }

    /// A receive of the peer's.
    fn grant(&mut self, sequence: u32, bytes: u32, place: Place) {
        let ahead = sequence.wrapping_sub(self.granted);
        if ahead >= 1 << 31 {
            return; // told twice, and used already
        }
        if ahead >= RECEIVES_MAX {
            return self.fail(None, Status::REM_INV_REQ_ERR);
        }
        let ahead = ahead as usize;
        if self.grants.len() <= ahead {
            self.grants.resize(ahead + 1, None);
        }
        self.grants[ahead] = Some((place, bytes));
    }

    /// A SEND of the peer's is in its receive.
    fn receive_done(&mut self, sequence: u32, bytes: u32) {
        let ahead = sequence.wrapping_sub(self.received);
        if ahead >= 1 << 31 {
            return; // told twice
        }
        match self.receives.get_mut(ahead as usize) {
            Some((receive, done)) if bytes <= receive.bytes => *done = Some(bytes),
            Some(_) => return self.fail(None, Status::LOC_LEN_ERR),
            None => return self.fail(None, Status::REM_INV_REQ_ERR),
        }
        while let Some((Receive { wr_id, .. }, Some(bytes))) = self.receives.front().copied() {
            self.receives.pop_front();
            self.received = self.received.wrapping_add(1);
            let (what, status) = (Completed::Received, Status::SUCCESS);
            self.completions.push_back(Completion { wr_id, what, status, bytes });
        }
    }

    /// Sends the oldest notice, if a path lives.
    fn notice_work(&mut self, now: Nanos) -> Option<Work> {
        self.notices.front()?;
        let path = self.choose(0)?;
        let notice = self.notices.pop_front()?;
        Some(self.fly(path, Load::Notice(notice), Op::Control(notice), now))
    }

    fn may_probe(&self) -> bool {
        self.state == State::Open && self.config.probe_bytes >= PROBE_BYTES_MIN
    }

    fn probe_work(&mut self, now: Nanos) -> Option<Work> {
        if !self.may_probe() {
            return None;
        }
        let (path, bytes) = self.policies.monitor.probe(now, self.paths.len())?;
        let state = &self.paths[path];
        if !state.is_alive() || state.flights >= self.config.depth {
            self.policies.monitor.forget(path);
            return None;
        }
        let bytes = bytes.min(self.config.probe_bytes);
        let load = Load::Probe { bytes, ahead: state.in_flight_bytes };
        Some(self.fly(path, load, Op::Probe(bytes), now))
    }

    /// Counts a work request as under way.
    fn fly(&mut self, path: usize, load: Load, op: Op, now: Nanos) -> Work {
        let state = &mut self.paths[path];
        state.flights += 1;
        state.in_flight_bytes += u64::from(load.bytes());
        let token = self.flights.insert(Flight { path, posted: now, load });
        Work { path, token, op }
    }

    fn flight_done(&mut self, flight: Flight, now: Nanos) {
        let Flight { path, posted, load } = flight;
        match load {
            Load::Data { message, bytes, .. } => {
                self.paths[path].bytes += u64::from(bytes);
                self.policies.control.completed(path, u64::from(bytes));
                self.policies.monitor.completed(path, u64::from(bytes), posted, now);
                self.out.data_done(message, bytes);
                self.settle();
            }
            Load::Done { message } => {
                self.out.notice_done(message);
                self.settle();
            }
            Load::Probe { bytes, ahead } => {
                // What was under way before it has gone the same way in the same time.
                self.policies.monitor.probed(path, u64::from(bytes) + ahead, posted, now);
            }
            Load::Notice(Control::Ping) => self.paths[path].answered_ping(),
            Load::Notice(Control::Bye) => self.part(),
            Load::Notice(_) => {}
        }
    }

    /// Reports the messages that are complete, in order.
    fn settle(&mut self) {
        while let Some(message) = self.out.pop_done() {
            if message.is_send() {
                self.grants.pop_front();
                self.granted = self.granted.wrapping_add(1);
            }
            self.completions.push_back(message.completion(Status::SUCCESS));
        }
    }

    /// The path for the next work request, of up to `bytes` bytes; for no bytes, however much is in flight.
    fn choose(&mut self, bytes: u32) -> Option<usize> {
        self.views.clear();
        for (i, path) in self.paths.iter().enumerate() {
            let has_place = path.is_alive() && path.flights < self.config.depth;
            let room_bytes = match has_place {
                false => 0,
                true if bytes == 0 => 1,
                true => self.policies.control.room_bytes(i, path.in_flight_bytes),
            };
            let bytes_per_sec = self.policies.monitor.bytes_per_sec(i);
            self.views.push(PathView { room_bytes, in_flight_bytes: path.in_flight_bytes, bytes_per_sec });
        }
        let path = self.policies.scheduler.choose(&self.views, u64::from(bytes))?;
        // A scheduler is foreign code: its word is checked.
        self.views.get(path).is_some_and(|view| view.room_bytes > 0).then_some(path)
    }
}
