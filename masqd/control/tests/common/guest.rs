use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use masq_control::store::{Batch, Change, Entry, Snapshot};
use masq_control::{
    Directory, Env, Errno, GuestMemory, Identity, Limits, MemoryError, Outcome, Own, Refusal, Reply, Revoked,
    Session, SessionConfig, Settings, Ticket, identity, plan_endpoint,
};
use masq_driver::VnicId;
use masq_model::{DesiredState, Key, Kind, Object};
use masq_policy::quota::{Quotas, Resource};
use masq_types::{Features, Gid, Mtu};
use vrdma_abi::control as abi;
use vrdma_abi::control::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::FakeRnic;

pub const EPOCH: u64 = 0x1234_5678;

/// Two tenants with the same addresses on two hosts.
pub const WORLD: &str = r#"
[[host]]
name = "h1"
underlay = ["10.77.0.1"]
[[host]]
name = "h2"
underlay = ["10.77.0.2"]

[[vpc]]
name = "blue"
vni = 100
[[vpc]]
name = "red"
vni = 200

[[security_group]]
name = "blue"
vpc = "blue"
[[security_group]]
name = "red"
vpc = "red"

[[vnic]]
name = "blue-1"
vpc = "blue"
host = "h1"
mac = "52:54:00:64:00:01"
addresses = ["192.168.0.1"]
security_groups = ["blue"]
[[vnic]]
name = "blue-2"
vpc = "blue"
host = "h2"
mac = "52:54:00:64:00:02"
addresses = ["192.168.0.2"]
security_groups = ["blue"]
[[vnic]]
name = "blue-9"
vpc = "blue"
host = "h2"
mac = "52:54:00:64:00:09"
addresses = ["192.168.9.9"]
[[vnic]]
name = "red-1"
vpc = "red"
host = "h1"
mac = "52:54:00:64:00:01"
addresses = ["192.168.0.1"]
security_groups = ["red"]
[[vnic]]
name = "red-3"
vpc = "red"
host = "h2"
mac = "52:54:00:64:00:03"
addresses = ["192.168.0.3"]
security_groups = ["red"]
"#;

/// The store's entries of a world in which every vNIC is realised.
pub fn snapshot(world: &str) -> Snapshot {
    let desired = DesiredState::from_toml(world).unwrap_or_else(|e| panic!("{e}"));
    let mut objects: Vec<Object> = desired.objects().values().cloned().collect();
    let mut directory = Directory::from(&desired);
    for (i, (vnic, _)) in desired.of_kind(Kind::Vnic).enumerate() {
        let endpoint = plan_endpoint(
            &directory,
            vnic.name(),
            Own { start: 0x10_0000 * (i as u32 + 1), ..Own::default() },
        )
        .unwrap();
        objects.push(Object::Endpoint(endpoint));
        directory = Directory::from_snapshot(&entries(&objects, 1)).0;
    }
    entries(&objects, 1)
}

pub fn entries(objects: &[Object], revision: u64) -> Snapshot {
    let entry = |o: &Object| Entry { key: o.key().to_string(), value: o.to_json(), revision };
    Snapshot { entries: objects.iter().map(entry).collect(), revision }
}

/// Changes the store, and judges again what that touches.
pub fn change(g: &mut Guest, changes: Vec<Change>) -> Revoked {
    let revision = g.directory.revision() + 1;
    let delta = g.directory.apply(&Batch { changes, revision });
    assert!(delta.bad.is_empty(), "{:?}", delta.bad);
    let revoked = g.session.reevaluate(&g.directory, &g.rnic, &delta.touched);
    assert_eq!(revoked.failure, None);
    revoked
}

/// An object is written.
pub fn put(object: Object) -> Change {
    Change::Put { key: object.key().to_string(), value: object.to_json() }
}

/// An object is deleted.
pub fn gone(kind: Kind, name: &str) -> Change {
    Change::Delete { key: Key::new(kind, name).to_string() }
}

pub fn directory(world: &str) -> Directory {
    let read = || {
        let (directory, bad) = Directory::from_snapshot(&snapshot(world));
        assert!(bad.is_empty(), "{bad:?}");
        directory
    };
    // Every guest begins with this one: it is read once.
    static USUAL: OnceLock<Directory> = OnceLock::new();
    if world == WORLD { USUAL.get_or_init(read).clone() } else { read() }
}

