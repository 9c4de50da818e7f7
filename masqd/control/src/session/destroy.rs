//! The commands that destroy objects, and the reset that destroys all of them.
//!
//! An object leaves the session only when the RNIC has destroyed it.

use std::hash::Hash;

use masq_driver::{
    Command, CqHandle, CtxHandle, MrHandle, MwHandle, PdHandle, QpHandle, RnicDriver, SrqHandle, XrcdHandle,
};
use masq_policy::quota::{Resource, Usage};
use masq_types::Gid;

use super::objects::Name;
use super::{ResetReport, Session};
use crate::Reason;

impl Session {
    /// Ends a context and everything in it.
    pub(super) fn destroy_context(&mut self, rnic: &dyn RnicDriver, ctx: CtxHandle) -> Result<(), Reason> {
        if !self.objects.contexts.contains_key(&ctx) {
            return Ok(());
        }
        for qp in keys(&self.objects.qps, |q| q.ctx == ctx) {
            self.destroy_qp(rnic, qp)?;
        }
        for srq in keys(&self.objects.srqs, |s| s.ctx == ctx) {
            self.destroy_srq(rnic, srq)?;
        }
        // Windows before the regions that they are bound to.
        for mw in keys(&self.objects.mws, |m| m.ctx == ctx) {
            self.destroy_mw(rnic, mw)?;
        }
        for mr in keys(&self.objects.mrs, |m| m.ctx == ctx) {
            self.destroy_mr(rnic, mr)?;
        }
        for cq in keys(&self.objects.cqs, |c| c.ctx == ctx) {
            self.destroy_cq(rnic, cq)?;
        }
        for pd in keys(&self.objects.pds, |p| p.ctx == ctx) {
            self.destroy_pd(pd)?;
        }
        rnic.execute(Command::DestroyContext { vnic: self.config.id, ctx })?;
        if let Some(c) = self.objects.contexts.remove(&ctx) {
            self.usage.give(&c.cost);
        }
        Ok(())
    }

    pub(super) fn destroy_pd(&mut self, pd: PdHandle) -> Result<(), Reason> {
        let Some(p) = self.objects.pds.get(&pd) else { return Ok(()) };
        if p.users > 0 {
            return Err(Name::from(pd).busy(format!("{} other objects", p.users)));
        }
        self.objects.pds.remove(&pd);
        self.usage.give(&[(Resource::Pds, 1)]);
        Ok(())
    }

    pub(super) fn destroy_mr(&mut self, rnic: &dyn RnicDriver, mr: MrHandle) -> Result<(), Reason> {
        if !self.objects.mrs.contains_key(&mr) {
            return Ok(());
        }
        rnic.execute(Command::DestroyMr { vnic: self.config.id, mr })?;
        if let Some(m) = self.objects.mrs.remove(&mr) {
            self.usage.give(&m.cost);
            self.objects.release(&m.uses);
        }
        Ok(())
    }

    pub(super) fn destroy_mw(&mut self, rnic: &dyn RnicDriver, mw: MwHandle) -> Result<(), Reason> {
        if !self.objects.mws.contains_key(&mw) {
            return Ok(());
        }
        rnic.execute(Command::DestroyMw { vnic: self.config.id, mw })?;
        if let Some(m) = self.objects.mws.remove(&mw) {
            self.usage.give(&[(Resource::Mws, 1)]);
            self.objects.release(&m.uses);
        }
        Ok(())
    }

    pub(super) fn destroy_srq(&mut self, rnic: &dyn RnicDriver, srq: SrqHandle) -> Result<(), Reason> {
        let Some(s) = self.objects.srqs.get(&srq) else { return Ok(()) };
        if s.users > 0 {
            return Err(Name::from(srq).busy(format!("{} queue pairs", s.users)));
        }
        rnic.execute(Command::DestroySrq { vnic: self.config.id, srq })?;
        if let Some(s) = self.objects.srqs.remove(&srq) {
            self.usage.give(&s.cost);
            self.objects.release(&s.uses);
        }
        Ok(())
    }

    pub(super) fn destroy_xrcd(&mut self, xrcd: XrcdHandle) -> Result<(), Reason> {
        let Some(x) = self.objects.xrcds.get(&xrcd) else { return Ok(()) };
        if x.users > 0 {
            return Err(Name::from(xrcd).busy(format!("{} queue pairs and shared receive queues", x.users)));
        }
        self.objects.xrcds.remove(&xrcd);
        self.usage.give(&[(Resource::Xrcds, 1)]);
        Ok(())
    }

