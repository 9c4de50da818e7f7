//! One send request on its way: what it looks like in packets.

use masq_types::{Mtu, Psn};
use masq_wire::{
    AtomicEthRepr, BeforeRepr, Extension, Ieth, Opcode, PacketRepr, Position, RethRepr, Transport, XrcEth,
};

use super::env::{Cause, Env, LocalAccess, MemoryFault, SendOp, SendWork, Sge, Status};
use super::link::Link;
use super::{Attributes, QpConfig};

/// Why a request cannot be carried out, or was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Status of its completion.
    pub status: Status,
    /// Cause in its completion.
    pub cause: Cause,
}

impl Failure {
    /// A failure with this status and cause.
    pub const fn new(status: Status, cause: Cause) -> Self {
        Self { status, cause }
    }

    /// A failed access to the request's own memory.
    pub fn local_protection(fault: MemoryFault) -> Self {
        Self::new(Status::LocProtErr, fault.into())
    }
}

/// Judges a send request as far as its own side can, before anything of it is sent, and returns the
/// length of its message (IBTA Vol 1 §10.7.3, §11.6.2).
pub fn judge_send<E: Env>(
    env: &mut E,
    work: &SendWork,
    attributes: &Attributes,
    config: &QpConfig,
) -> Result<u32, Failure> {
    judge_send_with(work, attributes, config, |sges, access| env.check_local(sges, access))
}

/// The same, of a request that the [`Env`] keeps itself: `check_local` stands for [`Env::check_local`].
pub fn judge_send_with(
    work: &SendWork,
    attributes: &Attributes,
    config: &QpConfig,
    check_local: impl FnOnce(&[Sge], LocalAccess) -> Result<(), MemoryFault>,
) -> Result<u32, Failure> {
    if let Some(status) = work.defect {
        return Err(Failure::new(status, Cause::MalformedWork));
    }
    if !work.op.is_of(config.qp_type) {
        return Err(Failure::new(Status::LocQpOpErr, Cause::MalformedWork));
    }
    if work.op.is_local() {
        return Ok(0);
    }
    if work.op.is_fetch() && attributes.max_rd_atomic == 0 {
        return Err(Failure::new(Status::LocQpOpErr, Cause::NoInitiatorDepth));
    }
    if work.op.is_fetch() && work.inline {
        return Err(Failure::new(Status::LocQpOpErr, Cause::MalformedWork));
    }
    let len = work.len_bytes();
    if work.op.is_atomic() && len < ATOMIC_BYTES as u64 {
        return Err(Failure::new(Status::LocLenErr, Cause::AtomicLength));
    }
    let len = if work.op.is_atomic() { ATOMIC_BYTES as u64 } else { len };
    let before = if work.is_steered() { work.remote_addr } else { work.before_bytes.into() };
    if before.saturating_add(len) > u64::from(config.max_msg_bytes) {
        return Err(Failure::new(Status::LocLenErr, Cause::MessageTooLong));
    }
    let access = if work.op.is_fetch() { LocalAccess::Write } else { LocalAccess::Read };
    check_local(&work.sges, access).map_err(Failure::local_protection)?;
    Ok(len as u32)
}

/// Carries out a request that [is local](SendOp::is_local).
pub fn change_key<E: Env>(env: &mut E, work: &SendWork) -> Result<(), Failure> {
    let Some(change) = &work.key_change else {
        return Err(Failure::new(Status::LocQpOpErr, Cause::MalformedWork));
    };
    env.change_key(change).map_err(|fault| Failure::new(Status::MwBindErr, fault.into()))
}

/// Bytes that an atomic works on.
pub(super) const ATOMIC_BYTES: usize = 8;

/// PSNs that a message of `len` bytes takes: one for each packet of it, or of the answer to a READ.
pub(super) fn packets_of(len: u32, mtu: Mtu) -> u32 {
    len.div_ceil(mtu.bytes()).max(1)
}

