//! Follows the chain for all watches at once.
//!
//! Invariants: the run is of blocks each of which is the parent of the next, ending at the latest
//! one seen. A watch's block is in the run, or below it. A block is final only if it is the one that
//! the chain has at that height now, and the transaction's receipt names it: a number alone proves
//! nothing after a reorganisation.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use alloy_primitives::{B256, U64};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::{Value, json};
use tenure_core::clock::Tick;
use tenure_core::retry::ExponentialBackoff;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::revert::{explain, is_unexplained};
use super::rpc::{Call, Rpc, RpcBlock, RpcReceipt, RpcTransaction, read, tick};
use super::run::{Left, Run};
use super::{EthereumOptions, LATE_RECEIPT, TransportError, plainly, receipt_of};
use crate::account::AccountId;
use crate::chain::{Receipt, Report, StatusStream};
use crate::status::{Hash, TransactionStatus};

/// A transaction the node does not know was dropped only if it says so this often in a row: the
/// nodes behind one address are not all equally quick.
const MISSES: u32 = 2;

/// How many transactions in no block are looked up at one poll: one that is new; every few polls the
/// lowest and one of the others. A node is asked as little for ten thousand as for one, also after it
/// has lost them: what else it lost, the account's next nonce in its pool tells.
const LOOKED_UP_NEW: usize = 1;
const LOOKED_UP: usize = 2;

/// How many transactions are sent again at one poll once the node has lost one: a pool that throws out
/// what it has no room for must not be sent everything without end.
const REFILLED: usize = 90;

/// For how many polls a pool may take nothing of what is sent again before the rest waits for the next
/// look-up that finds one lost.
const STALLS: u32 = 3;

/// How many blocks' transactions are made final at one poll, and for how many of them one by one.
const FINAL_BLOCKS: usize = 16;
const FINAL_APART: usize = 90;

/// After how many looks without a receipt a transaction is asked for apart from its block: a node may
/// have the one and not the other.
const APART: u32 = 3;

/// For how many polls, at most, a missing receipt is not asked for again.
const ASLEEP_MAX: u32 = 32;

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
    /// For how many polls it is not asked for again.
    asleep: u32,
    /// Since when it is watched.
    since: Tick,
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
            (self.receiptless, self.asleep) = (0, 0);
            self.say(TransactionStatus::InBlock(block));
        }
    }

    /// Its receipt is late: it is asked for ever more rarely.
    fn without_receipt(&mut self) {
        self.receiptless = self.receiptless.saturating_add(1);
        self.asleep = (1 << self.receiptless.min(8)).min(ASLEEP_MAX);
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
        let (block, misses, fresh, receiptless, asleep) = (None, 0, true, 0, 0);
        let since = tick();
        let followed =
            Followed { account, nonce, block, misses, fresh, receiptless, asleep, since, to };
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

    /// The watches whose block may be final, by block, the lowest first.
    fn final_candidates(&self, upto: u64) -> BTreeMap<(u64, Hash), Vec<Hash>> {
        let mut watches = self.lock();
        watches.retain(|_, watch| !watch.to.is_closed());
        let mut due: BTreeMap<(u64, Hash), Vec<Hash>> = BTreeMap::new();
        for (hash, watch) in watches.iter_mut() {
            if let Some(block) = watch.block.filter(|(number, _)| *number <= upto) {
                if watch.asleep > 0 {
                    watch.asleep -= 1;
                    continue;
                }
                due.entry(block).or_default().push(*hash);
            }
        }
        due.into_iter().take(FINAL_BLOCKS).collect()
    }

    /// Some of the watches in no block: those that were missing when they were last looked up; else one
    /// that never was; or, in its `turn`, the lowest and another: the first that the pool seems to lack, and
    /// one of all, by turns.
    fn unplaced(&self, turn: Option<u32>, rpc: &Rpc) -> Vec<(u64, Hash, AccountId)> {
        let watches = self.lock();
        let some = |wanted: &dyn Fn(&Followed) -> bool| {
            let unplaced = watches.iter().filter(|(_, w)| w.block.is_none() && wanted(w));
            let mut some: Vec<_> =
                unplaced.map(|(hash, w)| (w.nonce, *hash, w.account.clone())).collect();
            some.sort_unstable();
            some
        };
        let mut missing = some(&|watch| watch.misses > 0);
        if !missing.is_empty() {
            missing.truncate(LOOKED_UP);
            return missing;
        }
        let Some(turn) = turn else {
            let mut fresh = some(&|watch| watch.fresh);
            fresh.truncate(LOOKED_UP_NEW);
            return fresh;
        };
        let mut all = some(&|_| true);
        if all.len() > LOOKED_UP {
            let in_turn = 1 + turn as usize % (all.len() - 1);
            let lacked = || {
                let pool = rpc.pool_nonce(&all[0].2)?;
                let first = all.partition_point(|(nonce, ..)| *nonce < pool);
                (1..all.len()).contains(&first).then_some(first)
            };
            let by_turns = (turn / self.lookup_every).is_multiple_of(2);
            let other = by_turns.then(lacked).flatten().unwrap_or(in_turn);
            all.swap(1, other);
            all.truncate(LOOKED_UP);
        }
        all
    }

    /// Ends the watches of the lowest transactions from this nonce on that are in no block: their owner
    /// sends them again. Nothing is said of them, for the node was not asked: one that it has will be
    /// known to it. Not those that were sent a moment ago. Says whether there were any.
    fn release(&self, account: &AccountId, from: u64) -> bool {
        let now = tick();
        let mut watches = self.lock();
        let mut some: Vec<(u64, Hash)> = watches
            .iter()
            .filter(|(_, watch)| watch.block.is_none() && watch.nonce >= from)
            .filter(|(_, watch)| watch.account == *account)
            .filter(|(_, watch)| now.saturating_since(watch.since) >= 2 * self.poll)
            .map(|(hash, watch)| (watch.nonce, *hash))
            .collect();
        some.sort_unstable();
        some.truncate(REFILLED);
        for (_, hash) in &some {
            watches.remove(hash);
        }
        !some.is_empty()
    }
}

