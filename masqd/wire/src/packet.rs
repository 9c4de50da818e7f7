use masq_types::{Mtu, Psn, WireQpn};

use crate::opcode::{Body, Layout, Opcode, OpcodeInfo, Position};
use crate::{
    Aeth, AethRepr, Arrived, AtomicAckEth, AtomicAckEthRepr, AtomicEth, AtomicEthRepr, Before, BeforeRepr,
    Bth, BthRepr, Deth, DethRepr, Hold, HoldRepr, ICRC_BYTES, Ieth, ImmDt, PadCount, Reth, RethRepr,
    WireError, XrcEth,
};

/// Bytes of all transport headers of any packet, at most: BTH, XRCETH and AtomicETH.
pub const MAX_HEADER_BYTES: usize = Bth::LEN + XrcEth::LEN + AtomicEth::LEN;

const _: () = {
    let mut i = 0;
    while i < Layout::ALL.len() {
        assert!(Bth::LEN + XrcEth::LEN + Layout::ALL[i].len_bytes() <= MAX_HEADER_BYTES);
        i += 1;
    }
};

/// The extension headers of a packet: one variant for each [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are those of Layout
pub enum Extension {
    None,
    Imm(ImmDt),
    Ieth(Ieth),
    Reth(RethRepr),
    RethImm(RethRepr, ImmDt),
    Aeth(AethRepr),
    AethAtomicAck(AethRepr, AtomicAckEthRepr),
    AethHold(AethRepr, HoldRepr),
    Atomic(AtomicEthRepr),
    Deth(DethRepr),
    DethImm(DethRepr, ImmDt),
    ImmBefore(ImmDt, BeforeRepr),
    RethImmBefore(RethRepr, ImmDt, BeforeRepr),
}

impl Extension {
    /// Which headers these are.
    pub const fn layout(&self) -> Layout {
        match self {
            Extension::None => Layout::None,
            Extension::Imm(_) => Layout::Imm,
            Extension::Ieth(_) => Layout::Ieth,
            Extension::Reth(_) => Layout::Reth,
            Extension::RethImm(..) => Layout::RethImm,
            Extension::Aeth(_) => Layout::Aeth,
            Extension::AethAtomicAck(..) => Layout::AethAtomicAck,
            Extension::AethHold(..) => Layout::AethHold,
            Extension::Atomic(_) => Layout::Atomic,
            Extension::Deth(_) => Layout::Deth,
            Extension::DethImm(..) => Layout::DethImm,
            Extension::ImmBefore(..) => Layout::ImmBefore,
            Extension::RethImmBefore(..) => Layout::RethImmBefore,
        }
    }

    /// The RETH, if there is one.
    pub const fn reth(&self) -> Option<&RethRepr> {
        match self {
            Extension::Reth(r) | Extension::RethImm(r, _) | Extension::RethImmBefore(r, ..) => Some(r),
            _ => None,
        }
    }

    /// The AETH, if there is one.
    pub const fn aeth(&self) -> Option<&AethRepr> {
        match self {
            Extension::Aeth(a) | Extension::AethAtomicAck(a, _) | Extension::AethHold(a, _) => Some(a),
            _ => None,
        }
    }

    /// The DETH, if there is one.
    pub const fn deth(&self) -> Option<&DethRepr> {
        match self {
            Extension::Deth(d) | Extension::DethImm(d, _) => Some(d),
            _ => None,
        }
    }

    /// The AtomicETH, if there is one.
    pub const fn atomic(&self) -> Option<&AtomicEthRepr> {
        match self {
            Extension::Atomic(a) => Some(a),
            _ => None,
        }
    }

    /// The AtomicAckETH, if there is one.
    pub const fn atomic_ack(&self) -> Option<&AtomicAckEthRepr> {
        match self {
            Extension::AethAtomicAck(_, a) => Some(a),
            _ => None,
        }
    }

    /// The hold time, if there is one.
    pub const fn hold(&self) -> Option<HoldRepr> {
        match self {
            Extension::AethHold(_, h) => Some(*h),
            _ => None,
        }
    }

