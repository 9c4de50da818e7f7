//! An open device with its objects, as an application sees them, and the RNIC behind it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use vrdma_abi::ring::{CQE_RECV, Cqe, RecvHeader, SEND_INLINE, SendHeader, Sge, phase};
use vrdma_abi::uapi::{UserCqReply, UserQpReply, UserSrqReply};
use vrdma_rings::SharedMemory;

use super::kernel::{self, DEVICE_BYTES, DOORBELLS, FIRST_DOORBELL_QUEUE, KICKS, PAGE, SLOTS};
use crate::abi::{VERBS_QP_EX, verbs_context_ops, verbs_qp};
use crate::context::alloc_context;
use crate::mapped::{Access, Mapped};
use crate::verbs::*;

/// The word that says that the device lives, and the first slot's need_kick.
pub const LIVE: usize = 63 * 64;

/// An opened device.
pub struct Machine {
    pub context: *mut ibv_context,
    pub ops: verbs_context_ops,
    pub pd: *mut ibv_pd,
    /// The whole device, as the RNIC sees it.
    pub memory: Mapped,
    /// Completions that the RNIC has written to each queue.
    produced: RefCell<BTreeMap<u32, u32>>,
    fd: OwnedFd,
}

impl Machine {
    pub fn open() -> Self {
        Self::open_after(|_| ())
    }

    /// Opens a device whose kernel has been prepared.
    pub fn open_after(prepare: impl FnOnce(&mut kernel::Kernel)) -> Self {
        let fd = kernel::plug();
        let raw = fd.as_raw_fd();
        kernel::with(raw, prepare);
        let memory = Mapped::new(raw, 0, DEVICE_BYTES as usize, Access::ReadWrite).unwrap();
        memory.store_release(LIVE, 1);
        // SAFETY: the kernel's part is played by the module `kernel`, which asks nothing of the device.
        let context = unsafe { &raw mut (*alloc_context(ptr::null_mut(), raw, ptr::null_mut())).context };
        let ops = kernel::with(raw, |kernel| std::mem::take(&mut kernel.ops));
        // SAFETY: the context is open.
        let pd = unsafe { ops.alloc_pd.unwrap()(context) };
        assert!(!pd.is_null());
        Self { context, ops, pd, memory, produced: RefCell::default(), fd }
    }

    pub fn kernel<T>(&self, look: impl FnOnce(&mut kernel::Kernel) -> T) -> T {
        kernel::with(self.fd.as_raw_fd(), look)
    }

    /// Ends the domain and the context. All other objects must have been destroyed.
    pub fn close(self) {
        // SAFETY: domain and context are used no more.
        unsafe {
            assert_eq!(self.ops.dealloc_pd.unwrap()(self.pd), 0);
            self.kernel(|kernel| {
                assert_eq!(
                    (kernel.cqs.len(), kernel.qps.len(), kernel.srqs.len(), kernel.others),
                    (0, 0, 0, 0),
                    "objects are left"
                );
            });
            self.ops.free_context.unwrap()(self.context);
        }
    }

    pub fn cq(&self, entries: c_int) -> *mut ibv_cq {
        // SAFETY: the context is open.
        let cq = unsafe { self.ops.create_cq.unwrap()(self.context, entries, ptr::null_mut(), 0) };
        assert!(!cq.is_null());
        cq
    }

    pub fn destroy_cq(&self, cq: *mut ibv_cq) {
        // SAFETY: the queue is used no more.
        assert_eq!(unsafe { self.ops.destroy_cq.unwrap()(cq) }, 0);
    }

