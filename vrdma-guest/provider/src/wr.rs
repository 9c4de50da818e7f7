//! Posting work requests in parts: `ibv_wr_start`, builders and setters, `ibv_wr_complete` or `ibv_wr_abort`.
//!
//! A builder opens a request and setters add to it; the next builder or `ibv_wr_complete` closes it. The queue's lock is held from start to
//! complete or abort, and the RNIC sees nothing before `ibv_wr_complete`. The first error is kept until then, and takes back all of it.
#![allow(unsafe_code)] // The library calls in by pointers.

use std::ffi::{c_int, c_void};
use std::slice;

use vrdma_abi::ring::*;
use vrdma_rings::{Operands, SendData, SendRequest};

use crate::errno::Errno;
use crate::post::sges;
use crate::qp::{Pair, SendQueue, pair};
use crate::request::{Kind, bind_type_2, carries_data, datagram, has_data, ring_flags, xrc};
use crate::verbs::*;

/// The requests since `ibv_wr_start`.
#[derive(Default)]
pub struct Batch {
    open: Option<Open>,
    error: Option<Errno>,
}

/// The request that setters add to.
struct Open {
    request: SendRequest,
    data: SendData,
    /// Whether the request says where it goes; those of RC and UC need not.
    has_target: bool,
}

/// `send_ops_flags` that a QP of this type can have. UC has no reads and no atomics (IBTA Vol 1 §9.8.1, table of operations by transport).
pub fn operations(qp_type: c_int) -> u64 {
    const SEND: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const UNRELIABLE: u64 = SEND
        | IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_BIND_MW;
    const RELIABLE: u64 = UNRELIABLE
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    match qp_type {
        IBV_QPT_UD => SEND,
        IBV_QPT_UC => UNRELIABLE,
        IBV_QPT_RC | IBV_QPT_XRC_SEND => RELIABLE,
        _ => 0,
    }
}

/// Fills in the functions of a QP, of which only those for the operations that were asked for can be called.
pub fn offer(qp: &mut ibv_qp_ex, kind: Kind, operations: u64) {
    macro_rules! builders {
        ($( $flag:ident => $function:ident, )*) => {
            $( if operations & $flag != 0 {
                qp.$function = Some($function);
            } )*
        };
    }
    builders! {
        IBV_QP_EX_WITH_RDMA_WRITE => wr_rdma_write,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM => wr_rdma_write_imm,
        IBV_QP_EX_WITH_SEND => wr_send,
        IBV_QP_EX_WITH_SEND_WITH_IMM => wr_send_imm,
        IBV_QP_EX_WITH_RDMA_READ => wr_rdma_read,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP => wr_atomic_cmp_swp,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD => wr_atomic_fetch_add,
        IBV_QP_EX_WITH_LOCAL_INV => wr_local_inv,
        IBV_QP_EX_WITH_BIND_MW => wr_bind_mw,
        IBV_QP_EX_WITH_SEND_WITH_INV => wr_send_inv,
    }
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    match kind {
        Kind::Datagram => qp.wr_set_ud_addr = Some(wr_set_ud_addr),
        Kind::XrcInitiator => qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn),
        Kind::Connected | Kind::XrcTarget => {}
    }
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the application passes a QP of this provider; such a QP stays in its place, and its queue with it.
    unsafe {
        let pair = pair(qp.cast());
        let Some(lock) = pair.send() else { return };
        lock.hold();
        let Some(queue) = lock.held() else { return };
        queue.batch = Batch { open: None, error: pair.check_sends().err() };
        if let Some(slot) = pair.slot() {
            queue.complete(slot.send_consumer());
        }
        queue.begin();
    }
}

/// Posts the requests, or none of them and tells the first error.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: this thread has begun the batch.
    unsafe {
        let (pair, Some(queue)) = begun(qp) else { return libc::EINVAL };
        queue.close();
        let result = match queue.batch.error {
            Some(Errno(errno)) => {
                queue.rollback();
                errno
            }
            None => {
                if queue.publish() {
                    pair.ring_doorbell();
                }
                0
            }
        };
        end(pair);
        result
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: this thread has begun the batch.
    unsafe {
        let (pair, Some(queue)) = begun(qp) else { return };
        queue.rollback();
        end(pair);
    }
}

/// A QP and its send queue, whose batch this thread has begun.
///
/// # Safety
///
/// `qp` must be a QP of this provider, and the calling thread be between `wr_start` and `wr_complete` or `wr_abort`.
#[inline]
unsafe fn begun<'a>(qp: *mut ibv_qp_ex) -> (&'a Pair, Option<&'a mut SendQueue>) {
    // SAFETY: the caller says so.
    unsafe {
        let pair = pair(qp.cast());
        (pair, pair.send().and_then(|lock| lock.held()))
    }
}

/// # Safety
///
/// The calling thread must have begun a batch.
unsafe fn end(pair: &Pair) {
    if let Some(lock) = pair.send() {
        // SAFETY: the caller says so.
        unsafe { lock.release() };
    }
}

impl SendQueue {
    /// Does a step of the batch, unless an earlier one has failed.
    #[inline]
    fn step(&mut self, step: impl FnOnce(&mut Self) -> Result<(), Errno>) {
        if self.batch.error.is_none() {
            self.batch.error = step(self).err();
        }
    }

    /// Adds the open request, if there is one, to those that will be posted.
    #[inline]
    fn close(&mut self) {
        if let Some(Open { request, data, has_target }) = self.batch.open.take() {
            self.step(|queue| if has_target { Ok(queue.push(&request, data)?) } else { Err(Errno::EINVAL) });
        }
    }

