//! Which parts of a scatter/gather list a chunk takes.

/// A place in a scatter/gather list. Chunks are cut one after the other, so that no list is searched from its start for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    index: usize,
    skip: u32,
}

/// A part of one entry of a scatter/gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The entry's place in the list.
    pub index: usize,
    /// Bytes of the entry before the piece.
    pub skip: u32,
    /// Bytes of the piece; never 0.
    pub bytes: u32,
}

impl Cursor {
    /// The next piece of at most `most` bytes of a list whose entry `i` has `length(i)` bytes, and moves past it. `None` at the end of the
    /// list, and when `most` is 0.
    #[inline]
    pub fn next(&mut self, most: u32, length: impl Fn(usize) -> Option<u32>) -> Option<Piece> {
        if most == 0 {
            return None;
        }
        loop {
            let left = length(self.index)? - self.skip;
            let piece = Piece { index: self.index, skip: self.skip, bytes: left.min(most) };
            if left > most {
                self.skip += most;
                return Some(piece);
            }
            (self.index, self.skip) = (self.index + 1, 0);
            if left > 0 {
                return Some(piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;

    proptest! {
        #[test]
        fn chunks_take_every_byte_of_the_list_once_and_in_order(
            lengths in prop::collection::vec(0u32..40, 0..12),
            chunk in 1u32..50,
        ) {
            let bytes = lengths.iter().enumerate().flat_map(|(i, n)| (0..*n).map(move |at| (i, at)));
            let mut cursor = Cursor::default();
            let mut taken = Vec::new();
            let total: u32 = lengths.iter().sum();
            let mut at = 0;
            while at < total {
                let end = total.min(at + chunk);
                while let Some(piece) = cursor.next(end - at, |i| lengths.get(i).copied()) {
                    prop_assert!(piece.bytes > 0);
                    taken.extend((piece.skip..piece.skip + piece.bytes).map(|at| (piece.index, at)));
                    at += piece.bytes;
                }
                prop_assert_eq!(at, end);
            }
            prop_assert_eq!(taken, bytes.collect::<Vec<_>>());
            prop_assert_eq!(cursor.next(1, |i| lengths.get(i).copied()), None);
        }
    }
}
