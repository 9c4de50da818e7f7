//! Who has changed what: a line of the log for each attempt.

use std::fmt;

use tracing::info;

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// A process of this machine.
    Local {
        /// Its user.
        uid: u32,
        /// Its number.
        pid: Option<i32>,
    },
    /// Whoever has the private key of a certificate.
    Remote {
        /// The certificate's subject.
        subject: String,
        /// From where.
        address: std::net::SocketAddr,
    },
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Local { uid, pid: Some(pid) } => write!(f, "uid {uid} (process {pid})"),
            Who::Local { uid, pid: None } => write!(f, "uid {uid}"),
            Who::Remote { subject, address } => write!(f, "{subject} at {address}"),
        }
    }
}

/// Notes an attempt to change desired state.
pub fn note(who: &Who, method: &str, object: &str, result: &dyn fmt::Display) {
    info!(%who, method, object, %result, "write");
}
