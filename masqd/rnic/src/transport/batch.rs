//! Datagrams of equal size, side by side in one buffer.

use masq_wire::{BthRepr, ICRC_BYTES, MAX_HEADER_BYTES, PacketRepr};

use super::Transmit;
use super::env::MemoryFault;

/// Grows one [`Transmit`] at the end of a buffer.
pub(super) struct Batch<'a> {
    buf: &'a mut Vec<u8>,
    start: usize,
    segment_bytes: usize,
    segments: usize,
    max_segments: usize,
    /// A shorter segment is in; it must be the last.
    closed: bool,
}

impl<'a> Batch<'a> {
    pub(super) fn new(buf: &'a mut Vec<u8>, max_segments: usize) -> Self {
        let start = buf.len();
        Self { buf, start, segment_bytes: 0, segments: 0, max_segments, closed: false }
    }

    /// Whether a datagram with these headers and `payload_len` bytes of payload may come next.
    pub(super) fn admits(&self, repr: &PacketRepr, payload_len: usize) -> bool {
        let bytes = repr.udp_payload_len(payload_len);
        let fits = self.segments == 0 || bytes <= self.segment_bytes;
        let total = self.buf.len() - self.start + bytes;
        !self.closed && self.segments < self.max_segments && fits && total <= Transmit::MAX_BYTES
    }

    /// Appends a datagram that [`Batch::admits`] agreed to; `fill` appends its payload. When that fails, or appends
    /// something else than `payload_len` bytes, the batch is as it was.
    pub(super) fn push(
        &mut self,
        mut repr: PacketRepr,
        payload_len: usize,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<(), MemoryFault>,
    ) -> Result<(), MemoryFault> {
        repr.set_payload_len(payload_len);
        let at = self.buf.len();
        let bytes = repr.udp_payload_len(payload_len);
        self.buf.reserve(bytes);
        self.buf.resize(at + repr.header_len(), 0);
        let emitted = repr.emit_headers(&mut self.buf[at..]);
        debug_assert!(emitted.is_ok(), "headers that belong to no opcode: {repr:?}");
        let headers_end = self.buf.len();
        let filled = fill(self.buf);
        let complete = self.buf.len() == headers_end + payload_len && emitted.is_ok();
        if filled.is_err() || !complete {
            self.buf.truncate(at);
            return Err(filled.err().unwrap_or(MemoryFault::Unavailable));
        }
        self.buf.extend_from_slice(repr.bth.pad.bytes());
        self.buf.extend_from_slice(&[0; ICRC_BYTES]);
        if self.segments == 0 {
            self.segment_bytes = bytes;
        }
        self.closed = bytes < self.segment_bytes;
        self.segments += 1;
        Ok(())
    }

    /// How many datagrams of `bytes` each may come next and leave the batch open.
    pub(super) fn room_for(&self, bytes: usize) -> usize {
        if self.closed || (self.segments > 0 && bytes != self.segment_bytes) {
            return 0;
        }
        let left = Transmit::MAX_BYTES.saturating_sub(self.buf.len() - self.start);
        (left / bytes.max(1)).min(self.max_segments.saturating_sub(self.segments))
    }

    /// Appends datagrams that differ in their PSNs alone, which go up from `repr`'s: no more than there is [room](Batch::room_for) for, each with
    /// `payload_len` bytes of payload, a multiple of four. `fill` appends the payloads, calls what it is given ahead of each with the
    /// payload's place, and tells how many it has appended.
    pub(super) fn push_run(
        &mut self,
        repr: PacketRepr,
        payload_len: usize,
        fill: impl FnOnce(&mut Vec<u8>, &mut dyn FnMut(usize, &mut Vec<u8>)) -> usize,
    ) -> usize {
        // What stands between two payloads.
        let mut between = [0; ICRC_BYTES + MAX_HEADER_BYTES];
        let Ok(header_len) = repr.emit_headers(&mut between[ICRC_BYTES..]) else { return 0 };
        let before = &mut |place: usize, out: &mut Vec<u8>| {
            if let Some(bth) = between[ICRC_BYTES..].first_chunk_mut() {
                BthRepr::renumber(bth, repr.bth.psn.plus(place as u32));
            }
            let from = if place == 0 { ICRC_BYTES } else { 0 };
            out.extend_from_slice(&between[from..ICRC_BYTES + header_len]);
        };
        let count = fill(self.buf, before);
        if count > 0 {
            self.buf.extend_from_slice(&[0; ICRC_BYTES]);
            self.segment_bytes = repr.udp_payload_len(payload_len);
            self.segments += count;
        }
        count
    }

