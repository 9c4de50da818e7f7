//! The declarative file: the whole desired state, or a part of it, in one piece.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use masq_control::Concern;
use masq_model::api::Applied;
use masq_model::{DesiredState, Key, Kind, Object, PREFIX};
use serde::Deserialize;
use serde_json::Value;

use super::Api;
use super::audit::Who;
use super::reply::Refused;
use super::request::{self, MAX_FILE_BYTES, expect_type};
use crate::writer::{Changed, Plan, plan_apply};

const JSON: &str = "application/json";
const TOML: &str = "application/toml";

/// How to apply a file.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    #[serde(default)]
    prune: bool,
    #[serde(default)]
    dry_run: bool,
    #[serde(default, deserialize_with = "request::wait_seconds")]
    wait: u64,
}

/// Writes a file.
pub async fn apply(
    State(api): State<Arc<Api>>,
    Extension(who): Extension<Who>,
    options: Result<Query<Options>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Applied>, Refused> {
    let Options { prune, dry_run, wait } = options?.0;
    expect_type(&headers, &[TOML, JSON])?;
    let is_json = request::content_type(&headers).eq_ignore_ascii_case(JSON);
    let body = request::body(body, MAX_FILE_BYTES, api.patience.file).await?;
    let file = tokio::task::spawn_blocking(move || parse(body, is_json))
        .await
        .map_err(|e| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, e))??;
    let what = if prune { "desired state" } else { "part of the desired state" };
    let written = api
        .write(who, "POST", what.into(), dry_run, move |current| {
            Ok(Plan { edits: plan_apply(current, &file, prune), note: () })
        })
        .await?;
    let status = match written.revision {
        Some(revision) => {
            let patience = std::time::Duration::from_secs(wait);
            Some(api.wait_for(&concern(&written.changes), revision, patience).await)
        }
        None => None,
    };
    Ok(Json(Applied { dry_run, changes: written.changes.iter().map(Changed::told).collect(), status }))
}

fn parse(body: Vec<u8>, is_json: bool) -> Result<DesiredState, Refused> {
    let text = String::from_utf8(body)
        .map_err(|e| Refused::bad_request(format_args!("the body is not UTF-8: {}", e.utf8_error())))?;
    Ok(if is_json { DesiredState::from_json(&text)? } else { DesiredState::from_toml(&text)? })
}

fn concern(changes: &[Changed]) -> Concern {
    changes.iter().flat_map(|c| [&c.old, &c.new]).flatten().collect()
}

/// The desired state, in the form of the declarative file.
pub async fn desired(
    State(api): State<Arc<Api>>,
) -> Result<Json<BTreeMap<&'static str, Vec<Value>>>, Refused> {
    let snapshot = api.store.list(PREFIX).await?;
    let mut desired: BTreeMap<_, Vec<Value>> = Kind::desired().map(|k| (k.name(), Vec::new())).collect();
    for entry in &snapshot.entries {
        let Ok(key) = entry.key.parse::<Key>() else { continue };
        let Some(list) = desired.get_mut(key.kind().name()) else { continue };
        // A backup that lacks something, which may be a rule that denies, is worse than none.
        let object = Object::from_entry(&key, &entry.value).map_err(|e| {
            Refused::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the store holds what is no object: {e}"))
        })?;
        list.push(object.to_value());
    }
    Ok(Json(desired))
}
