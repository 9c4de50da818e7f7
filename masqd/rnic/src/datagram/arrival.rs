//! The way in: a datagram that has come to a queue pair, its peer, and a receive.

use std::net::{IpAddr, SocketAddr};

use masq_driver::PeerName;
use masq_types::{Gid, Vni, WireQpn};
use masq_wire::{ImmDt, Parsed, Transport};

use super::gids::{meant, meant_by_stranger};
use super::grh::{GRH_BYTES, Grh};
use super::{Fate, Loss, MAX_PAYLOAD, Waiting, ip_bytes, judge_unknown, park, peers, receives};
use crate::engine::{Origin, World};
use crate::keys::{Need, SgeSpans};
use crate::local::{Side, copy};
use crate::qp::QpKey;
use crate::transport::{Completion, Env, Failure, MemoryFault, total_bytes};
use crate::udp::LocalId;

/// Bytes of a management datagram (IBTA Vol 1 §13.4.2).
const MAD_BYTES: usize = 256;

/// A datagram that has come, as packets tell it.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// The local address that it has come to.
    pub at: LocalId,
    /// The underlay address that it has come from.
    pub source: IpAddr,
    /// The UDP source port.
    pub port: u16,
    /// The check of the addresses that the sender means.
    pub check: u8,
    /// The receiver.
    pub dest_qpn: WireQpn,
    /// The sender.
    pub src_qpn: WireQpn,
    /// Q_Key.
    pub qkey: u32,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// The receiver's completion is solicited.
    pub solicited: bool,
    /// Bytes of payload.
    pub len: usize,
}

/// Where a payload is.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In the memory that the send which this queue pair holds names, or in that send itself.
    Held(QpKey),
    /// Here.
    Bytes(&'a [u8]),
}

impl Payload<'_> {
    /// Appends its `len` bytes to `out`; on failure `out` is as it was.
    pub(super) fn append_to(
        self,
        world: &mut World,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), MemoryFault> {
        match self {
            Payload::Bytes(bytes) => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            Payload::Held(key) => {
                let gathered = world.with_env(key, |_, env| {
                    let work = std::mem::take(&mut env.io.held_send.work);
                    let gathered = if work.inline {
                        out.extend_from_slice(&work.inline_data);
                        Ok(())
                    } else {
                        env.gather(&work.sges, 0, len, out)
                    };
                    env.io.held_send.work = work;
                    gathered
                });
                gathered.unwrap_or(Err(MemoryFault::Unavailable))
            }
        }
    }
}

/// A packet with a right ICRC that has come to the local address `at`.
pub fn handle_packet(world: &mut World, at: LocalId, source: SocketAddr, packet: &Parsed<'_>) {
    let bth = &packet.repr.bth;
    let ext = &packet.repr.ext;
    let Some(deth) = ext.deth().filter(|_| packet.info.transport == Transport::Ud) else {
        world.losses.count(Loss::RxMalformed);
        return;
    };
    let incoming = Incoming {
        at,
        source: source.ip(),
        port: source.port(),
        check: deth.check,
        dest_qpn: bth.dest_qp,
        src_qpn: deth.src_qp,
        qkey: deth.qkey,
        imm: ext.imm(),
        solicited: bth.solicited,
        len: packet.payload.len(),
    };
    // Bytes that are here are never out of reach.
    let _ = arrive(world, &incoming, Payload::Bytes(packet.payload));
}

/// A datagram of a queue pair of this RNIC, which another engine has, and of this network.
pub fn arrive_from(world: &mut World, incoming: &Incoming, vni: Vni, payload: &[u8]) {
    if is_foreign(world, incoming, vni) {
        world.losses.count(Loss::RxUnknownPeer);
        return;
    }
    // Bytes that are here are never out of reach.
    let _ = arrive(world, incoming, Payload::Bytes(payload));
}

/// Whether the receiver is in another network than the sender. The peer tables say the same; nothing crosses from one network to another, whatever
/// they say.
pub(super) fn is_foreign(world: &World, incoming: &Incoming, vni: Vni) -> bool {
    let receiver = world.wire.get(&(incoming.at, incoming.dest_qpn)).and_then(|key| world.qps.get(*key));
    receiver.is_some_and(|qp| world.vnics.get(qp.io.vnic).is_none_or(|v| v.vni != vni))
}

