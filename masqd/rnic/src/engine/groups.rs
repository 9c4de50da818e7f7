//! Queue pairs with several paths: what surrounds a member's transport, and how members come, go and fail together.
//!
//! A member's own calls end in [`World::settle_group`]: it wakes those that may go on now, and when the member is in ERR, or a chunk has failed,
//! the others follow. That comes to an end, as each that follows is in ERR from then on.

use std::ops::Range;

use masq_driver::{Connection, DriverError, GroupAttr, QpChange, QpState, QpType};
use masq_types::WireQpn;

use super::env::QpEnv;
use super::peers::leave_peer;
use super::{Engine, World, ip_overhead};
use crate::group::{Group, Member};
use crate::limits;
use crate::memory::GuestMemory;
use crate::qp::{Failed, Path, Qp, QpIo, QpKey};
use crate::ring::{RingBroken, SendRing};
use crate::transport::{
    Completion, Failure, QpCore, QpEvent, RecvWork, SendWork, Status, SteerFault, WorkQueue,
};

impl QpEnv<'_> {
    /// The next request of a member: of the leader's from its send queue before a chunk.
    pub(super) fn next_of_group(&mut self, member: Member, work: &mut SendWork) -> bool {
        let Some(group) = self.groups.get_mut(member.group) else { return false };
        let request = match &mut self.io.sq {
            Some(queue) if member.is_leader() => group.take_request(queue, self.memory, work),
            _ => Ok(false),
        };
        let taken = match request {
            Ok(false) => group.take_chunk(member.number, self.memory, work),
            other => other,
        };
        self.unless_broken(taken)
    }

    /// The next request that a member flushes: chunks that nobody has begun are nobody's any more.
    pub(super) fn next_of_group_to_flush(&mut self, member: Member, work: &mut SendWork) -> bool {
        let (Some(group), Some(queue)) = (self.groups.get_mut(member.group), &mut self.io.sq) else {
            return false;
        };
        let taken = group.take_to_flush(queue, self.memory, work);
        self.unless_broken(taken)
    }

    /// The receive of a member's next message: one that data has been steered into, or may have been passed by such, before all others.
    pub(super) fn next_recv_of_group(&mut self, member: Member, work: &mut RecvWork) -> bool {
        if !member.is_leader() {
            return false;
        }
        let taken = self.groups.get_mut(member.group).and_then(|g| g.assigned.take(work));
        if !self.has_taken_assigned(taken) && !self.take_recv(work) {
            return false;
        }
        if let Some(group) = self.groups.get_mut(member.group) {
            group.assigned.passed();
        }
        true
    }

    /// A receive that was assigned has been taken, and this buffer has served its last message; or none was at hand.
    pub(super) fn has_taken_assigned(&mut self, spare: Option<RecvWork>) -> bool {
        let Some(spare) = spare else { return false };
        self.spares.give_back_recv(spare);
        *self.assigned = self.assigned.saturating_sub(1);
        true
    }

    /// Makes sure that a receive is at hand to which data is steered, and all before it, and takes these bytes of it.
    pub(super) fn assign_recv_of_group(&mut self, number: u32, bytes: Range<u64>) -> Result<(), SteerFault> {
        let Some(member) = self.io.member else {
            return Err(SteerFault::Invalid("data is steered to a queue pair that has one path"));
        };
        loop {
            let Some(group) = self.groups.get_mut(member.group) else { return Err(SteerFault::NotReady) };
            if group.assigned.has(number)? {
                return group.assigned.claim(number, bytes);
            }
            let own = group.assigned.kept();
            if !limits::may_assign(self.assigned.saturating_sub(own), own) {
                return Err(SteerFault::NotReady);
            }
            let mut work = self.spares.lend_recv();
            if !self.take_recv(&mut work) {
                self.spares.give_back_recv(work);
                return Err(SteerFault::NotReady);
            }
            if let Some(group) = self.groups.get_mut(member.group) {
                group.assigned.push(work);
                *self.assigned += 1;
            }
        }
    }

    /// A member's request is done.
    pub(super) fn done_of_group(&mut self, member: Member, work: &SendWork) {
        if let Some(group) = self.groups.get_mut(member.group) {
            let told = group.done(member.number, self.memory, work).map(|()| true);
            self.unless_broken(told);
        }
    }

    /// A member's request has not succeeded.
    pub(super) fn complete_of_group(&mut self, member: Member, completion: &Completion) {
        let Some(group) = self.groups.get_mut(member.group) else { return };
        let Completion { queue, status, cause, .. } = *completion;
        match queue {
            WorkQueue::Chunk if status == Status::WrFlushErr => {}
            WorkQueue::Chunk => {
                group.chunk_failed(self.now, Failure::new(status, cause));
                self.io.failed = Some(Failed { at: self.now, queue, status, cause });
            }
            WorkQueue::Send => {
                let told = group.told(completion);
                self.complete_from(&told, None);
            }
            WorkQueue::Recv => self.complete_from(completion, None),
        }
    }

    /// Whether an event of a member is told to nobody. The guest knows one queue pair, which is drained when all are.
    pub(super) fn keeps_event(&mut self, member: Member, event: &QpEvent) -> bool {
        match event {
            QpEvent::Fault { .. } => false,
            QpEvent::SqDrained => {
                !self.groups.get_mut(member.group).is_some_and(|g| g.is_drained(member.number))
            }
            QpEvent::CommEstablished | QpEvent::LastWqe => !member.is_leader(),
        }
    }

    fn unless_broken(&mut self, taken: Result<bool, RingBroken>) -> bool {
        taken.unwrap_or_else(|RingBroken| {
            self.io.broken = true;
            false
        })
    }
}

