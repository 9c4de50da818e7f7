//! The embedded store and what happens to processes and disks.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use masq_control::store::{Change, Entry, Guard, Snapshot, Store, StoreError, Transaction};
use masqd::store::StoreAddress;
use masqd::store::{AnyStore, Embedded};

/// Tells a process of this program where to work.
const PLACE: &str = "MASQ_TEST_STORE";
const KILLS: u32 = 40;
/// Commits after which all small entries have been changed.
const CYCLE: u64 = 17;

fn put(key: &str, value: impl Into<Vec<u8>>) -> Change {
    Change::Put { key: key.into(), value: value.into() }
}

/// What commit number `n` does: some changes that belong together, now and then large ones, deletions too.
fn changes(n: u64) -> Vec<Change> {
    let mut changes = vec![
        put("counter", n.to_string()),
        put(&format!("a/{}", n % CYCLE), n.to_string()),
        put(&format!("b/{}", n % CYCLE), n.to_string()),
        Change::Delete { key: format!("a/{}", (n + 5) % CYCLE) },
    ];
    if n.is_multiple_of(7) {
        changes.push(put("large", vec![n as u8; 300_000]));
    }
    if n % 7 == 3 {
        changes.push(Change::Delete { key: "large".into() });
    }
    changes
}

/// The store after commits 1 to `n`, each of which is a revision.
fn model(n: u64) -> Vec<Entry> {
    let mut entries = BTreeMap::new();
    for revision in 1..=n {
        for change in changes(revision) {
            match change {
                Change::Put { key, value } => entries.insert(key.clone(), Entry { key, value, revision }),
                Change::Delete { key } => entries.remove(&key),
            };
        }
    }
    entries.into_values().collect()
}

/// This program again, in which only the test `name` runs, on `place`.
fn process(name: &str, place: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]).env(PLACE, place);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn place() -> PathBuf {
    std::env::var_os(PLACE).expect("another test starts this one").into()
}

#[tokio::test]
#[ignore = "the process that is killed by another test"]
async fn writer() {
    let store = Embedded::open(&place()).unwrap();
    let mut n = store.list("").await.unwrap().revision;
    loop {
        n += 1;
        let guards = match store.get("counter").await.unwrap() {
            Some(e) => vec![Guard::Unchanged { key: "counter".into(), revision: e.revision }],
            None => vec![Guard::Absent { key: "counter".into() }],
        };
        let done = store.commit(Transaction { guards, changes: changes(n) }).await.unwrap();
        println!("done {}", done.revision());
    }
}

/// Kills the writer `moment` after it was started, or after its first commit, and returns the last commit that it was told of.
fn kill_after(mut child: Child, first_commit: bool, moment: Duration) -> Option<u64> {
    let out = BufReader::new(child.stdout.take().unwrap());
    let (tell, told) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let done = |line: String| line.trim().rsplit("done ").next()?.parse::<u64>().ok();
        let commits = out.lines().map_while(Result::ok).filter_map(done);
        commits.inspect(|_| tell.send(()).unwrap_or_default()).last()
    });
    if first_commit {
        told.recv().expect("the writer commits something");
    }
    std::thread::sleep(moment);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

#[tokio::test]
async fn what_was_acknowledged_survives_kill_9_and_nothing_is_half_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (mut known, mut in_work) = (0, 0);
    for kill in 0..KILLS {
        let random = getrandom::u32().unwrap();
        // Also while the file is opened and repaired, which takes the first milliseconds.
        let (first_commit, most_micros) = if kill % 4 == 0 { (false, 20_000) } else { (true, 100_000) };
        let moment = Duration::from_micros(u64::from(random % most_micros));
        let acknowledged = kill_after(process("writer", &path).spawn().unwrap(), first_commit, moment);
        let Snapshot { entries, revision } = Embedded::open(&path).unwrap().list("").await.unwrap();
        known = known.max(acknowledged.unwrap_or(0));
        assert!(revision >= known, "kill {kill}: {known} was acknowledged, {revision} is there");
        assert!(entries == model(revision), "kill {kill}: the entries are those of revision {revision}");
        in_work += u32::from(acknowledged.is_some());
        known = revision;
    }
    assert!(in_work > KILLS / 3, "only {in_work} of {KILLS} have met a writer at work");
}

