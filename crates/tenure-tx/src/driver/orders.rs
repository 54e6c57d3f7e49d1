//! Orders to drop a request, from their arrival until the table has what came of them.

use super::{Driver, Phase, Which};
use crate::engine::NonceError;
use crate::service::{SendError, TransactionHandle};
use crate::status::State;

impl Driver {
    /// Gives a request up, unless it is in a block; its handle tells what comes of that.
    pub(super) fn cancel(&mut self, which: Which) -> Result<TransactionHandle, SendError> {
        match &self.phase {
            Phase::Leading { .. } => {}
            Phase::Recovering { foreign: Some(why), .. } => {
                return Err(SendError::Foreign(why.clone()));
            }
            Phase::Recovering { foreign: None, .. } | Phase::Following => {
                return Err(SendError::NotLeader);
            }
        }
        let nonce = match which {
            Which::Nonce(nonce) => nonce,
            Which::Request(id) => match self.engine.nonce_of(&id) {
                Some(nonce) => nonce,
                None if self.pending.contains_key(&id) => {
                    let reason = "it is being accepted at this moment".to_owned();
                    return Err(SendError::Undecided { request_id: id, reason });
                }
                None => return Err(SendError::NotOpen(id)),
            },
        };
        let known = self.contents.get(&nonce);
        if let Some(content) = known.filter(|c| c.handle.borrow().dropped().is_some()) {
            return Ok(content.handle(nonce));
        }
        // What no node can have ends by the order itself, and its handle tells.
        let handle = self.contents.get(&nonce).map(|content| content.handle(nonce));
        let in_block = self.engine.status(nonce).is_some_and(|at| at.state() == State::InBlock);
        let effects = self.engine.cancel(nonce)?;
        if let Some(handle) = handle.as_ref().filter(|_| !in_block) {
            self.dropped.insert(handle.request_id.clone());
        }
        self.carry_out(effects);
        let filled = || self.contents.get(&nonce).map(|content| content.handle(nonce));
        handle.or_else(filled).ok_or_else(|| NonceError::NotOpen(nonce).into())
    }

    /// The first form of a request is stored that was ordered to be dropped before the table was read again: it must
    /// not leave.
    pub(super) fn cancel_as_ordered(&mut self, nonce: u64) {
        let request = self.engine.request_at(nonce);
        if request.is_some_and(|id| self.dropped.contains(id))
            && let Ok(effects) = self.engine.cancel(nonce)
        {
            self.carry_out(effects);
        }
    }
}
