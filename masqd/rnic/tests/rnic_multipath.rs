//! Queue pairs with several paths: chunks on all of them, and what waits for what.

mod common;

use common::multipath::*;
use common::*;
use masq_driver::*;
use masq_rnic::FaultInjection;
use masq_types::Features;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

const CHUNK: u32 = 64 << 10;

/// A message's chunks go by all paths, its tail comes last, and it has one completion.
#[test]
fn a_message_goes_by_all_paths() {
    const LEN: u32 = 2 << 20;
    for opcode in [SEND_OP_RDMA_WRITE, SEND_OP_RDMA_READ] {
        let mut m = Multi::new(4);
        assert_eq!(m.a_qp.chunks.paths(), 4);
        let (from, to) = match opcode {
            SEND_OP_RDMA_WRITE => (m.a_mr, m.b_mr),
            _ => (m.b_mr, m.a_mr),
        };
        for end in [&m.a, &m.b] {
            let mr = if end.id == m.a.id { m.a_mr } else { m.b_mr };
            if mr.gpa == from.gpa {
                end.write(mr.gpa, &pattern(LEN as usize, opcode));
            }
        }
        let until = m.message(opcode, 7, 0, LEN, CHUNK);
        let cqe = wait(&mut m.net, &mut m.a_cq);
        assert_eq!((cqe.wr_id, cqe.status), (7, WC_SUCCESS));
        assert!(opcode == SEND_OP_RDMA_WRITE || cqe.byte_len == LEN, "{} bytes read", cqe.byte_len);
        let target = if opcode == SEND_OP_RDMA_WRITE { &m.b } else { &m.a };
        assert!(target.read(to.gpa, LEN as usize) == pattern(LEN as usize, opcode));
        assert_eq!(m.a_qp.chunks.done(), until);
        assert!(m.a_cq.ring.poll().is_none());
        let paths = m.paths();
        assert_eq!(paths.len(), 4);
        for (i, path) in paths.iter().enumerate() {
            assert!(path.chunks > 0 && path.traffic.tx_bytes > 0 && path.traffic.rx_bytes > 0, "path {i}");
            assert_eq!((path.chunks_under_way, path.ends.is_local), (0, false));
            assert_eq!(path.ends.remote_qpn.get(), m.b_qp.qp.wire.get() + i as u32);
        }
        assert_eq!(paths.iter().map(|p| p.chunks).sum::<u64>(), u64::from(until));
    }
}

/// As many paths as there can be, and a number that is no power of two: all carry, are drained together, and go on.
#[test]
fn many_paths_are_used_and_drained() {
    const LEN: u32 = 3 << 20;
    for count in [10, usize::from(GroupAttr::MAX_MEMBERS)] {
        let mut m = Multi::new(count);
        assert_eq!((m.a_qp.chunks.paths(), m.b_qp.chunks.paths()), (count as u32, count as u32));
        for round in 0..3 {
            let data = pattern(LEN as usize, round as u8);
            m.a.write(m.a_mr.gpa, &data);
            let before: Vec<u64> = m.paths().iter().map(|p| p.chunks).collect();
            m.message(SEND_OP_RDMA_WRITE, round, 0, LEN, CHUNK);
            assert_eq!(m.completion(), (round, WC_SUCCESS));
            assert!(m.b.read(m.b_mr.gpa, LEN as usize) == data, "{count} paths, round {round}");
            let (sent, after) = (m.a_qp.qp.sq.producer(), m.paths());
            m.a_qp.qp.sq.complete(sent);
            assert_eq!(after.len(), count);
            for (path, (before, after)) in before.iter().zip(after).enumerate() {
                assert!(after.chunks > *before, "path {path} of {count}, round {round}");
                assert_eq!(after.ends.remote_qpn.get(), m.b_qp.qp.wire.get() + path as u32);
            }
            let sqd =
                QpChange { to: Some(QpState::Sqd), sq_drained_notify: Some(true), ..QpChange::default() };
            m.a.modify(&mut m.net, &m.a_qp.qp, sqd).unwrap();
            m.net.run(20);
            let drained = m.net.events[0].take();
            assert!(matches!(drained[..], [Event::SqDrained { .. }]), "{count} paths: {drained:?}");
            m.modify_a(QpState::Rts);
        }
    }
}

