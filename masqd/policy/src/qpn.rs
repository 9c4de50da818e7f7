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
    /// Position of the next candidate, counted over all blocks.
    next: u32,
    used: HashSet<WireQpn>,
}

impl QpnPool {
    /// A pool over `blocks`, save for the one QPN that is `reserved`, that begins at `start` (any number; the caller's
    /// randomness).
    pub fn new(blocks: Vec<QpnBlock>, reserved: Option<WireQpn>, start: u32) -> QpnPool {
        let mut pool = QpnPool { blocks, reserved, next: 0, used: HashSet::new() };
        pool.next = start.checked_rem(pool.len()).unwrap_or(0);
        pool
    }

    /// Takes a free QPN.
    pub fn take(&mut self) -> Option<WireQpn> {
        for _ in 0..self.len() {
            let candidate = self.at(self.next);
            self.next = (self.next + 1) % self.len();
            if let Some(qpn) = candidate.filter(|q| !self.used.contains(q)) {
                self.used.insert(qpn);
                return Some(qpn);
            }
        }
        None
    }

    /// Gives `qpn` back.
    pub fn give(&mut self, qpn: WireQpn) {
        self.used.remove(&qpn);
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
            let mut pool = QpnPool::new(blocks.clone(), None, start);
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
        let mut pool = QpnPool::new(vec![QpnBlock::new(0, 4096).unwrap()], WireQpn::new(7), 5);
        let first = pool.take().unwrap();
        assert_eq!(first.get(), 5);
        pool.give(first);
        assert_eq!(pool.take().unwrap().get(), 6);
        assert_eq!(pool.take().unwrap().get(), 8, "7 is reserved");
        for _ in 0..4091 {
            assert!(pool.take().is_some());
        }
        assert_eq!((pool.take(), pool.in_use()), (None, 4093), "all but 0, 1 and 7");
        assert_eq!(QpnPool::new(Vec::new(), None, 9).take(), None);
    }
}
