//! Guests and engines for tests: memory in a memfd, rings through the guest's own code, time that jumps.
#![allow(dead_code)] // Each test file uses its part.
#![allow(unsafe_code)] // Maps guest memory and hands out pointers into it.

pub mod links;
pub mod multipath;
pub mod steering;
pub mod two;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use masq_driver::*;
use masq_rnic::transport::Time;
use masq_rnic::{Engine, Rnic, RnicConfig};
use masq_types::{Features, Gid, Mtu, Psn, Qpn, Vni, WireQpn};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vm_memory::{FileOffset, MmapRegion};
use vrdma_abi::control::HANDLE_NONE;
use vrdma_abi::ring::{self, Cqe, ring_pages};
use vrdma_rings::{CqRing, Doorbells, Mapping, RecvRing, SendRequest, SendRing, SharedRecvRing};

pub const PAGE: u64 = 4096;
pub const SLOTS: u64 = masq_rnic::limits::SLOTS as u64;
/// Guest memory begins here, so that host offsets and addresses differ.
pub const BASE: u64 = 0x10_0000;

/// Keeps events.
#[derive(Default)]
pub struct Events(Mutex<Vec<Event>>);

impl EventSink for Events {
    fn event(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

impl Events {
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Engines and one clock, or one running RNIC.
pub struct Net {
    pub engines: Vec<Engine>,
    pub running: Option<Rnic>,
    pub events: Vec<Arc<Events>>,
    pub now: u64,
}

impl Net {
    pub fn new(configs: &[RnicConfig]) -> Self {
        let mut net = Net { engines: Vec::new(), running: None, events: Vec::new(), now: 1_000_000_000 };
        for config in configs {
            let events = Arc::new(Events::default());
            net.engines.push(Engine::new(config.clone(), events.clone()).unwrap());
            net.events.push(events);
        }
        net
    }

    /// One RNIC with so many engines, which are driven one after another.
    pub fn group(config: &RnicConfig, engines: usize) -> Self {
        let events = Arc::new(Events::default());
        let sink: Arc<dyn EventSink> = events.clone();
        let engines = Engine::group(config, &sink, engines).unwrap();
        let events = engines.iter().map(|_| events.clone()).collect();
        Net { engines, running: None, events, now: 1_000_000_000 }
    }

    /// One more RNIC, with one engine.
    pub fn add(&mut self, config: &RnicConfig) {
        let events = Arc::new(Events::default());
        self.engines.push(Engine::new(config.clone(), events.clone()).unwrap());
        self.events.push(events);
    }

    /// Moves a guest to another engine of its RNIC.
    pub fn move_guest(&mut self, guest: &mut Guest, to: usize) {
        if guest.engine != to {
            self.engines[guest.engine].move_vnic(Time::from_nanos(self.now), guest.id, to).unwrap();
            guest.engine = to;
        }
    }

    /// Gives each engine a turn.
    pub fn turn_all(&mut self) -> bool {
        self.now += 1_000;
        let now = Time::from_nanos(self.now);
        self.engines.iter_mut().fold(false, |worked, e| e.turn(now) | worked)
    }

    /// An RNIC with a thread of its own, which keeps its own time.
    pub fn running(rnic: Rnic, events: Arc<Events>) -> Self {
        Net { engines: Vec::new(), running: Some(rnic), events: vec![events], now: 0 }
    }

    pub fn execute(&mut self, engine: usize, command: Command) -> Result<Reply, DriverError> {
        if let Some(rnic) = &self.running {
            return rnic.execute(command);
        }
        self.engines[engine].execute(Time::from_nanos(self.now), command)
    }

    /// Lets the engines work until `done`, for at most `limit_ms` of their time. Time passes when nothing else does.
    pub fn run_until(&mut self, limit_ms: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit_ms * 1_000_000;
        let mut idle = 0;
        while self.now < end {
            let now = Time::from_nanos(self.now);
            let worked = self.engines.iter_mut().fold(false, |w, e| e.turn(now) | w);
            if done(self) {
                return true;
            }
            self.now += 1_000;
            idle = if worked { 0 } else { idle + 1 };
            // Loopback delivers at once; a few rounds more are for the kernel's other CPU.
            if idle > 8 {
                let next = self.engines.iter().filter_map(Engine::deadline).min();
                self.now = next.map_or(end, |t| t.as_nanos().max(self.now + 1_000)).min(end);
                idle = 0;
            }
        }
        false
    }

    /// Lets time pass.
    pub fn run(&mut self, ms: u64) {
        self.run_until(ms, |_| false);
    }

    pub fn counter(&mut self, engine: usize, name: &str) -> u64 {
        let Ok(Reply::Counters(all)) = self.execute(engine, Command::Counters) else { panic!("no counters") };
        all.iter().find(|(n, _)| *n == name).unwrap().1
    }
}

/// A guest with one context and one protection domain.
pub struct Guest {
    pub engine: usize,
    pub id: VnicId,
    pub address: IpAddr,
    /// One for each path; the first is `address`.
    pub addresses: Vec<IpAddr>,
    fd: OwnedFd,
    memory: MmapRegion,
    next: u64,
    next_handle: u32,
    status: u64,
    doorbells: u64,
}

pub const CTX: CtxHandle = CtxHandle(1);
pub const PD: PdHandle = PdHandle(1);

pub fn all_access() -> Access {
    Access {
        local_write: true,
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
        mw_bind: false,
        zero_based: false,
    }
}

#[derive(Clone, Copy)]
pub struct Mr {
    pub gpa: u64,
    pub key: u32,
    pub handle: MrHandle,
}

pub struct TestCq {
    pub handle: CqHandle,
    pub ring: CqRing<Mapping>,
    pub gpa: u64,
}

pub struct TestSrq {
    pub handle: SrqHandle,
    pub ring: SharedRecvRing<Mapping>,
    pub gpa: u64,
}

pub struct TestQp {
    pub handle: QpHandle,
    pub qp_type: QpType,
    pub wire: WireQpn,
    pub address: IpAddr,
    pub sq: SendRing<Mapping>,
    pub rq: RecvRing<Mapping>,
    pub sq_gpa: u64,
    pub rq_gpa: u64,
    pub slot: u16,
    pub index: u16,
}

/// The epoch of every guest.
pub const EPOCH: u64 = 0x77;

impl Guest {
    pub fn attach(net: &mut Net, engine: usize, id: u32, vni: u32, address: &str, bytes: u64) -> Self {
        Self::attach_at(net, engine, id, vni, &[address], bytes)
    }

    /// A guest with several underlay addresses; its connections use the first.
    pub fn attach_at(
        net: &mut Net,
        engine: usize,
        id: u32,
        vni: u32,
        addresses: &[&str],
        bytes: u64,
    ) -> Self {
        let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
        let address = addresses[0];
        let id = VnicId(id);
        let fd = memfd_create("guest", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, bytes).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let file = std::fs::File::from(fd.try_clone().unwrap());
        let memory = MmapRegion::from_file(FileOffset::new(file, 0), bytes as usize).unwrap();
        let vni = Vni::new(vni).unwrap();
        let attach = Command::AttachVnic { vnic: id, vni, epoch: EPOCH, addresses: addresses.clone() };
        net.execute(engine, attach).unwrap();
        let (next, next_handle, status, doorbells) = (BASE, 1, 0, 0);
        let mut guest =
            Guest { engine, id, address, addresses, fd, memory, next, next_handle, status, doorbells };
        guest.set_memory(net);
        guest.status = guest.alloc(1);
        guest.doorbells = guest.alloc(SLOTS);
        let page = Some(Gpa(guest.status));
        net.execute(engine, Command::SetStatusPage { vnic: id, page }).unwrap();
        let doorbells = (0..SLOTS).map(|s| Gpa(guest.doorbells + s * PAGE)).collect();
        net.execute(engine, Command::CreateContext { vnic: id, ctx: CTX, doorbells }).unwrap();
        guest
    }

    pub fn set_memory(&self, net: &mut Net) {
        let fd = self.fd.try_clone().unwrap();
        let region = MemoryRegion { gpa: Gpa(BASE), len: self.memory.size() as u64, fd, offset: 0 };
        net.execute(self.engine, Command::SetMemory { vnic: self.id, regions: vec![region] }).unwrap();
    }

    pub fn alloc(&mut self, pages: u64) -> u64 {
        let gpa = self.next;
        self.next += pages * PAGE;
        assert!(self.next - BASE <= self.memory.size() as u64, "the test guest is out of memory");
        gpa
    }

    fn host(&self, gpa: u64, len: usize) -> *mut u8 {
        let offset = (gpa - BASE) as usize;
        assert!(offset + len <= self.memory.size());
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.memory.as_ptr().add(offset) }
    }

    pub fn mapping(&self, gpa: u64, pages: u64) -> Mapping {
        let len = (pages * PAGE) as usize;
        // SAFETY: the guest outlives its rings in every test, and refers to its memory by pointers only.
        unsafe { Mapping::new(NonNull::new(self.host(gpa, len)).unwrap(), len) }
    }

    pub fn write(&self, gpa: u64, bytes: &[u8]) {
        // SAFETY: inside the mapping, and `bytes` is not.
        unsafe { self.host(gpa, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    pub fn read(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: inside the mapping, and `bytes` is not.
        unsafe { self.host(gpa, len).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) }
        bytes
    }

    pub fn read_u64(&self, gpa: u64) -> u64 {
        u64::from_ne_bytes(self.read(gpa, 8).try_into().unwrap())
    }

    pub fn handle(&mut self) -> u32 {
        self.next_handle += 1;
        self.next_handle
    }

    pub fn pages(&self, gpa: u64, pages: u64) -> PageList {
        PageList { shift: 12, pages: (0..pages).map(|p| gpa + p * PAGE).collect() }
    }

    /// A region of fresh memory whose addresses are guest-physical ones.
    pub fn mr(&mut self, net: &mut Net, bytes: u64, access: Access) -> Mr {
        let gpa = self.alloc(bytes.div_ceil(PAGE));
        self.mr_at(net, gpa, bytes, access, PD)
    }

    pub fn mr_at(&mut self, net: &mut Net, gpa: u64, bytes: u64, access: Access, pd: PdHandle) -> Mr {
        let handle = MrHandle(self.handle());
        let pages = self.pages(gpa, bytes.div_ceil(PAGE));
        let mr = MrAttr { mr: handle, pd, access, kind: MrKind::Pages { iova: gpa, length: bytes, pages } };
        match net.execute(self.engine, Command::CreateMr { vnic: self.id, mr }) {
            Ok(Reply::MrCreated { lkey, rkey }) => {
                assert_eq!(lkey.0, rkey.0);
                Mr { gpa, key: lkey.0, handle }
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn cq(&mut self, net: &mut Net, entries: u32) -> TestCq {
        let pages = ring_pages(entries, 6);
        let gpa = self.alloc(pages);
        let handle = CqHandle(self.handle());
        let attr = CqAttr { cq: handle, entries, vector: 1, ring: self.pages(gpa, pages) };
        net.execute(self.engine, Command::CreateCq { vnic: self.id, cq: attr }).unwrap();
        TestCq { handle, ring: CqRing::new(self.mapping(gpa, pages), entries).unwrap(), gpa }
    }

    pub fn srq(&mut self, net: &mut Net, xrc: Option<XrcSrq>) -> TestSrq {
        const ENTRIES: u32 = 64;
        let pages = ring_pages(ENTRIES, 7);
        let gpa = self.alloc(pages);
        let handle = SrqHandle(self.handle());
        let queue =
            WorkQueueAttr { entries: ENTRIES, stride_shift: 7, max_sge: 4, ring: self.pages(gpa, pages) };
        let srq = SrqAttr { srq: handle, pd: PD, xrc, limit: 0, queue };
        net.execute(self.engine, Command::CreateSrq { vnic: self.id, srq }).unwrap();
        let ring = SharedRecvRing::new(self.mapping(gpa, pages), ENTRIES, 7).unwrap();
        TestSrq { handle, ring, gpa }
    }

    /// A queue pair that takes its receives from `srq`.
    pub fn qp_with_srq(&mut self, net: &mut Net, cq: &TestCq, srq: &TestSrq) -> TestQp {
        self.qp_with(net, cq, cq, |init| init.receives = Receives::Shared(srq.handle))
    }

    pub fn post_srq_recv(&self, srq: &mut TestSrq, wr_id: u64, sges: &[ring::Sge]) {
        srq.ring.post(wr_id, sges).unwrap();
        srq.ring.publish();
    }

    pub fn qp(&mut self, net: &mut Net, send_cq: &TestCq, recv_cq: &TestCq) -> TestQp {
        self.qp_with(net, send_cq, recv_cq, |_| {})
    }

    pub fn qp_with(
        &mut self,
        net: &mut Net,
        send_cq: &TestCq,
        recv_cq: &TestCq,
        adjust: impl FnOnce(&mut QpInit),
    ) -> TestQp {
        self.try_qp_with(net, send_cq, recv_cq, adjust).unwrap()
    }

    pub fn try_qp_with(
        &mut self,
        net: &mut Net,
        send_cq: &TestCq,
        recv_cq: &TestCq,
        adjust: impl FnOnce(&mut QpInit),
    ) -> Result<TestQp, DriverError> {
        const ENTRIES: u32 = 64;
        let (sq_shift, rq_shift) = (9, 7);
        let (sq_pages, rq_pages) = (ring_pages(ENTRIES, sq_shift), ring_pages(ENTRIES, rq_shift));
        let (sq_gpa, rq_gpa) = (self.alloc(sq_pages), self.alloc(rq_pages));
        let handle = QpHandle(self.handle());
        let number = 0x1000 * (self.id.0 + 1) + handle.0;
        let queue =
            |ring, stride_shift, max_sge| WorkQueueAttr { entries: ENTRIES, stride_shift, max_sge, ring };
        let mut init = QpInit {
            qp: handle,
            ctx: CTX,
            pd: Some(PD),
            qp_type: QpType::Rc,
            kernel: false,
            qpn: Qpn::new(number).unwrap(),
            wire_qpn: WireQpn::new(number).unwrap(),
            send_cq: Some(send_cq.handle),
            recv_cq: Some(recv_cq.handle),
            cookie: 0xc0 + handle.0,
            signal_all: false,
            max_inline_bytes: 256,
            sq: Some(queue(self.pages(sq_gpa, sq_pages), sq_shift, 26)),
            receives: Receives::Own(queue(self.pages(rq_gpa, rq_pages), rq_shift, 4)),
            group: None,
        };
        adjust(&mut init);
        let (qp_type, wire) = (init.qp_type, init.wire_qpn);
        let reply = net.execute(self.engine, Command::CreateQp { vnic: self.id, qp: init })?;
        let Reply::QpCreated { slot, index } = reply else { panic!("{reply:?}") };
        Ok(TestQp {
            handle,
            qp_type,
            wire,
            address: self.address,
            sq: SendRing::new(self.mapping(sq_gpa, sq_pages), ENTRIES, sq_shift).unwrap(),
            rq: RecvRing::new(self.mapping(rq_gpa, rq_pages), ENTRIES, rq_shift).unwrap(),
            sq_gpa,
            rq_gpa,
            slot,
            index,
        })
    }

    pub fn modify(&self, net: &mut Net, qp: &TestQp, change: QpChange) -> Result<Reply, DriverError> {
        net.execute(self.engine, Command::ModifyQp { vnic: self.id, qp: qp.handle, change })
    }

    pub fn state(&self, net: &mut Net, qp: &TestQp) -> QpState {
        match net.execute(self.engine, Command::QueryQp { vnic: self.id, qp: qp.handle }) {
            Ok(Reply::Qp(status)) => status.state,
            other => panic!("{other:?}"),
        }
    }

    pub fn to_rtr(&self, net: &mut Net, qp: &TestQp, remote: &TestQp, options: &Options) {
        self.to_rtr_by(net, qp, self.connection(qp, remote, options), options);
    }

    /// The connection of a queue pair to another, by their first addresses.
    pub fn connection(&self, qp: &TestQp, remote: &TestQp, options: &Options) -> Connection {
        Connection {
            local: self.address,
            remote: remote.address,
            remote_qpn: remote.wire,
            other_paths: Vec::new(),
            udp_source_port: 0xc000 | (qp.handle.0 as u16),
            traffic_class: 0,
            hop_limit: 64,
            features: options.features,
            virtual_local: Gid::from(self.address),
            virtual_remote: Gid::from(remote.address),
        }
    }

    /// To INIT, and by `connection` to RTR.
    pub fn to_rtr_by(&self, net: &mut Net, qp: &TestQp, connection: Connection, options: &Options) {
        let init = QpChange { to: Some(QpState::Init), access: Some(options.access), ..QpChange::default() };
        self.modify(net, qp, init).unwrap();
        let responds = matches!(qp.qp_type, QpType::Rc | QpType::XrcTgt);
        let rtr = QpChange {
            to: Some(QpState::Rtr),
            connection: Some(connection),
            path_mtu: Some(options.mtu),
            rq_psn: Some(Psn::new(0xff_fff0)),
            max_dest_rd_atomic: responds.then_some(options.max_dest_rd_atomic),
            min_rnr_timer: responds.then_some(options.min_rnr_timer),
            ..QpChange::default()
        };
        self.modify(net, qp, rtr).unwrap();
    }

    pub fn to_rts(&self, net: &mut Net, qp: &TestQp, options: &Options) {
        let asks = matches!(qp.qp_type, QpType::Rc | QpType::XrcIni);
        let rts = QpChange {
            to: Some(QpState::Rts),
            sq_psn: Some(Psn::new(0xff_fff0)),
            max_rd_atomic: asks.then_some(options.max_rd_atomic),
            timeout: (qp.qp_type != QpType::Uc).then_some(options.timeout),
            retry_cnt: asks.then_some(options.retry_cnt),
            rnr_retry: asks.then_some(options.rnr_retry),
            ..QpChange::default()
        };
        self.modify(net, qp, rts).unwrap();
    }

    /// Posts, publishes and rings. Returns whether the RNIC wants to be kicked.
    pub fn post(&self, qp: &mut TestQp, request: &SendRequest, sges: &[ring::Sge]) -> bool {
        qp.sq.post(request, sges).unwrap();
        self.ring(qp)
    }

    pub fn post_inline(&self, qp: &mut TestQp, request: &SendRequest, data: &[u8]) -> bool {
        qp.sq.post_inline(request, [data]).unwrap();
        self.ring(qp)
    }

    pub fn ring(&self, qp: &mut TestQp) -> bool {
        qp.sq.publish();
        let doorbells = Doorbells::new(self.mapping(self.doorbells, SLOTS), self.mapping(self.status, 1));
        doorbells.mark(qp.slot, qp.index)
    }

    pub fn post_recv(&self, qp: &mut TestQp, wr_id: u64, sges: &[ring::Sge]) {
        qp.rq.post(wr_id, sges).unwrap();
        qp.rq.publish();
    }

    /// Whether the RNIC wants to be kicked.
    pub fn need_kick(&self, slot: u16) -> bool {
        vrdma_rings::SharedMemory::load_acquire(&self.mapping(self.status, 1), usize::from(slot) * 64) != 0
    }

    /// Rings the doorbell of any index, as a hostile guest may.
    pub fn mark(&self, slot: u16, index: u16) {
        let area = self.mapping(self.doorbells, SLOTS);
        vrdma_rings::SharedMemory::store_release_u8(
            &area,
            usize::from(slot) * 4096 + 64 + usize::from(index),
            1,
        );
        vrdma_rings::SharedMemory::store_release_u8(
            &area,
            usize::from(slot) * 4096 + usize::from(index / 64),
            1,
        );
    }

    pub fn detach(self, net: &mut Net) {
        net.execute(self.engine, Command::DetachVnic { vnic: self.id }).unwrap();
    }
}

/// Attributes of a connection.
#[derive(Clone, Copy)]
pub struct Options {
    pub access: Access,
    pub features: Features,
    pub mtu: Mtu,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            access: all_access(),
            features: masq_rnic::limits::FEATURES,
            mtu: Mtu::B1024,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
        }
    }
}

/// Connects two queue pairs, or one to itself, ready to send.
pub fn connect(net: &mut Net, a: (&Guest, &TestQp), b: (&Guest, &TestQp), options: &Options) {
    a.0.to_rtr(net, a.1, b.1, options);
    if a.1.wire != b.1.wire {
        b.0.to_rtr(net, b.1, a.1, options);
        b.0.to_rts(net, b.1, options);
    }
    a.0.to_rts(net, a.1, options);
}

pub fn sge(mr: &Mr, offset: u64, length: u32) -> ring::Sge {
    ring::Sge { addr: mr.gpa + offset, length, lkey: mr.key }
}

pub fn request(opcode: u8, wr_id: u64) -> SendRequest {
    SendRequest { opcode, flags: ring::SEND_SIGNALED, wr_id, ..SendRequest::default() }
}

pub fn to(mr: &Mr, offset: u64, r: SendRequest) -> SendRequest {
    SendRequest { remote_addr: mr.gpa + offset, rkey: mr.key, ..r }
}

/// Runs until a completion is there.
pub fn wait(net: &mut Net, cq: &mut TestCq) -> Cqe {
    let mut cqe = None;
    net.run_until(20_000, |_| {
        cqe = cq.ring.poll();
        cqe.is_some()
    });
    cq.ring.publish();
    cqe.expect("no completion came")
}

/// A loopback address that no other test uses, nor another process that runs these tests at the same time.
pub fn fresh_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    assert!(n < 255, "too many tests in one process");
    format!("127.{}.{}.{n}", 1 + (pid >> 8) % 250, pid & 0xff)
}

/// An event descriptor and a copy of it.
pub fn event_pair() -> (OwnedFd, OwnedFd) {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    (fd.try_clone().unwrap(), fd)
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

/// A handle that nobody has.
pub const NOBODY: u32 = HANDLE_NONE - 1;
