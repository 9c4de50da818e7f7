//! Completion queues that are polled one by one, and queues that get another size.

use std::ptr;

use vrdma_abi::ring::*;
use vrdma_rings::SharedMemory;

use super::machine::{LIVE, Machine, cap, errno};
use crate::verbs::*;

const ALL_FIELDS: u64 = 0xff;

fn init(wc_flags: u64) -> ibv_cq_init_attr_ex {
    ibv_cq_init_attr_ex {
        cqe: 4,
        cq_context: ptr::null_mut(),
        channel: ptr::null_mut(),
        comp_vector: 0,
        wc_flags,
        comp_mask: 0,
        flags: 0,
        parent_domain: ptr::null_mut(),
    }
}

fn create(machine: &Machine, mut init: ibv_cq_init_attr_ex) -> Option<*mut ibv_cq_ex> {
    // SAFETY: the context is open.
    let cq = unsafe { machine.ops.create_cq_ex.unwrap()(machine.context, &mut init) };
    (!cq.is_null()).then_some(cq)
}

/// Calls a function of the queue, as the inline functions of verbs.h do.
macro_rules! call {
    ($cq:expr, $function:ident $(, $arg:expr)*) => {
        // SAFETY: the queue is live, and a batch has begun if the function needs that.
        unsafe { (*$cq).$function.unwrap()($cq $(, $arg)*) }
    };
}

