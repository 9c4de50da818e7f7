// Mapping a file descriptor and handing out addresses inside the mapping is what this module is for.
#![allow(unsafe_code)]

use std::fs::File;
use std::ptr::NonNull;

use masq_driver::{DriverError, Gpa, MemoryRegion};
use rustix::fs::SealFlags;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

use super::{Guard, PAGE_BYTES, Span, page_bytes};

/// What must stand on QEMU's command line; named in every refusal.
const QEMU_OPTION: &str = "start QEMU with -object memory-backend-memfd,share=on,seal=on";

/// One memory table of a guest: all its regions, mapped.
///
/// Dropping it unmaps them; see the module's text for why no pointer is left then.
#[derive(Debug, Default)]
pub struct GuestMemory {
    /// Sorted by address, without overlap.
    regions: Vec<Region>,
    /// Dropped before the mappings.
    guards: Vec<Guard>,
    /// Owns the mappings; virtqueues work on it.
    mmap: GuestMemoryMmap,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    gpa: u64,
    len: u64,
    host: NonNull<u8>,
}

// SAFETY: `host` points into a mapping that `mmap` owns and that any thread may use. All access to its
// bytes goes through `Span`, which assumes that others change them at any time.
unsafe impl Send for GuestMemory {}
// SAFETY: as above; a shared reference gives spans only.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// Maps all regions of a table. Fails when one is no memfd sealed against shrinking, is shorter than
    /// it says, is not made of whole pages, or overlaps another.
    pub fn map(regions: Vec<MemoryRegion>) -> Result<Self, DriverError> {
        let mut table = Vec::with_capacity(regions.len());
        let mut mapped = Vec::with_capacity(regions.len());
        for region in regions {
            let (gpa, len) = (region.gpa.0, region.len);
            let unusable = |reason: String| DriverError::UnusableMemory { gpa, reason };
            let mapping = map_region(region).map_err(unusable)?;
            let host = NonNull::new(mapping.as_ptr()).ok_or_else(|| unusable("it has no address".into()))?;
            table.push(Region { gpa, len, host });
            mapped.push(
                GuestRegionMmap::new(mapping, GuestAddress(gpa))
                    .ok_or_else(|| unusable("it reaches past the end of the address space".into()))?,
            );
        }
        table.sort_by_key(|r| r.gpa);
        let overlap = table.iter().zip(table.iter().skip(1)).find(|(a, b)| b.gpa - a.gpa < a.len);
        if let Some((_, b)) = overlap {
            return Err(DriverError::UnusableMemory {
                gpa: b.gpa,
                reason: "it overlaps another region".into(),
            });
        }
        mapped.sort_by_key(vm_memory::GuestMemoryRegion::start_addr);
        let mmap = if mapped.is_empty() {
            GuestMemoryMmap::new()
        } else {
            GuestMemoryMmap::from_regions(mapped)
                .map_err(|e| DriverError::Invalid(format!("memory table: {e}")))?
        };
        let guard = |region: &Region| {
            // SAFETY: all of a mapping of `mmap`, which is dropped after the guards.
            unsafe { Guard::new(region.host.as_ptr(), region.len as usize) }
                .map_err(|e| DriverError::UnusableMemory { gpa: region.gpa, reason: e.to_string() })
        };
        let guards = table.iter().map(guard).collect::<Result<_, _>>()?;
        Ok(Self { regions: table, guards, mmap })
    }

    /// The table as rust-vmm's virtqueues want it.
    pub fn mmap(&self) -> &GuestMemoryMmap {
        &self.mmap
    }

    /// Whether a page of it could not be had; then what is left of it is not the guest's any more.
    pub fn is_poisoned(&self) -> bool {
        self.guards.iter().any(Guard::is_poisoned)
    }

    /// The `len` bytes at `gpa`, or `None` when they do not lie in one region.
    pub fn span(&self, gpa: Gpa, len: usize) -> Option<Span<'_>> {
        let span = self.span_up_to(gpa, len)?;
        (span.len() == len).then_some(span)
    }

    /// The bytes from `gpa` on, at most `len`, that lie in one region; `None` when `gpa` lies in none.
    pub fn span_up_to(&self, gpa: Gpa, len: usize) -> Option<Span<'_>> {
        // A guest has one to four regions.
        let region = self.regions.iter().find(|r| gpa.0.wrapping_sub(r.gpa) < r.len)?;
        let offset = gpa.0 - region.gpa;
        let len = usize::try_from(region.len - offset).unwrap_or(usize::MAX).min(len);
        // SAFETY: offset < region.len, and `map` checked that region.len bytes are mapped at `host`; the
        // mapping lives as long as self, which the span borrows.
        Some(unsafe { Span::new(region.host.add(offset as usize), len) })
    }

    /// Whether the `len` bytes at the host address `host` lie in one of the table's mappings.
    pub(super) fn contains(&self, host: NonNull<u8>, len: usize) -> bool {
        let holds = |r: &Region| {
            let offset = (host.as_ptr() as u64).wrapping_sub(r.host.as_ptr() as u64);
            offset <= r.len && len as u64 <= r.len - offset
        };
        self.regions.iter().any(holds)
    }

    /// Fails with the first page of a list of ring or doorbell pages that is not memory.
    pub fn check_pages(&self, pages: &[u64]) -> Result<(), DriverError> {
        let good = |page: u64| {
            page.is_multiple_of(PAGE_BYTES) && self.span(Gpa(page), PAGE_BYTES as usize).is_some()
        };
        match pages.iter().find(|p| !good(**p)) {
            Some(bad) => Err(DriverError::BadAddress(*bad)),
            None => Ok(()),
        }
    }
}