/// Where a guest wants fewer paths than there are, its chunks take the first, whatever the peer does; what it wants is looked at when it connects.
#[test]
fn a_guest_can_do_with_fewer_paths() {
    const LEN: u32 = 2 << 20;
    let mut m = Multi::new(4);
    for (most, used) in [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (u32::MAX, 4), (0, 4)] {
        m.a_qp.chunks.limit_paths(most);
        m.renew(4);
        assert_eq!((m.a_qp.chunks.paths(), m.b_qp.chunks.paths()), (used, 4), "at most {most}");
        // It counts from the next connection on.
        m.a_qp.chunks.limit_paths(0);
        let data = pattern(LEN as usize, used as u8);
        m.a.write(m.a_mr.gpa, &data);
        let until = m.message(SEND_OP_RDMA_WRITE, 7, 0, LEN, CHUNK);
        assert_eq!(m.completion(), (7, WC_SUCCESS));
        assert!(m.b.read(m.b_mr.gpa, LEN as usize) == data);
        let carried: Vec<u64> = m.paths().iter().map(|p| p.chunks).collect();
        assert_eq!((carried.len(), carried.iter().sum::<u64>()), (4, until.into()));
        let users = carried.iter().filter(|chunks| **chunks > 0).count();
        assert!(users == used as usize && carried[..users].iter().all(|chunks| *chunks > 0), "{carried:?}");
    }
}

/// As long as there are paths that have nothing, no path takes a second chunk.
#[test]
fn few_chunks_go_by_as_many_paths() {
    let mut m = Multi::new(4);
    for chunks in 1..=8u32 {
        let before = m.paths().iter().map(|p| p.chunks).collect::<Vec<_>>();
        m.message(SEND_OP_RDMA_WRITE, 7, 0, chunks * CHUNK + 4096, CHUNK);
        assert_eq!(m.completion(), (7, WC_SUCCESS));
        let carried = m.paths().iter().zip(before).map(|(p, before)| p.chunks - before).collect::<Vec<_>>();
        assert_eq!(carried.iter().sum::<u64>(), u64::from(chunks));
        let used = carried.iter().filter(|chunks| **chunks > 0).count();
        assert_eq!(used, chunks.min(4) as usize, "{chunks} chunks: {carried:?}");
        let sent = m.a_qp.qp.sq.producer();
        m.a_qp.qp.sq.complete(sent);
    }
}

/// Messages one after another: their completions come in the order of the send queue, and small ones between them as well.
#[test]
fn completions_come_in_order() {
    let mut m = Multi::new(4);
    for round in 0..4u64 {
        m.message(SEND_OP_RDMA_WRITE, 10 * round, 0, 256 << 10, CHUNK);
        m.post(SEND_OP_RDMA_WRITE, 10 * round + 1, MR - 64, 64);
    }
    for round in 0..4u64 {
        assert_eq!(m.completion(), (10 * round, WC_SUCCESS));
        assert_eq!(m.completion(), (10 * round + 1, WC_SUCCESS));
    }
}

/// What is behind a WAIT does not start before the chunks are done, also when they are posted after it.
#[test]
fn a_wait_holds_what_is_behind_it() {
    let mut m = Multi::new(4);
    m.wait_for(1, 2);
    m.post(SEND_OP_RDMA_WRITE, 2, 0, 64);
    m.net.run(50);
    assert!(m.a_cq.ring.poll().is_none());
    m.chunk(SEND_OP_RDMA_WRITE, 4096, CHUNK);
    m.a.ring(&mut m.a_qp.qp);
    m.net.run(50);
    assert!(m.a_cq.ring.poll().is_none(), "one of two");
    assert_eq!(m.a_qp.chunks.done(), 1);
    m.chunk(SEND_OP_RDMA_WRITE, 4096, CHUNK);
    m.a.ring(&mut m.a_qp.qp);
    assert_eq!(m.completion(), (2, WC_SUCCESS));
}

