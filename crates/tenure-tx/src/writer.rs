//! Writes what waits, together: one task, one session, one commit for many rows, and the next commit
//! on its way while one is flushed.
//!
//! Order: within a batch new rows go first, then replacements, then statuses; a write that must
//! follow an earlier one of the same nonce (a nonce reused, an attempt replaced) opens a new batch. A
//! status that tells no more than that a pool has the transaction waits a moment for others, or for the
//! one that follows it: a write has a price of its own, and this one is promised to no caller.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use tenure_core::epoch::Epoch;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::metrics;
use crate::status::{Hash, Note, State};
use crate::store::{NewTransaction, Replacement, Settlement, StatusChange, Store, StoreError};

/// Rows in one commit. More rows cost latency, fewer cost throughput.
const BATCH: usize = 256;

/// Bytes of transactions in one commit, unless a single one has more: a commit of large calls must be done within its
/// deadline, or it would be tried again as it is, for ever.
const BYTES: usize = 8 << 20;

/// Commits under way at once: one is on its way while the other is flushed. More would only make them smaller.
const UNDER_WAY: usize = 2;

/// How long a status that tells little may wait for others, and for how many of them.
const PATIENCE: Duration = Duration::from_millis(50);
const COMPANY: usize = BATCH / 2;

#[derive(Debug)]
pub(crate) enum Write {
    New { row: NewTransaction, block: u64 },
    Replace(Replacement),
    Status(StatusChange),
    Settle(Settlement),
}

impl Write {
    fn nonce(&self) -> u64 {
        match self {
            Write::New { row, .. } => row.nonce,
            Write::Replace(row) => row.nonce,
            Write::Status(change) => change.nonce,
            Write::Settle(settlement) => settlement.nonce,
        }
    }

    /// The bytes of its transaction.
    fn bytes(&self) -> usize {
        match self {
            Write::New { row, .. } => {
                row.raw.len() + row.call.as_ref().map_or(0, |call| call.len())
            }
            Write::Replace(row) => row.raw.len(),
            Write::Status(_) | Write::Settle(_) => 0,
        }
    }

    /// Whether it tells only that a pool has the transaction.
    fn is_patient(&self) -> bool {
        match self {
            Write::Status(StatusChange { status, note, .. }) => match status.state() {
                State::Future | State::Ready | State::Broadcast => *note == Note::default(),
                State::InBlock
                | State::Retracted
                | State::Finalized
                | State::Usurped
                | State::Dropped
                | State::Invalid
                | State::FinalityTimeout => false,
            },
            Write::New { .. } | Write::Replace(_) | Write::Settle(_) => false,
        }
    }
}

/// A write under one epoch.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) generation: u64,
    pub(crate) epoch: Epoch,
    pub(crate) write: Write,
}

/// What the driver asks.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "almost every task is a write")]
pub(crate) enum Task {
    Write(Job),
    /// Answered when all that was asked before is written, or never will be: what is read from then on is
    /// not changed by it any more.
    Flush(oneshot::Sender<()>),
}

/// What became of a new row or a replacement.
#[derive(Debug, Clone)]
pub(crate) enum Written {
    Stored,
    /// Another live row has the nonce, or the row has ended.
    Missing,
    /// Not stored, for certain.
    Refused(Arc<StoreError>),
    /// The request id is in another row.
    Duplicate,
    /// It may be stored.
    Unknown(Arc<StoreError>),
    /// Another leader is there.
    Stale,
}

/// What became of the writes of one batch, all of one generation.
#[derive(Debug)]
pub(crate) struct BatchResult {
    pub(crate) generation: u64,
    pub(crate) rows: Vec<(u64, Written)>,
    /// The statuses of the batch: nonce and form.
    pub(crate) statuses: Vec<(u64, Hash)>,
    /// A status was not recorded: the table and the memory differ.
    pub(crate) statuses_failed: Option<Written>,
}

impl BatchResult {
    /// Whether the database was away, or of another leader: then it takes nothing of what follows either.
    fn is_lost(&self) -> bool {
        let rows = self.rows.iter().map(|(_, written)| written);
        rows.chain(&self.statuses_failed).any(|written| match written {
            Written::Unknown(_) | Written::Stale => true,
            Written::Refused(error) => matches!(**error, StoreError::Unreachable(_)),
            Written::Stored | Written::Missing | Written::Duplicate => false,
        })
    }
}

