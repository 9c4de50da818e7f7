//! The paths of a queue pair that uses several: which packets are its own, which way its packets go, and what becomes of them when a path dies.
//!
//! Each member of a group takes packets by all paths of the group, so all of their ends count as its own: it has its number at each local address, and a claim to its
//! peer at each remote one, as if it were connected there ([`speakers`](super::speakers)).

use std::net::IpAddr;

use masq_driver::{DriverError, Event, QpState};
use masq_types::WireQpn;
use slab::Slab;

use super::inspect::show_sent;
use super::{Engine, World};
use crate::group::{Arrivals, Group, PathChange, Way};
use crate::qp::{Path, Qp, QpKey};
use crate::transport::{Time, Transmit};
use crate::udp::LocalId;

/// What groups do about paths that die.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathCounters {
    /// Members whose requests have left a silent path for another one.
    migrations: u64,
    /// Packets sent to learn whether a path is alive.
    checks: u64,
}

impl PathCounters {
    /// All of them, with their names.
    pub fn named(&self) -> [(&'static str, u64); 2] {
        [("path_migrations", self.migrations), ("path_checks", self.checks)]
    }
}

impl Qp {
    /// Whether it is the one that sends to its peer by this way.
    fn sends_by(&self, way: &Way) -> bool {
        let remote = self.path.remote_qp().map(|(_, _, qpn)| (way.local, way.route.peer(), qpn));
        remote.and_then(|remote| self.claim_on(&remote)).is_some_and(|claim| claim.sends)
    }
}

/// Where a queue pair receives besides the address that it is connected from.
pub(super) fn other_locals<'a>(groups: &'a Slab<Group>, qp: &'a Qp) -> impl Iterator<Item = LocalId> + 'a {
    let group = qp.io.member.and_then(|member| groups.get(member.group));
    let ways = group.into_iter().flat_map(Group::ways);
    ways.map(|way| way.local).filter(|local| qp.path.local() != Some(*local))
}

impl World {
    /// By which path a packet from `source` to `local` has come to a connected queue pair, 0 where it has one; `None` if not from its peer.
    #[inline]
    pub(super) fn path_in(&self, qp: &Qp, local: LocalId, source: IpAddr) -> Option<u8> {
        match qp.io.member {
            None => (qp.path.remote_peer() == Some(source)).then_some(0),
            Some(member) => self.vnics.get(qp.io.vnic)?.groups.get(member.group)?.path_between(local, source),
        }
    }

    /// Packets have come to a member by a path.
    pub(super) fn arrived_by(&mut self, key: QpKey, path: u8, bytes: u64, what: Arrivals) {
        let now = self.now;
        let Some((member, group)) = self.group_of(key) else { return };
        group.paths.received(path, bytes);
        if let Some(change) = group.paths.arrived(member.number, path, now, what) {
            self.tell_path(key, change);
        }
    }

    #[cold]
    fn tell_path(&mut self, key: QpKey, PathChange { path, is_up }: PathChange) {
        let Some(qp) = self.qps.get(key) else { return };
        let (handle, vnic) = (qp.io.handle, qp.io.vnic);
        let Some(vnic) = self.vnics.get(vnic).map(|v| v.id) else { return };
        let Some((_, group)) = self.group_of(key) else { return };
        let Some(way) = group.ways().get(usize::from(path)) else { return };
        let (local, remote) = (way.address, way.route.peer());
        self.sink.event(Event::PathChanged { vnic, qp: handle, path, is_up, local, remote });
    }

    /// When the timer of a queue pair with packets is to go off.
    pub(super) fn deadline_of(&self, qp: &Qp) -> Option<Time> {
        let own = qp.core.poll_timeout();
        let works = matches!(qp.core.state(), QpState::Rts | QpState::Sqd);
        let Some(member) = qp.io.member.filter(|_| works) else { return own };
        let group = self.vnics.get(qp.io.vnic).and_then(|v| v.groups.get(member.group));
        own.into_iter().chain(group.and_then(|g| g.paths.deadline(member.number))).min()
    }

    /// If a member's requests have been unanswered for too long, and its path is silent, they take another one. Returns whether they do.
    pub(super) fn leave_silent_path(&mut self, key: QpKey) -> bool {
        let now = self.now;
        let Some(qp) = self.qps.get(key).filter(|q| q.io.member.is_some()) else { return false };
        if !qp.core.is_answer_overdue(now) {
            return false;
        }
        let timeout = qp.core.answer_timeout();
        let Some((member, group)) = self.group_of(key) else { return false };
        let present = group.paths.out(member.number, false);
        let leaves = group.paths.unanswered(member.number, now, timeout);
        // The one whose home it is checks whether it is dead; where no other is alive, all check theirs.
        let checks = if leaves { present.into()..usize::from(present) + 1 } else { 0..group.members().len() };
        for number in checks {
            let Some((_, group)) = self.group_of(key) else { break };
            if let Some(resident) = group.member(number) {
                self.schedule(resident);
            }
        }
        if leaves && let Some(qp) = self.qps.get_mut(key) {
            qp.core.change_path(now);
            self.paths.migrations += 1;
        }
        leaves
    }

