//! Posting: what stands in the rings, what is refused, when the doorbell rings.

use std::ptr;
use std::thread;

use vrdma_abi::ring::*;
use vrdma_rings::SharedMemory;
use zerocopy::FromBytes;

use super::machine::{LIVE, Machine, Qp, cap, recv, send};
use crate::verbs::*;

const INIT: i32 = 1;
const RTR: i32 = 2;

/// Runs a test with a QP that is ready to send.
fn with_qp(cap: ibv_qp_cap, test: impl FnOnce(&Machine, &Qp<'_>, *mut ibv_cq)) {
    let machine = Machine::open();
    let cq = machine.cq(64);
    let qp = machine.qp(cq, cq, cap);
    assert_eq!(qp.modify(IBV_QPS_RTS), 0);
    test(&machine, &qp, cq);
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

fn sge(addr: u64, length: u32, lkey: u32) -> ibv_sge {
    ibv_sge { addr, length, lkey }
}

#[test]
fn every_operation_stands_in_the_ring() {
    with_qp(cap(16, 4, 0), |_, qp, _| {
        let mut data = [sge(0x1000, 16, 7), sge(0x2000, 32, 8)];
        let rdma = send_wr_operation {
            atomic: atomic_wr { remote_addr: 0xaaaa, compare_add: 0x55, swap: 0x66, rkey: 0x77 },
        };
        let operations = [
            (IBV_WR_RDMA_WRITE, SEND_OP_RDMA_WRITE),
            (IBV_WR_RDMA_WRITE_WITH_IMM, SEND_OP_RDMA_WRITE_IMM),
            (IBV_WR_SEND, SEND_OP_SEND),
            (IBV_WR_SEND_WITH_IMM, SEND_OP_SEND_IMM),
            (IBV_WR_RDMA_READ, SEND_OP_RDMA_READ),
            (IBV_WR_ATOMIC_CMP_AND_SWP, SEND_OP_CMP_SWAP),
            (IBV_WR_ATOMIC_FETCH_AND_ADD, SEND_OP_FETCH_ADD),
        ];
        for (wr_id, (verb, _)) in (0..).zip(operations) {
            let mut request = send(verb, wr_id, &mut data);
            request.imm_data = u32::from_ne_bytes([1, 2, 3, 4]);
            request.wr = rdma;
            if verb <= IBV_WR_RDMA_READ {
                request.wr.rdma = rdma_wr { remote_addr: 0xbbbb, rkey: 0x88 };
            }
            qp.post_send(&mut [request]).unwrap();
        }

        let sent = qp.take_sends();
        assert_eq!(sent.len(), operations.len());
        for (wr_id, (sent, (_, opcode))) in (0..).zip(sent.iter().zip(operations)) {
            let header = &sent.header;
            assert_eq!((header.opcode, header.wr_id), (opcode, wr_id));
            assert_eq!((header.flags, header.num_sge, header.inline_bytes), (SEND_SIGNALED, 2, 0));
            let with_imm = matches!(opcode, SEND_OP_RDMA_WRITE_IMM | SEND_OP_SEND_IMM);
            assert_eq!(header.imm_or_inv.to_ne_bytes(), if with_imm { [1, 2, 3, 4] } else { [0; 4] });
            let (remote, atomic) = match opcode {
                SEND_OP_SEND | SEND_OP_SEND_IMM => ((0, 0), false),
                SEND_OP_CMP_SWAP | SEND_OP_FETCH_ADD => ((0xaaaa, 0x77), true),
                _ => ((0xbbbb, 0x88), false),
            };
            assert_eq!((header.remote_addr, header.rkey), remote, "opcode {opcode}");
            if atomic {
                let (operands, _) = AtomicSegment::read_from_prefix(&sent.rest).unwrap();
                assert_eq!(operands, AtomicSegment { compare_add: 0x55, swap: 0x66 });
            }
            let sges = sent.sges(if atomic { AtomicSegment::SIZE } else { 0 });
            assert_eq!(sges[0], Sge { addr: 0x1000, length: 16, lkey: 7 });
            assert_eq!(sges[1], Sge { addr: 0x2000, length: 32, lkey: 8 });
        }
    });
}

#[test]
fn flags_are_translated() {
    with_qp(cap(8, 1, 0), |_, qp, _| {
        let flags = [
            (0, 0),
            (IBV_SEND_SIGNALED, SEND_SIGNALED),
            (IBV_SEND_SOLICITED, SEND_SOLICITED),
            (IBV_SEND_FENCE, SEND_FENCE),
            (1 << 4, 0), // IBV_SEND_IP_CSUM means nothing here
        ];
        for (verbs, _) in flags {
            let mut request = send(IBV_WR_SEND, 0, &mut []);
            request.send_flags = verbs;
            qp.post_send(&mut [request]).unwrap();
        }
        let sent = qp.take_sends();
        assert!(sent.iter().map(|sent| sent.header.flags).eq(flags.map(|(_, ring)| ring)));
    });
}

#[test]
fn inline_data_is_copied_when_posted() {
    with_qp(cap(8, 3, 64), |_, qp, _| {
        let mut first = *b"hello, ";
        let second = *b"world";
        let at = |bytes: &[u8]| sge(bytes.as_ptr().addr() as u64, bytes.len() as u32, 0);
        let mut data = [at(&first), sge(0, 0, 0), at(&second)];
        let mut request = send(IBV_WR_SEND, 1, &mut data);
        request.send_flags = IBV_SEND_INLINE;
        qp.post_send(&mut [request]).unwrap();
        first.fill(b'x');

        let [sent] = &qp.take_sends()[..] else { panic!("one send") };
        assert_eq!((sent.header.flags, sent.header.num_sge), (SEND_INLINE, 0));
        assert_eq!(sent.inline(), b"hello, world");
    });
}

#[test]
fn bad_requests_are_refused_and_those_before_them_posted() {
    // The stride has room for 32 bytes, but the application has asked for 16.
    with_qp(cap(8, 2, 16), |_, qp, _| {
        let bytes = [0u8; 17];
        let mut long = [sge(bytes.as_ptr().addr() as u64, 17, 0)];
        let mut three = [0, 1, 2].map(|_| sge(0, 1, 0));
        let inline = |mut wr: ibv_send_wr| {
            wr.send_flags |= IBV_SEND_INLINE;
            wr
        };
        let mut negative = send(IBV_WR_SEND, 0, &mut []);
        negative.num_sge = -1;
        let bad = [
            send(10, 0, &mut []), // IBV_WR_TSO
            send(-1, 0, &mut []),
            send(IBV_WR_SEND, 0, &mut three),
            negative,
            inline(send(IBV_WR_SEND, 0, &mut long)),
            inline(send(IBV_WR_RDMA_READ, 0, &mut [])),
            inline(send(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, &mut [])),
        ];
        for (index, bad) in bad.into_iter().enumerate() {
            let mut list = [send(IBV_WR_SEND, 1, &mut []), bad, send(IBV_WR_SEND, 2, &mut [])];
            assert_eq!(qp.post_send(&mut list), Err((libc::EINVAL, 1)), "request {index}");
            let sent = qp.take_sends();
            assert!(sent.iter().map(|sent| sent.header.wr_id).eq([1]), "request {index}");
            assert!(qp.marked(), "request {index}");
        }

        let mut list = [recv(1, &mut []), recv(2, &mut three)];
        assert_eq!(qp.post_recv(&mut list), Err((libc::EINVAL, 1)));
        assert_eq!(qp.take_recvs(), [(1, vec![])]);
    });
}

#[test]
fn a_full_queue_refuses_until_a_completion_was_polled() {
    with_qp(cap(4, 1, 0), |machine, qp, cq| {
        let mut list = [0, 1, 2, 3, 4].map(|wr_id| send(IBV_WR_SEND, wr_id, &mut []));
        assert_eq!(qp.post_send(&mut list), Err((libc::ENOMEM, 4)));
        assert_eq!(qp.take_sends().len(), 4);

        // One completion stands for the unsignalled requests before it.
        machine.complete(cq, qp.send_cqe(3));
        let mut one = [send(IBV_WR_SEND, 5, &mut [])];
        assert_eq!(qp.post_send(&mut one), Err((libc::ENOMEM, 0)));
        assert_eq!(machine.poll(cq, 8).unwrap().len(), 1);
        for _ in 0..3 {
            qp.post_send(&mut one).unwrap();
        }
        assert_eq!(qp.post_send(&mut one), Err((libc::ENOMEM, 0)));

        let mut list = [0, 1, 2, 3, 4].map(|wr_id| recv(wr_id, &mut []));
        assert_eq!(qp.post_recv(&mut list), Err((libc::ENOMEM, 4)));
        machine.complete(cq, qp.recv_cqe(1));
        assert_eq!(machine.poll(cq, 8).unwrap().len(), 1);
        qp.post_recv(&mut list[..1]).unwrap();
        assert_eq!(qp.post_recv(&mut list[..1]), Err((libc::ENOMEM, 0)));
    });
}

#[test]
fn receives_carry_their_entries_and_ring_no_doorbell() {
    with_qp(cap(4, 2, 0), |_, qp, _| {
        let mut data = [sge(0x10, 1, 2), sge(0x20, 3, 4)];
        qp.post_recv(&mut [recv(5, &mut data), recv(6, &mut [])]).unwrap();
        let entries = [Sge { addr: 0x10, length: 1, lkey: 2 }, Sge { addr: 0x20, length: 3, lkey: 4 }];
        assert_eq!(qp.take_recvs(), [(5, entries.to_vec()), (6, vec![])]);
        assert!(!qp.marked());
    });
}

#[test]
fn the_state_decides_what_can_be_posted() {
    let machine = Machine::open();
    let cq = machine.cq(4);
    let qp = machine.qp(cq, cq, cap(4, 1, 0));
    let post = || {
        let sent = qp.post_send(&mut [send(IBV_WR_SEND, 0, &mut [])]).map_err(|(errno, _)| errno);
        let received = qp.post_recv(&mut [recv(0, &mut [])]).map_err(|(errno, _)| errno);
        (sent, received)
    };
    assert_eq!(post(), (Err(libc::EINVAL), Err(libc::EINVAL)));
    for state in [INIT, RTR] {
        assert_eq!(qp.modify(state), 0);
        assert_eq!(post(), (Err(libc::EINVAL), Ok(())));
    }
    qp.modify(IBV_QPS_RTS);
    assert_eq!(post(), (Ok(()), Ok(())));
    // In ERR requests are taken, to be flushed; a change of state that fails changes nothing.
    machine.kernel(|kernel| kernel.fail = Some(libc::EACCES));
    assert_eq!(qp.modify(IBV_QPS_RESET), libc::EACCES);
    assert_eq!(qp.modify(IBV_QPS_ERR), 0);
    assert_eq!(post(), (Ok(()), Ok(())));
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn the_doorbell_register_is_written_only_for_a_sleeping_slot() {
    with_qp(cap(8, 1, 0), |machine, qp, _| {
        let mut one = [send(IBV_WR_SEND, 0, &mut [])];
        qp.post_send(&mut one).unwrap();
        assert!(qp.marked());
        assert_eq!(machine.kicks(), []);

        let slot = u64::from(qp.db_slot());
        machine.memory.store_release(slot as usize * 64, 1);
        qp.post_send(&mut one).unwrap();
        assert!(qp.marked());
        assert_eq!(machine.kicks(), [slot]);

        // Nothing posted, nothing to tell.
        one[0].opcode = 99;
        assert!(qp.post_send(&mut one).is_err());
        assert!(!qp.marked());
        assert_eq!(machine.kicks(), []);
    });
}

#[test]
fn receives_of_a_failed_qp_ring_the_doorbell_to_be_flushed() {
    with_qp(cap(8, 1, 0), |machine, qp, cq| {
        machine.complete(cq, Cqe { status: WC_RETRY_EXC_ERR, ..qp.send_cqe(0) });
        assert_eq!(machine.poll(cq, 1).unwrap().len(), 1);
        qp.post_recv(&mut [recv(0, &mut [])]).unwrap();
        assert!(qp.marked());

        qp.modify(IBV_QPS_RESET);
        qp.modify(INIT);
        qp.post_recv(&mut [recv(0, &mut [])]).unwrap();
        assert!(!qp.marked());
        qp.modify(IBV_QPS_ERR);
        qp.post_recv(&mut [recv(0, &mut [])]).unwrap();
        assert!(qp.marked());
    });
}

#[test]
fn nothing_is_posted_to_a_device_that_is_gone() {
    with_qp(cap(8, 1, 0), |machine, qp, cq| {
        machine.memory.store_release(LIVE, 0);
        assert_eq!(qp.post_send(&mut [send(IBV_WR_SEND, 0, &mut [])]), Err((libc::EIO, 0)));
        assert_eq!(qp.post_recv(&mut [recv(0, &mut [])]), Err((libc::EIO, 0)));
        // SAFETY: the queue is live.
        assert_eq!(unsafe { machine.ops.req_notify_cq.unwrap()(cq, 0) }, libc::EIO);
        assert!(qp.take_sends().is_empty() && qp.take_recvs().is_empty() && !qp.marked());
    });
}

/// Four threads post to one queue, through many rounds of it; each entry arrives once, and those of a thread in order.
#[test]
fn several_threads_post_to_one_queue() {
    const EACH: u64 = 500;
    with_qp(cap(16, 1, 0), |machine, qp, cq| {
        let (post, address) = (machine.ops.post_send.unwrap(), qp.qp.expose_provenance());
        let poster = move |thread: u64| {
            let qp = ptr::with_exposed_provenance_mut(address);
            for i in 0..EACH {
                let mut wr = send(IBV_WR_SEND, thread << 32 | i, &mut []);
                let mut bad = ptr::null_mut();
                // SAFETY: the QP lives until all threads have ended.
                while unsafe { post(qp, &mut wr, &mut bad) } != 0 {
                    thread::yield_now();
                }
            }
        };
        let mut seen = [0; 4];
        let mut taken = 0;
        thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || poster(thread));
            }
            while taken < 4 * EACH as u32 {
                for sent in qp.take_sends() {
                    let (thread, i) = (sent.header.wr_id >> 32, sent.header.wr_id & 0xffff_ffff);
                    assert_eq!(seen[thread as usize], i);
                    seen[thread as usize] += 1;
                    taken += 1;
                    machine.complete(cq, qp.send_cqe(taken));
                    assert_eq!(machine.poll(cq, 4).unwrap().len(), 1);
                }
                thread::yield_now();
            }
        });
        assert_eq!(seen, [EACH; 4]);
    });
}
