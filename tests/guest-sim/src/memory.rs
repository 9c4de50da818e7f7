//! The guest's memory: a sealed memfd, a page allocator, and mappings of scattered pages.
#![allow(unsafe_code)] // Maps memory and hands out pointers into it.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vhost::VhostUserMemoryRegionInfo;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// The gap below 4 GiB that a PC keeps for devices: RAM above this goes on at 4 GiB.
const HIGH_MEMORY_GPA: u64 = 1 << 32;

/// Memory of a simulated guest. Cloning gives another handle to the same memory.
///
/// There are two regions, one at guest-physical address 0 and one at 4 GiB, as in a VM with much memory, so that
/// every test meets more than one.
#[derive(Clone)]
pub struct GuestRam {
    inner: Arc<Inner>,
}

struct Inner {
    file: File,
    base: NonNull<u8>,
    len: usize,
    low_len: usize,
    pages: Mutex<Pages>,
}

// SAFETY: `base` is a shared mapping that lives as long as Inner; what it holds is guest memory, which
// is only accessed through raw pointers by code that expects concurrent changes.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Which pages are in use: runs are taken from the low end of the memory, scattered pages from the high ends of both
/// regions in turn, so that neighbours are rare and long runs stay possible.
struct Pages {
    used: Vec<bool>,
    low: usize,
}

impl Pages {
    fn run(&mut self, pages: usize) -> Option<usize> {
        let mut first = 0;
        for page in 0..self.used.len() {
            if self.used[page] {
                first = page + 1;
            } else if page + 1 - first == pages {
                self.used[first..=page].fill(true);
                return Some(first);
            }
        }
        (pages == 0).then_some(0)
    }

    fn scattered(&mut self, pages: usize) -> Option<Vec<usize>> {
        let free = |range: std::ops::Range<usize>| range.rev().filter(|&p| !self.used[p]);
        let mut low = free(0..self.low);
        let mut high = free(self.low..self.used.len());
        let mut numbers = Vec::with_capacity(pages);
        while numbers.len() < pages {
            let next = match numbers.len() % 2 {
                0 => high.next().or_else(|| low.next()),
                _ => low.next().or_else(|| high.next()),
            };
            numbers.push(next?);
        }
        for &page in &numbers {
            self.used[page] = true;
        }
        Some(numbers)
    }
}

impl GuestRam {
    /// Memory of `len` bytes (rounded up to pages), sealed against shrinking as QEMU's
    /// memory-backend-memfd does.
    pub fn new(len: usize) -> io::Result<Self> {
        Self::with_seals(len, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)
    }

    /// Memory with the given seals, for tests of what the host must refuse.
    pub fn with_seals(len: usize, seals: i32) -> io::Result<Self> {
        const NAME: &CStr = c"guest-ram";
        // SAFETY: NAME is a valid C string.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: memfd_create returned this descriptor and nobody else owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        let len = len.next_multiple_of(2 * PAGE);
        file.set_len(len as u64)?;
        // SAFETY: plain system call on a descriptor that we own.
        if seals != 0 && unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Self::from_file(file, len)
    }

    /// Memory of `len` bytes in a file of at least that length.
    pub fn from_file(file: File, len: usize) -> io::Result<Self> {
        let base = map(std::ptr::null_mut(), len, &file, 0, 0)?;
        let low_len = len / 2 / PAGE * PAGE;
        let pages = Mutex::new(Pages { used: vec![false; len / PAGE], low: low_len / PAGE });
        Ok(GuestRam { inner: Arc::new(Inner { file, base, len, low_len, pages }) })
    }

    /// The regions, as a vhost-user front end announces them.
    pub fn regions(&self) -> Vec<VhostUserMemoryRegionInfo> {
        let i = &self.inner;
        let region = |gpa, offset: usize, len: usize| VhostUserMemoryRegionInfo {
            guest_phys_addr: gpa,
            memory_size: len as u64,
            userspace_addr: i.base.as_ptr() as u64 + offset as u64,
            mmap_offset: offset as u64,
            mmap_handle: i.file.as_raw_fd(),
        };
        vec![region(0, 0, i.low_len), region(HIGH_MEMORY_GPA, i.low_len, i.len - i.low_len)]
    }

    /// `pages` consecutive pages, zeroed; their guest-physical addresses are consecutive but where
    /// the two regions meet.
    ///
    /// # Panics
    /// When the memory is used up: give the guest more.
    pub fn alloc(&self, pages: usize) -> Mapping {
        let first = self.pages().run(pages).expect("the simulated guest is out of memory");
        let mapping = Mapping {
            ram: self.clone(),
            // SAFETY: the pages lie inside the mapping, as `run` gives no others.
            base: unsafe { self.inner.base.add(first * PAGE) },
            pages: (first..first + pages).collect(),
            own_mapping: false,
        };
        mapping.zero();
        mapping
    }

