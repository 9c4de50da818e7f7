//! What libibverbs and the kernel module do for a provider, in a few lines: a device is a memfd that holds the
//! status page, the doorbell area, the doorbell registers and then all rings, one after the other.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use vrdma_abi::control::RING_FORMAT_1;
use vrdma_abi::ring::{CQE_BYTES, recv_stride_shift, ring_pages, send_stride_shift};
use vrdma_abi::uapi::{UserContextReply, UserCqReply, UserQpReply, UserQpRequest, UserSrqReply};

use crate::abi::*;
use crate::library::{Library, set_library};
use crate::verbs::*;

pub const PAGE: u64 = 4096;
pub const SLOTS: u64 = 4;
pub const FIRST_DOORBELL_QUEUE: u32 = 6;
pub const STATUS: u64 = 0;
pub const DOORBELLS: u64 = PAGE;
pub const KICKS: u64 = DOORBELLS + SLOTS * PAGE;
const RINGS: u64 = KICKS + SLOTS * PAGE;
pub const DEVICE_BYTES: u64 = 4 << 20;

type MoveEntries = Box<dyn FnMut(UserCqReply, UserCqReply) + Send>;

/// The kernel's side of one open device.
#[derive(Default)]
pub struct Kernel {
    next_ring: u64,
    next_handle: u32,
    /// Objects that live, by handle: what was answered when they were made.
    pub cqs: BTreeMap<u32, UserCqReply>,
    pub qps: BTreeMap<u32, (UserQpReply, UserQpRequest)>,
    pub srqs: BTreeMap<u32, UserSrqReply>,
    pub others: usize,
    /// The next command fails so.
    pub fail: Option<c_int>,
    /// The next rings have this format.
    pub ring_format: u32,
    /// Paths of queue pairs, and features; 0 as from modules that know of none.
    pub paths: u32,
    pub features: u64,
    /// Queue pairs with chunk rings are refused so.
    pub refuse_chunks: Option<c_int>,
    /// Send queues have no room for WAITs.
    pub is_tight: bool,
    /// The library has `verbs_qp.comp_mask` where v44 had it.
    pub is_v44: bool,
    /// What the RNIC does with the completions of a queue that gets another ring.
    pub move_entries: Option<MoveEntries>,
    /// What the last command that changes an object was asked.
    pub asked: Vec<u64>,
    pub ops: verbs_context_ops,
}

/// All open devices, by descriptor. The descriptor of an open device is not reused.
static KERNELS: Mutex<BTreeMap<c_int, Kernel>> = Mutex::new(BTreeMap::new());

