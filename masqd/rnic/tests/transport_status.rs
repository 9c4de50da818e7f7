//! Each completion status that a reliable connection gives, what provokes it, and what else happens then.

mod transport_support;

use std::time::Duration;

use masq_driver::{QpFault, QpState};
use masq_rnic::transport::*;
use masq_types::{Psn, Rkey};
use masq_wire::{
    AethRepr, Credits, Extension, Msn, NakCode, Opcode, PacketRepr, RethRepr, RnrTimer, Syndrome,
};
use transport_support::*;

/// Posts a good WRITE (1), `bad` (2) and another WRITE (3) at end 0, and returns the pair when all is over.
fn around(setup: &Setup, prepare: impl FnOnce(&mut Pair), bad: SendWork) -> Pair {
    let mut pair = Pair::with_memory(setup);
    prepare(&mut pair);
    for work in [send(SendOp::Write, 1, 700), SendWork { wr_id: 2, ..bad }, send(SendOp::Write, 3, 700)] {
        pair.ends[0].world.post_send(work);
    }
    pair.doorbell(0);
    pair.run();
    pair
}

/// The request before the bad one is done, the bad one has `status`, the one after is flushed.
fn assert_fails(pair: &Pair, status: Status) {
    let local = matches!(status, Status::LocLenErr | Status::LocQpOpErr | Status::LocProtErr);
    assert!(!local || pair.sent_to(1).len() == 3, "nothing behind the bad one is sent");
    let got = pair.ends[0].world.statuses(WorkQueue::Send);
    assert_eq!(got, [(1, Status::Success), (2, status), (3, Status::WrFlushErr)]);
    assert_eq!(pair.ends[0].qp.state(), QpState::Err);
    assert_eq!(pair.ends[0].world.events, [], "its completion tells");
    assert_eq!(pair.ends[0].qp.poll_timeout(), None);
}

fn fault(pair: &Pair, end: usize) -> Vec<QpFault> {
    let events = &pair.ends[end].world.events;
    events
        .iter()
        .filter_map(|e| if let QpEvent::Fault { fault, .. } = e { Some(*fault) } else { None })
        .collect()
}

fn peer_lives(pair: &Pair) {
    assert_eq!(pair.ends[1].qp.state(), QpState::Rts);
    assert_eq!(pair.ends[1].world.events, []);
}

fn peer_fails(pair: &Pair, faults: &[QpFault]) {
    assert_eq!(pair.ends[1].qp.state(), QpState::Err);
    assert_eq!(fault(pair, 1), faults);
}

#[test]
fn success() {
    for op in SendOp::MESSAGES {
        let mut pair = Pair::with_memory(&Setup::default());
        pair.post_recv(1, recv(9, 4096));
        pair.post_send(0, send(op, 5, if op.is_atomic() { 8 } else { 600 }));
        pair.run();
        let done = pair.ends[0].world.of(WorkQueue::Send);
        assert_eq!((done.len(), done[0].status, done[0].opcode), (1, Status::Success, op.wc_opcode()));
        assert_eq!((done[0].wr_id, done[0].next_index, done[0].cause), (5, 1, Cause::None));
    }
}

#[test]
fn loc_len_err_message_too_long() {
    let setup =
        Setup { config: QpConfig { max_msg_bytes: 4096, ..Setup::default().config }, ..Setup::default() };
    for op in [SendOp::Send, SendOp::Write, SendOp::Read] {
        let pair = around(&setup, |_| {}, send(op, 2, 4097));
        assert_fails(&pair, Status::LocLenErr);
        peer_lives(&pair);
    }
    let many =
        SendWork { sges: vec![sge(LOCAL, BASE, 1 << 31), sge(LOCAL, BASE, 1)], ..send(SendOp::Write, 2, 0) };
    let pair = around(&Setup::default(), |_| {}, many);
    assert_fails(&pair, Status::LocLenErr);
}

