use std::fmt;
use std::net::IpAddr;

use masq_driver::{DriverError, QpState, TransitionError};
use masq_policy::quota::{QuotaExceeded, TooFast};
use masq_policy::rename::Unreachable;
use masq_policy::rules::Denied;
use masq_types::{Gid, Mtu, WireQpn};
use vrdma_abi::control::*;

use crate::Errno;

/// A control command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// OP_DEVICE_INIT.
    DeviceInit,
    /// OP_ADD_GID.
    AddGid,
    /// OP_DEL_GID.
    DelGid,
    /// OP_CREATE_CONTEXT.
    CreateContext,
    /// OP_DESTROY_CONTEXT.
    DestroyContext,
    /// OP_CREATE_PD.
    CreatePd,
    /// OP_DESTROY_PD.
    DestroyPd,
    /// OP_CREATE_MR.
    CreateMr,
    /// OP_DESTROY_MR.
    DestroyMr,
    /// OP_CREATE_CQ.
    CreateCq,
    /// OP_DESTROY_CQ.
    DestroyCq,
    /// OP_CREATE_QP.
    CreateQp,
    /// OP_MODIFY_QP.
    ModifyQp,
    /// OP_QUERY_QP.
    QueryQp,
    /// OP_DESTROY_QP.
    DestroyQp,
    /// OP_REREG_MR.
    ReregMr,
    /// OP_RESIZE_CQ.
    ResizeCq,
    /// OP_CREATE_SRQ.
    CreateSrq,
    /// OP_MODIFY_SRQ.
    ModifySrq,
    /// OP_QUERY_SRQ.
    QuerySrq,
    /// OP_DESTROY_SRQ.
    DestroySrq,
    /// OP_CREATE_MW.
    CreateMw,
    /// OP_DESTROY_MW.
    DestroyMw,
    /// OP_CREATE_XRCD.
    CreateXrcd,
    /// OP_DESTROY_XRCD.
    DestroyXrcd,
    /// OP_QUERY_COUNTERS.
    QueryCounters,
}

impl Verb {
    /// All verbs, with their opcodes and their names in messages.
    pub const ALL: [(Verb, u16, &'static str); 26] = [
        (Verb::DeviceInit, OP_DEVICE_INIT, "device_init"),
        (Verb::AddGid, OP_ADD_GID, "add_gid"),
        (Verb::DelGid, OP_DEL_GID, "del_gid"),
        (Verb::CreateContext, OP_CREATE_CONTEXT, "create_context"),
        (Verb::DestroyContext, OP_DESTROY_CONTEXT, "destroy_context"),
        (Verb::CreatePd, OP_CREATE_PD, "create_pd"),
        (Verb::DestroyPd, OP_DESTROY_PD, "destroy_pd"),
        (Verb::CreateMr, OP_CREATE_MR, "create_mr"),
        (Verb::DestroyMr, OP_DESTROY_MR, "destroy_mr"),
        (Verb::CreateCq, OP_CREATE_CQ, "create_cq"),
        (Verb::DestroyCq, OP_DESTROY_CQ, "destroy_cq"),
        (Verb::CreateQp, OP_CREATE_QP, "create_qp"),
        (Verb::ModifyQp, OP_MODIFY_QP, "modify_qp"),
        (Verb::QueryQp, OP_QUERY_QP, "query_qp"),
        (Verb::DestroyQp, OP_DESTROY_QP, "destroy_qp"),
        (Verb::ReregMr, OP_REREG_MR, "rereg_mr"),
        (Verb::ResizeCq, OP_RESIZE_CQ, "resize_cq"),
        (Verb::CreateSrq, OP_CREATE_SRQ, "create_srq"),
        (Verb::ModifySrq, OP_MODIFY_SRQ, "modify_srq"),
        (Verb::QuerySrq, OP_QUERY_SRQ, "query_srq"),
        (Verb::DestroySrq, OP_DESTROY_SRQ, "destroy_srq"),
        (Verb::CreateMw, OP_CREATE_MW, "create_mw"),
        (Verb::DestroyMw, OP_DESTROY_MW, "destroy_mw"),
        (Verb::CreateXrcd, OP_CREATE_XRCD, "create_xrcd"),
        (Verb::DestroyXrcd, OP_DESTROY_XRCD, "destroy_xrcd"),
        (Verb::QueryCounters, OP_QUERY_COUNTERS, "query_counters"),
    ];

    /// The verb with this opcode.
    pub fn from_opcode(opcode: u16) -> Option<Verb> {
        Verb::ALL.iter().find(|(_, o, _)| *o == opcode).map(|(v, _, _)| *v)
    }

    /// Whether it only takes something away from the guest.
    pub fn gives_back(self) -> bool {
        use Verb::*;
        matches!(
            self,
            DelGid
                | DestroyContext
                | DestroyPd
                | DestroyMr
                | DestroyCq
                | DestroyQp
                | DestroySrq
                | DestroyMw
                | DestroyXrcd
        )
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        Verb::ALL.iter().find(|(v, _, _)| *v == self).map_or("", |(_, _, name)| name)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A request that was refused, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was asked for; `None` when it is no command that the host knows.
    pub verb: Option<Verb>,
    /// The guest's name for the request.
    pub tag: u32,
    /// Whom the guest wanted to be connected to.
    pub peer: Option<Peer>,
    /// Why not.
    pub reason: Reason,
}

/// Whom a guest wanted to be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Virtual address.
    pub gid: Gid,
    /// Queue pair.
    pub qpn: u32,
    /// Name of the vNIC that has the address, if known.
    pub vnic: Option<String>,
}

impl Refusal {
    /// What the guest is told.
    pub fn errno(&self) -> Errno {
        self.reason.errno()
    }

