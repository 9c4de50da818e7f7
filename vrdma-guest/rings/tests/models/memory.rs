//! Shared memory whose every access loom sees.

use std::collections::BTreeMap;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};
use vrdma_rings::SharedMemory;

/// How much of the ordering a model keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// All of it, and no more than the language promises.
    Kept,
    /// As `Kept`, and a byte has one history that all sides agree on: a store to it comes after the stores that it overwrites, and
    /// carries their order along, whichever thread made them. x86-64 and ARMv8 (multi-copy atomic) promise that; loom does not
    /// know it of plain stores, so that the store is modelled as an exchange with release.
    MultiCopyAtomic,
    /// The guest's full fences are left out.
    NoFence,
    /// The guest's acquire loads and release stores are relaxed.
    Relaxed,
}

/// Bytes of shared memory, cheap to clone. Only the named words and bytes can be accessed atomically, all others only plainly;
/// loom reports two plain accesses that race.
#[derive(Clone)]
pub struct ModelMemory(Arc<Inner>);

struct Inner {
    order: Order,
    len: usize,
    words: BTreeMap<usize, AtomicU32>,
    bytes: BTreeMap<usize, AtomicU8>,
    plain: BTreeMap<usize, UnsafeCell<[u8; 4]>>,
}

impl ModelMemory {
    /// Zeroed memory of `len` bytes with atomic words and bytes at these offsets, and plain words in `plain`.
    pub fn new(
        order: Order,
        len: usize,
        words: &[usize],
        bytes: &[usize],
        plain: std::ops::Range<usize>,
    ) -> Self {
        Self(Arc::new(Inner {
            order,
            len,
            words: words.iter().map(|&at| (at, AtomicU32::new(0))).collect(),
            bytes: bytes.iter().map(|&at| (at, AtomicU8::new(0))).collect(),
            plain: plain
                .step_by(4)
                .filter(|at| !words.contains(at))
                .map(|at| (at, UnsafeCell::new([0; 4])))
                .collect(),
        }))
    }

    /// An atomic word, for the RNIC's half.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        &self.0.words[&offset]
    }

    /// An atomic byte, for the RNIC's half.
    pub fn byte(&self, offset: usize) -> &AtomicU8 {
        &self.0.bytes[&offset]
    }

    fn weak(&self, order: Ordering) -> Ordering {
        if self.0.order == Order::Relaxed { Ordering::Relaxed } else { order }
    }
}

#[allow(unsafe_code)] // loom's cells hand out pointers; loom itself checks that accesses do not race.
impl SharedMemory for ModelMemory {
    fn len(&self) -> usize {
        self.0.len
    }

    fn load_acquire(&self, offset: usize) -> u32 {
        self.word(offset).load(self.weak(Ordering::Acquire))
    }

    fn store_release(&self, offset: usize, value: u32) {
        self.word(offset).store(value, self.weak(Ordering::Release));
    }

    fn store_release_u8(&self, offset: usize, value: u8) {
        if self.0.order == Order::MultiCopyAtomic {
            self.byte(offset).swap(value, Ordering::Release);
        } else {
            self.byte(offset).store(value, self.weak(Ordering::Release));
        }
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        for (at, to) in (offset..).step_by(4).zip(to.chunks_exact_mut(4)) {
            // SAFETY: the cell is alive, and loom stops the model when another thread writes to it at the same time.
            self.0.plain[&at].with(|cell| to.copy_from_slice(unsafe { &*cell }));
        }
    }

    fn write(&self, offset: usize, from: &[u8]) {
        for (at, from) in (offset..).step_by(4).zip(from.chunks_exact(4)) {
            // SAFETY: the cell is alive, and loom stops the model when another thread accesses it at the same time.
            self.0.plain[&at].with_mut(|cell| unsafe { (*cell).copy_from_slice(from) });
        }
    }

    fn full_fence(&self) {
        if self.0.order != Order::NoFence {
            fence(Ordering::SeqCst);
        }
    }
}
