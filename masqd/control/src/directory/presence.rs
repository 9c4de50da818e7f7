//! On which hosts the vNICs of a network shall be or still are, and those that use a QoS policy.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use masq_model::Object;
use masq_types::Vni;

use super::Directory;

/// Counts vNICs by host, so that what a change concerns is found without looking at all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Presence {
    vpcs: HashMap<String, BTreeMap<String, usize>>,
    policies: HashMap<String, BTreeMap<String, usize>>,
    /// Endpoints: a host has let a vNIC go when it has withdrawn its endpoint.
    endpoints: HashMap<Vni, BTreeMap<String, usize>>,
}

impl Presence {
    /// Another vNIC or endpoint, or none, has taken the place of one.
    pub(super) fn change(&mut self, old: Option<&Object>, new: Option<&Object>) {
        if let Some(object) = new {
            self.each(object, |hosts, host| *hosts.entry(host.into()).or_default() += 1);
        }
        if let Some(object) = old {
            self.each(object, |hosts, host| {
                if let Some(count) = hosts.get_mut(host) {
                    *count -= 1;
                    if *count == 0 {
                        hosts.remove(host);
                    }
                }
            });
        }
    }

    fn each(&mut self, object: &Object, mut change: impl FnMut(&mut BTreeMap<String, usize>, &str)) {
        if let Object::Endpoint(e) = object {
            change(self.endpoints.entry(e.vni).or_default(), &e.host);
            forget_if_empty(&mut self.endpoints, &e.vni);
        }
        let Object::Vnic(vnic) = object else { return };
        let Some(host) = &vnic.host else { return };
        change(self.vpcs.entry(vnic.vpc.clone()).or_default(), host);
        forget_if_empty(&mut self.vpcs, &vnic.vpc);
        if let Some(policy) = &vnic.qos_policy {
            change(self.policies.entry(policy.clone()).or_default(), host);
            forget_if_empty(&mut self.policies, policy);
        }
    }
}

fn forget_if_empty<K: Hash + Eq + Borrow<Q>, Q: Hash + Eq + ?Sized>(
    map: &mut HashMap<K, BTreeMap<String, usize>>,
    at: &Q,
) {
    if map.get(at).is_some_and(BTreeMap::is_empty) {
        map.remove(at);
    }
}

impl Directory {
    /// The hosts that shall run a vNIC of this network, or have not let one go yet, by name.
    pub fn hosts_of_vpc(&self, vpc: &str) -> impl Iterator<Item = &str> {
        let desired = self.presence.vpcs.get(vpc);
        let realised = self.vpc(vpc).and_then(|v| self.presence.endpoints.get(&v.vni));
        let hosts: BTreeSet<&str> =
            desired.into_iter().chain(realised).flatten().map(|(h, _)| h.as_str()).collect();
        hosts.into_iter()
    }

    /// The hosts that shall run a vNIC with this QoS policy, by name.
    pub fn hosts_of_policy(&self, policy: &str) -> impl Iterator<Item = &str> {
        self.presence.policies.get(policy).into_iter().flatten().map(|(host, _)| host.as_str())
    }
}
