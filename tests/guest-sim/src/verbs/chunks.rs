//! The chunk rings of queue pairs with several paths.

use std::sync::{Arc, Mutex};

use vrdma_abi::ring::{SEND_OP_WAIT, Sge};
use vrdma_rings::{ChunkRing, PostError, SendRequest};

use super::{Context, Qp, SharedRing, shared};
use crate::memory::Mapping;

/// A chunk ring.
pub(super) struct Chunks {
    pub(super) ring: Mutex<ChunkRing<SharedRing>>,
    pub(super) memory: Arc<Mapping>,
    pub(super) entries: u32,
}

impl Chunks {
    pub(super) fn new(ctx: &Arc<Context>, wanted: u32, stride_shift: u8) -> Self {
        let entries = wanted.next_power_of_two();
        let memory = ctx.ring(entries, stride_shift);
        let ring = ChunkRing::new(shared(&memory), entries, stride_shift).expect("the ring fits its pages");
        Chunks { ring: Mutex::new(ring), memory: Arc::new(memory), entries }
    }
}

impl Qp {
    /// How many paths it uses; 0 before RTR.
    ///
    /// # Panics
    /// When it has no chunk ring.
    #[track_caller]
    pub fn paths(&self) -> u32 {
        self.chunks().ring.lock().unwrap().paths()
    }

    /// What can be split besides WRITEs, READs and SENDs, from RTR on (SPLIT_).
    ///
    /// # Panics
    /// When it has no chunk ring.
    #[track_caller]
    pub fn splits(&self) -> u32 {
        self.chunks().ring.lock().unwrap().splits()
    }

    /// From the next RTR on, its chunks take no more than so many paths.
    ///
    /// # Panics
    /// When it has no chunk ring.
    #[track_caller]
    pub fn limit_paths(&self, most: u32) {
        self.chunks().ring.lock().unwrap().limit_paths(most);
    }

    /// Posts a chunk, without a doorbell; the index behind it. What is posted to the send queue next rings.
    ///
    /// # Panics
    /// When it has no chunk ring.
    #[track_caller]
    pub fn post_chunk(&self, request: &SendRequest, sges: &[Sge]) -> Result<u32, PostError> {
        let mut ring = self.chunks().ring.lock().unwrap();
        ring.post(request, sges)?;
        ring.publish();
        Ok(ring.producer())
    }

    /// Posts an entry to the send queue that waits for the chunks below `until`.
    pub fn post_wait(&self, wr_id: u64, until: u32) -> Result<(), PostError> {
        let wait = SendRequest { opcode: SEND_OP_WAIT, wr_id, rkey: until, ..SendRequest::default() };
        self.post_send(&wait, &[])
    }

    /// Index of the next chunk, and of the first that is not done.
    ///
    /// # Panics
    /// When it has no chunk ring.
    #[track_caller]
    pub fn chunk_indexes(&self) -> (u32, u32) {
        let mut ring = self.chunks().ring.lock().unwrap();
        (ring.producer(), ring.done())
    }

    /// The chunk ring's memory, for tests that spoil it.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn chunk_memory(&self) -> &Mapping {
        &self.chunks().memory
    }

    /// Index of the entry of the send queue that is posted next.
    ///
    /// # Panics
    /// When it has none.
    #[track_caller]
    pub fn send_index(&self) -> u32 {
        self.sends().queue.lock().unwrap().ring.producer()
    }

    #[track_caller]
    fn chunks(&self) -> &Chunks {
        self.chunks.as_ref().expect("a queue pair with a chunk ring")
    }
}