/// A device to open.
pub fn plug() -> OwnedFd {
    set_library(LIBRARY);
    // SAFETY: plain system calls with valid arguments; the descriptor is new.
    let fd = unsafe {
        let fd = libc::memfd_create(c"vrdma".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        assert_eq!(libc::ftruncate(fd, DEVICE_BYTES as libc::off_t), 0);
        OwnedFd::from_raw_fd(fd)
    };
    let kernel = Kernel { next_ring: RINGS, ring_format: RING_FORMAT_1, ..Kernel::default() };
    lock().insert(fd.as_raw_fd(), kernel);
    fd
}

pub fn unplug(fd: c_int) {
    lock().remove(&fd);
}

fn lock() -> MutexGuard<'static, BTreeMap<c_int, Kernel>> {
    KERNELS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Looks at the kernel behind a descriptor, or changes it.
pub fn with<T>(fd: c_int, look: impl FnOnce(&mut Kernel) -> T) -> T {
    look(lock().get_mut(&fd).expect("the device is plugged"))
}

/// Runs a command: fails if the test wants that.
unsafe fn command(context: *mut ibv_context, run: impl FnOnce(&mut Kernel)) -> c_int {
    // SAFETY: verbs pass an open context.
    let fd = unsafe { (*context).cmd_fd };
    with(fd, |kernel| match kernel.fail.take() {
        Some(errno) => errno,
        None => {
            run(kernel);
            0
        }
    })
}

impl Kernel {
    fn handle(&mut self) -> u32 {
        self.next_handle += 1;
        self.next_handle
    }

    fn ring(&mut self, entries: u32, stride_shift: u8) -> (u64, u32) {
        let bytes = ring_pages(entries, stride_shift) * PAGE;
        let offset = self.next_ring;
        self.next_ring += bytes;
        assert!(self.next_ring <= DEVICE_BYTES, "the test makes too many rings");
        (offset, bytes as u32)
    }
}

const LIBRARY: Library = Library {
    _verbs_init_and_alloc_context: init_and_alloc_context,
    verbs_set_ops: set_ops,
    verbs_uninit_context: uninit_context,
    ibv_cmd_get_context: get_context,
    ibv_cmd_query_device_any: query_device_any,
    ibv_cmd_query_port: query_port,
    ibv_cmd_alloc_pd: alloc_pd,
    ibv_cmd_dealloc_pd: dealloc_pd,
    ibv_cmd_reg_mr: reg_mr,
    ibv_cmd_rereg_mr: rereg_mr,
    ibv_cmd_dereg_mr: dereg_mr,
    ibv_cmd_alloc_mw: alloc_mw,
    ibv_cmd_dealloc_mw: dealloc_mw,
    ibv_cmd_create_cq: create_cq,
    ibv_cmd_destroy_cq: destroy_cq,
    ibv_cmd_resize_cq: resize_cq,
    ibv_cmd_create_srq_ex: create_srq_ex,
    ibv_cmd_modify_srq: modify_srq,
    ibv_cmd_query_srq: query_srq,
    ibv_cmd_destroy_srq: destroy_srq,
    ibv_cmd_open_xrcd: open_xrcd,
    ibv_cmd_close_xrcd: close_xrcd,
    ibv_cmd_create_qp_ex: create_qp_ex,
    ibv_cmd_open_qp: open_qp,
    ibv_cmd_modify_qp: modify_qp,
    ibv_cmd_query_qp: query_qp,
    ibv_cmd_destroy_qp: destroy_qp,
};

unsafe extern "C" fn init_and_alloc_context(
    _device: *mut ibv_device,
    fd: c_int,
    size: usize,
    offset: *mut verbs_context,
    driver_id: u32,
) -> *mut c_void {
    assert_eq!(driver_id, 0);
    // SAFETY: the context is freed by the provider, with free.
    unsafe {
        let context = libc::calloc(1, size);
        let verbs = context.byte_add(offset.addr()).cast::<verbs_context>();
        (*verbs).context.cmd_fd = fd;
        context
    }
}

unsafe extern "C" fn set_ops(context: *mut verbs_context, ops: *const verbs_context_ops) {
    // SAFETY: the provider passes its context and its operations.
    unsafe { with((*context).context.cmd_fd, |kernel| kernel.ops = ops.read()) }
}

unsafe extern "C" fn uninit_context(context: *mut verbs_context) {
    // SAFETY: the provider passes its context.
    unplug(unsafe { (*context).context.cmd_fd });
}

unsafe extern "C" fn get_context(
    context: *mut verbs_context,
    _command: *mut ibv_get_context,
    command_size: usize,
    #[cfg(feature = "pabi65")] _descriptors: *mut c_void,
    reply: *mut ib_uverbs_get_context_resp,
    reply_size: usize,
) -> c_int {
    type Reply = WithDriver<ib_uverbs_get_context_resp, UserContextReply>;
    assert_eq!((command_size, reply_size), (16, 8 + UserContextReply::SIZE));
    // SAFETY: the provider passes its context and a reply of this size.
    unsafe {
        command(&raw mut (*context).context, |kernel| {
            (*reply.cast::<Reply>()).driver = UserContextReply {
                status_offset: STATUS,
                doorbell_offset: DOORBELLS,
                kick_offset: KICKS,
                num_db_slots: SLOTS as u32,
                kick_value: FIRST_DOORBELL_QUEUE,
                max_inline_bytes: 256,
                max_send_sge: 30,
                features: kernel.features,
                max_msg_bytes: 1 << 31,
                paths: kernel.paths,
            };
        })
    }
}

unsafe extern "C" fn query_device_any(
    context: *mut ibv_context,
    _input: *const c_void,
    _attr: *mut ibv_device_attr_ex,
    _attr_size: usize,
    response: *mut ib_uverbs_ex_query_device_resp,
    response_size: *mut usize,
) -> c_int {
    // SAFETY: the provider passes its context and a response.
    unsafe {
        assert_eq!(*response_size, 304);
        command(context, |_| (*response)[0] = 0x0001_0002_0003)
    }
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    _attr: *mut ibv_port_attr,
    _command: *mut ibv_query_port,
    size: usize,
) -> c_int {
    assert_eq!((port, size), (1, 24));
    // SAFETY: the provider passes its context.
    unsafe { command(context, |_| ()) }
}

unsafe extern "C" fn alloc_pd(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    _command: *mut ibv_alloc_pd,
    size: usize,
    _response: *mut ib_uverbs_alloc_pd_resp,
    response_size: usize,
) -> c_int {
    assert_eq!((size, response_size), (16, 4));
    // SAFETY: the provider passes its context and a domain to fill in.
    unsafe {
        command(context, |kernel| {
            kernel.others += 1;
            (*pd).context = context;
            (*pd).handle = kernel.handle();
        })
    }
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the provider passes its domain.
    unsafe { command((*pd).context, |kernel| kernel.others -= 1) }
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _iova: u64,
    access: c_int,
    mr: *mut verbs_mr,
    _command: *mut ibv_reg_mr,
    size: usize,
    _response: *mut ib_uverbs_reg_mr_resp,
    response_size: usize,
) -> c_int {
    assert_eq!((size, response_size), (48, 12));
    // SAFETY: the provider passes its domain and a region to fill in.
    unsafe {
        command((*pd).context, |kernel| {
            kernel.others += 1;
            let handle = kernel.handle();
            (*mr).access = access;
            let mr = &mut (*mr).mr;
            (mr.context, mr.addr, mr.length, mr.handle) = ((*pd).context, addr, length, handle);
            (mr.lkey, mr.rkey) = (handle << 8, handle << 8 | 1);
        })
    }
}

unsafe extern "C" fn rereg_mr(
    mr: *mut verbs_mr,
    flags: u32,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
    pd: *mut ibv_pd,
    _command: *mut ibv_rereg_mr,
    size: usize,
    _response: *mut ib_uverbs_rereg_mr_resp,
    response_size: usize,
) -> c_int {
    assert_eq!((size, response_size), (56, 8));
    // SAFETY: the provider passes its region.
    unsafe {
        command((*mr).mr.context, |kernel| {
            kernel.asked =
                vec![flags.into(), addr.addr() as u64, length as u64, iova, access as u64, pd.addr() as u64];
        })
    }
}

unsafe extern "C" fn alloc_mw(
    pd: *mut ibv_pd,
    mw_type: c_int,
    mw: *mut ibv_mw,
    _command: *mut ibv_alloc_mw,
    size: usize,
    _response: *mut ib_uverbs_alloc_mw_resp,
    response_size: usize,
) -> c_int {
    assert_eq!((size, response_size), (24, 8));
    // SAFETY: the provider passes its domain and a window to fill in.
    unsafe {
        command((*pd).context, |kernel| {
            kernel.others += 1;
            let handle = kernel.handle();
            ((*mw).context, (*mw).pd, (*mw).mw_type) = ((*pd).context, pd, mw_type);
            ((*mw).handle, (*mw).rkey) = (handle, handle << 8 | 0xff);
        })
    }
}

unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the provider passes its window.
    unsafe { command((*mw).context, |kernel| kernel.others -= 1) }
}

unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    // SAFETY: the provider passes its region.
    unsafe { command((*mr).mr.context, |kernel| kernel.others -= 1) }
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    _channel: *mut ibv_comp_channel,
    _vector: c_int,
    cq: *mut ibv_cq,
    _command: *mut ibv_create_cq,
    size: usize,
    reply: *mut ib_uverbs_create_cq_resp,
    reply_size: usize,
) -> c_int {
    type Reply = WithDriver<ib_uverbs_create_cq_resp, UserCqReply>;
    assert_eq!((size, reply_size), (40, 8 + UserCqReply::SIZE));
    // SAFETY: the provider passes its context, a queue to fill in and a reply of this size.
    unsafe {
        command(context, |kernel| {
            let entries = (cqe as u32).next_power_of_two();
            let (ring_offset, ring_bytes) = kernel.ring(entries, CQE_BYTES.trailing_zeros() as u8);
            let ring_format = kernel.ring_format;
            let answer = UserCqReply { ring_offset, ring_bytes, entries, ring_format, reserved: 0 };
            let handle = kernel.handle();
            kernel.cqs.insert(handle, answer);
            (*cq).context = context;
            ((*cq).handle, (*cq).cqe) = (handle, entries as c_int);
            (*reply.cast::<Reply>()).driver = answer;
        })
    }
}

