//! Queue pairs: what the engine keeps of each, and the table of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use masq_driver::{CtxHandle, PacketTap, QpHandle, QpTraffic, XrcdHandle};
use masq_types::{Qpn, WireQpn};
use slab::Slab;

use crate::cqs::CqKey;
use crate::datagram::DatagramQp;
use crate::engine::{Claim, RemoteQp};
use crate::group::Member;
use crate::keys::Accessor;
use crate::local::{Initiator, Ticket};
use crate::ring::{RecvRing, SendRing};
use crate::shaping::Short;
use crate::srqs::SrqKey;
use crate::transport::{Cause, QpCore, RecvWork, SendWork, Status, Time, WorkQueue};
use crate::udp::{LocalId, Route};

/// Names a queue pair for as long as it lives; keys are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpKey {
    slot: u32,
    generation: u64,
}

#[cfg(test)]
impl QpKey {
    pub(crate) const fn for_test(slot: usize) -> Self {
        Self { slot: slot as u32, generation: 0 }
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// The transport's part: state, attributes and, towards remote peers, the protocol.
    pub core: QpCore,
    /// Its rings and what identifies it.
    pub io: QpIo,
    /// Where its peer is.
    pub path: Path,
    /// Its place among those that are connected to the same peer, when that is behind the underlay.
    pub claim: Option<Claim>,
    /// The same on the other paths of its group, by which the peer takes its packets as well.
    pub other_claims: Vec<(RemoteQp, Claim)>,
    /// What it is doing towards a local peer.
    pub initiator: Initiator,
    /// What it has asked of the engine that has its local peer.
    pub asked: Option<Ticket>,
    /// It stands in the list of those that wait until that engine can be asked for more.
    pub waits_for_room: bool,
    /// What it has besides, when it sends and receives datagrams.
    pub datagram: Option<DatagramQp>,
    /// Its context, for its doorbell.
    pub ctx: CtxHandle,
    /// Its doorbell: slot and index.
    pub doorbell: (u16, u16),
    /// It stands in a vNIC's list of queue pairs with something to do.
    pub scheduled: bool,
    /// The list is another vNIC's, which pays for what it reads.
    pub waits_for_other: bool,
    /// It stands in the engine's list of queue pairs that may have something to do that needs no leave.
    pub errand: bool,
    /// Its group in the vNIC's table, if the guest has created it for several paths.
    pub group: Option<usize>,
    /// What it has sent and received.
    pub traffic: QpTraffic,
    /// Who is shown its packets.
    pub tap: Option<Arc<dyn PacketTap>>,
    /// It waits until the sockets take more.
    pub parked: bool,
    /// When the timer that is queued for it goes off.
    pub timer: Option<Time>,
    /// In ERR, how long until the next look for receives to flush.
    pub flush_pause: Duration,
}

/// Rings, keys and names of a queue pair: what its [`Env`](crate::transport::Env) works on.
#[derive(Debug)]
pub struct QpIo {
    /// Key of the vNIC in the engine's table.
    pub vnic: usize,
    /// Its handle; a hidden queue pair has its leader's.
    pub handle: QpHandle,
    /// Its place in its group, while that uses several paths.
    pub member: Option<Member>,
    /// As what it accesses memory.
    pub accessor: Accessor,
    /// Its number as the guest sees it.
    pub qpn: Qpn,
    /// Its number on the wire.
    pub wire_qpn: WireQpn,
    /// The guest's number for it.
    pub cookie: u32,
    /// All sends are signalled.
    pub signal_all: bool,
    /// Completion queue of sends; an XRC target has none.
    pub send_cq: Option<CqKey>,
    /// Completion queue of receives; XRC has none.
    pub recv_cq: Option<CqKey>,
    /// The send queue; an XRC target has none.
    pub sq: Option<SendRing>,
    /// Where its receives come from.
    pub receives: RecvSource,
    /// A send that was taken out of the ring and is not done, towards a local peer.
    pub held_send: Held<SendWork>,
    /// A receive that a local peer is filling.
    pub held_recv: Held<RecvWork>,
    /// Bytes of the IP and UDP headers of its packets.
    pub ip_overhead: u64,
    /// Why it may not send what it has to send.
    pub short: Option<Short>,
    /// A ring cannot be read any more.
    pub broken: bool,
    /// A completion found its queue overrun.
    pub lost_completion: bool,
    /// Completions written so far, as a sign of progress.
    pub completions: u64,
    /// The last request that has failed otherwise than by being flushed.
    pub failed: Option<Failed>,
    /// The send queue was reported as drained while a send towards a local peer was not done.
    pub drained_early: bool,
}

impl Qp {
    /// A hidden queue pair beside this one, a group's leader in RTR that becomes one: in the same state, with number `member`, and with no rings of its own.
    pub fn sibling(&self, member: Member, remote_qpn: WireQpn) -> Qp {
        let io = &self.io;
        let wire_qpn = WireQpn::from_wire(io.wire_qpn.get() + u32::from(member.number));
        Qp {
            core: self.core.sibling(remote_qpn),
            io: QpIo {
                vnic: io.vnic,
                handle: io.handle,
                member: Some(member),
                // Keys that belong to the guest's queue pair are for chunks, too.
                accessor: io.accessor,
                qpn: io.qpn,
                wire_qpn,
                cookie: io.cookie,
                signal_all: false,
                send_cq: None,
                recv_cq: None,
                sq: None,
                receives: RecvSource::None,
                held_send: Held::default(),
                held_recv: Held::default(),
                ip_overhead: 0,
                short: None,
                broken: false,
                lost_completion: false,
                completions: 0,
                failed: None,
                drained_early: false,
            },
            path: Path::None,
            initiator: Initiator::default(),
            asked: None,
            waits_for_room: false,
            datagram: None,
            ctx: self.ctx,
            doorbell: self.doorbell,
            scheduled: false,
            waits_for_other: false,
            errand: false,
            group: None,
            claim: None,
            other_claims: Vec::new(),
            traffic: QpTraffic::default(),
            tap: self.tap.clone(),
            parked: false,
            timer: None,
            flush_pause: Duration::ZERO,
        }
    }

