//! One connection over many paths: the decisions, without a clock, a socket or a queue pair.
//!
//! [`split`] is for a provider whose RNIC knows groups of queue pairs: it cuts large messages into chunks, which any path may carry, and
//! says what each has to wait for, so that all together look like the one request that the application posted.
//!
//! [`endpoint`] is for programs that have several ordinary queue pairs, one for each path, and any RNIC (Virtuoso). What it decides is pluggable:
//!
//! - [`schedule`]: which path takes the next chunk ([`PathScheduler`](schedule::PathScheduler)),
//! - [`monitor`]: what paths carry ([`PathMonitor`](monitor::PathMonitor)); [`decompose`](decompose::decompose) makes shares of it,
//! - [`pace`]: how much a path is given at a time ([`ChunkControl`](pace::ChunkControl)).
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod decompose;
pub mod endpoint;
pub mod gather;
mod message;
pub mod monitor;
mod order;
pub mod pace;
pub mod schedule;
pub mod split;

/// A time in nanoseconds, since any moment that all times of an object share.
pub type Nanos = u64;
