//! How an RNIC of masq asks another one whether a queue pair there is connected to one here.
//!
//! Packets of a connection do not say which queue pair has sent them, so several queue pairs that share an address cannot be told apart by the one that they are all
//! connected to. The RNIC of that one can: it knows whom it is connected to. As with a [`PathProbe`](crate::PathProbe), the question goes to number 0, which nobody has,
//! and the RNIC itself answers, so that guests can neither ask nor answer. No is not said.
//!
//! ```text
//! BTH (12): opcode 0xd8 or 0xd9, destination 0 | 0, number there (4) | 0, number here (4) | address here (16) | token (8) | ICRC (4)
//! ```

use alloc::vec::Vec;

use masq_types::{Gid, Psn, WireQpn};

use crate::{Bth, BthRepr, ICRC_BYTES, Opcode, PathProbe};

/// A question whether two queue pairs are connected, or that they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// It says that they are.
    pub is_answer: bool,
    /// The queue pair of who is asked.
    pub there: WireQpn,
    /// The queue pair of who asks.
    pub here: WireQpn,
    /// The underlay address that the latter is connected from.
    pub address: Gid,
    /// Chosen by who asks, and repeated by who answers.
    pub token: [u8; Inquiry::TOKEN_BYTES],
}

impl Inquiry {
    /// Bytes of a token.
    pub const TOKEN_BYTES: usize = 8;
    /// Bytes of the UDP payload.
    pub const BYTES: usize = Bth::LEN + 4 + 4 + 16 + Self::TOKEN_BYTES + ICRC_BYTES;

    const ASKS: Opcode = Opcode(0xd8);
    const ANSWERS: Opcode = Opcode(0xd9);

    /// What a UDP payload says whose ICRC has been checked; `None` when it is none.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let (bth, rest) = packet.split_first_chunk::<{ Bth::LEN }>()?;
        let repr = BthRepr::parse(Bth::from_prefix(bth)?).ok()?;
        let is_answer = match repr.opcode {
            Self::ASKS => false,
            Self::ANSWERS => true,
            _ => return None,
        };
        let (there, rest) = rest.split_first_chunk()?;
        let (here, rest) = rest.split_first_chunk()?;
        let (address, rest) = rest.split_first_chunk()?;
        let (token, rest) = rest.split_first_chunk()?;
        let number = |bytes: &[u8; 4]| WireQpn::new(u32::from_be_bytes(*bytes));
        let (there, here) = (number(there)?, number(here)?);
        let is_whole = repr.dest_qp == PathProbe::QPN && rest.len() == ICRC_BYTES;
        is_whole.then_some(Self { is_answer, there, here, address: Gid(*address), token: *token })
    }

    /// Appends the UDP payload, with room for the ICRC. Returns how many bytes there are.
    pub fn emit(&self, out: &mut Vec<u8>) -> usize {
        let opcode = if self.is_answer { Self::ANSWERS } else { Self::ASKS };
        let mut bth = [0; Bth::LEN];
        BthRepr::new(opcode, PathProbe::QPN, Psn::new(0)).emit(&mut bth);
        out.extend_from_slice(&bth);
        out.extend_from_slice(&self.there.get().to_be_bytes());
        out.extend_from_slice(&self.here.get().to_be_bytes());
        out.extend_from_slice(&self.address.0);
        out.extend_from_slice(&self.token);
        out.extend_from_slice(&[0; ICRC_BYTES]);
        Self::BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inquiry() -> Inquiry {
        Inquiry {
            is_answer: false,
            there: WireQpn::from_wire(0x01_0203),
            here: WireQpn::from_wire(0x04_0506),
            address: Gid([7, 7, 7, 7, 7, 7, 7, 7, 8, 8, 8, 8, 8, 8, 8, 8]),
            token: [1, 2, 3, 4, 5, 6, 7, 8],
        }
    }

    /// Written by hand from the text above.
    #[test]
    fn golden_bytes() {
        let bytes = [
            0xd8, 0x40, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, // BTH
            0, 1, 2, 3, 0, 4, 5, 6, // numbers
            7, 7, 7, 7, 7, 7, 7, 7, 8, 8, 8, 8, 8, 8, 8, 8, // address
            1, 2, 3, 4, 5, 6, 7, 8, // token
            0, 0, 0, 0, // ICRC
        ];
        let mut out = alloc::vec![0xaa];
        assert_eq!(inquiry().emit(&mut out), Inquiry::BYTES);
        assert_eq!(out[1..], bytes);
        assert_eq!(Inquiry::parse(&bytes), Some(inquiry()));
        let answer = Inquiry { is_answer: true, ..inquiry() };
        out.clear();
        answer.emit(&mut out);
        assert_eq!((out.len(), out[0]), (Inquiry::BYTES, 0xd9));
        assert_eq!(Inquiry::parse(&out), Some(answer));
    }

    #[test]
    fn what_is_none() {
        let mut bytes = Vec::new();
        inquiry().emit(&mut bytes);
        for len in 0..bytes.len() {
            assert_eq!(Inquiry::parse(&bytes[..len]), None, "{len} bytes");
        }
        for (at, value) in [(0, 0xce), (0, 0x0a), (1, 0x41), (7, 1), (12, 1), (16, 1)] {
            let mut other = bytes.clone();
            other[at] = value;
            assert_eq!(Inquiry::parse(&other), None, "byte {at} is {value:#x}");
        }
        bytes.push(0);
        assert_eq!(Inquiry::parse(&bytes), None, "too long");
    }
}
