//! Large messages over several paths, behind the back of the application.
//!
//! A queue pair that may use several paths has a chunk ring beside its send queue ([`vrdma_abi::ring`], Multipath). When a large request is posted, its
//! chunks go into the chunk ring; a WAIT for them and the message's end, with the request's identifier and flags, go into the send
//! queue. So completions are those of the application's requests, in their order, and the library need not run until they come.
//!
//! The send queue has room for WAITs beside what the application was promised: each raises the limit of the ring by one while it stands there.

use std::collections::VecDeque;

use mp_core::gather::Cursor;
use mp_core::split::{Checkpoint, Chunk, Kind, Limits, Message, Place, Progress, Splitter};
use vrdma_abi::ring::{
    SEND_AFTER_CHUNK, SEND_AFTER_SQ, SEND_FENCE, SEND_OP_RDMA_READ, SEND_OP_RDMA_WRITE,
    SEND_OP_RDMA_WRITE_IMM, SEND_OP_SEND, SEND_OP_SEND_IMM, SEND_OP_SEND_INV, SEND_OP_STEER, SEND_OP_WAIT,
    SEND_STEERED, SPLIT_WRITE_IMM, STRIDE_SHIFT_MAX, SendHeader, Sge,
};
use vrdma_rings::{ChunkRing, PostError, SendData, SendRequest, SendRing};

use crate::mapped::Mapped;
use crate::offer::Offer;
use crate::qp::SendQueue;

/// Entries of the chunk ring of a queue pair with so many sends and at most so many paths: four for each send and path if these are few, within what many queue
/// pairs can afford. One half is for whatever is large, the other half for those that come behind it, of which each is to find two for each path: one on its way, and one
/// behind it, so that messages for the same place, whose chunks wait for one another, keep all paths busy.
pub fn chunk_entries(max_send_wr: u32, paths: u32) -> u32 {
    let each = (4 * paths.clamp(1, 64)).next_power_of_two().max(8);
    (max_send_wr.clamp(16, 128).next_power_of_two() * each).min(2048)
}

/// How many of so many entries are kept for each send that may come: two for each path, where half of them are enough for that.
fn kept_for_each(chunk_entries: u32, max_requests: u32, paths: u32) -> u32 {
    (chunk_entries / 2 / max_requests.max(1)).clamp(1, 2 * paths.clamp(1, 64))
}

/// What a send queue has for several paths.
pub struct Multipath {
    offer: Offer,
    chunks: ChunkRing<Mapped>,
    splitter: Splitter,
    /// What can be split besides, towards the peer: SPLIT_ bits.
    splits: u32,
    /// Requests that the application may have outstanding.
    max_requests: u32,
    chunk_entries: u32,
    /// WAITs that are not known to be done; oldest first. There are never more than requests, so that it does not grow.
    waits: VecDeque<Wait>,
    /// The sum of what they have of the chunk ring.
    allotted: u32,
    /// Where [`begin`](SendQueue::begin) was called, if something has been split since.
    begun: (Checkpoint, usize),
}

/// What is looked at for every request. It stands in the send queue itself, with several paths and with one, so that a short request takes as long with both.
#[derive(Debug)]
pub struct Watch {
    /// Requests that gather so many bytes may be split.
    split_from_bytes: u64,
    /// Receives that requests take of which the splitter has not been told.
    receives: u32,
    /// Those among them from before [`begin`](SendQueue::begin).
    receives_before: u32,
    /// Nothing has been split since.
    is_at_begin: bool,
    /// There are WAITs that are not known to be done.
    has_waits: bool,
    /// There may be chunks that have not been published.
    has_chunks: bool,
}

impl Default for Watch {
    /// With one path, or none yet.
    fn default() -> Self {
        Self {
            split_from_bytes: u64::MAX,
            receives: 0,
            receives_before: 0,
            is_at_begin: false,
            has_waits: false,
            has_chunks: false,
        }
    }
}

