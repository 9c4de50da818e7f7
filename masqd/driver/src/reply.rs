use masq_types::{Lkey, Psn, Rkey, WireQpn};

use crate::{CqHandle, CtxHandle, MrHandle, QpHandle, QpState, VnicId};

/// The reply to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done; there is nothing to tell.
    Done,
    /// The queue is stopped.
    QueueBase {
        /// Next available index that would have been taken.
        base: u16,
    },
    /// The region exists.
    MrCreated {
        /// Key for scatter/gather entries.
        lkey: Lkey,
        /// Key for peers.
        rkey: Rkey,
    },
    /// The queue pair exists.
    QpCreated {
        /// Its doorbell slot.
        slot: u16,
        /// Its index in the context's doorbell page of that slot.
        index: u16,
    },
    /// A queue pair's state.
    Qp(QpStatus),
    /// Everything that exists.
    Objects(Vec<VnicObjects>),
    /// Counters by name; the names are those of Linux' hw_counters where they exist there.
    Counters(Vec<(&'static str, u64)>),
}

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpStatus {
    /// Its state; an error moves it to ERR without a command.
    pub state: QpState,
    /// Next PSN to send.
    pub sq_psn: Psn,
    /// Next PSN expected.
    pub rq_psn: Psn,
    /// In SQD, with sends to finish.
    pub sq_draining: bool,
}

/// The objects of one vNIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnicObjects {
    /// The vNIC.
    pub vnic: VnicId,
    /// Its contexts.
    pub contexts: Vec<CtxHandle>,
    /// Its memory regions.
    pub mrs: Vec<MrHandle>,
    /// Its completion queues.
    pub cqs: Vec<CqHandle>,
    /// Its queue pairs.
    pub qps: Vec<(QpHandle, WireQpn, QpState)>,
}
