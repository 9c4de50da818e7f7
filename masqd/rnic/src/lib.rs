//! The software RNIC: guest rings, scheduling, RoCEv2 transport and UDP.

pub mod limits;
mod memory;
mod mr;
mod ring;
#[cfg(test)]
mod testing;
pub mod transport;
mod udp;
mod virtqueue;
