//! Clients of the API that are slow, greedy, gone, or nobody that may come.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::{Host, ask, eventually, get, read_answer, request};
use masq_model::api::ErrorReply;
use masqd::api::server::Patience;
use masqd::api::tls::TlsConfig;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const TOML: (&str, &str) = ("Content-Type", "application/toml");
const VPC: &str = r#"{"name": "green", "vni": 300}"#;

#[test]
fn bodies_have_an_end() {
    let host = Host::start();
    let api = host.api();
    let large = format!("{{\"name\": \"green\", \"vni\": 300{}}}", " ".repeat(1 << 20));
    let reply: ErrorReply = ask(&api, "PUT", "/v1/vpcs/green", &[JSON], &large).expect(413).json();
    assert!(reply.error.contains("1048576"), "{reply}");
    let fitting = format!("{VPC}{}", " ".repeat((1 << 20) - VPC.len()));
    ask(&api, "PUT", "/v1/vpcs/green", &[JSON], &fitting).expect(201);

    // A file may be longer; what announces more than that is not even read.
    ask(&api, "POST", "/v1/apply", &[TOML], &"#".repeat(2 << 20)).expect(200);
    let mut stream = UnixStream::connect(&api).unwrap();
    let head = "POST /v1/apply HTTP/1.1\r\nHost: m\r\nContent-Type: application/toml\r\n\
                Content-Length: 99999999999\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    read_answer(&mut stream).expect(413);

    // In chunks there is no length to go by.
    let mut stream = UnixStream::connect(&api).unwrap();
    let head = "PUT /v1/vpcs/red HTTP/1.1\r\nHost: m\r\nContent-Type: application/json\r\n\
                Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    while stream.write_all(chunk.as_bytes()).is_ok() {}
}

