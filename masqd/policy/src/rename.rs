//! Renaming: from (network, virtual address) to a place on the underlay.

use std::net::IpAddr;
use std::sync::Arc;

use masq_types::{Features, Gid, PathId, QpnBlock, Vni, WireQpn};

/// A realised vNIC, as its peers know it, or a stranger: a station of the underlay that is no host of masq.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of the vNIC, or of the stranger.
    pub vnic: Arc<str>,
    /// Name of its host; empty for a stranger, which has none.
    pub host: Arc<str>,
    /// Underlay addresses: address `i` belongs to path `i`.
    pub addresses: Vec<IpAddr>,
    /// Blocks of wire QPNs that it owns.
    pub qpn_blocks: Vec<QpnBlock>,
    /// What its RNIC can do beyond standard RoCEv2.
    pub features: Features,
    /// Grows whenever the blocks change hands.
    pub generation: u64,
    /// It is no vNIC: it tells those that share an underlay address not apart, and knows nothing but the standard.
    pub is_stranger: bool,
}

impl Peer {
    /// Whether `qpn` belongs to this vNIC.
    pub fn owns(&self, qpn: WireQpn) -> bool {
        self.qpn_blocks.iter().any(|b| b.contains(qpn))
    }
}

/// A snapshot of who has which virtual address.
pub trait Endpoints {
    /// Whom `gid` belongs to in the network `vni`.
    fn find(&self, vni: Vni, gid: Gid) -> Found<'_>;
}

/// What a snapshot knows about a virtual address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// A realised vNIC has it.
    Realised(&'a Peer),
    /// A vNIC has it, but no host has realised that vNIC.
    Desired {
        /// Name of the vNIC.
        vnic: &'a str,
        /// Name of the host that should realise it, if it is assigned to one.
        host: Option<&'a str>,
    },
    /// Two vNICs claim it, so neither gets it.
    Contested {
        /// Name of one.
        vnic: &'a str,
        /// Name of another.
        other: &'a str,
    },
    /// Nobody in this network has it.
    Unknown,
}

/// Where a virtual address is on the underlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution<'a> {
    /// Who has the virtual address.
    pub peer: &'a Peer,
    /// Our underlay address on the path.
    pub local: IpAddr,
    /// The peer's underlay address on the path.
    pub remote: IpAddr,
}

/// Why a virtual address cannot be reached. Never tells whether another network knows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// Nobody in this network has it.
    #[error("no vNIC of this network has the address {gid}")]
    UnknownGid {
        /// The address.
        gid: Gid,
    },
    /// Its vNIC is not realised.
    #[error("vNIC {vnic} has the address {gid}, but its host {host} has not realised it")]
    NotRealised {
        /// The address.
        gid: Gid,
        /// The vNIC.
        vnic: String,
        /// The host.
        host: String,
    },
    /// Its vNIC runs nowhere.
    #[error("vNIC {vnic} has the address {gid}, but is assigned to no host")]
    Unassigned {
        /// The address.
        gid: Gid,
        /// The vNIC.
        vnic: String,
    },
    /// Two vNICs claim it.
    #[error("both vNIC {vnic} and vNIC {other} claim the address {gid}")]
    Contested {
        /// The address.
        gid: Gid,
        /// One.
        vnic: String,
        /// Another.
        other: String,
    },
    /// The two ends share no underlay address pair on the path.
    #[error("vNIC {vnic} on host {host} has no underlay address on path {path} that suits ours")]
    NoPath {
        /// The peer.
        vnic: String,
        /// Its host.
        host: String,
        /// The path.
        path: PathId,
    },
}

/// The realised vNIC that has `gid` in network `vni`.
pub fn locate(endpoints: &dyn Endpoints, vni: Vni, gid: Gid) -> Result<&Peer, Unreachable> {
    match endpoints.find(vni, gid) {
        Found::Realised(peer) => Ok(peer),
        Found::Desired { vnic, host: Some(host) } => {
            Err(Unreachable::NotRealised { gid, vnic: vnic.into(), host: host.into() })
        }
        Found::Desired { vnic, host: None } => Err(Unreachable::Unassigned { gid, vnic: vnic.into() }),
        Found::Contested { vnic, other } => {
            Err(Unreachable::Contested { gid, vnic: vnic.into(), other: other.into() })
        }
        Found::Unknown => Err(Unreachable::UnknownGid { gid }),
    }
}

