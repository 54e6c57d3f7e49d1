//! The table `pending_transactions`: the group's memory.
//!
//! Every write is one statement, fenced with the writer's epoch, and says for certain whether it
//! happened — or that it is unknown ([`StoreError::Lost`]), in which case the reader of the table,
//! not the memory of the writer, decides.
//!
//! All writes of a store go through one session. What waits is written together: with many
//! senders a commit carries many rows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure::connect::{ConnectError, Connector};
use tenure_core::epoch::Epoch;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::account::AccountId;
use crate::manager::{Attempt, OpenTransaction};
use crate::schema;
use crate::status::{Hash, State, StatusMetadata, TransactionStatus, UnknownState};

/// A row of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredTransaction {
    /// Its nonce.
    pub nonce: u64,
    /// The current attempt, or the one that won.
    pub hash: Hash,
    /// The call, if the group can sign it anew.
    pub call: Option<Bytes>,
    /// The signed bytes of the current attempt.
    pub raw: Option<Bytes>,
    /// Its last known status.
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
    /// The best block when it was accepted.
    pub built_at_block: u64,
    /// When it was accepted, for people.
    pub created_at: String,
    /// When it last changed, for people.
    pub updated_at: String,
    /// Whether the duty is over.
    pub ended: bool,
    /// Grows with every change of any row of the account, in commit order.
    pub change: i64,
}

impl StoredTransaction {
    /// What the manager needs of an open row.
    #[must_use]
    pub fn open(&self) -> OpenTransaction {
        OpenTransaction {
            nonce: self.nonce,
            attempts: self.attempts.clone(),
            status: self.status.clone(),
            resignable: self.call.is_some(),
        }
    }
}

/// A row to be.
#[derive(Debug, Clone)]
pub struct NewTransaction {
    /// Its nonce.
    pub nonce: u64,
    /// Its first attempt.
    pub attempt: Attempt,
    /// The call, if it may be signed anew.
    pub call: Option<Bytes>,
    /// The signed bytes.
    pub raw: Bytes,
    /// The caller's name for it.
    pub request_id: String,
}

/// A further attempt of an open row.
#[derive(Debug, Clone)]
pub struct Replacement {
    /// Its nonce.
    pub nonce: u64,
    /// All attempts, the new one last.
    pub attempts: Vec<Attempt>,
    /// The new one's bytes.
    pub raw: Bytes,
}

/// A status to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusChange {
    /// Its nonce.
    pub nonce: u64,
    /// The attempt it is about.
    pub hash: Hash,
    /// The status.
    pub status: TransactionStatus,
    /// Whether the duty is over.
    pub ended: bool,
}

/// What a new leader reads.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// All open rows, by nonce.
    pub open: Vec<StoredTransaction>,
    /// One above the highest nonce the table knows to be used for good.
    pub consumed: u64,
}

/// Where and for whom a store works.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The role whose epoch fences every write.
    pub role: String,
    /// The signing account.
    pub account: AccountId,
    /// This instance, written into the rows it creates.
    pub creator: String,
    /// How long one statement may take before its outcome counts as unknown. Default 5 s; below
    /// the lease, or a takeover waits for it.
    pub deadline: Duration,
}

/// The table, for one account. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connector: Connector,
    options: StoreOptions,
    session: Mutex<Option<Arc<Session>>>,
}

/// One connection with its statements.
#[derive(Debug)]
struct Session {
    client: Client,
    driver: tokio::task::AbortHandle,
    accept: Statement,
    replace: Statement,
    record: Statement,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

const COLUMNS: &str = "nonce, hash, call_scale, raw, state, block_hash, status_metadata::text, \
    attempts::text, noop, request_id, creator_id, epoch, built_at_block, created_at::text, \
    updated_at::text, ended_at is not null, change";

impl Store {
    /// Names the table; connects when first used.
    #[must_use]
    pub fn new(connector: Connector, options: StoreOptions) -> Self {
        Store(Arc::new(Inner { connector, options, session: Mutex::new(None) }))
    }

    /// The same table through a session of its own.
    #[must_use]
    pub fn on_another_session(&self) -> Self {
        Store::new(self.0.connector.clone(), self.0.options.clone())
    }

    /// The account it is for.
    #[must_use]
    pub fn account(&self) -> &AccountId {
        &self.0.options.account
    }

    /// Its options.
    #[must_use]
    pub fn options(&self) -> &StoreOptions {
        &self.0.options
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.0.connector
    }

    /// Brings the schema `tenure_tx` up to date.
    ///
    /// # Errors
    /// [`StoreError`]; a retry is safe.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let session = self.connect_bare().await?;
        self.bounded(schema::migrate(&session.0)).await
    }

