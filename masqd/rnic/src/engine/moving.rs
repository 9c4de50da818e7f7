//! A vNIC that moves from one engine to another, with all that it has.
//!
//! ```text
//!  source                                   target                     others
//!   settle, take it out ──── Adopt ───────►  attach, insert
//!   forwards what comes for it               ── Wire ─────────────────►  ask there from now on
//!   ends its uses of addresses ◄── Adopted ──
//! ```
//!
//! It moves as a whole, since its queue pairs share its keys, completion queues and memory, of which an engine needs no lock. Its guest notices
//! nothing: whether to kick stands in its status page and is what the target says; kicks that come meanwhile are found by the target's first look at the doorbells.
//! Until the others know, the source forwards packets and tells initiators where the peer is now.

use std::net::IpAddr;
use std::os::fd::AsFd;

use masq_driver::{DriverError, Event, VnicId};
use rustc_hash::FxHashMap;

use super::fabric::Note;
use super::paths::other_locals;
use super::{Engine, Token};
use crate::local;
use crate::qp::{Path, Qp, QpKey};
use crate::transport::Time;
use crate::udp::LocalId;
use crate::vnic::Vnic;

/// A vNIC between two engines.
pub struct Moving {
    from: usize,
    vnic: Vnic,
    qps: Vec<(QpKey, Qp)>,
}

/// What a vNIC has left at the engine that it came from, which has no use for it any more.
pub struct Remains {
    addresses: Vec<LocalId>,
    /// Source ports, once for each use.
    ports: Vec<(LocalId, u16)>,
}

impl Engine {
    /// Hands a vNIC to the engine `to` of the same RNIC. Commands for it go there from now on.
    pub fn move_vnic(&mut self, now: Time, id: VnicId, to: usize) -> Result<(), DriverError> {
        self.world.now = now;
        self.read_notes();
        let key = self.world.vnic_key(id)?;
        let Some(from) = self.world.fabric.as_ref().filter(|f| f.others().any(|e| e == to)).map(|f| f.index)
        else {
            return Err(DriverError::Invalid(format!("there is no other engine {to}")));
        };
        local::settle(&mut self.world, key);
        self.flush();
        self.world.vnic_ids.remove(&id);
        self.world.schedule.dequeue(key);
        self.world.watch.remove(key);
        let own = |qp: &Qp| qp.io.vnic == key;
        if let Some(vnic) = self.world.vnics.get_mut(key) {
            let qps = &self.world.qps;
            // Others that wait for its rate have their turns again, and ask the engine that has it then.
            vnic.ready.retain(|k| qps.get(*k).is_some_and(|q| !own(q)));
        }
        self.world.release_waiting(key);
        let Some(mut vnic) = self.world.vnics.try_remove(key) else { return Ok(()) };
        for kick in vnic.queues.values().filter_map(|q| q.kick.as_ref()) {
            self.poller.remove(kick.as_fd());
        }
        let mut qps = Vec::with_capacity(vnic.qps.len());
        self.world.leave_peers(&mut vnic);
        for qp_key in vnic.all_qps() {
            self.world.hand_claim(qp_key, to);
            let Some(qp) = self.world.qps.remove(qp_key) else { continue };
            for wire in wires(&vnic, &qp) {
                self.world.wire.remove(&wire);
                self.world.away.insert(wire, to);
            }
            qps.push((qp_key, qp));
        }
        self.world.schedule.parked.retain(|k| self.world.qps.get(*k).is_some());
        if let Some(fabric) = &mut self.world.fabric {
            fabric.note(to, Note::Adopt(Box::new(Moving { from, vnic, qps })));
        }
        self.world.flush_fabric();
        Ok(())
    }

