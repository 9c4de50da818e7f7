//! What the peer's side does with a message: it asks what its responder would ask, and copies.

use super::finish_receive;
use crate::engine::World;
use crate::keys::{Need, SgeSpans};
use crate::memory::{Span, copy_spans};
use crate::qp::{Qp, QpKey};
use crate::transport::{
    AtomicOp, Cause, Completion, Env, Failure, KeyChange, MemoryFault, RemoteAccess, RemoteRange, SendOp,
    SendWork, Status, WcOpcode, total_bytes,
};
use crate::vnic::Vnic;

/// Bytes of an atomic.
const ATOMIC_BYTES: u32 = 8;

/// What the peer's side says to a request.
pub(super) enum Answer {
    Copied(usize),
    Done(usize),
    NotReady,
    Refused(Refusal),
    /// The request's own memory cannot be accessed.
    Own(MemoryFault),
}

/// Why the peer refuses, as its responder would.
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

/// Both sides of a connection, to read.
struct Pair<'w> {
    own: &'w Qp,
    own_vnic: &'w Vnic,
    peer: &'w Qp,
    peer_vnic: &'w Vnic,
}

impl<'w> Pair<'w> {
    fn of(world: &'w World, own: QpKey, peer: QpKey) -> Option<Self> {
        let (own, peer) = (world.qps.get(own)?, world.qps.get(peer)?);
        Some(Self {
            own,
            own_vnic: world.vnics.get(own.io.vnic)?,
            peer,
            peer_vnic: world.vnics.get(peer.io.vnic)?,
        })
    }

