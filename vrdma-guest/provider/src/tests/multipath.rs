//! Queue pairs with several paths: what stands in both rings, and what of it the application notices, which is nothing.

use std::collections::VecDeque;
use std::ffi::c_int;

use vrdma_abi::config::FEATURE_STEER;
use vrdma_abi::ring::*;

use super::kernel::Kernel;
use super::machine::{Machine, Qp, Sent, cap, send};
use crate::verbs::*;

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;
const PATHS: u32 = 4;
const WRS: u32 = 64;

fn sge(addr: u64, length: u32, lkey: u32) -> ibv_sge {
    ibv_sge { addr, length, lkey }
}

fn several(kernel: &mut Kernel) {
    kernel.paths = PATHS;
}

fn several_and_steer(kernel: &mut Kernel) {
    (kernel.paths, kernel.features) = (PATHS, FEATURE_STEER);
}

/// Moves a QP to RTS; its peer has so many paths.
fn connect(qp: &Qp<'_>, paths: u32) {
    qp.tell_paths(paths);
    assert_eq!((qp.modify(IBV_QPS_RTR), qp.modify(IBV_QPS_RTS)), (0, 0));
}

/// Runs a test with an RC QP of so many requests that is ready to send over several paths.
fn with_qp(prepare: fn(&mut Kernel), test: impl FnOnce(&Machine, &Qp<'_>, *mut ibv_cq)) {
    with_qp_of(WRS, PATHS, prepare, test);
}

fn with_qp_of(
    wrs: u32,
    paths: u32,
    prepare: fn(&mut Kernel),
    test: impl FnOnce(&Machine, &Qp<'_>, *mut ibv_cq),
) {
    let machine = Machine::open_after(prepare);
    let cq = machine.cq(64);
    let mut init = ibv_qp_init_attr_ex {
        send_cq: cq,
        recv_cq: cq,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        send_ops_flags: IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND,
        ..machine.init(IBV_QPT_RC, cap(wrs, 4, 32))
    };
    let qp = machine.qp_ex(&mut init).unwrap();
    assert_eq!(init.cap.max_send_wr, wrs, "what WAITs need is not told");
    connect(&qp, paths);
    test(&machine, &qp, cq);
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

fn request(opcode: c_int, wr_id: u64, remote_addr: u64, data: &mut [ibv_sge]) -> ibv_send_wr {
    let mut request = send(opcode, wr_id, data);
    request.wr.rdma = rdma_wr { remote_addr, rkey: 0x77 };
    request
}

fn bytes(sent: &Sent) -> u32 {
    sent.sges(0).iter().map(|sge| sge.length).sum()
}

/// All bytes that requests name on this side, one after the other, as pieces that do not touch.
fn pieces<'a>(sent: impl Iterator<Item = &'a Sent>) -> Vec<(u32, u64, u64)> {
    let mut pieces: Vec<(u32, u64, u64)> = Vec::new();
    for Sge { addr, length, lkey } in sent.flat_map(|sent| sent.sges(0)) {
        match pieces.last_mut() {
            Some((key, _, end)) if (*key, *end) == (lkey, addr) => *end += u64::from(length),
            _ => pieces.push((lkey, addr, addr + u64::from(length))),
        }
    }
    pieces
}

#[test]
fn a_large_write_is_chunks_a_wait_and_its_end() {
    with_qp(several, |_, qp, _| {
        let mut data = [sge(0x1000, 100_000, 7), sge(0x9_0000, 0, 9), sge(0x10_0000, MIB - 100_001, 8)];
        let mut write = request(IBV_WR_RDMA_WRITE, 5, 0xaaaa, &mut data);
        write.send_flags = IBV_SEND_SOLICITED | IBV_SEND_FENCE;
        qp.post_send(&mut [write]).unwrap();
        assert!(qp.marked());

        let (chunks, sent) = (qp.take_chunks(), qp.take_sends());
        let [wait, tail] = &sent[..] else { panic!("{} entries", sent.len()) };
        assert_eq!((wait.header.opcode, wait.header.flags, wait.header.num_sge), (SEND_OP_WAIT, 0, 0));
        assert_eq!(wait.header.rkey as usize, chunks.len());
        assert!(chunks.len() >= 2 * PATHS as usize, "each path has its share");

        let mut offset = 0;
        for chunk in &chunks {
            let header = &chunk.header;
            assert_eq!((header.opcode, header.flags, header.rkey), (SEND_OP_RDMA_WRITE, 0, 0x77));
            assert_eq!(header.remote_addr, 0xaaaa + u64::from(offset));
            offset += bytes(chunk);
        }
        let header = &tail.header;
        assert_eq!((header.opcode, header.wr_id), (SEND_OP_RDMA_WRITE, 5));
        assert_eq!(header.flags, SEND_SOLICITED | SEND_FENCE);
        assert_eq!((header.remote_addr, header.rkey), (0xaaaa + u64::from(offset), 0x77));
        assert_eq!(header.inline_bytes, 0);
        assert!((1..=4 * KIB).contains(&bytes(tail)));
        assert_eq!(offset + bytes(tail), MIB - 1);
        let all = [(7, 0x1000, 0x1000 + 100_000), (8, 0x10_0000, 0x10_0000 + u64::from(MIB) - 100_001)];
        assert_eq!(pieces(chunks.iter().chain([tail])), all);
    });
}

#[test]
fn the_end_of_a_read_says_what_came_before_it() {
    with_qp(several, |_, qp, _| {
        qp.post_send(&mut [request(IBV_WR_RDMA_READ, 1, 0, &mut [sge(0, MIB, 1)])]).unwrap();
        let (chunks, sent) = (qp.take_chunks(), qp.take_sends());
        assert!(chunks.iter().all(|chunk| chunk.header.opcode == SEND_OP_RDMA_READ));
        assert_eq!((sent[1].header.opcode, sent[1].header.flags), (SEND_OP_RDMA_READ, SEND_SIGNALED));
        assert_eq!(sent[1].header.inline_bytes + bytes(&sent[1]), MIB);
    });
}

#[test]
fn chunks_wait_for_what_they_must_not_overtake() {
    with_qp(several, |_, qp, _| {
        let (mut much, mut little) = ([sge(0, MIB, 1)], [sge(0, 8, 1)]);
        let mut large = |wr_id, at| request(IBV_WR_RDMA_WRITE, wr_id, at, &mut much);
        let small = request(IBV_WR_RDMA_WRITE, 1, 0, &mut little);
        // The second is after the first, the third goes somewhere else, the fourth onto the second.
        qp.post_send(&mut [small, large(2, 0), large(3, 1 << 30), large(4, 0)]).unwrap();
        let chunks = qp.take_chunks();
        let each = chunks.len() / 3;
        for (index, chunk) in chunks.iter().enumerate() {
            let header = &chunk.header;
            let after_chunk = (index / each == 2).then(|| (index - 2 * each + 1) as u32);
            let mut flags = SEND_AFTER_SQ;
            if let Some(done) = after_chunk {
                assert_eq!(header.imm_or_inv, done, "chunk {index}");
                flags |= SEND_AFTER_CHUNK;
            }
            assert_eq!((header.flags, header.wr_id), (flags, 1), "chunk {index}");
        }
        let opcodes: Vec<_> =
            qp.take_sends().iter().map(|sent| (sent.header.opcode, sent.header.wr_id)).collect();
        let pair = |wr_id| [(SEND_OP_WAIT, wr_id), (SEND_OP_RDMA_WRITE, wr_id)];
        assert_eq!(opcodes, [vec![(SEND_OP_RDMA_WRITE, 1)], [2, 3, 4].map(pair).concat()].concat());
    });
}

#[test]
fn sends_are_split_where_the_host_can_place_them() {
    let post = |qp: &Qp<'_>| {
        let mut data = [sge(0, MIB, 1)];
        let operations = [
            IBV_WR_SEND_WITH_INV,
            IBV_WR_RDMA_WRITE_WITH_IMM,
            IBV_WR_SEND,
            IBV_WR_RDMA_WRITE,
            IBV_WR_SEND_WITH_IMM,
        ];
        for (wr_id, opcode) in (0..).zip(operations) {
            let mut request = request(opcode, wr_id, 0x100, &mut data);
            request.imm_data = 9;
            qp.post_send(&mut [request]).unwrap();
        }
        let sent: Vec<_> = qp.take_sends().iter().map(|sent| sent.header.opcode).collect();
        (qp.take_chunks(), sent)
    };
    let (inv, write_imm) = (SEND_OP_SEND_INV, SEND_OP_RDMA_WRITE_IMM);
    with_qp(several, |_, qp, _| {
        let (chunks, sent) = post(qp);
        assert!(chunks.iter().all(|chunk| chunk.header.opcode == SEND_OP_RDMA_WRITE));
        let expected = [inv, write_imm, SEND_OP_SEND, SEND_OP_WAIT, SEND_OP_RDMA_WRITE, SEND_OP_SEND_IMM];
        assert_eq!(sent, expected);
    });
    with_qp(several_and_steer, |_, qp, _| {
        let (chunks, sent) = post(qp);
        let expected = [
            inv,
            write_imm,
            SEND_OP_WAIT,
            SEND_OP_SEND,
            SEND_OP_WAIT,
            SEND_OP_RDMA_WRITE,
            SEND_OP_WAIT,
            SEND_OP_SEND_IMM,
        ];
        assert_eq!(sent, expected);
        // Two other requests have taken a receive before the first one, and the write takes none.
        for receive in [2, 3] {
            let steered: Vec<_> = chunks
                .iter()
                .filter(|chunk| chunk.header.opcode == SEND_OP_STEER && chunk.header.rkey == receive)
                .collect();
            assert!(steered.len() >= 2 * PATHS as usize);
            assert_eq!(steered[1].header.remote_addr, u64::from(bytes(steered[0])));
        }
        let offset = |chunk: &Sent| chunk.header.remote_addr + u64::from(bytes(chunk));
        let end = chunks.iter().rfind(|chunk| chunk.header.opcode == SEND_OP_STEER).map(offset);
        qp.post_send(&mut [request(IBV_WR_SEND, 9, 0x100, &mut [sge(0, MIB, 1)])]).unwrap();
        let tail = &qp.take_sends()[1];
        assert_eq!((Some(tail.header.remote_addr), tail.header.rkey), (end, 0));
        assert_eq!(tail.header.flags, SEND_SIGNALED | SEND_STEERED);
    });
}

#[test]
fn small_and_impossible_messages_are_left_alone() {
    with_qp(several, |_, qp, _| {
        let text = [0u8; 32];
        let mut data = [
            vec![sge(0, 128 * KIB - 1, 1)],
            vec![],
            vec![sge(text.as_ptr().addr() as u64, 32, 0)],
            vec![sge(0, 1 << 31, 1), sge(0, 1, 1)],
            vec![sge(0, u32::MAX, 1), sge(0, u32::MAX, 1)],
        ];
        let mut list = data.each_mut().map(|data| request(IBV_WR_RDMA_WRITE, 0, 0, data));
        list[2].send_flags |= IBV_SEND_INLINE;
        qp.post_send(&mut list).unwrap();
        assert_eq!((qp.take_sends().len(), qp.take_chunks().len()), (5, 0));
    });
}

#[test]
fn nothing_is_split_before_the_rnic_has_found_several_paths() {
    with_qp(several, |_, qp, _| {
        for paths in [0, 1, 2] {
            qp.modify(IBV_QPS_RESET);
            qp.reset_rnic();
            connect(qp, paths);
            qp.post_send(&mut [request(IBV_WR_RDMA_WRITE, 0, 0, &mut [sge(0, MIB, 1)])]).unwrap();
            let (sent, chunks) = (qp.take_sends().len(), qp.take_chunks().len());
            assert_eq!((sent, chunks > 0), if paths == 2 { (2, true) } else { (1, false) });
        }
    });
}

#[test]
fn only_reliable_connected_queue_pairs_of_devices_with_several_paths_have_chunk_rings() {
    let entries = |prepare: fn(&mut Kernel), qp_type| {
        let machine = Machine::open_after(prepare);
        let cq = machine.cq(4);
        let mut init =
            ibv_qp_init_attr_ex { send_cq: cq, recv_cq: cq, ..machine.init(qp_type, cap(4, 1, 0)) };
        let qp = machine.qp_ex(&mut init).unwrap();
        let entries = (qp.rings().chunk_entries, qp.rings().sq_entries);
        // Whatever it has, it works.
        assert_eq!((qp.modify(IBV_QPS_RTR), qp.modify(IBV_QPS_RTS)), (0, 0));
        if qp_type != IBV_QPT_UD {
            qp.post_send(&mut [request(IBV_WR_RDMA_WRITE, 0, 0, &mut [sge(0, MIB, 1)])]).unwrap();
            assert_eq!(qp.take_sends().len(), 1);
        }
        qp.destroy();
        machine.destroy_cq(cq);
        machine.close();
        entries
    };
    assert_eq!(entries(several, IBV_QPT_RC), (256, 8));
    assert_eq!([IBV_QPT_UC, IBV_QPT_UD].map(|t| entries(several, t)), [(0, 4); 2]);
    // An older module, a device with one path, a host that refuses.
    assert_eq!(entries(|_| (), IBV_QPT_RC), (0, 4));
    assert_eq!(entries(|kernel| kernel.paths = 1, IBV_QPT_RC), (0, 4));
    let refusing: [fn(&mut Kernel); 3] = [
        |kernel| (kernel.paths, kernel.refuse_chunks) = (PATHS, Some(libc::EOPNOTSUPP)),
        |kernel| (kernel.paths, kernel.refuse_chunks) = (PATHS, Some(libc::EDQUOT)),
        |kernel| (kernel.paths, kernel.refuse_chunks) = (PATHS, Some(libc::ENOMEM)),
    ];
    assert_eq!(refusing.map(|refusing| entries(refusing, IBV_QPT_RC)), [(0, 4); 3]);
}

/// One path is no answer to what is wrong otherwise.
#[test]
fn other_refusals_are_the_applications() {
    let machine =
        Machine::open_after(|kernel| (kernel.paths, kernel.refuse_chunks) = (PATHS, Some(libc::EINVAL)));
    let cq = machine.cq(4);
    let mut init = ibv_qp_init_attr_ex { send_cq: cq, recv_cq: cq, ..machine.init(IBV_QPT_RC, cap(4, 1, 0)) };
    assert_eq!(machine.qp_ex(&mut init).err(), Some(libc::EINVAL));
    machine.destroy_cq(cq);
    machine.close();
}

#[test]
fn a_list_is_posted_up_to_the_request_that_is_refused() {
    with_qp(several, |_, qp, _| {
        let mut data = [sge(0, MIB, 1)];
        let mut large = |wr_id| request(IBV_WR_RDMA_WRITE, wr_id, 0, &mut data);
        let mut list = [large(1), send(99, 2, &mut []), large(3)];
        assert_eq!(qp.post_send(&mut list), Err((libc::EINVAL, 1)));
        let sent = qp.take_sends();
        assert!(sent.iter().map(|sent| sent.header.wr_id).eq([1, 1]));
        assert_eq!(qp.take_chunks().len(), sent[0].header.rkey as usize);
    });
}

#[test]
fn the_queue_takes_as_many_requests_as_were_promised() {
    let fill = |qp: &Qp<'_>| {
        let mut data = [sge(0, MIB, 1)];
        let mut request = |i: u32| {
            let opcode = if i % 4 == 3 { IBV_WR_SEND } else { IBV_WR_RDMA_WRITE };
            request(opcode, i.into(), u64::from(i) << 20, &mut data)
        };
        let mut list: Vec<_> = (0..=WRS).map(&mut request).collect();
        assert_eq!(qp.post_send(&mut list), Err((libc::ENOMEM, WRS as usize)));
        qp.take_sends().len() as u32
    };
    with_qp(several, |machine, qp, cq| {
        // All writes are split, and there is room for their WAITs, also when the rings go round.
        let (mut entries, mut chunks) = (0, 0);
        for _ in 0..20 {
            let posted = fill(qp);
            assert_eq!(posted, WRS + WRS / 4 * 3);
            entries += posted;
            chunks += qp.take_chunks().len() as u32;
            qp.tell_chunks_done(chunks);
            machine.complete(cq, qp.send_cqe(entries));
            assert_eq!(machine.poll(cq, 1).unwrap().len(), 1);
        }
    });
    let tight = |kernel: &mut Kernel| {
        several(kernel);
        kernel.is_tight = true;
    };
    with_qp(tight, |_, qp, _| assert_eq!(fill(qp), WRS));
}