    /// Stores new rows; returns the nonces that were stored. One that is missing belongs to a
    /// live transaction of another creator.
    ///
    /// # Errors
    /// [`StoreError`]; on [`StoreError::Lost`] the rows may be there.
    pub async fn accept(
        &self,
        epoch: Epoch,
        block: u64,
        rows: &[NewTransaction],
    ) -> Result<Vec<u64>, StoreError> {
        let options = &self.0.options;
        let nonces = rows.iter().map(|r| to_sql(r.nonce)).collect::<Result<Vec<_>, _>>()?;
        let hashes: Vec<&[u8]> = rows.iter().map(|r| r.attempt.hash.0.as_slice()).collect();
        let calls: Vec<Option<&[u8]>> = rows.iter().map(|r| r.call.as_deref()).collect();
        let raws: Vec<&[u8]> = rows.iter().map(|r| r.raw.as_ref()).collect();
        let tips: Vec<String> = rows.iter().map(|r| r.attempt.tip.to_string()).collect();
        let noops: Vec<bool> = rows.iter().map(|r| r.attempt.noop).collect();
        let attempts: Vec<String> =
            rows.iter().map(|r| attempts_json(std::slice::from_ref(&r.attempt))).collect();
        let requests: Vec<&str> = rows.iter().map(|r| r.request_id.as_str()).collect();
        self.write(
            |s| &s.accept,
            &[
                &options.role,
                &epoch.get(),
                &options.account.as_bytes(),
                &options.creator,
                &to_sql(block)?,
                &nonces,
                &hashes,
                &calls,
                &raws,
                &tips,
                &noops,
                &attempts,
                &requests,
            ],
        )
        .await
    }

    /// Stores further attempts; returns the nonces that were stored. One that is missing has ended.
    ///
    /// # Errors
    /// [`StoreError`]; on [`StoreError::Lost`] the attempts may be there.
    pub async fn replace(
        &self,
        epoch: Epoch,
        rows: &[Replacement],
    ) -> Result<Vec<u64>, StoreError> {
        let options = &self.0.options;
        let newest =
            |r: &Replacement| r.attempts.last().cloned().ok_or(StoreError::NoAttempt(r.nonce));
        let newest = rows.iter().map(newest).collect::<Result<Vec<_>, _>>()?;
        let nonces = rows.iter().map(|r| to_sql(r.nonce)).collect::<Result<Vec<_>, _>>()?;
        let hashes: Vec<&[u8]> = newest.iter().map(|a| a.hash.0.as_slice()).collect();
        let raws: Vec<&[u8]> = rows.iter().map(|r| r.raw.as_ref()).collect();
        let tips: Vec<String> = newest.iter().map(|a| a.tip.to_string()).collect();
        let noops: Vec<bool> = newest.iter().map(|a| a.noop).collect();
        let attempts: Vec<String> = rows.iter().map(|r| attempts_json(&r.attempts)).collect();
        self.write(
            |s| &s.replace,
            &[
                &options.role,
                &epoch.get(),
                &options.account.as_bytes(),
                &nonces,
                &hashes,
                &raws,
                &tips,
                &noops,
                &attempts,
            ],
        )
        .await
    }

