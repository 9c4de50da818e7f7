//! Queue pairs with several paths: how they fail and end as one, also under a guest that means no good, and move between engines whole.

mod common;

use common::multipath::*;
use common::*;
use masq_driver::*;
use masq_rnic::RnicConfig;
use masq_types::WireQpn;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

const CHUNK: u32 = 64 << 10;

/// A chunk that the peer refuses: what was posted before it succeeds, the message fails with the chunk's status, the rest is flushed; both
/// ends are in ERR, and the peer's guest learns of it by its own queue pair.
#[test]
fn a_refused_chunk_fails_the_group_in_order() {
    // On each member in turn: the chunks before it are one for each.
    for place in 0..4 {
        let mut m = Multi::new(4);
        m.message(SEND_OP_RDMA_WRITE, 1, 0, 256 << 10, CHUNK);
        m.post(SEND_OP_RDMA_WRITE, 2, MR - 64, 64);
        let done = m.a_qp.chunks.producer();
        let chunks = &mut m.a_qp.chunks;
        // The tail and what follows may well be on their way still.
        assert!(m.net.run_until(1000, |_| chunks.done() == done));
        for _ in 0..place {
            m.chunk(SEND_OP_RDMA_WRITE, 0, CHUNK);
        }
        let wrong = SendRequest { opcode: SEND_OP_RDMA_WRITE, rkey: 0xbad, ..SendRequest::default() };
        m.chunk_as(&wrong, 0, CHUNK);
        for _ in 0..8 {
            m.chunk(SEND_OP_RDMA_WRITE, 0, CHUNK);
        }
        let until = m.a_qp.chunks.producer();
        m.wait_for(3, until);
        m.post(SEND_OP_RDMA_WRITE, 4, 0, 64);
        m.post(SEND_OP_RDMA_WRITE, 5, 0, 64);
        let flushed = WC_WR_FLUSH_ERR;
        assert_eq!(
            m.completions(),
            [(1, WC_SUCCESS), (2, WC_SUCCESS), (4, WC_REM_ACCESS_ERR), (5, flushed)],
            "{place}"
        );
        assert_eq!(m.states(), [QpState::Err; 2]);
        assert_eq!(m.faults(1), [QpFault::Access]);
        assert!(m.faults(0).is_empty(), "a completion tells it");
    }
}

/// A chunk that fails on its own side: of memory that is not the guest's.
#[test]
fn a_chunk_of_foreign_memory_fails_the_group() {
    let mut m = Multi::new(4);
    // What is under way before it is given time to be done: the leader sends this, and two chunks after it.
    m.post(SEND_OP_RDMA_WRITE, 1, 0, 1 << 20);
    m.chunk(SEND_OP_RDMA_WRITE, 2 << 20, 64);
    m.chunk(SEND_OP_RDMA_WRITE, 2 << 20, 64);
    let chunk = to(&m.b_mr, 0, SendRequest { opcode: SEND_OP_RDMA_WRITE, ..SendRequest::default() });
    let foreign = vrdma_abi::ring::Sge { addr: m.a_mr.gpa, length: 4096, lkey: 0xbad };
    m.a_qp.chunks.post(&chunk, &[foreign]).unwrap();
    m.a_qp.chunks.publish();
    m.wait_for(3, 1);
    m.post(SEND_OP_RDMA_WRITE, 4, 0, 64);
    m.post(SEND_OP_RDMA_WRITE, 5, 0, 64);
    assert_eq!(m.completions(), [(1, WC_SUCCESS), (4, WC_LOC_PROT_ERR), (5, WC_WR_FLUSH_ERR)]);
    assert_eq!(m.states()[0], QpState::Err);
}