    /// Its claim to send to this one, which is its peer by one of its paths.
    pub fn claim_on(&self, remote: &RemoteQp) -> Option<Claim> {
        if self.path.remote_qp().as_ref() == Some(remote) {
            return self.claim;
        }
        self.other_claims.iter().find(|(other, _)| other == remote).map(|(_, claim)| *claim)
    }

    /// The same, to change it.
    pub fn claim_on_mut(&mut self, remote: &RemoteQp) -> Option<&mut Claim> {
        if self.path.remote_qp().as_ref() == Some(remote) {
            return self.claim.as_mut();
        }
        self.other_claims.iter_mut().find(|(other, _)| other == remote).map(|(_, claim)| claim)
    }

    /// All its claims, with whom they are about.
    pub fn claims(&self) -> impl Iterator<Item = (RemoteQp, Claim)> + '_ {
        self.path.remote_qp().zip(self.claim).into_iter().chain(self.other_claims.iter().copied())
    }

    /// Has a claim from now on.
    pub fn keep_claim(&mut self, remote: RemoteQp, claim: Claim) {
        if self.path.remote_qp() == Some(remote) {
            self.claim = Some(claim);
        } else {
            self.other_claims.push((remote, claim));
        }
    }

    /// Gives a claim up.
    pub fn drop_claim(&mut self, remote: &RemoteQp) {
        if self.path.remote_qp().as_ref() == Some(remote) {
            self.claim = None;
        }
        self.other_claims.retain(|(other, _)| other != remote);
    }

    /// Whether it is a hidden queue pair.
    pub fn is_sibling(&self) -> bool {
        self.io.member.is_some_and(|m| !m.is_leader())
    }
}

/// A request that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// When.
    pub at: Time,
    /// The queue that it was in.
    pub queue: WorkQueue,
    /// How it was completed.
    pub status: Status,
    /// Why.
    pub cause: Cause,
}

/// Where a queue pair's receives come from.
#[derive(Debug)]
pub enum RecvSource {
    /// A queue of its own.
    Own(RecvRing),
    /// A shared receive queue.
    Shared(SrqKey),
    /// The shared receive queue of this XRC domain that the present message names.
    Named {
        /// The domain.
        xrcd: XrcdHandle,
        /// The queue.
        selected: Option<SrqKey>,
    },
    /// Nowhere: an XRC initiator.
    None,
}

impl RecvSource {
    /// The shared receive queue that it belongs to.
    pub fn shared(&self) -> Option<SrqKey> {
        match self {
            RecvSource::Shared(key) => Some(*key),
            _ => None,
        }
    }
}

/// A request, or the buffers of the last one.
#[derive(Debug, Default)]
pub struct Held<W> {
    /// The request.
    pub work: W,
    /// Whether it counts.
    pub present: bool,
}

