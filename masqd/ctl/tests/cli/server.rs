//! A server that records requests and gives the answers it was told to, and a way to run masqctl against it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};

/// What a client has sent.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Method, path and query.
    pub line: String,
    pub headers: HeaderMap,
    pub body: String,
}

impl Recorded {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().unwrap())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Answers, and who asked for them.
#[derive(Clone, Default)]
pub struct Script {
    replies: Arc<Mutex<VecDeque<(u16, String)>>>,
    requests: Arc<Mutex<Vec<Recorded>>>,
}

impl Script {
    /// Gives each request the next answer.
    pub async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request: Request<Incoming>| async {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            self.requests.lock().unwrap().push(Recorded {
                line: format!("{} {}", parts.method, parts.uri),
                headers: parts.headers,
                body: String::from_utf8(body.to_vec()).unwrap(),
            });
            let next = self.replies.lock().unwrap().pop_front();
            let (status, text) = next.unwrap_or((500, "no answer is left".into()));
            let response = Response::builder().status(status).body(Full::new(Bytes::from(text))).unwrap();
            Ok::<_, Infallible>(response)
        });
        // The client may go away.
        let _ =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Recorded> {
        self.requests.lock().unwrap().clone()
    }

    pub fn answer(&self, status: u16, text: impl ToString) {
        self.replies.lock().unwrap().push_back((status, text.to_string()));
    }
}

/// Runs a future on a thread of its own until the test ends.
pub fn background<F: Future<Output = ()>>(future: impl FnOnce() -> F + Send + 'static) {
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future());
    });
}

/// A server on a Unix socket.
pub struct Recorder {
    dir: TempDir,
    pub script: Script,
}

impl Recorder {
    /// With these answers, one after the other.
    pub fn new(replies: &[(u16, Value)]) -> Recorder {
        let dir = tempfile::tempdir().unwrap();
        let script = Script::default();
        replies.iter().for_each(|(status, reply)| script.answer(*status, reply));
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join("masqd.sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let served = script.clone();
        background(move || async move {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                served.clone().serve(stream).await;
            }
        });
        Recorder { dir, script }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("masqd.sock")
    }

    /// Runs masqctl with the words of `args`.
    pub fn run(&self, args: &str) -> Ended {
        self.run_with_input(args, "")
    }

    pub fn run_with_input(&self, args: &str, input: &str) -> Ended {
        let mut command = masqctl();
        command.arg("--socket").arg(self.socket()).args(args.split_whitespace());
        ended(command, input)
    }

    /// The only request.
    pub fn request(&self) -> Recorded {
        let requests = self.script.requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests[0].clone()
    }
}

/// What became of a run.
#[derive(Debug)]
pub struct Ended {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// What was printed, when it went well.
    pub fn ok(self) -> String {
        assert_eq!((self.status, self.stderr.as_str()), (0, ""), "{self:?}");
        self.stdout
    }

    /// Status and message, when it did not.
    pub fn failed(self) -> (i32, String) {
        assert!(self.status != 0 && self.stdout.is_empty(), "{self:?}");
        (self.status, self.stderr)
    }
}

/// masqctl without what the environment says.
pub fn masqctl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_masqctl"));
    for name in ["SOCKET", "SERVER", "CERT", "KEY", "CA"] {
        command.env_remove(format!("MASQD_{name}"));
    }
    command
}

pub fn ended(mut command: Command, input: &str) -> Ended {
    use std::io::Write;
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { status: status.code().unwrap(), stdout: text(stdout), stderr: text(stderr) }
}
