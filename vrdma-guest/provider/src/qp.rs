//! Queue pairs: creation, change of state, end.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::c_int;
use std::mem::{size_of, size_of_val};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vrdma_abi::control::RING_FORMAT_1;
use vrdma_abi::uapi::{UserQpReply, UserQpRequest};
use vrdma_rings::{RecvRing, SendRing};

use crate::abi34::*;
use crate::context::{Shared, shared};
use crate::cq::{Completions, completions};
use crate::errno::{Errno, status};
use crate::mapped::{Access, Mapped};
use crate::object::Object;
use crate::table::Slot;
use crate::verbs::*;

/// A send queue and what the application may put into one request.
pub struct SendQueue {
    pub ring: SendRing<Mapped>,
    pub max_sge: usize,
    pub max_inline: usize,
}

/// A receive queue and what the application may put into one request.
pub struct RecvQueue {
    pub ring: RecvRing<Mapped>,
    pub max_sge: usize,
}

/// A QP's own state.
pub struct Pair {
    pub shared: Arc<Shared>,
    cookie: u32,
    db_slot: u16,
    db_index: u16,
    /// The state as far as this process knows: the RNIC moves a QP to ERR by itself.
    state: AtomicI32,
    /// `None` when it has no entries.
    send: Option<Mutex<SendQueue>>,
    recv: Option<Mutex<RecvQueue>>,
    cqs: [Arc<Completions>; 2],
}

pub type Qp = Object<verbs_qp, Pair>;

impl Pair {
    fn map(
        shared: &Arc<Shared>,
        cookie: u32,
        cap: &ibv_qp_cap,
        reply: &UserQpReply,
        cqs: [Arc<Completions>; 2],
    ) -> Result<Self, Errno> {
        if reply.ring_format != RING_FORMAT_1 || !shared.is_doorbell(reply.db_slot, reply.db_index) {
            return Err(Errno::EOPNOTSUPP);
        }
        let memory = |offset, bytes| Mapped::new(shared.cmd_fd, offset, bytes as usize, Access::ReadWrite);
        let mut send = None;
        if reply.sq_entries != 0 {
            let memory = memory(reply.sq_offset, reply.sq_bytes)?;
            let ring = SendRing::new(memory, reply.sq_entries, reply.sq_stride_shift);
            send = Some(Mutex::new(SendQueue {
                ring: ring.map_err(|_| Errno::EINVAL)?,
                max_sge: cap.max_send_sge as usize,
                max_inline: reply.max_inline_bytes.into(),
            }));
        }
        let mut recv = None;
        if reply.rq_entries != 0 {
            let memory = memory(reply.rq_offset, reply.rq_bytes)?;
            let ring = RecvRing::new(memory, reply.rq_entries, reply.rq_stride_shift);
            recv = Some(Mutex::new(RecvQueue {
                ring: ring.map_err(|_| Errno::EINVAL)?,
                max_sge: cap.max_recv_sge as usize,
            }));
        }
        let (db_slot, db_index) = (reply.db_slot, reply.db_index);
        let state = AtomicI32::new(IBV_QPS_RESET);
        Ok(Self { shared: shared.clone(), cookie, db_slot, db_index, state, send, recv, cqs })
    }

