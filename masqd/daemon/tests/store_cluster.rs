//! A store in an etcd cluster of three whose members die, come back, and forget.

mod etcd_servers;

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_servers::{Cluster, PATIENCE};
use masq_control::store::{Change, Committed, Guard, Store, StoreError, Transaction};
use masqd::store::{Etcd, EtcdConfig};

const LONG: Duration = Duration::from_secs(60);
const COUNTER: &str = "w/counter";

fn put(key: &str, value: impl Into<Vec<u8>>) -> Change {
    Change::Put { key: key.into(), value: value.into() }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

/// Counts up, one transaction a number, until it has reached `last`. What has become of a transaction of unknown outcome it
/// finds out by reading.
async fn count(store: Arc<Etcd>, last: u64) {
    let (mut next, mut revision) = (1, None);
    while next <= last {
        let guard = match revision {
            None => Guard::Absent { key: COUNTER.into() },
            Some(revision) => Guard::Unchanged { key: COUNTER.into(), revision },
        };
        let changes =
            vec![put(COUNTER, next.to_string()), put(&format!("w/{}", next % 10), next.to_string())];
        match store.commit(Transaction { guards: vec![guard], changes }).await {
            Ok(Committed::Yes(r)) => {
                (next, revision) = (next + 1, Some(r));
            }
            // The only writer is told so only when its own transaction of unknown outcome was made after it had looked.
            Ok(Committed::No(_)) | Err(StoreError::Unavailable(_)) => loop {
                match store.get(COUNTER).await {
                    Ok(Some(entry)) => {
                        let there = number(&entry.value);
                        assert!(
                            there == next || there + 1 == next,
                            "{there} is there, {next} was to be written"
                        );
                        (next, revision) = (there + 1, Some(entry.revision));
                        break;
                    }
                    Ok(None) => {
                        assert_eq!(next, 1);
                        break;
                    }
                    Err(StoreError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                    Err(e) => panic!("{e}"),
                }
            },
            Err(e) => panic!("{e}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Follows the counter until it has reached `last`; the numbers and how often it had to begin a watch again.
async fn follow(store: Arc<Etcd>, last: u64) -> (Vec<u64>, u32) {
    let (mut seen, mut revision, mut watches) = (Vec::new(), 0, 0);
    while seen.last() != Some(&last) {
        let Ok(mut watch) = store.watch("w/", revision).await else { continue };
        watches += 1;
        loop {
            match watch.next().await {
                Ok(batch) => {
                    assert!(batch.revision > revision, "{} after {revision}", batch.revision);
                    revision = batch.revision;
                    for change in &batch.changes {
                        match change {
                            Change::Put { key, value } if key == COUNTER => seen.push(number(value)),
                            Change::Put { key, value } => {
                                assert_eq!(*key, format!("w/{}", number(value) % 10))
                            }
                            Change::Delete { key } => panic!("{key} was deleted"),
                        }
                    }
                    if seen.last() == Some(&last) {
                        break;
                    }
                }
                Err(StoreError::Unavailable(_)) => break,
                Err(e) => panic!("{e}"),
            }
        }
    }
    (seen, watches)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_leaders_die_everything_acknowledged_is_seen_once_and_in_order() {
    const LAST: u64 = 1500;
    let mut cluster = Cluster::start(3);
    cluster.leader().await;
    let writer = tokio::spawn(count(Arc::new(cluster.connect(LONG).await), LAST));
    let watchers: Vec<_> = {
        let mut watchers = Vec::new();
        for _ in 0..4 {
            watchers.push(tokio::spawn(follow(Arc::new(cluster.connect(LONG).await), LAST)));
        }
        watchers
    };
    let mut deaths = 0;
    while !writer.is_finished() && deaths < 4 {
        let leader = cluster.leader().await;
        cluster.kill(leader);
        deaths += 1;
        tokio::time::sleep(Duration::from_millis(1200)).await;
        cluster.boot(leader);
        tokio::time::sleep(Duration::from_millis(800)).await;
    }
    assert!(deaths >= 2, "the writer was done before leaders died");
    tokio::time::timeout(PATIENCE, writer).await.unwrap().unwrap();
    let mut begun = 0;
    for watcher in watchers {
        let (seen, watches) = tokio::time::timeout(PATIENCE, watcher).await.unwrap().unwrap();
        assert!(seen.iter().copied().eq(1..=LAST), "{seen:?}");
        begun += watches;
    }
    assert!(begun > 4, "no watch was on a member that died");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_on_when_a_member_is_dead_and_watches_fail_without_a_majority() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    let stores = [cluster.connect(LONG).await, cluster.connect(LONG).await, cluster.connect(LONG).await];
    cluster.kill(follower);
    for (n, store) in stores.iter().enumerate() {
        // Nobody sees that a member is gone.
        for _ in 0..10 {
            store.list("").await.unwrap();
        }
        store.put("k", n.to_string().into()).await.unwrap();
    }
    let revision = stores[0].list("").await.unwrap().revision;
    let mut watches = Vec::new();
    for store in &stores {
        watches.push(store.watch("", revision).await.unwrap());
    }
    // The member that is left knows no leader: it can be reached, but it cannot know what happens.
    cluster.kill(leader);
    for watch in &mut watches {
        let end = tokio::time::timeout(PATIENCE, watch.next()).await.expect("the watch ends");
        assert!(matches!(end, Err(StoreError::Unavailable(_))), "{end:?}");
    }
    assert!(matches!(stores[0].get("k").await, Err(StoreError::Unavailable(_))));
    cluster.boot(leader);
    cluster.leader().await;
    etcd_servers::answers(&stores[0]).await;
    let mut watch = stores[0].watch("", revision).await.unwrap();
    stores[0].put("k", "new".into()).await.unwrap();
    assert_eq!(watch.next().await.unwrap().changes, [put("k", "new")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dying_member_may_have_done_is_not_asked_of_another_one() {
    let cluster = Cluster::start(1);
    let observer = cluster.connect(LONG).await;
    // Takes requests, and dies of each.
    let dying = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = EtcdConfig {
        urls: vec![format!("http://{}", dying.local_addr().unwrap()), cluster.url(0)],
        ..cluster.config(LONG)
    };
    std::thread::spawn(move || {
        for connection in dying.incoming() {
            let mut request = Vec::new();
            let mut connection = connection.unwrap();
            connection.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            // Until nothing more comes.
            let _ = connection.read_to_end(&mut request);
        }
    });
    let (mut done, mut unknown) = (0, 0);
    // Which member is asked first is left to chance.
    for n in 0..40 {
        let store = Etcd::open(config.clone()).unwrap();
        let key = format!("k/{n}");
        let there = match store.put(&key, vec![]).await {
            Ok(_) => {
                done += 1;
                true
            }
            Err(StoreError::Unavailable(_)) => {
                unknown += 1;
                false
            }
            Err(e) => panic!("{e}"),
        };
        // Reading does no harm, wherever.
        assert_eq!(store.get(&key).await.unwrap().is_some(), there);
        assert_eq!(observer.get(&key).await.unwrap().is_some(), there);
        if done > 0 && unknown > 0 {
            return;
        }
    }
    panic!("{done} were done, {unknown} were not");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_was_away_while_etcd_forgot_begins_anew() {
    let mut cluster = Cluster::start(3);
    cluster.leader().await;
    let store = cluster.connect(LONG).await;
    let seen = store.put("k", "0".into()).await.unwrap();
    let mut watch = store.watch("", seen).await.unwrap();
    // All members die, so that the watch ends wherever it was.
    (0..3).for_each(|m| cluster.kill(m));
    assert!(matches!(watch.next().await, Err(StoreError::Unavailable(_))));
    (0..3).for_each(|m| cluster.boot(m));
    cluster.leader().await;
    etcd_servers::answers(&store).await;
    let mut last = 0;
    for n in 1..=3 {
        last = store.put("k", n.to_string().into()).await.unwrap();
    }
    cluster.raw(0).await.unwrap().compact(last as i64, None).await.unwrap();
    let mut watch = store.watch("", seen).await.unwrap();
    assert!(matches!(watch.next().await, Err(StoreError::Compacted(r)) if r == seen));
    let snapshot = store.list("").await.unwrap();
    assert_eq!((snapshot.entries[0].value.as_slice(), snapshot.entries[0].revision), (b"3".as_slice(), last));
    let mut watch = store.watch("", snapshot.revision).await.unwrap();
    store.put("k", "4".into()).await.unwrap();
    assert_eq!(watch.next().await.unwrap().changes, [put("k", "4")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_may_begin_ahead_of_its_member() {
    let cluster = Cluster::start(1);
    let store = cluster.connect(LONG).await;
    let revision = store.put("k", "0".into()).await.unwrap();
    // As far as this member knows, revision + 2 does not exist yet.
    let mut watch = store.watch("", revision + 2).await.unwrap();
    for n in 1..=3 {
        store.put("k", n.to_string().into()).await.unwrap();
    }
    assert_eq!(watch.next().await.unwrap().changes, [put("k", "3")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_etcd_has_ended_is_replaced_once_whoever_notices() {
    let cluster = Cluster::start(1);
    let store = Arc::new(cluster.connect(LONG).await);
    let mut raw = cluster.raw(0).await.unwrap();
    for round in 0..3 {
        store.put("masq/v1/endpoint/first", "{}".into()).await.unwrap();
        for lease in raw.leases().await.unwrap().leases() {
            raw.lease_revoke(lease.id()).await.unwrap();
        }
        assert_eq!(store.get("masq/v1/endpoint/first").await.unwrap(), None);
        // All of them find the old lease dead.
        let writes: Vec<_> = (0..8)
            .map(|n| {
                let store = store.clone();
                tokio::spawn(async move { store.put(&format!("masq/v1/endpoint/{n}"), "{}".into()).await })
            })
            .collect();
        for write in writes {
            write.await.unwrap().unwrap();
        }
        assert_eq!(raw.leases().await.unwrap().leases().len(), 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_etcd_does_not_take_is_told_and_keys_that_are_no_text_are_skipped() {
    let cluster = Cluster::start(1);
    let store = cluster.connect(LONG).await;
    let mut raw = cluster.raw(0).await.unwrap();
    let large = store.put("masq/v1/vnic/large", vec![b' '; 1_800_000]).await;
    assert!(matches!(&large, Err(StoreError::Failed(e)) if e.contains("too large")), "{large:?}");
    let many = (0..4000).map(|n| put(&format!("k/{n}"), "")).collect();
    let many = store.commit(Transaction { guards: vec![], changes: many }).await;
    assert!(matches!(&many, Err(StoreError::Failed(e)) if e.contains("4000 changes")), "{many:?}");

    let start = store.list("masq/").await.unwrap().revision;
    let mut watch = store.watch("masq/", start).await.unwrap();
    raw.put(b"masq/v1/vnic/\xff\xfe".to_vec(), "{}", None).await.unwrap();
    raw.put("masq/v1/vnic/", "{}", None).await.unwrap();
    raw.put("masq/v1/vnic/huge", vec![0xff; 1 << 20], None).await.unwrap();
    raw.delete(b"masq/v1/vnic/\xff\xfe".to_vec(), None).await.unwrap();
    raw.put(b"masq/v1/vnic/\xff\xff".to_vec(), "{}", None).await.unwrap();
    raw.put("masq/v1/vnic/last", "{}", None).await.unwrap();
    let mut seen = Vec::new();
    while seen.last().is_none_or(|key| key != "masq/v1/vnic/last") {
        let batch = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
        seen.extend(batch.changes.iter().map(|c| c.key().to_owned()));
    }
    let keys = ["masq/v1/vnic/", "masq/v1/vnic/huge", "masq/v1/vnic/last"];
    assert_eq!(seen, keys);
    let mut listed: Vec<_> = store.list("masq/").await.unwrap().entries.into_iter().map(|e| e.key).collect();
    listed.sort();
    assert_eq!(listed, keys);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_entries_are_listed_and_watched() {
    let cluster = Cluster::start(1);
    let store = cluster.connect(LONG).await;
    let start = store.list("").await.unwrap().revision;
    for chunk in 0..20 {
        let changes =
            (0..2500).map(|n| put(&format!("masq/v1/vnic/v{chunk}-{n}"), vec![b'x'; 200])).collect();
        store.commit(Transaction { guards: vec![], changes }).await.unwrap();
    }
    let snapshot = store.list("masq/").await.unwrap();
    assert_eq!(snapshot.entries.len(), 50_000);
    let mut watch = store.watch("masq/", start).await.unwrap();
    let (mut seen, mut revision, began) = (0, start, Instant::now());
    while seen < 50_000 && began.elapsed() < PATIENCE {
        let batch = watch.next().await.unwrap();
        assert!(batch.revision > revision);
        (seen, revision) = (seen + batch.changes.len(), batch.revision);
    }
    assert_eq!((seen, revision), (50_000, snapshot.revision));
}
