//! The connected transports, without IO: packets, work and time in; packets, completions and deadlines out.
//!
//! [`QpCore`] is one queue pair: reliable connected (IBTA Vol 1 §9.7), an end of an extended reliable connection (Annex A14), or unreliable connected
//! (§9.8.3). Memory, rings and completion queues come through [`Env`]; the tests bring a model of them, the engine the guest's.
//!
//! ```text
//!                  ┌─────────────────────────── QpCore: state, attributes ──────────────────────────┐
//!  send ring ─────►│ Requester                                                                      │
//!                  │   Inflight   requests and their PSNs: what is acknowledged, sent, to be sent   │
//!                  │   Retry      counters and deadlines            Recovery   what of them is lost ├──► Batch ──► datagrams
//!  packets ───────►│ Responder                                      Reorder    what came too early  │
//!                  │   Receive    the receive that a message fills      Resources  READs and        ├──► completions, events
//!  recv ring ─────►│   Reply      what to acknowledge or refuse                    atomics to answer│
//!                  └────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Where the standard leaves a choice:
//!
//! - A long READ is asked for in several READ requests, so that the requester sets the pace. They are a READ's PSNs cut
//!   into messages, which a responder cannot tell from several READs.
//! - The last packet of each message asks for an acknowledgement, and every `ack_every`th of a long one. A responder
//!   acknowledges what was handled since it last got to send with one packet, at once.
//! - A responder promises no credits (31): a message without a receive gets an RNR NAK.
//! - Access that the queue pair does not allow at all is an invalid request, as an unsupported function is; access that
//!   a region does not allow is a remote access error.
//! - Requests that change keys and send nothing are carried out when all before them have been sent, not when those are acknowledged; a fence
//!   makes them wait for that, too. What comes behind them is looked at only then, since it may use the key.
//! - Of an unreliable connection, what the responder cannot carry out is dropped in silence, and with it the rest of its message; the receive that
//!   it had begun to fill takes the next message.
//! - Between two RNICs of masq, losses are repaired selectively (docs/ARCHITECTURE.md, Loss).
//! - A READ response at the wrong place is taken for a sign of loss, one of the wrong length for a bad response.

mod attributes;
mod batch;
mod cnp;
mod congestion;
mod counters;
mod describe;
mod env;
mod inflight;
mod link;
mod placed;
mod psn_set;
mod receipt;
mod reorder;
mod request;
mod requester;
mod resources;
mod responder;
mod retry;
mod rtt;
mod selective;
mod send_op;
mod time;

use core::time::Duration;

use masq_driver::{DriverError, QpChange, QpFault, QpState, QpStatus, QpType};
use masq_types::WireQpn;
use masq_wire::{Arrived, Ecn, Kind, Parsed, PathProbe, Transport};

use batch::Batch;
use cnp::Notifier;
use link::{Broken, Link};
use requester::{Requester, flush_send};
use responder::{Responder, flush_recv};

pub use attributes::Attributes;
pub use congestion::{Congestion, CongestionState, TRAIN};
pub use counters::Counters;
pub use describe::LastError;
pub use env::{
    AtomicOp, Bind, Cause, Completion, Env, KeyChange, KeyFault, LocalAccess, MemoryFault, QpEvent, RecvWork,
    Registration, RemoteAccess, RemoteRange, SendOp, SendWork, Sge, Status, SteerFault, WcOpcode, WorkQueue,
    total_bytes,
};
pub use inflight::Room;
pub use placed::Placed;
pub use receipt::Receipt;
pub use request::{Failure, change_key, judge_send, judge_send_with};
pub use rtt::RoundTrip;
pub use time::Time;

