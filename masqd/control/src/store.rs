//! Where desired and realised state is kept: a watchable key-value store with revisions.
//!
//! Keys and values are those of `masq_model`. A revision is a number that grows with every change of the
//! store; an entry carries the revision of its last change.

use std::future::Future;
use std::pin::Pin;

/// A future on any runtime.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A watchable key-value store.
pub trait Store: Send + Sync {
    /// Reads one entry.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>>;

    /// Reads all entries whose keys begin with `prefix`, as of one revision.
    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Snapshot, StoreError>>;

    /// Makes all changes at once, or none when a guard fails. After [`StoreError::Unavailable`] they may have been made, or may
    /// yet be, but not later than a guard fails: whoever must know reads again.
    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Committed, StoreError>>;

    /// Watches all keys that begin with `prefix`, beginning with the first change after revision `after` (that of
    /// a [`Snapshot`], so that nothing is missed between the two).
    fn watch<'a>(&'a self, prefix: &'a str, after: u64) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>>;

    /// Writes one entry, whatever was there; returns the revision.
    fn put<'a>(&'a self, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<u64, StoreError>> {
        let change = Change::Put { key: key.into(), value };
        Box::pin(async move {
            Ok(self.commit(Transaction { guards: Vec::new(), changes: vec![change] }).await?.revision())
        })
    }

    /// Deletes one entry, if it exists; returns the revision.
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<u64, StoreError>> {
        let change = Change::Delete { key: key.into() };
        Box::pin(async move {
            Ok(self.commit(Transaction { guards: Vec::new(), changes: vec![change] }).await?.revision())
        })
    }
}

/// A running watch.
pub trait Watch: Send {
    /// Waits for the next changes: all of one revision or of several, in order, none left out. After
    /// [`StoreError::Compacted`], list and watch anew. May be dropped while it waits without losing a change.
    fn next(&mut self) -> BoxFuture<'_, Result<Batch, StoreError>>;
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// Revision of its last change.
    pub revision: u64,
}

/// Entries as of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The entries, by key.
    pub entries: Vec<Entry>,
    /// The store's revision at that moment.
    pub revision: u64,
}

/// Changes that a watch saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The changes, in order.
    pub changes: Vec<Change>,
    /// Revision of the last of them.
    pub revision: u64,
}

/// A change of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The entry has this value now.
    Put {
        /// Its key.
        key: String,
        /// Its value.
        value: Vec<u8>,
    },
    /// The entry does not exist any more.
    Delete {
        /// Its key.
        key: String,
    },
}

impl Change {
    /// The entry's key.
    pub fn key(&self) -> &str {
        match self {
            Change::Put { key, .. } | Change::Delete { key } => key,
        }
    }
}

/// What must hold for a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The entry does not exist.
    Absent {
        /// Its key.
        key: String,
    },
    /// The entry exists and was last changed at this revision.
    Unchanged {
        /// Its key.
        key: String,
        /// The revision.
        revision: u64,
    },
}

/// Changes that are made at once, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// All must hold.
    pub guards: Vec<Guard>,
    /// The changes; no key stands in two of them.
    pub changes: Vec<Change>,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// It was made at this revision.
    Yes(u64),
    /// A guard failed; the store is at this revision, and nothing has changed.
    No(u64),
}

impl Committed {
    /// The store's revision.
    pub fn revision(self) -> u64 {
        match self {
            Committed::Yes(r) | Committed::No(r) => r,
        }
    }
}

/// Why a store did not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached, or did not answer in time.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// The changes after the asked revision are gone; list anew.
    #[error("the store does not remember changes after revision {0}")]
    Compacted(u64),
    /// It is broken, or does not take what it was given.
    #[error("the store has failed: {0}")]
    Failed(String),
}
