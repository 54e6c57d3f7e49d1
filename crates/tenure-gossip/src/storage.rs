//! What a node finds again after `kill -9`: one redb file for all its namespaces, and a file for the
//! latest snapshot of each. redb says which snapshot counts, with its hash: the file is whole before it
//! counts, and is checked when it is read.
//!
//! A batch that contains a durable write is synced before [`Store::commit`] returns; one of records
//! alone waits in memory for the next (they are in the consensus log, or with the peers), so that a round
//! of consensus costs one transaction. A read of the history writes what waits first.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use redb::{
    Database, Durability, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _,
    TableDefinition,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::commit::{CommitWrite, Entry, HardState, Restored};
use crate::engine::{Found, Reset, Sealed, Write};
use crate::history::{Hash, Record};

const META: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("meta");
const LOG: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("log");
const HISTORY: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("history");

/// The form of all this, and of the snapshots beside it. 1 did not say it, nor in a snapshot which transactions were
/// rejected.
const FORM: u16 = 2;

/// The store failed; the node stops rather than promise what it cannot keep.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file cannot be read or written.
    #[error(
        "the store cannot be used: {0}; check the disk, and that no other node runs in this folder"
    )]
    Io(Box<dyn std::error::Error + Send + Sync>),
    /// The file does not say what this program writes.
    #[error(
        "the store is damaged: {0}; give this node a fresh folder (and with it, a fresh identity)"
    )]
    Damaged(Box<dyn std::error::Error + Send + Sync>),
    /// Another version of this program wrote it. Nothing was changed.
    #[error(
        "the store has form {0}, and this version of tenure reads form {FORM}; use the version that wrote it, or give \
         this node a fresh folder (and with it, a fresh identity) and let it join again"
    )]
    OtherForm(u16),
}

