//! Writes desired state: the only way in which anybody changes it.
//!
//! A writer keeps the desired state in memory, as of the last change of one entry of the store, the lock entry, which every
//! write changes too. A write is checked against that state and committed on the condition that the lock entry has not
//! changed since. So the writes of all hosts come one after another, each is checked against what is there, and none
//! is half done; and as long as one host alone writes, it never reads the state again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use masq_control::store::{Change, Committed, Guard, Snapshot, Store, StoreError, Transaction};
use masq_model::api::{AppliedChange, ChangeKind, FieldChange};
use masq_model::{DesiredState, Edit, Key, Object, Problem};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// What everything of ours begins with, also the lock entry.
const ALL: &str = "masq/";
/// Changes with every write of desired state.
pub const LOCK: &str = "masq/lock/v1/desired";
/// How often a write is tried when others write at the same time.
const ATTEMPTS: u32 = 20;
/// Attempts after which a write makes others read the state again too: who has written last need not, and would win for ever.
const LEVELLED_AFTER: u32 = 4;
/// How long a write is tried, if the store is slow.
const PATIENCE: Duration = Duration::from_secs(3);
/// Longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// Writes desired state.
pub struct Writer {
    store: Arc<dyn Store>,
    /// Absent when the store has to be read; taken out while it may differ from the store.
    current: Mutex<Option<Current>>,
}

/// The desired state as of the last change of the lock entry.
pub struct Current {
    state: DesiredState,
    /// Revision of the last change of each object, also of those that cannot be read.
    generations: HashMap<Key, u64>,
    lock: Option<u64>,
}

/// One object that a write has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Its key.
    pub key: Key,
    /// What it was; absent when it did not exist, or could not be read.
    pub old: Option<Object>,
    /// What it is.
    pub new: Option<Object>,
}

/// What a write has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written<T> {
    /// Revision of the store at which it was done; absent when nothing had to be changed, or nothing should be.
    pub revision: Option<u64>,
    /// The changes, by key.
    pub changes: Vec<Changed>,
    /// What the plan has noted.
    pub noted: T,
}

/// What shall be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<T> {
    /// The changes; those that make no difference are not made.
    pub edits: Vec<Edit>,
    /// What whoever plans wants to remember of the state to which they are made.
    pub note: T,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError<E> {
    /// Whoever planned it does not want it.
    #[error("{0}")]
    Refused(E),
    /// The state would not be consistent.
    #[error("the desired state would not be consistent")]
    Invalid(Vec<Problem>),
    /// Others keep writing.
    #[error("the desired state was changed by others at the same time; try again")]
    Contended,
    /// The store. What was to be written may have been, if the store did not answer in time.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Writer {
    /// A writer on a store.
    pub fn new(store: Arc<dyn Store>) -> Writer {
        Writer { store, current: Mutex::new(None) }
    }

    /// Makes the changes that `plan` wants, all at once or none. `plan` sees the state to which they will be made; it is asked
    /// again when that turns out to have changed meanwhile. With `dry_run`, only tells what would be changed.
    ///
    /// Takes time in proportion to the changes, unless others have written since the last time. A call that is given up on the
    /// way has done everything or nothing.
    pub async fn write<T, E>(
        &self,
        dry_run: bool,
        mut plan: impl FnMut(&Current) -> Result<Plan<T>, E>,
    ) -> Result<Written<T>, WriteError<E>> {
        let mut kept = self.current.lock().await;
        let begun = Instant::now();
        for attempt in 0..ATTEMPTS {
            // The first time what is remembered was out of date, no more.
            if attempt > 1 {
                tokio::time::sleep(pause(attempt)).await;
                if begun.elapsed() > PATIENCE {
                    break;
                }
            }
            if attempt >= LEVELLED_AFTER {
                self.store.put(LOCK, Vec::new()).await?;
            }
            let cached = kept.take();
            let is_fresh = cached.is_none();
            let mut current = match cached {
                Some(current) => current,
                None => Current::of(&self.store.list(ALL).await?),
            };
            let outcome = plan(&current).map_err(WriteError::Refused).and_then(|plan| {
                let changes = current.edit(plan.edits).map_err(WriteError::Invalid)?;
                Ok(Written { revision: None, changes, noted: plan.note })
            });
            match outcome {
                Ok(mut written) if !written.changes.is_empty() && !dry_run => {
                    let transaction = current.transaction(&written.changes);
                    if let Committed::Yes(revision) = self.store.commit(transaction).await? {
                        current.committed(&written.changes, revision);
                        *kept = Some(current);
                        written.revision = Some(revision);
                        return Ok(written);
                    }
                }
                // There is no commit that would tell whether the state was still the store's.
                outcome => {
                    if !is_fresh && self.lock_revision().await? != current.lock {
                        continue;
                    }
                    if outcome.as_ref().map_or(true, |written| current.undo(&written.changes)) {
                        *kept = Some(current);
                    }
                    return outcome;
                }
            }
        }
        Err(WriteError::Contended)
    }

    async fn lock_revision(&self) -> Result<Option<u64>, StoreError> {
        Ok(self.store.get(LOCK).await?.map(|e| e.revision))
    }
}

