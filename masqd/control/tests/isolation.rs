//! What one tenant must not be able to do to another, and what it must not learn.

mod common;

use common::*;
use masq_control::*;
use masq_driver::Rate;
use masq_policy::conntrack::Touched;
use masq_types::{Features, Gid};
use vrdma_abi::control::*;

fn ready() -> Guest {
    let mut g = Guest::ready("blue-1");
    g.base();
    g.qp_in_init(1);
    g
}

#[test]
fn an_address_of_another_tenant_cannot_be_reached() {
    let mut g = ready();
    let qpn = g.qpn_of("red-3");
    let refusal = g.connect(1, gid("192.168.0.3"), qpn).unwrap_err();
    assert_eq!(refusal.errno(), Errno::EHOSTUNREACH);
    let text = refusal.to_string();
    assert!(
        text.contains("192.168.0.3") && !text.contains("red"),
        "it tells nothing of the other tenant: {text}"
    );
    assert_eq!(g.rnic.connection(1), None);
}

#[test]
fn the_same_address_means_the_own_tenants_peer() {
    let mut blue = ready();
    let mut red = Guest::ready("red-3");
    red.base();
    red.qp_in_init(1);
    let (to_blue, to_red) = (blue.qpn_of("blue-1"), red.qpn_of("red-1"));
    blue.connect(1, gid("192.168.0.1"), to_blue).unwrap();
    red.connect(1, gid("192.168.0.1"), to_red).unwrap();
    assert_eq!(blue.rnic.connection(1).unwrap().remote_qpn.get(), to_blue);
    assert_eq!(red.rnic.connection(1).unwrap().remote_qpn.get(), to_red);
    // The QPN of the other tenant's vNIC at that address is no peer's.
    red.qp_in_init(2);
    assert_eq!(refused(red.connect(2, gid("192.168.0.1"), to_blue)), (Errno::ENXIO, "foreign_qpn"));
}

#[test]
fn a_qpn_outside_the_peers_blocks_is_refused() {
    let mut g = ready();
    let block = g.directory.endpoint("blue-2").unwrap().qpn_blocks[0];
    let other = g.qpn_of("red-3");
    for qpn in [0, 1, 2, block.first - 1, block.first + block.len, other] {
        let refusal = g.connect(1, gid("192.168.0.2"), qpn).unwrap_err();
        assert_eq!((refusal.errno(), refusal.reason.label()), (Errno::ENXIO, "foreign_qpn"), "{qpn:#x}");
        assert!(refusal.to_string().contains("blue-2"), "{refusal}");
    }
    assert!(g.connect(1, gid("192.168.0.2"), block.first + block.len - 1).is_ok());
}

#[test]
fn an_address_that_two_vnics_claim_reaches_neither() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-2");
    let mut thief = g.directory.vnic("blue-9").unwrap().clone();
    thief.addresses = vec!["192.168.0.2".parse().unwrap()];
    let value = masq_model::Object::Vnic(thief).to_json();
    let change = store::Change::Put { key: "masq/v1/vnic/blue-9".into(), value };
    g.directory.apply(&store::Batch { changes: vec![change], revision: 2 });
    let refusal = g.connect(1, gid("192.168.0.2"), qpn).unwrap_err();
    assert_eq!((refusal.errno(), refusal.reason.label()), (Errno::EHOSTUNREACH, "unreachable"));
    assert!(refusal.to_string().contains("both vNIC blue-2 and vNIC blue-9 claim"), "{refusal}");
}

#[test]
fn a_qpn_of_more_than_24_bits_is_not_cut_down() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-2");
    assert_eq!(refused(g.connect(1, gid("192.168.0.2"), qpn | 1 << 24)), (Errno::EINVAL, "malformed"));
}

