//! One guest device's control commands: decoded, checked, decided by policy, carried out by an RNIC.
//!
//! ```text
//!  request bytes ─→ decode ─→ ownership, quota ─→ policy ─→ RnicDriver ─→ reply bytes
//!   (Session)      (verbs)       (objects)      (Directory)    (Env)      + Refusal
//! ```
//!
//! [`Session`] is the state of one attached device. [`Directory`] is what this host knows of desired and
//! realised state; it is fed from a [`Store`](store::Store), whose implementations live elsewhere. Nothing here
//! knows a socket, vhost-user, a clock, a thread or an async runtime.

mod config;
mod directory;
mod env;
mod errno;
mod limits;
mod realise;
mod refresh;
mod refusal;
mod session;
mod settings;
mod status;
pub mod store;

/// Whether rules are not asked and connections are not tracked: isolation is off. Only for measuring what both cost.
const BYPASSED: bool = cfg!(feature = "bench-bypass");

pub use config::{Link, config_space};
pub use directory::{AskError, BadEntry, Delta, Directory, Question, Traffic};
pub use env::{Env, GuestMemory, MemoryError};
pub use errno::Errno;
pub use limits::Limits;
pub use realise::{Identity, Own, PlanError, identity, plan_endpoint};
pub use refresh::RefreshGate;
pub use refusal::{ObjectKind, Peer, Reason, Refusal, RefusalCounters, Verb};
pub use session::{
    Asked, Outcome, PeerAnswer, PeerRevocation, QpPage, QpView, Reply, ResetReport, Revocation, Revoked,
    Session, SessionConfig, Ticket,
};
pub use settings::{Settings, driver_limits, driver_rate};
pub use status::{Concern, HOST_PROBLEMS, Judge};
