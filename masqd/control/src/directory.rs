use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use masq_model::{DesiredState, Endpoint, Host, Key, Kind, Object, Rule, Vnic, Vpc};
use masq_policy::conntrack::Touched;
use masq_policy::rename::{Endpoints, Found, Peer};
use masq_policy::rules::{self, Allowed, RuleSet, Verdict};
use masq_types::{Gid, QpnBlock, Vni};

use crate::store::{Batch, Change, Snapshot};

/// What this host knows of desired and realised state, in memory: filled from a snapshot of the store
/// and kept up to date by its watch.
///
/// An address is found through the desired state: a vNIC that is not desired any more cannot be reached, and
/// an endpoint counts only where its vNIC is supposed to be.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    revision: u64,
    objects: BTreeMap<Key, Object>,
    peers: HashMap<String, Peer>,
    owners: HashMap<(Vni, Gid), Owner>,
    rules: HashMap<Vni, RuleSet>,
    /// Rules that cannot be read.
    unreadable: BTreeSet<Key>,
}

/// Whose address it is.
#[derive(Clone, Debug)]
enum Owner {
    One(String),
    /// Two vNICs claim it.
    Contested(String, String),
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
        let delta = self.change(&changes);
        self.revision = snapshot.revision;
        delta
    }

    /// Takes over changes that a watch saw. Those older than the directory are ignored.
    pub fn apply(&mut self, batch: &Batch) -> Delta {
        if batch.revision <= self.revision {
            return Delta::default();
        }
        let delta = self.change(&batch.changes);
        self.revision = batch.revision;
        delta
    }

    /// Revision of the store that the directory shows.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All objects.
    pub fn objects(&self) -> impl Iterator<Item = (&Key, &Object)> {
        self.objects.iter()
    }

    /// A host.
    pub fn host(&self, name: &str) -> Option<&Host> {
        match self.objects.get(&Key::host(name)) {
            Some(Object::Host(h)) => Some(h),
            _ => None,
        }
    }

    /// A network.
    pub fn vpc(&self, name: &str) -> Option<&Vpc> {
        match self.objects.get(&Key::vpc(name)) {
            Some(Object::Vpc(v)) => Some(v),
            _ => None,
        }
    }

    /// A vNIC.
    pub fn vnic(&self, name: &str) -> Option<&Vnic> {
        match self.objects.get(&Key::vnic(name)) {
            Some(Object::Vnic(v)) => Some(v),
            _ => None,
        }
    }

    /// The endpoint record of a vNIC, as its host wrote it.
    pub fn endpoint(&self, vnic: &str) -> Option<&Endpoint> {
        match self.objects.get(&Key::endpoint(vnic)) {
            Some(Object::Endpoint(e)) => Some(e),
            _ => None,
        }
    }

    /// The vNICs that a host shall realise, by name.
    pub fn vnics_of_host<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Vnic> {
        self.objects.values().filter_map(move |o| match o {
            Object::Vnic(v) if v.host == host => Some(v),
            _ => None,
        })
    }

    /// The endpoints that a host has realised, also of vNICs that it should not have any more, by name.
    pub fn endpoints_of_host<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Endpoint> {
        self.objects.values().filter_map(move |o| match o {
            Object::Endpoint(e) if e.host == host => Some(e),
            _ => None,
        })
    }

    /// The blocks of QPNs that are taken on a host.
    pub fn used_blocks(&self, host: &str) -> Vec<QpnBlock> {
        self.endpoints_of_host(host).flat_map(|e| e.qpn_blocks.iter().copied()).collect()
    }

    /// The verdict about a connection of vNIC `vnic` in network `vni`, seen from its address `local`.
    pub fn evaluate(&self, vni: Vni, vnic: &str, local: Gid, remote: Gid) -> Verdict {
        if matches!(self.owners.get(&(vni, remote)), Some(Owner::One(owner)) if owner == vnic) {
            return Verdict::Allow(Allowed::SameVnic);
        }
        static NO_RULES: std::sync::LazyLock<RuleSet> = std::sync::LazyLock::new(RuleSet::default);
        self.rules.get(&vni).unwrap_or(&NO_RULES).evaluate(local, remote)
    }

    fn change(&mut self, changes: &[Change]) -> Delta {
        let mut delta = Delta::default();
        let mut renamed = false;
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
            let old = match new {
                Some(ref object) => self.objects.insert(key, object.clone()),
                None => self.objects.remove(&key),
            };
            for object in [old.as_ref(), new.as_ref()].into_iter().flatten() {
                renamed |= matches!(object, Object::Vpc(_) | Object::Vnic(_));
                self.touch(object, &mut delta.touched);
            }
            match (old, new) {
                (_, Some(Object::Endpoint(e))) => {
                    self.peers.insert(e.vnic.clone(), peer(&e));
                }
                (Some(Object::Endpoint(e)), None) => {
                    self.peers.remove(&e.vnic);
                }
                _ => {}
            }
        }
        if renamed {
            self.index_addresses();
        }
        if renamed || !delta.touched.is_nothing() {
            self.index_rules();
        }
        delta
    }

    /// An unreadable entry counts as absent, save for a rule: what it says may be to deny.
    fn mark_unreadable(&mut self, key: &Key, touched: &mut Touched) {
        if key.kind() == Kind::Rule && self.unreadable.insert(key.clone()) {
            *touched = Touched::everything();
        }
    }

    fn unmark_unreadable(&mut self, key: &Key, touched: &mut Touched) {
        if self.unreadable.remove(key) {
            *touched = Touched::everything();
        }
    }

    /// What a change from or to `object` touches.
    fn touch(&self, object: &Object, touched: &mut Touched) {
        match object {
            // Endpoints carry their own underlay addresses.
            Object::Host(_) => {}
            // A network's identifier may have changed, or a vNIC's network come later than the vNIC.
            Object::Vpc(_) => *touched = Touched::everything(),
            Object::Rule(r) => {
                if let Some(vpc) = self.vpc(&r.vpc) {
                    touched.add_network(vpc.vni);
                }
            }
            Object::Vnic(v) => {
                if let Some(vpc) = self.vpc(&v.vpc) {
                    v.gids().into_iter().for_each(|gid| touched.add_address(vpc.vni, gid));
                }
            }
            Object::Endpoint(e) => {
                let vnic = self.vnic(&e.vnic);
                let desired = vnic.map(Vnic::gids).unwrap_or_default();
                e.gids.iter().chain(&desired).for_each(|gid| touched.add_address(e.vni, *gid));
            }
        }
    }

    fn index_addresses(&mut self) {
        let mut owners: HashMap<(Vni, Gid), Owner> = HashMap::new();
        for object in self.objects.values() {
            let Object::Vnic(v) = object else { continue };
            let Some(vpc) = self.vpc(&v.vpc) else { continue };
            for gid in v.gids() {
                owners
                    .entry((vpc.vni, gid))
                    .and_modify(|owner| {
                        if let Owner::One(first) = owner {
                            *owner = Owner::Contested(std::mem::take(first), v.name.clone());
                        }
                    })
                    .or_insert_with(|| Owner::One(v.name.clone()));
            }
        }
        self.owners = owners;
    }

    fn index_rules(&mut self) {
        let mut rules: HashMap<Vni, Vec<rules::Rule>> = HashMap::new();
        for object in self.objects.values() {
            let Object::Rule(r) = object else { continue };
            let Some(vpc) = self.vpc(&r.vpc) else { continue };
            rules.entry(vpc.vni).or_default().push(policy_rule(r));
        }
        for key in &self.unreadable {
            let vpc = key.name().split('/').next().and_then(|vpc| self.vpc(vpc));
            let Some(vpc) = vpc else { continue };
            rules.entry(vpc.vni).or_default().extend(deny_everything(key));
        }
        self.rules = rules.into_iter().map(|(vni, rules)| (vni, RuleSet::new(rules))).collect();
    }
}

