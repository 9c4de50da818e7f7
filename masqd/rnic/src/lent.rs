//! A rate that several engines share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use masq_driver::Rate;

use crate::bucket::TokenBucket;
use crate::transport::{TRAIN, Time};

/// The rate of a class: an engine's own bucket, or tokens that it borrows from one that all engines of the RNIC share.
#[derive(Debug)]
pub enum ClassBucket {
    /// There is one engine.
    Own(TokenBucket),
    /// There are several.
    Lent(Borrowed),
}

/// What an engine has borrowed.
#[derive(Debug)]
pub struct Borrowed {
    lender: Arc<Lender>,
    /// How many share it.
    engines: u64,
    /// Bytes that it may send.
    level_bytes: u64,
}

/// A bucket without a lock, from which engines borrow in quanta.
///
/// It counts the moment at which it is full again, and none is earlier than "full for long". Over any time `t`, at most `rate · t + burst` bytes are lent; what an engine has borrowed
/// and not sent yet is at most a quantum. So all together send at most `rate · t + burst + engines · quantum` bytes, where a
/// [quantum](Borrowed::quantum) is at most half of the burst divided by the engines, or 8 KiB where that is less.
#[derive(Debug, Default)]
pub struct Lender {
    /// When it is empty and as much has come in as has been lent: in sixteenths of nanoseconds.
    lent_until: AtomicU64,
    /// 0: it lends nothing, as there is no limit.
    bits_per_sec: AtomicU64,
    burst_bytes: AtomicU64,
}

/// Units of a nanosecond.
const UNITS: u128 = 16;
/// Bytes times this, divided by bits per second, are units.
const UNITS_BITS: u128 = 8 * 1_000_000_000 * UNITS;
/// Most bytes that are borrowed at once.
const MAX_QUANTUM: u64 = 64 << 10;
/// More than a packet has.
const MIN_QUANTUM: u64 = 8 << 10;

impl Lender {
    /// Lends at this rate from now on. If there was no limit, it begins with a full burst.
    pub fn set_rate(&self, rate: Option<Rate>) {
        let (bits, burst) = rate.map_or((0, 0), |r| (r.bits_per_sec, r.burst_bytes));
        if self.bits_per_sec.load(Ordering::Relaxed) == 0 {
            self.lent_until.store(0, Ordering::Relaxed);
        }
        self.burst_bytes.store(burst, Ordering::Relaxed);
        self.bits_per_sec.store(bits, Ordering::Relaxed);
    }

    fn rate(&self) -> Rate {
        Rate {
            bits_per_sec: self.bits_per_sec.load(Ordering::Relaxed).max(1),
            burst_bytes: self.burst_bytes.load(Ordering::Relaxed),
        }
    }

    /// Takes up to `wanted` bytes; returns how many.
    fn take(&self, now: Time, wanted: u64) -> u64 {
        let rate = self.rate();
        let now = units(now);
        let mut until = self.lent_until.load(Ordering::Relaxed);
        loop {
            let start = start(until, now, rate);
            let bytes = (now.saturating_sub(start) * u128::from(rate.bits_per_sec) / UNITS_BITS)
                .min(wanted.into()) as u64;
            if bytes == 0 {
                return 0;
            }
            let next = u64::try_from(start + time_of(bytes, rate)).unwrap_or(u64::MAX);
            // Only the sum counts, which one word holds.
            match self.lent_until.compare_exchange_weak(until, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return bytes,
                Err(other) => until = other,
            }
        }
    }

    /// When so many bytes are there, or as many as fit.
    fn when(&self, now: Time, bytes: u64) -> Time {
        let rate = self.rate();
        let start = start(self.lent_until.load(Ordering::Relaxed), units(now), rate);
        let then = (start + time_of(bytes.min(rate.burst_bytes), rate)).div_ceil(UNITS);
        Time::from_nanos(u64::try_from(then).unwrap_or(u64::MAX)).max(now)
    }
}

fn units(time: Time) -> u128 {
    u128::from(time.as_nanos()) * UNITS
}

/// Since when tokens have come in that have not been lent.
fn start(lent_until: u64, now: u128, rate: Rate) -> u128 {
    u128::from(lent_until).max(now.saturating_sub(time_of(rate.burst_bytes, rate)))
}

/// How long it takes until so many bytes come in.
fn time_of(bytes: u64, rate: Rate) -> u128 {
    (u128::from(bytes) * UNITS_BITS).div_ceil(u128::from(rate.bits_per_sec.max(1)))
}

impl Borrowed {
    /// Nothing yet.
    pub fn new(lender: Arc<Lender>, engines: usize) -> Self {
        Self { lender, engines: engines.max(1) as u64, level_bytes: 0 }
    }

    /// Bytes that are borrowed at most.
    fn quantum(&self) -> u64 {
        let burst = self.lender.burst_bytes.load(Ordering::Relaxed);
        (burst / 2 / self.engines).clamp(MIN_QUANTUM, MAX_QUANTUM)
    }

