//! A request from its arrival until its row is stored.

use bytes::Bytes;
use tenure_core::clock::Tick;
use tokio::sync::oneshot;

use super::content::handle_of;
use super::effect::MAX_CLASHES;
use super::{Answer, Driver, Phase};
use crate::account::Signed;
use crate::chain::ChainError;
use crate::engine::{Attempt, Input, NonceError, Request};
use crate::service::{Payload, SendError, SendRequest, TransactionHandle};
use crate::store::{StoreError, StoredTransaction};

pub(crate) type Reply = oneshot::Sender<Result<TransactionHandle, SendError>>;

/// How far a pending request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for the table to be read.
    Waiting,
    /// Its id is being looked up.
    LookingUp,
    /// It has a nonce and is being signed.
    Signing,
    /// Its row is on the way: it may be stored.
    Storing,
}

/// A request with all callers that wait for it.
pub(super) struct Pending {
    pub(super) request: SendRequest,
    replies: Vec<Reply>,
    pub(super) stage: Stage,
    /// The table may hold a row under this id: look before giving it a nonce.
    pub(super) may_be_stored: bool,
    /// The bytes, if the caller signed them.
    pub(super) signed: Option<Signed>,
    /// How often its nonce turned out to be taken.
    pub(super) clashes: u8,
    /// Nonces are given in the order of arrival.
    arrival: u64,
    /// When it is given up.
    pub(super) deadline: Option<Tick>,
}

impl Pending {
    /// Takes in another caller that asks for the same. A caller that asks for something else under
    /// the id is told.
    fn join(&mut self, id: &str, payload: &Payload, reply: Reply) {
        if self.request.payload == *payload {
            self.replies.push(reply);
        } else {
            let _ = reply.send(Err(SendError::RequestIdReused(id.to_owned())));
        }
    }

    pub(super) fn answer(self, answer: Result<TransactionHandle, SendError>) {
        for reply in self.replies {
            // A caller that no longer waits needs no answer.
            let _ = reply.send(answer.clone());
        }
    }

    /// This node leads no more.
    pub(super) fn lose(self, request_id: String, why: &str) {
        self.give_up(request_id, why, SendError::NotLeader);
    }

    /// This node's chain, key or role is not the account's.
    pub(super) fn disown(self, request_id: String, why: &str) {
        self.give_up(request_id, why, SendError::Foreign(why.to_owned()));
    }

    /// Answers `refusal`, unless its row is on the way: then it may be stored.
    fn give_up(self, request_id: String, why: &str, refusal: SendError) {
        let error = match self.stage {
            Stage::Waiting | Stage::LookingUp | Stage::Signing => refusal,
            Stage::Storing => SendError::Uncertain { request_id, reason: why.to_owned() },
        };
        self.answer(Err(error));
    }
}

/// The table could not be asked for a request, which may be there: it must not be told that it is not.
fn unread(request_id: String, error: &StoreError) -> SendError {
    let why = match error {
        StoreError::Lost(why) => why.clone(),
        other => other.to_string(),
    };
    SendError::Uncertain { request_id, reason: format!("it could not be looked up: {why}") }
}

impl Driver {
    pub(super) fn send(&mut self, request: SendRequest, reply: Reply) {
        if let Some(error) = self.refusal(&request) {
            let _ = reply.send(Err(error));
            return;
        }
        let named = request.request_id.clone();
        let may_be_stored = !request.fresh && self.reader.is_some();
        let id = named.unwrap_or_else(SendRequest::fresh_id);
        if let Some(pending) = self.pending.get_mut(&id) {
            return pending.join(&id, &request.payload, reply);
        }
        self.arrivals += 1;
        let deadline = request.deadline.map(|within| self.now() + within);
        let pending = Pending {
            request,
            replies: vec![reply],
            stage: Stage::Waiting,
            may_be_stored,
            signed: None,
            clashes: 0,
            arrival: self.arrivals,
            deadline,
        };
        self.pending.insert(id.clone(), pending);
        if let Phase::Leading { .. } = self.phase {
            self.admit(&id);
        }
    }

    /// Why a request is not taken at all.
    fn refusal(&self, request: &SendRequest) -> Option<SendError> {
        let size = match &request.payload {
            Payload::Call(bytes) | Payload::Signed(bytes) => bytes.len(),
        };
        let limit = self.options.max_bytes;
        let bad_id = |id: &String| id.is_empty() || id.chars().count() > 200;
        // The engine counts those that have a nonce: as many may wait for one, whatever it takes to read the table.
        let (most, waits) = (self.options.engine.max_open, |id| self.pending.contains_key(id));
        let full = self.pending.len() >= most && !request.request_id.as_ref().is_some_and(waits);
        if self.refuse_new {
            Some(SendError::Draining)
        } else if let Phase::Following = self.phase {
            Some(SendError::NotLeader)
        } else if let Phase::Recovering { foreign: Some(why), .. } = &self.phase {
            Some(SendError::Foreign(why.clone()))
        } else if size > limit {
            Some(SendError::TooLarge { size, limit })
        } else if request.request_id.as_ref().is_some_and(bad_id) {
            Some(SendError::BadRequestId)
        } else if full {
            Some(NonceError::TooManyOpen(most).into())
        } else {
            None
        }
    }

