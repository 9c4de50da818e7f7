//! A guest with queue pairs of all types, windows, registrations and shared receive queues, that says anything in its requests, while two
//! honest guests beside it, on the same address, and one that listens for datagrams must not notice. It may reach all its memory by
//! RDMA as well, so that rings change while the engine works on them.

use std::net::{IpAddr, SocketAddr};

use masq_driver::{
    Access, Command, DriverError, MrAttr, MrHandle, MrKind, MwHandle, MwType, Peer, PeerId, PeerName,
    QpChange, QpState, QpType, Receives, Reply, SrqHandle, Verdict, XrcSrq, XrcdHandle,
};
use masq_rnic::transport::Time;
use masq_types::{Gid, Mtu, Psn, QpnBlock, WireQpn};
use masq_wire::{DethRepr, Extension, ICRC_BYTES, IcrcFlow, MAX_HEADER_BYTES, Opcode, PacketRepr};
use vrdma_abi::ring::{
    AtomicSegment, BindSegment, DatagramSegment, RegSegment, SEND_INLINE, SEND_OP_BIND_MW, SEND_OP_CMP_SWAP,
    SEND_OP_FETCH_ADD, SEND_OP_REG_MR, XrcSegment, ring_pages,
};
use vrdma_rings::SharedMemory;

use crate::aim::{Aim, publish};
use crate::engine::{self, Honest, MEMORY, answered, devices, turns};
use crate::guests::{
    BASE, Guest, Mr, Net, Options, PAGE, PD, TestCq, TestQp, TestSrq, all_access, connect, pattern, sge,
};
use crate::input::Input;

/// Steps of one input, so that none takes for ever.
const MAX_STEPS: usize = 64;
/// Pages at the start of its memory, where rings and doorbells are.
const BUSY_PAGES: u64 = 110;
const SQ_SHIFT: u8 = 9;
const RQ_SHIFT: u8 = 7;
const ENTRIES: u32 = 64;
const QKEY: u32 = 0x1111_1111;
const DOMAIN: XrcdHandle = XrcdHandle(3);
const SRQN: u32 = 0x4567;

/// One input: what the guest does, step by step.
pub fn run(data: &[u8]) {
    let input = &mut Input::new(data);
    let (address, stranger) = engine::addresses();
    let mut net = engine::net();
    let mut honest = Honest::new(&mut net, &address);
    let listener = Listener::new(&mut net, &address);
    // In the network of the honest guests, or in another one.
    let vni = 100 + u32::from(input.u8() % 2);
    let mut hostile = Hostile::new(&mut net, vni, (&address, &stranger), &honest, &listener);
    let mut steps = 0;
    while !input.is_empty() && steps < MAX_STEPS {
        steps += 1;
        hostile.step(&mut net, input);
    }
    turns(&mut net, 24);
    honest.check(&mut net);
    hostile.guest.detach(&mut net);
    honest.check(&mut net);
    listener.check();
    assert_eq!(devices(&mut net), [1, 2, 3], "a device that is gone is still there");
}

/// A guest that waits for datagrams and knows nobody.
struct Listener {
    guest: Guest,
    cq: TestCq,
    qp: TestQp,
    mr: Mr,
}

impl Listener {
    fn new(net: &mut Net, address: &str) -> Self {
        let mut guest = Guest::attach(net, 0, 3, 100, address, MEMORY);
        let cq = guest.cq(net, 64);
        let mut qp = guest.qp_with(net, &cq, &cq, |init| init.qp_type = QpType::Ud);
        let mr = guest.mr(net, 4 * PAGE, all_access());
        guest.write(mr.gpa, &pattern((4 * PAGE) as usize, 5));
        for wr_id in 0..8 {
            guest.post_recv(&mut qp, wr_id, &[sge(&mr, 0, (4 * PAGE) as u32)]);
        }
        activate(net, &guest, &qp);
        Listener { guest, cq, qp, mr }
    }

    fn check(mut self) {
        assert!(self.cq.ring.poll().is_none(), "a datagram from somebody whom the receiver does not know");
        let untouched = pattern((4 * PAGE) as usize, 5);
        assert!(self.guest.read(self.mr.gpa, untouched.len()) == untouched, "its memory has changed");
    }
}

