//! masqd: vhost-user devices, stores, the API and the underlay; everything of the host side that does IO.
//!
//! [`Masqd::start`] brings a whole masqd up inside a process; the binary adds the command line, the log and
//! signals.
//!
//! | module | does |
//! |---|---|
//! | [`counts`] | counts what guests do |
//! | [`device`] | one thread for each vNIC: vhost-user, control and event queues, the session |
//! | [`inbox`] | what such a thread is told, and asked |
//! | [`supervisor`] | makes the devices those that the desired state wants, as the underlay allows |
//! | [`sync`] | keeps the directory up to date with the store |
//! | [`realise`] | publishes this host's endpoints |
//! | [`claim`] | lets one process alone publish them |
//! | [`writer`] | writes desired state |
//! | [`store`] | the embedded store and etcd |
//! | [`segmentation`] | chooses how the RNIC sends and receives datagrams |
//! | [`underlay`] | addresses and links, by netlink |
//! | [`api`] | HTTP on a Unix socket, and with mutual TLS on TCP |

pub mod api;
mod capture;
pub mod claim;
pub mod cli;
pub mod counts;
pub mod device;
pub mod health;
pub mod host;
pub mod inbox;
pub mod log;
mod masqd;
pub mod realise;
pub mod router;
pub mod segmentation;
pub mod store;
pub mod supervisor;
pub mod sync;
pub mod underlay;
pub mod writer;

pub use masqd::{Config, Masqd, StartError};
