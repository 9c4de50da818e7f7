//! How a guest is, for people and programs.

use std::collections::HashMap;

use masq_driver::{Command, QpHandle, QpTraffic, Reply, VnicCounters};
use masq_model::api::{ConnectionStatus, ObjectCounts, Traffic, VnicState};
use masq_policy::quota::Resource;

use super::guest::Guest;
use crate::inbox::Report;

impl Guest {
    /// How the guest is now. What the RNIC does not tell stays zero.
    pub(super) fn report(&self) -> Report {
        let counters = self.rnic_counters();
        let used = |resource| self.session.usage().used(resource);
        Report {
            state: if self.session.is_initialised() { VnicState::Active } else { VnicState::Connected },
            epoch: Some(self.epoch),
            objects: ObjectCounts {
                contexts: used(Resource::Contexts),
                pds: used(Resource::Pds),
                mrs: used(Resource::Mrs),
                cqs: used(Resource::Cqs),
                qps: used(Resource::Qps),
                srqs: used(Resource::Srqs),
                mws: used(Resource::Mws),
                xrcds: used(Resource::Xrcds),
            },
            rnic_objects: counters.objects,
            peers: self.session.peer_count() as u64,
            connections: self.connections(),
            events: self.rnic_events(),
            traffic: traffic(counters),
        }
    }

    fn connections(&self) -> Vec<ConnectionStatus> {
        let traffic: HashMap<QpHandle, QpTraffic> =
            match self.host.rnic.execute(Command::QpTraffic { vnic: self.vnic }) {
                Ok(Reply::QpTraffic(all)) => all.into_iter().collect(),
                _ => HashMap::new(),
            };
        let connection = |(qp, c): (QpHandle, &masq_policy::conntrack::Connection)| {
            let bytes = traffic.get(&qp).copied().unwrap_or_default();
            ConnectionStatus {
                vnic: self.name.to_string(),
                vpc: self.session.identity().vpc.clone(),
                transport: c.transport.to_string(),
                local: c.local,
                local_qpn: c.local_qpn.get(),
                remote: c.remote,
                remote_qpn: c.remote_qpn.get(),
                peer: c.peer.to_string(),
                path: 0,
                remote_underlay: c.remote_address,
                allowed_by: c.allowed_by.to_string(),
                since_unix_seconds: self.host.unix_seconds(c.since),
                tx_bytes: bytes.tx_bytes,
                rx_bytes: bytes.rx_bytes,
            }
        };
        self.session.connections().map(connection).collect()
    }

    fn rnic_events(&self) -> Vec<(&'static str, u64)> {
        match self.host.rnic.execute(Command::VnicEvents { vnic: self.vnic }) {
            Ok(Reply::Counters(all)) => all,
            _ => Vec::new(),
        }
    }

    fn rnic_counters(&self) -> VnicCounters {
        match self.host.rnic.execute(Command::VnicCounters { vnic: self.vnic }) {
            Ok(Reply::VnicCounters(counters)) => counters,
            _ => VnicCounters::default(),
        }
    }
}

fn traffic(c: VnicCounters) -> Traffic {
    Traffic {
        tx_bytes: c.tx_ip_bytes,
        rx_bytes: c.rx_ip_bytes,
        tx_packets: c.tx_packets,
        rx_packets: c.rx_packets,
        limited_ns: c.limited_ns,
        ..Traffic::default()
    }
}
