//! One front end's connection, from its arrival to its end.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::{BackendReqHandler, Error as VhostError};

use super::Host;
use super::channel::Channel;
use super::front::Front;
use super::guest::Guest;
use super::poller::{Poller, Source};
use crate::inbox::{Inbox, Message};

/// How long a guest whose vNIC is taken away sees its port down before the device fails.
const GRACE: Duration = Duration::from_secs(1);

/// What a device's thread knows beside the front end.
pub(super) struct Conversation {
    pub(super) name: Arc<str>,
    pub(super) host: Arc<Host>,
    pub(super) inbox: Inbox,
    pub(super) poller: Arc<Poller>,
}

/// Whether the device's thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    Stop,
}

impl Conversation {
    /// The poller waits for the inbox, and later for what this front end brings.
    pub(super) fn new(name: Arc<str>, host: Arc<Host>, inbox: Inbox) -> io::Result<Self> {
        let poller = Arc::new(Poller::new()?);
        poller.add(&inbox, Source::Inbox)?;
        Ok(Conversation { name, host, inbox, poller })
    }

    /// Serves the front end until it leaves, must be sent away, or the device ends.
    pub(super) fn serve(&self, stream: UnixStream) -> io::Result<Next> {
        let (identity, settings) = {
            let directory = self.host.directory.read();
            (self.host.identity(&directory, &self.name), directory.settings(&self.name))
        };
        let identity = identity.map_err(io::Error::other)?;
        let guest =
            Guest::attach(identity, settings, self.host.clone(), self.inbox.clone(), self.poller.clone())
                .map_err(io::Error::other)?;
        info!(vnic = %self.name, "a front end has connected");
        let connection = Arc::new(stream.try_clone()?);
        self.poller.add(&*connection, Source::Connection)?;
        let front = Arc::new(Front::new(guest, connection.clone()));
        let ended = self.converse(stream, &connection, &front);
        // Not by closing it: the watchdog may hold it a little longer, and the end of this connection must not be taken
        // for a message of the next one.
        self.poller.remove(&*connection)?;
        ended
    }

    fn converse(
        &self,
        stream: UnixStream,
        connection: &Arc<UnixStream>,
        front: &Arc<Front>,
    ) -> io::Result<Next> {
        let mut requests = BackendReqHandler::from_stream(stream, front.clone());
        let mut end: Option<Instant> = None;
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                front.guest().take_leave();
                return Ok(Next::Stop);
            }
            // Without its front end a guest needs no grace.
            let gone = if end.is_some() { Next::Stop } else { Next::Continue };
            for source in self.poller.wait(left)? {
                match source {
                    Source::Connection => {
                        let mut offered = None;
                        if front.guest().has_protocol_feature(VhostUserProtocolFeatures::BACKEND_REQ) {
                            offered = Channel::peek(&**connection);
                        }
                        if let Err(e) = front.watch(|| requests.handle_request()) {
                            self.report_end(&e);
                            return Ok(gone);
                        }
                        if let Some(channel) = offered {
                            front.guest().set_channel(channel);
                        }
                    }
                    Source::Kick(index) => front.guest().kicked(index),
                    Source::Inbox => {
                        let mail = self.inbox.take();
                        let mut guest = front.guest();
                        if mail.lost > 0 {
                            warn!(vnic = %self.name, "{} events of the RNIC have been lost", mail.lost);
                        }
                        for message in mail.messages {
                            match message {
                                Message::Stop => return Ok(Next::Stop),
                                Message::Withdraw => {
                                    guest.withdraw();
                                    end = Some(Instant::now() + GRACE);
                                }
                                message => guest.message(message),
                            }
                        }
                        guest.reevaluate(&mail.touched);
                        guest.settle(mail.settled);
                    }
                    Source::Listener => {}
                }
                if front.guest().is_dead() {
                    warn!(vnic = %self.name, "the device has failed, and its front end is disconnected");
                    return Ok(gone);
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

/// Serves one front end of a vNIC on the calling thread, as a [`Device`](super::Device) does with each that connects, until it
/// leaves or has to. Fails when its guest cannot be attached.
pub fn serve_front_end(vnic: &str, host: Arc<Host>, stream: UnixStream) -> io::Result<()> {
    Conversation::new(vnic.into(), host, Inbox::new()?)?.serve(stream).map(drop)
}