#[test]
fn a_foreign_gid_does_not_enter_the_table() {
    let mut g = Guest::ready("blue-1");
    let foreign = ["192.168.0.2", "192.168.0.3", "10.77.0.1", "fe80::5054:ff:fe64:2", "::"];
    for (i, address) in foreign.into_iter().enumerate() {
        let refusal = g.add_gid(2, gid(address)).unwrap_err();
        assert_eq!((refusal.errno(), refusal.reason.label()), (Errno::EACCES, "spoofed_gid"), "{address}");
        assert_eq!(g.session.refusals().get("spoofed_gid"), i as u64 + 1);
    }
}

#[test]
fn a_source_address_must_be_in_the_table() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-2");
    let mut attr = g.rtr_attr(gid("192.168.0.2"), qpn);
    for source in [gid("192.168.0.2"), gid("192.168.0.7"), Gid::ZERO] {
        attr.sgid = source.0;
        assert_eq!(refused(g.modify(1, RTR_MASK, attr)), (Errno::EADDRNOTAVAIL, "source_gid"));
    }
    // Also one that is the vNIC's, but that it has taken out of the table.
    g.send(OP_DEL_GID, &DelGid { index: 1, reserved: 0 }).unwrap();
    assert_eq!(refused(g.connect(1, gid("192.168.0.2"), qpn)), (Errno::EADDRNOTAVAIL, "source_gid"));
}

#[test]
fn what_no_rule_allows_is_denied() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-9");
    let refusal = g.connect(1, gid("192.168.9.9"), qpn).unwrap_err();
    assert_eq!((refusal.errno(), refusal.reason.label()), (Errno::EACCES, "denied"));
    let text = refusal.to_string();
    let begins = format!(
        "modify_qp to QP {qpn:#08x} at 192.168.9.9 (vNIC blue-9) refused with EACCES: no rule allows"
    );
    assert!(text.starts_with(&begins) && text.contains("192.168.0.1"), "{text}");
    assert_eq!(g.session.refusals().get("denied"), 1);
}

#[test]
fn a_rule_is_judged_before_the_qpn_so_that_denied_guests_learn_no_blocks() {
    let mut g = ready();
    let outside = g.qpn_of("red-3");
    assert_eq!(refused(g.connect(1, gid("192.168.9.9"), outside)), (Errno::EACCES, "denied"));
}

#[test]
fn an_address_vector_changed_later_is_judged_again() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-2");
    g.connect(1, gid("192.168.0.2"), qpn).unwrap();
    g.modify(1, RTS_MASK, rts_attr()).unwrap();
    g.modify(1, QP_ATTR_STATE, QpAttr { state: QP_STATE_SQD, ..QpAttr::ZERO }).unwrap();
    for (address, errno) in
        [("192.168.9.9", Errno::EACCES), ("192.168.0.3", Errno::EHOSTUNREACH), ("192.168.0.1", Errno::ENXIO)]
    {
        let attr = g.rtr_attr(gid(address), 0);
        assert_eq!(refused(g.modify(1, QP_ATTR_AV, attr)).0, errno, "{address}");
    }
    let attr = QpAttr { flow_label: 7, ..g.rtr_attr(gid("192.168.0.2"), 0) };
    g.modify(1, QP_ATTR_AV, attr).unwrap();
    assert_eq!(g.rnic.connection(1).unwrap().udp_source_port, 0xc007);
    assert_eq!(g.rnic.connection(1).unwrap().remote_qpn.get(), qpn);
}

#[test]
fn a_guest_sees_virtual_values_only() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-2");
    g.connect(1, gid("192.168.0.2"), qpn).unwrap();
    let c = g.rnic.connection(1).unwrap();
    assert_eq!((c.local.to_string(), c.remote.to_string()), ("10.77.0.1".into(), "10.77.0.2".into()));
    assert_eq!((c.hop_limit, c.traffic_class), (64, 0), "the underlay's, not the tenant's");
    let attr = g.query(1).attr;
    assert_eq!((Gid(attr.sgid), Gid(attr.dgid)), (gid("192.168.0.1"), gid("192.168.0.2")));
    assert_eq!((attr.hop_limit, attr.traffic_class, attr.dest_qpn), (1, 0x20, qpn));
    let underlay = [10, 77, 0];
    let bytes = zerocopy::IntoBytes::as_bytes(&attr);
    assert!(!bytes.windows(3).any(|w| w == underlay));
}

