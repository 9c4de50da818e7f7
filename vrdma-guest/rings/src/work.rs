//! What send, receive and shared receive queues have in common, guest side.
//!
//! `post*` writes entries that the RNIC does not read yet, `publish` shows all of them by one release store, and
//! `complete` frees entries that the RNIC has read. An entry is written only when its index is less than a whole ring ahead of what has
//! been freed, so the RNIC is done with what is overwritten.

use core::fmt;
use core::mem::offset_of;

use vrdma_abi::ring::WorkHeader;

use crate::geometry::{Geometry, GeometryError};
use crate::memory::SharedMemory;

const PRODUCER: usize = offset_of!(WorkHeader, producer);
const TAKEN: usize = offset_of!(WorkHeader, taken);

/// Why a work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// All entries are in use.
    Full,
    /// More scatter/gather entries than fit.
    TooManySges,
    /// More inline data than fits.
    InlineTooLong,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue is full",
            Self::TooManySges => "more scatter/gather entries than an entry of the queue holds",
            Self::InlineTooLong => "more inline data than an entry of the queue holds",
        })
    }
}

impl core::error::Error for PostError {}

/// Memory, shape and indexes of a queue.
#[derive(Debug)]
pub(crate) struct WorkRing<M> {
    pub(crate) memory: M,
    geometry: Geometry,
    /// Index of the next entry to write; `published` has reached the header.
    pub(crate) producer: u32,
    pub(crate) published: u32,
    /// Entries below this index are free again.
    pub(crate) consumer: u32,
    /// So many entries may be in use at once.
    pub(crate) limit: u32,
}

impl<M: SharedMemory> WorkRing<M> {
    pub(crate) fn new(memory: M, entries: u32, stride_shift: u8) -> Result<Self, GeometryError> {
        let geometry = Geometry::new(entries, stride_shift, memory.len())?;
        Ok(Self { memory, geometry, producer: 0, published: 0, consumer: 0, limit: entries })
    }

    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.limit.saturating_sub(self.pending())
    }

    /// Entries that are in use.
    #[inline]
    pub(crate) fn pending(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer)
    }

    /// Entries that there are.
    #[inline]
    pub(crate) fn entries(&self) -> u32 {
        self.geometry.entries()
    }

    /// Bytes of an entry.
    #[inline]
    pub(crate) fn stride(&self) -> usize {
        self.geometry.stride()
    }

    /// Offset of the next entry to write.
    #[inline]
    pub(crate) fn next(&self) -> Result<usize, PostError> {
        if self.free() == 0 { Err(PostError::Full) } else { Ok(self.geometry.offset(self.producer)) }
    }

    #[inline]
    pub(crate) fn advance(&mut self) {
        self.producer = self.producer.wrapping_add(1);
    }

    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let news = self.published != self.producer;
        if news {
            self.memory.store_release(PRODUCER, self.producer);
            self.published = self.producer;
        }
        news
    }

    /// Takes back what has not been published.
    pub(crate) fn rollback(&mut self) {
        self.producer = self.published;
    }

    /// Moves the consumer forward, never back and never past what was published: completions of one queue may be
    /// taken from two completion queues or by two threads, so an older one may be told after a newer one.
    #[inline]
    pub(crate) fn complete(&mut self, consumer: u32) {
        let ahead = consumer.wrapping_sub(self.consumer);
        if ahead <= self.published.wrapping_sub(self.consumer) {
            self.consumer = consumer;
        }
    }

    /// Frees what the RNIC has taken from a shared receive queue. It copies an entry before it counts it as taken.
    pub(crate) fn reclaim(&mut self) {
        let taken = self.memory.load_acquire(TAKEN);
        self.complete(taken);
    }

    pub(crate) fn reset(&mut self) {
        (self.producer, self.published, self.consumer) = (0, 0, 0);
        self.memory.store_release(PRODUCER, 0);
    }
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
