//! Which path each member of a group uses.
//!
//! A member begins on the path with its own number, its *home*. When the peer leaves its requests unanswered there, or the path is known to be dead, the member goes on by another
//! path, as with automatic path migration (APM, IBTA Vol 1 §17.2.8), but without the peer's or the application's help: its PSNs go on, so that whatever comes late by the old path
//! is a duplicate. It goes home when its home is up and a probe of it has been answered since.
//!
//! Which paths carry packets is known for all groups that lead to the same peer together ([`peers`](crate::peers)). What a member finds is no more than a suspicion there, but enough for itself:
//!
//! - Its path has been silent for others too, for as long as answers take: it leaves.
//! - Its path answers others. The first time, what it waits for was lost, and goes again; the second time in a row it leaves, as its packets may be of a kind that the path loses.
//! - It has left its home twice before and had no answer there since: it stays away for 250 ms, doubling up to 5 s, whatever probes say.
//!
//! The peer answers by the path that the newest request has come by.
//!
//! Until the peer's RNIC has confirmed that its queue pair is connected to this one (`engine/inquiry`), everybody's packets take path 0.

use std::cmp::Reverse;
use std::time::Duration;

use masq_driver::QpTraffic;

use crate::peers::{FIRST_PAUSE, LAST_PAUSE, Peer};
use crate::transport::Time;

/// Call [`Paths::settle`] before a member sends, [`Paths::unanswered`] when a request has not been answered for as long as answers take, [`Paths::arrived`] for packets,
/// and [`Paths::out`] for the way out.
#[derive(Debug)]
pub struct Paths {
    /// Each path, with the place of the member whose home it is.
    all: Vec<Line>,
    /// The peer's RNIC has confirmed the connection.
    is_confirmed: bool,
    /// It has said by itself that it knows of the connection, at least.
    is_known: bool,
}

#[derive(Debug)]
struct Line {
    traffic: QpTraffic,
    member: Place,
}

/// Where a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// The path of its requests.
    requests: u8,
    /// The path of its answers.
    answers: u8,
    /// How often in a row it was not answered when it should have been.
    doubts: u8,
    /// How often in a row it has left its home without an answer.
    departures: u8,
    /// When it left its home.
    left: Time,
    /// How often its requests have changed paths.
    changes: u64,
    /// The last of these.
    change: Option<Migration>,
}

/// A member's requests have changed paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// When.
    pub at: Time,
    /// How long the path had left them unanswered; none, when it had not.
    pub unanswered: Option<Duration>,
}

/// What a member does that was not answered when it should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays where it is: its path answers others, and something was lost.
    Lost,
    /// It has nowhere else to go.
    Stays,
    /// Its requests take another path from now on.
    Leaves,
}

/// What has come by a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Answers.
    pub answers: bool,
    /// Requests.
    pub requests: bool,
}

/// What is told of a path and its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// What has gone over the path.
    pub traffic: QpTraffic,
    /// The path that the member's next requests take.
    pub taken: u8,
    /// How often the member's requests have changed paths.
    pub changes: u64,
    /// The last of these.
    pub change: Option<Migration>,
}

impl Paths {
    /// So many paths.
    pub fn new(count: usize) -> Self {
        let line = |number: usize| Line {
            traffic: QpTraffic::default(),
            member: Place {
                requests: number as u8,
                answers: number as u8,
                doubts: 0,
                departures: 0,
                left: Time::ZERO,
                changes: 0,
                change: None,
            },
        };
        Self { all: (0..count).map(line).collect(), is_confirmed: false, is_known: false }
    }

    /// So many paths lead another way than before. What has been counted stays.
    pub fn begin(&mut self, count: usize) {
        let before = std::mem::replace(self, Self::new(count));
        for (line, before) in self.all.iter_mut().zip(before.all) {
            line.traffic = before.traffic;
            line.member.changes = before.member.changes;
        }
    }

    /// The peer's RNIC confirms the connection: members go home.
    pub fn confirm(&mut self) {
        (self.is_confirmed, self.is_known) = (true, true);
    }

    /// The peer's RNIC has asked whether it is connected to this group: what comes by other paths than the first is its queue pair's.
    pub fn know(&mut self) {
        self.is_known = true;
    }

    /// Somebody else's connection was confirmed: members take the first path again.
    pub fn doubt(&mut self) {
        self.is_confirmed = false;
    }

    /// Whether packets are taken that come by this path.
    #[inline]
    pub fn takes(&self, path: u8) -> bool {
        path == 0 || self.is_known
    }

    /// Whether it has.
    #[inline]
    pub fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    fn place(&self, number: u8) -> Option<&Place> {
        self.all.get(usize::from(number)).map(|line| &line.member)
    }

    fn place_mut(&mut self, number: u8) -> Option<&mut Place> {
        self.all.get_mut(usize::from(number)).map(|line| &mut line.member)
    }

