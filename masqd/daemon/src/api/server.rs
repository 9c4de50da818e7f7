//! Connections of API clients. A client that is slow, or has a great many connections, is in nobody's way but its own;
//! one without a certificate is in nobody's way at all.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;
use tracing::{debug, warn};

use super::audit::Who;
use super::tls;

/// Connections at the same time, on each listener.
const MAX_CONNECTIONS: usize = 256;
/// Requests that wait at the same time until something is realised; so few that there are connections for others.
pub const MAX_WAITERS: usize = 64;
/// TLS handshakes at the same time, apart from those connections.
const MAX_HANDSHAKES: usize = 128;
/// Pause after a failure to accept, such as for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For TLS to be agreed upon.
    pub handshake: Duration,
    /// For the head of a request, and until a part of an answer is taken.
    pub head: Duration,
    /// For a body that describes one object.
    pub object: Duration,
    /// For a declarative file.
    pub file: Duration,
    /// For what is being answered when masqd ends.
    pub end: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Patience {
            handshake: seconds(5),
            head: seconds(30),
            object: seconds(30),
            file: seconds(120),
            end: seconds(3),
        }
    }
}

/// Serves clients.
#[derive(Clone)]
pub struct Server {
    router: Router,
    patience: Patience,
    ending: watch::Receiver<bool>,
}

/// Why a client is not served.
#[derive(Debug, thiserror::Error)]
enum ClientError {
    #[error("no TLS within {} s", .0.as_secs_f32())]
    Slow(Duration),
    #[error("no TLS before {MAX_HANDSHAKES} others have come")]
    Overtaken,
    #[error("masqd is ending")]
    Ending,
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Server {
    /// A server that ends when `ending` says so.
    pub fn new(router: Router, patience: Patience, ending: watch::Receiver<bool>) -> Server {
        Server { router, patience, ending }
    }

    /// Serves processes of this machine that may open the socket.
    pub async fn serve_unix(self, listener: UnixListener) {
        let accept = || async {
            let (stream, _) = listener.accept().await?;
            let peer = stream.peer_cred()?;
            Ok((stream, Who::Local { uid: peer.uid(), pid: peer.pid() }))
        };
        let identify = |(stream, who): (UnixStream, Who), slot: Slot| async move { Ok((stream, who, slot)) };
        self.serve(accept, identify).await;
    }

    /// Serves whoever has a certificate that `tls` accepts.
    pub async fn serve_tls(self, listener: TcpListener, tls: TlsAcceptor) {
        let accept = || listener.accept();
        let patience = self.patience.handshake;
        let handshakes = Arc::new(Handshakes::default());
        let identify = |(stream, address): (TcpStream, SocketAddr), slot: Slot| {
            let (tls, slots) = (tls.clone(), slot.give_back());
            let (handshake, overtaken) = handshakes.begin();
            async move {
                // Small answers shall not wait for acknowledgements.
                stream.set_nodelay(true)?;
                let stream = tokio::select! {
                    agreed = tokio::time::timeout(patience, tls.accept(stream)) => {
                        agreed.map_err(|_| ClientError::Slow(patience))??
                    }
                    _ = overtaken => return Err(ClientError::Overtaken),
                };
                drop(handshake);
                let subject = tls::subject(stream.get_ref().1);
                let slot = Slot::take(slots).await?;
                Ok((stream, Who::Remote { subject, address }, slot))
            }
        };
        self.serve(accept, identify).await;
    }

    /// Accepts connections until masqd ends, then lets what is being answered come to its end. `identify` may give the slot
    /// back until it knows who has come.
    async fn serve<C, S, A, I>(mut self, accept: impl Fn() -> A, identify: impl Fn(C, Slot) -> I)
    where
        A: Future<Output = std::io::Result<C>>,
        I: Future<Output = Result<(S, Who, Slot), ClientError>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let graceful = GracefulShutdown::new();
        let mut ending = self.ending.clone();
        let end = async move {
            let _ = ending.wait_for(|ending| *ending).await;
        };
        tokio::pin!(end);
        loop {
            let next = async {
                // Who comes when all slots are taken waits in the kernel's queue.
                let slot = Slot::take(slots.clone()).await.map_err(std::io::Error::other)?;
                Ok::<_, std::io::Error>((accept().await?, slot))
            };
            tokio::select! {
                () = &mut end => break,
                next = next => match next {
                    Ok((connection, slot)) => self.spawn(identify(connection, slot), &graceful),
                    Err(e) => {
                        warn!("cannot accept a connection of the API: {e}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
        self.router = Router::new();
        let _ = tokio::time::timeout(self.patience.end, graceful.shutdown()).await;
    }

    fn spawn<S: AsyncRead + AsyncWrite + Send + 'static>(
        &self,
        identify: impl Future<Output = Result<(S, Who, Slot), ClientError>> + Send + 'static,
        graceful: &GracefulShutdown,
    ) {
        let (router, patience, watcher) = (self.router.clone(), self.patience, graceful.watcher());
        tokio::spawn(async move {
            let (stream, who, _slot) = match identify.await {
                Ok(identified) => identified,
                Err(e) => return debug!("a client of the API is not served: {e}"),
            };
            let mut stream = TimeoutStream::new(stream);
            stream.set_write_timeout(Some(patience.head));
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(who.clone());
                router.clone().oneshot(request.map(Body::new))
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(patience.head)
                .serve_connection(TokioIo::new(Box::pin(stream)), service);
            if let Err(e) = watcher.watch(connection).await {
                debug!("a connection of the API has ended: {e}");
            }
        });
    }
}

/// One of the connections that there can be at the same time.
struct Slot {
    slots: Arc<Semaphore>,
    permit: OwnedSemaphorePermit,
}

impl Slot {
    /// The next free one.
    async fn take(slots: Arc<Semaphore>) -> Result<Slot, ClientError> {
        let permit = slots.clone().acquire_owned().await.map_err(|_| ClientError::Ending)?;
        Ok(Slot { slots, permit })
    }

    /// Leaves it to others; tells where to take another.
    fn give_back(self) -> Arc<Semaphore> {
        drop(self.permit);
        self.slots
    }
}

/// The TLS handshakes in progress. Each new one beyond [`MAX_HANDSHAKES`] ends the oldest: whoever means it is done within
/// moments, and who only holds connections open is the first to go.
#[derive(Default)]
struct Handshakes(Mutex<InProgress>);

#[derive(Default)]
struct InProgress {
    begun: u64,
    /// By order of arrival; what is dropped ends.
    handshakes: BTreeMap<u64, oneshot::Sender<()>>,
}

/// A handshake in progress, until it is dropped.
struct Handshake {
    all: Arc<Handshakes>,
    number: u64,
}

impl Handshakes {
    fn lock(&self) -> MutexGuard<'_, InProgress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new one, and what resolves when it has to end.
    fn begin(self: &Arc<Self>) -> (Handshake, oneshot::Receiver<()>) {
        let (ends, overtaken) = oneshot::channel();
        let mut in_progress = self.lock();
        let number = in_progress.begun;
        in_progress.begun += 1;
        in_progress.handshakes.insert(number, ends);
        if in_progress.handshakes.len() > MAX_HANDSHAKES {
            in_progress.handshakes.pop_first();
        }
        (Handshake { all: self.clone(), number }, overtaken)
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.all.lock().handshakes.remove(&self.number);
    }
}
