use masq_policy::quota::{Quotas, Resource};
use masq_types::Features;

/// What one guest device can do at most: the RNIC's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Page sizes that a memory region can use, a bit for each power of two.
    pub page_size_cap: u64,
    /// Largest memory region in bytes.
    pub max_mr_bytes: u64,
    /// Largest message in bytes.
    pub max_msg_bytes: u32,
    /// Most entries of a send or receive queue.
    pub max_qp_wr: u32,
    /// Most entries of a completion queue.
    pub max_cqe: u32,
    /// Most scatter/gather entries of a send.
    pub max_send_sge: u16,
    /// Most scatter/gather entries of a receive.
    pub max_recv_sge: u16,
    /// Most entries of a shared receive queue.
    pub max_srq_wr: u32,
    /// Most scatter/gather entries of a receive in a shared receive queue.
    pub max_srq_sge: u16,
    /// Most bytes of inline data.
    pub max_inline_bytes: u16,
    /// Most reads and atomics that a QP serves as responder.
    pub max_dest_rd_atomic: u8,
    /// Most reads and atomics that a QP has outstanding as initiator.
    pub max_rd_atomic: u8,
    /// Completion vectors.
    pub num_comp_vectors: u16,
    /// Doorbell slots.
    pub num_db_slots: u16,
    /// What the RNIC can do beyond standard RoCEv2.
    pub features: Features,
}

impl Limits {
    /// Quotas of a vNIC that nobody has set otherwise: 64 Ki regions, 16 Ki queue pairs, 32 Ki completion
    /// queues, 16 Ki shared receive queues, 64 Ki memory windows, 1 Ki contexts, 1 Ki XRC domains, 16 Ki protection domains, 1 TiB of memory in at most 16 Mi pages
    /// (whose addresses take 128 MiB of the host's memory).
    pub const DEFAULT_QUOTAS: Quotas = Quotas::NONE
        .with(Resource::Contexts, 1 << 10)
        .with(Resource::Pds, 1 << 14)
        .with(Resource::Mrs, 1 << 16)
        .with(Resource::Cqs, 1 << 15)
        .with(Resource::Qps, 1 << 14)
        .with(Resource::Srqs, 1 << 14)
        .with(Resource::Mws, 1 << 16)
        .with(Resource::Xrcds, 1 << 10)
        .with(Resource::PinnedBytes, 1 << 40)
        .with(Resource::ListedPages, 1 << 24);
}