#[test]
fn contexts_of_one_guest_cannot_use_each_others_queues() {
    let mut g = ready();
    g.context(2).unwrap();
    g.pd(2, 2).unwrap();
    g.cq(2, 2).unwrap();
    for (send_cq, recv_cq) in [(1, 2), (2, 1), (1, 1)] {
        let r = g.qp_request(9, 2, send_cq, recv_cq);
        assert_eq!(refused(g.send(OP_CREATE_QP, &r)), (Errno::EINVAL, "foreign_context"));
    }
    assert!(g.qp(9, 2, 2).is_ok());
}

#[test]
fn a_revoked_rule_ends_its_connections_and_no_others() {
    let mut g = ready();
    let peer = g.qpn_of("blue-2");
    g.connect(1, gid("192.168.0.2"), peer).unwrap();
    g.qp_in_init(2);
    let own = g.qpn_of("blue-1");
    g.connect(2, gid("192.168.0.1"), own).unwrap();
    assert_eq!(g.session.reevaluate(&g.directory, &g.rnic, &Touched::everything()).connections, []);

    let without_rule = WORLD.replacen("security_groups = [\"blue\"]", "", 1);
    let mut later = snapshot(&without_rule);
    later.revision = 2;
    let delta = g.directory.replace(&later);
    let revoked = g.session.reevaluate(&g.directory, &g.rnic, &delta.touched).connections;
    assert_eq!(g.rnic.revoked(), [1], "a connection to oneself needs no rule");
    let reason = revoked[0].reason.to_string();
    assert!(reason.starts_with("no rule allows"), "{reason}");
    assert_eq!(revoked[0].reason.rules(), None);
    assert_eq!((&*revoked[0].connection.peer, &revoked[0].failure), ("blue-2", &None));
    assert_eq!(g.session.reevaluate(&g.directory, &g.rnic, &Touched::everything()).connections, [], "once");
    assert_eq!(g.query(1).attr.state, QP_STATE_ERR);
}

#[test]
fn a_refusal_names_the_rules_that_forbid() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-2");
    let rule = |name: &str, direction: &str| {
        store::Change::Put {
        key: format!("masq/v1/security_group_rule/blue/{name}"),
        value: format!(
            r#"{{"name":"{name}","security_group":"blue","direction":"{direction}","remote_prefix":"192.168.0.2/32","action":"deny"}}"#
        )
        .into(),
    }
    };
    g.directory.apply(&store::Batch {
        changes: vec![rule("no-out", "egress"), rule("no-in", "ingress")],
        revision: 2,
    });
    let refusal = g.connect(1, gid("192.168.0.2"), qpn).unwrap_err();
    assert_eq!(
        (refusal.errno(), refusal.reason.rules()),
        (Errno::EACCES, Some("blue/no-out,blue/no-in".into()))
    );
}

#[test]
fn a_peer_that_vanishes_or_moves_loses_its_connections() {
    let change = |find: &str, replace: &str| {
        let mut g = ready();
        let qpn = g.qpn_of("blue-2");
        g.connect(1, gid("192.168.0.2"), qpn).unwrap();
        assert!(WORLD.contains(find));
        let mut later = snapshot(&WORLD.replace(find, replace));
        later.revision = 2;
        let delta = g.directory.replace(&later);
        let revoked = g.session.reevaluate(&g.directory, &g.rnic, &delta.touched).connections;
        assert_eq!(g.rnic.revoked(), [1], "{replace}");
        revoked[0].reason.label()
    };
    let vnic = |address: &str| format!("mac = \"52:54:00:64:00:02\"\naddresses = [\"{address}\"]");
    assert_eq!(change(&vnic("192.168.0.2"), &vnic("192.168.0.4")), "unreachable");
    let on = |host: &str| format!("host = \"{host}\"\nmac = \"52:54:00:64:00:02\"");
    assert_eq!(change(&on("h2"), &on("h1")), "moved");
    assert_eq!(change("underlay = [\"10.77.0.2\"]", "underlay = [\"10.77.0.22\"]"), "moved");
}

