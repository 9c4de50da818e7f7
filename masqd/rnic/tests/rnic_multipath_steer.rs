//! Large SENDs by several paths: their chunks go to their places in receives that the peer has posted.

mod common;

use common::multipath::*;
use common::steering::*;
use common::*;
use masq_driver::*;
use masq_rnic::FaultInjection;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

/// B's completions within some time.
fn b_completions(m: &mut Multi) -> Vec<(u64, u8)> {
    completions_within(&mut m.net, &mut m.b_cq, 100)
}

/// Another pair of queue pairs, of which B's has a shared receive queue.
fn with_srq(m: &mut Multi) -> TestSrq {
    let srq = m.b.srq(&mut m.net, None);
    m.a_qp = m.a.group(&mut m.net, &m.a_cq);
    m.b_qp = m.b.try_group(&mut m.net, &m.b_cq, |init| init.receives = Receives::Shared(srq.handle)).unwrap();
    m.connect(4, &Options::default());
    srq
}

/// A SEND's chunks go by all paths to where they belong and nowhere else; sender and receiver have one completion each, as of any SEND.
#[test]
fn a_large_send_goes_by_all_paths() {
    const LEN: u32 = 400 << 10;
    for shared in [false, true] {
        let mut m = Multi::new(4);
        let mut srq = shared.then(|| with_srq(&mut m));
        for (i, opcode) in
            [SEND_OP_SEND, SEND_OP_SEND_IMM, SEND_OP_SEND_IMM, SEND_OP_SEND].into_iter().enumerate()
        {
            let i = i as u64;
            m.a.write(m.a_mr.gpa, &pattern(LEN as usize, i as u8));
            match &mut srq {
                Some(srq) => {
                    let pieces = pieces(&m, i, LEN);
                    m.b.post_srq_recv(srq, 100 + i, &pieces);
                }
                None => post_recv(&mut m, 100 + i, i, LEN),
            }
            send(&mut m, opcode, i, i as u32, 0, LEN);
            assert_eq!(m.completion(), (i, WC_SUCCESS));
            let cqe = wait(&mut m.net, &mut m.b_cq);
            assert_eq!(
                (cqe.wr_id, cqe.status, cqe.opcode, cqe.byte_len),
                (100 + i, WC_SUCCESS, WC_RECV, LEN)
            );
            let imm = if opcode == SEND_OP_SEND_IMM { (CQE_WITH_IMM, i as u32) } else { (0, 0) };
            assert_eq!((cqe.flags & CQE_WITH_IMM, cqe.imm_or_inv), imm);
            assert_ne!(cqe.flags & CQE_SOLICITED, 0);
            let (data, rest) = received(&m, i, LEN);
            assert!(data == pattern(LEN as usize, i as u8), "{i}");
            assert!(rest.iter().all(|b| *b == 0));
        }
        assert!(m.paths().iter().all(|p| p.chunks > 0));
        assert_eq!(assigned(&mut m), 0);
        assert!(m.b_cq.ring.poll().is_none() && m.a_cq.ring.poll().is_none());
    }
}

/// Messages of all kinds take the receives in the order in which they were posted, whatever comes first.
#[test]
fn receives_are_taken_in_order() {
    const LEN: u32 = 200 << 10;
    let mut m = Multi::new(4);
    m.a.write(m.a_mr.gpa, &pattern(LEN as usize, 1));
    for round in 0..4u64 {
        (0..6).for_each(|i| post_recv(&mut m, 6 * round + i, i, LEN));
        let number = 6 * round as u32;
        m.post(SEND_OP_SEND, 0, 0, 100);
        send(&mut m, SEND_OP_SEND, 1, number + 1, 0, LEN);
        m.post(SEND_OP_RDMA_WRITE_IMM, 2, 7 * SLOT, 64);
        send(&mut m, SEND_OP_SEND_IMM, 3, number + 3, 0, LEN);
        send(&mut m, SEND_OP_SEND, 4, number + 4, 0, LEN);
        m.post(SEND_OP_SEND_IMM, 5, 0, 100);
        for i in 0..6 {
            assert_eq!(m.completion(), (i, WC_SUCCESS));
        }
        for (i, len) in [100, LEN, 64, LEN, LEN, 100].into_iter().enumerate() {
            let cqe = wait(&mut m.net, &mut m.b_cq);
            let wr_id = 6 * round + i as u64;
            assert_eq!((cqe.wr_id, cqe.status, cqe.byte_len), (wr_id, WC_SUCCESS, len), "{round}");
            m.b_qp.qp.rq.complete(cqe.consumer);
            if len == LEN {
                assert!(received(&m, i as u64, LEN).0 == pattern(LEN as usize, 1));
            }
        }
        let producer = m.a_qp.qp.sq.producer();
        m.a_qp.qp.sq.complete(producer);
    }
}

