//! What a host knows of desired and realised state, and what it publishes.

mod common;

use common::*;
use masq_control::store::{Batch, Change, Snapshot};
use masq_control::{Directory, Own, PlanError, identity, plan_endpoint};
use masq_model::{Alias, DesiredState, Key, Kind, Object};
use masq_policy::conntrack::{Connection, Touched};
use masq_policy::rename::{Endpoints, Found};
use masq_policy::rules::Transport;
use masq_types::{QpnBlock, Vni, WireQpn};

fn vni(n: u32) -> Vni {
    Vni::new(n).unwrap()
}

fn put(key: &str, value: impl Into<Vec<u8>>) -> Change {
    Change::Put { key: key.into(), value: value.into() }
}

fn batch(revision: u64, changes: Vec<Change>) -> Batch {
    Batch { changes, revision }
}

/// Whether `touched` covers a connection of network 100 between two addresses.
fn covers(touched: &Touched, local: &str, remote: &str) -> bool {
    let qpn = WireQpn::from_wire(5);
    touched.covers(&Connection {
        vni: vni(100),
        transport: Transport::Rc,
        local: gid(local),
        local_qpn: qpn,
        remote: gid(remote),
        remote_qpn: qpn,
        peer: "x".into(),
        peer_host: "h2".into(),
        remote_address: [10, 0, 0, 1].into(),
        other_addresses: Vec::new(),
        allowed_by: "".into(),
        since: std::time::Duration::ZERO,
    })
}

fn allowed(d: &Directory, local: &str, remote: &str) -> bool {
    d.evaluate(vni(100), "blue-1", Transport::Rc, gid(local), gid(remote)).is_allowed()
}

#[test]
fn an_address_is_found_in_its_own_network_only() {
    let d = directory(WORLD);
    let owner = |net, address| match d.find(vni(net), gid(address)) {
        Found::Realised(peer) => peer.vnic.to_string(),
        other => format!("{other:?}"),
    };
    assert_eq!(owner(100, "192.168.0.1"), "blue-1");
    assert_eq!(owner(200, "192.168.0.1"), "red-1");
    assert_eq!(owner(100, "fe80::5054:ff:fe64:1"), "blue-1");
    assert_eq!(owner(200, "fe80::5054:ff:fe64:1"), "red-1");
    assert_eq!(owner(100, "192.168.0.3"), "Unknown");
    assert_eq!(owner(300, "192.168.0.1"), "Unknown");
}

#[test]
fn an_endpoint_counts_only_where_its_vnic_is_desired() {
    let mut d = directory(WORLD);
    let key = Key::new(Kind::Vnic, "blue-2");
    let Some(Object::Vnic(vnic)) = d.objects().find(|(k, _)| **k == key).map(|(_, o)| o.clone()) else {
        panic!()
    };
    let find = |d: &Directory| format!("{:?}", d.find(vni(100), gid("192.168.0.2")));
    let elsewhere = Object::Vnic(masq_model::Vnic { host: Some("h1".into()), ..vnic.clone() });
    let delta = d.apply(&batch(2, vec![put(&key.to_string(), elsewhere.to_json())]));
    assert!(
        covers(&delta.touched, "192.168.0.1", "192.168.0.2")
            && !covers(&delta.touched, "192.168.0.1", "192.168.9.9")
    );
    assert_eq!(find(&d), "Desired { vnic: \"blue-2\", host: Some(\"h1\") }");
    d.apply(&batch(3, vec![Change::Delete { key: key.to_string() }]));
    assert_eq!(find(&d), "Unknown", "although its endpoint record is still there");
    assert!(d.endpoint("blue-2").is_some());
    d.apply(&batch(4, vec![put(&key.to_string(), Object::Vnic(vnic).to_json())]));
    assert!(find(&d).starts_with("Realised"));
    // A record of another network does not speak for the vNIC.
    let mut endpoint = d.endpoint("blue-2").unwrap().clone();
    endpoint.vni = vni(200);
    d.apply(&batch(
        5,
        vec![put(&Key::new(Kind::Endpoint, "blue-2").to_string(), Object::Endpoint(endpoint).to_json())],
    ));
    assert!(find(&d).starts_with("Desired"));
}

