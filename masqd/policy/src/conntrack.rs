//! The connections of a guest: who is connected to whom, and which of them a change touches.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use masq_types::{Gid, Vni, WireQpn};

use crate::rules::Transport;

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its network.
    pub vni: Vni,
    /// Its transport.
    pub transport: Transport,
    /// Our virtual address.
    pub local: Gid,
    /// Our queue pair.
    pub local_qpn: WireQpn,
    /// The peer's virtual address.
    pub remote: Gid,
    /// The peer's queue pair.
    pub remote_qpn: WireQpn,
    /// Name of the peer's vNIC.
    pub peer: Arc<str>,
    /// Name of the peer's host.
    pub peer_host: Arc<str>,
    /// The peer's underlay address, on the first path.
    pub remote_address: IpAddr,
    /// The peer's underlay addresses on the further paths that the connection uses.
    pub other_addresses: Vec<IpAddr>,
    /// What allowed it, in words.
    pub allowed_by: Arc<str>,
    /// When it was made, on the clock of whoever made it.
    pub since: Duration,
}

/// A set of virtual addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// All of them.
    Any,
    /// Those with this prefix.
    Prefix(IpNet),
    /// These.
    These(Arc<HashSet<Gid>>),
}

impl Addresses {
    /// Whether `gid` is one of them.
    pub fn contains(&self, gid: Gid) -> bool {
        match self {
            Addresses::Any => true,
            Addresses::Prefix(net) => net.contains(&gid.ip()),
            Addresses::These(gids) => gids.contains(&gid),
        }
    }
}

/// The connections between two sets of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Between {
    /// Their network.
    pub vni: Vni,
    /// Where one end is.
    pub one: Addresses,
    /// Where the other end is.
    pub other: Addresses,
    /// Only those of this transport.
    pub transport: Option<Transport>,
}

impl Between {
    fn covers(&self, c: &Connection) -> bool {
        let forth = self.one.contains(c.local) && self.other.contains(c.remote);
        let back = || self.other.contains(c.local) && self.one.contains(c.remote);
        self.vni == c.vni && self.transport.is_none_or(|t| t == c.transport) && (forth || back())
    }
}

/// What a change of desired or realised state can have touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    everything: bool,
    between: Vec<Between>,
    addresses: HashSet<(Vni, Gid)>,
}

impl Touched {
    /// Nothing.
    pub fn nothing() -> Touched {
        Touched::default()
    }

    /// Everything: used when it is not known what changed.
    pub fn everything() -> Touched {
        Touched { everything: true, ..Touched::default() }
    }

    /// Adds the connections between two sets of addresses (a rule about them changed).
    pub fn add_between(&mut self, between: Between) {
        // The rules of a group are often about the same ends, and come one after another.
        if self.between.last() != Some(&between) {
            self.between.push(between);
        }
    }

    /// Adds the connections to and from an address (its endpoint changed).
    pub fn add_address(&mut self, vni: Vni, gid: Gid) {
        self.addresses.insert((vni, gid));
    }

    /// Adds everything that `other` names.
    pub fn merge(&mut self, other: Touched) {
        self.everything |= other.everything;
        self.between.extend(other.between);
        self.addresses.extend(other.addresses);
    }

    /// Whether it touches nothing.
    pub fn is_nothing(&self) -> bool {
        !self.everything && self.between.is_empty() && self.addresses.is_empty()
    }

    /// Whether anything between these addresses of a vNIC and these of a peer may be touched, whatever the transport.
    pub fn covers_ends(&self, vni: Vni, locals: &[Gid], remotes: &[Gid]) -> bool {
        let has = |addresses: &Addresses, gids: &[Gid]| gids.iter().any(|gid| addresses.contains(*gid));
        self.everything
            || locals.iter().chain(remotes).any(|gid| self.addresses.contains(&(vni, *gid)))
            || self.between.iter().filter(|b| b.vni == vni).any(|b| {
                (has(&b.one, locals) && has(&b.other, remotes))
                    || (has(&b.other, locals) && has(&b.one, remotes))
            })
    }

    /// Whether `c` may be touched.
    pub fn covers(&self, c: &Connection) -> bool {
        self.everything
            || self.addresses.contains(&(c.vni, c.remote))
            || self.addresses.contains(&(c.vni, c.local))
            || self.between.iter().any(|b| b.covers(c))
    }
}

/// Connections by the handle of the queue pair that has them, and by address, so that a change costs what it touches.
#[derive(Clone, Debug)]
pub struct Conntrack<H> {
    connections: HashMap<H, Connection>,
    by_local: BTreeMap<Gid, BTreeSet<H>>,
    by_remote: BTreeMap<Gid, BTreeSet<H>>,
}

impl<H> Default for Conntrack<H> {
    fn default() -> Self {
        Conntrack { connections: HashMap::new(), by_local: BTreeMap::new(), by_remote: BTreeMap::new() }
    }
}

