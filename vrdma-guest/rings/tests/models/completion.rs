//! Publication of completions, and arming against a completion that is just being written.

use std::mem::offset_of;

use loom::sync::atomic::{Ordering, fence};
use loom::thread;
use vrdma_abi::ring::{ARM_NEXT, ARM_NONE, CqHeader, Cqe, phase};
use vrdma_rings::{Arm, CqRing, SharedMemory};
use zerocopy::IntoBytes;

use crate::check;
use crate::memory::{ModelMemory, Order};

const ENTRIES: u32 = 2;
const CONSUMER: usize = offset_of!(CqHeader, consumer);
const ARM: usize = offset_of!(CqHeader, arm);
const LAST_WORD: usize = offset_of!(Cqe, status);

fn memory(order: Order) -> ModelMemory {
    let last_words = [Cqe::SIZE + LAST_WORD, 2 * Cqe::SIZE + LAST_WORD];
    let words = [CONSUMER, ARM, last_words[0], last_words[1]];
    ModelMemory::new(order, 4096, &words, &[], Cqe::SIZE..3 * Cqe::SIZE)
}

/// The RNIC's half.
struct Rnic {
    memory: ModelMemory,
    producer: u32,
    events: u32,
    fences: bool,
}

impl Rnic {
    fn new(memory: &ModelMemory) -> Self {
        Self { memory: memory.clone(), producer: 0, events: 0, fences: true }
    }

    fn has_room(&self) -> bool {
        let consumer = self.memory.word(CONSUMER).load(Ordering::Acquire);
        self.producer - consumer < ENTRIES
    }

    fn complete(&mut self) {
        let at = (1 + (self.producer % ENTRIES) as usize) * Cqe::SIZE;
        let wr_id = u64::from(self.producer) + 1;
        let cqe = Cqe { wr_id, byte_len: self.producer, phase: phase(self.producer, ENTRIES), ..Cqe::ZERO };
        let (body, last) = cqe.as_bytes().split_at(LAST_WORD);
        self.memory.write(at, body);
        let last = u32::from_le_bytes(last.try_into().unwrap());
        self.memory.word(at + LAST_WORD).store(last, Ordering::Release);
        self.producer += 1;

        if self.fences {
            fence(Ordering::SeqCst);
        }
        // The completions here are neither solicited nor failed.
        let arm = self.memory.word(ARM);
        if arm.load(Ordering::Relaxed) == ARM_NEXT && arm.swap(ARM_NONE, Ordering::AcqRel) != ARM_NONE {
            self.events += 1;
        }
    }
}

/// The RNIC writes three completions into a queue of two while the guest polls.
fn publication(order: Order) {
    check(move || {
        let memory = memory(order);
        let mut rnic = Rnic::new(&memory);
        let engine = thread::spawn(move || {
            for _ in 0..3 {
                if rnic.has_room() {
                    rnic.complete();
                }
            }
            rnic
        });

        let mut cq = CqRing::new(memory, ENTRIES).unwrap();
        let mut seen = 0;
        let mut take = |cq: &mut CqRing<ModelMemory>| {
            let Some(cqe) = cq.poll() else { return false };
            assert_eq!((cqe.wr_id, cqe.byte_len), (u64::from(seen) + 1, seen));
            seen += 1;
            cq.publish();
            true
        };
        take(&mut cq);
        take(&mut cq);

        let rnic = engine.join().unwrap();
        while take(&mut cq) {}
        assert_eq!(seen, rnic.producer, "a completion was lost");
    });
}

#[test]
fn completions_are_whole_and_in_order() {
    publication(Order::Kept);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn relaxed_poll_is_caught() {
    publication(Order::Relaxed);
}

/// The guest arms and polls once more while the RNIC writes a completion.
fn arming(order: Order, rnic_fences: bool, wishes: &'static [Arm]) {
    check(move || {
        let memory = memory(order);
        let mut rnic = Rnic { fences: rnic_fences, ..Rnic::new(&memory) };
        let engine = thread::spawn(move || {
            rnic.complete();
            rnic.events
        });

        let mut cq = CqRing::new(memory, ENTRIES).unwrap();
        for &wish in wishes {
            cq.arm(wish);
        }
        let polled = cq.poll().is_some();

        let events = engine.join().unwrap();
        assert!(polled || events == 1, "the guest sleeps beside a completion");
    });
}

#[test]
fn no_event_is_lost() {
    arming(Order::Kept, true, &[Arm::Next]);
}

#[test]
fn a_weaker_wish_does_not_lose_the_event() {
    arming(Order::Kept, true, &[Arm::Next, Arm::Solicited]);
}

#[test]
#[should_panic(expected = "the guest sleeps beside a completion")]
fn arming_without_the_guests_fence_is_caught() {
    arming(Order::NoFence, true, &[Arm::Next]);
}

#[test]
#[should_panic(expected = "the guest sleeps beside a completion")]
fn arming_without_the_rnics_fence_is_caught() {
    arming(Order::Kept, false, &[Arm::Next]);
}

#[test]
#[should_panic(expected = "the guest sleeps beside a completion")]
fn a_wish_for_solicited_completions_alone_brings_no_other_event() {
    arming(Order::Kept, true, &[Arm::Solicited]);
}
