//! Completion queues: creation and end.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::c_int;
use std::mem::{size_of, size_of_val};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vrdma_abi::control::RING_FORMAT_1;
use vrdma_abi::uapi::UserCqReply;
use vrdma_rings::CqRing;

use crate::abi34::*;
use crate::context::{Shared, shared};
use crate::errno::{Errno, status};
use crate::mapped::{Access, Mapped};
use crate::object::Object;
use crate::verbs::*;

/// A completion queue's own state. Its QPs hold it too, to disown their completions when they end.
pub struct Completions {
    pub shared: Arc<Shared>,
    ring: Mutex<CqRing<Mapped>>,
}

pub type Cq = Object<verbs_cq, Arc<Completions>>;

impl Completions {
    fn map(shared: &Arc<Shared>, reply: &UserCqReply) -> Result<Self, Errno> {
        if reply.ring_format != RING_FORMAT_1 {
            return Err(Errno::EOPNOTSUPP);
        }
        let len = reply.ring_bytes as usize;
        let memory = Mapped::new(shared.cmd_fd, reply.ring_offset, len, Access::ReadWrite)?;
        let ring = CqRing::new(memory, reply.entries).map_err(|_| Errno::EINVAL)?;
        Ok(Self { shared: shared.clone(), ring: Mutex::new(ring) })
    }

    /// The ring, for one poller at a time.
    #[inline]
    pub fn ring(&self) -> MutexGuard<'_, CqRing<Mapped>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    let mut command: ibv_create_cq = Default::default();
    let mut reply: WithDriver<ib_uverbs_create_cq_resp, UserCqReply> = Default::default();
    // SAFETY: the library passes an open context and its own channel; command and reply are as long as said; a verbs_cq
    // may be all zeroes.
    let cq = unsafe {
        Cq::create(|cq| {
            let shared = shared(context).ok_or(Errno::EINVAL)?;
            let cq = cq.cast::<ibv_cq>();
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
                // Nobody has used it yet, so the kernel has no reason to refuse.
                (shared.library.ibv_cmd_destroy_cq)(cq);
            })
        })
    };
    match cq {
        Ok(cq) => cq.cast(),
        Err(errno) => {
            errno.set();
            ptr::null_mut()
        }
    }
}

pub unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the application passes a queue of this provider, and uses it no more on success.
    status(unsafe {
        let library = completions(cq).shared.library;
        Errno::check((library.ibv_cmd_destroy_cq)(cq)).map(|()| Cq::free(cq.cast()))
    })
}