    /// An RC QP.
    pub fn qp(&self, send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq, cap: ibv_qp_cap) -> Qp<'_> {
        self.qp_ex(&mut ibv_qp_init_attr_ex { send_cq, recv_cq, ..self.init(IBV_QPT_RC, cap) }).unwrap()
    }

    /// Attributes of a QP of the machine's domain; its queues are to be filled in.
    pub fn init(&self, qp_type: c_int, cap: ibv_qp_cap) -> ibv_qp_init_attr_ex {
        ibv_qp_init_attr_ex {
            qp_context: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            cap,
            qp_type,
            sq_sig_all: 0,
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd: self.pd,
            xrcd: ptr::null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: ptr::null_mut(),
            rx_hash_conf: [0; 3],
            source_qpn: 0,
            send_ops_flags: 0,
        }
    }

    /// A QP, or errno. As ibv_create_qp_ex does it, the plain verb is called if nothing else was asked for.
    pub fn qp_ex(&self, init: &mut ibv_qp_init_attr_ex) -> Result<Qp<'_>, c_int> {
        // SAFETY: context, domain and queues are live.
        let qp = unsafe {
            if init.comp_mask == IBV_QP_INIT_ATTR_PD {
                // The extended attributes begin with the plain ones.
                self.ops.create_qp.unwrap()(self.pd, ptr::from_mut(init).cast())
            } else {
                self.ops.create_qp_ex.unwrap()(self.context, init)
            }
        };
        if qp.is_null() {
            Err(errno())
        } else {
            Ok(Qp { machine: self, qp, taken: Cell::default(), taken_chunks: Cell::default() })
        }
    }

    pub fn srq(&self, max_wr: u32, max_sge: u32) -> Srq<'_> {
        let attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: the domain is live.
        let srq = unsafe { self.ops.create_srq.unwrap()(self.pd, &mut init) };
        assert!(!srq.is_null());
        Srq { machine: self, srq }
    }

    /// An address handle, or errno.
    pub fn ah(&self, mut attr: ibv_ah_attr) -> Result<*mut ibv_ah, c_int> {
        // SAFETY: the domain is live.
        let ah = unsafe { self.ops.create_ah.unwrap()(self.pd, &mut attr) };
        if ah.is_null() { Err(errno()) } else { Ok(ah) }
    }

    pub fn destroy_ah(&self, ah: *mut ibv_ah) {
        // SAFETY: the handle is used no more.
        assert_eq!(unsafe { self.ops.destroy_ah.unwrap()(ah) }, 0);
    }

    /// Polls at most `max` completions.
    pub fn poll(&self, cq: *mut ibv_cq, max: usize) -> Result<Vec<ibv_wc>, c_int> {
        let mut array = vec![MaybeUninit::<ibv_wc>::uninit(); max];
        // SAFETY: the array has this many places; those that were counted are filled in.
        unsafe {
            let count = self.ops.poll_cq.unwrap()(cq, max as c_int, array.as_mut_ptr().cast());
            let count = usize::try_from(count).map_err(|_| -count)?;
            Ok(array[..count].iter().map(|wc| wc.assume_init()).collect())
        }
    }

    pub fn cq_ring(&self, cq: *mut ibv_cq) -> UserCqReply {
        // SAFETY: the queue is live.
        let handle = unsafe { (*cq).handle };
        self.kernel(|kernel| kernel.cqs[&handle])
    }

    /// The RNIC writes a completion.
    pub fn complete(&self, cq: *mut ibv_cq, cqe: Cqe) {
        use zerocopy::IntoBytes;
        let ring = self.cq_ring(cq);
        // SAFETY: the queue is live.
        let handle = unsafe { (*cq).handle };
        let mut produced = self.produced.borrow_mut();
        let producer = produced.entry(handle).or_default();
        let consumer = self.memory.load_acquire(ring.ring_offset as usize);
        assert!(producer.wrapping_sub(consumer) < ring.entries, "the completion queue is full");
        let at = ring.ring_offset as usize + (1 + (*producer % ring.entries) as usize) * Cqe::SIZE;
        let cqe = Cqe { phase: phase(*producer, ring.entries), ..cqe };
        self.memory.write(at, cqe.as_bytes());
        *producer += 1;
    }

    /// The RNIC goes on in another ring of a queue, into which it has moved so many completions.
    pub fn go_on_behind(&self, cq: *mut ibv_cq, moved: u32) {
        // SAFETY: the queue is live.
        self.produced.borrow_mut().insert(unsafe { (*cq).handle }, moved);
    }

    /// Another view of the device.
    pub fn view(&self) -> View {
        View(Mapped::new(self.fd.as_raw_fd(), 0, DEVICE_BYTES as usize, Access::ReadWrite).unwrap())
    }

    /// The kicks that arrived at the doorbell registers since the last call, as slots.
    pub fn kicks(&self) -> Vec<u64> {
        let kicked = |slot: &u64| {
            let at = (KICKS + slot * PAGE) as usize;
            let value = self.memory.load_acquire(at);
            self.memory.store_release(at, 0);
            assert!(value == 0 || u64::from(value) == u64::from(FIRST_DOORBELL_QUEUE) + slot);
            value != 0
        };
        (0..SLOTS).filter(kicked).collect()
    }
}

/// The device as the RNIC sees it.
pub struct View(Mapped);

