//! Completion queues: creation, another size, end.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::c_int;
use std::mem::{size_of, size_of_val};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vrdma_abi::control::RING_FORMAT_1;
use vrdma_abi::ring::Cqe;
use vrdma_abi::uapi::UserCqReply;
use vrdma_rings::{Arm, CqArm, CqRing};

use crate::abi::*;
use crate::errno::{Errno, pointer, status};
use crate::lock::Lock;
use crate::mapped::{Access, Mapped};
use crate::object::Object;
use crate::poll_ex;
use crate::shared::{Shared, shared};
use crate::verbs::*;

/// The ring, and what its poller keeps between two calls.
pub struct CompletionQueue {
    pub ring: CqRing<Mapped>,
    /// What `ibv_start_poll` and `ibv_next_poll` have taken last.
    pub current: Cqe,
    /// The RNIC writes to a ring that could not be mapped: no completion can come.
    pub lost: bool,
}

/// A completion queue's own state. Its QPs hold it too, to disown their completions when they end.
pub struct Completions {
    pub shared: Arc<Shared>,
    /// For one poller at a time.
    pub queue: Lock<CompletionQueue>,
    /// A queue can be armed between `ibv_start_poll` and `ibv_end_poll`, so this is no part of what is locked meanwhile.
    arm: Mutex<CqArm<Mapped>>,
}

pub type Cq = Object<verbs_cq, Arc<Completions>>;

impl Completions {
    fn map(shared: &Arc<Shared>, reply: &UserCqReply) -> Result<Self, Errno> {
        let memory = map(shared, reply)?;
        let arm = Mutex::new(CqArm::new(memory.clone()));
        let ring = CqRing::new(memory, reply.entries).map_err(|_| Errno::EINVAL)?;
        let queue = Lock::new(CompletionQueue { ring, current: Cqe::ZERO, lost: false });
        Ok(Self { shared: shared.clone(), queue, arm })
    }

    /// Asks for an event.
    pub fn arm(&self, wish: Arm) {
        self.armer().arm(wish);
    }

    fn armer(&self) -> MutexGuard<'_, CqArm<Mapped>> {
        self.arm.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn map(shared: &Shared, reply: &UserCqReply) -> Result<Mapped, Errno> {
    if reply.ring_format != RING_FORMAT_1 {
        return Err(Errno::EOPNOTSUPP);
    }
    Mapped::new(shared.cmd_fd, reply.ring_offset, reply.ring_bytes as usize, Access::ReadWrite)
}

/// The state of a queue that the application passed.
///
/// # Safety
///
/// `cq` must be a queue of this provider, and not be destroyed while the reference lives.
#[inline]
pub unsafe fn completions<'a>(cq: *mut ibv_cq) -> &'a Arc<Completions> {
    // SAFETY: each queue of this provider is a `Cq`, which the library's part begins.
    unsafe { Cq::own(cq.cast()) }
}

pub unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the library passes an open context and its own channel; a verbs_cq may be all zeroes.
    let cq = pointer(unsafe { Cq::create(|cq| create(context, cqe, channel, comp_vector, cq)) });
    cq.cast()
}

/// What completions can tell through `ibv_wc_read_*`.
const WC_FLAGS: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;

/// A queue to be polled by `ibv_start_poll`. What it cannot offer is EOPNOTSUPP: programs then fall back to the plain one.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the library passes an open context and the application's attributes; a verbs_cq may be all zeroes.
    pointer(unsafe {
        Cq::create(|cq| {
            let init = &*init;
            let has_flags = init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
            if init.wc_flags & !WC_FLAGS != 0
                || init.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
                // A single thread has no use for the lock, but a free lock costs it next to nothing.
                || has_flags && init.flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
            {
                return Err(Errno::EOPNOTSUPP);
            }
            let cqe = init.cqe.try_into().map_err(|_| Errno::EINVAL)?;
            let vector = init.comp_vector.try_into().map_err(|_| Errno::EINVAL)?;
            let completions = create(context, cqe, init.channel, vector, cq)?;
            poll_ex::offer(&mut *cq, init.wc_flags);
            Ok(completions)
        })
    })
}

/// # Safety
///
/// The context must be open, and `cq` be the library's part of the new object.
unsafe fn create(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
    cq: *mut verbs_cq,
) -> Result<Arc<Completions>, Errno> {
    let mut command: ibv_create_cq = Default::default();
    let mut reply: WithDriver<ib_uverbs_create_cq_resp, UserCqReply> = Default::default();
    let cq = cq.cast::<ibv_cq>();
    // SAFETY: the caller's pointers are valid; command and reply are as long as said. A queue that cannot be mapped is destroyed before
    // anybody has used it, so the kernel has no reason to refuse.
    unsafe {
        let shared = shared(context).ok_or(Errno::EINVAL)?;
        Errno::check((shared.library.ibv_cmd_create_cq)(
            context,
            cqe,
            channel,
            comp_vector,
            cq,
            &mut command,
            size_of::<ibv_create_cq>(),
            (&raw mut reply).cast(),
            size_of_val(&reply),
        ))?;
        Completions::map(shared, &reply.driver).map(Arc::new).inspect_err(|_| {
            (shared.library.ibv_cmd_destroy_cq)(cq);
        })
    }
}

/// Gives the queue another ring. Nobody polls or arms it meanwhile, as the ABI wants it, and the completions that wait
/// stand in the new ring when the command has returned.
pub unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    let mut command: ibv_resize_cq = Default::default();
    let mut reply: WithDriver<ib_uverbs_resize_cq_resp, UserCqReply> = Default::default();
    // SAFETY: the application passes a queue of this provider.
    let completions = unsafe { completions(cq) };
    let shared = &completions.shared;
    let (mut queue, mut armer) = (completions.queue.lock(), completions.armer());
    // SAFETY: as above; command and reply are as long as said.
    let resized = Errno::check(unsafe {
        (shared.library.ibv_cmd_resize_cq)(
            cq,
            cqe,
            &mut command,
            size_of::<ibv_resize_cq>(),
            (&raw mut reply).cast(),
            size_of_val(&reply),
        )
    });
    status(resized.and_then(|()| {
        let moved = map(shared, &reply.driver).and_then(|memory| {
            *armer = CqArm::new(memory.clone());
            queue.ring.move_to(memory, reply.driver.entries).map_err(|_| Errno::EINVAL)
        });
        queue.lost = moved.is_err();
        moved
    }))
}

pub unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the application passes a queue of this provider, and uses it no more on success.
    status(unsafe {
        let library = completions(cq).shared.library;
        Errno::check((library.ibv_cmd_destroy_cq)(cq)).map(|()| Cq::free(cq.cast()))
    })
}
