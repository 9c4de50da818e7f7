//! The world of one queue pair, as the transport sees it: guest rings, keys and memory.

use std::ops::Range;

use masq_driver::{Event, EventSink, VnicId};
use masq_types::Rkey;
use slab::Slab;
use vrdma_abi::ring::{CQE_GRH, CQE_IPV4, CQE_RECV, CQE_SOLICITED, CQE_SRQ, CQE_WITH_IMM, CQE_WITH_INV, Cqe};

use super::spares::Spares;
use crate::cqs::CqTable;
use crate::group::Group;
use crate::keys::{KeyTable, Need, SgeSpans};
use crate::limits;
use crate::memory::{GuestMemory, Span};
use crate::qp::{Failed, Held, QpIo, RecvSource};
use crate::shaping::Gate;
use crate::srqs::{SrqKey, SrqTable, Taken};
use crate::transport::{
    AtomicOp, Cause, Completion, Env, Failure, KeyChange, KeyFault, LocalAccess, MemoryFault, QpCore,
    QpEvent, RecvWork, RemoteAccess, RemoteRange, Room, SendWork, Sge, Status, SteerFault, Time, WorkQueue,
    judge_send_with,
};

/// Implements [`Env`] over a guest.
pub struct QpEnv<'a> {
    pub(super) now: Time,
    pub(super) vnic: VnicId,
    pub(super) memory: &'a GuestMemory,
    pub(super) keys: &'a mut KeyTable,
    pub(super) cqs: &'a mut CqTable,
    pub(super) srqs: &'a mut SrqTable,
    pub(super) groups: &'a mut Slab<Group>,
    pub(crate) io: &'a mut QpIo,
    /// Of a hidden queue pair: the guest's, which has the receives.
    pub(super) leader: Option<&'a mut QpIo>,
    pub(super) sink: &'a dyn EventSink,
    /// Send requests whose memory other queue pairs of the vNIC keep.
    pub(super) held_by_others: usize,
    /// Bytes of packets that came before their turn that the vNIC's queue pairs keep: the others, and all.
    pub(super) early_of_others: usize,
    pub(super) early_bytes: usize,
    /// Receives that are kept for messages to come, of all the vNIC's queue pairs.
    pub(super) assigned: &'a mut usize,
    /// Where its packets ask for leave.
    pub(super) gate: Gate<'a>,
    /// Another engine works on the send that it holds, and on the memory of that.
    pub(super) asked: bool,
    /// Requests for their buffers.
    pub(super) spares: &'a mut Spares,
}

/// Where a received datagram comes from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The sender's number, as the receiver's guest knows it.
    pub src_qpn: u32,
    /// The GRH area has an IPv4 header.
    pub is_ipv4: bool,
}

