//! What a caller asks for, and what it holds afterwards.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::error::SendError;
use crate::status::{End, Hash, Note, TransactionStatus};

/// What to send.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Payload {
    /// A call in the chain's encoding: the service chooses the nonce, signs, and signs anew if it must.
    Call(Bytes),
    /// Bytes the caller signed with the group's account and a nonce of its own choice. They cannot be
    /// signed anew: neither a higher tip nor a fresh mortality is possible.
    Signed(Bytes),
}

/// A caller's request. Made by [`SendRequest::call`] or [`SendRequest::signed`].
#[derive(Debug, Clone)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct SendRequest {
    pub payload: Payload,
    /// The caller's name for it, unique in the account: a retry with the same id never sends
    /// twice. 1 to 200 characters, none of them a control character; generated if absent.
    pub request_id: Option<String>,
    /// The least tip of the first attempt; [`ServiceOptions::tip`](crate::ServiceOptions::tip), which has
    /// the unit, if absent. Of no effect on signed bytes.
    pub tip: Option<u128>,
    /// How long after its acceptance it is given up, if it is in no block by then; never if absent. A
    /// no-op takes its nonce then, unless no node can have it.
    pub deadline: Option<Duration>,
    /// No other request can have this id, so there is nothing to look up.
    pub(crate) fresh: bool,
}

/// The longest request id, in characters.
const MAX_ID: usize = 200;

impl SendRequest {
    /// A request under an id that is generated.
    #[must_use]
    pub fn new(payload: Payload) -> Self {
        SendRequest { payload, request_id: None, tip: None, deadline: None, fresh: false }
    }

    /// A call that the service signs, in the chain's encoding: `EthereumCall::encode`, `SubstrateCall::encode`,
    /// or SCALE.
    #[must_use]
    pub fn call(call: impl Into<Bytes>) -> Self {
        Self::new(Payload::Call(call.into()))
    }

    /// Bytes that the caller signed: see [`Payload::Signed`].
    #[must_use]
    pub fn signed(raw: impl Into<Bytes>) -> Self {
        Self::new(Payload::Signed(raw.into()))
    }

    /// The same request under the caller's id.
    #[must_use]
    pub fn with_id(self, id: impl Into<String>) -> Self {
        SendRequest { request_id: Some(id.into()), fresh: false, ..self }
    }

    /// The same request, to be given up so long after its acceptance: see [`SendRequest::deadline`].
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        SendRequest { deadline: Some(deadline), ..self }
    }

    /// The same request with another least tip of its first attempt: see [`SendRequest::tip`].
    #[must_use]
    pub fn with_tip(self, tip: u128) -> Self {
        SendRequest { tip: Some(tip), ..self }
    }

    /// The request with its id, generated now if it has none: a caller that knows the id before it
    /// asks can ask again, whatever becomes of the answer.
    #[must_use]
    pub fn named(self) -> (Self, String) {
        match self.request_id.clone() {
            Some(id) => (self, id),
            None => {
                let id = Self::fresh_id();
                (SendRequest { request_id: Some(id.clone()), fresh: true, ..self }, id)
            }
        }
    }

    /// An id that no other request has. It begins with the time, so that the table's index of ids grows
    /// at its end instead of anywhere; what makes it unique is its random part, whatever the clock says.
    #[must_use]
    pub fn fresh_id() -> String {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        uuid::Builder::from_unix_timestamp_millis(millis, &rand::random()).into_uuid().to_string()
    }

    /// Whether an id can be one: a database holds no NUL, and a log shows no other control
    /// character as what it is.
    ///
    /// # Errors
    /// [`SendError::BadRequestId`] if it cannot.
    pub fn check_id(id: &str) -> Result<(), SendError> {
        let long = id.is_empty() || id.chars().count() > MAX_ID;
        if long || id.chars().any(char::is_control) {
            return Err(SendError::BadRequestId);
        }
        Ok(())
    }
}

