//! The stores behind [`masq_control::store::Store`].

mod embedded;
mod etcd;
mod file;

use std::path::PathBuf;
use std::sync::Arc;

use masq_control::store::Store;
use masq_model::Key;

pub use embedded::Embedded;
pub use etcd::{AccessError, Etcd, EtcdConfig, EtcdFiles};
pub use file::FileError;

use crate::claim::CLAIMS;
use crate::cli::StoreAddress;

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
