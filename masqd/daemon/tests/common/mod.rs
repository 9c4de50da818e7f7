//! A masqd inside the test, with an RNIC that only keeps books.
#![allow(dead_code)] // Each test uses a part.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use masq_driver::{
    Command, DriverError, EventSink, MAX_DESCRIBED_QPS, ObjectCounts, QpDetails, QpHandle, QpState, QpStatus,
    QpTraffic, Reply, RnicDriver, VnicCounters, VnicId,
};
use masq_model::DesiredState;
use masq_model::api::Applied;
use masq_types::{Lkey, Psn, Rkey};
use masqd::api::server::Patience;
use masqd::api::tls::TlsConfig;
use masqd::store::StoreAddress;
use masqd::{Config, Masqd};
use serde::de::DeserializeOwned;

/// What the RNIC has been told.
#[derive(Default)]
pub struct Books {
    /// Attached devices, with their started queues.
    pub vnics: BTreeMap<VnicId, Vec<u16>>,
    /// Devices that have been attached, ever.
    pub attached: u32,
    /// Objects made and not destroyed.
    pub objects: i64,
    /// Memory tables that were handed over.
    pub memory_tables: u32,
}

/// An RNIC that keeps books and moves no data.
#[derive(Clone, Default)]
pub struct Bookkeeper {
    pub books: Arc<Mutex<Books>>,
    pub sink: Arc<Mutex<Option<Arc<dyn EventSink>>>>,
    /// Whoever holds it keeps the RNIC busy with a new memory table.
    pub memory_gate: Arc<Mutex<()>>,
}

impl RnicDriver for Bookkeeper {
    fn execute(&self, command: Command) -> Result<Reply, DriverError> {
        if matches!(command, Command::SetMemory { .. }) {
            self.books.lock().unwrap().memory_tables += 1;
            drop(self.memory_gate.lock().unwrap());
        }
        let mut books = self.books.lock().unwrap();
        Ok(match command {
            Command::AttachVnic { vnic, .. } => {
                assert!(books.vnics.insert(vnic, Vec::new()).is_none());
                books.attached += 1;
                Reply::Done
            }
            Command::DetachVnic { vnic } => {
                books.vnics.remove(&vnic);
                Reply::Done
            }
            Command::AttachQueue { vnic, queue } => {
                books.vnics.get_mut(&vnic).unwrap().push(queue.index);
                Reply::Done
            }
            Command::DetachQueue { vnic, index } => {
                books.vnics.get_mut(&vnic).unwrap().retain(|i| *i != index);
                Reply::QueueBase { base: 0 }
            }
            Command::CreateMr { .. } => {
                books.objects += 1;
                Reply::MrCreated { lkey: Lkey(0x1100), rkey: Rkey(0x1100) }
            }
            Command::CreateQp { .. } => {
                books.objects += 1;
                Reply::QpCreated { slot: 0, index: 0 }
            }
            Command::CreateCq { .. } | Command::CreateContext { .. } => {
                books.objects += 1;
                Reply::Done
            }
            Command::DestroyMr { .. }
            | Command::DestroyQp { .. }
            | Command::DestroyCq { .. }
            | Command::DestroyContext { .. } => {
                books.objects -= 1;
                Reply::Done
            }
            Command::VnicCounters { .. } => {
                let objects = ObjectCounts { qps: 7, ..ObjectCounts::default() };
                Reply::VnicCounters(VnicCounters { objects, ..VnicCounters::default() })
            }
            Command::VnicEvents { .. } => Reply::Counters(vec![("sent_msgs", 5)]),
            Command::DescribeQps { qps, .. } => {
                assert!(qps.len() <= MAX_DESCRIBED_QPS);
                Reply::QpDetails(qps.into_iter().map(details).collect())
            }
            Command::QueryQp { .. } => Reply::Qp(QpStatus {
                state: QpState::Reset,
                sq_psn: Psn::new(0),
                rq_psn: Psn::new(0),
                sq_draining: false,
            }),
            _ => Reply::Done,
        })
    }
}

