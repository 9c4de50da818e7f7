//! Whom a vNIC's datagrams may go to and come from, as far as it has been told.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use masq_driver::{Peer, PeerId, PeerName};
use masq_types::{Gid, WireQpn};
use rustc_hash::FxHashMap;

use super::addresses_with;

/// The peers of one vNIC, by virtual address and by where their packets come from. Bounded: who was not used for longest is forgotten.
#[derive(Debug)]
pub struct PeerTable {
    max: usize,
    peers: FxHashMap<PeerId, Known>,
    by_gid: FxHashMap<Gid, PeerId>,
    /// Blocks by underlay address and first QPN; those of one address do not overlap.
    blocks: BTreeMap<(IpAddr, u32), PeerId>,
    /// GSIs, which need not lie in a block.
    gsis: FxHashMap<(IpAddr, WireQpn), PeerId>,
    /// Each peer once, with a time of its use: not before it, whoever is behind.
    by_use: VecDeque<(u64, PeerId)>,
    /// Goes on with every use.
    clock: u64,
}

#[derive(Debug)]
struct Known {
    peer: Peer,
    used: u64,
}

impl PeerTable {
    /// An empty table for at most `max` peers.
    pub fn new(max: usize) -> Self {
        Self {
            max,
            peers: FxHashMap::default(),
            by_gid: FxHashMap::default(),
            blocks: BTreeMap::new(),
            gsis: FxHashMap::default(),
            by_use: VecDeque::new(),
            clock: 0,
        }
    }

    /// Adds a peer, or replaces what was known of it. Where two peers claim the same, the later one has it.
    pub fn set(&mut self, peer: Peer) {
        let id = peer.id;
        self.clock += 1;
        let is_new = !self.unindex(id);
        if is_new {
            while self.peers.len() >= self.max && self.forget_one() {}
            self.by_use.push_back((self.clock, id));
        }
        self.by_gid.extend(peer.gids.iter().map(|gid| (*gid, id)));
        for address in &peer.addresses {
            self.blocks.extend(peer.qpn_blocks.iter().map(|block| ((*address, block.first), id)));
        }
        if has_gsi(&peer) {
            let gsis = addresses_with(&peer.addresses, peer.gsi_qpn);
            self.gsis.extend(gsis.iter().map(|address| ((*address, peer.gsi_qpn), id)));
        }
        self.peers.insert(id, Known { peer, used: self.clock });
    }

    /// Forgets a peer.
    pub fn remove(&mut self, id: PeerId) {
        if self.unindex(id) {
            self.peers.remove(&id);
            self.by_use.retain(|(_, other)| *other != id);
        }
    }

    /// Who has this virtual address.
    pub fn with_gid(&mut self, gid: Gid) -> Option<&Peer> {
        let id = *self.by_gid.get(&gid)?;
        self.used(id)
    }

    /// Who sends from this underlay address and wire QPN.
    pub fn with_source(&mut self, address: IpAddr, qpn: WireQpn) -> Option<&Peer> {
        let id = self.find_source(address, qpn)?;
        self.used(id)
    }

    /// Whether somebody has this name.
    pub fn knows(&self, name: &PeerName) -> bool {
        match *name {
            PeerName::Gid(gid) => self.by_gid.contains_key(&gid),
            PeerName::Source(address, qpn) => self.find_source(address, qpn).is_some(),
        }
    }

    fn find_source(&self, address: IpAddr, qpn: WireQpn) -> Option<PeerId> {
        if let Some(id) = self.gsis.get(&(address, qpn)) {
            return Some(*id);
        }
        let (_, id) = self.blocks.range((address, 0)..=(address, qpn.get())).next_back()?;
        let peer = &self.peers.get(id)?.peer;
        peer.qpn_blocks.iter().any(|block| block.contains(qpn)).then_some(*id)
    }

    fn used(&mut self, id: PeerId) -> Option<&Peer> {
        self.clock += 1;
        let known = self.peers.get_mut(&id)?;
        known.used = self.clock;
        Some(&known.peer)
    }

