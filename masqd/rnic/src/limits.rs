//! What this RNIC can do. masqd announces these in the device's config space.

/// Doorbell slots of a device.
pub const SLOTS: u16 = 8;
/// Completion vectors of a device.
pub const COMP_VECTORS: u16 = 4;
/// Most entries of a send or receive queue.
pub const MAX_QP_WR: u32 = 32_768;
/// Most entries of a completion queue.
pub const MAX_CQE: u32 = 1 << 20;
/// Most scatter/gather entries of a send.
pub const MAX_SEND_SGE: u16 = 30;
/// Most scatter/gather entries of a receive.
pub const MAX_RECV_SGE: u16 = 30;
/// Most bytes of inline data.
pub const MAX_INLINE_BYTES: u16 = 256;
/// Most RDMA reads and atomics that a QP can have outstanding as initiator.
pub const MAX_RD_ATOMIC: u8 = 16;
/// Most RDMA reads and atomics that a QP can serve as responder.
pub const MAX_DEST_RD_ATOMIC: u8 = 16;
/// Largest message (IBTA Vol 1 §9.7.7: 2^31).
pub const MAX_MSG_BYTES: u32 = 1 << 31;
/// Largest memory region.
pub const MAX_MR_BYTES: u64 = 1 << 42;
/// Page sizes that a memory region can use: 4 KiB to 1 GiB.
pub const PAGE_SIZE_CAP: u64 = (1 << 31) - (1 << 12);
/// Most contexts of a device.
pub const MAX_CONTEXTS: u32 = 1024;
/// Most protection domains of a device.
pub const MAX_PDS: u32 = 16_384;
/// Most memory regions of a device.
pub const MAX_MRS: u32 = 1 << 18;
/// Most completion queues of a device.
pub const MAX_CQS: u32 = 65_536;
/// Most queue pairs of a device.
pub const MAX_QPS: u32 = 65_536;
/// Virtqueue sizes that are accepted.
pub const MAX_VIRTQUEUE_SIZE: u16 = 1024;
