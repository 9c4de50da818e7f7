//! Requests: bodies, conditions, parameters.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::header::{CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;
use serde_json::Value;

use super::reply::Refused;

/// Longest description of one object.
pub const MAX_OBJECT_BYTES: usize = 1 << 20;
/// Longest declarative file.
pub const MAX_FILE_BYTES: usize = 64 << 20;
/// Longest that a request may wait until something is realised.
pub const MAX_WAIT_SECONDS: u64 = 300;

/// Reads a body of at most `limit` bytes, for which the client has `patience`.
pub async fn body(body: Body, limit: usize, patience: Duration) -> Result<Vec<u8>, Refused> {
    let too_long = || {
        let message = format_args!("the body is longer than {limit} bytes");
        Err(Refused::new(StatusCode::PAYLOAD_TOO_LARGE, message))
    };
    if body.size_hint().lower() > limit as u64 {
        // It says so itself.
        return too_long();
    }
    match tokio::time::timeout(patience, Limited::new(body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes().into()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => too_long(),
        Ok(Err(e)) => Err(Refused::bad_request(format_args!("the body breaks off: {e}"))),
        Err(_) => Err(Refused::new(
            StatusCode::REQUEST_TIMEOUT,
            format_args!("the body did not come within {} s", patience.as_secs_f32()),
        )),
    }
}

/// The media type of the body, without parameters.
pub fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// Refuses media types other than these.
pub fn expect_type(headers: &HeaderMap, accepted: &[&str]) -> Result<(), Refused> {
    let actual = content_type(headers);
    if accepted.iter().any(|a| a.eq_ignore_ascii_case(actual)) {
        return Ok(());
    }
    let message = format!("the content type is {actual:?}, not {}", accepted.join(" or "));
    Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// Parses JSON.
pub fn json(bytes: &[u8]) -> Result<Value, Refused> {
    serde_json::from_slice(bytes).map_err(|e| Refused::bad_request(format_args!("the body is no JSON: {e}")))
}

/// What must hold for an object when it is written (RFC 9110 §13.1.1, §13.1.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    if_match: Option<Tags>,
    if_none_match: Option<Tags>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Tags {
    Any,
    These(Vec<String>),
}

impl Tags {
    fn cover(&self, generation: Option<u64>) -> bool {
        match (self, generation) {
            (_, None) => false,
            (Tags::Any, Some(_)) => true,
            (Tags::These(tags), Some(generation)) => tags.contains(&generation.to_string()),
        }
    }
}

impl Conditions {
    /// Those of a request.
    pub fn of(headers: &HeaderMap) -> Result<Conditions, Refused> {
        Ok(Conditions { if_match: tags(headers, &IF_MATCH)?, if_none_match: tags(headers, &IF_NONE_MATCH)? })
    }

    /// Checks them against the object's generation, if it exists.
    pub fn check(&self, generation: Option<u64>) -> Result<(), Refused> {
        let failed = |what: &str| {
            let is = match generation {
                Some(g) => format!("the object's generation is {g}"),
                None => "the object does not exist".into(),
            };
            Err(Refused::new(StatusCode::PRECONDITION_FAILED, format_args!("{what} does not hold: {is}")))
        };
        if self.if_match.as_ref().is_some_and(|tags| !tags.cover(generation)) {
            return failed("If-Match");
        }
        if self.if_none_match.as_ref().is_some_and(|tags| tags.cover(generation)) {
            return failed("If-None-Match");
        }
        Ok(())
    }
}

fn tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Tags>, Refused> {
    let mut tags = Vec::new();
    for value in headers.get_all(name) {
        let wrong =
            || Refused::bad_request(format_args!("{name} is neither * nor a list of tags such as \"7\""));
        let value = value.to_str().map_err(|_| wrong())?.trim();
        if value == "*" {
            return Ok(Some(Tags::Any));
        }
        // Empty elements of lists do not count (RFC 9110 §5.6.1); what has no others matches nothing.
        for tag in value.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
            let tag = tag.strip_prefix('"').and_then(|t| t.strip_suffix('"')).ok_or_else(wrong)?;
            tags.push(tag.to_owned());
        }
    }
    Ok(headers.contains_key(name).then_some(Tags::These(tags)))
}

/// How long a write waits until it is realised.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    #[serde(default, deserialize_with = "wait_seconds")]
    wait: u64,
}

impl Wait {
    /// As a duration.
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.wait)
    }
}

/// A number of seconds that a request may wait.
pub fn wait_seconds<'de, D: serde::Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    let seconds = u64::deserialize(d)?;
    if seconds > MAX_WAIT_SECONDS {
        let message = format_args!("{seconds} seconds lie outside 0 to {MAX_WAIT_SECONDS}");
        return Err(serde::de::Error::custom(message));
    }
    Ok(seconds)
}

/// Applies a JSON merge patch (RFC 7396 §2).
pub fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    if let Value::Object(target) = target {
        for (field, value) in patch {
            if value.is_null() {
                target.remove(&field);
            } else {
                merge(target.entry(field).or_insert(Value::Null), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use serde_json::json;

    use super::*;

    fn conditions(lines: &[(&HeaderName, &'static str)]) -> Result<Conditions, Refused> {
        let mut headers = HeaderMap::new();
        lines.iter().for_each(|(name, value)| {
            headers.append(*name, HeaderValue::from_static(value));
        });
        Conditions::of(&headers)
    }

    #[test]
    fn conditions_compare_generations() {
        let holds = |lines: &[_], generation| conditions(lines).unwrap().check(generation).is_ok();
        assert!(holds(&[], None) && holds(&[], Some(7)));
        assert!(holds(&[(&IF_MATCH, "*")], Some(7)) && !holds(&[(&IF_MATCH, "*")], None));
        assert!(holds(&[(&IF_MATCH, "\"6\", \"7\"")], Some(7)) && !holds(&[(&IF_MATCH, "\"6\"")], Some(7)));
        assert!(holds(&[(&IF_MATCH, "\"6\""), (&IF_MATCH, "\"7\"")], Some(7)));
        assert!(!holds(&[(&IF_MATCH, "\"07\"")], Some(7)));
        assert!(holds(&[(&IF_NONE_MATCH, "*")], None) && !holds(&[(&IF_NONE_MATCH, "*")], Some(7)));
        assert!(holds(&[(&IF_NONE_MATCH, "\"6\"")], Some(7)));
        assert!(
            !holds(&[(&IF_MATCH, "")], Some(7)) && !holds(&[(&IF_MATCH, " ,")], Some(7)),
            "it names no tag"
        );
        assert!(holds(&[(&IF_NONE_MATCH, " ,")], Some(7)));
        for bad in ["7", "W/\"7\"", "\"7", "7\"", "*, \"7\""] {
            assert!(conditions(&[(&IF_MATCH, bad)]).is_err(), "{bad}");
        }
    }

    /// The examples of RFC 7396, appendix A.
    #[test]
    fn patches_merge() {
        for (mut target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            merge(&mut target, patch);
            assert_eq!(target, result);
        }
    }
}
