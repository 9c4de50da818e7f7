//! The UDP edge: RoCEv2 packets through the kernel's sockets.
//!
//! ```text
//!  transmit: poll_transmit → trains of equal segments → seal (ICRC) → sendmmsg with UDP_SEGMENT
//!  receive:  recvmmsg with UDP_GRO → split → (fault injection) → destination QP, peer → ICRC → handle_packet
//! ```
//!
//! # What the kernel does with the IPv4 Identification, which the ICRC covers
//!
//! Sockets are unconnected and set the don't-fragment flag, so the kernel sends Identification 0, and 0, 1, 2, …
//! in the segments of one train: the ICRC is computed with the segment's index. A socket does not show the
//! Identification of a received packet. Ours is its index again; if that does not explain the ICRC, some
//! other Identification may ([`masq_wire::IcrcVerdict::Explained`]), which leaves a check of 15 bits. That is how packets
//! of other implementations are accepted. Over IPv6 the check is exact.
//!
//! # What else it tells of a packet
//!
//! Its congestion mark, which is that of its whole train, since the kernel merges only packets of one type of service; and how long it has
//! waited in the socket, which is no delay of the network. The kernel stamps packets with the time of day, so that wait is taken
//! when they are read, in the same clock, and stands for a moment of the engine's clock from then on.

mod edge;
mod fault;
mod icrc;
mod shared;
mod socket;
mod sys;

pub use edge::{Attached, Edge, LocalId, Route, TxBatch};
pub use fault::{CongestionMark, FaultInjection, FaultShim};
pub use icrc::{FlowCache, Seen, seal, seal_one};
pub use shared::{Left, SharedAddresses};
pub use socket::UdpSockets;

use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use masq_wire::Ecn;

/// Most datagrams of one train (the kernel's UDP_MAX_SEGMENTS was 64 for long).
pub const MAX_SEGMENTS: usize = 64;

/// A train: one or more datagrams of equal size (the last may be shorter) to one destination.
#[derive(Clone, Copy, Debug)]
pub struct Train<'a> {
    /// The datagrams, one behind another.
    pub bytes: &'a [u8],
    /// Bytes of each.
    pub segment_bytes: usize,
    /// Where they go.
    pub destination: SocketAddr,
    /// UDP source port.
    pub source_port: u16,
    /// DSCP and ECN field.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 leaves it to the kernel.
    pub hop_limit: u8,
}

/// A received train.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The datagrams, one behind another.
    pub bytes: &'a [u8],
    /// Bytes of each but the last.
    pub segment_bytes: usize,
    /// Who sent them.
    pub source: SocketAddr,
    /// The congestion mark of all of them.
    pub ecn: Ecn,
    /// How long they have waited since the host received them.
    pub waited: Duration,
}

/// What the RNIC's local addresses are bound on.
pub trait Network: Debug + Send + Sync {
    /// Begins to receive at UDP port 4791 of `address`, for one of the engines of an RNIC, which share `shared`.
    fn bind(&self, address: IpAddr, shared: &Arc<SharedAddresses>) -> io::Result<Box<dyn Datagrams>>;
}

/// Something that carries datagrams for one local address: sockets, or a wire of a test.
pub trait Datagrams: Debug + Send {
    /// The local address.
    fn address(&self) -> IpAddr;

    /// A descriptor that can be read from while something waits to be received.
    fn receiving(&self) -> BorrowedFd<'_>;

    /// Opens a source port for one more user. Returns the port that will be used: 4791 when the wanted one belongs
    /// to somebody else.
    fn open_source(&mut self, port: u16) -> u16;

    /// Closes a source port when its last user goes.
    fn close_source(&mut self, port: u16);

    /// Sends trains in order; returns how many were taken. Those after are to be sent again when there is room.
    /// A train that cannot be sent at all counts as taken: it is lost, as on any network.
    fn send(&mut self, trains: &[Train<'_>]) -> usize;

    /// Trains that could not be sent: there is no route, or they are too long for it.
    fn lost_trains(&self) -> u64;

    /// Whether the datagrams of a train get the IPv4 Identifications 0, 1, 2, …; else all get 0.
    fn counts_segments(&self) -> bool;

    /// Hands what has arrived to `sink`, a bounded number of trains. Returns whether there may be more.
    fn receive(&mut self, sink: &mut dyn FnMut(Arrival<'_>)) -> io::Result<bool>;
}