#[test]
fn a_host_that_the_store_has_lost_keeps_its_connections_but_gets_no_new_ones() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-2");
    g.connect(1, gid("192.168.0.2"), qpn).unwrap();
    g.qp_in_init(2);
    let endpoint = g.directory.endpoint("blue-2").unwrap().clone();
    let gone = store::Change::Delete { key: "masq/v1/endpoint/blue-2".into() };
    let delta = g.directory.apply(&store::Batch { changes: vec![gone], revision: 2 });
    assert_eq!(g.session.reevaluate(&g.directory, &g.rnic, &delta.touched).connections, []);
    assert_eq!(refused(g.connect(2, gid("192.168.0.2"), qpn)), (Errno::EHOSTUNREACH, "unreachable"));
    // It comes back as it was.
    let value = masq_model::Object::Endpoint(endpoint).to_json();
    let back = store::Change::Put { key: "masq/v1/endpoint/blue-2".into(), value };
    let delta = g.directory.apply(&store::Batch { changes: vec![back], revision: 3 });
    assert_eq!(g.session.reevaluate(&g.directory, &g.rnic, &delta.touched).connections, []);
    g.connect(2, gid("192.168.0.2"), qpn).unwrap();
    // A rule counts all the same, and so does a vNIC that is not desired any more.
    let gone = |key: &str| store::Change::Delete { key: key.into() };
    let changes = vec![gone("masq/v1/endpoint/blue-2"), gone("masq/v1/vnic/blue-2")];
    let delta = g.directory.apply(&store::Batch { changes, revision: 4 });
    assert_eq!(g.session.reevaluate(&g.directory, &g.rnic, &delta.touched).connections.len(), 2);
}

/// A record without features is that of a stranger, and bits that nobody here knows are not passed on.
#[test]
fn a_connection_uses_what_both_hosts_can_do() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-2");
    g.connect(1, gid("192.168.0.2"), qpn).unwrap();
    assert_eq!(g.rnic.connection(1).unwrap().features, Features::NONE);
    let mut endpoint = g.directory.endpoint("blue-2").unwrap().clone();
    endpoint.features = Features::from_bits(1 << 20) | Features::SELECTIVE;
    let value = masq_model::Object::Endpoint(endpoint).to_json();
    let change = store::Change::Put { key: "masq/v1/endpoint/blue-2".into(), value };
    let delta = g.directory.apply(&store::Batch { changes: vec![change], revision: 2 });
    let revoked = g.session.reevaluate(&g.directory, &g.rnic, &delta.touched).connections;
    assert!(revoked.is_empty(), "a connection stays as it was made: {revoked:?}");
    g.qp_in_init(2);
    g.connect(2, gid("192.168.0.2"), qpn).unwrap();
    assert_eq!(g.rnic.connection(2).unwrap().features, Features::SELECTIVE);
}

#[test]
fn a_peer_that_gives_up_its_block_loses_its_connections() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-2");
    g.connect(1, gid("192.168.0.2"), qpn).unwrap();
    let mut endpoint = g.directory.endpoint("blue-2").unwrap().clone();
    endpoint.qpn_blocks = vec![masq_types::QpnBlock::new(0x80_0000, 4096).unwrap()];
    endpoint.gsi_qpn = masq_types::WireQpn::from_wire(0x80_0000);
    endpoint.generation += 1;
    let value = masq_model::Object::Endpoint(endpoint).to_json();
    let change = store::Change::Put { key: "masq/v1/endpoint/blue-2".into(), value };
    let delta = g.directory.apply(&store::Batch { changes: vec![change], revision: 2 });
    let revoked = g.session.reevaluate(&g.directory, &g.rnic, &delta.touched).connections;
    assert_eq!(g.rnic.revoked(), [1]);
    assert_eq!(revoked[0].reason.label(), "foreign_qpn");
}