#[test]
fn loc_len_err_short_atomic_result() {
    let pair = around(&Setup::default(), |_| {}, send(SendOp::FetchAdd, 2, 4));
    assert_fails(&pair, Status::LocLenErr);
}

/// The receiver gets LOC_LEN_ERR, the sender REM_INV_REQ_ERR.
#[test]
fn loc_len_err_receive_too_short() {
    for (len, room) in [(1, 0), (600, 599), (600, 300), (257, 256)] {
        let bad = send(SendOp::Send, 2, len);
        let pair = around(
            &Setup::default(),
            |p| {
                p.post_recv(1, recv(7, room));
                p.post_recv(1, recv(8, 4096));
            },
            bad,
        );
        assert_fails(&pair, Status::RemInvReqErr);
        let receives = pair.ends[1].world.statuses(WorkQueue::Recv);
        assert_eq!(receives, [(7, Status::LocLenErr), (8, Status::WrFlushErr)]);
        peer_fails(&pair, &[]);
        let half = REGION_BYTES / 2;
        let end = half + room as usize;
        assert!(pair.ends[1].world.writes.iter().all(|w| w.0 != LOCAL || w.1 + w.2 <= end));
    }
}

#[test]
fn loc_qp_op_err() {
    let defect = SendWork { defect: Some(Status::LocQpOpErr), ..send(SendOp::Send, 2, 8) };
    let pair = around(&Setup::default(), |_| {}, defect);
    assert_fails(&pair, Status::LocQpOpErr);
    let no_depth = Setup { max_rd_atomic: 0, ..Setup::default() };
    for op in [SendOp::Read, SendOp::CmpSwap] {
        let pair = around(&no_depth, |_| {}, send(op, 2, 8));
        assert_fails(&pair, Status::LocQpOpErr);
        peer_lives(&pair);
    }
    let inline_read = SendWork { inline: true, ..send(SendOp::Read, 2, 8) };
    assert_fails(&around(&Setup::default(), |_| {}, inline_read), Status::LocQpOpErr);
}

/// A receive that makes no sense: LOC_QP_OP_ERR there, REM_OP_ERR at the sender.
#[test]
fn rem_op_err() {
    let pair = around(
        &Setup::default(),
        |p| p.post_recv(1, RecvWork { defect: Some(Status::LocQpOpErr), ..recv(7, 100) }),
        send(SendOp::Send, 2, 10),
    );
    assert_fails(&pair, Status::RemOpErr);
    assert_eq!(pair.ends[1].world.statuses(WorkQueue::Recv), [(7, Status::LocQpOpErr)]);
    peer_fails(&pair, &[]);
}

/// The peer's memory is registered, but gone.
#[test]
fn rem_op_err_memory_unavailable() {
    for op in [SendOp::Write, SendOp::Read, SendOp::FetchAdd] {
        let bad = SendWork { rkey: Rkey(READ_ONLY + 1), ..send(op, 2, 8) };
        let gone = |p: &mut Pair| {
            let region = Region { unavailable: true, ..Region::open(READ_ONLY + 1, BASE, REGION_BYTES) };
            p.world(1).regions.push(region);
        };
        let pair = around(&Setup::default(), gone, bad);
        assert_fails(&pair, Status::RemOpErr);
        peer_fails(&pair, &[QpFault::Fatal]);
    }
}

