//! A virtqueue that masqd serves itself: the control queue and the queue of asynchronous events.
//!
//! What the guest put into descriptors is read once, with bounds, into a [`Chain`]; later changes of
//! the guest's to its rings cannot change what masqd does.

use std::fs::File;

use masq_driver::Gpa;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::memory::Mapped;

/// VIRTIO_RING_F_EVENT_IDX.
pub const EVENT_IDX: u64 = 1 << 29;

/// Most descriptors of a chain; requests have one readable and one writable part.
const MAX_DESCRIPTORS: usize = 16;

/// Where a queue is, as the front end described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// Number of descriptors.
    pub size: u16,
    /// Descriptor table.
    pub desc: Gpa,
    /// Available ring.
    pub avail: Gpa,
    /// Used ring.
    pub used: Gpa,
    /// Next available index to take.
    pub base: u16,
    /// Whether VIRTIO_RING_F_EVENT_IDX was negotiated.
    pub event_idx: bool,
}

/// Why a queue cannot go on; it must be set up again.
#[derive(Debug, thiserror::Error)]
#[error("the guest broke its virtqueue: {0}")]
pub struct RingError(#[from] virtio_queue::Error);

/// A started queue.
#[derive(Debug)]
pub struct Ring {
    queue: Queue,
    call: Option<File>,
}

/// A descriptor chain, copied out of the guest's memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Chain {
    head: u16,
    /// The readable part, at most as many bytes as [`Ring::pop`] was allowed to read.
    pub request: Vec<u8>,
    room: Vec<(GuestAddress, usize)>,
}

/// What [`Ring::pop`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Popped {
    /// A chain to answer.
    Chain(Chain),
    /// A chain that could not be read whole; it has been given back, unanswered.
    Malformed(&'static str),
}

impl Chain {
    /// A request with no room for an answer.
    #[cfg(test)]
    pub fn of(request: Vec<u8>) -> Self {
        Chain { head: 0, request, room: Vec::new() }
    }

    /// Bytes that an answer may have.
    pub fn room_bytes(&self) -> usize {
        self.room.iter().map(|(_, len)| len).sum()
    }
}

impl Ring {
    /// Starts a queue, if it lies inside the guest's memory.
    pub fn start(place: &RingPlace, call: Option<File>, mem: &Mapped) -> Result<Self, RingError> {
        let mut queue = Queue::new(place.size)?;
        queue.try_set_size(place.size)?;
        queue.try_set_desc_table_address(GuestAddress(place.desc.0))?;
        queue.try_set_avail_ring_address(GuestAddress(place.avail.0))?;
        queue.try_set_used_ring_address(GuestAddress(place.used.0))?;
        queue.set_event_idx(place.event_idx);
        queue.set_next_avail(place.base);
        queue.set_ready(true);
        if !queue.is_valid(mem) {
            return Err(virtio_queue::Error::QueueNotReady.into());
        }
        let used = queue.used_idx(mem, std::sync::atomic::Ordering::Acquire)?;
        queue.set_next_used(used.0);
        Ok(Ring { queue, call })
    }

    /// Replaces the descriptor through which the guest is interrupted.
    pub fn set_call(&mut self, call: Option<File>) {
        self.call = call;
    }

    /// Next available index to take.
    pub fn base(&self) -> u16 {
        self.queue.next_avail()
    }

    /// The next chain, with at most `max_request` readable bytes; `None` when there is none, and
    /// then the guest kicks for the next one.
    pub fn pop(&mut self, mem: &Mapped, max_request: usize) -> Result<Option<Popped>, RingError> {
        loop {
            if let Some(chain) = self.queue.iter(mem)?.next() {
                return self.read(chain, mem, max_request).map(Some);
            }
            if !self.queue.enable_notification(mem)? {
                return Ok(None);
            }
        }
    }

    fn read(
        &mut self,
        mut descriptors: DescriptorChain<&Mapped>,
        mem: &Mapped,
        max_request: usize,
    ) -> Result<Popped, RingError> {
        let mut chain = Chain { head: descriptors.head_index(), request: Vec::new(), room: Vec::new() };
        for _ in 0..MAX_DESCRIPTORS {
            let Some(d) = descriptors.next() else { return Ok(Popped::Chain(chain)) };
            let len = d.len() as usize;
            if d.is_write_only() {
                chain.room.push((d.addr(), len));
                continue;
            }
            if !chain.room.is_empty() {
                return self.reject(chain, mem, "a readable descriptor follows a writable one");
            }
            let at = chain.request.len();
            if len > max_request - at {
                return self.reject(chain, mem, "the request is longer than any command");
            }
            chain.request.resize(at + len, 0);
            if mem.read_slice(&mut chain.request[at..], d.addr()).is_err() {
                return self.reject(chain, mem, "the request lies outside the guest's memory");
            }
        }
        self.reject(chain, mem, "the chain has too many descriptors")
    }

    fn reject(&mut self, chain: Chain, mem: &Mapped, why: &'static str) -> Result<Popped, RingError> {
        self.finish(chain.head, 0, mem)?;
        Ok(Popped::Malformed(why))
    }

    /// Answers a chain with as much of `answer` as it has room for, and interrupts the guest if it
    /// wants that. Returns whether the whole answer is in the guest's memory.
    pub fn answer(&mut self, chain: Chain, answer: &[u8], mem: &Mapped) -> Result<bool, RingError> {
        let mut rest = answer;
        for (addr, len) in chain.room {
            let (now, later) = rest.split_at(len.min(rest.len()));
            if mem.write_slice(now, addr).is_err() {
                break;
            }
            rest = later;
        }
        let written = answer.len() - rest.len();
        self.finish(chain.head, written as u32, mem)?;
        Ok(rest.is_empty())
    }

