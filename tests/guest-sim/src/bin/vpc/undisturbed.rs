//! Changes that are about nobody's connection.

use std::time::Duration;

use guest_sim::suite::{Victims, World};

use crate::Test;
use crate::ctl::change;
use crate::link::Link;
use crate::tenant::{NAME, Tenant, vnic};

pub const TESTS: &[Test] = &[("changes_that_touch_no_connection_disturb_none", undisturbed)];

/// Each is made and taken back while data moves.
fn undisturbed(world: &World) {
    let t = Tenant::create(world, &[1, 1, 2, 2]);
    let idle = [Link::connect(t.side(1), t.side(2)), Link::connect(t.side(1), t.side(3))];
    idle.iter().for_each(Link::works);
    for n in 1..=4 {
        t.guest(n).drain_events();
    }
    let victims = Victims::start([("one host", t.side(1), t.side(2)), ("two hosts", t.side(1), t.side(3))]);
    let deny = |group: &'static str, more: &[&'static str]| {
        let mut args = vec!["rule", "create", group, "stop", "--deny"];
        args.extend(more);
        args
    };
    let there_and_back: [(Vec<&str>, Vec<&str>); 9] = [
        (
            deny(NAME, &["--ingress", "--remote-prefix", "192.168.0.4/30"]),
            vec!["rule", "delete", NAME, "stop"],
        ),
        (deny(NAME, &["--egress", "--remote-prefix", "fd00::/8"]), vec!["rule", "delete", NAME, "stop"]),
        (deny(NAME, &["--ingress", "--transport", "ud"]), vec!["rule", "delete", NAME, "stop"]),
        (deny(NAME, &["--egress", "--transport", "uc"]), vec!["rule", "delete", NAME, "stop"]),
        (deny(NAME, &["--ingress", "--remote-group", "c"]), vec!["rule", "delete", NAME, "stop"]),
        (deny("a", &["--ingress"]), vec!["rule", "delete", "a", "stop"]),
        // One direction is enough.
        (deny(NAME, &["--egress", "--remote-prefix", "192.168.0.1"]), vec!["rule", "delete", NAME, "stop"]),
        (
            vec!["vnic", "set", "green-4", "--remove-security-group", NAME],
            vec!["vnic", "set", "green-4", "--add-security-group", NAME],
        ),
        (
            vec![
                "vnic",
                "set",
                "green-1",
                "--add-security-group",
                "a",
                "--allowed-address-pair",
                "192.168.1.0/24",
            ],
            vec!["vnic", "set", "green-1", "--remove-security-group", "a", "--unset", "allowed-address-pair"],
        ),
    ];
    for (there, back) in &there_and_back {
        let before = victims.rounds();
        change(world, there);
        victims.assert_progress(&before);
        let before = victims.rounds();
        change(world, back);
        victims.assert_progress(&before);
    }
    // Neither does the end of a vNIC that nobody is connected to.
    let before = victims.rounds();
    change(world, &["vnic", "delete", &vnic(4)]);
    victims.assert_progress(&before);
    idle.iter().for_each(Link::assert_alive);
    idle.iter().for_each(Link::works);
    for n in 1..=3 {
        let event = t.guest(n).next_async_event(Duration::ZERO);
        assert!(event.is_none(), "{} was told of {event:?}", vnic(n));
    }
}
