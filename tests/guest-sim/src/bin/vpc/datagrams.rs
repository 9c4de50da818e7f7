//! Datagrams and management datagrams under rules that change, and to guests that move.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use guest_sim::suite::{DatagramEnd, Side, World};
use guest_sim::verbs::{To, wr};
use masq_model::{Action, Direction, SecurityGroupRule, Transport};
use vrdma_abi::ring::SEND_OP_SEND;
use vrdma_abi::ring::WC_SUCCESS;

use crate::Test;
use crate::ctl::{change, explain_of};
use crate::link::{PATIENCE, wait_until};
use crate::revocation::rule;
use crate::tenant::{NAME, Tenant, address, vnic};

pub const TESTS: &[Test] = &[
    ("what_rules_allow_of_datagrams", table),
    ("datagrams_are_revoked_by_a_rule", by_a_rule),
    ("datagrams_are_revoked_because_the_receivers_leave_the_group", by_leaving_the_group),
    ("management_datagrams_are_revoked", management),
    ("datagrams_follow_a_guest_that_moves", moves),
    ("datagrams_to_an_address_that_moves", address_moves),
];

/// Bytes of a MAD.
const MAD: usize = 256;
const QUIET: Duration = Duration::from_millis(50);

/// Whether a datagram arrives that is sent now. Peers may have to be asked for, so that one that was sent before may come as well, late.
fn passes(from: &DatagramEnd, to: &DatagramEnd, number: u64) -> bool {
    let mad = [number as u8; MAD];
    from.send(&to.name(), &mad);
    to.post_recv(number);
    while let Some(got) = to.receive_within(QUIET) {
        if got.data == mad {
            got.assert_is(&mad, (from.side.address, from.qp.qpn), to.side.address);
            return true;
        }
    }
    false
}

fn of(transport: Transport, rule: SecurityGroupRule) -> SecurityGroupRule {
    SecurityGroupRule { transport, ..rule }
}

/// One case: the groups of the first guest and of the others, the rules, and what passes: datagrams from the first to the others,
/// back, and management datagrams, which need one direction of one transport.
struct Case {
    what: &'static str,
    groups: [&'static [&'static str]; 2],
    rules: Vec<SecurityGroupRule>,
    there: bool,
    back: bool,
    management: bool,
}

fn cases() -> Vec<Case> {
    use Action::{Allow, Deny};
    use Direction::{Egress, Ingress};
    let case = |what, groups, rules, [there, back, management]: [bool; 3]| Case {
        what,
        groups,
        rules,
        there,
        back,
        management,
    };
    let out = |transport| of(transport, rule("a", "out", Egress, Allow));
    let into = |transport| of(transport, rule("b", "in", Ingress, Allow));
    vec![
        case("members of a common group", [&["c"], &["b", "c"]], vec![], [true, true, true]),
        case("no common group", [&["a"], &["b"]], vec![], [false, false, false]),
        case("only sending is allowed", [&["a"], &["b"]], vec![out(Transport::Any)], [false, false, false]),
        case(
            "one direction is allowed",
            [&["a"], &["b"]],
            vec![out(Transport::Ud), into(Transport::Ud)],
            [true, false, true],
        ),
        case(
            "reliable connections are allowed",
            [&["a"], &["b"]],
            vec![out(Transport::Rc), into(Transport::Rc)],
            [false, false, true],
        ),
        case(
            "each end allows another transport",
            [&["a"], &["b"]],
            vec![out(Transport::Rc), into(Transport::Ud)],
            [false, false, false],
        ),
        case(
            "datagrams are denied to members of a group",
            [&["c"], &["c"]],
            vec![of(Transport::Ud, rule("c", "stop", Ingress, Deny))],
            [false, false, true],
        ),
        case(
            "datagrams are denied in one direction",
            [&["a", "c"], &["c"]],
            vec![of(Transport::Ud, rule("a", "stop", Egress, Deny))],
            [false, true, true],
        ),
        case(
            "everything is denied in one direction",
            [&["a", "c"], &["c"]],
            vec![rule("a", "stop", Egress, Deny)],
            [false, true, true],
        ),
        case(
            "everything is denied",
            [&["c"], &["c"]],
            vec![rule("c", "stop", Egress, Deny)],
            [false, false, false],
        ),
    ]
}

