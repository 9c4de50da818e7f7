//! Swift (Kumar et al., SIGCOMM'20): a window that keeps the delay of the network at a target.
//!
//! Differences, all because hosts here run software on shared cores, on links from megabits to a hundred gigabits:
//!
//! - The delay is that of the fabric alone, where the peer tells how long it held a packet; what hosts need is no reason to send less. Of two measurements one
//!   behind the other the smaller counts: a queue is in both, a thread that was preempted between a time stamp and its system call in one.
//! - Where the peer does not tell (a stranger) the delay says nothing: CNPs, losses and timeouts are left.
//! - One packet is timed at once, so the window changes about once per round trip; what it gains is counted by time, as in the paper.
//! - It begins with a few packets, which double with each round trip far below the target (as TCP begins, RFC 5681 §3.1): of many that begin at once
//!   with whole windows, some would hear nothing until their tries are used up. The whole window is no limit.
//! - Later, after some round trips far below the target, it grows by a part of itself (as in Timely, §4.3), unless it is small: otherwise a thousand packets would
//!   take thousands of round trips to come back.
//! - What a small window gains in a round trip goes with its square root. A packet each time, of sixty windows of a third of one, would make the queue twice as long
//!   with every round trip; a share of itself would leave windows as unequal as they are.
//! - A loss counts when the delay is above the target, too, or when losses are many: one packet in a hundred that is lost on a
//!   bad link says nothing of a queue.

use core::time::Duration;

use super::{CongestionControl, MIN_RATE, rate_of};
use crate::transport::rtt::Sample;
use crate::transport::time::Time;

/// Packets to begin with.
const FIRST: u32 = 8;
/// Delay that is aimed at with a large window. A queue of that length keeps a link busy while a sender's thread waits for its turn.
const BASE_TARGET: Duration = Duration::from_millis(1);
/// More for the smallest window: of many flows each has a packet in the queue now and then, and the smaller ones get their share so.
const SCALED_TARGET: Duration = Duration::from_millis(3);
/// The windows between which the target is scaled, in packets: the paper's.
const SCALED_FROM: f64 = 0.1;
const SCALED_TO: f64 = 100.0;
/// Of the excess over the target, in eighths, the window goes down by so much of itself (the paper's beta, 0.8).
const BETA_EIGHTHS: u64 = 6;
/// What it grows by in a round trip goes with the square root of the window, and is a packet at the square of this: what grew by a share of itself would stay as
/// unequal as it is...
const GAIN_ROOT: u64 = 8;
/// ... and never less than this part of a packet.
const SMALLEST_GAIN: u64 = 16;
/// Round trips below half of the target after which it grows by a quarter of itself in each.
const FAR_BELOW: u8 = 3;
/// A window of fewer packets does not: of many that share a link it sees so little that chance makes three short delays of it.
const LEAST_TO_LEAP: u32 = 4;
/// Round trips that one measurement counts for at most: a small window has a packet on its way only now and then.
const MOST_ROUND_TRIPS: u64 = 32;
/// Round trips without a measurement after which progress alone lets it grow.
const UNMEASURED: u64 = 4;
/// Timeouts in a row after which the window is the smallest.
const TIMEOUTS: u8 = 5;
/// Losses of this share of all packets count, whatever the delay.
const LOSS_SHARE: u32 = 32;
/// Packets over which that share is taken, about.
const LOSS_MEMORY: u32 = 1024;
/// The smallest window, as a part of a packet.
const SMALLEST: u64 = 64;

#[derive(Clone, Debug)]
pub(super) struct Swift {
    /// Bytes of the largest packet.
    packet: u32,
    /// The whole window in bytes.
    whole: u32,
    /// Bytes, a part of a packet to the whole window.
    window: u32,
    /// The round trip, both hosts' delays included: in it the window goes around once. Over about four measurements, as there may be few.
    smoothed: Duration,
    /// The last measurement.
    last_delay: Option<Duration>,
    /// When it was made; or when progress stood in for one.
    last_sample: Time,
    last_decrease: Option<Time>,
    far_below: u8,
    /// Nothing has told yet that there is a queue.
    begins: bool,
    timeouts: u8,
    sent: u32,
    lost: u32,
}

