//! A guest's control requests, in any order, with page tables in memory that changes while it is read.

use std::sync::OnceLock;

use masq_control::{Asked, Directory, Env, Outcome, Ticket};
use masq_driver::{CqHandle, DriverError, Event, PeerName, QpFault, QpHandle, SrqHandle, VnicId};
use masq_policy::conntrack::Touched;
use masq_policy::quota::Resource;
use masq_policy::rename::{Endpoints, Found};
use masq_types::{Gid, WireQpn};
use vrdma_abi::control::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;
use crate::session::{EPOCH, Guest, INIT_MASK, RTR_MASK, RTS_MASK, gid, init_attr, quotas, rts_attr};

/// Steps of one input, so that none takes for ever.
const MAX_STEPS: usize = 96;

/// Bytes of guest memory that one request may make the session read: the most pages that its quota lets
/// it list, and the tables above them.
const MAX_READ_BYTES: u64 = 4096 * 8 + 64 * 8;

/// Addresses that are the guest's own, its peers', another network's, and nobody's.
const ADDRESSES: [&str; 5] = ["192.168.0.1", "192.168.0.2", "192.168.9.9", "192.168.0.3", "10.1.2.3"];

/// Bytes of any reply.
const MAX_REPLY_BYTES: usize = Reply::SIZE + QueryCountersReply::SIZE;

/// One input: how the guest begins, then what it does.
pub fn run(data: &[u8]) {
    let input = &mut Input::new(data);
    let mut run = Run::new(input.u8());
    let mut steps = 0;
    while !input.is_empty() && steps < MAX_STEPS {
        steps += 1;
        run.step(input);
        run.check();
    }
    run.reset();
}

/// A guest, what it has sent, and what waits for the store.
struct Run {
    guest: Guest,
    sent: Vec<Vec<u8>>,
    waiting: Vec<Ticket>,
}

impl Run {
    /// Bit 0: memory changes while it is read. Bit 1: there are some objects. Bit 2: the driver has not begun.
    fn new(options: u8) -> Self {
        let mut guest = if options & 4 == 0 { Guest::ready("blue-1") } else { Guest::new("blue-1") };
        if options & 6 == 2 {
            guest.base();
            guest.mr(1, 1).expect("a region");
            guest.qp_in_init(1);
        }
        guest.memory.changing.set(options & 1 != 0);
        Run { guest, sent: Vec::new(), waiting: Vec::new() }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() {
            0..0x18 => {
                let len = input.u8().into();
                self.request(input.bytes(len).to_vec());
            }
            0x18..0x40 => {
                let opcode = u16::from(input.u8()) % 40;
                let mut bytes = head(opcode).as_bytes().to_vec();
                bytes.extend(input.exactly(body_len(opcode)));
                self.request(bytes);
            }
            0x40..0xa8 => {
                let bytes = self.damaged(input);
                self.request(bytes);
            }
            0xa8..0xc0 => {
                let bytes = self.with_hostile_table(input);
                self.request(bytes);
            }
            0xc0..0xd0 if !self.sent.is_empty() => {
                let again = self.sent[usize::from(input.u8()) % self.sent.len()].clone();
                self.request(again);
            }
            0xd0..0xd8 if !self.waiting.is_empty() => {
                let ticket = self.waiting.swap_remove(input.below(self.waiting.len()));
                assert!(self.guest.resolve(ticket).is_some(), "a request that waits gets its answer");
            }
            0xd8..0xe0 => self.event(input),
            0xe0..0xe8 => self.guest.rnic.fail(DriverError::Exhausted("one more".into())),
            0xe8..0xf0 => self.guest.rnic.try_break_qp(input.below(4) as u32),
            0xf0..0xf8 => {
                let g = &mut self.guest;
                let nothing = Directory::new();
                let directory = if input.below(2) == 0 { &g.directory } else { &nothing };
                g.session.reevaluate(directory, &g.rnic, &Touched::everything());
            }
            0xf8.. => {
                self.reset();
                self.guest.begin();
            }
            _ => {}
        }
    }

