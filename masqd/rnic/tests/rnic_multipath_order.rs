//! Messages that a guest's library splits: whatever they overlap, memory is in the end what they make of it one after the other.

mod common;

use common::multipath::*;
use common::*;
use masq_rnic::{FaultInjection, RnicConfig};
use mp_core::split::{Kind, Limits, Message, Place, Progress, Splitter};
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

/// Of the peer's memory, and of what READs write to: small, so that messages meet.
const WINDOW: usize = 64 << 10;
/// Where READs write to.
const READ_INTO: u64 = 3 << 20;
const LONGEST: u32 = 40 << 10;

/// Small chunks, so that a few kilobytes take all paths.
const LIMITS: Limits = Limits {
    threshold_bytes: 6000,
    chunk_shift_min: 10,
    chunk_shift_max: 13,
    chunks_per_path: 2,
    tail_bytes: 1024,
    chunk_entries: CHUNKS,
};

struct Application {
    m: Multi,
    splitter: Splitter,
    random: u64,
    posted: u64,
    told: u64,
    source: u32,
    reads_since: bool,
    split: u32,
    /// What memory is to be like.
    there: Vec<u8>,
    here: Vec<u8>,
}

impl Application {
    fn new(seed: u64, faults: Option<FaultInjection>) -> Self {
        let mut net = Net::group(&RnicConfig::default(), 2);
        net.add(&RnicConfig { faults, ..RnicConfig::default() });
        let m = Multi::on(net, 2, 4, &Options::default());
        m.a.write(m.a_mr.gpa, &pattern(READ_INTO as usize, 7));
        let mut splitter = Splitter::new(LIMITS);
        splitter.connect(m.a_qp.chunks.paths());
        Self {
            m,
            splitter,
            random: seed,
            posted: 0,
            told: 0,
            source: 0,
            reads_since: false,
            split: 0,
            there: vec![0; WINDOW],
            here: vec![0; WINDOW],
        }
    }

