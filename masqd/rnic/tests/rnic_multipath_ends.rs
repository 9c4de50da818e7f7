//! Queue pairs with several paths at their ends: what waits, fails or is in use when something else comes in between.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::multipath::*;
use common::*;
use masq_driver::*;
use masq_rnic::RnicConfig;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

const CHUNK: u32 = 64 << 10;

fn chunk_after(flag: u8, index: u32) -> SendRequest {
    SendRequest {
        opcode: SEND_OP_RDMA_WRITE,
        flags: flag,
        wr_id: index.into(),
        imm_or_inv: index,
        ..SendRequest::default()
    }
}

/// A chunk that the peer refuses.
fn wrong() -> SendRequest {
    SendRequest { opcode: SEND_OP_RDMA_WRITE, rkey: 0xbad, ..SendRequest::default() }
}

impl Multi {
    /// A request that waits for a receive, and with it what the leader takes then. A chunk that follows is a sibling's.
    fn hold_leader(&mut self) {
        self.post(SEND_OP_SEND, 1, 0, 64);
        self.chunk(SEND_OP_RDMA_WRITE, 0, 64);
        self.chunk(SEND_OP_RDMA_WRITE, 0, 64);
        self.a.ring(&mut self.a_qp.qp);
        self.net.run(2);
    }

    /// A message of two megabytes arrives whole.
    fn works(&mut self, round: u8) {
        let data = pattern(2 << 20, round);
        self.a.write(self.a_mr.gpa, &data);
        self.message(SEND_OP_RDMA_WRITE, round.into(), 0, 2 << 20, CHUNK);
        assert_eq!(self.completion(), (round.into(), WC_SUCCESS));
        assert!(self.b.read(self.b_mr.gpa, 2 << 20) == data);
    }
}

/// A WAIT that is passed while a request before it is under way is done when that is, also when nothing is behind it.
#[test]
fn a_wait_that_has_been_passed_is_done_with_the_request_before_it() {
    let mut m = Multi::new(4);
    m.chunk(SEND_OP_RDMA_WRITE, 0, 64);
    m.a.ring(&mut m.a_qp.qp);
    m.net.run(20);
    assert_eq!(m.a_qp.chunks.done(), 1);
    // Until there is a receive, it is under way.
    m.post(SEND_OP_SEND, 1, 0, 64);
    m.wait_for(2, 1);
    let chunk = to(&m.b_mr, 0, chunk_after(SEND_AFTER_SQ, 2));
    m.chunk_as(&chunk, 0, 64);
    m.a.ring(&mut m.a_qp.qp);
    m.net.run(20);
    assert_eq!(m.a_qp.chunks.done(), 1);
    m.b.post_recv(&mut m.b_qp.qp, 5, &[sge(&m.b_mr, MR / 2, 64)]);
    assert_eq!(m.completion(), (1, WC_SUCCESS));
    m.net.run(50);
    assert_eq!(m.a_qp.chunks.done(), 2);
}

/// Also in the middle of a failure, with requests that are given time still, a queue pair can be reset, destroyed and detached.
#[test]
fn a_failed_group_can_be_reset_at_any_moment() {
    let mut m = Multi::new(4);
    for turns in 0..12 {
        m.hold_leader();
        m.message(SEND_OP_RDMA_WRITE, 2, 0, 1 << 20, CHUNK);
        m.chunk_as(&wrong(), 0, CHUNK);
        m.message(SEND_OP_RDMA_WRITE, 3, 0, 1 << 20, CHUNK);
        for _ in 0..turns {
            m.net.turn_all();
        }
        m.renew(4);
        m.works(turns);
        assert!(m.faults(0).is_empty());
    }
    for turns in [1, 4, 7, 10] {
        let mut m = Multi::new(4);
        m.hold_leader();
        m.chunk_as(&wrong(), 0, CHUNK);
        m.message(SEND_OP_RDMA_WRITE, 3, 0, 1 << 20, CHUNK);
        for _ in 0..turns {
            m.net.turn_all();
        }
        let (vnic, qp) = (m.a.id, m.a_qp.qp.handle);
        m.net.execute(0, Command::DestroyQp { vnic, qp }).unwrap();
        m.net.run(5);
        m.net.execute(0, Command::DetachVnic { vnic }).unwrap();
        m.net.run(5);
    }
}

