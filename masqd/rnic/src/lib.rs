//! The software RNIC: guest rings, scheduling, RoCEv2 transport and UDP.
//!
//! ```text
//!   masqd ── commands ──► Rnic ──► Engine (a thread; one or several) ──► UDP 4791
//!                                   │  guests: memory, keys, completion queues, doorbells, rings
//!                                   │  queue pairs: transport (RC, sans-IO) | local (memory to memory) | datagram
//!   guest ◄── rings in its memory ──┘
//! ```
//!
//! [`Rnic`] is the handle; [`Engine`] is what runs, and can be driven without a thread.
//!
//! # What it needs of its host
//!
//! - Guest memory in memfds that are sealed against shrinking (QEMU: `memory-backend-memfd,share=on,seal=on`), also of huge
//!   pages (`hugetlb=on`). A page that cannot be had costs its guest the device, and nobody else anything.
//! - Large socket buffers: CAP_NET_ADMIN, or `net.core.rmem_max` and `wmem_max` of some MiB. With
//!   the default of 208 KiB a burst of trains is lost in the receiving socket and sent again.
//! - UDP port 4791 of each underlay address; source ports 0xc000 to 0xffff, else connections share source port 4791.
//!
//! # What a peer can rely on
//!
//! - A packet is taken only from the address that its queue pair is connected to, with a right ICRC. Over IPv4, packets that are not
//!   ours have an Identification that a socket does not show, which leaves 15 bits of the check: see `udp`.
//! - A datagram is received only from a peer that masqd has named, from one of its addresses and with one of its numbers, and if the rules
//!   allow it.
//! - Of several queue pairs that are connected to the same remote queue pair from the same address, only the oldest that is alive sends.
//! - Between two queue pairs of one RNIC nothing crosses from one network (VNI) to another, and both ends must
//!   be connected to each other.

mod assigned;
mod balance;
mod bucket;
mod config;
mod cqs;
mod datagram;
mod engine;
mod group;
mod keys;
mod lent;
pub mod limits;
mod local;
mod memory;
mod peers;
mod price;
mod qp;
mod ring;
mod rnic;
mod shaping;
mod srqs;
#[cfg(test)]
mod testing;
pub mod transport;
mod udp;
mod virtqueue;
mod vnic;

pub use config::RnicConfig;
pub use engine::{Engine, Waker};
pub use memory::{Guard, GuardError, page_bytes};
pub use rnic::{Rnic, THREAD_NAME};
pub use udp::{Arrival, Datagrams, FaultInjection, Network, SharedAddresses, Train, UdpSockets};
