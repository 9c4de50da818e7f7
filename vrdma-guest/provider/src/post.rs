//! Posting work requests.
//!
//! The requests of one call are written one after the other and shown to the RNIC together, by one store of the producer
//! index; then the doorbell is marked. All of it happens under the queue's lock: the marks of two posters must not overtake one another.
#![allow(unsafe_code)] // Requests are linked lists of the application, and inline data lies in its memory.

use std::ffi::c_int;
use std::mem::{offset_of, size_of};
use std::slice;

use vrdma_abi::ring::Sge;
use vrdma_rings::{PostError, SendRequest};

use crate::errno::Errno;
use crate::qp::{Pair, RecvQueue, SendQueue, pair};
use crate::request::{carries_data, has_data, translate};
use crate::srq::{Receives, receives};
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

pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the application passes a shared receive queue of this provider, a list of valid requests and a place for the bad one.
    unsafe {
        match shared_recv_all(receives(srq), wr) {
            Ok(()) => 0,
            Err((Errno(errno), bad)) => {
                bad_wr.write(bad);
                errno
            }
        }
    }
}

/// Posts one send that has no data.
pub fn send_request(pair: &Pair, request: &SendRequest) -> Result<(), Errno> {
    let (Some(queue), Some(slot)) = (pair.send(), pair.slot()) else { return Err(Errno::EINVAL) };
    pair.check_sends()?;
    let mut queue = queue.lock();
    queue.complete(slot.send_consumer());
    queue.post(request, &[])?;
    queue.publish();
    pair.ring_doorbell();
    Ok(())
}

impl Pair {
    /// Whether sends can be posted in this state of the QP and of the device.
    #[inline]
    pub fn check_sends(&self) -> Result<(), Errno> {
        if !self.shared.is_live() {
            return Err(Errno::EIO);
        }
        if self.state() < IBV_QPS_RTS { Err(Errno::EINVAL) } else { Ok(()) }
    }
}

/// Posts sends up to the first one that is refused, and returns that one.
///
/// # Safety
///
/// `first` must begin a list of valid requests.
unsafe fn send_all(pair: &Pair, first: *mut ibv_send_wr) -> Result<(), (Errno, *mut ibv_send_wr)> {
    pair.check_sends().map_err(|errno| (errno, first))?;
    let (Some(queue), Some(slot)) = (pair.send(), pair.slot()) else {
        return Err((Errno::EINVAL, first));
    };
    let mut queue = queue.lock();
    queue.complete(slot.send_consumer());

    let mut result = Ok(());
    let mut next = first;
    // SAFETY: the caller says that the list is valid.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        if let Err(errno) = unsafe { send_one(pair, &mut queue, wr) } {
            result = Err((errno, next));
            break;
        }
        next = wr.next;
    }
    if queue.publish() {
        pair.ring_doorbell();
    }
    result
}

/// # Safety
///
/// What the request points to must be valid, and with IBV_SEND_INLINE the memory that its scatter/gather entries name too.
#[inline]
unsafe fn send_one(pair: &Pair, queue: &mut SendQueue, wr: &ibv_send_wr) -> Result<(), Errno> {
    let mut request = SendRequest::default();
    // SAFETY: the caller says that what the request points to is valid.
    unsafe { translate(pair.kind, wr, &mut request) }?;
    if !has_data(request.opcode) {
        return Ok(queue.post(&request, &[])?);
    }
    // SAFETY: as above.
    let sges = unsafe { sges(wr.sg_list, wr.num_sge, queue.max_sge) }?;
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        return Ok(queue.post(&request, sges)?);
    }
    if !carries_data(request.opcode) {
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
    Ok(queue.post_inline(&request, pieces)?)
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
    // A QP with a shared receive queue has none of its own.
    let (Some(mut queue), Some(slot)) = (pair.recv(), pair.slot()) else {
        return Err((Errno::EINVAL, first));
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

/// Posts receives to a shared queue up to the first one that is refused, and returns that one.
///
/// # Safety
///
/// `first` must begin a list of valid requests.
unsafe fn shared_recv_all(
    receives: &Receives,
    first: *mut ibv_recv_wr,
) -> Result<(), (Errno, *mut ibv_recv_wr)> {
    if !receives.shared.is_live() {
        return Err((Errno::EIO, first));
    }
    let mut queue = receives.queue();
    let mut result = Ok(());
    let mut next = first;
    // SAFETY: the caller says that the list is valid.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        let posted = unsafe { sges(wr.sg_list, wr.num_sge, queue.max_sge) }
            .and_then(|sges| Ok(queue.ring.post(wr.wr_id, sges)?));
        if let Err(errno) = posted {
            result = Err((errno, next));
            break;
        }
        next = wr.next;
    }
    // The RNIC looks for receives when a message comes: there is no doorbell.
    queue.ring.publish();
    result
}

/// A request's scatter/gather entries, as those of the ring.
///
/// # Safety
///
/// `list` must hold `count` entries, which live for as long as the slice.
#[inline]
pub unsafe fn sges<'a>(list: *const ibv_sge, count: c_int, max: usize) -> Result<&'a [Sge], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller says that the list is valid; the two types have the same layout, as asserted above.
        Ok(count) if count <= max => Ok(unsafe { slice::from_raw_parts(list.cast(), count) }),
        _ => Err(Errno::EINVAL),
    }
}
