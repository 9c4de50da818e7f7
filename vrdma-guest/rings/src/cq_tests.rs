use std::collections::VecDeque;
use std::vec::Vec;

use proptest::prelude::*;
use vrdma_abi::ring::{ARM_NONE, CQE_WITH_IMM, WC_RECV, WC_REM_ACCESS_ERR};

use super::*;
use crate::memory::Mapping;
use crate::test_memory::Buffer;

/// The RNIC's half: writes completions, and counts those for which there was no room.
struct Rnic {
    memory: Mapping,
    entries: u32,
    producer: u32,
}

impl Rnic {
    fn complete(&mut self, cqe: Cqe) -> bool {
        if self.producer.wrapping_sub(self.memory.load_acquire(CONSUMER)) >= self.entries {
            return false;
        }
        let cqe = Cqe { phase: phase(self.producer, self.entries), ..cqe };
        let at = (1 + (self.producer % self.entries) as usize) * Cqe::SIZE;
        self.memory.write(at, cqe.as_bytes());
        self.producer = self.producer.wrapping_add(1);
        true
    }
}

/// A queue and its RNIC whose indexes have run up to `index`, the start of a pass with phase 1.
fn queue_at(buffer: &Buffer, entries: u32, index: u32) -> (CqRing<Mapping>, Rnic) {
    let mut cq = CqRing::new(buffer.mapping(), entries).unwrap();
    assert_eq!((phase(index, entries), index % entries), (1, 0));
    (cq.consumer, cq.published) = (index, index);
    buffer.mapping().store_release(CONSUMER, index);
    (cq, Rnic { memory: buffer.mapping(), entries, producer: index })
}

#[test]
fn a_completion_is_read_whole() {
    let buffer = Buffer::new(4096);
    let (mut cq, mut rnic) = queue_at(&buffer, 4, 0);
    assert_eq!(cq.poll(), None);
    let written = Cqe {
        wr_id: 0x0102_0304_0506_0708,
        qpn: 0x11,
        cookie: 3,
        byte_len: 4096,
        imm_or_inv: 0xaabb_ccdd,
        src_qpn: 5,
        consumer: 6,
        vendor_err: 7,
        timestamp_ns: 8,
        status: WC_REM_ACCESS_ERR,
        opcode: WC_RECV,
        flags: CQE_WITH_IMM,
        phase: 1,
        ..Cqe::ZERO
    };
    assert!(rnic.complete(written));
    assert_eq!(cq.poll(), Some(written));
    assert_eq!(cq.poll(), None);
    assert_eq!(buffer.mapping().load_acquire(CONSUMER), 0, "an entry was returned before it was published");
    cq.publish();
    assert_eq!(buffer.mapping().load_acquire(CONSUMER), 1);
}

#[test]
fn old_entries_are_not_taken_for_new_ones() {
    let buffer = Buffer::new(4096);
    // The index wraps after two passes.
    let (mut cq, mut rnic) = queue_at(&buffer, 4, 0u32.wrapping_sub(8));
    for pass in 0..6 {
        for i in 0..4 {
            assert_eq!(cq.poll(), None, "pass {pass}");
            assert!(rnic.complete(Cqe { wr_id: i, ..Cqe::ZERO }));
            assert_eq!(cq.poll().unwrap().wr_id, i);
            cq.publish();
        }
    }
}

#[test]
fn arming_keeps_the_stronger_wish() {
    let buffer = Buffer::new(4096);
    let (mut cq, _) = queue_at(&buffer, 4, 0);
    let arm = || buffer.mapping().load_acquire(ARM);
    assert_eq!(arm(), ARM_NONE);
    cq.arm(Arm::Solicited);
    assert_eq!(arm(), ARM_SOLICITED);
    cq.arm(Arm::Next);
    assert_eq!(arm(), ARM_NEXT);
    cq.arm(Arm::Solicited);
    assert_eq!(arm(), ARM_NEXT);
}

#[test]
fn discarding_disowns_the_completions_of_one_qp() {
    let buffer = Buffer::new(4096);
    let (mut cq, mut rnic) = queue_at(&buffer, 4, 0);
    // A full queue that begins in the middle of a pass.
    for cookie in [1, 1, 2, 1, 3, 1] {
        if rnic.producer == 2 {
            cq.poll().unwrap();
            cq.poll().unwrap();
            cq.publish();
        }
        assert!(rnic.complete(Cqe { cookie, wr_id: u64::from(cookie), ..Cqe::ZERO }));
    }
    cq.discard(1);
    let seen: Vec<_> = std::iter::from_fn(|| cq.poll()).map(|cqe| (cqe.cookie, cqe.wr_id)).collect();
    assert_eq!(seen, [(2, 2), (HANDLE_NONE, 1), (3, 3), (HANDLE_NONE, 1)]);
}

#[test]
fn a_queue_goes_on_in_another_ring() {
    let (old, new) = (Buffer::new(4096), Buffer::new(4096));
    let (mut cq, mut rnic) = queue_at(&old, 2, 0);
    for wr_id in 0..5 {
        rnic.complete(Cqe { wr_id, ..Cqe::ZERO });
        assert_eq!(cq.poll().unwrap().wr_id, wr_id);
        cq.publish();
    }
    rnic.complete(Cqe { wr_id: 5, ..Cqe::ZERO });
    assert!(cq.move_to(new.mapping(), 128).is_err());
    assert_eq!(cq.entries(), 2);

    // The RNIC moves what waits.
    let mut moved = Rnic { memory: new.mapping(), entries: 4, producer: 0 };
    assert!(moved.complete(Cqe { wr_id: 5, ..Cqe::ZERO }));
    cq.move_to(new.mapping(), 4).unwrap();
    assert_eq!(cq.entries(), 4);
    assert_eq!(cq.poll().unwrap().wr_id, 5);
    for wr_id in 6..20 {
        assert_eq!(cq.poll(), None);
        cq.publish();
        assert!(moved.complete(Cqe { wr_id, ..Cqe::ZERO }));
        assert_eq!(cq.poll().unwrap().wr_id, wr_id);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the order of completions and polls, the guest sees each completion once and in order.
    #[test]
    fn every_completion_is_seen_once(steps in prop::collection::vec((0..3u8, 1..6u32), 1..200), start in prop_oneof![Just(0), Just(0u32.wrapping_sub(32))]) {
        let buffer = Buffer::new(4096);
        let (mut cq, mut rnic) = queue_at(&buffer, 8, start);
        let mut expected = VecDeque::new();
        let mut next = 0u64;
        for (kind, count) in steps {
            match kind {
                0 => for _ in 0..count {
                    if rnic.complete(Cqe { wr_id: next, ..Cqe::ZERO }) {
                        expected.push_back(next);
                        next += 1;
                    }
                },
                1 => for _ in 0..count {
                    prop_assert_eq!(cq.poll().map(|cqe| cqe.wr_id), expected.pop_front());
                },
                _ => cq.publish(),
            }
        }
    }
}
