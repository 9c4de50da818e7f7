use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;

use ipnet::IpNet;
use masq_types::{Gid, MacAddr, Vni};

use crate::file::{File, FileHost, FileRule, FileVnic, FileVpc};
use crate::{Action, DEFAULT_PRIORITY, DesiredState, Host, Kind, Problem, Problems, Rule, Vnic, Vpc};

/// Most virtual addresses of a vNIC: with its link-local GID they fill the GID table.
pub const MAX_ADDRESSES: usize = 15;

/// Most underlay paths of a host.
pub const MAX_PATHS: usize = 8;

/// Longest name.
const MAX_NAME_BYTES: usize = 63;

/// Longest name of a rule: derived names hold two prefixes.
const MAX_RULE_NAME_BYTES: usize = 160;

/// The file's meaning, or everything that is wrong with it.
pub(crate) fn validate(file: File) -> Result<DesiredState, Problems> {
    let mut report = Report::default();
    let hosts = hosts(&file.host, &mut report);
    let vpcs = vpcs(&file.vpc, &mut report);
    let vnics = vnics(&file, &mut report);
    let rules = rules(&file, &mut report);
    if report.problems.is_empty() {
        Ok(DesiredState { hosts, vpcs, vnics, rules })
    } else {
        Err(Problems::Content(report.problems))
    }
}

fn hosts(file: &[FileHost], report: &mut Report) -> Vec<Host> {
    let mut names = Unique::default();
    let mut addresses = Unique::default();
    let mut hosts = Vec::new();
    for (i, h) in file.iter().enumerate() {
        let mut r = report.object(Kind::Host, i, &h.name);
        r.name(&h.name, MAX_NAME_BYTES, &mut names);
        if h.underlay.is_empty() {
            r.problem("underlay", "at least one address is needed");
        }
        if h.underlay.len() > MAX_PATHS {
            r.problem(
                "underlay",
                format_args!("{} addresses; at most {MAX_PATHS} are possible", h.underlay.len()),
            );
        }
        let mut underlay = Vec::new();
        for text in &h.underlay {
            let Some(address) = r.address("underlay", text) else { continue };
            r.unique("underlay", address, &mut addresses);
            underlay.push(address);
        }
        hosts.push(Host { name: h.name.clone(), underlay });
    }
    hosts
}

fn vpcs(file: &[FileVpc], report: &mut Report) -> Vec<Vpc> {
    let mut names = Unique::default();
    let mut vnis = Unique::default();
    let mut vpcs = Vec::new();
    for (i, v) in file.iter().enumerate() {
        let mut r = report.object(Kind::Vpc, i, &v.name);
        r.name(&v.name, MAX_NAME_BYTES, &mut names);
        let Some(vni) = u32::try_from(v.vni).ok().and_then(Vni::new) else {
            r.problem("vni", format_args!("{} lies outside 1 to {}", v.vni, Vni::MAX));
            continue;
        };
        r.unique("vni", vni, &mut vnis);
        vpcs.push(Vpc { name: v.name.clone(), vni });
    }
    vpcs
}

