//! A vrdma guest without a VM.
//!
//! [`Device`] connects to a vhost-user socket of masqd as QEMU does, with memory of its own
//! ([`GuestRam`]), and speaks the control queue as the kernel module does.
//! [`verbs::Guest`] is the driver and the provider on top of it. Tests, fuzzers and benchmarks build on it.

mod cluster;
mod control;
mod device;
mod forge;
mod hugepages;
mod memory;
pub mod suite;
pub mod verbs;
mod virtqueue;

pub use cluster::{Cluster, CtlOutput, Layout, LogTails, VnicSpec};
pub use control::{ControlError, ControlQueue};
pub use device::{Device, Error};
pub use forge::Forger;
pub use hugepages::{HUGE_PAGE, HugePage, HugePool};
pub use memory::{GuestRam, Mapping};
pub use virtqueue::{Buffer, DriverQueue};
