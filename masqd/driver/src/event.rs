use std::net::IpAddr;

use crate::{CqHandle, PeerName, QpHandle, SrqHandle, VnicId};

/// Something that the RNIC tells masqd without having been asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A queue pair moved to ERR, or its responder refused a request.
    QpFault {
        /// The device.
        vnic: VnicId,
        /// The queue pair.
        qp: QpHandle,
        /// What kind of fault.
        fault: QpFault,
        /// For the log.
        reason: String,
    },
    /// The first packet arrived on a queue pair in RTR.
    CommEstablished {
        /// The device.
        vnic: VnicId,
        /// The queue pair.
        qp: QpHandle,
    },
    /// The send queue of a queue pair in SQD is drained.
    SqDrained {
        /// The device.
        vnic: VnicId,
        /// The queue pair.
        qp: QpHandle,
    },
    /// A completion queue overran.
    CqOverrun {
        /// The device.
        vnic: VnicId,
        /// The queue.
        cq: CqHandle,
    },
    /// A shared receive queue has fewer receives than its limit, which is 0 now.
    SrqLimit {
        /// The device.
        vnic: VnicId,
        /// The queue.
        srq: SrqHandle,
    },
    /// A shared receive queue cannot be read any more.
    SrqFault {
        /// The device.
        vnic: VnicId,
        /// The queue.
        srq: SrqHandle,
        /// For the log.
        reason: String,
    },
    /// A queue pair in ERR takes no more receives from its shared receive queue.
    LastWqe {
        /// The device.
        vnic: VnicId,
        /// The queue pair.
        qp: QpHandle,
    },
    /// Datagrams to or from this peer wait, for 100 ms at most, for [`Command::SetPeer`](crate::Command::SetPeer) or
    /// [`Command::NoPeer`](crate::Command::NoPeer).
    UnknownPeer {
        /// The device.
        vnic: VnicId,
        /// Who it is.
        name: PeerName,
    },
    /// A path to another host that queue pairs with several paths use has gone down, or has come up after that. They go on by others. It is told once for
    /// all of them, so it names no device.
    PathChanged {
        /// The path's number.
        path: u8,
        /// It is alive.
        is_up: bool,
        /// This end of it on the underlay.
        local: IpAddr,
        /// The peer's.
        remote: IpAddr,
    },
    /// A vNIC cannot go on (for instance its memory faulted); all its objects are dead.
    VnicFatal {
        /// The device.
        vnic: VnicId,
        /// For the log.
        reason: String,
    },
}

/// Kinds of queue pair faults, each an asynchronous event of the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpFault {
    /// IBV_EVENT_QP_FATAL.
    Fatal,
    /// IBV_EVENT_QP_REQ_ERR.
    Request,
    /// IBV_EVENT_QP_ACCESS_ERR.
    Access,
}

/// Takes events; must not block.
pub trait EventSink: Send + Sync {
    /// One event.
    fn event(&self, event: Event);
}
