//! Opening the device.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;
use std::sync::Arc;

use crate::abi::*;
use crate::errno::Errno;
use crate::library::library;
use crate::shared::{Context, Shared};
use crate::verbs::*;
use crate::{ah, cq, events, mr, mw, pd, poll, post, qp, query, srq, xrcd};

/// What is not offered is left to the library, which answers EOPNOTSUPP. So it does for `query_rt_values`, since a guest cannot read the
/// clock of its completions' timestamps, and for multicast groups.
fn operations() -> verbs_context_ops {
    verbs_context_ops {
        alloc_mw: Some(mw::alloc_mw),
        alloc_pd: Some(pd::alloc_pd),
        async_event: Some(events::async_event),
        bind_mw: Some(mw::bind_mw),
        close_xrcd: Some(xrcd::close_xrcd),
        create_ah: Some(ah::create_ah),
        create_cq: Some(cq::create_cq),
        create_cq_ex: Some(cq::create_cq_ex),
        create_qp: Some(qp::create_qp),
        create_qp_ex: Some(qp::create_qp_ex),
        create_srq: Some(srq::create_srq),
        create_srq_ex: Some(srq::create_srq_ex),
        dealloc_mw: Some(mw::dealloc_mw),
        dealloc_pd: Some(pd::dealloc_pd),
        dereg_mr: Some(mr::dereg_mr),
        destroy_ah: Some(ah::destroy_ah),
        destroy_cq: Some(cq::destroy_cq),
        destroy_qp: Some(qp::destroy_qp),
        destroy_srq: Some(srq::destroy_srq),
        free_context: Some(free_context),
        get_srq_num: Some(srq::get_srq_num),
        modify_qp: Some(qp::modify_qp),
        modify_srq: Some(srq::modify_srq),
        open_qp: Some(qp::open_qp),
        open_xrcd: Some(xrcd::open_xrcd),
        poll_cq: Some(poll::poll_cq),
        post_recv: Some(post::post_recv),
        post_send: Some(post::post_send),
        post_srq_recv: Some(post::post_srq_recv),
        query_device_ex: Some(query::query_device_ex),
        query_port: Some(query::query_port),
        query_qp: Some(qp::query_qp),
        query_srq: Some(srq::query_srq),
        reg_mr: Some(mr::reg_mr),
        req_notify_cq: Some(events::req_notify_cq),
        rereg_mr: Some(mr::rereg_mr),
        resize_cq: Some(cq::resize_cq),
        ..verbs_context_ops::default()
    }
}

/// Opens the device. Takes over `cmd_fd`, also when it fails.
pub unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private_data: *mut c_void,
) -> *mut verbs_context {
    let Some(library) = library() else {
        Errno::EOPNOTSUPP.set();
        return ptr::null_mut();
    };
    // The kernel knows no driver id of ours; the library uses it for nothing else than to tell providers apart.
    const RDMA_DRIVER_UNKNOWN: u32 = 0;
    let library_part = ptr::without_provenance_mut(offset_of!(Context, verbs));
    // SAFETY: device and descriptor are the library's own; it allocates a zeroed Context and initialises its part.
    let context = unsafe {
        (library._verbs_init_and_alloc_context)(
            device,
            cmd_fd,
            size_of::<Context>(),
            library_part,
            RDMA_DRIVER_UNKNOWN,
        )
    }
    .cast::<Context>();
    if context.is_null() {
        return ptr::null_mut();
    }

    // SAFETY: the context is valid and in nobody else's use until it is returned.
    unsafe {
        let verbs = &raw mut (*context).verbs;
        match Shared::open(library, verbs, cmd_fd) {
            Ok(shared) => {
                (&raw mut (*context).shared).write(Some(Arc::new(shared)));
                (library.verbs_set_ops)(verbs, &operations());
                verbs
            }
            Err(errno) => {
                (library.verbs_uninit_context)(verbs);
                libc::free(context.cast());
                errno.set();
                ptr::null_mut()
            }
        }
    }
}

unsafe extern "C" fn free_context(context: *mut ibv_context) {
    // SAFETY: the library closes a context of this provider once, after all its objects. It was allocated by the
    // library with calloc, and the library leaves it to the provider to free it.
    unsafe {
        let context = context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>();
        let Some(shared) = (*context).shared.take() else { return };
        let library = shared.library;
        drop(shared);
        (library.verbs_uninit_context)(&raw mut (*context).verbs);
        libc::free(context.cast());
    }
}
