//! Rules of a network, and what they say about a connection.
//!
//! A connection has no initiator that either host could know of (a queue pair context names two equal
//! ends), so a connection is allowed when the rules allow traffic in at least one of its two directions.
//! Both hosts evaluate the same pure function and so come to the same verdict.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use masq_types::Gid;

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Traffic that matches is forbidden.
    Deny,
    /// Traffic that matches is allowed.
    Allow,
}

/// A rule about traffic from `source` to `destination`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// For messages.
    pub name: Arc<str>,
    /// The matching rule with the smallest number decides; among equals one that denies.
    pub priority: u32,
    /// Who sends.
    pub source: IpNet,
    /// Who receives.
    pub destination: IpNet,
    /// What happens.
    pub action: Action,
}

/// The rules of one network, in the order in which they decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    rules: Vec<Rule>,
}

/// What the rules say about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may be made.
    Allow(Allowed),
    /// It may not.
    Deny(Denied),
}

impl Verdict {
    /// Whether the connection may be made.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Verdict::Allow(_))
    }
}

/// Why a connection may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Both ends are the same vNIC: such traffic never leaves its VM's own memory.
    SameVnic,
    /// A rule allows one direction.
    Rule {
        /// The rule.
        rule: Arc<str>,
        /// Sender of that direction.
        from: Gid,
        /// Receiver of that direction.
        to: Gid,
    },
}

/// Why a connection may not be made: what forbids each direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The end that asked.
    pub local: Gid,
    /// The other end.
    pub remote: Gid,
    /// What forbids traffic from `local` to `remote`.
    pub outbound: DenyReason,
    /// What forbids traffic from `remote` to `local`.
    pub inbound: DenyReason,
}

/// What forbids traffic in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DenyReason {
    /// This rule.
    Rule(Arc<str>),
    /// No rule matches, and what no rule allows is forbidden.
    DefaultDeny,
}

impl RuleSet {
    /// Puts `rules` in the order in which they decide.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> RuleSet {
        let mut rules: Vec<Rule> = rules.into_iter().collect();
        rules.sort_by(|a, b| (a.priority, a.action, &a.name).cmp(&(b.priority, b.action, &b.name)));
        RuleSet { rules }
    }

    /// The rules, in the order in which they decide.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The verdict about a connection between two different vNICs of this network.
    pub fn evaluate(&self, local: Gid, remote: Gid) -> Verdict {
        let outbound = match self.direction(local.ip(), remote.ip()) {
            Ok(rule) => return Verdict::Allow(Allowed::Rule { rule, from: local, to: remote }),
            Err(reason) => reason,
        };
        let inbound = match self.direction(remote.ip(), local.ip()) {
            Ok(rule) => return Verdict::Allow(Allowed::Rule { rule, from: remote, to: local }),
            Err(reason) => reason,
        };
        Verdict::Deny(Denied { local, remote, outbound, inbound })
    }

    /// The rule that allows traffic from `source` to `destination`, or what forbids it.
    fn direction(&self, source: IpAddr, destination: IpAddr) -> Result<Arc<str>, DenyReason> {
        let matches = |r: &&Rule| r.source.contains(&source) && r.destination.contains(&destination);
        match self.rules.iter().find(matches) {
            Some(rule) if rule.action == Action::Allow => Ok(rule.name.clone()),
            Some(rule) => Err(DenyReason::Rule(rule.name.clone())),
            None => Err(DenyReason::DefaultDeny),
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Denied { local, remote, outbound, inbound } = self;
        if outbound == inbound {
            return write!(f, "{outbound} traffic between {local} and {remote}");
        }
        write!(
            f,
            "{outbound} traffic from {local} to {remote}, and {inbound} traffic from {remote} to {local}"
        )
    }
}