/// From RESET to RTS, of a queue pair for datagrams.
fn activate(net: &mut Net, guest: &Guest, qp: &TestQp) {
    let to = |state| QpChange { to: Some(state), ..QpChange::default() };
    for change in [
        QpChange { qkey: Some(QKEY), ..to(QpState::Init) },
        QpChange { path_mtu: Some(Mtu::B1024), ..to(QpState::Rtr) },
        QpChange { sq_psn: Some(Psn::new(7)), ..to(QpState::Rts) },
    ] {
        guest.modify(net, qp, change).expect("a legal change");
    }
}

struct Hostile {
    guest: Guest,
    /// UD; UC, RC with a shared receive queue, and RC of a kernel, each connected to itself; an XRC initiator and its target.
    qps: Vec<TestQp>,
    /// The completion queue's ring, and two that it can move to.
    rings: [u64; 3],
    cq: TestCq,
    srqs: [TestSrq; 2],
    few: Mr,
    registered: MrHandle,
    windows: [MwHandle; 2],
    aim: Aim,
    gids: Vec<Gid>,
    /// Numbers of its own, of the listener's and of honest queue pairs.
    qpns: Vec<u32>,
    stranger: IpAddr,
    listener: WireQpn,
}

impl Hostile {
    fn new(
        net: &mut Net,
        vni: u32,
        (address, stranger): (&str, &str),
        honest: &Honest,
        listener: &Listener,
    ) -> Self {
        let stranger: IpAddr = stranger.parse().expect("an address");
        let mut guest = Guest::attach(net, 0, 9, vni, address, MEMORY);
        let cq = guest.cq(net, ENTRIES);
        let pages = ring_pages(ENTRIES, 6);
        let rings = [cq.gpa, guest.alloc(pages), guest.alloc(pages)];
        let xrc = XrcSrq { xrcd: DOMAIN, cq: cq.handle, srqn: SRQN };
        let srqs = [guest.srq(net, None), guest.srq(net, Some(xrc))];
        let shared = Receives::Shared(srqs[0].handle);
        let ud = guest.qp_with(net, &cq, &cq, |init| init.qp_type = QpType::Ud);
        let uc = guest.qp_with(net, &cq, &cq, |init| init.qp_type = QpType::Uc);
        let rc = guest.qp_with(net, &cq, &cq, |init| init.receives = shared);
        let kernel = guest.qp_with(net, &cq, &cq, |init| init.kernel = true);
        let initiator = guest.qp_with(net, &cq, &cq, |init| {
            (init.qp_type, init.recv_cq, init.receives) = (QpType::XrcIni, None, Receives::None);
        });
        let target = guest.qp_with(net, &cq, &cq, |init| {
            (init.qp_type, init.receives) = (QpType::XrcTgt, Receives::Named(DOMAIN));
            (init.pd, init.sq, init.send_cq, init.recv_cq) = (None, None, None, None);
        });
        let bindable = Access { mw_bind: true, ..all_access() };
        let all = guest.mr_at(net, BASE, MEMORY, bindable, PD);
        let few = guest.mr(net, 3 * PAGE, bindable);
        let mut keys = vec![all.key, few.key];
        let mut places = vec![all.gpa, few.gpa];
        let mut region = |net: &mut Net, kind| {
            let mr = MrHandle(guest.handle());
            let attr = MrAttr { mr, pd: PD, access: bindable, kind };
            match net.execute(0, Command::CreateMr { vnic: guest.id, mr: attr }) {
                Ok(Reply::MrCreated { rkey, .. }) => keys.push(rkey.0),
                other => panic!("{other:?}"),
            }
            mr
        };
        let registered = region(net, MrKind::FastReg { max_pages: 8 });
        region(net, MrKind::AllMemory);
        let windows = [MwType::One, MwType::Two].map(|mw_type| {
            let mw = MwHandle(guest.handle());
            match net.execute(0, Command::CreateMw { vnic: guest.id, mw, pd: PD, mw_type }) {
                Ok(Reply::MwCreated { rkey }) => keys.extend([rkey.0, rkey.0 + 1]),
                other => panic!("{other:?}"),
            }
            mw
        });
        for mr in honest.regions().into_iter().chain([&listener.mr]) {
            keys.push(mr.key);
            places.push(mr.gpa);
        }
        let gids = ["10.0.0.9", "10.0.0.3", "10.0.0.77", "fe80::9", "::", "224.0.0.1"];
        let gids = gids.map(|text| Gid::from(text.parse::<IpAddr>().expect("an address"))).to_vec();
        let [first, second] = honest.wire_qpns();
        let qpns = [ud.wire, listener.qp.wire, first, second].map(WireQpn::get).into_iter().chain([0, 1]);
        let hostile = Hostile {
            qps: vec![ud, uc, rc, kernel, initiator, target],
            rings,
            cq,
            srqs,
            few,
            registered,
            windows,
            aim: Aim { keys, places },
            qpns: qpns.collect(),
            gids,
            stranger,
            listener: listener.qp.wire,
            guest,
        };
        let table = hostile.gids[..1].to_vec();
        let gids = Command::SetGids { vnic: hostile.guest.id, table: table.clone(), published: table };
        net.execute(0, gids).expect("addresses of its own");
        hostile.connect(net);
        hostile
    }

