//! Queue pairs: creation, change of state, end.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::c_int;
use std::mem::{size_of, size_of_val};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vrdma_abi::control::RING_FORMAT_1;
use vrdma_abi::uapi::{UserQpReply, UserQpRequest};
use vrdma_rings::{ChunkRing, RecvRing, SendRing};

use crate::abi::*;
use crate::cq::{Completions, completions};
use crate::errno::{Errno, pointer, status};
use crate::library;
use crate::lock::Lock;
use crate::mapped::{Access, Mapped};
use crate::multipath::{Multipath, Watch, chunk_entries};
use crate::object::Object;
use crate::request::Kind;
use crate::shared::{Shared, shared};
use crate::table::Slot;
use crate::verbs::*;
use crate::wr::{self, Batch};

/// A send queue and what the application may put into one request.
pub struct SendQueue {
    pub ring: SendRing<Mapped>,
    pub max_sge: usize,
    pub max_inline: usize,
    /// What `ibv_wr_start` has begun.
    pub batch: Batch,
    pub watch: Watch,
    /// `None` when the QP has one path whoever its peer is.
    pub multipath: Option<Box<Multipath>>,
}

/// A receive queue and what the application may put into one request.
pub struct RecvQueue {
    pub ring: RecvRing<Mapped>,
    pub max_sge: usize,
}

/// A QP's own state.
pub struct Pair {
    pub shared: Arc<Shared>,
    pub kind: Kind,
    /// 0 for XRC targets, which have no slot in the table.
    cookie: u32,
    db_slot: u16,
    db_index: u16,
    /// The state as far as this process knows: the RNIC moves a QP to ERR by itself.
    state: AtomicI32,
    /// `None` when it has no entries.
    send: Option<Lock<SendQueue>>,
    recv: Option<Mutex<RecvQueue>>,
    /// Those of sends and of receives, as far as the QP has them.
    cqs: [Option<Arc<Completions>>; 2],
}

pub type Qp = Object<verbs_qp, Pair>;

impl Pair {
    /// A QP whose work requests, if it has any, are nobody's business here.
    fn without_queues(shared: &Arc<Shared>, kind: Kind, state: c_int) -> Self {
        Self {
            shared: shared.clone(),
            kind,
            cookie: 0,
            db_slot: 0,
            db_index: 0,
            state: AtomicI32::new(state),
            send: None,
            recv: None,
            cqs: [None, None],
        }
    }