/// Writes with immediate data are split where the RNIC has said that the peer understands it; the end says what came before.
#[test]
fn writes_with_immediate_data_are_split_where_the_peer_understands_it() {
    with_qp(several, |_, qp, _| {
        let mut data = [sge(0, MIB, 1)];
        let mut post = |qp: &Qp<'_>| {
            let mut request = request(IBV_WR_RDMA_WRITE_WITH_IMM, 5, 0x100, &mut data);
            request.imm_data = 9;
            qp.post_send(&mut [request]).unwrap();
            (qp.take_chunks(), qp.take_sends())
        };
        let (chunks, sent) = post(qp);
        assert_eq!((chunks.len(), sent.len(), sent[0].header.inline_bytes), (0, 1, 0));
        assert_eq!(qp.modify(IBV_QPS_RESET), 0);
        qp.reset_rnic();
        qp.tell_splits(SPLIT_WRITE_IMM | 1 << 31);
        connect(qp, PATHS);
        let (chunks, sent) = post(qp);
        assert!(chunks.len() >= 2 * PATHS as usize);
        assert!(chunks.iter().all(|chunk| chunk.header.opcode == SEND_OP_RDMA_WRITE));
        let [wait, end] = &sent[..] else { panic!("{} entries", sent.len()) };
        assert_eq!((wait.header.opcode, end.header.opcode), (SEND_OP_WAIT, SEND_OP_RDMA_WRITE_IMM));
        let before: u32 = chunks.iter().map(bytes).sum();
        assert_eq!((end.header.inline_bytes, before + bytes(end)), (before, MIB));
        assert_eq!(end.header.remote_addr, 0x100 + u64::from(before));
        assert_eq!((end.header.imm_or_inv, end.header.wr_id, end.header.flags), (9, 5, SEND_SIGNALED));
        assert_eq!(pieces(chunks.iter().chain([end])), [(1, 0, u64::from(MIB))]);
    });
}

