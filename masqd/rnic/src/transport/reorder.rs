//! Packets that came too early: kept, bytes and all, until it is their turn. Nothing of them shows before that (DESIGN: later data never shows
//! before earlier).

use core::mem::size_of;
use std::collections::VecDeque;

use masq_types::Psn;
use masq_wire::{Arrived, ArrivedRepr, OpcodeInfo, PacketRepr, Parsed};

use super::psn_set::PsnSet;

/// Packets behind a gap, in the order of their PSNs. Keeps no memory when there are none.
#[derive(Debug, Default)]
pub(super) struct Reorder {
    kept: VecDeque<Kept>,
    buffer_bytes: usize,
    /// Which PSNs they are.
    psns: PsnSet,
}

/// A packet, as it was when it came.
#[derive(Debug)]
pub(super) struct Kept {
    repr: PacketRepr,
    info: &'static OpcodeInfo,
    payload: Vec<u8>,
}

impl Kept {
    pub(super) fn parsed(&self) -> Parsed<'_> {
        Parsed { repr: self.repr, info: self.info, payload: &self.payload, icrc: 0 }
    }

    /// The buffer that it was kept in.
    pub(super) fn into_buffer(self) -> Vec<u8> {
        self.payload
    }

    fn psn(&self) -> Psn {
        self.repr.bth.psn
    }
}

impl Reorder {
    /// Bytes of a buffer: any packet of path MTU 4096 fits, so that buffers serve one another. Of small packets it is counted, too.
    const BUFFER: usize = 4096;

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Bytes that are kept, those for their places included.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.buffer_bytes + self.kept.capacity() * size_of::<Kept>()
    }

    /// Bytes that one more packet takes at most, besides what its list may grow by.
    pub(super) fn bytes_for(packet: &Parsed<'_>) -> usize {
        size_of::<Kept>() + packet.payload.len().max(Self::BUFFER)
    }

    /// Keeps a packet that lies behind `expected`, near enough to be named in a selective acknowledgement, in a buffer that `lend` gives. Returns whether
    /// it is kept now; one that was kept before stays as it was.
    pub(super) fn keep(
        &mut self,
        expected: Psn,
        packet: &Parsed<'_>,
        lend: impl FnOnce() -> Vec<u8>,
    ) -> bool {
        let psn = packet.repr.bth.psn;
        if !Self::is_near(expected, psn) {
            return false;
        }
        while self.kept.front().is_some_and(|k| k.psn().precedes(expected)) {
            // Its turn is over; it would be taken for one that lies as far ahead.
            self.pop();
        }
        if !self.psns.has(psn) {
            let place = psn.since(expected);
            let at = self.kept.partition_point(|k| k.psn().since(expected) < place);
            let mut payload = lend();
            payload.reserve_exact(packet.payload.len().max(Self::BUFFER));
            payload.extend_from_slice(packet.payload);
            self.buffer_bytes += payload.capacity();
            self.kept.insert(at, Kept { repr: packet.repr, info: packet.info, payload });
            self.psns.set(psn);
        }
        true
    }

    /// Whether `psn` can be named behind `expected`.
    pub(super) fn is_near(expected: Psn, psn: Psn) -> bool {
        (1..=Arrived::MAX_BITS).contains(&psn.since(expected))
    }

    /// Whether the packet `psn` is kept; `expected` is what the packets lie behind.
    pub(super) fn has(&self, expected: Psn, psn: Psn) -> bool {
        Self::is_near(expected, psn) && self.psns.has(psn)
    }

    /// Takes the packet whose turn it is, if it is kept. Those before it have no turn any more, and go.
    pub(super) fn take(&mut self, expected: Psn) -> Option<Kept> {
        while let Some(first) = self.kept.front().map(Kept::psn)
            && (first == expected || first.precedes(expected))
        {
            let kept = self.pop();
            if first == expected {
                return kept;
            }
        }
        None
    }

    fn pop(&mut self) -> Option<Kept> {
        let kept = self.kept.pop_front()?;
        self.buffer_bytes -= kept.payload.capacity();
        self.psns.clear(kept.psn());
        if self.kept.is_empty() {
            self.clear();
        }
        Some(kept)
    }

    /// What of the packets behind the next after `expected` is kept: a selective acknowledgement's bitmap.
    pub(super) fn bitmap(&self, expected: Psn) -> ArrivedRepr {
        ArrivedRepr::of_words(self.psns.words(expected.plus(1)))
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

    fn places(r: &Reorder, expected: Psn) -> Vec<u32> {
        Arrived::new(r.bitmap(expected).bytes()).places().collect()
    }

    fn taken(r: &mut Reorder, psn: Psn) -> Option<Vec<u8>> {
        r.take(psn).map(|k| k.parsed().payload.to_vec())
    }

    #[test]
    fn packets_come_out_when_it_is_their_turn() {
        let (mut r, expected) = (Reorder::default(), Psn::new(0xff_fffe));
        for (place, byte) in [(3, 3), (1, 1), (2, 2), (5, 5), (3, 9)] {
            assert!(r.keep(expected, &packet(expected.plus(place), &[byte; 4]), Vec::new));
        }
        assert_eq!(places(&r, expected), [0, 1, 2, 4]);
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
            assert!(!r.keep(expected, &packet(psn, &[1]), Vec::new));
        }
        assert!(r.keep(expected, &packet(expected.plus(1024), &[1]), Vec::new));
        assert_eq!(places(&r, expected), [1023]);
        assert!(r.bytes() >= Reorder::bytes_for(&packet(expected, &[1])));
        r.clear();
        assert_eq!(r.bytes(), 0);
    }
}