    /// Sends a request. It is answered now, or waits.
    fn request(&mut self, bytes: Vec<u8>) {
        let before = self.guest.memory.read.get();
        match self.guest.raw(&bytes) {
            Outcome::Reply(reply) => {
                let (head, _) = Reply::read_from_prefix(&reply.bytes).expect("a reply has a head");
                assert_eq!(head.status != 0, reply.refusal.is_some());
                assert!(reply.bytes.len() <= MAX_REPLY_BYTES);
                if let Ok((asked, _)) = Request::read_from_prefix(&bytes) {
                    assert_eq!(head.tag, asked.tag);
                }
            }
            Outcome::Pending(ticket) => self.waiting.push(ticket),
        }
        assert!(self.guest.memory.read.get() - before <= MAX_READ_BYTES, "unbounded reading");
        self.sent.push(bytes);
    }

    /// A request that is right, but for a few bytes.
    fn damaged(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let g = &mut self.guest;
        let kind = input.below(32);
        let (own, other) = (input.below(4) as u32, input.below(4) as u32);
        let mut bytes = match kind {
            0 => {
                let doorbells = g.memory.list(8);
                g.bytes(OP_CREATE_CONTEXT, &CreateContext { ctx: own, flags: 0, doorbells })
            }
            1 => g.bytes(OP_CREATE_PD, &CreatePd { pd: own, ctx: other }),
            2 => {
                let r = g.mr_request(own, other);
                g.bytes(OP_CREATE_MR, &r)
            }
            3 => {
                let r = g.cq_request(own, other);
                g.bytes(OP_CREATE_CQ, &r)
            }
            4 | 5 => {
                let r = g.qp_request(own, other, input.below(4) as u32, input.below(4) as u32);
                g.bytes(OP_CREATE_QP, &r)
            }
            6 => g.bytes(OP_MODIFY_QP, &ModifyQp { qp: own, mask: INIT_MASK, attr: init_attr() }),
            7 | 8 => {
                let peers = [
                    ("192.168.0.2", "blue-2"),
                    ("192.168.0.1", "blue-1"),
                    ("192.168.9.9", "blue-9"),
                    ("192.168.0.3", "red-3"),
                ];
                let (address, peer) = peers[other as usize];
                let attr = g.rtr_attr(gid(address), g.qpn_of(peer));
                g.bytes(OP_MODIFY_QP, &ModifyQp { qp: own, mask: RTR_MASK, attr })
            }
            9 => g.bytes(OP_MODIFY_QP, &ModifyQp { qp: own, mask: RTS_MASK, attr: rts_attr() }),
            10 => {
                let attr = QpAttr { state: input.u8() % 8, ..QpAttr::ZERO };
                g.bytes(OP_MODIFY_QP, &ModifyQp { qp: own, mask: QP_ATTR_STATE, attr })
            }
            11 => {
                let gid = gid("192.168.0.1").0;
                g.bytes(OP_ADD_GID, &AddGid { index: own, reserved: 0, gid })
            }
            12 => g.bytes(OP_DEL_GID, &DelGid { index: own, reserved: 0 }),
            13 => g.bytes(OP_QUERY_QP, &Destroy { handle: own, reserved: 0 }),
            14 | 15 => {
                let destroys =
                    [OP_DESTROY_CONTEXT, OP_DESTROY_PD, OP_DESTROY_MR, OP_DESTROY_CQ, OP_DESTROY_QP];
                let opcode = destroys[input.below(destroys.len())];
                g.bytes(opcode, &Destroy { handle: own, reserved: 0 })
            }
            16 => {
                let r = g.srq_request(own, other);
                g.bytes(OP_CREATE_SRQ, &r)
            }
            17 => {
                let (cq, xrcd) = (input.below(4) as u32, input.below(4) as u32);
                let r = CreateSrq { srq_type: SRQ_TYPE_XRC, cq, xrcd, ..g.srq_request(own, other) };
                g.bytes(OP_CREATE_SRQ, &r)
            }
            18 => {
                let mw_type = [MW_TYPE_1, MW_TYPE_2][input.below(2)];
                g.bytes(OP_CREATE_MW, &CreateMw { mw: own, pd: other, mw_type, reserved: [0; 7] })
            }
            19 => g.bytes(OP_CREATE_XRCD, &CreateXrcd { xrcd: own, reserved: 0 }),
            20 => {
                let CreateMr { access, iova, length, pages, .. } = g.mr_request(own, other);
                let flags = u32::from(input.u8() % 8);
                let pd = if flags & REREG_PD == 0 { HANDLE_NONE } else { other };
                g.bytes(OP_REREG_MR, &ReregMr { mr: own, flags, pd, access, iova, length, pages })
            }
            21 => {
                let CreateCq { entries, ring, .. } = g.cq_request(own, other);
                g.bytes(OP_RESIZE_CQ, &ResizeCq { cq: own, entries, ring })
            }
            22 => g.bytes(OP_MODIFY_SRQ, &ModifySrq { srq: own, limit: input.u8().into() }),
            23 => g.bytes(OP_QUERY_SRQ, &Destroy { handle: own, reserved: 0 }),
            24 => {
                let qp_type = [QP_TYPE_UC, QP_TYPE_UD, QP_TYPE_GSI][input.below(3)];
                let (r, sq) = (g.qp_request(own, other, other, other), g.memory.list(3));
                let r = CreateQp { qp_type, sq_stride_shift: 7, sq, ..r };
                g.bytes(OP_CREATE_QP, &r)
            }
            25 => {
                let r = match input.below(2) {
                    0 => g.target_request(own, other),
                    _ => initiator(g.qp_request(own, other, other, other), g.memory.list(3)),
                };
                g.bytes(OP_CREATE_QP, &r)
            }
            26 => {
                let r = g.qp_request(own, other, other, other);
                let (srq, none) = (input.below(4) as u32, PageTable::ZERO);
                let shared =
                    CreateQp { srq, rq_entries: 0, max_recv_sge: 0, rq_stride_shift: 0, rq: none, ..r };
                g.bytes(OP_CREATE_QP, &shared)
            }
            27 => {
                let doorbells = g.memory.list(8);
                g.bytes(OP_CREATE_CONTEXT, &CreateContext { ctx: own, flags: CONTEXT_KERNEL, doorbells })
            }
            28 => {
                let (flags, length) = [(MR_ALL_MEMORY, 0), (MR_FAST_REG, 8 * 4096)][input.below(2)];
                let r = g.mr_request(own, other);
                g.bytes(OP_CREATE_MR, &CreateMr { flags, iova: 0, length, pages: PageTable::ZERO, ..r })
            }
            29 => {
                let (mask, attr) = datagram_step(input.below(3));
                g.bytes(OP_MODIFY_QP, &ModifyQp { qp: own, mask, attr })
            }
            _ => {
                let destroys = [OP_DESTROY_SRQ, OP_DESTROY_MW, OP_DESTROY_XRCD];
                let opcode = destroys[input.below(destroys.len())];
                g.bytes(opcode, &Destroy { handle: own, reserved: 0 })
            }
        };
        // Mostly none, so that objects come into being.
        for _ in 0..input.u8().saturating_sub(0xc0) / 16 {
            let at = usize::from(input.u8()) % bytes.len();
            bytes[at] = input.u8();
        }
        bytes
    }

