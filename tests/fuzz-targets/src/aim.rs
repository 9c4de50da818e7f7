//! What a hostile guest's work requests name, and how they get into its rings.

use vrdma_abi::ring::ring_pages;
use vrdma_rings::SharedMemory;

use crate::guests::{Guest, PAGE};
use crate::input::Input;

/// Memory that requests are aimed at.
pub struct Aim {
    /// Keys of regions and windows, the guest's own and others.
    pub keys: Vec<u32>,
    /// Where regions begin.
    pub places: Vec<u64>,
}

impl Aim {
    /// An address in or around one of the places.
    pub fn address(&self, input: &mut Input<'_>) -> u64 {
        let place = self.places[input.below(self.places.len())];
        input.address(place, 3 * PAGE)
    }

    /// A scatter/gather entry.
    pub fn sge(&self, input: &mut Input<'_>) -> Vec<u8> {
        let addr = self.address(input);
        let length = input.length(3 * PAGE as u32);
        [&addr.to_le_bytes()[..], &length.to_le_bytes(), &input.key(&self.keys).to_le_bytes()].concat()
    }
}

/// Writes an entry at the producer's place in a ring of `entries`, and publishes it.
pub fn publish(guest: &Guest, gpa: u64, entries: u32, shift: u8, entry: &[u8]) {
    let stride = 1 << shift;
    let ring = guest.mapping(gpa, ring_pages(entries, shift));
    let producer = ring.load_acquire(0);
    let at = stride * (1 + (producer % entries) as usize);
    ring.write(at, &entry[..entry.len().min(stride)]);
    ring.store_release(0, producer.wrapping_add(1));
}
