//! The RNIC's handle: threads that run engines, a mailbox to each, and who has which vNIC.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use masq_driver::{Command, DriverError, EventSink, Reply, RnicDriver, VnicId};
use rustc_hash::FxHashMap;
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};

use crate::balance::{Balancer, WINDOW};
use crate::config::RnicConfig;
use crate::engine::{Engine, Waker};
use crate::transport::Time;

/// A running software RNIC. Dropping it stops it; guests' objects die with it.
///
/// It has one engine or several, each with a thread. A vNIC belongs to one of them, at first to the one with the fewest; with several, a vNIC moves from
/// an engine that is overloaded to one that is not.
#[derive(Debug)]
pub struct Rnic {
    crew: Arc<Crew>,
    threads: Vec<JoinHandle<()>>,
    /// While it is there, the balancer goes on.
    balancing: Option<(Sender<()>, JoinHandle<()>)>,
}

/// Name of the threads that run engines.
pub const THREAD_NAME: &str = "rnic-engine";

/// What an engine's thread is asked for.
enum Letter {
    /// To carry out a command; where its reply goes.
    Command(Command, SyncSender<Result<Reply, DriverError>>),
    /// To hand a vNIC to another engine.
    Move(VnicId, usize, SyncSender<Result<Reply, DriverError>>),
    /// How much each of its vNICs has moved.
    Work(SyncSender<Vec<(VnicId, u64)>>),
    /// To end.
    Stop,
}

/// Commands that are carried out before the data path has its turn again.
const COMMANDS_PER_TURN: usize = 16;

/// The engines, as those who give commands see them.
#[derive(Debug)]
struct Crew {
    posts: Vec<Post>,
    /// Who has which vNIC. Held to read while a command is carried out, so that its vNIC stays where it is.
    placement: RwLock<Placement>,
}

/// One engine's mailbox.
#[derive(Debug)]
struct Post {
    mailbox: Sender<Letter>,
    waker: Waker,
    /// Nanoseconds in which it has worked.
    busy_ns: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Placement(FxHashMap<VnicId, usize>);

impl Rnic {
    /// Starts an RNIC without guests. Events go to `sink`, from the engines' threads.
    pub fn start(config: RnicConfig, sink: Arc<dyn EventSink>) -> Result<Self, DriverError> {
        let spin = Spin::new(config.max_spin);
        let engines = Engine::group(&config, &sink, usize::from(config.engines))?;
        let several = engines.len() > 1;
        let os = |source| DriverError::Os { what: "cannot start the RNIC's threads".into(), source };
        let (mut posts, mut threads) = (Vec::new(), Vec::new());
        for mut engine in engines {
            engine.set_clock(clock);
            let (waker, busy_ns) = (engine.waker(), Arc::<AtomicU64>::default());
            let (mailbox, letters) = channel();
            let (spin, busy) = (spin.clone(), busy_ns.clone());
            let thread = std::thread::Builder::new()
                .name(THREAD_NAME.into())
                .spawn(move || run(engine, &letters, spin, &busy))
                .map_err(os)?;
            posts.push(Post { mailbox, waker, busy_ns });
            threads.push(thread);
        }
        let crew = Arc::new(Crew { posts, placement: RwLock::default() });
        let mut rnic = Self { crew, threads, balancing: None };
        if several {
            let (going_on, end) = channel();
            let crew = rnic.crew.clone();
            let balance = move || balance(&crew, &end);
            let thread =
                std::thread::Builder::new().name("rnic-balance".into()).spawn(balance).map_err(os)?;
            rnic.balancing = Some((going_on, thread));
        }
        Ok(rnic)
    }

    /// Hands a vNIC to another engine. Nobody notices.
    pub fn relocate(&self, vnic: VnicId, to: usize) -> Result<(), DriverError> {
        self.crew.relocate(vnic, to)
    }

