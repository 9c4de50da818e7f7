//! What of a vNIC can change while its guest runs, beside its addresses: quotas and QoS.

use std::num::NonZeroU32;

use masq_driver::Rate;
use masq_model::QosPolicy;
use masq_policy::quota::{Quotas, Resource};

use crate::{Directory, Limits};

/// The settings of a vNIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How much its guest may have.
    pub quotas: Quotas,
    /// How many control commands its guest may give in a second.
    pub commands_per_sec: Option<NonZeroU32>,
    /// What it may send.
    pub qos: Option<QosPolicy>,
}

impl Default for Settings {
    /// Those of a vNIC about which the desired state says nothing more.
    fn default() -> Self {
        Settings { quotas: Limits::DEFAULT_QUOTAS, commands_per_sec: None, qos: None }
    }
}

/// What the RNIC is told of a QoS policy, or of its absence.
pub fn driver_limits(qos: Option<&QosPolicy>) -> masq_driver::Limits {
    let Some(qos) = qos else { return masq_driver::Limits::default() };
    masq_driver::Limits {
        rate: qos.rate_bits_per_sec.map(|rate| driver_rate(rate, qos.burst_bits)),
        weight: qos.weight,
        class: qos.class,
        dscp: qos.dscp,
        trust_dscp: qos.trust_dscp,
    }
}

/// A rate with its burst; without one, with the RNIC's default.
pub fn driver_rate(bits_per_sec: u64, burst_bits: Option<u64>) -> Rate {
    match burst_bits {
        None => Rate::with_default_burst(bits_per_sec),
        Some(bits) => {
            Rate { bits_per_sec, burst_bytes: (bits / 8).clamp(Rate::MIN_BURST_BYTES, Rate::MAX_BURST_BYTES) }
        }
    }
}

impl Directory {
    /// The settings of a vNIC.
    pub fn settings(&self, vnic: &str) -> Settings {
        let mut settings = Settings::default();
        let Some(v) = self.vnic(vnic) else { return settings };
        let quota = &v.quota;
        for (resource, most) in [
            (Resource::Qps, quota.qps),
            (Resource::Cqs, quota.cqs),
            (Resource::Mrs, quota.mrs),
            (Resource::Srqs, quota.srqs),
            (Resource::Mws, quota.mws),
            (Resource::Xrcds, quota.xrcds),
            (Resource::PinnedBytes, quota.pinned_bytes),
        ] {
            if let Some(most) = most {
                // What the defaults allow is what the host can bear.
                settings.quotas =
                    settings.quotas.with(resource, most.min(Limits::DEFAULT_QUOTAS.get(resource)));
            }
        }
        settings.commands_per_sec = quota.commands_per_sec.and_then(NonZeroU32::new);
        settings.qos = v.qos_policy.as_deref().and_then(|name| self.qos_policy(name)).cloned();
        settings
    }
}