#[test]
fn own_addresses_that_are_taken_away_end_their_connections() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-2");
    g.connect(1, gid("192.168.0.2"), qpn).unwrap();
    let link_local = g.session.identity().gids[0];
    g.session.set_addresses(vec![link_local], vec![]);
    let revoked = g.session.reevaluate(&g.directory, &g.rnic, &Touched::everything()).connections;
    assert_eq!(revoked[0].reason.label(), "spoofed_gid");
    assert_eq!(g.add_gid(1, gid("192.168.0.1")).unwrap_err().errno(), Errno::EACCES);
    g.qp_in_init(2);
    let mut attr = g.rtr_attr_from(gid("192.168.0.1"), gid("192.168.0.2"), qpn);
    attr.sgid_index = 1;
    assert_eq!(refused(g.modify(2, RTR_MASK, attr)), (Errno::EADDRNOTAVAIL, "source_gid"));
}

/// blue-1 with the address 192.168.0.50 allowed to it, and the directory after its host has published `taken`.
fn with_allowed_address(g: &mut Guest, taken: &[Gid], revision: u64) {
    let mut vnic = g.directory.vnic("blue-1").unwrap().clone();
    vnic.allowed_address_pairs = vec!["192.168.0.48/29".parse().unwrap()];
    let put = |o: masq_model::Object| store::Change::Put { key: o.key().to_string(), value: o.to_json() };
    let changes = vec![put(masq_model::Object::Vnic(vnic.clone()))];
    g.directory.apply(&store::Batch { changes, revision });
    let endpoint = plan_endpoint(&g.directory, "blue-1", Own { taken, ..Own::default() }).unwrap();
    let changes = vec![put(masq_model::Object::Endpoint(endpoint))];
    g.directory.apply(&store::Batch { changes, revision: revision + 1 });
    g.session.set_addresses(vnic.gids(), vnic.allowed_address_pairs);
}

#[test]
fn an_allowed_address_may_be_taken_on_and_is_found_while_it_is() {
    use masq_policy::rename::{Endpoints, Found};
    let mut g = ready();
    let shared = gid("192.168.0.50");
    assert_eq!(g.add_gid(2, shared).unwrap_err().errno(), Errno::EACCES);
    with_allowed_address(&mut g, &[], 2);
    g.add_gid(2, shared).unwrap();
    assert_eq!(g.session.taken_gids(), [shared]);
    assert_eq!(g.add_gid(3, gid("192.168.0.56")).unwrap_err().errno(), Errno::EACCES, "outside the prefix");
    let vni = g.session.identity().vni;
    assert_eq!(g.directory.find(vni, shared), Found::Unknown, "not published yet");
    with_allowed_address(&mut g, &[shared, gid("192.168.0.2")], 4);
    assert!(matches!(g.directory.find(vni, shared), Found::Realised(p) if &*p.vnic == "blue-1"));
    let found = g.directory.find(vni, gid("192.168.0.2"));
    assert!(matches!(found, Found::Realised(p) if &*p.vnic == "blue-2"), "its own address stays blue-2's");
    g.send(OP_DEL_GID, &DelGid { index: 2, reserved: 0 }).unwrap();
    assert_eq!(g.session.taken_gids(), []);
}

#[test]
fn an_allowed_address_that_is_given_up_ends_its_connections() {
    let mut g = ready();
    let (shared, peer) = (gid("192.168.0.50"), gid("192.168.0.2"));
    with_allowed_address(&mut g, &[shared], 2);
    g.add_gid(2, shared).unwrap();
    let qpn = g.qpn_of("blue-2");
    g.connect(1, peer, qpn).unwrap();
    g.qp_in_init(2);
    let mut attr = g.rtr_attr_from(shared, peer, qpn);
    attr.sgid_index = 2;
    g.modify(2, RTR_MASK, attr).unwrap();
    assert_eq!(g.session.reevaluate(&g.directory, &g.rnic, &Touched::everything()).connections, []);
    // Its own addresses stay the vNIC's, whatever its table says.
    for index in 0..3 {
        g.send(OP_DEL_GID, &DelGid { index, reserved: 0 }).unwrap();
    }
    let revoked = g.session.reevaluate(&g.directory, &g.rnic, &Touched::everything()).connections;
    assert_eq!(g.rnic.revoked(), [2]);
    assert_eq!(revoked[0].reason.label(), "source_gid");
}

