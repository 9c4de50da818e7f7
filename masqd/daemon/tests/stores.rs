//! One suite over both stores, and what only etcd does. etcd is the distribution's, on loopback.

mod etcd_servers;

use std::time::{Duration, Instant};

use etcd_servers::{Cluster, PATIENCE};
use masq_control::store::{Batch, Change, Committed, Guard, Store, StoreError, Transaction, Watch};
use masqd::store::Embedded;

fn put(key: &str, value: &str) -> Change {
    Change::Put { key: key.into(), value: value.into() }
}

fn delete(key: &str) -> Change {
    Change::Delete { key: key.into() }
}

async fn commit(store: &dyn Store, guards: Vec<Guard>, changes: Vec<Change>) -> Committed {
    store.commit(Transaction { guards, changes }).await.unwrap()
}

async fn next(watch: &mut dyn Watch) -> Result<Batch, StoreError> {
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("the watch sees a change")
}

async fn suite(store: &dyn Store) {
    entries(store).await;
    guards(store).await;
    watches(store).await;
    large_transactions(store).await;
}

async fn entries(store: &dyn Store) {
    let before = store.list("s/").await.unwrap();
    assert!(before.entries.is_empty());
    let first = store.put("s/b", b"1".to_vec()).await.unwrap();
    let second = store.put("s/a", b"2".to_vec()).await.unwrap();
    store.put("t/a", b"3".to_vec()).await.unwrap();
    assert!(before.revision < first && first < second);
    let after = store.list("s/").await.unwrap();
    let seen: Vec<_> =
        after.entries.iter().map(|e| (e.key.as_str(), e.value.as_slice(), e.revision)).collect();
    assert_eq!(seen, [("s/a", b"2".as_slice(), second), ("s/b", b"1".as_slice(), first)]);
    assert!(after.revision > second);
    assert_eq!(store.get("s/a").await.unwrap().unwrap().revision, second);
    assert_eq!(store.get("s/").await.unwrap(), None);
    store.delete("s/a").await.unwrap();
    assert_eq!(store.get("s/a").await.unwrap(), None);
    store.delete("s/a").await.unwrap();
}

async fn guards(store: &dyn Store) {
    let absent = || Guard::Absent { key: "g/a".into() };
    let Committed::Yes(revision) = commit(store, vec![absent()], vec![put("g/a", "1")]).await else {
        panic!("it was absent")
    };
    let refused = commit(store, vec![absent()], vec![put("g/a", "2"), put("g/b", "2")]).await;
    assert_eq!(refused, Committed::No(revision));
    assert_eq!(store.list("g/").await.unwrap().entries.len(), 1, "all or nothing");
    let unchanged = |revision| Guard::Unchanged { key: "g/a".into(), revision };
    let Committed::Yes(_) = commit(store, vec![unchanged(revision)], vec![put("g/a", "3")]).await else {
        panic!("it was unchanged")
    };
    let Committed::No(_) = commit(store, vec![unchanged(revision)], vec![delete("g/a")]).await else {
        panic!("it was changed")
    };
    assert_eq!(store.get("g/a").await.unwrap().unwrap().value, b"3");
}

async fn watches(store: &dyn Store) {
    let start = store.list("w/").await.unwrap().revision;
    // Changes before the watch begins, but after the reading, are seen as well.
    commit(store, vec![], vec![put("w/a", "1"), put("x/a", "1"), put("w/b", "1")]).await;
    let mut watch = store.watch("w/", start).await.unwrap();
    store.put("x/b", b"2".to_vec()).await.unwrap();
    let batch = next(&mut *watch).await.unwrap();
    assert_eq!(batch.changes, [put("w/a", "1"), put("w/b", "1")]);
    // Giving up waiting loses nothing.
    for _ in 0..3 {
        assert!(tokio::time::timeout(Duration::from_millis(20), watch.next()).await.is_err());
    }
    let deleted = store.delete("w/a").await.unwrap();
    let written = store.put("w/b", b"2".to_vec()).await.unwrap();
    let mut seen = Vec::new();
    let mut revisions = vec![batch.revision];
    while seen.len() < 2 {
        let batch = next(&mut *watch).await.unwrap();
        revisions.push(batch.revision);
        seen.extend(batch.changes);
    }
    assert_eq!(seen, [delete("w/a"), put("w/b", "2")]);
    assert!(revisions.is_sorted() && revisions.last() == Some(&written) && deleted < written);
    // Another watch from the start sees all of it again.
    let mut again = store.watch("w/", start).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 4 {
        seen.extend(next(&mut *again).await.unwrap().changes);
    }
    assert_eq!(seen, [put("w/a", "1"), put("w/b", "1"), delete("w/a"), put("w/b", "2")]);
}

