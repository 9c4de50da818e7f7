//! Instructions, counted by callgrind: what time does not show on a machine that others use as well.
//!
//! This program runs itself under valgrind. Collecting begins and ends where some functions, known by name, are entered and left:
//! turns of the engine that is measured, without what the fabric does within them. Processors differ in what valgrind
//! lets a program see: it has no AVX-512, so a checksum takes more instructions there than elsewhere.

use std::process::{Command, Stdio};

use bench_record::{Record, Res, Samples, exponent};
use clap::ValueEnum;

use vrdma_counted::counted::{Workload, run as run_library};

use super::packet::Floor;
use super::rig::{MESSAGE, Plan, Rig};
use crate::Effort;
use crate::stream::MIB;

/// Something to count, of some size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Writes of 8 bytes on one host, over so many queue pairs in turns.
    Qps,
    /// The same to another host, at the sender.
    QpsSending,
    /// The same, at the receiver.
    QpsReceiving,
    /// Writes through so many regions on either side, in turns.
    Mrs,
    /// Writes to so many guests of the same host, in turns.
    Guests,
    /// Writes to so many guests of another host, each with an address of its own, in turns.
    Peers,
    /// Writes of so many bytes on one host.
    Bytes,
    /// The same to another host, at the sender.
    BytesSending,
    /// The same, at the receiver.
    BytesReceiving,
    /// Checksum and copy of packets of 4 KiB, so many MiB.
    Floor,
    /// The guest's library: posts writes of so many bytes, and polls their completions.
    Library,
    /// Its posting alone.
    Post,
    /// The same, of data that stands in the request.
    PostInline,
    /// The same, in parts (`ibv_wr_start`).
    PostInParts,
    /// Its polling alone.
    Poll,
}

/// One run under callgrind.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// What is counted.
    pub case: Case,
    /// Of which size.
    pub size: usize,
    /// Paths of the queue pair.
    pub paths: usize,
    /// Messages that are posted at once; by default as many as suit their length.
    pub depth: Option<usize>,
}

impl Run {
    /// With one path.
    pub fn new(case: Case, size: usize) -> Self {
        Run { case, size, paths: 1, depth: None }
    }
}

impl Case {
    /// The functions in which it is counted.
    fn functions(self) -> &'static str {
        match self {
            Case::Library => "*bench_library_*",
            Case::Post | Case::PostInline | Case::PostInParts => "*bench_library_post*",
            Case::Poll => "*bench_library_poll*",
            _ => "*bench_measured_*",
        }
    }
}

const PROCESS: &str = "bench-rnic under callgrind: turns of an engine";
/// The most that instructions may grow with queue pairs, regions and peers: the exponent.
const FLAT: f64 = 0.1;
/// The most that they may grow with a message's bytes.
const LINEAR: f64 = 1.05;
/// Writes that are counted.
const WRITES: usize = 2048;
/// Writes that are posted at once: to as many queue pairs, where there are more.
const DEPTH: usize = 32;
/// Sizes double so often.
const DOUBLINGS: u32 = 5;

/// The exponents, and what single operations and packets cost.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let growing = [
        ("qps", Case::Qps, "one host", effort.pick(256, 64), Some(FLAT)),
        ("qps", Case::QpsSending, "two hosts, sending", effort.pick(256, 64), Some(FLAT)),
        ("qps", Case::QpsReceiving, "two hosts, receiving", effort.pick(256, 64), Some(FLAT)),
        ("mrs", Case::Mrs, "one host", effort.pick(256, 64), Some(FLAT)),
        ("guests", Case::Guests, "one host", 32, None),
        ("peers", Case::Peers, "two hosts, sending", 32, Some(FLAT)),
        ("bytes", Case::Bytes, "one host", 64 << 10, Some(LINEAR)),
        ("bytes", Case::BytesSending, "two hosts, sending", 64 << 10, Some(LINEAR)),
        ("bytes", Case::BytesReceiving, "two hosts, receiving", 64 << 10, Some(LINEAR)),
    ];
    let mut records = Vec::new();
    for (what, case, scope, first, bar) in growing {
        // What is counted does not depend on what else runs.
        let points = std::thread::scope(|scope| {
            let sizes = (0..=DOUBLINGS).map(|k| first << k);
            let counted =
                sizes.map(|n| (n, scope.spawn(move || count(&Run::new(case, n))))).collect::<Vec<_>>();
            let point = |(n, it): (usize, std::thread::ScopedJoinHandle<'_, Res<f64>>)| {
                Ok((n as f64, it.join().map_err(|_| "a count has failed")??))
            };
            counted.into_iter().map(point).collect::<Res<Vec<_>>>()
        })?;
        let [(least, at_least), .., (most, at_most)] = points.as_slice() else {
            return Err("too few".into());
        };
        let scope = format!("{scope}, {least} to {most}: {at_least:.0} to {at_most:.0}");
        let exponent = Samples::one(exponent(&points));
        let name = format!("instructions_exponent_{what}");
        let record = Record::new(name, scope, &exponent, "").of(PROCESS);
        records.push(match bar {
            Some(bar) => record.at_most(bar),
            None => record,
        });
    }
    let operation = Samples::one(count(&Run::new(Case::Qps, 1))?);
    records.push(Record::new("instructions_write_8B", "one host", &operation, "").of(PROCESS));
    let floor = Samples::one(count(&Run::new(Case::Floor, 64))?);
    for (scope, case) in [("sending", Case::BytesSending), ("receiving", Case::BytesReceiving)] {
        let packets = (1 << 20) as f64 / 4096.0;
        let each = Samples::one(count(&Run::new(case, 1 << 20))? / packets);
        records.push(
            Record::new("instructions_packet_4KiB", scope, &each, "")
                .of(PROCESS)
                .beside("crc32fast and memcpy of 4 KiB", &floor),
        );
    }
    Ok(records)
}

