//! The memory of a node that has no group: one file, locked, flushed before anything is sent.
//!
//! Each line is a row as it was after one change; the last line of a request counts. A line is
//! complete when it ends; a torn last one was never acknowledged, and is cut off. The file is
//! written anew, beside the old one, when it has grown far beyond its rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tenure_core::epoch::Epoch;

use super::row::{
    Correction, NewTransaction, Replacement, Settlement, Snapshot, StatusChange, StoredTransaction,
};
use super::{Retention, StoreError};
use crate::account::AccountId;
use crate::engine::{Attempt, MOST_PROVISIONAL};
use crate::status::{Hash, State, StatusMetadata, TransactionStatus, unhex};

/// A journal is rewritten when it has this many lines more than four for each row.
const SLACK: usize = 10_000;

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    account: AccountId,
    /// Its id and its first block, once it is known.
    chain: Option<String>,
    file: File,
    /// Up to here the file is known to be good.
    length: u64,
    lines: usize,
    /// By request id.
    rows: BTreeMap<String, Row>,
    /// The newest request of each nonce.
    nonces: BTreeMap<u64, String>,
    /// The requests whose end no block proves yet.
    provisional: BTreeSet<String>,
    /// The last number given to a change.
    change: i64,
    /// Why nothing can be written any more: what a failed flush left behind is unknown.
    broken: Option<String>,
    /// Held as long as the journal is open, so that no second node uses it.
    _lock: File,
}

