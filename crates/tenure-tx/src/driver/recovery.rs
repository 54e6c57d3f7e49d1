//! Taking over: the table and the chain's head are read until both answer and agree.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::epoch::Epoch;
use tenure_core::retry::ExponentialBackoff;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::content::Content;
use super::{Answer, Driver, Phase};
use crate::chain::{Chain, ChainError, Head};
use crate::engine::Input;
use crate::store::{CLEANUP_ROWS, Retention, Snapshot, Store, StoreError, StoredTransaction};
use crate::writer::Task;

/// The longest pause before what is open is read again: a leader that waits sends nothing.
const RECOVER_MAX: Duration = Duration::from_secs(5);

/// The longest pause between two readings of the head while the chain's node does not answer.
const HEAD_MAX: Duration = Duration::from_secs(5);

/// How often old rows are removed.
const CLEANUP_EVERY: Duration = Duration::from_secs(60);

/// Why what is open cannot be taken over yet.
enum Trouble {
    Table(String),
    Chain(String),
    /// Account, role and chain are bound to others.
    Foreign(String),
    Behind {
        chain: u64,
        stored: u64,
        remedy: String,
    },
}

impl Trouble {
    /// A chain that catches up is one trouble, however far it is.
    fn is(&self, other: &Trouble) -> bool {
        match (self, other) {
            (Trouble::Table(one), Trouble::Table(other))
            | (Trouble::Chain(one), Trouble::Chain(other))
            | (Trouble::Foreign(one), Trouble::Foreign(other)) => one == other,
            (Trouble::Behind { .. }, Trouble::Behind { .. }) => true,
            (
                Trouble::Table(_)
                | Trouble::Chain(_)
                | Trouble::Foreign(_)
                | Trouble::Behind { .. },
                _,
            ) => false,
        }
    }

    fn log(&self) {
        match self {
            Trouble::Table(error) => {
                tracing::error!(error, "cannot read what is open; not acting until it can be read");
            }
            Trouble::Chain(error) => {
                tracing::warn!(error, "cannot read the chain's head; not acting until it answers");
            }
            Trouble::Foreign(error) => tracing::error!(
                event = "tx_foreign",
                error,
                "THIS NODE IS NOT OF THIS GROUP: not acting, and accepting nothing, until its chain, its \
                 key and its role are those of the account"
            ),
            Trouble::Behind { chain, stored, remedy } => tracing::error!(
                chain,
                stored,
                "THE CHAIN IS BEHIND WHAT IS STORED: it has not used nonces that were final; not acting \
                 until it has. It may still be catching up, or have lost its state; {remedy}"
            ),
        }
    }
}

