//! The rules of security groups, and the connections that a change of one can touch.

use std::collections::HashSet;
use std::sync::Arc;

use masq_model::{Action, Direction, Key, Kind, Object, SecurityGroupRule, Transport};
use masq_policy::conntrack::{Addresses, Between, Touched};
use masq_policy::rules;
use masq_types::{Gid, Vni};

use super::Directory;

impl Directory {
    pub(super) fn add_rule(&mut self, object: &Object, touched: &mut Touched) {
        if let Object::SecurityGroupRule(r) = object {
            self.groups.insert(&Arc::from(r.security_group.as_str()), &policy_rule(r));
            self.touch_rule(r, touched);
        }
    }

    pub(super) fn remove_rule(&mut self, object: &Object, touched: &mut Touched) {
        if let Object::SecurityGroupRule(r) = object {
            self.groups.remove(&Arc::from(r.security_group.as_str()), &policy_rule(r));
            self.touch_rule(r, touched);
        }
    }

    /// An unreadable entry counts as absent, save for a rule: what it says may be to deny.
    pub(super) fn mark_unreadable(&mut self, key: &Key, touched: &mut Touched) {
        if key.kind() == Kind::SecurityGroupRule && self.unreadable.insert(key.clone()) {
            let group = group_of(key);
            deny_everything(key).iter().for_each(|rule| self.groups.insert(&group, rule));
            self.touch_members(&group, touched);
        }
    }

    pub(super) fn unmark_unreadable(&mut self, key: &Key, touched: &mut Touched) {
        if self.unreadable.remove(key) {
            let group = group_of(key);
            deny_everything(key).iter().for_each(|rule| self.groups.remove(&group, rule));
            self.touch_members(&group, touched);
        }
    }

    fn touch_rule(&mut self, rule: &SecurityGroupRule, touched: &mut Touched) {
        let other = match (&rule.remote_prefix, &rule.remote_group) {
            (Some(net), _) => Addresses::Prefix(*net),
            (None, Some(group)) => self.members_of(group),
            (None, None) => Addresses::Any,
        };
        self.touch_between(&rule.security_group, other, transport(rule.transport), touched);
    }

    /// Everything about a group may have changed.
    pub(super) fn touch_members(&mut self, group: &str, touched: &mut Touched) {
        self.touch_between(group, Addresses::Any, None, touched);
    }

    fn touch_between(
        &mut self,
        group: &str,
        other: Addresses,
        transport: Option<rules::Transport>,
        touched: &mut Touched,
    ) {
        let vni = self.security_group(group).and_then(|g| self.vpc(&g.vpc)).map(|vpc| vpc.vni);
        match vni {
            Some(vni) => {
                touched.add_between(Between { vni, one: self.members_of(group), other, transport });
            }
            // The group is not known, or not any more; its members are.
            None => self.member_claims(group).for_each(|(vni, gid)| touched.add_address(vni, gid)),
        }
    }

    /// The addresses of a group's members: one set for all rules of a batch, since groups and batches may be large.
    fn members_of(&mut self, group: &str) -> Addresses {
        if let Some(gids) = self.member_sets.get(group) {
            return Addresses::These(gids.clone());
        }
        let gids: Arc<HashSet<Gid>> = Arc::new(self.member_claims(group).map(|(_, gid)| gid).collect());
        self.member_sets.insert(group.into(), gids.clone());
        Addresses::These(gids)
    }

    fn member_claims(&self, group: &str) -> impl Iterator<Item = (Vni, Gid)> {
        let members = self.members.get(group).into_iter().flatten();
        members.flat_map(|vnic| self.addresses.claims_of(vnic)).map(|(vni, claim)| (*vni, claim.gid()))
    }
}

fn policy_rule(r: &SecurityGroupRule) -> rules::Rule {
    rules::Rule {
        name: Arc::from(r.name.as_str()),
        direction: match r.direction {
            Direction::Ingress => rules::Direction::Ingress,
            Direction::Egress => rules::Direction::Egress,
        },
        remote: match (&r.remote_prefix, &r.remote_group) {
            (Some(net), _) => rules::Remote::Prefix(*net),
            (None, Some(group)) => rules::Remote::Group(Arc::from(group.as_str())),
            (None, None) => rules::Remote::Anyone,
        },
        transport: transport(r.transport),
        priority: r.priority,
        action: match r.action {
            Action::Allow => rules::Action::Allow,
            Action::Deny => rules::Action::Deny,
        },
    }
}

fn transport(t: Transport) -> Option<rules::Transport> {
    match t {
        Transport::Any => None,
        Transport::Rc => Some(rules::Transport::Rc),
        Transport::Uc => Some(rules::Transport::Uc),
        Transport::Ud => Some(rules::Transport::Ud),
    }
}

fn group_of(rule: &Key) -> Arc<str> {
    rule.name().split('/').next().unwrap_or_default().into()
}

/// What stands in for a rule that cannot be read.
fn deny_everything(key: &Key) -> [rules::Rule; 2] {
    let rule = key.name().split('/').nth(1).unwrap_or_default();
    let name: Arc<str> = format!("{rule} (unreadable)").into();
    [rules::Direction::Ingress, rules::Direction::Egress].map(|direction| rules::Rule {
        name: name.clone(),
        direction,
        remote: rules::Remote::Anyone,
        transport: None,
        priority: 0,
        action: rules::Action::Deny,
    })
}
