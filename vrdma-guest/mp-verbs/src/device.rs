//! Devices and memory regions, for programs in Rust. Those in C have them from libibverbs.
#![allow(unsafe_code)] // Objects of libibverbs are pointers.

use std::ffi::{CStr, c_int};
use std::fs;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use mp_core::split::Place;

use crate::sys::*;

/// An open device with a protection domain.
#[derive(Debug)]
pub struct Device {
    library: &'static Library,
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    name: String,
}

// SAFETY: verbs may be called by any thread, several at a time (ibv_open_device(3)).
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a device by name, or the first one. ENODEV if there is none.
    pub fn open(name: Option<&str>) -> io::Result<Arc<Self>> {
        let library = library()?;
        let mut count = 0;
        // SAFETY: the list ends with null, and is freed below; devices can be opened until then.
        let list = made(unsafe { (library.ibv_get_device_list)(&mut count) })?;
        let mut found = Err(io::Error::from_raw_os_error(libc::ENODEV));
        for i in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: as above; a device's name is a string.
            let (device, its_name) = unsafe {
                let device = *list.as_ptr().add(i);
                (device, CStr::from_ptr((library.ibv_get_device_name)(device)).to_string_lossy().into_owned())
            };
            if name.is_none_or(|name| name == its_name) {
                // SAFETY: as above.
                found = made(unsafe { (library.ibv_open_device)(device) }).map(|context| (context, its_name));
                break;
            }
        }
        // SAFETY: the list is that of above.
        unsafe { (library.ibv_free_device_list)(list.as_ptr()) };
        let (context, name) = found?;
        // SAFETY: the context lives.
        match made(unsafe { (library.ibv_alloc_pd)(context.as_ptr()) }) {
            Ok(pd) => Ok(Arc::new(Self { library, context, pd, name })),
            Err(error) => {
                // SAFETY: nobody else has it.
                unsafe { (library.ibv_close_device)(context.as_ptr()) };
                Err(error)
            }
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> NonNull<ibv_pd> {
        self.pd
    }

    /// The GIDs of a port that connections can use; see [`usable_gids`].
    pub fn gids(&self, port: u8) -> Vec<u8> {
        usable_gids(&self.name, port)
    }

    /// Memory of `bytes` bytes, zeroed, registered for local use and for the peer's WRITEs and READs.
    pub fn region(self: &Arc<Self>, bytes: usize) -> io::Result<Region> {
        let layout = std::alloc::Layout::from_size_align(bytes.max(1), 4096).map_err(io::Error::other)?;
        // SAFETY: the layout is not empty.
        let start =
            NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        // SAFETY: the protection domain lives, and the memory is ours until it is deregistered.
        let mr = made(unsafe {
            (self.library.ibv_reg_mr)(self.pd.as_ptr(), start.as_ptr().cast(), layout.size(), access as c_int)
        });
        match mr {
            Ok(mr) => Ok(Region { device: self.clone(), mr, start, layout, bytes }),
            Err(error) => {
                // SAFETY: it was allocated with this layout just now.
                unsafe { std::alloc::dealloc(start.as_ptr(), layout) };
                Err(error)
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: regions and connections hold the device, so there are none any more.
        unsafe {
            (self.library.ibv_dealloc_pd)(self.pd.as_ptr());
            (self.library.ibv_close_device)(self.context.as_ptr());
        }
    }
}

/// The indexes of a port's GIDs, in order, by which a peer can be reached: with RoCE those of RoCEv2 that are no link-local addresses; with
/// InfiniBand the first.
pub fn usable_gids(device: &str, port: u8) -> Vec<u8> {
    let folder = format!("/sys/class/infiniband/{device}/ports/{port}");
    if fs::read_to_string(format!("{folder}/link_layer")).is_ok_and(|layer| layer.trim() == "InfiniBand") {
        return vec![0];
    }
    let is_usable = |index: &u8| {
        let kind = fs::read_to_string(format!("{folder}/gid_attrs/types/{index}"));
        let gid = fs::read_to_string(format!("{folder}/gids/{index}"));
        kind.is_ok_and(|kind| kind.trim() == "RoCE v2")
            && gid.is_ok_and(|gid| !gid.starts_with("fe80:") && gid.trim().chars().any(|c| !":0".contains(c)))
    };
    (0..=u8::MAX).filter(is_usable).collect()
}

/// Registered memory that belongs to this object.
///
/// The peer, and this side's device, may change it at any time: what is read is what was there at some moment.
#[derive(Debug)]
pub struct Region {
    device: Arc<Device>,
    mr: NonNull<ibv_mr>,
    start: NonNull<u8>,
    layout: std::alloc::Layout,
    bytes: usize,
}

// SAFETY: a region belongs to no thread.
unsafe impl Send for Region {}

impl Region {
    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The place of a byte, for this side's requests.
    pub fn local(&self, offset: usize) -> Place {
        // SAFETY: the region lives.
        Place { key: unsafe { self.mr.as_ref() }.lkey, addr: self.start.as_ptr() as u64 + offset as u64 }
    }

    /// The place of a byte, for the peer's requests and for receives.
    pub fn remote(&self, offset: usize) -> Place {
        // SAFETY: the region lives.
        Place { key: unsafe { self.mr.as_ref() }.rkey, ..self.local(offset) }
    }

    /// Writes bytes from `offset` on. Panics if they do not lie within the region.
    pub fn write(&mut self, offset: usize, from: &[u8]) {
        assert!(offset.checked_add(from.len()).is_some_and(|end| end <= self.bytes));
        // SAFETY: the bytes lie within the memory, as checked, and `from` is no part of it, since nobody gets a reference to it.
        unsafe { self.start.as_ptr().add(offset).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// Reads bytes from `offset` on. Panics if they do not lie within the region.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(offset.checked_add(to.len()).is_some_and(|end| end <= self.bytes));
        // SAFETY: as for `write`.
        unsafe { self.start.as_ptr().add(offset).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: after it is deregistered no device knows the memory. If it cannot be, the memory stays.
        unsafe {
            if (self.device.library.ibv_dereg_mr)(self.mr.as_ptr()) == 0 {
                std::alloc::dealloc(self.start.as_ptr(), self.layout);
            }
        }
    }
}
