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
//! * **No no-op without a permit.** Bytes that a node may have are replaced by a no-op only when the
//!   request was dropped, or its deadline has passed. An answer that is not understood is looked up;
//!   it is never a refusal.
//! * **Nothing is forgotten.** Every entry is in a phase that something ends: a store answer, a
//!   node's answer, a watch, a location or a time.
//! * **A follower is silent.** Without leadership there are no entries, hence no effects.
//!
//! # An ended status is not an ended duty
//!
//! A pool that says `dropped`, `invalid` or `finality_timeout` ends its *watch*; the transaction may
//! still be mined. The duty ends only when the nonce is consumed in a finalised block (by us:
//! finalized; by another: usurped), or when no node can have the transaction (invalid): it was
//! refused on its merits, dropped, or its deadline passed. Until then the row stays open (`ended_at`
//! is null) and the next leader takes it over. An end without a block of its own rests on what nodes
//! said: it is provisional, and `provisional` compares it with the chain once that is final there.
//!
//! # What keeps an account waiting
//!
//! A lowest nonce whose answer is *uncertain*, an account that cannot pay (*unfunded*), and a base fee
//! above the cap hold up all that is behind it. None of them ends a request; [`Engine::holds`] tells
//! them, and the row carries the node's last answer.
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
mod holds;
mod message;
mod nonces;
mod orders;
mod pace;
mod provisional;

use std::collections::{BTreeMap, HashMap};

use tenure_core::clock::Tick;

use crate::chain::{Head, Located, Outcome, Receipt, Report, Shortfall};
use crate::status::{Hash, Note, State, TransactionStatus};
pub use config::EngineConfig;
use entry::{Entry, Hold, Phase};
pub use holds::Holds;
use holds::LEAPS;
pub use message::{Attempt, Effect, Input, OpenTransaction, Permit, Provisional, Request};
pub use nonces::NonceError;
use pace::Pace;
use provisional::Doubts;
pub(crate) use provisional::MOST as MOST_PROVISIONAL;

/// The state machine. Call order: [`Input::Recovered`] begins the leadership, [`Input::Demoted`]
/// ends it; in between, anything in any order.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    leading: Option<Leading>,
}

