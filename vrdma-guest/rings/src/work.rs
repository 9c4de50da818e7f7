//! Send and receive queues, guest side.
//!
//! `post*` writes entries that the RNIC does not read yet, `publish` shows all of them by one release store, and
//! `complete` frees entries up to [`Cqe::consumer`](vrdma_abi::ring::Cqe::consumer) of a completion. An entry is written only when its
//! index is less than a whole ring ahead of what has been freed, so the RNIC is done with what is overwritten.

use core::fmt;
use core::mem::offset_of;

use vrdma_abi::ring::{AtomicSegment, RecvHeader, SEND_INLINE, SendHeader, Sge, WorkHeader};
use zerocopy::IntoBytes;

use crate::geometry::{Geometry, GeometryError};
use crate::memory::SharedMemory;

const PRODUCER: usize = offset_of!(WorkHeader, producer);

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

/// What a send asks for, apart from its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendRequest {
    /// SEND_OP_.
    pub opcode: u8,
    /// SEND_ bits, without SEND_INLINE: the way of posting decides about that.
    pub flags: u8,
    /// Immediate data, as four bytes in the order of the wire; or the key to invalidate.
    pub imm_or_inv: u32,
    /// Returned in the completion.
    pub wr_id: u64,
    /// The peer's address of an RDMA request.
    pub remote_addr: u64,
    /// The peer's key of an RDMA request.
    pub rkey: u32,
    /// The operands; given if and only if the opcode is an atomic.
    pub atomic: Option<AtomicSegment>,
}

impl SendRequest {
    fn header(&self) -> SendHeader {
        SendHeader {
            opcode: self.opcode,
            flags: self.flags & !SEND_INLINE,
            num_sge: 0,
            reserved: 0,
            imm_or_inv: self.imm_or_inv,
            wr_id: self.wr_id,
            remote_addr: self.remote_addr,
            rkey: self.rkey,
            inline_bytes: 0,
        }
    }
}

/// What send and receive queues have in common: memory, shape and indexes.
#[derive(Debug)]
struct WorkRing<M> {
    memory: M,
    geometry: Geometry,
    /// Index of the next entry to write; `published` has reached the header.
    producer: u32,
    published: u32,
    /// Entries below this index are free again.
    consumer: u32,
}

impl<M: SharedMemory> WorkRing<M> {
    fn new(memory: M, entries: u32, stride_shift: u8) -> Result<Self, GeometryError> {
        let geometry = Geometry::new(entries, stride_shift, memory.len())?;
        Ok(Self { memory, geometry, producer: 0, published: 0, consumer: 0 })
    }

    #[inline]
    fn free(&self) -> u32 {
        self.geometry.entries() - self.producer.wrapping_sub(self.consumer)
    }

    /// Offset of the next entry to write.
    #[inline]
    fn next(&self) -> Result<usize, PostError> {
        if self.free() == 0 { Err(PostError::Full) } else { Ok(self.geometry.offset(self.producer)) }
    }

    #[inline]
    fn advance(&mut self) {
        self.producer = self.producer.wrapping_add(1);
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let news = self.published != self.producer;
        if news {
            self.memory.store_release(PRODUCER, self.producer);
            self.published = self.producer;
        }
        news
    }

    /// Moves the consumer forward, never back and never past what was published: completions of one queue may be
    /// taken from two completion queues or by two threads, so an older one may be told after a newer one.
    #[inline]
    fn complete(&mut self, consumer: u32) {
        let ahead = consumer.wrapping_sub(self.consumer);
        if ahead <= self.published.wrapping_sub(self.consumer) {
            self.consumer = consumer;
        }
    }

    fn reset(&mut self) {
        (self.producer, self.published, self.consumer) = (0, 0, 0);
        self.memory.store_release(PRODUCER, 0);
    }
}

/// The guest's side of a send queue.
#[derive(Debug)]
pub struct SendRing<M>(WorkRing<M>);

impl<M: SharedMemory> SendRing<M> {
    /// A queue of `entries` entries, `1 << stride_shift` bytes apart, in zeroed memory that begins with its header.
    pub fn new(memory: M, entries: u32, stride_shift: u8) -> Result<Self, GeometryError> {
        Ok(Self(WorkRing::new(memory, entries, stride_shift)?))
    }

