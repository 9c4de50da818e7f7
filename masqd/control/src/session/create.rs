//! DEVICE_INIT, the GID table, and the commands that create objects.
//!
//! Each creates in the same order: replay, fields, parents, quota, page tables, RNIC.

use masq_driver::{
    Access, Command, CqAttr, CqHandle, CtxHandle, Gpa, MrAttr, MrHandle, MrKind, PageList, PdHandle,
    QpHandle, QpInit, QpType, Receives, WorkQueueAttr,
};
use masq_policy::quota::Resource;
use masq_types::{Gid, Qpn};
use vrdma_abi::config::{ABI_MAJOR, GID_TABLE_LEN, PAGE_BYTES};
use vrdma_abi::control as abi;
use vrdma_abi::ring::{STRIDE_SHIFT_MAX, STRIDE_SHIFT_MIN, recv_stride_shift, ring_pages, send_stride_shift};

use super::decode::{entries, known_bits, malformed, reserved, usable, within};
use super::objects::{Context, Cost, Cq, Mr, Name, Pd, Qp, cost, find};
use super::pages::{self, Wanted};
use super::{Session, driver_reply};
use crate::{Env, Reason};

/// Bits from here up are optional access bits (IBV_ACCESS_OPTIONAL_FIRST).
const ACCESS_OPTIONAL_FIRST: u32 = 1 << 20;
const ACCESS_KNOWN: u32 =
    abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC;
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
        known_bits("feature", r.features, 0)?;
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

    pub(super) fn add_gid(&mut self, r: abi::AddGid) -> Result<(), Reason> {
        reserved(&r.reserved)?;
        within("the index of the GID", r.index.into(), 0, u64::from(GID_TABLE_LEN) - 1)?;
        let gid = Gid(r.gid);
        if !self.config.identity.may_use(gid) {
            return Err(Reason::SpoofedGid { gid });
        }
        self.gid_table[r.index as usize] = gid;
        Ok(())
    }

    pub(super) fn del_gid(&mut self, r: abi::DelGid) -> Result<(), Reason> {
        reserved(&r.reserved)?;
        within("the index of the GID", r.index.into(), 0, u64::from(GID_TABLE_LEN) - 1)?;
        self.gid_table[r.index as usize] = Gid::ZERO;
        Ok(())
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

    pub(super) fn create_mr(&mut self, env: Env<'_>, r: abi::CreateMr) -> Result<abi::CreateMrReply, Reason> {
        let (mr, pd) = (MrHandle(r.mr), PdHandle(r.pd));
        if let Some(m) = self.objects.mrs.get(&mr) {
            return replayed(m.request == r, mr, m.reply);
        }
        usable(r.mr)?;
        known_bits("memory region", r.flags.into(), 0)?;
        let access = access(r.access)?;
        if (access.remote_write || access.remote_atomic) && !access.local_write {
            return Err(malformed("remote writes and atomics need local writes to be allowed as well"));
        }
        within("the length of the region", r.length, 0, self.config.limits.max_mr_bytes)?;
        if r.iova.checked_add(r.length).is_none() {
            return Err(malformed("the region reaches beyond the end of the address space"));
        }
        find(&self.objects.pds, pd)?;
        pages::check(&r.pages, &self.wanted_of_region(&r))?;
        let cost = cost(Resource::Mrs, &[r.pages]);
        let reply = self.paying(&cost, |s| {
            let pages = pages::read(env.memory, &r.pages, "the region")?;
            pages::check_held(env.memory, &pages, "the region")?;
            let mr = MrAttr { mr, pd, access, kind: MrKind::Pages { iova: r.iova, length: r.length, pages } };
            let reply = env.rnic.execute(Command::CreateMr { vnic: s.config.id, mr })?;
            driver_reply!(reply, masq_driver::Reply::MrCreated { lkey, rkey } => {
                abi::CreateMrReply { lkey: lkey.0, rkey: rkey.0 }
            })
        })?;
        self.objects.mrs.insert(mr, Mr { request: r, reply, pd, cost });
        self.pd_users(pd, 1);
        Ok(reply)
    }

    /// A region has as many pages as it touches; an empty one may have one or none.
    fn wanted_of_region(&self, r: &abi::CreateMr) -> Wanted {
        let count = match 1u64.checked_shl(r.pages.page_shift.into()) {
            // Neither sum overflows: the offset is below the page size, and iova + length has been checked.
            Some(size) if r.length > 0 => (r.iova % size).saturating_add(r.length).div_ceil(size),
            _ => u64::from(r.pages.count.min(1)),
        };
        Wanted { what: "the region", page_sizes: self.config.limits.page_size_cap, count }
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

    pub(super) fn create_qp(&mut self, env: Env<'_>, r: abi::CreateQp) -> Result<abi::CreateQpReply, Reason> {
        let qp = QpHandle(r.qp);
        if let Some(q) = self.objects.qps.get(&qp) {
            return replayed(q.request == r, qp, q.reply);
        }
        usable(r.qp)?;
        self.check_qp_fields(&r)?;
        let (pd, send_cq, recv_cq) = (PdHandle(r.pd), CqHandle(r.send_cq), CqHandle(r.recv_cq));
        let ctx = find(&self.objects.pds, pd)?.ctx;
        for cq in [send_cq, recv_cq] {
            if find(&self.objects.cqs, cq)?.ctx != ctx {
                let Name(kind, handle) = cq.into();
                return Err(Reason::ForeignContext(format!("{kind} {handle:#x} belongs to another context")));
            }
        }
        let cost = cost(Resource::Qps, &[r.sq, r.rq]);
        let (wire_qpn, reply) = self.paying(&cost, |s| {
            let sq = pages::read(env.memory, &r.sq, "the send queue")?;
            let rq = pages::read(env.memory, &r.rq, "the receive queue")?;
            let wire_qpn = s.qpns.take().ok_or(Reason::NoQpn)?;
            let init = QpInit {
                qp,
                ctx,
                pd: Some(pd),
                qp_type: QpType::Rc,
                kernel: false,
                qpn: Qpn::from_wire(wire_qpn.get()),
                wire_qpn,
                send_cq: Some(send_cq),
                recv_cq: Some(recv_cq),
                cookie: r.cookie,
                signal_all: r.flags & abi::QP_SIGNAL_ALL != 0,
                max_inline_bytes: r.max_inline_bytes,
                sq: Some(work_queue(r.sq_entries, r.sq_stride_shift, r.max_send_sge, sq)),
                receives: Receives::Own(work_queue(r.rq_entries, r.rq_stride_shift, r.max_recv_sge, rq)),
            };
            let created = env.rnic.execute(Command::CreateQp { vnic: s.config.id, qp: init });
            let reply = created.map_err(Reason::from).and_then(|reply| {
                driver_reply!(reply, masq_driver::Reply::QpCreated { slot, index } => abi::CreateQpReply {
                    qpn: wire_qpn.get(),
                    ring_format: abi::RING_FORMAT_1,
                    db_slot: slot,
                    db_index: index,
                    reserved: 0,
                })
            });
            if reply.is_err() {
                s.qpns.give(wire_qpn);
            }
            Ok((wire_qpn, reply?))
        })?;
        let attr = abi::QpAttr::ZERO;
        self.objects
            .qps
            .insert(qp, Qp { request: r, reply, pd, ctx, send_cq, recv_cq, wire_qpn, attr, cost });
        self.pd_users(pd, 1);
        self.cq_users(send_cq, 1);
        self.cq_users(recv_cq, 1);
        Ok(reply)
    }

    fn check_qp_fields(&self, r: &abi::CreateQp) -> Result<(), Reason> {
        let limits = &self.config.limits;
        reserved(&r.reserved0)?;
        reserved(&r.reserved1)?;
        match r.qp_type {
            abi::QP_TYPE_RC => {}
            abi::QP_TYPE_UC => return Err(Reason::Unsupported("the unreliable connected transport".into())),
            abi::QP_TYPE_UD => return Err(Reason::Unsupported("the unreliable datagram transport".into())),
            other => return Err(malformed(format_args!("{other} is no transport"))),
        }
        known_bits("queue pair", r.flags.into(), abi::QP_SIGNAL_ALL.into())?;
        if r.srq != abi::HANDLE_NONE {
            return Err(Reason::Unsupported("a shared receive queue".into()));
        }
        entries("the number of send entries", r.sq_entries, limits.max_qp_wr)?;
        entries("the number of receive entries", r.rq_entries, limits.max_qp_wr)?;
        within("max_send_sge", r.max_send_sge.into(), 0, limits.max_send_sge.into())?;
        within("max_recv_sge", r.max_recv_sge.into(), 0, limits.max_recv_sge.into())?;
        within("max_inline_bytes", r.max_inline_bytes.into(), 0, limits.max_inline_bytes.into())?;
        let send = send_stride_shift(r.qp_type, r.max_send_sge.into(), r.max_inline_bytes.into());
        stride("the stride of the send queue", r.sq_stride_shift, send)?;
        stride(
            "the stride of the receive queue",
            r.rq_stride_shift,
            recv_stride_shift(r.max_recv_sge.into()),
        )?;
        let sq_pages = ring_pages(r.sq_entries, r.sq_stride_shift);
        pages::check(&r.sq, &Wanted::ring("the send queue", sq_pages))?;
        let rq_pages = ring_pages(r.rq_entries, r.rq_stride_shift);
        pages::check(&r.rq, &Wanted::ring("the receive queue", rq_pages))
    }

    /// Takes `cost` from the quotas for what `create` makes; gives it back when that fails.
    fn paying<T>(
        &mut self,
        cost: &Cost,
        create: impl FnOnce(&mut Self) -> Result<T, Reason>,
    ) -> Result<T, Reason> {
        self.usage.take(cost)?;
        let made = create(self);
        if made.is_err() {
            self.usage.give(cost);
        }
        made
    }

    pub(super) fn pd_users(&mut self, pd: PdHandle, change: isize) {
        if let Some(pd) = self.objects.pds.get_mut(&pd) {
            pd.users = pd.users.saturating_add_signed(change);
        }
    }

    pub(super) fn cq_users(&mut self, cq: CqHandle, change: isize) {
        if let Some(cq) = self.objects.cqs.get_mut(&cq) {
            cq.users = cq.users.saturating_add_signed(change);
        }
    }
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
        ..Access::default()
    })
}

/// The same command again gives the same reply; the same handle for something else does not.
fn replayed<T>(same: bool, name: impl Into<Name>, reply: T) -> Result<T, Reason> {
    if same { Ok(reply) } else { Err(name.into().exists()) }
}

fn stride(what: &str, shift: u8, least: Option<u8>) -> Result<(), Reason> {
    within(what, shift.into(), STRIDE_SHIFT_MIN.into(), STRIDE_SHIFT_MAX.into())?;
    match least {
        Some(least) if shift >= least => Ok(()),
        _ => Err(malformed(format_args!("{what} of 2^{shift} bytes is too short for its entries"))),
    }
}

fn work_queue(entries: u32, stride_shift: u8, max_sge: u16, ring: PageList) -> WorkQueueAttr {
    WorkQueueAttr { entries, stride_shift, max_sge, ring }
}
