//! Connections between two queue pairs of this RNIC: whole messages, from memory to memory, without packets.
//!
//! The initiator's turn does all the work: it takes a request from its send queue, asks the peer's side what the
//! peer's responder would ask (state, rights, keys, a receive), copies, and completes both ends. Large messages are
//! copied in slices, one per turn, so that others are not held up. What the guests see, statuses and their
//! causes among it, is what the remote path shows: `transport::requester` and `transport::responder` are the models, and one
//! suite runs over both.
//!
//! A peer that is not there, not connected back or not in a state to answer does not answer; the
//! initiator tries again after its local ACK timeout, `retry_cnt` times. Of an unreliable connection, a message that the peer's side cannot take
//! is lost, and the initiator never knows.
//!
//! Between two slices anything can happen to either side: keys are checked again for each slice; a
//! connection that was made anew makes the message begin again.

mod answer;
mod away;
mod bill;

use std::time::Duration;

use masq_driver::{Event, QpFault, QpState, QpType};
use masq_types::{Vni, WireQpn};

use self::answer::{Answer, Ask, Data, Refusal, respond, store_fetched};
use self::bill::Bill;
use crate::engine::World;
use crate::qp::{LocalPath, Path, QpKey};
use crate::shaping::Short;
use crate::transport::{
    Cause, Completion, Counters, Env, Failure, MemoryFault, QpEvent, SendOp, Status, Time, change_key,
};
use crate::udp::LocalId;

pub use self::answer::{Side, copy};
pub use self::away::{Request, Ticket, serve, settle, take_answers};

/// Messages of one turn.
const MESSAGES_PER_TURN: usize = 64;
/// Most bytes that are copied at once.
pub const SLICE_BYTES: usize = 256 << 10;
/// `rnr_retry` that means "without end".
const RNR_RETRY_FOREVER: u8 = 7;

/// What a queue pair is doing towards its local peer.
#[derive(Debug, Default)]
pub struct Initiator {
    /// The held send has been judged, and is so many bytes long.
    judged: Option<u32>,
    /// Bytes of it that are done.
    done: u32,
    /// The peer's connection at which they were done.
    incarnation: u64,
    /// Tries that are left when the peer does not answer.
    left: u8,
    /// Tries that are left when the peer has no receive.
    rnr_left: u8,
    wait: Wait,
    /// The peer has become able to answer since another engine was asked.
    nudged: bool,
    /// The engine that was asked has said that this one has the peer: it is asked next, once. Who has what is known from notes, whose order is that
    /// of what happened; an answer can come after a note about what was later.
    redirected: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wait {
    #[default]
    None,
    /// The peer had no receive.
    Receive { until: Time },
    /// The peer's vNIC, on another engine, may not send.
    Leave { until: Time },
    /// The peer does not answer; without a timeout there is no end.
    Answer { until: Option<Time> },
}

impl Initiator {
    /// Begins afresh: at RTS, and with a new connection.
    pub fn start(&mut self, qp: &crate::transport::Attributes) {
        *self = Self { left: qp.retry_cnt, rnr_left: qp.rnr_retry, ..Self::default() };
    }

    /// When it wants to run again.
    pub fn deadline(&self) -> Option<Time> {
        match self.wait {
            Wait::None => None,
            Wait::Receive { until } | Wait::Leave { until } => Some(until),
            Wait::Answer { until } => until,
        }
    }

    /// Tries that are left when the peer does not answer, and when it has no receive.
    pub fn tries_left(&self) -> (u8, u8) {
        (self.left, self.rnr_left)
    }

    /// Whether it waits because the peer had no receive.
    pub fn waits_for_receive(&self) -> bool {
        matches!(self.wait, Wait::Receive { .. })
    }

    /// Whether it waits because the peer did not answer.
    pub fn waits_for_answer(&self) -> bool {
        matches!(self.wait, Wait::Answer { .. })
    }

