//! A cluster's state in one file, and the new cluster that is made of it.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::carried::{Carried, first_credentials};
use crate::commit::{CommitWrite, EntryKind, HardState, Members, Position, SnapshotPoint};
use crate::credentials::CREDENTIALS;
use crate::engine::{Command, Reset, Sealed, Snapshot, Write};
use crate::history::{Chain, ChainError, Hash, Record};
use crate::host::HostError;
use crate::host::folder::{Folder, STORE};
use crate::identity::{Keys as _, PeerId};
use crate::machine::StateMachine;
use crate::storage::{Store, StoreError};

/// How the file begins: what it is. The digit of its form follows.
const MAGIC: &[u8; 15] = b"tenure backup  ";
/// 1 did not say which transactions were rejected.
const FORM: u8 = b'2';
/// Terms of one generation: an election a second for half a year. Large enough that no former leader can have
/// a term of the next generation, small enough that a fresh node believes it.
const TERMS: u64 = 1 << 24;
/// Records of one generation.
const RECORDS: u64 = 1 << 32;

/// A backup cannot be made, written, read or restored. No state of a cluster was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// A file cannot be read or written.
    #[error("{}: {why}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: std::io::Error,
    },
    /// The file is no backup, or was changed since.
    #[error("{}: not a whole backup of this version ({why}); take another one", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Another version of this program wrote the file.
    #[error(
        "{}: a backup of form {form}, and this version of tenure reads form {}; use the version that wrote it",
        path.display(), char::from(FORM)
    )]
    OtherForm {
        /// The file.
        path: PathBuf,
        /// Its form.
        form: char,
    },
    /// There is something in the folder already.
    #[error(
        "{}: a new generation begins in a folder of its own; name one that does not exist",
        .0.display()
    )]
    NotEmpty(PathBuf),
    /// There is no state in the folder.
    #[error("{}: no node has kept a state here; name the folder of a survivor", .0.display())]
    NoState(PathBuf),
    /// The folder was recovered before.
    #[error(
        "{}: its state was recovered into a new cluster before, and a second one would issue the same epochs; start that one",
        .0.display()
    )]
    Retired(PathBuf),
    /// The store of the folder cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The new folder cannot be made.
    #[error(transparent)]
    Folder(#[from] Box<HostError>),
}

/// The state of a cluster at one place in its history, namespace by namespace.
///
/// A backup is taken of a running node ([`Client::backup`](crate::Client::backup)) or of the folder of one that
/// is stopped ([`Backup::of_folder`]). What [`Backup::restore`] makes of it is always a **new generation**:
/// another cluster id, a node with another key, and terms and record numbers that begin beyond every number the
/// former cluster can have used. So
///
/// - a survivor of the former cluster can never join: its cluster id is refused in the greeting;
/// - no epoch is issued twice: the first term of the generation is larger than any before it;
/// - a reader that had seen further than the backup reaches is told so: its next record number lies before
///   the oldest that the new cluster keeps, so it is refused and never given other records for its own.
///
/// The transaction ids are kept: what was decided before the backup is not executed again. Everything here
/// blocks for as long as the disk does.
#[derive(Clone, Serialize, Deserialize)]
pub struct Backup {
    cluster: [u8; 16],
    spaces: Vec<Space>,
}

/// One namespace.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Space {
    pub(crate) name: String,
    /// The largest term that was known.
    pub(crate) term: u64,
    /// The longest lease that may have been promised.
    pub(crate) lease: Duration,
    /// The last entry of the consensus log that went into it.
    pub(crate) last: Position,
    pub(crate) snapshot: Option<(Hash, Vec<u8>)>,
    /// What follows the snapshot.
    pub(crate) records: Vec<Record>,
}

/// How far a backup reaches in one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reach {
    /// Which namespace's records these are.
    pub namespace: String,
    /// The number of its last record.
    pub index: u64,
    /// The largest term that was known.
    pub term: u64,
    /// The term and the number of the last entry of that node's log. Of several survivors, the one whose last
    /// entry is largest has lost least.
    pub last_entry: (u64, u64),
}

/// A new generation, ready to be started with [`Start::Resume`](crate::Start::Resume).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Generation {
    /// Its first node.
    pub node: PeerId,
    /// The cluster, in hexadecimal.
    pub cluster: String,
    /// How far the state reaches that it began with.
    pub reach: Vec<Reach>,
}

impl std::fmt::Debug for Backup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Backup({}, {:?})", hex::encode(self.cluster), self.reach())
    }
}

impl Backup {
    pub(crate) fn new(cluster: [u8; 16], spaces: Vec<Space>) -> Self {
        Self { cluster, spaces }
    }

