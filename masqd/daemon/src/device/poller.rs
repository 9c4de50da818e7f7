//! Waiting for several descriptors at once: epoll, level-triggered.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// What a device waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Messages from the rest of masqd.
    Inbox,
    /// A new front end.
    Listener,
    /// A message of the front end, or its end.
    Connection,
    /// A kick on the queue with this index.
    Kick(u16),
}

impl Source {
    const KICK: u64 = 1 << 32;

    fn encode(self) -> u64 {
        match self {
            Source::Inbox => 0,
            Source::Listener => 1,
            Source::Connection => 2,
            Source::Kick(index) => Self::KICK | u64::from(index),
        }
    }

    fn decode(value: u64) -> Self {
        match value {
            0 => Source::Inbox,
            1 => Source::Listener,
            2 => Source::Connection,
            kick => Source::Kick(kick as u16),
        }
    }
}

/// A set of descriptors to wait for.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        Ok(Poller(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds a descriptor; it leaves the set with [`Poller::remove`] or when its last duplicate is closed.
    pub fn add(&self, fd: impl AsFd, source: Source) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(source.encode()), EventFlags::IN)?)
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, fd)?)
    }

    /// Waits until something is ready, or `timeout` has passed.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<Source>> {
        let mut events = Vec::with_capacity(16);
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        match epoll::wait(&self.0, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(e) => return Err(e.into()),
        }
        Ok(events.iter().map(|e| Source::decode(e.data.u64())).collect())
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn tells_what_is_ready() {
        let poller = Poller::new().unwrap();
        let sources =
            [Source::Inbox, Source::Listener, Source::Connection, Source::Kick(0), Source::Kick(13)];
        for source in sources {
            let fd = eventfd(1, EventfdFlags::NONBLOCK).unwrap();
            poller.add(&fd, source).unwrap();
            assert_eq!(poller.wait(None).unwrap(), [source]);
            poller.remove(&fd).unwrap();
            assert_eq!(poller.wait(Some(Duration::ZERO)).unwrap(), []);
        }
    }
}
