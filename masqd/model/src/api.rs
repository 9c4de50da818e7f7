//! What masqd's API answers, beside the objects themselves.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use masq_types::{Gid, MacAddr, Vni};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::schema;

/// An object with what is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Item<T> {
    /// What was written; what PUT takes.
    pub spec: T,
    /// What has become of it.
    pub status: ItemStatus,
}

/// All objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ItemList<T> {
    /// By name.
    pub items: Vec<Item<T>>,
}

/// How far an object is realised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ItemStatus {
    /// Grows with each change of the object: the revision of the store that made it. Also its ETag.
    pub generation: u64,
    /// The generation that all hosts concerned have brought into force, as far as is known; equal to `generation` when
    /// the object is realised.
    pub realised_generation: u64,
    /// In one word.
    pub state: RealisedState,
    /// The hosts that have not brought it into force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<String>,
}

/// How far an object is realised, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RealisedState {
    /// No host concerned has brought it into force yet.
    #[default]
    Pending,
    /// Some have; see `waiting_for`.
    PartiallyRealised,
    /// All have: connections that it forbids are cut, at both ends.
    Realised,
}

impl fmt::Display for RealisedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RealisedState::Pending => "pending",
            RealisedState::PartiallyRealised => "partially-realised",
            RealisedState::Realised => "realised",
        })
    }
}

/// What applying a file has changed, or would change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Applied {
    /// Nothing has been written.
    pub dry_run: bool,
    /// The changes, in the order of their keys.
    pub changes: Vec<AppliedChange>,
    /// How far they are realised; absent when nothing has been written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
}

/// A change of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppliedChange {
    /// What kind of change.
    pub change: ChangeKind,
    /// Kind of object.
    pub kind: String,
    /// Name of the object; of a rule `<group>/<name>`.
    pub name: String,
    /// The fields that differ, when the object was changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldChange>,
}

/// Kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// The object is new.
    Created,
    /// It is different now.
    Changed,
    /// It is gone.
    Deleted,
}

/// A field that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldChange {
    /// Its name.
    pub field: String,
    /// What it was; null when it was absent.
    pub old: Value,
    /// What it is; null when it is absent.
    pub new: Value,
}

/// Whether two ends may be connected, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Whether a connection may be made.
    pub allowed: bool,
    /// In one sentence.
    pub summary: String,
    /// The end that was asked about first.
    pub from: ExplainedEnd,
    /// The other end.
    pub to: ExplainedEnd,
    /// What the rules say about traffic there and back; empty when both ends are one vNIC, or something else is in the way.
    pub flows: Vec<ExplainedFlow>,
    /// What else is in the way, such as an end that no host has realised.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub obstacles: Vec<String>,
}

/// One end of a connection that is explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainedEnd {
    /// Its vNIC, or its static endpoint.
    pub vnic: String,
    /// Its address.
    #[schema(value_type = schema::Address)]
    pub address: Gid,
    /// Its security groups.
    pub security_groups: Vec<String>,
    /// Its host, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// What the rules say about one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainedFlow {
    /// Who sends.
    #[schema(value_type = schema::Address)]
    pub from: Gid,
    /// Who receives.
    #[schema(value_type = schema::Address)]
    pub to: Gid,
    /// Whether it passes.
    pub allowed: bool,
    /// What decides about sending: `rule <group>/<name>`, `membership in <group>`, or `no rule`.
    pub egress: String,
    /// Whether sending is allowed.
    pub egress_allowed: bool,
    /// What decides about receiving.
    pub ingress: String,
    /// Whether receiving is allowed.
    pub ingress_allowed: bool,
}

/// What a vNIC of this host has sent and received since its guest was attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Traffic {
    /// The vNIC.
    pub vnic: String,
    /// Its network.
    pub vpc: String,
    /// Bytes of IP packets sent.
    pub tx_bytes: u64,
    /// Bytes of IP packets received.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Time for which there was something to send, but the rate did not allow it, in nanoseconds.
    pub limited_ns: u64,
    /// Its rate, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bits_per_sec: Option<u64>,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorReply {
    /// In one sentence.
    pub error: String,
    /// Each single thing that is wrong with what was sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

impl fmt::Display for ErrorReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)?;
        self.problems.iter().try_for_each(|p| write!(f, "\n  {p}"))
    }
}

