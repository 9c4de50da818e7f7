//! Split messages that may be under way, and what of them a later one must wait for.

use crate::message::{Kind, Place};

/// Entries of the table. Bits of [`Mask`], so no more than 32.
pub(crate) const OUTSTANDING_MAX: usize = 16;

/// A set of messages: bit `i` is the one that was split `i` messages before the newest.
type Mask = u32;

/// A split message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outstanding {
    pub kind: Kind,
    pub remote: Place,
    pub local: Option<Place>,
    /// Length of the message.
    pub bytes: u32,
    /// Bytes that are in chunks.
    pub body: u32,
    /// Bytes of each chunk, save the last; not 0.
    pub chunk: u32,
    /// Index of its first chunk.
    pub chunk_first: u32,
    /// The spine's index after its tail.
    pub spine_end: u32,
}

/// What of a message must be waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    /// So many of its chunks, from the first one.
    chunks: u32,
    tail: bool,
}

impl Share {
    fn or(self, other: Self) -> Self {
        Self { chunks: self.chunks.max(other.chunks), tail: self.tail || other.tail }
    }
}

impl Outstanding {
    const EMPTY: Self = Self {
        kind: Kind::Send,
        remote: Place { key: 0, addr: 0 },
        local: None,
        bytes: 0,
        body: 0,
        chunk: 1,
        chunk_first: 0,
        spine_end: 0,
    };

    /// Index after its last chunk.
    #[inline]
    pub fn chunk_end(&self) -> u32 {
        self.chunk_first.wrapping_add(self.chunks())
    }

    #[inline]
    fn chunks(&self) -> u32 {
        self.body.div_ceil(self.chunk)
    }

    /// What of this message `bytes` bytes from `offset` of a later one must wait for.
    #[inline]
    fn share(&self, new: &Self, offset: u32, bytes: u32) -> Share {
        let mut share = Share::default();
        if new.kind != Kind::Send && self.kind != Kind::Send {
            share = self.overlap(Some(self.remote), Some(new.remote), offset, bytes);
        }
        if new.kind == Kind::Read {
            share = share.or(self.overlap(self.local, new.local, offset, bytes));
        }
        share
    }

    /// What of this message, which begins at `own`, lies in `bytes` bytes from `offset` of one that begins at `other`. All of it may when
    /// a place is not known, or the keys differ: two regions can name the same memory by different addresses.
    #[inline]
    fn overlap(&self, own: Option<Place>, other: Option<Place>, offset: u32, bytes: u32) -> Share {
        let (Some(own), Some(other)) = (own, other) else { return self.all() };
        if own.key != other.key {
            return self.all();
        }
        // Memory that reaches beyond the last address is nobody's: its requests fail, in whichever order.
        let from = (other.addr.wrapping_sub(own.addr) as i64).saturating_add(i64::from(offset));
        let to = from.saturating_add(i64::from(bytes));
        if to <= 0 || from >= i64::from(self.bytes) {
            return Share::default();
        }
        let body = i64::from(self.body);
        let chunks = if from < body { ((to.min(body) - 1) / i64::from(self.chunk)) as u32 + 1 } else { 0 };
        Share { chunks, tail: to > body }
    }

    fn all(&self) -> Share {
        Share { chunks: self.chunks(), tail: true }
    }
}

/// Of which messages a new one may have to wait for chunks, and for tails.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conflicts {
    chunks: Mask,
    tails: Mask,
}

/// The newest messages, oldest first out.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    entries: [Outstanding; OUTSTANDING_MAX],
    /// How many messages there have been; the newest one's place is one less.
    end: u32,
    len: u32,
}

impl Table {
    pub const fn new() -> Self {
        const { assert!(OUTSTANDING_MAX.is_power_of_two() && OUTSTANDING_MAX <= Mask::BITS as usize) };
        Self { entries: [Outstanding::EMPTY; OUTSTANDING_MAX], end: 0, len: 0 }
    }

    /// The message that was split `age` messages before the next one.
    #[inline]
    fn get(&self, age: u32) -> &Outstanding {
        &self.entries[self.end.wrapping_sub(age) as usize % OUTSTANDING_MAX]
    }

    /// Forgets the oldest for which `done` holds.
    pub fn retire(&mut self, done: impl Fn(&Outstanding) -> bool) {
        while self.len > 0 && done(self.get(self.len)) {
            self.len -= 1;
        }
    }

    /// If the table is full, forgets the oldest message, and returns it.
    pub fn make_room(&mut self) -> Option<Outstanding> {
        let oldest = (self.len as usize == OUTSTANDING_MAX).then(|| *self.get(self.len))?;
        self.len -= 1;
        Some(oldest)
    }

    /// Remembers a message, for which there is room.
    pub fn push(&mut self, new: Outstanding) {
        self.entries[self.end as usize % OUTSTANDING_MAX] = new;
        self.end = self.end.wrapping_add(1);
        self.len += 1;
    }

    /// Forgets all messages but the first `end` that there ever were.
    pub fn truncate(&mut self, end: u32) {
        self.len = self.len.saturating_sub(self.end.wrapping_sub(end));
        self.end = end;
    }

    /// Which messages a new one, not yet in the table, has to do with.
    pub fn conflicts(&self, new: &Outstanding) -> Conflicts {
        let mut conflicts = Conflicts::default();
        if new.kind == Kind::Send {
            return conflicts;
        }
        for age in 1..=self.len {
            let share = self.get(age).share(new, 0, new.body);
            conflicts.chunks |= Mask::from(share.chunks > 0) << (age - 1);
            conflicts.tails |= Mask::from(share.tail) << (age - 1);
        }
        conflicts
    }

    /// The completed prefix and the index in the spine that a chunk of `new`, the newest in the table, must wait for. What is newer comes later in
    /// both rings, so that the first of each that is found, from the newest on, covers all others.
    #[inline]
    pub fn waits(
        &self,
        conflicts: Conflicts,
        new: &Outstanding,
        offset: u32,
        bytes: u32,
    ) -> (Option<u32>, Option<u32>) {
        let find = |mut mask: Mask, share: fn(Share, &Outstanding) -> Option<u32>| {
            while mask != 0 {
                // The new message is the newest now.
                let old = self.get(mask.trailing_zeros() + 2);
                if let Some(index) = share(old.share(new, offset, bytes), old) {
                    return Some(index);
                }
                mask &= mask - 1;
            }
            None
        };
        let chunk = find(conflicts.chunks, |share, old| {
            (share.chunks > 0).then(|| old.chunk_first.wrapping_add(share.chunks))
        });
        let spine = find(conflicts.tails, |share, old| share.tail.then_some(old.spine_end));
        (chunk, spine)
    }
}
