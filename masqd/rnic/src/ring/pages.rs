use masq_driver::{DriverError, Gpa, PageList};
use vrdma_abi::ring::ring_pages;

use crate::memory::{GuestMemory, PAGE_BYTES, Span};

/// The guest pages of a ring: a header of one stride, then entries.
#[derive(Debug)]
pub(super) struct RingPages {
    pages: Box<[u64]>,
    entries: u32,
    stride_shift: u8,
}

impl RingPages {
    /// Checks that the pages are guest memory and as many as the ring needs.
    pub(super) fn new(
        what: &str,
        ring: PageList,
        entries: u32,
        stride_shift: u8,
        memory: &GuestMemory,
    ) -> Result<Self, DriverError> {
        if 1u64 << ring.shift.min(63) != PAGE_BYTES {
            return Err(DriverError::Invalid(format!("{what}: ring pages must have {PAGE_BYTES} bytes")));
        }
        let needed = ring_pages(entries, stride_shift);
        if ring.pages.len() as u64 != needed {
            let given = ring.pages.len();
            return Err(DriverError::Invalid(format!("{what}: {given} ring pages given, {needed} needed")));
        }
        memory.check_pages(&ring.pages)?;
        Ok(Self { pages: ring.pages.into(), entries, stride_shift })
    }

    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    pub(super) fn stride_shift(&self) -> u8 {
        self.stride_shift
    }

    /// The ring's header; `None` when its page has gone from the memory table.
    pub(super) fn header<'m>(&self, memory: &'m GuestMemory) -> Option<Span<'m>> {
        self.stride(memory, 0)
    }

    /// The entry at free-running `index`.
    pub(super) fn entry<'m>(&self, memory: &'m GuestMemory, index: u32) -> Option<Span<'m>> {
        self.stride(memory, 1 + u64::from(index & (self.entries - 1)))
    }

    /// Strides are powers of two of at most a page, so none crosses one.
    fn stride<'m>(&self, memory: &'m GuestMemory, number: u64) -> Option<Span<'m>> {
        let at = number << self.stride_shift;
        let page = self.pages.get((at / PAGE_BYTES) as usize)?;
        memory.span(Gpa(page + at % PAGE_BYTES), 1 << self.stride_shift)
    }
}