/// A datagram has come: it is received, waits, or is lost. Fails only when its payload is out of reach, which is its sender's fault.
pub(super) fn arrive(
    world: &mut World,
    incoming: &Incoming,
    payload: Payload<'_>,
) -> Result<(), MemoryFault> {
    match admit(world, incoming) {
        Ok(admitted) => receive(world, incoming, &admitted, payload),
        Err(NotAdmitted::Unknown(vnic)) => wait(world, vnic, incoming, payload),
        Err(NotAdmitted::Lost(loss)) => {
            world.losses.count(loss);
            Ok(())
        }
    }
}

/// A datagram that may be received.
struct Admitted {
    receiver: QpKey,
    /// The sender, as the receiver's guest knows it.
    src_qpn: u32,
    source: Gid,
    destination: Gid,
}

/// Why a datagram may not be received.
enum NotAdmitted {
    /// Who sends from there is not known to this vNIC.
    Unknown(usize),
    /// It is lost.
    Lost(Loss),
}

/// Judges a datagram by what the receiver's vNIC knows of its sender.
fn admit(world: &mut World, incoming: &Incoming) -> Result<Admitted, NotAdmitted> {
    const NO_QP: NotAdmitted = NotAdmitted::Lost(Loss::RxNoQp);
    let receiver = *world.wire.get(&(incoming.at, incoming.dest_qpn)).ok_or(NO_QP)?;
    let qp = world.qps.get(receiver).filter(|q| receives(q.core.state())).ok_or(NO_QP)?;
    let datagram = qp.datagram.as_ref().ok_or(NO_QP)?;
    if incoming.len > MAX_PAYLOAD as usize || (datagram.is_gsi && incoming.len != MAD_BYTES) {
        return Err(NotAdmitted::Lost(Loss::RxMalformed));
    }
    let vnic = world.vnics.get_mut(qp.io.vnic).ok_or(NO_QP)?;
    let (source, src_qpn) = (incoming.source, incoming.src_qpn);
    let peer = vnic.datagrams.peers.with_source(source, src_qpn).ok_or(NotAdmitted::Unknown(qp.io.vnic))?;
    let own = vnic.datagrams.gids.published();
    let here = vnic.addresses.iter().find(|(_, id)| *id == incoming.at).map(|(address, _)| *address);
    let addresses = match peer.is_stranger {
        true => meant_by_stranger(source, here, &peer.gids, own),
        false => meant(incoming.port, incoming.check, source, &peer.gids, own),
    };
    let (source, destination) = addresses.ok_or(NotAdmitted::Lost(Loss::RxNoGid))?;
    let verdict = peer.verdict_between(destination, source);
    if !if datagram.is_gsi { verdict.cm } else { verdict.receive } {
        return Err(NotAdmitted::Lost(Loss::RxDenied));
    }
    if incoming.qkey != datagram.qkey {
        return Err(NotAdmitted::Lost(Loss::RxQkeyViolation));
    }
    Ok(Admitted { receiver, src_qpn: peers::guest_qpn(peer, src_qpn), source, destination })
}

/// A copy of a datagram from an unknown peer waits, if there is room.
fn wait(
    world: &mut World,
    vnic: usize,
    incoming: &Incoming,
    payload: Payload<'_>,
) -> Result<(), MemoryFault> {
    let name = PeerName::Source(incoming.source, incoming.src_qpn);
    match judge_unknown(world, vnic, &name) {
        Fate::Wait => {
            let mut bytes = Vec::with_capacity(incoming.len);
            payload.append_to(world, incoming.len, &mut bytes)?;
            park(world, vnic, name, Waiting::In(*incoming, bytes));
        }
        Fate::NoRoom | Fate::Lost => world.losses.count(Loss::RxUnknownPeer),
    }
    Ok(())
}

/// Puts a datagram into the receiver's next receive.
fn receive(
    world: &mut World,
    incoming: &Incoming,
    admitted: &Admitted,
    payload: Payload<'_>,
) -> Result<(), MemoryFault> {
    let key = admitted.receiver;
    let Some(room) = hold_receive(world, key) else {
        world.losses.count(Loss::RxNoReceive);
        return Ok(());
    };
    let udp_payload_bytes = incoming.udp_payload_bytes();
    let Admitted { source, destination, .. } = *admitted;
    let grh = Grh { source, destination, udp_payload_bytes };
    let total = GRH_BYTES + incoming.len;
    let placed = match room {
        Err(failure) => Err(failure),
        // The receive takes the next one.
        Ok(room) if (total as u64) > room => {
            world.losses.count(Loss::RxTooLong);
            return Ok(());
        }
        Ok(_) => match place(world, key, &grh, incoming.len, payload) {
            Ok(()) => Ok(()),
            Err(Side::Source(fault)) => return Err(fault),
            Err(Side::Target(fault)) => Err(Failure::local_protection(fault)),
        },
    };
    match placed {
        Ok(()) => {
            account(world, key, ip_bytes(udp_payload_bytes, incoming.source));
            let origin = Origin { src_qpn: admitted.src_qpn, is_ipv4: grh.is_ipv4() };
            let (imm, solicited) = (incoming.imm, incoming.solicited);
            let done = |c| Completion { byte_len: total as u32, imm, solicited, ..c };
            complete(world, key, Some(&origin), done);
        }
        Err(Failure { status, cause }) => {
            world.counters_of(key).resp_cqe_error += 1;
            complete(world, key, None, |c| Completion { status, cause, ..c });
            let now = world.now;
            world.with_env(key, |core, env| core.fail(now, env, None, "a receive failed"));
            world.schedule(key);
        }
    }
    Ok(())
}

