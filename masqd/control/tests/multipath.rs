//! Queue pairs with several paths: their numbers, and how many paths they come to use.

mod common;

use common::*;
use masq_control::{Directory, Errno, Limits, Link, config_space, identity, store};
use masq_driver::UnderlayPath;
use masq_model::{DesiredState, Kind, Object};
use masq_policy::multipath::OnePath;
use masq_policy::quota::Resource;
use masq_types::{Features, QpnBlock};
use vrdma_abi::config::FEATURE_STEER;
use vrdma_abi::control::*;
use zerocopy::FromBytes;

const BOTH: Features = Features::from_bits(Features::SELECTIVE.bits() | Features::MULTIPATH.bits());

/// `WORLD` with four addresses at each host, and so many paths of each vNIC.
fn world(paths: u8) -> Directory {
    let wide = WORLD
        .replace(r#"["10.77.0.1"]"#, r#"["10.77.0.1", "10.78.0.1", "10.79.0.1", "10.80.0.1"]"#)
        .replace(r#"["10.77.0.2"]"#, r#"["10.77.0.2", "10.78.0.2", "10.79.0.2", "10.80.0.2"]"#)
        .replace("[[vnic]]\n", &format!("[[vnic]]\npaths = {paths}\n"));
    let mut directory = directory(&wide);
    let desired = DesiredState::from_toml(&wide).unwrap();
    let endpoints =
        desired.of_kind(Kind::Vnic).map(|(vnic, _)| directory.endpoint(vnic.name()).unwrap().clone());
    let changes =
        endpoints.map(|e| put(Object::Endpoint(masq_model::Endpoint { features: BOTH, ..e }))).collect();
    let revision = directory.revision() + 1;
    assert!(directory.apply(&store::Batch { changes, revision }).bad.is_empty());
    directory
}

fn limits_of(features: Features) -> Limits {
    Limits { features, ..limits() }
}

/// blue-1 with what `base` has, in a world where all have so many paths.
fn ready(paths: u8) -> Guest {
    let directory = world(paths);
    let who = identity(&directory, directory.endpoint("blue-1").unwrap()).unwrap();
    let mut g = Guest::with_identity(who, limits_of(BOTH));
    g.directory = directory;
    g.begin();
    g.base();
    g
}

fn group(g: &Guest, qp: u32) -> CreateQp {
    let request = g.qp_request(qp, 1, 1, 1);
    CreateQp { flags: QP_MULTIPATH, chunk_entries: 64, chunks: g.memory.list(2), ..request }
}

fn create(g: &mut Guest, request: &CreateQp) -> u32 {
    CreateQpReply::read_from_bytes(&g.send(OP_CREATE_QP, request).unwrap()).unwrap().qpn
}

/// A group in INIT, and its number.
fn group_in_init(g: &mut Guest, qp: u32) -> u32 {
    let request = group(g, qp);
    let qpn = create(g, &request);
    g.modify(qp, INIT_MASK, init_attr()).unwrap();
    qpn
}

/// A number with which a group of blue-2's can begin, and one with which none does.
fn numbers_of_peer(g: &Guest) -> (u32, u32) {
    let first = g.directory.endpoint("blue-2").unwrap().qpn_blocks[0].first;
    (first + 8, first + 9)
}

/// That sends can be split is offered where the RNIC has paths; elsewhere a guest that uses it all the same is refused.
#[test]
fn steering_is_offered_with_paths() {
    let link = Link { up: true, active_mtu: masq_types::Mtu::B4096, mbits_per_sec: 0 };
    for (features, offered) in [(BOTH, FEATURE_STEER), (Features::SELECTIVE, 0)] {
        let limits = limits_of(features);
        let g = Guest::new("blue-1");
        let config = config_space(g.session.identity().mac, EPOCH, &limits, &quotas(), link, 4);
        assert_eq!(config.features, offered);
        let directory = world(4);
        let who = identity(&directory, directory.endpoint("blue-1").unwrap()).unwrap();
        let mut g = Guest::with_identity(who, limits);
        let init =
            DeviceInit { abi_major: 1, features: FEATURE_STEER, status_page: 0x8000, ..DeviceInit::ZERO };
        let answer = g.send(OP_DEVICE_INIT, &init);
        match offered {
            0 => assert_eq!(refused(answer).0, Errno::EOPNOTSUPP),
            _ => assert!(answer.is_ok()),
        }
        let unknown = DeviceInit { features: FEATURE_STEER << 1, ..init };
        assert_eq!(refused(g.send(OP_DEVICE_INIT, &unknown)).0, Errno::EOPNOTSUPP);
    }
}

#[test]
fn a_group_has_numbers_of_its_own() {
    let mut g = ready(3);
    let before = g.session.usage().used(Resource::Qps);
    let qpn = group_in_init(&mut g, 2);
    assert_eq!(qpn % 4, 0, "three paths take four numbers");
    g.rnic.qp(2, |q| {
        let group = q.init.group.as_ref().unwrap();
        assert_eq!((group.members, group.chunks.entries, group.chunks.stride_shift), (3, 64, 6));
        assert_eq!(group.chunks.ring.pages.len(), 2);
    });
    assert_eq!(g.session.usage().used(Resource::Qps), before + 3, "one for each path");
    for qp in 3..6 {
        let request = g.qp_request(qp, 1, 1, 1);
        let plain = create(&mut g, &request);
        // No group could begin with it, nor is it a sibling's.
        assert!(!plain.is_multiple_of(4) && plain & !3 != qpn, "{plain:#x}");
    }
    // The quota is 8.
    let request = group(&g, 6);
    assert_eq!(refused(g.send(OP_CREATE_QP, &request)).0, Errno::EDQUOT);
    g.send(OP_DESTROY_QP, &Destroy { handle: 2, reserved: 0 }).unwrap();
    assert_eq!(g.session.usage().used(Resource::Qps), before + 3);
    assert!(g.session.reset(&g.rnic).failures.is_empty());
}

#[test]
fn groups_are_described_consistently() {
    let mut g = ready(4);
    let base = group(&g, 2);
    let plain = g.qp_request(2, 1, 1, 1);
    for (what, r) in [
        ("no chunks", CreateQp { chunk_entries: 0, ..base }),
        ("not a power of two", CreateQp { chunk_entries: 48, ..base }),
        ("too many", CreateQp { chunk_entries: 2048, ..base }),
        ("ring too short", CreateQp { chunk_entries: 128, ..base }),
        ("unreliable", CreateQp { qp_type: QP_TYPE_UC, ..base }),
        ("chunks of none", CreateQp { chunk_entries: 64, ..plain }),
        ("a ring of none", CreateQp { chunks: base.chunks, ..plain }),
    ] {
        assert_eq!(refused(g.send(OP_CREATE_QP, &r)).0, Errno::EINVAL, "{what}");
    }
    create(&mut g, &base);
    // The same again is a repetition; with another chunk ring it is not.
    create(&mut g, &base);
    let other = CreateQp { chunks: g.memory.list(2), ..base };
    assert_eq!(refused(g.send(OP_CREATE_QP, &other)).0, Errno::EEXIST);
    let mut single = ready(1);
    let request = group(&single, 2);
    assert_eq!(refused(single.send(OP_CREATE_QP, &request)), (Errno::EOPNOTSUPP, "unsupported"));
}

/// Both ends' addresses, path by path, each with a source port of its own.
#[test]
fn a_connection_has_all_paths() {
    let mut g = ready(4);
    let (remote, _) = numbers_of_peer(&g);
    group_in_init(&mut g, 2);
    g.connect(2, gid("192.168.0.2"), remote).unwrap();
    let connection = g.rnic.connection(2).unwrap();
    assert!(connection.features.contains(Features::MULTIPATH));
    let ip = |net: u8, host: u8| std::net::IpAddr::from([10, net, 0, host]);
    let paths: Vec<_> = connection.other_paths.iter().map(|p| (p.local, p.remote)).collect();
    assert_eq!(paths, [78, 79, 80].map(|net| (ip(net, 1), ip(net, 2))));
    let mut ports: Vec<u16> = connection.other_paths.iter().map(|p| p.udp_source_port).collect();
    ports.push(connection.udp_source_port);
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 4);
    let UnderlayPath { remote: second, .. } = connection.other_paths[0];
    assert_eq!(connection.on_path(1).map(|c| (c.remote, c.remote_qpn.get())), Some((second, remote + 1)));
    assert!(g.session.take_one_paths().is_empty());
}

/// An ordinary queue pair at either end makes it one path, and says why, once.
#[test]
fn one_path_is_used_where_the_peer_has_one() {
    let mut g = ready(4);
    let (group, plain) = numbers_of_peer(&g);
    let peer = gid("192.168.0.2");
    group_in_init(&mut g, 2);
    let request = g.qp_request(3, 1, 1, 1);
    create(&mut g, &request);
    g.modify(3, INIT_MASK, init_attr()).unwrap();
    g.connect(3, peer, group).unwrap();
    assert!(g.rnic.connection(3).unwrap().other_paths.is_empty());
    assert!(g.session.take_one_paths().is_empty(), "this one has no other");
    for _ in 0..3 {
        g.connect(2, peer, plain).unwrap();
        assert!(g.rnic.connection(2).unwrap().other_paths.is_empty());
        g.modify(2, QP_ATTR_STATE, QpAttr { state: QP_STATE_RESET, ..QpAttr::ZERO }).unwrap();
        g.modify(2, INIT_MASK, init_attr()).unwrap();
    }
    assert_eq!(g.session.take_one_paths(), [("blue-2".into(), OnePath::PlainQp)]);
    // An older host.
    let mut endpoint = g.directory.endpoint("blue-2").unwrap().clone();
    endpoint.features = Features::SELECTIVE;
    change(&mut g, vec![put(Object::Endpoint(endpoint))]);
    g.connect(2, peer, group).unwrap();
    assert_eq!(g.session.take_one_paths(), [("blue-2".into(), OnePath::Unable)]);
}

/// A peer that has moved with any of its addresses loses its connections; one that has a path more does not.
#[test]
fn all_paths_addresses_are_judged() {
    for (place, address, stays) in
        [(0, "10.77.0.99", false), (1, "10.78.0.99", false), (3, "10.80.0.99", false), (4, "10.81.0.2", true)]
    {
        let mut g = ready(4);
        let (remote, _) = numbers_of_peer(&g);
        group_in_init(&mut g, 2);
        g.connect(2, gid("192.168.0.2"), remote).unwrap();
        let mut endpoint = g.directory.endpoint("blue-2").unwrap().clone();
        let address = address.parse().unwrap();
        match endpoint.addresses.get_mut(place) {
            Some(old) => *old = address,
            None => endpoint.addresses.push(address),
        }
        let revoked = change(&mut g, vec![put(Object::Endpoint(endpoint))]).connections;
        let reasons: Vec<String> = revoked.iter().map(|r| r.reason.to_string()).collect();
        assert_eq!(reasons.is_empty(), stays, "{place}: {reasons:?}");
        assert!(stays || reasons[0].contains(&address.to_string()), "{reasons:?}");
    }
    // A path less.
    let mut g = ready(4);
    let (remote, _) = numbers_of_peer(&g);
    group_in_init(&mut g, 2);
    g.connect(2, gid("192.168.0.2"), remote).unwrap();
    let mut endpoint = g.directory.endpoint("blue-2").unwrap().clone();
    endpoint.addresses.pop();
    assert_eq!(change(&mut g, vec![put(Object::Endpoint(endpoint))]).connections.len(), 1);
}

/// A group's numbers lie in the peer's blocks, from the first to the last.
#[test]
fn a_peers_group_is_the_peers() {
    let mut g = ready(4);
    group_in_init(&mut g, 2);
    let QpnBlock { first, len } = g.directory.endpoint("blue-2").unwrap().qpn_blocks[0];
    g.connect(2, gid("192.168.0.2"), first + len - 4).unwrap();
    assert_eq!(g.rnic.connection(2).unwrap().other_paths.len(), 3);
}
