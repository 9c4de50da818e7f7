//! What masqd's API answers, beside the objects themselves.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use masq_types::{Gid, MacAddr, Vni};
use serde::{Deserialize, Serialize};

/// What applying a desired state has changed, or would change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// Nothing has been written.
    pub dry_run: bool,
    /// Keys of new objects.
    pub created: Vec<String>,
    /// Keys of objects that are different now.
    pub changed: Vec<String>,
    /// Keys of objects that are gone.
    pub deleted: Vec<String>,
}

impl Applied {
    /// Whether everything was as it should be already.
    pub fn is_nothing(&self) -> bool {
        self.created.is_empty() && self.changed.is_empty() && self.deleted.is_empty()
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    pub underlay: Vec<IpAddr>,
    /// The links that have them, if they were found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkStatus>,
    /// The vNICs of this host.
    pub vnics: Vec<VnicStatus>,
}

/// How the underlay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Whether it is up.
    pub up: bool,
    /// Largest path MTU.
    pub active_mtu_bytes: u32,
}

/// What a vNIC is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// How a vNIC is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VnicStatus {
    /// Its name.
    pub name: String,
    /// Its network.
    pub vpc: String,
    /// That network's identifier.
    pub vni: Vni,
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its virtual addresses.
    pub addresses: Vec<IpAddr>,
    /// Where front ends connect.
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
}

/// A connection of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// The vNIC.
    pub vnic: String,
    /// Its network.
    pub vpc: String,
    /// Its virtual address.
    pub local: Gid,
    /// Its queue pair number.
    pub local_qpn: u32,
    /// The peer's virtual address.
    pub remote: Gid,
    /// The peer's queue pair number.
    pub remote_qpn: u32,
    /// The peer's vNIC.
    pub peer: String,
}