/// What does not change in the life of a queue pair.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// Its type.
    pub qp_type: QpType,
    /// Its receives come from a shared receive queue.
    pub shared_receives: bool,
    /// Every send is signalled, whatever it says.
    pub signal_all: bool,
    /// It is a hidden one of a group: what the peer sends to it, or reads by it, is part of a message, and is not counted as one.
    pub takes_parts: bool,
    /// Packets that may be on their way unacknowledged, counting expected read responses; 1 to 1024, as
    /// many as a selective acknowledgement can name.
    pub window_packets: u32,
    /// An acknowledgement is asked for after as many packets of one message, and sent after as many without
    /// being asked; 1 or more, and well below `window_packets`.
    pub ack_every: u32,
    /// Packets that one READ request asks for at most; 1 to `window_packets`. A longer READ becomes several requests, so that the
    /// requester sets the pace; with congestion control they become shorter where its window is small.
    pub read_packets: u32,
    /// Requests that may be taken out of the send ring and not be done; 1 or more. No more than the ring's entries make
    /// sense: an entry is free again only when its request is done.
    pub max_requests: u32,
    /// Longest message in bytes; at most 2^31.
    pub max_msg_bytes: u32,
    /// The local ACK timeout is never shorter, so that a peer that was not scheduled for a moment is not taken for dead.
    pub min_ack_timeout: Duration,
    /// What decides how fast it sends.
    pub congestion: Congestion,
}

impl QpConfig {
    /// The transport of its packets.
    pub const fn transport(&self) -> Transport {
        match self.qp_type {
            QpType::Rc => Transport::Rc,
            QpType::Uc => Transport::Uc,
            QpType::Ud | QpType::Gsi => Transport::Ud,
            QpType::XrcIni | QpType::XrcTgt => Transport::Xrc,
        }
    }
}

impl QpConfig {
    /// Whether packets of `transport` are for it: its own, and what masq's reliable connections say to each other, whatever the peer's record says.
    fn takes(&self, transport: Transport) -> bool {
        let own = self.transport();
        transport == own
            || (transport == Transport::Manufacturer && matches!(own, Transport::Rc | Transport::Xrc))
    }
}

impl Default for QpConfig {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            shared_receives: false,
            signal_all: false,
            takes_parts: false,
            window_packets: 256,
            ack_every: 32,
            read_packets: 64,
            max_requests: u32::MAX,
            max_msg_bytes: 1 << 31,
            min_ack_timeout: Duration::from_micros(4096),
            congestion: Congestion::None,
        }
    }
}

/// Datagrams that [`QpCore::poll_transmit`] has appended to the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// How many datagrams, 1 or more.
    pub segments: usize,
    /// Bytes of each, save that the last may be shorter.
    pub segment_bytes: usize,
    /// Bytes of all.
    pub total_bytes: usize,
    /// They answer the peer's requests, or tell it of congestion; otherwise they are requests.
    pub is_answer: bool,
}

impl Transmit {
    /// The most bytes of one transmit: UDP payload of one IPv4 datagram, which generic segmentation takes as a whole.
    pub const MAX_BYTES: usize = 65_507;
}

/// One queue pair: a requester and a responder that share a state.
///
/// Call, in any order:
///
/// - [`QpCore::modify`] when the guest changes the queue pair;
/// - [`QpCore::handle_work`] when requests may have been posted (after a doorbell);
/// - [`QpCore::handle_packet`] for each packet from the connected peer, its ICRC checked;
/// - [`QpCore::handle_timeout`] when the time of [`QpCore::poll_timeout`] has come;
/// - [`QpCore::fail`] when something outside finds that the queue pair cannot go on.
///
/// After any of these, call [`QpCore::handle_work`] while [`QpCore::wants_work`], and [`QpCore::poll_transmit`] until it
/// returns `None` (or later, when there is room to send; the order in which several queue pairs get to
/// send is the caller's), both again while it wants work, then [`QpCore::poll_timeout`]. Acknowledgements are built in `poll_transmit`, so packets that
/// arrived together and were handled before are acknowledged together, and none waits longer.
///
/// Completions and events leave through [`Env`] during those calls.
///
/// A pair whose ends are both on this RNIC needs no packets. Whoever carries it out uses this type for state and attributes
/// and to flush the rings in ERR, and calls neither `handle_packet` nor `poll_transmit`, nor `handle_work` outside ERR.
#[derive(Debug)]
pub struct QpCore {
    config: QpConfig,
    attributes: Attributes,
    state: QpState,
    requester: Requester,
    responder: Responder,
    notifier: Notifier,
    counters: Counters,
    last_error: Option<LastError>,
    /// In ERR: the rings may hold requests to flush.
    flushing: bool,
    /// In SQD: that the send queue is drained has not been reported.
    draining: bool,
    /// Which half gets to send first next time.
    requester_first: bool,
}

