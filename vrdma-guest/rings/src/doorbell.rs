//! Telling the RNIC of posted sends, guest side.
//!
//! `mark` stores the dirty byte, then the summary byte (both release, and after the producer index), then fences, then loads
//! `need_kick`. The RNIC clears a summary byte before the dirty bytes of its group, and before it sleeps it stores
//! `need_kick`, fences, and looks at all of them again. So the guest sees `need_kick` or the RNIC sees the bytes.
//!
//! Threads that post to different QPs of one group store to the same summary byte, without a lock. The RNIC's exchange
//! reads only the last of these stores, but must see the dirty bytes behind all of them. This holds because x86-64 and ARMv8 are
//! multi-copy atomic: who sees a store sees what was ordered before any earlier store to that byte.

use core::mem::offset_of;

use vrdma_abi::config::PAGE_BYTES;
use vrdma_abi::doorbell::{
    DoorbellPage, QPS_PER_GROUP, QPS_PER_SLOT, STATUS_LINE_BYTES, STATUS_LIVE_LINE, StatusLine,
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
        pages.min(lines).min(STATUS_LIVE_LINE as usize) as u16 // at most 63
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

    /// Whether the RNIC's objects still exist; if not, then posting makes no more sense.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.status.load_acquire((STATUS_LIVE_LINE * STATUS_LINE_BYTES) as usize) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_memory::Buffer;

    #[test]
    fn marks_stand_in_the_slots_page_and_the_sleeping_slot_wants_a_kick() {
        let (area, status) = (Buffer::new(8 * 4096), Buffer::new(4096));
        let doorbells = Doorbells::new(area.mapping(), status.mapping());
        assert_eq!(doorbells.slots(), 8);

        assert!(!doorbells.mark(3, 130));
        let marked: [usize; 2] = [3 * 4096 + 2, 3 * 4096 + 64 + 130];
        let found = area.bytes().into_iter().enumerate().filter(|(_, byte)| *byte != 0).map(|(at, _)| at);
        assert!(found.eq(marked));

        status.mapping().store_release(4 * 64, 1);
        assert!(!doorbells.mark(3, 130));
        assert!(doorbells.mark(4, 4031));
        assert_eq!(area.bytes()[4 * 4096 + 62], 1);
        assert_eq!(area.bytes()[5 * 4096 - 1], 1);
    }

    #[test]
    fn places_outside_of_the_area_are_not_valid() {
        let (area, status) = (Buffer::new(2 * 4096), Buffer::new(4096));
        let doorbells = Doorbells::new(area.mapping(), status.mapping());
        assert!(doorbells.is_valid(1, 4031));
        assert!(!doorbells.is_valid(2, 0));
        assert!(!doorbells.is_valid(0, 4032));
        // The last line of the status page belongs to no slot.
        let large = Buffer::new(64 * 4096);
        assert_eq!(Doorbells::new(large.mapping(), status.mapping()).slots(), 63);
    }

    #[test]
    fn the_last_line_tells_whether_the_objects_live() {
        let (area, status) = (Buffer::new(4096), Buffer::new(4096));
        let doorbells = Doorbells::new(area.mapping(), status.mapping());
        assert!(!doorbells.is_live());
        status.mapping().store_release(4032, 1);
        assert!(doorbells.is_live());
    }

    #[test]
    fn a_register_takes_its_queues_number() {
        let pages = Buffer::new(3 * 4096);
        let register = pages.kick_register(3, 6);
        register.ring(2);
        register.ring(3);
        let bytes = pages.bytes();
        assert_eq!(bytes[2 * 4096..2 * 4096 + 2], [8, 0]);
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 1);
    }
}
