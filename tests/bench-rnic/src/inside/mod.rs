//! Engines in this process: what they take, without guests' programs, threads and the kernel's network beside them.

pub mod allocated;
pub mod count;
mod fabric;
pub mod memory;
pub mod operation;
pub mod packet;
mod rig;

/// The RNIC's tests bring guests whose memory is a memfd, and engines without threads.
#[path = "../../../../masqd/rnic/tests/common/mod.rs"]
mod guests;