    /// Takes a peer out of the indexes; what another has claimed since stays. Returns whether there was one.
    fn unindex(&mut self, id: PeerId) -> bool {
        let Some(Known { peer, .. }) = self.peers.get(&id) else { return false };
        for gid in &peer.gids {
            if self.by_gid.get(gid) == Some(&id) {
                self.by_gid.remove(gid);
            }
        }
        for address in &peer.addresses {
            for block in &peer.qpn_blocks {
                let at = (*address, block.first);
                if self.blocks.get(&at) == Some(&id) {
                    self.blocks.remove(&at);
                }
            }
            let gsi = (*address, peer.gsi_qpn);
            if self.gsis.get(&gsi) == Some(&id) {
                self.gsis.remove(&gsi);
            }
        }
        true
    }

    /// Forgets who was not used for longest; returns whether there was anybody.
    fn forget_one(&mut self) -> bool {
        while let Some((noted, id)) = self.by_use.pop_front() {
            match self.peers.get(&id) {
                // It was used since it was put here: its place is further behind.
                Some(known) if known.used != noted => self.by_use.push_back((known.used, id)),
                _ => {
                    self.unindex(id);
                    self.peers.remove(&id);
                    return true;
                }
            }
        }
        false
    }
}

/// The wire QPN that a peer's guest knows as `qpn`, if it is the peer's: 1 is its GSI.
pub fn wire_qpn(peer: &Peer, qpn: u32) -> Option<WireQpn> {
    if qpn == GSI_QPN {
        return has_gsi(peer).then_some(peer.gsi_qpn);
    }
    WireQpn::new(qpn).filter(|qpn| peer.qpn_blocks.iter().any(|block| block.contains(*qpn)))
}

/// The number by which guests know a peer's queue pair with this wire QPN.
pub fn guest_qpn(peer: &Peer, qpn: WireQpn) -> u32 {
    if qpn == peer.gsi_qpn { GSI_QPN } else { qpn.get() }
}

/// Whether it has a GSI: 0 is none.
fn has_gsi(peer: &Peer) -> bool {
    peer.gsi_qpn.get() != 0
}

/// The GSI, as guests know it.
const GSI_QPN: u32 = 1;

#[cfg(test)]
mod tests {
    use masq_driver::Verdict;
    use masq_types::QpnBlock;

    use super::*;

    fn peer(id: u64, gid: [u8; 4], address: [u8; 4], first: u32) -> Peer {
        Peer {
            id: PeerId(id),
            gids: vec![Gid::from(IpAddr::from(gid))],
            addresses: vec![IpAddr::from(address), IpAddr::from([address[0], address[1], address[2], 99])],
            qpn_blocks: vec![
                QpnBlock::new(first, 4096).unwrap(),
                QpnBlock::new(first + 0x10_0000, 8192).unwrap(),
            ],
            gsi_qpn: WireQpn::from_wire(first + 2),
            is_stranger: false,
            verdict: Verdict::default(),
            exceptions: Vec::new(),
        }
    }

    fn gid(last: u8) -> Gid {
        Gid::from(IpAddr::from([10, 0, 0, last]))
    }

    fn source(table: &mut PeerTable, address: [u8; 4], qpn: u32) -> Option<u64> {
        table.with_source(address.into(), WireQpn::from_wire(qpn)).map(|p| p.id.0)
    }

    #[test]
    fn peers_of_one_address_are_told_apart_by_their_blocks() {
        let mut table = PeerTable::new(8);
        table.set(peer(1, [10, 0, 0, 1], [192, 0, 2, 1], 0x2000));
        table.set(peer(2, [10, 0, 0, 2], [192, 0, 2, 1], 0x8000));
        let mut of = |a, q| source(&mut table, a, q);
        let host = [192, 0, 2, 1];
        assert_eq!(
            [0x2000, 0x2fff, 0x3000, 0x8001, 0x10_9000].map(|q| of(host, q)),
            [Some(1), Some(1), None, Some(2), Some(2)]
        );
        assert_eq!([0, 1, 0x1fff, 0xff_ffff, 0x10_a000].map(|q| of(host, q)), [None; 5]);
        assert_eq!(of([192, 0, 2, 99], 0x2001), Some(1), "its other address");
        assert_eq!(of([192, 0, 2, 2], 0x2001), None);
        assert_eq!(table.with_gid(gid(2)).map(|p| p.id), Some(PeerId(2)));
        assert!(table.with_gid(gid(3)).is_none());
    }

