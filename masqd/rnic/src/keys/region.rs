//! Memory regions.

use masq_driver::{Access, DriverError, Gpa, MrKind, PageList, PdHandle};

use super::{Accessor, KeyFault, Need, offset_within};
use crate::limits;
use crate::memory::{GuestMemory, PAGE_BYTES, Span};
use crate::transport::{Bind, MemoryFault, Registration};

/// A memory region.
#[derive(Debug)]
pub struct Mr {
    pub(super) key: u32,
    pub(super) pd: PdHandle,
    access: Access,
    /// Address of its first byte.
    base: u64,
    length: u64,
    /// Where its first byte lies in its first page.
    start: u64,
    page_shift: u8,
    /// As the guest gave them: that a page is guest memory is known only of a [`Span`] of it.
    pages: Vec<u64>,
    kind: Kind,
    /// Windows that are bound to it.
    pub(super) windows: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    /// All of the guest's memory, for its kernel.
    AllMemory,
    /// Work requests register and invalidate it.
    FastReg {
        max_pages: u32,
        valid: bool,
    },
}

/// Memory as a region has it.
#[derive(Debug, Default)]
struct Layout {
    iova: u64,
    length: u64,
    pages: PageList,
}

impl Layout {
    /// Checks that there are as many pages as the length needs. O(1): the pages themselves are looked up at each access anyway.
    fn check(&self) -> Result<(), String> {
        let Layout { iova, length, pages } = self;
        let needed = pages_needed(*iova, *length, pages.shift)?;
        // An empty region may name a page or none.
        let given = pages.pages.len() as u64;
        let fits = if *length == 0 { given <= 1 } else { given == needed };
        if fits { Ok(()) } else { Err(format!("{given} pages were given and {needed} are needed")) }
    }
}

/// Pages of so many bytes at this address.
fn pages_needed(iova: u64, length: u64, page_shift: u8) -> Result<u64, String> {
    if page_shift > 63 || limits::PAGE_SIZE_CAP & (1 << page_shift) == 0 {
        return Err(format!("page size 2^{page_shift} is not supported"));
    }
    if length > limits::MAX_MR_BYTES || iova.checked_add(length).is_none() {
        return Err(format!("{length} bytes at {iova:#x} are too many"));
    }
    let page_bytes = 1u64 << page_shift;
    // No overflow: both terms are below 2^43.
    Ok((iova % page_bytes + length).div_ceil(page_bytes))
}

impl Mr {
    /// A region without key. Fails when the number of pages does not fit the length; O(1) whatever the region's size.
    pub(super) fn new(what: &str, pd: PdHandle, access: Access, kind: MrKind) -> Result<Self, DriverError> {
        let empty = Self {
            key: 0,
            pd,
            access,
            base: 0,
            length: 0,
            start: 0,
            page_shift: PAGE_BYTES.trailing_zeros() as u8,
            pages: Vec::new(),
            kind: Kind::Plain,
            windows: 0,
        };
        match kind {
            MrKind::Pages { iova, length, pages } => {
                let layout = Layout { iova, length, pages };
                layout.check().map_err(|why| DriverError::Invalid(format!("{what}: {why}")))?;
                let mut mr = empty;
                mr.lay_out(layout);
                Ok(mr)
            }
            // One page, with as many bytes as half of the address space: what of them is memory, each access finds out.
            MrKind::AllMemory => {
                let (length, page_shift, pages) = (1 << 63, 63, vec![0]);
                Ok(Self { length, page_shift, pages, kind: Kind::AllMemory, ..empty })
            }
            MrKind::FastReg { max_pages } if max_pages <= vrdma_abi::config::FAST_REG_MAX_PAGES => {
                Ok(Self { kind: Kind::FastReg { max_pages, valid: false }, ..empty })
            }
            MrKind::FastReg { max_pages } => {
                Err(DriverError::Invalid(format!("{what}: {max_pages} pages are too many")))
            }
        }
    }

    fn lay_out(&mut self, layout: Layout) {
        let Layout { iova, length, pages } = layout;
        self.base = if self.access.zero_based { 0 } else { iova };
        self.start = iova & ((1 << pages.shift) - 1);
        (self.length, self.page_shift, self.pages) = (length, pages.shift, pages.pages);
    }

    /// The region with another domain, other rights or other memory, whatever is given.
    pub(super) fn changed(
        &mut self,
        what: &str,
        pd: Option<PdHandle>,
        access: Option<Access>,
        memory: Option<MrKind>,
    ) -> Result<(), DriverError> {
        let invalid = |why: String| DriverError::Invalid(format!("{what}: {why}"));
        if self.kind != Kind::Plain {
            return Err(invalid("only a region with pages of its own can be changed".into()));
        }
        let layout = match memory {
            Some(MrKind::Pages { iova, length, pages }) => Some(Layout { iova, length, pages }),
            Some(kind) => return Err(invalid(format!("it cannot become one of the kind {kind:?}"))),
            None => None,
        };
        if let Some(layout) = &layout {
            layout.check().map_err(invalid)?;
        }
        let access = access.unwrap_or(self.access);
        if layout.is_none() && access.zero_based != self.access.zero_based {
            return Err(invalid("where its addresses begin changes with its memory only".into()));
        }
        self.access = access;
        self.pd = pd.unwrap_or(self.pd);
        if let Some(layout) = layout {
            self.lay_out(layout);
        }
        Ok(())
    }