impl View {
    /// The RNIC moves the completions that wait from one ring to another, with the phases of the latter.
    pub fn move_completions(&self, old: &UserCqReply, new: &UserCqReply) {
        let at = |ring: &UserCqReply, index: u32| {
            ring.ring_offset as usize + (1 + (index % ring.entries) as usize) * Cqe::SIZE
        };
        let consumer = self.0.load_acquire(old.ring_offset as usize);
        for index in 0..old.entries {
            let mut cqe = [0; Cqe::SIZE];
            self.0.read(at(old, consumer + index), &mut cqe);
            if cqe[Cqe::SIZE - 1] != phase(consumer + index, old.entries) {
                break;
            }
            cqe[Cqe::SIZE - 1] = phase(index, new.entries);
            self.0.write(at(new, index), &cqe);
        }
    }
}

/// A QP of a machine.
pub struct Qp<'m> {
    pub machine: &'m Machine,
    pub qp: *mut ibv_qp,
    /// Entries that the RNIC has read from the send queue and the receive queue.
    taken: Cell<(u32, u32)>,
    /// The same of the chunk ring.
    taken_chunks: Cell<u32>,
}

/// A send entry, as the RNIC reads it.
#[derive(Debug, PartialEq, Eq)]
pub struct Sent {
    pub header: SendHeader,
    /// What stands behind the header.
    pub rest: Vec<u8>,
}

impl Sent {
    pub fn sges(&self, skip: usize) -> Vec<Sge> {
        use zerocopy::FromBytes;
        let sge = |bytes: &[u8]| Sge::read_from_bytes(bytes).unwrap();
        self.rest[skip..].chunks(Sge::SIZE).take(self.header.num_sge.into()).map(sge).collect()
    }

    pub fn inline(&self) -> &[u8] {
        assert_ne!(self.header.flags & SEND_INLINE, 0);
        &self.rest[..self.header.inline_bytes as usize]
    }
}

