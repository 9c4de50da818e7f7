//! A small verbs-like API over a [`Device`]: contexts, regions, queues, queue pairs.
//!
//! It does on one side of the control queue what `vrdma.ko` does, and on the rings what the provider does, with
//! the provider's own ring code.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use masq_types::Gid;
use vrdma_abi::config::PAGE_BYTES;
use vrdma_abi::control::*;
use vrdma_abi::event::{AsyncEvent, CompEvent};
use vrdma_abi::ring::{self, AtomicSegment, CQE_BYTES, Cqe, Sge};
use vrdma_rings::{Arm, CqRing, Doorbells, PostError, RecvRing, SendRequest, SendRing};

use crate::control::ControlError;
use crate::device::{Device, Error};
use crate::memory::{GuestRam, Mapping};

type SharedRing = vrdma_rings::Mapping;

/// A guest whose driver is up: the device is initialised and GID 0 is set.
pub struct Guest {
    device: Mutex<Device>,
    control: Arc<crate::control::ControlQueue>,
    kicks: Vec<vmm_sys_util::eventfd::EventFd>,
    /// The guest's memory.
    pub ram: GuestRam,
    /// The config space at start.
    pub config: vrdma_abi::config::Config,
    status: Mapping,
    next_handle: AtomicU32,
    gid0: Mutex<Gid>,
}

impl Guest {
    /// Connects to a vhost-user socket, starts the device, and gives it `address` as GID 0.
    pub fn start(socket: &Path, ram_bytes: usize, address: IpAddr) -> Result<Arc<Self>, Error> {
        let guest = Self::attach(Device::connect(socket, ram_bytes)?)?;
        guest.add_gid(0, address.into()).map_err(|e| Error::Device(format!("ADD_GID: {e}")))?;
        Ok(guest)
    }

    /// Starts the driver on a connected device.
    pub fn attach(device: Device) -> Result<Arc<Self>, Error> {
        let ram = device.ram.clone();
        let status = ram.alloc(1);
        let control = device.control();
        let init = DeviceInit {
            abi_major: vrdma_abi::config::ABI_MAJOR,
            abi_minor: vrdma_abi::config::ABI_MINOR,
            reserved: 0,
            features: 0,
            status_page: status.gpa(0),
        };
        control.run(OP_DEVICE_INIT, &init).map_err(|e| Error::Device(format!("DEVICE_INIT: {e}")))?;
        let kicks = (0..device.config.num_db_slots)
            .map(|s| device.doorbell_kick(s).try_clone())
            .collect::<io::Result<_>>()?;
        Ok(Arc::new(Guest {
            control,
            kicks,
            ram,
            config: device.config,
            status,
            next_handle: AtomicU32::new(1),
            gid0: Mutex::new(Gid::ZERO),
            device: Mutex::new(device),
        }))
    }

    /// The control queue.
    pub fn control(&self) -> &crate::control::ControlQueue {
        &self.control
    }

    /// The device, for what this API does not cover.
    pub fn device(&self) -> std::sync::MutexGuard<'_, Device> {
        self.device.lock().unwrap()
    }

    /// Fills an entry of the GID table.
    pub fn add_gid(&self, index: u32, gid: Gid) -> Result<(), ControlError> {
        self.control.run(OP_ADD_GID, &AddGid { index, reserved: 0, gid: gid.0 })?;
        if index == 0 {
            *self.gid0.lock().unwrap() = gid;
        }
        Ok(())
    }

    /// An open of the device.
    pub fn open(self: &Arc<Self>) -> Result<Arc<Context>, ControlError> {
        let ctx = self.handle();
        let slots = self.config.num_db_slots as usize;
        let area = self.ram.alloc_scattered(slots).expect("pages can be mapped");
        let (doorbells, _tables) = self.control.page_table(&area.gpas(), 12);
        self.control.run(OP_CREATE_CONTEXT, &CreateContext { ctx, flags: 0, doorbells })?;
        Ok(Arc::new(Context {
            doorbells: Doorbells::new(shared(&area), shared(&self.status)),
            guest: self.clone(),
            ctx,
            _area: area,
            next_cookie: AtomicU32::new(1),
        }))
    }

    /// The next asynchronous event within `timeout`.
    pub fn next_async_event(&self, timeout: Duration) -> Option<AsyncEvent> {
        self.device().next_async_event(timeout)
    }

    /// The next completion event of a vector within `timeout`.
    pub fn next_comp_event(&self, vector: u16, timeout: Duration) -> Option<CompEvent> {
        self.device().next_comp_event(vector, timeout)
    }

    /// A new handle.
    pub fn handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    fn destroy(&self, opcode: u16, handle: u32) -> Result<(), ControlError> {
        self.control.run(opcode, &Destroy { handle, reserved: 0 })
    }
}