    /// The peer's connection is this one: with another than before the message begins again.
    fn meet(&mut self, incarnation: u64) {
        if std::mem::replace(&mut self.incarnation, incarnation) != incarnation {
            self.done = 0;
        }
    }

    /// The peer may answer now.
    pub fn nudge(&mut self) {
        self.nudged = true;
        if matches!(self.wait, Wait::Answer { .. }) {
            self.wait = Wait::None;
        }
    }
}

/// What a turn has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Bytes copied.
    pub bytes: usize,
    /// Messages done.
    pub messages: usize,
    /// There is more to do at once.
    pub more: bool,
    /// There is something to send that may not be sent now.
    pub held: Option<Held>,
}

/// What may not be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The vNIC whose memory it is in.
    pub payer: usize,
    /// Why, and until when.
    pub short: Short,
}

/// Gives queue pair `key` a turn.
pub fn run(world: &mut World, key: QpKey) -> Ran {
    let mut ran = Ran::default();
    while ran.messages < MESSAGES_PER_TURN && ran.bytes < SLICE_BYTES {
        match step(world, key, SLICE_BYTES - ran.bytes) {
            Step::Idle => return ran,
            Step::Held(held) => {
                ran.held = Some(held);
                return ran;
            }
            Step::Copied(bytes) => ran.bytes += bytes,
            Step::Asked(bytes) => {
                ran.bytes += bytes;
                return ran;
            }
            Step::Done(bytes) => {
                ran.bytes += bytes;
                ran.messages += 1;
            }
        }
    }
    ran.more = true;
    ran
}

enum Step {
    /// There is nothing to do, or it must wait.
    Idle,
    /// It must wait for leave to send.
    Held(Held),
    /// A part of a message.
    Copied(usize),
    /// Another engine has been asked for so many bytes; its answer lets the queue pair go on.
    Asked(usize),
    /// The end of a message.
    Done(usize),
}

fn step(world: &mut World, key: QpKey, room: usize) -> Step {
    let now = world.now;
    let Some(qp) = world.qps.get_mut(key).filter(|q| q.asked.is_none()) else { return Step::Idle };
    match qp.initiator.wait {
        Wait::Receive { until } | Wait::Leave { until } | Wait::Answer { until: Some(until) }
            if until > now =>
        {
            return Step::Idle;
        }
        Wait::Answer { until: None } => return Step::Idle,
        Wait::Receive { .. } | Wait::Leave { .. } => qp.initiator.wait = Wait::None,
        Wait::Answer { .. } => match qp.initiator.left.checked_sub(1) {
            None => {
                let counters = world.counters_of(key);
                counters.local_ack_timeout_err += 1;
                counters.retry_exceeded_err += 1;
                return fail(world, key, Failure::new(Status::RetryExcErr, Cause::RetryExceeded));
            }
            Some(left) => {
                qp.initiator.left = left;
                qp.initiator.wait = Wait::None;
                qp.core.counters_mut().local_ack_timeout_err += 1;
            }
        },
        Wait::None => {}
    }
    if !matches!(qp.core.state(), QpState::Rts | QpState::Sqd) {
        return Step::Idle;
    }
    let len = match hold(world, key) {
        None => return Step::Idle,
        Some(Ok(len)) => len,
        Some(Err(failure)) => return fail(world, key, failure),
    };
    let Some(qp) = world.qps.get_mut(key) else { return Step::Idle };
    if qp.io.held_send.work.op.is_local() {
        return carry_out(world, key);
    }
    let redirected = qp.initiator.redirected.take();
    let Some(caller) = Caller::of(world, key) else { return not_answered(world, key, len) };
    match find_peer(world, &caller) {
        Some(peer) => step_here(world, key, &peer, len, room),
        None => match next_to_ask(world, redirected, &caller) {
            Some(engine) => away::ask(world, engine, key, &caller, len, room),
            None => not_answered(world, key, len),
        },
    }
}