    fn finish(&mut self, head: u16, written: u32, mem: &Mapped) -> Result<(), RingError> {
        self.queue.add_used(mem, head, written)?;
        if self.queue.needs_notification(mem)? {
            self.interrupt();
        }
        Ok(())
    }

    fn interrupt(&self) {
        if let Some(call) = &self.call {
            // The descriptor does not block; a full counter means that an interrupt is pending already.
            let _ = rustix::io::write(call, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use virtio_queue::desc::{RawDescriptor, split::Descriptor};
    use virtio_queue::mock::MockSplitQueue;

    use super::*;

    const NEXT: u16 = 1;
    const WRITE: u16 = 2;

    fn memory() -> Mapped {
        Mapped::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap()
    }

    /// Address, length, flags, next.
    type Parts = (u64, u32, u16, u16);

    /// A ring of 16 with one chain of `descriptors` made available.
    fn ring(mem: &Mapped, descriptors: &[Parts]) -> Ring {
        let mock = MockSplitQueue::new(mem, 16);
        for (i, &(addr, len, flags, next)) in descriptors.iter().enumerate() {
            let d = RawDescriptor::from(Descriptor::new(addr, len, flags, next));
            mock.desc_table().store(i as u16, d).unwrap();
        }
        mock.avail().ring().ref_at(0).unwrap().store(0);
        mock.avail().idx().store(1);
        Ring::start(&place(&mock), None, mem).unwrap()
    }

    fn place(mock: &MockSplitQueue<'_, Mapped>) -> RingPlace {
        RingPlace {
            size: 16,
            desc: Gpa(mock.desc_table_addr().0),
            avail: Gpa(mock.avail_addr().0),
            used: Gpa(mock.used_addr().0),
            base: 0,
            event_idx: false,
        }
    }

    #[test]
    fn a_chain_is_copied_out_and_answered_once() {
        let mem = memory();
        mem.write_slice(b"request", GuestAddress(0x8000)).unwrap();
        let mut ring = ring(
            &mem,
            &[
                (0x8000, 4, NEXT, 1),
                (0x8004, 3, NEXT, 2),
                (0x9000, 2, NEXT | WRITE, 3),
                (0x9100, 8, WRITE, 0),
            ],
        );
        let Some(Popped::Chain(chain)) = ring.pop(&mem, 64).unwrap() else { panic!("a chain") };
        assert_eq!(chain.request, b"request");
        assert_eq!(chain.room_bytes(), 10);
        assert_eq!(ring.pop(&mem, 64).unwrap(), None);
        assert!(ring.answer(chain, b"answer", &mem).unwrap());
        let (mut a, mut b) = ([0; 2], [0; 4]);
        mem.read_slice(&mut a, GuestAddress(0x9000)).unwrap();
        mem.read_slice(&mut b, GuestAddress(0x9100)).unwrap();
        assert_eq!((&a, &b), (b"an", b"swer"));
        assert_eq!(ring.base(), 1);
    }

    #[test]
    fn hostile_chains_are_given_back_unanswered() {
        let cases: [(&str, &[Parts]); 5] = [
            ("longer than any", &[(0x8000, 65, 0, 0)]),
            ("longer than any", &[(0x8000, u32::MAX, 0, 0)]),
            ("outside", &[(0xffff_0000, 8, 0, 0)]),
            ("follows a writable", &[(0x9000, 8, NEXT | WRITE, 1), (0x8000, 8, 0, 0)]),
            ("too many", &[(0x8000, 0, NEXT, 0)]),
        ];
        for (expected, descriptors) in cases {
            let mem = memory();
            let mut ring = ring(&mem, descriptors);
            match ring.pop(&mem, 64).unwrap() {
                Some(Popped::Malformed(why)) => assert!(why.contains(expected), "{why}"),
                other => panic!("{expected}: {other:?}"),
            }
            assert_eq!(ring.pop(&mem, 64).unwrap(), None);
        }
    }

    #[test]
    fn an_answer_without_room_is_not_whole() {
        let mem = memory();
        let mut ring = ring(&mem, &[(0x8000, 8, NEXT, 1), (0xffff_0000, 8, WRITE, 0)]);
        let Some(Popped::Chain(chain)) = ring.pop(&mem, 64).unwrap() else { panic!("a chain") };
        assert!(!ring.answer(chain, b"answer", &mem).unwrap());
    }

    #[test]
    fn an_available_index_too_far_ahead_breaks_the_queue() {
        let mem = memory();
        let mock = MockSplitQueue::new(&mem, 16);
        mock.avail().idx().store(17);
        let mut ring = Ring::start(&place(&mock), None, &mem).unwrap();
        ring.pop(&mem, 64).unwrap_err();
    }

    #[test]
    fn a_queue_outside_memory_does_not_start() {
        let mem = memory();
        let mock = MockSplitQueue::new(&mem, 16);
        let outside = RingPlace { used: Gpa(0xfff0), ..place(&mock) };
        Ring::start(&outside, None, &mem).unwrap_err();
        let unaligned = RingPlace { desc: Gpa(8), ..place(&mock) };
        Ring::start(&unaligned, None, &mem).unwrap_err();
        let odd = RingPlace { size: 15, ..place(&mock) };
        Ring::start(&odd, None, &mem).unwrap_err();
    }
}
