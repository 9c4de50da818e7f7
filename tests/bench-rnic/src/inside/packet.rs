//! What an engine takes for a packet of 4 KiB, with the kernel's sockets out of the way: beside a checksum and a copy of
//! the same bytes.

use std::hint::black_box;
use std::time::Instant;

use bench_record::{Record, Res, Samples};

use super::rig::{Plan, Rig};
use crate::Effort;

/// Bytes of a packet's payload.
const PAYLOAD: usize = 4096;
/// Messages are so long; both sides of the comparison go through as much memory again and again.
const LEN: usize = 1 << 20;
const DEPTH: usize = 2;
/// The most of checksum and copy.
const BAR: f64 = 2.0;

const PROCESS: &str = "bench-rnic: an engine in it, without the network's time";

/// Sending and receiving.
pub fn measure(effort: &Effort) -> Res<Vec<Record>> {
    let mut rig = Rig::new(Plan { remote: true, ..Plan::default() });
    let messages = effort.pick(400, 40);
    let packets = (LEN / PAYLOAD) as f64;
    let mut floor = Floor::new();
    rig.write(8, LEN, DEPTH);
    let mut ours: [Samples; 2] = Default::default();
    let mut peer = Samples::default();
    for _ in 0..effort.runs() {
        for (engine, samples) in ours.iter_mut().enumerate() {
            samples.push(rig.time(engine, messages, LEN, DEPTH) / packets);
        }
        let mut times = Samples::default();
        for _ in 0..messages {
            let start = Instant::now();
            floor.pass();
            times.push(start.elapsed().as_nanos() as f64 / packets);
        }
        peer.push(times.median());
    }
    let record = |(scope, ours)| {
        Record::new("packet_4KiB", scope, ours, "ns")
            .of(PROCESS)
            .beside("crc32fast and memcpy of 4 KiB", &peer)
            .at_most(BAR)
    };
    Ok(["sending", "receiving"].into_iter().zip(&ours).map(record).collect())
}

/// The least that a packet costs: its bytes are copied once, and go into a checksum once.
pub struct Floor {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Floor {
    /// The memory.
    pub fn new() -> Self {
        Floor { from: vec![0x5a; LEN], to: vec![0xa5; LEN] }
    }

    /// What a message of a MiB costs at least.
    pub fn pass(&mut self) {
        bench_measured_floor(&self.from, &mut self.to);
    }
}

/// Its name is known to [`super::count`].
#[inline(never)]
fn bench_measured_floor(from: &[u8], to: &mut [u8]) {
    for (to, from) in to.chunks_exact_mut(PAYLOAD).zip(from.chunks_exact(PAYLOAD)) {
        to.copy_from_slice(black_box(from));
        black_box(crc32fast::hash(to));
    }
}
