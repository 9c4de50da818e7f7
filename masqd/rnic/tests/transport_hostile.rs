//! Packets that no honest peer sends, in every state: nothing panics, nothing runs for ever, and only memory that a
//! peer may write is written.

mod transport_support;

use std::time::Duration;

use masq_driver::QpState;
use masq_rnic::transport::*;
use masq_types::{Features, Mtu, Psn, Rkey};
use masq_wire::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, BeforeRepr, Bth, BthRepr, DethRepr, Extension, HoldRepr, Ieth,
    ImmDt, Kind, Layout, Msn, Opcode, PadCount, RethRepr, Syndrome,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use transport_support::*;

/// A packet with headers that belong to its opcode. PSNs are near what the receiver expects.
#[derive(Clone, Debug)]
struct Forged {
    opcode: u8,
    psn: PsnFrom,
    ack_req: bool,
    solicited: bool,
    rkey: u32,
    va: u64,
    dma_len: u32,
    syndrome: u8,
    payload: usize,
}

#[derive(Clone, Copy, Debug)]
enum PsnFrom {
    /// So far from the next request that is expected.
    Expected(i32),
    /// So far from the next request to send.
    Sent(i32),
    Any(u32),
}

#[derive(Clone, Debug)]
enum Input {
    Forged(Forged),
    /// A valid BTH, then anything.
    Noise {
        opcode: u8,
        psn: PsnFrom,
        bytes: Vec<u8>,
    },
    /// Bytes, whatever they are.
    Junk(Vec<u8>),
    /// Time passes, and the peer's honest packets arrive.
    Wait(u16),
    Recv(u32),
    Send(usize, u32),
}

fn psn_from() -> impl Strategy<Value = PsnFrom> {
    prop_oneof![
        6 => (-3..3i32).prop_map(PsnFrom::Expected),
        4 => (-12..2i32).prop_map(PsnFrom::Sent),
        1 => any::<u32>().prop_map(PsnFrom::Any),
    ]
}

/// Mostly opcodes of RC.
fn opcode() -> impl Strategy<Value = u8> {
    prop_oneof![12 => 0u8..0x18, 1 => any::<u8>()]
}

fn input() -> impl Strategy<Value = Input> {
    let rkey = prop_oneof![5 => Just(REMOTE), 1 => 0..6u32];
    let va = prop_oneof![
        4 => Just(BASE),
        2 => BASE - 300..BASE + 300,
        2 => (BASE + REGION_BYTES as u64 - 300)..(BASE + REGION_BYTES as u64 + 300),
        1 => any::<u64>(),
    ];
    let dma_len = prop_oneof![4 => 0..700u32, 1 => Just(REGION_BYTES as u32), 1 => any::<u32>()];
    let payload = prop_oneof![3 => Just(256usize), 2 => 0..300usize, 1 => 0..5000usize];
    let flags = (any::<bool>(), any::<bool>());
    let syndrome = prop_oneof![3 => Just(31u8), 2 => prop::sample::select(vec![0x20, 0x60, 0x61, 0x62, 0x63]), 1 => any::<u8>()];
    let forged = (opcode(), psn_from(), flags, rkey, va, dma_len, syndrome, payload).prop_map(
        |(opcode, psn, (ack_req, solicited), rkey, va, dma_len, syndrome, payload)| {
            Input::Forged(Forged { opcode, psn, ack_req, solicited, rkey, va, dma_len, syndrome, payload })
        },
    );
    prop_oneof![
        12 => forged,
        3 => (opcode(), psn_from(), prop::collection::vec(any::<u8>(), 0..80))
            .prop_map(|(opcode, psn, bytes)| Input::Noise { opcode, psn, bytes }),
        1 => prop::collection::vec(any::<u8>(), 0..64).prop_map(Input::Junk),
        2 => any::<u16>().prop_map(Input::Wait),
        3 => (0..2000u32).prop_map(Input::Recv),
        3 => (0..7usize, 0..2000u32).prop_map(|(op, len)| Input::Send(op, len)),
    ]
}