/// A request that has its PSNs.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) work: SendWork,
    /// Its first PSN.
    pub(super) first: Psn,
    /// How many PSNs it takes; none if it failed before it got any, or sends nothing.
    pub(super) packets: u32,
    /// Bytes of its message.
    pub(super) len: u32,
    /// It fails when all before it are done.
    pub(super) failure: Option<Failure>,
    /// It sends nothing, and has been carried out.
    pub(super) carried_out: bool,
}

/// One packet of a request: `index` is its place, counted in PSNs from the request's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) index: u32,
    /// PSNs that it takes: more than one for a READ.
    pub(super) packets: u32,
    /// Where its data begins in the message.
    pub(super) offset: u32,
    /// Bytes of payload that it carries.
    pub(super) payload: usize,
    /// The message, or the READ request's piece of it, begins here.
    pub(super) begins: bool,
    pub(super) ends: bool,
    /// Its answer brings data, and comes whether it asks for an acknowledgement or not.
    pub(super) is_fetch: bool,
}

impl Request {
    /// Whether it sends nothing, and has not been carried out.
    pub(super) fn is_to_be_carried_out(&self) -> bool {
        self.work.op.is_local() && !self.carried_out && self.failure.is_none()
    }

    /// The PSN after its last.
    pub(super) fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    /// Which packet to send at place `index`; of a READ, it asks for `most` packets at most.
    pub(super) fn piece(&self, index: u32, mtu: Mtu, most: u32) -> Piece {
        let offset = index * mtu.bytes();
        let rest = self.len.saturating_sub(offset);
        let packets = match self.work.op {
            SendOp::Read => most.clamp(1, self.packets - index),
            _ => 1,
        };
        let is_fetch = self.work.op.is_fetch();
        let payload = if is_fetch { 0 } else { rest.min(mtu.bytes()) as usize };
        let (begins, ends) = (index == 0, index + packets == self.packets);
        Piece { index, packets, offset, payload, begins, ends, is_fetch }
    }

    /// Bytes of the message at place `index`, in one packet.
    pub(super) fn bytes_at(&self, index: u32, mtu: Mtu) -> u32 {
        self.len.saturating_sub(index * mtu.bytes()).min(mtu.bytes())
    }