    /// Admits all that waited for the table, in the order of their arrival.
    pub(super) fn admit_all(&mut self) {
        let mut ids: Vec<(u64, String)> = Vec::with_capacity(self.pending.len());
        for (id, pending) in &mut self.pending {
            // Should a write of before still arrive, the id is in the table and the look-up, or
            // the next write, finds it.
            pending.may_be_stored |= pending.stage == Stage::Storing && self.reader.is_some();
            pending.stage = Stage::Waiting;
            ids.push((pending.arrival, id.clone()));
        }
        ids.sort_unstable();
        for (_, id) in ids {
            self.admit(&id);
        }
    }

    /// Answers a request whose row is there; gives the others a nonce.
    pub(super) fn admit(&mut self, id: &str) {
        let open = self.engine.nonce_of(id).and_then(|n| Some((n, self.contents.get(&n)?)));
        if let Some((nonce, content)) = open {
            let (call, handle) = (content.call.clone(), content.handle(nonce));
            let attempts = self.engine.attempts(nonce).to_vec();
            let Some(pending) = self.pending.get(id) else { return };
            let same = self.is_same(&pending.request.payload, call.as_ref(), &attempts);
            return self.repeated(id, same, handle);
        }
        let Some(pending) = self.pending.get_mut(id) else { return };
        match self.reader.clone().filter(|_| pending.may_be_stored) {
            None => self.request(id),
            Some(store) => {
                pending.stage = Stage::LookingUp;
                let id = id.to_owned();
                self.spawn(async move |answers, generation| {
                    let row = match store.by_request(std::slice::from_ref(&id)).await {
                        Ok(rows) => Ok(rows.into_iter().next().map(Box::new)),
                        Err(error) => Err(unread(id.clone(), &error)),
                    };
                    let _ = answers.send((generation, Answer::Found { id, row }));
                });
            }
        }
    }

    pub(super) fn found(
        &mut self,
        id: String,
        row: Result<Option<Box<StoredTransaction>>, SendError>,
    ) {
        match row {
            Ok(None) => self.request(&id),
            Ok(Some(row)) => {
                let content = self.contents.get(&row.nonce).filter(|c| c.request_id == id);
                let open = content.map(|content| content.handle(row.nonce));
                let ended = || row.ended.then(|| handle_of(&row));
                let ending = || self.ending.values().find_map(|one| one.handle(&id, row.nonce));
                let Some(handle) = open.or_else(ended).or_else(ending) else {
                    // It ended after the table was read, and the table has its end by now. If not, the
                    // table has an open row that the engine does not know: it is read again.
                    let Some(pending) = self.pending.get_mut(&id) else { return };
                    pending.clashes = pending.clashes.saturating_add(1);
                    return match pending.clashes < MAX_CLASHES {
                        true => self.admit(&id),
                        false => self.recover(),
                    };
                };
                let same = match self.pending.get(&id).map(|pending| &pending.request.payload) {
                    Some(Payload::Call(asked)) => row.is_call(asked),
                    Some(payload) => self.is_same(payload, row.call.as_ref(), &row.attempts),
                    None => return,
                };
                self.repeated(&id, same, handle);
            }
            Err(error) => self.refuse(&id, error),
        }
    }

    /// Answers a request whose id has a row already.
    fn repeated(&mut self, id: &str, same: bool, handle: TransactionHandle) {
        let Some(pending) = self.pending.remove(id) else { return };
        let reused = || SendError::RequestIdReused(id.to_owned());
        pending.answer(if same { Ok(handle) } else { Err(reused()) });
    }

    /// Whether a request asks for what its id stands for already: an id that is used for a second
    /// payment must not swallow it.
    fn is_same(&self, payload: &Payload, call: Option<&Bytes>, attempts: &[Attempt]) -> bool {
        match payload {
            Payload::Call(asked) => call == Some(asked),
            Payload::Signed(raw) => {
                let hash = self.chain.inspect(raw).map(|seen| seen.hash);
                call.is_none() && attempts.iter().any(|a| hash == Ok(a.hash))
            }
        }
    }

    pub(super) fn refuse(&mut self, id: &str, error: SendError) {
        if let Some(pending) = self.pending.remove(id) {
            pending.answer(Err(error));
        }
    }

