//! What an etcd cluster wants to see of its clients, from files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The files that lead into an etcd cluster. They are read once, when the store is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct EtcdFiles {
    /// Authorities (PEM) that vouch for the etcd servers. Needed for https:// URLs, since the system's own
    /// authorities are not asked.
    #[arg(long = "etcd-ca", value_name = "FILE")]
    pub ca: Option<PathBuf>,

    /// Certificate (PEM) by which etcd knows this host.
    #[arg(long = "etcd-cert", value_name = "FILE", requires_all = ["ca", "key"])]
    pub cert: Option<PathBuf>,

    /// Private key (PEM) of that certificate.
    #[arg(long = "etcd-key", value_name = "FILE", requires_all = ["ca", "cert"])]
    pub key: Option<PathBuf>,

    /// User of etcd, where it wants one.
    #[arg(long = "etcd-user", value_name = "NAME", requires = "password_file")]
    pub user: Option<String>,

    /// File with the password of that user; a line break at its end does not count.
    #[arg(long = "etcd-password-file", value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
}

/// Why the way into a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Files for etcd, and no etcd.
    #[error("the --etcd-... options go with a store etcd:URL only")]
    NotEtcd,
    /// Encrypted and plain URLs.
    #[error("either all URLs of a store begin with https:// or none does")]
    Mixed,
    /// TLS without an authority.
    #[error("etcd at https:// URLs needs --etcd-ca, the authorities that vouch for it")]
    NoAuthority,
    /// An authority without TLS.
    #[error("--etcd-ca, --etcd-cert and --etcd-key need https:// URLs")]
    NoTls,
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl EtcdFiles {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == EtcdFiles::default()
    }

    /// Adds what the files hold to `options`.
    pub(super) fn apply(
        &self,
        urls: &[String],
        options: ConnectOptions,
    ) -> Result<ConnectOptions, AccessError> {
        let mut options = options;
        let encrypted = urls.iter().filter(|u| u.starts_with("https://")).count();
        if encrypted != 0 && encrypted != urls.len() {
            return Err(AccessError::Mixed);
        }
        match (&self.ca, encrypted != 0) {
            (None, true) => return Err(AccessError::NoAuthority),
            (Some(_), false) => return Err(AccessError::NoTls),
            (None, false) => {}
            (Some(ca), true) => options = options.with_tls(self.tls(ca)?),
        }
        if let (Some(user), Some(path)) = (&self.user, &self.password_file) {
            let password = String::from_utf8(read(path)?)
                .map_err(|_| AccessError::Content { path: path.clone(), reason: "it is not text".into() })?;
            options = options
                .with_user(user, password.trim_end_matches(['\r', '\n']))
                .with_auto_token_refresh(true);
        }
        Ok(options)
    }

    fn tls(&self, ca: &Path) -> Result<TlsOptions, AccessError> {
        let pem = read(ca)?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca, &pem)? {
            roots.add(certificate).map_err(wrong(ca))?;
        }
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(&pem));
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            let (cert_pem, key_pem) = (read(cert)?, read(key)?);
            let private = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|e| AccessError::Content {
                path: key.clone(),
                reason: format!("no private key: {e}"),
            })?;
            // Whether they belong together; the connections make their own.
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(wrong(cert))?
                .with_root_certificates(roots)
                .with_client_auth_cert(certificates(cert, &cert_pem)?, private)
                .map_err(wrong(key))?;
            tls = tls.identity(Identity::from_pem(cert_pem, key_pem));
        }
        Ok(tls)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, AccessError> {
    std::fs::read(path).map_err(|source| AccessError::Read { path: path.into(), source })
}

fn wrong(path: &Path) -> impl Fn(rustls::Error) -> AccessError + '_ {
    |e| AccessError::Content { path: path.into(), reason: e.to_string() }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, AccessError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(AccessError::Content { path: path.into(), reason: "no certificates in it".into() }),
        Err(e) => Err(AccessError::Content { path: path.into(), reason: e.to_string() }),
    }
}
