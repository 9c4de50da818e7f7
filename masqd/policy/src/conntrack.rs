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
    /// The peer's underlay address.
    pub remote_address: IpAddr,
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
        self.between.push(between);
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
