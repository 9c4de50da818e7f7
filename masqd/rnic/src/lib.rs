//! The software RNIC: guest rings, scheduling, RoCEv2 transport and UDP.

pub mod transport;
