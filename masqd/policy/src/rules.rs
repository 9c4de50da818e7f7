//! Security groups: rules about what their members send and receive.
//!
//! Traffic from one vNIC to another passes when what the sender's groups say about sending and what the receiver's groups
//! say about receiving both allow it. At each end the rules of all of its groups count as one table: of those that match, the
//! one with the smallest priority decides; among equals one that denies. Where none matches, members of a common group
//! may talk, and nobody else.
//!
//! A connection has no initiator that either host could know of (a queue pair context names two equal ends), so a
//! connection is allowed when traffic in at least one of its two directions is. Both hosts evaluate the same pure
//! function and so come to the same verdict.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use masq_types::Gid;

/// What a rule does. `Deny` comes first, as among rules of equal priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Traffic that matches is forbidden.
    Deny,
    /// Traffic that matches is allowed.
    Allow,
}

/// The direction of traffic, seen from the member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// What it receives.
    Ingress,
    /// What it sends.
    Egress,
}

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// The other end of the traffic that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Remote {
    /// Anyone in the network.
    Anyone,
    /// Whoever has an address with this prefix.
    Prefix(IpNet),
    /// The members of a group.
    Group(Arc<str>),
}

/// A rule of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Its name, unique in its group.
    pub name: Arc<str>,
    /// Which traffic of members it is about.
    pub direction: Direction,
    /// The other end.
    pub remote: Remote,
    /// Only this transport; all when absent.
    pub transport: Option<Transport>,
    /// The matching rule with the smallest number decides.
    pub priority: u32,
    /// What happens.
    pub action: Action,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Party<'a> {
    /// Its vNIC.
    pub vnic: &'a str,
    /// Its address.
    pub gid: Gid,
    /// Its groups.
    pub groups: &'a [Arc<str>],
}

/// The rules of all groups, indexed so that a verdict costs as many look-ups as there are groups and lengths of
/// prefixes, however many rules there are.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    tables: HashMap<(Arc<str>, Direction), Table>,
}

/// What the rules say about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Both ends are the same vNIC: such traffic never leaves its VM's own memory.
    SameVnic,
    /// This direction is allowed.
    Allow(Flow),
    /// Neither direction is.
    Deny(Denied),
}

impl Verdict {
    /// Whether the connection may be made.
    pub fn is_allowed(&self) -> bool {
        !matches!(self, Verdict::Deny(_))
    }
}

/// Why a connection may not be made: what forbids each direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Traffic from the end that asked.
    pub outbound: Flow,
    /// Traffic to the end that asked.
    pub inbound: Flow,
}

/// What the rules say about traffic in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Who sends.
    pub from: Gid,
    /// Who receives.
    pub to: Gid,
    /// What the sender's groups say.
    pub egress: Decision,
    /// What the receiver's groups say.
    pub ingress: Decision,
}

impl Flow {
    /// Whether it passes.
    pub fn is_allowed(&self) -> bool {
        self.egress.action == Action::Allow && self.ingress.action == Action::Allow
    }
}

/// What the groups of one end say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What happens.
    pub action: Action,
    /// What decided it.
    pub by: By,
}

/// What decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// A rule of a group.
    Rule {
        /// The group.
        group: Arc<str>,
        /// The rule.
        rule: Arc<str>,
    },
    /// No rule matches, and both ends are members of this group.
    CommonGroup(Arc<str>),
    /// No rule matches, and there is no common group.
    Default,
}

impl Groups {
    /// Adds a rule to a group.
    pub fn insert(&mut self, group: &Arc<str>, rule: &Rule) {
        self.tables.entry((group.clone(), rule.direction)).or_default().insert(rule);
    }

    /// Takes a rule away, if it is there.
    pub fn remove(&mut self, group: &Arc<str>, rule: &Rule) {
        let key = (group.clone(), rule.direction);
        if let Some(table) = self.tables.get_mut(&key) {
            table.remove(rule);
            if table.is_empty() {
                self.tables.remove(&key);
            }
        }
    }

    /// The verdict about a connection between two vNICs of one network.
    pub fn evaluate(&self, transport: Transport, local: Party<'_>, remote: Party<'_>) -> Verdict {
        if local.vnic == remote.vnic {
            return Verdict::SameVnic;
        }
        let outbound = self.flow(transport, local, remote);
        if outbound.is_allowed() {
            return Verdict::Allow(outbound);
        }
        let inbound = self.flow(transport, remote, local);
        if inbound.is_allowed() {
            return Verdict::Allow(inbound);
        }
        Verdict::Deny(Denied { outbound, inbound })
    }

    /// What the rules say about traffic in one direction.
    pub fn flow(&self, transport: Transport, from: Party<'_>, to: Party<'_>) -> Flow {
        Flow {
            from: from.gid,
            to: to.gid,
            egress: self.decide(Direction::Egress, transport, from, to),
            ingress: self.decide(Direction::Ingress, transport, to, from),
        }
    }