/// A message of which all chunks are done is not failed by a later one's, though its end has not been sent yet.
#[test]
fn a_message_whose_chunks_are_done_succeeds() {
    let mut m = Multi::new(4);
    m.a.write(m.a_mr.gpa + MR - 64, &[7; 64]);
    // Before this is done the leader takes nothing else.
    m.post(SEND_OP_RDMA_WRITE, 1, 0, 2 << 20);
    for _ in 0..3 {
        m.chunk(SEND_OP_RDMA_WRITE, 2 << 20, 64);
    }
    let whole = m.a_qp.chunks.producer();
    m.wait_for(2, whole);
    m.post(SEND_OP_RDMA_WRITE, 2, MR - 64, 64);
    let (opcode, flags) = (SEND_OP_RDMA_WRITE, SEND_AFTER_CHUNK);
    let next = to(&m.b_mr, 0, SendRequest { opcode, flags, imm_or_inv: whole, ..SendRequest::default() });
    let foreign = vrdma_abi::ring::Sge { addr: m.a_mr.gpa, length: 4096, lkey: 0xbad };
    m.a_qp.chunks.post(&next, &[foreign]).unwrap();
    m.a_qp.chunks.publish();
    let until = m.a_qp.chunks.producer();
    m.wait_for(3, until);
    m.post(SEND_OP_RDMA_WRITE, 3, 0, 64);
    m.post(SEND_OP_RDMA_WRITE, 4, 0, 64);
    let (flushed, failed) = (WC_WR_FLUSH_ERR, WC_LOC_PROT_ERR);
    assert_eq!(m.completions(), [(1, WC_SUCCESS), (2, WC_SUCCESS), (3, failed), (4, flushed)]);
    assert_eq!(m.b.read(m.b_mr.gpa + MR - 64, 64), [7; 64]);
    assert_eq!(m.a_qp.chunks.done(), whole);
    assert_eq!(m.states()[0], QpState::Err);
}

/// The status is told by the first request that is posted later, when there is none yet.
#[test]
fn a_failure_waits_for_who_tells_it() {
    let mut m = Multi::new(4);
    let wrong = SendRequest { opcode: SEND_OP_RDMA_READ, rkey: 0xbad, ..SendRequest::default() };
    m.chunk_as(&wrong, 0, 64);
    m.a.ring(&mut m.a_qp.qp);
    assert!(m.completions().is_empty());
    assert_eq!(m.states(), [QpState::Err; 2]);
    m.wait_for(1, 1);
    m.post(SEND_OP_RDMA_WRITE, 2, 0, 64);
    m.post(SEND_OP_RDMA_WRITE, 3, 0, 64);
    assert_eq!(m.completions(), [(2, WC_REM_ACCESS_ERR), (3, WC_WR_FLUSH_ERR)]);
}

/// Requests before the failure that are never acknowledged do not keep it from being told.
#[test]
fn a_failure_is_told_though_the_peer_answers_nothing_else() {
    let mut m = Multi::new(4);
    // There is no receive, so that this one is not done, nor is what the leader takes after it.
    m.post(SEND_OP_SEND, 1, 0, 64);
    m.chunk(SEND_OP_RDMA_WRITE, 0, 64);
    m.chunk(SEND_OP_RDMA_WRITE, 0, 64);
    m.a.ring(&mut m.a_qp.qp);
    m.net.run(5);
    let wrong = SendRequest { opcode: SEND_OP_RDMA_WRITE, rkey: 0xbad, ..SendRequest::default() };
    m.chunk_as(&wrong, 0, 64);
    m.wait_for(2, 3);
    m.post(SEND_OP_RDMA_WRITE, 2, 0, 64);
    assert_eq!(m.completions(), [(1, WC_REM_ACCESS_ERR), (2, WC_WR_FLUSH_ERR)]);
}

/// What the guest does to its queue pair is done to the hidden ones: none of them answers any more.
#[test]
fn the_guest_moves_all_of_it() {
    for to in [QpState::Err, QpState::Reset] {
        let mut m = Multi::new(4);
        m.message(SEND_OP_RDMA_WRITE, 1, 0, 2 << 20, CHUNK);
        m.net.run_until(1000, |net| net.counter(1, "rcvd_pkts") > 20);
        m.modify_a(to);
        m.net.run(2);
        let received = m.net.counter(1, "rcvd_pkts");
        m.net.run(20);
        assert_eq!(m.net.counter(1, "rcvd_pkts"), received, "nothing is sent any more");
        let flushed = m.completions();
        match to {
            QpState::Err => assert_eq!(flushed, [(1, WC_WR_FLUSH_ERR)], "the tail, and not its WAIT"),
            _ => assert!(flushed.is_empty()),
        }
    }
}

/// After RESET it begins anew, with as many paths as the new connection has.
#[test]
fn it_is_used_again_after_reset() {
    let mut m = Multi::new(4);
    for paths in [4, 2, 1, 3, 4] {
        m.message(SEND_OP_RDMA_WRITE, 1, 0, 1 << 20, CHUNK);
        if m.a_qp.chunks.paths() > 1 {
            assert_eq!(m.completion(), (1, WC_SUCCESS));
        }
        m.renew(paths);
        assert_eq!(m.a_qp.chunks.paths(), paths as u32);
        let taken = m.a_qp.chunks_gpa + std::mem::offset_of!(WorkHeader, taken) as u64;
        assert_eq!(m.a.read(taken, 4), [0; 4], "nothing of the new connection is done");
        assert_eq!(m.paths().len(), if paths > 1 { paths } else { 0 });
    }
}

