//! The completion queues of one vNIC, and the events that armed ones send.

use std::collections::VecDeque;

use masq_driver::{CqAttr, CqHandle, DriverError, PageList};
use rustc_hash::FxHashMap;
use slab::Slab;
use vrdma_abi::event::CompEvent;
use vrdma_abi::ring::Cqe;

use crate::limits;
use crate::memory::GuestMemory;
use crate::ring::{Announce, Cq};
use crate::virtqueue::{EventQueue, Push};

/// A completion queue's place in its table; valid as long as a queue pair uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqKey(usize);

/// All completion queues of a vNIC.
#[derive(Debug, Default)]
pub struct CqTable {
    cqs: Slab<Entry>,
    by_handle: FxHashMap<CqHandle, CqKey>,
    /// Queues with entries that have not been announced.
    touched: Vec<CqKey>,
    /// Queues that have lost their first entry and whose queue pairs have not been failed yet; `true`: it has been told.
    overrun: Vec<(CqKey, bool)>,
    /// For each vector: queues whose event waits for a buffer of the guest, at most once each.
    waiting: [VecDeque<CqKey>; limits::COMP_VECTORS as usize],
}

#[derive(Debug)]
struct Entry {
    handle: CqHandle,
    cq: Cq,
    users: u32,
    touched: bool,
    waiting: bool,
}

impl CqTable {
    /// Adds a queue.
    pub fn create(&mut self, attr: CqAttr, memory: &GuestMemory) -> Result<(), DriverError> {
        let handle = attr.cq;
        if self.by_handle.contains_key(&handle) {
            return Err(DriverError::Exists(format!("completion queue {}", handle.0)));
        }
        if self.cqs.len() >= limits::MAX_CQS as usize {
            return Err(DriverError::Exhausted("completion queues".into()));
        }
        let cq = Cq::new(attr, memory)?;
        let key = CqKey(self.cqs.insert(Entry { handle, cq, users: 0, touched: false, waiting: false }));
        self.by_handle.insert(handle, key);
        Ok(())
    }

    /// Gives a queue another ring.
    pub fn resize(
        &mut self,
        handle: CqHandle,
        entries: u32,
        ring: PageList,
        memory: &GuestMemory,
    ) -> Result<(), DriverError> {
        let what = format!("completion queue {}", handle.0);
        let entry = self.by_handle.get(&handle).and_then(|key| self.cqs.get_mut(key.0));
        let Some(entry) = entry else { return Err(DriverError::UnknownObject(what)) };
        entry.cq.resize(&what, entries, ring, memory)
    }

    /// Removes a queue that no queue pair uses, if it is there.
    pub fn destroy(&mut self, handle: CqHandle) -> Result<(), DriverError> {
        let Some(key) = self.by_handle.get(&handle).copied() else { return Ok(()) };
        if self.cqs.get(key.0).is_some_and(|e| e.users > 0) {
            return Err(DriverError::Busy(format!("completion queue {}", handle.0)));
        }
        self.by_handle.remove(&handle);
        self.cqs.try_remove(key.0);
        self.touched.retain(|k| *k != key);
        self.overrun.retain(|(k, _)| *k != key);
        self.waiting.iter_mut().for_each(|w| w.retain(|k| *k != key));
        Ok(())
    }

    /// The queues' handles.
    pub fn handles(&self) -> Vec<CqHandle> {
        self.by_handle.keys().copied().collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_handle.len()
    }

    /// Begins to use a queue.
    pub fn acquire(&mut self, handle: CqHandle) -> Result<CqKey, DriverError> {
        let unknown = || DriverError::UnknownObject(format!("completion queue {}", handle.0));
        let key = self.by_handle.get(&handle).copied().ok_or_else(unknown)?;
        self.cqs.get_mut(key.0).ok_or_else(unknown)?.users += 1;
        Ok(key)
    }

    /// Ends a use of a queue.
    pub fn release(&mut self, key: CqKey) {
        if let Some(e) = self.cqs.get_mut(key.0) {
            e.users = e.users.saturating_sub(1);
        }
    }

    /// Writes an entry; `false` when it is lost, because the queue has overrun. [`CqTable::take_overrun`] tells of the
    /// first time.
    pub fn push(&mut self, key: CqKey, memory: &GuestMemory, cqe: Cqe) -> bool {
        let Some(e) = self.cqs.get_mut(key.0) else { return true };
        let failed_before = e.cq.has_failed();
        match e.cq.push(memory, cqe) {
            Ok(()) if !e.touched => {
                e.touched = true;
                self.touched.push(key);
            }
            Ok(()) => {}
            Err(_) => {
                if !failed_before {
                    self.overrun.push((key, false));
                }
                return false;
            }
        }
        true
    }

    /// Whether there is something to announce, or a queue that has overrun.
    pub fn has_news(&self) -> bool {
        !self.touched.is_empty() || !self.overrun.is_empty()
    }

    /// Calls `tell` for each queue that has lost its first entry and of which it has not been told. To be told
    /// before its queue pairs fail, for that is why they do.
    pub fn tell_overruns(&mut self, mut tell: impl FnMut(CqHandle)) {
        for (key, told) in &mut self.overrun {
            if !std::mem::replace(told, true)
                && let Some(e) = self.cqs.get(key.0)
            {
                tell(e.handle);
            }
        }
    }

    /// A queue that has lost its first entry, and whose queue pairs are now to fail.
    pub fn take_overrun(&mut self) -> Option<CqKey> {
        self.overrun.pop().map(|(key, _)| key)
    }

    /// Sends the events that the entries written since the last call ask for, as far as there are buffers.
    pub fn announce(&mut self, memory: &GuestMemory, queues: &mut CompQueues, epoch: u64) {
        if self.touched.is_empty() {
            return;
        }
        for key in self.touched.drain(..) {
            let Some(e) = self.cqs.get_mut(key.0) else { continue };
            e.touched = false;
            if e.cq.announce(memory) == Announce::Event && !e.waiting {
                e.waiting = true;
                if let Some(w) = self.waiting.get_mut(usize::from(e.cq.vector())) {
                    w.push_back(key);
                }
            }
        }
        self.deliver(memory, queues, epoch);
    }

    /// Sends events that wait, as far as there are buffers.
    pub fn deliver(&mut self, memory: &GuestMemory, queues: &mut CompQueues, epoch: u64) {
        for (waiting, queue) in self.waiting.iter_mut().zip(&mut queues.0) {
            let Some(queue) = queue.as_mut().filter(|_| !waiting.is_empty()) else { continue };
            while let Some(key) = waiting.front().copied() {
                if let Some(e) = self.cqs.get_mut(key.0) {
                    let event = CompEvent { cq: e.handle.0, reserved: 0, epoch };
                    if queue.push(memory, &event) == Push::NoBuffer {
                        break;
                    }
                    e.waiting = false;
                }
                waiting.pop_front();
            }
            queue.notify(memory);
        }
    }
}

/// The completion-event queues of a vNIC, by vector.
#[derive(Debug, Default)]
pub struct CompQueues(pub [Option<EventQueue>; limits::COMP_VECTORS as usize]);