/// A pool that lost transactions and is being filled again, some at each poll.
struct Refill {
    account: AccountId,
    /// The account's next nonce in the pool when some were last sent again.
    pool: u64,
    /// How many polls ago that was.
    stalls: u32,
}

impl Refill {
    /// Begins with what the pool lacks from this nonce on.
    fn begin(follower: &Follower, account: AccountId, pool: u64) -> Option<Self> {
        let any = follower.release(&account, pool);
        any.then_some(Refill { account, pool, stalls: 0 })
    }

    /// Goes on as the pool grows. Two calls a poll, however many are missing. A node whose count leaves
    /// its pool out never seems to grow, and is sent no more.
    async fn go_on(self, follower: &Follower, rpc: &Rpc) -> Result<Option<Self>, TransportError> {
        let Refill { account, pool, stalls } = self;
        let (next, now) = counts(rpc, &account).await?;
        Ok(match now.filter(|now| *now > next && *now > pool) {
            Some(now) => Refill::begin(follower, account, now),
            None => (stalls < STALLS).then_some(Refill { account, pool, stalls: stalls + 1 }),
        })
    }
}

/// The account's next nonce in the latest block, and in the pool, if the node says so.
async fn counts(rpc: &Rpc, account: &AccountId) -> Result<(u64, Option<u64>), TransportError> {
    let of = account.to_string();
    let call = |place| ("eth_getTransactionCount", json!([of, place]));
    let mut answers = rpc.many(&[call("latest"), call("pending")]).await?.into_iter();
    let next = answers.next().map_or_else(|| Ok(U64::ZERO), read::<U64>)?.to::<u64>();
    let pool = answers.next().and_then(|answer| read::<U64>(answer).ok());
    Ok((next, pool.map(|pool| pool.to::<u64>().max(next))))
}

