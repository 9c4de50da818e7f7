//! Queue pairs and shared receive queues.

use masq_driver::{
    Command, CqHandle, CtxHandle, GroupAttr, PageList, PdHandle, QpHandle, QpInit, QpType, Receives, SrqAttr,
    SrqHandle, WorkQueueAttr, XrcSrq, XrcdHandle,
};
use masq_policy::quota::Resource;
use masq_types::{Qpn, WireQpn};
use vrdma_abi::control as abi;
use vrdma_abi::control::HANDLE_NONE;
use vrdma_abi::ring::{STRIDE_SHIFT_MAX, STRIDE_SHIFT_MIN, recv_stride_shift, ring_pages, send_stride_shift};

use super::create::{replayed, same_context};
use super::decode::{entries, known_bits, malformed, reserved, usable, within};
use super::objects::{Qp, Srq, Uses, cost, find};
use super::pages::{self, Wanted};
use super::{Session, driver_reply};
use crate::{Env, Reason};

/// The number of the GSI, as its guest sees it.
const GSI_QPN: u32 = 1;

impl Session {
    pub(super) fn create_qp(&mut self, env: Env<'_>, r: abi::CreateQp) -> Result<abi::CreateQpReply, Reason> {
        let qp = QpHandle(r.qp);
        if let Some(q) = self.objects.qps.get(&qp) {
            return replayed(q.request == r, qp, q.reply);
        }
        usable(r.qp)?;
        let kind = Kind::of(&r)?;
        self.check_qp_fields(&r, &kind)?;
        let (ctx, uses) = self.parents(&r, &kind)?;
        // A target may be any program's, whichever context it is created in.
        let kernel = kind.has_sq() && find(&self.objects.contexts, ctx)?.is_kernel();
        if kind.qp_type == QpType::Gsi {
            self.kernel_only(ctx, "QP1")?;
            if self.objects.qps.values().any(|q| q.qp_type == QpType::Gsi) {
                return Err(Reason::Exists("QP1".into()));
            }
        }
        let mut tables = Vec::new();
        tables.extend(kind.has_sq().then_some(r.sq));
        tables.extend(kind.has_rq().then_some(r.rq));
        tables.extend(kind.is_group.then_some(r.chunks));
        let members = if kind.is_group { self.config.paths() as u8 } else { 1 };
        let mut cost = cost(Resource::Qps, &tables);
        // The hidden ones take as much of the host as others.
        cost[0].1 = members.into();
        let (wire_qpn, reply) = self.paying(&cost, |s| {
            let sq = match kind.has_sq() {
                true => {
                    let ring = pages::read(env.memory, &r.sq, "the send queue")?;
                    Some(work_queue(r.sq_entries, r.sq_stride_shift, r.max_send_sge, ring))
                }
                false => None,
            };
            let receives = match (kind.qp_type, uses.srq, uses.xrcd) {
                (_, _, Some(xrcd)) => Receives::Named(xrcd),
                (_, Some(srq), _) => Receives::Shared(srq),
                (QpType::XrcIni, ..) => Receives::None,
                _ => {
                    let ring = pages::read(env.memory, &r.rq, "the receive queue")?;
                    Receives::Own(work_queue(r.rq_entries, r.rq_stride_shift, r.max_recv_sge, ring))
                }
            };
            let group = match kind.is_group {
                true => {
                    let ring = pages::read(env.memory, &r.chunks, "the chunk ring")?;
                    let chunks = work_queue(r.chunk_entries, r.sq_stride_shift, r.max_send_sge, ring);
                    Some(GroupAttr { members, chunks })
                }
                false => None,
            };
            let (wire_qpn, qpn) = s.take_qpn(&kind)?;
            let init = QpInit {
                qp,
                ctx,
                pd: uses.pd,
                qp_type: kind.qp_type,
                kernel,
                qpn,
                wire_qpn,
                send_cq: uses.send_cq,
                recv_cq: uses.recv_cq,
                cookie: r.cookie,
                signal_all: r.flags & abi::QP_SIGNAL_ALL != 0,
                max_inline_bytes: r.max_inline_bytes,
                sq,
                receives,
                group,
            };
            let created = env.rnic.execute(Command::CreateQp { vnic: s.config.id, qp: init });
            let reply = created.map_err(Reason::from).and_then(|reply| {
                driver_reply!(reply, masq_driver::Reply::QpCreated { slot, index } => abi::CreateQpReply {
                    qpn: qpn.get(),
                    ring_format: abi::RING_FORMAT_1,
                    db_slot: slot,
                    db_index: index,
                    reserved: 0,
                })
            });
            if reply.is_err() {
                s.give_qpn(kind.is_group, wire_qpn);
            }
            Ok((wire_qpn, reply?))
        })?;
        self.objects.hold(&uses);
        let (qp_type, attr) = (kind.qp_type, abi::QpAttr::ZERO);
        self.objects
            .qps
            .insert(qp, Qp { request: r, reply, qp_type, ctx, uses, wire_qpn, attr, revoked: None, cost });
        Ok(reply)
    }

