//! What congestion control costs where nothing is congested: each algorithm beside none.

use bench_record::{Record, Res, Samples};
use guest_sim::suite::{Pair, Placement};
use vrdma_abi::ring::{SEND_OP_RDMA_READ, SEND_OP_RDMA_WRITE};

use crate::Effort;
use crate::masqd::ENGINE;
use crate::stream::{KIB, Load, MIB, MTU_1024, MTU_4096, Streams, world};

/// MTU of the link, and path MTU.
const LINKS: [(u32, u8); 2] = [(9000, MTU_4096), (1500, MTU_1024)];
/// Values of `--congestion`; the others are set beside the first.
const CONTROLS: [&str; 3] = ["none", "swift", "dcqcn"];
/// Connections.
const CONNECTIONS: usize = 64;
/// What is measured: its name, the request, and by how many connections at once.
const ROWS: [(&str, Load, usize); 5] = [
    ("write_bw_1MiB", Load { opcode: SEND_OP_RDMA_WRITE, len: MIB, depth: 16 }, 1),
    ("write_bw_64KiB", Load { opcode: SEND_OP_RDMA_WRITE, len: 64 * KIB, depth: 16 }, 1),
    ("read_bw_1MiB", Load { opcode: SEND_OP_RDMA_READ, len: MIB, depth: 16 }, 1),
    ("write_bw_64KiB_64_qps", Load { opcode: SEND_OP_RDMA_WRITE, len: 64 * KIB, depth: 2 }, CONNECTIONS),
    ("write_rate_8B", Load { opcode: SEND_OP_RDMA_WRITE, len: 8, depth: 16 }, 1),
];

/// Writes and reads over links of either MTU.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let mut records = Vec::new();
    for link in LINKS {
        records.extend(over(effort, link)?);
    }
    Ok(records)
}

fn over(effort: &Effort, (link_mtu, path_mtu): (u32, u8)) -> Res<Vec<Record>> {
    let start = |control| world(effort, link_mtu, &["--congestion", control]);
    let worlds = CONTROLS.into_iter().map(start).collect::<Res<Vec<_>>>()?;
    let pairs: Vec<Pair> = worlds.iter().map(|w| Pair::open(w, Placement::Remote)).collect();
    let streams: Vec<Streams> =
        pairs.iter().map(|p| Streams::new(p, CONNECTIONS, 16, path_mtu)).collect::<Res<_>>()?;
    let mut samples: [[Samples; CONTROLS.len()]; ROWS.len()] = Default::default();
    for _ in 0..effort.runs() {
        for ((_, load, connections), samples) in ROWS.iter().zip(&mut samples) {
            for (streams, samples) in streams.iter().zip(samples) {
                samples.push(streams.run(*connections, *load, effort.run())?.rate() * scale(load).0);
            }
        }
    }
    let mut records = Vec::new();
    for ((name, load, _), [none, others @ ..]) in ROWS.iter().zip(&samples) {
        for (control, ours) in CONTROLS[1..].iter().zip(others) {
            let (name, scope) = (format!("{name}_{control}"), format!("two namespaces, MTU {link_mtu}"));
            records.push(
                Record::new(name, scope, ours, scale(load).1).of(ENGINE).beside("--congestion none", none),
            );
        }
    }
    Ok(records)
}

/// By what messages a second are multiplied, and the unit of the product.
fn scale(load: &Load) -> (f64, &'static str) {
    if load.len < KIB { (1e-3, "k/s") } else { (load.len as f64 / 1e6, "MB/s") }
}
