//! Counts that a guest makes up cost the host neither memory nor reading. Alone in its file, because it watches all
//! allocations of the process.
#![allow(unsafe_code)] // an allocator is unsafe to implement

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::*;
use masq_control::Errno;
use vrdma_abi::control::*;

/// Notes the largest single allocation.
struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged, which upholds the contract.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Relaxed);
        // SAFETY: the caller's obligations are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are those of the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

#[test]
fn huge_counts_cost_neither_memory_nor_reading() {
    let mut g = Guest::ready("blue-1");
    g.base();
    let read = g.memory.read.get();
    let top = g.memory.page(&[0x10_0000; 512]);
    LARGEST.store(0, Relaxed);
    for levels in 0..=3 {
        for (count, page_shift) in [(u32::MAX, 12), (u32::MAX, 30), (1 << 27, 12), (4097, 12), (1 << 20, 21)]
        {
            let pages = PageTable { addr: top, count, page_shift, levels, reserved: 0 };
            let length = u64::from(count) << page_shift;
            let r = CreateMr { iova: 0, length, pages, ..g.mr_request(7, 1) };
            let (errno, _) = refused(g.send(OP_CREATE_MR, &r));
            assert!([Errno::EDQUOT, Errno::EINVAL].contains(&errno));
        }
    }
    assert_eq!(g.memory.read.get(), read);
    assert!(LARGEST.load(Relaxed) <= 256 << 10, "{}", LARGEST.load(Relaxed));
}
