//! Carries out what the engine asks for: sign, store, submit, look up, record.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::timeout;

use super::content::{Content, Ending};
use super::pending::Stage;
use super::{Answer, Driver};
use crate::account::{SignError, Signed, Unsigned};
use crate::chain::{Located, Outcome, Sought, Submission};
use crate::engine::{Attempt, Effect, Input, Permit};
use crate::metrics;
use crate::service::{HandleState, Payload, SendError};
use crate::status::{EndKind, Hash, Note, State, TransactionStatus};
use crate::store::{Correction, NewTransaction, Replacement, Settlement, StatusChange};
use crate::writer::{BatchResult, Job, Task, Write, Written};

/// After this many clashes the caller gets an error instead of another attempt.
pub(super) const MAX_CLASHES: u8 = 3;

impl Driver {
    pub(super) fn carry_out(&mut self, effects: Vec<Effect>) {
        // Asked together: a thousand rows are a few requests to the node.
        let (mut sought, mut doubted) = (Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                Effect::Build { nonce, attempt, tip, noop } => {
                    if attempt == 1 {
                        self.prepare(nonce);
                    } else {
                        metrics::count(metrics::REPLACEMENTS);
                    }
                    self.build(nonce, tip, noop);
                }
                Effect::Refuse { request, error } => self.refuse_nonce(&request, error),
                Effect::Free { nonce } => drop(self.contents.remove(&nonce)),
                Effect::Submit { nonce, hash } => self.submit(nonce, hash),
                Effect::Locate { nonce, hashes: attempts } => {
                    let since = self.contents.get(&nonce).map_or(0, |content| content.block);
                    let block = self.engine.status(nonce).and_then(TransactionStatus::block);
                    sought.push(Sought { nonce, attempts, since, block });
                }
                Effect::Record { nonce, hash, status, note } => {
                    self.record(nonce, hash, status, note);
                }
                Effect::Reexamine { nonce, request, hashes: attempts } => {
                    let since = self.provisional.get(&nonce).copied().unwrap_or(0);
                    doubted.push((request, Sought { nonce, attempts, since, block: None }));
                }
                Effect::Settle { nonce, request } => self.settle(nonce, request, None),
                Effect::Correct { nonce, request, hash, status, note } => {
                    self.correct(nonce, request, hash, status, note);
                }
            }
        }
        if !sought.is_empty() {
            self.locate(sought);
        }
        if !doubted.is_empty() {
            self.reexamine(doubted);
        }
    }

    /// The first attempt of a nonce: for a pending request, or to fill a gap.
    fn prepare(&mut self, nonce: u64) {
        let block = self.head.best.number;
        let content = match self.engine.request_at(nonce) {
            Some(id) => {
                let pending = self.pending.get(id);
                let call = match pending.map(|pending| &pending.request.payload) {
                    Some(Payload::Call(call)) => Some(call.clone()),
                    Some(Payload::Signed(_)) | None => None,
                };
                let deadline = pending.and_then(|pending| pending.deadline);
                Content { deadline, ..Content::new(id.to_owned(), call, block) }
            }
            None => {
                tracing::warn!(nonce, "filling a gap with a no-op");
                Content::new(format!("gap:{nonce}:{}", uuid::Uuid::new_v4()), None, block)
            }
        };
        self.contents.insert(nonce, content);
    }

    /// Signs, unless the caller did.
    fn build(&mut self, nonce: u64, tip: u128, noop: Option<Permit>) {
        let Some(content) = self.contents.get(&nonce) else { return };
        let pending = self.pending.get_mut(&content.request_id);
        if let Some(signed) = pending.and_then(|pending| pending.signed.take()) {
            return self.signed(nonce, tip, noop, Ok(signed));
        }
        let call = content.call.clone().filter(|_| noop.is_none());
        let replaces = Some(content.raw.clone()).filter(|raw| !raw.is_empty());
        let (signer, head, within) = (Arc::clone(&self.signer), self.head, self.options.sign);
        self.spawn(async move |answers, generation| {
            let unsigned = Unsigned {
                nonce,
                tip,
                call: call.as_deref(),
                head: &head,
                replaces: replaces.as_deref(),
            };
            let signing = AssertUnwindSafe(signer.sign(unsigned)).catch_unwind();
            let signed = match timeout(within, signing).await {
                Ok(Ok(signed)) => signed,
                // Not for the net of all tasks: no other request pays for a call that a signer cannot take.
                Ok(Err(_)) => {
                    let why = format!("{} panicked; its message is in the log", signer.name());
                    Err(SignError::Unavailable(why))
                }
                Err(_) => {
                    let name = signer.name();
                    let why =
                        format!("no signature within {within:?} from {name}; check that it works");
                    Err(SignError::Unavailable(why))
                }
            };
            let _ = answers.send((generation, Answer::Signed { nonce, tip, noop, signed }));
        });
    }

    pub(super) fn signed(
        &mut self,
        nonce: u64,
        tip: u128,
        noop: Option<Permit>,
        signed: Result<Signed, SignError>,
    ) {
        let Some(content) = self.contents.get_mut(&nonce) else { return };
        let signed = match signed {
            Ok(signed) => signed,
            Err(error) => {
                return self.not_stored(nonce, SendError::Sign(error));
            }
        };
        let mut attempts = self.engine.attempts(nonce).to_vec();
        // A signer at its cap tips less than it was asked to: what the bytes say counts, or the tip
        // would grow unseen. A first attempt offers no more than its whole bid.
        let tip = match attempts.is_empty() {
            true => signed.bid.map_or(tip, |bid| tip.min(bid)),
            false => {
                let read = || self.chain.inspect(&signed.raw).ok().and_then(|seen| seen.tip);
                signed.tip.or_else(read).unwrap_or(tip)
            }
        };
        let attempt = Attempt {
            hash: signed.hash,
            tip,
            noop: noop.is_some(),
            valid_until: signed.valid_until,
            permit: noop,
            bid: signed.bid,
        };
        content.storing = Some((attempt.clone(), signed.raw.clone()));
        if let Some(pending) = self.pending.get_mut(&content.request_id) {
            pending.stage = Stage::Storing;
        }
        let write = if attempts.is_empty() {
            let row = NewTransaction {
                nonce,
                attempt,
                call: content.call.clone(),
                raw: signed.raw,
                request_id: content.request_id.clone(),
                deadline: content.deadline.map(|at| at.saturating_since(self.clock.now())),
            };
            Write::New { row, block: content.block }
        } else {
            attempts.retain(|known| known.hash != attempt.hash);
            attempts.push(attempt);
            Write::Replace(Replacement { nonce, attempts, raw: signed.raw })
        };
        self.write(write);
    }

    fn write(&mut self, write: Write) {
        if let Some(writer) = &self.writer {
            let job = Job { generation: self.generation, epoch: self.epoch, write };
            // The writer ends only with this driver.
            let _ = writer.send(Task::Write(job));
        }
    }

    pub(super) fn written(&mut self, result: BatchResult) {
        if result.generation != self.generation {
            return;
        }
        let mut reread = None;
        for (nonce, written) in result.rows {
            match written {
                Written::Stored => self.stored(nonce),
                Written::Missing => {
                    if self.clashed(nonce) {
                        reread = Some("a nonce belongs to another row".to_owned());
                    }
                }
                Written::Refused(error) => self.not_stored(nonce, SendError::Store(error)),
                Written::Duplicate => self.duplicate(nonce),
                Written::Unknown(error) => reread = Some(error.to_string()),
                Written::Stale => return self.end("another leader has a newer epoch"),
            }
        }
        match result.statuses_failed {
            None | Some(Written::Stored | Written::Missing | Written::Duplicate) => {
                for form in result.statuses {
                    let Some(ending) = self.ending.remove(&form) else { continue };
                    let Ending { request_id, handle, untold } = ending;
                    self.dropped.remove(&request_id);
                    if let Some(state) = untold {
                        handle.send_replace(state);
                    }
                }
            }
            Some(Written::Stale) => return self.end("another leader has a newer epoch"),
            Some(Written::Refused(error) | Written::Unknown(error)) => {
                reread = Some(error.to_string());
            }
        }
        match reread {
            Some(why) => {
                tracing::warn!(why, "reading the table again: it decides what is stored");
                self.rereads = self.rereads.saturating_add(1);
                self.recover();
            }
            None => self.rereads = 0,
        }
    }

    fn stored(&mut self, nonce: u64) {
        let Some(content) = self.contents.get_mut(&nonce) else { return };
        let Some((attempt, raw)) = content.storing.take() else { return };
        (content.raw, content.unbuilt) = (raw, None);
        // As the row says: the new form has been nowhere yet.
        let (hash, status, noop) = (attempt.hash, TransactionStatus::Future, attempt.noop);
        content.handle.send_replace(HandleState { hash, status, noop, note: Note::default() });
        if let Some(pending) = self.pending.remove(&content.request_id) {
            metrics::count(metrics::ACCEPTED);
            pending.answer(Ok(content.handle(nonce)));
        }
        self.cancel_as_ordered(nonce);
        self.feed(Input::Built { nonce, attempt });
    }

    fn not_stored(&mut self, nonce: u64, error: SendError) {
        let too_dear = matches!(error, SendError::Sign(SignError::TooDear { .. }));
        let reason = error.to_string();
        if let Some(content) = self.contents.get_mut(&nonce) {
            content.storing = None;
            let id = content.request_id.clone();
            // Once for each wording, whatever it would cost this time: an accepted request is tried again
            // for as long as it takes.
            let wording = match &error {
                SendError::Sign(SignError::TooDear { cap, .. }) => {
                    format!("above the cap of {cap}")
                }
                _ => reason.clone(),
            };
            if content.unbuilt.as_ref() != Some(&wording) {
                if let SendError::Sign(error) = &error {
                    let event = "tx_not_signed";
                    tracing::warn!(event, nonce, request_id = id, %error, "not signed");
                } else if !self.engine.attempts(nonce).is_empty() {
                    let event = "tx_not_replaced";
                    tracing::warn!(event, nonce, request_id = id, %error, "a further form is not stored");
                }
                content.unbuilt = Some(wording);
            }
            // Only the first attempt of a nonce has callers that wait for it.
            self.refuse(&id, error);
        }
        self.feed(Input::BuildFailed { nonce, reason, too_dear });
    }

    /// The table has a live row of another creator at this nonce: the engine is wrong and the table
    /// has to be read again. A row of ours that ended meanwhile is no clash.
    fn clashed(&mut self, nonce: u64) -> bool {
        let first = self.engine.attempts(nonce).is_empty();
        let content = self.contents.get(&nonce);
        let pending = content.and_then(|content| self.pending.get_mut(&content.request_id));
        let again = pending.is_some_and(|pending| {
            pending.clashes += 1;
            pending.clashes < MAX_CLASHES
        });
        if !(first && again) {
            self.not_stored(nonce, SendError::Clash(nonce));
        }
        first
    }

    /// A row with this request id is there already, perhaps written by this node before it
    /// restarted: look it up.
    fn duplicate(&mut self, nonce: u64) {
        let Some(content) = self.contents.get(&nonce) else { return };
        let id = content.request_id.clone();
        let reason = "its id has a row already".to_owned();
        self.feed(Input::BuildFailed { nonce, reason, too_dear: false });
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.may_be_stored = true;
            self.admit(&id);
        }
    }

    fn submit(&mut self, nonce: u64, hash: Hash) {
        let Some(content) = self.contents.get(&nonce) else { return };
        let raw = content.raw.clone();
        let (chain, gate) = (Arc::clone(&self.chain), self.election.gate().clone());
        let (account, permits) = (self.signer.account().clone(), Arc::clone(&self.permits));
        let (epoch, act) = (self.epoch, self.options.act);
        self.spawn(async move |answers, generation| {
            let Ok(permit) = permits.acquire_owned().await else { return };
            // The last look before the bytes leave.
            let act = match gate.begin_act(act) {
                Ok(act) if act.epoch() == epoch => act,
                Ok(_) => return,
                Err(refused) => {
                    let outcome = Outcome::NotSent(refused.to_string());
                    let _ = answers.send((generation, Answer::Submitted { nonce, hash, outcome }));
                    return;
                }
            };
            let Submission { outcome, watch } = chain.submit(&account, nonce, raw).await;
            if let Err(uncertain) = act.finish() {
                // Harmless: the same bytes are in the table, and a nonce is used once.
                metrics::count(metrics::UNCERTAIN);
                tracing::debug!(nonce, %uncertain, "the answer came after the lease");
            }
            drop(permit);
            metrics::count_by(metrics::SUBMISSIONS, "outcome", outcome_name(&outcome));
            let _ = answers.send((generation, Answer::Submitted { nonce, hash, outcome }));
            let Some(mut watch) = watch else { return };
            while let Some(report) = watch.next().await {
                let answer = Answer::Status { nonce, hash, report };
                if answers.send((generation, answer)).is_err() {
                    return;
                }
            }
            let _ = answers.send((generation, Answer::WatchClosed { nonce, hash }));
        });
    }

    fn locate(&mut self, sought: Vec<Sought>) {
        let (chain, account) = (Arc::clone(&self.chain), self.signer.account().clone());
        let permits = Arc::clone(&self.permits);
        self.spawn(async move |answers, generation| {
            let Ok(_permit) = permits.acquire_owned().await else { return };
            let located = chain.locate(&account, &sought).await;
            // A chain that answers less than it was asked has not answered the rest.
            let located = located.into_iter().chain(std::iter::repeat(Located::Unknown));
            let all = sought.iter().map(|one| one.nonce).zip(located).collect();
            let _ = answers.send((generation, Answer::Located(all)));
        });
    }

    /// Asks the chain about requests that have ended.
    fn reexamine(&mut self, doubted: Vec<(String, Sought)>) {
        let (chain, account) = (Arc::clone(&self.chain), self.signer.account().clone());
        let permits = Arc::clone(&self.permits);
        self.spawn(async move |answers, generation| {
            let Ok(_permit) = permits.acquire_owned().await else { return };
            let (requests, sought): (Vec<String>, Vec<Sought>) = doubted.into_iter().unzip();
            let located = chain.locate(&account, &sought).await;
            let located = located.into_iter().chain(std::iter::repeat(Located::Unknown));
            let nonces = sought.iter().map(|one| one.nonce);
            let all = nonces.zip(requests).zip(located);
            let all = all.map(|((nonce, request), located)| (nonce, request, located)).collect();
            let _ = answers.send((generation, Answer::Reexamined(all)));
        });
    }

    /// An end that was told was not the one that the chain has: the row is corrected, aloud.
    fn correct(
        &mut self,
        nonce: u64,
        request_id: String,
        hash: Hash,
        status: TransactionStatus,
        note: Note,
    ) {
        let told = note.corrected.as_ref().map(ToString::to_string).unwrap_or_default();
        let (end, noop) = match &note.end {
            Some(end) => {
                (end.to_string(), matches!(end.kind, EndKind::Replaced | EndKind::Expired))
            }
            None => (String::new(), false),
        };
        metrics::count(metrics::CORRECTED);
        tracing::error!(
            event = "tx_corrected",
            nonce,
            request_id,
            told,
            end,
            "AN END THAT WAS TOLD IS NOT THE CHAIN'S: the row is corrected; a caller that asked for it \
             anew under another id has asked twice"
        );
        let correction = Correction { hash, status, note, noop };
        self.settle(nonce, request_id, Some(correction));
    }

    fn settle(&mut self, nonce: u64, request_id: String, correction: Option<Correction>) {
        self.write(Write::Settle(Settlement { nonce, request_id, correction }));
    }

    fn record(&mut self, nonce: u64, hash: Hash, status: TransactionStatus, note: Note) {
        if let Some(end) = &note.end {
            metrics::count_by(metrics::ENDED, "end", end.kind.into());
            if let Some(content) = self.contents.remove(&nonce) {
                // An end has left the engine already; which form it was, its kind tells. Of one that no
                // node had there is no no-op either.
                let noop = matches!(end.kind, EndKind::Replaced | EndKind::Expired);
                let noop = noop && end.hash.is_some();
                let state = HandleState { hash, status: status.clone(), noop, note: note.clone() };
                let Content { request_id, handle, block, .. } = content;
                if status.state() == State::Finalized {
                    self.provisional.remove(&nonce);
                } else {
                    let since = self.provisional.entry(nonce).or_insert(block);
                    *since = block.min(*since);
                }
                // Of one that no node had the chain knows nothing: until the table has its end, it may
                // still be undone by a crash, so no caller is told.
                let untold = (status.state() == State::Invalid).then_some(state.clone());
                if untold.is_none() {
                    handle.send_replace(state);
                }
                self.ending.insert((nonce, hash), Ending { request_id, handle, untold });
            }
        } else if let Some(content) = self.contents.get(&nonce) {
            let form = self.engine.attempts(nonce).iter().find(|attempt| attempt.hash == hash);
            content.handle.send_modify(|state| {
                let noop = form.map_or(state.noop, |attempt| attempt.noop);
                *state = HandleState { hash, status: status.clone(), noop, note: note.clone() };
            });
        }
        self.write(Write::Status(StatusChange { nonce, hash, status, note }));
    }
}

pub(super) fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Pooled => "pooled",
        Outcome::AlreadyKnown => "already_known",
        Outcome::Outdated => "outdated",
        Outcome::Underpriced(..) => "underpriced",
        Outcome::Expired => "expired",
        Outcome::Unfunded(_) => "unfunded",
        Outcome::Busy(_) => "busy",
        Outcome::NotSent(_) => "not_sent",
        Outcome::Unwanted(_) => "unwanted",
        Outcome::Refused(_) => "refused",
        Outcome::Uncertain(_) => "uncertain",
    }
}
