//! Connections whose ends belong to two engines: the initiator's half here, the responder's there, and a request and its answer between.
//!
//! The initiator judges its request, resolves its own memory for one slice and pins it, and sends a [`Request`] to the engine that has the peer.
//! That engine does with it what it does for a queue pair of its own, copies, completes the peer's receive, and answers; the initiator
//! completes the send. A queue pair has one request under way at a time, so messages stay in order.
//!
//! # Whose memory, until when
//!
//! The other engine copies from or to the initiator's memory, which the request's [`Pinned`] keeps mapped. A command that ends what the guest's
//! memory is used for (a region, a queue pair, the memory table) must not be answered before: [`settle`] takes back the requests that nobody has begun and waits for the end of those that
//! somebody has. That is a slice's copy at most, and the other engine waits for nothing meanwhile, so no two wait for each other.
//! Likewise a queue pair in error flushes nothing before its request is back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use masq_driver::QpType;

use super::answer::{Answer, Ask, Data, Refusal, own_spans, respond, store_fetched};
use super::bill::Bill;
use super::{
    Caller, NO_SUCH_SRQ, SLICE_BYTES, Step, Verdict, Wait, break_qp, establish, fail, fail_peer,
    fail_receive, fail_request, find_peer, lost, not_answered, not_ready, note_not_ready, progress,
    select_srq, succeed,
};
use crate::engine::World;
use crate::keys::Need;
use crate::memory::Pinned;
use crate::qp::QpKey;
use crate::shaping::Short;
use crate::transport::{Failure, MemoryFault, SendOp, Time};

/// Requests of one other engine that are carried out in a turn.
const REQUESTS_PER_TURN: usize = 64;

/// A request to the engine that has the peer, and its answer.
#[derive(Debug, Default)]
pub struct Request {
    ticket: Ticket,
    /// The initiator, as its own engine knows it.
    from: Option<QpKey>,
    content: Option<Content>,
    /// Most bytes that are to be copied.
    room: usize,
    pinned: Pinned,
    inline: Vec<u8>,
    is_inline: bool,
    reply: Reply,
}

#[derive(Clone, Copy, Debug)]
struct Content {
    caller: Caller,
    ask: Ask,
    bill: Bill,
    /// The peer's connection at which the bytes were done that are done.
    incarnation: u64,
}

/// The answer.
#[derive(Clone, Copy, Debug, Default)]
enum Reply {
    /// There is no such peer, or it does not answer.
    #[default]
    Silence,
    /// This engine has it now.
    Elsewhere(usize),
    /// The peer's connection is this one: the message is to begin again.
    Again(u64),
    /// The peer's vNIC may send nothing before.
    Held(Time),
    /// The peer has no receive, and says how long to wait.
    NotReady(Duration),
    Own(MemoryFault),
    Refused(Verdict),
    /// The message of an unreliable connection is lost.
    Lost,
    Copied(usize),
    Done(usize),
    Fetched(u64),
}

/// Whether a request is carried out: its sender may take it back as long as nobody has begun.
#[derive(Clone, Debug, Default)]
pub struct Ticket(Arc<AtomicU8>);

impl Ticket {
    const SENT: u8 = 0;
    const BEGUN: u8 = 1;
    const TAKEN_BACK: u8 = 2;

    fn reset(&self) {
        self.0.store(Self::SENT, Ordering::Relaxed);
    }

    /// Begins; `false` when it has been taken back.
    fn begin(&self) -> bool {
        self.leave_sent(Self::BEGUN)
    }

    /// Takes it back; `false` when it is too late. Then the answer is to be waited for.
    pub fn take_back(&self) -> bool {
        self.leave_sent(Self::TAKEN_BACK)
    }

