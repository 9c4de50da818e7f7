//! Why a command fails, and with which exit status.

use std::path::PathBuf;

use masq_model::api::{ErrorReply, ItemStatus};

use crate::client::ClientError;
use crate::connect::IdentityError;

/// How a command ends that did what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The rules deny what was asked about.
    Denied,
}

/// Why a command failed. Exit status of each: see [`Failure::exit_status`].
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The request failed.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The files of a certificate, a key or a CA.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// The arguments do not fit together.
    #[error("{0}; see --help")]
    Usage(String),
    /// What shall be created exists.
    #[error("{object} exists already; masqctl {word} set changes it")]
    Exists {
        /// What.
        object: String,
        /// Its kind.
        word: &'static str,
    },
    /// What shall be changed has another generation.
    #[error("{object} does not have generation {generation}: {reply}")]
    Changed {
        /// What.
        object: String,
        /// The generation that was named.
        generation: u64,
        /// What masqd says.
        reply: ErrorReply,
    },
    /// A list does not have what shall be removed from it.
    #[error("{object}: --remove-{flag}: {value} is not in the list")]
    NotInList {
        /// Whose list.
        object: String,
        /// Option of the list.
        flag: &'static str,
        /// What is missing.
        value: String,
    },
    /// Hosts have not realised a change in time.
    #[error("{object} is {} after {seconds} s; not in force on:{}", status.state, lines(&status.waiting_for))]
    NotRealised {
        /// What was changed.
        object: String,
        /// How long there was.
        seconds: u16,
        /// How far it is.
        status: ItemStatus,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    WriteFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// masqd ended a capture without saying that it is complete.
    #[error("the capture broke off: what is in the file is not all that was asked for")]
    BrokenCapture,
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Write(#[from] std::io::Error),
}

fn lines(items: &[String]) -> String {
    if items.is_empty() {
        return " (masqd did not say)".into();
    }
    items.iter().map(|item| format!("\n  {item}")).collect()
}

impl Failure {
    /// The exit status.
    pub fn exit_status(&self) -> u8 {
        use ClientError::{Connect, Http, Late};
        match self {
            Failure::Usage(_) | Failure::Read { .. } | Failure::Identity(_) => 2,
            Failure::Client(Connect { .. } | Http { .. } | Late { .. }) => 3,
            Failure::NotRealised { .. } => 4,
            Failure::Client(_)
            | Failure::Exists { .. }
            | Failure::Changed { .. }
            | Failure::NotInList { .. }
            | Failure::WriteFile { .. }
            | Failure::BrokenCapture
            | Failure::Write(_) => 1,
        }
    }
}

/// Fails if there was time to wait, and it did not suffice.
pub fn check_realised(object: &str, seconds: u16, status: &ItemStatus) -> Result<(), Failure> {
    use masq_model::api::RealisedState::Realised;
    if seconds == 0 || status.state == Realised {
        return Ok(());
    }
    Err(Failure::NotRealised { object: object.into(), seconds, status: status.clone() })
}
