//! What the peer's side does with a message: it asks what its responder would ask, and copies.

use masq_types::Rkey;
use masq_wire::ImmDt;

use super::finish_receive;
use crate::engine::World;
use crate::keys::{Need, SgeSpans};
use crate::memory::{Pinned, Span, copy_spans};
use crate::qp::{Qp, QpKey};
use crate::transport::{
    AtomicOp, Cause, Completion, Env, Failure, KeyChange, MemoryFault, RemoteAccess, RemoteRange, SendOp,
    Status, WcOpcode, total_bytes,
};
use crate::vnic::Vnic;

/// Bytes of an atomic.
const ATOMIC_BYTES: u32 = 8;

/// What an initiator asks of its peer's side, as far as that can be said without its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub op: SendOp,
    pub remote_addr: u64,
    pub rkey: Rkey,
    pub compare_add: u64,
    pub swap: u64,
    pub imm: ImmDt,
    pub inv: Rkey,
    pub solicited: bool,
    /// The shared receive queue of an XRC target.
    pub srqn: u32,
    /// Bytes of the message.
    pub len: u32,
    /// Bytes of it that are done.
    pub done: u32,
}

impl Ask {
    /// What the held request of a queue pair asks, a message of `len` bytes.
    pub(super) fn of(qp: &Qp, len: u32) -> Self {
        let work = &qp.io.held_send.work;
        Self {
            op: work.op,
            remote_addr: work.remote_addr,
            rkey: work.rkey,
            compare_add: work.compare_add,
            swap: work.swap,
            imm: work.imm,
            inv: work.inv,
            solicited: work.solicited,
            srqn: work.srqn,
            len,
            done: qp.initiator.done.min(len),
        }
    }

    /// The next piece: offset, bytes, and whether it is the last.
    pub(super) fn piece(&self, room: usize) -> (u32, usize, bool) {
        let left = (self.len - self.done.min(self.len)) as usize;
        (self.done, left.min(room), left <= room)
    }
}

/// Where the initiator's data come from, or go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Data<'a> {
    /// The memory that the request names which this queue pair of the same engine holds.
    Held(QpKey),
    /// The memory of another engine's queue pair: of the present piece.
    Pinned(&'a Pinned),
    /// What that queue pair's request holds itself: of the present piece.
    Inline(&'a [u8]),
}

/// What the peer's side says to a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Copied(usize),
    Done(usize),
    /// An atomic has been executed; the value before.
    Fetched(u64),
    NotReady,
    Refused(Refusal),
    /// The request's own memory cannot be accessed.
    Own(MemoryFault),
}

/// Why the peer refuses, as its responder would.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// It is not supported or malformed.
    Invalid(&'static str),
    /// It names memory that cannot be accessed.
    Access(MemoryFault),
    /// The receive cannot take it.
    Receive(Failure, Status),
}

/// Which side of a copy has failed.
#[derive(Debug)]
pub enum Side {
    /// Where the bytes come from.
    Source(MemoryFault),
    /// Where they go.
    Target(MemoryFault),
}

/// The peer's side of a connection, and the initiator's data, to read.
struct Pair<'w> {
    near: Near<'w>,
    peer: &'w Qp,
    peer_vnic: &'w Vnic,
}

