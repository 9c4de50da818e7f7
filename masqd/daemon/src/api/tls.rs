//! The API over TCP: TLS, and only for clients with a certificate.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::{ServerConnection, WebPkiClientVerifier};
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Where to listen, and what to show and to demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Address and port.
    pub listen: SocketAddr,
    /// Our certificate and those above it, in PEM.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
    /// The authorities whose clients may come, in PEM.
    pub client_ca: PathBuf,
}

/// TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file.
    #[error("cannot read {}: {source}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// A file that should have certificates has none.
    #[error("{} has no certificate", .0.display())]
    Empty(PathBuf),
    /// An authority.
    #[error("{}: {source}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// Clients could not be told apart.
    #[error("cannot verify clients: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// Certificate and key do not belong together, or are of no use.
    #[error("cannot use the certificate: {0}")]
    Certificate(#[from] rustls::Error),
    /// The address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// What agrees on TLS with clients.
pub fn acceptor(config: &TlsConfig) -> Result<TlsAcceptor, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(&config.client_ca)? {
        roots
            .add(authority)
            .map_err(|source| TlsError::Authority { path: config.client_ca.clone(), source })?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build()?;
    let key = PrivateKeyDer::from_pem_file(&config.key)
        .map_err(|source| TlsError::Pem { path: config.key.clone(), source })?;
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(&config.cert)?, key)?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(tls)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |source| TlsError::Pem { path: path.to_owned(), source };
    let all = CertificateDer::pem_file_iter(path).map_err(wrong)?.collect::<Result<Vec<_>, _>>();
    match all.map_err(wrong)? {
        all if all.is_empty() => Err(TlsError::Empty(path.to_owned())),
        all => Ok(all),
    }
}

/// The subject of the client's certificate, which has been verified.
pub fn subject(connection: &ServerConnection) -> String {
    let certificate = connection.peer_certificates().and_then(|all| all.first());
    let parsed = certificate.and_then(|der| X509Certificate::from_der(der).ok());
    parsed.map_or_else(|| "a certificate without subject".into(), |(_, c)| c.subject().to_string())
}