impl Endpoints for Directory {
    fn find(&self, vni: Vni, gid: Gid) -> Found<'_> {
        let name = match self.owners.get(&(vni, gid)) {
            None => return Found::Unknown,
            Some(Owner::Contested(vnic, other)) => return Found::Contested { vnic, other },
            Some(Owner::One(name)) => name,
        };
        let Some(vnic) = self.vnic(name) else { return Found::Unknown };
        let realised = self.endpoint(name).filter(|e| e.vni == vni && e.host == vnic.host);
        match (realised, self.peers.get(name)) {
            (Some(_), Some(peer)) => Found::Realised(peer),
            _ => Found::Desired { vnic: name, host: &vnic.host },
        }
    }
}

fn peer(e: &Endpoint) -> Peer {
    Peer {
        vnic: Arc::from(e.vnic.as_str()),
        host: Arc::from(e.host.as_str()),
        addresses: e.addresses.clone(),
        qpn_blocks: e.qpn_blocks.clone(),
        generation: e.generation,
    }
}

fn policy_rule(r: &Rule) -> rules::Rule {
    rules::Rule {
        name: Arc::from(r.name.as_str()),
        priority: r.priority,
        source: r.source,
        destination: r.destination,
        action: match r.action {
            masq_model::Action::Allow => rules::Action::Allow,
            masq_model::Action::Deny => rules::Action::Deny,
        },
    }
}

/// What stands in for a rule that cannot be read.
fn deny_everything(key: &Key) -> [rules::Rule; 2] {
    let name: Arc<str> = Arc::from(format!("{} (unreadable)", key.name()));
    let any = [IpNet::from(Ipv4Net::default()), IpNet::from(Ipv6Net::default())];
    any.map(|net| rules::Rule {
        name: name.clone(),
        priority: 0,
        source: net,
        destination: net,
        action: rules::Action::Deny,
    })
}

/// A directory that shows a desired state of which nothing is realised.
impl From<&DesiredState> for Directory {
    fn from(desired: &DesiredState) -> Directory {
        let put =
            |(key, object): (Key, Object)| Change::Put { key: key.to_string(), value: object.to_json() };
        let mut directory = Directory::new();
        directory.change(&desired.objects().into_iter().map(put).collect::<Vec<_>>());
        directory
    }
}