/// The mapping as shared memory for rings. The rings are dropped before the mapping that stands beside them.
#[allow(unsafe_code)]
fn shared(m: &Mapping) -> SharedRing {
    let start = std::ptr::NonNull::new(m.as_ptr()).expect("mappings are not null");
    // SAFETY: page-aligned, mapped for as long as `m`, which every user keeps beside the ring; no references to it are made.
    unsafe { SharedRing::new(start, m.len()) }
}

/// An open of the device.
pub struct Context {
    guest: Arc<Guest>,
    doorbells: Doorbells<SharedRing>,
    ctx: u32,
    _area: Mapping,
    next_cookie: AtomicU32,
}

impl Context {
    /// The guest.
    pub fn guest(&self) -> &Arc<Guest> {
        &self.guest
    }

    /// The context's handle.
    pub fn handle(&self) -> u32 {
        self.ctx
    }

    /// A protection domain.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, ControlError> {
        let pd = self.guest.handle();
        self.guest.control.run(OP_CREATE_PD, &CreatePd { pd, ctx: self.ctx })?;
        Ok(Arc::new(Pd { ctx: self.clone(), pd }))
    }

    /// A completion queue with at least `entries` entries.
    pub fn create_cq(self: &Arc<Self>, entries: u32, vector: u32) -> Result<Arc<Cq>, ControlError> {
        let cq = self.guest.handle();
        let entries = entries.max(1).next_power_of_two();
        let shift = CQE_BYTES.trailing_zeros() as u8;
        let memory = self.ring(entries, shift);
        let (ring, _tables) = self.guest.control.page_table(&memory.gpas(), 12);
        let command = CreateCq { cq, ctx: self.ctx, entries, vector, ring };
        let reply: CreateCqReply = self.guest.control.call(OP_CREATE_CQ, &command)?;
        assert_eq!(reply.ring_format, RING_FORMAT_1);
        let ring = CqRing::new(shared(&memory), entries).expect("the ring fits its pages");
        Ok(Arc::new(Cq { ring: Mutex::new(ring), ctx: self.clone(), cq, memory }))
    }

    /// Ends the context and everything in it.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.guest.destroy(OP_DESTROY_CONTEXT, self.ctx)
    }

    fn ring(&self, entries: u32, shift: u8) -> Mapping {
        let pages = ring::ring_pages(entries, shift) as usize;
        // A mapping for every page is dear; long rings are contiguous instead.
        if pages <= 64 {
            self.guest.ram.alloc_scattered(pages).expect("pages can be mapped")
        } else {
            self.guest.ram.alloc(pages)
        }
    }
}

/// A protection domain.
pub struct Pd {
    ctx: Arc<Context>,
    pd: u32,
}

impl Pd {
    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// The domain's handle.
    pub fn handle(&self) -> u32 {
        self.pd
    }

