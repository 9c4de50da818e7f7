//! How a queue pair is, for people.

use masq_driver::{QpProtocol, QpRoundTrip};
use masq_types::Psn;

use super::QpCore;
use super::time::Time;

/// Why a queue pair has moved to ERR, and how far it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastError {
    /// When.
    pub at: Time,
    /// Why, in words.
    pub reason: &'static str,
    /// The oldest PSN that was not acknowledged.
    pub una: Psn,
    /// The PSN that was expected.
    pub expected: Psn,
}

impl QpCore {
    /// Why it has last moved to ERR.
    pub fn last_error(&self) -> Option<LastError> {
        self.last_error
    }

    /// How far the exchange of packets is.
    pub fn protocol(&self) -> QpProtocol {
        let requester = &self.requester;
        let congestion = self.congestion();
        QpProtocol {
            path_mtu: self.attributes.path_mtu,
            una: requester.una(),
            next: requester.next(),
            high: requester.psn(),
            expected: self.responder.psn(),
            window_packets: self.config.window_packets,
            outstanding_packets: requester.outstanding(),
            ack_timeout: self.attributes.ack_timeout(self.config.min_ack_timeout),
            round_trip: self.round_trip().map(|r| QpRoundTrip {
                smoothed: r.smoothed,
                min: r.min,
                timeout: r.timeout,
            }),
            congestion_window_bytes: congestion.and_then(|c| c.window_bytes),
            rate_bits_per_sec: congestion.and_then(|c| c.rate_bits_per_sec),
        }
    }

    /// Send requests that were taken out of the ring and are not done.
    pub fn held_requests(&self) -> usize {
        self.requester.held_requests()
    }

    /// Tries that are left when the peer does not answer, and when it has no receive.
    pub fn retries_left(&self) -> (u8, u8) {
        self.requester.retries_left()
    }

    /// Whether it sends nothing because the peer had no receive.
    pub fn waits_for_receive(&self) -> bool {
        self.requester.waits_for_receive()
    }

    /// Notes why it moves to ERR.
    pub(super) fn note_error(&mut self, at: Time, reason: &'static str) {
        let (una, expected) = (self.requester.una(), self.responder.psn());
        self.last_error = Some(LastError { at, reason, una, expected });
    }
}