#[derive(Debug, Default)]
struct Batch {
    generation: u64,
    epoch: Epoch,
    block: u64,
    news: Vec<NewTransaction>,
    replacements: Vec<Replacement>,
    statuses: BTreeMap<u64, StatusChange>,
    settlements: Vec<Settlement>,
    touched: BTreeSet<u64>,
    bytes: usize,
}

impl Batch {
    fn rows(&self) -> usize {
        self.news.len() + self.replacements.len()
    }

    fn len(&self) -> usize {
        self.rows() + self.statuses.len() + self.settlements.len()
    }

    /// Takes the job, or gives it back if it belongs into the next batch.
    fn take(&mut self, job: Job) -> Option<Job> {
        if self.len() == 0 {
            (self.generation, self.epoch) = (job.generation, job.epoch);
        }
        let nonce = job.write.nonce();
        let follows = match &job.write {
            // A later status of a nonce replaces an earlier one; it may follow a row.
            // A settlement is written last.
            Write::Status(_) | Write::Settle(_) => false,
            Write::New { .. } | Write::Replace(_) => self.touched.contains(&nonce),
        };
        let bytes = self.bytes.saturating_add(job.write.bytes());
        let full = self.len() >= BATCH || self.len() > 0 && bytes > BYTES;
        if follows || full || job.generation != self.generation {
            return Some(job);
        }
        self.bytes = bytes;
        self.touched.insert(nonce);
        match job.write {
            Write::New { row, block } => {
                // A lower bound for all of them: no attempt is in an earlier block.
                self.block = if self.news.is_empty() { block } else { self.block.min(block) };
                self.news.push(row);
            }
            Write::Replace(row) => self.replacements.push(row),
            Write::Status(change) => {
                self.statuses.insert(nonce, change);
            }
            Write::Settle(settlement) => self.settlements.push(settlement),
        }
        None
    }

    async fn settle(self, store: Option<&Store>) -> BatchResult {
        let Some(store) = store else {
            let nonces = self.news.iter().map(|r| r.nonce);
            let nonces = nonces.chain(self.replacements.iter().map(|r| r.nonce));
            let rows = nonces.map(|n| (n, Written::Stored)).collect();
            let statuses = self.statuses.values().map(|one| (one.nonce, one.hash)).collect();
            let statuses_failed = None;
            return BatchResult { generation: self.generation, rows, statuses, statuses_failed };
        };
        self.write(store).await
    }

    async fn write(self, store: &Store) -> BatchResult {
        let epoch = self.epoch;
        let statuses: Vec<StatusChange> = self.statuses.into_values().collect();
        let told = statuses.iter().map(|one| (one.nonce, one.hash)).collect();
        // A status may follow a replacement of its nonce, so then it is not written before it.
        let (with_news, after) = match self.replacements.is_empty() {
            true if !self.news.is_empty() => (statuses, Vec::new()),
            true | false => (Vec::new(), statuses),
        };
        // Pipelined on one session, so they take effect in this job.
        let ((mut rows, with_news), replaced, recorded, settled) = tokio::join!(
            accept_rows(store, epoch, self.block, &self.news, &with_news),
            async {
                if self.replacements.is_empty() {
                    return Ok(Vec::new());
                }
                store.replace(epoch, &self.replacements).await
            },
            record(store, epoch, &after),
            settle(store, epoch, &self.settlements),
        );
        let nonces = self.replacements.iter().map(|r| r.nonce);
        rows.extend(outcomes(nonces, replaced));
        let statuses_failed = with_news.or(recorded).or(settled);
        BatchResult { generation: self.generation, rows, statuses: told, statuses_failed }
    }
}

