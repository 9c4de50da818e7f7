//! Random operations, whose effects must equal a model's.

use guest_sim::suite::{Conn, Pair, Rng, Setup, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, Mr, QpCaps, wr};
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::Test;
use crate::matrix::Cell::Op;

pub fn tests() -> Vec<Test> {
    const ALL: &[crate::Cell] = &[
        Op(SEND_OP_SEND),
        Op(SEND_OP_SEND_IMM),
        Op(SEND_OP_RDMA_WRITE),
        Op(SEND_OP_RDMA_WRITE_IMM),
        Op(SEND_OP_RDMA_READ),
        Op(SEND_OP_CMP_SWAP),
        Op(SEND_OP_FETCH_ADD),
    ];
    vec![Test::new("random_operations_equal_a_model", ALL, random)]
}

/// Requests on their way at once.
const WINDOW: usize = 16;
/// The target's memory.
const SPACE: usize = 1 << 16;
const LONGEST: usize = 20_000;

/// What the completion of a request must show.
enum Expect {
    Nothing,
    Data { slot: usize, data: Vec<u8> },
    Message { slot: usize, data: Vec<u8> },
    Immediate { imm: u32 },
}

struct Run<'p> {
    c: Conn,
    /// Constant data, and a slot for the result of each request on its way.
    here: Mr,
    source: Vec<u8>,
    /// The space, and a slot for each message on its way.
    there: Mr,
    model: Vec<u8>,
    rng: Rng,
    pair: &'p Pair<'p>,
}

fn random(p: &Pair) {
    for seed in 1..=4 {
        let path_mtu = (seed % 5 + 1) as u8;
        let attr = ConnectAttr { path_mtu, sq_psn: 0xff_ff00, rq_psn: 0xff_ff00, ..ConnectAttr::default() };
        let caps = QpCaps { send_sge: 3, recv_sge: 2, inline_bytes: 128, ..QpCaps::default() };
        let setup = Setup { caps_a: caps.clone(), caps_b: caps, ..Setup::attr(attr) };
        let (here, there) = (p.a.buffer(2 * SPACE + WINDOW * LONGEST), p.b.buffer(SPACE + WINDOW * LONGEST));
        let source = pattern(seed, 2 * SPACE);
        here.write(0, &source);
        let model = vec![0; SPACE];
        Run { c: p.connect_with(&setup), here, source, there, model, rng: Rng::new(seed), pair: p }.run(120);
    }
}

