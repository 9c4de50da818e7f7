//! Requests that fail for reasons other than keys and rights: each status, at the side that asked and at the side that answers.

use guest_sim::suite::{Conn, Pair, Placement, Setup, assert_status};
use guest_sim::verbs::{ConnectAttr, Mr, QpCaps, wr};
use guest_sim::{Cluster, Forger};
use masq_types::{Psn, WireQpn};
use masq_wire::{AethRepr, Credits, Extension, Msn, NakCode, Opcode, PacketRepr, Syndrome};
use vrdma_abi::control::{ACCESS_REMOTE_READ, MW_TYPE_2, QP_STATE_ERR};
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

use crate::Test;
use crate::matrix::Cell::Status;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "a_message_longer_than_its_receive",
            &[Status(WC_LOC_LEN_ERR), Status(WC_REM_INV_REQ_ERR)],
            too_long,
        ),
        Test::new("inline_data_beyond_the_cap", &[Status(WC_LOC_LEN_ERR)], inline_too_long),
        Test::new("requests_that_make_no_sense", &[Status(WC_LOC_QP_OP_ERR)], malformed),
        Test::new("a_window_on_a_region_without_the_right", &[Status(WC_MW_BIND_ERR)], window_refused),
        Test::new(
            "what_is_posted_before_a_failure_succeeds",
            &[Status(WC_WR_FLUSH_ERR)],
            failure_in_the_middle,
        ),
        Test::new("an_unsignalled_request_that_fails", &[], unsignalled_failure),
        Test::remote("a_forged_read_response_of_another_length", &[Status(WC_BAD_RESP_ERR)], forged_response),
        Test::remote(
            "a_forged_acknowledgement_with_a_reserved_code",
            &[Status(WC_BAD_RESP_ERR)],
            forged_reserved,
        ),
    ]
}

fn too_long(p: &Pair) {
    let (here, there) = (p.a.buffer(1 << 17), p.b.buffer(1 << 17));
    // One packet, several packets, and a receive without room.
    for (len, room) in [(65, 64), (5000, 4999), (100_000, 1024), (1, 0)] {
        let c = p.connect();
        there.fill(0, 1 << 17, 0);
        c.b.post_recv(1, &[there.sge(100, room)]).unwrap();
        c.b.post_recv(2, &[there.sge(100, room)]).unwrap();
        c.a.post_send(&wr::request(SEND_OP_SEND, 7), &[here.sge(0, len)]).unwrap();
        let cqe = c.b.recv_completion();
        assert_status(&cqe, WC_LOC_LEN_ERR);
        assert_eq!(cqe.wr_id, 1);
        assert_status(&c.b.recv_completion(), WC_WR_FLUSH_ERR);
        let cqe = c.a.send_completion();
        assert_status(&cqe, WC_REM_INV_REQ_ERR);
        assert_eq!(cqe.wr_id, 7);
        assert_eq!((c.a.state(), c.b.state()), (QP_STATE_ERR, QP_STATE_ERR));
        assert_eq!(there.read(100 + room, 1000), vec![0; 1000], "nothing behind the receive");
    }
}

/// Writes an entry that the provider would refuse to write.
fn spoiled(p: &Pair, here: &Mr, request: &SendRequest, spoil: &[(usize, &[u8])]) -> Cqe {
    let c = p.connect_with(&Setup::caps(QpCaps { send_sge: 4, inline_bytes: 64, ..QpCaps::default() }));
    c.a.post_spoiled(request, &[here.sge(0, 8)], spoil).unwrap();
    let cqe = c.a.send_completion();
    assert_eq!(cqe.wr_id, request.wr_id);
    assert_eq!(c.a.state(), QP_STATE_ERR);
    cqe
}

const FLAGS_AT: usize = std::mem::offset_of!(SendHeader, flags);
const NUM_SGE_AT: usize = std::mem::offset_of!(SendHeader, num_sge);
const RESERVED_AT: usize = std::mem::offset_of!(SendHeader, reserved);
const INLINE_BYTES_AT: usize = std::mem::offset_of!(SendHeader, inline_bytes);

fn inline_too_long(p: &Pair) {
    let here = p.a.buffer(64);
    for len in [65u32, 72, 1000, u32::MAX] {
        let spoil: &[(usize, &[u8])] = &[
            (FLAGS_AT, &[SEND_SIGNALED | SEND_INLINE]),
            (NUM_SGE_AT, &[0]),
            (INLINE_BYTES_AT, &len.to_le_bytes()),
        ];
        assert_status(&spoiled(p, &here, &wr::request(SEND_OP_SEND, 3), spoil), WC_LOC_LEN_ERR);
    }
}

