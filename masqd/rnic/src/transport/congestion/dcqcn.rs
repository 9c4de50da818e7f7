//! DCQCN (Zhu et al., SIGCOMM'15), the reaction point: a rate that CNPs cut and time and bytes raise.
//!
//! A flow is unlimited until its first CNP; then it goes on from the rate at which it has been sending, which stands for the line rate of the paper. After a
//! second without CNP it is unlimited again.
//!
//! What timers do in the paper is made up for when the flow is looked at, so that idle flows cost nothing.

use core::time::Duration;

use super::{CongestionControl, MIN_RATE, rate_of};
use crate::transport::rtt::Sample;
use crate::transport::time::Time;

/// `alpha` in units of this; the paper's g is 1/256.
const ONE: u32 = 1 << 16;
const G_SHIFT: u32 = 8;
/// Without a CNP for so long, alpha goes down (the paper's K).
const ALPHA_PERIOD: Duration = Duration::from_micros(55);
/// CNPs that come sooner after one that has cut the rate do not cut it again (the paper's N); sooner than a round trip, too, where that is
/// known: with queues of milliseconds the marks that come meanwhile were made before.
const CUT_PERIOD: Duration = Duration::from_micros(50);
/// The rate is raised after so long without a CNP. The paper has 55 µs for a fabric of 40 Gbit/s and round trips of microseconds;
/// this is the timer of QCN (IEEE 802.1Qau), for links that are slower by orders of magnitude, too.
const RAISE_PERIOD: Duration = Duration::from_micros(1500);
/// And after so many bytes (the paper's B).
const RAISE_BYTES: u64 = 10_000_000;
/// Raises that halve the way to the rate before the cut (the paper's F).
const FAST_RECOVERY: u32 = 5;
/// What the rate that is aimed at grows by in each further raise, in bits per second (R_AI; mlx5's default)...
const ADDITIVE_RATE: u64 = 5_000_000;
/// ... no more than this part of itself, so that many flows on a slow link do not overrun it,
const ADDITIVE_SHARE: u64 = 32;
/// and when both time and bytes have passed that often (R_HAI; mlx5's default).
const HYPER_RATE: u64 = 50_000_000;
/// Without a CNP for so long, nothing is limited.
const FORGET: Duration = Duration::from_secs(1);
/// How long bytes are counted for the rate of sending: over bursts.
const MEASURE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, Default)]
pub(super) struct Dcqcn {
    /// The rate (RC), in bits per second; 0 for none.
    rate: u64,
    /// The rate that is aimed at (RT).
    target: u64,
    /// How congested the way is, of [`ONE`].
    alpha: u32,
    last_cnp: Time,
    last_cut: Time,
    last_alpha: Time,
    last_raise: Time,
    /// Bytes since the last raise for their sake.
    bytes: u64,
    raises_by_time: u32,
    raises_by_bytes: u32,
    round_trip: Duration,
    /// What has been sent since `measured_from`.
    measured_bytes: u64,
    measured_from: Time,
    /// Bits per second, over about the last ten milliseconds.
    measured: u64,
}

impl Dcqcn {
    /// Makes up for the time that has passed.
    fn pass(&mut self, now: Time) {
        if self.rate == 0 {
            return;
        }
        if now.since(self.last_cnp) >= FORGET {
            self.rate = 0;
            return;
        }
        let (alpha_period, raise_period) = self.periods();
        while now.since(self.last_alpha) >= alpha_period && self.alpha > 0 {
            self.last_alpha = self.last_alpha.plus(alpha_period);
            self.alpha -= (self.alpha >> G_SHIFT).max(1);
        }
        while now.since(self.last_raise) >= raise_period {
            self.last_raise = self.last_raise.plus(raise_period);
            self.raises_by_time += 1;
            self.raise();
        }
    }

    /// The paper's, where round trips are as short as in the paper; never so short that a rate is back before its cut can show.
    fn periods(&self) -> (Duration, Duration) {
        (ALPHA_PERIOD.max(self.round_trip / 16), RAISE_PERIOD.max(self.round_trip))
    }

    fn raise(&mut self) {
        let (by_time, by_bytes) = (self.raises_by_time, self.raises_by_bytes);
        if by_time.max(by_bytes) > FAST_RECOVERY {
            let step = match by_time.min(by_bytes).checked_sub(FAST_RECOVERY) {
                Some(beyond) if beyond > 0 => HYPER_RATE.saturating_mul(beyond.into()),
                _ => ADDITIVE_RATE.min(self.target / ADDITIVE_SHARE),
            };
            self.target = self.target.saturating_add(step);
        }
        self.rate = (self.rate / 2).saturating_add(self.target / 2);
    }

    fn measure(&mut self, now: Time) {
        let over = now.since(self.measured_from);
        if over >= MEASURE {
            self.measured = rate_of(self.measured_bytes, over);
            (self.measured_bytes, self.measured_from) = (0, now);
        }
    }

    fn cut(&mut self, now: Time) {
        self.target = self.rate;
        let part = u64::from(2 * ONE - self.alpha);
        self.rate = ((u128::from(self.rate) * u128::from(part)) >> 17) as u64;
        self.rate = self.rate.max(MIN_RATE);
        self.last_cut = now;
        self.note(now);
    }

    /// There is congestion now: alpha goes up, and what raises the rate begins anew.
    fn note(&mut self, now: Time) {
        self.alpha += (ONE - self.alpha) >> G_SHIFT;
        (self.last_cnp, self.last_alpha, self.last_raise) = (now, now, now);
        (self.bytes, self.raises_by_time, self.raises_by_bytes) = (0, 0, 0);
    }
}

