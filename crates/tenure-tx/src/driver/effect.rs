//! Carries out what the engine asks for: sign, store, submit, look up, record.

use std::sync::Arc;

use futures_util::StreamExt as _;
use tokio::time::timeout;

use super::{Answer, Driver, MAX_CLASHES, outcome_name};
use crate::account::{SignError, Signed, Unsigned};
use crate::chain::{Outcome, Submission};
use crate::engine::{Attempt, Effect, Input};
use crate::metrics;
use crate::service::{HandleState, SendError, TransactionHandle};
use crate::status::{Hash, TransactionStatus};
use crate::store::{NewTransaction, Replacement, StatusChange};
use crate::writer::{Order, Report, Write, Written};

impl Driver {
    pub(super) fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Build { nonce, attempt, tip, noop } => {
                    if attempt == 1 {
                        self.prepare_filler(nonce);
                    } else {
                        metrics::count(metrics::REPLACEMENTS);
                    }
                    self.sign(nonce, tip, noop);
                }
                Effect::Submit { nonce, hash } => self.submit(nonce, hash),
                Effect::Locate { nonce, hashes } => self.locate(nonce, hashes),
                Effect::Record { nonce, hash, status, ended } => {
                    self.record(nonce, hash, status, ended);
                }
            }
        }
    }

    /// A gap's no-op has no caller.
    fn prepare_filler(&mut self, nonce: u64) {
        tracing::warn!(nonce, "filling a gap with a no-op");
        let id = format!("gap:{nonce}:{}", uuid::Uuid::new_v4());
        self.contents.insert(nonce, self.content(id, None, None));
    }

    pub(super) fn sign(&mut self, nonce: u64, tip: u128, noop: bool) {
        let Some(content) = self.contents.get(&nonce) else { return };
        let call = content.call.clone().filter(|_| !noop);
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
            let signed = match timeout(within, signer.sign(unsigned)).await {
                Ok(signed) => signed,
                Err(_) => Err(SignError::Unavailable("no signature in time".to_owned())),
            };
            let _ = answers.send((generation, Answer::Signed { nonce, tip, noop, signed }));
        });
    }

    pub(super) fn signed(
        &mut self,
        nonce: u64,
        tip: u128,
        noop: bool,
        signed: Result<Signed, SignError>,
    ) {
        let Some(content) = self.contents.get_mut(&nonce) else { return };
        let signed = match signed {
            Ok(signed) => signed,
            Err(error) => {
                tracing::warn!(nonce, %error, "not signed");
                return self.not_stored(nonce, SendError::Sign(error));
            }
        };
        let attempt = Attempt { hash: signed.hash, tip, noop, valid_until: signed.valid_until };
        let mut attempts = self.engine.attempts(nonce).to_vec();
        content.storing = Some((attempt.clone(), signed.raw.clone()));
        let write = if attempts.is_empty() {
            let row = NewTransaction {
                nonce,
                attempt,
                call: content.call.clone(),
                raw: signed.raw,
                request_id: content.request_id.clone(),
            };
            Write::New { row, block: content.block }
        } else {
            attempts.retain(|known| known.hash != attempt.hash);
            attempts.push(attempt);
            Write::Replace(Replacement { nonce, attempts, raw: signed.raw })
        };
        self.order(write);
    }

    fn order(&mut self, write: Write) {
        if let Some(orders) = &self.orders {
            let order = Order { generation: self.generation, epoch: self.epoch, write };
            // The writer ends only with this driver.
            let _ = orders.send(order);
        }
    }

    pub(super) fn written(&mut self, report: Report) {
        if report.generation != self.generation {
            return;
        }
        let mut reread = None;
        for (nonce, written) in report.rows {
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
        match report.statuses_failed {
            None | Some(Written::Stored | Written::Missing | Written::Duplicate) => {}
            Some(Written::Stale) => return self.end("another leader has a newer epoch"),
            Some(Written::Refused(error) | Written::Unknown(error)) => {
                reread = Some(error.to_string());
            }
        }
        if let Some(why) = reread {
            tracing::warn!(why, "reading the table again: it decides what is stored");
            self.recover();
        }
    }

    fn stored(&mut self, nonce: u64) {
        let Some(content) = self.contents.get_mut(&nonce) else { return };
        let Some((attempt, raw)) = content.storing.take() else { return };
        content.raw = raw;
        content.handle.send_modify(|state| state.hash = attempt.hash);
        if let Some(asked) = content.asked.take() {
            metrics::count(metrics::ACCEPTED);
            let (request_id, state) = (content.request_id.clone(), content.handle.subscribe());
            asked.answer(Ok(TransactionHandle { nonce, request_id, state }));
        }
        let effects = self.engine.handle(self.now(), Input::Built { nonce, attempt });
        self.carry_out(effects);
    }

    fn not_stored(&mut self, nonce: u64, error: SendError) {
        let first = self.engine.attempts(nonce).is_empty();
        if let Some(content) = self.contents.get_mut(&nonce) {
            content.storing = None;
        }
        if first && let Some(content) = self.contents.remove(&nonce) {
            self.requests.remove(&content.request_id);
            if let Some(asked) = content.asked {
                asked.answer(Err(error));
            }
        }
        let effects = self.engine.handle(self.now(), Input::BuildFailed { nonce });
        self.carry_out(effects);
    }

    /// The table has a live row of another creator at this nonce: the memory is wrong and the
    /// table has to be read again. A row of ours that ended meanwhile is no clash.
    fn clashed(&mut self, nonce: u64) -> bool {
        let first = self.engine.attempts(nonce).is_empty();
        let asked = self.contents.get_mut(&nonce).and_then(|c| c.asked.as_mut());
        let again = asked.is_some_and(|asked| {
            asked.clashes += 1;
            asked.clashes < MAX_CLASHES
        });
        if !(first && again) {
            self.not_stored(nonce, SendError::Clash(nonce));
        }
        first
    }

    /// Somebody stored this request before, perhaps we in an earlier life: look it up.
    fn duplicate(&mut self, nonce: u64) {
        let Some(content) = self.contents.remove(&nonce) else { return };
        self.requests.remove(&content.request_id);
        let effects = self.engine.handle(self.now(), Input::BuildFailed { nonce });
        self.carry_out(effects);
        if let Some(mut asked) = content.asked {
            asked.request.request_id = Some(content.request_id);
            self.admit(asked);
        }
    }

    fn submit(&mut self, nonce: u64, hash: Hash) {
        let Some(content) = self.contents.get(&nonce) else { return };
        let raw = content.raw.clone();
        let (chain, gate) = (Arc::clone(&self.chain), self.leadership.gate().clone());
        let (account, permits) = (self.signer.account().clone(), Arc::clone(&self.permits));
        let (epoch, act) = (self.epoch, self.options.act);
        self.spawn(async move |answers, generation| {
            let Ok(permit) = permits.acquire_owned().await else { return };
            // The last look before the bytes leave.
            let act = match gate.begin_act(act) {
                Ok(act) if act.epoch() == epoch => act,
                Ok(_) => return,
                Err(refused) => {
                    let outcome = Outcome::Busy(refused.to_string());
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
            while let Some(status) = watch.next().await {
                let answer = Answer::Status { nonce, hash, status };
                if answers.send((generation, answer)).is_err() {
                    return;
                }
            }
            let _ = answers.send((generation, Answer::WatchClosed { nonce, hash }));
        });
    }

    fn locate(&mut self, nonce: u64, hashes: Vec<Hash>) {
        let since = self.contents.get(&nonce).map_or(0, |c| c.block);
        let (chain, account) = (Arc::clone(&self.chain), self.signer.account().clone());
        let permits = Arc::clone(&self.permits);
        self.spawn(async move |answers, generation| {
            let Ok(_permit) = permits.acquire_owned().await else { return };
            let located = chain.locate(&account, nonce, &hashes, since).await;
            let _ = answers.send((generation, Answer::Located { nonce, located }));
        });
    }

    fn record(&mut self, nonce: u64, hash: Hash, status: TransactionStatus, ended: bool) {
        if let Some(content) = self.contents.get(&nonce) {
            let state = HandleState { hash, status: status.clone(), ended };
            content.handle.send_replace(state);
        }
        if ended {
            metrics::count_by(metrics::ENDED, "state", status.state().as_str());
            if let Some(content) = self.contents.remove(&nonce) {
                self.requests.remove(&content.request_id);
            }
        }
        self.order(Write::Status(StatusChange { nonce, hash, status, ended }));
    }
}