    /// What the folder of a stopped node holds: all that it applied, and what its log has beyond. An entry of
    /// the log may or may not have been committed; none that was acknowledged is left out.
    ///
    /// # Errors
    /// See [`BackupError`]; [`StoreError::Io`] if a node still runs there.
    pub fn of_folder(folder: &Path) -> Result<Self, BackupError> {
        let path = folder.join(STORE);
        if !path.exists() {
            return Err(BackupError::NoState(folder.to_owned()));
        }
        let store = Store::open(&path)?;
        let cluster = store.get("cluster")?.ok_or(BackupError::NoState(folder.to_owned()))?;
        if store.get("retired")? == Some(true) {
            return Err(BackupError::Retired(folder.to_owned()));
        }
        let mut spaces = Vec::new();
        for name in store.namespaces()? {
            let found = store.found(&name)?;
            let hard = found.commit.hard;
            let covered = found.snapshot.as_ref().map_or(0, |sealed| sealed.index);
            let point = found.snapshot.as_ref().and_then(|sealed| sealed.point.clone());
            let mut records: Vec<_> =
                found.history.into_iter().filter(|record| record.index > covered).collect();
            let mut last = point.map(|point| point.position).unwrap_or_default();
            for entry in found.commit.entries {
                last = entry.position;
                if let EntryKind::Command(bytes) = entry.kind
                    && let Ok(Command::Record(record)) = postcard::from_bytes(&bytes)
                    && record.index == records.last().map_or(covered, |r: &Record| r.index) + 1
                {
                    records.push(record);
                }
            }
            let snapshot = found.snapshot.map(|sealed| (sealed.hash, sealed.bytes.to_vec()));
            let term = hard.term.max(last.term);
            spaces.push(Space { name, term, lease: hard.lease, last, snapshot, records });
        }
        Ok(Self { cluster, spaces })
    }

    /// Marks the folder of a stopped node as left behind: no node starts in it any more. Do so with the folder
    /// that a generation was made of, or its node could start beside the new cluster.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn retire(folder: &Path) -> Result<(), StoreError> {
        Store::open(&folder.join(STORE))?.put("retired", &true)
    }

    /// How far it reaches, namespace by namespace.
    #[must_use]
    pub fn reach(&self) -> Vec<Reach> {
        let of = |space: &Space| {
            let snapshot = space.snapshot.as_ref().and_then(|(_, bytes)| {
                postcard::from_bytes::<Snapshot>(bytes).ok().map(|snapshot| snapshot.index)
            });
            Reach {
                namespace: space.name.clone(),
                index: space.records.last().map_or(snapshot.unwrap_or(0), |record| record.index),
                term: space.term,
                last_entry: (space.last.term, space.last.index),
            }
        };
        self.spaces.iter().map(of).collect()
    }

    /// Writes it to a new file that only its owner can read, whole and synced.
    ///
    /// # Errors
    /// [`BackupError::Io`]; also if there is such a file already. A part of the file may be left then.
    pub fn write(&self, path: &Path) -> Result<(), BackupError> {
        let fail = |why| BackupError::Io { path: path.to_owned(), why };
        let body = postcard::to_stdvec(self).expect("plain data can always be encoded");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(fail)?;
        for part in [MAGIC.as_slice(), &[FORM], blake3::hash(&body).as_bytes(), &body] {
            file.write_all(part).map_err(fail)?;
        }
        file.sync_all().map_err(fail)
    }

    /// Reads what [`Backup::write`] wrote.
    ///
    /// # Errors
    /// See [`BackupError`].
    pub fn read(path: &Path) -> Result<Self, BackupError> {
        let damaged = |why: &str| BackupError::Damaged { path: path.to_owned(), why: why.into() };
        let bytes =
            std::fs::read(path).map_err(|why| BackupError::Io { path: path.to_owned(), why })?;
        let rest = match bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first) {
            Some((&FORM, rest)) => rest,
            Some((form, _)) if form.is_ascii_digit() => {
                return Err(BackupError::OtherForm { path: path.to_owned(), form: (*form).into() });
            }
            Some(_) | None => return Err(damaged("it begins otherwise")),
        };
        let (hash, body) = rest.split_first_chunk::<32>().ok_or_else(|| damaged("it is cut"))?;
        if blake3::hash(body) != blake3::Hash::from_bytes(*hash) {
            return Err(damaged("its hash is another one"));
        }
        postcard::from_bytes(body).map_err(|error| damaged(&error.to_string()))
    }

    /// Makes a new generation of it in `folder`, which must be empty or not exist: one node, which votes alone until
    /// others join. `M` must be the state machine of the former cluster. Keys that were nodes are none in it;
    /// operators and clients keep their rights, and open invitations are void.
    ///
    /// # Errors
    /// See [`BackupError`]; then the folder is as before.
    pub fn restore<M: StateMachine>(&self, folder: &Path) -> Result<Generation, BackupError> {
        let taken = std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some());
        if taken {
            return Err(BackupError::NotEmpty(folder.to_owned()));
        }
        let cluster: [u8; 16] = rand::random();
        let opened = Folder::open(folder, false).map_err(Box::new)?;
        let node = opened.keys.id();
        match self.fill::<M>(&opened.store, cluster, node) {
            Ok(()) => Ok(Generation { node, cluster: hex::encode(cluster), reach: self.reach() }),
            Err(error) => {
                opened.discard_if_new();
                Err(error)
            }
        }
    }

    fn fill<M: StateMachine>(
        &self,
        store: &Store,
        cluster: [u8; 16],
        node: PeerId,
    ) -> Result<(), BackupError> {
        let mut writes = Vec::new();
        for space in &self.spaces {
            let chain = space.chain::<M>()?;
            let index = (chain.index() / RECORDS + 1) * RECORDS;
            let chain = chain.leap(index, &cluster, |machine| machine.refound(node));
            let term = (space.term / TERMS + 1) * TERMS;
            let members = Members { voters: BTreeSet::from([node]), ..Members::default() };
            let point = SnapshotPoint { position: Position { term, index: 1 }, members };
            let (point, barred) = (Some(point), Default::default());
            let sealed = Snapshot { index, point, barred, chain: chain.freeze() }.seal();
            let hard = HardState { term, voted_for: None, lease: space.lease };
            let name = || space.name.clone();
            writes.push((name(), Write::Commit(CommitWrite::Hard(hard))));
            writes.push((name(), Write::Snapshot(sealed, Reset::All)));
        }
        store.commit(&writes)?;
        store.put("founder", &true)?;
        // Last: a folder without it has no state.
        Ok(store.put("cluster", &cluster)?)
    }
}