async fn run(follower: Weak<Follower>, rpc: Rpc) {
    let mut run = Run::default();
    let mut refill = None;
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
            match step(&strong, &rpc, &mut run, &mut refill, all.then_some(turn)).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let error = plainly(&error);
                    tracing::debug!(error, "the chain's node does not answer; the watches wait");
                }
            }
        }
        let most = strong.poll.saturating_mul(32).min(POLL_MAX).max(strong.poll);
        let backoff = ExponentialBackoff::new(strong.poll, most);
        drop(strong);
        sleep(backoff.bare(failures.saturating_add(1))).await;
    }
}

async fn step(
    follower: &Follower,
    rpc: &Rpc,
    run: &mut Run,
    refill: &mut Option<Refill>,
    turn: Option<u32>,
) -> Result<(), TransportError> {
    let ends = rpc.ends().await?;
    let moved = run.advance(rpc, ends.latest).await?;
    match &moved.left {
        Left::These(gone) if gone.is_empty() => {}
        Left::These(gone) => follower.retract(Some(gone)),
        Left::All => follower.retract(None),
    }
    for block in &moved.news {
        follower.include(block);
    }
    *refill = match refill.take() {
        Some(refill) => refill.go_on(follower, rpc).await?,
        None => lookup(follower, rpc, run, turn).await?,
    };
    match ends.finalized {
        Some(finalized) => finalize(follower, rpc, run, finalized.number.to()).await,
        None => Ok(()),
    }
}

fn by_hash(method: &'static str, hash: Hash) -> Call {
    (method, json!([B256::from(hash.0)]))
}

/// Asks about transactions that are in no block we saw. If the node has lost one, what else its pool
/// lacks is sent again.
async fn lookup(
    follower: &Follower,
    rpc: &Rpc,
    run: &Run,
    turn: Option<u32>,
) -> Result<Option<Refill>, TransportError> {
    let unplaced = follower.unplaced(turn, rpc);
    let Some((_, _, account)) = unplaced.first() else { return Ok(None) };
    // All watches of one adapter are of one account; those of another would only be dropped, and then
    // located.
    let account = account.clone();
    let call = |hash: &Hash| by_hash("eth_getTransactionByHash", *hash);
    let calls: Vec<Call> = unplaced.iter().map(|(_, hash, _)| call(hash)).collect();
    let answers = rpc.many(&calls).await?;
    let mut lost = Vec::new();
    {
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
                            // A block that the run does not have at its height is newer than the
                            // run, or of another view: the next poll decides.
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
                        lost.push((nonce, hash, of));
                    }
                }
            }
        }
    }
    if lost.is_empty() {
        return Ok(None);
    }
    // A nonce that is used may be used by these very bytes, in a block since: the chain will be asked.
    let (next, pool) = counts(rpc, &account).await?;
    {
        let mut watches = follower.lock();
        for (nonce, hash, of) in lost {
            if let Some(watch) = watches.remove(&hash) {
                let used = of == account && nonce < next;
                watch.say(match used {
                    true => TransactionStatus::Usurped(None),
                    false => TransactionStatus::Dropped,
                });
            }
        }
    }
    Ok(pool.and_then(|pool| Refill::begin(follower, account, pool)))
}

/// Makes final what is in a block at or below the final one, if that block is the chain's. All receipts
/// of a block at its height are one call, and name the block that the chain has there; of a single
/// transaction the block and the receipt are two small ones.
async fn finalize(
    follower: &Follower,
    rpc: &Rpc,
    run: &Run,
    upto: u64,
) -> Result<(), TransportError> {
    let due = follower.final_candidates(upto);
    let untold = |hashes: &Vec<Hash>| {
        let watches = follower.lock();
        let often = |hash| watches.get(hash).is_some_and(|w| w.receiptless >= APART);
        hashes.iter().any(often)
    };
    let (whole, apart): (Vec<_>, Vec<_>) = due
        .into_iter()
        .partition(|(_, hashes)| hashes.len() > 1 && rpc.gives_block_receipts() && !untold(hashes));
    let places: Vec<_> = whole.iter().map(|((number, _), _)| json!(U64::from(*number))).collect();
    let answers = rpc.receipts_of(&places).await?;
    let mut finals = Vec::new();
    for (((number, block), hashes), receipts) in whole.into_iter().zip(answers) {
        let mut watches = follower.lock();
        for hash in hashes {
            let Some(watch) = watches.get_mut(&hash) else { continue };
            let Some(receipts) = &receipts else {
                watch.without_receipt();
                continue;
            };
            // What another block, or none, has at its height is not in its block any more.
            let ours = receipts.iter().find(|one| one.transaction_hash.0 == hash.0);
            match ours.filter(|one| one.block_hash.0 == block.0) {
                Some(_) if !run.allows(number, block) => {}
                Some(receipt) => finals.push((hash, block, Some(receipt_of(receipt)))),
                None => watch.retract(),
            }
        }
    }
    conclude(follower, rpc, finals);
    finalize_apart(follower, rpc, run, apart, upto).await
}