    /// Name of the verb.
    pub fn verb_name(&self) -> &'static str {
        self.verb.map_or("unknown command", Verb::name)
    }
}

/// One sentence: verb, peer, errno and reason.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verb_name())?;
        if let Some(peer) = &self.peer {
            write!(f, " to {peer}")?;
        }
        write!(f, " refused with {}: {}", self.errno(), self.reason)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#08x} at {}", self.qpn, self.gid)?;
        match &self.vnic {
            Some(vnic) => write!(f, " (vNIC {vnic})"),
            None => Ok(()),
        }
    }
}

/// Kinds of objects that a guest names by handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A context.
    Context,
    /// A protection domain.
    Pd,
    /// A memory region.
    Mr,
    /// A completion queue.
    Cq,
    /// A queue pair.
    Qp,
    /// A shared receive queue.
    Srq,
    /// A memory window.
    Mw,
    /// An XRC domain.
    Xrcd,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObjectKind::Context => "context",
            ObjectKind::Pd => "protection domain",
            ObjectKind::Mr => "memory region",
            ObjectKind::Cq => "completion queue",
            ObjectKind::Qp => "queue pair",
            ObjectKind::Srq => "shared receive queue",
            ObjectKind::Mw => "memory window",
            ObjectKind::Xrcd => "XRC domain",
        })
    }
}

