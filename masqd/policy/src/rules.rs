//! Security groups: rules about what their members send and receive.
//!
//! Traffic from one vNIC to another passes when what the sender's groups say about sending and what the receiver's groups
//! say about receiving both allow it. At each end the rules of all of its groups count as one table: of those that match, the
//! one with the smallest priority decides; among equals one that denies. Where none matches, members of a common group
//! may talk, and nobody else.
//!
//! Datagrams go one by one, so each direction is judged for itself. Management datagrams set all kinds of traffic up: they pass, both
//! ways, when any is allowed in any direction.
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

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Rc => "rc",
            Transport::Uc => "uc",
            Transport::Ud => "ud",
        })
    }
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

/// What the rules say about datagrams between two ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// Those that the end that asked sends.
    pub send: bool,
    /// Those that it receives.
    pub receive: bool,
    /// Management datagrams, both ways.
    pub cm: bool,
    /// Why not, when any of the three is not allowed.
    pub denied: Option<Denied>,
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

    /// What forbids it, the sender's side first.
    fn forbidden_by(&self) -> Option<&By> {
        let forbidding = [&self.egress, &self.ingress].into_iter().find(|d| d.action == Action::Deny);
        forbidding.map(|d| &d.by)
    }
}

impl Denied {
    /// The rules that forbid it, as `<group>/<rule>`; none when nothing but the lack of one does.
    pub fn rules(&self) -> Vec<String> {
        let mut rules = Vec::new();
        for by in [&self.outbound, &self.inbound].into_iter().filter_map(Flow::forbidden_by) {
            if let By::Rule { group, rule } = by {
                let name = format!("{group}/{rule}");
                if !rules.contains(&name) {
                    rules.push(name);
                }
            }
        }
        rules
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

    /// What the rules say about datagrams between two vNICs of one network, or of one with itself.
    pub fn datagrams(&self, local: Party<'_>, remote: Party<'_>) -> Datagrams {
        if local.vnic == remote.vnic {
            return Datagrams { send: true, receive: true, cm: true, denied: None };
        }
        let outbound = self.flow(Transport::Ud, local, remote);
        let inbound = self.flow(Transport::Ud, remote, local);
        let (send, receive) = (outbound.is_allowed(), inbound.is_allowed());
        let connects = |t| self.evaluate(t, local, remote).is_allowed();
        let cm = send || receive || [Transport::Rc, Transport::Uc].into_iter().any(connects);
        let denied = (!(send && receive)).then_some(Denied { outbound, inbound });
        Datagrams { send, receive, cm, denied }
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
            // The names settle which of several equal rules is told.
            .min_by_key(|&(entry, group)| (entry.priority, entry.action, group, &entry.name));
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn gid(s: &str) -> Gid {
        s.parse::<IpAddr>().unwrap().into()
    }

    fn names(groups: &[&str]) -> Vec<Arc<str>> {
        groups.iter().map(|g| Arc::from(*g)).collect()
    }

    fn prefix(net: &str) -> Remote {
        Remote::Prefix(net.parse().unwrap())
    }

    fn rule(name: &str, direction: Direction, remote: Remote, action: Action) -> Rule {
        Rule { name: name.into(), direction, remote, transport: None, priority: 1000, action }
    }

    /// Members of `web` at 10.0.0.1 and of `db` at 10.0.0.2 ask, under these rules.
    fn web_to_db(rules: &[(&str, Rule)]) -> Verdict {
        evaluate(rules, &["web"], "10.0.0.1", &["db"], "10.0.0.2")
    }

    fn evaluate(
        rules: &[(&str, Rule)],
        groups: &[&str],
        local: &str,
        others: &[&str],
        remote: &str,
    ) -> Verdict {
        let (ours, theirs) = (names(groups), names(others));
        let local = Party { vnic: "one", gid: gid(local), groups: &ours };
        let remote = Party { vnic: "other", gid: gid(remote), groups: &theirs };
        groups_of(rules).evaluate(Transport::Rc, local, remote)
    }

    fn groups_of(rules: &[(&str, Rule)]) -> Groups {
        let mut all = Groups::default();
        rules.iter().for_each(|(group, rule)| all.insert(&Arc::from(*group), rule));
        all
    }

    fn words(verdict: &Verdict) -> String {
        match verdict {
            Verdict::SameVnic => "same vNIC".into(),
            Verdict::Allow(flow) => flow.to_string(),
            Verdict::Deny(denied) => denied.to_string(),
        }
    }

    use Action::{Allow, Deny};
    use Direction::{Egress, Ingress};

    #[test]
    fn what_no_rule_allows_is_denied() {
        let verdict = web_to_db(&[]);
        assert!(!verdict.is_allowed());
        let Verdict::Deny(denied) = &verdict else { panic!("{verdict:?}") };
        assert_eq!(denied.outbound.egress, Decision { action: Deny, by: By::Default });
        assert_eq!(
            denied.to_string(),
            "no rule allows 10.0.0.1 to send to 10.0.0.2; no rule allows 10.0.0.2 to send to 10.0.0.1"
        );
        // Without any group there is no common one either.
        assert!(!evaluate(&[], &[], "10.0.0.1", &[], "10.0.0.2").is_allowed());
    }

    #[test]
    fn a_vnic_may_always_talk_to_itself() {
        let groups = groups_of(&[("web", rule("no", Egress, Remote::Anyone, Deny))]);
        let web = names(&["web"]);
        let at = |ip| Party { vnic: "one", gid: gid(ip), groups: &web };
        let verdict = groups.evaluate(Transport::Ud, at("10.0.0.1"), at("fe80::1"));
        assert_eq!(verdict, Verdict::SameVnic);
        assert!(verdict.is_allowed());
    }

    #[test]
    fn members_of_a_common_group_may_talk_unless_a_rule_says_otherwise() {
        let shared = ["a", "b"];
        let verdict =
            |rules: &[(&str, Rule)]| evaluate(rules, &["web", "b", "a"], "10.0.0.1", &["a", "b"], "10.0.0.2");
        let allowed = verdict(&[]);
        assert_eq!(words(&allowed), "membership in a allows 10.0.0.1 to send to 10.0.0.2");
        for group in shared {
            let denied = verdict(&[
                (group, rule("out", Egress, Remote::Anyone, Deny)),
                (group, rule("in", Ingress, Remote::Anyone, Deny)),
            ]);
            assert_eq!(
                words(&denied),
                format!(
                    "rule {group}/out forbids 10.0.0.1 to send to 10.0.0.2; rule {group}/out forbids 10.0.0.2 to send to \
                     10.0.0.1"
                )
            );
        }
    }

    #[test]
    fn sender_and_receiver_must_both_allow_it() {
        let send = ("web", rule("send", Egress, Remote::Anyone, Allow));
        let receive = ("db", rule("receive", Ingress, prefix("10.0.0.0/24"), Allow));
        let refuse = ("db", rule("refuse", Ingress, Remote::Group("web".into()), Deny));
        assert_eq!(
            words(&web_to_db(std::slice::from_ref(&send))),
            "no rule allows 10.0.0.2 to receive from 10.0.0.1; no rule allows 10.0.0.2 to send to 10.0.0.1"
        );
        assert!(!web_to_db(std::slice::from_ref(&receive)).is_allowed());
        assert_eq!(
            words(&web_to_db(&[send.clone(), receive.clone()])),
            "rule web/send allows 10.0.0.1 to send to 10.0.0.2, and rule db/receive allows 10.0.0.2 to receive it"
        );
        assert_eq!(
            words(&web_to_db(&[send, receive, refuse])),
            "rule db/refuse forbids 10.0.0.2 to receive from 10.0.0.1; no rule allows 10.0.0.2 to send to 10.0.0.1"
        );
    }

    #[test]
    fn one_allowed_direction_is_enough_and_both_ends_agree() {
        let rules = [
            ("db", rule("send", Egress, Remote::Group("web".into()), Allow)),
            ("web", rule("receive", Ingress, Remote::Group("db".into()), Allow)),
        ];
        let here = web_to_db(&rules);
        let Verdict::Allow(flow) = &here else { panic!("{here:?}") };
        assert_eq!((flow.from, flow.to), (gid("10.0.0.2"), gid("10.0.0.1")));
        assert_eq!(evaluate(&rules, &["db"], "10.0.0.2", &["web"], "10.0.0.1"), here);
        assert!(!evaluate(&rules, &["db"], "10.0.0.2", &["other"], "10.0.0.1").is_allowed());
    }

    /// What decides about what `web` and `mail` send.
    fn egress(rules: &[(&str, Rule)], transport: Transport, remote: &str) -> Decision {
        let (ours, theirs) = (names(&["web", "mail"]), names(&["db"]));
        let local = Party { vnic: "one", gid: gid("10.0.0.1"), groups: &ours };
        let remote = Party { vnic: "other", gid: gid(remote), groups: &theirs };
        groups_of(rules).flow(transport, local, remote).egress
    }

    fn by(group: &str, rule: &str) -> By {
        By::Rule { group: group.into(), rule: rule.into() }
    }

    #[test]
    fn the_smallest_priority_decides_and_deny_wins_a_tie() {
        let remotes = [Remote::Anyone, prefix("10.0.0.2/32"), Remote::Group("db".into())];
        let with = |priority, rule| Rule { priority, ..rule };
        for (allow_remote, deny_remote) in remotes.iter().flat_map(|a| remotes.iter().map(move |b| (a, b))) {
            for (allow_group, deny_group) in [("web", "web"), ("web", "mail"), ("mail", "web")] {
                let decides = |allow, deny| {
                    let rules = [
                        (allow_group, with(allow, rule("a", Egress, allow_remote.clone(), Allow))),
                        (deny_group, with(deny, rule("b", Egress, deny_remote.clone(), Deny))),
                    ];
                    egress(&rules, Transport::Rc, "10.0.0.2")
                };
                assert_eq!(decides(1, 2), Decision { action: Allow, by: by(allow_group, "a") });
                assert_eq!(decides(2, 1), Decision { action: Deny, by: by(deny_group, "b") });
                assert_eq!(decides(0, 0), Decision { action: Deny, by: by(deny_group, "b") });
                assert_eq!(decides(u32::MAX, u32::MAX).action, Deny);
            }
        }
    }

    #[test]
    fn among_equals_the_name_is_told_that_comes_first_in_whatever_order_they_were_added() {
        let mut rules = [
            ("web", rule("b", Egress, Remote::Anyone, Allow)),
            ("mail", rule("b", Egress, prefix("0.0.0.0/0"), Allow)),
            ("mail", rule("c", Egress, Remote::Anyone, Allow)),
        ];
        for _ in 0..rules.len() {
            rules.rotate_left(1);
            assert_eq!(egress(&rules, Transport::Rc, "10.0.0.2").by, by("mail", "b"));
        }
    }

    #[test]
    fn a_rule_of_one_transport_says_nothing_about_others() {
        use Transport::{Rc, Uc, Ud};
        let of = |t| [("web", Rule { transport: Some(t), ..rule("r", Egress, Remote::Anyone, Allow) })];
        for (rule, traffic) in [Rc, Uc, Ud].into_iter().flat_map(|a| [Rc, Uc, Ud].map(|b| (a, b))) {
            let decision = egress(&of(rule), traffic, "10.0.0.2");
            assert_eq!(decision.action == Allow, rule == traffic, "{rule:?} {traffic:?}");
        }
        // One that comes first does not hide one that matches.
        let first = Rule { priority: 1, transport: Some(Ud), ..rule("first", Egress, Remote::Anyone, Deny) };
        let rules = [("web", first), ("web", rule("second", Egress, Remote::Anyone, Allow))];
        assert_eq!(egress(&rules, Rc, "10.0.0.2").by, by("web", "second"));
        assert_eq!(egress(&rules, Ud, "10.0.0.2").by, by("web", "first"));
    }

    #[test]
    fn directions_and_groups_are_apart() {
        for rule in [
            ("web", rule("r", Ingress, Remote::Anyone, Allow)),
            ("db", rule("r", Egress, Remote::Anyone, Allow)),
        ] {
            assert_eq!(egress(&[rule], Transport::Rc, "10.0.0.2").by, By::Default);
        }
        let other = [("web", rule("r", Egress, Remote::Group("web".into()), Allow))];
        assert_eq!(egress(&other, Transport::Rc, "10.0.0.2").by, By::Default, "the remote one is in db");
    }

    #[test]
    fn prefixes_match_addresses_of_their_own_family() {
        for (net, matches, differs) in [
            ("10.0.0.0/24", vec!["10.0.0.0", "10.0.0.255"], vec!["10.0.1.0", "fd00::1"]),
            ("10.0.0.7/32", vec!["10.0.0.7"], vec!["10.0.0.6", "10.0.0.8"]),
            ("0.0.0.0/0", vec!["10.0.0.1", "255.255.255.255"], vec!["fe80::1", "::1"]),
            ("128.0.0.0/1", vec!["128.0.0.0", "200.0.0.1"], vec!["127.255.255.255", "8000::"]),
            ("::/0", vec!["fe80::1", "::1"], vec!["10.0.0.1", "0.0.0.1"]),
            ("fd00::/8", vec!["fd00::", "fdff::1"], vec!["fc00::1", "10.0.0.1"]),
            ("fd00::7/128", vec!["fd00::7"], vec!["fd00::6"]),
            ("::fffe:0:0/95", vec!["::fffe:1.2.3.4"], vec!["1.2.3.4"]),
            // Not accepted from users; such a prefix holds no address that a vNIC can have.
            ("::ffff:10.0.0.0/120", vec![], vec!["10.0.0.1"]),
            // Bits beyond the length count for nothing.
            ("10.0.0.7/24", vec!["10.0.0.1"], vec!["10.0.1.7"]),
        ] {
            let rules = [("web", rule("r", Egress, prefix(net), Allow))];
            for ip in matches {
                assert_eq!(egress(&rules, Transport::Rc, ip).by, by("web", "r"), "{net} {ip}");
            }
            for ip in differs {
                assert_eq!(egress(&rules, Transport::Rc, ip).by, By::Default, "{net} {ip}");
            }
        }
        // A mapped address is an IPv4 one.
        let rules = [("web", rule("r", Egress, prefix("10.0.0.0/24"), Allow))];
        assert_eq!(egress(&rules, Transport::Rc, "::ffff:10.0.0.9").by, by("web", "r"));
    }

    #[test]
    fn what_is_removed_is_gone_and_the_rest_stays() {
        let web: Arc<str> = "web".into();
        let mut all = Vec::new();
        for remote in
            [Remote::Anyone, prefix("10.0.0.0/24"), prefix("10.0.1.0/24"), Remote::Group("db".into())]
        {
            for direction in [Ingress, Egress] {
                all.push(Rule { priority: 1, ..rule("a", direction, remote.clone(), Allow) });
                all.push(Rule {
                    transport: Some(Transport::Rc),
                    ..rule("b", direction, remote.clone(), Deny)
                });
            }
        }
        let mut groups = Groups::default();
        groups.remove(&web, &all[0]);
        all.iter().for_each(|r| groups.insert(&web, r));
        groups.insert(&web, &all[0]);
        for (i, r) in all.iter().enumerate() {
            groups.remove(&web, r);
            groups.remove(&web, r);
            groups.remove(&"mail".into(), &all[all.len() - 1]);
            let mut rest = Groups::default();
            all[i + 1..].iter().for_each(|r| rest.insert(&web, r));
            assert_eq!(groups.tables, rest.tables, "after {r:?}");
        }
        assert!(groups.tables.is_empty(), "nothing is kept for nothing");
        // A rule that differs in what decides is another one.
        groups.insert(&web, &all[0]);
        groups.remove(&web, &Rule { priority: 2, ..all[0].clone() });
        assert!(!groups.tables.is_empty());
    }
}