#[tokio::test]
async fn a_file_that_a_kill_has_met_in_the_making_is_made_anew() {
    for _ in 0..KILLS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let moment = Duration::from_micros(u64::from(getrandom::u32().unwrap() % 10_000));
        let acknowledged = kill_after(process("writer", &path).spawn().unwrap(), false, moment);
        let Snapshot { entries, revision } = Embedded::open(&path).unwrap().list("").await.unwrap();
        assert!(revision >= acknowledged.unwrap_or(0) && entries == model(revision));
        let names = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["store"], "nothing unfinished is left");
    }
}

#[tokio::test]
async fn a_watch_that_is_too_slow_is_told_and_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open_with(&dir.path().join("store"), 10).unwrap();
    let mut watch = store.watch("", 0).await.unwrap();
    store.put("k", b"0".to_vec()).await.unwrap();
    assert_eq!(watch.next().await.unwrap().revision, 1);
    for n in 0..=10u8 {
        store.put("k", vec![n]).await.unwrap();
    }
    assert!(matches!(watch.next().await, Err(StoreError::Compacted(1))));
    let snapshot = store.list("").await.unwrap();
    assert_eq!((snapshot.revision, snapshot.entries[0].value.as_slice()), (12, [10].as_slice()));
    let mut watch = store.watch("", snapshot.revision).await.unwrap();
    store.put("k", b"new".to_vec()).await.unwrap();
    assert_eq!(watch.next().await.unwrap().changes, [put("k", "new")]);
}

#[tokio::test]
async fn the_file_does_not_grow_for_ever_and_shrinks_when_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let size = || std::fs::metadata(&path).unwrap().len();
    let store = Embedded::open(&path).unwrap();
    let big = |n: u8| (0..6).map(|k| put(&format!("big/{k}"), vec![n; 1 << 20])).collect();
    store.commit(Transaction { guards: vec![], changes: big(0) }).await.unwrap();
    for n in 1..8 {
        store.commit(Transaction { guards: vec![], changes: big(n) }).await.unwrap();
    }
    let grown = size();
    for n in 8..24 {
        store.commit(Transaction { guards: vec![], changes: big(n) }).await.unwrap();
    }
    assert!(size() <= grown, "{} bytes for 6 MiB written over and over, {grown} after a while", size());
    let gone = (0..6).map(|k| Change::Delete { key: format!("big/{k}") }).collect();
    store.commit(Transaction { guards: vec![], changes: gone }).await.unwrap();
    store.put("small", b"x".to_vec()).await.unwrap();
    drop(store);
    let store = Embedded::open(&path).unwrap();
    assert!(size() < 4 << 20, "{} bytes of once {grown} for one entry", size());
    let snapshot = store.list("").await.unwrap();
    assert_eq!((snapshot.revision, snapshot.entries.len()), (26, 1));
}

#[test]
fn a_store_that_cannot_be_opened_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let why = |path: &Path| Embedded::open(path).unwrap_err().to_string();
    assert!(why(Path::new("/nowhere/store")).contains("No such file"));
    assert!(why(dir.path()).contains("Is a directory"));
    let path = dir.path().join("text");
    std::fs::write(&path, "this is no database, and it is not empty either".repeat(100)).unwrap();
    let e = why(&path);
    assert!(e.contains("not a valid database") || e.contains("corrupt") || e.contains("magic"), "{e}");
    let path = dir.path().join("store");
    let _first = Embedded::open(&path).unwrap();
    assert!(why(&path).contains("already open"), "{}", why(&path));
}

/// Numbers that look random.
fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[tokio::test]
async fn a_damaged_file_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Embedded::open(&path).unwrap();
    for n in 1..7 {
        store.commit(Transaction { guards: vec![], changes: changes(n) }).await.unwrap();
    }
    drop(store);
    let sound = std::fs::read(&path).unwrap();
    let (mut refused, mut caught) = (0, 0);
    for seed in 1..=300u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut bytes = sound.clone();
        // A few pages, or most of them; of the first only what follows the sign of redb, since without that nothing is read.
        let pages = bytes.len() as u64 / 4096;
        for _ in 0..if seed % 3 == 0 { pages } else { 1 + seed % 8 } {
            let page = (xorshift(&mut random) % pages) as usize;
            let (offset, length) = (xorshift(&mut random) % 4096, 1 + xorshift(&mut random) % 4096);
            let start = page * 4096 + if page == 0 { 64 + offset as usize % 448 } else { offset as usize };
            let end = (start + length as usize).min((page + 1) * 4096);
            bytes[start..end].fill_with(|| xorshift(&mut random) as u8);
        }
        std::fs::write(&path, &bytes).unwrap();
        let mut named = |e: String| {
            assert!(e.contains(&path.display().to_string()), "seed {seed}: {e}");
            caught += u32::from(e.contains("cannot be understood"));
        };
        match AnyStore::open(&StoreAddress::Embedded(path.clone())) {
            Err(e) => {
                refused += 1;
                named(e.to_string());
            }
            // Damage where nothing is kept harms nobody; other damage may turn up later.
            Ok(store) => {
                let store = store.store();
                store.list("").await.map_or_else(|e| named(e.to_string()), drop);
                store.put("k", b"v".to_vec()).await.map_or_else(|e| named(e.to_string()), drop);
                store.get("large").await.map_or_else(|e| named(e.to_string()), drop);
            }
        }
    }
    assert!(refused > 20 && caught > 20, "{refused} have been refused, {caught} have made redb panic");
}

