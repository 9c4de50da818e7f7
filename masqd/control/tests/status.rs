//! Which hosts an object concerns, how far those have come, and how a verdict is explained.

use masq_control::store::{Batch, Change};
use masq_control::{AskError, Concern, Directory, Judge, Question, Traffic};
use masq_model::api::{Explanation, ItemStatus, RealisedState};
use masq_model::{DesiredState, Endpoint, HostState, Kind, Object};
use masq_types::{Gid, Vni};

const DESIRED: &str = r#"
host = [
    { name = "h1", underlay = ["10.0.0.1"] },
    { name = "h2", underlay = ["10.0.0.2"] },
    { name = "h3", underlay = ["10.0.0.3"] },
]
vpc = [{ name = "blue", vni = 1 }, { name = "red", vni = 2 }]
security_group = [{ name = "web", vpc = "blue" }, { name = "db", vpc = "blue" }, { name = "red", vpc = "red" }]
qos_policy = [{ name = "slow" }, { name = "idle" }]

[[security_group_rule]]
name = "in"
security_group = "db"
direction = "ingress"
remote_group = "web"
action = "allow"

[[security_group_rule]]
name = "out"
security_group = "web"
direction = "egress"
remote_group = "db"
action = "allow"

[[vnic]]
name = "b1"
vpc = "blue"
host = "h1"
mac = "52:54:00:00:01:01"
addresses = ["192.168.0.1", "fd00::1"]
security_groups = ["web"]

[[vnic]]
name = "b2"
vpc = "blue"
host = "h2"
mac = "52:54:00:00:01:02"
addresses = ["fd00::2", "192.168.0.2"]
allowed_address_pairs = ["192.168.0.100"]
security_groups = ["db"]
qos_policy = "slow"

[[vnic]]
name = "b3"
vpc = "blue"
mac = "52:54:00:00:01:03"
addresses = ["192.168.0.3"]
allowed_address_pairs = ["192.168.0.100"]

[[vnic]]
name = "r3"
vpc = "red"
host = "h3"
mac = "52:54:00:00:02:01"
addresses = ["192.168.0.1"]
security_groups = ["red"]
"#;

struct World(Directory);

impl World {
    /// The desired state at revision 10.
    fn new() -> World {
        let desired = DesiredState::from_toml(DESIRED).unwrap();
        let mut world = World(Directory::new());
        world.put(10, desired.objects().values().cloned());
        world
    }

    fn put(&mut self, revision: u64, objects: impl IntoIterator<Item = Object>) {
        let change = |o: Object| Change::Put { key: o.key().to_string(), value: o.to_json() };
        let changes = objects.into_iter().map(change).collect();
        let delta = self.0.apply(&Batch { changes, revision });
        assert!(delta.bad.is_empty(), "{:?}", delta.bad);
    }

    /// The host has brought everything up to `realised` into force.
    fn progress(&mut self, revision: u64, host: &str, realised: u64) {
        let state = HostState { host: host.into(), realised_revision: realised, problems: Vec::new() };
        self.put(revision, [Object::HostState(state)]);
    }

    fn endpoint(&mut self, revision: u64, vnic: &str, vni: u32, host: &str, extra: &[&str]) {
        let mut gids = self.0.vnic(vnic).unwrap().gids();
        gids.extend(extra.iter().map(|a| Gid::from(a.parse::<std::net::IpAddr>().unwrap())));
        let endpoint = Endpoint {
            vnic: vnic.into(),
            vni: Vni::new(vni).unwrap(),
            gids,
            host: host.into(),
            addresses: vec!["10.0.0.9".parse().unwrap()],
            qpn_blocks: Vec::new(),
            gsi_qpn: masq_types::WireQpn::from_wire(1),
            features: masq_types::Features::NONE,
            generation: 1,
        };
        self.put(revision, [Object::Endpoint(endpoint)]);
    }

    fn status(&self, kind: Kind, name: &str, generation: u64) -> ItemStatus {
        let object = self.0.get(kind, name).unwrap();
        Judge::new(&self.0).status(&[object].into_iter().collect(), generation)
    }

    fn waiting(&self, kind: Kind, name: &str) -> Vec<String> {
        self.status(kind, name, 10).waiting_for
    }