impl Swift {
    /// With packets of at most `packet_bytes`, of which `window_packets` may be on their way.
    pub(super) fn new(packet_bytes: u32, window_packets: u32) -> Self {
        let packet = packet_bytes.max(1);
        let whole = packet.saturating_mul(window_packets.max(1));
        Self {
            packet,
            whole,
            window: packet.saturating_mul(FIRST).min(whole),
            smoothed: Duration::ZERO,
            last_delay: None,
            last_sample: Time::ZERO,
            last_decrease: None,
            far_below: 0,
            begins: true,
            timeouts: 0,
            sent: 0,
            lost: 0,
        }
    }

    fn target(&self) -> Duration {
        let packets = f64::from(self.window) / f64::from(self.packet);
        let inverse = |w: f64| 1.0 / w.sqrt();
        let share = (inverse(packets) - inverse(SCALED_TO)) / (inverse(SCALED_FROM) - inverse(SCALED_TO));
        let scaled = SCALED_TARGET.mul_f64(share.clamp(0.0, 1.0));
        BASE_TARGET + scaled
    }

    /// What the window gains in a round trip.
    fn gain(&self) -> u64 {
        let (packet, window) = (u64::from(self.packet), u64::from(self.window));
        ((window * packet).isqrt() / GAIN_ROOT).clamp(packet / SMALLEST_GAIN, packet).max(1)
    }

    /// What it gains in `since`, where a round trip takes `once`.
    fn gain_in(&self, since: Duration, once: Duration) -> u64 {
        let (since, once) = (nanos(since), nanos(once).max(1));
        self.gain() * since.min(once.saturating_mul(MOST_ROUND_TRIPS)) / once
    }

    fn grow(&mut self, bytes: u64) {
        let window = u64::from(self.window).saturating_add(bytes).min(self.whole.into());
        self.window = window as u32;
    }

    /// The window becomes `to` bytes, unless it has become smaller within this round trip.
    fn shrink(&mut self, now: Time, to: u64) {
        let waits = self.last_decrease.is_some_and(|t| now.since(t) < self.smoothed);
        if waits {
            return;
        }
        let least = (u64::from(self.packet) / SMALLEST).max(1);
        self.window = to.clamp(least, self.whole.into()) as u32;
        self.last_decrease = Some(now);
        (self.far_below, self.begins) = (0, false);
    }

    fn halve(&mut self, now: Time) {
        self.shrink(now, u64::from(self.window) / 2);
    }
}

impl CongestionControl for Swift {
    fn on_sent(&mut self, _now: Time, bytes: u64) {
        let packets = bytes.div_ceil(self.packet.into());
        self.sent = self.sent.saturating_add(u32::try_from(packets).unwrap_or(u32::MAX));
        if self.sent >= LOSS_MEMORY {
            (self.sent, self.lost) = (self.sent / 2, self.lost / 2);
        }
    }

    fn on_ack(&mut self, now: Time, sample: &Sample) {
        self.timeouts = 0;
        let first = self.last_delay.is_none();
        let round_trip = sample.round_trip;
        self.smoothed = if first { round_trip } else { (self.smoothed * 3 + round_trip) / 4 };
        let measured = if sample.peer_told { sample.fabric } else { Duration::ZERO };
        let delay = measured.min(self.last_delay.unwrap_or(measured));
        let since = if first { round_trip } else { now.since(self.last_sample) };
        (self.last_delay, self.last_sample) = (Some(measured), now);
        let target = self.target();
        if delay >= target {
            (self.far_below, self.begins) = (0, false);
            let (delay, excess) = (nanos(delay), nanos(delay - target));
            let window = u64::from(self.window);
            let cut = window.saturating_mul(excess) / delay.max(1) * BETA_EIGHTHS / 8;
            self.shrink(now, window - cut.min(window / 2));
            return;
        }
        self.far_below = if delay * 2 < target { self.far_below.saturating_add(1) } else { 0 };
        let (gain, by_time) = (self.gain(), self.gain_in(since, self.smoothed));
        let by_itself = match self.far_below {
            1.. if self.begins => u64::from(self.window),
            far if far > FAR_BELOW && self.window / self.packet >= LEAST_TO_LEAP => {
                u64::from(self.window) / 4
            }
            _ => 0,
        };
        self.grow(by_time.min(gain.max(self.window.into())).max(by_itself));
    }