/// Tells that these are final. What failed is told with its reason, beside the polls: whatever becomes of
/// that question, all others go on.
fn conclude(follower: &Follower, rpc: &Rpc, finals: Vec<(Hash, Hash, Option<Receipt>)>) {
    let mut failed = Vec::new();
    for (hash, block, receipt) in finals {
        let Some(watch) = follower.lock().remove(&hash) else { continue };
        let status = TransactionStatus::Finalized(block);
        match receipt {
            Some(receipt) if is_unexplained(&receipt) => {
                failed.push((watch, hash, status, receipt));
            }
            receipt => drop(watch.say(Report { status, receipt })),
        }
    }
    if failed.is_empty() {
        return;
    }
    let rpc = rpc.clone();
    // Ends by itself: the question has a deadline.
    tokio::spawn(async move {
        explain(&rpc, failed.iter_mut().map(|(_, hash, _, receipt)| (*hash, receipt))).await;
        for (watch, _, status, receipt) in failed {
            watch.say(Report { status, receipt: Some(receipt) });
        }
    });
}

async fn finalize_apart(
    follower: &Follower,
    rpc: &Rpc,
    run: &Run,
    due: Vec<((u64, Hash), Vec<Hash>)>,
    upto: u64,
) -> Result<(), TransportError> {
    let each = |(block, hashes): ((u64, Hash), Vec<Hash>)| {
        hashes.into_iter().map(move |hash| (hash, block))
    };
    let due: Vec<(Hash, (u64, Hash))> = due.into_iter().flat_map(each).take(FINAL_APART).collect();
    if due.is_empty() {
        return Ok(());
    }
    let mut heights: Vec<u64> = due.iter().map(|(_, (number, _))| *number).collect();
    heights.dedup();
    let by_number = |height: &u64| ("eth_getBlockByNumber", json!([U64::from(*height), false]));
    let mut calls: Vec<Call> = heights.iter().map(by_number).collect();
    calls.extend(due.iter().map(|(hash, _)| by_hash("eth_getTransactionReceipt", *hash)));
    // A receipt that was missing before is asked of the next endpoint as well.
    let late = {
        let watches = follower.lock();
        due.iter().any(|(hash, _)| watches.get(hash).is_some_and(|watch| watch.receiptless > 0))
    };
    let there = |answer: &Result<Value, TransportError>| {
        answer.as_ref().is_ok_and(|receipt| !receipt.is_null())
    };
    let answers = match late {
        true => rpc.sought(&calls, |all| all.iter().skip(heights.len()).all(there)).await?,
        false => rpc.many(&calls).await?,
    };
    let mut answers = answers.into_iter();
    let mut canonical: HashMap<u64, RpcBlock> = HashMap::new();
    for (height, answer) in heights.iter().zip(answers.by_ref()) {
        if let Ok(Some(block)) = read::<Option<RpcBlock>>(answer) {
            canonical.insert(*height, block);
        }
    }
    let mut finals = Vec::new();
    for ((hash, (number, block)), answer) in due.into_iter().zip(answers) {
        let mut watches = follower.lock();
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
                watch.without_receipt();
                let holds = chain.transactions.iter().any(|tx| tx.0 == hash.0);
                if !holds || upto.saturating_sub(number) < LATE_RECEIPT {
                    continue;
                }
                None
            }
        };
        finals.push((hash, block, receipt));
    }
    conclude(follower, rpc, finals);
    Ok(())
}