fn table(world: &World) {
    let t = Tenant::create(world, &[1, 1, 2]);
    let sides = [1, 2, 3].map(|n| t.side(n));
    let kernels = [1, 2, 3].map(|n| t.kernel(n));
    let ends = sides.each_ref().map(|side| DatagramEnd::open(side, 8));
    let gsis = kernels.each_ref().map(|side| DatagramEnd::gsi(side, 8));
    let mut number = 8;
    for Case { what, groups: [first, others], rules, there, back, management } in cases() {
        t.apply(&[first.to_vec(), others.to_vec(), others.to_vec()], &rules);
        for peer in [1, 2] {
            let wanted = [
                (&ends[0], &ends[peer], there),
                (&ends[peer], &ends[0], back),
                (&gsis[0], &gsis[peer], management),
                (&gsis[peer], &gsis[0], management),
            ];
            for (k, (from, to, passes)) in wanted.into_iter().enumerate() {
                number += 1;
                let got = self::passes(from, to, number);
                assert_eq!(got, passes, "{what}: pair {k}, to or from guest {}", peer + 1);
            }
            let (first, other) = (vnic(1), vnic(peer as u8 + 1));
            for (from, to, transport, passes) in [
                (&first, &other, "ud", there),
                (&other, &first, "ud", back),
                (&first, &other, "cm", management),
                (&other, &first, "cm", management),
            ] {
                for host in [1, 2] {
                    let e = explain_of(world, host, from, to, transport);
                    assert_eq!(e.allowed, passes, "{what}: {transport} {from} to {to}, host {host}: {e:?}");
                }
            }
        }
    }
}

/// Datagrams from one end to others, without pause.
struct Flood<'s> {
    stop: &'s AtomicBool,
    sender: ScopedJoinHandle<'s, u64>,
    receivers: Vec<ScopedJoinHandle<'s, u64>>,
    received: &'s [AtomicU64],
}

/// Ends the threads that look at these, however the test ends.
struct StopOnDrop<'a>([&'a AtomicBool; 2]);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|stop| stop.store(true, Ordering::Relaxed));
    }
}

/// How many receives a receiver has posted at any time.
const DEPTH: u64 = 64;

fn send_all(from: &DatagramEnd, to: &[To], stop: &AtomicBool) -> u64 {
    let mut sent = 0u64;
    while !stop.load(Ordering::Relaxed) {
        for to in to {
            from.send(to, &sent.to_le_bytes().repeat(MAD / 8));
            sent += 1;
        }
    }
    sent
}

fn receive_all(end: &DatagramEnd, received: &AtomicU64, stop: &AtomicBool) -> u64 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        if end.receive_within(Duration::from_millis(5)).is_some() {
            count += 1;
            end.post_recv(DEPTH + count);
            received.store(count, Ordering::Relaxed);
        }
    }
    count
}

/// Floods two receivers, one on each host, with datagrams; makes a change that forbids them; when it is realised nothing more
/// arrives, and the sender has not noticed. When it is taken back, they arrive again.
fn revoked_by(world: &World, kernels: bool, revoke: impl FnOnce(&Tenant), restore: impl FnOnce(&Tenant)) {
    let t = Tenant::create(world, &[1, 1, 2]);
    let sides = [1, 2, 3].map(|n| if kernels { t.kernel(n) } else { t.side(n) });
    let open = |side| {
        let receives = DEPTH as usize;
        if kernels { DatagramEnd::gsi(side, receives) } else { DatagramEnd::open(side, receives) }
    };
    let [from, to @ ..] = sides.each_ref().map(open);
    let names = to.each_ref().map(DatagramEnd::name);
    let (stop_sender, stop_receivers) = (AtomicBool::new(false), AtomicBool::new(false));
    let received = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|s| {
        let _stop = StopOnDrop([&stop_sender, &stop_receivers]);
        let sender = s.spawn(|| send_all(&from, &names, &stop_sender));
        let stop = &stop_receivers;
        let receive = |(end, count)| s.spawn(move || receive_all(end, count, stop));
        let receivers: Vec<_> = to.iter().zip(&received).map(receive).collect();
        let flood = Flood { stop: &stop_sender, sender, receivers, received: &received };
        flood.assert_flowing();

        revoke(&t);

        // What has arrived by now may wait to be polled; whatever comes later came after the change was realised.
        stop_receivers.store(true, Ordering::Relaxed);
        for receiver in flood.receivers {
            receiver.join().expect("a receiver");
        }
        for end in &to {
            let polled = (0..DEPTH).take_while(|_| end.receive_within(Duration::ZERO).is_some()).count();
            (0..polled as u64).for_each(|k| end.post_recv(k));
        }
        std::thread::sleep(Duration::from_secs(1));
        for end in &to {
            let late = end.qp.recv_cq().poll();
            assert!(late.is_none(), "a datagram after the change was realised: {late:?}");
        }
        assert!(!flood.sender.is_finished(), "the sender does not notice");
        restore(&t);
        for end in &to {
            let cqe = end.qp.recv_cq().wait(PATIENCE);
            assert!(cqe.is_some(), "datagrams that are allowed again do not arrive");
        }
        flood.stop.store(true, Ordering::Relaxed);
        assert!(flood.sender.join().expect("the sender") > 0);
    });
}

