//! vNICs that come to a host, leave it, and move to another.

use std::time::Duration;

use guest_sim::suite::{Setup, World};
use vrdma_abi::config::{LINK_ACTIVE, LINK_DOWN};
use vrdma_abi::control::QP_STATE_ERR;
use vrdma_abi::event::{EVENT_DEVICE_FATAL, EVENT_QP_FATAL};

use crate::Test;
use crate::ctl::change_on;
use crate::link::{Link, PATIENCE, rtr, wait_until};
use crate::tenant::{Tenant, address, vnic};

pub const TESTS: &[Test] = &[
    ("a_vnic_comes_and_goes", comes_and_goes),
    ("a_vnic_moves_to_another_host", moves),
    ("a_host_that_was_killed_is_found_again", killed),
];

/// The one that comes and goes, and its peers, one on each host.
const GUEST: u8 = 1;
const PEERS: [u8; 2] = [2, 3];

fn comes_and_goes(world: &World) {
    let t = Tenant::create(world, &[1, 1, 2]);
    let socket = world.cluster.socket_on(1, &vnic(GUEST));
    assert!(socket.exists(), "there is a socket when the vNIC is realised");
    for _ in 0..2 {
        let links = PEERS.map(|n| Link::connect(t.side(GUEST), t.side(n)));
        links.iter().for_each(Link::works);
        let guest = t.guest(GUEST);
        let link_state = || guest.device().read_config().map(|c| c.link_state);
        assert_eq!(link_state().expect("a device"), LINK_ACTIVE);

        let (code, _) = change_on(world, 1, 0, &["vnic", "set", &vnic(GUEST), "--unset", "host"]);
        assert_eq!(code, 0);
        wait_until("the guest sees its link down", PATIENCE, || {
            link_state().expect("the device is there until its link has gone down") == LINK_DOWN
        });
        wait_until("the guest is told that its device has failed", PATIENCE, || {
            guest.next_async_event(Duration::ZERO).is_some_and(|e| e.kind == EVENT_DEVICE_FATAL)
        });
        wait_until("the device goes", PATIENCE, || link_state().is_err());
        assert!(!socket.exists(), "the socket goes with the vNIC");
        for (n, link) in PEERS.into_iter().zip(&links) {
            wait_until("the peer's connection is revoked", PATIENCE, || link.c.b.state() == QP_STATE_ERR);
            link.b.guest.expect_event(EVENT_QP_FATAL, link.c.b.handle());
            let refused =
                rtr(&t.side(n), address(GUEST), link.c.a.qpn).expect_err("a vNIC that runs nowhere");
            assert_eq!(refused.errno(), libc::EHOSTUNREACH);
        }

        t.set(GUEST, &["--host", "h1"]);
        assert!(socket.exists(), "there is a socket when the vNIC is realised");
        t.start_guest(GUEST, 1);
    }
    for n in PEERS {
        Link::connect(t.side(GUEST), t.side(n)).works();
    }
}

fn moves(world: &World) {
    let t = Tenant::create(world, &[1, 1, 2]);
    let mut host = 1;
    for other in [2, 1] {
        let links = PEERS.map(|n| Link::connect(t.side(GUEST), t.side(n)));
        let untouched = Link::connect(t.side(PEERS[0]), t.side(PEERS[1]));
        links.iter().for_each(Link::works);
        t.set(GUEST, &["--host", &format!("h{other}")]);
        assert!(!world.cluster.socket_on(host, &vnic(GUEST)).exists());
        assert!(t.guest(GUEST).device().read_config().is_err(), "the old host has let go of the guest");
        assert!(world.cluster.socket_on(other, &vnic(GUEST)).exists());
        for link in &links {
            assert_eq!(link.c.b.state(), QP_STATE_ERR, "a connection to where the vNIC was");
            link.b.guest.expect_event(EVENT_QP_FATAL, link.c.b.handle());
        }
        host = other;
        t.start_guest(GUEST, host);
        for n in PEERS {
            let link = Link::connect(t.side(n), t.side(GUEST));
            link.works();
            link.close();
        }
        untouched.assert_alive();
        untouched.works();
    }
}

/// masqd of a host gets SIGKILL between set-ups; the guests of the other one are connected to its new queue pairs.
fn killed(world: &World) {
    let t = Tenant::create(world, &[1, 1, 2]);
    for _ in 0..2 {
        let before = Link::connect(t.side(GUEST), t.side(3));
        before.works();
        let qpn = before.c.a.qpn;
        world.cluster.kill_masqd(1).expect("SIGKILL");
        world.cluster.start_masqd(1).expect("masqd starts again");
        world.cluster.wait_for_api(1).expect("masqd answers again");
        t.start_guest(GUEST, 1);
        t.start_guest(2, 1);
        let (survivor, again) = (t.side(3), t.side(GUEST));
        let new = again.qp(&Setup::default().caps_a, 64);
        rtr(&survivor, address(GUEST), new.qpn).unwrap_or_else(|e| {
            panic!("the new queue pair {:#x} (before: {qpn:#x}) is not found: {e}", new.qpn)
        });
        Link::connect(again, survivor).works();
        Link::connect(t.side(2), t.side(3)).works();
        Link::connect(t.side(2), t.side(GUEST)).works();
    }
}
