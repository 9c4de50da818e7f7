//! Which paths of a group are alive, and which one each member uses.
//!
//! A member begins on the path with its own number, its *home*. When the peer leaves its requests unanswered there, and another path is not known to
//! be dead, the member goes on by that one, as with automatic path migration (APM, IBTA Vol 1 §17.2.8), but without the peer's or the application's help:
//! its PSNs go on, so that whatever comes late by the old path is a duplicate.
//!
//! ```text
//!            unanswered                       not answered, and another path is
//!  ┌────┐ ───────────────► ┌────────┐ ─────────────────────────────────────────► ┌──────┐
//!  │ Up │                  │ Silent │                                            │ Down │
//!  └────┘ ◄─────────────── └────────┘       ┌──────────────────────────────────► └──────┘
//!     ▲      a check is answered            │                                        │
//!     └─────────────────────────────────────┴──────── a check is answered ───────────┘
//! ```
//!
//! A path that is not up is checked by the member whose home it is, at once and when an answer should have come, then every 250 ms, more and more rarely up to
//! every 5 s. When it answers, that member goes home. So a single packet that was lost at the end of a message, which looks the same at first, keeps nobody
//! away for longer than a round trip.
//!
//! The peer answers by the path that the newest request has come by, and a check also by that of the check.

use std::time::Duration;

use masq_driver::{PathState, QpTraffic};

use crate::transport::Time;

/// Call [`Paths::unanswered`] when a request has not been answered for as long as answers take, [`Paths::arrived`] for packets,
/// [`Paths::check`] when [`Paths::deadline`] has come, and [`Paths::out`] for the way out.
#[derive(Debug)]
pub struct Paths {
    /// Each path, with the place of the member whose home it is.
    all: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    state: PathState,
    /// Since when.
    since: Time,
    /// When the peer's last answer came by it.
    answered: Option<Time>,
    check: Option<Check>,
    /// How long after a check the next one comes, from the second one on.
    pause: Duration,
    traffic: QpTraffic,
    member: Place,
}

/// A path that is not up is asked.
#[derive(Clone, Copy, Debug)]
struct Check {
    next: Time,
    /// How many have been sent.
    sent: u32,
    /// When the last one was sent while another path was up: if the peer has answered by one since, the peer is alive.
    asked: Option<Time>,
}

/// Where a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// The path of its requests.
    requests: u8,
    /// The path of its answers.
    answers: u8,
    /// A path that its next answer takes besides.
    answers_also: Option<u8>,
    /// How often its requests have changed paths, and when last.
    changes: u64,
    changed: Option<Time>,
}

/// What has come by a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Answers.
    pub answers: bool,
    /// Requests.
    pub requests: bool,
    /// Requests that may be [checks](Paths::check).
    pub checks: bool,
}

/// A path has gone down or come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathChange {
    /// Which.
    pub path: u8,
    /// It is alive.
    pub is_up: bool,
}

/// What is told of a path and its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// How the path is.
    pub state: PathState,
    /// What has gone over the path.
    pub traffic: QpTraffic,
    /// The path that the member's requests take.
    pub taken: u8,
    /// How often the member's requests have changed paths.
    pub changes: u64,
    /// When they did last.
    pub changed: Option<Time>,
}

impl Paths {
    /// Between the checks of a path: at first, and at most.
    pub const FIRST_PAUSE: Duration = Duration::from_millis(250);
    /// The longest.
    pub const LAST_PAUSE: Duration = Duration::from_secs(5);

    /// So many paths, all of them up.
    pub fn new(count: usize, now: Time) -> Self {
        let line = |number: usize| Line {
            state: PathState::Up,
            since: now,
            answered: None,
            check: None,
            pause: Self::FIRST_PAUSE,
            traffic: QpTraffic::default(),
            member: Place {
                requests: number as u8,
                answers: number as u8,
                answers_also: None,
                changes: 0,
                changed: None,
            },
        };
        Self { all: (0..count).map(line).collect() }
    }

