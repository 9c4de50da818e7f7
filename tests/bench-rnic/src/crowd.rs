//! Thousands of connected queue pairs, a hundredth of which do something: beside a hundred that all do.

use guest_sim::suite::{Pair, Placement, World};
use vrdma_abi::ring::SEND_OP_RDMA_WRITE;

use crate::masqd::{ENGINE, private_bytes};
use crate::record::{Record, Samples};
use crate::stream::{KIB, Load, MTU_4096, Streams, scope, world};
use crate::{Effort, Res};

const CROWD: usize = 10_000;
const ACTIVE: usize = 100;
/// Messages that each active queue pair has on its way.
const DEPTH: usize = 2;
/// The least share of the speed with nobody else.
const BAR: f64 = 0.8;

/// On one host and between two.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let mut records = Vec::new();
    for placement in Placement::ALL {
        // A world of its own for each: masqd's memory is measured from its start.
        let world = world(effort, 9000, &[])?;
        records.extend(crowd(effort, &world, placement)?);
    }
    Ok(records)
}

fn crowd(effort: &Effort, world: &World, placement: Placement) -> Res<Vec<Record>> {
    // The hundred are other guests' on the same hosts, so that each vNIC has what it would have.
    let few_pair = Pair::open(world, placement);
    let few = Streams::new(&few_pair, ACTIVE, DEPTH, MTU_4096)?;
    let loads =
        [("write_bw_64KiB", 64 * KIB, "MB/s", 64.0 * 1024.0 / 1e6), ("write_rate_8B", 8, "k/s", 1e-3)];
    let load = |len| Load { opcode: SEND_OP_RDMA_WRITE, len, depth: DEPTH };
    // Once before anything is measured, so that what is made at first use is there in both memories.
    few.run(ACTIVE, load(64 * KIB), effort.run())?;
    let before = private_bytes(&world.cluster, 1)?;
    let mut alone: [Samples; 2] = Default::default();
    let mut among: [Samples; 2] = Default::default();
    for _ in 0..effort.pick(5, 2) {
        for ((_, len, _, scale), samples) in loads.iter().zip(&mut alone) {
            samples.push(few.run(ACTIVE, load(*len), effort.run())?.rate() * scale);
        }
    }
    let count = effort.pick(CROWD, CROWD / 10);
    let pair = Pair::open(world, placement);
    let many = Streams::new(&pair, count, DEPTH, MTU_4096)?;
    let ends = if placement == Placement::Local { 2 * count } else { count };
    let each = (private_bytes(&world.cluster, 1)?.saturating_sub(before)) as f64 / ends as f64;
    for _ in 0..effort.pick(5, 2) {
        for ((_, len, _, scale), samples) in loads.iter().zip(&mut among) {
            samples.push(many.run(ACTIVE, load(*len), effort.run())?.rate() * scale);
        }
    }
    let mut records: Vec<Record> = loads
        .iter()
        .zip(&among)
        .zip(&alone)
        .map(|(((name, _, unit, _), among), alone)| {
            let name = format!("{name}_of_{ACTIVE}_among_{count}_qps");
            let peer = format!("{ACTIVE} queue pairs in all");
            Record::new(name, scope(placement), among, unit, ENGINE).beside(peer, alone).at_least(BAR)
        })
        .collect();
    let each = Samples::one(each);
    records.push(Record::new("masqd_memory_per_qp", scope(placement), &each, "bytes", "masqd, RssAnon"));
    Ok(records)
}