#[test]
fn an_address_that_two_claim_belongs_to_neither() {
    let mut d = directory(WORLD);
    let mut thief = d.vnic("blue-9").unwrap().clone();
    thief.addresses = vec!["192.168.0.2".parse().unwrap()];
    d.apply(&batch(2, vec![put("masq/v1/vnic/blue-9", Object::Vnic(thief).to_json())]));
    assert_eq!(d.find(vni(100), gid("192.168.0.2")), Found::Contested { vnic: "blue-2", other: "blue-9" });
    d.apply(&batch(3, vec![Change::Delete { key: "masq/v1/vnic/blue-2".into() }]));
    assert!(matches!(d.find(vni(100), gid("192.168.0.2")), Found::Realised(p) if &*p.vnic == "blue-9"));
}

const MORE: &str = "masq/v1/security_group_rule/blue/more";

/// A rule of the group blue.
fn rule(direction: &str, remote: &str, action: &str) -> Change {
    let rule = format!(
        r#"{{"name":"more","security_group":"blue","direction":"{direction}","remote_prefix":"{remote}","action":"{action}"}}"#
    );
    put(MORE, rule)
}

#[test]
fn changes_touch_what_they_can_change() {
    let mut d = directory(WORLD);
    let delta = d.apply(&batch(2, vec![rule("egress", "192.168.0.2/32", "deny")]));
    assert!(covers(&delta.touched, "192.168.0.1", "192.168.0.2"));
    assert!(covers(&delta.touched, "192.168.0.2", "192.168.0.1"), "seen from the other end");
    assert!(!covers(&delta.touched, "192.168.0.1", "192.168.0.7"), "the rule is not about it");
    assert!(!covers(&delta.touched, "192.168.9.9", "192.168.0.2"), "no member");
    assert!(allowed(&d, "192.168.0.1", "192.168.0.2"), "the other direction");
    let delta = d.apply(&batch(3, vec![rule("egress", "192.168.0.2/32", "deny")]));
    assert!(delta.touched.is_nothing(), "nothing is different");
    let delta = d.apply(&batch(3, vec![Change::Delete { key: MORE.into() }]));
    assert!(delta.touched.is_nothing(), "an old batch");
    d.apply(&batch(4, vec![rule("ingress", "192.168.0.0/16", "deny")]));
    assert!(!allowed(&d, "192.168.0.1", "192.168.0.2"));
    d.apply(&batch(5, vec![Change::Delete { key: MORE.into() }]));
    assert!(allowed(&d, "192.168.0.1", "192.168.0.2"));
    let mut red = d.vnic("red-3").unwrap().clone();
    red.security_groups.clear();
    let delta = d.apply(&batch(6, vec![put("masq/v1/vnic/red-3", Object::Vnic(red.clone()).to_json())]));
    assert!(
        !covers(&delta.touched, "192.168.0.1", "192.168.0.2") && !delta.touched.is_nothing(),
        "another network"
    );
    red.qos_policy = Some("gold".into());
    let delta = d.apply(&batch(7, vec![put("masq/v1/vnic/red-3", Object::Vnic(red).to_json())]));
    assert!(delta.touched.is_nothing(), "QoS says nothing about who may connect");
    assert_eq!(d.desired_revision(), 7);
    let delta = d.apply(&batch(8, vec![Change::Delete { key: "masq/v1/vpc/blue".into() }]));
    assert!(covers(&delta.touched, "192.168.0.1", "192.168.0.2"));
    assert!(!allowed(&d, "192.168.0.1", "192.168.0.2"));
    assert_eq!((d.find(vni(100), gid("192.168.0.2")), d.revision()), (Found::Unknown, 8));
    d.apply(&batch(9, vec![Change::Delete { key: "masq/v1/endpoint/red-3".into() }]));
    assert_eq!((d.desired_revision(), d.revision()), (8, 9), "endpoints are not desired");
}

