//! Which vNIC sends from which underlay address and QPN.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use masq_model::Endpoint;
use masq_types::{QpnBlock, Vni, WireQpn};

/// The blocks of all endpoints, by where they are.
///
/// Blocks are aligned to their length, a power of two, so that the one that a QPN lies in is found by asking for each
/// length that there can be: a look-up costs the same however many vNICs share an address.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    owners: HashMap<(Vni, IpAddr, QpnBlock), BTreeSet<String>>,
}

/// Stands for the GSI of a vNIC that has its first address alone.
const WELL_KNOWN: QpnBlock = QpnBlock { first: 1, len: 1 };

impl Sources {
    /// An endpoint is there.
    pub(super) fn add(&mut self, e: &Endpoint) {
        for place in places(e) {
            self.owners.entry(place).or_default().insert(e.vnic.clone());
        }
    }

    /// An endpoint is not there any more.
    pub(super) fn remove(&mut self, e: &Endpoint) {
        for place in places(e) {
            if let Some(owners) = self.owners.get_mut(&place) {
                owners.remove(&e.vnic);
                if owners.is_empty() {
                    self.owners.remove(&place);
                }
            }
        }
    }

    /// The one vNIC of a network that sends from there; when two say so, none does.
    pub(super) fn find(&self, vni: Vni, address: IpAddr, qpn: WireQpn) -> Option<&str> {
        let lengths = (QpnBlock::MIN_LEN.trailing_zeros()..=24).map(|shift| 1u32 << shift);
        let blocks = lengths.map(|len| QpnBlock { first: qpn.get() & !(len - 1), len });
        let blocks = blocks.filter(|b| b.contains(qpn)).chain((qpn.get() == 1).then_some(WELL_KNOWN));
        let mut owners = blocks.filter_map(|block| self.owners.get(&(vni, address, block))).flatten();
        match (owners.next(), owners.next()) {
            (Some(owner), None) => Some(owner),
            _ => None,
        }
    }
}

fn places(e: &Endpoint) -> impl Iterator<Item = (Vni, IpAddr, QpnBlock)> {
    let blocks = move |address| e.qpn_blocks.iter().map(move |block| (e.vni, address, *block));
    let gsi = e.addresses.first().filter(|_| e.gsi_qpn.get() == 1);
    e.addresses.iter().copied().flat_map(blocks).chain(gsi.map(|address| (e.vni, *address, WELL_KNOWN)))
}

#[cfg(test)]
mod tests {
    use masq_types::Features;

    use super::*;

    fn endpoint(vnic: &str, vni: u32, address: &str, first: u32, gsi: u32) -> Endpoint {
        Endpoint {
            vnic: vnic.into(),
            vni: Vni::new(vni).unwrap(),
            gids: Vec::new(),
            host: "h".into(),
            addresses: vec![address.parse().unwrap()],
            qpn_blocks: vec![QpnBlock { first, len: 8192 }],
            gsi_qpn: WireQpn::from_wire(gsi),
            features: Features::NONE,
            generation: 1,
        }
    }

    #[test]
    fn who_sends_is_found_by_network_address_and_qpn() {
        let mut sources = Sources::default();
        let a = endpoint("a", 1, "10.0.0.1", 8192, 8192);
        let b = endpoint("b", 1, "10.0.0.1", 16384, 16384);
        let red = endpoint("red", 2, "10.0.0.1", 24576, 24576);
        let alone = endpoint("alone", 1, "10.0.0.2", 8192, 1);
        [&a, &b, &red, &alone].into_iter().for_each(|e| sources.add(e));
        let find = |sources: &Sources, vni, address: &str, qpn| {
            let found =
                sources.find(Vni::new(vni).unwrap(), address.parse().unwrap(), WireQpn::from_wire(qpn));
            found.unwrap_or("nobody").to_owned()
        };
        for (vni, address, qpn, expected) in [
            (1, "10.0.0.1", 8192, "a"),
            (1, "10.0.0.1", 16383, "a"),
            (1, "10.0.0.1", 16384, "b"),
            (1, "10.0.0.1", 24576, "nobody"),
            (2, "10.0.0.1", 24576, "red"),
            (1, "10.0.0.1", 8191, "nobody"),
            (1, "10.0.0.1", 0, "nobody"),
            (1, "10.0.0.1", 1, "nobody"),
            (1, "10.0.0.2", 1, "alone"),
            (1, "10.0.0.2", 9000, "alone"),
            (1, "10.0.0.3", 9000, "nobody"),
        ] {
            assert_eq!(find(&sources, vni, address, qpn), expected, "{vni} {address} {qpn}");
        }
        // The addresses of its other paths it shares with the host's other vNICs.
        sources.remove(&alone);
        let mut paths = alone;
        paths.addresses.push("10.0.0.4".parse().unwrap());
        sources.add(&paths);
        for (address, qpn, expected) in
            [("10.0.0.2", 1, "alone"), ("10.0.0.4", 1, "nobody"), ("10.0.0.4", 9000, "alone")]
        {
            assert_eq!(find(&sources, 1, address, qpn), expected, "{address} {qpn}");
        }
        sources.remove(&paths);
        let mut larger = endpoint("c", 1, "10.0.0.1", 0, 2);
        larger.qpn_blocks = vec![QpnBlock { first: 0, len: 1 << 24 }];
        sources.add(&larger);
        assert_eq!(find(&sources, 1, "10.0.0.1", 9000), "nobody", "two claim it");
        assert_eq!(find(&sources, 1, "10.0.0.1", 5), "c");
        [&a, &b, &red, &larger].into_iter().for_each(|e| sources.remove(e));
        assert!(sources.owners.is_empty());
    }
}
