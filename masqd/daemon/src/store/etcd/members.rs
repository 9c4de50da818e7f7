//! The members of an etcd cluster: one is asked, and the next one when it fails.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error};
use masq_control::store::StoreError;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, ConnectError};
use tracing::debug;

/// Pause when all members that can be reached wait for a leader.
const ELECTION_PAUSE: Duration = Duration::from_millis(100);
/// etcd takes pings more often than every 5 s for an attack.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// The members.
pub struct Members {
    urls: Vec<String>,
    options: ConnectOptions,
    /// How long one request may take, whoever answers it.
    pub timeout: Duration,
    /// The connection to each; none where the user has to be authenticated first.
    clients: Vec<Mutex<Option<Client>>>,
    current: AtomicUsize,
}

/// What a request does, which decides whether it may be sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing, or the same when it is done twice.
    Repeatable,
    /// It must not be done twice.
    Once,
}

/// Why a request has failed.
#[derive(Debug)]
pub enum Trouble {
    /// etcd does not know the lease.
    NoLease,
    /// Nobody has answered in time; what was asked may have been done, or may yet be.
    Unavailable(String),
    /// etcd does not want it.
    Refused(String),
}

impl From<Trouble> for StoreError {
    fn from(trouble: Trouble) -> StoreError {
        match trouble {
            Trouble::NoLease => StoreError::Unavailable("etcd has forgotten this host's lease".into()),
            Trouble::Unavailable(e) => StoreError::Unavailable(e),
            Trouble::Refused(e) => StoreError::Failed(e),
        }
    }
}

/// What one member has answered.
enum Fault {
    /// It cannot have done anything.
    Unsent(String),
    /// The same, since it knows no leader; soon it will.
    Leaderless(String),
    /// It may have done it, or may yet.
    Unknown(String),
    /// Another member would say the same.
    Final(Trouble),
}

impl Members {
    /// Members behind these client URLs, of which `first` is asked first (any number).
    pub fn new(urls: Vec<String>, options: ConnectOptions, timeout: Duration, first: usize) -> Self {
        let options = options
            .with_connect_timeout(timeout / 4)
            .with_keep_alive(PING_INTERVAL, timeout)
            .with_keep_alive_while_idle(false)
            // A member that is cut off from the others says so, instead of letting watches fall silent.
            .with_require_leader(true);
        let clients = urls.iter().map(|_| Mutex::new(None)).collect();
        let current = AtomicUsize::new(first % urls.len().max(1));
        Members { urls, options, timeout, clients, current }
    }

    /// Their URLs.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Sends a request to the members, one after the other until one answers; says which one has.
    pub async fn call<T, F>(
        &self,
        effect: Effect,
        request: impl Fn(Client) -> F + Send + Sync,
    ) -> Result<(usize, T), Trouble>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let deadline = Instant::now() + self.timeout;
        loop {
            let mut leaderless = false;
            let mut last = String::new();
            for later in (0..self.urls.len()).rev() {
                let member = self.current.load(Ordering::Relaxed);
                let left = deadline.saturating_duration_since(Instant::now());
                let share = if later > 0 && effect == Effect::Repeatable { left / 2 } else { left };
                let fault = match timeout(share, self.ask(member, &request)).await {
                    Ok(Ok(answer)) => return Ok((member, answer)),
                    Ok(Err(Fault::Final(trouble))) => return Err(trouble),
                    Ok(Err(fault)) => fault,
                    Err(_) => Fault::Unknown(format!("no answer within {:.1} s", share.as_secs_f32())),
                };
                self.turn_from(member);
                let is_unknown = matches!(fault, Fault::Unknown(_));
                leaderless |= matches!(fault, Fault::Leaderless(_));
                last = self.told(member, fault);
                if is_unknown && effect == Effect::Once {
                    return Err(Trouble::Unavailable(last));
                }
                if Instant::now() >= deadline {
                    break;
                }
            }
            if !leaderless || Instant::now() + ELECTION_PAUSE >= deadline {
                return Err(Trouble::Unavailable(last));
            }
            sleep(ELECTION_PAUSE).await;
        }
    }

    /// Asks another member from now on, if `member` is the one that is asked.
    pub fn turn_from(&self, member: usize) {
        let next = (member + 1) % self.urls.len().max(1);
        // Another request may have found out before.
        let _ = self.current.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn ask<T, F>(&self, member: usize, request: &impl Fn(Client) -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let (Some(url), Some(cell)) = (self.urls.get(member), self.clients.get(member)) else {
            return Err(Fault::Final(Trouble::Refused("there are no URLs of etcd".into())));
        };
        let client = {
            let mut cell = cell.lock().await;
            match &*cell {
                Some(client) => client.clone(),
                None => {
                    // Nothing is sent yet but, where there is one, the user's name.
                    let client =
                        Client::connect([url], Some(self.options.clone())).await.map_err(
                            |e| match judge(&e) {
                                Fault::Unknown(e) => Fault::Unsent(e),
                                fault => fault,
                            },
                        )?;
                    cell.insert(client).clone()
                }
            }
        };
        match request(client).await {
            Ok(answer) => Ok(answer),
            Err(e) => {
                let fault = judge(&e);
                if is_stale_login(&e) {
                    *cell.lock().await = None;
                }
                Err(fault)
            }
        }
    }

    fn told(&self, member: usize, fault: Fault) -> String {
        let (Fault::Unsent(e) | Fault::Leaderless(e) | Fault::Unknown(e)) = fault else {
            return String::new();
        };
        let e = format!("{}: {e}", self.urls.get(member).map_or("", String::as_str));
        debug!("{e}");
        e
    }
}

