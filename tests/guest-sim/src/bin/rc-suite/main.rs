//! The RC suite: what a reliable connection does, tested over two guests on one host and over two guests on two hosts,
//! with the same expectations.

mod atomics;
mod errors;
mod events;
mod gone;
mod limits;
mod matrix;
mod ops;
mod order;
mod protection;
mod rnr;
mod scale;
mod sizes;
mod states;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use guest_sim::suite::{Pair, Placement, Runner, World};

use matrix::Cell;

/// One test.
pub struct Test {
    /// Its name.
    pub name: &'static str,
    /// What it is the test of.
    pub covers: &'static [Cell],
    /// Where it runs.
    pub placements: &'static [Placement],
    /// The test itself; it panics when it fails.
    pub run: fn(&Pair),
}

impl Test {
    /// A test of both placements.
    pub const fn new(name: &'static str, covers: &'static [Cell], run: fn(&Pair)) -> Self {
        Test { name, covers, placements: &Placement::ALL, run }
    }

    /// A test of two hosts only.
    pub const fn remote(name: &'static str, covers: &'static [Cell], run: fn(&Pair)) -> Self {
        Test { name, covers, placements: &[Placement::Remote], run }
    }
}

fn all_tests() -> Vec<Test> {
    const FILES: [fn() -> Vec<Test>; 12] = [
        ops::tests,
        sizes::tests,
        order::tests,
        atomics::tests,
        limits::tests,
        rnr::tests,
        events::tests,
        states::tests,
        errors::tests,
        protection::tests,
        scale::tests,
        gone::tests,
    ];
    FILES.iter().flat_map(|tests| tests()).collect()
}

/// Runs the RC suite against masqd, without VMs.
#[derive(Parser)]
#[command(name = "rc-suite", max_term_width = 100)]
struct Args {
    /// Print what is tested where, and run nothing.
    #[arg(long)]
    list: bool,
    /// Run only the tests whose names contain NAME; can be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Run only on one host (local) or between two (remote).
    #[arg(long, value_parser = ["local", "remote"])]
    placement: Option<String>,
    /// Where masqd and masqctl are; by default beside this program.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let tests = all_tests();
    if args.list {
        return if matrix::print(&tests) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let programs = args.programs.unwrap_or_else(guest_sim::suite::programs);
    let world = match World::start(&programs, guest_sim::suite::layout()) {
        Ok(world) => world,
        Err(e) => {
            eprintln!("rc-suite: the hosts do not start: {e}");
            return ExitCode::FAILURE;
        }
    };
    let mut runner = Runner::new(args.only);
    for placement in Placement::ALL {
        if args.placement.as_ref().is_some_and(|p| *p != placement.to_string()) {
            continue;
        }
        for test in tests.iter().filter(|t| t.placements.contains(&placement)) {
            let body = || {
                let pair = Pair::open(&world, placement);
                (test.run)(&pair);
                for cell in test.covers {
                    assert!(cell.was_seen(&pair), "it is said to cover {cell:?}, but that did not happen");
                }
                pair.close().expect("DESTROY_CONTEXT");
            };
            let name = format!("{placement}: {}", test.name);
            if !runner.case(&name, || world.cluster.tails().read(15), body) {
                // What a failed test left behind shall not spoil the next.
                world.stop_guests();
            }
        }
    }
    runner.finish()
}
