use masq_types::WireQpn;

use crate::view::{field, put, view};

view! {
    /// The bytes of a datagram extended transport header (IBTA Vol 1 §9.3).
    Deth, 8
}

impl Deth<'_> {
    /// Queue key.
    pub fn qkey(self) -> u32 {
        field!(self.0, 0, u32)
    }

    /// The reserved byte.
    pub fn reserved(self) -> u8 {
        self.0[4]
    }

    /// Source QP.
    pub fn src_qp(self) -> WireQpn {
        WireQpn::from_wire(field!(self.0, 5, u24))
    }
}

/// A datagram extended transport header's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DethRepr {
    /// Queue key that the receiving QP must have.
    pub qkey: u32,
    /// Source QP.
    pub src_qp: WireQpn,
    /// The reserved byte: 0 from a standard sender, and nothing to a standard receiver. Between RNICs of masq, a check of the addresses that the sender means.
    pub check: u8,
}

impl DethRepr {
    /// Reads all fields; every value has a meaning.
    pub fn parse(deth: Deth<'_>) -> Self {
        Self { qkey: deth.qkey(), src_qp: deth.src_qp(), check: deth.reserved() }
    }

    /// Writes all eight bytes.
    pub fn emit(&self, bytes: &mut [u8; Deth::LEN]) {
        put!(bytes, 0, u32, self.qkey);
        bytes[4] = self.check;
        put!(bytes, 5, u24, self.src_qp.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        for check in [0, 0x7e] {
            let bytes = [0x80, 0x01, 0, 0, check, 0xab, 0xcd, 0xef];
            let repr = DethRepr { qkey: 0x8001_0000, src_qp: WireQpn::from_wire(0xab_cdef), check };
            assert_eq!(DethRepr::parse(Deth::new(&bytes)), repr);
            let mut out = [0xa5; Deth::LEN];
            repr.emit(&mut out);
            assert_eq!(out, bytes);
        }
    }
}