    fn below(&mut self, most: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 24) % u64::from(most)) as u32
    }

    fn poll(&mut self) {
        while let Some(cqe) = self.m.a_cq.ring.poll() {
            assert_eq!((cqe.wr_id, cqe.status), (self.told, WC_SUCCESS));
            self.told += 1;
            self.m.a_qp.qp.sq.complete(cqe.consumer);
        }
        self.m.a_cq.ring.publish();
    }

    /// A WRITE of what nobody else writes, or a READ.
    fn post(&mut self) {
        if self.m.a_qp.qp.sq.free() < 2 || self.posted - self.told > 40 {
            return;
        }
        let bytes = if self.below(3) == 0 { self.below(64) } else { self.below(LONGEST) } + 1;
        let remote = self.below(WINDOW as u32 - bytes);
        let is_read = self.below(3) == 0;
        let (local, opcode) = if is_read {
            let into = self.below(WINDOW as u32 - bytes);
            let (from, to) = (remote as usize, into as usize);
            self.here[to..to + bytes as usize].copy_from_slice(&self.there[from..from + bytes as usize]);
            (READ_INTO + u64::from(into), SEND_OP_RDMA_READ)
        } else {
            // What is on its way still has its source to itself.
            self.source = (self.source + LONGEST) % (READ_INTO as u32 - 2 * LONGEST);
            let fill = self.below(256) as u8;
            let data = pattern(bytes as usize, fill);
            self.m.a.write(self.m.a_mr.gpa + u64::from(self.source), &data);
            self.there[remote as usize..][..bytes as usize].copy_from_slice(&data);
            (self.source.into(), SEND_OP_RDMA_WRITE)
        };
        // A READ may see what is written after it, unless that has a fence.
        let fence = !is_read && std::mem::take(&mut self.reads_since);
        self.reads_since |= is_read;
        let mut request = to(&self.m.b_mr, remote.into(), request(opcode, self.posted));
        request.flags |= if fence { SEND_FENCE } else { 0 };
        self.posted += 1;
        self.post_split(&request, local, bytes, fence);
        if self.below(2) == 0 {
            self.m.a.ring(&mut self.m.a_qp.qp);
        }
    }

    /// As a provider does.
    fn post_split(&mut self, request: &SendRequest, local: u64, bytes: u32, fence: bool) {
        let (mr, remote) = (self.m.a_mr, Place { key: request.rkey, addr: request.remote_addr });
        let kind = if request.opcode == SEND_OP_RDMA_READ { Kind::Read } else { Kind::Write };
        let local_place = Some(Place { key: mr.key, addr: mr.gpa + local });
        let message = Message { kind, bytes, remote, local: local_place, fence };
        let GroupQp { qp, chunks, .. } = &mut self.m.a_qp;
        let progress = Progress {
            spine_next: qp.sq.producer(),
            spine_done: qp.sq.consumer(),
            spine_free: qp.sq.free(),
            chunks_done: chunks.done(),
            chunks_kept: 0,
            messages: 0,
        };
        let Some(split) = self.splitter.split(&message, progress) else {
            self.splitter.plain(0);
            return qp.sq.post(request, &[sge(&mr, local, bytes)]).unwrap();
        };
        self.split += 1;
        let (until, tail) = (split.wait(), split.tail());
        for chunk in split {
            let flag = |index: Option<u32>, flag| if index.is_some() { flag } else { 0 };
            let part = SendRequest {
                opcode: request.opcode,
                flags: flag(chunk.after_chunk, SEND_AFTER_CHUNK) | flag(chunk.after_spine, SEND_AFTER_SQ),
                imm_or_inv: chunk.after_chunk.unwrap_or(0),
                wr_id: chunk.after_spine.unwrap_or(0).into(),
                remote_addr: request.remote_addr + u64::from(chunk.offset),
                rkey: request.rkey,
                ..SendRequest::default()
            };
            let place = sge(&mr, local + u64::from(chunk.offset), chunk.bytes);
            chunks.post(&part, &[place]).unwrap();
        }
        chunks.publish();
        let wait = SendRequest { opcode: SEND_OP_WAIT, rkey: until, ..SendRequest::default() };
        qp.sq.post(&wait, &[]).unwrap();
        let end = SendRequest { remote_addr: request.remote_addr + u64::from(tail.offset), ..*request };
        qp.sq.post(&end, &[sge(&mr, local + u64::from(tail.offset), tail.bytes)]).unwrap();
    }

    fn run(&mut self, rounds: u32) {
        for round in 0..rounds {
            for _ in 0..120 {
                self.post();
                for _ in 0..self.below(6) {
                    self.m.net.turn_all();
                }
                if self.below(10) == 0 {
                    // What was lost takes its time.
                    self.m.net.run(2);
                }
                if self.below(40) == 0 {
                    let to = 1 - self.m.a.engine;
                    self.m.net.move_guest(&mut self.m.a, to);
                }
                self.poll();
            }
            self.m.a.ring(&mut self.m.a_qp.qp);
            for _ in 0..1000 {
                self.poll();
                if self.told == self.posted {
                    break;
                }
                self.m.net.run(10);
            }
            assert_eq!(self.told, self.posted, "round {round}");
            assert!(self.m.b.read(self.m.b_mr.gpa, WINDOW) == self.there, "round {round}");
            assert!(self.m.a.read(self.m.a_mr.gpa + READ_INTO, WINDOW) == self.here, "round {round}");
        }
        assert!(self.split > 20 * rounds);
    }
}

#[test]
fn overlapping_messages_leave_what_they_would_one_by_one() {
    Application::new(0x0123_4567_89ab_cdef, None).run(15);
}

#[test]
fn losses_do_not_change_that() {
    let faults = FaultInjection { drop: 0.02, duplicate: 0.01, reorder: 0.05, ..FaultInjection::default() };
    Application::new(0xfedc_ba98_7654_3210, Some(faults)).run(15);
}
