//! Two processes with one host's name, and a store that is set back.

mod common;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::Bookkeeper;
use masq_control::store::{
    Batch, BoxFuture, Committed, Entry, Guard, Snapshot, Store, StoreError, Transaction, Watch,
};
use masq_model::{DesiredState, Endpoint, Object};
use masq_policy::rename::{Endpoints, Found};
use masq_types::{Features, Gid, QpnBlock, Vni, WireQpn};
use masqd::claim::Claim;
use masqd::host::{Host, Refresher, Watchdog};
use masqd::router::Router;
use masqd::store::Embedded;
use masqd::sync::Sync;
use tokio::sync::watch;

async fn write(store: &dyn Store, claim: &Claim) -> Committed {
    let guards = vec![claim.guard(store).await.unwrap()];
    store.commit(Transaction { guards, changes: vec![] }).await.unwrap()
}

#[tokio::test]
async fn the_process_that_has_started_last_writes_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(&dir.path().join("store")).unwrap();
    let (first, second, other) = (Claim::new("h1", 1), Claim::new("h1", 2), Claim::new("h2", 1));
    assert!(matches!(write(&store, &first).await, Committed::Yes(_)));
    assert!(matches!(write(&store, &other).await, Committed::Yes(_)));
    assert!(matches!(write(&store, &first).await, Committed::Yes(_)));
    assert!(matches!(write(&store, &second).await, Committed::Yes(_)));
    assert!(matches!(write(&store, &first).await, Committed::No(_)));
    for _ in 0..2 {
        first.doubt().await;
        let refused = first.guard(&store).await;
        assert!(matches!(&refused, Err(StoreError::Failed(e)) if e.contains("another masqd")), "{refused:?}");
    }
    assert!(matches!(write(&store, &second).await, Committed::Yes(_)));
    // The claim may end with a lease; doubts alone change nothing.
    second.doubt().await;
    let Guard::Unchanged { key, revision } = second.guard(&store).await.unwrap() else {
        panic!("it is there")
    };
    second.doubt().await;
    assert_eq!(second.guard(&store).await.unwrap(), Guard::Unchanged { key: key.clone(), revision });
    store.delete(&key).await.unwrap();
    assert!(matches!(write(&store, &second).await, Committed::No(_)));
    second.doubt().await;
    assert!(matches!(write(&store, &second).await, Committed::Yes(_)));
    // When the younger one is gone, the older one goes on.
    store.delete(&key).await.unwrap();
    assert!(matches!(write(&store, &first).await, Committed::Yes(_)));
}

/// A handle on it.
#[derive(Clone)]
struct Handle(Arc<Flaky>);

/// A store that can be away, and come back as another one.
struct Flaky {
    inner: Mutex<Arc<Embedded>>,
    is_away: AtomicBool,
}

impl Flaky {
    fn asked(&self) -> Result<Arc<Embedded>, StoreError> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("it is away".into()));
        }
        Ok(self.inner.lock().unwrap().clone())
    }
}

impl Store for Handle {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move { self.0.asked()?.get(key).await })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move { self.0.asked()?.list(prefix).await })
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(async move { self.0.asked()?.commit(transaction).await })
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: u64) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            let watch = self.0.asked()?.watch(prefix, after).await?;
            let watch: Box<dyn Watch> = Box::new(FlakyWatch { store: self.0.clone(), watch });
            Ok(watch)
        })
    }
}

struct FlakyWatch {
    store: Arc<Flaky>,
    watch: Box<dyn Watch>,
}

impl Watch for FlakyWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<Batch, StoreError>> {
        Box::pin(async move {
            loop {
                self.store.asked()?;
                let next = tokio::time::timeout(Duration::from_millis(5), self.watch.next()).await;
                // It may have gone away meanwhile, before what came.
                self.store.asked()?;
                if let Ok(batch) = next {
                    return batch;
                }
            }
        })
    }
}

const VNI: u32 = 100;

