//! Keeps the directory up to date: reads the store, follows its watch, and reads again when that breaks or
//! when a request has missed something.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use masq_control::store::{Snapshot, Store, StoreError};
use masq_control::{Delta, Directory, RefreshGate};
use masq_model::{Key, Kind, PREFIX};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::health::Health;
use crate::host::{Host, Miss};
use crate::inbox::Message;

/// Readings for the sake of requests are at least this far apart, whatever guests ask for.
const REFRESH_INTERVAL: Duration = Duration::from_millis(200);
/// Pause after a failure of the store.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How often a quiet store is asked whether it is still there.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// After this time without a word from the store what is known counts as stale: masqd is not ready.
pub const STALENESS_BOUND: Duration = Duration::from_secs(10);
/// What the store's health is called.
pub const STORE: &str = "store";

/// Follows the store.
pub struct Sync {
    store: Arc<dyn Store>,
    host: Arc<Host>,
    misses: mpsc::UnboundedReceiver<Miss>,
    waiting: Vec<Miss>,
    gate: RefreshGate,
    began: Instant,
    /// Shows the revision of the directory; changes when anything did.
    changed: watch::Sender<u64>,
    /// Entries that are no objects, and why, as they have been told.
    bad: HashMap<String, String>,
}

impl Sync {
    /// Begins with the first reading; `changed` shows the directory's revision from then on.
    pub fn new(
        store: Arc<dyn Store>,
        host: Arc<Host>,
        misses: mpsc::UnboundedReceiver<Miss>,
        changed: watch::Sender<u64>,
    ) -> Self {
        let gate = RefreshGate::new(REFRESH_INTERVAL);
        Sync {
            store,
            host,
            misses,
            waiting: Vec::new(),
            gate,
            began: Instant::now(),
            changed,
            bad: HashMap::new(),
        }
    }

    /// Runs for ever.
    pub async fn run(mut self) {
        loop {
            let e = match self.follow().await {
                Ok(never) => match never {},
                Err(e) => e,
            };
            match e {
                StoreError::Compacted(_) => debug!("{e}; reading it anew"),
                e => {
                    // Readiness is the probe's to judge: what is known does not turn bad at once.
                    debug!("{e}; going on with what is known");
                    self.pause().await;
                }
            }
        }
    }

    /// Asks a quiet store again and again whether it is still there, for ever. When it has not answered for
    /// [`STALENESS_BOUND`], masqd is not ready.
    pub async fn probe(store: Arc<dyn Store>, host: Arc<Host>, health: Arc<Health>) {
        let key = Key::new(Kind::HostState, &host.name).to_string();
        loop {
            match store.get(&key).await {
                Ok(_) => {
                    host.freshness.heard();
                    health.fine(STORE);
                }
                Err(e) if host.freshness.age() > STALENESS_BOUND => {
                    // Without the age, which would make it another problem each time.
                    let bound = STALENESS_BOUND.as_secs();
                    health.problem(
                        STORE,
                        format!("no answer for more than {bound} s, so what is known is stale: {e}"),
                    );
                }
                Err(e) => debug!("the store does not answer: {e}"),
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    }

    async fn follow(&mut self) -> Result<std::convert::Infallible, StoreError> {
        let snapshot = self.store.list(PREFIX).await?;
        let revision = snapshot.revision;
        self.take_snapshot(&snapshot);
        // Whoever waited has been served by this reading.
        self.resolve_waiting();
        let mut watch = self.store.watch(PREFIX, revision).await?;
        loop {
            let due = self.gate.poll_timeout().map(|t| self.began + t);
            tokio::select! {
                batch = watch.next() => {
                    let batch = batch?;
                    self.take(|directory| directory.apply(&batch));
                }
                miss = self.misses.recv() => self.take_miss(miss).await,
                () = sleep_until(due) => self.refresh().await?,
            }
        }
    }

    /// Reads the store for the requests that wait.
    async fn refresh(&mut self) -> Result<(), StoreError> {
        self.gate.handle_begin(self.began.elapsed());
        let snapshot = self.store.list(PREFIX).await;
        match &snapshot {
            Ok(snapshot) => self.take_snapshot(snapshot),
            Err(e) => debug!("requests go on with what is known: {e}"),
        }
        self.resolve_waiting();
        snapshot.map(drop)
    }

    /// Takes a reading over. It is never older than what the watch has told, unless the store was set back to an earlier
    /// state; then that one counts.
    fn take_snapshot(&mut self, snapshot: &Snapshot) {
        let known = self.host.directory.read().revision();
        if snapshot.revision < known {
            warn!(
                "the store has gone back from revision {known} to {}; what it has now counts",
                snapshot.revision
            );
        }
        let there: HashSet<&str> = snapshot.entries.iter().map(|e| e.key.as_str()).collect();
        self.bad.retain(|key, _| there.contains(key.as_str()));
        self.take(|directory| directory.replace(snapshot));
    }

    /// Changes the directory, and tells the devices while nobody can see the change yet: whoever sees it and then waits for
    /// them waits long enough.
    fn take(&mut self, change: impl FnOnce(&mut Directory) -> Delta) {
        let mut directory = self.host.directory.write();
        let delta = change(&mut directory);
        for bad in &delta.bad {
            // Each reading meets it again.
            if self.bad.get(&bad.key) != Some(&bad.reason) {
                warn!("{bad}");
                self.bad.insert(bad.key.clone(), bad.reason.clone());
            }
        }
        self.host.router.touch(&delta.touched);
        self.changed.send_replace(directory.revision());
    }

    async fn take_miss(&mut self, miss: Option<Miss>) {
        match miss {
            Some(miss) => {
                self.waiting.push(miss);
                self.gate.handle_miss(self.began.elapsed());
            }
            // The host has a sender as long as this task lives.
            None => std::future::pending().await,
        }
    }

    fn resolve_waiting(&mut self) {
        for miss in self.waiting.drain(..) {
            miss.inbox.push(Message::Resolved(miss.ticket));
        }
    }

    /// While the store is away, requests are decided by what is known: unknown peers are refused.
    async fn pause(&mut self) {
        self.resolve_waiting();
        let end = Instant::now() + RETRY_INTERVAL;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(end) => return,
                miss = self.misses.recv() => {
                    self.take_miss(miss).await;
                    self.resolve_waiting();
                }
            }
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