/// A receive that is too short, or whose memory cannot be written, fails as with any SEND; those before and behind it are flushed, in order, and
/// what is not theirs is not touched.
#[test]
fn receives_that_cannot_take_it_fail() {
    const LEN: u32 = 200 << 10;
    let short: fn(&Multi) -> Vec<Sge> = |m| pieces(m, 2, LEN - 100 * 1024).to_vec();
    let foreign: fn(&Multi) -> Vec<Sge> = |m| vec![Sge { lkey: 0xbad, ..sge(&m.b_mr, 2 * SLOT, LEN) }];
    let cases = [(short, WC_LOC_LEN_ERR, WC_REM_INV_REQ_ERR), (foreign, WC_LOC_PROT_ERR, WC_REM_OP_ERR)];
    for (receive, at_b, at_a) in cases {
        let mut m = Multi::new(4);
        m.a.write(m.a_mr.gpa, &pattern(LEN as usize, 1));
        post_recv(&mut m, 0, 0, LEN);
        post_recv(&mut m, 1, 1, LEN);
        let receive = receive(&m);
        m.b.post_recv(&mut m.b_qp.qp, 2, &receive);
        post_recv(&mut m, 3, 3, LEN);
        m.post(SEND_OP_SEND, 0, 0, 64);
        assert_eq!(m.completion(), (0, WC_SUCCESS));
        // The message before has not ended.
        steer(&mut m, 1, 0, 0, 64);
        send(&mut m, SEND_OP_SEND, 2, 2, 0, LEN);
        assert_eq!(m.completion(), (2, at_a));
        let flushed = WC_WR_FLUSH_ERR;
        assert_eq!(b_completions(&mut m), [(0, WC_SUCCESS), (1, flushed), (2, at_b), (3, flushed)]);
        assert_eq!(m.states(), [QpState::Err; 2]);
        assert!(m.faults(1).is_empty(), "a completion tells it");
        let (data, rest) = received(&m, 2, LEN - 100 * 1024);
        assert!(rest.iter().all(|b| *b == 0));
        let (mut data, expected) = (data, pattern(LEN as usize, 1));
        // Chunks that fit may have come.
        data.iter_mut().zip(expected).filter(|(d, e)| **d == *e).for_each(|(d, _)| *d = 0);
        assert!(data.iter().all(|b| *b == 0));
    }
}

/// What a peer that lies says is refused, its group and that of who it speaks to fail, and receives are completed once, in order.
#[test]
fn lies_are_refused() {
    const LEN: u32 = 64 << 10;
    type Lie = fn(&mut Multi);
    let cases: [(&str, Lie); 10] = [
        ("a receive that is too far ahead", |m| {
            steer(m, 65, 0, 0, LEN);
            end(m, SEND_OP_SEND, 1, 0, LEN, 64);
        }),
        ("a receive that has been completed", |m| {
            steer(m, 0, 0, 0, LEN);
            end(m, SEND_OP_SEND, 1, 0, LEN, 64);
        }),
        ("the end of nothing", |m| end(m, SEND_OP_SEND, 1, 0, 0, 64)),
        ("the end of something that has not come", |m| end(m, SEND_OP_SEND_IMM, 1, 0, LEN, 64)),
        ("another end", |m| {
            steer(m, 1, 0, 0, LEN);
            end(m, SEND_OP_SEND, 1, 0, LEN + 1, 64);
        }),
        ("a gap", |m| {
            steer(m, 1, 0, 1, LEN);
            end(m, SEND_OP_SEND, 1, 0, LEN + 1, 64);
        }),
        ("the same twice instead of what comes behind", |m| {
            steer(m, 1, 0, 0, LEN / 2);
            steer(m, 1, 0, 0, LEN / 2);
            end(m, SEND_OP_SEND, 1, 0, LEN, 64);
        }),
        ("parts that overlap, and a gap", |m| {
            steer(m, 1, 0, 0, LEN / 2);
            steer(m, 1, 0, LEN / 4, LEN / 4);
            steer(m, 1, 0, 3 * LEN / 4, LEN / 4);
            end(m, SEND_OP_SEND, 1, 0, LEN, 64);
        }),
        ("another SEND", |m| {
            let until = steer(m, 1, 0, 0, LEN);
            m.wait_for(1, until);
            m.post(SEND_OP_SEND, 1, 0, 64);
        }),
        ("a WRITE", |m| {
            let until = steer(m, 1, 0, 0, LEN);
            m.wait_for(1, until);
            m.post(SEND_OP_RDMA_WRITE_IMM, 1, MR - 64, 64);
        }),
    ];
    for (what, lie) in cases {
        let mut m = Multi::new(4);
        m.a.write(m.a_mr.gpa, &pattern(2 * LEN as usize, 1));
        (0..3).for_each(|i| post_recv(&mut m, i, i, 2 * LEN));
        m.post(SEND_OP_SEND, 0, 0, 64);
        assert_eq!(m.completion(), (0, WC_SUCCESS));
        lie(&mut m);
        assert_eq!(m.completion(), (1, WC_REM_INV_REQ_ERR), "{what}");
        assert_eq!(m.states(), [QpState::Err; 2], "{what}");
        assert_eq!(m.faults(1), [QpFault::Request], "{what}");
        let flushed = WC_WR_FLUSH_ERR;
        assert_eq!(b_completions(&mut m), [(0, WC_SUCCESS), (1, flushed), (2, flushed)], "{what}");
        for slot in 0..3 {
            assert!(received(&m, slot, 2 * LEN).1.iter().all(|b| *b == 0), "{what}");
        }
        let first = received(&m, 0, 2 * LEN).0;
        assert!(
            first[..64] == pattern(2 * LEN as usize, 1)[..64] && first[64..].iter().all(|b| *b == 0),
            "{what}"
        );
    }
}

