//! The queue pairs of a connection on a verbs device, one for each path: all with one protection domain and one completion queue.
#![allow(unsafe_code)] // Objects of libibverbs are pointers.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use mp_core::endpoint::control::{CONTROL_BYTES, Control, PathParams};
use mp_core::endpoint::{Op, Status, Work};
use mp_core::split::Place;

use crate::fabric::{Event, Fabric};
use crate::hello::PathAddress;
use crate::sys::*;

/// Control messages that a queue pair can hold before it is polled; more wait at the peer (RNR NAK).
const RECEIVES: u32 = 64;
/// A place for a control message: a cache line, so that no two share one.
const SLOT_BYTES: usize = 64;
/// `wr_id` of receives; those of sends are tokens, which are smaller.
const IS_RECEIVE: u64 = 1 << 63;
/// How long a queue pair in ERR may take to give its receives back.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// What holds for all queue pairs of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The port.
    pub port: u8,
    /// Work requests that each queue pair takes.
    pub depth: u32,
    /// Local ACK timeout: 4.096 µs times 2 to the power of this, 1 to 31 (IBTA Vol 1 §9.7.6.1.3).
    pub timeout: u8,
    /// Retries after the first, 0 to 7.
    pub retry_cnt: u8,
    /// Bytes of memory for probing flows; 0 for none.
    pub probe_bytes: u32,
}

/// What both ends have agreed upon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreed {
    /// A value of enum ibv_mtu.
    pub mtu: u8,
    /// READs that the peer answers at a time.
    pub peer_reads: u8,
    /// Where our probing flows go.
    pub peer_probe: Place,
}

#[derive(Debug)]
struct Path {
    qp: Option<NonNull<ibv_qp>>,
    gid_index: u8,
    gid: [u8; 16],
    peer: PathAddress,
    psn: u32,
    /// Receives that have not come back.
    receives: u32,
    closes: bool,
}

/// A memory region of this library's own.
#[derive(Debug)]
struct Memory {
    library: &'static Library,
    mr: NonNull<ibv_mr>,
    start: *mut u8,
    layout: std::alloc::Layout,
}

impl Memory {
    fn new(library: &'static Library, pd: NonNull<ibv_pd>, bytes: usize, access: u32) -> io::Result<Self> {
        let layout = std::alloc::Layout::from_size_align(bytes.max(1), 4096).map_err(io::Error::other)?;
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        if start.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: the protection domain lives, and the memory is ours until it is deregistered.
        let mr =
            made(unsafe { (library.ibv_reg_mr)(pd.as_ptr(), start.cast(), bytes.max(1), access as c_int) });
        match mr {
            Ok(mr) => Ok(Self { library, mr, start, layout }),
            Err(error) => {
                // SAFETY: it was allocated with this layout just now.
                unsafe { std::alloc::dealloc(start, layout) };
                Err(error)
            }
        }
    }

    fn place(&self, offset: usize) -> Place {
        // SAFETY: the region lives as long as this object.
        Place { key: unsafe { self.mr.as_ref() }.lkey, addr: self.start as u64 + offset as u64 }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: all queue pairs that knew the region are destroyed before it. If it cannot be deregistered the memory stays.
        unsafe {
            if (self.library.ibv_dereg_mr)(self.mr.as_ptr()) == 0 {
                std::alloc::dealloc(self.start, self.layout);
            }
        }
    }
}

/// The queue pairs of a connection. See [`Fabric`].
#[derive(Debug)]
pub struct QueuePairs {
    library: &'static Library,
    pd: NonNull<ibv_pd>,
    context: NonNull<ibv_context>,
    channel: NonNull<ibv_comp_channel>,
    cq: NonNull<ibv_cq>,
    settings: Settings,
    agreed: Agreed,
    is_ethernet: bool,
    lid: u16,
    mtu: u8,
    reads: (u8, u8),
    paths: Vec<Path>,
    /// Places for control messages: those to receive, `RECEIVES` for each path, and then those to send, `depth` for each.
    control: Memory,
    free: Vec<usize>,
    sent: HashMap<u64, (usize, usize)>,
    probe: Memory,
    events: VecDeque<Event>,
}

// SAFETY: verbs may be called by any thread (ibv_open_device(3)), and nothing here belongs to one.
unsafe impl Send for QueuePairs {}

