//! Follows the chain for all watches at once.
//!
//! Invariants: the run is of blocks each of which is the parent of the next, ending at the latest
//! one seen. A watch's block is in the run, or below it. A block is final only if it is the one that
//! the chain has at that height now, and the transaction's receipt names it: a number alone proves
//! nothing after a reorganisation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use alloy_primitives::{B256, U64};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::rpc::{Call, Rpc, RpcBlock, RpcReceipt, RpcTransaction, read};
use super::run::{Left, Run};
use super::{EthereumOptions, TransportError, plainly, receipt_of};
use crate::account::AccountId;
use crate::chain::{Report, StatusStream};
use crate::status::{Hash, TransactionStatus};

/// A transaction the node does not know was dropped only if it says so this often in a row: the
/// nodes behind one address are not all equally quick.
const MISSES: u32 = 2;

/// How many transactions are looked up at one poll, and how many are made final: with the other
/// calls of the poll they fit into a few requests, whatever the number of watches.
const LOOKED_UP: usize = 90;
const FINALIZED: usize = 360;

/// How often a canonical block's transaction may lack its receipt before it is final without one: a
/// node may have thrown its receipts away.
const WITHOUT_RECEIPT: u32 = 10;

/// The longest pause between polls while the node does not answer.
const POLL_MAX: Duration = Duration::from_secs(10);

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
    /// Not looked up since it was added, or since its block was taken back.
    fresh: bool,
    /// How often its receipt was missing.
    receiptless: u32,
    /// Unbounded: a transaction has a handful of statuses, and its reader is the engine.
    to: mpsc::UnboundedSender<Report>,
}

impl Followed {
    /// Whether a receiver is left.
    fn say(&self, report: impl Into<Report>) -> bool {
        self.to.send(report.into()).is_ok()
    }

    fn found(&mut self, number: u64, block: Hash) {
        self.misses = 0;
        self.fresh = false;
        if self.block != Some((number, block)) {
            self.block = Some((number, block));
            self.receiptless = 0;
            self.say(TransactionStatus::InBlock(block));
        }
    }

    fn retract(&mut self) {
        if let Some((_, block)) = self.block.take() {
            self.fresh = true;
            self.say(TransactionStatus::Retracted(block));
        }
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
        let account = account.clone();
        let (block, misses, fresh, receiptless) = (None, 0, true, 0);
        let followed = Followed { account, nonce, block, misses, fresh, receiptless, to };
        followed.say(TransactionStatus::Ready);
        watches.insert(hash, followed);
        Some(
            stream::unfold(from, |mut from| async { from.recv().await.map(|s| (s, from)) }).boxed(),
        )
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Hash, Followed>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back these blocks, or all of them, also those below the run.
    fn retract(&self, gone: Option<&[Hash]>) {
        for watch in self.lock().values_mut() {
            let left = |(_, block): (u64, Hash)| gone.is_none_or(|gone| gone.contains(&block));
            if watch.block.is_some_and(left) {
                watch.retract();
            }
        }
    }

    fn include(&self, block: &RpcBlock) {
        let mut watches = self.lock();
        for hash in &block.transactions {
            if let Some(watch) = watches.get_mut(&Hash(hash.0)) {
                watch.found(block.number.to(), Hash(block.hash.0));
            }
        }
    }

    /// The watches whose block may be final, the lowest nonces first.
    fn final_candidates(&self, upto: u64) -> Vec<(u64, Hash, (u64, Hash))> {
        let mut watches = self.lock();
        watches.retain(|_, watch| !watch.to.is_closed());
        let due = |(hash, watch): (&Hash, &Followed)| {
            let block = watch.block.filter(|(number, _)| *number <= upto)?;
            Some((watch.nonce, *hash, block))
        };
        let mut due: Vec<_> = watches.iter().filter_map(due).collect();
        due.sort_unstable();
        due.truncate(FINALIZED);
        due
    }

    /// Watches in no block: some of all, or of those never looked up, the lowest nonces first.
    fn unplaced(&self, all: bool) -> Vec<(u64, Hash, AccountId)> {
        let watches = self.lock();
        let unplaced = |(_, watch): &(&Hash, &Followed)| watch.block.is_none();
        let mut some: Vec<_> = watches
            .iter()
            .filter(unplaced)
            .filter(|(_, watch)| all || watch.fresh)
            .map(|(hash, watch)| (!watch.fresh, watch.nonce, *hash, watch.account.clone()))
            .collect();
        some.sort_unstable();
        some.truncate(LOOKED_UP);
        some.into_iter().map(|(_, nonce, hash, account)| (nonce, hash, account)).collect()
    }
}

async fn run(follower: Weak<Follower>, rpc: Rpc) {
    let mut run = Run::default();
    let mut turn = 0u32;
    let mut failures = 0u32;
    loop {
        let Some(strong) = follower.upgrade() else { return };
        if strong.lock().is_empty() {
            // What was known may be reorganised while it is not watched.
            run = Run::default();
            failures = 0;
        } else {
            turn = turn.wrapping_add(1);
            let all = turn.is_multiple_of(strong.lookup_every);
            match step(&strong, &rpc, &mut run, all).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let error = plainly(&error);
                    tracing::debug!(error, "the chain's node does not answer; the watches wait");
                }
            }
        }
        let pause = strong.poll.saturating_mul(1 << failures.min(5));
        let pause = pause.min(POLL_MAX.max(strong.poll));
        drop(strong);
        sleep(pause).await;
    }
}