unsafe extern "C" fn resize_cq(
    cq: *mut ibv_cq,
    cqe: c_int,
    _command: *mut ibv_resize_cq,
    size: usize,
    reply: *mut ib_uverbs_resize_cq_resp,
    reply_size: usize,
) -> c_int {
    type Reply = WithDriver<ib_uverbs_resize_cq_resp, UserCqReply>;
    assert_eq!((size, reply_size), (24, 8 + UserCqReply::SIZE));
    // SAFETY: the provider passes its queue and a reply of this size.
    unsafe {
        command((*cq).context, |kernel| {
            let entries = (cqe as u32).next_power_of_two();
            let (ring_offset, ring_bytes) = kernel.ring(entries, CQE_BYTES.trailing_zeros() as u8);
            let ring_format = kernel.ring_format;
            let answer = UserCqReply { ring_offset, ring_bytes, entries, ring_format, reserved: 0 };
            let old = kernel.cqs.insert((*cq).handle, answer).expect("the queue lives");
            if let Some(mut move_entries) = kernel.move_entries.take() {
                move_entries(old, answer);
            }
            (*cq).cqe = entries as c_int;
            (*reply.cast::<Reply>()).driver = answer;
        })
    }
}

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the provider passes its queue.
    unsafe {
        command((*cq).context, |kernel| {
            kernel.cqs.remove(&(*cq).handle).expect("the queue lives");
        })
    }
}

unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    srq: *mut verbs_srq,
    init: *mut ibv_srq_init_attr_ex,
    _command: *mut ibv_create_xsrq,
    size: usize,
    reply: *mut ib_uverbs_create_srq_resp,
    reply_size: usize,
) -> c_int {
    type Reply = WithDriver<ib_uverbs_create_srq_resp, UserSrqReply>;
    assert_eq!((size, reply_size), (64, 16 + UserSrqReply::SIZE));
    // SAFETY: the provider passes its context, a queue to fill in, attributes and a reply of this size.
    unsafe {
        command(context, |kernel| {
            let attr = &mut (*init).attr;
            attr.max_wr = attr.max_wr.next_power_of_two();
            let stride_shift = recv_stride_shift(attr.max_sge).unwrap();
            let (ring_offset, ring_bytes) = kernel.ring(attr.max_wr, stride_shift);
            let (entries, ring_format) = (attr.max_wr, kernel.ring_format);
            let reserved = [0; 3];
            let answer =
                UserSrqReply { ring_offset, ring_bytes, entries, ring_format, stride_shift, reserved };
            let handle = kernel.handle();
            kernel.srqs.insert(handle, answer);
            ((*srq).srq.context, (*srq).srq.pd, (*srq).srq.handle) = (context, (*init).pd, handle);
            if (*init).comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 {
                (*srq).srq_type = (*init).srq_type;
                (*srq).srq_num = 0x500 + handle;
            }
            (*reply.cast::<Reply>()).driver = answer;
        })
    }
}

unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
    _command: *mut ibv_modify_srq,
    size: usize,
) -> c_int {
    assert_eq!(size, 24);
    // SAFETY: the provider passes its queue and attributes.
    unsafe {
        command((*srq).context, |kernel| {
            kernel.asked = vec![mask as u64, (*attr).srq_limit.into()];
        })
    }
}

unsafe extern "C" fn query_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    _command: *mut ibv_query_srq,
    size: usize,
) -> c_int {
    assert_eq!(size, 24);
    // SAFETY: the provider passes its queue and attributes to fill in.
    unsafe { command((*srq).context, |_| (*attr).srq_limit = 3) }
}

unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the provider passes its queue.
    unsafe {
        command((*srq).context, |kernel| {
            kernel.srqs.remove(&(*srq).handle).expect("the queue lives");
        })
    }
}

unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    xrcd: *mut verbs_xrcd,
    xrcd_size: c_int,
    _attr: *mut ibv_xrcd_init_attr,
    _command: *mut ibv_open_xrcd,
    size: usize,
    _response: *mut ib_uverbs_open_xrcd_resp,
    response_size: usize,
) -> c_int {
    assert_eq!((xrcd_size, size, response_size), (16, 24, 4));
    // SAFETY: the provider passes its context and a domain to fill in.
    unsafe {
        command(context, |kernel| {
            kernel.others += 1;
            ((*xrcd).xrcd.context, (*xrcd).handle) = (context, kernel.handle());
        })
    }
}

unsafe extern "C" fn close_xrcd(xrcd: *mut verbs_xrcd) -> c_int {
    // SAFETY: the provider passes its domain.
    unsafe { command((*xrcd).xrcd.context, |kernel| kernel.others -= 1) }
}

unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    qp: *mut verbs_qp,
    init: *mut ibv_qp_init_attr_ex,
    request: *mut ibv_create_qp,
    size: usize,
    reply: *mut ib_uverbs_create_qp_resp,
    reply_size: usize,
) -> c_int {
    type Request = WithDriver<ibv_create_qp, UserQpRequest>;
    type Reply = WithDriver<ib_uverbs_create_qp_resp, UserQpReply>;
    assert_eq!((size, reply_size), (64 + UserQpRequest::SIZE, 32 + UserQpReply::SIZE));
    // SAFETY: the provider passes its context, a QP to fill in, attributes, and request and reply of these sizes.
    unsafe {
        assert_eq!((*init).comp_mask & !(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD), 0);
        let request = (*request.cast::<Request>()).driver;
        let refused = with((*context).cmd_fd, |kernel| kernel.refuse_chunks);
        if let (Some(errno), 1..) = (refused, request.chunk_entries) {
            return errno;
        }
        command(context, |kernel| {
            let handle = kernel.handle();
            let answer = kernel.answer_qp(handle, &mut *init, request.chunk_entries);
            kernel.qps.insert(handle, (answer, request));
            let base = &mut (*qp).qp.qp_base;
            (base.context, base.srq, base.qp_type) = (context, (*init).srq, (*init).qp_type);
            (base.send_cq, base.recv_cq) = ((*init).send_cq, (*init).recv_cq);
            (base.handle, base.qp_num) = (handle, 0x1000 + handle);
            (*qp).tail[if kernel.is_v44 { 0 } else { 2 }] = 0;
            (*reply.cast::<Reply>()).driver = answer;
        })
    }
}

impl Kernel {
    fn answer_qp(&mut self, handle: u32, init: &mut ibv_qp_init_attr_ex, chunk_entries: u32) -> UserQpReply {
        if init.qp_type == IBV_QPT_XRC_RECV {
            return UserQpReply::ZERO;
        }
        let cap = &mut init.cap;
        cap.max_send_wr = cap.max_send_wr.next_power_of_two();
        let sq_stride_shift =
            send_stride_shift(init.qp_type as u8, cap.max_send_sge, cap.max_inline_data).unwrap();
        let sq_entries = cap.max_send_wr << u32::from(chunk_entries != 0 && !self.is_tight);
        let (sq_offset, sq_bytes) = self.ring(sq_entries, sq_stride_shift);
        let mut answer = UserQpReply {
            sq_offset,
            sq_bytes,
            sq_entries,
            sq_stride_shift,
            db_slot: (u64::from(handle) % SLOTS) as u16,
            db_index: handle as u16,
            max_inline_bytes: cap.max_inline_data as u16,
            ring_format: self.ring_format,
            ..UserQpReply::ZERO
        };
        if chunk_entries != 0 {
            answer.chunk_entries = chunk_entries;
            (answer.chunks_offset, answer.chunks_bytes) = self.ring(chunk_entries, sq_stride_shift);
        }
        if !init.srq.is_null() || init.qp_type == IBV_QPT_XRC_SEND {
            cap.max_recv_wr = 0;
            return answer;
        }
        cap.max_recv_wr = cap.max_recv_wr.next_power_of_two();
        answer.rq_stride_shift = recv_stride_shift(cap.max_recv_sge).unwrap();
        (answer.rq_offset, answer.rq_bytes) = self.ring(cap.max_recv_wr, answer.rq_stride_shift);
        answer.rq_entries = cap.max_recv_wr;
        answer
    }
}

unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    qp: *mut verbs_qp,
    qp_size: c_int,
    attr: *mut ibv_qp_open_attr,
    _command: *mut ibv_open_qp,
    size: usize,
    _response: *mut ib_uverbs_create_qp_resp,
    response_size: usize,
) -> c_int {
    assert_eq!((qp_size, size, response_size), (376, 40, 32));
    // SAFETY: the provider passes its context, a QP to fill in and attributes.
    unsafe {
        command(context, |kernel| {
            let handle = kernel.handle();
            kernel.qps.insert(handle, (UserQpReply::ZERO, UserQpRequest::ZERO));
            let base = &mut (*qp).qp.qp_base;
            (base.context, base.handle, base.qp_num) = (context, handle, (*attr).qp_num);
        })
    }
}

unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    _attr: *mut ibv_qp_attr,
    _mask: c_int,
    _command: *mut ibv_modify_qp,
    size: usize,
) -> c_int {
    assert_eq!(size, 120);
    // SAFETY: the provider passes its QP.
    unsafe { command((*qp).context, |_| ()) }
}

unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    _init: *mut ibv_qp_init_attr,
    _command: *mut ibv_query_qp,
    size: usize,
) -> c_int {
    assert_eq!(size, 24);
    // SAFETY: the provider passes its QP and attributes to fill in.
    unsafe { command((*qp).context, |_| (*attr).qp_state = IBV_QPS_ERR) }
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the provider passes its QP.
    unsafe {
        command((*qp).context, |kernel| {
            kernel.qps.remove(&(*qp).handle).expect("the QP lives");
        })
    }
}
