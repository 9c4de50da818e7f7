//! One host: from memory to memory, beside memcpy.

use bench_record::{Record, Res, Samples};
use guest_sim::suite::{Pair, Placement};
use vrdma_abi::ring::{SEND_OP_RDMA_READ, SEND_OP_RDMA_WRITE};

use crate::Effort;
use crate::masqd::ENGINE;
use crate::memcpy::Memcpy;
use crate::stream::{KIB, Load, MIB, MTU_4096, Streams, scope, short_writes, world};

/// The least share of memcpy's speed.
const BAR: f64 = 0.7;

/// Writes and reads of 64 KiB and 1 MiB.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let world = world(effort, 9000, &[])?;
    let pair = Pair::open(&world, Placement::Local);
    let streams = Streams::new(&pair, 1, 128, MTU_4096)?;
    let mut memcpy = Memcpy::new();
    let rows = [
        ("write_bw_64KiB", SEND_OP_RDMA_WRITE, 64 * KIB),
        ("write_bw_1MiB", SEND_OP_RDMA_WRITE, MIB),
        ("read_bw_64KiB", SEND_OP_RDMA_READ, 64 * KIB),
        ("read_bw_1MiB", SEND_OP_RDMA_READ, MIB),
    ];
    let mut samples: [[Samples; 2]; 4] = Default::default();
    for _ in 0..effort.runs() {
        for ((_, opcode, len), [ours, peer]) in rows.iter().zip(&mut samples) {
            let load = Load { opcode: *opcode, ..Load::writes(*len) };
            ours.push(streams.bytes_per_sec(load, effort.run())? / 1e6);
            peer.push(memcpy.bytes_per_sec(effort.run() / 2) / 1e6);
        }
    }
    let record = |((name, ..), [ours, peer]): (&(&str, u8, usize), &[Samples; 2])| {
        Record::new(*name, scope(pair.placement), ours, "MB/s")
            .of(ENGINE)
            .beside("memcpy of 64 KiB pieces walking 64 MiB", peer)
            .at_least(BAR)
    };
    let mut records: Vec<Record> = rows.iter().zip(&samples).map(record).collect();
    records.push(short_writes(&streams, effort, scope(pair.placement))?);
    Ok(records)
}