/// Stores new rows with statuses in one commit; says what became of each row, and why the statuses
/// were not recorded. If the server refuses one of many (its request id exists, or its text is
/// nothing a database can hold), each goes alone: no request pays for another.
async fn accept_rows(
    store: &Store,
    epoch: Epoch,
    block: u64,
    rows: &[NewTransaction],
    statuses: &[StatusChange],
) -> (Vec<(u64, Written)>, Option<Written>) {
    if rows.is_empty() {
        return (Vec::new(), None);
    }
    metrics::observe(metrics::BATCH, rows.len());
    match store.accept_and_record(epoch, block, rows, statuses).await {
        Err(error) if is_about_a_row(&error) && (rows.len() > 1 || !statuses.is_empty()) => {
            let mut outcome = Vec::with_capacity(rows.len());
            let mut gone: Option<Written> = None;
            for row in rows {
                if let Some(gone) = &gone {
                    outcome.push((row.nonce, gone.clone()));
                    continue;
                }
                let one = store.accept(epoch, block, std::slice::from_ref(row)).await;
                let is_over = one.as_ref().is_err_and(|error| !is_about_a_row(error));
                outcome.extend(outcomes([row.nonce].into_iter(), one));
                gone = outcome.last().filter(|_| is_over).map(|(_, written)| written.clone());
            }
            match gone {
                Some(gone) => (outcome, Some(gone).filter(|_| !statuses.is_empty())),
                None => (outcome, record(store, epoch, statuses).await),
            }
        }
        Err(error) => {
            let written = written_of(error);
            let rows = rows.iter().map(|r| (r.nonce, written.clone())).collect();
            (rows, Some(written).filter(|_| !statuses.is_empty()))
        }
        Ok(accepted) => {
            let rows = outcomes(rows.iter().map(|r| r.nonce), Ok(accepted.stored));
            (rows, not_ended(&accepted.unplaced))
        }
    }
}

/// Whether another row may still be stored: a database that is away, or another leader's, refuses them all.
fn is_about_a_row(error: &StoreError) -> bool {
    matches!(error, StoreError::DuplicateRequest | StoreError::Database(_))
}

/// Stores what the chain has proved; says why it was not.
async fn settle(store: &Store, epoch: Epoch, settlements: &[Settlement]) -> Option<Written> {
    if settlements.is_empty() {
        return None;
    }
    store.settle(epoch, settlements).await.err().map(written_of)
}

/// Records statuses; says why they were not. An end that found no row of its form is not stored: the row
/// has another form by now, and the table has to be read again.
async fn record(store: &Store, epoch: Epoch, statuses: &[StatusChange]) -> Option<Written> {
    if statuses.is_empty() {
        return None;
    }
    match store.record(epoch, statuses).await {
        Err(error) => Some(written_of(error)),
        Ok(recorded) => not_ended(&StatusChange::unplaced(statuses, &recorded)),
    }
}

/// Of ends that found no row.
fn not_ended(unplaced: &[u64]) -> Option<Written> {
    let why = format!("the end of nonce {} found no row of its form", unplaced.first()?);
    Some(Written::Unknown(Arc::new(StoreError::Lost(why))))
}

fn outcomes(
    nonces: impl Iterator<Item = u64>,
    stored: Result<Vec<u64>, StoreError>,
) -> Vec<(u64, Written)> {
    match stored {
        Ok(stored) => {
            let stored: BTreeSet<u64> = stored.into_iter().collect();
            let outcome = |nonce| match stored.contains(&nonce) {
                true => (nonce, Written::Stored),
                false => (nonce, Written::Missing),
            };
            nonces.map(outcome).collect()
        }
        Err(error) => {
            let written = written_of(error);
            nonces.map(|nonce| (nonce, written.clone())).collect()
        }
    }
}

fn written_of(error: StoreError) -> Written {
    match error {
        StoreError::Stale => Written::Stale,
        StoreError::DuplicateRequest => Written::Duplicate,
        error @ StoreError::Lost(_) => Written::Unknown(Arc::new(error)),
        error => Written::Refused(Arc::new(error)),
    }
}

/// What is to be written, in order.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// Statuses that wait for company, the last of each nonce.
    patient: BTreeMap<u64, Job>,
    /// When the first of them came.
    since: Option<Instant>,
}

impl Queue {
    fn push(&mut self, job: Job, now: Instant) {
        let nonce = job.write.nonce();
        match job.write {
            // Of a request that has ended, perhaps another than the one that has the nonce now.
            Write::Settle(_) => {}
            // What follows says more, or is of other bytes.
            Write::New { .. } | Write::Replace(_) | Write::Status(_) => {
                self.patient.remove(&nonce);
            }
        }
        if job.write.is_patient() {
            self.patient.insert(nonce, job);
            self.since.get_or_insert(now);
        } else {
            self.waiting.push_back(job);
        }
    }