    /// Registers `len` bytes from `offset` of `memory`.
    pub fn reg_mr(
        self: &Arc<Self>,
        memory: &Arc<Mapping>,
        offset: usize,
        len: usize,
        access: u32,
    ) -> Result<Mr, ControlError> {
        let mr = self.ctx.guest.handle();
        let page = PAGE_BYTES as usize;
        let first = offset / page;
        let end = (offset + len).div_ceil(page).max(first + 1);
        let gpas = &memory.gpas()[first..end];
        let iova = memory.as_ptr() as u64 + offset as u64;
        let (pages, _tables) = self.ctx.guest.control.page_table(gpas, 12);
        let command = CreateMr { mr, pd: self.pd, access, flags: 0, iova, length: len as u64, pages };
        let reply: CreateMrReply = self.ctx.guest.control.call(OP_CREATE_MR, &command)?;
        Ok(Mr {
            pd: self.clone(),
            mr,
            addr: iova,
            len,
            offset,
            lkey: reply.lkey,
            rkey: reply.rkey,
            memory: memory.clone(),
        })
    }

    /// New memory of `len` bytes, registered with all rights.
    pub fn buffer(self: &Arc<Self>, len: usize) -> Result<Mr, ControlError> {
        let pages = len.div_ceil(PAGE_BYTES as usize).max(1);
        let ram = &self.ctx.guest.ram;
        let memory = if pages <= 64 {
            ram.alloc_scattered(pages).expect("pages can be mapped")
        } else {
            ram.alloc(pages)
        };
        self.reg_mr(&Arc::new(memory), 0, len, ACCESS_ALL)
    }

    /// A reliable connected queue pair in RESET.
    pub fn create_qp(
        self: &Arc<Self>,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        caps: &QpCaps,
    ) -> Result<Arc<Qp>, ControlError> {
        let guest = &self.ctx.guest;
        let qp = guest.handle();
        let cookie = self.ctx.next_cookie.fetch_add(1, Ordering::Relaxed);
        let sq_entries = caps.send_wr.max(1).next_power_of_two();
        let rq_entries = caps.recv_wr.max(1).next_power_of_two();
        let sq_shift = ring::send_stride_shift(caps.send_sge as u32, caps.inline_bytes as u32)
            .ok_or(ControlError::Errno(libc::EINVAL))?;
        let rq_shift =
            ring::recv_stride_shift(caps.recv_sge as u32).ok_or(ControlError::Errno(libc::EINVAL))?;
        let sq_memory = self.ctx.ring(sq_entries, sq_shift);
        let rq_memory = self.ctx.ring(rq_entries, rq_shift);
        let (sq, _sq_tables) = guest.control.page_table(&sq_memory.gpas(), 12);
        let (rq, _rq_tables) = guest.control.page_table(&rq_memory.gpas(), 12);
        let command = CreateQp {
            qp,
            pd: self.pd,
            send_cq: send_cq.cq,
            recv_cq: recv_cq.cq,
            srq: HANDLE_NONE,
            flags: if caps.signal_all { QP_SIGNAL_ALL } else { 0 },
            cookie,
            sq_entries,
            rq_entries,
            max_send_sge: caps.send_sge,
            max_recv_sge: caps.recv_sge,
            max_inline_bytes: caps.inline_bytes,
            sq_stride_shift: sq_shift,
            rq_stride_shift: rq_shift,
            qp_type: QP_TYPE_RC,
            sq,
            rq,
            ..CreateQp::ZERO
        };
        let reply: CreateQpReply = guest.control.call(OP_CREATE_QP, &command)?;
        Ok(Arc::new(Qp {
            sq: Mutex::new(SendRing::new(shared(&sq_memory), sq_entries, sq_shift).expect("fits")),
            rq: Mutex::new(RecvRing::new(shared(&rq_memory), rq_entries, rq_shift).expect("fits")),
            pd: self.clone(),
            qp,
            qpn: reply.qpn,
            slot: reply.db_slot,
            index: reply.db_index,
            cookie,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            sq_memory,
            _rq_memory: rq_memory,
        }))
    }

    /// Destroys the domain.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.ctx.guest.destroy(OP_DESTROY_PD, self.pd)
    }
}

/// Every right that a region can give.
pub const ACCESS_ALL: u32 =
    ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;

/// A registered memory region.
pub struct Mr {
    pd: Arc<Pd>,
    mr: u32,
    /// Address of the first byte in work requests.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// Key for scatter/gather entries.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
    offset: usize,
    memory: Arc<Mapping>,
}