impl QueuePairs {
    /// Queue pairs for paths from the GIDs of these indexes, not yet connected.
    ///
    /// # Safety
    ///
    /// `pd` must be a protection domain of libibverbs that lives longer than this object.
    pub unsafe fn new(pd: NonNull<ibv_pd>, settings: Settings, gid_indexes: &[u8]) -> io::Result<Self> {
        let library = library()?;
        // SAFETY: the caller says that it lives.
        let context = made(unsafe { pd.as_ref() }.context)?;
        let (mut port, mut device) = (_compat_ibv_port_attr::default(), zeroed_device_attr());
        // SAFETY: the context lives, and the structures are as the functions fill them in.
        unsafe {
            check((library.ibv_query_port)(context.as_ptr(), settings.port, &mut port))?;
            check((library.ibv_query_device)(context.as_ptr(), &mut device))?;
        }
        let mut paths = Vec::new();
        for gid_index in gid_indexes {
            let mut gid = ibv_gid::default();
            // SAFETY: as above.
            check(unsafe {
                (library.ibv_query_gid)(context.as_ptr(), settings.port, c_int::from(*gid_index), &mut gid)
            })?;
            paths.push(Path {
                qp: None,
                gid_index: *gid_index,
                gid: gid.raw,
                peer: PathAddress::default(),
                psn: 0,
                receives: 0,
                closes: false,
            });
        }

        let slots = paths.len() * (RECEIVES + settings.depth) as usize;
        let control = Memory::new(library, pd, slots * SLOT_BYTES, IBV_ACCESS_LOCAL_WRITE)?;
        let probe = Memory::new(
            library,
            pd,
            settings.probe_bytes as usize,
            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        )?;
        // SAFETY: the context lives.
        let channel = made(unsafe { (library.ibv_create_comp_channel)(context.as_ptr()) })?;
        let entries = c_int::try_from(slots + paths.len()).map_err(io::Error::other)?;
        // SAFETY: as above, and so does the channel.
        let cq = made(unsafe {
            (library.ibv_create_cq)(context.as_ptr(), entries, ptr::null_mut(), channel.as_ptr(), 0)
        });
        let cq = cq.inspect_err(|_| {
            // SAFETY: nobody knows the channel.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
        })?;
        let at_most = |value: c_int| u8::try_from(value.clamp(1, 16)).unwrap_or(1);
        let mut queue_pairs = Self {
            library,
            pd,
            context,
            channel,
            cq,
            settings,
            agreed: Agreed::default(),
            is_ethernet: port.link_layer == IBV_LINK_LAYER_ETHERNET,
            lid: port.lid,
            mtu: u8::try_from(port.active_mtu).unwrap_or(1).clamp(1, 5),
            reads: (at_most(device.max_qp_init_rd_atom), at_most(device.max_qp_rd_atom)),
            free: (paths.len() * RECEIVES as usize..slots).collect(),
            paths,
            control,
            sent: HashMap::new(),
            probe,
            events: VecDeque::new(),
        };
        for path in 0..queue_pairs.paths.len() {
            queue_pairs.open(path)?;
        }
        Ok(queue_pairs)
    }

    /// A path's queue pair, as the peer must know it.
    pub(crate) fn address(&self, path: usize) -> PathAddress {
        let Path { gid, qp, psn, .. } = &self.paths[path];
        // SAFETY: the queue pair lives until it is closed.
        let qpn = qp.map_or(0, |qp| unsafe { qp.as_ref() }.qp_num);
        PathAddress { gid: *gid, lid: self.lid, params: PathParams { qpn, psn: *psn } }
    }

    /// The port's active MTU, a value of enum ibv_mtu; READs that a queue pair answers; the memory for the peer's probing flows.
    pub(crate) fn capabilities(&self) -> (u8, u8, Place) {
        // SAFETY: the region lives as long as this object.
        let key = unsafe { self.probe.mr.as_ref() }.rkey;
        (self.mtu, self.reads.1, Place { key, ..self.probe.place(0) })
    }

    /// What both ends have agreed upon, and where the peer's paths are. Paths that the peer has not got are dropped.
    pub(crate) fn agree(&mut self, agreed: Agreed, peers: &[PathAddress]) -> io::Result<()> {
        self.agreed = agreed;
        for path in peers.len()..self.paths.len() {
            self.close(path)?;
        }
        self.paths.truncate(peers.len());
        for (path, peer) in self.paths.iter_mut().zip(peers) {
            path.peer = *peer;
        }
        Ok(())
    }

    /// A descriptor that becomes readable when something happens after [`arm`](Self::arm).
    pub fn fd(&self) -> c_int {
        // SAFETY: the channel lives as long as this object.
        unsafe { self.channel.as_ref() }.fd
    }

    /// Asks for an event when something happens. What happened before must be polled for once more.
    pub fn arm(&mut self) -> io::Result<()> {
        // SAFETY: the completion queue and its context live as long as this object.
        check(unsafe { (self.context.as_ref().ops.req_notify_cq)(self.cq.as_ptr(), 0) })
    }

