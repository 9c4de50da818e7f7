//! A whole desired state: kept consistent, changed in time proportional to the change.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

use masq_types::{Gid, MacAddr, Vni};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::problem::excerpt;
use crate::validate::{check, missing};
use crate::{
    Host, Key, Kind, Object, Problem, Problems, QosPolicy, SecurityGroup, SecurityGroupRule, StaticEndpoint,
    Vnic, Vpc,
};

/// A desired state. Parsed from a declarative file it is consistent, and each [`edit`](Self::edit) keeps it so;
/// taken from a store with [`from_objects`](Self::from_objects) it is what the store holds.
#[derive(Clone, Debug, Default)]
pub struct DesiredState {
    objects: BTreeMap<Key, Object>,
    /// Who has a value that only one may have.
    claims: HashMap<Claim, BTreeSet<Key>>,
    /// Who refers to an object.
    referrers: HashMap<Key, BTreeSet<Key>>,
}

/// One change of a desired state.
#[expect(clippy::large_enum_variant, reason = "nearly all changes are puts")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// This object shall be; it replaces the one with its key.
    Put(Object),
    /// The object with this key shall not be.
    Delete(Key),
}

/// A value that at most one object may have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Claim {
    /// The name of somebody who has virtual addresses.
    Party(String),
    /// An underlay address, also of an alias.
    Underlay(IpAddr),
    /// The identifier of a network.
    Vni(Vni),
    /// A MAC address in a network.
    Mac(String, MacAddr),
    /// A virtual address in a network.
    Gid(String, Gid),
    /// A dedicated alias.
    Dedicated(IpAddr),
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Claim::Underlay(address) | Claim::Dedicated(address) => address.fmt(f),
            Claim::Party(name) => name.fmt(f),
            Claim::Vni(vni) => vni.fmt(f),
            Claim::Mac(_, mac) => mac.fmt(f),
            Claim::Gid(_, gid) => gid.fmt(f),
        }
    }
}

impl DesiredState {
    /// Parses the declarative file in TOML. Reports everything that is wrong with it.
    pub fn from_toml(text: &str) -> Result<DesiredState, Problems> {
        Self::from_file(toml::from_str(text).map_err(|e| Problems::Syntax(excerpt(&e.to_string())))?)
    }

    /// Parses the declarative file in JSON: `{"host": [...], "vpc": [...], "vnic": [...], ...}`.
    pub fn from_json(text: &str) -> Result<DesiredState, Problems> {
        let syntax = |e: serde_json::Error| {
            let (message, place) = (e.to_string(), format!(" at line {} column {}", e.line(), e.column()));
            Problems::Syntax(match message.strip_suffix(&place) {
                Some(what) => excerpt(what) + &place,
                None => excerpt(&message),
            })
        };
        Self::from_file(serde_json::from_str(text).map_err(syntax)?)
    }

    /// What a store holds, unchecked; realised state is left out.
    pub fn from_objects(objects: impl IntoIterator<Item = Object>) -> DesiredState {
        let mut state = DesiredState::default();
        objects.into_iter().filter(|o| o.key().kind().is_desired()).for_each(|o| state.insert(o));
        state
    }

    fn from_file(file: DesiredFile) -> Result<DesiredState, Problems> {
        let mut problems = Vec::new();
        let mut edits = Vec::new();
        let mut keys = BTreeSet::new();
        let mut unreadable = HashSet::new();
        for (kind, list) in file.lists() {
            for (i, value) in list.into_iter().enumerate() {
                let label = label(kind, i, &value);
                match Object::from_value(kind, value) {
                    Ok(object) => {
                        if !keys.insert(object.key()) {
                            let (field, reason) = ("name".into(), format!("another {kind} has this name"));
                            problems.push(Problem { object: label, field, reason });
                        }
                        edits.push(Edit::Put(object));
                    }
                    Err(e) => {
                        unreadable.insert(missing(&label));
                        problems.push(Problem { object: label, field: e.field, reason: e.reason });
                    }
                }
            }
        }
        let mut state = DesiredState::default();
        if let Err(mut more) = state.edit(edits) {
            // What could not be read is not missing.
            more.retain(|p| !unreadable.contains(&p.reason));
            problems.extend(more);
        }
        if problems.is_empty() { Ok(state) } else { Err(Problems::Content(problems)) }
    }

