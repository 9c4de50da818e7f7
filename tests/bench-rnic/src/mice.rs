//! Short messages, with and without a message of a GiB on another queue pair of the same guests.

use std::time::{Duration, Instant};

use bench_record::{Record, Res, Samples};
use guest_sim::suite::{Conn, Pair, Placement, Setup, World, assert_status};
use guest_sim::verbs::{ConnectAttr, Mr, QpCaps, wr};
use vrdma_abi::ring::*;

use crate::Effort;
use crate::masqd::ENGINE;
use crate::stream::{MTU_4096, scope, world};

/// The elephant is this long: so many pieces, each in the same memory.
const PIECES: usize = 16;
const PIECE: usize = 64 << 20;

/// Latency of writes of two bytes, on one host and between two.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let world = world(effort, 9000, &[])?;
    let mut records = Vec::new();
    for placement in Placement::ALL {
        records.extend(mice(effort, &world, placement)?);
    }
    Ok(records)
}

fn mice(effort: &Effort, world: &World, placement: Placement) -> Res<Vec<Record>> {
    let pair = Pair::open(world, placement);
    let mouse = Mouse::new(&pair);
    let elephant = Elephant::new(&pair);
    let run = effort.run() * 2;
    let (mut alone, mut beside) = ([const { Samples::EMPTY }; 2], [const { Samples::EMPTY }; 2]);
    let mut speed = Samples::default();
    for _ in 0..effort.pick(5, 2) {
        for (k, percentile) in mouse.run(run, || Ok(()))?.into_iter().enumerate() {
            alone[k].push(percentile);
        }
        let (start, mut moved) = (Instant::now(), 0);
        elephant.start()?;
        let latencies = mouse.run(run, || {
            moved += elephant.go_on()?;
            Ok(())
        })?;
        moved += elephant.end();
        speed.push(moved as f64 / start.elapsed().as_secs_f64() / 1e6);
        for (k, percentile) in latencies.into_iter().enumerate() {
            beside[k].push(percentile);
        }
    }
    pair.close()?;
    let mut records = Vec::new();
    for (k, percent) in ["p50", "p99"].iter().enumerate() {
        let name = format!("write_lat_2B_{percent}_beside_1GiB");
        records.push(
            Record::new(name, scope(placement), &beside[k], "us")
                .of(ENGINE)
                .beside("no other message", &alone[k]),
        );
    }
    records.push(Record::new("send_bw_1GiB_beside_mice", scope(placement), &speed, "MB/s").of(ENGINE));
    Ok(records)
}

/// A queue pair that writes two bytes at a time, and waits for the completion of each.
pub struct Mouse {
    conn: Conn,
    there: Mr,
}

impl Mouse {
    /// Of a pair of guests.
    pub fn new(pair: &Pair) -> Self {
        let attr = ConnectAttr { path_mtu: MTU_4096, ..ConnectAttr::default() };
        Mouse { conn: pair.connect_with(&Setup::attr(attr)), there: pair.b.buffer(64) }
    }

    /// Median and 99th percentile of microseconds from post to completion, during `run`; `meanwhile` is done between two writes.
    pub fn run(&self, run: Duration, mut meanwhile: impl FnMut() -> Res<()>) -> Res<[f64; 2]> {
        let qp = &self.conn.a;
        let mut times = Samples::default();
        let start = Instant::now();
        while start.elapsed() < run {
            meanwhile()?;
            let posted = Instant::now();
            qp.post_inline(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &self.there, 0), &[1, 2])
                .map_err(|e| format!("{e:?}"))?;
            let cqe = loop {
                if let Some(cqe) = qp.send_cq().poll() {
                    break cqe;
                }
                std::thread::yield_now();
            };
            times.push(posted.elapsed().as_secs_f64() * 1e6);
            assert_status(&cqe, WC_SUCCESS);
            qp.retire(&cqe);
        }
        Ok([times.percentile(50.0), times.percentile(99.0)])
    }
}

/// A queue pair that has two messages of a GiB on their way.
struct Elephant {
    conn: Conn,
    here: Mr,
    there: Mr,
}

impl Elephant {
    fn new(pair: &Pair) -> Self {
        let sge = PIECES as u16;
        let caps = QpCaps { send_wr: 2, recv_wr: 2, send_sge: sge, recv_sge: sge, ..QpCaps::default() };
        let attr = ConnectAttr { path_mtu: MTU_4096, ..ConnectAttr::default() };
        let setup = Setup { a: attr.clone(), b: attr, ..Setup::caps(caps) };
        let (here, there) = (pair.a.buffer(PIECE), pair.b.buffer(PIECE));
        here.fill(0, PIECE, 0x5a);
        Elephant { conn: pair.connect_with(&setup), here, there }
    }

    fn post(&self) -> Res<()> {
        let pieces = |mr: &Mr| vec![mr.sge(0, PIECE); PIECES];
        self.conn.b.post_recv(1, &pieces(&self.there)).map_err(|e| format!("{e:?}"))?;
        let send = wr::request(SEND_OP_SEND, 1);
        Ok(self.conn.a.post_send(&send, &pieces(&self.here)).map_err(|e| format!("{e:?}"))?)
    }

    fn start(&self) -> Res<()> {
        self.post()?;
        self.post()
    }

    /// Replaces what is done; returns how many bytes that were.
    fn go_on(&self) -> Res<usize> {
        let Some(cqe) = self.conn.a.send_cq().poll() else { return Ok(0) };
        assert_status(&cqe, WC_SUCCESS);
        self.conn.a.retire(&cqe);
        self.conn.b.retire(&self.conn.b.recv_completion());
        self.post()?;
        Ok(PIECES * PIECE)
    }

    /// Waits for what is on its way; returns how many bytes that were.
    fn end(&self) -> usize {
        for _ in 0..2 {
            self.conn.a.send_completion();
            self.conn.b.recv_completion();
        }
        2 * PIECES * PIECE
    }
}