    /// A request whose pages are listed in a table that holds anything, itself among it.
    fn with_hostile_table(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let g = &mut self.guest;
        let words: Vec<u64> = (0..input.below(24))
            .map(|_| match input.u8() {
                byte @ ..0xc0 => 0x10_0000 + u64::from(byte % 32) * 4096,
                _ => input.u64(),
            })
            .collect();
        let addr = g.memory.page(&words);
        let (levels, page_shift) = (input.u8() % 5, 10 + input.u8() % 24);
        let count = if input.below(2) == 0 { input.u8().into() } else { input.u32() };
        let table = PageTable { addr, count, page_shift, levels, reserved: 0 };
        let handle = 4 + input.below(4) as u32;
        match input.below(8) {
            0 => g.bytes(OP_CREATE_CONTEXT, &CreateContext { ctx: handle, flags: 0, doorbells: table }),
            1 => {
                let entries = 1 << (input.u8() % 32);
                g.bytes(OP_CREATE_CQ, &CreateCq { entries, ring: table, ..g.cq_request(handle, 1) })
            }
            2 => {
                let (sq_entries, sq_stride_shift) = (1 << (input.u8() % 32), input.u8());
                let r = CreateQp { sq_entries, sq_stride_shift, sq: table, ..g.qp_request(handle, 1, 1, 1) };
                g.bytes(OP_CREATE_QP, &r)
            }
            4 => {
                let (entries, stride_shift) = (1 << (input.u8() % 32), input.u8());
                let r = CreateSrq { entries, stride_shift, ring: table, ..g.srq_request(handle, 1) };
                g.bytes(OP_CREATE_SRQ, &r)
            }
            5 => g.bytes(OP_RESIZE_CQ, &ResizeCq { cq: 1, entries: 1 << (input.u8() % 32), ring: table }),
            6 => {
                let length = u64::from(count).checked_shl(page_shift.into()).unwrap_or(u64::MAX);
                let r = ReregMr {
                    mr: 1,
                    flags: REREG_TRANSLATION,
                    pd: HANDLE_NONE,
                    length,
                    pages: table,
                    ..ReregMr::ZERO
                };
                g.bytes(OP_REREG_MR, &r)
            }
            _ => {
                let length = u64::from(count).checked_shl(page_shift.into()).unwrap_or(u64::MAX);
                let iova = if input.below(2) == 0 { 0 } else { input.u64() };
                let r = CreateMr { iova, length, pages: table, ..g.mr_request(handle, 1) };
                g.bytes(OP_CREATE_MR, &r)
            }
        }
    }