/// A queue for many requests does not keep the first of them from being split, nor the last: there are fewer chunks for each.
#[test]
fn long_queues_are_split_from_the_first_request_to_the_last() {
    const WRS: u32 = 512;
    let sixteen = |kernel: &mut Kernel| kernel.paths = 16;
    with_qp_of(WRS, 16, sixteen, |_, qp, _| {
        let mut data = [sge(0, 64 * MIB, 1)];
        for i in 0..WRS {
            qp.post_send(&mut [request(IBV_WR_RDMA_WRITE, i.into(), u64::from(i) << 26, &mut data)]).unwrap();
            let chunks = qp.take_chunks().len();
            assert_eq!(qp.take_sends().len(), 2, "request {i} is not split");
            assert!(i > 0 || chunks == 256, "{chunks} chunks of the first");
        }
    });
}

#[test]
fn a_reset_starts_both_rings_over() {
    with_qp(several, |_, qp, _| {
        let mut data = [sge(0, MIB, 1)];
        for _ in 0..3 {
            let mut list = [0, 1, 2].map(|i| request(IBV_WR_RDMA_WRITE, i, 0, &mut data));
            qp.post_send(&mut list).unwrap();
            let (chunks, sent) = (qp.take_chunks(), qp.take_sends());
            assert_eq!((sent.len(), sent[4].header.rkey as usize), (6, chunks.len()));
            assert_eq!(chunks[0].header.flags, 0, "nothing is left to wait for");
            // What the RNIC has told last stands there until it tells something else.
            qp.tell_chunks_done(5);
            assert_eq!(qp.modify(IBV_QPS_RESET), 0);
            qp.reset_rnic();
            qp.tell_chunks_done(0);
            connect(qp, PATHS);
        }
    });
}