fn vnics(file: &File, report: &mut Report) -> Vec<Vnic> {
    let mut names = Unique::default();
    let mut macs: HashMap<&str, Unique<MacAddr>> = HashMap::new();
    let mut gids: HashMap<&str, Unique<Gid>> = HashMap::new();
    let mut vnics = Vec::new();
    for (i, v) in file.vnic.iter().enumerate() {
        let mut r = report.object(Kind::Vnic, i, &v.name);
        r.name(&v.name, MAX_NAME_BYTES, &mut names);
        if v.name == "masqd" {
            r.problem("name", "\"masqd\" is the name of masqd's own socket");
        }
        r.refers("vpc", Kind::Vpc, &v.vpc, file.vpc.iter().any(|o| o.name == v.vpc));
        let host = file.host.iter().find(|o| o.name == v.host);
        r.refers("host", Kind::Host, &v.host, host.is_some());
        let paths = r.paths(v, host);
        let gids = gids.entry(&v.vpc).or_default();
        let mac = r.mac(&v.mac);
        if let Some(mac) = mac {
            // Equal MACs have equal link-local addresses: one report is enough.
            if r.unique("mac", mac, macs.entry(&v.vpc).or_default()) {
                r.unique("mac", Gid::from(mac.link_local()), gids);
            }
        }
        if v.addresses.is_empty() {
            r.problem("addresses", "at least one address is needed");
        }
        if v.addresses.len() > MAX_ADDRESSES {
            let n = v.addresses.len();
            r.problem("addresses", format_args!("{n} addresses; at most {MAX_ADDRESSES} are possible"));
        }
        let mut addresses = Vec::new();
        for text in &v.addresses {
            let Some(address) = r.virtual_address(text) else { continue };
            r.unique("addresses", Gid::from(address), gids);
            addresses.push(address);
        }
        let Some(mac) = mac else { continue };
        vnics.push(Vnic {
            name: v.name.clone(),
            vpc: v.vpc.clone(),
            host: v.host.clone(),
            mac,
            addresses,
            paths,
        });
    }
    vnics
}

fn rules(file: &File, report: &mut Report) -> Vec<Rule> {
    let mut names: HashMap<&str, Unique<String>> = HashMap::new();
    let mut rules = Vec::new();
    for (i, rule) in file.rule.iter().enumerate() {
        let name = rule.name.clone().unwrap_or_else(|| derived_name(rule));
        let mut r = report.object(Kind::Rule, i, &name);
        r.name(&name, MAX_RULE_NAME_BYTES, names.entry(&rule.vpc).or_default());
        r.refers("vpc", Kind::Vpc, &rule.vpc, file.vpc.iter().any(|o| o.name == rule.vpc));
        let source = r.prefix("source", &rule.source);
        let destination = r.prefix("destination", &rule.destination);
        let action = match rule.action.as_str() {
            "allow" => Some(Action::Allow),
            "deny" => Some(Action::Deny),
            other => {
                r.problem("action", format_args!("{other:?} is neither \"allow\" nor \"deny\""));
                None
            }
        };
        let asked = rule.priority.unwrap_or(DEFAULT_PRIORITY.into());
        let priority = u32::try_from(asked).ok();
        if priority.is_none() {
            r.problem("priority", format_args!("{asked} lies outside 0 to {}", u32::MAX));
        }
        let (Some(source), Some(destination), Some(action), Some(priority)) =
            (source, destination, action, priority)
        else {
            continue;
        };
        if source.addr().is_ipv4() != destination.addr().is_ipv4() {
            r.problem(
                "destination",
                format_args!("{destination} and the source {source} are of different families"),
            );
        }
        rules.push(Rule { name, vpc: rule.vpc.clone(), source, destination, action, priority });
    }
    rules
}

/// The name of a rule that has none: what it says, so that it is the same on every reading of the
/// file and changes with the rule.
fn derived_name(rule: &FileRule) -> String {
    let priority = rule.priority.unwrap_or(DEFAULT_PRIORITY.into());
    let text = format!("{}-{priority}-{}-{}", rule.action, rule.source, rule.destination);
    text.chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' })
        .collect()
}

/// Which object first used a value.
struct Unique<T>(HashMap<T, String>);

impl<T> Default for Unique<T> {
    fn default() -> Self {
        Unique(HashMap::new())
    }
}

#[derive(Default)]
struct Report {
    problems: Vec<Problem>,
}

impl Report {
    fn object(&mut self, kind: Kind, index: usize, name: &str) -> ObjectReport<'_> {
        let object =
            if name.is_empty() { format!("{kind} number {}", index + 1) } else { format!("{kind} {name:?}") };
        ObjectReport { report: self, object }
    }
}

/// Collects what is wrong with one object.
struct ObjectReport<'a> {
    report: &'a mut Report,
    object: String,
}