/// The other engine that has the peer, as far as is known.
fn next_to_ask(world: &World, redirected: Option<usize>, caller: &Caller) -> Option<usize> {
    // The initiator may have moved to that engine since it was told.
    let own = world.fabric.as_ref().map(|f| f.index);
    redirected.filter(|engine| own != Some(*engine)).or_else(|| world.engine_of(&caller.callee()))
}

/// Carries the held request on to a peer of this engine.
fn step_here(world: &mut World, key: QpKey, peer: &Peer, len: u32, room: usize) -> Step {
    let Some(qp) = world.qps.get_mut(key) else { return Step::Idle };
    qp.initiator.meet(peer.incarnation);
    let ask = Ask::of(qp, len);
    let (bill, own_vnic) = (Bill::new(qp, &ask), qp.io.vnic);
    let (with_imm, is_xrc) = (ask.op.has_imm(), qp.core.config().qp_type == QpType::XrcIni);
    let unreliable = qp.core.config().qp_type == QpType::Uc;
    let (peer, peer_vnic) = (peer.key, peer.vnic);
    establish(world, peer);
    let payer = if ask.op == SendOp::Read { peer_vnic } else { own_vnic };
    let answer = if is_xrc && !select_srq(world, peer, ask.srqn) {
        Answer::Refused(Refusal::Invalid(NO_SUCH_SRQ))
    } else {
        let room = match bill.leave(world, payer, room) {
            Some(Ok(room)) => room,
            Some(Err(held)) => return Step::Held(held),
            None => return Step::Idle,
        };
        match respond(world, peer, &ask, Data::Held(key), room) {
            Answer::Fetched(original) => store_fetched(world, key, original),
            answer => answer,
        }
    };
    match answer {
        Answer::Copied(bytes) => {
            bill.pay(world, key, peer, bytes, false);
            progress(world, key, bytes);
            Step::Copied(bytes)
        }
        Answer::Done(bytes) => {
            bill.pay(world, key, peer, bytes, true);
            succeed(world, key, len);
            Step::Done(bytes)
        }
        Answer::NotReady if unreliable => lost(world, key, len),
        Answer::Refused(refusal) if unreliable => {
            fail_receive(world, peer, &refusal);
            lost(world, key, len)
        }
        Answer::NotReady => match note_not_ready(world, peer) {
            Some(pause) => not_ready(world, key, pause),
            None => Step::Idle,
        },
        Answer::Own(fault) => fail(world, key, Failure::local_protection(fault)),
        Answer::Refused(refusal) => {
            refusal.count(world.counters_of(peer));
            let verdict = refusal.verdict(with_imm);
            // The failed requests first, so that nothing is flushed before them, also when both ends are one.
            fail_request(world, key, &verdict);
            fail_peer(world, peer, &verdict);
            break_qp(world, key, None, "a send request failed");
            Step::Idle
        }
        Answer::Fetched(_) => Step::Idle,
    }
}

/// So much of the held request is done besides.
fn progress(world: &mut World, key: QpKey, bytes: usize) {
    if let Some(qp) = world.qps.get_mut(key) {
        qp.initiator.done += bytes as u32;
    }
}

/// Makes sure that a request is held, which is judged once, as far as its own side can. Returns its length; `None` when there is none.
fn hold(world: &mut World, key: QpKey) -> Option<Result<u32, Failure>> {
    let qp = world.qps.get(key)?;
    if let Some(len) = qp.initiator.judged.filter(|_| qp.io.held_send.present) {
        return Some(Ok(len));
    }
    let (fresh, judged) = world.with_env(key, |core, env| {
        let fresh = !env.io.held_send.present;
        let held = !fresh || (core.state() == QpState::Rts && env.hold_send());
        held.then(|| (fresh, env.judge_held_send(core)))
    })??;
    if let Some(qp) = world.qps.get_mut(key) {
        qp.initiator.judged = judged.ok();
        if fresh {
            qp.initiator.done = 0;
        }
    }
    Some(judged)
}

