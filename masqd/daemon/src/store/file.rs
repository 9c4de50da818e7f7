//! Keys and values with revisions in one file: redb.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use masq_control::store::Entry;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tracing::{debug, warn};

/// Value and the revision that wrote it, by key.
const ENTRIES: TableDefinition<&str, (u64, &[u8])> = TableDefinition::new("entries");
/// Counters; the only one is [`REVISION`].
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const REVISION: &str = "revision";
/// A file that is larger than this, and mostly empty, is made smaller when it is opened.
const LARGE_BYTES: u64 = 4 << 20;

/// What can go wrong with the file.
pub type FileError = Box<redb::Error>;

fn wrong(e: impl Into<redb::Error>) -> FileError {
    Box::new(e.into())
}

/// A file of entries. Every commit is on disk when it returns.
#[derive(Debug)]
pub struct StoreFile {
    path: PathBuf,
    /// Absent after a failure of the disk: then it is opened again, since redb does nothing more with it.
    db: RwLock<Option<Database>>,
}

impl StoreFile {
    /// Opens or creates the file. Only one process can have it open. What a killed process has left is repaired.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        guarded(|| {
            let mut db = create(path)?;
            if let Err(e) = shrink(path, &mut db) {
                // It is as good as before, or cannot be opened.
                warn!("cannot make the store {} smaller: {e}", path.display());
                drop(db);
                db = reopen(path)?;
            }
            Ok(StoreFile { path: path.to_owned(), db: RwLock::new(Some(db)) })
        })
    }

    /// One entry.
    pub fn get(&self, key: &str) -> Result<Option<Entry>, FileError> {
        self.with(|db| {
            let read = db.begin_read().map_err(wrong)?;
            let table = read.open_table(ENTRIES).map_err(wrong)?;
            Ok(table.get(key).map_err(wrong)?.map(|e| {
                let (revision, value) = e.value();
                Entry { key: key.into(), value: value.into(), revision }
            }))
        })
    }

    /// The revision of the last commit.
    pub fn revision(&self) -> Result<u64, FileError> {
        self.with(|db| {
            let read = db.begin_read().map_err(wrong)?;
            let meta = read.open_table(META).map_err(wrong)?;
            Ok(meta.get(REVISION).map_err(wrong)?.map_or(0, |r| r.value()))
        })
    }

    /// All entries whose keys begin with `prefix`, and the revision at which they are so.
    pub fn read(&self, prefix: &str) -> Result<(Vec<Entry>, u64), FileError> {
        self.with(|db| {
            let read = db.begin_read().map_err(wrong)?;
            let table = read.open_table(ENTRIES).map_err(wrong)?;
            let mut entries = Vec::new();
            for item in table.range(prefix..).map_err(wrong)? {
                let (key, value) = item.map_err(wrong)?;
                if !key.value().starts_with(prefix) {
                    break;
                }
                let (revision, bytes) = value.value();
                entries.push(Entry { key: key.value().into(), value: bytes.into(), revision });
            }
            let meta = read.open_table(META).map_err(wrong)?;
            let revision = meta.get(REVISION).map_err(wrong)?.map_or(0, |r| r.value());
            Ok((entries, revision))
        })
    }

    /// Writes (`Some`) and deletes (`None`) entries, all or none, if every key in `unless_changed` still has the
    /// revision given there (0: does not exist). Returns the new revision, or `None` when one has not.
    ///
    /// After an error the changes may have been made or not.
    pub fn commit(
        &self,
        unless_changed: &[(String, u64)],
        writes: &[(String, Option<Vec<u8>>)],
    ) -> Result<Option<u64>, FileError> {
        self.with(|db| {
            let write = db.begin_write().map_err(wrong)?;
            let revision = {
                let mut entries = write.open_table(ENTRIES).map_err(wrong)?;
                for (key, expected) in unless_changed {
                    let actual = entries.get(key.as_str()).map_err(wrong)?.map_or(0, |e| e.value().0);
                    if actual != *expected {
                        return Ok(None);
                    }
                }
                let mut meta = write.open_table(META).map_err(wrong)?;
                let revision = meta.get(REVISION).map_err(wrong)?.map_or(0, |r| r.value()) + 1;
                for (key, value) in writes {
                    match value {
                        Some(value) => {
                            entries.insert(key.as_str(), (revision, value.as_slice())).map_err(wrong)?
                        }
                        None => entries.remove(key.as_str()).map_err(wrong)?,
                    };
                }
                meta.insert(REVISION, revision).map_err(wrong)?;
                revision
            };
            write.commit().map_err(wrong)?;
            Ok(Some(revision))
        })
    }

    /// Works on the database. Closes it when the disk fails, and opens it the next time.
    fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, FileError>) -> Result<T, FileError> {
        let mut open = self.db.read().unwrap_or_else(PoisonError::into_inner);
        if open.is_none() {
            drop(open);
            let mut closed = self.db.write().unwrap_or_else(PoisonError::into_inner);
            if closed.is_none() {
                *closed = Some(guarded(|| reopen(&self.path))?);
            }
            drop(closed);
            open = self.db.read().unwrap_or_else(PoisonError::into_inner);
        }
        // Another thread may have met a failure in between.
        let outcome = match open.as_ref() {
            Some(db) => guarded(|| work(db)),
            None => Err(wrong(redb::Error::PreviousIo)),
        };
        drop(open);
        if let Err(e) = &outcome
            && matches!(**e, redb::Error::Io(_) | redb::Error::PreviousIo | redb::Error::Corrupted(_))
        {
            let failed = self.db.write().unwrap_or_else(PoisonError::into_inner).take();
            guarded(|| {
                drop(failed);
                Ok(())
            })?;
        }
        outcome
    }
}