/// Why a request is refused. Its text is a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// A field is out of range, a reserved field is not zero, or the length is wrong.
    #[error("{0}")]
    Malformed(String),
    /// The host does not know the command, feature or bit.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// The request names another epoch.
    #[error("the request belongs to epoch {asked:#x}, but this is epoch {current:#x}")]
    StaleEpoch {
        /// The request's.
        asked: u64,
        /// Ours.
        current: u64,
    },
    /// A handle that the command refers to does not exist.
    #[error("there is no {kind} {handle:#x}")]
    NoSuchObject {
        /// Kind of object.
        kind: ObjectKind,
        /// The handle.
        handle: u32,
    },
    /// The handle names an object with other parameters.
    #[error("{0} exists already, with other parameters")]
    Exists(String),
    /// The object is still in use.
    #[error("{kind} {handle:#x} is in use by {users}")]
    Busy {
        /// Kind of object.
        kind: ObjectKind,
        /// The handle.
        handle: u32,
        /// By what.
        users: String,
    },
    /// Two objects belong to different contexts.
    #[error("{0}")]
    ForeignContext(String),
    /// Only the guest's kernel may have it.
    #[error("{0} is only for the kernel's own context")]
    KernelOnly(&'static str),
    /// A quota is reached.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// Commands come faster than the quota allows.
    #[error(transparent)]
    TooFast(#[from] TooFast),
    /// An address lies outside the guest's memory.
    #[error("{what}: guest-physical address {address:#x} lies outside the guest's memory")]
    BadAddress {
        /// What was to be read.
        what: String,
        /// The address.
        address: u64,
    },
    /// The guest wants to use an address that is not its vNIC's.
    #[error("the address {gid} does not belong to this vNIC")]
    SpoofedGid {
        /// The address.
        gid: Gid,
    },
    /// The source GID is not in the vNIC's table.
    #[error("the source address {gid} is not in the vNIC's GID table")]
    SourceGid {
        /// The address.
        gid: Gid,
    },
    /// The queue pair cannot be changed like that.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// The guest is wrong about the state of the queue pair.
    #[error("the queue pair is in state {actual:?}, not {believed:?}")]
    CurrentState {
        /// What the guest believes.
        believed: QpState,
        /// What is so.
        actual: QpState,
    },
    /// The path MTU is larger than the underlay allows.
    #[error("the path MTU of {} bytes is above the active MTU of {} bytes; lower the MTU of the network interface", asked.bytes(), active.bytes())]
    PathMtu {
        /// What the guest asked for.
        asked: Mtu,
        /// What is possible.
        active: Mtu,
    },
    /// The destination cannot be reached.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// Nobody sends from there.
    #[error("no vNIC of this network sends from QP {qpn} at the underlay address {address}")]
    UnknownSource {
        /// The underlay address.
        address: IpAddr,
        /// The QP on the wire.
        qpn: WireQpn,
    },
    /// The destination QPN belongs to somebody else.
    #[error("QP {qpn} lies outside the QPN blocks of vNIC {vnic}")]
    ForeignQpn {
        /// The QPN.
        qpn: WireQpn,
        /// Whose blocks.
        vnic: String,
    },
    /// The peer is a stranger, which tells vNICs behind one underlay address not apart.
    #[error(
        "{endpoint} is no host of masq, and reaches vNICs with a dedicated alias alone, which this one lacks"
    )]
    NoAlias {
        /// The static endpoint.
        endpoint: String,
    },
    /// A rule denies the connection.
    #[error("{0}")]
    Denied(Box<Denied>),
    /// The peer has another place on the underlay now.
    #[error("the address {gid} of vNIC {vnic} has moved from {from} to {to}")]
    Moved {
        /// The virtual address.
        gid: Gid,
        /// The vNIC to which the connection was made.
        vnic: String,
        /// The underlay address to which it was made.
        from: IpAddr,
        /// The underlay address now.
        to: IpAddr,
    },
    /// The vNIC is taken away from the host.
    #[error("the vNIC has been taken away from this host")]
    Withdrawn,
    /// All QPNs of the vNIC's blocks are in use.
    #[error("all QPNs of the vNIC are in use")]
    NoQpn,
    /// Too many requests wait for the store.
    #[error("{0} requests wait for the store already")]
    TooManyWaiting(usize),
    /// The RNIC refused.
    #[error("the RNIC refused: {message}")]
    Rnic {
        /// What the guest is told.
        errno: Errno,
        /// Why.
        message: String,
    },
}

impl Reason {
    /// What the guest is told.
    pub fn errno(&self) -> Errno {
        match self {
            Reason::Malformed(_) | Reason::ForeignContext(_) | Reason::KernelOnly(_) => Errno::EINVAL,
            Reason::Transition(_) | Reason::CurrentState { .. } | Reason::PathMtu { .. } => Errno::EINVAL,
            Reason::Unsupported(_) => Errno::EOPNOTSUPP,
            Reason::StaleEpoch { .. } => Errno::ESTALE,
            Reason::NoSuchObject { .. } => Errno::ENOENT,
            Reason::Exists(_) => Errno::EEXIST,
            Reason::Busy { .. } => Errno::EBUSY,
            Reason::Quota(_) | Reason::TooFast(_) | Reason::NoQpn => Errno::EDQUOT,
            Reason::BadAddress { .. } => Errno::EFAULT,
            Reason::SpoofedGid { .. } | Reason::Denied(_) => Errno::EACCES,
            Reason::SourceGid { .. } => Errno::EADDRNOTAVAIL,
            Reason::Unreachable(_)
            | Reason::UnknownSource { .. }
            | Reason::Moved { .. }
            | Reason::NoAlias { .. }
            | Reason::Withdrawn => Errno::EHOSTUNREACH,
            Reason::ForeignQpn { .. } => Errno::ENXIO,
            Reason::TooManyWaiting(_) => Errno::EAGAIN,
            Reason::Rnic { errno, .. } => *errno,
        }
    }

