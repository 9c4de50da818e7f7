//! Polling and arming.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use vrdma_abi::ring::*;
use vrdma_rings::SharedMemory;

use super::machine::{LIVE, Machine, cap, send};
use crate::verbs::*;

#[test]
fn completions_carry_what_the_rnic_wrote() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    let qp = machine.qp(cq, cq, cap(4, 1, 0));
    assert_eq!(machine.poll(cq, 4), Ok(vec![]));
    machine.complete(
        cq,
        Cqe {
            wr_id: 0x0102_0304_0506_0708,
            byte_len: 100,
            imm_or_inv: u32::from_ne_bytes([9, 8, 7, 6]),
            src_qpn: 0x55,
            opcode: WC_RECV_RDMA_WITH_IMM,
            flags: CQE_RECV | CQE_WITH_IMM,
            ..qp.recv_cqe(1)
        },
    );
    machine.complete(
        cq,
        Cqe { wr_id: 2, vendor_err: 77, status: WC_REM_ACCESS_ERR, opcode: WC_RDMA_WRITE, ..qp.send_cqe(1) },
    );
    let completions = machine.poll(cq, 4).unwrap();
    // SAFETY: the QP is live.
    let qp_num = unsafe { (*qp.qp).qp_num };
    let expected = ibv_wc {
        wr_id: 0x0102_0304_0506_0708,
        status: 0,
        opcode: 129,
        vendor_err: 0,
        byte_len: 100,
        imm_data: u32::from_ne_bytes([9, 8, 7, 6]),
        qp_num,
        src_qp: 0x55,
        wc_flags: IBV_WC_WITH_IMM,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    };
    assert_eq!(completions[0], expected);
    let failed = &completions[1];
    assert_eq!((failed.wr_id, failed.status, failed.vendor_err, failed.wc_flags), (2, 10, 77, 0));
    assert_eq!(completions.len(), 2);
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn polling_takes_no_more_than_asked_for_and_returns_entries() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    let qp = machine.qp(cq, cq, cap(4, 1, 0));
    let consumer = || machine.memory.load_acquire(machine.cq_ring(cq).ring_offset as usize);
    for round in 0..5 {
        for wr_id in 0..4 {
            machine.complete(cq, Cqe { wr_id, ..qp.send_cqe(0) });
        }
        assert_eq!(machine.poll(cq, 0), Ok(vec![]));
        let ids = |max| machine.poll(cq, max).unwrap().iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
        assert_eq!(ids(3), [0, 1, 2]);
        assert_eq!(consumer(), round * 4 + 3);
        assert_eq!(ids(3), [3]);
    }
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn completions_of_a_destroyed_qp_are_skipped_and_its_cookie_is_reused() {
    let machine = Machine::open();
    let (cq, recv_cq) = (machine.cq(8), machine.cq(8));
    let kept = machine.qp(cq, recv_cq, cap(4, 1, 0));
    let gone = machine.qp(cq, recv_cq, cap(4, 1, 0));
    let cookie = gone.cookie();
    for (qp, wr_id) in [(&gone, 1), (&kept, 2), (&gone, 3)] {
        machine.complete(cq, Cqe { wr_id, ..qp.send_cqe(1) });
        machine.complete(recv_cq, Cqe { wr_id, ..qp.recv_cqe(1) });
    }
    gone.destroy();

    let new = machine.qp(cq, recv_cq, cap(4, 1, 0));
    assert_eq!(new.cookie(), cookie);
    machine.complete(cq, Cqe { wr_id: 4, ..new.send_cqe(1) });
    for (cq, expected) in [(cq, vec![2, 4]), (recv_cq, vec![2])] {
        let ids: Vec<_> = machine.poll(cq, 8).unwrap().iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, expected);
    }
    new.destroy();
    kept.destroy();
    machine.destroy_cq(cq);
    machine.destroy_cq(recv_cq);
    machine.close();
}