    /// The send queue, for one poster at a time.
    #[inline]
    pub fn send(&self) -> Option<MutexGuard<'_, SendQueue>> {
        self.send.as_ref().map(|queue| queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The receive queue, for one poster at a time.
    #[inline]
    pub fn recv(&self) -> Option<MutexGuard<'_, RecvQueue>> {
        self.recv.as_ref().map(|queue| queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What pollers have told of this QP.
    #[inline]
    pub fn slot(&self) -> Option<&Slot> {
        self.shared.table.get(self.cookie)
    }

    /// IBV_QPS_…, as far as this process knows.
    #[inline]
    pub fn state(&self) -> c_int {
        self.state.load(Ordering::Relaxed)
    }

    /// Tells the RNIC of new work.
    #[inline]
    pub fn ring_doorbell(&self) {
        self.shared.ring(self.db_slot, self.db_index);
    }

    /// Takes note of a state that the QP has now.
    pub fn enter(&self, state: c_int) {
        self.state.store(state, Ordering::Relaxed);
        match state {
            IBV_QPS_RESET => self.reset(),
            IBV_QPS_ERR => {
                if let Some(slot) = self.slot() {
                    slot.fail();
                }
            }
            _ => {}
        }
    }

    /// Starts both queues over, as the RNIC has done.
    fn reset(&self) {
        self.disown_completions();
        if let Some(slot) = self.slot() {
            slot.reset();
        }
        if let Some(mut queue) = self.send() {
            queue.ring.reset();
        }
        if let Some(mut queue) = self.recv() {
            queue.ring.reset();
        }
    }

    /// Makes pollers skip the completions that wait to be polled. The RNIC writes no more of them.
    fn disown_completions(&self) {
        let [send_cq, recv_cq] = &self.cqs;
        send_cq.ring().discard(self.cookie);
        if !Arc::ptr_eq(send_cq, recv_cq) {
            recv_cq.ring().discard(self.cookie);
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Once the cookie is free, a completion with it would be taken for another QP's.
        self.disown_completions();
        self.shared.table.give_back(self.cookie);
    }
}

/// The state of a QP that the application passed.
///
/// # Safety
///
/// `qp` must be a QP of this provider, and not be destroyed while the reference lives.
#[inline]
pub unsafe fn pair<'a>(qp: *mut ibv_qp) -> &'a Pair {
    // SAFETY: each QP of this provider is a `Qp`, which the library's part begins.
    unsafe { Qp::own(qp.cast()) }
}

pub unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the library passes a domain of an open context and the application's attributes; a verbs_qp may be all zeroes.
    let qp = unsafe { Qp::create(|qp| create(pd, qp.cast(), attr)) };
    match qp {
        Ok(qp) => qp.cast(),
        Err(errno) => {
            errno.set();
            ptr::null_mut()
        }
    }
}

/// # Safety
///
/// As for `create_qp`; `qp` must be the library's part of the new object.
unsafe fn create(pd: *mut ibv_pd, qp: *mut ibv_qp, attr: *mut ibv_qp_init_attr) -> Result<Pair, Errno> {
    // SAFETY: the caller's pointers are valid, and the completion queues are the application's, of this provider.
    let (shared, cqs) = unsafe {
        if (*attr).send_cq.is_null() || (*attr).recv_cq.is_null() {
            return Err(Errno::EINVAL);
        }
        let shared = shared((*pd).context).ok_or(Errno::EINVAL)?;
        (shared, [(*attr).send_cq, (*attr).recv_cq].map(|cq| completions(cq).clone()))
    };
    let cookie = shared.table.take().ok_or(Errno::ENOMEM)?;
    let mut command: WithDriver<ibv_create_qp, UserQpRequest> = Default::default();
    command.driver.cookie = cookie;
    let mut reply: WithDriver<ib_uverbs_create_qp_resp, UserQpReply> = Default::default();
    // SAFETY: as above; command and reply are as long as said.
    let created = Errno::check(unsafe {
        (shared.library.ibv_cmd_create_qp)(
            pd,
            qp,
            attr,
            (&raw mut command).cast(),
            size_of_val(&command),
            (&raw mut reply).cast(),
            size_of_val(&reply),
        )
    });
    let pair = created.and_then(|()| {
        // SAFETY: the attributes are valid, and the library has put into them what the module granted.
        let cap = unsafe { (*attr).cap };
        Pair::map(shared, cookie, &cap, &reply.driver, cqs).inspect_err(|_| {
            // SAFETY: the command above has made the QP. Nobody has used it yet, so the kernel has no reason to refuse.
            unsafe { (shared.library.ibv_cmd_destroy_qp)(qp) };
        })
    });
    pair.inspect_err(|_| shared.table.give_back(cookie))
}

pub unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let mut command: ibv_modify_qp = Default::default();
    // SAFETY: the library passes a QP of this provider and the application's attributes; the command is as long as said.
    status(unsafe {
        let pair = pair(qp);
        let modify = pair.shared.library.ibv_cmd_modify_qp;
        Errno::check(modify(qp, attr, mask, &mut command, size_of::<ibv_modify_qp>())).map(|()| {
            if mask & IBV_QP_STATE != 0 {
                pair.enter((*attr).qp_state);
            }
        })
    })
}

pub unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    let mut command: ibv_query_qp = Default::default();
    // SAFETY: the library passes a QP of this provider and attributes to fill in; the command is as long as said.
    status(unsafe {
        let query = pair(qp).shared.library.ibv_cmd_query_qp;
        Errno::check(query(qp, attr, mask, init_attr, &mut command, size_of::<ibv_query_qp>()))
    })
}

pub unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the application passes a QP of this provider, and uses it no more on success.
    status(unsafe {
        let library = pair(qp).shared.library;
        Errno::check((library.ibv_cmd_destroy_qp)(qp)).map(|()| Qp::free(qp.cast()))
    })
}