    /// Takes a vNIC that another engine hands over.
    pub(super) fn adopt(&mut self, moving: Moving) {
        let Moving { from, mut vnic, qps } = moving;
        let mut remains = Remains { addresses: Vec::new(), ports: Vec::new() };
        for (address, local) in &vnic.addresses {
            self.join_address(*address, *local);
            remains.addresses.push(*local);
        }
        vnic.datagrams.for_each_port(|local, port| {
            self.edge.open_port(local, port);
            remains.ports.push((local, port));
        });
        vnic.set_need_kick(self.asleep);
        vnic.scheduled = false;
        vnic.interrupted = false;
        vnic.shaping.parked_until = None;
        if vnic.memory.is_poisoned() {
            // That may have been counted before it was here: the next turn looks again.
            self.poisonings = 0;
        }
        let id = vnic.id;
        let vnic_key = self.world.vnics.insert(vnic);
        self.world.watch.add(vnic_key);
        self.world.unsettle(vnic_key);
        self.world.vnic_ids.insert(id, vnic_key);

        let mut keys: FxHashMap<QpKey, QpKey> = FxHashMap::default();
        for (old, mut qp) in qps {
            if let Path::Remote { route, .. } = &qp.path
                && let Some(port) = self.edge.open_again(route)
            {
                remains.ports.push(port);
            }
            let waits = qp.scheduled || qp.errand || qp.parked || qp.waits_for_room;
            let (scheduled, timer) = (waits, qp.timer.take());
            (qp.scheduled, qp.waits_for_other, qp.errand) = (false, false, false);
            (qp.parked, qp.waits_for_room) = (false, false);
            let wires = self.world.vnics.get(vnic_key).map_or(Vec::new(), |vnic| wires(vnic, &qp));
            let peer = match &qp.path {
                Path::Local(p) => Some((p.remote, p.remote_qpn)),
                _ => None,
            };
            let key = self.world.qps.insert(|key| {
                qp.io.vnic = vnic_key;
                // Its own name, or of a hidden one its leader's, which comes first.
                qp.io.accessor.qp = keys.get(&qp.io.accessor.qp).copied().unwrap_or(key);
                qp
            });
            keys.insert(old, key);
            self.world.take_claim(key);
            for (local, qpn) in wires {
                self.world.away.remove(&(local, qpn));
                self.world.wire_up(local, qpn, key, peer);
            }
            if let Some(peer) = peer.and_then(|peer| self.world.wire.get(&peer)).copied() {
                self.world.nudge(peer);
            }
            self.world.set_timer(key, timer);
            if scheduled {
                self.world.schedule(key);
            }
        }
        if let Some(vnic) = self.world.vnics.get_mut(vnic_key) {
            vnic.rename_qps(vnic_key, &keys);
            if let Some(deadline) = vnic.datagrams.timer() {
                self.world.schedule.unanswered.push(deadline, vnic_key);
            }
            let kicks = vnic.queues.iter().filter_map(|(index, q)| Some((*index, q.kick.as_ref()?)));
            for (index, kick) in kicks {
                if let Err(error) = self.poller.add(kick.as_fd(), Token::Kick(vnic_key, index)) {
                    let reason = format!("cannot wait for kicks of virtqueue {index}: {error}");
                    self.world.sink.event(Event::VnicFatal { vnic: id, reason });
                }
            }
            vnic.cqs.deliver(&vnic.memory, &mut vnic.comp_queues, vnic.epoch);
        }
        self.world.join_peers(vnic_key);
        if let Some(fabric) = &mut self.world.fabric {
            fabric.note(from, Note::Adopted(remains));
        }
    }

    /// Begins to use an address that another engine uses as well.
    fn join_address(&mut self, address: IpAddr, local: LocalId) {
        match self.attach_address(address) {
            Ok(attached) => debug_assert_eq!(attached, local, "the engine before has it still"),
            Err(error) => {
                tracing::error!(%address, %error, "a vNIC has changed engines and cannot send any more")
            }
        }
    }

    /// A vNIC that was here is another engine's now, with all that it uses.
    pub(super) fn clear_up(&mut self, remains: Remains) {
        // What waits to be sent leaves by these.
        self.flush();
        for (local, port) in remains.ports {
            self.edge.close_port(local, port);
        }
        for local in remains.addresses {
            self.detach_address(local);
        }
    }
}

/// What a queue pair receives: local addresses and numbers.
fn wires(vnic: &Vnic, qp: &Qp) -> Vec<(LocalId, masq_types::WireQpn)> {
    let listening = qp.datagram.iter().flat_map(|d| d.listening.iter().copied());
    let others = listening.chain(other_locals(&vnic.groups, qp));
    qp.path.local().into_iter().chain(others).map(|local| (local, qp.io.wire_qpn)).collect()
}
