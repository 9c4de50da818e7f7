//! When to send again, and when to give up (IBTA Vol 1 §9.7.6, §9.9.2.1).
//!
//! Two counters: one for timeouts and for packets known to be lost, one for a peer that had no receive. Any progress
//! fills both up. Two deadlines, of which at most one is set: the local ACK timeout, which runs while something
//! is unanswered, and the wait that an RNR NAK asked for, during which nothing is sent.

use core::time::Duration;

use masq_driver::GroupAttr;

use super::attributes::{Attributes, RNR_RETRY_FOREVER};
use super::time::Time;

#[derive(Debug, Default)]
pub(super) struct Retry {
    left: u8,
    rnr_left: u8,
    ack_deadline: Option<Time>,
    /// Since when the peer has left something unanswered.
    since: Option<Time>,
    rnr_until: Option<Time>,
    /// A loss at the present oldest unacknowledged PSN has been answered by sending again; further signs of the
    /// same loss mean nothing.
    recovering: bool,
    /// How often packets have changed paths since something was acknowledged.
    path_changes: u8,
}

/// Sending again is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

impl Retry {
    /// Begins afresh with full counters and no deadline.
    pub(super) fn start(&mut self, attributes: &Attributes) {
        *self = Self::default();
        self.progress(attributes);
    }

    /// Something was acknowledged: the counters are full again, and there is nothing to wait for.
    pub(super) fn progress(&mut self, attributes: &Attributes) {
        (self.left, self.rnr_left, self.recovering) = (attributes.retry_cnt, attributes.rnr_retry, false);
        self.path_changes = 0;
        self.rnr_until = None;
    }

    /// After progress: the ACK timeout begins anew, if there is more on its way.
    pub(super) fn restart(&mut self, now: Time, timeout: Option<Duration>, outstanding: bool) {
        self.ack_deadline = if outstanding { timeout.map(|t| now.plus(t)) } else { None };
        self.since = outstanding.then_some(now);
    }

    /// A packet was sent.
    pub(super) fn sent(&mut self, now: Time, timeout: Option<Duration>) {
        self.since.get_or_insert(now);
        if self.ack_deadline.is_none() {
            self.ack_deadline = timeout.map(|t| now.plus(t));
        }
    }

    /// A packet is known to be lost. Returns whether to go back now.
    pub(super) fn lost(&mut self) -> Result<bool, Exhausted> {
        if self.recovering || self.is_waiting() {
            return Ok(false);
        }
        self.left = self.left.checked_sub(1).ok_or(Exhausted)?;
        self.recovering = true;
        self.ack_deadline = None;
        Ok(true)
    }

    /// The peer had no receive and asks to wait for `wait`; `counts` says whether that uses up a try. Returns whether to go back, to send
    /// again when the wait is over; a repeated answer to the same packet means nothing.
    pub(super) fn not_ready(&mut self, now: Time, wait: Duration, counts: bool) -> Result<bool, Exhausted> {
        if self.is_waiting() {
            return Ok(false);
        }
        if counts && self.rnr_left != RNR_RETRY_FOREVER {
            self.rnr_left = self.rnr_left.checked_sub(1).ok_or(Exhausted)?;
        }
        self.rnr_until = Some(now.plus(wait));
        (self.ack_deadline, self.since) = (None, None);
        Ok(true)
    }

    /// Time passes. Returns whether the local ACK timeout has expired, and everything is to be sent again.
    pub(super) fn handle_timeout(&mut self, now: Time) -> Result<bool, Exhausted> {
        if self.rnr_until.is_some_and(|t| t <= now) {
            self.rnr_until = None;
        }
        if self.ack_deadline.is_none_or(|t| t > now) {
            return Ok(false);
        }
        self.ack_deadline = None;
        self.recovering = false;
        self.left = self.left.checked_sub(1).ok_or(Exhausted)?;
        Ok(true)
    }

    /// Whether the local ACK timeout has expired, and that has not been dealt with.
    pub(super) fn is_overdue(&self, now: Time) -> bool {
        self.ack_deadline.is_some_and(|t| t <= now)
    }

    /// Since when the peer has left something unanswered: since that was sent, or since the last progress, if that came later.
    pub(super) fn unanswered_since(&self) -> Option<Time> {
        self.since
    }

