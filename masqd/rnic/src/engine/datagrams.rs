//! The engine's side of datagrams: commands, turns, and where queue pairs receive.

use masq_driver::{DriverError, Peer, PeerName, VnicId};

use super::Engine;
use super::run::SEND_BYTES;
use crate::datagram::{self, Carrier, Step};
use crate::local::Ran;
use crate::qp::QpKey;

/// Datagrams of one turn.
const DATAGRAMS_PER_TURN: usize = 64;

impl Engine {
    pub(super) fn set_peer(&mut self, id: VnicId, peer: Peer) -> Result<(), DriverError> {
        let vnic_key = self.world.vnic_key(id)?;
        datagram::set_peer(&mut self.carrier(), vnic_key, peer);
        Ok(())
    }

    pub(super) fn no_peer(&mut self, id: VnicId, name: PeerName) -> Result<(), DriverError> {
        let vnic_key = self.world.vnic_key(id)?;
        datagram::no_peer(&mut self.world, vnic_key, name);
        Ok(())
    }

    /// Drops datagrams that have waited for their peers for too long. Returns whether there were any.
    pub(super) fn expire_unanswered(&mut self) -> bool {
        let now = self.world.now;
        let mut any = false;
        while let Some((deadline, vnic_key)) = self.world.schedule.unanswered.pop_due(now) {
            any |= datagram::expire(&mut self.world, deadline, vnic_key);
        }
        any
    }

    /// Gives a datagram queue pair in RTS or SQD its turn.
    pub(super) fn run_datagrams(&mut self, key: QpKey) -> Ran {
        let mut ran = Ran::default();
        if self.world.gate_closed {
            // All that it does needs leave, also what is lost in the end.
            return ran;
        }
        while ran.messages < DATAGRAMS_PER_TURN && ran.bytes < SEND_BYTES {
            let room = !self.tx_blocked && (!self.tx.is_full() || self.flush());
            match datagram::step(&mut self.carrier(), key, room) {
                Step::Idle => return ran,
                Step::Held(held) => {
                    ran.held = Some(held);
                    return ran;
                }
                Step::Full => {
                    // The sockets, or the engine's next turn, tell when there is room.
                    self.tx_blocked = true;
                    self.world.park(key);
                    return ran;
                }
                Step::Done(bytes) => {
                    ran.bytes += bytes;
                    ran.messages += 1;
                }
            }
        }
        ran.more = true;
        ran
    }

    fn carrier(&mut self) -> Carrier<'_> {
        Carrier { world: &mut self.world, edge: &mut self.edge, tx: &mut self.tx }
    }

    /// Checks that a queue pair that will receive datagrams is alone with its number.
    pub(super) fn check_listen(&self, key: QpKey) -> Result<(), DriverError> {
        let Some(qp) = self.world.qps.get(key) else { return Ok(()) };
        let wire_qpn = qp.io.wire_qpn;
        let vnic = self.world.vnics.get(qp.io.vnic);
        let addresses = vnic.into_iter().flat_map(|v| datagram::addresses_with(&v.addresses, wire_qpn));
        let other = |local| self.world.is_taken(&(local, wire_qpn), key);
        match addresses.into_iter().find(|(_, local)| other(*local)) {
            Some((address, _)) => {
                let what = format!("a connected queue pair with the wire number {wire_qpn} at {address}");
                Err(DriverError::Exists(what))
            }
            None => Ok(()),
        }
    }

    /// A datagram queue pair receives from now on.
    pub(super) fn listen(&mut self, key: QpKey) {
        let world = &mut self.world;
        let Some(qp) = world.qps.get_mut(key) else { return };
        let (Some(receiver), Some(vnic)) = (&mut qp.datagram, world.vnics.get(qp.io.vnic)) else { return };
        let qpn = qp.io.wire_qpn;
        let addresses = datagram::addresses_with(&vnic.addresses, qpn);
        receiver.listening = addresses.iter().map(|(_, local)| *local).collect();
        for local in receiver.listening.clone() {
            world.wire_up(local, qpn, key, None);
        }
    }

    /// A datagram queue pair receives no more, and what it has still to send is dropped.
    pub(super) fn silence_datagrams(&mut self, key: QpKey) {
        let world = &mut self.world;
        let Some(qp) = world.qps.get_mut(key) else { return };
        let Some(datagram) = &mut qp.datagram else { return };
        let (listening, qpn) = (std::mem::take(&mut datagram.listening), qp.io.wire_qpn);
        datagram.reset();
        if let Some(vnic) = world.vnics.get_mut(qp.io.vnic) {
            vnic.datagrams.forget_qp(key);
        }
        for local in listening {
            world.unwire(local, qpn);
        }
    }
}
