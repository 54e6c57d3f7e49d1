//! The folder of a node: its store and its keys, which belong together.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::HostError;
use crate::identity::{Ed25519Keys, Keys as _, PeerId, decode_hex};
use crate::identity_file::{FILE_MODE, FOLDER_MODE, KEY, check_private, make_folder, write_key};
use crate::storage::Store;

/// The file of the store: it holds the whole state, and is its owner's alone like the key.
pub(crate) const STORE: &str = "node.redb";

/// A folder with this file is not whole yet: `restore` or `force-recover` is filling it, or was cut short.
pub(crate) const UNFINISHED: &str = "unfinished";

/// What a node keeps on disk.
pub(crate) struct Folder {
    pub(crate) store: Store,
    pub(crate) keys: Arc<Ed25519Keys>,
    path: PathBuf,
    /// Whether this start made it.
    fresh: bool,
}

impl Folder {
    /// Opens it, or makes it at the first start; with `resume`, it must be there. A key without the store
    /// it voted with could vote twice in a term, so each knows the other.
    pub(crate) fn open(folder: &Path, resume: bool) -> Result<Self, HostError> {
        let fail = |why| unusable(folder, &why);
        let store = folder.join(STORE);
        let fresh = !store.try_exists().map_err(fail)?;
        if folder.join(UNFINISHED).try_exists().map_err(fail)? {
            return Err(HostError::Unfinished(folder.to_owned()));
        }
        if fresh && resume {
            return Err(HostError::NoState);
        }
        make_folder(folder).map_err(fail)?;
        let opened = Self::open_files(folder)?;
        Ok(Self { fresh, ..opened })
    }

    /// Opens the files of a folder that is there, or makes them.
    pub(crate) fn open_files(folder: &Path) -> Result<Self, HostError> {
        let fail = |why| unusable(folder, &why);
        let store = folder.join(STORE);
        for (path, right) in [
            (folder.to_owned(), FOLDER_MODE),
            (store.clone(), FILE_MODE),
            (folder.join(KEY), FILE_MODE),
        ] {
            check_private(&path, right)?;
        }
        // Made here, because redb would make a file that every account can read.
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(&store)
            .map_err(fail)?;
        let store = Store::open(&store)?;
        let path = folder.join(KEY);
        let keys = match fs::read_to_string(&path) {
            Ok(text) => known_keys(&path, &text, &store),
            Err(error) if error.kind() == io::ErrorKind::NotFound => new_keys(folder, &store),
            Err(why) => Err(unusable(&path, &why)),
        };
        Ok(Self { store, keys: Arc::new(keys?), path: folder.to_owned(), fresh: false })
    }

    /// Removes what this start made; a folder with a state of its own stays as it is.
    pub(crate) fn discard_if_new(self) {
        if self.fresh {
            drop(self.store);
            for file in [STORE, KEY, "nodes"] {
                let _ = fs::remove_file(self.path.join(file));
            }
            // Fails, and rightly, if there is anything else in it.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn known_keys(path: &Path, text: &str, store: &Store) -> Result<Ed25519Keys, HostError> {
    let secret = decode_hex(text).ok_or_else(|| HostError::Io {
        what: path.display().to_string(),
        why: io::Error::new(
            io::ErrorKind::InvalidData,
            "not a key of 64 hexadecimal digits; restore it, or remove the whole folder and join as a new node",
        ),
    })?;
    let keys = Ed25519Keys::from_secret(&secret);
    if store.get::<PeerId>("identity")? != Some(keys.id()) {
        return Err(HostError::Forgotten(path.to_owned()));
    }
    Ok(keys)
}

/// Keys that only their owner can read.
fn new_keys(folder: &Path, store: &Store) -> Result<Ed25519Keys, HostError> {
    let path = folder.join(KEY);
    // A start that was cut short may have left a name without its key; it has joined nothing.
    if store.get::<[u8; 16]>("cluster")?.is_some() {
        return Err(HostError::Forgotten(path));
    }
    let keys = Ed25519Keys::generate();
    store.put("identity", &keys.id())?;
    write_key(folder, &keys).map_err(|why| unusable(&path, &why))?;
    Ok(keys)
}

pub(crate) fn unusable(path: &Path, why: &io::Error) -> HostError {
    let remedy = "name a folder that this program may make, read and write";
    let why = io::Error::new(why.kind(), format!("{why}; {remedy}"));
    HostError::Io { what: path.display().to_string(), why }
}
