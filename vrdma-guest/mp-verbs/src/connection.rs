//! A connection, driven.

use std::io;

use mp_core::Nanos;
use mp_core::endpoint::{Action, Completion, Endpoint, PathStats, PostError, Receive, Request, Status};

use crate::fabric::{Event, Fabric};

/// An [`Endpoint`] and its queue pairs. Time is an argument: nanoseconds of any clock that does not go back.
#[derive(Debug)]
pub struct Connection<F> {
    endpoint: Endpoint,
    fabric: F,
    /// Why the queue pairs could not do what they were to.
    error: Option<io::Error>,
}

impl<F: Fabric> Connection<F> {
    /// A connection whose queue pairs are connected.
    pub fn new(endpoint: Endpoint, fabric: F) -> Self {
        Self { endpoint, fabric, error: None }
    }

    /// Takes a message, and posts what can be posted.
    pub fn post(&mut self, request: Request, now: Nanos) -> Result<(), PostError> {
        self.endpoint.post(request)?;
        self.drive(now);
        Ok(())
    }

    /// Takes a receive, and tells the peer.
    pub fn post_receive(&mut self, receive: Receive, now: Nanos) -> Result<(), PostError> {
        self.endpoint.post_receive(receive)?;
        self.drive(now);
        Ok(())
    }

    /// Looks at the queue pairs, does what is to be done, and returns a completion, if there is one.
    pub fn poll(&mut self, now: Nanos) -> Option<Completion> {
        // What is there already comes first: a program that has much to poll does not pay for the rest each time.
        if let Some(completion) = self.endpoint.poll_completion() {
            return Some(completion);
        }
        self.progress(now);
        self.endpoint.poll_completion()
    }

    /// Looks at the queue pairs and does what is to be done; tells whether there are completions.
    pub fn progress(&mut self, now: Nanos) -> bool {
        self.take_events(now);
        self.drive(now);
        self.endpoint.has_completions()
    }

    /// Asks for the connection to end when all that was posted is complete; see [`Endpoint::disconnect`].
    pub fn disconnect(&mut self, now: Nanos) {
        self.endpoint.disconnect();
        self.drive(now);
    }

    /// Whether the connection has ended, and its queue pairs with it.
    pub fn has_ended(&self) -> bool {
        self.endpoint.has_ended()
    }

    /// The status that ended the connection, if it was neither end's wish.
    pub fn failure(&self) -> Option<Status> {
        self.endpoint.failure()
    }

    /// The error of the device that ended the connection, if it was one.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// A path as it is.
    pub fn path(&self, path: usize) -> PathStats {
        self.endpoint.path(path)
    }

    /// When the connection must be polled even if nothing happens.
    pub fn next_timeout(&self) -> Option<Nanos> {
        self.endpoint.next_timeout()
    }

    /// The queue pairs.
    pub fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    fn take_events(&mut self, now: Nanos) {
        loop {
            match self.fabric.poll() {
                Ok(Some(Event::Sent { token, status })) => {
                    self.endpoint.handle_completion(token, status, now)
                }
                Ok(Some(Event::Received { path, message })) => self.endpoint.handle_control(path, message),
                Ok(None) => return,
                Err(error) => return self.broken(error),
            }
        }
    }

    fn drive(&mut self, now: Nanos) {
        while let Some(action) = self.endpoint.poll(now) {
            if let Err(error) = self.act(action, now) {
                return self.broken(error);
            }
        }
    }

    fn act(&mut self, action: Action, now: Nanos) -> io::Result<()> {
        match action {
            Action::Post(work) => self.fabric.post(&work),
            Action::Renew { path } => {
                self.fabric.close(path)?;
                self.take_events(now);
                if self.endpoint.has_ended() {
                    return Ok(());
                }
                let params = self.fabric.open(path)?;
                self.endpoint.handle_renewed(path, params);
                Ok(())
            }
            Action::Connect { path, peer } => self.fabric.connect(path, peer),
            Action::Shut => {
                self.shut(now);
                Ok(())
            }
        }
    }

    fn shut(&mut self, now: Nanos) {
        for path in 0..self.fabric.paths() {
            if let Err(error) = self.fabric.close(path) {
                self.error.get_or_insert(error);
            }
        }
        if self.error.is_none() {
            self.take_events(now);
        }
        self.endpoint.handle_shut();
    }

    /// The device refuses: nothing can be told to the peer any more.
    fn broken(&mut self, error: io::Error) {
        if self.error.is_none() && !self.endpoint.has_ended() {
            self.error = Some(error);
            self.shut(0);
        }
    }
}
