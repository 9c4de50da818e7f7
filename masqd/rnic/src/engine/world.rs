//! What the engine knows: guests, queue pairs, who is connected where. No sockets and no clock.

use std::net::IpAddr;
use std::sync::Arc;

use masq_driver::{DriverError, Event, EventSink, QpFault, QpHandle, QpState, VnicId};
use masq_types::WireQpn;
use masq_wire::Inquiry;
use rustc_hash::FxHashMap;
use slab::Slab;

use super::env::QpEnv;
use super::fabric::Fabric;
use super::paths::PathCounters;
use super::schedule::Schedule;
use super::spares::Spares;
use super::speakers::Speakers;
use super::watch::Watch;
use crate::datagram::Losses;
use crate::peers::{Ask, Ends, Peers, Verdicts};
use crate::qp::{Qp, QpIo, QpKey, QpTable};
use crate::shaping::Gate;
use crate::transport::{Counters, QpCore, Time};
use crate::udp::LocalId;
use crate::vnic::Vnic;

/// A queue pair of a peer behind the underlay, as seen from a local address.
pub type RemoteQp = (LocalId, IpAddr, WireQpn);

/// All state of an engine that commands and packets change.
pub struct World {
    /// Guests.
    pub vnics: Slab<Vnic>,
    /// Guests by id.
    pub vnic_ids: FxHashMap<VnicId, usize>,
    /// Queue pairs.
    pub qps: QpTable,
    /// Connected queue pairs by local address and wire number.
    pub wire: FxHashMap<(LocalId, WireQpn), QpKey>,
    /// Which other engine has the queue pair with a local address and wire number.
    pub away: FxHashMap<(LocalId, WireQpn), usize>,
    /// The way to the other engines of this RNIC, if it has several.
    pub fabric: Option<Fabric>,
    /// Who sends to each queue pair behind the underlay, shared with the other engines.
    pub speakers: Arc<Speakers>,
    /// Who has something to do, and when.
    pub schedule: Schedule,
    /// Whose doorbells are looked at.
    pub watch: Watch,
    /// Where events go.
    pub sink: Arc<dyn EventSink>,
    /// Counters of queue pairs of vNICs that are gone.
    pub counters: Counters,
    /// Datagrams that were lost.
    pub losses: Losses,
    /// The hosts to which connections with several paths lead.
    pub peers: Peers,
    /// Paths that are down, shared with the other engines.
    pub verdicts: Arc<Verdicts>,
    /// Probes of other hosts that are to be answered.
    pub probes: Vec<Ask>,
    /// Questions of this RNIC's, and answers of it, whether queue pairs are connected.
    pub inquiries: Vec<(Ends, Inquiry)>,
    /// What groups do about paths that die.
    pub paths: PathCounters,
    /// All that had come to the sockets at this moment has been dealt with.
    pub listened: Time,
    /// Since when the sockets have held more than each turn has taken.
    pub behind_since: Option<Time>,
    /// vNICs at whose queues something is left to settle.
    pub unsettled: Vec<usize>,
    /// Requests that are done, for their buffers.
    pub spares: Spares,
    /// Nothing gets leave to be sent: what needs none is done for those whose turn it is not.
    pub gate_closed: bool,
    /// The present moment.
    pub now: Time,
}

impl World {
    /// Nothing.
    pub fn new(sink: Arc<dyn EventSink>) -> Self {
        Self {
            vnics: Slab::new(),
            vnic_ids: FxHashMap::default(),
            qps: QpTable::default(),
            wire: FxHashMap::default(),
            away: FxHashMap::default(),
            fabric: None,
            speakers: Arc::default(),
            schedule: Schedule::default(),
            watch: Watch::default(),
            sink,
            counters: Counters::default(),
            losses: Losses::default(),
            peers: Peers::new(0),
            verdicts: Arc::default(),
            probes: Vec::new(),
            inquiries: Vec::new(),
            paths: PathCounters::default(),
            listened: Time::ZERO,
            behind_since: None,
            unsettled: Vec::new(),
            spares: Spares::default(),
            gate_closed: false,
            now: Time::ZERO,
        }
    }

    /// The key of a guest.
    pub fn vnic_key(&self, id: VnicId) -> Result<usize, DriverError> {
        let unknown = || DriverError::UnknownObject(format!("vNIC {}", id.0));
        self.vnic_ids.get(&id).copied().ok_or_else(unknown)
    }