fn map_region(region: MemoryRegion) -> Result<MmapRegion, String> {
    let MemoryRegion { gpa, len, fd, offset } = region;
    let page = page_bytes(&fd).map_err(|e| e.to_string())?;
    if len == 0 || (len | gpa.0 | offset) % page != 0 {
        return Err(format!("address, length ({len} bytes) and offset must be multiples of {page} bytes"));
    }
    if gpa.0.checked_add(len).is_none() {
        return Err("it reaches past the end of the address space".into());
    }
    match rustix::fs::fcntl_get_seals(&fd) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => {}
        Ok(_) => return Err(format!("it is not sealed against shrinking: {QEMU_OPTION}")),
        Err(_) => return Err(format!("it is not a memfd: {QEMU_OPTION}")),
    }
    // The seal keeps the end of the file from moving down, so this holds as long as the mapping does.
    let file_len = rustix::fs::fstat(&fd).map_err(|e| e.to_string())?.st_size;
    let file_len = u64::try_from(file_len).unwrap_or(0);
    if offset.checked_add(len).is_none_or(|end| end > file_len) {
        return Err(format!("{len} bytes at {offset:#x} reach past the end of its file ({file_len} bytes)"));
    }
    let len = usize::try_from(len).map_err(|_| "it is too large".to_owned())?;
    MmapRegion::from_file(FileOffset::new(File::from(fd), offset), len).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
        let fd = memfd_create("guest", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, bytes).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    fn region(gpa: u64, len: u64) -> MemoryRegion {
        MemoryRegion { gpa: Gpa(gpa), len, fd: memfd(len, SealFlags::SHRINK), offset: 0 }
    }

    #[test]
    fn an_unsealed_region_is_refused_with_the_option_to_use() {
        let fd = memfd(0x1000, SealFlags::GROW);
        let e = GuestMemory::map(vec![MemoryRegion { gpa: Gpa(0), len: 0x1000, fd, offset: 0 }]).unwrap_err();
        assert!(e.to_string().contains("seal=on"), "{e}");
        let file = File::open("/proc/self/exe").unwrap();
        let r = MemoryRegion { gpa: Gpa(0), len: 0x1000, fd: file.into(), offset: 0 };
        let e = GuestMemory::map(vec![r]).unwrap_err();
        assert!(e.to_string().contains("not a memfd"), "{e}");
    }

    #[test]
    fn a_region_longer_than_its_file_is_refused() {
        let fd = memfd(0x2000, SealFlags::SHRINK);
        let r = MemoryRegion { gpa: Gpa(0), len: 0x2000, fd, offset: 0x1000 };
        assert!(GuestMemory::map(vec![r]).is_err());
        assert!(GuestMemory::map(vec![region(0x800, 0x1000)]).is_err());
        let r = MemoryRegion { gpa: Gpa(u64::MAX - 0xfff), ..region(0, 0x1000) };
        assert!(GuestMemory::map(vec![r]).is_err());
    }

    #[test]
    fn overlap_is_refused_in_any_order() {
        assert!(GuestMemory::map(vec![region(0x3000, 0x2000), region(0x2000, 0x2000)]).is_err());
        assert!(GuestMemory::map(vec![region(0x4000, 0x2000), region(0x2000, 0x2000)]).is_ok());
    }

    #[test]
    fn spans_end_with_their_region() {
        let m =
            GuestMemory::map(vec![region(0x1000, 0x1000), region(0x2000, 0x1000), region(0x8000, 0x1000)])
                .unwrap();
        assert!(m.span(Gpa(0xfff), 1).is_none());
        assert!(m.span(Gpa(0x1000), 0x1000).is_some());
        assert!(m.span(Gpa(0x1001), 0x1000).is_none());
        assert_eq!(m.span_up_to(Gpa(0x1ffe), 100).unwrap().len(), 2);
        assert!(m.check_pages(&[0x1000, 0x8000]).is_ok());
        assert!(matches!(m.check_pages(&[0x1000, 0x3000]), Err(DriverError::BadAddress(0x3000))));
        assert!(matches!(m.check_pages(&[0x1008]), Err(DriverError::BadAddress(0x1008))));
    }
}