    /// Records statuses, at most one per nonce; returns the nonces whose row changed. A status for
    /// another hash than the current attempt's is ignored, unless it finalised.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn update_state(
        &self,
        epoch: Epoch,
        changes: &[StatusChange],
    ) -> Result<Vec<u64>, StoreError> {
        let options = &self.0.options;
        let nonces = changes.iter().map(|c| to_sql(c.nonce)).collect::<Result<Vec<_>, _>>()?;
        let hashes: Vec<&[u8]> = changes.iter().map(|c| c.hash.0.as_slice()).collect();
        let states: Vec<&str> = changes.iter().map(|c| c.status.state().as_str()).collect();
        let blocks: Vec<Option<Vec<u8>>> =
            changes.iter().map(|c| c.status.block().map(|b| b.0.to_vec())).collect();
        let metadata: Vec<String> = changes
            .iter()
            .map(|c| serde_json::to_string(&c.status.metadata()).unwrap_or_else(|_| "{}".into()))
            .collect();
        let ended: Vec<bool> = changes.iter().map(|c| c.ended).collect();
        self.write(
            |s| &s.record,
            &[
                &options.role,
                &epoch.get(),
                &options.account.as_bytes(),
                &nonces,
                &hashes,
                &states,
                &blocks,
                &metadata,
                &ended,
            ],
        )
        .await
    }

    /// All open rows, and how far the nonces are used for good.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let session = self.session().await?;
        let account = self.account().as_bytes();
        let open = format!(
            "select {COLUMNS} from tenure_tx.pending_transactions \
             where account_id = $1 and ended_at is null order by nonce"
        );
        let consumed = "select coalesce(max(nonce) + 1, 0) from tenure_tx.pending_transactions \
             where account_id = $1 and ended_at is not null and state <> 'invalid'";
        let rows = self.bounded(session.client.query(&open, &[&account])).await?;
        let open = rows.iter().map(read_row).collect::<Result<Vec<_>, _>>()?;
        let row = self.bounded(session.client.query_one(consumed, &[&account])).await?;
        let consumed: i64 = row.get(0);
        Ok(Snapshot { open, consumed: from_sql(consumed) })
    }

    /// The rows of these requests.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn by_request(&self, ids: &[String]) -> Result<Vec<StoredTransaction>, StoreError> {
        self.select("account_id = $1 and request_id = any($2) order by nonce", &ids).await
    }

    /// The row of a nonce.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn by_nonce(&self, nonce: u64) -> Result<Option<StoredTransaction>, StoreError> {
        let nonce = to_sql(nonce)?;
        let rows = self.select("account_id = $1 and nonce = $2", &nonce).await?;
        Ok(rows.into_iter().next())
    }

    /// Rows from a nonce on, at most 1,000.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn list(&self, from: u64) -> Result<Vec<StoredTransaction>, StoreError> {
        let from = to_sql(from)?;
        self.select("account_id = $1 and nonce >= $2 order by nonce limit 1000", &from).await
    }

    /// What changed after `change`, in commit order, at most 1,000 rows.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn changes(&self, after: i64) -> Result<Vec<StoredTransaction>, StoreError> {
        self.select("account_id = $1 and change > $2 order by change limit 1000", &after).await
    }

    /// Where the account's changes stand.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn newest_change(&self) -> Result<i64, StoreError> {
        let session = self.session().await?;
        let newest = "select coalesce(max(change), 0) from tenure_tx.pending_transactions \
             where account_id = $1";
        let account = self.account().as_bytes();
        Ok(self.bounded(session.client.query_one(newest, &[&account])).await?.get(0))
    }

    /// Removes ended rows below the finalised nonce, older than `age`; returns how many went.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn cleanup(
        &self,
        epoch: Epoch,
        below: u64,
        age: Duration,
    ) -> Result<u64, StoreError> {
        let session = self.session().await?;
        let seconds = age.as_secs_f64();
        let options = &self.0.options;
        let row = self
            .bounded(session.client.query_one(
                "select tenure_tx.cleanup($1, $2, $3, $4, make_interval(secs => $5), 10000)",
                &[
                    &options.role,
                    &epoch.get(),
                    &options.account.as_bytes(),
                    &to_sql(below)?,
                    &seconds,
                ],
            ))
            .await?;
        Ok(from_sql(row.get(0)))
    }

    async fn select(
        &self,
        filter: &str,
        argument: &(dyn ToSql + Sync),
    ) -> Result<Vec<StoredTransaction>, StoreError> {
        let session = self.session().await?;
        let query = format!("select {COLUMNS} from tenure_tx.pending_transactions where {filter}");
        let account = self.account().as_bytes();
        let rows = self.bounded(session.client.query(&query, &[&account, argument])).await?;
        rows.iter().map(read_row).collect()
    }

    /// Runs a writer; returns the nonces it wrote.
    async fn write(
        &self,
        statement: fn(&Session) -> &Statement,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<u64>, StoreError> {
        let session = self.session().await?;
        let query = session.client.query(statement(&session), arguments);
        let rows = self.bounded(query).await?;
        Ok(rows.iter().map(|row| from_sql(row.get(0))).collect())
    }

    /// A statement with its deadline. A late answer would answer nobody, so the session goes.
    async fn bounded<T>(
        &self,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, StoreError> {
        let outcome = match timeout(self.0.options.deadline, statement).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => StoreError::from(error),
            Err(_) => StoreError::Lost("no answer within the deadline".to_owned()),
        };
        if let StoreError::Lost(_) = outcome {
            self.0.session.lock().await.take();
        }
        Err(outcome)
    }

    async fn connect_bare(&self) -> Result<(Client, tokio::task::AbortHandle), StoreError> {
        let session = self.0.connector.connect("tenure-tx", self.0.options.deadline).await?;
        let connection = session.connection;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the store's session ended");
            }
        });
        Ok((session.client, driver.abort_handle()))
    }

    async fn session(&self) -> Result<Arc<Session>, StoreError> {
        let mut slot = self.0.session.lock().await;
        if let Some(session) = slot.as_ref().filter(|s| !s.client.is_closed()) {
            return Ok(Arc::clone(session));
        }
        let (client, driver) = self.connect_bare().await?;
        let prepared = async {
            client
                .batch_execute(
                    "set default_transaction_isolation = 'read committed'; \
                     set default_transaction_read_only = off; set synchronous_commit = on; \
                     set search_path = pg_catalog",
                )
                .await?;
            let accept = "select tenure_tx.accept($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13)";
            let replace = "select tenure_tx.replace($1,$2,$3,$4,$5,$6,$7,$8,$9)";
            let record = "select tenure_tx.record($1,$2,$3,$4,$5,$6,$7,$8,$9)";
            futures_util::future::try_join3(
                client.prepare(accept),
                client.prepare(replace),
                client.prepare(record),
            )
            .await
        };
        // Not `bounded`: it would wait for the lock held here.
        let (accept, replace, record) = match timeout(self.0.options.deadline, prepared).await {
            Ok(statements) => statements?,
            Err(_) => return Err(StoreError::Lost("no answer within the deadline".to_owned())),
        };
        let session = Arc::new(Session { client, driver, accept, replace, record });
        *slot = Some(Arc::clone(&session));
        Ok(session)
    }
}

