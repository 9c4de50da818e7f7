//! A sender that writes into its peer's memory without pause, and goes on whatever becomes of its writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bench_record::Res;
use guest_sim::suite::{Conn, Setup, Side};
use guest_sim::verbs::{ConnectAttr, Mr, Qp, QpCaps, wr};
use vrdma_abi::ring::{SEND_OP_RDMA_WRITE, WC_SUCCESS};
use vrdma_rings::SendRequest;

use crate::world::World;

const MESSAGE: usize = 64 << 10;
/// The writes walk through this much memory.
const WALK: usize = 4 << 20;
/// Writes that are outstanding at any time.
const DEPTH: u64 = 32;

/// A running sender. Its guests' contexts end with it.
pub struct Flow {
    sides: [Side; 2],
    target: Mr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Bytes a second that the guest itself keeps to; 0 is without limit.
    pace: AtomicU64,
    /// Bytes of writes that have succeeded.
    written: AtomicU64,
    /// Writes that were posted after the first that failed.
    posted_after_error: AtomicU64,
}

impl Flow {
    /// Writes from vNIC `from` to vNIC `to`.
    pub fn start(world: &World, from: u32, to: u32) -> Res<Flow> {
        let side = |n| {
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Side::of(world.guest(n)?, World::address(n)))
        };
        let (a, b) = (side(from)?, side(to)?);
        let caps = QpCaps { send_wr: DEPTH as u32, ..QpCaps::default() };
        let attr = ConnectAttr { path_mtu: 5, ..ConnectAttr::default() };
        let setup = Setup { a: attr.clone(), b: attr, ..Setup::caps(caps) };
        let c = Conn { a: a.qp(&setup.caps_a, 2 * DEPTH as u32), b: b.qp(&setup.caps_b, 64) };
        c.a.connect(&setup.a, b.address, c.b.qpn)?;
        c.b.connect(&setup.b, a.address, c.a.qpn)?;
        let (source, target) = (a.buffer(WALK), b.buffer(WALK));
        let there = (target.addr, target.rkey);
        let shared = Arc::<Shared>::default();
        let seen = shared.clone();
        let thread = std::thread::spawn(move || write(&c.a, &source, there, &seen));
        Ok(Flow { sides: [a, b], target, shared, thread: Some(thread) })
    }

    /// Keeps to so many bytes a second from now on, or to none.
    pub fn pace(&self, bytes_per_sec: Option<f64>) {
        self.shared.pace.store(bytes_per_sec.unwrap_or_default() as u64, Ordering::Relaxed);
    }

    /// Bytes of writes that have succeeded.
    pub fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }

    /// Writes that were posted after the first that failed.
    pub fn posted_after_error(&self) -> u64 {
        self.shared.posted_after_error.load(Ordering::Relaxed)
    }

    /// What the receiver's memory holds now.
    pub fn memory(&self) -> Vec<u8> {
        self.target.read(0, WALK)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has told of itself.
            let _ = thread.join();
        }
        for side in &self.sides {
            // The device may be gone.
            let _ = side.ctx.destroy();
        }
    }
}

fn write(qp: &Qp, source: &Mr, (addr, rkey): (u64, u32), shared: &Shared) {
    let (mut posted, mut completed, mut failed) = (0u64, 0u64, false);
    let (mut pace, mut since, mut sent) = (0, Instant::now(), 0u64);
    while !shared.stop.load(Ordering::Relaxed) {
        let wanted = shared.pace.load(Ordering::Relaxed);
        if wanted != pace {
            (pace, since, sent) = (wanted, Instant::now(), 0);
        }
        let may_send = |sent: u64| pace == 0 || (sent as f64) < since.elapsed().as_secs_f64() * pace as f64;
        while posted - completed < DEPTH && may_send(sent) {
            let at = (posted as usize * MESSAGE) % WALK;
            // Each write looks different from the one before in its place.
            source.write_u64(at, posted);
            source.write_u64(at + MESSAGE - 8, posted);
            let to = SendRequest {
                remote_addr: addr + at as u64,
                rkey,
                ..wr::request(SEND_OP_RDMA_WRITE, posted)
            };
            qp.post_send(&to, &[source.sge(at, MESSAGE)]).expect("room in the send queue");
            shared.posted_after_error.fetch_add(u64::from(failed), Ordering::Relaxed);
            (posted, sent) = (posted + 1, sent + MESSAGE as u64);
        }
        let before = completed;
        while let Some(cqe) = qp.send_cq().poll() {
            qp.retire(&cqe);
            completed += 1;
            failed |= cqe.status != WC_SUCCESS;
            if cqe.status == WC_SUCCESS {
                shared.written.fetch_add(MESSAGE as u64, Ordering::Relaxed);
            }
        }
        if completed == before {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