/// A queue pair of which there is nothing to tell.
fn details(qp: QpHandle) -> QpDetails {
    QpDetails {
        qp,
        state: QpState::Reset,
        path: None,
        paths: Vec::new(),
        protocol: None,
        requests: 0,
        retries_left: 7,
        rnr_retries_left: 7,
        waits_for: None,
        traffic: QpTraffic::default(),
        counters: Vec::new(),
        last_error: None,
    }
}

/// Desired state of one host on loopback with two tenants on the same addresses.
pub const DESIRED: &str = r#"
[[host]]
name = "h1"
underlay = ["127.0.0.1"]

[[vpc]]
name = "blue"
vni = 100

[[vpc]]
name = "red"
vni = 200

[[security_group]]
name = "blue"
vpc = "blue"

[[vnic]]
name = "blue-1"
vpc = "blue"
host = "h1"
mac = "52:54:00:64:00:01"
addresses = ["192.168.0.1"]
security_groups = ["blue"]

[[vnic]]
name = "red-1"
vpc = "red"
host = "h1"
mac = "52:54:00:c8:00:01"
addresses = ["192.168.0.1"]

"#;

/// A masqd and its directory.
pub struct Host {
    pub dir: tempfile::TempDir,
    pub rnic: Bookkeeper,
    pub patience: Patience,
    pub tls: Option<TlsConfig>,
    masqd: Option<Masqd>,
}

impl Host {
    /// Starts one with [`DESIRED`].
    pub fn start() -> Self {
        let mut host = Host::new();
        host.boot(Some(DesiredState::from_toml(DESIRED).unwrap()));
        host
    }

    /// One that has not been started yet.
    pub fn new() -> Self {
        Host {
            dir: tempfile::tempdir().unwrap(),
            rnic: Bookkeeper::default(),
            patience: Patience::default(),
            tls: None,
            masqd: None,
        }
    }

    /// Starts a masqd, with the store that the last one has left.
    pub fn boot(&mut self, apply: Option<DesiredState>) {
        self.rnic = Bookkeeper::default();
        let rnic = self.rnic.clone();
        let config = Config {
            host: "h1".into(),
            store: StoreAddress::Embedded(self.dir.path().join("store")),
            run_dir: self.dir.path().join("run"),
            apply,
            tls: self.tls.clone(),
            patience: self.patience,
            features: masq_rnic::limits::FEATURES,
        };
        let start = |sink| {
            *rnic.sink.lock().unwrap() = Some(sink);
            Ok(Arc::new(rnic.clone()) as Arc<dyn RnicDriver>)
        };
        self.masqd = Some(Masqd::start(config, start).unwrap());
    }

    /// The masqd.
    pub fn masqd(&self) -> &Masqd {
        self.masqd.as_ref().unwrap()
    }

    /// Ends masqd as SIGTERM does.
    pub fn shutdown(&mut self) {
        self.masqd.take().unwrap().shutdown();
    }

    /// The vhost-user socket of a vNIC.
    pub fn socket(&self, vnic: &str) -> PathBuf {
        self.dir.path().join("run").join(format!("{vnic}.sock"))
    }

    /// The API's socket.
    pub fn api(&self) -> PathBuf {
        self.dir.path().join("run/masqd.sock")
    }
}

/// Waits until `what` holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An answer of the API.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Status line and headers.
    pub head: String,
    pub body: String,
}

impl Answer {
    /// The body, from JSON.
    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The same, if it has this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }
}

/// The bytes of a request.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: masqd\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Reads an answer to its end.
pub fn read_answer(stream: &mut impl Read) -> Answer {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.into(), body: body.into() }
}

/// Asks the API something.
pub fn ask(socket: &Path, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    // It may answer before it has read everything.
    let _ = stream.write_all(request(method, path, headers, body).as_bytes());
    read_answer(&mut stream)
}

/// Body of a successful GET.
pub fn get(socket: &Path, path: &str) -> String {
    ask(socket, "GET", path, &[], "").expect(200).body
}

/// Makes the desired state that of a file in TOML.
pub fn apply(socket: &Path, file: &str) -> Applied {
    let toml = [("Content-Type", "application/toml")];
    ask(socket, "POST", "/v1/apply?prune=true", &toml, file).expect(200).json()
}
