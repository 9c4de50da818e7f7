//! Random sequences of operations in both directions at once over a bad network: memory and completions must equal those of
//! a model that carries out one operation after the other.

mod transport_support;

use std::time::Duration;

use masq_rnic::transport::*;
use masq_types::{Features, Lkey, Mtu, Rkey};
use masq_wire::ImmDt;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use transport_support::*;

/// Keys of the regions that each end has. Only the peer's requests change SHARED and WORDS.
const SOURCE: u32 = 1;
const FETCHED: u32 = 2;
const RECEIVED: u32 = 3;
const SHARED: u32 = 4;
const WORDS: u32 = 5;

const AREA: usize = 24 * 1024;
const MOST_OPS: usize = 16;
const IOVA: u64 = 0x7f00_0000_1003;
const WORDS_IOVA: u64 = 0x8000;

#[derive(Clone, Debug)]
struct Op {
    op: SendOp,
    /// Length in MTUs, and bytes more or less.
    mtus: u32,
    extra: i32,
    pieces: u8,
    local: u16,
    remote: u16,
    signalled: bool,
    solicited: bool,
    fence: bool,
    inline: bool,
    value: u64,
}

#[derive(Clone, Debug)]
struct Case {
    ops: [Vec<Op>; 2],
    mtu: Mtu,
    psn: [u32; 2],
    window: u32,
    ack_every: u32,
    read_packets: u32,
    depth: u8,
    /// Which end takes the other for one that repairs selectively.
    selective: [bool; 2],
    /// READs are cut as the window has room.
    swift: bool,
    max_segments: usize,
    /// Receives that are posted before the traffic begins; the others come later.
    early: usize,
    faults: Faults,
    seed: u64,
}

fn op() -> impl Strategy<Value = Op> {
    let shape = (0..5u32, -1..2i32, 1..4u8, any::<u16>(), any::<u16>());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 0..4u64);
    let ops = SendOp::MESSAGES.into_iter().chain([SendOp::SendInv, SendOp::BindMw]).collect::<Vec<_>>();
    (prop::sample::select(ops), shape, flags).prop_map(
        |(op, (mtus, extra, pieces, local, remote), (signalled, solicited, fence, inline, value))| Op {
            op,
            mtus,
            extra,
            pieces,
            local,
            remote,
            signalled,
            solicited,
            fence,
            inline,
            value,
        },
    )
}

fn case(worst: u8) -> impl Strategy<Value = Case> {
    let psn = || prop_oneof![Just(0u32), 0xff_ffc0..0x100_0000u32, 0..0x100_0000u32];
    let ops = || prop::collection::vec(op(), 0..MOST_OPS);
    let tuning = (1..40u32, 1..12u32, 1..9u32, 1..5u8, 1..20usize);
    let faults = (0..=worst, 0..=worst, 0..=worst);
    let mtu = prop_oneof![4 => Just(Mtu::B256), 1 => prop::sample::select(Mtu::ALL.to_vec())];
    (ops(), ops(), mtu, psn(), psn(), tuning, 0..24usize, faults, any::<([bool; 2], bool, u64)>()).prop_map(
        |(a, b, mtu, psn_a, psn_b, tuning, early, (loss, duplication, reorder), (selective, swift, seed))| {
            Case {
                ops: [a, b],
                mtu,
                psn: [psn_a, psn_b],
                window: tuning.0,
                ack_every: tuning.1,
                read_packets: tuning.2,
                depth: tuning.3,
                selective,
                swift,
                max_segments: tuning.4,
                early,
                faults: Faults { loss, duplication, reorder },
                seed,
            }
        },
    )
}

/// wr_id, opcode, bytes, what the message brought besides, whether it was solicited.
type Receive = (u64, WcOpcode, u32, Option<ImmDt>, Option<Rkey>, bool);

/// What is known of one end when all is done, or what ought to be.
#[derive(Clone, Debug, Default)]
struct Outcome {
    regions: Vec<Region>,
    sends: Vec<(u64, WcOpcode, u32)>,
    receives: Vec<Receive>,
    /// Changes of keys: its own, and those that the peer has asked for.
    changes: [Vec<KeyChange>; 2],
}