    /// Makes all changes, or none if the state were not consistent afterwards: then the problems. Looks only at the objects
    /// that change and at those that refer to them.
    pub fn edit(&mut self, edits: Vec<Edit>) -> Result<(), Vec<Problem>> {
        let mut before = Vec::with_capacity(edits.len());
        let mut touched = BTreeSet::new();
        for edit in edits {
            let key = match &edit {
                Edit::Put(object) => object.key(),
                Edit::Delete(key) => key.clone(),
            };
            before.push((key.clone(), self.remove(&key)));
            touched.insert(key);
            if let Edit::Put(object) = edit {
                self.insert(object);
            }
        }
        let problems = self.problems_of(&touched);
        if problems.is_empty() {
            return Ok(());
        }
        for (key, old) in before.into_iter().rev() {
            self.remove(&key);
            old.into_iter().for_each(|object| self.insert(object));
        }
        Err(problems)
    }

    /// What is wrong with these objects, and with those that refer to them.
    fn problems_of(&self, touched: &BTreeSet<Key>) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut affected = touched.clone();
        for key in touched {
            let referrers = self.referrers.get(key);
            if self.objects.contains_key(key) {
                affected.extend(referrers.into_iter().flatten().cloned());
            } else if let Some(first) = referrers.and_then(BTreeSet::first) {
                // Who refers to it and has changed itself is told so below.
                if !touched.contains(first) {
                    let others = match referrers.map_or(0, BTreeSet::len) {
                        1 => "is still in use by".to_owned(),
                        n => format!("is still in use by {n} objects, one of which is"),
                    };
                    let reason = format!("it {others} {}", first.label());
                    problems.push(Problem { object: key.label(), field: "name".into(), reason });
                }
            }
        }
        for object in affected.iter().filter_map(|key| self.objects.get(key)) {
            check(self, object, &mut problems);
        }
        problems
    }

    fn insert(&mut self, object: Object) {
        let key = object.key();
        for (_, claim) in object.claims() {
            self.claims.entry(claim).or_default().insert(key.clone());
        }
        for referred in object.refers_to() {
            self.referrers.entry(referred).or_default().insert(key.clone());
        }
        self.objects.insert(key, object);
    }

    fn remove(&mut self, key: &Key) -> Option<Object> {
        let object = self.objects.remove(key)?;
        for (_, claim) in object.claims() {
            forget(&mut self.claims, &claim, key);
        }
        for referred in object.refers_to() {
            forget(&mut self.referrers, &referred, key);
        }
        Some(object)
    }

    /// Another object that makes the same claim.
    pub(crate) fn other_claimant(&self, claim: &Claim, key: &Key) -> Option<&Key> {
        self.claims.get(claim)?.iter().find(|k| *k != key)
    }

    /// All objects by key.
    pub fn objects(&self) -> &BTreeMap<Key, Object> {
        &self.objects
    }

    /// The objects of a kind by name.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&Key, &Object)> {
        self.objects.range(Key::new(kind, "")..).take_while(move |(k, _)| k.kind() == kind)
    }

    /// One object.
    pub fn get(&self, kind: Kind, name: &str) -> Option<&Object> {
        self.objects.get(&Key::new(kind, name))
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

    /// A static endpoint.
    pub fn static_endpoint(&self, name: &str) -> Option<&StaticEndpoint> {
        self.get(Kind::StaticEndpoint, name)?.as_static_endpoint()
    }
}

/// The form of the declarative file: lists of objects by kind, in TOML or JSON.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DesiredFile {
    #[schema(value_type = Vec<Host>)]
    host: Vec<Value>,
    #[schema(value_type = Vec<Vpc>)]
    vpc: Vec<Value>,
    #[schema(value_type = Vec<SecurityGroup>)]
    security_group: Vec<Value>,
    #[schema(value_type = Vec<SecurityGroupRule>)]
    security_group_rule: Vec<Value>,
    #[schema(value_type = Vec<QosPolicy>)]
    qos_policy: Vec<Value>,
    #[schema(value_type = Vec<Vnic>)]
    vnic: Vec<Value>,
    #[schema(value_type = Vec<StaticEndpoint>)]
    static_endpoint: Vec<Value>,
}

