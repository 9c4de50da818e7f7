//! Publication and reuse of work queue entries.

use std::mem::offset_of;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use vrdma_abi::ring::{RecvHeader, WorkHeader};
use vrdma_rings::{PostError, RecvRing, SharedMemory};
use zerocopy::IntoBytes;

use crate::check;
use crate::memory::{ModelMemory, Order};

const ENTRIES: u32 = 2;
const STRIDE: usize = 64;
const PRODUCER: usize = offset_of!(WorkHeader, producer);

/// The RNIC's half: reads what is published, entry by entry, and tells how far it came as a completion would.
struct Rnic {
    memory: ModelMemory,
    consumer: u32,
    completed: Arc<AtomicU32>,
}

impl Rnic {
    fn work(&mut self) {
        let producer = self.memory.word(PRODUCER).load(Ordering::Acquire);
        while self.consumer != producer {
            let mut entry = RecvHeader::ZERO;
            let slot = (self.consumer % ENTRIES) as usize;
            self.memory.read((1 + slot) * STRIDE, entry.as_mut_bytes());
            assert_eq!(entry.wr_id, u64::from(self.consumer) + 1, "an entry was read before it was whole");
            self.consumer += 1;
            self.completed.store(self.consumer, Ordering::Release);
        }
    }
}

/// The guest posts three receives through a queue of two, so that the first entry is reused.
fn model(order: Order) {
    check(move || {
        let memory = ModelMemory::new(order, 4096, &[PRODUCER], &[], STRIDE..3 * STRIDE);
        let completed = Arc::new(AtomicU32::new(0));
        let mut rnic = Rnic { memory: memory.clone(), consumer: 0, completed: completed.clone() };
        let engine = thread::spawn(move || {
            rnic.work();
            rnic.work();
            rnic
        });

        let mut ring = RecvRing::new(memory, ENTRIES, 6).unwrap();
        let mut posted = 0;
        for _ in 0..3 {
            ring.complete(completed.load(Ordering::Acquire));
            match ring.post(posted + 1, &[]) {
                Ok(()) => posted += 1,
                Err(error) => assert_eq!(error, PostError::Full),
            }
            ring.publish();
        }

        let mut rnic = engine.join().unwrap();
        rnic.work();
        assert_eq!(u64::from(rnic.consumer), posted);
        assert!(posted >= 2);
    });
}

#[test]
fn entries_are_whole_when_seen_and_free_when_reused() {
    model(Order::Kept);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn relaxed_publication_is_caught() {
    model(Order::Relaxed);
}