    /// Tells why there is no nonce. Bytes that are at their nonce already, under another id, need not be
    /// signed again: that would do the same twice.
    pub(super) fn refuse_nonce(&mut self, id: &str, error: NonceError) {
        let pending = self.pending.get_mut(id);
        let is_signed = |p: &&mut Pending| matches!(p.request.payload, Payload::Signed(_));
        let (pending, nonce) = match (&error, pending.filter(is_signed)) {
            (NonceError::Taken(nonce), Some(pending)) => (pending, *nonce),
            (NonceError::BelowChain { nonce, .. }, Some(pending)) => (pending, *nonce),
            _ => return self.refuse(id, error.into()),
        };
        let (Payload::Signed(raw) | Payload::Call(raw)) = &pending.request.payload;
        // What is open, or on its way into the table, is known here.
        if let (Ok(seen), Some(content)) = (self.chain.inspect(raw), self.contents.get(&nonce)) {
            let stored = self.engine.attempts(nonce).iter();
            let storing = content.storing.iter().map(|(attempt, _)| attempt);
            if stored.chain(storing).any(|attempt| attempt.hash == seen.hash) {
                let request_id = content.request_id.clone();
                return self.refuse(id, SendError::SameBytes { request_id, end: None });
            }
        }
        // The engine forgets what has ended; the table does not.
        pending.stage = Stage::LookingUp;
        let (store, id) = (self.reader.clone(), id.to_owned());
        self.spawn(async move |answers, generation| {
            let row = match store {
                Some(store) => store.by_nonce(nonce).await.map(|row| row.map(Box::new)),
                None => Ok(None),
            };
            let _ = answers.send((generation, Answer::Occupied { id, error, row }));
        });
    }

    /// The row at the nonce that signed bytes asked for in vain.
    pub(super) fn occupied(
        &mut self,
        id: &str,
        error: NonceError,
        row: Result<Option<Box<StoredTransaction>>, StoreError>,
    ) {
        let Some(pending) = self.pending.get(id) else { return };
        let row = match row {
            Ok(row) => row,
            // Whether the bytes are there is not known: they must not be signed again on a guess.
            Err(error) => return self.refuse(id, unread(id.to_owned(), &error)),
        };
        let (Payload::Signed(raw) | Payload::Call(raw)) = &pending.request.payload;
        let hash = self.chain.inspect(raw).map(|seen| seen.hash);
        let same = row.filter(|row| row.attempts.iter().any(|form| hash == Ok(form.hash)));
        let error = match same {
            Some(row) => SendError::SameBytes { request_id: row.request_id, end: row.note.end },
            None => error.into(),
        };
        self.refuse(id, error);
    }

    /// Asks the engine for a nonce.
    fn request(&mut self, id: &str) {
        let Some(pending) = self.pending.get(id) else { return };
        let tip = pending.request.tip.unwrap_or(self.options.tip);
        let asked = match &pending.request.payload {
            Payload::Call(_) => Ok((None, tip, None)),
            Payload::Signed(raw) => self.inspect(raw, tip),
        };
        match asked {
            Ok((nonce, tip, signed)) => {
                let resignable = signed.is_none();
                let deadline = pending.deadline;
                if let Some(pending) = self.pending.get_mut(id) {
                    (pending.stage, pending.signed) = (Stage::Signing, signed);
                }
                let id = id.to_owned();
                self.feed(Input::Requested(Request { id, nonce, tip, resignable, deadline }));
            }
            Err(error) => self.refuse(id, error),
        }
    }

    /// Reads nonce and tip from bytes that the caller signed.
    fn inspect(
        &self,
        raw: &Bytes,
        tip: u128,
    ) -> Result<(Option<u64>, u128, Option<Signed>), SendError> {
        let seen = self.chain.inspect(raw)?;
        if let Some(account) = seen.account.filter(|a| a != self.signer.account()) {
            return Err(SendError::ForeignAccount(account.to_string()));
        }
        let Some(nonce) = seen.nonce else {
            let message = "the chain's metadata does not tell the nonce of these bytes; send the call \
                           instead";
            return Err(ChainError::Unsupported(message.to_owned()).into());
        };
        let signed =
            Signed { raw: raw.clone(), hash: seen.hash, valid_until: None, tip: None, bid: None };
        Ok((Some(nonce), seen.tip.unwrap_or(tip), Some(signed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost_while(stage: Stage) -> SendError {
        let (reply, mut answer) = oneshot::channel();
        let request = SendRequest::call("pay");
        let (replies, signed) = (vec![reply], None);
        let pending = Pending {
            request,
            replies,
            stage,
            may_be_stored: false,
            signed,
            clashes: 0,
            arrival: 0,
            deadline: None,
        };
        pending.lose("invoice-7".to_owned(), "the gate is shut");
        answer.try_recv().expect("answered").expect_err("this node leads no more")
    }

    #[test]
    fn a_lost_leadership_is_uncertain_only_for_a_row_on_its_way() {
        for stage in [Stage::Waiting, Stage::LookingUp, Stage::Signing] {
            assert!(matches!(lost_while(stage), SendError::NotLeader), "{stage:?}");
        }
        let uncertain = lost_while(Stage::Storing);
        assert!(
            matches!(&uncertain, SendError::Uncertain { request_id, .. } if request_id == "invoice-7"),
            "{uncertain:?}"
        );
    }
}
