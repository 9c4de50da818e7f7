//! The software RNIC: guest rings, scheduling, RoCEv2 transport and UDP.
//!
//! ```text
//!   masqd ── commands ──► Rnic ──► Engine (one thread) ──► UDP 4791
//!                                   │  guests: memory, keys, completion queues, doorbells, rings
//!                                   │  queue pairs: transport (RC, sans-IO) | local (memory to memory)
//!   guest ◄── rings in its memory ──┘
//! ```
//!
//! [`Rnic`] is the handle; [`Engine`] is what runs, and can be driven without a thread.

mod config;
mod cqs;
mod engine;
pub mod limits;
mod local;
mod memory;
mod mr;
mod qp;
mod ring;
mod rnic;
#[cfg(test)]
mod testing;
pub mod transport;
mod udp;
mod virtqueue;
mod vnic;

pub use config::RnicConfig;
pub use engine::{Engine, Waker};
pub use rnic::Rnic;
pub use udp::FaultInjection;