/// Carries out the held request, which concerns nobody else.
fn carry_out(world: &mut World, key: QpKey) -> Step {
    let changed = world.with_env(key, |_, env| {
        let work = std::mem::take(&mut env.io.held_send.work);
        let changed = change_key(env, &work);
        env.io.held_send.work = work;
        changed
    });
    if let Err(failure) = changed.unwrap_or(Ok(())) {
        return fail(world, key, failure);
    }
    succeed(world, key, 0);
    Step::Done(0)
}

/// The held message of an unreliable connection is lost on its way.
fn lost(world: &mut World, key: QpKey, len: u32) -> Step {
    world.counters_of(key).rx_dropped += 1;
    succeed(world, key, len);
    Step::Done(0)
}

/// Of an XRC target: names the shared receive queue that the message is for. A receive of another one, taken for a message whose sender has
/// gone, is given up.
fn select_srq(world: &mut World, peer: QpKey, srqn: u32) -> bool {
    if world.qps.get(peer).is_some_and(|q| q.io.held_recv.present && q.io.held_recv.work.srqn != srqn) {
        let (status, cause) = (Status::WrFlushErr, Cause::Flushed);
        finish_receive(world, peer, |c| Completion { status, cause, ..c });
    }
    world.with_env(peer, |_, env| env.select_srq(srqn)).unwrap_or(false)
}

const NO_SUCH_SRQ: &str = "the XRC domain has no shared receive queue of this number";

/// The type of the other end of a connection.
fn counterpart(qp_type: QpType) -> QpType {
    match qp_type {
        QpType::XrcIni => QpType::XrcTgt,
        QpType::XrcTgt => QpType::XrcIni,
        same => same,
    }
}

/// Who asks, as its peer must know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    local: LocalId,
    qpn: WireQpn,
    remote: LocalId,
    remote_qpn: WireQpn,
    vni: Vni,
    qp_type: QpType,
}

/// The other end of a connection.
struct Peer {
    key: QpKey,
    vnic: usize,
    incarnation: u64,
}

impl Caller {
    fn of(world: &World, key: QpKey) -> Option<Self> {
        let qp = world.qps.get(key)?;
        let Path::Local(LocalPath { local, remote, remote_qpn, .. }) = qp.path else { return None };
        let vni = world.vnics.get(qp.io.vnic)?.vni;
        let (qpn, qp_type) = (qp.io.wire_qpn, qp.core.config().qp_type);
        Some(Self { local, qpn, remote, remote_qpn, vni, qp_type })
    }

    /// Whom it asks.
    fn callee(&self) -> (LocalId, WireQpn) {
        (self.remote, self.remote_qpn)
    }
}