/// Many WAITs that have been reached are passed, however many they are.
#[test]
fn waits_that_are_reached_hold_nothing() {
    let mut m = Multi::new(4);
    for _ in 0..10 {
        for _ in 0..63 {
            m.wait_for(1, 0);
        }
        m.post(SEND_OP_RDMA_WRITE, 2, 0, 64);
        assert_eq!(m.completion(), (2, WC_SUCCESS));
        let consumer = m.a_qp.qp.sq.producer();
        m.a_qp.qp.sq.complete(consumer);
    }
}

/// A chunk that waits for another one to be done changes the same bytes after it.
#[test]
fn chunks_wait_for_chunks() {
    const LEN: u32 = 512 << 10;
    let mut m = Multi::new(4);
    m.a.write(m.a_mr.gpa, &pattern(LEN as usize, 1));
    m.a.write(m.a_mr.gpa + MR / 2, &vec![9; 4096]);
    // There are paths for all three of them: the short one is on a path of its own.
    m.chunk(SEND_OP_RDMA_WRITE, MR / 2, 64);
    let first = m.chunk(SEND_OP_RDMA_WRITE, 0, LEN);
    let after = SendRequest {
        opcode: SEND_OP_RDMA_WRITE,
        flags: SEND_AFTER_CHUNK,
        imm_or_inv: first,
        ..SendRequest::default()
    };
    // The end of the first: without waiting, this small one would be there long before.
    let chunk = to(&m.b_mr, u64::from(LEN) - 4096, after);
    m.chunk_as(&chunk, MR / 2, 4096);
    m.wait_for(1, 3);
    m.post(SEND_OP_RDMA_WRITE, 2, MR - 64, 64);
    assert_eq!(m.completion(), (2, WC_SUCCESS));
    let got = m.b.read(m.b_mr.gpa, LEN as usize);
    assert!(got[..LEN as usize - 4096] == pattern(LEN as usize, 1)[..LEN as usize - 4096]);
    assert!(got[LEN as usize - 4096..] == [9; 4096]);
}

/// Messages for the same place, each of as many chunks as there are paths: few may start at once, and yet all paths have their part.
#[test]
fn chunks_that_wait_for_one_another_go_by_all_paths() {
    const COUNT: u32 = 48;
    let mut m = Multi::new(4);
    for number in 0..COUNT {
        let flags = if number < 4 { 0 } else { SEND_AFTER_CHUNK };
        let opcode = SEND_OP_RDMA_WRITE;
        let imm_or_inv = number.saturating_sub(3);
        let chunk = SendRequest { opcode, flags, imm_or_inv, ..SendRequest::default() };
        let offset = u64::from(number % 4 * CHUNK);
        m.chunk_as(&to(&m.b_mr, offset, chunk), offset, CHUNK);
    }
    m.wait_for(1, COUNT);
    m.post(SEND_OP_RDMA_WRITE, 2, MR - 64, 64);
    assert_eq!(m.completion(), (2, WC_SUCCESS));
    let carried: Vec<u64> = m.paths().iter().map(|path| path.chunks).collect();
    assert!(carried.iter().all(|chunks| *chunks >= u64::from(COUNT / 8)), "{carried:?}");
}

/// A chunk waits for requests of the send queue, and holds up those behind it, as long as those requests are not done.
#[test]
fn chunks_wait_for_requests() {
    let mut m = Multi::new(4);
    let after = |index: u32| SendRequest {
        opcode: SEND_OP_RDMA_WRITE,
        flags: SEND_AFTER_SQ,
        wr_id: u64::from(index) | 0xdead << 32,
        ..SendRequest::default()
    };
    let chunk = to(&m.b_mr, 0, after(1));
    m.chunk_as(&chunk, 0, 64);
    m.chunk(SEND_OP_RDMA_WRITE, 4096, 64);
    m.a.ring(&mut m.a_qp.qp);
    m.net.run(50);
    assert_eq!(m.a_qp.chunks.done(), 0);
    m.post(SEND_OP_RDMA_WRITE, 1, 8192, 64);
    assert_eq!(m.completion(), (1, WC_SUCCESS));
    m.net.run(50);
    assert_eq!(m.a_qp.chunks.done(), 2);
    // A WAIT counts as done when it has been passed.
    m.wait_for(2, 2);
    let chunk = to(&m.b_mr, 0, after(2));
    m.chunk_as(&chunk, 0, 64);
    m.a.ring(&mut m.a_qp.qp);
    m.net.run(50);
    assert_eq!(m.a_qp.chunks.done(), 3);
}

