//! Reuse of a shared receive queue's entries, which the RNIC tells by an index in the ring.

use std::mem::offset_of;

use loom::sync::atomic::Ordering;
use loom::thread;
use vrdma_abi::ring::{RecvHeader, WorkHeader};
use vrdma_rings::{PostError, SharedMemory, SharedRecvRing};
use zerocopy::IntoBytes;

use crate::check;
use crate::memory::{ModelMemory, Order};

const ENTRIES: u32 = 2;
const STRIDE: usize = 64;
const PRODUCER: usize = offset_of!(WorkHeader, producer);
const TAKEN: usize = offset_of!(WorkHeader, taken);

/// The RNIC's half: copies an entry, then counts it as taken.
struct Rnic {
    memory: ModelMemory,
    taken: u32,
    copies_first: bool,
}

impl Rnic {
    fn count(&self) {
        self.memory.word(TAKEN).store(self.taken + 1, Ordering::Release);
    }

    fn take(&mut self) {
        if self.taken == self.memory.word(PRODUCER).load(Ordering::Acquire) {
            return;
        }
        if !self.copies_first {
            self.count();
        }
        let mut entry = RecvHeader::ZERO;
        let slot = (self.taken % ENTRIES) as usize;
        self.memory.read((1 + slot) * STRIDE, entry.as_mut_bytes());
        assert_eq!(entry.wr_id, u64::from(self.taken) + 1, "an entry was read before it was whole");
        self.count();
        self.taken += 1;
    }
}

/// The guest posts three receives through a queue of two, so that the first entry is reused.
fn model(order: Order, copies_first: bool) {
    check(move || {
        let memory = ModelMemory::new(order, 4096, &[PRODUCER, TAKEN], &[], STRIDE..3 * STRIDE);
        let mut rnic = Rnic { memory: memory.clone(), taken: 0, copies_first };
        let engine = thread::spawn(move || {
            rnic.take();
            rnic.take();
            rnic
        });

        let mut ring = SharedRecvRing::new(memory, ENTRIES, 6).unwrap();
        let mut posted = 0;
        for _ in 0..3 {
            match ring.post(posted + 1, &[]) {
                Ok(()) => posted += 1,
                Err(error) => assert_eq!(error, PostError::Full),
            }
            ring.publish();
        }

        let mut rnic = engine.join().unwrap();
        for _ in 0..3 {
            rnic.take();
        }
        assert_eq!(u64::from(rnic.taken), posted);
        assert!(posted >= 2);
    });
}

#[test]
fn entries_are_whole_when_taken_and_copied_when_reused() {
    model(Order::Kept, true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn relaxed_reuse_is_caught() {
    model(Order::Relaxed, true);
}

#[test]
#[should_panic]
fn counting_an_entry_before_it_is_copied_is_caught() {
    model(Order::Kept, false);
}
