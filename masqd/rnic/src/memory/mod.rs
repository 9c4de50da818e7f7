//! Guest memory: the table of regions, and the only code that touches their bytes.
//!
//! A [`GuestMemory`] is one memory table. Nothing outside this module holds a host pointer: a
//! guest-physical address becomes a [`Span`] just before its use, and a span borrows the table, so that
//! the borrow checker proves that no pointer outlives a change of the table.
//!
//! # Faults
//!
//! A mapped memfd raises SIGBUS when a page behind the mapping cannot be had: when the file was truncated, when
//! the page's memory is broken, or, with huge pages, when their pool is empty. The first cannot happen, because regions
//! must be sealed against shrinking. The others poison the mapping ([`Guard`]): private zeroes take its place, the
//! engine takes the memory away from its guest and reports [`VnicFatal`](masq_driver::Event::VnicFatal), and
//! nobody else notices. What the guest sent meanwhile may hold those zeroes.

mod fault;
mod pinned;
mod span;
mod table;

pub(crate) use fault::poisonings;
pub use fault::{Guard, GuardError};
pub use pinned::Pinned;
pub use span::{Span, copy_spans};
pub use table::GuestMemory;

/// Bytes of a guest page in ring and doorbell page lists.
pub(crate) const PAGE_BYTES: u64 = vrdma_abi::config::PAGE_BYTES as u64;

/// Bytes of which memory in this file consists: those of its huge pages, if it has any. A mapping that ends inside a huge
/// page could not be removed again.
pub fn page_bytes(fd: impl std::os::fd::AsFd) -> std::io::Result<u64> {
    let fs = rustix::fs::fstatfs(fd)?;
    let is_huge = fs.f_type == libc::HUGETLBFS_MAGIC;
    Ok(if is_huge { u64::try_from(fs.f_bsize).unwrap_or(PAGE_BYTES).max(PAGE_BYTES) } else { PAGE_BYTES })
}
