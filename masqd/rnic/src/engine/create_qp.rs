//! Creation of queue pairs.

use std::time::Duration;

use masq_driver::{
    CqHandle, DriverError, PdHandle, QpInit, QpTraffic, QpType, Receives, SrqHandle, VnicId, WorkQueueAttr,
};

use super::Engine;
use super::groups::new_group;
use crate::cqs::CqKey;
use crate::datagram::DatagramQp;
use crate::keys::Accessor;
use crate::limits;
use crate::local::Initiator;
use crate::qp::{Held, Path, Qp, QpIo, RecvSource};
use crate::ring::{RecvRing, SendRing};
use crate::srqs::SrqKey;
use crate::transport::{QpConfig, QpCore};
use crate::vnic::Vnic;

impl Engine {
    /// Creates a queue pair and returns its doorbell: slot and index.
    pub(super) fn create_qp(&mut self, id: VnicId, init: QpInit) -> Result<(u16, u16), DriverError> {
        let vnic_key = self.world.vnic_key(id)?;
        let transport = self.config.transport.clone();
        let qps = &mut self.world.qps;
        let Some(vnic) = self.world.vnics.get_mut(vnic_key) else {
            return Err(DriverError::UnknownObject(format!("vNIC {}", id.0)));
        };
        let handle = init.qp;
        let what = format!("queue pair {}", handle.0);
        if vnic.qps.contains_key(&handle) {
            return Err(DriverError::Exists(what));
        }
        if !vnic.has_room_for(init.group.as_ref().map_or(1, |g| g.members.into())) {
            return Err(DriverError::Exhausted("queue pairs".into()));
        }
        if !vnic.contexts.contains_key(&init.ctx) {
            return Err(DriverError::UnknownObject(format!("context {}", init.ctx.0)));
        }
        let mut shape = Shape::of(&what, &init)?;
        let config = QpConfig {
            qp_type: init.qp_type,
            shared_receives: shape.srq.is_some(),
            signal_all: init.signal_all,
            max_msg_bytes: limits::MAX_MSG_BYTES,
            max_requests: init.sq.as_ref().map_or(1, |sq| sq.entries),
            ..transport
        };
        let sq = match init.sq {
            Some(sq) => {
                let what = format!("{what}, send queue");
                Some(SendRing::new(
                    &what,
                    init.qp_type,
                    init.kernel,
                    sq,
                    init.max_inline_bytes,
                    &vnic.memory,
                )?)
            }
            None => None,
        };
        let own = match shape.own_receives.take() {
            Some(rq) => Some(RecvRing::new(&format!("{what}, receive queue"), rq, &vnic.memory)?),
            None => None,
        };
        let group = match init.group {
            Some(attr) => {
                Some(new_group(&what, init.qp_type, init.wire_qpn, sq.as_ref(), attr, &vnic.memory)?)
            }
            None => None,
        };
        let uses = QueueUses::acquire(vnic, &shape)?;
        let receives = match (own, uses.srq, init.receives) {
            (Some(ring), ..) => RecvSource::Own(ring),
            (None, Some(srq), _) => RecvSource::Shared(srq),
            (None, None, Receives::Named(xrcd)) => RecvSource::Named { xrcd, selected: None },
            _ => RecvSource::None,
        };
        let mut doorbell = None;
        let key = qps.insert(|key| {
            doorbell = vnic.assign_doorbell(init.ctx, key);
            let io = QpIo {
                vnic: vnic_key,
                handle,
                member: None,
                accessor: Accessor { pd: init.pd, qp: key, kernel: init.kernel },
                qpn: init.qpn,
                wire_qpn: init.wire_qpn,
                cookie: init.cookie,
                signal_all: init.signal_all,
                send_cq: uses.send_cq,
                recv_cq: uses.recv_cq,
                sq,
                receives,
                held_send: Held::default(),
                held_recv: Held::default(),
                ip_overhead: 0,
                short: None,
                broken: false,
                lost_completion: false,
                completions: 0,
                failed: None,
                drained_early: false,
            };
            Qp {
                core: QpCore::new(config),
                io,
                path: Path::None,
                claim: None,
                other_claims: Vec::new(),
                initiator: Initiator::default(),
                asked: None,
                waits_for_room: false,
                datagram: DatagramQp::new(init.qp_type),
                ctx: init.ctx,
                doorbell: doorbell.unwrap_or_default(),
                scheduled: false,
                waits_for_other: false,
                errand: false,
                group: None,
                traffic: QpTraffic::default(),
                tap: None,
                parked: false,
                timer: None,
                flush_pause: Duration::ZERO,
            }
        });
        let Some(doorbell) = doorbell else {
            qps.remove(key);
            uses.release(vnic);
            return Err(DriverError::Exhausted("doorbells of the context".into()));
        };
        vnic.qps.insert(handle, key);
        if let (Some(group), Some(qp)) = (group, qps.get_mut(key)) {
            qp.group = Some(vnic.groups.insert(group));
        }
        Ok(doorbell)
    }
}