    /// A guest.
    pub fn vnic_mut(&mut self, id: VnicId) -> Result<&mut Vnic, DriverError> {
        let key = self.vnic_key(id)?;
        self.vnics.get_mut(key).ok_or_else(|| DriverError::UnknownObject(format!("vNIC {}", id.0)))
    }

    /// The key of a queue pair.
    pub fn qp_key(&self, id: VnicId, qp: QpHandle) -> Result<QpKey, DriverError> {
        let key = self.vnic_key(id)?;
        let found = self.vnics.get(key).and_then(|v| v.qps.get(&qp)).copied();
        found.ok_or_else(|| DriverError::UnknownObject(format!("queue pair {}", qp.0)))
    }

    /// Where something is counted that a queue pair does beside its transport.
    pub fn counters_of(&mut self, key: QpKey) -> &mut Counters {
        match self.qps.get_mut(key) {
            Some(qp) => qp.core.counters_mut(),
            None => &mut self.counters,
        }
    }

    /// Runs a call of the transport in the world of its queue pair, or several as long as it [may go on](QpEnv::may_go_on), and deals with what
    /// came of it. `None` when the queue pair is gone.
    pub fn with_env<R>(
        &mut self,
        key: QpKey,
        call: impl FnOnce(&mut QpCore, &mut QpEnv<'_>) -> R,
    ) -> Option<R> {
        let io = &self.qps.get(key)?.io;
        let vnic = self.vnics.get_mut(io.vnic)?;
        let leader = io.member.and_then(|member| vnic.leader_of(member));
        let (qp, leader) = match leader {
            Some(leader) => {
                self.qps.get_both_mut(key, leader).map(|(qp, leader)| (qp, Some(&mut leader.io)))?
            }
            None => (self.qps.get_mut(key)?, None),
        };
        let Qp { core, io, asked, .. } = qp;
        let gate = self.schedule.gate(&mut vnic.shaping, self.gate_closed);
        let messages_before = (core.counters().sent_msgs, core.counters().rcvd_msgs);
        let held_by_others = vnic.held_requests.saturating_sub(core.buffers());
        let early_of_others = vnic.early_bytes.saturating_sub(core.early_bytes());
        let mut env = QpEnv {
            now: self.now,
            vnic: vnic.id,
            memory: &vnic.memory,
            keys: &mut vnic.keys,
            cqs: &mut vnic.cqs,
            srqs: &mut vnic.srqs,
            groups: &mut vnic.groups,
            io,
            leader,
            sink: &*self.sink,
            held_by_others,
            early_of_others,
            early_bytes: vnic.early_bytes,
            assigned: &mut vnic.assigned_receives,
            gate,
            asked: asked.is_some(),
            spares: &mut self.spares,
        };
        let result = call(core, &mut env);
        let (sink, id) = (&*self.sink, vnic.id);
        env.cqs.tell_overruns(|cq| sink.event(Event::CqOverrun { vnic: id, cq }));
        vnic.traffic.tx_messages += core.counters().sent_msgs - messages_before.0;
        vnic.traffic.rx_messages += core.counters().rcvd_msgs - messages_before.1;
        if !vnic.unsettled && (env.cqs.has_news() || env.srqs.has_news()) {
            vnic.unsettled = true;
            self.unsettled.push(env.io.vnic);
        }
        let reason = if env.io.broken {
            "a work queue in guest memory is broken"
        } else if env.io.lost_completion {
            "its completion queue has overrun"
        } else {
            vnic.held_requests = held_by_others + core.buffers();
            vnic.early_bytes = early_of_others + core.early_bytes();
            let group = env.io.member.and_then(|member| env.groups.get(member.group));
            if group.is_some_and(|g| g.has_wakes() || g.has_failed() || core.state() == QpState::Err) {
                self.settle_group(key);
            }
            return Some(result);
        };
        core.fail(self.now, &mut env, Some(QpFault::Fatal), reason);
        if !std::mem::replace(&mut vnic.unsettled, true) {
            self.unsettled.push(env.io.vnic);
        }
        // Flushing finds the same again, which must not be dealt with again and again.
        (env.io.broken, env.io.lost_completion) = (false, false);
        vnic.held_requests = held_by_others + core.buffers();
        vnic.early_bytes = early_of_others + core.early_bytes();
        let (wants_work, in_group) = (core.wants_work(), env.io.member.is_some());
        if wants_work {
            self.schedule(key);
        }
        if in_group {
            self.settle_group(key);
        }
        Some(result)
    }

    /// Where what a vNIC sends asks for leave.
    pub fn gate(&mut self, vnic_key: usize) -> Option<Gate<'_>> {
        let vnic = self.vnics.get_mut(vnic_key)?;
        Some(self.schedule.gate(&mut vnic.shaping, self.gate_closed))
    }

