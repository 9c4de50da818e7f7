//! Contexts: opens of the device.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vrdma_abi::control::*;
use vrdma_abi::ring::{self, CQE_BYTES};
use vrdma_rings::{CqRing, Doorbells};

use super::{Cq, Guest, Pd, SharedRing, shared};
use crate::control::ControlError;
use crate::memory::Mapping;

/// What was seen through a context: the statuses of its completions, and the operations of its requests, a bit for
/// the number of each.
#[derive(Default)]
pub struct Seen {
    statuses: AtomicU64,
    operations: AtomicU64,
}

impl Seen {
    pub(super) fn note_status(&self, status: u8) {
        self.statuses.fetch_or(1 << (status & 63), Ordering::Relaxed);
    }

    pub(super) fn note_operation(&self, opcode: u8) {
        self.operations.fetch_or(1 << (opcode & 63), Ordering::Relaxed);
    }

    /// Whether a completion had this status.
    pub fn status(&self, status: u8) -> bool {
        self.statuses.load(Ordering::Relaxed) & 1 << status != 0
    }

    /// Whether a request had this opcode.
    pub fn operation(&self, opcode: u8) -> bool {
        self.operations.load(Ordering::Relaxed) & 1 << opcode != 0
    }
}

/// An open of the device.
pub struct Context {
    pub(super) guest: Arc<Guest>,
    pub(super) doorbells: Doorbells<SharedRing>,
    pub(super) ctx: u32,
    /// The guest's kernel has opened it.
    pub(super) kernel: bool,
    pub(super) area: Mapping,
    /// Rings of objects that nobody has any more, but that the host still knows; `None` when it knows nothing of the context.
    kept: Mutex<Option<Vec<Arc<Mapping>>>>,
    pub(super) next_cookie: AtomicU32,
    pub(super) seen: Seen,
}

impl Context {
    pub(super) fn new(
        guest: &Arc<Guest>,
        ctx: u32,
        kernel: bool,
        doorbells: Doorbells<SharedRing>,
        area: Mapping,
    ) -> Self {
        Context {
            guest: guest.clone(),
            doorbells,
            ctx,
            kernel,
            area,
            kept: Mutex::new(Some(Vec::new())),
            next_cookie: AtomicU32::new(1),
            seen: Seen::default(),
        }
    }

    /// The guest.
    pub fn guest(&self) -> &Arc<Guest> {
        &self.guest
    }

    /// The context's handle.
    pub fn handle(&self) -> u32 {
        self.ctx
    }

    /// What was seen through it.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    /// A protection domain.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, ControlError> {
        let pd = self.guest.handle();
        self.guest.control().run(OP_CREATE_PD, &CreatePd { pd, ctx: self.ctx })?;
        Ok(Arc::new(Pd { ctx: self.clone(), pd }))
    }

    /// A completion queue with at least `entries` entries.
    pub fn create_cq(self: &Arc<Self>, entries: u32, vector: u32) -> Result<Arc<Cq>, ControlError> {
        let cq = self.guest.handle();
        let entries = entries.max(1).next_power_of_two();
        let shift = CQE_BYTES.trailing_zeros() as u8;
        let memory = self.ring(entries, shift);
        let (ring, _tables) = self.guest.control().page_table(&memory.gpas(), 12);
        let command = CreateCq { cq, ctx: self.ctx, entries, vector, ring };
        let reply: CreateCqReply = self.guest.control().call(OP_CREATE_CQ, &command)?;
        assert_eq!(reply.ring_format, RING_FORMAT_1);
        let ring = CqRing::new(shared(&memory), entries).expect("the ring fits its pages");
        let memory = Mutex::new(Arc::new(memory));
        let destroyed = AtomicBool::new(false);
        Ok(Arc::new(Cq { ring: Mutex::new(ring), ctx: self.clone(), cq, memory, destroyed }))
    }

    /// The doorbell area's memory, for tests that spoil it.
    pub fn doorbell_area(&self) -> &Mapping {
        &self.area
    }

    /// Ends the context and everything in it.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.guest.destroy(OP_DESTROY_CONTEXT, self.ctx)?;
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    /// Keeps the ring of an object that was dropped without being destroyed, so that its pages are no other ring's while the RNIC
    /// may write to them.
    pub(super) fn keep(&self, ring: Arc<Mapping>) {
        if let Some(kept) = &mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner) {
            kept.push(ring);
        }
    }

    pub(super) fn ring(&self, entries: u32, shift: u8) -> Mapping {
        let pages = ring::ring_pages(entries, shift) as usize;
        // A mapping for every page is dear; long rings are contiguous instead.
        if pages <= 64 {
            self.guest.ram.alloc_scattered(pages).expect("pages can be mapped")
        } else {
            self.guest.ram.alloc(pages)
        }
    }
}