    /// Takes an event, which must be there: the descriptor is readable.
    pub fn take_event(&mut self) -> io::Result<()> {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives; the event is one of the only completion queue that it has.
        unsafe {
            check((self.library.ibv_get_cq_event)(self.channel.as_ptr(), &mut cq, &mut context))?;
            (self.library.ibv_ack_cq_events)(cq, 1);
        }
        Ok(())
    }

    /// Takes completions from the device, and keeps what they say.
    fn gather(&mut self) -> io::Result<bool> {
        let mut completions = [ibv_wc::default(); 16];
        // SAFETY: the completion queue lives, and there is room for so many.
        let count = unsafe {
            (self.context.as_ref().ops.poll_cq)(
                self.cq.as_ptr(),
                completions.len() as c_int,
                completions.as_mut_ptr(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::from(io::ErrorKind::Other))?;
        for completion in completions.iter().take(count) {
            if completion.wr_id & IS_RECEIVE == 0 {
                if let Some((_, slot)) = self.sent.remove(&completion.wr_id) {
                    self.free.push(slot);
                }
                let status = Status(completion.status as u32); // an enum in C
                self.events.push_back(Event::Sent { token: completion.wr_id, status });
            } else {
                self.received(completion)?;
            }
        }
        Ok(count > 0)
    }

    fn received(&mut self, completion: &ibv_wc) -> io::Result<()> {
        let slot = (completion.wr_id & !IS_RECEIVE) as usize;
        let path = slot / RECEIVES as usize;
        self.paths[path].receives -= 1;
        if completion.status != IBV_WC_SUCCESS {
            return Ok(()); // flushed
        }
        let mut bytes = [0; CONTROL_BYTES];
        // SAFETY: the slot is one of those to receive, and the device is done with it.
        unsafe {
            ptr::copy_nonoverlapping(
                self.control.start.add(slot * SLOT_BYTES),
                bytes.as_mut_ptr(),
                CONTROL_BYTES,
            )
        };
        let is_whole = completion.byte_len as usize == CONTROL_BYTES;
        let message = if is_whole { Control::from_bytes(&bytes) } else { None };
        self.events.push_back(Event::Received { path, message });
        self.post_receive(path, slot)
    }

    fn post_receive(&mut self, path: usize, slot: usize) -> io::Result<()> {
        let Path { qp: Some(qp), closes: false, .. } = self.paths[path] else { return Ok(()) };
        let Place { key, addr } = self.control.place(slot * SLOT_BYTES);
        let mut sge = ibv_sge { addr, length: CONTROL_BYTES as u32, lkey: key };
        let wr_id = IS_RECEIVE | slot as u64;
        let mut request = ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives, and so does the memory, for longer.
        check(unsafe { (self.context.as_ref().ops.post_recv)(qp.as_ptr(), &mut request, &mut bad) })?;
        self.paths[path].receives += 1;
        Ok(())
    }

    fn modify(&mut self, qp: NonNull<ibv_qp>, mut attr: ibv_qp_attr, mask: c_int) -> io::Result<()> {
        // SAFETY: the queue pair lives.
        check(unsafe { (self.library.ibv_modify_qp)(qp.as_ptr(), &mut attr, mask | IBV_QP_STATE) })
    }

    fn destroy(&mut self, path: usize) -> io::Result<()> {
        let Some(qp) = self.paths[path].qp.take() else { return Ok(()) };
        // SAFETY: nobody else has the queue pair, and it is forgotten now.
        check(unsafe { (self.library.ibv_destroy_qp)(qp.as_ptr()) })
    }
}

impl Fabric for QueuePairs {
    fn paths(&self) -> usize {
        self.paths.len()
    }

    fn post(&mut self, work: &Work) -> io::Result<()> {
        let Some(qp) = self.paths[work.path].qp else { return Err(io::ErrorKind::NotConnected.into()) };
        let (local, remote, bytes, opcode) = match work.op {
            Op::Write { local, remote, bytes } => (local, remote, bytes, IBV_WR_RDMA_WRITE),
            Op::Read { local, remote, bytes } => (local, remote, bytes, IBV_WR_RDMA_READ),
            Op::Probe(bytes) => (self.probe.place(0), self.agreed.peer_probe, bytes, IBV_WR_RDMA_WRITE),
            Op::Control(message) => {
                let slot = self.free.pop().ok_or(io::ErrorKind::OutOfMemory)?;
                self.sent.insert(work.token, (work.path, slot));
                let bytes = message.to_bytes();
                // SAFETY: the slot is one of those to send, and the device has not got it.
                unsafe {
                    let to = self.control.start.add(slot * SLOT_BYTES);
                    ptr::copy_nonoverlapping(bytes.as_ptr(), to, CONTROL_BYTES);
                }
                (
                    self.control.place(slot * SLOT_BYTES),
                    Place { key: 0, addr: 0 },
                    CONTROL_BYTES as u32,
                    IBV_WR_SEND,
                )
            }
        };
        let fence = if opcode == IBV_WR_RDMA_READ { 0 } else { IBV_SEND_FENCE };
        let mut sge = ibv_sge { addr: local.addr, length: bytes, lkey: local.key };
        let mut request = ibv_send_wr {
            wr_id: work.token,
            sg_list: &mut sge,
            num_sge: c_int::from(bytes > 0),
            opcode,
            send_flags: IBV_SEND_SIGNALED | fence,
            remote_addr: remote.addr,
            rkey: remote.key,
            ..ibv_send_wr::default()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives; the device checks keys and addresses.
        check(unsafe { (self.context.as_ref().ops.post_send)(qp.as_ptr(), &mut request, &mut bad) })
    }

    fn poll(&mut self) -> io::Result<Option<Event>> {
        if self.events.is_empty() {
            self.gather()?;
        }
        Ok(self.events.pop_front())
    }

    fn close(&mut self, path: usize) -> io::Result<()> {
        let Some(qp) = self.paths[path].qp else { return Ok(()) };
        self.modify(qp, ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() }, 0)?;
        // What has come stands before what is flushed.
        self.paths[path].closes = true;
        let began = Instant::now();
        while self.paths[path].receives > 0 {
            if !self.gather()? && began.elapsed() > FLUSH_TIME {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "a queue pair in ERR keeps its receives",
                ));
            }
        }
        self.destroy(path)?;
        let free = &mut self.free;
        self.sent.retain(|_, (of, slot)| {
            let stays = *of != path;
            if !stays {
                free.push(*slot);
            }
            stays
        });
        Ok(())
    }

