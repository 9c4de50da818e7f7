//! Packets that came too early: kept, bytes and all, until it is their turn. Nothing of them shows before that (DESIGN: later data never shows
//! before earlier).

use core::mem::size_of;
use std::collections::VecDeque;

use masq_types::Psn;
use masq_wire::{Arrived, OpcodeInfo, PacketRepr, Parsed};

/// Packets behind a gap, in the order of their PSNs. Keeps no memory when there are none.
#[derive(Debug, Default)]
pub(super) struct Reorder {
    kept: VecDeque<Kept>,
    payload_bytes: usize,
}

/// A packet, as it was when it came.
#[derive(Debug)]
pub(super) struct Kept {
    repr: PacketRepr,
    info: &'static OpcodeInfo,
    payload: Box<[u8]>,
}

impl Kept {
    pub(super) fn parsed(&self) -> Parsed<'_> {
        Parsed { repr: self.repr, info: self.info, payload: &self.payload, icrc: 0 }
    }

    fn psn(&self) -> Psn {
        self.repr.bth.psn
    }
}

impl Reorder {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Bytes that are kept, those for their places included.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.payload_bytes + self.kept.capacity() * size_of::<Kept>()
    }

    /// Bytes that one more packet takes at most, besides what its list may grow by.
    pub(super) fn bytes_for(packet: &Parsed<'_>) -> usize {
        size_of::<Kept>() + packet.payload.len()
    }

    /// Keeps a packet that lies behind `expected`, near enough to be named in a selective acknowledgement. Returns whether it is kept now; one that
    /// was kept before stays as it was.
    pub(super) fn keep(&mut self, expected: Psn, packet: &Parsed<'_>) -> bool {
        let psn = packet.repr.bth.psn;
        if !Self::is_near(expected, psn) {
            return false;
        }
        let place = psn.since(expected);
        let at = self.kept.partition_point(|k| k.psn().since(expected) < place);
        if self.kept.get(at).is_none_or(|k| k.psn() != psn) {
            let payload = Box::from(packet.payload);
            self.payload_bytes += packet.payload.len();
            self.kept.insert(at, Kept { repr: packet.repr, info: packet.info, payload });
        }
        true
    }

    /// Whether `psn` can be named behind `expected`.
    pub(super) fn is_near(expected: Psn, psn: Psn) -> bool {
        (1..=Arrived::MAX_BITS).contains(&psn.since(expected))
    }

    /// Whether the packet `psn` is kept; `expected` is what the packets lie behind.
    pub(super) fn has(&self, expected: Psn, psn: Psn) -> bool {
        let place = psn.since(expected);
        let found = self.kept.binary_search_by_key(&place, |k| k.psn().since(expected));
        found.is_ok()
    }

    /// Takes the packet whose turn it is, if it is kept. Those before it have no turn any more, and go.
    pub(super) fn take(&mut self, expected: Psn) -> Option<Kept> {
        while let Some(first) = self.kept.front()
            && (first.psn() == expected || first.psn().precedes(expected))
        {
            let found = first.psn() == expected;
            let kept = self.kept.pop_front();
            self.payload_bytes -= kept.as_ref().map_or(0, |k| k.payload.len());
            if self.kept.is_empty() {
                self.clear();
            }
            if found {
                return kept;
            }
        }
        None
    }

    /// How far behind the next after `expected` the kept packets lie: the places of a selective acknowledgement's bitmap.
    pub(super) fn places(&self, expected: Psn) -> impl Iterator<Item = u32> {
        self.kept.iter().map(move |k| k.psn().since(expected.plus(1)))
    }

    /// Lets go of all.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use masq_types::WireQpn;
    use masq_wire::{Extension, Opcode};

    use super::*;

    fn packet(psn: Psn, payload: &[u8]) -> Parsed<'_> {
        let opcode = Opcode::RC_SEND_ONLY;
        let repr = PacketRepr::new(opcode, WireQpn::from_wire(1), psn, Extension::None);
        Parsed { repr, info: opcode.info().unwrap(), payload, icrc: 7 }
    }

    fn taken(r: &mut Reorder, psn: Psn) -> Option<Vec<u8>> {
        r.take(psn).map(|k| k.parsed().payload.to_vec())
    }

    #[test]
    fn packets_come_out_when_it_is_their_turn() {
        let (mut r, expected) = (Reorder::default(), Psn::new(0xff_fffe));
        for (place, byte) in [(3, 3), (1, 1), (2, 2), (5, 5), (3, 9)] {
            assert!(r.keep(expected, &packet(expected.plus(place), &[byte; 4])));
        }
        assert_eq!(r.places(expected).collect::<Vec<_>>(), [0, 1, 2, 4]);
        assert_eq!(taken(&mut r, expected), None);
        assert!(r.has(expected, expected.plus(5)) && !r.has(expected, expected.plus(4)));
        for place in 1..4 {
            assert_eq!(taken(&mut r, expected.plus(place)), Some(vec![place as u8; 4]), "the first of two");
        }
        assert!(r.bytes() > 4);
        assert_eq!(taken(&mut r, expected.plus(6)), None);
        assert!(
            r.is_empty() && r.bytes() == 0,
            "one whose turn is over is gone, and the memory with the last"
        );
    }

    #[test]
    fn what_cannot_be_named_is_not_kept() {
        let (mut r, expected) = (Reorder::default(), Psn::new(5));
        for psn in [expected, expected.minus(1), expected.plus(1025), expected.plus(Psn::HALF)] {
            assert!(!r.keep(expected, &packet(psn, &[1])));
        }
        assert!(r.keep(expected, &packet(expected.plus(1024), &[1])));
        assert_eq!(r.places(expected).collect::<Vec<_>>(), [1023]);
        assert!(r.bytes() >= Reorder::bytes_for(&packet(expected, &[1])));
        r.clear();
        assert_eq!(r.bytes(), 0);
    }
}