/// A WAIT in the send queue.
struct Wait {
    index: u32,
    /// Entries of the chunk ring that its message has until it is done: its chunks, or those that are kept for each if it has fewer.
    allotted: u32,
}

impl Multipath {
    /// For an empty send queue, where the application may have so many requests, and an empty chunk ring of so many entries.
    pub fn new(
        offer: Offer,
        ring: &mut SendRing<Mapped>,
        max_requests: u32,
        mut chunks: ChunkRing<Mapped>,
        chunk_entries: u32,
    ) -> Self {
        ring.set_limit(max_requests);
        if offer.is_limited {
            chunks.limit_paths(offer.paths);
        }
        Self {
            offer,
            chunks,
            splits: 0,
            splitter: Splitter::new(Limits::new(chunk_entries)),
            max_requests,
            chunk_entries,
            waits: VecDeque::with_capacity(max_requests as usize),
            allotted: 0,
            begun: Default::default(),
        }
    }

    fn reset(&mut self, ring: &mut SendRing<Mapped>) {
        self.chunks.reset();
        self.splitter.reset();
        self.waits.clear();
        self.allotted = 0;
        self.begun = Default::default();
        self.set_limit(ring);
    }

    fn roll_back(&mut self, ring: &mut SendRing<Mapped>) {
        let (checkpoint, waits) = self.begun;
        self.chunks.rollback();
        self.splitter.roll_back(checkpoint);
        for wait in self.waits.drain(waits..) {
            self.allotted -= wait.allotted;
        }
        self.set_limit(ring);
    }

    fn set_limit(&self, ring: &mut SendRing<Mapped>) {
        ring.set_limit(self.max_requests + self.waits.len() as u32); // no more waits than requests
    }

    /// Entries of the send queue became free.
    fn completed(&mut self, ring: &mut SendRing<Mapped>) {
        let pending = ring.producer().wrapping_sub(ring.consumer());
        while let Some(wait) = self.waits.front() {
            if ring.producer().wrapping_sub(wait.index) <= pending {
                break;
            }
            self.allotted -= wait.allotted;
            self.waits.pop_front();
        }
        self.set_limit(ring);
    }

    /// As what a request can be split, if it can.
    fn kind(&self, opcode: u8) -> Option<Kind> {
        match opcode {
            SEND_OP_RDMA_WRITE => Some(Kind::Write),
            SEND_OP_RDMA_READ => Some(Kind::Read),
            SEND_OP_SEND | SEND_OP_SEND_IMM if self.offer.steers => Some(Kind::Send),
            // Other peers would tell the receiver the length of the end alone.
            SEND_OP_RDMA_WRITE_IMM if self.splits & SPLIT_WRITE_IMM != 0 => Some(Kind::WriteImm),
            _ => None,
        }
    }