impl World {
    /// The group of a queue pair that uses several paths, and its place there.
    pub(super) fn group_of(&mut self, key: QpKey) -> Option<(Member, &mut Group)> {
        let qp = self.qps.get(key)?;
        let member = qp.io.member?;
        let group = self.vnics.get_mut(qp.io.vnic)?.groups.get_mut(member.group)?;
        Some((member, group))
    }

    fn state_of(&self, key: QpKey) -> Option<QpState> {
        self.qps.get(key).map(|q| q.core.state())
    }

    /// The guest has posted something to a group. The leader has its turn anyway, the others when there are chunks.
    pub(super) fn wake_group(&mut self, key: QpKey) {
        let Some(Qp { io: QpIo { vnic, member: Some(member), .. }, .. }) = self.qps.get(key) else { return };
        let Some(vnic) = self.vnics.get_mut(*vnic) else { return };
        let Some(group) = vnic.groups.get_mut(member.group) else { return };
        group.posted(&vnic.memory);
        if group.has_wakes() {
            self.wake_members(key);
        }
    }

    /// Those of a group's members go on that something has changed for.
    fn wake_members(&mut self, key: QpKey) {
        let Some((_, group)) = self.group_of(key) else { return };
        let mut wakes = group.take_wakes();
        while wakes != 0 {
            let number = wakes.trailing_zeros();
            wakes &= wakes - 1;
            let Some((_, group)) = self.group_of(key) else { return };
            let Some(member) = group.member(number as usize) else { return };
            self.schedule(member);
        }
    }

    /// Deals with what a member's last call has left to do for the others.
    pub(super) fn settle_group(&mut self, key: QpKey) {
        let state = self.state_of(key);
        let Some((_, group)) = self.group_of(key) else { return };
        if (group.has_failed() || state == Some(QpState::Err)) && !group.hands_off {
            self.spread_failure(key);
        }
        self.wake_members(key);
    }

    /// The others follow a member that is in ERR; but the leader, when a chunk has failed, only after the requests that come before.
    #[cold]
    fn spread_failure(&mut self, key: QpKey) {
        let now = self.now;
        let mut number = 0;
        while let Some((_, group)) = self.group_of(key) {
            let Some(member) = group.member(number) else { return };
            let has_grace = number == 0 && self.leader_has_grace(member);
            number += 1;
            if !has_grace && self.state_of(member) != Some(QpState::Err) {
                self.with_env(member, |core, env| core.follow(now, env));
                self.schedule(member);
            }
        }
    }

    fn leader_has_grace(&mut self, leader: QpKey) -> bool {
        let Some(Qp { core, io: QpIo { vnic, member: Some(member), sq, .. }, .. }) = self.qps.get_mut(leader)
        else {
            return false;
        };
        let Some(vnic) = self.vnics.get(*vnic) else { return false };
        let Some(group) = vnic.groups.get(member.group) else { return false };
        let queue = sq.as_mut().filter(|_| core.state() == QpState::Rts);
        group.leader_has_grace(self.now, queue, &vnic.memory)
    }

