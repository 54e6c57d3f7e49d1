//! The handful of JSON-RPC calls the adapter makes, each with a deadline, to the first of several
//! endpoints that answers.
//!
//! Calls that belong together go in one request. An endpoint that fails is left alone for a while,
//! ever longer; one of another chain is never used.
//!
//! Providers count calls, so none is made twice: the latest block is read once for all askers of one
//! poll, what depends on it is read when it is another one, and what changes without it every few polls.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy_json_rpc::RpcError;
use alloy_primitives::{B256, U64, U128, U256};
use alloy_rpc_client::RpcClient;
use alloy_transport::TransportErrorKind;
use futures_util::future::join_all;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tenure_core::clock::{BootClock, Clock as _, Tick};
use tenure_core::retry::ExponentialBackoff;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use url::Url;

use super::answer::outcome_of;
use super::identity::told;
use super::transport::Http;
use super::{EthereumOptions, Finality, TransportError, block, hex_of, plainly};
use crate::account::AccountId;
use crate::chain::quiet::quietly;
use crate::chain::{ChainError, ChainIdentity, Head, Outcome};

/// A block with the hashes of its transactions.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RpcBlock {
    pub(super) number: U64,
    pub(super) hash: B256,
    pub(super) parent_hash: B256,
    #[serde(default)]
    pub(super) transactions: Vec<B256>,
    #[serde(default)]
    pub(super) base_fee_per_gas: Option<U128>,
    #[serde(default)]
    gas_limit: Option<U64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RpcReceipt {
    pub(super) transaction_hash: B256,
    pub(super) block_number: U64,
    pub(super) block_hash: B256,
    #[serde(default)]
    pub(super) status: Option<U64>,
    #[serde(default)]
    pub(super) gas_used: Option<U128>,
    #[serde(default)]
    pub(super) effective_gas_price: Option<U128>,
    /// What a rollup charges for its place in the chain below it.
    #[serde(default)]
    pub(super) l1_fee: Option<U128>,
    #[serde(default)]
    pub(super) revert_reason: Option<String>,
}

/// Where a transaction is, if the node knows it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RpcTransaction {
    #[serde(default)]
    pub(super) block_number: Option<U64>,
    #[serde(default)]
    pub(super) block_hash: Option<B256>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RpcFeeHistory {
    #[serde(default)]
    base_fee_per_gas: Vec<U128>,
    #[serde(default)]
    reward: Option<Vec<Vec<U128>>>,
}

/// How many calls go into one request, at first: most nodes take 100.
pub(super) const BATCH: usize = 100;

/// How long an endpoint is left alone that fails, or says nothing of use, so often in a row.
const REST: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// After how much time without a new block the other endpoints are asked for theirs.
const STILL: Duration = Duration::from_secs(15);

/// JSON-RPC's own code.
const METHOD_NOT_FOUND: i64 = -32601;

/// How many recent blocks tell what is tipped.
const FEE_BLOCKS: u64 = 5;