    /// The engine that has a vNIC.
    pub fn engine_of(&self, vnic: VnicId) -> Option<usize> {
        self.crew.read().0.get(&vnic).copied()
    }
}

impl RnicDriver for Rnic {
    fn execute(&self, command: Command) -> Result<Reply, DriverError> {
        let crew = &self.crew;
        match (&command, command.vnic()) {
            (Command::AttachVnic { .. }, Some(vnic)) => crew.attach(vnic, command),
            (Command::DetachVnic { .. }, Some(vnic)) => crew.detach(vnic, command),
            (_, Some(vnic)) => {
                let placement = crew.read();
                // Who has none of it says so.
                crew.ask(placement.0.get(&vnic).copied().unwrap_or(0), command)
            }
            (Command::SetClassRate { class, rate }, None) => {
                let (class, rate) = (*class, *rate);
                crew.ask_all(|| Command::SetClassRate { class, rate }).map(|_| Reply::Done)
            }
            // While a vNIC moves, it is on neither engine.
            (Command::List, None) => {
                let _placement = crew.read();
                crew.ask_all(|| Command::List).map(merge_objects)
            }
            (_, None) => {
                let _placement = crew.read();
                crew.ask_all(|| Command::Counters).map(merge_counters)
            }
        }
    }
}

fn merge_objects(replies: Vec<Reply>) -> Reply {
    let objects = |reply| match reply {
        Reply::Objects(objects) => objects,
        _ => Vec::new(),
    };
    Reply::Objects(replies.into_iter().flat_map(objects).collect())
}

fn merge_counters(replies: Vec<Reply>) -> Reply {
    let mut sum: Vec<(&'static str, u64)> = Vec::new();
    for reply in replies {
        let Reply::Counters(counters) = reply else { continue };
        for (name, n) in counters {
            match sum.iter_mut().find(|(known, _)| *known == name) {
                Some((_, total)) => *total += n,
                None => sum.push((name, n)),
            }
        }
    }
    Reply::Counters(sum)
}

impl Crew {
    fn read(&self) -> RwLockReadGuard<'_, Placement> {
        // A table of numbers is whole at any time.
        self.placement.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Placement> {
        self.placement.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn send<R>(&self, engine: usize, letter: impl FnOnce(SyncSender<R>) -> Letter) -> Result<R, DriverError> {
        let (reply_to, reply) = sync_channel(1);
        let post = self.posts.get(engine).ok_or(DriverError::Stopped)?;
        post.mailbox.send(letter(reply_to)).map_err(|_| DriverError::Stopped)?;
        post.waker.wake();
        reply.recv().map_err(|_| DriverError::Stopped)
    }

    fn ask(&self, engine: usize, command: Command) -> Result<Reply, DriverError> {
        self.send(engine, |reply_to| Letter::Command(command, reply_to))?
    }

    fn ask_all(&self, command: impl Fn() -> Command) -> Result<Vec<Reply>, DriverError> {
        (0..self.posts.len()).map(|engine| self.ask(engine, command())).collect()
    }

    /// A new vNIC goes to the engine with the fewest.
    fn attach(&self, vnic: VnicId, command: Command) -> Result<Reply, DriverError> {
        let mut placement = self.write();
        if let Some(engine) = placement.0.get(&vnic).copied() {
            // It says that it exists.
            return self.ask(engine, command);
        }
        let count = |engine: &usize| placement.0.values().filter(|e| *e == engine).count();
        let engine = (0..self.posts.len()).min_by_key(count).unwrap_or(0);
        let reply = self.ask(engine, command)?;
        placement.0.insert(vnic, engine);
        Ok(reply)
    }

    fn detach(&self, vnic: VnicId, command: Command) -> Result<Reply, DriverError> {
        let mut placement = self.write();
        let reply = self.ask(placement.0.get(&vnic).copied().unwrap_or(0), command)?;
        placement.0.remove(&vnic);
        Ok(reply)
    }

    fn relocate(&self, vnic: VnicId, to: usize) -> Result<(), DriverError> {
        let mut placement = self.write();
        let unknown = || DriverError::UnknownObject(format!("vNIC {}", vnic.0));
        let from = placement.0.get(&vnic).copied().ok_or_else(unknown)?;
        if from != to {
            self.send(from, |reply_to| Letter::Move(vnic, to, reply_to))??;
            placement.0.insert(vnic, to);
        }
        Ok(())
    }
}

impl Drop for Rnic {
    fn drop(&mut self) {
        if let Some((going_on, thread)) = self.balancing.take() {
            drop(going_on);
            let _ = thread.join();
        }
        for post in &self.crew.posts {
            let _ = post.mailbox.send(Letter::Stop);
            post.waker.wake();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the RNIC has panicked");
            }
        }
    }
}

/// Moves vNICs until the other end of `end` is dropped. An engine is asked what its vNICs do only when it is overloaded: those that sleep go on sleeping.
fn balance(crew: &Crew, end: &Receiver<()>) {
    let mut balancer = Balancer::default();
    let mut before: Vec<u64> = vec![0; crew.posts.len()];
    let mut seen: FxHashMap<VnicId, u64> = FxHashMap::default();
    let (mut watched, mut last) = (None, clock());
    while matches!(end.recv_timeout(WINDOW), Err(RecvTimeoutError::Timeout)) {
        let now = clock();
        let window = u64::try_from(now.since(last).as_nanos()).unwrap_or(u64::MAX).max(1);
        last = now;
        let loads: Vec<u64> = crew
            .posts
            .iter()
            .zip(&mut before)
            .map(|(post, before)| {
                let busy = post.busy_ns.load(Ordering::Relaxed);
                let share = busy.wrapping_sub(std::mem::replace(before, busy)).saturating_mul(1000) / window;
                share.min(1000)
            })
            .collect();
        let Some((hot, cold)) = balancer.look(&loads) else {
            watched = None;
            continue;
        };
        let Ok(total) = crew.send(hot, Letter::Work) else { return };
        let work: Vec<(VnicId, u64)> = total
            .iter()
            .map(|(vnic, n)| (*vnic, n.saturating_sub(seen.get(vnic).copied().unwrap_or(0))))
            .collect();
        seen = total.into_iter().collect();
        // What was done in a window is known from the second look on.
        if watched.replace(hot) != Some(hot) {
            continue;
        }
        let (Some(hot_load), Some(cold_load)) = (loads.get(hot), loads.get(cold)) else { continue };
        if let Some(vnic) = balancer.choose(now, (*hot_load, *cold_load), work) {
            match crew.relocate(vnic, cold) {
                Ok(()) => {
                    tracing::info!(vnic = vnic.0, from = hot, to = cold, "a vNIC moves to another engine")
                }
                Err(error) => tracing::debug!(vnic = vnic.0, %error, "a vNIC does not move"),
            }
            watched = None;
        }
    }
}

fn run(mut engine: Engine, letters: &Receiver<Letter>, mut spin: Spin, busy_ns: &AtomicU64) {
    // Deadlines are tens of microseconds apart; by default the kernel lets a sleep last 50 µs longer.
    if let Err(error) = set_current_timer_slack(NonZeroU64::new(1000)) {
        tracing::debug!(%error, "timers stay coarse");
    }
    let (mut now, mut busy) = (clock(), 0u64);
    loop {
        let mut worked = false;
        for _ in 0..COMMANDS_PER_TURN {
            match letters.try_recv() {
                Ok(Letter::Stop) | Err(TryRecvError::Disconnected) => return,
                Ok(letter) => {
                    worked = true;
                    answer(&mut engine, now, letter);
                }
                Err(TryRecvError::Empty) => break,
            }
        }
        worked |= engine.turn(now);
        let (begun, goes_on) = (now, spin.goes_on(now, worked));
        if goes_on && !worked {
            std::thread::yield_now();
        } else if !goes_on && engine.prepare_sleep() {
            // A letter sent since has been followed by a wake, which ends the sleep at once.
            engine.sleep(clock(), engine.deadline());
        }
        now = clock();
        if worked {
            busy += u64::try_from(now.since(begun).as_nanos()).unwrap_or(0);
            busy_ns.store(busy, Ordering::Relaxed);
        }
    }
}

/// Whoever asked may have gone.
fn answer(engine: &mut Engine, now: Time, letter: Letter) {
    match letter {
        Letter::Command(command, reply_to) => drop(reply_to.send(engine.execute(now, command))),
        Letter::Move(vnic, to, reply_to) => {
            drop(reply_to.send(engine.move_vnic(now, vnic, to).map(|()| Reply::Done)));
        }
        Letter::Work(reply_to) => drop(reply_to.send(engine.work())),
        Letter::Stop => {}
    }
}

fn clock() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    let nanos =
        now.tv_sec.unsigned_abs().saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.unsigned_abs());
    Time::from_nanos(nanos)
}

