//! The commands that destroy objects, and the reset that destroys all of them.
//!
//! An object leaves the session only when the RNIC has destroyed it.

use std::hash::Hash;

use masq_driver::{Command, CqHandle, CtxHandle, MrHandle, PdHandle, QpHandle, RnicDriver};
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
        let pds = keys(&self.objects.pds, |p| p.ctx == ctx);
        for mr in keys(&self.objects.mrs, |m| pds.binary_search(&m.pd).is_ok()) {
            self.destroy_mr(rnic, mr)?;
        }
        for cq in keys(&self.objects.cqs, |c| c.ctx == ctx) {
            self.destroy_cq(rnic, cq)?;
        }
        for pd in pds {
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
            return Err(Name::from(pd).busy(format!("{} memory regions and queue pairs", p.users)));
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
            self.pd_users(m.pd, -1);
        }
        Ok(())
    }

    pub(super) fn destroy_cq(&mut self, rnic: &dyn RnicDriver, cq: CqHandle) -> Result<(), Reason> {
        let Some(c) = self.objects.cqs.get(&cq) else { return Ok(()) };
        if c.users > 0 {
            return Err(Name::from(cq).busy("queue pairs"));
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
            self.pd_users(q.pd, -1);
            self.cq_users(q.send_cq, -1);
            self.cq_users(q.recv_cq, -1);
            self.qpns.give(q.wire_qpn);
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
            self.qpns.give(q.wire_qpn);
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
        report.reaped += objects.pds.len();
        if self.init.take().is_some()
            && let Err(e) = rnic.execute(Command::SetStatusPage { vnic, page: None })
        {
            report.failures.push(format!("the status page: {e}"));
        }
        self.usage = Usage::new(self.config.settings.quotas);
        self.gid_table = [Gid::ZERO; super::GID_TABLE];
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
