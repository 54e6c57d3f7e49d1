//! The transaction engine: a pure state machine of one account's transactions.
//!
//! `(state, input, now) → effects`: no network, no clock, no randomness. The driver feeds it and
//! carries out what it asks; a property test feeds it anything at all.
//!
//! # What it guarantees
//!
//! * **One content per nonce.** A nonce that carries a caller's request is never given to another
//!   request while any signed transaction for it may live. Replacements (higher tip, fresh
//!   mortality) carry the same request; the only other content is a no-op.
//! * **One nonce per request.** A request never moves to a second nonce, so it cannot execute
//!   twice.
//! * **Intent first.** [`Effect::Submit`] for a hash is emitted only after [`Input::Built`]
//!   reported that the row with that hash is committed.
//! * **Nothing is forgotten.** Every entry is in a phase that something ends: a store answer, a
//!   node's answer, a watch, a location or a time.
//! * **A follower is silent.** Without leadership there are no entries, hence no effects.
//!
//! # An ended status is not an ended duty
//!
//! A pool that says `dropped`, `invalid` or `finality_timeout` ends its *watch*; the transaction may
//! still be mined. The duty ends only when the nonce is consumed in a finalised block (by us:
//! finalized; by another: usurped), or when no node ever took the transaction (invalid). Until
//! then the row stays open (`ended_at` is null) and the next leader takes it over.
//!
//! ```text
//!           Requested             Built               Pooled
//!   (free) ──────────▶ Building ────────▶ Submitting ─────────▶ Watching ──Finalized──▶ (ended)
//!                        ▲  ▲  BuildFailed    │ Outdated            │ dropped, invalid,
//!                        │  └── (free)        ▼                     │ watch closed
//!                 stuck, │               Locating ──Consumed──▶ (ended)
//!                expired │                   │ ▲                    │
//!                        └──── Waiting ◀─────┘ └── nonce passed ────┤
//!                                 ▲────────────────────────────────┘
//! ```

mod config;
mod entry;
mod message;
mod nonces;

use std::collections::{BTreeMap, HashMap};

use tenure_core::clock::Tick;

use crate::chain::{Head, Located, Outcome};
use crate::status::{Hash, Note, State, TransactionStatus};
pub use config::EngineConfig;
use entry::{Entry, Phase};
pub use message::{Attempt, Effect, Input, OpenTransaction, Order, Request};
pub use nonces::NonceError;

/// The state machine. Call order: [`Input::Recovered`] begins the leadership, [`Input::Demoted`]
/// ends it; in between, anything in any order.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    leading: Option<Leading>,
}

/// What a leader knows.
#[derive(Debug)]
struct Leading {
    head: Head,
    /// One above the highest nonce known to be used for good, from table and chain together.
    consumed: u64,
    entries: BTreeMap<u64, Entry>,
    /// The nonce of each open request.
    requests: HashMap<String, u64>,
    /// When each gap was first seen.
    gaps: BTreeMap<u64, Tick>,
}

