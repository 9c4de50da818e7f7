//! A watch on one member of the cluster.

use std::sync::Arc;

use etcd_client::{EventType, WatchStream};
use masq_control::store::{Batch, BoxFuture, Change, StoreError, Watch};
use tokio::time::{Instant, timeout_at};

use super::Unreadable;
use super::members::{Members, told};

/// A watch that notices by itself when its member has fallen silent.
pub struct EtcdWatch {
    members: Arc<Members>,
    member: usize,
    stream: WatchStream,
    unreadable: Arc<Unreadable>,
    after: u64,
    /// When the member is asked for a sign of life, or, if it has been, is given up.
    due: Instant,
    asked: bool,
}

impl EtcdWatch {
    /// A watch that `member` has begun after revision `after`.
    pub fn new(
        members: Arc<Members>,
        member: usize,
        stream: WatchStream,
        unreadable: Arc<Unreadable>,
        after: u64,
    ) -> Self {
        let due = Instant::now() + members.timeout;
        EtcdWatch { members, member, stream, unreadable, after, due, asked: false }
    }

    /// The next answer. May be dropped while it waits.
    async fn answer(&mut self) -> Result<etcd_client::WatchResponse, String> {
        loop {
            match timeout_at(self.due, self.stream.message()).await {
                Ok(Ok(Some(answer))) => {
                    self.due = Instant::now() + self.members.timeout;
                    self.asked = false;
                    return Ok(answer);
                }
                Ok(Ok(None)) => return Err("the watch has ended".into()),
                Ok(Err(e)) => return Err(told(&e)),
                Err(_) if self.asked => return Err("the watch has fallen silent".into()),
                Err(_) => {
                    self.asked = true;
                    self.due = Instant::now() + self.members.timeout;
                    self.stream.request_progress().await.map_err(|e| told(&e))?;
                }
            }
        }
    }
}

impl Watch for EtcdWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<Batch, StoreError>> {
        Box::pin(async move {
            loop {
                let answer = match self.answer().await {
                    Ok(answer) => answer,
                    Err(e) => {
                        self.members.turn_from(self.member);
                        return Err(StoreError::Unavailable(e));
                    }
                };
                if answer.compact_revision() > 0 {
                    return Err(StoreError::Compacted(self.after));
                }
                if answer.canceled() {
                    self.members.turn_from(self.member);
                    let reason = answer.cancel_reason();
                    return Err(StoreError::Unavailable(format!("the watch was cancelled: {reason}")));
                }
                // Signs of life have no events.
                let revisions = answer.events().iter().filter_map(|e| e.kv()).map(|kv| kv.mod_revision());
                if let Some(last) = revisions.max() {
                    let changes =
                        answer.events().iter().filter_map(|e| change(e, &self.unreadable)).collect();
                    self.after = last as u64;
                    return Ok(Batch { changes, revision: self.after });
                }
            }
        })
    }
}

fn change(event: &etcd_client::Event, unreadable: &Unreadable) -> Option<Change> {
    let kv = event.kv()?;
    let key = unreadable.key(kv)?;
    Some(match event.event_type() {
        EventType::Put => Change::Put { key, value: kv.value().into() },
        EventType::Delete => Change::Delete { key },
    })
}
