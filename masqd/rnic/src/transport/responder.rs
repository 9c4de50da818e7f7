//! The responder: carries out what the peer asks for, once and in order, and answers (IBTA Vol 1 §9.7.4, §9.7.5, §9.9.3).

mod early;
mod steered;
mod unreliable;

use masq_driver::{QpFault, QpState};
use masq_types::{Psn, Rkey};
use masq_wire::{
    AethRepr, ArrivedRepr, AtomicAckEthRepr, Credits, Extension, HoldRepr, Ieth, Kind, Msn, NakCode, Opcode,
    PacketRepr, Parsed, Position, Syndrome, Tail, XrcEth,
};

use super::batch::Batch;
use super::congestion::Flow;
use super::counters::Counters;
use super::env::{
    AtomicOp, Cause, Completion, Env, KeyChange, MemoryFault, QpEvent, RecvWork, RemoteAccess, RemoteRange,
    Status, SteerFault, WcOpcode, total_bytes,
};
use super::link::{Broken, LOWER_HEADERS, Link};
use super::receipt::Receipt;
use super::reorder::Reorder;
use super::request::{ATOMIC_BYTES, Failure};
use super::resources::{Body, Resources, Response, Served, TooMany};
use super::time::Time;
use steered::Steer;

/// Call [`Responder::start`] at RTR; [`Responder::handle_request`] and [`Responder::transmit`] as of
/// [`QpCore`](super::QpCore). `Err` means that the queue pair goes to ERR; what is left to answer is still sent from
/// there, and [`Responder::flush`] comes next.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// PSN of the next request.
    expected: Psn,
    msn: Msn,
    message: Message,
    /// Of an XRC target: the shared receive queue of the last request; 0 otherwise.
    srqn: u32,
    receive: Receive,
    resources: Resources,
    reply: Option<Reply>,
    /// The peer has been told that it must send again from `expected`; it is told once (§9.7.5.1.1).
    told: bool,
    /// The furthest packet that was dropped because of that.
    dropped: Psn,
    /// Requests executed since an acknowledgement was sent.
    unacknowledged: u32,
    /// When the host received the newest of them.
    newest: Time,
    /// What has come before its turn.
    early: Reorder,
    established: bool,
    /// What it may answer to READs and atomics, which nobody acknowledges.
    flow: Flow,
}

/// The message whose packets are arriving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Message {
    #[default]
    None,
    Send {
        received: u64,
    },
    Write(Write),
    Steer(Steer),
}

/// The part of an RDMA WRITE that is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Write {
    rkey: Rkey,
    va: u64,
    left: u32,
    /// Bytes of the whole message.
    len: u32,
}

/// The receive that the message at hand uses.
#[derive(Debug, Default)]
struct Receive {
    work: RecvWork,
    held: bool,
}

/// What to tell the peer, behind all READ responses and atomic acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    /// Everything before the expected PSN is done.
    Ack,
    /// The expected packet is missing.
    Missing,
    /// There is no receive for the expected packet.
    NotReady,
    /// The request is refused, and nothing more will be done.
    Refused { psn: Psn, code: NakCode },
}

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// No receive.
    NotReady,
    /// It is malformed, unsupported or out of place.
    Invalid(&'static str),
    /// It names memory that cannot be accessed.
    Access(MemoryFault),
    /// The receive cannot take it.
    Receive(Failure, NakCode),
    /// The receive that it was steered to cannot take it, and fails when it is flushed.
    Steered(Failure),
}

impl From<MemoryFault> for Refusal {
    fn from(fault: MemoryFault) -> Self {
        Refusal::Access(fault)
    }
}

impl From<SteerFault> for Refusal {
    fn from(fault: SteerFault) -> Self {
        match fault {
            SteerFault::NotReady => Refusal::NotReady,
            SteerFault::Invalid(reason) => Refusal::Invalid(reason),
            SteerFault::Receive(failure) => Refusal::Steered(failure),
        }
    }
}

