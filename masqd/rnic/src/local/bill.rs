//! Who pays for a piece of a message, and counts it.

use super::Held;
use crate::engine::World;
use crate::price::{Price, Wire};
use crate::qp::QpKey;
use crate::transport::SendOp;

/// A piece of a message that may be copied now.
#[derive(Debug)]
pub(super) struct Bill {
    price: Price,
    op: SendOp,
    initiator: QpKey,
    responder: QpKey,
    len: u32,
    done: u32,
    /// Most bytes of it that may be copied.
    pub(super) bytes: usize,
}

impl Bill {
    /// Asks for leave to copy the next at most `room` bytes of the held request. Whose memory the data come out of pays: the
    /// initiator's vNIC, or for a READ the peer's. Nothing is taken yet.
    pub(super) fn new(
        world: &mut World,
        initiator: QpKey,
        responder: QpKey,
        len: u32,
        room: usize,
    ) -> Option<Result<Self, Held>> {
        let own = world.qps.get(initiator)?;
        let op = own.io.held_send.work.op;
        let done = own.initiator.done.min(len);
        let price =
            Price::new(op, own.core.config().transport(), own.core.attributes().path_mtu, own.io.ip_overhead);
        let payer = match op {
            SendOp::Read => world.qps.get(responder)?.io.vnic,
            _ => own.io.vnic,
        };
        let now = world.now;
        let mut gate = world.gate(payer)?;
        let affordable = match gate.available(now) {
            // There is no limit.
            u64::MAX => Ok(room),
            _ if op.is_atomic() => gate.check(now, price.atomic()[0].bytes).map(|()| room),
            available => price
                .affordable(len, done, room, available)
                .or_else(|needed| gate.check(now, needed).map(|()| room)),
        };
        Some(match affordable {
            Ok(bytes) => Ok(Self { price, op, initiator, responder, len, done, bytes }),
            Err(short) => Err(Held { payer, short }),
        })
    }

    /// `bytes` have been copied; with them the message is `whole`, or it is not.
    pub(super) fn pay(&self, world: &mut World, bytes: usize, whole: bool) {
        let (own, peer) = (self.initiator, self.responder);
        if self.op.is_atomic() {
            let [request, answer] = self.price.atomic();
            account(world, own, peer, request, whole);
            account(world, peer, own, answer, false);
            return;
        }
        let piece = self.price.piece(self.len, self.done, bytes);
        if self.op != SendOp::Read {
            account(world, own, peer, piece, whole);
            return;
        }
        if self.done == 0 {
            account(world, own, peer, self.price.read_request(), false);
        }
        account(world, peer, own, piece, whole);
    }
}

/// What would be packets of `from` to `to` has been copied, up to the end of a message if it is `whole`.
fn account(world: &mut World, from: QpKey, to: QpKey, wire: Wire, whole: bool) {
    let (now, messages) = (world.now, u64::from(whole));
    if let Some(qp) = world.qps.get_mut(from) {
        qp.traffic.tx_bytes += wire.bytes;
        if let Some(vnic) = world.vnics.get_mut(qp.io.vnic) {
            vnic.traffic.tx_ip_bytes += wire.bytes;
            vnic.traffic.tx_packets += wire.packets;
            vnic.traffic.tx_messages += messages;
            vnic.shaping.resume(now);
            world.schedule.gate(&mut vnic.shaping, false).charge(now, wire.bytes);
        }
    }
    if let Some(qp) = world.qps.get_mut(to) {
        qp.traffic.rx_bytes += wire.bytes;
        if let Some(vnic) = world.vnics.get_mut(qp.io.vnic) {
            vnic.traffic.rx_ip_bytes += wire.bytes;
            vnic.traffic.rx_packets += wire.packets;
            vnic.traffic.rx_messages += messages;
        }
    }
    world.counters_of(from).sent_msgs += messages;
    world.counters_of(to).rcvd_msgs += messages;
}
