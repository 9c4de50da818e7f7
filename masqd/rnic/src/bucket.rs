//! A token bucket: pure integer arithmetic, with time as an argument.

use std::time::Duration;

use masq_driver::Rate;

use crate::transport::{TRAIN, Time};

/// Tokens are bytes. They come in at a rate and are kept up to a burst; over any time `t`, at most
/// `rate · t + burst` bytes are [charged](TokenBucket::charge) by who asks first how many are [available](TokenBucket::available). Nothing is rounded away: what has come in is counted in units of
/// 1/8,000,000,000 byte, so that a nanosecond at one bit a second is one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate: Rate,
    /// Units that are there.
    level: u128,
    /// When `level` was right.
    at: Time,
}

const UNITS_PER_BYTE: u128 = 8 * 1_000_000_000;

impl TokenBucket {
    /// A full bucket. `rate` has been checked ([`Rate::check`]).
    pub fn new(rate: Rate, now: Time) -> Self {
        Self { rate, level: capacity(rate), at: now }
    }

    /// Goes on at another rate, with the tokens that are there, as far as they fit.
    pub fn set_rate(&mut self, now: Time, rate: Rate) {
        self.refill(now);
        self.rate = rate;
        self.level = self.level.min(capacity(rate));
    }

    /// Bytes that may be sent now.
    pub fn available(&mut self, now: Time) -> u64 {
        self.refill(now);
        // At most the burst.
        (self.level / UNITS_PER_BYTE) as u64
    }

    /// `bytes` are sent. Where that is more than is available, the bucket is empty.
    pub fn charge(&mut self, now: Time, bytes: u64) {
        self.refill(now);
        self.level = self.level.saturating_sub(u128::from(bytes) * UNITS_PER_BYTE);
    }