/// Renames `gid` in network `vni` for a vNIC whose underlay addresses are `ours`.
pub fn resolve<'a>(
    endpoints: &'a dyn Endpoints,
    vni: Vni,
    gid: Gid,
    ours: &[IpAddr],
    path: PathId,
) -> Result<Resolution<'a>, Unreachable> {
    let peer = locate(endpoints, vni, gid)?;
    let i = usize::from(path.0);
    match (ours.get(i), peer.addresses.get(i)) {
        (Some(&local), Some(&remote)) if local.is_ipv4() == remote.is_ipv4() => {
            Ok(Resolution { peer, local, remote })
        }
        _ => Err(Unreachable::NoPath { vnic: peer.vnic.to_string(), host: peer.host.to_string(), path }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    struct Table(HashMap<(Vni, Gid), Peer>);

    impl Endpoints for Table {
        fn find(&self, vni: Vni, gid: Gid) -> Found<'_> {
            self.0.get(&(vni, gid)).map_or(Found::Unknown, Found::Realised)
        }
    }

    fn ip(s: &str) -> IpAddr {
        s.parse().unwrap()
    }

    fn vni(n: u32) -> Vni {
        Vni::new(n).unwrap()
    }

    fn peer(vnic: &str, addresses: &[&str]) -> Peer {
        Peer {
            vnic: vnic.into(),
            host: "h".into(),
            addresses: addresses.iter().map(|a| ip(a)).collect(),
            qpn_blocks: vec![QpnBlock::new(8192, 4096).unwrap()],
            features: Features::NONE,
            generation: 1,
            is_stranger: false,
        }
    }

    fn table() -> Table {
        let gid = Gid::from(ip("192.168.0.1"));
        Table(HashMap::from([
            ((vni(100), gid), peer("blue-1", &["10.77.0.1", "10.78.0.1"])),
            ((vni(200), gid), peer("red-1", &["10.77.0.2"])),
        ]))
    }

    #[test]
    fn the_same_virtual_address_has_one_place_in_each_network() {
        let t = table();
        let gid = Gid::from(ip("192.168.0.1"));
        let ours = [ip("10.77.0.9"), ip("10.78.0.9")];
        let blue = resolve(&t, vni(100), gid, &ours, PathId(0)).unwrap();
        assert_eq!((&*blue.peer.vnic, blue.local, blue.remote), ("blue-1", ours[0], ip("10.77.0.1")));
        let red = resolve(&t, vni(200), gid, &ours, PathId(0)).unwrap();
        assert_eq!((&*red.peer.vnic, red.remote), ("red-1", ip("10.77.0.2")));
        let blue = resolve(&t, vni(100), gid, &ours, PathId(1)).unwrap();
        assert_eq!((blue.local, blue.remote), (ours[1], ip("10.78.0.1")));
        assert_eq!(resolve(&t, vni(300), gid, &ours, PathId(0)), Err(Unreachable::UnknownGid { gid }));
    }

    #[test]
    fn a_path_needs_an_address_of_one_family_at_both_ends() {
        let t = table();
        let gid = Gid::from(ip("192.168.0.1"));
        for (net, ours, path) in [
            (200, vec![ip("10.77.0.9"), ip("10.78.0.9")], 1),
            (100, vec![], 0),
            (100, vec![ip("fd00::1")], 0),
        ] {
            let r = resolve(&t, vni(net), gid, &ours, PathId(path));
            assert!(matches!(r, Err(Unreachable::NoPath { .. })), "{r:?}");
        }
    }

    #[test]
    fn a_peer_owns_only_its_blocks() {
        let p = peer("p", &[]);
        assert!(p.owns(WireQpn::from_wire(8192)) && p.owns(WireQpn::from_wire(12287)));
        assert!(!p.owns(WireQpn::from_wire(8191)) && !p.owns(WireQpn::from_wire(12288)));
    }
}