fn io(error: impl Into<redb::Error>) -> StoreError {
    let error = error.into();
    let damaged = match &error {
        redb::Error::Corrupted(_) => true,
        // Not a store: also one whose first start was cut short.
        redb::Error::Io(why) => why.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    };
    if damaged { StoreError::Damaged(Box::new(error)) } else { StoreError::Io(Box::new(error)) }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StoreError> {
    postcard::from_bytes(bytes).map_err(|error| StoreError::Damaged(Box::new(error)))
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data can always be encoded")
}

/// Bytes of pages that redb keeps in memory: the state itself is there already.
const CACHE: usize = 64 << 20;
/// Writes that wait for the next sync, at most.
const MAX_WAITING: usize = 1_024;
/// A file larger than this is compacted at the start if most of it is free.
const WORTH_COMPACTING: u64 = 64 << 20;

/// Bytes of what is in the tables.
fn stored(db: &Database) -> Result<u64, StoreError> {
    let tx = db.begin_write().map_err(io)?;
    let stats = tx.stats().map_err(io)?;
    let bytes = stats.stored_bytes() + stats.metadata_bytes();
    tx.abort().map_err(io)?;
    Ok(bytes)
}

/// The store. Clones are the same store, for other threads.
#[derive(Clone)]
pub(crate) struct Store {
    db: Arc<Database>,
    folder: PathBuf,
    /// Writes that need not be durable yet, in order.
    waiting: Arc<Mutex<Vec<(String, Write)>>>,
}

impl Store {
    /// Opens or makes the file. One process at a time.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::OtherForm`].
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let mut db = Database::builder().set_cache_size(CACHE).create(path).map_err(io)?;
        let size = std::fs::metadata(path).map_err(io)?.len();
        if size > WORTH_COMPACTING && stored(&db)? < size / 2 {
            db.compact().map_err(io)?;
        }
        let tx = db.begin_write().map_err(io)?;
        {
            let mut meta = tx.open_table(META).map_err(io)?;
            let log = tx.open_table(LOG).map_err(io)?;
            let history = tx.open_table(HISTORY).map_err(io)?;
            let form = meta.get(("", "form")).map_err(io)?.map(|form| decode(form.value()));
            match form.transpose()? {
                Some(FORM) => {}
                Some(other) => return Err(StoreError::OtherForm(other)),
                None if meta.is_empty().map_err(io)?
                    && log.is_empty().map_err(io)?
                    && history.is_empty().map_err(io)? =>
                {
                    meta.insert(("", "form"), encode(&FORM).as_slice()).map_err(io)?;
                }
                None => return Err(StoreError::OtherForm(1)),
            }
        }
        tx.commit().map_err(io)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        for file in std::fs::read_dir(&folder).map_err(io)?.flatten() {
            if file.path().extension().is_some_and(|extension| extension == "part") {
                // A snapshot that was being written when the node stopped: it never counted.
                let _ = std::fs::remove_file(file.path());
            }
        }
        Ok(Self { db: Arc::new(db), folder, waiting: Arc::default() })
    }

    /// A value of the node itself.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StoreError> {
        let tx = self.db.begin_read().map_err(io)?;
        let meta = tx.open_table(META).map_err(io)?;
        meta.get(("", key)).map_err(io)?.map(|v| decode(v.value())).transpose()
    }

    /// Stores a value of the node itself, durably.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn put<T: Serialize>(&self, key: &str, value: &T) -> Result<(), StoreError> {
        let tx = self.db.begin_write().map_err(io)?;
        tx.open_table(META).map_err(io)?.insert(("", key), encode(value).as_slice()).map_err(io)?;
        tx.commit().map_err(io)
    }

    /// What is there of `namespace`, and a new, durable incarnation.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn found(&self, namespace: &str) -> Result<Found, StoreError> {
        self.flush()?;
        let tx = self.db.begin_write().map_err(io)?;
        let found = {
            let mut meta = tx.open_table(META).map_err(io)?;
            let log = tx.open_table(LOG).map_err(io)?;
            let history = tx.open_table(HISTORY).map_err(io)?;
            let read = |key: &str| -> Result<Option<Vec<u8>>, StoreError> {
                Ok(meta.get((namespace, key)).map_err(io)?.map(|v| v.value().to_vec()))
            };
            let incarnation = read("incarnation")?.map_or(Ok(0), |b| decode::<u64>(&b))? + 1;
            let hard = read("hard")?.map_or(Ok(HardState::default()), |b| decode(&b))?;
            let snapshot = read("snapshot")?
                .map(|hash| self.read_snapshot(namespace, decode(&hash)?))
                .transpose()?;
            let mut entries: Vec<Entry> = Vec::new();
            for item in log.range((namespace, 0)..=(namespace, u64::MAX)).map_err(io)? {
                entries.push(decode(item.map_err(io)?.1.value())?);
            }
            let mut records = Vec::new();
            let from = snapshot.as_ref().map_or(0, |s| s.index);
            let oldest = history.range((namespace, 0)..=(namespace, u64::MAX)).map_err(io)?.next();
            if let Some(item) = oldest {
                // The oldest tells from where on history can be served; it is applied already.
                records.push(decode(item.map_err(io)?.1.value())?);
            }
            for item in history.range((namespace, from + 1)..=(namespace, u64::MAX)).map_err(io)? {
                records.push(decode(item.map_err(io)?.1.value())?);
            }
            records.dedup_by_key(|r: &mut Record| r.index);
            meta.insert((namespace, "incarnation"), encode(&incarnation).as_slice()).map_err(io)?;
            Found {
                incarnation,
                commit: Restored { hard, snapshot: None, entries },
                snapshot,
                history: records,
            }
        };
        tx.commit().map_err(io)?;
        Ok(found)
    }

    /// Stores a batch, in order.
    ///
    /// # Errors
    /// See [`StoreError`]; then nothing of the batch is stored.
    pub(crate) fn commit(&self, batch: &[(String, Write)]) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        let durable = batch.iter().any(|(_, w)| w.is_durable());
        let mut waiting = self.waiting.lock().expect("nothing panics while it is held");
        waiting.extend(batch.iter().cloned());
        if durable || waiting.len() >= MAX_WAITING {
            self.write(&std::mem::take(&mut *waiting), durable)?;
        }
        Ok(())
    }

    /// Writes what waits, without a sync.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        let mut waiting = self.waiting.lock().expect("nothing panics while it is held");
        if waiting.is_empty() {
            return Ok(());
        }
        self.write(&std::mem::take(&mut *waiting), false)
    }

    fn write(&self, batch: &[(String, Write)], durable: bool) -> Result<(), StoreError> {
        let mut tx = self.db.begin_write().map_err(io)?;
        tx.set_durability(if durable { Durability::Immediate } else { Durability::None })
            .map_err(|error| StoreError::Io(Box::new(error)))?;
        {
            let mut meta = tx.open_table(META).map_err(io)?;
            let mut log = tx.open_table(LOG).map_err(io)?;
            let mut history = tx.open_table(HISTORY).map_err(io)?;
            for (namespace, write) in batch {
                let ns = namespace.as_str();
                match write {
                    Write::Commit(CommitWrite::Hard(hard)) => {
                        meta.insert((ns, "hard"), encode(hard).as_slice()).map_err(io)?;
                    }
                    Write::Commit(CommitWrite::Append { after, entries }) => {
                        log.retain_in((ns, after.index + 1)..=(ns, u64::MAX), |_, _| false)
                            .map_err(io)?;
                        for e in entries {
                            log.insert((ns, e.position.index), encode(e).as_slice()).map_err(io)?;
                        }
                    }
                    Write::History(record) => {
                        history
                            .insert((ns, record.index), encode(record).as_slice())
                            .map_err(io)?;
                    }
                    Write::Forget(upto) => {
                        history.retain_in((ns, 0)..=(ns, *upto), |_, _| false).map_err(io)?;
                    }
                    Write::Snapshot(snapshot, reset) => {
                        self.write_snapshot(ns, snapshot)?;
                        meta.insert((ns, "snapshot"), encode(&snapshot.hash).as_slice())
                            .map_err(io)?;
                        let upto = match (reset, &snapshot.point) {
                            (Reset::All, _) => u64::MAX,
                            (Reset::Keep, Some(point)) => point.position.index,
                            (Reset::Keep, None) => 0,
                        };
                        log.retain_in((ns, 0)..=(ns, upto), |_, _| false).map_err(io)?;
                    }
                }
            }
        }
        tx.commit().map_err(io)?;
        for (namespace, write) in batch {
            if let Write::Snapshot(snapshot, _) = write {
                self.drop_snapshots_but(namespace, snapshot.hash);
            }
        }
        Ok(())
    }

    fn snapshot_name(namespace: &str, hash: Hash) -> String {
        let whose = blake3::hash(namespace.as_bytes()).to_hex();
        format!("{}-{}.snapshot", &whose[..16], &hash.to_hex()[..32])
    }

    /// Writes the bytes of a snapshot, durably, if they are not there yet. It counts only after the
    /// [`Write`] that names it; so this may run on any thread before that.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn write_snapshot(&self, ns: &str, snapshot: &Sealed) -> Result<(), StoreError> {
        let path = self.folder.join(Self::snapshot_name(ns, snapshot.hash));
        if path.exists() {
            return Ok(());
        }
        let part = path.with_extension("part");
        let write = || -> std::io::Result<()> {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&part)?;
            file.write_all(&snapshot.bytes)?;
            file.sync_all()?;
            std::fs::rename(&part, &path)?;
            std::fs::File::open(&self.folder)?.sync_all()
        };
        write().map_err(io)
    }

    fn read_snapshot(&self, namespace: &str, hash: Hash) -> Result<Sealed, StoreError> {
        let path = self.folder.join(Self::snapshot_name(namespace, hash));
        let bytes = std::fs::read(&path).map_err(io)?;
        let opened = Sealed::open(hash, bytes).map(|(sealed, _)| sealed);
        opened.ok_or_else(|| {
            let what = format!("the snapshot in {} is not the one written", path.display());
            StoreError::Damaged(what.into())
        })
    }

    /// Removes the snapshots of `namespace` that no longer count.
    fn drop_snapshots_but(&self, namespace: &str, hash: Hash) {
        let keep = Self::snapshot_name(namespace, hash);
        let whose = &keep[..17];
        let Ok(files) = std::fs::read_dir(&self.folder) else { return };
        for file in files.flatten() {
            let name = file.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(whose) && name.ends_with(".snapshot") && name != keep.as_str() {
                // One that stays costs room, and the next snapshot tries again.
                let _ = std::fs::remove_file(file.path());
            }
        }
    }

    /// Records `from..=upto` of a namespace, as many as fit into `bytes` (one at least).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn history(
        &self,
        ns: &str,
        from: u64,
        upto: u64,
        bytes: usize,
    ) -> Result<Vec<Record>, StoreError> {
        self.flush()?;
        let tx = self.db.begin_read().map_err(io)?;
        let table = tx.open_table(HISTORY).map_err(io)?;
        let (mut out, mut size) = (Vec::<Record>::new(), 0);
        for item in table.range((ns, from)..=(ns, upto)).map_err(io)? {
            let record: Record = decode(item.map_err(io)?.1.value())?;
            size += record.size();
            if size > bytes && !out.is_empty() {
                break;
            }
            // A hole ends it: what is served is always an unbroken run.
            if out.last().is_some_and(|last| record.index != last.index + 1) {
                break;
            }
            out.push(record);
        }
        Ok(out)
    }

    /// The namespaces that have a log or a history here.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn namespaces(&self) -> Result<BTreeSet<String>, StoreError> {
        let tx = self.db.begin_read().map_err(io)?;
        let meta = tx.open_table(META).map_err(io)?;
        let mut out = BTreeSet::new();
        for item in meta.iter().map_err(io)? {
            let (key, _) = item.map_err(io)?;
            let (ns, what) = key.value();
            if !ns.is_empty() && what != "incarnation" {
                out.insert(ns.to_owned());
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::commit::{EntryKind, Members, Position, SnapshotPoint};
    use crate::engine::Snapshot;
    use crate::history::{Chain, Outcome, TxId};
    use crate::identity::PeerId;
    use crate::kv::{Kv, KvGoal};

    fn entry(term: u64, index: u64) -> Entry {
        Entry { position: Position { term, index }, kind: EntryKind::Command(vec![index as u8]) }
    }

    fn append(after: u64, entries: Vec<Entry>) -> Write {
        let after = Position { term: 1, index: after };
        Write::Commit(CommitWrite::Append { after, entries })
    }

    fn open() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let store = Store::open(&dir.path().join("node.redb")).expect("a fresh store");
        (dir, store)
    }

    #[test]
    fn an_append_replaces_what_followed_its_anchor() {
        let (_dir, store) = open();
        let ns = |w| vec![("a".to_owned(), w)];
        store.commit(&ns(append(0, (1..=5).map(|i| entry(1, i)).collect()))).unwrap();
        store.commit(&ns(append(2, vec![entry(2, 3)]))).unwrap();
        let found = store.found("a").unwrap();
        let at: Vec<_> =
            found.commit.entries.iter().map(|e| (e.position.term, e.position.index)).collect();
        assert_eq!(at, [(1, 1), (1, 2), (2, 3)]);
    }

    #[test]
    fn namespaces_do_not_see_each_other() {
        let (_dir, store) = open();
        store
            .commit(&[("a".into(), append(0, vec![entry(1, 1)])), ("b".into(), append(0, vec![]))])
            .unwrap();
        assert_eq!(store.found("b").unwrap().commit.entries.len(), 0);
        assert_eq!(store.found("a").unwrap().commit.entries.len(), 1);
    }

    #[test]
    fn a_folder_of_another_form_is_refused_with_a_remedy_and_stays_as_it_is() {
        for (form, found) in [(None, 1), (Some(9), 9)] {
            let (dir, store) = open();
            store.found("a").unwrap();
            let tx = store.db.begin_write().unwrap();
            match form {
                // As the first version left it.
                None => drop(tx.open_table(META).unwrap().remove(("", "form")).unwrap()),
                Some(form) => {
                    let form = encode::<u16>(&form);
                    tx.open_table(META).unwrap().insert(("", "form"), form.as_slice()).unwrap();
                }
            }
            tx.commit().unwrap();
            drop(store);
            for _ in 0..2 {
                let Err(error) = Store::open(&dir.path().join("node.redb")) else {
                    panic!("form {form:?} was taken");
                };
                assert!(matches!(error, StoreError::OtherForm(form) if form == found), "{error}");
                assert!(error.to_string().contains("fresh folder"), "{error}");
            }
        }
    }

    #[test]
    fn every_start_is_a_later_incarnation() {
        let (dir, store) = open();
        assert_eq!(store.found("a").unwrap().incarnation, 1);
        drop(store);
        let store = Store::open(&dir.path().join("node.redb")).unwrap();
        assert_eq!(store.found("a").unwrap().incarnation, 2);
    }

    #[test]
    fn a_file_that_is_no_store_is_damaged_and_the_remedy_is_a_fresh_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.redb");
        // As a first start leaves it that was cut short, and as anything else may.
        for bytes in [vec![0; 1 << 16], b"a letter".to_vec()] {
            std::fs::write(&path, bytes).unwrap();
            let error = Store::open(&path).err().unwrap();
            assert!(matches!(error, StoreError::Damaged(_)), "{error}");
            assert!(error.to_string().contains("fresh folder"), "{error}");
        }
    }

    #[test]
    fn a_snapshot_drops_the_log_before_its_point() {
        let (_dir, store) = open();
        store.commit(&[("a".into(), append(0, (1..=9).map(|i| entry(1, i)).collect()))]).unwrap();
        let point =
            SnapshotPoint { position: Position { term: 1, index: 6 }, members: Members::default() };
        let snapshot = Snapshot {
            index: 4,
            point: Some(point),
            barred: BTreeMap::new(),
            chain: Chain::<Kv>::default().freeze(),
        }
        .seal();
        store.commit(&[("a".into(), Write::Snapshot(snapshot.clone(), Reset::Keep))]).unwrap();
        let found = store.found("a").unwrap();
        assert_eq!(found.commit.entries.first().map(|e| e.position.index), Some(7));
        assert_eq!(found.snapshot, Some(snapshot));
    }

    fn snapshot(index: u64) -> Sealed {
        let chain = Chain::<Kv>::default().freeze();
        Snapshot { index, point: None, barred: BTreeMap::new(), chain }.seal()
    }

    fn snapshot_files(dir: &tempfile::TempDir) -> Vec<PathBuf> {
        let files = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().path());
        files.filter(|f| f.extension().is_some_and(|e| e == "snapshot")).collect()
    }

    #[test]
    fn one_changed_bit_in_a_snapshot_is_noticed_when_it_is_read() {
        let (dir, store) = open();
        store.commit(&[("a".into(), Write::Snapshot(snapshot(4), Reset::Keep))]).unwrap();
        let [file] = snapshot_files(&dir).try_into().unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        assert!(matches!(store.found("a"), Err(StoreError::Damaged(_))));
    }

    #[test]
    fn a_snapshot_counts_only_once_it_is_named_and_replaces_the_one_before() {
        let (dir, store) = open();
        store.commit(&[("a".into(), Write::Snapshot(snapshot(4), Reset::Keep))]).unwrap();
        store.commit(&[("b".into(), Write::Snapshot(snapshot(4), Reset::Keep))]).unwrap();
        store.write_snapshot("a", &snapshot(9)).unwrap();
        assert_eq!(store.found("a").unwrap().snapshot.map(|s| s.index), Some(4));
        store.commit(&[("a".into(), Write::Snapshot(snapshot(9), Reset::Keep))]).unwrap();
        assert_eq!(store.found("a").unwrap().snapshot.map(|s| s.index), Some(9));
        assert_eq!(snapshot_files(&dir).len(), 2, "one for each namespace");
    }

    #[test]
    fn a_file_that_is_mostly_empty_is_compacted_at_the_next_start() {
        let (dir, store) = open();
        let path = dir.path().join("node.redb");
        for n in 1..=120 {
            let (prev, tx) = (Hash::default(), TxId([n; 16]));
            let outcome = Outcome::Rejected(String::new());
            let (leader, goal) = (PeerId([1; 32]), vec![n; 800_000]);
            let record = Record { index: n.into(), prev, term: 1, leader, tx, goal, outcome };
            store.commit(&[("a".into(), Write::History(record))]).unwrap();
        }
        store.flush().unwrap();
        let full = path.metadata().unwrap().len();
        assert!(full > WORTH_COMPACTING, "{full}");
        store.commit(&[("a".into(), Write::Forget(119))]).unwrap();
        store.flush().unwrap();
        drop(store);
        let store = Store::open(&path).unwrap();
        let left = path.metadata().unwrap().len();
        assert!(left < full / 4, "{left} of {full}");
        assert_eq!(store.history("a", 1, 200, usize::MAX).unwrap().len(), 1);
    }

    #[test]
    fn history_is_served_in_unbroken_runs_within_a_size() {
        let (_dir, store) = open();
        let mut chain = Chain::<Kv>::default();
        for n in 1..=20u8 {
            let goal = KvGoal::Put { key: "k".into(), value: n.into() }.to_bytes();
            let r = chain.execute(1, PeerId([1; 32]), TxId([n; 16]), goal);
            chain.apply(&r).unwrap();
            if n != 15 {
                store.commit(&[("a".into(), Write::History(r))]).unwrap();
            }
        }
        assert_eq!(store.history("a", 3, 20, usize::MAX).unwrap().len(), 12);
        assert_eq!(store.history("a", 3, 20, 1).unwrap().len(), 1);
        assert_eq!(store.history("a", 15, 15, 1).unwrap().len(), 0);
    }
}
