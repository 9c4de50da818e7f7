//! What the rules allow and deny, one by one: RTR and `masqctl explain` from every end, and what a refusal tells.

use guest_sim::suite::{Setup, World};
use masq_model::Action::{Allow, Deny};
use masq_model::Direction::{Egress, Ingress};
use masq_model::{SecurityGroupRule, Transport};

use crate::Test;
use crate::ctl::explain;
use crate::link::rtr;
use crate::revocation::{about, rule};
use crate::tenant::{NAME, Tenant, address, vnic};

pub const TESTS: &[Test] =
    &[("what_rules_allow_and_deny", table), ("a_refusal_tells_who_whom_and_why", refusals)];

/// The groups of one vNIC, those of its peers (one on its host, one on another), rules, and the verdict: what allows it, or
/// what stands in the way there, and back.
struct Case {
    what: &'static str,
    groups: [&'static [&'static str]; 2],
    rules: Vec<SecurityGroupRule>,
    verdict: Result<&'static str, [&'static str; 2]>,
}

fn case(
    what: &'static str,
    groups: [&'static [&'static str]; 2],
    rules: Vec<SecurityGroupRule>,
    verdict: Result<&'static str, [&'static str; 2]>,
) -> Case {
    Case { what, groups, rules, verdict }
}

fn at(priority: u32, rule: SecurityGroupRule) -> SecurityGroupRule {
    SecurityGroupRule { priority, ..rule }
}

fn of(transport: Transport, rule: SecurityGroupRule) -> SecurityGroupRule {
    SecurityGroupRule { transport, ..rule }
}

fn with(group: &str, rule: SecurityGroupRule) -> SecurityGroupRule {
    SecurityGroupRule { remote_group: Some(group.into()), ..rule }
}

fn cases() -> Vec<Case> {
    // All rules say who may send to whom; nobody is in a common group unless the case is about that.
    let out = || rule("a", "out", Egress, Allow);
    let into = || rule("b", "in", Ingress, Allow);
    vec![
        case("members of a common group", [&["c"], &["b", "c"]], vec![], Ok("membership in c")),
        case("no common group", [&["a"], &["b"]], vec![], Err(["no rule", "no rule"])),
        case("no group at all", [&[], &["b"]], vec![into()], Err(["no rule", "no rule"])),
        case("only sending is allowed", [&["a"], &["b"]], vec![out()], Err(["no rule", "no rule"])),
        case("only receiving is allowed", [&["a"], &["b"]], vec![into()], Err(["no rule", "no rule"])),
        case("one direction is allowed", [&["a"], &["b"]], vec![out(), into()], Ok("rule a/out")),
        case(
            "a rule against members of the own group",
            [&["c"], &["c"]],
            vec![rule("c", "stop", Ingress, Deny)],
            Err(["rule c/stop", "rule c/stop"]),
        ),
        case(
            "one direction is denied to members of a common group",
            [&["a", "c"], &["c"]],
            vec![rule("a", "stop", Egress, Deny)],
            Ok("membership in c"),
        ),
        case(
            "the smaller priority allows",
            [&["a"], &["b"]],
            vec![at(10, out()), at(20, rule("a", "stop", Egress, Deny)), into()],
            Ok("rule a/out"),
        ),
        case(
            "the smaller priority denies",
            [&["a"], &["b"]],
            vec![at(20, out()), at(10, rule("a", "stop", Egress, Deny)), into()],
            Err(["rule a/stop", "no rule"]),
        ),
        case(
            "among equals deny wins, also over another group's",
            [&["a", "c"], &["b"]],
            vec![out(), rule("c", "stop", Egress, Deny), into()],
            Err(["rule c/stop", "no rule"]),
        ),
        case("from members of a group", [&["a"], &["b"]], vec![out(), with("a", into())], Ok("rule b/in")),
        case(
            "from members of another group",
            [&["a"], &["b"]],
            vec![out(), with("c", into())],
            Err(["no rule", "no rule"]),
        ),
        case("from an address", [&["a"], &["b"]], vec![out(), about("192.168.0.1", into())], Ok("rule b/in")),
        case(
            "from another address",
            [&["a"], &["b"]],
            vec![out(), about("192.168.0.9", into())],
            Err(["no rule", "no rule"]),
        ),
        case("by transport", [&["a"], &["b"]], vec![of(Transport::Rc, out()), into()], Ok("rule a/out")),
        case(
            "by another transport",
            [&["a"], &["b"]],
            vec![of(Transport::Ud, out()), into()],
            Err(["no rule", "no rule"]),
        ),
    ]
}

