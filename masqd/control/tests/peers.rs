//! Peers of datagrams: who is found, what the rules say about them, and what becomes of them when something changes.

mod common;

use std::net::IpAddr;
use std::time::Duration;

use common::*;
use masq_control::store::{Batch, Change};
use masq_control::{Asked, Directory, Env, PeerAnswer, Revoked, Ticket};
use masq_driver::{DriverError, Peer, PeerName, Verdict};
use masq_model::{Key, Kind, Object};
use masq_policy::conntrack::Touched;
use masq_types::{Gid, WireQpn};
use vrdma_abi::control::{DelGid, ModifyQp, OP_DEL_GID, OP_MODIFY_QP};

const ALL: Verdict = Verdict { send: true, receive: true, cm: true };
const NOTHING: Verdict = Verdict { send: false, receive: false, cm: false };

fn ask(g: &mut Guest, name: PeerName) -> Asked {
    let env = Env { memory: &g.memory, rnic: &g.rnic, directory: &g.directory, now: g.now };
    g.session.handle_unknown_peer(env, name).unwrap()
}

fn resolve(g: &mut Guest, ticket: Ticket) -> PeerAnswer {
    let env = Env { memory: &g.memory, rnic: &g.rnic, directory: &g.directory, now: g.now };
    g.session.handle_peer_resolved(env, ticket).unwrap().unwrap()
}

/// Asks, and answers without the store having anything new; gives the label of the reason against it, if there is one.
fn label(g: &mut Guest, name: PeerName) -> Option<&'static str> {
    let answer = match ask(g, name) {
        Asked::Answered(answer) => answer,
        Asked::Pending(ticket) => resolve(g, ticket),
        Asked::Already => panic!("nothing was asked"),
    };
    answer.reason.map(|r| r.label())
}

fn at(address: &str) -> PeerName {
    PeerName::Gid(gid(address))
}

fn from(address: &str, qpn: u32) -> PeerName {
    PeerName::Source(address.parse().unwrap(), WireQpn::from_wire(qpn))
}

/// The only peer that the RNIC has.
fn only(g: &Guest) -> Peer {
    let peers = g.rnic.peers();
    assert_eq!(peers.len(), 1, "{peers:?}");
    peers[0].clone()
}