impl Responder {
    pub(super) fn start(&mut self, link: &Link<'_>, psn: Psn) {
        let flow = Flow::unacknowledged(link.config.congestion);
        let work = std::mem::take(&mut self.receive.work);
        *self = Self { expected: psn, receive: Receive { work, held: false }, flow, ..Self::default() };
    }

    /// PSN of the next request.
    pub(super) fn psn(&self) -> Psn {
        self.expected
    }

    /// The peer reports congestion. Returns whether that changed anything.
    pub(super) fn congested(&mut self, now: Time) -> bool {
        self.flow.cnp(now)
    }

    /// Whether [`Responder::transmit`] may have something to do.
    pub(super) fn may_transmit(&self) -> bool {
        self.reply.is_some() || self.resources.are_to_be_answered()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.flow.deadline()
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.flow.handle_timeout(now);
    }

    /// A request.
    pub(super) fn handle_request<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
        packet: &Parsed<'_>,
        receipt: Receipt,
    ) -> Result<(), Broken> {
        self.establish(link, env);
        let psn = packet.repr.bth.psn;
        if psn.precedes(self.expected) {
            counters.duplicate_request += 1;
            self.repeated(link, counters, packet);
            return Ok(());
        }
        if psn != self.expected {
            self.came_early(link, env, counters, packet);
            return Ok(());
        }
        self.newest = receipt.at;
        if self.carry_out(link, env, counters, packet)? && !self.early.is_empty() {
            self.catch_up(link, env, counters)?;
        }
        Ok(())
    }

    /// Carries out the expected request. Returns whether that was possible; if not, the peer is told to send it again later.
    fn carry_out<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        counters: &mut Counters,
        packet: &Parsed<'_>,
    ) -> Result<bool, Broken> {
        match self.execute(link, env, packet) {
            Ok(packets) => {
                let is_message = !matches!(packet.info.kind, Kind::ReadRequest | Kind::Steer);
                let brings = is_message && packet.info.position.ends() && !link.config.takes_parts;
                counters.rcvd_msgs += u64::from(brings);
                self.executed(link, packet, packets);
                Ok(true)
            }
            Err(Refusal::NotReady) => {
                counters.send_rnr_err += 1;
                self.reply = Some(Reply::NotReady);
                self.drop_packet(packet.repr.bth.psn);
                // The peer sends all of it again.
                self.early.clear();
                Ok(false)
            }
            Err(refusal) => Err(self.refuse(env, counters, packet, refusal)),
        }
    }

    /// The peer is heard of for the first time.
    fn establish<E: Env>(&mut self, link: &Link<'_>, env: &mut E) {
        if link.state == QpState::Rtr && !self.established {
            self.established = true;
            env.event(QpEvent::CommEstablished);
        }
    }

    /// The packet `psn` is dropped, and the peer is told so.
    fn drop_packet(&mut self, psn: Psn) {
        if !self.told || self.dropped.precedes(psn) {
            self.dropped = psn;
        }
        self.told = true;
    }

    /// The expected request has been carried out and takes `packets` PSNs.
    fn executed(&mut self, link: &Link<'_>, packet: &Parsed<'_>, packets: u32) {
        self.expected = self.expected.plus(packets);
        self.unacknowledged += 1;
        // Told but not yet sent: something behind may be dropped and must still be asked for.
        let pending = matches!(self.reply, Some(Reply::Missing | Reply::NotReady));
        if pending && !self.dropped.precedes(self.expected) {
            self.reply = Some(Reply::Missing);
            return;
        }
        self.told = false;
        if !matches!(packet.info.kind, Kind::Send | Kind::Write | Kind::Steer) {
            // The response acknowledges all before it.
            self.reply = None;
        } else if pending || packet.repr.bth.ack_req || self.unacknowledged >= link.config.ack_every {
            self.reply = Some(Reply::Ack);
        }
    }

    /// A request that was carried out before (§9.7.5.1.4): it is answered, and nothing else.
    fn repeated(&mut self, link: &Link<'_>, counters: &mut Counters, packet: &Parsed<'_>) {
        let psn = packet.repr.bth.psn;
        let known = match packet.info.kind {
            Kind::ReadRequest => {
                let again = |r| self.resources.repeat_read(psn, r, link.mtu(), link.is_selective());
                packet.repr.ext.reth().is_some_and(again)
            }
            Kind::CmpSwap | Kind::FetchAdd => self.resources.repeat_atomic(psn, link.is_selective()),
            _ => {
                self.reply.get_or_insert(Reply::Ack);
                true
            }
        };
        counters.rx_dropped += u64::from(!known);
    }

    /// Carries out the expected packet and returns how many PSNs it takes.
    fn execute<E: Env>(&mut self, link: &Link<'_>, env: &mut E, packet: &Parsed<'_>) -> Result<u32, Refusal> {
        let info = packet.info;
        let in_place = match (self.message, info.position) {
            (Message::None, Position::First | Position::Only) => true,
            (Message::Send { .. }, Position::Middle | Position::Last) => info.kind == Kind::Send,
            (Message::Write(_), Position::Middle | Position::Last) => info.kind == Kind::Write,
            (Message::Steer(_), Position::Middle | Position::Last) => info.kind == Kind::Steer,
            _ => false,
        };
        if !in_place {
            return Err(Refusal::Invalid("a packet is out of place in its message"));
        }
        if packet.check_payload_len(link.mtu()).is_err() {
            return Err(Refusal::Invalid("a packet's length does not fit its place in its message"));
        }
        if let Some(xrc) = packet.repr.xrc {
            self.select_srq(env, xrc)?;
        }
        match info.kind {
            Kind::Send => self.execute_send(link, env, packet).map(|()| 1),
            Kind::Write => self.execute_write(link, env, packet).map(|()| 1),
            Kind::Steer => self.execute_steer(link, env, packet).map(|()| 1),
            Kind::ReadRequest => self.execute_read(link, env, packet),
            Kind::CmpSwap | Kind::FetchAdd => self.execute_atomic(link, env, packet),
            _ => Err(Refusal::Invalid("not a request")),
        }
    }

    /// Of an XRC target: the request is for the shared receive queue that it names (IBTA Vol 1 Annex A14).
    fn select_srq<E: Env>(&mut self, env: &mut E, xrc: XrcEth) -> Result<(), Refusal> {
        if self.message != Message::None && xrc.srq() != self.srqn {
            return Err(Refusal::Invalid("the packets of a message name several shared receive queues"));
        }
        if !env.select_srq(xrc.srq()) {
            return Err(Refusal::Invalid("the XRC domain has no shared receive queue of this number"));
        }
        self.srqn = xrc.srq();
        Ok(())
    }

    fn execute_send<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        packet: &Parsed<'_>,
    ) -> Result<(), Refusal> {
        let steered = packet.repr.ext.reth();
        let offset = match (self.message, steered) {
            (Message::Send { received }, _) => received,
            (_, Some(reth)) => reth.va,
            (_, None) => 0,
        };
        self.receive.take(env)?;
        if packet.info.position.begins() {
            self.receive.check_placed(steered.map(|_| offset))?;
        }
        let end = offset + packet.payload.len() as u64;
        let room = total_bytes(&self.receive.work.sges).min(u64::from(link.config.max_msg_bytes));
        if end > room {
            let failure = Failure::new(Status::LocLenErr, Cause::ReceiveTooShort);
            return Err(Refusal::Receive(failure, NakCode::InvalidRequest));
        }
        if !packet.payload.is_empty() {
            env.scatter(&self.receive.work.sges, offset, packet.payload).map_err(|fault| {
                Refusal::Receive(Failure::local_protection(fault), NakCode::RemoteOperational)
            })?;
        }
        if packet.info.position.ends() {
            if let Some(Ieth(key)) = packet.repr.ext.ieth() {
                env.change_key(&KeyChange::Invalidate(key)).map_err(|fault| {
                    let failure = Failure::new(Status::RemInvReqErr, fault.into());
                    Refusal::Receive(failure, NakCode::RemoteAccess)
                })?;
            }
            self.message = Message::None;
            self.message_done();
            self.receive.complete(env, packet, WcOpcode::Recv, end as u32);
        } else {
            self.message = Message::Send { received: end };
        }
        Ok(())
    }

    fn execute_write<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        packet: &Parsed<'_>,
    ) -> Result<(), Refusal> {
        let begun = match (self.message, packet.repr.ext.reth()) {
            (Message::Write(write), _) => Some(write),
            (_, Some(reth)) => {
                Some(Write { rkey: reth.rkey, va: reth.va, left: reth.dma_len, len: reth.dma_len })
            }
            _ => None,
        };
        let Some(write) = begun else { return Err(Refusal::Invalid("an RDMA WRITE without a RETH")) };
        if !link.attributes.access.remote_write {
            return Err(Refusal::Invalid("the queue pair does not accept RDMA WRITEs"));
        }
        let (ends, bytes) = (packet.info.position.ends(), packet.payload.len() as u32);
        let fits = if ends { bytes == write.left } else { bytes < write.left };
        if !fits || write.len > link.config.max_msg_bytes {
            return Err(Refusal::Invalid("an RDMA WRITE's packets do not add up to its length"));
        }
        // Where other paths have carried a part, the length of the whole is the peer's word: it could have written all of it.
        let before = packet.repr.ext.before().map_or(0, |before| before.bytes);
        let whole = write.len.checked_add(before).filter(|whole| *whole <= link.config.max_msg_bytes);
        let Some(whole) = whole else {
            return Err(Refusal::Invalid("the parts of an RDMA WRITE are longer than a message can be"));
        };
        let with_imm = packet.info.tail() == Tail::Immediate;
        if with_imm {
            self.receive.take(env)?;
            self.receive.check_placed(None)?;
        }
        if packet.info.position.begins() && write.len > 0 {
            let target = RemoteRange { rkey: write.rkey, va: write.va, len: write.len };
            env.check_remote(target, RemoteAccess::Write)?;
        }
        if bytes > 0 {
            env.write_remote(write.rkey, write.va, packet.payload)?;
        }
        if ends {
            self.message = Message::None;
            self.message_done();
            if with_imm {
                self.receive.complete(env, packet, WcOpcode::RecvRdmaWithImm, whole);
            }
        } else {
            // The check has seen the whole range, so that this does not wrap.
            let va = write.va.wrapping_add(bytes.into());
            self.message = Message::Write(Write { va, left: write.left - bytes, ..write });
        }
        Ok(())
    }

    fn execute_read<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        packet: &Parsed<'_>,
    ) -> Result<u32, Refusal> {
        let Some(reth) = packet.repr.ext.reth() else {
            return Err(Refusal::Invalid("an RDMA READ without a RETH"));
        };
        if !link.attributes.access.remote_read {
            return Err(Refusal::Invalid("the queue pair does not accept RDMA READs"));
        }
        if reth.dma_len > link.config.max_msg_bytes {
            return Err(Refusal::Invalid("an RDMA READ is too long"));
        }
        self.make_room(link)?;
        if reth.dma_len > 0 {
            let source = RemoteRange { rkey: reth.rkey, va: reth.va, len: reth.dma_len };
            env.check_remote(source, RemoteAccess::Read)?;
        }
        self.message_done();
        let goes_on = packet.info.opcode == Opcode::MASQ_READ_PART;
        let served =
            Served::Read { rkey: reth.rkey, va: reth.va, len: reth.dma_len, srqn: self.srqn, goes_on };
        let asked_at = (packet.repr.bth.ack_req && link.times_reads()).then_some(self.newest);
        Ok(self.resources.push(self.expected, served, self.msn, link.mtu(), asked_at))
    }

    fn execute_atomic<E: Env>(
        &mut self,
        link: &Link<'_>,
        env: &mut E,
        packet: &Parsed<'_>,
    ) -> Result<u32, Refusal> {
        let Some(atomic) = packet.repr.ext.atomic() else {
            return Err(Refusal::Invalid("an atomic without an AtomicETH"));
        };
        if !link.attributes.access.remote_atomic {
            return Err(Refusal::Invalid("the queue pair does not accept atomics"));
        }
        if atomic.va % ATOMIC_BYTES as u64 != 0 {
            return Err(Refusal::Invalid("an atomic's address is no multiple of eight"));
        }
        self.make_room(link)?;
        let target = RemoteRange { rkey: atomic.rkey, va: atomic.va, len: ATOMIC_BYTES as u32 };
        env.check_remote(target, RemoteAccess::Atomic)?;
        let op = match packet.info.kind {
            Kind::CmpSwap => AtomicOp::CmpSwap { compare: atomic.compare, swap: atomic.swap_or_add },
            _ => AtomicOp::FetchAdd { add: atomic.swap_or_add },
        };
        let original = env.atomic_remote(atomic.rkey, atomic.va, op)?;
        self.message_done();
        Ok(self.resources.push(self.expected, Served::Atomic { original }, self.msn, link.mtu(), None))
    }

    fn make_room(&mut self, link: &Link<'_>) -> Result<(), Refusal> {
        self.resources
            .make_room(link.attributes.max_dest_rd_atomic)
            .map_err(|TooMany| Refusal::Invalid("more RDMA READs and atomics are outstanding than agreed"))
    }

    fn message_done(&mut self) {
        self.msn = self.msn.plus(1);
    }

    /// The expected request is refused for good (§9.9.3): the peer is told, and so is whoever waits here.
    fn refuse<E: Env>(
        &mut self,
        env: &mut E,
        counters: &mut Counters,
        packet: &Parsed<'_>,
        refusal: Refusal,
    ) -> Broken {
        let (code, broken) = match refusal {
            Refusal::Receive(failure, code) => {
                counters.resp_cqe_error += 1;
                counters.resp_local_length_error += u64::from(failure.status == Status::LocLenErr);
                self.receive.fail(env, failure);
                (code, Broken { fault: None, reason: "a receive failed" })
            }
            Refusal::Steered(failure) => {
                counters.resp_local_length_error += u64::from(failure.status == Status::LocLenErr);
                (steered::nak_of(&failure), Broken { fault: None, reason: "a receive failed" })
            }
            Refusal::Access(fault) => {
                counters.resp_remote_access_errors += 1;
                if self.receive.held && packet.info.tail() == Tail::Immediate {
                    counters.resp_cqe_error += 1;
                    self.receive.fail(env, Failure::new(Status::LocAccessErr, Cause::PeerAccess));
                }
                access_refused(fault)
            }
            Refusal::Invalid(reason) => {
                counters.resp_remote_invalid_request += 1;
                (NakCode::InvalidRequest, Broken { fault: Some(QpFault::Request), reason })
            }
            Refusal::NotReady => {
                (NakCode::RemoteOperational, Broken { fault: None, reason: "no receive is posted" })
            }
        };
        self.reply = Some(Reply::Refused { psn: self.expected, code });
        broken
    }

    /// Appends responses and acknowledgements, in the order of their PSNs.
    pub(super) fn transmit<E: Env>(
        &mut self,
        link: &Link<'_>,
        now: Time,
        env: &mut E,
        counters: &mut Counters,
        batch: &mut Batch<'_>,
    ) -> Result<(), Broken> {
        while let Some(response) = self.resources.next_response(link.mtu()) {
            let repr = response_headers(&response, link, now);
            let source = match response.body {
                Body::Data { rkey, va, len, .. } if len > 0 => Some(RemoteRange { rkey, va, len }),
                _ => None,
            };
            let srqn = match response.body {
                Body::Data { srqn, .. } => srqn,
                Body::Value(_) => 0,
            };
            let bytes = source.map_or(0, |s| s.len as usize);
            let udp_bytes = repr.udp_payload_len(bytes);
            let costs = udp_bytes as u64 + u64::from(LOWER_HEADERS);
            let admitted = batch.admits(&repr, bytes)
                && self.flow.may_send(now, costs, false)
                && env.may_send(udp_bytes);
            if !admitted {
                return Ok(());
            }
            let may_read = link.attributes.access.remote_read;
            let pushed = batch.push(repr, bytes, |out| match source {
                Some(_) if !may_read => Err(MemoryFault::NotPermitted),
                // The queue whose protection domain the READ was asked of may have gone.
                Some(_) if srqn != 0 && !env.select_srq(srqn) => Err(MemoryFault::UnknownKey),
                Some(source) => env.read_remote(source, out),
                None => Ok(()),
            });
            match pushed {
                Ok(()) => {
                    self.resources.sent();
                    self.flow.sent(now, costs);
                    self.unacknowledged = 0;
                    counters.sent_pkts += 1;
                    let whole = response.ends_message && !response.repeated && source.is_some();
                    counters.sent_msgs += u64::from(whole && !link.config.takes_parts);
                }
                // A repetition may come when the application has the data and the region is gone.
                Err(_) if response.repeated => self.resources.give_up(),
                Err(fault) => {
                    counters.resp_remote_access_errors += 1;
                    let (code, broken) = access_refused(fault);
                    self.resources.clear();
                    self.reply = Some(Reply::Refused { psn: response.psn, code });
                    return Err(broken);
                }
            }
        }
        if let Some(reply) = self.reply {
            let repr = self.acknowledgement(reply, link, now);
            let kept = self.bitmap(&repr);
            let kept = kept.as_ref().map_or(&[][..], ArrivedRepr::bytes);
            let bytes = repr.udp_payload_len(kept.len());
            let fill = |out: &mut Vec<u8>| {
                out.extend_from_slice(kept);
                Ok(())
            };
            if batch.admits(&repr, kept.len()) && batch.push(repr, kept.len(), fill).is_ok() {
                env.reply_sent(bytes);
                self.reply = None;
                self.unacknowledged = 0;
                counters.sent_pkts += 1;
                counters.sent_selective_acks += u64::from(repr.bth.opcode == Opcode::MASQ_SELECTIVE_ACK);
            }
        }
        Ok(())
    }

    fn acknowledgement(&self, reply: Reply, link: &Link<'_>, now: Time) -> PacketRepr {
        if link.is_selective()
            && let Some(own) = self.own_acknowledgement(reply, link, now)
        {
            return own;
        }
        let (psn, syndrome) = match reply {
            Reply::Ack => (self.expected.minus(1), Syndrome::Ack(Credits::UNLIMITED)),
            Reply::Missing => (self.expected, Syndrome::Nak(NakCode::PsnSequenceError)),
            Reply::NotReady => (self.expected, Syndrome::RnrNak(link.attributes.min_rnr_timer)),
            Reply::Refused { psn, code } => (psn, Syndrome::Nak(code)),
        };
        let aeth = AethRepr { syndrome, msn: self.msn };
        let opcode = link.opcode(Opcode::RC_ACK);
        PacketRepr::new(opcode, link.attributes.remote_qpn, psn, Extension::Aeth(aeth))
    }

    /// Completes a receive that a message had begun to fill as flushed, and those that have been assigned to the messages behind it.
    pub(super) fn flush<E: Env>(&mut self, env: &mut E, counters: &mut Counters) {
        if self.receive.held {
            self.receive.held = false;
            flush_recv(env, counters, &self.receive.work);
        }
        self.flush_assigned(env, counters);
        self.message = Message::None;
        self.early.clear();
    }

    /// Nothing more is sent.
    pub(super) fn silence(&mut self) {
        self.resources.clear();
        self.early.clear();
        self.reply = None;
        self.flow.stop();
    }
}

