//! Machines that are no hosts of masq: who reaches them, what the rules say about them, and what ends it.

mod common;

use common::*;
use masq_control::store::Change;
use masq_control::{Asked, Env, Errno, Question, Revoked, Traffic};
use masq_driver::{Peer, PeerName, Verdict};
use masq_model::{Key, Kind, Object, StaticEndpoint, Vnic};
use masq_policy::rename::{Endpoints, Found};
use masq_types::{Vni, WireQpn};

const METAL: &str = r#"
[[static_endpoint]]
name = "metal"
vpc = "blue"
addresses = ["192.168.1.1", "fd01::1"]
underlay_address = "10.77.0.100"
security_groups = ["blue"]
[[static_endpoint]]
name = "red-metal"
vpc = "red"
addresses = ["192.168.1.1"]
underlay_address = "10.77.0.101"
security_groups = ["red"]
"#;

/// The world with strangers, in which blue-1 has an alias, and red-1 none.
fn world() -> String {
    let alias = "underlay = [\"10.77.0.1\"]\n[[host.aliases]]\naddress = \"10.77.0.50/24\"\nlink = \"eth0\"";
    let dedicated = "name = \"blue-1\"\ndedicated_alias = \"10.77.0.50\"";
    WORLD.replace("underlay = [\"10.77.0.1\"]", alias).replace("name = \"blue-1\"", dedicated) + METAL
}

/// The guest of a vNIC on host h1.
fn guest(vnic: &str) -> Guest {
    let directory = directory(&world());
    let identity = masq_control::identity(&directory, directory.endpoint(vnic).unwrap()).unwrap();
    let mut g = Guest::with_identity(identity, limits());
    g.directory = directory;
    g.begin();
    g
}

fn ready(vnic: &str) -> Guest {
    let mut g = guest(vnic);
    g.base();
    for qp in 1..=8 {
        g.qp_in_init(qp);
    }
    g
}

fn metal(g: &Guest) -> StaticEndpoint {
    g.directory.static_endpoint("metal").unwrap().clone()
}

/// Asks for a peer; what the RNIC is told, or the label of the reason why not.
fn peer(g: &mut Guest, name: PeerName) -> Result<Peer, &'static str> {
    let env = Env { memory: &g.memory, rnic: &g.rnic, directory: &g.directory, now: g.now };
    let answer = match g.session.handle_unknown_peer(env, name).unwrap() {
        Asked::Answered(answer) => answer,
        Asked::Pending(ticket) => {
            let env = Env { memory: &g.memory, rnic: &g.rnic, directory: &g.directory, now: g.now };
            g.session.handle_peer_resolved(env, ticket).unwrap().unwrap()
        }
        Asked::Already => panic!("nothing was asked"),
    };
    match answer.vnic {
        Some(_) => Ok(g.rnic.peers().last().unwrap().clone()),
        None => Err(answer.reason.unwrap().label()),
    }
}

fn source(address: &str, qpn: u32) -> PeerName {
    PeerName::Source(address.parse().unwrap(), WireQpn::from_wire(qpn))
}

#[test]
fn a_connection_goes_to_its_place_on_the_underlay_from_the_alias() {
    let mut g = ready("blue-1");
    for (qp, qpn) in [(1, 2), (2, 0x11), (3, 0xff_ffff)] {
        g.connect(qp, gid("192.168.1.1"), qpn).unwrap();
        let c = g.rnic.connection(qp).unwrap();
        assert_eq!((c.local.to_string(), c.remote.to_string()), ("10.77.0.50".into(), "10.77.0.100".into()));
        assert_eq!((c.remote_qpn.get(), c.virtual_remote), (qpn, gid("192.168.1.1")));
        assert_eq!(c.features, masq_types::Features::NONE);
    }
    // Those of management are no queue pair's to connect with.
    for qpn in [0, 1] {
        assert_eq!(refused(g.connect(4, gid("192.168.1.1"), qpn)), (Errno::EINVAL, "malformed"));
    }
}

#[test]
fn it_is_found_in_its_own_network_only() {
    let g = guest("blue-1");
    let find = |net, address| match g.directory.find(Vni::new(net).unwrap(), gid(address)) {
        Found::Realised(peer) => format!("{} {}", peer.vnic, peer.is_stranger),
        other => format!("{other:?}"),
    };
    assert_eq!(find(100, "192.168.1.1"), "metal true");
    assert_eq!(find(200, "192.168.1.1"), "red-metal true");
    assert_eq!(find(200, "fd01::1"), "Unknown");
    assert_eq!(find(100, "192.168.0.2"), "blue-2 false");
}

#[test]
fn who_shares_an_underlay_address_does_not_reach_it() {
    let mut g = ready("red-1");
    let refusal = g.connect(1, gid("192.168.1.1"), 0x11).unwrap_err();
    assert_eq!((refusal.errno(), refusal.reason.label()), (Errno::EHOSTUNREACH, "no_alias"));
    assert!(
        refusal.to_string().contains("(vNIC red-metal)") && refusal.to_string().contains("dedicated alias")
    );
    assert_eq!(peer(&mut g, PeerName::Gid(gid("192.168.1.1"))), Err("no_alias"));
    assert_eq!(peer(&mut g, source("10.77.0.101", 1)), Err("no_alias"));
    assert_eq!(g.session.refusals().get("no_alias"), 3);
    assert!(g.rnic.peers().is_empty() && g.rnic.connection(1).is_none());
}