fn psn(pair: &Pair, from: PsnFrom) -> Psn {
    let status = pair.ends[1].qp.status();
    match from {
        PsnFrom::Expected(d) => Psn::new(status.rq_psn.get().wrapping_add_signed(d)),
        PsnFrom::Sent(d) => Psn::new(status.sq_psn.get().wrapping_add_signed(d)),
        PsnFrom::Any(psn) => Psn::new(psn),
    }
}

fn forge(f: &Forged, psn: Psn) -> Option<Vec<u8>> {
    let opcode = Opcode(f.opcode);
    let info = opcode.info()?;
    let mut bth = BthRepr::new(opcode, qpn(1), psn);
    (bth.ack_req, bth.solicited, bth.pad) = (f.ack_req, f.solicited, PadCount::for_payload(f.payload));
    let (rkey, va) = (Rkey(f.rkey), f.va);
    let aeth = AethRepr { syndrome: Syndrome::from_byte(f.syndrome), msn: Msn::new(f.dma_len) };
    let reth = RethRepr { va, rkey, dma_len: f.dma_len };
    let imm = ImmDt([1, 2, 3, 4]);
    let ext = match info.layout {
        Layout::None => Extension::None,
        Layout::Imm => Extension::Imm(imm),
        Layout::Ieth => Extension::Ieth(Ieth(rkey)),
        Layout::Reth => Extension::Reth(reth),
        Layout::RethImm => Extension::RethImm(reth, imm),
        Layout::Aeth => Extension::Aeth(aeth),
        Layout::AethAtomicAck => Extension::AethAtomicAck(aeth, AtomicAckEthRepr { original: va }),
        Layout::AethHold => Extension::AethHold(aeth, HoldRepr { nanos: f.rkey }),
        Layout::Atomic => Extension::Atomic(AtomicEthRepr { va, rkey, swap_or_add: 3, compare: 4 }),
        Layout::Deth => Extension::Deth(DethRepr { qkey: 1, src_qp: qpn(0), check: f.syndrome }),
        Layout::DethImm => Extension::DethImm(DethRepr { qkey: 1, src_qp: qpn(0), check: f.syndrome }, imm),
        Layout::ImmBefore => Extension::ImmBefore(imm, BeforeRepr { bytes: f.dma_len }),
        Layout::RethImmBefore => Extension::RethImmBefore(reth, imm, BeforeRepr { bytes: f.rkey }),
    };
    let payload = match info.kind {
        Kind::SelectiveAck => 4 * (1 + f.payload % 32),
        _ if info.has_payload() => f.payload,
        _ => 0,
    };
    let mut repr = masq_wire::PacketRepr { bth, xrc: None, ext };
    repr.set_payload_len(payload);
    let mut datagram = vec![0; repr.header_len()];
    repr.emit_headers(&mut datagram).ok()?;
    datagram.resize(datagram.len() + payload + repr.bth.pad.get() + 4, 0xdd);
    Some(datagram)
}

fn noise(opcode: u8, psn: Psn, bytes: &[u8]) -> Vec<u8> {
    let mut head = [0; Bth::LEN];
    BthRepr::new(Opcode(opcode), qpn(1), psn).emit(&mut head);
    let mut datagram = head.to_vec();
    datagram.extend_from_slice(bytes);
    datagram.resize(datagram.len().next_multiple_of(4), 0);
    datagram
}

