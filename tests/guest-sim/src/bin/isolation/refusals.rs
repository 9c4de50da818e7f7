//! Connections that are refused: the guest gets an errno, masqd's log a sentence.

use std::net::{IpAddr, Ipv4Addr};

use guest_sim::Layout;
use guest_sim::suite::{Setup, Side, World};
use guest_sim::verbs::ConnectAttr;
use masq_types::Gid;
use vrdma_abi::control::QP_STATE_INIT;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("an_unknown_address", unknown_address),
    ("a_queue_pair_of_another_tenant", other_tenants_qpn),
    ("a_queue_pair_of_another_guest_of_the_tenant", other_guests_qpn),
    ("a_connection_that_no_rule_allows", denied),
    ("a_source_address_of_another_guest", spoofed_source),
    ("a_gid_of_another_guest", spoofed_gid),
    ("an_mtu_above_the_underlays", mtu),
];

const ATTR: fn() -> ConnectAttr = ConnectAttr::default;

/// `from` asks for a connection to `qpn` at `address`; it is refused with `errno`, it stays in INIT, and the log names
/// tenant, vNIC and peer.
#[track_caller]
fn refused(world: &World, from: &str, address: IpAddr, qpn: u32, errno: i32) -> String {
    let side = Side::open(world, from);
    let setup = Setup::default();
    let qp = side.qp(&setup.caps_a, 64);
    qp.to_init(&ATTR()).unwrap();
    let host = world.host(from);
    let mark = world.cluster.log(host).len();
    let got = qp.to_rtr(&ATTR(), address, qpn).expect_err("the connection").errno();
    assert_eq!(got, errno, "{from} to {qpn:#x} at {address}");
    assert_eq!(qp.state(), QP_STATE_INIT);
    let tenant = world.cluster.spec(from).vpc;
    let line = world.cluster.expect_log(host, mark, &[from, tenant, &address.to_string()]);
    side.ctx.destroy().unwrap();
    line
}

fn unknown_address(world: &mut World) {
    let nowhere = IpAddr::V4(Ipv4Addr::new(192, 168, 0, 77));
    refused(world, "blue-1", nowhere, 0x1234, libc::EHOSTUNREACH);
    refused(world, "blue-1", "192.168.9.1".parse().unwrap(), 0x1234, libc::EHOSTUNREACH);
    // The hosts' own addresses are no tenant's.
    refused(world, "blue-1", guest_sim::Cluster::underlay(2).into(), 0x1234, libc::EHOSTUNREACH);
}

/// The address exists for both tenants; the queue pair there is red's.
fn other_tenants_qpn(world: &mut World) {
    for victim in ["red-2", "red-3"] {
        let red = Side::open(world, victim);
        let qp = red.qp(&Setup::default().caps_b, 64);
        qp.to_init(&ATTR()).unwrap();
        world.guest(&victim.replace("red", "blue"));
        refused(world, "blue-1", red.address, qp.qpn, libc::ENXIO);
        red.ctx.destroy().unwrap();
    }
}

fn other_guests_qpn(world: &mut World) {
    let (two, three) = (Side::open(world, "blue-2"), Side::open(world, "blue-3"));
    let caps = Setup::default().caps_b;
    let (at_two, at_three) = (two.qp(&caps, 64), three.qp(&caps, 64));
    refused(world, "blue-1", two.address, at_three.qpn, libc::ENXIO);
    refused(world, "blue-1", three.address, at_two.qpn, libc::ENXIO);
    for qpn in [0, 1, 0xff_ffff] {
        refused(world, "blue-1", two.address, qpn, libc::ENXIO);
    }
    for side in [two, three] {
        side.ctx.destroy().unwrap();
    }
}

fn denied(world: &mut World) {
    for to in ["green-2", "green-3"] {
        let peer = Side::open(world, to);
        let qp = peer.qp(&Setup::default().caps_b, 64);
        refused(world, "green-1", peer.address, qp.qpn, libc::EACCES);
        peer.ctx.destroy().unwrap();
    }
}

fn spoofed_source(world: &mut World) {
    let (me, peer) = (Side::open(world, "blue-1"), Side::open(world, "blue-2"));
    let setup = Setup::default();
    let (qp, at_peer) = (me.qp(&setup.caps_a, 64), peer.qp(&setup.caps_b, 64));
    qp.to_init(&ATTR()).unwrap();
    let mark = world.cluster.log(1).len();
    for source in ["192.168.0.3", "192.168.0.99", "fe80::1"] {
        let source: IpAddr = source.parse().unwrap();
        let got = qp.to_rtr_from(&ATTR(), 0, source.into(), peer.address.into(), at_peer.qpn);
        assert_eq!(got.expect_err("a foreign source").errno(), libc::EADDRNOTAVAIL);
        world.cluster.expect_log(1, mark, &["blue-1", "blue", &source.to_string()]);
    }
    assert_eq!(qp.state(), QP_STATE_INIT);
    qp.to_rtr(&ATTR(), peer.address, at_peer.qpn).expect("the own source is accepted all the same");
    for side in [me, peer] {
        side.ctx.destroy().unwrap();
    }
}

fn spoofed_gid(world: &mut World) {
    let guest = world.guest("blue-1");
    let mark = world.cluster.log(1).len();
    for foreign in ["192.168.0.2", "10.77.0.1", "::1", "fe80::5054:ff:fe00:2"] {
        let foreign: IpAddr = foreign.parse().unwrap();
        let got = guest.add_gid(5, foreign.into()).expect_err("a foreign GID");
        assert_eq!(got.errno(), libc::EACCES, "{foreign}");
        world.cluster.expect_log(1, mark, &["blue-1", "blue", &foreign.to_string()]);
    }
    let mac = masq_types::MacAddr(guest.config.mac);
    guest
        .add_gid(1, Gid::from(mac.link_local()))
        .expect("the link-local address of the vNIC's MAC is its own");
    assert!(guest.add_gid(16, guest.gid()).is_err(), "an index beyond the table");
}

/// Hosts whose link carries 1500 bytes, so that a path MTU of 1024 is the largest.
fn mtu(world: &mut World) {
    let layout = Layout { link_mtu: 1500, ..Layout::default() };
    let world = World::start(world.cluster.programs(), layout).expect("the hosts start");
    for to in ["blue-2", "blue-3"] {
        let (me, peer) = (Side::open(&world, "blue-1"), Side::open(&world, to));
        assert_eq!(me.guest.config.active_mtu, 3, "1024 bytes fit a link of 1500");
        let setup = Setup::default();
        let (qp, at_peer) = (me.qp(&setup.caps_a, 64), peer.qp(&setup.caps_b, 64));
        qp.to_init(&ATTR()).unwrap();
        for path_mtu in [4, 5] {
            let mark = world.cluster.log(1).len();
            let above = ConnectAttr { path_mtu, ..ATTR() };
            let got = qp.to_rtr(&above, peer.address, at_peer.qpn).expect_err("an MTU above the active one");
            assert_eq!(got.errno(), libc::EINVAL);
            world.cluster.expect_log(1, mark, &["blue-1", "blue", "MTU"]);
        }
        qp.to_rtr(&ConnectAttr { path_mtu: 3, ..ATTR() }, peer.address, at_peer.qpn).expect("the active MTU");
    }
}
