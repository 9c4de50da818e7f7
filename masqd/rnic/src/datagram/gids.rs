//! Which of a vNIC's addresses a datagram comes from and goes to.

use std::net::IpAddr;

use masq_types::Gid;

/// The addresses of a vNIC.
#[derive(Debug, Default)]
pub struct Gids {
    /// The guest's table.
    table: Vec<Gid>,
    /// Those that peers know, in their order.
    published: Vec<Gid>,
}

impl Gids {
    /// The guest's table, and what its endpoint record has.
    pub fn new(table: Vec<Gid>, published: Vec<Gid>) -> Self {
        Self { table, published }
    }

    /// An entry of the guest's table, if there is one.
    pub fn entry(&self, index: u8) -> Option<Gid> {
        self.table.get(usize::from(index)).copied().filter(|gid| !gid.is_zero())
    }

    /// What peers know, in their order.
    pub fn published(&self) -> &[Gid] {
        &self.published
    }
}

/// The addresses of a datagram as places in the endpoint records of its two ends. They travel in the UDP source port, because the IP
/// header has the underlay's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    source: u8,
    destination: u8,
}

/// Port of the places 0 and 0.
const PORT_BASE: u16 = 0xc000;
/// Bits of one place.
const PLACE_BITS: u32 = 5;
const PLACE_MASK: u16 = (1 << PLACE_BITS) - 1;

impl Places {
    /// The places of two addresses in the records of their owners; `None` when one of them is not there, or too far behind for a port.
    pub fn find(source: Gid, sources: &[Gid], destination: Gid, destinations: &[Gid]) -> Option<Self> {
        let place = |gid, gids: &[Gid]| {
            let place = gids.iter().position(|g| *g == gid)?;
            u8::try_from(place).ok().filter(|p| u16::from(*p) <= PLACE_MASK)
        };
        Some(Self { source: place(source, sources)?, destination: place(destination, destinations)? })
    }

    /// The UDP source port that says so.
    pub fn port(self) -> u16 {
        PORT_BASE | u16::from(self.source) << PLACE_BITS | u16::from(self.destination)
    }

    fn of_port(port: u16) -> Option<Self> {
        let places = port.checked_sub(PORT_BASE).filter(|p| p >> (2 * PLACE_BITS) == 0)?;
        Some(Self { source: (places >> PLACE_BITS) as u8, destination: (places & PLACE_MASK) as u8 })
    }
}

/// No check: of senders that know of none.
pub const UNCHECKED: u8 = 0;

/// The check of the addresses that a sender means: for a moment the receiver may know other lists of addresses than the sender, in which their places stand for other
/// addresses. Of those, one in 255 has the same check.
pub fn check_of(source: Gid, destination: Gid) -> u8 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&source.0);
    sum.update(&destination.0);
    1 + (sum.finalize() % 255) as u8
}

/// The UDP source port towards those whom places say nothing.
pub const PORT_TO_STRANGERS: u16 = PORT_BASE;

/// The addresses (source, destination) of a datagram that came by this UDP source port, with this check, from an underlay address of the family of
/// `underlay`. Without a check, a port that says nothing stands for the first address that each end has of that family, or else of the other. `None` when
/// the ends have none of the same family, or the sender means others.
pub fn meant(
    port: u16,
    check: u8,
    underlay: IpAddr,
    sources: &[Gid],
    destinations: &[Gid],
) -> Option<(Gid, Gid)> {
    let said = || {
        let places = Places::of_port(port)?;
        let source = sources.get(usize::from(places.source))?;
        let destination = destinations.get(usize::from(places.destination))?;
        (source.ip().is_ipv4() == destination.ip().is_ipv4()).then_some((*source, *destination))
    };
    match check {
        UNCHECKED => said().or_else(|| first(underlay, sources, destinations)),
        _ => said().filter(|(source, destination)| check_of(*source, *destination) == check),
    }
}

/// The addresses (source, destination) of a datagram that another implementation has sent from the underlay address `source` to the one
/// `here`. Its ports say nothing, whatever they are. Where those underlay addresses are virtual ones as well, they are meant; otherwise the
/// first ones, as in [`meant`].
pub fn meant_by_stranger(
    source: IpAddr,
    here: Option<IpAddr>,
    sources: &[Gid],
    destinations: &[Gid],
) -> Option<(Gid, Gid)> {
    let same = || {
        let (source, here) = (Gid::from(source), Gid::from(here?));
        (sources.contains(&source) && destinations.contains(&here)).then_some((source, here))
    };
    same().or_else(|| first(source, sources, destinations))
}

/// The first address that each end has of the family of `underlay`, or else of the other.
fn first(underlay: IpAddr, sources: &[Gid], destinations: &[Gid]) -> Option<(Gid, Gid)> {
    let first = |ipv4: bool| {
        let of = |gids: &[Gid]| gids.iter().find(|g| g.ip().is_ipv4() == ipv4).copied();
        Some((of(sources)?, of(destinations)?))
    };
    first(underlay.is_ipv4()).or_else(|| first(!underlay.is_ipv4()))
}