fn regions(rng: &mut Seeded, mtu: Mtu) -> Vec<Region> {
    let mut area = |key, iova, len| {
        let mut region = Region::open(key, iova, len);
        rng.fill(&mut region.data);
        region
    };
    let receives = slot(mtu) * MOST_OPS;
    vec![
        Region { local_write: false, ..area(SOURCE, IOVA, AREA) },
        Region { remote_write: false, ..area(FETCHED, IOVA, AREA) },
        Region { remote_read: false, ..Region::open(RECEIVED, IOVA, receives) },
        area(SHARED, IOVA, AREA),
        // Few values, so that comparisons hold now and then.
        Region::open(WORDS, WORDS_IOVA, 64),
    ]
}

/// Bytes of each receive: the longest message.
fn slot(mtu: Mtu) -> usize {
    5 * mtu.bytes() as usize
}

/// Cuts `len` bytes at `at` of a region into pieces, the last bytes of the range first, with empty ones between.
fn cut(key: u32, iova: u64, at: usize, len: usize, pieces: u8) -> Vec<Sge> {
    let mut sges = Vec::new();
    let mut end = at + len;
    for left in (1..=usize::from(pieces)).rev() {
        let take = if left == 1 { end - at } else { (end - at) / 2 };
        end -= take;
        sges.push(sge(key, iova + end as u64, take as u32));
        if left > 1 {
            sges.push(sge(key, 1, 0));
        }
    }
    sges
}

/// The bytes that scatter/gather entries name, one after the other.
fn bytes<'a>(region: &'a Region, sges: &'a [Sge]) -> impl Iterator<Item = u8> + 'a {
    sges.iter().filter(|s| s.length > 0).flat_map(|s| {
        let at = (s.addr - region.iova) as usize;
        region.data[at..at + s.length as usize].iter().copied()
    })
}

fn place(region: &mut Region, sges: &[Sge], data: &[u8]) {
    let mut data = data.iter();
    for s in sges.iter().filter(|s| s.length > 0) {
        let at = (s.addr - region.iova) as usize;
        for target in &mut region.data[at..at + s.length as usize] {
            match data.next() {
                Some(&byte) => *target = byte,
                None => return,
            }
        }
    }
}

/// The two ends as they ought to be after all operations, and the work that brings them there.
struct Model {
    mtu: Mtu,
    ends: [Outcome; 2],
    sends: [Vec<SendWork>; 2],
    recvs: [Vec<RecvWork>; 2],
}

impl Model {
    fn new(case: &Case) -> (Self, [Vec<Region>; 2]) {
        let mut rng = Seeded::new(case.seed);
        let regions = [regions(&mut rng, case.mtu), regions(&mut rng, case.mtu)];
        let end = |regions: &Vec<Region>| Outcome { regions: regions.clone(), ..Outcome::default() };
        let ends = [end(&regions[0]), end(&regions[1])];
        let mut model = Self { mtu: case.mtu, ends, sends: Default::default(), recvs: Default::default() };
        for from in 0..2 {
            let mut unfenced_read = false;
            for (i, op) in case.ops[from].iter().enumerate() {
                model.apply(from, i as u64, op, &mut unfenced_read);
            }
        }
        (model, regions)
    }

    fn region(&mut self, end: usize, key: u32) -> &mut Region {
        self.ends[end].regions.iter_mut().find(|r| r.key == key).expect("each end has all regions")
    }