impl<H: Copy + Eq + Hash + Ord> Conntrack<H> {
    /// A queue pair is connected; returns the connection that it had before.
    pub fn insert(&mut self, owner: H, connection: Connection) -> Option<Connection> {
        let old = self.remove(owner);
        self.by_local.entry(connection.local).or_default().insert(owner);
        self.by_remote.entry(connection.remote).or_default().insert(owner);
        self.connections.insert(owner, connection);
        old
    }

    /// A queue pair is not connected any more.
    pub fn remove(&mut self, owner: H) -> Option<Connection> {
        let old = self.connections.remove(&owner)?;
        forget(&mut self.by_local, old.local, owner);
        forget(&mut self.by_remote, old.remote, owner);
        Some(old)
    }

    /// The connection of a queue pair.
    pub fn get(&self, owner: H) -> Option<&Connection> {
        self.connections.get(&owner)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// All connections, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (H, &Connection)> {
        self.connections.iter().map(|(h, c)| (*h, c))
    }

    /// Judges the connections that `touched` covers again: those that `judge` gives a reason against, with
    /// the reason, by handle. They stay in the table until they are removed.
    pub fn reevaluate<R>(
        &self,
        touched: &Touched,
        mut judge: impl FnMut(&Connection) -> Result<(), R>,
    ) -> Vec<(H, R)> {
        let mut covered = BTreeSet::new();
        if touched.everything {
            covered.extend(self.connections.keys().copied());
        } else {
            self.at_addresses(&touched.addresses, &mut covered);
            for between in &touched.between {
                self.between(between, &mut covered);
            }
        }
        covered.into_iter().filter_map(|h| Some((h, judge(self.get(h)?).err()?))).collect()
    }

    fn at_addresses(&self, addresses: &HashSet<(Vni, Gid)>, covered: &mut BTreeSet<H>) {
        if addresses.len() > self.len() {
            let touched = |c: &Connection| {
                addresses.contains(&(c.vni, c.local)) || addresses.contains(&(c.vni, c.remote))
            };
            covered.extend(self.iter().filter(|(_, c)| touched(c)).map(|(h, _)| h));
            return;
        }
        for (vni, gid) in addresses {
            let here = at(&self.by_local, *gid, *gid).chain(at(&self.by_remote, *gid, *gid));
            covered.extend(here.filter(|h| self.get(*h).is_some_and(|c| c.vni == *vni)));
        }
    }

    fn between(&self, between: &Between, covered: &mut BTreeSet<H>) {
        // The far ends differ more than the near ones, of which a guest has few.
        for (near, far) in [(&between.one, &between.other), (&between.other, &between.one)] {
            let candidates: Box<dyn Iterator<Item = H>> = match (near, far) {
                (_, Addresses::Prefix(net)) => {
                    let gid = |ip: IpAddr| Gid::from(ip);
                    Box::new(at(&self.by_remote, gid(net.network()), gid(net.broadcast())))
                }
                (_, Addresses::These(gids)) if gids.len() <= self.len() => {
                    Box::new(gids.iter().flat_map(|gid| at(&self.by_remote, *gid, *gid)))
                }
                (Addresses::These(gids), Addresses::Any) if gids.len() <= self.len() => {
                    Box::new(gids.iter().flat_map(|gid| at(&self.by_local, *gid, *gid)))
                }
                _ => Box::new(self.connections.keys().copied()),
            };
            covered.extend(candidates.filter(|h| self.get(*h).is_some_and(|c| between.covers(c))));
        }
    }
}

/// The handles at the addresses from `first` to `last`.
fn at<H: Copy + Ord>(
    index: &BTreeMap<Gid, BTreeSet<H>>,
    first: Gid,
    last: Gid,
) -> impl Iterator<Item = H> + use<'_, H> {
    index.range(first..=last).flat_map(|(_, handles)| handles.iter().copied())
}

