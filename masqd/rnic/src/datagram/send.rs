//! The way out: a send request, its peer, and a packet or a copy.

use std::net::IpAddr;

use masq_driver::{PeerName, QpState};
use masq_types::{Gid, Vni, WireQpn};
use masq_wire::{DethRepr, Extension, ICRC_BYTES, ImmDt, Opcode, PacketRepr};
use rustc_hash::FxHashMap;
use vrdma_abi::ring::QKEY_OF_QP;

use super::arrival::{self, Incoming, Payload};
use super::gids::{PORT_TO_STRANGERS, Places, UNCHECKED, check_of, is_multicast};
use super::ports::Port;
use super::{
    Carrier, Fate, Loss, Waiting, addresses_with, ip_bytes, judge_unknown, park, peers, stall, wake_stalled,
};
use crate::engine::World;
use crate::local::{Held, finish_send, tell_drained};
use crate::qp::QpKey;
use crate::transport::{Cause, Env, Failure, MemoryFault, SendWork, Status, judge_send};
use crate::udp::LocalId;

/// What became of a queue pair's next send.
pub enum Step {
    /// There is none, or it waits.
    Idle,
    /// It must wait for leave to send.
    Held(Held),
    /// It must wait until the sockets take more.
    Full,
    /// It is done: so many bytes have left, none when it was lost. What it took besides counts as bytes.
    Done(usize),
}

/// A datagram to send, as its queue pair wants it.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// The sender.
    pub from: QpKey,
    vnic: usize,
    is_gsi: bool,
    source: Gid,
    destination: Gid,
    /// As the guest knows it.
    dest_qpn: u32,
    qkey: u32,
    src_qpn: WireQpn,
    imm: Option<ImmDt>,
    solicited: bool,
    /// As the guest asks for it.
    traffic_class: u8,
    /// Bytes of payload.
    len: usize,
}

/// Hop limit on the underlay, whatever the guest's is: routers there are not the tenant's.
const UNDERLAY_HOP_LIMIT: u8 = 64;

/// How it gets there.
#[derive(Clone, Copy, Debug)]
struct Way {
    local: LocalId,
    local_address: IpAddr,
    remote: IpAddr,
    /// The peer's address when it is on this RNIC.
    there: Option<LocalId>,
    dest_qpn: WireQpn,
    /// UDP source port.
    port: u16,
    /// Check of the addresses.
    check: u8,
}

/// How far a datagram has come.
enum Carried {
    /// The sockets must take what waits first.
    Full,
    /// It has left. What that took besides counts as so many bytes in its vNIC's share.
    Done { cost_bytes: usize },
}

/// What it counts to open a source port: a new socket takes as long as a copy of about so many bytes.
const OPENING_COST_BYTES: usize = 128 << 10;

/// Why there is no way.
enum NoWay {
    /// Who has the destination address is not known.
    Unknown,
    /// It is lost.
    Lost(Loss),
}

/// Does the next send of a queue pair in RTS or SQD. With `room` the sockets take more.
pub fn step(carrier: &mut Carrier<'_>, key: QpKey, room: bool) -> Step {
    if !take(carrier.world, key) {
        return Step::Idle;
    }
    let outgoing = match judge(carrier.world, key) {
        Ok(outgoing) => outgoing,
        Err(failure) => return fail(carrier.world, key, failure),
    };
    let way = match find_way(carrier, &outgoing) {
        Ok(way) => way,
        Err(NoWay::Unknown) => return wait(carrier.world, key, &outgoing),
        Err(NoWay::Lost(loss)) => return lose(carrier.world, key, loss),
    };
    if way.there.is_none() && !room {
        return Step::Full;
    }
    let now = carrier.world.now;
    let bytes = outgoing.ip_bytes(&way);
    if let Some(mut gate) = carrier.world.gate(outgoing.vnic)
        && let Err(short) = gate.check(now, bytes)
    {
        return Step::Held(Held { payer: outgoing.vnic, short });
    }
    match carry(carrier, &outgoing, &way, Payload::Held(key)) {
        Ok(Carried::Done { cost_bytes }) => {
            succeed(carrier.world, key);
            Step::Done(bytes as usize + cost_bytes)
        }
        Ok(Carried::Full) => Step::Full,
        Err(fault) => fail(carrier.world, key, Failure::local_protection(fault)),
    }
}