#[test]
fn completions_are_read_field_by_field() {
    let machine = Machine::open();
    let ex = create(&machine, init(ALL_FIELDS)).unwrap();
    let cq = ex.cast::<ibv_cq>();
    let qp = machine.qp(cq, cq, cap(4, 1, 0));
    assert_eq!(call!(ex, start_poll, &mut ibv_poll_cq_attr { comp_mask: 0 }), libc::ENOENT);

    let cqe = Cqe {
        wr_id: 7,
        byte_len: 100,
        imm_or_inv: 5,
        src_qpn: 6,
        vendor_err: 8,
        timestamp_ns: 1 << 40,
        opcode: WC_RECV,
        flags: CQE_RECV | CQE_GRH | CQE_IPV4 | CQE_WITH_IMM,
        ..qp.recv_cqe(1)
    };
    machine.complete(cq, cqe);
    machine.complete(cq, Cqe { wr_id: 9, status: WC_WR_FLUSH_ERR, ..qp.send_cqe(1) });
    assert_eq!(call!(ex, start_poll, ptr::null_mut()), 0);
    // SAFETY: the queue is live.
    let head = || unsafe { ((*ex).wr_id, (*ex).status) };
    assert_eq!(head(), (7, 0));
    assert_eq!((call!(ex, read_opcode), call!(ex, read_byte_len), call!(ex, read_imm_data)), (128, 100, 5));
    assert_eq!((call!(ex, read_qp_num), call!(ex, read_src_qp)), (cqe.qpn, 6));
    assert_eq!((call!(ex, read_vendor_err), call!(ex, read_wc_flags)), (8, IBV_WC_GRH | IBV_WC_WITH_IMM));
    assert_eq!((call!(ex, read_slid), call!(ex, read_sl), call!(ex, read_dlid_path_bits)), (0, 2, 0));
    assert_eq!(call!(ex, read_completion_ts), 1 << 40);
    let consumer = || machine.memory.load_acquire(machine.cq_ring(cq).ring_offset as usize);
    assert_eq!(call!(ex, next_poll), 0);
    assert_eq!(head(), (9, 5));
    assert_eq!(call!(ex, next_poll), libc::ENOENT);
    assert_eq!(consumer(), 0, "entries are returned together");
    // The queue can be armed meanwhile.
    // SAFETY: the queue is live.
    assert_eq!(unsafe { machine.ops.req_notify_cq.unwrap()(cq, 1) }, 0);
    assert_eq!(machine.memory.load_acquire(machine.cq_ring(cq).ring_offset as usize + 4), ARM_SOLICITED);
    call!(ex, end_poll);
    assert_eq!(consumer(), 2);

    // The plain way works as well, and finds the lock free.
    machine.complete(cq, Cqe { wr_id: 10, ..qp.send_cqe(2) });
    assert_eq!(machine.poll(cq, 4).unwrap()[0].wr_id, 10);
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn a_batch_that_does_not_begin_leaves_the_lock_free() {
    let machine = Machine::open();
    let ex = create(&machine, init(0)).unwrap();
    let cq = ex.cast::<ibv_cq>();
    assert_eq!(call!(ex, start_poll, &mut ibv_poll_cq_attr { comp_mask: 1 }), libc::EINVAL);
    assert_eq!(machine.poll(cq, 1), Ok(vec![]));
    assert_eq!(call!(ex, start_poll, ptr::null_mut()), libc::ENOENT);
    assert_eq!(machine.poll(cq, 1), Ok(vec![]));
    machine.memory.store_release(LIVE, 0);
    assert_eq!(call!(ex, start_poll, ptr::null_mut()), libc::EIO);
    assert_eq!(machine.poll(cq, 1), Err(libc::EIO));
    assert_eq!(call!(ex, next_poll), libc::EINVAL);
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn only_fields_that_were_asked_for_can_be_read() {
    let machine = Machine::open();
    let ex = create(&machine, init(IBV_WC_EX_WITH_SRC_QP)).unwrap();
    // SAFETY: the queue is live.
    unsafe {
        assert!((*ex).read_src_qp.is_some() && (*ex).read_opcode.is_some());
        assert!((*ex).read_byte_len.is_none() && (*ex).read_completion_ts.is_none());
        assert!((*ex).read_completion_wallclock_ns.is_none());
    }
    machine.destroy_cq(ex.cast());
    let flags = |flags| ibv_cq_init_attr_ex { comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS, flags, ..init(0) };
    machine.destroy_cq(create(&machine, flags(IBV_CREATE_CQ_ATTR_SINGLE_THREADED)).unwrap().cast());
    for (index, (bad, expected)) in [
        (flags(1 << 1), libc::EOPNOTSUPP), // IGNORE_OVERRUN
        (ibv_cq_init_attr_ex { comp_mask: 1 << 1, ..init(0) }, libc::EOPNOTSUPP),
        (init(1 << 8), libc::EOPNOTSUPP),  // CVLAN
        (init(1 << 11), libc::EOPNOTSUPP), // COMPLETION_TIMESTAMP_WALLCLOCK
        (ibv_cq_init_attr_ex { cqe: u32::MAX, ..init(0) }, libc::EINVAL),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(create(&machine, bad).is_none());
        assert_eq!(errno(), expected, "attributes {index}");
    }
    machine.close();
}

#[test]
fn a_resized_queue_goes_on_where_it_was() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    let qp = machine.qp(cq, cq, cap(4, 1, 0));
    let resize = |cqe| {
        // SAFETY: the queue is live.
        unsafe { machine.ops.resize_cq.unwrap()(cq, cqe) }
    };
    for wr_id in 0..3 {
        machine.complete(cq, Cqe { wr_id, ..qp.send_cqe(0) });
    }
    assert_eq!(machine.poll(cq, 1).unwrap()[0].wr_id, 0);
    let view = machine.view();
    machine.kernel(|kernel| {
        kernel.move_entries = Some(Box::new(move |old, new| view.move_completions(&old, &new)))
    });
    assert_eq!(resize(7), 0);
    // SAFETY: the queue is live.
    assert_eq!(unsafe { (*cq).cqe }, 8);
    machine.go_on_behind(cq, 2);
    for wr_id in 3..9 {
        machine.complete(cq, Cqe { wr_id, ..qp.send_cqe(0) });
    }
    let ids: Vec<_> = machine.poll(cq, 16).unwrap().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7, 8]);
    let ring = machine.cq_ring(cq).ring_offset as usize;
    assert_eq!(machine.memory.load_acquire(ring), 8, "indexes begin at 0 in the new ring");
    // Arming goes to the new ring.
    // SAFETY: the queue is live.
    assert_eq!(unsafe { machine.ops.req_notify_cq.unwrap()(cq, 0) }, 0);
    assert_eq!(machine.memory.load_acquire(ring + 4), ARM_NEXT);

    // What the kernel refuses changes nothing.
    machine.kernel(|kernel| kernel.fail = Some(libc::EINVAL));
    assert_eq!(resize(1), libc::EINVAL);
    machine.complete(cq, Cqe { wr_id: 9, ..qp.send_cqe(0) });
    assert_eq!(machine.poll(cq, 4).unwrap()[0].wr_id, 9);
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn a_queue_whose_new_ring_cannot_be_used_says_so_to_pollers() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    machine.kernel(|kernel| kernel.ring_format = 9);
    // SAFETY: the queue is live.
    assert_eq!(unsafe { machine.ops.resize_cq.unwrap()(cq, 8) }, libc::EOPNOTSUPP);
    assert_eq!(machine.poll(cq, 1), Err(libc::EIO));
    machine.destroy_cq(cq);
    machine.close();
}