/// What an error of the client means.
fn judge(e: &Error) -> Fault {
    let status = match e {
        Error::GRpcStatus(status) => status,
        Error::LeaseKeepAliveError(e) if e == "lease not found" => return Fault::Final(Trouble::NoLease),
        Error::IoError(_) | Error::WatchError(_) | Error::LeaseKeepAliveError(_) | Error::Internal(_) => {
            return Fault::Unknown(told(e));
        }
        e => return Fault::Final(Trouble::Refused(told(e))),
    };
    if causes(status).any(|cause| cause.is::<ConnectError>()) {
        return Fault::Unsent(told(e));
    }
    let text = status.message().to_owned();
    match status.code() {
        Code::Unavailable if text.ends_with("no leader") => Fault::Leaderless(text),
        Code::ResourceExhausted if text.ends_with("too many requests") => Fault::Unsent(text),
        Code::NotFound if text.ends_with("lease not found") => Fault::Final(Trouble::NoLease),
        _ if is_stale_login(e) => Fault::Unsent(text),
        Code::InvalidArgument
        | Code::NotFound
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => Fault::Final(Trouble::Refused(text)),
        _ => Fault::Unknown(told(e)),
    }
}

/// Users or roles have changed since the login.
fn is_stale_login(e: &Error) -> bool {
    matches!(e, Error::GRpcStatus(s) if s.message().ends_with("revision of auth store is old"))
}

/// An error of the client, with its causes.
pub fn told(e: &Error) -> String {
    match e {
        Error::GRpcStatus(status) => chain(status.message(), status),
        Error::TransportError(transport) => chain(&transport.to_string(), transport),
        e => e.to_string(),
    }
}

fn chain(message: &str, e: &(dyn std::error::Error + 'static)) -> String {
    let mut text = message.to_owned();
    for cause in causes(e) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn causes<'a>(
    e: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(e.source(), |cause: &&'a (dyn std::error::Error + 'static)| (**cause).source())
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    #[test]
    fn what_may_have_been_done_is_told_from_what_has_not() {
        let judge = |status: Status| judge(&Error::GRpcStatus(status));
        assert!(matches!(judge(Status::unavailable("etcdserver: no leader")), Fault::Leaderless(_)));
        assert!(matches!(judge(Status::unavailable("etcdserver: request timed out")), Fault::Unknown(_)));
        assert!(matches!(judge(Status::unavailable("etcdserver: leader changed")), Fault::Unknown(_)));
        assert!(matches!(judge(Status::unknown("broken pipe")), Fault::Unknown(_)));
        assert!(matches!(
            judge(Status::resource_exhausted("etcdserver: too many requests")),
            Fault::Unsent(_)
        ));
        let full = judge(Status::resource_exhausted("etcdserver: mvcc: database space exceeded"));
        assert!(matches!(full, Fault::Final(Trouble::Refused(e)) if e.contains("space exceeded")));
        let lease = judge(Status::not_found("etcdserver: requested lease not found"));
        assert!(matches!(lease, Fault::Final(Trouble::NoLease)));
        let old = judge(Status::invalid_argument("etcdserver: revision of auth store is old"));
        assert!(matches!(old, Fault::Unsent(_)));
        let large = judge(Status::invalid_argument("etcdserver: request is too large"));
        assert!(matches!(large, Fault::Final(Trouble::Refused(_))));
    }

    #[test]
    fn a_failing_member_is_left_once() {
        let urls = ["http://a", "http://b", "http://c"].map(String::from).to_vec();
        let members = Members::new(urls, ConnectOptions::new(), Duration::from_secs(1), 5);
        assert_eq!(members.current.load(Ordering::Relaxed), 2);
        members.turn_from(2);
        members.turn_from(2);
        assert_eq!(members.current.load(Ordering::Relaxed), 0);
    }
}
