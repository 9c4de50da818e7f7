use masq_types::{Lkey, Psn, Rkey, WireQpn};

use crate::{CqHandle, CtxHandle, MrHandle, MwHandle, QpDetails, QpHandle, QpState, SrqHandle, VnicId};

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
    /// The window exists.
    MwCreated {
        /// Its key.
        rkey: Rkey,
    },
    /// A shared receive queue's limit, 0 when none is armed.
    SrqLimit(u32),
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
    /// Counters of one vNIC.
    VnicCounters(VnicCounters),
    /// What the queue pairs of one vNIC have sent and received, by handle.
    QpTraffic(Vec<(QpHandle, QpTraffic)>),
    /// How queue pairs are, in the order in which they were asked for.
    QpDetails(Vec<QpDetails>),
}

/// What a vNIC has sent and received since it was attached.
///
/// Bytes are those of IP packets, all headers and the ICRC included, acknowledgements and repetitions too. Between two
/// vNICs of one RNIC they are the bytes that the messages would have as packets of the path MTU, acknowledgements left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnicCounters {
    /// Bytes sent.
    pub tx_ip_bytes: u64,
    /// Bytes received, of packets that were taken.
    pub rx_ip_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets received, that were taken.
    pub rx_packets: u64,
    /// Messages sent whole: SENDs, RDMA WRITEs and atomics that were acknowledged, and answers to RDMA READs (of which a
    /// long READ asks several).
    pub tx_messages: u64,
    /// Messages received whole: the same from the other side, where a READ is one.
    pub rx_messages: u64,
    /// Nanoseconds in which there was something to send and the rate, its own or its class's, did not allow it.
    pub limited_ns: u64,
    /// Send requests at this moment that are taken out of the rings and not done, and spare ones: about a KiB each.
    pub held_requests: u64,
    /// Receives at this moment that are taken out of their queues for messages to come, of which data has come ahead of their ends.
    pub assigned_receives: u64,
    /// The objects that it has at this moment.
    pub objects: ObjectCounts,
}

/// How many objects of a vNIC the RNIC holds, by its own books and not by those of whoever made them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Contexts.
    pub contexts: u64,
    /// Memory regions.
    pub mrs: u64,
    /// Memory windows.
    pub mws: u64,
    /// Completion queues.
    pub cqs: u64,
    /// Shared receive queues.
    pub srqs: u64,
    /// Queue pairs; one that may use several paths counts as many as its group can have members.
    pub qps: u64,
}

/// What a queue pair has sent and received since it was created, counted as in [`VnicCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpTraffic {
    /// Bytes sent, as IP packets.
    pub tx_bytes: u64,
    /// Bytes received, as IP packets.
    pub rx_bytes: u64,
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
    /// Its memory windows.
    pub mws: Vec<MwHandle>,
    /// Its completion queues.
    pub cqs: Vec<CqHandle>,
    /// Its shared receive queues.
    pub srqs: Vec<SrqHandle>,
    /// Its queue pairs.
    pub qps: Vec<(QpHandle, WireQpn, QpState)>,
}