impl Engine {
    /// A follower.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Engine { config, leading: None }
    }

    // Getters.

    /// How many transactions are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.leading.as_ref().map_or(0, |leading| leading.entries.len())
    }

    /// How many are between acceptance and the node's first answer.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.leading.as_ref().map_or(0, |leading| {
            let unsettled = |e: &&Entry| matches!(e.phase, Phase::Building | Phase::Submitting);
            leading.entries.values().filter(unsettled).count()
        })
    }

    /// The last status of a nonce.
    #[must_use]
    pub fn status(&self, nonce: u64) -> Option<&TransactionStatus> {
        Some(&self.leading.as_ref()?.entries.get(&nonce)?.status)
    }

    /// All signed forms of a nonce, the current one last.
    #[must_use]
    pub fn attempts(&self, nonce: u64) -> &[Attempt] {
        let entry = self.leading.as_ref().and_then(|leading| leading.entries.get(&nonce));
        entry.map_or(&[], |entry| &entry.attempts)
    }

    /// The nonce of an open request.
    #[must_use]
    pub fn nonce_of(&self, request: &str) -> Option<u64> {
        self.leading.as_ref()?.requests.get(request).copied()
    }

    /// The request at a nonce; `None` if nothing is open there, or a no-op that fills a gap.
    #[must_use]
    pub fn request_at(&self, nonce: u64) -> Option<&str> {
        self.leading.as_ref()?.entries.get(&nonce)?.request.as_deref()
    }

    /// One above the highest nonce known to be used for good.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.leading.as_ref().map_or(0, |leading| leading.consumed)
    }

    /// The nonces nothing uses although higher ones are in use, at most `limit` of them.
    #[must_use]
    pub fn gaps(&self, limit: usize) -> Vec<u64> {
        self.leading.as_ref().map_or_else(Vec::new, |leading| leading.gaps(limit))
    }

    // Mutators.

    /// Gives up the request at `nonce`: a no-op takes its place. If the original is mined first,
    /// it wins. A gap is filled at once.
    ///
    /// # Errors
    /// [`NonceError`]; nothing changed.
    pub fn cancel(&mut self, nonce: u64) -> Result<Vec<Effect>, NonceError> {
        let leading = self.leading.as_mut().ok_or(NonceError::NotLeading)?;
        let mut effects = Vec::new();
        if let Some(entry) = leading.entries.get_mut(&nonce) {
            // A build under way still carries the request: when it is stored, a no-op follows it.
            entry.noop = Some(Order::Drop);
            entry.rebuild(nonce, entry.bumped(&self.config), &mut effects);
        } else if leading.is_gap(nonce) {
            leading.fill(nonce, &mut effects);
        } else {
            return Err(NonceError::NotOpen(nonce));
        }
        Ok(effects)
    }

    /// Takes one input; returns what to do.
    pub fn handle(&mut self, now: Tick, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Recovered { rows, consumed, head } => {
                self.recover(now, rows, consumed, head, &mut effects);
            }
            Input::Demoted => self.leading = None,
            Input::Requested(request) => self.requested(request, &mut effects),
            Input::Built { nonce, attempt } => {
                if let Some(entry) = self.entry(nonce) {
                    entry.built(nonce, attempt, now, &mut effects);
                }
            }
            Input::BuildFailed { nonce } => self.build_failed(now, nonce, &mut effects),
            Input::Submitted { nonce, hash, outcome } => {
                self.submitted(now, nonce, hash, outcome, &mut effects);
            }
            Input::Status { nonce, hash, status } => {
                self.reported(now, nonce, hash, status, &mut effects);
            }
            Input::WatchClosed { nonce, hash } => {
                // No end was reported, so none is assumed: look again at the next input.
                if let Some(entry) = self.entry(nonce)
                    && entry.current() == Some(hash)
                    && entry.phase == Phase::Watching
                {
                    entry.phase = Phase::Waiting { until: now };
                }
            }
            Input::Located { nonce, located } => self.located(now, nonce, located, &mut effects),
            Input::Head(head) => self.moved(now, head, &mut effects),
            Input::TimePassed => self.time_passed(now, &mut effects),
        }
        effects
    }

    fn entry(&mut self, nonce: u64) -> Option<&mut Entry> {
        self.leading.as_mut()?.entries.get_mut(&nonce)
    }

    /// The entry ends: its record is final. An invalid one never lived, so its nonce is free again.
    fn end(&mut self, nonce: u64, hash: Hash, status: TransactionStatus, out: &mut Vec<Effect>) {
        let Some(leading) = self.leading.as_mut() else {
            return;
        };
        if let Some(entry) = leading.remove(nonce) {
            if status.state() != State::Invalid {
                leading.consumed = leading.consumed.max(nonce + 1);
            }
            let note = Note { end: Some(Box::new(entry.end(hash, &status))), ..Note::default() };
            out.push(Effect::Record { nonce, hash, status, note });
        }
    }

    fn recover(
        &mut self,
        now: Tick,
        rows: Vec<OpenTransaction>,
        consumed: u64,
        head: Head,
        out: &mut Vec<Effect>,
    ) {
        let consumed = consumed.max(head.finalized_nonce);
        let (entries, requests, gaps) = Default::default();
        let mut leading = Leading { head, consumed, entries, requests, gaps };
        for row in rows {
            let nonce = row.nonce;
            let mut entry = Entry::recovered(row, now);
            entry.examine(nonce, &head, out);
            leading.insert(nonce, entry);
        }
        self.leading = Some(leading);
    }

    /// Gives a new request its nonce: the one it was signed for, else the first gap, else the next
    /// above all that is known.
    fn requested(&mut self, request: Request, out: &mut Vec<Effect>) {
        let tip = request.tip;
        match self.give_nonce(&request.id, request.nonce) {
            Ok((leading, nonce)) => {
                leading.gaps.remove(&nonce);
                leading.insert(nonce, Entry::requested(request));
                out.push(Effect::Build { nonce, attempt: 1, tip, noop: None });
            }
            Err(error) => out.push(Effect::Refuse { request: request.id, error }),
        }
    }

    fn give_nonce(
        &mut self,
        request: &str,
        exact: Option<u64>,
    ) -> Result<(&mut Leading, u64), NonceError> {
        let leading = self.leading.as_mut().ok_or(NonceError::NotLeading)?;
        if let Some(&nonce) = leading.requests.get(request) {
            return Err(NonceError::Given(nonce));
        }
        if leading.entries.len() >= self.config.max_open {
            return Err(NonceError::TooManyOpen(self.config.max_open));
        }
        let nonce = match exact {
            Some(nonce) => leading.check_exact(nonce)?,
            None => leading.next_nonce(),
        };
        Ok((leading, nonce))
    }

    fn build_failed(&mut self, now: Tick, nonce: u64, out: &mut Vec<Effect>) {
        let Some(leading) = self.leading.as_mut() else {
            return;
        };
        if let Some(entry) = leading.entries.get_mut(&nonce) {
            if entry.attempts.is_empty() {
                // Never stored, never sent.
                leading.remove(nonce);
                out.push(Effect::Free { nonce });
            } else {
                entry.wait(now, &self.config);
            }
        }
    }

    fn submitted(
        &mut self,
        now: Tick,
        nonce: u64,
        hash: Hash,
        outcome: Outcome,
        out: &mut Vec<Effect>,
    ) {
        let config = self.config.clone();
        let Some(entry) = self.entry(nonce) else {
            return;
        };
        if entry.current() != Some(hash) || entry.phase != Phase::Submitting {
            return;
        }
        match outcome {
            Outcome::Pooled => {
                entry.may_live = true;
                entry.tries = 0;
                entry.phase = Phase::Watching;
            }
            // Known, but this connection has no watch on it: heads and ticks will look.
            Outcome::AlreadyKnown => {
                entry.may_live = true;
                entry.wait(now, &config);
            }
            Outcome::Unreachable(_) => {
                entry.may_live = true;
                entry.wait(now, &config);
            }
            Outcome::Busy(_) => entry.wait(now, &config),
            Outcome::Outdated => entry.locate(nonce, out),
            Outcome::Underpriced => {
                // Something else with this nonce sits in the pool.
                entry.may_live = true;
                if !entry.replace(nonce, &config, out) {
                    entry.wait(now, &config);
                }
            }
            Outcome::Expired => {
                if !entry.refresh(nonce, out) {
                    self.refused(now, nonce, "expired".to_owned(), out);
                }
            }
            Outcome::Refused(reason) => self.refused(now, nonce, reason, out),
        }
    }

    /// A node refused the bytes on their merits.
    fn refused(&mut self, now: Tick, nonce: u64, reason: String, out: &mut Vec<Effect>) {
        let config = self.config.clone();
        let Some(entry) = self.entry(nonce) else {
            return;
        };
        let Some(hash) = entry.current() else { return };
        entry.refusals += 1;
        let status = TransactionStatus::Invalid(Some(reason));
        if entry.noop.is_some() || (entry.resignable && entry.refusals < config.max_refusals) {
            entry.record(nonce, hash, status, now, out);
            entry.stale = true;
            entry.wait(now, &config);
        } else if entry.may_live {
            // Some node may still hold an earlier form: only a no-op settles the nonce.
            entry.record(nonce, hash, status, now, out);
            entry.noop = Some(Order::Drop);
            entry.rebuild(nonce, entry.bumped(&config), out);
        } else {
            self.end(nonce, hash, status, out);
        }
    }

    fn reported(
        &mut self,
        now: Tick,
        nonce: u64,
        hash: Hash,
        status: TransactionStatus,
        out: &mut Vec<Effect>,
    ) {
        let config = self.config.clone();
        let Some(entry) = self.entry(nonce) else {
            return;
        };
        if !entry.knows(hash) {
            return;
        }
        if let TransactionStatus::Finalized(_) = status {
            // An older attempt that finalised wins over the current one.
            return self.end(nonce, hash, status, out);
        }
        if entry.current() != Some(hash) {
            return;
        }
        entry.may_live = true;
        // A build under way keeps its phase: it ends in a submission, and that has an answer.
        let busy = matches!(entry.phase, Phase::Building | Phase::Submitting);
        match &status {
            TransactionStatus::Future
            | TransactionStatus::Ready
            | TransactionStatus::Broadcast(_)
            | TransactionStatus::InBlock(_)
            | TransactionStatus::Retracted(_) => {}
            TransactionStatus::FinalityTimeout(_) | TransactionStatus::Dropped => {
                if !busy {
                    entry.wait(now, &config);
                }
            }
            TransactionStatus::Usurped(by) => {
                if by.is_some_and(|by| entry.knows(by)) {
                    return;
                }
                // Perhaps the owner cancelled it by hand: do not outbid, wait for finality.
                if !busy {
                    entry.phase = Phase::Waiting { until: now + config.stuck_after };
                }
            }
            TransactionStatus::Invalid(_) => {
                entry.refusals += 1;
                entry.stale = true;
                if entry.refusals >= config.max_refusals.saturating_mul(2) {
                    entry.noop = Some(Order::Drop);
                }
                if !busy {
                    entry.wait(now, &config);
                }
            }
            TransactionStatus::Finalized(_) => unreachable!("answered above"),
        }
        entry.record(nonce, hash, status, now, out);
    }

    fn located(&mut self, now: Tick, nonce: u64, located: Located, out: &mut Vec<Effect>) {
        let config = self.config.clone();
        let Some(entry) = self.entry(nonce) else {
            return;
        };
        if entry.phase != Phase::Locating {
            return;
        }
        match located {
            Located::InBlock { hash, block, finalized } if entry.knows(hash) => {
                entry.missing = 0;
                if finalized {
                    return self.end(nonce, hash, TransactionStatus::Finalized(block), out);
                }
                if entry.current() == Some(hash) {
                    entry.record(nonce, hash, TransactionStatus::InBlock(block), now, out);
                }
                entry.tries = 0;
                entry.wait(now, &config);
            }
            // A foreign transaction holds the nonce. One answer may come from a node that lags
            // behind: three in a row are needed.
            Located::InBlock { hash, finalized: true, .. } => {
                self.missing(now, nonce, Some(hash), out);
            }
            Located::Consumed => self.missing(now, nonce, None, out),
            Located::InBlock { finalized: false, .. } | Located::Unknown => {
                entry.wait(now, &config);
            }
            Located::Free => {
                entry.missing = 0;
                if let Some(block) = entry.status.block()
                    && entry.status.state() == State::InBlock
                    && let Some(hash) = entry.current()
                {
                    entry.record(nonce, hash, TransactionStatus::Retracted(block), now, out);
                }
                entry.submit(nonce, out);
            }
        }
    }

    fn missing(&mut self, now: Tick, nonce: u64, by: Option<Hash>, out: &mut Vec<Effect>) {
        let config = self.config.clone();
        let Some(entry) = self.entry(nonce) else {
            return;
        };
        entry.missing += 1;
        if entry.missing < 3 {
            entry.wait(now, &config);
        } else if let Some(hash) = entry.current() {
            self.end(nonce, hash, TransactionStatus::Usurped(by), out);
        }
    }

    fn moved(&mut self, now: Tick, head: Head, out: &mut Vec<Effect>) {
        let config = self.config.clone();
        let Some(leading) = self.leading.as_mut() else {
            return;
        };
        leading.consumed = leading.consumed.max(head.finalized_nonce);
        leading.head = head;
        for (&nonce, entry) in &mut leading.entries {
            entry.on_head(nonce, &leading.head, now, &config, out);
        }
        leading.age_gaps(now);
    }

    fn time_passed(&mut self, now: Tick, out: &mut Vec<Effect>) {
        let config = self.config.clone();
        let Some(leading) = self.leading.as_mut() else {
            return;
        };
        // Only the lowest unmined nonce can be stuck on its own merits; the rest wait for it.
        let first = leading.head.best_nonce.max(leading.consumed);
        for (&nonce, entry) in &mut leading.entries {
            entry.on_time(nonce, nonce == first, &leading.head, now, &config, out);
        }
        leading.age_gaps(now);
        for nonce in leading.gaps_older_than(now, config.gap_after) {
            leading.fill(nonce, out);
        }
    }
}

#[cfg(test)]
mod tests;
