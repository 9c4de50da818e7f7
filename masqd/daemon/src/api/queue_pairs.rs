//! Queue pairs of this host's guests: how they are, and what they exchange.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use masq_driver::DriverError;
use masq_model::api::QueuePair;
use serde::Deserialize;
use tracing::info;

use super::Api;
use super::audit::Who;
use super::reply::Refused;
use crate::capture::{Capture, Target, Wanted};
use crate::inbox::NamedQueuePair;

/// The type of a capture.
pub const CAPTURE_TYPE: &str = "application/x-pcapng";
/// Captures at the same time.
pub const MAX_CAPTURES: usize = 8;
/// The most packets that can be asked for.
pub const MAX_COUNT: u64 = 1_000_000_000;
/// The longest capture.
pub const MAX_SECONDS: u32 = 3600;
/// How long a capture is when nothing is said.
pub const DEFAULT_SECONDS: u32 = 60;
/// The fewest bytes of a packet that a capture can be told to keep: all headers.
pub const MIN_SNAPLEN: u32 = 128;
/// The most, and what is kept when nothing is said.
pub const MAX_SNAPLEN: u32 = 65_535;

/// Which queue pairs to tell.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    vnic: Option<String>,
    vpc: Option<String>,
}

/// The queue pairs of this host's guests.
pub async fn list(
    State(api): State<Arc<Api>>,
    filter: Result<Query<Filter>, QueryRejection>,
) -> Result<Json<Vec<QueuePair>>, Refused> {
    let Filter { vnic, vpc } = filter?.0;
    let wanted = |q: &QueuePair| vpc.as_ref().is_none_or(|v| *v == q.vpc);
    let found = api.devices.queue_pairs(vnic.as_deref(), 0..=u32::MAX).await;
    let mut all: Vec<_> = found.into_iter().map(|q| q.status).filter(wanted).collect();
    all.sort_by(|a, b| (&a.vnic, a.qpn).cmp(&(&b.vnic, b.qpn)));
    Ok(Json(all))
}

/// One queue pair.
pub async fn single(
    State(api): State<Arc<Api>>,
    path: Result<Path<(String, u32)>, PathRejection>,
) -> Result<Json<QueuePair>, Refused> {
    let Path((vnic, qpn)) = path?;
    Ok(Json(api.queue_pair(&vnic, qpn).await?.status))
}

/// How much to capture.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureQuery {
    count: Option<u64>,
    seconds: Option<u32>,
    snaplen: Option<u32>,
}

/// The packets of a queue pair, as they come.
pub async fn capture(
    State(api): State<Arc<Api>>,
    Extension(who): Extension<Who>,
    path: Result<Path<(String, u32)>, PathRejection>,
    query: Result<Query<CaptureQuery>, QueryRejection>,
) -> Result<Response, Refused> {
    let Path((vnic, qpn)) = path?;
    let CaptureQuery { count, seconds, snaplen } = query?.0;
    let seconds = within("seconds", seconds.unwrap_or(DEFAULT_SECONDS), 1, MAX_SECONDS)?;
    let snaplen = within("snaplen", snaplen.unwrap_or(MAX_SNAPLEN), MIN_SNAPLEN, MAX_SNAPLEN)?;
    if let Some(count) = count.filter(|n| !(1..=MAX_COUNT).contains(n)) {
        return Err(Refused::bad_request(format_args!("count is {count}, outside 1 to {MAX_COUNT}")));
    }
    let wanted = Wanted { packets: count, duration: Duration::from_secs(seconds.into()), snaplen };
    let found = api.queue_pair(&vnic, qpn).await?;
    let permit = api.captures.clone().try_acquire_owned().map_err(|_| {
        let why = format_args!("{MAX_CAPTURES} captures are going on, and no more are made at once");
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, why)
    })?;
    let target = Target {
        rnic: api.host.rnic.clone(),
        vnic: found.vnic,
        qp: found.handle,
        comment: comment(&found.status),
        name: format!("{vnic}:{qpn:#x}"),
    };
    let started = Capture::start(target, wanted, api.ending.clone(), permit).await;
    let capture = started.map_err(|e| refused(&vnic, qpn, &e))?;
    info!(%who, vnic, qpn = format_args!("{qpn:#x}"), seconds, "a queue pair's packets are captured");
    Ok(([(CONTENT_TYPE, CAPTURE_TYPE)], Body::from_stream(capture.pieces())).into_response())
}

fn within(name: &str, value: u32, least: u32, most: u32) -> Result<u32, Refused> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(Refused::bad_request(format_args!("{name} is {value}, outside {least} to {most}")))
}

fn refused(vnic: &str, qpn: u32, error: &DriverError) -> Refused {
    let status = match error {
        DriverError::Invalid(_) | DriverError::Busy(_) => StatusCode::CONFLICT,
        DriverError::UnknownObject(_) => StatusCode::NOT_FOUND,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Refused::new(status, format_args!("QP {qpn:#x} of vNIC {vnic:?} cannot be captured: {error}"))
}

/// Who talks to whom, in the words of the tenant and of the underlay.
fn comment(q: &QueuePair) -> String {
    let Some(c) = &q.connection else { return format!("vNIC {} QP {:#x}", q.vnic, q.qpn) };
    let underlay = |address: Option<std::net::IpAddr>| address.map_or("-".into(), |a| a.to_string());
    format!(
        "vNIC {} (VPC {}) QP {:#x} at {}, on the underlay {}; peer {} QP {:#x} at {}, on the underlay {}. Received packets have the TTL 64 \
         and no DSCP, which sockets do not tell.",
        q.vnic,
        q.vpc,
        q.qpn,
        c.local,
        underlay(c.local_underlay),
        c.peer.as_deref().unwrap_or("unknown"),
        c.remote_qpn,
        c.remote,
        underlay(c.remote_underlay),
    )
}

impl Api {
    async fn queue_pair(&self, vnic: &str, qpn: u32) -> Result<NamedQueuePair, Refused> {
        let found = self.devices.queue_pairs(Some(vnic), qpn..=qpn).await;
        found.into_iter().next().ok_or_else(|| {
            Refused::not_found(format_args!("vNIC {vnic:?} has no queue pair {qpn:#x} on this host"))
        })
    }
}
