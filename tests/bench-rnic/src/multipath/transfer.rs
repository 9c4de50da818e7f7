//! Messages between two guests, split as a guest's library splits them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bench_record::Res;
use guest_sim::suite::{Conn, Pair, Placement, Setup, Side, World};
use guest_sim::verbs::{ConnectAttr, Cq, Mr, Qp, QpCaps, wr};
use mp_core::split::{Chunk, Kind, Limits, Message, Place, Progress, Splitter, Tail};
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::stream::MTU_4096;

/// Entries of a chunk ring: what the provider leaves to one large message of a queue pair with many requests.
const CHUNKS: u32 = 1024;

/// Nothing that is measured takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// What carries a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND into a receive that is as long.
    Send,
}

impl Verb {
    /// As records call it.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Write => "write",
            Verb::Read => "read",
            Verb::Send => "send",
        }
    }

    fn kind(self) -> Kind {
        match self {
            Verb::Write => Kind::Write,
            Verb::Read => Kind::Read,
            Verb::Send => Kind::Send,
        }
    }

    /// Of the whole message, and of its chunks.
    fn opcodes(self) -> (u8, u8) {
        match self {
            Verb::Write => (SEND_OP_RDMA_WRITE, SEND_OP_RDMA_WRITE),
            Verb::Read => (SEND_OP_RDMA_READ, SEND_OP_RDMA_READ),
            Verb::Send => (SEND_OP_SEND, SEND_OP_STEER),
        }
    }
}

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
        // Pages are there before anything is measured.
        here.fill(0, len, 0x5a);
        there.fill(0, len, 0x5a);
        Ok(Ends { pair, paths, here, there })
    }

    /// A connection over all of their paths.
    pub fn connect(&self) -> Res<Transfer<'_>> {
        self.connect_with(Limits::new(CHUNKS))
    }

    /// A connection over all of their paths that splits messages as `limits` say.
    pub fn connect_with(&self, limits: Limits) -> Res<Transfer<'_>> {
        let chunks = if self.paths > 1 { limits.chunk_entries } else { 0 };
        let attr = ConnectAttr { path_mtu: MTU_4096, ..ConnectAttr::default() };
        let setup = Setup { a: attr.clone(), b: attr, ..Setup::caps(QpCaps { chunks, ..QpCaps::default() }) };
        let conn = self.pair.connect_with(&setup);
        let mut splitter = Splitter::new(limits);
        if self.paths > 1 {
            let paths = conn.a.paths();
            if paths != u32::from(self.paths) {
                return Err(format!("the connection has {paths} paths, not {}", self.paths).into());
            }
            splitter.connect(paths);
        }
        Ok(Transfer { ends: self, conn, splitter, spine_done: 0, posted: VecDeque::new() })
    }

    /// Whether all of the first `len` bytes have arrived.
    pub fn has_arrived(&self, len: usize, verb: Verb) -> bool {
        self.target(verb).read(0, len).iter().all(|byte| *byte == 0x5a)
    }

    /// As if the first `len` bytes had not arrived.
    pub fn forget(&self, len: usize, verb: Verb) {
        self.target(verb).fill(0, len, 0);
    }

    /// Where a message comes to.
    fn target(&self, verb: Verb) -> &Mr {
        if verb == Verb::Read { &self.here } else { &self.there }
    }

    /// Ends both opens, and all that is in them.
    pub fn close(&self) -> Res<()> {
        Ok(self.pair.close()?)
    }
}

/// A connection that carries one message after another.
pub struct Transfer<'e> {
    ends: &'e Ends<'e>,
    conn: Conn,
    splitter: Splitter,
    /// The send queue's entries below this index are complete.
    spine_done: u32,
    /// What is under way, oldest first.
    posted: VecDeque<Verb>,
}

