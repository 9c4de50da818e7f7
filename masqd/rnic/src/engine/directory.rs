//! Who has what among the engines of an RNIC, and the notes that say so.

use masq_types::WireQpn;

use super::fabric::Note;
use super::{Engine, Token, World};
use crate::qp::QpKey;
use crate::udp::{Left, LocalId};

impl World {
    /// Which other engine has the queue pair with this number.
    pub fn engine_of(&self, wire: &(LocalId, WireQpn)) -> Option<usize> {
        self.away.get(wire).copied()
    }

    /// Whether a queue pair other than `key` has this number.
    pub fn is_taken(&self, wire: &(LocalId, WireQpn), key: QpKey) -> bool {
        self.wire.get(wire).is_some_and(|other| *other != key) || self.away.contains_key(wire)
    }

    /// A queue pair receives what comes to `local` for `qpn`, from `peer` if it is connected to that one of this RNIC.
    pub fn wire_up(&mut self, local: LocalId, qpn: WireQpn, key: QpKey, peer: Option<(LocalId, WireQpn)>) {
        self.wire.insert((local, qpn), key);
        if let Some(fabric) = &mut self.fabric {
            let from = fabric.index;
            fabric.note_all(|| Note::Wire { from, local, qpn, peer });
        }
    }

    /// Nobody here receives that any more.
    pub fn unwire(&mut self, local: LocalId, qpn: WireQpn) {
        if self.wire.remove(&(local, qpn)).is_some()
            && let Some(fabric) = &mut self.fabric
        {
            let from = fabric.index;
            fabric.note_all(|| Note::WireGone { from, local, qpn });
        }
    }

    /// Sends what other engines are to have.
    pub fn flush_fabric(&mut self) {
        if let Some(fabric) = &mut self.fabric {
            fabric.flush();
        }
    }

    /// Somebody may have been trying to reach its local peer in vain.
    pub fn nudge(&mut self, key: QpKey) {
        if let Some(qp) = self.qps.get_mut(key) {
            qp.initiator.nudge();
        }
        self.schedule(key);
    }
}

impl Engine {
    /// Reads what other engines have to say. Returns whether there was anything.
    pub(super) fn read_notes(&mut self) -> bool {
        let mut any = false;
        while let Some(note) = self.world.fabric.as_ref().and_then(|f| f.next_note()) {
            any = true;
            match note {
                Note::Address(address, local) => self.edge.learn(address, local),
                Note::AddressGone(address, local) => self.edge.forget(address, local),
                Note::Receive(local) => self.receive_at(local),
                Note::Wire { from, local, qpn, peer } => {
                    self.world.away.insert((local, qpn), from);
                    if let Some(key) = peer.and_then(|peer| self.world.wire.get(&peer)).copied() {
                        self.world.nudge(key);
                    }
                }
                Note::WireGone { from, local, qpn } => {
                    if self.world.away.get(&(local, qpn)) == Some(&from) {
                        self.world.away.remove(&(local, qpn));
                    }
                }
                Note::Speaker(remote) => self.world.find_speaker(remote),
                Note::Silent { key, remote, age } => self.world.silence(key, &remote, age),
                Note::Path(ends, is_up) => self.world.path_judged(ends, is_up),
                Note::Adopt(moving) => self.adopt(*moving),
                Note::Adopted(remains) => self.clear_up(remains),
            }
        }
        any
    }

    /// This engine receives at an address from now on.
    pub(super) fn receive_at(&mut self, local: LocalId) {
        let Some(fd) = self.edge.receiving(local) else { return };
        if let Err(error) = self.poller.add(fd, Token::Receive(local)) {
            tracing::error!(%error, "cannot wait for packets at an address that has changed engines");
        }
        // What came before the poller looked.
        self.receive(local);
    }

    /// Ends one use of an address, and tells the others what follows.
    pub(super) fn detach_address(&mut self, local: LocalId) {
        let address = self.edge.address(local);
        if let Some(fd) = self.edge.receiving(local).filter(|_| self.edge.is_last_use(local)) {
            self.poller.remove(fd);
        }
        let (Some(left), Some(address)) = (self.edge.detach(local), address) else { return };
        let Some(fabric) = &mut self.world.fabric else { return };
        match left {
            Left::Kept => self.edge.learn(address, local),
            Left::HandedTo(heir) => {
                self.edge.learn(address, local);
                fabric.note(heir, Note::Receive(local));
            }
            Left::Gone => fabric.note_all(|| Note::AddressGone(address, local)),
        }
    }
}