    /// Does to a group's hidden members what `call` does to each.
    pub(super) fn with_siblings(&mut self, leader: QpKey, mut call: impl FnMut(&mut QpCore, &mut QpEnv<'_>)) {
        for sibling in self.siblings(leader) {
            self.with_env(sibling, &mut call);
            self.schedule(sibling);
        }
    }

    /// The hidden members of a queue pair's group.
    pub(super) fn siblings(&mut self, leader: QpKey) -> Vec<QpKey> {
        self.group_of(leader).map_or(Vec::new(), |(_, group)| group.siblings().collect())
    }

    /// A queue pair is reset. What has been taken out of its own receive queue ends with that queue; receives of a shared one would be lost to its other users, and
    /// are completed as flushed.
    pub(super) fn give_back_shared(&mut self, leader: QpKey) {
        let is_shared = self.qps.get(leader).is_some_and(|qp| qp.io.receives.shared().is_some());
        if is_shared && self.group_of(leader).is_some() {
            // A leader in RESET follows nobody, whatever has failed before.
            self.set_hands_off(leader, true);
            self.with_env(leader, |core, env| core.flush_assigned(env));
            self.set_hands_off(leader, false);
        }
    }

    /// Whether failures in a group are dealt with by the caller for now.
    pub(super) fn set_hands_off(&mut self, leader: QpKey, hands_off: bool) {
        if let Some((_, group)) = self.group_of(leader) {
            group.hands_off = hands_off;
        }
    }

    /// Whether a queue pair in SQD, or a hidden one of its group, has sends to finish.
    pub(super) fn is_draining(&self, leader: &Qp) -> bool {
        let group = leader.io.member.and_then(|m| self.vnics.get(leader.io.vnic)?.groups.get(m.group));
        let mut siblings = group.into_iter().flat_map(Group::siblings).filter_map(|k| self.qps.get(k));
        leader.core.status().sq_draining || siblings.any(|qp| qp.core.status().sq_draining)
    }
}

impl Engine {
    /// Prepares the ways of a connection, path by path; nothing else sees them yet. Towards a peer on this RNIC there is one.
    pub(super) fn open_paths(
        &mut self,
        key: QpKey,
        connection: &Connection,
    ) -> Result<Vec<Path>, DriverError> {
        let mut paths = Vec::with_capacity(connection.path_count());
        let outcome = self.open_each_path(key, connection, &mut paths);
        if outcome.is_err() {
            self.close_paths(&paths);
        }
        outcome.map(|()| paths)
    }

    fn open_each_path(
        &mut self,
        key: QpKey,
        connection: &Connection,
        paths: &mut Vec<Path>,
    ) -> Result<(), DriverError> {
        let siblings = self.world.siblings(key);
        let Some(qp) = self.world.qps.get(key) else {
            return Err(DriverError::UnknownObject("queue pair".into()));
        };
        let (wire_qpn, vnic, group) = (qp.io.wire_qpn, qp.io.vnic, qp.group);
        let is_connected = qp.path.local().is_some();
        paths.push(self.open_path(key, wire_qpn, connection)?);
        let is_local = matches!(paths.first(), Some(Path::Local(_)));
        let count = if is_local { 1 } else { connection.path_count() };
        let group = group.and_then(|g| self.world.vnics.get(vnic)?.groups.get(g));
        let most = group.map_or(1, Group::most);
        // A queue pair that is connected already is given other addresses, and no other number of them.
        let present = 1 + siblings.len();
        if count > most || (is_connected && count != present) {
            return Err(DriverError::Invalid(format!("the queue pair cannot use {count} paths")));
        }
        for number in 1..count {
            let Some(on_path) = connection.on_path(number) else { break };
            let own = siblings.get(number - 1).copied().unwrap_or(key);
            let path = self.open_path(own, WireQpn::from_wire(wire_qpn.get() + number as u32), &on_path)?;
            paths.push(path);
            if matches!(paths.last(), Some(Path::Local(_))) {
                return Err(DriverError::Invalid(format!("path {number} leads to this RNIC itself")));
            }
        }
        if count > 1 {
            let members =
                std::iter::once(key).chain((1..count).map(|n| *siblings.get(n - 1).unwrap_or(&key)));
            self.check_other_paths(wire_qpn, &members.collect::<Vec<_>>(), paths)?;
        }
        Ok(())
    }

    /// Gives up ways that nothing uses.
    pub(super) fn close_paths(&mut self, paths: &[Path]) {
        for path in paths {
            if let Path::Remote { route, .. } = path {
                self.edge.close_route(route);
            }
        }
    }