#[test]
fn loc_prot_err_of_a_send() {
    let bad_entries = [
        (sge(99, BASE, 8), Cause::LocalUnknownKey),
        (sge(FOREIGN, BASE, 8), Cause::LocalForeignDomain),
        (sge(LOCAL, BASE - 1, 8), Cause::LocalOutOfRange),
        (sge(LOCAL, BASE + REGION_BYTES as u64 - 7, 8), Cause::LocalOutOfRange),
        (sge(LOCAL, u64::MAX - 3, 8), Cause::LocalOutOfRange),
    ];
    for (entry, cause) in bad_entries {
        for op in SendOp::MESSAGES {
            let bad = SendWork { sges: vec![sge(LOCAL, BASE, 8), entry], ..send(op, 2, 8) };
            let pair = around(&Setup::default(), |p| p.post_recv(1, recv(1, 4096)), bad);
            assert_fails(&pair, Status::LocProtErr);
            assert_eq!(pair.ends[0].world.of(WorkQueue::Send)[1].cause, cause);
            peer_lives(&pair);
        }
    }
    let bad = SendWork { sges: vec![sge(READ_ONLY, BASE, 8)], ..send(SendOp::Read, 2, 8) };
    let pair = around(&Setup::default(), |_| {}, bad);
    assert_fails(&pair, Status::LocProtErr);
    let good = SendWork { sges: vec![sge(READ_ONLY, BASE, 8)], ..send(SendOp::Write, 2, 8) };
    let pair = around(&Setup::default(), |_| {}, good);
    assert_eq!(pair.ends[0].qp.state(), QpState::Rts, "reading is allowed");
}

/// The region goes while the message is on its way.
#[test]
fn loc_prot_err_in_mid_message() {
    let setup =
        Setup { config: QpConfig { window_packets: 4, ..Setup::default().config }, ..Setup::default() };
    for op in [SendOp::Write, SendOp::Send, SendOp::Read] {
        let mut pair = Pair::with_memory(&setup);
        pair.post_recv(1, recv(1, 10_000));
        pair.post_send(0, send(op, 1, 10_000));
        pair.post_send(0, send(SendOp::Write, 2, 8));
        pair.run_for(LATENCY * 5);
        pair.world(0).regions.retain(|r| r.key != LOCAL);
        pair.run();
        let got = pair.ends[0].world.statuses(WorkQueue::Send);
        assert_eq!(got, [(1, Status::LocProtErr), (2, Status::WrFlushErr)]);
        assert!(pair.sent.len() > 4, "it had begun");
    }
}

/// The region goes before the message is repeated, and then the answer to its first time arrives: it has succeeded.
#[test]
fn a_late_answer_saves_a_request_whose_region_is_gone() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.deaf[0] = true;
    let ack = |pair: &Pair| pair.sent.iter().find(|(to, _)| *to == 0).unwrap().1.clone();
    pair.post_send(0, send(SendOp::Write, 1, 8));
    pair.post_send(0, SendWork { sges: vec![sge(READ_ONLY, BASE, 8)], ..send(SendOp::Write, 2, 8) });
    pair.run_for(LATENCY * 3);
    pair.world(0).regions.retain(|r| r.key != READ_ONLY);
    let sent = pair.sent.len();
    pair.run_for(Duration::from_micros(1100));
    assert_eq!(pair.sent_to(1).len(), 3, "only the first can be repeated");
    assert!(pair.sent.len() > sent);
    pair.deaf[0] = false;
    let late = ack(&pair);
    pair.inject(0, &late);
    pair.post_send(0, send(SendOp::Write, 3, 8));
    pair.run();
    let got = pair.ends[0].world.statuses(WorkQueue::Send);
    assert_eq!(got, [(1, Status::Success), (2, Status::Success), (3, Status::Success)]);
}

/// The receiver gets LOC_PROT_ERR, the sender REM_OP_ERR.
#[test]
fn loc_prot_err_of_a_receive() {
    for key in [99, FOREIGN, READ_ONLY] {
        let sges = vec![sge(LOCAL, BASE, 300), sge(key, BASE, 300)];
        let receive = RecvWork { sges, wr_id: 7, ..RecvWork::default() };
        let pair = around(&Setup::default(), |p| p.post_recv(1, receive), send(SendOp::Send, 2, 600));
        assert_fails(&pair, Status::RemOpErr);
        assert_eq!(pair.ends[1].world.statuses(WorkQueue::Recv), [(7, Status::LocProtErr)]);
        peer_fails(&pair, &[]);
    }
}