async fn large_transactions(store: &dyn Store) {
    let all = || (0..500).map(|n| put(&format!("l/{n:03}"), "v")).collect::<Vec<_>>();
    commit(store, vec![Guard::Absent { key: "l/000".into() }], all()).await;
    let entries = store.list("l/").await.unwrap().entries;
    assert_eq!(entries.len(), 500);
    assert!(entries.iter().all(|e| e.revision == entries[0].revision), "at once");
    let refused = commit(store, vec![Guard::Absent { key: "l/000".into() }], all()).await;
    assert!(matches!(refused, Committed::No(_)));
    assert_eq!(store.list("l/").await.unwrap().entries, entries);
}

#[tokio::test]
async fn embedded() {
    let dir = tempfile::tempdir().unwrap();
    suite(&Embedded::open(&dir.path().join("store")).unwrap()).await;
}

#[tokio::test]
async fn embedded_forgets_old_changes_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open_with(&dir.path().join("store"), 2).unwrap();
    let mut watch = store.watch("", 0).await.unwrap();
    for n in 0..3 {
        store.put("k", vec![n]).await.unwrap();
    }
    assert!(matches!(next(&mut *watch).await, Err(StoreError::Compacted(0))));
    assert!(matches!(store.watch("", 0).await, Err(StoreError::Compacted(0))));
    let mut watch = store.watch("", 1).await.unwrap();
    assert_eq!(next(&mut *watch).await.unwrap().revision, 2);
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd() {
    let server = Cluster::start(1);
    suite(&server.connect(LONG).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_drops_what_a_host_has_realised_when_it_leaves_or_dies() {
    let server = Cluster::start(1);
    let watcher = server.connect(LONG).await;
    let leaving = server.connect(LONG).await;
    let dying = server.connect(Duration::from_secs(1)).await;
    leaving.put("masq/v1/endpoint/a", b"{}".to_vec()).await.unwrap();
    leaving.put("masq/v1/vnic/a", b"{}".to_vec()).await.unwrap();
    dying.put("masq/v1/endpoint/b", b"{}".to_vec()).await.unwrap();
    // A second process of the same host takes an endpoint over from the first.
    watcher.put("masq/v1/endpoint/c", b"{}".to_vec()).await.unwrap();
    dying.put("masq/v1/endpoint/d", b"{}".to_vec()).await.unwrap();
    watcher.put("masq/v1/endpoint/d", b"{}".to_vec()).await.unwrap();

    // While it lives, its lease is kept alive.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(watcher.get("masq/v1/endpoint/b").await.unwrap().is_some());

    let revision = watcher.list("").await.unwrap().revision;
    let mut watch = watcher.watch("masq/v1/endpoint/", revision).await.unwrap();
    leaving.leave().await;
    assert_eq!(next(&mut *watch).await.unwrap().changes, [delete("masq/v1/endpoint/a")]);
    drop(dying);
    assert_eq!(next(&mut *watch).await.unwrap().changes, [delete("masq/v1/endpoint/b")]);
    let left: Vec<String> = watcher.list("masq/").await.unwrap().entries.into_iter().map(|e| e.key).collect();
    assert_eq!(left, ["masq/v1/endpoint/c", "masq/v1/endpoint/d", "masq/v1/vnic/a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_may_be_away_for_a_while() {
    let mut server = Cluster::start(1);
    let store = server.connect(LONG).await;
    let revision = store.put("masq/v1/vnic/a", b"1".to_vec()).await.unwrap();
    let mut watch = store.watch("masq/", revision).await.unwrap();
    server.kill(0);
    assert!(matches!(next(&mut *watch).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(store.list("masq/").await, Err(StoreError::Unavailable(_))));
    server.boot(0);
    let deadline = Instant::now() + PATIENCE;
    let mut watch = loop {
        match store.watch("masq/", revision).await {
            Ok(watch) => break watch,
            Err(e) => assert!(Instant::now() < deadline, "{e}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    store.put("masq/v1/vnic/a", b"2".to_vec()).await.unwrap();
    assert_eq!(next(&mut *watch).await.unwrap().changes, [put("masq/v1/vnic/a", "2")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_forgets_old_changes_and_says_so() {
    let server = Cluster::start(1);
    let store = server.connect(LONG).await;
    let first = store.put("k", b"1".to_vec()).await.unwrap();
    let last = store.put("k", b"2".to_vec()).await.unwrap();
    let mut client = etcd_client::Client::connect([server.url(0)], None).await.unwrap();
    client.compact(last as i64, None).await.unwrap();
    let mut watch = store.watch("k", first - 1).await.unwrap();
    assert!(matches!(next(&mut *watch).await, Err(StoreError::Compacted(_))));
}