#[test]
fn many_rules_about_the_same_ends_touch_no_more_than_one() {
    let rules = |n: u32| {
        let rule = |i: u32| {
            let json = format!(
                r#"{{"name":"r{i}","security_group":"blue","direction":"egress","remote_group":"blue","action":"deny"}}"#
            );
            put(&format!("masq/v1/security_group_rule/blue/r{i}"), json)
        };
        (0..n).map(rule).collect::<Vec<_>>()
    };
    let one = directory(WORLD).apply(&batch(2, rules(1))).touched;
    assert!(covers(&one, "192.168.0.1", "192.168.0.2"));
    assert_eq!(directory(WORLD).apply(&batch(2, rules(50))).touched, one);
}

#[test]
fn a_rule_touches_members_of_whatever_place_in_its_batch() {
    let mut d = directory(WORLD);
    let mut joins = d.vnic("blue-9").unwrap().clone();
    joins.security_groups = vec!["blue".into()];
    let joins = put("masq/v1/vnic/blue-9", Object::Vnic(joins).to_json());
    let first = rule("egress", "192.168.0.2/32", "deny");
    let second = rule("egress", "192.168.0.7/32", "deny");
    let touched = d.apply(&batch(2, vec![first, joins, second])).touched;
    assert!(covers(&touched, "192.168.9.9", "192.168.0.7"), "it was no member before");
    let touched = d.apply(&batch(3, vec![Change::Delete { key: MORE.into() }])).touched;
    assert!(covers(&touched, "192.168.9.9", "192.168.0.7"));
    assert!(!covers(&touched, "192.168.9.9", "192.168.0.8"));
}

