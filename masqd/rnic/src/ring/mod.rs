//! The RNIC's side of the rings in guest memory: `vrdma_abi::ring` states the formats and the memory order.
//!
//! Nothing in a ring is believed: an entry is copied once and the copy is judged, indexes are compared with what
//! can be, and rings are reached through the memory table each time, page by page.

mod cq;
mod pages;
mod work;

pub use cq::{Announce, Cq};
pub use work::{After, ChunkRing, Entry, RecvRing, RingBroken, SendRing};