fn malformed(p: &Pair) {
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    for opcode in [10, 11, SEND_OP_REG_MR, 0x7f, SEND_OP_WAIT, 0xff] {
        assert_status(&spoiled(p, &here, &wr::request(opcode, 4), &[]), WC_LOC_QP_OP_ERR);
    }
    let send = wr::request(SEND_OP_SEND, 5);
    for sges in [5, 30, 31, 255] {
        assert_status(&spoiled(p, &here, &send, &[(NUM_SGE_AT, &[sges])]), WC_LOC_QP_OP_ERR);
    }
    assert_status(&spoiled(p, &here, &send, &[(FLAGS_AT, &[0xf1])]), WC_LOC_QP_OP_ERR);
    assert_status(&spoiled(p, &here, &send, &[(RESERVED_AT, &[1])]), WC_LOC_QP_OP_ERR);
    let inline_read: &[(usize, &[u8])] = &[(FLAGS_AT, &[SEND_SIGNALED | SEND_INLINE]), (NUM_SGE_AT, &[0])];
    let read = wr::rdma(SEND_OP_RDMA_READ, 6, &there, 0);
    assert_status(&spoiled(p, &here, &read, inline_read), WC_LOC_QP_OP_ERR);
}

fn window_refused(p: &Pair) {
    let region = p.a.buffer(64);
    let window = p.a.pd.alloc_mw(MW_TYPE_2).unwrap();
    let c = p.connect();
    c.a.post_send(&wr::bind(3, window.rkey, &region, 0, 64, ACCESS_REMOTE_READ), &[]).unwrap();
    let cqe = c.a.send_completion();
    assert_status(&cqe, WC_MW_BIND_ERR);
    assert_eq!((cqe.wr_id, c.a.state()), (3, QP_STATE_ERR));
}

fn failure_in_the_middle(p: &Pair) {
    let c = p.connect();
    let (here, there) = (p.a.buffer(1 << 16), p.b.buffer(1 << 16));
    here.write(0, &[7; 50_000]);
    let good = |k| (wr::rdma(SEND_OP_RDMA_WRITE, k, &there, 0), vec![here.sge(0, 50_000)]);
    let bad = (wr::rdma(SEND_OP_RDMA_WRITE, 3, &there, 20), vec![Sge { lkey: !here.lkey, ..here.sge(0, 8) }]);
    c.a.post_sends(&[good(0), good(1), good(2), bad, good(4), good(5)]).unwrap();
    for (k, status) in [WC_SUCCESS, WC_SUCCESS, WC_SUCCESS, WC_LOC_PROT_ERR, WC_WR_FLUSH_ERR, WC_WR_FLUSH_ERR]
        .into_iter()
        .enumerate()
    {
        let cqe = c.a.send_completion();
        assert_status(&cqe, status);
        assert_eq!(cqe.wr_id, k as u64);
    }
    assert_eq!(there.read(0, 50_000), [7; 50_000]);
}

fn unsignalled_failure(p: &Pair) {
    let c = p.connect();
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    let request = SendRequest { flags: 0, rkey: !there.rkey, ..wr::rdma(SEND_OP_RDMA_WRITE, 9, &there, 0) };
    c.a.post_send(&request, &[here.sge(0, 8)]).unwrap();
    let cqe = c.a.send_completion();
    assert_status(&cqe, WC_REM_ACCESS_ERR);
    assert_eq!(cqe.wr_id, 9);
}

/// A connection whose peer has gone silent, so that only a forger answers.
fn silent(p: &Pair) -> (Conn, Forger) {
    assert_eq!(p.placement, Placement::Remote);
    let attr = ConnectAttr { timeout: 0, ..ConnectAttr::default() };
    let c = p.connect_with(&Setup::attr(attr));
    c.b.to_state(QP_STATE_ERR).unwrap();
    let forger = Forger::new(&p.world.cluster, 2, Cluster::underlay(2)).expect("a socket in the namespace");
    (c, forger)
}

fn answer(c: &Conn, forger: &Forger, opcode: Opcode, syndrome: Syndrome, payload: &[u8]) {
    let aeth = AethRepr { syndrome, msn: Msn::new(1) };
    let psn = Psn::new(ConnectAttr::default().sq_psn);
    let repr = PacketRepr::new(opcode, WireQpn::from_wire(c.a.qpn), psn, Extension::Aeth(aeth));
    forger.send(Cluster::underlay(1), repr, payload).expect("a packet can be sent");
}

fn forged_response(p: &Pair) {
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    let (c, forger) = silent(p);
    c.a.post_send(&wr::rdma(SEND_OP_RDMA_READ, 1, &there, 0), &[here.sge(0, 16)]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(10));
    answer(&c, &forger, Opcode::RC_READ_RESPONSE_ONLY, Syndrome::Ack(Credits::UNLIMITED), &[0xaa; 24]);
    assert_status(&c.a.send_completion(), WC_BAD_RESP_ERR);
    assert_eq!(here.read(0, 64), [0; 64], "nothing of it is stored");
    assert_eq!(c.a.state(), QP_STATE_ERR);
}

fn forged_reserved(p: &Pair) {
    let (here, there) = (p.a.buffer(64), p.b.buffer(64));
    let (c, forger) = silent(p);
    c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 1, &there, 0), &[here.sge(0, 16)]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(10));
    answer(&c, &forger, Opcode::RC_ACK, Syndrome::Nak(NakCode::InvalidRdRequest), &[]);
    assert_status(&c.a.send_completion(), WC_BAD_RESP_ERR);
    assert_eq!(c.a.state(), QP_STATE_ERR);
}
