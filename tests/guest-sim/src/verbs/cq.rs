//! Completion queues.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vrdma_abi::control::*;
use vrdma_abi::ring::{CQE_BYTES, Cqe};
use vrdma_rings::{Arm, CqRing};

use super::{Context, SharedRing, shared};
use crate::control::ControlError;
use crate::memory::Mapping;

/// A completion queue.
pub struct Cq {
    pub(super) ring: Mutex<CqRing<SharedRing>>,
    pub(super) ctx: Arc<Context>,
    pub(super) cq: u32,
    /// The ring's memory; another one after a resize.
    pub(super) memory: Mutex<Arc<Mapping>>,
    pub(super) destroyed: AtomicBool,
}

impl Cq {
    /// The queue's handle, as it stands in completion events.
    pub fn handle(&self) -> u32 {
        self.cq
    }

    /// The next completion, if there is one. Its entry is given back at once.
    pub fn poll(&self) -> Option<Cqe> {
        let mut ring = self.ring.lock().unwrap();
        let cqe = ring.poll();
        ring.publish();
        if let Some(cqe) = &cqe {
            self.ctx.seen.note_status(cqe.status);
        }
        cqe
    }

    /// Takes the next completion without giving its entry back.
    pub fn peek_and_keep(&self) -> Option<Cqe> {
        self.ring.lock().unwrap().poll()
    }

    /// Disowns the completions of a queue pair that was reset.
    pub(super) fn discard(&self, cookie: u32) {
        self.ring.lock().unwrap().discard(cookie);
    }

    /// The next completion within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Cqe> {
        let deadline = Instant::now() + timeout;
        let mut spins = 0u32;
        loop {
            if let Some(cqe) = self.poll() {
                return Some(cqe);
            }
            if Instant::now() > deadline {
                return None;
            }
            spins += 1;
            if spins > 200 {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Asks for an event.
    pub fn arm(&self, arm: Arm) {
        self.ring.lock().unwrap().arm(arm);
    }

    /// The ring's memory, for tests that spoil it.
    pub fn memory(&self) -> Arc<Mapping> {
        self.memory.lock().unwrap().clone()
    }

    /// RESIZE_CQ: room for at least `entries` completions. Nobody polls meanwhile.
    pub fn resize(&self, entries: u32) -> Result<(), ControlError> {
        let mut ring = self.ring.lock().unwrap();
        let entries = entries.max(1).next_power_of_two();
        let memory = self.ctx.ring(entries, CQE_BYTES.trailing_zeros() as u8);
        let control = self.ctx.guest.control();
        let (table, _tables) = control.page_table(&memory.gpas(), 12);
        control.run(OP_RESIZE_CQ, &ResizeCq { cq: self.cq, entries, ring: table })?;
        ring.move_to(shared(&memory), entries).expect("the ring fits its pages");
        *self.memory.lock().unwrap() = Arc::new(memory);
        Ok(())
    }

    /// Destroys the queue.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.ctx.guest.destroy(OP_DESTROY_CQ, self.cq)?;
        self.destroyed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if !self.destroyed.load(Ordering::Relaxed) {
            self.ctx.keep(self.memory.get_mut().unwrap_or_else(PoisonError::into_inner).clone());
        }
    }
}