impl QpEnv<'_> {
    /// Between two calls of the transport: whether there may be another before what came of the last one is dealt with.
    pub(super) fn may_go_on(&mut self, core: &QpCore) -> bool {
        self.early_bytes = self.early_of_others + core.early_bytes();
        !self.io.broken && !self.io.lost_completion
    }

    /// Writes a completion: with an `origin`, of a receive that a datagram has filled.
    pub(crate) fn complete_from(&mut self, completion: &Completion, origin: Option<&Origin>) {
        let own_recv = matches!(self.io.receives, RecvSource::Own(_));
        let (cq, queue_flags, consumer) = match completion.queue {
            WorkQueue::Send => (self.io.send_cq, 0, completion.next_index),
            WorkQueue::Chunk => return,
            WorkQueue::Recv if own_recv => (self.io.recv_cq, CQE_RECV, completion.next_index),
            // How far a shared queue has been taken stands in the queue.
            WorkQueue::Recv => {
                (self.io.recv_cq.or_else(|| self.srqs.cq_of(completion.srqn)), CQE_RECV | CQE_SRQ, 0)
            }
        };
        self.io.completions += 1;
        if !matches!(completion.status, Status::Success | Status::WrFlushErr) {
            let Completion { queue, status, cause, .. } = *completion;
            self.io.failed = Some(Failed { at: self.now, queue, status, cause });
        }
        // The shared receive queue for XRC has gone, and its completion queue with it.
        let Some(cq) = cq else { return };
        // A failed completion counts as solicited (IBTA Vol 1 §11.4.2.2).
        let solicited = completion.solicited || completion.status != Status::Success;
        let (tail_flag, imm_or_inv) = match (completion.imm, completion.inv) {
            (Some(imm), _) => (CQE_WITH_IMM, u32::from_ne_bytes(imm.0)),
            (None, Some(key)) => (CQE_WITH_INV, key.0),
            (None, None) => (0, 0),
        };
        let grh_flags = origin.map_or(0, |o| CQE_GRH | if o.is_ipv4 { CQE_IPV4 } else { 0 });
        let cqe = Cqe {
            wr_id: completion.wr_id,
            qpn: self.io.qpn.get(),
            cookie: self.io.cookie,
            byte_len: completion.byte_len,
            imm_or_inv,
            consumer,
            vendor_err: completion.cause as u32,
            timestamp_ns: self.now.as_nanos(),
            status: completion.status.to_abi(),
            opcode: completion.opcode.to_abi(),
            src_qpn: origin.map_or(0, |o| o.src_qpn),
            flags: queue_flags | tail_flag | grh_flags | if solicited { CQE_SOLICITED } else { 0 },
            ..Cqe::ZERO
        };
        if !self.cqs.push(cq, self.memory, cqe) {
            self.io.lost_completion = true;
        }
    }

    /// Makes sure that the queue pair holds a send, if it has one. Returns whether it does.
    pub(crate) fn hold_send(&mut self) -> bool {
        let QpIo { sq, held_send, broken, .. } = &mut *self.io;
        // What another engine works on is held.
        if !held_send.present
            && let Some(sq) = sq
        {
            held_send.present = sq.take(self.memory, &mut held_send.work).unwrap_or_else(|_| {
                *broken = true;
                false
            });
        }
        held_send.present
    }

    /// Judges the send that the queue pair holds, as [`judge_send`](crate::transport::judge_send).
    pub(crate) fn judge_held_send(&self, core: &QpCore) -> Result<u32, Failure> {
        judge_send_with(&self.io.held_send.work, core.attributes(), core.config(), |sges, access| {
            self.check_sges(sges, access)
        })
    }

    fn check_sges(&self, sges: &[Sge], access: LocalAccess) -> Result<(), MemoryFault> {
        let need = local_need(access);
        sges.iter().filter(|s| s.length > 0).try_for_each(|sge| {
            self.keys.resolve(self.io.accessor, sge.lkey.0, sge.addr, sge.length.into(), need).map(drop)
        })
    }

    /// Makes sure that the queue pair holds a receive, and gives it, or what is wrong with it; `None` when it has none.
    pub(crate) fn hold_recv(&mut self) -> Option<Result<&RecvWork, Failure>> {
        if !self.io.held_recv.present {
            let mut work = std::mem::take(&mut self.io.held_recv.work);
            let present = self.take_recv(&mut work);
            self.io.held_recv = Held { work, present };
        }
        let held = &self.io.held_recv;
        held.present.then_some(match held.work.defect {
            None => Ok(&held.work),
            Some(status) => Err(Failure::new(status, Cause::MalformedWork)),
        })
    }

    /// Completes the receive that the queue pair holds, if it holds one: with an `origin`, one that a datagram has filled.
    pub(crate) fn finish_recv(
        &mut self,
        origin: Option<&Origin>,
        outcome: impl FnOnce(Completion) -> Completion,
    ) {
        let held = &mut self.io.held_recv;
        if std::mem::replace(&mut held.present, false) {
            let completion = outcome(held.work.completion(Status::Success, Cause::None));
            self.complete_from(&completion, origin);
        }
    }

    /// Takes a receive from where this queue pair's come from; a hidden one's are the guest's queue pair's.
    pub(super) fn take_recv(&mut self, work: &mut RecvWork) -> bool {
        let receives = match &mut self.leader {
            Some(leader) => &mut leader.receives,
            None => &mut self.io.receives,
        };
        match receives {
            RecvSource::Own(ring) => ring.take(self.memory, work).unwrap_or_else(|_| {
                self.io.broken = true;
                false
            }),
            RecvSource::Shared(key) | RecvSource::Named { selected: Some(key), .. } => {
                let key = *key;
                self.take_shared_recv(key, work)
            }
            RecvSource::Named { selected: None, .. } | RecvSource::None => false,
        }
    }

    fn take_shared_recv(&mut self, key: SrqKey, work: &mut RecvWork) -> bool {
        let taken = self.srqs.take(key, self.memory, work);
        let Some(srq) = self.srqs.handle(key) else { return false };
        let vnic = self.vnic;
        if self.srqs.reaches_limit(key, self.memory) {
            self.sink.event(Event::SrqLimit { vnic, srq });
        }
        if let Taken::Broken { first } = taken {
            self.io.broken = true;
            if first {
                let reason = "the queue in guest memory is broken".into();
                self.sink.event(Event::SrqFault { vnic, srq, reason });
            }
        }
        taken == Taken::Receive
    }
}

