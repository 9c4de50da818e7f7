//! The objects that masq's users and its store know: hosts, networks, security groups and their rules, QoS policies,
//! virtual NICs, static endpoints (desired state), endpoints and how far hosts have come (realised state); their validation, and their
//! text forms.
//!
//! [`DesiredState`] is a whole desired state: parse one from the declarative file with [`DesiredState::from_toml`] or
//! [`DesiredState::from_json`], change one with [`DesiredState::edit`]. A store holds one [`Object`] under each [`Key`].

pub mod api;
mod desired;
mod entry;
mod key;
mod object;
mod prefix;
mod problem;
pub mod schema;
mod validate;

pub use desired::{DesiredFile, DesiredState, Edit};
pub use entry::{FieldError, Object, ObjectError};
pub use ipnet::IpNet;
pub use key::{Key, Kind, PREFIX, ParseKeyError};
pub use object::{
    Action, Alias, ClassRate, DEFAULT_PRIORITY, Direction, Endpoint, Host, HostState, QosPolicy, Quota,
    SecurityGroup, SecurityGroupRule, StaticEndpoint, Transport, Vnic, Vpc,
};
pub use problem::{Problem, Problems};
pub use validate::{
    CLASSES, MAX_ADDRESS_PAIRS, MAX_ADDRESSES, MAX_ALIASES, MAX_BURST_BITS, MAX_PATHS, MAX_RATE_BITS_PER_SEC,
    MAX_SECURITY_GROUPS, MAX_STATIC_ADDRESSES, MAX_WEIGHT, MIN_BURST_BITS, MIN_RATE_BITS_PER_SEC,
};