impl Receive {
    /// Makes sure that a receive is at hand.
    fn take<E: Env>(&mut self, env: &mut E) -> Result<(), Refusal> {
        if !self.held {
            self.held = env.next_recv(&mut self.work);
        }
        match (self.held, self.work.defect) {
            (false, _) => Err(Refusal::NotReady),
            (true, None) => Ok(()),
            (true, Some(status)) => {
                let failure = Failure::new(status, Cause::MalformedWork);
                Err(Refusal::Receive(failure, NakCode::RemoteOperational))
            }
        }
    }

    fn complete<E: Env>(&mut self, env: &mut E, packet: &Parsed<'_>, opcode: WcOpcode, byte_len: u32) {
        self.held = false;
        env.complete(&Completion {
            opcode,
            byte_len,
            imm: packet.repr.ext.imm(),
            inv: packet.repr.ext.ieth().map(|Ieth(key)| key),
            solicited: packet.repr.bth.solicited,
            ..self.work.completion(Status::Success, Cause::None)
        });
    }

    fn fail<E: Env>(&mut self, env: &mut E, failure: Failure) {
        self.held = false;
        env.complete(&self.work.completion(failure.status, failure.cause));
    }
}

/// Completes a receive as flushed, or as it has failed before.
pub(super) fn flush_recv<E: Env>(env: &mut E, counters: &mut Counters, work: &RecvWork) {
    counters.resp_cqe_error += 1;
    counters.resp_cqe_flush_error += u64::from(work.failure.is_none());
    let Failure { status, cause } = work.failure.unwrap_or(Failure::new(Status::WrFlushErr, Cause::Flushed));
    env.complete(&work.completion(status, cause));
}

