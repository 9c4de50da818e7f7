//! Pure decisions about tenants' traffic: no clock, IO or randomness of its own.
//!
//! | module | decides |
//! |---|---|
//! | [`rules`] | whether two vNICs of a network may be connected |
//! | [`rename`] | where a virtual address is on the underlay |
//! | [`qpn`] | which QPNs a vNIC owns, and whether a QPN is a peer's |
//! | [`conntrack`] | which connections a change touches |
//! | [`multipath`] | how many paths a connection uses |
//! | [`quota`] | whether a guest may have one more of something |
//!
//! Which changes of a queue pair are legal stands in `masq_driver`, as it binds the RNIC as well.
//!
//! A refusal is a value that tells its reason in words; it is not an error of this crate.

pub mod conntrack;
pub mod multipath;
pub mod qpn;
pub mod quota;
pub mod rename;
pub mod rules;
