//! What stands for machines that are no hosts of masq: an endpoint record that nobody wrote.

use masq_model::Endpoint;
use masq_types::{Features, Gid, QpnBlock, WireQpn};

use super::{Directory, peer};

/// A stranger's queue pairs have any numbers.
const ANY_QPN: QpnBlock = QpnBlock { first: 0, len: WireQpn::MAX + 1 };
/// The well-known number of its GSI.
const GSI_QPN: WireQpn = WireQpn::from_wire(1);

impl Directory {
    /// Brings what stands for a static endpoint up to date, after it or its network has changed.
    pub(super) fn stand_in(&mut self, name: &str) {
        if let Some(old) = self.strangers.remove(name) {
            self.sources.remove(&old);
            self.peers.remove(name);
        }
        if let Some(new) = self.stranger(name) {
            self.sources.add(&new);
            self.peers.insert(name.into(), peer(&new, true));
            self.strangers.insert(name.into(), new);
        } else if let Some(e) = self.endpoint(name) {
            // A vNIC has taken the name over, and was realised before.
            self.peers.insert(name.into(), peer(e, false));
        }
    }

    fn stranger(&self, name: &str) -> Option<Endpoint> {
        let endpoint = self.static_endpoint(name)?;
        Some(Endpoint {
            vnic: endpoint.name.clone(),
            vni: self.vpc(&endpoint.vpc)?.vni,
            gids: endpoint.addresses.iter().copied().map(Gid::from).collect(),
            host: String::new(),
            addresses: vec![endpoint.underlay_address],
            qpn_blocks: vec![ANY_QPN],
            gsi_qpn: GSI_QPN,
            generation: 0,
            // Standard RoCEv2, and nothing else.
            features: Features::NONE,
        })
    }
}