/// What a queue pair of its type has, and no more.
struct Shape {
    pd: Option<PdHandle>,
    send_cq: Option<CqHandle>,
    recv_cq: Option<CqHandle>,
    srq: Option<SrqHandle>,
    own_receives: Option<WorkQueueAttr>,
}

impl Shape {
    fn of(what: &str, init: &QpInit) -> Result<Self, DriverError> {
        let QpInit { pd, qp_type, send_cq, recv_cq, sq, receives, .. } = init;
        let given = (pd.is_some(), send_cq.is_some(), sq.is_some(), recv_cq.is_some());
        let fits = match (qp_type, receives) {
            (QpType::Rc | QpType::Uc | QpType::Ud | QpType::Gsi, Receives::Own(_) | Receives::Shared(_)) => {
                given == (true, true, true, true)
            }
            (QpType::XrcIni, Receives::None) => given == (true, true, true, false),
            (QpType::XrcTgt, Receives::Named(_)) => given == (false, false, false, false),
            _ => false,
        };
        if !fits {
            let refusal = format!("{what} lacks a domain or queue that {qp_type:?} has, or has one more");
            return Err(DriverError::Invalid(refusal));
        }
        let (own_receives, srq) = match receives {
            Receives::Own(rq) => (Some(rq.clone()), None),
            Receives::Shared(srq) => (None, Some(*srq)),
            Receives::Named(_) | Receives::None => (None, None),
        };
        Ok(Self { pd: *pd, send_cq: *send_cq, recv_cq: *recv_cq, srq, own_receives })
    }
}

/// The queues that a queue pair uses besides its own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueUses {
    send_cq: Option<CqKey>,
    recv_cq: Option<CqKey>,
    srq: Option<SrqKey>,
}

impl QueueUses {
    /// Begins to use them: all, or none.
    fn acquire(vnic: &mut Vnic, shape: &Shape) -> Result<Self, DriverError> {
        let mut uses = Self::default();
        let acquired = uses.try_acquire(vnic, shape);
        acquired.inspect_err(|_| uses.release(vnic))?;
        Ok(uses)
    }

    fn try_acquire(&mut self, vnic: &mut Vnic, shape: &Shape) -> Result<(), DriverError> {
        self.send_cq = shape.send_cq.map(|cq| vnic.cqs.acquire(cq)).transpose()?;
        self.recv_cq = shape.recv_cq.map(|cq| vnic.cqs.acquire(cq)).transpose()?;
        if let (Some(srq), Some(pd)) = (shape.srq, shape.pd) {
            self.srq = Some(vnic.srqs.acquire(srq, pd)?);
        }
        Ok(())
    }

    /// Those of a queue pair.
    pub(super) fn of(io: &QpIo) -> Self {
        Self { send_cq: io.send_cq, recv_cq: io.recv_cq, srq: io.receives.shared() }
    }

    /// Ends the use of all.
    pub(super) fn release(self, vnic: &mut Vnic) {
        [self.send_cq, self.recv_cq].into_iter().flatten().for_each(|cq| vnic.cqs.release(cq));
        if let Some(srq) = self.srq {
            vnic.srqs.release(srq);
        }
    }
}
