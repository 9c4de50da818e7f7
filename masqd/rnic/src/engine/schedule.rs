//! Who runs next, and who runs later.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::qp::QpKey;
use crate::transport::Time;

/// Who has something to do, and when.
#[derive(Debug, Default)]
pub struct Schedule {
    /// vNICs with something to do: each has its turn, in which its queue pairs have theirs.
    pub ready: VecDeque<usize>,
    /// Queue pairs that wait until the sockets take more.
    pub parked: Vec<QpKey>,
    /// Queue pairs whose doorbell was seen; empty between scans.
    pub posted: Vec<QpKey>,
    /// Queue pairs that wait for a moment.
    pub timers: Timers,
}

/// Deadlines of queue pairs, soonest first. A queue pair has at most one entry that counts, the one that it
/// remembers itself; others are passed over when their time comes.
#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(Time, QpKey)>>,
}

impl Timers {
    /// Deadlines that do not count may be at least as many.
    const STALE: usize = 1024;

    /// Adds a deadline. O(log n).
    pub fn push(&mut self, deadline: Time, key: QpKey) {
        self.heap.push(Reverse((deadline, key)));
    }

    /// Drops the deadlines that do not count, when they have become many: a queue pair leaves one behind whenever an
    /// earlier one takes its place, and its own time may be hours away. O(1) per [`push`](Self::push) on average.
    pub fn prune(&mut self, queue_pairs: usize, counts: impl Fn(Time, QpKey) -> bool) {
        if self.heap.len() > 2 * queue_pairs + Self::STALE {
            self.heap.retain(|Reverse((deadline, key))| counts(*deadline, *key));
        }
    }

    /// Takes a deadline that has come.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, QpKey)> {
        let Reverse((deadline, _)) = self.heap.peek()?;
        if *deadline > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// The soonest deadline.
    pub fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((deadline, _))| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soonest_first_and_not_before_time() {
        let mut timers = Timers::default();
        let at = Time::from_nanos;
        for (t, q) in [(30, 1), (10, 2), (20, 3)] {
            timers.push(at(t), QpKey::for_test(q));
        }
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.pop_due(at(9)), None);
        assert_eq!(timers.pop_due(at(25)), Some((at(10), QpKey::for_test(2))));
        assert_eq!(timers.pop_due(at(25)), Some((at(20), QpKey::for_test(3))));
        assert_eq!(timers.pop_due(at(25)), None);
    }

    #[test]
    fn deadlines_left_behind_do_not_pile_up() {
        let mut timers = Timers::default();
        let at = Time::from_nanos;
        let counts = |deadline, key| (deadline, key) == (at(7), QpKey::for_test(1));
        timers.push(at(7), QpKey::for_test(1));
        for i in 0..100_000 {
            timers.push(at(1_000_000 + i), QpKey::for_test(1));
            timers.prune(1, counts);
            assert!(timers.heap.len() <= 2 + Timers::STALE);
        }
        assert_eq!(timers.pop_due(at(7)), Some((at(7), QpKey::for_test(1))));
    }
}
