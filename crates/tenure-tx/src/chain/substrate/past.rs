//! What one look into the past reads: each block and each state once, however many nonces are sought.

use std::collections::HashMap;
use std::sync::Arc;

use super::extrinsic_hash;
use super::line::{Line, Unread};
use super::metadata::Runtime;
use crate::account::AccountId;
use crate::chain::Receipt;
use crate::status::Hash;

/// What is known of the past of one account, for the time of one look.
pub(super) struct Past<'a> {
    line: &'a Line,
    account: &'a AccountId,
    hashes: HashMap<u64, Hash>,
    nonces: HashMap<Hash, u64>,
    bodies: HashMap<Hash, Arc<Vec<Vec<u8>>>>,
    events: HashMap<Hash, Arc<Events>>,
}

/// A block's number and, where they can be read, its events with the runtime that made them.
pub(super) struct Events {
    pub(super) number: u64,
    pub(super) told: Option<(Arc<Runtime>, Vec<u8>)>,
}

impl Events {
    pub(super) fn receipt(&self, place: u32) -> Receipt {
        match &self.told {
            Some((runtime, events)) => runtime.receipt(events, place, self.number),
            None => Receipt { number: Some(self.number), ..Receipt::default() },
        }
    }
}

impl<'a> Past<'a> {
    pub(super) fn new(line: &'a Line, account: &'a AccountId) -> Self {
        let (hashes, nonces) = (HashMap::new(), HashMap::new());
        Past { line, account, hashes, nonces, bodies: HashMap::new(), events: HashMap::new() }
    }

    pub(super) async fn hash_at(&mut self, number: u64) -> Result<Hash, Unread> {
        if let Some(hash) = self.hashes.get(&number) {
            return Ok(*hash);
        }
        let hash = self.line.hash_at(number).await?;
        self.hashes.insert(number, hash);
        Ok(hash)
    }

    /// The account's nonce after a block.
    pub(super) async fn nonce_at(&mut self, block: Hash) -> Result<u64, Unread> {
        if let Some(nonce) = self.nonces.get(&block) {
            return Ok(*nonce);
        }
        let nonce = self.line.nonce_at(self.account, block).await?;
        self.nonces.insert(block, nonce);
        Ok(nonce)
    }

    pub(super) async fn extrinsics(&mut self, block: Hash) -> Result<Arc<Vec<Vec<u8>>>, Unread> {
        if let Some(body) = self.bodies.get(&block) {
            return Ok(Arc::clone(body));
        }
        let body = Arc::new(self.line.extrinsics(block).await?);
        self.bodies.insert(block, Arc::clone(&body));
        Ok(body)
    }

    /// What became of an extrinsic in its block. `None`: it is not in it.
    pub(super) async fn receipt(
        &mut self,
        block: Hash,
        extrinsic: Hash,
    ) -> Result<Option<Receipt>, Unread> {
        let all = self.extrinsics(block).await?;
        let place = all.iter().position(|raw| extrinsic_hash(raw) == extrinsic);
        let Some(place) = place.and_then(|place| u32::try_from(place).ok()) else {
            return Ok(None);
        };
        if let Some(events) = self.events.get(&block) {
            return Ok(Some(events.receipt(place)));
        }
        let events = Arc::new(self.line.events(block).await?);
        self.events.insert(block, Arc::clone(&events));
        Ok(Some(events.receipt(place)))
    }
}
