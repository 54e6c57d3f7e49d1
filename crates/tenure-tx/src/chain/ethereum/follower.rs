//! Follows the chain for all watches at once.
//!
//! Invariant: `blocks` is a run of blocks each of which is the parent of the next, ending at the
//! latest one seen; a watch's `block` is in that run or is older than the run.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use alloy_primitives::B256;
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::rpc::{Rpc, RpcBlock};
use super::{EthereumOptions, TransportError, plainly};
use crate::account::AccountId;
use crate::chain::StatusStream;
use crate::status::{Hash, TransactionStatus};

/// How many blocks are remembered: more than any reorganisation of a chain with finality.
const DEPTH: usize = 256;

/// A transaction the node does not know was dropped only if it says so this often in a row: the
/// nodes behind one address are not all equally quick.
const MISSES: u32 = 2;

pub(super) struct Follower {
    watches: Mutex<HashMap<Hash, Followed>>,
    poll: Duration,
    lookup_every: u32,
}

struct Followed {
    account: AccountId,
    nonce: u64,
    block: Option<(u64, Hash)>,
    misses: u32,
    /// Not looked up since it was added: it may be in a block from before.
    fresh: bool,
    /// Unbounded: a transaction has a handful of statuses, and its reader is the engine.
    to: mpsc::UnboundedSender<TransactionStatus>,
}

impl Followed {
    /// Whether a receiver is left.
    fn say(&self, status: TransactionStatus) -> bool {
        self.to.send(status).is_ok()
    }
}

impl Follower {
    pub(super) fn start(rpc: Rpc, options: &EthereumOptions) -> Arc<Self> {
        let follower = Arc::new(Follower {
            watches: Mutex::new(HashMap::new()),
            poll: options.poll,
            lookup_every: options.lookup_every.max(1),
        });
        tokio::spawn(run(Arc::downgrade(&follower), rpc));
        follower
    }