    fn explain(&self, from: &str, to: &str, vpc: Option<&str>) -> Result<Explanation, AskError> {
        self.0.explain(&Question { from, to, vpc, traffic: Traffic::Rc })
    }
}

#[test]
fn an_object_concerns_the_hosts_of_its_network() {
    let world = World::new();
    for (kind, name, hosts) in [
        (Kind::Host, "h1", &["h1"][..]),
        (Kind::Vpc, "blue", &["h1", "h2"]),
        (Kind::Vpc, "red", &["h3"]),
        (Kind::SecurityGroup, "web", &["h1", "h2"]),
        (Kind::SecurityGroupRule, "db/in", &["h1", "h2"]),
        (Kind::QosPolicy, "slow", &["h2"]),
        (Kind::QosPolicy, "idle", &[]),
        (Kind::Vnic, "b1", &["h1", "h2"]),
        (Kind::Vnic, "b3", &["h1", "h2"]),
        (Kind::Vnic, "r3", &["h3"]),
    ] {
        assert_eq!(world.waiting(kind, name), hosts, "{kind} {name}");
    }
}

#[test]
fn a_host_that_has_not_let_a_vnic_go_is_concerned_by_the_rules_of_its_network() {
    let mut world = World::new();
    world.endpoint(11, "b1", 1, "h3", &[]);
    assert_eq!(world.waiting(Kind::SecurityGroupRule, "db/in"), ["h1", "h2", "h3"]);
    let gone = Change::Delete { key: "masq/v1/endpoint/b1".into() };
    world.0.apply(&Batch { changes: vec![gone], revision: 12 });
    assert_eq!(world.waiting(Kind::SecurityGroupRule, "db/in"), ["h1", "h2"]);
}

#[test]
fn a_pair_of_addresses_that_rules_about_prefixes_leave_open_is_told() {
    let mut world = World::new();
    for (n, (vnic, host)) in [("b1", "h1"), ("b2", "h2")].into_iter().enumerate() {
        world.endpoint(11 + n as u64, vnic, 1, host, &[]);
    }
    let Object::SecurityGroupRule(mut rule) = world.0.get(Kind::SecurityGroupRule, "db/in").unwrap().clone()
    else {
        panic!()
    };
    let mut deny = |revision, name: &str, net: &str| {
        (rule.name, rule.remote_group, rule.priority) = (name.into(), None, 1);
        rule.remote_prefix = Some(net.parse().unwrap());
        rule.action = masq_model::Action::Deny;
        world.put(revision, [Object::SecurityGroupRule(rule.clone())]);
        world.explain("b1", "b2", None).unwrap()
    };
    let told = deny(20, "no-v4", "0.0.0.0/0");
    assert!(told.allowed && !told.from.address.ip().is_ipv4(), "{told:?}");
    assert!(
        told.summary.contains("between 192.168.0.1 and 192.168.0.2 no traffic is allowed"),
        "{}",
        told.summary
    );
    let told = deny(21, "no-v6", "::/0");
    assert!(!told.allowed && told.from.address.ip().is_ipv4(), "{told:?}");
}

#[test]
fn what_a_host_could_not_do_is_not_realised_however_far_it_has_come() {
    let mut world = World::new();
    let problems = |world: &mut World, problems: &[&str]| {
        let problems = problems.iter().map(ToString::to_string).collect();
        let state = HostState { host: "h1".into(), realised_revision: 10, problems };
        world.put(12, [Object::HostState(state)]);
        world.put(
            13,
            [HostState { host: "h2".into(), realised_revision: 10, problems: Vec::new() }]
                .map(Object::HostState),
        );
    };
    problems(&mut world, &[]);
    assert!(world.waiting(Kind::Host, "h1").is_empty() && world.waiting(Kind::Vnic, "b1").is_empty());
    world = World::new();
    problems(&mut world, &["aliases: link eth7 does not exist"]);
    let status = world.status(Kind::Host, "h1", 10);
    assert_eq!((status.waiting_for, status.realised_generation), (vec!["h1".to_owned()], 9));
    assert_eq!(world.waiting(Kind::Vnic, "b1"), [""; 0], "the vNIC is served all the same");
    world = World::new();
    problems(&mut world, &["vnic b1: cannot listen", "vnic b10: cannot listen"]);
    assert_eq!(world.status(Kind::Vnic, "b1", 10).state, RealisedState::PartiallyRealised);
    assert_eq!(world.waiting(Kind::Vnic, "b1"), ["h1"]);
    assert_eq!(world.waiting(Kind::SecurityGroup, "web"), [""; 0], "rules are in force");
}