/// How a host is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Name of the host.
    pub host: String,
    /// Version of masqd.
    pub version: String,
    /// Whether masqd can do all its work.
    pub ready: bool,
    /// Why it cannot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// The store.
    pub store: String,
    /// Revision of the store that masqd has seen.
    pub revision: u64,
    /// Underlay addresses of the host, if the desired state knows it.
    #[schema(value_type = Vec<schema::Address>)]
    pub underlay: Vec<IpAddr>,
    /// The links that have them, if they were found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkStatus>,
    /// The vNICs of this host.
    pub vnics: Vec<VnicStatus>,
}

/// How the underlay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LinkStatus {
    /// Whether it is up.
    pub up: bool,
    /// Largest path MTU.
    pub active_mtu_bytes: u32,
}

/// What a vNIC is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum VnicState {
    /// It cannot be served; see the problem.
    Failed,
    /// No front end is connected.
    #[default]
    Waiting,
    /// A front end is connected, and the guest's driver has not begun.
    Connected,
    /// The guest's driver uses the device.
    Active,
}

impl fmt::Display for VnicState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            VnicState::Failed => "failed",
            VnicState::Waiting => "waiting",
            VnicState::Connected => "connected",
            VnicState::Active => "active",
        })
    }
}

/// How many objects a guest has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectCounts {
    /// Contexts (opens of the device).
    pub contexts: u64,
    /// Protection domains.
    pub pds: u64,
    /// Memory regions.
    pub mrs: u64,
    /// Completion queues.
    pub cqs: u64,
    /// Queue pairs.
    pub qps: u64,
    /// Shared receive queues.
    #[serde(default)]
    pub srqs: u64,
    /// Memory windows.
    #[serde(default)]
    pub mws: u64,
    /// XRC domains.
    #[serde(default)]
    pub xrcds: u64,
}

/// How a vNIC is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VnicStatus {
    /// Its name.
    pub name: String,
    /// Its network.
    pub vpc: String,
    /// That network's identifier.
    #[schema(value_type = u32)]
    pub vni: Vni,
    /// Its MAC address.
    #[schema(value_type = schema::Mac)]
    pub mac: MacAddr,
    /// Its virtual addresses.
    #[schema(value_type = Vec<schema::Address>)]
    pub addresses: Vec<IpAddr>,
    /// Where front ends connect.
    #[schema(value_type = String)]
    pub socket: PathBuf,
    /// What it is doing.
    pub state: VnicState,
    /// Names the lifetime of its guest's objects, in hexadecimal, while a front end is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// Why it cannot be served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// What its guest has.
    pub objects: ObjectCounts,
    /// How many vNICs, itself perhaps among them, it has exchanged datagrams with, or wanted to.
    #[serde(default)]
    pub peers: u64,
}

/// A connection of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionStatus {
    /// The vNIC.
    pub vnic: String,
    /// Its network.
    pub vpc: String,
    /// `rc`, `uc` or `ud`.
    pub transport: String,
    /// Its virtual address.
    #[schema(value_type = schema::Address)]
    pub local: Gid,
    /// Its queue pair number.
    pub local_qpn: u32,
    /// The peer's virtual address.
    #[schema(value_type = schema::Address)]
    pub remote: Gid,
    /// The peer's queue pair number.
    pub remote_qpn: u32,
    /// The peer's vNIC.
    pub peer: String,
    /// The path.
    pub path: u8,
    /// The peer's underlay address.
    #[schema(value_type = schema::Address)]
    pub remote_underlay: IpAddr,
    /// What allowed it, in words.
    pub allowed_by: String,
    /// When it was made, in seconds since 1970.
    pub since_unix_seconds: u64,
    /// Bytes of IP packets sent.
    pub tx_bytes: u64,
    /// Bytes of IP packets received.
    pub rx_bytes: u64,
}

/// A queue pair of a guest of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePair {
    /// The vNIC.
    pub vnic: String,
    /// Its network.
    pub vpc: String,
    /// Its number, as the guest knows it.
    pub qpn: u32,
    /// `rc`, `uc`, `ud`, `gsi`, `xrc_ini` or `xrc_tgt`.
    pub transport: String,
    /// `reset`, `init`, `rtr`, `rts`, `sqd`, `sqe` or `err`.
    pub state: String,
    /// Whom it is, or was last, connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<QueuePairConnection>,
    /// Its paths, if it uses several; the first is that of `connection`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<QueuePairPath>,
    /// How far the exchange of packets is; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<QueuePairProtocol>,
    /// Send requests that the RNIC has taken and that are not done.
    pub requests: u64,
    /// Tries that are left when the peer does not answer.
    pub retries_left: u8,
    /// Tries that are left when the peer has no receive; 7 is without end.
    pub rnr_retries_left: u8,
    /// What has to come before it sends on, in words, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Bytes of IP packets sent.
    pub tx_bytes: u64,
    /// Bytes of IP packets received.
    pub rx_bytes: u64,
    /// What it has counted and is not 0, by name.
    pub counters: BTreeMap<String, u64>,
    /// The last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<QueuePairError>,
}

