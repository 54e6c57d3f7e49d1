//! Rows as they are read and as they are to be.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tenure_core::clock::Tick;
use tenure_core::epoch::Epoch;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::StoreError;
use crate::engine::{Attempt, OpenTransaction, Provisional};
use crate::status::{Hash, Note, State, StatusMetadata, TransactionStatus};

/// A row of the table, or what is kept of one that has left it
/// ([`ServiceOptions::keep`](crate::ServiceOptions::keep)).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct StoredTransaction {
    pub nonce: u64,
    /// The current attempt, or the one that won.
    pub hash: Hash,
    /// The call, if the group can sign it anew; `None` also once the row has left the table.
    pub call: Option<Bytes>,
    /// The SHA-256 of the call, of a row that has left the table.
    pub call_digest: Option<Bytes>,
    /// The signed bytes of the newest attempt; `None` once an older attempt has won.
    pub raw: Option<Bytes>,
    pub status: TransactionStatus,
    /// All attempts, the newest last.
    pub attempts: Vec<Attempt>,
    /// Whether a no-op took the request's place.
    pub noop: bool,
    /// The caller's name for it.
    pub request_id: String,
    /// The instance that accepted it.
    pub creator_id: String,
    /// The epoch of the last writer.
    pub epoch: Epoch,
    /// The number of the best block when it was accepted.
    pub built_at_block: u64,
    /// When it was accepted, by the database's clock: for people.
    pub created_at: Timestamp,
    /// When it last changed, by the database's clock: for people.
    pub updated_at: Timestamp,
    /// Whether the request has ended: no node works on it any more. How is in [`Note::end`].
    pub ended: bool,
    /// How it ended, and what the node last said.
    pub note: Note,
    /// How much of its deadline was left when it was read; `None` if it has none.
    pub deadline: Option<Duration>,
    /// Grows with every change of any row of the account, in commit order.
    pub change: i64,
}

impl StoredTransaction {
    /// Whether this is the call that was accepted, byte by byte.
    #[must_use]
    pub fn is_call(&self, call: &[u8]) -> bool {
        match (&self.call, &self.call_digest) {
            (Some(stored), _) => stored == call,
            (None, Some(digest)) => digest[..] == Sha256::digest(call)[..],
            (None, None) => false,
        }
    }

    /// What the engine needs of a row whose end is provisional.
    pub(crate) fn provisional(&self) -> Option<Provisional> {
        Some(Provisional {
            request: self.request_id.clone(),
            nonce: self.nonce,
            attempts: self.attempts.clone(),
            end: *self.note.end.clone()?,
        })
    }

    /// What the engine needs of an open row, which it was ordered to drop or was not.
    #[doc(hidden)]
    #[must_use]
    pub fn open(&self, now: Tick, dropped: bool) -> OpenTransaction {
        OpenTransaction {
            request: self.request_id.clone(),
            nonce: self.nonce,
            attempts: self.attempts.clone(),
            status: self.status.clone(),
            resignable: self.call.is_some(),
            deadline: self.deadline.map(|left| now + left),
            dropped,
        }
    }
}

/// A row to be.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct NewTransaction {
    pub nonce: u64,
    pub attempt: Attempt,
    /// The call, if it may be signed anew.
    pub call: Option<Bytes>,
    /// The signed bytes.
    pub raw: Bytes,
    /// The caller's name for it.
    pub request_id: String,
    /// How long from now it is given up; never if absent.
    pub deadline: Option<Duration>,
}

/// A further attempt of an open row.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Replacement {
    pub nonce: u64,
    /// All attempts, the new one last.
    pub attempts: Vec<Attempt>,
    /// The new one's bytes.
    pub raw: Bytes,
}

/// A status to record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct StatusChange {
    pub nonce: u64,
    /// The attempt it is about.
    pub hash: Hash,
    pub status: TransactionStatus,
    /// With an end, the duty is over.
    pub note: Note,
}

impl StatusChange {
    /// The nonces whose end found no open row of its form: the row has another form by now, and has not
    /// ended.
    pub(crate) fn unplaced(changes: &[StatusChange], recorded: &[u64]) -> Vec<u64> {
        let ends = changes.iter().filter(|one| one.note.end.is_some());
        ends.map(|one| one.nonce).filter(|nonce| !recorded.contains(nonce)).collect()
    }
}

/// What became of new rows, and of the statuses that were written with them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accepted {
    /// The nonces of the rows that were stored; a missing one belongs to another live transaction.
    pub stored: Vec<u64>,
    /// The nonces whose end found no open row of its form.
    pub unplaced: Vec<u64>,
}

