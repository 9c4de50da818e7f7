//! The verbs, called as libibverbs calls them, over a kernel and an RNIC that are written here.
#![allow(unsafe_code)] // Tests call C functions with raw pointers, as applications do.

mod builders;
mod completing;
mod datagrams;
mod extended;
mod kernel;
mod layout;
mod lifecycle;
mod machine;
mod multipath;
mod posting;
mod shared;
mod windows;