/// An RDMA WRITE with immediate data that violates access rights: LOC_ACCESS_ERR at the receiver.
#[test]
fn loc_access_err() {
    let bad = SendWork { rkey: Rkey(READ_ONLY), ..send(SendOp::WriteImm, 2, 8) };
    let pair = around(&Setup::default(), |p| p.post_recv(1, recv(7, 0)), bad);
    assert_fails(&pair, Status::RemAccessErr);
    assert_eq!(pair.ends[1].world.statuses(WorkQueue::Recv), [(7, Status::LocAccessErr)]);
    peer_fails(&pair, &[QpFault::Access]);
}

#[test]
fn rem_access_err() {
    let whole = REGION_BYTES as u64;
    let cases = [
        (SendOp::Write, 99, BASE, 600),
        (SendOp::Write, FOREIGN, BASE, 600),
        (SendOp::Write, READ_ONLY, BASE, 600),
        (SendOp::Write, REMOTE, BASE + whole - 599, 600),
        (SendOp::Write, REMOTE, BASE - 1, 8),
        (SendOp::Write, REMOTE, u64::MAX - 2, 600),
        (SendOp::WriteImm, LOCAL, BASE, 600),
        (SendOp::Read, 99, BASE, 600),
        (SendOp::Read, FOREIGN, BASE, 600),
        (SendOp::Read, LOCAL, BASE, 600),
        (SendOp::Read, REMOTE, BASE + whole - 599, 600),
        (SendOp::FetchAdd, READ_ONLY, BASE, 8),
        (SendOp::CmpSwap, REMOTE, BASE + whole, 8),
        (SendOp::CmpSwap, FOREIGN, BASE, 8),
    ];
    for (op, rkey, remote_addr, len) in cases {
        let bad = SendWork { rkey: Rkey(rkey), remote_addr, ..send(op, 2, len) };
        let mut before = Vec::new();
        let pair = around(&Setup::default(), |p| before = p.ends[1].world.regions.clone(), bad);
        assert_fails(&pair, Status::RemAccessErr);
        peer_fails(&pair, &[QpFault::Access]);
        let after = &pair.ends[1].world;
        assert!(
            after.writes.iter().all(|w| w.0 == REMOTE && w.1 + w.2 <= 700),
            "only the first WRITE is placed"
        );
        assert_eq!(after.region(FOREIGN).data, before[2].data);
    }
}

/// A READ whose region goes between two responses.
#[test]
fn rem_access_err_in_mid_read() {
    let setup = Setup {
        config: QpConfig { read_packets: 4, ..Setup::default().config },
        max_rd_atomic: 1,
        ..Setup::default()
    };
    let mut pair = Pair::with_memory(&setup);
    pair.post_send(0, send(SendOp::Read, 1, 20_000));
    pair.run_for(LATENCY * 7);
    pair.world(1).regions.retain(|r| r.key != REMOTE);
    pair.run();
    assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), [(1, Status::RemAccessErr)]);
    peer_fails(&pair, &[QpFault::Access]);
    assert!(!pair.ends[0].world.writes.is_empty(), "it had begun");
}

/// The right to read goes between two responses.
#[test]
fn rem_access_err_when_rights_are_taken_away() {
    let setup = Setup {
        config: QpConfig { read_packets: 4, ..Setup::default().config },
        max_rd_atomic: 1,
        ..Setup::default()
    };
    let mut pair = Pair::with_memory(&setup);
    pair.post_send(0, send(SendOp::Read, 1, 20_000));
    pair.pump();
    let request = pair.sent[0].1.clone();
    pair.inject(1, &request);
    let closed = masq_driver::QpChange { access: Some(Default::default()), ..Default::default() };
    pair.modify(1, closed).unwrap();
    pair.run();
    assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), [(1, Status::RemAccessErr)]);
    assert_eq!(pair.ends[0].world.writes, []);
}

