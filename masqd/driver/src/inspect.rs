//! What an RNIC tells of single queue pairs: how they are, and their packets.

use core::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use masq_types::{Mtu, Psn, WireQpn};

use crate::{QpHandle, QpState, QpTraffic};

/// Most queue pairs that are [described](crate::Command::DescribeQps) at once, so that an RNIC with many is not held up.
pub const MAX_DESCRIBED_QPS: usize = 32;

/// A queue pair, as the RNIC sees it at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpDetails {
    /// The queue pair.
    pub qp: QpHandle,
    /// Its state.
    pub state: QpState,
    /// Where its peer is, while it is connected.
    pub path: Option<QpPath>,
    /// All its paths, of a queue pair that uses several; else empty.
    pub paths: Vec<PathDetails>,
    /// How far the exchange of packets is; `None` where there is none: of datagrams, without a connection, and between two queue pairs of
    /// one RNIC.
    pub protocol: Option<QpProtocol>,
    /// Send requests that are taken out of the ring and not done.
    pub requests: u32,
    /// Tries that are left when the peer does not answer.
    pub retries_left: u8,
    /// Tries that are left when the peer has no receive; 7 is without end.
    pub rnr_retries_left: u8,
    /// What has to come before it sends on, in words, if that is known.
    pub waits_for: Option<&'static str>,
    /// What it has sent and received.
    pub traffic: QpTraffic,
    /// What it has counted, by the names of [`Reply::Counters`](crate::Reply::Counters); what is 0 is left out.
    pub counters: Vec<(&'static str, u64)>,
    /// The last error.
    pub last_error: Option<QpError>,
}

/// Both ends of a connection on the underlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpPath {
    /// This end.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
    /// The peer's queue pair.
    pub remote_qpn: WireQpn,
    /// The peer is on this RNIC: messages are copied, and there are no packets.
    pub is_local: bool,
    /// UDP source port of what it sends; 0 where there are no packets.
    pub udp_source_port: u16,
}

/// One path of a queue pair that uses several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathDetails {
    /// Its ends, and the peer's hidden queue pair that it belongs to.
    pub ends: QpPath,
    /// Whether it is alive.
    pub state: PathState,
    /// What has gone over it.
    pub traffic: QpTraffic,
    /// Chunks that its queue pair has carried to their end.
    pub chunks: u64,
    /// Chunks that its queue pair has begun and not ended.
    pub chunks_under_way: u32,
    /// The path that the requests of its queue pair take at the moment: another one than this while this one does not answer.
    pub taken: u8,
    /// How often those requests have changed paths.
    pub changes: u64,
    /// How long ago they did last.
    pub last_change: Option<Duration>,
    /// How long they had been unanswered then: since the first that was not answered was sent, or since the peer's last answer, if that came later. None, where they
    /// left a path that was known to be dead, or came home.
    pub unanswered_before: Option<Duration>,
    /// After how long without an answer they take another path: the timeout of the estimated round trip, no longer than the local ACK timeout.
    pub answer_timeout: Duration,
}

/// Whether a path of a queue pair that uses several is alive. All queue pairs of the host that use the path have the same answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathState {
    /// Nothing says that it is not.
    #[default]
    Up,
    /// The peer has not answered by it when it should have. Whether it is the path or the peer is not known yet.
    Silent,
    /// The peer does not answer by it, but by another one.
    Down,
}

/// How far the exchange of packets with a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpProtocol {
    /// Path MTU.
    pub path_mtu: Mtu,
    /// The oldest PSN that was sent and is not acknowledged.
    pub una: Psn,
    /// The PSN that is sent next; before `high` while something is sent again.
    pub next: Psn,
    /// The PSN that is sent next for the first time.
    pub high: Psn,
    /// The PSN that is expected from the peer next.
    pub expected: Psn,
    /// Packets that may be on their way unacknowledged, counting expected READ responses.
    pub window_packets: u32,
    /// Packets that are.
    pub outstanding_packets: u32,
    /// After how long without an answer everything is sent again; `None` is never.
    pub ack_timeout: Option<Duration>,
    /// How long the peer's answers take, once that has been measured.
    pub round_trip: Option<QpRoundTrip>,
    /// Bytes that congestion control lets be on their way, if there is any and it bounds them.
    pub congestion_window_bytes: Option<u64>,
    /// The rate in bit/s that congestion control allows, if there is any and it bounds it.
    pub rate_bits_per_sec: Option<u64>,
}

/// How long answers of a peer take, both hosts' own delays included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpRoundTrip {
    /// Smoothed.
    pub smoothed: Duration,
    /// The shortest so far.
    pub min: Duration,
    /// After how long without an answer a packet is probably lost.
    pub timeout: Duration,
}

/// Why a queue pair is, or was, in an error state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpError {
    /// How long ago.
    pub age: Duration,
    /// Why, in words.
    pub reason: &'static str,
    /// The request that failed, where one did.
    pub request: Option<FailedRequest>,
    /// The oldest PSN that was not acknowledged then, where there were packets.
    pub una: Option<Psn>,
    /// The PSN that was expected then, likewise.
    pub expected: Option<Psn>,
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// It was a receive; else a send.
    pub is_receive: bool,
    /// Status of its completion, in words.
    pub status: &'static str,
    /// What has caused it, in words.
    pub cause: String,
}

/// A packet of a connection that is being captured.
#[derive(Clone, Copy, Debug)]
pub struct TappedPacket<'a> {
    /// It was sent; else received.
    pub is_sent: bool,
    /// How long ago the host has received it; zero when it was sent.
    pub age: Duration,
    /// Address and UDP port of its sender.
    pub source: SocketAddr,
    /// Of its receiver.
    pub destination: SocketAddr,
    /// DSCP and ECN field. Of a received packet the DSCP is not known, and zero.
    pub traffic_class: u8,
    /// TTL or hop limit; `None` where it is not known, as of what was received.
    pub hop_limit: Option<u8>,
    /// The IPv4 Identification that its ICRC covers; means nothing over IPv6.
    pub ipv4_id: u16,
    /// The don't-fragment flag, likewise.
    pub dont_fragment: bool,
    /// From the BTH to the ICRC.
    pub bytes: &'a [u8],
}

/// Takes the packets of a connection. Called in the middle of the data path: it must not block, and what it cannot take it
/// drops.
pub trait PacketTap: Debug + Send + Sync {
    /// One packet. Returns whether more are wanted.
    fn packet(&self, packet: &TappedPacket<'_>) -> bool;
}
