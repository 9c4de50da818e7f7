//! The requester: sends what the send queue asks for, and judges the answers (IBTA Vol 1 §9.7.3 to §9.7.6, §9.9.2).

use core::time::Duration;

use masq_driver::QpState;
use masq_types::Psn;
use masq_wire::{Kind, NakCode, PacketRepr, Parsed, Syndrome};

mod repair;
mod run;
mod tell;

use super::batch::Batch;
use super::congestion::{CongestionState, Flow};
use super::counters::Counters;
use super::env::{Cause, Env, MemoryFault, SendOp, SendWork, Status};
use super::inflight::Inflight;
use super::link::{Broken, Link};
use super::receipt::Receipt;
use super::request::{Failure, Piece, Request, change_key, judge_send, packets_of};
use super::retry::{Exhausted, Retry};
use super::rtt::{RoundTrip, Rtt};
use super::selective::{Probe, Recovery};
use super::time::Time;
use tell::costs;

/// Call [`Requester::start`] at RTS; [`Requester::fetch`] when there may be work; [`Requester::handle_response`],
/// [`Requester::handle_timeout`] and [`Requester::transmit`] as of [`QpCore`](super::QpCore). `Err` means that a request
/// has failed and has its completion: the queue pair goes to ERR, and [`Requester::flush`] comes next.
#[derive(Debug, Default)]
pub(super) struct Requester {
    inflight: Inflight,
    retry: Retry,
    rtt: Rtt,
    probe: Probe,
    /// What is known of a loss, while there is one that the peer can tell of.
    recovery: Option<Box<Recovery>>,
    /// What it may send, beside the window of packets.
    flow: Flow,
    /// Something was found lost for the first time while an answer was handled.
    has_lost: bool,
    /// What is lost before this PSN was on its way when something else was lost, of which congestion control knows.
    told_until: Option<Psn>,
    /// READ and atomic requests between `una` and `next`.
    fetches: u32,
    /// The PSN behind the last one that asks for an answer since the last time that it was gone back to `una`. The local ACK timeout runs only
    /// while such a one is on its way: what lies behind it may be held back for long, and nobody answers it.
    asked: Psn,
    /// The ring may hold requests that have not been fetched.
    ring_has_work: bool,
    /// There is more to carry out here than one call does.
    has_more: bool,
}

/// Requests that send nothing and that one call carries out at most.
const CARRY_OUT_BUDGET: usize = 64;

impl Requester {
    pub(super) fn start(&mut self, link: &Link<'_>, psn: Psn) {
        self.inflight.start(psn);
        self.asked = psn;
        self.retry.start(link.attributes);
        self.rtt = Rtt::default();
        self.probe = Probe::default();
        self.recovery = None;
        self.told_until = None;
        let congestion = link.config.congestion;
        self.flow = if link.is_reliable() {
            let window_packets = link.config.window_packets;
            Flow::acknowledged_by_peer(congestion, link.packet_bytes(), window_packets, link.is_selective())
        } else {
            Flow::unacknowledged(congestion)
        };
        self.fetches = 0;
        self.ring_has_work = true;
    }

    /// Next PSN to send for the first time.
    pub(super) fn psn(&self) -> Psn {
        self.inflight.high()
    }

    /// The oldest PSN that is not acknowledged.
    pub(super) fn una(&self) -> Psn {
        self.inflight.una()
    }

    /// Next PSN to send.
    pub(super) fn next(&self) -> Psn {
        self.inflight.next()
    }

    /// PSNs that are on their way.
    pub(super) fn outstanding(&self) -> u32 {
        self.inflight.unacknowledged()
    }

    /// Requests that are not done.
    pub(super) fn held_requests(&self) -> usize {
        self.inflight.len()
    }

    /// Tries that are left when the peer does not answer, and when it has no receive.
    pub(super) fn retries_left(&self) -> (u8, u8) {
        self.retry.left()
    }

    /// Whether nothing is sent because of an RNR NAK.
    pub(super) fn waits_for_receive(&self) -> bool {
        self.retry.is_waiting()
    }