/// Moved in the middle of a failure, it still fails as one.
#[test]
fn a_failed_group_moves_whole() {
    let mut net = Net::group(&RnicConfig::default(), 2);
    net.add(&RnicConfig::default());
    let mut m = Multi::on(net, 2, 4, &Options::default());
    for turns in 0..12 {
        m.hold_leader();
        m.chunk_as(&wrong(), 0, CHUNK);
        m.message(SEND_OP_RDMA_WRITE, 3, 0, 1 << 20, CHUNK);
        for _ in 0..turns {
            m.net.turn_all();
        }
        m.net.move_guest(&mut m.a, 1);
        let flushed = WC_WR_FLUSH_ERR;
        assert_eq!(m.completions(), [(1, WC_REM_ACCESS_ERR), (3, flushed)], "{turns}");
        assert_eq!(m.states()[0], QpState::Err);
        m.net.move_guest(&mut m.a, 0);
        m.net.run(20);
        m.renew(4);
        m.works(turns);
    }
}

/// What waits for one another waits for ever, and harms nobody: neither another queue pair of the guest, nor the end.
#[test]
fn a_group_that_has_locked_itself_up_holds_up_nobody() {
    let mut m = Multi::new(4);
    // The chunk waits for the WAIT, and that for the chunk; the queues behind both are full.
    let chunk = to(&m.b_mr, 0, chunk_after(SEND_AFTER_SQ, 1));
    m.chunk_as(&chunk, 0, 64);
    m.wait_for(1, 1);
    m.post(SEND_OP_RDMA_WRITE, 1, 0, 64);
    for _ in 1..CHUNKS {
        m.chunk(SEND_OP_RDMA_WRITE, 0, CHUNK);
    }
    m.a.ring(&mut m.a_qp.qp);
    let (a_cq, b_cq) = (m.a.cq(&mut m.net, 16), m.b.cq(&mut m.net, 16));
    let (mut a_qp, b_qp) = (m.a.qp(&mut m.net, &a_cq, &a_cq), m.b.qp(&mut m.net, &b_cq, &b_cq));
    connect(&mut m.net, (&m.a, &a_qp), (&m.b, &b_qp), &Options::default());
    let mut a_cq = a_cq;
    let write = to(&m.b_mr, 0, request(SEND_OP_RDMA_WRITE, 9));
    m.a.post(&mut a_qp, &write, &[sge(&m.a_mr, 0, CHUNK)]);
    assert_eq!(wait(&mut m.net, &mut a_cq).status, WC_SUCCESS);
    assert!(m.a_cq.ring.poll().is_none());
    m.net.run(20);
    let idle = (0..4).filter(|_| !m.net.turn_all()).count();
    assert_eq!(idle, 4, "its engine rests");
    // Drained it is: none of it has begun.
    let sqd = QpChange { to: Some(QpState::Sqd), sq_drained_notify: Some(true), ..QpChange::default() };
    m.a.modify(&mut m.net, &m.a_qp.qp, sqd).unwrap();
    let drained = m.net.events[0].take();
    assert!(matches!(drained[..], [Event::SqDrained { .. }]), "{drained:?}");
    m.modify_a(QpState::Rts);
    m.modify_a(QpState::Err);
    assert_eq!(m.completions(), [(1, WC_WR_FLUSH_ERR)]);
    m.renew(4);
    m.works(1);
}

/// A failure in SQD ends it in ERR, and no event says that the queue has been drained.
#[test]
fn a_chunk_that_fails_while_the_queue_is_drained() {
    let mut m = Multi::new(4);
    m.message(SEND_OP_RDMA_WRITE, 1, 0, 1 << 20, CHUNK);
    for _ in 0..4 {
        m.chunk_as(&wrong(), 0, CHUNK);
    }
    m.a.ring(&mut m.a_qp.qp);
    m.net.run_until(1000, |net| net.counter(1, "rcvd_pkts") > 200);
    m.net.events[0].take();
    let sqd = QpChange { to: Some(QpState::Sqd), sq_drained_notify: Some(true), ..QpChange::default() };
    m.a.modify(&mut m.net, &m.a_qp.qp, sqd).unwrap();
    m.net.run(20);
    let drained = m.net.events[0].take();
    if m.states()[0] == QpState::Sqd {
        assert!(matches!(drained[..], [Event::SqDrained { .. }]), "{drained:?}");
        m.modify_a(QpState::Rts);
    }
    let all = m.completions();
    assert!(all == [(1, WC_REM_ACCESS_ERR)] || all == [(1, WC_SUCCESS)], "{all:?}");
    assert_eq!(m.states(), [QpState::Err; 2]);
}

