//! Posting and polling, to be counted: a program that writes, and an RNIC that has done at once what it is told of.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use vrdma_abi::config::FEATURE_STEER;

use super::machine::{Machine, Qp, cap, send};
use crate::verbs::*;

/// Requests that the program may have outstanding.
const WRS: u32 = 64;

/// What the program does.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Paths of its queue pair; with 1 its device has none to offer.
    pub paths: u32,
    /// Bytes of each message.
    pub bytes: u32,
    /// They stand in the request itself.
    pub inline: bool,
    /// Requests are built part by part (`ibv_wr_start`).
    pub in_parts: bool,
    /// Messages that are counted.
    pub messages: usize,
}

/// Writes messages one after the other: some, and then those that are counted.
pub fn run(workload: &Workload) {
    let machine = Machine::open_after(|kernel| {
        if workload.paths > 1 {
            (kernel.paths, kernel.features) = (workload.paths, FEATURE_STEER);
        }
    });
    let cq = machine.cq(64);
    let mut init = ibv_qp_init_attr_ex {
        send_cq: cq,
        recv_cq: cq,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        send_ops_flags: IBV_QP_EX_WITH_RDMA_WRITE,
        ..machine.init(IBV_QPT_RC, cap(WRS, 4, 32))
    };
    let qp = machine.qp_ex(&mut init).expect("the kernel makes it");
    if workload.paths > 1 {
        qp.tell_paths(workload.paths);
    }
    assert_eq!((qp.modify(IBV_QPS_RTR), qp.modify(IBV_QPS_RTS)), (0, 0));
    let data = [0x5a; 32];
    let addr = if workload.inline { data.as_ptr().expose_provenance() as u64 } else { 0x10_0000 };
    let mut sges = [ibv_sge { addr, length: workload.bytes, lkey: 7 }];
    let mut write = send(IBV_WR_RDMA_WRITE, 1, &mut sges);
    write.send_flags |= if workload.inline { IBV_SEND_INLINE } else { 0 };
    write.wr.rdma = rdma_wr { remote_addr: 0x20_0000, rkey: 8 };
    let (post, poll) = (machine.ops.post_send.expect("it posts"), machine.ops.poll_cq.expect("it polls"));
    let parts = workload.in_parts.then(|| Parts::of(&qp));
    let (done, chunks) = (0, 0);
    let mut program =
        Program { workload, machine: &machine, qp: &qp, cq, post, poll, parts, write, done, chunks };
    // Twice around all rings, so that all of them have been used.
    for _ in 0..2 * WRS {
        program.message(Program::post, Program::poll);
    }
    for _ in 0..workload.messages {
        program.message(bench_library_post, bench_library_poll);
    }
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}

/// Its name is known to the benchmark that counts.
#[inline(never)]
fn bench_library_post(program: &mut Program<'_>) -> c_int {
    program.post()
}

/// The same.
#[inline(never)]
fn bench_library_poll(program: &mut Program<'_>) -> c_int {
    program.poll()
}

type Post = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type Poll = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

struct Program<'a> {
    workload: &'a Workload,
    machine: &'a Machine,
    qp: &'a Qp<'a>,
    cq: *mut ibv_cq,
    post: Post,
    poll: Poll,
    parts: Option<Parts>,
    write: ibv_send_wr,
    /// Entries of the send queue, and chunks, that the RNIC has done.
    done: u32,
    chunks: u32,
}

/// What posts a request in parts.
struct Parts {
    qp: *mut ibv_qp_ex,
    start: unsafe extern "C" fn(*mut ibv_qp_ex),
    write: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
    set: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge),
    complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
}

impl Parts {
    fn of(qp: &Qp<'_>) -> Self {
        let qp = qp.extended().expect("this was asked for");
        // SAFETY: the queue pair is live.
        let found = unsafe {
            (*qp).wr_start.zip((*qp).wr_rdma_write).zip((*qp).wr_set_sge_list).zip((*qp).wr_complete)
        };
        let (((start, write), set), complete) = found.expect("this was asked for");
        Self { qp, start, write, set, complete }
    }
}

impl Program<'_> {
    /// Posts a message and polls its completion.
    fn message(&mut self, post: fn(&mut Self) -> c_int, poll: fn(&mut Self) -> c_int) {
        assert_eq!(post(self), 0);
        assert!(self.qp.marked(), "the message has been posted");
        self.chunks += self.qp.take_chunks().len() as u32;
        self.done += self.qp.take_sends().len() as u32;
        let is_split = self.workload.paths > 1 && self.workload.bytes >= 128 << 10;
        assert_eq!(self.chunks > 0, is_split);
        if is_split {
            self.qp.tell_chunks_done(self.chunks);
        }
        self.machine.complete(self.cq, self.qp.send_cqe(self.done));
        assert_eq!(poll(self), 1);
    }

    /// As the inline functions of verbs.h do.
    #[inline]
    fn post(&mut self) -> c_int {
        let mut bad = ptr::null_mut();
        // SAFETY: queue pair and request are live, and so is what the request points to.
        unsafe {
            let Some(Parts { qp, start, write, set, complete }) = self.parts else {
                return (self.post)(self.qp.qp, &mut self.write, &mut bad);
            };
            ((*qp).wr_id, (*qp).wr_flags) = (1, IBV_SEND_SIGNALED);
            start(qp);
            write(qp, 8, 0x20_0000);
            set(qp, 1, self.write.sg_list);
            complete(qp)
        }
    }

    #[inline]
    fn poll(&mut self) -> c_int {
        let mut wc = [const { MaybeUninit::<ibv_wc>::uninit() }; 1];
        // SAFETY: the queue is live, and the array has one place.
        unsafe { (self.poll)(self.cq, 1, wc.as_mut_ptr().cast()) }
    }
}
