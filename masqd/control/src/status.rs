//! How far desired objects are realised: which hosts an object concerns, and how far those have come.

use std::collections::{BTreeSet, HashMap};

use masq_model::api::{ItemStatus, RealisedState};
use masq_model::{HostState, Object};

use crate::Directory;

/// What the problems of a host itself are about, in [`HostState::problems`]; those of vNICs are about `vnic <name>`.
pub const HOST_PROBLEMS: [&str; 3] = ["aliases", "class rates", "underlay"];

/// What a change is about, as far as it decides which hosts must bring it into force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Concern {
    hosts: BTreeSet<String>,
    /// Hosts that have changed themselves: what they say is wrong with them is wrong with the change.
    changed_hosts: BTreeSet<String>,
    vpcs: BTreeSet<String>,
    groups: BTreeSet<String>,
    policies: BTreeSet<String>,
    vnics: BTreeSet<String>,
}

impl Concern {
    /// Nobody's yet.
    pub fn new() -> Concern {
        Concern::default()
    }

    /// Adds an object as it is, or as it was before it changed.
    pub fn add(&mut self, object: &Object) {
        match object {
            Object::Host(o) => {
                self.hosts.insert(o.name.clone());
                self.changed_hosts.insert(o.name.clone());
            }
            Object::Vpc(o) => {
                self.vpcs.insert(o.name.clone());
            }
            Object::SecurityGroup(o) => {
                self.vpcs.insert(o.vpc.clone());
            }
            Object::SecurityGroupRule(o) => {
                self.groups.insert(o.security_group.clone());
            }
            Object::QosPolicy(o) => {
                self.policies.insert(o.name.clone());
            }
            Object::Vnic(o) => {
                // Peers have to learn where it is; the host that it was on has to let it go.
                self.vpcs.insert(o.vpc.clone());
                self.hosts.extend(o.host.clone());
                self.vnics.insert(o.name.clone());
            }
            Object::StaticEndpoint(o) => {
                self.vpcs.insert(o.vpc.clone());
            }
            // Hosts write it: what it says is so.
            Object::Endpoint(_) | Object::HostState(_) => {}
        }
    }
}

impl Concern {
    /// The hosts that could not bring it into force, whatever revision they have come to.
    fn failures<'a>(&self, directory: &'a Directory) -> Vec<&'a str> {
        let says = |state: &HostState, about: &str| {
            state.problems.iter().any(|p| p.strip_prefix(about).is_some_and(|rest| rest.starts_with(": ")))
        };
        let of_hosts = self
            .changed_hosts
            .iter()
            .filter_map(|host| directory.host_state(host))
            .filter(|s| HOST_PROBLEMS.iter().any(|about| says(s, about)));
        let of_vnics = self.vnics.iter().filter_map(|name| {
            let state = directory.host_state(directory.vnic(name)?.host.as_deref()?)?;
            says(state, &format!("vnic {name}")).then_some(state)
        });
        of_hosts.chain(of_vnics).map(|state| state.host.as_str()).collect()
    }
}

impl<'a> FromIterator<&'a Object> for Concern {
    fn from_iter<T: IntoIterator<Item = &'a Object>>(objects: T) -> Concern {
        let mut concern = Concern::new();
        objects.into_iter().for_each(|o| concern.add(o));
        concern
    }
}

/// Tells how far objects are realised, as a directory shows it. What it finds out about one object serves the next.
pub struct Judge<'a> {
    directory: &'a Directory,
    /// The hosts of each network that was asked about, those that have come the least far first.
    vpcs: HashMap<String, Vec<(u64, &'a str)>>,
}

impl<'a> Judge<'a> {
    /// A judge who knows what `directory` shows.
    pub fn new(directory: &'a Directory) -> Judge<'a> {
        Judge { directory, vpcs: HashMap::new() }
    }

    /// How far a change made at revision `generation` is realised.
    pub fn status(&mut self, concern: &Concern, generation: u64) -> ItemStatus {
        let mut waiting = BTreeSet::new();
        let mut least = generation;
        let mut some = false;
        let mut note = |(realised, host): (u64, &'a str)| {
            least = least.min(realised);
            if realised < generation {
                waiting.insert(host);
            } else {
                some = true;
            }
        };
        let directory = self.directory;
        let of_groups = concern.groups.iter().filter_map(|g| directory.security_group(g)).map(|g| &g.vpc);
        for vpc in concern.vpcs.iter().chain(of_groups) {
            let hosts = self.hosts_of_vpc(vpc);
            let behind = hosts.partition_point(|(realised, _)| *realised < generation);
            // Those behind, and one that is not: the others add nothing.
            hosts.iter().take(behind + 1).copied().for_each(&mut note);
        }
        for policy in &concern.policies {
            directory.hosts_of_policy(policy).for_each(|h| note((progress(directory, h), h)));
        }
        for vnic in &concern.vnics {
            if let Some(endpoint) = directory.endpoint(vnic) {
                note((progress(directory, &endpoint.host), &endpoint.host));
            }
        }
        for host in &concern.hosts {
            // A host that is not desired any more has nothing to do.
            if let Some(h) = directory.host(host) {
                note((progress(directory, host), &h.name));
            }
        }
        for host in concern.failures(directory) {
            note((progress(directory, host).min(generation.saturating_sub(1)), host));
        }
        // What a directory does not show yet, nobody can judge by it.
        let seen = directory.revision() >= generation;
        let state = match (seen && waiting.is_empty(), some) {
            (true, _) => RealisedState::Realised,
            (false, true) => RealisedState::PartiallyRealised,
            (false, false) => RealisedState::Pending,
        };
        ItemStatus {
            generation,
            realised_generation: if seen { least } else { least.min(directory.revision()) },
            state,
            waiting_for: waiting.into_iter().map(str::to_owned).collect(),
        }
    }

    fn hosts_of_vpc(&mut self, vpc: &str) -> &[(u64, &'a str)] {
        let directory = self.directory;
        if !self.vpcs.contains_key(vpc) {
            let mut hosts: Vec<_> =
                directory.hosts_of_vpc(vpc).map(|h| (progress(directory, h), h)).collect();
            hosts.sort_unstable();
            self.vpcs.insert(vpc.into(), hosts);
        }
        self.vpcs.get(vpc).map_or(&[], Vec::as_slice)
    }
}

/// The revision up to which a host has brought everything into force; 0 when it is down.
fn progress(directory: &Directory, host: &str) -> u64 {
    directory.host_state(host).map_or(0, |state| state.realised_revision)
}
