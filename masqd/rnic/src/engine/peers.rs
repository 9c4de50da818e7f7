//! Probes of the paths to other hosts, and what follows from them: see [`peers`](crate::peers).

use std::net::IpAddr;

use masq_driver::Event;
use masq_wire::{PathProbe, ROCEV2_UDP_PORT};
use rand_chacha::rand_core::RngCore;

use super::fabric::Note;
use super::{Engine, World};
use crate::group::{Group, Way};
use crate::peers::{Ask, Change, Ends, Peers, Verdicts};
use crate::qp::QpKey;
use crate::transport::Transmit;
use crate::vnic::Vnic;

/// Probes of other hosts that are answered in one turn.
const MOST_ANSWERS: usize = 256;

impl World {
    /// Another RNIC asks whether a path carries packets.
    pub(super) fn answer_probe(&mut self, ask: Ask) {
        if self.probes.len() < MOST_ANSWERS {
            self.probes.push(ask);
        }
    }

    /// A group leads by these ways from now on.
    pub(super) fn lead(&mut self, leader: QpKey, ways: Vec<Way>) {
        let index = self.index();
        let Self { qps, vnics, peers, verdicts, now, .. } = self;
        let Some(qp) = qps.get(leader) else { return };
        let group = qp.io.member.and_then(|m| vnics.get_mut(qp.io.vnic)?.groups.get_mut(m.group));
        let Some(group) = group else { return };
        leave_peer(group, peers, verdicts, index);
        let peer = peers.join(&ends(&ways), *now, |ends| verdicts.join(*ends, index));
        group.lead(ways, peer);
    }

    /// A vNIC leaves this engine.
    pub(super) fn leave_peers(&mut self, vnic: &mut Vnic) {
        let index = self.index();
        for (_, group) in &mut vnic.groups {
            leave_peer(group, &mut self.peers, &self.verdicts, index);
        }
    }

    /// A vNIC has come to this engine.
    pub(super) fn join_peers(&mut self, vnic: usize) {
        let index = self.index();
        let Self { qps, vnics, peers, verdicts, now, .. } = self;
        let groups = vnics.get_mut(vnic).into_iter().flat_map(|v| &mut v.groups);
        for (_, group) in groups.filter(|(_, group)| !group.ways().is_empty()) {
            group.peer = peers.join(&ends(group.ways()), *now, |ends| verdicts.join(*ends, index));
            let leader = group.member(0).and_then(|key| qps.get(key)).map(|qp| &qp.core);
            if let (Some(peer), Some(core)) = (group.peer, leader)
                && group.paths.any_is_away()
            {
                // What the engine before has asked for is answered there.
                peers.suspect(peer, *now, core.answer_timeout(), core.probe_bytes());
            }
        }
    }

    /// Another engine has found a path down, or up.
    pub(super) fn path_judged(&mut self, ends: Ends, is_up: bool) {
        if !is_up && !self.verdicts.is_down(&ends) {
            // It has come up since, or is forgotten with its last user.
            return;
        }
        let changes = self.peers.judged(ends, is_up, self.now);
        for change in changes.iter().filter(|_| !is_up) {
            self.verdicts.join(ends, self.index());
            self.leave_dead_path(change);
        }
    }

    /// This engine has found a path down, or up: whoever hears of it first tells all.
    #[cold]
    fn path_changed(&mut self, change: &Change, local: Option<IpAddr>) {
        let Change { path, is_up, ends, .. } = *change;
        let index = self.index();
        let is_news = if is_up { self.verdicts.up(ends) } else { self.verdicts.down(ends, index) };
        if !is_up {
            self.leave_dead_path(change);
        }
        if !is_news {
            return;
        }
        if let Some(fabric) = &mut self.fabric {
            fabric.note_all(|| Note::Path(ends, is_up));
        }
        if let Some(local) = local {
            self.sink.event(Event::PathChanged { path, is_up, local, remote: ends.remote });
        }
    }

    /// Members that have something under way on a path which is dead have their turn, and leave it. O(n) in the groups.
    fn leave_dead_path(&mut self, change: &Change) {
        let mut members = Vec::new();
        for (_, vnic) in &self.vnics {
            for (_, group) in vnic.groups.iter().filter(|(_, group)| group.peer == Some(change.peer)) {
                let there =
                    (0..).zip(group.members()).filter(|(n, _)| group.paths.out(*n, false) == change.path);
                members.extend(there.map(|(_, key)| key));
            }
        }
        let now = self.now;
        for member in members {
            // Others leave when they have something to send.
            if self.qps.get(member).is_some_and(|qp| qp.core.unanswered(now).is_some()) {
                self.schedule(member);
            }
        }
    }
}

impl Engine {
    /// Asks by the paths of which something has to be known, answers those who ask, and tells what has been found. Returns whether there was anything.
    pub(super) fn tend_peers(&mut self) -> bool {
        let World { peers, now, listened, .. } = &mut self.world;
        if peers.poll_timeout().is_some_and(|at| at <= *now) {
            peers.handle_timeout(*now, *listened, || self.random.next_u64());
        }
        let mut worked = false;
        while let Some(change) = self.world.peers.poll_change() {
            worked = true;
            let local = self.edge.find_name(change.ends.local);
            self.world.path_changed(&change, local);
        }
        while let Some(ask) = self.world.peers.poll_ask() {
            worked = true;
            self.world.paths.checks += 1;
            self.send_probe(&ask, false);
        }
        while let Some(ask) = self.world.probes.pop() {
            worked = true;
            self.send_probe(&ask, true);
        }
        while let Some((ends, inquiry)) = self.world.inquiries.pop() {
            worked = true;
            self.send_own(ends, inquiry.is_answer, |out| inquiry.emit(out));
        }
        worked
    }

    fn send_probe(&mut self, ask: &Ask, is_answer: bool) {
        let Ask { ends, token, bytes } = *ask;
        self.send_own(ends, is_answer, |out| PathProbe { is_answer, token }.emit(out, bytes));
    }

    /// A packet of the RNIC's own. One that finds no room is lost, as on any network.
    fn send_own(&mut self, ends: Ends, is_answer: bool, emit: impl FnOnce(&mut Vec<u8>) -> usize) {
        if self.tx_blocked || (self.tx.is_full() && !self.flush()) {
            return;
        }
        let Some(route) = self.edge.route(ends.local, ends.remote, ROCEV2_UDP_PORT, 0, 0) else { return };
        let bytes = emit(self.tx.buffer());
        let transmit = Transmit { segments: 1, segment_bytes: bytes, total_bytes: bytes, is_answer };
        self.tx.add(&self.edge, &route, None, transmit);
    }
}

/// A group does not lead to its peer any more.
pub(super) fn leave_peer(group: &mut Group, peers: &mut Peers, verdicts: &Verdicts, engine: usize) {
    let paths = group.ways().len();
    if let Some(peer) = group.peer.take() {
        peers.leave(peer, paths).into_iter().for_each(|ends| verdicts.leave(ends, engine));
    }
}

fn ends(ways: &[Way]) -> Vec<Ends> {
    ways.iter().map(|way| Ends { local: way.local, remote: way.route.peer() }).collect()
}