/// Works on a file that may be damaged. redb checks what a crash leaves, and otherwise trusts the file: bytes that something
/// else has changed can make it panic, which shall be an error of the file, not the end of whoever opens it.
fn guarded<T>(work: impl FnOnce() -> Result<T, FileError>) -> Result<T, FileError> {
    // What a panic leaves behind is a database that is closed next, and a file that nobody trusts.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let told = panic.downcast_ref::<String>().map(String::as_str);
        let reason = told.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("for no known reason");
        Err(wrong(redb::Error::Corrupted(format!("the file cannot be understood: {reason}"))))
    })
}

/// Opens the file, which exists.
fn reopen(path: &Path) -> Result<Database, FileError> {
    let db = Database::open(path).map_err(wrong)?;
    make_tables(&db)?;
    Ok(db)
}

/// Opens the file, or makes it: under another name first, because redb does not open a file that a kill has left half made.
fn create(path: &Path) -> Result<Database, FileError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unfinished = format!("{name}.new-");
    for entry in std::fs::read_dir(dir).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        if entry.file_name().to_string_lossy().starts_with(&unfinished) {
            // Another process may have been faster.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    if path.try_exists().map_err(wrong)? {
        return reopen(path);
    }
    let new = dir.join(format!("{unfinished}{}", std::process::id()));
    let made = Database::create(&new).map_err(wrong).and_then(|db| make_tables(&db));
    // Not renamed: whoever has made the file meanwhile keeps it.
    let linked = made.and_then(|()| match std::fs::hard_link(&new, path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(wrong(e)),
        _ => Ok(()),
    });
    let _ = std::fs::remove_file(&new);
    linked?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(wrong)?;
    reopen(path)
}

fn make_tables(db: &Database) -> Result<(), FileError> {
    let write = db.begin_write().map_err(wrong)?;
    write.open_table(ENTRIES).map_err(wrong)?;
    write.open_table(META).map_err(wrong)?;
    write.commit().map_err(wrong)
}

/// Gives the disk back what a file has grown to and does not need any more.
fn shrink(path: &Path, db: &mut Database) -> Result<(), FileError> {
    let size = std::fs::metadata(path).map_err(wrong)?.len();
    if size <= LARGE_BYTES {
        return Ok(());
    }
    let write = db.begin_write().map_err(wrong)?;
    let used = write.stats().map_err(wrong)?.stored_bytes();
    write.abort().map_err(wrong)?;
    if size / 4 > used {
        db.compact().map_err(wrong)?;
        debug!(
            "the store {} was {size} bytes for {used} bytes of entries, and has been made smaller",
            path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> (String, Option<Vec<u8>>) {
        (key.into(), Some(value.into()))
    }

    #[test]
    fn entries_survive_the_process_and_carry_revisions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        {
            let f = StoreFile::open(&path).unwrap();
            assert_eq!(f.read("").unwrap(), (vec![], 0));
            assert_eq!(f.commit(&[], &[put("a/1", "x"), put("b/1", "y")]).unwrap(), Some(1));
            assert_eq!(f.commit(&[], &[put("a/2", "z")]).unwrap(), Some(2));
        }
        let f = StoreFile::open(&path).unwrap();
        let (entries, revision) = f.read("a/").unwrap();
        assert_eq!(revision, 2);
        let seen: Vec<_> = entries.iter().map(|e| (e.key.as_str(), e.value.as_slice(), e.revision)).collect();
        assert_eq!(seen, [("a/1", b"x".as_slice(), 1), ("a/2", b"z".as_slice(), 2)]);
    }

    #[test]
    fn a_changed_entry_stops_the_whole_commit() {
        let dir = tempfile::tempdir().unwrap();
        let f = StoreFile::open(&dir.path().join("db")).unwrap();
        assert_eq!(f.commit(&[("a".into(), 0)], &[put("a", "1")]).unwrap(), Some(1));
        assert_eq!(f.commit(&[("a".into(), 0)], &[put("a", "2"), put("b", "2")]).unwrap(), None);
        assert_eq!(f.read("").unwrap().0.len(), 1);
        assert_eq!(f.commit(&[("a".into(), 1)], &[("a".into(), None)]).unwrap(), Some(2));
        assert_eq!(f.read("").unwrap(), (vec![], 2));
    }

    #[test]
    fn a_file_is_open_once() {
        let dir = tempfile::tempdir().unwrap();
        let _first = StoreFile::open(&dir.path().join("db")).unwrap();
        StoreFile::open(&dir.path().join("db")).unwrap_err();
    }
}