/// Sends a datagram whose peer has become known. It needs no leave: there are few, and they count.
pub(super) fn send_parked(carrier: &mut Carrier<'_>, outgoing: &Outgoing, payload: &[u8]) {
    let loss = match find_way(carrier, outgoing) {
        Ok(way) => match carry(carrier, outgoing, &way, Payload::Bytes(payload)) {
            Ok(Carried::Done { .. }) => return,
            Ok(Carried::Full) | Err(_) => Loss::TxUnreachable,
        },
        Err(NoWay::Unknown) => Loss::TxUnknownPeer,
        Err(NoWay::Lost(loss)) => loss,
    };
    carrier.world.losses.count(loss);
}

/// Makes sure that a request is held.
fn take(world: &mut World, key: QpKey) -> bool {
    let taken = world.with_env(key, |core, env| {
        if env.io.held_send.present || core.state() != QpState::Rts {
            return env.io.held_send.present;
        }
        let mut work = std::mem::take(&mut env.io.held_send.work);
        let present = env.next_send(&mut work);
        env.io.held_send.work = work;
        env.io.held_send.present = present;
        present
    });
    taken.unwrap_or(false)
}

/// Judges the held request as far as its own vNIC can.
fn judge(world: &mut World, key: QpKey) -> Result<Outgoing, Failure> {
    const GONE: Failure = Failure::new(Status::LocQpOpErr, Cause::MalformedWork);
    let datagram = world.qps.get(key).and_then(|q| q.datagram.as_ref()).ok_or(GONE)?;
    let (is_gsi, qkey, max_payload) = (datagram.is_gsi, datagram.qkey, datagram.max_payload);
    let judged = world.with_env(key, |core, env| {
        let work = std::mem::take(&mut env.io.held_send.work);
        let judged = judge_send(env, &work, core.attributes(), core.config());
        env.io.held_send.work = work;
        judged
    });
    let len = judged.ok_or(GONE)??;
    if len > max_payload {
        return Err(Failure::new(Status::LocLenErr, Cause::MessageTooLong));
    }
    let io = &world.qps.get(key).ok_or(GONE)?.io;
    let SendWork { op, datagram: segment, imm, solicited, .. } = &io.held_send.work;
    let destination = Gid(segment.dgid);
    let source = world.vnics.get(io.vnic).and_then(|v| v.datagrams.gids.entry(segment.sgid_index));
    let source = source.filter(|source| {
        let like = source.ip().is_ipv4() == destination.ip().is_ipv4();
        like && !destination.is_zero() && !is_multicast(destination)
    });
    Ok(Outgoing {
        from: key,
        vnic: io.vnic,
        is_gsi,
        source: source.ok_or(Failure::new(Status::LocQpOpErr, Cause::DatagramAddress))?,
        destination,
        dest_qpn: segment.dest_qpn,
        qkey: if segment.qkey & QKEY_OF_QP != 0 { qkey } else { segment.qkey },
        src_qpn: io.wire_qpn,
        imm: op.has_imm().then_some(*imm),
        solicited: *solicited,
        traffic_class: segment.traffic_class,
        len: len as usize,
    })
}

impl Outgoing {
    /// The vNIC and its queue pairs have other keys.
    pub fn rename(&mut self, vnic_key: usize, keys: &FxHashMap<QpKey, QpKey>) {
        self.vnic = vnic_key;
        self.from = keys.get(&self.from).copied().unwrap_or(self.from);
    }

    /// Its headers, PSN aside.
    fn headers(&self, way: &Way) -> PacketRepr {
        let deth = DethRepr { qkey: self.qkey, src_qp: self.src_qpn, check: way.check };
        let (opcode, ext) = match self.imm {
            None => (Opcode::UD_SEND_ONLY, Extension::Deth(deth)),
            Some(imm) => (Opcode::UD_SEND_ONLY_IMM, Extension::DethImm(deth, imm)),
        };
        let mut repr = PacketRepr::new(opcode, way.dest_qpn, masq_types::Psn::default(), ext);
        repr.bth.solicited = self.solicited;
        repr.set_payload_len(self.len);
        repr
    }

    /// Bytes of its packet.
    fn ip_bytes(&self, way: &Way) -> u64 {
        ip_bytes(self.headers(way).udp_payload_len(self.len), way.local_address)
    }
}

