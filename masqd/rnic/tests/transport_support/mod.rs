//! A simulated pair: two queue pairs over model memory, joined by a network that loses, repeats and reorders.
#![allow(dead_code)] // each test binary uses a part

pub mod bottleneck;
mod rng;
mod world;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;
use std::time::Duration;

use masq_driver::{Access, Connection, QpChange, QpState, QpType};
use masq_rnic::transport::*;
use masq_types::{Features, Gid, Mtu, Psn, WireQpn};

pub use rng::Seeded;
pub use world::{Region, World, sge};

/// What the network does to packets, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u8,
    pub duplication: u8,
    pub reorder: u8,
}

/// How a connection is set up; the same at both ends, save for what an end thinks of its peer.
#[derive(Clone, Debug)]
pub struct Setup {
    pub mtu: Mtu,
    /// First PSN of requests from end 0 and from end 1.
    pub psn: [u32; 2],
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    /// What each end takes for common to both.
    pub features: [Features; 2],
    pub access: Access,
    pub config: QpConfig,
    pub max_segments: usize,
}

pub const ALL_ACCESS: Access = Access {
    local_write: true,
    remote_write: true,
    remote_read: true,
    remote_atomic: true,
    mw_bind: false,
    zero_based: false,
};

impl Default for Setup {
    fn default() -> Self {
        Self {
            mtu: Mtu::B256,
            psn: [0xff_fff0, 5],
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            features: [Features::NONE; 2],
            access: ALL_ACCESS,
            config: QpConfig { min_ack_timeout: Duration::ZERO, ..QpConfig::default() },
            max_segments: 16,
        }
    }
}

pub struct End {
    pub qp: QpCore,
    pub world: World,
}

/// Two connected queue pairs; owns clock and network.
pub struct Pair {
    pub now: Time,
    pub ends: [End; 2],
    pub faults: Faults,
    /// Packets for this end vanish.
    pub deaf: [bool; 2],
    /// Every datagram that was sent, with its receiver, in order.
    pub sent: Vec<(usize, Vec<u8>)>,
    wire: BinaryHeap<Reverse<Flight>>,
    sequence: u64,
    /// How often a packet was lost, by receiver, opcode and PSN.
    losses: HashMap<(usize, u8, u32), u32>,
    rng: Seeded,
    max_segments: usize,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    at: Time,
    sequence: u64,
    to: usize,
    datagram: Vec<u8>,
}

pub const LATENCY: Duration = Duration::from_micros(20);
/// The network never loses a packet and its repetitions more often than that, nor any one answer, so that seven
/// retries suffice.
const MOST_LOSSES: u32 = 3;

impl Pair {
    /// Connected, in RTS at both ends.
    pub fn connected(setup: &Setup, seed: u64) -> Self {
        let mut pair = Self::unconnected(setup, seed);
        for end in 0..2 {
            for change in to_rts(setup, end) {
                pair.modify(end, change).expect("a legal change");
            }
        }
        pair
    }

    /// Both ends in RESET.
    pub fn unconnected(setup: &Setup, seed: u64) -> Self {
        let end = || End { qp: QpCore::new(setup.config.clone()), world: World::default() };
        Self {
            now: Time::from_nanos(1_000_000),
            ends: [end(), end()],
            faults: Faults::default(),
            deaf: [false; 2],
            sent: Vec::new(),
            wire: BinaryHeap::new(),
            sequence: 0,
            losses: HashMap::new(),
            rng: Seeded::new(seed),
            max_segments: setup.max_segments,
        }
    }

    pub fn modify(&mut self, end: usize, change: QpChange) -> Result<(), masq_driver::DriverError> {
        let now = self.now;
        let End { qp, world } = &mut self.ends[end];
        qp.modify(now, world, &change)
    }

    pub fn enter(&mut self, end: usize, to: QpState) {
        self.modify(end, QpChange { to: Some(to), ..QpChange::default() }).expect("a legal change");
    }

    pub fn post_send(&mut self, end: usize, work: SendWork) {
        self.ends[end].world.post_send(work);
        self.doorbell(end);
    }

    pub fn post_recv(&mut self, end: usize, work: RecvWork) {
        self.ends[end].world.post_recv(work);
        if self.ends[end].qp.state() == QpState::Err {
            self.doorbell(end);
        }
    }

    pub fn doorbell(&mut self, end: usize) {
        let now = self.now;
        let End { qp, world } = &mut self.ends[end];
        while qp.handle_work(now, world) {}
    }

    /// Hands a datagram to an end now, as if it had come from the peer. Bytes that are no packet are dropped, as
    /// the edge does.
    pub fn inject(&mut self, to: usize, datagram: &[u8]) {
        self.inject_with(to, datagram, Receipt::unmarked(self.now));
    }

    /// The same of one of which the network says something.
    pub fn inject_with(&mut self, to: usize, datagram: &[u8], receipt: Receipt) {
        let now = self.now;
        let End { qp, world } = &mut self.ends[to];
        if let Ok(packet) = masq_wire::parse(datagram) {
            qp.handle_packet(now, world, &packet, receipt);
            while qp.wants_work() {
                qp.handle_work(now, world);
            }
        }
    }

