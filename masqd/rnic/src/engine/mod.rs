//! One engine: a thread's worth of RNIC. It owns its guests, queue pairs and sockets, and takes no lock.
//!
//! [`Engine::turn`] does everything that can be done without waiting, a bounded amount of it:
//!
//! 1. descriptors: what arrived on sockets, kicks of completion-event queues;
//! 2. deadlines, of queue pairs and of the paths to peers;
//! 3. doorbells;
//! 4. queue pairs with something to do, vNIC by vNIC, each vNIC with its share of bytes and as its rate allows;
//! 5. completion events, then what is to be sent.
//!
//! Whoever drives an engine calls `turn` while it says that it worked, then [`Engine::prepare_sleep`] and, if that
//! agrees, [`Engine::sleep`]. Commands ([`Engine::execute`]) come between turns. The present moment is an argument.

mod commands;
mod create_qp;
mod datagrams;
mod directory;
mod env;
mod fabric;
mod groups;
mod inbound;
mod inquiry;
mod inspect;
mod moving;
mod paths;
mod peers;
mod poller;
mod run;
mod schedule;
mod share;
mod spares;
mod speakers;
mod watch;
mod world;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use masq_driver::{DriverError, Event, EventSink, VnicId};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

use self::fabric::{Fabric, Label, Packets, Parcel};
use self::inbound::{Arrived, Inbound, Received};
use self::schedule::{Lenders, Schedule};
use self::speakers::Speakers;
use self::watch::Look;
use crate::config::RnicConfig;
use crate::datagram;
use crate::local;
use crate::memory::poisonings;
use crate::peers::{Peers, Verdicts};
use crate::qp::QpTable;
use crate::transport::{Receipt, Time};
use crate::udp::{Edge, FaultShim, LocalId, SharedAddresses, TxBatch};

pub use commands::ip_overhead;
pub use env::Origin;
pub use poller::{Poller, Token, Waker};
pub use speakers::Claim;
pub use world::{RemoteQp, World};

/// See the module's text.
pub struct Engine {
    config: RnicConfig,
    clock: Option<fn() -> Time>,
    world: World,
    edge: Edge,
    tx: TxBatch,
    /// The sockets take no more for the moment.
    tx_blocked: bool,
    /// The sockets may hold more than this turn has taken.
    backlog: bool,
    /// When the last turn began.
    last_turn: Time,
    inbound: Inbound,
    shim: Option<FaultShim<Arrived>>,
    poller: Poller,
    waker: Waker,
    random: ChaCha20Rng,
    next_incarnation: u64,
    /// Guests have been told that they must kick.
    asleep: bool,
    /// Poisonings of guest memory that have been looked into.
    poisonings: u64,
    tokens: Vec<Token>,
}

/// While sending is blocked: how soon to try again.
const TX_RETRY: Duration = Duration::from_micros(200);
/// An engine that has no turn for so long was kept from running.
const STALL: Duration = Duration::from_millis(2);
/// Parcels that are taken from one other engine in a turn.
const PARCELS_PER_TURN: usize = 16;
/// Batches that are taken from one socket in a turn.
const RECEIVES_PER_TURN: usize = 2;

impl Engine {
    /// The engines of one RNIC, at least one, without guests.
    pub fn group(
        config: &RnicConfig,
        sink: &Arc<dyn EventSink>,
        count: usize,
    ) -> Result<Vec<Self>, DriverError> {
        let engines: Result<Vec<_>, _> =
            (0..count.max(1)).map(|_| Self::new(config.clone(), sink.clone())).collect();
        let mut engines = engines?;
        if let [_, _, ..] = engines.as_slice() {
            let wakers: Vec<Waker> = engines.iter().map(Self::waker).collect();
            let addresses = Arc::<SharedAddresses>::default();
            let speakers = Arc::<Speakers>::default();
            let verdicts = Arc::<Verdicts>::default();
            let lenders: Lenders = std::array::from_fn(|_| Arc::default());
            for (engine, fabric) in engines.iter_mut().zip(Fabric::join(&wakers)) {
                let index = fabric.index;
                engine.edge = Edge::shared(config.network.clone(), addresses.clone(), index);
                engine.world.fabric = Some(fabric);
                engine.world.speakers = speakers.clone();
                engine.world.verdicts = verdicts.clone();
                engine.world.peers = Peers::new(index);
                engine.world.schedule.lenders = Some((lenders.clone(), wakers.len()));
                // Connections and keys of one engine differ from those of another.
                engine.world.qps = QpTable::numbered(index as u8);
                engine.next_incarnation |= (index as u64) << 56;
                engine.random.set_stream(index as u64);
            }
        }
        Ok(engines)
    }

