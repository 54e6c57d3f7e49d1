//! The table `pending_transactions`: the group's memory.
//!
//! Every write is one statement, fenced with the writer's epoch, and says for certain whether it
//! happened — or that it is unknown ([`StoreError::Lost`]), in which case the reader of the table,
//! not the memory of the writer, decides.
//!
//! A node without a group has a journal in its place: one file, with the same promises for one
//! process.
//!
//! The service writes, an application only reads. All writes of a store go through one session. What
//! waits is written together: with many senders a commit carries many rows.

mod error;
mod journal;
mod row;
mod session;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_connect::Connector;
use tenure_connect::line::Line;
use tenure_core::epoch::Epoch;
use tenure_core::key::RoleName;
use tokio::sync::{Mutex, mpsc};
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

use crate::account::AccountId;
use crate::engine::MOST_PROVISIONAL;
use crate::schema::SCHEMA;
pub use error::StoreError;
use journal::Journal;
pub use row::StoredTransaction;
#[doc(hidden)]
pub use row::{
    Accepted, Correction, NewTransaction, Replacement, Settlement, Snapshot, StatusChange,
};
use row::{AttemptColumns, CHANGE_COLUMN, COLUMNS, PAST_COLUMNS, SettlementColumns, StatusColumns};
use row::{from_sql, read_row, to_sql};
use session::Session;

/// How many rows one [`Store::cleanup`] removes at most: it holds the fence meanwhile.
pub(crate) const CLEANUP_ROWS: u64 = 10_000;

/// The role and the account that a store belongs to.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct StoreOptions {
    /// The role whose epoch fences every write.
    pub role: RoleName,
    pub account: AccountId,
    /// This instance, written into the rows it creates ([`StoredTransaction::creator_id`]), for people.
    pub creator: String,
    /// How long one statement may take before its outcome counts as unknown. Default 5 s. Too long delays
    /// a takeover, which may have to wait for a statement that hangs.
    pub deadline: Duration,
    /// Accept requests also where the database has standbys and no commit waits for one of them: a
    /// failover may then forget what was accepted, and a retry under the same id would pay twice.
    /// Default: no; such requests are refused with [`StoreError::MayBeLost`].
    pub accept_loss: bool,
}

impl StoreOptions {
    /// For the role and the account; statements have 5 s, and no accepted request may be lost.
    #[must_use]
    pub fn new(role: RoleName, account: AccountId, creator: impl Into<String>) -> Self {
        let (creator, deadline) = (creator.into(), Duration::from_secs(5));
        StoreOptions { role, account, creator, deadline, accept_loss: false }
    }
}

/// How long what has ended is kept.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct Retention {
    /// Rows of the table, with their bytes.
    pub rows: Duration,
    /// What a repeated request and a late reader must hear.
    pub ids: Duration,
}

/// The table, for one account. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: StoreOptions,
    memory: Memory,
}

/// Where the rows are.
#[derive(Debug)]
enum Memory {
    Table {
        connector: Box<Connector>,
        session: Mutex<Option<Arc<Session>>>,
        /// The advisory lock that a writer's present session holds: see [`session`].
        key: Option<i64>,
    },
    File {
        /// Had by one caller at a time, in the order in which they asked.
        journal: Arc<Mutex<Journal>>,
        /// What to do after a development chain was reset.
        after_reset: String,
    },
}

impl Store {
    /// Names the table; connects when first used.
    #[must_use]
    pub fn new(connector: Connector, options: StoreOptions) -> Self {
        Self::on_table(connector, options, None)
    }

    fn on_table(connector: Connector, options: StoreOptions, key: Option<i64>) -> Self {
        let (connector, session) = (Box::new(connector), Mutex::new(None));
        Store(Arc::new(Inner { options, memory: Memory::Table { connector, session, key } }))
    }

