//! Memory regions of one vNIC, by key.

use masq_driver::{Access, DriverError, Gpa, MrAttr, MrHandle, MrKind, PdHandle};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::RngCore;
use rustc_hash::FxHashMap;

use crate::limits;
use crate::memory::{GuestMemory, Span};
use crate::transport::{MemoryFault, Sge};

/// The memory regions of a vNIC. A key's upper 24 bits are random and its low byte is zero; a region's local and
/// remote key are equal.
#[derive(Debug, Default)]
pub struct KeyTable {
    by_key: FxHashMap<u32, Mr>,
    by_handle: FxHashMap<MrHandle, u32>,
}

/// A memory region.
#[derive(Debug)]
pub struct Mr {
    pd: PdHandle,
    access: Access,
    iova: u64,
    length: u64,
    page_shift: u8,
    /// As the guest gave them: that a page is guest memory is known only of a [`Span`] of it.
    pages: Vec<u64>,
}

/// Who accesses memory: a queue pair, as keys are checked against it.
#[derive(Clone, Copy, Debug)]
pub struct Accessor {
    /// Its protection domain; `None` of an XRC target, until a message names a shared receive queue.
    pub pd: Option<PdHandle>,
}

/// What an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// To be the source of a send.
    LocalRead,
    /// To be written by receives and read results.
    LocalWrite,
    /// RDMA READ of a peer.
    RemoteRead,
    /// RDMA WRITE of a peer.
    RemoteWrite,
    /// Atomics of a peer.
    RemoteAtomic,
}

impl Need {
    fn is_met_by(self, access: Access) -> bool {
        match self {
            Need::LocalRead => true,
            Need::LocalWrite => access.local_write,
            Need::RemoteRead => access.remote_read,
            Need::RemoteWrite => access.remote_write,
            Need::RemoteAtomic => access.remote_atomic,
        }
    }
}

impl KeyTable {
    /// Adds a region and returns its key. Fails when the number of pages does not fit the length. O(1) whatever the
    /// region's size: its pages are not looked at, because each access looks them up in the memory table anyway.
    pub fn create(&mut self, attr: MrAttr, random: &mut ChaCha20Rng) -> Result<u32, DriverError> {
        if self.by_handle.contains_key(&attr.mr) {
            return Err(DriverError::Exists(format!("memory region {}", attr.mr.0)));
        }
        if self.by_key.len() >= limits::MAX_MRS as usize {
            return Err(DriverError::Exhausted("memory regions".into()));
        }
        let handle = attr.mr;
        let mr = Mr::new(attr)?;
        let key = loop {
            let key = random.next_u32() & 0xffff_ff00;
            if key != 0 && !self.by_key.contains_key(&key) {
                break key;
            }
        };
        self.by_key.insert(key, mr);
        self.by_handle.insert(handle, key);
        Ok(key)
    }

    /// Removes a region, if it is there.
    pub fn destroy(&mut self, mr: MrHandle) {
        if let Some(key) = self.by_handle.remove(&mr) {
            self.by_key.remove(&key);
        }
    }

    /// The regions' handles.
    pub fn handles(&self) -> Vec<MrHandle> {
        self.by_handle.keys().copied().collect()
    }

    /// Checks an access by `who` and returns the region and where in it the access begins.
    /// O(1) whatever the region's size.
    pub fn resolve(
        &self,
        who: Accessor,
        key: u32,
        addr: u64,
        len: u64,
        need: Need,
    ) -> Result<(&Mr, u64), MemoryFault> {
        let mr = self.by_key.get(&key).ok_or(MemoryFault::UnknownKey)?;
        if who.pd != Some(mr.pd) {
            return Err(MemoryFault::ForeignDomain);
        }
        if !need.is_met_by(mr.access) {
            return Err(MemoryFault::NotPermitted);
        }
        let offset = addr.checked_sub(mr.iova).ok_or(MemoryFault::OutOfRange)?;
        let end = offset.checked_add(len).ok_or(MemoryFault::OutOfRange)?;
        if end > mr.length {
            return Err(MemoryFault::OutOfRange);
        }
        Ok((mr, offset))
    }
}