    /// So many paths lead another way than before. What has been counted stays.
    pub fn begin(&mut self, count: usize, now: Time) {
        let before = std::mem::replace(self, Self::new(count, now));
        for (line, before) in self.all.iter_mut().zip(before.all) {
            line.traffic = before.traffic;
            line.member.changes = before.member.changes;
        }
    }

    /// The path that a member's next packets take.
    pub fn out(&self, number: u8, is_answer: bool) -> u8 {
        let member = self.all.get(usize::from(number)).map(|line| line.member);
        member.map_or(number, |m| if is_answer { m.answers } else { m.requests })
    }

    /// A path that the answer which was just sent takes besides.
    pub fn take_second_way(&mut self, number: u8) -> Option<u8> {
        let member = &mut self.all.get_mut(usize::from(number))?.member;
        member.answers_also.take().filter(|path| *path != member.answers)
    }

    /// Packets for a member have come by a path. Returns whether that changes the path's state.
    pub fn arrived(&mut self, number: u8, path: u8, now: Time, what: Arrivals) -> Option<PathChange> {
        if let Some(Line { member, .. }) = self.all.get_mut(usize::from(number)) {
            match what {
                Arrivals { requests: true, .. } => member.answers = path,
                Arrivals { checks: true, .. } => member.answers_also = Some(path),
                _ => {}
            }
        }
        if !what.answers {
            return None;
        }
        let line = self.all.get_mut(usize::from(path))?;
        line.answered = Some(now);
        // What was sent before the first check says nothing yet.
        line.check.take_if(|check| check.sent > 0)?;
        let was_down = line.state == PathState::Down;
        (line.state, line.since) = (PathState::Up, now);
        line.member.go_by(path, now);
        was_down.then_some(PathChange { path, is_up: true })
    }

    /// A member's requests have had no answer for `timeout`, as long as answers take. Returns whether its requests take another path now.
    pub fn unanswered(&mut self, number: u8, now: Time, timeout: Duration) -> bool {
        let Some(present) = self.all.get(usize::from(number)).map(|line| line.member.requests) else {
            return false;
        };
        let Some(line) = self.all.get_mut(usize::from(present)) else { return false };
        if line.answered.is_some_and(|at| now.since(at) < timeout) {
            // It answers others: what this one waits for was lost.
            return false;
        }
        if line.state == PathState::Up {
            if now.since(line.since) >= Self::LAST_PAUSE {
                line.pause = Self::FIRST_PAUSE;
            }
            (line.state, line.since) = (PathState::Silent, now);
            line.check = Some(Check { next: now, sent: 0, asked: None });
        }
        let alive = self.all.iter().zip(0u8..).filter(|(line, _)| line.state == PathState::Up);
        // The one that has answered last; the first of several that have not yet.
        let best = alive.min_by_key(|(line, _)| std::cmp::Reverse(line.answered)).map(|(_, path)| path);
        match (best, self.all.get_mut(usize::from(number))) {
            (Some(path), Some(line)) => {
                line.member.go_by(path, now);
                true
            }
            _ => {
                // One of the others may have come back.
                for line in &mut self.all {
                    line.check.iter_mut().for_each(|check| check.next = now);
                }
                false
            }
        }
    }

    /// When a member is to [check](Paths::check) its home.
    pub fn deadline(&self, number: u8) -> Option<Time> {
        self.all.get(usize::from(number))?.check.map(|check| check.next)
    }

