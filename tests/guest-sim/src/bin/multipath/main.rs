//! Connections over four paths of the underlay: two hosts with four links between them.

mod errors;
mod failure;
mod messages;
mod one_path;
mod order;
mod sends;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use guest_sim::Layout;
use guest_sim::suite::{Conn, Runner, Setup, Side, World, layout, programs};
use guest_sim::verbs::{Mr, QpCaps, wr};
use vrdma_abi::ring::{SEND_OP_RDMA_READ, SEND_OP_RDMA_WRITE, SEND_OP_RDMA_WRITE_IMM, Sge};
use vrdma_rings::SendRequest;

/// A test: its name and itself.
pub type Test = (&'static str, fn(&World));

/// Paths between the hosts.
pub const PATHS: u8 = 4;

/// Paths where there are as many as there can be.
pub const MOST_PATHS: u8 = 16;

/// Bytes of a chunk, if nothing else is said.
pub const CHUNK: usize = 64 << 10;

/// Bytes of the end of a message, which goes by the send queue.
pub const TAIL: usize = 4096;

/// Runs connections over several paths against masqd, without VMs.
#[derive(Parser)]
#[command(name = "multipath", max_term_width = 100)]
struct Args {
    /// Run only the tests whose names contain NAME; can be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Where masqd and masqctl are; by default beside this program.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

/// Two guests on two hosts.
pub struct Ends {
    /// Mostly the one that asks.
    pub a: Side,
    /// Mostly the one that answers.
    pub b: Side,
}

impl Ends {
    /// Those of the tenant blue, with four paths.
    pub fn open(world: &World) -> Self {
        Self::of(world, "blue-1", "blue-3")
    }

    /// Any two.
    pub fn of(world: &World, a: &str, b: &str) -> Self {
        Ends { a: Side::open(world, a), b: Side::open(world, b) }
    }

    /// Two connected queue pairs that may use several paths.
    pub fn connect(&self) -> Conn {
        self.connect_with(&Setup::caps(QpCaps::multipath()))
    }

    /// Two connected queue pairs.
    pub fn connect_with(&self, setup: &Setup) -> Conn {
        let conn = Conn { a: self.a.qp(&setup.caps_a, 512), b: self.b.qp(&setup.caps_b, 512) };
        conn.connect_between(&self.a, &self.b, setup);
        conn
    }
}

impl Drop for Ends {
    /// Nothing of it is to use memory that the next test has.
    fn drop(&mut self) {
        for side in [&self.a, &self.b] {
            let _ = side.ctx.destroy();
        }
    }
}

/// A chunk of `len` bytes, at the same offset of both regions.
pub fn chunk(opcode: u8, here: &Mr, there: &Mr, offset: usize, len: usize) -> (SendRequest, Sge) {
    (SendRequest { flags: 0, ..wr::rdma(opcode, 0, there, offset) }, here.sge(offset, len))
}

/// Posts a large message as a guest's library does: chunks, what waits for them, and its end. Returns how many chunks.
pub fn post_message(
    c: &Conn,
    opcode: u8,
    wr_id: u64,
    (here, there): (&Mr, &Mr),
    at: usize,
    len: usize,
) -> u32 {
    let end = at + len - TAIL;
    let mut until = c.a.chunk_indexes().0;
    let first = until;
    for offset in (at..end).step_by(CHUNK) {
        let part = if opcode == SEND_OP_RDMA_WRITE_IMM { SEND_OP_RDMA_WRITE } else { opcode };
        let (request, sge) = chunk(part, here, there, offset, CHUNK.min(end - offset));
        until = c.a.post_chunk(&request, &[sge]).expect("room for a chunk");
    }
    c.a.post_wait(wr_id, until).expect("room to wait");
    let counts_all = matches!(opcode, SEND_OP_RDMA_READ | SEND_OP_RDMA_WRITE_IMM);
    let before_bytes = if counts_all { (end - at) as u32 } else { 0 };
    let tail = SendRequest { before_bytes, ..wr::rdma(opcode, wr_id, there, end) };
    c.a.post_send(&tail, &[here.sge(end, TAIL)]).expect("room for the end");
    until.wrapping_sub(first)
}

/// What the hosts have sent over each of so many paths.
pub fn sent(world: &World, paths: u8) -> Vec<[u64; 2]> {
    let of = |path, host| world.cluster.sent_bytes(host, path).expect("the link's counters");
    (0..paths).map(|path| [of(path, 1), of(path, 2)]).collect()
}

fn start(programs: &std::path::Path, paths: u8, masqd_args: Vec<String>) -> std::io::Result<World> {
    let mut fewer_paths = vec![("blue-5", 1)];
    fewer_paths.extend((paths == MOST_PATHS).then_some(("blue-2", 10)));
    // As many links as hosts seldom have: these have one each, and switches behind it.
    let switches = paths == MOST_PATHS;
    World::start(programs, Layout { paths, fewer_paths, switches, masqd_args, ..layout() })
}

fn main() -> ExitCode {
    let args = Args::parse();
    let programs = args.programs.unwrap_or_else(programs);
    let mut runner = Runner::new(args.only);
    // What masqd says of a guest is bounded: those that look for a line come before those that provoke many.
    let clean = [one_path::TESTS, failure::TESTS, messages::TESTS, order::TESTS, sends::TESTS, errors::TESTS]
        .concat();
    let faults = ["--inject-faults", "drop=0.01,duplicate=0.01,reorder=0.02,corrupt=0.005,seed=7"];
    let engines = ["--engines", "2"];
    for (paths, args, tests) in [
        (PATHS, vec![], clean),
        (MOST_PATHS, vec![], messages::MANY_PATHS_TESTS.to_vec()),
        (PATHS, faults.map(String::from).to_vec(), [messages::LOSSY_TESTS, sends::LOSSY_TESTS].concat()),
        (PATHS, engines.map(String::from).to_vec(), [messages::ENGINE_TESTS, sends::ENGINE_TESTS].concat()),
    ] {
        if !tests.iter().any(|(name, _)| runner.wants(name)) {
            continue;
        }
        let mut world = match start(&programs, paths, args.clone()) {
            Ok(world) => world,
            Err(e) => {
                eprintln!("multipath: the hosts do not start: {e}");
                return ExitCode::FAILURE;
            }
        };
        for (name, test) in tests {
            let tails = world.cluster.tails();
            let passed = runner.case(name, move || tails.read(15), || test(&world));
            if !passed {
                match start(&programs, paths, args.clone()) {
                    Ok(again) => world = again,
                    Err(_) => return ExitCode::FAILURE,
                }
            }
        }
    }
    runner.finish()
}
