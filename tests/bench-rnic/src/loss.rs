//! Lost packets: masqd drops some of those that it receives, one by one, after the kernel has taken trains apart. Both hosts do, so
//! that acknowledgements are lost as well.

use bench_record::{Record, Res, Samples};
use guest_sim::suite::{Pair, Placement};

use crate::Effort;
use crate::masqd::ENGINE;
use crate::stream::{Load, MIB, MTU_4096, Streams, world};

/// Loss, and the least share of the speed without loss.
const LOSSES: [(&str, &str, f64); 2] =
    [("0.1 %", "drop=0.001,seed=7", 0.9), ("1 %", "drop=0.01,seed=7", 0.6)];
/// Messages on their way.
const DEPTH: usize = 16;

/// Writes of 1 MiB over a link of MTU 9000.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let mut worlds = vec![world(effort, 9000, &[])?];
    for (_, faults, _) in LOSSES {
        worlds.push(world(effort, 9000, &["--inject-faults", faults])?);
    }
    let pairs: Vec<Pair> = worlds.iter().map(|w| Pair::open(w, Placement::Remote)).collect();
    let streams: Vec<Streams> =
        pairs.iter().map(|p| Streams::new(p, 1, DEPTH, MTU_4096)).collect::<Res<_>>()?;
    let load = Load { depth: DEPTH, ..Load::writes(MIB) };
    let mut samples: [Samples; 3] = Default::default();
    for _ in 0..effort.runs() {
        for (streams, samples) in streams.iter().zip(&mut samples) {
            samples.push(streams.bytes_per_sec(load, effort.run())? / 1e6);
        }
    }
    let [lossless, lossy @ ..] = samples;
    let record = |((loss, _, bar), ours): (&(&str, &str, f64), &Samples)| {
        Record::new("write_bw_1MiB_with_loss", format!("two namespaces, {loss} lost"), ours, "MB/s")
            .of(ENGINE)
            .beside("no loss", &lossless)
            .at_least(*bar)
    };
    Ok(LOSSES.iter().zip(&lossy).map(record).collect())
}
