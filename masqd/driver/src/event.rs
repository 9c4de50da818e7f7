use crate::{CqHandle, QpHandle, VnicId};

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