    /// Puts the ways of a connection in place of the old ones. At RTR (`begins`) a queue pair with several paths gets its siblings.
    pub(super) fn connect_paths(
        &mut self,
        key: QpKey,
        connection: &Connection,
        mut paths: Vec<Path>,
        begins: bool,
    ) {
        if paths.is_empty() {
            return;
        }
        let first = paths.remove(0);
        self.connect(key, first);
        self.set_ip_overhead(key, connection);
        if begins {
            self.start_group(key, connection, paths.len());
        }
        for (number, (sibling, path)) in self.world.siblings(key).into_iter().zip(paths).enumerate() {
            self.connect(sibling, path);
            if let Some(on_path) = connection.on_path(number + 1) {
                self.set_ip_overhead(sibling, &on_path);
            }
        }
        self.lead_group(key);
    }

    fn set_ip_overhead(&mut self, key: QpKey, connection: &Connection) {
        if let Some(qp) = self.world.qps.get_mut(key) {
            qp.io.ip_overhead = ip_overhead(connection.local);
        }
    }

    /// Makes the siblings of a queue pair in RTR, and tells its guest how many paths it has.
    fn start_group(&mut self, leader: QpKey, connection: &Connection, siblings: usize) {
        let world = &mut self.world;
        let Some(qp) = world.qps.get_mut(leader) else { return };
        let (Some(group), vnic_key) = (qp.group, qp.io.vnic) else { return };
        qp.io.member = (siblings > 0).then_some(Member { group, number: 0 });
        let mut members = vec![leader];
        for number in 1..=siblings {
            let Some(qp) = world.qps.get(leader) else { return };
            let Some(on_path) = connection.on_path(number) else { return };
            let sibling = qp.sibling(Member { group, number: number as u8 }, on_path.remote_qpn);
            members.push(world.qps.insert(|_| sibling));
        }
        let Some(vnic) = world.vnics.get_mut(vnic_key) else { return };
        let Some(group) = vnic.groups.get_mut(group) else { return };
        if group.start(&vnic.memory, &members, connection.features).is_err()
            && let Some(qp) = world.qps.get_mut(leader)
        {
            // Found out with its next request.
            qp.io.broken = true;
        }
    }

    /// Changes the hidden members of a queue pair as it has been changed itself.
    pub(super) fn modify_siblings(&mut self, leader: QpKey, change: &QpChange) {
        let now = self.world.now;
        let connection = change.connection.as_ref();
        let mut change = QpChange { from: None, connection: None, ..change.clone() };
        if let Some((_, group)) = self.world.group_of(leader).filter(|_| change.to == Some(QpState::Rts)) {
            group.drains_anew();
        }
        // At RTR they have been made as the leader is, and they end with RESET.
        if matches!(change.to, Some(QpState::Rtr | QpState::Reset | QpState::Init)) {
            return;
        }
        for (number, sibling) in self.world.siblings(leader).into_iter().enumerate() {
            // What the peer understands may have changed with the way to it.
            change.connection = connection.and_then(|connection| connection.on_path(number + 1));
            // One that has failed stays as it is, until the leader follows.
            self.world.with_env(sibling, |core, env| core.modify(now, env, &change));
            self.world.schedule(sibling);
        }
    }

    /// The queue pair is reset or goes: it has no siblings any more.
    pub(super) fn end_siblings(&mut self, leader: QpKey) {
        for sibling in self.world.siblings(leader) {
            self.remove_qp(sibling);
        }
        self.world.unwire_other_paths(leader);
        let Some(qp) = self.world.qps.get_mut(leader) else { return };
        qp.io.member = None;
        let (group, vnic_key) = (qp.group, qp.io.vnic);
        let index = self.world.index();
        let World { vnics, peers, verdicts, .. } = &mut self.world;
        let Some(vnic) = vnics.get_mut(vnic_key) else { return };
        if let Some(group) = group.and_then(|g| vnic.groups.get_mut(g)) {
            vnic.assigned_receives = vnic.assigned_receives.saturating_sub(group.assigned.kept());
            leave_peer(group, peers, verdicts, index);
            group.clear();
        }
    }
}

/// The group of a queue pair that is created.
pub(super) fn new_group(
    what: &str,
    qp_type: QpType,
    wire_qpn: WireQpn,
    queue: Option<&SendRing>,
    attr: GroupAttr,
    memory: &GuestMemory,
) -> Result<Group, DriverError> {
    let refused = |why: &str| Err(DriverError::Invalid(format!("{what}: {why}")));
    if qp_type != QpType::Rc {
        return refused("only reliable connected queue pairs use several paths");
    }
    if !wire_qpn.get().is_multiple_of(u32::from(attr.members).next_power_of_two()) {
        return refused("the wire number of a group is no multiple of as many as it has");
    }
    if queue.map(SendRing::stride_shift) != Some(attr.chunks.stride_shift) {
        return refused("the chunk ring has another stride than the send queue");
    }
    Group::new(what, attr, memory)
}
