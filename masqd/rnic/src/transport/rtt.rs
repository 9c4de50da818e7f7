//! How long an answer takes (RFC 6298, with one packet timed at once), and how much of that is the network's.
//!
//! Two things are measured of the same packet. The **round trip**, from sending a packet to dealing with its answer, tells how long to wait for one;
//! both hosts' own delays belong to it. The **fabric delay** leaves those out: it ends when the own host received the answer, and what the peer held the
//! packet back is taken off, where the peer says how long that was (as in Swift, SIGCOMM'20 §3.1). It tells of queues on the way.
//!
//! A packet that was sent again is never timed, as nobody can tell which one was answered (Karn).

use core::time::Duration;

use masq_types::Psn;

use super::time::Time;

/// Call [`Rtt::sent`] for each packet that asks for an answer and is sent for the first time, [`Rtt::forget`] when something is sent again, and
/// [`Rtt::answered`] when answers have come: it says what they tell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rtt {
    /// The packet that is being timed.
    timed: Option<(Psn, Time)>,
    /// One that was being timed when something was sent again, and when it was sent for the first time.
    spoilt: Option<(Psn, Time)>,
    estimate: Option<Estimate>,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    smoothed: Duration,
    variation: Duration,
    min: Duration,
}

/// What one packet has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// From sending it to dealing with its answer.
    pub(super) round_trip: Duration,
    /// The part of it that was spent on the way, there and back.
    pub(super) fabric: Duration,
    /// The peer has said how long it held the packet; otherwise that is still in `fabric`.
    pub(super) peer_told: bool,
}

/// What an answer says of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It answers a packet that was timed.
    Sample(Sample),
    /// It does not. The delay of the network was this at most, if the peer tells how long it held what it answers.
    Progress(Option<Duration>),
}

impl Rtt {
    /// The least that a timeout counts on top of the smoothed round trip (RFC 6298 §2, G): threads of a busy host are
    /// not more punctual.
    const GRANULARITY: Duration = Duration::from_millis(1);

    /// A packet that asks for an answer, and ends before `end`, is sent for the first time.
    pub(super) fn sent(&mut self, now: Time, end: Psn) {
        self.timed.get_or_insert((end, now));
    }

    /// Whether a packet is being timed.
    pub(super) fn is_timing(&self) -> bool {
        self.timed.is_some()
    }

    /// Something is sent again.
    pub(super) fn forget(&mut self) {
        self.spoilt = self.spoilt.or(self.timed.take());
    }

    /// All before `una` is answered, by a packet that this host received at `received` and whose sender held back what it answers for
    /// `held`, if it says so. Returns what that tells: nothing when the sender does say it, and no packet is answered that is or was timed.
    pub(super) fn answered(
        &mut self,
        now: Time,
        received: Time,
        una: Psn,
        held: Option<Duration>,
    ) -> Option<Told> {
        let at_most = held.map(|held| self.at_most(received, una, held));
        match (self.sample(now, received, una, held), at_most) {
            (Some(sample), _) => Some(Told::Sample(sample)),
            (None, None) => Some(Told::Progress(None)),
            (None, Some(at_most)) => at_most.map(|most| Told::Progress(Some(most))),
        }
    }

    /// What the delay of the fabric was at most: which sending of a packet was answered nobody can tell, but the first it was at the earliest. `None` while
    /// there is no such packet.
    fn at_most(&mut self, received: Time, una: Psn, held: Duration) -> Option<Duration> {
        let (_, sent) = self.spoilt.take_if(|(end, _)| !una.precedes(*end))?;
        Some(received.since(sent).saturating_sub(held))
    }

    /// What the answer tells of the packet that is timed, if it answers that.
    fn sample(&mut self, now: Time, received: Time, una: Psn, held: Option<Duration>) -> Option<Sample> {
        let (_, sent) = self.timed.take_if(|(end, _)| !una.precedes(*end))?;
        let round_trip = now.since(sent);
        // A peer can claim anything; what is left is never less than nothing.
        let fabric = received.since(sent).saturating_sub(held.unwrap_or_default());
        self.estimate = Some(match self.estimate {
            None => Estimate { smoothed: round_trip, variation: round_trip / 2, min: round_trip },
            Some(old) => old.with(round_trip),
        });
        Some(Sample { round_trip, fabric, peer_told: held.is_some() })
    }

    /// What has been learnt, once there is anything.
    pub(super) fn round_trip(&self) -> Option<RoundTrip> {
        self.estimate.map(|e| RoundTrip {
            smoothed: e.smoothed,
            min: e.min,
            timeout: e.smoothed + (e.variation * 4).max(Self::GRANULARITY),
        })
    }
}

