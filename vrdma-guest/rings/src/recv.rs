//! Receive queues, guest side: those of a QP, and shared ones.
//!
//! They differ in how entries become free. The RNIC reads an entry of a QP's own queue when a message comes, and the completion tells
//! that it is done with it. It copies an entry of a shared queue when a QP takes it, and stores in the ring's header how
//! far it has come; since it knows nothing of the guest's polling, completions say nothing of that.

use vrdma_abi::ring::{RecvHeader, Sge};
use zerocopy::IntoBytes;

use crate::geometry::GeometryError;
use crate::memory::SharedMemory;
use crate::work::{PostError, WorkRing};

/// The guest's side of a receive queue.
#[derive(Debug)]
pub struct RecvRing<M>(pub(crate) WorkRing<M>);

impl<M: SharedMemory> RecvRing<M> {
    /// A queue of `entries` entries, `1 << stride_shift` bytes apart, in zeroed memory that begins with its header.
    pub fn new(memory: M, entries: u32, stride_shift: u8) -> Result<Self, GeometryError> {
        Ok(Self(WorkRing::new(memory, entries, stride_shift)?))
    }

    /// Writes a receive. The RNIC sees it after [`publish`](Self::publish).
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        write(&mut self.0, wr_id, sges)
    }

    /// Shows all posted entries to the RNIC, which looks for them when it needs them: no doorbell.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.0.publish()
    }

    /// Frees the entries below `consumer`, as [`Cqe::consumer`](vrdma_abi::ring::Cqe::consumer) of a completion of this queue tells.
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

/// The guest's side of a shared receive queue.
#[derive(Debug)]
pub struct SharedRecvRing<M>(WorkRing<M>);

impl<M: SharedMemory> SharedRecvRing<M> {
    /// A queue of `entries` entries, `1 << stride_shift` bytes apart, in zeroed memory that begins with its header.
    pub fn new(memory: M, entries: u32, stride_shift: u8) -> Result<Self, GeometryError> {
        Ok(Self(WorkRing::new(memory, entries, stride_shift)?))
    }

    /// Writes a receive. The RNIC sees it after [`publish`](Self::publish).
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if self.0.free() == 0 {
            self.0.reclaim();
        }
        write(&mut self.0, wr_id, sges)
    }

    /// Shows all posted entries to the RNIC, which looks for them when it needs them: no doorbell.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.0.publish()
    }

    /// Entries that can be posted now.
    pub fn free(&mut self) -> u32 {
        self.0.reclaim();
        self.0.free()
    }
}

/// Writes the next entry of either kind of queue.
#[inline]
fn write<M: SharedMemory>(ring: &mut WorkRing<M>, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
    let entry = ring.next()?;
    if RecvHeader::SIZE + sges.as_bytes().len() > ring.stride() {
        return Err(PostError::TooManySges);
    }
    let header = RecvHeader { wr_id, num_sge: sges.len() as u32, reserved: 0 };
    ring.memory.write(entry, header.as_bytes());
    ring.memory.write(entry + RecvHeader::SIZE, sges.as_bytes());
    ring.advance();
    Ok(())
}
