//! The QPs of a context, by the cookie that stands in their completions.
//!
//! A poller learns from a completion's cookie which QP it belongs to, while other threads create and destroy QPs. The
//! table is therefore read without a lock, and its slots stay where they are until the context ends: a poller
//! touches slots only, never a QP.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use vrdma_abi::ring::{CQE_RECV, CQE_SRQ, Cqe, WC_SUCCESS};

const CHUNK: usize = 1024;
const CHUNKS: usize = 256;

/// What pollers and posters of one QP share.
#[derive(Debug, Default)]
pub struct Slot {
    live: AtomicBool,
    /// How far the RNIC has come in the send queue and in the receive queue, as completions told. The poller stores with release and
    /// the poster loads with acquire, so that an entry is overwritten only after the RNIC has read it.
    send_consumer: AtomicU32,
    recv_consumer: AtomicU32,
    failed: AtomicBool,
}

impl Slot {
    /// Takes note of a completion. Called by one poller at a time for each completion queue, in the queue's order.
    #[inline]
    pub fn completed(&self, cqe: &Cqe) {
        match cqe.flags & (CQE_RECV | CQE_SRQ) {
            0 => self.send_consumer.store(cqe.consumer, Ordering::Release),
            CQE_RECV => self.recv_consumer.store(cqe.consumer, Ordering::Release),
            // The entry belongs to no queue of this QP.
            _ => {}
        }
        if cqe.status != WC_SUCCESS {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub fn send_consumer(&self) -> u32 {
        self.send_consumer.load(Ordering::Acquire)
    }

    #[inline]
    pub fn recv_consumer(&self) -> u32 {
        self.recv_consumer.load(Ordering::Acquire)
    }

    /// Whether a completion has reported an error, or [`fail`](Self::fail) was called.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The QP is in error.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// The QP's queues start over.
    pub fn reset(&self) {
        self.send_consumer.store(0, Ordering::Release);
        self.recv_consumer.store(0, Ordering::Release);
        self.failed.store(false, Ordering::Relaxed);
    }
}

/// All slots of a context.
#[derive(Debug)]
pub struct Table {
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    /// Cookies that have been given back.
    returned: Vec<u32>,
    /// The first one that was never used.
    next: u32,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            // Zeroed memory must not name a QP, so cookies begin with 1.
            free: Mutex::new(Free { returned: Vec::new(), next: 1 }),
        }
    }
}

impl Table {
    /// Takes a cookie for a new QP; `None` when all are in use.
    pub fn take(&self) -> Option<u32> {
        let cookie = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            match free.returned.pop() {
                Some(cookie) => cookie,
                None if (free.next as usize) < CHUNK * CHUNKS => {
                    free.next += 1;
                    free.next - 1
                }
                None => return None,
            }
        };
        let chunk = self.chunks.get(cookie as usize / CHUNK)?;
        let slot =
            &chunk.get_or_init(|| (0..CHUNK).map(|_| Slot::default()).collect())[cookie as usize % CHUNK];
        slot.reset();
        slot.live.store(true, Ordering::Release);
        Some(cookie)
    }

    /// Gives a cookie back, when no completion with it can come any more.
    pub fn give_back(&self, cookie: u32) {
        if let Some(slot) = self.get(cookie) {
            slot.live.store(false, Ordering::Release);
            self.free.lock().unwrap_or_else(PoisonError::into_inner).returned.push(cookie);
        }
    }

    /// The slot of a live QP.
    #[inline]
    pub fn get(&self, cookie: u32) -> Option<&Slot> {
        let chunk = self.chunks.get(cookie as usize / CHUNK)?.get()?;
        let slot = chunk.get(cookie as usize % CHUNK)?;
        slot.live.load(Ordering::Acquire).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_dense_and_reused() {
        let table = Table::default();
        let cookies: Vec<_> = (0..2000).map(|_| table.take().unwrap()).collect();
        assert!(cookies.iter().copied().eq(1..=2000));
        table.give_back(7);
        assert!(table.get(7).is_none());
        assert!(table.get(1999).is_some());
        assert_eq!(table.take(), Some(7));
        assert!(table.get(7).is_some());
    }

    #[test]
    fn cookies_of_nobody_have_no_slot() {
        let table = Table::default();
        table.take().unwrap();
        for cookie in [0, 2, 1023, 1024, 262_144, u32::MAX] {
            assert!(table.get(cookie).is_none(), "{cookie}");
        }
        // Given back twice, or never taken: only once on the list.
        table.give_back(1);
        table.give_back(1);
        table.give_back(9);
        assert_eq!((table.take(), table.take()), (Some(1), Some(2)));
    }

    #[test]
    fn the_table_ends() {
        let table = Table::default();
        for _ in 1..CHUNK * CHUNKS {
            assert!(table.take().is_some());
        }
        assert_eq!(table.take(), None);
    }

    #[test]
    fn a_slot_starts_over() {
        let table = Table::default();
        let cookie = table.take().unwrap();
        let slot = table.get(cookie).unwrap();
        slot.completed(&Cqe { consumer: 3, status: 5, ..Cqe::ZERO });
        slot.completed(&Cqe { consumer: 4, flags: CQE_RECV, ..Cqe::ZERO });
        slot.completed(&Cqe { consumer: 9, flags: CQE_RECV | CQE_SRQ, ..Cqe::ZERO });
        assert_eq!((slot.send_consumer(), slot.recv_consumer(), slot.has_failed()), (3, 4, true));
        slot.reset();
        assert_eq!((slot.send_consumer(), slot.recv_consumer(), slot.has_failed()), (0, 0, false));
    }
}
