//! The store of several hosts: etcd.
//!
//! Realised state is bound to a lease that this process keeps alive: when the host dies, etcd deletes what it
//! had realised. A lease that has been lost (etcd forgot it, or could not be reached for too long) is
//! replaced by the next write; the deletion of the old entries shows in the watch, and
//! whoever wrote them writes them again.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, DeleteOptions, EventType, GetOptions, PutOptions, Txn, TxnOp,
    WatchOptions, WatchStream,
};
use masq_control::store::{
    Batch, BoxFuture, Change, Committed, Entry, Guard, Snapshot, Store, StoreError, Transaction, Watch,
};
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use super::is_ephemeral;

/// etcd allows 128 operations in a transaction (and in each nested one together with those above it), and as many guards.
const MAX_OPS: usize = 60;
/// The most that one answer may have.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// How to use an etcd.
#[derive(Clone, Copy, Debug)]
pub struct EtcdConfig {
    /// How long one request may take.
    pub timeout: Duration,
    /// How long realised state outlives its host; whole seconds.
    pub lease: Duration,
}

impl Default for EtcdConfig {
    fn default() -> Self {
        EtcdConfig { timeout: Duration::from_secs(5), lease: Duration::from_secs(15) }
    }
}

/// A store in an etcd cluster.
pub struct Etcd {
    urls: Vec<String>,
    client: Client,
    config: EtcdConfig,
    lease: tokio::sync::Mutex<Option<Lease>>,
}

struct Lease {
    id: i64,
    keeper: JoinHandle<()>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

fn unavailable(e: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable(e.to_string())
}

impl Etcd {
    /// A store behind the client URLs `urls`. Does not wait until one of them answers.
    pub async fn connect(urls: &[String], config: EtcdConfig) -> Result<Self, StoreError> {
        let options = ConnectOptions::new()
            .with_connect_timeout(config.timeout)
            .with_keep_alive(config.timeout, config.timeout)
            .with_keep_alive_while_idle(true);
        let client = Client::connect(urls, Some(options)).await.map_err(unavailable)?;
        Ok(Etcd { urls: urls.to_vec(), client, config, lease: tokio::sync::Mutex::default() })
    }

    /// The client URLs.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Gives the lease back, so that what this host has realised is gone at once.
    pub async fn leave(&self) {
        if let Some(lease) = self.lease.lock().await.take() {
            lease.keeper.abort();
            let mut client = self.client.lease_client();
            if let Err(e) = self.within(client.revoke(lease.id)).await {
                debug!("the lease runs out by itself: {e}");
            }
        }
    }

    async fn within<T>(
        &self,
        request: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.config.timeout, request).await {
            Ok(answer) => answer.map_err(unavailable),
            Err(_) => {
                Err(unavailable(format_args!("no answer within {} s", self.config.timeout.as_secs_f32())))
            }
        }
    }

