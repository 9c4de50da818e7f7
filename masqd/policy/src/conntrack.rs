//! The connections of a guest: who is connected to whom, and which of them a change touches.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use masq_types::{Gid, Vni, WireQpn};

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its network.
    pub vni: Vni,
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
    /// The peer's underlay address.
    pub remote_address: IpAddr,
}

/// What a change of desired or realised state can have touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    everything: bool,
    networks: HashSet<Vni>,
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

    /// Adds all connections of a network (its rules changed).
    pub fn add_network(&mut self, vni: Vni) {
        self.networks.insert(vni);
    }

    /// Adds the connections to and from an address (its endpoint changed).
    pub fn add_address(&mut self, vni: Vni, gid: Gid) {
        self.addresses.insert((vni, gid));
    }

    /// Adds everything that `other` names.
    pub fn merge(&mut self, other: Touched) {
        self.everything |= other.everything;
        self.networks.extend(other.networks);
        self.addresses.extend(other.addresses);
    }

    /// Whether it touches nothing.
    pub fn is_nothing(&self) -> bool {
        !self.everything && self.networks.is_empty() && self.addresses.is_empty()
    }

    /// Whether `c` may be touched.
    pub fn covers(&self, c: &Connection) -> bool {
        self.everything
            || self.networks.contains(&c.vni)
            || self.addresses.contains(&(c.vni, c.remote))
            || self.addresses.contains(&(c.vni, c.local))
    }
}

/// Connections by the handle of the queue pair that has them.
#[derive(Clone, Debug)]
pub struct Conntrack<H> {
    connections: HashMap<H, Connection>,
}

impl<H> Default for Conntrack<H> {
    fn default() -> Self {
        Conntrack { connections: HashMap::new() }
    }
}

impl<H: Copy + Eq + Hash + Ord> Conntrack<H> {
    /// A queue pair is connected; returns the connection that it had before.
    pub fn insert(&mut self, owner: H, connection: Connection) -> Option<Connection> {
        self.connections.insert(owner, connection)
    }

    /// A queue pair is not connected any more.
    pub fn remove(&mut self, owner: H) -> Option<Connection> {
        self.connections.remove(&owner)
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
        if touched.is_nothing() {
            return Vec::new();
        }
        let covered = self.iter().filter(|(_, c)| touched.covers(c));
        let mut revoke: Vec<(H, R)> = covered.filter_map(|(h, c)| Some((h, judge(c).err()?))).collect();
        revoke.sort_by_key(|(h, _)| *h);
        revoke
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(last: u8) -> Gid {
        std::net::Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn vni(n: u32) -> Vni {
        Vni::new(n).unwrap()
    }

    fn connection(net: u32, local: u8, remote: u8) -> Connection {
        let q = WireQpn::from_wire;
        let peer = format!("vnic-{remote}").as_str().into();
        Connection {
            vni: vni(net),
            local: gid(local),
            local_qpn: q(10),
            remote: gid(remote),
            remote_qpn: q(20),
            peer,
            remote_address: [10, 77, 0, remote].into(),
        }
    }

    fn table() -> Conntrack<u32> {
        let mut t = Conntrack::default();
        t.insert(3, connection(1, 1, 2));
        t.insert(1, connection(1, 1, 3));
        t.insert(2, connection(2, 1, 2));
        t
    }

    fn touched_by(touched: &Touched) -> Vec<u32> {
        table().reevaluate(touched, |_| Err(())).into_iter().map(|(h, ())| h).collect()
    }

    #[test]
    fn a_change_touches_just_its_own_connections() {
        let mut t = Touched::nothing();
        assert_eq!(touched_by(&t), [0; 0]);
        t.add_address(vni(1), gid(2));
        assert_eq!(touched_by(&t), [3]);
        t.add_address(vni(2), gid(1));
        assert_eq!(touched_by(&t), [2, 3], "the local address counts as well");
        t.add_network(vni(1));
        assert_eq!(touched_by(&t), [1, 2, 3]);
        assert_eq!(touched_by(&Touched::everything()), [1, 2, 3]);
        let mut merged = Touched::nothing();
        merged.merge(t);
        assert_eq!(touched_by(&merged), [1, 2, 3]);
    }

    #[test]
    fn only_failed_judgements_are_revoked() {
        let judge = |c: &Connection| if c.remote == gid(2) { Err(c.peer.clone()) } else { Ok(()) };
        let revoke = table().reevaluate(&Touched::everything(), judge);
        assert_eq!(revoke, [(2, "vnic-2".into()), (3, "vnic-2".into())]);
    }

    #[test]
    fn an_owner_has_one_connection() {
        let mut t = table();
        assert_eq!(t.insert(1, connection(1, 1, 9)), Some(connection(1, 1, 3)));
        assert_eq!(t.len(), 3);
        assert_eq!(t.remove(1), Some(connection(1, 1, 9)));
        assert_eq!((t.remove(1), t.get(1)), (None, None));
        assert!(!t.is_empty());
    }
}