impl fmt::Display for DenyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DenyReason::Rule(name) => write!(f, "rule {name} denies"),
            DenyReason::DefaultDeny => f.write_str("no rule allows"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gid(s: &str) -> Gid {
        s.parse::<IpAddr>().unwrap().into()
    }

    fn rule(name: &str, priority: u32, source: &str, destination: &str, action: Action) -> Rule {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        Rule { name: name.into(), priority, source, destination, action }
    }

    #[test]
    fn what_no_rule_allows_is_denied() {
        let verdict = RuleSet::default().evaluate(gid("10.0.0.1"), gid("10.0.0.2"));
        let Verdict::Deny(denied) = verdict else { panic!("{verdict:?}") };
        assert_eq!(denied.outbound, DenyReason::DefaultDeny);
        assert_eq!(denied.to_string(), "no rule allows traffic between 10.0.0.1 and 10.0.0.2");
    }

    #[test]
    fn one_allowed_direction_is_enough_and_both_ends_agree() {
        let rules = RuleSet::new([rule("r", 1, "10.0.0.1/32", "10.0.0.2/32", Action::Allow)]);
        let (a, b) = (gid("10.0.0.1"), gid("10.0.0.2"));
        let allowed = Verdict::Allow(Allowed::Rule { rule: "r".into(), from: a, to: b });
        assert_eq!(rules.evaluate(a, b), allowed);
        assert_eq!(rules.evaluate(b, a), allowed);
        assert!(!rules.evaluate(a, gid("10.0.0.3")).is_allowed());
    }

    #[test]
    fn the_smallest_priority_decides_and_deny_wins_a_tie() {
        let net = "10.0.0.0/24";
        let both = |deny, allow| {
            let rules = [
                rule("a-allow", allow, net, net, Action::Allow),
                rule("b-deny", deny, net, net, Action::Deny),
            ];
            RuleSet::new(rules).evaluate(gid("10.0.0.1"), gid("10.0.0.2")).is_allowed()
        };
        assert!(both(2, 1));
        assert!(!both(1, 2));
        assert!(!both(1, 1));
    }

    #[test]
    fn a_denial_names_the_rule_of_each_direction() {
        let rules = RuleSet::new([rule("no-out", 1, "10.0.0.1/32", "10.0.0.0/24", Action::Deny)]);
        let Verdict::Deny(denied) = rules.evaluate(gid("10.0.0.1"), gid("10.0.0.2")) else { panic!() };
        assert_eq!(denied.outbound, DenyReason::Rule("no-out".into()));
        assert_eq!(denied.inbound, DenyReason::DefaultDeny);
        assert_eq!(
            denied.to_string(),
            "rule no-out denies traffic from 10.0.0.1 to 10.0.0.2, and no rule allows traffic from 10.0.0.2 to 10.0.0.1"
        );
    }

    #[test]
    fn families_do_not_match_each_other() {
        let rules = RuleSet::new([rule("all4", 1, "0.0.0.0/0", "0.0.0.0/0", Action::Allow)]);
        assert!(rules.evaluate(gid("10.0.0.1"), gid("10.9.0.2")).is_allowed());
        assert!(!rules.evaluate(gid("fe80::1"), gid("fe80::2")).is_allowed());
        let rules = RuleSet::new([rule("all6", 1, "::/0", "::/0", Action::Allow)]);
        assert!(
            !rules.evaluate(gid("10.0.0.1"), gid("10.0.0.2")).is_allowed(),
            "an IPv4 GID is an IPv4 address"
        );
    }

    fn any_rules() -> impl Strategy<Value = Vec<Rule>> {
        let net = (0u8..4, 24u8..=32).prop_map(|(last, len)| {
            ipnet::Ipv4Net::new([10, 0, 0, last].into(), len).unwrap().trunc().into()
        });
        let action = prop_oneof![Just(Action::Allow), Just(Action::Deny)];
        let rule = (net.clone(), net, action, 0u32..3, 0u8..6).prop_map(
            |(source, destination, action, priority, name)| Rule {
                name: format!("r{name}").as_str().into(),
                priority,
                source,
                destination,
                action,
            },
        );
        prop::collection::vec(rule, 0..6)
    }

    proptest! {
        #[test]
        fn both_ends_come_to_the_same_verdict_in_whatever_order_they_learn_the_rules(
            rules in any_rules(), a in 0u8..4, b in 0u8..4,
        ) {
            let (a, b) = (gid(&format!("10.0.0.{a}")), gid(&format!("10.0.0.{b}")));
            let mut reversed = rules.clone();
            reversed.reverse();
            let here = RuleSet::new(rules).evaluate(a, b).is_allowed();
            let there = RuleSet::new(reversed).evaluate(b, a).is_allowed();
            prop_assert_eq!(here, there);
        }
    }
}