#[test]
fn rem_inv_req_err() {
    let closed = Setup { access: masq_driver::Access::default(), ..Setup::default() };
    for op in [SendOp::Read, SendOp::CmpSwap, SendOp::FetchAdd, SendOp::Write] {
        let mut pair = Pair::with_memory(&closed);
        pair.post_send(0, send(op, 1, 8));
        pair.run();
        assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), [(1, Status::RemInvReqErr)]);
        peer_fails(&pair, &[QpFault::Request]);
        assert_eq!(pair.ends[1].world.writes, []);
    }
    let misaligned = SendWork { remote_addr: BASE + 4, ..send(SendOp::FetchAdd, 2, 8) };
    let pair = around(&Setup::default(), |_| {}, misaligned);
    assert_fails(&pair, Status::RemInvReqErr);
    peer_fails(&pair, &[QpFault::Request]);
    // The initiator believes in more than the responder has agreed to.
    let greedy = Setup { max_rd_atomic: 4, max_dest_rd_atomic: 1, ..Setup::default() };
    let mut pair = Pair::with_memory(&greedy);
    for i in 1..4 {
        pair.ends[0].world.post_send(send(SendOp::Read, i, 2000));
    }
    pair.doorbell(0);
    pair.run();
    let got = pair.ends[0].world.statuses(WorkQueue::Send);
    assert_eq!(got, [(1, Status::Success), (2, Status::RemInvReqErr), (3, Status::WrFlushErr)]);
    peer_fails(&pair, &[QpFault::Request]);
}

/// A queue pair with one path takes nothing that is steered, whatever receives it has.
#[test]
fn nothing_is_steered_to_one_path() {
    let cases = [(SendOp::Steer, 600), (SendOp::Steer, 8), (SendOp::Send, 600), (SendOp::SendImm, 8)];
    for (op, len) in cases {
        let mut pair = Pair::with_memory(&Setup::default());
        let before = pair.bytes(1, LOCAL, 0, REGION_BYTES);
        pair.post_recv(1, recv(7, 1000));
        let steered = SendWork { remote_addr: 64, steered: op != SendOp::Steer, ..send(op, 1, len) };
        pair.post_send(0, steered);
        pair.run();
        assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), [(1, Status::RemInvReqErr)]);
        assert_eq!(pair.ends[1].world.statuses(WorkQueue::Recv), [(7, Status::WrFlushErr)]);
        peer_fails(&pair, &[QpFault::Request]);
        assert_eq!(pair.bytes(1, LOCAL, 0, REGION_BYTES), before);
    }
}

/// What a STEER says of itself must hold before its receive is looked for.
#[test]
fn steers_that_make_no_sense_are_refused() {
    let cases = [
        (Opcode::MASQ_STEER_ONLY, u64::MAX - 3, 8, 8, "a STEER lies beyond the longest message"),
        (Opcode::MASQ_STEER_ONLY, (1 << 31) - 7, 8, 8, "a STEER lies beyond the longest message"),
        (Opcode::MASQ_STEER_ONLY, 0, 9, 8, "a STEER's packets do not add up to its length"),
        (Opcode::MASQ_STEER_FIRST, 0, 256, 256, "a STEER's packets do not add up to its length"),
    ];
    for (opcode, va, dma_len, bytes, reason) in cases {
        let mut pair = Pair::with_memory(&Setup::default());
        let psn = pair.ends[1].qp.status().rq_psn;
        let ext = Extension::Reth(RethRepr { va, rkey: Rkey(0), dma_len });
        let mut datagram = vec![0; PacketRepr::new(opcode, qpn(1), psn, ext).header_len()];
        PacketRepr::new(opcode, qpn(1), psn, ext).emit_headers(&mut datagram).unwrap();
        datagram.resize(datagram.len() + bytes + 4, 0xdd);
        pair.inject(1, &datagram);
        pair.run();
        peer_fails(&pair, &[QpFault::Request]);
        assert_eq!(pair.ends[1].qp.last_error().unwrap().reason, reason);
    }
}

