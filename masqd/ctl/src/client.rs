//! Requests to masqd.

use std::error::Error;
use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, IF_MATCH, IF_NONE_MATCH};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use masq_model::api::ErrorReply;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::connect::Target;

/// How long masqd may take, beside the time that it is told to wait; a store that is away answers late.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is escaped in a part of a path or query.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens, or not with a certificate that counts.
    #[error(
        "cannot reach masqd at {target}: {}; is it running, and is this where it listens?",
        chain(source)
    )]
    Connect {
        /// Where.
        target: String,
        /// Why.
        source: io::Error,
    },
    /// The exchange broke off.
    #[error("masqd at {target} broke the connection off: {}", chain(source))]
    Http {
        /// Where.
        target: String,
        /// Why.
        source: hyper::Error,
    },
    /// No answer in time.
    #[error("masqd at {target} did not answer within {} seconds", patience.as_secs())]
    Late {
        /// Where.
        target: String,
        /// How long it had.
        patience: Duration,
    },
    /// The answer is not what this version expects.
    #[error(
        "masqd gave an answer that this masqctl does not understand ({0}); are they of the same version?"
    )]
    Answer(#[from] serde_json::Error),
    /// masqd refuses.
    #[error("{reply}")]
    Refused {
        /// How.
        status: StatusCode,
        /// Why.
        reply: ErrorReply,
    },
    /// masqd refuses without saying why in a known form.
    #[error("masqd answered {0}")]
    Status(StatusCode),
}

/// An error with what caused it.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text += &format!(": {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// A request.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    content_type: &'static str,
    body: Bytes,
    condition: Option<(HeaderName, String)>,
    wait_seconds: u16,
}

impl Call {
    /// A request for the resource whose path has these parts below `/v1`.
    pub fn new(method: Method, parts: &[&str]) -> Call {
        let mut path = String::from("/v1");
        for part in parts {
            path.push('/');
            path.extend(utf8_percent_encode(part, ESCAPED));
        }
        let content_type = "application/json";
        Call { method, path, content_type, body: Bytes::new(), condition: None, wait_seconds: 0 }
    }

    /// A request to read a resource.
    pub fn get(parts: &[&str]) -> Call {
        Call::new(Method::GET, parts)
    }

    /// With a parameter in the query.
    pub fn query(mut self, name: &str, value: &str) -> Call {
        self.path.push(if self.path.contains('?') { '&' } else { '?' });
        self.path += name;
        self.path.push('=');
        self.path.extend(utf8_percent_encode(value, ESCAPED));
        self
    }

    /// With a parameter in the query, if there is a value.
    pub fn query_if(self, name: &str, value: Option<&str>) -> Call {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// With a body.
    pub fn body(mut self, content_type: &'static str, body: impl Into<Bytes>) -> Call {
        self.content_type = content_type;
        self.body = body.into();
        self
    }

    /// With a JSON body.
    pub fn json(self, value: &Value) -> Call {
        self.body("application/json", value.to_string())
    }

    /// Only if the object does not exist.
    pub fn if_new(mut self) -> Call {
        self.condition = Some((IF_NONE_MATCH, "*".into()));
        self
    }

    /// Only if the object has this generation.
    pub fn if_generation(mut self, generation: u64) -> Call {
        self.condition = Some((IF_MATCH, format!("\"{generation}\"")));
        self
    }

    /// To be answered when it is realised, or after so many seconds.
    pub fn wait(mut self, seconds: u16) -> Call {
        self.wait_seconds = seconds;
        if seconds > 0 { self.query("wait", &seconds.to_string()) } else { self }
    }
}

/// A way to masqd.
pub struct Client {
    target: Target,
}

impl Client {
    /// A client of the masqd that listens there.
    pub fn new(target: Target) -> Self {
        Client { target }
    }

    /// Sends a request, and takes the answer for a `T`.
    pub async fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let patience = PATIENCE + Duration::from_secs(call.wait_seconds.into());
        let late = || ClientError::Late { target: self.target.to_string(), patience };
        let body = tokio::time::timeout(patience, self.exchange(call)).await.map_err(|_| late())??;
        Ok(serde_json::from_slice(&body)?)
    }

    /// Sends a request, and hands the answer over as it comes, for as long as that takes, until it ends or `take` breaks off.
    pub async fn download(
        &self,
        call: Call,
        mut take: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let late = || ClientError::Late { target: self.target.to_string(), patience: PATIENCE };
        let answer = tokio::time::timeout(PATIENCE, self.send(call)).await.map_err(|_| late())??;
        let Answered { response, sender: _sender, connection: _connection } = answer;
        if !response.status().is_success() {
            return Err(self.refusal(response).await?);
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|source| self.http(source))?;
            if let Some(bytes) = frame.data_ref()
                && take(bytes).is_break()
            {
                break;
            }
        }
        Ok(())
    }

    async fn exchange(&self, call: Call) -> Result<Bytes, ClientError> {
        let Answered { response, sender: _sender, connection: _connection } = self.send(call).await?;
        if !response.status().is_success() {
            return Err(self.refusal(response).await?);
        }
        let body = response.into_body().collect().await.map_err(|source| self.http(source))?;
        Ok(body.to_bytes())
    }

    fn http(&self, source: hyper::Error) -> ClientError {
        ClientError::Http { target: self.target.to_string(), source }
    }

    /// What an answer says that is no success.
    async fn refusal(&self, response: Response<Incoming>) -> Result<ClientError, ClientError> {
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|source| self.http(source))?.to_bytes();
        Ok(match serde_json::from_slice(&bytes) {
            Ok(reply) => ClientError::Refused { status, reply },
            Err(_) => ClientError::Status(status),
        })
    }

    async fn send(&self, call: Call) -> Result<Answered, ClientError> {
        let target = || self.target.to_string();
        let http = |source| self.http(source);
        let stream = self
            .target
            .connect()
            .await
            .map_err(|source| ClientError::Connect { target: target(), source })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
        let connection = AbortOnDrop(tokio::spawn(connection));
        let mut request = Request::builder()
            .method(call.method)
            .uri(call.path)
            .header(HOST, self.target.authority())
            .header(CONTENT_TYPE, call.content_type);
        if let Some((name, value)) = call.condition {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(call.body)).expect("method, path and headers are well-formed");
        let response = sender.send_request(request).await.map_err(http)?;
        Ok(Answered { response, sender, connection })
    }
}

/// An answer whose body is still to come, and what it comes by.
struct Answered {
    response: Response<Incoming>,
    sender: SendRequest<Full<Bytes>>,
    connection: AbortOnDrop,
}

struct AbortOnDrop(JoinHandle<hyper::Result<()>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_queries_are_escaped() {
        let call = Call::get(&["vnics", "a/../b c"]).query("vpc", "x&y=ü").query_if("to", None).wait(5);
        assert_eq!(call.path, "/v1/vnics/a%2F..%2Fb%20c?vpc=x%26y%3D%C3%BC&wait=5");
        assert_eq!(Call::get(&["status"]).wait(0).path, "/v1/status");
    }
}