    fn kv(&self) -> etcd_client::KvClient {
        self.client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    /// A lease that is alive as far as is known.
    async fn lease(&self) -> Result<i64, StoreError> {
        let mut lease = self.lease.lock().await;
        match &*lease {
            Some(current) if !current.keeper.is_finished() => Ok(current.id),
            _ => {
                let mut client = self.client.lease_client();
                let seconds = self.config.lease.as_secs().max(1);
                let id = self.within(client.grant(seconds as i64, None)).await?.id();
                debug!("lease {id:#x} granted for {seconds} s");
                let keeper = tokio::spawn(keep_alive(client, id, self.config.lease));
                *lease = Some(Lease { id, keeper });
                Ok(id)
            }
        }
    }

    async fn read(&self, key: &str, options: Option<GetOptions>) -> Result<Snapshot, StoreError> {
        let answer = self.within(self.kv().get(key, options)).await?;
        let entry = |kv: &etcd_client::KeyValue| {
            Some(Entry {
                key: kv.key_str().ok()?.into(),
                value: kv.value().into(),
                revision: kv.mod_revision() as u64,
            })
        };
        Ok(Snapshot {
            entries: answer.kvs().iter().filter_map(entry).collect(),
            revision: revision(answer.header()),
        })
    }

    async fn transact(&self, transaction: &Transaction, lease: Option<i64>) -> Result<Committed, StoreError> {
        if transaction.guards.len() > MAX_OPS || transaction.changes.len() > MAX_OPS * MAX_OPS {
            let (g, c) = (transaction.guards.len(), transaction.changes.len());
            return Err(StoreError::Failed(format!(
                "{g} guards and {c} changes are too many for one transaction"
            )));
        }
        let guards: Vec<Compare> = transaction.guards.iter().map(compare).collect();
        let operations: Vec<TxnOp> = transaction.changes.iter().map(|c| operation(c, lease)).collect();
        let answer = self.within(self.kv().txn(Txn::new().when(guards).and_then(nest(operations)))).await?;
        let revision = revision(answer.header());
        Ok(if answer.succeeded() { Committed::Yes(revision) } else { Committed::No(revision) })
    }
}

async fn keep_alive(mut client: etcd_client::LeaseClient, id: i64, ttl: Duration) {
    let mut last = tokio::time::Instant::now();
    let period = ttl / 3;
    while last.elapsed() < ttl {
        let outcome: Result<(), etcd_client::Error> = async {
            let (mut keeper, mut answers) = client.keep_alive(id).await?;
            loop {
                keeper.keep_alive().await?;
                match tokio::time::timeout(period, answers.message()).await {
                    Ok(answer) => match answer? {
                        Some(answer) if answer.ttl() > 0 => last = tokio::time::Instant::now(),
                        // etcd does not know the lease any more.
                        Some(_) => {
                            last -= ttl;
                            return Ok(());
                        }
                        None => return Ok(()),
                    },
                    Err(_) => return Ok(()),
                }
                tokio::time::sleep(period).await;
            }
        }
        .await;
        if let Err(e) = outcome {
            debug!("lease {id:#x}: {e}");
        }
        tokio::time::sleep(period.min(Duration::from_secs(1))).await;
    }
    warn!("the lease on what this host has realised is lost; a new one will be taken");
}

fn revision(header: Option<&etcd_client::ResponseHeader>) -> u64 {
    header.map_or(0, |h| h.revision() as u64)
}

fn compare(guard: &Guard) -> Compare {
    match guard {
        Guard::Absent { key } => Compare::create_revision(key.as_str(), CompareOp::Equal, 0),
        Guard::Unchanged { key, revision } => {
            Compare::mod_revision(key.as_str(), CompareOp::Equal, *revision as i64)
        }
    }
}

fn operation(change: &Change, lease: Option<i64>) -> TxnOp {
    match change {
        Change::Put { key, value } => {
            let lease = lease.filter(|_| is_ephemeral(key));
            TxnOp::put(key.as_str(), value.as_slice(), lease.map(|id| PutOptions::new().with_lease(id)))
        }
        Change::Delete { key } => TxnOp::delete(key.as_str(), None::<DeleteOptions>),
    }
}

/// More operations than etcd takes in one list go into nested transactions without guards: still all at once.
fn nest(operations: Vec<TxnOp>) -> Vec<TxnOp> {
    if operations.len() <= MAX_OPS {
        return operations;
    }
    operations.chunks(MAX_OPS).map(|c| TxnOp::txn(Txn::new().and_then(c.to_vec()))).collect()
}

impl Store for Etcd {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move { Ok(self.read(key, None).await?.entries.pop()) })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(self.read(prefix, Some(GetOptions::new().with_prefix())))
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(async move {
            let realises = |c: &Change| matches!(c, Change::Put { key, .. } if is_ephemeral(key));
            if !transaction.changes.iter().any(realises) {
                return self.transact(&transaction, None).await;
            }
            let lease = self.lease().await?;
            let outcome = self.transact(&transaction, Some(lease)).await;
            if matches!(&outcome, Err(StoreError::Unavailable(e)) if e.contains("lease not found")) {
                // etcd forgot it sooner than the keeper learnt of it.
                *self.lease.lock().await = None;
                let lease = self.lease().await?;
                return self.transact(&transaction, Some(lease)).await;
            }
            outcome
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: u64) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            let options = WatchOptions::new().with_prefix().with_start_revision(after as i64 + 1);
            let mut client = self.client.watch_client().max_decoding_message_size(MAX_ANSWER_BYTES);
            let stream = self.within(client.watch(prefix, Some(options))).await?;
            let watch: Box<dyn Watch> = Box::new(EtcdWatch { stream, after });
            Ok(watch)
        })
    }
}

struct EtcdWatch {
    stream: WatchStream,
    after: u64,
}

impl Watch for EtcdWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<Batch, StoreError>> {
        Box::pin(async move {
            loop {
                let Some(answer) = self.stream.message().await.map_err(unavailable)? else {
                    return Err(unavailable("the watch has ended"));
                };
                if answer.compact_revision() > 0 {
                    return Err(StoreError::Compacted(self.after));
                }
                if answer.canceled() {
                    return Err(unavailable(format_args!(
                        "the watch was cancelled: {}",
                        answer.cancel_reason()
                    )));
                }
                let changes: Vec<Change> = answer.events().iter().filter_map(change).collect();
                if let Some(last) =
                    answer.events().iter().filter_map(|e| e.kv()).map(|kv| kv.mod_revision()).max()
                {
                    self.after = last as u64;
                    return Ok(Batch { changes, revision: self.after });
                }
            }
        })
    }
}

fn change(event: &etcd_client::Event) -> Option<Change> {
    let kv = event.kv()?;
    let key = kv.key_str().ok()?.to_owned();
    Some(match event.event_type() {
        EventType::Put => Change::Put { key, value: kv.value().into() },
        EventType::Delete => Change::Delete { key },
    })
}