    /// An engine without guests, alone in its RNIC.
    pub fn new(config: RnicConfig, sink: Arc<dyn EventSink>) -> Result<Self, DriverError> {
        let os =
            |source| DriverError::Os { what: "cannot create the RNIC's event descriptors".into(), source };
        let waker = Waker::new().map_err(os)?;
        let poller = Poller::new(&waker).map_err(os)?;
        Ok(Self {
            world: World::new(sink),
            edge: Edge::new(config.network.clone()),
            tx: TxBatch::default(),
            tx_blocked: false,
            backlog: false,
            last_turn: Time::ZERO,
            inbound: Inbound::default(),
            shim: config.faults.map(FaultShim::new),
            poller,
            waker,
            random: ChaCha20Rng::from_seed(config.seed),
            clock: None,
            next_incarnation: 1,
            asleep: false,
            poisonings: 0,
            tokens: Vec::new(),
            config,
        })
    }

    /// Lets the engine look at the clock during a turn, before each queue pair's: where a thread can be preempted, a
    /// timeout that counted from the turn's beginning could end too early.
    pub fn set_clock(&mut self, clock: fn() -> Time) {
        self.clock = Some(clock);
    }

    fn refresh_now(&mut self) {
        if let Some(clock) = self.clock {
            self.world.now = clock();
        }
    }

    /// How much each of its vNICs has moved, in bytes that also count messages.
    pub fn work(&self) -> Vec<(VnicId, u64)> {
        const MESSAGE_BYTES: u64 = 1024;
        let work = |v: &crate::vnic::Vnic| {
            let t = &v.traffic;
            t.tx_ip_bytes + t.rx_ip_bytes + (t.tx_messages + t.rx_messages) * MESSAGE_BYTES
        };
        self.world.vnics.iter().map(|(_, v)| (v.id, work(v))).collect()
    }

    /// What wakes it from [`Engine::sleep`].
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Does what can be done at `now` without waiting. Returns whether there was anything.
    pub fn turn(&mut self, now: Time) -> bool {
        self.world.now = now;
        self.give_up_poisoned();
        let has_slept = self.wake_guests();
        if self.tx_blocked {
            self.flush();
        }
        self.refresh_now();
        let began = self.world.now;
        self.backlog = false;
        let mut worked = self.poll_descriptors(Duration::ZERO);
        self.refresh_now();
        worked |= self.hear_others();
        if self.backlog {
            let since = self.world.behind_since.get_or_insert(began);
            if began.since(self.last_turn) > STALL {
                // It has not run meanwhile.
                *since = began;
            }
        } else {
            (self.world.listened, self.world.behind_since) = (began, None);
        }
        self.last_turn = began;
        worked |= self.expire();
        worked |= self.tend_peers();
        worked |= self.scan(if has_slept { Look::Whole } else { Look::Glance });
        if !worked && !self.world.schedule.has_ready() {
            worked = self.scan(Look::Whole);
        }
        worked |= self.run_ready();
        self.world.settle_queues();
        self.flush();
        self.world.flush_fabric();
        worked
    }

    /// Deals with what the other engines of the RNIC have sent.
    fn hear_others(&mut self) -> bool {
        let Some(fabric) = &mut self.world.fabric else { return false };
        fabric.admit_requests();
        let notes = self.read_notes();
        let parcels = self.unpack_parcels();
        notes | parcels | local::take_answers(&mut self.world) | local::serve(&mut self.world)
    }