    /// Sends what both ends have to send.
    pub fn pump(&mut self) {
        for from in 0..2 {
            let mut buf = Vec::new();
            loop {
                buf.clear();
                let now = self.now;
                let End { qp, world } = &mut self.ends[from];
                let may_transmit = qp.may_transmit();
                let transmit = qp.poll_transmit(now, world, &mut buf, self.max_segments);
                assert!(may_transmit || transmit.is_none(), "something to send that was not announced");
                let Some(transmit) = transmit else {
                    assert!(buf.is_empty(), "nothing to send, but the buffer was touched");
                    if qp.wants_work() {
                        while qp.handle_work(now, world) {}
                        continue;
                    }
                    break;
                };
                assert_eq!(buf.len(), transmit.total_bytes);
                assert!(transmit.segments <= self.max_segments && buf.len() <= Transmit::MAX_BYTES);
                let datagrams: Vec<_> = buf.chunks(transmit.segment_bytes).map(<[u8]>::to_vec).collect();
                assert_eq!(datagrams.len(), transmit.segments);
                for datagram in datagrams {
                    self.send(1 - from, datagram);
                }
            }
        }
    }

    fn send(&mut self, to: usize, datagram: Vec<u8>) {
        let packet = masq_wire::parse(&datagram).expect("what is sent makes sense");
        let bth = packet.repr.bth;
        assert_eq!(bth.dest_qp, qpn(to));
        self.sent.push((to, datagram.clone()));
        if self.deaf[to] {
            return;
        }
        if self.rng.percent(self.faults.loss) {
            let losses = self.losses.entry((to, bth.opcode.0, bth.psn.get())).or_default();
            *losses += 1;
            if *losses <= MOST_LOSSES {
                return;
            }
        }
        let copies = if self.rng.percent(self.faults.duplication) { 2 } else { 1 };
        for _ in 0..copies {
            let extra = if self.rng.percent(self.faults.reorder) {
                Duration::from_nanos(self.rng.below(100_000))
            } else {
                Duration::ZERO
            };
            let at = self.now.plus(LATENCY + extra);
            self.sequence += 1;
            self.wire.push(Reverse(Flight { at, sequence: self.sequence, to, datagram: datagram.clone() }));
        }
    }

    /// Moves on to the next moment at which something happens; `false` when nothing ever will, or not before `limit`.
    pub fn step(&mut self, limit: Time) -> bool {
        self.pump();
        let arrival = self.wire.peek().map(|Reverse(f)| f.at);
        let timers = self.ends.iter().filter_map(|e| e.qp.poll_timeout());
        let Some(next) = timers.chain(arrival).min() else { return false };
        if next > limit {
            self.now = limit;
            return false;
        }
        self.now = self.now.max(next);
        while let Some(Reverse(f)) = self.wire.peek() {
            if f.at > self.now {
                break;
            }
            let Some(Reverse(flight)) = self.wire.pop() else { break };
            self.inject(flight.to, &flight.datagram);
        }
        for End { qp, world } in &mut self.ends {
            if qp.poll_timeout().is_some_and(|t| t <= self.now) {
                qp.handle_timeout(self.now, world);
                while qp.wants_work() {
                    qp.handle_work(self.now, world);
                }
                assert!(qp.poll_timeout().is_none_or(|t| t > self.now), "a deadline stays in the past");
            }
        }
        true
    }

    /// Runs until nothing is on its way and no deadline is set.
    pub fn run(&mut self) {
        let limit = self.now.plus(Duration::from_secs(60));
        let mut steps = 0;
        while self.step(limit) {
            steps += 1;
            assert!(steps < 1_000_000, "it never ends");
        }
        assert!(self.now < limit, "still busy after a minute");
    }

    /// The same over a network that delivers only what `delivers` says: told are the receiver and the datagram.
    pub fn run_with(&mut self, mut delivers: impl FnMut(usize, &[u8]) -> bool) {
        self.run_within(Duration::from_secs(60), &mut delivers);
    }

    /// The same for `duration` at most.
    pub fn run_within(&mut self, duration: Duration, mut delivers: impl FnMut(usize, &[u8]) -> bool) {
        let limit = self.now.plus(duration);
        loop {
            let before = self.sequence;
            self.pump();
            self.wire = std::mem::take(&mut self.wire)
                .into_iter()
                .filter(|Reverse(f)| f.sequence <= before || delivers(f.to, &f.datagram))
                .collect();
            if !self.step(limit) {
                break;
            }
        }
    }

    /// Runs for `duration`.
    pub fn run_for(&mut self, duration: Duration) {
        let limit = self.now.plus(duration);
        while self.step(limit) {}
        self.now = self.now.max(limit);
    }

    pub fn world(&mut self, end: usize) -> &mut World {
        &mut self.ends[end].world
    }
}

