//! The way in: from received datagrams to queue pairs.

use std::net::SocketAddr;

use masq_types::WireQpn;
use masq_wire::{Bth, Ecn, Inquiry, Parsed, PathProbe, parse};

use super::World;
use super::fabric::Packets;
use super::inspect::show_received;
use crate::datagram;
use crate::group::Arrivals;
use crate::peers::{Ask, Ends, Peers};
use crate::qp::QpKey;
use crate::transport::{Receipt, Time};
use crate::udp::{CongestionMark, FlowCache, LocalId, Seen};

/// What the way in needs beside the world.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    flows: FlowCache,
    pub(super) counters: InboundCounters,
}

/// Packets that never reached a queue pair, and doubts about those that did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InboundCounters {
    pub(super) rx_icrc_errors: u64,
    pub(super) rx_icrc_explained: u64,
    pub(super) rx_malformed: u64,
    pub(super) rx_no_qp: u64,
    pub(super) rx_wrong_peer: u64,
    /// The engine that has the queue pair takes no more for the moment.
    pub(super) rx_engine_full: u64,
}

/// What is known of a received packet besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) local: LocalId,
    pub(super) source: SocketAddr,
    /// Its place in its train.
    pub(super) index: usize,
    pub(super) receipt: Receipt,
}

impl CongestionMark for Arrived {
    fn mark(&mut self) {
        if self.receipt.ecn != Ecn::NotEct {
            self.receipt.ecn = Ecn::Ce;
        }
    }

    fn receive_at(&mut self, at: Time) {
        self.receipt.at = at;
    }
}

/// Packets that have come together, one behind another: those that have not been dealt with.
#[derive(Debug)]
pub(super) struct Received<'a> {
    /// Of the first of them.
    arrived: Arrived,
    segment_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> Received<'a> {
    /// Packets of `segment_bytes` each, save that the last may be shorter; `first` is known of the first.
    pub(super) fn train(first: Arrived, segment_bytes: usize, bytes: &'a [u8]) -> Self {
        Self { arrived: first, segment_bytes: segment_bytes.max(1), bytes }
    }

    /// A packet that has come alone.
    pub(super) fn one(arrived: Arrived, packet: &'a [u8]) -> Self {
        Self::train(arrived, packet.len(), packet)
    }

    /// The next one.
    #[inline]
    fn first(&self) -> Option<&'a [u8]> {
        let packet = self.bytes.get(..self.segment_bytes).unwrap_or(self.bytes);
        (!packet.is_empty()).then_some(packet)
    }

    /// The next one, if it is for the queue pair with this number.
    #[inline]
    fn first_to(&self, qpn: WireQpn) -> Option<&'a [u8]> {
        self.first().filter(|packet| Bth::from_prefix(packet).is_some_and(|bth| bth.dest_qp() == qpn))
    }

    /// The next one has been dealt with. Returns its place in its train.
    #[inline]
    fn pass(&mut self) -> usize {
        let index = self.arrived.index;
        self.arrived.index += 1;
        self.bytes = self.bytes.get(self.segment_bytes..).unwrap_or_default();
        index
    }
}

impl Inbound {
    /// Packets for some queue pairs. Destination and peer are looked up before an ICRC is computed, which is the dearest part, and once for all
    /// in a row that go to one queue pair.
    pub(super) fn handle(&mut self, world: &mut World, local: SocketAddr, mut received: Received<'_>) {
        while let Some(packet) = received.first() {
            let Some(bth) = Bth::from_prefix(packet) else {
                self.counters.rx_malformed += 1;
                received.pass();
                continue;
            };
            let to = (received.arrived.local, bth.dest_qp());
            let Some(key) = world.wire.get(&to).copied() else {
                let arrived = received.arrived;
                received.pass();
                if to.1 == PathProbe::QPN {
                    self.handle_probe(world, local, arrived, packet);
                } else {
                    self.forward(world, to, arrived, packet);
                }
                continue;
            };
            let qp = world.qps.get(key);
            let path = qp.and_then(|q| world.path_in(q, to.0, received.arrived.source.ip()));
            if let Some(path) = path {
                self.handle_connected(world, (key, to.1), (local, path), &mut received);
                continue;
            }
            let Arrived { local: id, source, .. } = received.arrived;
            let index = received.pass();
            if qp.is_none_or(|q| q.datagram.is_none()) {
                self.counters.rx_wrong_peer += 1;
                continue;
            }
            // A datagram's peer is looked up when it is known to be right.
            self.flows.select(source, local);
            if let Some(parsed) = judge(&mut self.flows, &mut self.counters, packet, index) {
                datagram::handle_packet(world, id, source, &parsed);
            }
        }
    }

