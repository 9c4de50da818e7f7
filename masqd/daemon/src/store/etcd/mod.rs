//! The store of several hosts: etcd.
//!
//! Realised state is bound to a lease that this process keeps alive: when the host dies, etcd deletes what it
//! had realised. A lease that etcd has ended (it could not be prolonged for too long) is replaced by the next write; the
//! deletion of the old entries shows in the watch, and whoever wrote them writes them again.
//!
//! | module | does |
//! |---|---|
//! | [`access`] | certificates and passwords, from files |
//! | [`members`] | asks one member, and the next one when it fails |
//! | [`lease`] | keeps the lease |
//! | [`watch`] | follows changes |

mod access;
mod lease;
mod members;
mod watch;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, ConnectOptions, DeleteOptions, GetOptions, KeyValue, PutOptions, ResponseHeader, Txn,
    TxnOp, WatchOptions,
};
use masq_control::store::{
    BoxFuture, Change, Committed, Entry, Guard, Snapshot, Store, StoreError, Transaction, Watch,
};
use tracing::warn;

pub use access::{AccessError, EtcdFiles};
use lease::Lease;
use members::{Effect, Members, Trouble};
use watch::EtcdWatch;

use super::is_ephemeral;

/// etcd allows 128 operations in a transaction (and in each nested one together with those above it), and as many guards.
const MAX_OPS: usize = 60;
/// The most that one answer may have.
const MAX_ANSWER_BYTES: usize = 256 << 20;
/// So many unreadable keys are told; more would be told again and again.
const MAX_TOLD: usize = 100;

/// How to use an etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Client URLs of the members.
    pub urls: Vec<String>,
    /// Certificates and passwords.
    pub files: EtcdFiles,
    /// How long one request may take; a watch that has been silent for twice as long is given up.
    pub timeout: Duration,
    /// How long realised state outlives its host; whole seconds.
    pub lease: Duration,
}

impl EtcdConfig {
    /// The members behind these client URLs, without certificates; 5 s for a request, 15 s for the lease.
    pub fn new(urls: Vec<String>) -> Self {
        let files = EtcdFiles::default();
        EtcdConfig { urls, files, timeout: Duration::from_secs(5), lease: Duration::from_secs(15) }
    }
}

/// A store in an etcd cluster.
pub struct Etcd {
    members: Arc<Members>,
    lease: Lease,
    unreadable: Arc<Unreadable>,
}

/// The keys that are no text, as far as they have been told: nothing of ours.
#[derive(Default)]
struct Unreadable(Mutex<BTreeSet<Vec<u8>>>);

impl Unreadable {
    /// A key, if it is text.
    fn key(&self, kv: &KeyValue) -> Option<String> {
        if let Ok(key) = kv.key_str() {
            return Some(key.into());
        }
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < MAX_TOLD && told.insert(kv.key().into()) {
            warn!("ignoring the entry \"{}\" of the store: its key is not UTF-8", kv.key().escape_ascii());
        }
        None
    }
}

impl Etcd {
    /// A store in the cluster of `config`. Does not wait until one of its members answers.
    pub fn open(config: EtcdConfig) -> Result<Self, AccessError> {
        let options = config.files.apply(&config.urls, ConnectOptions::new())?;
        // Hosts spread over the members; without random numbers they do not.
        let first = getrandom::u32().unwrap_or(0) as usize;
        let members = Arc::new(Members::new(config.urls, options, config.timeout, first));
        let lease = Lease::new(members.clone(), config.lease);
        Ok(Etcd { members, lease, unreadable: Arc::default() })
    }

    /// The client URLs.
    pub fn urls(&self) -> &[String] {
        self.members.urls()
    }

    /// Gives the lease back, so that what this host has realised is gone at once.
    pub async fn leave(&self) {
        self.lease.revoke().await;
    }

    async fn read(&self, key: &str, options: Option<GetOptions>) -> Result<Snapshot, StoreError> {
        let get = |client: etcd_client::Client| {
            let options = options.clone();
            async move { client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES).get(key, options).await }
        };
        let (_, answer) = self.members.call(Effect::Repeatable, get).await?;
        let entry = |kv: &KeyValue| {
            let key = self.unreadable.key(kv)?;
            Some(Entry { key, value: kv.value().into(), revision: kv.mod_revision() as u64 })
        };
        Ok(Snapshot {
            entries: answer.kvs().iter().filter_map(entry).collect(),
            revision: revision(answer.header()),
        })
    }

    async fn transact(&self, transaction: &Transaction, lease: Option<i64>) -> Result<Committed, Trouble> {
        if transaction.guards.len() > MAX_OPS || transaction.changes.len() > MAX_OPS * MAX_OPS {
            let (g, c) = (transaction.guards.len(), transaction.changes.len());
            let most = MAX_OPS * MAX_OPS;
            return Err(Trouble::Refused(format!(
                "{g} guards and {c} changes are too many for one transaction, which can have {MAX_OPS} and {most}"
            )));
        }
        let guards: Vec<Compare> = transaction.guards.iter().map(compare).collect();
        let operations: Vec<TxnOp> = transaction.changes.iter().map(|c| operation(c, lease)).collect();
        let txn = Txn::new().when(guards).and_then(nest(operations));
        let commit = |client: etcd_client::Client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        };
        let (_, answer) = self.members.call(Effect::Once, commit).await?;
        let revision = revision(answer.header());
        Ok(if answer.succeeded() { Committed::Yes(revision) } else { Committed::No(revision) })
    }

    async fn commit_all(&self, transaction: &Transaction) -> Result<Committed, Trouble> {
        let realises = |c: &Change| matches!(c, Change::Put { key, .. } if is_ephemeral(key));
        if !transaction.changes.iter().any(realises) {
            return self.transact(transaction, None).await;
        }
        let lease = self.lease.id(None).await?;
        match self.transact(transaction, Some(lease)).await {
            // etcd ended it sooner than the keeper has learnt of it.
            Err(Trouble::NoLease) => {
                let lease = self.lease.id(Some(lease)).await?;
                self.transact(transaction, Some(lease)).await
            }
            outcome => outcome,
        }
    }
}

fn revision(header: Option<&ResponseHeader>) -> u64 {
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
        Box::pin(async move { Ok(self.commit_all(&transaction).await?) })
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: u64) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            let options = WatchOptions::new().with_prefix().with_start_revision(after as i64 + 1);
            let open = |client: etcd_client::Client| {
                let options = options.clone();
                let mut client = client.watch_client().max_decoding_message_size(MAX_ANSWER_BYTES);
                async move { client.watch(prefix, Some(options)).await }
            };
            let (member, stream) = self.members.call(Effect::Repeatable, open).await?;
            let (members, unreadable) = (self.members.clone(), self.unreadable.clone());
            let watch: Box<dyn Watch> = Box::new(EtcdWatch::new(members, member, stream, unreadable, after));
            Ok(watch)
        })
    }
}
