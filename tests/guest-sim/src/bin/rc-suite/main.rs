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
mod random;
mod rnr;
mod scale;
mod sizes;
mod states;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use guest_sim::Layout;
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
    const FILES: [fn() -> Vec<Test>; 13] = [
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
        random::tests,
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

/// Tests that run between two hosts in other ways as well ([`OTHER_LINKS`]): those of data and order. The others
/// expect that nothing happens for a while, or take a lost packet's timeout too often.
const ON_OTHER_LINKS: &[&str] = &[
    "send",
    "send_with_imm",
    "write",
    "write_with_imm",
    "read",
    "cmp_swap",
    "fetch_add",
    "bind_and_local_inv",
    "send_with_inv",
    "mixed_operations_in_one_burst",
    "fence_waits_for_reads",
    "sizes_of_send",
    "sizes_of_write",
    "sizes_of_read",
    "a_write_is_seen_before_the_send_behind_it",
    "a_read_sees_the_write_before_it",
    "receives_are_taken_in_order",
    "one_counter_from_two_queue_pairs",
    "sixteen_reads_at_a_time",
    "a_burst_with_few_receives",
    "packet_numbers_that_wrap",
    "random_operations_equal_a_model",
    "two_hundred_queue_pairs_at_once",
];

/// Those ways, and what masqd is told for them. On a bad link, of all received packets one in twenty is lost, and so on.
const OTHER_LINKS: [(&str, &str, &str); 2] = [
    ("bad link", "--inject-faults", "drop=0.05,duplicate=0.05,reorder=0.05,corrupt=0.01,seed=7"),
    ("single datagrams", "--udp", "plain"),
];

fn main() -> ExitCode {
    let args = Args::parse();
    let tests = all_tests();
    if args.list {
        return if matrix::print(&tests) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let mut runner = Runner::new(args.only.clone());
    match run(&args, &tests, &mut runner) {
        Ok(()) => runner.finish(),
        Err(e) => {
            eprintln!("rc-suite: the hosts do not start: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, tests: &[Test], runner: &mut Runner) -> std::io::Result<()> {
    let programs = args.programs.clone().unwrap_or_else(guest_sim::suite::programs);
    let wanted = |placement: Placement| args.placement.as_ref().is_none_or(|p| *p == placement.to_string());
    let world = World::start(&programs, guest_sim::suite::layout())?;
    for placement in Placement::ALL.into_iter().filter(|p| wanted(*p)) {
        for test in tests.iter().filter(|t| t.placements.contains(&placement)) {
            run_one(runner, &world, placement, &placement.to_string(), test);
        }
    }
    drop(world);
    if wanted(Placement::Remote) {
        for (scope, option, value) in OTHER_LINKS {
            let masqd_args = vec![option.to_owned(), value.to_owned()];
            let world = World::start(&programs, Layout { masqd_args, ..guest_sim::suite::layout() })?;
            for name in ON_OTHER_LINKS {
                let test =
                    tests.iter().find(|t| t.name == *name).expect("the list names tests that there are");
                run_one(runner, &world, Placement::Remote, scope, test);
            }
        }
    }
    Ok(())
}

fn run_one(runner: &mut Runner, world: &World, placement: Placement, scope: &str, test: &Test) {
    let body = || {
        let pair = Pair::open(world, placement);
        (test.run)(&pair);
        for cell in test.covers {
            assert!(cell.was_seen(&pair), "it is said to cover {cell:?}, but that did not happen");
        }
        pair.close().expect("DESTROY_CONTEXT");
    };
    if !runner.case(&format!("{scope}: {}", test.name), || world.cluster.tails().read(15), body) {
        // What a failed test left behind shall not spoil the next.
        world.stop_guests();
    }
}
