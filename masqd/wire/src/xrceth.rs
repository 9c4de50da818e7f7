/// An XRC extended transport header (IBTA Vol 1 Annex A14): the shared receive queue that a request is
/// for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XrcEth {
    srq: u32,
}

impl XrcEth {
    /// Length of this header in bytes.
    pub const LEN: usize = 4;

    /// A header for the SRQ in the low 24 bits of `srq`.
    pub const fn new(srq: u32) -> Self {
        Self { srq: srq & 0xff_ffff }
    }

    /// XRC SRQ number, below 2^24.
    pub const fn srq(self) -> u32 {
        self.srq
    }

    /// The header at the start of `bytes`, or `None` when they are too few. The reserved byte is not
    /// kept.
    pub fn from_prefix(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().map(|b| Self::new(u32::from_be_bytes(*b)))
    }

    /// Writes all four bytes, the reserved one as zero.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.srq.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let xrc = XrcEth::from_prefix(&[0xff, 0xab, 0xcd, 0xef]).unwrap();
        assert_eq!(xrc.srq(), 0xab_cdef);
        let mut out = [0xa5; XrcEth::LEN];
        xrc.emit(&mut out);
        assert_eq!(out, [0, 0xab, 0xcd, 0xef]);
        assert_eq!(XrcEth::from_prefix(&[0; 3]), None);
    }
}
