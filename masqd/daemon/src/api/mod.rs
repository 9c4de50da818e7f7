//! The API: JSON over HTTP/1.1, on a Unix socket and, where configured, on TCP with mutual TLS.
//!
//! | module | does |
//! |---|---|
//! | [`server`] | connections: patience, caps, who is at the other end |
//! | [`tls`] | mutual TLS |
//! | `collections` | what resources there are |
//! | `objects` | reads and writes single objects and lists |
//! | `apply` | writes a declarative file, tells the desired state in its form |
//! | `host` | how this host and its vNICs are |
//! | `queue_pairs` | how queue pairs are, and their packets |
//! | `request`, `reply` | what is sent and answered, checked and put into words |
//! | `metrics` | what has been counted, for Prometheus |
//! | [`openapi`] | describes all that |
//!
//! Desired state is read from the store itself, so that whoever has written something reads it, through whatever host.
//! How far it is realised is what this host's directory shows.

mod apply;
mod audit;
mod collections;
mod host;
mod metrics;
mod objects;
pub mod openapi;
mod queue_pairs;
mod reply;
mod request;
pub mod server;
pub mod tls;
mod wait;

use std::path::PathBuf;
use std::sync::Arc;

use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use masq_control::store::Store;
use tokio::sync::{Semaphore, watch};

pub use metrics::Requests;
pub use queue_pairs::MAX_CAPTURES;
pub use reply::problem_reply;

use crate::health::Health;
use crate::host::Host;
use crate::supervisor::Devices;
use crate::writer::Writer;
use collections::COLLECTIONS;

/// What requests work with.
pub struct Api {
    /// The host.
    pub host: Arc<Host>,
    /// The store.
    pub store: Arc<dyn Store>,
    /// Writes to it.
    pub writer: Arc<Writer>,
    /// What people call the store.
    pub store_name: String,
    /// Problems.
    pub health: Arc<Health>,
    /// The devices.
    pub devices: Arc<Devices>,
    /// Where sockets are made.
    pub run_dir: PathBuf,
    /// Changes when the directory does.
    pub changed: watch::Receiver<u64>,
    /// Whether masqd is ending: nobody waits any longer.
    pub ending: watch::Receiver<bool>,
    /// Those who may yet wait until something is realised, of [`server::MAX_WAITERS`].
    pub waiters: Semaphore,
    /// Captures that there may yet be, of [`MAX_CAPTURES`].
    pub captures: Arc<Semaphore>,
    /// How patient it is with clients.
    pub patience: server::Patience,
    /// What has been answered.
    pub requests: Requests,
}

/// Everything that can be asked.
pub fn router(api: Arc<Api>) -> Router {
    let mut router = Router::new();
    for collection in COLLECTIONS {
        router = router
            .route(&format!("/v1/{}", collection.name), objects::list(collection))
            .route(&format!("/v1/{}/{{name}}", collection.name), objects::single(collection));
    }
    router
        .route("/v1/security-groups/{group}/rules", objects::rules_of_group())
        .route("/v1/security-groups/{group}/rules/{name}", objects::rule())
        .route("/v1/security-group-rules", objects::all_rules())
        .route("/v1/apply", post(apply::apply))
        .route("/v1/desired", get(apply::desired))
        .route("/v1/connections", get(host::connections))
        .route("/v1/queue-pairs", get(queue_pairs::list))
        .route("/v1/queue-pairs/{vnic}/{qpn}", get(queue_pairs::single))
        .route("/v1/queue-pairs/{vnic}/{qpn}/capture", get(queue_pairs::capture))
        .route("/v1/explain", get(host::explain))
        .route("/v1/traffic", get(host::traffic))
        .route("/v1/status", get(host::status))
        .route("/v1/counters", get(host::counters))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(|| async { Json(openapi::json()) }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(host::readyz))
        .fallback(|| async { reply::Refused::not_found("there is no such resource") })
        .method_not_allowed_fallback(|| async { reply::Refused::method_not_allowed() })
        .layer(middleware::from_fn_with_state(api.clone(), metrics::count))
        .with_state(api)
}
