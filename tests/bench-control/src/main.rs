//! What the control plane costs, alone and as guests see it.
//!
//! What is compared takes turns, because other work on the machine disturbs both; medians are compared.

mod driver;
mod flow;
mod latency;
mod objects;
mod placement;
mod rates;
mod reevaluation;
mod revocation;
mod rules;
mod scale;
mod setup;
mod verbs;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench_record::{Record, Res, report};
use clap::{Parser, ValueEnum};

use placement::on_one_cpu;
use world::World;

/// Measures the control plane of masqd: pure decisions, and masqd with simulated guests.
#[derive(Parser)]
#[command(name = "bench-control", max_term_width = 100)]
struct Args {
    /// Write the records to FILE, as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where masqd and masqctl are.
    #[arg(long, value_name = "DIR")]
    programs: PathBuf,
    /// Where a masqd with the feature masq-control/bench-bypass is, and masqctl.
    #[arg(long, value_name = "DIR")]
    bypass_programs: PathBuf,
    /// Measure only this; can be given several times.
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// A few runs of each, to see that it works.
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Rules, tracking, directory and desired state, without IO.
    Pure,
    /// Each verb, and set-ups at the same time.
    Verbs,
    /// A set-up with rules and tracking beside one without.
    Setup,
    /// Revocation on two hosts.
    Revocation,
    /// Rates and weights.
    Rates,
}

fn main() -> ExitCode {
    let args = Args::parse();
    report("bench-control", &args.only, args.json.as_deref(), |part| measure(*part, &args))
}

fn measure(part: Part, args: &Args) -> Res<Vec<Record>> {
    let quick = |full: u32, quick: u32| if args.quick { quick } else { full };
    let seconds = |full: f64, quick: f64| Duration::from_secs_f64(if args.quick { quick } else { full });
    match part {
        Part::Pure => Ok(pure(quick(2000, 50))),
        Part::Verbs => {
            let rounds = quick(2000, 50);
            let mut records = on_one_cpu(|| {
                let world = World::start(&args.programs, 1, &[1, 1])?;
                latency::measure(&world, rounds)
            })?;
            let world = World::start(&args.programs, 1, &[1; setup::GUESTS as usize])?;
            records.extend(latency::wherever(&world, rounds)?);
            let run = seconds(3.0, 0.3);
            records.extend(setup::throughput(&world, "17 vNICs", run)?);
            let crowd = quick(50_000, 5000);
            world.apply(&setup::crowd(crowd))?;
            records.extend(setup::throughput(&world, &format!("{crowd} more vNICs"), run)?);
            Ok(records)
        }
        Part::Setup => {
            on_one_cpu(|| setup::overhead(&args.programs, &args.bypass_programs, quick(5, 1), quick(80, 10)))
        }
        Part::Revocation => {
            let rounds = [(1, quick(200, 5)), (100, quick(100, 3)), (10_000, quick(5, 1))];
            revocation::measure(&args.programs, revocation::Effort { rounds, memory_runs: quick(2, 1) })
        }
        Part::Rates => {
            let effort = rates::Effort { limited: seconds(10.0, 1.0), paced: seconds(2.0, 0.5) };
            rates::measure(&args.programs, effort)
        }
    }
}

fn pure(rounds: u32) -> Vec<Record> {
    // What is measured by memory comes first, while the heap is empty.
    let mut records = scale::measure(rounds);
    records.extend(rules::measure(rounds * 10));
    records.extend(reevaluation::measure(rounds / 10));
    records
}
