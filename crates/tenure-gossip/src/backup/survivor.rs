//! The folder of a stopped node whose cluster has lost its majority, and the new generation that it becomes.

use std::path::{Path, PathBuf};

use super::unfinished::Unfinished;
use super::{Backup, BackupError, Generation, Reach};
use crate::host::folder::STORE;
use crate::identity::PeerId;
use crate::machine::StateMachine;
use crate::storage::Store;

/// The cluster that was made of this folder, or is being made.
const SUCCESSOR: &str = "successor";
/// No node starts here any more.
pub(crate) const RETIRED: &str = "retired";

/// The folder of a stopped node that is recovered into a new generation. No node can start in it as long as this is held.
///
/// At every instant at most one of the two folders can be started:
///
/// ```text
///                                                  old folder   new folder
/// the new folder is filled, marked as unfinished   starts       is refused, and is filled again by the next run
/// the old folder is retired, naming the cluster    is refused   is refused, and is finished by the next run
/// the mark is removed                              is refused   starts
/// ```
pub struct Survivor {
    store: Store,
    into: PathBuf,
    backup: Backup,
    /// A former run had retired this folder and not finished the new one.
    finishes: Option<(Unfinished, PeerId, [u8; 16])>,
}

impl std::fmt::Debug for Survivor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Survivor({:?} into {})", self.backup, self.into.display())
    }
}

impl Survivor {
    /// Takes the folder of a stopped node, to be recovered into the folder `into`.
    ///
    /// # Errors
    /// See [`BackupError`]; [`StoreError::Io`](crate::StoreError::Io) if a node still runs there. Nothing was changed.
    pub fn open(folder: &Path, into: &Path) -> Result<Self, BackupError> {
        let store = Backup::store_of(folder)?;
        // An operator is told to remove the old folder.
        let old = folder.canonicalize().ok();
        let above = std::path::absolute(into).unwrap_or_default();
        let mut above = above.ancestors().skip(1).filter_map(|path| path.canonicalize().ok());
        if above.any(|path| Some(path) == old) {
            return Err(BackupError::Inside(into.to_owned()));
        }
        let backup = Backup::of_store(folder, &store)?;
        let mut finishes = None;
        if store.get(RETIRED)? == Some(true) {
            finishes =
                Some(half_done(&store, into)?.ok_or(BackupError::Retired(folder.to_owned()))?);
        }
        Ok(Self { store, into: into.to_owned(), backup, finishes })
    }

    /// How far it reaches, namespace by namespace.
    #[must_use]
    pub fn reach(&self) -> Vec<Reach> {
        self.backup.reach()
    }

    /// Makes the new generation, and leaves the old folder behind: no node starts in it any more. After a crash it is
    /// done again with the same two folders; see [`Survivor`].
    ///
    /// # Errors
    /// See [`BackupError`]; the same can be tried again, also if the old folder was left behind already.
    pub fn recover<M: StateMachine>(mut self) -> Result<Generation, BackupError> {
        let (unfinished, node, cluster) = match self.finishes.take() {
            Some(half_done) => half_done,
            None => {
                let (unfinished, node, cluster) = self.backup.draft::<M>(&self.into)?;
                self.store.put(SUCCESSOR, &cluster)?;
                // A write that fails may be on disk all the same, so the new folder stays as it is: the next run
                // fills or finishes it, whichever is right.
                self.store.put(RETIRED, &true)?;
                (unfinished, node, cluster)
            }
        };
        unfinished.finish()?;
        Ok(Generation { node, cluster: hex::encode(cluster), reach: self.backup.reach() })
    }
}

/// The generation in `into`, if it was made of `store` and only its last step is missing.
fn half_done(
    store: &Store,
    into: &Path,
) -> Result<Option<(Unfinished, PeerId, [u8; 16])>, BackupError> {
    let Some(unfinished) = Unfinished::again(into)? else { return Ok(None) };
    let made = Store::open(&into.join(STORE))?;
    let (node, cluster) = (made.get("identity")?, made.get::<[u8; 16]>("cluster")?);
    let same = cluster.is_some() && cluster == store.get(SUCCESSOR)?;
    Ok(node.zip(cluster).filter(|_| same).map(|(node, cluster)| (unfinished, node, cluster)))
}
