//! Large messages as chunks of a queue pair's group.
//!
//! # What the RNIC does
//!
//! A group has two send rings. The **spine** is the queue pair's own send queue, and holds the application's requests in order. The
//! **chunk ring** holds chunks, which any path of the group takes when it has room. The RNIC counts the chunk ring's *completed prefix*: all
//! chunks below that index are done. A large message is
//!
//! 1. chunks, in the chunk ring: [`Split`] tells them one after the other;
//! 2. a WAIT in the spine: it goes on when the completed prefix has reached [`Split::wait`];
//! 3. the [`tail`](Split::tail) in the spine, right behind the WAIT: the message's last bytes, as an ordinary request with the application's identifier
//!    and flags.
//!
//! So completions come in order without a line of code that joins them, the last byte lands last, and a queue pair's requests behind the
//! message see all of it. The chunk ring must be published before the spine.
//!
//! # What chunks wait for
//!
//! What stands in the spine is in order anyway. A chunk may overtake, and must not be seen to (IBTA Vol 1 §9.5, §10.8.3.3). It waits for
//!
//! - requests that were posted before it and are not split: all of them, since a peer may look at memory at any time and conclude from a
//!   small WRITE how far a large one behind it has come;
//! - chunks and tails of earlier messages whose target or source in the peer's memory has bytes in common with its own; a READ also for those whose
//!   local memory has, because it overwrites it. Where the keys differ, addresses say nothing, and the chunk waits for the whole message.
//!   Receives of SENDs have nothing in common with anything;
//! - with a fence, READs and atomics before it.
//!
//! It waits for nothing else: chunks of messages that do not touch each other fill all paths together. All waits look back in the order of
//! posting, so that none can wait for ever for a chunk that waits for it.
//!
//! At most [`OUTSTANDING`] messages are remembered. When there are more, the oldest is forgotten, and all that are split from then on wait for it.

pub use crate::message::{Kind, Message, Place};
use crate::order::{Conflicts, OUTSTANDING_MAX, Outstanding, Table};

/// How many split messages are kept apart; see the module's text.
pub const OUTSTANDING: usize = OUTSTANDING_MAX;

/// Chunks of this part of a message are large enough for what each of them costs, however short the message is.
const PAYS_AS: u32 = 12;
/// So are chunks of so many times the shortest.
const PAYS_FROM: u32 = 5;

/// What is split, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages of fewer bytes are not split; at least 2.
    pub threshold_bytes: u32,
    /// Chunks have at least `1 << chunk_shift_min` bytes, save the last of a message; at most 28. As each chunk costs the RNIC something, this is for the shortest messages:
    /// longer ones have chunks of a twelfth at least, or of `5 << chunk_shift_min` bytes.
    pub chunk_shift_min: u8,
    /// Chunks have at most `1 << chunk_shift_max` bytes, unless the chunk ring has room for fewer than that makes; at most 31.
    pub chunk_shift_max: u8,
    /// Between these bounds, a message is cut into so many equal chunks for each path, or fewer; not 0. The more, the sooner all paths of unequal rates come to
    /// an end together.
    pub chunks_per_path: u32,
    /// The tail has at most so many bytes, a power of two.
    pub tail_bytes: u32,
    /// Entries of the chunk ring.
    pub chunk_entries: u32,
}

impl Limits {
    /// For a chunk ring of `chunk_entries`: chunks of 16 KiB to 256 KiB of messages from 128 KiB, of 80 KiB and more of those from a MiB; tails of at most 4 KiB.
    pub const fn new(chunk_entries: u32) -> Self {
        Self {
            threshold_bytes: 128 << 10,
            chunk_shift_min: 14,
            chunk_shift_max: 18,
            chunks_per_path: 4,
            tail_bytes: 4 << 10,
            chunk_entries,
        }
    }
}

/// How far the rings have come, as far as is known when a message is posted: it may have been a while ago. Indexes are free-running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Index of the spine's next entry to be written.
    pub spine_next: u32,
    /// The spine's entries below this index are complete.
    pub spine_done: u32,
    /// How many entries can be written to the spine.
    pub spine_free: u32,
    /// The chunk ring's completed prefix.
    pub chunks_done: u32,
    /// Free entries of the chunk ring that are left to later messages.
    pub chunks_kept: u32,
    /// Messages before it that are under way. Where there are many, each has its share of the chunk ring and no more, so that the next will find as many chunks.
    pub messages: u32,
}

/// A part of a message, for the chunk ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes of the message before it.
    pub offset: u32,
    /// Its length.
    pub bytes: u32,
    /// It starts when the completed prefix has reached this index.
    pub after_chunk: Option<u32>,
    /// It starts when the spine's entries below this index are complete.
    pub after_spine: Option<u32>,
}

/// A message's last bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Bytes of the message before it.
    pub offset: u32,
    /// Its length.
    pub bytes: u32,
}

