//! Towards a peer that takes packets in their order only, and goes without other control.
//!
//! Such a peer drops all that follows a lost packet, and all of it is sent again. Where the loss came from there being more than the peer can deal with, sending as
//! much again at once would only lose it again, until the tries are used up. So the window halves with each loss and is quartered by each timeout; it
//! doubles with each measured round trip up to half of what was too much, and grows by an eighth of itself from there. Without losses it is the
//! whole window.

use super::CongestionControl;
use crate::transport::rtt::Sample;
use crate::transport::time::Time;

#[derive(Clone, Debug)]
pub(super) struct GoBack {
    /// Bytes of the largest packet.
    packet: u32,
    /// The whole window in bytes.
    whole: u32,
    /// Bytes, one packet to the whole window.
    window: u32,
    /// Up to here the window doubles.
    fast_until: u32,
}

impl GoBack {
    /// With packets of at most `packet_bytes`, of which `window_packets` may be on their way.
    pub(super) fn new(packet_bytes: u32, window_packets: u32) -> Self {
        let packet = packet_bytes.max(1);
        let whole = packet.saturating_mul(window_packets.max(1));
        Self { packet, whole, window: whole, fast_until: whole }
    }

    fn shrink(&mut self, to: u32) {
        self.fast_until = (self.window / 2).max(self.packet);
        self.window = to.max(self.packet);
    }
}

impl CongestionControl for GoBack {
    fn on_ack(&mut self, _now: Time, _sample: &Sample) {
        let grown = if self.window < self.fast_until {
            self.window.saturating_mul(2).min(self.fast_until)
        } else {
            self.window.saturating_add((self.window / 8).max(self.packet))
        };
        self.window = grown.min(self.whole);
    }

    /// Strangers' congestion notifications are obeyed where a control has been chosen.
    fn on_cnp(&mut self, _now: Time) -> bool {
        false
    }

    fn on_loss(&mut self, _now: Time, _again: bool) {
        self.shrink(self.window / 2);
    }

    fn on_timeout(&mut self, _now: Time) {
        self.shrink(self.window / 4);
    }

    fn rate(&mut self, _now: Time) -> Option<u64> {
        None
    }

    fn last_rate(&self) -> Option<u64> {
        None
    }

    fn window_bytes(&self) -> Option<u64> {
        (self.window < self.whole).then_some(self.window.into())
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const SAMPLE: Sample = Sample { round_trip: Duration::ZERO, fabric: Duration::ZERO, peer_told: false };

    fn windows(c: &mut GoBack, acknowledgements: usize) -> Vec<Option<u64>> {
        let mut after = |_| {
            c.on_ack(Time::ZERO, &SAMPLE);
            c.window_bytes()
        };
        (0..acknowledgements).map(&mut after).collect()
    }

    #[test]
    fn losses_halve_the_window_and_answers_bring_it_back() {
        let mut c = GoBack::new(1000, 64);
        assert_eq!(
            c.window_bytes(),
            None,
            "without losses there is no other limit than the window of packets"
        );
        c.on_loss(Time::ZERO, false);
        assert_eq!(c.window_bytes(), Some(32_000));
        c.on_timeout(Time::ZERO);
        assert_eq!(c.window_bytes(), Some(8_000));
        // Doubled up to half of what was too much, then slowly.
        assert_eq!(windows(&mut c, 4), [16_000, 18_000, 20_250, 22_781].map(Some));
        assert_eq!(windows(&mut c, 12).last(), Some(&None));
    }

    #[test]
    fn one_packet_may_go_in_any_case() {
        let mut c = GoBack::new(1000, 64);
        for _ in 0..100 {
            c.on_timeout(Time::ZERO);
            assert!(c.window_bytes().is_some_and(|w| w >= 1000));
        }
        assert_eq!(c.window_bytes(), Some(1000));
        assert_eq!(windows(&mut c, 3), [2000, 3000, 4000].map(Some));
        assert!(!c.on_cnp(Time::ZERO));
    }
}