/// How long answers of a peer take, both hosts' own delays included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// Smoothed over about eight measurements.
    pub smoothed: Duration,
    /// The shortest so far.
    pub min: Duration,
    /// After how long without an answer a packet is probably lost (RFC 6298 §2.3); no less than a millisecond longer than `smoothed`.
    pub timeout: Duration,
}

impl Estimate {
    /// RFC 6298 §2.3: alpha is 1/8, beta 1/4, and the variation comes first.
    fn with(self, round_trip: Duration) -> Self {
        let deviation = self.smoothed.abs_diff(round_trip);
        Self {
            smoothed: (self.smoothed * 7 + round_trip) / 8,
            variation: (self.variation * 3 + deviation) / 4,
            min: self.min.min(round_trip),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// Steps computed by hand from RFC 6298 §2.
    #[test]
    fn smooths_as_the_rfc_says() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.round_trip(), None);
        let mut measure = |from: u64, psn: u32, took: u64| {
            rtt.sent(at(from), Psn::new(psn));
            rtt.answered(at(from + took), at(from + took), Psn::new(psn), None);
            rtt.round_trip().map(|r| (r.smoothed, r.timeout, r.min)).unwrap()
        };
        // First: SRTT = R, RTTVAR = R/2.
        assert_eq!(measure(0, 1, 800), (us(800), us(800 + 1600), us(800)));
        // RTTVAR = 3/4 · 400 + 1/4 · 800, SRTT = 7/8 · 800 + 1/8 · 1600.
        assert_eq!(measure(2000, 2, 1600), (us(900), us(900 + 2000), us(800)));
        // RTTVAR = 3/4 · 500 + 1/4 · 800, SRTT = 7/8 · 900 + 1/8 · 100.
        assert_eq!(measure(4000, 3, 100), (us(800), us(800 + 2300), us(100)));
        for i in 0..100 {
            measure(5000 + i * 100, 4, 100);
        }
        let (smoothed, timeout, _) = measure(20_000, 5, 100);
        assert!(smoothed < us(101), "{smoothed:?}");
        assert_eq!(timeout, smoothed + Rtt::GRANULARITY, "a steady round trip still leaves time to be late");
    }

    #[test]
    fn one_packet_at_a_time_and_none_that_was_repeated() {
        let mut rtt = Rtt::default();
        let end = Psn::new(0);
        rtt.sent(at(0), end);
        rtt.sent(at(10), end.plus(5));
        let progress = Some(Told::Progress(None));
        assert_eq!(rtt.answered(at(20), at(20), end.minus(1), None), progress, "not all of it is answered");
        let Some(Told::Sample(sample)) = rtt.answered(at(30), at(30), end.plus(5), None) else { panic!() };
        assert_eq!(sample.round_trip, us(30), "the first of the two was timed");
        assert_eq!(rtt.answered(at(40), at(40), end.plus(9), None), progress);
        rtt.sent(at(50), end.plus(10));
        rtt.forget();
        assert_eq!(rtt.answered(at(60), at(60), end.plus(10), None), progress);
    }

    #[test]
    fn of_what_was_repeated_the_longest_is_known() {
        let mut rtt = Rtt::default();
        let end = Psn::new(7);
        rtt.sent(at(0), end);
        rtt.forget();
        rtt.sent(at(500), end.plus(1));
        rtt.forget();
        let mut answered = |micros, una, held| rtt.answered(at(micros), at(micros), una, Some(us(held)));
        assert_eq!(answered(900, end.minus(1), 0), None);
        assert_eq!(answered(900, end, 100), Some(Told::Progress(Some(us(800)))), "of the first of the two");
        assert_eq!(answered(1000, end.plus(1), 0), None);
    }

    #[test]
    fn the_fabric_delay_leaves_both_hosts_out() {
        let mut rtt = Rtt::default();
        let mut measure = |held: Option<Duration>| {
            rtt.sent(at(100), Psn::new(1));
            // Sent at 100, received back at 400, dealt with at 1000.
            rtt.answered(at(1000), at(400), Psn::new(1), held)
        };
        let told = |fabric, peer_told| Some(Told::Sample(Sample { round_trip: us(900), fabric, peer_told }));
        assert_eq!(measure(Some(us(250))), told(us(50), true));
        assert_eq!(measure(Some(Duration::MAX)), told(Duration::ZERO, true), "whatever a peer claims");
        assert_eq!(measure(None), told(us(300), false));
    }
}