    fn decide(
        &self,
        direction: Direction,
        transport: Transport,
        member: Party<'_>,
        remote: Party<'_>,
    ) -> Decision {
        let best = member
            .groups
            .iter()
            .filter_map(|group| {
                let table = self.tables.get(&(group.clone(), direction))?;
                table.first(transport, remote).map(|entry| (entry, group))
            })
            .min();
        if let Some((entry, group)) = best {
            let by = By::Rule { group: group.clone(), rule: entry.name.clone() };
            return Decision { action: entry.action, by };
        }
        match member.groups.iter().filter(|g| remote.groups.contains(g)).min() {
            Some(common) => Decision { action: Action::Allow, by: By::CommonGroup(common.clone()) },
            None => Decision { action: Action::Deny, by: By::Default },
        }
    }
}

/// The rules of one group about one direction.
#[derive(Clone, Debug, Default)]
struct Table {
    anyone: Vec<Entry>,
    groups: HashMap<Arc<str>, Vec<Entry>>,
    /// By length.
    prefixes: BTreeMap<u8, HashMap<IpNet, Vec<Entry>>>,
}

/// What decides about a rule among those that match; the smallest one does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    priority: u32,
    action: Action,
    name: Arc<str>,
    transport: Option<Transport>,
}

impl Entry {
    fn new(rule: &Rule) -> Entry {
        let Rule { name, transport, priority, action, .. } = rule;
        Entry { priority: *priority, action: *action, name: name.clone(), transport: *transport }
    }
}

impl Table {
    fn is_empty(&self) -> bool {
        self.anyone.is_empty() && self.groups.is_empty() && self.prefixes.is_empty()
    }

    fn insert(&mut self, rule: &Rule) {
        let list = match &rule.remote {
            Remote::Anyone => &mut self.anyone,
            Remote::Group(group) => self.groups.entry(group.clone()).or_default(),
            Remote::Prefix(net) => {
                let lists = self.prefixes.entry(net.prefix_len()).or_default();
                lists.entry(net.trunc()).or_default()
            }
        };
        let entry = Entry::new(rule);
        if let Err(at) = list.binary_search(&entry) {
            list.insert(at, entry);
        }
    }

    fn remove(&mut self, rule: &Rule) {
        let entry = Entry::new(rule);
        let take = |list: &mut Vec<Entry>| {
            if let Ok(at) = list.binary_search(&entry) {
                list.remove(at);
            }
            !list.is_empty()
        };
        match &rule.remote {
            Remote::Anyone => {
                take(&mut self.anyone);
            }
            Remote::Group(group) => {
                if !self.groups.get_mut(group).is_none_or(take) {
                    self.groups.remove(group);
                }
            }
            Remote::Prefix(net) => {
                let Some(lists) = self.prefixes.get_mut(&net.prefix_len()) else { return };
                if !lists.get_mut(&net.trunc()).is_none_or(take) {
                    lists.remove(&net.trunc());
                }
                if lists.is_empty() {
                    self.prefixes.remove(&net.prefix_len());
                }
            }
        }
    }

    /// The entry that decides about traffic with `remote`.
    fn first(&self, transport: Transport, remote: Party<'_>) -> Option<&Entry> {
        let ip = remote.gid.ip();
        // Lengths that are too long for the address's family have prefixes of the other one only.
        let by_prefix =
            self.prefixes.iter().filter_map(|(len, lists)| lists.get(&IpNet::new(ip, *len).ok()?.trunc()));
        let by_group = remote.groups.iter().filter_map(|g| self.groups.get(g));
        let matches = |e: &&Entry| e.transport.is_none_or(|t| t == transport);
        by_prefix.chain(by_group).chain([&self.anyone]).filter_map(|list| list.iter().find(matches)).min()
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Denied { outbound, inbound } = self;
        write!(f, "{outbound}; {inbound}")
    }
}

/// What forbids it, or what allows it.
impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Flow { from, to, egress, ingress } = self;
        if egress.action == Action::Deny {
            return write!(f, "{} {from} to send to {to}", egress.in_words());
        }
        if ingress.action == Action::Deny {
            return write!(f, "{} {to} to receive from {from}", ingress.in_words());
        }
        if egress.by == ingress.by {
            return write!(f, "{} {from} to send to {to}", egress.in_words());
        }
        write!(
            f,
            "{} {from} to send to {to}, and {} {to} to receive it",
            egress.in_words(),
            ingress.in_words()
        )
    }
}

impl Decision {
    fn in_words(&self) -> String {
        let verb = if self.action == Action::Allow { "allows" } else { "forbids" };
        match &self.by {
            By::Default => "no rule allows".into(),
            by => format!("{by} {verb}"),
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            By::Rule { group, rule } => write!(f, "rule {group}/{rule}"),
            By::CommonGroup(group) => write!(f, "membership in {group}"),
            By::Default => f.write_str("no rule"),
        }
    }
}
