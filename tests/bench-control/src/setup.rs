//! What rules and tracking add to the set-up of a connection, and how many set-ups a host does in a second.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use bench_record::{Record, Res, Samples};
use guest_sim::ControlError;
use masq_model::Object;
use vrdma_abi::control::OP_DESTROY_QP;

use crate::objects;
use crate::verbs::{Opened, Verbs};
use crate::world::World;

/// What rules and tracking may add to a set-up.
const BAR: f64 = 1.11;
/// Set-ups before it is the other masqd's turn.
const TURN: u32 = 25;
const RULES: [u32; 2] = [10, 10_000];
/// Guests of the world whose set-ups a second are counted.
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

/// The time of a set-up with policy beside that without, under few and many rules. Both masqds start anew `lives`
/// times, as one start differs from another.
pub fn overhead(programs: &Path, bypass: &Path, lives: u32, turns: u32) -> Res<Vec<Record>> {
    let mut samples: [[Samples; 2]; 2] = Default::default();
    for _ in 0..lives {
        let worlds = [World::start(programs, 1, &[1, 1])?, World::start(bypass, 1, &[1, 1])?];
        let connectors = [Connector::new(&worlds[0], 1, 2)?, Connector::new(&worlds[1], 1, 2)?];
        for (count, samples) in RULES.into_iter().zip(&mut samples) {
            let rules: Vec<_> = objects::rules(count).into_iter().map(Object::SecurityGroupRule).collect();
            worlds.iter().try_for_each(|world| world.apply(&rules))?;
            for turn in 0..turns {
                for k in 0..2 {
                    // Who comes first in a turn changes as well.
                    let k = (k + turn as usize) % 2;
                    for _ in 0..TURN {
                        samples[k].push_us(connectors[k].set_up()?);
                    }
                }
            }
        }
    }
    let mut records = Vec::new();
    for (count, [ours, bypassed]) in RULES.into_iter().zip(&samples) {
        let record = |scope, percent| {
            let name = format!("setup_{count}_rules");
            let record = Record::new(
                name,
                format!("one CPU, {scope}, n={}", ours.len()),
                ours.percentile(percent),
                "us",
            );
            record.beside("rules and tracking bypassed", bypassed.percentile(percent))
        };
        records.push(record("p50", 50.0).at_most(BAR));
        records.push(record("p99", 99.0));
    }
    Ok(records)
}

/// Set-ups a second with guests at the same time, for `run` each; `what` tells what else there is.
pub fn throughput(world: &World, what: &str, run: Duration) -> Res<Vec<Record>> {
    let connectors: Vec<_> =
        (1..GUESTS).map(|n| Connector::new(world, n, n % (GUESTS - 1) + 1)).collect::<Res<_>>()?;
    let mut records = Vec::new();
    for connector in &connectors {
        // The first touches memory that later ones find touched.
        connector.set_up()?;
    }
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