    /// When it is worth to try again for who has not got `bytes`: they are there then, and a whole [`TRAIN`], as far as half of the burst allows.
    pub fn worth_trying(&self, bytes: u64) -> Time {
        let worth = u128::from(self.rate.bits_per_sec) * TRAIN.as_nanos();
        let wanted = worth.min(capacity(self.rate) / 2).max(u128::from(bytes) * UNITS_PER_BYTE);
        let missing = wanted.min(capacity(self.rate)).saturating_sub(self.level);
        let nanos = missing.div_ceil(u128::from(self.rate.bits_per_sec.max(1)));
        self.at.plus(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    fn refill(&mut self, now: Time) {
        let nanos = now.since(self.at).as_nanos();
        let fresh = nanos.saturating_mul(u128::from(self.rate.bits_per_sec));
        self.level = self.level.saturating_add(fresh).min(capacity(self.rate));
        self.at = self.at.max(now);
    }
}

fn capacity(rate: Rate) -> u128 {
    u128::from(rate.burst_bytes) * UNITS_PER_BYTE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn take(b: &mut TokenBucket, now: Time, bytes: u64) -> bool {
        let there = b.available(now) >= bytes;
        if there {
            b.charge(now, bytes);
        }
        there
    }

    #[test]
    fn fills_to_the_burst_and_no_further() {
        let rate = Rate { bits_per_sec: 8_000_000, burst_bytes: 20_000 };
        let mut b = TokenBucket::new(rate, at(0));
        assert!(!take(&mut b, at(0), 20_001));
        assert!(take(&mut b, at(0), 20_000));
        assert_eq!(b.available(at(0)), 0);
        // A byte a microsecond.
        assert_eq!((b.available(at(999)), b.available(at(1000))), (0, 1));
        assert_eq!(b.available(at(u64::MAX)), 20_000);
        assert_eq!(b.available(at(5)), 20_000, "a clock that goes back brings nothing and takes nothing");
        b.charge(at(u64::MAX), 1 << 40);
        assert_eq!(b.available(at(u64::MAX)), 0);
    }

    #[test]
    fn a_new_rate_keeps_the_tokens() {
        let rate = |bits_per_sec, burst_bytes| Rate { bits_per_sec, burst_bytes };
        let mut b = TokenBucket::new(rate(8_000_000, 20_000), at(0));
        assert!(take(&mut b, at(0), 20_000));
        // What came in before came at the old rate.
        b.set_rate(at(1_000_000), rate(8_000_000_000, 1 << 20));
        assert_eq!(b.available(at(1_000_000)), 1000);
        assert_eq!(b.available(at(1_001_000)), 2000);
        assert_eq!(b.available(at(1_000_000_000)), 1 << 20);
        b.set_rate(at(1_000_000_000), rate(64_000, 16_384));
        assert_eq!(b.available(at(1_000_000_000)), 16_384);
    }

    #[test]
    fn who_waits_gets_a_millisecond_worth() {
        let rate = Rate::with_default_burst(5_000_000_000);
        let mut b = TokenBucket::new(rate, at(0));
        b.charge(at(0), u64::MAX >> 1);
        assert_eq!(b.worth_trying(100), at(1_000_000));
        assert_eq!(b.worth_trying(1_250_000), at(2_000_000), "or what is needed, when that is more");
        let slow = Rate { bits_per_sec: 64_000, burst_bytes: 16_384 };
        let mut b = TokenBucket::new(slow, at(0));
        b.charge(at(0), 16_384);
        assert_eq!(b.worth_trying(4200), at(525_000_000));
        assert_eq!(b.worth_trying(u64::MAX), at(2_048_000_000), "never more than fits");
        assert!(!take(&mut b, at(524_999_999), 4200));
        assert!(take(&mut b, at(525_000_000), 4200));
    }

    fn rates() -> impl Strategy<Value = Rate> {
        let bits = prop_oneof![
            Rate::MIN_BITS_PER_SEC..1_000_000,
            1_000_000u64..10_000_000_000,
            Just(Rate::MAX_BITS_PER_SEC),
            Just(333_333_333),
        ];
        (bits, Rate::MIN_BURST_BYTES..4 << 20)
            .prop_map(|(bits_per_sec, burst_bytes)| Rate { bits_per_sec, burst_bytes })
    }

    proptest! {
        /// Beside a model that knows every moment and every amount: over each window no more than `rate · t + burst`.
        #[test]
        fn no_window_has_more_than_rate_and_burst(
            rate in rates(),
            steps in prop::collection::vec((0u64..3_000_000, 1u64..200_000), 1..80),
        ) {
            let mut b = TokenBucket::new(rate, at(0));
            let mut now = 0;
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (pause, bytes) in steps {
                now += pause;
                if take(&mut b, at(now), bytes) {
                    taken.push((now, bytes));
                }
                let level = b.available(at(now));
                prop_assert!(level <= rate.burst_bytes);
            }
            for first in 0..taken.len() {
                let mut sum = 0u128;
                for (when, bytes) in &taken[first..] {
                    sum += u128::from(*bytes);
                    let window = u128::from(when - taken[first].0) * u128::from(rate.bits_per_sec);
                    prop_assert!(sum * UNITS_PER_BYTE <= window + capacity(rate));
                }
            }
        }

        /// Who always has packets to send, and tries again when it is worth, is served at the rate, up to one wait.
        #[test]
        fn a_backlogged_sender_gets_its_rate(rate in rates(), packet in 64u64..4300) {
            let mut b = TokenBucket::new(rate, at(0));
            let (mut now, mut sent) = (0u64, 0u128);
            let mut waits = 0;
            while waits < 50 {
                // A turn is bounded, however much may be sent.
                let most = b.available(at(now)) / packet;
                prop_assert!(take(&mut b, at(now), most * packet));
                sent += u128::from(most * packet);
                prop_assert!(!take(&mut b, at(now), packet));
                let next = b.worth_trying(packet).as_nanos();
                prop_assert!(next > now, "no spinning");
                now = next;
                waits += 1;
            }
            let due = u128::from(now) * u128::from(rate.bits_per_sec) / UNITS_PER_BYTE;
            let wait = u128::from(rate.bits_per_sec) / 8000 + u128::from(packet);
            prop_assert!(sent + wait >= due, "{sent} of {due}");
            prop_assert!(sent <= due + u128::from(rate.burst_bytes));
        }

        /// However finely time is cut, the same comes in.
        #[test]
        fn no_drift(rate in rates(), cuts in prop::collection::vec(1u64..50_000, 1..300)) {
            let (mut fine, mut coarse) = (TokenBucket::new(rate, at(0)), TokenBucket::new(rate, at(0)));
            fine.charge(at(0), rate.burst_bytes);
            coarse.charge(at(0), rate.burst_bytes);
            let mut now = 0;
            for cut in cuts {
                now += cut;
                fine.available(at(now));
            }
            prop_assert_eq!(fine.available(at(now)), coarse.available(at(now)));
            prop_assert_eq!(fine, coarse);
        }
    }
}
