//! What the device has counted, for its guest.

use masq_driver::{Command, VnicCounters};
use vrdma_abi::control as abi;
use vrdma_abi::counters::COUNTER_NAMES;

use super::decode::reserved;
use super::{Session, driver_reply};
use crate::{Env, Reason};

impl Session {
    /// What the guest's own traffic has been. Nothing of other guests' is in it.
    pub(super) fn query_counters(
        &mut self,
        env: Env<'_>,
        r: abi::QueryCounters,
    ) -> Result<abi::QueryCountersReply, Reason> {
        reserved(&r.reserved)?;
        let vnic = self.config.id;
        let traffic = env.rnic.execute(Command::VnicCounters { vnic })?;
        let traffic = driver_reply!(traffic, masq_driver::Reply::VnicCounters(c) => c)?;
        let events = env.rnic.execute(Command::VnicEvents { vnic })?;
        let events = driver_reply!(events, masq_driver::Reply::Counters(all) => all)?;
        let mut reply = abi::QueryCountersReply { count: COUNTER_NAMES.len() as u32, ..Default::default() };
        for (value, name) in reply.values.iter_mut().zip(COUNTER_NAMES) {
            *value = of_traffic(&traffic, name)
                .or_else(|| events.iter().find(|(n, _)| n == name).map(|(_, n)| *n))
                .unwrap_or_default();
        }
        Ok(reply)
    }
}

/// Bytes and packets have the names that drivers give them.
fn of_traffic(c: &VnicCounters, name: &str) -> Option<u64> {
    Some(match name {
        "tx_bytes" => c.tx_ip_bytes,
        "tx_pkts" => c.tx_packets,
        "rx_bytes" => c.rx_ip_bytes,
        "rx_pkts" => c.rx_packets,
        _ => return None,
    })
}
