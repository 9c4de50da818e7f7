//! A device's thread: waits for a front end, serves it until it leaves, and waits for the next one.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{error, warn};

use super::Host;
use super::conversation::{Conversation, Next};
use super::poller::Source;
use crate::inbox::{Inbox, Message, Report};

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
            listener,
            connection: Arc::clone(&connection),
            conversation: Conversation::new(name.clone(), host, inbox.clone())?,
        };
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

    /// Ends the connection and the thread at once, and removes the socket. All objects of the guest are gone
    /// when this returns.
    pub fn stop(mut self) {
        self.end();
    }

    /// Takes the device away from its guest, which is told: first its port goes down, a second later the device
    /// fails. After that as [`Device::stop`]. Nobody can connect any more from the beginning on.
    pub fn withdraw(mut self) {
        let _ = std::fs::remove_file(&self.socket);
        self.inbox.push(Message::Withdraw);
        self.join();
    }

    fn end(&mut self) {
        self.inbox.push(Message::Stop);
        // Wakes the thread when it waits for the rest of a message.
        if let Some(connection) = lock(&self.connection).take() {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
        self.join();
    }

    fn join(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if thread.join().is_err() {
            error!(vnic = %self.name, "the device's thread had panicked");
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end();
        }
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
    listener: UnixListener,
    connection: Arc<Mutex<Option<UnixStream>>>,
    conversation: Conversation,
}

impl Server {
    fn run(self) {
        let name = &self.conversation.name;
        loop {
            let stream = match self.wait_for_front_end() {
                Ok(Some(stream)) => stream,
                Ok(None) => return,
                Err(e) => {
                    error!(vnic = %name, "cannot accept front ends: {e}");
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
                Ok(Err(e)) => warn!(vnic = %name, "cannot serve a front end: {e}"),
                Err(_) => {
                    error!(vnic = %name, "serving the front end panicked; it has been disconnected")
                }
            }
        }
    }

    fn wait_for_front_end(&self) -> io::Result<Option<UnixStream>> {
        let poller = &self.conversation.poller;
        poller.add(&self.listener, Source::Listener)?;
        let accepted = self.accept();
        poller.remove(&self.listener)?;
        accepted
    }

    fn accept(&self) -> io::Result<Option<UnixStream>> {
        loop {
            for source in self.conversation.poller.wait(None)? {
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
        for message in self.conversation.inbox.take().messages {
            match message {
                Message::Stop | Message::Withdraw => return Next::Stop,
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
        self.conversation.serve(stream)
    }
}
