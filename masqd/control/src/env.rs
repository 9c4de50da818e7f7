use std::time::Duration;

use masq_driver::RnicDriver;

use crate::Directory;

/// What a session works with while it handles one request.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// The guest's memory, from which page tables are copied.
    pub memory: &'a dyn GuestMemory,
    /// The RNIC that carries out what is allowed.
    pub rnic: &'a dyn RnicDriver,
    /// What is known of desired and realised state.
    pub directory: &'a Directory,
    /// The present moment, on a clock that does not run backwards.
    pub now: Duration,
}

/// Reads a guest's memory, which changes under the reader's hands: every byte is read once.
pub trait GuestMemory {
    /// Fills `buf` from guest-physical address `gpa`, or fails when any byte lies outside the guest's memory.
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError>;

    /// Whether all of `gpa .. gpa + len` is the guest's memory. Only for early refusals: what can be accessed is found
    /// again at each access. By default everything is.
    fn holds(&self, _gpa: u64, _len: u64) -> bool {
        true
    }
}

/// Guest memory does not hold all of an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("guest-physical address {0:#x} lies outside the guest's memory")]
pub struct MemoryError(pub u64);