/// What is steered must lie within the longest message.
#[test]
fn offsets_are_checked_where_they_are_posted() {
    for at in [1 << 31, u64::MAX - 10, u64::MAX] {
        for is_end in [false, true] {
            let mut m = Multi::new(4);
            post_recv(&mut m, 0, 0, 4096);
            let wrong = SendRequest { remote_addr: at, wr_id: 1, ..SendRequest::default() };
            if is_end {
                let wrong = SendRequest { opcode: SEND_OP_SEND, flags: SEND_STEERED, ..wrong };
                m.a.post(&mut m.a_qp.qp, &wrong, &[sge(&m.a_mr, 0, 64)]);
            } else {
                m.chunk_as(&SendRequest { opcode: SEND_OP_STEER, ..wrong }, 0, 64);
                m.post(SEND_OP_SEND, 1, 0, 64);
            }
            // The leader has grace for what it has begun.
            let (_, status) = m.completion();
            assert!(matches!(status, WC_LOC_LEN_ERR | WC_SUCCESS), "{status}");
            m.net.run(5);
            assert_eq!(m.states()[0], QpState::Err);
        }
    }
}

/// Receives that B keeps for messages to come.
fn assigned(m: &mut Multi) -> u64 {
    match m.net.execute(m.b.engine, Command::VnicCounters { vnic: m.b.id }) {
        Ok(Reply::VnicCounters(counters)) => counters.assigned_receives,
        other => panic!("{other:?}"),
    }
}

/// Receives that were taken out of their queue ahead of time are given back in order when the queue pair ends.
#[test]
fn assigned_receives_are_flushed_in_order() {
    for (shared, to) in
        [(false, QpState::Err), (true, QpState::Err), (true, QpState::Reset), (false, QpState::Reset)]
    {
        let mut m = Multi::new(4);
        let mut srq = shared.then(|| with_srq(&mut m));
        for i in 0..100u64 {
            let buffer = sge(&m.b_mr, 0, 4096);
            match &mut srq {
                Some(srq) if i < 60 => m.b.post_srq_recv(srq, i, &[buffer]),
                None if i < 60 => m.b.post_recv(&mut m.b_qp.qp, i, &[buffer]),
                _ => {}
            }
        }
        steer(&mut m, 50, 0, 0, 1024);
        steer(&mut m, 3, 0, 0, 1024);
        m.a.ring(&mut m.a_qp.qp);
        let chunks = &mut m.a_qp.chunks;
        assert!(m.net.run_until(1000, |_| chunks.done() == 2));
        assert!(m.b_cq.ring.poll().is_none());
        assert_eq!(assigned(&mut m), 51);
        let change = QpChange { to: Some(to), ..QpChange::default() };
        m.b.modify(&mut m.net, &m.b_qp.qp, change).unwrap();
        let count = match (shared, to) {
            (false, QpState::Reset) => 0,
            (false, _) => 60,
            (true, _) => 51,
        };
        let expected: Vec<_> = (0..count).map(|i| (i, WC_WR_FLUSH_ERR)).collect();
        assert_eq!(b_completions(&mut m), expected, "{shared} {to:?}");
        assert_eq!(assigned(&mut m), 0, "{shared} {to:?}");
    }
}

