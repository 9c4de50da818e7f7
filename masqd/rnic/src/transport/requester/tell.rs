//! What congestion control is told: what is sent, what comes of it, and how long that took.

use masq_types::Psn;
use masq_wire::{HoldRepr, Parsed};

use super::Requester;
use crate::transport::link::{LOWER_HEADERS, Link};
use crate::transport::receipt::Receipt;
use crate::transport::request::Piece;
use crate::transport::rtt::Told;
use crate::transport::time::Time;

impl Requester {
    /// `packet` has answered something; before it, `on_their_way` packets were. Returns whether that was timed.
    pub(super) fn tell_of_progress(
        &mut self,
        now: Time,
        on_their_way: u32,
        packet: &Parsed<'_>,
        receipt: Receipt,
    ) -> bool {
        let una = self.inflight.una();
        let held = packet.repr.ext.hold().map(HoldRepr::duration);
        let told = self.rtt.answered(now, receipt.at, una, held);
        self.flow.acknowledged(now, on_their_way, self.inflight.on_their_way(), told.as_ref());
        self.told_until = self.told_until.filter(|until| una.precedes(*until));
        matches!(told, Some(Told::Sample(_)))
    }

    /// The packet of this PSN, or those before it, are lost.
    pub(super) fn tell_of_loss(&mut self, now: Time, psn: Psn) {
        let again = self.told_until.is_some_and(|until| psn.precedes(until));
        self.flow.lost(now, again);
        if !again {
            self.told_until = Some(self.inflight.high());
        }
    }

    /// The same of what was found lost while an answer was handled, if anything was.
    pub(super) fn tell_of_first_loss(&mut self, now: Time) {
        if std::mem::take(&mut self.has_lost) {
            self.tell_of_loss(now, self.inflight.una());
        }
    }

    /// How many of the `rest` packets that a READ still needs its next request asks for: again no further than the first time.
    pub(super) fn read_packets(&self, link: &Link<'_>, rest: u32) -> u32 {
        let next = self.inflight.next();
        if next != self.inflight.high() {
            return self.inflight.piece_end(next).since(next);
        }
        let most = link.config.read_packets;
        self.flow.read_packets(link.packet_bytes(), rest, most, link.attributes.max_rd_atomic)
    }
}

/// Bytes that a packet, and what it asks for, take of the links.
pub(super) fn costs(link: &Link<'_>, piece: &Piece, bytes: usize) -> u64 {
    let sent = bytes as u64 + u64::from(LOWER_HEADERS);
    let asked = if piece.is_fetch { u64::from(piece.packets) * u64::from(link.packet_bytes()) } else { 0 };
    sent + asked
}
