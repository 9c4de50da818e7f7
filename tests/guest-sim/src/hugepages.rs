//! Guest memory of huge pages of 2 MiB, which the host may have or not.
#![allow(unsafe_code)] // Maps memory.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;

use vhost::VhostUserMemoryRegionInfo;

/// Bytes of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// A region of one huge page, sealed as QEMU's `memory-backend-memfd,hugetlb=on,seal=on` does. Its addresses are far from those of
/// [`GuestRam`](crate::GuestRam).
pub struct HugePage {
    file: File,
    /// Mapped here, which takes the page out of the pool.
    at: Option<*mut u8>,
}

impl HugePage {
    /// Guest-physical address.
    pub const GPA: u64 = 1 << 40;
    /// What a front end calls its own address of the region.
    pub const USER_ADDR: u64 = 1 << 46;

    /// A page that nobody may have: only its use shows.
    pub fn promised() -> io::Result<Self> {
        const NAME: &CStr = c"huge-guest-ram";
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        // SAFETY: NAME is a valid C string.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: memfd_create returned this descriptor and nobody else owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(HUGE_PAGE as u64)?;
        // SAFETY: plain system call on a descriptor that we own.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(HugePage { file, at: None })
    }

    /// A page of the pool. Fails with ENOMEM when that has none.
    pub fn reserved() -> io::Result<Self> {
        let mut page = Self::promised()?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), HUGE_PAGE, prot, libc::MAP_SHARED, page.file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        page.at = Some(at.cast());
        Ok(page)
    }

    /// The region as a front end announces it.
    pub fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: Self::GPA,
            memory_size: HUGE_PAGE as u64,
            userspace_addr: Self::USER_ADDR,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    /// Copies its first bytes out.
    ///
    /// # Panics
    /// When it has only been promised, or is shorter.
    pub fn read(&self, len: usize) -> Vec<u8> {
        assert!(len <= HUGE_PAGE);
        let at = self.at.expect("a page of the pool");
        let mut data = vec![0; len];
        // SAFETY: in bounds as asserted; the target was just allocated.
        unsafe { at.copy_to_nonoverlapping(data.as_mut_ptr(), len) };
        data
    }
}

impl Drop for HugePage {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            // SAFETY: mapped in `reserved`, and nothing refers to it any more.
            unsafe { libc::munmap(at.cast(), HUGE_PAGE) };
        }
    }
}

/// A change of the host's pool of huge pages, undone in the end.
pub struct HugePool {
    before: String,
}

impl HugePool {
    fn path() -> &'static Path {
        Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    }

    /// Adds `pages` to the pool.
    pub fn grow(pages: u64) -> io::Result<Self> {
        let before = fs::read_to_string(Self::path())?;
        let count: u64 = before.trim().parse().map_err(io::Error::other)?;
        let pool = HugePool { before };
        fs::write(Self::path(), (count + pages).to_string())?;
        let now = fs::read_to_string(Self::path())?;
        if now.trim() != (count + pages).to_string() {
            return Err(io::Error::other(format!("the host gives only {} huge pages", now.trim())));
        }
        Ok(pool)
    }

    /// Takes all pages that are left.
    pub fn exhaust() -> io::Result<Vec<HugePage>> {
        let mut taken = Vec::new();
        loop {
            match HugePage::reserved() {
                Ok(page) => taken.push(page),
                Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => return Ok(taken),
                Err(e) => return Err(e),
            }
        }
    }
}

impl Drop for HugePool {
    fn drop(&mut self) {
        let _ = fs::write(Self::path(), self.before.trim());
    }
}
