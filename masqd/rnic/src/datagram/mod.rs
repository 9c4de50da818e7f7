//! Datagrams: what UD and GSI queue pairs send and receive.
//!
//! ```text
//!  send ring ─► judge ─► peer of the destination ─► verdict, QPN ─► rate ─┬─► packet ─────────────► UDP
//!                          │ unknown: ask, wait                           └─► same RNIC ─┐
//!                          ▼                                                             ▼
//!                       Parking ◄── unknown: ask, wait ── peer of the source ◄── arrival at a queue pair ◄── UDP
//!                                                            │
//!                                                            └─► verdict, Q_Key ─► receive: GRH, payload ─► completion
//! ```
//!
//! A datagram is one packet, and its loss is no error: the sender's completion says that it has left. State, attributes and flushing of
//! these queue pairs are those of [`QpCore`](crate::transport::QpCore). Both ends judge each datagram by what their own vNIC knows of
//! the other's ([`PeerTable`](peers::PeerTable)), also when both are on this RNIC, or the same. So a packet whose underlay source is no
//! known peer's never reaches a guest.
//!
//! A queue pair receives at all of its vNIC's underlay addresses; it sends from the first that is of the same family as one of the
//! peer's, to the first such one. The well-known number of GSIs exists at a vNIC's first address only ([`addresses_with`]).
//!
//! Where the standard leaves a choice, or another place decides:
//!
//! - A send that cannot be carried out (its memory, its length, its address) completes with an error and puts the send queue in error
//!   (SQE, IBTA Vol 1 §10.3.1.5). One that the rules or the peer table stop is lost like any datagram, and counted ([`Loss`]).
//! - Multicast is not supported: such a destination is a local QP operation error.
//! - A datagram that does not fit its receive is dropped, and the receive takes the next one (a class D error, §9.9.3), as on an unreliable
//!   connection: else whoever may send could end the queue pair. A receive whose own memory is wrong completes with an error, and puts its
//!   queue pair in error (§10.3.1). The GSI drops what has not the length of a management datagram (§13.4.2).
//! - The service level and the traffic class of a received datagram are 0, its hop limit is 64.

mod arrival;
mod counters;
mod gids;
mod grh;
mod names;
mod parking;
mod peers;
mod ports;
mod send;

use std::collections::VecDeque;
use std::net::IpAddr;

use masq_driver::{Event, Peer, PeerId, PeerName, QpChange, QpState, QpType};
use masq_types::{Gid, Psn, WireQpn};
use rustc_hash::FxHashMap;

use self::gids::Gids;
use self::names::{Names, Unknown};
use self::parking::Parking;
use self::peers::PeerTable;
use self::ports::Ports;
use self::send::Outgoing;
use crate::engine::World;
use crate::limits;
use crate::qp::QpKey;
use crate::transport::Time;
use crate::udp::{Edge, LocalId, TxBatch};

pub use arrival::{Incoming, Payload, arrive_from, handle_packet};
pub use counters::{Loss, Losses};
pub use send::{Step, step};

/// The longest payload: the largest path MTU.
const MAX_PAYLOAD: u32 = masq_types::Mtu::B4096.bytes();
/// The well-known Q_Key of the GSI (IBTA Vol 1 §10.2.5).
const GSI_QKEY: u32 = 0x8001_0000;

/// The GSI's number on the wire where a vNIC has an address alone, as other stations know it.
const WELL_KNOWN_GSI: u32 = 1;

/// Those of a vNIC's underlay addresses at which it has this number: all, but of the well-known number of GSIs, which each vNIC with an
/// address alone has there, the first. The others it shares.
pub fn addresses_with<T>(addresses: &[T], wire_qpn: WireQpn) -> &[T] {
    match addresses {
        [first, ..] if wire_qpn.get() == WELL_KNOWN_GSI => std::slice::from_ref(first),
        all => all,
    }
}

/// What a UD or GSI queue pair has besides what all have.
#[derive(Debug)]
pub struct DatagramQp {
    /// It is the GSI.
    is_gsi: bool,
    qkey: u32,
    psn: Psn,
    /// Longest payload that it sends.
    max_payload: u32,
    /// Where it receives.
    pub listening: Vec<LocalId>,
    /// It stands in its vNIC's list of those whose sends wait for room.
    stalled: bool,
}

impl DatagramQp {
    /// A queue pair of this type in RESET; `None` when the type has no datagrams.
    pub fn new(qp_type: QpType) -> Option<Self> {
        let is_gsi = match qp_type {
            QpType::Ud => false,
            QpType::Gsi => true,
            QpType::Rc | QpType::Uc | QpType::XrcIni | QpType::XrcTgt => return None,
        };
        let (listening, psn) = (Vec::new(), Psn::default());
        let mut qp = Self { is_gsi, qkey: 0, psn, max_payload: 0, listening, stalled: false };
        qp.reset();
        Some(qp)
    }

