//! Guests that are hostile, broken or dying, while other guests' data must stay right and masqd alive.

mod connection;
mod control;
mod crash;
mod flood;
mod memory;
mod rings;
mod segments;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use guest_sim::suite::{Runner, Side, Victims, World, layout, programs};

/// A test: its name and itself.
pub type Test = (&'static str, fn(&mut World));

/// Where a hostile guest is: on the host of the victims' senders, or on that of one of their receivers.
pub const ATTACKERS: [&str; 2] = ["blue-4", "blue-5"];

/// Runs hostile guests against masqd, without VMs.
#[derive(Parser)]
#[command(name = "hostile", max_term_width = 100)]
struct Args {
    /// Run only the tests whose names contain NAME; can be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Where masqd and masqctl are; by default beside this program.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Be the guest that a test kills: connect two guests and write between them without end.
    #[arg(long, hide = true, num_args = 2, value_names = ["SOCKET", "SOCKET"])]
    doomed: Option<Vec<PathBuf>>,
}

/// A pair on one host and one on two.
fn start_victims(world: &World) -> Victims {
    let pairs = [("victims on one host", "red-1", "red-2"), ("victims on two hosts", "red-4", "red-3")];
    Victims::start(pairs.map(|(name, from, to)| (name, Side::open(world, from), Side::open(world, to))))
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(sockets) = args.doomed {
        return crash::doomed(&sockets[0], &sockets[1]);
    }
    let programs = args.programs.unwrap_or_else(programs);
    let mut world = match World::start(&programs, layout()) {
        Ok(world) => world,
        Err(e) => {
            eprintln!("hostile: the hosts do not start: {e}");
            return ExitCode::FAILURE;
        }
    };
    let mut runner = Runner::new(args.only);
    let tests =
        [control::TESTS, connection::TESTS, memory::TESTS, rings::TESTS, segments::TESTS, flood::TESTS]
            .concat();
    let mut victims = start_victims(&world);
    for (name, run) in tests {
        let tails = world.cluster.tails();
        let fine = runner.case(
            name,
            move || tails.read(15),
            || {
                let before = victims.rounds();
                run(&mut world);
                for vnic in ATTACKERS {
                    world.stop_guest(vnic);
                }
                victims.assert_progress(&before);
                for host in [1, 2] {
                    assert!(world.cluster.masqd_runs(host), "masqd on host {host} has died");
                }
            },
        );
        if !fine {
            // The victims may be what failed.
            drop(victims);
            world.stop_guests();
            for host in [1, 2] {
                if !world.cluster.masqd_runs(host) {
                    world.cluster.start_masqd(host).expect("masqd starts again");
                }
            }
            victims = start_victims(&world);
        }
    }
    drop(victims);
    for (name, run) in crash::TESTS {
        let tails = world.cluster.tails();
        runner.case(name, move || tails.read(15), || run(&mut world));
    }
    runner.finish()
}