    /// Where in the region an access begins, if it may be.
    #[inline]
    pub(super) fn check(
        &self,
        who: Accessor,
        key: u32,
        addr: u64,
        len: u64,
        need: Need,
    ) -> Result<u64, MemoryFault> {
        let valid = match self.kind {
            Kind::Plain => true,
            Kind::AllMemory if !who.kernel => return Err(MemoryFault::NotPermitted),
            Kind::AllMemory => true,
            Kind::FastReg { valid, .. } => valid,
        };
        if self.key != key || !valid {
            return Err(MemoryFault::UnknownKey);
        }
        if who.pd != Some(self.pd) {
            return Err(MemoryFault::ForeignDomain);
        }
        if !need.is_met_by(self.access) {
            return Err(MemoryFault::NotPermitted);
        }
        offset_within(self.base, self.length, addr, len).ok_or(MemoryFault::OutOfRange)
    }

    /// Where in the region a window would begin, if it may be bound (IBTA Vol 1 §10.6.7.2, C10-74 to C10-77).
    pub(super) fn check_bind(&self, pd: PdHandle, bind: &Bind) -> Result<u64, KeyFault> {
        if self.key != bind.lkey.0 || self.kind != Kind::Plain {
            return Err(KeyFault::Unknown);
        }
        if self.pd != pd {
            return Err(KeyFault::ForeignDomain);
        }
        let changes = bind.access.remote_write || bind.access.remote_atomic;
        if !self.access.mw_bind || (changes && !self.access.local_write) {
            return Err(KeyFault::NotPermitted);
        }
        offset_within(self.base, self.length, bind.addr, bind.length).ok_or(KeyFault::OutOfRange)
    }

    /// Gives a region for fast registration its pages, whose list is copied out of guest memory once.
    pub(super) fn register(
        &mut self,
        who: Accessor,
        reg: &Registration,
        memory: &GuestMemory,
    ) -> Result<(), KeyFault> {
        let Kind::FastReg { max_pages, valid } = self.kind else { return Err(KeyFault::WrongKind) };
        if who.pd != Some(self.pd) {
            return Err(KeyFault::ForeignDomain);
        }
        if !who.kernel {
            return Err(KeyFault::NotPermitted);
        }
        if valid {
            return Err(KeyFault::InUse);
        }
        let shift = u8::try_from(reg.page_shift).map_err(|_| KeyFault::OutOfRange)?;
        let count = pages_needed(reg.iova, reg.length, shift).map_err(|_| KeyFault::OutOfRange)?;
        if count > u64::from(max_pages) {
            return Err(KeyFault::OutOfRange);
        }
        let pages = read_list(reg.list, count as usize, memory).ok_or(KeyFault::Unavailable)?;
        self.key = reg.key.0;
        self.access = reg.access;
        self.kind = Kind::FastReg { max_pages, valid: true };
        self.lay_out(Layout { iova: reg.iova, length: reg.length, pages: PageList { shift, pages } });
        Ok(())
    }

    /// Ends the validity of a region for fast registration. One that is invalid stays so.
    pub(super) fn invalidate(&mut self, who: Accessor, key: u32) -> Result<(), KeyFault> {
        let Kind::FastReg { max_pages, .. } = self.kind else { return Err(KeyFault::WrongKind) };
        if self.key != key {
            return Err(KeyFault::Unknown);
        }
        if who.pd != Some(self.pd) {
            return Err(KeyFault::ForeignDomain);
        }
        self.kind = Kind::FastReg { max_pages, valid: false };
        Ok(())
    }

    /// The region's guest memory `offset .. offset + len`, as few spans as there are contiguous pieces. The range
    /// has been checked by [`KeyTable::resolve`](super::KeyTable::resolve); a page that is no guest memory ends the series with an error.
    pub fn spans<'m>(&'m self, memory: &'m GuestMemory, offset: u64, len: u64) -> MrSpans<'m> {
        MrSpans { mr: self, memory, position: self.start + offset, left: len }
    }
}

/// A list of guest-physical addresses, which lies in one page.
fn read_list(list: u64, count: usize, memory: &GuestMemory) -> Option<Vec<u64>> {
    let bytes = count * size_of::<u64>();
    if list % PAGE_BYTES + bytes as u64 > PAGE_BYTES {
        return None;
    }
    let mut copy = Vec::with_capacity(bytes);
    if bytes > 0 {
        memory.span(Gpa(list), bytes)?.append_to(&mut copy);
    }
    Some(copy.as_chunks().0.iter().map(|c| u64::from_ne_bytes(*c)).collect())
}

/// See [`Mr::spans`].
#[derive(Clone, Debug)]
pub struct MrSpans<'m> {
    mr: &'m Mr,
    memory: &'m GuestMemory,
    /// Bytes from the start of the first page.
    position: u64,
    left: u64,
}

impl<'m> MrSpans<'m> {
    /// The memory at `position`, up to the end of its page or region.
    fn piece(&self) -> Option<Span<'m>> {
        let shift = self.mr.page_shift;
        let page = *self.mr.pages.get(usize::try_from(self.position >> shift).ok()?)?;
        let in_page = self.position & ((1 << shift) - 1);
        let want = ((1 << shift) - in_page).min(self.left);
        self.memory.span_up_to(Gpa(page.checked_add(in_page)?), usize::try_from(want).ok()?)
    }
}

impl MrSpans<'_> {
    fn advance(&mut self, bytes: usize) {
        self.position += bytes as u64;
        self.left -= bytes as u64;
    }
}

impl<'m> Iterator for MrSpans<'m> {
    type Item = Result<Span<'m>, MemoryFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let Some(mut span) = self.piece() else {
            self.left = 0;
            return Some(Err(MemoryFault::Unavailable));
        };
        self.advance(span.len());
        // Merge what is contiguous in host memory: one large copy beats many small ones.
        while self.left > 0 {
            let Some(next) = self.piece() else { break };
            let Some(joined) = span.join(next) else { break };
            self.advance(next.len());
            span = joined;
        }
        Some(Ok(span))
    }
}
