//! How two RNICs of masq ask each other whether a path between them carries packets.
//!
//! A probe is no packet of a queue pair: it goes to number 0, which nobody has, and is answered by the RNIC itself, so that guests can neither send
//! one nor keep one from being answered. It is as long as its sender likes, up to the longest packet of a path MTU, and its answer is as long. What comes between token and ICRC
//! is zero, and means nothing.
//!
//! ```text
//! BTH (12): opcode 0xce or 0xcf, destination 0 | token (16) | as many bytes as make it long enough | ICRC (4)
//! ```

use alloc::vec::Vec;

use masq_types::{Psn, WireQpn};

use crate::{Bth, BthRepr, ICRC_BYTES, Opcode};

/// A probe of a path, or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathProbe {
    /// It answers one.
    pub is_answer: bool,
    /// Chosen by who asks, and repeated by who answers.
    pub token: [u8; PathProbe::TOKEN_BYTES],
}

impl PathProbe {
    /// The queue pair number that all of them go to.
    pub const QPN: WireQpn = WireQpn::from_wire(0);
    /// Bytes of a token.
    pub const TOKEN_BYTES: usize = 16;
    /// Bytes of the shortest one.
    pub const MIN_BYTES: usize = Bth::LEN + Self::TOKEN_BYTES + ICRC_BYTES;
    /// Bytes of one that is as long as the first packet of an RDMA WRITE, beside the path MTU.
    pub const BESIDE_MTU_BYTES: usize = Self::MIN_BYTES;

    const ASKS: Opcode = Opcode(0xce);
    const ANSWERS: Opcode = Opcode(0xcf);

    /// What a UDP payload says whose ICRC has been checked; `None` when it is no probe.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let (bth, rest) = packet.split_at_checked(Bth::LEN)?;
        let repr = BthRepr::parse(Bth::from_prefix(bth)?).ok()?;
        let is_answer = match repr.opcode {
            Self::ASKS => false,
            Self::ANSWERS => true,
            _ => return None,
        };
        let token = *rest.first_chunk()?;
        (repr.dest_qp == Self::QPN && packet.len() >= Self::MIN_BYTES).then_some(Self { is_answer, token })
    }

    /// Appends the UDP payload of a probe: `bytes` of them, made up to [`PathProbe::MIN_BYTES`] and to a multiple of four, with room for the ICRC. Returns how many
    /// there are.
    pub fn emit(&self, out: &mut Vec<u8>, bytes: usize) -> usize {
        let bytes = bytes.max(Self::MIN_BYTES).next_multiple_of(4);
        let opcode = if self.is_answer { Self::ANSWERS } else { Self::ASKS };
        let mut bth = [0; Bth::LEN];
        BthRepr::new(opcode, Self::QPN, Psn::new(0)).emit(&mut bth);
        let begin = out.len();
        out.extend_from_slice(&bth);
        out.extend_from_slice(&self.token);
        out.resize(begin + bytes, 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

    /// Written by hand from the text above.
    #[test]
    fn golden_bytes() {
        let bytes = [
            0xce, 0x40, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, // BTH
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, // token
            0, 0, 0, 0, // ICRC
        ];
        let probe = PathProbe { is_answer: false, token: TOKEN };
        let mut out = alloc::vec![0xaa];
        assert_eq!(probe.emit(&mut out, 0), PathProbe::MIN_BYTES);
        assert_eq!(out[1..], bytes);
        assert_eq!(PathProbe::parse(&bytes), Some(probe));
        let answer = PathProbe { is_answer: true, ..probe };
        out.clear();
        assert_eq!(answer.emit(&mut out, 4127), 4128);
        assert_eq!((out.len(), out[0]), (4128, 0xcf));
        assert_eq!(PathProbe::parse(&out), Some(answer));
    }

    #[test]
    fn what_is_none() {
        let mut bytes = Vec::new();
        PathProbe { is_answer: false, token: TOKEN }.emit(&mut bytes, 0);
        for len in 0..bytes.len() {
            assert_eq!(PathProbe::parse(&bytes[..len]), None, "{len} bytes");
        }
        for (at, value) in [(0, 0xcd), (0, 0x0a), (1, 0x41), (7, 1)] {
            let mut other = bytes.clone();
            other[at] = value;
            assert_eq!(PathProbe::parse(&other), None, "byte {at} is {value:#x}");
        }
    }
}
