//! The guest's side of the rings and doorbells that it shares with the RNIC.
//!
//! The formats and protocols are those of [`vrdma_abi::ring`] and [`vrdma_abi::doorbell`]; this crate is
//! the one implementation of their guest half in Rust. It knows no system call: whoever maps the memory
//! hands it over as a [`Mapping`].
//!
//! - [`SendRing`], [`RecvRing`]: write entries with `post*`, show them to the RNIC with `publish`, give room
//!   back with `complete`.
//! - [`SharedRecvRing`]: the same, but for room, which the RNIC gives back through the ring itself.
//! - [`ChunkRing`]: the second send queue of a queue pair with several paths.
//! - [`Doorbells`]: tell the RNIC of published sends with `mark`, and learn whether its doorbell must be rung.
//! - [`CqRing`]: take completions with `poll`, return their entries with `publish`, ask for an event with `arm`, go on in another
//!   ring with `move_to`. [`CqArm`] arms beside a poller.
//!
//! # Memory order
//!
//! The other side is another process, possibly on the far side of a virtual machine's boundary, where a guest's
//! read-modify-write is not always atomic (see [`vrdma_abi`]). The guest therefore uses these operations only:
//!
//! | operation | where | pairs with |
//! |---|---|---|
//! | plain writes, then a release store of `producer` | `publish` of a work ring | the RNIC's acquire load of `producer` |
//! | acquire load of `taken`, then plain writes | `post` to a shared receive queue | the RNIC's release store of `taken`, after it has copied the entry |
//! | acquire load of `taken`, then plain writes | `post` to a chunk ring | the RNIC's release store of `taken`, after the chunks below are done |
//! | release store of a dirty byte, then of its summary byte | `mark` | the RNIC's acquiring exchanges, summary first |
//! | full fence, then a load of `need_kick` | `mark` | the RNIC's store of `need_kick`, full fence, scan |
//! | acquire load of a completion's last word, then plain reads | `poll` | the RNIC's release store of that word |
//! | release store of `consumer` | `publish` of a completion ring | the RNIC's acquire load of `consumer` |
//! | release store of `arm`, then a full fence, then a poll | `arm` | the RNIC's completion, full fence, exchange of `arm` |
//!
//! A full fence is an explicit instruction ([`full_fence`]); `fence(SeqCst)` may be a locked
//! operation on x86-64. Everything is written over [`SharedMemory`], so that the tests run this very
//! code under loom against a model of the RNIC's half, and see it fail without its fences.
#![no_std]

#[cfg(test)]
extern crate std;

mod chunk;
mod cq;
mod doorbell;
mod geometry;
mod memory;
mod recv;
mod send;
#[cfg(test)]
mod test_memory;
mod work;

pub use chunk::ChunkRing;
pub use cq::{Arm, CqArm, CqRing};
pub use doorbell::Doorbells;
pub use geometry::GeometryError;
pub use memory::{KickRegister, Mapping, SharedMemory, full_fence};
pub use recv::{RecvRing, SharedRecvRing};
pub use send::{Operands, SendData, SendRequest, SendRing, Target};
pub use work::PostError;
