//! Queue pair numbers: blocks of them for vNICs, and single ones for queue pairs.

use std::collections::HashSet;

use masq_types::{QpnBlock, WireQpn};

/// A free aligned block of `len` QPNs on a host where `used` are taken, the first at or after
/// `start` (any number; the caller's randomness), or `None` when there is none or `len` is no block's.
/// The lowest block is never handed out: it holds the reserved QPNs 0 and 1.
pub fn allocate_block(used: &[QpnBlock], len: u32, start: u32) -> Option<QpnBlock> {
    QpnBlock::new(0, len)?;
    let slots = (WireQpn::MAX + 1) / len;
    let first_slot = (start & WireQpn::MAX) / len;
    (0..slots)
        .map(|i| (first_slot + i) % slots)
        .filter(|&slot| slot != 0)
        .filter_map(|slot| QpnBlock::new(slot * len, len))
        .find(|b| !used.iter().any(|u| overlap(*u, *b)))
}

/// Whether two blocks have a QPN in common.
pub fn overlap(a: QpnBlock, b: QpnBlock) -> bool {
    let (a_end, b_end) = (u64::from(a.first) + u64::from(a.len), u64::from(b.first) + u64::from(b.len));
    u64::from(a.first) < b_end && u64::from(b.first) < a_end
}

/// Hands out the QPNs of a vNIC's blocks, one after the other, so that a number that has become free is
/// taken again as late as possible: packets for its last owner may still be under way.
#[derive(Clone, Debug)]
pub struct QpnPool {
    blocks: Vec<QpnBlock>,
    /// Never handed out.
    reserved: Option<WireQpn>,
    /// How many numbers a group takes; 1: there are no groups.
    group_len: u32,
    /// Position of the next candidate, counted over all blocks.
    next: u32,
    used: HashSet<WireQpn>,
}

impl QpnPool {
    /// A pool over `blocks`, save for the one QPN that is `reserved`, that begins at `start` (any number; the caller's
    /// randomness). Groups take `group_len` numbers, a power of two that is no longer than a block; with 1 there are none.
    pub fn new(blocks: Vec<QpnBlock>, reserved: Option<WireQpn>, group_len: u32, start: u32) -> QpnPool {
        let mut pool = QpnPool { blocks, reserved, group_len, next: 0, used: HashSet::new() };
        pool.next = start.checked_rem(pool.len()).unwrap_or(0);
        pool
    }

    /// Takes a free QPN: none that a group could begin with, by which peers tell groups.
    pub fn take(&mut self) -> Option<WireQpn> {
        for _ in 0..self.len() {
            let candidate = self.at(self.next);
            self.next = (self.next + 1) % self.len();
            let begins_group = |q: WireQpn| self.group_len > 1 && q.get().is_multiple_of(self.group_len);
            if let Some(qpn) = candidate.filter(|q| !begins_group(*q) && !self.used.contains(q)) {
                self.used.insert(qpn);
                return Some(qpn);
            }
        }
        None
    }

    /// Takes the free QPNs of a group, and returns the first, which is a multiple of their number.
    pub fn take_group(&mut self) -> Option<WireQpn> {
        let len = self.group_len;
        if len < 2 {
            return None;
        }
        // Blocks are aligned, and longer than any group: positions are aligned as numbers are.
        let groups = self.len() / len;
        let first = self.next.div_ceil(len);
        let is_free = |position| {
            (position..position + len).all(|p| self.at(p).is_some_and(|qpn| !self.used.contains(&qpn)))
        };
        let position = (0..groups).map(|i| (first + i) % groups * len).find(|p| is_free(*p))?;
        let qpns: Vec<WireQpn> = (position..position + len).filter_map(|p| self.at(p)).collect();
        self.next = (position + len) % self.len();
        self.used.extend(&qpns);
        qpns.first().copied()
    }

    /// Gives `qpn` back.
    pub fn give(&mut self, qpn: WireQpn) {
        self.used.remove(&qpn);
    }

    /// Gives the QPNs of the group back that begins with `first`.
    pub fn give_group(&mut self, first: WireQpn) {
        for number in 0..self.group_len {
            self.used.remove(&WireQpn::from_wire(first.get() + number));
        }
    }

    /// How many are taken.
    pub fn in_use(&self) -> usize {
        self.used.len()
    }

    fn len(&self) -> u32 {
        // Blocks lie in a 24-bit space; overlapping ones would be the caller's mistake.
        self.blocks.iter().fold(0, |sum, b| sum.saturating_add(b.len))
    }