    /// Whether a queue pair may send to its peer behind the underlay: see [`speakers`](super::speakers).
    pub fn may_send(&self, key: QpKey) -> bool {
        self.qps.get(key).and_then(|q| q.claim).is_some_and(|c| c.sends)
    }

    /// Notes that a queue pair has something to do.
    pub fn schedule(&mut self, key: QpKey) {
        let Some(qp) = self.qps.get_mut(key) else { return };
        let Some(vnic) = self.vnics.get_mut(qp.io.vnic) else { return };
        if !std::mem::replace(&mut qp.errand, true) {
            self.schedule.errands.push(key);
        }
        if !std::mem::replace(&mut qp.scheduled, true) {
            vnic.ready.push_back(key);
            let vnic_key = qp.io.vnic;
            self.activate(vnic_key);
        }
    }

    /// Notes that a vNIC has something to do.
    pub fn activate(&mut self, vnic_key: usize) {
        let Some(vnic) = self.vnics.get_mut(vnic_key) else { return };
        if !std::mem::replace(&mut vnic.scheduled, true) {
            self.schedule.enqueue(vnic.shaping.class, vnic_key);
        }
    }

    /// Sees to it that a queue pair's timer goes off at `deadline`, or earlier.
    pub fn set_timer(&mut self, key: QpKey, deadline: Option<Time>) {
        let (Some(qp), Some(deadline)) = (self.qps.get_mut(key), deadline) else { return };
        if qp.timer.is_none_or(|queued| deadline < queued) {
            qp.timer = Some(deadline);
            self.schedule.timers.push(deadline, key);
            let qps = &self.qps;
            let counts = |deadline, key| qps.get(key).is_some_and(|q| q.timer == Some(deadline));
            self.schedule.timers.prune(qps.len(), counts);
        }
    }

    /// Notes that something may be left to settle at a vNIC's queues.
    pub fn unsettle(&mut self, vnic_key: usize) {
        if let Some(vnic) = self.vnics.get_mut(vnic_key) {
            vnic.unsettled = true;
            self.unsettled.push(vnic_key);
        }
    }

    /// Fails the queue pairs of queues that cannot go on, completion queues that have overrun and shared receive queues that are
    /// broken, and sends completion events. A queue pair that uses such a queue later fails by its first use of it.
    pub fn settle_queues(&mut self) {
        while let Some(vnic_key) = self.unsettled.pop() {
            // Failing queue pairs may leave more.
            if let Some(vnic) = self.vnics.get_mut(vnic_key) {
                vnic.unsettled = false;
            }
            while let Some(cq) = self.vnics.get_mut(vnic_key).and_then(|v| v.cqs.take_overrun()) {
                let uses = |io: &QpIo| io.send_cq == Some(cq) || io.recv_cq == Some(cq);
                self.fail_users(vnic_key, uses, "its completion queue has overrun");
            }
            while let Some(srq) = self.vnics.get_mut(vnic_key).and_then(|v| v.srqs.take_broken()) {
                let uses = |io: &QpIo| io.receives.shared() == Some(srq);
                self.fail_users(vnic_key, uses, "its shared receive queue is broken");
            }
            if let Some(vnic) = self.vnics.get_mut(vnic_key) {
                vnic.cqs.announce(&vnic.memory, &mut vnic.comp_queues, vnic.epoch);
            }
        }
    }

    /// Fails those queue pairs of a vNIC that use something.
    fn fail_users(&mut self, vnic_key: usize, uses: impl Fn(&QpIo) -> bool, reason: &'static str) {
        let Some(vnic) = self.vnics.get(vnic_key) else { return };
        let is_user = |key: &QpKey| self.qps.get(*key).is_some_and(|q| uses(&q.io));
        let users: Vec<QpKey> = vnic.qps.values().copied().filter(is_user).collect();
        let now = self.now;
        for key in users {
            self.with_env(key, |core, env| core.fail(now, env, Some(QpFault::Fatal), reason));
            self.schedule(key);
        }
    }
}
