//! The file of tokens: which of them may read, and which may also order.
//!
//! ```text
//! # name      scope   SHA-256 of the token, in hex
//! grafana     read    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//! deploy-bot  order   60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752
//! ```
//!
//! The file holds digests, so that reading it gives no token away; writing it does, so that a file that everyone may
//! write is refused. `order` includes `read`. It is read again when it changes; while it cannot be read or has a
//! mistake, no token is good.

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// The SHA-256 of a token.
pub(super) type Digest = [u8; 32];

/// Between two looks at whether the file has changed.
const LOOK: Duration = Duration::from_secs(1);
/// More is no list of people and programs.
const MOST: usize = 1_000;

/// What a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// See everything.
    Read,
    /// See everything, and give orders.
    Order,
}

impl Scope {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Order => "order",
        }
    }
}

/// A token's line.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) scope: Scope,
    pub(super) digest: Digest,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({}, {})", self.name, self.scope.as_str())
    }
}

/// What is wrong with the file of tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It cannot be read.
    #[error("{file}: {source}; give a file that this user can read", file = .file.display())]
    #[allow(missing_docs, reason = "the names say it")]
    Read { file: PathBuf, source: std::io::Error },
    /// A line is not as it should be.
    #[error("{file} line {line}: {why}", file = .file.display())]
    #[allow(missing_docs, reason = "the names say it")]
    Line { file: PathBuf, line: usize, why: &'static str },
    /// Anyone could give themselves a token.
    #[error("{file} can be written by everyone; take that away: chmod o-w", file = .file.display())]
    #[allow(missing_docs, reason = "the names say it")]
    Writable { file: PathBuf },
    /// There is no line.
    #[error("{file} has no token; write lines of `name scope sha256`", file = .file.display())]
    #[allow(missing_docs, reason = "the names say it")]
    Empty { file: PathBuf },
}

/// The file, as it is now.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    entries: Vec<Entry>,
    stamp: Option<Stamp>,
    looked: Instant,
}

impl TokenFile {
    /// Reads the file.
    pub(super) fn open(path: &Path) -> Result<Self, TokenError> {
        let stamp = stamp(path);
        let entries = read(path)?;
        let kept = Mutex::new(Kept { entries, stamp, looked: Instant::now() });
        Ok(TokenFile { path: path.to_owned(), kept })
    }

    /// The entry of a token. Every entry is compared, each in constant time.
    pub(super) fn find(&self, token: &str) -> Option<Entry> {
        self.known(&Sha256::digest(token.as_bytes()).into())
    }

    /// The entry of a digest, if the file still has it.
    pub(super) fn known(&self, digest: &Digest) -> Option<Entry> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.refresh(&mut kept);
        let mut place = u32::MAX;
        for (index, entry) in (0..).zip(&kept.entries) {
            let same: Choice = entry.digest.ct_eq(digest);
            place = u32::conditional_select(&place, &index, same);
        }
        kept.entries.get(usize::try_from(place).ok()?).cloned()
    }

    fn refresh(&self, kept: &mut Kept) {
        if kept.looked.elapsed() < LOOK {
            return;
        }
        kept.looked = Instant::now();
        let stamp = stamp(&self.path);
        if stamp.is_some() && stamp == kept.stamp {
            return;
        }
        kept.stamp = stamp;
        // Closed first: a file with a mistake must not keep alive what its author meant to take out.
        kept.entries.clear();
        match read(&self.path) {
            Ok(entries) => kept.entries = entries,
            Err(error) => tracing::error!("no token is good until this is mended: {error}"),
        }
    }
}

/// What changes with a file: a copy may keep the time of its content and its length, but not the time of its change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    modified: (i64, i64),
    changed: (i64, i64),
    place: (u64, u64),
    length: u64,
}

pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
    let about = std::fs::metadata(path).ok()?;
    Some(Stamp {
        modified: (about.mtime(), about.mtime_nsec()),
        changed: (about.ctime(), about.ctime_nsec()),
        place: (about.dev(), about.ino()),
        length: about.len(),
    })
}

