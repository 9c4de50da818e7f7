//! What an engine takes for a write of eight bytes.

use bench_record::{Record, Res, Samples};

use super::allocated;
use super::rig::{Plan, Rig};
use crate::Effort;

const LEN: usize = 8;
/// The most for a write on one host, in nanoseconds.
const BAR: f64 = 300.0;

const PROCESS: &str = "bench-rnic: an engine in it";

/// On one host, with many posted at once and with one after another; between two, at either end.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let count = effort.pick(200_000, 20_000);
    let time = |rig: &mut Rig, engine: usize, depth: usize| {
        rig.write(1000, LEN, depth);
        let mut samples = Samples::default();
        (0..effort.runs()).for_each(|_| samples.push(rig.time(engine, count, LEN, depth)));
        samples
    };
    let mut local = Rig::new(Plan::default());
    let mut remote = Rig::new(Plan { remote: true, ..Plan::default() });
    let record = |name, scope, samples: &Samples| Record::new(name, scope, samples, "ns").of(PROCESS);
    let mut records = vec![
        record("engine_time_write_8B", "one host, 32 posted at once", &time(&mut local, 0, 32)).at_most(BAR),
        record("engine_time_write_8B", "one host, one after another", &time(&mut local, 0, 1)),
        record("engine_time_write_8B", "sender, 32 posted at once", &time(&mut remote, 0, 32)),
        record("engine_time_write_8B", "receiver, 32 posted at once", &time(&mut remote, 1, 32)),
    ];
    for (scope, rig) in [("one host", &mut local), ("two hosts, both engines", &mut remote)] {
        rig.write(10_000, LEN, 32);
        let before = allocated::calls();
        rig.write(count, LEN, 32);
        let each = Samples::one((allocated::calls() - before) as f64 / count as f64);
        let scope = format!("{scope}, write of 8 B");
        records.push(Record::new("allocations_per_operation", scope, &each, "").of(PROCESS).at_most(0.0));
    }
    Ok(records)
}
