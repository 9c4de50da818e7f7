//! DEVICE_INIT, the GID table, contexts, domains and completion queues.
//!
//! Each command that creates something goes in the same order: replay, fields, parents, quota, page tables, RNIC.

use masq_driver::{Command, CqAttr, CqHandle, CtxHandle, Gpa, PdHandle, XrcdHandle};
use masq_policy::quota::Resource;
use masq_types::Gid;
use vrdma_abi::config::{ABI_MAJOR, GID_TABLE_LEN, PAGE_BYTES};
use vrdma_abi::control as abi;
use vrdma_abi::ring::ring_pages;

use super::Session;
use super::decode::{entries, known_bits, malformed, reserved, usable, within};
use super::objects::{Context, Cq, Name, Pd, Xrcd, cost, find};
use super::pages::{self, Wanted};
use crate::config::guest_features;
use crate::{Env, Reason};

/// Stride of a completion queue: an entry has 64 bytes.
const CQE_SHIFT: u8 = vrdma_abi::ring::CQE_BYTES.trailing_zeros() as u8;

impl Session {
    pub(super) fn device_init(&mut self, env: Env<'_>, r: abi::DeviceInit) -> Result<(), Reason> {
        if self.init == Some(r) {
            return Ok(());
        }
        reserved(&r.reserved)?;
        if r.abi_major != ABI_MAJOR {
            return Err(Reason::Unsupported(format!(
                "version {}.{} of the contract",
                r.abi_major, r.abi_minor
            )));
        }
        known_bits("feature", r.features, guest_features(&self.config.limits))?;
        if !r.status_page.is_multiple_of(u64::from(PAGE_BYTES)) {
            return Err(malformed("the status page is not aligned"));
        }
        if self.init.is_some() {
            return Err(Reason::Exists("the device".into()));
        }
        let page = Some(Gpa(r.status_page));
        env.rnic.execute(Command::SetStatusPage { vnic: self.config.id, page })?;
        self.init = Some(r);
        Ok(())
    }

    pub(super) fn add_gid(&mut self, env: Env<'_>, r: abi::AddGid) -> Result<(), Reason> {
        reserved(&r.reserved)?;
        within("the index of the GID", r.index.into(), 0, u64::from(GID_TABLE_LEN) - 1)?;
        let gid = Gid(r.gid);
        if !self.config.identity.may_use(gid) {
            return Err(Reason::SpoofedGid { gid });
        }
        self.set_gid(env, r.index, gid)
    }

    pub(super) fn del_gid(&mut self, env: Env<'_>, r: abi::DelGid) -> Result<(), Reason> {
        reserved(&r.reserved)?;
        within("the index of the GID", r.index.into(), 0, u64::from(GID_TABLE_LEN) - 1)?;
        self.set_gid(env, r.index, Gid::ZERO)
    }

    /// Changes an entry of the table here and in the RNIC, or not at all.
    fn set_gid(&mut self, env: Env<'_>, index: u32, gid: Gid) -> Result<(), Reason> {
        let Some(entry) = self.gid_table.get_mut(index as usize) else { return Ok(()) };
        let old = std::mem::replace(entry, gid);
        self.look_at_own_record(env.directory);
        let told = self.tell_gids(env.rnic);
        if told.is_err()
            && let Some(entry) = self.gid_table.get_mut(index as usize)
        {
            *entry = old;
        }
        Ok(told?)
    }

    pub(super) fn create_context(&mut self, env: Env<'_>, r: abi::CreateContext) -> Result<(), Reason> {
        let ctx = CtxHandle(r.ctx);
        if let Some(c) = self.objects.contexts.get(&ctx) {
            return replayed(c.request == r, ctx, ());
        }
        usable(r.ctx)?;
        known_bits("context", r.flags.into(), abi::CONTEXT_KERNEL.into())?;
        let slots = self.config.limits.num_db_slots.into();
        pages::check(&r.doorbells, &Wanted::ring("the doorbell area", slots))?;
        let cost = cost(Resource::Contexts, &[r.doorbells]);
        self.paying(&cost, |s| {
            let doorbells = pages::read(env.memory, &r.doorbells, "the doorbell area")?;
            let doorbells = doorbells.pages.into_iter().map(Gpa).collect();
            env.rnic.execute(Command::CreateContext { vnic: s.config.id, ctx, doorbells })?;
            Ok(())
        })?;
        self.objects.contexts.insert(ctx, Context { request: r, cost });
        Ok(())
    }

