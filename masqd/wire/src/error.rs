use crate::opcode::{Layout, Opcode};

/// Why bytes are no RoCEv2 packet, or why a packet cannot be emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Fewer bytes than the headers and trailer need.
    #[error("{what}: {got} bytes where at least {need} are needed")]
    Truncated {
        /// What does not fit.
        what: &'static str,
        /// Bytes that it needs.
        need: usize,
        /// Bytes that there are.
        got: usize,
    },
    /// The transport header version is not 0 (IBTA Vol 1 §9.2.5).
    #[error("transport header version {0} where only 0 is defined")]
    TransportVersion(u8),
    /// No headers are defined for this opcode (IBTA Vol 1 §9.2.1), or not by this crate.
    #[error("{0} is reserved or not supported")]
    UnknownOpcode(Opcode),
    /// The packet's length is no multiple of four (IBTA Vol 1 §9.2.4).
    #[error("a length of {0} bytes is no multiple of four")]
    Misaligned(usize),
    /// The pad count exceeds the bytes behind the headers.
    #[error("{pad} pad bytes where only {got} bytes follow the headers")]
    PadExceedsPayload {
        /// Value of the pad count field.
        pad: u8,
        /// Bytes between headers and ICRC.
        got: usize,
    },
    /// A pad count in a packet whose opcode carries no payload.
    #[error("{opcode} carries no payload but has a pad count of {pad}")]
    UnexpectedPad {
        /// The packet's opcode.
        opcode: Opcode,
        /// Value of the pad count field.
        pad: u8,
    },
    /// Payload behind an opcode that carries none.
    #[error("{opcode} carries no payload but {got} bytes follow its headers")]
    UnexpectedPayload {
        /// The packet's opcode.
        opcode: Opcode,
        /// Bytes between headers and ICRC.
        got: usize,
    },
    /// The payload's length is impossible for the opcode's place in its message
    /// (IBTA Vol 1 §9.7.4.1.6).
    #[error("{opcode} cannot carry {got} bytes of payload")]
    PayloadLength {
        /// The packet's opcode.
        opcode: Opcode,
        /// Payload bytes, without pad.
        got: usize,
    },
    /// The extension headers given are not those of the opcode.
    #[error("{opcode} with the headers of {got:?}")]
    LayoutMismatch {
        /// The packet's opcode.
        opcode: Opcode,
        /// Headers that were given.
        got: Layout,
    },
    /// An XRCETH is missing, or is one too many.
    #[error("{0} with the wrong XRCETH, or without the one that it needs")]
    XrcEthMismatch(Opcode),
}