/// Calls a function of the extended interface, as the inline functions of verbs.h do.
macro_rules! call {
    ($qp:expr, $function:ident $(, $arg:expr)*) => {
        // SAFETY: the QP is live, and the batch has begun if the function needs that.
        unsafe { (*$qp).$function.unwrap()($qp $(, $arg)*) }
    };
}

#[test]
fn requests_that_are_posted_in_parts_are_split_and_taken_back() {
    with_qp(several_and_steer, |_, qp, _| {
        let ex = qp.extended().unwrap();
        let list = [sge(0, MIB, 1), sge(1 << 30, MIB, 2)];
        let batch = |large: usize| {
            call!(ex, wr_start);
            for i in 0..large {
                call!(ex, wr_send);
                call!(ex, wr_set_sge, 3, 0, 8);
                call!(ex, wr_rdma_write, 0x77, (i as u64) << 30);
                call!(ex, wr_set_sge_list, 2, list.as_ptr());
            }
            call!(ex, wr_send);
            call!(ex, wr_set_sge, 3, 0, MIB);
        };
        batch(2);
        call!(ex, wr_abort);
        // One request more than the queue takes.
        batch(WRS as usize / 2);
        assert_eq!(call!(ex, wr_complete), libc::ENOMEM);
        assert_eq!((qp.take_chunks().len(), qp.take_sends().len()), (0, 0));
        assert!(!qp.marked());

        batch(2);
        assert_eq!(call!(ex, wr_complete), 0);
        assert!(qp.marked());
        let (chunks, sent) = (qp.take_chunks(), qp.take_sends());
        let opcodes: Vec<_> = sent.iter().map(|sent| sent.header.opcode).collect();
        let write = [SEND_OP_SEND, SEND_OP_WAIT, SEND_OP_RDMA_WRITE];
        assert_eq!(opcodes, [&write[..], &write, &[SEND_OP_WAIT, SEND_OP_SEND]].concat());
        assert_eq!(sent[6].header.rkey as usize, chunks.len());
        // Nothing is left of what was taken back: neither in what chunks wait for nor in the count of receives.
        assert_eq!((chunks[0].header.flags, chunks[0].header.wr_id), (SEND_AFTER_SQ, 1));
        let steered = chunks.iter().find(|chunk| chunk.header.opcode == SEND_OP_STEER).unwrap();
        assert_eq!(steered.header.rkey, 2);
        let first = chunks.iter().take(sent[1].header.rkey as usize).chain([&sent[2]]);
        assert_eq!(pieces(first), [(1, 0, MIB.into()), (2, 1 << 30, (1 << 30) + u64::from(MIB))]);

        // A request that has been posted takes no more data.
        call!(ex, wr_start);
        call!(ex, wr_rdma_write, 0x77, 0);
        call!(ex, wr_set_sge_list, 2, list.as_ptr());
        call!(ex, wr_set_sge, 3, 0, 8);
        assert_eq!(call!(ex, wr_complete), libc::EINVAL);
        assert_eq!((qp.take_chunks().len(), qp.take_sends().len()), (0, 0));
    });
}

