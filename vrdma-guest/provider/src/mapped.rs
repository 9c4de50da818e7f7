//! Pages that the kernel module shares with this process.
#![allow(unsafe_code)] // Calls mmap and munmap.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use vrdma_rings::{KickRegister, Mapping, SharedMemory};

use crate::errno::Errno;

/// A shared mapping of the context's command descriptor, which is unmapped with its last clone.
///
/// The module keeps the pages until then, whatever happens to the object that they belong to. When the device goes away, the
/// kernel puts other pages in the place of doorbell registers, so that access never faults.
#[derive(Debug)]
pub struct Mapped {
    view: Mapping,
    range: Arc<Range>,
}

#[derive(Debug)]
struct Range {
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

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

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
        Ok(Self::of(Arc::new(Range { start, len })))
    }

    fn of(range: Arc<Range>) -> Self {
        // SAFETY: the range is mapped as long as `range` lives, aligned to a page, and reached through such views only.
        let view = unsafe { Mapping::new(range.start, range.len) };
        Self { view, range }
    }
}

impl Clone for Mapped {
    fn clone(&self) -> Self {
        Self::of(self.range.clone())
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and no view of it is left. That it fails is impossible for such a range.
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
        let page_bytes = pages.range.len / usize::from(slots.max(1));
        // SAFETY: the pages are mapped for writing, and live as long as the register beside them.
        let register = unsafe { KickRegister::new(pages.range.start, page_bytes, slots, first_queue) };
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