    /// The immediate data, if there is some.
    pub const fn imm(&self) -> Option<ImmDt> {
        match self {
            Extension::Imm(i) | Extension::RethImm(_, i) | Extension::DethImm(_, i) => Some(*i),
            Extension::ImmBefore(i, _) | Extension::RethImmBefore(_, i, _) => Some(*i),
            _ => None,
        }
    }

    /// What came of the message before, if that is said.
    pub const fn before(&self) -> Option<BeforeRepr> {
        match self {
            Extension::ImmBefore(_, b) | Extension::RethImmBefore(_, _, b) => Some(*b),
            _ => None,
        }
    }

    /// The IETH, if there is one.
    pub const fn ieth(&self) -> Option<Ieth> {
        match self {
            Extension::Ieth(i) => Some(*i),
            _ => None,
        }
    }

    fn parse(layout: Layout, bytes: &[u8]) -> Option<Self> {
        let reth = |b| Reth::from_prefix(b).map(RethRepr::parse);
        let aeth = |b| Aeth::from_prefix(b).map(AethRepr::parse);
        let deth = |b| Deth::from_prefix(b).map(DethRepr::parse);
        let after = |n| bytes.get(n..);
        Some(match layout {
            Layout::None => Extension::None,
            Layout::Imm => Extension::Imm(ImmDt::from_prefix(bytes)?),
            Layout::Ieth => Extension::Ieth(Ieth::from_prefix(bytes)?),
            Layout::Reth => Extension::Reth(reth(bytes)?),
            Layout::RethImm => Extension::RethImm(reth(bytes)?, ImmDt::from_prefix(after(Reth::LEN)?)?),
            Layout::Aeth => Extension::Aeth(aeth(bytes)?),
            Layout::AethAtomicAck => {
                let ack = AtomicAckEth::from_prefix(after(Aeth::LEN)?)?;
                Extension::AethAtomicAck(aeth(bytes)?, AtomicAckEthRepr::parse(ack))
            }
            Layout::AethHold => {
                let hold = Hold::from_prefix(after(Aeth::LEN)?)?;
                Extension::AethHold(aeth(bytes)?, HoldRepr::parse(hold))
            }
            Layout::Atomic => Extension::Atomic(AtomicEthRepr::parse(AtomicEth::from_prefix(bytes)?)),
            Layout::Deth => Extension::Deth(deth(bytes)?),
            Layout::DethImm => Extension::DethImm(deth(bytes)?, ImmDt::from_prefix(after(Deth::LEN)?)?),
            Layout::ImmBefore => {
                let before = Before::from_prefix(after(ImmDt::LEN)?)?;
                Extension::ImmBefore(ImmDt::from_prefix(bytes)?, BeforeRepr::parse(before))
            }
            Layout::RethImmBefore => {
                let imm = ImmDt::from_prefix(after(Reth::LEN)?)?;
                let before = Before::from_prefix(after(Reth::LEN + ImmDt::LEN)?)?;
                Extension::RethImmBefore(reth(bytes)?, imm, BeforeRepr::parse(before))
            }
        })
    }

    /// Writes the headers at the start of `bytes`, or returns `None` when they do not fit.
    fn emit(&self, bytes: &mut [u8]) -> Option<()> {
        fn split<const N: usize>(bytes: &mut [u8]) -> Option<(&mut [u8; N], &mut [u8])> {
            bytes.split_first_chunk_mut()
        }
        match self {
            Extension::None => {}
            Extension::Imm(imm) => imm.emit(split(bytes)?.0),
            Extension::Ieth(ieth) => ieth.emit(split(bytes)?.0),
            Extension::Reth(reth) => reth.emit(split(bytes)?.0),
            Extension::RethImm(reth, imm) => {
                let (head, rest) = split(bytes)?;
                reth.emit(head);
                imm.emit(split(rest)?.0);
            }
            Extension::Aeth(aeth) => aeth.emit(split(bytes)?.0),
            Extension::AethAtomicAck(aeth, ack) => {
                let (head, rest) = split(bytes)?;
                aeth.emit(head);
                ack.emit(split(rest)?.0);
            }
            Extension::AethHold(aeth, hold) => {
                let (head, rest) = split(bytes)?;
                aeth.emit(head);
                hold.emit(split(rest)?.0);
            }
            Extension::Atomic(atomic) => atomic.emit(split(bytes)?.0),
            Extension::Deth(deth) => deth.emit(split(bytes)?.0),
            Extension::DethImm(deth, imm) => {
                let (head, rest) = split(bytes)?;
                deth.emit(head);
                imm.emit(split(rest)?.0);
            }
            Extension::ImmBefore(imm, before) => {
                let (head, rest) = split(bytes)?;
                imm.emit(head);
                before.emit(split(rest)?.0);
            }
            Extension::RethImmBefore(reth, imm, before) => {
                let (head, rest) = split(bytes)?;
                reth.emit(head);
                let (head, rest) = split(rest)?;
                imm.emit(head);
                before.emit(split(rest)?.0);
            }
        }
        Some(())
    }
}

