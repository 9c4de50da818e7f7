//! Random histories of a queue pair with several paths, of guests that keep to the contract and of others.

mod common;

use common::multipath::*;
use common::*;
use masq_driver::*;
use masq_rnic::{FaultInjection, RnicConfig};
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

/// The same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 24) % u64::from(most)) as u32
    }

    fn once_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}

struct History {
    m: Multi,
    random: Random,
    /// Requests that were posted since RESET, and completions that have come.
    posted: u64,
    told: Vec<u8>,
    /// Indexes may be anything, and chunks may fail.
    is_hostile: bool,
}

impl History {
    fn new(seed: u64, faults: Option<FaultInjection>, is_hostile: bool) -> Self {
        let mut net = Net::group(&RnicConfig::default(), 2);
        net.add(&RnicConfig { faults, ..RnicConfig::default() });
        let m = Multi::on(net, 2, 4, &Options::default());
        Self { m, random: Random(seed), posted: 0, told: Vec::new(), is_hostile }
    }

    /// An index of a ring that has come to `producer`.
    fn index(&mut self, producer: u32) -> u32 {
        match self.random.below(16) {
            0 if self.is_hostile => self.random.0 as u32,
            1 if self.is_hostile => producer.wrapping_add(self.random.below(4)),
            2 => 0,
            n => producer.saturating_sub(n % 4),
        }
    }

    fn post_chunk(&mut self) {
        let m = &mut self.m;
        if m.a_qp.chunks.free() == 0 {
            return;
        }
        let opcode = if self.random.once_in(3) { SEND_OP_RDMA_READ } else { SEND_OP_RDMA_WRITE };
        let (chunks, requests) = (m.a_qp.chunks.producer(), m.a_qp.qp.sq.producer());
        let mut flags = 0;
        let (mut imm_or_inv, mut wr_id) = (0, 0);
        if self.random.once_in(4) {
            (flags, imm_or_inv) = (flags | SEND_AFTER_CHUNK, self.index(chunks));
        }
        if self.random.once_in(4) {
            (flags, wr_id) = (flags | SEND_AFTER_SQ, self.index(requests).into());
        }
        let len = [0, 1, 64, 4096, 50_000][self.random.below(5) as usize];
        let chunk = SendRequest { opcode, flags, imm_or_inv, wr_id, ..SendRequest::default() };
        let mut chunk = to(&self.m.b_mr, self.random.below(1 << 20).into(), chunk);
        if self.is_hostile && self.random.once_in(60) {
            chunk.rkey ^= 0x100;
        }
        let offset = (1 << 21) + u64::from(self.random.below(1 << 20));
        self.m.chunk_as(&chunk, offset, len);
    }

    fn post_request(&mut self) {
        if self.m.a_qp.qp.sq.free() < 2 {
            return;
        }
        if self.random.once_in(2) {
            let producer = self.m.a_qp.chunks.producer();
            let until = self.index(producer);
            self.m.wait_for(self.posted, until);
            if self.random.once_in(4) {
                return;
            }
        }
        let opcode = match self.random.below(4) {
            0 => SEND_OP_RDMA_READ,
            1 => {
                self.m.b.post_recv(&mut self.m.b_qp.qp, 0, &[sge(&self.m.b_mr, MR / 2, 1 << 16)]);
                SEND_OP_SEND
            }
            _ => SEND_OP_RDMA_WRITE,
        };
        let len = [0, 8, 4096, 60_000][self.random.below(4) as usize];
        let request = to(&self.m.b_mr, 0, request(opcode, self.posted));
        self.m.a_qp.qp.sq.post(&request, &[sge(&self.m.a_mr, 0, len)]).unwrap();
        self.posted += 1;
    }

