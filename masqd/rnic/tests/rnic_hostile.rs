//! Guests and networks that do not keep to the rules, beside a pair of guests that does and must not notice.

mod common;

use std::net::UdpSocket;

use common::*;
use masq_driver::*;
use masq_rnic::RnicConfig;
use masq_types::{Qpn, WireQpn};
use masq_wire::PathProbe;
use proptest::test_runner::{RngAlgorithm, TestRng};
use rand::RngCore;
use vrdma_abi::ring::*;
use vrdma_rings::SharedMemory;

const MEMORY: u64 = 8 << 20;
const MR: u64 = 1 << 20;

fn random(seed: u8) -> TestRng {
    TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32])
}

/// Two honest guests that exchange data; their other memory must never change.
struct Victims {
    a: Guest,
    b: Guest,
    a_cq: TestCq,
    a_qp: TestQp,
    a_mr: Mr,
    b_mr: Mr,
    secret: u64,
    round: u8,
}

impl Victims {
    fn new(net: &mut Net, b_engine: usize) -> Self {
        let address = fresh_address();
        let mut a = Guest::attach(net, 0, 1, 100, &address, MEMORY);
        let mut b = match b_engine {
            0 => Guest::attach(net, 0, 2, 100, &address, MEMORY),
            _ => Guest::attach(net, b_engine, 2, 100, &fresh_address(), MEMORY),
        };
        let (a_cq, b_cq) = (a.cq(net, 64), b.cq(net, 64));
        let (a_qp, b_qp) = (a.qp(net, &a_cq, &a_cq), b.qp(net, &b_cq, &b_cq));
        let (a_mr, b_mr) = (a.mr(net, MR, all_access()), b.mr(net, MR, all_access()));
        connect(net, (&a, &a_qp), (&b, &b_qp), &Options::default());
        let secret = b.alloc(16);
        b.write(secret, &pattern(16 * PAGE as usize, 77));
        Victims { a, b, a_cq, a_qp, a_mr, b_mr, secret, round: 0 }
    }

    /// A write arrives, and nothing else has changed.
    fn check(&mut self, net: &mut Net) {
        self.round = self.round.wrapping_add(1);
        let len = 50_000;
        self.a.write(self.a_mr.gpa, &pattern(len, self.round));
        let write = to(&self.b_mr, 0, request(SEND_OP_RDMA_WRITE, self.round.into()));
        self.a.post(&mut self.a_qp, &write, &[sge(&self.a_mr, 0, len as u32)]);
        let c = wait(net, &mut self.a_cq);
        assert_eq!((c.status, c.wr_id), (WC_SUCCESS, self.round.into()));
        self.a_qp.sq.complete(c.consumer);
        assert!(self.b.read(self.b_mr.gpa, len) == pattern(len, self.round));
        assert!(self.b.read(self.secret, 16 * PAGE as usize) == pattern(16 * PAGE as usize, 77));
    }
}

/// A guest with queue pairs whose rings it fills with noise.
struct Hostile {
    guest: Guest,
    qps: Vec<TestQp>,
    cqs: Vec<TestCq>,
    srqs: [TestSrq; 2],
    mr: Mr,
    /// Keys of everything that has one.
    keys: Vec<u32>,
}

/// The number of the hostile guest's shared receive queue for XRC.
const SRQN: u32 = 9;

