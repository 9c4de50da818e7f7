//! What is told of single vNICs and queue pairs: counters, how they are, their packets.

use std::net::SocketAddr;
use std::sync::Arc;

use masq_driver::{
    DriverError, FailedRequest, MAX_DESCRIBED_QPS, PacketTap, PathDetails, QpDetails, QpError, QpHandle,
    QpPath, QpTraffic, TappedPacket, VnicId,
};

use masq_wire::Ipv4Ident;

use super::inbound::Arrived;
use super::{Engine, World};
use crate::group::{Described, Group};
use crate::qp::{Path, Qp, QpKey};
use crate::transport::{Time, WorkQueue};
use crate::udp::{Edge, TxBatch};

/// What an engine can tell of why a queue pair does not send.
const WAITS_FOR_RECEIVE: &str = "a receive of the peer's (RNR)";
const WAITS_FOR_PEER: &str = "an answer of the peer's";
const WAITS_FOR_SOCKETS: &str = "room in the host's sockets";
const WAITS_FOR_RATE: &str = "the rate of its vNIC";

impl World {
    /// A tap wants no more packets of a queue pair, on none of its paths.
    #[cold]
    pub(super) fn end_tap(&mut self, key: QpKey) {
        let Some(tap) = self.qps.get_mut(key).and_then(|q| q.tap.take()) else { return };
        let members: Vec<QpKey> =
            self.group_of(key).map_or(Vec::new(), |(_, group)| group.members().collect());
        for member in members {
            if let Some(qp) = self.qps.get_mut(member) {
                qp.tap.take_if(|present| Arc::ptr_eq(present, &tap));
            }
        }
    }
}

impl Engine {
    pub(super) fn vnic_events(&self, id: VnicId) -> Result<Vec<(&'static str, u64)>, DriverError> {
        let key = self.world.vnic_key(id)?;
        let Some(vnic) = self.world.vnics.get(key) else { return Ok(Vec::new()) };
        let mut sum = vnic.counters;
        for qp in vnic.all_qps().filter_map(|k| self.world.qps.get(k)) {
            sum += *qp.core.counters();
        }
        Ok(sum.named().collect())
    }

    pub(super) fn describe_qps(&self, id: VnicId, qps: &[QpHandle]) -> Result<Vec<QpDetails>, DriverError> {
        if qps.len() > MAX_DESCRIBED_QPS {
            let why = format!("{} queue pairs at once, and no more than {MAX_DESCRIBED_QPS}", qps.len());
            return Err(DriverError::Invalid(why));
        }
        let key = self.world.vnic_key(id)?;
        let Some(vnic) = self.world.vnics.get(key) else { return Ok(Vec::new()) };
        let known = qps.iter().filter_map(|handle| self.world.qps.get(*vnic.qps.get(handle)?));
        Ok(known.map(|qp| self.describe(qp)).collect())
    }

    fn describe(&self, qp: &Qp) -> QpDetails {
        let (core, io) = (&qp.core, &qp.io);
        let is_local = matches!(qp.path, Path::Local(_));
        let has_packets = matches!(qp.path, Path::Remote { .. });
        let (retries_left, rnr_retries_left) =
            if is_local { qp.initiator.tries_left() } else { core.retries_left() };
        QpDetails {
            qp: io.handle,
            state: core.state(),
            path: self.describe_path(&qp.path),
            paths: self.describe_paths(qp),
            protocol: has_packets.then(|| core.protocol()),
            requests: core.held_requests() as u32 + u32::from(io.held_send.present),
            retries_left,
            rnr_retries_left,
            waits_for: self.what_it_waits_for(qp, is_local),
            traffic: self.traffic(qp),
            counters: core.counters().named().filter(|(_, n)| *n > 0).collect(),
            last_error: last_error(qp, has_packets, self.world.now),
        }
    }

    /// The queue pairs of a group that uses several paths, by number; else none.
    fn members(&self, qp: &Qp) -> Vec<&Qp> {
        let group = self.group_used_by(qp);
        group.into_iter().flat_map(Group::members).filter_map(|k| self.world.qps.get(k)).collect()
    }

    fn group_used_by(&self, qp: &Qp) -> Option<&Group> {
        self.world.vnics.get(qp.io.vnic)?.groups.get(qp.io.member?.group)
    }

    /// What a queue pair has sent and received, on all its paths.
    pub(super) fn traffic(&self, qp: &Qp) -> QpTraffic {
        let siblings = self.members(qp).into_iter().filter(|m| m.is_sibling());
        siblings.fold(qp.traffic, |sum, m| QpTraffic {
            tx_bytes: sum.tx_bytes + m.traffic.tx_bytes,
            rx_bytes: sum.rx_bytes + m.traffic.rx_bytes,
        })
    }

    fn describe_paths(&self, qp: &Qp) -> Vec<PathDetails> {
        let Some(group) = self.group_used_by(qp) else { return Vec::new() };
        let members = self.members(qp).into_iter().enumerate();
        let details = members.filter_map(|(number, member)| {
            let (chunks, chunks_under_way) = group.describe(number)?;
            let ends = self.describe_path(&member.path)?;
            let (path, peer) = (number as u8, self.world.peers.get(group.peer?)?);
            let Described { traffic, taken, changes, change } =
                group.paths.describe(path, peer, self.world.now)?;
            let state = peer.state(path);
            let answer_timeout = member.core.answer_timeout();
            Some(PathDetails {
                ends,
                state,
                traffic,
                chunks,
                chunks_under_way,
                taken,
                changes,
                last_change: change.map(|c| self.world.now.since(c.at)),
                unanswered_before: change.and_then(|c| c.unanswered),
                answer_timeout,
            })
        });
        details.collect()
    }

