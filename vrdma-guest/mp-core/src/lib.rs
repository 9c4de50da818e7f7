//! One connection over many paths: the decisions, without a clock, a socket or a queue pair.
//!
//! [`split`] is for a provider whose RNIC knows groups of queue pairs: it cuts large messages into chunks, which any path may carry, and
//! says what each has to wait for, so that all together look like the one request that the application posted.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod gather;
mod order;
pub mod split;
