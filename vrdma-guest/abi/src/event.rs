//! Events from host to guest. The guest posts writable buffers; the host fills one for each event.

abi_constants! {
    /// A QP failed for a reason that no completion tells (IBV_EVENT_QP_FATAL).
    pub const EVENT_QP_FATAL: u32 = 1;
    /// A request violated the QP's transport (IBV_EVENT_QP_REQ_ERR).
    pub const EVENT_QP_REQ_ERR: u32 = 2;
    /// A request violated access rights (IBV_EVENT_QP_ACCESS_ERR).
    pub const EVENT_QP_ACCESS_ERR: u32 = 3;
    /// A packet arrived on a QP that was not yet ready to send (IBV_EVENT_COMM_EST).
    pub const EVENT_COMM_EST: u32 = 4;
    /// The send queue is drained (IBV_EVENT_SQ_DRAINED).
    pub const EVENT_SQ_DRAINED: u32 = 5;
    /// A completion queue overran (IBV_EVENT_CQ_ERR).
    pub const EVENT_CQ_ERR: u32 = 6;
    /// The device cannot go on; its epoch will change (IBV_EVENT_DEVICE_FATAL).
    pub const EVENT_DEVICE_FATAL: u32 = 7;
    /// A shared receive queue has fewer receives than its limit (IBV_EVENT_SRQ_LIMIT_REACHED).
    pub const EVENT_SRQ_LIMIT: u32 = 8;
    /// A shared receive queue failed (IBV_EVENT_SRQ_ERR).
    pub const EVENT_SRQ_ERR: u32 = 9;
    /// A QP with a shared receive queue is in error and takes no more receives from it (IBV_EVENT_QP_LAST_WQE_REACHED).
    pub const EVENT_QP_LAST_WQE: u32 = 10;
}

abi_structs! {
    /// A buffer of the queue QUEUE_EVENTS.
    pub struct AsyncEvent {
        /// EVENT_.
        pub kind: u32,
        /// Handle of the QP, CQ or SRQ.
        pub handle: u32,
        /// The epoch to which the handle belongs.
        pub epoch: u64,
    }

    /// A buffer of a completion-event queue: an armed completion queue got a completion.
    pub struct CompEvent {
        /// Handle of the completion queue.
        pub cq: u32,
        /// Zero.
        pub reserved: u32,
        /// The epoch to which the handle belongs.
        pub epoch: u64,
    }
}
