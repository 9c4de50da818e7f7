//! Posting work requests.
//!
//! The requests of one call are written one after the other and shown to the RNIC together, by one store of the producer
//! index; then the doorbell is marked. All of it happens under the queue's lock: the marks of two posters must not overtake one another.
#![allow(unsafe_code)] // Requests are linked lists of the application, and inline data lies in its memory.

use std::ffi::c_int;
use std::mem::{offset_of, size_of};
use std::slice;

use vrdma_abi::ring::{
    AtomicSegment, SEND_FENCE, SEND_OP_CMP_SWAP, SEND_OP_FETCH_ADD, SEND_OP_RDMA_READ, SEND_OP_RDMA_WRITE,
    SEND_OP_RDMA_WRITE_IMM, SEND_OP_SEND, SEND_OP_SEND_IMM, SEND_SIGNALED, SEND_SOLICITED, Sge,
};
use vrdma_rings::{Operands, PostError, SendRequest};

use crate::errno::Errno;
use crate::qp::{Pair, RecvQueue, SendQueue, pair};
use crate::verbs::*;

// A scatter/gather entry of verbs is one of the ring.
const _: () = assert!(
    size_of::<ibv_sge>() == size_of::<Sge>()
        && offset_of!(ibv_sge, addr) == offset_of!(Sge, addr)
        && offset_of!(ibv_sge, length) == offset_of!(Sge, length)
        && offset_of!(ibv_sge, lkey) == offset_of!(Sge, lkey)
);

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full => Self::ENOMEM,
            PostError::TooManySges | PostError::InlineTooLong => Self::EINVAL,
        }
    }
}

pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the application passes a QP of this provider, a list of valid requests and a place for the bad one.
    unsafe {
        match send_all(pair(qp), wr) {
            Ok(()) => 0,
            Err((Errno(errno), bad)) => {
                bad_wr.write(bad);
                errno
            }
        }
    }
}

pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as for post_send.
    unsafe {
        match recv_all(pair(qp), wr) {
            Ok(()) => 0,
            Err((Errno(errno), bad)) => {
                bad_wr.write(bad);
                errno
            }
        }
    }
}

/// Posts sends up to the first one that is refused, and returns that one.
///
/// # Safety
///
/// `first` must begin a list of valid requests.
unsafe fn send_all(pair: &Pair, first: *mut ibv_send_wr) -> Result<(), (Errno, *mut ibv_send_wr)> {
    if !pair.shared.is_live() {
        return Err((Errno::EIO, first));
    }
    if pair.state() < IBV_QPS_RTS {
        return Err((Errno::EINVAL, first));
    }
    let (Some(mut queue), Some(slot)) = (pair.send(), pair.slot()) else {
        return Err((Errno::ENOMEM, first));
    };
    queue.ring.complete(slot.send_consumer());

    let mut result = Ok(());
    let mut next = first;
    // SAFETY: the caller says that the list is valid.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        if let Err(errno) = unsafe { send_one(&mut queue, wr) } {
            result = Err((errno, next));
            break;
        }
        next = wr.next;
    }
    if queue.ring.publish() {
        pair.ring_doorbell();
    }
    result
}

/// # Safety
///
/// The request's list of scatter/gather entries must be valid, and with IBV_SEND_INLINE the memory that it names too.
#[inline]
unsafe fn send_one(queue: &mut SendQueue, wr: &ibv_send_wr) -> Result<(), Errno> {
    let request = request(wr).ok_or(Errno::EINVAL)?;
    // SAFETY: the caller says that the list is valid.
    let sges = unsafe { sges(wr.sg_list, wr.num_sge, queue.max_sge) }?;
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        return Ok(queue.ring.post(&request, sges)?);
    }
    if !carries_data(wr.opcode) {
        return Err(Errno::EINVAL);
    }
    let bytes: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    if bytes > queue.max_inline as u64 {
        return Err(Errno::EINVAL);
    }
    let pieces = sges.iter().filter(|sge| sge.length != 0).map(|sge| {
        // SAFETY: the caller says that inline data is readable memory of this process.
        unsafe { slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) }
    });
    Ok(queue.ring.post_inline(&request, pieces)?)
}

