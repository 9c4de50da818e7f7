//! Making and ending objects, and what happens when that fails.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr;

use super::kernel;
use super::machine::{Machine, cap, errno};
use crate::context::alloc_context;
use crate::verbs::*;

#[test]
fn objects_come_and_go() {
    let machine = Machine::open();
    let cq = machine.cq(10);
    // SAFETY: the queue is live.
    assert_eq!(unsafe { (*cq).cqe }, 16);
    let first = machine.qp(cq, cq, cap(10, 3, 100));
    let second = machine.qp(cq, cq, cap(1, 1, 0));
    assert_ne!(first.cookie(), second.cookie());
    let mut bytes = [0u8; 100];
    // SAFETY: all objects are live until they are ended here.
    unsafe {
        let mr = machine.ops.reg_mr.unwrap()(machine.pd, bytes.as_mut_ptr().cast(), 100, 0x1000, 0x100003);
        assert_eq!(((*mr).length, (*mr).rkey), (100, (*mr).lkey | 1));
        assert_eq!(machine.ops.dereg_mr.unwrap()(mr.cast()), 0);
    }
    second.destroy();
    first.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn the_kernels_refusal_reaches_the_application() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    let fail = |errno| machine.kernel(|kernel| kernel.fail = Some(errno));
    let ops = &machine.ops;
    let mut attr = init_attr(cq);
    // SAFETY: all objects are live; none is made.
    unsafe {
        fail(libc::EDQUOT);
        assert!(ops.create_cq.unwrap()(machine.context, 4, ptr::null_mut(), 0).is_null());
        assert_eq!(errno(), libc::EDQUOT);
        fail(libc::EOPNOTSUPP);
        assert!(ops.create_qp.unwrap()(machine.pd, &mut attr).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        fail(libc::EFAULT);
        assert!(ops.reg_mr.unwrap()(machine.pd, ptr::null_mut(), 1, 0, 0).is_null());
        assert_eq!(errno(), libc::EFAULT);
        fail(libc::ENOMEM);
        assert!(ops.alloc_pd.unwrap()(machine.context).is_null());
        assert_eq!(errno(), libc::ENOMEM);
        // An object that could not be destroyed stays whole.
        fail(libc::EBUSY);
        assert_eq!(ops.destroy_cq.unwrap()(cq), libc::EBUSY);
    }
    assert_eq!(machine.poll(cq, 1), Ok(vec![]));
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn rings_of_an_unknown_format_are_given_back() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    machine.kernel(|kernel| kernel.ring_format = 9);
    // SAFETY: all objects are live; none is made.
    unsafe {
        assert!(machine.ops.create_cq.unwrap()(machine.context, 4, ptr::null_mut(), 0).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert!(machine.ops.create_qp.unwrap()(machine.pd, &mut init_attr(cq)).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }
    machine.kernel(|kernel| {
        assert_eq!((kernel.cqs.len(), kernel.qps.len()), (1, 0));
        kernel.ring_format = 1;
    });
    // The cookie of the QP that failed is free again.
    let qp = machine.qp(cq, cq, cap(1, 1, 0));
    assert_eq!(qp.cookie(), 1);
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn a_context_that_cannot_be_opened_is_undone() {
    let fd = kernel::plug();
    kernel::with(fd.as_raw_fd(), |kernel| kernel.fail = Some(libc::EMFILE));
    // SAFETY: the kernel's part is played here.
    let context = unsafe { alloc_context(ptr::null_mut(), fd.as_raw_fd(), ptr::null_mut()) };
    assert!(context.is_null());
    assert_eq!(errno(), libc::EMFILE);
}

#[test]
fn attributes_are_asked_of_the_kernel() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    let qp = machine.qp(cq, cq, cap(1, 1, 0));
    let mut attr = [0u64; 64]; // larger than any of the attributes
    // SAFETY: the objects are live, and the attributes have room.
    unsafe {
        let query = machine.ops.query_device_ex.unwrap();
        assert_eq!(query(machine.context, ptr::null(), attr.as_mut_ptr().cast(), 400), 0);
        assert_eq!(attr[0].to_ne_bytes(), *b"1.2.3\0\0\0");
        // Timestamps of 64 bits at 1 GHz, unless the application's attributes end before that.
        assert_eq!(attr[33..35], [u64::MAX, 1_000_000]);
        attr[33..35].fill(7);
        assert_eq!(query(machine.context, ptr::null(), attr.as_mut_ptr().cast(), 279), 0);
        assert_eq!(attr[33..35], [7, 7]);
        assert_eq!(machine.ops.query_port.unwrap()(machine.context, 1, attr.as_mut_ptr().cast()), 0);
        let mut init = init_attr(cq);
        let query = machine.ops.query_qp.unwrap();
        assert_eq!(query(qp.qp, attr.as_mut_ptr().cast(), IBV_QP_STATE, &mut init), 0);
        assert_eq!(attr[0] as c_int, IBV_QPS_ERR);
    }
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn operations_that_are_not_offered_stay_unset() {
    let machine = Machine::open();
    // The library answers EOPNOTSUPP to these.
    let ops = &machine.ops;
    assert!(ops.attach_mcast.is_none() && ops.query_rt_values.is_none() && ops.create_wq.is_none());
    machine.close();
}

fn init_attr(cq: *mut ibv_cq) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: ptr::null_mut(),
        cap: cap(1, 1, 0),
        qp_type: 2,
        sq_sig_all: 0,
    }
}