impl Driver {
    /// Reads the table and the head, again and again until both answer, ever more slowly.
    pub(super) fn recover(&mut self) {
        self.reset();
        self.behind = 0;
        let known = match std::mem::replace(&mut self.phase, Phase::Following) {
            Phase::Recovering { known, .. } => known,
            Phase::Following | Phase::Leading { .. } => std::mem::take(&mut self.contents),
        };
        self.phase = Phase::Recovering { since: self.now(), known, foreign: None };
        let (store, chain, account) =
            (self.reader.clone(), Arc::clone(&self.chain), self.signer.account().clone());
        let (writer, epoch) = (self.store.clone(), self.epoch);
        let known = Arc::clone(&self.known);
        let mut backoff = self.options.engine.backoff();
        backoff.max = backoff.max.min(RECOVER_MAX);
        // A disk that is full, a table that refuses, or a task that panics again and again is not tried
        // without a pause.
        let rereads = self.rereads.max(self.panics.count);
        // A write of before that lands after the reading would change what was read: a request that is
        // taken for open, and is sent, might end as refused in the table.
        let (flush, flushed) = oneshot::channel();
        if let Some(writer) = &self.writer {
            let _ = writer.send(Task::Flush(flush));
        }
        self.spawn(async move |answers, generation| {
            // Without a writer nothing is on its way.
            let _ = flushed.await;
            if rereads > 1 {
                sleep(backoff.pause(rereads - 1, rand::random())).await;
            }
            // Each trouble is logged once, or it would hide the one that comes after it.
            let mut logged: Option<Trouble> = None;
            let mut failures = 0u32;
            loop {
                let snapshot = async {
                    match &store {
                        Some(store) => store.snapshot().await,
                        None => Ok(Snapshot::default()),
                    }
                };
                // Nonces of one chain mean nothing on another: first of all, whose they are. It is also a commit of
                // the writer's own session before the reading: what the session before had under way is over then,
                // and what this one reads is replicated.
                let bound = bind(writer.as_ref(), epoch, chain.as_ref()).await;
                let read = async { tokio::join!(snapshot, chain.head(&account)) };
                let read = match bound {
                    Ok(()) => Ok(read.await),
                    Err(trouble) => Err(trouble),
                };
                let trouble = match read {
                    Err(trouble) => trouble,
                    Ok((Ok(snapshot), Ok(head))) if head.best_nonce >= snapshot.consumed => {
                        let _ = answers.send((generation, Answer::Recovered { snapshot, head }));
                        return;
                    }
                    Ok((Ok(snapshot), Ok(head))) => {
                        known.consumed.store(snapshot.consumed, Ordering::Relaxed);
                        chain.distrust();
                        let remedy = store.as_ref().map(Store::after_reset).unwrap_or_default();
                        Trouble::Behind {
                            chain: head.best_nonce,
                            stored: snapshot.consumed,
                            remedy,
                        }
                    }
                    Ok((Err(error), _)) => Trouble::Table(error.to_string()),
                    Ok((Ok(_), Err(error))) => Trouble::Chain(error.to_string()),
                };
                if logged.as_ref().is_none_or(|last| !last.is(&trouble)) {
                    trouble.log();
                    if let Trouble::Foreign(why) = &trouble {
                        let _ = answers.send((generation, Answer::Foreign(why.clone())));
                    }
                    logged = Some(trouble);
                }
                failures = failures.saturating_add(1);
                sleep(backoff.pause(failures, rand::random())).await;
            }
        });
    }

    /// Accepts nothing while this node's chain, key or role is not the account's: what it would store belongs
    /// to a chain that may be gone. A leader reads what is open again, which first asks which chain it is.
    pub(super) fn disown(&mut self, why: String) {
        if matches!(self.phase, Phase::Leading { .. }) {
            self.recover();
        }
        let Phase::Recovering { foreign, .. } = &mut self.phase else { return };
        *foreign = Some(why.clone());
        for (id, pending) in std::mem::take(&mut self.pending) {
            pending.disown(id, &why);
        }
    }

    pub(super) fn recovered(&mut self, snapshot: Snapshot, head: Head) {
        let Phase::Recovering { since, known, .. } = &mut self.phase else { return };
        let (since, mut known) = (*since, std::mem::take(known));
        self.believe(head);
        let now = self.now();
        let open: HashSet<&str> = snapshot.open.iter().map(|row| row.request_id.as_str()).collect();
        let pending = &self.pending;
        self.dropped.retain(|id| open.contains(id.as_str()) || pending.contains_key(id));
        let dropped = |row: &StoredTransaction| self.dropped.contains(&row.request_id);
        let rows = snapshot.open.iter().map(|row| row.open(now, dropped(row))).collect();
        for row in snapshot.open {
            let nonce = row.nonce;
            let known = known.remove(&nonce).filter(|c| c.request_id == row.request_id);
            self.contents.insert(nonce, Content::of(row, known, now));
        }
        for row in &snapshot.provisional {
            let since = self.provisional.entry(row.nonce).or_insert(row.built_at_block);
            *since = row.built_at_block.min(*since);
        }
        let provisional =
            snapshot.provisional.iter().filter_map(StoredTransaction::provisional).collect();
        let input = Input::Recovered { rows, consumed: snapshot.consumed, provisional, head };
        let effects = self.engine.handle(self.now(), input);
        let took = self.now().saturating_since(since);
        tracing::info!(epoch = %self.epoch, open = self.engine.open(), ?took, "took over");
        self.phase = Phase::Leading { took };
        for reply in self.waiting_recovered.drain(..) {
            let _ = reply.send(Some(took));
        }
        self.carry_out(effects);
        self.follow_head();
        self.admit_all();
    }