#[test]
fn retry_exc_err() {
    for retry_cnt in [0u8, 1, 7] {
        let setup = Setup { retry_cnt, timeout: 10, ..Setup::default() };
        for op in [SendOp::Write, SendOp::Send, SendOp::Read, SendOp::FetchAdd] {
            let mut pair = Pair::with_memory(&setup);
            pair.deaf[1] = true;
            let begin = pair.now;
            pair.post_send(0, send(op, 1, 8));
            pair.post_send(0, send(op, 2, 8));
            pair.run();
            let got = pair.ends[0].world.statuses(WorkQueue::Send);
            assert_eq!(got, [(1, Status::RetryExcErr), (2, Status::WrFlushErr)]);
            let timeout = Duration::from_nanos(4096 << 10);
            assert_eq!(pair.now.since(begin), timeout * (u32::from(retry_cnt) + 1));
            // The first is sent each time; what is behind it, as the window allows, which gets smaller.
            let sent = pair.sent_to(1);
            let firsts = sent.iter().filter(|(_, psn)| *psn == sent[0].1).count();
            assert_eq!(firsts, usize::from(retry_cnt) + 1);
            assert!(sent.len() <= 2 * firsts, "{sent:?}");
            assert_eq!(pair.ends[0].qp.counters().local_ack_timeout_err, u64::from(retry_cnt) + 1);
        }
    }
}

/// What the peer executed was acknowledged in vain: its effects stay, the requests' fate is told as unknown.
#[test]
fn retry_exc_err_when_answers_are_lost() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.deaf[0] = true;
    let at = SendWork { compare_add: 1, ..send(SendOp::FetchAdd, 1, 8) };
    let before = pair.bytes(1, REMOTE, 0, 8);
    pair.post_send(0, at);
    pair.run();
    assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), [(1, Status::RetryExcErr)]);
    let value = |b: Vec<u8>| u64::from_ne_bytes(b.try_into().unwrap());
    assert_eq!(value(pair.bytes(1, REMOTE, 0, 8)), value(before).wrapping_add(1), "executed once");
    assert_eq!(pair.sent_to(0).len(), 8, "and answered each time");
}

#[test]
fn rnr_retry_exc_err() {
    for (rnr_retry, tries) in [(0u8, 1), (2, 3), (6, 7)] {
        let setup = Setup { rnr_retry, min_rnr_timer: 10, ..Setup::default() };
        for op in [SendOp::Send, SendOp::SendImm, SendOp::WriteImm] {
            let mut pair = Pair::with_memory(&setup);
            let begin = pair.now;
            pair.post_send(0, send(op, 1, 8));
            pair.run();
            assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), [(1, Status::RnrRetryExcErr)]);
            let wait = RnrTimer::new(10).unwrap().duration();
            assert_eq!(pair.now.since(begin), wait * rnr_retry.into() + LATENCY * 2 * tries);
            assert_eq!(pair.sent_to(1).len(), tries as usize);
            assert_eq!(
                pair.ends[1].world.writes,
                [],
                "a WRITE whose immediate data has no receive is not placed"
            );
            peer_lives(&pair);
        }
    }
}

/// With rnr_retry 7 it goes on for ever.
#[test]
fn rnr_without_end() {
    let mut pair = Pair::with_memory(&Setup { min_rnr_timer: 1, ..Setup::default() });
    pair.post_send(0, send(SendOp::Send, 1, 8));
    pair.run_for(Duration::from_millis(50));
    assert!(pair.sent_to(1).len() > 100);
    pair.post_recv(1, recv(3, 8));
    pair.run();
    assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), [(1, Status::Success)]);
    assert_eq!(pair.ends[1].world.statuses(WorkQueue::Recv), [(3, Status::Success)]);
}