fn read(path: &Path) -> Result<Vec<Entry>, TokenError> {
    if std::fs::metadata(path).is_ok_and(|about| about.is_file() && about.mode() & 0o002 != 0) {
        return Err(TokenError::Writable { file: path.to_owned() });
    }
    let text = std::fs::read_to_string(path)
        .map_err(|source| TokenError::Read { file: path.to_owned(), source })?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<Vec<Entry>, TokenError> {
    let mut entries: Vec<Entry> = Vec::new();
    let (mut names, mut digests) = (BTreeSet::new(), BTreeSet::new());
    for (number, line) in (1..).zip(text.lines()) {
        let bad = |why| TokenError::Line { file: path.to_owned(), line: number, why };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, scope, digest] = words[..] else {
            return Err(bad("write three words, `name scope sha256`"));
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        if name.len() > 64 || !name.chars().all(plain) {
            return Err(bad("a name has at most 64 letters, digits, and the signs - _ . @"));
        }
        let scope = match scope {
            "read" => Scope::Read,
            "order" => Scope::Order,
            _ => return Err(bad("the scope is `read` or `order`")),
        };
        let mut bytes: Digest = [0; 32];
        hex::decode_to_slice(digest, &mut bytes)
            .map_err(|_| bad("the digest has 64 hexadecimal digits, as `sha256sum` prints them"))?;
        let digest = bytes;
        if digest == <[u8; 32]>::from(Sha256::digest(b"")) {
            return Err(bad("that is the digest of an empty token; make a random one"));
        }
        if !names.insert(name.to_owned()) {
            return Err(bad("the name is there already; orders are recorded by name"));
        }
        if !digests.insert(digest) {
            return Err(bad("the digest is there already; each name has a token of its own"));
        }
        if entries.len() == MOST {
            return Err(bad("a file has at most 1,000 tokens"));
        }
        entries.push(Entry { name: name.to_owned(), scope, digest });
    }
    if entries.is_empty() { Err(TokenError::Empty { file: path.to_owned() }) } else { Ok(entries) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(token: &str) -> String {
        hex::encode(Sha256::digest(token.as_bytes()))
    }

    fn parsed(text: &str) -> Result<Vec<Entry>, String> {
        parse(text, Path::new("tokens")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_is_found_by_its_digest_with_its_scope() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        let text = format!("# people\n\nana read {}\nbot order {}\n", hex("one"), hex("two"));
        std::fs::write(&path, text).expect("written");
        let file = TokenFile::open(&path).expect("it is read");
        let found = |token| file.find(token).map(|entry| (entry.name, entry.scope));
        assert_eq!(found("one"), Some(("ana".to_owned(), Scope::Read)));
        assert_eq!(found("two"), Some(("bot".to_owned(), Scope::Order)));
        for wrong in ["", "three", "one ", &hex("one")] {
            assert_eq!(found(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        let one = hex("one");
        for (text, words) in [
            (String::new(), "has no token"),
            ("# nothing\n".to_owned(), "has no token"),
            (format!("ana {one}"), "line 1: write three words"),
            (format!("\nana write {one}"), "line 2: the scope is"),
            ("ana read 1234".to_owned(), "64 hexadecimal digits"),
            (format!("ana read {}", one.replace('a', "g")), "64 hexadecimal digits"),
            (format!("ana read +{}", &one[1..]), "64 hexadecimal digits"),
            (format!("an/a read {one}"), "a name has"),
            (format!("ana read {}", hex("")), "an empty token"),
            (format!("ana read {one}\nana order {}", hex("two")), "line 2: the name is there"),
            (format!("ana read {one}\nbob order {one}"), "line 2: the digest is there"),
        ] {
            let error = parsed(&text).expect_err(&text);
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_file_with_a_mistake_leaves_no_token_good() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        std::fs::write(&path, format!("ana read {}\n", hex("one"))).expect("written");
        let file = TokenFile::open(&path).expect("it is read");
        std::fs::write(&path, "ana read\n").expect("written");
        look_again(&file);
        assert!(file.find("one").is_none());
    }

    fn look_again(file: &TokenFile) {
        let mut kept = file.kept.lock().expect("whole");
        kept.looked = Instant::now().checked_sub(LOOK * 2).expect("later than that");
    }

    #[test]
    fn a_line_of_the_same_length_with_the_same_time_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        std::fs::write(&path, format!("ana read {}\n", hex("one"))).expect("written");
        let written = std::fs::metadata(&path).and_then(|about| about.modified()).expect("a time");
        let file = TokenFile::open(&path).expect("it is read");
        // As `cp -p` and `rsync -t` do it.
        std::fs::write(&path, format!("bob read {}\n", hex("two"))).expect("written");
        let again = std::fs::File::options().write(true).open(&path).expect("open");
        again.set_modified(written).expect("its time kept");
        look_again(&file);
        assert!(file.find("one").is_none(), "a token that was taken away");
        assert_eq!(file.find("two").map(|entry| entry.name), Some("bob".to_owned()));
    }

    #[test]
    fn a_file_that_everyone_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        std::fs::write(&path, format!("ana read {}\n", hex("one"))).expect("written");
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        mode(0o646).expect("changed");
        let error = TokenFile::open(&path).expect_err("it is open to all").to_string();
        assert!(error.contains("chmod o-w"), "{error}");
        mode(0o644).expect("changed");
        let file = TokenFile::open(&path).expect("it is read");
        mode(0o666).expect("changed");
        look_again(&file);
        assert!(file.find("one").is_none(), "opened to all later");
    }

    #[test]
    fn no_debug_output_shows_a_digest() {
        let entries = parsed(&format!("ana read {}", hex("one"))).expect("good");
        assert_eq!(format!("{entries:?}"), "[Entry(ana, read)]");
    }
}