impl<W> Held<W> {
    /// Exchanges the request with `work` if there is one.
    pub fn take_into(&mut self, work: &mut W) -> bool {
        let present = std::mem::replace(&mut self.present, false);
        if present {
            std::mem::swap(&mut self.work, work);
        }
        present
    }
}

/// Where a queue pair's peer is.
#[derive(Debug, Default)]
pub enum Path {
    /// Not connected.
    #[default]
    None,
    /// Behind the underlay.
    Remote {
        /// The local address.
        local: LocalId,
        /// The way out.
        route: Route,
        /// The peer's number.
        remote_qpn: WireQpn,
    },
    /// On this RNIC.
    Local(LocalPath),
}

/// A connection between two queue pairs of this RNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPath {
    /// This side's address.
    pub local: LocalId,
    /// The peer's address.
    pub remote: LocalId,
    /// The peer's number.
    pub remote_qpn: WireQpn,
    /// Differs for each connection that this RNIC makes.
    pub incarnation: u64,
    /// The peer has sent something.
    pub established: bool,
}

impl Path {
    /// This side's address.
    pub fn local(&self) -> Option<LocalId> {
        match self {
            Path::None => None,
            Path::Remote { local, .. } => Some(*local),
            Path::Local(p) => Some(p.local),
        }
    }

    /// The peer, when it is behind the underlay.
    pub fn remote_qp(&self) -> Option<RemoteQp> {
        match self {
            Path::Remote { local, route, remote_qpn } => Some((*local, route.peer(), *remote_qpn)),
            _ => None,
        }
    }

    /// The peer's address, when it is behind the underlay.
    pub fn remote_peer(&self) -> Option<IpAddr> {
        match self {
            Path::Remote { route, .. } => Some(route.peer()),
            _ => None,
        }
    }
}

/// All queue pairs of the engine.
#[derive(Debug)]
pub struct QpTable<T = Qp> {
    slots: Slab<(u64, T)>,
    next_generation: u64,
}

impl<T> Default for QpTable<T> {
    fn default() -> Self {
        Self { slots: Slab::new(), next_generation: 0 }
    }
}

impl<T> QpTable<T> {
    /// A table whose keys no other has that was made with another `number`.
    pub fn numbered(number: u8) -> Self {
        Self { next_generation: u64::from(number) << 56, ..Self::default() }
    }

    /// Adds a queue pair, which learns its own key.
    pub fn insert(&mut self, make: impl FnOnce(QpKey) -> T) -> QpKey {
        let generation = self.next_generation;
        self.next_generation += 1;
        let entry = self.slots.vacant_entry();
        let key = QpKey { slot: entry.key() as u32, generation };
        entry.insert((generation, make(key)));
        key
    }

    /// A queue pair, if it still lives.
    pub fn get(&self, key: QpKey) -> Option<&T> {
        self.slots.get(key.slot as usize).filter(|(g, _)| *g == key.generation).map(|(_, qp)| qp)
    }

    /// A queue pair, if it still lives.
    pub fn get_mut(&mut self, key: QpKey) -> Option<&mut T> {
        self.slots.get_mut(key.slot as usize).filter(|(g, _)| *g == key.generation).map(|(_, qp)| qp)
    }

    /// Two queue pairs, if both still live.
    pub fn get_both_mut(&mut self, a: QpKey, b: QpKey) -> Option<(&mut T, &mut T)> {
        if a.slot == b.slot {
            return None;
        }
        let (a_slot, b_slot) = self.slots.get2_mut(a.slot as usize, b.slot as usize)?;
        (a_slot.0 == a.generation && b_slot.0 == b.generation).then_some((&mut a_slot.1, &mut b_slot.1))
    }

    /// Removes a queue pair.
    pub fn remove(&mut self, key: QpKey) -> Option<T> {
        self.get(key)?;
        self.slots.try_remove(key.slot as usize).map(|(_, qp)| qp)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (QpKey, &T)> {
        self.slots
            .iter()
            .map(|(slot, (generation, qp))| (QpKey { slot: slot as u32, generation: *generation }, qp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_outlives_nothing() {
        let mut table = QpTable::default();
        let first = table.insert(|_| 'a');
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert(|_| 'b');
        assert_eq!(first.slot, second.slot, "the place is used again");
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&'b'));
        let third = table.insert(|_| 'c');
        assert_eq!(table.get_both_mut(third, second), Some((&mut 'c', &mut 'b')));
        assert_eq!(table.get_both_mut(third, third), None);
        assert_eq!(table.get_both_mut(third, first), None);
    }
}
