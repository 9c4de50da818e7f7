use std::sync::atomic::{Ordering, fence};

use masq_driver::{CqAttr, DriverError, PageList};
use vrdma_abi::ring::{ARM_NONE, ARM_SOLICITED, CQE_BYTES, CQE_SOLICITED, CqHeader, Cqe, phase};
use zerocopy::IntoBytes;

use super::pages::RingPages;
use crate::limits;
use crate::memory::GuestMemory;

const CONSUMER: usize = std::mem::offset_of!(CqHeader, consumer);
const ARM: usize = std::mem::offset_of!(CqHeader, arm);
/// The last word of an entry: status, opcode, flags, phase.
const LAST_WORD: usize = std::mem::offset_of!(Cqe, status);

/// A completion queue.
///
/// Memory order (the guest's half stands in `vrdma_abi::ring`):
///
/// 1. An entry's last word, which holds the phase, is stored with release behind the rest of the entry. A guest that
///    loads it with acquire and sees the new phase sees all of the entry, and all the data that the completion
///    speaks of, because that was written before.
/// 2. [`Cq::announce`] runs after one or more entries: full fence, load `arm`, exchange it with 0. The guest
///    arms by storing `arm`, full fence, polling once more. Of the two, one comes first in the total order of
///    fences: either the guest's poll sees the entries, or the RNIC's load sees the arm.
/// 3. `consumer` is loaded with acquire: the guest has read the entries below it before it stored it, so they may be
///    overwritten.
#[derive(Debug)]
pub struct Cq {
    ring: RingPages,
    vector: u16,
    producer: u32,
    /// The guest's consumer index as last read; only re-read when the ring seems full.
    consumer: u32,
    failed: bool,
    fresh: Fresh,
}

/// Entries since the last [`Cq::announce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fresh {
    None,
    Plain,
    Solicited,
}

/// The ring was full: the queue is in error and takes no further entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// What [`Cq::announce`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announce {
    /// Nothing to tell.
    Quiet,
    /// The guest waits for an event.
    Event,
}

impl Cq {
    /// A completion queue with an empty ring.
    pub fn new(attr: CqAttr, memory: &GuestMemory) -> Result<Self, DriverError> {
        let what = format!("completion queue {}", attr.cq.0);
        if attr.vector >= limits::COMP_VECTORS {
            return Err(DriverError::Invalid(format!(
                "{what}: there is no completion vector {}",
                attr.vector
            )));
        }
        let ring = new_ring(&what, attr.entries, attr.ring, memory)?;
        Ok(Self { ring, vector: attr.vector, producer: 0, consumer: 0, failed: false, fresh: Fresh::None })
    }

    /// The completion vector of its events.
    pub fn vector(&self) -> u16 {
        self.vector
    }

    /// Whether it has overrun.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Goes on in another ring, whose indexes begin at 0: there the entries stand that the guest has not read, and the wish for an event. The
    /// ring is zeroed, so that no other entry is valid. When it fails, nothing has changed. The guest neither polls nor arms meanwhile.
    pub fn resize(
        &mut self,
        what: &str,
        entries: u32,
        ring: PageList,
        memory: &GuestMemory,
    ) -> Result<(), DriverError> {
        let ring = new_ring(what, entries, ring, memory)?;
        if self.failed {
            return Err(DriverError::Invalid(format!("{what} has overrun")));
        }
        let gone = || DriverError::Invalid(format!("{what}: its ring is no guest memory any more"));
        let header = self.ring.header(memory).ok_or_else(gone)?;
        let (consumer, arm) = header.load_u32(CONSUMER).zip(header.load_u32(ARM)).ok_or_else(gone)?;
        let unread = self.producer.wrapping_sub(consumer);
        if unread > entries.min(self.ring.entries()) {
            let refusal = format!("{what}: {unread} entries wait, which do not fit");
            return Err(DriverError::Invalid(refusal));
        }
        if unread > limits::MAX_MOVED_CQE {
            return Err(DriverError::Busy(format!("{what}, in which {unread} entries wait to be polled,")));
        }
        self.move_to(&ring, consumer, unread, arm, memory).ok_or_else(gone)?;
        (self.ring, self.producer, self.consumer) = (ring, unread, 0);
        Ok(())
    }