    /// The RNIC reports something about an object that exists, or does not.
    fn event(&mut self, input: &mut Input<'_>) {
        let (vnic, qp) = (VnicId(1), QpHandle(input.below(4) as u32));
        let event = match input.below(10) {
            0 => Event::QpFault { vnic, qp, fault: QpFault::Fatal, reason: String::new() },
            1 => Event::CommEstablished { vnic, qp },
            2 => Event::SqDrained { vnic, qp },
            3 => Event::CqOverrun { vnic, cq: CqHandle(qp.0) },
            5 => Event::SrqLimit { vnic, srq: SrqHandle(qp.0) },
            6 => Event::SrqFault { vnic, srq: SrqHandle(qp.0), reason: String::new() },
            7 => Event::LastWqe { vnic, qp },
            8 => return self.ask(PeerName::Gid(gid(ADDRESSES[input.below(ADDRESSES.len())]))),
            9 => {
                let address =
                    ["10.0.0.1", "10.0.0.2", "10.0.0.9"][input.below(3)].parse().expect("an address");
                let peers = ["blue-1", "blue-2", "blue-9", "red-3"];
                let near = self.guest.qpn_of(peers[input.below(peers.len())]);
                return self.ask(PeerName::Source(address, WireQpn::from_wire(near)));
            }
            _ => Event::VnicFatal { vnic: VnicId(input.u8().into()), reason: String::new() },
        };
        if let Some(told) = self.guest.session.handle_event(&event) {
            assert_eq!(told.epoch, EPOCH);
            assert!(self.guest.session.is_initialised());
        }
    }

    /// The RNIC asks who somebody is. It is answered now, or waits.
    fn ask(&mut self, name: PeerName) {
        let g = &mut self.guest;
        let env = Env { memory: &g.memory, rnic: &g.rnic, directory: &g.directory, now: g.now };
        match g.session.handle_unknown_peer(env, name) {
            Ok(Asked::Answered(answer)) => assert_eq!(answer.name, name),
            Ok(Asked::Pending(ticket)) => {
                let env = Env { memory: &g.memory, rnic: &g.rnic, directory: &g.directory, now: g.now };
                assert!(
                    g.session.handle_peer_resolved(env, ticket).is_some(),
                    "a question that waits is answered"
                );
            }
            Ok(Asked::Already) => panic!("no question waits"),
            Err(_) => {}
        }
    }

