//! Connections over several links of 100 Mbit/s: how long messages take (flow completion time, FCT).
//!
//! Guests split large messages as the provider does. The links are those that data takes; acknowledgements come back without a limit. Every connection is
//! used once before anything is measured, so that its congestion control knows the links.

mod dead;
mod mice;
mod sizes;
mod transfer;
mod unequal;

use std::time::Duration;

use bench_record::{Record, Res, Samples};
use guest_sim::suite::{World, layout};
use guest_sim::{Layout, VnicSpec};

use crate::Effort;
use crate::link::limit;
use transfer::Ends;

/// Links between the hosts, and the most paths that a vNIC can have.
const LINKS: u8 = 8;

/// Pairs of vNICs: their paths and names.
const VNICS: [(u8, &str, &str); 5] = [
    (1, "one-a", "one-b"),
    (2, "two-a", "two-b"),
    (3, "three-a", "three-b"),
    (4, "four-a", "four-b"),
    (8, "eight-a", "eight-b"),
];

/// Of which rate a link is, in Mbit/s.
const RATE: u32 = 100;

/// Bytes of a MB.
const MB: usize = 1_000_000;

/// The longest message.
const LONGEST: usize = 100 * MB;

/// Paths that all live.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let world = start(effort)?;
    let mut records = sizes::over_paths(effort, &world)?;
    records.extend(sizes::over_sizes(effort, &world)?);
    records.extend(mice::measure(effort, &world)?);
    records.extend(unequal::measure(effort, &world)?);
    Ok(records)
}

/// One of them dies.
pub fn measure_death(effort: &Effort) -> Res<Vec<Record>> {
    dead::measure(effort, &start(effort)?)
}

fn start(effort: &Effort) -> Res<World> {
    let (mut vnics, mut fewer_paths) = (Vec::new(), Vec::new());
    for (number, (paths, a, b)) in (0..).zip(VNICS) {
        for (host, name) in [(1, a), (2, b)] {
            let address = [192, 168, 0, 2 * number + host].into();
            vnics.push(VnicSpec { name, vpc: "blue", host, address });
            fewer_paths.push((name, paths));
        }
    }
    let masqd_args = ["--congestion", "swift"].map(String::from).to_vec();
    let layout = Layout { vnics, groups: vec!["blue"], paths: LINKS, fewer_paths, masqd_args, ..layout() };
    let world = World::start(&effort.programs, layout)?;
    (0..LINKS).try_for_each(|path| shape(&world, path, RATE))?;
    Ok(world)
}

/// Gives a link a rate in Mbit/s. The bucket is no larger than a train of segments that comes as one, as what it holds is sent at once: short messages would
/// take no time.
fn shape(world: &World, path: u8, mbit_per_sec: u32) -> Res<()> {
    limit(world, path, &["rate", &format!("{mbit_per_sec}mbit"), "burst", "64k", "latency", "10ms"])
}

/// Opens the devices of the vNICs with so many paths.
fn ends(world: &World, paths: u8) -> Res<Ends<'_>> {
    let (_, a, b) = VNICS.into_iter().find(|(n, ..)| *n == paths).ok_or("no vNIC has so many paths")?;
    Ends::open(world, a, b, paths, LONGEST)
}

/// What was measured, in the words of records.
fn scope(links: impl std::fmt::Display) -> String {
    format!("two namespaces, tbf {links} burst 64k latency 10ms")
}

/// Bits a second of a message, in Mbit/s.
fn mbit_per_sec(bytes: usize, time: Duration) -> f64 {
    bytes as f64 * 8.0 / time.as_secs_f64() / 1e6
}

/// All samples, so many times.
fn times(factor: f64, samples: &Samples) -> Samples {
    let mut all = Samples::EMPTY;
    samples.values().iter().for_each(|value| all.push(factor * value));
    all
}