    /// The queue pair goes to RESET.
    pub fn reset(&mut self) {
        self.qkey = if self.is_gsi { GSI_QKEY } else { 0 };
        (self.psn, self.max_payload) = (Psn::default(), MAX_PAYLOAD);
    }

    /// A change that was agreed to.
    pub fn change(&mut self, change: &QpChange) {
        if let Some(qkey) = change.qkey.filter(|_| !self.is_gsi) {
            self.qkey = qkey;
        }
        if let Some(psn) = change.sq_psn {
            self.psn = psn;
        }
        if let Some(mtu) = change.path_mtu {
            self.max_payload = mtu.bytes();
        }
    }

    /// Next PSN to send.
    pub fn psn(&self) -> Psn {
        self.psn
    }

    fn take_psn(&mut self) -> Psn {
        let psn = self.psn;
        self.psn = psn.plus(1);
        psn
    }
}

/// Whether a queue pair in this state takes datagrams.
fn receives(state: QpState) -> bool {
    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
}

/// Which way a datagram goes, as its vNIC sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To a peer.
    Out,
    /// From a peer.
    In,
}

impl Direction {
    /// That of a datagram whose peer has this name.
    pub fn of(name: &PeerName) -> Self {
        match name {
            PeerName::Gid(_) => Direction::Out,
            PeerName::Source(..) => Direction::In,
        }
    }
}

/// All that a vNIC knows for its datagrams.
#[derive(Debug)]
pub struct Datagrams {
    gids: Gids,
    peers: PeerTable,
    names: Names,
    parking: Parking<Waiting>,
    /// Queue pairs whose sends wait for room in `parking`, in the order in which they get it. One at a time is woken, and wakes the next
    /// when its send is done, so that thousands cost no more than they send.
    stalled: VecDeque<QpKey>,
    ports: Ports,
    /// When the timer that is queued for what waits goes off.
    timer: Option<Time>,
}

impl Default for Datagrams {
    fn default() -> Self {
        Self {
            gids: Gids::default(),
            peers: PeerTable::new(limits::MAX_PEERS),
            names: Names::default(),
            parking: Parking::default(),
            stalled: VecDeque::new(),
            ports: Ports::default(),
            timer: None,
        }
    }
}

/// A datagram whose peer is not known, and its payload.
#[derive(Debug)]
enum Waiting {
    Out(Outgoing, Vec<u8>),
    In(Incoming, Vec<u8>),
}

/// What sending datagrams takes: the world, and the way out of it.
pub struct Carrier<'a> {
    /// All state.
    pub world: &'a mut World,
    /// Local addresses.
    pub edge: &'a mut Edge,
    /// What is to be sent.
    pub tx: &'a mut TxBatch,
}

impl Datagrams {
    /// The vNIC's addresses, from now on.
    pub fn set_gids(&mut self, table: Vec<Gid>, published: Vec<Gid>) {
        self.gids = Gids::new(table, published);
    }

    /// Forgets a peer.
    pub fn remove_peer(&mut self, id: PeerId) {
        self.peers.remove(id);
    }

    /// Drops what a queue pair has still to send.
    pub fn forget_qp(&mut self, key: QpKey) {
        self.parking.retain(|waiting| !matches!(waiting, Waiting::Out(outgoing, _) if outgoing.from == key));
    }

    /// When the timer that is queued for what waits goes off.
    pub fn timer(&self) -> Option<Time> {
        self.timer
    }

    /// Calls `each` with the source ports that are open.
    pub fn for_each_port(&self, each: impl FnMut(LocalId, u16)) {
        self.ports.for_each(each);
    }

    /// The vNIC and its queue pairs have other keys.
    pub fn rename_qps(&mut self, vnic_key: usize, keys: &FxHashMap<QpKey, QpKey>) {
        self.stalled = self.stalled.iter().filter_map(|k| keys.get(k).copied()).collect();
        for waiting in self.parking.iter_mut() {
            if let Waiting::Out(outgoing, _) = waiting {
                outgoing.rename(vnic_key, keys);
            }
        }
    }

    /// The vNIC goes.
    pub fn close(&mut self, edge: &mut Edge) {
        self.ports.close(edge);
    }
}

/// A peer is known from now on, or known otherwise: what waits for it goes on.
pub fn set_peer(carrier: &mut Carrier<'_>, vnic_key: usize, peer: Peer) {
    let Some(vnic) = carrier.world.vnics.get_mut(vnic_key) else { return };
    let datagrams = &mut vnic.datagrams;
    datagrams.peers.set(peer);
    let peers = &datagrams.peers;
    datagrams.names.forget(|name| peers.knows(name));
    for waiting in datagrams.parking.take(|name| peers.knows(name)) {
        match waiting {
            Waiting::Out(outgoing, payload) => send::send_parked(carrier, &outgoing, &payload),
            Waiting::In(incoming, payload) => {
                // The payload is here already: nothing of it can be out of reach.
                let _ = arrival::arrive(carrier.world, &incoming, Payload::Bytes(&payload));
            }
        }
    }
    wake_stalled(carrier.world, vnic_key);
}

