//! What must hold for each object of a desired state.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;

use ipnet::IpNet;
use masq_types::{Gid, MacAddr};

use crate::{
    Alias, DesiredState, Host, Key, Kind, Object, Problem, QosPolicy, Quota, SecurityGroup,
    SecurityGroupRule, StaticEndpoint, Vnic,
};

/// Most virtual addresses of a vNIC: with its link-local GID they fill the GID table.
pub const MAX_ADDRESSES: usize = 15;

/// Most virtual addresses of a static endpoint: as many as a vNIC has with its link-local one.
pub const MAX_STATIC_ADDRESSES: usize = MAX_ADDRESSES + 1;

/// Most prefixes in a vNIC's `allowed_address_pairs`.
pub const MAX_ADDRESS_PAIRS: usize = 64;

/// Most security groups of a vNIC.
pub const MAX_SECURITY_GROUPS: usize = 16;

/// Most underlay paths of a host.
pub const MAX_PATHS: usize = 16;

/// Most aliases of a host.
pub const MAX_ALIASES: usize = 4096;

/// Lowest rate of a policy or a class: one full packet and its acknowledgement take less than a second.
pub const MIN_RATE_BITS_PER_SEC: u64 = 100_000;

/// Highest rate of a policy or a class.
pub const MAX_RATE_BITS_PER_SEC: u64 = 1_000_000_000_000;

/// Smallest burst: 16 KiB, so that a packet of any size fits.
pub const MIN_BURST_BITS: u64 = 8 * (16 << 10);

/// Largest burst: 1 GiB.
pub const MAX_BURST_BITS: u64 = 8 * (1 << 30);

/// Classes of traffic.
pub const CLASSES: u8 = 8;

/// Highest weight.
pub const MAX_WEIGHT: u16 = 256;

/// Longest name.
const MAX_NAME_BYTES: usize = 63;

/// Longest name of a link (IFNAMSIZ).
const MAX_LINK_BYTES: usize = 15;

/// Most commands per second that a quota can grant.
const MAX_COMMANDS_PER_SEC: u32 = 1_000_000;

/// Adds what is wrong with `object`, which is part of `state`.
pub(crate) fn check(state: &DesiredState, object: &Object, problems: &mut Vec<Problem>) {
    let key = object.key();
    let mut r = Report { object: key.label(), first: problems.len(), problems };
    match object {
        Object::Host(o) => r.host(o),
        Object::Vpc(o) => r.name(&o.name),
        Object::SecurityGroup(o) => r.security_group(state, o),
        Object::SecurityGroupRule(o) => r.rule(state, o),
        Object::QosPolicy(o) => r.qos_policy(o),
        Object::Vnic(o) => r.vnic(state, o),
        Object::StaticEndpoint(o) => r.static_endpoint(state, o),
        Object::Endpoint(_) | Object::HostState(_) => r.problem("", "hosts write it, not users"),
    }
    for (field, claim) in object.claims() {
        // Equal MACs have equal link-local addresses: one report is enough.
        if field == "mac" && r.has(field) {
            continue;
        }
        if let Some(other) = state.other_claimant(&claim, &key) {
            r.problem(field, format_args!("{claim} is in use by {} already", other.label()));
        }
    }
}

/// What is said about a reference to an object that does not exist.
pub(crate) fn missing(label: &str) -> String {
    format!("there is no {label}")
}

/// Collects what is wrong with one object.
struct Report<'a> {
    object: String,
    /// Position of the object's first problem.
    first: usize,
    problems: &'a mut Vec<Problem>,
}

