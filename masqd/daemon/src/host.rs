//! What all devices of this host share.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime};

use masq_control::{Directory, Identity, Limits, Link, PlanError, Ticket};
use masq_driver::{RnicDriver, VnicId};
use masq_model::Endpoint;
use masq_rnic::limits;
use masq_types::{Features, Gid, Mtu};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::{Notify, mpsc};

use crate::counts::Counts;
use crate::inbox::{Inbox, Message};
use crate::router::Router;

/// The host, as its devices see it.
pub struct Host {
    /// Its name in the desired state.
    pub name: String,
    /// Carries out what is allowed.
    pub rnic: Arc<dyn RnicDriver>,
    /// What is known of desired and realised state.
    pub directory: SharedDirectory,
    /// Where the RNIC's events go.
    pub router: Arc<Router>,
    /// Reads the store for requests that miss something.
    pub refresher: Refresher,
    /// What a guest can do at most.
    pub limits: Limits,
    /// Ends what takes too long.
    pub watchdog: Watchdog,
    /// The allowed addresses that guests have taken on.
    pub taken: Taken,
    /// The endpoints that this process has published.
    pub published: Published,
    /// When the store last answered.
    pub freshness: Freshness,
    /// What guests have done.
    pub counts: Counts,
    began: Instant,
    link: Mutex<Link>,
    vnics: AtomicU32,
}

/// The speed that guests' ports state, in Mbit/s. It is nominal, as that of any virtual device: what passes depends on where the peer is, on the paths that a connection
/// has, and on the rates that policies allow. But programs go by it. UCX copies long messages in parts of 8 KiB for what states less, and never leaves one whole for the
/// device, which could spread it over paths.
const LINK_MBITS_PER_SEC: u32 = 100_000;

impl Host {
    /// A host whose underlay has not been found yet.
    pub fn new(
        name: String,
        rnic: Arc<dyn RnicDriver>,
        router: Arc<Router>,
        refresher: Refresher,
        watchdog: Watchdog,
    ) -> Self {
        Host {
            name,
            rnic,
            directory: SharedDirectory::default(),
            router,
            refresher,
            limits: rnic_limits(),
            watchdog,
            taken: Taken::default(),
            published: Published::default(),
            freshness: Freshness::default(),
            counts: Counts::default(),
            began: Instant::now(),
            link: Mutex::new(Link { up: false, active_mtu: Mtu::B256, mbits_per_sec: LINK_MBITS_PER_SEC }),
            vnics: AtomicU32::new(1),
        }
    }

    /// With no more of masq's extensions than these, of those that the RNIC has.
    pub fn offering(mut self, features: Features) -> Self {
        self.limits.features = self.limits.features.common(features);
        self
    }

    /// The time since the start, for whoever takes time as an argument.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// A moment on that clock, in seconds since 1970.
    pub fn unix_seconds(&self, moment: Duration) -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(self.now().saturating_sub(moment)).as_secs()
    }

    /// The underlay's link.
    pub fn link(&self) -> Link {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the underlay's link; returns whether it is another.
    pub fn set_link(&self, link: Link) -> bool {
        let mut current = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, link) != link
    }

    /// Who the vNIC `name` is, if it is to be served here.
    pub fn identity(&self, directory: &Directory, name: &str) -> Result<Identity, PlanError> {
        let endpoint = self.published.of(name).ok_or_else(|| PlanError::NotRealised(name.into()))?;
        masq_control::identity(directory, &endpoint)
    }

    /// A name for a new guest device, never used before.
    pub fn next_vnic(&self) -> VnicId {
        VnicId(self.vnics.fetch_add(1, Ordering::Relaxed))
    }
}

/// When the store last answered.
#[derive(Debug)]
pub struct Freshness(Mutex<Instant>);

impl Default for Freshness {
    fn default() -> Self {
        Freshness(Mutex::new(Instant::now()))
    }
}

