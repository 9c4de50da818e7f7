//! A masqd that listens on TCP with mutual TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::server::{Ended, Recorder, Script, background, ended, masqctl};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// An authority, with files of what it signs.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: TempDir,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, dir }
    }

    fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Files of a certificate for a name, and of its key.
    fn identity(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let cert =
            CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let path = |suffix: &str| self.dir.path().join(format!("{name}.{suffix}"));
        std::fs::write(path("pem"), cert.pem()).unwrap();
        std::fs::write(path("key"), key.serialize_pem()).unwrap();
        (path("pem"), path("key"))
    }

    /// A server that shows an address as its name and demands certificates of this authority.
    fn serve(&self, name: &str, script: Script) -> u16 {
        let (cert, key) = self.identity(name);
        let chain: Vec<_> = CertificateDer::pem_file_iter(cert).unwrap().collect::<Result<_, _>>().unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        background(move || async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // A client may be refused.
                if let Ok(stream) = acceptor.accept(stream).await {
                    script.clone().serve(stream).await;
                }
            }
        });
        port
    }
}

fn counters(port: u16, identity: &(PathBuf, PathBuf), ca: &Path) -> Ended {
    let mut command = masqctl();
    command
        .args(["counters", "--server", &format!("https://127.0.0.1:{port}")])
        .arg("--cert")
        .arg(&identity.0)
        .arg("--key")
        .arg(&identity.1)
        .arg("--ca")
        .arg(ca);
    ended(command, "")
}

#[test]
fn both_sides_show_who_they_are() {
    let ours = Authority::new();
    let client = ours.identity("operator");
    let script = Script::default();
    script.answer(200, json!({}));
    let port = ours.serve("127.0.0.1", script.clone());
    assert_eq!(counters(port, &client, &ours.ca()).ok(), "COUNTER  VALUE\n");
    assert_eq!(script.requests()[0].header("host"), Some(format!("127.0.0.1:{port}").as_str()));

    // The environment says it as well, but the command line comes first.
    let local = Recorder::new(&[(200, json!({}))]);
    let mut command = masqctl();
    command.arg("counters").arg("--socket").arg(local.socket());
    command.env("MASQD_SERVER", format!("https://127.0.0.1:{port}"));
    ended(command, "").ok();
    local.request();
    script.answer(200, json!({}));
    let mut command = masqctl();
    command.arg("counters").env("MASQD_SERVER", format!("https://127.0.0.1:{port}"));
    command.env("MASQD_CERT", &client.0).env("MASQD_KEY", &client.1).env("MASQD_CA", ours.ca());
    ended(command, "").ok();
    assert_eq!(script.requests().len(), 2);
}

#[test]
fn strangers_are_not_talked_to() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let script = Script::default();
    let port = ours.serve("127.0.0.1", script.clone());
    let client = ours.identity("operator");

    let (code, message) = counters(port, &client, &theirs.ca()).failed();
    assert!(code == 3 && message.contains("certificate"), "{message}");
    let (code, message) = counters(port, &theirs.identity("stranger"), &ours.ca()).failed();
    assert!(code == 3 && message.contains("masqd at 127.0.0.1"), "{message}");
    let elsewhere = ours.serve("192.0.2.1", script.clone());
    let (code, message) = counters(elsewhere, &client, &ours.ca()).failed();
    assert!(code == 3 && message.contains("name"), "{message}");
    assert!(script.requests().is_empty());
}

#[test]
fn files_that_are_no_identity_are_named() {
    let ours = Authority::new();
    let (cert, key) = ours.identity("operator");
    let (code, message) = counters(1, &(key.clone(), key.clone()), &ours.ca()).failed();
    assert!(
        code == 2 && message.contains("cannot read a certificate from") && message.contains("operator.key"),
        "{message}"
    );
    let (code, message) = counters(1, &(cert.clone(), cert.clone()), &ours.ca()).failed();
    assert!(code == 2 && message.contains("cannot read a private key from"), "{message}");
    let other = ours.identity("other").1;
    let (code, message) = counters(1, &(cert, other), &ours.ca()).failed();
    assert!(code == 2 && message.contains("cannot use the certificates and the key"), "{message}");
}
