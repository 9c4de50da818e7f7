//! What this host knows of desired and realised state, in memory: filled from a snapshot of the store
//! and kept up to date by its watch.
//!
//! | module | what is in it |
//! |---|---|
//! | `addresses` | which vNIC has which virtual address |
//! | `sources` | which vNIC sends from which underlay address and QPN |
//! | `groups` | the rules of security groups, and who is a member |
//! | `strangers` | what stands for machines that are no hosts of masq |
//! | `presence` | on which hosts the vNICs of a network are |
//! | `explain` | whether two ends may be connected, in words |

mod addresses;
mod explain;
mod groups;
mod presence;
mod sources;
mod strangers;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use masq_model::{
    DesiredState, Endpoint, Host, HostState, Key, Kind, Object, QosPolicy, SecurityGroup, StaticEndpoint,
    Vnic, Vpc,
};
use masq_policy::conntrack::Touched;
use masq_policy::rename::{Endpoints, Found, Peer};
use masq_policy::rules::{Datagrams, Groups, Party, Transport, Verdict};
use masq_types::{Gid, QpnBlock, Vni, WireQpn};

use crate::store::{Batch, Change, Snapshot};
use addresses::{Addresses, Owner};
pub use explain::{AskError, Question, Traffic};
use presence::Presence;
use sources::Sources;

/// See the module's text.
///
/// An address is found through the desired state: a vNIC that is not desired any more cannot be reached, and
/// an endpoint counts only where its vNIC is supposed to be.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    revision: u64,
    desired_revision: u64,
    objects: BTreeMap<Key, Object>,
    peers: HashMap<String, Peer>,
    addresses: Addresses,
    sources: Sources,
    /// Stands for the static endpoints whose network exists.
    strangers: HashMap<String, Endpoint>,
    /// The groups of each vNIC and static endpoint.
    groups_of: HashMap<String, Arc<[Arc<str>]>>,
    members: HashMap<String, BTreeSet<String>>,
    /// The addresses of groups' members, as far as the change that is being taken over has asked for them.
    member_sets: HashMap<String, Arc<HashSet<Gid>>>,
    groups: Groups,
    presence: Presence,
    /// vNICs and endpoints by host.
    on_host: HashMap<String, BTreeSet<Key>>,
    /// Rules that cannot be read.
    unreadable: BTreeSet<Key>,
}

/// What a batch of changes has done.
#[derive(Debug, Default)]
pub struct Delta {
    /// The connections that it can touch.
    pub touched: Touched,
    /// Entries that are no objects, and were ignored.
    pub bad: Vec<BadEntry>,
}

/// An entry of the store that is no object.
#[derive(Debug, thiserror::Error)]
#[error("ignoring the entry {key:?} of the store: {reason}")]
pub struct BadEntry {
    /// Its key.
    pub key: String,
    /// Why.
    pub reason: String,
}

impl Directory {
    /// An empty directory.
    pub fn new() -> Directory {
        Directory::default()
    }

    /// A directory of all entries of a store.
    pub fn from_snapshot(snapshot: &Snapshot) -> (Directory, Vec<BadEntry>) {
        let mut directory = Directory::new();
        let delta = directory.replace(snapshot);
        (directory, delta.bad)
    }

    /// Takes over all entries of a store, after a resync or a reading. Touches what differs.
    pub fn replace(&mut self, snapshot: &Snapshot) -> Delta {
        let mut changes: Vec<Change> = snapshot
            .entries
            .iter()
            .map(|e| Change::Put { key: e.key.clone(), value: e.value.clone() })
            .collect();
        let here: HashSet<&str> = snapshot.entries.iter().map(|e| e.key.as_str()).collect();
        let gone = self
            .objects
            .keys()
            .chain(&self.unreadable)
            .map(Key::to_string)
            .filter(|k| !here.contains(k.as_str()));
        changes.extend(gone.map(|key| Change::Delete { key }));
        self.change(&changes, snapshot.revision)
    }

    /// Takes over changes that a watch saw. Those older than the directory are ignored.
    pub fn apply(&mut self, batch: &Batch) -> Delta {
        if batch.revision <= self.revision {
            return Delta::default();
        }
        self.change(&batch.changes, batch.revision)
    }

