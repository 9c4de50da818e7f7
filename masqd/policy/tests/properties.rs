//! Rules, connections and changes of both, against models that look at everything each time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use masq_policy::conntrack::{Addresses, Between, Connection, Conntrack, Touched};
use masq_policy::rules::{
    Action, By, Decision, Denied, Direction, Flow, Groups, Party, Remote, Rule, Transport, Verdict,
};
use masq_types::{Gid, Vni, WireQpn};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

const ADDRESSES: [&str; 7] = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "200.0.0.1", "fd00::1", "fd00::2", "::1"];

const PREFIXES: [&str; 10] = [
    "0.0.0.0/0",
    "128.0.0.0/1",
    "10.0.0.0/23",
    "10.0.0.0/24",
    "10.0.0.2/32",
    "::/0",
    "::/64",
    "fd00::/8",
    "fd00::2/128",
    "::ffff:0:0/96",
];

const GROUPS: [&str; 3] = ["a", "b", "c"];

/// A vNIC of the one network that the rules are about.
#[derive(Clone, Debug)]
struct Vnic {
    name: String,
    gid: Gid,
    groups: Vec<Arc<str>>,
}

impl Vnic {
    fn party(&self) -> Party<'_> {
        Party { vnic: &self.name, gid: self.gid, groups: &self.groups }
    }
}

type Rules = BTreeMap<(Arc<str>, Arc<str>), Rule>;

/// What the rules say, from the text of the module alone: all of them are looked at.
mod naive {
    use super::*;

    pub fn evaluate(rules: &Rules, transport: Transport, local: &Vnic, remote: &Vnic) -> Verdict {
        let (outbound, inbound) =
            (flow(rules, transport, local, remote), flow(rules, transport, remote, local));
        match (local.name == remote.name, outbound.is_allowed(), inbound.is_allowed()) {
            (true, ..) => Verdict::SameVnic,
            (_, true, _) => Verdict::Allow(outbound),
            (_, _, true) => Verdict::Allow(inbound),
            _ => Verdict::Deny(Denied { outbound, inbound }),
        }
    }

    pub fn flow(rules: &Rules, transport: Transport, from: &Vnic, to: &Vnic) -> Flow {
        Flow {
            from: from.gid,
            to: to.gid,
            egress: decide(rules, Direction::Egress, transport, from, to),
            ingress: decide(rules, Direction::Ingress, transport, to, from),
        }
    }

    fn decide(rules: &Rules, direction: Direction, of: Transport, member: &Vnic, remote: &Vnic) -> Decision {
        let mut matching: Vec<_> = rules
            .iter()
            .filter(|((group, _), r)| {
                member.groups.contains(group)
                    && r.direction == direction
                    && (r.transport.is_none() || r.transport == Some(of))
                    && match &r.remote {
                        Remote::Anyone => true,
                        Remote::Prefix(net) => net.contains(&remote.gid.ip()),
                        Remote::Group(g) => remote.groups.contains(g),
                    }
            })
            .collect();
        matching.sort_by_key(|((group, name), r)| {
            (r.priority, r.action == Action::Allow, group.clone(), name.clone())
        });
        if let Some(((group, name), rule)) = matching.first() {
            return Decision {
                action: rule.action,
                by: By::Rule { group: group.clone(), rule: name.clone() },
            };
        }
        let common: BTreeSet<_> = member.groups.iter().filter(|g| remote.groups.contains(g)).collect();
        match common.first() {
            Some(group) => Decision { action: Action::Allow, by: By::CommonGroup((*group).clone()) },
            None => Decision { action: Action::Deny, by: By::Default },
        }
    }
}

fn any_gid() -> impl Strategy<Value = Gid> {
    select(&ADDRESSES).prop_map(|a| a.parse::<IpAddr>().unwrap().into())
}

fn any_prefix() -> impl Strategy<Value = IpNet> {
    select(&PREFIXES).prop_map(|net| net.parse().unwrap())
}

fn any_group() -> impl Strategy<Value = Arc<str>> {
    select(&GROUPS).prop_map(Arc::from)
}

