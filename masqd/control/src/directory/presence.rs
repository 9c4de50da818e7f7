//! On which hosts the vNICs of a network are, and those that use a QoS policy.

use std::collections::{BTreeMap, HashMap};

use masq_model::{Object, Vnic};

use super::Directory;

/// Counts vNICs by host, so that what a change concerns is found without looking at all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Presence {
    vpcs: HashMap<String, BTreeMap<String, usize>>,
    policies: HashMap<String, BTreeMap<String, usize>>,
}

impl Presence {
    /// Another vNIC, or none, has taken the place of one.
    pub(super) fn change(&mut self, old: Option<&Object>, new: Option<&Object>) {
        if let Some(Object::Vnic(vnic)) = new {
            self.each(vnic, |hosts, host| *hosts.entry(host.into()).or_default() += 1);
        }
        if let Some(Object::Vnic(vnic)) = old {
            self.each(vnic, |hosts, host| {
                if let Some(count) = hosts.get_mut(host) {
                    *count -= 1;
                    if *count == 0 {
                        hosts.remove(host);
                    }
                }
            });
        }
    }

    fn each(&mut self, vnic: &Vnic, mut change: impl FnMut(&mut BTreeMap<String, usize>, &str)) {
        let Some(host) = &vnic.host else { return };
        change(self.vpcs.entry(vnic.vpc.clone()).or_default(), host);
        forget_if_empty(&mut self.vpcs, &vnic.vpc);
        if let Some(policy) = &vnic.qos_policy {
            change(self.policies.entry(policy.clone()).or_default(), host);
            forget_if_empty(&mut self.policies, policy);
        }
    }
}

fn forget_if_empty(map: &mut HashMap<String, BTreeMap<String, usize>>, at: &str) {
    if map.get(at).is_some_and(BTreeMap::is_empty) {
        map.remove(at);
    }
}

impl Directory {
    /// The hosts that shall run a vNIC of this network, by name.
    pub fn hosts_of_vpc(&self, vpc: &str) -> impl Iterator<Item = &str> {
        self.presence.vpcs.get(vpc).into_iter().flatten().map(|(host, _)| host.as_str())
    }

    /// The hosts that shall run a vNIC with this QoS policy, by name.
    pub fn hosts_of_policy(&self, policy: &str) -> impl Iterator<Item = &str> {
        self.presence.policies.get(policy).into_iter().flatten().map(|(host, _)| host.as_str())
    }
}
