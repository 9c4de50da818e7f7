//! Who pays for a piece of a message, and counts it.

use super::Held;
use super::answer::Ask;
use crate::engine::World;
use crate::price::{Price, Wire};
use crate::qp::{Qp, QpKey};
use crate::transport::SendOp;

/// What a piece of a message costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bill {
    price: Price,
    op: SendOp,
    len: u32,
    done: u32,
}

impl Bill {
    /// That of the next piece of what `own` asks.
    pub(super) fn new(own: &Qp, ask: &Ask) -> Self {
        let Ask { op, len, done, .. } = *ask;
        let price =
            Price::new(op, own.core.config().transport(), own.core.attributes().path_mtu, own.io.ip_overhead);
        Self { price, op, len, done }
    }

    /// Asks for leave to copy the next at most `room` bytes, and returns how many may be copied. Whose memory the data come out of pays: the
    /// initiator's vNIC, or for a READ the peer's. Nothing is taken yet.
    pub(super) fn leave(&self, world: &mut World, payer: usize, room: usize) -> Option<Result<usize, Held>> {
        let now = world.now;
        let mut gate = world.gate(payer)?;
        let affordable = match gate.available(now) {
            // There is no limit.
            u64::MAX => Ok(room),
            _ if self.op.is_atomic() => gate.check(now, self.price.atomic()[0].bytes).map(|()| room),
            available => self
                .price
                .affordable(self.len, self.done, room, available)
                .or_else(|needed| gate.check(now, needed).map(|()| room)),
        };
        Some(affordable.map_err(|short| Held { payer, short }))
    }

    /// Takes leave to send `bytes` of the message before they are copied, by another engine: what others of the vNIC may send must not be
    /// more meanwhile. [`Bill::pay_initiator`] does not take it again if it is `charged`.
    pub(super) fn charge(&self, world: &mut World, payer: usize, bytes: usize) {
        let now = world.now;
        let wire = if self.op.is_atomic() { self.price.atomic()[0].bytes } else { self.piece(bytes).bytes };
        if let Some(mut gate) = world.gate(payer) {
            gate.charge(now, wire);
        }
    }

    /// `bytes` have been copied; with them the message is `whole`, or it is not. Both ends' shares of it.
    pub(super) fn pay(&self, world: &mut World, own: QpKey, peer: QpKey, bytes: usize, whole: bool) {
        let piece = self.piece(bytes);
        self.pay_initiators_share(world, own, piece, whole, false);
        self.pay_responders_share(world, peer, piece, whole);
    }

    /// The initiator's share of it.
    pub(super) fn pay_initiator(
        &self,
        world: &mut World,
        own: QpKey,
        bytes: usize,
        whole: bool,
        charged: bool,
    ) {
        self.pay_initiators_share(world, own, self.piece(bytes), whole, charged);
    }

    /// The peer's share of it.
    pub(super) fn pay_responder(&self, world: &mut World, peer: QpKey, bytes: usize, whole: bool) {
        self.pay_responders_share(world, peer, self.piece(bytes), whole);
    }

    fn piece(&self, bytes: usize) -> Wire {
        self.price.piece(self.len, self.done, bytes)
    }

    fn pay_initiators_share(&self, world: &mut World, own: QpKey, piece: Wire, whole: bool, charged: bool) {
        if self.op.is_atomic() {
            let [request, answer] = self.price.atomic();
            sent(world, own, request, whole, charged);
            received(world, own, answer, false);
            return;
        }
        if self.op != SendOp::Read {
            return sent(world, own, piece, whole, charged);
        }
        if self.done == 0 {
            sent(world, own, self.price.read_request(), false, false);
        }
        received(world, own, piece, whole);
    }

    fn pay_responders_share(&self, world: &mut World, peer: QpKey, piece: Wire, whole: bool) {
        if self.op.is_atomic() {
            let [request, answer] = self.price.atomic();
            received(world, peer, request, whole);
            sent(world, peer, answer, false, false);
            return;
        }
        if self.op != SendOp::Read {
            return received(world, peer, piece, whole);
        }
        if self.done == 0 {
            received(world, peer, self.price.read_request(), false);
        }
        sent(world, peer, piece, whole, false);
    }
}

/// What would be packets of a queue pair has been copied, up to the end of a message if it is `whole`. Leave for it is taken, unless it has been.
fn sent(world: &mut World, from: QpKey, wire: Wire, whole: bool, charged: bool) {
    let (now, messages) = (world.now, u64::from(whole));
    let Some(qp) = world.qps.get_mut(from) else { return };
    qp.traffic.tx_bytes += wire.bytes;
    qp.core.counters_mut().sent_msgs += messages;
    if let Some(vnic) = world.vnics.get_mut(qp.io.vnic) {
        vnic.traffic.tx_ip_bytes += wire.bytes;
        vnic.traffic.tx_packets += wire.packets;
        vnic.traffic.tx_messages += messages;
        vnic.shaping.resume(now);
        if !charged {
            world.schedule.gate(&mut vnic.shaping, false).charge(now, wire.bytes);
        }
    }
}

/// What would be packets to a queue pair has been copied, likewise.
fn received(world: &mut World, to: QpKey, wire: Wire, whole: bool) {
    let messages = u64::from(whole);
    let Some(qp) = world.qps.get_mut(to) else { return };
    qp.traffic.rx_bytes += wire.bytes;
    qp.core.counters_mut().rcvd_msgs += messages;
    if let Some(vnic) = world.vnics.get_mut(qp.io.vnic) {
        vnic.traffic.rx_ip_bytes += wire.bytes;
        vnic.traffic.rx_packets += wire.packets;
        vnic.traffic.rx_messages += messages;
    }
}