impl Hostile {
    fn new(net: &mut Net, id: u32, vni: u32, address: &str) -> Self {
        let mut guest = Guest::attach(net, 0, id, vni, address, MEMORY);
        let mr = guest.mr(net, MR, all_access());
        let cqs: Vec<_> = (0..2).map(|_| guest.cq(net, 256)).collect();
        let xrc = XrcSrq { xrcd: XrcdHandle(1), cq: cqs[1].handle, srqn: SRQN };
        let srqs = [guest.srq(net, None), guest.srq(net, Some(xrc))];
        let mut qps: Vec<_> = (0..4).map(|_| guest.qp(net, &cqs[0], &cqs[1])).collect();
        let mut qp_with = |adjust: &dyn Fn(&mut QpInit)| guest.qp_with(net, &cqs[0], &cqs[1], adjust);
        qps.push(qp_with(&|init| init.qp_type = QpType::Uc));
        let shared = srqs[0].handle;
        qps.push(qp_with(&|init| (init.kernel, init.receives) = (true, Receives::Shared(shared))));
        qps.push(qp_with(&|init| {
            (init.qp_type, init.recv_cq, init.receives) = (QpType::XrcIni, None, Receives::None);
        }));
        qps.push(qp_with(&|init| {
            (init.qp_type, init.receives) = (QpType::XrcTgt, Receives::Named(XrcdHandle(1)));
            (init.pd, init.sq, init.send_cq, init.recv_cq) = (None, None, None, None);
        }));
        let mut keys = vec![mr.key];
        let vnic = guest.id;
        for mw_type in [MwType::One, MwType::Two] {
            let create = Command::CreateMw { vnic, mw: MwHandle(guest.handle()), pd: PD, mw_type };
            let Ok(Reply::MwCreated { rkey }) = net.execute(0, create) else { panic!("no window") };
            keys.push(rkey.0);
        }
        let access = Access { mw_bind: true, ..all_access() };
        let pages = guest.pages(mr.gpa, MR / PAGE);
        for kind in [
            MrKind::AllMemory,
            MrKind::FastReg { max_pages: 4 },
            MrKind::Pages { iova: mr.gpa, length: MR, pages },
        ] {
            let attr = MrAttr { mr: MrHandle(guest.handle()), pd: PD, access, kind };
            let Ok(Reply::MrCreated { lkey, .. }) = net.execute(0, Command::CreateMr { vnic, mr: attr })
            else {
                panic!("no region")
            };
            keys.push(lkey.0);
        }
        let hostile = Hostile { guest, qps, cqs, srqs, mr, keys };
        hostile.connect(net);
        hostile
    }

    fn connect(&self, net: &mut Net) {
        let options = Options { timeout: 1, retry_cnt: 1, rnr_retry: 1, ..Options::default() };
        for (a, b) in [(0, 1), (2, 2), (4, 4), (5, 5), (6, 7)] {
            connect(net, (&self.guest, &self.qps[a]), (&self.guest, &self.qps[b]), &options);
        }
    }

    /// Noise for requests that change keys, and for those of XRC initiators.
    fn segments(&self, random: &mut TestRng, xrc: bool, entry: &mut [u8]) {
        let mut at = 32;
        if xrc {
            entry[32..48].fill(0);
            entry[32] = SRQN as u8 - u8::from(random.next_u32().is_multiple_of(8));
            at += 16;
        }
        let mut key = |low: u32| {
            let of = random.next_u32() as usize % self.keys.len();
            (self.keys[of] | (random.next_u32() % low)).to_le_bytes()
        };
        entry[4..8].copy_from_slice(&key(3));
        entry[24..28].copy_from_slice(&key(3));
        let any_lkey = key(1);
        // The right kind, most of the time: of a window, a region for windows, one for fast registration.
        let likely = !random.next_u32().is_multiple_of(4);
        let low = random.next_u32() % 3;
        let window = (self.keys[1 + random.next_u32() as usize % 2] | low).to_le_bytes();
        let lkey = if likely { self.keys[5].to_le_bytes() } else { any_lkey };
        let (addr, length) = (self.mr.gpa + u64::from(random.next_u32() % 4096), random.next_u32() % 30_000);
        match random.next_u32() % 8 {
            0 => {
                (entry[0], entry[1], entry[2]) = (SEND_OP_BIND_MW, SEND_SIGNALED, 0);
                if likely {
                    entry[24..28].copy_from_slice(&window);
                }
                entry[at..at + 4].copy_from_slice(&lkey);
                entry[at + 4..at + 8].copy_from_slice(&(random.next_u32() & 0x2e).to_le_bytes());
                entry[at + 8..at + 16].copy_from_slice(&addr.to_le_bytes());
                entry[at + 16..at + 24].copy_from_slice(&u64::from(length).to_le_bytes());
                entry[at + 24..at + 32].fill(0);
            }
            1 => {
                (entry[0], entry[1], entry[2]) = (SEND_OP_REG_MR, SEND_SIGNALED, 0);
                if likely {
                    entry[24..28].copy_from_slice(&(self.keys[4] | low).to_le_bytes());
                }
                entry[at..at + 8].copy_from_slice(&addr.to_le_bytes());
                entry[at + 8..at + 16].copy_from_slice(&u64::from(length % 16_000).to_le_bytes());
                entry[at + 16..at + 20].copy_from_slice(&(random.next_u32() % 16).to_le_bytes());
                entry[at + 20..at + 24].copy_from_slice(&12u32.to_le_bytes());
                entry[at + 24..at + 32].copy_from_slice(&addr.to_le_bytes());
            }
            2 => (entry[0], entry[1], entry[2]) = (SEND_OP_LOCAL_INV, SEND_SIGNALED, 0),
            3 => entry[0] = SEND_OP_SEND_INV,
            _ => {}
        }
    }

