//! Guests that write to one another, and the engines that carry it out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bench_record::Samples;
use masq_driver::{Access, Command, MrAttr, MrHandle, MrKind, PageList, QpInit, Reply};
use masq_rnic::transport::Time;
use masq_rnic::{Engine, RnicConfig};
use masq_types::Mtu;
use rustix::time::{ClockId, clock_gettime};
use vrdma_abi::ring::{SEND_OP_RDMA_WRITE, WC_SUCCESS, ring_pages};

use super::fabric::Fabric;
use super::guests::{
    Guest, Mr, Net, Options, PAGE, PD, TestCq, TestQp, all_access, connect, request, sge, to,
};
use super::several::Several;

/// Requests that a send queue of these guests holds.
pub const RING: usize = 64;
/// The longest message, if nothing else is said; and memory of longer ones, which go through it again and again.
pub const MESSAGE: usize = 2 << 20;
const CQ_ENTRIES: u32 = 4096;
/// Networks have to have some number.
const VNI: u32 = 100;

/// What there is.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The peers are on another host: there is a second engine.
    pub remote: bool,
    /// Guests that are written to.
    pub peers: usize,
    /// Queue pairs towards each of them.
    pub qps_per_peer: usize,
    /// Regions at each end of a queue pair that the messages go through in turns.
    pub mrs: usize,
    /// Paths of a queue pair; where there are several, there is one queue pair.
    pub paths: usize,
    /// Bytes of the longest message.
    pub message: usize,
    /// Time passes by itself; else as turns do, the same in each run.
    pub real_time: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Plan { remote: false, peers: 1, qps_per_peer: 1, mrs: 1, paths: 1, message: MESSAGE, real_time: true }
    }
}

/// A guest that writes, guests that are written to.
pub struct Rig {
    net: Net,
    fabric: Fabric,
    real_time: bool,
    writer: Guest,
    peers: Vec<Peer>,
    cq: TestCq,
    qps: Vec<TestQp>,
    /// What the only queue pair has for several paths.
    several: Option<Several>,
    by_cookie: HashMap<u32, usize>,
    mrs: Vec<Mr>,
    posted: usize,
    /// Turns of this engine are what is measured.
    pub measured: Option<usize>,
    /// What they have taken since the last look, without the fabric.
    spent: Duration,
}

struct Peer {
    guest: Guest,
    cq: TestCq,
    mrs: Vec<Mr>,
    /// Their rings and numbers; nothing is posted there.
    qps: Vec<TestQp>,
}

impl Rig {
    /// All of it.
    pub fn new(plan: Plan) -> Self {
        let mut rig = Rig::unconnected(plan);
        rig.connect(plan.qps_per_peer);
        rig
    }

