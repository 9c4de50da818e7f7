//! Polling completion queues.
#![allow(unsafe_code)] // Completions go to an array of the application.

use std::ffi::{c_int, c_uint};

use vrdma_abi::ring::{CQE_WITH_IMM, Cqe};

use crate::cq::{Completions, completions};
use crate::errno::Errno;
use crate::verbs::*;

pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the application passes a queue of this provider and an array of at least so many completions.
    let (completions, max) = unsafe { (completions(cq), usize::try_from(num_entries).unwrap_or(0)) };
    // SAFETY: as above, and `index` is below `max`.
    match poll(completions, max, |index, completion| unsafe { wc.add(index).write(completion) }) {
        Ok(count) => count as c_int, // at most num_entries
        Err(Errno(errno)) => -errno,
    }
}

/// Hands up to `max` completions to `put`, and returns how many. When there are none and the device is gone, so that none can
/// come, this is an error: a program that only polls would wait for ever.
fn poll(completions: &Completions, max: usize, mut put: impl FnMut(usize, ibv_wc)) -> Result<usize, Errno> {
    let table = &completions.shared.table;
    let mut count = 0;
    let mut ring = completions.ring();
    while count < max {
        let Some(cqe) = ring.poll() else { break };
        // A completion that was disowned when its QP ended has no slot.
        let Some(slot) = table.get(cqe.cookie) else { continue };
        slot.completed(&cqe);
        put(count, completion(&cqe));
        count += 1;
    }
    ring.publish();
    if count == 0 && max != 0 && !completions.shared.is_live() {
        return Err(Errno::EIO);
    }
    Ok(count)
}

/// A ring's entry as verbs report it. Status and opcode have the same values in both.
fn completion(cqe: &Cqe) -> ibv_wc {
    let wc_flags: c_uint = if cqe.flags & CQE_WITH_IMM != 0 { IBV_WC_WITH_IMM } else { 0 };
    ibv_wc {
        wr_id: cqe.wr_id,
        status: cqe.status.into(),
        opcode: cqe.opcode.into(),
        vendor_err: cqe.vendor_err,
        byte_len: cqe.byte_len,
        imm_data: cqe.imm_or_inv,
        qp_num: cqe.qpn,
        src_qp: cqe.src_qpn,
        wc_flags,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}
