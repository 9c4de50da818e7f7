//! Which paths between this host and others carry packets, for all queue pairs that use them.
//!
//! A *peer* is another host as this one reaches it: by path `i` from an address of this host to an address of that one. All groups with the same ends share it, so what one of
//! them finds out serves all, is told once, and is asked for once.
//!
//! ```text
//!            a round not answered            three in a row not answered, and another path answered in each
//!  ┌────┐ ────────────────────► ┌────────┐ ───────────────────────────────────────────────────────────────► ┌──────┐
//!  │ Up │                       │ Silent │                                                                  │ Down │
//!  └────┘ ◄──────────────────── └────────┘          ┌─────────────────────────────────────────────────────► └──────┘
//!     ▲    anything is heard by it                  │                                                           │
//!     └─────────────────────────────────────────────┴────────────── a probe is answered ────────────────────────┘
//! ```
//!
//! # What a guest can and cannot make others believe
//!
//! That a queue pair is not answered says little of its path: its peer's VM may have stopped, its queue pair may be gone, or it may lie. So that is a *suspicion*, and has two effects:
//! that queue pair itself goes another way ([`group`](crate::group)), and a *round* of probes goes out, one by each path. Probes and their answers are between the two RNICs
//! ([`PathProbe`]): no guest sends one, answers one, or keeps one from being answered. A path is dead for all when it alone, or with some others, has left three rounds unanswered of
//! which each was answered by another path. When nobody answers, it is the other host, and no path is blamed.
//!
//! What a guest can do is to cause rounds, as many as one every [`ROUND_PAUSE`] for each peer.
//!
//! Probes are as long as the longest packet of who suspects, so that a path that loses only those is dead as well. If no path carries that, the next round has short ones: a guest with an MTU
//! that the fabric does not carry takes no path from those who do without.
//!
//! A path that is down is asked alone every 250 ms, and more and more rarely up to every 5 s.
//!
//! # Several engines
//!
//! Each has its own table, and tells the others when a path goes down or comes up ([`Verdicts`]).

mod verdicts;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use masq_driver::PathState;
use masq_wire::PathProbe;
use rustc_hash::FxHashMap;
use slab::Slab;

use crate::transport::Time;
use crate::udp::LocalId;

pub use verdicts::Verdicts;

/// The least time between the beginnings of two rounds that follow no finding.
pub const ROUND_PAUSE: Duration = Duration::from_millis(10);
/// Between the probes of a path that is down: at first, and at most.
pub const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest.
pub const LAST_PAUSE: Duration = Duration::from_secs(5);

/// How long an answer to a probe is waited for, whatever queue pairs say of answers: peers of busy hosts are not more punctual.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// Rounds that a path leaves unanswered until it is down.
const MISSES: u8 = 3;
/// Rounds in a row that do not count because this engine has not run when it should have.
const MOST_VOID: u8 = 3;

/// Both ends of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// This host's address.
    pub local: LocalId,
    /// The peer's.
    pub remote: IpAddr,
}

/// A probe that is to be sent, and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// By which path.
    pub ends: Ends,
    /// What the answer repeats.
    pub token: [u8; PathProbe::TOKEN_BYTES],
    /// Bytes of the UDP payload.
    pub bytes: usize,
}

/// A path that has gone down or come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// To whom.
    pub peer: usize,
    /// Its number.
    pub path: u8,
    /// It is alive.
    pub is_up: bool,
    /// Its ends.
    pub ends: Ends,
}

/// All peers of an engine to whom a connection with several paths leads.
///
/// [`Peers::join`] and [`Peers::leave`] as groups come and go; [`Peers::heard`] and [`Peers::suspect`] for what they find; [`Peers::answered`] for what comes; [`Peers::judged`]
/// for what other engines find; [`Peers::handle_timeout`] when [`Peers::poll_timeout`] has come. After any of these [`Peers::poll_ask`] and [`Peers::poll_change`].
#[derive(Debug)]
pub struct Peers {
    /// This engine's number, which tokens name.
    engine: u16,
    all: Slab<Peer>,
    by_first: FxHashMap<Ends, Vec<usize>>,
    due: BTreeSet<(Time, usize)>,
    asks: Vec<Ask>,
    changes: Vec<Change>,
}

/// Another host.
#[derive(Debug)]
pub struct Peer {
    lines: Vec<Line>,
    groups: u32,
    round: Option<Round>,
    /// Somebody has had a suspicion since the round began.
    again: bool,
    /// When the next round may begin.
    earliest: Time,
    /// How long an answer takes at most, by those who have had a suspicion.
    wait: Duration,
    /// Bytes of a long probe.
    bytes: usize,
    /// Rounds in a row that nobody has answered.
    mute: u32,
    due: Option<Time>,
}

