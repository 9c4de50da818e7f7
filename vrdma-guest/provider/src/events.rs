//! Completion events and asynchronous events.
//!
//! Completion events need no system call here: the wish stands in the ring, where the RNIC finds it. Waiting for an
//! event is the library's business; it reads a descriptor.
#![allow(unsafe_code)] // The library calls in by pointers.

use std::ffi::c_int;

use vrdma_rings::Arm;

use crate::cq::completions;
use crate::qp::pair;
use crate::verbs::*;

/// Asks for an event. As verbs have it, the application polls once more afterwards.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the application passes a queue of this provider.
    let completions = unsafe { completions(cq) };
    if !completions.shared.is_live() {
        return libc::EIO;
    }
    completions.arm(if solicited_only != 0 { Arm::Solicited } else { Arm::Next });
    0
}

/// Sees each asynchronous event before the application does.
pub unsafe extern "C" fn async_event(_context: *mut ibv_context, event: *mut ibv_async_event) {
    // SAFETY: the library passes a valid event, and waits with the end of a QP until its events are acknowledged.
    unsafe {
        let fatal = matches!(
            (*event).event_type,
            IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR
        );
        if fatal && !(*event).element.qp.is_null() {
            pair((*event).element.qp).enter(IBV_QPS_ERR);
        }
    }
}