    /// Posts a large request in parts, if it can be split and the rings have room. What is not posted so must be posted as it is.
    fn split(
        &mut self,
        ring: &mut SendRing<Mapped>,
        request: &SendRequest,
        sges: &[Sge],
    ) -> Result<bool, PostError> {
        let bytes = length(sges);
        let Some(kind) = self.kind(request.opcode) else { return Ok(false) };
        // What is too long fails as a whole.
        let Some(bytes) = u32::try_from(bytes).ok().filter(|bytes| *bytes <= self.offer.max_message_bytes)
        else {
            return Ok(false);
        };
        // What else the application can post must find room, also for chunks. Where it can post more than there is room for, half is kept.
        let Some(others) = ring.free().checked_sub(1) else { return Err(PostError::Full) };
        let chunks_done = self.chunks.done();
        let each = kept_for_each(self.chunk_entries, self.max_requests, self.splitter.paths());
        let under_way = self.splitter.chunk_next().wrapping_sub(chunks_done);
        let others_to_split = self.max_requests.saturating_sub(self.waits.len() as u32 + 1);
        let progress = Progress {
            spine_next: ring.producer(),
            spine_done: ring.consumer(),
            spine_free: ring.unused().saturating_sub(others),
            chunks_done,
            chunks_kept: others_to_split.saturating_mul(each).min(self.chunk_entries / 2)
                + self.allotted.saturating_sub(under_way),
            messages: self.waits.len() as u32, // no more than requests
        };
        let message = Message {
            kind,
            bytes,
            remote: Place { key: request.rkey, addr: request.remote_addr },
            local: only_place(sges),
            fence: request.flags & SEND_FENCE != 0,
        };
        let Some(split) = self.splitter.split(&message, progress) else { return Ok(false) };

        // None of the following fails: the splitter has seen to the room, and a part has no more entries than the whole.
        let (wait, tail, receive) = (split.wait(), split.tail(), split.receive());
        let allotted = (split.len() as u32).max(each);
        let mut data = Cutter::new(sges);
        for chunk in split {
            self.chunks.post(&chunk_request(kind, request, receive, &chunk), data.cut(chunk.bytes))?;
        }
        let waiting =
            SendRequest { opcode: SEND_OP_WAIT, wr_id: request.wr_id, rkey: wait, ..SendRequest::default() };
        self.waits.push_back(Wait { index: progress.spine_next, allotted });
        self.allotted += allotted;
        self.set_limit(ring);
        ring.post(&waiting, &[])?;
        ring.post(&tail_request(kind, request, tail.offset), data.cut(tail.bytes))?;
        Ok(true)
    }
}

fn chunk_request(kind: Kind, request: &SendRequest, receive: u32, chunk: &Chunk) -> SendRequest {
    let (opcode, remote_addr, rkey) = match kind {
        Kind::Write | Kind::WriteImm => (SEND_OP_RDMA_WRITE, at(request, chunk.offset), request.rkey),
        Kind::Read => (SEND_OP_RDMA_READ, at(request, chunk.offset), request.rkey),
        Kind::Send => (SEND_OP_STEER, chunk.offset.into(), receive),
    };
    let flag = |index: Option<u32>, flag| if index.is_some() { flag } else { 0 };
    SendRequest {
        opcode,
        flags: flag(chunk.after_chunk, SEND_AFTER_CHUNK) | flag(chunk.after_spine, SEND_AFTER_SQ),
        imm_or_inv: chunk.after_chunk.unwrap_or(0),
        wr_id: chunk.after_spine.unwrap_or(0).into(),
        remote_addr,
        rkey,
        ..SendRequest::default()
    }
}

fn tail_request(kind: Kind, request: &SendRequest, offset: u32) -> SendRequest {
    match kind {
        Kind::Write => SendRequest { remote_addr: at(request, offset), ..*request },
        Kind::Read | Kind::WriteImm => {
            SendRequest { remote_addr: at(request, offset), before_bytes: offset, ..*request }
        }
        Kind::Send => {
            SendRequest { remote_addr: offset.into(), flags: request.flags | SEND_STEERED, ..*request }
        }
    }
}

/// A place in the peer's memory. What reaches beyond the last address is nobody's, and the RNIC fails it.
fn at(request: &SendRequest, offset: u32) -> u64 {
    request.remote_addr.wrapping_add(offset.into())
}

/// Where the data is, if it is in one piece.
fn only_place(sges: &[Sge]) -> Option<Place> {
    let mut pieces = sges.iter().filter(|sge| sge.length != 0);
    match (pieces.next(), pieces.next()) {
        (Some(sge), None) => Some(Place { key: sge.lkey, addr: sge.addr }),
        _ => None,
    }
}

/// Most scatter/gather entries that an entry of a ring has room for.
const MAX_SGES: usize = ((1 << STRIDE_SHIFT_MAX) - SendHeader::SIZE) / Sge::SIZE;

/// Cuts a scatter/gather list into parts, from its start.
struct Cutter<'a> {
    whole: &'a [Sge],
    cursor: Cursor,
    part: [Sge; MAX_SGES],
}