impl Mr {
    fn new(attr: MrAttr) -> Result<Self, DriverError> {
        let MrAttr { mr, pd, access, kind } = attr;
        let MrKind::Pages { iova, length, pages } = kind else {
            return Err(DriverError::Unsupported(format!("{kind:?}")));
        };
        let invalid = |what: String| Err(DriverError::Invalid(format!("memory region {}: {what}", mr.0)));
        let shift = pages.shift;
        if shift > 63 || limits::PAGE_SIZE_CAP & (1 << shift) == 0 {
            return invalid(format!("page size 2^{shift} is not supported"));
        }
        if length > limits::MAX_MR_BYTES || iova.checked_add(length).is_none() {
            return invalid(format!("{length} bytes at {iova:#x} are too many"));
        }
        let page_bytes = 1u64 << shift;
        // No overflow: both terms are below 2^43.
        let needed = (iova % page_bytes + length).div_ceil(page_bytes);
        // An empty region may name a page or none.
        let fits = if length == 0 { pages.pages.len() <= 1 } else { pages.pages.len() as u64 == needed };
        if !fits {
            return invalid(format!("{} pages were given and {needed} are needed", pages.pages.len()));
        }
        Ok(Self { pd, access, iova, length, page_shift: shift, pages: pages.pages })
    }

    /// The region's guest memory `offset .. offset + len`, as few spans as there are contiguous pieces. The range
    /// has been checked by [`KeyTable::resolve`]; a page that is no guest memory ends the series with an error.
    pub fn spans<'m>(&'m self, memory: &'m GuestMemory, offset: u64, len: u64) -> MrSpans<'m> {
        let start = (self.iova & ((1 << self.page_shift) - 1)) + offset;
        MrSpans { mr: self, memory, position: start, left: len }
    }
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

/// The guest memory of a message that scatter/gather entries name, in order.
#[derive(Clone, Debug)]
pub struct SgeSpans<'m> {
    keys: &'m KeyTable,
    memory: &'m GuestMemory,
    who: Accessor,
    need: Need,
    sges: std::slice::Iter<'m, Sge>,
    skip: u64,
    left: u64,
    current: Option<MrSpans<'m>>,
}

impl<'m> SgeSpans<'m> {
    /// The `len` bytes at `offset` of the message. Keys, domain and rights are checked as each entry is reached;
    /// the series ends early when the entries hold less.
    pub fn new(
        keys: &'m KeyTable,
        memory: &'m GuestMemory,
        who: Accessor,
        need: Need,
        sges: &'m [Sge],
        offset: u64,
        len: u64,
    ) -> Self {
        Self { keys, memory, who, need, sges: sges.iter(), skip: offset, left: len, current: None }
    }
}