    /// Noise that is likely to get past the first checks: real keys, small counts, known opcodes.
    fn noise(&self, random: &mut TestRng, entry: &mut [u8]) {
        random.fill_bytes(entry);
        if random.next_u32().is_multiple_of(16) {
            return;
        }
        entry[0] = (random.next_u32() % 8) as u8;
        entry[1] = (random.next_u32() % 16) as u8;
        entry[2] = (random.next_u32() % 4) as u8;
        entry[3] = 0;
        // As a receive: its entries, and its reserved word.
        entry[8..16].copy_from_slice(&u64::from(random.next_u32() % 4).to_le_bytes());
        let va = self.mr.gpa + u64::from(random.next_u32()) % (MR - 30_000);
        entry[16..24].copy_from_slice(&va.to_le_bytes());
        entry[24..28].copy_from_slice(&self.mr.key.to_le_bytes());
        entry[28..32].copy_from_slice(&(random.next_u32() % 300).to_le_bytes());
        for at in (32..entry.len() - 15).step_by(16) {
            let addr = self.mr.gpa + u64::from(random.next_u32()) % (MR - 30_000);
            let length = random.next_u32() % 32_000;
            entry[at..at + 8].copy_from_slice(&addr.to_le_bytes());
            entry[at + 8..at + 12].copy_from_slice(&length.to_le_bytes());
            entry[at + 12..at + 16].copy_from_slice(&self.mr.key.to_le_bytes());
        }
    }

    /// Overwrites rings, indexes, arms and doorbells.
    fn scribble(&mut self, random: &mut TestRng) {
        for qp in &self.qps {
            for (gpa, stride) in [(qp.sq_gpa, 512usize), (qp.rq_gpa, 128)] {
                let ring = self.guest.mapping(gpa, ring_pages(64, stride.trailing_zeros() as u8));
                let mut entry = vec![0; stride];
                for _ in 0..16 {
                    self.noise(random, &mut entry);
                    if stride == 512 && random.next_u32().is_multiple_of(2) {
                        self.segments(random, qp.qp_type == QpType::XrcIni, &mut entry);
                    }
                    let at = stride * (1 + random.next_u32() as usize % 12);
                    ring.write(at, &entry);
                }
                let producer = match random.next_u32() % 8 {
                    0 => random.next_u32(),
                    _ => ring.load_acquire(0).wrapping_add(random.next_u32() % 8),
                };
                ring.store_release(0, producer);
            }
        }
        for srq in &self.srqs {
            let ring = self.guest.mapping(srq.gpa, ring_pages(64, 7));
            let mut entry = [0; 128];
            for at in 1..20 {
                self.noise(random, &mut entry);
                ring.write(128 * at, &entry);
            }
            let taken = ring.load_acquire(std::mem::offset_of!(WorkHeader, taken));
            ring.store_release(0, taken.wrapping_add(random.next_u32() % 8));
        }
        for cq in &self.cqs {
            let ring = self.guest.mapping(cq.gpa, 1);
            match random.next_u32() % 32 {
                0 => ring.store_release(0, random.next_u32()),
                _ => ring.store_release(0, ring.load_acquire(0).wrapping_add(random.next_u32() % 32)),
            }
            ring.store_release(4, random.next_u32() % 4);
        }
        for _ in 0..32 {
            let index = if random.next_u32().is_multiple_of(2) { 0 } else { random.next_u32() % 4032 };
            self.guest.mark((random.next_u32() % SLOTS as u32) as u16, index as u16);
        }
    }