impl<'a> Cutter<'a> {
    fn new(whole: &'a [Sge]) -> Self {
        Self { whole, cursor: Cursor::default(), part: [Sge::ZERO; MAX_SGES] }
    }

    /// The next `bytes` bytes.
    fn cut(&mut self, bytes: u32) -> &[Sge] {
        let (mut left, mut count) = (bytes, 0);
        for place in &mut self.part {
            let Some(piece) = self.cursor.next(left, |i| self.whole.get(i).map(|sge| sge.length)) else {
                break;
            };
            if let Some(sge) = self.whole.get(piece.index) {
                *place = Sge {
                    addr: sge.addr.wrapping_add(piece.skip.into()),
                    length: piece.bytes,
                    lkey: sge.lkey,
                };
                count += 1;
            }
            left -= piece.bytes;
        }
        &self.part[..count]
    }
}

/// Whether a request consumes a receive of the peer.
#[inline]
fn takes_receive(opcode: u8) -> bool {
    matches!(opcode, SEND_OP_SEND | SEND_OP_SEND_IMM | SEND_OP_SEND_INV | SEND_OP_RDMA_WRITE_IMM)
}

/// Bytes of a list.
#[inline]
fn length(sges: &[Sge]) -> u64 {
    match sges {
        [only] => only.length.into(),
        some => some.iter().map(|sge| u64::from(sge.length)).sum(),
    }
}

/// Posting. With one path, these are the ring's own operations.
impl SendQueue {
    /// Frees the entries below `consumer`.
    #[inline]
    pub fn complete(&mut self, consumer: u32) {
        self.ring.complete(consumer);
        if self.watch.has_waits {
            self.waits_done();
        }
    }

    #[cold]
    fn waits_done(&mut self) {
        if let Some(multipath) = &mut self.multipath {
            multipath.completed(&mut self.ring);
            self.watch.has_waits = !multipath.waits.is_empty();
        }
    }

    /// Posts a request whose data is gathered from memory regions.
    #[inline]
    pub fn post(&mut self, request: &SendRequest, sges: &[Sge]) -> Result<(), PostError> {
        if self.split(request, sges)? {
            return Ok(());
        }
        self.whole(request, |ring| ring.post(request, sges))
    }