impl Env for QpEnv<'_> {
    fn next_send(&mut self, work: &mut SendWork) -> bool {
        if self.asked {
            // When that engine is done, the queue pair has its turn.
            return false;
        }
        if self.io.held_send.take_into(work) {
            return true;
        }
        if let Some(member) = self.io.member {
            return self.next_of_group(member, work);
        }
        let Some(sq) = &mut self.io.sq else { return false };
        sq.take(self.memory, work).unwrap_or_else(|_| {
            self.io.broken = true;
            false
        })
    }

    fn next_send_to_flush(&mut self, work: &mut SendWork) -> bool {
        match self.io.member {
            Some(member) => self.next_of_group_to_flush(member, work),
            None => self.next_send(work),
        }
    }

    fn send_done(&mut self, work: &SendWork) {
        if let Some(member) = self.io.member {
            self.done_of_group(member, work);
        }
    }

    fn lend(&mut self) -> SendWork {
        self.spares.lend()
    }

    fn give_back(&mut self, work: SendWork) {
        self.spares.give_back(work);
    }

    fn lend_room(&mut self) -> Room {
        self.spares.lend_room()
    }

    fn give_back_room(&mut self, room: Room) {
        self.spares.give_back_room(room);
    }

    fn lend_buffer(&mut self) -> Vec<u8> {
        self.spares.lend_buffer()
    }

    fn give_back_buffer(&mut self, buffer: Vec<u8>) {
        self.spares.give_back_buffer(buffer);
    }

    fn may_hold(&self, buffers: usize) -> bool {
        limits::may_hold(self.held_by_others, buffers)
    }

    fn may_keep(&self, own: usize, more: usize) -> bool {
        limits::may_keep(self.early_bytes, own, more)
    }

    fn may_send(&mut self, bytes: usize) -> bool {
        match self.gate.take(self.now, bytes as u64 + self.io.ip_overhead) {
            Ok(()) => true,
            Err(short) => {
                self.io.short = Some(short);
                false
            }
        }
    }

    fn reply_sent(&mut self, bytes: usize) {
        self.gate.charge(self.now, bytes as u64 + self.io.ip_overhead);
    }

    fn next_recv(&mut self, work: &mut RecvWork) -> bool {
        if let Some(member) = self.io.member {
            return self.next_recv_of_group(member, work);
        }
        self.io.held_recv.take_into(work) || self.take_recv(work)
    }

    fn next_recv_to_flush(&mut self, work: &mut RecvWork) -> bool {
        let own = matches!(self.io.receives, RecvSource::Own(_));
        self.io.held_recv.take_into(work) || (own && self.take_recv(work))
    }

    fn next_assigned_to_flush(&mut self, work: &mut RecvWork) -> bool {
        let member = self.io.member.filter(|m| m.is_leader());
        let group = member.and_then(|m| self.groups.get_mut(m.group));
        let taken = group.and_then(|g| g.assigned.take_to_flush(work));
        self.has_taken_assigned(taken)
    }

    fn assign_recv(&mut self, number: u32, bytes: Range<u64>) -> Result<(), SteerFault> {
        self.assign_recv_of_group(number, bytes)
    }

    fn steer(&mut self, number: u32, offset: u64, data: &[u8]) -> Result<(), SteerFault> {
        let group = self.io.member.and_then(|m| self.groups.get_mut(m.group));
        let Some(recv) = group.and_then(|g| g.assigned.get_mut(number)) else {
            return Err(SteerFault::Invalid("data is steered to a receive that is not at hand"));
        };
        let (need, len) = (Need::LocalWrite, data.len() as u64);
        let spans = SgeSpans::new(self.keys, self.memory, self.io.accessor, need, &recv.sges, offset, len);
        recv.placed_by(len, write(spans, data))
    }

    fn is_ahead(&self, work: &SendWork) -> bool {
        let group = self.io.member.and_then(|m| self.groups.get(m.group));
        group.is_some_and(|g| g.is_ahead(work))
    }

    fn complete(&mut self, completion: &Completion) {
        match self.io.member {
            Some(member) if completion.status != Status::Success => {
                self.complete_of_group(member, completion);
            }
            _ => self.complete_from(completion, None),
        }
    }

    fn event(&mut self, event: QpEvent) {
        if self.io.member.is_some_and(|member| self.keeps_event(member, &event)) {
            return;
        }
        let (vnic, qp) = (self.vnic, self.io.handle);
        self.sink.event(match event {
            QpEvent::Fault { fault, reason } => Event::QpFault { vnic, qp, fault, reason: reason.into() },
            QpEvent::CommEstablished => Event::CommEstablished { vnic, qp },
            QpEvent::SqDrained if self.io.held_send.present => {
                // A send to a local peer is still on its way: its end brings the event.
                self.io.drained_early = true;
                return;
            }
            QpEvent::SqDrained => Event::SqDrained { vnic, qp },
            QpEvent::LastWqe => Event::LastWqe { vnic, qp },
        });
    }

    fn check_local(&mut self, sges: &[Sge], access: LocalAccess) -> Result<(), MemoryFault> {
        self.check_sges(sges, access)
    }

    fn gather(
        &mut self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), MemoryFault> {
        let need = Need::LocalRead;
        let spans = SgeSpans::new(self.keys, self.memory, self.io.accessor, need, sges, offset, len as u64);
        append(spans, len, out)
    }

    /// Keys are looked up once for all pieces.
    fn gather_pieces(
        &mut self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        count: usize,
        out: &mut Vec<u8>,
        mut before: impl FnMut(usize, &mut Vec<u8>),
    ) -> usize {
        let (need, all) = (Need::LocalRead, (len * count) as u64);
        let mut spans = SgeSpans::new(self.keys, self.memory, self.io.accessor, need, sges, offset, all);
        let mut rest = None;
        for place in 0..count {
            let end = out.len();
            before(place, out);
            let mut left = len;
            while left > 0 {
                let Some(Ok(span)) = rest.take().map(Ok).or_else(|| spans.next()) else {
                    out.truncate(end);
                    return place;
                };
                let (now, later) = span.split(left);
                now.append_to(out);
                left -= now.len();
                rest = (!later.is_empty()).then_some(later);
            }
        }
        count
    }

    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let (need, len) = (Need::LocalWrite, data.len() as u64);
        write(SgeSpans::new(self.keys, self.memory, self.io.accessor, need, sges, offset, len), data)
    }

    fn check_remote(&mut self, target: RemoteRange, access: RemoteAccess) -> Result<(), MemoryFault> {
        self.keys
            .resolve(self.io.accessor, target.rkey.0, target.va, target.len.into(), remote_need(access))
            .map(|_| ())
    }

    fn read_remote(&mut self, source: RemoteRange, out: &mut Vec<u8>) -> Result<(), MemoryFault> {
        let RemoteRange { rkey, va, len } = source;
        let (mr, offset) = self.keys.resolve(self.io.accessor, rkey.0, va, len.into(), Need::RemoteRead)?;
        append(mr.spans(self.memory, offset, len.into()), len as usize, out)
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let len = data.len() as u64;
        let (mr, offset) = self.keys.resolve(self.io.accessor, rkey.0, va, len, Need::RemoteWrite)?;
        write(mr.spans(self.memory, offset, len), data)
    }

    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        const BYTES: u64 = 8;
        let (mr, offset) = self.keys.resolve(self.io.accessor, rkey.0, va, BYTES, Need::RemoteAtomic)?;
        // An aligned word lies in one page, and pages in one region.
        let word = mr.spans(self.memory, offset, BYTES).next().ok_or(MemoryFault::Unavailable)??;
        let before = match op {
            AtomicOp::CmpSwap { compare, swap } => word.compare_swap_u64(0, compare, swap),
            AtomicOp::FetchAdd { add } => word.fetch_add_u64(0, add),
        };
        before.ok_or(MemoryFault::Unavailable)
    }

    fn change_key(&mut self, change: &KeyChange) -> Result<(), KeyFault> {
        self.keys.change(self.io.accessor, change, self.memory)
    }

    fn select_srq(&mut self, srqn: u32) -> bool {
        let RecvSource::Named { xrcd, selected } = &mut self.io.receives else { return false };
        let found = self.srqs.named(*xrcd, srqn);
        *selected = found.map(|(key, _)| key);
        self.io.accessor.pd = found.map(|(_, pd)| pd);
        found.is_some()
    }
}