    fn apply(&mut self, from: usize, wr_id: u64, op: &Op, unfenced_read: &mut bool) {
        let to = 1 - from;
        let len = len(op, self.mtu);
        let within = |place: u16, space: usize| usize::from(place) % (space - len + 1);
        let local = within(op.local, AREA);
        let mut work = SendWork {
            wr_id,
            op: op.op,
            signalled: op.signalled,
            solicited: op.solicited,
            fence: op.fence,
            imm: ImmDt(op.value.to_be_bytes()[4..].try_into().expect("four bytes")),
            inv: Rkey(op.value as u32),
            compare_add: op.value,
            swap: op.value + 1,
            ..SendWork::default()
        };
        let key = if op.op.is_fetch() { FETCHED } else { SOURCE };
        work.sges = cut(key, IOVA, local, len, op.pieces);
        let data: Vec<u8> = bytes(self.region(from, key), &work.sges).collect();
        if op.op.is_local() {
            work.sges.clear();
            let bind =
                Bind { key: Rkey(wr_id as u32), lkey: Lkey(SHARED), access: ALL_ACCESS, addr: 0, length: 1 };
            work.key_change = Some(KeyChange::Bind(bind));
        } else if op.inline && !op.op.is_fetch() && len <= 256 {
            work.inline = true;
            work.inline_data = data.clone();
            work.sges.clear();
        }
        let target = within(op.remote, AREA);
        match op.op {
            SendOp::Send | SendOp::SendImm => self.receive(to, op, &work, &data, WcOpcode::Recv),
            SendOp::SendInv => {
                self.receive(to, op, &work, &data, WcOpcode::Recv);
                self.ends[to].changes[1].push(KeyChange::Invalidate(work.inv));
            }
            SendOp::LocalInv | SendOp::BindMw | SendOp::RegMr => {
                self.ends[from].changes[0].extend(work.key_change);
            }
            SendOp::Write | SendOp::WriteImm => {
                // A READ that is repeated must not see what came after it.
                work.fence |= *unfenced_read;
                (work.remote_addr, work.rkey) = (IOVA + target as u64, Rkey(SHARED));
                self.region(to, SHARED).data[target..target + len].copy_from_slice(&data);
                if op.op == SendOp::WriteImm {
                    self.receive(to, op, &work, &data, WcOpcode::RecvRdmaWithImm);
                }
            }
            SendOp::Steer => unreachable!("it is of queue pairs with several paths"),
            SendOp::Read => {
                let source = if op.value.is_multiple_of(2) { SHARED } else { SOURCE };
                (work.remote_addr, work.rkey) = (IOVA + target as u64, Rkey(source));
                let data = self.region(to, source).data[target..target + len].to_vec();
                place(self.region(from, FETCHED), &work.sges, &data);
            }
            SendOp::CmpSwap | SendOp::FetchAdd => {
                let at = usize::from(op.remote) % 3 * 8;
                (work.remote_addr, work.rkey) = (WORDS_IOVA + at as u64, Rkey(WORDS));
                let word = &mut self.region(to, WORDS).data[at..at + 8];
                let old = u64::from_ne_bytes((&*word).try_into().expect("eight bytes"));
                let new = match op.op {
                    SendOp::FetchAdd => old + op.value,
                    _ if old == op.value => op.value + 1,
                    _ => old,
                };
                word.copy_from_slice(&new.to_ne_bytes());
                place(self.region(from, FETCHED), &work.sges, &old.to_ne_bytes());
            }
        }
        *unfenced_read = op.op == SendOp::Read || (*unfenced_read && !work.fence);
        if op.signalled {
            self.ends[from].sends.push((wr_id, op.op.wc_opcode(), len as u32));
        }
        self.sends[from].push(work);
    }

    fn receive(&mut self, to: usize, op: &Op, work: &SendWork, data: &[u8], opcode: WcOpcode) {
        let index = self.recvs[to].len();
        let sges = cut(RECEIVED, IOVA, index * slot(self.mtu), slot(self.mtu), op.pieces);
        if opcode == WcOpcode::Recv {
            place(self.region(to, RECEIVED), &sges, data);
        }
        let imm = op.op.has_imm().then_some(work.imm);
        let inv = (op.op == SendOp::SendInv).then_some(work.inv);
        self.ends[to].receives.push((index as u64, opcode, data.len() as u32, imm, inv, op.solicited));
        self.recvs[to].push(RecvWork { wr_id: index as u64, sges, ..RecvWork::default() });
    }
}