/// There is no such peer: what waits for it is lost.
pub fn no_peer(world: &mut World, vnic_key: usize, name: PeerName) {
    let now = world.now;
    let Some(vnic) = world.vnics.get_mut(vnic_key) else { return };
    let datagrams = &mut vnic.datagrams;
    // An answer can be older than what is known.
    if datagrams.peers.knows(&name) {
        return;
    }
    datagrams.names.refused(now, name);
    for _ in datagrams.parking.take(|n| *n == name) {
        world.losses.count(unknown_peer(Direction::of(&name)));
    }
    wake_stalled(world, vnic_key);
}

/// The timer of what waits at a vNIC that was set to `deadline` has gone off. Returns whether that meant anything.
pub fn expire(world: &mut World, deadline: Time, vnic_key: usize) -> bool {
    let now = world.now;
    let Some(vnic) = world.vnics.get_mut(vnic_key) else { return false };
    let datagrams = &mut vnic.datagrams;
    if datagrams.timer != Some(deadline) {
        return false;
    }
    datagrams.timer = None;
    let losses = &mut world.losses;
    datagrams.parking.expire(now, |direction| losses.count(unknown_peer(direction)));
    arm(world, vnic_key);
    wake_stalled(world, vnic_key);
    true
}

/// What becomes of a datagram whose peer is not known.
enum Fate {
    /// It may wait: [`park`] it.
    Wait,
    /// There is no room for it.
    NoRoom,
    /// It is lost.
    Lost,
}

/// Judges whether a datagram whose peer is not known may wait.
fn judge_unknown(world: &mut World, vnic_key: usize, name: &PeerName) -> Fate {
    let now = world.now;
    let Some(vnic) = world.vnics.get_mut(vnic_key) else { return Fate::Lost };
    match vnic.datagrams.names.judge(now, name) {
        Unknown::GiveUp => Fate::Lost,
        Unknown::Ask | Unknown::Asked if vnic.datagrams.parking.has_room(Direction::of(name)) => Fate::Wait,
        Unknown::Ask | Unknown::Asked => Fate::NoRoom,
    }
}

/// Lets a datagram that may wait wait for its peer, which is asked for unless it has been.
fn park(world: &mut World, vnic_key: usize, name: PeerName, waiting: Waiting) {
    let now = world.now;
    let Some(vnic) = world.vnics.get_mut(vnic_key) else { return };
    let datagrams = &mut vnic.datagrams;
    datagrams.parking.park(now, name, waiting);
    if datagrams.names.judge(now, &name) == Unknown::Ask {
        datagrams.names.asked(now, name);
        world.sink.event(Event::UnknownPeer { vnic: vnic.id, name });
    }
    arm(world, vnic_key);
}

/// Lets a queue pair's send wait in its queue for room.
fn stall(world: &mut World, vnic_key: usize, key: QpKey) {
    let Some(vnic) = world.vnics.get_mut(vnic_key) else { return };
    let Some(datagram) = world.qps.get_mut(key).and_then(|q| q.datagram.as_mut()) else { return };
    if !std::mem::replace(&mut datagram.stalled, true) {
        vnic.datagrams.stalled.push_back(key);
    }
    arm(world, vnic_key);
}

/// Sees to it that the timer of what waits at a vNIC goes off in time.
fn arm(world: &mut World, vnic_key: usize) {
    let now = world.now;
    let Some(vnic) = world.vnics.get_mut(vnic_key) else { return };
    let datagrams = &mut vnic.datagrams;
    // Who was woken may be gone before it has woken the next.
    let stalled = (!datagrams.stalled.is_empty()).then(|| now.plus(names::ANSWER_TIME));
    if datagrams.timer.is_none()
        && let Some(deadline) = datagrams.parking.deadline().or(stalled)
    {
        datagrams.timer = Some(deadline);
        world.schedule.unanswered.push(deadline, vnic_key);
    }
}

/// There may be room for what waits in send queues: the first may try again.
fn wake_stalled(world: &mut World, vnic_key: usize) {
    let Some(vnic) = world.vnics.get_mut(vnic_key) else { return };
    while let Some(key) = vnic.datagrams.stalled.pop_front() {
        if let Some(datagram) = world.qps.get_mut(key).and_then(|q| q.datagram.as_mut()) {
            datagram.stalled = false;
            return world.schedule(key);
        }
    }
}

fn unknown_peer(direction: Direction) -> Loss {
    match direction {
        Direction::Out => Loss::TxUnknownPeer,
        Direction::In => Loss::RxUnknownPeer,
    }
}

/// Bytes of a datagram as an IP packet between addresses of the family of `underlay`.
fn ip_bytes(udp_payload_bytes: usize, underlay: IpAddr) -> u64 {
    udp_payload_bytes as u64 + crate::engine::ip_overhead(underlay)
}
