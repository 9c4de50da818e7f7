//! The lease to which realised state is bound.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::members::{Effect, Members, Trouble};

/// Pause after a failure, at most.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The lease of this process: taken when it is needed, and kept alive until etcd has forgotten it.
pub struct Lease {
    members: Arc<Members>,
    ttl: Duration,
    held: Mutex<Option<Held>>,
}

struct Held {
    id: i64,
    keeper: JoinHandle<()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Lease {
    /// A lease, not taken yet, that outlives the process by `ttl` (whole seconds, at least one).
    pub fn new(members: Arc<Members>, ttl: Duration) -> Self {
        Lease { members, ttl, held: Mutex::default() }
    }

    /// A lease that is alive as far as is known. With `dead`, one that etcd does not know: another one than that.
    pub async fn id(&self, dead: Option<i64>) -> Result<i64, Trouble> {
        let mut held = self.held.lock().await;
        match &*held {
            // Somebody else may have replaced the dead one already.
            Some(current) if !current.keeper.is_finished() && Some(current.id) != dead => Ok(current.id),
            _ => {
                let seconds = self.ttl.as_secs().max(1) as i64;
                // One that is granted and not heard of ends by itself.
                let grant = |client: etcd_client::Client| async move {
                    client.lease_client().grant(seconds, None).await
                };
                let id = self.members.call(Effect::Repeatable, grant).await?.1.id();
                debug!("lease {id:#x} granted for {seconds} s");
                let keeper = tokio::spawn(keep_alive(self.members.clone(), id, self.ttl));
                *held = Some(Held { id, keeper });
                Ok(id)
            }
        }
    }

    /// Ends the lease, and what is bound to it.
    pub async fn revoke(&self) {
        let Some(held) = self.held.lock().await.take() else { return };
        let id = held.id;
        drop(held);
        let revoke = |client: etcd_client::Client| async move { client.lease_client().revoke(id).await };
        if let Err(e) = self.members.call(Effect::Repeatable, revoke).await {
            debug!("the lease runs out by itself: {e:?}");
        }
    }
}

/// Keeps a lease alive until etcd does not know it any more. Does not judge by its own clock: a new leader may have
/// prolonged the lease, and as long as etcd has it, what is bound to it is there.
async fn keep_alive(members: Arc<Members>, id: i64, ttl: Duration) {
    let period = ttl / 3;
    loop {
        let open = |client: etcd_client::Client| async move { client.lease_client().keep_alive(id).await };
        match members.call(Effect::Repeatable, open).await {
            Ok((member, (mut keeper, mut answers))) => {
                // Opening has prolonged it.
                loop {
                    sleep(period).await;
                    if keeper.keep_alive().await.is_err() {
                        break;
                    }
                    match timeout(members.timeout, answers.message()).await {
                        Ok(Ok(Some(answer))) if answer.ttl() > 0 => {}
                        Ok(Ok(Some(_))) => return lost(id),
                        Ok(Ok(None)) => break,
                        Ok(Err(e)) => {
                            debug!("lease {id:#x}: {e}");
                            break;
                        }
                        Err(_) => break,
                    }
                }
                members.turn_from(member);
            }
            Err(Trouble::NoLease) => return lost(id),
            Err(e) => {
                debug!("lease {id:#x}: {e:?}");
                sleep(period.min(RETRY_INTERVAL)).await;
            }
        }
    }
}

fn lost(id: i64) {
    warn!("etcd has ended the lease {id:#x} on what this host has realised; a new one will be taken");
}
