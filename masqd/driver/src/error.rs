use std::net::IpAddr;

/// Why an RNIC did not carry out a command.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The command names something that does not exist.
    #[error("{0} does not exist")]
    UnknownObject(String),
    /// The handle is in use.
    #[error("{0} exists already")]
    Exists(String),
    /// The object is in use by another.
    #[error("{0} is still in use")]
    Busy(String),
    /// The queue pair has left the state that the command expects.
    #[error("the queue pair is in state {0:?}")]
    WrongState(crate::QpState),
    /// A guest-physical address lies outside the guest's memory.
    #[error("guest-physical address {0:#x} lies outside the guest's memory")]
    BadAddress(u64),
    /// A field is out of range.
    #[error("{0}")]
    Invalid(String),
    /// A memory region cannot be used safely.
    #[error("guest memory at {gpa:#x} cannot be used: {reason}")]
    UnusableMemory {
        /// Where the region begins.
        gpa: u64,
        /// Why, and what to do about it.
        reason: String,
    },
    /// An underlay address cannot be used.
    #[error("cannot listen on UDP port 4791 of {address}: {source}")]
    Address {
        /// The address.
        address: IpAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The RNIC has no room for more.
    #[error("no room for {0}")]
    Exhausted(String),
    /// This RNIC does not support it.
    #[error("{0} is not supported by this RNIC")]
    Unsupported(String),
    /// The RNIC is gone.
    #[error("the RNIC has stopped")]
    Stopped,
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// Why.
        source: std::io::Error,
    },
}