#[test]
fn quotas_change_while_the_guest_runs_and_what_it_has_stays() {
    let mut g = ready();
    g.pd(2, 1).unwrap();
    let fewer =
        Settings { quotas: quotas().with(masq_policy::quota::Resource::Pds, 1), ..Settings::default() };
    g.session.set_settings(&g.rnic, fewer).unwrap();
    assert_eq!(refused(g.pd(3, 1)), (Errno::EDQUOT, "quota"));
    g.mr(1, 2).unwrap();
    g.destroy(OP_DESTROY_MR, 1).unwrap();
    g.destroy(OP_DESTROY_PD, 2).unwrap();
    assert_eq!(refused(g.pd(3, 1)), (Errno::EDQUOT, "quota"), "one is left, and one is the quota");
    g.session.set_settings(&g.rnic, Settings { quotas: quotas(), ..Settings::default() }).unwrap();
    g.pd(3, 1).unwrap();
}

#[test]
fn a_qos_policy_reaches_the_rnic_and_its_absence_too() {
    let mut g = ready();
    let policy = |json| serde_json::from_str(json).unwrap();
    for (json, rate, weight, class, dscp) in [
        (
            r#"{"name":"slow","rate_bits_per_sec":50000000}"#,
            Some((50_000_000, Rate::with_default_burst(50_000_000).burst_bytes)),
            1,
            0,
            None,
        ),
        (
            r#"{"name":"fast","rate_bits_per_sec":5000000000,"weight":7}"#,
            Some((5_000_000_000, Rate::with_default_burst(5_000_000_000).burst_bytes)),
            7,
            0,
            None,
        ),
        (
            r#"{"name":"own","rate_bits_per_sec":1000000,"burst_bits":800000,"class":3,"dscp":46}"#,
            Some((1_000_000, 100_000)),
            1,
            3,
            Some(46),
        ),
        (r#"{"name":"free"}"#, None, 1, 0, None),
    ] {
        let qos = Some(policy(json));
        g.session.set_settings(&g.rnic, Settings { qos, ..Settings::default() }).unwrap();
        let rate = rate.map(|(bits_per_sec, burst_bytes)| Rate { bits_per_sec, burst_bytes });
        let limits = g.rnic.limits().unwrap();
        assert_eq!(
            (limits.rate, limits.weight, limits.class, limits.dscp),
            (rate, weight, class, dscp),
            "{json}"
        );
        limits.check().unwrap();
    }
    g.session.set_settings(&g.rnic, Settings::default()).unwrap();
    assert_eq!(g.rnic.limits(), Some(masq_driver::Limits::default()));
}

#[test]
fn a_tenant_chooses_the_priority_of_its_packets_only_if_a_policy_says_so() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-2");
    for (json, expected) in [
        (r#"{"name":"plain"}"#, 0),
        (r#"{"name":"trusted","trust_dscp":true}"#, 0xb8),
        (r#"{"name":"own","trust_dscp":false,"dscp":9}"#, 0),
    ] {
        let qos: masq_model::QosPolicy = serde_json::from_str(json).unwrap();
        let trusted = qos.trust_dscp;
        let settings = Settings { quotas: quotas(), qos: Some(qos), ..Settings::default() };
        g.session.set_settings(&g.rnic, settings).unwrap();
        assert_eq!(g.rnic.limits().unwrap().trust_dscp, trusted);
        let attr = QpAttr { traffic_class: 0xbb, ..g.rtr_attr(gid("192.168.0.2"), qpn) };
        g.modify(1, RTR_MASK, attr).unwrap();
        // ECN is the underlay's in any case.
        assert_eq!(g.rnic.connection(1).unwrap().traffic_class, expected, "{json}");
        g.modify(1, QP_ATTR_STATE, QpAttr { state: QP_STATE_RESET, ..QpAttr::ZERO }).unwrap();
        g.modify(1, INIT_MASK, init_attr()).unwrap();
    }
}

#[test]
fn commands_beyond_the_rate_are_refused_but_destroying_is_not() {
    let mut g = ready();
    let commands_per_sec = std::num::NonZeroU32::new(3);
    g.session
        .set_settings(&g.rnic, Settings { quotas: quotas(), commands_per_sec, ..Settings::default() })
        .unwrap();
    g.now = std::time::Duration::from_secs(100);
    for pd in 10..13 {
        g.pd(pd, 1).unwrap();
    }
    assert_eq!(refused(g.pd(13, 1)), (Errno::EDQUOT, "too_fast"));
    for pd in 10..13 {
        g.destroy(OP_DESTROY_PD, pd).unwrap();
    }
    g.now += std::time::Duration::from_millis(334);
    g.pd(13, 1).unwrap();
    assert_eq!(refused(g.pd(14, 1)), (Errno::EDQUOT, "too_fast"));
}

#[test]
fn a_failed_revocation_is_reported_and_tried_again() {
    let mut g = ready();
    let qpn = g.qpn_of("blue-2");
    g.connect(1, gid("192.168.0.2"), qpn).unwrap();
    g.directory = Directory::new();
    g.rnic.fail(masq_driver::DriverError::Stopped);
    let revoked = g.session.reevaluate(&g.directory, &g.rnic, &Touched::everything()).connections;
    assert_eq!(revoked[0].failure.as_deref(), Some("the RNIC has stopped"));
    assert_eq!(g.session.connections().count(), 1);
    assert_eq!(g.session.reevaluate(&g.directory, &g.rnic, &Touched::everything()).connections.len(), 1);
    assert_eq!((g.rnic.revoked(), g.session.connections().count()), (vec![1], 0));
}

#[test]
fn unknown_bits_are_refused_everywhere() {
    let mut g = ready();
    let doorbells = g.memory.list(8);
    let refusals = [
        g.send(OP_CREATE_CONTEXT, &CreateContext { ctx: 7, flags: 2, doorbells }),
        {
            let r = CreateMr { flags: 4, ..g.mr_request(7, 1) };
            g.send(OP_CREATE_MR, &r)
        },
        {
            let r = CreateMr { access: ACCESS_ZERO_BASED, ..g.mr_request(7, 1) };
            g.send(OP_CREATE_MR, &r)
        },
        {
            let r = CreateMr { access: 1 << 19, ..g.mr_request(7, 1) };
            g.send(OP_CREATE_MR, &r)
        },
        {
            let r = CreateQp { flags: 2, ..g.qp_request(7, 1, 1, 1) };
            g.send(OP_CREATE_QP, &r)
        },
        g.modify(1, QP_ATTR_STATE | 1 << 14, init_attr()),
        g.modify(1, 1 << 31, init_attr()),
        g.modify(1, INIT_MASK, QpAttr { access: 1 << 6, ..init_attr() }),
        g.send(99, &Destroy::ZERO),
        g.send(0, &Destroy::ZERO),
    ];
    for (i, answer) in refusals.into_iter().enumerate() {
        assert_eq!(refused(answer), (Errno::EOPNOTSUPP, "unsupported"), "case {i}");
    }
    let mut fresh = Guest::new("blue-1");
    let features = DeviceInit { abi_major: 1, features: 1, status_page: 0x8000, ..DeviceInit::ZERO };
    assert_eq!(refused(fresh.send(OP_DEVICE_INIT, &features)).0, Errno::EOPNOTSUPP);
    let version = DeviceInit { abi_major: 2, status_page: 0x8000, ..DeviceInit::ZERO };
    assert_eq!(refused(fresh.send(OP_DEVICE_INIT, &version)).0, Errno::EOPNOTSUPP);
    assert!(!fresh.session.is_initialised());
}