fn forget<H: Ord>(index: &mut BTreeMap<Gid, BTreeSet<H>>, at: Gid, owner: H) {
    if let Some(handles) = index.get_mut(&at) {
        handles.remove(&owner);
        if handles.is_empty() {
            index.remove(&at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(last: u8) -> Gid {
        std::net::Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn v6(last: u16) -> Gid {
        std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into()
    }

    fn vni(n: u32) -> Vni {
        Vni::new(n).unwrap()
    }

    fn connection(net: u32, local: Gid, remote: Gid) -> Connection {
        Connection {
            vni: vni(net),
            transport: Transport::Rc,
            local,
            local_qpn: WireQpn::from_wire(10),
            remote,
            remote_qpn: WireQpn::from_wire(20),
            peer: format!("vnic-{}", remote.0[15]).as_str().into(),
            peer_host: "h2".into(),
            remote_address: [10, 77, 0, 1].into(),
            other_addresses: Vec::new(),
            allowed_by: "a rule".into(),
            since: Duration::ZERO,
        }
    }

    fn table() -> Conntrack<u32> {
        let mut t = Conntrack::default();
        t.insert(3, connection(1, gid(1), gid(2)));
        t.insert(1, connection(1, gid(1), gid(3)));
        t.insert(2, connection(2, gid(1), gid(2)));
        t.insert(5, connection(1, v6(1), v6(2)));
        t.insert(4, Connection { transport: Transport::Ud, ..connection(1, gid(2), gid(1)) });
        t
    }

    fn touched_by(touched: &Touched) -> Vec<u32> {
        table().reevaluate(touched, |_| Err(())).into_iter().map(|(h, ())| h).collect()
    }

    fn these(gids: &[Gid]) -> Addresses {
        Addresses::These(Arc::new(gids.iter().copied().collect()))
    }

    fn prefix(net: &str) -> Addresses {
        Addresses::Prefix(net.parse().unwrap())
    }

    /// What a change of a rule about network 1 touches.
    fn between(one: Addresses, other: Addresses, transport: Option<Transport>) -> Vec<u32> {
        let mut touched = Touched::nothing();
        touched.add_between(Between { vni: vni(1), one, other, transport });
        assert!(!touched.is_nothing());
        touched_by(&touched)
    }

    #[test]
    fn an_address_touches_the_connections_at_both_of_its_ends() {
        let mut t = Touched::nothing();
        assert!(t.is_nothing());
        assert_eq!(touched_by(&t), [0; 0]);
        t.add_address(vni(1), gid(3));
        assert!(!t.is_nothing());
        assert_eq!(touched_by(&t), [1]);
        t.add_address(vni(2), gid(1));
        assert_eq!(touched_by(&t), [1, 2], "the local address counts as well, in its network only");
        let mut merged = Touched::nothing();
        merged.add_address(vni(1), v6(2));
        merged.merge(t);
        assert_eq!(touched_by(&merged), [1, 2, 5]);
        // More addresses than connections.
        (100..200).for_each(|last| merged.add_address(vni(1), gid(last)));
        assert_eq!(touched_by(&merged), [1, 2, 5]);
        merged.merge(Touched::everything());
        assert_eq!(touched_by(&merged), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_rule_touches_the_connections_between_its_ends_in_either_direction() {
        use Addresses::Any;
        assert_eq!(between(Any, Any, None), [1, 3, 4, 5]);
        assert_eq!(between(Any, Any, Some(Transport::Ud)), [4]);
        assert_eq!(between(Any, Any, Some(Transport::Uc)), [0; 0]);
        for (one, other, expected) in [
            (these(&[gid(1)]), these(&[gid(2)]), vec![3, 4]),
            (these(&[gid(1)]), these(&[gid(1)]), vec![]),
            (these(&[]), Any, vec![]),
            (these(&[gid(3), gid(9)]), Any, vec![1]),
            (these(&[gid(2)]), prefix("10.0.0.0/24"), vec![3, 4]),
            (prefix("10.0.0.0/24"), prefix("10.0.0.2/31"), vec![1, 3, 4]),
            (Any, prefix("0.0.0.0/0"), vec![1, 3, 4]),
            (Any, prefix("::/0"), vec![5]),
            (Any, prefix("fd00::/16"), vec![5]),
            (Any, prefix("::ffff:10.0.0.0/120"), vec![]),
            // More of them than there are connections.
            (these(&(1..100).map(gid).collect::<Vec<_>>()), Any, vec![1, 3, 4]),
            (these(&(3..100).map(gid).collect::<Vec<_>>()), prefix("10.0.0.1/32"), vec![1]),
        ] {
            assert_eq!(between(one.clone(), other.clone(), None), expected, "{one:?} {other:?}");
            assert_eq!(between(other.clone(), one.clone(), None), expected, "{other:?} {one:?}");
        }
    }

    #[test]
    fn only_failed_judgements_are_revoked() {
        let judge = |c: &Connection| if c.remote == gid(2) { Err(c.peer.clone()) } else { Ok(()) };
        let t = table();
        let revoke = t.reevaluate(&Touched::everything(), judge);
        assert_eq!(revoke, [(2, "vnic-2".into()), (3, "vnic-2".into())]);
        assert_eq!(t.len(), 5, "they stay until they are removed");
    }

    #[test]
    fn an_owner_has_one_connection() {
        let mut t = table();
        assert_eq!(t.insert(1, connection(1, gid(1), gid(9))), Some(connection(1, gid(1), gid(3))));
        assert_eq!((t.len(), t.iter().count(), t.is_empty()), (5, 5, false));
        assert_eq!(t.get(1), Some(&connection(1, gid(1), gid(9))));
        assert_eq!(t.remove(1), Some(connection(1, gid(1), gid(9))));
        assert_eq!((t.remove(1), t.get(1)), (None, None));
        for owner in [2, 3, 4, 5] {
            assert!(t.remove(owner).is_some());
        }
        assert!(
            t.is_empty() && t.by_local.is_empty() && t.by_remote.is_empty(),
            "nothing is kept for nothing"
        );
    }
}
