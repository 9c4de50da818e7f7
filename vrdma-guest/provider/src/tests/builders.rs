//! Posting in parts, with `ibv_wr_*`.

use std::ffi::c_int;
use std::ptr;
use std::thread;

use vrdma_abi::ring::*;
use vrdma_rings::SharedMemory;
use zerocopy::FromBytes;

use super::machine::{LIVE, Machine, Qp, bind_info, cap, send};
use crate::verbs::*;

const ALL: u64 = (1 << 10) - 1;

/// Attributes of a QP with the extended interface.
fn init(machine: &Machine, cq: *mut ibv_cq, qp_type: c_int, operations: u64) -> ibv_qp_init_attr_ex {
    ibv_qp_init_attr_ex {
        send_cq: cq,
        recv_cq: cq,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        send_ops_flags: operations,
        ..machine.init(qp_type, cap(4, 2, 16))
    }
}

/// A QP that is ready to send, and its extended interface.
fn with_qp(qp_type: c_int, operations: u64, test: impl FnOnce(&Machine, &Qp<'_>, *mut ibv_qp_ex)) {
    let machine = Machine::open();
    let cq = machine.cq(16);
    let qp = machine.qp_ex(&mut init(&machine, cq, qp_type, operations)).unwrap();
    qp.modify(IBV_QPS_RTS);
    test(&machine, &qp, qp.extended().unwrap());
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

/// Calls a function of the extended interface, as the inline functions of verbs.h do.
macro_rules! call {
    ($qp:expr, $function:ident $(, $arg:expr)*) => {
        // SAFETY: the QP is live, and the batch has begun if the function needs that.
        unsafe { (*$qp).$function.unwrap()($qp $(, $arg)*) }
    };
}

fn sge(addr: u64, length: u32, lkey: u32) -> ibv_sge {
    ibv_sge { addr, length, lkey }
}

/// Says which request comes next.
fn request(qp: *mut ibv_qp_ex, wr_id: u64, flags: u32) {
    // SAFETY: the QP is live.
    unsafe { ((*qp).wr_id, (*qp).wr_flags) = (wr_id, flags) };
}

#[test]
fn every_operation_stands_in_the_ring() {
    with_qp(IBV_QPT_RC, ALL, |machine, qp, ex| {
        let list = [sge(0x10, 1, 2), sge(0x20, 3, 4)];
        call!(ex, wr_start);
        request(ex, 1, IBV_SEND_SIGNALED);
        call!(ex, wr_rdma_write, 0x77, 0xaaaa);
        call!(ex, wr_set_sge_list, 2, list.as_ptr());
        request(ex, 2, IBV_SEND_FENCE | IBV_SEND_SOLICITED);
        call!(ex, wr_rdma_write_imm, 0x78, 0xbbbb, 5);
        call!(ex, wr_set_sge, 2, 0x10, 1);
        call!(ex, wr_send);
        call!(ex, wr_send_imm, 6);
        assert!(qp.take_sends().is_empty(), "requests are shown together");
        assert_eq!(call!(ex, wr_complete), 0);
        assert!(qp.marked());

        let sent = qp.take_sends();
        let heads: Vec<_> = sent
            .iter()
            .map(|sent| {
                let head = &sent.header;
                let remote = (head.rkey, head.remote_addr, head.imm_or_inv);
                (head.opcode, head.wr_id, head.flags, head.num_sge, remote)
            })
            .collect();
        let expected = [
            (SEND_OP_RDMA_WRITE, 1, SEND_SIGNALED, 2, (0x77, 0xaaaa, 0)),
            (SEND_OP_RDMA_WRITE_IMM, 2, SEND_FENCE | SEND_SOLICITED, 1, (0x78, 0xbbbb, 5)),
            (SEND_OP_SEND, 2, SEND_FENCE | SEND_SOLICITED, 0, (0, 0, 0)),
            (SEND_OP_SEND_IMM, 2, SEND_FENCE | SEND_SOLICITED, 0, (0, 0, 6)),
        ];
        assert_eq!(heads, expected);
        let ring = |addr, length, lkey| Sge { addr, length, lkey };
        assert_eq!(sent[0].sges(0), [ring(0x10, 1, 2), ring(0x20, 3, 4)]);

        free(machine, qp, 4);
        let mut mr = region(machine);
        let mut mw = window(machine, IBV_MW_TYPE_2);
        let info = bind_info(&mut mr, 1, 2, IBV_ACCESS_REMOTE_READ);
        call!(ex, wr_start);
        call!(ex, wr_atomic_cmp_swp, 1, 2, 3, 4);
        call!(ex, wr_set_sge, 9, 8, 8);
        call!(ex, wr_atomic_fetch_add, 5, 6, 7);
        call!(ex, wr_rdma_read, 8, 9);
        call!(ex, wr_bind_mw, &mut mw, 0x501, &info);
        assert_eq!(call!(ex, wr_complete), 0);
        let sent = qp.take_sends();
        let atomic = |index: usize| AtomicSegment::read_from_prefix(&sent[index].rest).unwrap().0;
        assert_eq!(atomic(0), AtomicSegment { compare_add: 3, swap: 4 });
        assert_eq!(sent[0].sges(AtomicSegment::SIZE), [ring(8, 8, 9)]);
        assert_eq!((atomic(1), sent[1].header.rkey), (AtomicSegment { compare_add: 7, swap: 0 }, 5));
        assert_eq!((sent[2].header.opcode, sent[2].header.remote_addr), (SEND_OP_RDMA_READ, 9));
        let bind = BindSegment::read_from_prefix(&sent[3].rest).unwrap().0;
        assert_eq!((sent[3].header.rkey, bind.mr_lkey, bind.access), (0x501, 3, IBV_ACCESS_REMOTE_READ));

        free(machine, qp, 8);
        call!(ex, wr_start);
        call!(ex, wr_local_inv, 0x501);
        call!(ex, wr_send_inv, 0x601);
        assert_eq!(call!(ex, wr_complete), 0);
        let sent = qp.take_sends();
        let keys = sent.iter().map(|sent| (sent.header.opcode, sent.header.imm_or_inv));
        assert!(keys.eq([(SEND_OP_LOCAL_INV, 0x501), (SEND_OP_SEND_INV, 0x601)]));
    });
}

/// A completion frees the entries below `consumer`.
fn free(machine: &Machine, qp: &Qp<'_>, consumer: u32) {
    // SAFETY: the QP is live.
    let cq = unsafe { (*qp.qp).send_cq };
    machine.complete(cq, qp.send_cqe(consumer));
    assert_eq!(machine.poll(cq, 1).unwrap().len(), 1);
}

fn region(machine: &Machine) -> ibv_mr {
    let (context, pd) = (machine.context, machine.pd);
    ibv_mr { context, pd, addr: ptr::null_mut(), length: 0, handle: 1, lkey: 3, rkey: 3 }
}

fn window(machine: &Machine, mw_type: c_int) -> ibv_mw {
    ibv_mw { context: machine.context, pd: machine.pd, rkey: 0x500, handle: 2, mw_type }
}

#[test]
fn inline_data_is_copied_by_its_setter() {
    with_qp(IBV_QPT_UC, IBV_QP_EX_WITH_SEND, |_, qp, ex| {
        let mut bytes = *b"hello, world";
        call!(ex, wr_start);
        request(ex, 1, IBV_SEND_INLINE);
        call!(ex, wr_send);
        call!(ex, wr_set_inline_data, bytes.as_mut_ptr().cast(), 5);
        call!(ex, wr_send);
        let at =
            |from: usize, length| ibv_data_buf { addr: bytes[from..].as_ptr().cast_mut().cast(), length };
        let list = [at(7, 5), at(0, 0), at(4, 1)];
        call!(ex, wr_set_inline_data_list, 3, list.as_ptr());
        call!(ex, wr_send);
        call!(ex, wr_set_inline_data_list, 0, ptr::null());
        bytes.fill(b'x');
        assert_eq!(call!(ex, wr_complete), 0);
        let sent = qp.take_sends();
        assert!(sent.iter().map(|sent| sent.inline()).eq([b"hello".as_slice(), b"worldo", b""]));
    });
}

#[test]
fn datagrams_and_xrc_messages_need_a_target() {
    with_qp(IBV_QPT_UD, IBV_QP_EX_WITH_SEND, |machine, qp, ex| {
        let grh = ibv_global_route { dgid: ibv_gid { raw: [1; 16] }, ..ibv_global_route::default() };
        let ah =
            machine.ah(ibv_ah_attr { grh, is_global: 1, port_num: 1, ..ibv_ah_attr::default() }).unwrap();
        call!(ex, wr_start);
        call!(ex, wr_send);
        call!(ex, wr_set_sge, 1, 2, 3);
        call!(ex, wr_set_ud_addr, ah, 0x10, 0x20);
        assert_eq!(call!(ex, wr_complete), 0);
        let [sent] = &qp.take_sends()[..] else { panic!("one send") };
        let segment = DatagramSegment::read_from_prefix(&sent.rest).unwrap().0;
        assert_eq!((segment.dgid, segment.dest_qpn, segment.qkey), ([1; 16], 0x10, 0x20));
        assert_eq!(sent.sges(DatagramSegment::SIZE), [Sge { addr: 2, length: 3, lkey: 1 }]);

        call!(ex, wr_start);
        call!(ex, wr_send);
        assert_eq!(call!(ex, wr_complete), libc::EINVAL);
        call!(ex, wr_start);
        call!(ex, wr_send);
        call!(ex, wr_set_ud_addr, ptr::null_mut(), 0x10, 0x20);
        assert_eq!(call!(ex, wr_complete), libc::EINVAL);
        assert!(qp.take_sends().is_empty());
        machine.destroy_ah(ah);
    });
    with_qp(IBV_QPT_XRC_SEND, ALL, |_, qp, ex| {
        call!(ex, wr_start);
        call!(ex, wr_rdma_read, 1, 2);
        call!(ex, wr_set_xrc_srqn, 0x99);
        // This one goes nowhere.
        call!(ex, wr_local_inv, 7);
        assert_eq!(call!(ex, wr_complete), 0);
        let sent = qp.take_sends();
        assert_eq!(XrcSegment::read_from_prefix(&sent[0].rest).unwrap().0.srqn, 0x99);
        assert_eq!((sent[1].header.opcode, sent[1].header.imm_or_inv), (SEND_OP_LOCAL_INV, 7));
        call!(ex, wr_start);
        call!(ex, wr_rdma_read, 1, 2);
        assert_eq!(call!(ex, wr_complete), libc::EINVAL);
    });
}

#[test]
fn an_error_takes_back_the_whole_batch() {
    with_qp(IBV_QPT_RC, ALL, |machine, qp, ex| {
        let three = [0, 1, 2].map(|_| sge(0, 1, 0));
        let long = [0u8; 17];
        let mw = window(machine, IBV_MW_TYPE_1);
        let info = bind_info(&mut region(machine), 1, 2, 0);
        // What goes wrong after a good request, and how.
        let wrongs: [(&dyn Fn(), c_int); 9] = [
            (&|| call!(ex, wr_set_sge_list, 3, three.as_ptr()), libc::EINVAL),
            (&|| call!(ex, wr_set_sge_list, usize::MAX, three.as_ptr()), libc::EINVAL),
            (&|| call!(ex, wr_set_inline_data, long.as_ptr().cast_mut().cast(), 17), libc::EINVAL),
            (
                &|| {
                    call!(ex, wr_rdma_read, 1, 2);
                    call!(ex, wr_set_inline_data, ptr::null_mut(), 0);
                },
                libc::EINVAL,
            ),
            (
                &|| {
                    call!(ex, wr_local_inv, 1);
                    call!(ex, wr_set_sge, 1, 2, 3);
                },
                libc::EINVAL,
            ),
            (&|| call!(ex, wr_bind_mw, ptr::from_ref(&mw).cast_mut(), 0x501, &info), libc::EINVAL),
            (&|| (0..4).for_each(|_| call!(ex, wr_send)), libc::ENOMEM),
            (
                &|| {
                    (0..3).for_each(|_| call!(ex, wr_send));
                    call!(ex, wr_send);
                    call!(ex, wr_set_sge, 1, 2, 3);
                },
                libc::ENOMEM,
            ),
            // The first error counts.
            (
                &|| {
                    call!(ex, wr_set_sge_list, 3, three.as_ptr());
                    (0..5).for_each(|_| call!(ex, wr_send));
                },
                libc::EINVAL,
            ),
        ];
        for (index, (wrong, errno)) in wrongs.into_iter().enumerate() {
            call!(ex, wr_start);
            request(ex, 1, 0);
            call!(ex, wr_send);
            wrong();
            assert_eq!(call!(ex, wr_complete), errno, "error {index}");
            assert!(qp.take_sends().is_empty() && !qp.marked(), "error {index}");
        }
        // All entries are free again, and the next batch knows nothing of the last one.
        call!(ex, wr_start);
        (0..4).for_each(|_| call!(ex, wr_send));
        assert_eq!(call!(ex, wr_complete), 0);
        assert_eq!(qp.take_sends().len(), 4);
    });
}

#[test]
fn an_aborted_batch_leaves_nothing() {
    with_qp(IBV_QPT_RC, ALL, |_, qp, ex| {
        call!(ex, wr_start);
        request(ex, 1, 0);
        call!(ex, wr_send);
        call!(ex, wr_send);
        call!(ex, wr_abort);
        assert!(qp.take_sends().is_empty() && !qp.marked());
        qp.post_send(&mut [send(IBV_WR_SEND, 2, &mut [])]).unwrap();
        assert!(qp.take_sends().iter().map(|sent| sent.header.wr_id).eq([2]));
        // Without a batch there is nothing to complete, and setters need a request.
        assert_eq!(call!(ex, wr_complete), libc::EINVAL);
        call!(ex, wr_start);
        call!(ex, wr_set_sge, 1, 2, 3);
        assert_eq!(call!(ex, wr_complete), libc::EINVAL);
        // An empty batch rings no doorbell.
        assert!(qp.marked());
        call!(ex, wr_start);
        assert_eq!(call!(ex, wr_complete), 0);
        assert!(!qp.marked());
    });
}

#[test]
fn the_state_of_qp_and_device_counts_when_a_batch_begins() {
    with_qp(IBV_QPT_RC, ALL, |machine, qp, ex| {
        let post = || {
            call!(ex, wr_start);
            call!(ex, wr_send);
            call!(ex, wr_complete)
        };
        qp.modify(2); // RTR
        assert_eq!(post(), libc::EINVAL);
        qp.modify(IBV_QPS_ERR);
        assert_eq!(post(), 0);
        machine.memory.store_release(LIVE, 0);
        assert_eq!(post(), libc::EIO);
    });
}

#[test]
fn only_what_was_asked_for_can_be_built() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    let create = |qp_type, operations| machine.qp_ex(&mut init(&machine, cq, qp_type, operations));
    for (qp_type, operations) in [
        (IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE),
        (IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ),
        (IBV_QPT_UC, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD),
        (IBV_QPT_RC, 1 << 10), // TSO
        (IBV_QPT_RC, 1 << 11), // FLUSH
        (IBV_QPT_RC, 1 << 12), // ATOMIC_WRITE
    ] {
        assert_eq!(create(qp_type, operations).err(), Some(libc::EOPNOTSUPP), "{qp_type} {operations:#x}");
    }
    // The place of comp_mask depends on the version of the library.
    for is_v44 in [true, false] {
        machine.kernel(|kernel| kernel.is_v44 = is_v44);
        let qp = create(IBV_QPT_UD, IBV_QP_EX_WITH_SEND).unwrap();
        let ex = qp.extended().expect("the library finds the extended interface");
        // SAFETY: the QP is live.
        unsafe {
            assert!((*ex).wr_send.is_some() && (*ex).wr_set_ud_addr.is_some() && (*ex).wr_complete.is_some());
            assert!((*ex).wr_send_imm.is_none() && (*ex).wr_set_xrc_srqn.is_none());
            // The pointer wr_flush, which v44 has not got, stays null.
            let tail = (*qp.qp.cast::<crate::abi::verbs_qp>()).tail;
            assert_eq!(tail.iter().filter(|word| **word != 0).count(), 1);
        }
        qp.destroy();
        let plain = machine.qp(cq, cq, cap(1, 1, 0));
        assert!(plain.extended().is_none());
        plain.destroy();
    }
    machine.kernel(|kernel| assert!(kernel.qps.is_empty()));
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn attributes_of_qps_are_checked() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    let good = || init(&machine, cq, IBV_QPT_RC, 0);
    let null_cq = ptr::null_mut();
    for (index, (mut bad, errno)) in [
        (init(&machine, cq, 8, 0), libc::EOPNOTSUPP),   // RAW_PACKET
        (init(&machine, cq, 255, 0), libc::EOPNOTSUPP), // DRIVER
        (ibv_qp_init_attr_ex { comp_mask: 0x41 | 1 << 4, ..good() }, libc::EOPNOTSUPP), // IND_TABLE
        (ibv_qp_init_attr_ex { comp_mask: 0x45, create_flags: 2, ..good() }, libc::EOPNOTSUPP),
        (ibv_qp_init_attr_ex { comp_mask: 0x40, ..good() }, libc::EINVAL),
        (ibv_qp_init_attr_ex { send_cq: null_cq, ..good() }, libc::EINVAL),
        (ibv_qp_init_attr_ex { recv_cq: null_cq, ..good() }, libc::EINVAL),
        (init(&machine, cq, IBV_QPT_XRC_RECV, 0), libc::EINVAL),
        (ibv_qp_init_attr_ex { send_cq: null_cq, ..init(&machine, cq, IBV_QPT_XRC_SEND, 0) }, libc::EINVAL),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(machine.qp_ex(&mut bad).err(), Some(errno), "attributes {index}");
    }
    // Flags of which none is set ask for nothing.
    let qp = machine.qp_ex(&mut ibv_qp_init_attr_ex { comp_mask: 0x45, ..good() }).unwrap();
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

/// Batches of several threads do not mix, nor with what ibv_post_send posts.
#[test]
fn several_threads_build_for_one_queue() {
    const EACH: u64 = 300;
    with_qp(IBV_QPT_RC, ALL, |machine, qp, ex| {
        let address = ex.expose_provenance();
        let post = machine.ops.post_send.unwrap();
        let build = move |thread: u64| {
            let ex: *mut ibv_qp_ex = ptr::with_exposed_provenance_mut(address);
            for i in 0..EACH {
                loop {
                    call!(ex, wr_start);
                    for half in [0, 1] {
                        request(ex, thread << 32 | i << 1 | half, 0);
                        call!(ex, wr_send);
                        thread::yield_now();
                    }
                    if call!(ex, wr_complete) == 0 {
                        break;
                    }
                    thread::yield_now();
                }
            }
        };
        let single = move || {
            for i in 0..EACH {
                let (mut wr, mut bad) = (send(IBV_WR_SEND, 9 << 32 | i << 1, &mut []), ptr::null_mut());
                // SAFETY: the QP lives until all threads have ended.
                while unsafe { post(ptr::with_exposed_provenance_mut(address), &mut wr, &mut bad) } != 0 {
                    thread::yield_now();
                }
            }
        };
        let mut seen = Vec::new();
        thread::scope(|scope| {
            scope.spawn(move || build(1));
            scope.spawn(move || build(2));
            scope.spawn(single);
            let mut taken = 0;
            while seen.len() < 5 * EACH as usize {
                for sent in qp.take_sends() {
                    seen.push(sent.header.wr_id);
                    taken += 1;
                    free(machine, qp, taken);
                }
                thread::yield_now();
            }
        });
        let mut ids = seen.iter();
        while let Some(id) = ids.next() {
            if id >> 32 != 9 {
                assert_eq!(ids.next(), Some(&(id | 1)), "a batch was torn apart");
            }
        }
    });
}
