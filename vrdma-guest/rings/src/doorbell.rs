//! Telling the RNIC of posted sends, guest side.
//!
//! `mark` stores the dirty byte, then the summary byte (both release, and after the producer index), then fences, then loads
//! `need_kick`. The RNIC clears a summary byte before the dirty bytes of its group, and before it sleeps it stores
//! `need_kick`, fences, and looks at all of them again. So the guest sees `need_kick` or the RNIC sees the bytes.

use core::mem::offset_of;

use vrdma_abi::config::PAGE_BYTES;
use vrdma_abi::doorbell::{
    DoorbellPage, QPS_PER_GROUP, QPS_PER_SLOT, STATUS_GONE_LINE, STATUS_LINE_BYTES, StatusLine,
};

use crate::memory::SharedMemory;

const _: () = assert!(DoorbellPage::SIZE == PAGE_BYTES as usize);
const NEED_KICK: usize = offset_of!(StatusLine, need_kick);

/// A context's doorbell area beside the device's status page.
#[derive(Debug)]
pub struct Doorbells<M> {
    area: M,
    status: M,
}

impl<M: SharedMemory> Doorbells<M> {
    /// `area` holds one [`DoorbellPage`] for each slot, `status` is the device's status page, which is only read.
    pub fn new(area: M, status: M) -> Self {
        Self { area, status }
    }

    /// Slots that the area has room for.
    pub fn slots(&self) -> u16 {
        let pages = self.area.len() / DoorbellPage::SIZE;
        let lines = self.status.len() / STATUS_LINE_BYTES as usize;
        pages.min(lines).min(STATUS_GONE_LINE as usize) as u16 // at most 63
    }

    /// Whether a QP can live at this place. [`mark`](Self::mark) needs a place that is valid.
    pub fn is_valid(&self, slot: u16, index: u16) -> bool {
        slot < self.slots() && u32::from(index) < QPS_PER_SLOT
    }

    /// Tells that the QP at `index` of `slot` has published sends. Returns whether the slot's doorbell must be rung.
    ///
    /// # Panics
    ///
    /// Panics when the place is not [valid](Self::is_valid).
    #[inline]
    #[must_use = "a sleeping RNIC waits for its doorbell"]
    pub fn mark(&self, slot: u16, index: u16) -> bool {
        assert!(u32::from(index) < QPS_PER_SLOT, "no QP can have this index");
        let page = usize::from(slot) * DoorbellPage::SIZE;
        let group = usize::from(index) / QPS_PER_GROUP as usize;
        self.area.store_release_u8(page + offset_of!(DoorbellPage, dirty) + usize::from(index), 1);
        self.area.store_release_u8(page + offset_of!(DoorbellPage, summary) + group, 1);
        self.area.full_fence();
        let line = usize::from(slot) * STATUS_LINE_BYTES as usize;
        self.status.load_acquire(line + NEED_KICK) != 0
    }

    /// Whether the RNIC's objects are gone, so that posting makes no more sense.
    #[inline]
    pub fn is_gone(&self) -> bool {
        is_gone(&self.status)
    }
}

/// Whether a status page tells that the RNIC's objects are gone.
#[inline]
pub fn is_gone(status: &impl SharedMemory) -> bool {
    status.load_acquire((STATUS_GONE_LINE * STATUS_LINE_BYTES) as usize) != 0
}
