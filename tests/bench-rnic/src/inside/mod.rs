//! Engines and the guest's library in this process: what they take, without programs, threads and the kernel's network beside them.

pub mod allocated;
pub mod count;
mod fabric;
pub mod memory;
pub mod operation;
pub mod packet;
pub mod paths;
mod rig;
mod several;

/// The RNIC's tests bring guests whose memory is a memfd, and engines without threads.
#[path = "../../../../masqd/rnic/tests/common/mod.rs"]
mod guests;