    /// Brings the queue pairs back to life.
    fn revive(&mut self, net: &mut Net) {
        for qp in &self.qps {
            let reset = QpChange { to: Some(QpState::Reset), ..QpChange::default() };
            self.guest.modify(net, qp, reset).unwrap();
            for gpa in [qp.sq_gpa, qp.rq_gpa] {
                self.guest.mapping(gpa, 1).store_release(0, 0);
            }
        }
        self.connect(net);
    }
}

#[test]
fn noise_in_rings() {
    let (mut carried_out, mut failed, mut changed_keys) = (0, 0, 0);
    for seed in 0..6 {
        let mut random = random(seed);
        let mut net = Net::new(&[RnicConfig::default()]);
        let mut victims = Victims::new(&mut net, 0);
        // One in the victims' network and one in another, on the victims' address.
        let address = victims.a.address.to_string();
        let mut hostile =
            [Hostile::new(&mut net, 10, 100, &address), Hostile::new(&mut net, 11, 101, &address)];
        for _ in 0..12 {
            for h in &mut hostile {
                h.scribble(&mut random);
            }
            net.run(3);
            victims.check(&mut net);
            for h in &mut hostile {
                for cq in &mut h.cqs {
                    while let Some(c) = cq.ring.poll() {
                        let counter = if c.status == WC_SUCCESS { &mut carried_out } else { &mut failed };
                        *counter += 1;
                        let changes = matches!(c.opcode, WC_BIND_MW | WC_LOCAL_INV | WC_REG_MR);
                        changed_keys += u32::from(changes && c.status == WC_SUCCESS);
                    }
                }
                h.revive(&mut net);
            }
        }
        for h in hostile {
            h.guest.detach(&mut net);
        }
        victims.check(&mut net);
    }
    // The noise got past the first checks.
    assert!(carried_out > 25 && failed > 100, "{carried_out} carried out, {failed} failed");
    assert!(changed_keys > 10, "{changed_keys} changed keys");
}

