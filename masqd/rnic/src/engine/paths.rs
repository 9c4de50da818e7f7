//! The paths of a queue pair that uses several: which packets are its own, which way its packets go, and what becomes of them when a path dies.
//!
//! Each member of a group takes packets by all paths of the group, so all of their ends count as its own: it has its number at each local address, and, when the peer's
//! RNIC has confirmed the connection ([`inquiry`](super::inquiry)), a claim to its peer at each remote one, as if it were connected there ([`speakers`](super::speakers)).

use std::net::IpAddr;

use masq_driver::DriverError;
use masq_types::WireQpn;
use rand_chacha::rand_core::RngCore;
use slab::Slab;

use super::inspect::show_sent;
use super::{Engine, World};
use crate::group::{Arrivals, Group, Question, Verdict, Way};
use crate::qp::{Path, Qp, QpIo, QpKey};
use crate::transport::Transmit;
use crate::udp::LocalId;

/// What groups do about paths that die.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathCounters {
    /// Members whose requests have left a silent path for another one.
    migrations: u64,
    /// Probes sent to learn whether a path is alive.
    pub(super) checks: u64,
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
        // As a rule it is the way of its own path.
        if let Path::Remote { local, route, .. } = &self.path
            && *local == way.local
            && route.peer() == way.route.peer()
        {
            return self.claim.is_some_and(|claim| claim.sends);
        }
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
            Some(member) => {
                let group = self.vnics.get(qp.io.vnic)?.groups.get(member.group)?;
                group.path_between(local, source).filter(|path| group.paths.takes(*path))
            }
        }
    }

    /// Packets have come to a member by a path.
    #[inline]
    pub(super) fn arrived_by(&mut self, key: QpKey, path: u8, bytes: u64, what: Arrivals) {
        let Self { qps, vnics, peers, now, .. } = self;
        let Some(QpIo { vnic, member: Some(member), .. }) = qps.get(key).map(|qp| &qp.io) else { return };
        let group = vnics.get_mut(*vnic).and_then(|v| v.groups.get_mut(member.group));
        let Some(group) = group else { return };
        group.paths.received(path, bytes);
        group.paths.arrived(member.number, path, what);
        if let Some(peer) = group.peer.filter(|_| what.answers) {
            peers.heard(peer, path, *now);
        }
    }

    /// A member is about to send. If the path that it uses is known to be dead, it takes another one, and what is under way goes again; when its home is alive again, it
    /// goes there.
    #[inline]
    pub(super) fn settle_path(&mut self, key: QpKey) {
        let Self { qps, vnics, peers, now, .. } = self;
        let Some(qp) = qps.get_mut(key) else { return };
        let Some(member) = qp.io.member else { return };
        let group = vnics.get_mut(qp.io.vnic).and_then(|v| v.groups.get_mut(member.group));
        let Some(group) = group else { return };
        let Some(peer) = group.peer.and_then(|peer| peers.get(peer)) else { return };
        if group.paths.settle(member.number, peer, *now) {
            qp.core.leave_path(*now);
            self.paths.migrations += 1;
        }
    }

    /// Whether all has been read that had come when a queue pair's deadline came. Where there is ever more to read, that is not waited for long.
    pub(super) fn has_listened(&self, key: QpKey) -> bool {
        let Some(qp) = self.qps.get(key).filter(|q| q.io.member.is_some()) else { return true };
        let Some(deadline) = qp.core.poll_timeout() else { return true };
        let is_busy = |since| self.now.since(since) > qp.core.answer_timeout();
        self.listened >= deadline || self.behind_since.is_some_and(is_busy)
    }

    /// If a member's requests have been unanswered for too long, and its path is silent, they take another one. Returns whether they do.
    pub(super) fn leave_silent_path(&mut self, key: QpKey) -> bool {
        let Self { qps, vnics, peers, now, .. } = self;
        let Some(qp) = qps.get_mut(key) else { return false };
        let Some(member) = qp.io.member.filter(|_| qp.core.is_answer_overdue(*now)) else { return false };
        let (timeout, unanswered) = (qp.core.answer_timeout(), qp.core.unanswered(*now));
        let group = vnics.get_mut(qp.io.vnic).and_then(|v| v.groups.get_mut(member.group));
        let Some(group) = group else { return false };
        let Some((key, peer)) = group.peer.and_then(|key| Some((key, peers.get(key)?))) else {
            return false;
        };
        let verdict = group.paths.unanswered(member.number, peer, *now, timeout, unanswered);
        if verdict == Verdict::Lost {
            return false;
        }
        peers.suspect(key, *now, timeout, qp.core.probe_bytes());
        let leaves = verdict == Verdict::Leaves;
        if leaves {
            qp.core.change_path(*now);
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
        let Some((_, group)) = world.group_of(leader) else { return };
        let members: Vec<QpKey> = group.members().collect();
        let mut ways = Vec::with_capacity(members.len());
        for key in &members {
            let Some(Path::Remote { local, route, .. }) = world.qps.get(*key).map(|q| &q.path) else {
                return;
            };
            ways.push(Way { local: *local, route: route.clone() });
        }
        for key in members {
            let Some(qp) = world.qps.get(key) else { continue };
            let (home, qpn, peer) = (qp.path.local(), qp.io.wire_qpn, qp.path.remote_qp());
            for way in ways.iter().filter(|way| Some(way.local) != home) {
                world.wire_up(way.local, qpn, key, None);
            }
            // The leader has its claim already, and those by the other ways come when the peer's RNIC has confirmed the connection.
            if let (Some((_, _, peer)), Some(first)) = (peer, ways.first().filter(|w| Some(w.local) != home))
            {
                world.claim_remote(key, (first.local, first.route.peer(), peer));
            }
        }
        world.lead(leader, ways);
        let token = self.random.next_u64().to_be_bytes();
        if let Some((_, group)) = self.world.group_of(leader) {
            group.question = Question::new(token);
        }
        self.world.ask_peer(leader);
    }

    /// Sends what a member has appended, by the path that it uses.
    pub(super) fn send_by_path(&mut self, key: QpKey, transmit: Transmit) {
        let World { qps, vnics, .. } = &mut self.world;
        let Some(qp) = qps.get_mut(key) else { return self.tx.discard(transmit) };
        let Some(vnic) = vnics.get_mut(qp.io.vnic) else { return self.tx.discard(transmit) };
        let (member, dscp) = (qp.io.member, vnic.shaping.dscp);
        let Some(member) = member else { return self.tx.discard(transmit) };
        let Some(group) = vnic.groups.get_mut(member.group) else { return self.tx.discard(transmit) };
        let leader = group.member(0).filter(|_| !group.paths.is_confirmed());
        let path = group.paths.out(member.number, transmit.is_answer);
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
        if !tap_wants_more {
            self.world.end_tap(key);
        }
        if let Some(leader) = leader {
            self.world.ask_peer(leader);
        }
    }
}