fn respond(opcode: Opcode, psn: u32, ext: Extension, payload: &[u8]) -> Vec<u8> {
    let mut repr = PacketRepr::new(opcode, qpn(0), Psn::new(psn), ext);
    repr.set_payload_len(payload.len());
    let mut datagram = vec![0; repr.header_len()];
    repr.emit_headers(&mut datagram).unwrap();
    datagram.extend_from_slice(payload);
    datagram.extend_from_slice(repr.bth.pad.bytes());
    datagram.extend_from_slice(&[0; 4]);
    datagram
}

#[test]
fn bad_resp_err() {
    let aeth = |syndrome| AethRepr { syndrome, msn: Msn::new(0) };
    let ack = Extension::Aeth(aeth(Syndrome::Ack(Credits::UNLIMITED)));
    let nak = |code| Extension::Aeth(aeth(Syndrome::Nak(code)));
    let psn = Setup::default().psn[0];
    let atomic = Extension::AethAtomicAck(
        aeth(Syndrome::Ack(Credits::UNLIMITED)),
        masq_wire::AtomicAckEthRepr { original: 1 },
    );
    let bad = [
        (SendOp::Write, respond(Opcode::RC_READ_RESPONSE_ONLY, psn, ack, &[0; 8])),
        (SendOp::Write, respond(Opcode::RC_ATOMIC_ACK, psn, atomic, &[])),
        (SendOp::Write, respond(Opcode::RC_ACK, psn, nak(NakCode::InvalidRdRequest), &[])),
        (SendOp::Write, respond(Opcode::RC_ACK, psn, Extension::Aeth(aeth(Syndrome::Reserved(0x40))), &[])),
        (SendOp::Read, respond(Opcode::RC_READ_RESPONSE_ONLY, psn, ack, &[0; 7])),
        (SendOp::Read, respond(Opcode::RC_READ_RESPONSE_ONLY, psn, ack, &[0; 256])),
        (SendOp::Read, respond(Opcode::RC_READ_RESPONSE_FIRST, psn, ack, &[0; 256])),
        (SendOp::Read, respond(Opcode::RC_READ_RESPONSE_ONLY, psn, nak(NakCode::RemoteAccess), &[0; 8])),
        (SendOp::Read, respond(Opcode::RC_ATOMIC_ACK, psn, atomic, &[])),
        (SendOp::FetchAdd, respond(Opcode::RC_READ_RESPONSE_ONLY, psn, ack, &[0; 8])),
    ];
    let long = [
        // The right length, but it claims to be the last; and a last one that claims not to be.
        (SendOp::Read, 512, respond(Opcode::RC_READ_RESPONSE_ONLY, psn, ack, &[0; 256])),
        (SendOp::Read, 256, respond(Opcode::RC_READ_RESPONSE_FIRST, psn, ack, &[0; 256])),
    ];
    for (op, len, response) in bad.into_iter().map(|(op, response)| (op, 8, response)).chain(long) {
        let mut pair = Pair::with_memory(&Setup::default());
        pair.deaf[1] = true;
        pair.post_send(0, send(op, 1, len));
        pair.pump();
        pair.inject(0, &response);
        let done = pair.ends[0].world.of(WorkQueue::Send);
        assert_eq!((done[0].status, done[0].cause), (Status::BadRespErr, Cause::BadResponse), "{op:?}");
        assert_eq!(pair.ends[0].world.writes, []);
        assert_eq!(pair.ends[0].qp.state(), QpState::Err);
    }
}