#[test]
fn rings_and_pages_that_cannot_be() {
    let mut net = Net::new(&[RnicConfig::default()]);
    let mut g = Guest::attach(&mut net, 0, 1, 100, &fresh_address(), MEMORY);
    let cq = g.cq(&mut net, 16);
    let good = g.alloc(16);
    let base = |g: &Guest| QpInit {
        qp: QpHandle(900),
        ctx: CTX,
        pd: Some(PD),
        qp_type: QpType::Rc,
        kernel: false,
        qpn: Qpn::new(900).unwrap(),
        wire_qpn: WireQpn::new(900).unwrap(),
        send_cq: Some(cq.handle),
        recv_cq: Some(cq.handle),
        cookie: 0,
        signal_all: false,
        max_inline_bytes: 32,
        sq: Some(WorkQueueAttr { entries: 32, stride_shift: 6, max_sge: 2, ring: g.pages(good, 1) }),
        receives: Receives::Own(WorkQueueAttr {
            entries: 32,
            stride_shift: 6,
            max_sge: 3,
            ring: g.pages(good, 1),
        }),
        group: None,
    };
    fn sq(q: &mut QpInit) -> &mut WorkQueueAttr {
        q.sq.as_mut().unwrap()
    }
    fn rq(q: &mut QpInit) -> &mut WorkQueueAttr {
        let Receives::Own(queue) = &mut q.receives else { unreachable!() };
        queue
    }
    type Adjust = fn(&mut QpInit);
    let cases: &[Adjust] = &[
        |q| sq(q).entries = 0,
        |q| sq(q).entries = 48,
        |q| sq(q).entries = 1 << 31,
        |q| sq(q).stride_shift = 5,
        |q| sq(q).stride_shift = 63,
        |q| sq(q).max_sge = u16::MAX,
        |q| sq(q).max_sge = 3,
        |q| rq(q).max_sge = 4,
        |q| q.max_inline_bytes = u16::MAX,
        |q| sq(q).ring.pages = vec![],
        |q| sq(q).ring.pages = vec![!0xfff],
        |q| rq(q).ring.pages = vec![BASE + 8],
        |q| rq(q).ring.shift = 200,
        |q| q.send_cq = Some(CqHandle(NOBODY)),
        |q| q.recv_cq = Some(CqHandle(NOBODY)),
        |q| q.ctx = CtxHandle(NOBODY),
        |q| q.qp_type = QpType::Ud,
    ];
    for (i, adjust) in cases.iter().enumerate() {
        let mut qp = base(&g);
        adjust(&mut qp);
        assert!(net.execute(0, Command::CreateQp { vnic: g.id, qp }).is_err(), "case {i}");
    }
    // The refusals have left nothing behind.
    let qp = base(&g);
    net.execute(0, Command::CreateQp { vnic: g.id, qp }).unwrap();
    let destroy_cq = || Command::DestroyCq { vnic: g.id, cq: cq.handle };
    assert!(matches!(net.execute(0, destroy_cq()), Err(DriverError::Busy(_))));
    net.execute(0, Command::DestroyQp { vnic: g.id, qp: QpHandle(900) }).unwrap();
    net.execute(0, destroy_cq()).unwrap();
    net.execute(0, destroy_cq()).unwrap();
}

/// Whatever arrives from the peer's address, or from elsewhere, does no harm.
#[test]
fn noise_from_the_network() {
    let mut random = random(9);
    let mut net = Net::new(&[RnicConfig::default(), RnicConfig::default()]);
    let mut victims = Victims::new(&mut net, 1);
    victims.check(&mut net);
    let to_b = (victims.b.address, 4791);
    let from_a = UdpSocket::bind((victims.a.address, 0)).unwrap();
    let from_elsewhere = UdpSocket::bind((fresh_address(), 0)).unwrap();
    let b_qpn = b_qpn(&mut net);
    for _ in 0..20 {
        for _ in 0..50 {
            let len = random.next_u32() as usize % 200;
            let mut packet = vec![0; len];
            random.fill_bytes(&mut packet);
            if len > 12 {
                packet[0] = (random.next_u32() % 32) as u8;
                packet[1] &= 0x70;
                packet[5..8].copy_from_slice(&b_qpn.to_be_bytes()[1..]);
            }
            from_a.send_to(&packet, to_b).unwrap();
            from_elsewhere.send_to(&packet, to_b).unwrap();
        }
        net.run(1);
        victims.check(&mut net);
    }
    assert!(net.counter(1, "rx_wrong_peer") > 100);
    assert!(net.counter(1, "rx_icrc_errors") > 100);
    assert!(net.counter(1, "rx_malformed") > 0);
}