impl Qp<'_> {
    fn handle(&self) -> u32 {
        // SAFETY: the QP is live.
        unsafe { (*self.qp).handle }
    }

    pub fn cookie(&self) -> u32 {
        self.machine.kernel(|kernel| kernel.qps[&self.handle()].1.cookie)
    }

    /// Changes the state, with an attribute mask that only names the state.
    pub fn modify(&self, state: c_int) -> c_int {
        let mut attr = [0u64; 32]; // larger than struct ibv_qp_attr
        // SAFETY: the QP is live, and the attributes begin with the state.
        unsafe {
            let attr = attr.as_mut_ptr().cast::<ibv_qp_attr>();
            (*attr).qp_state = state;
            self.machine.ops.modify_qp.unwrap()(self.qp, attr, IBV_QP_STATE)
        }
    }

    /// Posts one after the other what stands in the slice, as one list. Returns errno and the index of the refused one.
    pub fn post_send(&self, requests: &mut [ibv_send_wr]) -> Result<(), (c_int, usize)> {
        let first = link(requests, |wr, next| wr.next = next);
        let mut bad = ptr::null_mut();
        // SAFETY: the QP and the list are live.
        let errno = unsafe { self.machine.ops.post_send.unwrap()(self.qp, first, &mut bad) };
        outcome(errno, first, bad)
    }

    /// The same for receives.
    pub fn post_recv(&self, requests: &mut [ibv_recv_wr]) -> Result<(), (c_int, usize)> {
        let first = link(requests, |wr, next| wr.next = next);
        let mut bad = ptr::null_mut();
        // SAFETY: the QP and the list are live.
        let errno = unsafe { self.machine.ops.post_recv.unwrap()(self.qp, first, &mut bad) };
        outcome(errno, first, bad)
    }

    /// The RNIC reads all sends that were published since the last call.
    pub fn take_sends(&self) -> Vec<Sent> {
        let ring = self.rings();
        let (consumer, other) = self.taken.get();
        let (sent, consumer) = self.take(ring.sq_offset, ring.sq_entries, ring.sq_stride_shift, consumer);
        self.taken.set((consumer, other));
        sent
    }

    /// The RNIC reads all chunks that were published since the last call.
    pub fn take_chunks(&self) -> Vec<Sent> {
        let ring = self.rings();
        let (sent, consumer) =
            self.take(ring.chunks_offset, ring.chunk_entries, ring.sq_stride_shift, self.taken_chunks.get());
        self.taken_chunks.set(consumer);
        sent
    }

    /// Entries of a ring of sends from `consumer` on, and how far that goes.
    fn take(&self, offset: u64, entries: u32, stride_shift: u8, mut consumer: u32) -> (Vec<Sent>, u32) {
        use zerocopy::FromBytes;
        let producer = self.machine.memory.load_acquire(offset as usize);
        let mut sent = Vec::new();
        while consumer != producer {
            let mut entry = vec![0; 1 << stride_shift];
            let at = (1 + u64::from(consumer % entries)) << stride_shift;
            self.machine.memory.read((offset + at) as usize, &mut entry);
            let (header, rest) = SendHeader::read_from_prefix(&entry).unwrap();
            sent.push(Sent { header, rest: rest.to_vec() });
            consumer = consumer.wrapping_add(1);
        }
        (sent, consumer)
    }

    /// What the kernel answered when the QP was made.
    pub fn rings(&self) -> UserQpReply {
        self.machine.kernel(|kernel| kernel.qps[&self.handle()].0)
    }

    /// The RNIC says how many paths are used, as it does at RTR.
    pub fn tell_paths(&self, paths: u32) {
        self.machine.memory.store_release(self.rings().chunks_offset as usize + 8, paths);
    }

    /// The RNIC says what can be split besides, as it does at RTR.
    pub fn tell_splits(&self, splits: u32) {
        let at =
            self.rings().chunks_offset as usize + std::mem::offset_of!(vrdma_abi::ring::WorkHeader, splits);
        self.machine.memory.store_release(at, splits);
    }

    /// The RNIC has done the chunks below an index.
    pub fn tell_chunks_done(&self, index: u32) {
        self.machine.memory.store_release(self.rings().chunks_offset as usize + 4, index);
    }

    /// The extended interface, if the library finds one where its version looks for it.
    pub fn extended(&self) -> Option<*mut ibv_qp_ex> {
        let is_v44 = self.machine.kernel(|kernel| kernel.is_v44);
        // SAFETY: the QP is live.
        let tail = unsafe { (*self.qp.cast::<verbs_qp>()).tail };
        (tail[if is_v44 { 0 } else { 2 }] & VERBS_QP_EX != 0).then_some(self.qp.cast())
    }

    /// The RNIC reads all receives that were published since the last call: wr_id and entries.
    pub fn take_recvs(&self) -> Vec<(u64, Vec<Sge>)> {
        use zerocopy::FromBytes;
        let (ring, _) = self.machine.kernel(|kernel| kernel.qps[&self.handle()]);
        let (other, mut consumer) = self.taken.get();
        let producer = self.machine.memory.load_acquire(ring.rq_offset as usize);
        let mut taken = Vec::new();
        while consumer != producer {
            let mut entry = vec![0; 1 << ring.rq_stride_shift];
            let at = (1 + u64::from(consumer % ring.rq_entries)) << ring.rq_stride_shift;
            self.machine.memory.read((ring.rq_offset + at) as usize, &mut entry);
            let (header, rest) = RecvHeader::read_from_prefix(&entry).unwrap();
            let sges = rest.chunks(Sge::SIZE).take(header.num_sge as usize);
            taken.push((header.wr_id, sges.map(|bytes| Sge::read_from_bytes(bytes).unwrap()).collect()));
            consumer = consumer.wrapping_add(1);
        }
        self.taken.set((other, consumer));
        taken
    }

    /// The RNIC starts over, as it does when a QP is reset.
    pub fn reset_rnic(&self) {
        self.taken.set((0, 0));
        self.taken_chunks.set(0);
    }

    /// A completion of the send queue, which frees the entries below `consumer`.
    pub fn send_cqe(&self, consumer: u32) -> Cqe {
        // SAFETY: the QP is live.
        let qpn = unsafe { (*self.qp).qp_num };
        Cqe { qpn, cookie: self.cookie(), consumer, ..Cqe::ZERO }
    }

    /// A completion of the receive queue.
    pub fn recv_cqe(&self, consumer: u32) -> Cqe {
        Cqe { flags: CQE_RECV, ..self.send_cqe(consumer) }
    }

    /// Whether the doorbell was marked since the last call.
    pub fn marked(&self) -> bool {
        let (reply, _) = self.machine.kernel(|kernel| kernel.qps[&self.handle()]);
        let page = (DOORBELLS + u64::from(reply.db_slot) * PAGE) as usize;
        let places = [page + usize::from(reply.db_index) / 64, page + 64 + usize::from(reply.db_index)];
        let found = places.map(|at| {
            let mut byte = [0];
            self.machine.memory.read(at, &mut byte);
            self.machine.memory.store_release_u8(at, 0);
            byte[0] != 0
        });
        assert_eq!(found[0], found[1], "a mark is half of one");
        found[0]
    }

    pub fn db_slot(&self) -> u16 {
        self.machine.kernel(|kernel| kernel.qps[&self.handle()].0.db_slot)
    }

    pub fn destroy(self) {
        // SAFETY: the QP is used no more.
        assert_eq!(unsafe { self.machine.ops.destroy_qp.unwrap()(self.qp) }, 0);
    }
}

