//! The verbs beyond the reliable connection: shared receive queues, unreliable connections, datagrams, XRC, memory windows, and what
//! a guest's kernel needs. Each test runs over two guests on one host and over two guests on two hosts, with the same expectations.

mod gsi;
mod kernel;
mod kernel_keys;
mod leaks;
mod rereg;
mod resize;
mod srq;
mod srq_errors;
mod uc;
mod ud;
mod ud_errors;
mod windows;
mod windows_bound;
mod xrc;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use guest_sim::Layout;
use guest_sim::suite::{Pair, Placement, Runner, World, layout, programs};

/// A test: its name and itself.
pub type Test = (&'static str, fn(&Pair));

/// Runs the verbs suite against masqd, without VMs.
#[derive(Parser)]
#[command(name = "verbs-suite", max_term_width = 100)]
struct Args {
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

fn all_tests() -> Vec<Test> {
    [
        srq::TESTS,
        srq_errors::TESTS,
        uc::TESTS,
        ud::TESTS,
        ud_errors::TESTS,
        gsi::TESTS,
        windows::TESTS,
        windows_bound::TESTS,
        kernel::TESTS,
        kernel_keys::TESTS,
        rereg::TESTS,
        resize::TESTS,
        xrc::TESTS,
        leaks::TESTS,
    ]
    .concat()
}

/// What received packets suffer on the bad link: of all, one in twenty is lost, and so on.
const FAULTS: &str = "drop=0.05,duplicate=0.05,reorder=0.05,corrupt=0.01,seed=7";

fn main() -> ExitCode {
    let args = Args::parse();
    let mut runner = Runner::new(args.only.clone());
    match run(&args, &mut runner) {
        Ok(()) => runner.finish(),
        Err(e) => {
            eprintln!("verbs-suite: the hosts do not start: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, runner: &mut Runner) -> std::io::Result<()> {
    let programs = args.programs.clone().unwrap_or_else(programs);
    let wanted = |placement: Placement| args.placement.as_ref().is_none_or(|p| *p == placement.to_string());
    let mut world = World::start(&programs, layout())?;
    for placement in Placement::ALL.into_iter().filter(|p| wanted(*p)) {
        for test in all_tests() {
            run_one(runner, &world, placement, &placement.to_string(), test);
        }
    }
    drop(world);
    if wanted(Placement::Remote) {
        let faults = vec!["--inject-faults".to_owned(), FAULTS.to_owned()];
        world = World::start(&programs, Layout { masqd_args: faults, ..layout() })?;
        for test in [uc::ON_A_BAD_LINK, ud::ON_A_BAD_LINK, srq::ON_A_BAD_LINK, xrc::ON_A_BAD_LINK].concat() {
            run_one(runner, &world, Placement::Remote, "bad link", test);
        }
    }
    Ok(())
}

fn run_one(runner: &mut Runner, world: &World, placement: Placement, scope: &str, (name, test): Test) {
    let body = || {
        let pair = Pair::open(world, placement);
        test(&pair);
        pair.close().expect("DESTROY_CONTEXT");
    };
    if !runner.case(&format!("{scope}: {name}"), || world.cluster.tails().read(15), body) {
        // What a failed test left behind shall not spoil the next.
        world.stop_guests();
    }
}