    /// Whether another path may be of use: not when as many have been tried as there can be, without any progress. Paths that carry no more than small packets,
    /// which is enough to seem alive, must not keep a request from its end.
    pub(super) fn may_change_path(&self) -> bool {
        self.path_changes < GroupAttr::MAX_MEMBERS
    }

    /// Packets take another path from now on, with all tries left there. Returns whether the local ACK timeout has expired, and everything is to be sent again.
    pub(super) fn change_path(
        &mut self,
        now: Time,
        attributes: &Attributes,
        timeout: Option<Duration>,
    ) -> bool {
        let expired = self.is_overdue(now);
        self.path_changes = self.path_changes.saturating_add(1);
        (self.left, self.recovering) = (attributes.retry_cnt, false);
        self.restart(now, timeout, !expired && self.ack_deadline.is_some());
        expired
    }

    /// Whether nothing may be sent, because of an RNR NAK.
    pub(super) fn is_waiting(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// Tries that are left: after timeouts and losses, and after RNR NAKs.
    pub(super) fn left(&self) -> (u8, u8) {
        (self.left, self.rnr_left)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        [self.rnr_until, self.ack_deadline].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Time {
        Time::ZERO.plus(MS * millis as u32)
    }

    fn retry(retry_cnt: u8, rnr_retry: u8) -> (Retry, Attributes) {
        let attributes = Attributes { retry_cnt, rnr_retry, ..Attributes::default() };
        let mut retry = Retry::default();
        retry.start(&attributes);
        (retry, attributes)
    }

    #[test]
    fn timeouts_are_counted_and_progress_forgives() {
        let (mut r, attributes) = retry(2, 0);
        let timeout = |r: &mut Retry, ms| {
            r.sent(at(ms), Some(MS));
            assert_eq!(r.handle_timeout(at(ms)), Ok(false));
            r.handle_timeout(at(ms + 1))
        };
        assert_eq!(timeout(&mut r, 0), Ok(true));
        assert_eq!(timeout(&mut r, 10), Ok(true));
        r.progress(&attributes);
        r.restart(at(20), Some(MS), false);
        assert_eq!(r.deadline(), None);
        assert_eq!(timeout(&mut r, 20), Ok(true));
        assert_eq!(timeout(&mut r, 30), Ok(true));
        assert_eq!(timeout(&mut r, 40), Err(Exhausted));
    }

    #[test]
    fn a_loss_is_answered_once() {
        let (mut r, attributes) = retry(2, 0);
        assert_eq!([r.lost(), r.lost()], [Ok(true), Ok(false)]);
        r.sent(at(0), Some(MS));
        assert_eq!(r.handle_timeout(at(1)), Ok(true));
        assert_eq!(r.lost(), Err(Exhausted), "a timeout makes the next sign of loss count again");
        r.progress(&attributes);
        r.restart(at(2), Some(MS), true);
        assert_eq!(r.deadline(), Some(at(3)));
        assert_eq!((r.lost(), r.deadline()), (Ok(true), None));
    }

    #[test]
    fn waits_for_a_receive() {
        let (mut r, _) = retry(0, 1);
        r.sent(at(0), Some(MS));
        assert_eq!(r.not_ready(at(0), MS * 5, true), Ok(true));
        assert_eq!(r.not_ready(at(1), MS * 5, true), Ok(false));
        assert_eq!((r.deadline(), r.is_waiting(), r.lost()), (Some(at(5)), true, Ok(false)));
        assert_eq!((r.handle_timeout(at(5)), r.is_waiting()), (Ok(false), false));
        assert_eq!(r.not_ready(at(6), MS, true), Err(Exhausted));
        for (rnr_retry, counts) in [(7, true), (0, false)] {
            let (mut r, _) = retry(0, rnr_retry);
            for ms in 0..100 {
                assert_eq!(r.not_ready(at(ms), MS, counts), Ok(true));
                assert_eq!(r.handle_timeout(at(ms + 1)), Ok(false));
            }
        }
    }

    #[test]
    fn no_timeout_means_never() {
        let (mut r, _) = retry(0, 0);
        r.sent(at(0), None);
        assert_eq!(r.deadline(), None);
    }
}