/// The peer, if it would answer: it is of the right type and connected back, in the same network, and in a state to receive.
fn find_peer(world: &World, caller: &Caller) -> Option<Peer> {
    let key = *world.wire.get(&caller.callee())?;
    let peer = world.qps.get(key)?;
    let Path::Local(back) = &peer.path else { return None };
    let connected =
        back.remote == caller.local && back.local == caller.remote && back.remote_qpn == caller.qpn;
    let same_network = world.vnics.get(peer.io.vnic)?.vni == caller.vni;
    let answers = matches!(peer.core.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
    let fits = peer.core.config().qp_type == counterpart(caller.qp_type);
    (connected && fits && same_network && answers).then_some(Peer {
        key,
        vnic: peer.io.vnic,
        incarnation: back.incarnation,
    })
}

/// The peer hears from its connection for the first time.
fn establish(world: &mut World, peer: QpKey) {
    let Some(qp) = world.qps.get_mut(peer) else { return };
    let Path::Local(path) = &mut qp.path else { return };
    if !std::mem::replace(&mut path.established, true) && qp.core.state() == QpState::Rtr {
        world.with_env(peer, |_, env| env.event(QpEvent::CommEstablished));
    }
}

/// Completes the receive that the peer holds, if it holds one.
fn finish_receive(world: &mut World, peer: QpKey, outcome: impl FnOnce(Completion) -> Completion) {
    world.with_env(peer, |_, env| env.finish_recv(None, outcome));
}

/// Completes the held request.
pub fn finish_send(world: &mut World, key: QpKey, status: Status, cause: Cause, byte_len: u32) {
    world.with_env(key, |_, env| {
        let held = &mut env.io.held_send;
        if std::mem::replace(&mut held.present, false)
            && (status != Status::Success || held.work.signalled || env.io.signal_all)
        {
            let completion = held.work.completion(status, cause, byte_len);
            env.complete(&completion);
        }
    });
}

/// The held request is done.
fn succeed(world: &mut World, key: QpKey, len: u32) {
    finish_send(world, key, Status::Success, Cause::None, len);
    let Some(qp) = world.qps.get_mut(key) else { return };
    let attributes = qp.core.attributes();
    (qp.initiator.left, qp.initiator.rnr_left) = (attributes.retry_cnt, attributes.rnr_retry);
    (qp.initiator.judged, qp.initiator.done) = (None, 0);
    tell_drained(world, key);
}

/// The held request is done: if the send queue was to be reported as drained, it is now.
pub fn tell_drained(world: &mut World, key: QpKey) {
    let Some(qp) = world.qps.get_mut(key) else { return };
    if std::mem::replace(&mut qp.io.drained_early, false)
        && let Some(vnic) = world.vnics.get(qp.io.vnic)
    {
        world.sink.event(Event::SqDrained { vnic: vnic.id, qp: qp.io.handle });
    }
}

/// The held request fails, and with it its queue pair.
fn fail(world: &mut World, key: QpKey, failure: Failure) -> Step {
    world.counters_of(key).req_cqe_error += 1;
    finish_send(world, key, failure.status, failure.cause, 0);
    if !world.qps.get(key).is_some_and(|q| q.core.config().qp_type == QpType::Uc) {
        break_qp(world, key, None, "a send request failed");
        return Step::Idle;
    }
    // It goes on receiving.
    world.with_env(key, |core, env| core.fail_sends(env));
    if let Some(qp) = world.qps.get_mut(key) {
        qp.initiator = Initiator::default();
        qp.io.drained_early = false;
    }
    world.schedule(key);
    Step::Idle
}

/// Moves a queue pair to ERR; what its rings still hold is flushed in its turns.
fn break_qp(world: &mut World, key: QpKey, fault: Option<QpFault>, reason: &'static str) {
    let now = world.now;
    world.with_env(key, |core, env| core.fail(now, env, fault, reason));
    if let Some(qp) = world.qps.get_mut(key) {
        qp.initiator = Initiator::default();
        qp.io.drained_early = false;
    }
    world.schedule(key);
}

/// Nobody answers. A message of an unreliable connection is lost.
fn not_answered(world: &mut World, key: QpKey, len: u32) -> Step {
    if world.qps.get(key).is_some_and(|q| q.core.config().qp_type == QpType::Uc) {
        return lost(world, key, len);
    }
    let now = world.now;
    if let Some(qp) = world.qps.get_mut(key) {
        let timeout: Option<Duration> = qp.core.attributes().ack_timeout(qp.core.config().min_ack_timeout);
        qp.initiator.wait = Wait::Answer { until: timeout.map(|t| now.plus(t)) };
    }
    Step::Idle
}

/// The peer has no receive: its side of that. Returns how long the initiator waits.
fn note_not_ready(world: &mut World, peer: QpKey) -> Option<Duration> {
    world.counters_of(peer).send_rnr_err += 1;
    world.qps.get(peer).map(|p| p.core.attributes().min_rnr_timer.duration())
}

/// The peer has no receive.
fn not_ready(world: &mut World, key: QpKey, pause: Duration) -> Step {
    world.counters_of(key).rcvd_rnr_err += 1;
    let now = world.now;
    let Some(qp) = world.qps.get_mut(key) else { return Step::Idle };
    if qp.initiator.rnr_left != RNR_RETRY_FOREVER {
        match qp.initiator.rnr_left.checked_sub(1) {
            Some(left) => qp.initiator.rnr_left = left,
            None => {
                world.counters_of(key).rnr_nak_retry_err += 1;
                return fail(world, key, Failure::new(Status::RnrRetryExcErr, Cause::RnrRetryExceeded));
            }
        }
    }
    qp.initiator.wait = Wait::Receive { until: now.plus(pause) };
    Step::Idle
}

/// Of an unreliable connection: a receive that cannot be used fails, and with it its queue pair; else nothing happens.
fn fail_receive(world: &mut World, peer: QpKey, refusal: &Refusal) {
    if let Refusal::Receive(failure, _) = *refusal
        && failure.status != Status::LocLenErr
    {
        world.counters_of(peer).resp_cqe_error += 1;
        finish_receive(world, peer, |c| Completion { status: failure.status, cause: failure.cause, ..c });
        break_qp(world, peer, None, "a receive failed");
    }
}

/// What becomes of both ends when the peer's responder refuses.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    /// Of the request.
    status: Status,
    cause: Cause,
    /// Of the receive that it has taken, if it has taken one.
    receive: Option<Failure>,
    /// The peer's guest is told of this.
    fault: Option<QpFault>,
    reason: &'static str,
}