    fn open(&mut self, path: usize) -> io::Result<PathParams> {
        let mut init = ibv_qp_init_attr {
            qp_context: ptr::null_mut::<c_void>(),
            send_cq: self.cq.as_ptr(),
            recv_cq: self.cq.as_ptr(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: self.settings.depth,
                max_recv_wr: RECEIVES,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the protection domain and the completion queue live.
        let qp = made(unsafe { (self.library.ibv_create_qp)(self.pd.as_ptr(), &mut init) })?;
        (self.paths[path].qp, self.paths[path].closes) = (Some(qp), false);
        self.paths[path].psn = random()? as u32 & 0xff_ffff; // 24 of its bits
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: self.settings.port,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
            ..ibv_qp_attr::default()
        };
        self.modify(qp, attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)?;
        for slot in 0..RECEIVES as usize {
            self.post_receive(path, path * RECEIVES as usize + slot)?;
        }
        Ok(self.address(path).params)
    }

    fn connect(&mut self, path: usize, peer: PathParams) -> io::Result<()> {
        let Some(qp) = self.paths[path].qp else { return Err(io::ErrorKind::NotConnected.into()) };
        let Path { gid_index, peer: PathAddress { gid, lid, .. }, psn, .. } = self.paths[path];
        let grh = ibv_global_route {
            dgid: ibv_gid { raw: gid },
            sgid_index: gid_index,
            hop_limit: 64,
            ..ibv_global_route::default()
        };
        let ah_attr = ibv_ah_attr {
            grh,
            dlid: lid,
            is_global: u8::from(self.is_ethernet || gid != [0; 16]),
            port_num: self.settings.port,
            ..ibv_ah_attr::default()
        };
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: c_int::from(self.agreed.mtu),
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: self.reads.1,
            min_rnr_timer: 12, // 0.64 ms
            ah_attr,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(qp, attr, mask)?;
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: self.settings.timeout,
            retry_cnt: self.settings.retry_cnt,
            // An end that does not poll is no dead path: 7 means for ever.
            rnr_retry: 7,
            sq_psn: psn,
            max_rd_atomic: self.reads.0.min(self.agreed.peer_reads).max(1),
            ..ibv_qp_attr::default()
        };
        let mask =
            IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(qp, attr, mask)
    }
}

impl Drop for QueuePairs {
    fn drop(&mut self) {
        for path in 0..self.paths.len() {
            // What cannot be destroyed stays until the program ends.
            let _ = self.destroy(path);
        }
        // SAFETY: nobody else has these, and the queue pairs are gone.
        unsafe {
            (self.library.ibv_destroy_cq)(self.cq.as_ptr());
            (self.library.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

fn zeroed_device_attr() -> ibv_device_attr {
    // SAFETY: it has nothing but integers.
    unsafe { std::mem::zeroed() }
}

/// A random number of the kernel's.
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer has so many bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == bytes.len() as isize { Ok(u64::from_ne_bytes(bytes)) } else { Err(io::Error::last_os_error()) }
}
