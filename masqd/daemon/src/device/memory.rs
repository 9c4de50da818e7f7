//! A guest's memory, as the vhost-user front end hands it over.
#![allow(unsafe_code)] // Says of mappings that they are whole, so that faults in them can be survived.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use masq_driver::{Gpa, MemoryRegion};
use masq_rnic::{Guard, GuardError, page_bytes};
use rustix::fs::SealFlags;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
    MmapRegion,
};

/// masqd's own view of a guest's memory, for the queues that it serves itself.
pub type Mapped = GuestMemoryMmap<()>;

/// Most regions of one guest.
pub const MAX_REGIONS: usize = 32;

/// Where a region is: what a front end tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Guest-physical address.
    pub gpa: u64,
    /// Bytes.
    pub len: u64,
    /// The front end's own address of it, by which it names rings.
    pub user_addr: u64,
    /// Where it begins in its file.
    pub offset: u64,
}

/// Why guest memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The file could shrink under us, and a later access would kill the process.
    #[error(
        "guest memory at {gpa:#x} is not a memfd sealed against shrinking: start QEMU with \
         -object memory-backend-memfd,id=mem,size=…,share=on,seal=on and -machine memory-backend=mem"
    )]
    NotSealed {
        /// Where the region begins.
        gpa: u64,
    },
    /// The region reaches beyond its file.
    #[error("guest memory at {gpa:#x} reaches beyond the end of its memfd ({file_bytes} bytes)")]
    BeyondFile {
        /// Where the region begins.
        gpa: u64,
        /// Size of the file.
        file_bytes: u64,
    },
    /// An address, length or offset is not a multiple of a page.
    #[error("guest memory at {gpa:#x} does not consist of whole pages of {page_bytes} bytes")]
    Unaligned {
        /// Where the region begins.
        gpa: u64,
        /// Size of a page, or of a huge page of which the file consists.
        page_bytes: u64,
    },
    /// There are too many regions.
    #[error("guest memory has more than {MAX_REGIONS} regions")]
    TooMany,
    /// No region has this address and length.
    #[error("there is no guest memory region at {gpa:#x}")]
    Unknown {
        /// The address.
        gpa: u64,
    },
    /// Two regions overlap.
    #[error("guest memory regions overlap: {0}")]
    Overlap(#[from] vm_memory::GuestRegionCollectionError),
    /// Accesses to it cannot be guarded.
    #[error("guest memory at {gpa:#x}: {source}")]
    Guard {
        /// Where the region begins.
        gpa: u64,
        /// Why.
        source: GuardError,
    },
    /// The operating system refused.
    #[error("cannot map guest memory at {gpa:#x}: {source}")]
    Map {
        /// Where the region begins.
        gpa: u64,
        /// Why.
        source: io::Error,
    },
}

/// All memory of one guest.
#[derive(Clone, Debug, Default)]
pub struct GuestRam {
    regions: Vec<(Place, Arc<File>)>,
    /// Dropped before the mappings.
    guards: Arc<Vec<Guard>>,
    mapped: Arc<Mapped>,
}

impl GuestRam {
    /// The memory that consists of these regions; each is checked before it is mapped.
    pub fn new(mut regions: Vec<(Place, Arc<File>)>) -> Result<Self, MemoryError> {
        if regions.len() > MAX_REGIONS {
            return Err(MemoryError::TooMany);
        }
        regions.sort_by_key(|(place, _)| place.gpa);
        let maps = regions.iter().map(|(place, file)| map(place, file)).collect::<Result<Vec<_>, _>>()?;
        let mapped = if maps.is_empty() { Mapped::new() } else { Mapped::from_regions(maps)? };
        let guards = mapped.iter().map(guard).collect::<Result<Vec<_>, _>>()?;
        Ok(GuestRam { regions, guards: Arc::new(guards), mapped: Arc::new(mapped) })
    }

    /// This memory and one region more.
    pub fn with(&self, place: Place, file: File) -> Result<Self, MemoryError> {
        let mut regions = self.regions.clone();
        regions.push((place, Arc::new(file)));
        Self::new(regions)
    }

    /// This memory without the region at `place` (its offset does not matter).
    pub fn without(&self, place: Place) -> Result<Self, MemoryError> {
        let mut regions = self.regions.clone();
        let n = regions.len();
        regions.retain(|(r, _)| (r.gpa, r.len, r.user_addr) != (place.gpa, place.len, place.user_addr));
        if regions.len() == n { Err(MemoryError::Unknown { gpa: place.gpa }) } else { Self::new(regions) }
    }

    /// masqd's mapping of it.
    pub fn mapped(&self) -> &Arc<Mapped> {
        &self.mapped
    }

    /// Whether a page of it could not be had; then it is not the guest's memory any more.
    pub fn is_poisoned(&self) -> bool {
        self.guards.iter().any(Guard::is_poisoned)
    }

    /// The guest-physical address of one of the front end's own addresses.
    pub fn translate(&self, user_addr: u64) -> Option<Gpa> {
        self.regions.iter().find_map(|(r, _)| {
            let offset = user_addr.checked_sub(r.user_addr)?;
            if offset < r.len { Some(Gpa(r.gpa + offset)) } else { None }
        })
    }

    /// The regions for an RNIC, with descriptors of their own.
    pub fn for_rnic(&self) -> io::Result<Vec<MemoryRegion>> {
        let region = |(place, file): &(Place, Arc<File>)| {
            Ok(MemoryRegion {
                gpa: Gpa(place.gpa),
                len: place.len,
                fd: OwnedFd::from(file.try_clone()?),
                offset: place.offset,
            })
        };
        self.regions.iter().map(region).collect()
    }
}

