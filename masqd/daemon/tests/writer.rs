//! The writer of desired state: what it reads, what it does when others write too, and when the store fails.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use masq_control::store::{
    BoxFuture, Change, Committed, Entry, Snapshot, Store, StoreError, Transaction, Watch,
};
use masq_model::{DesiredState, Edit, Key, Kind, Object, QosPolicy, Vpc};
use masq_types::Vni;
use masqd::store::Embedded;
use masqd::writer::{Current, LOCK, Plan, WriteError, Writer, Written, plan_apply};

/// A store that counts readings of everything, and can lose its answers.
struct Counting {
    store: Embedded,
    lists: AtomicU32,
    /// The next commit is made, but its answer is lost.
    mute: AtomicBool,
    /// The next commit comes after somebody else's.
    forestalled: AtomicBool,
    /// It is on another machine.
    far: AtomicBool,
}

impl Counting {
    /// What a message takes.
    async fn way(&self) {
        if self.far.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Store for Counting {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        self.store.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            self.way().await;
            let snapshot = self.store.list(prefix).await;
            self.way().await;
            snapshot
        })
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(async move {
            self.way().await;
            if self.forestalled.load(Ordering::Relaxed) {
                self.store.put(LOCK, Vec::new()).await?;
            }
            let committed = self.store.commit(transaction).await?;
            self.way().await;
            if self.mute.swap(false, Ordering::Relaxed) {
                return Err(StoreError::Unavailable("no answer".into()));
            }
            Ok(committed)
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: u64) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        self.store.watch(prefix, after)
    }
}

struct Bench {
    _dir: tempfile::TempDir,
    store: Arc<Counting>,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(&dir.path().join("store")).unwrap();
        let store = Counting {
            store,
            lists: AtomicU32::default(),
            mute: AtomicBool::default(),
            forestalled: AtomicBool::default(),
            far: AtomicBool::default(),
        };
        Bench { _dir: dir, store: Arc::new(store) }
    }

    /// The writer of one host.
    fn writer(&self) -> Writer {
        Writer::new(self.store.clone())
    }

    fn lists(&self) -> u32 {
        self.store.lists.load(Ordering::Relaxed)
    }
}

fn vpc(name: &str, vni: u32) -> Object {
    Object::Vpc(Vpc { name: name.into(), vni: Vni::new(vni).unwrap() })
}

fn key(name: &str) -> Key {
    Key::new(Kind::Vpc, name)
}

fn file(text: &str) -> DesiredState {
    DesiredState::from_toml(text).unwrap()
}

async fn put(writer: &Writer, object: Object) -> Result<Written<()>, WriteError<Infallible>> {
    writer.write(false, |_| Ok(Plan { edits: vec![Edit::Put(object.clone())], note: () })).await
}

#[tokio::test]
async fn who_writes_alone_reads_the_state_once() {
    let bench = Bench::new();
    let writer = bench.writer();
    for i in 1..=20 {
        assert!(put(&writer, vpc(&format!("v{i}"), i)).await.unwrap().revision.is_some());
    }
    let nothing = put(&writer, vpc("v1", 1)).await.unwrap();
    assert_eq!((nothing.revision, nothing.changes.len()), (None, 0));
    let Err(WriteError::Invalid(problems)) = put(&writer, vpc("w", 1)).await else { panic!("a VNI twice") };
    assert_eq!(problems.len(), 1);
    assert_eq!(bench.lists(), 1);
}

#[tokio::test]
async fn a_refusal_is_about_what_the_store_holds_not_about_what_it_held() {
    let bench = Bench::new();
    let (one, other) = (bench.writer(), bench.writer());
    put(&one, vpc("a", 1)).await.unwrap();
    put(&other, vpc("b", 2)).await.unwrap();
    // What `one` remembers has no `b`.
    let delete = |current: &Current| match current.generation(&key("b")) {
        Some(_) => Ok(Plan { edits: vec![Edit::Delete(key("b"))], note: () }),
        None => Err("there is no b"),
    };
    one.write(false, delete).await.unwrap();
    let Err(WriteError::Refused(e)) = other.write(false, delete).await else { panic!("b is gone") };
    assert_eq!(e, "there is no b");
    // Its VNI is free again, whoever asks.
    put(&other, vpc("c", 2)).await.unwrap();
    assert!(put(&one, vpc("c", 2)).await.unwrap().changes.is_empty());
}