    /// The number of a new queue pair, on the wire and for its guest.
    fn take_qpn(&mut self, kind: &Kind) -> Result<(WireQpn, Qpn), Reason> {
        if kind.qp_type == QpType::Gsi {
            return Ok((self.config.identity.gsi_qpn, Qpn::from_wire(GSI_QPN)));
        }
        let taken = if kind.is_group { self.qpns.take_group() } else { self.qpns.take() };
        let wire_qpn = taken.ok_or(Reason::NoQpn)?;
        Ok((wire_qpn, Qpn::from_wire(wire_qpn.get())))
    }

    /// A queue pair's number is free again, and those behind it that belong to it.
    pub(super) fn give_qpn(&mut self, is_group: bool, wire_qpn: WireQpn) {
        if is_group { self.qpns.give_group(wire_qpn) } else { self.qpns.give(wire_qpn) }
    }

    fn check_qp_fields(&self, r: &abi::CreateQp, kind: &Kind) -> Result<(), Reason> {
        let limits = &self.config.limits;
        reserved(&r.reserved0)?;
        known_bits("queue pair", r.flags.into(), (abi::QP_SIGNAL_ALL | abi::QP_MULTIPATH).into())?;
        self.check_group_fields(r, kind)?;
        if kind.has_sq() {
            entries("the number of send entries", r.sq_entries, limits.max_qp_wr)?;
            within("max_send_sge", r.max_send_sge.into(), 0, limits.max_send_sge.into())?;
            within("max_inline_bytes", r.max_inline_bytes.into(), 0, limits.max_inline_bytes.into())?;
            let send = send_stride_shift(r.qp_type, r.max_send_sge.into(), r.max_inline_bytes.into());
            stride("the stride of the send queue", r.sq_stride_shift, send)?;
            let pages = ring_pages(r.sq_entries, r.sq_stride_shift);
            pages::check(&r.sq, &Wanted::ring("the send queue", pages))?;
        } else {
            within("the number of send entries", r.sq_entries.into(), 0, 0)?;
        }
        if kind.has_rq() {
            entries("the number of receive entries", r.rq_entries, limits.max_qp_wr)?;
            within("max_recv_sge", r.max_recv_sge.into(), 0, limits.max_recv_sge.into())?;
            let recv = recv_stride_shift(r.max_recv_sge.into());
            stride("the stride of the receive queue", r.rq_stride_shift, recv)?;
            let pages = ring_pages(r.rq_entries, r.rq_stride_shift);
            pages::check(&r.rq, &Wanted::ring("the receive queue", pages))
        } else {
            within("the number of receive entries", r.rq_entries.into(), 0, 0)
        }
    }

    /// What it says of several paths.
    fn check_group_fields(&self, r: &abi::CreateQp, kind: &Kind) -> Result<(), Reason> {
        if !kind.is_group {
            reserved(&r.chunk_entries)?;
            return reserved(&r.chunks);
        }
        if self.config.paths() == 1 {
            return Err(Reason::Unsupported(
                "a queue pair with several paths, where the vNIC has one".into(),
            ));
        }
        if kind.qp_type != QpType::Rc {
            return Err(malformed("only reliable connected queue pairs use several paths"));
        }
        entries("the number of chunks", r.chunk_entries, self.config.limits.max_qp_wr)?;
        let pages = ring_pages(r.chunk_entries, r.sq_stride_shift.min(STRIDE_SHIFT_MAX));
        pages::check(&r.chunks, &Wanted::ring("the chunk ring", pages))
    }