    pub(super) fn create_pd(&mut self, r: abi::CreatePd) -> Result<(), Reason> {
        let (pd, ctx) = (PdHandle(r.pd), CtxHandle(r.ctx));
        if let Some(p) = self.objects.pds.get(&pd) {
            return replayed(p.request == r, pd, ());
        }
        usable(r.pd)?;
        find(&self.objects.contexts, ctx)?;
        self.usage.take(&[(Resource::Pds, 1)])?;
        self.objects.pds.insert(pd, Pd { request: r, ctx, users: 0 });
        Ok(())
    }

    pub(super) fn create_cq(&mut self, env: Env<'_>, r: abi::CreateCq) -> Result<abi::CreateCqReply, Reason> {
        let (cq, ctx) = (CqHandle(r.cq), CtxHandle(r.ctx));
        let reply = abi::CreateCqReply { ring_format: abi::RING_FORMAT_1, reserved: 0 };
        if let Some(c) = self.objects.cqs.get(&cq) {
            return replayed(c.request == r, cq, reply);
        }
        usable(r.cq)?;
        let limits = &self.config.limits;
        entries("the number of entries", r.entries, limits.max_cqe)?;
        let last_vector = u64::from(limits.num_comp_vectors).saturating_sub(1);
        within("the completion vector", r.vector.into(), 0, last_vector)?;
        find(&self.objects.contexts, ctx)?;
        pages::check(&r.ring, &Wanted::ring("the completion queue", ring_pages(r.entries, CQE_SHIFT)))?;
        let cost = cost(Resource::Cqs, &[r.ring]);
        self.paying(&cost, |s| {
            let ring = pages::read(env.memory, &r.ring, "the completion queue")?;
            // The vector has been compared with a 16-bit number.
            let cq = CqAttr { cq, entries: r.entries, vector: r.vector as u16, ring };
            env.rnic.execute(Command::CreateCq { vnic: s.config.id, cq })?;
            Ok(())
        })?;
        self.objects.cqs.insert(cq, Cq { request: r, ctx, users: 0, cost });
        Ok(reply)
    }

    /// The old ring is the guest's again when the RNIC has answered.
    pub(super) fn resize_cq(&mut self, env: Env<'_>, r: abi::ResizeCq) -> Result<(), Reason> {
        let cq = CqHandle(r.cq);
        entries("the number of entries", r.entries, self.config.limits.max_cqe)?;
        let old = find(&self.objects.cqs, cq)?.cost;
        pages::check(&r.ring, &Wanted::ring("the completion queue", ring_pages(r.entries, CQE_SHIFT)))?;
        let new = cost(Resource::Cqs, &[r.ring]);
        self.paying(&new[1..], |s| {
            let ring = pages::read(env.memory, &r.ring, "the completion queue")?;
            let command = Command::ResizeCq { vnic: s.config.id, cq, entries: r.entries, ring };
            env.rnic.execute(command)?;
            Ok(())
        })?;
        self.usage.give(&old[1..]);
        if let Some(c) = self.objects.cqs.get_mut(&cq) {
            c.cost = new;
        }
        Ok(())
    }

    /// The RNIC needs no word of it: what refers to it has its handle.
    pub(super) fn create_xrcd(&mut self, r: abi::CreateXrcd) -> Result<(), Reason> {
        let xrcd = XrcdHandle(r.xrcd);
        if let Some(x) = self.objects.xrcds.get(&xrcd) {
            return replayed(x.request == r, xrcd, ());
        }
        usable(r.xrcd)?;
        reserved(&r.reserved)?;
        self.usage.take(&[(Resource::Xrcds, 1)])?;
        self.objects.xrcds.insert(xrcd, Xrcd { request: r, users: 0 });
        Ok(())
    }

    /// Takes `cost` from the quotas for what `create` makes; gives it back when that fails.
    pub(super) fn paying<T>(
        &mut self,
        cost: &[(Resource, u64)],
        create: impl FnOnce(&mut Self) -> Result<T, Reason>,
    ) -> Result<T, Reason> {
        self.usage.take(cost)?;
        let made = create(self);
        if made.is_err() {
            self.usage.give(cost);
        }
        made
    }
}

/// The same command again gives the same reply; the same handle for something else does not.
pub(super) fn replayed<T>(same: bool, name: impl Into<Name>, reply: T) -> Result<T, Reason> {
    if same { Ok(reply) } else { Err(name.into().exists()) }
}

/// Refuses an object of another context than the one that it is to be used in.
pub(super) fn same_context(name: impl Into<Name>, its: CtxHandle, wanted: CtxHandle) -> Result<(), Reason> {
    if its == wanted {
        return Ok(());
    }
    let Name(kind, handle) = name.into();
    Err(Reason::ForeignContext(format!("{kind} {handle:#x} belongs to another context")))
}