impl Mr {
    /// A scatter/gather entry of `len` bytes from `offset`.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.addr.wrapping_add(offset as u64), length: len as u32, lkey: self.lkey }
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, data: &[u8]) {
        self.memory.write(self.offset + offset, data);
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        self.memory.read(self.offset + offset, len)
    }

    /// Fills a range with one byte.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        self.memory.fill(self.offset + offset, len, byte);
    }

    /// The memory behind the region.
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Destroys the region.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.pd.ctx.guest.destroy(OP_DESTROY_MR, self.mr)
    }
}

/// A completion queue.
pub struct Cq {
    ring: Mutex<CqRing<SharedRing>>,
    ctx: Arc<Context>,
    cq: u32,
    memory: Mapping,
}

impl Cq {
    /// The queue's handle, as it stands in completion events.
    pub fn handle(&self) -> u32 {
        self.cq
    }

    /// The next completion, if there is one. Its entry is given back at once.
    pub fn poll(&self) -> Option<Cqe> {
        let mut ring = self.ring.lock().unwrap();
        let cqe = ring.poll();
        ring.publish();
        cqe
    }

    /// The next completion within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Cqe> {
        let deadline = Instant::now() + timeout;
        let mut spins = 0u32;
        loop {
            if let Some(cqe) = self.poll() {
                return Some(cqe);
            }
            if Instant::now() > deadline {
                return None;
            }
            spins += 1;
            if spins > 200 {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Asks for an event.
    pub fn arm(&self, arm: Arm) {
        self.ring.lock().unwrap().arm(arm);
    }

    /// The ring's memory, for tests that spoil it.
    pub fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Destroys the queue.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.ctx.guest.destroy(OP_DESTROY_CQ, self.cq)
    }
}

/// What a queue pair can hold.
#[derive(Clone, Debug)]
pub struct QpCaps {
    /// Sends outstanding.
    pub send_wr: u32,
    /// Receives outstanding.
    pub recv_wr: u32,
    /// Scatter/gather entries of a send.
    pub send_sge: u16,
    /// Scatter/gather entries of a receive.
    pub recv_sge: u16,
    /// Bytes of inline data.
    pub inline_bytes: u16,
    /// Every send is signalled.
    pub signal_all: bool,
}

impl Default for QpCaps {
    fn default() -> Self {
        QpCaps { send_wr: 64, recv_wr: 64, send_sge: 4, recv_sge: 4, inline_bytes: 64, signal_all: false }
    }
}

/// How two queue pairs are connected.
#[derive(Clone, Debug)]
pub struct ConnectAttr {
    /// Path MTU in the verbs encoding.
    pub path_mtu: u8,
    /// First PSN to send.
    pub sq_psn: u32,
    /// First PSN to receive.
    pub rq_psn: u32,
    /// Reads and atomics outstanding.
    pub max_rd_atomic: u8,
    /// Reads and atomics served.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code.
    pub min_rnr_timer: u8,
    /// Local ACK timeout exponent.
    pub timeout: u8,
    /// Retries after a timeout or sequence error.
    pub retry_cnt: u8,
    /// Retries after RNR NAK.
    pub rnr_retry: u8,
    /// Rights of the peer.
    pub access: u32,
}

impl Default for ConnectAttr {
    fn default() -> Self {
        ConnectAttr {
            path_mtu: 3,
            sq_psn: 0x00ab_cdef,
            rq_psn: 0x00ab_cdef,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            access: ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC,
        }
    }
}

/// A queue pair.
pub struct Qp {
    sq: Mutex<SendRing<SharedRing>>,
    rq: Mutex<RecvRing<SharedRing>>,
    pd: Arc<Pd>,
    qp: u32,
    /// Its number.
    pub qpn: u32,
    slot: u16,
    index: u16,
    /// The number that stands in its completions.
    pub cookie: u32,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    sq_memory: Mapping,
    _rq_memory: Mapping,
}

impl Qp {
    /// The queue pair's handle, as it stands in asynchronous events.
    pub fn handle(&self) -> u32 {
        self.qp
    }