impl Transfer<'_> {
    /// From the post of a WRITE of `len` bytes to its completion.
    pub fn time(&mut self, len: usize) -> Res<Duration> {
        self.time_of(Verb::Write, len)
    }

    /// From the post of a message of `len` bytes to its completion.
    pub fn time_of(&mut self, verb: Verb, len: usize) -> Res<Duration> {
        if verb == Verb::Send {
            self.post_receive(len)?;
        }
        let start = Instant::now();
        self.post_of(verb, len)?;
        self.finish()?;
        Ok(start.elapsed())
    }

    /// Posts a WRITE.
    pub fn post(&mut self, len: usize) -> Res<()> {
        self.post_of(Verb::Write, len)
    }

    /// Writes `piece` bytes again and again, two on their way at a time, until it is told that it has ended; how many bytes that were, and how long it took.
    pub fn walk(&mut self, piece: usize, ended: &AtomicBool) -> Res<(usize, Duration)> {
        let (start, mut bytes) = (Instant::now(), 2 * piece);
        self.post(piece)?;
        self.post(piece)?;
        while !ended.load(Relaxed) {
            self.finish()?;
            self.post(piece)?;
            bytes += piece;
        }
        self.finish()?;
        self.finish()?;
        Ok((bytes, start.elapsed()))
    }

    fn post_receive(&self, len: usize) -> Res<()> {
        self.conn.b.post_recv(1, &[self.ends.there.sge(0, len)]).map_err(full)
    }

    fn post_of(&mut self, verb: Verb, len: usize) -> Res<()> {
        let (qp, Ends { here, there, .. }) = (&self.conn.a, self.ends);
        let (opcode, chunk_opcode) = verb.opcodes();
        let whole = match verb {
            Verb::Send => wr::request(opcode, 1),
            Verb::Write | Verb::Read => wr::rdma(opcode, 1, there, 0),
        };
        let message = Message {
            kind: verb.kind(),
            bytes: len as u32,
            remote: Place { key: whole.rkey, addr: whole.remote_addr },
            local: Some(Place { key: here.lkey, addr: here.addr }),
            fence: false,
        };
        self.posted.push_back(verb);
        let split = if self.splitter.is_large(len as u64) {
            let chunks_done = qp.chunk_indexes().1;
            let (spine_next, spine_free) = (qp.send_index(), qp.send_room());
            let spine_done = self.spine_done;
            self.splitter.split(
                &message,
                Progress { spine_next, spine_done, spine_free, chunks_done, chunks_kept: 0, messages: 0 },
            )
        } else {
            None
        };
        let Some(split) = split else {
            self.splitter.plain((verb == Verb::Send).into());
            return qp.post_send(&whole, &[here.sge(0, len)]).map_err(full);
        };
        let (until, Tail { offset, bytes }, receive) = (split.wait(), split.tail(), split.receive());
        for chunk in split {
            let sge = here.sge(chunk.offset as usize, chunk.bytes as usize);
            let (remote_addr, rkey) = match verb {
                Verb::Send => (chunk.offset.into(), receive),
                Verb::Write | Verb::Read => (whole.remote_addr + u64::from(chunk.offset), whole.rkey),
            };
            let request = SendRequest { opcode: chunk_opcode, remote_addr, rkey, ..part(&chunk) };
            qp.post_chunk(&request, &[sge]).map_err(full)?;
        }
        let wait = SendRequest { opcode: SEND_OP_WAIT, wr_id: 1, rkey: until, ..SendRequest::default() };
        let end = u64::from(offset);
        let tail = match verb {
            Verb::Write => SendRequest { remote_addr: whole.remote_addr + end, ..whole },
            Verb::Read => SendRequest { remote_addr: whole.remote_addr + end, before_bytes: offset, ..whole },
            Verb::Send => SendRequest { remote_addr: end, flags: whole.flags | SEND_STEERED, ..whole },
        };
        let sges = vec![here.sge(offset as usize, bytes as usize)];
        qp.post_sends(&[(wait, vec![]), (tail, sges)]).map_err(full)
    }

    /// Waits for the next completion, at both ends if both have one.
    pub fn finish(&mut self) -> Res<()> {
        self.spine_done = take(&self.conn.a, self.conn.a.send_cq())?;
        if self.posted.pop_front() == Some(Verb::Send) {
            take(&self.conn.b, self.conn.b.recv_cq())?;
        }
        Ok(())
    }
}

fn full(error: vrdma_rings::PostError) -> Box<dyn std::error::Error + Send + Sync> {
    format!("a request does not fit: {error:?}").into()
}

/// Waits for a completion; the index behind what it tells to be free.
fn take(qp: &Qp, cq: &Cq) -> Res<u32> {
    let cqe = cq.wait(PATIENCE).ok_or("a message takes too long")?;
    if cqe.status != WC_SUCCESS {
        return Err(format!("a message fails: status {}, vendor error {}", cqe.status, cqe.vendor_err).into());
    }
    qp.retire(&cqe);
    Ok(cqe.consumer)
}

/// What a chunk waits for.
fn part(chunk: &Chunk) -> SendRequest {
    let flag = |index: Option<u32>, flag| if index.is_some() { flag } else { 0 };
    SendRequest {
        flags: flag(chunk.after_chunk, SEND_AFTER_CHUNK) | flag(chunk.after_spine, SEND_AFTER_SQ),
        imm_or_inv: chunk.after_chunk.unwrap_or(0),
        wr_id: chunk.after_spine.unwrap_or(0).into(),
        ..SendRequest::default()
    }
}
