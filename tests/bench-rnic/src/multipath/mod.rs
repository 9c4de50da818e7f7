//! Connections over several links of 100 Mbit/s: how long messages take (flow completion time, FCT).
//!
//! Two hosts are behind a switch each, and the links join the switches; both directions of a link have its rate. Guests split large messages as the
//! provider does. Every connection is used once before anything is measured, so that its congestion control knows the links.

mod chunks;
mod dead;
mod fct;
mod lossy;
mod mice;
mod transfer;
mod uneven;

use std::time::Duration;

use bench_record::{Record, Res, Samples};
use guest_sim::suite::{World, layout};
use guest_sim::{Layout, VnicSpec};

use crate::Effort;
use crate::link::limit;
use transfer::Ends;

/// Links between the switches.
const LINKS: u8 = 10;

/// Pairs of vNICs: their paths and names.
const VNICS: [(u8, &str, &str); 7] = [
    (1, "one-a", "one-b"),
    (2, "two-a", "two-b"),
    (3, "three-a", "three-b"),
    (4, "four-a", "four-b"),
    (6, "six-a", "six-b"),
    (8, "eight-a", "eight-b"),
    (LINKS, "ten-a", "ten-b"),
];

/// Of which rate a link is, in Mbit/s.
const RATE: u32 = 100;

/// Bytes of a MB.
const MB: usize = 1_000_000;

/// The longest message of most parts.
const LONGEST: usize = 100 * MB;

/// WRITEs over paths that are alike, and all live.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let world = start(effort)?;
    let mut records = fct::over_paths(effort, &world)?;
    records.extend(fct::over_sizes(effort, &world)?);
    Ok(records)
}

/// READs and SENDs.
pub fn measure_verbs(effort: &Effort) -> Res<Vec<Record>> {
    fct::over_verbs(effort, &start(effort)?)
}

/// Short messages beside a long one.
pub fn measure_mice(effort: &Effort) -> Res<Vec<Record>> {
    mice::measure(effort, &start(effort)?)
}

/// Paths that differ, or change.
pub fn measure_uneven(effort: &Effort) -> Res<Vec<Record>> {
    let world = start(effort)?;
    let mut records = uneven::unequal(effort, &world)?;
    records.extend(uneven::slows(effort, &world)?);
    records.extend(uneven::flaps(effort, &world)?);
    Ok(records)
}

/// One of them dies.
pub fn measure_death(effort: &Effort) -> Res<Vec<Record>> {
    dead::measure(effort, &start(effort)?)
}

/// All of them lose packets.
pub fn measure_loss(effort: &Effort) -> Res<Vec<Record>> {
    lossy::measure(effort)
}

/// How long work requests may be before the network loses some of them.
pub fn measure_chunks(effort: &Effort) -> Res<Vec<Record>> {
    chunks::measure(effort)
}

fn start(effort: &Effort) -> Res<World> {
    start_with(effort, &["--congestion", "swift"])
}

/// Starts the hosts and limits the links.
fn start_with(effort: &Effort, masqd_args: &[&str]) -> Res<World> {
    let (mut vnics, mut fewer_paths) = (Vec::new(), Vec::new());
    for (number, (paths, a, b)) in (0..).zip(VNICS) {
        for (host, name) in [(1, a), (2, b)] {
            let address = [192, 168, 0, 2 * number + host].into();
            vnics.push(VnicSpec { name, vpc: "blue", host, address });
            fewer_paths.push((name, paths));
        }
    }
    let masqd_args = masqd_args.iter().map(|arg| (*arg).to_owned()).collect();
    let groups = vec!["blue"];
    let layout = Layout { vnics, groups, paths: LINKS, fewer_paths, switches: true, masqd_args, ..layout() };
    let world = World::start(&effort.programs, layout)?;
    (0..LINKS).try_for_each(|path| shape(&world, path, RATE))?;
    Ok(world)
}

/// Gives a link a rate in Mbit/s, in both directions. The bucket is no larger than a train of segments that comes as one, as what it holds is sent at once: short
/// messages would take no time.
fn shape(world: &World, path: u8, mbit_per_sec: u32) -> Res<()> {
    let rate = format!("{mbit_per_sec}mbit");
    [1, 2]
        .into_iter()
        .try_for_each(|host| limit(world, host, path, &["rate", &rate, "burst", "64k", "latency", "10ms"]))
}

/// Opens the devices of the vNICs with so many paths.
fn ends(world: &World, paths: u8) -> Res<Ends<'_>> {
    ends_for(world, paths, LONGEST)
}

/// The same, for messages of up to `len` bytes.
fn ends_for(world: &World, paths: u8, len: usize) -> Res<Ends<'_>> {
    let (_, a, b) = VNICS.into_iter().find(|(n, ..)| *n == paths).ok_or("no vNIC has so many paths")?;
    Ends::open(world, a, b, paths, len)
}

/// What was measured, in the words of records.
fn scope(links: impl std::fmt::Display) -> String {
    format!("two switches, tbf {links} burst 64k latency 10ms")
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