    /// `pages` pages that are scattered over the guest's memory, in no order, mapped one after another: what
    /// user space sees of a ring that the kernel module allocated.
    pub fn alloc_scattered(&self, pages: usize) -> io::Result<Mapping> {
        let numbers = self.pages().scattered(pages);
        let numbers = numbers.expect("the simulated guest is out of memory");
        let base = map(std::ptr::null_mut(), pages.max(1) * PAGE, &self.inner.file, 0, 0)?;
        for (k, &page) in numbers.iter().enumerate() {
            // SAFETY: the address lies inside the mapping made above, which nobody uses yet.
            let at = unsafe { base.as_ptr().add(k * PAGE) };
            map(at.cast(), PAGE, &self.inner.file, page * PAGE, libc::MAP_FIXED)?;
        }
        let mapping = Mapping { ram: self.clone(), base, pages: numbers, own_mapping: true };
        mapping.zero();
        Ok(mapping)
    }

    /// Usable also after a panic of another thread: the table is never left half changed.
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.inner.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gpa_of_page(&self, page: usize) -> u64 {
        let offset = page * PAGE;
        match offset.checked_sub(self.inner.low_len) {
            Some(high) => HIGH_MEMORY_GPA + high as u64,
            None => offset as u64,
        }
    }

    /// The address in this process of a guest-physical address, as vhost-user names ring addresses.
    pub fn host_address(&self, gpa: u64) -> u64 {
        let offset = match gpa.checked_sub(HIGH_MEMORY_GPA) {
            Some(high) => self.inner.low_len as u64 + high,
            None => gpa,
        };
        self.inner.base.as_ptr() as u64 + offset
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in with_seals and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn map(at: *mut libc::c_void, len: usize, file: &File, offset: usize, flags: i32) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping, or with MAP_FIXED one over a range that the caller owns.
    let p = unsafe {
        libc::mmap(
            at,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | flags,
            file.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(p.cast()).expect("mmap never returns null without MAP_FIXED at 0"))
}

/// Pages of guest memory, mapped one after another. They return to the guest when dropped.
pub struct Mapping {
    ram: GuestRam,
    base: NonNull<u8>,
    pages: Vec<usize>,
    own_mapping: bool,
}

// SAFETY: see Inner: shared memory that is only accessed through raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The address in this process.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Whether there are no pages.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Guest-physical addresses of the pages.
    pub fn gpas(&self) -> Vec<u64> {
        self.pages.iter().map(|&p| self.ram.gpa_of_page(p)).collect()
    }

    /// Guest-physical address of the byte at `offset`.
    pub fn gpa(&self, offset: usize) -> u64 {
        self.ram.gpa_of_page(self.pages[offset / PAGE]) + (offset % PAGE) as u64
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.len());
        // SAFETY: in bounds as asserted; the source is not guest memory, so the two do not overlap.
        unsafe { self.as_ptr().add(offset).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When the range leaves the mapping.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len());
        let mut data = vec![0; len];
        // SAFETY: in bounds as asserted; the target was just allocated.
        unsafe { self.as_ptr().add(offset).copy_to_nonoverlapping(data.as_mut_ptr(), len) };
        data
    }

    /// Loads a byte with acquire.
    pub fn load_u8(&self, offset: usize) -> u8 {
        assert!(offset < self.len());
        // SAFETY: in bounds as asserted; the mapping lives as long as self, and both sides access the byte atomically.
        unsafe { AtomicU8::from_ptr(self.as_ptr().add(offset)) }.load(Ordering::Acquire)
    }

    /// Fills a range with one byte.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        assert!(offset + len <= self.len());
        // SAFETY: in bounds as asserted.
        unsafe { self.as_ptr().add(offset).write_bytes(byte, len) };
    }

    fn zero(&self) {
        self.fill(0, self.len(), 0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.own_mapping {
            // SAFETY: this mapping was made in alloc_scattered for this value alone.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len().max(PAGE)) };
        }
        let mut pages = self.ram.pages();
        for &page in &self.pages {
            pages.used[page] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_pages_are_the_guests_pages() {
        let ram = GuestRam::new(1 << 20).unwrap();
        let m = ram.alloc_scattered(3).unwrap();
        let gpas = m.gpas();
        assert!(gpas.windows(2).all(|w| w[1] != w[0] + PAGE as u64), "{gpas:x?}");
        m.write(PAGE - 2, &[1, 2, 3, 4]);
        // The same bytes through the linear mapping.
        for (page, at, want) in [(0, PAGE - 1, 2u8), (1, 0, 3u8)] {
            let p = ram.host_address(gpas[page]) as *const u8;
            // SAFETY: host_address of a page of this guest is mapped.
            assert_eq!(unsafe { p.add(at).read() }, want);
        }
    }

    #[test]
    fn memory_returns() {
        let ram = GuestRam::new(64 * PAGE).unwrap();
        for _ in 0..100 {
            let run = ram.alloc(40);
            assert_eq!(run.gpa(0), 0);
            let scattered = ram.alloc_scattered(20).unwrap();
            let mut both: Vec<u64> = run.gpas().into_iter().chain(scattered.gpas()).collect();
            both.sort_unstable();
            both.dedup();
            assert_eq!(both.len(), 60, "a page was given out twice");
        }
    }

    #[test]
    fn the_second_region_begins_at_4_gib() {
        let ram = GuestRam::new(8 * PAGE).unwrap();
        let m = ram.alloc(8);
        assert_eq!(m.gpas()[3], 3 * PAGE as u64);
        assert_eq!(m.gpas()[4], 1 << 32);
        assert_eq!(ram.regions().len(), 2);
    }
}
