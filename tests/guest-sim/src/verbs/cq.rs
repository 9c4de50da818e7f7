//! Completion queues.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vrdma_abi::control::*;
use vrdma_abi::ring::Cqe;
use vrdma_rings::{Arm, CqRing};

use super::{Context, SharedRing};
use crate::control::ControlError;
use crate::memory::Mapping;

/// A completion queue.
pub struct Cq {
    pub(super) ring: Mutex<CqRing<SharedRing>>,
    pub(super) ctx: Arc<Context>,
    pub(super) cq: u32,
    pub(super) memory: Mapping,
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
    pub fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Destroys the queue.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.ctx.guest.destroy(OP_DESTROY_CQ, self.cq)
    }
}
