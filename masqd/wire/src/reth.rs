use masq_types::Rkey;

use crate::view::{field, put, view};

view! {
    /// The bytes of an RDMA extended transport header (IBTA Vol 1 §9.3).
    Reth, 16
}

impl Reth<'_> {
    /// Virtual address.
    pub fn va(self) -> u64 {
        field!(self.0, 0, u64)
    }

    /// Remote key.
    pub fn rkey(self) -> Rkey {
        Rkey(field!(self.0, 8, u32))
    }

    /// Length of the whole message in bytes.
    pub fn dma_len(self) -> u32 {
        field!(self.0, 12, u32)
    }
}

/// An RDMA extended transport header's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RethRepr {
    /// Virtual address in the responder's region.
    pub va: u64,
    /// The region's key.
    pub rkey: Rkey,
    /// Length of the whole message in bytes; the standard allows up to 2^31.
    pub dma_len: u32,
}

impl RethRepr {
    /// Reads all fields; every value has a meaning.
    pub fn parse(reth: Reth<'_>) -> Self {
        Self { va: reth.va(), rkey: reth.rkey(), dma_len: reth.dma_len() }
    }

    /// Writes all sixteen bytes.
    pub fn emit(&self, bytes: &mut [u8; Reth::LEN]) {
        put!(bytes, 0, u64, self.va);
        put!(bytes, 8, u32, self.rkey.0);
        put!(bytes, 12, u32, self.dma_len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 0xde, 0xad, 0xbe, 0xef, 0x80, 0, 0, 1];
        let repr = RethRepr { va: 0x0102_0304_0506_0708, rkey: Rkey(0xdead_beef), dma_len: 0x8000_0001 };
        assert_eq!(RethRepr::parse(Reth::new(&bytes)), repr);
        let mut out = [0xa5; Reth::LEN];
        repr.emit(&mut out);
        assert_eq!(out, bytes);
    }
}
