//! Changes of a desired state, against one that is judged as a whole, and by rules that are written down a second time.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use masq_model::{
    Action, Alias, DesiredState, Direction, Edit, Host, Key, Kind, Object, QosPolicy, Quota, SecurityGroup,
    SecurityGroupRule, StaticEndpoint, Transport, Vnic, Vpc,
};
use masq_types::{Gid, MacAddr, Vni};
use proptest::prelude::*;
use proptest::sample::subsequence;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn mac(n: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, n])
}

fn host(name: &str, underlay: &[u8], aliases: &[u8]) -> Host {
    let alias = |n: &u8| Alias {
        address: format!("10.0.0.{n}/24").parse().unwrap(),
        link: "eth1".into(),
        gateway: None,
    };
    Host {
        name: name.into(),
        underlay: underlay.iter().map(|n| IpAddr::from([10, 0, 0, *n])).collect(),
        aliases: aliases.iter().map(alias).collect(),
        class_rates: Vec::new(),
    }
}

fn vpc(name: &str, vni: u32) -> Vpc {
    Vpc { name: name.into(), vni: Vni::new(vni).unwrap() }
}

fn vnic(name: &str, host: Option<&str>, n: u8, addresses: &[&str]) -> Vnic {
    Vnic {
        name: name.into(),
        vpc: "v0".into(),
        host: host.map(Into::into),
        mac: mac(n),
        addresses: addresses.iter().map(|a| ip(a)).collect(),
        allowed_address_pairs: Vec::new(),
        security_groups: Vec::new(),
        qos_policy: None,
        quota: Quota::default(),
        paths: None,
        dedicated_alias: None,
    }
}

fn group(name: &str, vpc: &str) -> SecurityGroup {
    SecurityGroup { name: name.into(), vpc: vpc.into() }
}

fn rule(name: &str, group: &str, remote_group: Option<&str>) -> SecurityGroupRule {
    SecurityGroupRule {
        name: name.into(),
        security_group: group.into(),
        direction: Direction::Ingress,
        remote_prefix: None,
        remote_group: remote_group.map(Into::into),
        transport: Transport::Any,
        priority: 1000,
        action: Action::Allow,
    }
}

fn qos(name: &str) -> QosPolicy {
    QosPolicy {
        name: name.into(),
        rate_bits_per_sec: None,
        burst_bits: None,
        weight: 1,
        class: 0,
        dscp: None,
        trust_dscp: false,
    }
}

fn station(name: &str, underlay: u8, addresses: &[&str], groups: &[&str]) -> StaticEndpoint {
    StaticEndpoint {
        name: name.into(),
        vpc: "v0".into(),
        addresses: addresses.iter().map(|a| ip(a)).collect(),
        underlay_address: IpAddr::from([10, 0, 0, underlay]),
        security_groups: groups.iter().map(|g| (*g).into()).collect(),
    }
}

fn put<T>(kind: fn(T) -> Object, object: T) -> Edit {
    Edit::Put(kind(object))
}

fn delete(kind: Kind, name: &str) -> Edit {
    Edit::Delete(Key::new(kind, name))
}

/// Two hosts and two vNICs, each with a group; one vNIC uses all that its host has.
fn base() -> Vec<Object> {
    let mut a = vnic("n0", Some("h0"), 1, &["192.168.0.1"]);
    a.paths = Some(2);
    a.dedicated_alias = Some(ip("10.0.0.7"));
    a.security_groups = vec!["g0".into()];
    a.qos_policy = Some("q0".into());
    let mut b = vnic("n1", Some("h1"), 2, &["192.168.0.2"]);
    b.security_groups = vec!["g0".into(), "g1".into()];
    vec![
        Object::Host(host("h0", &[1, 2], &[7])),
        Object::Host(host("h1", &[3], &[])),
        Object::Vpc(vpc("v0", 1)),
        Object::Vpc(vpc("v1", 2)),
        Object::SecurityGroup(group("g0", "v0")),
        Object::SecurityGroup(group("g1", "v0")),
        Object::SecurityGroupRule(rule("r0", "g0", Some("g1"))),
        Object::QosPolicy(qos("q0")),
        Object::Vnic(a),
        Object::Vnic(b),
    ]
}