/// What the peer and the guest are told when memory that the peer names cannot be accessed.
fn access_refused(fault: MemoryFault) -> (NakCode, Broken) {
    let (code, fault, reason) = match fault {
        MemoryFault::Unavailable => (
            NakCode::RemoteOperational,
            QpFault::Fatal,
            "the guest memory behind a region cannot be accessed for the peer",
        ),
        MemoryFault::UnknownKey => {
            (NakCode::RemoteAccess, QpFault::Access, "the peer names a key that does not exist")
        }
        MemoryFault::ForeignDomain => {
            (NakCode::RemoteAccess, QpFault::Access, "the peer names a region of another protection domain")
        }
        MemoryFault::OutOfRange => (NakCode::RemoteAccess, QpFault::Access, "the peer leaves a region"),
        MemoryFault::NotPermitted => {
            (NakCode::RemoteAccess, QpFault::Access, "the peer lacks the right to such an access")
        }
    };
    (code, Broken { fault: Some(fault), reason })
}

fn response_headers(response: &Response, link: &Link<'_>, now: Time) -> PacketRepr {
    let aeth = AethRepr { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: response.msn };
    if response.begins
        && let Some(asked_at) = response.asked_at
    {
        let opcode =
            if response.ends { Opcode::MASQ_READ_RESPONSE_ONLY } else { Opcode::MASQ_READ_RESPONSE_FIRST };
        let ext = Extension::AethHold(aeth, HoldRepr::from(now.since(asked_at)));
        return PacketRepr::new(opcode, link.attributes.remote_qpn, response.psn, ext);
    }
    let (opcode, ext) = match response.body {
        Body::Value(original) => {
            (Opcode::RC_ATOMIC_ACK, Extension::AethAtomicAck(aeth, AtomicAckEthRepr { original }))
        }
        Body::Data { .. } => match Position::of(response.begins, response.ends) {
            Position::First => (Opcode::RC_READ_RESPONSE_FIRST, Extension::Aeth(aeth)),
            Position::Middle => (Opcode::RC_READ_RESPONSE_MIDDLE, Extension::None),
            Position::Last => (Opcode::RC_READ_RESPONSE_LAST, Extension::Aeth(aeth)),
            Position::Only => (Opcode::RC_READ_RESPONSE_ONLY, Extension::Aeth(aeth)),
        },
    };
    PacketRepr::new(link.opcode(opcode), link.attributes.remote_qpn, response.psn, ext)
}
