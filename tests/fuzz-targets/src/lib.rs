//! Fuzz targets over every byte that a guest, a network peer or an API client controls.
//!
//! A target is a plain function of bytes that panics when something is wrong. `fuzz/` hands it to libFuzzer; this
//! crate's tests run it over the described inputs in `regressions/` and over seeded random ones.
//!
//! | target | whose bytes | what must hold |
//! |---|---|---|
//! | [`control`] | a guest's control requests, page tables that change while they are read | answers, books that agree, nothing left after reset |
//! | [`front_end`] | a front end's vhost-user messages, with any descriptors, cut anywhere | it is served or sent away; nothing of it stays, and the next one is served |
//! | [`rings`] | a guest's rings, doorbells, and whatever else its memory holds | another vNIC's memory and queue pairs stay as they are |
//! | [`verbs`] | a guest's requests on queue pairs of all types, about windows and registrations, its shared receive queues | the same, and who waits for datagrams gets none from strangers |
//! | [`groups`] | a guest's chunk rings and requests that wait or steer, the packets of a peer with several paths, links that die | the same, and a peer's closed memory stays, and each of its receives completes once, with no more than it holds |
//! | [`packets`] | a peer's packets, at a queue pair in any state | only memory that it may write is written, each request completes once |
//! | [`datagrams`] | a network's datagrams, at an engine | the same through real keys, rings and ICRCs |
//! | [`wire`] | datagrams and captures | parsing judges, and what it accepts it emits again |
//! | [`model`] | the desired state's text, the store's entries | an answer, and what is accepted is consistent |

mod aim;
pub mod control;
pub mod datagrams;
mod engine;
mod forge;
pub mod front_end;
pub mod groups;
mod input;
pub mod model;
pub mod packets;
pub mod rings;
pub mod verbs;
pub mod wire;

/// The session's tests bring a guest and an RNIC that keeps books.
#[path = "../../../masqd/control/tests/common/mod.rs"]
mod session;

/// The RNIC's tests bring guests whose memory is a memfd, and engines with a clock of their own.
#[path = "../../../masqd/rnic/tests/common/mod.rs"]
mod guests;

/// The transport's tests bring a pair of queue pairs over model memory.
#[path = "../../../masqd/rnic/tests/transport_support/mod.rs"]
mod pair;

/// A target: its name, which is also that of its folder in `regressions/`, and what runs it.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 9] = [
    ("control", control::run),
    ("front_end", front_end::run),
    ("rings", rings::run),
    ("verbs", verbs::run),
    ("groups", groups::run),
    ("packets", packets::run),
    ("datagrams", datagrams::run),
    ("wire", wire::run),
    ("model", model::run),
];
