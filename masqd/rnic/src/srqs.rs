//! The shared receive queues of one vNIC.

use masq_driver::{DriverError, PdHandle, SrqAttr, SrqHandle, XrcSrq, XrcdHandle};
use rustc_hash::FxHashMap;
use slab::Slab;

use crate::cqs::{CqKey, CqTable};
use crate::limits;
use crate::memory::GuestMemory;
use crate::ring::{RecvRing, RingBroken};
use crate::transport::RecvWork;

/// A shared receive queue's place in its table; valid as long as a queue pair uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqKey(usize);

/// All shared receive queues of a vNIC.
#[derive(Debug, Default)]
pub struct SrqTable {
    srqs: Slab<Srq>,
    by_handle: FxHashMap<SrqHandle, SrqKey>,
    /// Those that XRC messages name.
    by_number: FxHashMap<u32, SrqKey>,
    /// Queues that have failed and whose queue pairs have not been failed yet.
    broken: Vec<SrqKey>,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    handle: SrqHandle,
    pd: PdHandle,
    ring: RecvRing,
    limit: u32,
    users: u32,
    failed: bool,
    xrc: Option<Xrc>,
}

/// What a queue for XRC has besides.
#[derive(Clone, Copy, Debug)]
struct Xrc {
    xrcd: XrcdHandle,
    cq: CqKey,
    srqn: u32,
}

/// What [`SrqTable::take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A receive.
    Receive,
    /// There is none.
    Nothing,
    /// The queue cannot be read; `first`: that was not known before.
    Broken { first: bool },
}

impl SrqTable {
    /// Adds a queue; one for XRC begins to use its completion queue.
    pub fn create(
        &mut self,
        attr: SrqAttr,
        cqs: &mut CqTable,
        memory: &GuestMemory,
    ) -> Result<(), DriverError> {
        let handle = attr.srq;
        let what = format!("shared receive queue {}", handle.0);
        if self.by_handle.contains_key(&handle) {
            return Err(DriverError::Exists(what));
        }
        if self.srqs.len() >= limits::MAX_SRQS as usize {
            return Err(DriverError::Exhausted("shared receive queues".into()));
        }
        let ring = RecvRing::new(&what, attr.queue, memory)?;
        let xrc = match attr.xrc {
            None => None,
            Some(XrcSrq { srqn, .. }) if self.by_number.contains_key(&srqn) => {
                return Err(DriverError::Exists(format!("a shared receive queue with the number {srqn}")));
            }
            Some(XrcSrq { xrcd, cq, srqn }) => Some(Xrc { xrcd, cq: cqs.acquire(cq)?, srqn }),
        };
        let SrqAttr { pd, limit, .. } = attr;
        let key = SrqKey(self.srqs.insert(Srq { handle, pd, ring, limit, users: 0, failed: false, xrc }));
        self.by_handle.insert(handle, key);
        if let Some(xrc) = xrc {
            self.by_number.insert(xrc.srqn, key);
        }
        Ok(())
    }

    /// Removes a queue that no queue pair uses, if it is there.
    pub fn destroy(&mut self, handle: SrqHandle, cqs: &mut CqTable) -> Result<(), DriverError> {
        let Some(key) = self.by_handle.get(&handle).copied() else { return Ok(()) };
        if self.srqs.get(key.0).is_some_and(|s| s.users > 0) {
            return Err(DriverError::Busy(format!("shared receive queue {}", handle.0)));
        }
        self.by_handle.remove(&handle);
        self.broken.retain(|k| *k != key);
        if let Some(xrc) = self.srqs.try_remove(key.0).and_then(|s| s.xrc) {
            self.by_number.remove(&xrc.srqn);
            cqs.release(xrc.cq);
        }
        Ok(())
    }

    /// Arms a queue's limit, or with 0 disarms it.
    pub fn set_limit(&mut self, handle: SrqHandle, limit: u32) -> Result<(), DriverError> {
        let key = self.key(handle)?;
        if let Some(srq) = self.srqs.get_mut(key.0) {
            srq.limit = limit;
        }
        Ok(())
    }

    /// A queue's limit, 0 when none is armed.
    pub fn limit(&self, handle: SrqHandle) -> Result<u32, DriverError> {
        let key = self.key(handle)?;
        Ok(self.srqs.get(key.0).map_or(0, |s| s.limit))
    }

    /// The queues' handles.
    pub fn handles(&self) -> Vec<SrqHandle> {
        self.by_handle.keys().copied().collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_handle.len()
    }

