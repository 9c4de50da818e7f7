//! Marking a queue against an engine that polls or goes to sleep.

use std::mem::offset_of;

use loom::sync::atomic::{Ordering, fence};
use loom::thread;
use vrdma_abi::doorbell::{DoorbellPage, QPS_PER_GROUP, StatusLine};
use vrdma_abi::ring::WorkHeader;
use vrdma_rings::{Doorbells, SendRequest, SendRing};

use crate::memory::{ModelMemory, Order};
use crate::{check, check_bounded};

const PRODUCER: usize = offset_of!(WorkHeader, producer);
const SUMMARY: usize = offset_of!(DoorbellPage, summary);
const DIRTY: usize = offset_of!(DoorbellPage, dirty);
const NEED_KICK: usize = offset_of!(StatusLine, need_kick);
/// The queues of the models, all in one group.
const QUEUES: usize = 2;

#[derive(Clone)]
struct Shared {
    queues: [ModelMemory; QUEUES],
    area: ModelMemory,
    status: ModelMemory,
}

impl Shared {
    fn new(order: Order) -> Self {
        const { assert!(QUEUES < QPS_PER_GROUP as usize) };
        let queue = || ModelMemory::new(order, 4096, &[PRODUCER], &[], 64..192);
        Self {
            queues: [queue(), queue()],
            area: ModelMemory::new(order, 4096, &[], &[SUMMARY, DIRTY, DIRTY + 1], 0..0),
            status: ModelMemory::new(order, 4096, &[NEED_KICK], &[], 0..0),
        }
    }

    /// The guest's half: posts one send to a queue. Returns whether it rings the doorbell.
    fn post(&self, queue: u16) -> bool {
        let mut ring = SendRing::new(self.queues[usize::from(queue)].clone(), 2, 6).unwrap();
        let doorbells = Doorbells::new(self.area.clone(), self.status.clone());
        ring.post(&SendRequest::default(), &[]).unwrap();
        assert!(ring.publish());
        doorbells.mark(0, queue)
    }
}

/// The RNIC's half.
struct Rnic {
    shared: Shared,
    seen: [u32; QUEUES],
    fences: bool,
    summary_first: bool,
}

impl Rnic {
    fn new(shared: &Shared) -> Self {
        Self { shared: shared.clone(), seen: [0; QUEUES], fences: true, summary_first: true }
    }

    fn scan(&mut self) {
        let summary = self.shared.area.byte(SUMMARY);
        if summary.load(Ordering::Relaxed) == 0 {
            return;
        }
        if self.summary_first {
            summary.swap(0, Ordering::AcqRel);
        }
        for queue in 0..QUEUES {
            let dirty = self.shared.area.byte(DIRTY + queue);
            if dirty.load(Ordering::Relaxed) != 0 && dirty.swap(0, Ordering::AcqRel) != 0 {
                self.seen[queue] = self.shared.queues[queue].word(PRODUCER).load(Ordering::Acquire);
            }
        }
        if !self.summary_first {
            summary.swap(0, Ordering::AcqRel);
        }
    }

    /// What the engine does before it sleeps.
    fn prepare_sleep(&mut self) {
        self.shared.status.word(NEED_KICK).store(1, Ordering::Relaxed);
        if self.fences {
            fence(Ordering::SeqCst);
        }
        self.scan();
    }
}

/// The guest posts while the engine polls once and then goes to sleep.
fn sleep(order: Order, rnic_fences: bool) {
    check(move || {
        let shared = Shared::new(order);
        let mut rnic = Rnic { fences: rnic_fences, ..Rnic::new(&shared) };
        let engine = thread::spawn(move || {
            rnic.scan();
            rnic.prepare_sleep();
            rnic.seen[0]
        });
        let kicked = shared.post(0);
        let seen = engine.join().unwrap();
        assert!(kicked || seen == 1, "the engine sleeps beside work");
    });
}

#[test]
fn no_work_is_left_to_a_sleeping_engine() {
    sleep(Order::Kept, true);
}

#[test]
#[should_panic(expected = "the engine sleeps beside work")]
fn sleeping_without_the_guests_fence_is_caught() {
    sleep(Order::NoFence, true);
}

#[test]
#[should_panic(expected = "the engine sleeps beside work")]
fn sleeping_without_the_rnics_fence_is_caught() {
    sleep(Order::Kept, false);
}

/// One thread of the guest posts to two queues of one group while the engine polls.
fn one_poster(order: Order, summary_first: bool) {
    check(move || {
        let shared = Shared::new(order);
        let mut rnic = Rnic { summary_first, ..Rnic::new(&shared) };
        let engine = thread::spawn(move || {
            rnic.scan();
            rnic
        });
        let _ = shared.post(0);
        let _ = shared.post(1);
        let mut rnic = engine.join().unwrap();
        // The engine polls on: whatever it has not seen is still marked.
        rnic.scan();
        assert_eq!(rnic.seen, [1, 1], "a mark was lost");
    });
}

#[test]
fn no_mark_is_lost() {
    one_poster(Order::MultiCopyAtomic, true);
}

#[test]
#[should_panic(expected = "a mark was lost")]
fn clearing_the_summary_last_is_caught() {
    one_poster(Order::MultiCopyAtomic, false);
}

#[test]
#[should_panic(expected = "a mark was lost")]
fn relaxed_marks_are_caught() {
    one_poster(Order::Relaxed, true);
}

/// Two threads of the guest post to two queues of one group, which share a summary byte, while the engine polls.
#[test]
fn no_mark_of_two_posters_is_lost() {
    check_bounded(|| {
        let shared = Shared::new(Order::MultiCopyAtomic);
        let mut rnic = Rnic::new(&shared);
        let engine = thread::spawn(move || {
            rnic.scan();
            rnic
        });
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.post(1))
        };
        let _ = shared.post(0);
        let _ = other.join().unwrap();
        let mut rnic = engine.join().unwrap();
        rnic.scan();
        assert_eq!(rnic.seen, [1, 1], "a mark was lost");
    });
}