    /// What holds at any time.
    fn check(&self) {
        let session = &self.guest.session;
        let in_rnic =
            [Resource::Contexts, Resource::Mrs, Resource::Mws, Resource::Cqs, Resource::Srqs, Resource::Qps];
        let counted: u64 = in_rnic.map(|r| session.usage().used(r)).iter().sum();
        let status_page = u64::from(self.guest.rnic.status_page().is_some());
        let held = self.guest.rnic.held() as u64;
        assert_eq!(held, counted + status_page, "session and RNIC have the same objects");
        for resource in Resource::ALL {
            assert!(session.usage().used(resource) <= limit(resource), "{resource:?} exceeds its quota");
        }
        for (qp, connection) in session.connections() {
            let identity = session.identity();
            let directory = &self.guest.directory;
            let verdict = directory.evaluate(
                identity.vni,
                &identity.vnic,
                connection.transport,
                connection.local,
                connection.remote,
            );
            assert!(connection.vni == identity.vni && verdict.is_allowed(), "a connection that is denied");
            let owner = directory.endpoint(&connection.peer).expect("a peer has an endpoint");
            assert!(owner.qpn_blocks.iter().any(|b| b.contains(connection.remote_qpn)));
            self.guest.rnic.qp(qp.0, |q| assert_eq!(q.init.wire_qpn, connection.local_qpn));
        }
        for peer in self.guest.rnic.peers() {
            let vni = session.identity().vni;
            let known = |gid: &Gid| matches!(self.guest.directory.find(vni, *gid), Found::Realised(_));
            assert!(peer.gids.iter().all(known), "a peer of another network: {peer:?}");
        }
        assert!(self.waiting.len() <= 256, "unbounded waiting");
    }

    /// Afterwards nothing is left, neither here nor in the RNIC, and nobody waits.
    fn reset(&mut self) {
        let g = &mut self.guest;
        g.rnic.forgive();
        let report = g.session.reset(&g.rnic);
        assert!(report.failures.is_empty(), "{report:?}");
        assert_eq!(g.rnic.held(), 0);
        assert_eq!(g.session.connections().count(), 0);
        assert!(Resource::ALL.iter().all(|r| g.session.usage().used(*r) == 0));
        for ticket in self.waiting.drain(..) {
            assert!(g.resolve(ticket).is_none(), "a request from before the reset is answered");
        }
    }
}

fn limit(resource: Resource) -> u64 {
    static QUOTAS: OnceLock<masq_policy::quota::Quotas> = OnceLock::new();
    QUOTAS.get_or_init(quotas).get(resource)
}

fn head(opcode: u16) -> Request {
    Request { opcode, flags: 0, tag: 1, epoch: EPOCH }
}

/// An XRC initiator in the place of another queue pair.
fn initiator(r: CreateQp, sq: PageTable) -> CreateQp {
    CreateQp {
        qp_type: QP_TYPE_XRC_INI,
        recv_cq: HANDLE_NONE,
        sq_stride_shift: 7,
        rq_entries: 0,
        rq_stride_shift: 0,
        max_recv_sge: 0,
        sq,
        rq: PageTable::ZERO,
        ..r
    }
}

/// The changes that bring a queue pair for datagrams from RESET to RTS.
fn datagram_step(step: usize) -> (u32, QpAttr) {
    let (state, more) = [
        (QP_STATE_INIT, QP_ATTR_PKEY_INDEX | QP_ATTR_PORT | QP_ATTR_QKEY),
        (QP_STATE_RTR, 0),
        (QP_STATE_RTS, QP_ATTR_SQ_PSN),
    ][step];
    (QP_ATTR_STATE | more, QpAttr { state, ..QpAttr::ZERO })
}

/// Bytes of a command's structure, so that its checks and not its length decide.
fn body_len(opcode: u16) -> usize {
    match opcode {
        OP_DEVICE_INIT => DeviceInit::SIZE,
        OP_ADD_GID => AddGid::SIZE,
        OP_CREATE_CONTEXT => CreateContext::SIZE,
        OP_CREATE_PD => CreatePd::SIZE,
        OP_CREATE_MR => CreateMr::SIZE,
        OP_CREATE_CQ => CreateCq::SIZE,
        OP_CREATE_QP => CreateQp::SIZE,
        OP_MODIFY_QP => ModifyQp::SIZE,
        OP_REREG_MR => ReregMr::SIZE,
        OP_RESIZE_CQ => ResizeCq::SIZE,
        OP_CREATE_SRQ => CreateSrq::SIZE,
        OP_CREATE_MW => CreateMw::SIZE,
        _ => Destroy::SIZE,
    }
}
