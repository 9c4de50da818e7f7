//! A connection that is revoked under full load: when masqctl says `realised`, nothing more is written into anybody's memory.
//! Connections that the change is not about lose nothing.

use std::time::Duration;

use guest_sim::suite::{Side, Victims, World, assert_same};
use masq_model::{Action, Direction, IpNet, SecurityGroupRule, Transport};
use vrdma_abi::control::QP_STATE_ERR;
use vrdma_abi::event::EVENT_QP_FATAL;

use crate::Test;
use crate::ctl::{change, change_on};
use crate::link::{Link, rtr};
use crate::stream::Stream;
use crate::tenant::{NAME, Tenant, vnic};

pub const TESTS: &[Test] = &[
    ("revoked_by_a_rule", by_a_rule),
    ("revoked_because_the_receivers_leave_the_group", by_leaving_the_group),
    ("revoked_because_the_receivers_are_deleted", by_deletion_of_the_receivers),
    ("revoked_because_the_receivers_move", by_a_move),
    ("revoked_because_the_sender_is_deleted", by_deletion_of_the_sender),
    ("revoked_while_all_devices_are_held_up", held_up),
];

/// What must not be written any more gets this long to be written all the same.
const AFTERMATH: Duration = Duration::from_secs(2);

/// A sender, a receiver on its host and one on another, and a peer of the sender on each of which nothing changes.
const SENDER: u8 = 1;
const RECEIVERS: [u8; 2] = [2, 3];
const UNTOUCHED: [u8; 2] = [4, 5];
const HOSTS: [u8; 5] = [1, 1, 2, 1, 2];

/// Who is there to see the end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stays {
    Both,
    Sender,
    Receivers,
}

/// A rule of a group about all traffic of its members.
pub fn rule(group: &str, name: &str, direction: Direction, action: Action) -> SecurityGroupRule {
    SecurityGroupRule {
        name: name.into(),
        security_group: group.into(),
        direction,
        remote_prefix: None,
        remote_group: None,
        transport: Transport::Any,
        priority: masq_model::DEFAULT_PRIORITY,
        action,
    }
}

/// A rule about traffic with one address.
pub fn about(address: &str, rule: SecurityGroupRule) -> SecurityGroupRule {
    let prefix: IpNet = format!("{address}/32").parse().expect("an address");
    SecurityGroupRule { remote_prefix: Some(prefix), ..rule }
}

/// The tenant, whose receivers are in the group `a` as well, and may not send.
fn tenant(world: &World) -> Tenant<'_> {
    let t = Tenant::create(world, &HOSTS);
    let groups: Vec<_> =
        (1..=5).map(|n| if RECEIVERS.contains(&n) { vec![NAME, "a"] } else { vec![NAME] }).collect();
    t.apply(&groups, &[rule("a", "sends-nothing", Direction::Egress, Action::Deny)]);
    t
}

fn victims(t: &Tenant) -> Victims {
    let world = t.world;
    Victims::start([
        ("the sender's guest and another on its host", t.side(SENDER), t.side(UNTOUCHED[0])),
        ("the sender's guest and another on the other host", t.side(SENDER), t.side(UNTOUCHED[1])),
        (
            "another tenant on the same addresses, one host",
            Side::open(world, "red-1"),
            Side::open(world, "red-2"),
        ),
        (
            "another tenant on the same addresses, two hosts",
            Side::open(world, "red-1"),
            Side::open(world, "red-3"),
        ),
    ])
}

/// How many connections of the sender's have been revoked.
fn revocations(world: &World) -> f64 {
    let labels = ["vpc=\"green\"", &format!("vnic=\"{}\"", vnic(SENDER))];
    world.cluster.metric(1, "masqd_vnic_revocations_total", &labels)
}