    /// All but the queue pairs, for which there is room.
    pub fn unconnected(plan: Plan) -> Self {
        let fabric = Fabric::default();
        let config = RnicConfig { seed: [7; 32], network: Arc::new(fabric.clone()), ..RnicConfig::default() };
        let mut net = Net::new(&vec![config; if plan.remote { 2 } else { 1 }]);
        if plan.real_time {
            net.now = clock().as_nanos();
            net.engines.iter_mut().for_each(|e| e.set_clock(clock));
        }
        let ring_pages = ring_pages(RING as u32, 9) + ring_pages(RING as u32, 7) + 2;
        let cq_pages = ring_pages_of_cq();
        let chunk_pages = if plan.paths > 1 { Several::pages() } else { 0 };
        let memory =
            |qps: usize| (64 + cq_pages + ring_pages * qps as u64 + chunk_pages) * PAGE + MESSAGE as u64;
        let qps = plan.peers * plan.qps_per_peer;
        let attach = |net: &mut Net, engine, id, host: &str, bytes| {
            // Of each path.
            let addresses =
                (0..plan.paths).map(|p| format!("10.{}.{host}", 2 * p + engine)).collect::<Vec<_>>();
            let addresses = addresses.iter().map(String::as_str).collect::<Vec<_>>();
            Guest::attach_at(net, engine, id, VNI, &addresses, bytes)
        };
        let mut writer = attach(&mut net, 0, 1, "0.1", memory(qps));
        let cq = writer.cq(&mut net, CQ_ENTRIES);
        let mrs = regions(&mut writer, &mut net, &plan);
        // Numbers of queue pairs follow from those of guests and of their objects: these are far apart.
        let first_id = 1 + (2 * qps + plan.mrs + 64).div_ceil(0x1000) as u32;
        let peers = (0..plan.peers).map(|n| {
            let (engine, host) =
                if plan.remote { (1, format!("{}.{}", n / 250, n % 250 + 1)) } else { (0, "0.1".to_owned()) };
            let id = first_id * (n as u32 + 1) + 1;
            let bytes = memory(plan.qps_per_peer);
            let mut guest = attach(&mut net, engine, id, &host, bytes);
            let cq = guest.cq(&mut net, 64);
            let mrs = regions(&mut guest, &mut net, &plan);
            Peer { guest, cq, mrs, qps: Vec::with_capacity(plan.qps_per_peer) }
        });
        let peers = peers.collect();
        let (by_cookie, qps) = (HashMap::with_capacity(qps), Vec::with_capacity(qps));
        let (posted, measured, spent) = (0, None, Duration::ZERO);
        let real_time = plan.real_time;
        let several = (plan.paths > 1).then(|| Several::new(plan.paths));
        Rig {
            net,
            fabric,
            real_time,
            writer,
            peers,
            cq,
            qps,
            several,
            by_cookie,
            mrs,
            posted,
            measured,
            spent,
        }
    }

    /// Connects the writer with each peer until it has `count` queue pairs towards it.
    pub fn connect(&mut self, count: usize) {
        let options = Options { mtu: Mtu::B4096, ..Options::default() };
        let small = |init: &mut QpInit| init.max_inline_bytes = 16;
        for peer in &mut self.peers {
            for _ in peer.qps.len()..count {
                let net = &mut self.net;
                if let Some(several) = &mut self.several {
                    let (here, there) = several.connect(
                        net,
                        (&mut self.writer, &self.cq),
                        (&mut peer.guest, &peer.cq),
                        &options,
                    );
                    self.by_cookie.insert(0xc0 + here.handle.0, self.qps.len());
                    self.qps.push(here);
                    peer.qps.push(there);
                    continue;
                }
                let here = self.writer.qp_with(net, &self.cq, &self.cq, small);
                let there = peer.guest.qp_with(net, &peer.cq, &peer.cq, small);
                connect(net, (&self.writer, &here), (&peer.guest, &there), &options);
                self.by_cookie.insert(0xc0 + here.handle.0, self.qps.len());
                self.qps.push(here);
                peer.qps.push(there);
            }
        }
    }

    /// Writes `count` messages as [`write`](Self::write) does, and tells how many nanoseconds turns of `engine` take for one
    /// of them: the median over what is posted at once, since other work on the machine interrupts some of it.
    pub fn time(&mut self, engine: usize, count: usize, len: usize, depth: usize) -> f64 {
        self.measured = Some(engine);
        let mut times = Samples::default();
        for _ in 0..count.div_ceil(depth) {
            self.spent = Duration::ZERO;
            self.write(depth, len, depth);
            times.push(self.spent.as_nanos() as f64 / depth as f64);
        }
        self.measured = None;
        times.median()
    }

    /// Writes `count` messages of `len` bytes, `depth` at a time, each by the next queue pair from the next region to the next.
    pub fn write(&mut self, count: usize, len: usize, depth: usize) {
        let mut left = count;
        while left > 0 {
            let now = left.min(depth).min(self.qps.len() * RING);
            self.post(now, len);
            self.complete(now);
            left -= now;
        }
    }

