//! How fast guests transfer through masqd, beside memcpy on one host and beside TCP between two.
//!
//! Ours and the peer's runs take turns, and medians are compared, because other work on the machine disturbs both.

mod memcpy;
mod ours;
mod record;
mod tcp;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use guest_sim::suite::{Pair, Placement, World, layout, programs};

use ours::{MIB, Writes};
use record::{Record, median};

/// The least share of memcpy's speed that writes on one host reach.
const LOCAL_BAR: f64 = 0.4;
/// The least share of TCP's speed that writes between hosts reach.
const REMOTE_BAR: f64 = 0.5;

/// Measures masqd through simulated guests.
#[derive(Parser)]
#[command(name = "sim-bench", max_term_width = 100)]
struct Args {
    /// Write the records to FILE, as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Runs of each measurement, of which the median counts.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Length of a run in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 600)]
    run_ms: u64,
    /// Where masqd and masqctl are; by default beside this program.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let records = match measure(&args) {
        Ok(records) => records,
        Err(e) => {
            eprintln!("sim-bench: {e}");
            return ExitCode::FAILURE;
        }
    };
    for record in &records {
        println!("{record}");
    }
    if let Some(file) = args.json {
        let text = serde_json::to_string_pretty(&records).expect("records are plain data");
        if let Err(e) = std::fs::write(&file, text + "\n") {
            eprintln!("sim-bench: {}: {e}", file.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn measure(args: &Args) -> Result<Vec<Record>, Box<dyn std::error::Error>> {
    let programs = args.programs.clone().unwrap_or_else(programs);
    let world = World::start(&programs, layout())?;
    let run = Duration::from_millis(args.run_ms);
    let local = Pair::open(&world, Placement::Local);
    let remote = Pair::open(&world, Placement::Remote);
    let mut memcpy = memcpy::Memcpy::new();
    let tcp = tcp::Tcp::start(&world.cluster)?;

    // Each row: ours, and the peer of the moment.
    let mut local_runs = [Vec::new(), Vec::new()];
    let mut remote_runs = [Vec::new(), Vec::new()];
    let sizes = [64 << 10, MIB];
    let (local_writes, remote_writes) = (Writes::new(&local), Writes::new(&remote));
    for _ in 0..args.runs {
        for (k, len) in sizes.into_iter().enumerate() {
            local_runs[k].push((local_writes.bytes_per_sec(len, run), memcpy.bytes_per_sec(run)));
            remote_runs[k].push((remote_writes.bytes_per_sec(len, run), tcp.bytes_per_sec(run)?));
        }
    }
    let mut records = Vec::new();
    for (name, runs) in ["write_bw_64KiB", "write_bw_1MiB"].iter().zip(&local_runs) {
        records.push(Record::compared(
            name,
            "one host",
            runs,
            "memcpy, 64 KiB pieces walking 64 MiB",
            LOCAL_BAR,
        ));
    }
    for (name, runs) in ["write_bw_64KiB", "write_bw_1MiB"].iter().zip(&remote_runs) {
        records.push(Record::compared(
            name,
            "two namespaces",
            runs,
            "iperf3 TCP, same veth pair",
            REMOTE_BAR,
        ));
    }
    for (pair, scope) in [(&local, "one host"), (&remote, "two namespaces")] {
        let latency = median((0..args.runs).map(|_| ours::write_latency_us(pair, run)));
        records.push(Record::informative("write_lat_2B", scope, latency, "us"));
        let rate = median((0..args.runs).map(|_| ours::messages_per_sec(pair, run)));
        records.push(Record::informative("write_rate_8B", scope, rate / 1e3, "k/s"));
    }
    Ok(records)
}