#[test]
fn a_reset_qp_starts_over() {
    let machine = Machine::open();
    let cq = machine.cq(8);
    let qp = machine.qp(cq, cq, cap(4, 1, 0));
    qp.modify(IBV_QPS_RTS);
    let mut list = [0, 1, 2, 3].map(|wr_id| send(IBV_WR_SEND, wr_id, &mut []));
    qp.post_send(&mut list).unwrap();
    assert_eq!(qp.take_sends().len(), 4);
    machine.complete(cq, qp.send_cqe(2));
    machine.poll(cq, 1).unwrap();
    // This one is never polled: it must not count for the queue that starts over.
    machine.complete(cq, qp.send_cqe(4));

    assert_eq!(qp.modify(IBV_QPS_RESET), 0);
    qp.reset_rnic();
    assert!(qp.take_sends().is_empty());
    assert_eq!(machine.poll(cq, 8), Ok(vec![]));

    qp.modify(IBV_QPS_RTS);
    for wr in &mut list {
        wr.wr_id += 10;
    }
    qp.post_send(&mut list).unwrap();
    assert!(qp.take_sends().iter().map(|sent| sent.header.wr_id).eq(10..14));
    assert_eq!(qp.post_send(&mut list[..1]), Err((libc::ENOMEM, 0)));
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn arming_stands_in_the_ring() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    let at = machine.cq_ring(cq).ring_offset as usize + 4;
    for (solicited_only, expected) in [(1, ARM_SOLICITED), (0, ARM_NEXT), (1, ARM_NEXT)] {
        // SAFETY: the queue is live.
        assert_eq!(unsafe { machine.ops.req_notify_cq.unwrap()(cq, solicited_only) }, 0);
        assert_eq!(machine.memory.load_acquire(at), expected);
    }
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn a_device_that_is_gone_gives_what_there_is_and_then_an_error() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    let qp = machine.qp(cq, cq, cap(4, 1, 0));
    machine.complete(cq, qp.send_cqe(1));
    machine.memory.store_release(LIVE, 0);
    assert_eq!(machine.poll(cq, 4).unwrap().len(), 1);
    assert_eq!(machine.poll(cq, 4), Err(libc::EIO));
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

/// The fatal events of a QP tell the provider what it cannot know otherwise.
#[test]
fn a_fatal_event_puts_the_qp_into_error() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    let qp = machine.qp(cq, cq, cap(4, 1, 0));
    qp.modify(IBV_QPS_RTS);
    let post = || qp.post_recv(&mut [super::machine::recv(0, &mut [])]).map(|()| qp.marked());
    let tell = |event_type| {
        let mut event = ibv_async_event { element: ibv_async_element { qp: qp.qp }, event_type };
        // SAFETY: the event names a live QP.
        unsafe { machine.ops.async_event.unwrap()(machine.context, &mut event) };
    };
    tell(4); // IBV_EVENT_COMM_EST
    assert_eq!(post(), Ok(false));
    tell(IBV_EVENT_QP_ACCESS_ERR);
    assert_eq!(post(), Ok(true));
    // An event of the port names no QP.
    let mut event = ibv_async_event { element: ibv_async_element { port_num: 1 }, event_type: 9 };
    // SAFETY: the event is valid.
    unsafe { machine.ops.async_event.unwrap()(machine.context, &mut event) };
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

/// Several threads poll one queue: each completion goes to one of them.
#[test]
fn several_threads_poll_one_queue() {
    const COUNT: u64 = 2000;
    let machine = Machine::open();
    let cq = machine.cq(16);
    let qp = machine.qp(cq, cq, cap(4, 1, 0));
    let sum = AtomicU64::new(0);
    let polled = AtomicU64::new(0);
    let (poll, address) = (machine.ops.poll_cq.unwrap(), cq.expose_provenance());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while polled.load(Ordering::Relaxed) < COUNT {
                    let mut wc = [const { std::mem::MaybeUninit::<ibv_wc>::uninit() }; 4];
                    // SAFETY: the queue lives until all threads have ended, and the array has four places.
                    let count =
                        unsafe { poll(ptr::with_exposed_provenance_mut(address), 4, wc.as_mut_ptr().cast()) };
                    for wc in &wc[..count as usize] {
                        // SAFETY: the completion was counted.
                        sum.fetch_add(unsafe { wc.assume_init() }.wr_id, Ordering::Relaxed);
                        polled.fetch_add(1, Ordering::Relaxed);
                    }
                    thread::yield_now();
                }
            });
        }
        for wr_id in 1..=COUNT {
            let ring = machine.cq_ring(cq);
            while wr_id as u32 - 1 - machine.memory.load_acquire(ring.ring_offset as usize) >= 16 {
                thread::yield_now();
            }
            machine.complete(cq, Cqe { wr_id, ..qp.send_cqe(0) });
        }
    });
    assert_eq!(sum.into_inner(), COUNT * (COUNT + 1) / 2);
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}