/// All transport headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRepr {
    /// Base transport header.
    pub bth: BthRepr,
    /// XRC extended transport header; must be there if and only if the opcode has one.
    pub xrc: Option<XrcEth>,
    /// Further extension headers; must be those of the BTH's opcode.
    pub ext: Extension,
}

impl PacketRepr {
    /// Headers with [`BthRepr::new`]'s defaults and no payload.
    pub const fn new(opcode: Opcode, dest_qp: WireQpn, psn: Psn, ext: Extension) -> Self {
        Self { bth: BthRepr::new(opcode, dest_qp, psn), xrc: None, ext }
    }

    /// Sets the pad count for a payload of `bytes`.
    pub fn set_payload_len(&mut self, bytes: usize) {
        self.bth.pad = PadCount::for_payload(bytes);
    }

    /// Bytes of all headers.
    pub const fn header_len(&self) -> usize {
        let xrc = if self.xrc.is_some() { XrcEth::LEN } else { 0 };
        Bth::LEN + xrc + self.ext.layout().len_bytes()
    }

    /// Bytes of the UDP payload with `payload_len` bytes of application payload: headers, payload, pad
    /// and ICRC.
    pub const fn udp_payload_len(&self, payload_len: usize) -> usize {
        self.header_len() + payload_len + PadCount::for_payload(payload_len).get() + ICRC_BYTES
    }

    /// Writes the headers at the start of `bytes` and returns how many bytes they are (at most
    /// [`MAX_HEADER_BYTES`]). The caller appends payload, [`PadCount::bytes`] and ICRC.
    ///
    /// Fails when the opcode has no row in the table or other headers than given, and when `bytes` is
    /// too short. Then `bytes` is unchanged.
    pub fn emit_headers(&self, bytes: &mut [u8]) -> Result<usize, WireError> {
        let opcode = self.bth.opcode;
        let info = opcode.info().ok_or(WireError::UnknownOpcode(opcode))?;
        let layout = self.ext.layout();
        if layout != info.layout {
            return Err(WireError::LayoutMismatch { opcode, got: layout });
        }
        if self.xrc.is_some() != info.has_xrceth() {
            return Err(WireError::XrcEthMismatch(opcode));
        }
        let (need, got) = (self.header_len(), bytes.len());
        let too_short = WireError::Truncated { what: "buffer for headers", need, got };
        let bytes = bytes.get_mut(..need).ok_or(too_short)?;
        let (bth, mut ext) = bytes.split_first_chunk_mut().ok_or(too_short)?;
        self.bth.emit(bth);
        if let Some(xrc) = &self.xrc {
            let (head, rest) = ext.split_first_chunk_mut().ok_or(too_short)?;
            xrc.emit(head);
            ext = rest;
        }
        self.ext.emit(ext).ok_or(too_short)?;
        Ok(need)
    }
}

/// A packet whose headers and lengths make sense. Nothing is said yet of its ICRC or of the QP's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// The headers.
    pub repr: PacketRepr,
    /// The opcode's row.
    pub info: &'static OpcodeInfo,
    /// The application's payload without pad, or the bitmap of a selective acknowledgement; empty for opcodes that carry neither.
    pub payload: &'a [u8],
    /// The ICRC that stands in the packet, as [`IcrcFlow::compute`](crate::IcrcFlow::compute) gives it.
    pub icrc: u32,
}

