//! Memory windows (IBTA Vol 1 §10.6.7).

use masq_driver::{Access, MwType, PdHandle};

use super::{Accessor, KeyFault, Need, offset_within};
use crate::qp::QpKey;
use crate::transport::{Bind, MemoryFault};

/// A memory window.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) key: u32,
    pub(super) pd: PdHandle,
    pub(super) mw_type: MwType,
    binding: Option<Binding>,
}

/// What a window is bound to.
#[derive(Clone, Copy, Debug)]
struct Binding {
    /// The name of the region: the upper 24 bits of its key.
    region: u32,
    /// Where in the region the window begins.
    offset: u64,
    /// Address of its first byte.
    base: u64,
    length: u64,
    access: Access,
    /// The queue pair that has bound it.
    qp: QpKey,
}

impl Window {
    /// A window that is bound to nothing.
    pub(super) fn new(key: u32, pd: PdHandle, mw_type: MwType) -> Self {
        Self { key, pd, mw_type, binding: None }
    }

    /// The queue pair that has bound it, if it is bound.
    pub(super) fn binder_mut(&mut self) -> Option<&mut QpKey> {
        self.binding.as_mut().map(|b| &mut b.qp)
    }

    /// The region that it is bound to.
    pub(super) fn region(&self) -> Option<u32> {
        self.binding.map(|b| b.region)
    }

    /// The region that an access by a peer reaches, and where in it the access begins, if it may be.
    pub(super) fn check(
        &self,
        who: Accessor,
        key: u32,
        addr: u64,
        len: u64,
        need: Need,
    ) -> Result<(u32, u64), MemoryFault> {
        // A window's key is no local key.
        let binding = self.binding.filter(|_| self.key == key && need.is_remote());
        let binding = binding.ok_or(MemoryFault::UnknownKey)?;
        if who.pd != Some(self.pd) {
            return Err(MemoryFault::ForeignDomain);
        }
        let other_qp = self.mw_type == MwType::Two && binding.qp != who.qp;
        if other_qp || !need.is_met_by(binding.access) {
            return Err(MemoryFault::NotPermitted);
        }
        let offset = offset_within(binding.base, binding.length, addr, len).ok_or(MemoryFault::OutOfRange)?;
        Ok((binding.region, binding.offset + offset))
    }

    /// Whether `who` may bind it so (IBTA Vol 1 C10-72, o10-36.2.2, o10-37.2.30, o10-37.2.40).
    pub(super) fn check_bind(&self, who: Accessor, bind: &Bind) -> Result<(), KeyFault> {
        if who.pd != Some(self.pd) {
            return Err(KeyFault::ForeignDomain);
        }
        match self.mw_type {
            MwType::One if bind.access.zero_based => Err(KeyFault::NotPermitted),
            MwType::One => Ok(()),
            MwType::Two if self.binding.is_some() => Err(KeyFault::InUse),
            MwType::Two if bind.length == 0 => Err(KeyFault::OutOfRange),
            MwType::Two => Ok(()),
        }
    }

    /// Binds it to a place in a region, or with `None` to nothing.
    pub(super) fn bind(&mut self, who: Accessor, bind: &Bind, target: Option<(u32, u64)>) {
        self.key = bind.key.0;
        self.binding = target.map(|(region, offset)| Binding {
            region,
            offset,
            base: if bind.access.zero_based { 0 } else { bind.addr },
            length: bind.length,
            access: bind.access,
            qp: who.qp,
        });
    }

    /// Whether `who` may invalidate it: one of type 2, and when it is bound, the queue pair that has bound it.
    pub(super) fn check_invalidate(&self, who: Accessor, key: u32) -> Result<(), KeyFault> {
        if self.mw_type != MwType::Two {
            return Err(KeyFault::WrongKind);
        }
        if self.key != key {
            return Err(KeyFault::Unknown);
        }
        if who.pd != Some(self.pd) {
            return Err(KeyFault::ForeignDomain);
        }
        match self.binding {
            Some(binding) if binding.qp != who.qp => Err(KeyFault::NotPermitted),
            _ => Ok(()),
        }
    }

    /// Unbinds it.
    pub(super) fn unbind(&mut self) {
        self.binding = None;
    }
}
