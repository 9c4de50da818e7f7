//! Many flows at the same time share what one flow has (FreeFlow, NSDI '19, §5.1.3).

use bench_record::{Record, Res, Samples, jain};
use guest_sim::suite::World;
use guest_sim::suite::{Pair, Placement};

use crate::Effort;
use crate::masqd::ENGINE;
use crate::stream::{KIB, Load, MTU_4096, Streams, scope, world};

const FLOWS: usize = 512;
/// Messages of 64 KiB that each of them has on its way.
const DEPTH: usize = 2;
/// The least share of one flow's speed that all flows have together.
const BAR: f64 = 0.9;
/// The least of Jain's index.
const FAIRNESS: f64 = 0.97;

/// On one host and between two.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let world = world(effort, 9000, &[])?;
    let mut records = Vec::new();
    for placement in Placement::ALL {
        records.extend(flows(effort, &world, placement)?);
    }
    Ok(records)
}

fn flows(effort: &Effort, world: &World, placement: Placement) -> Res<Vec<Record>> {
    let pair = Pair::open(world, placement);
    let alone = Streams::new(&pair, 1, 64, MTU_4096)?;
    let many = Streams::new(&pair, FLOWS, DEPTH, MTU_4096)?;
    let load = Load::writes(64 * KIB);
    let share = Load { depth: DEPTH, ..load };
    let (mut one, mut all, mut fairness) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..effort.pick(5, 2) {
        one.push(alone.bytes_per_sec(load, effort.run())? / 1e6);
        let moved = many.run(FLOWS, share, effort.run() * 3)?;
        all.push(moved.rate() * share.len as f64 / 1e6);
        fairness.push(jain(&moved.messages.iter().map(|n| *n as f64).collect::<Vec<_>>()));
    }
    pair.close()?;
    let name = format!("{FLOWS}_flows");
    Ok(vec![
        Record::new(format!("{name}_write_bw_64KiB"), scope(placement), &all, "MB/s")
            .of(ENGINE)
            .beside("one flow", &one)
            .at_least(BAR),
        Record::new(format!("{name}_jain"), scope(placement), &fairness, "").of(ENGINE).at_least(FAIRNESS),
    ])
}
