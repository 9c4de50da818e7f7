//! What a host takes whose guests have connected queue pairs and do nothing.

use std::time::{Duration, Instant};

use bench_record::{Record, Res, Samples};
use guest_sim::suite::{Pair, Placement};

use crate::Effort;
use crate::masqd::cpu;
use crate::stream::{KIB, Load, MTU_4096, Streams, world};

/// Connections; each has both ends on the host.
const CONNECTIONS: usize = 500;
/// The most of a processor, in percent.
const BAR: f64 = 1.0;

/// 1,000 queue pairs of two guests.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let world = world(effort, 9000, &[])?;
    let pair = Pair::open(&world, Placement::Local);
    let streams = Streams::new(&pair, CONNECTIONS, 2, MTU_4096)?;
    // Each has done something, and nothing since.
    streams.run(CONNECTIONS, Load { depth: 2, ..Load::writes(4 * KIB) }, Duration::from_millis(100))?;
    std::thread::sleep(Duration::from_millis(500));
    let (mut all, mut engines) = (Samples::default(), Samples::default());
    for _ in 0..effort.pick(5, 2) {
        let (start, before) = (Instant::now(), cpu(&world.cluster, 1)?);
        std::thread::sleep(Duration::from_millis(effort.pick(2000, 500)));
        let after = cpu(&world.cluster, 1)?;
        let percent = |used: Duration| used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
        all.push(percent(after.0 - before.0));
        engines.push(percent(after.1 - before.1));
    }
    let scope = format!("one host, {} idle queue pairs", 2 * CONNECTIONS);
    Ok(vec![
        Record::new("idle_cpu", &scope, &all, "% of CPU").of("masqd, all threads").at_most(BAR),
        Record::new("idle_cpu_engine", &scope, &engines, "% of CPU").of("masqd, engine threads").at_most(BAR),
    ])
}
