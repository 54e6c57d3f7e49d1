//! A folder that is being filled: no node starts in it before it is whole.
//!
//! The file `unfinished` is in the folder before anything else, on disk, and is removed after everything else is. A
//! crash in between leaves a folder that is refused by every start, and that the same command fills again from nothing.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::BackupError;
use crate::host::folder::{Folder, STORE, UNFINISHED, unusable};
use crate::identity_file::{FILE_MODE, KEY, make_folder};

/// The key while it is written.
const KEY_DRAFT: &str = "identity.new";

/// The right to fill a folder, until it is dropped.
pub(super) struct Unfinished {
    folder: PathBuf,
    /// Locked: two commands never fill one folder.
    mark: File,
    /// Whether there was no folder before.
    made: bool,
}

impl Unfinished {
    /// Marks a folder that is empty or does not exist. What a command that was cut short left in it is removed.
    ///
    /// # Errors
    /// [`BackupError::NotEmpty`], [`BackupError::Busy`], [`BackupError::Folder`]; the folder is as before.
    pub(super) fn begin(folder: &Path) -> Result<Self, BackupError> {
        let fail = |why| failed(folder, &why);
        let taken_up = Self::again(folder)?;
        // Only now: while the mark is locked no other command changes what is there.
        let found = names(folder).map_err(fail)?;
        let made = found.is_none();
        let found = found.unwrap_or_default();
        if found.iter().any(|name| taken_up.is_none() || !is_ours(name)) {
            return Err(BackupError::NotEmpty(folder.to_owned()));
        }
        let absolute = std::path::absolute(folder).map_err(fail)?;
        let missing = absolute.ancestors().skip(1).take_while(|path| !path.exists()).count();
        let begun = match taken_up {
            Some(taken_up) => taken_up,
            None => Self::mark(folder, made).inspect_err(|_| {
                if made {
                    // Fails, and rightly, if another command has marked it.
                    let _ = fs::remove_dir(folder);
                }
            })?,
        };
        // The folder's own name must last too, and those above it that are new.
        let durable = || {
            begun.clear(&found)?;
            begun.mark.sync_all()?;
            absolute.ancestors().take(missing + 2).try_for_each(sync_names)
        };
        match durable() {
            Ok(()) => Ok(begun),
            Err(error) => {
                begun.abandon();
                Err(fail(error))
            }
        }
    }

    /// Makes the folder, with the mark in it.
    fn mark(folder: &Path, made: bool) -> Result<Self, BackupError> {
        let fail = |why| failed(folder, &why);
        make_folder(folder).map_err(fail)?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(FILE_MODE);
        let mark = match options.open(folder.join(UNFINISHED)) {
            Ok(mark) => mark,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(BackupError::Busy(folder.to_owned()));
            }
            Err(error) => return Err(fail(error)),
        };
        let begun = Self { folder: folder.to_owned(), mark, made };
        begun.lock()?;
        Ok(begun)
    }

    /// Takes up a folder that a command has left unfinished; `None` if it is not marked.
    ///
    /// # Errors
    /// [`BackupError::Busy`], [`BackupError::Folder`].
    pub(super) fn again(folder: &Path) -> Result<Option<Self>, BackupError> {
        let fail = |why| failed(folder, &why);
        let path = folder.join(UNFINISHED);
        let mark = match OpenOptions::new().write(true).open(&path) {
            Ok(mark) => mark,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fail(error)),
        };
        let begun = Self { folder: folder.to_owned(), mark, made: false };
        begun.lock()?;
        // The command that held the lock may have finished: then the mark is gone, and the folder is a node's.
        let marked = match fs::metadata(&path) {
            Ok(found) => found.ino() == begun.mark.metadata().map_err(fail)?.ino(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(fail(error)),
        };
        Ok(marked.then_some(begun))
    }

    fn lock(&self) -> Result<(), BackupError> {
        match self.mark.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(BackupError::Busy(self.folder.clone())),
            Err(TryLockError::Error(why)) => Err(failed(&self.folder, &why)),
        }
    }

    /// The store and the key of the new node.
    pub(super) fn open(&self) -> Result<Folder, BackupError> {
        Ok(Folder::open_files(&self.folder).map_err(Box::new)?)
    }

    /// From now on a node starts in it. Everything in it must be on disk.
    pub(super) fn finish(self) -> Result<(), BackupError> {
        let fail = |why| failed(&self.folder, &why);
        fs::remove_file(self.folder.join(UNFINISHED)).map_err(fail)?;
        // A mark that came back after a power failure would stop a node that has voted.
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(fail)
    }

    /// Removes all that was made. What cannot be removed stays marked.
    pub(super) fn abandon(self) {
        let cleared = names(&self.folder).and_then(|found| self.clear(&found.unwrap_or_default()));
        if cleared.is_ok() {
            let _ = fs::remove_file(self.folder.join(UNFINISHED));
            if self.made {
                let _ = fs::remove_dir(&self.folder);
            }
        }
    }

    fn clear(&self, found: &[OsString]) -> io::Result<()> {
        for name in found.iter().filter(|name| is_ours(name) && *name != UNFINISHED) {
            fs::remove_file(self.folder.join(name))?;
        }
        Ok(())
    }
}

/// What is in a folder; `None` if there is none.
fn names(folder: &Path) -> io::Result<Option<Vec<OsString>>> {
    match fs::read_dir(folder) {
        Ok(files) => files.map(|file| Ok(file?.file_name())).collect::<io::Result<_>>().map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the names in a folder last. One that may not be read was not made by this program.
fn sync_names(folder: &Path) -> io::Result<()> {
    match File::open(folder) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        opened => opened?.sync_all(),
    }
}

/// Whether a folder that no node has ever started in can have such a file.
fn is_ours(name: &OsStr) -> bool {
    let extension = Path::new(name).extension();
    [STORE, KEY, KEY_DRAFT, UNFINISHED].iter().any(|file| name == *file)
        || extension.is_some_and(|extension| extension == "snapshot" || extension == "part")
}

fn failed(folder: &Path, why: &io::Error) -> BackupError {
    BackupError::Folder(Box::new(unusable(folder, why)))
}