/// The receiver is end 1, in `state`; end 0 is an honest peer whose connection the attacker shares.
fn attack(state: QpState, selective: bool, inputs: &[Input]) -> Result<(), TestCaseError> {
    let features = [if selective { Features::SELECTIVE } else { Features::NONE }; 2];
    let setup = Setup { features, timeout: 10, retry_cnt: 2, rnr_retry: 2, ..Setup::default() };
    let mut pair = Pair::with_memory(&setup);
    // Memory that must stay as it is: foreign, read only, and LOCAL outside posted receives and results.
    let spare = REGION_BYTES / 2 + 4096;
    for i in 0..2 {
        pair.post_recv(1, recv(i, 600));
    }
    if state != QpState::Rts {
        reach(&mut pair, &setup, state);
    }
    let before = pair.ends[1].world.regions.clone();
    for input in inputs {
        let datagram = match input {
            Input::Forged(f) => forge(f, psn(&pair, f.psn)),
            Input::Noise { opcode, psn: from, bytes } => Some(noise(*opcode, psn(&pair, *from), bytes)),
            Input::Junk(bytes) => Some(bytes.clone()),
            Input::Wait(micros) => {
                pair.run_for(Duration::from_micros((*micros).into()));
                None
            }
            Input::Recv(len) => {
                pair.post_recv(1, recv(7, *len));
                None
            }
            Input::Send(op, len) => {
                let op = SendOp::MESSAGES[*op];
                let target = vec![sge(LOCAL, BASE + 1024, *len)];
                pair.post_send(1, SendWork { sges: target, ..send(op, 8, 0) });
                None
            }
        };
        if let Some(datagram) = datagram {
            let written = pair.ends[1].world.writes.len();
            let kept = pair.ends[1].qp.early_bytes();
            pair.inject(1, &datagram);
            let world = &pair.ends[1].world;
            let new: usize = world.writes[written..].iter().map(|w| w.2).sum();
            prop_assert!(new <= datagram.len() + kept, "more was written than came in");
            let quiet = matches!(state, QpState::Reset | QpState::Init | QpState::Err);
            prop_assert!(!quiet || new == 0, "a packet was executed in {:?}", state);
        }
        pair.pump();
    }
    pair.run_for(Duration::from_millis(100));
    let after = &pair.ends[1].world.regions;
    for key in [2, 3] {
        prop_assert!(after[key].data == before[key].data, "region {} was written", after[key].key);
    }
    let local = |regions: &[Region]| [&regions[0].data[..1024], &regions[0].data[spare..]].concat();
    prop_assert!(local(after) == local(&before), "memory outside of receives and results was written");
    if !matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
        pair.enter(1, QpState::Err);
        pair.doorbell(1);
        let world = &pair.ends[1].world;
        prop_assert!(world.sq.is_empty() && world.rq.is_empty());
        let posted = |input: &&Input| matches!(input, Input::Recv(_));
        let receives = 2 + inputs.iter().filter(posted).count();
        prop_assert_eq!(world.of(WorkQueue::Recv).len(), receives, "each receive completes once");
        let posted = |input: &&Input| matches!(input, Input::Send(..));
        prop_assert_eq!(world.of(WorkQueue::Send).len(), inputs.iter().filter(posted).count());
    }
    Ok(())
}

fn reach(pair: &mut Pair, setup: &Setup, state: QpState) {
    match state {
        QpState::Sqd | QpState::Err => pair.enter(1, state),
        _ => {
            pair.enter(1, QpState::Reset);
            let steps = match state {
                QpState::Reset => 0,
                QpState::Init => 1,
                _ => 2,
            };
            for change in to_rts(setup, 1).into_iter().take(steps) {
                pair.modify(1, change).expect("a legal change");
            }
        }
    }
    assert_eq!(pair.ends[1].qp.state(), state);
}

fn run(state: QpState, cases: u32) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let inputs = (any::<bool>(), prop::collection::vec(input(), 1..25));
    if let Err(e) = runner.run(&inputs, |(selective, inputs)| attack(state, selective, &inputs)) {
        panic!("{e}");
    }
}

#[test]
fn hostile_packets_in_rts() {
    run(QpState::Rts, 600);
}

#[test]
fn hostile_packets_in_other_states() {
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Sqd, QpState::Err] {
        run(state, 60);
    }
}

