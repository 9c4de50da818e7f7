//! Which bytes of a message have come ahead of its end.
//!
//! The length that a receive's completion tells is the peer's claim. A program that believes it must find the message there, and nothing of what was in the
//! memory before: so each byte is steered once, and none is left out.

use std::ops::Range;

/// Bytes of a message, as ranges that touch no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// What has been claimed: first bytes and ends, in order.
    claimed: Vec<(u64, u64)>,
    /// How many of these bytes are there.
    bytes: u64,
}

impl Placed {
    /// How many separate ranges there may be, so that what a peer makes this side keep is bounded. A sender's members have two chunks under way each, so that
    /// there are no more gaps than that.
    pub const MOST_RANGES: usize = 64;

    /// Claims bytes that are about to be placed. Returns whether nobody has claimed any of them before, and there are not too many ranges; if not, nothing has
    /// changed.
    pub fn claim(&mut self, Range { start, end }: Range<u64>) -> bool {
        if start >= end {
            return true;
        }
        let at = self.claimed.partition_point(|range| range.1 < start);
        let joins_left = self.claimed.get(at).is_some_and(|range| range.1 == start);
        let next = at + usize::from(joins_left);
        if self.claimed.get(next).is_some_and(|range| range.0 < end) {
            return false;
        }
        let joins_right = self.claimed.get(next).is_some_and(|range| range.0 == end);
        match (joins_left, joins_right) {
            (false, false) if self.claimed.len() >= Self::MOST_RANGES => return false,
            (false, false) => self.claimed.insert(at, (start, end)),
            (false, true) => self.set(at, |range| range.0 = start),
            (true, false) => self.set(at, |range| range.1 = end),
            (true, true) => {
                let (_, end) = self.claimed.remove(next);
                self.set(at, |range| range.1 = end);
            }
        }
        true
    }

    fn set(&mut self, at: usize, change: impl FnOnce(&mut (u64, u64))) {
        if let Some(range) = self.claimed.get_mut(at) {
            change(range);
        }
    }

    /// So many bytes that have been claimed are there.
    pub fn came(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Forgets everything, and keeps the room.
    pub fn clear(&mut self) {
        self.claimed.clear();
        self.bytes = 0;
    }

    /// Whether nothing has been claimed.
    pub fn is_empty(&self) -> bool {
        self.claimed.is_empty()
    }

    /// Whether all bytes before `end` are there, and none behind them has been claimed.
    pub fn is_all_before(&self, end: u64) -> bool {
        self.bytes == end && self.claimed == [(0, end)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_claimed_once() {
        let mut placed = Placed::default();
        assert!(placed.is_empty() && placed.claim(5..5) && placed.is_empty());
        for range in [10..20, 40..50, 0..10, 30..40, 20..30] {
            assert!(placed.claim(range));
        }
        for range in [0..1, 49..60, 19..21, 0..50, 0..60] {
            assert!(!placed.claim(range));
        }
        assert_eq!(placed.claimed, [(0, 50)]);
        placed.came(30);
        assert!(!placed.is_all_before(50) && !placed.is_all_before(30));
        placed.came(20);
        assert!(placed.is_all_before(50) && !placed.is_all_before(49) && !placed.is_empty());
        assert!(placed.claim(60..70) && !placed.is_all_before(50));
    }

    #[test]
    fn ranges_are_bounded() {
        let mut placed = Placed::default();
        for i in 0..Placed::MOST_RANGES as u64 {
            assert!(placed.claim(2 * i..2 * i + 1));
        }
        assert!(!placed.claim(1000..1001));
        assert!(placed.claim(1..2), "what joins others makes no more of them");
        assert!(placed.claim(1000..1001));
    }

    proptest! {
        /// As a list of all bytes says.
        #[test]
        fn claims_are_those_of_single_bytes(ranges in prop::collection::vec((0u64..60, 0u64..12), 0..30)) {
            let mut placed = Placed::default();
            let mut bytes = [false; 80];
            for (start, len) in ranges {
                let own = &mut bytes[start as usize..(start + len) as usize];
                let is_free = own.iter().all(|taken| !taken);
                prop_assert_eq!(placed.claim(start..start + len), is_free);
                if is_free {
                    own.fill(true);
                    placed.came(len);
                }
                let first_gap = bytes.iter().position(|taken| !taken).unwrap_or(bytes.len());
                let is_whole = bytes[first_gap..].iter().all(|taken| !taken);
                for end in 1..80 {
                    prop_assert_eq!(placed.is_all_before(end), is_whole && end == first_gap as u64);
                }
            }
        }
    }
}