impl Run<'_> {
    fn run(&mut self, count: usize) {
        let mut expected = Vec::new();
        for k in 0..count {
            if expected.len() == WINDOW {
                let oldest = expected.remove(0);
                self.check(k - WINDOW, oldest);
            }
            let expect = self.post(k);
            expected.push(expect);
        }
        let first = count - expected.len();
        for (k, expect) in expected.into_iter().enumerate() {
            self.check(first + k, expect);
        }
        assert_same(&self.there.read(0, SPACE), &self.model, "all of the target");
        for qp in [&self.c.a, &self.c.b] {
            qp.destroy().expect("DESTROY_QP");
        }
        assert!(self.pair.b.guest.next_async_event(std::time::Duration::ZERO).is_none());
    }

    /// Some bytes of the source, as entries and as data.
    fn data(&mut self) -> (Vec<Sge>, Vec<u8>) {
        let (mut sges, mut data) = (Vec::new(), Vec::new());
        let longest = self.rng.pick(&[0, 1, 100, 1024, 5000, LONGEST]);
        for _ in 0..1 + self.rng.below(3) {
            let len = self.rng.below(longest as u64 / 3 + 1) as usize;
            let at = self.rng.below((self.source.len() - len) as u64) as usize;
            sges.push(self.here.sge(at, len));
            data.extend_from_slice(&self.source[at..][..len]);
        }
        (sges, data)
    }

    fn post(&mut self, k: usize) -> Expect {
        let wr_id = k as u64;
        let slot = k % WINDOW;
        let result = self.source.len() + slot * LONGEST;
        let opcode = self.rng.pick(&[0, 1, 2, 3, 4, 4, 5, 6]);
        // A request that follows a READ waits for it, so that the model knows what the READ brings (IBTA Vol 1 §10.8.3.3).
        let request = SendRequest { flags: SEND_SIGNALED | SEND_FENCE, ..wr::request(opcode, wr_id) };
        match opcode {
            SEND_OP_RDMA_READ => {
                let len = self.rng.below(LONGEST as u64) as usize;
                let at = self.rng.below((SPACE - len) as u64) as usize;
                let read = SendRequest { flags: SEND_SIGNALED, ..wr::rdma(opcode, wr_id, &self.there, at) };
                self.c.a.post_send(&read, &[self.here.sge(result, len)]).unwrap();
                Expect::Data { slot, data: self.model[at..][..len].to_vec() }
            }
            SEND_OP_CMP_SWAP | SEND_OP_FETCH_ADD => {
                let at = 8 * self.rng.below(SPACE as u64 / 8) as usize;
                let word = &mut self.model[at..][..8];
                let before = u64::from_ne_bytes((*word).try_into().expect("8 bytes"));
                let operand = self.rng.pick(&[before, 0, 1, u64::MAX]);
                let swap = self.rng.next_u64();
                let after = match opcode {
                    SEND_OP_CMP_SWAP => {
                        if before == operand {
                            swap
                        } else {
                            before
                        }
                    }
                    _ => before.wrapping_add(operand),
                };
                word.copy_from_slice(&after.to_ne_bytes());
                let atomic = wr::atomic(opcode, wr_id, &self.there, at, operand, swap);
                let atomic = SendRequest { flags: request.flags, ..atomic };
                self.c.a.post_send(&atomic, &[self.here.sge(result, 8)]).unwrap();
                Expect::Data { slot, data: before.to_ne_bytes().to_vec() }
            }
            SEND_OP_RDMA_WRITE | SEND_OP_RDMA_WRITE_IMM => {
                let (sges, data) = self.data();
                let at = self.rng.below((SPACE - data.len()) as u64) as usize;
                self.model[at..][..data.len()].copy_from_slice(&data);
                let imm = self.rng.next_u64() as u32;
                let write = wr::rdma(opcode, wr_id, &self.there, at);
                let write = SendRequest { flags: request.flags, imm_or_inv: imm, ..write };
                if opcode == SEND_OP_RDMA_WRITE_IMM {
                    self.c.b.post_recv(wr_id, &[]).unwrap();
                }
                if data.len() <= 128 && self.rng.below(2) == 0 {
                    self.c.a.post_inline(&write, &data).unwrap();
                } else {
                    self.c.a.post_send(&write, &sges).unwrap();
                }
                if opcode == SEND_OP_RDMA_WRITE_IMM { Expect::Immediate { imm } } else { Expect::Nothing }
            }
            _ => {
                let (sges, data) = self.data();
                let at = SPACE + slot * LONGEST;
                let split = self.rng.below(LONGEST as u64) as usize;
                let into = [self.there.sge(at, split), self.there.sge(at + split, LONGEST - split)];
                self.c.b.post_recv(wr_id, &into).unwrap();
                self.c.a.post_send(&request, &sges).unwrap();
                Expect::Message { slot, data }
            }
        }
    }

    fn check(&self, k: usize, expect: Expect) {
        let sent = self.c.a.send_completion();
        assert_status(&sent, WC_SUCCESS);
        assert_eq!(sent.wr_id, k as u64);
        let received = || {
            let cqe = self.c.b.recv_completion();
            assert_status(&cqe, WC_SUCCESS);
            assert_eq!(cqe.wr_id, k as u64);
            cqe
        };
        match expect {
            Expect::Nothing => {}
            Expect::Data { slot, data } => {
                let got = self.here.read(self.source.len() + slot * LONGEST, data.len());
                assert_same(&got, &data, &format!("result of request {k}"));
            }
            Expect::Message { slot, data } => {
                assert_eq!(received().byte_len as usize, data.len());
                let got = self.there.read(SPACE + slot * LONGEST, data.len());
                assert_same(&got, &data, &format!("message {k}"));
            }
            Expect::Immediate { imm } => assert_eq!(received().imm_or_inv, imm),
        }
    }
}
