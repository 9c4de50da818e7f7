//! One RDMA connection over many paths, on any verbs device with several GIDs.
//!
//! A connection has an ordinary RC queue pair for each path: from GID number `i` of one end to GID number `i` of the other, with one
//! protection domain and one completion queue. Messages of any length go over all of them without copies; which, how much and what when one fails is
//! decided by [`mp_core::endpoint`], whose page says what a program can rely on. The names are those of Virtuoso:
//!
//! | verbs | Rust | C (`include/mp_verbs.h`) |
//! |---|---|---|
//! | rdma_connect | [`MpQp::connect`] | `mp_rdma_connect` |
//! | rdma_disconnect | [`MpQp::disconnect`] | `mp_rdma_disconnect` |
//! | ibv_post_send: RDMA_WRITE, RDMA_READ, SEND | [`MpQp::post_send`] | `mp_ibv_post_send` |
//! | ibv_post_recv | [`MpQp::post_recv`] | `mp_ibv_post_recv` |
//! | ibv_poll_cq | [`MpQp::poll_cq`] | `mp_ibv_poll_cq` |
//! | ibv_get_cq_event | [`MpQp::get_cq_event`] | `mp_ibv_get_cq_event` |
//!
//! Requests have one buffer, that of a memory region. The memory of receives must be registered for remote writes, because SENDs are written there
//! from several paths at once.
//!
//! libibverbs is opened at run time: the crate builds without it.

mod capi;
pub mod connection;
pub mod device;
pub mod fabric;
pub mod hello;
pub mod queue_pairs;
mod session;
pub mod sys;
#[cfg(test)]
mod tests;

pub use mp_core::endpoint::{Completed, Completion, Kind, PathStats, PostError, Receive, Request, Status};
pub use mp_core::split::Place;
pub use session::{Attr, Monitoring, MpQp, Network, Scheduling};