/// Instructions of one operation.
pub fn count(run: &Run) -> Res<f64> {
    let Run { case, size, paths, depth } = *run;
    let depth = depth.map(|depth| ["--depth".to_owned(), depth.to_string()]);
    let name = case.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default();
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={}", case.functions()))
        .arg("--toggle-collect=*bench_fabric_aside*")
        .arg(std::env::current_exe()?)
        .args(["--count", &name, "--size", &size.to_string(), "--paths", &paths.to_string()])
        .args(depth.into_iter().flatten())
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("valgrind: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{name}, {size}: {said}").into());
    }
    let collected = said.lines().find_map(|line| line.split_once("Collected : "));
    let (_, collected) = collected.ok_or_else(|| format!("callgrind has counted nothing: {said}"))?;
    let operations: f64 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    let instructions: f64 = collected.trim().parse()?;
    if instructions < operations {
        return Err(format!("{name}, {size}: callgrind does not find what it is to count: {said}").into());
    }
    Ok(instructions / operations)
}

/// What is run under callgrind; returns how many operations were done where it counts.
pub fn run(run: Run) -> usize {
    let Run { case, size, paths, depth } = run;
    let plan = Plan { real_time: false, paths, message: MESSAGE.max(size), ..Plan::default() };
    let (plan, engine, len) = match case {
        Case::Qps => (Plan { qps_per_peer: size, ..plan }, 0, 8),
        Case::QpsSending => (Plan { remote: true, qps_per_peer: size, ..plan }, 0, 8),
        Case::QpsReceiving => (Plan { remote: true, qps_per_peer: size, ..plan }, 1, 8),
        Case::Mrs => (Plan { mrs: size, ..plan }, 0, 64),
        Case::Guests => (Plan { peers: size, ..plan }, 0, 8),
        Case::Peers => (Plan { remote: true, peers: size, ..plan }, 0, 8),
        Case::Bytes => (plan, 0, size),
        Case::BytesSending => (Plan { remote: true, ..plan }, 0, size),
        Case::BytesReceiving => (Plan { remote: true, ..plan }, 1, size),
        Case::Floor => {
            let mut floor = Floor::new();
            (0..size).for_each(|_| floor.pass());
            return size * 256;
        }
        Case::Library | Case::Post | Case::PostInline | Case::PostInParts | Case::Poll => {
            let (bytes, messages) = (size as u32, if size > 4096 { 16 } else { WRITES });
            let inline = case == Case::PostInline;
            let in_parts = case == Case::PostInParts;
            run_library(&Workload { paths: paths as u32, bytes, inline, in_parts, messages });
            return messages;
        }
    };
    let mut rig = Rig::new(plan);
    let (writes, usual) = if len > 4096 { ((16 * MIB / len).max(1), 2) } else { (WRITES.max(size), DEPTH) };
    let depth = depth.unwrap_or(usual);
    // Each queue pair and region has been used before it counts.
    rig.write(writes, len.min(16 * MIB), depth);
    rig.measured = Some(engine);
    rig.write(writes, len, depth);
    writes
}