    fn fill(&mut self, now: Time) {
        let quantum = self.quantum();
        if self.level_bytes < quantum {
            self.level_bytes += self.lender.take(now, quantum - self.level_bytes);
        }
    }

    fn charge(&mut self, now: Time, bytes: u64) {
        if bytes > self.level_bytes {
            self.lender.take(now, bytes - self.level_bytes);
        }
        self.level_bytes = self.level_bytes.saturating_sub(bytes);
    }

    fn worth_trying(&self, now: Time, bytes: u64) -> Time {
        let rate = self.lender.rate();
        let worth = u128::from(rate.bits_per_sec) * TRAIN.as_nanos() / (8 * 1_000_000_000);
        let worth = u64::try_from(worth).unwrap_or(u64::MAX).min(self.quantum());
        let missing = worth.max(bytes).saturating_sub(self.level_bytes);
        // Others may be quicker, and then it is tried again: not at once.
        self.lender.when(now, missing).max(now.plus(Duration::from_micros(1)))
    }
}

impl ClassBucket {
    /// Bytes that may be sent now.
    pub fn available(&mut self, now: Time) -> u64 {
        match self {
            ClassBucket::Own(bucket) => bucket.available(now),
            ClassBucket::Lent(borrowed) => {
                borrowed.fill(now);
                borrowed.level_bytes
            }
        }
    }

    /// `bytes` are sent in any case.
    pub fn charge(&mut self, now: Time, bytes: u64) {
        match self {
            ClassBucket::Own(bucket) => bucket.charge(now, bytes),
            ClassBucket::Lent(borrowed) => borrowed.charge(now, bytes),
        }
    }

    /// When it is worth to try again for who has not got `bytes`.
    pub fn worth_trying(&self, now: Time, bytes: u64) -> Time {
        match self {
            ClassBucket::Own(bucket) => bucket.worth_trying(bytes),
            ClassBucket::Lent(borrowed) => borrowed.worth_trying(now, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn lender(rate: Rate) -> Arc<Lender> {
        let lender = Arc::<Lender>::default();
        lender.set_rate(Some(rate));
        lender
    }

    #[test]
    fn lends_a_burst_and_then_the_rate() {
        let l = lender(Rate { bits_per_sec: 8_000_000, burst_bytes: 20_000 });
        let now = 1_000_000_000;
        assert_eq!(l.take(at(now), 30_000), 20_000);
        assert_eq!(l.take(at(now), 1), 0);
        // A byte a microsecond.
        assert_eq!(l.when(at(now), 5), at(now + 5_000));
        assert_eq!((l.take(at(now + 4_999), 30), l.take(at(now + 5_000), 30)), (4, 1));
        assert_eq!(l.take(at(10 * now), u64::MAX), 20_000, "no more than the burst comes in");
        l.set_rate(Some(Rate { bits_per_sec: 16_000_000, burst_bytes: 20_000 }));
        assert_eq!(l.take(at(10 * now), 1), 0, "another rate is no new burst");
    }

    proptest! {
        /// However many engines ask in whatever order: over each window no more than the rate, the burst and their quanta; and who asks when it is worth
        /// it gets the rate.
        #[test]
        fn all_engines_together_keep_the_rate(
            bits_per_sec in 1_000_000u64..100_000_000_000,
            burst_bytes in Rate::MIN_BURST_BYTES..4 << 20,
            engines in 1usize..5,
            steps in prop::collection::vec((0usize..5, 0u64..300_000, 64u64..4300), 1..200),
        ) {
            let rate = Rate { bits_per_sec, burst_bytes };
            let lender = lender(rate);
            let mut buckets: Vec<_> = (0..engines)
                .map(|_| ClassBucket::Lent(Borrowed::new(lender.clone(), engines)))
                .collect();
            let quantum = Borrowed::new(lender, engines).quantum();
            let mut now = 1_000_000_000u64;
            let mut sent: Vec<(u64, u64)> = Vec::new();
            for (engine, pause, bytes) in steps {
                now += pause;
                let bucket = &mut buckets[engine % engines];
                if bucket.available(at(now)) >= bytes {
                    bucket.charge(at(now), bytes);
                    sent.push((now, bytes));
                } else {
                    let then = bucket.worth_trying(at(now), bytes);
                    prop_assert!(then > at(now));
                    if engines == 1 {
                        prop_assert!(bucket.available(then) >= bytes, "worth it");
                    }
                }
            }
            for first in 0..sent.len() {
                let mut sum = 0u128;
                for (when, bytes) in &sent[first..] {
                    sum += u128::from(*bytes);
                    let window = u128::from(when - sent[first].0) * u128::from(bits_per_sec) / 8_000_000_000;
                    let slack = u128::from(burst_bytes) + engines as u128 * u128::from(quantum) + 1;
                    prop_assert!(sum <= window + slack, "{} > {} + {}", sum, window, slack);
                }
            }
        }
    }
}