#[test]
fn a_vnic_that_has_moved_concerns_its_old_host_until_that_has_let_it_go() {
    let mut world = World::new();
    world.endpoint(11, "r3", 2, "h2", &[]);
    assert_eq!(world.waiting(Kind::Vnic, "r3"), ["h2", "h3"]);
    // What it was before the change tells the same.
    let Some(Object::Vnic(now)) = world.0.get(Kind::Vnic, "r3").cloned() else { panic!() };
    let before = Object::Vnic(masq_model::Vnic { host: Some("h1".into()), ..now.clone() });
    let concern: Concern = [&before, &Object::Vnic(now)].into_iter().collect();
    assert_eq!(Judge::new(&world.0).status(&concern, 10).waiting_for, ["h1", "h2", "h3"]);
}

#[test]
fn realised_is_what_all_hosts_concerned_have_brought_into_force() {
    let mut world = World::new();
    let state = |world: &World| world.status(Kind::Vpc, "blue", 10);
    assert_eq!((state(&world).state, state(&world).realised_generation), (RealisedState::Pending, 0));
    world.progress(11, "h1", 9);
    world.progress(12, "h2", 8);
    assert_eq!((state(&world).state, state(&world).realised_generation), (RealisedState::Pending, 8));
    world.progress(13, "h1", 10);
    let partly = state(&world);
    assert_eq!((partly.state, partly.waiting_for), (RealisedState::PartiallyRealised, vec!["h2".to_owned()]));
    world.progress(14, "h2", 12);
    let done = state(&world);
    assert_eq!((done.state, done.realised_generation), (RealisedState::Realised, 10));
    assert!(done.waiting_for.is_empty());
    // h2 goes down.
    let key = masq_model::Key::new(Kind::HostState, "h2").to_string();
    world.0.apply(&Batch { changes: vec![Change::Delete { key }], revision: 15 });
    assert_eq!(state(&world).state, RealisedState::PartiallyRealised);
}

#[test]
fn nobody_can_judge_what_the_directory_does_not_show_yet() {
    let mut world = World::new();
    let status = world.status(Kind::QosPolicy, "idle", 10);
    assert_eq!(status.state, RealisedState::Realised, "it concerns nobody");
    let status = world.status(Kind::QosPolicy, "idle", 11);
    assert_eq!((status.state, status.realised_generation), (RealisedState::Pending, 10));
    world.progress(11, "h1", 10);
    assert_eq!(world.status(Kind::QosPolicy, "idle", 11).state, RealisedState::Realised);
}

#[test]
fn an_explanation_tells_both_directions() {
    let mut world = World::new();
    for (revision, vnic, host) in [(11, "b1", "h1"), (12, "b2", "h2")] {
        world.endpoint(revision, vnic, 1, host, &[]);
    }
    let e = world.explain("b1", "b2", None).unwrap();
    assert!(e.allowed && e.obstacles.is_empty(), "{e:?}");
    assert_eq!(e.from.address.to_string(), "192.168.0.1");
    assert_eq!(e.to.address.to_string(), "192.168.0.2", "of the same family");
    assert_eq!(e.flows.len(), 2);
    assert_eq!((e.flows[0].egress.as_str(), e.flows[0].ingress.as_str()), ("rule web/out", "rule db/in"));
    assert!(e.flows[0].allowed && !e.flows[1].allowed);
    assert_eq!(e.flows[1].egress, "no rule");
    // The same, asked by addresses, the other way round.
    let back = world.explain("fd00::2", "fd00::1", Some("blue")).unwrap();
    assert!(back.allowed && !back.flows[0].allowed && back.flows[1].allowed, "{back:?}");
    let own = world.explain("b1", "b1", None).unwrap();
    assert!(own.allowed && own.flows.is_empty(), "{own:?}");
}