    fn poll(&mut self) {
        while let Some(cqe) = self.m.a_cq.ring.poll() {
            assert_eq!(cqe.wr_id, self.told.len() as u64, "in order, each once");
            assert_eq!(cqe.opcode & 0x80, 0);
            self.told.push(cqe.status);
            self.m.a_qp.qp.sq.complete(cqe.consumer);
        }
        self.m.a_cq.ring.publish();
        while let Some(cqe) = self.m.b_cq.ring.poll() {
            self.m.b_qp.qp.rq.complete(cqe.consumer);
        }
        self.m.b_cq.ring.publish();
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..4 => self.post_chunk(),
            4..7 => self.post_request(),
            7 => {
                self.m.a.ring(&mut self.m.a_qp.qp);
            }
            8 if self.random.once_in(3) => {
                let to = 1 - self.m.a.engine;
                self.m.net.move_guest(&mut self.m.a, to);
            }
            9 if self.random.once_in(3) && self.m.states()[0] == QpState::Rts => {
                self.m.modify_a(QpState::Sqd);
                for _ in 0..self.random.below(30) {
                    self.m.net.turn_all();
                }
                if self.m.states()[0] == QpState::Sqd {
                    self.m.modify_a(QpState::Rts);
                }
            }
            _ => {
                for _ in 0..self.random.below(20) {
                    self.m.net.turn_all();
                }
            }
        }
        self.poll();
    }

    /// Runs until all requests are told of, for at most so many milliseconds.
    fn settle(&mut self, ms: u64) {
        self.m.a.ring(&mut self.m.a_qp.qp);
        for _ in 0..ms / 10 {
            self.poll();
            if self.told.len() as u64 == self.posted {
                break;
            }
            self.m.net.run(10);
        }
        self.poll();
    }

    /// To ERR, which all requests are told of, and from RESET back to RTS.
    fn end(&mut self) {
        let change = |to| QpChange { to: Some(to), ..QpChange::default() };
        self.m.modify_a(QpState::Err);
        self.settle(2000);
        assert_eq!(self.told.len() as u64, self.posted);
        let failed = self.told.iter().skip_while(|s| **s == WC_SUCCESS).skip(1);
        assert!(failed.clone().all(|s| *s == WC_WR_FLUSH_ERR), "{:?}", self.told);
        self.m.net.run(20);
        assert!(self.m.a_cq.ring.poll().is_none());
        self.m.modify_a(QpState::Reset);
        self.m.b.modify(&mut self.m.net, &self.m.b_qp.qp, change(QpState::Err)).unwrap();
        self.m.net.run(20);
        self.m.b.modify(&mut self.m.net, &self.m.b_qp.qp, change(QpState::Reset)).unwrap();
        self.poll();
        for qp in [&mut self.m.a_qp, &mut self.m.b_qp] {
            qp.qp.sq.reset();
            qp.qp.rq.reset();
            qp.chunks.reset();
        }
        (self.posted, self.told) = (0, Vec::new());
        self.m.connect(4, &Options::default());
    }
}

fn faults() -> Option<FaultInjection> {
    Some(FaultInjection { drop: 0.02, duplicate: 0.01, reorder: 0.05, ..FaultInjection::default() })
}

/// Whatever waits for what was posted before it goes on, and is told of once and in order: no wake is lost.
#[test]
fn what_waits_for_earlier_things_never_waits_for_ever() {
    for (seed, faults) in [(0x1234_5678_9abc, None), (0x9876_5432_1fed, faults())] {
        let mut h = History::new(seed, faults, false);
        for round in 0..25 {
            for _ in 0..80 {
                h.step();
            }
            h.settle(20_000);
            assert_eq!(h.told.len() as u64, h.posted, "round {round}");
            assert!(h.told.iter().all(|s| *s == WC_SUCCESS));
            let chunks = h.m.a_qp.chunks.producer();
            let net = &mut h.m.net;
            let ring = &mut h.m.a_qp.chunks;
            assert!(net.run_until(5000, |_| ring.done() == chunks), "round {round}");
            if round % 8 == 7 {
                h.end();
            }
        }
    }
}

/// Whatever a guest writes into its rings, each request is told of once and in order, if only when the queue pair ends; and it can be used again.
#[test]
fn a_guest_that_means_no_good_ends_well() {
    for (seed, faults) in [(0x5eed_5eed, None), (0xbad_5eed, faults())] {
        let mut h = History::new(seed, faults, true);
        for _ in 0..40 {
            for _ in 0..60 {
                h.step();
            }
            h.end();
        }
    }
}