    /// Writes to a new ring what the guest has not read, and its wish for an event.
    fn move_to(
        &self,
        ring: &RingPages,
        consumer: u32,
        unread: u32,
        arm: u32,
        memory: &GuestMemory,
    ) -> Option<()> {
        const PHASE: usize = std::mem::offset_of!(Cqe, phase);
        let mut cqe = [0; Cqe::SIZE];
        for index in 0..unread {
            self.ring.entry(memory, consumer.wrapping_add(index))?.read(&mut cqe);
            cqe[PHASE] = phase(index, ring.entries());
            ring.entry(memory, index)?.write(&cqe);
        }
        ring.header(memory)?.store_u32(ARM, arm).then_some(())
    }

    /// Writes an entry; its phase is filled in here. Fails when the ring is full, also if the guest only says so
    /// with a consumer index that cannot be, or when the ring's memory has gone.
    pub fn push(&mut self, memory: &GuestMemory, mut cqe: Cqe) -> Result<(), Overrun> {
        if self.failed {
            return Err(Overrun);
        }
        self.write(memory, &mut cqe).ok_or(Overrun).inspect_err(|_| self.failed = true)?;
        self.producer = self.producer.wrapping_add(1);
        let fresh = if cqe.flags & CQE_SOLICITED != 0 { Fresh::Solicited } else { Fresh::Plain };
        self.fresh = self.fresh.max(fresh);
        Ok(())
    }

    fn write(&mut self, memory: &GuestMemory, cqe: &mut Cqe) -> Option<()> {
        let entries = self.ring.entries();
        if self.producer.wrapping_sub(self.consumer) >= entries {
            self.consumer = self.ring.header(memory)?.load_u32(CONSUMER)?;
            if self.producer.wrapping_sub(self.consumer) >= entries {
                return None;
            }
        }
        cqe.phase = phase(self.producer, entries);
        let entry = self.ring.entry(memory, self.producer)?;
        let (body, last) = cqe.as_bytes().split_at(LAST_WORD);
        entry.write(body);
        let last = last.try_into().map(u32::from_ne_bytes).ok()?;
        entry.store_u32(LAST_WORD, last).then_some(())
    }

    /// To be called after a batch of entries: says whether the guest must get an event for them. Disarms.
    pub fn announce(&mut self, memory: &GuestMemory) -> Announce {
        let fresh = std::mem::replace(&mut self.fresh, Fresh::None);
        if fresh == Fresh::None {
            return Announce::Quiet;
        }
        fence(Ordering::SeqCst);
        let Some(header) = self.ring.header(memory) else { return Announce::Quiet };
        let wanted = match header.load_u32(ARM) {
            None | Some(ARM_NONE) => false,
            Some(ARM_SOLICITED) => fresh == Fresh::Solicited,
            Some(_) => true,
        };
        match wanted.then(|| header.swap_u32(ARM, ARM_NONE)).flatten() {
            None | Some(ARM_NONE) => Announce::Quiet,
            Some(_) => Announce::Event,
        }
    }
}

fn new_ring(
    what: &str,
    entries: u32,
    ring: PageList,
    memory: &GuestMemory,
) -> Result<RingPages, DriverError> {
    if !entries.is_power_of_two() || entries > limits::MAX_CQE {
        let max = limits::MAX_CQE;
        return Err(DriverError::Invalid(format!("{what}: entries must be a power of two up to {max}")));
    }
    RingPages::new(what, ring, entries, CQE_BYTES.trailing_zeros() as u8, memory)
}

#[cfg(test)]
mod tests {
    use masq_driver::{CqHandle, Gpa, PageList};
    use vrdma_abi::ring::{ARM_NEXT, ring_pages};

    use super::*;
    use crate::testing::guest_memory;

    fn cq(entries: u32) -> (GuestMemory, Cq) {
        let memory = guest_memory(&[(0, 0x10000)]);
        // Backwards, to see that contiguity is not assumed.
        let pages = (0..ring_pages(entries, 6)).rev().map(|p| p * 0x1000).collect();
        let attr = CqAttr { cq: CqHandle(1), entries, vector: 0, ring: PageList { shift: 12, pages } };
        let cq = Cq::new(attr, &memory).unwrap();
        (memory, cq)
    }

    fn set(memory: &GuestMemory, cq: &Cq, offset: usize, value: u32) {
        assert!(cq.ring.header(memory).unwrap().store_u32(offset, value));
    }

