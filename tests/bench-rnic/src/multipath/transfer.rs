//! Messages between two guests, split as a guest's library splits them.

use std::time::{Duration, Instant};

use bench_record::Res;
use guest_sim::suite::{Conn, Pair, Placement, Setup, Side, World};
use guest_sim::verbs::{ConnectAttr, Mr, QpCaps, wr};
use mp_core::split::{Chunk, Kind, Limits, Message, Place, Progress, Splitter, Tail};
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::stream::MTU_4096;

/// Entries of a chunk ring, as the provider has them for queue pairs with many requests.
const CHUNKS: u32 = 1024;

/// Nothing that is measured takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Two guests, and memory that messages go from and to.
pub struct Ends<'w> {
    pair: Pair<'w>,
    paths: u8,
    here: Mr,
    there: Mr,
}

impl<'w> Ends<'w> {
    /// The guests of two vNICs with so many paths each, with `len` bytes of memory each.
    pub fn open(world: &'w World, a: &str, b: &str, paths: u8, len: usize) -> Res<Self> {
        let placement = Placement::Remote;
        let pair = Pair { world, placement, a: Side::open(world, a), b: Side::open(world, b) };
        let (here, there) = (pair.a.buffer(len), pair.b.buffer(len));
        here.fill(0, len, 0x5a);
        Ok(Ends { pair, paths, here, there })
    }

    /// A connection over all of their paths.
    pub fn connect(&self) -> Res<Transfer<'_>> {
        let chunks = if self.paths > 1 { CHUNKS } else { 0 };
        let attr = ConnectAttr { path_mtu: MTU_4096, ..ConnectAttr::default() };
        let setup = Setup { a: attr.clone(), b: attr, ..Setup::caps(QpCaps { chunks, ..QpCaps::default() }) };
        let conn = self.pair.connect_with(&setup);
        let mut splitter = Splitter::new(Limits::new(CHUNKS));
        if self.paths > 1 {
            let paths = conn.a.paths();
            if paths != u32::from(self.paths) {
                return Err(format!("the connection has {paths} paths, not {}", self.paths).into());
            }
            splitter.connect(paths);
        }
        Ok(Transfer { ends: self, conn, splitter, spine_done: 0 })
    }

    /// Whether all of the first `len` bytes have arrived.
    pub fn has_arrived(&self, len: usize) -> bool {
        self.there.read(0, len).iter().all(|byte| *byte == 0x5a)
    }

    /// As if the first `len` bytes had not arrived.
    pub fn forget(&self, len: usize) {
        self.there.fill(0, len, 0);
    }

    /// Ends both opens, and all that is in them.
    pub fn close(&self) -> Res<()> {
        Ok(self.pair.close()?)
    }
}

/// A connection that writes.
pub struct Transfer<'e> {
    ends: &'e Ends<'e>,
    conn: Conn,
    splitter: Splitter,
    /// The send queue's entries below this index are complete.
    spine_done: u32,
}

impl Transfer<'_> {
    /// From the post of a WRITE of `len` bytes to its completion.
    pub fn time(&mut self, len: usize) -> Res<Duration> {
        let start = Instant::now();
        self.post(len)?;
        self.finish()?;
        Ok(start.elapsed())
    }

    /// Posts a WRITE.
    pub fn post(&mut self, len: usize) -> Res<()> {
        let (qp, Ends { here, there, .. }) = (&self.conn.a, self.ends);
        let whole = wr::rdma(SEND_OP_RDMA_WRITE, 1, there, 0);
        let message = Message {
            kind: Kind::Write,
            bytes: len as u32,
            remote: Place { key: whole.rkey, addr: whole.remote_addr },
            local: Some(Place { key: here.lkey, addr: here.addr }),
            fence: false,
        };
        let split = if self.splitter.is_large(len as u64) {
            let chunks_done = qp.chunk_indexes().1;
            let (spine_next, spine_free) = (qp.send_index(), qp.send_room());
            let spine_done = self.spine_done;
            self.splitter
                .split(&message, Progress { spine_next, spine_done, spine_free, chunks_done, chunks_kept: 0 })
        } else {
            None
        };
        let full = |e| format!("a request does not fit: {e:?}");
        let Some(split) = split else {
            return Ok(qp.post_send(&whole, &[here.sge(0, len)]).map_err(full)?);
        };
        let (until, Tail { offset, bytes }) = (split.wait(), split.tail());
        for chunk in split {
            let sge = here.sge(chunk.offset as usize, chunk.bytes as usize);
            qp.post_chunk(&part(&whole, &chunk), &[sge]).map_err(full)?;
        }
        let wait = SendRequest { opcode: SEND_OP_WAIT, wr_id: 1, rkey: until, ..SendRequest::default() };
        let tail = SendRequest { remote_addr: whole.remote_addr + u64::from(offset), ..whole };
        let sges = vec![here.sge(offset as usize, bytes as usize)];
        Ok(qp.post_sends(&[(wait, vec![]), (tail, sges)]).map_err(full)?)
    }

    /// Waits for the next completion.
    pub fn finish(&mut self) -> Res<()> {
        let qp = &self.conn.a;
        let cqe = qp.send_cq().wait(PATIENCE).ok_or("a message takes too long")?;
        if cqe.status != WC_SUCCESS {
            return Err(
                format!("a message fails: status {}, vendor error {}", cqe.status, cqe.vendor_err).into()
            );
        }
        qp.retire(&cqe);
        self.spine_done = cqe.consumer;
        Ok(())
    }
}

/// A chunk of a WRITE.
fn part(whole: &SendRequest, chunk: &Chunk) -> SendRequest {
    let flag = |index: Option<u32>, flag| if index.is_some() { flag } else { 0 };
    SendRequest {
        flags: flag(chunk.after_chunk, SEND_AFTER_CHUNK) | flag(chunk.after_spine, SEND_AFTER_SQ),
        imm_or_inv: chunk.after_chunk.unwrap_or(0),
        wr_id: chunk.after_spine.unwrap_or(0).into(),
        remote_addr: whole.remote_addr + u64::from(chunk.offset),
        ..*whole
    }
}