/// A queue pair with a shared receive queue that has failed is reset as any other: its receives have been flushed, and those left are others'.
#[test]
fn a_failed_group_with_a_shared_queue_is_reset() {
    let mut m = Multi::new(4);
    let mut srq = with_srq(&mut m);
    for i in 0..4 {
        let buffer = sge(&m.b_mr, 0, 4096);
        m.b.post_srq_recv(&mut srq, i, &[buffer]);
    }
    steer(&mut m, 1, 0, 0, 1024);
    steer(&mut m, 1, 0, 0, 8192);
    m.post(SEND_OP_SEND, 1, 0, 64);
    m.net.run(20);
    assert_eq!(m.states()[1], QpState::Err);
    let change = QpChange { to: Some(QpState::Reset), ..QpChange::default() };
    m.b.modify(&mut m.net, &m.b_qp.qp, change.clone()).unwrap();
    m.a.modify(&mut m.net, &m.a_qp.qp, change).unwrap();
    let all = b_completions(&mut m);
    assert!(all.contains(&(1, WC_LOC_LEN_ERR)) && all.len() == 2, "{all:?}");
    assert_eq!(m.states(), [QpState::Reset; 2]);
}

/// After RESET receives count from 0 again, at both ends.
#[test]
fn receives_count_from_the_beginning_after_reset() {
    const LEN: u32 = 100 << 10;
    let mut m = Multi::new(4);
    for round in 0..3u64 {
        m.a.write(m.a_mr.gpa, &pattern(LEN as usize, round as u8));
        for i in 0..2 {
            post_recv(&mut m, i, i, LEN);
            send(&mut m, SEND_OP_SEND, i, i as u32, 0, LEN);
            assert_eq!(m.completion(), (i, WC_SUCCESS));
            let cqe = wait(&mut m.net, &mut m.b_cq);
            assert_eq!((cqe.wr_id, cqe.byte_len), (i, LEN));
            assert!(received(&m, i, LEN).0 == pattern(LEN as usize, round as u8));
        }
        let reset = || QpChange { to: Some(QpState::Reset), ..QpChange::default() };
        m.a.modify(&mut m.net, &m.a_qp.qp, reset()).unwrap();
        m.b.modify(&mut m.net, &m.b_qp.qp, reset()).unwrap();
        m.a_qp.qp.sq.reset();
        m.a_qp.chunks.reset();
        m.b_qp.qp.rq.reset();
        m.connect(4, &Options::default());
    }
}

/// Losses, duplicates and reordering on all paths: all bytes arrive once, in order, with receives that come late now and then.
#[test]
fn losses_change_nothing() {
    let faults = FaultInjection { drop: 0.02, duplicate: 0.01, reorder: 0.05, ..FaultInjection::default() };
    let mut m = Multi::with(4, Some(faults), &Options { min_rnr_timer: 1, ..Options::default() });
    let mut seed = 0x1234_5678u32;
    let mut random = |most: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % most
    };
    for round in 0..25u64 {
        let lens = [0; 3].map(|_| 8192 + random(300 << 10));
        let posted = random(4) as usize;
        let number = 3 * round;
        for (i, len) in lens.into_iter().enumerate() {
            let data = pattern(len as usize, number as u8 + i as u8);
            m.a.write(m.a_mr.gpa + SLOT * i as u64, &data);
        }
        let wr_ids = [0, 1, 2].map(|i| number + i);
        (0..posted.min(3)).for_each(|i| post_recv(&mut m, wr_ids[i], i as u64, lens[i]));
        for i in 0..3 {
            send(&mut m, SEND_OP_SEND, wr_ids[i], wr_ids[i] as u32, SLOT * i as u64, lens[i]);
        }
        m.net.run(3);
        (posted..3).for_each(|i| post_recv(&mut m, wr_ids[i], i as u64, lens[i]));
        for i in 0..3 {
            assert_eq!(m.completion(), (wr_ids[i], WC_SUCCESS));
            let cqe = wait(&mut m.net, &mut m.b_cq);
            assert_eq!(
                (cqe.wr_id, cqe.status, cqe.byte_len),
                (wr_ids[i], WC_SUCCESS, lens[i]),
                "round {round}"
            );
            m.b_qp.qp.rq.complete(cqe.consumer);
            let (data, _) = received(&m, i as u64, lens[i]);
            assert!(data == pattern(lens[i] as usize, number as u8 + i as u8), "round {round}, {i}");
        }
        let producer = m.a_qp.qp.sq.producer();
        m.a_qp.qp.sq.complete(producer);
        m.a_qp.chunks.done();
    }
}