    /// Without this, who loses a packet in most round trips, as with READs of many packets on a bad link, would only ever become slower.
    ///
    /// Not while there may be a queue: what waits in one is asked for again, too, so that nothing is measured of it.
    fn on_progress(&mut self, now: Time, at_most: Option<Duration>) {
        let queued = at_most.or(self.last_delay).is_some_and(|delay| delay >= self.target());
        let once = if self.smoothed.is_zero() { BASE_TARGET } else { self.smoothed };
        let since = now.since(self.last_sample);
        if queued || nanos(since) < nanos(once).saturating_mul(UNMEASURED) {
            return;
        }
        (self.timeouts, self.last_sample) = (0, now);
        self.grow(self.gain_in(since, once).min(self.window.into()));
    }

    /// A switch has marked a packet: as much a sign of a queue as delay is.
    fn on_cnp(&mut self, now: Time) -> bool {
        let before = self.window;
        self.halve(now);
        self.window != before
    }

    /// Several of one flight are one sign of a queue.
    fn on_loss(&mut self, now: Time, again: bool) {
        self.lost += 1;
        let many = self.lost > self.sent.max(LOSS_MEMORY / 4) / LOSS_SHARE;
        let queued = self.last_delay.is_none_or(|delay| delay >= self.target());
        if (queued || many) && !again {
            self.halve(now);
        }
    }

    fn on_timeout(&mut self, now: Time) {
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts >= TIMEOUTS {
            self.shrink(now, 0);
        } else {
            self.halve(now);
        }
    }

    /// A little more than what goes around: the window is the limit, and the rate makes trains of it that the bottleneck
    /// does not notice.
    fn rate(&mut self, _now: Time) -> Option<u64> {
        self.last_rate()
    }

    fn last_rate(&self) -> Option<u64> {
        if self.window == self.whole {
            return None;
        }
        let rate = rate_of(u64::from(self.window) * 5 / 4, self.smoothed.max(BASE_TARGET / 10));
        Some(rate.max(MIN_RATE))
    }