pub fn limits() -> Limits {
    Limits {
        page_size_cap: (1 << 31) - (1 << 12),
        max_mr_bytes: 1 << 42,
        max_msg_bytes: 1 << 31,
        max_qp_wr: 1024,
        max_cqe: 4096,
        max_send_sge: 30,
        max_recv_sge: 30,
        max_srq_wr: 512,
        max_srq_sge: 16,
        max_inline_bytes: 256,
        max_dest_rd_atomic: 16,
        max_rd_atomic: 16,
        num_comp_vectors: 4,
        num_db_slots: 8,
        features: Features::SELECTIVE,
    }
}

pub fn quotas() -> Quotas {
    Quotas::NONE
        .with(Resource::Contexts, 4)
        .with(Resource::Pds, 8)
        .with(Resource::Mrs, 8)
        .with(Resource::Cqs, 8)
        .with(Resource::Qps, 8)
        .with(Resource::Srqs, 6)
        .with(Resource::Mws, 5)
        .with(Resource::Xrcds, 3)
        .with(Resource::PinnedBytes, 64 << 20)
        .with(Resource::ListedPages, 4096)
}

/// Guest memory: sparse pages of 8-byte words. Pages that were not written do not exist.
#[derive(Default)]
pub struct Memory {
    pages: RefCell<HashMap<u64, Vec<u64>>>,
    next: Cell<u64>,
    /// Bytes that were read.
    pub read: Cell<u64>,
    /// The guest changes what has been read at once.
    pub changing: Cell<bool>,
}

impl Memory {
    /// A new page that holds these words.
    pub fn page(&self, words: &[u64]) -> u64 {
        let at = 0x10_0000 + self.next.get() * 4096;
        self.next.set(self.next.get() + 1);
        let mut page = words.to_vec();
        page.resize(512, 0);
        self.pages.borrow_mut().insert(at, page);
        at
    }

    /// A table of one level over `count` new page addresses (which nobody reads).
    pub fn list(&self, count: u32) -> PageTable {
        self.list_of(&(0..u64::from(count)).map(|i| 0x4000_0000 + i * 4096).collect::<Vec<_>>(), 12)
    }

    /// A table over these pages, with as few levels as hold them.
    pub fn list_of(&self, pages: &[u64], page_shift: u8) -> PageTable {
        let count = pages.len() as u32;
        let (mut levels, mut top) = (0, pages.to_vec());
        while top.len() > 1 || (levels == 0 && count != 1) {
            top = top.chunks(512).map(|chunk| self.page(chunk)).collect();
            levels += 1;
            if count == 0 {
                return PageTable { addr: 0, count, page_shift, levels: 0, reserved: 0 };
            }
        }
        PageTable { addr: top[0], count, page_shift, levels, reserved: 0 }
    }
}

impl GuestMemory for Memory {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.read.set(self.read.get() + buf.len() as u64);
        let mut pages = self.pages.borrow_mut();
        for (i, byte) in buf.iter_mut().enumerate() {
            let at = gpa.checked_add(i as u64).ok_or(MemoryError(gpa))?;
            let page = pages.get_mut(&(at & !4095)).ok_or(MemoryError(at))?;
            let word = &mut page[(at as usize % 4096) / 8];
            *byte = word.to_le_bytes()[at as usize % 8];
            if self.changing.get() && at % 8 == 7 {
                *word = word.rotate_left(3) ^ 0x5555;
            }
        }
        Ok(())
    }
}

/// A guest with its session, and everything around it.
pub struct Guest {
    pub session: Session,
    pub rnic: FakeRnic,
    pub memory: Memory,
    pub directory: Directory,
    pub now: Duration,
    tag: u32,
}

/// A status and what follows the head of the reply.
pub type Answer = Result<Vec<u8>, Box<Refusal>>;

impl Guest {
    /// A guest that has not said anything yet.
    pub fn new(vnic: &str) -> Guest {
        Guest::with_limits(vnic, limits())
    }