/// Requests of each queue that one call flushes at most.
const FLUSH_BUDGET: usize = 64;

impl QpCore {
    /// A queue pair in RESET.
    pub fn new(config: QpConfig) -> Self {
        let window_packets = config.window_packets.clamp(1, Arrived::MAX_BITS);
        let config = QpConfig {
            window_packets,
            ack_every: config.ack_every.clamp(1, window_packets),
            read_packets: config.read_packets.clamp(1, window_packets),
            max_requests: config.max_requests.max(1),
            max_msg_bytes: config.max_msg_bytes.min(1 << 31),
            ..config
        };
        Self {
            config,
            attributes: Attributes::default(),
            state: QpState::Reset,
            requester: Requester::default(),
            responder: Responder::default(),
            notifier: Notifier::default(),
            counters: Counters::default(),
            last_error: None,
            flushing: false,
            draining: false,
            requester_first: false,
        }
    }

    /// Another queue pair of the same group towards the peer's `remote_qpn`, in the state in which this one is, RTR: it has the same attributes and PSNs, and
    /// no receives.
    pub fn sibling(&self, remote_qpn: WireQpn) -> Self {
        let config =
            QpConfig { shared_receives: false, signal_all: false, takes_parts: true, ..self.config.clone() };
        let mut sibling = Self::new(config);
        sibling.attributes = Attributes { remote_qpn, ..self.attributes.clone() };
        sibling.state = self.state;
        let link = Link { config: &sibling.config, attributes: &sibling.attributes, state: sibling.state };
        sibling.responder.start(&link, self.responder.psn());
        sibling
    }

    /// The state.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// The attributes that the guest has set.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// What it was created with, brought into range.
    pub fn config(&self) -> &QpConfig {
        &self.config
    }

    /// What has been counted since the queue pair exists.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// To count what the queue pair does by other ways than packets.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Send requests whose memory the queue pair keeps: those that it has taken out of the ring and that are not done.
    /// At most the smaller of `window_packets` and `max_requests`, each about a KiB.
    pub fn buffers(&self) -> usize {
        self.requester.buffers()
    }

    /// Bytes of packets that the queue pair keeps because they came before their turn.
    #[inline]
    pub fn early_bytes(&self) -> usize {
        self.requester.early_bytes() + self.responder.early_bytes()
    }

    /// State and next PSNs.
    pub fn status(&self) -> QpStatus {
        QpStatus {
            state: self.state,
            sq_psn: self.requester.psn(),
            rq_psn: self.responder.psn(),
            sq_draining: self.state == QpState::Sqd && self.requester.has_begun(),
        }
    }

    /// How long the peer's answers take, once that has been measured.
    pub fn round_trip(&self) -> Option<RoundTrip> {
        self.requester.round_trip()
    }

    /// What congestion control lets its requests do at the moment; `None` without control, or before RTS.
    pub fn congestion(&self) -> Option<CongestionState> {
        self.requester.congestion()
    }

    /// Changes state and attributes. The whole change is refused if it is not a legal transition from the present
    /// state, if `change.from` is another state, or if a value is out of range. Into RESET drops all work without
    /// completions; the caller resets the rings. Into ERR flushes both queues and sends nothing more.
    pub fn modify<E: Env>(&mut self, now: Time, env: &mut E, change: &QpChange) -> Result<(), DriverError> {
        let from = self.state;
        let (attributes, to) = self.attributes.changed(self.config.qp_type, from, change)?;
        self.attributes = attributes;
        match (from, to) {
            (_, QpState::Reset) => {
                self.requester = Requester::default();
                self.responder = Responder::default();
                self.notifier = Notifier::default();
                self.flushing = false;
            }
            (QpState::Err, QpState::Err) => {}
            (_, QpState::Err) => {
                self.note_error(now, "its guest has moved it there");
                self.responder.silence();
                self.enter_error(env);
            }
            (QpState::Init, QpState::Rtr) => {
                let link = Link { config: &self.config, attributes: &self.attributes, state: self.state };
                self.responder.start(&link, change.rq_psn.unwrap_or_default());
            }
            (QpState::Sqe, QpState::Rts) => self.flushing = false,
            (QpState::Rtr, QpState::Rts) => {
                let (link, requester) = self.split();
                requester.start(&link, change.sq_psn.unwrap_or_default());
            }
            _ => {}
        }
        self.state = to;
        self.draining = to == QpState::Sqd && (from == QpState::Rts || self.draining);
        self.settle(now, env, Ok(()));
        Ok(())
    }

