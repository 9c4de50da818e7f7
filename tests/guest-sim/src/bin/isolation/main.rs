//! Isolation: what tenants, guests and processes must not be able to do to one another.

mod datagrams;
mod forged;
mod objects;
mod paths;
mod refusals;
mod revocation;
mod tenants;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use guest_sim::suite::{Runner, World, layout, programs};
use guest_sim::{Layout, VnicSpec};

/// A test: its name and itself.
pub type Test = (&'static str, fn(&mut World));

/// Runs the isolation tests against masqd, without VMs.
#[derive(Parser)]
#[command(name = "isolation", max_term_width = 100)]
struct Args {
    /// Run only the tests whose names contain NAME; can be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Where masqd and masqctl are; by default beside this program.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

/// The layout of the suites, and a third tenant, green, whose members may not talk to one another.
fn three_tenants() -> Layout {
    let mut layout = layout();
    for (name, host, n) in [("green-1", 1, 1), ("green-2", 1, 2), ("green-3", 2, 3)] {
        layout.vnics.push(VnicSpec { name, vpc: "green", host, address: [192, 168, 0, n].into() });
    }
    layout.groups = vec!["blue", "red"];
    layout
}

/// Runs tests on hosts of this layout, if any of them are wanted.
fn run(
    runner: &mut Runner,
    programs: &std::path::Path,
    layout: Layout,
    tests: &[Test],
) -> std::io::Result<()> {
    if !tests.iter().any(|(name, _)| runner.wants(name)) {
        return Ok(());
    }
    let mut world = World::start(programs, layout)?;
    for (name, run) in tests {
        let tails = world.cluster.tails();
        if !runner.case(name, move || tails.read(15), || run(&mut world)) {
            world.stop_guests();
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse();
    let programs = args.programs.unwrap_or_else(programs);
    let mut runner = Runner::new(args.only);
    let one_path =
        [tenants::TESTS, refusals::TESTS, revocation::TESTS, forged::TESTS, objects::TESTS, datagrams::TESTS]
            .concat();
    for (layout, tests) in [
        (three_tenants(), one_path.as_slice()),
        (paths::four_paths(layout(), true), paths::TESTS),
        (paths::four_paths(layout(), false), paths::SHARED_TESTS),
    ] {
        if let Err(e) = run(&mut runner, &programs, layout, tests) {
            eprintln!("isolation: the hosts do not start: {e}");
            return ExitCode::FAILURE;
        }
    }
    runner.finish()
}