/// A probe by each path.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// When it begins, or ends.
    at: Time,
    /// When it has begun.
    began: Option<Time>,
    /// How often it has been begun anew.
    void: u8,
}

#[derive(Debug)]
struct Line {
    ends: Ends,
    /// Groups that use it.
    users: u32,
    is_down: bool,
    /// Since when it is up or down.
    since: Time,
    /// When the peer's last answer of any kind came by it.
    heard: Option<Time>,
    /// When the last probe was answered.
    proved: Option<Time>,
    /// The probe whose answer counts.
    asked: Option<u64>,
    /// Since when rounds are not answered, and how many.
    silent: Option<Time>,
    misses: u8,
    /// When it is asked alone, being down.
    check: Time,
    pause: Duration,
    /// Bytes of the probes that it has not answered.
    bytes: usize,
}

impl Line {
    fn new(ends: Ends, now: Time) -> Self {
        Self {
            ends,
            users: 0,
            is_down: false,
            since: now,
            heard: None,
            proved: None,
            asked: None,
            silent: None,
            misses: 0,
            check: now,
            pause: FIRST_PAUSE,
            bytes: 0,
        }
    }

    fn go_down(&mut self, now: Time) {
        // One that flaps is not trusted sooner.
        if now.since(self.since) >= LAST_PAUSE {
            self.pause = FIRST_PAUSE;
        }
        (self.is_down, self.since, self.check) = (true, now, now.plus(self.pause));
    }

    fn come_up(&mut self, now: Time) {
        (self.is_down, self.since) = (false, now);
        (self.silent, self.misses) = (None, 0);
        (self.heard, self.proved) = (Some(now), Some(now));
    }
}

impl Peer {
    fn line(&self, path: u8) -> Option<&Line> {
        self.lines.get(usize::from(path))
    }

    /// Whether a path is known to be dead.
    pub fn is_down(&self, path: u8) -> bool {
        self.line(path).is_some_and(|line| line.is_down)
    }

    /// How a path is.
    pub fn state(&self, path: u8) -> PathState {
        match self.line(path) {
            Some(line) if line.is_down => PathState::Down,
            Some(Line { silent: Some(since), heard, .. }) if heard.is_none_or(|at| at < *since) => {
                PathState::Silent
            }
            _ => PathState::Up,
        }
    }

    /// When anything was heard by a path last.
    pub fn heard(&self, path: u8) -> Option<Time> {
        self.line(path)?.heard
    }

    /// When a probe of a path was answered last.
    pub fn proved(&self, path: u8) -> Option<Time> {
        self.line(path)?.proved
    }

    /// Who is asked in a round.
    fn used(&mut self) -> impl Iterator<Item = (u8, &mut Line)> {
        (0..).zip(&mut self.lines).filter(|(_, line)| line.users > 0)
    }

    fn next(&self) -> Option<Time> {
        let checks = self.lines.iter().filter(|l| l.is_down && l.users > 0).map(|l| l.check);
        checks.chain(self.round.map(|round| round.at)).min()
    }

    /// A round is to begin, no sooner than it may.
    fn plan(&mut self, now: Time) {
        let at = now.max(self.earliest);
        self.round = Some(Round { at, began: None, void: 0 });
    }

    /// The round has ended: who has answered, and who has not.
    fn judge(&mut self, now: Time, down: &mut impl FnMut(u8, Ends)) {
        let began = self.round.and_then(|round| round.began);
        let any = self.used().any(|(_, line)| line.proved.is_some_and(|at| Some(at) >= began));
        let mut open = false;
        for (path, line) in self.used().filter(|(_, line)| line.asked.is_some() && !line.is_down) {
            line.silent.get_or_insert(now);
            if !any {
                // It is the peer that does not answer.
                line.misses = 0;
                continue;
            }
            line.misses += 1;
            open |= line.misses < MISSES;
            if line.misses >= MISSES {
                line.go_down(now);
                down(path, line.ends);
            }
        }
        self.round = None;
        if !any {
            let pause = match self.mute {
                // At once with short ones.
                0 => Duration::ZERO,
                n => (FIRST_PAUSE * (1 << (n - 1).min(8))).min(LAST_PAUSE),
            };
            self.mute = self.mute.saturating_add(1);
            self.plan(now.plus(pause));
            return;
        }
        if open {
            self.plan(now);
            return;
        }
        self.mute = 0;
        if std::mem::take(&mut self.again) {
            self.plan(now);
        } else {
            self.wait = Duration::ZERO;
            self.bytes = 0;
        }
    }

    /// Everybody who is not known to be dead has answered.
    fn all_have_answered(&self) -> bool {
        let mut asked = self.lines.iter().filter(|l| l.users > 0 && !l.is_down);
        asked.all(|line| line.asked.is_none())
    }

