//! Completion queues, guest side.
//!
//! An entry is valid when its phase is the one that belongs to its index. `poll` loads the word with the phase
//! (acquire) before anything else of the entry, so what it reads afterwards is what the RNIC wrote before its
//! release store of that word. The RNIC reuses an entry only after `publish` has stored a consumer index beyond it
//! (release), so no read of the old entry can fall behind that store. `arm` stores the wish (release), then
//! fences: a completion that the RNIC wrote without seeing the wish is visible to the next `poll`.

use core::mem::offset_of;

use vrdma_abi::control::HANDLE_NONE;
use vrdma_abi::ring::{ARM_NEXT, ARM_SOLICITED, CQE_BYTES, CqHeader, Cqe, phase};
use zerocopy::IntoBytes;

use crate::geometry::{Geometry, GeometryError};
use crate::memory::SharedMemory;

const CONSUMER: usize = offset_of!(CqHeader, consumer);
const ARM: usize = offset_of!(CqHeader, arm);
const COOKIE: usize = offset_of!(Cqe, cookie);
/// The word that makes an entry valid, and the last one: status, opcode, flags, phase.
const LAST_WORD: usize = offset_of!(Cqe, status);
const _: () = assert!(LAST_WORD + 4 == Cqe::SIZE && offset_of!(Cqe, phase) == Cqe::SIZE - 1);
const STRIDE_SHIFT: u8 = CQE_BYTES.trailing_zeros() as u8;

/// Which completion shall bring an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next one.
    Next,
    /// The next one that is solicited or has failed.
    Solicited,
}

/// The guest's side of a completion queue.
#[derive(Debug)]
pub struct CqRing<M> {
    memory: M,
    geometry: Geometry,
    consumer: u32,
    published: u32,
}

impl<M: SharedMemory> CqRing<M> {
    /// A queue of `entries` entries in zeroed memory that begins with its header.
    pub fn new(memory: M, entries: u32) -> Result<Self, GeometryError> {
        let geometry = Geometry::new(entries, STRIDE_SHIFT, memory.len())?;
        Ok(Self { memory, geometry, consumer: 0, published: 0 })
    }

    /// Takes the next completion, if there is one. Its entry goes back to the RNIC with [`publish`](Self::publish).
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        let last_word = self.valid(self.consumer)?;
        let mut cqe = Cqe::ZERO;
        let (body, last) = cqe.as_mut_bytes().split_at_mut(LAST_WORD);
        self.memory.read(self.geometry.offset(self.consumer), body);
        last.copy_from_slice(&last_word.to_le_bytes());
        self.consumer = self.consumer.wrapping_add(1);
        Some(cqe)
    }

    /// Returns the entries of all polled completions to the RNIC.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.consumer {
            self.memory.store_release(CONSUMER, self.consumer);
            self.published = self.consumer;
        }
    }

    /// Asks for one event. The caller polls once more before it waits for the event: completions
    /// that are already there bring none. A wish for any completion is not weakened to one for solicited ones.
    #[inline]
    pub fn arm(&mut self, arm: Arm) {
        arm_in(&self.memory, arm);
    }

    /// Disowns all completions of a QP that wait to be polled: their cookie becomes [`HANDLE_NONE`]. To be called when the
    /// RNIC has destroyed or reset the QP, and so writes no more of them.
    pub fn discard(&mut self, cookie: u32) {
        for ahead in 0..self.geometry.entries() {
            let index = self.consumer.wrapping_add(ahead);
            if self.valid(index).is_none() {
                break;
            }
            let at = self.geometry.offset(index) + COOKIE;
            let mut found = [0; 4];
            self.memory.read(at, &mut found);
            if u32::from_le_bytes(found) == cookie {
                self.memory.write(at, &HANDLE_NONE.to_le_bytes());
            }
        }
    }

    /// Goes on in another ring, whose indexes begin at 0 with the completions that wait to be polled: the RNIC has moved them there.
    /// All that were polled must have been published. When the memory cannot hold the ring, the queue stays where it was.
    pub fn move_to(&mut self, memory: M, entries: u32) -> Result<(), GeometryError> {
        *self = Self::new(memory, entries)?;
        Ok(())
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        self.geometry.entries()
    }

    /// The last word of the entry at an index, if the entry is valid.
    #[inline]
    fn valid(&self, index: u32) -> Option<u32> {
        let word = self.memory.load_acquire(self.geometry.offset(index) + LAST_WORD);
        let [_, _, _, found] = word.to_le_bytes();
        (found == phase(index, self.geometry.entries())).then_some(word)
    }
}

/// The part of a completion queue that arms it: it can be used while another thread, or another section of the same, polls.
#[derive(Debug)]
pub struct CqArm<M>(M);

impl<M: SharedMemory> CqArm<M> {
    /// Of the memory that [`CqRing::new`] or [`CqRing::move_to`] took.
    pub fn new(memory: M) -> Self {
        Self(memory)
    }

    /// As [`CqRing::arm`]; one caller at a time.
    #[inline]
    pub fn arm(&mut self, arm: Arm) {
        arm_in(&self.0, arm);
    }
}

#[inline]
fn arm_in<M: SharedMemory>(memory: &M, arm: Arm) {
    let wish = match arm {
        Arm::Next => ARM_NEXT,
        Arm::Solicited => ARM_SOLICITED,
    };
    // If the RNIC takes the stronger wish just now, then its event is on the way and wakes the caller all the same.
    if arm == Arm::Next || memory.load_acquire(ARM) != ARM_NEXT {
        memory.store_release(ARM, wish);
    }
    memory.full_fence();
}

#[cfg(test)]
#[path = "cq_tests.rs"]
mod tests;
