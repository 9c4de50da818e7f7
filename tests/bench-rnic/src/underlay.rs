//! Two network namespaces, joined by a veth pair: beside TCP on the same pair.

use bench_record::{Record, Res, Samples};
use guest_sim::suite::{Pair, Placement};
use vrdma_abi::ring::{SEND_OP_RDMA_READ, SEND_OP_RDMA_WRITE};

use crate::Effort;
use crate::masqd::ENGINE;
use crate::stream::{KIB, Load, MIB, MTU_1024, MTU_4096, Streams, short_writes, tcp, world};

/// MTU of the link, path MTU, and the least share of TCP's speed that writes of 1 MiB reach.
const LINKS: [(u32, u8, f64); 2] = [(9000, MTU_4096, 1.0), (1500, MTU_1024, 0.8)];

/// Writes and reads over links of either MTU.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let mut records = Vec::new();
    for link in LINKS {
        records.extend(over(effort, link)?);
    }
    Ok(records)
}

fn over(effort: &Effort, (link_mtu, path_mtu, bar): (u32, u8, f64)) -> Res<Vec<Record>> {
    let world = world(effort, link_mtu, &[])?;
    let pair = Pair::open(&world, Placement::Remote);
    let streams = Streams::new(&pair, 1, 128, path_mtu)?;
    let tcp = tcp(&world)?;
    let rows = [
        ("write_bw_1MiB", SEND_OP_RDMA_WRITE, MIB, Some(bar)),
        ("write_bw_64KiB", SEND_OP_RDMA_WRITE, 64 * KIB, None),
        ("read_bw_1MiB", SEND_OP_RDMA_READ, MIB, None),
    ];
    let mut samples: [Samples; 3] = Default::default();
    let mut peer = Samples::default();
    for _ in 0..effort.runs() {
        // iperf3 knows whole seconds only.
        peer.push(tcp.bytes_per_sec(effort.run())? / 1e6);
        for ((_, opcode, len, _), ours) in rows.iter().zip(&mut samples) {
            let load = Load { opcode: *opcode, ..Load::writes(*len) };
            ours.push(streams.bytes_per_sec(load, effort.run())? / 1e6);
        }
    }
    let scope = format!("two namespaces, MTU {link_mtu}");
    let record = |((name, _, _, bar), ours): (&(&str, u8, usize, Option<f64>), &Samples)| {
        let record =
            Record::new(*name, &scope, ours, "MB/s").of(ENGINE).beside("iperf3 TCP, same veth", &peer);
        match bar {
            Some(bar) => record.at_least(*bar),
            None => record,
        }
    };
    let mut records: Vec<Record> = rows.iter().zip(&samples).map(record).collect();
    records.push(short_writes(&streams, effort, &scope)?);
    Ok(records)
}