impl<'m> Iterator for SgeSpans<'m> {
    type Item = Result<Span<'m>, MemoryFault>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(span) = self.current.as_mut().and_then(Iterator::next) {
                return Some(span);
            }
            self.current = None;
            if self.left == 0 {
                return None;
            }
            let sge = self.sges.next()?;
            let length = u64::from(sge.length);
            if self.skip >= length {
                self.skip -= length;
                continue;
            }
            match self.keys.resolve(self.who, sge.lkey.0, sge.addr, length, self.need) {
                Ok((mr, start)) => {
                    let take = (length - self.skip).min(self.left);
                    self.current = Some(mr.spans(self.memory, start + self.skip, take));
                    self.skip = 0;
                    self.left -= take;
                }
                Err(fault) => {
                    self.left = 0;
                    return Some(Err(fault));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use masq_driver::PageList;
    use masq_types::Lkey;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;
    use crate::testing::guest_memory;

    const PD: PdHandle = PdHandle(1);
    const WHO: Accessor = Accessor { pd: Some(PD) };

    fn attr(mr: u32, iova: u64, length: u64, pages: &[u64]) -> MrAttr {
        MrAttr {
            mr: MrHandle(mr),
            pd: PD,
            access: Access { local_write: true, ..Access::default() },
            kind: MrKind::Pages { iova, length, pages: PageList { shift: 12, pages: pages.to_vec() } },
        }
    }

    fn setup() -> (GuestMemory, KeyTable, ChaCha20Rng) {
        (guest_memory(&[(0, 0x8000)]), KeyTable::default(), ChaCha20Rng::from_seed([7; 32]))
    }

    #[test]
    fn keys_are_checked_for_everything() {
        let (_, mut keys, mut random) = setup();
        let key = keys.create(attr(1, 0x1_0010, 0x1000, &[0x3000, 0x1000]), &mut random).unwrap();
        assert_eq!(key & 0xff, 0);
        let at = |pd, key, addr, len, need| {
            keys.resolve(Accessor { pd: Some(pd) }, key, addr, len, need).map(|r| r.1)
        };
        assert_eq!(at(PD, key, 0x1_0010, 0x1000, Need::LocalWrite), Ok(0));
        assert_eq!(at(PD, key, 0x1_100f, 1, Need::LocalRead), Ok(0xfff));
        assert_eq!(at(PD, key, 0x1_000f, 1, Need::LocalRead), Err(MemoryFault::OutOfRange));
        assert_eq!(at(PD, key, 0x1_1010, 1, Need::LocalRead), Err(MemoryFault::OutOfRange));
        assert_eq!(at(PD, key, 0x1_0011, u64::MAX, Need::LocalRead), Err(MemoryFault::OutOfRange));
        assert_eq!(at(PD, key ^ 1, 0x1_0010, 1, Need::LocalRead), Err(MemoryFault::UnknownKey));
        assert_eq!(at(PdHandle(2), key, 0x1_0010, 1, Need::LocalRead), Err(MemoryFault::ForeignDomain));
        for need in [Need::RemoteRead, Need::RemoteWrite, Need::RemoteAtomic] {
            assert_eq!(at(PD, key, 0x1_0010, 1, need), Err(MemoryFault::NotPermitted));
        }
        keys.destroy(MrHandle(1));
        assert!(matches!(keys.resolve(WHO, key, 0x1_0010, 1, Need::LocalRead), Err(MemoryFault::UnknownKey)));
    }

    #[test]
    fn pages_must_fit() {
        let (_, mut keys, mut random) = setup();
        let mut create = |a| keys.create(a, &mut random);
        assert!(matches!(create(attr(1, 0, 0x1001, &[0])), Err(DriverError::Invalid(_))));
        assert!(matches!(create(attr(1, 0, 0x1000, &[0, 0x1000])), Err(DriverError::Invalid(_))));
        assert!(matches!(create(attr(1, u64::MAX, 2, &[0])), Err(DriverError::Invalid(_))));
        let mut odd = attr(1, 0, 0x1000, &[0]);
        if let MrKind::Pages { pages, .. } = &mut odd.kind {
            pages.shift = 64;
        }
        assert!(matches!(create(odd), Err(DriverError::Invalid(_))));
        assert!(create(attr(1, 0, 0, &[])).is_ok());
        assert!(create(attr(2, 0x10, 0, &[])).is_ok());
        assert!(create(attr(3, 0, 0, &[0x1000])).is_ok());
        assert!(matches!(create(attr(4, 0, 0, &[0x1000, 0x2000])), Err(DriverError::Invalid(_))));
        assert!(matches!(create(attr(1, 0, 0, &[])), Err(DriverError::Exists(_))));
    }

    #[test]
    fn contiguous_pages_become_one_span() {
        let (memory, mut keys, mut random) = setup();
        let pages = [0x1000, 0x2000, 0x3000, 0x6000, 0x7000];
        let key = keys.create(attr(1, 0x800, 0x4800, &pages), &mut random).unwrap();
        let (mr, offset) = keys.resolve(WHO, key, 0x800, 0x4800, Need::LocalRead).unwrap();
        let lens: Vec<usize> = mr.spans(&memory, offset, 0x4800).map(|s| s.unwrap().len()).collect();
        assert_eq!(lens, [0x2800, 0x2000]);
        let lens: Vec<usize> = mr.spans(&memory, 0x100, 0x3000).map(|s| s.unwrap().len()).collect();
        assert_eq!(lens, [0x2700, 0x900]);
        assert_eq!(mr.spans(&memory, 0, 0).count(), 0);
    }

    #[test]
    fn memory_that_has_gone_is_an_error() {
        let (_, mut keys, mut random) = setup();
        let key = keys.create(attr(1, 0, 0x2000, &[0x1000, 0x7000]), &mut random).unwrap();
        let smaller = guest_memory(&[(0, 0x2000)]);
        let (mr, _) = keys.resolve(WHO, key, 0, 0x2000, Need::LocalRead).unwrap();
        let seen: Vec<_> = mr.spans(&smaller, 0, 0x2000).map(|s| s.map(|s| s.len())).collect();
        assert_eq!(seen, [Ok(0x1000), Err(MemoryFault::Unavailable)]);
    }

    /// Wherever a page lies, at most its part that is guest memory is handed out.
    #[test]
    fn pages_outside_guest_memory_are_never_handed_out() {
        let (memory, mut keys, mut random) = setup();
        for (i, page) in [0x8000, 0x7001, 0x7fff, u64::MAX, u64::MAX - 0xfff, 1 << 63].into_iter().enumerate()
        {
            let key = keys.create(attr(i as u32, 0, 0x2000, &[0x1000, page]), &mut random).unwrap();
            let (mr, _) = keys.resolve(WHO, key, 0, 0x2000, Need::LocalWrite).unwrap();
            let inside = 0x8000u64.saturating_sub(page).min(0x1000) as usize;
            let seen: Vec<_> = mr.spans(&memory, 0x1000, 0x1000).map(|s| s.map(|s| s.len())).collect();
            let expected = [(inside > 0).then_some(Ok(inside)), Some(Err(MemoryFault::Unavailable))];
            assert_eq!(seen, expected.into_iter().flatten().collect::<Vec<_>>(), "{page:#x}");
            assert!(mr.spans(&memory, 0x1ffc, 4).any(|s| s.is_err()), "{page:#x}");
            assert_eq!(
                mr.spans(&memory, 0, 0x1000).map(|s| s.map(|s| s.len())).collect::<Vec<_>>(),
                [Ok(0x1000)]
            );
        }
    }

    #[test]
    fn messages_span_entries() {
        let (memory, mut keys, mut random) = setup();
        let key = keys.create(attr(1, 0, 0x4000, &[0, 0x1000, 0x2000, 0x3000]), &mut random).unwrap();
        let sge = |addr, length| Sge { addr, length, lkey: Lkey(key) };
        let sges = [sge(0x10, 4), Sge { lkey: Lkey(0), ..sge(0, 0) }, sge(0x2000, 0x1800), sge(0x4000, 1)];
        let lens = |offset, len| {
            SgeSpans::new(&keys, &memory, WHO, Need::LocalRead, &sges, offset, len)
                .map(|s| s.map(|s| s.len()))
                .collect::<Vec<_>>()
        };
        assert_eq!(lens(0, 4), [Ok(4)]);
        assert_eq!(lens(2, 3), [Ok(2), Ok(1)]);
        assert_eq!(lens(4, 0x1800), [Ok(0x1800)]);
        assert_eq!(lens(5, 0x1800), [Ok(0x17ff), Err(MemoryFault::OutOfRange)]);
        assert_eq!(lens(0x9999, 1), []);
    }
}