fn any_transport() -> impl Strategy<Value = Transport> {
    select(&[Transport::Rc, Transport::Uc, Transport::Ud])
}

fn any_rule() -> impl Strategy<Value = (Arc<str>, Rule)> {
    let remote = prop_oneof![
        1 => Just(Remote::Anyone),
        2 => any_prefix().prop_map(Remote::Prefix),
        2 => any_group().prop_map(Remote::Group),
    ];
    let direction = select(&[Direction::Ingress, Direction::Egress]);
    let action = select(&[Action::Allow, Action::Allow, Action::Deny]);
    let name = (0..6).prop_map(|n| Arc::from(format!("r{n}")));
    (any_group(), name, direction, remote, prop::option::weighted(0.3, any_transport()), 0u32..3, action)
        .prop_map(|(group, name, direction, remote, transport, priority, action)| {
            (group, Rule { name, direction, remote, transport, priority, action })
        })
}

/// One vNIC for each address, of random groups.
fn any_vnics() -> impl Strategy<Value = Vec<Vnic>> {
    let groups = || subsequence(GROUPS.to_vec(), 0..=2).prop_shuffle();
    prop::collection::vec(groups(), ADDRESSES.len()).prop_map(|all| {
        let vnic = |(gid, groups): (&&str, Vec<&str>)| Vnic {
            name: format!("vnic-{gid}"),
            gid: gid.parse::<IpAddr>().unwrap().into(),
            groups: groups.into_iter().map(Arc::from).collect(),
        };
        ADDRESSES.iter().zip(all).map(vnic).collect()
    })
}

fn vni(n: u32) -> Vni {
    Vni::new(n).unwrap()
}

/// One step in the life of a host.
#[derive(Clone, Debug)]
enum Step {
    /// A rule is added, or takes the place of the one of its name.
    Put(Arc<str>, Rule),
    /// The rule at this position, counted round, is removed.
    Delete(usize),
    /// A vNIC joins or leaves a group.
    Join(usize, Arc<str>),
    /// A queue pair asks to be connected.
    Connect { owner: u32, transport: Transport, local: usize, remote: usize },
    /// One is not connected any more.
    Disconnect(u32),
}

fn any_step() -> impl Strategy<Value = Step> {
    let vnic = || 0..ADDRESSES.len();
    prop_oneof![
        4 => any_rule().prop_map(|(group, rule)| Step::Put(group, rule)),
        2 => any::<usize>().prop_map(Step::Delete),
        1 => (vnic(), any_group()).prop_map(|(vnic, group)| Step::Join(vnic, group)),
        6 => (0u32..12, any_transport(), vnic(), vnic())
            .prop_map(|(owner, transport, local, remote)| Step::Connect { owner, transport, local, remote }),
        1 => (0u32..12).prop_map(Step::Disconnect),
    ]
}

/// A host: rules by index and all in one map, connections by index and all in one map.
struct World {
    groups: Groups,
    rules: Rules,
    vnics: Vec<Vnic>,
    conntrack: Conntrack<u32>,
    connections: BTreeMap<u32, Connection>,
}

impl World {
    fn vnic(&self, gid: Gid) -> &Vnic {
        self.vnics.iter().find(|v| v.gid == gid).unwrap()
    }

    fn evaluate(&self, transport: Transport, local: Gid, remote: Gid) -> Verdict {
        self.groups.evaluate(transport, self.vnic(local).party(), self.vnic(remote).party())
    }

    fn members(&self, group: &Arc<str>) -> Addresses {
        let members = self.vnics.iter().filter(|v| v.groups.contains(group));
        Addresses::These(Arc::new(members.map(|v| v.gid).collect()))
    }

    /// What a change of a rule touches.
    fn touch(&self, group: &Arc<str>, rule: &Rule, touched: &mut Touched) {
        let other = match &rule.remote {
            Remote::Anyone => Addresses::Any,
            Remote::Prefix(net) => Addresses::Prefix(*net),
            Remote::Group(group) => self.members(group),
        };
        let one = self.members(group);
        touched.add_between(Between { vni: vni(1), one, other, transport: rule.transport });
    }

