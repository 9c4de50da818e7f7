//! What the RNIC reports, as the guest is told.

use masq_driver::{Event, QpFault};
use vrdma_abi::event::{
    AsyncEvent, EVENT_COMM_EST, EVENT_CQ_ERR, EVENT_DEVICE_FATAL, EVENT_QP_ACCESS_ERR, EVENT_QP_FATAL,
    EVENT_QP_REQ_ERR, EVENT_SQ_DRAINED,
};

use super::Session;

impl Session {
    /// What the guest is told of an event of this device, if anything: an event of an object that it has
    /// destroyed meanwhile would be of no use to it.
    pub fn handle_event(&mut self, event: &Event) -> Option<AsyncEvent> {
        let (vnic, kind, handle) = match event {
            Event::QpFault { vnic, qp, fault, .. } => {
                let kind = match fault {
                    QpFault::Fatal => EVENT_QP_FATAL,
                    QpFault::Request => EVENT_QP_REQ_ERR,
                    QpFault::Access => EVENT_QP_ACCESS_ERR,
                };
                (vnic, kind, self.objects.qps.contains_key(qp).then_some(qp.0))
            }
            Event::CommEstablished { vnic, qp } => {
                (vnic, EVENT_COMM_EST, self.objects.qps.contains_key(qp).then_some(qp.0))
            }
            Event::SqDrained { vnic, qp } => {
                (vnic, EVENT_SQ_DRAINED, self.objects.qps.contains_key(qp).then_some(qp.0))
            }
            Event::CqOverrun { vnic, cq } => {
                (vnic, EVENT_CQ_ERR, self.objects.cqs.contains_key(cq).then_some(cq.0))
            }
            Event::SrqLimit { .. }
            | Event::SrqFault { .. }
            | Event::LastWqe { .. }
            | Event::UnknownPeer { .. } => {
                return None;
            }
            Event::VnicFatal { vnic, .. } => (vnic, EVENT_DEVICE_FATAL, Some(0)),
        };
        let initialised = self.init.is_some() && *vnic == self.config.id;
        let handle = handle.filter(|_| initialised)?;
        Some(AsyncEvent { kind, handle, epoch: self.config.epoch })
    }
}