/// A receive of the peer's that is posted late holds up one path, and the message that is behind it; the other paths go on.
#[test]
fn receives_are_taken_by_the_leader_alone() {
    let mut m = Multi::new(4);
    m.a.write(m.a_mr.gpa, &pattern(512 << 10, 3));
    m.post(SEND_OP_SEND, 1, 0, 64);
    let until = m.message(SEND_OP_RDMA_WRITE, 2, 4096, 256 << 10, CHUNK);
    m.net.run(20);
    let _ = until;
    m.b.post_recv(&mut m.b_qp.qp, 5, &[sge(&m.b_mr, MR / 2, 64)]);
    assert_eq!(m.completion(), (1, WC_SUCCESS));
    assert_eq!(m.completion(), (2, WC_SUCCESS));
    let received = wait(&mut m.net, &mut m.b_cq);
    assert_eq!((received.wr_id, received.byte_len, received.status), (5, 64, WC_SUCCESS));
    assert!(m.b.read(m.b_mr.gpa + 4096, 256 << 10) == pattern(512 << 10, 3)[4096..][..256 << 10]);
}

/// Random messages with losses, duplicates and reordering on all paths: all bytes arrive, in order.
#[test]
fn losses_change_nothing() {
    let faults = FaultInjection { drop: 0.02, duplicate: 0.01, reorder: 0.05, ..FaultInjection::default() };
    let mut m = Multi::with(4, Some(faults), &Options::default());
    let mut seed = 0x1234_5678u32;
    let mut random = |most: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % most
    };
    for round in 0..30u64 {
        let len = 8192 + random(700 << 10);
        let offset = u64::from(random(1 << 20));
        let data = pattern(len as usize, round as u8);
        m.a.write(m.a_mr.gpa + offset, &data);
        m.message(SEND_OP_RDMA_WRITE, round, offset, len, 16_384 + random(CHUNK));
        assert_eq!(m.completion(), (round, WC_SUCCESS));
        assert!(m.b.read(m.b_mr.gpa + offset, len as usize) == data, "round {round}");
        let (sent, chunks) = (m.a_qp.qp.sq.producer(), m.a_qp.chunks.producer());
        m.a_qp.qp.sq.complete(sent);
        assert_eq!(m.a_qp.chunks.done(), chunks);
    }
    assert!(m.paths().iter().all(|p| p.chunks > 10));
}

/// With one path the queue pair is like any other: its chunk ring is not looked at, and a WAIT is no request that it knows.
#[test]
fn one_path_is_no_group() {
    let mut m = Multi::new(1);
    assert_eq!(m.a_qp.chunks.paths(), 1);
    assert!(m.paths().is_empty());
    m.chunk(SEND_OP_RDMA_WRITE, 0, 64);
    m.post(SEND_OP_RDMA_WRITE, 1, 0, 64);
    assert_eq!(m.completion(), (1, WC_SUCCESS));
    m.net.run(20);
    assert_eq!(m.a_qp.chunks.done(), 0);
    m.wait_for(2, 0);
    m.a.ring(&mut m.a_qp.qp);
    assert_eq!(m.completion(), (2, WC_LOC_QP_OP_ERR));
}

/// Two guests of one RNIC have one path, whatever masqd says.
#[test]
fn a_local_peer_is_reached_by_one_path() {
    let net = Net::new(&[masq_rnic::RnicConfig::default()]);
    let mut m = Multi::on(net, 0, 4, &Options::default());
    assert_eq!((m.a_qp.chunks.paths(), m.b_qp.chunks.paths()), (1, 1));
    m.post(SEND_OP_RDMA_WRITE, 1, 0, 64);
    assert_eq!(m.completion(), (1, WC_SUCCESS));
}

