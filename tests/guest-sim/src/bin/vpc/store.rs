//! A store that is away: what is connected stays so, what is unknown fails closed, and everybody is told.

use std::time::{Duration, Instant};

use guest_sim::suite::{Setup, Victims, World};
use masq_model::api::RealisedState;
use vrdma_abi::control::QP_STATE_ERR;
use vrdma_abi::event::EVENT_QP_FATAL;

use crate::Test;
use crate::ctl::{change, change_on, host_status, status_of};
use crate::link::{Link, rtr, wait_until};
use crate::tenant::{NAME, Tenant, address, vnic};

pub const TESTS: &[Test] =
    &[("a_host_loses_sight_of_the_store", cut_off), ("the_store_dies_and_comes_back", dead_store)];

/// What a host has realised outlives it by this time in the store, and some more.
const LEASE: Duration = Duration::from_secs(15 + 4);
/// masqd is not ready when it has not heard of the store for ten seconds; it asks every two, for at most five.
const STALE: Duration = Duration::from_secs(10 + 2 + 5 + 3);
/// When the store is back, a host finds it within this time.
const BACK: Duration = Duration::from_secs(15);

#[track_caller]
fn wait_until_stale(world: &World, host: u8) {
    wait_until("masqd is not ready, and names the store", STALE, || {
        let (code, text) = world.cluster.get(host, "/readyz").expect("masqd answers");
        code == 503 && text.contains("store")
    });
    let status = host_status(world, host);
    assert!(!status.ready && status.problems.iter().any(|p| p.starts_with("store")), "{status:?}");
}

#[track_caller]
fn wait_until_ready(world: &World, host: u8) {
    wait_until("masqd is ready", BACK, || {
        world.cluster.get(host, "/readyz").expect("masqd answers").0 == 200
    });
}

fn cut_off(world: &World) {
    let t = Tenant::create(world, &[1, 2, 1, 2, 1]);
    // 1 and 2 stay connected; 3 and 4 are to be cut; 5 is what host 2 does not know of.
    let stays = Link::connect(t.side(1), t.side(2));
    let cut = Link::connect(t.side(3), t.side(4));
    let local = Link::connect(t.side(2), t.side(4));
    let victims = Victims::start([("across the cut", t.side(1), t.side(2)), ("back", t.side(2), t.side(1))]);
    let before = victims.rounds();
    let began = Instant::now();
    world.cluster.set_store_link(2, false).expect("the link goes down");

    // What comes after the cut, host 2 does not know.
    change_on(world, 1, 0, &["vnic", "set", &vnic(5), "--add-address", "192.168.0.55"]);
    let (code, status) = change_on(
        world,
        1,
        2,
        &[
            "rule",
            "create",
            NAME,
            "cut",
            "--ingress",
            "--deny",
            "--remote-prefix",
            "192.168.0.4",
            "--priority",
            "1",
        ],
    );
    assert_eq!((code, status.state), (4, RealisedState::PartiallyRealised), "{status:?}");
    assert_eq!(status.waiting_for, ["h2"]);
    let (code, status) = change_on(
        world,
        1,
        2,
        &[
            "rule",
            "create",
            NAME,
            "cut-back",
            "--egress",
            "--deny",
            "--remote-prefix",
            "192.168.0.4",
            "--priority",
            "1",
        ],
    );
    assert_eq!((code, status.state), (4, RealisedState::PartiallyRealised), "{status:?}");
    assert_eq!(status.waiting_for, ["h2"]);
    assert_eq!(cut.c.a.state(), QP_STATE_ERR, "host 1 has cut its end");
    cut.a.guest.expect_event(EVENT_QP_FATAL, cut.c.a.handle());

    let (from_2, to_5) = (t.side(2), t.side(5));
    let qp = to_5.qp(&Setup::default().caps_a, 64);
    let refused = rtr(&from_2, "192.168.0.55".parse().expect("an address"), qp.qpn);
    assert_eq!(refused.expect_err("an address that host 2 does not know").errno(), libc::EHOSTUNREACH);
    rtr(&from_2, address(5), qp.qpn).expect("what it knows, it can be connected to");

    wait_until_stale(world, 2);
    assert!(host_status(world, 1).ready, "host 1 sees the store");
    std::thread::sleep(LEASE.saturating_sub(began.elapsed()));
    // Host 1 sees that host 2 is lost, and connections go on all the same.
    let status = status_of(world, 1, "rule", &[NAME, "cut"]);
    assert_eq!(
        (status.state, &status.waiting_for[..]),
        (RealisedState::PartiallyRealised, &["h2".to_owned()][..])
    );
    victims.assert_progress(&before);
    for link in [&stays, &local] {
        link.assert_alive();
        link.works();
    }

    world.cluster.set_store_link(2, true).expect("the link comes up");
    wait_until("everything is realised", BACK, || {
        status_of(world, 1, "rule", &[NAME, "cut"]).state == RealisedState::Realised
    });
    wait_until_ready(world, 2);
    assert_eq!(cut.c.b.state(), QP_STATE_ERR, "host 2 has cut its end");
    cut.b.guest.expect_event(EVENT_QP_FATAL, cut.c.b.handle());
    victims.assert_progress(&before);
    drop(victims);
    // The rule is about all connections of 4.
    assert_eq!(local.c.b.state(), QP_STATE_ERR);
    stays.assert_alive();
    stays.works();
    rtr(&from_2, "192.168.0.55".parse().expect("an address"), qp.qpn).expect("host 2 knows the address now");
    Link::connect(t.side(5), t.side(2)).works();
    Link::connect(t.side(2), t.side(1)).works();
}

fn dead_store(world: &World) {
    let t = Tenant::create(world, &[1, 2, 1]);
    let links = [Link::connect(t.side(1), t.side(2)), Link::connect(t.side(1), t.side(3))];
    let victims = Victims::start([("two hosts", t.side(1), t.side(2)), ("one host", t.side(1), t.side(3))]);
    let before = victims.rounds();
    world.cluster.kill_etcd().expect("SIGKILL");
    for host in [1, 2] {
        wait_until_stale(world, host);
    }
    let done = world.cluster.ctl(1, &["vnic", "delete", &vnic(3)]).expect("masqctl runs");
    assert_eq!(done.code, 1, "a change without a store: {done:?}");
    // Who is known can be connected to.
    let link = Link::connect(t.side(3), t.side(2));
    link.works();
    let refused = rtr(&t.side(2), "192.168.0.77".parse().expect("an address"), link.c.a.qpn);
    assert_eq!(refused.expect_err("an unknown address").errno(), libc::EHOSTUNREACH);
    victims.assert_progress(&before);

    world.cluster.start_etcd().expect("etcd starts again");
    for host in [1, 2] {
        wait_until_ready(world, host);
    }
    let qpns = links.each_ref().map(|l| (l.c.a.qpn, l.c.b.qpn));
    let status = change(
        world,
        &["rule", "create", NAME, "nothing", "--ingress", "--deny", "--remote-prefix", "fd00::/8"],
    );
    assert_eq!(status.waiting_for, [""; 0]);
    victims.assert_progress(&before);
    links.iter().chain([&link]).for_each(Link::assert_alive);
    links.iter().chain([&link]).for_each(Link::works);
    assert_eq!(links.each_ref().map(|l| (l.c.a.qpn, l.c.b.qpn)), qpns);
    Link::connect(t.side(2), t.side(3)).works();
}
