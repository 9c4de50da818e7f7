use masq_types::{Psn, WireQpn};

use crate::WireError;
use crate::opcode::Opcode;
use crate::view::{field, put, view};

/// The partition key of the default partition with full membership; the only one on RoCE.
pub const DEFAULT_PKEY: u16 = 0xffff;

view! {
    /// The bytes of a base transport header (IBTA Vol 1 §9.2).
    Bth, 12
}

impl Bth<'_> {
    /// The opcode.
    pub fn opcode(self) -> Opcode {
        Opcode(field!(self.0, 0, u8))
    }

    /// Solicited event (SE).
    pub fn solicited(self) -> bool {
        self.0[1] & 0x80 != 0
    }

    /// Migration request (M).
    pub fn mig_req(self) -> bool {
        self.0[1] & 0x40 != 0
    }

    /// Pad count.
    pub fn pad(self) -> PadCount {
        PadCount(self.0[1] >> 4 & 3)
    }

    /// Transport header version (TVer); 0 is the only one.
    pub fn version(self) -> u8 {
        self.0[1] & 0xf
    }

    /// Partition key.
    pub fn pkey(self) -> u16 {
        field!(self.0, 2, u16)
    }

    /// Forward congestion (F).
    pub fn fecn(self) -> bool {
        self.0[4] & 0x80 != 0
    }

    /// Backward congestion (B).
    pub fn becn(self) -> bool {
        self.0[4] & 0x40 != 0
    }

    /// Destination QP.
    pub fn dest_qp(self) -> WireQpn {
        WireQpn::from_wire(field!(self.0, 5, u24))
    }

    /// Acknowledge request (A).
    pub fn ack_req(self) -> bool {
        self.0[8] & 0x80 != 0
    }

    /// Packet sequence number.
    pub fn psn(self) -> Psn {
        Psn::new(field!(self.0, 9, u24))
    }
}

/// Bytes of zero that follow the payload, so that a packet's length is a multiple of four: 0..=3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct PadCount(u8);

impl PadCount {
    /// The pad behind `payload_len` bytes.
    pub const fn for_payload(payload_len: usize) -> Self {
        Self((payload_len.wrapping_neg() & 3) as u8)
    }

    /// The count, 0..=3.
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// The pad itself: as many zero bytes.
    pub fn bytes(self) -> &'static [u8] {
        &[0; 3][..self.get()]
    }
}