/// The initiator's data.
enum Near<'w> {
    Held { own: &'w Qp, own_vnic: &'w Vnic },
    Pinned(&'w Pinned),
    Inline(&'w [u8]),
}

impl<'w> Pair<'w> {
    fn of(world: &'w World, data: Data<'w>, peer: QpKey) -> Option<Self> {
        let near = match data {
            Data::Held(own) => {
                let own = world.qps.get(own)?;
                Near::Held { own, own_vnic: world.vnics.get(own.io.vnic)? }
            }
            Data::Pinned(pinned) => Near::Pinned(pinned),
            Data::Inline(bytes) => Near::Inline(bytes),
        };
        let peer = world.qps.get(peer)?;
        Some(Self { near, peer, peer_vnic: world.vnics.get(peer.io.vnic)? })
    }

    /// The memory of the peer's receive.
    fn receive_spans(&self, offset: u32, bytes: usize) -> SgeSpans<'w> {
        let (keys, memory) = (&self.peer_vnic.keys, &self.peer_vnic.memory);
        let sges = &self.peer.io.held_recv.work.sges;
        SgeSpans::new(
            keys,
            memory,
            self.peer.io.accessor,
            Need::LocalWrite,
            sges,
            offset.into(),
            bytes as u64,
        )
    }

    /// The peer's memory that the request names. All of it is checked, for every piece.
    fn named_spans(
        &self,
        need: Need,
        ask: &Ask,
        offset: u32,
        bytes: usize,
    ) -> Result<impl Iterator<Item = Result<Span<'w>, MemoryFault>> + use<'w>, MemoryFault> {
        let len = ask.len;
        let (mr, start) = match len {
            // A message of no bytes names no memory, whatever its key (IBTA Vol 1 §9.7.4.1.5).
            0 => return Ok(None.into_iter().flatten()),
            _ => self.peer_vnic.keys.resolve(
                self.peer.io.accessor,
                ask.rkey.0,
                ask.remote_addr,
                len.into(),
                need,
            )?,
        };
        Ok(Some(mr.spans(&self.peer_vnic.memory, start + u64::from(offset), bytes as u64))
            .into_iter()
            .flatten())
    }

    /// Copies a piece of the initiator's data, inline or not, to `target`.
    fn copy_out(
        &self,
        target: impl Iterator<Item = Result<Span<'w>, MemoryFault>>,
        offset: u32,
        bytes: usize,
        last: bool,
    ) -> Result<(), Side> {
        if bytes == 0 {
            return Ok(());
        }
        match self.near {
            Near::Held { own, own_vnic } if !own.io.held_send.work.inline => {
                copy(own_spans(own, own_vnic, Need::LocalRead, offset, bytes), target, bytes, last)
            }
            Near::Held { own, .. } => {
                let from = offset as usize;
                copy_inline(own.io.held_send.work.inline_data.get(from..from + bytes), target)
            }
            Near::Pinned(pinned) => copy(pinned.spans().map(Ok), target, bytes, last),
            Near::Inline(data) => copy_inline(data.get(..bytes), target),
        }
    }

    /// Copies a piece of `source` to the initiator's memory.
    fn copy_in(
        &self,
        source: impl Iterator<Item = Result<Span<'w>, MemoryFault>>,
        offset: u32,
        bytes: usize,
        last: bool,
    ) -> Result<(), Side> {
        if bytes == 0 {
            return Ok(());
        }
        match self.near {
            Near::Held { own, own_vnic } => {
                copy(source, own_spans(own, own_vnic, Need::LocalWrite, offset, bytes), bytes, last)
            }
            Near::Pinned(pinned) => copy(source, pinned.spans().map(Ok), bytes, last),
            Near::Inline(_) => Err(Side::Target(MemoryFault::NotPermitted)),
        }
    }

    fn done_or_copied(bytes: usize, last: bool) -> Answer {
        if last { Answer::Done(bytes) } else { Answer::Copied(bytes) }
    }
}

/// A piece of the memory that the held request of a queue pair names.
pub(super) fn own_spans<'w>(
    own: &'w Qp,
    own_vnic: &'w Vnic,
    need: Need,
    offset: u32,
    bytes: usize,
) -> SgeSpans<'w> {
    let (keys, memory) = (&own_vnic.keys, &own_vnic.memory);
    let sges = &own.io.held_send.work.sges;
    SgeSpans::new(keys, memory, own.io.accessor, need, sges, offset.into(), bytes as u64)
}

fn copy_inline<'w>(
    data: Option<&[u8]>,
    target: impl Iterator<Item = Result<Span<'w>, MemoryFault>>,
) -> Result<(), Side> {
    let mut rest = data.ok_or(Side::Source(MemoryFault::OutOfRange))?;
    for span in target {
        let written = span.map_err(Side::Target)?.write_tail_last(rest);
        rest = rest.get(written..).unwrap_or_default();
    }
    if rest.is_empty() { Ok(()) } else { Err(Side::Target(MemoryFault::OutOfRange)) }
}

