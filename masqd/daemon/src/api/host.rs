//! How this host and its vNICs are.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use masq_control::{AskError, Question};
use masq_driver::{Command, Reply};
use masq_model::api::{ConnectionStatus, Explanation, Status, Traffic, VnicStatus};
use serde::Deserialize;

use super::Api;
use super::reply::Refused;
use crate::inbox::Report;
use crate::supervisor::link_status;

/// Which connections to tell.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionFilter {
    vnic: Option<String>,
    vpc: Option<String>,
}

/// The connections of this host's guests.
pub async fn connections(
    State(api): State<Arc<Api>>,
    filter: Result<Query<ConnectionFilter>, QueryRejection>,
) -> Result<Json<Vec<ConnectionStatus>>, Refused> {
    let ConnectionFilter { vnic, vpc } = filter?.0;
    let wanted = |c: &ConnectionStatus| {
        vnic.as_ref().is_none_or(|v| *v == c.vnic) && vpc.as_ref().is_none_or(|v| *v == c.vpc)
    };
    let reports = api.devices.report(&api.host, &api.health, &api.run_dir).await;
    let mut all: Vec<_> =
        reports.into_iter().flat_map(|(_, report)| report.connections).filter(wanted).collect();
    all.sort_by(|a, b| (&a.vnic, a.local_qpn).cmp(&(&b.vnic, b.local_qpn)));
    Ok(Json(all))
}

/// What to explain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainQuery {
    from: String,
    to: String,
    vpc: Option<String>,
    #[serde(default)]
    transport: ExplainTransport,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ExplainTransport {
    #[default]
    Rc,
    Uc,
    Ud,
    Cm,
}

/// Whether two ends may be connected or exchange datagrams, and why.
pub async fn explain(
    State(api): State<Arc<Api>>,
    query: Result<Query<ExplainQuery>, QueryRejection>,
) -> Result<Json<Explanation>, Refused> {
    let ExplainQuery { from, to, vpc, transport } = query?.0;
    let traffic = match transport {
        ExplainTransport::Rc => masq_control::Traffic::Rc,
        ExplainTransport::Uc => masq_control::Traffic::Uc,
        ExplainTransport::Ud => masq_control::Traffic::Ud,
        ExplainTransport::Cm => masq_control::Traffic::Cm,
    };
    let question = Question { from: &from, to: &to, vpc: vpc.as_deref(), traffic };
    let explained = api.host.directory.read().explain(&question);
    explained.map(Json).map_err(|e| match e {
        AskError::WhichVpc(_) | AskError::WrongVpc { .. } => Refused::bad_request(e),
        AskError::NoVpc(_) | AskError::NoSuchEnd(_) | AskError::Nobody { .. } => Refused::not_found(e),
    })
}

/// What the vNICs of this host have sent and received.
pub async fn traffic(State(api): State<Arc<Api>>) -> Json<Vec<Traffic>> {
    let reports = api.devices.report(&api.host, &api.health, &api.run_dir).await;
    let directory = api.host.directory.read();
    let traffic = |(status, report): (VnicStatus, Report)| Traffic {
        rate_bits_per_sec: directory.settings(&status.name).qos.and_then(|q| q.rate_bits_per_sec),
        vnic: status.name,
        vpc: status.vpc,
        ..report.traffic
    };
    Json(reports.into_iter().map(traffic).collect())
}

/// How this host is.
pub async fn status(State(api): State<Arc<Api>>) -> Json<Status> {
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

/// What the RNIC has counted.
pub async fn counters(State(api): State<Arc<Api>>) -> Result<Json<BTreeMap<String, u64>>, Refused> {
    let all = api.rnic_counters().await?;
    Ok(Json(all.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()))
}

impl Api {
    /// What the RNIC has counted.
    pub(super) async fn rnic_counters(&self) -> Result<Vec<(&'static str, u64)>, Refused> {
        let host = self.host.clone();
        let counted = tokio::task::spawn_blocking(move || host.rnic.execute(Command::Counters)).await;
        let failed = |e: String| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, e);
        match counted.map_err(|e| failed(e.to_string()))?.map_err(|e| failed(e.to_string()))? {
            Reply::Counters(all) => Ok(all),
            _ => Err(failed("the RNIC does not tell what it has counted".into())),
        }
    }
}

/// Whether masqd can do all its work.
pub async fn readyz(State(api): State<Arc<Api>>) -> Result<&'static str, Refused> {
    let problems = api.health.problems();
    if problems.is_empty() {
        return Ok("ready\n");
    }
    Err(Refused::with_problems(StatusCode::SERVICE_UNAVAILABLE, "not ready:", problems))
}
