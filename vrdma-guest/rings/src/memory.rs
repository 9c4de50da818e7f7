//! Access to memory that the RNIC reads and writes at the same time.
#![allow(unsafe_code)] // The one module of this crate that dereferences pointers to shared memory.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering, compiler_fence};

/// Memory that guest and RNIC share. Offsets are in bytes from its start.
///
/// `read` and `write` are plain: an acquire load or a release store beside them makes sure that the RNIC does not
/// touch the same bytes meanwhile. Offsets of 32-bit words are multiples of four.
///
/// # Panics
///
/// All methods panic when an access would leave the memory or a word is not aligned. The rings check their
/// geometry once, when they are made, so that this does not happen.
pub trait SharedMemory {
    /// Size in bytes.
    fn len(&self) -> usize;
    /// Whether there is no memory at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Loads a word; later accesses stay behind it.
    fn load_acquire(&self, offset: usize) -> u32;
    /// Stores a word; earlier accesses stay before it.
    fn store_release(&self, offset: usize, value: u32);
    /// Stores a byte; earlier accesses stay before it.
    fn store_release_u8(&self, offset: usize, value: u8);
    /// Copies bytes out.
    fn read(&self, offset: usize, to: &mut [u8]);
    /// Copies bytes in.
    fn write(&self, offset: usize, from: &[u8]);
    /// Orders all earlier accesses before all later ones, also a store before a load.
    fn full_fence(&self);
}

/// Orders all earlier memory accesses before all later ones, by an instruction of its own.
///
/// `core::sync::atomic::fence(SeqCst)` would be correct on a real machine, but a compiler may make it a
/// locked operation, which is no fence towards the host in a uniprocessor guest under emulation.
#[inline]
pub fn full_fence() {
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is part of SSE2, which every x86-64 processor has.
    unsafe {
        core::arch::x86_64::_mm_mfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes no register and no memory.
    unsafe {
        core::arch::asm!("dmb ish", options(nostack, preserves_flags));
    }
    // On other processors a sequentially consistent fence is a barrier instruction.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    core::sync::atomic::fence(Ordering::SeqCst);
    compiler_fence(Ordering::SeqCst);
}

/// Shared memory that is mapped at an address. It does not own the mapping.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range of the process, not of a thread, and access through it is by atomics or, for
// plain accesses, ordered by the protocols of this crate; its owner serialises plain writers by `&mut` on the rings.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Describes `len` bytes of shared memory at `start`.
    ///
    /// # Safety
    ///
    /// The range must stay mapped for as long as the value lives, readable, and writable if anything is
    /// stored through it, and `start` must be aligned to 64 bytes. No Rust reference to the range may exist.
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        debug_assert!(start.as_ptr().addr().is_multiple_of(64));
        Self { start, len }
    }

    #[inline]
    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.len);
        assert!(inside, "access outside of shared memory");
        // SAFETY: the check above keeps the pointer within the range that `new` was promised.
        unsafe { self.start.as_ptr().add(offset) }
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "word is not aligned");
        // SAFETY: `at` checked the range, the start is aligned to 64 and the offset to 4, and the range lives as long as self.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }
}

impl SharedMemory for Mapping {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn load_acquire(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    #[inline]
    fn store_release(&self, offset: usize, value: u32) {
        self.word(offset).store(value, Ordering::Release);
    }

    #[inline]
    fn store_release_u8(&self, offset: usize, value: u8) {
        // SAFETY: `at` checked the range, and bytes are always aligned.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }.store(value, Ordering::Release);
    }

    #[inline]
    fn read(&self, offset: usize, to: &mut [u8]) {
        let from = self.at(offset, to.len());
        // SAFETY: `at` checked the source; the destination is a Rust slice, which never overlaps shared memory (see `new`).
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    #[inline]
    fn write(&self, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
        // SAFETY: `at` checked the destination; the source is a Rust slice, which never overlaps shared memory (see `new`).
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    #[inline]
    fn full_fence(&self) {
        full_fence();
    }
}

/// The doorbell registers of the device: one page for each slot.
#[derive(Debug)]
pub struct KickRegister {
    start: NonNull<u8>,
    page_bytes: usize,
    slots: u16,
    first_queue: u16,
}

// SAFETY: a register is written by single stores, which may come from any thread.
unsafe impl Send for KickRegister {}
// SAFETY: as above.
unsafe impl Sync for KickRegister {}

impl KickRegister {
    /// Describes the registers of `slots` slots, one every `page_bytes` from `start`; `first_queue` is the queue number of slot 0.
    ///
    /// # Safety
    ///
    /// The pages must stay mapped and writable for as long as the value lives, and `start` must be aligned to 2 bytes.
    pub unsafe fn new(start: NonNull<u8>, page_bytes: usize, slots: u16, first_queue: u16) -> Self {
        Self { start, page_bytes, slots, first_queue }
    }

    /// Rings the doorbell of a slot: wakes the engine behind it. A slot that does not exist is ignored.
    #[inline]
    pub fn ring(&self, slot: u16) {
        if slot >= self.slots {
            return;
        }
        // SAFETY: slot is below the number of pages that `new` was promised, each of which begins with the register.
        unsafe {
            let register = self.start.as_ptr().add(usize::from(slot) * self.page_bytes).cast::<u16>();
            register.write_volatile(self.first_queue.wrapping_add(slot));
        }
    }
}