    /// What has been built, if anything.
    pub(super) fn finish(self) -> Option<Transmit> {
        let total_bytes = self.buf.len() - self.start;
        (self.segments > 0).then_some(Transmit {
            segments: self.segments,
            segment_bytes: self.segment_bytes,
            total_bytes,
            is_answer: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use masq_types::{Psn, WireQpn};
    use masq_wire::{Extension, Opcode, parse};

    use super::*;

    fn middle(psn: u32) -> PacketRepr {
        PacketRepr::new(Opcode::RC_WRITE_MIDDLE, WireQpn::from_wire(5), Psn::new(psn), Extension::None)
    }

    fn last(psn: u32) -> PacketRepr {
        PacketRepr::new(Opcode::RC_WRITE_LAST, WireQpn::from_wire(5), Psn::new(psn), Extension::None)
    }

    fn fill(byte: u8, len: usize) -> impl Fn(&mut Vec<u8>) -> Result<(), MemoryFault> {
        move |buf| {
            buf.resize(buf.len() + len, byte);
            Ok(())
        }
    }

    #[test]
    fn equal_segments_and_a_shorter_last() {
        let mut buf = vec![9; 3];
        let mut batch = Batch::new(&mut buf, 8);
        batch.push(middle(0), 256, fill(1, 256)).unwrap();
        assert!(!batch.admits(&middle(1), 257), "a longer one cannot follow");
        batch.push(middle(1), 256, fill(2, 256)).unwrap();
        assert!(batch.admits(&last(2), 5));
        batch.push(last(2), 5, fill(3, 5)).unwrap();
        assert!(!batch.admits(&middle(3), 1), "nothing follows a shorter one");
        let done = batch.finish().unwrap();
        assert_eq!((done.segments, done.segment_bytes), (3, 12 + 256 + 4));
        assert_eq!(buf.len(), 3 + done.total_bytes);
        let datagrams: Vec<_> = buf[3..].chunks(done.segment_bytes).map(|d| parse(d).unwrap()).collect();
        assert_eq!(datagrams.iter().map(|p| p.payload.len()).collect::<Vec<_>>(), [256, 256, 5]);
        assert!(datagrams[2].payload.iter().all(|&b| b == 3));
    }

    #[test]
    fn failures_leave_no_trace() {
        let mut buf = Vec::new();
        let mut batch = Batch::new(&mut buf, 8);
        batch.push(middle(0), 4, fill(1, 4)).unwrap();
        let fail = |buf: &mut Vec<u8>| {
            buf.push(7);
            Err(MemoryFault::OutOfRange)
        };
        assert_eq!(batch.push(middle(1), 4, fail), Err(MemoryFault::OutOfRange));
        assert_eq!(batch.push(middle(1), 4, fill(1, 3)), Err(MemoryFault::Unavailable));
        assert_eq!(batch.finish().unwrap().total_bytes, 12 + 4 + 4);
        assert_eq!(buf.len(), 20);
        assert_eq!(Batch::new(&mut buf, 1).finish(), None);
    }

    /// A run is what its datagrams are one by one, and as many of them as could be filled.
    #[test]
    fn a_run_is_datagrams_one_by_one() {
        for (wanted, filled) in [(1, 1), (5, 5), (5, 2), (3, 0)] {
            let (mut one_by_one, mut run) = (Vec::new(), Vec::new());
            let mut batch = Batch::new(&mut one_by_one, 8);
            (0..filled).for_each(|n| batch.push(middle(0xff_fffe + n), 256, fill(n as u8, 256)).unwrap());
            let expected = batch.finish();
            let mut batch = Batch::new(&mut run, 8);
            let bytes = middle(0).udp_payload_len(256);
            assert_eq!((batch.room_for(bytes), batch.room_for(9000)), (8, 7));
            let count = batch.push_run(middle(0xff_fffe), 256, |out, before| {
                assert!(filled <= wanted);
                for n in 0..filled {
                    before(n as usize, out);
                    fill(n as u8, 256)(out).unwrap();
                }
                filled as usize
            });
            assert_eq!(count, filled as usize);
            assert_eq!(batch.room_for(bytes), 8 - count);
            assert_eq!(batch.room_for(bytes - 4), if count == 0 { 8 } else { 0 }, "a shorter one closes it");
            assert_eq!(batch.finish(), expected);
            assert_eq!(run, one_by_one);
        }
    }

    #[test]
    fn bounded_in_number_and_bytes() {
        let mut buf = Vec::new();
        let mut batch = Batch::new(&mut buf, 100);
        while batch.admits(&middle(0), 4096) {
            batch.push(middle(0), 4096, fill(1, 4096)).unwrap();
        }
        assert_eq!(batch.finish().unwrap().segments, 15);
        let mut batch = Batch::new(&mut buf, 2);
        while batch.admits(&middle(0), 256) {
            batch.push(middle(0), 256, fill(1, 256)).unwrap();
        }
        assert_eq!(batch.finish().unwrap().segments, 2);
    }
}