    /// Takes posted requests out of the rings, as far as the send window allows (the rest follows in
    /// [`QpCore::poll_transmit`]); in ERR and SQE flushes a bounded number of them. Returns [`QpCore::wants_work`].
    ///
    /// In ERR it must also be called when receives are posted.
    pub fn handle_work<E: Env>(&mut self, now: Time, env: &mut E) -> bool {
        match self.state {
            QpState::Err => {
                self.flush_rings(env);
                return self.flushing;
            }
            QpState::Sqe => {
                self.flushing = self.flush_send_ring(env);
                return self.flushing;
            }
            _ => {}
        }
        self.requester.work_posted();
        let (link, requester, counters) = self.requester_parts();
        let outcome = requester.fetch(&link, env, counters);
        self.settle_sends(now, env, outcome);
        self.wants_work()
    }

    /// Notes that requests may have been posted: the next [`QpCore::poll_transmit`] takes them. It takes the place of
    /// [`QpCore::handle_work`] where that call follows, outside ERR and SQE.
    pub fn work_posted(&mut self) {
        self.requester.work_posted();
    }

    /// Whether [`QpCore::poll_transmit`] may have something to do. If not, it need not be called.
    pub fn may_transmit(&self) -> bool {
        self.notifier.is_due() || self.requester.may_transmit() || self.responder.may_transmit()
    }

    /// Whether [`QpCore::handle_work`] should be called again soon, because there is more to flush or to carry out here.
    pub fn wants_work(&self) -> bool {
        self.flushing || self.requester.wants_work()
    }

    /// A packet from the connected peer to this queue pair.
    pub fn handle_packet<E: Env>(&mut self, now: Time, env: &mut E, packet: &Parsed<'_>, receipt: Receipt) {
        let kind = packet.info.kind;
        let responder = self.config.qp_type != QpType::XrcIni;
        let receives = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        let requests = responder && receives;
        let responses = matches!(self.state, QpState::Rts | QpState::Sqd);
        if kind == Kind::Cnp && receives {
            self.counters.rcvd_pkts += 1;
            // It does not say what has met congestion.
            let changed = [self.requester.congested(now), self.responder.congested(now)];
            let handled = changed.contains(&true);
            self.counters.rp_cnp_handled += u64::from(handled);
            self.counters.rp_cnp_ignored += u64::from(!handled);
            return;
        }
        let outcome = if !self.config.takes(packet.info.transport) {
            self.counters.rx_dropped += 1;
            return;
        } else if kind.is_request() && requests {
            let link = Link { config: &self.config, attributes: &self.attributes, state: self.state };
            if link.is_reliable() {
                self.responder.handle_request(&link, env, &mut self.counters, packet, receipt)
            } else {
                self.responder.handle_unreliable(&link, env, &mut self.counters, packet)
            }
        } else if kind.is_response() && responses {
            let (link, requester, counters) = self.requester_parts();
            requester.handle_response(&link, now, env, counters, packet, receipt)
        } else {
            self.counters.rx_dropped += 1;
            return;
        };
        self.counters.rcvd_pkts += 1;
        if receipt.ecn == Ecn::Ce {
            self.counters.np_ecn_marked_roce_packets += 1;
            self.notifier.marked(now);
        }
        self.settle(now, env, outcome);
    }

    /// The deadline has come. Calling it early does nothing.
    pub fn handle_timeout<E: Env>(&mut self, now: Time, env: &mut E) {
        self.responder.handle_timeout(now);
        let (_, requester, counters) = self.requester_parts();
        let outcome = requester.handle_timeout(now, env, counters);
        self.settle(now, env, outcome);
    }

