//! Addresses that a guest may take on, and those that it may not.

use std::net::IpAddr;

use guest_sim::suite::{Conn, Setup, Side, World};
use masq_types::{Gid, MacAddr};
use vrdma_abi::control::QP_STATE_ERR;

use crate::Test;
use crate::link::{Link, PATIENCE, rtr, rtr_eventually, wait_until};
use crate::tenant::{NAME, Tenant, vnic};

pub const TESTS: &[Test] = &[
    ("foreign_addresses_are_refused_and_counted", foreign),
    ("an_allowed_address_moves_between_guests", moving),
    ("a_permission_that_goes_takes_its_connections", permission),
];

/// The address that guests share, and the entry of the GID table that it takes.
const SHARED: &str = "192.168.0.100";
const INDEX: u32 = 3;

fn shared() -> IpAddr {
    SHARED.parse().expect("an address")
}

fn foreign(world: &World) {
    let t = Tenant::create(world, &[1, 2]);
    t.set(1, &["--allowed-address-pair", "192.168.0.64/26", "--allowed-address-pair", "fd00::/64"]);
    let guest = t.guest(1);
    let labels = ["vpc=\"green\"", "vnic=\"green-1\"", "verb=\"add_gid\"", "reason=\"spoofed_gid\""];
    let count = || world.cluster.metric(1, "masqd_vnic_refusals_total", &labels);
    let (mark, before) = (world.cluster.log(1).len(), count());
    let others = MacAddr([0x52, 0x54, 0, 0, 77, 2]).link_local();
    let own = MacAddr(guest.config.mac).link_local();
    let foreign =
        ["192.168.0.2", "192.168.0.63", "192.168.0.128", "10.77.0.1", "0.0.0.0", "fd00:0:0:1::", "::1"];
    let foreign =
        foreign.map(|a| a.parse::<IpAddr>().expect("an address")).into_iter().chain([others.into()]);
    let mut refused = 0.0;
    for address in foreign {
        let got = guest.add_gid(INDEX, address.into()).expect_err("a foreign address");
        assert_eq!(got.errno(), libc::EACCES, "{address}");
        world.cluster.expect_log(
            1,
            mark,
            &[NAME, &vnic(1), "add_gid", "EACCES", &Gid::from(address).to_string()],
        );
        refused += 1.0;
    }
    assert_eq!(count() - before, refused, "refusals that are counted");
    for own in ["192.168.0.64", "192.168.0.127", "fd00::", "fd00::ffff:ffff:ffff:ffff", &own.to_string()] {
        let own: IpAddr = own.parse().expect("an address");
        guest.add_gid(INDEX, own.into()).unwrap_or_else(|e| panic!("{own} is allowed: {e}"));
    }
}

/// Connects `peer` to the guest of `holder` at the shared address.
#[track_caller]
fn connect(peer: Side, holder: Side) -> Link {
    let setup = Setup::default();
    let c = Conn { a: peer.qp(&setup.caps_a, 64), b: holder.qp(&setup.caps_b, 64) };
    // When the peer's host finds it, all is said.
    rtr_eventually(&peer, shared(), c.b.qpn, libc::EHOSTUNREACH).expect("the shared address is found");
    c.a.connect(&setup.a, shared(), c.b.qpn).expect("a connection to the shared address");
    c.b.to_init(&setup.b).expect("RESET to INIT");
    c.b.to_rtr_from(&setup.b, INDEX as u8, shared().into(), peer.address.into(), c.a.qpn)
        .expect("a connection from the shared address");
    c.b.to_rts(&setup.b).expect("RTR to RTS");
    let link = Link { a: peer, b: holder, c };
    link.works();
    link
}

/// Nobody finds the shared address, whatever queue pair is asked for.
#[track_caller]
fn assert_unreachable(t: &Tenant, qpn: u32) {
    for n in PEERS {
        let side = t.side(n);
        wait_until("the shared address is unreachable", PATIENCE, || {
            rtr(&side, shared(), qpn).is_err_and(|e| e.errno() == libc::EHOSTUNREACH)
        });
        side.ctx.destroy().expect("DESTROY_CONTEXT");
    }
}

const HOLDERS: [u8; 2] = [1, 2];
const PEERS: [u8; 2] = [3, 4];

/// Two guests that may have the shared address, and two peers; one of each on each host.
fn sharers(world: &World) -> Tenant<'_> {
    let t = Tenant::create(world, &[1, 2, 1, 2]);
    for n in HOLDERS {
        t.set(n, &["--allowed-address-pair", SHARED]);
    }
    t
}

/// The end of connections over an address that its guest has given up: peers hear of it from the holder's host.
#[track_caller]
fn assert_ends(links: [Link; 2]) {
    for link in links {
        wait_until("both ends are revoked", PATIENCE, || {
            [&link.c.a, &link.c.b].iter().all(|qp| qp.state() == QP_STATE_ERR)
        });
        link.assert_revoked();
        link.close();
    }
}

fn moving(world: &World) {
    let t = sharers(world);
    let qpns = HOLDERS.map(|n| t.side(n).qp(&Setup::default().caps_b, 64).qpn);
    assert_unreachable(&t, qpns[0]);
    let untouched = Link::connect(t.side(PEERS[0]), t.side(HOLDERS[0]));
    for (k, n) in HOLDERS.into_iter().enumerate() {
        let other = t.guest(HOLDERS[1 - k]);
        t.guest(n).add_gid(INDEX, shared().into()).expect("an allowed address");
        let links = PEERS.map(|peer| connect(t.side(peer), t.side(n)));
        // Somebody else's queue pair is not at this address.
        let side = t.side(PEERS[0]);
        let refused = rtr(&side, shared(), qpns[1 - k]).expect_err("a queue pair of another guest");
        assert_eq!(refused.errno(), libc::ENXIO);
        // While two have it, nobody is found.
        other.add_gid(INDEX, shared().into()).expect("an allowed address");
        assert_unreachable(&t, qpns[k]);
        other.del_gid(INDEX).expect("DEL_GID");
        t.guest(n).del_gid(INDEX).expect("DEL_GID");
        assert_ends(links);
        assert_unreachable(&t, qpns[k]);
    }
    untouched.assert_alive();
    untouched.works();
}

fn permission(world: &World) {
    let t = sharers(world);
    for n in HOLDERS {
        let guest = t.guest(n);
        guest.add_gid(INDEX, shared().into()).expect("an allowed address");
        let links = PEERS.map(|peer| connect(t.side(peer), t.side(n)));
        let untouched = Link::connect(t.side(n), t.side(PEERS[0]));
        let qpn = links[0].c.b.qpn;
        t.set(n, &["--unset", "allowed-address-pair"]);
        for link in links {
            link.assert_revoked();
            link.close();
        }
        assert_unreachable(&t, qpn);
        let refused =
            guest.add_gid(INDEX, shared().into()).expect_err("an address that is no longer allowed");
        assert_eq!(refused.errno(), libc::EACCES);
        untouched.works();
        untouched.assert_alive();
    }
}
