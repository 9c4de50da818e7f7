//! The verbs, called as libibverbs calls them, over a kernel and an RNIC that are written here.
#![allow(unsafe_code)] // Tests call C functions with raw pointers, as applications do.

#[cfg(feature = "counted")]
pub mod counted;
mod kernel;
mod machine;

#[cfg(test)]
mod builders;
#[cfg(test)]
mod completing;
#[cfg(test)]
mod datagrams;
#[cfg(test)]
mod extended;
#[cfg(test)]
mod layout;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod multipath;
#[cfg(test)]
mod posting;
#[cfg(test)]
mod shared;
#[cfg(test)]
mod windows;
