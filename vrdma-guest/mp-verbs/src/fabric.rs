//! What a connection needs of its queue pairs.

use std::io;

use mp_core::endpoint::control::{Control, PathParams};
use mp_core::endpoint::{Status, Work};

/// Something that has happened on a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A work request has ended.
    Sent {
        /// The work's.
        token: u64,
        /// How it ended.
        status: Status,
    },
    /// A control message has come; `None` if its bytes are none.
    Received {
        /// The path of the queue pair.
        path: usize,
        /// What it says.
        message: Option<Control>,
    },
}

/// The queue pairs of a connection, one for each path. [`QueuePairs`](crate::queue_pairs::QueuePairs) are those of a device; tests have others.
///
/// An error that a method returns ends the connection.
pub trait Fabric {
    /// How many paths there are.
    fn paths(&self) -> usize;

    /// Posts a work request, signalled. Its completion is an [`Event::Sent`].
    fn post(&mut self, work: &Work) -> io::Result<()>;

    /// The next thing that has happened, if anything has.
    fn poll(&mut self) -> io::Result<Option<Event>>;

    /// Moves the path's queue pair, if it has one, to ERR and destroys it. What it had received by then comes out of [`poll`](Self::poll) before anything else of
    /// that path.
    fn close(&mut self, path: usize) -> io::Result<()>;

    /// Makes a queue pair for a path that has none, ready to be connected.
    fn open(&mut self, path: usize) -> io::Result<PathParams>;

    /// Connects the path's queue pair.
    fn connect(&mut self, path: usize, peer: PathParams) -> io::Result<()>;
}
