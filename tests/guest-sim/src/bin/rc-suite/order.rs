//! What must be seen before what.

use std::time::{Duration, Instant};

use guest_sim::suite::{Pair, assert_same, assert_status, pattern};
use guest_sim::verbs::wr;
use vrdma_abi::ring::*;

use crate::Test;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("a_write_is_seen_before_the_send_behind_it", &[], write_then_send),
        Test::new("the_last_byte_of_a_write_is_stored_last", &[], last_byte_last),
        Test::new("receives_are_taken_in_order", &[], receives_in_order),
        Test::new("a_read_sees_the_write_before_it", &[], read_after_write),
    ]
}

fn write_then_send(p: &Pair) {
    let c = p.connect();
    const LEN: usize = 100_000;
    let (here, there) = (p.a.buffer(1 << 17), p.b.buffer(1 << 17));
    for round in 0..40 {
        let data = pattern(round + 1, LEN);
        here.write(0, &data);
        c.b.post_recv(round, &[there.sge(110_000, 8)]).unwrap();
        let write = (wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), vec![here.sge(0, LEN)]);
        let send = (wr::request(SEND_OP_SEND, 2), vec![here.sge(0, 8)]);
        c.a.post_sends(&[write, send]).unwrap();
        // The receive's completion alone tells that the write is done.
        assert_status(&c.b.recv_completion(), WC_SUCCESS);
        assert_same(&there.read(0, LEN), &data, "written before the send");
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        assert_status(&c.a.send_completion(), WC_SUCCESS);
    }
}

/// Programs poll the last byte of a buffer, and then use all of it.
fn last_byte_last(p: &Pair) {
    let c = p.connect();
    let (here, there) = (p.a.buffer(1 << 17), p.b.buffer(1 << 17));
    for (round, len) in [16, 200, 1024, 4096, 5000, 65_536, 100_000].into_iter().cycle().take(140).enumerate()
    {
        let data: Vec<u8> = pattern(round as u64, len).into_iter().map(|b| b | 1).collect();
        here.write(0, &data);
        there.fill(0, len, 0);
        c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[here.sge(0, len)]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while there.load_u8(len - 1) == 0 {
            assert!(Instant::now() < deadline, "the write never shows");
            std::thread::yield_now();
        }
        assert_same(&there.read(0, len), &data, "all of it is there when its last byte is");
        assert_status(&c.a.send_completion(), WC_SUCCESS);
    }
}

fn receives_in_order(p: &Pair) {
    let c = p.connect();
    let (here, there) = (p.a.buffer(1 << 16), p.b.buffer(1 << 16));
    let lens: Vec<usize> = (0..50).map(|k| 1 + (k * 397) % 1200).collect();
    for k in 0..lens.len() {
        c.b.post_recv(k as u64, &[there.sge(1300 * k, 1300)]).unwrap();
    }
    let data = pattern(8, 1300);
    here.write(0, &data);
    for (k, &len) in lens.iter().enumerate() {
        c.a.post_send(&wr::request(SEND_OP_SEND, k as u64), &[here.sge(0, len)]).unwrap();
    }
    for (k, &len) in lens.iter().enumerate() {
        let cqe = c.b.recv_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!((cqe.wr_id, cqe.byte_len), (k as u64, len as u32));
        assert_same(&there.read(1300 * k, len), &data[..len], "message");
    }
    for k in 0..lens.len() {
        assert_eq!(c.a.send_completion().wr_id, k as u64);
    }
}

fn read_after_write(p: &Pair) {
    let c = p.connect();
    const LEN: usize = 20_000;
    let (here, there) = (p.a.buffer(1 << 16), p.b.buffer(1 << 16));
    for round in 0..50 {
        let data = pattern(round + 100, LEN);
        here.write(0, &data);
        let write = (wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 7), vec![here.sge(0, LEN)]);
        let read = (wr::rdma(SEND_OP_RDMA_READ, 2, &there, 7), vec![here.sge(30_000, LEN)]);
        c.a.post_sends(&[write, read]).unwrap();
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        assert_same(&here.read(30_000, LEN), &data, "read back");
    }
}
