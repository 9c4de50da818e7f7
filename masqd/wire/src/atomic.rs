use masq_types::Rkey;

use crate::view::{field, put, view};

view! {
    /// The bytes of an atomic extended transport header (IBTA Vol 1 §9.3).
    AtomicEth, 28
}

impl AtomicEth<'_> {
    /// Virtual address.
    pub fn va(self) -> u64 {
        field!(self.0, 0, u64)
    }

    /// Remote key.
    pub fn rkey(self) -> Rkey {
        Rkey(field!(self.0, 8, u32))
    }

    /// The value to store (CmpSwap) or to add (FetchAdd).
    pub fn swap_or_add(self) -> u64 {
        field!(self.0, 12, u64)
    }

    /// The value to compare with; CmpSwap only.
    pub fn compare(self) -> u64 {
        field!(self.0, 20, u64)
    }
}

/// An atomic extended transport header's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEthRepr {
    /// Virtual address in the responder's region; the responder judges its alignment.
    pub va: u64,
    /// The region's key.
    pub rkey: Rkey,
    /// The value to store (CmpSwap) or to add (FetchAdd).
    pub swap_or_add: u64,
    /// The value to compare with; ignored by FetchAdd.
    pub compare: u64,
}

impl AtomicEthRepr {
    /// Reads all fields; every value has a meaning.
    pub fn parse(atomic: AtomicEth<'_>) -> Self {
        Self {
            va: atomic.va(),
            rkey: atomic.rkey(),
            swap_or_add: atomic.swap_or_add(),
            compare: atomic.compare(),
        }
    }

    /// Writes all 28 bytes.
    pub fn emit(&self, bytes: &mut [u8; AtomicEth::LEN]) {
        put!(bytes, 0, u64, self.va);
        put!(bytes, 8, u32, self.rkey.0);
        put!(bytes, 12, u64, self.swap_or_add);
        put!(bytes, 20, u64, self.compare);
    }
}

view! {
    /// The bytes of an atomic acknowledge extended transport header (IBTA Vol 1 §9.3).
    AtomicAckEth, 8
}

impl AtomicAckEth<'_> {
    /// The value before the operation.
    pub fn original(self) -> u64 {
        field!(self.0, 0, u64)
    }
}

/// An atomic acknowledge extended transport header's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEthRepr {
    /// The value before the operation.
    pub original: u64,
}

impl AtomicAckEthRepr {
    /// Reads the field; every value has a meaning.
    pub fn parse(ack: AtomicAckEth<'_>) -> Self {
        Self { original: ack.original() }
    }

    /// Writes all eight bytes.
    pub fn emit(&self, bytes: &mut [u8; AtomicAckEth::LEN]) {
        put!(bytes, 0, u64, self.original);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_of_a_request_both_ways() {
        let bytes: [u8; 28] = core::array::from_fn(|i| i as u8);
        let repr = AtomicEthRepr {
            va: 0x0001_0203_0405_0607,
            rkey: Rkey(0x0809_0a0b),
            swap_or_add: 0x0c0d_0e0f_1011_1213,
            compare: 0x1415_1617_1819_1a1b,
        };
        assert_eq!(AtomicEthRepr::parse(AtomicEth::new(&bytes)), repr);
        let mut out = [0xa5; AtomicEth::LEN];
        repr.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn golden_bytes_of_an_answer_both_ways() {
        let bytes = [0xff, 1, 2, 3, 4, 5, 6, 7];
        let repr = AtomicAckEthRepr { original: 0xff01_0203_0405_0607 };
        assert_eq!(AtomicAckEthRepr::parse(AtomicAckEth::new(&bytes)), repr);
        let mut out = [0xa5; AtomicAckEth::LEN];
        repr.emit(&mut out);
        assert_eq!(out, bytes);
    }
}
