//! Queue pairs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use vrdma_abi::control::*;
use vrdma_abi::ring;
use vrdma_rings::{RecvRing, SendRing};

use super::chunks::Chunks;
use super::{Context, Cq, Guest, Pd, SharedRing, Srq, Xrcd, shared};
use crate::control::ControlError;
use crate::memory::Mapping;

/// What a queue pair is, and what it can hold.
#[derive(Clone)]
pub struct QpCaps {
    /// Its type, `QP_TYPE_`.
    pub qp_type: u8,
    /// Sends outstanding.
    pub send_wr: u32,
    /// Receives outstanding, in a receive queue of its own.
    pub recv_wr: u32,
    /// Scatter/gather entries of a send.
    pub send_sge: u16,
    /// Scatter/gather entries of a receive.
    pub recv_sge: u16,
    /// Bytes of inline data.
    pub inline_bytes: u16,
    /// Every send is signalled.
    pub signal_all: bool,
    /// Where its receives come from, if not from a queue of its own.
    pub srq: Option<Arc<Srq>>,
    /// Entries of its chunk ring; with 0 it has none, and uses one path.
    pub chunks: u32,
}

impl QpCaps {
    /// A reliable connected queue pair that may use several paths.
    pub fn multipath() -> Self {
        QpCaps { chunks: 64, ..Self::default() }
    }

    /// The default of a type.
    pub fn of(qp_type: u8) -> Self {
        QpCaps { qp_type, ..Self::default() }
    }

    /// A reliable connected queue pair whose receives come from `srq`.
    pub fn on(srq: &Arc<Srq>) -> Self {
        QpCaps { srq: Some(srq.clone()), ..Self::default() }
    }
}

impl Default for QpCaps {
    fn default() -> Self {
        QpCaps {
            qp_type: QP_TYPE_RC,
            send_wr: 64,
            recv_wr: 64,
            send_sge: 4,
            recv_sge: 4,
            inline_bytes: 64,
            signal_all: false,
            srq: None,
            chunks: 0,
        }
    }
}

/// A queue pair.
pub struct Qp {
    pub(super) ctx: Arc<Context>,
    pub(super) qp: u32,
    pub(super) qp_type: u8,
    /// Its number.
    pub qpn: u32,
    pub(super) slot: u16,
    pub(super) index: u16,
    /// The number that stands in its completions.
    pub cookie: u32,
    /// None of an XRC target.
    pub(super) sends: Option<Sends>,
    /// None of one with a shared receive queue, and of XRC.
    pub(super) recvs: Option<Recvs>,
    /// Of one that may use several paths.
    pub(super) chunks: Option<Chunks>,
    /// None of XRC.
    pub(super) recv_cq: Option<Arc<Cq>>,
    destroyed: AtomicBool,
}

/// A send queue.
pub(super) struct Sends {
    pub(super) queue: Mutex<SendQueue>,
    pub(super) memory: Arc<Mapping>,
    pub(super) cq: Arc<Cq>,
}

/// A receive queue.
pub(super) struct Recvs {
    pub(super) ring: Mutex<RecvRing<SharedRing>>,
    pub(super) memory: Arc<Mapping>,
}

/// A send ring, and where its next entry will stand.
pub(super) struct SendQueue {
    pub(super) ring: SendRing<SharedRing>,
    pub(super) next: u32,
    entries: u32,
    stride_shift: u8,
}

impl SendQueue {
    fn new(memory: SharedRing, entries: u32, stride_shift: u8) -> Self {
        let ring = SendRing::new(memory, entries, stride_shift).expect("the ring fits its pages");
        SendQueue { ring, next: 0, entries, stride_shift }
    }

    /// Where the entry of an index stands in the ring's memory.
    pub(super) fn offset(&self, index: u32) -> usize {
        ((index & (self.entries - 1)) as usize + 1) << self.stride_shift
    }
}

impl Pd {
    /// A queue pair of any type but an XRC target, in RESET. An XRC initiator has no use for `recv_cq`.
    pub fn create_qp(
        self: &Arc<Self>,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        caps: &QpCaps,
    ) -> Result<Arc<Qp>, ControlError> {
        const TOO_LONG: ControlError = ControlError::Errno(libc::EINVAL);
        let ctx = &self.ctx;
        let control = ctx.guest.control();
        let sq_entries = caps.send_wr.max(1).next_power_of_two();
        let mut sq_shift =
            ring::send_stride_shift(caps.qp_type, caps.send_sge.into(), caps.inline_bytes.into())
                .ok_or(TOO_LONG)?;
        if ctx.kernel {
            sq_shift = sq_shift.max(ring::REG_STRIDE_SHIFT);
        }
        let sq_memory = ctx.ring(sq_entries, sq_shift);
        let (sq, _sq_tables) = control.page_table(&sq_memory.gpas(), 12);
        let mut command = CreateQp {
            pd: self.pd,
            send_cq: send_cq.cq,
            recv_cq: recv_cq.cq,
            srq: caps.srq.as_ref().map_or(HANDLE_NONE, |srq| srq.handle()),
            flags: if caps.signal_all { QP_SIGNAL_ALL } else { 0 },
            sq_entries,
            max_send_sge: caps.send_sge,
            max_inline_bytes: caps.inline_bytes,
            sq_stride_shift: sq_shift,
            qp_type: caps.qp_type,
            xrcd: HANDLE_NONE,
            sq,
            ..CreateQp::ZERO
        };
        let initiator = caps.qp_type == QP_TYPE_XRC_INI;
        let mut recvs = None;
        let _rq_tables;
        if initiator {
            command.recv_cq = HANDLE_NONE;
        } else if caps.srq.is_none() {
            let entries = caps.recv_wr.max(1).next_power_of_two();
            let shift = ring::recv_stride_shift(caps.recv_sge.into()).ok_or(TOO_LONG)?;
            let memory = ctx.ring(entries, shift);
            (command.rq, _rq_tables) = control.page_table(&memory.gpas(), 12);
            (command.rq_entries, command.rq_stride_shift) = (entries, shift);
            command.max_recv_sge = caps.recv_sge;
            let ring = RecvRing::new(shared(&memory), entries, shift).expect("the ring fits its pages");
            recvs = Some(Recvs { ring: Mutex::new(ring), memory: Arc::new(memory) });
        }
        let chunks = (caps.chunks > 0).then(|| Chunks::new(ctx, caps.chunks, sq_shift));
        let _chunk_tables;
        if let Some(chunks) = &chunks {
            (command.chunks, _chunk_tables) = control.page_table(&chunks.memory.gpas(), 12);
            (command.flags, command.chunk_entries) = (command.flags | QP_MULTIPATH, chunks.entries);
        }
        let queue = Mutex::new(SendQueue::new(shared(&sq_memory), sq_entries, sq_shift));
        let sends = Sends { queue, memory: Arc::new(sq_memory), cq: send_cq.clone() };
        let recv_cq = (!initiator).then(|| recv_cq.clone());
        Qp::create(ctx, command, Some(sends), recvs, chunks, recv_cq)
    }
}