/// What one line of the file says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    /// The first one: whose requests these are.
    Account {
        account: String,
        chain: Option<String>,
    },
    Row(Box<Row>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Row {
    nonce: u64,
    hash: Hash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    raw: Option<String>,
    state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block: Option<Hash>,
    metadata: StatusMetadata,
    attempts: Vec<Attempt>,
    noop: bool,
    request_id: String,
    built_at_block: u64,
    /// The system's clock, in milliseconds: for people, for retention, and for a deadline that
    /// outlives the process.
    created_at: u64,
    updated_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deadline_at: Option<u64>,
    ended: bool,
    /// No block proves its end yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    provisional: bool,
    change: i64,
}

impl Journal {
    /// Opens the journal, or makes one, and takes its lock.
    pub(super) fn open(path: &Path, account: &AccountId) -> Result<Self, StoreError> {
        // The lock is by name, and a rewrite puts a new file in the name's place: a link is another name.
        let real = fs::canonicalize(path);
        let path = real.as_deref().unwrap_or(path);
        let trouble = |what: &str, error: io::Error| {
            let path = path.display();
            StoreError::Journal(format!("{path} cannot be {what}: {error}; name another file"))
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        private(&mut options);
        let lock = options.open(beside(path, "lock")).map_err(|error| trouble("locked", error))?;
        lock.try_lock().map_err(|error| {
            let path = path.display();
            match error {
                fs::TryLockError::WouldBlock => StoreError::Journal(format!(
                    "{path} is in use by another node; one key belongs to one standalone node"
                )),
                fs::TryLockError::Error(error) => trouble("locked", error),
            }
        })?;
        let mut file = options.open(path).map_err(|error| trouble("opened", error))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| trouble("read", error))?;
        // Lines that are complete; what follows the last one's end was never acknowledged.
        let good = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut journal = Journal {
            path: path.to_owned(),
            account: account.clone(),
            chain: None,
            file,
            length: good as u64,
            lines: 0,
            rows: BTreeMap::new(),
            nonces: BTreeMap::new(),
            provisional: BTreeSet::new(),
            change: 0,
            broken: None,
            _lock: lock,
        };
        let text = bytes.get(..good).unwrap_or_default();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            if !line.is_empty() {
                journal.read(number + 1, line)?;
            }
        }
        if journal.lines == 0 {
            let account = account.to_string();
            journal.append(&[Line::Account { account, chain: None }], true)?;
            journal.flush_folder()?;
        } else if good < bytes.len() {
            journal.file.set_len(journal.length).map_err(|error| trouble("repaired", error))?;
        }
        Ok(journal)
    }

    fn read(&mut self, number: usize, line: &[u8]) -> Result<(), StoreError> {
        let path = self.path.display();
        let damaged = |what: &str| {
            StoreError::Journal(format!(
                "line {number} of {path} is damaged ({what}); restore the file, or move it away if \
                 no request in it may be sent again"
            ))
        };
        match serde_json::from_slice(line).map_err(|error| damaged(&error.to_string()))? {
            Line::Account { account, .. } if account != self.account.to_string() => {
                return Err(StoreError::Journal(format!(
                    "{path} is of account {account}; name another journal for {}",
                    self.account
                )));
            }
            Line::Account { chain, .. } => self.chain = chain.or(self.chain.take()),
            Line::Row(row) => {
                self.remember(*row);
            }
        }
        self.lines += 1;
        Ok(())
    }

    /// What to do after a development chain was reset.
    pub(super) fn after_reset(&self) -> String {
        let path = self.path.display();
        format!(
            "if a development chain was reset on purpose, stop this node, remove its journal {path}, and \
             start it again"
        )
    }

    /// Binds the journal to a chain, or finds that it is bound already.
    pub(super) fn bind(&mut self, chain: &str) -> Result<(), StoreError> {
        match &self.chain {
            Some(bound) if bound == chain => return Ok(()),
            Some(bound) => {
                let (path, remedy) = (self.path.display(), self.after_reset());
                return Err(StoreError::JournalBound(format!(
                    "{path} is of chain {bound}, not of {chain}; use that chain, or name another \
                     journal, or, {remedy}"
                )));
            }
            None => {}
        }
        let account = self.account.to_string();
        self.append(&[Line::Account { account, chain: Some(chain.to_owned()) }], true)?;
        self.chain = Some(chain.to_owned());
        Ok(())
    }

    /// A crash could lose a new file itself, if its folder is not flushed.
    fn flush_folder(&self) -> Result<(), StoreError> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let flushed = File::open(folder).and_then(|folder| folder.sync_all());
        flushed.map_err(|error| {
            StoreError::Journal(format!("{} cannot be flushed: {error}", folder.display()))
        })
    }

    /// Appends lines; with `flush` they are on the disk when it returns.
    fn append(&mut self, lines: &[Line], flush: bool) -> Result<(), StoreError> {
        // What the last write left in the file is not known, and a request in it may be sent after a
        // start: so nothing is said not to be stored.
        if let Some(why) = &self.broken {
            return Err(StoreError::Lost(why.clone()));
        }
        let mut text = String::new();
        for line in lines {
            text.push_str(&serde_json::to_string(line).expect("rows have text for keys"));
            text.push('\n');
        }
        let path = self.path.display();
        let written = self
            .file
            .seek(SeekFrom::Start(self.length))
            .and_then(|_| self.file.write_all(text.as_bytes()));
        if let Err(error) = written {
            // Half a line must not stand in the middle of the file.
            if let Err(error) = self.file.set_len(self.length) {
                let why = format!("{path} cannot be repaired: {error}; start anew");
                self.broken = Some(why.clone());
                return Err(StoreError::Lost(why));
            }
            return Err(StoreError::Journal(format!("{path} cannot be written: {error}")));
        }
        if flush && let Err(error) = self.file.sync_data() {
            // What is on the disk now is not known, and a second flush would not tell.
            let why = format!("{path} cannot be flushed: {error}; check the disk, then start anew");
            self.broken = Some(why.clone());
            return Err(StoreError::Lost(why));
        }
        self.length += text.len() as u64;
        self.lines += lines.len();
        Ok(())
    }

    /// Stores rows as they are to be, then remembers them.
    fn put(&mut self, rows: Vec<Row>, flush: bool) -> Result<Vec<u64>, StoreError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let lines: Vec<Line> = rows.iter().cloned().map(|row| Line::Row(Box::new(row))).collect();
        self.append(&lines, flush)?;
        let nonces = rows.iter().map(|row| row.nonce).collect();
        rows.into_iter().for_each(|row| self.remember(row));
        Ok(nonces)
    }

    fn remember(&mut self, row: Row) {
        self.change = self.change.max(row.change);
        // A nonce that was given away belongs to its last owner, in whatever order the lines stand.
        if self.at(row.nonce).is_none_or(|owner| owner.change <= row.change) {
            self.nonces.insert(row.nonce, row.request_id.clone());
        }
        match row.provisional {
            true => drop(self.provisional.insert(row.request_id.clone())),
            false => drop(self.provisional.remove(&row.request_id)),
        }
        self.rows.insert(row.request_id.clone(), row);
    }

    fn at(&self, nonce: u64) -> Option<&Row> {
        self.rows.get(self.nonces.get(&nonce)?)
    }

    fn open_at(&self, nonce: u64) -> Option<&Row> {
        self.at(nonce).filter(|row| !row.ended)
    }

    /// New rows and statuses of others, in one write: of a request that is told not to be stored, no line stands in
    /// the file. Returns the nonces of both.
    pub(super) fn accept_and_record(
        &mut self,
        block: u64,
        news: &[NewTransaction],
        changes: &[StatusChange],
    ) -> Result<(Vec<u64>, Vec<u64>), StoreError> {
        let mut rows = self.accepted(block, news)?;
        let stored = rows.iter().map(|row| row.nonce).collect();
        let (recorded, others) = self.recorded(changes);
        rows.extend(others);
        self.put(rows, true)?;
        Ok((stored, recorded))
    }

    fn accepted(&self, block: u64, news: &[NewTransaction]) -> Result<Vec<Row>, StoreError> {
        let change = self.change + 1;
        let mut rows = Vec::new();
        for new in news {
            if self.rows.contains_key(&new.request_id) {
                return Err(StoreError::DuplicateRequest);
            }
            // A nonce is taken over only from a request that no node ever took.
            if self.at(new.nonce).is_none_or(|row| row.ended && row.state == State::Invalid) {
                rows.push(Row::new(new, block, change));
            }
        }
        Ok(rows)
    }

    pub(super) fn replace(&mut self, news: &[Replacement]) -> Result<Vec<u64>, StoreError> {
        let change = self.change + 1;
        let mut rows = Vec::new();
        for new in news {
            let newest = new.attempts.last().ok_or(StoreError::NoAttempt(new.nonce))?;
            if let Some(row) = self.open_at(new.nonce) {
                rows.push(Row {
                    hash: newest.hash,
                    raw: Some(hex::encode(&new.raw)),
                    state: State::Future,
                    block: None,
                    metadata: StatusMetadata::default(),
                    attempts: new.attempts.clone(),
                    noop: newest.noop,
                    updated_at: now(),
                    change,
                    ..row.clone()
                });
            }
        }
        self.put(rows, true)
    }

    /// An end is flushed; any other status is learnt again from the chain.
    pub(super) fn record(&mut self, changes: &[StatusChange]) -> Result<Vec<u64>, StoreError> {
        let (nonces, rows) = self.recorded(changes);
        let flush = rows.iter().any(|row| row.ended);
        self.put(rows, flush)?;
        Ok(nonces)
    }

    /// The nonces whose statuses are to be recorded, and the rows as they are then.
    fn recorded(&self, changes: &[StatusChange]) -> (Vec<u64>, Vec<Row>) {
        let change = self.change + 1;
        let mut rows = Vec::new();
        for status in changes {
            let Some(row) = self.open_at(status.nonce) else { continue };
            if let Some(row) = row.with_status(status, change) {
                rows.push(row);
            }
        }
        // A nonce that is used for good, by this request: every other one that had it ended rightly.
        let used = rows.iter().filter(|row| row.ended && row.state == State::Finalized);
        let used: BTreeSet<u64> = used.map(|row| row.nonce).collect();
        let proved = self.provisional.iter().filter_map(|id| self.rows.get(id));
        let proved = proved.filter(|row| used.contains(&row.nonce));
        let proved: Vec<Row> =
            proved.map(|row| Row { provisional: false, ..row.clone() }).collect();
        let nonces = rows.iter().map(|row| row.nonce).collect();
        rows.extend(proved);
        (nonces, rows)
    }

    /// Provisional ends that the chain has proved, or proved wrong.
    pub(super) fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<u64>, StoreError> {
        let change = self.change + 1;
        let mut rows = Vec::new();
        for one in settlements {
            let row = self.rows.get(&one.request_id).filter(|row| row.provisional);
            let Some(row) = row.filter(|row| row.nonce == one.nonce) else { continue };
            let mut row = Row { provisional: false, ..row.clone() };
            if let Some(Correction { hash, status, note, noop }) = &one.correction {
                (row.hash, row.noop, row.state, row.block) =
                    (*hash, *noop, status.state(), status.block());
                row.metadata = StatusMetadata { note: note.clone(), ..status.metadata() };
                (row.updated_at, row.change) = (now(), change);
            }
            rows.push(row);
        }
        self.put(rows, true)
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let mut open: Vec<_> =
            self.rows.values().filter(|row| !row.ended).map(Row::stored).collect();
        open.sort_unstable_by_key(|row| row.nonce);
        let used = self.rows.values().filter(|row| row.ended && row.state != State::Invalid);
        let consumed = used.map(|row| row.nonce + 1).max().unwrap_or(0);
        let provisional = self.provisional.iter().filter_map(|id| self.rows.get(id));
        let provisional = provisional.take(MOST_PROVISIONAL).map(Row::stored).collect();
        Snapshot { open, consumed, provisional }
    }

    pub(super) fn by_request(&self, ids: &[String]) -> Vec<StoredTransaction> {
        ids.iter().filter_map(|id| self.rows.get(id)).map(Row::stored).collect()
    }

    /// The last of those that had the nonce.
    pub(super) fn by_nonce(&self, nonce: u64) -> Option<StoredTransaction> {
        let at = self.rows.values().filter(|row| row.nonce == nonce);
        at.max_by_key(|row| (!row.ended, row.updated_at)).map(Row::stored)
    }

    /// Forgets ids that were kept long enough, and writes the file anew if it has grown.
    pub(super) fn cleanup(&mut self, retention: Retention) -> Result<u64, StoreError> {
        let oldest = now().saturating_sub(millis(retention.ids));
        let before = self.rows.len();
        // The highest nonce that was used tells a later start whether its chain is the same one.
        let newest = self.rows.values().map(|row| row.nonce).max();
        self.rows
            .retain(|_, row| !row.ended || row.updated_at >= oldest || Some(row.nonce) == newest);
        let gone = before - self.rows.len();
        self.nonces.retain(|_, id| self.rows.contains_key(id));
        self.provisional.retain(|id| self.rows.contains_key(id));
        if gone > 0 || self.lines > 4 * self.rows.len() + SLACK {
            self.rewrite()?;
        }
        Ok(gone as u64)
    }

    /// Writes all rows into a new file and puts it into the old one's place.
    fn rewrite(&mut self) -> Result<(), StoreError> {
        if let Some(why) = &self.broken {
            return Err(StoreError::Journal(why.clone()));
        }
        let new = beside(&self.path, "new");
        let trouble = |error: io::Error| {
            StoreError::Journal(format!("{} cannot be written: {error}", new.display()))
        };
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let file = private(&mut options).open(&new);
        let old = std::mem::replace(&mut self.file, file.map_err(trouble)?);
        let (length, lines) = (self.length, self.lines);
        (self.length, self.lines) = (0, 0);
        let account = self.account.to_string();
        let mut all = vec![Line::Account { account, chain: self.chain.clone() }];
        all.extend(self.rows.values().cloned().map(|row| Line::Row(Box::new(row))));
        let written = self.append(&all, true).and_then(|()| {
            fs::rename(&new, &self.path).map_err(trouble)?;
            self.flush_folder()
        });
        if let Err(error) = written {
            // The old file is still in its place, unless the rename's outcome is unknown.
            (self.file, self.length, self.lines) = (old, length, lines);
            self.broken = Some(format!("{error}; check the disk, then start anew"));
            return Err(error);
        }
        Ok(())
    }
}

