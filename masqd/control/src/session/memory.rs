//! Memory regions and windows.

use masq_driver::{Access, Command, CtxHandle, MrAttr, MrHandle, MrKind, MwHandle, MwType, PdHandle};
use masq_policy::quota::Resource;
use vrdma_abi::config::{FAST_REG_MAX_PAGES, PAGE_BYTES};
use vrdma_abi::control as abi;

use super::create::{replayed, same_context};
use super::decode::{known_bits, malformed, reserved, usable, within};
use super::objects::{Cost, Mr, Mw, Uses, cost, find};
use super::pages::{self, Wanted};
use super::{Session, driver_reply};
use crate::{Env, Reason};

/// Bits from here up are optional access bits (IBV_ACCESS_OPTIONAL_FIRST).
const ACCESS_OPTIONAL_FIRST: u32 = 1 << 20;
const ACCESS_KNOWN: u32 = abi::ACCESS_LOCAL_WRITE
    | abi::ACCESS_REMOTE_WRITE
    | abi::ACCESS_REMOTE_READ
    | abi::ACCESS_REMOTE_ATOMIC
    | abi::ACCESS_MW_BIND
    | abi::ACCESS_ZERO_BASED;
const REREG_KNOWN: u32 = abi::REREG_TRANSLATION | abi::REREG_PD | abi::REREG_ACCESS;

impl Session {
    pub(super) fn create_mr(&mut self, env: Env<'_>, r: abi::CreateMr) -> Result<abi::CreateMrReply, Reason> {
        let (mr, pd) = (MrHandle(r.mr), PdHandle(r.pd));
        if let Some(m) = self.objects.mrs.get(&mr) {
            return replayed(m.request == r, mr, m.reply);
        }
        usable(r.mr)?;
        known_bits("memory region", r.flags.into(), u64::from(abi::MR_ALL_MEMORY | abi::MR_FAST_REG))?;
        let access = region_access(r.access)?;
        match r.flags {
            0 => self.check_translation(r.iova, r.length, &r.pages)?,
            _ => check_without_pages(&r)?,
        }
        let ctx = find(&self.objects.pds, pd)?.ctx;
        if r.flags != 0 {
            self.kernel_only(ctx, "such a memory region")?;
        }
        let cost = cost_of_region(&r);
        let reply = self.paying(&cost, |s| {
            let kind = match r.flags {
                abi::MR_ALL_MEMORY => MrKind::AllMemory,
                abi::MR_FAST_REG => MrKind::FastReg { max_pages: max_pages(&r) },
                _ => translation(env, r.iova, r.length, &r.pages)?,
            };
            let mr = MrAttr { mr, pd, access, kind };
            let reply = env.rnic.execute(Command::CreateMr { vnic: s.config.id, mr })?;
            driver_reply!(reply, masq_driver::Reply::MrCreated { lkey, rkey } => {
                abi::CreateMrReply { lkey: lkey.0, rkey: rkey.0 }
            })
        })?;
        let uses = Uses { pd: Some(pd), ..Uses::default() };
        self.objects.hold(&uses);
        self.objects.mrs.insert(mr, Mr { request: r, reply, ctx, uses, cost });
        Ok(reply)
    }

    /// Changes a region as a whole or not at all.
    pub(super) fn rereg_mr(&mut self, env: Env<'_>, r: abi::ReregMr) -> Result<abi::CreateMrReply, Reason> {
        let mr = MrHandle(r.mr);
        known_bits("rereg_mr", r.flags.into(), REREG_KNOWN.into())?;
        let given = |bit| r.flags & bit != 0;
        if r.flags == 0 {
            return Err(malformed("nothing of the region is to be changed"));
        }
        let access = if given(abi::REREG_ACCESS) { Some(region_access(r.access)?) } else { None };
        if given(abi::REREG_TRANSLATION) {
            self.check_translation(r.iova, r.length, &r.pages)?;
        }
        let Mr { request, reply, ctx, uses, cost: old } = find(&self.objects.mrs, mr)?;
        let (reply, mut uses, old) = (*reply, *uses, *old);
        if request.flags != 0 {
            return Err(malformed("only a region that was created with its pages can be changed"));
        }
        let pd = if given(abi::REREG_PD) { Some(PdHandle(r.pd)) } else { None };
        if let Some(pd) = pd {
            same_context(pd, find(&self.objects.pds, pd)?.ctx, *ctx)?;
        }
        let new = if given(abi::REREG_TRANSLATION) { cost(Resource::Mrs, &[r.pages]) } else { old };
        let growth = if given(abi::REREG_TRANSLATION) { &new[1..] } else { &[] };
        self.paying(growth, |s| {
            let memory = match given(abi::REREG_TRANSLATION) {
                true => Some(translation(env, r.iova, r.length, &r.pages)?),
                false => None,
            };
            env.rnic.execute(Command::ReregMr { vnic: s.config.id, mr, pd, access, memory })?;
            Ok(())
        })?;
        if !growth.is_empty() {
            self.usage.give(&old[1..]);
        }
        self.objects.release(&uses);
        uses.pd = pd.or(uses.pd);
        self.objects.hold(&uses);
        if let Some(m) = self.objects.mrs.get_mut(&mr) {
            (m.uses, m.cost) = (uses, new);
        }
        Ok(reply)
    }

