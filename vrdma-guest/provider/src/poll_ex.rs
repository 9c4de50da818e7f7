//! Polling completion queues one by one, `ibv_start_poll` to `ibv_end_poll`.
//!
//! The queue's lock is held from a successful `start_poll` to `end_poll`, and the current completion is read meanwhile.
#![allow(unsafe_code)] // The library calls in by pointers.

use std::ffi::{c_int, c_uint};

use vrdma_abi::ring::Cqe;

use crate::cq::completions;
use crate::errno::{Errno, status};
use crate::poll::{service_level, wc_flags};
use crate::verbs::*;

/// Fills in the functions of a queue, of which only those for the fields that were asked for can be called.
pub fn offer(cq: &mut ibv_cq_ex, fields: u64) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    let asked = |field| fields & field != 0;
    if asked(IBV_WC_EX_WITH_BYTE_LEN) {
        cq.read_byte_len = Some(read_byte_len);
    }
    if asked(IBV_WC_EX_WITH_IMM) {
        cq.read_imm_data = Some(read_imm_data);
    }
    if asked(IBV_WC_EX_WITH_QP_NUM) {
        cq.read_qp_num = Some(read_qp_num);
    }
    if asked(IBV_WC_EX_WITH_SRC_QP) {
        cq.read_src_qp = Some(read_src_qp);
    }
    if asked(IBV_WC_EX_WITH_SLID) {
        cq.read_slid = Some(read_slid);
    }
    if asked(IBV_WC_EX_WITH_SL) {
        cq.read_sl = Some(read_sl);
    }
    if asked(IBV_WC_EX_WITH_DLID_PATH_BITS) {
        cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    }
    if asked(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) {
        cq.read_completion_ts = Some(read_completion_ts);
    }
}

const NO_COMPLETION: Errno = Errno(libc::ENOENT);

/// Begins a batch with its first completion. Without one there is no batch: ENOENT, or EIO when none can come.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the application passes a queue of this provider, whose lock stays in its place, and attributes or null.
    unsafe {
        if attr.as_ref().is_some_and(|attr| attr.comp_mask != 0) {
            return libc::EINVAL;
        }
        let completions = completions(cq.cast());
        completions.queue.hold();
        let started = next(cq).map_err(|none| match completions.queue.held() {
            Some(queue) => completions.check(queue).err().unwrap_or(none),
            None => none,
        });
        if started.is_err() {
            end_poll(cq);
        }
        status(started)
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the application has begun a batch on this queue.
    status(unsafe { next(cq) })
}

/// Ends the batch and returns its entries to the RNIC.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: this thread has begun a batch on this queue.
    unsafe {
        let lock = &completions(cq.cast()).queue;
        if let Some(queue) = lock.held() {
            queue.ring.publish();
        }
        lock.release();
    }
}

/// Makes the next completion the current one.
///
/// # Safety
///
/// The calling thread must have begun a batch on this queue.
unsafe fn next(cq: *mut ibv_cq_ex) -> Result<(), Errno> {
    // SAFETY: the caller holds the queue's lock.
    unsafe {
        let completions = completions(cq.cast());
        let queue = completions.queue.held().ok_or(Errno::EINVAL)?;
        let cqe = completions.take(queue).ok_or(NO_COMPLETION)?;
        ((*cq).wr_id, (*cq).status) = (cqe.wr_id, cqe.status.into());
        queue.current = cqe;
        Ok(())
    }
}

/// # Safety
///
/// The calling thread must have begun a batch on this queue.
#[inline]
unsafe fn current(cq: *mut ibv_cq_ex) -> Cqe {
    // SAFETY: the caller holds the queue's lock.
    unsafe { completions(cq.cast()).queue.held() }.map_or(Cqe::ZERO, |queue| queue.current)
}

macro_rules! fields {
    ($( $name:ident -> $ty:ty = |$cqe:ident| $value:expr; )*) => {
        $( unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: the application has begun a batch on this queue.
            let $cqe = unsafe { current(cq) };
            $value
        } )*
    };
}

fields! {
    read_opcode -> c_int = |cqe| cqe.opcode.into();
    read_vendor_err -> u32 = |cqe| cqe.vendor_err;
    read_byte_len -> u32 = |cqe| cqe.byte_len;
    read_imm_data -> u32 = |cqe| cqe.imm_or_inv;
    read_qp_num -> u32 = |cqe| cqe.qpn;
    read_src_qp -> u32 = |cqe| cqe.src_qpn;
    read_wc_flags -> c_uint = |cqe| wc_flags(&cqe);
    read_slid -> u32 = |_cqe| 0;
    read_sl -> u8 = |cqe| service_level(&cqe);
    read_dlid_path_bits -> u8 = |_cqe| 0;
    read_completion_ts -> u64 = |cqe| cqe.timestamp_ns;
}
