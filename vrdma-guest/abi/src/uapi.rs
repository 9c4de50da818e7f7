//! What the kernel module and the provider tell one another through uverbs (`driver_data` of the
//! verbs commands). The host never sees these structures.
//!
//! Offsets are for mmap(2) on the context's command descriptor, with MAP_SHARED and exactly the
//! length given.
//!
//! A structure can grow at its end without a new [`UVERBS_ABI`]: each side takes what the other does not know of it for zero.

abi_constants! {
    /// uverbs ABI version of the module (ib_device_ops.uverbs_abi_ver).
    pub const UVERBS_ABI: u32 = 2;
}

abi_structs! {
    /// Reply to alloc_ucontext.
    pub struct UserContextReply {
        /// The device's status page (one page, read-only).
        pub status_offset: u64,
        /// The doorbell area: num_db_slots pages of DoorbellPage.
        pub doorbell_offset: u64,
        /// The doorbell registers: num_db_slots pages; writing kick_value + slot as 16 bits at the start of page slot rings it.
        pub kick_offset: u64,
        /// Doorbell slots.
        pub num_db_slots: u32,
        /// Virtqueue index of slot 0.
        pub kick_value: u32,
        /// Most bytes of inline data.
        pub max_inline_bytes: u32,
        /// Most scatter/gather entries of a send.
        pub max_send_sge: u32,
        /// The features in use: those of Config::features that the module knows.
        pub features: u64,
        /// Config::max_msg_bytes. This and what follows: 0 from modules that know no queue pairs with several paths.
        pub max_msg_bytes: u32,
        /// Paths that a queue pair can have; with less than 2 there are no chunk rings.
        pub paths: u32,
    }

    /// Reply to create_cq and resize_cq.
    pub struct UserCqReply {
        /// The ring: header and entries.
        pub ring_offset: u64,
        /// Its length in bytes, whole pages.
        pub ring_bytes: u32,
        /// Number of entries.
        pub entries: u32,
        /// RING_FORMAT_1.
        pub ring_format: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// Reply to create_srq and create_xsrq.
    pub struct UserSrqReply {
        /// The ring: header and entries.
        pub ring_offset: u64,
        /// Its length in bytes, whole pages.
        pub ring_bytes: u32,
        /// Entries.
        pub entries: u32,
        /// RING_FORMAT_1.
        pub ring_format: u32,
        /// Bytes between entries, as a power of two.
        pub stride_shift: u8,
        /// Zero.
        pub reserved: [u8; 3],
    }

    /// Request of create_qp.
    pub struct UserQpRequest {
        /// CreateQp::cookie: the provider's number for the QP.
        pub cookie: u32,
        /// Entries of a chunk ring that the QP is to have (QP_MULTIPATH), a power of two, at most Config::max_qp_wr; 0: none. EOPNOTSUPP from modules and hosts
        /// that have none, and for QPs of other types than RC.
        pub chunk_entries: u32,
    }

    /// Reply to create_qp.
    pub struct UserQpReply {
        /// The send queue: header and entries.
        pub sq_offset: u64,
        /// The receive queue: header and entries.
        pub rq_offset: u64,
        /// Length of the send queue in bytes, whole pages; 0 when there is none.
        pub sq_bytes: u32,
        /// Length of the receive queue in bytes, whole pages; 0 when there is none.
        pub rq_bytes: u32,
        /// Entries of the send queue. With a chunk ring up to twice the max_send_wr of the QP, as a split message takes two.
        pub sq_entries: u32,
        /// Entries of the receive queue.
        pub rq_entries: u32,
        /// Bytes between entries of the send queue, as a power of two.
        pub sq_stride_shift: u8,
        /// Bytes between entries of the receive queue, as a power of two.
        pub rq_stride_shift: u8,
        /// Doorbell slot.
        pub db_slot: u16,
        /// Index in the context's DoorbellPage of that slot.
        pub db_index: u16,
        /// Most bytes of inline data.
        pub max_inline_bytes: u16,
        /// RING_FORMAT_1.
        pub ring_format: u32,
        /// Entries of the chunk ring; 0 when there is none. Its stride is that of the send queue.
        pub chunk_entries: u32,
        /// The chunk ring: header and entries.
        pub chunks_offset: u64,
        /// Length of the chunk ring in bytes, whole pages.
        pub chunks_bytes: u32,
        /// Zero.
        pub reserved: u32,
    }
}
