//! What the end of a message brings of which parts have come by other paths (opcodes 0xc9 and 0xca), which only an RNIC of masq understands.

use crate::view::{field, put, view};

view! {
    /// The bytes of the length of what came before.
    Before, 4
}

impl Before<'_> {
    /// Bytes.
    pub fn bytes(self) -> u32 {
        field!(self.0, 0, u32)
    }
}

/// How many bytes of the message have been written before: with the packets' own they are what the receiver is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BeforeRepr {
    /// Bytes.
    pub bytes: u32,
}

impl BeforeRepr {
    /// Reads the field.
    pub fn parse(before: Before<'_>) -> Self {
        Self { bytes: before.bytes() }
    }

    /// Writes all four bytes.
    pub fn emit(&self, bytes: &mut [u8; Before::LEN]) {
        put!(bytes, 0, u32, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_have_their_meaning() {
        let repr = BeforeRepr { bytes: 0x0102_0304 };
        assert_eq!(BeforeRepr::parse(Before::new(&[1, 2, 3, 4])), repr);
        let mut out = [0xa5; Before::LEN];
        repr.emit(&mut out);
        assert_eq!(out, [1, 2, 3, 4]);
        assert!(Before::from_prefix(&[1, 2, 3]).is_none());
    }
}