    /// Writes a send whose data is gathered from memory regions. The RNIC sees it after [`publish`](Self::publish).
    #[inline]
    pub fn post(&mut self, request: &SendRequest, sges: &[Sge]) -> Result<(), PostError> {
        let entry = self.0.next()?;
        let data = Self::data_offset(request);
        let num_sge = u8::try_from(sges.len()).map_err(|_| PostError::TooManySges)?;
        if data + sges.as_bytes().len() > self.0.geometry.stride() {
            return Err(PostError::TooManySges);
        }
        let header = SendHeader { num_sge, ..request.header() };
        self.write_head(entry, &header, request);
        self.0.memory.write(entry + data, sges.as_bytes());
        self.0.advance();
        Ok(())
    }

    /// Writes a send whose data is copied into the entry, piece by piece. The RNIC sees it after [`publish`](Self::publish).
    #[inline]
    pub fn post_inline<'a>(
        &mut self,
        request: &SendRequest,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), PostError> {
        let entry = self.0.next()?;
        let data = Self::data_offset(request);
        let room = self.0.geometry.stride() - data;
        let mut filled = 0;
        for piece in pieces {
            if piece.len() > room - filled {
                return Err(PostError::InlineTooLong);
            }
            self.0.memory.write(entry + data + filled, piece);
            filled += piece.len();
        }
        let mut header = request.header();
        header.flags |= SEND_INLINE;
        header.inline_bytes = filled as u32; // at most a stride
        self.write_head(entry, &header, request);
        self.0.advance();
        Ok(())
    }

    /// Shows all posted entries to the RNIC. Tells whether there were new ones; then the doorbell must be marked.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.0.publish()
    }

    /// Frees the entries below `consumer`, as a completion of this queue tells.
    #[inline]
    pub fn complete(&mut self, consumer: u32) {
        self.0.complete(consumer);
    }

    /// Entries that can be posted now.
    #[inline]
    pub fn free(&self) -> u32 {
        self.0.free()
    }

    /// Empties the queue, after the RNIC has moved its QP to RESET.
    pub fn reset(&mut self) {
        self.0.reset();
    }

    #[inline]
    fn data_offset(request: &SendRequest) -> usize {
        SendHeader::SIZE + if request.atomic.is_some() { AtomicSegment::SIZE } else { 0 }
    }

    #[inline]
    fn write_head(&self, entry: usize, header: &SendHeader, request: &SendRequest) {
        self.0.memory.write(entry, header.as_bytes());
        if let Some(atomic) = &request.atomic {
            self.0.memory.write(entry + SendHeader::SIZE, atomic.as_bytes());
        }
    }
}

/// The guest's side of a receive queue.
#[derive(Debug)]
pub struct RecvRing<M>(WorkRing<M>);

impl<M: SharedMemory> RecvRing<M> {
    /// A queue of `entries` entries, `1 << stride_shift` bytes apart, in zeroed memory that begins with its header.
    pub fn new(memory: M, entries: u32, stride_shift: u8) -> Result<Self, GeometryError> {
        Ok(Self(WorkRing::new(memory, entries, stride_shift)?))
    }

    /// Writes a receive. The RNIC sees it after [`publish`](Self::publish).
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let entry = self.0.next()?;
        if RecvHeader::SIZE + sges.as_bytes().len() > self.0.geometry.stride() {
            return Err(PostError::TooManySges);
        }
        let header = RecvHeader { wr_id, num_sge: sges.len() as u32, reserved: 0 };
        self.0.memory.write(entry, header.as_bytes());
        self.0.memory.write(entry + RecvHeader::SIZE, sges.as_bytes());
        self.0.advance();
        Ok(())
    }

    /// Shows all posted entries to the RNIC, which looks for them when it needs them: no doorbell.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.0.publish()
    }

    /// Frees the entries below `consumer`, as a completion of this queue tells.
    #[inline]
    pub fn complete(&mut self, consumer: u32) {
        self.0.complete(consumer);
    }

    /// Entries that can be posted now.
    #[inline]
    pub fn free(&self) -> u32 {
        self.0.free()
    }

    /// Empties the queue, after the RNIC has moved its QP to RESET.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
