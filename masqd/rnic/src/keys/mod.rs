//! Memory regions and windows of one vNIC, by key.
//!
//! The upper 24 bits of a key name the object, and are random; the low byte is its owner's, who changes it with each binding of a window or
//! registration of a region, so that a peer's old key is of no use. At first it is zero.

mod region;
mod sges;
mod window;

use masq_driver::{Access, DriverError, MrAttr, MrHandle, MrKind, MwHandle, MwType, PdHandle};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::RngCore;
use rustc_hash::FxHashMap;

use crate::limits;
use crate::memory::GuestMemory;
use crate::qp::QpKey;
use crate::transport::{Bind, KeyChange, KeyFault, MemoryFault};

pub use region::{Mr, MrSpans};
pub use sges::SgeSpans;
use window::Window;

/// The memory regions and windows of a vNIC. A region's local and remote key are equal.
#[derive(Debug, Default)]
pub struct KeyTable {
    /// By the upper 24 bits of their keys.
    by_name: FxHashMap<u32, Entry>,
    mrs: FxHashMap<MrHandle, u32>,
    mws: FxHashMap<MwHandle, u32>,
}

#[derive(Debug)]
enum Entry {
    Region(Mr),
    Window(Window),
}

/// Bits of a key that are its owner's.
const OWNERS_BITS: u32 = 8;

/// Who accesses memory: a queue pair, as keys are checked against it.
#[derive(Clone, Copy, Debug)]
pub struct Accessor {
    /// Its protection domain; `None` of an XRC target, until a message names a shared receive queue.
    pub pd: Option<PdHandle>,
    /// It: windows of type 2 belong to the queue pair that has bound them.
    pub qp: QpKey,
    /// The guest's kernel owns it.
    pub kernel: bool,
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

    fn is_remote(self) -> bool {
        matches!(self, Need::RemoteRead | Need::RemoteWrite | Need::RemoteAtomic)
    }
}

impl KeyTable {
    /// Adds a region and returns its key. O(1) whatever the region's size.
    pub fn create_mr(&mut self, attr: MrAttr, random: &mut ChaCha20Rng) -> Result<u32, DriverError> {
        let handle = attr.mr;
        let what = format!("memory region {}", handle.0);
        if self.mrs.contains_key(&handle) {
            return Err(DriverError::Exists(what));
        }
        if self.mrs.len() >= limits::MAX_MRS as usize {
            return Err(DriverError::Exhausted("memory regions".into()));
        }
        let mut mr = Mr::new(&what, attr.pd, attr.access, attr.kind)?;
        let name = self.fresh_name(random);
        let key = name << OWNERS_BITS;
        mr.key = key;
        self.by_name.insert(name, Entry::Region(mr));
        self.mrs.insert(handle, name);
        Ok(key)
    }

    /// Queue pairs have other keys.
    pub fn rename_qps(&mut self, keys: &FxHashMap<QpKey, QpKey>) {
        for entry in self.by_name.values_mut() {
            if let Entry::Window(window) = entry
                && let Some(binder) = window.binder_mut()
            {
                *binder = keys.get(binder).copied().unwrap_or(*binder);
            }
        }
    }

    /// Changes a region as a whole or not at all, unless windows are bound to it.
    pub fn rereg_mr(
        &mut self,
        handle: MrHandle,
        pd: Option<PdHandle>,
        access: Option<Access>,
        memory: Option<MrKind>,
    ) -> Result<(), DriverError> {
        let what = format!("memory region {}", handle.0);
        let name = self.mrs.get(&handle).ok_or_else(|| DriverError::UnknownObject(what.clone()))?;
        match self.by_name.get_mut(name) {
            Some(Entry::Region(mr)) if mr.windows == 0 => mr.changed(&what, pd, access, memory),
            _ => Err(DriverError::Busy(format!("{what}, which windows are bound to,"))),
        }
    }

    /// Removes a region, if it is there, unless windows are bound to it (IBTA Vol 1 §11.2.8.5).
    pub fn destroy_mr(&mut self, handle: MrHandle) -> Result<(), DriverError> {
        let Some(name) = self.mrs.get(&handle).copied() else { return Ok(()) };
        if matches!(self.by_name.get(&name), Some(Entry::Region(mr)) if mr.windows > 0) {
            return Err(DriverError::Busy(format!(
                "memory region {}, which windows are bound to,",
                handle.0
            )));
        }
        self.mrs.remove(&handle);
        self.by_name.remove(&name);
        Ok(())
    }