/// A READ longer than any message, and an RDMA WRITE whose packets bring more or less than it announced, is refused
/// before it leaves its range.
#[test]
fn lengths_that_lie() {
    let forged = |opcode: Opcode, at: i32, dma_len, payload| Forged {
        opcode: opcode.0,
        psn: PsnFrom::Expected(at),
        ack_req: true,
        solicited: false,
        rkey: REMOTE,
        va: BASE,
        dma_len,
        syndrome: 31,
        payload,
    };
    let cases: [&[(Opcode, u32, usize)]; 9] = [
        &[(Opcode::RC_READ_REQUEST, (1 << 31) + 1, 0)],
        &[(Opcode::RC_WRITE_ONLY, 10, 11)],
        &[(Opcode::RC_WRITE_ONLY, 11, 10)],
        &[(Opcode::RC_WRITE_ONLY, u32::MAX, 10)],
        &[(Opcode::RC_WRITE_FIRST, 256, 256)],
        &[(Opcode::RC_WRITE_FIRST, 400, 256), (Opcode::RC_WRITE_LAST, 0, 145)],
        &[(Opcode::RC_WRITE_FIRST, 400, 256), (Opcode::RC_WRITE_LAST, 0, 143)],
        &[(Opcode::RC_WRITE_FIRST, 400, 256), (Opcode::RC_WRITE_MIDDLE, 0, 256)],
        &[(Opcode::RC_WRITE_FIRST, 400, 256), (Opcode::RC_SEND_LAST, 0, 144)],
    ];
    for case in cases {
        let mut pair = Pair::with_memory(&Setup::default());
        let before = pair.bytes(1, REMOTE, 256, 1024);
        for &(opcode, dma_len, payload) in case {
            let f = forged(opcode, 0, dma_len, payload);
            let datagram = forge(&f, psn(&pair, f.psn)).unwrap();
            pair.inject(1, &datagram);
        }
        assert_eq!(pair.ends[1].qp.state(), QpState::Err, "{case:?}");
        assert_eq!(pair.bytes(1, REMOTE, 256, 1024), before);
        pair.pump();
        let nak = masq_wire::parse(&pair.sent[0].1).unwrap();
        let syndrome = nak.repr.ext.aeth().unwrap().syndrome;
        assert_eq!(syndrome, Syndrome::Nak(masq_wire::NakCode::InvalidRequest));
        assert_eq!(pair.sent.len(), 1);
    }
}

/// Requests that cannot be carried out take no PSN. A guest that posts them faster than they are taken holds up
/// nobody, and takes no more of the host's memory than others.
#[test]
fn requests_that_fail_are_taken_one_at_a_time() {
    let mut pair = Pair::with_memory(&Setup::default());
    pair.deaf = [true; 2];
    pair.post_recv(1, recv(1, 100));
    pair.post_send(0, send(SendOp::Send, 1, 8));
    for i in 0..1000 {
        pair.post_send(0, SendWork { defect: Some(Status::LocQpOpErr), ..send(SendOp::Send, 2 + i, 8) });
    }
    for _ in 0..10 {
        pair.doorbell(0);
        pair.pump();
    }
    assert_eq!(pair.world(0).sq.len(), 999, "the first failure stops the queue");
    assert_eq!(pair.ends[0].qp.state(), QpState::Rts, "its turn has not come");
    pair.deaf = [false; 2];
    pair.run();
    let statuses = pair.world(0).statuses(WorkQueue::Send);
    let last = statuses.last().copied();
    assert_eq!((statuses.len(), last), (1001, Some((1001, Status::WrFlushErr))), "{:?}", &statuses[..3]);
}

/// READs of the longest length at the smallest MTU, repeated: the responder keeps a bounded state and sends
/// as its caller lets it.
#[test]
fn reads_of_everything() {
    let mut pair = Pair::with_memory(&Setup { max_dest_rd_atomic: 2, mtu: Mtu::B256, ..Setup::default() });
    let f = Forged {
        opcode: Opcode::RC_READ_REQUEST.0,
        psn: PsnFrom::Expected(0),
        ack_req: true,
        solicited: false,
        rkey: REMOTE,
        va: BASE,
        dma_len: REGION_BYTES as u32,
        syndrome: 31,
        payload: 0,
    };
    let datagram = forge(&f, psn(&pair, f.psn)).unwrap();
    let now = pair.now;
    for _ in 0..1000 {
        pair.inject(1, &datagram);
        let End { qp, world } = &mut pair.ends[1];
        let transmit = qp.poll_transmit(now, world, &mut Vec::new(), 4).unwrap();
        assert!(transmit.segments <= 4);
    }
    let mut segments = 0;
    let End { qp, world } = &mut pair.ends[1];
    while let Some(transmit) = qp.poll_transmit(now, world, &mut Vec::new(), 64) {
        segments += transmit.segments;
    }
    assert!(segments <= REGION_BYTES / 256 + 1, "{segments}");
}
