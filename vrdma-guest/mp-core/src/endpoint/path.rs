//! The life of a path.
//!
//! ```text
//!              no answer                    renewed: Reopen         Reopened: Connect, Ping         answered
//!   Alive ───────────────► Closing (ours) ─────────────► Waiting ─────────────────────► Trial ─────────────► Alive
//!     │                         ▲                                                        │ no answer
//!     │                         └──────────────────────── Resting ◄──────────────────────┘
//!     │ Reopen of the peer                  renewed: Reopened, Connect            Ping of the peer
//!     └──────────────────► Closing (theirs) ─────────────────────────────► Trial ─────────────────► Alive
//! ```
//!
//! A Reopen of the peer ends every phase, if its number is higher than those of all attempts that this end knows, its own included; others are late, and
//! say nothing. So two ends that try at the same time agree which attempt counts.

use alloc::vec::Vec;

use super::control::{Control, PathParams};
use super::flight::{Flight, Load};
use super::outbound::{Outbound, Piece};
use super::{Action, Endpoint, Op, State, Status};
use crate::Nanos;

const BACKOFF_MIN: Nanos = 1_000_000_000;
const BACKOFF_MAX: Nanos = 30_000_000_000;

/// The peer's wish to reopen a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    round: u32,
    params: PathParams,
    received: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// In use.
    Alive,
    /// The queue pair is being renewed, because the path has failed here, or because the peer wishes so.
    Closing { wish: Option<Wish> },
    /// The peer has been told of the new queue pair.
    Waiting { round: u32, params: PathParams },
    /// Both queue pairs are new, and nothing has come through yet.
    Trial,
    /// The last attempt has failed.
    Resting { until: Nanos },
    /// The connection has ended.
    Ended,
}

/// A path.
#[derive(Debug)]
pub(super) struct Path {
    pub phase: Phase,
    /// Work requests under way, and the bytes of data that they carry.
    pub flights: u32,
    pub in_flight_bytes: u64,
    /// Bytes of data that are complete.
    pub bytes: u64,
    pub failures: u64,
    /// What was under way when it failed: parts of large messages, the end of one, small messages.
    lost: Vec<Piece>,
    lost_done: Option<u64>,
    lost_small: bool,
    backoff: Nanos,
    /// Number of the last attempt, of whichever end.
    round: u32,
    ping: bool,
}

impl Path {
    pub fn new() -> Self {
        Self {
            phase: Phase::Alive,
            flights: 0,
            in_flight_bytes: 0,
            bytes: 0,
            failures: 0,
            lost: Vec::new(),
            lost_done: None,
            lost_small: false,
            backoff: BACKOFF_MIN,
            round: 0,
            ping: false,
        }
    }

    pub fn is_alive(&self) -> bool {
        matches!(self.phase, Phase::Alive)
    }

    /// The connection has ended.
    pub fn end(&mut self) {
        *self = Self { phase: Phase::Ended, bytes: self.bytes, failures: self.failures, ..Self::new() };
    }

    pub fn answered_ping(&mut self) {
        if matches!(self.phase, Phase::Trial) {
            self.phase = Phase::Alive;
            self.backoff = BACKOFF_MIN;
        }
    }
}

impl Endpoint {
    /// What a work request that was not answered leaves behind.
    pub(super) fn flight_lost(&mut self, flight: Flight) {
        let path = &mut self.paths[flight.path];
        match flight.load {
            Load::Data { message, offset, bytes } if !self.out.is_small(message) => {
                path.lost.push(Outbound::piece(message, offset, bytes));
            }
            Load::Done { message } if !self.out.is_small(message) => path.lost_done = Some(message),
            // The path has failed, and with it all small messages that are under way.
            Load::Data { .. } | Load::Done { .. } | Load::Probe { .. } | Load::Notice(Control::Ping) => {}
            Load::Notice(notice) => self.notices.push_front(notice),
        }
    }

    /// A path gave no answer.
    pub(super) fn path_failed(&mut self, path: usize, now: Nanos) {
        let in_use = match self.paths[path].phase {
            Phase::Alive => true,
            Phase::Trial => false,
            _ => return,
        };
        self.clear_path(path);
        self.paths[path].failures += u64::from(in_use);
        if in_use {
            self.paths[path].phase = Phase::Closing { wish: None };
            self.actions.push_back(Action::Renew { path });
        } else {
            let backoff = self.paths[path].backoff;
            self.paths[path].phase = Phase::Resting { until: now + backoff };
            self.paths[path].backoff = (2 * backoff).min(BACKOFF_MAX);
        }
        if !self.paths.iter().any(Path::is_alive) {
            self.fail(None, Status::RETRY_EXC_ERR);
        }
    }

