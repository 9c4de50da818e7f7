//! The VPC control plane, as a controller sees it through masqctl and tenants through their devices: real masqds, an etcd,
//! simulated guests.

mod attach;
mod ctl;
mod datagrams;
mod link;
mod quotas;
mod random_rules;
mod revocation;
mod rules;
mod spoofing;
mod store;
mod stream;
mod tenant;
mod three_hosts;
mod undisturbed;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use guest_sim::Layout;
use guest_sim::suite::{Runner, World, programs};

/// A test: its name and itself.
pub type Test = (&'static str, fn(&World));

/// Runs the tests of the VPC control plane against masqd, without VMs.
#[derive(Parser)]
#[command(name = "vpc", max_term_width = 100)]
struct Args {
    /// Run only the tests whose names contain NAME; can be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Where masqd and masqctl are; by default beside this program.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let programs = args.programs.unwrap_or_else(programs);
    let mut runner = Runner::new(args.only);
    let on_two = [
        revocation::TESTS,
        undisturbed::TESTS,
        rules::TESTS,
        random_rules::TESTS,
        spoofing::TESTS,
        datagrams::TESTS,
        quotas::TESTS,
        attach::TESTS,
        store::TESTS,
    ];
    for (hosts, tests) in [(2, on_two.concat()), (3, three_hosts::TESTS.to_vec())] {
        if let Err(e) = run(&mut runner, &programs, hosts, &tests) {
            eprintln!("vpc: the hosts do not start: {e}");
            return ExitCode::FAILURE;
        }
    }
    runner.finish()
}

/// Runs tests on a cluster of this many hosts. Each finds it as the one before did: bystanders alone.
fn run(runner: &mut Runner, programs: &Path, hosts: u8, tests: &[Test]) -> std::io::Result<()> {
    if !tests.iter().any(|(name, _)| runner.wants(name)) {
        return Ok(());
    }
    let layout = || Layout { hosts, ..Layout::default() };
    let mut world = World::start(programs, layout())?;
    for (name, test) in tests.iter().filter(|(name, _)| runner.wants(name)).copied().collect::<Vec<_>>() {
        let tails = world.cluster.tails();
        let passed = runner.case(
            name,
            move || tails.read(25),
            || {
                test(&world);
                world.cluster.apply(&[], 20).expect("what the test has made goes away");
            },
        );
        if !passed {
            world = World::start(programs, layout())?;
        }
    }
    Ok(())
}
