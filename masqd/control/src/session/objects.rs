//! What a guest has: a tree of objects under handles that the guest chose.

use std::collections::HashMap;
use std::hash::Hash;

use masq_driver::{
    CqHandle, CtxHandle, MrHandle, MwHandle, PdHandle, QpHandle, QpType, SrqHandle, XrcdHandle,
};
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
    pub mws: HashMap<MwHandle, Mw>,
    pub cqs: HashMap<CqHandle, Cq>,
    pub srqs: HashMap<SrqHandle, Srq>,
    pub xrcds: HashMap<XrcdHandle, Xrcd>,
    pub qps: HashMap<QpHandle, Qp>,
}

pub(super) struct Context {
    pub request: abi::CreateContext,
    pub cost: Cost,
}

impl Context {
    /// Whether the guest's kernel itself has opened the device.
    pub fn is_kernel(&self) -> bool {
        self.request.flags & abi::CONTEXT_KERNEL != 0
    }
}

pub(super) struct Pd {
    pub request: abi::CreatePd,
    pub ctx: CtxHandle,
    /// How many objects use it.
    pub users: usize,
}

pub(super) struct Mr {
    pub request: abi::CreateMr,
    pub reply: abi::CreateMrReply,
    pub ctx: CtxHandle,
    pub uses: Uses,
    pub cost: Cost,
}

pub(super) struct Mw {
    pub request: abi::CreateMw,
    pub reply: abi::CreateMwReply,
    pub ctx: CtxHandle,
    pub uses: Uses,
}

pub(super) struct Cq {
    pub request: abi::CreateCq,
    pub ctx: CtxHandle,
    /// How many objects use it; a queue pair that uses it for both directions counts twice.
    pub users: usize,
    pub cost: Cost,
}

pub(super) struct Srq {
    pub request: abi::CreateSrq,
    pub reply: abi::CreateSrqReply,
    pub ctx: CtxHandle,
    pub uses: Uses,
    /// How many queue pairs use it.
    pub users: usize,
    pub cost: Cost,
}

/// Belongs to no context: processes share it.
pub(super) struct Xrcd {
    pub request: abi::CreateXrcd,
    /// How many objects use it.
    pub users: usize,
}

pub(super) struct Qp {
    pub request: abi::CreateQp,
    pub reply: abi::CreateQpReply,
    pub qp_type: QpType,
    pub ctx: CtxHandle,
    pub uses: Uses,
    pub wire_qpn: WireQpn,
    /// The attributes as the guest gave them: virtual.
    pub attr: abi::QpAttr,
    /// Why its connection was revoked, if it was.
    pub revoked: Option<String>,
    pub cost: Cost,
}

impl Qp {
    /// Whether it may use several paths.
    pub fn is_group(&self) -> bool {
        self.request.flags & abi::QP_MULTIPATH != 0
    }
}

/// What an object uses, and so keeps from being destroyed.
#[derive(Clone, Copy, Default)]
pub(super) struct Uses {
    pub pd: Option<PdHandle>,
    pub send_cq: Option<CqHandle>,
    pub recv_cq: Option<CqHandle>,
    pub srq: Option<SrqHandle>,
    pub xrcd: Option<XrcdHandle>,
}

impl Objects {
    /// A new object uses these.
    pub fn hold(&mut self, uses: &Uses) {
        self.count(uses, 1);
    }

    /// An object that used these is gone.
    pub fn release(&mut self, uses: &Uses) {
        self.count(uses, -1);
    }

    fn count(&mut self, uses: &Uses, change: isize) {
        let pd = uses.pd.and_then(|pd| self.pds.get_mut(&pd)).map(|pd| &mut pd.users);
        let srq = uses.srq.and_then(|srq| self.srqs.get_mut(&srq)).map(|srq| &mut srq.users);
        let xrcd = uses.xrcd.and_then(|xrcd| self.xrcds.get_mut(&xrcd)).map(|xrcd| &mut xrcd.users);
        for users in [pd, srq, xrcd].into_iter().flatten() {
            *users = users.saturating_add_signed(change);
        }
        for cq in [uses.send_cq, uses.recv_cq].into_iter().flatten() {
            if let Some(cq) = self.cqs.get_mut(&cq) {
                cq.users = cq.users.saturating_add_signed(change);
            }
        }
    }
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

names!(
    CtxHandle Context, PdHandle Pd, MrHandle Mr, MwHandle Mw, CqHandle Cq, SrqHandle Srq, XrcdHandle Xrcd, QpHandle Qp
);
