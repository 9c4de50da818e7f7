//! Makes the store's desired state what a file says.

use masq_control::store::{Change, Committed, Snapshot, Store, StoreError, Transaction};
use masq_model::api::Applied;
use masq_model::{DesiredState, Key, Object, PREFIX};

/// How often the store is compared again after somebody else wrote at the same time.
const ATTEMPTS: u32 = 5;

/// Why a desired state was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The store.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// Others keep writing.
    #[error("the desired state was changed by somebody else at the same time; try again")]
    Contended,
}

/// Replaces the desired state in one transaction; tells what has changed. With `dry_run`, only tells what would.
pub async fn apply(store: &dyn Store, desired: &DesiredState, dry_run: bool) -> Result<Applied, ApplyError> {
    let mut total: Option<Applied> = None;
    for _ in 0..ATTEMPTS {
        let snapshot = store.list(PREFIX).await?;
        let (changes, applied) = compare(desired, &snapshot);
        if changes.is_empty() || dry_run {
            return Ok(Applied { dry_run, ..total.unwrap_or(applied) });
        }
        let committed = store.commit(Transaction { guards: Vec::new(), changes }).await?;
        if let Committed::Yes(_) = committed {
            // What is told is what this call has changed; the next round sees whether anybody interfered.
            total = Some(total.unwrap_or(applied));
        }
    }
    Err(ApplyError::Contended)
}

fn compare(desired: &DesiredState, snapshot: &Snapshot) -> (Vec<Change>, Applied) {
    let mut changes = Vec::new();
    let mut applied = Applied::default();
    let objects = desired.objects();
    for (key, object) in objects {
        let name = key.to_string();
        let value = object.to_json();
        let told = match snapshot.entries.iter().find(|e| e.key == name) {
            // Equal objects may be written differently.
            Some(e) if Object::from_entry(key, &e.value).is_ok_and(|o| o == *object) => continue,
            Some(_) => &mut applied.changed,
            None => &mut applied.created,
        };
        told.push(name.clone());
        changes.push(Change::Put { key: name, value });
    }
    for entry in &snapshot.entries {
        let is_left_over =
            entry.key.parse::<Key>().is_ok_and(|k| k.kind().is_desired() && !objects.contains_key(&k));
        if is_left_over {
            applied.deleted.push(entry.key.clone());
            changes.push(Change::Delete { key: entry.key.clone() });
        }
    }
    (changes, applied)
}