fn revoked_by<'w>(world: &'w World, stays: Stays, revoke: impl FnOnce(&Tenant)) -> Tenant<'w> {
    let t = tenant(world);
    let links = RECEIVERS.map(|n| Link::connect(t.side(SENDER), t.side(n)));
    // The end of the sender's device is the end of its other connections as well.
    let victims = (stays != Stays::Receivers).then(|| victims(&t));
    let before = victims.as_ref().map(Victims::rounds);
    let streams = links.each_ref().map(Stream::start);
    streams.iter().for_each(Stream::assert_writing);
    let counted = revocations(world);

    revoke(&t);

    assert_nothing_changes(&streams);
    if stays != Stays::Receivers {
        assert_eq!(revocations(world) - counted, links.len() as f64, "revocations that are counted");
    }
    for (link, stream) in links.iter().zip(streams) {
        let report = stream.finish(stays != Stays::Receivers);
        if stays != Stays::Sender {
            assert_eq!(link.c.b.state(), QP_STATE_ERR, "the receiver's queue pair");
            link.b.guest.expect_event(EVENT_QP_FATAL, link.c.b.handle());
        }
        if stays != Stays::Receivers {
            assert_eq!(link.c.a.state(), QP_STATE_ERR, "the sender's queue pair");
            assert_eq!(report.missing, 0, "writes that never complete: {report:?}");
            assert!(report.posted_after_error > 0, "{report:?}");
            let mut statuses: Vec<_> = report.completed.keys().copied().collect();
            statuses.sort_unstable();
            assert_eq!(statuses, ["SUCCESS", "WR_FLUSH_ERR"], "{report:?}");
        }
    }
    if stays != Stays::Receivers {
        links[0].a.guest.expect_events(&links.each_ref().map(|l| (EVENT_QP_FATAL, l.c.a.handle())));
    }
    if let (Some(victims), Some(before)) = (victims, before) {
        victims.assert_progress(&before);
    }
    t
}

fn by_a_rule(world: &World) {
    let t = revoked_by(world, Stays::Both, |t| {
        change(t.world, &["rule", "create", "a", "receives-nothing", "--ingress", "--deny"]);
    });
    let sender = t.side(SENDER);
    for n in RECEIVERS {
        let receiver = t.side(n);
        for (from, to) in [(&sender, &receiver), (&receiver, &sender)] {
            let refused = rtr(from, to.address, 0x1234).expect_err("a connection that the rule forbids");
            assert_eq!(refused.errno(), libc::EACCES);
        }
    }
}

fn by_leaving_the_group(world: &World) {
    revoked_by(world, Stays::Both, |t| {
        for n in RECEIVERS {
            t.set(n, &["--remove-security-group", NAME]);
        }
    });
}

fn by_deletion_of_the_receivers(world: &World) {
    revoked_by(world, Stays::Sender, |t| {
        let [first, second] = RECEIVERS.map(vnic);
        // What is realised at the second's generation is so at the first's.
        change_on(t.world, 1, 0, &["vnic", "delete", &first]);
        change(t.world, &["vnic", "delete", &second]);
    });
}

fn by_a_move(world: &World) {
    revoked_by(world, Stays::Sender, |t| {
        let [first, second] = RECEIVERS.map(vnic);
        change_on(t.world, 1, 0, &["vnic", "set", &first, "--host", "h2"]);
        change(t.world, &["vnic", "set", &second, "--host", "h1"]);
    });
}

fn by_deletion_of_the_sender(world: &World) {
    revoked_by(world, Stays::Receivers, |t| {
        change(t.world, &["vnic", "delete", &vnic(SENDER)]);
    });
}

/// masqd cannot reach a device whose front end has begun a message and does not end it; it gets rid of such a one, and until
/// then nothing is realised.
fn held_up(world: &World) {
    let t = tenant(world);
    let links = RECEIVERS.map(|n| Link::connect(t.side(SENDER), t.side(n)));
    let streams = links.each_ref().map(Stream::start);
    for n in [SENDER, RECEIVERS[0], RECEIVERS[1]] {
        t.guest(n).device().hold_up().expect("one byte");
    }
    streams.iter().for_each(Stream::assert_writing);
    change(world, &["rule", "create", "a", "receives-nothing", "--ingress", "--deny"]);
    assert_nothing_changes(&streams);
    streams.map(|stream| stream.finish(false)).iter().for_each(|report| {
        assert!(report.completed.contains_key("SUCCESS"), "{report:?}");
    });
}

/// Not a byte of the receivers' memory changes any more.
#[track_caller]
fn assert_nothing_changes(streams: &[Stream; 2]) {
    let memory = streams.each_ref().map(Stream::memory);
    std::thread::sleep(AFTERMATH);
    for (stream, memory) in streams.iter().zip(&memory) {
        assert_same(&stream.memory(), memory, "the receiver's memory after the revocation was realised");
    }
}