#[test]
fn who_is_slow_is_cut_off() {
    let mut host = Host::new();
    let short = Duration::from_millis(300);
    host.patience = Patience { handshake: short, head: short, object: short, file: short, end: short };
    host.boot(None);
    let api = host.api();
    let put = request("PUT", "/v1/vpcs/green", &[JSON], VPC);
    let ends = |sent: &str| {
        let mut stream = UnixStream::connect(&api).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(sent.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("masqd ends the connection");
        answer
    };
    ends("");
    ends("PUT /v1/vp");
    let answer = ends(&put[..put.len() - 1]);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    // A connection that has been of use ends as well when it is left alone.
    let answer = ends(&request("GET", "/healthz", &[], "").replace("Connection: close\r\n", ""));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    ask(&api, "GET", "/v1/vpcs/green", &[], "").expect(404);
}

#[test]
fn who_does_not_take_its_answers_is_cut_off() {
    let mut host = Host::new();
    host.patience = Patience { head: Duration::from_millis(300), ..Patience::default() };
    host.boot(None);
    let api = host.api();
    let mut stream = UnixStream::connect(&api).unwrap();
    let asking = request("GET", "/v1/counters/none", &[], "").replace("Connection: close\r\n", "");
    // Answers that nobody takes pile up until the connection takes nothing more, and then it is closed.
    while stream.write_all(asking.as_bytes()).is_ok() {}
}

#[test]
fn who_leaves_in_the_middle_leaves_nothing() {
    let host = Host::start();
    let api = host.api();
    let before = get(&api, "/v1/desired");
    let put = request("PUT", "/v1/vpcs/green", &[JSON], VPC);
    for sent in [1, put.len() / 2, put.len() - VPC.len(), put.len() - 1] {
        let mut stream = UnixStream::connect(&api).unwrap();
        stream.write_all(&put.as_bytes()[..sent]).unwrap();
        drop(stream);
        assert_eq!(get(&api, "/v1/desired"), before);
    }
    // Who leaves after the last byte has written everything or nothing; who stays, also if it takes no answer, everything.
    let mut stream = UnixStream::connect(&api).unwrap();
    stream.write_all(put.as_bytes()).unwrap();
    drop(stream);
    let after = get(&api, "/v1/desired");
    assert!(after == before || after.contains("green"), "{after}");
    let mut stream = UnixStream::connect(&api).unwrap();
    stream.write_all(put.as_bytes()).unwrap();
    eventually("a write of somebody who takes no answer", || get(&api, "/v1/desired").contains("green"));
}

#[test]
fn many_connections_are_served_one_after_another() {
    let host = Host::start();
    let api = host.api();
    let idle: Vec<_> = (0..256).map(|_| UnixStream::connect(&api).unwrap()).collect();
    let mut late = UnixStream::connect(&api).unwrap();
    late.write_all(request("GET", "/healthz", &[], "").as_bytes()).unwrap();
    late.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(late.read(&mut [0]).is_err(), "there are slots for 256 connections");
    drop(idle);
    late.set_read_timeout(None).unwrap();
    assert_eq!(read_answer(&mut late).expect(200).body, "ok\n");
}

#[test]
fn what_is_no_http_harms_nobody() {
    let host = Host::start();
    let api = host.api();
    for bytes in [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(),
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /v1/../../etc/passwd HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n",
        b"PUT /v1/vpcs/green HTTP/1.1\r\nHost: m\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"\0\0\0\0\r\n\r\n",
    ] {
        let mut stream = UnixStream::connect(&api).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert_eq!(get(&api, "/healthz"), "ok\n");
}

#[test]
fn who_waits_is_answered_at_the_end() {
    let mut host = Host::start();
    let api = host.api();
    ask(&api, "PUT", "/v1/hosts/h2", &[JSON], r#"{"name": "h2", "underlay": ["192.0.2.2"]}"#).expect(201);
    // It will not be realised, as that host does not exist.
    let mut waiting = UnixStream::connect(&api).unwrap();
    let patch = r#"{"underlay": ["192.0.2.3"]}"#;
    waiting.write_all(request("PATCH", "/v1/hosts/h2?wait=300", &[JSON], patch).as_bytes()).unwrap();
    eventually("the write", || get(&api, "/v1/hosts/h2").contains("192.0.2.3"));
    host.shutdown();
    let answer = read_answer(&mut waiting).expect(200);
    assert!(answer.body.contains("pending"), "{answer:?}");
}

#[test]
fn those_who_wait_leave_room_for_others() {
    let mut host = Host::start();
    let api = host.api();
    // It will not be realised, as that host does not exist.
    let h2 = r#"{"name": "h2", "underlay": ["192.0.2.2"]}"#;
    let (answers, answered) = std::sync::mpsc::channel();
    for _ in 0..256 {
        let mut stream = UnixStream::connect(&api).unwrap();
        stream.write_all(request("PUT", "/v1/hosts/h2?wait=300", &[JSON], h2).as_bytes()).unwrap();
        let answers = answers.clone();
        std::thread::spawn(move || answers.send(read_answer(&mut stream)));
    }
    let pending = |count: usize| {
        for _ in 0..count {
            let answer = answered.recv_timeout(Duration::from_secs(60)).unwrap();
            assert!(matches!(answer.status, 200 | 201) && answer.body.contains("pending"), "{answer:?}");
        }
    };
    pending(256 - 64);
    assert_eq!(get(&api, "/healthz"), "ok\n");
    assert!(get(&api, "/metrics").contains("masqd_"));
    host.shutdown();
    pending(64);
}

#[test]
fn the_socket_is_for_its_owner_and_group() {
    let host = Host::start();
    let mode = std::fs::metadata(host.api()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}

/// An authority and what it has signed, in files.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
}

impl Authority {
    fn new(dir: &Path, name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let file = dir.join(format!("{name}.pem"));
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { issuer: Issuer::new(params, key), file }
    }

    /// Certificate and key of `name`.
    fn sign(&self, dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let (cert, file) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
        std::fs::write(&cert, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        std::fs::write(&file, key.serialize_pem()).unwrap();
        (cert, file)
    }
}

/// What a client with this certificate is answered, or not.
fn over_tls(
    host: &Host,
    authority: &Path,
    client: Option<&(PathBuf, PathBuf)>,
    request: &str,
) -> std::io::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        Some((cert, key)) => {
            let chain = CertificateDer::pem_file_iter(cert).unwrap().map(Result::unwrap).collect();
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from("localhost").unwrap();
    let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut tcp = TcpStream::connect(host.masqd().api_address().unwrap())?;
    let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A masqd that listens on the network, and an administrator's certificate.
fn on_the_network(ours: &Authority, dir: &Path, mut host: Host) -> (Host, (PathBuf, PathBuf)) {
    let (cert, key) = ours.sign(dir, "server");
    let listen = "127.0.0.1:0".parse().unwrap();
    host.tls = Some(TlsConfig { listen, cert, key, client_ca: ours.file.clone() });
    host.boot(None);
    (host, ours.sign(dir, "admin"))
}

#[test]
fn who_has_shown_no_certificate_is_in_nobodys_way() {
    let mut host = Host::new();
    // Nothing but those who come later ends a handshake.
    host.patience.handshake = Duration::from_secs(3600);
    let dir = host.dir.path().to_owned();
    let ours = Authority::new(&dir, "ours");
    let (host, admin) = on_the_network(&ours, &dir, host);
    let address = host.masqd().api_address().unwrap();
    let mut idle: Vec<_> = (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
    let answer = over_tls(&host, &ours.file, Some(&admin), &request("GET", "/healthz", &[], "")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // The oldest have been closed, the latest have not.
    idle[0].set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(matches!(idle[0].read(&mut [0]), Ok(0)));
    idle[299].set_nonblocking(true).unwrap();
    assert_eq!(idle[299].read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_handshake_has_an_end() {
    let mut host = Host::new();
    host.patience.handshake = Duration::from_millis(100);
    let dir = host.dir.path().to_owned();
    let ours = Authority::new(&dir, "ours");
    let (host, _) = on_the_network(&ours, &dir, host);
    let mut idle = TcpStream::connect(host.masqd().api_address().unwrap()).unwrap();
    idle.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(matches!(idle.read(&mut [0]), Ok(0)));
}

#[test]
fn over_the_network_only_certificates_of_the_authority_are_let_in() {
    let host = Host::new();
    let dir = host.dir.path().to_owned();
    let (ours, others) = (Authority::new(&dir, "ours"), Authority::new(&dir, "others"));
    let (host, admin) = on_the_network(&ours, &dir, host);
    let stranger = others.sign(&dir, "stranger");
    let put = request("PUT", "/v1/vpcs/green", &[JSON], VPC);
    for refused in [Some(&stranger), None] {
        let answer = over_tls(&host, &ours.file, refused, &put);
        assert!(answer.as_ref().is_err(), "{answer:?}");
    }
    // Without TLS there is no answer either.
    let mut plain = TcpStream::connect(host.masqd().api_address().unwrap()).unwrap();
    plain.write_all(put.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    ask(&host.api(), "GET", "/v1/vpcs/green", &[], "").expect(404);

    let answer = over_tls(&host, &ours.file, Some(&admin), &put).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    ask(&host.api(), "GET", "/v1/vpcs/green", &[], "").expect(200);
}
