//! The chunk ring of a queue pair with several paths, guest side.
//!
//! Its entries are those of a send queue. They become free as in a shared receive queue: the RNIC stores in the ring's header how many chunks,
//! counted from the first, are done.

use core::mem::offset_of;

use vrdma_abi::ring::{Sge, WorkHeader};

use crate::geometry::GeometryError;
use crate::memory::SharedMemory;
use crate::send::{SendRequest, SendRing};
use crate::work::PostError;

const PATHS: usize = offset_of!(WorkHeader, paths);
const MOST_PATHS: usize = offset_of!(WorkHeader, most_paths);
const SPLITS: usize = offset_of!(WorkHeader, splits);

/// The guest's side of a chunk ring.
///
/// What is published here must be followed by a mark of the queue pair's doorbell, as what is published in its send queue; one mark serves both.
#[derive(Debug)]
pub struct ChunkRing<M>(SendRing<M>);

impl<M: SharedMemory> ChunkRing<M> {
    /// A ring of `entries` entries, `1 << stride_shift` bytes apart, in zeroed memory that begins with its header.
    pub fn new(memory: M, entries: u32, stride_shift: u8) -> Result<Self, GeometryError> {
        Ok(Self(SendRing::new(memory, entries, stride_shift)?))
    }

    /// How many paths the queue pair uses: 0 before RTR. With 1 nothing is to be posted here.
    pub fn paths(&self) -> u32 {
        self.0.0.memory.load_acquire(PATHS)
    }

    /// What can be split besides what always can (SPLIT_), once [`paths`](Self::paths) is not 0.
    pub fn splits(&self) -> u32 {
        self.0.0.memory.load_acquire(SPLITS)
    }

    /// Of the paths that there are, no more than so many are to carry chunks, from the next RTR on; 0: as many as there are.
    pub fn limit_paths(&mut self, most: u32) {
        self.0.0.memory.store_release(MOST_PATHS, most);
    }

    /// Writes a chunk. The RNIC sees it after [`publish`](Self::publish).
    #[inline]
    pub fn post(&mut self, request: &SendRequest, sges: &[Sge]) -> Result<(), PostError> {
        if self.0.free() == 0 {
            self.0.0.reclaim();
        }
        self.0.post(request, sges)
    }

    /// Shows all posted chunks to the RNIC. Tells whether there were new ones; then the doorbell must be marked.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.0.publish()
    }

    /// Takes back all chunks that have not been published.
    pub fn rollback(&mut self) {
        self.0.rollback();
    }

    /// Index of the chunk that is posted next.
    #[inline]
    pub fn producer(&self) -> u32 {
        self.0.producer()
    }

    /// Index of the first chunk that is not done.
    #[inline]
    pub fn done(&mut self) -> u32 {
        self.0.0.reclaim();
        self.0.0.consumer
    }

    /// Chunks that can be posted now.
    #[inline]
    pub fn free(&mut self) -> u32 {
        self.0.0.reclaim();
        self.0.free()
    }

    /// Empties the ring, after the RNIC has moved its QP to RESET. The number of paths is the RNIC's to store, at the next RTR.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_memory::Buffer;
    use vrdma_abi::ring::SEND_OP_RDMA_WRITE;

    const TAKEN: usize = offset_of!(WorkHeader, taken);

    #[test]
    fn chunks_become_free_as_the_rnic_says() {
        let buffer = Buffer::new(4096);
        let memory = buffer.mapping();
        let mut ring = ChunkRing::new(buffer.mapping(), 4, 6).unwrap();
        let chunk = SendRequest { opcode: SEND_OP_RDMA_WRITE, ..SendRequest::default() };
        (0..4).for_each(|_| ring.post(&chunk, &[]).unwrap());
        assert_eq!(ring.post(&chunk, &[]), Err(PostError::Full));
        assert!(ring.publish() && !ring.publish());
        memory.store_release(TAKEN, 3);
        assert_eq!((ring.done(), ring.producer(), ring.free()), (3, 4, 3));
        ring.post(&chunk, &[]).unwrap();
        // What the RNIC cannot have done, it has not done.
        memory.store_release(TAKEN, 9);
        assert_eq!(ring.done(), 3);
        ring.rollback();
        assert_eq!(ring.producer(), 4);
    }

    #[test]
    fn the_number_of_paths_is_the_rnics() {
        let buffer = Buffer::new(4096);
        let memory = buffer.mapping();
        let mut ring = ChunkRing::new(buffer.mapping(), 4, 6).unwrap();
        assert_eq!(ring.paths(), 0);
        memory.store_release(SPLITS, 1);
        memory.store_release(PATHS, 4);
        assert_eq!(ring.splits(), 1);
        ring.reset();
        assert_eq!(ring.paths(), 4);
        ring.limit_paths(2);
        assert_eq!((memory.load_acquire(MOST_PATHS), ring.paths()), (2, 4));
    }
}