    /// When the statuses that wait are due, if there are any.
    fn due(&self) -> Option<Instant> {
        self.since.filter(|_| !self.patient.is_empty()).map(|since| since + PATIENCE)
    }

    /// Whether the next batch goes on its way beside so many others, the newest of which has so many rows. The
    /// session writes one after the other, so what is sent early saves no more than its way there, and every
    /// commit has a price: a small one waits for the end of the larger one before it, and for company.
    fn may_go(&self, under_way: usize, rows_of_newest: usize, flushed: bool) -> bool {
        match under_way {
            0 => true,
            UNDER_WAY.. => false,
            1.. => flushed || self.waiting.len() >= rows_of_newest,
        }
    }

    /// The next batch, if one is to be written now; nothing waits for company if all is `flushed`.
    fn batch(&mut self, now: Instant, flushed: bool) -> Option<Batch> {
        let company = self.patient.len() >= COMPANY || flushed;
        if company || self.due().is_some_and(|due| due <= now) {
            self.waiting.extend(std::mem::take(&mut self.patient).into_values());
            self.since = None;
        }
        let mut batch = Batch::default();
        while let Some(job) = self.waiting.pop_front() {
            if let Some(job) = batch.take(job) {
                self.waiting.push_front(job);
                break;
            }
        }
        (batch.len() > 0).then_some(batch)
    }
}