/// The queue pair number of an end.
pub fn qpn(end: usize) -> WireQpn {
    WireQpn::from_wire(0x1000 + end as u32)
}

/// The changes that bring an end from RESET to RTS.
pub fn to_rts(setup: &Setup, end: usize) -> [QpChange; 3] {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let gid = Gid::from(Ipv4Addr::LOCALHOST);
    let connection = Connection {
        local: address,
        remote: address,
        remote_qpn: qpn(1 - end),
        other_paths: Vec::new(),
        udp_source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        features: setup.features[end],
        virtual_local: gid,
        virtual_remote: gid,
    };
    let init = QpChange { to: Some(QpState::Init), access: Some(setup.access), ..QpChange::default() };
    let (asks, responds) = match setup.config.qp_type {
        QpType::Uc => (false, false),
        QpType::XrcIni => (true, false),
        QpType::XrcTgt => (false, true),
        _ => (true, true),
    };
    let rtr = QpChange {
        to: Some(QpState::Rtr),
        connection: Some(connection),
        path_mtu: Some(setup.mtu),
        rq_psn: Some(Psn::new(setup.psn[1 - end])),
        max_dest_rd_atomic: responds.then_some(setup.max_dest_rd_atomic),
        min_rnr_timer: responds.then_some(setup.min_rnr_timer),
        ..QpChange::default()
    };
    let rts = QpChange {
        to: Some(QpState::Rts),
        sq_psn: Some(Psn::new(setup.psn[end])),
        timeout: (asks || responds).then_some(setup.timeout),
        retry_cnt: asks.then_some(setup.retry_cnt),
        rnr_retry: asks.then_some(setup.rnr_retry),
        max_rd_atomic: asks.then_some(setup.max_rd_atomic),
        ..QpChange::default()
    };
    [init, rtr, rts]
}

/// Keys of the regions that [`Pair::with_memory`] gives each end.
pub const LOCAL: u32 = 1;
/// See [`LOCAL`]; open to the peer.
pub const REMOTE: u32 = 2;
/// See [`LOCAL`]; in another protection domain.
pub const FOREIGN: u32 = 3;
/// See [`LOCAL`]; may only be read.
pub const READ_ONLY: u32 = 4;
/// Bytes of each of those regions, and the address of its first.
pub const REGION_BYTES: usize = 1 << 17;
pub const BASE: u64 = 0x10_0000;

impl Pair {
    /// Connected, and both ends have memory with random content.
    pub fn with_memory(setup: &Setup) -> Self {
        let mut pair = Self::connected(setup, 1);
        let noise = noise();
        for end in 0..2 {
            let regions = &mut pair.world(end).regions;
            *regions =
                [LOCAL, REMOTE, FOREIGN, READ_ONLY].map(|k| Region::open(k, BASE, REGION_BYTES)).into();
            for region in regions.iter_mut() {
                let from = 4099 * (region.key as usize + 8 * end);
                region.data.copy_from_slice(&noise[from..from + REGION_BYTES]);
                match region.key {
                    LOCAL => {
                        (region.remote_read, region.remote_write, region.remote_atomic) =
                            (false, false, false);
                    }
                    FOREIGN => region.foreign = true,
                    READ_ONLY => {
                        (region.local_write, region.remote_write, region.remote_atomic) =
                            (false, false, false);
                    }
                    _ => {}
                }
            }
        }
        pair
    }

    /// `len` bytes at `at` of a region of an end.
    pub fn bytes(&self, end: usize, key: u32, at: usize, len: usize) -> Vec<u8> {
        self.ends[end].world.region(key).data[at..at + len].to_vec()
    }

    /// Opcode and PSN of all that was sent to an end.
    pub fn sent_to(&self, end: usize) -> Vec<(masq_wire::Opcode, u32)> {
        let to_end = self.sent.iter().filter(|(to, _)| *to == end);
        to_end
            .map(|(_, datagram)| {
                let bth = masq_wire::parse(datagram).expect("what is sent makes sense").repr.bth;
                (bth.opcode, bth.psn.get())
            })
            .collect()
    }
}

/// Random bytes, made once.
fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut bytes = vec![0; 2 * REGION_BYTES];
        Seeded::new(7).fill(&mut bytes);
        bytes
    })
}

/// A signalled request with one scatter/gather entry at the start of LOCAL, towards the start of the peer's REMOTE.
pub fn send(op: SendOp, wr_id: u64, len: u32) -> SendWork {
    SendWork {
        op,
        wr_id,
        signalled: true,
        sges: vec![sge(LOCAL, BASE, len)],
        remote_addr: BASE,
        rkey: masq_types::Rkey(REMOTE),
        ..SendWork::default()
    }
}

/// A receive with one scatter/gather entry in the second half of LOCAL.
pub fn recv(wr_id: u64, len: u32) -> RecvWork {
    RecvWork { wr_id, sges: vec![sge(LOCAL, BASE + REGION_BYTES as u64 / 2, len)], ..RecvWork::default() }
}
