//! What a guest has: a tree of objects under handles that the guest chose.

use std::collections::HashMap;
use std::hash::Hash;

use masq_driver::{CqHandle, CtxHandle, MrHandle, PdHandle, QpHandle};
use masq_policy::quota::Resource;
use masq_types::WireQpn;
use vrdma_abi::control as abi;
use vrdma_abi::control::PageTable;

use crate::{ObjectKind, Reason};

/// All objects of a guest.
#[derive(Default)]
pub(super) struct Objects {
    pub contexts: HashMap<CtxHandle, Context>,
    pub pds: HashMap<PdHandle, Pd>,
    pub mrs: HashMap<MrHandle, Mr>,
    pub cqs: HashMap<CqHandle, Cq>,
    pub qps: HashMap<QpHandle, Qp>,
}

pub(super) struct Context {
    pub request: abi::CreateContext,
    pub cost: Cost,
}

pub(super) struct Pd {
    pub request: abi::CreatePd,
    pub ctx: CtxHandle,
    /// Memory regions and queue pairs in it.
    pub users: usize,
}

pub(super) struct Mr {
    pub request: abi::CreateMr,
    pub reply: abi::CreateMrReply,
    pub pd: PdHandle,
    pub cost: Cost,
}

pub(super) struct Cq {
    pub request: abi::CreateCq,
    pub ctx: CtxHandle,
    /// Queue pairs that use it; one that uses it for both directions counts twice.
    pub users: usize,
    pub cost: Cost,
}

pub(super) struct Qp {
    pub request: abi::CreateQp,
    pub reply: abi::CreateQpReply,
    pub pd: PdHandle,
    pub ctx: CtxHandle,
    pub send_cq: CqHandle,
    pub recv_cq: CqHandle,
    pub wire_qpn: WireQpn,
    /// The attributes as the guest gave them: virtual.
    pub attr: abi::QpAttr,
    pub cost: Cost,
}

/// What an object takes of its guest's quotas.
pub(super) type Cost = [(Resource, u64); 3];

/// The cost of an object of this kind that keeps the pages of `tables`.
pub(super) fn cost(resource: Resource, tables: &[PageTable]) -> Cost {
    let listed: u64 = tables.iter().map(|t| u64::from(t.count)).sum();
    let bytes = |t: &PageTable| {
        u64::from(t.count).saturating_mul(1u64.checked_shl(t.page_shift.into()).unwrap_or(u64::MAX))
    };
    let pinned = tables.iter().map(bytes).fold(0, u64::saturating_add);
    [(resource, 1), (Resource::ListedPages, listed), (Resource::PinnedBytes, pinned)]
}

/// The object behind a handle that a command refers to.
pub(super) fn find<H: Copy + Eq + Hash + Into<Name>, T>(
    map: &HashMap<H, T>,
    handle: H,
) -> Result<&T, Reason> {
    map.get(&handle).ok_or_else(|| handle.into().missing())
}

/// Kind and handle of an object.
#[derive(Clone, Copy)]
pub(super) struct Name(pub ObjectKind, pub u32);

impl Name {
    pub fn missing(self) -> Reason {
        Reason::NoSuchObject { kind: self.0, handle: self.1 }
    }

    pub fn exists(self) -> Reason {
        Reason::Exists(format!("{} {:#x}", self.0, self.1))
    }

    pub fn busy(self, users: impl Into<String>) -> Reason {
        Reason::Busy { kind: self.0, handle: self.1, users: users.into() }
    }
}

macro_rules! names {
    ($($handle:ident $kind:ident),*) => {$(
        impl From<$handle> for Name {
            fn from(h: $handle) -> Name {
                Name(ObjectKind::$kind, h.0)
            }
        }
    )*};
}

names!(CtxHandle Context, PdHandle Pd, MrHandle Mr, CqHandle Cq, QpHandle Qp);