/// Copies all `bytes`; with `last` the last of them becomes visible last.
pub fn copy<'w>(
    from: impl Iterator<Item = Result<Span<'w>, MemoryFault>>,
    to: impl Iterator<Item = Result<Span<'w>, MemoryFault>>,
    bytes: usize,
    last: bool,
) -> Result<(), Side> {
    let from = from.map(|s| s.map_err(Side::Source));
    let to = to.map(|s| s.map_err(Side::Target));
    match copy_spans(from, to, bytes, last)? {
        copied if copied == bytes => Ok(()),
        _ => Err(Side::Target(MemoryFault::OutOfRange)),
    }
}

/// Makes sure that the peer holds a receive; `None` when it has none.
fn receive(world: &mut World, peer: QpKey) -> Option<Result<(), Answer>> {
    let held = world.with_env(peer, |_, env| env.hold_recv().map(|held| held.map(drop)));
    let refused = |failure| Answer::Refused(Refusal::Receive(failure, Status::RemOpErr));
    held?.map(|held| held.map_err(refused))
}

/// What the peer's side does with the next `room` bytes of a message.
pub(super) fn respond(world: &mut World, peer: QpKey, ask: &Ask, data: Data<'_>, room: usize) -> Answer {
    match ask.op {
        SendOp::Send | SendOp::SendImm | SendOp::SendInv => send(world, peer, ask, data, room),
        SendOp::Write | SendOp::WriteImm => write(world, peer, ask, data, room),
        SendOp::Read => read(world, peer, ask, data, room),
        SendOp::CmpSwap | SendOp::FetchAdd => atomic(world, peer, ask),
        // Chunks go to peers behind the underlay alone.
        SendOp::LocalInv | SendOp::BindMw | SendOp::RegMr | SendOp::Steer => {
            Answer::Refused(Refusal::Invalid("the request concerns nobody else"))
        }
    }
}

fn send(world: &mut World, peer: QpKey, ask: &Ask, data: Data<'_>, room: usize) -> Answer {
    match receive(world, peer) {
        None => return Answer::NotReady,
        Some(Err(answer)) => return answer,
        Some(Ok(())) => {}
    }
    let Some(pair) = Pair::of(world, data, peer) else { return Answer::NotReady };
    if u64::from(ask.len) > total_bytes(&pair.peer.io.held_recv.work.sges) {
        let failure = Failure::new(Status::LocLenErr, Cause::ReceiveTooShort);
        return Answer::Refused(Refusal::Receive(failure, Status::RemInvReqErr));
    }
    let (offset, bytes, last) = ask.piece(room);
    match pair.copy_out(pair.receive_spans(offset, bytes), offset, bytes, last) {
        Ok(()) if last => {
            if let Err(failure) = invalidate(world, peer, ask) {
                return Answer::Refused(Refusal::Receive(failure, Status::RemAccessErr));
            }
            complete_receive(world, peer, ask, WcOpcode::Recv);
        }
        Ok(()) => {}
        Err(Side::Source(fault)) => return Answer::Own(fault),
        Err(Side::Target(fault)) => {
            return Answer::Refused(Refusal::Receive(Failure::local_protection(fault), Status::RemOpErr));
        }
    }
    Pair::done_or_copied(bytes, last)
}

/// Ends the validity of the peer's key that a SEND names for that.
fn invalidate(world: &mut World, peer: QpKey, ask: &Ask) -> Result<(), Failure> {
    if ask.op != SendOp::SendInv {
        return Ok(());
    }
    let change = KeyChange::Invalidate(ask.inv);
    let invalidated = world.with_env(peer, |_, env| env.change_key(&change));
    invalidated.unwrap_or(Ok(())).map_err(|fault| Failure::new(Status::RemInvReqErr, fault.into()))
}

fn write(world: &mut World, peer: QpKey, ask: &Ask, data: Data<'_>, room: usize) -> Answer {
    let Some(pair) = Pair::of(world, data, peer) else { return Answer::NotReady };
    if !pair.peer.core.attributes().access.remote_write {
        return Answer::Refused(Refusal::Invalid("the queue pair does not accept RDMA WRITEs"));
    }
    let with_imm = ask.op.has_imm();
    let (offset, bytes, last) = ask.piece(room);
    let pair = if with_imm && last {
        match receive(world, peer) {
            None => return Answer::NotReady,
            Some(Err(answer)) => return answer,
            Some(Ok(())) => {}
        }
        Pair::of(world, data, peer)
    } else {
        Some(pair)
    };
    let Some(pair) = pair else { return Answer::NotReady };
    let copied = match pair.named_spans(Need::RemoteWrite, ask, offset, bytes) {
        Ok(target) => pair.copy_out(target, offset, bytes, last),
        Err(fault) => Err(Side::Target(fault)),
    };
    match copied {
        Ok(()) if with_imm && last => complete_receive(world, peer, ask, WcOpcode::RecvRdmaWithImm),
        Ok(()) => {}
        Err(Side::Source(fault)) => return Answer::Own(fault),
        Err(Side::Target(fault)) => return Answer::Refused(Refusal::Access(fault)),
    }
    Pair::done_or_copied(bytes, last)
}

