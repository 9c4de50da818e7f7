//! Sets of PSNs that lie near one another, as bits.

use masq_types::Psn;
use masq_wire::Arrived;

/// PSNs of a set lie less than this apart: what a bitmap can name.
pub(super) const MOST: usize = Arrived::MAX_BITS as usize;

const WORDS: usize = MOST / 64;

/// A set of PSNs of which no two lie [`MOST`] or more apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PsnSet([u64; WORDS]);

/// Where `psn` stands among [`MOST`].
pub(super) fn slot(psn: Psn) -> usize {
    psn.get() as usize % MOST
}

impl PsnSet {
    /// The PSNs from `from` on whose bits are set in `words`, the lowest first, as far as they are among the first `count`.
    pub(super) fn from_words(from: Psn, words: &[u64; WORDS], count: u32) -> Self {
        let (at, shift) = (slot(from) / 64, slot(from) % 64);
        let mut set = Self::default();
        for (i, word) in words.iter().enumerate() {
            let Some(left) = (count as usize).checked_sub(64 * i).filter(|left| *left > 0) else { break };
            let word = if left < 64 { word & ((1 << left) - 1) } else { *word };
            set.0[(at + i) % WORDS] |= word << shift;
            if shift > 0 {
                set.0[(at + i + 1) % WORDS] |= word >> (64 - shift);
            }
        }
        set
    }

    /// The inverse of [`PsnSet::from_words`]: bit `i` tells of the PSN `i` behind `from`.
    pub(super) fn words(&self, from: Psn) -> [u64; WORDS] {
        let (at, shift) = (slot(from) / 64, slot(from) % 64);
        core::array::from_fn(|i| {
            let low = self.0[(at + i) % WORDS] >> shift;
            let high = if shift > 0 { self.0[(at + i + 1) % WORDS] << (64 - shift) } else { 0 };
            low | high
        })
    }

    pub(super) fn set(&mut self, psn: Psn) {
        self.0[slot(psn) / 64] |= 1 << (slot(psn) % 64);
    }

    pub(super) fn clear(&mut self, psn: Psn) {
        self.0[slot(psn) / 64] &= !(1 << (slot(psn) % 64));
    }

    pub(super) fn has(&self, psn: Psn) -> bool {
        self.0[slot(psn) / 64] >> (slot(psn) % 64) & 1 != 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Adds all of `others`.
    pub(super) fn add(&mut self, others: &Self) {
        self.0.iter_mut().zip(others.0).for_each(|(word, other)| *word |= other);
    }

    /// Those that are not in `others`.
    pub(super) fn without(&self, others: &Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] & !others.0[i]))
    }

    /// The [slots](slot) of all, in no order that means anything.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        self.0.into_iter().enumerate().flat_map(|(i, mut word)| {
            core::iter::from_fn(move || {
                let bit = word.trailing_zeros() as usize;
                word &= word.wrapping_sub(1);
                (bit < 64).then_some(64 * i + bit)
            })
        })
    }

    /// How far behind `from` the first one lies, among `count`.
    pub(super) fn first(&self, from: Psn, count: u32) -> Option<u32> {
        let mut place = 0;
        while place < count {
            let at = slot(from.plus(place));
            let word = self.0[at / 64] >> (at % 64);
            if word != 0 {
                let found = place + word.trailing_zeros();
                return (found < count).then_some(found);
            }
            place += 64 - (at % 64) as u32;
        }
        None
    }

    /// How far before `end` the last one lies, among `count`: 0 stands for the PSN right before it.
    pub(super) fn last(&self, end: Psn, count: u32) -> Option<u32> {
        let mut place = 0;
        while place < count {
            let at = slot(end.minus(place + 1));
            let word = self.0[at / 64] << (63 - at % 64);
            if word != 0 {
                let found = place + word.leading_zeros();
                return (found < count).then_some(found);
            }
            place += 1 + (at % 64) as u32;
        }
        None
    }

    /// Takes out those of the `count` PSNs from `from` on.
    pub(super) fn clear_run(&mut self, from: Psn, count: u32) {
        let count = count.min(MOST as u32);
        let mut place = 0;
        while place < count {
            let at = slot(from.plus(place));
            let here = (64 - at % 64).min((count - place) as usize);
            self.0[at / 64] &= !(u64::MAX >> (64 - here) << (at % 64));
            place += here as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_in_and_come_out_wherever_they_begin() {
        let mut words = [0; WORDS];
        for place in [0, 1, 63, 64, 700, 1023] {
            words[place / 64] |= 1 << (place % 64);
        }
        for from in [0, 1, 63, 64, 1000, 0xff_fff3, 0xff_ffff].map(Psn::new) {
            let set = PsnSet::from_words(from, &words, MOST as u32);
            assert_eq!(set.words(from), words);
            let mut slots: Vec<usize> = [0, 1, 63, 64, 700, 1023].map(|p| slot(from.plus(p))).into();
            slots.sort_unstable();
            assert_eq!(set.slots().collect::<Vec<_>>(), slots);
            let few = PsnSet::from_words(from, &words, 64);
            let kept = [few.has(from.plus(63)), few.has(from.plus(64)), few.has(from.plus(700))];
            assert_eq!(kept, [true, false, false]);
            assert!(PsnSet::from_words(from, &words, 0).is_empty());
            assert_eq!(set.first(from.plus(2), 1000), Some(61));
            assert_eq!(set.without(&few).slots().count(), 3);
            // From behind, from wherever one looks.
            for (end, count, last) in
                [(1024, 1024, Some(0)), (1023, 1023, Some(322)), (700, 635, None), (700, 636, Some(635))]
            {
                assert_eq!(set.last(from.plus(end), count), last, "{count} before {end}");
            }
            for (begin, count, left) in
                [(0, 1024, 0), (1, 1, 5), (2, 61, 6), (2, 62, 5), (63, 638, 3), (64, 960, 3)]
            {
                let mut some = set;
                some.clear_run(from.plus(begin), count);
                assert_eq!(some.slots().count(), left, "{count} from {begin} on");
            }
        }
    }
}
