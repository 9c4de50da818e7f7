//! The objects that masq's users and its store know: hosts, networks, virtual NICs, rules (desired
//! state) and endpoints (realised state); their validation, and their text forms.
//!
//! [`DesiredState`] is a whole desired state that has been found consistent: parse one from the
//! declarative file with [`DesiredState::from_toml`] or [`DesiredState::from_json`]. A store holds
//! one [`Object`] under each [`Key`].

pub mod api;
mod desired;
mod file;
mod key;
mod object;
mod problem;
mod validate;

pub use desired::DesiredState;
pub use ipnet::IpNet;
pub use key::{Key, Kind, PREFIX, ParseKeyError};
pub use object::{Action, DEFAULT_PRIORITY, Endpoint, Host, Object, ObjectError, Rule, Vnic, Vpc};
pub use problem::{Problem, Problems};
pub use validate::{MAX_ADDRESSES, MAX_PATHS};