/// The guest's memory goes: the queue pair fails, all of it, and nothing is left of it behind.
#[test]
fn memory_that_goes_away_ends_all_members() {
    let mut m = Multi::new(4);
    m.message(SEND_OP_RDMA_WRITE, 1, 0, 3 << 20, CHUNK);
    m.net.run_until(1000, |net| net.counter(1, "rcvd_pkts") > 20);
    m.net.execute(0, Command::SetMemory { vnic: m.a.id, regions: Vec::new() }).unwrap();
    m.net.run(200);
    assert_eq!(m.states()[0], QpState::Err);
    let received = m.net.counter(1, "rcvd_pkts");
    m.net.run(500);
    assert_eq!(m.net.counter(1, "rcvd_pkts"), received);
    m.a.set_memory(&mut m.net);
    m.renew(4);
    m.works(2);
}

/// The completion queue overruns while siblings have chunks under way.
#[test]
fn an_overrun_completion_queue_ends_all_members() {
    let mut m = Multi::new(4);
    let small = m.a.cq(&mut m.net, 4);
    let options = Options::default();
    let (vnic, qp) = (m.a.id, m.a_qp.qp.handle);
    m.net.execute(0, Command::DestroyQp { vnic, qp }).unwrap();
    m.a_qp = m.a.group(&mut m.net, &small);
    let reset = QpChange { to: Some(QpState::Reset), ..QpChange::default() };
    m.b.modify(&mut m.net, &m.b_qp.qp, reset).unwrap();
    m.connect(4, &options);
    for n in 0..16 {
        m.chunk(SEND_OP_RDMA_WRITE, 0, CHUNK);
        m.post(SEND_OP_RDMA_WRITE, n, 0, 64);
    }
    m.net.run(50);
    assert_eq!(m.states()[0], QpState::Err);
    assert_eq!(m.faults(0), [QpFault::Fatal]);
    let sent = m.paths();
    m.net.run(200);
    assert!(m.paths().iter().zip(&sent).all(|(now, then)| now.traffic.tx_bytes == then.traffic.tx_bytes));
}

#[derive(Debug, Default)]
struct Tap {
    left: AtomicUsize,
    seen: Mutex<Vec<(std::net::SocketAddr, bool)>>,
}

impl PacketTap for Tap {
    fn packet(&self, packet: &TappedPacket<'_>) -> bool {
        let own = if packet.is_sent { packet.source } else { packet.destination };
        self.seen.lock().unwrap().push((own, packet.is_sent));
        let left = self.left.load(Ordering::Relaxed).saturating_sub(1);
        self.left.store(left, Ordering::Relaxed);
        left > 0
    }
}

/// A capture shows the packets of all paths, and ends on all of them.
#[test]
fn a_capture_shows_all_paths() {
    let mut m = Multi::new(4);
    let start = |m: &mut Multi, left: usize| {
        let tap = Arc::new(Tap { left: left.into(), ..Tap::default() });
        let command = Command::StartCapture { vnic: m.a.id, qp: m.a_qp.qp.handle, tap: tap.clone() };
        m.net.execute(0, command).map(|_| tap)
    };
    let tap = start(&mut m, usize::MAX).unwrap();
    assert!(matches!(start(&mut m, 1), Err(DriverError::Busy(_))));
    m.works(1);
    let mut seen = std::mem::take(&mut *tap.seen.lock().unwrap());
    seen.sort_unstable_by_key(|(own, is_sent)| (own.ip(), *is_sent));
    seen.dedup_by_key(|(own, is_sent)| (own.ip(), *is_sent));
    assert_eq!(seen.len(), 8, "{seen:?}");
    let command = Command::StopCapture { vnic: m.a.id, qp: m.a_qp.qp.handle, tap: tap.clone() };
    m.net.execute(0, command).unwrap();
    assert_eq!(Arc::strong_count(&tap), 1);
    let enough = start(&mut m, 1).unwrap();
    m.post(SEND_OP_RDMA_WRITE, 9, 0, 64);
    assert_eq!(m.completion(), (9, WC_SUCCESS));
    assert_eq!(Arc::strong_count(&enough), 1, "also where nothing was to be seen");
    // A connection that is made anew has other siblings.
    let tap = start(&mut m, usize::MAX).unwrap();
    m.renew(4);
    m.works(3);
    let seen = tap.seen.lock().unwrap();
    let sources: std::collections::HashSet<_> = seen.iter().map(|(own, _)| own.ip()).collect();
    assert_eq!(sources.len(), 4);
}