#[test]
fn a_rule_that_cannot_be_read_denies_its_group() {
    let mut d = directory(WORLD);
    let bad = |d: &mut Directory, revision, key: &str, value: &str| {
        let delta = d.apply(&batch(revision, vec![put(key, value)]));
        assert_eq!(delta.bad.len(), 1, "{key}");
        assert!(delta.bad[0].to_string().contains(key));
        delta.touched
    };
    let touched = bad(&mut d, 2, MORE, r#"{"ports":"1-9"}"#);
    assert!(covers(&touched, "192.168.0.1", "192.168.0.2") && !allowed(&d, "192.168.0.1", "192.168.0.2"));
    let verdict = d.evaluate(vni(100), "blue-1", Transport::Rc, gid("192.168.0.1"), gid("192.168.0.2"));
    assert!(format!("{verdict:?}").contains("more (unreadable)"), "{verdict:?}");
    assert!(
        d.evaluate(vni(200), "red-1", Transport::Rc, gid("192.168.0.1"), gid("192.168.0.3")).is_allowed(),
        "not the others"
    );
    let delta = d.apply(&batch(3, vec![Change::Delete { key: MORE.into() }]));
    assert!(
        covers(&delta.touched, "192.168.0.1", "192.168.0.2") && allowed(&d, "192.168.0.1", "192.168.0.2")
    );
    // Other entries count as absent; keys of other programs do not matter.
    bad(&mut d, 4, "masq/v1/endpoint/blue-2", "?");
    assert!(matches!(d.find(vni(100), gid("192.168.0.2")), Found::Desired { .. }));
    bad(&mut d, 5, "masq/v1/shoe/blue", "{}");
    assert!(allowed(&d, "192.168.0.1", "192.168.0.2"));
}

#[test]
fn a_resync_leaves_exactly_what_the_store_has() {
    let whole = snapshot(WORLD);
    let mut d = directory(WORLD);
    let mut later = Snapshot { revision: 9, ..whole.clone() };
    assert!(d.replace(&later).touched.is_nothing());
    later.entries.retain(|e| !e.key.ends_with("blue-2"));
    later.revision = 10;
    let delta = d.replace(&later);
    assert!(covers(&delta.touched, "192.168.0.1", "192.168.0.2"));
    assert!(!covers(&delta.touched, "192.168.0.1", "192.168.9.9"));
    assert_eq!((d.objects().count(), d.revision()), (later.entries.len(), 10));
    // An unreadable rule that is gone does not deny any more.
    let rule = masq_control::store::Entry {
        key: "masq/v1/security_group_rule/blue/x".into(),
        value: b"?".to_vec(),
        revision: 11,
    };
    d.replace(&Snapshot { entries: [later.entries.clone(), vec![rule]].concat(), revision: 11 });
    assert!(!allowed(&d, "192.168.0.1", "192.168.9.9") && d.unreadable().count() == 1);
    d.replace(&Snapshot { revision: 12, ..later });
    assert_eq!(d.unreadable().count(), 0);
}

#[test]
fn a_planned_endpoint_is_what_peers_need_and_stays() {
    let desired = DesiredState::from_toml(WORLD).unwrap();
    let empty = Directory::from(&desired);
    let e = plan_endpoint(&empty, "blue-1", Own { start: 0x12_3456, ..Own::default() }).unwrap();
    assert_eq!((e.vni, &*e.host, e.generation), (vni(100), "h1", 1));
    assert_eq!(e.gids, desired.vnic("blue-1").unwrap().gids());
    assert_eq!(e.addresses, ["10.77.0.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(e.qpn_blocks, [QpnBlock::new(0x12_0000, 1 << 14).unwrap()]);
    let d = directory(WORLD);
    for (vnic, _) in desired.of_kind(Kind::Vnic) {
        let planned = plan_endpoint(&d, vnic.name(), Own { start: 77, ..Own::default() }).unwrap();
        assert_eq!(Some(&planned), d.endpoint(vnic.name()), "nothing to be done");
    }
    let id = identity(&d, d.endpoint("blue-1").unwrap()).unwrap();
    assert_eq!((id.vni, &*id.vpc, id.gids.len()), (vni(100), "blue", 2));
    assert_eq!(id.qpn_blocks, d.endpoint("blue-1").unwrap().qpn_blocks);
}

#[test]
fn blocks_of_one_host_never_meet() {
    let d = directory(WORLD);
    for vnic in ["blue-1", "red-1"] {
        let own = d.endpoint(vnic).unwrap();
        let mut alone = d.clone();
        alone.apply(&batch(2, vec![Change::Delete { key: Key::new(Kind::Endpoint, vnic).to_string() }]));
        // The same start as the other's block.
        let other = alone.used_blocks("h1");
        assert_eq!(other.len(), 1);
        let planned = plan_endpoint(&alone, vnic, Own { start: other[0].first, ..Own::default() }).unwrap();
        assert_ne!(planned.qpn_blocks, other);
        assert_eq!(planned.generation, 1);
        assert_ne!(own.qpn_blocks, other);
    }
    // If two records do claim one block, a new one is taken, and the generation tells.
    let mut clash = d.endpoint("blue-1").unwrap().clone();
    clash.qpn_blocks = d.endpoint("red-1").unwrap().qpn_blocks.clone();
    clash.gsi_qpn = d.endpoint("red-1").unwrap().gsi_qpn;
    let mut both = d.clone();
    both.apply(&batch(
        2,
        vec![put(&Key::new(Kind::Endpoint, "blue-1").to_string(), Object::Endpoint(clash.clone()).to_json())],
    ));
    let planned =
        plan_endpoint(&both, "blue-1", Own { start: clash.qpn_blocks[0].first, ..Own::default() }).unwrap();
    assert_ne!(planned.qpn_blocks, clash.qpn_blocks);
    assert_eq!(planned.generation, 2);
}

/// A vNIC of the same name in another network is somebody else.
#[test]
fn blocks_do_not_pass_from_one_network_to_another() {
    let mut d = directory(WORLD);
    let blue = d.endpoint("blue-1").unwrap().clone();
    let mut vnic = d.vnic("blue-1").unwrap().clone();
    (vnic.vpc, vnic.mac) = ("red".into(), "52:54:00:64:00:77".parse().unwrap());
    d.apply(&batch(2, vec![put("masq/v1/vnic/blue-1", Object::Vnic(vnic).to_json())]));
    let last = Own { last: Some(&blue), start: blue.qpn_blocks[0].first, ..Own::default() };
    let red = plan_endpoint(&d, "blue-1", last).unwrap();
    assert_eq!((red.vni, red.generation), (vni(200), 2));
    assert_ne!(red.qpn_blocks, blue.qpn_blocks);
}

#[test]
fn the_gsi_has_the_first_qpn_of_the_block_or_the_well_known_one_of_an_address_of_its_own() {
    let mut d = directory(WORLD);
    let endpoint = d.endpoint("blue-1").unwrap();
    assert_eq!(endpoint.gsi_qpn.get(), endpoint.qpn_blocks[0].first);
    let mut host = d.host("h1").unwrap().clone();
    host.aliases =
        vec![Alias { address: "10.77.0.101/24".parse().unwrap(), link: "eth0".into(), gateway: None }];
    let mut vnic = d.vnic("blue-1").unwrap().clone();
    vnic.dedicated_alias = Some("10.77.0.101".parse().unwrap());
    d.apply(&batch(
        2,
        vec![
            put("masq/v1/host/h1", Object::Host(host).to_json()),
            put("masq/v1/vnic/blue-1", Object::Vnic(vnic).to_json()),
        ],
    ));
    let planned = plan_endpoint(&d, "blue-1", Own::default()).unwrap();
    assert_eq!((planned.gsi_qpn.get(), planned.addresses), (1, vec!["10.77.0.101".parse().unwrap()]));
}

#[test]
fn records_without_a_gsi_are_read_and_replaced() {
    let mut d = directory(WORLD);
    let endpoint = d.endpoint("blue-1").unwrap().clone();
    let mut value = serde_json::to_value(&endpoint).unwrap();
    value.as_object_mut().unwrap().remove("gsi_qpn");
    d.apply(&batch(2, vec![put("masq/v1/endpoint/blue-1", serde_json::to_vec(&value).unwrap())]));
    assert_eq!(d.endpoint("blue-1").unwrap().gsi_qpn.get(), 0);
    assert_eq!(plan_endpoint(&d, "blue-1", Own::default()).unwrap(), endpoint, "its host publishes it anew");
}

#[test]
fn a_vnic_that_cannot_be_realised_says_why() {
    let mut d = directory(WORLD);
    assert_eq!(
        plan_endpoint(&d, "x", Own { start: 0, ..Own::default() }),
        Err(PlanError::NoVnic("x".into()))
    );
    let mut vnic = d.vnic("blue-1").unwrap().clone();
    vnic.paths = Some(2);
    d.apply(&batch(2, vec![put("masq/v1/vnic/blue-1", Object::Vnic(vnic.clone()).to_json())]));
    let e = plan_endpoint(&d, "blue-1", Own { start: 0, ..Own::default() }).unwrap_err();
    assert_eq!(e.to_string(), "vnic \"blue-1\" wants 2 paths, but host \"h1\" has only 1 underlay addresses");
    vnic.host = Some("h3".into());
    d.apply(&batch(3, vec![put("masq/v1/vnic/blue-1", Object::Vnic(vnic).to_json())]));
    assert!(matches!(
        plan_endpoint(&d, "blue-1", Own { start: 0, ..Own::default() }),
        Err(PlanError::NoHost { .. })
    ));
    let endpoint = d.endpoint("blue-1").unwrap();
    assert_eq!(identity(&d, endpoint), Err(PlanError::NotRealised("blue-1".into())), "it moved away");
    d.apply(&batch(4, vec![Change::Delete { key: "masq/v1/vpc/blue".into() }]));
    assert!(matches!(
        plan_endpoint(&d, "blue-1", Own { start: 0, ..Own::default() }),
        Err(PlanError::NoVpc { .. })
    ));
}
