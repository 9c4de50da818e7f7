//! Queue pairs with several paths, of guests that mean no good.

mod common;

use common::multipath::*;
use common::*;
use masq_driver::*;
use masq_types::WireQpn;
use vrdma_abi::ring::*;
use vrdma_rings::SendRequest;

/// What is no chunk fails the group.
#[test]
fn entries_that_are_no_chunks_fail_the_group() {
    let cases = [
        (SEND_OP_WAIT, 0),
        (SEND_OP_STEER, SEND_SIGNALED),
        (SEND_OP_SEND, 0),
        (SEND_OP_RDMA_WRITE_IMM, 0),
        (SEND_OP_CMP_SWAP, 0),
        (SEND_OP_LOCAL_INV, 0),
        (0xff, 0),
        (SEND_OP_RDMA_WRITE, SEND_SIGNALED),
        (SEND_OP_RDMA_WRITE, SEND_FENCE),
        (SEND_OP_RDMA_READ, SEND_STEERED),
    ];
    for (opcode, flags) in cases {
        let mut m = Multi::new(4);
        let chunk = to(&m.b_mr, 0, SendRequest { opcode, flags, ..SendRequest::default() });
        m.chunk_as(&chunk, 0, 64);
        m.wait_for(1, 1);
        m.post(SEND_OP_RDMA_WRITE, 1, 0, 64);
        assert_eq!(m.completions(), [(1, WC_LOC_QP_OP_ERR)], "{opcode:#x} {flags}");
    }
}

/// What chunks alone may say means nothing in a send queue, and a WAIT says nothing more than how far to wait.
#[test]
fn the_send_queue_takes_no_chunks() {
    for (opcode, flags) in [
        (SEND_OP_RDMA_WRITE, SEND_AFTER_CHUNK),
        (SEND_OP_RDMA_WRITE, SEND_AFTER_SQ),
        (SEND_OP_STEER, 0),
        (SEND_OP_WAIT, SEND_SIGNALED),
        (SEND_OP_WAIT, SEND_FENCE),
    ] {
        let mut m = Multi::new(4);
        let request = to(&m.b_mr, 0, SendRequest { opcode, flags, wr_id: 1, ..SendRequest::default() });
        m.a.post(&mut m.a_qp.qp, &request, &[]);
        assert_eq!(m.completions(), [(1, WC_LOC_QP_OP_ERR)], "{opcode:#x} {flags}");
        assert_eq!(m.states()[0], QpState::Err);
    }
}

/// A producer index that jumps further than the ring is long: the queue pair fails, whoever looks.
#[test]
fn a_chunk_ring_that_jumps_fails_the_group() {
    let mut m = Multi::new(4);
    m.a.write(m.a_qp.chunks_gpa, &(CHUNKS + 1).to_ne_bytes());
    m.post(SEND_OP_RDMA_WRITE, 1, 0, 64);
    m.net.run(100);
    assert_eq!(m.states()[0], QpState::Err);
    assert_eq!(m.faults(0), [QpFault::Fatal]);
}

/// A guest that uses entries again which are not done harms itself alone: what the RNIC keeps of them is bounded by the ring.
#[test]
fn chunks_that_are_never_done_do_not_pile_up() {
    let mut m = Multi::new(4);
    // The first two are the leader's, behind a send for which the peer has no receive.
    m.post(SEND_OP_SEND, 1, 0, 64);
    for _ in 0..CHUNKS {
        m.chunk(SEND_OP_RDMA_WRITE, 0, 64);
    }
    for round in 2..6u32 {
        m.a.mark(m.a_qp.qp.slot, m.a_qp.qp.index);
        m.net.run(20);
        assert_eq!(m.a_qp.chunks.done(), 0);
        let carried: u64 = m.paths().iter().map(|p| p.chunks).sum();
        assert_eq!(carried, u64::from(CHUNKS) - 2, "as many as the ring has, and none of them twice");
        m.a.write(m.a_qp.chunks_gpa, &(round * CHUNKS).to_ne_bytes());
    }
    assert_eq!(m.states()[0], QpState::Rts);
}

/// What a group is created with is checked.
#[test]
fn groups_are_described_consistently() {
    let mut m = Multi::new(4);
    let cases: [fn(&mut QpInit); 9] = [
        |q| q.group.as_mut().unwrap().members = 0,
        |q| q.group.as_mut().unwrap().members = 1,
        |q| q.group.as_mut().unwrap().members = 17,
        |q| q.group.as_mut().unwrap().members = 255,
        |q| q.wire_qpn = WireQpn::new(q.wire_qpn.get() + 2).unwrap(),
        |q| {
            q.group.as_mut().unwrap().members = 5;
            q.wire_qpn = WireQpn::new(0x8004).unwrap();
        },
        |q| q.group.as_mut().unwrap().chunks.stride_shift = 8,
        |q| q.group.as_mut().unwrap().chunks.entries = 63,
        |q| q.qp_type = QpType::Uc,
    ];
    for (i, adjust) in cases.into_iter().enumerate() {
        let refused = m.a.try_group(&mut m.net, &m.a_cq, adjust);
        assert!(matches!(refused, Err(DriverError::Invalid(_))), "case {i}");
    }
    let handle = m.a.group(&mut m.net, &m.a_cq).qp.handle;
    m.net.execute(0, Command::DestroyQp { vnic: m.a.id, qp: handle }).unwrap();
}

/// Hidden queue pairs count as any others: what they keep is bounded for the vNIC.
#[test]
fn hidden_queue_pairs_count() {
    let mut m = Multi::new(4);
    let mut init = None;
    m.a.try_group(&mut m.net, &m.a_cq, |q| {
        q.group.as_mut().unwrap().members = 8;
        q.wire_qpn = WireQpn::new(0x8000).unwrap();
        init = Some(q.clone());
    })
    .unwrap();
    let (init, vnic) = (init.unwrap(), m.a.id);
    let most = (masq_rnic::limits::MAX_QPS - 4) / 8;
    let mut created = 1;
    let refused = loop {
        let qp = QpInit { qp: QpHandle(1000 + created), ..init.clone() };
        match m.net.execute(0, Command::CreateQp { vnic, qp }) {
            Ok(_) => created += 1,
            Err(refused) => break refused,
        }
        assert!(created <= most);
    };
    assert!(matches!(refused, DriverError::Exhausted(_)), "{refused:?}");
    assert_eq!(created, most);
}