/// More paths than the group has members, or than before, are refused, and nothing changes by that.
#[test]
fn connections_that_do_not_fit_are_refused() {
    let mut m = Multi::new(4);
    let options = Options::default();
    m.modify_a(QpState::Sqd);
    for paths in [1, 2] {
        let connection = Some(m.connection(0, paths, &options));
        let change = QpChange { to: Some(QpState::Sqd), connection, ..QpChange::default() };
        assert!(matches!(m.a.modify(&mut m.net, &m.a_qp.qp, change), Err(DriverError::Invalid(_))));
    }
    // The same paths again are other ports, perhaps.
    let connection = Some(m.connection(0, 4, &options));
    let change = QpChange { to: Some(QpState::Sqd), connection, ..QpChange::default() };
    m.a.modify(&mut m.net, &m.a_qp.qp, change).unwrap();
    m.modify_a(QpState::Rts);
    m.message(SEND_OP_RDMA_WRITE, 7, 0, 1 << 20, CHUNK);
    assert_eq!(m.completion(), (7, WC_SUCCESS));
}

/// A peer that turns out to know less is spoken to accordingly on all paths.
#[test]
fn all_paths_speak_what_the_peer_understands() {
    let faults = FaultInjection { drop: 0.02, ..FaultInjection::default() };
    let mut m = Multi::with(4, Some(faults), &Options::default());
    let told = |m: &mut Multi| [m.net.counter(0, "probes"), m.net.counter(1, "sent_selective_acks")];
    m.message(SEND_OP_RDMA_WRITE, 1, 0, 3 << 20, CHUNK);
    assert_eq!(m.completion(), (1, WC_SUCCESS));
    let before = told(&mut m);
    assert!(before[1] > 0, "{before:?}");
    let options = Options { features: Features::MULTIPATH, ..Options::default() };
    let connections = [0, 1].map(|end| Some(m.connection(end, 4, &options)));
    for (end, connection) in connections.into_iter().enumerate() {
        let (guest, qp) = if end == 0 { (&mut m.a, &m.a_qp.qp) } else { (&mut m.b, &m.b_qp.qp) };
        let sqd = QpChange { to: Some(QpState::Sqd), ..QpChange::default() };
        guest.modify(&mut m.net, qp, sqd.clone()).unwrap();
        guest.modify(&mut m.net, qp, QpChange { connection, ..sqd }).unwrap();
        let rts = QpChange { to: Some(QpState::Rts), ..QpChange::default() };
        guest.modify(&mut m.net, qp, rts).unwrap();
    }
    let carried = m.paths();
    m.message(SEND_OP_RDMA_WRITE, 2, 0, 3 << 20, CHUNK);
    assert_eq!(m.completion(), (2, WC_SUCCESS));
    assert!(m.paths().iter().zip(carried).all(|(now, then)| now.chunks > then.chunks));
    assert_eq!(told(&mut m), before);
}

/// Chunks are no messages of their own to those who count: not at their sender, and at the peer only those of WRITEs that come by the first path, where it
/// cannot tell them from others.
#[test]
fn a_split_message_counts_as_one() {
    for (opcode, sent, received) in
        [(SEND_OP_RDMA_WRITE, "sent_msgs", "rcvd_msgs"), (SEND_OP_RDMA_READ, "rcvd_msgs", "sent_msgs")]
    {
        let mut m = Multi::new(4);
        for i in 1..4 {
            m.message(opcode, i, 0, 1 << 20, CHUNK);
            assert_eq!(m.completion(), (i, WC_SUCCESS));
            m.net.run(5);
            let by_first = m.paths()[0].chunks;
            assert!(by_first > 0);
            let messages = [m.net.counter(0, sent), m.net.counter(1, received)];
            let seen = if opcode == SEND_OP_RDMA_WRITE { i + by_first } else { i };
            assert_eq!(messages, [i, seen]);
        }
    }
}
