//! A small verbs-like API over a [`Device`](crate::Device): contexts, regions and windows, queues, queue pairs of all types.
//!
//! It does on one side of the control queue what `vrdma.ko` does, and on the rings what the provider does, with
//! the provider's own ring code.

mod chunks;
mod context;
mod cq;
mod datagram;
mod guest;
mod kernel;
mod modify;
mod mw;
mod pd;
mod post;
mod qp;
mod srq;
pub mod wr;

pub use context::{Context, Seen};
pub use cq::Cq;
pub use datagram::{GRH_BYTES, Grh, To};
pub use guest::Guest;
pub use kernel::{AllMemory, FastReg};
pub use modify::{ConnectAttr, GSI_QKEY};
pub use mw::Mw;
pub use pd::{ACCESS_ALL, Mr, Pd};
pub use qp::{Qp, QpCaps};
pub use srq::{Srq, Xrcd};

use crate::memory::Mapping;

type SharedRing = vrdma_rings::Mapping;

/// The mapping as shared memory for rings. The rings are dropped before the mapping that stands beside them.
#[allow(unsafe_code)] // describes a mapping to the ring code, which cannot know how long it lives
fn shared(m: &Mapping) -> SharedRing {
    let start = std::ptr::NonNull::new(m.as_ptr()).expect("mappings are not null");
    // SAFETY: page-aligned, mapped for as long as `m`, which every user keeps beside the ring; no references to it are made.
    unsafe { SharedRing::new(start, m.len()) }
}
