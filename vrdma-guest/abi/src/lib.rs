//! The contract between a vrdma guest and its host.
//!
//! Everything that crosses the boundary is defined here, once: the device's config space
//! ([`config`]), control commands ([`control`]), asynchronous and completion events ([`event`]),
//! the rings that guest and RNIC share ([`ring`]) and the doorbell area ([`doorbell`]).
//! The C header of the kernel module, `vrdma-guest/kmod/vrdma_abi.h`, is generated from this crate
//! (module `header`); a test fails when the two differ. What the module and the provider tell one
//! another stands in [`uapi`].
//!
//! All integers are little-endian; big-endian guests are not supported. Structures have a fixed
//! size, no implicit padding, and reserved fields that must be zero. A change of any of them
//! changes [`config::ABI_MAJOR`] (incompatible) or [`config::ABI_MINOR`] (additive).
//! A command's structure can grow at its end in a minor version. From a guest of an older version it ends where it ended then, and the host takes what is
//! missing for zero; to a host of an older version a guest sends no more than that one knows.
//!
//! # Memory order
//!
//! A uniprocessor guest's read-modify-write is not atomic towards the host, so guests use only
//! plain loads, release stores and one explicit full fence (`mfence` on x86-64, `dmb ish` on
//! arm64); the RNIC uses atomic exchanges. The protocols stand in [`doorbell`] (posting work) and
//! [`ring`] (polling and arming a completion queue), and are model-checked in `vrdma-rings`.
#![cfg_attr(not(test), no_std)]

#[cfg(target_endian = "big")]
compile_error!("the vrdma ABI is little-endian, and big-endian guests are not supported");

#[macro_use]
mod layout;

pub mod config;
pub mod control;
pub mod counters;
pub mod doorbell;
pub mod event;
#[cfg(feature = "header")]
pub mod header;
pub mod ring;
pub mod uapi;

pub use layout::{Constant, Field, Layout};