/// How long to let others go first: longer with each attempt, and hardly ever as long as somebody else does.
fn pause(attempt: u32) -> Duration {
    let longest = MAX_PAUSE.min(Duration::from_millis(1) * (1 << attempt.min(10)));
    // Without randomness the longest pause will do.
    let random = getrandom::u32().unwrap_or(u32::MAX);
    longest.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

impl Current {
    fn of(snapshot: &Snapshot) -> Current {
        let mut current = Current { state: DesiredState::default(), generations: HashMap::new(), lock: None };
        let mut objects = Vec::new();
        for entry in &snapshot.entries {
            if entry.key == LOCK {
                current.lock = Some(entry.revision);
                continue;
            }
            let Ok(key) = entry.key.parse::<Key>() else { continue };
            if key.kind().is_desired() {
                // One that cannot be read can still be replaced or deleted.
                objects.extend(Object::from_entry(&key, &entry.value));
                current.generations.insert(key, entry.revision);
            }
        }
        current.state = DesiredState::from_objects(objects);
        current
    }

    /// The objects.
    pub fn state(&self) -> &DesiredState {
        &self.state
    }

    /// Revision of an object's last change; absent when it does not exist.
    pub fn generation(&self, key: &Key) -> Option<u64> {
        self.generations.get(key).copied()
    }

    /// The keys of all objects, also of those that cannot be read.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.generations.keys()
    }

    /// Makes the changes in memory; returns those that make a difference, by key.
    fn edit(&mut self, edits: Vec<Edit>) -> Result<Vec<Changed>, Vec<Problem>> {
        let mut changes = Vec::with_capacity(edits.len());
        let mut different = Vec::with_capacity(edits.len());
        for edit in edits {
            let (key, new) = match &edit {
                Edit::Put(object) => (object.key(), Some(object.clone())),
                Edit::Delete(key) => (key.clone(), None),
            };
            let old = self.state.objects().get(&key).cloned();
            let exists = self.generations.contains_key(&key);
            if old != new || exists != new.is_some() {
                changes.push(Changed { key, old, new });
                different.push(edit);
            }
        }
        changes.sort_by(|a, b| a.key.cmp(&b.key));
        self.state.edit(different)?;
        Ok(changes)
    }

    /// Takes the changes back; whether that was possible.
    fn undo(&mut self, changes: &[Changed]) -> bool {
        let back = |c: &Changed| match &c.old {
            Some(old) => Edit::Put(old.clone()),
            None => Edit::Delete(c.key.clone()),
        };
        // A state that was not consistent before cannot be restored by an edit.
        changes.is_empty() || self.state.edit(changes.iter().map(back).collect()).is_ok()
    }

    fn transaction(&self, changes: &[Changed]) -> Transaction {
        let guard = match self.lock {
            Some(revision) => Guard::Unchanged { key: LOCK.into(), revision },
            None => Guard::Absent { key: LOCK.into() },
        };
        let change = |c: &Changed| match &c.new {
            Some(object) => Change::Put { key: c.key.to_string(), value: object.to_json() },
            None => Change::Delete { key: c.key.to_string() },
        };
        let mut changes: Vec<Change> = changes.iter().map(change).collect();
        changes.push(Change::Put { key: LOCK.into(), value: Vec::new() });
        Transaction { guards: vec![guard], changes }
    }

    fn committed(&mut self, changes: &[Changed], revision: u64) {
        self.lock = Some(revision);
        for change in changes {
            match &change.new {
                Some(_) => self.generations.insert(change.key.clone(), revision),
                None => self.generations.remove(&change.key),
            };
        }
    }
}

/// What makes the desired state the one of a file; with `prune` also by deleting what the file lacks.
pub fn plan_apply(current: &Current, file: &DesiredState, prune: bool) -> Vec<Edit> {
    let puts = file.objects().values().cloned().map(Edit::Put);
    if !prune {
        return puts.collect();
    }
    let left_over = current.keys().filter(|key| !file.objects().contains_key(key));
    puts.chain(left_over.cloned().map(Edit::Delete)).collect()
}

impl Changed {
    /// For people, field by field.
    pub fn told(&self) -> AppliedChange {
        let change = match (&self.old, &self.new) {
            (_, None) => ChangeKind::Deleted,
            (None, Some(_)) => ChangeKind::Created,
            (Some(_), Some(_)) => ChangeKind::Changed,
        };
        let fields = match (&self.old, &self.new) {
            (Some(old), Some(new)) => differences(&old.to_value(), &new.to_value()),
            _ => Vec::new(),
        };
        AppliedChange { change, kind: self.key.kind().name().into(), name: self.key.name().into(), fields }
    }
}

/// The fields in which two objects differ.
fn differences(old: &Value, new: &Value) -> Vec<FieldChange> {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return Vec::new() };
    let added = new.keys().filter(|field| !old.contains_key(*field));
    let field = |field: &String| {
        let of = |object: &serde_json::Map<String, Value>| object.get(field).cloned().unwrap_or_default();
        let (old, new) = (of(old), of(new));
        (old != new).then(|| FieldChange { field: field.clone(), old, new })
    };
    old.keys().chain(added).filter_map(field).collect()
}
