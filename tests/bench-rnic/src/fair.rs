//! Flows that share a slow link: how equally, how much of it they use, and how long the queue before it is, with Swift and without
//! congestion control.

use std::time::Duration;

use bench_record::{Record, Res, Samples, jain};
use guest_sim::suite::{Pair, Placement, World};

use crate::Effort;
use crate::link::limit;
use crate::masqd::ENGINE;
use crate::mice::Mouse;
use crate::stream::{KIB, Load, MTU_4096, Streams, world};

/// Bits per second of the link, and the name that `tc` has for them. Its queue holds 10 ms.
const LINKS: [(f64, &str); 2] = [(200e6, "200mbit"), (1e9, "1gbit")];
const FLOWS: [usize; 3] = [2, 8, 64];
/// The least of Jain's index.
const FAIRNESS: f64 = 0.97;
/// The least share of the link that data takes; headers need 2 %.
const USE: f64 = 0.85;
/// Streams beside which mice are measured.
const ELEPHANTS: usize = 2;
/// Messages of 16 KiB, and how many each flow has on its way: more than any window.
const LOAD: Load = Load { opcode: vrdma_abi::ring::SEND_OP_RDMA_WRITE, len: 16 * KIB, depth: 32 };

/// The place of what has no control in pairs of two.
const FREE: usize = 1;

/// At each rate.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let mut records = Vec::new();
    let controlled = world(effort, 9000, &["--congestion", "swift"])?;
    let free = world(effort, 9000, &["--congestion", "none"])?;
    for (rate, name) in LINKS {
        let scope = format!("two namespaces, tbf {name} burst 256k latency 10ms");
        for world in [&controlled, &free] {
            limit(world, 1, 0, &["rate", name, "burst", "256k", "latency", "10ms"])?;
        }
        records.extend(shares(effort, [&controlled, &free], rate, &scope)?);
        records.extend(mice(effort, [&controlled, &free], &scope)?);
    }
    Ok(records)
}

fn shares(effort: &Effort, worlds: [&World; 2], rate: f64, scope: &str) -> Res<Vec<Record>> {
    let run = Duration::from_secs(effort.pick(10, 2));
    let mut records = Vec::new();
    for flows in FLOWS {
        let mut fairness: [Samples; 2] = Default::default();
        let mut used: [Samples; 2] = Default::default();
        for (k, world) in worlds.into_iter().enumerate() {
            let pair = Pair::open(world, Placement::Remote);
            let moved = match Streams::new(&pair, flows, LOAD.depth, MTU_4096)?.run(flows, LOAD, run) {
                Ok(moved) => moved,
                // What nobody controls may use up a queue pair's tries; that shows as no figure at all.
                Err(error) if k == FREE => {
                    println!("{scope}, {flows} flows without control: {error}");
                    continue;
                }
                Err(error) => return Err(error),
            };
            fairness[k].push(jain(&moved.messages.iter().map(|n| *n as f64).collect::<Vec<_>>()));
            used[k].push(moved.rate() * LOAD.len as f64 * 8.0 / rate);
            pair.close()?;
        }
        let [fair, unfair] = fairness;
        let [used, used_without] = used;
        let record =
            |name: &str, samples| Record::new(format!("{flows}_flows_{name}"), scope, samples, "").of(ENGINE);
        records.push(record("jain", &fair).at_least(FAIRNESS));
        records.push(record("utilisation", &used).at_least(USE));
        if !unfair.is_empty() {
            records.push(record("jain_without_control", &unfair));
            records.push(record("utilisation_without_control", &used_without));
        }
    }
    Ok(records)
}

/// Latency of writes of two bytes that pass the same queue as two streams.
fn mice(effort: &Effort, worlds: [&World; 2], scope: &str) -> Res<Vec<Record>> {
    let run = Duration::from_secs(effort.pick(5, 2));
    let mut latencies = Vec::new();
    for world in worlds {
        let pair = Pair::open(world, Placement::Remote);
        let streams = Streams::new(&pair, ELEPHANTS, LOAD.depth, MTU_4096)?;
        let mouse = Mouse::new(&pair);
        let times = std::thread::scope(|scope| {
            let elephants = scope.spawn(|| streams.run(ELEPHANTS, LOAD, run + Duration::from_secs(1)));
            // They have found their rates by then.
            std::thread::sleep(Duration::from_secs(1));
            let times = mouse.run(run, || Ok(()));
            elephants.join().map_err(|_| "the elephants have panicked")??;
            times
        })?;
        latencies.push(times);
        pair.close()?;
    }
    let [with, without] = [0, 1].map(|k| latencies[k]);
    let record = |(k, percent): (usize, &str)| {
        let name = format!("write_lat_2B_{percent}_beside_{ELEPHANTS}_streams");
        Record::new(name, scope, &Samples::one(with[k]), "us")
            .of(ENGINE)
            .beside("--congestion none", &Samples::one(without[k]))
    };
    Ok(["p50", "p99"].into_iter().enumerate().map(record).collect())
}