    fn describe_path(&self, path: &Path) -> Option<QpPath> {
        let ip = |id| self.edge.find_name(id);
        match path {
            Path::None => None,
            Path::Remote { local, route, remote_qpn } => Some(QpPath {
                local: ip(*local)?,
                remote: route.peer(),
                remote_qpn: *remote_qpn,
                is_local: false,
                udp_source_port: route.source_port(),
            }),
            Path::Local(p) => Some(QpPath {
                local: ip(p.local)?,
                remote: ip(p.remote)?,
                remote_qpn: p.remote_qpn,
                is_local: true,
                udp_source_port: 0,
            }),
        }
    }

    fn what_it_waits_for(&self, qp: &Qp, is_local: bool) -> Option<&'static str> {
        let waits = if is_local { qp.initiator.waits_for_receive() } else { qp.core.waits_for_receive() };
        if waits {
            return Some(WAITS_FOR_RECEIVE);
        }
        if is_local && qp.initiator.waits_for_answer() {
            return Some(WAITS_FOR_PEER);
        }
        if qp.parked {
            return Some(WAITS_FOR_SOCKETS);
        }
        let parked = self.world.vnics.get(qp.io.vnic).is_some_and(|v| v.shaping.parked_until.is_some());
        (qp.scheduled && parked).then_some(WAITS_FOR_RATE)
    }

    pub(super) fn start_capture(
        &mut self,
        id: VnicId,
        handle: QpHandle,
        tap: Arc<dyn PacketTap>,
    ) -> Result<(), DriverError> {
        let key = self.world.qp_key(id, handle)?;
        let Some(qp) = self.world.qps.get_mut(key) else { return Ok(()) };
        let refused = |why: &str| Err(DriverError::Invalid(why.into()));
        match &qp.path {
            _ if qp.datagram.is_some() => refused("datagrams belong to no connection"),
            Path::None => refused("the queue pair is not connected"),
            Path::Local(_) => refused("its peer is on the same host, and so it exchanges no packets"),
            Path::Remote { .. } if qp.tap.is_some() => {
                Err(DriverError::Busy("the queue pair's capture".into()))
            }
            Path::Remote { .. } => {
                qp.tap = Some(tap.clone());
                for sibling in self.world.siblings(key) {
                    if let Some(qp) = self.world.qps.get_mut(sibling) {
                        qp.tap = Some(tap.clone());
                    }
                }
                Ok(())
            }
        }
    }

    pub(super) fn stop_capture(
        &mut self,
        id: VnicId,
        handle: QpHandle,
        tap: &Arc<dyn PacketTap>,
    ) -> Result<(), DriverError> {
        let Ok(leader) = self.world.qp_key(id, handle) else { return Ok(()) };
        for key in std::iter::once(leader).chain(self.world.siblings(leader)) {
            if let Some(qp) = self.world.qps.get_mut(key) {
                qp.tap.take_if(|present| Arc::ptr_eq(present, tap));
            }
        }
        Ok(())
    }
}

/// The last error of a queue pair: why it has left the states in which it works, and the request that has failed with it; or only that, where
/// it goes on.
fn last_error(qp: &Qp, has_packets: bool, now: Time) -> Option<QpError> {
    let failed = qp.io.failed;
    let at = qp.core.last_error().map(|e| e.at).max(failed.map(|f| f.at))?;
    let core = qp.core.last_error().filter(|e| e.at == at);
    let failed = failed.filter(|f| f.at == at);
    let request = failed.map(|f| FailedRequest {
        is_receive: f.queue == WorkQueue::Recv,
        status: f.status.name(),
        cause: f.cause.to_string(),
    });
    let psns = core.filter(|_| has_packets);
    Some(QpError {
        age: now.since(at),
        reason: core.map_or("a request failed", |e| e.reason),
        request,
        una: psns.map(|e| e.una),
        expected: psns.map(|e| e.expected),
    })
}

/// Shows the train that was added last to `tx`. Returns whether more are wanted.
#[cold]
pub(super) fn show_sent(tap: &dyn PacketTap, edge: &Edge, tx: &TxBatch) -> bool {
    let Some((local, train)) = tx.last() else { return true };
    let Some(address) = edge.local_address(local) else { return true };
    let counted = edge.counts_segments(local);
    let source = SocketAddr::new(address.ip(), train.source_port);
    train.bytes.chunks(train.segment_bytes).enumerate().all(|(index, bytes)| {
        tap.packet(&TappedPacket {
            is_sent: true,
            age: std::time::Duration::ZERO,
            source,
            destination: train.destination,
            traffic_class: train.traffic_class,
            hop_limit: Some(train.hop_limit).filter(|n| *n > 0),
            ipv4_id: if counted { index as u16 } else { 0 },
            dont_fragment: true,
            bytes,
        })
    })
}

/// Shows a packet that has come to the local address `local`. Returns whether more are wanted.
#[cold]
pub(super) fn show_received(
    tap: &dyn PacketTap,
    now: Time,
    local: SocketAddr,
    arrived: &Arrived,
    ident: Ipv4Ident,
    bytes: &[u8],
) -> bool {
    tap.packet(&TappedPacket {
        is_sent: false,
        age: now.since(arrived.receipt.at),
        source: arrived.source,
        destination: local,
        traffic_class: arrived.receipt.ecn.mark(0),
        hop_limit: None,
        ipv4_id: ident.id,
        dont_fragment: ident.dont_fragment,
        bytes,
    })
}
