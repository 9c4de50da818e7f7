//! Which chunks of a ring are done: in any order, where what counts is how far all are.

/// A bit for each entry of the ring. Its index is free-running, and the entries that are taken and not done are never more than the ring has.
#[derive(Debug)]
pub struct Done {
    bits: Box<[u64]>,
    /// Index of the first that is not done.
    prefix: u32,
    mask: u32,
}

impl Done {
    /// Of a ring with so many entries, a power of two: none is done.
    pub fn new(entries: u32) -> Self {
        let words = entries.div_ceil(u64::BITS) as usize;
        Self { bits: vec![0; words].into(), prefix: 0, mask: entries.wrapping_sub(1) }
    }

    /// The ring begins at 0 again.
    pub fn clear(&mut self) {
        self.bits.fill(0);
        self.prefix = 0;
    }

    /// Index of the first that is not done.
    pub fn prefix(&self) -> u32 {
        self.prefix
    }

    /// The entry at `index` is done. Returns whether the prefix has grown by that.
    pub fn add(&mut self, index: u32) -> bool {
        if let Some((word, bit)) = self.bit(index) {
            *word |= bit;
        }
        let before = self.prefix;
        while let Some((word, bit)) = self.bit(self.prefix)
            && *word & bit != 0
        {
            *word &= !bit;
            self.prefix = self.prefix.wrapping_add(1);
        }
        self.prefix != before
    }

    fn bit(&mut self, index: u32) -> Option<(&mut u64, u64)> {
        let place = index & self.mask;
        Some((self.bits.get_mut((place / u64::BITS) as usize)?, 1 << (place % u64::BITS)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a set of indexes does it, across the end of the ring and of the numbers.
        #[test]
        fn it_is_a_set(shift in 0u32..9, start: u32, picks in prop::collection::vec(any::<u16>(), 1..600)) {
            let entries = 1 << shift;
            let mut done = Done { prefix: start, ..Done::new(entries) };
            let (mut ahead, mut prefix) = (BTreeSet::new(), 0u64);
            for pick in picks {
                let offset = u64::from(u32::from(pick) % entries);
                ahead.insert(prefix + offset);
                let before = prefix;
                let grew = done.add(start.wrapping_add((before + offset) as u32));
                while ahead.remove(&prefix) {
                    prefix += 1;
                }
                prop_assert_eq!(grew, prefix != before);
                prop_assert_eq!(done.prefix(), start.wrapping_add(prefix as u32));
            }
            let bits: u32 = done.bits.iter().map(|word| word.count_ones()).sum();
            prop_assert_eq!(bits as usize, ahead.len());
        }
    }
}