impl Freshness {
    /// It has answered.
    pub fn heard(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// How long ago that was; since the start, if it never has.
    pub fn age(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// The directory: read by devices, written when the store changes.
#[derive(Debug, Default)]
pub struct SharedDirectory(RwLock<Directory>);

impl SharedDirectory {
    /// To look things up.
    pub fn read(&self) -> RwLockReadGuard<'_, Directory> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// To bring it up to date.
    pub fn write(&self) -> RwLockWriteGuard<'_, Directory> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The endpoints that this process has published. They stay in force here when the store loses them, as it does when this
/// host cannot reach it for long: then they are published again as they were.
#[derive(Debug, Default)]
pub struct Published(Mutex<HashMap<String, Endpoint>>);

impl Published {
    /// This has been published.
    pub fn insert(&self, endpoint: Endpoint) {
        self.lock().insert(endpoint.vnic.clone(), endpoint);
    }

    /// The endpoint of `vnic` has been withdrawn.
    pub fn remove(&self, vnic: &str) {
        self.lock().remove(vnic);
    }

    /// What has been published of `vnic`.
    pub fn of(&self, vnic: &str) -> Option<Endpoint> {
        self.lock().get(vnic).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Endpoint>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which of the addresses that are allowed to them, but are not their own, guests have put into their tables.
#[derive(Debug, Default)]
pub struct Taken {
    by_vnic: Mutex<HashMap<String, Vec<Gid>>>,
    changed: Notify,
}

impl Taken {
    /// The guest of `vnic` has taken on these addresses, and no others.
    pub fn set(&self, vnic: &str, gids: Vec<Gid>) {
        let mut by_vnic = self.by_vnic.lock().unwrap_or_else(PoisonError::into_inner);
        let old = if gids.is_empty() {
            by_vnic.remove(vnic).unwrap_or_default()
        } else if by_vnic.get(vnic) == Some(&gids) {
            return;
        } else {
            by_vnic.insert(vnic.into(), gids.clone()).unwrap_or_default()
        };
        if old != gids {
            self.changed.notify_one();
        }
    }

    /// What the guest of `vnic` has taken on.
    pub fn of(&self, vnic: &str) -> Vec<Gid> {
        let by_vnic = self.by_vnic.lock().unwrap_or_else(PoisonError::into_inner);
        by_vnic.get(vnic).cloned().unwrap_or_default()
    }

    /// Returns when something has changed since it last returned.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// A request that waits for the store to be read.
#[derive(Debug)]
pub struct Miss {
    /// Who waits.
    pub inbox: Inbox,
    /// For which request.
    pub ticket: Ticket,
}

/// Asks for the store to be read again.
#[derive(Clone, Debug)]
pub struct Refresher(mpsc::UnboundedSender<Miss>);

impl Refresher {
    /// A refresher and where its wishes arrive. There are never more of them than requests and questions that sessions let wait.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Miss>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Refresher(sender), receiver)
    }

    /// A request has missed something; `inbox` gets its ticket when the store has been read, or could not be.
    pub fn miss(&self, inbox: Inbox, ticket: Ticket) {
        if let Err(mpsc::error::SendError(miss)) = self.0.send(Miss { inbox, ticket }) {
            // Nobody reads the store any more: masqd is ending.
            miss.inbox.push(Message::Resolved(miss.ticket));
        }
    }
}

/// Shuts connections down whose other end keeps masqd waiting. Reading and writing timeouts of the
/// socket do not help: crate `vhost` tries again after each.
#[derive(Clone, Debug)]
pub struct Watchdog(tokio::runtime::Handle);

/// While it lives, the watchdog watches.
#[derive(Debug)]
pub struct Watched(tokio::task::JoinHandle<()>);

/// What a thread waits for on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Bytes to read.
    Message,
    /// Room to write.
    Room,
}

impl Watchdog {
    /// A watchdog whose timers run on `runtime`.
    pub fn new(runtime: tokio::runtime::Handle) -> Self {
        Watchdog(runtime)
    }

    /// Shuts `connection` down when it has kept somebody waiting for `patience`, unless what this returns is dropped before.
    /// While there is what is awaited, it is masqd that is late, and the other end gets as much time again.
    pub fn watch(&self, connection: Arc<UnixStream>, awaited: Awaited, patience: Duration) -> Watched {
        Watched(self.0.spawn(async move {
            loop {
                tokio::time::sleep(patience).await;
                if !is_ready(&connection, awaited) {
                    break;
                }
            }
            // It may be down already.
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }))
    }
}

fn is_ready(connection: &UnixStream, awaited: Awaited) -> bool {
    let flags = match awaited {
        Awaited::Message => PollFlags::IN,
        Awaited::Room => PollFlags::OUT,
    };
    let mut fds = [PollFd::new(connection, flags)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn rnic_limits() -> Limits {
    Limits {
        page_size_cap: limits::PAGE_SIZE_CAP,
        max_mr_bytes: limits::MAX_MR_BYTES,
        max_msg_bytes: limits::MAX_MSG_BYTES,
        max_qp_wr: limits::MAX_QP_WR,
        max_cqe: limits::MAX_CQE,
        max_send_sge: limits::MAX_SEND_SGE,
        max_recv_sge: limits::MAX_RECV_SGE,
        max_srq_wr: limits::MAX_SRQ_WR,
        max_srq_sge: limits::MAX_SRQ_SGE,
        max_inline_bytes: limits::MAX_INLINE_BYTES,
        max_dest_rd_atomic: limits::MAX_DEST_RD_ATOMIC,
        max_rd_atomic: limits::MAX_RD_ATOMIC,
        num_comp_vectors: limits::COMP_VECTORS,
        num_db_slots: limits::SLOTS,
        features: limits::FEATURES,
    }
}