    /// The headers of `piece`, AckReq and pad aside.
    pub(super) fn headers(&self, piece: &Piece, link: &Link<'_>) -> PacketRepr {
        let (work, transport, mtu) = (&self.work, link.config.transport(), link.mtu());
        let position = Position::of(piece.begins, piece.ends);
        let reth = |va: u64, dma_len| RethRepr { va, rkey: work.rkey, dma_len };
        let atomic = |swap_or_add, compare| AtomicEthRepr {
            va: work.remote_addr,
            rkey: work.rkey,
            swap_or_add,
            compare,
        };
        let plain = Extension::None;
        let imm = Extension::Imm(work.imm);
        let inv = Extension::Ieth(Ieth(work.inv));
        let before = BeforeRepr { bytes: work.before_bytes };
        let whole = reth(work.remote_addr, self.len);
        let (opcode, ext) = match (work.op, position) {
            (SendOp::Steer, Position::First) => (Opcode::MASQ_STEER_FIRST, Extension::Reth(whole)),
            (SendOp::Steer, Position::Middle) => (Opcode::MASQ_STEER_MIDDLE, plain),
            (SendOp::Steer, Position::Last) => (Opcode::MASQ_STEER_LAST, plain),
            (SendOp::Steer, Position::Only) => (Opcode::MASQ_STEER_ONLY, Extension::Reth(whole)),
            (SendOp::Send | SendOp::SendImm, Position::First) if work.steered => {
                (Opcode::MASQ_SEND_FIRST, Extension::Reth(whole))
            }
            (SendOp::Send, Position::Only) if work.steered => {
                (Opcode::MASQ_SEND_ONLY, Extension::Reth(whole))
            }
            (SendOp::SendImm, Position::Only) if work.steered => {
                (Opcode::MASQ_SEND_ONLY_IMM, Extension::RethImm(whole, work.imm))
            }
            (SendOp::Send | SendOp::SendImm | SendOp::SendInv, Position::First) => {
                (Opcode::RC_SEND_FIRST, plain)
            }
            (SendOp::Send | SendOp::SendImm | SendOp::SendInv, Position::Middle) => {
                (Opcode::RC_SEND_MIDDLE, plain)
            }
            (SendOp::Send, Position::Last) => (Opcode::RC_SEND_LAST, plain),
            (SendOp::Send, Position::Only) => (Opcode::RC_SEND_ONLY, plain),
            (SendOp::SendImm, Position::Last) => (Opcode::RC_SEND_LAST_IMM, imm),
            (SendOp::SendImm, Position::Only) => (Opcode::RC_SEND_ONLY_IMM, imm),
            (SendOp::SendInv, Position::Last) => (Opcode::RC_SEND_LAST_INV, inv),
            (SendOp::SendInv, Position::Only) => (Opcode::RC_SEND_ONLY_INV, inv),
            (SendOp::Write | SendOp::WriteImm, Position::First) => {
                (Opcode::RC_WRITE_FIRST, Extension::Reth(whole))
            }
            (SendOp::Write | SendOp::WriteImm, Position::Middle) => (Opcode::RC_WRITE_MIDDLE, plain),
            (SendOp::Write, Position::Last) => (Opcode::RC_WRITE_LAST, plain),
            (SendOp::Write, Position::Only) => (Opcode::RC_WRITE_ONLY, Extension::Reth(whole)),
            (SendOp::WriteImm, Position::Last) if before.bytes > 0 => {
                (Opcode::MASQ_WRITE_LAST_IMM, Extension::ImmBefore(work.imm, before))
            }
            (SendOp::WriteImm, Position::Only) if before.bytes > 0 => {
                (Opcode::MASQ_WRITE_ONLY_IMM, Extension::RethImmBefore(whole, work.imm, before))
            }
            (SendOp::WriteImm, Position::Last) => (Opcode::RC_WRITE_LAST_IMM, imm),
            (SendOp::WriteImm, Position::Only) => {
                (Opcode::RC_WRITE_ONLY_IMM, Extension::RethImm(whole, work.imm))
            }
            (SendOp::Read, _) => {
                let bytes = piece.packets.saturating_mul(mtu.bytes()).min(self.len - piece.offset);
                let va = work.remote_addr.wrapping_add(piece.offset.into());
                let goes_on = work.is_chunk || !piece.ends;
                let tells = goes_on && transport == Transport::Rc && link.times_reads();
                let opcode = if tells { Opcode::MASQ_READ_PART } else { Opcode::RC_READ_REQUEST };
                (opcode, Extension::Reth(reth(va, bytes)))
            }
            (SendOp::CmpSwap, _) => {
                (Opcode::RC_CMP_SWAP, Extension::Atomic(atomic(work.swap, work.compare_add)))
            }
            (SendOp::FetchAdd, _) => (Opcode::RC_FETCH_ADD, Extension::Atomic(atomic(work.compare_add, 0))),
            // What is local is never cut into packets. If it were, this would do no harm.
            (SendOp::LocalInv | SendOp::BindMw | SendOp::RegMr, _) => (Opcode::RC_SEND_MIDDLE, plain),
        };
        let psn = self.first.plus(piece.index);
        let opcode = if opcode.is_manufacturer() { opcode } else { opcode.over(transport) };
        let mut repr = PacketRepr::new(opcode, link.attributes.remote_qpn, psn, ext);
        repr.xrc = (transport == Transport::Xrc).then(|| XrcEth::new(work.srqn));
        let solicits = !matches!(work.op, SendOp::Write | SendOp::Steer) && !work.op.is_fetch();
        repr.bth.solicited = work.solicited && solicits && piece.ends;
        repr
    }
}

#[cfg(test)]
mod tests {
    use masq_driver::{QpState, QpType};
    use masq_types::{Features, Lkey, Rkey};
    use masq_wire::{ImmDt, Kind, Tail};

    use super::*;