#[test]
fn its_datagrams_come_from_any_queue_pair() {
    let mut g = guest("blue-1");
    let to = peer(&mut g, PeerName::Gid(gid("fd01::1"))).unwrap();
    assert!(to.is_stranger);
    assert_eq!(to.gids, [gid("192.168.1.1"), gid("fd01::1")]);
    assert_eq!((to.addresses.len(), to.addresses[0].to_string()), (1, "10.77.0.100".into()));
    assert_eq!((to.gsi_qpn.get(), to.verdict), (1, Verdict { send: true, receive: true, cm: true }));
    for qpn in [1, 2, 0x2000, 0xff_ffff] {
        assert_eq!(peer(&mut g, source("10.77.0.100", qpn)).unwrap().id, to.id, "{qpn}");
    }
    assert_eq!(peer(&mut g, source("10.77.0.100", 0)), Err("unknown_source"));
    assert_eq!(peer(&mut g, source("10.77.0.101", 2)), Err("unknown_source"), "in another network");
    assert!(!peer(&mut g, PeerName::Gid(gid("192.168.0.2"))).unwrap().is_stranger);
}

#[test]
fn the_rules_of_both_ends_are_judged_here_and_again_when_they_change() {
    let mut g = ready("blue-1");
    g.connect(1, gid("192.168.1.1"), 0x11).unwrap();
    assert!(peer(&mut g, PeerName::Gid(gid("192.168.1.1"))).unwrap().verdict.send);
    // It leaves its group: nothing allows anything.
    let alone = StaticEndpoint { security_groups: Vec::new(), ..metal(&g) };
    let revoked = change(&mut g, vec![put(Object::StaticEndpoint(alone))]);
    let why = |r: &Revoked| {
        (
            r.connections.iter().map(|c| c.reason.label()).collect::<Vec<_>>(),
            r.peers.iter().map(|p| p.reason.label()).collect::<Vec<_>>(),
        )
    };
    assert_eq!(why(&revoked), (vec!["denied"], vec!["denied"]));
    assert_eq!(refused(g.connect(2, gid("192.168.1.1"), 0x11)), (Errno::EACCES, "denied"));
    // A group of its own, whose rules allow what comes from one prefix alone.
    let group = Change::Put {
        key: Key::new(Kind::SecurityGroup, "metal").to_string(),
        value: br#"{"name":"metal","vpc":"blue"}"#.to_vec(),
    };
    let rule = |group: &str, rest: &str| Change::Put {
        key: Key::rule(group, "r").to_string(),
        value: format!(r#"{{"name":"r","security_group":"{group}","action":"allow",{rest}}}"#).into(),
    };
    let member = StaticEndpoint { security_groups: vec!["metal".into()], ..metal(&g) };
    let out = rule("blue", r#""direction":"egress","remote_prefix":"192.168.1.1/32""#);
    let elsewhere = rule("metal", r#""direction":"ingress","remote_prefix":"192.168.0.7/32""#);
    change(&mut g, vec![group, put(Object::StaticEndpoint(member)), out, elsewhere]);
    assert_eq!(refused(g.connect(2, gid("192.168.1.1"), 0x11)), (Errno::EACCES, "denied"));
    change(&mut g, vec![rule("metal", r#""direction":"ingress","remote_group":"blue""#)]);
    g.connect(2, gid("192.168.1.1"), 0x11).unwrap();
    let revoked = change(&mut g, vec![Change::Delete { key: Key::rule("metal", "r").to_string() }]);
    assert_eq!(why(&revoked).0, ["denied"]);
}

#[test]
fn what_it_loses_or_leaves_ends_its_connections() {
    let mut g = ready("blue-1");
    let to = gid("192.168.1.1");
    let ended = |g: &mut Guest, qp: u32, changes: Vec<Change>| {
        g.connect(qp, to, 0x11).unwrap();
        peer(g, PeerName::Gid(to)).unwrap();
        let revoked = change(g, changes);
        let labels: Vec<_> = revoked.connections.iter().map(|c| c.reason.label()).collect();
        (labels, g.rnic.peers().len())
    };
    let was = metal(&g);
    let moved = StaticEndpoint { underlay_address: "10.77.0.102".parse().unwrap(), ..was.clone() };
    assert_eq!(ended(&mut g, 1, vec![put(Object::StaticEndpoint(moved))]), (vec!["moved"], 1));
    assert_eq!(g.rnic.peers()[0].addresses[0].to_string(), "10.77.0.102");
    assert_eq!(peer(&mut g, source("10.77.0.100", 0x11)), Err("unknown_source"), "nobody is there any more");
    let renamed = StaticEndpoint { addresses: vec!["192.168.1.2".parse().unwrap()], ..was.clone() };
    assert_eq!(ended(&mut g, 2, vec![put(Object::StaticEndpoint(renamed))]).0, ["unreachable"]);
    change(&mut g, vec![put(Object::StaticEndpoint(was.clone()))]);
    let left = StaticEndpoint { vpc: "red".into(), security_groups: vec!["red".into()], ..was.clone() };
    assert_eq!(ended(&mut g, 3, vec![put(Object::StaticEndpoint(left))]), (vec!["unreachable"], 0));
    change(&mut g, vec![put(Object::StaticEndpoint(was.clone()))]);
    assert_eq!(ended(&mut g, 4, vec![gone(Kind::StaticEndpoint, "metal")]), (vec!["unreachable"], 0));
    assert_eq!(peer(&mut g, source("10.77.0.100", 0x11)), Err("unknown_source"));
    // It comes back with its network's new identifier, which is not this guest's.
    change(&mut g, vec![put(Object::StaticEndpoint(was))]);
    let vpc = br#"{"name":"blue","vni":300}"#.to_vec();
    let other = vec![Change::Put { key: Key::new(Kind::Vpc, "blue").to_string(), value: vpc }];
    assert_eq!(ended(&mut g, 5, other), (vec!["unreachable"], 0));
    assert!(matches!(g.directory.find(Vni::new(300).unwrap(), to), Found::Realised(p) if p.is_stranger));
}

/// A store may hold what no write would be allowed to: the vNIC has the name.
#[test]
fn a_vnic_of_the_same_name_takes_its_place() {
    let mut g = guest("blue-1");
    let vnic = Vnic {
        name: "metal".into(),
        addresses: vec!["192.168.7.7".parse().unwrap()],
        mac: "52:54:00:64:00:77".parse().unwrap(),
        security_groups: Vec::new(),
        ..g.directory.vnic("blue-2").unwrap().clone()
    };
    change(&mut g, vec![put(Object::Vnic(vnic))]);
    assert_eq!(found(&g, "192.168.1.1"), "unknown");
    assert_eq!(found(&g, "192.168.7.7"), "desired");
    let touched = StaticEndpoint { underlay_address: "10.77.0.103".parse().unwrap(), ..stored(&g) };
    change(&mut g, vec![put(Object::StaticEndpoint(touched))]);
    assert_eq!(found(&g, "192.168.1.1"), "unknown");
    assert!(
        !g.directory
            .evaluate(
                Vni::new(100).unwrap(),
                "blue-1",
                masq_policy::rules::Transport::Rc,
                gid("192.168.0.1"),
                gid("192.168.7.7")
            )
            .is_allowed(),
        "the groups are the vNIC's"
    );
    change(&mut g, vec![gone(Kind::Vnic, "metal")]);
    assert_eq!(found(&g, "192.168.1.1"), "stranger");
}

fn stored(g: &Guest) -> StaticEndpoint {
    let Some(Object::StaticEndpoint(s)) = g.directory.get(Kind::StaticEndpoint, "metal") else { panic!() };
    s.clone()
}

fn found(g: &Guest, address: &str) -> &'static str {
    match g.directory.find(Vni::new(100).unwrap(), gid(address)) {
        Found::Realised(peer) if peer.is_stranger => "stranger",
        Found::Realised(_) => "realised",
        Found::Desired { .. } => "desired",
        Found::Contested { .. } => "contested",
        Found::Unknown => "unknown",
    }
}

#[test]
fn explanations_know_it() {
    let g = guest("blue-1");
    let ask = |from: &str, to: &str, vpc: Option<&str>| {
        g.directory.explain(&Question { from, to, vpc, traffic: Traffic::Rc }).unwrap()
    };
    let e = ask("blue-1", "metal", None);
    assert!(e.allowed && e.obstacles.is_empty(), "{e:?}");
    assert_eq!((e.to.vnic.as_str(), e.to.host, e.to.address), ("metal", None, gid("192.168.1.1")));
    assert_eq!(e.flows[0].egress, "membership in blue");
    assert!(ask("192.168.1.1", "192.168.0.1", Some("blue")).allowed);
    let e = ask("metal", "blue-2", None);
    assert!(!e.allowed && e.flows[0].allowed, "{e:?}");
    assert_eq!(
        e.summary,
        "static endpoint metal reaches vNICs with a dedicated alias alone, which vNIC blue-2 lacks"
    );
    assert_eq!(ask("blue-2", "metal", None).summary, e.summary);
    let e = ask("red-metal", "metal", None);
    assert!(!e.allowed, "{e:?}");
    assert_eq!(
        e.obstacles[0],
        "static endpoint red-metal belongs to vpc red and static endpoint metal to vpc blue, and networks do not reach one another"
    );
    assert_eq!(e.obstacles[1], "both ends are static endpoints, between which masq has no part");
}

#[test]
fn hosts_of_its_network_bring_it_into_force() {
    use masq_control::{Concern, Judge};
    let g = guest("blue-1");
    let object = Object::StaticEndpoint(metal(&g));
    let status = Judge::new(&g.directory).status(&Concern::from_iter([&object]), 1);
    assert_eq!(status.waiting_for, ["h1", "h2"]);
}
