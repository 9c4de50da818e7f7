/// Immediate data (IBTA Vol 1 §9.3.6): four bytes that no one between the applications reads, in the
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
