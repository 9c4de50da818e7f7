//! Requests to masqd over its Unix socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use masq_model::api::ErrorReply;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

/// How long masqd may take; a store that is away answers late.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("cannot reach masqd at {}: {source}; is it running, and is this its --socket?", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The exchange broke off.
    #[error("masqd broke the connection off: {0}")]
    Http(#[from] hyper::Error),
    /// No answer in time.
    #[error("masqd did not answer within {} seconds", PATIENCE.as_secs())]
    Late,
    /// The answer is not what this version expects.
    #[error(
        "masqd gave an answer that this masqctl does not understand ({0}); are they of the same version?"
    )]
    Answer(#[from] serde_json::Error),
    /// masqd refuses.
    #[error("{0}")]
    Refused(ErrorReply),
    /// masqd refuses without saying why in a known form.
    #[error("masqd answered {0}")]
    Status(StatusCode),
}

/// A way to masqd.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the masqd that listens on `socket`.
    pub fn new(socket: &Path) -> Self {
        Client { socket: socket.to_owned() }
    }

    /// Reads a resource.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        Ok(serde_json::from_slice(&self.send(Method::GET, path, "", Bytes::new()).await?)?)
    }

    /// Replaces a resource.
    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        content_type: &str,
        body: String,
    ) -> Result<T, ClientError> {
        Ok(serde_json::from_slice(&self.send(Method::PUT, path, content_type, body.into()).await?)?)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Bytes, ClientError> {
        tokio::time::timeout(PATIENCE, self.exchange(method, path, content_type, body))
            .await
            .unwrap_or(Err(ClientError::Late))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Bytes, ClientError> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|source| ClientError::Connect { path: self.socket.clone(), source })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "masqd")
            .header(CONTENT_TYPE, content_type)
            .body(Full::new(body))
            .expect("method, path and headers are well-formed");
        let response = sender.send_request(request).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        drop(sender);
        connection.abort();
        if status.is_success() {
            return Ok(bytes);
        }
        Err(match serde_json::from_slice(&bytes) {
            Ok(reply) => ClientError::Refused(reply),
            Err(_) => ClientError::Status(status),
        })
    }
}
