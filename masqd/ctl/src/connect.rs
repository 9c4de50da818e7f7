//! Ways to masqd: its Unix socket, or mutual TLS.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use hyper::Uri;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// A stream of bytes to masqd and back.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Where masqd listens.
#[derive(Clone)]
pub enum Target {
    /// A Unix socket.
    Socket(PathBuf),
    /// TCP, with TLS that shows who either side is.
    Server(Server, TlsConnector),
}

/// Address of a masqd that listens on TCP: `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// A name or an address, without brackets; what the certificate must be for.
    host: String,
    port: u16,
}

/// The text is not of the form `https://HOST:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not of the form https://HOST:PORT")]
pub struct ParseServerError;

impl FromStr for Server {
    type Err = ParseServerError;

    fn from_str(text: &str) -> Result<Server, ParseServerError> {
        let uri: Uri = text.parse().map_err(|_| ParseServerError)?;
        let plain = uri.path() == "/" && uri.query().is_none();
        let (Some("https"), Some(host), Some(port), true) =
            (uri.scheme_str(), uri.host(), uri.port_u16(), plain)
        else {
            return Err(ParseServerError);
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        ServerName::try_from(host).map_err(|_| ParseServerError)?;
        Ok(Server { host: host.into(), port })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Why certificates and keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read as PEM.
    #[error("cannot read {what} from {}: {source}", path.display())]
    Pem {
        /// What it should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// What the files hold does not fit together.
    #[error("cannot use the certificates and the key: {0}")]
    Tls(#[from] rustls::Error),
}

/// The side of TLS that presents the certificate chain in `cert` with its `key`, and accepts what `ca` has signed. All
/// are files in PEM.
pub fn tls(cert: &Path, key: &Path, ca: &Path) -> Result<TlsConnector, IdentityError> {
    let chain = certificates("a certificate", cert)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|source| IdentityError::Pem {
        what: "a private key",
        path: key.into(),
        source,
    })?;
    let mut roots = RootCertStore::empty();
    for root in certificates("a CA's certificate", ca)? {
        roots.add(root)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let wrong = |source| IdentityError::Pem { what, path: path.into(), source };
    let found: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)?;
    if found.is_empty() { Err(wrong(pem::Error::NoItemsFound)) } else { Ok(found) }
}

impl Target {
    /// Connects.
    pub async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Target::Socket(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Target::Server(server, tls) => {
                let name = ServerName::try_from(server.host.clone()).map_err(io::Error::other)?;
                let stream = TcpStream::connect((server.host.as_str(), server.port)).await?;
                Ok(Box::new(tls.connect(name, stream).await?))
            }
        }
    }

    /// What the `Host` header says.
    pub fn authority(&self) -> String {
        match self {
            Target::Socket(_) => "masqd".into(),
            Target::Server(server, _) => server.to_string(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Socket(path) => path.display().fmt(f),
            Target::Server(server, _) => server.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_https_with_a_port() {
        for (text, shown) in [
            ("https://h1.example:8443", "h1.example:8443"),
            ("https://10.0.0.1:1/", "10.0.0.1:1"),
            ("https://[fd00::1]:8443", "[fd00::1]:8443"),
        ] {
            assert_eq!(text.parse::<Server>().map(|s| s.to_string()), Ok(shown.into()), "{text}");
        }
        for bad in [
            "",
            "h1:8443",
            "http://h1:8443",
            "https://h1",
            "https://h1:8443/v1",
            "https://:1",
            "https://h1:0x1",
        ] {
            assert_eq!(bad.parse::<Server>(), Err(ParseServerError), "{bad}");
        }
    }
}
