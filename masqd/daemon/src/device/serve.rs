//! A device's thread: waits for a front end, serves it until it leaves, and waits for the next one.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{error, info, warn};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::{BackendReqHandler, Error as VhostError};

use super::channel::Channel;
use super::guest::Guest;
use super::inbox::{Inbox, Message};
use super::poller::{Poller, Source};
use super::{Host, Report};

/// A front end that stops in the middle of a message, or does not take an answer, is dropped after this time. It covers
/// what masqd itself does for a message, which takes long on a host that is short of memory.
const FRONT_END_PATIENCE: Duration = Duration::from_secs(5);

/// A vNIC's socket and the thread behind it.
#[derive(Debug)]
pub struct Device {
    name: Arc<str>,
    socket: PathBuf,
    inbox: Inbox,
    connection: Arc<Mutex<Option<UnixStream>>>,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    /// Creates the socket of a vNIC whose endpoint is published, and begins to wait for front ends.
    pub fn start(name: &str, socket: PathBuf, host: Arc<Host>) -> io::Result<Self> {
        let listener = listen(&socket)?;
        let inbox = Inbox::new()?;
        let connection = Arc::default();
        let name: Arc<str> = name.into();
        let server = Server {
            name: name.clone(),
            host,
            listener,
            inbox: inbox.clone(),
            connection: Arc::clone(&connection),
            poller: Arc::new(Poller::new()?),
        };
        server.poller.add(&server.inbox, Source::Inbox)?;
        let thread = std::thread::Builder::new().name(format!("vnic {name}")).spawn(move || server.run())?;
        Ok(Device { name, socket, inbox, connection, thread: Some(thread) })
    }

