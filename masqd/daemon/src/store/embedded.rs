//! The store of a single host: a file, watched inside this process.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use masq_control::store::{
    Batch, BoxFuture, Change, Committed, Entry, Guard, Snapshot, Store, StoreError, Transaction, Watch,
};
use tokio::sync::watch;

use super::file::{FileError, StoreFile};

/// Batches that a watch can be behind.
const HISTORY: usize = 1024;

/// A store in one file.
#[derive(Debug)]
pub struct Embedded {
    path: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: StoreFile,
    /// The latest batches, oldest first; also orders commits.
    history: Mutex<History>,
    /// The revision of the newest batch.
    newest: watch::Sender<u64>,
}

#[derive(Debug)]
struct History {
    /// Changes after this revision are in `batches`.
    since: u64,
    batches: VecDeque<Batch>,
    /// How many are kept.
    most: usize,
    /// A commit has failed that may have been made.
    is_broken: bool,
}

impl Embedded {
    /// Opens or creates the file.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        Self::open_with(path, HISTORY)
    }

    /// Opens or creates the file; a watch can be `history` batches behind.
    pub fn open_with(path: &Path, history: usize) -> Result<Self, FileError> {
        let file = StoreFile::open(path)?;
        let revision = file.revision()?;
        let history = Mutex::new(History {
            since: revision,
            batches: VecDeque::new(),
            most: history,
            is_broken: false,
        });
        let (newest, _) = watch::channel(revision);
        Ok(Embedded { path: path.to_owned(), shared: Arc::new(Shared { file, history, newest }) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Files block: away from the runtime's threads.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = self.shared.clone();
        let mended = move || {
            shared.mend(&mut shared.history())?;
            work(&shared)
        };
        match tokio::task::spawn_blocking(mended).await {
            Ok(result) => result.map_err(|e| StoreError::Failed(format!("{}: {e}", self.path.display()))),
            Err(e) => Err(StoreError::Failed(e.to_string())),
        }
    }
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the history anew when a commit has failed of which nobody knows whether it was made.
    fn mend(&self, history: &mut History) -> Result<(), FileError> {
        if history.is_broken {
            let since = self.file.revision()?;
            history.batches.clear();
            history.since = since;
            history.is_broken = false;
            // Those who watch find out whether they have missed something.
            self.newest.send_replace(since);
        }
        Ok(())
    }

    fn commit(&self, transaction: Transaction) -> Result<Committed, FileError> {
        let mut history = self.history();
        let guards: Vec<_> = transaction.guards.into_iter().map(guard).collect();
        let writes: Vec<_> = transaction.changes.iter().map(write).collect();
        let committed = self.file.commit(&guards, &writes);
        if committed.is_err() {
            history.is_broken = true;
            // If the disk goes on failing, whoever comes next tries again.
            let _ = self.mend(&mut history);
        }
        let Some(revision) = committed? else {
            return Ok(Committed::No(self.file.revision()?));
        };
        history.batches.push_back(Batch { changes: transaction.changes, revision });
        if history.batches.len() > history.most
            && let Some(oldest) = history.batches.pop_front()
        {
            history.since = oldest.revision;
        }
        self.newest.send_replace(revision);
        Ok(Committed::Yes(revision))
    }

    /// The first batch after `after` that has something under `prefix`, and the revision up to which
    /// there is nothing else.
    fn after(&self, prefix: &str, after: u64) -> Result<(Option<Batch>, u64), StoreError> {
        let history = self.history();
        if after < history.since {
            return Err(StoreError::Compacted(after));
        }
        let mut seen = after;
        for batch in history.batches.iter().filter(|b| b.revision > after) {
            seen = batch.revision;
            let changes: Vec<_> =
                batch.changes.iter().filter(|c| c.key().starts_with(prefix)).cloned().collect();
            if !changes.is_empty() {
                return Ok((Some(Batch { changes, revision: seen }), seen));
            }
        }
        Ok((None, seen))
    }
}

fn guard(guard: Guard) -> (String, u64) {
    match guard {
        Guard::Absent { key } => (key, 0),
        Guard::Unchanged { key, revision } => (key, revision),
    }
}

fn write(change: &Change) -> (String, Option<Vec<u8>>) {
    match change {
        Change::Put { key, value } => (key.clone(), Some(value.clone())),
        Change::Delete { key } => (key.clone(), None),
    }
}

impl Store for Embedded {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        let key = key.to_owned();
        Box::pin(self.run(move |shared| shared.file.get(&key)))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        let prefix = prefix.to_owned();
        Box::pin(self.run(move |shared| {
            let (entries, revision) = shared.file.read(&prefix)?;
            Ok(Snapshot { entries, revision })
        }))
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(self.run(move |shared| shared.commit(transaction)))
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: u64) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            self.shared.after(prefix, after)?;
            let newest = self.shared.newest.subscribe();
            let watch: Box<dyn Watch> =
                Box::new(FileWatch { shared: self.shared.clone(), newest, prefix: prefix.into(), after });
            Ok(watch)
        })
    }
}

struct FileWatch {
    shared: Arc<Shared>,
    newest: watch::Receiver<u64>,
    prefix: String,
    after: u64,
}

impl Watch for FileWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<Batch, StoreError>> {
        Box::pin(async move {
            loop {
                // Marked as seen before looking, so that a commit in between wakes us again.
                self.newest.borrow_and_update();
                let (batch, seen) = self.shared.after(&self.prefix, self.after)?;
                self.after = seen;
                if let Some(batch) = batch {
                    return Ok(batch);
                }
                if self.newest.changed().await.is_err() {
                    return Err(StoreError::Unavailable("the store has been closed".into()));
                }
            }
        })
    }
}
