//! Atomics: exactly once, and atomic among one another.

use std::collections::HashSet;

use guest_sim::suite::{Conn, Pair, assert_status};
use guest_sim::verbs::{Mr, wr};
use vrdma_abi::control::QP_STATE_ERR;
use vrdma_abi::event::EVENT_QP_REQ_ERR;
use vrdma_abi::ring::*;

use crate::Test;
use crate::matrix::Cell::{Op, Status};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("one_counter_from_two_queue_pairs", &[Op(SEND_OP_FETCH_ADD)], one_counter),
        Test::new("a_lock_by_compare_and_swap", &[Op(SEND_OP_CMP_SWAP)], one_lock),
        Test::new("an_atomic_on_an_odd_address", &[Status(WC_REM_INV_REQ_ERR)], misaligned),
        Test::new("an_atomic_with_a_short_result", &[Status(WC_LOC_LEN_ERR)], short_result),
    ]
}

const ADDS: u64 = 400;

/// Adds 1 to the first word `ADDS` times, a window at a time; returns the values that were there before.
fn count(c: &Conn, result: &Mr, word: &Mr) -> Vec<u64> {
    let mut seen = Vec::new();
    let mut posted = 0;
    while (seen.len() as u64) < ADDS {
        while posted < ADDS && posted - (seen.len() as u64) < 16 {
            let request = wr::atomic(SEND_OP_FETCH_ADD, posted, word, 0, 1, 0);
            c.a.post_send(&request, &[result.sge(8 * (posted % 16) as usize, 8)]).unwrap();
            posted += 1;
        }
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_SUCCESS);
        seen.push(result.read_u64(8 * (cqe.wr_id % 16) as usize));
    }
    seen
}

fn one_counter(p: &Pair) {
    let conns = [p.connect(), p.connect()];
    let word = p.b.buffer(64);
    let results = [p.a.buffer(256), p.a.buffer(256)];
    let seen: Vec<Vec<u64>> = std::thread::scope(|s| {
        let threads: Vec<_> =
            conns.iter().zip(&results).map(|(c, r)| s.spawn(|| count(c, r, &word))).collect();
        threads.into_iter().map(|t| t.join().expect("the counting thread")).collect()
    });
    assert_eq!(word.read_u64(0), 2 * ADDS);
    for one in &seen {
        assert!(one.windows(2).all(|w| w[0] < w[1]), "the counter goes up in the order of posting");
    }
    let distinct: HashSet<u64> = seen.into_iter().flatten().collect();
    assert_eq!(distinct.len() as u64, 2 * ADDS, "each value was seen once");
}

/// Two holders of one lock; the second word is changed without atomics while the lock is held.
fn one_lock(p: &Pair) {
    const ROUNDS: u64 = 60;
    let conns = [p.connect(), p.connect()];
    let shared = p.b.buffer(64);
    let work = |c: &Conn, me: u64| {
        let own = p.a.buffer(64);
        let run = |request, at| {
            c.a.post_send(&request, &[own.sge(at, 8)]).unwrap();
            assert_status(&c.a.send_completion(), WC_SUCCESS);
        };
        for _ in 0..ROUNDS {
            loop {
                run(wr::atomic(SEND_OP_CMP_SWAP, 1, &shared, 0, 0, me), 0);
                if own.read_u64(0) == 0 {
                    break;
                }
            }
            run(wr::rdma(SEND_OP_RDMA_READ, 2, &shared, 8), 8);
            own.write_u64(8, own.read_u64(8) + 1);
            run(wr::rdma(SEND_OP_RDMA_WRITE, 3, &shared, 8), 8);
            run(wr::atomic(SEND_OP_CMP_SWAP, 4, &shared, 0, me, 0), 0);
            assert_eq!(own.read_u64(0), me, "the lock was ours");
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| work(&conns[0], 1));
        s.spawn(|| work(&conns[1], 2));
    });
    assert_eq!(shared.read_u64(8), 2 * ROUNDS);
}

fn misaligned(p: &Pair) {
    let (result, word) = (p.a.buffer(64), p.b.buffer(64));
    for (opcode, at) in [(SEND_OP_FETCH_ADD, 4), (SEND_OP_CMP_SWAP, 1)] {
        let c = p.connect();
        c.a.post_send(&wr::atomic(opcode, 1, &word, at, 0, 1), &[result.sge(0, 8)]).unwrap();
        assert_status(&c.a.send_completion(), WC_REM_INV_REQ_ERR);
        p.b.guest.expect_event(EVENT_QP_REQ_ERR, c.b.handle());
        assert_eq!((c.a.state(), c.b.state()), (QP_STATE_ERR, QP_STATE_ERR));
        assert_eq!(word.read(0, 64), vec![0; 64]);
    }
}

fn short_result(p: &Pair) {
    let (result, word) = (p.a.buffer(64), p.b.buffer(64));
    for len in [0, 4, 7] {
        let c = p.connect();
        c.a.post_send(&wr::atomic(SEND_OP_FETCH_ADD, 1, &word, 0, 1, 0), &[result.sge(0, len)]).unwrap();
        assert_status(&c.a.send_completion(), WC_LOC_LEN_ERR);
        assert_eq!(word.read_u64(0), 0, "a result of {len} bytes: nothing was added");
    }
}