    fn post(&mut self, count: usize, len: usize) {
        let per_peer = self.qps.len() / self.peers.len();
        for _ in 0..count {
            let k = self.posted % self.qps.len();
            let region = self.posted % self.mrs.len();
            let peer = &self.peers[k / per_peer];
            let write = to(&peer.mrs[region], 0, request(SEND_OP_RDMA_WRITE, self.posted as u64));
            let qp = &mut self.qps[k];
            if let Some(several) = &mut self.several
                && several.post(qp, &write, &self.mrs[region], len)
            {
                self.posted += 1;
                continue;
            }
            let posted = if len <= 16 {
                qp.sq.post_inline(&write, [&[0x5a; 16][..len]])
            } else {
                qp.sq.post(&write, &[sge(&self.mrs[region], 0, len as u32)])
            };
            posted.expect("the ring has room");
            self.posted += 1;
            // One doorbell for all that are posted to a queue pair at once.
            if self.qps.len() > 1 {
                self.writer.ring(&mut self.qps[k]);
            }
        }
        if let [only] = self.qps.as_mut_slice() {
            self.writer.ring(only);
        }
    }

    /// Lets the engines work until `count` requests are done.
    fn complete(&mut self, count: usize) {
        let (mut done, mut turns) = (0, 0);
        while done < count {
            for engine in 0..self.net.engines.len() {
                self.turn(engine);
            }
            while let Some(cqe) = self.cq.ring.poll() {
                assert_eq!(cqe.status, WC_SUCCESS, "{cqe:?}");
                self.qps[self.by_cookie[&cqe.cookie]].sq.complete(cqe.consumer);
                done += 1;
            }
            self.cq.ring.publish();
            turns += 1;
            assert!(turns < 1_000_000, "the engines do not get on");
        }
        // What is left to acknowledge or to settle belongs to these requests.
        while (0..self.net.engines.len()).fold(false, |worked, engine| self.turn(engine) | worked) {}
    }

    fn turn(&mut self, engine: usize) -> bool {
        self.net.now = if self.real_time { clock().as_nanos() } else { self.net.now + 1000 };
        let now = Time::from_nanos(self.net.now);
        let Some(it) = self.net.engines.get_mut(engine) else { return false };
        if self.measured != Some(engine) {
            return it.turn(now);
        }
        self.fabric.set_measured(true);
        let (start, fabric) = (Instant::now(), self.fabric.time());
        let worked = bench_measured_turn(it, now);
        self.fabric.set_measured(false);
        self.spent += start.elapsed().saturating_sub(self.fabric.time() - fabric);
        worked
    }
}

/// A turn that is measured. Its name is known to [`super::count`].
#[inline(never)]
fn bench_measured_turn(engine: &mut Engine, now: Time) -> bool {
    engine.turn(now)
}

/// As many regions as the plan says, over the same memory.
fn regions(guest: &mut Guest, net: &mut Net, plan: &Plan) -> Vec<Mr> {
    let access = Access { mw_bind: false, ..all_access() };
    let memory = MESSAGE as u64 / PAGE;
    let gpa = guest.alloc(memory);
    // Many regions are short, so that making them does not take long.
    let length = if plan.mrs > 1 { PAGE } else { plan.message as u64 };
    let region = |_| {
        let handle = MrHandle(guest.handle());
        let pages = (0..length.div_ceil(PAGE)).map(|p| gpa + p % memory * PAGE).collect();
        let kind = MrKind::Pages { iova: gpa, length, pages: PageList { shift: 12, pages } };
        let mr = MrAttr { mr: handle, pd: PD, access, kind };
        match net.execute(guest.engine, Command::CreateMr { vnic: guest.id, mr }) {
            Ok(Reply::MrCreated { lkey, .. }) => Mr { gpa, key: lkey.0, handle },
            other => panic!("{other:?}"),
        }
    };
    (0..plan.mrs).map(region).collect()
}

fn ring_pages_of_cq() -> u64 {
    ring_pages(CQ_ENTRIES, 6) + ring_pages(64, 6)
}

/// The clock that an engine has in masqd.
fn clock() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time::from_nanos(now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs())
}
