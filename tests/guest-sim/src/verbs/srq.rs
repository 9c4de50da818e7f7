//! Shared receive queues, and the domains of those that XRC names.

use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use vrdma_abi::control::*;
use vrdma_abi::ring::{self, Sge, WorkHeader};
use vrdma_rings::{PostError, SharedMemory, SharedRecvRing};

use super::{Context, Cq, Guest, Pd, SharedRing, shared};
use crate::control::ControlError;
use crate::memory::Mapping;

/// A shared receive queue.
pub struct Srq {
    ctx: Arc<Context>,
    srq: u32,
    /// The number by which XRC messages name it; 0 if they cannot.
    pub srqn: u32,
    ring: Mutex<SharedRecvRing<SharedRing>>,
    memory: Arc<Mapping>,
    cq: Option<Arc<Cq>>,
    destroyed: AtomicBool,
}

/// A domain of XRC. It belongs to the device, so that processes can share it.
pub struct Xrcd {
    guest: Arc<Guest>,
    xrcd: u32,
}

impl Pd {
    /// A shared receive queue with at least `entries` entries of at most `max_sge` scatter/gather entries.
    pub fn create_srq(self: &Arc<Self>, entries: u32, max_sge: u16) -> Result<Arc<Srq>, ControlError> {
        self.new_srq(entries, max_sge, 0, None)
    }

    /// The same with a limit from the beginning.
    pub fn create_srq_with_limit(
        self: &Arc<Self>,
        entries: u32,
        max_sge: u16,
        limit: u32,
    ) -> Result<Arc<Srq>, ControlError> {
        self.new_srq(entries, max_sge, limit, None)
    }

    /// One that XRC messages name.
    pub fn create_xrc_srq(
        self: &Arc<Self>,
        entries: u32,
        max_sge: u16,
        xrcd: &Xrcd,
        cq: &Arc<Cq>,
    ) -> Result<Arc<Srq>, ControlError> {
        self.new_srq(entries, max_sge, 0, Some((xrcd, cq)))
    }

    fn new_srq(
        self: &Arc<Self>,
        entries: u32,
        max_sge: u16,
        limit: u32,
        xrc: Option<(&Xrcd, &Arc<Cq>)>,
    ) -> Result<Arc<Srq>, ControlError> {
        let guest = &self.ctx.guest;
        let srq = guest.handle();
        let entries = entries.max(1).next_power_of_two();
        let shift = ring::recv_stride_shift(max_sge.into()).ok_or(ControlError::Errno(libc::EINVAL))?;
        let memory = self.ctx.ring(entries, shift);
        let (table, _tables) = guest.control().page_table(&memory.gpas(), 12);
        let command = CreateSrq {
            srq,
            pd: self.pd,
            cq: xrc.map_or(HANDLE_NONE, |(_, cq)| cq.handle()),
            xrcd: xrc.map_or(HANDLE_NONE, |(xrcd, _)| xrcd.xrcd),
            entries,
            max_sge,
            stride_shift: shift,
            srq_type: if xrc.is_some() { SRQ_TYPE_XRC } else { SRQ_TYPE_BASIC },
            limit,
            reserved: 0,
            ring: table,
        };
        let reply: CreateSrqReply = guest.control().call(OP_CREATE_SRQ, &command)?;
        assert_eq!(reply.ring_format, RING_FORMAT_1);
        assert_eq!(reply.srqn != 0, xrc.is_some(), "only those of XRC have a number");
        let ring = SharedRecvRing::new(shared(&memory), entries, shift).expect("the ring fits its pages");
        Ok(Arc::new(Srq {
            ctx: self.ctx.clone(),
            srq,
            srqn: reply.srqn,
            ring: Mutex::new(ring),
            memory: Arc::new(memory),
            cq: xrc.map(|(_, cq)| cq.clone()),
            destroyed: AtomicBool::new(false),
        }))
    }
}

impl Srq {
    /// The queue's handle, as it stands in asynchronous events.
    pub fn handle(&self) -> u32 {
        self.srq
    }

    /// Of one for XRC: where completions of its receives appear.
    ///
    /// # Panics
    /// When it is another.
    #[track_caller]
    pub fn cq(&self) -> &Arc<Cq> {
        self.cq.as_ref().expect("a shared receive queue for XRC")
    }

    /// Posts a receive.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut ring = self.ring.lock().unwrap();
        ring.post(wr_id, sges)?;
        ring.publish();
        Ok(())
    }

    /// Receives that the RNIC has taken since the beginning, modulo 2^32.
    pub fn taken(&self) -> u32 {
        shared(&self.memory).load_acquire(offset_of!(WorkHeader, taken))
    }

    /// Arms the limit.
    pub fn modify(&self, limit: u32) -> Result<(), ControlError> {
        self.ctx.guest.control().run(OP_MODIFY_SRQ, &ModifySrq { srq: self.srq, limit })
    }

    /// The limit, 0 when none is armed.
    pub fn limit(&self) -> Result<u32, ControlError> {
        let query = Destroy { handle: self.srq, reserved: 0 };
        let reply: QuerySrqReply = self.ctx.guest.control().call(OP_QUERY_SRQ, &query)?;
        Ok(reply.limit)
    }

    /// The ring's memory, for tests that spoil it.
    pub fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Destroys the queue.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.ctx.guest.destroy(OP_DESTROY_SRQ, self.srq)?;
        self.destroyed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if !self.destroyed.load(Ordering::Relaxed) {
            self.ctx.keep(self.memory.clone());
        }
    }
}

impl Guest {
    /// A domain of XRC.
    pub fn open_xrcd(self: &Arc<Self>) -> Result<Xrcd, ControlError> {
        let xrcd = self.handle();
        self.control().run(OP_CREATE_XRCD, &CreateXrcd { xrcd, reserved: 0 })?;
        Ok(Xrcd { guest: self.clone(), xrcd })
    }
}

impl Xrcd {
    /// The domain's handle.
    pub fn handle(&self) -> u32 {
        self.xrcd
    }

    /// Destroys the domain.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.guest.destroy(OP_DESTROY_XRCD, self.xrcd)
    }
}