    /// The protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// MODIFY_QP.
    pub fn modify(&self, mask: u32, attr: QpAttr) -> Result<(), ControlError> {
        let command = ModifyQp { qp: self.qp, mask, attr };
        self.pd.ctx.guest.control.run(OP_MODIFY_QP, &command)?;
        if mask & QP_ATTR_STATE != 0 && attr.state == QP_STATE_RESET {
            self.sq.lock().unwrap().reset();
            self.rq.lock().unwrap().reset();
        }
        Ok(())
    }

    /// RESET → INIT.
    pub fn to_init(&self, a: &ConnectAttr) -> Result<(), ControlError> {
        let attr = QpAttr { state: QP_STATE_INIT, access: a.access, ..QpAttr::ZERO };
        self.modify(QP_ATTR_STATE | QP_ATTR_PKEY_INDEX | QP_ATTR_PORT | QP_ATTR_ACCESS_FLAGS, attr)
    }

    /// INIT → RTR, to the queue pair `qpn` at `address`.
    pub fn to_rtr(&self, a: &ConnectAttr, address: IpAddr, qpn: u32) -> Result<(), ControlError> {
        self.to_rtr_from(a, 0, self.own_gid(), address.into(), qpn)
    }

    /// INIT → RTR with any source.
    pub fn to_rtr_from(
        &self,
        a: &ConnectAttr,
        sgid_index: u8,
        sgid: Gid,
        dgid: Gid,
        qpn: u32,
    ) -> Result<(), ControlError> {
        let attr = QpAttr {
            state: QP_STATE_RTR,
            path_mtu: a.path_mtu,
            dest_qpn: qpn,
            rq_psn: a.rq_psn,
            sgid_index,
            sgid: sgid.0,
            dgid: dgid.0,
            hop_limit: 64,
            max_dest_rd_atomic: a.max_dest_rd_atomic,
            min_rnr_timer: a.min_rnr_timer,
            ..QpAttr::ZERO
        };
        let mask = QP_ATTR_STATE
            | QP_ATTR_AV
            | QP_ATTR_PATH_MTU
            | QP_ATTR_DEST_QPN
            | QP_ATTR_RQ_PSN
            | QP_ATTR_MAX_DEST_RD_ATOMIC
            | QP_ATTR_MIN_RNR_TIMER;
        self.modify(mask, attr)
    }

    /// RTR → RTS.
    pub fn to_rts(&self, a: &ConnectAttr) -> Result<(), ControlError> {
        let attr = QpAttr {
            state: QP_STATE_RTS,
            sq_psn: a.sq_psn,
            timeout: a.timeout,
            retry_cnt: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            max_rd_atomic: a.max_rd_atomic,
            ..QpAttr::ZERO
        };
        let mask = QP_ATTR_STATE
            | QP_ATTR_SQ_PSN
            | QP_ATTR_TIMEOUT
            | QP_ATTR_RETRY_CNT
            | QP_ATTR_RNR_RETRY
            | QP_ATTR_MAX_RD_ATOMIC;
        self.modify(mask, attr)
    }

    /// RESET → INIT → RTR → RTS.
    pub fn connect(&self, a: &ConnectAttr, address: IpAddr, qpn: u32) -> Result<(), ControlError> {
        self.to_init(a)?;
        self.to_rtr(a, address, qpn)?;
        self.to_rts(a)
    }

    /// To any state that needs no attribute.
    pub fn to_state(&self, state: u8) -> Result<(), ControlError> {
        self.modify(QP_ATTR_STATE, QpAttr { state, ..QpAttr::ZERO })
    }

    /// QUERY_QP.
    pub fn query(&self) -> Result<QueryQpReply, ControlError> {
        self.pd.ctx.guest.control.call(OP_QUERY_QP, &Destroy { handle: self.qp, reserved: 0 })
    }

    /// Posts a send.
    pub fn post_send(&self, request: &SendRequest, sges: &[Sge]) -> Result<(), PostError> {
        let mut sq = self.sq.lock().unwrap();
        sq.post(request, sges)?;
        self.publish(&mut sq);
        Ok(())
    }

