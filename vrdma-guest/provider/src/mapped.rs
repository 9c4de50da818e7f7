//! Pages that the kernel module shares with this process.
#![allow(unsafe_code)] // Calls mmap and munmap.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use vrdma_rings::{KickRegister, Mapping, SharedMemory};

use crate::errno::Errno;

/// A shared mapping of the context's command descriptor, which it unmaps when dropped.
///
/// The module keeps the pages until then, whatever happens to the object that they belong to. When the device goes away, the
/// kernel puts other pages in the place of doorbell registers, so that access never faults.
#[derive(Debug)]
pub struct Mapped {
    view: Mapping,
    start: NonNull<u8>,
    len: usize,
}

/// What a mapping is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

// SAFETY: a mapping belongs to the process, not to a thread; the view is Send and Sync itself.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `len` bytes at an offset that the module gave, exactly as it gave them.
    pub fn new(fd: c_int, offset: u64, len: usize, access: Access) -> Result<Self, Errno> {
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::Write => libc::PROT_WRITE,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let start = NonNull::new(start.cast()).ok_or(Errno::ENOMEM)?;
        // SAFETY: the range is mapped until `drop`, aligned to a page, and reached through the view only, which `self` owns.
        let view = unsafe { Mapping::new(start, len) };
        Ok(Self { view, start, len })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and the view goes with it. That it fails is impossible for such a range.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl SharedMemory for Mapped {
    #[inline]
    fn len(&self) -> usize {
        self.view.len()
    }
    #[inline]
    fn load_acquire(&self, offset: usize) -> u32 {
        self.view.load_acquire(offset)
    }
    #[inline]
    fn store_release(&self, offset: usize, value: u32) {
        self.view.store_release(offset, value);
    }
    #[inline]
    fn store_release_u8(&self, offset: usize, value: u8) {
        self.view.store_release_u8(offset, value);
    }
    #[inline]
    fn read(&self, offset: usize, to: &mut [u8]) {
        self.view.read(offset, to);
    }
    #[inline]
    fn write(&self, offset: usize, from: &[u8]) {
        self.view.write(offset, from);
    }
    #[inline]
    fn full_fence(&self) {
        self.view.full_fence();
    }
}

/// The device's doorbell registers, mapped.
#[derive(Debug)]
pub struct KickPages {
    register: KickRegister,
    _pages: Mapped,
}

impl KickPages {
    /// Takes a mapping of one page for each slot; `first_queue` is the queue number of slot 0.
    pub fn new(pages: Mapped, slots: u16, first_queue: u16) -> Self {
        let page_bytes = pages.len / usize::from(slots.max(1));
        // SAFETY: the pages are mapped for writing, and live as long as the register beside them.
        let register = unsafe { KickRegister::new(pages.start, page_bytes, slots, first_queue) };
        Self { register, _pages: pages }
    }

    /// Wakes the engine behind a slot.
    #[inline]
    pub fn ring(&self, slot: u16) {
        self.register.ring(slot);
    }
}

/// The page size of this system.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf only returns a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