    /// Revision of the store that the directory shows.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Revision of the last change of desired state that it shows.
    pub fn desired_revision(&self) -> u64 {
        self.desired_revision
    }

    /// All objects.
    pub fn objects(&self) -> impl Iterator<Item = (&Key, &Object)> {
        self.objects.iter()
    }

    /// One object.
    pub fn get(&self, kind: Kind, name: &str) -> Option<&Object> {
        self.objects.get(&Key::new(kind, name))
    }

    /// Rules that cannot be read, and so deny all traffic of their groups.
    pub fn unreadable(&self) -> impl Iterator<Item = &Key> {
        self.unreadable.iter()
    }

    /// A host.
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.get(Kind::Host, name)?.as_host()
    }

    /// A network.
    pub fn vpc(&self, name: &str) -> Option<&Vpc> {
        self.get(Kind::Vpc, name)?.as_vpc()
    }

    /// A security group.
    pub fn security_group(&self, name: &str) -> Option<&SecurityGroup> {
        self.get(Kind::SecurityGroup, name)?.as_security_group()
    }

    /// A QoS policy.
    pub fn qos_policy(&self, name: &str) -> Option<&QosPolicy> {
        self.get(Kind::QosPolicy, name)?.as_qos_policy()
    }

    /// A vNIC.
    pub fn vnic(&self, name: &str) -> Option<&Vnic> {
        self.get(Kind::Vnic, name)?.as_vnic()
    }

    /// A static endpoint. One that has the name of a vNIC does not count.
    pub fn static_endpoint(&self, name: &str) -> Option<&StaticEndpoint> {
        self.get(Kind::StaticEndpoint, name)?.as_static_endpoint().filter(|_| self.vnic(name).is_none())
    }

    /// The endpoint record of a vNIC, as its host wrote it.
    pub fn endpoint(&self, vnic: &str) -> Option<&Endpoint> {
        self.get(Kind::Endpoint, vnic)?.as_endpoint()
    }

    /// How far a host has come; absent when it is down.
    pub fn host_state(&self, host: &str) -> Option<&HostState> {
        self.get(Kind::HostState, host)?.as_host_state()
    }

    /// The vNICs that a host shall realise, by name.
    pub fn vnics_of_host(&self, host: &str) -> impl Iterator<Item = &Vnic> {
        self.of_host(host).filter_map(Object::as_vnic)
    }

    /// The endpoints that a host has realised, also of vNICs that it should not have any more, by name.
    pub fn endpoints_of_host(&self, host: &str) -> impl Iterator<Item = &Endpoint> {
        self.of_host(host).filter_map(Object::as_endpoint)
    }

    fn of_host(&self, host: &str) -> impl Iterator<Item = &Object> {
        self.on_host.get(host).into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// The blocks of QPNs that are taken on a host.
    pub fn used_blocks(&self, host: &str) -> Vec<QpnBlock> {
        self.endpoints_of_host(host).flat_map(|e| e.qpn_blocks.iter().copied()).collect()
    }

    /// The verdict about a connection of vNIC `vnic` in network `vni`, seen from its address `local`.
    pub fn evaluate(&self, vni: Vni, vnic: &str, transport: Transport, local: Gid, remote: Gid) -> Verdict {
        // Whoever has no groups is nobody's fellow member, and an address that nobody has is no vNIC.
        let peer = self.addresses.owner(vni, remote).unwrap_or_default();
        let local = Party { vnic, gid: local, groups: self.groups_of(vnic) };
        self.groups.evaluate(
            transport,
            local,
            Party { vnic: peer, gid: remote, groups: self.groups_of(peer) },
        )
    }

    /// What the rules say about datagrams between two vNICs of one network, or of one with itself, over these addresses
    /// of theirs.
    pub fn datagrams(&self, vnic: &str, local: Gid, peer: &str, remote: Gid) -> Datagrams {
        let local = Party { vnic, gid: local, groups: self.groups_of(vnic) };
        let remote = Party { vnic: peer, gid: remote, groups: self.groups_of(peer) };
        self.groups.datagrams(local, remote)
    }

    /// The endpoint of a vNIC in network `vni`, if it is where the vNIC is supposed to be; or what stands for a static endpoint.
    pub fn realised(&self, vni: Vni, name: &str) -> Option<&Endpoint> {
        match self.vnic(name) {
            Some(desired) => self.endpoint(name).filter(|e| e.vni == vni && desired.is_on(&e.host)),
            None => self.strangers.get(name).filter(|e| e.vni == vni),
        }
    }

    /// Whether this is the name of a static endpoint.
    pub fn is_stranger(&self, name: &str) -> bool {
        self.strangers.contains_key(name)
    }

    /// The realised vNIC, or static endpoint, of network `vni` that sends from this underlay address and QPN.
    pub fn source(&self, vni: Vni, address: IpAddr, qpn: WireQpn) -> Option<&Endpoint> {
        self.realised(vni, self.sources.find(vni, address, qpn)?)
    }

    fn groups_of(&self, vnic: &str) -> &[Arc<str>] {
        self.groups_of.get(vnic).map_or(&[], |groups| groups)
    }

    fn change(&mut self, changes: &[Change], revision: u64) -> Delta {
        let mut delta = Delta::default();
        let mut desired = false;
        for change in changes {
            let key: Key = match change.key().parse() {
                Ok(key) => key,
                Err(e) => {
                    delta.bad.push(BadEntry { key: change.key().into(), reason: format!("{e}") });
                    continue;
                }
            };
            let new = match change {
                Change::Delete { .. } => None,
                Change::Put { value, .. } => match Object::from_entry(&key, value) {
                    Ok(object) => Some(object),
                    Err(e) => {
                        delta.bad.push(BadEntry { key: change.key().into(), reason: e.to_string() });
                        self.mark_unreadable(&key, &mut delta.touched);
                        None
                    }
                },
            };
            if new.is_some() || matches!(change, Change::Delete { .. }) {
                self.unmark_unreadable(&key, &mut delta.touched);
            }
            if self.objects.get(&key) == new.as_ref() {
                continue;
            }
            desired |= key.kind().is_desired();
            self.set(key, new, &mut delta.touched);
        }
        self.member_sets.clear();
        self.revision = revision;
        if desired {
            self.desired_revision = revision;
        }
        delta
    }

    /// Puts another object, or none, under a key; adds what that touches.
    fn set(&mut self, key: Key, new: Option<Object>, touched: &mut Touched) {
        let old = match &new {
            Some(object) => self.objects.insert(key.clone(), object.clone()),
            None => self.objects.remove(&key),
        };
        self.presence.change(old.as_ref(), new.as_ref());
        if let Some(host) = old.as_ref().and_then(host_of)
            && let Some(keys) = self.on_host.get_mut(host)
        {
            keys.remove(&key);
        }
        if let Some(host) = new.as_ref().and_then(host_of) {
            self.on_host.entry(host.into()).or_default().insert(key.clone());
        }
        match key.kind() {
            // Endpoints carry their own underlay addresses; how far hosts have come concerns nobody here.
            Kind::Host | Kind::HostState | Kind::QosPolicy => {}
            // A network's identifier may have changed, or a vNIC's network come later than the vNIC.
            Kind::Vpc => self.vpc_changed(key.name(), touched),
            Kind::SecurityGroup => self.touch_members(key.name(), touched),
            Kind::SecurityGroupRule => {
                if let Some(object) = &old {
                    self.remove_rule(object, touched);
                }
                if let Some(object) = &new {
                    self.add_rule(object, touched);
                }
            }
            Kind::Vnic => self.vnic_changed(key.name(), old.as_ref(), touched),
            Kind::StaticEndpoint => {
                let groups =
                    old.as_ref().and_then(Object::as_static_endpoint).map(|s| &s.security_groups[..]);
                self.party_changed(key.name(), groups.unwrap_or_default(), touched);
            }
            Kind::Endpoint => {
                if let Some(e) = old.as_ref().and_then(Object::as_endpoint) {
                    self.sources.remove(e);
                }
                self.endpoint_changed(key.name(), new, touched);
            }
        }
    }

    fn vpc_changed(&mut self, vpc: &str, touched: &mut Touched) {
        *touched = Touched::everything();
        let its = |o: &Object| match o {
            Object::Vnic(v) => v.vpc == vpc,
            Object::StaticEndpoint(s) => s.vpc == vpc,
            _ => false,
        };
        let parties: Vec<String> =
            self.objects.values().filter(|o| its(o)).map(|o| o.key().name().to_owned()).collect();
        for name in parties {
            self.stand_in(&name);
            self.place(&name, &mut Touched::nothing());
        }
    }

    fn vnic_changed(&mut self, name: &str, old: Option<&Object>, touched: &mut Touched) {
        let old = old.and_then(Object::as_vnic);
        let same = |a: &Vnic, b: &Vnic| {
            let unrelated = Vnic { qos_policy: b.qos_policy.clone(), quota: b.quota, ..a.clone() };
            unrelated == *b
        };
        if let (Some(old), Some(new)) = (old, self.vnic(name))
            && same(old, new)
        {
            return;
        }
        self.party_changed(name, old.map(|v| &v.security_groups[..]).unwrap_or_default(), touched);
    }

    /// A vNIC or a static endpoint has changed, which was a member of the groups `old`.
    fn party_changed(&mut self, name: &str, old: &[String], touched: &mut Touched) {
        self.member_sets.clear();
        for group in old {
            if let Some(members) = self.members.get_mut(group) {
                members.remove(name);
            }
        }
        let vnic = self.vnic(name).map(|v| &v.security_groups);
        match vnic.or_else(|| self.static_endpoint(name).map(|s| &s.security_groups)).cloned() {
            Some(groups) => {
                for group in &groups {
                    self.members.entry(group.clone()).or_default().insert(name.into());
                }
                let groups = groups.iter().map(|g| Arc::from(g.as_str())).collect();
                self.groups_of.insert(name.into(), groups);
            }
            None => {
                self.groups_of.remove(name);
            }
        }
        self.stand_in(name);
        self.place(name, touched);
    }

    fn endpoint_changed(&mut self, vnic: &str, new: Option<Object>, touched: &mut Touched) {
        match &new {
            Some(Object::Endpoint(e)) => {
                self.sources.add(e);
                self.peers.insert(vnic.into(), peer(e, false));
            }
            _ => {
                self.peers.remove(vnic);
            }
        }
        self.place(vnic, touched);
    }

    /// Notes where a vNIC is now, and touches the connections to where it was and is.
    fn place(&mut self, name: &str, touched: &mut Touched) {
        let claims = self.claims(name);
        for (vni, gid) in self.addresses.claims_of(name).iter().chain(&claims) {
            touched.add_address(*vni, gid.gid());
        }
        self.addresses.set(name, claims);
        self.member_sets.clear();
    }
}