    /// Adds a window, which is bound to nothing, and returns its key.
    pub fn create_mw(
        &mut self,
        handle: MwHandle,
        pd: PdHandle,
        mw_type: MwType,
        random: &mut ChaCha20Rng,
    ) -> Result<u32, DriverError> {
        if self.mws.contains_key(&handle) {
            return Err(DriverError::Exists(format!("memory window {}", handle.0)));
        }
        if self.mws.len() >= limits::MAX_MWS as usize {
            return Err(DriverError::Exhausted("memory windows".into()));
        }
        let name = self.fresh_name(random);
        let key = name << OWNERS_BITS;
        self.by_name.insert(name, Entry::Window(Window::new(key, pd, mw_type)));
        self.mws.insert(handle, name);
        Ok(key)
    }

    /// Removes a window, bound or not, if it is there.
    pub fn destroy_mw(&mut self, handle: MwHandle) {
        if let Some(name) = self.mws.remove(&handle) {
            self.unbind(name);
            self.by_name.remove(&name);
        }
    }

    /// The regions' handles.
    pub fn mr_handles(&self) -> Vec<MrHandle> {
        self.mrs.keys().copied().collect()
    }

    /// The windows' handles.
    pub fn mw_handles(&self) -> Vec<MwHandle> {
        self.mws.keys().copied().collect()
    }

    /// How many regions there are.
    pub fn mr_count(&self) -> usize {
        self.mrs.len()
    }

    /// How many windows there are.
    pub fn mw_count(&self) -> usize {
        self.mws.len()
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
        match self.by_name.get(&(key >> OWNERS_BITS)).ok_or(MemoryFault::UnknownKey)? {
            Entry::Region(mr) => Ok((mr, mr.check(who, key, addr, len, need)?)),
            Entry::Window(window) => {
                let (region, offset) = window.check(who, key, addr, len, need)?;
                match self.by_name.get(&region) {
                    Some(Entry::Region(mr)) => Ok((mr, offset)),
                    _ => Err(MemoryFault::UnknownKey),
                }
            }
        }
    }

    /// Carries out a work request that changes what a key stands for: all of it, or nothing.
    pub fn change(
        &mut self,
        who: Accessor,
        change: &KeyChange,
        memory: &GuestMemory,
    ) -> Result<(), KeyFault> {
        match change {
            KeyChange::Invalidate(key) => self.invalidate(who, key.0),
            KeyChange::Bind(bind) => self.bind(who, bind),
            KeyChange::Register(reg) => match self.by_name.get_mut(&(reg.key.0 >> OWNERS_BITS)) {
                Some(Entry::Region(mr)) => mr.register(who, reg, memory),
                Some(Entry::Window(_)) => Err(KeyFault::WrongKind),
                None => Err(KeyFault::Unknown),
            },
        }
    }

    fn bind(&mut self, who: Accessor, bind: &Bind) -> Result<(), KeyFault> {
        let name = bind.key.0 >> OWNERS_BITS;
        let window = match self.by_name.get(&name) {
            Some(Entry::Window(window)) => window,
            Some(Entry::Region(_)) => return Err(KeyFault::WrongKind),
            None => return Err(KeyFault::Unknown),
        };
        window.check_bind(who, bind)?;
        let region = bind.lkey.0 >> OWNERS_BITS;
        let target = match self.by_name.get(&region) {
            _ if bind.length == 0 => None,
            Some(Entry::Region(mr)) => Some((region, mr.check_bind(window.pd, bind)?)),
            _ => return Err(KeyFault::Unknown),
        };
        self.unbind(name);
        if let Some(Entry::Window(window)) = self.by_name.get_mut(&name) {
            window.bind(who, bind, target);
        }
        if let (Some(_), Some(Entry::Region(mr))) = (target, self.by_name.get_mut(&region)) {
            mr.windows += 1;
        }
        Ok(())
    }

    fn invalidate(&mut self, who: Accessor, key: u32) -> Result<(), KeyFault> {
        let name = key >> OWNERS_BITS;
        match self.by_name.get_mut(&name).ok_or(KeyFault::Unknown)? {
            Entry::Region(mr) => mr.invalidate(who, key),
            Entry::Window(window) => {
                window.check_invalidate(who, key)?;
                self.unbind(name);
                Ok(())
            }
        }
    }

    fn unbind(&mut self, window: u32) {
        let Some(Entry::Window(window)) = self.by_name.get_mut(&window) else { return };
        let region = window.region();
        window.unbind();
        if let Some(Entry::Region(mr)) = region.and_then(|r| self.by_name.get_mut(&r)) {
            mr.windows = mr.windows.saturating_sub(1);
        }
    }

    fn fresh_name(&self, random: &mut ChaCha20Rng) -> u32 {
        loop {
            let name = random.next_u32() >> OWNERS_BITS;
            if name != 0 && !self.by_name.contains_key(&name) {
                return name;
            }
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

/// Where `len` bytes at `addr` begin in `length` bytes at `base`, if all of them lie there.
#[inline]
fn offset_within(base: u64, length: u64, addr: u64, len: u64) -> Option<u64> {
    let offset = addr.checked_sub(base)?;
    (offset.checked_add(len)? <= length).then_some(offset)
}