    /// Posts a request whose data is copied, piece by piece.
    #[inline]
    pub fn post_inline<'a>(
        &mut self,
        request: &SendRequest,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), PostError> {
        self.whole(request, |ring| ring.post_inline(request, pieces))
    }

    /// Posts a request whose data has been written.
    #[inline]
    pub fn push(&mut self, request: &SendRequest, data: SendData) -> Result<(), PostError> {
        self.whole(request, |ring| ring.push(request, data))
    }

    /// Posts a request in parts. Returns whether it has done so; otherwise it is to be posted as it is.
    #[inline]
    pub fn split(&mut self, request: &SendRequest, sges: &[Sge]) -> Result<bool, PostError> {
        if length(sges) < self.watch.split_from_bytes { Ok(false) } else { self.split_large(request, sges) }
    }

    #[cold]
    fn split_large(&mut self, request: &SendRequest, sges: &[Sge]) -> Result<bool, PostError> {
        let (Some(multipath), watch) = (&mut self.multipath, &mut self.watch) else { return Ok(false) };
        let before = if watch.is_at_begin { watch.receives_before } else { 0 };
        multipath.splitter.plain(before);
        if std::mem::take(&mut watch.is_at_begin) {
            multipath.begun = (multipath.splitter.checkpoint(), multipath.waits.len());
        }
        multipath.splitter.plain(watch.receives.wrapping_sub(before));
        watch.receives = 0;
        (watch.has_waits, watch.has_chunks) = (true, true);
        multipath.split(&mut self.ring, request, sges)
    }

    #[inline]
    fn whole(
        &mut self,
        request: &SendRequest,
        post: impl FnOnce(&mut SendRing<Mapped>) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        post(&mut self.ring)?;
        self.watch.receives = self.watch.receives.wrapping_add(takes_receive(request.opcode).into());
        Ok(())
    }

    /// Shows all posted requests to the RNIC. Tells whether there were new ones; then the doorbell must be marked.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.watch.has_chunks {
            self.publish_chunks();
        }
        self.ring.publish()
    }

    /// Comes first, so that the RNIC finds the chunks that a WAIT names.
    #[cold]
    fn publish_chunks(&mut self) {
        self.watch.has_chunks = false;
        if let Some(multipath) = &mut self.multipath {
            multipath.chunks.publish();
        }
    }

    /// All that is posted from now on may be taken back.
    #[inline]
    pub fn begin(&mut self) {
        self.watch.is_at_begin = true;
        self.watch.receives_before = self.watch.receives;
    }

    /// Takes back what was posted since [`begin`](Self::begin).
    pub fn rollback(&mut self) {
        self.ring.rollback();
        if self.watch.is_at_begin {
            self.watch.receives = self.watch.receives_before;
        } else if let Some(multipath) = &mut self.multipath {
            self.watch.receives = 0;
            multipath.roll_back(&mut self.ring);
        }
    }

    /// The queue pair has moved to RTR: the RNIC has stored how many paths there are.
    pub fn connect(&mut self) {
        if let Some(multipath) = &mut self.multipath {
            multipath.splitter.connect(multipath.chunks.paths());
            multipath.splits = multipath.chunks.splits();
            self.watch.split_from_bytes = multipath.splitter.threshold_bytes();
        }
    }

    /// Starts over, as the RNIC has done.
    pub fn reset(&mut self) {
        self.ring.reset();
        self.watch = Watch::default();
        if let Some(multipath) = &mut self.multipath {
            multipath.reset(&mut self.ring);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_rings_are_within_bounds() {
        let of = |paths| [1, 16, 17, 100, 16384].map(|sends| chunk_entries(sends, paths));
        assert_eq!((of(2), of(0)), ([128, 128, 256, 1024, 1024], of(2)));
        assert_eq!([3, 4].map(of), [[256, 256, 512, 2048, 2048]; 2]);
        assert_eq!((of(8), of(16)), ([512, 512, 1024, 2048, 2048], [1024, 1024, 2048, 2048, 2048]));
        assert_eq!(chunk_entries(u32::MAX, u32::MAX), 2048);
    }

    #[test]
    fn each_send_finds_entries_in_half_of_a_chunk_ring() {
        for paths in 1..=16 {
            for sends in [1, 2, 15, 16, 17, 64, 100, 128, 129, 500, 512, 1024] {
                let entries = chunk_entries(sends, paths);
                let each = kept_for_each(entries, sends, paths);
                assert!(
                    (1..=2 * paths).contains(&each) && each * sends <= entries / 2 || each == 1,
                    "{sends} {paths}"
                );
                assert!(each == 2 * paths || sends > 32, "{sends} sends, {paths} paths: {each}");
            }
        }
    }

    #[test]
    fn a_list_is_cut_where_its_parts_end() {
        let sge = |addr, length, lkey| Sge { addr, length, lkey };
        let whole = [sge(100, 10, 1), sge(0, 0, 2), sge(u64::MAX, 5, 3), sge(50, 20, 4)];
        let mut cutter = Cutter::new(&whole);
        assert_eq!(cutter.cut(4), [sge(100, 4, 1)]);
        assert_eq!(cutter.cut(7), [sge(104, 6, 1), sge(u64::MAX, 1, 3)]);
        assert_eq!(cutter.cut(24), [sge(0, 4, 3), sge(50, 20, 4)]);
        assert_eq!(cutter.cut(1), []);
        assert_eq!((only_place(&whole), only_place(&whole[..2])), (None, Some(Place { key: 1, addr: 100 })));
    }
}