/// The state of a sent transaction, as its handle sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct HandleState {
    /// The current attempt, or the one that won.
    pub hash: Hash,
    pub status: TransactionStatus,
    /// Whether a no-op has taken the request's place, as far as is stored. If an earlier form is
    /// mined first, that one wins.
    pub noop: bool,
    /// How it ended, and what the node last said.
    pub note: Note,
}

impl HandleState {
    /// What an order to drop it has come to; `None` while nothing of it is stored.
    pub(crate) fn dropped(&self) -> Option<Dropped> {
        match (&self.note.end, &self.status) {
            (Some(end), _) => Some(Dropped::Ended((**end).clone())),
            (None, TransactionStatus::InBlock(block)) if !self.noop => {
                Some(Dropped::Mined { hash: self.hash, block: *block })
            }
            (None, _) => self.noop.then_some(Dropped::Ordered { hash: self.hash }),
        }
    }

    /// Whether the request has ended: no node works on it any more. The end may be provisional, see
    /// [`EndKind`](crate::EndKind).
    #[must_use]
    pub fn ended(&self) -> bool {
        self.note.end.is_some()
    }
}

/// What became of an order to drop a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum Dropped {
    /// A no-op is stored and on its way. If the request itself is mined first, it wins; its end tells.
    Ordered { hash: Hash },
    /// The request is in a block: it is not dropped.
    Mined { hash: Hash, block: Hash },
    /// It has ended: by this order, if no node ever had it ([`Withdrawn`](crate::status::EndKind::Withdrawn)),
    /// else before the order could take effect.
    Ended(End),
}

/// A transaction this node accepted. Accepted means stored: the next leader finishes it.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct TransactionHandle {
    pub nonce: u64,
    pub request_id: String,
    pub(crate) state: watch::Receiver<HandleState>,
}

impl TransactionHandle {
    /// What this node knew last. It does not move any more once [`TransactionHandle::changed`] is `None`.
    #[must_use]
    pub fn state(&self) -> HandleState {
        self.state.borrow().clone()
    }

    /// Waits for the next change that was not seen yet. Cancel-safe. `None`: nothing more comes through this
    /// handle, because the request has ended, this node leads no more, or a write of its end has an unknown
    /// outcome. The table tells the rest: [`TransactionService::wait`](crate::TransactionService::wait).
    pub async fn changed(&mut self) -> Option<HandleState> {
        self.state.changed().await.ok()?;
        Some(self.state.borrow_and_update().clone())
    }

    /// Waits for the end, for as long as it takes. Cancel-safe. The end may be provisional, see
    /// [`EndKind`](crate::EndKind); a correction comes to readers of the table, not to this handle. `None`:
    /// this node cannot tell the end any more, as it leads no more, or a write has an unknown outcome. Ask
    /// [`TransactionService::wait`](crate::TransactionService::wait).
    pub async fn ended(&mut self) -> Option<HandleState> {
        let state = self.state.wait_for(HandleState::ended).await.ok()?;
        Some(state.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_text_that_every_place_can_hold_and_show() {
        for good in ["0", "invoice-7", "счёт 7", "naïve 🙂", &"x".repeat(200)] {
            assert!(SendRequest::check_id(good).is_ok(), "{good}");
        }
        for bad in ["", "a\0b", "a\nb", "\u{1b}[2J", &"x".repeat(201)] {
            assert!(matches!(SendRequest::check_id(bad), Err(SendError::BadRequestId)), "{bad:?}");
        }
    }

    #[test]
    fn a_request_without_an_id_is_named_once() {
        let (request, id) = SendRequest::call("pay").named();
        assert!(request.fresh && SendRequest::check_id(&id).is_ok());
        let (again, same) = request.named();
        assert_eq!((id, true), (same, again.fresh), "the same request, still new");
        let (named, id) = SendRequest::call("pay").with_id("7").named();
        assert_eq!((named.fresh, id.as_str()), (false, "7"), "it may be a retry");
    }
}