    /// Adds data to the open request, of which it has one piece. `write` may have posted it, and then returns none.
    #[inline]
    fn set_data(&mut self, write: impl FnOnce(&mut Self, &SendRequest) -> Result<Option<SendData>, Errno>) {
        self.step(|queue| {
            let request = queue.batch.open.as_ref().ok_or(Errno::EINVAL)?.request;
            if !has_data(request.opcode) {
                return Err(Errno::EINVAL);
            }
            match (write(queue, &request)?, &mut queue.batch.open) {
                (Some(data), Some(open)) => open.data = data,
                _ => queue.batch.open = None,
            }
            Ok(())
        });
    }
}

/// Opens a request.
///
/// # Safety
///
/// As for [`begun`].
#[inline]
unsafe fn build(qp: *mut ibv_qp_ex, opcode: u8, fill: impl FnOnce(&mut SendRequest) -> Result<(), Errno>) {
    // SAFETY: the caller says so.
    let (wr_id, flags, (pair, queue)) = unsafe { ((*qp).wr_id, (*qp).wr_flags, begun(qp)) };
    let Some(queue) = queue else { return };
    queue.close();
    queue.step(|queue| {
        let mut request = SendRequest {
            opcode,
            flags: ring_flags(flags),
            wr_id,
            target: pair.kind.no_target(),
            ..SendRequest::default()
        };
        fill(&mut request)?;
        let has_target = pair.kind == Kind::Connected || !has_data(opcode);
        queue.batch.open = Some(Open { request, data: SendData::default(), has_target });
        Ok(())
    });
}

macro_rules! builders {
    ($( $name:ident ( $($arg:ident : $ty:ty),* ) = $opcode:ident, |$request:ident| $fill:expr; )*) => {
        $( unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($arg: $ty),*) {
            // SAFETY: this thread has begun the batch, and what arguments point to is valid.
            unsafe { build(qp, $opcode, |$request| $fill) };
        } )*
    };
}

builders! {
    wr_rdma_write(rkey: u32, addr: u64) = SEND_OP_RDMA_WRITE, |request| remote(request, rkey, addr);
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) = SEND_OP_RDMA_WRITE_IMM, |request| {
        request.imm_or_inv = imm;
        remote(request, rkey, addr)
    };
    wr_send() = SEND_OP_SEND, |_request| Ok(());
    wr_send_imm(imm: u32) = SEND_OP_SEND_IMM, |request| immediate(request, imm);
    wr_send_inv(key: u32) = SEND_OP_SEND_INV, |request| immediate(request, key);
    wr_rdma_read(rkey: u32, addr: u64) = SEND_OP_RDMA_READ, |request| remote(request, rkey, addr);
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = SEND_OP_CMP_SWAP, |request| {
        request.operands = Operands::Atomic(AtomicSegment { compare_add: compare, swap });
        remote(request, rkey, addr)
    };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = SEND_OP_FETCH_ADD, |request| {
        request.operands = Operands::Atomic(AtomicSegment { compare_add: add, swap: 0 });
        remote(request, rkey, addr)
    };
    wr_local_inv(key: u32) = SEND_OP_LOCAL_INV, |request| immediate(request, key);
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) = SEND_OP_BIND_MW, |request| {
        bind_type_2(request, mw, rkey, &*info)
    };
}

fn remote(request: &mut SendRequest, rkey: u32, addr: u64) -> Result<(), Errno> {
    (request.rkey, request.remote_addr) = (rkey, addr);
    Ok(())
}

fn immediate(request: &mut SendRequest, value: u32) -> Result<(), Errno> {
    request.imm_or_inv = value;
    Ok(())
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: this thread has begun the batch, and the handle is one of this provider.
    unsafe { set_target(qp, || datagram(ah, qpn, qkey)) };
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: this thread has begun the batch.
    unsafe { set_target(qp, || Ok(xrc(srqn))) };
}

/// # Safety
///
/// As for [`begun`].
#[inline]
unsafe fn set_target(qp: *mut ibv_qp_ex, target: impl FnOnce() -> Result<vrdma_rings::Target, Errno>) {
    // SAFETY: the caller says so.
    if let (_, Some(queue)) = unsafe { begun(qp) } {
        queue.step(|queue| {
            let open = queue.batch.open.as_mut().ok_or(Errno::EINVAL)?;
            (open.request.target, open.has_target) = (target()?, true);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: this thread has begun the batch, and the list holds one entry.
    unsafe { wr_set_sge_list(qp, 1, &sge) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: this thread has begun the batch.
    if let (_, Some(queue)) = unsafe { begun(qp) } {
        queue.set_data(|queue, request| {
            let count = c_int::try_from(count).map_err(|_| Errno::EINVAL)?;
            // SAFETY: the application passes a list of so many entries.
            let sges = unsafe { sges(list, count, queue.max_sge) }?;
            if queue.split(request, sges)? {
                return Ok(None);
            }
            Ok(Some(queue.ring.gather(request, sges)?))
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: this thread has begun the batch, and the list holds one buffer.
    unsafe { wr_set_inline_data_list(qp, 1, &buffer) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: this thread has begun the batch.
    if let (_, Some(queue)) = unsafe { begun(qp) } {
        queue.set_data(|queue, request| {
            // SAFETY: the application passes a list of so many buffers, or an empty one.
            let buffers = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(list, count) } };
            let bytes = buffers.iter().fold(0usize, |sum, buffer| sum.saturating_add(buffer.length));
            if bytes > queue.max_inline || !carries_data(request.opcode) {
                return Err(Errno::EINVAL);
            }
            let pieces = buffers.iter().filter(|buffer| buffer.length != 0).map(|buffer| {
                // SAFETY: inline data is readable memory of this process.
                unsafe { slice::from_raw_parts(buffer.addr.cast::<u8>(), buffer.length) }
            });
            Ok(Some(queue.ring.copy_inline(request, pieces)?))
        });
    }
}