    pub fn with_limits(vnic: &str, limits: Limits) -> Guest {
        let directory = directory(WORLD);
        Guest::with_identity(identity(&directory, directory.endpoint(vnic).unwrap()).unwrap(), limits)
    }

    pub fn with_identity(identity: Identity, limits: Limits) -> Guest {
        let directory = directory(WORLD);
        let id = VnicId(1);
        let settings = Settings { quotas: quotas(), ..Settings::default() };
        let (epoch, active_mtu, seed) = (EPOCH, Mtu::B1024, 0xabc);
        let config = SessionConfig { id, identity, limits, settings, epoch, active_mtu, seed };
        Guest {
            session: Session::new(config),
            rnic: FakeRnic::default(),
            memory: Memory::default(),
            directory,
            now: Duration::ZERO,
            tag: 0,
        }
    }

    /// A guest with GIDs at index 0 (link-local) and 1 (its address).
    pub fn ready(vnic: &str) -> Guest {
        let mut guest = Guest::new(vnic);
        guest.begin();
        guest
    }

    /// DEVICE_INIT and the GID table.
    pub fn begin(&mut self) {
        self.init().unwrap();
        for (i, gid) in self.session.identity().gids.clone().into_iter().enumerate() {
            self.add_gid(i as u32, gid).unwrap();
        }
    }

    /// Sends raw bytes.
    pub fn raw(&mut self, request: &[u8]) -> Outcome {
        let env = Env { memory: &self.memory, rnic: &self.rnic, directory: &self.directory, now: self.now };
        self.session.handle_request(env, request)
    }

    /// The bytes of a command.
    pub fn bytes<T: IntoBytes + Immutable>(&mut self, opcode: u16, body: &T) -> Vec<u8> {
        self.tag += 1;
        let head = abi::Request { opcode, flags: 0, tag: self.tag, epoch: EPOCH };
        [head.as_bytes(), body.as_bytes()].concat()
    }

    /// Sends a command and waits for its answer, with the directory as it is.
    pub fn send<T: IntoBytes + Immutable>(&mut self, opcode: u16, body: &T) -> Answer {
        let bytes = self.bytes(opcode, body);
        match self.raw(&bytes) {
            Outcome::Reply(reply) => self.check(reply),
            Outcome::Pending(ticket) => self.resolve(ticket).unwrap(),
        }
    }

    /// Sends a command that has to wait.
    pub fn send_pending<T: IntoBytes + Immutable>(&mut self, opcode: u16, body: &T) -> Ticket {
        let bytes = self.bytes(opcode, body);
        match self.raw(&bytes) {
            Outcome::Pending(ticket) => ticket,
            Outcome::Reply(reply) => panic!("{reply:?}"),
        }
    }

    pub fn resolve(&mut self, ticket: Ticket) -> Option<Answer> {
        let env = Env { memory: &self.memory, rnic: &self.rnic, directory: &self.directory, now: self.now };
        let reply = self.session.handle_resolved(env, ticket)?;
        Some(self.check(reply))
    }

    fn check(&self, reply: Reply) -> Answer {
        let (head, body) = abi::Reply::read_from_prefix(&reply.bytes).unwrap();
        match reply.refusal {
            None => {
                assert_eq!(head.status, 0);
                Ok(body.to_vec())
            }
            Some(refusal) => {
                assert_eq!(head.status, refusal.errno().0);
                assert!(head.status != 0 && body.is_empty());
                assert!(!refusal.reason.to_string().is_empty());
                Err(Box::new(refusal))
            }
        }
    }

    pub fn init(&mut self) -> Answer {
        let body = DeviceInit { abi_major: 1, status_page: 0x8000, ..DeviceInit::ZERO };
        self.send(OP_DEVICE_INIT, &body)
    }

    pub fn add_gid(&mut self, index: u32, gid: Gid) -> Answer {
        self.send(OP_ADD_GID, &AddGid { index, reserved: 0, gid: gid.0 })
    }

    pub fn context(&mut self, ctx: u32) -> Answer {
        let doorbells = self.memory.list(8);
        self.send(OP_CREATE_CONTEXT, &CreateContext { ctx, flags: 0, doorbells })
    }