async fn step(
    follower: &Follower,
    rpc: &Rpc,
    run: &mut Run,
    all: bool,
) -> Result<(), TransportError> {
    let (latest, finalized) = rpc.ends().await?;
    let moved = run.advance(rpc, latest).await?;
    match &moved.left {
        Left::These(gone) if gone.is_empty() => {}
        Left::These(gone) => follower.retract(Some(gone)),
        Left::All => follower.retract(None),
    }
    for block in &moved.news {
        follower.include(block);
    }
    lookup(follower, rpc, run, all).await?;
    finalize(follower, rpc, run, finalized.number.to()).await
}

fn by_hash(method: &'static str, hash: Hash) -> Call {
    (method, json!([B256::from(hash.0)]))
}

/// Asks about transactions that are in no block we saw.
async fn lookup(
    follower: &Follower,
    rpc: &Rpc,
    run: &Run,
    all: bool,
) -> Result<(), TransportError> {
    let unplaced = follower.unplaced(all);
    let Some((_, _, account)) = unplaced.first() else { return Ok(()) };
    // The nonce first: a nonce that is used then has its transaction in a block below. All watches
    // of one adapter are of one account; those of another would only be looked up later.
    let account = account.clone();
    let mut calls = vec![("eth_getTransactionCount", json!([account.to_string(), "latest"]))];
    calls.extend(unplaced.iter().map(|(_, hash, _)| by_hash("eth_getTransactionByHash", *hash)));
    let mut answers = rpc.many(&calls).await?.into_iter();
    let next = answers.next().map_or_else(|| Ok(U64::ZERO), read::<U64>)?.to::<u64>();
    let mut watches = follower.lock();
    for ((nonce, hash, of), answer) in unplaced.into_iter().zip(answers) {
        let Some(watch) = watches.get_mut(&hash) else { continue };
        // One refused look-up says nothing of the transaction.
        let Ok(answer) = read::<Option<RpcTransaction>>(answer) else { continue };
        match answer {
            Some(tx) => {
                watch.misses = 0;
                match (tx.block_number, tx.block_hash) {
                    (Some(number), Some(block)) => {
                        // A block that the run does not have at its height is newer than the run, or
                        // of another view: the next poll decides.
                        let (number, block) = (number.to(), Hash(block.0));
                        if run.allows(number, block) {
                            watch.found(number, block);
                        }
                    }
                    _ => watch.fresh = false,
                }
            }
            None => {
                watch.misses += 1;
                watch.fresh = watch.misses < MISSES;
                if watch.misses >= MISSES {
                    let used = of == account && nonce < next;
                    watch.say(match used {
                        true => TransactionStatus::Usurped(None),
                        false => TransactionStatus::Dropped,
                    });
                    watches.remove(&hash);
                }
            }
        }
    }
    Ok(())
}

/// Makes final what is in a block at or below the final one, if that block is the chain's.
async fn finalize(
    follower: &Follower,
    rpc: &Rpc,
    run: &Run,
    upto: u64,
) -> Result<(), TransportError> {
    let due = follower.final_candidates(upto);
    if due.is_empty() {
        return Ok(());
    }
    let mut heights: Vec<u64> = due.iter().map(|(_, _, (number, _))| *number).collect();
    heights.sort_unstable();
    heights.dedup();
    let by_number = |height: &u64| ("eth_getBlockByNumber", json!([U64::from(*height), false]));
    let mut calls: Vec<Call> = heights.iter().map(by_number).collect();
    calls.extend(due.iter().map(|(_, hash, _)| by_hash("eth_getTransactionReceipt", *hash)));
    let mut answers = rpc.many(&calls).await?.into_iter();
    let mut canonical: HashMap<u64, RpcBlock> = HashMap::new();
    for (height, answer) in heights.iter().zip(answers.by_ref()) {
        if let Ok(Some(block)) = read::<Option<RpcBlock>>(answer) {
            canonical.insert(*height, block);
        }
    }
    let mut watches = follower.lock();
    for ((_, hash, (number, block)), answer) in due.into_iter().zip(answers) {
        let Some(watch) = watches.get_mut(&hash) else { continue };
        let Some(chain) = canonical.get(&number) else { continue };
        if chain.hash.0 != block.0 {
            watch.retract();
            continue;
        }
        if !run.allows(number, block) {
            continue;
        }
        let receipt = match read::<Option<RpcReceipt>>(answer) {
            Ok(Some(receipt)) if receipt.block_hash.0 == block.0 => Some(receipt_of(&receipt)),
            // Of another view of the chain.
            Ok(Some(_)) => continue,
            Ok(None) | Err(_) => {
                watch.receiptless += 1;
                let holds = chain.transactions.iter().any(|tx| tx.0 == hash.0);
                if !holds || watch.receiptless < WITHOUT_RECEIPT {
                    continue;
                }
                None
            }
        };
        watch.say(Report { status: TransactionStatus::Finalized(block), receipt });
        watches.remove(&hash);
    }
    Ok(())
}