    /// The QPN at a position, unless it is never handed out.
    fn at(&self, mut position: u32) -> Option<WireQpn> {
        for b in &self.blocks {
            if position < b.len {
                return WireQpn::new(b.first + position)
                    .filter(|q| b.contains(*q) && self.reserved != Some(*q));
            }
            position -= b.len;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_block_holds_the_reserved_numbers() {
        assert_eq!(allocate_block(&[], 4096, 0), QpnBlock::new(4096, 4096));
        assert_eq!(allocate_block(&[], 1 << 24, 0), None, "it would hold QPN 0");
    }

    #[test]
    fn only_aligned_powers_of_two_of_some_size_are_blocks() {
        for len in [0, 1, 2048, 5000, 1 << 25] {
            assert_eq!(allocate_block(&[], len, 0), None, "{len}");
        }
    }

    #[test]
    fn the_search_wraps_and_ends() {
        let top = QpnBlock::new(0xff_f000, 4096).unwrap();
        assert_eq!(allocate_block(&[], 4096, u32::MAX), Some(top));
        assert_eq!(allocate_block(&[top], 4096, u32::MAX), QpnBlock::new(4096, 4096));
        let all = [QpnBlock::new(0, 1 << 23).unwrap(), QpnBlock::new(1 << 23, 1 << 23).unwrap()];
        assert_eq!(allocate_block(&all, 4096, 77), None);
    }

    proptest! {
        #[test]
        fn blocks_of_a_host_never_overlap(asks in prop::collection::vec((12u32..18, any::<u32>()), 1..40)) {
            let mut used = Vec::new();
            for (shift, start) in asks {
                if let Some(b) = allocate_block(&used, 1 << shift, start) {
                    prop_assert!(QpnBlock::new(b.first, b.len).is_some());
                    prop_assert!(!used.iter().any(|u| overlap(*u, b)));
                    used.push(b);
                }
            }
            prop_assert!(!used.is_empty());
        }

        #[test]
        fn pooled_numbers_are_distinct_and_inside(start: u32, gives in prop::collection::vec(any::<bool>(), 200)) {
            let blocks = vec![QpnBlock::new(0, 4096).unwrap(), QpnBlock::new(8192, 4096).unwrap()];
            let mut pool = QpnPool::new(blocks.clone(), None, 1, start);
            let mut held = Vec::new();
            for give in gives {
                if let Some(q) = held.pop().filter(|_| give) {
                    pool.give(q);
                }
                let q = pool.take().unwrap();
                prop_assert!(!held.contains(&q));
                prop_assert!(blocks.iter().any(|b| b.contains(q)));
                held.push(q);
            }
        }
    }

    #[test]
    fn a_pool_ends_and_reuses_late() {
        let mut pool = QpnPool::new(vec![QpnBlock::new(0, 4096).unwrap()], WireQpn::new(7), 1, 5);
        let first = pool.take().unwrap();
        assert_eq!(first.get(), 5);
        pool.give(first);
        assert_eq!(pool.take().unwrap().get(), 6);
        assert_eq!(pool.take().unwrap().get(), 8, "7 is reserved");
        for _ in 0..4091 {
            assert!(pool.take().is_some());
        }
        assert_eq!((pool.take(), pool.in_use()), (None, 4093), "all but 0, 1 and 7");
        assert_eq!(QpnPool::new(Vec::new(), None, 1, 9).take(), None);
        assert_eq!(QpnPool::new(Vec::new(), None, 4, 9).take_group(), None);
    }

    #[test]
    fn groups_are_told_by_their_numbers() {
        for (group_len, start) in [(2, 0), (4, 4093), (8, 77), (16, 4095)] {
            let block = QpnBlock::new(4096, 4096).unwrap();
            let reserved = WireQpn::new(4096 + 9);
            let mut pool = QpnPool::new(vec![block], reserved, group_len, start);
            let (mut groups, mut singles) = (Vec::new(), Vec::new());
            let mut i = 0;
            loop {
                // Three queue pairs of the ordinary kind for each group, as long as there are numbers.
                i += 1;
                match if i % 4 == 0 { pool.take_group() } else { pool.take() } {
                    Some(qpn) if i % 4 == 0 => groups.push(qpn.get()),
                    Some(qpn) => singles.push(qpn.get()),
                    None => break,
                }
            }
            assert!(groups.len() > 20 && singles.len() > 60, "{}, {}", groups.len(), singles.len());
            assert!(groups.iter().all(|q| q % group_len == 0) && singles.iter().all(|q| q % group_len != 0));
            let mut all: Vec<u32> = groups.iter().flat_map(|q| *q..q + group_len).collect();
            all.extend(&singles);
            assert!(all.iter().all(|q| block.contains(WireQpn::from_wire(*q)) && Some(*q) != reserved.map(WireQpn::get)));
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!((all.len(), pool.in_use()), (count, count), "none twice");
            for group in &groups {
                pool.give_group(WireQpn::from_wire(*group));
            }
            assert_eq!(pool.in_use(), singles.len());
        }
        assert_eq!(QpnPool::new(vec![QpnBlock::new(0, 4096).unwrap()], None, 1, 9).take_group(), None);
    }
}