    /// Watches a transaction, unless that is done already: a second watch would end the first, whose
    /// owner would take that for a reason to send again, and so for ever.
    pub(super) fn watch(
        &self,
        account: &AccountId,
        nonce: u64,
        hash: Hash,
    ) -> Option<StatusStream> {
        let mut watches = self.lock();
        if watches.get(&hash).is_some_and(|watch| !watch.to.is_closed()) {
            return None;
        }
        let (to, from) = mpsc::unbounded_channel();
        let followed =
            Followed { account: account.clone(), nonce, block: None, misses: 0, fresh: true, to };
        followed.say(TransactionStatus::Ready);
        watches.insert(hash, followed);
        Some(
            stream::unfold(from, |mut from| async { from.recv().await.map(|s| (s, from)) }).boxed(),
        )
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Hash, Followed>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retract(&self, block: Hash) {
        self.lock().retain(|_, watch| {
            if watch.block.is_some_and(|(_, hash)| hash == block) {
                watch.block = None;
                watch.fresh = true;
                return watch.say(TransactionStatus::Retracted(block));
            }
            true
        });
    }

    fn include(&self, block: &RpcBlock) {
        let mut watches = self.lock();
        for hash in &block.transactions {
            if let Some(watch) = watches.get_mut(&Hash(hash.0)) {
                watch.found(block.number.to(), Hash(block.hash.0));
            }
        }
    }

    /// Whatever is in a block at or below the final one is final.
    fn finalize(&self, upto: u64) {
        self.lock().retain(|_, watch| match watch.block {
            Some((number, block)) if number <= upto => {
                watch.say(TransactionStatus::Finalized(block));
                false
            }
            Some(_) | None => !watch.to.is_closed(),
        });
    }

    /// Watches in no block: all of them, or those never looked up.
    fn unplaced(&self, all: bool) -> Vec<(Hash, AccountId, u64)> {
        self.lock()
            .iter()
            .filter(|(_, w)| w.block.is_none() && (all || w.fresh))
            .map(|(hash, w)| (*hash, w.account.clone(), w.nonce))
            .collect()
    }
}

impl Followed {
    fn found(&mut self, number: u64, block: Hash) {
        self.misses = 0;
        self.fresh = false;
        if self.block != Some((number, block)) {
            self.block = Some((number, block));
            self.say(TransactionStatus::InBlock(block));
        }
    }
}

async fn run(follower: Weak<Follower>, rpc: Rpc) {
    let mut blocks: VecDeque<(u64, B256, B256)> = VecDeque::new();
    let mut turn = 0u32;
    loop {
        let Some(strong) = follower.upgrade() else { return };
        if !strong.lock().is_empty() {
            turn = turn.wrapping_add(1);
            let all = turn.is_multiple_of(strong.lookup_every);
            if let Err(error) = step(&strong, &rpc, &mut blocks, all).await {
                tracing::debug!(
                    error = plainly(&error),
                    "the chain's node does not answer; the watches wait"
                );
            }
        } else {
            // What was known may be reorganised while it is not watched.
            blocks.clear();
        }
        let poll = strong.poll;
        drop(strong);
        sleep(poll).await;
    }
}

async fn step(
    follower: &Follower,
    rpc: &Rpc,
    blocks: &mut VecDeque<(u64, B256, B256)>,
    all: bool,
) -> Result<(), TransportError> {
    let latest = rpc.latest().await?;
    let finalized = rpc.finalized(&latest).await?;
    advance(follower, rpc, blocks, latest).await?;
    lookup(follower, rpc, all).await?;
    follower.finalize(finalized.number.to());
    Ok(())
}

/// Walks from the new latest block back to a known one, then forward again.
async fn advance(
    follower: &Follower,
    rpc: &Rpc,
    blocks: &mut VecDeque<(u64, B256, B256)>,
    latest: RpcBlock,
) -> Result<(), TransportError> {
    let known = |blocks: &VecDeque<(u64, B256, B256)>, hash| {
        blocks.iter().any(|(_, known, _)| *known == hash)
    };
    let mut news = vec![latest];
    while let Some(oldest) = news.last()
        && !blocks.is_empty()
        && !known(blocks, oldest.hash)
        && !known(blocks, oldest.parent_hash)
        && news.len() < DEPTH
    {
        match rpc.by_hash(oldest.parent_hash).await? {
            Some(parent) => news.push(parent),
            None => break,
        }
    }
    let Some(oldest) = news.last() else { return Ok(()) };
    let joint = if known(blocks, oldest.hash) { oldest.hash } else { oldest.parent_hash };
    // Everything above the joint left the chain; if there is no joint, everything did.
    while let Some((_, hash, _)) = blocks.back().copied()
        && hash != joint
    {
        blocks.pop_back();
        follower.retract(Hash(hash.0));
    }
    for block in news.into_iter().rev().filter(|b| b.hash != joint) {
        follower.include(&block);
        blocks.push_back((block.number.to(), block.hash, block.parent_hash));
    }
    while blocks.len() > DEPTH {
        blocks.pop_front();
    }
    Ok(())
}

/// Asks about transactions that are in no block we saw.
async fn lookup(follower: &Follower, rpc: &Rpc, all: bool) -> Result<(), TransportError> {
    let unplaced = follower.unplaced(all);
    if unplaced.is_empty() {
        return Ok(());
    }
    // The nonces first: a nonce that is used then has its transaction in a block below.
    let mut next: HashMap<AccountId, u64> = HashMap::new();
    for (_, account, _) in &unplaced {
        if !next.contains_key(account) {
            let nonce = rpc.nonce(&account.to_string(), "latest".into()).await?;
            next.insert(account.clone(), nonce);
        }
    }
    let hashes: Vec<B256> = unplaced.iter().map(|(hash, _, _)| B256::from(hash.0)).collect();
    let answers = rpc.transactions(&hashes).await?;
    let mut watches = follower.lock();
    for ((hash, account, nonce), answer) in unplaced.into_iter().zip(answers) {
        let Some(watch) = watches.get_mut(&hash) else { continue };
        watch.fresh = false;
        match answer {
            Some(tx) => {
                watch.misses = 0;
                if let (Some(number), Some(block)) = (tx.block_number, tx.block_hash) {
                    watch.found(number.to(), Hash(block.0));
                }
            }
            None => {
                watch.misses += 1;
                watch.fresh = watch.misses < MISSES;
                if watch.misses >= MISSES {
                    let used = next.get(&account).is_some_and(|next| nonce < *next);
                    let status = if used {
                        TransactionStatus::Usurped(None)
                    } else {
                        TransactionStatus::Dropped
                    };
                    watch.say(status);
                    watches.remove(&hash);
                }
            }
        }
    }
    Ok(())
}
