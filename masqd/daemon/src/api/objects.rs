//! Single objects and lists of them, of any kind.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, patch, put};
use axum::{Extension, Json};
use masq_control::store::Entry;
use masq_control::{Concern, Judge};
use masq_model::api::{Item, ItemList, ItemStatus, RealisedState};
use masq_model::{Edit, Key, Kind, Object, Problem};
use serde_json::Value;

use super::Api;
use super::audit::{self, Who};
use super::collections::Collection;
use super::reply::{self, Refused};
use super::request::{self, Conditions, MAX_OBJECT_BYTES, Wait, expect_type, merge};
use crate::writer::{Changed, Current, Plan, Written};

type Names = Result<Path<HashMap<String, String>>, PathRejection>;
type Waiting = Result<Query<Wait>, QueryRejection>;

/// A collection.
pub fn list(collection: Collection) -> MethodRouter<Arc<Api>> {
    get(move |State(api): State<Arc<Api>>| async move {
        api.list(&collection.kind.prefix(), collection.kind).await
    })
}

/// All rules of all groups.
pub fn all_rules() -> MethodRouter<Arc<Api>> {
    let kind = Kind::SecurityGroupRule;
    get(move |State(api): State<Arc<Api>>| async move { api.list(&kind.prefix(), kind).await })
}

/// The rules of one group.
pub fn rules_of_group() -> MethodRouter<Arc<Api>> {
    get(|State(api): State<Arc<Api>>, names: Names| async move {
        let group = Key::new(Kind::SecurityGroup, &name(&names?, "group")?);
        if api.store.get(&group.to_string()).await?.is_none() {
            return Err(no_such(&group));
        }
        let kind = Kind::SecurityGroupRule;
        api.list(&format!("{}{}/", kind.prefix(), group.name()), kind).await
    })
}

/// An object of a collection.
pub fn single(collection: Collection) -> MethodRouter<Arc<Api>> {
    let kind = collection.kind;
    let key = move |names: Names| Ok(Key::new(kind, &name(&names?, "name")?));
    if kind.is_desired() { writable(key) } else { readable(key) }
}

/// A rule.
pub fn rule() -> MethodRouter<Arc<Api>> {
    writable(|names: Names| {
        let names = names?;
        Ok(Key::rule(&name(&names, "group")?, &name(&names, "name")?))
    })
}

fn name(names: &Path<HashMap<String, String>>, parameter: &str) -> Result<String, Refused> {
    names.get(parameter).cloned().ok_or_else(|| Refused::bad_request("the path lacks a name"))
}

fn no_such(key: &Key) -> Refused {
    Refused::not_found(format_args!("there is no {}", key.label()))
}

fn readable(
    key: impl Fn(Names) -> Result<Key, Refused> + Clone + Send + Sync + 'static,
) -> MethodRouter<Arc<Api>> {
    get(move |State(api): State<Arc<Api>>, names: Names| async move { api.get(&key(names)?).await })
}

fn writable(
    key: impl Fn(Names) -> Result<Key, Refused> + Clone + Send + Sync + 'static,
) -> MethodRouter<Arc<Api>> {
    let (for_put, for_patch, for_delete) = (key.clone(), key.clone(), key.clone());
    readable(key)
        .merge(put(
            move |State(api): State<Arc<Api>>,
                  Extension(who): Extension<Who>,
                  names: Names,
                  waiting: Waiting,
                  headers: HeaderMap,
                  body: Body| async move {
                let target = Target::of(who, "PUT", for_put(names)?, &headers)?;
                let (wait, spec) = api.sent(&["application/json"], waiting, &headers, body).await?;
                api.put(target, wait, move |_| Ok(spec.clone())).await
            },
        ))
        .merge(patch(
            move |State(api): State<Arc<Api>>,
                  Extension(who): Extension<Who>,
                  names: Names,
                  waiting: Waiting,
                  headers: HeaderMap,
                  body: Body| async move {
                let target = Target::of(who, "PATCH", for_patch(names)?, &headers)?;
                let types = ["application/merge-patch+json", "application/json"];
                let (wait, patch) = api.sent(&types, waiting, &headers, body).await?;
                let key = target.key.clone();
                api.put(target, wait, move |current| {
                    let mut spec = current.ok_or_else(|| no_such(&key))?.to_value();
                    merge(&mut spec, patch.clone());
                    Ok(spec)
                })
                .await
            },
        ))
        .merge(delete(
            move |State(api): State<Arc<Api>>,
                  Extension(who): Extension<Who>,
                  names: Names,
                  waiting: Waiting,
                  headers: HeaderMap| async move {
                let target = Target::of(who, "DELETE", for_delete(names)?, &headers)?;
                api.delete(target, waiting?.0).await
            },
        ))
}

/// What a request wants to write.
struct Target {
    who: Who,
    method: &'static str,
    key: Key,
    conditions: Conditions,
}

impl Target {
    fn of(who: Who, method: &'static str, key: Key, headers: &HeaderMap) -> Result<Target, Refused> {
        Ok(Target { who, method, key, conditions: Conditions::of(headers)? })
    }

    /// Whether it may be written, as things are.
    fn check(&self, current: &Current) -> Result<(), Refused> {
        self.conditions.check(current.generation(&self.key))
    }
}

