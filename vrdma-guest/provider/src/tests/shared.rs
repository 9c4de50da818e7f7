//! Shared receive queues and XRC.

use std::ffi::c_int;
use std::ptr;

use vrdma_abi::control::HANDLE_NONE;
use vrdma_abi::ring::*;
use vrdma_rings::SharedMemory;
use zerocopy::FromBytes;

use super::machine::{LIVE, Machine, cap, errno, recv, send};
use crate::verbs::*;

#[test]
fn receives_stand_in_the_ring_until_the_rnic_takes_them() {
    let machine = Machine::open();
    let srq = machine.srq(3, 2);
    assert_eq!(srq.ring().entries, 4);
    let mut data = [ibv_sge { addr: 0x10, length: 1, lkey: 2 }];
    let mut list = [0, 1, 2, 3, 4].map(|wr_id| recv(wr_id, &mut []));
    list[1] = recv(1, &mut data);
    assert_eq!(srq.post(&mut list), Err((libc::ENOMEM, 4)));
    assert_eq!(srq.take(), Some((0, vec![])));
    assert_eq!(srq.take(), Some((1, vec![Sge { addr: 0x10, length: 1, lkey: 2 }])));

    // What the RNIC has taken may be used again at once, without a completion.
    assert_eq!(srq.post(&mut list[..3]), Err((libc::ENOMEM, 2)));
    let taken: Vec<_> = std::iter::from_fn(|| srq.take()).map(|(wr_id, _)| wr_id).collect();
    assert_eq!(taken, [2, 3, 0, 1]);

    let mut three = [0, 1, 2].map(|_| ibv_sge { addr: 0, length: 1, lkey: 0 });
    assert_eq!(srq.post(&mut [recv(7, &mut []), recv(8, &mut three)]), Err((libc::EINVAL, 1)));
    assert_eq!(srq.take(), Some((7, vec![])));
    machine.memory.store_release(LIVE, 0);
    assert_eq!(srq.post(&mut [recv(9, &mut [])]), Err((libc::EIO, 0)));
    assert_eq!(srq.take(), None);
    srq.destroy();
    machine.close();
}

#[test]
fn a_qp_with_a_shared_queue_has_none_of_its_own() {
    let machine = Machine::open();
    let (cq, srq) = (machine.cq(8), machine.srq(4, 1));
    let mut init = ibv_qp_init_attr_ex {
        send_cq: cq,
        recv_cq: cq,
        srq: srq.srq,
        ..machine.init(IBV_QPT_RC, cap(4, 1, 0))
    };
    let qp = machine.qp_ex(&mut init).unwrap();
    assert_eq!(init.cap.max_recv_wr, 0);
    qp.modify(IBV_QPS_RTS);
    assert_eq!(qp.post_recv(&mut [recv(0, &mut [])]), Err((libc::EINVAL, 0)));

    // A completion of the shared queue says nothing of the QP's own queues.
    qp.post_send(&mut [0, 1, 2, 3].map(|wr_id| send(IBV_WR_SEND, wr_id, &mut []))).unwrap();
    machine.complete(cq, Cqe { wr_id: 9, flags: CQE_RECV | CQE_SRQ, opcode: WC_RECV, ..qp.send_cqe(4) });
    assert_eq!(machine.poll(cq, 1).unwrap()[0].wr_id, 9);
    assert_eq!(qp.post_send(&mut [send(IBV_WR_SEND, 5, &mut [])]), Err((libc::ENOMEM, 0)));

    // Those that were not polled when the QP ended are disowned all the same.
    machine.complete(cq, Cqe { flags: CQE_RECV | CQE_SRQ, ..qp.send_cqe(4) });
    qp.destroy();
    assert_eq!(machine.poll(cq, 4), Ok(vec![]));
    srq.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn the_limit_is_asked_of_the_kernel() {
    let machine = Machine::open();
    let srq = machine.srq(4, 1);
    let ops = &machine.ops;
    let mut attr = ibv_srq_attr { srq_limit: 2, ..ibv_srq_attr::default() };
    // SAFETY: the queue and the attributes are live.
    unsafe {
        assert_eq!(ops.modify_srq.unwrap()(srq.srq, &mut attr, 1 << 1), 0);
        assert_eq!(machine.kernel(|kernel| kernel.asked.clone()), [2, 2]);
        assert_eq!(ops.query_srq.unwrap()(srq.srq, &mut attr), 0);
        assert_eq!(attr.srq_limit, 3);
        assert_eq!(ops.get_srq_num.unwrap()(srq.srq, &mut 0), libc::EOPNOTSUPP);
        machine.kernel(|kernel| kernel.fail = Some(libc::EINVAL));
        assert_eq!(ops.modify_srq.unwrap()(srq.srq, &mut attr, 1 << 0), libc::EINVAL);
        // A queue that is in use stays whole.
        machine.kernel(|kernel| kernel.fail = Some(libc::EBUSY));
        assert_eq!(ops.destroy_srq.unwrap()(srq.srq), libc::EBUSY);
    }
    srq.post(&mut [recv(0, &mut [])]).unwrap();
    srq.destroy();
    machine.close();
}

/// Attributes of an extended shared receive queue.
fn srq_init(machine: &Machine, comp_mask: u32, srq_type: c_int) -> ibv_srq_init_attr_ex {
    ibv_srq_init_attr_ex {
        srq_context: ptr::without_provenance_mut(0x77),
        attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 },
        comp_mask,
        srq_type,
        pd: machine.pd,
        xrcd: ptr::null_mut(),
        cq: ptr::null_mut(),
        tm_cap: [0; 2],
    }
}

