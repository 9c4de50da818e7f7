//! A small verbs-like API over a [`Device`](crate::Device): contexts, regions, queues, queue pairs.
//!
//! It does on one side of the control queue what `vrdma.ko` does, and on the rings what the provider does, with
//! the provider's own ring code.

mod context;
mod cq;
mod guest;
mod pd;
mod qp;
pub mod wr;

pub use context::{Context, Seen};
pub use cq::Cq;
pub use guest::Guest;
pub use pd::{ACCESS_ALL, Mr, Pd};
pub use qp::{ConnectAttr, Qp, QpCaps};

use crate::memory::Mapping;

type SharedRing = vrdma_rings::Mapping;

/// The mapping as shared memory for rings. The rings are dropped before the mapping that stands beside them.
#[allow(unsafe_code)] // describes a mapping to the ring code, which cannot know how long it lives
fn shared(m: &Mapping) -> SharedRing {
    let start = std::ptr::NonNull::new(m.as_ptr()).expect("mappings are not null");
    // SAFETY: page-aligned, mapped for as long as `m`, which every user keeps beside the ring; no references to it are made.
    unsafe { SharedRing::new(start, m.len()) }
}