/// A file that is made is its owner's alone: it tells of payments.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// The path with another ending added to its name.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}

fn bytes_of(text: &Option<String>) -> Option<Bytes> {
    text.as_deref().and_then(unhex).map(Bytes::from)
}

impl Row {
    fn new(new: &NewTransaction, block: u64, change: i64) -> Self {
        let at = now();
        Row {
            nonce: new.nonce,
            hash: new.attempt.hash,
            call: new.call.as_deref().map(hex::encode),
            digest: None,
            raw: Some(hex::encode(&new.raw)),
            state: State::Future,
            block: None,
            metadata: StatusMetadata::default(),
            attempts: vec![new.attempt.clone()],
            noop: new.attempt.noop,
            request_id: new.request_id.clone(),
            built_at_block: block,
            created_at: at,
            updated_at: at,
            deadline_at: new.deadline.map(|left| at.saturating_add(millis(left))),
            ended: false,
            provisional: false,
            change,
        }
    }

    /// As the status leaves it; `None` if the status is of a form that does not count.
    fn with_status(&self, status: &StatusChange, change: i64) -> Option<Self> {
        let mut row = self.clone();
        if self.hash != status.hash {
            // An older form that finalised wins over the current one.
            let won = self.attempts.iter().find(|attempt| attempt.hash == status.hash);
            let won = won.filter(|_| status.status.state() == State::Finalized)?;
            (row.hash, row.noop, row.raw) = (won.hash, won.noop, None);
        }
        row.state = status.status.state();
        row.block = status.status.block();
        row.metadata = StatusMetadata { note: status.note.clone(), ..status.status.metadata() };
        (row.updated_at, row.change) = (now(), change);
        if status.note.end.is_some() {
            // Nothing is signed or sent any more: what a repetition is compared with is enough.
            row.ended = true;
            // What fills a gap has no caller, and its first form is a no-op.
            let filler = row.attempts.first().is_some_and(|first| first.noop);
            row.provisional = row.state != State::Finalized && !filler;
            row.raw = None;
            row.digest = bytes_of(&row.call).map(|call| hex::encode(Sha256::digest(call)));
            row.call = None;
        }
        Some(row)
    }