    /// Where front ends connect.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Where its thread can be told something.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Ends the connection and the thread, and removes the socket. All objects of the guest are gone
    /// when this returns.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.inbox.push(Message::Stop);
        // Wakes the thread when it waits for the rest of a message.
        if let Some(connection) = lock(&self.connection).take() {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
        if thread.join().is_err() {
            error!(vnic = %self.name, "the device's thread had panicked");
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.end();
    }
}

/// Binds under another name first, so that nobody connects before the mode is right and a stale socket
/// is replaced at once.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let new = path.with_extension("sock.new");
    let _ = std::fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o660))?;
    std::fs::rename(&new, path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Server {
    name: Arc<str>,
    host: Arc<Host>,
    listener: UnixListener,
    inbox: Inbox,
    connection: Arc<Mutex<Option<UnixStream>>>,
    poller: Arc<Poller>,
}

/// Whether the thread goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

impl Server {
    fn run(self) {
        loop {
            let stream = match self.wait_for_front_end() {
                Ok(Some(stream)) => stream,
                Ok(None) => return,
                Err(e) => {
                    error!(vnic = %self.name, "cannot accept front ends: {e}");
                    // Out of descriptors, perhaps: try again, but not at once.
                    std::thread::sleep(Duration::from_secs(1));
                    continue;
                }
            };
            // A mistake in one device's code must not take the others down: its guest sees a device that
            // has been disconnected.
            let outcome = catch_unwind(AssertUnwindSafe(|| self.serve(stream)));
            *lock(&self.connection) = None;
            match outcome {
                Ok(Ok(Next::Continue)) => {}
                Ok(Ok(Next::Stop)) => return,
                Ok(Err(e)) => warn!(vnic = %self.name, "cannot serve a front end: {e}"),
                Err(_) => {
                    error!(vnic = %self.name, "serving the front end panicked; it has been disconnected")
                }
            }
        }
    }

    fn wait_for_front_end(&self) -> io::Result<Option<UnixStream>> {
        self.poller.add(&self.listener, Source::Listener)?;
        let accepted = self.accept();
        self.poller.remove(&self.listener)?;
        accepted
    }

    fn accept(&self) -> io::Result<Option<UnixStream>> {
        loop {
            for source in self.poller.wait()? {
                match source {
                    Source::Listener => match self.listener.accept() {
                        Ok((stream, _)) => return Ok(Some(stream)),
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                        Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                        Err(e) => return Err(e),
                    },
                    Source::Inbox => {
                        if self.drop_mail() == Next::Stop {
                            return Ok(None);
                        }
                    }
                    // A descriptor of the last front end's.
                    Source::Connection | Source::Kick(_) => {}
                }
            }
        }
    }

    /// Takes what was meant for the last guest: the next one finds everything as it is then.
    fn drop_mail(&self) -> Next {
        for message in self.inbox.take().messages {
            match message {
                Message::Stop => return Next::Stop,
                Message::Report(reply) => {
                    let _ = reply.send(Report::default());
                }
                _ => {}
            }
        }
        Next::Continue
    }

    fn serve(&self, stream: UnixStream) -> io::Result<Next> {
        stream.set_nonblocking(false)?;
        *lock(&self.connection) = Some(stream.try_clone()?);
        // A front end that was waiting may have been accepted before the mail was looked at.
        if self.drop_mail() == Next::Stop {
            return Ok(Next::Stop);
        }
        let (identity, settings) = {
            let directory = self.host.directory.read();
            (self.host.identity(&directory, &self.name), directory.settings(&self.name))
        };
        let identity = identity.map_err(io::Error::other)?;
        let guest =
            Guest::attach(identity, settings, self.host.clone(), self.inbox.clone(), self.poller.clone())
                .map_err(io::Error::other)?;
        info!(vnic = %self.name, "a front end has connected");
        let watched = Arc::new(stream.try_clone()?);
        self.poller.add(&*watched, Source::Connection)?;
        let ended = self.converse(stream, &watched, guest);
        // Not by closing it: the watchdog may hold it a little longer, and the end of this connection must not be taken
        // for a message of the next one.
        self.poller.remove(&*watched)?;
        ended
    }

    fn converse(&self, stream: UnixStream, watched: &Arc<UnixStream>, guest: Guest) -> io::Result<Next> {
        let guest = Arc::new(Mutex::new(guest));
        let mut requests = BackendReqHandler::from_stream(stream, guest.clone());
        loop {
            for source in self.poller.wait()? {
                match source {
                    Source::Connection => {
                        let mut offered = None;
                        if lock(&guest).has_protocol_feature(VhostUserProtocolFeatures::BACKEND_REQ) {
                            offered = Channel::peek(&**watched);
                        }
                        let handled = {
                            let _watched = self.host.watchdog.watch(watched.clone(), FRONT_END_PATIENCE);
                            requests.handle_request()
                        };
                        if let Err(e) = handled {
                            self.report_end(&e);
                            return Ok(Next::Continue);
                        }
                        if let Some(channel) = offered {
                            lock(&guest).set_channel(channel);
                        }
                    }
                    Source::Kick(index) => lock(&guest).kicked(index),
                    Source::Inbox => {
                        let mail = self.inbox.take();
                        let mut guest = lock(&guest);
                        if mail.lost > 0 {
                            warn!(vnic = %self.name, "{} events of the RNIC have been lost", mail.lost);
                        }
                        for message in mail.messages {
                            if matches!(message, Message::Stop) {
                                return Ok(Next::Stop);
                            }
                            guest.message(message);
                        }
                        guest.reevaluate(&mail.touched);
                        guest.settle(mail.settled);
                    }
                    Source::Listener => {}
                }
                if lock(&guest).is_dead() {
                    warn!(vnic = %self.name, "the device has failed, and its front end is disconnected");
                    return Ok(Next::Continue);
                }
            }
        }
    }

    fn report_end(&self, error: &VhostError) {
        match error {
            VhostError::Disconnected | VhostError::SocketBroken(_) => {
                info!(vnic = %self.name, "the front end has left");
            }
            VhostError::PartialMessage => {
                warn!(vnic = %self.name, "the front end stopped in the middle of a message; it has been disconnected");
            }
            other => warn!(vnic = %self.name, "the front end has been disconnected: {other}"),
        }
    }
}