impl Flood<'_> {
    #[track_caller]
    fn assert_flowing(&self) {
        wait_until("datagrams arrive at both receivers", PATIENCE, || {
            self.received.iter().all(|count| count.load(Ordering::Relaxed) > 200)
        });
    }
}

fn by_a_rule(world: &World) {
    let stop = ["rule", "create", NAME, "stop", "--egress", "--deny", "--transport", "ud"];
    revoked_by(
        world,
        false,
        |t| drop(change(t.world, &stop)),
        |t| drop(change(t.world, &["rule", "delete", NAME, "stop"])),
    );
}

fn by_leaving_the_group(world: &World) {
    revoked_by(
        world,
        false,
        |t| [2, 3].iter().for_each(|n| t.set(*n, &["--remove-security-group", NAME])),
        |t| [2, 3].iter().for_each(|n| t.set(*n, &["--add-security-group", NAME])),
    );
}

fn management(world: &World) {
    revoked_by(
        world,
        true,
        |t| drop(change(t.world, &["rule", "create", NAME, "stop", "--egress", "--deny"])),
        |t| drop(change(t.world, &["rule", "delete", NAME, "stop"])),
    );
}

/// Datagrams to `to` from each of these: they arrive after a while, and are right.
#[track_caller]
fn arrive_eventually(from: &[&DatagramEnd], to: &DatagramEnd) {
    for (k, from) in from.iter().enumerate() {
        let mut number = 100 * k as u64;
        wait_until("a datagram arrives", PATIENCE, || {
            number += 1;
            passes(from, to, number)
        });
    }
}

/// A guest is found where it has moved to, by queue pairs that have known it where it was.
fn moves(world: &World) {
    const MOVING: u8 = 3;
    let t = Tenant::create(world, &[1, 2, 1]);
    let sides = [1, 2].map(|n| t.side(n));
    let ends = sides.each_ref().map(|side| DatagramEnd::open(side, 8));
    let mut at = t.host(MOVING);
    for host in [1, 2, 1] {
        if host != at {
            t.set(MOVING, &["--host", &format!("h{host}")]);
            at = host;
        }
        let guest = t.start_guest(MOVING, host);
        let moving = Side::of(guest, address(MOVING));
        {
            let end = DatagramEnd::open(&moving, 8);
            arrive_eventually(&ends.each_ref(), &end);
            for peer in &ends {
                arrive_eventually(&[&end], peer);
            }
        }
        moving.ctx.destroy().expect("DESTROY_CONTEXT");
    }
}

/// An address that two guests may have: datagrams go to who has it, and come by it only from who has it.
fn address_moves(world: &World) {
    const SHARED: &str = "192.168.0.100";
    const INDEX: u8 = 3;
    let shared = SHARED.parse::<std::net::IpAddr>().expect("an address");
    let t = Tenant::create(world, &[1, 2, 1]);
    [1, 2].iter().for_each(|n| t.set(*n, &["--allowed-address-pair", SHARED]));
    let sides = [1, 2, 3].map(|n| t.side(n));
    let [first, second, peer] = sides.each_ref().map(|side| DatagramEnd::open(side, 8));
    let mut number = 0;
    for holder in [&first, &second, &first] {
        holder.side.guest.add_gid(INDEX.into(), shared.into()).expect("an allowed address");
        wait_until("a datagram arrives at the shared address", PATIENCE, || {
            peer.send(&To { dgid: shared.into(), ..holder.name() }, b"to the shared address");
            number += 1;
            holder.post_recv(number);
            holder.receive_within(QUIET).is_some_and(|got| {
                got.assert_is(b"to the shared address", (peer.side.address, peer.qp.qpn), shared);
                true
            })
        });
        wait_until("a datagram arrives from the shared address", PATIENCE, || {
            holder.send(&To { sgid_index: INDEX, ..peer.name() }, b"from the shared address");
            number += 1;
            peer.post_recv(number);
            peer.receive_within(QUIET).is_some_and(|got| {
                got.assert_is(b"from the shared address", (shared, holder.qp.qpn), peer.side.address);
                true
            })
        });
        holder.side.guest.del_gid(INDEX.into()).expect("DEL_GID");
        // By an entry that is empty again nothing can be sent.
        let request = wr::datagram(SEND_OP_SEND, 9, &To { sgid_index: INDEX, ..peer.name() });
        holder.qp.post_send(&request, &[]).expect("room");
        assert_ne!(holder.qp.send_completion().status, WC_SUCCESS);
        holder.qp.to_state(vrdma_abi::control::QP_STATE_RTS).expect("SQE to RTS");
        wait_until("nobody has the shared address", PATIENCE, || {
            peer.send(&To { dgid: shared.into(), ..holder.name() }, b"to nobody");
            number += 1;
            holder.post_recv(number);
            holder.receive_within(QUIET).is_none()
        });
    }
}
