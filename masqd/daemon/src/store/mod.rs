//! The stores behind [`masq_control::store::Store`].

mod embedded;
mod etcd;
mod file;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use masq_control::store::Store;
use masq_model::Key;

pub use embedded::Embedded;
pub use etcd::{AccessError, Etcd, EtcdConfig, EtcdFiles};
pub use file::FileError;

use crate::claim::CLAIMS;

/// Which store to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// A file on this host.
    Embedded(PathBuf),
    /// An etcd cluster.
    Etcd(EtcdConfig),
}

impl StoreAddress {
    /// The store, reached with these files.
    pub fn with_files(self, files: EtcdFiles) -> Result<Self, AccessError> {
        match self {
            StoreAddress::Etcd(config) => Ok(StoreAddress::Etcd(EtcdConfig { files, ..config })),
            embedded if files.is_empty() => Ok(embedded),
            _ => Err(AccessError::NotEtcd),
        }
    }
}

impl FromStr for StoreAddress {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if let Some(path) = s.strip_prefix("embedded:") {
            return if path.is_empty() {
                Err("embedded: needs the path of a file".into())
            } else {
                Ok(StoreAddress::Embedded(path.into()))
            };
        }
        let urls =
            s.strip_prefix("etcd:").ok_or("a store is embedded:PATH or etcd:http[s]://HOST:PORT[,...]")?;
        let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
        let rest = |u: &str| u.strip_prefix("http://").or(u.strip_prefix("https://")).map(str::len);
        match urls.iter().find(|u| rest(u).is_none_or(|len| len == 0)) {
            Some(bad) => Err(format!("{bad:?} is not an etcd client URL such as http://10.0.0.1:2379")),
            None => Ok(StoreAddress::Etcd(EtcdConfig::new(urls))),
        }
    }
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file.
    #[error("cannot open the store {}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: FileError,
    },
    /// etcd.
    #[error("cannot use the store: {0}")]
    Etcd(#[from] AccessError),
}

/// A store, and what is needed to leave it.
#[derive(Clone)]
pub enum AnyStore {
    /// A file.
    Embedded(Arc<Embedded>),
    /// etcd.
    Etcd(Arc<Etcd>),
}

impl AnyStore {
    /// Opens the store at `address`. An etcd that is away is no error: it may come.
    pub fn open(address: &StoreAddress) -> Result<Self, OpenError> {
        match address {
            StoreAddress::Embedded(path) => match Embedded::open(path) {
                Ok(store) => Ok(AnyStore::Embedded(Arc::new(store))),
                Err(source) => Err(OpenError::File { path: path.clone(), source }),
            },
            StoreAddress::Etcd(config) => Ok(AnyStore::Etcd(Arc::new(Etcd::open(config.clone())?))),
        }
    }

    /// The store.
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            AnyStore::Embedded(s) => s.clone(),
            AnyStore::Etcd(s) => s.clone(),
        }
    }

    /// What people call it.
    pub fn describe(&self) -> String {
        match self {
            AnyStore::Embedded(s) => format!("embedded:{}", s.path().display()),
            AnyStore::Etcd(s) => format!("etcd:{}", s.urls().join(",")),
        }
    }

    /// Leaves the store: what this host has realised is withdrawn at once, where the store can do that.
    pub async fn leave(&self) {
        if let AnyStore::Etcd(s) = self {
            s.leave().await;
        }
    }
}

/// Whether an entry is realised state, which lives only as long as the host that wrote it.
fn is_ephemeral(key: &str) -> bool {
    key.starts_with(CLAIMS) || key.parse::<Key>().is_ok_and(|k| !k.kind().is_desired())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores() {
        assert_eq!("embedded:/var/db".parse(), Ok(StoreAddress::Embedded("/var/db".into())));
        let two = |urls: [&str; 2]| Ok(StoreAddress::Etcd(EtcdConfig::new(urls.map(String::from).to_vec())));
        assert_eq!("etcd:http://a:1,http://b:2".parse(), two(["http://a:1", "http://b:2"]));
        assert_eq!("etcd:https://a:1,https://b:2".parse(), two(["https://a:1", "https://b:2"]));
        for bad in ["", "embedded:", "etcd:", "etcd:a:1", "etcd:http://a:1,", "etcd:https://", "redis:x"] {
            assert!(bad.parse::<StoreAddress>().is_err(), "{bad}");
        }
    }
}