/// Looks up where a datagram goes, and whether it may.
fn find_way(carrier: &mut Carrier<'_>, outgoing: &Outgoing) -> Result<Way, NoWay> {
    let vnic = carrier.world.vnics.get_mut(outgoing.vnic).ok_or(NoWay::Unknown)?;
    let datagrams = &mut vnic.datagrams;
    let peer = datagrams.peers.with_gid(outgoing.destination).ok_or(NoWay::Unknown)?;
    let verdict = peer.verdict_between(outgoing.source, outgoing.destination);
    if !if outgoing.is_gsi { verdict.cm } else { verdict.send } {
        return Err(NoWay::Lost(Loss::TxDenied));
    }
    let dest_qpn = peers::wire_qpn(peer, outgoing.dest_qpn).ok_or(NoWay::Lost(Loss::TxForeignQpn))?;
    let published = datagrams.gids.published();
    let places = || Places::find(outgoing.source, published, outgoing.destination, &peer.gids);
    let (port, check) = match peer.is_stranger {
        true => (PORT_TO_STRANGERS, UNCHECKED),
        false => {
            let places = places().ok_or(NoWay::Lost(Loss::TxUnpublishedGid))?;
            (places.port(), check_of(outgoing.source, outgoing.destination))
        }
    };
    let theirs = addresses_with(&peer.addresses, dest_qpn);
    let like = |own: IpAddr| theirs.iter().copied().find(|peer| peer.is_ipv4() == own.is_ipv4());
    let ours = addresses_with(&vnic.addresses, outgoing.src_qpn);
    let ours = if peer.is_stranger { ours.get(..1).unwrap_or_default() } else { ours };
    let mut pairs = ours.iter().filter_map(|(own, local)| Some((*own, *local, like(*own)?)));
    let (local_address, local, remote) = pairs.next().ok_or(NoWay::Lost(Loss::TxUnreachable))?;
    let there = carrier.edge.find(remote);
    Ok(Way { local, local_address, remote, there, dest_qpn, port, check })
}

/// Carries a datagram to its peer. Fails when its payload is out of reach.
fn carry(
    carrier: &mut Carrier<'_>,
    outgoing: &Outgoing,
    way: &Way,
    payload: Payload<'_>,
) -> Result<Carried, MemoryFault> {
    let carried = match way.there {
        Some(there) => {
            carry_local(carrier.world, outgoing, way, there, payload)?;
            Carried::Done { cost_bytes: 0 }
        }
        None => transmit(carrier, outgoing, way, payload)?,
    };
    if matches!(carried, Carried::Done { .. }) {
        account(carrier.world, outgoing, outgoing.ip_bytes(way));
    }
    Ok(carried)
}

/// To a queue pair of this RNIC.
fn carry_local(
    world: &mut World,
    outgoing: &Outgoing,
    way: &Way,
    there: LocalId,
    payload: Payload<'_>,
) -> Result<(), MemoryFault> {
    let incoming = Incoming {
        at: there,
        source: way.local_address,
        port: way.port,
        check: way.check,
        dest_qpn: way.dest_qpn,
        src_qpn: outgoing.src_qpn,
        qkey: outgoing.qkey,
        imm: outgoing.imm,
        solicited: outgoing.solicited,
        len: outgoing.len,
    };
    let Some(vni) = world.vnics.get(outgoing.vnic).map(|v| v.vni) else { return Ok(()) };
    if let Some(engine) = world.engine_of(&(there, way.dest_qpn)) {
        return carry_away(world, engine, &incoming, vni, payload);
    }
    if arrival::is_foreign(world, &incoming, vni) {
        world.losses.count(Loss::RxUnknownPeer);
        return Ok(());
    }
    arrival::arrive(world, &incoming, payload)
}

/// To a queue pair that another engine has.
fn carry_away(
    world: &mut World,
    engine: usize,
    incoming: &Incoming,
    vni: Vni,
    payload: Payload<'_>,
) -> Result<(), MemoryFault> {
    let Some(mut bytes) = world.fabric.as_mut().and_then(|f| f.open_datagram(engine)) else {
        world.losses.count(Loss::RxEngineFull);
        return Ok(());
    };
    let gathered = payload.append_to(world, incoming.len, &mut bytes);
    if let Some(fabric) = &mut world.fabric {
        match gathered {
            Ok(()) => fabric.send_datagram(engine, bytes, *incoming, vni),
            Err(_) => fabric.discard_datagram(engine, bytes),
        }
    }
    gathered
}