    /// Packets in a row from the peer of a connected queue pair, at least one.
    fn handle_connected(
        &mut self,
        world: &mut World,
        (key, qpn): (QpKey, WireQpn),
        (local, path): (SocketAddr, u8),
        received: &mut Received<'_>,
    ) {
        let now = world.now;
        let Self { flows, counters } = self;
        let first = received.arrived;
        flows.select(first.source, local);
        let tap = world.qps.get(key).and_then(|q| q.tap.clone());
        let (mut packets, mut bytes, mut tap_wants_more) = (0, 0, true);
        let mut by_path = None;
        let present = world.with_env(key, |core, env| {
            by_path = env.io.member.map(|_| Arrivals::default());
            while let Some(packet) = received.first_to(qpn) {
                let index = received.pass();
                let Some(parsed) = judge(flows, counters, packet, index) else { continue };
                packets += 1;
                bytes += packet.len() as u64 + env.io.ip_overhead;
                if let Some(tap) = tap.as_ref().filter(|_| tap_wants_more) {
                    tap_wants_more = show_received(&**tap, now, local, &first, flows.ident(), packet);
                }
                if let Some(by_path) = &mut by_path {
                    note(by_path, &parsed);
                }
                core.handle_packet(now, env, &parsed, first.receipt);
                if !env.may_go_on(core) {
                    break;
                }
            }
        });
        if present.is_none() {
            received.pass();
        }
        if packets == 0 {
            return;
        }
        if let Some(qp) = world.qps.get_mut(key) {
            qp.traffic.rx_bytes += bytes;
            if let Some(vnic) = world.vnics.get_mut(qp.io.vnic) {
                vnic.traffic.rx_ip_bytes += bytes;
                vnic.traffic.rx_packets += packets;
            }
        }
        if !tap_wants_more {
            world.end_tap(key);
        }
        if let Some(what) = by_path {
            world.arrived_by(key, path, bytes, what);
        }
        world.schedule(key);
    }

    /// A packet for the RNIC itself: another one asks whether a path carries packets, or whether queue pairs are connected, or answers that.
    #[cold]
    fn handle_probe(&mut self, world: &mut World, local: SocketAddr, arrived: Arrived, packet: &[u8]) {
        self.flows.select(arrived.source, local);
        match self.flows.check(packet, arrived.index) {
            Seen::Bad => return self.counters.rx_icrc_errors += 1,
            Seen::Explained => self.counters.rx_icrc_explained += 1,
            Seen::Exact => {}
        }
        let ends = Ends { local: arrived.local, remote: arrived.source.ip() };
        if let Some(inquiry) = Inquiry::parse(packet) {
            let about = if inquiry.is_answer { inquiry.here } else { inquiry.there };
            return match world.wire.contains_key(&(ends.local, about)) {
                true => world.handle_inquiry(ends, inquiry),
                false => self.forward(world, (ends.local, about), arrived, packet),
            };
        }
        let Some(probe) = PathProbe::parse(packet) else { return self.counters.rx_malformed += 1 };
        if !probe.is_answer {
            return world.answer_probe(Ask { ends, token: probe.token, bytes: packet.len() });
        }
        let engine = Peers::engine_of(&probe.token);
        if engine == world.index() {
            world.peers.answered(&probe.token, ends, world.now);
        } else {
            self.forward_to(world, Some(engine), arrived, packet);
        }
    }

    /// A packet for no queue pair of this engine.
    fn forward(&mut self, world: &mut World, to: (LocalId, WireQpn), arrived: Arrived, packet: &[u8]) {
        let engine = world.engine_of(&to);
        self.forward_to(world, engine, arrived, packet);
    }

    fn forward_to(&mut self, world: &mut World, engine: Option<usize>, arrived: Arrived, packet: &[u8]) {
        let (Some(engine), Some(fabric)) = (engine, &mut world.fabric) else {
            self.counters.rx_no_qp += 1;
            return;
        };
        let Arrived { local, source, index, receipt } = arrived;
        let packets = Packets { local, source, segment_bytes: packet.len(), first: index, receipt };
        if !fabric.forward(engine, packet, packets) {
            self.counters.rx_engine_full += 1;
        }
    }
}

/// Notes what kind of packet has come by a path.
fn note(by_path: &mut Arrivals, packet: &Parsed<'_>) {
    let kind = packet.info.kind;
    by_path.answers |= kind.is_response();
    by_path.requests |= kind.is_request();
}

/// Checks a packet's ICRC, of the flow that is selected, and its headers.
#[inline]
fn judge<'p>(
    flows: &mut FlowCache,
    counters: &mut InboundCounters,
    packet: &'p [u8],
    index: usize,
) -> Option<Parsed<'p>> {
    match flows.check(packet, index) {
        Seen::Exact => {}
        Seen::Explained => counters.rx_icrc_explained += 1,
        Seen::Bad => {
            counters.rx_icrc_errors += 1;
            return None;
        }
    }
    let parsed = parse(packet).ok();
    counters.rx_malformed += u64::from(parsed.is_none());
    parsed
}
