//! What rules and tracking add to the set-up of a connection, and how many set-ups a host does in a second.

use std::net::IpAddr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use guest_sim::ControlError;
use masq_model::Object;
use vrdma_abi::control::OP_DESTROY_QP;

use crate::objects;
use crate::record::{Record, Samples};
use crate::verbs::{Opened, Verbs};
use crate::world::{Res, World};

/// What rules and tracking may add to a set-up.
const BAR: f64 = 1.11;
/// Set-ups before it is the other masqd's turn.
const TURN: u32 = 25;
/// Guests of the world.
pub const GUESTS: u32 = 17;

/// A guest that connects to another again and again.
struct Connector {
    verbs: Verbs,
    opened: Opened,
    peer: IpAddr,
    qpn: u32,
}

impl Connector {
    /// Guest `n`, which connects to `peer`.
    fn new(world: &World, n: u32, peer: u32) -> Res<Connector> {
        let theirs = Verbs::new(world.guest(peer)?);
        let qpn = theirs.create_qp(theirs.open()?)?.qpn;
        let verbs = Verbs::new(world.guest(n)?);
        let opened = verbs.open()?;
        Ok(Connector { verbs, opened, peer: World::address(peer), qpn })
    }

    /// Creates a queue pair and connects it; how long that took. Then destroys it.
    fn set_up(&self) -> Result<Duration, ControlError> {
        let start = Instant::now();
        let qp = self.verbs.create_qp(self.opened)?;
        self.verbs.connect(qp, self.peer, self.qpn)?;
        let time = start.elapsed();
        self.verbs.destroy(OP_DESTROY_QP, qp.qp)?;
        Ok(time)
    }
}

/// The time of a set-up with policy beside that without, under few and many rules.
pub fn overhead(world: &World, bypassed: &World, turns: u32) -> Res<Vec<Record>> {
    let connectors = [Connector::new(world, 1, 2)?, Connector::new(bypassed, 1, 2)?];
    let mut records = Vec::new();
    for rules in [10, 10_000] {
        let objects: Vec<_> = objects::rules(rules).into_iter().map(Object::SecurityGroupRule).collect();
        world.apply(&objects)?;
        bypassed.apply(&objects)?;
        let mut samples = [Samples::default(), Samples::default()];
        for turn in 0..turns {
            for k in 0..2 {
                // Who comes first in a turn changes as well.
                let k = (k + turn as usize) % 2;
                for _ in 0..TURN {
                    samples[k].push_us(connectors[k].set_up()?);
                }
            }
        }
        let [ours, bypass] = &samples;
        let name = format!("setup_{rules}_rules");
        let peer = format!("rules and tracking bypassed, n={}", bypass.len());
        records.push(
            Record::new(&name, "one host, p50", ours.median(), "us")
                .beside(&peer, bypass.median())
                .at_most(BAR),
        );
        let p99 = Record::new(&name, "one host, p99", ours.percentile(99.0), "us");
        records.push(p99.beside(&peer, bypass.percentile(99.0)));
    }
    Ok(records)
}

/// Set-ups a second with guests at the same time, for `run` each; `what` tells what else there is.
pub fn throughput(world: &World, what: &str, run: Duration) -> Res<Vec<Record>> {
    let connectors: Vec<_> =
        (1..GUESTS).map(|n| Connector::new(world, n, n % (GUESTS - 1) + 1)).collect::<Res<_>>()?;
    let mut records = Vec::new();
    for guests in [1, 4, 16] {
        let start = Barrier::new(guests);
        let at_work = |connector: &Connector| -> Result<u32, ControlError> {
            start.wait();
            let end = Instant::now() + run;
            let mut done = 0;
            while Instant::now() < end {
                connector.set_up()?;
                done += 1;
            }
            Ok(done)
        };
        let done: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> =
                connectors[..guests].iter().map(|c| scope.spawn(move || at_work(c))).collect();
            threads.into_iter().map(|t| t.join().expect("a guest")).sum::<Result<u32, _>>()
        })?;
        let rate = f64::from(done) / run.as_secs_f64();
        records.push(Record::new(
            "setups_per_second",
            format!("one host, {guests} guests, {what}"),
            rate,
            "1/s",
        ));
    }
    Ok(records)
}

/// So many more vNICs in the network, which run nowhere.
pub fn crowd(count: u32) -> Vec<Object> {
    let vnic = |n| Object::Vnic(objects::vnic(format!("crowd-{n}"), 1000 + n, None, &[objects::CLIENTS]));
    (0..count).map(vnic).collect()
}
