//! Work requests that are under way.

use alloc::vec::Vec;

use super::control::Control;
use crate::Nanos;

/// What a work request carries.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// A part of a message.
    Data { message: u64, offset: u32, bytes: u32 },
    /// The end of a SEND.
    Done { message: u64 },
    /// Something else that the peer is told.
    Notice(Control),
    /// A probing flow, behind `ahead` bytes.
    Probe { bytes: u32, ahead: u64 },
}

impl Load {
    /// Bytes that count as in flight.
    pub fn bytes(&self) -> u32 {
        match self {
            Self::Data { bytes, .. } | Self::Probe { bytes, .. } => *bytes,
            Self::Done { .. } | Self::Notice(_) => 0,
        }
    }
}

/// A work request that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub path: usize,
    pub posted: Nanos,
    pub load: Load,
}

/// How often a place has been used is told in so many bits, so that tokens leave one bit to whoever keeps them.
const USES: u32 = u32::MAX >> 1;

/// Work requests by token: a place, and how often it has been used, so that an old token names nothing.
#[derive(Debug, Default)]
pub(super) struct Flights {
    slots: Vec<(u32, Option<Flight>)>,
    free: Vec<u32>,
}

impl Flights {
    pub fn insert(&mut self, flight: Flight) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let (uses, slot) = &mut self.slots[index as usize];
        *uses = (*uses + 1) & USES;
        *slot = Some(flight);
        u64::from(*uses) << 32 | u64::from(index)
    }

    pub fn remove(&mut self, token: u64) -> Option<Flight> {
        let index = token as u32; // the lower half
        let (uses, slot) = self.slots.get_mut(index as usize)?;
        let flight = if u64::from(*uses) == token >> 32 { slot.take() } else { None }?;
        self.free.push(index);
        Some(flight)
    }

    /// Takes out one of the work requests of a path.
    pub fn remove_of(&mut self, path: usize) -> Option<Flight> {
        let is_of = |slot: &(u32, Option<Flight>)| slot.1.as_ref().is_some_and(|flight| flight.path == path);
        let index = self.slots.iter().position(is_of)?;
        self.free.push(index as u32);
        self.slots[index].1.take()
    }

    /// Whether the peer is being told something.
    pub fn has_notices(&self) -> bool {
        self.slots.iter().any(|(_, slot)| matches!(slot, Some(Flight { load: Load::Notice(_), .. })))
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(|(_, slot)| slot.is_none())
    }
}