impl Api {
    async fn list(&self, prefix: &str, kind: Kind) -> Result<Json<ItemList<Value>>, Refused> {
        let snapshot = self.store.list(prefix).await?;
        let directory = self.host.directory.read();
        let mut judge = Judge::new(&directory);
        let item = |entry: &Entry| {
            let key: Key = entry.key.parse().ok().filter(|k: &Key| k.kind() == kind)?;
            // The directory tells in the log what cannot be read.
            Some(item(&mut judge, &Object::from_entry(&key, &entry.value).ok()?, entry.revision))
        };
        Ok(Json(ItemList { items: snapshot.entries.iter().filter_map(item).collect() }))
    }

    async fn get(&self, key: &Key) -> Result<Response, Refused> {
        let entry = self.store.get(&key.to_string()).await?.ok_or_else(|| no_such(key))?;
        let object = Object::from_entry(key, &entry.value)
            .map_err(|e| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, e))?;
        let item = item(&mut Judge::new(&self.host.directory.read()), &object, entry.revision);
        Ok(reply::item(StatusCode::OK, item))
    }

    /// What was sent with a write: how long to wait, and the body, of one of these types.
    async fn sent(
        &self,
        types: &[&str],
        waiting: Waiting,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(Wait, Value), Refused> {
        expect_type(headers, types)?;
        let wait = waiting?.0;
        let body = request::body(body, MAX_OBJECT_BYTES, self.patience.object).await?;
        Ok((wait, request::json(&body)?))
    }

    /// Writes the object that `spec` makes of the present one.
    async fn put(
        self: &Arc<Self>,
        target: Target,
        wait: Wait,
        spec: impl Fn(Option<&Object>) -> Result<Value, Refused> + Send + 'static,
    ) -> Result<Response, Refused> {
        let (who, method, label) = (target.who.clone(), target.method, target.key.label());
        let written = self
            .write(who, method, label, false, move |current| {
                let key = &target.key;
                let generation = current.generation(key);
                let spec = spec(current.state().objects().get(key))?;
                target.check(current)?;
                let object = Object::from_value(key.kind(), spec)?;
                if object.key() != *key {
                    return Err(misnamed(key, &object));
                }
                Ok(Plan { edits: vec![Edit::Put(object.clone())], note: (object, generation) })
            })
            .await?;
        let (object, before) = written.noted;
        let concern = concern(&written.changes, &object);
        let generation = written.revision.or(before).unwrap_or_default();
        let status = self.wait_for(&concern, generation, wait.duration()).await;
        let code = if before.is_none() { StatusCode::CREATED } else { StatusCode::OK };
        Ok(reply::item(code, Item { spec: object.to_value(), status }))
    }

    async fn delete(self: &Arc<Self>, target: Target, wait: Wait) -> Result<Response, Refused> {
        let (who, method, label) = (target.who.clone(), target.method, target.key.label());
        let deleted = self
            .write(who, method, label, false, move |current| {
                if current.generation(&target.key).is_none() {
                    return Err(no_such(&target.key));
                }
                target.check(current)?;
                Ok(Plan { edits: vec![Edit::Delete(target.key.clone())], note: () })
            })
            .await;
        let written = deleted.map_err(Refused::in_use)?;
        let concern = written.changes.iter().filter_map(|c| c.old.as_ref()).collect();
        let generation = written.revision.unwrap_or_default();
        Ok(Json(self.wait_for(&concern, generation, wait.duration()).await).into_response())
    }

    /// Writes, to the end even if the client does not wait for it, and notes who did what.
    pub(super) async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        who: Who,
        method: &'static str,
        object: String,
        dry_run: bool,
        plan: impl FnMut(&Current) -> Result<Plan<T>, Refused> + Send + 'static,
    ) -> Result<Written<T>, Refused> {
        let writer = self.writer.clone();
        let writing = tokio::spawn(async move {
            let outcome = writer.write(dry_run, plan).await.map_err(Refused::from);
            match &outcome {
                _ if dry_run => {}
                Ok(Written { revision: Some(revision), .. }) => {
                    audit::note(&who, method, &object, &format_args!("done at revision {revision}"));
                }
                Ok(_) => audit::note(&who, method, &object, &"nothing to change"),
                Err(e) => audit::note(&who, method, &object, &format_args!("refused: {e}")),
            }
            outcome
        });
        writing.await.unwrap_or_else(|e| Err(Refused::new(StatusCode::INTERNAL_SERVER_ERROR, e)))
    }
}

/// What an object that has been written concerns: also what it was before.
fn concern(changes: &[Changed], object: &Object) -> Concern {
    changes.iter().filter_map(|c| c.old.as_ref()).chain([object]).collect()
}

fn item(judge: &mut Judge<'_>, object: &Object, generation: u64) -> Item<Value> {
    let status = if object.key().kind().is_desired() {
        judge.status(&[object].into_iter().collect(), generation)
    } else {
        // It says what is so.
        ItemStatus {
            generation,
            realised_generation: generation,
            state: RealisedState::Realised,
            waiting_for: Vec::new(),
        }
    };
    Item { spec: object.to_value(), status }
}

fn misnamed(key: &Key, object: &Object) -> Refused {
    let actual = object.key();
    let name = |key: &Key| key.name().rsplit('/').next().unwrap_or_default().to_owned();
    let (field, is) = if name(key) == name(&actual) {
        ("security_group", actual.name().split('/').next().unwrap_or_default().to_owned())
    } else {
        ("name", name(&actual))
    };
    let reason = format!("{is:?} is another than in the path of the request");
    Refused::invalid(&[Problem { object: key.label(), field: field.into(), reason }])
}