    #[test]
    fn entries_carry_the_phase_of_their_pass() {
        let (memory, mut cq) = cq(128);
        for i in 0..300u32 {
            set(&memory, &cq, CONSUMER, i);
            cq.push(&memory, Cqe { wr_id: u64::from(i), ..Cqe::ZERO }).unwrap();
            let entry = cq.ring.entry(&memory, i).unwrap();
            assert_eq!(entry.load_u64(0), Some(u64::from(i)));
            assert_eq!(entry.load_u32(60).map(|w| (w >> 24) as u8), Some(phase(i, 128)));
        }
    }

    #[test]
    fn a_full_ring_is_an_overrun_for_good() {
        let (memory, mut cq) = cq(4);
        for _ in 0..4 {
            cq.push(&memory, Cqe::ZERO).unwrap();
        }
        assert_eq!(cq.push(&memory, Cqe::ZERO), Err(Overrun));
        set(&memory, &cq, CONSUMER, 4);
        assert_eq!(cq.push(&memory, Cqe::ZERO), Err(Overrun));
        assert!(cq.has_failed());
    }

    #[test]
    fn a_consumer_index_that_cannot_be_is_an_overrun() {
        for hostile in [5u32, 1000, u32::MAX, 1 << 31] {
            let (memory, mut cq) = cq(4);
            for _ in 0..4 {
                cq.push(&memory, Cqe::ZERO).unwrap();
            }
            set(&memory, &cq, CONSUMER, hostile);
            assert_eq!(cq.push(&memory, Cqe::ZERO), Err(Overrun), "{hostile}");
        }
    }

    #[test]
    fn one_event_for_each_arming() {
        let (memory, mut cq) = cq(64);
        let solicited = Cqe { flags: CQE_SOLICITED, ..Cqe::ZERO };
        cq.push(&memory, solicited).unwrap();
        assert_eq!(cq.announce(&memory), Announce::Quiet);
        set(&memory, &cq, ARM, ARM_NEXT);
        assert_eq!(
            cq.announce(&memory),
            Announce::Quiet,
            "entries before the arming are the guest's to find"
        );
        cq.push(&memory, Cqe::ZERO).unwrap();
        assert_eq!(cq.announce(&memory), Announce::Event);
        cq.push(&memory, Cqe::ZERO).unwrap();
        assert_eq!(cq.announce(&memory), Announce::Quiet);
        set(&memory, &cq, ARM, ARM_SOLICITED);
        cq.push(&memory, Cqe::ZERO).unwrap();
        assert_eq!(cq.announce(&memory), Announce::Quiet);
        cq.push(&memory, solicited).unwrap();
        cq.push(&memory, Cqe::ZERO).unwrap();
        assert_eq!(cq.announce(&memory), Announce::Event);
    }

    fn new_ring_pages(entries: u32) -> PageList {
        let pages = (0..ring_pages(entries, 6)).map(|p| 0x8000 + p * 0x1000).collect();
        PageList { shift: 12, pages }
    }

    /// (wr_id, phase) of the entries from the consumer on that the guest takes for valid.
    fn visible(memory: &GuestMemory, cq: &Cq, consumer: u32) -> Vec<(u64, u8)> {
        let entries = cq.ring.entries();
        let entry = |i| {
            let entry = cq.ring.entry(memory, i).unwrap();
            (entry.load_u64(0).unwrap(), (entry.load_u32(60).unwrap() >> 24) as u8)
        };
        let all = (0..entries).map(|n| (consumer.wrapping_add(n), entry(consumer.wrapping_add(n))));
        all.take_while(|(i, (_, p))| *p == phase(*i, entries)).map(|(_, e)| e).collect()
    }

    /// Whatever pass the old ring was in, the guest finds its unread entries at the beginning of the new one, and then nothing, and the
    /// queue goes on.
    #[test]
    fn unread_entries_move_to_another_ring() {
        for (entries, written, read, new_entries) in
            [(4, 3, 0, 8), (4, 30, 28, 16), (8, 13, 9, 4), (4, 4, 4, 32), (16, 100, 90, 64), (16, 77, 64, 16)]
        {
            let memory = guest_memory(&[(0, 0x10000)]);
            let pages = (0..ring_pages(entries, 6)).map(|p| p * 0x1000).collect();
            let attr = CqAttr { cq: CqHandle(1), entries, vector: 0, ring: PageList { shift: 12, pages } };
            let mut cq = Cq::new(attr, &memory).unwrap();
            let push = |cq: &mut Cq, i: u32| cq.push(&memory, Cqe { wr_id: i.into(), ..Cqe::ZERO });
            for i in 0..written {
                set(&memory, &cq, CONSUMER, i.min(read));
                push(&mut cq, i).unwrap();
            }
            set(&memory, &cq, CONSUMER, read);
            set(&memory, &cq, ARM, ARM_NEXT);
            cq.resize("queue", new_entries, new_ring_pages(new_entries), &memory).unwrap();
            let unread: Vec<_> = (read..written).map(|i| (u64::from(i), 1)).collect();
            assert_eq!(visible(&memory, &cq, 0), unread, "{entries} to {new_entries}");
            assert_eq!(cq.announce(&memory), Announce::Event, "the arm moves along");
            for i in written..read + new_entries {
                push(&mut cq, i).unwrap();
            }
            assert_eq!(visible(&memory, &cq, 0).len(), new_entries as usize);
            assert_eq!(push(&mut cq, 0), Err(Overrun));
        }
    }