fn map(place: &Place, file: &Arc<File>) -> Result<GuestRegionMmap<()>, MemoryError> {
    let gpa = place.gpa;
    let failed = |source: io::Error| MemoryError::Map { gpa, source };
    let page_bytes = page_bytes(file).map_err(failed)?;
    if !(gpa | place.len | place.offset).is_multiple_of(page_bytes) {
        return Err(MemoryError::Unaligned { gpa, page_bytes });
    }
    // Only memfds have seals at all; any other file is refused by the call.
    let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK) {
        return Err(MemoryError::NotSealed { gpa });
    }
    let file_bytes = file.metadata().map_err(failed)?.len();
    if place.offset.checked_add(place.len).is_none_or(|end| end > file_bytes) {
        return Err(MemoryError::BeyondFile { gpa, file_bytes });
    }
    let len = usize::try_from(place.len).map_err(|e| failed(io::Error::other(e)))?;
    let region = MmapRegion::from_file(FileOffset::from_arc(file.clone(), place.offset), len)
        .map_err(|e| failed(io::Error::other(e)))?;
    GuestRegionMmap::new(region, GuestAddress(gpa))
        .ok_or_else(|| failed(io::Error::other("it ends beyond the address space")))
}

fn guard(region: &GuestRegionMmap<()>) -> Result<Guard, MemoryError> {
    // SAFETY: all of a mapping that `GuestRam` keeps as long as its guards, or longer.
    unsafe { Guard::new(region.as_ptr(), region.size()) }
        .map_err(|source| MemoryError::Guard { gpa: region.start_addr().0, source })
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};
    use vm_memory::Bytes;

    use super::*;

    fn memfd(bytes: u64, seals: SealFlags) -> File {
        let file = File::from(memfd_create("ram", MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    fn place(gpa: u64, len: u64, offset: u64) -> Place {
        Place { gpa, len, user_addr: 0x7000_0000 + gpa, offset }
    }

    #[test]
    fn sealed_memory_is_mapped_and_translated() {
        let ram = GuestRam::default()
            .with(place(0x1000, 0x2000, 0x1000), memfd(0x3000, SealFlags::SHRINK))
            .unwrap();
        ram.mapped().write_obj(7u32, GuestAddress(0x2ffc)).unwrap();
        assert!(ram.mapped().write_obj(7u32, GuestAddress(0x2ffd)).is_err());
        assert_eq!(ram.translate(0x7000_1004), Some(Gpa(0x1004)));
        assert_eq!(ram.translate(0x7000_2fff), Some(Gpa(0x2fff)));
        assert_eq!(ram.translate(0x7000_3000), None);
        assert_eq!(ram.translate(0x7000_0fff), None);
        assert_eq!(ram.for_rnic().unwrap().len(), 1);
    }

    #[test]
    fn memory_that_could_vanish_is_refused_with_the_option_to_use() {
        let e = GuestRam::default().with(place(0, 0x1000, 0), memfd(0x1000, SealFlags::GROW)).unwrap_err();
        assert!(e.to_string().contains("memory-backend-memfd"), "{e}");
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(0x1000).unwrap();
        assert!(matches!(
            GuestRam::default().with(place(0, 0x1000, 0), plain),
            Err(MemoryError::NotSealed { gpa: 0 })
        ));
    }

    #[test]
    fn huge_pages_come_whole() {
        const HUGE: u64 = 2 << 20;
        let huge = || {
            let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
            let file = File::from(memfd_create("ram", flags).unwrap());
            file.set_len(2 * HUGE).unwrap();
            fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
            file
        };
        let none = GuestRam::default();
        // Whether there are such pages shows when they are used.
        let ram = none.with(place(0, 2 * HUGE, 0), huge()).unwrap();
        assert!(!ram.is_poisoned());
        for place in [place(0, HUGE + 0x1000, 0), place(0x1000, HUGE, 0), place(0, HUGE, 0x1000)] {
            let e = none.with(place, huge()).unwrap_err();
            assert!(matches!(e, MemoryError::Unaligned { page_bytes: HUGE, .. }), "{e}");
        }
    }

    #[test]
    fn regions_stay_inside_their_file_and_apart() {
        let sealed = || memfd(0x2000, SealFlags::SHRINK);
        let none = GuestRam::default();
        assert!(matches!(none.with(place(0, 0x3000, 0), sealed()), Err(MemoryError::BeyondFile { .. })));
        assert!(matches!(none.with(place(0, 0x1000, 0x2000), sealed()), Err(MemoryError::BeyondFile { .. })));
        assert!(matches!(none.with(place(0, 0x1000, 0x10), sealed()), Err(MemoryError::Unaligned { .. })));
        let huge = place(0, 0x1000, u64::MAX - 0xfff);
        assert!(matches!(none.with(huge, sealed()), Err(MemoryError::BeyondFile { .. })));
        let one = none.with(place(0, 0x2000, 0), sealed()).unwrap();
        assert!(matches!(one.with(place(0x1000, 0x1000, 0), sealed()), Err(MemoryError::Overlap(_))));
        let two = one.with(place(0x2000, 0x1000, 0), sealed()).unwrap();
        assert_eq!(two.without(place(0, 0x2000, 0)).unwrap().translate(0x7000_0000), None);
        assert!(matches!(two.without(place(0x5000, 0x2000, 0)), Err(MemoryError::Unknown { gpa: 0x5000 })));
    }
}