#[tokio::test]
async fn writers_that_race_lose_nothing() {
    let bench = Bench::new();
    let policy = |weight| {
        Object::QosPolicy(QosPolicy {
            name: "p".into(),
            rate_bits_per_sec: None,
            burst_bits: None,
            weight,
            class: 0,
            dscp: None,
            trust_dscp: false,
        })
    };
    let raise = |writer: Writer| async move {
        let mut done = 0;
        while done < 30 {
            let outcome = writer
                .write(false, |current: &Current| {
                    let weight = current.state().qos_policy("p").map_or(0, |p| p.weight);
                    Ok::<_, Infallible>(Plan { edits: vec![Edit::Put(policy(weight + 1))], note: () })
                })
                .await;
            match outcome {
                Ok(written) => {
                    assert_eq!(written.changes.len(), 1);
                    done += 1;
                }
                Err(WriteError::Contended) => {}
                Err(e) => panic!("{e}"),
            }
        }
    };
    tokio::join!(raise(bench.writer()), raise(bench.writer()), raise(bench.writer()));
    let entry = bench.store.get("masq/v1/qos_policy/p").await.unwrap().unwrap();
    let Object::QosPolicy(p) = Object::from_entry(&Key::new(Kind::QosPolicy, "p"), &entry.value).unwrap()
    else {
        panic!()
    };
    assert_eq!(p.weight, 90);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_writes_now_and_then_gets_a_turn_among_those_who_write_all_the_time() {
    let bench = Bench::new();
    bench.store.far.store(true, Ordering::Relaxed);
    let done = Arc::new(AtomicBool::default());
    let (busy, is_done) = (bench.writer(), done.clone());
    let busy = tokio::spawn(async move {
        let mut n = 0;
        while !is_done.load(Ordering::Relaxed) {
            n += 1;
            put(&busy, vpc("busy", n)).await.unwrap();
        }
        n
    });
    let writer = bench.writer();
    for i in 1..=20 {
        let written = put(&writer, vpc(&format!("v{i}"), 0xff_0000 + i)).await.unwrap();
        assert_eq!(written.changes.len(), 1);
    }
    done.store(true, Ordering::Relaxed);
    assert!(busy.await.unwrap() > 0);
    assert_eq!(bench.store.list("masq/v1/vpc/").await.unwrap().entries.len(), 21);
}

#[tokio::test]
async fn whoever_is_always_too_late_is_told() {
    let bench = Bench::new();
    let writer = bench.writer();
    bench.store.forestalled.store(true, Ordering::Relaxed);
    let Err(WriteError::Contended) = put(&writer, vpc("a", 1)).await else { panic!("it was forestalled") };
    assert!(bench.store.get("masq/v1/vpc/a").await.unwrap().is_none());
    bench.store.forestalled.store(false, Ordering::Relaxed);
    put(&writer, vpc("a", 1)).await.unwrap();
}

#[tokio::test]
async fn after_an_unknown_outcome_the_store_is_asked() {
    let bench = Bench::new();
    let writer = bench.writer();
    put(&writer, vpc("a", 1)).await.unwrap();
    bench.store.mute.store(true, Ordering::Relaxed);
    let Err(WriteError::Store(_)) = put(&writer, vpc("b", 2)).await else { panic!("the answer was lost") };
    // It had been written.
    assert!(put(&writer, vpc("b", 2)).await.unwrap().changes.is_empty());
    assert_eq!(bench.lists(), 2);
}

#[tokio::test]
async fn trying_leaves_no_trace() {
    let bench = Bench::new();
    let writer = bench.writer();
    put(&writer, vpc("a", 1)).await.unwrap();
    let text = "[[vpc]]\nname = \"b\"\nvni = 1\n";
    for dry_run in [true, true, false] {
        let plan = |current: &Current| {
            Ok::<_, Infallible>(Plan { edits: plan_apply(current, &file(text), true), note: () })
        };
        let written = writer.write(dry_run, plan).await.unwrap();
        assert_eq!(written.revision.is_none(), dry_run);
        let keys: Vec<_> = written.changes.iter().map(|c| (c.key.name(), c.new.is_some())).collect();
        assert_eq!(keys, [("a", false), ("b", true)]);
    }
    assert_eq!(bench.lists(), 1);
}

#[tokio::test]
async fn what_cannot_be_read_can_be_replaced_and_pruned() {
    let bench = Bench::new();
    let bad = |name: &str| Change::Put { key: key(name).to_string(), value: b"{}".to_vec() };
    let changes = vec![bad("a"), bad("b")];
    bench.store.commit(Transaction { guards: Vec::new(), changes }).await.unwrap();
    let writer = bench.writer();
    put(&writer, vpc("a", 1)).await.unwrap();
    let plan = |current: &Current| {
        let text = "[[vpc]]\nname = \"a\"\nvni = 1\n";
        Ok::<_, Infallible>(Plan { edits: plan_apply(current, &file(text), true), note: () })
    };
    let written = writer.write(false, plan).await.unwrap();
    assert_eq!(written.changes.iter().map(|c| c.key.name()).collect::<Vec<_>>(), ["b"]);
    assert!(bench.store.get("masq/v1/vpc/b").await.unwrap().is_none());
}
