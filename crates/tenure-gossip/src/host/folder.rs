//! The folder of a node: its store and its keys, which belong together.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::HostError;
use crate::identity::{Ed25519Keys, Keys as _, PeerId, decode_hex};
use crate::storage::Store;

/// The folder is its owner's alone, and so is every file in it: the store holds the whole state.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const STORE: &str = "node.redb";
const IDENTITY: &str = "identity";

/// What a node keeps on disk.
pub(super) struct Folder {
    pub(super) store: Store,
    pub(super) keys: Arc<Ed25519Keys>,
    path: PathBuf,
    /// Whether this start made it.
    fresh: bool,
}

impl Folder {
    /// Opens it, or makes it at the first start; with `resume`, it must be there. A key without the store
    /// it voted with could vote twice in a term, so each knows the other.
    pub(super) fn open(folder: &Path, resume: bool) -> Result<Self, HostError> {
        let fail = |why| HostError::Io { what: folder.display().to_string(), why };
        let store = folder.join(STORE);
        let fresh = !store.try_exists().map_err(fail)?;
        if fresh && resume {
            return Err(HostError::NoState);
        }
        let empty = match fs::read_dir(folder) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(why) => return Err(fail(why)),
        };
        if empty {
            // Nothing in it was ever seen by others.
            DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(fail)?;
            fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE)).map_err(fail)?;
        }
        for (path, right) in [
            (folder.to_owned(), FOLDER_MODE),
            (store.clone(), FILE_MODE),
            (folder.join(IDENTITY), FILE_MODE),
        ] {
            private(&path, right)?;
        }
        // Made here, because redb would make it for everybody.
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(&store)
            .map_err(fail)?;
        let store = Store::open(&store)?;
        let path = folder.join(IDENTITY);
        let keys = match fs::read_to_string(&path) {
            Ok(text) => known_keys(&path, &text, &store),
            Err(error) if error.kind() == io::ErrorKind::NotFound => new_keys(folder, &store),
            Err(why) => Err(HostError::Io { what: path.display().to_string(), why }),
        };
        Ok(Self { store, keys: Arc::new(keys?), path: folder.to_owned(), fresh })
    }

    /// Removes what this start made; a folder with a state of its own stays as it is.
    pub(super) fn discard_if_new(self) {
        if self.fresh {
            drop(self.store);
            for file in [STORE, IDENTITY] {
                let _ = fs::remove_file(self.path.join(file));
            }
            // Fails, and rightly, if there is anything else in it.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Whether `path`, if it is there, is its owner's alone.
fn private(path: &Path, right: u32) -> Result<(), HostError> {
    let mode = match fs::metadata(path) {
        Ok(found) => found.permissions().mode() & 0o777,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(why) => return Err(HostError::Io { what: path.display().to_string(), why }),
    };
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(HostError::Exposed { path: path.to_owned(), mode, right })
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
    let path = folder.join(IDENTITY);
    // A start that was cut short may have left a name without its key; it has joined nothing.
    if store.get::<[u8; 16]>("cluster")?.is_some() {
        return Err(HostError::Forgotten(path));
    }
    let keys = Ed25519Keys::generate();
    store.put("identity", &keys.id())?;
    let write = || {
        // Written whole under another name first: half a key after a crash would be a new identity.
        let draft = folder.join("identity.new");
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(FILE_MODE).open(&draft)?;
        file.write_all(hex::encode(keys.secret()).as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, &path)?;
        // The name of the file is as durable as what the store will say under it.
        File::open(folder)?.sync_all()
    };
    write().map_err(|why| HostError::Io { what: path.display().to_string(), why })?;
    Ok(keys)
}