    fn map(
        shared: &Arc<Shared>,
        kind: Kind,
        cookie: u32,
        cap: &ibv_qp_cap,
        reply: &UserQpReply,
        cqs: [Option<Arc<Completions>>; 2],
    ) -> Result<Self, Errno> {
        if reply.ring_format != RING_FORMAT_1 || !shared.is_doorbell(reply.db_slot, reply.db_index) {
            return Err(Errno::EOPNOTSUPP);
        }
        let memory = |offset, bytes| Mapped::new(shared.cmd_fd, offset, bytes as usize, Access::ReadWrite);
        let mut send = None;
        if reply.sq_entries != 0 {
            let ring = memory(reply.sq_offset, reply.sq_bytes)?;
            let ring = SendRing::new(ring, reply.sq_entries, reply.sq_stride_shift);
            let mut ring = ring.map_err(|_| Errno::EINVAL)?;
            let mut multipath = None;
            if let (Some(offer), true) = (shared.multipath, reply.chunk_entries != 0) {
                let chunks = memory(reply.chunks_offset, reply.chunks_bytes)?;
                let chunks = ChunkRing::new(chunks, reply.chunk_entries, reply.sq_stride_shift);
                let chunks = chunks.map_err(|_| Errno::EINVAL)?;
                multipath = Some(Box::new(Multipath::new(
                    offer,
                    &mut ring,
                    cap.max_send_wr,
                    chunks,
                    reply.chunk_entries,
                )));
            }
            send = Some(Lock::new(SendQueue {
                ring,
                max_sge: cap.max_send_sge as usize,
                max_inline: reply.max_inline_bytes.into(),
                batch: Batch::default(),
                watch: Watch::default(),
                multipath,
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
        Ok(Self { shared: shared.clone(), kind, cookie, db_slot, db_index, state, send, recv, cqs })
    }

    /// The send queue, for one poster at a time.
    #[inline]
    pub fn send(&self) -> Option<&Lock<SendQueue>> {
        self.send.as_ref()
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
            IBV_QPS_RTR => {
                if let Some(queue) = self.send() {
                    queue.lock().connect();
                }
            }
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
        if let Some(queue) = self.send() {
            queue.lock().reset();
        }
        if let Some(mut queue) = self.recv() {
            queue.ring.reset();
        }
    }

    /// Makes pollers skip the completions that wait to be polled. The RNIC writes no more of them.
    fn disown_completions(&self) {
        let [send_cq, recv_cq] = &self.cqs;
        for cq in [send_cq, recv_cq].into_iter().flatten() {
            // The second time around finds nothing where both are one.
            cq.queue.lock().ring.discard(self.cookie);
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

pub unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the library passes a domain of an open context and the application's attributes.
    unsafe {
        let mut extended = ibv_qp_init_attr_ex {
            qp_context: (*init).qp_context,
            send_cq: (*init).send_cq,
            recv_cq: (*init).recv_cq,
            srq: (*init).srq,
            cap: (*init).cap,
            qp_type: (*init).qp_type,
            sq_sig_all: (*init).sq_sig_all,
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd,
            xrcd: ptr::null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: ptr::null_mut(),
            rx_hash_conf: [0; 3],
            source_qpn: 0,
            send_ops_flags: 0,
        };
        let qp = create_qp_ex((*pd).context, &mut extended);
        (*init).cap = extended.cap;
        qp
    }
}

pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the library passes an open context and the application's attributes; a verbs_qp may be all zeroes.
    let qp = pointer(unsafe { Qp::create(|qp| create(context, qp, &mut *init)) });
    qp.cast()
}

/// # Safety
///
/// As for `create_qp_ex`; `qp` must be the library's part of the new object.
unsafe fn create(
    context: *mut ibv_context,
    qp: *mut verbs_qp,
    init: &mut ibv_qp_init_attr_ex,
) -> Result<Pair, Errno> {
    let kind = check(init)?;
    let is_extended = init.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    // SAFETY: the context is open, and the completion queues are the application's, of this provider.
    let (shared, cqs) = unsafe {
        let cq = |cq: *mut ibv_cq, used| (used && !cq.is_null()).then(|| completions(cq).clone());
        let sends = kind != Kind::XrcTarget;
        let receives = sends && kind != Kind::XrcInitiator;
        (shared(context).ok_or(Errno::EINVAL)?, [cq(init.send_cq, sends), cq(init.recv_cq, receives)])
    };
    let has_sends = cqs[0].is_some();
    let cookie = if has_sends { shared.table.take().ok_or(Errno::ENOMEM)? } else { 0 };
    let offer = shared.multipath.filter(|_| init.qp_type == IBV_QPT_RC);
    let chunk_entries = offer.map_or(0, |offer| chunk_entries(init.cap.max_send_wr, offer.paths));
    // SAFETY: the caller's pointers are valid. A QP that cannot be used is destroyed before anybody has used it, so the kernel has no
    // reason to refuse.
    let pair = unsafe {
        let created = send_command(shared, context, qp, init, cookie, chunk_entries).or_else(|errno| {
            // Where there is no room for several paths, or nobody knows of them, one is better than none.
            if chunk_entries == 0 || ![Errno::EOPNOTSUPP, Errno::EDQUOT, Errno::ENOMEM].contains(&errno) {
                return Err(errno);
            }
            library::debug(
                context,
                c"a queue pair has one path: with several, the kernel or the host refuses it",
                errno,
            );
            send_command(shared, context, qp, init, cookie, 0)
        });
        created.and_then(|(reply, comp_mask)| {
            let pair = if !has_sends {
                Ok(Pair::without_queues(shared, kind, IBV_QPS_RESET))
            } else if is_extended && reply.sq_entries == 0 {
                Err(Errno::EINVAL)
            } else {
                Pair::map(shared, kind, cookie, &init.cap, &reply, cqs)
            };
            if pair.is_ok() && is_extended && has_sends {
                wr::offer(&mut (*qp).qp, kind, init.send_ops_flags);
                *comp_mask |= VERBS_QP_EX;
            }
            pair.inspect_err(|_| {
                (shared.library.ibv_cmd_destroy_qp)(qp.cast());
            })
        })
    };
    pair.inspect_err(|_| shared.table.give_back(cookie))
}

/// What this device cannot do is EOPNOTSUPP, what nobody can do EINVAL.
fn check(init: &ibv_qp_init_attr_ex) -> Result<Kind, Errno> {
    let kind = Kind::of(init.qp_type)?;
    let has = |mask| init.comp_mask & mask != 0;
    let known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if init.comp_mask & !known != 0
        || has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && init.create_flags != 0
        || has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) && init.send_ops_flags & !wr::operations(init.qp_type) != 0
    {
        return Err(Errno::EOPNOTSUPP);
    }
    let has_pd = has(IBV_QP_INIT_ATTR_PD) && !init.pd.is_null();
    let is_whole = match kind {
        Kind::XrcTarget => has(IBV_QP_INIT_ATTR_XRCD) && !init.xrcd.is_null(),
        Kind::XrcInitiator => has_pd && !init.send_cq.is_null(),
        Kind::Connected | Kind::Datagram => has_pd && !init.send_cq.is_null() && !init.recv_cq.is_null(),
    };
    if is_whole { Ok(kind) } else { Err(Errno::EINVAL) }
}

/// Has the kernel make the QP. Returns the module's answer, and the place of `verbs_qp.comp_mask`.
///
/// # Safety
///
/// As for `create_qp_ex`; `qp` must be the library's part of the new object.
unsafe fn send_command<'a>(
    shared: &Shared,
    context: *mut ibv_context,
    qp: *mut verbs_qp,
    init: &mut ibv_qp_init_attr_ex,
    cookie: u32,
    chunk_entries: u32,
) -> Result<(UserQpReply, &'a mut u32), Errno> {
    // The library takes no other attributes, and the rest has been dealt with.
    let comp_mask = init.comp_mask;
    init.comp_mask &= IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD;
    let driver = UserQpRequest { cookie, chunk_entries };
    let mut command = WithDriver { core: ibv_create_qp::default(), driver };
    let mut reply: WithDriver<ib_uverbs_create_qp_resp, UserQpReply> = Default::default();
    // The library stores comp_mask where its version has it: a mark tells whether that is here.
    const MARK: u32 = u32::MAX;
    // SAFETY: the caller's pointers are valid; command and reply are as long as said.
    unsafe {
        (*qp).tail[0] = MARK;
        let created = Errno::check((shared.library.ibv_cmd_create_qp_ex)(
            context,
            qp,
            init,
            (&raw mut command).cast(),
            size_of_val(&command),
            (&raw mut reply).cast(),
            size_of_val(&reply),
        ));
        init.comp_mask = comp_mask;
        created?;
        let [first, _, second, ..] = &mut (*qp).tail;
        if *first != MARK {
            return Ok((reply.driver, first));
        }
        *first = 0;
        Ok((reply.driver, second))
    }
}

/// Opens the target of an XRC connection, which another process has made.
pub unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    let (mut command, mut response): (ibv_open_qp, ib_uverbs_create_qp_resp) = Default::default();
    // SAFETY: the library passes an open context and the application's attributes; command and response are as long as said;
    // a verbs_qp may be all zeroes.
    let qp = pointer(unsafe {
        Qp::create(|qp| {
            if (*attr).qp_type != IBV_QPT_XRC_RECV {
                return Err(Errno::EINVAL);
            }
            let shared = shared(context).ok_or(Errno::EINVAL)?;
            Errno::check((shared.library.ibv_cmd_open_qp)(
                context,
                qp,
                size_of::<verbs_qp>() as c_int, // a few hundred bytes
                attr,
                &mut command,
                size_of::<ibv_open_qp>(),
                &mut response,
                size_of::<ib_uverbs_create_qp_resp>(),
            ))?;
            Ok(Pair::without_queues(shared, Kind::XrcTarget, IBV_QPS_UNKNOWN))
        })
    });
    qp.cast()
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