/// A base transport header's meaning. The transport header version is 0; reserved bits are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BthRepr {
    /// The opcode.
    pub opcode: Opcode,
    /// Solicited event: the responder shall raise an event for the completion.
    pub solicited: bool,
    /// Migration state; set in packets of a migrated (that is, ordinary) QP.
    pub mig_req: bool,
    /// Pad bytes behind the payload.
    pub pad: PadCount,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion was met on the way.
    pub fecn: bool,
    /// Tells the receiver that its packets meet congestion; set in a CNP.
    pub becn: bool,
    /// Destination QP.
    pub dest_qp: WireQpn,
    /// The requester wants an acknowledgement of this packet.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl BthRepr {
    /// A header with default partition, M set as Linux and hardware do, and all else zero.
    pub const fn new(opcode: Opcode, dest_qp: WireQpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: true,
            pad: PadCount(0),
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Judges a header: its version must be 0. The opcode is any byte.
    pub fn parse(bth: Bth<'_>) -> Result<Self, WireError> {
        if bth.version() != 0 {
            return Err(WireError::TransportVersion(bth.version()));
        }
        Ok(Self {
            opcode: bth.opcode(),
            solicited: bth.solicited(),
            mig_req: bth.mig_req(),
            pad: bth.pad(),
            pkey: bth.pkey(),
            fecn: bth.fecn(),
            becn: bth.becn(),
            dest_qp: bth.dest_qp(),
            ack_req: bth.ack_req(),
            psn: bth.psn(),
        })
    }

    /// Writes all twelve bytes, reserved fields as zero.
    pub fn emit(&self, bytes: &mut [u8; Bth::LEN]) {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        bytes[0] = self.opcode.0;
        bytes[1] = flag(self.solicited, 0x80) | flag(self.mig_req, 0x40) | self.pad.0 << 4;
        put!(bytes, 2, u16, self.pkey);
        bytes[4] = flag(self.fecn, 0x80) | flag(self.becn, 0x40);
        put!(bytes, 5, u24, self.dest_qp.get());
        bytes[8] = flag(self.ack_req, 0x80);
        Self::renumber(bytes, self.psn);
    }

    /// Gives a header that has been emitted another PSN: packets of one message often differ in nothing else.
    pub fn renumber(bytes: &mut [u8; Bth::LEN], psn: Psn) {
        put!(bytes, 9, u24, psn.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 12] = [0x0a, 0xe0, 0xff, 0xfe, 0xc0, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef];

    fn repr() -> BthRepr {
        BthRepr {
            opcode: Opcode::RC_WRITE_ONLY,
            solicited: true,
            mig_req: true,
            pad: PadCount(2),
            pkey: 0xfffe,
            fecn: true,
            becn: true,
            dest_qp: WireQpn::from_wire(0x12_3456),
            ack_req: true,
            psn: Psn::new(0xab_cdef),
        }
    }

    #[test]
    fn golden_bytes_both_ways() {
        assert_eq!(BthRepr::parse(Bth::new(&BYTES)), Ok(repr()));
        let mut bytes = [0xa5; Bth::LEN];
        repr().emit(&mut bytes);
        assert_eq!(bytes, BYTES);
        let psn = Psn::new(0xff_ffff);
        BthRepr::renumber(&mut bytes, psn);
        assert_eq!(BthRepr::parse(Bth::new(&bytes)), Ok(BthRepr { psn, ..repr() }));
    }

    #[test]
    fn each_flag_has_its_own_bit() {
        let plain = BthRepr { mig_req: false, ..BthRepr::new(Opcode(0), WireQpn::from_wire(0), Psn::new(0)) };
        type Set = fn(&mut BthRepr);
        let flags: [(Set, usize, u8); 5] = [
            (|b| b.solicited = true, 1, 0x80),
            (|b| b.mig_req = true, 1, 0x40),
            (|b| b.fecn = true, 4, 0x80),
            (|b| b.becn = true, 4, 0x40),
            (|b| b.ack_req = true, 8, 0x80),
        ];
        for (set, at, bit) in flags {
            let mut repr = plain;
            set(&mut repr);
            let mut bytes = [0xa5; Bth::LEN];
            repr.emit(&mut bytes);
            let mut expected = [0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
            expected[at] = bit;
            assert_eq!(bytes, expected);
            assert_eq!(BthRepr::parse(Bth::new(&bytes)), Ok(repr));
        }
    }

    #[test]
    fn reserved_bits_are_ignored_and_emitted_as_zero() {
        let mut bytes = BYTES;
        bytes[4] |= 0x3f;
        bytes[8] |= 0x7f;
        assert_eq!(BthRepr::parse(Bth::new(&bytes)), Ok(repr()));
    }

    #[test]
    fn other_versions_are_refused() {
        for version in 1..16 {
            let mut bytes = BYTES;
            bytes[1] |= version;
            assert_eq!(BthRepr::parse(Bth::new(&bytes)), Err(WireError::TransportVersion(version)));
        }
    }

    #[test]
    fn pad_fills_up_to_four_bytes() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(|len| PadCount::for_payload(len).get()), [0, 3, 2, 1, 0, 3]);
        assert_eq!(PadCount::for_payload(1).bytes(), [0, 0, 0]);
        assert_eq!(PadCount::for_payload(4096).bytes(), []);
    }

    #[test]
    fn a_view_needs_all_its_bytes() {
        assert!(Bth::from_prefix(&BYTES[..11]).is_none());
        assert_eq!(Bth::from_prefix(&BYTES).unwrap().as_bytes(), &BYTES);
    }
}