#[test]
fn datagrams_are_explained_from_one_end_to_the_other() {
    let mut world = World::new();
    for (revision, vnic, host) in [(11, "b1", "h1"), (12, "b2", "h2")] {
        world.endpoint(revision, vnic, 1, host, &[]);
    }
    let ask = |world: &World, from, to, traffic| {
        world.0.explain(&Question { from, to, vpc: None, traffic }).unwrap()
    };
    let there = ask(&world, "b1", "b2", Traffic::Ud);
    assert!(there.allowed && there.flows[0].allowed, "{there:?}");
    let back = ask(&world, "b2", "b1", Traffic::Ud);
    assert!(!back.allowed && !back.flows[0].allowed && back.flows[1].allowed, "{back:?}");
    assert_eq!(back.summary, "no rule allows fd00::2 to send to fd00::1");
    assert!(ask(&world, "b2", "b1", Traffic::Rc).allowed && ask(&world, "b2", "b1", Traffic::Uc).allowed);
    assert!(ask(&world, "b2", "b1", Traffic::Cm).allowed, "what sets connections up passes both ways");
    // Reliable connections alone are forbidden: management passes for the sake of the others.
    let deny = |name: &str, direction, revision| {
        let rule = serde_json::json!({"name": name, "security_group": "web", "direction": direction,
            "transport": "rc", "priority": 1, "action": "deny"});
        let rule = Object::from_value(Kind::SecurityGroupRule, rule).unwrap();
        (revision, rule)
    };
    for (revision, rule) in [deny("no-in", "ingress", 13), deny("no-out", "egress", 14)] {
        world.put(revision, [rule]);
    }
    assert!(!ask(&world, "b1", "b2", Traffic::Rc).allowed);
    let cm = ask(&world, "b1", "b2", Traffic::Cm);
    assert!(cm.allowed && cm.flows.len() == 2 && cm.flows[0].allowed, "{cm:?}");
}

#[test]
fn what_else_is_in_the_way_is_told() {
    let mut world = World::new();
    world.endpoint(11, "b1", 1, "h1", &[]);
    let e = world.explain("b1", "b2", None).unwrap();
    assert!(!e.allowed && e.flows[0].allowed, "{e:?}");
    assert_eq!(e.obstacles, ["host h2 has not realised vNIC b2"]);
    assert_eq!(e.summary, e.obstacles[0]);
    let e = world.explain("b1", "b3", None).unwrap();
    assert_eq!(e.obstacles, ["vNIC b3 is assigned to no host"]);
    let e = world.explain("b1", "r3", None).unwrap();
    assert!(!e.allowed && e.flows.is_empty() && e.obstacles[0].contains("do not reach"), "{e:?}");

    // Two guests take on one address.
    let Some(Object::Vnic(b3)) = world.0.get(Kind::Vnic, "b3").cloned() else { panic!() };
    world.put(12, [Object::Vnic(masq_model::Vnic { host: Some("h3".into()), ..b3 })]);
    world.endpoint(13, "b2", 1, "h2", &["192.168.0.100"]);
    assert!(world.explain("b1", "192.168.0.100", None).unwrap().allowed);
    world.endpoint(14, "b3", 1, "h3", &["192.168.0.100"]);
    let e = world.explain("b1", "192.168.0.100", None).unwrap();
    assert!(!e.allowed && !e.flows[0].allowed && e.obstacles[0].contains("claim"), "{e:?}");
}

#[test]
fn questions_that_make_no_sense_are_told_apart() {
    let world = World::new();
    let ask = |from, to, vpc| world.explain(from, to, vpc).unwrap_err();
    assert_eq!(ask("b1", "b9", None), AskError::NoSuchEnd("b9".into()));
    assert_eq!(
        ask("b1", "b2", Some("green")),
        AskError::WrongVpc { end: "vNIC b1".into(), vpc: "blue".into(), asked: "green".into() }
    );
    assert_eq!(ask("10.0.0.1", "10.0.0.2", None), AskError::WhichVpc("10.0.0.1".parse().unwrap()));
    assert_eq!(ask("10.0.0.1", "b1", Some("green")), AskError::NoVpc("green".into()));
    let nobody = AskError::Nobody { address: "192.168.0.9".parse().unwrap(), vpc: "blue".into() };
    assert_eq!(ask("b1", "192.168.0.9", None), nobody);
}
