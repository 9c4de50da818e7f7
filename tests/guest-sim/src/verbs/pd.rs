//! Protection domains and memory regions.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use vrdma_abi::config::PAGE_BYTES;
use vrdma_abi::control::*;
use vrdma_abi::ring::{self, Sge};
use vrdma_rings::RecvRing;

use super::qp::SendQueue;
use super::{Context, Cq, Qp, QpCaps, shared};
use crate::control::ControlError;
use crate::memory::Mapping;

/// A protection domain.
pub struct Pd {
    pub(super) ctx: Arc<Context>,
    pub(super) pd: u32,
}

impl Pd {
    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// The domain's handle.
    pub fn handle(&self) -> u32 {
        self.pd
    }

    /// Registers `len` bytes from `offset` of `memory`.
    pub fn reg_mr(
        self: &Arc<Self>,
        memory: &Arc<Mapping>,
        offset: usize,
        len: usize,
        access: u32,
    ) -> Result<Mr, ControlError> {
        let mr = self.ctx.guest.handle();
        let page = PAGE_BYTES as usize;
        let first = offset / page;
        let end = (offset + len).div_ceil(page).max(first + 1);
        let gpas = &memory.gpas()[first..end];
        let iova = memory.as_ptr() as u64 + offset as u64;
        let (pages, _tables) = self.ctx.guest.control().page_table(gpas, 12);
        let command = CreateMr { mr, pd: self.pd, access, flags: 0, iova, length: len as u64, pages };
        let reply: CreateMrReply = self.ctx.guest.control().call(OP_CREATE_MR, &command)?;
        Ok(Mr {
            pd: self.clone(),
            mr,
            addr: iova,
            len,
            offset,
            lkey: reply.lkey,
            rkey: reply.rkey,
            memory: memory.clone(),
        })
    }

    /// New memory of `len` bytes, registered with all rights.
    pub fn buffer(self: &Arc<Self>, len: usize) -> Result<Mr, ControlError> {
        self.buffer_with(len, ACCESS_ALL)
    }

    /// New memory of `len` bytes, registered with the given rights.
    pub fn buffer_with(self: &Arc<Self>, len: usize, access: u32) -> Result<Mr, ControlError> {
        let pages = len.div_ceil(PAGE_BYTES as usize).max(1);
        let ram = &self.ctx.guest.ram;
        let memory = if pages <= 64 {
            ram.alloc_scattered(pages).expect("pages can be mapped")
        } else {
            ram.alloc(pages)
        };
        self.reg_mr(&Arc::new(memory), 0, len, access)
    }

    /// A reliable connected queue pair in RESET.
    pub fn create_qp(
        self: &Arc<Self>,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        caps: &QpCaps,
    ) -> Result<Arc<Qp>, ControlError> {
        let guest = &self.ctx.guest;
        let qp = guest.handle();
        let cookie = self.ctx.next_cookie.fetch_add(1, Ordering::Relaxed);
        let sq_entries = caps.send_wr.max(1).next_power_of_two();
        let rq_entries = caps.recv_wr.max(1).next_power_of_two();
        let sq_shift = ring::send_stride_shift(
            vrdma_abi::control::QP_TYPE_RC,
            caps.send_sge as u32,
            caps.inline_bytes as u32,
        )
        .ok_or(ControlError::Errno(libc::EINVAL))?;
        let rq_shift =
            ring::recv_stride_shift(caps.recv_sge as u32).ok_or(ControlError::Errno(libc::EINVAL))?;
        let sq_memory = self.ctx.ring(sq_entries, sq_shift);
        let rq_memory = self.ctx.ring(rq_entries, rq_shift);
        let (sq, _sq_tables) = guest.control().page_table(&sq_memory.gpas(), 12);
        let (rq, _rq_tables) = guest.control().page_table(&rq_memory.gpas(), 12);
        let command = CreateQp {
            qp,
            pd: self.pd,
            send_cq: send_cq.cq,
            recv_cq: recv_cq.cq,
            srq: HANDLE_NONE,
            flags: if caps.signal_all { QP_SIGNAL_ALL } else { 0 },
            cookie,
            sq_entries,
            rq_entries,
            max_send_sge: caps.send_sge,
            max_recv_sge: caps.recv_sge,
            max_inline_bytes: caps.inline_bytes,
            sq_stride_shift: sq_shift,
            rq_stride_shift: rq_shift,
            qp_type: QP_TYPE_RC,
            sq,
            rq,
            ..CreateQp::ZERO
        };
        let reply: CreateQpReply = guest.control().call(OP_CREATE_QP, &command)?;
        Ok(Arc::new(Qp {
            sq: Mutex::new(SendQueue::new(shared(&sq_memory), sq_entries, sq_shift)),
            rq: Mutex::new(RecvRing::new(shared(&rq_memory), rq_entries, rq_shift).expect("fits")),
            pd: self.clone(),
            qp,
            qpn: reply.qpn,
            slot: reply.db_slot,
            index: reply.db_index,
            cookie,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            sq_memory,
            rq_memory,
        }))
    }

    /// Destroys the domain.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.ctx.guest.destroy(OP_DESTROY_PD, self.pd)
    }
}

/// Every right that a region can give.
pub const ACCESS_ALL: u32 =
    ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;

/// A registered memory region.
pub struct Mr {
    pd: Arc<Pd>,
    mr: u32,
    /// Address of the first byte in work requests.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// Key for scatter/gather entries.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
    offset: usize,
    memory: Arc<Mapping>,
}

impl Mr {
    /// A scatter/gather entry of `len` bytes from `offset`.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.addr.wrapping_add(offset as u64), length: len as u32, lkey: self.lkey }
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, data: &[u8]) {
        self.memory.write(self.offset + offset, data);
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        self.memory.read(self.offset + offset, len)
    }

    /// Fills a range with one byte.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        self.memory.fill(self.offset + offset, len, byte);
    }

    /// The eight bytes at `offset` as a number in host order.
    pub fn read_u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.read(offset, 8).try_into().expect("8 bytes"))
    }

    /// Stores a number at `offset`.
    pub fn write_u64(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_ne_bytes());
    }

    /// Loads the byte at `offset`, again and again if the caller likes: what the RNIC stored before it is seen after it.
    pub fn load_u8(&self, offset: usize) -> u8 {
        self.memory.load_u8(self.offset + offset)
    }

    /// The region's handle.
    pub fn handle(&self) -> u32 {
        self.mr
    }

    /// The memory behind the region.
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Destroys the region.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.pd.ctx.guest.destroy(OP_DESTROY_MR, self.mr)
    }
}