/// Whether an address names a group of receivers.
pub fn is_multicast(gid: Gid) -> bool {
    gid.ip().is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gids(addresses: &[&str]) -> Vec<Gid> {
        addresses.iter().map(|a| Gid::from(a.parse::<IpAddr>().unwrap())).collect()
    }

    #[test]
    fn ports_carry_places() {
        let a: Vec<Gid> = (1..=40).map(|i| Gid::from(IpAddr::from([10, 0, 0, i]))).collect();
        let b = gids(&["fe80::2", "10.0.1.1"]);
        let of = |s: usize, d: usize| Places::find(a[s], &a, b[d], &b);
        assert_eq!(of(0, 0).unwrap().port(), 0xc000);
        assert_eq!(of(3, 1).unwrap().port(), 0xc061);
        assert_eq!(of(31, 1).unwrap().port(), 0xc3e1);
        assert_eq!(of(32, 1), None, "too far behind");
        assert_eq!(Places::find(b[1], &a, b[1], &b), None, "not published");
        for (s, d) in [(0, 0), (31, 1)] {
            assert_eq!(Places::of_port(of(s, d).unwrap().port()), of(s, d));
        }
        assert_eq!([0, 4791, 0xbfff, 0xc400, 0xffff].map(Places::of_port), [None; 5]);
    }

    #[test]
    fn what_the_port_says_or_the_first_of_the_family() {
        let (a, b) = (gids(&["fe80::1", "10.0.0.1", "10.0.0.2"]), gids(&["10.1.0.1", "fe80::2"]));
        let v4 = IpAddr::from([192, 0, 2, 1]);
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(meant(0xc040, UNCHECKED, v4, &a, &b), Some((a[2], b[0])));
        assert_eq!(meant(0xc001, UNCHECKED, v4, &a, &b), Some((a[0], b[1])));
        assert_eq!(meant(0xc000, UNCHECKED, v4, &a, &b), Some((a[1], b[0])), "of two families");
        assert_eq!(meant(0xc3ff, UNCHECKED, v4, &a, &b), Some((a[1], b[0])), "not there");
        assert_eq!(meant(4791, UNCHECKED, v6, &a, &b), Some((a[0], b[1])));
        assert_eq!(meant(4791, UNCHECKED, v6, &a, &b[..1]), Some((a[1], b[0])), "the other family has to do");
        assert_eq!(meant(4791, UNCHECKED, v4, &a[..1], &b[..1]), None);
        assert_eq!(meant(0xc000, UNCHECKED, v4, &[], &[]), None);
    }

    /// An address moves, and one end knows it first: what the other means is lost, and never goes by another name.
    #[test]
    fn what_the_other_end_knows_differently_is_lost() {
        let v4 = IpAddr::from([192, 0, 2, 1]);
        let (old, new, peer) = (gids(&["10.0.0.1", "10.0.0.9"]), gids(&["10.0.0.1"]), gids(&["10.0.0.2"]));
        let sent = |source: Gid, sources: &[Gid], known: &[Gid]| {
            let port = Places::find(source, sources, peer[0], &peer).unwrap().port();
            meant(port, check_of(source, peer[0]), v4, known, &peer)
        };
        assert_eq!(sent(old[1], &old, &old), Some((old[1], peer[0])));
        assert_eq!(sent(old[1], &old, &new), None, "no longer there");
        let other = gids(&["10.0.0.7", "10.0.0.1"]);
        assert_eq!(sent(old[0], &old, &other), None, "another stands in its place");
        let there = |destination: Gid, known: &[Gid]| {
            let port = Places::find(peer[0], &peer, destination, &old).unwrap().port();
            meant(port, check_of(peer[0], destination), v4, &peer, known)
        };
        assert_eq!(there(old[1], &old), Some((peer[0], old[1])));
        assert_eq!((there(old[1], &new), there(old[1], &other)), (None, None));
    }

    /// A part of what RNICs say to one another: it must not change.
    #[test]
    fn checks_are_never_none() {
        let (a, b) = (gids(&["10.0.0.1"])[0], gids(&["10.0.0.2"])[0]);
        assert_ne!(check_of(a, b), check_of(b, a));
        let all =
            (0..1000).map(|i: u16| check_of(a, Gid::from(IpAddr::from([10, 1, (i >> 8) as u8, i as u8]))));
        assert!(all.clone().all(|check| check != UNCHECKED));
        assert!(all.collect::<std::collections::HashSet<_>>().len() > 240);
    }

    #[test]
    fn a_stranger_means_its_own_address_and_the_one_that_it_sends_to() {
        let v4 = |s: &str| s.parse::<IpAddr>().unwrap();
        let (a, b) = (gids(&["10.0.0.1", "10.9.0.1"]), gids(&["fe80::2", "10.1.0.1", "10.9.0.2"]));
        let meant = |from, to| meant_by_stranger(from, to, &a, &b);
        assert_eq!(meant(v4("10.9.0.1"), Some(v4("10.9.0.2"))), Some((a[1], b[2])));
        let firsts = Some((a[0], b[1]));
        assert_eq!(meant(v4("192.0.2.1"), Some(v4("10.9.0.2"))), firsts);
        assert_eq!(meant(v4("10.9.0.1"), Some(v4("192.0.2.2"))), firsts);
        assert_eq!(meant(v4("10.9.0.1"), None), firsts);
        assert_eq!(meant_by_stranger(v4("10.9.0.1"), None, &a, &b[..1]), None);
    }

    #[test]
    fn empty_entries_are_none() {
        let table = gids(&["fe80::1", "::", "10.0.0.1"]);
        let gids = Gids::new(table.clone(), Vec::new());
        assert_eq!([0, 1, 2, 3].map(|i| gids.entry(i)), [Some(table[0]), None, Some(table[2]), None]);
    }

    #[test]
    fn groups_of_both_families() {
        let all = gids(&["ff02::1", "224.0.0.1", "239.255.0.1", "fe80::1", "10.0.0.1"]);
        assert_eq!(
            all.iter().map(|g| is_multicast(*g)).collect::<Vec<_>>(),
            [true, true, true, false, false]
        );
    }
}