    fn work(&self) -> &'w SendWork {
        &self.own.io.held_send.work
    }

    /// The next piece of a message of `len` bytes: offset, bytes, and whether it is the last.
    fn piece(&self, len: u32, room: usize) -> (u32, usize, bool) {
        let done = self.own.initiator.done.min(len);
        let left = (len - done) as usize;
        (done, left.min(room), left <= room)
    }

    /// The initiator's memory.
    fn own_spans(&self, need: Need, offset: u32, bytes: usize) -> SgeSpans<'w> {
        let (keys, memory) = (&self.own_vnic.keys, &self.own_vnic.memory);
        SgeSpans::new(
            keys,
            memory,
            self.own.io.accessor,
            need,
            &self.work().sges,
            offset.into(),
            bytes as u64,
        )
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
        len: u32,
        offset: u32,
        bytes: usize,
    ) -> Result<impl Iterator<Item = Result<Span<'w>, MemoryFault>> + use<'w>, MemoryFault> {
        let work = self.work();
        let (mr, start) = match len {
            // A message of no bytes names no memory, whatever its key (IBTA Vol 1 §9.7.4.1.5).
            0 => return Ok(None.into_iter().flatten()),
            _ => self.peer_vnic.keys.resolve(
                self.peer.io.accessor,
                work.rkey.0,
                work.remote_addr,
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
        if !self.work().inline {
            return copy(self.own_spans(Need::LocalRead, offset, bytes), target, bytes, last);
        }
        let from = offset as usize;
        let data = self.work().inline_data.get(from..from + bytes);
        let mut rest = data.ok_or(Side::Source(MemoryFault::OutOfRange))?;
        for span in target {
            let written = span.map_err(Side::Target)?.write_tail_last(rest);
            rest = rest.get(written..).unwrap_or_default();
        }
        if rest.is_empty() { Ok(()) } else { Err(Side::Target(MemoryFault::OutOfRange)) }
    }

    fn done_or_copied(bytes: usize, last: bool) -> Answer {
        if last { Answer::Done(bytes) } else { Answer::Copied(bytes) }
    }
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

pub(super) fn send(world: &mut World, key: QpKey, peer: QpKey, len: u32, room: usize) -> Answer {
    match receive(world, peer) {
        None => return Answer::NotReady,
        Some(Err(answer)) => return answer,
        Some(Ok(())) => {}
    }
    let Some(pair) = Pair::of(world, key, peer) else { return Answer::NotReady };
    if u64::from(len) > total_bytes(&pair.peer.io.held_recv.work.sges) {
        let failure = Failure::new(Status::LocLenErr, Cause::ReceiveTooShort);
        return Answer::Refused(Refusal::Receive(failure, Status::RemInvReqErr));
    }
    let (offset, bytes, last) = pair.piece(len, room);
    match pair.copy_out(pair.receive_spans(offset, bytes), offset, bytes, last) {
        Ok(()) if last => {
            if let Err(failure) = invalidate(world, key, peer) {
                return Answer::Refused(Refusal::Receive(failure, Status::RemAccessErr));
            }
            complete_receive(world, key, peer, WcOpcode::Recv, len);
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
fn invalidate(world: &mut World, key: QpKey, peer: QpKey) -> Result<(), Failure> {
    let Some(work) = world.qps.get(key).map(|q| &q.io.held_send.work) else { return Ok(()) };
    if work.op != SendOp::SendInv {
        return Ok(());
    }
    let change = KeyChange::Invalidate(work.inv);
    let invalidated = world.with_env(peer, |_, env| env.change_key(&change));
    invalidated.unwrap_or(Ok(())).map_err(|fault| Failure::new(Status::RemInvReqErr, fault.into()))
}

pub(super) fn write(world: &mut World, key: QpKey, peer: QpKey, len: u32, room: usize) -> Answer {
    let Some(pair) = Pair::of(world, key, peer) else { return Answer::NotReady };
    if !pair.peer.core.attributes().access.remote_write {
        return Answer::Refused(Refusal::Invalid("the queue pair does not accept RDMA WRITEs"));
    }
    let with_imm = pair.work().op.has_imm();
    let (offset, bytes, last) = pair.piece(len, room);
    if with_imm && last {
        match receive(world, peer) {
            None => return Answer::NotReady,
            Some(Err(answer)) => return answer,
            Some(Ok(())) => {}
        }
    }
    let Some(pair) = Pair::of(world, key, peer) else { return Answer::NotReady };
    let copied = match pair.named_spans(Need::RemoteWrite, len, offset, bytes) {
        Ok(target) => pair.copy_out(target, offset, bytes, last),
        Err(fault) => Err(Side::Target(fault)),
    };
    match copied {
        Ok(()) if with_imm && last => complete_receive(world, key, peer, WcOpcode::RecvRdmaWithImm, len),
        Ok(()) => {}
        Err(Side::Source(fault)) => return Answer::Own(fault),
        Err(Side::Target(fault)) => return Answer::Refused(Refusal::Access(fault)),
    }
    Pair::done_or_copied(bytes, last)
}

pub(super) fn read(world: &World, key: QpKey, peer: QpKey, len: u32, room: usize) -> Answer {
    let Some(pair) = Pair::of(world, key, peer) else { return Answer::NotReady };
    let attributes = pair.peer.core.attributes();
    if !attributes.access.remote_read {
        return Answer::Refused(Refusal::Invalid("the queue pair does not accept RDMA READs"));
    }
    if attributes.max_dest_rd_atomic == 0 {
        return Answer::Refused(Refusal::Invalid(TOO_MANY_FETCHES));
    }
    let (offset, bytes, last) = pair.piece(len, room);
    let copied = match pair.named_spans(Need::RemoteRead, len, offset, bytes) {
        Ok(source) => copy(source, pair.own_spans(Need::LocalWrite, offset, bytes), bytes, last),
        Err(fault) => Err(Side::Source(fault)),
    };
    match copied {
        Ok(()) => Pair::done_or_copied(bytes, last),
        Err(Side::Source(fault)) => Answer::Refused(Refusal::Access(fault)),
        Err(Side::Target(fault)) => Answer::Own(fault),
    }
}

const TOO_MANY_FETCHES: &str = "more RDMA READs and atomics are outstanding than agreed";

pub(super) fn atomic(world: &mut World, key: QpKey, peer: QpKey) -> Answer {
    let Some(pair) = Pair::of(world, key, peer) else { return Answer::NotReady };
    let attributes = pair.peer.core.attributes();
    let work = pair.work();
    let (rkey, va) = (work.rkey, work.remote_addr);
    let op = match work.op {
        SendOp::CmpSwap => AtomicOp::CmpSwap { compare: work.compare_add, swap: work.swap },
        _ => AtomicOp::FetchAdd { add: work.compare_add },
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
    let original = match executed {
        None => return Answer::NotReady,
        Some(Err(fault)) => return Answer::Refused(Refusal::Access(fault)),
        Some(Ok(original)) => original,
    };
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
fn complete_receive(world: &mut World, key: QpKey, peer: QpKey, opcode: WcOpcode, len: u32) {
    let Some(work) = world.qps.get(key).map(|q| &q.io.held_send.work) else { return };
    let (imm, solicited) = (work.op.has_imm().then_some(work.imm), work.solicited);
    let inv = (work.op == SendOp::SendInv).then_some(work.inv);
    finish_receive(world, peer, |c| Completion { opcode, byte_len: len, imm, inv, solicited, ..c });
}
