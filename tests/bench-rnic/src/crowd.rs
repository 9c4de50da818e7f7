//! Thousands of connected queue pairs, a hundredth of which do something: beside a hundred that all do.

use bench_record::{Record, Res, Samples};
use guest_sim::suite::{Pair, Placement};
use vrdma_abi::ring::SEND_OP_RDMA_WRITE;

use crate::Effort;
use crate::masqd::{ENGINE, private_bytes};
use crate::stream::{KIB, Load, MTU_4096, Streams, scope, world};

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
        records.extend(crowd(effort, placement)?);
    }
    Ok(records)
}

fn crowd(effort: &Effort, placement: Placement) -> Res<Vec<Record>> {
    // Hosts that have the hundred alone, and hosts that have all of them.
    let worlds = [world(effort, 9000, &[])?, world(effort, 9000, &[])?];
    let pairs = [Pair::open(&worlds[0], placement), Pair::open(&worlds[1], placement)];
    let load = |len| Load { opcode: SEND_OP_RDMA_WRITE, len, depth: DEPTH };
    let few = Streams::new(&pairs[0], ACTIVE, DEPTH, MTU_4096)?;
    let count = effort.pick(CROWD, CROWD / 10);
    let (many, each) = {
        let cluster = &worlds[1].cluster;
        // What is made at first use is there before anything is measured.
        Streams::new(&pairs[1], ACTIVE, DEPTH, MTU_4096)?.run(ACTIVE, load(64 * KIB), effort.run())?;
        let before = private_bytes(cluster, 1)?;
        let many = Streams::new(&pairs[1], count, DEPTH, MTU_4096)?;
        let ends = if placement == Placement::Local { 2 * count } else { count };
        (many, private_bytes(cluster, 1)?.saturating_sub(before) as f64 / ends as f64)
    };
    let rows = [("write_bw_64KiB", 64 * KIB, "MB/s", 64.0 * 1024.0 / 1e6), ("write_rate_8B", 8, "k/s", 1e-3)];
    let mut samples: [[Samples; 2]; 2] = Default::default();
    for _ in 0..effort.runs() {
        for ((_, len, _, scale), [among, alone]) in rows.iter().zip(&mut samples) {
            for (streams, samples) in [(&many, among), (&few, alone)] {
                samples.push(streams.run(ACTIVE, load(*len), effort.run())?.rate() * scale);
            }
        }
    }
    let record =
        |((name, _, unit, _), [among, alone]): (&(&str, usize, &'static str, f64), &[Samples; 2])| {
            let name = format!("{name}_of_{ACTIVE}_among_{count}_qps");
            let peer = format!("{ACTIVE} queue pairs in all");
            Record::new(name, scope(placement), among, unit).of(ENGINE).beside(peer, alone).at_least(BAR)
        };
    let mut records: Vec<Record> = rows.iter().zip(&samples).map(record).collect();
    let each = Samples::one(each);
    records.push(Record::new("masqd_memory_per_qp", scope(placement), &each, "bytes").of("masqd, RssAnon"));
    Ok(records)
}