    /// Whether a member's home is to be checked now: then the caller sends something by it that the peer answers, which takes `timeout` at most.
    /// And whether that makes the path's state another.
    pub fn check(&mut self, number: u8, now: Time, timeout: Duration) -> (bool, Option<PathChange>) {
        let newest = self.all.iter().filter_map(|line| line.answered).max();
        let any_is_up = self.all.iter().any(|line| line.state == PathState::Up);
        let Some(line) = self.all.get_mut(usize::from(number)) else { return (false, None) };
        let Some(check) = line.check.as_mut().filter(|check| check.next <= now) else { return (false, None) };
        let wait = match check.sent {
            0 => timeout,
            1 => line.pause,
            _ => {
                line.pause = (line.pause * 2).min(Self::LAST_PAUSE);
                line.pause
            }
        };
        // Otherwise it may be the peer.
        let peer_is_alive = check.asked.zip(newest).is_some_and(|(asked, newest)| newest > asked);
        let goes_down = line.state == PathState::Silent && peer_is_alive;
        check.next = now.plus(wait);
        check.sent = check.sent.saturating_add(1);
        check.asked = any_is_up.then_some(now);
        if goes_down {
            (line.state, line.since) = (PathState::Down, now);
        }
        (true, goes_down.then_some(PathChange { path: number, is_up: false }))
    }

    /// Bytes that were sent over a path.
    pub fn sent(&mut self, path: u8, bytes: u64) {
        if let Some(line) = self.all.get_mut(usize::from(path)) {
            line.traffic.tx_bytes += bytes;
        }
    }

    /// Bytes that have come over a path.
    pub fn received(&mut self, path: u8, bytes: u64) {
        if let Some(line) = self.all.get_mut(usize::from(path)) {
            line.traffic.rx_bytes += bytes;
        }
    }

    /// A path, and the member whose home it is.
    pub fn describe(&self, number: usize) -> Option<Described> {
        let Line { state, traffic, member, .. } = self.all.get(number)?;
        let Place { requests, changes, changed, .. } = *member;
        Some(Described { state: *state, traffic: *traffic, taken: requests, changes, changed })
    }
}

