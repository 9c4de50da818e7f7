//! The receives of a group whose messages come by several paths.
//!
//! ```text
//!  receive queue   │ 4 │ 5 │ 6 │ 7 │ 8 │ …
//!  assigned         next ─┘   └─ data was steered into 6, so 5 has been taken, too
//! ```
//!
//! A receive belongs to the message that takes the receive of its number, in the order of the queue, as without several paths. Data can reach it before that message's
//! end does, and before the messages ahead of it. Then it is taken out of the queue and kept here, with all before it, until its message ends.

use std::collections::VecDeque;
use std::ops::Range;

use crate::transport::{Cause, Failure, MemoryFault, RecvWork, Status, SteerFault, total_bytes};

/// How many receives beyond the next one may be named: no sender of ours is half as far ahead, and what a peer makes this side keep, and takes from the others that
/// use a shared queue, is bounded.
pub const MOST_AHEAD: u32 = 64;

/// Receives that have been taken out of their queue, and whose messages have not ended.
#[derive(Debug, Default)]
pub struct Assigned {
    /// Number of the receive that the next message takes, counted from 0 since the queue pair was reset.
    next: u32,
    /// From that one on.
    kept: VecDeque<RecvWork>,
    /// They are being flushed: no data comes any more.
    closed: bool,
}

impl Assigned {
    /// Whether the receive is at hand; if not, and it may be named, the next one is to be [added](Self::push).
    pub fn has(&self, number: u32) -> Result<bool, SteerFault> {
        let ahead = number.wrapping_sub(self.next);
        if self.closed || ahead >= MOST_AHEAD {
            return Err(SteerFault::Invalid(
                "data is steered to a receive that has been completed, or is far ahead",
            ));
        }
        Ok((ahead as usize) < self.kept.len())
    }

    /// How many receives are at hand.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Adds the next receive of the queue.
    pub fn push(&mut self, work: RecvWork) {
        self.kept.push_back(work);
    }

    /// A receive that is at hand.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut RecvWork> {
        let at = number.wrapping_sub(self.next) as usize;
        if self.closed { None } else { self.kept.get_mut(at) }
    }

    /// Takes bytes of a receive that is at hand. If it has no room for them, it fails.
    pub fn claim(&mut self, number: u32, bytes: Range<u64>) -> Result<(), SteerFault> {
        let Some(recv) = self.get_mut(number) else { return Err(SteerFault::NotReady) };
        if let Some(status) = recv.defect {
            return recv.fail(Failure::new(status, Cause::MalformedWork));
        }
        if bytes.end > total_bytes(&recv.sges) {
            return recv.fail(Failure::new(Status::LocLenErr, Cause::ReceiveTooShort));
        }
        match recv.placed.claim(bytes) {
            true => Ok(()),
            false => Err(SteerFault::Invalid("data is steered to a place twice, or to too many places")),
        }
    }

    /// Takes the receive of the next message, if it is at hand. Returns what it takes the place of.
    pub fn take(&mut self, work: &mut RecvWork) -> Option<RecvWork> {
        self.kept.pop_front().map(|kept| std::mem::replace(work, kept))
    }

    /// The next message has its receive.
    pub fn passed(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    /// Takes the next receive, to flush it, likewise.
    pub fn take_to_flush(&mut self, work: &mut RecvWork) -> Option<RecvWork> {
        self.closed = true;
        self.take(work)
    }
}

impl RecvWork {
    /// What comes of `len` bytes that were to be placed into it.
    pub fn placed_by(&mut self, len: u64, outcome: Result<(), MemoryFault>) -> Result<(), SteerFault> {
        match outcome {
            Ok(()) => {
                self.placed.came(len);
                Ok(())
            }
            Err(fault) => self.fail(Failure::local_protection(fault)),
        }
    }

    fn fail(&mut self, failure: Failure) -> Result<(), SteerFault> {
        self.failure = Some(failure);
        Err(SteerFault::Receive(failure))
    }
}

#[cfg(test)]
mod tests {
    use masq_types::Lkey;

    use super::*;
    use crate::transport::Sge;

    fn recv(wr_id: u64, length: u32) -> RecvWork {
        RecvWork { wr_id, sges: vec![Sge { addr: 0, length, lkey: Lkey(1) }], ..RecvWork::default() }
    }

    /// Makes the receive at hand, as the engine does.
    fn assign(assigned: &mut Assigned, number: u32, posted: &mut u64) -> Result<(), SteerFault> {
        while !assigned.has(number)? {
            assigned.push(recv(*posted, 100));
            *posted += 1;
        }
        Ok(())
    }

    #[test]
    fn receives_are_assigned_and_taken_in_order() {
        let (mut assigned, mut posted, mut work) = (Assigned::default(), 0, RecvWork::default());
        assigned.next = u32::MAX;
        assign(&mut assigned, 1, &mut posted).unwrap();
        assert_eq!((posted, assigned.get_mut(1).unwrap().wr_id), (3, 2));
        assert_eq!(assigned.has(0), Ok(true));
        for wr_id in 0..3 {
            assert!(assigned.take(&mut work).is_some());
            assigned.passed();
            assert_eq!(work.wr_id, wr_id);
        }
        assert!(assigned.take(&mut work).is_none());
        assert!(matches!(assigned.has(1), Err(SteerFault::Invalid(_))), "it has been completed");
        assert_eq!(assigned.has(2), Ok(false));
    }

    #[test]
    fn how_far_ahead_is_bounded() {
        let (mut assigned, mut posted) = (Assigned::default(), 0);
        assert!(matches!(assigned.has(MOST_AHEAD), Err(SteerFault::Invalid(_))));
        assign(&mut assigned, MOST_AHEAD - 1, &mut posted).unwrap();
        assert_eq!(posted, u64::from(MOST_AHEAD));
    }

    #[test]
    fn what_does_not_fit_fails_its_receive_alone() {
        let (mut assigned, mut posted, mut work) = (Assigned::default(), 0, RecvWork::default());
        assign(&mut assigned, 1, &mut posted).unwrap();
        assert_eq!(assigned.claim(1, 90..100), Ok(()));
        assert!(matches!(assigned.claim(1, 99..100), Err(SteerFault::Invalid(_))));
        assert_eq!(assigned.claim(0, 99..100), Ok(()), "another's");
        let too_short = Failure::new(Status::LocLenErr, Cause::ReceiveTooShort);
        assert_eq!(assigned.claim(1, 0..101), Err(SteerFault::Receive(too_short)));
        let mut flushed = Vec::new();
        while assigned.take_to_flush(&mut work).is_some() {
            flushed.push(work.failure);
        }
        assert_eq!(flushed, [None, Some(too_short)]);
        assert!(assigned.has(0).is_err() && assigned.get_mut(0).is_none(), "closed");
    }

    #[test]
    fn what_is_placed_adds_up() {
        let mut work = recv(1, 100);
        assert!(work.placed.claim(0..90));
        work.placed_by(60, Ok(())).unwrap();
        assert!(!work.placed.is_all_before(90));
        work.placed_by(30, Ok(())).unwrap();
        let failure = Failure::local_protection(MemoryFault::NotPermitted);
        assert_eq!(work.placed_by(1, Err(MemoryFault::NotPermitted)), Err(SteerFault::Receive(failure)));
        assert!(work.placed.is_all_before(90));
        assert_eq!(work.failure, Some(failure));
    }
}