    /// Bytes of this round's probes.
    fn length(&self) -> usize {
        // Long and short in turn, until somebody answers.
        if self.mute % 2 == 1 { PathProbe::MIN_BYTES } else { self.bytes }
    }
}

impl Peers {
    /// Nobody, at this engine of the RNIC.
    pub fn new(engine: usize) -> Self {
        Self {
            engine: engine as u16,
            all: Slab::new(),
            by_first: FxHashMap::default(),
            due: BTreeSet::new(),
            asks: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// A group leads by these paths, at least one, to the peer that is returned. A path that no other group of this engine has used is down if `is_down` says so.
    pub fn join(&mut self, paths: &[Ends], now: Time, is_down: impl Fn(&Ends) -> bool) -> Option<usize> {
        let first = *paths.first()?;
        let known = self.by_first.get(&first).into_iter().flatten().copied();
        let all = &self.all;
        let is_it = |peer: &Peer| peer.lines.iter().zip(paths).all(|(line, ends)| line.ends == *ends);
        let found = known.into_iter().find(|key| all.get(*key).is_some_and(is_it));
        let key = found.unwrap_or_else(|| {
            let key = self.all.insert(Peer {
                lines: Vec::with_capacity(paths.len()),
                groups: 0,
                round: None,
                again: false,
                earliest: Time::ZERO,
                wait: Duration::ZERO,
                bytes: 0,
                mute: 0,
                due: None,
            });
            self.by_first.entry(first).or_default().push(key);
            key
        });
        let peer = self.all.get_mut(key)?;
        peer.groups += 1;
        for (number, ends) in paths.iter().enumerate() {
            if peer.lines.len() <= number {
                peer.lines.push(Line::new(*ends, now));
            }
            let Some(line) = peer.lines.get_mut(number) else { continue };
            line.users += 1;
            if line.users == 1 && is_down(ends) {
                line.go_down(now);
                line.check = now;
            }
        }
        self.rearm(key);
        Some(key)
    }

    /// A group of so many paths is gone. Returns those paths that nobody of this engine uses any more, and that were down.
    pub fn leave(&mut self, key: usize, paths: usize) -> Vec<Ends> {
        let Some(peer) = self.all.get_mut(key) else { return Vec::new() };
        let mut forgotten = Vec::new();
        for line in peer.lines.iter_mut().take(paths) {
            line.users = line.users.saturating_sub(1);
            if line.users == 0 && line.is_down {
                forgotten.push(line.ends);
            }
        }
        while peer.lines.len() > 1 && peer.lines.last().is_some_and(|line| line.users == 0) {
            peer.lines.pop();
        }
        peer.groups = peer.groups.saturating_sub(1);
        if peer.groups > 0 {
            self.rearm(key);
            return forgotten;
        }
        self.due.retain(|(_, k)| *k != key);
        if let Some(peer) = self.all.try_remove(key)
            && let Some(first) = peer.lines.first().map(|line| line.ends)
            && let Some(all) = self.by_first.get_mut(&first)
        {
            all.retain(|k| *k != key);
            if all.is_empty() {
                self.by_first.remove(&first);
            }
        }
        forgotten
    }

    /// A peer.
    #[inline]
    pub fn get(&self, key: usize) -> Option<&Peer> {
        self.all.get(key)
    }

    /// An answer to a queue pair has come by a path.
    #[inline]
    pub fn heard(&mut self, key: usize, path: u8, now: Time) {
        let line = self.all.get_mut(key).and_then(|peer| peer.lines.get_mut(usize::from(path)));
        if let Some(line) = line {
            line.heard = Some(now);
        }
    }

    /// A queue pair whose packets have up to `bytes` has had no answer for `timeout`, as long as answers take.
    pub fn suspect(&mut self, key: usize, now: Time, timeout: Duration, bytes: usize) {
        let Some(peer) = self.all.get_mut(key) else { return };
        peer.wait = peer.wait.max((timeout * 2).clamp(SHORTEST_WAIT, LONGEST_WAIT));
        peer.bytes = peer.bytes.max(bytes);
        match &mut peer.round {
            // Whoever is not answered asks by all at once.
            Some(round) if round.began.is_none() => round.at = round.at.min(now.max(peer.earliest)),
            Some(_) => peer.again = true,
            None => peer.plan(now),
        }
        self.rearm(key);
    }

    /// A probe's answer has come by the path with these ends.
    pub fn answered(&mut self, token: &[u8; PathProbe::TOKEN_BYTES], ends: Ends, now: Time) {
        let Some((_, path, key, nonce)) = self.read(token) else { return };
        let Some(peer) = self.all.get_mut(key) else { return };
        let Some(line) = peer.lines.get_mut(usize::from(path)) else { return };
        // What comes by another path, or late, proves nothing.
        if line.ends != ends || line.asked.take_if(|asked| *asked == nonce).is_none() {
            return;
        }
        let was_down = line.is_down;
        if was_down {
            line.come_up(now);
            self.changes.push(Change { peer: key, path, is_up: true, ends });
        } else {
            (line.heard, line.proved) = (Some(now), Some(now));
            (line.silent, line.misses) = (None, 0);
        }
        if peer.round.is_some_and(|round| round.began.is_some()) && peer.all_have_answered() {
            peer.judge(now, &mut |_, _| {});
        }
        self.rearm(key);
    }

    /// Another engine has found that a path is down, or up. Returns what that changes here.
    pub fn judged(&mut self, ends: Ends, is_up: bool, now: Time) -> Vec<Change> {
        let mut changes = Vec::new();
        for (key, peer) in &mut self.all {
            for (path, line) in peer.used().filter(|(_, line)| line.ends == ends && line.is_down == is_up) {
                if is_up {
                    line.come_up(now);
                } else {
                    line.go_down(now);
                }
                changes.push(Change { peer: key, path, is_up, ends });
            }
        }
        for change in &changes {
            self.rearm(change.peer);
        }
        changes
    }

    /// The engine to which a token belongs.
    pub fn engine_of(token: &[u8; PathProbe::TOKEN_BYTES]) -> usize {
        let [high, low, ..] = *token;
        u16::from_be_bytes([high, low]).into()
    }

    /// When [`Peers::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The time has come for something, or not. All that had come to this engine at `listened` has been dealt with; `random` gives a number that nobody can
    /// guess.
    pub fn handle_timeout(&mut self, now: Time, listened: Time, mut random: impl FnMut() -> u64) {
        while let Some((at, key)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, key));
            let Some(peer) = self.all.get_mut(key) else { continue };
            peer.due = None;
            let (engine, asks, changes) = (self.engine, &mut self.asks, &mut self.changes);
            if let Some(mut round) = peer.round.filter(|round| round.at <= now) {
                let is_late = round.began.is_some()
                    && round.void < MOST_VOID
                    && (listened < round.at || now.since(round.at) > peer.wait / 2);
                if round.began.is_some() && !is_late {
                    let mut down = |path, ends| changes.push(Change { peer: key, path, is_up: false, ends });
                    peer.judge(now, &mut down);
                } else {
                    // What was not heard because this engine did not listen says nothing: it asks again.
                    round.void += u8::from(is_late);
                    let bytes = peer.length();
                    for (path, line) in peer.used() {
                        // One that is dead for long packets is not alive because it carries short ones.
                        line.bytes = if line.is_down { line.bytes.max(bytes) } else { bytes };
                        asks.push(ask(engine, key, path, line, random()));
                    }
                    peer.earliest = now.plus(ROUND_PAUSE);
                    (round.at, round.began) = (now.plus(peer.wait.max(SHORTEST_WAIT)), Some(now));
                    peer.round = Some(round);
                }
            }
            let in_round = peer.round.is_some_and(|round| round.began.is_some());
            for (path, line) in peer.used().filter(|(_, line)| line.is_down && line.check <= now) {
                line.check = now.plus(line.pause);
                line.pause = (line.pause * 2).min(LAST_PAUSE);
                if !in_round || line.asked.is_none() {
                    asks.push(ask(engine, key, path, line, random()));
                }
            }
            self.rearm(key);
        }
    }

