//! Who runs next, and who runs later.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use masq_driver::{Limits, Rate};

use crate::bucket::TokenBucket;
use crate::lent::{Borrowed, ClassBucket, Lender};
use crate::qp::QpKey;
use crate::shaping::{Gate, Shaping};
use crate::transport::Time;

/// How many classes there are.
pub const CLASSES: usize = Limits::CLASSES as usize;

/// What all engines of an RNIC share of their classes' rates.
pub type Lenders = [Arc<Lender>; CLASSES];

/// Who has something to do, and when.
#[derive(Debug, Default)]
pub struct Schedule {
    /// vNICs with something to do: each has its turn, in which its queue pairs have theirs; a higher class before
    /// a lower one.
    pub classes: [Class; CLASSES],
    /// With several engines: who lends them what their classes may send, and how many they are.
    pub lenders: Option<(Lenders, usize)>,
    /// vNICs that have used up their rate, by the moment at which they have their turn again.
    pub waiting: Timers<usize>,
    /// Queue pairs that were noted to have something to do since the last turn of all.
    pub errands: Vec<QpKey>,
    /// Queue pairs that wait until the sockets take more.
    pub parked: Vec<QpKey>,
    /// Queue pairs whose doorbell was seen; empty between scans.
    pub posted: Vec<QpKey>,
    /// Queue pairs that wait for a moment.
    pub timers: Timers<QpKey>,
    /// vNICs with datagrams that wait for their peers to become known.
    pub unanswered: Timers<usize>,
}

/// A class of vNICs.
#[derive(Debug, Default)]
pub struct Class {
    /// Those with something to do, except who waits for its own rate.
    pub ready: VecDeque<usize>,
    /// What they may send together.
    pub bucket: Option<ClassBucket>,
    /// They have used it up until then.
    pub blocked_until: Option<Time>,
}

impl Schedule {
    /// What the vNICs of a class may send together from now on, on all engines: each of them is told.
    pub fn set_class_rate(&mut self, now: Time, number: usize, rate: Option<Rate>) {
        let lender = self.lenders.as_ref().and_then(|(all, engines)| Some((all.get(number)?, *engines)));
        let Some(class) = self.classes.get_mut(number) else { return };
        class.blocked_until = None;
        match (lender, &mut class.bucket, rate) {
            (Some((lender, engines)), bucket, rate) => {
                lender.set_rate(rate);
                *bucket = rate.map(|_| ClassBucket::Lent(Borrowed::new(lender.clone(), engines)));
            }
            (None, Some(ClassBucket::Own(bucket)), Some(rate)) => bucket.set_rate(now, rate),
            (None, bucket, rate) => *bucket = rate.map(|r| ClassBucket::Own(TokenBucket::new(r, now))),
        }
    }

    /// Puts a vNIC at the end of its class's list.
    pub fn enqueue(&mut self, class: usize, vnic: usize) {
        if let Some(class) = self.classes.get_mut(class) {
            class.ready.push_back(vnic);
        }
    }

    /// Takes a vNIC out of its class's list.
    pub fn dequeue(&mut self, vnic: usize) {
        for class in &mut self.classes {
            class.ready.retain(|v| *v != vnic);
        }
    }

    /// Whether somebody's turn has come.
    pub fn has_ready(&self) -> bool {
        let may_run = |c: &Class| c.blocked_until.is_none() && !c.ready.is_empty();
        !self.errands.is_empty() || self.classes.iter().any(may_run)
    }

    /// Where what a vNIC sends asks for leave.
    pub fn gate<'a>(&'a mut self, shaping: &'a mut Shaping, closed: bool) -> Gate<'a> {
        let class = self.classes.get_mut(shaping.class);
        Gate { vnic: shaping.bucket.as_mut(), class: class.and_then(|c| c.bucket.as_mut()), closed }
    }

    /// When something that waits for a rate has its turn.
    pub fn next_leave(&self) -> Option<Time> {
        let classes = self.classes.iter().filter(|c| !c.ready.is_empty());
        classes.filter_map(|c| c.blocked_until).chain(self.waiting.next()).min()
    }
}

/// Deadlines of queue pairs or vNICs, soonest first. Each has at most one entry that counts, the one that it
/// remembers itself; others are passed over when their time comes.
#[derive(Debug)]
pub struct Timers<K> {
    heap: BinaryHeap<Reverse<(Time, K)>>,
}

impl<K: Ord> Default for Timers<K> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new() }
    }
}

impl<K: Ord + Copy> Timers<K> {
    /// Deadlines that do not count may be at least as many.
    const STALE: usize = 1024;

    /// Adds a deadline. O(log n).
    pub fn push(&mut self, deadline: Time, key: K) {
        self.heap.push(Reverse((deadline, key)));
    }

    /// Drops the deadlines that do not count, when they have become many for so many `members`: a queue pair leaves one behind whenever an
    /// earlier one takes its place, and its own time may be hours away. O(1) per [`push`](Self::push) on average.
    pub fn prune(&mut self, members: usize, counts: impl Fn(Time, K) -> bool) {
        if self.heap.len() > 2 * members + Self::STALE {
            self.heap.retain(|Reverse((deadline, key))| counts(*deadline, *key));
        }
    }

    /// Takes a deadline that has come.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, K)> {
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
            assert!(timers.heap.len() <= 2 + Timers::<QpKey>::STALE);
        }
        assert_eq!(timers.pop_due(at(7)), Some((at(7), QpKey::for_test(1))));
    }
}