/// The peer's refusals, each as a bare packet.
#[test]
fn each_nak_has_its_status() {
    let psn = Setup::default().psn[0];
    for (code, status) in [
        (NakCode::InvalidRequest, Status::RemInvReqErr),
        (NakCode::RemoteAccess, Status::RemAccessErr),
        (NakCode::RemoteOperational, Status::RemOpErr),
    ] {
        let mut pair = Pair::with_memory(&Setup::default());
        pair.deaf[1] = true;
        for i in 0..3 {
            pair.post_send(0, send(SendOp::Write, i, 8));
        }
        pair.pump();
        let aeth = AethRepr { syndrome: Syndrome::Nak(code), msn: Msn::new(0) };
        pair.inject(0, &respond(Opcode::RC_ACK, psn + 1, Extension::Aeth(aeth), &[]));
        let got = pair.ends[0].world.statuses(WorkQueue::Send);
        assert_eq!(got, [(0, Status::Success), (1, status), (2, Status::WrFlushErr)]);
    }
}

#[test]
fn wr_flush_err() {
    let mut pair = Pair::with_memory(&Setup::default());
    for i in 0..300 {
        pair.ends[0].world.post_recv(recv(i, 8));
        pair.ends[0].world.post_send(SendWork { signalled: false, ..send(SendOp::Write, i, 8) });
    }
    pair.deaf[1] = true;
    pair.doorbell(0);
    pair.pump();
    pair.enter(0, QpState::Err);
    assert!(pair.ends[0].qp.wants_work(), "one call flushes a bounded number");
    pair.doorbell(0);
    let all: Vec<_> = (0..300).map(|i| (i, Status::WrFlushErr)).collect();
    assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), all, "unsignalled ones too");
    assert_eq!(pair.ends[0].world.statuses(WorkQueue::Recv), all);
    pair.post_recv(0, recv(1000, 8));
    pair.post_send(0, send(SendOp::Send, 1001, 8));
    assert_eq!(pair.ends[0].world.completions.len(), 602, "what is posted later is flushed as well");
    let last = pair.ends[0].world.completions[600..].iter().map(|c| (c.status, c.cause));
    assert!(last.eq([(Status::WrFlushErr, Cause::Flushed); 2]));
    pair.sent.clear();
    pair.pump();
    assert_eq!(pair.sent, [], "and nothing is sent");
    let counters = pair.ends[0].qp.counters();
    assert_eq!((counters.req_cqe_flush_error, counters.resp_cqe_flush_error), (301, 301));
}

/// A message in mid-receive when the queue pair fails: its receive is flushed, not lost.
#[test]
fn wr_flush_err_of_a_receive_in_use() {
    let setup =
        Setup { config: QpConfig { window_packets: 2, ..Setup::default().config }, ..Setup::default() };
    let mut pair = Pair::with_memory(&setup);
    pair.post_recv(1, recv(1, 4096));
    pair.post_recv(1, recv(2, 4096));
    pair.post_send(0, send(SendOp::Send, 1, 4096));
    pair.run_for(LATENCY * 3);
    let now = pair.now;
    let End { qp, world } = &mut pair.ends[1];
    qp.fail(now, world, Some(QpFault::Fatal), "a test");
    assert_eq!(world.statuses(WorkQueue::Recv), [(1, Status::WrFlushErr), (2, Status::WrFlushErr)]);
    assert_eq!(world.events, [QpEvent::Fault { fault: QpFault::Fatal, reason: "a test" }]);
    let receive = RethRepr { va: BASE, rkey: Rkey(REMOTE), dma_len: 8 };
    let written = world.writes.len();
    let expected = pair.ends[1].qp.status().rq_psn.get();
    let mut late = respond(Opcode::RC_WRITE_ONLY, expected, Extension::Reth(receive), &[1; 8]);
    late[5..8].copy_from_slice(&qpn(1).get().to_be_bytes()[1..]);
    pair.inject(1, &late);
    assert_eq!(pair.ends[1].world.writes.len(), written, "nothing is placed any more");
    pair.run();
    assert_eq!(pair.ends[0].world.statuses(WorkQueue::Send), [(1, Status::RetryExcErr)]);
}