/// Both ends of a queue pair's connection, virtual and on the underlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePairConnection {
    /// Its virtual address.
    #[schema(value_type = schema::Address)]
    pub local: Gid,
    /// The peer's virtual address.
    #[schema(value_type = schema::Address)]
    pub remote: Gid,
    /// The peer's queue pair number.
    pub remote_qpn: u32,
    /// The peer's vNIC, while the connection is tracked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Its underlay address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Address>)]
    pub local_underlay: Option<IpAddr>,
    /// The peer's underlay address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Address>)]
    pub remote_underlay: Option<IpAddr>,
    /// The peer is on the same host: messages are copied, and there are no packets.
    pub same_host: bool,
    /// UDP source port of its packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_source_port: Option<u16>,
}

/// One path of a queue pair that uses several. Each has a queue pair of its own in the RNIC, whose home it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePairPath {
    /// Its number, from 0.
    pub path: u8,
    /// This end's underlay address.
    #[schema(value_type = schema::Address)]
    pub local: IpAddr,
    /// The peer's underlay address.
    #[schema(value_type = schema::Address)]
    pub remote: IpAddr,
    /// UDP source port of its packets.
    pub udp_source_port: u16,
    /// `up`, `silent` (the peer does not answer by it, and it is not known why) or `down` (the peer answers by another one).
    pub state: String,
    /// The path that requests of its queue pair take at the moment: another one than `path` while that does not answer.
    pub taken: u8,
    /// Bytes of IP packets sent by it.
    pub tx_bytes: u64,
    /// Bytes of IP packets received by it.
    pub rx_bytes: u64,
    /// Chunks of large messages that its queue pair has carried.
    pub chunks: u64,
    /// Chunks that it has begun and not ended; 2 at most.
    pub chunks_under_way: u32,
    /// How often requests of its queue pair have changed paths.
    pub changes: u64,
    /// When they did last, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change_unix_seconds: Option<u64>,
    /// How long they had been unanswered then: since the first that was not answered was sent, or since the peer's last answer, if that came later. Absent when they
    /// left a path that was known to be dead, or came home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change_unanswered_ns: Option<u64>,
    /// After how long without an answer they do.
    pub answer_timeout_ns: u64,
}

/// How far a queue pair's exchange of packets is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePairProtocol {
    /// Path MTU.
    pub path_mtu_bytes: u32,
    /// The oldest PSN that was sent and is not acknowledged.
    pub unacknowledged_psn: u32,
    /// The PSN that is sent next; before `new_psn` while something is sent again.
    pub next_psn: u32,
    /// The PSN that is sent next for the first time.
    pub new_psn: u32,
    /// The PSN that is expected from the peer next.
    pub expected_psn: u32,
    /// Packets that may be on their way unacknowledged.
    pub window_packets: u32,
    /// Packets that are.
    pub outstanding_packets: u32,
    /// After how long without an answer everything is sent again; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_timeout_ns: Option<u64>,
    /// How long the peer's answers take, once that has been measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<QueuePairRoundTrip>,
    /// Bytes that congestion control lets be on their way, where it bounds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_window_bytes: Option<u64>,
    /// The rate that congestion control allows, where it bounds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bits_per_sec: Option<u64>,
}

/// How long answers take, both hosts' own delays included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePairRoundTrip {
    /// Smoothed.
    pub smoothed_ns: u64,
    /// The shortest so far.
    pub min_ns: u64,
    /// After how long without an answer a packet is probably lost.
    pub timeout_ns: u64,
}

/// Why a queue pair is, or was, in an error state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePairError {
    /// When, in seconds since 1970.
    pub unix_seconds: u64,
    /// Why, in words.
    pub reason: String,
    /// What failed: a `send` or a `receive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The status of its completion, as verbs name it, without the prefix IBV_WC_.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// What has caused that, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The oldest PSN that was not acknowledged then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unacknowledged_psn: Option<u32>,
    /// The PSN that was expected from the peer then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_psn: Option<u32>,
}
