//! Protection domains and memory regions.

use std::sync::Arc;

use vrdma_abi::config::PAGE_BYTES;
use vrdma_abi::control::*;
use vrdma_abi::ring::Sge;

use super::Context;
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
        let iova = memory.as_ptr() as u64 + offset as u64;
        let (pages, _tables) = self.ctx.guest.control().page_table(&pages_of(memory, offset, len), 12);
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

    /// Destroys the domain.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.ctx.guest.destroy(OP_DESTROY_PD, self.pd)
    }
}

/// The pages that a range of a mapping lies in; one at least.
fn pages_of(memory: &Mapping, offset: usize, len: usize) -> Vec<u64> {
    let page = PAGE_BYTES as usize;
    let first = offset / page;
    let end = (offset + len).div_ceil(page).max(first + 1);
    memory.gpas()[first..end].to_vec()
}

/// Every right that a region can give to work requests and peers.
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

    /// REREG_MR of what is given: another domain, other rights, another range of memory, which keeps its own address. A region
    /// that is another from then on: the keys are the same.
    ///
    /// What was the region's stays registered to it when this is refused.
    pub fn rereg(
        &self,
        pd: Option<&Arc<Pd>>,
        access: Option<u32>,
        memory: Option<(&Arc<Mapping>, usize, usize)>,
    ) -> Result<Mr, ControlError> {
        let control = self.pd.ctx.guest.control();
        let mut new = Mr { pd: pd.unwrap_or(&self.pd).clone(), memory: self.memory.clone(), ..*self };
        let mut command = ReregMr { mr: self.mr, pd: HANDLE_NONE, ..ReregMr::ZERO };
        if let Some(pd) = pd {
            command.flags |= REREG_PD;
            command.pd = pd.pd;
        }
        if let Some(access) = access {
            command.flags |= REREG_ACCESS;
            command.access = access;
        }
        let _tables;
        if let Some((memory, offset, len)) = memory {
            command.flags |= REREG_TRANSLATION;
            (new.memory, new.offset, new.len) = (memory.clone(), offset, len);
            new.addr = memory.as_ptr() as u64 + offset as u64;
            (command.iova, command.length) = (new.addr, len as u64);
            (command.pages, _tables) = control.page_table(&pages_of(memory, offset, len), 12);
        }
        let reply: CreateMrReply = control.call(OP_REREG_MR, &command)?;
        assert_eq!((reply.lkey, reply.rkey), (self.lkey, self.rkey), "the keys stay");
        Ok(new)
    }

    /// Destroys the region.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.pd.ctx.guest.destroy(OP_DESTROY_MR, self.mr)
    }
}