impl Place {
    fn go_by(&mut self, path: u8, now: Time) {
        if self.requests != path {
            (self.requests, self.changed) = (path, Some(now));
            self.changes += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTO: Duration = Duration::from_millis(2);
    const ANSWER: Arrivals = Arrivals { answers: true, requests: false, checks: false };

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    fn paths() -> Paths {
        Paths::new(4, Time::ZERO)
    }

    fn state(p: &Paths, path: usize) -> PathState {
        p.describe(path).unwrap().state
    }

    /// Path 1 goes down at 2 ms, and path 3 has answered last.
    fn one_down() -> Paths {
        let mut p = paths();
        for path in [0, 2, 3] {
            assert_eq!(p.arrived(path, path, at(1000 + u64::from(path)), ANSWER), None);
        }
        assert!(p.unanswered(1, at(2000), RTO));
        assert_eq!((p.out(1, false), p.out(1, true)), (3, 1));
        assert_eq!((state(&p, 1), p.deadline(1)), (PathState::Silent, Some(at(2000))));
        assert_eq!(p.check(1, at(2000), RTO), (true, None));
        assert_eq!(p.check(1, at(3999), RTO), (false, None));
        p.arrived(1, 3, at(2500), ANSWER);
        let down = PathChange { path: 1, is_up: false };
        assert_eq!(p.check(1, at(4000), RTO), (true, Some(down)));
        assert_eq!(state(&p, 1), PathState::Down);
        p
    }

    #[test]
    fn a_path_goes_down_and_comes_up() {
        let mut p = one_down();
        assert_eq!(p.deadline(1), Some(at(254_000)));
        let up = PathChange { path: 1, is_up: true };
        // Whoever hears it: its member goes home.
        assert_eq!(p.arrived(2, 1, at(100_000), ANSWER), Some(up));
        assert_eq!((p.out(1, false), p.deadline(1), state(&p, 1)), (1, None, PathState::Up));
        let told = p.describe(1).unwrap();
        assert_eq!((told.taken, told.changes, told.changed), (1, 2, Some(at(100_000))));
    }

    /// The end of a message was lost: the path is asked at once, and answers.
    #[test]
    fn a_path_that_answers_at_once_has_not_been_down() {
        let mut p = paths();
        assert!(p.unanswered(1, at(2000), RTO));
        assert_eq!(p.arrived(1, 1, at(2000), ANSWER), None);
        assert_eq!(state(&p, 1), PathState::Silent, "an answer to what was sent before");
        assert_eq!(p.check(1, at(2000), RTO), (true, None));
        assert_eq!(p.arrived(1, 1, at(2100), ANSWER), None);
        assert_eq!((p.out(1, false), state(&p, 1)), (1, PathState::Up));
    }

    #[test]
    fn a_path_that_answers_others_is_kept() {
        let mut p = paths();
        p.arrived(0, 1, at(1500), ANSWER);
        assert!(!p.unanswered(1, at(2000), RTO));
        assert!(p.unanswered(1, at(3500), RTO));
    }

    /// Without a sign of life from the peer, nothing says that it is the path; and nobody leaves the last one.
    #[test]
    fn all_are_silent() {
        let mut p = paths();
        for round in 1..4 {
            assert!(p.unanswered(1, at(2000 * round), RTO));
        }
        assert!(!p.unanswered(1, at(8000), RTO));
        let last = p.out(1, false);
        for number in 0..4 {
            for ms in (0..15_000).step_by(10) {
                assert_eq!(p.check(number, at(10_000 + ms * 1000), RTO).1, None);
            }
            assert_eq!(state(&p, number.into()), PathState::Silent);
        }
        assert_eq!(p.out(1, false), last);
        // Whoever is not answered again asks by all of them at once.
        assert!((0..4).all(|number| p.deadline(number) > Some(at(15_000_000))));
        assert!(!p.unanswered(1, at(25_000_000), RTO));
        assert!((0..4).all(|number| p.check(number, at(25_000_000), RTO) == (true, None)));
        // One comes back: its member goes home, and the others follow when they are not answered again.
        assert_eq!(p.arrived(2, 2, at(25_001_000), ANSWER), None);
        // That the others were not answered before says nothing of them.
        assert!((0..4).all(|number| p.check(number, at(40_000_000), RTO).1.is_none()));
        assert!(p.unanswered(1, at(40_100_000), RTO));
        assert_eq!(p.out(1, false), 2);
    }

    #[test]
    fn checks_come_more_and_more_rarely() {
        let mut p = one_down();
        let mut times = Vec::new();
        for _ in 0..8 {
            let next = p.deadline(1).unwrap();
            times.push(next.as_nanos() / 1_000_000);
            assert_eq!(p.check(1, next, RTO), (true, None));
        }
        assert_eq!(times, [254, 754, 1754, 3754, 7754, 12_754, 17_754, 22_754]);
        // A path that flaps is not trusted sooner.
        p.arrived(1, 1, at(23_000_000), ANSWER);
        assert!(p.unanswered(1, at(24_000_000), RTO));
        p.check(1, at(24_000_000), RTO);
        p.check(1, at(24_002_000), RTO);
        assert_eq!(p.deadline(1), Some(at(29_002_000)));
        // One that has been up for long is.
        p.arrived(1, 1, at(30_000_000), ANSWER);
        assert!(p.unanswered(1, at(36_000_000), RTO));
        p.check(1, at(36_000_000), RTO);
        p.check(1, at(36_002_000), RTO);
        assert_eq!(p.deadline(1), Some(at(36_252_000)));
    }

    /// Answers go where the newest request came from, and those to checks there as well.
    #[test]
    fn answers_follow_requests() {
        let mut p = paths();
        let request = Arrivals { requests: true, ..Arrivals::default() };
        let check = Arrivals { checks: true, ..Arrivals::default() };
        p.arrived(2, 3, at(1), request);
        assert_eq!((p.out(2, true), p.out(2, false), p.take_second_way(2)), (3, 2, None));
        p.arrived(2, 2, at(2), check);
        assert_eq!((p.out(2, true), p.take_second_way(2), p.take_second_way(2)), (3, Some(2), None));
        p.arrived(2, 3, at(3), check);
        assert_eq!(p.take_second_way(2), None, "that is where it goes anyway");
    }
}