impl ObjectReport<'_> {
    fn problem(&mut self, field: &'static str, reason: impl fmt::Display) {
        let reason = reason.to_string();
        self.report.problems.push(Problem { object: self.object.clone(), field, reason });
    }

    fn name(&mut self, name: &str, max_bytes: usize, seen: &mut Unique<String>) {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        // Names become parts of keys and names of sockets.
        let good = name.len() <= max_bytes
            && name.starts_with(plain)
            && name.chars().all(|c| plain(c) || matches!(c, '-' | '.' | '_'));
        if !good {
            self.problem(
                "name",
                format_args!(
                    "a name has 1 to {max_bytes} lower-case letters, digits, '-', '_' and '.', and begins with a \
                     letter or digit"
                ),
            );
        }
        self.unique("name", name.to_string(), seen);
    }

    /// Reports a value that another object has already; tells whether there was none.
    fn unique<T: Hash + Eq + fmt::Display>(
        &mut self,
        field: &'static str,
        value: T,
        seen: &mut Unique<T>,
    ) -> bool {
        if let Some(first) = seen.0.get(&value) {
            let reason = format!("{value} is in use by {first} already");
            self.problem(field, reason);
            return false;
        }
        seen.0.insert(value, self.object.clone());
        true
    }

    fn refers(&mut self, field: &'static str, kind: Kind, name: &str, exists: bool) {
        if !exists {
            self.problem(field, format_args!("there is no {kind} {name:?}"));
        }
    }

    fn mac(&mut self, text: &str) -> Option<MacAddr> {
        match text.parse::<MacAddr>() {
            Err(e) => self.problem("mac", format_args!("{text:?}: {e}")),
            Ok(mac) if !mac.is_unicast() => self
                .problem("mac", format_args!("{mac} is a multicast or zero address, which no NIC can have")),
            Ok(mac) => return Some(mac),
        }
        None
    }

    /// An address that a station can have.
    fn address(&mut self, field: &'static str, text: &str) -> Option<IpAddr> {
        let address = match text.parse::<IpAddr>() {
            Ok(address) => address,
            Err(_) => {
                self.problem(field, format_args!("{text:?} is not an IP address"));
                return None;
            }
        };
        if let IpAddr::V6(v6) = address {
            if let Some(v4) = v6.to_ipv4_mapped() {
                self.problem(field, format_args!("{address} is an IPv4 address; write it as {v4}"));
                return None;
            }
        }
        let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
        if address.is_unspecified() || address.is_multicast() || broadcast {
            self.problem(field, format_args!("{address} is not the address of a single station"));
            return None;
        }
        Some(address)
    }

    fn virtual_address(&mut self, text: &str) -> Option<IpAddr> {
        let address = self.address("addresses", text)?;
        if address.is_loopback() {
            self.problem("addresses", format_args!("{address} is a loopback address"));
            return None;
        }
        Some(address)
    }

    fn prefix(&mut self, field: &'static str, text: &str) -> Option<IpNet> {
        // A single address is short for the prefix that holds only it.
        let parsed = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        let Some(net) = parsed else {
            self.problem(field, format_args!("{text:?} is not a prefix such as \"192.168.0.0/24\""));
            return None;
        };
        if net.trunc() != net {
            self.problem(field, format_args!("{net} has bits set beyond its length; write {}", net.trunc()));
            return None;
        }
        Some(net)
    }

    fn paths(&mut self, vnic: &FileVnic, host: Option<&FileHost>) -> Option<u8> {
        let asked = vnic.paths?;
        let most = host.map_or(MAX_PATHS, |h| h.underlay.len().min(MAX_PATHS));
        match u8::try_from(asked) {
            Ok(n) if n >= 1 && usize::from(n) <= most => Some(n),
            _ => {
                let reason = format!("{asked} lies outside 1 to {most}, the underlay addresses of its host");
                self.problem("paths", reason);
                None
            }
        }
    }
}