impl Refusal {
    fn verdict(&self, with_imm: bool) -> Verdict {
        // What becomes of the receive that a refused RDMA WRITE with immediate data has taken, if it has taken one.
        let imm_receive = with_imm.then_some(Failure::new(Status::LocAccessErr, Cause::PeerAccess));
        let (status, receive, fault, reason) = match *self {
            Refusal::Receive(failure, status) => (status, Some(failure), None, "a receive failed"),
            Refusal::Invalid(reason) => (Status::RemInvReqErr, None, Some(QpFault::Request), reason),
            Refusal::Access(MemoryFault::Unavailable) => {
                let reason = "the guest memory behind a region cannot be accessed for the peer";
                (Status::RemOpErr, imm_receive, Some(QpFault::Fatal), reason)
            }
            Refusal::Access(fault) => {
                let reason = match fault {
                    MemoryFault::UnknownKey => "the peer names a key that does not exist",
                    MemoryFault::ForeignDomain => "the peer names a region of another protection domain",
                    MemoryFault::OutOfRange => "the peer leaves a region",
                    _ => "the peer lacks the right to such an access",
                };
                (Status::RemAccessErr, imm_receive, Some(QpFault::Access), reason)
            }
        };
        let cause = match status {
            Status::RemInvReqErr => Cause::NakInvalid,
            Status::RemAccessErr => Cause::NakAccess,
            _ => Cause::NakOperational,
        };
        Verdict { status, cause, receive, fault, reason }
    }

    /// Counts it at the peer's side.
    fn count(&self, counters: &mut Counters) {
        match self {
            Refusal::Receive(failure, _) => {
                counters.resp_cqe_error += 1;
                counters.resp_local_length_error += u64::from(failure.status == Status::LocLenErr);
            }
            Refusal::Invalid(_) => counters.resp_remote_invalid_request += 1,
            Refusal::Access(_) => counters.resp_remote_access_errors += 1,
        }
    }
}

/// The peer's responder has refused the held request. Its queue pair is to be [broken](break_qp).
fn fail_request(world: &mut World, key: QpKey, verdict: &Verdict) {
    let counters = world.counters_of(key);
    counters.req_cqe_error += 1;
    match verdict.cause {
        Cause::NakInvalid => counters.req_remote_invalid_request += 1,
        Cause::NakAccess => counters.req_remote_access_errors += 1,
        _ => {}
    }
    finish_send(world, key, verdict.status, verdict.cause, 0);
}

/// The responder has refused: its receive fails, and its queue pair.
fn fail_peer(world: &mut World, peer: QpKey, verdict: &Verdict) {
    if let Some(failure) = verdict.receive {
        finish_receive(world, peer, |c| Completion { status: failure.status, cause: failure.cause, ..c });
    }
    break_qp(world, peer, verdict.fault, verdict.reason);
}