    fn delete(&mut self, group: &Arc<str>, name: &Arc<str>, touched: &mut Touched) {
        if let Some(old) = self.rules.remove(&(group.clone(), name.clone())) {
            self.groups.remove(group, &old);
            self.touch(group, &old, touched);
        }
    }

    fn disconnect(&mut self, owner: u32) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.conntrack.remove(owner), self.connections.remove(&owner));
        Ok(())
    }

    fn connect(
        &mut self,
        owner: u32,
        transport: Transport,
        local: usize,
        remote: usize,
    ) -> Result<(), TestCaseError> {
        let (local, remote) = (self.vnics[local].gid, self.vnics[remote].gid);
        let verdict = self.evaluate(transport, local, remote);
        if !verdict.is_allowed() {
            return Ok(());
        }
        let qpn = WireQpn::from_wire;
        let connection = Connection {
            vni: vni(1),
            transport,
            local,
            local_qpn: qpn(owner + 16),
            remote,
            remote_qpn: qpn(owner + 32),
            peer: self.vnic(remote).name.as_str().into(),
            peer_host: "h2".into(),
            remote_address: [10, 77, 0, 1].into(),
            other_addresses: Vec::new(),
            allowed_by: format!("{verdict:?}").into(),
            since: Duration::ZERO,
        };
        let old = self.conntrack.insert(owner, connection.clone());
        prop_assert_eq!(old, self.connections.insert(owner, connection));
        Ok(())
    }

    /// What the rules say about datagrams, for each pair of vNICs.
    fn datagrams(&self) -> BTreeMap<(Gid, Gid), (bool, bool, bool)> {
        let pairs = self.vnics.iter().flat_map(|a| self.vnics.iter().map(move |b| (a, b)));
        let judge = |(a, b): (&Vnic, &Vnic)| {
            let said = self.groups.datagrams(a.party(), b.party());
            ((a.gid, b.gid), (said.send, said.receive, said.cm))
        };
        pairs.map(judge).collect()
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let before = self.datagrams();
        let mut touched = Touched::nothing();
        match step {
            Step::Put(group, rule) => {
                self.delete(&group, &rule.name.clone(), &mut touched);
                self.groups.insert(&group, &rule);
                self.touch(&group, &rule, &mut touched);
                self.rules.insert((group, rule.name.clone()), rule);
            }
            Step::Delete(n) => {
                let at = n.checked_rem(self.rules.len());
                if let Some((group, name)) = at.and_then(|at| self.rules.keys().nth(at).cloned()) {
                    self.delete(&group, &name, &mut touched);
                }
            }
            Step::Join(vnic, group) => {
                let vnic = &mut self.vnics[vnic];
                match vnic.groups.iter().position(|g| *g == group) {
                    Some(at) => {
                        vnic.groups.remove(at);
                    }
                    None => vnic.groups.push(group),
                }
                touched.add_address(vni(1), vnic.gid);
            }
            Step::Connect { owner, transport, local, remote } => {
                self.connect(owner, transport, local, remote)?;
            }
            Step::Disconnect(owner) => self.disconnect(owner)?,
        }
        for ((local, remote), now) in self.datagrams() {
            let covered = touched.covers_ends(vni(1), &[local], &[remote]);
            prop_assert!(covered || before[&(local, remote)] == now, "{} {} was not touched", local, remote);
            prop_assert!(touched.is_nothing() || !touched.covers_ends(vni(2), &[local], &[remote]));
        }
        self.reevaluate(&touched)
    }

    fn reevaluate(&mut self, touched: &Touched) -> Result<(), TestCaseError> {
        let mut judged = Vec::new();
        let revoked = self.conntrack.reevaluate(touched, |c| {
            judged.push(c.local_qpn);
            match self.evaluate(c.transport, c.local, c.remote) {
                Verdict::Deny(denied) => Err(denied.to_string()),
                _ => Ok(()),
            }
        });
        let covered = self.connections.iter().filter(|(_, c)| touched.covers(c));
        prop_assert_eq!(judged, covered.clone().map(|(_, c)| c.local_qpn).collect::<Vec<_>>());
        let denied = covered.filter_map(|(owner, c)| {
            let (local, remote) = (self.vnic(c.local), self.vnic(c.remote));
            match naive::evaluate(&self.rules, c.transport, local, remote) {
                Verdict::Deny(denied) => Some((*owner, denied.to_string())),
                _ => None,
            }
        });
        prop_assert_eq!(&revoked, &denied.collect::<Vec<_>>());
        for (owner, _) in revoked {
            self.disconnect(owner)?;
        }
        Ok(())
    }

    /// What must hold after each step.
    fn check(&self) -> Result<(), TestCaseError> {
        for (local, remote) in self.vnics.iter().flat_map(|a| self.vnics.iter().map(move |b| (a, b))) {
            for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
                let verdict = self.evaluate(transport, local.gid, remote.gid);
                prop_assert_eq!(&verdict, &naive::evaluate(&self.rules, transport, local, remote));
                let there = self.evaluate(transport, remote.gid, local.gid);
                prop_assert_eq!(verdict.is_allowed(), there.is_allowed(), "both ends agree");
                if let (Verdict::Deny(here), Verdict::Deny(there)) = (verdict, there) {
                    prop_assert_eq!((here.outbound, here.inbound), (there.inbound, there.outbound));
                }
            }
        }
        let datagrams = self.datagrams();
        for ((a, b), (send, receive, cm)) in &datagrams {
            let (local, remote) = (self.vnic(*a), self.vnic(*b));
            prop_assert_eq!(datagrams[&(*b, *a)], (*receive, *send, *cm), "both ends agree");
            let any = [Transport::Rc, Transport::Uc, Transport::Ud]
                .into_iter()
                .any(|t| naive::evaluate(&self.rules, t, local, remote).is_allowed());
            prop_assert_eq!(*cm, any, "management passes when anything may be set up");
            if a != b {
                prop_assert_eq!(*send, naive::flow(&self.rules, Transport::Ud, local, remote).is_allowed());
            }
            let denied = self.groups.datagrams(local.party(), remote.party()).denied;
            prop_assert_eq!(denied.is_none(), *send && *receive && *cm);
        }
        // What was touched was all that could change: whoever is still connected may be.
        for c in self.connections.values() {
            prop_assert!(self.evaluate(c.transport, c.local, c.remote).is_allowed(), "{:?}", c);
        }
        let held: BTreeMap<u32, Connection> = self.conntrack.iter().map(|(h, c)| (h, c.clone())).collect();
        prop_assert_eq!(&held, &self.connections);
        prop_assert_eq!(self.conntrack.len(), self.connections.len());
        prop_assert_eq!(self.conntrack.is_empty(), self.connections.is_empty());
        for gid in self.vnics.iter().map(|v| v.gid) {
            let mut touched = Touched::nothing();
            touched.add_address(vni(1), gid);
            prop_assert_eq!(
                covered_by_index(&self.conntrack, &touched),
                covered_by_scan(&self.connections, &touched)
            );
        }
        Ok(())
    }
}

