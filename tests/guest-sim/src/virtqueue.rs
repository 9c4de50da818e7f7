//! The driver's side of a split virtqueue (virtio 1.3 §2.7), as much of it as a test needs.
#![allow(unsafe_code)] // Reads and writes rings that the device shares.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering, fence};
use std::time::Duration;

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::memory::{GuestRam, Mapping, PAGE};

const DESC_NEXT: u16 = 1;
const DESC_WRITE: u16 = 2;

/// A virtqueue with one contiguous buffer area per head.
pub struct DriverQueue {
    /// Number of descriptors.
    pub size: u16,
    /// The guest rings this to tell the device of new buffers.
    pub kick: EventFd,
    /// The device signals this when it used buffers.
    pub call: EventFd,
    rings: Mapping,
    avail_next: u16,
    used_next: u16,
    free: Vec<u16>,
}

/// One piece of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Guest-physical address.
    pub gpa: u64,
    /// Bytes.
    pub len: u32,
    /// Whether the device writes to it.
    pub writable: bool,
}

const fn avail_offset(size: u16) -> usize {
    16 * size as usize
}

const fn used_offset(size: u16) -> usize {
    (avail_offset(size) + 6 + 2 * size as usize).next_multiple_of(PAGE)
}

impl DriverQueue {
    /// A queue of `size` descriptors, a power of two.
    pub fn new(ram: &GuestRam, size: u16) -> io::Result<Self> {
        let bytes = used_offset(size) + 6 + 8 * size as usize;
        // Rings must not straddle the two regions; one page of slack is found by asking again.
        let mut rings = ram.alloc(bytes.div_ceil(PAGE));
        while rings.gpas().windows(2).any(|w| w[1] != w[0] + PAGE as u64) {
            rings = ram.alloc(bytes.div_ceil(PAGE));
        }
        Ok(DriverQueue {
            size,
            kick: EventFd::new(EFD_NONBLOCK)?,
            call: EventFd::new(EFD_NONBLOCK)?,
            rings,
            avail_next: 0,
            used_next: 0,
            free: (0..size).rev().collect(),
        })
    }

    /// Guest-physical addresses of descriptor table, available ring and used ring.
    pub fn addresses(&self) -> (u64, u64, u64) {
        (self.rings.gpa(0), self.rings.gpa(avail_offset(self.size)), self.rings.gpa(used_offset(self.size)))
    }

    /// Makes a chain available and kicks. Returns its head, or `None` when descriptors ran out.
    pub fn add(&mut self, chain: &[Buffer]) -> io::Result<Option<u16>> {
        if self.free.len() < chain.len() {
            return Ok(None);
        }
        let ids: Vec<u16> = chain.iter().map(|_| self.free.pop().expect("counted above")).collect();
        for (k, (buffer, &id)) in chain.iter().zip(&ids).enumerate() {
            let next = ids.get(k + 1).copied();
            let flags = if buffer.writable { DESC_WRITE } else { 0 } | next.map_or(0, |_| DESC_NEXT);
            let mut d = [0; 16];
            d[..8].copy_from_slice(&buffer.gpa.to_le_bytes());
            d[8..12].copy_from_slice(&buffer.len.to_le_bytes());
            d[12..14].copy_from_slice(&flags.to_le_bytes());
            d[14..].copy_from_slice(&next.unwrap_or(0).to_le_bytes());
            self.rings.write(16 * id as usize, &d);
        }
        self.publish(ids[0])?;
        Ok(Some(ids[0]))
    }

    /// Puts `head` into the available ring and kicks, whatever the descriptors hold.
    pub fn publish(&mut self, head: u16) -> io::Result<()> {
        let avail = avail_offset(self.size);
        let slot = (self.avail_next % self.size) as usize;
        self.rings.write(avail + 4 + 2 * slot, &head.to_le_bytes());
        self.avail_next = self.avail_next.wrapping_add(1);
        self.index(avail + 2).store(self.avail_next, Ordering::Release);
        fence(Ordering::SeqCst);
        self.kick.write(1)
    }

    /// The next used chain: its head and how many bytes the device wrote.
    pub fn pop(&mut self) -> Option<(u16, u32)> {
        let used = used_offset(self.size);
        if self.index(used + 2).load(Ordering::Acquire) == self.used_next {
            return None;
        }
        let slot = (self.used_next % self.size) as usize;
        let e = self.rings.read(used + 4 + 8 * slot, 8);
        self.used_next = self.used_next.wrapping_add(1);
        // Keep the event index at the newest, so that every use interrupts.
        let avail = avail_offset(self.size);
        self.index(avail + 4 + 2 * self.size as usize).store(self.used_next, Ordering::Release);
        fence(Ordering::SeqCst);
        let head = u32::from_le_bytes(e[..4].try_into().expect("4 bytes")) as u16;
        let written = u32::from_le_bytes(e[4..].try_into().expect("4 bytes"));
        self.release(head);
        Some((head, written))
    }

    /// Waits for the device to use something; true when there may be something to pop.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut p = libc::pollfd {
            fd: std::os::fd::AsRawFd::as_raw_fd(&self.call),
            events: libc::POLLIN,
            revents: 0,
        };
        let ms = timeout.as_millis().min(i32::MAX as u128) as i32;
        // SAFETY: one valid pollfd.
        let n = unsafe { libc::poll(&mut p, 1, ms) };
        if n > 0 {
            let _ = self.call.read();
        }
        n > 0
    }

    /// Raw write into the descriptor table, for hostile tests.
    pub fn poke(&self, offset: usize, data: &[u8]) {
        self.rings.write(offset, data);
    }

    fn release(&mut self, head: u16) {
        let mut id = head;
        loop {
            let d = self.rings.read(16 * id as usize, 16);
            let flags = u16::from_le_bytes([d[12], d[13]]);
            self.free.push(id);
            if flags & DESC_NEXT == 0 {
                return;
            }
            id = u16::from_le_bytes([d[14], d[15]]);
        }
    }

    fn index(&self, offset: usize) -> &AtomicU16 {
        debug_assert!(offset.is_multiple_of(2) && offset + 2 <= self.rings.len());
        // SAFETY: aligned and inside the mapping, which lives as long as self; both sides use it atomically.
        unsafe { AtomicU16::from_ptr(self.rings.as_ptr().add(offset).cast()) }
    }
}
