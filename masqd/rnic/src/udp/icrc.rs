use std::collections::hash_map::Entry;
use std::net::SocketAddr;

use masq_wire::{ICRC_BYTES, IcrcFlow, IcrcVerdict, Ipv4Ident};
use rustc_hash::FxHashMap;

/// Fills in the ICRC of each datagram of a train. `counted`: the kernel numbers the datagrams 0, 1, 2, …, else
/// all get Identification 0.
pub fn seal(flow: &IcrcFlow, train: &mut [u8], segment_bytes: usize, counted: bool) {
    for (i, datagram) in train.chunks_mut(segment_bytes.max(1)).enumerate() {
        seal_one(flow, datagram, if counted { i as u16 } else { 0 });
    }
}

/// Fills in the ICRC of a datagram that gets this Identification.
pub fn seal_one(flow: &IcrcFlow, datagram: &mut [u8], id: u16) {
    if let Some((covered, icrc)) = datagram.split_last_chunk_mut::<ICRC_BYTES>() {
        *icrc = flow.compute(covered, id).to_le_bytes();
    }
}

/// What is known of the peers that packets come from, so that it need not be made for each.
#[derive(Debug, Default)]
pub struct FlowCache {
    flows: FxHashMap<(SocketAddr, SocketAddr), IcrcFlow>,
    /// The flow that is selected: the next packet is most likely of the same.
    last: Option<((SocketAddr, SocketAddr), IcrcFlow)>,
    /// Identification that the first datagram of the present train seems to have had.
    base: u16,
    /// All datagrams of the present train have that one.
    fixed: bool,
    /// What explained the last datagram's ICRC.
    ident: Ipv4Ident,
}

/// How sure a packet's ICRC is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is right with an Identification that our own RNICs give: the place in the train or, where the kernel does not cut trains, 0.
    Exact,
    /// It is right with some other Identification.
    Explained,
    /// It is wrong.
    Bad,
}

impl FlowCache {
    /// Flows that are kept; a peer that changes its source port all the time only makes this slower.
    const MAX: usize = 4096;

    /// What is checked from now on comes from `source`, to `local`.
    pub fn select(&mut self, source: SocketAddr, local: SocketAddr) {
        let key = (source, local);
        if self.last.as_ref().is_none_or(|(last, _)| *last != key) {
            self.last = self.find(key).map(|flow| (key, flow));
        }
    }

    /// Checks the ICRC of datagram `index` of a train of the selected flow.
    pub fn check(&mut self, datagram: &[u8], index: usize) -> Seen {
        if index == 0 {
            (self.base, self.fixed) = (0, false);
        }
        let Some((_, flow)) = &self.last else { return Seen::Bad };
        let step = if self.fixed { 0 } else { index as u16 };
        let expected = Ipv4Ident { id: self.base.wrapping_add(step), dont_fragment: true };
        let verdict = flow.check(datagram, expected.id);
        self.ident = match verdict {
            IcrcVerdict::Explained(ident) => ident,
            IcrcVerdict::Exact | IcrcVerdict::Bad => expected,
        };
        match verdict {
            IcrcVerdict::Exact => Seen::Exact,
            // The kernel also merges datagrams that all have the same Identification.
            IcrcVerdict::Explained(Ipv4Ident { id: 0, dont_fragment: true }) => {
                (self.base, self.fixed) = (0, true);
                Seen::Exact
            }
            IcrcVerdict::Explained(ident) => {
                // The kernel merges datagrams whose Identifications go up by one.
                self.base = ident.id.wrapping_sub(index as u16);
                Seen::Explained
            }
            IcrcVerdict::Bad => Seen::Bad,
        }
    }

    /// The IPv4 Identification and flag that explain the ICRC of the datagram that was checked last and found right.
    pub fn ident(&self) -> Ipv4Ident {
        self.ident
    }

    fn find(&mut self, key: (SocketAddr, SocketAddr)) -> Option<IcrcFlow> {
        if self.flows.len() >= Self::MAX {
            self.flows.clear();
        }
        let (source, local) = key;
        Some(match self.flows.entry(key) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(new) => new.insert(IcrcFlow::new(source.ip(), local.ip(), source.port())?).clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> (SocketAddr, SocketAddr) {
        ("10.0.0.1:50000".parse().unwrap(), "10.0.0.2:4791".parse().unwrap())
    }

    #[test]
    fn a_sealed_train_is_exact() {
        let (source, local) = addresses();
        let flow = IcrcFlow::new(source.ip(), local.ip(), source.port()).unwrap();
        let mut train: Vec<u8> = (0..100).collect();
        seal(&flow, &mut train, 40, true);
        let mut cache = FlowCache::default();
        cache.select(source, local);
        for (i, d) in train.chunks(40).enumerate() {
            assert_eq!(cache.check(d, i), Seen::Exact);
        }
        // The tail of a train that was split on the way: the first is explained, the rest follows from it.
        let tail: Vec<_> = train.chunks(40).skip(1).enumerate().map(|(i, d)| cache.check(d, i)).collect();
        assert_eq!(tail, [Seen::Explained, Seen::Exact]);
        // A train that was not cut by the kernel but merged by it.
        seal(&flow, &mut train, 40, false);
        for (i, d) in train.chunks(40).enumerate() {
            assert_eq!(cache.check(d, i), Seen::Exact);
            assert_eq!(cache.fixed, i > 0);
        }
    }

    #[test]
    fn a_changed_byte_is_bad() {
        let (source, local) = addresses();
        let flow = IcrcFlow::new(source.ip(), local.ip(), source.port()).unwrap();
        let mut datagram = vec![7; 64];
        seal(&flow, &mut datagram, 64, true);
        datagram[20] ^= 1;
        let mut cache = FlowCache::default();
        assert_eq!(cache.check(&datagram, 0), Seen::Bad, "no flow is selected");
        cache.select(source, local);
        assert_eq!(cache.check(&datagram, 0), Seen::Bad);
        assert_eq!(cache.check(&[1, 2], 0), Seen::Bad);
    }
}