    /// Moves to ERR because of something outside (a revoked connection, an overrun completion queue): reports
    /// `fault` if there is one, and flushes as [`QpCore::modify`] does. Does nothing in RESET and ERR.
    pub fn fail<E: Env>(&mut self, now: Time, env: &mut E, fault: Option<QpFault>, reason: &'static str) {
        if self.state != QpState::Reset {
            self.responder.silence();
            self.settle(now, env, Err(Broken { fault, reason }));
        }
    }

    /// Another queue pair of its group has failed: as [`QpCore::fail`], but what it owes its peer is still said.
    pub fn follow<E: Env>(&mut self, now: Time, env: &mut E) {
        if self.state != QpState::Reset {
            self.settle(now, env, Err(Broken { fault: None, reason: "another of its paths has failed" }));
        }
    }

    /// Completes receives that have been assigned to messages to come as flushed.
    pub fn flush_assigned<E: Env>(&mut self, env: &mut E) {
        self.responder.flush_assigned(env, &mut self.counters);
    }

    /// A send of an unreliable queue pair has failed, and has its completion: what is behind it is flushed, and receives go on until the guest
    /// moves it to RTS again or elsewhere (SQE, IBTA Vol 1 §10.3.1.5). Does nothing outside RTS and SQD.
    pub fn fail_sends<E: Env>(&mut self, env: &mut E) {
        if matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.state = QpState::Sqe;
            self.draining = false;
            self.requester.flush(env, &mut self.counters);
            self.flushing = self.flush_send_ring(env);
        }
    }

    /// Appends datagrams to `buf`: as many of equal size as there are, up to `max_segments` and
    /// [`Transmit::MAX_BYTES`]; the last may be shorter. Each begins with its BTH and ends with four bytes of room
    /// for the ICRC. `None` when there is nothing to send now; then `buf` is as it was.
    pub fn poll_transmit<E: Env>(
        &mut self,
        now: Time,
        env: &mut E,
        buf: &mut Vec<u8>,
        max_segments: usize,
    ) -> Option<Transmit> {
        if let Some(transmit) = self.notify(env, buf, max_segments) {
            return Some(transmit);
        }
        self.requester_first = !self.requester_first;
        let order = if self.requester_first { [true, false] } else { [false, true] };
        order.into_iter().find_map(|requester| {
            let mut batch = Batch::new(buf, max_segments);
            let outcome = if requester {
                let (link, requester, counters) = self.requester_parts();
                match link.state {
                    QpState::Rts | QpState::Sqd => requester.transmit(&link, now, env, counters, &mut batch),
                    _ => Ok(()),
                }
            } else {
                let link = Link { config: &self.config, attributes: &self.attributes, state: self.state };
                self.responder.transmit(&link, now, env, &mut self.counters, &mut batch)
            };
            let transmit = batch.finish().map(|t| Transmit { is_answer: !requester, ..t });
            self.settle_sends(now, env, outcome);
            transmit
        })
    }

    /// How long the peer takes to answer at most, as a rule.
    pub fn answer_timeout(&self) -> Duration {
        let link = Link { config: &self.config, attributes: &self.attributes, state: self.state };
        self.requester.answer_timeout(&link)
    }

    /// Whether the peer has left something unanswered for longer than answers take, and not after many changes of path already.
    pub fn is_answer_overdue(&self, now: Time) -> bool {
        self.requester.is_overdue(now)
    }

    /// Takes the place of [`QpCore::handle_timeout`] when packets take another path from now on: what is unanswered is sent again as after a timeout, and the
    /// new path gets all tries.
    pub fn change_path(&mut self, now: Time) {
        self.responder.handle_timeout(now);
        let (link, requester, _) = self.requester_parts();
        requester.change_path(&link, now);
    }

    /// The path that packets have taken is known to be dead, and they take another one from now on: what is under way is lost.
    pub fn leave_path(&mut self, now: Time) {
        let (link, requester, _) = self.requester_parts();
        requester.leave_path(&link, now);
    }

    /// Bytes of a probe that takes a path of which its longest packets can be sure.
    pub fn probe_bytes(&self) -> usize {
        self.attributes.path_mtu.bytes() as usize + PathProbe::BESIDE_MTU_BYTES
    }

    /// How long the peer has left something unanswered: since that was sent, or since the peer's last answer, if that came later.
    pub fn unanswered(&self, now: Time) -> Option<Duration> {
        self.requester.unanswered(now)
    }

    /// When [`QpCore::handle_timeout`] wants to be called, if at all.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.requester.deadline(), self.responder.deadline()].into_iter().flatten().min()
    }

    /// Tells the peer of congestion on its way here, if there is any to tell of.
    fn notify<E: Env>(&mut self, env: &mut E, buf: &mut Vec<u8>, max_segments: usize) -> Option<Transmit> {
        if !self.notifier.is_due() || matches!(self.state, QpState::Reset | QpState::Init | QpState::Err) {
            return None;
        }
        let mut batch = Batch::new(buf, max_segments);
        let bytes = self.notifier.transmit(self.attributes.remote_qpn, &mut batch)?;
        env.reply_sent(bytes);
        self.counters.sent_pkts += 1;
        self.counters.np_cnp_sent += 1;
        batch.finish().map(|t| Transmit { is_answer: true, ..t })
    }

    fn split(&mut self) -> (Link<'_>, &mut Requester) {
        let (link, requester, _) = self.requester_parts();
        (link, requester)
    }

    fn requester_parts(&mut self) -> (Link<'_>, &mut Requester, &mut Counters) {
        let link = Link { config: &self.config, attributes: &self.attributes, state: self.state };
        (link, &mut self.requester, &mut self.counters)
    }

    /// What follows from an outcome of sending: an unreliable queue pair whose send fails goes on receiving (IBTA Vol 1 §10.3.1.5).
    fn settle_sends<E: Env>(&mut self, now: Time, env: &mut E, outcome: Result<(), Broken>) {
        if outcome.is_err() && self.config.qp_type == QpType::Uc {
            self.fail_sends(env);
        } else {
            self.settle(now, env, outcome);
        }
    }

    /// What follows from an outcome: ERR, or the end of draining.
    fn settle<E: Env>(&mut self, now: Time, env: &mut E, outcome: Result<(), Broken>) {
        if let Err(broken) = outcome
            && self.state != QpState::Err
        {
            self.note_error(now, broken.reason);
            if let Some(fault) = broken.fault {
                env.event(QpEvent::Fault { fault, reason: broken.reason });
            }
            self.enter_error(env);
        }
        if self.draining && !self.requester.has_begun() {
            self.draining = false;
            if self.attributes.sq_drained_notify {
                env.event(QpEvent::SqDrained);
            }
        }
    }

    fn enter_error<E: Env>(&mut self, env: &mut E) {
        self.state = QpState::Err;
        self.draining = false;
        self.requester.flush(env, &mut self.counters);
        self.responder.flush(env, &mut self.counters);
        self.flush_rings(env);
        if self.config.shared_receives {
            env.event(QpEvent::LastWqe);
        }
    }

    /// Completes requests that are still in the rings as flushed, a bounded number of them.
    fn flush_rings<E: Env>(&mut self, env: &mut E) {
        let more_sends = self.flush_send_ring(env);
        let mut recvs = 0;
        let mut recv = RecvWork::default();
        while recvs < FLUSH_BUDGET && env.next_recv_to_flush(&mut recv) {
            flush_recv(env, &mut self.counters, &recv);
            recvs += 1;
        }
        self.flushing = more_sends || recvs == FLUSH_BUDGET;
    }

    /// The same of the send queue alone. Returns whether there may be more.
    fn flush_send_ring<E: Env>(&mut self, env: &mut E) -> bool {
        let mut sends = 0;
        let mut send = SendWork::default();
        while sends < FLUSH_BUDGET && env.next_send_to_flush(&mut send) {
            flush_send(env, &mut self.counters, &send);
            sends += 1;
        }
        sends == FLUSH_BUDGET
    }
}