    /// What is signed, stored and cleaned up from now on follows this head.
    pub(super) fn believe(&mut self, head: Head) {
        self.head = head;
        self.known.finalized.store(head.finalized_nonce, Ordering::Relaxed);
    }

    /// Reads the head again and again; cleans up as finality moves.
    fn follow_head(&mut self) {
        let (chain, account) = (Arc::clone(&self.chain), self.signer.account().clone());
        // Beside the writer's session: no request waits for it.
        let store = self.store.as_ref().map(Store::on_another_session);
        let epoch = self.epoch;
        let keep = Retention { rows: self.options.keep, ids: self.options.keep_ids };
        let (every, clock) = (self.options.head_every, Arc::clone(&self.clock));
        let most = every.saturating_mul(32).min(HEAD_MAX).max(every);
        let backoff = ExponentialBackoff::new(every, most);
        let known = Arc::clone(&self.known);
        self.spawn(async move |answers, generation| {
            let mut cleaned = clock.now();
            let mut failures = 0u32;
            loop {
                sleep(backoff.bare(failures.saturating_add(1))).await;
                let head = match chain.head(&account).await {
                    Ok(head) => head,
                    Err(error @ ChainError::Foreign { .. }) => {
                        let why = store.as_ref().map(|store| foreign(&error, store));
                        let why = why.unwrap_or_else(|| error.to_string());
                        let _ = answers.send((generation, Answer::Foreign(why)));
                        return;
                    }
                    // Said once, or a node that is away for an hour fills the log.
                    Err(error) if failures == 0 => {
                        tracing::warn!(%error, "cannot read the chain's head");
                        failures = 1;
                        continue;
                    }
                    Err(_) => {
                        failures = failures.saturating_add(1);
                        continue;
                    }
                };
                failures = 0;
                if answers.send((generation, Answer::Head(head))).is_err() {
                    return;
                }
                let Some(store) = store.as_ref().filter(|_| clock.now() > cleaned + CLEANUP_EVERY)
                else {
                    continue;
                };
                // Not what this head claims: it may be one that is not believed.
                let below = known.finalized.load(Ordering::Relaxed);
                match store.cleanup(epoch, below, keep).await {
                    // More are due: not in a minute, or a busy table only grows.
                    Ok(gone) if gone >= CLEANUP_ROWS => continue,
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, "old rows were not removed"),
                }
                cleaned = clock.now();
            }
        });
    }
}

/// What to do about a chain that is another one now.
fn foreign(error: &ChainError, store: &Store) -> String {
    format!("{error}; check --rpc, or, {}", store.after_reset())
}

/// Binds the account to its role and its chain, or finds that they are bound to each other.
async fn bind(store: Option<&Store>, epoch: Epoch, chain: &dyn Chain) -> Result<(), Trouble> {
    let Some(store) = store else { return Ok(()) };
    let identity = chain.identity().await.map_err(|error| match error {
        // Nothing is bound: the row of the chain that is gone must not come back.
        ChainError::Foreign { .. } => Trouble::Foreign(foreign(&error, store)),
        other => Trouble::Chain(other.to_string()),
    })?;
    store.open_account(epoch, &identity.to_string()).await.map_err(|error| unbound(&error))
}

/// Why account, role and chain could not be bound to each other. A disk that is full is no sign of another chain.
fn unbound(error: &StoreError) -> Trouble {
    let is_foreign = matches!(error, StoreError::Bound(_) | StoreError::JournalBound(_));
    if is_foreign { Trouble::Foreign(error.to_string()) } else { Trouble::Table(error.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_full_is_not_taken_for_another_chain() {
        let full = StoreError::Journal("cannot be written: no space left on device".to_owned());
        assert!(matches!(unbound(&full), Trouble::Table(_)));
        let other = StoreError::JournalBound("is of chain 1, not of 2".to_owned());
        assert!(matches!(unbound(&other), Trouble::Foreign(_)));
    }
}
