//! What the device has counted, for its guest; and how its queue pairs are, for whoever looks after the host.

use std::ops::RangeInclusive;
use std::time::Duration;

use masq_driver::{
    Command, DriverError, MAX_DESCRIBED_QPS, QpDetails, QpHandle, QpType, Reply, RnicDriver, VnicCounters,
};
use masq_types::Gid;
use vrdma_abi::control as abi;
use vrdma_abi::counters::COUNTER_NAMES;

use super::decode::reserved;
use super::{Session, driver_reply};
use crate::{Env, Reason};

/// For how long an answer is given again: the RNIC adds up all queue pairs for each, and a guest may ask without pause.
const COUNTED_FOR: Duration = Duration::from_millis(50);

impl Session {
    /// What the guest's own traffic has been, [`COUNTED_FOR`] ago at most. Nothing of other guests' is in it.
    pub(super) fn query_counters(
        &mut self,
        env: Env<'_>,
        r: abi::QueryCounters,
    ) -> Result<abi::QueryCountersReply, Reason> {
        reserved(&r.reserved)?;
        if let Some((at, reply)) = &self.counted
            && env.now.saturating_sub(*at) < COUNTED_FOR
        {
            return Ok(*reply);
        }
        let vnic = self.config.id;
        let traffic = env.rnic.execute(Command::VnicCounters { vnic })?;
        let traffic = driver_reply!(traffic, Reply::VnicCounters(c) => c)?;
        let events = env.rnic.execute(Command::VnicEvents { vnic })?;
        let events = driver_reply!(events, Reply::Counters(all) => all)?;
        let mut reply = abi::QueryCountersReply { count: COUNTER_NAMES.len() as u32, ..Default::default() };
        for (value, name) in reply.values.iter_mut().zip(COUNTER_NAMES) {
            *value = of_traffic(&traffic, name)
                .or_else(|| events.iter().find(|(n, _)| n == name).map(|(_, n)| *n))
                .unwrap_or_default();
        }
        self.counted = Some((env.now, reply));
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

/// A queue pair as its guest knows it, and as the RNIC sees it.
#[derive(Clone, Debug)]
pub struct QpView {
    /// Its number, as the guest sees it.
    pub qpn: u32,
    /// Its type.
    pub qp_type: QpType,
    /// Its virtual address, if it has been connected.
    pub local: Option<Gid>,
    /// The peer's virtual address.
    pub remote: Option<Gid>,
    /// The peer's number.
    pub remote_qpn: u32,
    /// The peer's vNIC, while the connection is tracked.
    pub peer: Option<String>,
    /// Why its connection was revoked, if it was.
    pub revoked: Option<String>,
    /// What the RNIC tells.
    pub details: QpDetails,
}

/// Some queue pairs of a guest.
#[derive(Clone, Debug, Default)]
pub struct QpPage {
    /// The queue pairs, by number.
    pub qps: Vec<QpView>,
    /// The numbers that have not been looked at, if there are queue pairs among them.
    pub rest: Option<RangeInclusive<u32>>,
}

impl Session {
    /// The first few queue pairs with these numbers: as many as the RNIC describes at once.
    pub fn queue_pairs(
        &self,
        rnic: &dyn RnicDriver,
        numbers: RangeInclusive<u32>,
    ) -> Result<QpPage, DriverError> {
        let asked = self.objects.qps.iter().map(|(qp, q)| (q.reply.qpn, *qp));
        let mut asked: Vec<(u32, QpHandle)> = asked.filter(|(qpn, _)| numbers.contains(qpn)).collect();
        let mut rest = None;
        if asked.len() > MAX_DESCRIBED_QPS {
            let (_, next, _) = asked.select_nth_unstable(MAX_DESCRIBED_QPS);
            rest = Some(next.0..=*numbers.end());
            asked.truncate(MAX_DESCRIBED_QPS);
        }
        asked.sort_unstable();
        if asked.is_empty() {
            return Ok(QpPage::default());
        }
        let (vnic, qps) = (self.config.id, asked.into_iter().map(|(_, qp)| qp).collect());
        let Reply::QpDetails(told) = rnic.execute(Command::DescribeQps { vnic, qps })? else {
            return Err(DriverError::Unsupported("telling how queue pairs are".into()));
        };
        Ok(QpPage { qps: told.into_iter().filter_map(|details| self.view(details)).collect(), rest })
    }

    fn view(&self, details: QpDetails) -> Option<QpView> {
        let q = self.objects.qps.get(&details.qp)?;
        let gid = |bytes| Some(Gid(bytes)).filter(|gid: &Gid| !gid.is_zero());
        Some(QpView {
            qpn: q.reply.qpn,
            qp_type: q.qp_type,
            local: gid(q.attr.sgid),
            remote: gid(q.attr.dgid),
            remote_qpn: q.attr.dest_qpn,
            peer: self.conntrack.get(details.qp).map(|c| c.peer.to_string()),
            revoked: q.revoked.clone(),
            details,
        })
    }
}