impl Parsed<'_> {
    /// Whether the payload's length fits the packet's place in its message on a QP with this path MTU
    /// (IBTA Vol 1 §9.7.4.1.6): First and Middle carry exactly the MTU, Last 1 byte up to
    /// the MTU, Only up to the MTU.
    pub fn check_payload_len(&self, mtu: Mtu) -> Result<(), WireError> {
        if !self.info.has_payload() {
            return Ok(());
        }
        let (got, mtu) = (self.payload.len(), mtu.bytes() as usize);
        let fits = match self.info.position {
            Position::First | Position::Middle => got == mtu,
            Position::Last => (1..=mtu).contains(&got),
            Position::Only => got <= mtu,
        };
        if fits { Ok(()) } else { Err(WireError::PayloadLength { opcode: self.info.opcode, got }) }
    }
}

/// Judges the payload of a UDP datagram to port 4791 as far as it can be judged without a QP: version,
/// opcode, and all lengths. Pad bytes may have any value, as the standard lets a receiver ignore them.
pub fn parse(udp_payload: &[u8]) -> Result<Parsed<'_>, WireError> {
    let got = udp_payload.len();
    let truncated = |what, need| WireError::Truncated { what, need, got };
    let bth = Bth::from_prefix(udp_payload);
    let bth = bth.ok_or_else(|| truncated("BTH and ICRC", Bth::LEN + ICRC_BYTES))?;
    let bth = BthRepr::parse(bth)?;
    let opcode = bth.opcode;
    let Some(info) = opcode.info() else { return Err(WireError::UnknownOpcode(opcode)) };
    if !got.is_multiple_of(4) {
        return Err(WireError::Misaligned(got));
    }
    let xrc_len = if info.has_xrceth() { XrcEth::LEN } else { 0 };
    let ext_at = Bth::LEN + xrc_len;
    let header_len = ext_at + info.layout.len_bytes();
    let too_short = || truncated(info.name, header_len + ICRC_BYTES);
    let (covered, icrc) = udp_payload.split_last_chunk::<ICRC_BYTES>().ok_or_else(too_short)?;
    let (headers, body) = covered.split_at_checked(header_len).ok_or_else(too_short)?;
    let xrc = headers.get(Bth::LEN..ext_at).filter(|b| !b.is_empty()).and_then(XrcEth::from_prefix);
    let ext = headers.get(ext_at..).and_then(|b| Extension::parse(info.layout, b)).ok_or_else(too_short)?;
    let payload = judge_body(&bth, info, body)?;
    Ok(Parsed { repr: PacketRepr { bth, xrc, ext }, info, payload, icrc: u32::from_le_bytes(*icrc) })
}

fn judge_body<'a>(bth: &BthRepr, info: &OpcodeInfo, body: &'a [u8]) -> Result<&'a [u8], WireError> {
    let (opcode, got) = (info.opcode, body.len());
    let pad = bth.pad.get();
    match info.body {
        Body::Payload => {
            let exceeds = WireError::PadExceedsPayload { pad: pad as u8, got };
            let payload = got.checked_sub(pad).and_then(|len| body.get(..len)).ok_or(exceeds)?;
            // All path MTUs are multiples of four, and every packet but the last is filled up to the MTU.
            if !info.position.ends() && (pad != 0 || payload.is_empty()) {
                return Err(WireError::PayloadLength { opcode, got: payload.len() });
            }
            Ok(payload)
        }
        Body::Empty if got != 0 => Err(WireError::UnexpectedPayload { opcode, got }),
        Body::Reserved16 if got != 16 => Err(WireError::PayloadLength { opcode, got }),
        Body::Bitmap if !(4..=Arrived::MAX_BYTES).contains(&got) || !got.is_multiple_of(4) => {
            Err(WireError::PayloadLength { opcode, got })
        }
        Body::Empty | Body::Reserved16 | Body::Bitmap if pad != 0 => {
            Err(WireError::UnexpectedPad { opcode, pad: pad as u8 })
        }
        Body::Bitmap => Ok(body),
        Body::Empty | Body::Reserved16 => Ok(&[]),
    }
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