    /// The context and the objects that a new queue pair uses.
    fn parents(&self, r: &abi::CreateQp, kind: &Kind) -> Result<(CtxHandle, Uses), Reason> {
        let named = |wanted: bool, what: &str, handle: u32| match (wanted, handle) {
            (true, handle) => Ok(Some(handle)),
            (false, HANDLE_NONE) => Ok(None),
            (false, _) => Err(malformed(format_args!("such a queue pair has no {what}"))),
        };
        let uses = Uses {
            pd: named(kind.has_sq(), "protection domain", r.pd)?.map(PdHandle),
            send_cq: named(kind.has_sq(), "completion queue of sends", r.send_cq)?.map(CqHandle),
            recv_cq: named(!kind.is_xrc(), "completion queue of receives", r.recv_cq)?.map(CqHandle),
            srq: named(kind.shares, "shared receive queue", r.srq)?.map(SrqHandle),
            xrcd: named(kind.qp_type == QpType::XrcTgt, "XRC domain", r.xrcd)?.map(XrcdHandle),
        };
        let ctx = match uses.pd {
            Some(pd) => find(&self.objects.pds, pd)?.ctx,
            None => self.kernel_context()?,
        };
        for cq in [uses.send_cq, uses.recv_cq].into_iter().flatten() {
            same_context(cq, find(&self.objects.cqs, cq)?.ctx, ctx)?;
        }
        if let Some(srq) = uses.srq {
            let s = find(&self.objects.srqs, srq)?;
            same_context(srq, s.ctx, ctx)?;
            if s.uses.xrcd.is_some() {
                return Err(malformed("a shared receive queue for XRC takes no other messages"));
            }
        }
        if let Some(xrcd) = uses.xrcd {
            find(&self.objects.xrcds, xrcd)?;
        }
        Ok((ctx, uses))
    }

    /// Where XRC targets live: they outlast the programs that create them.
    fn kernel_context(&self) -> Result<CtxHandle, Reason> {
        let kernels = self.objects.contexts.iter().filter(|(_, c)| c.is_kernel());
        kernels.map(|(ctx, _)| *ctx).min().ok_or(Reason::KernelOnly("an XRC target"))
    }

    pub(super) fn create_srq(
        &mut self,
        env: Env<'_>,
        r: abi::CreateSrq,
    ) -> Result<abi::CreateSrqReply, Reason> {
        let (srq, pd) = (SrqHandle(r.srq), PdHandle(r.pd));
        if let Some(s) = self.objects.srqs.get(&srq) {
            return replayed(s.request == r, srq, s.reply);
        }
        usable(r.srq)?;
        reserved(&r.reserved)?;
        let limits = &self.config.limits;
        entries("the number of entries", r.entries, limits.max_srq_wr)?;
        within("max_sge", r.max_sge.into(), 0, limits.max_srq_sge.into())?;
        within("the limit", r.limit.into(), 0, r.entries.into())?;
        stride("the stride of the queue", r.stride_shift, recv_stride_shift(r.max_sge.into()))?;
        let pages = ring_pages(r.entries, r.stride_shift);
        pages::check(&r.ring, &Wanted::ring("the shared receive queue", pages))?;
        let (ctx, uses) = self.parents_of_srq(&r)?;
        let cost = cost(Resource::Srqs, &[r.ring]);
        let reply = self.paying(&cost, |s| {
            let ring = pages::read(env.memory, &r.ring, "the shared receive queue")?;
            let xrc = match (uses.xrcd, uses.recv_cq) {
                (Some(xrcd), Some(cq)) => Some(XrcSrq { xrcd, cq, srqn: s.free_srqn() }),
                _ => None,
            };
            let queue = work_queue(r.entries, r.stride_shift, r.max_sge, ring);
            let attr = SrqAttr { srq, pd, xrc, limit: r.limit, queue };
            env.rnic.execute(Command::CreateSrq { vnic: s.config.id, srq: attr })?;
            let srqn = xrc.map_or(0, |xrc| xrc.srqn);
            Ok(abi::CreateSrqReply { srqn, ring_format: abi::RING_FORMAT_1 })
        })?;
        self.objects.hold(&uses);
        self.objects.srqs.insert(srq, Srq { request: r, reply, ctx, uses, users: 0, cost });
        Ok(reply)
    }