fn rule(name: &str, rest: &str) -> Change {
    let value = format!(r#"{{"name":"{name}","security_group":"blue",{rest}}}"#);
    Change::Put { key: Key::rule("blue", name).to_string(), value: value.into() }
}

#[test]
fn a_peer_is_found_by_its_address_and_by_where_it_sends_from() {
    let mut g = Guest::ready("blue-1");
    let endpoint = g.directory.endpoint("blue-2").unwrap().clone();
    assert_eq!(label(&mut g, at("192.168.0.2")), None);
    let peer = only(&g);
    assert_eq!((&peer.gids, &peer.addresses), (&endpoint.gids, &endpoint.addresses));
    assert_eq!((peer.qpn_blocks, peer.gsi_qpn), (endpoint.qpn_blocks.clone(), endpoint.gsi_qpn));
    assert_eq!((peer.verdict, peer.exceptions.len()), (ALL, 0));
    // However it is asked for, it is the same one; also when the RNIC has forgotten it.
    for name in [
        PeerName::Gid(endpoint.gids[0]),
        from("10.77.0.2", endpoint.gsi_qpn.get()),
        from("10.77.0.2", endpoint.qpn_blocks[0].first + 77),
    ] {
        g.rnic.forget_peers();
        assert_eq!(label(&mut g, name), None);
        assert_eq!(only(&g).id, peer.id);
    }
    assert_eq!((g.session.peer_count(), g.rnic.nobody()), (1, vec![]));
}

#[test]
fn nobody_is_found_in_another_network_or_at_another_address() {
    let mut g = Guest::ready("blue-1");
    let block = |g: &Guest, vnic: &str| g.directory.endpoint(vnic).unwrap().qpn_blocks[0].first;
    let (blue, red) = (block(&g, "blue-2"), block(&g, "red-3"));
    let names = [
        at("192.168.0.3"),
        from("10.77.0.2", red),
        from("10.77.0.1", blue),
        from("10.77.0.9", blue),
        from("10.77.0.2", 1),
        from("10.77.0.2", 0),
    ];
    for name in names {
        let expected = if matches!(name, PeerName::Gid(_)) { "unreachable" } else { "unknown_source" };
        assert_eq!(label(&mut g, name), Some(expected), "{name:?}");
    }
    assert_eq!((g.rnic.nobody(), g.rnic.peers().len()), (names.to_vec(), 0));
    assert_eq!(g.session.refusals().get("unknown_source"), 5);
}

#[test]
fn who_is_missed_is_looked_for_in_the_store_once() {
    let mut g = Guest::ready("blue-1");
    let whole = g.directory.clone();
    g.directory.apply(&Batch { changes: vec![gone(Kind::Endpoint, "blue-2")], revision: 2 });
    let Asked::Pending(ticket) = ask(&mut g, at("192.168.0.2")) else { panic!() };
    assert_eq!(ask(&mut g, at("192.168.0.2")), Asked::Already);
    g.directory = whole;
    let answer = resolve(&mut g, ticket);
    assert_eq!((answer.vnic.as_deref(), answer.reason), (Some("blue-2"), None));
    assert_eq!(g.rnic.peers().len(), 1);
    let env = Env { memory: &g.memory, rnic: &g.rnic, directory: &g.directory, now: g.now };
    assert!(g.session.handle_peer_resolved(env, ticket).is_none(), "a ticket serves once");
    // What the store cannot mend waits for nothing, and a flood of names neither.
    for i in 0..300u32 {
        let name = from("10.77.9.9", 0x10_0000 + i);
        let asked = ask(&mut g, name);
        assert_eq!(matches!(asked, Asked::Pending(_)), i < 128, "{i}");
    }
    assert!(
        matches!(ask(&mut g, at("192.168.0.77")), Asked::Pending(_)),
        "nor does it keep the guest from asking"
    );
}

/// Anybody on the underlay can forge sources that nobody has.
#[test]
fn forged_sources_do_not_keep_a_guest_s_own_misses_from_the_store() {
    let mut g = Guest::ready("blue-1");
    g.base();
    g.qp_in_init(1);
    let mut admitted = 0;
    for i in 0..100 {
        g.now += Duration::from_millis(200);
        if let Asked::Pending(ticket) = ask(&mut g, from("10.77.9.9", 0x10_0000 + i)) {
            admitted += 1;
            resolve(&mut g, ticket);
        }
    }
    assert!(admitted < 50, "{admitted}");
    assert!(matches!(ask(&mut g, at("192.168.0.77")), Asked::Pending(_)));
    let attr = g.rtr_attr(gid("192.168.0.78"), g.qpn_of("blue-2"));
    g.send_pending(OP_MODIFY_QP, &ModifyQp { qp: 1, mask: RTR_MASK, attr });
}

#[test]
fn a_vnic_is_its_own_peer_whatever_the_rules_say() {
    let mut g = Guest::ready("blue-1");
    change(&mut g, vec![rule("no", r#""direction":"egress","action":"deny""#)]);
    assert_eq!(label(&mut g, at("192.168.0.1")), None);
    let own = only(&g);
    assert_eq!((own.verdict, own.exceptions.len()), (ALL, 0));
    assert_eq!(own.gids, g.session.identity().gids);
}

#[test]
fn each_direction_has_its_verdict_and_management_passes_when_anything_does() {
    let verdict = |rules: &[(&str, &str)]| {
        let mut g = Guest::ready("blue-1");
        let changes = rules.iter().map(|(name, rest)| rule(name, rest)).collect();
        change(&mut g, changes);
        let label = label(&mut g, at("192.168.0.2"));
        let peer = only(&g);
        assert!(peer.exceptions.is_empty());
        assert_eq!(label.is_some(), !(peer.verdict.send && peer.verdict.receive));
        peer.verdict
    };
    let deny = |direction: &str, transport: &str, prefix: &str| {
        let to = format!(r#""remote_prefix":"{prefix}""#);
        format!(r#""direction":"{direction}","transport":"{transport}",{to},"action":"deny""#)
    };
    assert_eq!(verdict(&[]), ALL);
    let all = "::/0";
    let four = "0.0.0.0/0";
    let both = |direction, transport| [deny(direction, transport, four), deny(direction, transport, all)];
    // A common group has the same rules at both ends: what none may send, none receives.
    let [a, b] = both("egress", "ud");
    let rc_only = verdict(&[("a", &a), ("b", &b)]);
    assert_eq!(rc_only, Verdict { send: false, receive: false, cm: true }, "connections are allowed");
    let [a, b] = both("egress", "any");
    assert_eq!(verdict(&[("a", &a), ("b", &b)]), NOTHING);
}

#[test]
fn one_direction_alone_is_allowed_when_only_one_side_may_send() {
    let mut g = Guest::ready("blue-1");
    // blue-9 is in no group: what blue-1 sends to it, nobody allows it to receive.
    assert_eq!(label(&mut g, at("192.168.9.9")), Some("denied"));
    assert_eq!(only(&g).verdict, NOTHING);
    // A group for blue-9 that takes everything, and sends nothing.
    let mut vnic = g.directory.vnic("blue-9").unwrap().clone();
    vnic.security_groups = vec!["sink".into()];
    let group = Change::Put {
        key: Key::new(Kind::SecurityGroup, "sink").to_string(),
        value: br#"{"name":"sink","vpc":"blue"}"#.to_vec(),
    };
    let allow = Change::Put {
        key: Key::rule("sink", "in").to_string(),
        value: br#"{"name":"in","security_group":"sink","direction":"ingress","action":"allow"}"#.to_vec(),
    };
    let out = rule("out", r#""direction":"egress","action":"allow""#);
    assert_eq!(change(&mut g, vec![group, allow, out, put(Object::Vnic(vnic))]).peers, []);
    assert_eq!(only(&g).verdict, Verdict { send: true, receive: false, cm: true });
    // Seen from the other side it is the reverse.
    let mut other = Guest::new("blue-9");
    other.directory = g.directory.clone();
    other.begin();
    label(&mut other, at("192.168.0.1"));
    assert_eq!(only(&other).verdict, Verdict { send: false, receive: true, cm: true });
}

#[test]
fn rules_about_prefixes_make_exceptions_for_pairs_of_addresses() {
    let mut g = Guest::ready("blue-1");
    change(
        &mut g,
        vec![rule("no", r#""direction":"egress","remote_prefix":"192.168.0.2/32","action":"deny""#)],
    );
    assert_eq!(label(&mut g, at("192.168.0.2")), Some("denied"));
    let peer = only(&g);
    let (own, its) = (gid("192.168.0.1"), gid("192.168.0.2"));
    let link_local = peer.gids[0];
    let own_link_local = g.session.identity().gids[0];
    // blue-2 may still send to 192.168.0.1.
    let receives = Verdict { send: false, receive: true, cm: true };
    assert_eq!(peer.verdict_between(own, its), receives);
    assert_eq!(peer.verdict_between(own_link_local, link_local), ALL);
    assert_eq!((peer.exceptions.len(), peer.exceptions[0].verdict == peer.verdict), (2, false));
    let allowed = change(&mut g, vec![gone(Kind::SecurityGroupRule, "blue/no")]);
    assert_eq!((allowed.peers, only(&g).exceptions.len(), only(&g).verdict), (vec![], 0, ALL));
}

#[test]
fn a_rule_that_changes_reaches_the_peers_it_is_about() {
    let mut g = Guest::ready("blue-1");
    label(&mut g, at("192.168.0.2"));
    label(&mut g, at("192.168.0.1"));
    let before = g.rnic.commands();
    change(
        &mut g,
        vec![rule("other", r#""direction":"egress","remote_prefix":"10.0.0.0/8","action":"deny""#)],
    );
    assert_eq!(g.rnic.commands(), before, "nothing has changed about them");
    let deny = rule("no", r#""direction":"ingress","transport":"ud","action":"deny""#);
    let revoked = change(&mut g, vec![deny]).peers;
    assert_eq!((revoked.len(), revoked[0].vnic.as_str(), revoked[0].reason.label()), (1, "blue-2", "denied"));
    assert_eq!(revoked[0].reason.rules(), Some("blue/no".into()));
    assert_eq!(g.rnic.commands(), before + 1);
    let peers = g.rnic.peers();
    assert_eq!([peers[0].verdict, peers[1].verdict], [Verdict { cm: true, ..NOTHING }, ALL]);
    assert_eq!(change(&mut g, vec![gone(Kind::SecurityGroupRule, "blue/no")]).peers, []);
    assert_eq!(g.rnic.peers()[0].verdict, ALL);
}

#[test]
fn a_peer_that_moves_is_told_and_one_that_goes_is_removed() {
    let mut g = Guest::ready("blue-1");
    label(&mut g, at("192.168.0.2"));
    let id = only(&g).id;
    let mut endpoint = g.directory.endpoint("blue-2").unwrap().clone();
    endpoint.addresses = vec!["10.77.0.22".parse().unwrap()];
    assert_eq!(change(&mut g, vec![put(Object::Endpoint(endpoint.clone()))]).peers, []);
    let moved: IpAddr = "10.77.0.22".parse().unwrap();
    assert_eq!((only(&g).id, only(&g).addresses), (id, vec![moved]));
    assert_eq!(label(&mut g, from("10.77.0.2", endpoint.gsi_qpn.get())), Some("unknown_source"));
    assert_eq!(label(&mut g, from("10.77.0.22", endpoint.gsi_qpn.get())), None);
    // The store loses sight of its host: it stays; rules still count.
    assert_eq!(change(&mut g, vec![gone(Kind::Endpoint, "blue-2")]).peers, []);
    assert_eq!(only(&g).addresses, [moved]);
    let deny = rule("no", r#""direction":"ingress","action":"deny""#);
    assert_eq!(change(&mut g, vec![deny]).peers.len(), 1);
    assert_eq!(only(&g).verdict, NOTHING);
    // It is to run elsewhere: not there any more, and not yet here.
    let mut vnic = g.directory.vnic("blue-2").unwrap().clone();
    vnic.host = Some("h1".into());
    let revoked = change(&mut g, vec![put(Object::Vnic(vnic.clone()))]).peers;
    assert_eq!((revoked[0].reason.label(), g.rnic.peers().len()), ("unreachable", 0));
    // It comes back, under another name for the RNIC.
    vnic.host = Some("h2".into());
    change(&mut g, vec![put(Object::Vnic(vnic)), put(Object::Endpoint(endpoint))]);
    assert_eq!(label(&mut g, at("192.168.0.2")), Some("denied"));
    assert_ne!(only(&g).id, id);
    change(&mut g, vec![gone(Kind::Vnic, "blue-2")]);
    assert_eq!((g.rnic.peers().len(), g.session.peer_count()), (0, 0));
}

#[test]
fn an_address_that_another_vnic_claims_too_carries_nothing() {
    let mut g = Guest::ready("blue-1");
    label(&mut g, at("192.168.0.2"));
    let mut other = g.directory.vnic("blue-9").unwrap().clone();
    other.addresses.push("192.168.0.2".parse().unwrap());
    let was = only(&g);
    change(&mut g, vec![put(Object::Vnic(other))]);
    let peer = only(&g);
    assert_eq!(peer.gids, was.gids, "their places stay");
    for local in g.session.identity().gids.clone() {
        assert_eq!(peer.verdict_between(local, gid("192.168.0.2")), NOTHING);
        assert_eq!(peer.verdict_between(local, peer.gids[0]), ALL);
    }
    assert_eq!(label(&mut g, at("192.168.0.2")), Some("unreachable"), "it is nobody's");
}

#[test]
fn the_rnic_knows_the_table_and_the_places_of_published_addresses() {
    let mut g = Guest::ready("blue-1");
    let own = g.session.identity().gids.clone();
    assert_eq!(g.rnic.gids(), (own.clone(), own.clone()));
    let commands = g.rnic.commands();
    g.add_gid(1, own[1]).unwrap();
    assert_eq!(g.rnic.commands(), commands, "nothing has changed");
    // An allowed address that the guest takes on is published by its host a little later.
    let taken: Gid = gid("192.168.7.7");
    g.session.set_addresses(own.clone(), vec!["192.168.7.0/24".parse().unwrap()]);
    g.add_gid(2, taken).unwrap();
    assert_eq!(g.rnic.gids(), ([own.clone(), vec![taken]].concat(), own.clone()));
    let mut endpoint = g.directory.endpoint("blue-1").unwrap().clone();
    endpoint.gids.push(taken);
    let mut vnic = g.directory.vnic("blue-1").unwrap().clone();
    vnic.allowed_address_pairs = vec!["192.168.7.0/24".parse().unwrap()];
    change(&mut g, vec![put(Object::Vnic(vnic)), put(Object::Endpoint(endpoint.clone()))]);
    assert_eq!(g.rnic.gids().1, endpoint.gids);
    // The record of an earlier life of the vNIC says nothing about this device.
    endpoint.gids.reverse();
    endpoint.addresses = vec!["10.77.0.99".parse().unwrap()];
    change(&mut g, vec![put(Object::Endpoint(endpoint))]);
    assert_eq!(g.rnic.gids().1[0], own[0]);
    g.send(OP_DEL_GID, &DelGid { index: 2, reserved: 0 }).unwrap();
    assert_eq!(g.rnic.gids().0, own);
    // A table that the RNIC does not take is not the guest's either.
    g.rnic.fail(DriverError::Stopped);
    assert_eq!(refused(g.send(OP_DEL_GID, &DelGid { index: 1, reserved: 0 })).1, "rnic");
    assert_eq!(g.rnic.gids().0, own);
    g.session.set_addresses(own[..1].to_vec(), vec![]);
    g.session.reevaluate(&g.directory, &g.rnic, &Touched::everything());
    assert_eq!(g.rnic.gids().0, own[..1]);
    g.session.reset(&g.rnic);
    assert_eq!(g.rnic.gids().0, [] as [Gid; 0]);
}

#[test]
fn peers_outlive_a_reset_but_not_the_vnic() {
    let mut g = Guest::ready("blue-1");
    label(&mut g, at("192.168.0.2"));
    g.session.reset(&g.rnic);
    assert_eq!((g.rnic.peers().len(), g.session.peer_count()), (1, 1));
    g.begin();
    let revoked = g.session.revoke_all(&g.rnic);
    assert_eq!((revoked, g.rnic.peers().len()), (Revoked::default(), 0));
    assert_eq!(label(&mut g, at("192.168.0.2")), Some("withdrawn"));
    assert_eq!(g.rnic.peers().len(), 0);
}

#[test]
fn a_peer_that_the_rnic_does_not_take_is_told_to_the_caller() {
    let mut g = Guest::ready("blue-1");
    g.rnic.fail(DriverError::Stopped);
    let env = Env { memory: &g.memory, rnic: &g.rnic, directory: &g.directory, now: g.now };
    assert!(g.session.handle_unknown_peer(env, at("192.168.0.2")).is_err());
    assert_eq!(g.session.peer_count(), 0);
    label(&mut g, at("192.168.0.2"));
    let delta = g.directory.replace(&snapshot(&WORLD.replace("security_groups = [\"blue\"]", "")));
    g.rnic.fail(DriverError::Stopped);
    let revoked = g.session.reevaluate(&g.directory, &g.rnic, &delta.touched);
    assert_eq!(revoked.failure.as_deref(), Some("the RNIC has stopped"));
    // Nothing is known of anybody.
    let revoked = g.session.reevaluate(&Directory::new(), &g.rnic, &Touched::everything());
    assert_eq!((revoked.failure, g.rnic.peers().len()), (None, 0));
}