    pub(super) fn create_mw(&mut self, env: Env<'_>, r: abi::CreateMw) -> Result<abi::CreateMwReply, Reason> {
        let (mw, pd) = (MwHandle(r.mw), PdHandle(r.pd));
        if let Some(m) = self.objects.mws.get(&mw) {
            return replayed(m.request == r, mw, m.reply);
        }
        usable(r.mw)?;
        reserved(&r.reserved)?;
        let mw_type = match r.mw_type {
            abi::MW_TYPE_1 => MwType::One,
            abi::MW_TYPE_2 => MwType::Two,
            other => return Err(malformed(format_args!("{other} is no type of memory window"))),
        };
        let ctx = find(&self.objects.pds, pd)?.ctx;
        let reply = self.paying(&[(Resource::Mws, 1)], |s| {
            let reply = env.rnic.execute(Command::CreateMw { vnic: s.config.id, mw, pd, mw_type })?;
            driver_reply!(reply, masq_driver::Reply::MwCreated { rkey } => {
                abi::CreateMwReply { rkey: rkey.0, reserved: 0 }
            })
        })?;
        let uses = Uses { pd: Some(pd), ..Uses::default() };
        self.objects.hold(&uses);
        self.objects.mws.insert(mw, Mw { request: r, reply, ctx, uses });
        Ok(reply)
    }

    /// Refuses what only the guest's kernel may have in a context that is a program's.
    pub(super) fn kernel_only(&self, ctx: CtxHandle, what: &'static str) -> Result<(), Reason> {
        if find(&self.objects.contexts, ctx)?.is_kernel() { Ok(()) } else { Err(Reason::KernelOnly(what)) }
    }

    /// Checks where a region is, without reading guest memory.
    fn check_translation(&self, iova: u64, length: u64, table: &abi::PageTable) -> Result<(), Reason> {
        within("the length of the region", length, 0, self.config.limits.max_mr_bytes)?;
        if iova.checked_add(length).is_none() {
            return Err(malformed("the region reaches beyond the end of the address space"));
        }
        // A region has as many pages as it touches; an empty one may have one or none.
        let count = match 1u64.checked_shl(table.page_shift.into()) {
            // Neither sum overflows: the offset is below the page size, and iova + length has been checked.
            Some(size) if length > 0 => (iova % size).saturating_add(length).div_ceil(size),
            _ => u64::from(table.count.min(1)),
        };
        let page_sizes = self.config.limits.page_size_cap;
        pages::check(table, &Wanted { what: "the region", page_sizes, count })
    }
}

/// The pages of a region whose description has been checked.
fn translation(env: Env<'_>, iova: u64, length: u64, table: &abi::PageTable) -> Result<MrKind, Reason> {
    let pages = pages::read(env.memory, table, "the region")?;
    pages::check_held(env.memory, &pages, "the region")?;
    Ok(MrKind::Pages { iova, length, pages })
}

/// A region of all memory, or one that work requests will fill.
fn check_without_pages(r: &abi::CreateMr) -> Result<(), Reason> {
    within("the number of pages", r.pages.count.into(), 0, 0)?;
    within("the first address", r.iova, 0, 0)?;
    match r.flags {
        abi::MR_FAST_REG => {
            within("the length of the region", r.length, 1, u64::from(FAST_REG_MAX_PAGES * PAGE_BYTES))
        }
        abi::MR_ALL_MEMORY => Ok(()),
        _ => Err(malformed("a region cannot be all memory and be filled by work requests")),
    }
}

/// Pages of a region that work requests fill; its length has been checked.
fn max_pages(r: &abi::CreateMr) -> u32 {
    r.length.div_ceil(PAGE_BYTES.into()).min(FAST_REG_MAX_PAGES.into()) as u32
}

/// A region that work requests fill keeps room for its pages; the pages are the kernel's anyway.
fn cost_of_region(r: &abi::CreateMr) -> Cost {
    let mut cost = cost(Resource::Mrs, &[r.pages]);
    if r.flags == abi::MR_FAST_REG {
        cost[1] = (Resource::ListedPages, max_pages(r).into());
    }
    cost
}

/// The rights of a region.
fn region_access(bits: u32) -> Result<Access, Reason> {
    let access = access(bits)?;
    if access.zero_based {
        return Err(Reason::Unsupported("a zero-based memory region".into()));
    }
    if (access.remote_write || access.remote_atomic) && !access.local_write {
        return Err(malformed("remote writes and atomics need local writes to be allowed as well"));
    }
    Ok(access)
}

/// The rights that access bits give.
pub(super) fn access(bits: u32) -> Result<Access, Reason> {
    let required = bits & (ACCESS_OPTIONAL_FIRST - 1);
    known_bits("access", required.into(), ACCESS_KNOWN.into())?;
    let has = |bit| required & bit != 0;
    Ok(Access {
        local_write: has(abi::ACCESS_LOCAL_WRITE),
        remote_write: has(abi::ACCESS_REMOTE_WRITE),
        remote_read: has(abi::ACCESS_REMOTE_READ),
        remote_atomic: has(abi::ACCESS_REMOTE_ATOMIC),
        mw_bind: has(abi::ACCESS_MW_BIND),
        zero_based: has(abi::ACCESS_ZERO_BASED),
    })
}