    fn connect(&self, net: &mut Net) {
        let options = Options { timeout: 1, retry_cnt: 1, rnr_retry: 1, ..Options::default() };
        let [ud, alone @ .., initiator, target] = self.qps.as_slice() else { unreachable!("there are six") };
        activate(net, &self.guest, ud);
        for qp in alone {
            connect(net, (&self.guest, qp), (&self.guest, qp), &options);
        }
        connect(net, (&self.guest, initiator), (&self.guest, target), &options);
    }

    fn step(&mut self, net: &mut Net, input: &mut Input<'_>) {
        match input.u8() {
            0..0x70 => self.post_send(input),
            0x70..0x88 => self.post_recv(input),
            0x88..0x90 => self.producer(input),
            0x90..0x9c => self.scribble(input),
            0x9c..0xa4 => self.completion_header(input),
            0xa4..0xd0 => turns(net, 1 + input.below(8)),
            0xd0..0xd8 => self.arrive(net, input),
            0xd8..0xea => answered(self.command(net, input)),
            0xea..0xf6 => self.modify(net, input),
            _ => self.revive(net),
        }
    }

    /// Writes an entry at the producer's place, with the segments of its queue pair's type and of its opcode, publishes it
    /// and rings, as an honest guest does; what the entry says is another matter.
    fn post_send(&self, input: &mut Input<'_>) {
        // The target has no send queue.
        let qp = &self.qps[input.below(self.qps.len() - 1)];
        const OPCODES: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x20, 2];
        let (opcode, flags, count) = (input.u8(), input.u8(), input.u8());
        let opcode = if opcode < 0xf0 { OPCODES[usize::from(opcode) % OPCODES.len()] } else { input.u8() };
        let count = if count < 0xf0 { count % 4 } else { count };
        let flags = if flags & 0xf0 == 0xf0 { flags } else { flags & 0xf };
        let inline = if flags & SEND_INLINE != 0 { input.length(256) } else { 0 };
        let mut entry = vec![opcode, flags, count, 0];
        entry.extend(input.key(&self.aim.keys).to_le_bytes());
        entry.extend(input.exactly(8));
        entry.extend(self.aim.address(input).to_le_bytes());
        entry.extend(input.key(&self.aim.keys).to_le_bytes());
        entry.extend(inline.to_le_bytes());
        match qp.qp_type {
            QpType::Ud => entry.extend(self.datagram_segment(input)),
            QpType::XrcIni => {
                entry.extend(input.key(&[SRQN, SRQN, SRQN]).to_le_bytes());
                entry.extend([0; XrcSegment::SIZE - 4]);
            }
            _ => {}
        }
        match opcode {
            SEND_OP_CMP_SWAP | SEND_OP_FETCH_ADD => entry.extend(input.exactly(AtomicSegment::SIZE)),
            SEND_OP_BIND_MW => entry.extend(self.bind_segment(input)),
            SEND_OP_REG_MR => entry.extend(self.reg_segment(input)),
            _ => {}
        }
        for _ in 0..count.min(20) {
            entry.extend(self.aim.sge(input));
        }
        publish(&self.guest, qp.sq_gpa, ENTRIES, SQ_SHIFT, &entry);
        self.guest.mark(qp.slot, qp.index);
    }

    fn datagram_segment(&self, input: &mut Input<'_>) -> Vec<u8> {
        let gid = self.gids[input.below(self.gids.len())];
        let dest_qpn = input.key(&self.qpns);
        let qkey = input.key(&[QKEY, QKEY, 0x8001_0000, 1 << 31]);
        let mut segment = [&gid.0[..], &dest_qpn.to_le_bytes(), &qkey.to_le_bytes()].concat();
        segment.extend(input.exactly(4));
        segment.push(if input.below(8) == 0 { input.u8() } else { 0 });
        segment.extend(input.exactly(3));
        assert_eq!(segment.len(), DatagramSegment::SIZE);
        segment
    }

    fn bind_segment(&self, input: &mut Input<'_>) -> Vec<u8> {
        let mut segment = input.key(&self.aim.keys).to_le_bytes().to_vec();
        segment.extend(u32::from(input.u8() % 64).to_le_bytes());
        segment.extend(self.aim.address(input).to_le_bytes());
        segment.extend(u64::from(input.length(3 * PAGE as u32)).to_le_bytes());
        segment.extend([0; 8]);
        assert_eq!(segment.len(), BindSegment::SIZE);
        segment
    }

    fn reg_segment(&self, input: &mut Input<'_>) -> Vec<u8> {
        let mut segment = self.aim.address(input).to_le_bytes().to_vec();
        segment.extend(u64::from(input.length(8 * PAGE as u32)).to_le_bytes());
        segment.extend(u32::from(input.u8() % 64).to_le_bytes());
        let shift = input.u8();
        segment.extend(if shift < 0xe0 { 12u32 } else { u32::from(shift) }.to_le_bytes());
        segment.extend(self.aim.address(input).to_le_bytes());
        assert_eq!(segment.len(), RegSegment::SIZE);
        segment
    }

    /// Into a shared receive queue, or into one of a queue pair.
    fn post_recv(&self, input: &mut Input<'_>) {
        let which = input.below(4);
        let gpa = match self.srqs.get(which) {
            Some(srq) => srq.gpa,
            None => self.qps[if which == 2 { 0 } else { 3 }].rq_gpa,
        };
        let count = input.u8();
        let count = if count < 0xf0 { u32::from(count % 5) } else { input.u32() };
        let mut entry = input.exactly(8);
        entry.extend(count.to_le_bytes());
        entry.extend([0; 4]);
        for _ in 0..count.min(7) {
            entry.extend(self.aim.sge(input));
        }
        publish(&self.guest, gpa, ENTRIES, RQ_SHIFT, &entry);
    }

    /// A producer's index jumps, or what the RNIC has taken of a shared receive queue.
    fn producer(&self, input: &mut Input<'_>) {
        let gpa = match input.below(4) {
            0 => self.srqs[0].gpa,
            1 => self.srqs[1].gpa,
            _ => self.qps[input.below(self.qps.len() - 1)].sq_gpa,
        };
        let word = 4 * usize::from(input.u8() % 2);
        let ring = self.guest.mapping(gpa, 1);
        let value = match input.u8() {
            by @ ..0xe0 => ring.load_acquire(word).wrapping_add(u32::from(by)).wrapping_sub(0x60),
            _ => input.u32(),
        };
        ring.store_release(word, value);
    }

    /// Any byte of its memory changes.
    fn scribble(&self, input: &mut Input<'_>) {
        let page = u64::from(input.u8()) % BUSY_PAGES;
        let at = u64::from(input.u16()) % (PAGE - 256);
        let len = usize::from(input.u8());
        self.guest.write(BASE + page * PAGE + at, input.bytes(len));
    }

    /// The completion queue is said to have been read, and armed.
    fn completion_header(&self, input: &mut Input<'_>) {
        let ring = self.guest.mapping(self.rings[input.below(self.rings.len())], 1);
        let consumer = match input.u8() {
            by @ ..0xe0 => ring.load_acquire(0).wrapping_add((by % 16).into()),
            _ => input.u32(),
        };
        ring.store_release(0, consumer);
        ring.store_release(4, u32::from(input.u8() % 3));
    }

    /// A datagram arrives from the network, with a right ICRC, for the listener or for this guest.
    fn arrive(&self, net: &mut Net, input: &mut Input<'_>) {
        const SOURCE_PORT: u16 = 0xc021;
        let own = self.guest.address;
        let source = if input.below(2) == 0 { self.stranger } else { own };
        let to = if input.below(2) == 0 { self.listener } else { self.qps[0].wire };
        let src_qp = WireQpn::from_wire(input.key(&self.qpns));
        let qkey = input.key(&[QKEY, QKEY, QKEY]);
        let len = 128 * input.below(3);
        let payload = input.exactly(len);
        let deth = Extension::Deth(DethRepr { qkey, src_qp, check: 0 });
        let mut repr = PacketRepr::new(Opcode::UD_SEND_ONLY, to, Psn::new(input.u32()), deth);
        repr.set_payload_len(payload.len());
        let mut datagram = vec![0; MAX_HEADER_BYTES];
        let headers = repr.emit_headers(&mut datagram).expect("there is room");
        datagram.truncate(headers);
        datagram.extend(payload);
        if let Some(flow) = IcrcFlow::new(source, own, SOURCE_PORT) {
            datagram.extend(flow.compute(&datagram, 0).to_le_bytes());
        }
        assert!(datagram.len() > ICRC_BYTES);
        let now = Time::from_nanos(net.now);
        net.engines[0].handle_datagram(now, own, SocketAddr::new(source, SOURCE_PORT), &datagram);
    }

    /// Something that its kernel asks for, or that masqd says of its peers.
    fn command(&mut self, net: &mut Net, input: &mut Input<'_>) -> Result<Reply, DriverError> {
        let vnic = self.guest.id;
        let command = match input.below(12) {
            0 => Command::DestroyMw { vnic, mw: self.windows[input.below(2)] },
            1 => Command::DestroyMr { vnic, mr: self.few.handle },
            2 => Command::DestroyMr { vnic, mr: self.registered },
            3 => {
                let access = Some(Access { mw_bind: input.below(2) == 0, ..all_access() });
                let pages = self.guest.pages(BASE + u64::from(input.u8()) % BUSY_PAGES * PAGE, 2);
                let moved = MrKind::Pages { iova: self.few.gpa, length: 2 * PAGE, pages };
                let memory = (input.below(2) == 0).then_some(moved);
                Command::ReregMr { vnic, mr: self.few.handle, pd: None, access, memory }
            }
            4 => {
                let ring = self.guest.pages(self.rings[input.below(3)], ring_pages(ENTRIES, 6));
                Command::ResizeCq { vnic, cq: self.cq.handle, entries: 1 << (input.u8() % 7), ring }
            }
            5 => {
                let SrqHandle(first) = self.srqs[input.below(2)].handle;
                Command::ModifySrq { vnic, srq: SrqHandle(first), limit: input.u8().into() }
            }
            6 => Command::DestroySrq { vnic, srq: self.srqs[input.below(2)].handle },
            7 => Command::SetPeer { vnic, peer: self.peer(input) },
            8 => Command::RemovePeer { vnic, peer: PeerId(input.below(2) as u64) },
            9 => Command::NoPeer { vnic, name: PeerName::Gid(self.gids[input.below(self.gids.len())]) },
            10 => Command::RevokeQp { vnic, qp: self.qps[input.below(self.qps.len())].handle },
            _ => {
                self.guest.set_memory(net);
                return Ok(Reply::Done);
            }
        };
        net.execute(0, command)
    }

    /// Itself, or the listener, as masqd may tell it of them.
    fn peer(&self, input: &mut Input<'_>) -> Peer {
        let own = input.below(2) == 0;
        let wire = if own { self.qps[0].wire } else { self.listener };
        let allowed = input.u8();
        Peer {
            id: PeerId(u64::from(own)),
            gids: vec![self.gids[usize::from(!own)]],
            addresses: vec![self.guest.address],
            qpn_blocks: QpnBlock::new(wire.get() & !0xfff, 4096).into_iter().collect(),
            gsi_qpn: wire,
            is_stranger: allowed & 8 != 0,
            verdict: Verdict { send: allowed & 1 == 0, receive: allowed & 2 == 0, cm: allowed & 4 == 0 },
            exceptions: Vec::new(),
        }
    }

    /// A queue pair is asked to change its state, by a legal transition or not.
    fn modify(&self, net: &mut Net, input: &mut Input<'_>) {
        const STATES: [QpState; 5] = [QpState::Reset, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];
        let qp = &self.qps[input.below(self.qps.len())];
        let to = Some(STATES[input.below(STATES.len())]);
        answered(self.guest.modify(net, qp, QpChange { to, ..QpChange::default() }));
    }

    /// All queue pairs begin anew.
    fn revive(&self, net: &mut Net) {
        for qp in &self.qps {
            let reset = QpChange { to: Some(QpState::Reset), ..QpChange::default() };
            self.guest.modify(net, qp, reset).expect("a reset is always possible");
            for gpa in [qp.sq_gpa, qp.rq_gpa] {
                self.guest.mapping(gpa, 1).store_release(0, 0);
            }
        }
        self.connect(net);
    }
}