/// How long to look for work before sleeping: long enough where looking has paid, short where it has not.
#[derive(Clone, Debug)]
struct Spin {
    max: Duration,
    window: Duration,
    last_work: Time,
    idle: bool,
}

impl Spin {
    const MIN: Duration = Duration::from_micros(4);

    fn new(max: Duration) -> Self {
        Self { max, window: max, last_work: Time::ZERO, idle: false }
    }

    /// Whether to have another turn at once, after one that has found work or not.
    fn goes_on(&mut self, now: Time, worked: bool) -> bool {
        if worked {
            if self.idle {
                // Looking has found something.
                self.window = (self.window * 2).min(self.max);
            }
            (self.last_work, self.idle) = (now, false);
            return true;
        }
        if now.since(self.last_work) < self.window {
            self.idle = true;
            return true;
        }
        if self.idle {
            self.window = (self.window / 2).max(Self::MIN.min(self.max));
        }
        self.idle = false;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_adapts() {
        let max = Duration::from_micros(64);
        let mut spin = Spin::new(max);
        let at = |micros: u64| Time::from_nanos(micros * 1000);
        assert!(spin.goes_on(at(100), true));
        assert!(spin.goes_on(at(163), false));
        assert!(!spin.goes_on(at(164), false));
        assert_eq!(spin.window, max / 2);
        assert!(!spin.goes_on(at(170), false), "after a sleep that brought nothing");
        for i in 0..20 {
            assert!(spin.goes_on(at(1000 * i), true));
            assert!(spin.goes_on(at(1000 * i + 1), false));
            assert!(!spin.goes_on(at(1000 * i + 900), false));
        }
        assert_eq!(spin.window, Spin::MIN);
        for i in 100..110 {
            assert!(spin.goes_on(at(1000 * i), true));
            assert!(spin.goes_on(at(1000 * i + 2), false));
            assert!(spin.goes_on(at(1000 * i + 3), true));
        }
        assert_eq!(spin.window, max);
    }
}