#[test]
fn attributes_of_shared_queues_are_checked() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    let all = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    let create = |comp_mask, srq_type, has_cq| {
        let mut init = srq_init(&machine, comp_mask, srq_type);
        init.cq = if has_cq { cq } else { ptr::null_mut() };
        // SAFETY: the context and what the attributes name are live.
        let srq = unsafe { machine.ops.create_srq_ex.unwrap()(machine.context, &mut init) };
        assert!(srq.is_null());
        errno()
    };
    assert_eq!(create(IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, false), libc::EINVAL); // no domain
    assert_eq!(create(all, IBV_SRQT_XRC, true), libc::EINVAL); // no XRC domain
    assert_eq!(create(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, 2, false), libc::EOPNOTSUPP); // tags
    assert_eq!(create(IBV_SRQ_INIT_ATTR_PD | 1 << 4, IBV_SRQT_BASIC, false), libc::EOPNOTSUPP);
    machine.kernel(|kernel| kernel.ring_format = 9);
    assert_eq!(create(IBV_SRQ_INIT_ATTR_PD, IBV_SRQT_BASIC, false), libc::EOPNOTSUPP);
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn xrc_connects_an_initiator_with_a_numbered_queue() {
    let machine = Machine::open();
    let (cq, recv_cq) = (machine.cq(8), machine.cq(8));
    let ops = &machine.ops;
    let mut attr = [0u32; 3]; // as large as struct ibv_xrcd_init_attr
    // SAFETY: the context is open.
    let xrcd = unsafe { ops.open_xrcd.unwrap()(machine.context, attr.as_mut_ptr().cast()) };

    let all = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    let mut init = srq_init(&machine, all, IBV_SRQT_XRC);
    (init.xrcd, init.cq) = (xrcd, recv_cq);
    let mut srqn = 0;
    // SAFETY: all objects are live.
    let srq = unsafe {
        let srq = ops.create_srq_ex.unwrap()(machine.context, &mut init);
        assert_eq!(ops.get_srq_num.unwrap()(srq, &mut srqn), 0);
        assert_eq!(((*srq).srq_context.addr(), srqn), (0x77, 0x500 + (*srq).handle));
        srq
    };

    let initiator = machine
        .qp_ex(&mut ibv_qp_init_attr_ex { send_cq: cq, ..machine.init(IBV_QPT_XRC_SEND, cap(4, 1, 0)) })
        .unwrap();
    let mut init = ibv_qp_init_attr_ex {
        comp_mask: IBV_QP_INIT_ATTR_XRCD,
        xrcd,
        pd: ptr::null_mut(),
        ..machine.init(IBV_QPT_XRC_RECV, cap(0, 0, 0))
    };
    let target = machine.qp_ex(&mut init).unwrap();
    assert_eq!(target.cookie(), 0);
    for qp in [&initiator, &target] {
        assert_eq!(qp.modify(IBV_QPS_RTS), 0);
        assert_eq!(qp.post_recv(&mut [recv(0, &mut [])]), Err((libc::EINVAL, 0)));
    }
    let mut request = send(IBV_WR_SEND, 1, &mut []);
    request.remote_srqn = srqn;
    assert_eq!(target.post_send(&mut [request]), Err((libc::EINVAL, 0)));
    let mut request = send(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, &mut []);
    request.remote_srqn = srqn;
    initiator.post_send(&mut [request]).unwrap();
    let [sent] = &initiator.take_sends()[..] else { panic!("one send") };
    assert_eq!(XrcSegment::read_from_prefix(&sent.rest).unwrap().0, XrcSegment { srqn, reserved: [0; 3] });

    // The target has no place in this context's table; its completions come all the same, unless they have been disowned.
    let flags = CQE_RECV | CQE_SRQ;
    machine.complete(recv_cq, Cqe { wr_id: 1, qpn: 0x99, flags, ..Cqe::ZERO });
    machine.complete(recv_cq, Cqe { wr_id: 2, cookie: HANDLE_NONE, flags, ..Cqe::ZERO });
    machine.complete(recv_cq, Cqe { wr_id: 3, flags: CQE_RECV, ..Cqe::ZERO });
    let completions = machine.poll(recv_cq, 4).unwrap();
    assert_eq!(completions.iter().map(|wc| (wc.wr_id, wc.qp_num)).collect::<Vec<_>>(), [(1, 0x99)]);

    // Another process opens the target by its number.
    let mut open = ibv_qp_open_attr {
        comp_mask: 0xb,
        qp_num: 0x99,
        xrcd,
        qp_context: ptr::null_mut(),
        qp_type: IBV_QPT_XRC_RECV,
    };
    // SAFETY: all objects are live until they are ended here.
    unsafe {
        let opened = ops.open_qp.unwrap()(machine.context, &mut open);
        assert_eq!((*opened).qp_num, 0x99);
        assert_eq!(ops.destroy_qp.unwrap()(opened), 0);
        open.qp_type = IBV_QPT_RC;
        assert!(ops.open_qp.unwrap()(machine.context, &mut open).is_null());
        assert_eq!(errno(), libc::EINVAL);
        target.destroy();
        initiator.destroy();
        assert_eq!(ops.destroy_srq.unwrap()(srq), 0);
        assert_eq!(ops.close_xrcd.unwrap()(xrcd), 0);
    }
    machine.destroy_cq(cq);
    machine.destroy_cq(recv_cq);
    machine.close();
}
