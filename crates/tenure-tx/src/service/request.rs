//! What a caller asks for, and what it holds afterwards.

use bytes::Bytes;
use tokio::sync::watch;

use crate::status::{Hash, TransactionStatus};

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

/// A caller's request.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SendRequest {
    pub payload: Payload,
    /// The caller's name for it, unique in the account: a retry with the same id never sends
    /// twice. 1 to 200 characters; generated if absent.
    pub request_id: Option<String>,
    /// The tip of the first attempt; [`ServiceOptions::tip`](crate::ServiceOptions::tip) if absent.
    pub tip: Option<u128>,
}

impl SendRequest {
    /// A call under a generated id.
    #[must_use]
    pub fn call(call: impl Into<Bytes>) -> Self {
        SendRequest { payload: Payload::Call(call.into()), request_id: None, tip: None }
    }

    /// The same request under the caller's id.
    #[must_use]
    pub fn with_id(self, id: impl Into<String>) -> Self {
        SendRequest { request_id: Some(id.into()), ..self }
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
    /// Whether the duty is over.
    pub ended: bool,
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
    /// What is known now.
    #[must_use]
    pub fn state(&self) -> HandleState {
        self.state.borrow().clone()
    }

    /// Waits for the next change. Cancel-safe. `None`: this node leads no more; follow the table
    /// ([`crate::TransactionService::statuses`]) from here.
    pub async fn changed(&mut self) -> Option<HandleState> {
        self.state.changed().await.ok()?;
        Some(self.state.borrow_and_update().clone())
    }

    /// Waits for the end. Cancel-safe. `None`: this node leads no more.
    pub async fn ended(&mut self) -> Option<HandleState> {
        let state = self.state.wait_for(|s| s.ended).await.ok()?;
        Some(state.clone())
    }
}
