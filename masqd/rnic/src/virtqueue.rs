//! The device side of the queues on which completion events go to the guest.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use masq_driver::{DriverError, Gpa, Virtqueue};
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestAddress;
use vrdma_abi::event::CompEvent;
use zerocopy::IntoBytes;

use crate::limits;
use crate::memory::GuestMemory;

/// A queue of writable buffers, each of which takes one [`CompEvent`].
#[derive(Debug)]
pub struct EventQueue {
    queue: Queue,
    call: Option<File>,
    /// Buffers were used since the guest was last interrupted.
    used: bool,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// The guest has it.
    Delivered,
    /// The guest has no buffer posted; it kicks the queue when it has.
    NoBuffer,
}

impl EventQueue {
    /// Starts a queue, which goes on where its used ring stands.
    pub fn new(attr: &Virtqueue, call: Option<OwnedFd>, memory: &GuestMemory) -> Result<Self, DriverError> {
        let invalid = |e: virtio_queue::Error| DriverError::Invalid(format!("virtqueue {}: {e}", attr.index));
        let mut queue = Queue::new(limits::MAX_VIRTQUEUE_SIZE).map_err(invalid)?;
        queue.try_set_size(attr.size).map_err(invalid)?;
        queue.try_set_desc_table_address(GuestAddress(attr.desc.0)).map_err(invalid)?;
        queue.try_set_avail_ring_address(GuestAddress(attr.avail.0)).map_err(invalid)?;
        queue.try_set_used_ring_address(GuestAddress(attr.used.0)).map_err(invalid)?;
        queue.set_event_idx(attr.event_idx);
        queue.set_next_avail(attr.base);
        queue.set_ready(true);
        if !queue.is_valid(memory.mmap()) {
            return Err(DriverError::BadAddress(attr.desc.0));
        }
        let used = queue.used_idx(memory.mmap(), Ordering::Acquire).map_err(invalid)?;
        queue.set_next_used(used.0);
        Ok(Self { queue, call: call.map(File::from), used: false })
    }

    /// Next available index to take.
    pub fn base(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Changes the call descriptor.
    pub fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call.map(File::from);
        // An interrupt that went to the old descriptor may have been lost.
        self.used = true;
    }

    /// Puts an event into the next buffer. Buffers that cannot take one are returned empty.
    pub fn push(&mut self, memory: &GuestMemory, event: &CompEvent) -> Push {
        // A hostile guest can post no more useless buffers than the ring holds.
        for _ in 0..self.queue.size() {
            let Some(mut chain) = self.queue.pop_descriptor_chain(memory.mmap()) else {
                match self.queue.enable_notification(memory.mmap()) {
                    Ok(true) => continue,
                    _ => return Push::NoBuffer,
                }
            };
            let head = chain.head_index();
            // The first descriptor only: a chain can name as many as the ring has, and there are as many chains.
            let buffer = chain
                .next()
                .filter(|d| d.is_write_only() && d.len() as usize >= CompEvent::SIZE)
                .and_then(|d| memory.span(Gpa(d.addr().0), CompEvent::SIZE));
            let written = buffer.map_or(0, |b| b.write(event.as_bytes()) as u32);
            if self.queue.add_used(memory.mmap(), head, written).is_err() {
                return Push::NoBuffer;
            }
            self.used = true;
            if written > 0 {
                return Push::Delivered;
            }
        }
        Push::NoBuffer
    }

    /// Interrupts the guest if buffers were used and it wants to know.
    pub fn notify(&mut self, memory: &GuestMemory) {
        if !std::mem::take(&mut self.used) {
            return;
        }
        // An error here means that the ring's memory has gone; then nobody waits either.
        if self.queue.needs_notification(memory.mmap()).unwrap_or(false)
            && let Some(call) = &mut self.call
        {
            // The only failure is a counter at its limit: then the guest has not taken an earlier interrupt.
            let _ = call.write(&1u64.to_ne_bytes());
        }
    }
}
