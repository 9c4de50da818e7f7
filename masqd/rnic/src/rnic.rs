//! The RNIC's handle: a thread that runs an engine, and a mailbox to it.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use masq_driver::{Command, DriverError, EventSink, Reply, RnicDriver};
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};

use crate::config::RnicConfig;
use crate::engine::{Engine, Waker};
use crate::transport::Time;

/// A running software RNIC. Dropping it stops it; guests' objects die with it.
#[derive(Debug)]
pub struct Rnic {
    mailbox: Sender<Letter>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// Name of the thread that runs an engine.
pub const THREAD_NAME: &str = "rnic-engine";

/// A command, and where its reply goes.
type Letter = (Command, SyncSender<Result<Reply, DriverError>>);

/// Commands that are carried out before the data path has its turn again.
const COMMANDS_PER_TURN: usize = 16;

impl Rnic {
    /// Starts an RNIC without guests. Events go to `sink`, from the engine's thread.
    pub fn start(config: RnicConfig, sink: Arc<dyn EventSink>) -> Result<Self, DriverError> {
        let spin = Spin::new(config.max_spin);
        let mut engine = Engine::new(config, sink)?;
        engine.set_clock(clock);
        let waker = engine.waker();
        let (mailbox, letters) = channel();
        let thread = std::thread::Builder::new()
            .name(THREAD_NAME.into())
            .spawn(move || run(engine, &letters, spin))
            .map_err(|source| DriverError::Os { what: "cannot start the RNIC's thread".into(), source })?;
        Ok(Self { mailbox, waker, thread: Some(thread) })
    }
}

impl RnicDriver for Rnic {
    fn execute(&self, command: Command) -> Result<Reply, DriverError> {
        let (reply_to, reply) = sync_channel(1);
        self.mailbox.send((command, reply_to)).map_err(|_| DriverError::Stopped)?;
        self.waker.wake();
        reply.recv().map_err(|_| DriverError::Stopped)?
    }
}

impl Drop for Rnic {
    fn drop(&mut self) {
        // Without a sender the engine's thread finds its mailbox closed.
        let (closed, _) = channel();
        self.mailbox = closed;
        self.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the RNIC's thread has panicked");
        }
    }
}

fn run(mut engine: Engine, letters: &Receiver<Letter>, mut spin: Spin) {
    // Deadlines are tens of microseconds apart; by default the kernel lets a sleep last 50 µs longer.
    if let Err(error) = set_current_timer_slack(NonZeroU64::new(1000)) {
        tracing::debug!(%error, "timers stay coarse");
    }
    loop {
        let now = clock();
        let mut worked = false;
        for _ in 0..COMMANDS_PER_TURN {
            match letters.try_recv() {
                Ok((command, reply_to)) => {
                    worked = true;
                    // Whoever asked may have gone.
                    let _ = reply_to.send(engine.execute(now, command));
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        worked |= engine.turn(now);
        if spin.goes_on(now, worked) {
            if !worked {
                std::thread::yield_now();
            }
            continue;
        }
        if engine.prepare_sleep() {
            // A letter sent since has been followed by a wake, which ends the sleep at once.
            engine.sleep(clock(), engine.deadline());
        }
    }
}

fn clock() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    let nanos =
        now.tv_sec.unsigned_abs().saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.unsigned_abs());
    Time::from_nanos(nanos)
}

/// How long to look for work before sleeping: long enough where looking has paid, short where it has not.
#[derive(Debug)]
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
