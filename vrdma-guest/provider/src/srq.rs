//! Shared receive queues.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::c_int;
use std::mem::{size_of, size_of_val};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vrdma_abi::control::RING_FORMAT_1;
use vrdma_abi::uapi::UserSrqReply;
use vrdma_rings::SharedRecvRing;

use crate::abi::*;
use crate::errno::{Errno, pointer, status};
use crate::mapped::{Access, Mapped};
use crate::object::Object;
use crate::shared::{Shared, shared};
use crate::verbs::*;

/// A queue and what the application may put into one receive.
pub struct SharedQueue {
    pub ring: SharedRecvRing<Mapped>,
    pub max_sge: usize,
}

/// A shared receive queue's own state.
pub struct Receives {
    pub shared: Arc<Shared>,
    queue: Mutex<SharedQueue>,
}

type Srq = Object<verbs_srq, Receives>;

impl Receives {
    fn map(shared: &Arc<Shared>, max_sge: u32, reply: &UserSrqReply) -> Result<Self, Errno> {
        if reply.ring_format != RING_FORMAT_1 {
            return Err(Errno::EOPNOTSUPP);
        }
        let len = reply.ring_bytes as usize;
        let memory = Mapped::new(shared.cmd_fd, reply.ring_offset, len, Access::ReadWrite)?;
        let ring =
            SharedRecvRing::new(memory, reply.entries, reply.stride_shift).map_err(|_| Errno::EINVAL)?;
        let queue = Mutex::new(SharedQueue { ring, max_sge: max_sge as usize });
        Ok(Self { shared: shared.clone(), queue })
    }

    /// The queue, for one poster at a time.
    #[inline]
    pub fn queue(&self) -> MutexGuard<'_, SharedQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of a queue that the application passed.
///
/// # Safety
///
/// `srq` must be a queue of this provider, and not be destroyed while the reference lives.
#[inline]
pub unsafe fn receives<'a>(srq: *mut ibv_srq) -> &'a Receives {
    // SAFETY: each shared receive queue of this provider is an `Srq`, which the library's part begins.
    unsafe { Srq::own(srq.cast()) }
}

pub unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the library passes a domain of an open context and the application's attributes.
    unsafe {
        let mut extended = ibv_srq_init_attr_ex {
            srq_context: (*init).srq_context,
            attr: (*init).attr,
            comp_mask: IBV_SRQ_INIT_ATTR_PD,
            srq_type: IBV_SRQT_BASIC,
            pd,
            xrcd: ptr::null_mut(),
            cq: ptr::null_mut(),
            tm_cap: [0; 2],
        };
        let srq = create_srq_ex((*pd).context, &mut extended);
        (*init).attr = extended.attr;
        srq
    }
}

pub unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the library passes an open context and the application's attributes; a verbs_srq may be all zeroes.
    let srq = pointer(unsafe { Srq::create(|srq| create(context, srq, &mut *init)) });
    srq.cast()
}

/// # Safety
///
/// As for `create_srq_ex`; `srq` must be the library's part of the new object.
unsafe fn create(
    context: *mut ibv_context,
    srq: *mut verbs_srq,
    init: &mut ibv_srq_init_attr_ex,
) -> Result<Receives, Errno> {
    check(init)?;
    // SAFETY: the context is open.
    let shared = unsafe { shared(context) }.ok_or(Errno::EINVAL)?;
    let mut command: ibv_create_xsrq = Default::default();
    let mut reply: WithDriver<ib_uverbs_create_srq_resp, UserSrqReply> = Default::default();
    // SAFETY: the caller's pointers are valid; command and reply are as long as said. A queue that cannot be mapped is destroyed before
    // anybody has used it, so the kernel has no reason to refuse.
    unsafe {
        Errno::check((shared.library.ibv_cmd_create_srq_ex)(
            context,
            srq,
            init,
            &mut command,
            size_of::<ibv_create_xsrq>(),
            (&raw mut reply).cast(),
            size_of_val(&reply),
        ))?;
        (*srq).srq.srq_context = init.srq_context;
        Receives::map(shared, init.attr.max_sge, &reply.driver).inspect_err(|_| {
            (shared.library.ibv_cmd_destroy_srq)(srq.cast());
        })
    }
}

fn check(init: &ibv_srq_init_attr_ex) -> Result<(), Errno> {
    let given = |mask, pointer: bool| init.comp_mask & mask != 0 && pointer;
    let all = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    let srq_type = if given(IBV_SRQ_INIT_ATTR_TYPE, true) { init.srq_type } else { IBV_SRQT_BASIC };
    if init.comp_mask & !all != 0 || ![IBV_SRQT_BASIC, IBV_SRQT_XRC].contains(&srq_type) {
        return Err(Errno::EOPNOTSUPP);
    }
    let has_pd = given(IBV_SRQ_INIT_ATTR_PD, !init.pd.is_null());
    let has_xrcd = given(IBV_SRQ_INIT_ATTR_XRCD, !init.xrcd.is_null());
    let has_cq = given(IBV_SRQ_INIT_ATTR_CQ, !init.cq.is_null());
    if has_pd && (srq_type == IBV_SRQT_BASIC || has_xrcd && has_cq) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// The number by which XRC messages name a queue.
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the application passes a queue of this provider and a place for the number.
    unsafe {
        let srq = srq.cast::<verbs_srq>();
        if (*srq).srq_type != IBV_SRQT_XRC {
            return libc::EOPNOTSUPP;
        }
        number.write((*srq).srq_num);
        0
    }
}

pub unsafe extern "C" fn modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    let mut command: ibv_modify_srq = Default::default();
    // SAFETY: the application passes a queue of this provider and attributes; the command is as long as said.
    status(unsafe {
        let modify = receives(srq).shared.library.ibv_cmd_modify_srq;
        Errno::check(modify(srq, attr, mask, &mut command, size_of::<ibv_modify_srq>()))
    })
}

pub unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    let mut command: ibv_query_srq = Default::default();
    // SAFETY: the application passes a queue of this provider and attributes to fill in; the command is as long as said.
    status(unsafe {
        let query = receives(srq).shared.library.ibv_cmd_query_srq;
        Errno::check(query(srq, attr, &mut command, size_of::<ibv_query_srq>()))
    })
}

pub unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the application passes a queue of this provider, and uses it no more on success.
    status(unsafe {
        let library = receives(srq).shared.library;
        Errno::check((library.ibv_cmd_destroy_srq)(srq)).map(|()| Srq::free(srq.cast()))
    })
}
