//! Memory of the RNIC for each queue pair, beside the rings, which are the guest's: what is allocated in this process by
//! creating, connecting and using many of them. Pages of rings are listed there, and counted.

use bench_record::{Record, Res, Samples};

use super::allocated;
use super::rig::{Plan, Rig};
use crate::Effort;

/// The most, in bytes.
const BAR: f64 = 4096.0;

/// Connections that are made and used before anything is measured.
const FIRST: usize = 16;
/// Bytes of a message.
const LEN: usize = 4096;

const PROCESS: &str = "bench-rnic: an engine in it";

/// Of connected queue pairs, on one host and between two.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let count = effort.pick(10_000, 1000);
    Ok([false, true].into_iter().flat_map(|remote| of(remote, count)).collect())
}

fn of(remote: bool, count: usize) -> Vec<Record> {
    let plan = Plan { remote, qps_per_peer: count, real_time: false, ..Plan::default() };
    let mut rig = Rig::unconnected(plan);
    // What the first ones bring about is there for all.
    rig.connect(FIRST);
    rig.write(4 * FIRST, LEN, FIRST);
    let before = allocated::bytes();
    rig.connect(count);
    let connected = allocated::bytes();
    // Each is used once; what it keeps then it keeps for good.
    rig.write(count + FIRST, LEN, FIRST);
    let used = allocated::bytes();
    let ends = 2.0 * (count - FIRST) as f64;
    let scope = if remote { "two hosts" } else { "one host" };
    let record = |name: &str, after: u64| {
        let each = Samples::one(after.saturating_sub(before) as f64 / ends);
        Record::new(name, format!("{scope}, {count} connections"), &each, "bytes").of(PROCESS).at_most(BAR)
    };
    vec![record("memory_per_qp_connected", connected), record("memory_per_qp_used", used)]
}