    /// Everything under way on a path is lost.
    fn clear_path(&mut self, path: usize) {
        while let Some(flight) = self.flights.remove_of(path) {
            self.flight_lost(flight);
        }
        self.policies.monitor.forget(path);
        let state = &mut self.paths[path];
        (state.flights, state.in_flight_bytes, state.ping) = (0, 0, false);
        state.lost_small |= self.out.is_small_path(path);
    }

    /// Tries again what has rested long enough, and whether a path answers that is new.
    pub(super) fn wake_paths(&mut self, now: Nanos) {
        if !matches!(self.state, State::Open | State::Leaving) {
            return;
        }
        for path in 0..self.paths.len() {
            if matches!(self.paths[path].phase, Phase::Resting { until } if until <= now) {
                self.paths[path].phase = Phase::Closing { wish: None };
                self.actions.push_back(Action::Renew { path });
            }
            if core::mem::take(&mut self.paths[path].ping) {
                let work = self.fly(path, Load::Notice(Control::Ping), Op::Control(Control::Ping), now);
                self.actions.push_back(Action::Post(work));
            }
        }
    }

    /// The path's queue pair is closed, and this is the new one.
    pub fn handle_renewed(&mut self, path: usize, params: PathParams) {
        let Some(Path { phase: Phase::Closing { wish }, .. }) = self.paths.get(path) else { return };
        match *wish {
            Some(wish) => self.answer(path, params, wish),
            None => {
                let state = &mut self.paths[path];
                // The next number whose last bit is ours.
                let next = state.round.wrapping_add(1);
                state.round = next.wrapping_add(u32::from((next & 1 == 1) != self.config.odd));
                let round = state.round;
                state.phase = Phase::Waiting { round, params };
                let (path, received) = (path as u32, self.received);
                self.notices.push_back(Control::Reopen { path, round, params, received });
            }
        }
    }

    /// Our queue pair is a new one, and the peer's too.
    fn answer(&mut self, path: usize, params: PathParams, wish: Wish) {
        let (number, round, received) = (path as u32, wish.round, self.received);
        self.notices.push_back(Control::Reopened { path: number, round, params, received });
        self.paths[path].phase = Phase::Trial;
        self.actions.push_back(Action::Connect { path, peer: wish.params });
        self.release(path, wish.received);
    }

    /// The peer has closed its queue pair of a path.
    pub(super) fn peer_reopens(&mut self, number: u32, round: u32, params: PathParams, received: u32) {
        let path = number as usize;
        if path >= self.paths.len() {
            return self.fail(None, Status::REM_INV_REQ_ERR);
        }
        let state = &mut self.paths[path];
        if round.wrapping_sub(state.round).wrapping_sub(1) >= 1 << 31 {
            return;
        }
        state.round = round;
        let wish = Wish { round, params, received };
        match state.phase {
            Phase::Closing { .. } => state.phase = Phase::Closing { wish: Some(wish) },
            Phase::Waiting { params, .. } => self.answer(path, params, wish),
            Phase::Alive | Phase::Trial | Phase::Resting { .. } => {
                state.failures += u64::from(state.is_alive());
                state.phase = Phase::Closing { wish: Some(wish) };
                self.clear_path(path);
                self.actions.push_back(Action::Renew { path });
            }
            Phase::Ended => {}
        }
        if !self.paths.iter().any(Path::is_alive) {
            self.fail(None, Status::RETRY_EXC_ERR);
        }
    }

    /// The peer has closed its queue pair of a path as well, and this is its new one.
    pub(super) fn peer_reopened(&mut self, number: u32, round: u32, peer: PathParams, received: u32) {
        let path = number as usize;
        let Some(state) = self.paths.get_mut(path) else {
            return self.fail(None, Status::REM_INV_REQ_ERR);
        };
        if !matches!(state.phase, Phase::Waiting { round: ours, .. } if ours == round) {
            return;
        }
        state.phase = Phase::Trial;
        state.ping = true;
        self.actions.push_back(Action::Connect { path, peer });
        self.release(path, received);
    }

    /// Something has come by a path that was new.
    pub(super) fn pinged(&mut self, path: usize) {
        if let Some(state) = self.paths.get_mut(path) {
            state.answered_ping();
        }
    }

    /// No packet of what was lost can arrive any more, and the peer has received so many SENDs: what is not known to be done is done again.
    fn release(&mut self, path: usize, received: u32) {
        let state = &mut self.paths[path];
        for piece in state.lost.drain(..) {
            self.out.again(piece);
        }
        if let Some(message) = state.lost_done.take() {
            self.out.end_again(message);
        }
        if core::mem::take(&mut state.lost_small) {
            self.out.restart_small(received);
        }
        self.settle();
    }
}