    /// A journal in a file, for a node that has no group: opens it, or makes it, and keeps every
    /// other node out of it.
    ///
    /// # Errors
    /// [`StoreError::Journal`]: it is in use, of another account, damaged, or the system refused.
    pub(crate) fn journal(path: &Path, account: AccountId) -> Result<Self, StoreError> {
        let journal = Journal::open(path, &account)?;
        // No table, no fence: it is never asked for.
        let role = RoleName::new("standalone").map_err(|e| StoreError::Journal(e.to_string()))?;
        let options = StoreOptions::new(role, account, "standalone");
        let after_reset = journal.after_reset();
        let memory = Memory::File { journal: Arc::new(Mutex::new(journal)), after_reset };
        Ok(Store(Arc::new(Inner { options, memory })))
    }

    fn as_journal(&self) -> Option<&Arc<Mutex<Journal>>> {
        match &self.0.memory {
            Memory::Table { .. } => None,
            Memory::File { journal, .. } => Some(journal),
        }
    }

    /// The same table through a session of its own, so that its readings do not wait behind the writes of
    /// this one. A clone shares the session.
    #[must_use]
    pub fn on_another_session(&self) -> Self {
        self.again(None)
    }

    /// The same table through a session of its own, whose successor ends it before it does anything.
    #[doc(hidden)]
    #[must_use]
    pub fn for_the_writer(&self) -> Self {
        self.again(Some(rand::random()))
    }

    fn again(&self, key: Option<i64>) -> Self {
        match &self.0.memory {
            Memory::Table { connector, .. } => {
                Self::on_table((**connector).clone(), self.0.options.clone(), key)
            }
            Memory::File { .. } => self.clone(),
        }
    }

    /// The account whose transactions the table holds.
    #[must_use]
    pub fn account(&self) -> &AccountId {
        &self.0.options.account
    }

    /// What to do after a development chain was reset: all that is stored is of the chain that is gone.
    pub(crate) fn after_reset(&self) -> String {
        match &self.0.memory {
            Memory::Table { .. } => error::RESET.to_owned(),
            Memory::File { after_reset, .. } => after_reset.clone(),
        }
    }

    fn role(&self) -> &str {
        self.0.options.role.as_str()
    }

    /// The options it was made with.
    #[must_use]
    pub fn options(&self) -> &StoreOptions {
        &self.0.options
    }

    pub(crate) fn connector(&self) -> Result<&Connector, StoreError> {
        match &self.0.memory {
            Memory::Table { connector, .. } => Ok(connector),
            Memory::File { .. } => Err(StoreError::Journal("a journal has no table".to_owned())),
        }
    }