fn table(world: &World) {
    let t = Tenant::create(world, &[1, 1, 2]);
    let sides = [1, 2, 3].map(|n| t.side(n));
    let qpns = sides.each_ref().map(|side| side.qp(&Setup::default().caps_b, 64).qpn);
    for Case { what, groups: [first, peers], rules, verdict } in cases() {
        t.apply(&[first.to_vec(), peers.to_vec(), peers.to_vec()], &rules);
        for (from, to) in [(1u8, 2u8), (1, 3), (2, 1), (3, 1)] {
            let got = rtr(&sides[usize::from(from) - 1], address(to), qpns[usize::from(to) - 1]);
            let wanted = if verdict.is_ok() { 0 } else { libc::EACCES };
            assert_eq!(got.map_or_else(|e| e.errno(), |()| 0), wanted, "{what}: {from} to {to}");
            for host in [1, 2] {
                let e = explain(world, host, &vnic(from), &vnic(to));
                assert_eq!(e.allowed, verdict.is_ok(), "{what}: {from} to {to} on host {host}: {e:?}");
                // The direction from the first vNIC to its peers comes first in the table.
                let flow = |reversed: bool| {
                    let flow = e.flows.iter().find(|f| (f.from.ip() == address(1)) != reversed);
                    let flow = flow.unwrap_or_else(|| panic!("{what}: {e:?}"));
                    (flow.allowed, format!("{} {}", flow.egress, flow.ingress))
                };
                match verdict {
                    Ok(by) => assert!(
                        [false, true].map(flow).iter().any(|(allowed, text)| *allowed && text.contains(by)),
                        "{what}: {e:?}"
                    ),
                    Err(by) => {
                        for (by, (allowed, text)) in by.into_iter().zip([false, true].map(flow)) {
                            assert!(!allowed && text.contains(by), "{what}: {by}: {e:?}");
                        }
                    }
                }
            }
        }
    }
}

/// EACCES for the guest; tenant, vNIC, verb, peer and rule in the log of its host; and a count.
fn refusals(world: &World) {
    let t = Tenant::create(world, &[1, 1, 2]);
    t.apply(&vec![vec![NAME]; 3], &[rule(NAME, "nobody-may-receive", Ingress, Deny)]);
    for (from, to) in [(1, 2), (1, 3), (3, 1)] {
        let host = t.host(from);
        let labels =
            ["vpc=\"green\"", &format!("vnic=\"{}\"", vnic(from)), "verb=\"modify_qp\"", "reason=\"denied\""];
        let count = || world.cluster.metric(host, "masqd_vnic_refusals_total", &labels);
        let (mark, before) = (world.cluster.log(host).len(), count());
        let peer = t.side(to).qp(&Setup::default().caps_b, 64);
        let refused =
            rtr(&t.side(from), address(to), peer.qpn).expect_err("a connection that the rule forbids");
        assert_eq!(refused.errno(), libc::EACCES);
        let qpn = format!("{:#08x}", peer.qpn);
        let peer = address(to).to_string();
        let words =
            [NAME, &vnic(from), "modify_qp", &qpn, &peer, &vnic(to), "EACCES", "green/nobody-may-receive"];
        world.cluster.expect_log(host, mark, &words);
        assert_eq!(count() - before, 1.0, "refusals on host {host}");
    }
}
