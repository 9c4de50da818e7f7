//! A whole masqd.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use masq_driver::{DriverError, EventSink, RnicDriver};
use masq_model::DesiredState;
use masq_model::api::ErrorReply;
use rustix::fs::FlockOperation;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::api::{self, Api};
use crate::apply::{ApplyError, apply};
use crate::cli::StoreAddress;
use crate::health::Health;
use crate::host::{Host, Refresher, Watchdog};
use crate::router::Router;
use crate::store::{AnyStore, OpenError};
use crate::supervisor::{Devices, Supervisor};
use crate::sync::Sync;
use crate::underlay::{Underlay, UnderlayError};

/// How long the end may take before it is not waited for any more.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);

/// How a masqd is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// The host's name in the desired state.
    pub host: String,
    /// The store.
    pub store: StoreAddress,
    /// Where sockets are made.
    pub run_dir: PathBuf,
    /// A desired state to write at the start.
    pub apply: Option<DesiredState>,
}

/// Why masqd cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The run directory.
    #[error("cannot use the run directory {}: {source}", path.display())]
    RunDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is another masqd.
    #[error("another masqd uses the run directory {}", .0.display())]
    Running(PathBuf),
    /// Threads.
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The desired state to write.
    #[error("--apply: {0}")]
    Apply(#[from] ApplyError),
    /// The RNIC.
    #[error("cannot start the RNIC: {0}")]
    Rnic(#[from] DriverError),
    /// The underlay.
    #[error(transparent)]
    Underlay(#[from] UnderlayError),
    /// The desired state in a file.
    #[error("{}: {reply}", path.display())]
    DesiredState {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reply: ErrorReply,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// A running masqd. Ends when it is dropped; see [`Masqd::shutdown`].
pub struct Masqd {
    runtime: Option<Runtime>,
    tasks: JoinSet<()>,
    devices: Arc<Devices>,
    store: AnyStore,
    api_socket: PathBuf,
    _lock: File,
}

impl Masqd {
    /// Starts masqd. `rnic` makes the RNIC, which reports to the sink that it is given.
    pub fn start(
        config: Config,
        rnic: impl FnOnce(Arc<dyn EventSink>) -> Result<Arc<dyn RnicDriver>, DriverError>,
    ) -> Result<Self, StartError> {
        let lock = take_run_dir(&config.run_dir)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("masqd")
            .enable_all()
            .build()
            .map_err(StartError::Threads)?;
        let router = Arc::new(Router::default());
        let rnic = rnic(router.clone())?;
        let (refresher, misses) = Refresher::new();
        let watchdog = Watchdog::new(runtime.handle().clone());
        let host = Arc::new(Host::new(config.host.clone(), rnic, router, refresher, watchdog));
        let health = Arc::new(Health::default());
        let devices = Arc::new(Devices::default());
        let api_socket = config.run_dir.join("masqd.sock");

        let (store, tasks) = runtime.block_on(async {
            let any = AnyStore::open(&config.store).await?;
            let store = any.store();
            if let Some(desired) = &config.apply {
                let applied = apply(&*store, desired, false).await?;
                info!(
                    created = applied.created.len(),
                    changed = applied.changed.len(),
                    deleted = applied.deleted.len(),
                    "desired state applied"
                );
            }
            let (changed_tx, changed) = watch::channel(0);
            let probe = Sync::probe(store.clone(), host.clone(), health.clone());
            let sync = Sync::new(store.clone(), host.clone(), health.clone(), misses, changed_tx);
            let supervisor = Supervisor {
                host: host.clone(),
                store: store.clone(),
                health: health.clone(),
                devices: devices.clone(),
                run_dir: config.run_dir.clone(),
                underlay: Underlay::open()?,
                changed,
            };
            let api = Api {
                host: host.clone(),
                store,
                store_name: any.describe(),
                health,
                devices: devices.clone(),
                run_dir: config.run_dir.clone(),
            };
            let listener = listen(&api_socket).map_err(|source| run_dir_error(&config.run_dir, source))?;
            let mut tasks = JoinSet::new();
            tasks.spawn(sync.run());
            tasks.spawn(probe);
            tasks.spawn(supervisor.run());
            tasks.spawn(async move {
                if let Err(e) = api::serve(Arc::new(api), listener).await {
                    warn!("the API has ended: {e}");
                }
            });
            Ok::<_, StartError>((any, tasks))
        })?;
        info!(host = config.host, store = store.describe(), run_dir = %config.run_dir.display(), "masqd runs");
        Ok(Masqd { runtime: Some(runtime), tasks, devices, store, api_socket, _lock: lock })
    }

    /// The runtime, to wait for signals on.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        self.runtime.as_ref().expect("it is there until the end").handle()
    }

    /// Ends: disconnects all guests, withdraws the endpoints where the store can do that, removes all sockets.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        runtime.block_on(async {
            self.tasks.shutdown().await;
            self.devices.stop_all().await;
            if tokio::time::timeout(SHUTDOWN_PATIENCE, self.store.leave()).await.is_err() {
                warn!("the store does not answer; what this host has realised ends with its lease");
            }
        });
        let _ = std::fs::remove_file(&self.api_socket);
        runtime.shutdown_timeout(SHUTDOWN_PATIENCE);
    }
}

impl Drop for Masqd {
    fn drop(&mut self) {
        self.end();
    }
}

fn run_dir_error(path: &Path, source: std::io::Error) -> StartError {
    StartError::RunDir { path: path.to_owned(), source }
}

/// Creates the run directory if need be, makes sure that no other masqd uses it, and removes what a killed one has left.
fn take_run_dir(path: &Path) -> Result<File, StartError> {
    let wrong = |source| run_dir_error(path, source);
    std::fs::create_dir_all(path).map_err(wrong)?;
    let lock = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path.join("masqd.lock"))
        .map_err(wrong)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(StartError::Running(path.to_owned())),
        Err(e) => return Err(wrong(e.into())),
    }
    for entry in std::fs::read_dir(path).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let is_socket = entry.file_type().is_ok_and(|t| t.is_socket());
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if is_socket && (name.ends_with(".sock") || name.ends_with(".sock.new")) {
            std::fs::remove_file(entry.path()).map_err(wrong)?;
        }
    }
    Ok(lock)
}

fn listen(path: &Path) -> std::io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}