impl DesiredFile {
    fn lists(self) -> [(Kind, Vec<Value>); 7] {
        [
            (Kind::Host, self.host),
            (Kind::Vpc, self.vpc),
            (Kind::SecurityGroup, self.security_group),
            (Kind::SecurityGroupRule, self.security_group_rule),
            (Kind::QosPolicy, self.qos_policy),
            (Kind::Vnic, self.vnic),
            (Kind::StaticEndpoint, self.static_endpoint),
        ]
    }
}

/// How messages call the object at a position of the file, which may turn out to be none.
fn label(kind: Kind, i: usize, value: &Value) -> String {
    let text = |field| value.get(field).and_then(Value::as_str);
    match (text("name"), text("security_group")) {
        (None, _) => format!("{kind} number {}", i + 1),
        (Some(name), Some(group)) if kind == Kind::SecurityGroupRule => Key::rule(group, name).label(),
        (Some(name), _) => Key::new(kind, name).label(),
    }
}

fn forget<K: std::hash::Hash + Eq>(map: &mut HashMap<K, BTreeSet<Key>>, at: &K, key: &Key) {
    if let Some(keys) = map.get_mut(at) {
        keys.remove(key);
        if keys.is_empty() {
            map.remove(at);
        }
    }
}

/// States are equal when their objects are.
impl PartialEq for DesiredState {
    fn eq(&self, other: &Self) -> bool {
        self.objects == other.objects
    }
}

impl Eq for DesiredState {}

impl Object {
    /// The values of the object that no other may have, each with its field.
    pub(crate) fn claims(&self) -> Vec<(&'static str, Claim)> {
        match self {
            Object::Host(h) => {
                let underlay = h.underlay.iter().map(|a| ("underlay", Claim::Underlay(*a)));
                let aliases = h.aliases.iter().map(|a| ("aliases", Claim::Underlay(a.address.addr())));
                underlay.chain(aliases).collect()
            }
            Object::Vpc(v) => vec![("vni", Claim::Vni(v.vni))],
            Object::Vnic(v) => {
                let gid = |ip| Claim::Gid(v.vpc.clone(), Gid::from(ip));
                let mut claims = vec![
                    ("name", Claim::Party(v.name.clone())),
                    ("mac", Claim::Mac(v.vpc.clone(), v.mac)),
                    ("mac", gid(v.mac.link_local().into())),
                ];
                claims.extend(v.addresses.iter().map(|a| ("addresses", gid(*a))));
                claims.extend(v.dedicated_alias.map(|a| ("dedicated_alias", Claim::Dedicated(a))));
                claims
            }
            Object::StaticEndpoint(s) => {
                let gid = |ip| Claim::Gid(s.vpc.clone(), Gid::from(ip));
                let mut claims = vec![
                    ("name", Claim::Party(s.name.clone())),
                    ("underlay_address", Claim::Underlay(s.underlay_address)),
                ];
                claims.extend(s.addresses.iter().map(|a| ("addresses", gid(*a))));
                claims
            }
            _ => Vec::new(),
        }
    }

    /// The objects that must exist for this one to make sense.
    pub(crate) fn refers_to(&self) -> Vec<Key> {
        match self {
            Object::SecurityGroup(g) => vec![Key::new(Kind::Vpc, &g.vpc)],
            Object::SecurityGroupRule(r) => {
                let groups = [Some(&r.security_group), r.remote_group.as_ref()];
                groups.into_iter().flatten().map(|g| Key::new(Kind::SecurityGroup, g)).collect()
            }
            Object::Vnic(v) => {
                let mut keys = vec![Key::new(Kind::Vpc, &v.vpc)];
                keys.extend(v.host.iter().map(|h| Key::new(Kind::Host, h)));
                keys.extend(v.security_groups.iter().map(|g| Key::new(Kind::SecurityGroup, g)));
                keys.extend(v.qos_policy.iter().map(|q| Key::new(Kind::QosPolicy, q)));
                keys
            }
            Object::StaticEndpoint(s) => {
                let groups = s.security_groups.iter().map(|g| Key::new(Kind::SecurityGroup, g));
                [Key::new(Kind::Vpc, &s.vpc)].into_iter().chain(groups).collect()
            }
            Object::Host(_) | Object::Vpc(_) | Object::QosPolicy(_) => Vec::new(),
            Object::Endpoint(_) | Object::HostState(_) => Vec::new(),
        }
    }
}
