//! The folder of a node: its store and its keys, which belong together.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use super::HostError;
use crate::identity::{Ed25519Keys, Keys as _, PeerId, decode_hex};
use crate::storage::Store;

/// What a node keeps on disk.
pub(super) struct Folder {
    pub(super) store: Store,
    pub(super) keys: Arc<Ed25519Keys>,
}

impl Folder {
    /// Opens it, or makes it at the first start. A key without the store it voted with could vote
    /// twice in a term, so each knows the other.
    pub(super) fn open(folder: &Path) -> Result<Self, HostError> {
        let fail = |why| HostError::Io { what: folder.display().to_string(), why };
        fs::create_dir_all(folder).map_err(fail)?;
        let store = Store::open(&folder.join("node.redb"))?;
        let path = folder.join("identity");
        let keys = match fs::read_to_string(&path) {
            Ok(text) => known_keys(&path, &text, &store),
            Err(error) if error.kind() == io::ErrorKind::NotFound => new_keys(folder, &store),
            Err(why) => Err(HostError::Io { what: path.display().to_string(), why }),
        };
        Ok(Self { store, keys: Arc::new(keys?) })
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
    let path = folder.join("identity");
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
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(hex::encode(keys.secret()).as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, &path)?;
        // The name of the file is as durable as what the store will say under it.
        File::open(folder)?.sync_all()
    };
    write().map_err(|why| HostError::Io { what: path.display().to_string(), why })?;
    Ok(keys)
}