    #[test]
    fn a_refused_resize_changes_nothing() {
        let (memory, mut cq) = cq(8);
        for i in 0..5 {
            cq.push(&memory, Cqe { wr_id: i, ..Cqe::ZERO }).unwrap();
        }
        let mut refused = |entries, ring: PageList| cq.resize("queue", entries, ring, &memory).unwrap_err();
        let what = refused(4, new_ring_pages(4)).to_string();
        assert_eq!(what, "queue: 5 entries wait, which do not fit");
        refused(6, new_ring_pages(8));
        refused(2 * limits::MAX_CQE, new_ring_pages(8));
        refused(64, new_ring_pages(8));
        refused(8, PageList { shift: 12, pages: vec![0x10_0000] });
        assert_eq!(visible(&memory, &cq, 0).len(), 5);
        // A consumer index that cannot be.
        for hostile in [6, u32::MAX - 9] {
            set(&memory, &cq, CONSUMER, hostile);
            assert!(cq.resize("queue", 16, new_ring_pages(16), &memory).is_err());
        }
        set(&memory, &cq, CONSUMER, 0);
        cq.resize("queue", 16, new_ring_pages(16), &memory).unwrap();
        (0..11).for_each(|_| cq.push(&memory, Cqe::ZERO).unwrap());
        cq.push(&memory, Cqe::ZERO).unwrap_err();
        assert!(cq.resize("queue", 8, new_ring_pages(8), &memory).is_err(), "it has overrun");
    }

    /// Moving entries holds up everybody else.
    #[test]
    fn a_bounded_number_of_entries_moves_at_once() {
        const ENTRIES: u32 = 2 * limits::MAX_MOVED_CQE;
        let ring = |first: u64| {
            let pages = (0..ring_pages(ENTRIES, 6)).map(|p| (first << 24) + p * 0x1000).collect();
            PageList { shift: 12, pages }
        };
        let memory = guest_memory(&[(0, 0x200_0000)]);
        let attr = CqAttr { cq: CqHandle(1), entries: ENTRIES, vector: 0, ring: ring(0) };
        let mut cq = Cq::new(attr, &memory).unwrap();
        (0..=limits::MAX_MOVED_CQE).for_each(|_| cq.push(&memory, Cqe::ZERO).unwrap());
        assert!(matches!(cq.resize("queue", ENTRIES, ring(1), &memory), Err(DriverError::Busy(_))));
        set(&memory, &cq, CONSUMER, 1);
        cq.resize("queue", ENTRIES, ring(1), &memory).unwrap();
        assert_eq!(visible(&memory, &cq, 0).len() as u32, limits::MAX_MOVED_CQE);
    }

    #[test]
    fn attributes_are_checked() {
        let memory = guest_memory(&[(0, 0x2000)]);
        let attr = |entries, vector, pages: &[u64]| CqAttr {
            cq: CqHandle(1),
            entries,
            vector,
            ring: PageList { shift: 12, pages: pages.to_vec() },
        };
        for bad in
            [attr(3, 0, &[0]), attr(0, 0, &[0]), attr(64, 0, &[0]), attr(32, 9, &[0]), attr(32, 0, &[0x2000])]
        {
            assert!(Cq::new(bad, &memory).is_err());
        }
        assert!(Cq::new(attr(32, 3, &[0x1000]), &memory).is_ok());
        let gone = guest_memory(&[(0x8000, 0x1000)]);
        let mut cq = Cq::new(attr(32, 3, &[0x1000]), &memory).unwrap();
        assert!(gone.span(Gpa(0x1000), 1).is_none());
        assert_eq!(cq.push(&gone, Cqe::ZERO), Err(Overrun));
    }
}