/// A host and its vNIC, at this address.
fn desired(address: &str) -> Vec<Object> {
    let text = format!(
        "[[host]]\nname = \"h2\"\nunderlay = [\"192.0.2.2\"]\n[[vpc]]\nname = \"blue\"\nvni = {VNI}\n\
         [[vnic]]\nname = \"peer\"\nvpc = \"blue\"\nhost = \"h2\"\nmac = \"52:54:00:64:00:09\"\naddresses = [\"{address}\"]\n"
    );
    DesiredState::from_toml(&text).unwrap().objects().values().cloned().collect()
}

/// What that host publishes.
fn endpoint(address: &str) -> Object {
    Object::Endpoint(Endpoint {
        vnic: "peer".into(),
        vni: Vni::new(VNI).unwrap(),
        gids: vec![gid(address)],
        host: "h2".into(),
        addresses: vec!["192.0.2.2".parse().unwrap()],
        qpn_blocks: vec![QpnBlock { first: 1 << 14, len: 1 << 14 }],
        gsi_qpn: WireQpn::from_wire(1 << 14),
        features: Features::NONE,
        generation: 1,
    })
}

fn gid(address: &str) -> Gid {
    Gid::from(address.parse::<IpAddr>().unwrap())
}

async fn write_all(store: &Embedded, objects: impl IntoIterator<Item = Object>) {
    for object in objects {
        store.put(&object.key().to_string(), object.to_json()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_known_stays_while_the_store_is_away_and_a_store_that_was_set_back_counts() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| Arc::new(Embedded::open(&dir.path().join(name)).unwrap());
    let (store, earlier) = (open("store"), open("earlier"));
    for n in 0..20 {
        store.put("masq/v1/none/x", vec![n]).await.unwrap();
    }
    write_all(&store, desired("10.0.0.1").into_iter().chain([endpoint("10.0.0.1")])).await;
    write_all(&earlier, desired("10.0.0.2").into_iter().chain([endpoint("10.0.0.2")])).await;
    let flaky = Arc::new(Flaky { inner: Mutex::new(store.clone()), is_away: AtomicBool::new(false) });
    let (refresher, misses) = Refresher::new();
    let watchdog = Watchdog::new(tokio::runtime::Handle::current());
    let rnic = Arc::new(Bookkeeper::default());
    let host = Arc::new(Host::new("h1".into(), rnic, Arc::new(Router::default()), refresher, watchdog));
    let (changed, mut revision) = watch::channel(0);
    let sync = tokio::spawn(Sync::new(Arc::new(Handle(flaky.clone())), host.clone(), misses, changed).run());
    let finds = |address: &str| {
        matches!(host.directory.read().find(Vni::new(VNI).unwrap(), gid(address)), Found::Realised(_))
    };
    revision.wait_for(|r| *r > 20).await.unwrap();
    assert!(finds("10.0.0.1"));

    flaky.is_away.store(true, Ordering::Relaxed);
    // The vNIC's host is gone, and this one does not hear of it.
    store.delete("masq/v1/endpoint/peer").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(finds("10.0.0.1"), "what is known stays");
    flaky.is_away.store(false, Ordering::Relaxed);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while finds("10.0.0.1") {
        assert!(tokio::time::Instant::now() < deadline, "it does not hear of it afterwards");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    flaky.is_away.store(true, Ordering::Relaxed);
    *flaky.inner.lock().unwrap() = earlier.clone();
    tokio::time::sleep(Duration::from_millis(50)).await;
    flaky.is_away.store(false, Ordering::Relaxed);
    tokio::time::timeout(Duration::from_secs(10), revision.wait_for(|r| *r < 20)).await.unwrap().unwrap();
    assert!(finds("10.0.0.2") && !finds("10.0.0.1"));
    // It is followed, although all its revisions are old ones.
    earlier.delete("masq/v1/endpoint/peer").await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), revision.changed()).await.unwrap().unwrap();
    assert!(!finds("10.0.0.2"));
    sync.abort();
}
