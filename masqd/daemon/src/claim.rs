//! Who writes a host's realised state: one process, the one that has started last.
//!
//! Each process claims its host's name by an entry of the store, bound to its lease as all realised state is. Whatever it
//! realises is written on the condition that the entry is still its own. So a process that has been replaced, or a second
//! one that was started by mistake, can write nothing any more, and two of them do not overwrite each other for ever.

use masq_control::store::{Change, Committed, Guard, Store, StoreError, Transaction};
use tokio::sync::Mutex;
use tracing::debug;

/// What the keys of claims begin with; the host's name follows.
pub const CLAIMS: &str = "masq/claim/v1/";
/// How often a claim is tried while others claim the same.
const ATTEMPTS: u32 = 5;

/// A process's claim to a host's name.
#[derive(Debug)]
pub struct Claim {
    key: String,
    /// Of this process alone.
    value: Vec<u8>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The entry's revision, as far as it is known to be ours.
    revision: Option<u64>,
    /// From then on, another's entry is younger than ours.
    was_held: bool,
}

impl Claim {
    /// A claim to the name of `host`, not made yet; `id` is like no other process's (from random numbers).
    pub fn new(host: &str, id: u128) -> Self {
        Claim { key: format!("{CLAIMS}{host}"), value: format!("{id:032x}").into(), state: Mutex::default() }
    }

    /// What must hold for everything that this process realises. Makes the claim, if need be; fails when a younger process
    /// has made it.
    pub async fn guard(&self, store: &dyn Store) -> Result<Guard, StoreError> {
        let mut state = self.state.lock().await;
        for _ in 0..ATTEMPTS {
            if let Some(revision) = state.revision {
                return Ok(Guard::Unchanged { key: self.key.clone(), revision });
            }
            let key = self.key.clone();
            let guard = match store.get(&self.key).await? {
                Some(entry) if entry.value == self.value => {
                    (state.revision, state.was_held) = (Some(entry.revision), true);
                    continue;
                }
                Some(_) if state.was_held => {
                    return Err(StoreError::Failed(
                        "another masqd has been started with this host's name, and publishes in this one's place".into(),
                    ));
                }
                Some(entry) => Guard::Unchanged { key, revision: entry.revision },
                None => Guard::Absent { key },
            };
            let changes = vec![Change::Put { key: self.key.clone(), value: self.value.clone() }];
            if let Committed::Yes(revision) =
                store.commit(Transaction { guards: vec![guard], changes }).await?
            {
                debug!("this host's name is claimed at revision {revision}");
                (state.revision, state.was_held) = (Some(revision), true);
            }
        }
        Err(StoreError::Unavailable("others keep claiming this host's name".into()))
    }

    /// A guard has failed, perhaps that of the claim: it may have ended with the lease, or another process have made it.
    pub async fn doubt(&self) {
        self.state.lock().await.revision = None;
    }
}