/// Runs the test `name` of this program on a disk of its own, of 1 MiB; `prepare` is a shell command that may change it.
fn on_a_small_disk(name: &str, prepare: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let script = format!("mount -t tmpfs -o size=1m store {0} && {prepare} exec \"$@\"", disk.display());
    let mut inner = process(name, &disk);
    let output = Command::new("unshare")
        .args([
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            &script.replace("DISK", &disk.to_string_lossy()),
            "sh",
        ])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env(PLACE, &disk)
        .output()
        .expect("unshare (Debian package util-linux)");
    inner.stdout(Stdio::null());
    let told =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    told
}

#[test]
fn a_full_disk_is_told_and_when_there_is_room_again_the_store_goes_on() {
    on_a_small_disk("writer_on_a_full_disk", "");
}

#[tokio::test]
#[ignore = "the process of another test, which has a small disk"]
async fn writer_on_a_full_disk() {
    let (store, filler) = (Embedded::open(&place().join("store")).unwrap(), place().join("filler"));
    let revision = store.put("k", b"before".to_vec()).await.unwrap();
    let mut watch = store.watch("", revision).await.unwrap();
    // Fails when the disk is full.
    let _ = std::fs::write(&filler, vec![0; 2 << 20]);
    for _ in 0..2 {
        match store.put("large", vec![1; 200_000]).await {
            Err(StoreError::Failed(e)) => assert!(e.contains("No space left") && e.contains("/store"), "{e}"),
            other => panic!("{other:?} on a full disk"),
        }
    }
    std::fs::remove_file(&filler).unwrap();
    let snapshot = store.list("").await.unwrap();
    assert_eq!((snapshot.revision, snapshot.entries.len()), (revision, 1), "nothing of what failed is there");
    assert_eq!(store.put("large", vec![1; 200_000]).await.unwrap(), revision + 1);
    assert_eq!(watch.next().await.unwrap().changes, [put("large", vec![1; 200_000])]);
}

#[test]
fn a_file_that_may_not_be_written_is_told() {
    on_a_small_disk("opener_of_a_read_only_file", "touch DISK/store && mount -o remount,ro DISK &&");
}

#[test]
#[ignore = "the process of another test, which has a read-only disk"]
fn opener_of_a_read_only_file() {
    let e = Embedded::open(&place().join("store")).unwrap_err().to_string();
    assert!(e.contains("Read-only file system"), "{e}");
}

#[tokio::test]
async fn entries_of_any_size_and_any_key_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let strange = [
        "",
        "/",
        "masq/v1/",
        "masq/v1/vnic/",
        "masq/v1/nothing/x",
        "\u{0}",
        "\u{10ffff}",
        "masq/v1/vnic/a/b",
    ];
    let mut changes: Vec<Change> = strange.iter().map(|k| put(k, "\u{0}not json")).collect();
    changes.push(put(&"k".repeat(10_000), vec![0xff; 5 << 20]));
    changes.extend((0..50_000).map(|n| put(&format!("masq/v1/vnic/v{n}"), "{}")));
    let store = Embedded::open(&path).unwrap();
    let revision = store.commit(Transaction { guards: vec![], changes }).await.unwrap().revision();
    let mut watch = store.watch("masq/v1/vnic/", 0).await.unwrap();
    assert_eq!(watch.next().await.unwrap().changes.len(), 50_002);
    drop((watch, store));
    let all = Embedded::open(&path).unwrap().list("").await.unwrap();
    assert_eq!((all.revision, all.entries.len()), (revision, 50_000 + strange.len() + 1));
    assert!(all.entries.is_sorted_by(|a, b| a.key.as_bytes() < b.key.as_bytes()));
}
