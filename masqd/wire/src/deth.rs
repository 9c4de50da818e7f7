use masq_types::WireQpn;

use crate::view::{field, put, view};

view! {
    /// The bytes of a datagram extended transport header (IBTA Vol 1 §9.3.2).
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