    fn leave_sent(&self, to: u8) -> bool {
        // Who takes it back goes on to change what the request is about; nothing of the request is carried out then, so only the exchange itself matters.
        self.0.compare_exchange(Self::SENT, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn is(&self, other: &Ticket) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn is_taken_back(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::TAKEN_BACK
    }
}

impl Request {
    /// Bytes that it is about.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Lets go of what it refers to.
    pub fn clear(&mut self) {
        self.pinned.clear();
        (self.from, self.content) = (None, None);
    }
}

/// Asks the engine that has the peer for the next piece of the held request.
pub(super) fn ask(
    world: &mut World,
    engine: usize,
    key: QpKey,
    caller: &Caller,
    len: u32,
    room: usize,
) -> Step {
    let Some(qp) = world.qps.get(key) else { return Step::Idle };
    let (ask, vnic_key, incarnation) = (Ask::of(qp, len), qp.io.vnic, qp.initiator.incarnation);
    let bill = Bill::new(qp, &ask);
    let (_, bytes, _) = ask.piece(room);
    // The peer's vNIC pays for a READ.
    let is_read = ask.op == SendOp::Read;
    let bytes = match bill.leave(world, vnic_key, bytes) {
        _ if is_read => bytes,
        Some(Ok(allowed)) => bytes.min(allowed),
        Some(Err(held)) => return Step::Held(held),
        None => return Step::Idle,
    };
    let Some(mut request) = world.fabric.as_mut().and_then(|f| f.open_request(engine, bytes)) else {
        // An answer brings room, and the queue pair's turn. Until then it has others, as often as its guest rings.
        if let (Some(qp), Some(fabric)) = (world.qps.get_mut(key), &mut world.fabric)
            && !std::mem::replace(&mut qp.waits_for_room, true)
        {
            fabric.wait_for_room(engine, key);
        }
        return Step::Idle;
    };
    if let Err(fault) = take_along(world, key, &ask, bytes, &mut request) {
        if let Some(fabric) = &mut world.fabric {
            fabric.return_request(engine, request);
        }
        return fail(world, key, Failure::local_protection(fault));
    }
    if !is_read {
        bill.charge(world, vnic_key, bytes);
    }
    request.ticket.reset();
    request.from = Some(key);
    request.room = bytes;
    request.content = Some(Content { caller: *caller, ask, bill, incarnation });
    if let (Some(qp), Some(vnic)) = (world.qps.get_mut(key), world.vnics.get_mut(vnic_key)) {
        qp.asked = Some(request.ticket.clone());
        qp.initiator.nudged = false;
        vnic.asked.push(key);
    }
    if let Some(fabric) = &mut world.fabric {
        fabric.send_request(engine, request);
    }
    Step::Asked(bytes)
}

/// Puts into the request what the other engine needs of the initiator's memory for the next `bytes`.
fn take_along(
    world: &World,
    key: QpKey,
    ask: &Ask,
    bytes: usize,
    request: &mut Request,
) -> Result<(), MemoryFault> {
    request.inline.clear();
    let qp = world.qps.get(key).ok_or(MemoryFault::Unavailable)?;
    let vnic = world.vnics.get(qp.io.vnic).ok_or(MemoryFault::Unavailable)?;
    let work = &qp.io.held_send.work;
    request.is_inline = work.inline || ask.op.is_atomic() || bytes == 0;
    if ask.op.is_atomic() || bytes == 0 {
        return Ok(());
    }
    let (offset, ..) = ask.piece(bytes);
    if work.inline {
        let from = offset as usize;
        let data = work.inline_data.get(from..from + bytes).ok_or(MemoryFault::OutOfRange)?;
        request.inline.extend_from_slice(data);
        return Ok(());
    }
    let need = if ask.op == SendOp::Read { Need::LocalWrite } else { Need::LocalRead };
    request.pinned.begin(&vnic.memory);
    let mut pinned = 0;
    for span in own_spans(qp, vnic, need, offset, bytes) {
        let span = span?;
        if !request.pinned.push(&span) {
            return Err(MemoryFault::Unavailable);
        }
        pinned += span.len();
    }
    if pinned == bytes { Ok(()) } else { Err(MemoryFault::OutOfRange) }
}

/// Carries out requests of other engines, a bounded number. Returns whether there were any.
pub fn serve(world: &mut World) -> bool {
    let mut worked = false;
    let Some(others) = world.fabric.as_ref().map(|f| f.others()) else { return false };
    for engine in others {
        let mut bytes = 0;
        for _ in 0..REQUESTS_PER_TURN {
            let next = world.fabric.as_mut().and_then(|f| f.next_request(engine));
            let Some(mut request) = next else { break };
            worked = true;
            if request.ticket.begin()
                && let Some(content) = request.content
            {
                bytes += request.room;
                request.reply = reply(world, &content, &request);
            }
            if let Some(fabric) = &mut world.fabric {
                fabric.answer(engine, request);
            }
            if bytes >= SLICE_BYTES {
                break;
            }
        }
    }
    worked
}

/// The responder's half.
fn reply(world: &mut World, content: &Content, request: &Request) -> Reply {
    let Content { caller, ask, bill, incarnation } = content;
    let Some(peer) = find_peer(world, caller) else {
        return world.engine_of(&caller.callee()).map_or(Reply::Silence, Reply::Elsewhere);
    };
    if peer.incarnation != *incarnation {
        return Reply::Again(peer.incarnation);
    }
    establish(world, peer.key);
    let unreliable = caller.qp_type == QpType::Uc;
    let answer = if caller.qp_type == QpType::XrcIni && !select_srq(world, peer.key, ask.srqn) {
        Answer::Refused(Refusal::Invalid(NO_SUCH_SRQ))
    } else {
        let room = match ask.op {
            SendOp::Read => match bill.leave(world, peer.vnic, request.room) {
                Some(Ok(room)) => room,
                Some(Err(held)) => return hold(world, peer.vnic, held.short),
                None => return Reply::Silence,
            },
            _ => request.room,
        };
        let data = match request.is_inline {
            true => Data::Inline(&request.inline),
            false => Data::Pinned(&request.pinned),
        };
        respond(world, peer.key, ask, data, room)
    };
    match answer {
        Answer::Copied(bytes) => {
            bill.pay_responder(world, peer.key, bytes, false);
            Reply::Copied(bytes)
        }
        Answer::Done(bytes) => {
            bill.pay_responder(world, peer.key, bytes, true);
            Reply::Done(bytes)
        }
        Answer::Fetched(original) => {
            bill.pay_responder(world, peer.key, 0, true);
            Reply::Fetched(original)
        }
        Answer::NotReady if unreliable => Reply::Lost,
        Answer::Refused(refusal) if unreliable => {
            fail_receive(world, peer.key, &refusal);
            Reply::Lost
        }
        Answer::NotReady => note_not_ready(world, peer.key).map_or(Reply::Silence, Reply::NotReady),
        Answer::Own(fault) => Reply::Own(fault),
        Answer::Refused(refusal) => {
            refusal.count(world.counters_of(peer.key));
            let verdict = refusal.verdict(ask.op.has_imm());
            fail_peer(world, peer.key, &verdict);
            Reply::Refused(verdict)
        }
    }
}

/// The peer's vNIC may not send what a READ asks for.
fn hold(world: &mut World, vnic_key: usize, short: Short) -> Reply {
    let now = world.now;
    if let Some(vnic) = world.vnics.get_mut(vnic_key) {
        vnic.shaping.hold(now);
    }
    match short {
        Short::Vnic(until) | Short::Class(until) => Reply::Held(until),
        Short::Closed => Reply::Held(now),
    }
}

/// Takes the answers of other engines. Returns whether there were any.
pub fn take_answers(world: &mut World) -> bool {
    let mut worked = false;
    let Some(others) = world.fabric.as_ref().map(|f| f.others()) else { return false };
    for engine in others {
        while let Some(request) = world.fabric.as_mut().and_then(|f| f.next_answer(engine)) {
            worked = true;
            if !request.ticket.is_taken_back() {
                conclude(world, &request);
            }
            if let Some(fabric) = &mut world.fabric {
                fabric.return_request(engine, request);
            }
        }
        while worked && let Some(key) = world.fabric.as_mut().and_then(|f| f.next_waiting(engine)) {
            if let Some(qp) = world.qps.get_mut(key) {
                qp.waits_for_room = false;
            }
            world.schedule(key);
        }
    }
    worked
}

/// The initiator's half after the answer.
fn conclude(world: &mut World, request: &Request) {
    let (Some(key), Some(content)) = (request.from, &request.content) else { return };
    let Some(qp) = world.qps.get(key) else { return };
    if !qp.asked.as_ref().is_some_and(|t| t.is(&request.ticket)) {
        return;
    }
    let sends = matches!(qp.core.state(), masq_driver::QpState::Rts | masq_driver::QpState::Sqd);
    forget(world, key);
    let Content { ask, bill, .. } = content;
    match request.reply {
        Reply::Done(bytes) => finish(world, key, ask, bill, Answer::Done(bytes)),
        Reply::Fetched(original) => {
            let answer = store_fetched(world, key, original);
            finish(world, key, ask, bill, answer);
        }
        // It has failed meanwhile: what is not done is flushed.
        _ if !sends => {}
        Reply::Copied(bytes) => {
            bill.pay_initiator(world, key, bytes, false, ask.op != SendOp::Read);
            progress(world, key, bytes);
        }
        // What made the peer able to answer can be heard of before the answer to what was asked earlier.
        Reply::Silence if world.qps.get(key).is_some_and(|q| q.initiator.nudged) => {}
        Reply::Silence => {
            not_answered(world, key, ask.len);
        }
        Reply::Elsewhere(engine) => {
            if let Some(qp) = world.qps.get_mut(key) {
                qp.initiator.redirected = Some(engine);
            }
        }
        Reply::Again(incarnation) => {
            if let Some(qp) = world.qps.get_mut(key) {
                qp.initiator.meet(incarnation);
            }
        }
        Reply::Held(until) => {
            if let Some(qp) = world.qps.get_mut(key) {
                qp.initiator.wait = Wait::Leave { until };
            }
        }
        Reply::NotReady(pause) => {
            not_ready(world, key, pause);
        }
        Reply::Own(fault) => {
            fail(world, key, Failure::local_protection(fault));
        }
        Reply::Refused(verdict) => {
            fail_request(world, key, &verdict);
            break_qp(world, key, None, "a send request failed");
        }
        Reply::Lost => {
            lost(world, key, ask.len);
        }
    }
    world.schedule(key);
}

fn finish(world: &mut World, key: QpKey, ask: &Ask, bill: &Bill, answer: Answer) {
    match answer {
        Answer::Done(bytes) => {
            bill.pay_initiator(world, key, bytes, true, ask.op != SendOp::Read);
            succeed(world, key, ask.len);
        }
        Answer::Own(fault) => {
            fail(world, key, Failure::local_protection(fault));
        }
        _ => {}
    }
}

/// The queue pair has no request under way any more.
fn forget(world: &mut World, key: QpKey) {
    let Some(qp) = world.qps.get_mut(key) else { return };
    qp.asked = None;
    if let Some(vnic) = world.vnics.get_mut(qp.io.vnic) {
        vnic.asked.retain(|k| *k != key);
    }
}

impl World {
    /// Takes back what a queue pair has asked another engine for. Returns whether nothing of it is under way any more.
    pub fn take_back(&mut self, key: QpKey) -> bool {
        let Some(ticket) = self.qps.get(key).and_then(|q| q.asked.as_ref()) else { return true };
        let taken_back = ticket.take_back();
        if taken_back {
            forget(self, key);
            self.schedule(key);
        }
        taken_back
    }
}

/// Sees to it that no other engine works on the memory of a vNIC: see the module's text.
pub fn settle(world: &mut World, vnic_key: usize) {
    loop {
        let asked = world.vnics.get(vnic_key).map_or(Vec::new(), |v| v.asked.clone());
        let mut left = false;
        for key in asked {
            left |= !world.take_back(key);
        }
        if !left {
            return;
        }
        if !take_answers(world) {
            std::thread::yield_now();
        }
    }
}
