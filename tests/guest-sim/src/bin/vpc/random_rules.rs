//! Random groups and rules: what RTR really does, `masqctl explain` says, and so does a model that looks at all rules.

use guest_sim::suite::{Rng, Setup, World};
use masq_model::{Action, Direction, IpNet, SecurityGroupRule, Transport};

use crate::Test;
use crate::ctl::explain;
use crate::link::rtr;
use crate::tenant::{GROUPS, NAME, Tenant, address, vnic};

pub const TESTS: &[Test] = &[("explain_and_rtr_agree_whatever_the_rules", agree)];

const SEED: u64 = 20;
const ROUNDS: usize = 10;
const HOSTS: [u8; 5] = [1, 1, 2, 2, 1];

/// Groups of each vNIC, and rules.
struct Random {
    groups: Vec<Vec<&'static str>>,
    rules: Vec<SecurityGroupRule>,
}

fn random(rng: &mut Rng) -> Random {
    let all: Vec<&str> = [NAME].into_iter().chain(GROUPS).collect();
    let some = |rng: &mut Rng| all.iter().copied().filter(|_| rng.below(3) == 0).collect::<Vec<_>>();
    let groups = HOSTS.iter().map(|_| some(rng)).collect();
    let rules = (0..rng.below(14)).map(|n| {
        let (mut remote_prefix, mut remote_group) = (None, None);
        match rng.below(3) {
            0 => {}
            1 => {
                let text = format!("192.168.0.{}/{}", rng.below(8), rng.pick(&[24, 29, 30, 31, 32]));
                remote_prefix = Some(text.parse::<IpNet>().expect("a prefix").trunc());
            }
            _ => remote_group = Some(rng.pick(&all).to_owned()),
        }
        SecurityGroupRule {
            name: format!("r{n}"),
            security_group: rng.pick(&all).into(),
            direction: rng.pick(&[Direction::Ingress, Direction::Egress]),
            remote_prefix,
            remote_group,
            transport: rng.pick(&[
                Transport::Any,
                Transport::Any,
                Transport::Rc,
                Transport::Uc,
                Transport::Ud,
            ]),
            priority: rng.pick(&[1, 2, 1000]),
            action: rng.pick(&[Action::Allow, Action::Deny]),
        }
    });
    let rules = rules.collect();
    Random { groups, rules }
}

impl Random {
    /// Whether the rules allow a connection between two vNICs.
    fn allow(&self, one: u8, other: u8) -> bool {
        self.pass(one, other) || self.pass(other, one)
    }

    fn pass(&self, sender: u8, receiver: u8) -> bool {
        self.decide(Direction::Egress, sender, receiver) && self.decide(Direction::Ingress, receiver, sender)
    }

    fn decide(&self, direction: Direction, member: u8, remote: u8) -> bool {
        let groups = |n: u8| &self.groups[usize::from(n) - 1];
        let matches = |r: &&SecurityGroupRule| {
            r.direction == direction
                && groups(member).contains(&r.security_group.as_str())
                && matches!(r.transport, Transport::Any | Transport::Rc)
                && r.remote_prefix.is_none_or(|net| net.contains(&address(remote)))
                && r.remote_group.as_deref().is_none_or(|g| groups(remote).contains(&g))
        };
        match self.rules.iter().filter(matches).map(|r| (r.priority, r.action == Action::Allow)).min() {
            Some((_, allow)) => allow,
            None => groups(member).iter().any(|g| groups(remote).contains(g)),
        }
    }
}

fn agree(world: &World) {
    let t = Tenant::create(world, &HOSTS);
    let count = HOSTS.len() as u8;
    let sides: Vec<_> = (1..=count).map(|n| t.side(n)).collect();
    let qpns: Vec<u32> = sides.iter().map(|side| side.qp(&Setup::default().caps_b, 64).qpn).collect();
    let mut rng = Rng::new(SEED);
    let mut verdicts = [0, 0];
    for round in 0..ROUNDS {
        let state = random(&mut rng);
        t.apply(&state.groups, &state.rules);
        for from in 1..=count {
            for to in (1..=count).filter(|to| *to != from) {
                let told =
                    || format!("round {round}: {from} to {to}: {:#?} {:#?}", state.groups, state.rules);
                let allowed = state.allow(from, to);
                let done = rtr(&sides[usize::from(from) - 1], address(to), qpns[usize::from(to) - 1]);
                match done {
                    Ok(()) => assert!(allowed, "made: {}", told()),
                    Err(e) => {
                        assert!(!allowed && e.errno() == libc::EACCES, "errno {}: {}", e.errno(), told());
                    }
                }
                let host = 1 + (from + to) % 2;
                // By address: between names, any pair of addresses that may talk counts.
                let explanation = explain(world, host, &vnic(from), &address(to).to_string());
                assert_eq!(explanation.allowed, allowed, "{}: {explanation:?}", told());
                verdicts[usize::from(allowed)] += 1;
            }
        }
    }
    assert!(verdicts.iter().all(|n| *n > 20), "rules that are no test: {verdicts:?}");
}