/// A call: its method and its parameters.
pub(super) type Call = (&'static str, Value);

/// What came of a call.
type Answer = Result<Value, TransportError>;

pub(super) struct Endpoint {
    client: RpcClient,
    /// The parts of its address that let others use it, and that nodes like to repeat.
    secrets: Vec<String>,
    health: Mutex<Health>,
    /// How many calls it takes in one request.
    batch: AtomicUsize,
    /// How many requests of several calls in a row it did not take.
    untaken: AtomicUsize,
    /// Held while it is asked why calls failed: by one asker at a time, however many are final at once.
    pub(super) explains: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
pub(super) struct Health {
    failures: u32,
    rests_until: Option<Tick>,
    /// When it was last asked which chain it is of, since it last failed.
    pub(super) verified: Option<Tick>,
    pub(super) foreign: bool,
    /// How often in a row it answered without saying what was needed.
    useless: u32,
}

impl Endpoint {
    pub(super) fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(&self) {
        let mut health = self.health();
        (health.failures, health.rests_until) = (0, None);
    }

    /// It answers, but to no avail. Says whether it was of use until now.
    fn set_aside(&self) -> bool {
        let mut health = self.health();
        health.useless = health.useless.saturating_add(1);
        health.rests_until = Some(tick() + REST.bare(health.useless));
        health.useless == 1
    }

    /// It is asked which chain it is of before it is used again.
    pub(super) fn doubt(&self) {
        self.health().verified = None;
    }

    /// Says whether it answered until now.
    pub(super) fn failed(&self) -> bool {
        let mut health = self.health();
        let first = health.failures == 0;
        health.failures = health.failures.saturating_add(1);
        health.rests_until = Some(tick() + REST.bare(health.failures));
        health.verified = None;
        first
    }
}

/// Time that a suspended machine counts as well.
pub(super) fn tick() -> Tick {
    BootClock.now()
}

/// What it says of an endpoint that its answers lack some of what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// Nothing.
    Harmless,
    /// That it is of no use for a while.
    Useless,
}

#[derive(Clone)]
pub(super) struct Rpc {
    pub(super) endpoints: Arc<[Endpoint]>,
    /// The endpoint that answered last.
    pub(super) preferred: Arc<AtomicUsize>,
    pub(super) identity: Arc<OnceCell<ChainIdentity>>,
    ends: Arc<tokio::sync::Mutex<Option<Ends>>>,
    seen: Arc<Mutex<Option<Seen>>>,
    /// Held while a head is read: a second reader finds what the first has seen, and asks little.
    reads_head: Arc<tokio::sync::Mutex<()>>,
    /// An endpoint does not know the method that gives all receipts of a block.
    no_block_receipts: Arc<AtomicBool>,
    /// The latest block, and since when it is.
    moved: Arc<Mutex<Option<(B256, Tick)>>>,
    /// The gas of the latest block; 0 if it is not known.
    block_gas: Arc<AtomicU64>,
    /// How long one request may take.
    pub(super) timeout: Duration,
    poll: Duration,
    finality: Finality,
}

/// The two ends of what may still change.
#[derive(Clone)]
pub(super) struct Ends {
    pub(super) latest: RpcBlock,
    /// `None`: the node calls no block final.
    pub(super) finalized: Option<RpcBlock>,
    /// When the latest block was asked for.
    at: Tick,
}

/// The chain as an account last saw it, and when its parts were asked for.
#[derive(Clone)]
struct Seen {
    account: AccountId,
    head: Head,
    pool_at: Tick,
    money_at: Tick,
}

/// Every how many polls the pool is asked, and every how many what the account owns and blocks pay.
const POOL_EVERY: u32 = 2;
const MONEY_EVERY: u32 = 5;

impl Rpc {
    pub(super) fn new(urls: Vec<Url>, options: &EthereumOptions) -> Self {
        let endpoint = |url: Url| Endpoint {
            secrets: secrets_of(&url),
            client: RpcClient::new(Http::new(url), false),
            health: Mutex::default(),
            batch: AtomicUsize::new(BATCH),
            untaken: AtomicUsize::new(0),
            explains: tokio::sync::Mutex::default(),
        };
        Rpc {
            endpoints: urls.into_iter().map(endpoint).collect(),
            preferred: Arc::default(),
            identity: Arc::default(),
            ends: Arc::default(),
            seen: Arc::default(),
            reads_head: Arc::default(),
            no_block_receipts: Arc::default(),
            moved: Arc::default(),
            block_gas: Arc::default(),
            timeout: options.timeout,
            poll: options.poll,
            finality: options.finality,
        }
    }

    /// Which endpoints to ask, the last that answered first. One that rests is asked only if all
    /// do; then the one that has rested most.
    pub(super) fn order(&self) -> Vec<usize> {
        let count = self.endpoints.len();
        let first = self.preferred.load(Ordering::Relaxed);
        let now = tick();
        let rests = |index: &usize| self.endpoints[*index].health().rests_until;
        let all = (0..count).map(|step| (first + step) % count);
        let awake: Vec<usize> =
            all.filter(|index| rests(index).is_none_or(|until| until <= now)).collect();
        match awake.is_empty() {
            true => (0..count).min_by_key(|index| rests(index)).into_iter().collect(),
            false => awake,
        }
    }

    /// Asks one endpoint, and notes whether it answers: a refusal is an answer, and silence is a failure.
    pub(super) async fn ask(
        &self,
        index: usize,
        calls: &[Call],
    ) -> Result<Vec<Answer>, TransportError> {
        let endpoint = &self.endpoints[index];
        let answers = self.put(index, calls).await;
        match &answers {
            Ok(_) => endpoint.answered(),
            Err(error) => {
                if endpoint.failed() {
                    let error = plainly(error);
                    tracing::warn!(endpoint = index + 1, error, "an RPC endpoint failed");
                }
            }
        }
        answers
    }

    /// Asks one endpoint, and notes nothing: for what is good to know and no more.
    pub(super) async fn put(
        &self,
        index: usize,
        calls: &[Call],
    ) -> Result<Vec<Answer>, TransportError> {
        let endpoint = &self.endpoints[index];
        let mut answers = Vec::with_capacity(calls.len());
        let mut at = 0;
        while at < calls.len() {
            let limit = endpoint.batch.load(Ordering::Relaxed).max(1);
            let chunk = calls[at..calls.len().min(at + limit)].to_vec();
            let taken = chunk.len();
            let asked = quietly(exchange(endpoint.client.clone(), chunk));
            let masked = |error| masked(error, &endpoint.secrets);
            let answered = timeout(self.timeout, asked).await.unwrap_or_else(|_| Err(late()));
            match answered.map_err(masked) {
                Ok(some) => {
                    endpoint.untaken.store(0, Ordering::Relaxed);
                    answers.extend(some.into_iter().map(|answer| answer.map_err(masked)));
                    at += taken;
                }
                // An answer to the whole, again: it takes no batches, or smaller ones. Once may be
                // an answer that was cut short.
                Err(error)
                    if taken > 1
                        && !is_silence(&error)
                        && endpoint.untaken.fetch_add(1, Ordering::Relaxed) > 0 =>
                {
                    endpoint.batch.store((taken / 2).max(1), Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(answers)
    }

    /// Many calls in few requests, all to one endpoint; one result each, in order.
    pub(super) async fn many(&self, calls: &[Call]) -> Result<Vec<Answer>, TransportError> {
        self.asked(calls, |_| true, Lack::Harmless).await
    }

    /// The same, where another endpoint may have what one lacks: then the next one is asked, and nothing is
    /// held against the first. If all lack some, the first one's answers.
    pub(super) async fn sought(
        &self,
        calls: &[Call],
        found: impl Fn(&[Answer]) -> bool,
    ) -> Result<Vec<Answer>, TransportError> {
        self.asked(calls, found, Lack::Harmless).await
    }

    /// The same, where answers without some are of no use: then the next endpoint is asked, and this
    /// one is left alone for a while. If all give such answers, the first one's.
    pub(super) async fn needed(
        &self,
        calls: &[Call],
        useful: impl Fn(&[Answer]) -> bool,
    ) -> Result<Vec<Answer>, TransportError> {
        let answers = self.asked(calls, &useful, Lack::Useless).await?;
        if useful(&answers) {
            self.endpoints[self.preferred.load(Ordering::Relaxed)].health().useless = 0;
        }
        Ok(answers)
    }

    async fn asked(
        &self,
        calls: &[Call],
        useful: impl Fn(&[Answer]) -> bool,
        lack: Lack,
    ) -> Result<Vec<Answer>, TransportError> {
        let (mut last, mut partial) = (None, None);
        for index in self.order() {
            let asked = async {
                self.verify(index).await?;
                self.ask(index, calls).await
            };
            match asked.await {
                // Nothing but refusals: another endpoint may know.
                Ok(answers) if !answers.is_empty() && answers.iter().all(Result::is_err) => {
                    last = answers.into_iter().next().and_then(Result::err);
                }
                Ok(answers) if useful(&answers) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(answers);
                }
                Ok(answers) => {
                    if lack == Lack::Useless {
                        self.useless(index, "does not say what is needed");
                    }
                    partial = partial.or(Some(answers));
                }
                Err(error) => last = Some(error),
            }
        }
        partial.ok_or_else(|| last.unwrap_or_else(late))
    }

    /// Leaves an endpoint that answers alone for a while, if there is another.
    fn useless(&self, index: usize, why: &str) {
        if self.endpoints.len() > 1 && self.endpoints[index].set_aside() {
            tracing::warn!(endpoint = index + 1, why, "an RPC endpoint is left alone");
        }
    }

    /// What the preferred endpoint said cannot be so. Another one may have said it: each is asked which chain it is
    /// of before it is used again.
    pub(super) fn distrust(&self) {
        self.useless(self.preferred.load(Ordering::Relaxed), "says what cannot be so");
        self.endpoints.iter().for_each(Endpoint::doubt);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // Held only while another answer is on its way.
        if let Ok(mut ends) = self.ends.try_lock() {
            *ends = None;
        }
    }

    /// How many calls an endpoint of this chain takes in one request.
    pub(super) async fn batch(&self, index: usize) -> Result<usize, TransportError> {
        self.verify(index).await?;
        Ok(self.endpoints[index].batch.load(Ordering::Relaxed).max(1))
    }

    /// The gas of the latest block; 0 if it is not known.
    pub(super) fn block_gas(&self) -> u64 {
        self.block_gas.load(Ordering::Relaxed)
    }

    async fn one<T: DeserializeOwned>(
        &self,
        call: Call,
        useful: impl Fn(&T) -> bool,
    ) -> Result<T, TransportError> {
        let good = |answer: &Answer| {
            let Ok(value) = answer else { return false };
            serde_json::from_value(value.clone()).is_ok_and(|read| useful(&read))
        };
        let answers = self.needed(&[call], |answers| answers.iter().all(good)).await?;
        read(answers.into_iter().next().unwrap_or_else(|| Err(late())))
    }

    /// Hands over signed bytes: to the next endpoint too, if one says nothing for certain or will
    /// not have them. The same bytes may be handed to all. A no counts only if no other endpoint may
    /// have them: one that is busy may have kept them all the same.
    pub(super) async fn send_raw(&self, raw: &[u8]) -> Outcome {
        let call: Call = ("eth_sendRawTransaction", json!([hex_of(raw)]));
        let (mut doubt, mut busy, mut last) = (None, None, None);
        for index in self.order() {
            let asked = async {
                self.verify(index).await?;
                self.ask(index, std::slice::from_ref(&call)).await
            };
            let answer = asked.await.and_then(|mut all| all.pop().unwrap_or_else(|| Err(late())));
            match answer.map_err(|error| outcome_of(&error)) {
                Ok(_) => return Outcome::Pooled,
                Err(Outcome::Uncertain(said)) => doubt = doubt.or(Some(said)),
                Err(Outcome::Busy(said)) => busy = busy.or(Some(said)),
                Err(no @ (Outcome::Refused(_) | Outcome::Unfunded(_))) => last = Some(no),
                // A price that is too low is a no as well: not after a doubt.
                Err(Outcome::Underpriced(..) | Outcome::Expired)
                    if doubt.is_some() || busy.is_some() => {}
                Err(
                    answer @ (Outcome::Pooled
                    | Outcome::AlreadyKnown
                    | Outcome::Outdated
                    | Outcome::Underpriced(..)
                    | Outcome::Expired
                    | Outcome::NotSent(_)
                    | Outcome::Unwanted(_)),
                ) => return answer,
            }
        }
        match (doubt, busy, last) {
            (Some(said), _, _) => Outcome::Uncertain(said),
            (None, Some(said), _) => Outcome::Busy(said),
            (None, None, Some(no)) => no,
            (None, None, None) => Outcome::Uncertain("no endpoint was asked".to_owned()),
        }
    }

    /// The latest and the last final block, as they were at most half a poll ago.
    pub(super) async fn ends(&self) -> Result<Ends, TransportError> {
        // Held while it asks: a second asker waits for the same answer, as long as a call may take.
        let mut ends = self.ends.lock().await;
        if let Some(known) =
            ends.as_ref().filter(|known| tick().saturating_since(known.at) < self.poll / 2)
        {
            return Ok(known.clone());
        }
        let at = tick();
        let by_number = |place| ("eth_getBlockByNumber", json!([place, false]));
        let mut latest: RpcBlock = self.one(by_number(json!("latest")), |_| true).await?;
        if ends.as_ref().is_some_and(|before| self.is_doubtful(&before.latest, &latest)) {
            // Whichever endpoint said it, and whichever is asked next, first says which chain it is of. One of
            // another chain is left alone then, and does not keep the others from being used.
            self.endpoints.iter().for_each(Endpoint::doubt);
            latest = self.one(by_number(json!("latest")), |_| true).await?;
        }
        self.block_gas.store(latest.gas_limit.unwrap_or_default().to(), Ordering::Relaxed);
        self.compare(&latest).await;
        let known = ends.take().filter(|known| known.latest.hash == latest.hash);
        let finalized = match known {
            // It moves with the latest block.
            Some(known) => known.finalized,
            None => {
                let call = by_number(self.finalized_place(&latest));
                self.one(call, Option::<RpcBlock>::is_some).await?
            }
        };
        *ends = Some(Ends { latest: latest.clone(), finalized: finalized.clone(), at });
        Ok(Ends { latest, finalized, at })
    }

    /// Compares an endpoint whose latest block has not moved for a while with the others, and leaves
    /// it alone if one of them is ahead: it answers, but stands still.
    async fn compare(&self, latest: &RpcBlock) {
        let now = tick();
        {
            let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
            let due = moved.is_some_and(|(hash, at)| {
                hash == latest.hash && now >= at + STILL.max(10 * self.poll)
            });
            // Not again before as much time has passed.
            if due || moved.is_none_or(|(hash, _)| hash != latest.hash) {
                *moved = Some((latest.hash, now));
            }
            if !due || self.endpoints.len() < 2 {
                return;
            }
        }
        let still = self.preferred.load(Ordering::Relaxed);
        for index in self.order().into_iter().filter(|index| *index != still) {
            let asked = async {
                self.verify(index).await?;
                self.ask(index, &[("eth_blockNumber", json!([]))]).await
            };
            let number = asked.await.and_then(|mut all| all.pop().unwrap_or_else(|| Err(late())));
            if read::<U64>(number).is_ok_and(|number| number > latest.number) {
                let (endpoint, ahead) = (still + 1, index + 1);
                tracing::warn!(endpoint, ahead, "an RPC endpoint stands still: another is used");
                self.endpoints[still].failed();
                self.preferred.store(index, Ordering::Relaxed);
                return;
            }
        }
    }

    /// How the last final block is named.
    fn finalized_place(&self, latest: &RpcBlock) -> Value {
        match self.finality {
            Finality::Tag => json!("finalized"),
            Finality::Confirmations(depth) => {
                json!(U64::from(latest.number.to::<u64>().saturating_sub(depth)))
            }
        }
    }

    /// The account's next nonce in the pool, as the last head had it.
    pub(super) fn pool_nonce(&self, account: &AccountId) -> Option<u64> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.as_ref().filter(|seen| seen.account == *account).map(|seen| seen.head.pool_nonce)
    }

    /// Whether all receipts of a block can be had in one call.
    pub(super) fn gives_block_receipts(&self) -> bool {
        !self.no_block_receipts.load(Ordering::Relaxed)
    }

    /// All receipts of each of these blocks, by their numbers or hashes; `None` for one that is not
    /// known, or not told.
    pub(super) async fn receipts_of(
        &self,
        blocks: &[Value],
    ) -> Result<Vec<Option<Vec<RpcReceipt>>>, TransportError> {
        let call = |block: &Value| ("eth_getBlockReceipts", json!([block]));
        let calls: Vec<Call> = blocks.iter().map(call).collect();
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let answers = self.many(&calls).await;
        let unknown = |error: &TransportError| {
            error.as_error_resp().is_some_and(|said| said.code == METHOD_NOT_FOUND)
        };
        let refused = match &answers {
            Ok(answers) => answers.iter().filter_map(|answer| answer.as_ref().err()).any(unknown),
            Err(error) => unknown(error),
        };
        if refused {
            self.no_block_receipts.store(true, Ordering::Relaxed);
        }
        Ok(answers?.into_iter().map(|answer| read(answer).ok().flatten()).collect())
    }

    pub(super) async fn head(&self, account: &AccountId) -> Result<Head, ChainError> {
        let bad = |error: TransportError| told(&error);
        let _turn = self.reads_head.lock().await;
        // First of all: what is read after it is never older.
        let ends = self.ends().await.map_err(bad)?;
        let finalized = ends.finalized.ok_or(ChainError::NoFinality)?;
        let latest = ends.latest;
        let place = self.finalized_place(&latest);
        let (best, last) =
            (block(latest.number.to(), latest.hash), block(finalized.number.to(), finalized.hash));
        let now = tick();
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let seen = seen.filter(|seen| seen.account == *account);
        let same =
            seen.as_ref().filter(|seen| (seen.head.best, seen.head.finalized) == (best, last));
        let young = |at: Tick, polls: u32| now.saturating_since(at) < polls * self.poll;
        let money = seen.as_ref().filter(|seen| young(seen.money_at, MONEY_EVERY));
        let pool = same.filter(|seen| young(seen.pool_at, POOL_EVERY));
        let of = account.to_string();
        let nonce_at = |place: &Value| ("eth_getTransactionCount", json!([of, place]));
        let mut calls = Vec::new();
        if same.is_none() {
            calls.extend([nonce_at(&json!("latest")), nonce_at(&place)]);
        }
        if money.is_none() {
            let fees = json!([U64::from(FEE_BLOCKS), "latest", [50]]);
            calls.push(("eth_getBalance", json!([of, "latest"])));
            calls.push(("eth_feeHistory", fees));
        }
        if pool.is_none() {
            // Read last, so that it is never below what is in a block.
            calls.push(nonce_at(&json!("pending")));
        }
        if calls.is_empty() {
            return Ok(seen.map(|seen| seen.head).unwrap_or_default());
        }
        // The nonces in the best block and in the pool: without them there is no head.
        let (first, last_call) = (same.is_none(), pool.is_none());
        let number = |answer: Option<&Answer>| {
            let Some(Ok(value)) = answer else { return false };
            serde_json::from_value::<U64>(value.clone()).is_ok()
        };
        let useful = |answers: &[Answer]| {
            (!first || number(answers.first())) && (!last_call || number(answers.last()))
        };
        let mut answers = self.needed(&calls, useful).await.map_err(bad)?.into_iter();
        let mut next = || answers.next().unwrap_or_else(|| Err(late()));
        let base_fee = latest.base_fee_per_gas.unwrap_or_default().to();
        let mut head = Head { best, finalized: last, base_fee, ..Head::default() };
        (head.best_nonce, head.finalized_nonce) = match same {
            Some(seen) => (seen.head.best_nonce, seen.head.finalized_nonce),
            None => {
                let best: U64 = read(next()).map_err(bad)?;
                // A node without the old state cannot say: zero claims nothing.
                (best.to(), read::<U64>(next()).map_or(0, |nonce| nonce.to()))
            }
        };
        let money_at = match money {
            Some(seen) => {
                (head.balance, head.tip) = (seen.head.balance, seen.head.tip);
                // What the next block asks was read with the same latest block, or is not known.
                if same.is_some() {
                    head.base_fee = seen.head.base_fee;
                }
                seen.money_at
            }
            None => {
                head.balance = read::<U256>(next()).ok().map(|balance| balance.saturating_to());
                // A node without a history of fees still tells the last block's.
                let fees: Option<RpcFeeHistory> = read(next()).ok();
                let asked = fees.as_ref().and_then(|fees| fees.base_fee_per_gas.last().copied());
                head.base_fee = asked.map_or(base_fee, |fee| fee.to());
                head.tip = fees.and_then(|f| f.reward).map_or(0, |reward| going_tip(&reward));
                now
            }
        };
        let pool_at = match pool {
            Some(seen) => {
                head.pool_nonce = seen.head.pool_nonce;
                seen.pool_at
            }
            None => {
                head.pool_nonce = read::<U64>(next()).map_err(bad)?.to();
                now
            }
        };
        let seen = Seen { account: account.clone(), head, pool_at, money_at };
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        Ok(head)
    }
}

/// The middle of what recent blocks' middle transactions tipped: one block's whim does not count.
fn going_tip(reward: &[Vec<U128>]) -> u128 {
    let mut tips: Vec<u128> = reward.iter().filter_map(|one| Some(one.first()?.to())).collect();
    tips.sort_unstable();
    tips.get(tips.len() / 2).copied().unwrap_or(0)
}

async fn exchange(client: RpcClient, calls: Vec<Call>) -> Result<Vec<Answer>, TransportError> {
    if let [(method, params)] = &calls[..] {
        let answer = client.request::<_, Value>(*method, params.clone()).await;
        return match answer {
            Err(error) if is_silence(&error) => Err(error),
            answer => Ok(vec![answer]),
        };
    }
    let mut batch = client.new_batch();
    let waiters = calls
        .iter()
        .map(|(method, params)| batch.add_call::<_, Value>(*method, params))
        .collect::<Result<Vec<_>, _>>()?;
    batch.send().await?;
    Ok(join_all(waiters).await)
}

/// The shortest part of an address that is taken for a secret: `v3` and `rpc` are none.
const SHORTEST_SECRET: usize = 6;

/// What an address holds that lets others use it: user, password, keys in the path and in the query.
fn secrets_of(url: &Url) -> Vec<String> {
    let user = [url.username(), url.password().unwrap_or_default()].map(str::to_owned);
    let path = url.path_segments().into_iter().flatten().map(str::to_owned);
    let query = url.query_pairs().map(|(_, value)| value.into_owned());
    let parts = user.into_iter().chain(path).chain(query);
    parts.filter(|part| part.len() >= SHORTEST_SECRET).collect()
}

/// The error without the secrets.
fn masked(error: TransportError, secrets: &[String]) -> TransportError {
    let mask = |text: &str| {
        secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "…"))
    };
    match error {
        RpcError::ErrorResp(mut payload) => {
            payload.message = mask(&payload.message).into();
            let tells =
                |data: &RawValue| secrets.iter().any(|one| data.get().contains(one.as_str()));
            payload.data = payload.data.filter(|data| !tells(data));
            RpcError::ErrorResp(payload)
        }
        RpcError::Transport(TransportErrorKind::HttpError(http)) => {
            TransportErrorKind::http_error(http.status, mask(&http.body))
        }
        RpcError::DeserError { .. } => {
            unreadable("an answer is no JSON, or not what was asked for")
        }
        other => {
            let text = other.to_string();
            match secrets.iter().any(|secret| text.contains(secret.as_str())) {
                true => RpcError::Transport(TransportErrorKind::Custom(mask(&text).into())),
                false => other,
            }
        }
    }
}

/// Whether no answer of a node came at all, not even a refusal.
fn is_silence(error: &TransportError) -> bool {
    match error {
        // 413 and 400 are the answer of a server that does not take a request of this size.
        RpcError::Transport(TransportErrorKind::HttpError(http)) => {
            !matches!(http.status, 400 | 413)
        }
        RpcError::Transport(_) => true,
        _ => false,
    }
}

/// What an answer holds; one that cannot be read is no answer.
pub(super) fn read<T: DeserializeOwned>(
    answer: Result<Value, TransportError>,
) -> Result<T, TransportError> {
    serde_json::from_value(answer?).map_err(|_| unreadable("an answer has not the shape it should"))
}

fn unreadable(what: &'static str) -> TransportError {
    RpcError::LocalUsageError(what.into())
}

pub(super) fn late() -> TransportError {
    RpcError::Transport(TransportErrorKind::Custom("no answer in time".into()))
}