impl Qp {
    fn create(
        ctx: &Arc<Context>,
        command: CreateQp,
        sends: Option<Sends>,
        recvs: Option<Recvs>,
        chunks: Option<Chunks>,
        recv_cq: Option<Arc<Cq>>,
    ) -> Result<Arc<Self>, ControlError> {
        let qp = ctx.guest.handle();
        let cookie = ctx.next_cookie.fetch_add(1, Ordering::Relaxed);
        let command = CreateQp { qp, cookie, ..command };
        let reply: CreateQpReply = ctx.guest.control().call(OP_CREATE_QP, &command)?;
        assert_eq!(reply.ring_format, RING_FORMAT_1);
        Ok(Arc::new(Qp {
            ctx: ctx.clone(),
            qp,
            qp_type: command.qp_type,
            qpn: reply.qpn,
            slot: reply.db_slot,
            index: reply.db_index,
            cookie,
            sends,
            recvs,
            chunks,
            recv_cq,
            destroyed: AtomicBool::new(false),
        }))
    }

    /// An XRC target of a domain, in RESET. `ctx` is the kernel's own.
    pub fn create_xrc_target(ctx: &Arc<Context>, xrcd: &Xrcd) -> Result<Arc<Self>, ControlError> {
        let none = HANDLE_NONE;
        let command = CreateQp {
            pd: none,
            send_cq: none,
            recv_cq: none,
            srq: none,
            qp_type: QP_TYPE_XRC_TGT,
            xrcd: xrcd.handle(),
            ..CreateQp::ZERO
        };
        Self::create(ctx, command, None, None, None, None)
    }

    /// The queue pair's handle, as it stands in asynchronous events.
    pub fn handle(&self) -> u32 {
        self.qp
    }

    /// Where completions of sends appear.
    ///
    /// # Panics
    /// When there are none.
    #[track_caller]
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.sends().cq
    }

    /// Where completions of receives appear.
    ///
    /// # Panics
    /// When there are none.
    #[track_caller]
    pub fn recv_cq(&self) -> &Arc<Cq> {
        self.recv_cq.as_ref().expect("a queue pair that receives")
    }

    /// The send queue's memory, for tests that spoil it.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn sq_memory(&self) -> &Mapping {
        &self.sends().memory
    }

    /// The memory of its own receive queue, for tests that spoil it.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn rq_memory(&self) -> &Mapping {
        &self.recvs().memory
    }

    /// Destroys the queue pair.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.guest().destroy(OP_DESTROY_QP, self.qp)?;
        self.destroyed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// After RESET: its queues are empty, and what it has completed and nobody has taken is nobody's.
    pub(super) fn empty(&self) {
        if let Some(sends) = &self.sends {
            let mut sq = sends.queue.lock().unwrap();
            sq.ring.reset();
            sq.next = 0;
            sends.cq.discard(self.cookie);
        }
        if let Some(recvs) = &self.recvs {
            recvs.ring.lock().unwrap().reset();
        }
        if let Some(chunks) = &self.chunks {
            chunks.ring.lock().unwrap().reset();
        }
        if let Some(cq) = &self.recv_cq {
            cq.discard(self.cookie);
        }
    }

    pub(super) fn guest(&self) -> &Arc<Guest> {
        &self.ctx.guest
    }

    #[track_caller]
    pub(super) fn sends(&self) -> &Sends {
        self.sends.as_ref().expect("a queue pair that sends")
    }

    #[track_caller]
    pub(super) fn recvs(&self) -> &Recvs {
        self.recvs.as_ref().expect("a queue pair with a receive queue of its own")
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if !self.destroyed.load(Ordering::Relaxed) {
            self.sends.take().into_iter().for_each(|sends| self.ctx.keep(sends.memory));
            self.recvs.take().into_iter().for_each(|recvs| self.ctx.keep(recvs.memory));
            self.chunks.take().into_iter().for_each(|chunks| self.ctx.keep(chunks.memory));
        }
    }
}