impl Incoming {
    /// Bytes from BTH to ICRC.
    fn udp_payload_bytes(&self) -> usize {
        const HEADERS: usize = masq_wire::Bth::LEN + masq_wire::Deth::LEN + masq_wire::ICRC_BYTES;
        const IMM: usize = 4;
        let imm = if self.imm.is_some() { IMM } else { 0 };
        HEADERS + imm + self.len + masq_wire::PadCount::for_payload(self.len).get()
    }
}

/// Makes sure that the receiver holds a receive, and returns how many bytes it takes, or what is wrong with it; `None` when there is none.
fn hold_receive(world: &mut World, key: QpKey) -> Option<Result<u64, Failure>> {
    world
        .with_env(key, |_, env| env.hold_recv().map(|held| held.map(|work| total_bytes(&work.sges))))
        .flatten()
}

/// Writes GRH and payload to the memory of the held receive.
fn place(world: &mut World, key: QpKey, grh: &Grh, len: usize, payload: Payload<'_>) -> Result<(), Side> {
    let gone = Side::Target(MemoryFault::Unavailable);
    scatter(world, key, 0, &grh.to_bytes())?;
    if len == 0 {
        return Ok(());
    }
    let sender = match payload {
        Payload::Bytes(bytes) => return scatter(world, key, GRH_BYTES as u64, bytes),
        Payload::Held(sender) => sender,
    };
    let (Some(own), Some(peer)) = (world.qps.get(sender), world.qps.get(key)) else { return Err(gone) };
    let work = &own.io.held_send.work;
    if work.inline {
        let bytes = work.inline_data.clone();
        return scatter(world, key, GRH_BYTES as u64, &bytes);
    }
    let (Some(own_vnic), Some(peer_vnic)) = (world.vnics.get(own.io.vnic), world.vnics.get(peer.io.vnic))
    else {
        return Err(gone);
    };
    let (keys, memory, who) = (&own_vnic.keys, &own_vnic.memory, own.io.accessor);
    let from = SgeSpans::new(keys, memory, who, Need::LocalRead, &work.sges, 0, len as u64);
    let (keys, memory, who) = (&peer_vnic.keys, &peer_vnic.memory, peer.io.accessor);
    let (sges, offset) = (&peer.io.held_recv.work.sges, GRH_BYTES as u64);
    let to = SgeSpans::new(keys, memory, who, Need::LocalWrite, sges, offset, len as u64);
    copy(from, to, len, true)
}

/// Writes bytes to the memory of the held receive.
fn scatter(world: &mut World, key: QpKey, offset: u64, bytes: &[u8]) -> Result<(), Side> {
    let scattered = world.with_env(key, |_, env| {
        let work = std::mem::take(&mut env.io.held_recv.work);
        let scattered = env.scatter(&work.sges, offset, bytes);
        env.io.held_recv.work = work;
        scattered
    });
    scattered.unwrap_or(Err(MemoryFault::Unavailable)).map_err(Side::Target)
}

/// Completes the held receive.
fn complete(
    world: &mut World,
    key: QpKey,
    origin: Option<&Origin>,
    outcome: impl FnOnce(Completion) -> Completion,
) {
    world.with_env(key, |_, env| env.finish_recv(origin, outcome));
}

/// A datagram of `bytes` has been received.
fn account(world: &mut World, key: QpKey, bytes: u64) {
    let counters = world.counters_of(key);
    counters.rcvd_pkts += 1;
    counters.rcvd_msgs += 1;
    let Some(qp) = world.qps.get_mut(key) else { return };
    qp.traffic.rx_bytes += bytes;
    if let Some(vnic) = world.vnics.get_mut(qp.io.vnic) {
        vnic.traffic.rx_ip_bytes += bytes;
        vnic.traffic.rx_packets += 1;
        vnic.traffic.rx_messages += 1;
    }
}
