//! Guests that mind their own business, and notice when a byte of it is wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vrdma_abi::ring::*;

use super::{Conn, Setup, Side, assert_same, assert_status, pattern};
use crate::verbs::wr;

const LEN: usize = 20_000;
/// The longest time that a round may take, whatever others do.
const STALL: Duration = Duration::from_secs(5);

/// Pairs of guests that transfer and check data without pause: writes, sends, reads and atomics.
pub struct Victims {
    pairs: Vec<Victim>,
    stop: Arc<AtomicBool>,
}

struct Victim {
    name: &'static str,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Victims {
    /// Starts them; each pair has a name for messages.
    pub fn start(pairs: impl IntoIterator<Item = (&'static str, Side, Side)>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let pairs = pairs.into_iter().map(|(name, a, b)| {
            let (rounds, stop) = (Arc::new(AtomicU64::new(0)), stop.clone());
            let counter = rounds.clone();
            let work = move || transfer(name, &a, &b, &counter, &stop);
            let thread = std::thread::Builder::new().name(name.into()).spawn(work).expect("a thread");
            Victim { name, rounds, thread: Some(thread) }
        });
        Victims { pairs: pairs.collect(), stop }
    }

    /// How many rounds each pair has done.
    pub fn rounds(&self) -> Vec<u64> {
        self.pairs.iter().map(|p| p.rounds.load(Ordering::Relaxed)).collect()
    }

    /// Each pair has gone on since `before`, and goes on.
    ///
    /// # Panics
    /// When one has stopped, or got wrong data or a completion with an error.
    pub fn assert_progress(&self, before: &[u64]) {
        let during = self.rounds();
        let deadline = Instant::now() + STALL;
        for (k, pair) in self.pairs.iter().enumerate() {
            assert!(pair.thread.as_ref().is_some_and(|t| !t.is_finished()), "{} have failed", pair.name);
            while pair.rounds.load(Ordering::Relaxed) < during[k].max(before[k] + 1) + 2 {
                assert!(Instant::now() < deadline, "{} are stuck", pair.name);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Drop for Victims {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for pair in &mut self.pairs {
            if let Some(thread) = pair.thread.take() {
                // Its panic has been reported by the hook.
                let _ = thread.join();
            }
        }
    }
}

fn transfer(name: &str, a: &Side, b: &Side, rounds: &AtomicU64, stop: &AtomicBool) {
    let setup = Setup::default();
    let c = Conn { a: a.qp(&setup.caps_a, 64), b: b.qp(&setup.caps_b, 64) };
    c.a.connect(&setup.a, b.address, c.b.qpn).expect("a connects");
    c.b.connect(&setup.b, a.address, c.a.qpn).expect("b connects");
    let (here, there) = (a.buffer(2 * LEN), b.buffer(2 * LEN));
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.load(Ordering::Relaxed);
        let data = pattern(round + 1, LEN);
        here.write(0, &data);
        there.write_u64(2 * LEN - 8, round);
        c.b.post_recv(round, &[there.sge(LEN, LEN - 8)]).unwrap();
        c.a.post_sends(&[
            (wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), vec![here.sge(0, LEN)]),
            (wr::request(SEND_OP_SEND, 2), vec![here.sge(8, LEN - 8)]),
            (wr::rdma(SEND_OP_RDMA_READ, 3, &there, 0), vec![here.sge(LEN, LEN - 8)]),
            (wr::atomic(SEND_OP_FETCH_ADD, 4, &there, 2 * LEN - 8, 1, 0), vec![here.sge(2 * LEN - 8, 8)]),
        ])
        .unwrap();
        for _ in 0..4 {
            assert_status(&c.a.send_completion(), WC_SUCCESS);
        }
        assert_status(&c.b.recv_completion(), WC_SUCCESS);
        assert_same(&there.read(0, LEN), &data, &format!("{name}: written"));
        assert_same(&there.read(LEN, LEN - 8), &data[8..], &format!("{name}: sent"));
        assert_same(&here.read(LEN, LEN - 8), &data[..LEN - 8], &format!("{name}: read"));
        assert_eq!((here.read_u64(2 * LEN - 8), there.read_u64(2 * LEN - 8)), (round, round + 1), "{name}");
        rounds.store(round + 1, Ordering::Relaxed);
        // Whoever attacks needs some time as well.
        std::thread::sleep(Duration::from_millis(1));
    }
    a.ctx.destroy().expect("DESTROY_CONTEXT");
    b.ctx.destroy().expect("DESTROY_CONTEXT");
}