impl Accepted {
    /// As `tenure_tx.accept` returns it: nonces, and below zero the ends without a row.
    pub(super) fn of(written: &[i64]) -> Self {
        let (ends, rows): (Vec<i64>, Vec<i64>) = written.iter().partition(|nonce| **nonce < 0);
        Accepted {
            stored: rows.into_iter().map(from_sql).collect(),
            unplaced: ends.into_iter().map(|end| from_sql(-1 - end)).collect(),
        }
    }
}

/// A provisional end that the chain has proved, or corrected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Settlement {
    pub nonce: u64,
    pub request_id: String,
    /// The end that is true, if it is another than the one that was told.
    pub correction: Option<Correction>,
}

/// What a row says instead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Correction {
    /// The form that is in a final block.
    pub hash: Hash,
    pub status: TransactionStatus,
    pub note: Note,
    /// Whether that form is a no-op.
    pub noop: bool,
}

/// What a new leader reads.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// All open rows, by nonce.
    pub open: Vec<StoredTransaction>,
    /// One above the highest nonce the table knows to be used for good.
    pub consumed: u64,
    /// Rows that have ended and whose end no block proves yet, the lowest nonce first.
    pub provisional: Vec<StoredTransaction>,
}

/// What [`read_row`] reads, in its order.
pub(super) const COLUMNS: &str = "nonce, hash, call_scale, raw, state, block_hash, status_metadata::text, \
    attempts::text, noop, request_id, creator_id, epoch, built_at_block, created_at, \
    updated_at, ended_at is not null, change, null::bytea as call_digest, \
    extract(epoch from deadline_at - clock_timestamp())::float8";

/// The same of a row that left the table.
pub(super) const PAST_COLUMNS: &str = "nonce, hash, call_scale, raw, state, block_hash, status_metadata::text, \
    attempts::text, noop, request_id, creator_id, epoch, built_at_block, created_at, \
    updated_at, ended_at is not null, change, call_digest, null::float8";

/// The position of `change` among them, from 1.
pub(super) const CHANGE_COLUMN: usize = 17;

/// Attempts as the writers take them: one array per column.
pub(super) struct AttemptColumns<'a> {
    nonces: Vec<i64>,
    hashes: Vec<&'a [u8]>,
    raws: Vec<&'a [u8]>,
    tips: Vec<String>,
    noops: Vec<bool>,
    attempts: Vec<String>,
}

impl<'a> AttemptColumns<'a> {
    /// Of nonces with all their attempts, the newest last, and its bytes.
    pub(super) fn of(
        rows: impl Iterator<Item = (u64, &'a [Attempt], &'a Bytes)>,
    ) -> Result<Self, StoreError> {
        let (nonces, hashes, raws, tips, noops, attempts) = Default::default();
        let mut columns = AttemptColumns { nonces, hashes, raws, tips, noops, attempts };
        for (nonce, attempts, raw) in rows {
            let newest = attempts.last().ok_or(StoreError::NoAttempt(nonce))?;
            columns.nonces.push(to_sql(nonce)?);
            columns.hashes.push(&newest.hash.0);
            columns.raws.push(raw);
            columns.tips.push(newest.tip.to_string());
            columns.noops.push(newest.noop);
            let json = serde_json::to_string(attempts).unwrap_or_else(|_| "[]".to_owned());
            columns.attempts.push(json);
        }
        Ok(columns)
    }

    pub(super) fn arguments(&self) -> [&(dyn ToSql + Sync); 6] {
        [&self.nonces, &self.hashes, &self.raws, &self.tips, &self.noops, &self.attempts]
    }
}

/// Settlements as the writer takes them: one array per column.
pub(super) struct SettlementColumns<'a> {
    nonces: Vec<i64>,
    requests: Vec<&'a str>,
    hashes: Vec<Option<&'a [u8]>>,
    blocks: Vec<Option<Vec<u8>>>,
    noops: Vec<Option<bool>>,
    metadata: Vec<Option<String>>,
}

impl<'a> SettlementColumns<'a> {
    pub(super) fn of(settlements: &'a [Settlement]) -> Result<Self, StoreError> {
        let corrections = || settlements.iter().map(|one| one.correction.as_ref());
        let block = |one: &Correction| one.status.block().map(|block| block.0.to_vec());
        Ok(SettlementColumns {
            nonces: settlements.iter().map(|one| to_sql(one.nonce)).collect::<Result<_, _>>()?,
            requests: settlements.iter().map(|one| one.request_id.as_str()).collect(),
            hashes: corrections().map(|one| Some(one?.hash.0.as_slice())).collect(),
            blocks: corrections().map(|one| one.and_then(block)).collect(),
            noops: corrections().map(|one| Some(one?.noop)).collect(),
            metadata: corrections()
                .map(|one| one.map(|one| metadata(&one.status, &one.note)))
                .collect(),
        })
    }