fn built(objects: impl IntoIterator<Item = Object>) -> Result<DesiredState, Vec<String>> {
    let mut state = DesiredState::default();
    edit(&mut state, objects.into_iter().map(Edit::Put).collect())?;
    Ok(state)
}

fn edit(state: &mut DesiredState, edits: Vec<Edit>) -> Result<(), Vec<String>> {
    state.edit(edits).map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

/// What is said about edits of the base state, which must not change it.
#[track_caller]
fn refused(edits: Vec<Edit>) -> Vec<String> {
    let mut state = built(base()).unwrap();
    let problems = edit(&mut state, edits).unwrap_err();
    assert_eq!(state, built(base()).unwrap());
    problems
}

#[track_caller]
fn accepted(edits: Vec<Edit>) -> DesiredState {
    let mut state = built(base()).unwrap();
    edit(&mut state, edits).unwrap();
    state
}

#[test]
fn two_vnics_swap_their_addresses_in_one_edit_and_not_in_two() {
    let (a, b) = (vnic("n0", Some("h0"), 2, &["192.168.0.2"]), vnic("n1", Some("h1"), 1, &["192.168.0.1"]));
    let state = accepted(vec![put(Object::Vnic, a.clone()), put(Object::Vnic, b.clone())]);
    assert_eq!((state.vnic("n0"), state.vnic("n1")), (Some(&a), Some(&b)));
    assert_eq!(
        refused(vec![put(Object::Vnic, a)]),
        [
            "vnic \"n0\": field mac: 52:54:00:00:00:02 is in use by vnic \"n1\" already",
            "vnic \"n0\": field addresses: 192.168.0.2 is in use by vnic \"n1\" already",
        ]
    );
}

#[test]
fn hosts_swap_addresses_and_networks_their_identifiers() {
    let swapped = vec![
        put(Object::Host, host("h0", &[3, 4], &[7])),
        put(Object::Host, host("h1", &[1], &[])),
        put(Object::Vpc, vpc("v0", 2)),
        put(Object::Vpc, vpc("v1", 1)),
    ];
    assert_eq!(accepted(swapped).vpc("v0").unwrap().vni.get(), 2);
}

#[test]
fn what_is_referred_to_cannot_be_deleted() {
    for (kind, name, expected) in [
        (Kind::Host, "h1", "host \"h1\": field name: it is still in use by vnic \"n1\""),
        (
            Kind::Vpc,
            "v0",
            "vpc \"v0\": field name: it is still in use by 4 objects, one of which is security_group \"g0\"",
        ),
        (
            Kind::SecurityGroup,
            "g0",
            "security_group \"g0\": field name: it is still in use by 3 objects, one of which is \
             security_group_rule \"g0/r0\"",
        ),
        (
            Kind::SecurityGroup,
            "g1",
            "security_group \"g1\": field name: it is still in use by 2 objects, one of which is \
             security_group_rule \"g0/r0\"",
        ),
        (Kind::QosPolicy, "q0", "qos_policy \"q0\": field name: it is still in use by vnic \"n0\""),
    ] {
        assert_eq!(refused(vec![delete(kind, name)]), [expected]);
    }
}

#[test]
fn what_refers_to_it_may_go_with_it_or_turn_elsewhere() {
    let state = accepted(vec![delete(Kind::Host, "h1"), delete(Kind::Vnic, "n1")]);
    assert!(state.host("h1").is_none() && state.vnic("n1").is_none());
    let moved = vnic("n1", Some("h0"), 2, &["192.168.0.2"]);
    accepted(vec![delete(Kind::Host, "h1"), put(Object::Vnic, moved)]);
    // One that changes and still refers to it is told itself.
    let stays = vnic("n1", Some("h1"), 2, &["192.168.0.3"]);
    assert_eq!(
        refused(vec![delete(Kind::Host, "h1"), put(Object::Vnic, stays)]),
        ["vnic \"n1\": field host: there is no host \"h1\""]
    );
    assert!(accepted(base().iter().map(|o| Edit::Delete(o.key())).collect()).objects().is_empty());
    accepted(vec![delete(Kind::Vnic, "never-was")]);
}

#[test]
fn a_host_keeps_what_its_vnics_use() {
    assert_eq!(
        refused(vec![put(Object::Host, host("h0", &[1], &[7]))]),
        ["vnic \"n0\": field paths: 2 lies outside 1 to 1, the underlay addresses of host \"h0\""]
    );
    assert_eq!(
        refused(vec![put(Object::Host, host("h0", &[1, 2], &[]))]),
        ["vnic \"n0\": field dedicated_alias: 10.0.0.7 is not among the aliases of host \"h0\""]
    );
    accepted(vec![put(Object::Host, host("h0", &[4, 1, 2], &[8, 7]))]);
}

#[test]
fn a_group_keeps_the_network_of_its_members_and_rules() {
    assert_eq!(
        refused(vec![put(Object::SecurityGroup, group("g1", "v1"))]),
        [
            "security_group_rule \"g0/r0\": field remote_group: security_group \"g1\" belongs to vpc \"v1\", not to \"v0\"",
            "vnic \"n1\": field security_groups: security_group \"g1\" belongs to vpc \"v1\", not to \"v0\"",
        ]
    );
}

#[test]
fn the_last_of_several_edits_of_an_object_counts() {
    let (bad, good) = (vpc("v0", 2), vpc("v0", 3));
    let state = accepted(vec![put(Object::Vpc, bad.clone()), put(Object::Vpc, good.clone())]);
    assert_eq!(state.vpc("v0"), Some(&good));
    assert_eq!(
        refused(vec![
            put(Object::Vpc, good),
            delete(Kind::Vpc, "v1"),
            put(Object::Vpc, vpc("v1", 2)),
            put(Object::Vpc, bad)
        ]),
        [
            "vpc \"v0\": field vni: 2 is in use by vpc \"v1\" already",
            "vpc \"v1\": field vni: 2 is in use by vpc \"v0\" already",
        ]
    );
}

#[test]
fn what_a_store_held_before_does_not_stand_in_the_way_of_other_changes() {
    let mut objects = base();
    objects.retain(|o| o.key() != Key::new(Kind::QosPolicy, "q0"));
    let mut state = DesiredState::from_objects(objects);
    edit(&mut state, vec![put(Object::Vpc, vpc("v1", 9))]).unwrap();
    let missing = edit(&mut state, vec![put(Object::Host, host("h0", &[1, 2, 4], &[7]))]).unwrap_err();
    assert_eq!(missing, ["vnic \"n0\": field qos_policy: there is no qos_policy \"q0\""]);
    edit(&mut state, vec![put(Object::QosPolicy, qos("q0"))]).unwrap();
}

/// The rules about several objects, as simply as they can be written. Single objects are good already.
fn consistent(objects: &BTreeMap<Key, Object>) -> bool {
    let has = |kind, name: &str| objects.contains_key(&Key::new(kind, name));
    let vpc_of = |group: &str| match objects.get(&Key::new(Kind::SecurityGroup, group)) {
        Some(Object::SecurityGroup(g)) => Some(g.vpc.clone()),
        _ => None,
    };
    let (mut vnis, mut gids, mut dedicated) = (HashSet::new(), HashSet::new(), HashSet::new());
    let (mut underlay, mut parties) = (HashSet::new(), HashSet::new());
    objects.values().all(|object| match object {
        Object::Host(h) => {
            let aliases = h.aliases.iter().map(|a| a.address.addr());
            let own: BTreeSet<IpAddr> = h.underlay.iter().copied().chain(aliases).collect();
            own.into_iter().all(|a| underlay.insert(a))
        }
        Object::Vpc(v) => vnis.insert(v.vni),
        Object::SecurityGroup(g) => has(Kind::Vpc, &g.vpc),
        Object::SecurityGroupRule(r) => {
            let own = vpc_of(&r.security_group);
            own.is_some() && r.remote_group.as_ref().is_none_or(|g| vpc_of(g) == own)
        }
        Object::QosPolicy(_) => true,
        Object::Vnic(v) => {
            let host = v.host.as_ref().map(|h| objects.get(&Key::new(Kind::Host, h)));
            let host_fits = match host {
                None => true,
                Some(Some(Object::Host(h))) => {
                    let alias_fits = |a: IpAddr| {
                        h.aliases.iter().any(|x| x.address.addr() == a) && !h.underlay.contains(&a)
                    };
                    usize::from(v.paths.unwrap_or(1)) <= h.underlay.len()
                        && v.dedicated_alias.is_none_or(alias_fits)
                }
                Some(_) => false,
            };
            parties.insert(v.name.clone())
                && host_fits
                && has(Kind::Vpc, &v.vpc)
                && v.security_groups.iter().all(|g| vpc_of(g).as_ref() == Some(&v.vpc))
                && v.qos_policy.as_ref().is_none_or(|q| has(Kind::QosPolicy, q))
                && v.gids().into_iter().all(|gid| gids.insert((v.vpc.clone(), gid)))
                && v.dedicated_alias.is_none_or(|a| dedicated.insert(a))
        }
        Object::StaticEndpoint(s) => {
            parties.insert(s.name.clone())
                && has(Kind::Vpc, &s.vpc)
                && s.security_groups.iter().all(|g| vpc_of(g).as_ref() == Some(&s.vpc))
                && s.addresses.iter().all(|a| gids.insert((s.vpc.clone(), Gid::from(*a))))
                && underlay.insert(s.underlay_address)
        }
        _ => false,
    })
}

fn named(prefix: &'static str, n: u8) -> impl Strategy<Value = String> {
    (0..n).prop_map(move |i| format!("{prefix}{i}"))
}

fn any_vnic() -> impl Strategy<Value = Vnic> {
    let addresses =
        subsequence(vec!["192.168.0.1", "192.168.0.2", "192.168.0.3", "fe80::5054:ff:fe00:3"], 1..3);
    let groups = subsequence(vec!["g0", "g1", "g2"], 0..3);
    let alias = prop::option::weighted(0.3, prop_oneof![Just("10.0.0.7"), Just("10.0.0.8")]);
    let places = (prop::option::of(named("h", 3)), prop::option::of(1u8..4), alias);
    let names = (named("n", 3), named("v", 2), prop::option::weighted(0.3, named("q", 2)));
    (names, places, 1u8..5, addresses, groups).prop_filter_map(
        "its link-local address is its own",
        |((name, vpc, qos_policy), (host, paths, alias), n, addresses, groups)| {
            let mut vnic = vnic(&name, host.as_deref(), n, &addresses);
            vnic.vpc = vpc;
            vnic.qos_policy = qos_policy;
            vnic.paths = paths;
            vnic.dedicated_alias = alias.map(ip);
            vnic.security_groups = groups.into_iter().map(Into::into).collect();
            (!vnic.addresses.contains(&vnic.mac.link_local().into())).then_some(vnic)
        },
    )
}

fn any_station() -> impl Strategy<Value = StaticEndpoint> {
    let addresses = subsequence(vec!["192.168.0.3", "192.168.0.4", "fe80::5054:ff:fe00:3"], 1..3);
    let groups = subsequence(vec!["g0", "g1"], 0..2);
    let names = (prop_oneof![2 => named("s", 2), 1 => named("n", 3)], named("v", 2));
    (names, prop_oneof![1u8..4, 7u8..11], addresses, groups).prop_map(
        |((name, vpc), underlay, addresses, groups)| StaticEndpoint {
            vpc,
            ..station(&name, underlay, &addresses, &groups)
        },
    )
}

fn any_object() -> impl Strategy<Value = Object> {
    let numbers = || subsequence(vec![1, 2, 3, 4, 7, 8], 1..4);
    let remote = || prop::option::of(named("g", 3));
    prop_oneof![
        2 => (named("h", 3), numbers(), subsequence(vec![1, 7, 8], 0..3))
            .prop_map(|(name, underlay, aliases)| Object::Host(host(&name, &underlay, &aliases))),
        1 => (named("v", 2), 1u32..4).prop_map(|(name, vni)| Object::Vpc(vpc(&name, vni))),
        2 => (named("g", 3), named("v", 2)).prop_map(|(name, vpc)| Object::SecurityGroup(group(&name, &vpc))),
        1 => (named("r", 2), named("g", 3), remote())
            .prop_map(|(name, group, remote)| Object::SecurityGroupRule(rule(&name, &group, remote.as_deref()))),
        1 => named("q", 2).prop_map(|name| Object::QosPolicy(qos(&name))),
        5 => any_vnic().prop_map(Object::Vnic),
        3 => any_station().prop_map(Object::StaticEndpoint),
    ]
}

fn any_edit() -> impl Strategy<Value = Edit> {
    prop_oneof![3 => any_object().prop_map(Edit::Put), 1 => any_object().prop_map(|o| Edit::Delete(o.key()))]
}

/// A few edits at once.
fn any_edits() -> impl Strategy<Value = Vec<Edit>> {
    prop::collection::vec(any_edit(), 1..5)
}

/// Makes random edits and judges each by the naive model. How many were accepted, and how many refused.
fn run(steps: Vec<Vec<Edit>>) -> Result<(usize, usize), TestCaseError> {
    let mut objects: BTreeMap<Key, Object> = base().into_iter().map(|o| (o.key(), o)).collect();
    let mut state = built(base()).unwrap();
    let (mut accepted, mut refused) = (0, 0);
    for edits in steps {
        let mut after = objects.clone();
        for edit in &edits {
            match edit {
                Edit::Put(object) => after.insert(object.key(), object.clone()),
                Edit::Delete(key) => after.remove(key),
            };
        }
        let expected = consistent(&after);
        let whole = built(after.values().cloned());
        prop_assert_eq!(whole.is_ok(), expected, "judged as a whole: {:?}", whole);
        // A state that was made anew from the same objects must behave the same: nothing is left of what was refused.
        let mut anew = DesiredState::from_objects(objects.values().cloned());
        let (result, same) = (edit(&mut state, edits.clone()), edit(&mut anew, edits));
        prop_assert_eq!(result.is_ok(), expected, "judged by the change: {:?}, {:?}", result, whole);
        prop_assert_eq!(&result, &same);
        match result {
            Ok(()) => {
                accepted += 1;
                objects = after;
            }
            Err(problems) => {
                refused += 1;
                prop_assert!(!problems.is_empty());
            }
        }
        prop_assert_eq!(state.objects(), &objects);
        prop_assert_eq!(&anew, &state);
    }
    Ok((accepted, refused))
}

#[test]
fn an_edit_is_accepted_exactly_when_the_whole_state_is_consistent_afterwards() {
    let mut runner = TestRunner::deterministic();
    let steps = prop::collection::vec(any_edits(), 1..30);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..200 {
        let steps = steps.new_tree(&mut runner).unwrap().current();
        let counts = run(steps.clone()).unwrap_or_else(|e| panic!("{e}\n{steps:#?}"));
        accepted += counts.0;
        refused += counts.1;
    }
    assert!(accepted > 300 && refused > 300, "{accepted} accepted, {refused} refused: try both");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..Default::default() })]

    #[test]
    fn the_same_with_edits_that_differ_each_time(steps in prop::collection::vec(any_edits(), 1..20)) {
        run(steps)?;
    }
}