    #[test]
    fn a_gsi_need_not_lie_in_a_block() {
        let mut table = PeerTable::new(8);
        let dedicated = Peer { gsi_qpn: WireQpn::from_wire(1), ..peer(1, [10, 0, 0, 1], [192, 0, 2, 1], 0) };
        table.set(dedicated.clone());
        assert_eq!([1, 2, 4095].map(|q| source(&mut table, [192, 0, 2, 1], q)), [Some(1); 3]);
        assert_eq!(
            [0, 1, 2, 4096, 1 << 24].map(|q| wire_qpn(&dedicated, q).map(WireQpn::get)),
            [None, Some(1), Some(2), None, None]
        );
        assert_eq!(guest_qpn(&dedicated, WireQpn::from_wire(1)), 1);
        let none = Peer { gsi_qpn: WireQpn::from_wire(0), ..dedicated };
        assert_eq!(wire_qpn(&none, 1), None);
        table.set(none);
        assert_eq!([0, 1].map(|q| source(&mut table, [192, 0, 2, 1], q)), [None; 2]);
        let shared = peer(2, [10, 0, 0, 2], [192, 0, 2, 1], 0x8000);
        assert_eq!(wire_qpn(&shared, 1), Some(WireQpn::from_wire(0x8002)));
        assert_eq!([0x8002, 0x8003].map(|q| guest_qpn(&shared, WireQpn::from_wire(q))), [1, 0x8003]);
    }

    #[test]
    fn what_changes_is_found_in_its_new_place_only() {
        let mut table = PeerTable::new(8);
        table.set(peer(1, [10, 0, 0, 1], [192, 0, 2, 1], 0x2000));
        table.set(peer(1, [10, 0, 0, 7], [192, 0, 2, 7], 0x4000));
        assert!(table.with_gid(gid(1)).is_none());
        assert_eq!(source(&mut table, [192, 0, 2, 1], 0x2001), None);
        assert_eq!(source(&mut table, [192, 0, 2, 7], 0x4002), Some(1));
        // Somebody else takes its address over; its end does not take it away.
        table.set(peer(2, [10, 0, 0, 7], [192, 0, 2, 7], 0x4000));
        table.remove(PeerId(1));
        assert_eq!(table.with_gid(gid(7)).map(|p| p.id), Some(PeerId(2)));
        assert_eq!(source(&mut table, [192, 0, 2, 7], 0x4002), Some(2));
        table.remove(PeerId(2));
        table.remove(PeerId(2));
        assert!(
            table.by_gid.is_empty()
                && table.blocks.is_empty()
                && table.gsis.is_empty()
                && table.by_use.is_empty()
        );
    }

    #[test]
    fn who_was_not_used_for_longest_is_forgotten() {
        let mut table = PeerTable::new(3);
        for i in 1..=3 {
            table.set(peer(i.into(), [10, 0, 0, i], [192, 0, 2, i], 0x2000));
        }
        assert!(table.with_gid(gid(1)).is_some());
        assert_eq!(source(&mut table, [192, 0, 2, 2], 0x2001), Some(2));
        table.set(peer(4, [10, 0, 0, 4], [192, 0, 2, 4], 0x2000));
        let known = |table: &PeerTable| [1, 2, 3, 4, 5].map(|i| table.knows(&PeerName::Gid(gid(i))));
        assert_eq!(known(&table), [true, true, false, true, false]);
        table.set(peer(5, [10, 0, 0, 5], [192, 0, 2, 5], 0x2000));
        assert_eq!(known(&table), [false, true, false, true, true]);
        // Peers that come and go leave nothing behind.
        for _ in 0..100 {
            table.set(peer(9, [10, 0, 0, 9], [192, 0, 2, 9], 0x2000));
            table.remove(PeerId(9));
        }
        assert!(table.by_use.len() <= 3 && table.peers.len() <= 3);
    }
}