    pub(super) fn destroy_cq(&mut self, rnic: &dyn RnicDriver, cq: CqHandle) -> Result<(), Reason> {
        let Some(c) = self.objects.cqs.get(&cq) else { return Ok(()) };
        if c.users > 0 {
            return Err(Name::from(cq).busy("queue pairs or shared receive queues"));
        }
        rnic.execute(Command::DestroyCq { vnic: self.config.id, cq })?;
        if let Some(c) = self.objects.cqs.remove(&cq) {
            self.usage.give(&c.cost);
        }
        Ok(())
    }

    pub(super) fn destroy_qp(&mut self, rnic: &dyn RnicDriver, qp: QpHandle) -> Result<(), Reason> {
        if !self.objects.qps.contains_key(&qp) {
            return Ok(());
        }
        rnic.execute(Command::DestroyQp { vnic: self.config.id, qp })?;
        if let Some(q) = self.objects.qps.remove(&qp) {
            self.usage.give(&q.cost);
            self.objects.release(&q.uses);
            self.give_qpn(q.is_group(), q.wire_qpn);
            self.conntrack.remove(qp);
        }
        Ok(())
    }

    /// Destroys everything that the guest has, and forgets what it said. Requests that wait are dropped: nobody waits
    /// for their replies any more.
    ///
    /// Can be repeated at any time; the device is then as [`Session::new`] made it, save that its QPNs go on from where
    /// they were. What the RNIC failed to destroy is reported and forgotten: detach the device from it.
    pub fn reset(&mut self, rnic: &dyn RnicDriver) -> ResetReport {
        let vnic = self.config.id;
        let mut report = ResetReport::default();
        let mut reap = |name: Name, command: Command| match rnic.execute(command) {
            Ok(_) => report.reaped += 1,
            Err(e) => report.failures.push(format!("{} {:#x}: {e}", name.0, name.1)),
        };
        let objects = std::mem::take(&mut self.objects);
        for (qp, q) in sorted(objects.qps) {
            reap(qp.into(), Command::DestroyQp { vnic, qp });
            self.give_qpn(q.is_group(), q.wire_qpn);
        }
        for (srq, _) in sorted(objects.srqs) {
            reap(srq.into(), Command::DestroySrq { vnic, srq });
        }
        for (mw, _) in sorted(objects.mws) {
            reap(mw.into(), Command::DestroyMw { vnic, mw });
        }
        for (mr, _) in sorted(objects.mrs) {
            reap(mr.into(), Command::DestroyMr { vnic, mr });
        }
        for (cq, _) in sorted(objects.cqs) {
            reap(cq.into(), Command::DestroyCq { vnic, cq });
        }
        for (ctx, _) in sorted(objects.contexts) {
            reap(ctx.into(), Command::DestroyContext { vnic, ctx });
        }
        report.reaped += objects.pds.len() + objects.xrcds.len();
        if self.init.take().is_some()
            && let Err(e) = rnic.execute(Command::SetStatusPage { vnic, page: None })
        {
            report.failures.push(format!("the status page: {e}"));
        }
        self.usage = Usage::new(self.config.settings.quotas);
        self.gid_table = [Gid::ZERO; super::GID_TABLE];
        if let Err(e) = self.tell_gids(rnic) {
            report.failures.push(format!("the GID table: {e}"));
        }
        self.conntrack = Default::default();
        self.waiting.clear();
        report
    }
}

/// The handles of the objects that `wanted` accepts, in order.
fn keys<H: Copy + Ord + Hash, T>(
    objects: &std::collections::HashMap<H, T>,
    wanted: impl Fn(&T) -> bool,
) -> Vec<H> {
    let mut keys: Vec<H> = objects.iter().filter(|(_, o)| wanted(o)).map(|(h, _)| *h).collect();
    keys.sort_unstable();
    keys
}

fn sorted<H: Copy + Ord, T>(objects: std::collections::HashMap<H, T>) -> Vec<(H, T)> {
    let mut objects: Vec<(H, T)> = objects.into_iter().collect();
    objects.sort_unstable_by_key(|(h, _)| *h);
    objects
}