impl Space {
    /// The state after its last record.
    fn chain<M: StateMachine>(&self) -> Result<Chain<Carried<M>>, BackupError> {
        let damaged = |why: String| {
            let path = PathBuf::from(format!("namespace {}", self.name));
            BackupError::Damaged { path, why }
        };
        let first = || (self.name == CREDENTIALS).then(first_credentials);
        let sealed = match &self.snapshot {
            Some((hash, bytes)) => Some(
                Sealed::open(*hash, bytes.clone())
                    .ok_or_else(|| damaged("its snapshot has another hash".to_owned()))?
                    .0,
            ),
            None => first(),
        };
        let mut chain = match sealed {
            Some(sealed) => Chain::thaw(&sealed.snapshot().chain).map_err(damaged)?,
            None => Chain::default(),
        };
        for record in &self.records {
            match chain.apply(record) {
                Ok(_) => {}
                // Records of the store that were lost with the power; what follows them is in the log alone.
                Err(ChainError::Gap { .. }) => break,
                Err(error) => return Err(damaged(error.to_string())),
            }
        }
        Ok(chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::TxId;
    use crate::kv::{Kv, KvGoal};

    fn records(count: u8) -> Vec<Record> {
        let mut chain = Chain::<Kv>::default();
        let next = |n: u8| {
            let goal = KvGoal::Put { key: format!("k{n}"), value: n.into() };
            let record = chain.execute(3, PeerId([1; 32]), TxId([n; 16]), goal.to_bytes());
            chain.apply(&record).expect("the next one");
            record
        };
        (1..=count).map(next).collect()
    }

    fn backup() -> Backup {
        let last = Position { term: 3, index: 9 };
        let (name, lease) = ("main".to_owned(), Duration::from_secs(1));
        let space = Space { name, term: 5, lease, last, snapshot: None, records: records(4) };
        Backup::new([1; 16], vec![space])
    }

    #[test]
    fn a_file_that_was_changed_is_refused_and_none_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup");
        backup().write(&path).unwrap();
        assert_eq!(Backup::read(&path).unwrap().reach(), backup().reach());
        assert!(matches!(backup().write(&path), Err(BackupError::Io { .. })));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(Backup::read(&path), Err(BackupError::Damaged { .. })));
    }

    #[test]
    fn a_file_of_another_form_is_refused_with_its_number_and_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup");
        backup().write(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[MAGIC.len()] = b'1';
        std::fs::write(&path, bytes).unwrap();
        let error = Backup::read(&path).unwrap_err();
        assert!(matches!(error, BackupError::OtherForm { form: '1', .. }), "{error}");
        assert!(error.to_string().contains("use the version that wrote it"), "{error}");
        std::fs::write(&path, b"tenure backup  ").unwrap();
        assert!(matches!(Backup::read(&path), Err(BackupError::Damaged { .. })));
    }

    #[test]
    fn a_generation_begins_beyond_every_number_of_the_former_one() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("new");
        let made = backup().restore::<Kv>(&folder).unwrap();
        assert!(matches!(backup().restore::<Kv>(&folder), Err(BackupError::NotEmpty(_))));
        let again = Backup::of_folder(&folder).unwrap();
        let reach = &again.reach()[0];
        assert_ne!(again.cluster, [1; 16]);
        assert_eq!((reach.index, reach.term), (RECORDS, TERMS));
        let chain = again.spaces[0].chain::<Kv>().unwrap();
        assert_eq!(chain.find(&TxId([4; 16])), Some(4), "what was decided stays decided");
        assert_eq!(made.reach, backup().reach());
        // And a generation of that generation begins beyond it.
        let next = again.restore::<Kv>(&dir.path().join("next")).unwrap();
        assert_ne!(next.cluster, made.cluster);
        let reach = &Backup::of_folder(&dir.path().join("next")).unwrap().reach()[0];
        assert_eq!((reach.index, reach.term), (2 * RECORDS, 2 * TERMS));
    }
}
