//! An identity on disk: a key that its owner alone can read, and the nodes it believes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::identity::{Ed25519Keys, PeerId, decode_hex};

/// The file of the key.
pub(crate) const KEY: &str = "identity";
/// The file of the nodes that are believed: a key in hexadecimal on each line.
const NODES: &str = "nodes";
/// A folder and a file that are their owner's alone.
pub(crate) const FOLDER_MODE: u32 = 0o700;
pub(crate) const FILE_MODE: u32 = 0o600;

/// An identity on disk cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("{}: {source}; name the folder of an identity, as `tenure gossip accept` makes it", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file does not hold keys of 64 hexadecimal digits.
    #[error("{}: not keys of 64 hexadecimal digits; restore it, or accept another invitation", .0.display())]
    Damaged(PathBuf),
    /// Other users may read the key.
    #[error("{}: other users of this machine may use it (mode {mode:o}); give it to its owner alone: chmod {right:o} {}", path.display(), path.display())]
    Exposed {
        /// The folder or file.
        path: PathBuf,
        /// The permissions it has.
        mode: u32,
        /// What it must be.
        right: u32,
    },
}

/// The folder of an identity: of an operator or a client, or of a node. It has the file `identity` with the key,
/// and the file `nodes` with the nodes that it believes. Folder and key must be their owner's alone. Its methods
/// block for as long as the disk does.
#[derive(Debug, Clone)]
pub struct IdentityFolder(PathBuf);

impl IdentityFolder {
    /// Names the folder; nothing is read or made yet.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// Its key.
    ///
    /// # Errors
    /// See [`IdentityError`]; [`IdentityError::File`] also if there is none.
    pub fn keys(&self) -> Result<Ed25519Keys, IdentityError> {
        let path = self.0.join(KEY);
        check_private(&self.0, FOLDER_MODE)?;
        check_private(&path, FILE_MODE)?;
        let text = fs::read_to_string(&path)
            .map_err(|source| IdentityError::File { path: path.clone(), source })?;
        decode_hex(&text)
            .map(|secret| Ed25519Keys::from_secret(&secret))
            .ok_or(IdentityError::Damaged(path))
    }

    /// Its key; a fresh one, if it has none yet. Folder and file are made then.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn keys_or_new(&self) -> Result<Ed25519Keys, IdentityError> {
        let path = self.0.join(KEY);
        if path.exists() {
            return self.keys();
        }
        let keys = Ed25519Keys::generate();
        make_folder(&self.0)
            .and_then(|()| write_key(&self.0, &keys))
            .map_err(|source| IdentityError::File { path, source })?;
        Ok(keys)
    }

    /// The nodes it believes, for [`Trust::nodes`](crate::Trust::nodes); `None` if it was never told.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn nodes(&self) -> Result<Option<BTreeSet<PeerId>>, IdentityError> {
        let path = self.0.join(NODES);
        match fs::read_to_string(&path) {
            Ok(text) => {
                let nodes: Option<_> = text.lines().map(PeerId::from_hex).collect();
                nodes.map(Some).ok_or(IdentityError::Damaged(path))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(IdentityError::File { path, source }),
        }
    }

    /// Believes these nodes from now on, and no others; the folder must exist.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn believe(&self, nodes: &BTreeSet<PeerId>) -> Result<(), IdentityError> {
        write_nodes(&self.0, nodes)
            .map_err(|source| IdentityError::File { path: self.0.join(NODES), source })
    }
}

pub(crate) fn write_nodes(folder: &Path, nodes: &BTreeSet<PeerId>) -> io::Result<()> {
    let mut text = String::new();
    for node in nodes {
        let _ = writeln!(text, "{}", node.to_hex());
    }
    write_whole(folder, NODES, text.as_bytes())
}

pub(crate) fn write_key(folder: &Path, keys: &Ed25519Keys) -> io::Result<()> {
    write_whole(folder, KEY, hex::encode(keys.secret()).as_bytes())
}

/// Written whole under another name first: half a key after a crash would be a new identity.
fn write_whole(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let draft = folder.join(format!("{name}.new"));
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(FILE_MODE).open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, folder.join(name))?;
    // The name of the file is as durable as what is decided under it.
    File::open(folder)?.sync_all()
}

/// Makes a folder for its owner alone; one that is there and empty becomes so.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    let empty = match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(error),
    };
    if empty {
        // Nothing in it was ever seen by others.
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE))?;
    }
    Ok(())
}

/// Whether `path`, if it is there, is its owner's alone.
pub(crate) fn check_private(path: &Path, right: u32) -> Result<(), IdentityError> {
    let mode = match fs::metadata(path) {
        Ok(found) => found.permissions().mode() & 0o777,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(IdentityError::File { path: path.to_owned(), source }),
    };
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(IdentityError::Exposed { path: path.to_owned(), mode, right })
}
