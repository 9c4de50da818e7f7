//! Answers.

use std::fmt;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::StatusCode;
use axum::http::header::{ETAG, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use masq_control::store::StoreError;
use masq_model::api::{ErrorReply, Item};
use masq_model::{FieldError, Problem, Problems};
use serde_json::Value;

use crate::writer::WriteError;

/// When to write again while others keep writing.
const RETRY: Duration = Duration::from_secs(1);

/// A request that is refused.
#[derive(Debug)]
pub struct Refused {
    status: StatusCode,
    reply: ErrorReply,
    /// When the same request may be accepted.
    retry_after: Option<Duration>,
}

impl Refused {
    /// With one sentence.
    pub fn new(status: StatusCode, error: impl ToString) -> Refused {
        Refused::with(status, ErrorReply { error: error.to_string(), problems: Vec::new() })
    }

    /// With a sentence and what is wrong in detail.
    pub fn with_problems(status: StatusCode, error: &str, problems: Vec<String>) -> Refused {
        Refused::with(status, ErrorReply { error: error.into(), problems })
    }

    fn with(status: StatusCode, reply: ErrorReply) -> Refused {
        Refused { status, reply, retry_after: None }
    }

    /// The request makes no sense.
    pub fn bad_request(error: impl ToString) -> Refused {
        Refused::new(StatusCode::BAD_REQUEST, error)
    }

    /// There is no such thing.
    pub fn not_found(error: impl ToString) -> Refused {
        Refused::new(StatusCode::NOT_FOUND, error)
    }

    /// The resource does not do that.
    pub fn method_not_allowed() -> Refused {
        Refused::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "the resource does not have this method; see the header Allow",
        )
    }

    /// The desired state would not be consistent.
    pub fn invalid(problems: &[Problem]) -> Refused {
        Refused::with(StatusCode::UNPROCESSABLE_ENTITY, inconsistent(problems))
    }

    /// What could not be deleted is in use.
    pub fn in_use(self) -> Refused {
        if self.status != StatusCode::UNPROCESSABLE_ENTITY {
            return self;
        }
        Refused::with(StatusCode::CONFLICT, ErrorReply { error: "it is in use:".into(), ..self.reply })
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reply.fmt(f)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.reply)).into_response();
        if let Some(pause) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, pause.as_secs().into());
        }
        response
    }
}

impl From<StoreError> for Refused {
    fn from(e: StoreError) -> Refused {
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, e)
    }
}

impl From<PathRejection> for Refused {
    fn from(e: PathRejection) -> Refused {
        Refused::bad_request(e.body_text())
    }
}

impl From<QueryRejection> for Refused {
    fn from(e: QueryRejection) -> Refused {
        Refused::bad_request(e.body_text())
    }
}

impl From<FieldError> for Refused {
    fn from(e: FieldError) -> Refused {
        Refused::bad_request(e)
    }
}

impl From<WriteError<Refused>> for Refused {
    fn from(e: WriteError<Refused>) -> Refused {
        match e {
            WriteError::Refused(refused) => refused,
            WriteError::Invalid(problems) => Refused::invalid(&problems),
            // Nothing is wrong with the request.
            WriteError::Contended => {
                Refused { retry_after: Some(RETRY), ..Refused::new(StatusCode::SERVICE_UNAVAILABLE, e) }
            }
            WriteError::Store(e) => e.into(),
        }
    }
}

/// The problems of a desired state, each for itself.
pub fn problem_reply(problems: &Problems) -> ErrorReply {
    match problems {
        Problems::Syntax(_) => {
            let error = format!("the desired state cannot be read: {problems}");
            ErrorReply { error, problems: Vec::new() }
        }
        Problems::Content(problems) => inconsistent(problems),
    }
}

fn inconsistent(problems: &[Problem]) -> ErrorReply {
    ErrorReply {
        error: "the desired state would not be consistent:".into(),
        problems: problems.iter().map(ToString::to_string).collect(),
    }
}

impl From<Problems> for Refused {
    fn from(problems: Problems) -> Refused {
        let status = match problems {
            Problems::Syntax(_) => StatusCode::BAD_REQUEST,
            Problems::Content(_) => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Refused::with(status, problem_reply(&problems))
    }
}

/// An object, with its generation as ETag.
pub fn item(status: StatusCode, item: Item<Value>) -> Response {
    let tag = format!("\"{}\"", item.status.generation);
    (status, [(ETAG, tag)], Json(item)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_meets_others_that_write_is_told_to_come_again() {
        let response = Refused::from(WriteError::Contended).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        let response = Refused::from(StoreError::Unavailable("gone".into())).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!response.headers().contains_key(RETRY_AFTER));
    }
}