/// When a connection is revoked, or its guest moves it to ERR, nothing is placed any more, on any path, from that moment on.
#[test]
fn a_connection_that_ends_has_no_path_left() {
    for revoked in [true, false] {
        let mut m = Multi::new(4);
        m.a.write(m.a_mr.gpa, &vec![1; 3 << 20]);
        m.message(SEND_OP_RDMA_WRITE, 1, 0, 3 << 20, CHUNK);
        m.net.run_until(1000, |net| net.counter(1, "rcvd_pkts") > 20);
        let (vnic, qp) = (m.b.id, m.b_qp.qp.handle);
        let change = QpChange { to: Some(QpState::Err), ..QpChange::default() };
        let end = match revoked {
            true => Command::RevokeQp { vnic, qp },
            false => Command::ModifyQp { vnic, qp, change },
        };
        m.net.execute(1, end).unwrap();
        let (gpa, len) = (m.b_mr.gpa, 3 << 20);
        m.b.write(gpa, &vec![0; len]);
        m.net.run(50);
        assert!(m.b.read(gpa, len).iter().all(|b| *b == 0), "{revoked}");
        assert_eq!(m.states()[1], QpState::Err);
        let faults: &[QpFault] = if revoked { &[QpFault::Fatal] } else { &[] };
        assert_eq!(m.faults(1), faults);
    }
}

/// A queue pair that is destroyed takes the hidden ones along: others can have their numbers.
#[test]
fn a_destroyed_queue_pair_leaves_nothing() {
    let mut m = Multi::new(4);
    m.message(SEND_OP_RDMA_WRITE, 1, 0, 2 << 20, CHUNK);
    m.net.run_until(1000, |net| net.counter(1, "rcvd_pkts") > 20);
    let options = Options::default();
    let (vnic, wire) = (m.a.id, m.a_qp.qp.wire);
    m.net.execute(0, Command::DestroyQp { vnic, qp: m.a_qp.qp.handle }).unwrap();
    m.net.execute(1, Command::DestroyQp { vnic: m.b.id, qp: m.b_qp.qp.handle }).unwrap();
    // An ordinary one with a sibling's number, at that one's address.
    let number = WireQpn::new(wire.get() + 2).unwrap();
    let plain = m.a.qp_with(&mut m.net, &m.a_cq, &m.a_cq, |init| init.wire_qpn = number);
    let on_path = m.connection(0, 4, &options).on_path(2).unwrap();
    m.a.to_rtr_by(&mut m.net, &plain, on_path, &options);
    m.net.run(50);
    m.net.execute(0, Command::DetachVnic { vnic }).unwrap();
    m.net.execute(1, Command::DetachVnic { vnic: m.b.id }).unwrap();
    m.net.run(50);
}

/// A number that is taken at any of the addresses is taken, and what has been prepared is given up again.
#[test]
fn a_sibling_takes_no_number_that_another_has() {
    let mut m = Multi::new(4);
    let options = Options::default();
    m.modify_a(QpState::Reset);
    m.a_qp.qp.sq.reset();
    let number = WireQpn::new(m.a_qp.qp.wire.get() + 3).unwrap();
    let plain = m.a.qp_with(&mut m.net, &m.a_cq, &m.a_cq, |init| init.wire_qpn = number);
    let on_path = m.connection(0, 4, &options).on_path(3).unwrap();
    m.a.to_rtr_by(&mut m.net, &plain, on_path, &options);
    let init = QpChange { to: Some(QpState::Init), access: Some(all_access()), ..QpChange::default() };
    m.a.modify(&mut m.net, &m.a_qp.qp, init).unwrap();
    let rtr = QpChange {
        to: Some(QpState::Rtr),
        connection: Some(m.connection(0, 4, &options)),
        path_mtu: Some(options.mtu),
        rq_psn: Some(Default::default()),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(12),
        ..QpChange::default()
    };
    let refused = m.a.modify(&mut m.net, &m.a_qp.qp, rtr.clone());
    assert!(matches!(refused, Err(DriverError::Exists(_))), "{refused:?}");
    m.net.execute(0, Command::DestroyQp { vnic: m.a.id, qp: plain.handle }).unwrap();
    m.a.modify(&mut m.net, &m.a_qp.qp, rtr).unwrap();
    assert_eq!(m.a_qp.chunks.paths(), 4);
}