/// Posts receives up to the first one that is refused, and returns that one.
///
/// # Safety
///
/// `first` must begin a list of valid requests.
unsafe fn recv_all(pair: &Pair, first: *mut ibv_recv_wr) -> Result<(), (Errno, *mut ibv_recv_wr)> {
    if !pair.shared.is_live() {
        return Err((Errno::EIO, first));
    }
    if pair.state() == IBV_QPS_RESET {
        return Err((Errno::EINVAL, first));
    }
    let (Some(mut queue), Some(slot)) = (pair.recv(), pair.slot()) else {
        return Err((Errno::ENOMEM, first));
    };
    queue.ring.complete(slot.recv_consumer());

    let mut result = Ok(());
    let mut next = first;
    // SAFETY: the caller says that the list is valid.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        if let Err(errno) = unsafe { recv_one(&mut queue, wr) } {
            result = Err((errno, next));
            break;
        }
        next = wr.next;
    }
    // The RNIC looks for receives when a message comes. A QP in error gets none, but must flush.
    if queue.ring.publish() && slot.has_failed() {
        pair.ring_doorbell();
    }
    result
}

/// # Safety
///
/// The request's list of scatter/gather entries must be valid.
#[inline]
unsafe fn recv_one(queue: &mut RecvQueue, wr: &ibv_recv_wr) -> Result<(), Errno> {
    // SAFETY: the caller says that the list is valid.
    let sges = unsafe { sges(wr.sg_list, wr.num_sge, queue.max_sge) }?;
    Ok(queue.ring.post(wr.wr_id, sges)?)
}

/// What the ring's entry shall say; `None` for an opcode that RC QPs of this device do not have.
#[inline]
fn request(wr: &ibv_send_wr) -> Option<SendRequest> {
    let opcode = match wr.opcode {
        IBV_WR_RDMA_WRITE => SEND_OP_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM => SEND_OP_RDMA_WRITE_IMM,
        IBV_WR_SEND => SEND_OP_SEND,
        IBV_WR_SEND_WITH_IMM => SEND_OP_SEND_IMM,
        IBV_WR_RDMA_READ => SEND_OP_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP => SEND_OP_CMP_SWAP,
        IBV_WR_ATOMIC_FETCH_AND_ADD => SEND_OP_FETCH_ADD,
        _ => return None,
    };
    let flag = |verbs, ring| if wr.send_flags & verbs != 0 { ring } else { 0 };
    let flags = flag(IBV_SEND_SIGNALED, SEND_SIGNALED)
        | flag(IBV_SEND_SOLICITED, SEND_SOLICITED)
        | flag(IBV_SEND_FENCE, SEND_FENCE);
    let mut request = SendRequest { opcode, flags, wr_id: wr.wr_id, ..SendRequest::default() };

    if matches!(opcode, SEND_OP_RDMA_WRITE_IMM | SEND_OP_SEND_IMM) {
        request.imm_or_inv = wr.imm_data; // both hold the bytes as they go over the wire
    }
    // SAFETY: every bit pattern is a value of both parts of the union.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    match opcode {
        SEND_OP_RDMA_WRITE | SEND_OP_RDMA_WRITE_IMM | SEND_OP_RDMA_READ => {
            (request.remote_addr, request.rkey) = (rdma.remote_addr, rdma.rkey);
        }
        SEND_OP_CMP_SWAP | SEND_OP_FETCH_ADD => {
            (request.remote_addr, request.rkey) = (atomic.remote_addr, atomic.rkey);
            let (compare_add, swap) = (atomic.compare_add, atomic.swap);
            request.operands = Operands::Atomic(AtomicSegment { compare_add, swap });
        }
        _ => {}
    }
    Some(request)
}

/// Whether a request takes data from this side, which can stand in the entry.
fn carries_data(opcode: c_int) -> bool {
    matches!(opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_SEND | IBV_WR_SEND_WITH_IMM)
}

/// A request's scatter/gather entries, as those of the ring.
///
/// # Safety
///
/// `list` must hold `count` entries, which live for as long as the slice.
#[inline]
unsafe fn sges<'a>(list: *const ibv_sge, count: c_int, max: usize) -> Result<&'a [Sge], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller says that the list is valid; the two types have the same layout, as asserted above.
        Ok(count) if count <= max => Ok(unsafe { slice::from_raw_parts(list.cast(), count) }),
        _ => Err(Errno::EINVAL),
    }
}