    /// Brings the schema `tenure_tx` up to date.
    ///
    /// # Errors
    /// [`StoreError`]; a retry is safe.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let Memory::Table { connector, .. } = &self.0.memory else { return Ok(()) };
        let deadline = self.0.options.deadline;
        let session = connector.connect("tenure-tx", deadline).await?;
        // No notification is listened for.
        let line = Line::new(session, mpsc::unbounded_channel().0);
        SCHEMA.migrate(&line, deadline).await?;
        Ok(())
    }

    /// Stores new rows; returns the nonces that were stored. One that is missing belongs to a
    /// live transaction of another creator.
    ///
    /// # Errors
    /// [`StoreError`]; on [`StoreError::Lost`] the rows may be there.
    #[doc(hidden)]
    pub async fn accept(
        &self,
        epoch: Epoch,
        block: u64,
        rows: &[NewTransaction],
    ) -> Result<Vec<u64>, StoreError> {
        Ok(self.accept_and_record(epoch, block, rows, &[]).await?.stored)
    }

    /// Stores new rows and, in the same commit, statuses of others: both or neither.
    ///
    /// # Errors
    /// As [`Store::accept`].
    #[doc(hidden)]
    pub async fn accept_and_record(
        &self,
        epoch: Epoch,
        block: u64,
        rows: &[NewTransaction],
        changes: &[StatusChange],
    ) -> Result<Accepted, StoreError> {
        if let Some(journal) = self.as_journal() {
            let (rows, changes) = (rows.to_vec(), changes.to_vec());
            let accept = move |journal: &mut Journal| {
                let (stored, recorded) = journal.accept_and_record(block, &rows, &changes)?;
                Ok(Accepted { stored, unplaced: StatusChange::unplaced(&changes, &recorded) })
            };
            return ask(journal, accept).await;
        }
        let (block, creator) = (to_sql(block)?, &self.0.options.creator);
        let columns = AttemptColumns::of(
            rows.iter().map(|row| (row.nonce, std::slice::from_ref(&row.attempt), &row.raw)),
        )?;
        let calls: Vec<Option<&[u8]>> = rows.iter().map(|row| row.call.as_deref()).collect();
        let requests: Vec<&str> = rows.iter().map(|row| row.request_id.as_str()).collect();
        let left: Vec<Option<f64>> =
            rows.iter().map(|row| row.deadline.map(|left| left.as_secs_f64())).collect();
        let statuses = StatusColumns::of(changes)?;
        let mut arguments: Vec<&(dyn ToSql + Sync)> = vec![creator, &block];
        let [nonces, hashes, raws, tips, noops, attempts] = columns.arguments();
        arguments.extend([nonces, hashes, &calls, raws, tips, noops, attempts, &requests, &left]);
        arguments.push(&self.0.options.accept_loss);
        arguments.extend(statuses.arguments());
        let written = self.write(|session| &session.accept, epoch, &arguments).await?;
        Ok(Accepted::of(&written))
    }

    /// Stores further attempts; returns the nonces that were stored. One that is missing has ended.
    ///
    /// # Errors
    /// [`StoreError`]; on [`StoreError::Lost`] the attempts may be there.
    #[doc(hidden)]
    pub async fn replace(
        &self,
        epoch: Epoch,
        rows: &[Replacement],
    ) -> Result<Vec<u64>, StoreError> {
        if let Some(journal) = self.as_journal() {
            let rows = rows.to_vec();
            return ask(journal, move |journal| journal.replace(&rows)).await;
        }
        let rows = rows.iter().map(|row| (row.nonce, row.attempts.as_slice(), &row.raw));
        let columns = AttemptColumns::of(rows)?;
        let mut arguments = columns.arguments().to_vec();
        arguments.push(&self.0.options.accept_loss);
        let written = self.write(|session| &session.replace, epoch, &arguments).await?;
        Ok(written.into_iter().map(from_sql).collect())
    }

    /// Records statuses, at most one per nonce; returns the nonces whose row changed. A status for
    /// another hash than the current attempt's is ignored, unless it finalised.
    ///
    /// # Errors
    /// [`StoreError`].
    #[doc(hidden)]
    pub async fn record(
        &self,
        epoch: Epoch,
        changes: &[StatusChange],
    ) -> Result<Vec<u64>, StoreError> {
        if let Some(journal) = self.as_journal() {
            let changes = changes.to_vec();
            return ask(journal, move |journal| journal.record(&changes)).await;
        }
        let statuses = StatusColumns::of(changes)?;
        let written = self.write(|session| &session.record, epoch, &statuses.arguments()).await?;
        Ok(written.into_iter().map(from_sql).collect())
    }

    /// Stores that provisional ends are proved, or what is true instead.
    ///
    /// # Errors
    /// [`StoreError`].
    #[doc(hidden)]
    pub async fn settle(
        &self,
        epoch: Epoch,
        settlements: &[Settlement],
    ) -> Result<Vec<u64>, StoreError> {
        if let Some(journal) = self.as_journal() {
            let settlements = settlements.to_vec();
            return ask(journal, move |journal| journal.settle(&settlements)).await;
        }
        let columns = SettlementColumns::of(settlements)?;
        let written = self.write(|session| &session.settle, epoch, &columns.arguments()).await?;
        Ok(written.into_iter().map(from_sql).collect())
    }

    /// Why an accepted request might still be lost with this server, one sentence for each reason; empty
    /// if none is known.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn doubts(&self) -> Result<Vec<String>, StoreError> {
        if self.as_journal().is_some() {
            return Ok(Vec::new());
        }
        let session = self.session().await?;
        let doubts = "select tenure_tx.doubts()";
        let rows = session.bounded(session.client.query(doubts, &[])).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Binds the account to the role and the chain, or finds that they are bound already.
    ///
    /// # Errors
    /// [`StoreError::Bound`] if they are bound to others: nothing may be sent then.
    #[doc(hidden)]
    pub async fn open_account(&self, epoch: Epoch, chain: &str) -> Result<(), StoreError> {
        if let Some(journal) = self.as_journal() {
            let chain = chain.to_owned();
            return ask(journal, move |journal| journal.bind(&chain)).await;
        }
        let session = self.session().await?;
        let (role, epoch) = (self.role(), epoch.get());
        let account = self.account().as_bytes();
        let open = "select tenure_tx.open_account($1, $2, $3, $4)";
        let arguments: [&(dyn ToSql + Sync); 4] = [&role, &epoch, &account, &chain];
        session.bounded(session.client.query_one(open, &arguments)).await.map(drop)
    }

    /// Finds out whether account, role and chain are bound to others, without binding them.
    ///
    /// # Errors
    /// [`StoreError::Bound`] if they are.
    #[doc(hidden)]
    pub async fn check_account(&self, chain: &str) -> Result<(), StoreError> {
        if self.as_journal().is_some() {
            return Ok(());
        }
        let session = self.session().await?;
        let (role, account) = (self.role(), self.account().as_bytes());
        let check = "select tenure_tx.check_account($1, $2, $3)";
        let arguments: [&(dyn ToSql + Sync); 3] = [&role, &account, &chain];
        session.bounded(session.client.query_one(check, &arguments)).await.map(drop)
    }

    /// All open rows, and how far the nonces are used for good.
    ///
    /// # Errors
    /// [`StoreError`].
    #[doc(hidden)]
    pub async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        if let Some(journal) = self.as_journal() {
            return ask(journal, |journal| Ok(journal.snapshot())).await;
        }
        let session = self.session().await?;
        let account = self.account().as_bytes();
        let open = format!(
            "select {COLUMNS} from tenure_tx.pending_transactions \
             where account_id = $1 and ended_at is null order by nonce"
        );
        let consumed = "select coalesce(max(nonce) + 1, 0) from ( \
             select max(nonce) as nonce from tenure_tx.pending_transactions \
                 where account_id = $1 and ended_at is not null and state <> 'invalid' \
             union all select max(nonce) from tenure_tx.past_transactions \
                 where account_id = $1 and state <> 'invalid') ended";
        let rows = session.bounded(session.client.query(&open, &[&account])).await?;
        let open = rows.iter().map(read_row).collect::<Result<Vec<_>, _>>()?;
        let row = session.bounded(session.client.query_one(consumed, &[&account])).await?;
        let consumed: i64 = row.get(0);
        let most = i64::try_from(MOST_PROVISIONAL).unwrap_or(i64::MAX);
        let query = everywhere("account_id = $1 and provisional");
        let provisional = self.read(&format!("{query} order by 1 limit $2"), &most).await?;
        Ok(Snapshot { open, consumed: from_sql(consumed), provisional })
    }

    /// The rows of these requests, by nonce, those that left the table included; a request without
    /// a row is left out.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn by_request(&self, ids: &[String]) -> Result<Vec<StoredTransaction>, StoreError> {
        if let Some(journal) = self.as_journal() {
            let ids = ids.to_vec();
            return ask(journal, move |journal| Ok(journal.by_request(&ids))).await;
        }
        let query = everywhere("account_id = $1 and request_id = any($2)");
        self.read(&format!("{query} order by 1, {CHANGE_COLUMN}"), &ids).await
    }

    /// The row of a nonce; if it left the table, its last one. `None` if there is none, or no
    /// longer.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn by_nonce(&self, nonce: u64) -> Result<Option<StoredTransaction>, StoreError> {
        if let Some(journal) = self.as_journal() {
            return ask(journal, move |journal| Ok(journal.by_nonce(nonce))).await;
        }
        let nonce = to_sql(nonce)?;
        let query = everywhere("account_id = $1 and nonce = $2");
        let query = format!("{query} order by {CHANGE_COLUMN} desc limit 1");
        Ok(self.read(&query, &nonce).await?.into_iter().next())
    }

    /// The rows that are in the table, by nonce from this one on, at most 1,000. For those that left it see
    /// [`Store::by_nonce`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn list(&self, from: u64) -> Result<Vec<StoredTransaction>, StoreError> {
        let from = to_sql(from)?;
        self.select("account_id = $1 and nonce >= $2 order by nonce limit 1000", &from).await
    }

    /// What changed after `change` (see [`StoredTransaction::change`]), in commit order, at most 1,000 rows.
    /// Rows that left the table are among them, also a refused transaction whose nonce was given to another,
    /// so that its end is seen.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn changes(&self, after: i64) -> Result<Vec<StoredTransaction>, StoreError> {
        // By era, because that is what is indexed; the order is that of `change`.
        let rows = format!(
            "select {COLUMNS} from tenure_tx.pending_transactions where account_id = $1 \
             and era >= $2::bigint / 4096 and change > $2 order by era, change limit 1000"
        );
        let past = format!(
            "select {PAST_COLUMNS} from tenure_tx.past_transactions \
             where account_id = $1 and change > $2 order by change limit 1000"
        );
        let query = format!("({rows}) union all ({past}) order by {CHANGE_COLUMN} limit 1000");
        self.read(&query, &after).await
    }

    /// The highest [`StoredTransaction::change`] so far, of rows that have left the table too; 0 if there is none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn newest_change(&self) -> Result<i64, StoreError> {
        let session = self.session().await?;
        let newest = "select greatest(0, \
             (select change from tenure_tx.pending_transactions \
                 where account_id = $1 order by era desc, change desc limit 1), \
             (select max(change) from tenure_tx.past_transactions where account_id = $1))";
        let account = self.account().as_bytes();
        Ok(session.bounded(session.client.query_one(newest, &[&account])).await?.get(0))
    }

    /// Whether another candidate of the role lives and is ready to lead. A matter of manners, never
    /// of safety: the server's clock tells whether it has beaten within its lease.
    #[doc(hidden)]
    pub async fn has_ready_rival(&self) -> Result<bool, StoreError> {
        let session = self.session().await?;
        let rival = "select exists (select from tenure.candidate c \
             join tenure.role r on r.name = c.role \
             join tenure.member m on m.identity = c.member and m.left_at is null \
             where c.role = $1 and c.member is distinct from r.holder \
             and c.ready and not c.observer \
             and m.seen_at > clock_timestamp() - make_interval(secs => m.lease_ms / 1000.0))";
        let row = session.bounded(session.client.query_one(rival, &[&self.role()])).await?;
        Ok(row.get(0))
    }

    /// Notes how far this member sees its chain; returns how far the others that are ready see the
    /// same one, if there are any.
    #[doc(hidden)]
    pub async fn see(
        &self,
        member: &str,
        chain: &str,
        best: u64,
    ) -> Result<Option<u64>, StoreError> {
        if self.as_journal().is_some() {
            return Ok(None);
        }
        let session = self.session().await?;
        let (role, account, best) = (self.role(), self.account().as_bytes(), to_sql(best)?);
        let see = "select tenure_tx.see($1, $2, $3, $4, $5)";
        let arguments: [&(dyn ToSql + Sync); 5] = [&role, &account, &member, &chain, &best];
        let row = session.bounded(session.client.query_one(see, &arguments)).await?;
        Ok(row.get::<_, Option<i64>>(0).map(from_sql))
    }

    /// Moves ended rows below the finalised nonce to the past, and forgets the oldest of that;
    /// returns how many of either at most.
    ///
    /// # Errors
    /// [`StoreError`].
    #[doc(hidden)]
    pub async fn cleanup(
        &self,
        epoch: Epoch,
        below: u64,
        retention: Retention,
    ) -> Result<u64, StoreError> {
        if let Some(journal) = self.as_journal() {
            return ask(journal, move |journal| journal.cleanup(retention)).await;
        }
        let session = self.session().await?;
        let (rows, ids) = (retention.rows.as_secs_f64(), retention.ids.as_secs_f64());
        let options = &self.0.options;
        let row = session
            .bounded(session.client.query_one(
                "select tenure_tx.cleanup($1, $2, $3, $4, make_interval(secs => $5), \
                 make_interval(secs => $6), $7)",
                &[
                    &self.role(),
                    &epoch.get(),
                    &options.account.as_bytes(),
                    &to_sql(below)?,
                    &rows,
                    &ids,
                    &i32::try_from(CLEANUP_ROWS).unwrap_or(i32::MAX),
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
        let query = format!("select {COLUMNS} from tenure_tx.pending_transactions where {filter}");
        self.read(&query, argument).await
    }

    async fn read(
        &self,
        query: &str,
        argument: &(dyn ToSql + Sync),
    ) -> Result<Vec<StoredTransaction>, StoreError> {
        let session = self.session().await?;
        let account = self.account().as_bytes();
        let rows = session.bounded(session.client.query(query, &[&account, argument])).await?;
        rows.iter().map(read_row).collect()
    }

    /// Runs a writer under this epoch; returns what it returned.
    async fn write(
        &self,
        statement: fn(&Session) -> &Statement,
        epoch: Epoch,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<i64>, StoreError> {
        let session = self.session().await?;
        let (role, epoch) = (self.role(), epoch.get());
        let account = self.account().as_bytes();
        let fence: [&(dyn ToSql + Sync); 3] = [&role, &epoch, &account];
        let arguments = [&fence, arguments].concat();
        let query = session.client.query(statement(&session), &arguments);
        let rows = session.bounded(query).await?;
        // Heard before the answer, because it comes before it on the same connection.
        if session.warned.load(Ordering::Acquire) {
            return Err(session.lose("the database answered with a warning"));
        }
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// Rows of the table and of the past.
fn everywhere(filter: &str) -> String {
    format!(
        "select {COLUMNS} from tenure_tx.pending_transactions where {filter} union all \
         select {PAST_COLUMNS} from tenure_tx.past_transactions where {filter}"
    )
}

/// A journal's answer. A disk may take its time, so not on the runtime's own threads.
async fn ask<T: Send + 'static>(
    journal: &Arc<Mutex<Journal>>,
    question: impl FnOnce(&mut Journal) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    // Waited for here, where the order is kept, and not on the threads, where it is not.
    let mut journal = Arc::clone(journal).lock_owned().await;
    let asked = tokio::task::spawn_blocking(move || question(&mut journal));
    asked.await.unwrap_or_else(|error| Err(StoreError::Lost(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Attempt;
    use crate::status::{Hash, Note, TransactionStatus};

    /// The writer has several commits under way, as a session of a database takes them: one after the other.
    #[tokio::test]
    async fn a_journal_writes_in_the_order_in_which_it_was_asked() {
        let folder = tempfile::tempdir().expect("a folder");
        let account = AccountId::new([7; 20]).expect("20 bytes");
        let store = Store::journal(&folder.path().join("journal"), account).expect("a journal");
        let attempt = Attempt { hash: Hash([1; 32]), ..Attempt::default() };
        let row = NewTransaction {
            nonce: 0,
            attempt,
            call: None,
            raw: bytes::Bytes::new(),
            request_id: "r".to_owned(),
            deadline: None,
        };
        store.accept(Epoch(1), 0, &[row]).await.expect("stored");
        let in_block = |tag| {
            let (hash, note) = (Hash([1; 32]), Note::default());
            [StatusChange { nonce: 0, hash, status: TransactionStatus::InBlock(tag), note }]
        };
        for round in 0..=u8::MAX {
            let blocks = [1, 2, 3, 4].map(|tag| in_block(Hash([round ^ tag; 32])));
            let writes = blocks.iter().map(|change| store.record(Epoch(1), change));
            futures_util::future::join_all(writes).await;
            let row = store.by_nonce(0).await.expect("read").expect("a row");
            assert_eq!(row.status, blocks[3][0].status, "round {round}");
        }
    }
}