    /// Takes packets and datagrams that other engines have received for queue pairs of this one.
    fn unpack_parcels(&mut self) -> bool {
        let mut worked = false;
        let Some(others) = self.world.fabric.as_ref().map(Fabric::others) else { return false };
        for engine in others {
            for _ in 0..PARCELS_PER_TURN {
                let next = self.world.fabric.as_mut().and_then(|f| f.next_parcel(engine));
                let Some(Parcel { bytes, label }) = next else { break };
                worked = true;
                match label {
                    Label::Packets(packets) => {
                        let Packets { local, source, segment_bytes, first, receipt } = packets;
                        if let Some(local_address) = self.edge.local_address(local) {
                            let arrived = Arrived { local, source, index: first, receipt };
                            let received = Received::train(arrived, segment_bytes, &bytes);
                            self.inbound.handle(&mut self.world, local_address, received);
                        }
                    }
                    Label::Datagram(incoming, vni) => {
                        datagram::arrive_from(&mut self.world, &incoming, vni, &bytes);
                    }
                }
                if let Some(fabric) = &mut self.world.fabric {
                    fabric.return_buffer(engine, bytes);
                }
            }
        }
        worked
    }

    /// Takes a packet that has come from `source` to the address `local` by another way than this engine's sockets.
    pub fn handle_datagram(&mut self, now: Time, local: IpAddr, source: SocketAddr, datagram: &[u8]) {
        self.world.now = now;
        let Some(id) = self.edge.find(local) else { return };
        let Some(local_address) = self.edge.local_address(id) else { return };
        let arrived = Arrived { local: id, source, index: 0, receipt: Receipt::unmarked(now) };
        self.inbound.handle(&mut self.world, local_address, Received::one(arrived, datagram));
    }

    /// When [`Engine::turn`] should be called although nothing wakes the engine.
    pub fn deadline(&self) -> Option<Time> {
        let shim = self.shim.as_ref().and_then(FaultShim::poll_timeout);
        let tx = self.tx_blocked.then(|| self.world.now.plus(TX_RETRY));
        let leave = self.world.schedule.next_leave();
        let Schedule { timers, unanswered, .. } = &self.world.schedule;
        let peers = self.world.peers.poll_timeout();
        [timers.next(), unanswered.next(), peers, leave, shim, tx].into_iter().flatten().min()
    }

    /// Asks the guests to kick, and looks once more whether they have posted anything. Returns whether the
    /// engine may sleep.
    ///
    /// Memory order: `need_kick` is stored, then a full fence, then the scan. A guest stores its dirty and summary bytes,
    /// then a full fence, then loads `need_kick`. So the guest sees `need_kick`, or this scan sees its bytes.
    pub fn prepare_sleep(&mut self) -> bool {
        if !std::mem::replace(&mut self.asleep, true) {
            self.world.vnics.iter().for_each(|(_, v)| v.set_need_kick(true));
        }
        if let Some(fabric) = &self.world.fabric {
            fabric.set_asleep(true);
        }
        fence(Ordering::SeqCst);
        let heard = self.read_notes() || self.world.fabric.as_ref().is_some_and(|f| !f.is_idle());
        !self.scan(Look::Whole) && !heard && self.poisonings == poisonings()
    }

    /// Waits for a descriptor, a [`Waker`] or `until`. After [`Engine::prepare_sleep`] only.
    pub fn sleep(&mut self, now: Time, until: Option<Time>) {
        let timeout = until.map(|t| t.since(now));
        self.poller.wait(timeout, &mut self.tokens);
    }

    /// The guests need not kick while the engine runs. Returns whether they had to.
    fn wake_guests(&mut self) -> bool {
        let has_slept = std::mem::replace(&mut self.asleep, false);
        if has_slept {
            self.world.vnics.iter().for_each(|(_, v)| v.set_need_kick(false));
            if let Some(fabric) = &self.world.fabric {
                fabric.set_asleep(false);
            }
        }
        has_slept
    }

