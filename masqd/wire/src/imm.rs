/// Immediate data (IBTA Vol 1 §9.3): four bytes that no one between the applications reads, in the
/// order in which verbs' `__be32 imm_data` lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImmDt(pub [u8; 4]);

impl ImmDt {
    /// Length of this header in bytes.
    pub const LEN: usize = 4;

    /// The immediate data at the start of `bytes`, or `None` when they are too few.
    pub fn from_prefix(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().copied().map(Self)
    }

    /// Writes all four bytes.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_their_order() {
        let bytes = [0x01, 0x80, 0xfe, 0x55, 0x77];
        let imm = ImmDt::from_prefix(&bytes).unwrap();
        assert_eq!(imm, ImmDt([0x01, 0x80, 0xfe, 0x55]));
        let mut out = [0xa5; ImmDt::LEN];
        imm.emit(&mut out);
        assert_eq!(out, bytes[..4]);
        assert_eq!(ImmDt::from_prefix(&bytes[..3]), None);
    }
}