    pub(super) fn arguments(&self) -> [&(dyn ToSql + Sync); 6] {
        [&self.nonces, &self.requests, &self.hashes, &self.blocks, &self.noops, &self.metadata]
    }
}

/// The column `status_metadata`.
fn metadata(status: &TransactionStatus, note: &Note) -> String {
    let metadata = StatusMetadata { note: note.clone(), ..status.metadata() };
    let text = serde_json::to_string(&metadata).unwrap_or_else(|_| "{}".into());
    // A node's reason may hold what jsonb does not.
    text.replace("\\u0000", "\\ufffd")
}

/// Statuses as the writers take them: one array per column.
pub(super) struct StatusColumns<'a> {
    nonces: Vec<i64>,
    hashes: Vec<&'a [u8]>,
    states: Vec<&'static str>,
    blocks: Vec<Option<Vec<u8>>>,
    metadata: Vec<String>,
    ended: Vec<bool>,
}

impl<'a> StatusColumns<'a> {
    pub(super) fn of(changes: &'a [StatusChange]) -> Result<Self, StoreError> {
        Ok(StatusColumns {
            nonces: changes.iter().map(|c| to_sql(c.nonce)).collect::<Result<_, _>>()?,
            hashes: changes.iter().map(|c| c.hash.0.as_slice()).collect(),
            states: changes.iter().map(|c| c.status.state().as_str()).collect(),
            blocks: changes.iter().map(|c| c.status.block().map(|b| b.0.to_vec())).collect(),
            metadata: changes.iter().map(|c| metadata(&c.status, &c.note)).collect(),
            ended: changes.iter().map(|c| c.note.end.is_some()).collect(),
        })
    }

    pub(super) fn arguments(&self) -> [&(dyn ToSql + Sync); 6] {
        [&self.nonces, &self.hashes, &self.states, &self.blocks, &self.metadata, &self.ended]
    }
}

/// A moment that no calendar has is the beginning of the count.
fn moment(at: SystemTime) -> Timestamp {
    Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// PostgreSQL's bigint holds all nonces a chain will see; one that does not fit is refused.
pub(super) fn to_sql(number: u64) -> Result<i64, StoreError> {
    i64::try_from(number).map_err(|_| StoreError::TooLarge(number))
}

pub(super) fn from_sql(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(super) fn read_row(row: &Row) -> Result<StoredTransaction, StoreError> {
    let nonce = from_sql(row.get(0));
    let corrupt = |what: String| StoreError::Corrupt { nonce, what };
    let hash = |bytes: &[u8]| Hash::from_slice(bytes).map_err(|error| corrupt(error.to_string()));
    let state: State = row
        .get::<_, &str>(4)
        .parse()
        .map_err(|source| StoreError::UnknownState { nonce, source })?;
    let block = row.get::<_, Option<&[u8]>>(5).map(hash).transpose()?;
    let metadata: StatusMetadata = serde_json::from_str(row.get(6))
        .map_err(|error| corrupt(format!("status_metadata: {error}")))?;
    let attempts: Vec<Attempt> =
        serde_json::from_str(row.get(7)).map_err(|error| corrupt(format!("attempts: {error}")))?;
    if attempts.is_empty() {
        return Err(StoreError::NoAttempt(nonce));
    }
    Ok(StoredTransaction {
        nonce,
        hash: hash(row.get(1))?,
        call: row.get::<_, Option<Vec<u8>>>(2).map(Bytes::from),
        raw: row.get::<_, Option<Vec<u8>>>(3).map(Bytes::from),
        note: metadata.note.clone(),
        status: TransactionStatus::from_parts(state, block, metadata),
        attempts,
        noop: row.get(8),
        request_id: row.get(9),
        creator_id: row.get(10),
        epoch: Epoch(row.get(11)),
        built_at_block: from_sql(row.get(12)),
        created_at: moment(row.get(13)),
        updated_at: moment(row.get(14)),
        ended: row.get(15),
        // What has passed while no leader was there leaves nothing.
        deadline: row
            .get::<_, Option<f64>>(18)
            .map(|left| Duration::try_from_secs_f64(left.max(0.0)).unwrap_or(Duration::MAX)),
        change: row.get(16),
        call_digest: row.get::<_, Option<Vec<u8>>>(17).map(Bytes::from),
    })
}
