//! Identities and small values shared by every part of masq.
//!
//! Nothing here does IO or knows a wire or guest format; each type exists so that two integers
//! that mean different things cannot be confused.
#![no_std]

mod features;
mod gid;
mod key;
mod mac;
mod mtu;
mod path;
mod psn;
mod qpn;
mod vni;

pub use features::Features;
pub use gid::Gid;
pub use key::{Lkey, Rkey};
pub use mac::{MacAddr, ParseMacError};
pub use mtu::Mtu;
pub use path::PathId;
pub use psn::Psn;
pub use qpn::{Qpn, QpnBlock, WireQpn};
pub use vni::Vni;