/// How many times the tip that was asked for a first attempt tips, at most, because recent blocks were
/// tipped more. A nonce that is stuck all the same is replaced, and that has a bound of its own.
const MAX_GOING: u128 = 10;

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
    /// Ends that no block has proved yet.
    doubts: Doubts,
    /// How often the same bytes are sent again, and the same place looked at.
    sends: Pace,
    looks: Pace,
    /// The lowest nonce in no block, and since when it is.
    lowest: Option<(u64, Tick)>,
    /// How many heads in a row were too far ahead to be believed.
    leaps: u8,
    /// There is a gap that is too wide to be filled without an order.
    wide: bool,
    /// The nonce that the account could not pay for when others were last told to wait for it.
    paused: Option<u64>,
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

    // Mutators; see also `orders`.

    /// Takes one input; returns what to do.
    pub fn handle(&mut self, now: Tick, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Recovered { rows, consumed, provisional, head } => {
                self.recover(now, rows, consumed, head, &mut effects);
                if let Some(leading) = self.leading.as_mut() {
                    provisional.into_iter().for_each(|one| leading.doubts.add(one));
                    leading.ask_doubts(now, &mut effects);
                }
            }
            Input::Demoted => self.leading = None,
            Input::Requested(request) => self.requested(request, &mut effects),
            Input::Built { nonce, attempt } => {
                if let Some(leading) = self.leading.as_mut()
                    && let Some(entry) = leading.entries.get_mut(&nonce)
                {
                    entry.built(nonce, attempt, &leading.head, now, &mut effects);
                }
                self.give_up_as_ordered(nonce, &mut effects);
            }
            Input::BuildFailed { nonce, reason, too_dear } => {
                self.build_failed(now, nonce, &reason, too_dear, &mut effects);
            }
            Input::Submitted { nonce, hash, outcome } => {
                self.submitted(now, nonce, hash, outcome, &mut effects);
            }
            Input::Status { nonce, hash, report } => {
                self.reported(now, nonce, hash, report, &mut effects);
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
            Input::Reexamined { nonce, request, located } => {
                if let Some(leading) = self.leading.as_mut() {
                    leading.doubts.answered(nonce, request, located, now, &mut effects);
                }
            }
            Input::Head(head) => self.moved(now, head, &mut effects),
            Input::TimePassed => self.time_passed(now, &mut effects),
        }
        effects
    }

    fn entry(&mut self, nonce: u64) -> Option<&mut Entry> {
        self.leading.as_mut()?.entries.get_mut(&nonce)
    }

    /// The entry ends: its record is final. An invalid one never lived, so its nonce is free again.
    fn end(
        &mut self,
        nonce: u64,
        hash: Hash,
        status: TransactionStatus,
        receipt: Option<Receipt>,
        out: &mut Vec<Effect>,
    ) {
        let Some(leading) = self.leading.as_mut() else {
            return;
        };
        if let Some(entry) = leading.remove(nonce) {
            if status.state() != State::Invalid {
                leading.consumed = leading.consumed.max(nonce + 1);
            }
            let mut end = entry.end(hash, &status, receipt);
            if let TransactionStatus::Usurped(Some(by)) = status
                && let Some(owner) = leading.doubts.owner(nonce, by)
            {
                let why = format!("its nonce was used by request {owner}, which had ended before");
                end.reason = Some(why);
            }
            // A block is the only proof: what ends without one of its own is looked at once more.
            match (status.state(), entry.request) {
                (State::Finalized, _) => leading.doubts.settle(nonce),
                // What fills a gap has no caller, and its first form is a no-op.
                (_, Some(request)) if entry.attempts.first().is_some_and(|first| !first.noop) => {
                    let (attempts, end) = (entry.attempts, end.clone());
                    leading.doubts.add(Provisional { request, nonce, attempts, end });
                }
                (_, Some(_) | None) => {}
            }
            let note = Note { end: Some(Box::new(end)), ..Note::default() };
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
        let (entries, requests, gaps, doubts) = Default::default();
        let mut leading = Leading {
            head,
            consumed,
            entries,
            requests,
            gaps,
            doubts,
            sends: Pace::new(now),
            looks: Pace::new(now),
            lowest: None,
            leaps: 0,
            wide: false,
            paused: None,
        };
        for row in rows {
            let nonce = row.nonce;
            let mut entry = Entry::recovered(row, now);
            entry.step_to(nonce, &head);
            // What is overdue is not sent once more: it is given up when time is next looked at.
            if !entry.is_overdue(nonce, &head, now) {
                entry.examine(nonce, &head, now, &self.config, out);
            }
            leading.insert(nonce, entry);
        }
        self.leading = Some(leading);
    }

    /// Gives a new request its nonce: the one it was signed for, else the first gap, else the next
    /// above all that is known.
    fn requested(&mut self, request: Request, out: &mut Vec<Effect>) {
        let max_tip = self.config.max_tip;
        match self.give_nonce(&request.id, request.nonce) {
            Ok((leading, nonce)) => {
                // What recent blocks were tipped is what the next one takes; bytes that are signed
                // already tip what they tip. On a quiet chain these blocks are a stranger's, or our own:
                // a tip that was asked for is not multiplied by more than ten on their word.
                let going = if request.resignable { leading.head.tip } else { 0 };
                let most = match request.tip {
                    0 => max_tip,
                    asked => asked.saturating_mul(MAX_GOING).min(max_tip),
                };
                let tip = request.tip.max(going.min(most));
                let request = Request { tip, ..request };
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

    fn build_failed(
        &mut self,
        now: Tick,
        nonce: u64,
        reason: &str,
        too_dear: bool,
        out: &mut Vec<Effect>,
    ) {
        let Some(leading) = self.leading.as_mut() else {
            return;
        };
        if let Some(entry) = leading.entries.get_mut(&nonce) {
            if entry.attempts.is_empty() {
                // Never stored, never sent.
                leading.remove(nonce);
                out.push(Effect::Free { nonce });
            } else {
                // The row is open: its readers learn why it waits.
                entry.answered(nonce, Some(reason), now, out);
                entry.too_dear = too_dear;
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
        let head = self.leading.as_ref().map_or_else(Head::default, |leading| leading.head);
        let Some(entry) = self.entry(nonce) else {
            return;
        };
        if entry.current() != Some(hash) || entry.phase != Phase::Submitting {
            return;
        }
        entry.hold = None;
        let paid = entry.unpaid && outcome == Outcome::Pooled;
        let taken = matches!(outcome, Outcome::Pooled | Outcome::AlreadyKnown);
        entry.too_dear = false;
        if let Some(answer) = outcome.answer() {
            entry.answered(nonce, Some(answer), now, out);
        }
        match outcome {
            Outcome::Pooled => {
                entry.pooled(now);
                entry.answered(nonce, None, now, out);
            }
            // Known, but this connection has no watch on it: heads and ticks will look.
            Outcome::AlreadyKnown => {
                entry.known(nonce, now, out);
                entry.wait(now, &config);
            }
            Outcome::Uncertain(_) => {
                entry.may_live = true;
                entry.hold = Some(Hold::Uncertain);
                entry.wait(now, &config);
            }
            Outcome::Busy(_) => {
                entry.may_live = true;
                entry.wait(now, &config);
            }
            Outcome::NotSent(_) => entry.wait(now, &config),
            // For certain not taken. What is behind it waits with it.
            Outcome::Unfunded(_) => {
                entry.hold = Some(Hold::Unfunded);
                entry.unpaid = true;
                entry.wait(now, &config);
            }
            Outcome::Outdated => {
                // Perhaps by these very bytes.
                entry.may_live = true;
                entry.outdated = true;
                entry.locate(nonce, out);
            }
            Outcome::Underpriced(Shortfall::Outbid, _) => {
                // Something else with this nonce sits in the pool.
                entry.may_live = true;
                if !entry.replace(nonce, &head, now, &config, out) {
                    entry.wait(now, &config);
                }
            }
            Outcome::Underpriced(Shortfall::BelowMinimum { needed }, _) => {
                entry.raise(needed, &config);
                entry.wait(now, &config);
            }
            // Signed anew it follows the base fee, up to the cap.
            Outcome::Underpriced(Shortfall::BelowBaseFee, _) => {
                entry.stale = true;
                entry.wait(now, &config);
            }
            // What was given up meanwhile is not signed anew.
            Outcome::Expired if entry.owes_noop() => entry.wait(now, &config),
            Outcome::Expired => {
                if !entry.refresh(nonce, out) {
                    self.refused(now, nonce, "expired".to_owned(), out);
                }
            }
            // Some node had these bytes, so nothing ends; other bytes of the same content may do.
            Outcome::Unwanted(_) => {
                entry.may_live = true;
                entry.stale = entry.resignable || entry.noop.is_some();
                entry.wait(now, &config);
            }
            Outcome::Refused(reason) => self.refused(now, nonce, reason, out),
        }
        if let Some(leading) = self.leading.as_mut().filter(|_| taken) {
            leading.sends.answered();
            if paid {
                leading.resume(now, true);
            }
        }
        self.give_up_as_ordered(nonce, out);
    }

    /// A node refused the bytes on their merits.
    fn refused(&mut self, now: Tick, nonce: u64, reason: String, out: &mut Vec<Effect>) {
        let config = self.config.clone();
        let Some(entry) = self.entry(nonce) else {
            return;
        };
        let Some(hash) = entry.current() else { return };
        entry.refusals = entry.refusals.saturating_add(1);
        let signable = entry.resignable || entry.noop.is_some();
        if entry.may_live {
            // Some node may still hold a form of it, and this node's word is not the chain's: only
            // an order, or a block, settles the nonce.
            entry.hold = Some(Hold::Uncertain);
            entry.stale = signable;
            entry.wait(now, &config);
        } else if entry.noop.is_some() || (signable && entry.refusals < config.max_refusals) {
            entry.stale = true;
            entry.wait(now, &config);
        } else {
            self.end(nonce, hash, TransactionStatus::Invalid(Some(reason)), None, out);
        }
    }

    fn reported(
        &mut self,
        now: Tick,
        nonce: u64,
        hash: Hash,
        report: Report,
        out: &mut Vec<Effect>,
    ) {
        let config = self.config.clone();
        let Report { status, receipt } = report;
        let Some(entry) = self.entry(nonce) else {
            return;
        };
        if !entry.knows(hash) {
            return;
        }
        if let TransactionStatus::Finalized(_) = status {
            // An older attempt that finalised wins over the current one.
            return self.end(nonce, hash, status, receipt, out);
        }
        let current = entry.current() == Some(hash);
        let about = current || entry.form() == Some(hash);
        // A build under way keeps its phase: it ends in a submission, and that has an answer.
        let busy = matches!(entry.phase, Phase::Building | Phase::Submitting);
        match &status {
            // Whichever form is in a block is told; a build under way is of no use then, and its
            // bytes find the nonce used.
            TransactionStatus::InBlock(_) => {
                entry.may_live = true;
                return entry.record(nonce, hash, status, now, out);
            }
            TransactionStatus::Retracted(_) if about => {
                entry.may_live = true;
                entry.record(nonce, hash, status, now, out);
                if !current && !busy {
                    entry.wait(now, &config);
                }
                return;
            }
            TransactionStatus::Future
            | TransactionStatus::Ready
            | TransactionStatus::Broadcast(_)
            | TransactionStatus::Retracted(_)
            | TransactionStatus::FinalityTimeout(_)
            | TransactionStatus::Dropped
            | TransactionStatus::Usurped(_)
            | TransactionStatus::Invalid(_)
            | TransactionStatus::Finalized(_) => {}
        }
        if !current {
            return;
        }
        entry.may_live = true;
        match &status {
            TransactionStatus::Future
            | TransactionStatus::Ready
            | TransactionStatus::Broadcast(_) => {}
            TransactionStatus::FinalityTimeout(_) | TransactionStatus::Dropped => {
                if !busy {
                    entry.wait(now, &config);
                }
            }
            // The nonce is used: by which, the chain says. Until it does, nothing is claimed.
            TransactionStatus::Usurped(None) => {
                if !busy {
                    entry.locate(nonce, out);
                }
                return;
            }
            TransactionStatus::Usurped(Some(by)) => {
                if entry.knows(*by) {
                    return;
                }
                // Perhaps the owner cancelled it by hand: do not outbid, wait for finality.
                if !busy {
                    entry.rest(now, config.stuck_after);
                }
            }
            TransactionStatus::Invalid(_) => {
                entry.stale = true;
                if !busy {
                    entry.wait(now, &config);
                }
            }
            TransactionStatus::InBlock(_)
            | TransactionStatus::Retracted(_)
            | TransactionStatus::Finalized(_) => unreachable!("answered above"),
        }
        entry.record(nonce, hash, status, now, out);
    }

    fn located(&mut self, now: Tick, nonce: u64, located: Located, out: &mut Vec<Effect>) {
        let config = self.config.clone();
        let head = self.leading.as_ref().map_or_else(Head::default, |leading| leading.head);
        let Some(entry) = self.entry(nonce) else {
            return;
        };
        if entry.phase != Phase::Locating {
            return;
        }
        let outdated = std::mem::take(&mut entry.outdated);
        let found = !matches!(located, Located::Missing | Located::Unknown);
        if let Some(leading) = self.leading.as_mut().filter(|_| found) {
            leading.looks.answered();
        }
        let Some(entry) = self.entry(nonce) else { return };
        match located {
            Located::InBlock { hash, block, finalized, receipt } if entry.knows(hash) => {
                entry.missing = None;
                if finalized {
                    let status = TransactionStatus::Finalized(block);
                    return self.end(nonce, hash, status, receipt, out);
                }
                entry.record(nonce, hash, TransactionStatus::InBlock(block), now, out);
                // Heads say when it is final, or no longer there; the time is for lost heads.
                entry.rest(now, config.stuck_after);
            }
            Located::InBlock { hash, finalized: true, .. } => {
                self.usurped(now, nonce, Some(hash), out);
            }
            Located::Usurped { by } => self.usurped(now, nonce, by, out),
            Located::Missing => {
                // Nothing found is no proof that another transaction has the nonce: it may be ours,
                // in a part of the past that the node does not show. Only an order ends it so.
                let gone = entry.is_gone(nonce, &head, now, &config);
                let dropped = entry.noop == Some(Permit::Drop);
                match entry.current().filter(|_| gone && dropped) {
                    Some(hash) => {
                        self.end(nonce, hash, TransactionStatus::Usurped(None), None, out);
                    }
                    None => {
                        if gone {
                            entry.hold = Some(Hold::Uncertain);
                            let answer =
                                "its nonce is final, and the node shows no transaction there";
                            entry.answered(nonce, Some(answer), now, out);
                        }
                        entry.wait(now, &config);
                    }
                }
            }
            Located::InBlock { finalized: false, .. } | Located::Unknown => {
                entry.wait(now, &config);
            }
            Located::Free => {
                entry.missing = None;
                if let Some(block) = entry.status.block()
                    && entry.status.state() == State::InBlock
                    && let Some(hash) = entry.current()
                {
                    let form = entry.form().unwrap_or(hash);
                    entry.record(nonce, form, TransactionStatus::Retracted(block), now, out);
                }
                // A nonce that is used and free in turn is no certain answer, and no reason to pay more.
                if outdated {
                    entry.hold = Some(Hold::Uncertain);
                    let answer = "the node calls the nonce used, and then free";
                    entry.answered(nonce, Some(answer), now, out);
                }
                // Not at once: a node that calls a free nonce used would be asked without a pause.
                entry.wait(now, &config);
            }
        }
    }

    /// Another transaction has the nonce in a final block. One answer may come from a node of
    /// another view: three in a row are needed.
    fn usurped(&mut self, now: Tick, nonce: u64, by: Option<Hash>, out: &mut Vec<Effect>) {
        let config = self.config.clone();
        let Some(entry) = self.entry(nonce) else {
            return;
        };
        match entry.current() {
            Some(hash) if entry.is_usurped() => {
                self.end(nonce, hash, TransactionStatus::Usurped(by), None, out);
            }
            Some(_) | None => entry.wait(now, &config),
        }
    }

    fn moved(&mut self, now: Tick, head: Head, out: &mut Vec<Effect>) {
        let config = self.config.clone();
        let Some(leading) = self.leading.as_mut() else {
            return;
        };
        if leading.is_leap(&head) {
            leading.leaps += 1;
            if leading.leaps < LEAPS {
                return;
            }
        }
        leading.leaps = 0;
        leading.consumed = leading.consumed.max(head.finalized_nonce);
        leading.head = head;
        for (&nonce, entry) in &mut leading.entries {
            entry.on_head(nonce, &leading.head, now, &config, out);
        }
        leading.age_lowest(now);
        leading.age_gaps(now);
        leading.ask_doubts(now, out);
    }

    fn time_passed(&mut self, now: Tick, out: &mut Vec<Effect>) {
        let config = self.config.clone();
        let Some(leading) = self.leading.as_mut() else {
            return;
        };
        // Only the lowest unmined nonce can be stuck on its own merits; the rest wait for it.
        let first = leading.head.best_nonce.max(leading.consumed);
        let unfunded = leading.entries.iter().find(|(_, e)| e.hold == Some(Hold::Unfunded));
        let unfunded = unfunded.map(|(nonce, _)| *nonce);
        // Whatever the node said last of the one that held them up: nothing waits for that any more.
        if leading.paused.is_some() && leading.paused != unfunded {
            leading.resume(now, false);
        }
        leading.age_lowest(now);
        let lowest = leading.lowest.map(|(nonce, _)| nonce);
        let (mut overdue, mut repeated) = (Vec::new(), Vec::new());
        for (&nonce, entry) in &mut leading.entries {
            if entry.is_overdue(nonce, &leading.head, now) && entry.phase != Phase::Building {
                overdue.push(nonce);
                continue;
            }
            // Behind a nonce that the account cannot pay for, nothing is asked.
            if unfunded.is_some_and(|lowest| lowest < nonce)
                && let Phase::Waiting { until } = &mut entry.phase
                && *until <= now
            {
                *until = now + config.retry_max;
                leading.paused = unfunded;
                continue;
            }
            // The lowest in no block is never held back: all others wait for it.
            if let Some((until, look)) = entry.repeats(nonce, &leading.head, now)
                && Some(nonce) != lowest
            {
                repeated.push((look, until, nonce));
                continue;
            }
            entry.on_time(nonce, nonce == first, &leading.head, now, &config, out);
        }
        leading.repeat(repeated, now, &config, out);
        leading.age_gaps(now);
        let old = leading.gaps_older_than(now, config.gap_after);
        leading.wide = !old.is_empty() && leading.is_wide();
        for nonce in if leading.wide { Vec::new() } else { old } {
            leading.fill(nonce, &config, out);
        }
        for &nonce in &overdue {
            self.give_up(nonce, Permit::Deadline, out);
        }
        // After all of them: no no-op before one that is given up as well.
        self.close(&overdue, out);
    }
}

#[cfg(test)]
mod tests;