    pub fn pd(&mut self, pd: u32, ctx: u32) -> Answer {
        self.send(OP_CREATE_PD, &CreatePd { pd, ctx })
    }

    /// A region of two pages and a bit.
    pub fn mr_request(&self, mr: u32, pd: u32) -> CreateMr {
        let access = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ;
        CreateMr {
            mr,
            pd,
            access,
            flags: 0,
            iova: 0x7f00_0000_0e00,
            length: 0x2000,
            pages: self.memory.list(3),
        }
    }

    pub fn mr(&mut self, mr: u32, pd: u32) -> Answer {
        let r = self.mr_request(mr, pd);
        self.send(OP_CREATE_MR, &r)
    }

    pub fn cq_request(&self, cq: u32, ctx: u32) -> CreateCq {
        CreateCq { cq, ctx, entries: 64, vector: 3, ring: self.memory.list(2) }
    }

    pub fn cq(&mut self, cq: u32, ctx: u32) -> Answer {
        let r = self.cq_request(cq, ctx);
        self.send(OP_CREATE_CQ, &r)
    }

    /// Context 7, the kernel's, with PD 7 and CQ 7.
    pub fn kernel(&mut self) {
        let doorbells = self.memory.list(8);
        self.send(OP_CREATE_CONTEXT, &CreateContext { ctx: 7, flags: CONTEXT_KERNEL, doorbells }).unwrap();
        self.pd(7, 7).unwrap();
        self.cq(7, 7).unwrap();
    }

    /// A shared receive queue of 64 receives.
    pub fn srq_request(&self, srq: u32, pd: u32) -> CreateSrq {
        CreateSrq {
            srq,
            pd,
            cq: HANDLE_NONE,
            xrcd: HANDLE_NONE,
            entries: 64,
            max_sge: 1,
            stride_shift: 6,
            srq_type: SRQ_TYPE_BASIC,
            limit: 0,
            reserved: 0,
            ring: self.memory.list(2),
        }
    }

    pub fn srq(&mut self, srq: u32, pd: u32) -> Answer {
        let r = self.srq_request(srq, pd);
        self.send(OP_CREATE_SRQ, &r)
    }

    pub fn mw(&mut self, mw: u32, pd: u32) -> Answer {
        self.send(OP_CREATE_MW, &CreateMw { mw, pd, mw_type: MW_TYPE_2, reserved: [0; 7] })
    }

    pub fn xrcd(&mut self, xrcd: u32) -> Answer {
        self.send(OP_CREATE_XRCD, &CreateXrcd { xrcd, reserved: 0 })
    }

    /// A target of an XRC domain.
    pub fn target_request(&self, qp: u32, xrcd: u32) -> CreateQp {
        let (pd, send_cq, recv_cq, srq) = (HANDLE_NONE, HANDLE_NONE, HANDLE_NONE, HANDLE_NONE);
        let qp_type = QP_TYPE_XRC_TGT;
        CreateQp { qp, pd, send_cq, recv_cq, srq, xrcd, qp_type, cookie: 42, ..CreateQp::ZERO }
    }

    pub fn qp_request(&self, qp: u32, pd: u32, send_cq: u32, recv_cq: u32) -> CreateQp {
        CreateQp {
            qp,
            pd,
            send_cq,
            recv_cq,
            srq: HANDLE_NONE,
            xrcd: HANDLE_NONE,
            flags: QP_SIGNAL_ALL,
            cookie: 42,
            sq_entries: 64,
            rq_entries: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            sq_stride_shift: 6,
            rq_stride_shift: 6,
            qp_type: QP_TYPE_RC,
            sq: self.memory.list(2),
            rq: self.memory.list(2),
            ..CreateQp::ZERO
        }
    }

    pub fn qp(&mut self, qp: u32, pd: u32, cq: u32) -> Answer {
        let r = self.qp_request(qp, pd, cq, cq);
        self.send(OP_CREATE_QP, &r)
    }

    /// Context 1, PD 1, CQ 1.
    pub fn base(&mut self) {
        self.context(1).unwrap();
        self.pd(1, 1).unwrap();
        self.cq(1, 1).unwrap();
    }

