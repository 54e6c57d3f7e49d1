//! Writes what waits, together: one task, one session, one commit for many rows, and the next commit
//! on its way while one is flushed.
//!
//! Order: within a batch new rows go first, then replacements, then statuses; a write that must
//! follow an earlier one of the same nonce (a nonce reused, an attempt replaced) opens a new batch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use tenure_core::epoch::Epoch;
use tokio::sync::mpsc;

use crate::metrics;
use crate::status::Hash;
use crate::store::{NewTransaction, Replacement, Settlement, StatusChange, Store, StoreError};

/// Rows in one commit. More rows cost latency, fewer cost throughput.
const BATCH: usize = 256;

/// Commits under way at once: one fills while the other is flushed. More would only make them smaller.
const UNDER_WAY: usize = 2;

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
}

/// A write under one epoch.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) generation: u64,
    pub(crate) epoch: Epoch,
    pub(crate) write: Write,
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
}

impl Batch {
    fn len(&self) -> usize {
        let rows = self.news.len() + self.replacements.len();
        rows + self.statuses.len() + self.settlements.len()
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
        if follows || self.len() >= BATCH || job.generation != self.generation {
            return Some(job);
        }
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
        Err(StoreError::DuplicateRequest | StoreError::Database(_))
            if rows.len() > 1 || !statuses.is_empty() =>
        {
            let mut outcome = Vec::with_capacity(rows.len());
            for row in rows {
                let one = store.accept(epoch, block, std::slice::from_ref(row)).await;
                outcome.extend(outcomes([row.nonce].into_iter(), one));
            }
            (outcome, record(store, epoch, statuses).await)
        }
        Err(error) => {
            let written = written_of(error);
            let rows = rows.iter().map(|r| (r.nonce, written.clone())).collect();
            (rows, Some(written).filter(|_| !statuses.is_empty()))
        }
        stored => (outcomes(rows.iter().map(|r| r.nonce), stored), None),
    }
}

/// Stores what the chain has proved; says why it was not.
async fn settle(store: &Store, epoch: Epoch, settlements: &[Settlement]) -> Option<Written> {
    if settlements.is_empty() {
        return None;
    }
    store.settle(epoch, settlements).await.err().map(written_of)
}

/// Records statuses; says why they were not.
async fn record(store: &Store, epoch: Epoch, statuses: &[StatusChange]) -> Option<Written> {
    if statuses.is_empty() {
        return None;
    }
    store.record(epoch, statuses).await.err().map(written_of)
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

/// Runs until the jobs end. Without a store (standalone) everything counts as stored.
pub(crate) async fn run(
    store: Option<Store>,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    results: mpsc::UnboundedSender<BatchResult>,
) {
    let mut waiting: VecDeque<Job> = VecDeque::new();
    let mut arrived = Vec::new();
    // One session answers in order, so the results come in the order of the writes.
    let mut under_way = FuturesOrdered::new();
    loop {
        while under_way.len() < UNDER_WAY && !waiting.is_empty() {
            let mut batch = Batch::default();
            while let Some(job) = waiting.pop_front() {
                if let Some(job) = batch.take(job) {
                    waiting.push_front(job);
                    break;
                }
            }
            under_way.push_back(batch.settle(store.as_ref()));
        }
        // Both branches are cancel-safe: a channel and a set of futures that stays.
        tokio::select! {
            Some(result) = under_way.next() => {
                if results.send(result).is_err() {
                    return;
                }
            }
            count = jobs.recv_many(&mut arrived, BATCH) => {
                if count == 0 {
                    return;
                }
                waiting.extend(arrived.drain(..));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Attempt;
    use crate::status::{Hash, Note, TransactionStatus};

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

    #[test]
    fn a_reused_nonce_waits_for_the_end_of_its_last_row() {
        let mut batch = Batch::default();
        assert!(batch.take(job(status(0, TransactionStatus::Invalid(None)))).is_none());
        assert!(batch.take(job(new(1))).is_none());
        assert!(batch.take(job(new(0))).is_some());
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
    fn two_terms_never_share_a_batch() {
        let mut batch = Batch::default();
        assert!(batch.take(job(new(0))).is_none());
        let later = Job { generation: 2, ..job(new(1)) };
        assert!(batch.take(later).is_some());
    }
}