/// A shared receive queue of a machine.
pub struct Srq<'m> {
    pub machine: &'m Machine,
    pub srq: *mut ibv_srq,
}

impl Srq<'_> {
    pub fn ring(&self) -> UserSrqReply {
        // SAFETY: the queue is live.
        let handle = unsafe { (*self.srq).handle };
        self.machine.kernel(|kernel| kernel.srqs[&handle])
    }

    /// Posts one after the other what stands in the slice, as one list. Returns errno and the index of the refused one.
    pub fn post(&self, requests: &mut [ibv_recv_wr]) -> Result<(), (c_int, usize)> {
        let first = link(requests, |wr, next| wr.next = next);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue and the list are live.
        let errno = unsafe { self.machine.ops.post_srq_recv.unwrap()(self.srq, first, &mut bad) };
        outcome(errno, first, bad)
    }

    /// The RNIC takes a receive: wr_id and entries.
    pub fn take(&self) -> Option<(u64, Vec<Sge>)> {
        use zerocopy::FromBytes;
        let (ring, memory) = (self.ring(), &self.machine.memory);
        let at = |offset: usize| ring.ring_offset as usize + offset;
        let (producer, taken) = (memory.load_acquire(at(0)), memory.load_acquire(at(4)));
        if producer == taken {
            return None;
        }
        let mut entry = vec![0; 1 << ring.stride_shift];
        memory.read(at((1 + (taken % ring.entries) as usize) << ring.stride_shift), &mut entry);
        memory.store_release(at(4), taken.wrapping_add(1));
        let (header, rest) = RecvHeader::read_from_prefix(&entry).unwrap();
        let sges = rest.chunks(Sge::SIZE).take(header.num_sge as usize);
        Some((header.wr_id, sges.map(|bytes| Sge::read_from_bytes(bytes).unwrap()).collect()))
    }

    pub fn destroy(self) {
        // SAFETY: the queue is used no more.
        assert_eq!(unsafe { self.machine.ops.destroy_srq.unwrap()(self.srq) }, 0);
    }
}

/// What the last verb left in errno.
pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Links requests to a list and returns the first.
fn link<T>(requests: &mut [T], set_next: impl Fn(&mut T, *mut T)) -> *mut T {
    let first = requests.as_mut_ptr();
    for index in 0..requests.len() {
        let last = index + 1 == requests.len();
        let next = if last { ptr::null_mut() } else { first.wrapping_add(index + 1) };
        // SAFETY: the index is within the slice.
        set_next(unsafe { &mut *first.add(index) }, next);
    }
    first
}

fn outcome<T>(errno: c_int, first: *mut T, bad: *mut T) -> Result<(), (c_int, usize)> {
    match errno {
        0 => Ok(()),
        // SAFETY: the refused request is one of the slice.
        errno => Err((errno, usize::try_from(unsafe { bad.offset_from(first) }).unwrap())),
    }
}

/// A send request of one entry or none.
pub fn send(opcode: c_int, wr_id: u64, sges: &mut [ibv_sge]) -> ibv_send_wr {
    ibv_send_wr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as c_int,
        opcode,
        send_flags: IBV_SEND_SIGNALED,
        imm_data: 0,
        wr: send_wr_operation { atomic: atomic_wr { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } },
        remote_srqn: 0,
        bind_mw: bind_mw_wr { mw: ptr::null_mut(), rkey: 0, bind_info: bind_info(ptr::null_mut(), 0, 0, 0) },
    }
}

pub fn bind_info(mr: *mut ibv_mr, addr: u64, length: u64, access: u32) -> ibv_mw_bind_info {
    ibv_mw_bind_info { mr, addr, length, mw_access_flags: access }
}

pub fn recv(wr_id: u64, sges: &mut [ibv_sge]) -> ibv_recv_wr {
    let num_sge = sges.len() as c_int;
    ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: sges.as_mut_ptr(), num_sge }
}

pub fn cap(wrs: u32, sges: u32, inline: u32) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: wrs,
        max_recv_wr: wrs,
        max_send_sge: sges,
        max_recv_sge: sges,
        max_inline_data: inline,
    }
}