/// The RNIC of this test does as many chunks and then requests as a random number says. Large requests are split, and the application is refused one
/// exactly when so many are outstanding as it was promised.
#[test]
fn rings_never_run_out_and_waits_never_name_chunks_that_are_not_there() {
    with_qp(several_and_steer, |machine, qp, cq| {
        let mut state = 1u64;
        let mut random = |below: u32| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) % u64::from(below)) as u32
        };
        let (mut chunks, mut done) = (0, 0);
        // What is in the send queue: for which chunks it waits, or a request.
        let mut entries = VecDeque::new();
        let (mut end, mut told, mut outstanding) = (0, 0, 0);
        let (mut splits, mut whole, mut refused) = (0, 0, 0);
        for _ in 0..20_000 {
            let opcode = [IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ][random(3) as usize];
            let length = [8, 128 * KIB, MIB, 8 * MIB + 1][random(4) as usize];
            let mut data = [sge(0, length / 2, 1), sge(1 << 40, length - length / 2, 1)];
            let posted = qp.post_send(&mut [request(opcode, 0, u64::from(random(8)) << 20, &mut data)]);
            assert_eq!(posted, if outstanding == WRS { Err((libc::ENOMEM, 0)) } else { Ok(()) });
            for chunk in qp.take_chunks() {
                let header = &chunk.header;
                assert!(header.flags & SEND_AFTER_CHUNK == 0 || header.imm_or_inv <= chunks);
                assert!(header.flags & SEND_AFTER_SQ == 0 || header.wr_id <= end);
                chunks += 1;
            }
            assert!(chunks - done <= qp.rings().chunk_entries);
            let sent = qp.take_sends();
            let is_split = sent.len() == 2;
            assert_eq!(sent.len(), usize::from(posted.is_ok()) + usize::from(is_split));
            for sent in sent {
                let wait = (sent.header.opcode == SEND_OP_WAIT).then_some(sent.header.rkey);
                assert!(wait.is_none_or(|index| index == chunks));
                entries.push_back(wait);
                end += 1;
            }
            outstanding += u32::from(posted.is_ok());
            splits += u32::from(is_split);
            whole += u32::from(length > 8 && posted.is_ok() && !is_split);
            refused += u32::from(posted.is_err());

            if random(60) == 0 {
                done += random(chunks - done + 1);
                qp.tell_chunks_done(done);
                let before = told;
                while entries.front().is_some_and(|wait| wait.is_none_or(|index| index <= done))
                    && random(100) != 0
                {
                    outstanding -= u32::from(entries.pop_front() == Some(None));
                    told += 1;
                }
                if told != before {
                    machine.complete(cq, qp.send_cqe(told));
                    assert_eq!(machine.poll(cq, 1).unwrap().len(), 1);
                }
            }
        }
        assert!(splits > 3000 && refused > 500, "{splits} were split, {refused} refused");
        assert_eq!(whole, 0);
    });
}