    /// The path that a member's next packets take.
    #[inline]
    pub fn out(&self, number: u8, is_answer: bool) -> u8 {
        if !self.is_confirmed {
            return 0;
        }
        self.place(number).map_or(number, |m| if is_answer { m.answers } else { m.requests })
    }

    /// Packets for a member have come by a path.
    #[inline]
    pub fn arrived(&mut self, number: u8, path: u8, what: Arrivals) {
        let Some(member) = self.place_mut(number) else { return };
        if what.requests {
            member.answers = path;
        }
        if what.answers {
            member.doubts = 0;
            if path == number && member.requests == number {
                member.departures = 0;
            }
        }
    }

    /// A member is about to send. Returns whether it has to leave its path for another one, since that is known to be dead: what is under way is lost.
    #[inline]
    pub fn settle(&mut self, number: u8, peer: &Peer, now: Time) -> bool {
        let Some(member) = self.place(number).filter(|_| self.is_confirmed) else { return false };
        if member.requests == number && !peer.is_down(number) {
            return false;
        }
        let next = self.next(number, peer, now);
        let Some(member) = self.place_mut(number) else { return false };
        let is_dead = peer.is_down(member.requests);
        if is_dead && member.requests == number && next != number {
            member.left = now;
        }
        let leaves = is_dead && next != member.requests;
        member.go_by(next, Migration { at: now, unanswered: None });
        leaves
    }

    /// A member's requests have had no answer for `unanswered`; answers take `timeout`. Returns what it does about it.
    pub fn unanswered(
        &mut self,
        number: u8,
        peer: &Peer,
        now: Time,
        timeout: Duration,
        unanswered: Option<Duration>,
    ) -> Verdict {
        if !self.is_confirmed {
            return Verdict::Stays;
        }
        let Some(member) = self.place_mut(number) else { return Verdict::Lost };
        member.doubts = member.doubts.saturating_add(1);
        let Place { requests, doubts, .. } = *member;
        let is_heard = peer.heard(requests).is_some_and(|at| now.since(at) < timeout);
        if doubts < 2 && is_heard && !peer.is_down(requests) {
            return Verdict::Lost;
        }
        let Some(path) = self.best(peer, requests) else { return Verdict::Stays };
        let Some(member) = self.place_mut(number) else { return Verdict::Lost };
        if requests == number {
            member.left = now;
            member.departures = member.departures.saturating_add(1);
        }
        member.go_by(path, Migration { at: now, unanswered });
        Verdict::Leaves
    }

    /// The path that a member's next requests take.
    fn next(&self, number: u8, peer: &Peer, now: Time) -> u8 {
        let Some(member) = self.place(number) else { return number };
        if member.requests != number && member.may_go_home(number, peer, now) {
            return number;
        }
        match peer.is_down(member.requests) {
            true => self.best(peer, member.requests).unwrap_or(member.requests),
            false => member.requests,
        }
    }

    /// The path beside `other` that is not dead and most likely carries packets: the one that has answered last, and the first of several that have not yet.
    fn best(&self, peer: &Peer, other: u8) -> Option<u8> {
        let alive = (0..self.all.len() as u8).filter(|path| *path != other && !peer.is_down(*path));
        alive.min_by_key(|path| (peer.state(*path), Reverse(peer.heard(*path))))
    }

    /// Whether a member's requests take another path than its home.
    pub fn any_is_away(&self) -> bool {
        self.all.iter().zip(0..).any(|(line, home)| line.member.requests != home)
    }

    /// Bytes that were sent over a path.
    #[inline]
    pub fn sent(&mut self, path: u8, bytes: u64) {
        if let Some(line) = self.all.get_mut(usize::from(path)) {
            line.traffic.tx_bytes += bytes;
        }
    }

    /// Bytes that have come over a path.
    #[inline]
    pub fn received(&mut self, path: u8, bytes: u64) {
        if let Some(line) = self.all.get_mut(usize::from(path)) {
            line.traffic.rx_bytes += bytes;
        }
    }

    /// A path, and the member whose home it is.
    pub fn describe(&self, number: u8, peer: &Peer, now: Time) -> Option<Described> {
        let Line { traffic, member } = self.all.get(usize::from(number))?;
        let Place { changes, change, .. } = *member;
        let taken = if self.is_confirmed { self.next(number, peer, now) } else { 0 };
        Some(Described { traffic: *traffic, taken, changes, change })
    }
}

impl Place {
    fn go_by(&mut self, path: u8, change: Migration) {
        if self.requests != path {
            (self.requests, self.change) = (path, Some(change));
            self.changes += 1;
            self.doubts = 0;
        }
    }

    fn may_go_home(&self, home: u8, peer: &Peer, now: Time) -> bool {
        let pause = match self.departures {
            0..=2 => Duration::ZERO,
            n => (FIRST_PAUSE * (1 << (n - 3).min(8))).min(LAST_PAUSE),
        };
        let is_proved = peer.proved(home).is_some_and(|at| at > self.left);
        is_proved && !peer.is_down(home) && now.since(self.left) >= pause
    }
}

#[cfg(test)]
#[path = "paths_tests.rs"]
mod tests;