    fn request(op: SendOp, len: u32, mtu: Mtu) -> Request {
        let sges = vec![Sge { addr: 0, length: len, lkey: Lkey(1) }];
        let work = SendWork {
            op,
            sges,
            remote_addr: 0x1000,
            rkey: Rkey(9),
            imm: ImmDt(*b"imm!"),
            solicited: true,
            ..SendWork::default()
        };
        let packets = packets_of(len, mtu);
        Request { work, first: Psn::new(0xff_ffff), packets, len, failure: None, carried_out: false }
    }

    /// What a link is made of.
    struct Parts(QpConfig, Attributes);

    impl Parts {
        fn new(mtu: Mtu, qp_type: QpType, features: Features) -> Self {
            let attributes = Attributes { path_mtu: mtu, features, ..Attributes::default() };
            Self(QpConfig { qp_type, ..QpConfig::default() }, attributes)
        }

        fn rc(mtu: Mtu) -> Self {
            Self::new(mtu, QpType::Rc, Features::NONE)
        }

        fn link(&self) -> Link<'_> {
            Link { config: &self.0, attributes: &self.1, state: QpState::Rts }
        }
    }

    fn headers(r: &Request, mtu: Mtu, read_packets: u32) -> Vec<(PacketRepr, usize)> {
        let parts = Parts::rc(mtu);
        let mut index = 0;
        let mut all = Vec::new();
        while index < r.packets {
            let piece = r.piece(index, mtu, read_packets);
            all.push((r.headers(&piece, &parts.link()), piece.payload));
            index += piece.packets;
        }
        all
    }

    /// Every operation and length has the opcodes that the table of opcodes has for it, and its payloads add up.
    #[test]
    fn segmentation() {
        let mtu = Mtu::B256;
        for op in [SendOp::Send, SendOp::SendImm, SendOp::SendInv, SendOp::Write, SendOp::WriteImm] {
            for len in [0, 1, 255, 256, 257, 512, 513, 1024] {
                let r = request(op, len, mtu);
                let packets = headers(&r, mtu, 64);
                assert_eq!(packets.iter().map(|p| p.1).sum::<usize>(), len as usize);
                for (i, (repr, payload)) in packets.iter().enumerate() {
                    let info = repr.bth.opcode.info().unwrap();
                    let ends = i + 1 == packets.len();
                    assert_eq!(info.position, Position::of(i == 0, ends));
                    assert_eq!(info.layout, repr.ext.layout());
                    assert_eq!(info.tail() == Tail::Immediate, ends && op.has_imm());
                    assert_eq!(info.tail() == Tail::Invalidate, ends && op == SendOp::SendInv);
                    assert_eq!(repr.bth.psn, Psn::new(0xff_ffff).plus(i as u32));
                    assert_eq!(repr.bth.solicited, ends && op != SendOp::Write);
                    assert!(ends || *payload == 256);
                }
            }
        }
    }

    /// Each packet of what is steered has an opcode of masq's, but those of a SEND that do not begin it; the first says where it goes.
    #[test]
    fn what_is_steered_says_where_it_goes() {
        let mtu = Mtu::B256;
        for (op, kind) in
            [(SendOp::Steer, Kind::Steer), (SendOp::Send, Kind::Send), (SendOp::SendImm, Kind::Send)]
        {
            for len in [0, 1, 256, 257, 1024] {
                let mut r = request(op, len, mtu);
                r.work.steered = op != SendOp::Steer;
                let packets = headers(&r, mtu, 64);
                for (i, (repr, _)) in packets.iter().enumerate() {
                    let info = repr.bth.opcode.info().unwrap();
                    let (begins, ends) = (i == 0, i + 1 == packets.len());
                    assert_eq!((info.kind, info.position), (kind, Position::of(begins, ends)));
                    assert_eq!(info.layout, repr.ext.layout());
                    let reth = RethRepr { va: 0x1000, rkey: Rkey(9), dma_len: len };
                    assert_eq!(repr.ext.reth(), begins.then_some(&reth));
                    assert_eq!(repr.bth.opcode.is_manufacturer(), begins || op == SendOp::Steer);
                    assert_eq!(info.tail() == Tail::Immediate, ends && op.has_imm());
                    assert_eq!(repr.bth.solicited, ends && op != SendOp::Steer);
                }
            }
        }
    }

    #[test]
    fn reads_are_asked_for_in_pieces() {
        let mtu = Mtu::B256;
        let r = request(SendOp::Read, 256 * 5 + 1, mtu);
        let parts = Parts::rc(mtu);
        let ranges = |from: u32| {
            let mut index = from;
            let mut all = Vec::new();
            while index < r.packets {
                let piece = r.piece(index, mtu, 4);
                let repr = r.headers(&piece, &parts.link());
                let reth = *repr.ext.reth().unwrap();
                all.push((reth.va - 0x1000, reth.dma_len));
                index += piece.packets;
            }
            all
        };
        assert_eq!(ranges(0), [(0, 1024), (1024, 257)]);
        assert_eq!(ranges(3), [(768, 513)]);
        assert_eq!(ranges(5), [(1280, 1)]);
        assert_eq!(headers(&request(SendOp::Read, 0, mtu), mtu, 4).len(), 1);
    }

    /// Packets of other transports are those of RC under other opcodes, with the XRCETH of XRC.
    #[test]
    fn transports_differ_in_opcodes() {
        let mtu = Mtu::B256;
        let parts = [QpType::Rc, QpType::Uc, QpType::XrcIni].map(|t| Parts::new(mtu, t, Features::NONE));
        for op in [SendOp::Send, SendOp::SendImm, SendOp::Write, SendOp::WriteImm] {
            for len in [0, 256, 600] {
                let mut r = request(op, len, mtu);
                r.work.srqn = 0x12_3456;
                for index in 0..r.packets {
                    let piece = r.piece(index, mtu, 64);
                    let [rc, uc, xrc] = [0, 1, 2].map(|i| r.headers(&piece, &parts[i].link()));
                    assert_eq!(uc.bth.opcode, rc.bth.opcode.over(Transport::Uc));
                    assert_eq!((uc.xrc, uc.ext, xrc.ext), (None, rc.ext, rc.ext));
                    assert_eq!(xrc.xrc.map(XrcEth::srq), Some(0x12_3456));
                    let mut buffer = [0; masq_wire::MAX_HEADER_BYTES];
                    for repr in [rc, uc, xrc] {
                        repr.emit_headers(&mut buffer).unwrap();
                    }
                }
            }
        }
    }

    /// Who can tell is told behind which requests a READ goes on.
    #[test]
    fn parts_of_reads_are_named() {
        let mtu = Mtu::B256;
        let opcodes = |qp_type, features, is_chunk| {
            let parts = Parts::new(mtu, qp_type, features);
            let mut r = request(SendOp::Read, 256 * 5, mtu);
            r.work.is_chunk = is_chunk;
            [0, 3].map(|index| r.headers(&r.piece(index, mtu, 3), &parts.link()).bth.opcode)
        };
        let (plain, part) = (Opcode::RC_READ_REQUEST, Opcode::MASQ_READ_PART);
        assert_eq!(opcodes(QpType::Rc, Features::SELECTIVE, true), [plain; 2]);
        assert_eq!(opcodes(QpType::Rc, Features::TIMED_READS, false), [part, plain]);
        assert_eq!(opcodes(QpType::Rc, Features::TIMED_READS, true), [part; 2]);
        assert_eq!(opcodes(QpType::XrcIni, Features::TIMED_READS, false), [Opcode::XRC_READ_REQUEST; 2]);
    }

    #[test]
    fn the_longest_message_fits_the_psn_space() {
        assert_eq!(packets_of(1 << 31, Mtu::B256), Psn::HALF);
        let r = request(SendOp::Write, 1 << 31, Mtu::B256);
        let last = r.piece(Psn::HALF - 1, Mtu::B256, 64);
        assert_eq!((last.offset, last.payload, last.ends), ((1 << 31) - 256, 256, true));
    }
}
