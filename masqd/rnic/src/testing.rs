//! What this crate's unit tests share.

use std::os::fd::OwnedFd;

use masq_driver::{Gpa, MemoryRegion};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::memory::GuestMemory;

/// A memfd of `bytes`, sealed against shrinking.
pub(crate) fn sealed_memfd(bytes: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    fd
}

/// Guest memory with a region at each (address, length).
pub(crate) fn guest_memory(regions: &[(u64, u64)]) -> GuestMemory {
    let region =
        |&(gpa, len): &(u64, u64)| MemoryRegion { gpa: Gpa(gpa), len, fd: sealed_memfd(len), offset: 0 };
    GuestMemory::map(regions.iter().map(region).collect()).unwrap()
}