    fn parents_of_srq(&self, r: &abi::CreateSrq) -> Result<(CtxHandle, Uses), Reason> {
        let pd = PdHandle(r.pd);
        let mut uses = Uses { pd: Some(pd), ..Uses::default() };
        match r.srq_type {
            abi::SRQ_TYPE_BASIC if r.cq == HANDLE_NONE && r.xrcd == HANDLE_NONE => {}
            abi::SRQ_TYPE_BASIC => {
                return Err(malformed(
                    "only a shared receive queue for XRC has a completion queue and a domain",
                ));
            }
            abi::SRQ_TYPE_XRC => {
                uses.recv_cq = Some(CqHandle(r.cq));
                uses.xrcd = Some(XrcdHandle(r.xrcd));
            }
            other => return Err(malformed(format_args!("{other} is no type of shared receive queue"))),
        }
        let ctx = find(&self.objects.pds, pd)?.ctx;
        if let Some(cq) = uses.recv_cq {
            same_context(cq, find(&self.objects.cqs, cq)?.ctx, ctx)?;
        }
        if let Some(xrcd) = uses.xrcd {
            find(&self.objects.xrcds, xrcd)?;
        }
        Ok((ctx, uses))
    }

    /// A number for a shared receive queue that messages name, like none that another has, and not 0. One that has become free is
    /// taken again as late as possible.
    fn free_srqn(&mut self) -> u32 {
        loop {
            self.last_srqn = self.last_srqn % WireQpn::MAX + 1;
            // Quotas keep far more numbers free than are taken.
            if self.objects.srqs.values().all(|s| s.reply.srqn != self.last_srqn) {
                return self.last_srqn;
            }
        }
    }

    pub(super) fn modify_srq(&mut self, env: Env<'_>, r: abi::ModifySrq) -> Result<(), Reason> {
        let srq = SrqHandle(r.srq);
        let entries = find(&self.objects.srqs, srq)?.request.entries;
        within("the limit", r.limit.into(), 0, entries.into())?;
        env.rnic.execute(Command::ModifySrq { vnic: self.config.id, srq, limit: r.limit })?;
        Ok(())
    }

    pub(super) fn query_srq(&mut self, env: Env<'_>, r: abi::Destroy) -> Result<abi::QuerySrqReply, Reason> {
        reserved(&r.reserved)?;
        let srq = SrqHandle(r.handle);
        find(&self.objects.srqs, srq)?;
        let reply = env.rnic.execute(Command::QuerySrq { vnic: self.config.id, srq })?;
        driver_reply!(reply, masq_driver::Reply::SrqLimit(limit) => abi::QuerySrqReply { limit, reserved: 0 })
    }
}

/// What kind of queue pair is asked for.
struct Kind {
    qp_type: QpType,
    /// Its receives come from a shared receive queue.
    shares: bool,
    /// It may use several paths.
    is_group: bool,
}

impl Kind {
    fn of(r: &abi::CreateQp) -> Result<Kind, Reason> {
        let qp_type = match r.qp_type {
            abi::QP_TYPE_RC => QpType::Rc,
            abi::QP_TYPE_UC => QpType::Uc,
            abi::QP_TYPE_UD => QpType::Ud,
            abi::QP_TYPE_GSI => QpType::Gsi,
            abi::QP_TYPE_XRC_INI => QpType::XrcIni,
            abi::QP_TYPE_XRC_TGT => QpType::XrcTgt,
            other => return Err(malformed(format_args!("{other} is no transport"))),
        };
        let can_share = matches!(qp_type, QpType::Rc | QpType::Uc | QpType::Ud);
        let is_group = r.flags & abi::QP_MULTIPATH != 0;
        Ok(Kind { qp_type, shares: can_share && r.srq != HANDLE_NONE, is_group })
    }

    fn is_xrc(&self) -> bool {
        matches!(self.qp_type, QpType::XrcIni | QpType::XrcTgt)
    }

    fn has_sq(&self) -> bool {
        self.qp_type != QpType::XrcTgt
    }

    fn has_rq(&self) -> bool {
        !self.shares && !self.is_xrc()
    }
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
