use masq_types::{Features, MacAddr, Mtu};
use vrdma_abi::config::{ABI_MAJOR, ABI_MINOR, Config, FEATURE_STEER, LINK_ACTIVE, LINK_DOWN, MAGIC};

use crate::Limits;
use masq_policy::quota::{Quotas, Resource};

/// The underlay, as far as a guest can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether it is up.
    pub up: bool,
    /// Largest path MTU.
    pub active_mtu: Mtu,
    /// Speed in Mbit/s, 0 when unknown.
    pub mbits_per_sec: u32,
}

/// What guests are offered: `FEATURE_` bits of the contract.
pub(crate) fn guest_features(limits: &Limits) -> u64 {
    if limits.features.contains(Features::MULTIPATH) { FEATURE_STEER } else { 0 }
}

/// The config space of a device.
pub fn config_space(
    mac: MacAddr,
    epoch: u64,
    limits: &Limits,
    quotas: &Quotas,
    link: Link,
    paths: u8,
) -> Config {
    let most = |resource| u32::try_from(quotas.get(resource)).unwrap_or(u32::MAX);
    Config {
        magic: MAGIC,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        features: guest_features(limits),
        epoch,
        mac: mac.0,
        num_comp_vectors: limits.num_comp_vectors,
        num_db_slots: limits.num_db_slots,
        link_state: if link.up { LINK_ACTIVE } else { LINK_DOWN },
        active_mtu: link.active_mtu.code(),
        link_mbits_per_sec: link.mbits_per_sec,
        page_size_cap: limits.page_size_cap,
        max_mr_bytes: limits.max_mr_bytes,
        max_msg_bytes: limits.max_msg_bytes,
        max_contexts: most(Resource::Contexts),
        max_pds: most(Resource::Pds),
        max_mrs: most(Resource::Mrs),
        max_cqs: most(Resource::Cqs),
        max_qps: most(Resource::Qps),
        max_srqs: most(Resource::Srqs),
        max_qp_wr: limits.max_qp_wr,
        max_cqe: limits.max_cqe,
        max_send_sge: limits.max_send_sge,
        max_recv_sge: limits.max_recv_sge,
        max_inline_bytes: limits.max_inline_bytes,
        max_dest_rd_atomic: limits.max_dest_rd_atomic,
        max_rd_atomic: limits.max_rd_atomic,
        paths: if limits.features.contains(Features::MULTIPATH) { paths } else { 1 },
        reserved: 0,
        max_srq_sge: limits.max_srq_sge,
        max_srq_wr: limits.max_srq_wr,
        max_mws: most(Resource::Mws),
    }
}
