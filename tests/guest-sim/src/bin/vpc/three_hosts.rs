//! Three hosts.

use guest_sim::suite::World;
use masq_model::api::RealisedState;
use vrdma_abi::control::QP_STATE_ERR;

use crate::Test;
use crate::ctl::{WAIT_SECONDS, change, change_on};
use crate::link::Link;
use crate::tenant::{NAME, Tenant};

pub const TESTS: &[Test] = &[("all_pairs_of_three_hosts", pairs), ("one_of_three_hosts_is_down", down)];

const PAIRS: [(u8, u8); 3] = [(1, 2), (2, 3), (3, 1)];

fn pairs(world: &World) {
    let t = Tenant::create(world, &[1, 2, 3]);
    let links = PAIRS.map(|(a, b)| Link::connect(t.side(a), t.side(b)));
    links.iter().for_each(Link::works);
    // One end of each is on another host, and the change comes through each host.
    for (n, (rule, direction)) in (1..).zip([("in", "--ingress"), ("out", "--egress")]) {
        let args = ["rule", "create", NAME, rule, direction, "--deny", "--remote-prefix", "192.168.0.3"];
        let (code, status) = change_on(world, n, WAIT_SECONDS, &args);
        assert_eq!((code, status.state), (0, RealisedState::Realised), "{status:?}");
    }
    links[0].assert_alive();
    links[0].works();
    links[1..].iter().for_each(Link::assert_revoked);
    for rule in ["in", "out"] {
        change(world, &["rule", "delete", NAME, rule]);
    }
    PAIRS.map(|(a, b)| Link::connect(t.side(a), t.side(b))).iter().for_each(Link::works);
}

fn down(world: &World) {
    let t = Tenant::create(world, &[1, 2, 3]);
    let links = PAIRS.map(|(a, b)| Link::connect(t.side(a), t.side(b)));
    world.cluster.kill_masqd(3).expect("SIGKILL");
    for (rule, direction) in [("in", "--ingress"), ("out", "--egress")] {
        let args = ["rule", "create", NAME, rule, direction, "--deny"];
        let (code, status) = change_on(world, 1, 1, &args);
        assert_eq!((code, status.state), (4, RealisedState::PartiallyRealised), "{status:?}");
        assert_eq!(status.waiting_for, ["h3"]);
    }
    // Those that are up have it in force.
    links[0].assert_revoked();
    assert_eq!((links[1].c.a.state(), links[2].c.b.state()), (QP_STATE_ERR, QP_STATE_ERR));

    world.cluster.start_masqd(3).expect("masqd starts again");
    world.cluster.wait_for_api(3).expect("masqd answers again");
    for rule in ["in", "out"] {
        let status = change(world, &["rule", "delete", NAME, rule]);
        assert_eq!(status.waiting_for, [""; 0]);
    }
    t.start_guest(3, 3);
    Link::connect(t.side(3), t.side(1)).works();
}
