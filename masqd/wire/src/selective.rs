//! What masq's own acknowledgements (opcodes 0xc0 and 0xc1) and answers to READs (0xcc and 0xcd) bring, which only an RNIC of masq understands.
//!
//! ```text
//! timed:     BTH | AETH | hold time (4)
//! selective: BTH | AETH | hold time (4) | bitmap (4 to 128, a multiple of 4)
//! answer:    BTH | AETH | hold time (4) | data
//! ```
//!
//! BTH and AETH are those of an acknowledgement: the PSN is that of the last request carried out. The bitmap says which requests behind the next
//! expected one have arrived and are kept: bit `i` (bit `i % 8` of byte `i / 8`, the lowest being bit 0) stands for the PSN
//! `expected + 1 + i`, which is that of the BTH plus `2 + i`. Bits behind its end are zero.

use core::time::Duration;

use crate::view::{field, put, view};

view! {
    /// The bytes of a hold time.
    Hold, 4
}

impl Hold<'_> {
    /// Nanoseconds.
    pub fn nanos(self) -> u32 {
        field!(self.0, 0, u32)
    }
}

/// How long the responder had held the newest request that it acknowledges, or the READ that it answers, when it sent this, in nanoseconds: from when its host
/// received the packet. The largest value stands for all that is longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HoldRepr {
    /// Nanoseconds.
    pub nanos: u32,
}

impl HoldRepr {
    /// Reads the field.
    pub fn parse(hold: Hold<'_>) -> Self {
        Self { nanos: hold.nanos() }
    }

    /// Writes all four bytes.
    pub fn emit(&self, bytes: &mut [u8; Hold::LEN]) {
        put!(bytes, 0, u32, self.nanos);
    }

    /// As a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.nanos as u64)
    }
}

/// A hold time as it fits the field.
impl From<Duration> for HoldRepr {
    fn from(held: Duration) -> Self {
        Self { nanos: u32::try_from(held.as_nanos()).unwrap_or(u32::MAX) }
    }
}

/// A bitmap that was received. Any bytes are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived<'a>(&'a [u8]);

impl<'a> Arrived<'a> {
    /// Most bits.
    pub const MAX_BITS: u32 = 1024;
    /// Most bytes.
    pub const MAX_BYTES: usize = Self::MAX_BITS as usize / 8;

    /// The bitmap of these bytes, of which those behind the largest bitmap are left out.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes.get(..Self::MAX_BYTES).unwrap_or(bytes))
    }

    /// The bitmap as words: bit `i` is bit `i % 64` of word `i / 64`.
    pub fn words(self) -> [u64; Arrived::MAX_BITS as usize / 64] {
        let mut words = [0; Arrived::MAX_BITS as usize / 64];
        for (word, bytes) in words.iter_mut().zip(self.0.chunks(8)) {
            let mut whole = [0; 8];
            whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            *word = u64::from_le_bytes(whole);
        }
        words
    }

    /// The places of the bits that are set, below [`Arrived::MAX_BITS`], in order.
    pub fn places(self) -> impl Iterator<Item = u32> + 'a {
        self.0.iter().zip(0u32..).flat_map(|(&byte, at)| {
            let mut left = byte;
            core::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 8).then_some(8 * at + bit)
            })
        })
    }
}

/// A bitmap to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrivedRepr {
    bytes: [u8; Arrived::MAX_BYTES],
    len: usize,
}

impl ArrivedRepr {
    /// A bitmap of the fewest bytes that bring these places; those that it has no room for are left out.
    pub fn of(places: impl IntoIterator<Item = u32>) -> Self {
        let mut repr = Self { bytes: [0; Arrived::MAX_BYTES], len: 4 };
        for place in places {
            if let Some(byte) = repr.bytes.get_mut(place as usize / 8) {
                *byte |= 1 << (place % 8);
                repr.len = repr.len.max((place as usize / 8 + 1).next_multiple_of(4));
            }
        }
        repr
    }

    /// The bitmap of these words, laid out as in [`Arrived::words`].
    pub fn of_words(words: [u64; Arrived::MAX_BITS as usize / 64]) -> Self {
        let mut bytes = [0; Arrived::MAX_BYTES];
        let mut len = 4;
        for (i, (to, word)) in bytes.chunks_exact_mut(8).zip(words).enumerate() {
            to.copy_from_slice(&word.to_le_bytes());
            if word != 0 {
                len = 8 * i + if word > u32::MAX.into() { 8 } else { 4 };
            }
        }
        Self { bytes, len }
    }

    /// Its bytes, 4 to [`Arrived::MAX_BYTES`], a multiple of four.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn golden_bytes_of_a_hold_time_both_ways() {
        let repr = HoldRepr { nanos: 0x0102_0304 };
        assert_eq!(HoldRepr::parse(Hold::new(&[1, 2, 3, 4])), repr);
        let mut out = [0xa5; Hold::LEN];
        repr.emit(&mut out);
        assert_eq!(out, [1, 2, 3, 4]);
        assert_eq!(HoldRepr::from(Duration::from_secs(5)).nanos, u32::MAX);
        assert_eq!(HoldRepr::from(Duration::from_micros(5)).duration(), Duration::from_micros(5));
    }

    #[test]
    fn golden_bytes_of_a_bitmap_both_ways() {
        let places = [0, 9, 31, 32];
        let repr = ArrivedRepr::of(places);
        assert_eq!(repr.bytes(), [1, 2, 0, 0x80, 1, 0, 0, 0]);
        assert_eq!(Arrived::new(repr.bytes()).places().collect::<Vec<_>>(), places);
        let words = Arrived::new(repr.bytes()).words();
        assert_eq!((words[0], words[1]), (1 << 32 | 1 << 31 | 1 << 9 | 1, 0));
        assert_eq!(ArrivedRepr::of_words(words), repr);
        let far = ArrivedRepr::of([3, 70]);
        assert_eq!(ArrivedRepr::of_words(Arrived::new(far.bytes()).words()), far);
        assert_eq!(ArrivedRepr::of_words(Default::default()), ArrivedRepr::of([]));
        assert_eq!(ArrivedRepr::of([]).bytes(), [0; 4]);
    }

    #[test]
    fn a_bitmap_has_an_end() {
        let whole = ArrivedRepr::of(0..2000);
        assert_eq!(whole.bytes(), [0xff; Arrived::MAX_BYTES]);
        assert_eq!(Arrived::new(&[0xff; 200]).places().max(), Some(Arrived::MAX_BITS - 1));
        assert_eq!(ArrivedRepr::of([1024]), ArrivedRepr::of([]));
    }
}
