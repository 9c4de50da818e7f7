//! The API on masqd's Unix socket: JSON over HTTP.
//!
//! | request | what it does |
//! |---|---|
//! | `PUT /v1/desired[?dry_run=true]` | replaces the desired state by the body, TOML or JSON by its `Content-Type` |
//! | `GET /v1/desired` | the desired state, in the form of the declarative file |
//! | `GET /v1/endpoints` | the vNICs that hosts have realised |
//! | `GET /v1/connections` | the connections of this host's guests |
//! | `GET /v1/status` | how this host and its vNICs are |
//! | `GET /v1/counters` | what the RNIC has counted: name and value |
//! | `GET /healthz` | 200 while masqd runs |
//! | `GET /readyz` | 200 when masqd can do all its work, else 503 with the reasons |

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use masq_control::Directory;
use masq_control::store::Store;
use masq_driver::{Command, Reply};
use masq_model::api::{Applied, ConnectionStatus, ErrorReply, Status};
use masq_model::{DesiredState, Endpoint, Kind, Object, PREFIX, Problems};
use serde::Deserialize;
use serde_json::Value;
use tokio::net::UnixListener;
use tracing::info;

use crate::apply::{ApplyError, apply};
use crate::health::Health;
use crate::host::Host;
use crate::supervisor::{Devices, link_status};

/// Longest desired state.
const MAX_BODY_BYTES: usize = 64 << 20;

/// What requests work with.
pub struct Api {
    /// The host.
    pub host: Arc<Host>,
    /// The store.
    pub store: Arc<dyn Store>,
    /// What people call the store.
    pub store_name: String,
    /// Problems.
    pub health: Arc<Health>,
    /// The devices.
    pub devices: Arc<Devices>,
    /// Where sockets are made.
    pub run_dir: PathBuf,
}

/// Serves requests for ever.
pub async fn serve(api: Arc<Api>, listener: UnixListener) -> std::io::Result<()> {
    let router = Router::new()
        .route("/v1/desired", get(desired).put(put_desired))
        .route("/v1/endpoints", get(endpoints))
        .route("/v1/connections", get(connections))
        .route("/v1/status", get(status))
        .route("/v1/counters", get(counters))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .fallback(|| async { Refused(StatusCode::NOT_FOUND, error("there is no such resource")) })
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(api);
    axum::serve(listener, router).await
}

struct Refused(StatusCode, ErrorReply);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

fn error(message: impl ToString) -> ErrorReply {
    ErrorReply { error: message.to_string(), problems: Vec::new() }
}

#[derive(Deserialize)]
struct PutOptions {
    #[serde(default)]
    dry_run: bool,
}

async fn put_desired(
    State(api): State<Arc<Api>>,
    Query(options): Query<PutOptions>,
    headers: HeaderMap,
    body: String,
) -> Result<Json<Applied>, Refused> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let parsed = match content_type.split(';').next().unwrap_or_default().trim() {
        "application/json" => DesiredState::from_json(&body),
        "application/toml" | "text/plain" => DesiredState::from_toml(&body),
        other => {
            let message = format!("content type {other:?} is neither application/toml nor application/json");
            return Err(Refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, error(message)));
        }
    };
    let desired =
        parsed.map_err(|problems| Refused(StatusCode::UNPROCESSABLE_ENTITY, problem_reply(&problems)))?;
    match apply(&*api.store, &desired, options.dry_run).await {
        Ok(applied) => {
            if !options.dry_run && !applied.is_nothing() {
                info!(
                    created = applied.created.len(),
                    changed = applied.changed.len(),
                    deleted = applied.deleted.len(),
                    "desired state applied"
                );
            }
            Ok(Json(applied))
        }
        Err(e @ ApplyError::Contended) => Err(Refused(StatusCode::CONFLICT, error(e))),
        Err(e @ ApplyError::Store(_)) => Err(Refused(StatusCode::SERVICE_UNAVAILABLE, error(e))),
    }
}

/// The problems of a desired state, each for itself.
pub fn problem_reply(problems: &Problems) -> ErrorReply {
    match problems {
        Problems::Syntax(_) => error(format!("the desired state cannot be read: {problems}")),
        Problems::Content(problems) => ErrorReply {
            error: "the desired state is not consistent:".into(),
            problems: problems.iter().map(ToString::to_string).collect(),
        },
    }
}

async fn desired(State(api): State<Arc<Api>>) -> Result<Json<BTreeMap<&'static str, Vec<Value>>>, Refused> {
    // From the store itself: whoever has just written expects to read it.
    let snapshot =
        api.store.list(PREFIX).await.map_err(|e| Refused(StatusCode::SERVICE_UNAVAILABLE, error(e)))?;
    let directory = Directory::from_snapshot(&snapshot).0;
    let mut desired: BTreeMap<_, Vec<Value>> = Kind::desired().map(|k| (k.name(), Vec::new())).collect();
    for (key, object) in directory.objects() {
        if let Some(list) = desired.get_mut(key.kind().name()) {
            list.push(object.to_value());
        }
    }
    Ok(Json(desired))
}

async fn endpoints(State(api): State<Arc<Api>>) -> Json<Vec<Endpoint>> {
    let directory = api.host.directory.read();
    let endpoint = |object: &Object| match object {
        Object::Endpoint(e) => Some(e.clone()),
        _ => None,
    };
    Json(directory.objects().filter_map(|(_, o)| endpoint(o)).collect())
}

async fn connections(State(api): State<Arc<Api>>) -> Json<Vec<ConnectionStatus>> {
    let reports = api.devices.report(&api.host, &api.health, &api.run_dir).await;
    let mut all: Vec<_> = reports.into_iter().flat_map(|(_, report)| report.connections).collect();
    all.sort_by(|a, b| (&a.vnic, a.local_qpn).cmp(&(&b.vnic, b.local_qpn)));
    Json(all)
}

async fn status(State(api): State<Arc<Api>>) -> Json<Status> {
    let reports = api.devices.report(&api.host, &api.health, &api.run_dir).await;
    let directory = api.host.directory.read();
    let underlay = directory.host(&api.host.name).map(|h| h.underlay.clone());
    let problems = api.health.problems();
    Json(Status {
        host: api.host.name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        ready: problems.is_empty(),
        problems,
        store: api.store_name.clone(),
        revision: directory.revision(),
        link: underlay.as_ref().map(|_| link_status(api.host.link())),
        underlay: underlay.unwrap_or_default(),
        vnics: reports.into_iter().map(|(status, _)| status).collect(),
    })
}

async fn counters(State(api): State<Arc<Api>>) -> Result<Json<BTreeMap<String, u64>>, Refused> {
    let counted = tokio::task::spawn_blocking(move || api.host.rnic.execute(Command::Counters)).await;
    let failed = |e: String| Refused(StatusCode::INTERNAL_SERVER_ERROR, error(e));
    match counted.map_err(|e| failed(e.to_string()))?.map_err(|e| failed(e.to_string()))? {
        Reply::Counters(all) => Ok(Json(all.into_iter().map(|(name, n)| (name.to_owned(), n)).collect())),
        _ => Err(failed("the RNIC does not tell what it has counted".into())),
    }
}

async fn readyz(State(api): State<Arc<Api>>) -> Result<&'static str, Refused> {
    let problems = api.health.problems();
    if problems.is_empty() {
        return Ok("ready\n");
    }
    Err(Refused(StatusCode::SERVICE_UNAVAILABLE, ErrorReply { error: "not ready:".into(), problems }))
}