impl CongestionControl for Dcqcn {
    fn on_sent(&mut self, now: Time, bytes: u64) {
        self.measure(now);
        self.measured_bytes += bytes;
        if self.rate == 0 {
            return;
        }
        self.bytes += bytes;
        if self.bytes >= RAISE_BYTES {
            self.bytes -= RAISE_BYTES;
            self.raises_by_bytes += 1;
            self.raise();
        }
    }

    fn on_ack(&mut self, _now: Time, sample: &Sample) {
        let first = self.round_trip.is_zero();
        self.round_trip =
            if first { sample.round_trip } else { (self.round_trip * 7 + sample.round_trip) / 8 };
    }

    fn on_cnp(&mut self, now: Time) -> bool {
        self.pass(now);
        if self.rate == 0 {
            self.measure(now);
            let so_far = rate_of(self.measured_bytes, now.since(self.measured_from).max(MEASURE));
            let sending = self.measured.max(so_far);
            if sending == 0 {
                return false;
            }
            (self.rate, self.alpha) = (sending.max(MIN_RATE), ONE);
        } else if now.since(self.last_cut) < CUT_PERIOD.max(self.round_trip) {
            // The cut does not show yet; but nothing is raised meanwhile.
            if now.since(self.last_cnp) >= CUT_PERIOD {
                self.note(now);
            }
            return false;
        }
        self.cut(now);
        true
    }

    /// Without an answer for so long, the way is taken for congested: where switches drop and do not mark, this is what is left.
    fn on_timeout(&mut self, now: Time) {
        self.on_cnp(now);
    }

    fn rate(&mut self, now: Time) -> Option<u64> {
        self.pass(now);
        self.last_rate()
    }

    fn last_rate(&self) -> Option<u64> {
        (self.rate > 0).then_some(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    /// It has sent at 8 Gbit/s for a hundred milliseconds.
    fn sending() -> Dcqcn {
        let mut d = Dcqcn::default();
        (0..=1000).for_each(|i| d.on_sent(at(i * 100), 100_000));
        d
    }

    /// Steps computed by hand from the paper (§5, equations 1 to 4) and the constants above.
    #[test]
    fn cuts_and_recovers_as_the_paper_says() {
        let mut d = sending();
        assert_eq!(d.rate(at(100_000)), None);
        assert!(d.on_cnp(at(100_000)));
        assert_eq!((d.rate, d.target, d.alpha), (4_000_000_000, 8_000_000_000, ONE), "alpha is 1 at first");
        assert!(!d.on_cnp(at(100_049)), "within 50 µs");
        assert!(d.on_cnp(at(100_050)));
        assert_eq!((d.rate, d.target), (2_000_000_000, 4_000_000_000));
        // alpha = (1 - g) · alpha, after 55 µs.
        assert_eq!(d.rate(at(100_104)), Some(2_000_000_000));
        assert_eq!(d.alpha, ONE);
        d.rate(at(100_105));
        assert_eq!(d.alpha, ONE - 256);
        // Fast recovery: five times half the way.
        let rates: Vec<u64> = (1..=6).map(|i| d.rate(at(100_050 + i * 1500)).unwrap_or(0) / 1000).collect();
        // Then the target grows by 5 Mbit/s.
        assert_eq!(rates, [3_000_000, 3_500_000, 3_750_000, 3_875_000, 3_937_500, 3_971_250]);
        assert_eq!(d.target, 4_005_000_000);
        // What nobody asked for is made up for.
        let mut late = d.clone();
        assert!((7..=20).all(|i| d.rate(at(100_050 + i * 1500)).is_some()));
        late.rate(at(100_050 + 20 * 1500));
        assert_eq!((late.rate, late.target, late.alpha), (d.rate, d.target, d.alpha));
        assert!(d.alpha < ONE / 8, "{}", d.alpha);
    }

    #[test]
    fn bytes_raise_too_and_both_together_a_lot() {
        let mut d = sending();
        d.on_cnp(at(100_000));
        for _ in 0..5 {
            d.on_sent(at(100_001), RAISE_BYTES);
        }
        assert_eq!(d.rate, 7_875_000_000);
        d.on_sent(at(100_001), RAISE_BYTES);
        assert_eq!(d.target, 8_005_000_000);
        // The sixth by time finds six by bytes: hyper increase.
        d.rate(at(100_000 + 6 * 1500));
        assert_eq!(d.target, 8_005_000_000 + 5 * 5_000_000 + 50_000_000);
    }

    #[test]
    fn a_round_trip_has_one_cut() {
        let mut d = sending();
        let sample = Sample { round_trip: Duration::from_millis(1), fabric: Duration::ZERO, peer_told: true };
        d.on_ack(at(100_000), &sample);
        assert!(d.on_cnp(at(100_000)));
        assert!(!d.on_cnp(at(100_999)));
        assert!(d.on_cnp(at(101_000)));
    }

    #[test]
    fn slow_links_are_not_overrun_and_floods_end_at_the_lowest_rate() {
        let mut d = sending();
        assert!((0..100).all(|i| d.on_cnp(at(100_000 + i * 50))));
        assert_eq!(d.rate, MIN_RATE);
        d.target = 3_200_000;
        (d.raises_by_time, d.raises_by_bytes) = (6, 0);
        d.raise();
        assert_eq!(d.target, 3_300_000, "a thirty-second part of itself");
        let floor = d.rate(at(200_000)).unwrap_or(0);
        assert!(floor >= MIN_RATE);
        assert_eq!(d.rate(at(105_000 + 1_000_000)), None, "after a second it is forgotten");
        assert!(!Dcqcn::default().on_cnp(at(5)), "who sends nothing has nothing to cut");
    }
}
