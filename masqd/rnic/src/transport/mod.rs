//! The RC transport, without IO: packets, work and time in; packets, completions and deadlines out.
//!
//! [`RcQp`] is one reliable connected queue pair (IBTA Vol 1 §9.7). Memory, rings and completion queues come
//! through [`Env`]; the tests bring a model of them, the engine the guest's.

mod env;
mod time;

use masq_driver::{DriverError, QpChange, QpFault, QpState, QpStatus};
use masq_types::Psn;
use masq_wire::Parsed;

pub use env::{
    AtomicOp, Cause, Completion, Env, LocalAccess, MemoryFault, QpEvent, RecvWork, RemoteAccess, RemoteRange,
    SendOp, SendWork, Sge, Status, WcOpcode, WorkQueue, total_bytes,
};
pub use time::Time;

/// What does not change in the life of a queue pair.
#[derive(Clone, Debug)]
pub struct RcConfig {
    /// Every send is signalled, whatever it says.
    pub signal_all: bool,
    /// Packets that may be on their way unacknowledged, counting expected read responses; 1 to 2^22.
    pub window_packets: u32,
    /// An acknowledgement is asked for after as many packets of one message, and sent after as many without
    /// being asked; 1 or more, and well below `window_packets`.
    pub ack_every: u32,
    /// Packets that one READ request asks for at most. A longer READ becomes several requests, so that the
    /// requester sets the pace.
    pub read_packets: u32,
    /// Longest message in bytes; at most 2^31.
    pub max_msg_bytes: u32,
}

impl Default for RcConfig {
    fn default() -> Self {
        Self {
            signal_all: false,
            window_packets: 256,
            ack_every: 32,
            read_packets: 64,
            max_msg_bytes: 1 << 31,
        }
    }
}

/// Datagrams that [`RcQp::poll_transmit`] has appended to the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// How many datagrams, 1 or more.
    pub segments: usize,
    /// Bytes of each, save that the last may be shorter.
    pub segment_bytes: usize,
    /// Bytes of all.
    pub total_bytes: usize,
}

impl Transmit {
    /// The most bytes of one transmit: UDP payload of one IPv4 datagram, which generic segmentation takes as a whole.
    pub const MAX_BYTES: usize = 65_507;
}

/// One reliable connected queue pair: a requester and a responder that share a state.
///
/// Call, in any order:
///
/// - [`RcQp::modify`] when the guest changes the queue pair;
/// - [`RcQp::handle_work`] when requests may have been posted (after a doorbell, and again while it returns `true`);
/// - [`RcQp::handle_packet`] for each packet from the connected peer, its ICRC checked;
/// - [`RcQp::handle_timeout`] when the time of [`RcQp::poll_timeout`] has come;
/// - [`RcQp::fail`] when something outside finds that the queue pair cannot go on.
///
/// After any of these, call [`RcQp::poll_transmit`] until it returns `None` (or later, when there is
/// room to send; the order in which several queue pairs get to send is the caller's), then [`RcQp::poll_timeout`].
/// Acknowledgements are built in `poll_transmit`, so packets that arrived together and were handled before
/// are acknowledged together.
///
/// Completions and events leave through [`Env`] during those calls.
#[derive(Debug)]
pub struct RcQp {
    config: RcConfig,
    state: QpState,
}

impl RcQp {
    /// A queue pair in RESET.
    pub fn new(config: RcConfig) -> Self {
        Self { config, state: QpState::Reset }
    }

    /// The state.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// State and next PSNs.
    pub fn status(&self) -> QpStatus {
        QpStatus { state: self.state, sq_psn: Psn::new(0), rq_psn: Psn::new(0), sq_draining: false }
    }

    /// Changes state and attributes. The whole change is refused if it is not a legal transition from the present
    /// state, if `change.from` is another state, or if a value is out of range. Into RESET drops all work without
    /// completions; the caller resets the rings. Into ERR flushes both queues (call [`RcQp::handle_work`] while it
    /// returns `true`).
    pub fn modify<E: Env>(&mut self, now: Time, env: &mut E, change: &QpChange) -> Result<(), DriverError> {
        let _ = (now, env, &self.config);
        self.state = change.to.unwrap_or(self.state);
        Ok(())
    }

    /// Takes posted requests out of the rings, as far as the send window allows; in ERR flushes a bounded
    /// number of them. Returns whether it should be called again soon, with more to flush.
    ///
    /// In ERR it must also be called when receives are posted.
    pub fn handle_work<E: Env>(&mut self, now: Time, env: &mut E) -> bool {
        let _ = (now, env);
        false
    }

    /// A packet from the connected peer to this queue pair.
    pub fn handle_packet<E: Env>(&mut self, now: Time, env: &mut E, packet: &Parsed<'_>) {
        let _ = (now, env, packet);
    }

    /// The deadline has come. Calling it early does nothing.
    pub fn handle_timeout<E: Env>(&mut self, now: Time, env: &mut E) {
        let _ = (now, env);
    }

    /// Moves to ERR because of something outside (a revoked connection, an overrun completion queue): reports
    /// `fault` if there is one, and flushes as [`RcQp::modify`] does. Does nothing in RESET and ERR.
    pub fn fail<E: Env>(&mut self, now: Time, env: &mut E, fault: Option<QpFault>, reason: &'static str) {
        let _ = (now, env, fault, reason);
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
        let _ = (now, env, buf, max_segments);
        None
    }

    /// When [`RcQp::handle_timeout`] wants to be called, if at all.
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }
}