/// Splits the messages of one queue pair.
///
/// - [`connect`](Self::connect) when the number of paths is known, [`reset`](Self::reset) when the queue pair is.
/// - For each request that is posted, in order: [`split`](Self::split) if it [`is_large`](Self::is_large) and of a [`Kind`]. If that
///   gives `None`, and for all other requests, an ordinary entry; and [`plain`](Self::plain), at the latest before the next split.
/// - [`checkpoint`](Self::checkpoint) and [`roll_back`](Self::roll_back) around requests that may be taken back.
///
/// It allocates nothing, and what it does for a message is bounded by its chunks times [`OUTSTANDING`].
#[derive(Clone, Debug)]
pub struct Splitter {
    limits: Limits,
    paths: u32,
    /// What is shorter is not split. With one path, nothing is.
    threshold: u64,
    table: Table,
    at: Checkpoint,
    /// All chunks from now on start after the completed prefix has reached this.
    chunks_before: u32,
    /// All chunks from now on start after the spine's entries below this are complete.
    spine_before: u32,
}

/// A point to which a [`Splitter`] can go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// Index of the chunk ring's next entry.
    chunk_next: u32,
    /// The spine's index after the newest tail. If the next entry has another one, requests that are not split stand between.
    spine_next: u32,
    /// The spine's index after the newest tail of a READ.
    read_end: u32,
    /// How many requests took a receive.
    receives: u32,
    /// How many messages the table has seen.
    messages: u32,
}

impl Splitter {
    /// For a queue pair with one path, until [`connect`](Self::connect) says otherwise.
    pub const fn new(limits: Limits) -> Self {
        assert!(limits.threshold_bytes >= 2 && limits.chunks_per_path > 0);
        assert!(limits.chunk_shift_min <= limits.chunk_shift_max && limits.chunk_shift_max <= 31);
        assert!(limits.chunk_shift_min <= 28);
        assert!(limits.tail_bytes.is_power_of_two());
        let at = Checkpoint { chunk_next: 0, spine_next: 0, read_end: 0, receives: 0, messages: 0 };
        let table = Table::new();
        Self { limits, paths: 1, threshold: u64::MAX, table, at, chunks_before: 0, spine_before: 0 }
    }

    /// The number of paths that the queue pair uses.
    pub fn connect(&mut self, paths: u32) {
        self.paths = paths.max(1);
        self.threshold = if paths > 1 { u64::from(self.limits.threshold_bytes) } else { u64::MAX };
    }

    /// The number of paths that the queue pair uses, as far as is known.
    pub fn paths(&self) -> u32 {
        self.paths
    }

    /// Both rings are empty and start from index 0; one path, until [`connect`](Self::connect).
    pub fn reset(&mut self) {
        *self = Self::new(self.limits);
    }

    /// Messages of so many bytes are to be split if they can be; `u64::MAX` with one path.
    pub fn threshold_bytes(&self) -> u64 {
        self.threshold
    }

    /// Whether a message of this length is to be split if it can be.
    #[inline]
    pub fn is_large(&self, bytes: u64) -> bool {
        bytes >= self.threshold
    }

    /// Requests go into the spine as they are, and take so many receives of the peer.
    #[inline]
    pub fn plain(&mut self, receives: u32) {
        self.at.receives = self.at.receives.wrapping_add(receives);
    }

    /// Index of the chunk ring's next entry: what its producer index is to be.
    #[inline]
    pub fn chunk_next(&self) -> u32 {
        self.at.chunk_next
    }

    /// Where it stands, for [`roll_back`](Self::roll_back).
    pub fn checkpoint(&self) -> Checkpoint {
        self.at
    }

    /// Takes back all requests since `checkpoint`, none of which has been published.
    pub fn roll_back(&mut self, checkpoint: Checkpoint) {
        self.table.truncate(checkpoint.messages);
        self.at = checkpoint;
        // What was forgotten since stays so, and is waited for; but nothing may wait for what is no longer there.
        self.chunks_before = earlier(self.chunks_before, checkpoint.chunk_next);
        self.spine_before = earlier(self.spine_before, checkpoint.spine_next);
    }

    /// Splits a message, whose chunks, WAIT and tail must all be posted then. `None` if it is to be posted as it is: it is too
    /// short, or the rings have no room.
    pub fn split(&mut self, message: &Message, progress: Progress) -> Option<Split<'_>> {
        let Progress { spine_next, spine_done, spine_free, chunks_done, chunks_kept, messages } = progress;
        if !self.is_large(u64::from(message.bytes)) || spine_free < 2 {
            return None;
        }
        let body = (message.bytes - 1) & !(self.limits.tail_bytes - 1);
        let used = self.at.chunk_next.wrapping_sub(chunks_done).saturating_add(chunks_kept);
        let share = (self.limits.chunk_entries / messages.saturating_add(1)).max(self.paths);
        let free = self.limits.chunk_entries.saturating_sub(used).min(share);
        let chunk = self.chunk_bytes(body, free)?;

        let chunk_next = self.at.chunk_next;
        let chunk_pending = |index: u32| is_pending(index, chunks_done, chunk_next);
        let spine_pending = |index: u32| is_pending(index, spine_done, spine_next);