    fn stored(&self) -> StoredTransaction {
        let left = |at: u64| Duration::from_millis(at.saturating_sub(now()));
        StoredTransaction {
            nonce: self.nonce,
            hash: self.hash,
            call: bytes_of(&self.call),
            call_digest: bytes_of(&self.digest),
            raw: bytes_of(&self.raw),
            status: TransactionStatus::from_parts(self.state, self.block, self.metadata.clone()),
            note: self.metadata.note.clone(),
            attempts: self.attempts.clone(),
            noop: self.noop,
            request_id: self.request_id.clone(),
            creator_id: "standalone".to_owned(),
            epoch: Epoch(1),
            built_at_block: self.built_at_block,
            created_at: moment(self.created_at),
            updated_at: moment(self.updated_at),
            deadline: self.deadline_at.map(left),
            ended: self.ended,
            change: self.change,
        }
    }
}

fn moment(millis: u64) -> Timestamp {
    let millis = i64::try_from(millis).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{End, EndKind, Note};

    fn account() -> AccountId {
        AccountId::new([0xaa; 20]).expect("20 bytes")
    }

    fn open(path: &Path) -> Journal {
        Journal::open(path, &account()).expect("opens")
    }

    fn accept(
        journal: &mut Journal,
        block: u64,
        rows: &[NewTransaction],
    ) -> Result<Vec<u64>, StoreError> {
        journal.accept_and_record(block, rows, &[]).map(|(stored, _)| stored)
    }

    fn row(nonce: u64, tag: u8, id: &str) -> NewTransaction {
        NewTransaction {
            nonce,
            attempt: Attempt { hash: Hash([tag; 32]), ..Attempt::default() },
            call: Some(Bytes::from_static(b"call")),
            raw: Bytes::from_static(b"raw"),
            request_id: id.to_owned(),
            deadline: None,
        }
    }

    fn executed(nonce: u64, tag: u8) -> StatusChange {
        let status = TransactionStatus::Finalized(Hash([9; 32]));
        let note = Note { end: Some(Box::new(End::new(EndKind::Executed))), ..Note::default() };
        StatusChange { nonce, hash: Hash([tag; 32]), status, note }
    }

    const KEPT: Retention = Retention { rows: Duration::ZERO, ids: Duration::from_secs(3_600) };

    /// As a table does it: what is told not to be stored is not, and neither are the statuses beside it.
    #[test]
    fn new_rows_and_statuses_of_others_are_one_write() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let mut journal = open(&path);
        accept(&mut journal, 0, &[row(0, 1, "a")]).expect("stored");
        let length = journal.length;
        let twice = journal.accept_and_record(0, &[row(1, 2, "a")], &[executed(0, 1)]);
        assert!(matches!(twice, Err(StoreError::DuplicateRequest)), "{twice:?}");
        assert_eq!(journal.length, length, "neither");
        let both = journal.accept_and_record(0, &[row(1, 2, "b")], &[executed(0, 1)]);
        assert_eq!(both.expect("stored"), (vec![1], vec![0]));
        drop(journal);
        let journal = open(&path);
        assert!(journal.at(0).expect("there").ended && !journal.at(1).expect("there").ended);
    }

    #[test]
    fn what_was_accepted_is_there_after_a_restart_and_its_id_is_used_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let mut journal = open(&path);
        assert_eq!(
            accept(&mut journal, 7, &[row(0, 1, "a"), row(1, 2, "b")]).expect("stored"),
            [0, 1]
        );
        assert_eq!(journal.record(&[executed(0, 1)]).expect("stored"), [0]);
        drop(journal);
        let mut journal = open(&path);
        let snapshot = journal.snapshot();
        assert_eq!((snapshot.consumed, snapshot.open.len()), (1, 1));
        assert_eq!(snapshot.open[0].raw.as_deref(), Some(b"raw".as_slice()));
        assert_eq!(snapshot.open[0].built_at_block, 7);
        let again = accept(&mut journal, 7, &[row(2, 3, "a")]);
        assert!(matches!(again, Err(StoreError::DuplicateRequest)), "{again:?}");
        let paid = journal.by_request(&["a".to_owned()]).pop().expect("remembered");
        assert!(paid.ended && paid.is_call(b"call") && !paid.is_call(b"other"));
        assert_eq!(paid.note.end.map(|end| end.kind), Some(EndKind::Executed));
        assert!(accept(&mut journal, 7, &[row(1, 3, "c")]).expect("answered").is_empty(), "taken");
    }

    #[test]
    fn after_a_flush_that_failed_nothing_is_said_not_to_be_stored() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut journal = open(&folder.path().join("journal"));
        journal.broken = Some("the journal cannot be flushed".to_owned());
        let again = accept(&mut journal, 7, &[row(0, 1, "a")]);
        assert!(matches!(again, Err(StoreError::Lost(_))), "{again:?}");
    }

    #[test]
    fn no_second_node_and_no_other_account_or_chain_uses_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let mut journal = open(&path);
        let second = Journal::open(&path, &account()).expect_err("in use");
        assert!(second.to_string().contains("another node"), "{second}");
        journal.bind("1 0xaa").expect("the first");
        drop(journal);
        let mut journal = open(&path);
        journal.bind("1 0xaa").expect("the same");
        let other = journal.bind("777 0xbb");
        assert!(matches!(other, Err(StoreError::JournalBound(_))), "{other:?}");
        drop(journal);
        let other = AccountId::new([0xbb; 20]).expect("20 bytes");
        assert!(Journal::open(&path, &other).is_err());
    }

    #[test]
    fn a_torn_last_line_is_cut_off_and_a_damaged_one_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let mut journal = open(&path);
        accept(&mut journal, 0, &[row(0, 1, "a")]).expect("stored");
        drop(journal);
        let good = fs::read(&path).expect("readable");
        fs::write(&path, [&good[..], b"{\"row\":{\"nonce\":1,"].concat()).expect("torn");
        let mut journal = open(&path);
        accept(&mut journal, 0, &[row(1, 2, "b")]).expect("stored");
        drop(journal);
        assert_eq!(open(&path).snapshot().open.len(), 2);
        fs::write(&path, [b"{\"row\":\n", &good[..]].concat()).expect("damaged");
        let damaged = Journal::open(&path, &account()).expect_err("damaged");
        assert!(damaged.to_string().contains("line 1"), "{damaged}");
    }

    #[test]
    fn a_journal_that_has_grown_is_written_anew_with_all_that_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let mut journal = open(&path);
        journal.bind("1 0xaa").expect("bound");
        accept(&mut journal, 0, &[row(0, 1, "a"), row(1, 2, "b")]).expect("stored");
        journal.lines += 2 * SLACK;
        journal.cleanup(KEPT).expect("written");
        journal.record(&[executed(0, 1), executed(1, 2)]).expect("stored");
        drop(journal);
        let mut journal = open(&path);
        assert_eq!((journal.rows.len(), journal.chain.as_deref()), (2, Some("1 0xaa")));
        // What was kept long enough goes, but for the highest nonce: it tells the chain apart.
        let none = Retention { rows: Duration::ZERO, ids: Duration::ZERO };
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(journal.cleanup(none).expect("written"), 1);
        drop(journal);
        assert_eq!(open(&path).snapshot().consumed, 2);
    }

    #[test]
    fn a_nonce_that_was_given_away_stays_its_new_owners_when_the_journal_is_written_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let mut journal = open(&path);
        accept(&mut journal, 0, &[row(1, 1, "z")]).expect("stored");
        let status = TransactionStatus::Invalid(None);
        let note = Note { end: Some(Box::new(End::new(EndKind::Withdrawn))), ..Note::default() };
        journal
            .record(&[StatusChange { nonce: 1, hash: Hash([1; 32]), status, note }])
            .expect("ended");
        assert_eq!(accept(&mut journal, 0, &[row(1, 2, "a")]).expect("stored"), [1]);
        journal.lines += 2 * SLACK;
        journal.cleanup(KEPT).expect("written");
        drop(journal);
        let mut journal = open(&path);
        assert_eq!(journal.record(&[executed(1, 2)]).expect("stored"), [1], "of the live one");
        let paid = journal.by_request(&["a".to_owned()]).pop().expect("remembered");
        assert_eq!(paid.note.end.map(|end| end.kind), Some(EndKind::Executed));
    }

    #[cfg(unix)]
    #[test]
    fn a_journal_is_its_owners_alone_and_has_one_lock_under_every_name() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let link = folder.path().join("link");
        drop(open(&path));
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        let mut journal = open(&link);
        assert!(Journal::open(&path, &account()).is_err(), "in use under its other name");
        journal.lines += 2 * SLACK;
        journal.cleanup(KEPT).expect("written anew");
        assert!(link.is_symlink(), "the link stays");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o077, 0);
    }
}