    /// Posts several sends with one doorbell.
    pub fn post_sends(&self, requests: &[(SendRequest, Vec<Sge>)]) -> Result<(), PostError> {
        let mut sq = self.sq.lock().unwrap();
        for (request, sges) in requests {
            sq.post(request, sges)?;
        }
        self.publish(&mut sq);
        Ok(())
    }

    /// Posts a send of inline data.
    pub fn post_inline(&self, request: &SendRequest, data: &[u8]) -> Result<(), PostError> {
        let mut sq = self.sq.lock().unwrap();
        sq.post_inline(request, [data])?;
        self.publish(&mut sq);
        Ok(())
    }

    /// Posts a receive.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut rq = self.rq.lock().unwrap();
        rq.post(wr_id, sges)?;
        rq.publish();
        Ok(())
    }

    /// Frees what a completion of this queue pair tells to be free.
    pub fn retire(&self, cqe: &Cqe) {
        if cqe.flags & ring::CQE_RECV != 0 {
            self.rq.lock().unwrap().complete(cqe.consumer);
        } else {
            self.sq.lock().unwrap().complete(cqe.consumer);
        }
    }

    /// The next completion of sends, which must belong to this queue pair.
    ///
    /// # Panics
    /// When none comes within ten seconds.
    pub fn send_completion(&self) -> Cqe {
        self.completion(&self.send_cq, "send")
    }

    /// The next completion of receives, likewise.
    ///
    /// # Panics
    /// When none comes within ten seconds.
    pub fn recv_completion(&self) -> Cqe {
        self.completion(&self.recv_cq, "receive")
    }

    /// Tells the RNIC of new sends, whether there are or not; for tests that write rings themselves.
    pub fn ring_doorbell(&self) {
        if self.pd.ctx.doorbells.mark(self.slot, self.index) {
            self.pd.ctx.guest.kicks[self.slot as usize].write(1).expect("an eventfd can be written");
        }
    }

    /// The send queue's memory, for tests that spoil it.
    pub fn sq_memory(&self) -> &Mapping {
        &self.sq_memory
    }

    /// Destroys the queue pair.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.pd.ctx.guest.destroy(OP_DESTROY_QP, self.qp)
    }

    fn own_gid(&self) -> Gid {
        *self.pd.ctx.guest.gid0.lock().unwrap()
    }

    fn publish(&self, sq: &mut SendRing<SharedRing>) {
        if sq.publish() {
            self.ring_doorbell();
        }
    }

    fn completion(&self, cq: &Cq, what: &str) -> Cqe {
        let cqe = cq
            .wait(Duration::from_secs(10))
            .unwrap_or_else(|| panic!("no {what} completion of QP {:#x} in 10 s", self.qpn));
        assert_eq!(cqe.cookie, self.cookie, "a completion of another queue pair: {cqe:?}");
        assert_eq!(cqe.qpn, self.qpn);
        self.retire(&cqe);
        cqe
    }
}

/// Work requests in short.
pub mod wr {
    use super::*;

    /// A signalled request of `opcode`.
    pub fn request(opcode: u8, wr_id: u64) -> SendRequest {
        SendRequest { opcode, flags: ring::SEND_SIGNALED, wr_id, ..Default::default() }
    }

    /// A signalled request to a range of the peer's memory.
    pub fn rdma(opcode: u8, wr_id: u64, remote: &Mr, offset: usize) -> SendRequest {
        SendRequest {
            remote_addr: remote.addr.wrapping_add(offset as u64),
            rkey: remote.rkey,
            ..request(opcode, wr_id)
        }
    }

    /// A signalled atomic.
    pub fn atomic(
        opcode: u8,
        wr_id: u64,
        remote: &Mr,
        offset: usize,
        compare_add: u64,
        swap: u64,
    ) -> SendRequest {
        SendRequest {
            atomic: Some(AtomicSegment { compare_add, swap }),
            ..rdma(opcode, wr_id, remote, offset)
        }
    }
}