fn attempts_json(attempts: &[Attempt]) -> String {
    serde_json::to_string(attempts).unwrap_or_else(|_| "[]".to_owned())
}

/// PostgreSQL's bigint holds all nonces a chain will see; one that does not fit is refused.
fn to_sql(number: u64) -> Result<i64, StoreError> {
    i64::try_from(number).map_err(|_| StoreError::TooLarge(number))
}

fn from_sql(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn read_row(row: &Row) -> Result<StoredTransaction, StoreError> {
    let nonce = from_sql(row.get(0));
    let corrupt = |what: String| StoreError::Corrupt { nonce, what };
    let hash = |bytes: &[u8]| Hash::from_slice(bytes).map_err(|e| corrupt(e.to_string()));
    let state: State = row
        .get::<_, &str>(4)
        .parse()
        .map_err(|source| StoreError::UnknownState { nonce, source })?;
    let block = row.get::<_, Option<&[u8]>>(5).map(hash).transpose()?;
    let metadata: StatusMetadata =
        serde_json::from_str(row.get(6)).map_err(|e| corrupt(format!("status_metadata: {e}")))?;
    let attempts: Vec<Attempt> =
        serde_json::from_str(row.get(7)).map_err(|e| corrupt(format!("attempts: {e}")))?;
    if attempts.is_empty() {
        return Err(StoreError::NoAttempt(nonce));
    }
    Ok(StoredTransaction {
        nonce,
        hash: hash(row.get(1))?,
        call: row.get::<_, Option<Vec<u8>>>(2).map(Bytes::from),
        raw: row.get::<_, Option<Vec<u8>>>(3).map(Bytes::from),
        status: TransactionStatus::from_parts(state, block, metadata),
        attempts,
        noop: row.get(8),
        request_id: row.get(9),
        creator_id: row.get(10),
        epoch: Epoch(row.get(11)),
        built_at_block: from_sql(row.get(12)),
        created_at: row.get(13),
        updated_at: row.get(14),
        ended: row.get(15),
        change: row.get(16),
    })
}

/// The table could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another leader's epoch is newer. Nothing was written; stop acting.
    #[error("another leader has a newer epoch; nothing was written, this node must stop acting")]
    Stale,
    /// The connection broke or was too slow. A write may have happened: read before writing again.
    #[error("the outcome is unknown: {0}; read the table before trying again")]
    Lost(String),
    /// No connection. Nothing was written.
    #[error("the database cannot be reached; check that it runs and the connection string")]
    Unreachable(#[from] ConnectError),
    /// Another row has this request id. Nothing was written.
    #[error("a row with the same request id exists; look it up by that id")]
    DuplicateRequest,
    /// A row of a newer version.
    #[error("row with nonce {nonce}: {source}")]
    UnknownState {
        /// Its nonce.
        nonce: u64,
        /// What was found.
        source: UnknownState,
    },
    /// A row nobody should have written.
    #[error("row with nonce {nonce} is damaged: {what}; repair or remove it by hand")]
    Corrupt {
        /// Its nonce.
        nonce: u64,
        /// What is wrong.
        what: String,
    },
    /// A row without a signed form.
    #[error("nonce {0} has no attempt; the row is damaged, repair or remove it by hand")]
    NoAttempt(u64),
    /// A number PostgreSQL cannot hold.
    #[error("{0} is beyond a bigint; no chain counts that far, check the input")]
    TooLarge(u64),
    /// The server refused. Nothing was written.
    #[error("the database refused: {}", message(.0))]
    Database(#[source] tokio_postgres::Error),
}

/// The driver's own text is only "db error".
fn message(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |db| db.message().to_owned())
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(code) = error.code() else {
            return StoreError::Lost(error.to_string());
        };
        if code.code() == "TN001" {
            StoreError::Stale
        } else if *code == SqlState::UNIQUE_VIOLATION {
            StoreError::DuplicateRequest
        } else {
            StoreError::Database(error)
        }
    }
}

impl StoreError {
    /// Whether the write may have happened.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, StoreError::Lost(_))
    }
}