    /// A probe to send.
    pub fn poll_ask(&mut self) -> Option<Ask> {
        self.asks.pop()
    }

    /// A path that this engine has found to be another than before.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop()
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    fn rearm(&mut self, key: usize) {
        let Some(peer) = self.all.get_mut(key) else { return };
        let next = peer.next();
        if next != peer.due {
            if let Some(before) = std::mem::replace(&mut peer.due, next) {
                self.due.remove(&(before, key));
            }
            self.due.extend(next.map(|at| (at, key)));
        }
    }

    /// The engine, path, peer and number of a token of this engine.
    fn read(&self, token: &[u8; PathProbe::TOKEN_BYTES]) -> Option<(u16, u8, usize, u64)> {
        let number = u128::from_be_bytes(*token);
        let (engine, path) = ((number >> 112) as u16, (number >> 104) as u8);
        let (key, nonce) = ((number >> 64) as u32, number as u64);
        (engine == self.engine).then_some((engine, path, key as usize, nonce))
    }
}

/// Asks by a path. A token is: engine (2 bytes), path, a zero, peer (4), and a number that nobody can guess (8).
fn ask(engine: u16, key: usize, path: u8, line: &mut Line, nonce: u64) -> Ask {
    line.asked = Some(nonce);
    let name = u128::from(engine) << 112 | u128::from(path) << 104 | u128::from(key as u32) << 64;
    Ask { ends: line.ends, token: (name | u128::from(nonce)).to_be_bytes(), bytes: line.bytes }
}

#[cfg(test)]
mod tests;