impl Endpoints for Directory {
    fn find(&self, vni: Vni, gid: Gid) -> Found<'_> {
        let name = match self.addresses.find(vni, gid) {
            Owner::Nobody => return Found::Unknown,
            Owner::Several(vnic, other) => return Found::Contested { vnic, other },
            Owner::One(name) => name,
        };
        match (self.realised(vni, name), self.peers.get(name), self.vnic(name)) {
            (Some(_), Some(peer), _) => Found::Realised(peer),
            (_, _, Some(vnic)) => Found::Desired { vnic: name, host: vnic.host.as_deref() },
            (_, _, None) => Found::Unknown,
        }
    }
}

fn host_of(object: &Object) -> Option<&str> {
    match object {
        Object::Vnic(v) => v.host.as_deref(),
        Object::Endpoint(e) => Some(&e.host),
        _ => None,
    }
}

fn peer(e: &Endpoint, is_stranger: bool) -> Peer {
    Peer {
        vnic: Arc::from(e.vnic.as_str()),
        host: Arc::from(e.host.as_str()),
        addresses: e.addresses.clone(),
        qpn_blocks: e.qpn_blocks.clone(),
        features: e.features,
        generation: e.generation,
        is_stranger,
    }
}

/// A directory that shows a desired state of which nothing is realised.
impl From<&DesiredState> for Directory {
    fn from(desired: &DesiredState) -> Directory {
        let put =
            |(key, object): (&Key, &Object)| Change::Put { key: key.to_string(), value: object.to_json() };
        let mut directory = Directory::new();
        directory.change(&desired.objects().iter().map(put).collect::<Vec<_>>(), 0);
        directory
    }
}
