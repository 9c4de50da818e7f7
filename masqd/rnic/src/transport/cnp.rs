//! Telling the peer of congestion: what RoCEv2 calls the notification point (Annex A17 §17.9.2 and §17.9.3).

use core::time::Duration;

use masq_types::{Psn, WireQpn};
use masq_wire::{Extension, Opcode, PacketRepr};

use super::batch::Batch;
use super::time::Time;

/// Call [`Notifier::marked`] for each packet that bears a mark, and [`Notifier::transmit`] when [`Notifier::is_due`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Notifier {
    /// When the last notification became due.
    last: Option<Time>,
    due: bool,
}

/// There is no more than one notification in so long: DCQCN's N (SIGCOMM'15 §5).
const INTERVAL: Duration = Duration::from_micros(50);

/// Bytes behind the BTH, all zero.
const RESERVED_BYTES: usize = 16;

impl Notifier {
    /// A packet has come with the mark of congestion.
    pub(super) fn marked(&mut self, now: Time) {
        if self.last.is_none_or(|last| now.since(last) >= INTERVAL) {
            (self.last, self.due) = (Some(now), true);
        }
    }

    /// Whether there is a notification to send.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// Appends the notification, and returns its bytes of UDP payload.
    pub(super) fn transmit(&mut self, to: WireQpn, batch: &mut Batch<'_>) -> Option<usize> {
        self.due = false;
        let mut repr = PacketRepr::new(Opcode::CNP, to, Psn::new(0), Extension::None);
        repr.bth.becn = true;
        let fill = |out: &mut Vec<u8>| {
            out.resize(out.len() + RESERVED_BYTES, 0);
            Ok(())
        };
        batch.push(repr, RESERVED_BYTES, fill).ok()?;
        Some(repr.udp_payload_len(RESERVED_BYTES))
    }
}