fn covered_by_index(conntrack: &Conntrack<u32>, touched: &Touched) -> Vec<u32> {
    conntrack.reevaluate(touched, |_| Err(())).into_iter().map(|(owner, ())| owner).collect()
}

fn covered_by_scan(connections: &BTreeMap<u32, Connection>, touched: &Touched) -> Vec<u32> {
    connections.iter().filter(|(_, c)| touched.covers(c)).map(|(owner, _)| *owner).collect()
}

fn any_addresses() -> impl Strategy<Value = Addresses> {
    prop_oneof![
        1 => Just(Addresses::Any),
        2 => any_prefix().prop_map(Addresses::Prefix),
        3 => prop::collection::hash_set(any_gid(), 0..6).prop_map(|gids| Addresses::These(Arc::new(gids))),
    ]
}

/// Anything that a change could touch; seldom everything.
fn any_touched() -> impl Strategy<Value = Touched> {
    let network = || (1u32..3).prop_map(vni);
    let between = (network(), any_addresses(), any_addresses(), prop::option::of(any_transport()))
        .prop_map(|(vni, one, other, transport)| Between { vni, one, other, transport });
    let betweens = prop::collection::vec(between, 0..3);
    let addresses = prop::collection::vec((network(), any_gid()), 0..6);
    (prop::bool::weighted(0.05), betweens, addresses).prop_map(|(everything, betweens, addresses)| {
        let mut touched = if everything { Touched::everything() } else { Touched::nothing() };
        betweens.into_iter().for_each(|b| touched.add_between(b));
        addresses.into_iter().for_each(|(vni, gid)| touched.add_address(vni, gid));
        touched
    })
}

