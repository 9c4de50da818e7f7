//! What masqd asks of an RNIC: commands, replies and events as plain data, and [`RnicDriver`].
//!
//! Everything here is physical: wire QPNs, underlay addresses, guest-physical pages. The renaming
//! has been done and the policy has been applied before a command is made; an RNIC obeys.
//!
//! A command names its vNIC and, inside it, objects by the handles that the guest chose. Commands
//! that come one after another on the same vNIC take effect in that order. A command has
//! taken effect at every engine when its reply is there; in particular no engine uses the old
//! memory after [`Command::SetMemory`], the old call descriptor after [`Command::ReplaceCall`], or a
//! destroyed object's pages after its `Destroy`.

mod command;
mod error;
mod event;
mod inspect;
mod limits;
mod path;
mod reply;
mod transition;

pub use command::*;
pub use error::DriverError;
pub use event::{Event, EventSink, QpFault};
pub use inspect::{
    FailedRequest, MAX_DESCRIBED_QPS, PacketTap, PathDetails, PathState, QpDetails, QpError, QpPath,
    QpProtocol, QpRoundTrip, TappedPacket,
};
pub use limits::{Limits, LimitsError, Rate, check_class};
pub use path::{GroupAttr, UnderlayPath};
pub use reply::*;
pub use transition::{AttrMask, Transition, TransitionError, check_transition, transition};

/// An RNIC, as masqd sees it.
pub trait RnicDriver: Send + Sync {
    /// Carries out one command. Blocks until it has taken effect; that takes microseconds to a few
    /// milliseconds, and never waits for a peer.
    fn execute(&self, command: Command) -> Result<Reply, DriverError>;
}