/// The send queue is drained when the chunks that have been begun are done, and those behind them wait for RTS.
#[test]
fn draining_ends_with_the_last_chunk() {
    let mut m = Multi::new(4);
    let until = m.message(SEND_OP_RDMA_WRITE, 1, 0, 3 << 20, CHUNK);
    m.net.run_until(1000, |net| net.counter(1, "rcvd_pkts") > 20);
    m.net.events[0].take();
    let to = Some(QpState::Sqd);
    let sqd = QpChange { to, sq_drained_notify: Some(true), ..QpChange::default() };
    m.a.modify(&mut m.net, &m.a_qp.qp, sqd).unwrap();
    assert!(m.net.events[0].take().is_empty(), "chunks are under way");
    m.net.run(100);
    let drained = m.net.events[0].take();
    assert!(matches!(drained[..], [Event::SqDrained { .. }]), "{drained:?}");
    let done = m.a_qp.chunks.done();
    assert!(done > 0 && done < until, "{done} of {until}");
    m.modify_a(QpState::Rts);
    assert_eq!(m.completion(), (1, WC_SUCCESS));
}

/// That the leader itself has nothing to finish is not enough.
#[test]
fn draining_waits_for_hidden_queue_pairs() {
    let mut m = Multi::new(4);
    // The leader takes the first two.
    m.chunk(SEND_OP_RDMA_WRITE, 0, 64);
    m.chunk(SEND_OP_RDMA_WRITE, 0, 64);
    for _ in 0..3 {
        m.chunk(SEND_OP_RDMA_WRITE, 0, 3 << 20);
    }
    m.a.ring(&mut m.a_qp.qp);
    m.a.mark(m.a_qp.qp.slot, m.a_qp.qp.index);
    let chunks = &mut m.a_qp.chunks;
    assert!(m.net.run_until(1000, |_| chunks.done() == 2));
    m.net.events[0].take();
    let to = Some(QpState::Sqd);
    let sqd = QpChange { to, sq_drained_notify: Some(true), ..QpChange::default() };
    m.a.modify(&mut m.net, &m.a_qp.qp, sqd).unwrap();
    let query = Command::QueryQp { vnic: m.a.id, qp: m.a_qp.qp.handle };
    let Ok(Reply::Qp(status)) = m.net.execute(0, query) else { panic!("no status") };
    assert!(m.net.events[0].take().is_empty() && status.sq_draining);
    m.net.run(1000);
    assert!(matches!(m.net.events[0].take()[..], [Event::SqDrained { .. }]));
    assert_eq!(m.a_qp.chunks.done(), 5);
}

/// A group moves between engines with all its members, in the middle of a message, back and forth.
#[test]
fn a_group_moves_to_another_engine_whole() {
    let mut net = Net::group(&RnicConfig::default(), 2);
    net.add(&RnicConfig::default());
    let mut m = Multi::on(net, 2, 4, &Options::default());
    for round in 0..6u64 {
        let data = pattern(3 << 20, round as u8);
        m.a.write(m.a_mr.gpa, &data);
        m.message(SEND_OP_RDMA_WRITE, round, 0, 3 << 20, CHUNK);
        let before = m.net.counter(2, "rcvd_pkts");
        m.net.run_until(1000, |net| net.counter(2, "rcvd_pkts") > before + 100 * round);
        m.net.move_guest(&mut m.a, (round as usize + 1) % 2);
        assert_eq!(m.completion(), (round, WC_SUCCESS));
        assert!(m.b.read(m.b_mr.gpa, 3 << 20) == data, "round {round}");
        let (sent, chunks) = (m.a_qp.qp.sq.producer(), m.a_qp.chunks.producer());
        m.a_qp.qp.sq.complete(sent);
        assert_eq!(m.a_qp.chunks.done(), chunks);
        // All members have come along.
        let carried = |m: &mut Multi| m.paths().iter().map(|p| p.chunks).collect::<Vec<_>>();
        let before = carried(&mut m);
        m.message(SEND_OP_RDMA_WRITE, round, 0, 1 << 20, CHUNK);
        assert_eq!(m.completion(), (round, WC_SUCCESS));
        let after = carried(&mut m);
        assert_eq!(after.len(), 4);
        assert!(before.iter().zip(&after).all(|(b, a)| a > b), "{before:?} {after:?}");
    }
}
