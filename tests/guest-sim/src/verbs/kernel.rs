//! What only a guest's kernel has: regions that work requests fill, and the region of all memory.

use std::sync::Arc;

use vrdma_abi::config::PAGE_BYTES;
use vrdma_abi::control::*;
use vrdma_abi::ring::{RegSegment, Sge};

use super::Pd;
use crate::control::ControlError;
use crate::memory::Mapping;

/// A region that work requests fill (`ib_alloc_mr`).
pub struct FastReg {
    pd: Arc<Pd>,
    mr: u32,
    /// Its key as it was created, also its key for scatter/gather entries; a registration may choose another low byte.
    pub key: u32,
    /// The list of pages that its next registration shows to the RNIC.
    list: Mapping,
}

/// The region of all of the guest's memory, with guest-physical addresses (`ib_get_dma_mr`).
pub struct AllMemory {
    /// Key for scatter/gather entries.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
}

impl Pd {
    /// A region that work requests fill, with up to `max_pages` pages.
    pub fn alloc_fast_reg(self: &Arc<Self>, max_pages: u32) -> Result<FastReg, ControlError> {
        let length = u64::from(max_pages) * u64::from(PAGE_BYTES);
        let command = CreateMr { flags: MR_FAST_REG, length, ..self.kernel_region() };
        let reply = self.create_region(&command)?;
        assert_eq!(reply.lkey, reply.rkey, "one key, which the registration chooses");
        let list = self.ctx.guest.ram.alloc(1);
        Ok(FastReg { pd: self.clone(), mr: command.mr, key: reply.rkey, list })
    }

    /// The region of all memory.
    pub fn all_memory(self: &Arc<Self>, access: u32) -> Result<AllMemory, ControlError> {
        let reply = self.create_region(&CreateMr { flags: MR_ALL_MEMORY, access, ..self.kernel_region() })?;
        Ok(AllMemory { lkey: reply.lkey, rkey: reply.rkey })
    }

    fn kernel_region(&self) -> CreateMr {
        CreateMr { mr: self.ctx.guest.handle(), pd: self.pd, ..CreateMr::ZERO }
    }

    fn create_region(&self, command: &CreateMr) -> Result<CreateMrReply, ControlError> {
        self.ctx.guest.control().call(OP_CREATE_MR, command)
    }
}

impl FastReg {
    /// What registers all of `memory` at the address `iova` (`ib_map_mr_sg`). The list of pages is this region's: it must not be
    /// filled again before the request has completed.
    pub fn map(&self, memory: &Mapping, iova: u64, access: u32) -> RegSegment {
        let gpas = memory.gpas();
        for (k, gpa) in gpas.iter().enumerate() {
            self.list.write(8 * k, &gpa.to_le_bytes());
        }
        RegSegment {
            iova,
            length: memory.len() as u64,
            access,
            page_shift: PAGE_BYTES.trailing_zeros(),
            list: self.list.gpa(0),
        }
    }

    /// Destroys the region.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.pd.ctx.guest.destroy(OP_DESTROY_MR, self.mr)
    }
}

impl AllMemory {
    /// A scatter/gather entry of guest-physical memory.
    pub fn sge(&self, gpa: u64, len: usize) -> Sge {
        Sge { addr: gpa, length: len as u32, lkey: self.lkey }
    }
}
