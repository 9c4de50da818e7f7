use masq_types::Rkey;

/// An invalidate extended transport header (IBTA Vol 1 §9.3): the key that the responder shall
/// invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ieth(pub Rkey);

impl Ieth {
    /// Length of this header in bytes.
    pub const LEN: usize = 4;

    /// The header at the start of `bytes`, or `None` when they are too few.
    pub fn from_prefix(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().map(|b| Self(Rkey(u32::from_be_bytes(*b))))
    }

    /// Writes all four bytes.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.0.0.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let bytes = [0x12, 0x34, 0x56, 0x78];
        let ieth = Ieth(Rkey(0x1234_5678));
        assert_eq!(Ieth::from_prefix(&bytes), Some(ieth));
        let mut out = [0xa5; Ieth::LEN];
        ieth.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(Ieth::from_prefix(&bytes[..3]), None);
    }
}