/// To another RNIC.
fn transmit(
    carrier: &mut Carrier<'_>,
    outgoing: &Outgoing,
    way: &Way,
    payload: Payload<'_>,
) -> Result<Carried, MemoryFault> {
    let Carrier { world, edge, tx } = carrier;
    let Some(vnic) = world.vnics.get_mut(outgoing.vnic) else {
        return Ok(Carried::Done { cost_bytes: 0 });
    };
    let dscp = vnic.shaping.dscp;
    let Some(Port { number, is_new }) = vnic.datagrams.ports.open(edge, tx, way.local, way.port) else {
        return Ok(Carried::Full);
    };
    let done = Carried::Done { cost_bytes: if is_new { OPENING_COST_BYTES } else { 0 } };
    let class = vnic.shaping.datagram_class(outgoing.traffic_class);
    let Some(route) = edge.route(way.local, way.remote, number, class, UNDERLAY_HOP_LIMIT) else {
        return Ok(done);
    };

    let mut repr = outgoing.headers(way);
    let buffer = tx.buffer();
    let start = buffer.len();
    buffer.resize(start + repr.header_len(), 0);
    let headers_end = buffer.len();
    let gathered = payload.append_to(world, outgoing.len, buffer);
    if gathered.is_err() {
        buffer.truncate(start);
        return gathered.map(|()| done);
    }
    if let Some(datagram) = world.qps.get_mut(outgoing.from).and_then(|q| q.datagram.as_mut()) {
        repr.bth.psn = datagram.take_psn();
    }
    let emitted = buffer.get_mut(start..headers_end).map(|headers| repr.emit_headers(headers));
    debug_assert!(matches!(emitted, Some(Ok(_))), "headers that belong to no opcode: {repr:?}");
    buffer.extend_from_slice(repr.bth.pad.bytes());
    buffer.extend_from_slice(&[0; ICRC_BYTES]);
    let bytes = buffer.len() - start;
    tx.add_one(edge, &route, dscp, bytes);
    Ok(done)
}

/// The peer of the held request's destination is not known: a copy of it waits, or itself if there is no room.
fn wait(world: &mut World, key: QpKey, outgoing: &Outgoing) -> Step {
    let name = PeerName::Gid(outgoing.destination);
    match judge_unknown(world, outgoing.vnic, &name) {
        Fate::Lost => lose(world, key, Loss::TxUnknownPeer),
        Fate::NoRoom => {
            stall(world, outgoing.vnic, key);
            Step::Idle
        }
        Fate::Wait => {
            let mut payload = Vec::with_capacity(outgoing.len);
            if let Err(fault) = Payload::Held(key).append_to(world, outgoing.len, &mut payload) {
                return fail(world, key, Failure::local_protection(fault));
            }
            park(world, outgoing.vnic, name, Waiting::Out(*outgoing, payload));
            succeed(world, key);
            Step::Done(0)
        }
    }
}

/// A datagram of `bytes` has left.
fn account(world: &mut World, outgoing: &Outgoing, bytes: u64) {
    let now = world.now;
    let counters = world.counters_of(outgoing.from);
    counters.sent_pkts += 1;
    counters.sent_msgs += 1;
    if let Some(qp) = world.qps.get_mut(outgoing.from) {
        qp.traffic.tx_bytes += bytes;
    }
    if let Some(vnic) = world.vnics.get_mut(outgoing.vnic) {
        vnic.traffic.tx_ip_bytes += bytes;
        vnic.traffic.tx_packets += 1;
        vnic.traffic.tx_messages += 1;
        vnic.shaping.resume(now);
        world.schedule.gate(&mut vnic.shaping, false).charge(now, bytes);
    }
}

/// The held request is lost on its way, of which its sender learns nothing.
fn lose(world: &mut World, key: QpKey, loss: Loss) -> Step {
    world.losses.count(loss);
    succeed(world, key);
    Step::Done(0)
}

/// The held request is done.
fn succeed(world: &mut World, key: QpKey) {
    finish_send(world, key, Status::Success, Cause::None, 0);
    tell_drained(world, key);
    if let Some(vnic_key) = world.qps.get(key).map(|q| q.io.vnic) {
        wake_stalled(world, vnic_key);
    }
}

/// The held request fails, and with it the send queue.
fn fail(world: &mut World, key: QpKey, failure: Failure) -> Step {
    world.counters_of(key).req_cqe_error += 1;
    finish_send(world, key, failure.status, failure.cause, 0);
    world.with_env(key, |core, env| core.fail_sends(env));
    world.schedule(key);
    Step::Idle
}
