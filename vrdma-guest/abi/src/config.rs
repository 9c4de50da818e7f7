//! The device's config space, virtio feature bits and queue numbers.

abi_constants! {
    /// Virtio device id of an RDMA device.
    pub const VIRTIO_ID: u32 = 42;
    /// First bytes of the config space: "VRDM".
    pub const MAGIC: u32 = 0x4d44_5256;
    /// Incompatible changes of the contract; a driver refuses a major version that it does not know.
    pub const ABI_MAJOR: u16 = 1;
    /// Additive changes of the contract.
    pub const ABI_MINOR: u16 = 4;
    /// Queue of control commands.
    pub const QUEUE_CONTROL: u16 = 0;
    /// Queue of asynchronous events.
    pub const QUEUE_EVENTS: u16 = 1;
    /// First completion-event queue; there is one for each completion vector.
    pub const QUEUE_FIRST_COMP: u16 = 2;
    /// Most virtqueues that a device has: control, events, completion vectors and doorbell slots.
    pub const MAX_QUEUES: u16 = 64;
    /// Port is down.
    pub const LINK_DOWN: u8 = 0;
    /// Port is active.
    pub const LINK_ACTIVE: u8 = 1;
    /// Entries of the GID table.
    pub const GID_TABLE_LEN: u8 = 16;
    /// Most pages of a region that a work request registers (SEND_OP_REG_MR): their list is one page.
    pub const FAST_REG_MAX_PAGES: u32 = 512;
    /// Bytes of a page in every list of guest pages, whatever the guest's own page size is.
    pub const PAGE_BYTES: u32 = 4096;
    /// Config::features: sends of queue pairs with several paths can be split (SEND_OP_STEER, SEND_STEERED).
    pub const FEATURE_STEER: u64 = 1;
}

abi_structs! {
    /// The device's config space, read-only for the guest. The host notifies a change of epoch,
    /// link_state or active_mtu by a configuration interrupt.
    pub struct Config {
        /// MAGIC.
        pub magic: u32,
        /// ABI_MAJOR of the host.
        pub abi_major: u16,
        /// ABI_MINOR of the host.
        pub abi_minor: u16,
        /// FEATURE_ bits: optional parts of the contract that the host offers.
        pub features: u64,
        /// Names the lifetime of the RNIC's objects, never 0. A new value tells the guest that all its objects are gone.
        pub epoch: u64,
        /// The vNIC's MAC address: the driver pairs the device with the network interface that has it.
        pub mac: [u8; 6],
        /// Completion vectors, at least 1.
        pub num_comp_vectors: u16,
        /// Doorbell slots, at least 1. Their queues follow those of the completion vectors.
        pub num_db_slots: u16,
        /// LINK_DOWN or LINK_ACTIVE.
        pub link_state: u8,
        /// Largest path MTU of the underlay, in the verbs encoding (1 = 256 bytes … 5 = 4096 bytes).
        pub active_mtu: u8,
        /// Speed of the link in Mbit/s, 0 when unknown.
        pub link_mbits_per_sec: u32,
        /// Page sizes that a memory region can use, a bit for each power of two.
        pub page_size_cap: u64,
        /// Largest memory region in bytes.
        pub max_mr_bytes: u64,
        /// Largest message in bytes.
        pub max_msg_bytes: u32,
        /// Most contexts (opens of the device).
        pub max_contexts: u32,
        /// Most protection domains.
        pub max_pds: u32,
        /// Most memory regions.
        pub max_mrs: u32,
        /// Most completion queues.
        pub max_cqs: u32,
        /// Most queue pairs.
        pub max_qps: u32,
        /// Most shared receive queues, 0 when they are not supported.
        pub max_srqs: u32,
        /// Most entries of a send or receive queue.
        pub max_qp_wr: u32,
        /// Most entries of a completion queue.
        pub max_cqe: u32,
        /// Most scatter/gather entries of a send.
        pub max_send_sge: u16,
        /// Most scatter/gather entries of a receive.
        pub max_recv_sge: u16,
        /// Most bytes of inline data.
        pub max_inline_bytes: u16,
        /// Most RDMA reads and atomics that a QP can serve as responder.
        pub max_dest_rd_atomic: u8,
        /// Most RDMA reads and atomics that a QP can have outstanding as initiator.
        pub max_rd_atomic: u8,
        /// Paths of the underlay that the vNIC has; a queue pair with QP_MULTIPATH uses several. At least 1.
        pub paths: u8,
        /// Zero.
        pub reserved: u8,
        /// Most scatter/gather entries of a receive in a shared receive queue.
        pub max_srq_sge: u16,
        /// Most entries of a shared receive queue.
        pub max_srq_wr: u32,
        /// Most memory windows, 0 when they are not supported.
        pub max_mws: u32,
    }
}