    fn window_bytes(&self) -> Option<u64> {
        (self.window != self.whole).then(|| self.window.into())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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

    /// A hundred packets of a thousand bytes, the whole window.
    fn swift() -> Swift {
        Swift { window: 100_000, begins: false, ..Swift::new(1000, 100) }
    }

    fn ack(s: &mut Swift, now: u64, delay: u64) {
        s.on_ack(at(now), &Sample { round_trip: us(delay), fabric: us(delay), peer_told: true });
    }

    /// Steps computed by hand from the paper's algorithm 1 and the constants above.
    #[test]
    fn goes_down_by_the_excess_once_in_a_round_trip() {
        let mut s = swift();
        assert_eq!((s.rate(at(0)), s.window_bytes()), (None, None));
        // The target of a hundred packets is a millisecond: half of the delay is excess, of which three quarters count.
        ack(&mut s, 10_000, 2000);
        assert_eq!(s.window_bytes(), Some(62_500));
        // 78,125 bytes in two milliseconds.
        assert_eq!(s.rate(at(10_000)), Some(312_500_000));
        ack(&mut s, 11_999, 4000);
        assert_eq!(s.window_bytes(), Some(62_500), "the same round trip");
        // Never by more than half.
        ack(&mut s, 30_000, 4000);
        assert_eq!(s.window_bytes(), Some(31_250));
    }

    #[test]
    fn goes_up_by_a_part_of_a_packet_in_a_round_trip_and_faster_far_below() {
        let mut s = Swift { begins: false, window: 40_000, ..Swift::new(1000, 1000) };
        s.last_delay = Some(us(800));
        (s.smoothed, s.last_sample) = (us(800), at(0));
        // An eighth of the root of forty packets, 0.79 packets, in a round trip, of which this is a quarter; a late answer counts for thirty-two.
        ack(&mut s, 200, 800);
        assert_eq!(s.window_bytes(), Some(40_197));
        ack(&mut s, 80_200, 800);
        assert_eq!(s.window_bytes(), Some(65_541));
        (0..3).for_each(|i| ack(&mut s, 80_600 + i * 400, 400));
        assert!(s.window_bytes() < Some(76_000), "three round trips could be chance");
        let before = u64::from(s.window);
        ack(&mut s, 81_800, 400);
        assert_eq!(s.window_bytes(), Some(before + before / 4));
        (0..15).for_each(|i| ack(&mut s, 90_000 + i * 400, 400));
        assert_eq!((s.rate(at(0)), s.window_bytes()), (None, None), "the whole window is no limit");
    }

    /// A small window gains less in a round trip, a large one not more in proportion; and none that is small leaps because of a few short delays.
    #[test]
    fn small_windows_grow_slowly() {
        let gain = |window: u32| Swift { window, ..Swift::new(1024, 1024) }.gain();
        assert_eq!([16, 100, 256].map(gain), [64; 3]);
        assert_eq!([1, 4, 16, 100].map(|packets| gain(1024 * packets)), [128, 256, 512, 1024]);
        let mut s = Swift { begins: false, window: 100, ..Swift::new(1000, 1000) };
        (s.smoothed, s.last_sample, s.last_delay) = (us(400), at(0), Some(us(400)));
        (1..=10).for_each(|i| ack(&mut s, i * 400, 400));
        assert!((600..1200).contains(&s.window), "{}", s.window);
    }

    #[test]
    fn begins_with_a_few_packets_and_doubles_until_there_is_a_queue() {
        let mut s = Swift::new(1000, 1000);
        let mut windows = vec![s.window];
        for (i, delay) in [100, 100, 700, 100, 1500, 1500, 100].into_iter().enumerate() {
            ack(&mut s, 1000 + i as u64 * 2000, delay);
            windows.push(s.window / 1000);
        }
        // One long delay may be chance. Two cut the window by three quarters of what is above the target, and from then on it grows as always: the last answer, late by
        // three round trips, brings a packet for each.
        assert_eq!(windows, [8_000, 16, 32, 64, 128, 256, 192, 195]);
        let mut s = Swift::new(1000, 1000);
        (0..7).for_each(|i| ack(&mut s, 1000 + i * 200, 100));
        assert_eq!(s.window_bytes(), None);
    }

    #[test]
    fn a_measurement_that_came_late_means_nothing() {
        let mut s = swift();
        for i in 0..100 {
            ack(&mut s, 1000 + i * 8000, if i % 2 == 0 { 8000 } else { 100 });
        }
        // The first has nothing before it.
        assert!(s.window_bytes() >= Some(50_000) || s.window_bytes().is_none());
        s.window = s.whole;
        ack(&mut s, 900_000, 100);
        ack(&mut s, 910_000, 8000);
        assert_eq!(s.window_bytes(), None);
        ack(&mut s, 920_000, 8000);
        assert!(s.window_bytes().is_some(), "two are a queue");
    }

    /// The smaller the window, the longer the queue that it accepts, between the target and four times as long.
    #[test]
    fn targets() {
        let of = |window: u32| {
            let s = Swift { window, ..Swift::new(1000, 1000) };
            s.target().as_micros()
        };
        assert_eq!([of(1_000_000), of(100_000), of(100), of(10)], [1000, 1000, 4000, 4000]);
        // (1 - 0.1) / (3.162 - 0.1) of three milliseconds.
        assert_eq!(of(1000), 1881);
    }

    #[test]
    fn a_peer_that_does_not_tell_how_long_it_held_a_packet_may_be_slow() {
        let mut s = swift();
        for i in 0..10 {
            let late = Duration::from_millis(30);
            let sample = Sample { round_trip: late, fabric: late, peer_told: false };
            s.on_ack(at(i * 100_000), &sample);
        }
        assert_eq!((s.rate(at(0)), s.window_bytes()), (None, None));
        assert!(s.on_cnp(at(2_000_000)) && s.window_bytes() == Some(50_000));
    }

    #[test]
    fn losses_count_with_delay_or_when_they_are_many() {
        let mut s = swift();
        s.on_loss(at(0), false);
        assert_eq!(s.window_bytes(), Some(50_000), "nothing is known of the way yet");
        ack(&mut s, 1000, 100);
        let before = s.window_bytes();
        for i in 0..100u32 {
            (0..100).for_each(|_| s.on_sent(at(0), 1000));
            s.on_loss(at(2000 + u64::from(i) * 1000), false);
        }
        assert_eq!(s.window_bytes(), before, "one in a hundred");
        for i in 0..100u32 {
            (0..10).for_each(|_| s.on_sent(at(0), 1000));
            s.on_loss(at(200_000 + u64::from(i) * 1000), false);
        }
        assert!(s.window_bytes() < Some(1000), "one in ten");
        let mut s = swift();
        ack(&mut s, 10_000, 900);
        ack(&mut s, 20_000, 1500);
        s.on_loss(at(30_000), false);
        assert_eq!(s.window_bytes(), Some(50_000));
    }

    #[test]
    fn progress_without_measurements_lets_it_grow() {
        let mut s = swift();
        ack(&mut s, 1000, 100);
        s.window = 4000;
        s.on_progress(at(1399), None);
        assert_eq!(s.window_bytes(), Some(4000), "the next measurement may come yet");
        // A quarter of a packet for each of four round trips.
        s.on_progress(at(1400), None);
        assert_eq!(s.window_bytes(), Some(5000));
        s.on_progress(at(1500), None);
        assert_eq!(s.window_bytes(), Some(5000));
        // What was measured last counts.
        ack(&mut s, 2000, 5000);
        ack(&mut s, 8000, 5000);
        let before = s.window_bytes();
        s.on_progress(at(900_000), None);
        assert_eq!(s.window_bytes(), before, "there is a queue");
        // What the last answer says counts more.
        s.on_progress(at(910_000), Some(us(4500)));
        assert_eq!(s.window_bytes(), before, "there may be one");
        s.on_progress(at(920_000), Some(us(500)));
        assert!(s.window_bytes() > before);
    }

    /// A READ's piece is as many packets as its answer.
    #[test]
    fn a_share_of_losses_is_one_of_packets() {
        let mut s = swift();
        ack(&mut s, 1000, 100);
        for i in 0..1000u32 {
            s.on_sent(at(0), 64_000);
            s.on_loss(at(2000 + u64::from(i) * 1000), false);
        }
        assert_eq!(s.window_bytes(), None, "one in sixty-four");
    }

    #[test]
    fn timeouts_halve_and_then_empty_the_window() {
        let mut s = swift();
        let mut after = Vec::new();
        for i in 1..=5 {
            s.on_timeout(at(i * 100_000));
            after.push(s.window_bytes().unwrap_or(0));
        }
        assert_eq!(after, [50_000, 25_000, 12_500, 6250, 15]);
        assert_eq!(s.rate(at(0)), Some(MIN_RATE).max(s.rate(at(0))), "never slower than that");
    }
}