    /// Whether the directory lacks something that a newer state of the store may have.
    pub(crate) fn is_miss(&self) -> bool {
        matches!(
            self,
            Reason::UnknownSource { .. }
                | Reason::ForeignQpn { .. }
                | Reason::Unreachable(Unreachable::UnknownGid { .. } | Unreachable::NotRealised { .. })
        )
    }

    /// The rules that forbid it, if any does, as `<group>/<rule>` with commas between them.
    pub fn rules(&self) -> Option<String> {
        match self {
            Reason::Denied(denied) => Some(denied.rules().join(",")).filter(|rules| !rules.is_empty()),
            _ => None,
        }
    }

    /// The label by which it is counted.
    pub fn label(&self) -> &'static str {
        LABELS[self.index()]
    }

    fn index(&self) -> usize {
        match self {
            Reason::Malformed(_) => 0,
            Reason::Unsupported(_) => 1,
            Reason::StaleEpoch { .. } => 2,
            Reason::NoSuchObject { .. } => 3,
            Reason::Exists(_) => 4,
            Reason::Busy { .. } => 5,
            Reason::ForeignContext(_) => 6,
            Reason::Quota(_) => 7,
            Reason::BadAddress { .. } => 8,
            Reason::SpoofedGid { .. } => 9,
            Reason::SourceGid { .. } => 10,
            Reason::Transition(_) => 11,
            Reason::CurrentState { .. } => 12,
            Reason::PathMtu { .. } => 13,
            Reason::Unreachable(_) => 14,
            Reason::ForeignQpn { .. } => 15,
            Reason::Denied(_) => 16,
            Reason::TooManyWaiting(_) => 17,
            Reason::Rnic { .. } => 18,
            Reason::Moved { .. } => 19,
            Reason::NoQpn => 20,
            Reason::TooFast(_) => 21,
            Reason::Withdrawn => 22,
            Reason::KernelOnly(_) => 23,
            Reason::UnknownSource { .. } => 24,
            Reason::NoAlias { .. } => 25,
        }
    }
}

const LABELS: [&str; 26] = [
    "malformed",
    "unsupported",
    "stale_epoch",
    "no_such_object",
    "exists",
    "busy",
    "foreign_context",
    "quota",
    "bad_address",
    "spoofed_gid",
    "source_gid",
    "transition",
    "current_state",
    "path_mtu",
    "unreachable",
    "foreign_qpn",
    "denied",
    "too_many_waiting",
    "rnic",
    "moved",
    "no_qpn",
    "too_fast",
    "withdrawn",
    "kernel_only",
    "unknown_source",
    "no_alias",
];

/// How often each reason has been given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusalCounters([u64; LABELS.len()]);

impl RefusalCounters {
    /// One more.
    pub(crate) fn count(&mut self, reason: &Reason) {
        self.0[reason.index()] += 1;
    }

    /// All labels with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        LABELS.into_iter().zip(self.0)
    }

    /// The count of one label.
    pub fn get(&self, label: &str) -> u64 {
        self.iter().find(|(l, _)| *l == label).map_or(0, |(_, n)| n)
    }
}

impl From<DriverError> for Reason {
    fn from(e: DriverError) -> Reason {
        let errno = match &e {
            DriverError::Busy(_) => Errno::EBUSY,
            DriverError::WrongState(_) | DriverError::Invalid(_) => Errno::EINVAL,
            DriverError::BadAddress(_) | DriverError::UnusableMemory { .. } => Errno::EFAULT,
            DriverError::Exhausted(_) => Errno::ENOMEM,
            DriverError::Unsupported(_) => Errno::EOPNOTSUPP,
            // The session believed otherwise, or the RNIC is gone: nothing that the guest could mend.
            DriverError::UnknownObject(_)
            | DriverError::Exists(_)
            | DriverError::Address { .. }
            | DriverError::Stopped
            | DriverError::Os { .. } => Errno::EIO,
        };
        Reason::Rnic { errno, message: e.to_string() }
    }
}
