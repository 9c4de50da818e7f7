//! How many paths of the underlay a connection uses.

use std::net::IpAddr;

use masq_types::{Features, WireQpn};

use crate::rename::Peer;

/// How many wire numbers a queue pair with several paths has at a vNIC with so many: one for each, rounded up to a power of two. The first of them is a
/// multiple, and no other queue pair of such a vNIC has a number that is one. So a peer tells by the number, and by the vNIC's endpoint
/// record, which queue pairs use several paths.
pub fn group_len(paths: usize) -> u32 {
    // Records have a handful of addresses.
    (paths.max(1) as u32).next_power_of_two()
}

/// One end, as far as it matters.
#[derive(Clone, Copy, Debug)]
pub struct Own<'a> {
    /// Its underlay addresses: address `i` belongs to path `i`.
    pub addresses: &'a [IpAddr],
    /// What its RNIC can do.
    pub features: Features,
    /// Its host, if that is known.
    pub host: Option<&'a str>,
}

/// Why a queue pair that could use several paths uses one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum OnePath {
    /// Messages are copied, and there are no packets.
    #[error("it is on the same host")]
    SameHost,
    /// It knows nothing but the standard.
    #[error("it is no vNIC")]
    Stranger,
    /// Its RNIC is of a version that has no groups.
    #[error("its host's RNIC cannot use several paths")]
    Unable,
    /// There is no second pair of addresses of one family.
    #[error("it has no second underlay address that suits ours")]
    OneAddress,
    /// Its guest has created the queue pair without.
    #[error("its queue pair is not one with several paths")]
    PlainQp,
}

/// How many paths a queue pair with several of them uses towards the peer's queue pair `remote`, at least 2; or why it uses one. The peer comes to the same
/// number.
pub fn paths_in_use(own: Own<'_>, peer: &Peer, remote: WireQpn) -> Result<usize, OnePath> {
    if peer.is_stranger {
        return Err(OnePath::Stranger);
    }
    if own.host == Some(&*peer.host) {
        return Err(OnePath::SameHost);
    }
    if !own.features.common(peer.features).contains(Features::MULTIPATH) {
        return Err(OnePath::Unable);
    }
    let pairs = own.addresses.iter().zip(&peer.addresses);
    let common = pairs.take_while(|(a, b)| a.is_ipv4() == b.is_ipv4()).count();
    if common < 2 {
        return Err(OnePath::OneAddress);
    }
    match remote.get().is_multiple_of(group_len(peer.addresses.len())) {
        true => Ok(common),
        false => Err(OnePath::PlainQp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use masq_types::QpnBlock;

    fn ip(last: u8, v6: bool) -> IpAddr {
        match v6 {
            true => [0xfd00, 0, 0, 0, 0, 0, 0, last.into()].into(),
            false => [10, 0, 0, last].into(),
        }
    }

    fn peer(addresses: Vec<IpAddr>) -> Peer {
        Peer {
            vnic: "b".into(),
            host: "h2".into(),
            addresses,
            qpn_blocks: vec![QpnBlock::new(8192, 4096).unwrap()],
            features: Features::MULTIPATH | Features::SELECTIVE,
            generation: 1,
            is_stranger: false,
        }
    }

    #[test]
    fn both_ends_come_to_the_same_number() {
        let of = |count: u8, v6: &[u8]| (0..count).map(|i| ip(i + 1, v6.contains(&i))).collect::<Vec<_>>();
        let cases = [
            (of(4, &[]), of(4, &[]), Ok(4)),
            (of(4, &[]), of(3, &[]), Ok(3)),
            (of(2, &[]), of(8, &[]), Ok(2)),
            (of(4, &[2]), of(4, &[2]), Ok(4)),
            (of(4, &[2]), of(4, &[]), Ok(2)),
            (of(4, &[1]), of(4, &[]), Err(OnePath::OneAddress)),
            (of(4, &[]), of(1, &[]), Err(OnePath::OneAddress)),
        ];
        for (ours, theirs, expected) in cases {
            for (own, other) in [(&ours, &theirs), (&theirs, &ours)] {
                let features = Features::MULTIPATH;
                let own = Own { addresses: own, features, host: Some("h1") };
                let remote = WireQpn::from_wire(8192 + 16);
                assert_eq!(paths_in_use(own, &peer(other.clone()), remote), expected, "{own:?} {other:?}");
            }
        }
    }

    #[test]
    fn one_path_has_a_reason() {
        let addresses: Vec<IpAddr> = (1..5).map(|i| ip(i, false)).collect();
        let own = Own { addresses: &addresses, features: Features::MULTIPATH, host: Some("h1") };
        let peer = peer(addresses.clone());
        let group = WireQpn::from_wire(8192 + 4);
        assert_eq!(paths_in_use(own, &peer, group), Ok(4));
        for plain in 1..4 {
            let remote = WireQpn::from_wire(8192 + plain);
            assert_eq!(paths_in_use(own, &peer, remote), Err(OnePath::PlainQp));
        }
        let stranger = Peer { is_stranger: true, ..peer.clone() };
        assert_eq!(paths_in_use(own, &stranger, group), Err(OnePath::Stranger));
        let old = Peer { features: Features::SELECTIVE, ..peer.clone() };
        assert_eq!(paths_in_use(own, &old, group), Err(OnePath::Unable));
        let unable = Own { features: Features::SELECTIVE, ..own };
        assert_eq!(paths_in_use(unable, &peer, group), Err(OnePath::Unable));
        let here = Own { host: Some("h2"), ..own };
        assert_eq!(paths_in_use(here, &peer, group), Err(OnePath::SameHost));
        assert_eq!(paths_in_use(Own { host: None, ..own }, &peer, group), Ok(4));
    }

    #[test]
    fn groups_have_room_for_all_paths() {
        assert_eq!([0, 1, 2, 3, 4, 5, 8, 10, 16].map(group_len), [1, 1, 2, 4, 4, 8, 8, 16, 16]);
    }
}