fn outcome(world: &World) -> Result<Outcome, TestCaseError> {
    for c in &world.completions {
        prop_assert_eq!(c.status, Status::Success, "{:?}", c);
    }
    prop_assert_eq!(&world.events, &[]);
    let sends = world.of(WorkQueue::Send);
    let receives = world.of(WorkQueue::Recv);
    Ok(Outcome {
        regions: world.regions.clone(),
        sends: sends.iter().map(|c| (c.wr_id, c.opcode, c.byte_len)).collect(),
        receives: receives
            .iter()
            .map(|c| (c.wr_id, c.opcode, c.byte_len, c.imm, c.inv, c.solicited))
            .collect(),
        changes: [false, true].map(|of_peer| {
            let of = |c: &&KeyChange| matches!(c, KeyChange::Invalidate(_)) == of_peer;
            world.changes.iter().filter(of).copied().collect()
        }),
    })
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let (mut model, regions) = Model::new(case);
    let config = QpConfig {
        window_packets: case.window,
        ack_every: case.ack_every,
        read_packets: case.read_packets,
        min_ack_timeout: Duration::ZERO,
        congestion: if case.swift { Congestion::Swift } else { Congestion::None },
        ..QpConfig::default()
    };
    let setup = Setup {
        mtu: case.mtu,
        psn: case.psn,
        features: case.selective.map(|s| if s { Features::SELECTIVE } else { Features::NONE }),
        max_rd_atomic: case.depth,
        max_dest_rd_atomic: case.depth,
        max_segments: case.max_segments,
        config,
        ..Setup::default()
    };
    let mut pair = Pair::connected(&setup, case.seed);
    pair.faults = case.faults;
    let mut late: [std::vec::IntoIter<RecvWork>; 2] = std::mem::take(&mut model.recvs).map(Vec::into_iter);
    for (end, regions) in regions.into_iter().enumerate() {
        pair.world(end).regions = regions;
        for recv in late[end].by_ref().take(case.early) {
            pair.post_recv(end, recv);
        }
    }
    for (end, sends) in std::mem::take(&mut model.sends).into_iter().enumerate() {
        for send in sends {
            pair.post_send(end, send);
        }
    }
    loop {
        let posted: Vec<_> = (0..2).filter_map(|end| late[end].next().map(|recv| (end, recv))).collect();
        if posted.is_empty() {
            break;
        }
        for (end, recv) in posted {
            pair.post_recv(end, recv);
        }
        pair.run_for(Duration::from_micros(150));
    }
    pair.run();
    for end in 0..2 {
        let got = outcome(&pair.ends[end].world)?;
        let want = &model.ends[end];
        prop_assert_eq!(&got.sends, &want.sends, "sends of end {}", end);
        prop_assert_eq!(&got.receives, &want.receives, "receives of end {}", end);
        prop_assert_eq!(&got.changes, &want.changes, "changes of keys at end {}", end);
        for (got, want) in got.regions.iter().zip(&want.regions) {
            let first = got.data.iter().zip(&want.data).position(|(g, w)| g != w);
            prop_assert_eq!(first, None, "region {} of end {}", got.key, end);
        }
        let packets: u32 = case.ops[end].iter().map(|op| psns(op, case.mtu)).sum();
        let status = pair.ends[end].qp.status();
        prop_assert_eq!(status.sq_psn, masq_types::Psn::new(case.psn[end]).plus(packets));
        prop_assert_eq!(status.sq_psn, pair.ends[1 - end].qp.status().rq_psn);
    }
    Ok(())
}

/// Bytes of an operation's message.
fn len(op: &Op, mtu: Mtu) -> usize {
    let len = i64::from(op.mtus * mtu.bytes()) + i64::from(op.extra);
    match op.op {
        _ if op.op.is_local() => 0,
        _ if op.op.is_atomic() => 8,
        _ => len.max(0) as usize,
    }
}

/// PSNs that an operation takes.
fn psns(op: &Op, mtu: Mtu) -> u32 {
    if op.op.is_local() { 0 } else { len(op, mtu).div_ceil(mtu.bytes() as usize).max(1) as u32 }
}

fn run(cases: u32, worst: u8) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    if let Err(e) = runner.run(&case(worst), |case| check(&case)) {
        panic!("{e}");
    }
}

#[test]
fn equals_the_model_on_a_good_network() {
    run(100, 0);
}

#[test]
fn equals_the_model_on_a_bad_network() {
    run(300, 20);
}
