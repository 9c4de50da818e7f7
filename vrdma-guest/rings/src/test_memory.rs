//! Zeroed memory for tests, which stands for pages shared with the RNIC.
#![allow(unsafe_code)] // It hands out mappings of its own pages.

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use std::boxed::Box;
use std::vec::Vec;

use crate::memory::{KickRegister, Mapping, SharedMemory};

#[repr(align(4096))]
#[expect(dead_code, reason = "reached by pointers only")]
struct Page(UnsafeCell<[u8; 4096]>);

pub(crate) struct Buffer(Box<[Page]>);

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        assert_eq!(len % 4096, 0);
        Self((0..len / 4096).map(|_| Page(UnsafeCell::new([0; 4096]))).collect())
    }

    fn start(&self) -> NonNull<u8> {
        NonNull::from(&self.0[..]).cast()
    }

    /// The memory as guest or RNIC sees it. A test drops it before the buffer.
    pub(crate) fn mapping(&self) -> Mapping {
        // SAFETY: the pages are aligned and live on; they are cells, and no reference to their inside is handed out.
        unsafe { Mapping::new(self.start(), self.0.len() * 4096) }
    }

    /// Doorbell registers in this memory.
    pub(crate) fn kick_register(&self, slots: u16, first_queue: u16) -> KickRegister {
        assert!(usize::from(slots) <= self.0.len());
        // SAFETY: there is a page for each slot, aligned and writable.
        unsafe { KickRegister::new(self.start(), 4096, slots, first_queue) }
    }

    /// A copy of what stands there.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = std::vec![0; self.0.len() * 4096];
        self.mapping().read(0, &mut bytes);
        bytes
    }
}
