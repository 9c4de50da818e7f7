//! What the RNIC reports, as the guest is told.

use masq_driver::{Event, QpFault, QpHandle, SrqHandle};
use vrdma_abi::event::{
    AsyncEvent, EVENT_COMM_EST, EVENT_CQ_ERR, EVENT_DEVICE_FATAL, EVENT_QP_ACCESS_ERR, EVENT_QP_FATAL,
    EVENT_QP_LAST_WQE, EVENT_QP_REQ_ERR, EVENT_SQ_DRAINED, EVENT_SRQ_ERR, EVENT_SRQ_LIMIT,
};

use super::Session;

impl Session {
    /// What the guest is told of an event of this device, if anything: an event of an object that it has
    /// destroyed meanwhile would be of no use to it.
    pub fn handle_event(&mut self, event: &Event) -> Option<AsyncEvent> {
        let qp = |qp: &QpHandle| self.objects.qps.contains_key(qp).then_some(qp.0);
        let srq = |srq: &SrqHandle| self.objects.srqs.contains_key(srq).then_some(srq.0);
        let (vnic, kind, handle) = match event {
            Event::QpFault { vnic, qp: h, fault, .. } => {
                let kind = match fault {
                    QpFault::Fatal => EVENT_QP_FATAL,
                    QpFault::Request => EVENT_QP_REQ_ERR,
                    QpFault::Access => EVENT_QP_ACCESS_ERR,
                };
                (vnic, kind, qp(h))
            }
            Event::CommEstablished { vnic, qp: h } => (vnic, EVENT_COMM_EST, qp(h)),
            Event::SqDrained { vnic, qp: h } => (vnic, EVENT_SQ_DRAINED, qp(h)),
            Event::LastWqe { vnic, qp: h } => (vnic, EVENT_QP_LAST_WQE, qp(h)),
            Event::CqOverrun { vnic, cq } => {
                (vnic, EVENT_CQ_ERR, self.objects.cqs.contains_key(cq).then_some(cq.0))
            }
            Event::SrqLimit { vnic, srq: h } => (vnic, EVENT_SRQ_LIMIT, srq(h)),
            Event::SrqFault { vnic, srq: h, .. } => (vnic, EVENT_SRQ_ERR, srq(h)),
            // The session's own business.
            Event::UnknownPeer { .. } => return None,
            // Its guest goes on without knowing.
            Event::PathChanged { .. } => return None,
            Event::VnicFatal { vnic, .. } => (vnic, EVENT_DEVICE_FATAL, Some(0)),
        };
        let initialised = self.init.is_some() && *vnic == self.config.id;
        let handle = handle.filter(|_| initialised)?;
        Some(AsyncEvent { kind, handle, epoch: self.config.epoch })
    }
}
