//! How fast the software RNIC is, what it costs, and how it scales.
//!
//! What is compared takes turns, because other work on the machine disturbs both; medians are compared. Each part is one
//! file; those that measure masqd go through guests without VMs (`guest_sim`), the others drive an engine in this process.

mod congestion;
mod crowd;
mod fair;
mod flows;
mod host;
mod idle;
mod inside;
mod link;
mod loss;
mod masqd;
mod memcpy;
mod mice;
mod multipath;
mod stream;
mod tcp;
mod underlay;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench_record::{Record, Res, report};
use clap::{Parser, ValueEnum};

use inside::count::{Case, Run};

#[global_allocator]
static ALLOCATOR: inside::allocated::Counting = inside::allocated::Counting;

/// Measures the software RNIC: in masqd through simulated guests, and in this process.
#[derive(Parser)]
#[command(name = "bench-rnic", max_term_width = 100)]
struct Args {
    /// Write the records to FILE, as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where masqd and masqctl are; by default beside this program.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Measure only this; can be given several times.
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// A few short runs of each, to see that it works.
    #[arg(long)]
    quick: bool,
    /// Do what is counted, and tell how many operations that were: what runs under callgrind.
    #[arg(long, value_name = "CASE", hide = true, requires = "size")]
    count: Option<Case>,
    /// Of which size.
    #[arg(long, value_name = "N", hide = true)]
    size: Option<usize>,
    /// Over so many paths.
    #[arg(long, value_name = "N", hide = true, default_value_t = 1)]
    paths: usize,
    /// So many at once.
    #[arg(long, value_name = "N", hide = true)]
    depth: Option<usize>,
}

/// How much to measure.
struct Effort {
    /// Where masqd and masqctl are.
    programs: PathBuf,
    quick: bool,
}

impl Effort {
    /// Something that is less in a quick run.
    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// How often each measurement is repeated; the median counts.
    fn runs(&self) -> u32 {
        self.pick(7, 2)
    }

    /// How long each of them lasts.
    fn run(&self) -> Duration {
        Duration::from_millis(self.pick(600, 150))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Writes and reads on one host, beside memcpy.
    Host,
    /// Writes and reads between two network namespaces, beside TCP.
    Underlay,
    /// Lost packets, beside none.
    Loss,
    /// Many flows at the same time, beside one.
    Flows,
    /// What congestion control costs where nothing is congested.
    Congestion,
    /// Flows that share a slow link, with and without congestion control.
    Fair,
    /// Connections over several slow links: WRITEs of many lengths over 1 to all of them.
    Multipath,
    /// READs and SENDs over several slow links.
    PathVerbs,
    /// Short messages beside a long one, on one path and over all.
    PathMice,
    /// Paths that are slower than others, become slow, or come and go.
    UnevenPaths,
    /// One of several paths dies in the middle of a message.
    DeadPath,
    /// Several paths that lose packets, and chunks of several sizes.
    PathLoss,
    /// How long a work request may be before the network loses some of it.
    PathChunks,
    /// Instructions of the guest's library and of an engine, by number of paths.
    CpuPerGb,
    /// Thousands of connected queue pairs, few of which do something.
    Crowd,
    /// Short messages beside one of a GiB.
    Mice,
    /// Hosts whose guests do nothing.
    Idle,
    /// An engine's time for packets of 4 KiB, beside checksum and copy.
    Packet,
    /// An engine's time for writes of 8 bytes.
    Operation,
    /// Memory for each queue pair.
    Memory,
    /// Instructions, and how they grow.
    Count,
}

fn measure(part: Part, effort: &Effort) -> Res<Vec<Record>> {
    match part {
        Part::Host => host::measure(effort),
        Part::Underlay => underlay::measure(effort),
        Part::Loss => loss::measure(effort),
        Part::Flows => flows::measure(effort),
        Part::Congestion => congestion::measure(effort),
        Part::Fair => fair::measure(effort),
        Part::Multipath => multipath::measure(effort),
        Part::PathVerbs => multipath::measure_verbs(effort),
        Part::PathMice => multipath::measure_mice(effort),
        Part::UnevenPaths => multipath::measure_uneven(effort),
        Part::PathLoss => multipath::measure_loss(effort),
        Part::PathChunks => multipath::measure_chunks(effort),
        Part::DeadPath => multipath::measure_death(effort),
        Part::CpuPerGb => inside::paths::measure(effort),
        Part::Crowd => crowd::measure(effort),
        Part::Mice => mice::measure(effort),
        Part::Idle => idle::measure(effort),
        Part::Packet => inside::packet::measure(effort),
        Part::Operation => inside::operation::measure(effort),
        Part::Memory => inside::memory::measure(effort),
        Part::Count => inside::count::measure(effort),
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let (Some(case), Some(size)) = (args.count, args.size) {
        println!("{}", inside::count::run(Run { case, size, paths: args.paths, depth: args.depth }));
        return ExitCode::SUCCESS;
    }
    let programs = args.programs.unwrap_or_else(guest_sim::suite::programs);
    let effort = Effort { programs, quick: args.quick };
    report("bench-rnic", &args.only, args.json.as_deref(), |part| measure(*part, &effort))
}