    /// Begins to use a queue for a queue pair of domain `pd`. The keys in its entries are checked as the queue pair's, so both must be of one
    /// domain. Queues for XRC are named by messages instead.
    pub fn acquire(&mut self, handle: SrqHandle, pd: PdHandle) -> Result<SrqKey, DriverError> {
        let key = self.key(handle)?;
        let unusable =
            |why: &str| Err(DriverError::Invalid(format!("shared receive queue {} {why}", handle.0)));
        match self.srqs.get_mut(key.0) {
            Some(srq) if srq.xrc.is_some() => unusable("is for XRC"),
            Some(srq) if srq.pd != pd => unusable("belongs to another protection domain"),
            Some(srq) => {
                srq.users += 1;
                Ok(key)
            }
            None => unusable("is gone"),
        }
    }

    /// Ends a use of a queue.
    pub fn release(&mut self, key: SrqKey) {
        if let Some(srq) = self.srqs.get_mut(key.0) {
            srq.users = srq.users.saturating_sub(1);
        }
    }

    /// The queue with this number in an XRC domain (IBTA Vol 1 Annex A14 §A14.3), and its protection domain.
    pub fn named(&self, xrcd: XrcdHandle, srqn: u32) -> Option<(SrqKey, PdHandle)> {
        let key = *self.by_number.get(&srqn)?;
        let srq = self.srqs.get(key.0)?;
        srq.xrc.filter(|x| x.xrcd == xrcd).map(|_| (key, srq.pd))
    }

    /// The completion queue of the queue with this number.
    pub fn cq_of(&self, srqn: u32) -> Option<CqKey> {
        let key = self.by_number.get(&srqn)?;
        self.srqs.get(key.0)?.xrc.map(|x| x.cq)
    }

    /// A queue's handle.
    pub fn handle(&self, key: SrqKey) -> Option<SrqHandle> {
        self.srqs.get(key.0).map(|s| s.handle)
    }

    /// Takes a queue's next receive. A queue that cannot be read fails for good; [`SrqTable::take_broken`] tells of it.
    pub fn take(&mut self, key: SrqKey, memory: &GuestMemory, work: &mut RecvWork) -> Taken {
        let Some(srq) = self.srqs.get_mut(key.0) else { return Taken::Nothing };
        match srq.take(memory, work) {
            Ok(true) => Taken::Receive,
            Ok(false) => Taken::Nothing,
            Err(RingBroken) => {
                let first = !std::mem::replace(&mut srq.failed, true);
                if first {
                    self.broken.push(key);
                }
                Taken::Broken { first }
            }
        }
    }

    /// Whether a queue has fewer receives left than its limit, which is disarmed then.
    pub fn reaches_limit(&mut self, key: SrqKey, memory: &GuestMemory) -> bool {
        let Some(srq) = self.srqs.get_mut(key.0).filter(|s| s.limit > 0) else { return false };
        let reached = srq.ring.has_fewer_than(srq.limit, memory).unwrap_or(false);
        if reached {
            srq.limit = 0;
        }
        reached
    }

    /// Whether there is a queue that has failed.
    pub fn has_news(&self) -> bool {
        !self.broken.is_empty()
    }

    /// A queue that has failed, and whose queue pairs are now to fail.
    pub fn take_broken(&mut self) -> Option<SrqKey> {
        self.broken.pop()
    }

    fn key(&self, handle: SrqHandle) -> Result<SrqKey, DriverError> {
        let unknown = || DriverError::UnknownObject(format!("shared receive queue {}", handle.0));
        self.by_handle.get(&handle).copied().ok_or_else(unknown)
    }
}