fn read(world: &World, peer: QpKey, ask: &Ask, data: Data<'_>, room: usize) -> Answer {
    let Some(pair) = Pair::of(world, data, peer) else { return Answer::NotReady };
    let attributes = pair.peer.core.attributes();
    if !attributes.access.remote_read {
        return Answer::Refused(Refusal::Invalid("the queue pair does not accept RDMA READs"));
    }
    if attributes.max_dest_rd_atomic == 0 {
        return Answer::Refused(Refusal::Invalid(TOO_MANY_FETCHES));
    }
    let (offset, bytes, last) = ask.piece(room);
    let copied = match pair.named_spans(Need::RemoteRead, ask, offset, bytes) {
        Ok(source) => pair.copy_in(source, offset, bytes, last),
        Err(fault) => Err(Side::Source(fault)),
    };
    match copied {
        Ok(()) => Pair::done_or_copied(bytes, last),
        Err(Side::Source(fault)) => Answer::Refused(Refusal::Access(fault)),
        Err(Side::Target(fault)) => Answer::Own(fault),
    }
}

const TOO_MANY_FETCHES: &str = "more RDMA READs and atomics are outstanding than agreed";

fn atomic(world: &mut World, peer: QpKey, ask: &Ask) -> Answer {
    let Some(qp) = world.qps.get(peer) else { return Answer::NotReady };
    let attributes = qp.core.attributes();
    let (rkey, va) = (ask.rkey, ask.remote_addr);
    let op = match ask.op {
        SendOp::CmpSwap => AtomicOp::CmpSwap { compare: ask.compare_add, swap: ask.swap },
        _ => AtomicOp::FetchAdd { add: ask.compare_add },
    };
    if !attributes.access.remote_atomic {
        return Answer::Refused(Refusal::Invalid("the queue pair does not accept atomics"));
    }
    if va % u64::from(ATOMIC_BYTES) != 0 {
        return Answer::Refused(Refusal::Invalid("an atomic's address is no multiple of eight"));
    }
    if attributes.max_dest_rd_atomic == 0 {
        return Answer::Refused(Refusal::Invalid(TOO_MANY_FETCHES));
    }
    let executed = world.with_env(peer, |_, env| {
        env.check_remote(RemoteRange { rkey, va, len: ATOMIC_BYTES }, RemoteAccess::Atomic)?;
        env.atomic_remote(rkey, va, op)
    });
    match executed {
        None => Answer::NotReady,
        Some(Err(fault)) => Answer::Refused(Refusal::Access(fault)),
        Some(Ok(original)) => Answer::Fetched(original),
    }
}

/// Puts the value before an atomic where its initiator wants it.
pub(super) fn store_fetched(world: &mut World, key: QpKey, original: u64) -> Answer {
    let stored = world.with_env(key, |_, env| {
        let work = std::mem::take(&mut env.io.held_send.work);
        let stored = env.scatter(&work.sges, 0, &original.to_ne_bytes());
        env.io.held_send.work = work;
        stored
    });
    match stored {
        Some(Err(fault)) => Answer::Own(fault),
        _ => Answer::Done(ATOMIC_BYTES as usize),
    }
}

/// The receive that the peer holds is done.
fn complete_receive(world: &mut World, peer: QpKey, ask: &Ask, opcode: WcOpcode) {
    let (imm, solicited) = (ask.op.has_imm().then_some(ask.imm), ask.solicited);
    let inv = (ask.op == SendOp::SendInv).then_some(ask.inv);
    finish_receive(world, peer, |c| Completion { opcode, byte_len: ask.len, imm, inv, solicited, ..c });
}