    /// A queue pair in INIT; gives its QPN.
    pub fn qp_in_init(&mut self, qp: u32) -> u32 {
        let reply = self.qp(qp, 1, 1).unwrap();
        self.modify(qp, INIT_MASK, init_attr()).unwrap();
        CreateQpReply::read_from_bytes(&reply).unwrap().qpn
    }

    pub fn modify(&mut self, qp: u32, mask: u32, attr: QpAttr) -> Answer {
        self.send(OP_MODIFY_QP, &ModifyQp { qp, mask, attr })
    }

    /// INIT to RTR towards `dgid` and `dest_qpn`, from the guest's first address.
    pub fn connect(&mut self, qp: u32, dgid: Gid, dest_qpn: u32) -> Answer {
        let attr = self.rtr_attr(dgid, dest_qpn);
        self.modify(qp, RTR_MASK, attr)
    }

    pub fn rtr_attr(&self, dgid: Gid, dest_qpn: u32) -> QpAttr {
        self.rtr_attr_from(self.session.identity().gids[1], dgid, dest_qpn)
    }

    pub fn rtr_attr_from(&self, sgid: Gid, dgid: Gid, dest_qpn: u32) -> QpAttr {
        QpAttr {
            state: QP_STATE_RTR,
            path_mtu: 3,
            dest_qpn,
            rq_psn: 0x123,
            sgid: sgid.0,
            sgid_index: 1,
            dgid: dgid.0,
            hop_limit: 1,
            traffic_class: 0x20,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            ..QpAttr::ZERO
        }
    }

    pub fn query(&mut self, qp: u32) -> QueryQpReply {
        let reply = self.send(OP_QUERY_QP, &Destroy { handle: qp, reserved: 0 }).unwrap();
        QueryQpReply::read_from_bytes(&reply).unwrap()
    }

    pub fn destroy(&mut self, opcode: u16, handle: u32) -> Answer {
        self.send(opcode, &Destroy { handle, reserved: 0 })
    }

    /// First QPN of a vNIC's block.
    pub fn qpn_of(&self, vnic: &str) -> u32 {
        self.directory.endpoint(vnic).unwrap().qpn_blocks[0].first + 5
    }

    pub fn used(&self, resource: Resource) -> u64 {
        self.session.usage().used(resource)
    }
}

pub const INIT_MASK: u32 = QP_ATTR_STATE | QP_ATTR_PKEY_INDEX | QP_ATTR_PORT | QP_ATTR_ACCESS_FLAGS;
pub const RTR_MASK: u32 = QP_ATTR_STATE
    | QP_ATTR_AV
    | QP_ATTR_PATH_MTU
    | QP_ATTR_DEST_QPN
    | QP_ATTR_RQ_PSN
    | QP_ATTR_MAX_DEST_RD_ATOMIC
    | QP_ATTR_MIN_RNR_TIMER;
pub const RTS_MASK: u32 = QP_ATTR_STATE
    | QP_ATTR_TIMEOUT
    | QP_ATTR_RETRY_CNT
    | QP_ATTR_RNR_RETRY
    | QP_ATTR_SQ_PSN
    | QP_ATTR_MAX_RD_ATOMIC;

pub fn init_attr() -> QpAttr {
    QpAttr { state: QP_STATE_INIT, access: ACCESS_REMOTE_WRITE | ACCESS_LOCAL_WRITE, ..QpAttr::ZERO }
}

pub fn rts_attr() -> QpAttr {
    let (timeout, retry_cnt, rnr_retry, sq_psn, max_rd_atomic) = (14, 7, 7, 0x456, 1);
    QpAttr { state: QP_STATE_RTS, timeout, retry_cnt, rnr_retry, sq_psn, max_rd_atomic, ..QpAttr::ZERO }
}

/// The GID of an IPv4 address.
pub fn gid(address: &str) -> Gid {
    address.parse::<std::net::IpAddr>().unwrap().into()
}

/// The errno and label of a refusal.
pub fn refused(answer: Answer) -> (Errno, &'static str) {
    let refusal = answer.expect_err("a refusal");
    (refusal.errno(), refusal.reason.label())
}
