//! A cluster's state in one file, and the new cluster that is made of it.

pub(crate) mod survivor;
mod unfinished;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::survivor::RETIRED;
use self::unfinished::Unfinished;
use crate::carried::{Carried, first_credentials};
use crate::commit::{CommitWrite, EntryKind, HardState, Members, Position, SnapshotPoint};
use crate::credentials::CREDENTIALS;
use crate::engine::{Command, Reset, Sealed, Snapshot, Write};
use crate::history::{Chain, ChainError, Hash, Record, frozen_head};
use crate::host::HostError;
use crate::host::folder::{self, STORE, UNFINISHED};
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
    /// The new folder would lie in the old one.
    #[error("{}: lies inside the survivor's folder, which is left behind; name one beside it", .0.display())]
    Inside(PathBuf),
    /// Another command works on the folder.
    #[error("{}: another command is filling this folder; wait until it has ended", .0.display())]
    Busy(PathBuf),
    /// A command that filled the folder was cut short.
    #[error(
        "{}: `tenure gossip restore` or `force-recover` was cut short while it filled this folder; run it again with the same arguments",
        .0.display()
    )]
    Unfinished(PathBuf),
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
    /// the log may or may not have been committed; none that was acknowledged is left out. To make a new cluster of a
    /// survivor see [`Survivor`](crate::Survivor).
    ///
    /// # Errors
    /// See [`BackupError`]; [`StoreError::Io`] if a node still runs there.
    pub fn of_folder(folder: &Path) -> Result<Self, BackupError> {
        let store = Self::store_of(folder)?;
        if store.get(RETIRED)? == Some(true) {
            return Err(BackupError::Retired(folder.to_owned()));
        }
        Self::of_store(folder, &store)
    }

    /// The store of a stopped node.
    fn store_of(folder: &Path) -> Result<Store, BackupError> {
        let path = folder.join(STORE);
        let fail = |why| BackupError::Folder(Box::new(folder::unusable(folder, &why)));
        if !path.try_exists().map_err(fail)? {
            return Err(BackupError::NoState(folder.to_owned()));
        }
        if folder.join(UNFINISHED).try_exists().map_err(fail)? {
            return Err(BackupError::Unfinished(folder.to_owned()));
        }
        Ok(Store::open(&path)?)
    }

    fn of_store(folder: &Path, store: &Store) -> Result<Self, BackupError> {
        let cluster = store.get("cluster")?.ok_or(BackupError::NoState(folder.to_owned()))?;
        let mut spaces = Vec::new();
        for name in store.namespaces()? {
            let found = store.found(&name)?;
            let hard = found.commit.hard;
            let covered = found.snapshot.as_ref().map_or(0, |sealed| sealed.index);
            let point = found.snapshot.as_ref().and_then(|sealed| sealed.point.clone());
            let mut records: Vec<_> =
                found.history.into_iter().filter(|record| record.index > covered).collect();
            let frozen = || found.snapshot.as_ref().and_then(|s| frozen_head(&s.snapshot().chain));
            let mut head = records.last().map(Record::hash).or_else(frozen).unwrap_or_default();
            let mut last = point.map(|point| point.position).unwrap_or_default();
            for entry in found.commit.entries {
                last = entry.position;
                if let EntryKind::Command(bytes) = entry.kind
                    && let Ok(Command::Record(record)) = postcard::from_bytes(&bytes)
                    && record.index == records.last().map_or(covered, |r: &Record| r.index) + 1
                    // A record that came from a peer is committed. An entry that contradicts it never was, nor was any
                    // entry after that one: a former leader had them, and was cut off.
                    && record.prev == head
                {
                    head = record.hash();
                    records.push(record);
                }
            }
            let snapshot = found.snapshot.map(|sealed| (sealed.hash, sealed.bytes.to_vec()));
            let term = hard.term.max(last.term);
            spaces.push(Space { name, term, lease: hard.lease, last, snapshot, records });
        }
        Ok(Self { cluster, spaces })
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
    /// [`BackupError::Io`]; also if there is such a file already. Nothing is left then of what was written.
    pub fn write(&self, path: &Path) -> Result<(), BackupError> {
        let fail = |why| BackupError::Io { path: path.to_owned(), why };
        let body = postcard::to_stdvec(self).expect("plain data can always be encoded");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(fail)?;
        let mut whole = || -> std::io::Result<()> {
            for part in [MAGIC.as_slice(), &[FORM], blake3::hash(&body).as_bytes(), &body] {
                file.write_all(part)?;
            }
            file.sync_all()?;
            // Its name must last as well.
            let absolute = std::path::absolute(path)?;
            absolute.parent().map_or(Ok(()), |folder| std::fs::File::open(folder)?.sync_all())
        };
        whole().map_err(|why| {
            // A part of a backup would be in the way of the next one.
            let _ = std::fs::remove_file(path);
            fail(why)
        })
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
    /// No node starts in the folder before it is whole and on disk. After a crash the same call fills it again.
    ///
    /// # Errors
    /// See [`BackupError`]; then the folder is as before, or no node starts in it and the same call fills it again.
    pub fn restore<M: StateMachine>(&self, folder: &Path) -> Result<Generation, BackupError> {
        let (unfinished, node, cluster) = self.draft::<M>(folder)?;
        unfinished.finish()?;
        Ok(Generation { node, cluster: hex::encode(cluster), reach: self.reach() })
    }

    /// The same, but for the last step: everything is there and on disk, and no node starts in it yet.
    fn draft<M: StateMachine>(
        &self,
        folder: &Path,
    ) -> Result<(Unfinished, PeerId, [u8; 16]), BackupError> {
        let unfinished = Unfinished::begin(folder)?;
        let cluster: [u8; 16] = rand::random();
        let filled = unfinished.open().and_then(|opened| {
            let node = opened.keys.id();
            self.fill::<M>(&opened.store, cluster, node).map(|()| node)
        });
        match filled {
            Ok(node) => Ok((unfinished, node, cluster)),
            Err(error) => {
                unfinished.abandon();
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
mod tests;