impl Srq {
    /// Memory order: the entry has been copied when `taken` is stored with release, so a guest that loads it with acquire may
    /// write there.
    fn take(&mut self, memory: &GuestMemory, work: &mut RecvWork) -> Result<bool, RingBroken> {
        if self.failed {
            return Err(RingBroken);
        }
        let taken = self.ring.take(memory, work)?;
        if taken {
            work.srqn = self.xrc.map_or(0, |x| x.srqn);
            self.ring.publish_taken(memory)?;
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use masq_driver::{CqAttr, CqHandle, Gpa, PageList, WorkQueueAttr};
    use vrdma_abi::ring::{RecvHeader, WorkHeader};

    use super::*;
    use crate::testing::guest_memory;

    const SRQ: SrqHandle = SrqHandle(7);
    const PD: PdHandle = PdHandle(1);
    const TAKEN: usize = std::mem::offset_of!(WorkHeader, taken);

    fn attr(handle: u32, xrc: Option<XrcSrq>) -> SrqAttr {
        let ring = PageList { shift: 12, pages: vec![0, 0x1000] };
        let queue = WorkQueueAttr { entries: 32, stride_shift: 7, max_sge: 3, ring };
        SrqAttr { srq: SrqHandle(handle), pd: PD, xrc, limit: 0, queue }
    }

    fn post(memory: &GuestMemory, index: u32) {
        let entry = memory.span(Gpa(u64::from(1 + index % 32) << 7), RecvHeader::SIZE).unwrap();
        entry.store_u64(0, u64::from(index));
        memory.span(Gpa(0), 64).unwrap().store_u32(0, index + 1);
    }

    fn taken(memory: &GuestMemory) -> u32 {
        memory.span(Gpa(0), 64).unwrap().load_u32(TAKEN).unwrap()
    }

    fn table() -> (GuestMemory, CqTable, SrqTable, SrqKey) {
        let memory = guest_memory(&[(0, 0x4000)]);
        let mut cqs = CqTable::default();
        let ring = PageList { shift: 12, pages: vec![0x2000] };
        cqs.create(CqAttr { cq: CqHandle(1), entries: 4, vector: 0, ring }, &memory).unwrap();
        let mut srqs = SrqTable::default();
        srqs.create(attr(SRQ.0, None), &mut cqs, &memory).unwrap();
        let key = srqs.acquire(SRQ, PD).unwrap();
        (memory, cqs, srqs, key)
    }

    #[test]
    fn entries_are_taken_in_order_and_free_at_once() {
        let (memory, _, mut srqs, key) = table();
        let mut work = RecvWork::default();
        assert_eq!(srqs.take(key, &memory, &mut work), Taken::Nothing);
        for index in 0..100 {
            post(&memory, index);
            assert_eq!(srqs.take(key, &memory, &mut work), Taken::Receive);
            assert_eq!((work.wr_id, work.defect), (u64::from(index), None));
            assert_eq!(taken(&memory), index + 1);
        }
    }

    #[test]
    fn the_limit_is_reached_once() {
        let (memory, _, mut srqs, key) = table();
        (0..4).for_each(|i| post(&memory, i));
        srqs.set_limit(SRQ, 3).unwrap();
        let mut work = RecvWork::default();
        let mut reached = Vec::new();
        for _ in 0..3 {
            srqs.take(key, &memory, &mut work);
            reached.push(srqs.reaches_limit(key, &memory));
        }
        assert_eq!(reached, [false, true, false]);
        assert_eq!(srqs.limit(SRQ).unwrap(), 0);
        // What was posted since counts, although it was not taken notice of yet.
        srqs.set_limit(SRQ, 1).unwrap();
        srqs.take(key, &memory, &mut work);
        post(&memory, 4);
        assert!(!srqs.reaches_limit(key, &memory));
    }

    #[test]
    fn a_broken_queue_stays_so_and_tells_once() {
        let (memory, _, mut srqs, key) = table();
        memory.span(Gpa(0), 64).unwrap().store_u32(0, 33);
        let mut work = RecvWork::default();
        assert_eq!(srqs.take(key, &memory, &mut work), Taken::Broken { first: true });
        memory.span(Gpa(0), 64).unwrap().store_u32(0, 1);
        assert_eq!(srqs.take(key, &memory, &mut work), Taken::Broken { first: false });
        assert_eq!((srqs.take_broken(), srqs.take_broken()), (Some(key), None));
    }

    #[test]
    fn who_uses_it_and_who_may() {
        let (memory, mut cqs, mut srqs, key) = table();
        assert!(matches!(srqs.destroy(SRQ, &mut cqs), Err(DriverError::Busy(_))));
        assert!(matches!(srqs.acquire(SRQ, PdHandle(2)), Err(DriverError::Invalid(_))));
        srqs.release(key);
        srqs.destroy(SRQ, &mut cqs).unwrap();
        srqs.destroy(SRQ, &mut cqs).unwrap();
        assert!(matches!(srqs.acquire(SRQ, PD), Err(DriverError::UnknownObject(_))));
        let xrc = XrcSrq { xrcd: XrcdHandle(3), cq: CqHandle(1), srqn: 99 };
        srqs.create(attr(8, Some(xrc)), &mut cqs, &memory).unwrap();
        assert!(matches!(srqs.create(attr(9, Some(xrc)), &mut cqs, &memory), Err(DriverError::Exists(_))));
        assert!(matches!(srqs.acquire(SrqHandle(8), PD), Err(DriverError::Invalid(_))));
        assert!(srqs.named(XrcdHandle(3), 99).is_some() && srqs.named(XrcdHandle(4), 99).is_none());
        assert!(matches!(cqs.destroy(CqHandle(1)), Err(DriverError::Busy(_))));
        srqs.destroy(SrqHandle(8), &mut cqs).unwrap();
        assert_eq!(srqs.named(XrcdHandle(3), 99), None);
        cqs.destroy(CqHandle(1)).unwrap();
    }
}