/// Runs until the tasks end. Without a store (standalone) everything counts as stored.
pub(crate) async fn run(
    store: Option<Store>,
    mut tasks: mpsc::UnboundedReceiver<Task>,
    results: mpsc::UnboundedSender<BatchResult>,
) {
    let mut queue = Queue::default();
    let mut arrived = Vec::new();
    let mut flushes: Vec<oneshot::Sender<()>> = Vec::new();
    // One session answers in order, so the results come in the order of the writes.
    let mut under_way = FuturesOrdered::new();
    let mut rows_of_newest = 0;
    loop {
        let flushed = !flushes.is_empty();
        while queue.may_go(under_way.len(), rows_of_newest, flushed)
            && let Some(batch) = queue.batch(Instant::now(), flushed)
        {
            rows_of_newest = batch.rows();
            under_way.push_back(batch.settle(store.as_ref()));
        }
        if under_way.is_empty() {
            for flushed in flushes.drain(..) {
                // The reading that asked for it may have been given up.
                let _ = flushed.send(());
            }
        }
        let may_go = queue.may_go(under_way.len(), rows_of_newest, !flushes.is_empty());
        let due = queue.due().filter(|_| may_go);
        // All branches are cancel-safe: a channel, a set of futures that stays, and a timer.
        tokio::select! {
            Some(result) = under_way.next() => {
                // What a database that is away does not take is not tried batch by batch: the reading that
                // waits for it decides what is there.
                if !flushes.is_empty() && result.is_lost() {
                    queue = Queue::default();
                }
                if results.send(result).is_err() {
                    return;
                }
            }
            count = tasks.recv_many(&mut arrived, BATCH) => {
                if count == 0 {
                    return;
                }
                let now = Instant::now();
                for task in arrived.drain(..) {
                    match task {
                        Task::Write(job) => queue.push(job, now),
                        Task::Flush(flushed) => flushes.push(flushed),
                    }
                }
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Attempt;
    use crate::status::TransactionStatus;

    fn job(write: Write) -> Job {
        Job { generation: 1, epoch: Epoch(1), write }
    }

    fn new(nonce: u64) -> Write {
        let attempt = Attempt { hash: Hash([1; 32]), ..Attempt::default() };
        let row = NewTransaction {
            nonce,
            attempt,
            call: None,
            raw: bytes::Bytes::new(),
            request_id: "r".into(),
            deadline: None,
        };
        Write::New { row, block: 0 }
    }

    fn status(nonce: u64, status: TransactionStatus) -> Write {
        Write::Status(StatusChange { nonce, hash: Hash([1; 32]), status, note: Note::default() })
    }

    /// A replacement whose answer was lost may be stored later than it was given up for.
    #[tokio::test]
    async fn an_end_of_a_form_that_the_row_no_longer_has_is_not_told_as_stored() {
        let folder = tempfile::tempdir().expect("a folder");
        let account = crate::account::AccountId::new([7; 20]).expect("20 bytes");
        let store = Store::journal(&folder.path().join("journal"), account).expect("a journal");
        let attempt = |tag| Attempt { hash: Hash([tag; 32]), ..Attempt::default() };
        let row = |nonce, tag: u8| NewTransaction {
            nonce,
            attempt: attempt(tag),
            call: None,
            raw: bytes::Bytes::new(),
            request_id: format!("r{nonce}"),
            deadline: None,
        };
        store.accept(Epoch(1), 0, &[row(0, 1)]).await.expect("stored");
        let attempts = vec![attempt(1), attempt(2)];
        let raw = bytes::Bytes::new();
        let late = Replacement { nonce: 0, attempts, raw };
        store.replace(Epoch(1), &[late]).await.expect("stored");
        let end = crate::status::End::new(crate::status::EndKind::Withdrawn);
        let end = StatusChange {
            nonce: 0,
            hash: Hash([1; 32]),
            status: TransactionStatus::Invalid(None),
            note: Note { end: Some(Box::new(end)), ..Note::default() },
        };
        for with_a_new_row in [true, false] {
            let mut batch = Batch::default();
            if with_a_new_row {
                let row = row(1, 3);
                assert!(batch.take(job(Write::New { row, block: 0 })).is_none());
            }
            assert!(batch.take(job(Write::Status(end.clone()))).is_none());
            let result = batch.settle(Some(&store)).await;
            let told = result.statuses_failed;
            assert!(matches!(told, Some(Written::Unknown(_))), "{told:?}");
        }
        assert!(!store.by_nonce(0).await.expect("read").expect("a row").ended);
    }

    #[test]
    fn a_reused_nonce_waits_for_the_end_of_its_last_row() {
        let mut batch = Batch::default();
        assert!(batch.take(job(status(0, TransactionStatus::Invalid(None)))).is_none());
        assert!(batch.take(job(new(1))).is_none());
        assert!(batch.take(job(new(0))).is_some());
    }

    #[test]
    fn a_commit_of_large_transactions_has_fewer_of_them() {
        let large = |nonce, size| {
            let Write::New { row, block } = new(nonce) else { unreachable!("a new row") };
            let half = bytes::Bytes::from(vec![7; size / 2]);
            Write::New { row: NewTransaction { raw: half.clone(), call: Some(half), ..row }, block }
        };
        let mut batch = Batch::default();
        assert!(batch.take(job(large(0, BYTES / 2))).is_none());
        assert!(batch.take(job(large(1, BYTES / 2))).is_none());
        assert!(batch.take(job(large(2, 2))).is_some(), "it is full");
        assert!(batch.take(job(status(0, TransactionStatus::Ready))).is_none(), "of no bytes");
        let mut batch = Batch::default();
        assert!(batch.take(job(large(0, 2 * BYTES))).is_none(), "one alone is never refused");
    }

    #[test]
    fn the_last_status_of_a_nonce_is_the_one_that_is_written() {
        let mut batch = Batch::default();
        assert!(batch.take(job(new(0))).is_none());
        assert!(batch.take(job(status(0, TransactionStatus::Ready))).is_none());
        assert!(batch.take(job(status(0, TransactionStatus::Dropped))).is_none());
        assert_eq!(batch.statuses[&0].status, TransactionStatus::Dropped);
        assert_eq!(batch.len(), 2);
    }

    #[test]
    fn a_status_that_tells_little_waits_for_company_and_never_outlives_a_later_one() {
        let (now, mut queue) = (Instant::now(), Queue::default());
        queue.push(job(status(0, TransactionStatus::Ready)), now);
        queue.push(job(status(1, TransactionStatus::Ready)), now);
        assert!(queue.batch(now, false).is_none(), "they wait");
        queue.push(job(status(0, TransactionStatus::InBlock(Hash([2; 32])))), now);
        let batch = queue.batch(now, false).expect("a block is told at once");
        assert_eq!(batch.statuses[&0].status, TransactionStatus::InBlock(Hash([2; 32])));
        assert_eq!(batch.len(), 1);
        let batch = queue.batch(now + PATIENCE, false).expect("due");
        assert_eq!(batch.statuses.keys().collect::<Vec<_>>(), [&1], "the first was overtaken");
        assert!(queue.batch(now + PATIENCE, false).is_none() && queue.due().is_none());
        for nonce in 0..COMPANY as u64 {
            assert!(queue.batch(now, false).is_none());
            queue.push(job(status(nonce, TransactionStatus::Ready)), now);
        }
        assert_eq!(queue.batch(now, false).expect("enough").len(), COMPANY);
        // Bytes that replace others have been nowhere yet.
        queue.push(job(status(0, TransactionStatus::Ready)), now);
        queue.push(job(new(0)), now);
        assert_eq!(queue.batch(now + PATIENCE, false).expect("a row").statuses.len(), 0);
    }

    #[test]
    fn a_second_commit_goes_on_its_way_if_it_carries_as_much_as_the_first() {
        let (now, mut queue) = (Instant::now(), Queue::default());
        (0..3).for_each(|nonce| queue.push(job(new(nonce)), now));
        assert!(queue.may_go(0, 0, false), "the first goes at once");
        let rows = queue.batch(now, false).expect("a batch").rows();
        (3..5).for_each(|nonce| queue.push(job(new(nonce)), now));
        assert!(!queue.may_go(1, rows, false), "two of three");
        assert!(queue.may_go(0, rows, false), "the first has ended");
        assert!(queue.may_go(1, rows, true), "a reading waits for it");
        queue.push(job(new(5)), now);
        assert!(queue.may_go(1, rows, false), "as much");
        assert!(!queue.may_go(UNDER_WAY, rows, true), "never more of them");
        // A commit of statuses alone holds no row up.
        assert!(Queue::default().may_go(1, 0, false));
    }

    /// What became of the batches that were written before the flush was answered.
    async fn flushed(store: Option<Store>, writes: Vec<Write>) -> Vec<BatchResult> {
        let (tasks, from) = mpsc::unbounded_channel();
        let (to, mut results) = mpsc::unbounded_channel();
        let (flush, is_flushed) = oneshot::channel();
        for write in writes {
            tasks.send(Task::Write(job(write))).expect("open");
        }
        tasks.send(Task::Flush(flush)).expect("open");
        let writer = tokio::spawn(run(store, from, to));
        is_flushed.await.expect("answered");
        let mut before = Vec::new();
        while let Ok(result) = results.try_recv() {
            before.push(result);
        }
        drop(tasks);
        writer.await.expect("ends");
        assert!(results.recv().await.is_none(), "nothing is written after it");
        before
    }

    #[tokio::test]
    async fn a_flush_is_answered_when_all_before_it_is_written() {
        let mut writes: Vec<Write> = (0..5).map(|_| new(0)).collect();
        // It would wait for company.
        writes.push(status(1, TransactionStatus::Ready));
        let results = flushed(None, writes).await;
        assert_eq!(results.len(), 5, "one for each row of the nonce");
        assert_eq!(results.iter().map(|one| one.statuses.len()).sum::<usize>(), 1);
    }

    #[tokio::test]
    async fn a_flush_does_not_try_a_database_that_is_away_batch_by_batch() {
        let dsn = tenure_connect::Dsn::parse("host=127.0.0.1 port=1 user=nobody").expect("a DSN");
        let connector = tenure_connect::Connector::new(&dsn, tenure_connect::TlsOptions::new());
        let account = crate::account::AccountId::new([7; 20]).expect("20 bytes");
        let options =
            crate::store::StoreOptions::new("relayer".parse().expect("a name"), account, "a");
        let store = Store::new(connector.expect("no certificates"), options);
        let results = flushed(Some(store), (0..20).map(|_| new(0)).collect()).await;
        assert!(!results.is_empty() && results.len() <= UNDER_WAY, "{}", results.len());
        assert!(results.iter().all(BatchResult::is_lost));
    }

    #[test]
    fn two_terms_never_share_a_batch() {
        let mut batch = Batch::default();
        assert!(batch.take(job(new(0))).is_none());
        let later = Job { generation: 2, ..job(new(1)) };
        assert!(batch.take(later).is_some());
    }
}
