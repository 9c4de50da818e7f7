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

    /// Source QP.
    pub fn src_qp(self) -> WireQpn {
        WireQpn::from_wire(field!(self.0, 5, u24))
    }
}

/// A datagram extended transport header's meaning; its reserved byte is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DethRepr {
    /// Queue key that the receiving QP must have.
    pub qkey: u32,
    /// Source QP.
    pub src_qp: WireQpn,
}

impl DethRepr {
    /// Reads all fields; every value has a meaning.
    pub fn parse(deth: Deth<'_>) -> Self {
        Self { qkey: deth.qkey(), src_qp: deth.src_qp() }
    }

    /// Writes all eight bytes, the reserved one as zero.
    pub fn emit(&self, bytes: &mut [u8; Deth::LEN]) {
        put!(bytes, 0, u32, self.qkey);
        bytes[4] = 0;
        put!(bytes, 5, u24, self.src_qp.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let bytes = [0x80, 0x01, 0, 0, 0, 0xab, 0xcd, 0xef];
        let repr = DethRepr { qkey: 0x8001_0000, src_qp: WireQpn::from_wire(0xab_cdef) };
        assert_eq!(DethRepr::parse(Deth::new(&bytes)), repr);
        let mut out = [0xa5; Deth::LEN];
        repr.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn the_reserved_byte_is_ignored() {
        let bytes = [0, 0, 0, 1, 0xff, 0, 0, 2];
        assert_eq!(DethRepr::parse(Deth::new(&bytes)), DethRepr { qkey: 1, src_qp: WireQpn::from_wire(2) });
    }
}