/// Whoever asks whether a path carries packets gets no more bytes than it has sent, and who answers what nobody has asked is not listened to.
#[test]
fn probes_of_strangers() {
    let mut net = Net::new(&[RnicConfig::default()]);
    let guest = Guest::attach(&mut net, 0, 1, 100, &fresh_address(), MEMORY);
    let stranger = UdpSocket::bind((fresh_address(), 4791)).unwrap();
    stranger.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    let flow = masq_wire::IcrcFlow::new(stranger.local_addr().unwrap().ip(), guest.address, 4791).unwrap();
    let mut seen = [0; 9000];
    for (is_answer, bytes) in [(false, 32), (false, 1500), (true, 32), (true, 4128)] {
        let probe = PathProbe { is_answer, token: [7; 16] };
        let mut packet = Vec::new();
        probe.emit(&mut packet, bytes);
        for good in [true, false] {
            let covered = packet.len() - 4;
            let icrc = flow.compute(&packet[..covered], 0) ^ if good { 0 } else { 1 << 7 };
            packet[covered..].copy_from_slice(&icrc.to_le_bytes());
            let before = net.counter(0, "rx_icrc_errors");
            stranger.send_to(&packet, (guest.address, 4791)).unwrap();
            net.run(5);
            if good && !is_answer {
                let (len, from) = stranger.recv_from(&mut seen).unwrap();
                assert_eq!((len, from.ip()), (bytes, guest.address));
                assert_eq!(PathProbe::parse(&seen[..len]), Some(PathProbe { is_answer: true, ..probe }));
            }
            assert_eq!(net.counter(0, "rx_icrc_errors") - before, u64::from(!good));
        }
    }
    stranger.set_nonblocking(true).unwrap();
    assert!(stranger.recv_from(&mut seen).is_err(), "more than one answer each");
}

/// The wire number of the only queue pair of engine 1.
fn b_qpn(net: &mut Net) -> u32 {
    match net.execute(1, Command::List) {
        Ok(Reply::Objects(objects)) => objects[0].qps[0].1.get(),
        other => panic!("{other:?}"),
    }
}

/// Commands about things that do not exist, in any order.
#[test]
fn commands_about_nothing() {
    let mut net = Net::new(&[RnicConfig::default()]);
    let g = Guest::attach(&mut net, 0, 1, 100, &fresh_address(), MEMORY);
    let (vnic, nobody) = (g.id, VnicId(99));
    let mut refused = |command: Command| {
        let text = format!("{command:?}");
        let e = net.execute(0, command).expect_err(&text);
        assert!(matches!(e, DriverError::UnknownObject(_)), "{text}: {e}");
    };
    refused(Command::DetachVnic { vnic: nobody });
    refused(Command::SetMemory { vnic: nobody, regions: vec![] });
    refused(Command::DestroyQp { vnic: nobody, qp: QpHandle(1) });
    refused(Command::QueryQp { vnic, qp: QpHandle(1) });
    refused(Command::RevokeQp { vnic, qp: QpHandle(1) });
    refused(Command::ModifyQp { vnic, qp: QpHandle(1), change: QpChange::default() });
    refused(Command::ModifySrq { vnic, srq: SrqHandle(1), limit: 1 });
    refused(Command::DetachQueue { vnic, index: 3 });
    refused(Command::ReplaceCall { vnic, index: 3, call: None });
    refused(Command::ReplaceKick { vnic, index: 3, kick: None });
    for destroy in [
        Command::DestroyQp { vnic, qp: QpHandle(1) },
        Command::DestroyCq { vnic, cq: CqHandle(1) },
        Command::DestroyMr { vnic, mr: MrHandle(1) },
        Command::DestroyMw { vnic, mw: MwHandle(1) },
        Command::DestroySrq { vnic, srq: SrqHandle(1) },
        Command::DestroyContext { vnic, ctx: CtxHandle(77) },
    ] {
        assert_eq!(net.execute(0, destroy).unwrap(), Reply::Done);
    }
    let bad = Some(Gpa(BASE + MEMORY));
    assert!(matches!(
        net.execute(0, Command::SetStatusPage { vnic, page: bad }),
        Err(DriverError::BadAddress(_))
    ));
    g.detach(&mut net);
    assert!(matches!(net.execute(0, Command::List), Ok(Reply::Objects(o)) if o.is_empty()));
}
