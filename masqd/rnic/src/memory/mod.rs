//! Guest memory: the table of regions, and the only code that touches their bytes.
//!
//! A [`GuestMemory`] is one memory table. Nothing outside this module holds a host pointer: a
//! guest-physical address becomes a [`Span`] just before its use, and a span borrows the table, so that
//! the borrow checker proves that no pointer outlives a change of the table.
//!
//! # Faults
//!
//! A mapped memfd raises SIGBUS when a page behind the mapping cannot be had: when the file was
//! truncated, or, with huge pages, when their pool is empty. The first cannot happen, because regions
//! must be sealed against shrinking. The second cannot be told from a real fault safely in
//! this process; QEMU's `prealloc=on` rules it out and belongs to every huge page set-up.

mod span;
mod table;

pub use span::{Span, copy_spans};
pub use table::GuestMemory;

/// Bytes of a guest page in ring and doorbell page lists.
pub(crate) const PAGE_BYTES: u64 = vrdma_abi::config::PAGE_BYTES as u64;