fn any_connection() -> impl Strategy<Value = Connection> {
    (1u32..3, any_transport(), any_gid(), any_gid()).prop_map(|(net, transport, local, remote)| Connection {
        vni: vni(net),
        transport,
        local,
        local_qpn: WireQpn::from_wire(16),
        remote,
        remote_qpn: WireQpn::from_wire(32),
        peer: "peer".into(),
        peer_host: "h2".into(),
        remote_address: [10, 77, 0, 1].into(),
        other_addresses: Vec::new(),
        allowed_by: "a rule".into(),
        since: Duration::ZERO,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..Default::default() })]

    #[test]
    fn a_host_s_life_against_one_that_looks_at_everything(
        vnics in any_vnics(),
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let mut world = World {
            groups: Groups::default(),
            rules: Rules::new(),
            vnics,
            conntrack: Conntrack::default(),
            connections: BTreeMap::new(),
        };
        for step in steps {
            world.step(step)?;
            world.check()?;
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_order_in_which_rules_came_and_what_went_again_does_not_matter(
        vnics in any_vnics(),
        rules in prop::collection::vec(any_rule(), 0..12),
        gone in prop::collection::vec(any_rule(), 0..6),
        transport in any_transport(),
    ) {
        // As in a store, a name is in use once in each group; a rule of another name never equals one that stays.
        let rules: Rules = rules.into_iter().map(|(g, r)| ((g, r.name.clone()), r)).collect();
        let gone = gone.into_iter().map(|(g, r)| (g, Rule { name: format!("gone-{}", r.name).into(), ..r }));
        let gone: Vec<(Arc<str>, Rule)> = gone.collect();
        let (mut here, mut there) = (Groups::default(), Groups::default());
        gone.iter().for_each(|(group, rule)| here.insert(group, rule));
        rules.iter().for_each(|((group, _), rule)| here.insert(group, rule));
        gone.iter().for_each(|(group, rule)| here.remove(group, rule));
        rules.iter().rev().for_each(|((group, _), rule)| there.insert(group, rule));
        for (a, b) in vnics.iter().flat_map(|a| vnics.iter().map(move |b| (a, b))) {
            let verdict = here.evaluate(transport, a.party(), b.party());
            prop_assert_eq!(&verdict, &there.evaluate(transport, a.party(), b.party()));
            prop_assert_eq!(&verdict, &naive::evaluate(&rules, transport, a, b));
        }
    }

    #[test]
    fn the_indices_find_what_a_scan_of_all_connections_finds(
        changes in prop::collection::vec((0u32..20, prop::option::weighted(0.8, any_connection())), 0..40),
        touched in prop::collection::vec(any_touched(), 1..6),
    ) {
        let (mut conntrack, mut connections) = (Conntrack::default(), BTreeMap::new());
        for (owner, connection) in changes {
            match connection {
                Some(c) => prop_assert_eq!(conntrack.insert(owner, c.clone()), connections.insert(owner, c)),
                None => prop_assert_eq!(conntrack.remove(owner), connections.remove(&owner)),
            }
        }
        let mut all = Touched::nothing();
        for one in touched {
            prop_assert_eq!(covered_by_index(&conntrack, &one), covered_by_scan(&connections, &one));
            prop_assert!(!one.is_nothing() || covered_by_scan(&connections, &one).is_empty());
            all.merge(one);
        }
        prop_assert_eq!(covered_by_index(&conntrack, &all), covered_by_scan(&connections, &all));
    }
}
