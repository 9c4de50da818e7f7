//! A sender that writes into its peer's memory without pause, and does not stop when its queue pair fails.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use guest_sim::suite::status_name;
use guest_sim::verbs::{Mr, Qp, wr};
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::link::Link;

/// Where large writes go, and how long they are.
const LARGE: usize = 256 << 10;
/// How long small writes are.
const SMALL: usize = 64;
const SMALL_PLACES: u64 = 64;
const TARGET: usize = LARGE + SMALL * SMALL_PLACES as usize;
/// Writes that are outstanding at any time.
const DEPTH: usize = 32;

/// A running sender.
pub struct Stream {
    target: Mr,
    shared: Arc<Shared>,
    thread: JoinHandle<Report>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    abandon: AtomicBool,
    written: AtomicU64,
}

/// What has become of the writes.
#[derive(Debug, Default)]
pub struct Report {
    /// How many writes have completed with each status; each exactly once.
    pub completed: BTreeMap<&'static str, u64>,
    /// How many were posted after the first error.
    pub posted_after_error: u64,
    /// How many have not completed.
    pub missing: usize,
}

impl Stream {
    /// Writes from `a` to `b` of a connection.
    pub fn start(link: &Link) -> Stream {
        let (source, target) = (link.a.buffer(TARGET), link.b.buffer(TARGET));
        let there = Place { addr: target.addr, rkey: target.rkey };
        let (shared, qp) = (Arc::<Shared>::default(), link.c.a.clone());
        let seen = shared.clone();
        let name = format!("writes of QP {:#x}", qp.qpn);
        let work = move || write(&qp, &source, &there, &seen);
        let thread = std::thread::Builder::new().name(name).spawn(work).expect("a thread");
        Stream { target, shared, thread }
    }

    /// What the receiver's memory holds now.
    pub fn memory(&self) -> Vec<u8> {
        self.target.read(0, TARGET)
    }

    /// Waits until the memory changes.
    ///
    /// # Panics
    /// When it does not within five seconds.
    #[track_caller]
    pub fn assert_writing(&self) {
        let (before, count) = (self.memory(), self.shared.written.load(Ordering::Relaxed));
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.memory() == before || self.shared.written.load(Ordering::Relaxed) < count + 4 {
            assert!(Instant::now() < deadline, "the sender does not write");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops posting, waits for what is outstanding if there is still a device, and tells what has become of all writes.
    pub fn finish(self, device_is_there: bool) -> Report {
        self.shared.abandon.store(!device_is_there, Ordering::Relaxed);
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the sender")
    }
}

struct Place {
    addr: u64,
    rkey: u32,
}

fn write(qp: &Qp, source: &Mr, target: &Place, shared: &Shared) -> Report {
    let mut report = Report::default();
    let mut outstanding = HashSet::new();
    let mut numbers = 1..;
    let mut failed = false;
    let mut end = None;
    loop {
        if shared.stop.load(Ordering::Relaxed) {
            let end = *end.get_or_insert_with(|| Instant::now() + Duration::from_secs(5));
            if outstanding.is_empty() || shared.abandon.load(Ordering::Relaxed) || Instant::now() > end {
                break;
            }
        } else {
            for number in numbers.by_ref().take(DEPTH - outstanding.len()) {
                post(qp, source, target, number);
                outstanding.insert(number);
                report.posted_after_error += u64::from(failed);
            }
        }
        let Some(cqe) = qp.send_cq().wait(Duration::from_millis(20)) else { continue };
        qp.retire(&cqe);
        assert!(outstanding.remove(&cqe.wr_id), "write {} has completed twice: {cqe:?}", cqe.wr_id);
        assert!(!failed || cqe.status != WC_SUCCESS, "a success after an error: {cqe:?}");
        failed |= cqe.status != WC_SUCCESS;
        *report.completed.entry(status_name(cqe.status)).or_default() += 1;
        shared.written.fetch_add(u64::from(cqe.status == WC_SUCCESS), Ordering::Relaxed);
    }
    report.missing = outstanding.len();
    report
}

/// Posts a write that bears its number at both ends: each fourth is a large one.
fn post(qp: &Qp, source: &Mr, target: &Place, number: u64) {
    let (at, len) = match number % 4 {
        0 => (0, LARGE),
        _ => (LARGE + SMALL * (number % SMALL_PLACES) as usize, SMALL),
    };
    source.write_u64(at, number);
    source.write_u64(at + len - 8, number);
    let request = SendRequest {
        remote_addr: target.addr + at as u64,
        rkey: target.rkey,
        ..wr::request(SEND_OP_RDMA_WRITE, number)
    };
    qp.post_send(&request, &[source.sge(at, len)]).expect("room in the send queue");
}