    /// Whether some request has been begun and is not done.
    pub(super) fn has_begun(&self) -> bool {
        self.inflight.has_begun()
    }

    /// Requests that are held.
    pub(super) fn buffers(&self) -> usize {
        self.inflight.len()
    }

    /// How long the peer's answers take.
    pub(super) fn round_trip(&self) -> Option<RoundTrip> {
        self.rtt.round_trip()
    }

    /// What congestion control lets it do.
    pub(super) fn congestion(&self) -> Option<CongestionState> {
        self.flow.state()
    }

    /// The peer reports congestion. Returns whether that changed anything.
    pub(super) fn congested(&mut self, now: Time) -> bool {
        self.flow.cnp(now)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        [self.retry.deadline(), self.probe.deadline(), self.flow.deadline()].into_iter().flatten().min()
    }

    /// Whether [`Requester::fetch`] stopped although it could go on.
    pub(super) fn wants_work(&self) -> bool {
        self.has_more
    }

    /// Whether [`Requester::transmit`] may have something to do.
    pub(super) fn may_transmit(&self) -> bool {
        let begun = self.recovery.is_some() || self.probe.is_due || self.inflight.current().is_some();
        begun || self.ring_has_work
    }

    pub(super) fn work_posted(&mut self) {
        self.ring_has_work = true;
    }