fn local_need(access: LocalAccess) -> Need {
    match access {
        LocalAccess::Read => Need::LocalRead,
        LocalAccess::Write => Need::LocalWrite,
    }
}

fn remote_need(access: RemoteAccess) -> Need {
    match access {
        RemoteAccess::Read => Need::RemoteRead,
        RemoteAccess::Write => Need::RemoteWrite,
        RemoteAccess::Atomic => Need::RemoteAtomic,
    }
}

/// Writes all of `data` to `spans`, which must hold it. All of them are checked before anything changes.
fn write<'m>(
    mut spans: impl Iterator<Item = Result<Span<'m>, MemoryFault>> + Clone,
    data: &[u8],
) -> Result<(), MemoryFault> {
    let all = spans.clone();
    match spans.next() {
        // The common case: it lies in one piece, which has been looked up.
        Some(Ok(span)) if span.len() == data.len() => {
            span.write_tail_last(data);
            return Ok(());
        }
        Some(first) => first.and_then(|_| spans.try_for_each(|s| s.map(drop)))?,
        None => {}
    }
    let mut rest = data;
    for span in all {
        let written = span?.write_tail_last(rest);
        rest = rest.get(written..).unwrap_or_default();
    }
    if rest.is_empty() { Ok(()) } else { Err(MemoryFault::OutOfRange) }
}

/// Appends all bytes of `spans`, which must be `len`; on failure `out` is as it was.
fn append<'m>(
    spans: impl Iterator<Item = Result<Span<'m>, MemoryFault>>,
    len: usize,
    out: &mut Vec<u8>,
) -> Result<(), MemoryFault> {
    let before = out.len();
    for span in spans {
        match span {
            Ok(span) => span.append_to(out),
            Err(fault) => {
                out.truncate(before);
                return Err(fault);
            }
        }
    }
    if out.len() - before == len {
        return Ok(());
    }
    out.truncate(before);
    Err(MemoryFault::OutOfRange)
}
