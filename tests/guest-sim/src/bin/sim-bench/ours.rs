use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_sim::suite::{Conn, Pair, Setup, assert_status};
use guest_sim::verbs::{ConnectAttr, Mr, Qp, QpCaps, wr};
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

pub const MIB: usize = 1 << 20;
/// The writes walk through this much memory on both sides, as the memcpy beside them does.
const WALK: usize = 64 << 20;
/// Bytes on their way at once.
const IN_FLIGHT: usize = 4 << 20;

fn setup() -> Setup {
    let caps = QpCaps { send_wr: 256, ..QpCaps::default() };
    let attr = ConnectAttr { path_mtu: 5, ..ConnectAttr::default() };
    Setup { caps_a: caps.clone(), caps_b: caps, a: attr.clone(), b: attr, cqe: 512 }
}

/// Takes the completions that are there, and tells how many.
fn take(qp: &Arc<Qp>) -> u64 {
    let mut taken = 0;
    while let Some(cqe) = qp.send_cq().poll() {
        assert_status(&cqe, WC_SUCCESS);
        qp.retire(&cqe);
        taken += 1;
    }
    taken
}

/// RDMA WRITEs that walk through the memory of a pair.
pub struct Writes {
    conn: Conn,
    here: Mr,
    there: Mr,
}

impl Writes {
    /// A connection and its buffers.
    pub fn new(pair: &Pair) -> Self {
        let (here, there) = (pair.a.buffer(WALK), pair.b.buffer(WALK));
        here.fill(0, WALK, 0x5a);
        Writes { conn: pair.connect_with(&setup()), here, there }
    }

    /// Speed of writes of `len` bytes during `run`, from the first post to the last completion.
    pub fn bytes_per_sec(&self, len: usize, run: Duration) -> f64 {
        let qp = &self.conn.a;
        let window = (IN_FLIGHT / len).clamp(2, 128) as u64;
        let (mut posted, mut done) = (0, 0);
        let start = Instant::now();
        loop {
            let on = start.elapsed() < run;
            while on && posted - done < window {
                let at = (posted as usize * len) % WALK;
                let write = wr::rdma(SEND_OP_RDMA_WRITE, posted, &self.there, at);
                qp.post_send(&write, &[self.here.sge(at, len)]).expect("there is room");
                posted += 1;
            }
            done += take(qp);
            if !on && done == posted {
                break;
            }
            std::thread::sleep(Duration::from_micros(30));
        }
        (done as usize * len) as f64 / start.elapsed().as_secs_f64()
    }
}

/// Half of the time of a ping-pong of two-byte writes, each polled for in memory.
pub fn write_latency_us(pair: &Pair, run: Duration) -> f64 {
    let c = pair.connect_with(&setup());
    let (at_a, at_b) = (pair.a.buffer(64), pair.b.buffer(64));
    let mut rounds = 0u64;
    let start = Instant::now();
    while start.elapsed() < run {
        let ball = (rounds % 255) as u8 + 1;
        for (qp, to) in [(&c.a, &at_b), (&c.b, &at_a)] {
            let write = SendRequest { flags: 0, ..wr::rdma(SEND_OP_RDMA_WRITE, rounds, to, 0) };
            // A completion now and then frees the ring.
            let write =
                if rounds.is_multiple_of(64) { SendRequest { flags: SEND_SIGNALED, ..write } } else { write };
            qp.post_inline(&write, &[ball, ball]).expect("there is room");
            while to.load_u8(1) != ball {
                std::thread::yield_now();
            }
            take(qp);
        }
        rounds += 1;
    }
    start.elapsed().as_secs_f64() * 1e6 / (2.0 * rounds as f64)
}

/// Writes of eight bytes a second, with as many on their way as the ring holds.
pub fn messages_per_sec(pair: &Pair, run: Duration) -> f64 {
    const SIGNAL_EVERY: u64 = 16;
    let c = pair.connect_with(&setup());
    let there = pair.b.buffer(64);
    let mut posted = 0u64;
    let start = Instant::now();
    while start.elapsed() < run || !posted.is_multiple_of(SIGNAL_EVERY) {
        while c.a.send_room() > 0 && (start.elapsed() < run || !posted.is_multiple_of(SIGNAL_EVERY)) {
            posted += 1;
            let flags = if posted.is_multiple_of(SIGNAL_EVERY) { SEND_SIGNALED } else { 0 };
            let write = SendRequest { flags, ..wr::rdma(SEND_OP_RDMA_WRITE, posted, &there, 0) };
            c.a.post_inline(&write, &posted.to_le_bytes()).expect("there is room");
        }
        take(&c.a);
        std::hint::spin_loop();
    }
    let mut last = c.a.send_room();
    while last < 256 {
        take(&c.a);
        last = c.a.send_room();
    }
    posted as f64 / start.elapsed().as_secs_f64()
}
