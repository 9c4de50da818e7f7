//! Packets at a rate, in trains.

use core::time::Duration;

use super::{TRAIN, nanos_at};
use crate::transport::time::Time;

/// Ask [`Pacer::admits`] before each packet, tell [`Pacer::sent`] after it.
#[derive(Clone, Debug, Default)]
pub(super) struct Pacer {
    /// When what was sent will have been sent at the rate.
    paid_at: Time,
    /// Something waits until all is paid.
    held: bool,
}

/// Who comes late sends what it has missed, as far as that is not longer ago: threads are not punctual.
const CATCH_UP: Duration = Duration::from_millis(1);

impl Pacer {
    /// Whether the next packet may go now. Who has been refused waits until all that was sent before is paid, so that
    /// trains stay long.
    pub(super) fn admits(&mut self, now: Time) -> bool {
        let until = if self.held { now } else { now.plus(TRAIN) };
        self.held = self.paid_at > now && self.paid_at >= until;
        !self.held
    }

    /// `bytes` are sent.
    pub(super) fn sent(&mut self, now: Time, bytes: u64, rate: u64) {
        let from = self.paid_at.max(now.minus(CATCH_UP));
        let takes = nanos_at(rate, bytes);
        let takes = if takes > TRAIN.as_nanos() as u64 { scattered(from, takes) } else { takes };
        self.paid_at = from.plus(Duration::from_nanos(takes));
    }

    /// When what waits may go.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.held.then_some(self.paid_at)
    }

    /// Time passes: what waits may go, and has no deadline any more.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.held &= self.paid_at > now;
    }
}

/// Between half and one and a half of `takes`, that on average. Flows that each send a packet now and then would go on sending them together,
/// once they have: what looks like a queue to them then is themselves.
fn scattered(from: Time, takes: u64) -> u64 {
    // Fibonacci hashing: moments that lie close together are scattered.
    let hash = from.as_nanos().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    takes / 2 + ((u128::from(takes) * u128::from(hash)) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    /// 1,000 bytes at 80 Mbit/s take 100 µs.
    const RATE: u64 = 80_000_000;

    fn train(p: &mut Pacer, now: Time) -> usize {
        let mut packets = 0;
        while p.admits(now) {
            p.sent(now, 1000, RATE);
            packets += 1;
        }
        packets
    }

    #[test]
    fn trains_are_a_millisecond_long() {
        let mut p = Pacer::default();
        // The first gets what it could have missed, too.
        assert_eq!(train(&mut p, at(10_000)), 20);
        assert_eq!(p.deadline(), Some(at(11_000)));
        assert_eq!(train(&mut p, at(10_999)), 0, "who has been refused waits until all is paid");
        for ms in 11..20 {
            assert_eq!((train(&mut p, at(ms * 1000)), p.deadline()), (10, Some(at((ms + 1) * 1000))));
        }
        // Half a millisecond late: the rate is kept. Very late: no more than is worth catching up.
        assert_eq!((train(&mut p, at(20_500)), p.deadline()), (15, Some(at(21_500))));
        assert_eq!((train(&mut p, at(90_000)), p.deadline()), (20, Some(at(91_000))));
    }

    /// One packet of 4,200 bytes takes 33.6 ms, with half of that more or less.
    #[test]
    fn a_packet_longer_than_a_train_goes_alone() {
        let (mut p, mut now) = (Pacer::default(), at(100_000));
        let mut waits = Vec::new();
        for _ in 0..200 {
            assert!(p.admits(now));
            p.sent(now, 4200, 1_000_000);
            assert!(!p.admits(now));
            let next = p.deadline().unwrap();
            waits.push(next.since(now).as_micros() as u64);
            now = next;
        }
        // A millisecond was caught up with at first.
        assert!(waits.iter().all(|w| (15_800..50_400).contains(w)), "{waits:?}");
        let mean = waits.iter().sum::<u64>() / 200;
        assert!((31_500..35_700).contains(&mean), "{mean}");
        waits.sort_unstable();
        assert!(waits[20] < 23_000 && waits[180] > 44_000, "they are scattered");
    }

    /// A deadline that has passed is none: whoever is refused for another reason must not be woken for this one again and again.
    #[test]
    fn a_deadline_passes() {
        let mut p = Pacer::default();
        train(&mut p, at(10_000));
        p.handle_timeout(at(10_999));
        assert!(p.deadline().is_some());
        p.handle_timeout(at(11_000));
        assert_eq!(p.deadline(), None);
        assert!(p.admits(at(11_000)));
        assert_eq!(p.deadline(), None);
    }
}