        self.table.retire(|old| !chunk_pending(old.chunk_end()) && !spine_pending(old.spine_end));
        if let Some(oldest) = self.table.make_room() {
            self.chunks_before = oldest.chunk_end();
            self.spine_before = later(self.spine_before, oldest.spine_end, spine_next);
        }
        if self.at.spine_next != spine_next {
            self.spine_before = spine_next;
        }
        let spine_before = match message.fence {
            true if spine_pending(self.at.read_end) => later(self.spine_before, self.at.read_end, spine_next),
            _ => self.spine_before,
        };

        let new = Outstanding {
            kind: message.kind,
            remote: message.remote,
            local: message.local,
            bytes: message.bytes,
            body,
            chunk,
            chunk_first: chunk_next,
            spine_end: spine_next.wrapping_add(2),
        };
        let conflicts = self.table.conflicts(&new);
        self.table.push(new);

        let receive = self.at.receives;
        self.at.chunk_next = new.chunk_end();
        self.at.spine_next = new.spine_end;
        self.at.messages = self.at.messages.wrapping_add(1);
        self.at.receives = receive.wrapping_add(u32::from(message.kind.takes_receive()));
        if message.kind == Kind::Read {
            self.at.read_end = new.spine_end;
        }
        Some(Split {
            table: &self.table,
            new,
            conflicts,
            after_chunk: chunk_pending(self.chunks_before).then_some(self.chunks_before),
            after_spine: spine_pending(spine_before).then_some(spine_before),
            progress,
            receive,
            at: 0,
        })
    }

    /// Chunks of how many bytes, for a body of so many and so many free entries: fewer than paths if need be, as messages behind it
    /// must not wait for one that is whole. `None` if there are none.
    fn chunk_bytes(&self, body: u32, free: u32) -> Option<u32> {
        if body == 0 || free == 0 {
            return None;
        }
        let Limits { chunk_shift_min, chunk_shift_max, chunks_per_path, tail_bytes, .. } = self.limits;
        let (least, most) = (1 << chunk_shift_min, 1 << chunk_shift_max);
        let pays = (body / PAYS_AS).clamp(least, PAYS_FROM * least);
        let each = (body / self.paths / pays).clamp(1, chunks_per_path);
        // Chunks begin where packets do.
        let step = tail_bytes.min(least);
        let wanted = body.div_ceil(self.paths.saturating_mul(each)).next_multiple_of(step).clamp(least, most);
        // The body is a multiple of the step, so that this is no longer than the body.
        Some(wanted.max(body.div_ceil(free).next_multiple_of(step)))
    }
}

/// A message that is being split: tells its chunks, which go into the chunk ring in this order.
#[derive(Debug)]
pub struct Split<'a> {
    table: &'a Table,
    new: Outstanding,
    conflicts: Conflicts,
    after_chunk: Option<u32>,
    after_spine: Option<u32>,
    progress: Progress,
    receive: u32,
    at: u32,
}

impl Split<'_> {
    /// The completed prefix that the WAIT waits for.
    #[inline]
    pub fn wait(&self) -> u32 {
        self.new.chunk_end()
    }

    /// The last bytes.
    #[inline]
    pub fn tail(&self) -> Tail {
        Tail { offset: self.new.body, bytes: self.new.bytes - self.new.body }
    }

    /// Which of the peer's receives a SEND is for, counted from 0 when the queue pair was reset.
    #[inline]
    pub fn receive(&self) -> u32 {
        self.receive
    }
}

impl Iterator for Split<'_> {
    type Item = Chunk;

    #[inline]
    fn next(&mut self) -> Option<Chunk> {
        if self.at == self.new.body {
            return None;
        }
        let offset = self.at;
        let bytes = (self.new.body - offset).min(self.new.chunk);
        self.at = offset + bytes;
        let (chunk, spine) = self.table.waits(self.conflicts, &self.new, offset, bytes);
        let Progress { spine_next, spine_done, chunks_done, .. } = self.progress;
        let chunk = chunk.filter(|index| is_pending(*index, chunks_done, self.new.chunk_first));
        let spine = spine.filter(|index| is_pending(*index, spine_done, spine_next));
        // What is remembered is newer than what is forgotten, but requests that are not split may be newer still.
        let after_spine = match (spine, self.after_spine) {
            (Some(a), Some(b)) => Some(later(a, b, spine_next)),
            (a, b) => a.or(b),
        };
        Some(Chunk { offset, bytes, after_chunk: chunk.or(self.after_chunk), after_spine })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.new.body - self.at).div_ceil(self.new.chunk) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Split<'_> {}

/// Whether the entries below `index` may not all be complete, when those below `done` are and the next is `next`. What is too long ago to
/// tell is complete.
#[inline]
fn is_pending(index: u32, done: u32, next: u32) -> bool {
    next.wrapping_sub(index) < next.wrapping_sub(done)
}

/// The later of two indexes, neither of which is after `now`.
#[inline]
fn later(a: u32, b: u32, now: u32) -> u32 {
    if now.wrapping_sub(a) < now.wrapping_sub(b) { a } else { b }
}

/// The earlier of two indexes that are less than half of the numbers apart.
#[inline]
fn earlier(a: u32, b: u32) -> u32 {
    if (a.wrapping_sub(b) as i32) < 0 { a } else { b }
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