impl Report<'_> {
    fn problem(&mut self, field: &str, reason: impl fmt::Display) {
        let reason = reason.to_string();
        self.problems.push(Problem { object: self.object.clone(), field: field.into(), reason });
    }

    fn has(&self, field: &str) -> bool {
        self.problems.iter().skip(self.first).any(|p| p.field == field)
    }

    fn host(&mut self, host: &Host) {
        self.name(&host.name);
        if host.underlay.is_empty() {
            self.problem("underlay", "at least one address is needed");
        }
        self.at_most("underlay", "addresses", host.underlay.len(), MAX_PATHS);
        host.underlay.iter().for_each(|a| self.station("underlay", *a));
        self.no_repetition("underlay", &host.underlay);
        self.at_most("aliases", "aliases", host.aliases.len(), MAX_ALIASES);
        for (i, alias) in host.aliases.iter().enumerate() {
            self.alias(&format!("aliases[{i}]"), alias);
        }
        let aliases: Vec<IpAddr> = host.aliases.iter().map(|a| a.address.addr()).collect();
        self.no_repetition("aliases", &aliases);
        for (i, class) in host.class_rates.iter().enumerate() {
            self.class(&format!("class_rates[{i}].class"), class.class);
            self.rate(&format!("class_rates[{i}].rate_bits_per_sec"), class.rate_bits_per_sec);
            self.burst(&format!("class_rates[{i}].burst_bits"), class.burst_bits);
        }
        let classes: Vec<u8> = host.class_rates.iter().map(|c| c.class).collect();
        self.no_repetition("class_rates", &classes);
    }

    fn alias(&mut self, field: &str, alias: &Alias) {
        let address = alias.address.addr();
        self.station(&format!("{field}.address"), address);
        let plain = |c: char| c.is_ascii_graphic() && c != '/' && c != ':';
        if alias.link.is_empty() || alias.link.len() > MAX_LINK_BYTES || !alias.link.chars().all(plain) {
            self.problem(
                &format!("{field}.link"),
                format_args!("{:?} is not the name of a link", alias.link),
            );
        }
        if let Some(gateway) = alias.gateway {
            let field = format!("{field}.gateway");
            self.station(&field, gateway);
            if gateway.is_ipv4() != address.is_ipv4() {
                self.problem(&field, format_args!("{gateway} and {address} are of different families"));
            }
        }
    }

    fn security_group(&mut self, state: &DesiredState, group: &SecurityGroup) {
        self.name(&group.name);
        self.exists("vpc", Kind::Vpc, &group.vpc, state.vpc(&group.vpc).is_some());
    }

    fn rule(&mut self, state: &DesiredState, rule: &SecurityGroupRule) {
        self.name(&rule.name);
        let group = state.security_group(&rule.security_group);
        self.exists("security_group", Kind::SecurityGroup, &rule.security_group, group.is_some());
        match (&rule.remote_prefix, &rule.remote_group) {
            (Some(_), Some(_)) => {
                self.problem("remote_group", "a rule is about a prefix or a group, not about both");
            }
            (Some(net), None) => self.prefix("remote_prefix", *net),
            (None, Some(name)) => {
                let remote = state.security_group(name);
                self.exists("remote_group", Kind::SecurityGroup, name, remote.is_some());
                if let (Some(group), Some(remote)) = (group, remote) {
                    self.same_vpc("remote_group", name, &remote.vpc, &group.vpc);
                }
            }
            (None, None) => {}
        }
    }

    fn qos_policy(&mut self, policy: &QosPolicy) {
        self.name(&policy.name);
        if let Some(rate) = policy.rate_bits_per_sec {
            self.rate("rate_bits_per_sec", rate);
        } else if policy.burst_bits.is_some() {
            self.problem("burst_bits", "without a rate there is no burst");
        }
        self.burst("burst_bits", policy.burst_bits);
        self.between("weight", policy.weight.into(), 1, MAX_WEIGHT.into());
        self.class("class", policy.class);
        self.between("dscp", policy.dscp.unwrap_or(0).into(), 0, 63);
    }

    fn vnic(&mut self, state: &DesiredState, vnic: &Vnic) {
        self.name(&vnic.name);
        if vnic.name == "masqd" {
            self.problem("name", "masqd's own socket has this name");
        }
        self.exists("vpc", Kind::Vpc, &vnic.vpc, state.vpc(&vnic.vpc).is_some());
        self.mac(vnic.mac);
        self.virtual_addresses(&vnic.addresses, MAX_ADDRESSES);
        let link_local = vnic.mac.link_local();
        if vnic.addresses.contains(&link_local.into()) {
            self.problem(
                "addresses",
                format_args!("{link_local} is the MAC's link-local address, which it has anyway"),
            );
        }
        let pairs = &vnic.allowed_address_pairs;
        self.at_most("allowed_address_pairs", "prefixes", pairs.len(), MAX_ADDRESS_PAIRS);
        pairs.iter().for_each(|net| self.prefix("allowed_address_pairs", *net));
        self.security_groups(state, &vnic.security_groups, &vnic.vpc);
        if let Some(name) = &vnic.qos_policy {
            self.exists("qos_policy", Kind::QosPolicy, name, state.qos_policy(name).is_some());
        }
        self.quota(&vnic.quota);
        let host = vnic.host.as_deref().map(|name| (name, state.host(name)));
        if let Some((name, host)) = host {
            self.exists("host", Kind::Host, name, host.is_some());
        }
        let host = host.and_then(|(_, host)| host);
        self.paths(vnic, host);
        if let Some(alias) = vnic.dedicated_alias {
            self.dedicated_alias(alias, host);
        }
    }

    fn static_endpoint(&mut self, state: &DesiredState, endpoint: &StaticEndpoint) {
        self.name(&endpoint.name);
        self.exists("vpc", Kind::Vpc, &endpoint.vpc, state.vpc(&endpoint.vpc).is_some());
        self.virtual_addresses(&endpoint.addresses, MAX_STATIC_ADDRESSES);
        let underlay = endpoint.underlay_address;
        self.station("underlay_address", underlay);
        if underlay.is_loopback() {
            self.problem("underlay_address", format_args!("{underlay} is a loopback address"));
        }
        if matches!(underlay, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            self.problem(
                "underlay_address",
                format_args!("{underlay} is a link-local address, which says nothing without a link"),
            );
        }
        self.security_groups(state, &endpoint.security_groups, &endpoint.vpc);
    }

    fn security_groups(&mut self, state: &DesiredState, names: &[String], vpc: &str) {
        self.at_most("security_groups", "groups", names.len(), MAX_SECURITY_GROUPS);
        for name in names {
            let group = state.security_group(name);
            self.exists("security_groups", Kind::SecurityGroup, name, group.is_some());
            if let Some(group) = group {
                self.same_vpc("security_groups", name, &group.vpc, vpc);
            }
        }
        self.no_repetition("security_groups", names);
    }

    fn quota(&mut self, quota: &Quota) {
        if let Some(commands) = quota.commands_per_sec {
            self.between("quota.commands_per_sec", commands.into(), 1, MAX_COMMANDS_PER_SEC.into());
        }
    }

    fn paths(&mut self, vnic: &Vnic, host: Option<&Host>) {
        let paths = vnic.path_count();
        self.between("paths", paths.into(), 1, MAX_PATHS as u64);
        if let Some(host) = host.filter(|h| h.underlay.len() < paths.into()) {
            let (name, most) = (&host.name, host.underlay.len());
            self.problem(
                "paths",
                format_args!("{paths} lies outside 1 to {most}, the underlay addresses of host {name:?}"),
            );
        }
    }

    fn dedicated_alias(&mut self, alias: IpAddr, host: Option<&Host>) {
        let Some(host) = host else { return };
        if host.underlay.contains(&alias) {
            let name = &host.name;
            self.problem(
                "dedicated_alias",
                format_args!("{alias} is a path of host {name:?}, which all its vNICs share"),
            );
        } else if !host.aliases.iter().any(|a| a.address.addr() == alias) {
            self.problem(
                "dedicated_alias",
                format_args!("{alias} is not among the aliases of host {:?}", host.name),
            );
        }
    }

    fn name(&mut self, name: &str) {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        // Names become parts of keys and names of sockets.
        let good = name.len() <= MAX_NAME_BYTES
            && name.starts_with(plain)
            && name.chars().all(|c| plain(c) || matches!(c, '-' | '.' | '_'));
        if !good {
            self.problem(
                "name",
                format_args!(
                    "a name has 1 to {MAX_NAME_BYTES} lower-case letters, digits, '-', '_' and '.', and begins with a \
                     letter or digit"
                ),
            );
        }
    }

    fn exists(&mut self, field: &str, kind: Kind, name: &str, exists: bool) {
        if !exists {
            self.problem(field, missing(&Key::new(kind, name).label()));
        }
    }

    fn same_vpc(&mut self, field: &str, group: &str, its: &str, ours: &str) {
        if its != ours {
            self.problem(
                field,
                format_args!("security_group {group:?} belongs to vpc {its:?}, not to {ours:?}"),
            );
        }
    }

    fn at_most(&mut self, field: &str, what: &str, n: usize, most: usize) {
        if n > most {
            self.problem(field, format_args!("{n} {what}; at most {most} are possible"));
        }
    }

    fn between(&mut self, field: &str, value: u64, least: u64, most: u64) {
        if value < least || value > most {
            self.problem(field, format_args!("{value} lies outside {least} to {most}"));
        }
    }

    fn class(&mut self, field: &str, class: u8) {
        self.between(field, class.into(), 0, u64::from(CLASSES) - 1);
    }

    fn rate(&mut self, field: &str, rate: u64) {
        self.between(field, rate, MIN_RATE_BITS_PER_SEC, MAX_RATE_BITS_PER_SEC);
    }

    fn burst(&mut self, field: &str, burst: Option<u64>) {
        if let Some(burst) = burst {
            self.between(field, burst, MIN_BURST_BITS, MAX_BURST_BITS);
        }
    }

    fn no_repetition<T: Eq + Hash + fmt::Display>(&mut self, field: &str, values: &[T]) {
        let mut seen = HashSet::new();
        if let Some(value) = values.iter().find(|v| !seen.insert(*v)) {
            self.problem(field, format_args!("{value} stands there twice"));
        }
    }

    fn mac(&mut self, mac: MacAddr) {
        if !mac.is_unicast() {
            self.problem("mac", format_args!("{mac} is a multicast or zero address, which no NIC can have"));
        }
    }

    /// An address that a station can have.
    fn station(&mut self, field: &str, address: IpAddr) {
        if let IpAddr::V6(v6) = address
            && let Some(v4) = v6.to_ipv4_mapped()
        {
            self.problem(field, format_args!("{address} is an IPv4 address; write it as {v4}"));
            return;
        }
        let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
        if address.is_unspecified() || address.is_multicast() || broadcast {
            self.problem(field, format_args!("{address} is not the address of a single station"));
        }
    }

    fn virtual_addresses(&mut self, addresses: &[IpAddr], most: usize) {
        if addresses.is_empty() {
            self.problem("addresses", "at least one address is needed");
        }
        self.at_most("addresses", "addresses", addresses.len(), most);
        for address in addresses {
            self.station("addresses", *address);
            if address.is_loopback() {
                self.problem("addresses", format_args!("{address} is a loopback address"));
            }
        }
        self.no_repetition("addresses", addresses);
    }

    fn prefix(&mut self, field: &str, net: IpNet) {
        if net.trunc() != net {
            self.problem(field, format_args!("{net} has bits set beyond its length; write {}", net.trunc()));
        }
        // A mapped address is an IPv4 one, and a prefix of IPv6 would match it unexpectedly.
        if Gid::from(net.addr()).ip() != net.addr() {
            self.problem(field, format_args!("{net} is a prefix of mapped IPv4 addresses; write it in IPv4"));
        }
    }
}
