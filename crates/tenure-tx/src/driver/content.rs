//! What a nonce carries, as far as the engine does not look at it.

use bytes::Bytes;
use tenure_core::clock::Tick;
use tokio::sync::watch;

use crate::engine::Attempt;
use crate::service::{HandleState, TransactionHandle};
use crate::status::{Hash, Note, TransactionStatus};
use crate::store::StoredTransaction;

pub(super) struct Content {
    pub(super) request_id: String,
    /// The call; `None` if the caller signed, or if there is no caller.
    pub(super) call: Option<Bytes>,
    /// The bytes of the stored attempt; empty until there is one.
    pub(super) raw: Bytes,
    /// The best block when it was built.
    pub(super) block: u64,
    /// When the request is given up.
    pub(super) deadline: Option<Tick>,
    pub(super) handle: watch::Sender<HandleState>,
    /// The attempt being stored, with its bytes: what is not stored is never sent.
    pub(super) storing: Option<(Attempt, Bytes)>,
    /// What the node last said and was logged.
    pub(super) said: Option<String>,
    /// Why no further form is stored, as it was last logged.
    pub(super) unbuilt: Option<String>,
}

impl Content {
    /// Before its first attempt.
    pub(super) fn new(request_id: String, call: Option<Bytes>, block: u64) -> Self {
        let status = TransactionStatus::Future;
        let (hash, note) = (Hash::default(), Note::default());
        let state = HandleState { hash, status, noop: false, note };
        Content {
            request_id,
            call,
            raw: Bytes::new(),
            block,
            deadline: None,
            handle: watch::Sender::new(state),
            storing: None,
            said: None,
            unbuilt: None,
        }
    }

    /// Of an open row. The handles of its callers go on if it was known before.
    pub(super) fn of(row: StoredTransaction, known: Option<Content>, now: Tick) -> Self {
        let deadline = row.deadline.map(|left| now + left);
        let (hash, noop) = (row.hash, row.noop);
        let state = HandleState { hash, status: row.status, noop, note: row.note };
        let handle = match known {
            Some(known) => {
                known.handle.send_replace(state);
                known.handle
            }
            None => watch::Sender::new(state),
        };
        Content {
            raw: row.raw.unwrap_or_default(),
            deadline,
            handle,
            ..Content::new(row.request_id, row.call, row.built_at_block)
        }
    }

    pub(super) fn handle(&self, nonce: u64) -> TransactionHandle {
        let (request_id, state) = (self.request_id.clone(), self.handle.subscribe());
        TransactionHandle { nonce, request_id, state }
    }
}

/// A request that has left the engine, until the table has its end.
pub(super) struct Ending {
    pub(super) request_id: String,
    pub(super) handle: watch::Sender<HandleState>,
    /// What the handle is told once the table has it; `None` if it was told already.
    pub(super) untold: Option<HandleState>,
}

impl Ending {
    /// Its handle, if it is this request.
    pub(super) fn handle(&self, id: &str, nonce: u64) -> Option<TransactionHandle> {
        let (request_id, state) = (self.request_id.clone(), self.handle.subscribe());
        (request_id == id).then_some(TransactionHandle { nonce, request_id, state })
    }
}

/// A handle of a row that ended, or that is not open on this node.
pub(super) fn handle_of(row: &StoredTransaction) -> TransactionHandle {
    let (hash, status, note) = (row.hash, row.status.clone(), row.note.clone());
    let state = HandleState { hash, status, noop: row.noop, note };
    let (_, state) = watch::channel(state);
    TransactionHandle { nonce: row.nonce, request_id: row.request_id.clone(), state }
}