    /// Takes requests out of the ring and gives them their PSNs, until a window's worth of them is held, or one that
    /// fails when its turn comes: such a one takes no PSN, and a guest could post them without end. Carries out
    /// those that send nothing when all before them have been sent.
    pub(super) fn fetch<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
    ) -> Result<(), Broken> {
        self.has_more = false;
        if link.state == QpState::Rts {
            let mut budget = CARRY_OUT_BUDGET;
            loop {
                if self.is_to_carry_out() {
                    if budget == 0 {
                        self.has_more = true;
                        break;
                    }
                    budget -= 1;
                    self.carry_out(link, env, counters)?;
                } else if !self.fetch_one(link, env) {
                    break;
                }
            }
        }
        self.judge_front(env, counters)
    }

    /// Takes a request out of the ring; `false` when there is none, or no room for it.
    fn fetch_one<E: Env>(&mut self, link: &Link<'_>, env: &mut E) -> bool {
        let (window, most) = (link.config.window_packets, link.config.max_requests as usize);
        let q = &self.inflight;
        let has_room = q.held() < window && q.len() < most && !q.is_closed();
        // Who holds something will be here again when that is done.
        let may_hold = q.len() == 0 || env.may_hold(q.len());
        if !(self.ring_has_work && has_room && may_hold) {
            return false;
        }
        let mut work = env.lend();
        if !env.next_send(&mut work) {
            env.give_back(work);
            self.rest(env);
            self.ring_has_work = false;
            return false;
        }
        if self.inflight.needs_room() {
            self.inflight.take_room(env.lend_room());
        }
        match judge_send(env, &work, link.attributes, link.config) {
            Ok(_) if work.op.is_local() => self.inflight.push(work, 0, 0, None),
            Ok(len) => {
                let packets = packets_of(len, link.mtu());
                self.inflight.push(work, packets, len, None);
            }
            // It takes no PSN and lets nothing behind it pass.
            Err(failure) => self.inflight.push(work, 0, 0, Some(failure)),
        }
        true
    }

    /// Whether the request whose turn it is sends nothing and can be carried out. With a fence all before it must be done: what is lost on its way
    /// is read from memory again, by the key that this may end.
    fn is_to_carry_out(&self) -> bool {
        let current = self.inflight.current().map(|(r, _)| r).filter(|r| r.is_to_be_carried_out());
        current.is_some_and(|r| !r.work.fence || self.inflight.current_is_first())
    }

    fn carry_out<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
    ) -> Result<(), Broken> {
        let Some(request) = self.inflight.current_mut() else { return Ok(()) };
        if let Err(failure) = change_key(env, &request.work) {
            request.failure = Some(failure);
            return self.judge_front(env, counters);
        }
        self.inflight.carried_out();
        self.complete_carried_out(link, env);
        Ok(())
    }

    /// Appends what may be sent now.
    pub(super) fn transmit<E: Env>(
        &mut self,
        link: &Link<'_>,
        now: Time,
        env: &mut E,
        counters: &mut Counters,
        batch: &mut Batch<'_>,
    ) -> Result<(), Broken> {
        self.fetch(link, env, counters)?;
        if self.retry.is_waiting() {
            return Ok(());
        }
        if (self.recovery.is_some() || self.probe.is_due) && !self.repair(link, now, env, counters, batch)? {
            return Ok(());
        }
        loop {
            self.send_run(link, now, env, counters, batch);
            let Some((piece, repr)) = self.plan(link) else { break };
            let bytes = repr.udp_payload_len(piece.payload);
            let costs = costs(link, &piece, bytes);
            let admitted = batch.admits(&repr, piece.payload)
                && self.flow.may_send(now, costs, self.awaits_answer())
                && env.may_send(bytes);
            if !admitted {
                break;
            }
            let asks = repr.bth.ack_req || piece.is_fetch;
            let Some(request) = self.inflight.current_mut() else { break };
            let work = &request.work;
            if let Err(fault) = batch.push(repr, piece.payload, |out| payload(env, work, &piece, out)) {
                request.failure = Some(Failure::local_protection(fault));
                return self.judge_front(env, counters);
            }
            self.fetches += u32::from(work.op.is_fetch());
            counters.sent_pkts += 1;
            self.flow.sent(now, costs);
            let (psn, repeated) = (self.inflight.next(), self.inflight.next() != self.inflight.high());
            counters.retransmitted_pkts += u64::from(repeated);
            self.inflight.advance(piece.packets);
            if let Some(recovery) = &mut self.recovery {
                recovery.sent(psn, piece.packets);
            }
            if !link.is_reliable() {
                // Nobody acknowledges it: what is sent is done.
                self.inflight.acknowledge(self.inflight.next());
                if piece.ends {
                    self.complete_front(link, env, counters);
                }
            } else if asks {
                self.asked = self.inflight.next();
                self.await_answer(link, now);
                if !repeated {
                    self.rtt.sent(now, psn.plus(1));
                }
            }
        }
        Ok(())
    }

    /// The next packet, if it may be sent now.
    fn plan(&self, link: &Link<'_>) -> Option<(Piece, PacketRepr)> {
        let (config, mtu) = (link.config, link.mtu());
        let (request, index) = self.inflight.current()?;
        if request.failure.is_some() || request.is_to_be_carried_out() {
            return None;
        }
        let work = &request.work;
        let begins = index == 0 && self.inflight.next() == self.inflight.high();
        if begins && (link.state != QpState::Rts || (work.fence && self.fetches > 0)) {
            return None;
        }
        if work.op.is_fetch() && self.fetches >= u32::from(link.attributes.max_rd_atomic) {
            return None;
        }
        let most = if work.op == SendOp::Read { self.read_packets(link, request.packets - index) } else { 1 };
        let piece = request.piece(index, mtu, most);
        let before = self.inflight.on_their_way();
        let after = before + piece.packets;
        if before > 0 && after > config.window_packets {
            return None;
        }
        let mut repr = request.headers(&piece, link);
        let asks_for_time = work.op == SendOp::Read && link.times_reads();
        // The packet that fills the window must ask: nothing comes after it that could. A READ is answered anyway; it asks how long it is held.
        repr.bth.ack_req = link.is_reliable()
            && !(asks_for_time && self.rtt.is_timing())
            && (asks_for_time
                || piece.ends
                || (index + 1) % self.flow.ack_every(link.packet_bytes(), config.ack_every) == 0
                || after >= config.window_packets
                || self.flow.is_filled_by(link.packet_bytes()));
        Some((piece, repr))
    }

    /// An answer.
    pub(super) fn handle_response<E: Env>(
        &mut self,
        link: &Link<'_>,
        now: Time,
        env: &mut E,
        counters: &mut Counters,
        packet: &Parsed<'_>,
        receipt: Receipt,
    ) -> Result<(), Broken> {
        let una = self.inflight.una();
        let on_their_way = self.inflight.on_their_way();
        let psn = packet.repr.bth.psn;
        if packet.info.kind == Kind::SelectiveAck {
            self.selective_acknowledgement(counters, packet);
            let before = (una, on_their_way);
            return self.answers_heard(link, now, env, counters, before, packet, receipt, Ok(()));
        }
        if psn.since(una) >= self.inflight.unacknowledged() {
            // Late, or to something that was never sent: a ghost (§9.7.5.1.1).
            counters.rx_dropped += 1;
            return Ok(());
        }
        let outcome = match packet.info.kind {
            Kind::Ack | Kind::SelectiveAck => self.acknowledgement(link, now, env, counters, packet),
            Kind::ReadResponse => self.read_response(link, env, counters, packet),
            Kind::AtomicAck => self.atomic_response(link, env, counters, packet),
            _ => Ok(()),
        };
        self.answers_heard(link, now, env, counters, (una, on_their_way), packet, receipt, outcome)
    }

    /// What follows from an answer that has been dealt with, `outcome`; before it, all before `una` was acknowledged, and `on_their_way` packets were.
    #[allow(clippy::too_many_arguments)] // what surrounds every step, and what came of the last one
    fn answers_heard<E: Env>(
        &mut self,
        link: &Link<'_>,
        now: Time,
        env: &mut E,
        counters: &mut Counters,
        (una, on_their_way): (Psn, u32),
        packet: &Parsed<'_>,
        receipt: Receipt,
        outcome: Result<(), Broken>,
    ) -> Result<(), Broken> {
        let outcome = match self.recovery {
            Some(_) => outcome.and_then(|()| self.recover(link, env, counters, una)),
            None => outcome,
        };
        let goes_on = self.inflight.una() != una;
        let mut measured = false;
        if goes_on {
            measured = self.tell_of_progress(now, on_their_way, packet, receipt);
            self.retry.restart(now, link.ack_timeout(), self.awaits_answer());
        }
        self.tell_of_first_loss(now);
        if goes_on || self.recovery.is_some() {
            self.probe.heard(now, self.awaits_answer(), measured);
            if self.awaits_answer() {
                self.await_answer(link, now);
            }
        }
        outcome?;
        self.judge_front(env, counters)
    }

    /// Whether a packet that asks for an answer is on its way.
    fn awaits_answer(&self) -> bool {
        let asked = self.asked.since(self.inflight.una());
        asked > 0 && asked <= self.inflight.on_their_way()
    }

    fn acknowledgement<E: Env>(
        &mut self,
        link: &Link<'_>,
        now: Time,
        env: &mut E,
        counters: &mut Counters,
        packet: &Parsed<'_>,
    ) -> Result<(), Broken> {
        let psn = packet.repr.bth.psn;
        let Some(aeth) = packet.repr.ext.aeth() else { return Ok(()) };
        let (status, cause) = match aeth.syndrome {
            Syndrome::Ack(_) => {
                let target = psn.plus(1);
                self.hear(target);
                if !self.settle(link, env, counters, target) {
                    self.answers_missing(link, env, counters)?;
                    self.hear(target);
                }
                return Ok(());
            }
            Syndrome::RnrNak(timer) => {
                counters.rcvd_rnr_err += 1;
                if self.settle_or_repeat(link, env, counters, psn)? {
                    let counts = !self.inflight.front().is_some_and(|r| env.is_ahead(&r.work));
                    match self.retry.not_ready(now, timer.duration(), counts) {
                        Ok(true) => self.go_back(),
                        Ok(false) => {}
                        Err(Exhausted) => {
                            counters.rnr_nak_retry_err += 1;
                            return self.fail(env, counters, Status::RnrRetryExcErr, Cause::RnrRetryExceeded);
                        }
                    }
                }
                return Ok(());
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                counters.packet_seq_err += 1;
                if self.settle_or_repeat(link, env, counters, psn)? {
                    self.lost(env, counters)?;
                }
                return Ok(());
            }
            Syndrome::Nak(NakCode::InvalidRequest) => {
                counters.req_remote_invalid_request += 1;
                (Status::RemInvReqErr, Cause::NakInvalid)
            }
            Syndrome::Nak(NakCode::RemoteAccess) => {
                counters.req_remote_access_errors += 1;
                (Status::RemAccessErr, Cause::NakAccess)
            }
            Syndrome::Nak(NakCode::RemoteOperational) => (Status::RemOpErr, Cause::NakOperational),
            Syndrome::Nak(NakCode::InvalidRdRequest) | Syndrome::Reserved(_) => {
                (Status::BadRespErr, Cause::BadResponse)
            }
        };
        if self.settle_or_repeat(link, env, counters, psn)? {
            self.fail(env, counters, status, cause)
        } else {
            Ok(())
        }
    }

    fn read_response<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
        packet: &Parsed<'_>,
    ) -> Result<(), Broken> {
        let psn = packet.repr.bth.psn;
        if !self.settle(link, env, counters, psn) {
            return self.answer_came_early(link, env, counters, packet);
        }
        let mtu = link.mtu();
        let Some(front) = self.inflight.front() else { return Ok(()) };
        let index = psn.since(front.first);
        // Where a gap is filled, its last packet is the answer's last.
        let ends_piece = self.inflight.ends_piece(psn);
        let fits = front.work.op == SendOp::Read
            && is_ack(packet)
            && (packet.info.position.ends() == ends_piece || link.is_selective())
            && packet.payload.len() == front.bytes_at(index, mtu) as usize;
        if !fits {
            return self.fail(env, counters, Status::BadRespErr, Cause::BadResponse);
        }
        let offset = u64::from(index) * u64::from(mtu.bytes());
        self.take_fetched(link, env, counters, offset, packet.payload, psn, ends_piece)
    }

    fn atomic_response<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
        packet: &Parsed<'_>,
    ) -> Result<(), Broken> {
        let psn = packet.repr.bth.psn;
        if !self.settle(link, env, counters, psn) {
            return self.answer_came_early(link, env, counters, packet);
        }
        let Some(front) = self.inflight.front() else { return Ok(()) };
        match packet.repr.ext.atomic_ack() {
            Some(ack) if front.work.op.is_atomic() && is_ack(packet) => {
                // In memory the value is a number in host order (IBTA Vol 1 §9.4.5 leaves it to the verbs).
                self.take_fetched(link, env, counters, 0, &ack.original.to_ne_bytes(), psn, true)
            }
            _ => self.fail(env, counters, Status::BadRespErr, Cause::BadResponse),
        }
    }

    /// Stores what the peer sent for `psn` of the first request.
    #[allow(clippy::too_many_arguments)] // what surrounds every step, and a response's place, bytes and number
    fn take_fetched<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
        offset: u64,
        data: &[u8],
        psn: Psn,
        ends_request: bool,
    ) -> Result<(), Broken> {
        let Some(front) = self.inflight.front() else { return Ok(()) };
        let end = front.end();
        let stored = if data.is_empty() { Ok(()) } else { env.scatter(&front.work.sges, offset, data) };
        if let Err(fault) = stored {
            return self.fail(env, counters, Status::LocProtErr, fault.into());
        }
        self.acknowledge(link, psn.plus(1));
        self.fetches = self.fetches.saturating_sub(u32::from(ends_request));
        if self.inflight.una() == end {
            self.complete_front(link, env, counters);
        }
        Ok(())
    }

    /// All PSNs before `target` are answered, as far as an answer without data can do that. Returns whether
    /// that is so; if not, the data of a READ or atomic is missing.
    fn settle<E: Env>(&mut self, link: &Link<'_>, env: &mut E, counters: &mut Counters, target: Psn) -> bool {
        loop {
            let una = self.inflight.una();
            let Some(front) = self.inflight.front() else { return true };
            if una == target || front.packets == 0 {
                return true;
            }
            if front.work.op.is_fetch() {
                return false;
            }
            let end = front.end();
            if target.since(una) < end.since(una) {
                self.acknowledge(link, target);
                return true;
            }
            self.acknowledge(link, end);
            self.complete_front(link, env, counters);
        }
    }

    /// The same; if data is missing, everything is asked for again from there on.
    fn settle_or_repeat<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
        target: Psn,
    ) -> Result<bool, Broken> {
        let settled = self.settle(link, env, counters, target);
        if !settled {
            counters.implied_nak_request += 1;
            self.lost(env, counters)?;
        }
        Ok(settled)
    }

    fn acknowledge(&mut self, link: &Link<'_>, una: Psn) {
        self.inflight.acknowledge(una);
        self.retry.progress(link.attributes);
    }

    /// Sends again from the oldest unacknowledged PSN, unless that has been done for this loss.
    fn lost<E: Env>(&mut self, env: &mut E, counters: &mut Counters) -> Result<(), Broken> {
        match self.retry.lost() {
            Ok(true) => {
                self.has_lost = true;
                self.go_back();
            }
            Ok(false) => {}
            Err(Exhausted) => return self.give_up(env, counters),
        }
        Ok(())
    }

    pub(super) fn handle_timeout<E: Env>(
        &mut self,
        now: Time,
        env: &mut E,
        counters: &mut Counters,
    ) -> Result<(), Broken> {
        self.flow.handle_timeout(now);
        let expired = self.retry.handle_timeout(now);
        counters.local_ack_timeout_err += u64::from(expired != Ok(false));
        match expired {
            Ok(true) => {
                self.flow.timed_out(now);
                self.go_back();
            }
            Ok(false) if self.probe.handle_timeout(now) => self.doubt(),
            Ok(false) => {}
            Err(Exhausted) => return self.give_up(env, counters),
        }
        Ok(())
    }

    /// How long the peer takes to answer at most, as a rule.
    pub(super) fn answer_timeout(&self, link: &Link<'_>) -> Duration {
        let most = link.ack_timeout().unwrap_or(Probe::LONGEST);
        self.rtt.round_trip().map_or(Probe::FIRST, |r| r.timeout).min(most)
    }

    /// Whether an answer should have come, and another path may bring it.
    pub(super) fn is_overdue(&self, now: Time) -> bool {
        let is_due = self.retry.is_overdue(now) || self.probe.deadline().is_some_and(|t| t <= now);
        is_due && self.retry.may_change_path()
    }

    /// What is unanswered is sent by another path from now on.
    pub(super) fn change_path(&mut self, link: &Link<'_>, now: Time) {
        self.flow.handle_timeout(now);
        if self.retry.change_path(now, link.attributes, link.ack_timeout()) {
            self.flow.timed_out(now);
            self.go_back();
        } else if self.probe.handle_timeout(now) {
            self.doubt();
        }
    }

    /// What is under way is lost, and goes by another path from now on.
    pub(super) fn leave_path(&mut self, link: &Link<'_>, now: Time) {
        if !self.awaits_answer() || self.retry.is_waiting() {
            return;
        }
        let expired = self.retry.change_path(now, link.attributes, link.ack_timeout());
        if link.is_selective() && !expired {
            self.probe.hurry();
            self.doubt();
        } else {
            self.flow.timed_out(now);
            self.go_back();
        }
    }

    /// How long the peer has left something unanswered.
    pub(super) fn unanswered(&self, now: Time) -> Option<Duration> {
        self.retry.unanswered_since().map(|since| now.since(since))
    }

    fn go_back(&mut self) {
        self.inflight.go_back();
        self.rtt.forget();
        self.flow.gone_back();
        self.asked = self.inflight.una();
        self.fetches = 0;
        self.recovery = None;
        self.probe = Probe::default();
    }

    fn give_up<E: Env>(&mut self, env: &mut E, counters: &mut Counters) -> Result<(), Broken> {
        counters.retry_exceeded_err += 1;
        self.fail(env, counters, Status::RetryExcErr, Cause::RetryExceeded)
    }

    /// Fails the first request if it has a failure.
    fn judge_front<E: Env>(&mut self, env: &mut E, counters: &mut Counters) -> Result<(), Broken> {
        match self.inflight.front().and_then(|r| r.failure) {
            Some(f) => self.fail(env, counters, f.status, f.cause),
            None => Ok(()),
        }
    }

    fn complete_front<E: Env>(&mut self, link: &Link<'_>, env: &mut E, counters: &mut Counters) {
        let Some(request) = self.inflight.pop() else { return };
        // A chunk is no message of its own.
        let messages = u64::from(!request.work.is_chunk);
        match request.work.op {
            SendOp::Read => counters.rcvd_msgs += messages,
            _ => counters.sent_msgs += messages,
        }
        self.succeed(link, env, request);
        self.complete_carried_out(link, env);
    }

    /// Completes requests that send nothing, as far as all before them are done.
    fn complete_carried_out<E: Env>(&mut self, link: &Link<'_>, env: &mut E) {
        while self.inflight.front().is_some_and(|r| r.carried_out) {
            let Some(request) = self.inflight.pop() else { return };
            self.succeed(link, env, request);
        }
    }

    fn succeed<E: Env>(&mut self, link: &Link<'_>, env: &mut E, request: Request) {
        if request.work.signalled || link.config.signal_all {
            let byte_len = request.len.saturating_add(request.work.before_bytes);
            env.complete(&request.work.completion(Status::Success, Cause::None, byte_len));
        }
        env.send_done(&request.work);
        env.give_back(request.work);
    }

    /// Lets go of memory that an idle queue pair does not need.
    fn rest<E: Env>(&mut self, env: &mut E) {
        if let Some(room) = self.inflight.rest() {
            env.give_back_room(room);
        }
    }

    /// The first request fails, and with it the queue pair.
    fn fail<E: Env>(
        &mut self,
        env: &mut E,
        counters: &mut Counters,
        status: Status,
        cause: Cause,
    ) -> Result<(), Broken> {
        if let Some(request) = self.inflight.pop() {
            counters.req_cqe_error += 1;
            env.complete(&request.work.completion(status, cause, 0));
            env.give_back(request.work);
        }
        Err(Broken { fault: None, reason: "a send request failed" })
    }

    /// Completes all requests that were taken out of the ring as flushed, and stops.
    pub(super) fn flush<E: Env>(&mut self, env: &mut E, counters: &mut Counters) {
        while let Some(request) = self.inflight.pop() {
            flush_send(env, counters, &request.work);
            env.give_back(request.work);
        }
        self.inflight.start(self.inflight.high());
        self.rest(env);
        self.retry = Retry::default();
        self.probe = Probe::default();
        self.recovery = None;
        self.flow.stop();
        self.fetches = 0;
        self.has_more = false;
    }
}

/// Completes a send request as flushed.
pub(super) fn flush_send<E: Env>(env: &mut E, counters: &mut Counters, work: &SendWork) {
    counters.req_cqe_error += 1;
    counters.req_cqe_flush_error += 1;
    env.complete(&work.completion(Status::WrFlushErr, Cause::Flushed, 0));
}

fn payload<E: Env>(
    env: &mut E,
    work: &SendWork,
    piece: &Piece,
    out: &mut Vec<u8>,
) -> Result<(), MemoryFault> {
    if piece.payload == 0 {
        return Ok(());
    }
    if work.inline {
        let from = piece.offset as usize;
        let data = work.inline_data.get(from..from + piece.payload).ok_or(MemoryFault::OutOfRange)?;
        out.extend_from_slice(data);
        return Ok(());
    }
    env.gather(&work.sges, piece.offset.into(), piece.payload, out)
}

/// Whether a response with data says that all is well (or, as a middle one, nothing).
fn is_ack(packet: &Parsed<'_>) -> bool {
    packet.repr.ext.aeth().is_none_or(|a| matches!(a.syndrome, Syndrome::Ack(_)))
}