    /// Guests of whose memory a page could not be had lose all of it: what they have in rings and regions is out of reach.
    fn give_up_poisoned(&mut self) {
        let count = poisonings();
        if std::mem::replace(&mut self.poisonings, count) == count {
            return;
        }
        for (_, vnic) in self.world.vnics.iter_mut().filter(|(_, v)| v.memory.is_poisoned()) {
            vnic.memory = Arc::default();
            let reason =
                "a page of the guest's memory cannot be had (an empty pool of huge pages, or broken memory)";
            self.world.sink.event(Event::VnicFatal { vnic: vnic.id, reason: reason.into() });
        }
    }

    fn poll_descriptors(&mut self, timeout: Duration) -> bool {
        let mut tokens = std::mem::take(&mut self.tokens);
        if tokens.is_empty() {
            self.poller.wait(Some(timeout), &mut tokens);
        }
        let worked = !tokens.is_empty();
        for token in tokens.drain(..) {
            match token {
                Token::Wake => {}
                Token::Receive(id) => self.receive(id),
                Token::Kick(vnic, _) => {
                    if let Some(v) = self.world.vnics.get_mut(vnic) {
                        v.cqs.deliver(&v.memory, &mut v.comp_queues, v.epoch);
                    }
                }
            }
        }
        self.tokens = tokens;
        worked
    }

    /// Takes what arrived at a local address.
    fn receive(&mut self, id: LocalId) {
        let Some(local_address) = self.edge.local_address(id) else { return };
        for _ in 0..RECEIVES_PER_TURN {
            // How long a train has waited counts from here.
            self.refresh_now();
            let now = self.world.now;
            let (world, inbound, shim) = (&mut self.world, &mut self.inbound, &mut self.shim);
            let more = self.edge.receive(id, &mut |train| {
                let receipt = Receipt { at: now.minus(train.waited), ecn: train.ecn };
                let first = Arrived { local: id, source: train.source, index: 0, receipt };
                let Some(shim) = shim else {
                    let received = Received::train(first, train.segment_bytes, train.bytes);
                    return inbound.handle(world, local_address, received);
                };
                for (index, packet) in train.bytes.chunks(train.segment_bytes).enumerate() {
                    shim.pass(now, packet, Arrived { index, ..first }, &mut |packet, arrived| {
                        inbound.handle(world, local_address, Received::one(arrived, packet));
                    });
                }
            });
            if !more {
                return;
            }
        }
        self.backlog = true;
    }

    /// Handles deadlines that have come.
    fn expire(&mut self) -> bool {
        let now = self.world.now;
        let mut worked = false;
        if let Some(shim) = &mut self.shim {
            let (world, inbound, edge) = (&mut self.world, &mut self.inbound, &self.edge);
            shim.handle_timeout(now, &mut |packet, arrived| {
                worked = true;
                if let Some(local_address) = edge.local_address(arrived.local) {
                    inbound.handle(world, local_address, Received::one(arrived, packet));
                }
            });
        }
        while let Some((deadline, key)) = self.world.schedule.timers.pop_due(now) {
            worked |= self.world.expire_qp(deadline, key);
        }
        worked |= self.expire_unanswered();
        worked |= self.world.give_leave();
        worked
    }

    /// Looks at doorbells. Returns whether there may be something to do.
    fn scan(&mut self, look: Look) -> bool {
        let World { vnics, watch, schedule, .. } = &mut self.world;
        let mut found = std::mem::take(&mut schedule.posted);
        let mut worked = false;
        watch.look(look, |vnic| {
            let Some(vnic) = vnics.get_mut(vnic) else { return false };
            let before = found.len();
            let more = vnic.scan_doorbells(|key| found.push(key));
            worked |= more;
            more || found.len() > before
        });
        worked |= !found.is_empty();
        for key in found.drain(..) {
            self.world.work_posted(key);
        }
        self.world.schedule.posted = found;
        worked
    }

    /// Sends what waits.
    fn flush(&mut self) -> bool {
        self.tx_blocked = !self.edge.flush(&mut self.tx);
        if !self.tx_blocked {
            self.world.unpark_all();
        }
        !self.tx_blocked
    }
}