    /// Whoever receives at the other paths' addresses of a member does so no more.
    pub(super) fn unwire_other_paths(&mut self, key: QpKey) {
        let Some(qp) = self.qps.get(key) else { return };
        let Some(vnic) = self.vnics.get(qp.io.vnic) else { return };
        let qpn = qp.io.wire_qpn;
        let locals: Vec<LocalId> = other_locals(&vnic.groups, qp).collect();
        for local in locals {
            self.unwire(local, qpn);
        }
    }
}

impl Engine {
    /// Refuses paths at whose ends somebody else has the number of one of the members.
    pub(super) fn check_other_paths(
        &self,
        first: WireQpn,
        members: &[QpKey],
        paths: &[Path],
    ) -> Result<(), DriverError> {
        for (number, key) in members.iter().enumerate() {
            let qpn = WireQpn::from_wire(first.get() + number as u32);
            let taken = |local: &LocalId| self.world.is_taken(&(*local, qpn), *key);
            if paths.iter().filter_map(Path::local).any(|local| taken(&local)) {
                let what = format!("a connected queue pair with the wire number {qpn} on another path");
                return Err(DriverError::Exists(what));
            }
        }
        Ok(())
    }

    /// The members of a group have been connected, each by its own path: from now on they use all of them.
    pub(super) fn lead_group(&mut self, leader: QpKey) {
        let world = &mut self.world;
        let now = world.now;
        let Some((_, group)) = world.group_of(leader) else { return };
        let members: Vec<QpKey> = group.members().collect();
        let mut ways = Vec::with_capacity(members.len());
        for key in &members {
            let Some(Path::Remote { local, route, .. }) = world.qps.get(*key).map(|q| &q.path) else {
                return;
            };
            let Some(address) = self.edge.find_name(*local) else { return };
            ways.push(Way { local: *local, address, route: route.clone() });
        }
        for key in members {
            let Some(qp) = world.qps.get(key) else { continue };
            let (home, qpn, peer) = (qp.path.local(), qp.io.wire_qpn, qp.path.remote_qp());
            for way in ways.iter().filter(|way| Some(way.local) != home) {
                world.wire_up(way.local, qpn, key, None);
                if let Some((_, _, peer)) = peer {
                    world.claim_remote(key, (way.local, way.route.peer(), peer));
                }
            }
        }
        if let Some((_, group)) = world.group_of(leader) {
            group.lead(ways, now);
        }
    }

    /// Sends what a member has appended: by `path`, or the one that it uses.
    pub(super) fn send_by_path(&mut self, key: QpKey, transmit: Transmit, path: Option<u8>) {
        let World { qps, vnics, .. } = &mut self.world;
        let Some(qp) = qps.get_mut(key) else { return self.tx.discard(transmit) };
        let Some(vnic) = vnics.get_mut(qp.io.vnic) else { return self.tx.discard(transmit) };
        let (member, dscp) = (qp.io.member, vnic.shaping.dscp);
        let Some(member) = member else { return self.tx.discard(transmit) };
        let Some(group) = vnic.groups.get_mut(member.group) else { return self.tx.discard(transmit) };
        let path = path.unwrap_or_else(|| group.paths.out(member.number, transmit.is_answer));
        let Some(way) = group.ways().get(usize::from(path)).filter(|way| qp.sends_by(way)) else {
            return self.tx.discard(transmit);
        };
        self.tx.add(&self.edge, &way.route, dscp, transmit);
        let packets = transmit.segments as u64;
        let bytes = transmit.total_bytes as u64 + packets * qp.io.ip_overhead;
        group.paths.sent(path, bytes);
        qp.traffic.tx_bytes += bytes;
        vnic.traffic.tx_ip_bytes += bytes;
        vnic.traffic.tx_packets += packets;
        let tap_wants_more = qp.tap.as_ref().is_none_or(|tap| show_sent(&**tap, &self.edge, &self.tx));
        let second = transmit.is_answer.then(|| group.paths.take_second_way(member.number)).flatten();
        let way = second.and_then(|path| Some((path, group.ways().get(usize::from(path))?)));
        if let Some((path, way)) = way.filter(|(_, way)| qp.sends_by(way)) {
            self.tx.add_again(&self.edge, &way.route, dscp);
            group.paths.sent(path, bytes);
            qp.traffic.tx_bytes += bytes;
            vnic.traffic.tx_ip_bytes += bytes;
            vnic.traffic.tx_packets += packets;
        }
        if !tap_wants_more {
            self.world.end_tap(key);
        }
    }

    /// Checks the home of a member, if it is time to.
    pub(super) fn check_home(&mut self, key: QpKey) {
        let now = self.world.now;
        let Some(qp) = self.world.qps.get(key).filter(|q| q.io.member.is_some()) else { return };
        if !matches!(qp.core.state(), QpState::Rts | QpState::Sqd) {
            return;
        }
        let timeout = qp.core.answer_timeout();
        let Some((member, group)) = self.world.group_of(key) else { return };
        let (is_due, change) = group.paths.check(member.number, now, timeout);
        if let Some(change) = change {
            self.world.tell_path(key, change);
        }
        // When there is no room, the next one comes soon enough.
        if !is_due || self.tx_blocked || (self.tx.is_full() && !self.flush()) {
            return;
        }
        let buffer = self.tx.buffer();
        let check = self.world.with_env(key, |core, env| core.check_path(env, buffer)).flatten();
        if let Some(transmit) = check {
            self.world.paths.checks += 1;
            self.send_by_path(key, transmit, Some(member.number));
        }
    }
}
