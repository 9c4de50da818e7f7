//! Polling completion queues.
#![allow(unsafe_code)] // Completions go to an array of the application.

use std::ffi::{c_int, c_uint};

use vrdma_abi::control::HANDLE_NONE;
use vrdma_abi::ring::{CQE_GRH, CQE_IPV4, CQE_SRQ, CQE_WITH_IMM, CQE_WITH_INV, Cqe};

use crate::cq::{CompletionQueue, Completions, completions};
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

/// Hands up to `max` completions to `put`, and returns how many.
fn poll(completions: &Completions, max: usize, mut put: impl FnMut(usize, ibv_wc)) -> Result<usize, Errno> {
    let mut count = 0;
    let mut queue = completions.queue.lock();
    while count < max {
        let Some(cqe) = completions.take(&mut queue) else { break };
        put(count, completion(&cqe));
        count += 1;
    }
    queue.ring.publish();
    if count == 0 && max != 0 {
        completions.check(&queue)?;
    }
    Ok(count)
}

impl Completions {
    /// Takes the next completion that is of interest to the application, and tells its QP how far the RNIC has come.
    #[inline]
    pub fn take(&self, queue: &mut CompletionQueue) -> Option<Cqe> {
        loop {
            let cqe = queue.ring.poll()?;
            match self.shared.table.get(cqe.cookie) {
                Some(slot) => slot.completed(&cqe),
                // The target of an XRC connection belongs to no context, and so has no slot in this one.
                None if cqe.flags & CQE_SRQ != 0 && cqe.cookie != HANDLE_NONE => {}
                // Disowned when its QP ended.
                None => continue,
            }
            return Some(cqe);
        }
    }

    /// Whether completions can come at all; when not, a program that only polls would wait for ever.
    #[inline]
    pub fn check(&self, queue: &CompletionQueue) -> Result<(), Errno> {
        if queue.lost || !self.shared.is_live() { Err(Errno::EIO) } else { Ok(()) }
    }
}

/// A ring's entry as verbs report it. Status and opcode have the same values in both.
#[inline]
fn completion(cqe: &Cqe) -> ibv_wc {
    ibv_wc {
        wr_id: cqe.wr_id,
        status: cqe.status.into(),
        opcode: cqe.opcode.into(),
        vendor_err: cqe.vendor_err,
        byte_len: cqe.byte_len,
        imm_data: cqe.imm_or_inv,
        qp_num: cqe.qpn,
        src_qp: cqe.src_qpn,
        wc_flags: wc_flags(cqe),
        pkey_index: 0,
        slid: 0,
        sl: service_level(cqe),
        dlid_path_bits: 0,
    }
}

/// The service level of a completion. RoCEv2 carries none; where a datagram's would stand, there stands the kind of its network header,
/// as from ConnectX: 2 for IPv4, 1 for IPv6. UCX up to 1.18 reads it there and drops the datagram if it does not fit the GRH.
#[inline]
pub fn service_level(cqe: &Cqe) -> u8 {
    match cqe.flags & (CQE_GRH | CQE_IPV4) {
        0 | CQE_IPV4 => cqe.sl,
        CQE_GRH => 1,
        _ => 2,
    }
}

/// IBV_WC_ bits of a completion.
#[inline]
pub fn wc_flags(cqe: &Cqe) -> c_uint {
    let flag = |ring, verbs| if cqe.flags & ring != 0 { verbs } else { 0 };
    flag(CQE_GRH, IBV_WC_GRH) | flag(CQE_WITH_IMM, IBV_WC_WITH_IMM) | flag(CQE_WITH_INV, IBV_WC_WITH_INV)
}
