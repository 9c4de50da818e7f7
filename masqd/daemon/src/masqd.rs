//! A whole masqd.

use std::convert::Infallible;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use masq_driver::{DriverError, EventSink, RnicDriver};
use masq_model::DesiredState;
use masq_model::api::ErrorReply;
use masq_types::Features;
use rustix::fs::FlockOperation;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::api::server::{MAX_WAITERS, Patience, Server};
use crate::api::tls::{self, TlsConfig, TlsError};
use crate::api::{self, Api, Requests};
use crate::health::Health;
use crate::host::{Host, Refresher, Watchdog};
use crate::router::Router;
use crate::store::{AnyStore, OpenError, StoreAddress};
use crate::supervisor::{Devices, Supervisor};
use crate::sync::{STORE, Sync};
use crate::underlay::{Underlay, UnderlayError};
use crate::writer::{Plan, WriteError, Writer, plan_apply};

/// How long another masqd that uses the run directory may take to end.
const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(5);
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
    /// A desired state to write at the start, in the place of what is there.
    pub apply: Option<DesiredState>,
    /// Where the API can be reached over the network, beside its Unix socket.
    pub tls: Option<TlsConfig>,
    /// How long the API's clients may take.
    pub patience: Patience,
    /// What is used beyond standard RoCEv2, if the peer and the RNIC can do it as well.
    pub features: Features,
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
    /// Random numbers.
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The desired state to write.
    #[error("--apply: {0}")]
    Apply(#[from] WriteError<Infallible>),
    /// The API over the network.
    #[error("--api-listen: {0}")]
    Tls(#[from] TlsError),
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
    servers: JoinSet<()>,
    /// Whether the API shall end.
    ending: watch::Sender<bool>,
    devices: Arc<Devices>,
    store: AnyStore,
    api_socket: PathBuf,
    api_address: Option<SocketAddr>,
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
        let id = random_id().map_err(StartError::Random)?;
        let (refresher, misses) = Refresher::new();
        let watchdog = Watchdog::new(runtime.handle().clone());
        let host = Host::new(config.host.clone(), rnic, router, refresher, watchdog);
        let host = Arc::new(host.offering(config.features));
        let health = Arc::new(Health::default());
        let devices = Arc::new(Devices::default());
        let api_socket = config.run_dir.join("masqd.sock");

        let (ending_tx, ending) = watch::channel(false);

        let (store, tasks, servers, api_address) = runtime.block_on(async {
            let any = AnyStore::open(&config.store)?;
            let store = any.store();
            let writer = Arc::new(Writer::new(store.clone()));
            if let Some(desired) = &config.apply {
                apply(&writer, desired).await?;
            }
            let (changed_tx, changed) = watch::channel(0);
            health.problem(STORE, "it has not answered yet");
            let probe = Sync::probe(store.clone(), host.clone(), health.clone());
            let sync = Sync::new(store.clone(), host.clone(), misses, changed_tx);
            let supervisor = Supervisor {
                id,
                host: host.clone(),
                store: store.clone(),
                health: health.clone(),
                devices: devices.clone(),
                run_dir: config.run_dir.clone(),
                underlay: Underlay::open()?,
                changed: changed.clone(),
                class_rates: None,
            };
            let api = Api {
                host: host.clone(),
                store,
                writer,
                store_name: any.describe(),
                health,
                devices: devices.clone(),
                run_dir: config.run_dir.clone(),
                changed,
                ending: ending.clone(),
                waiters: Semaphore::new(MAX_WAITERS),
                captures: Arc::new(Semaphore::new(api::MAX_CAPTURES)),
                patience: config.patience,
                requests: Requests::default(),
            };
            let server = Server::new(api::router(Arc::new(api)), config.patience, ending);
            let mut servers = JoinSet::new();
            let mut api_address = None;
            if let Some(tls) = &config.tls {
                let acceptor = tls::acceptor(tls)?;
                let wrong = |source| TlsError::Listen { address: tls.listen, source };
                let listener = TcpListener::bind(tls.listen).await.map_err(wrong)?;
                let address = listener.local_addr().map_err(wrong)?;
                info!(%address, "the API listens");
                api_address = Some(address);
                servers.spawn(server.clone().serve_tls(listener, acceptor));
            }
            let listener = listen(&api_socket).map_err(|source| run_dir_error(&config.run_dir, source))?;
            servers.spawn(server.serve_unix(listener));
            let mut tasks = JoinSet::new();
            tasks.spawn(sync.run());
            tasks.spawn(probe);
            tasks.spawn(supervisor.run());
            Ok::<_, StartError>((any, tasks, servers, api_address))
        })?;
        info!(host = config.host, store = store.describe(), run_dir = %config.run_dir.display(), "masqd runs");
        let (runtime, ending) = (Some(runtime), ending_tx);
        Ok(Masqd { runtime, tasks, servers, ending, devices, store, api_socket, api_address, _lock: lock })
    }

    /// Where the API listens on the network, if it does.
    pub fn api_address(&self) -> Option<SocketAddr> {
        self.api_address
    }

    /// The runtime, to wait for signals on.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        self.runtime.as_ref().expect("it is there until the end").handle()
    }

    /// Ends: answers what has been asked, disconnects all guests, withdraws the endpoints where the store can do that, removes all sockets.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        runtime.block_on(async {
            self.ending.send_replace(true);
            while self.servers.join_next().await.is_some() {}
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

/// Makes the desired state that of a file.
async fn apply(writer: &Writer, desired: &DesiredState) -> Result<(), WriteError<Infallible>> {
    let plan = |current: &_| Ok(Plan { edits: plan_apply(current, desired, true), note: () });
    let written = writer.write(false, plan).await?;
    info!(changes = written.changes.len(), revision = written.revision, "--apply: desired state written");
    Ok(())
}

fn random_id() -> Result<u128, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(u128::from_ne_bytes(bytes))
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
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            // One that was killed keeps it until all of its guests' memory is unmapped.
            Err(rustix::io::Errno::WOULDBLOCK) if begun.elapsed() < PREDECESSOR_PATIENCE => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StartError::Running(path.to_owned())),
            Err(e) => return Err(wrong(e.into())),
        }
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
