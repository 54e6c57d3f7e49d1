//! Ethereum JSON-RPC over HTTP.
//!
//! A node has no subscription that follows one transaction, so this adapter keeps one follower per
//! chain: each poll reads the latest block, walks back to the last one it knew, and tells every
//! watch what that means. What is in no block is looked up every few polls; a
//! transaction the node does not know, twice in a row, was dropped.
//!
//! Before a no to a submission counts, and whenever an answer is uncertain, the node is asked whether it
//! knows the hash.
//!
//! For any number of transactions, a poll is a handful of requests: calls that belong together go
//! in one. Several addresses may be given; the first that answers is asked.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use tenure_tx::chain::ethereum::{EthereumChain, EthereumOptions, EthereumSigner};
//! use tenure_tx::{Chain, Signer};
//!
//! # async fn open() -> Result<(Arc<dyn Chain>, Arc<dyn Signer>), Box<dyn std::error::Error>> {
//! let chain = EthereumChain::new("http://127.0.0.1:8545", EthereumOptions::default())?;
//! let id = chain.chain_id().await?;
//! let signer = EthereumSigner::from_env("RELAYER_KEY", id, chain.fees())?;
//! # Ok((Arc::new(chain), Arc::new(signer)))
//! # }
//! ```

mod answer;
mod follower;
mod identity;
mod revert;
mod rpc;
mod run;
mod signer;
mod transport;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use alloy_consensus::transaction::SignerRecoverable as _;
use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2718::Decodable2718 as _;
use alloy_json_rpc::RpcError;
use alloy_primitives::{Address, B256, U64, hex};
use alloy_transport::TransportErrorKind;
use async_trait::async_trait;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use url::Url;

use super::{
    Block, Chain, ChainError, ChainIdentity, Head, Inspected, Located, Outcome, Receipt, Sought,
    Submission, without_addresses,
};
use crate::account::AccountId;
use crate::status::Hash;
use follower::Follower;
use rpc::{Call, Rpc, RpcBlock, RpcReceipt, RpcTransaction, read};
pub use signer::{EthereumCall, EthereumSigner, Fees};

/// When a block counts as final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finality {
    /// When the node's `finalized` tag has reached it.
    Tag,
    /// This many blocks later: for chains without finality. Choose more than any reorganisation
    /// was ever deep; too few and a finalised status may turn out wrong.
    Confirmations(u64),
}

/// How the adapter talks to its node.
#[derive(Debug, Clone)]
pub struct EthereumOptions {
    /// How often the latest block is read. Default 1 s; a third of the block time is plenty. Must be above
    /// zero, or the node is asked without a pause.
    pub poll: Duration,
    /// How long one request may take before another node is asked. Default 5 s.
    pub timeout: Duration,
    /// When a block is final. Default the node's tag.
    pub finality: Finality,
    /// Every how many polls transactions outside any block are looked up. Default 5.
    pub lookup_every: u32,
    /// The most that is ever paid for a unit of gas, in wei, tip and base fee together; `None` for no
    /// cap. Default 50 gwei. A base fee above it is waited out.
    pub max_fee_per_gas: Option<u128>,
    /// The most that is ever paid for one transaction's gas, in wei; `None` for no cap. Default 0.01
    /// ether.
    pub max_fee: Option<u128>,
}

impl Default for EthereumOptions {
    fn default() -> Self {
        EthereumOptions {
            poll: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
            finality: Finality::Tag,
            lookup_every: 5,
            max_fee_per_gas: Some(50_000_000_000),
            max_fee: Some(10_000_000_000_000_000),
        }
    }
}

/// One Ethereum chain, through one node or several. Cheap to clone; the follower ends with the last clone.
#[derive(Clone)]
pub struct EthereumChain {
    rpc: Rpc,
    follower: Arc<Follower>,
    fees: Fees,
}

impl EthereumChain {
    /// Names the node and starts the follower; the first request is made when needed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Errors
    /// [`ChainError::BadAddress`] if it is not an HTTP URL.
    pub fn new(url: &str, options: EthereumOptions) -> Result<Self, ChainError> {
        Self::with_endpoints([url], options)
    }

    /// As [`EthereumChain::new`], with several nodes of the same chain, the preferred one first. One
    /// that fails is left alone for a while, and one of another chain is never used.
    ///
    /// # Errors
    /// [`ChainError::BadAddress`] if one is not an HTTP URL, or if there is none.
    pub fn with_endpoints<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        options: EthereumOptions,
    ) -> Result<Self, ChainError> {
        let bad = || ChainError::BadAddress("http:// or https://");
        let parse = |url: &str| url.parse::<Url>().map_err(|_| bad());
        let urls = urls.into_iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if urls.is_empty() || urls.iter().any(|url| !matches!(url.scheme(), "http" | "https")) {
            return Err(bad());
        }
        let rpc = Rpc::new(urls, &options);
        let follower = Follower::start(rpc.clone(), &options);
        let fees = Fees::with_caps(options.max_fee_per_gas, options.max_fee);
        Ok(EthereumChain { rpc, follower, fees })
    }

    /// The chain's id, which a signature covers: what [`EthereumSigner`] needs.
    ///
    /// # Errors
    /// [`ChainError::Unreachable`] if no node answers; ask again. [`ChainError::Unreadable`] if it has no id.
    pub async fn chain_id(&self) -> Result<u64, ChainError> {
        let identity = self.rpc.identity().await?;
        identity.id.ok_or_else(|| ChainError::Unreadable("no chain id".to_owned()))
    }

    /// The base fee as last seen, for [`EthereumSigner`]. Every [`Chain::head`] of this chain or of
    /// its clones renews it.
    #[must_use]
    pub fn fees(&self) -> Fees {
        self.fees.clone()
    }
}

impl std::fmt::Debug for EthereumChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EthereumChain").finish_non_exhaustive()
    }
}

#[async_trait]
impl Chain for EthereumChain {
    async fn head(&self, account: &AccountId) -> Result<Head, ChainError> {
        let head = self.rpc.head(account).await?;
        self.fees.set_base(head.base_fee);
        self.fees.set_block_gas(self.rpc.block_gas());
        Ok(Head { fee_cap: self.fees.cap_per_gas(), ..head })
    }

    async fn identity(&self) -> Result<ChainIdentity, ChainError> {
        self.rpc.identity().await
    }

    fn distrust(&self) {
        self.rpc.distrust();
    }

    async fn submit(&self, account: &AccountId, nonce: u64, raw: Bytes) -> Submission {
        let hash = Hash(alloy_primitives::keccak256(&raw).0);
        let outcome = match self.rpc.send_raw(&raw).await {
            no @ (Outcome::Uncertain(_) | Outcome::Refused(_)) => match self.knows(hash).await {
                // A node that has it has taken it, whatever was said of it on the way.
                Some(true) => Outcome::AlreadyKnown,
                Some(false) => no,
                // A question without an answer confirms no refusal.
                None => Outcome::Uncertain(no.answer().unwrap_or_default().to_owned()),
            },
            outcome => outcome,
        };
        match outcome {
            Outcome::Pooled | Outcome::AlreadyKnown => {
                match self.follower.watch(account, nonce, hash) {
                    Some(watch) => Submission::watched(watch),
                    None => Submission::answer(Outcome::AlreadyKnown),
                }
            }
            outcome => Submission::answer(outcome),
        }
    }

    async fn locate(&self, account: &AccountId, sought: &[Sought]) -> Vec<Located> {
        // The nonces first: whatever they count is then in a receipt.
        let Ok(head) = self.rpc.head(account).await else {
            return vec![Located::Unknown; sought.len()];
        };
        let Ok(mut located) = self.find(sought, &head).await else {
            return vec![Located::Unknown; sought.len()];
        };
        let mut past = Past::default();
        for (one, found) in sought.iter().zip(&mut located) {
            if *found == Located::Missing {
                let usurper = self.usurper(account, one, &head, &mut past).await;
                *found = usurper.unwrap_or(Located::Missing);
            }
        }
        let told = located.iter_mut().filter_map(|found| {
            let Located::InBlock { hash, finalized: true, receipt, .. } = found else {
                return None;
            };
            Some((*hash, receipt.as_mut()?))
        });
        revert::explain(&self.rpc, told).await;
        located
    }

    fn inspect(&self, raw: &[u8]) -> Result<Inspected, ChainError> {
        let malformed = |e: String| ChainError::Malformed(e);
        let tx =
            TxEnvelope::decode_2718_exact(raw).map_err(|error| malformed(error.to_string()))?;
        let signer = tx.recover_signer().map_err(|error| malformed(error.to_string()))?;
        let account =
            AccountId::new(signer.as_slice()).map_err(|error| malformed(error.to_string()))?;
        Ok(Inspected {
            hash: Hash(tx.tx_hash().0),
            account: Some(account),
            nonce: Some(tx.nonce()),
            tip: tx.max_priority_fee_per_gas(),
        })
    }
}

impl EthereumChain {
    /// Whether the node has these bytes, in its pool or in a block. `None`: it does not say.
    async fn knows(&self, hash: Hash) -> Option<bool> {
        let call = ("eth_getTransactionByHash", json!([B256::from(hash.0)]));
        let answer = self.rpc.many(&[call]).await.ok()?.pop()?;
        Some(read::<Option<RpcTransaction>>(answer).ok()?.is_some())
    }

    /// The receipts of those that were last seen in a block together with others: one call for all.
    async fn by_block(&self, sought: &[Sought]) -> Result<Receipts, TransportError> {
        let mut blocks: HashMap<Hash, usize> = HashMap::new();
        for block in sought.iter().filter_map(|one| one.block) {
            *blocks.entry(block).or_default() += 1;
        }
        let shared = |(block, count): (Hash, usize)| {
            (count > 1 && self.rpc.gives_block_receipts()).then(|| json!(B256::from(block.0)))
        };
        let shared: Vec<_> = blocks.into_iter().filter_map(shared).collect();
        let receipts = self.rpc.receipts_of(&shared).await?;
        let receipts = receipts.into_iter().flatten().flatten();
        Ok(receipts.map(|seen| (Hash(seen.transaction_hash.0), Ok(Some(seen)))).collect())
    }

    /// Looks for a receipt of any attempt: in the block where it was last seen, and then anywhere. A
    /// node may still have the receipts of a block that left the chain, and they prove nothing.
    async fn find(&self, sought: &[Sought], head: &Head) -> Result<Vec<Located>, TransportError> {
        let mut located = self.look(sought, head, self.by_block(sought).await?).await?;
        let unsure = |(at, found): (usize, &Located)| {
            (*found == Located::Unknown && sought[at].block.is_some()).then_some(at)
        };
        let unsure: Vec<usize> = located.iter().enumerate().filter_map(unsure).collect();
        if !unsure.is_empty() {
            let again: Vec<Sought> = unsure.iter().map(|at| sought[*at].clone()).collect();
            let found = self.look(&again, head, HashMap::new()).await?;
            for (at, found) in unsure.into_iter().zip(found) {
                located[at] = found;
            }
        }
        Ok(located)
    }

    /// Looks for receipts that are not known, each in a block that is the chain's at its height.
    async fn look(
        &self,
        sought: &[Sought],
        head: &Head,
        mut known: Receipts,
    ) -> Result<Vec<Located>, TransportError> {
        let apart = |one: &&Sought| !one.attempts.iter().any(|hash| known.contains_key(hash));
        let rest: Vec<&Hash> = sought.iter().filter(apart).flat_map(|one| &one.attempts).collect();
        let call = |hash: &&Hash| ("eth_getTransactionReceipt", json!([B256::from(hash.0)]));
        let calls: Vec<Call> = rest.iter().map(call).collect();
        let answers = match calls.is_empty() {
            true => Vec::new(),
            false => self.rpc.many(&calls).await?,
        };
        for (hash, answer) in rest.into_iter().copied().zip(answers) {
            known.insert(hash, read::<Option<RpcReceipt>>(answer).map_err(drop));
        }
        let receipt_of = |one: &Sought| {
            let mut receipt = Ok(None);
            for hash in &one.attempts {
                match known.get(hash) {
                    Some(Ok(Some(seen))) => receipt = Ok(Some((*hash, seen.clone()))),
                    Some(Ok(None)) | None => {}
                    // One that could not be asked for may be the one.
                    Some(Err(())) if matches!(receipt, Ok(None)) => receipt = Err(()),
                    Some(Err(())) => {}
                }
            }
            receipt
        };
        let found: Vec<_> = sought.iter().map(receipt_of).collect();
        let mut heights: Vec<u64> = Vec::new();
        heights.extend(found.iter().flatten().flatten().map(|(_, r)| r.block_number.to::<u64>()));
        heights.sort_unstable();
        heights.dedup();
        let call = |at: &u64| ("eth_getBlockByNumber", json!([U64::from(*at), false]));
        let calls: Vec<Call> = heights.iter().map(call).collect();
        let blocks = match calls.is_empty() {
            true => Vec::new(),
            false => self.rpc.many(&calls).await?,
        };
        let canonical: HashMap<u64, B256> = heights
            .into_iter()
            .zip(blocks)
            .filter_map(|(at, block)| Some((at, read::<RpcBlock>(block).ok()?.hash)))
            .collect();
        let place = |one: &Sought, receipt| match receipt {
            Ok(Some((hash, receipt))) => placed(hash, &receipt, &canonical, head),
            Err(()) => Located::Unknown,
            Ok(None) if one.nonce < head.finalized_nonce => Located::Missing,
            Ok(None) if one.nonce >= head.best_nonce => Located::Free,
            Ok(None) => Located::Unknown,
        };
        Ok(sought.iter().zip(found).map(|(one, receipt)| place(one, receipt)).collect())
    }

    /// Searches the final block that used a nonce, and reads it: by which transaction. `None` if the
    /// node cannot look that far back.
    async fn usurper(
        &self,
        account: &AccountId,
        one: &Sought,
        head: &Head,
        past: &mut Past,
    ) -> Option<Located> {
        let (mut low, mut high) = (one.since.min(head.finalized.number), head.finalized.number);
        while low < high {
            let middle = low.midpoint(high);
            let count = match past.counts.get(&middle) {
                Some(count) => *count,
                None => {
                    let place = json!([account.to_string(), U64::from(middle)]);
                    let call = ("eth_getTransactionCount", place);
                    let answer = self.rpc.many(&[call]).await.ok()?.pop()?;
                    let count = read::<U64>(answer).ok()?.to::<u64>();
                    *past.counts.entry(middle).or_insert(count)
                }
            };
            match count > one.nonce {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        let block = match past.blocks.entry(low) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let call = ("eth_getBlockByNumber", json!([U64::from(low), true]));
                place.insert(read(self.rpc.many(&[call]).await.ok()?.pop()?).ok()?)
            }
        };
        let from = |tx: &&FullTransaction| tx.from.as_slice() == account.as_bytes();
        let used = |tx: &&FullTransaction| tx.nonce.to::<u64>() == one.nonce;
        let tx = block.transactions.iter().filter(from).find(used)?;
        let (hash, block) = (Hash(tx.hash.0), Hash(block.hash.0));
        Some(match one.attempts.contains(&hash) {
            // Ours after all. Whether it succeeded, its receipt tells, and a node may be late with it.
            true if head.finalized.number.saturating_sub(low) < LATE_RECEIPT => Located::Unknown,
            true => {
                let receipt = Receipt { number: Some(low), ..Receipt::default() };
                Located::InBlock { hash, block, finalized: true, receipt: Some(receipt) }
            }
            false => Located::Usurped { by: Some(hash) },
        })
    }
}

/// The receipts of signed forms; `Err` for one that could not be asked for.
type Receipts = HashMap<Hash, Result<Option<RpcReceipt>, ()>>;

/// For how many final blocks the receipt of a transaction that is in a final block is waited for. A
/// node that has none after that has forgotten it, and the request ends without it.
const LATE_RECEIPT: u64 = 256;

/// What was read of the past for one question: its nonces are near each other, and so are their blocks.
#[derive(Debug, Default)]
struct Past {
    /// The account's next nonce, by block.
    counts: HashMap<u64, u64>,
    blocks: HashMap<u64, FullBlock>,
}

/// A block with its transactions, as far as the search for a usurper needs it.
#[derive(Debug, Deserialize)]
struct FullBlock {
    hash: B256,
    transactions: Vec<FullTransaction>,
}

#[derive(Debug, Deserialize)]
struct FullTransaction {
    hash: B256,
    from: Address,
    nonce: U64,
}

fn placed(
    hash: Hash,
    receipt: &RpcReceipt,
    canonical: &HashMap<u64, B256>,
    head: &Head,
) -> Located {
    let number = receipt.block_number.to::<u64>();
    if canonical.get(&number) != Some(&receipt.block_hash) {
        // A receipt of a block that is not, or no longer, the chain's.
        return Located::Unknown;
    }
    Located::InBlock {
        hash,
        block: Hash(receipt.block_hash.0),
        finalized: number <= head.finalized.number,
        receipt: Some(receipt_of(receipt)),
    }
}

fn receipt_of(receipt: &RpcReceipt) -> Receipt {
    let success = receipt.status.map(|status| status == U64::from(1));
    let gas = receipt.gas_used.zip(receipt.effective_gas_price);
    let gas = gas.map(|(gas, price)| gas.to::<u128>().saturating_mul(price.to()));
    // A chain on top of another charges for its place there as well.
    let below = receipt.l1_fee.unwrap_or_default().to::<u128>();
    let said = receipt.revert_reason.as_ref();
    let said = said.map(|said| revert::reason_in(said).unwrap_or_else(|| said.clone()));
    Receipt {
        number: Some(receipt.block_number.to()),
        success,
        reason: said.filter(|_| success == Some(false)),
        fee: gas.map(|gas| gas.saturating_add(below)),
    }
}

type TransportError = RpcError<TransportErrorKind>;

fn plainly(error: &TransportError) -> String {
    match error {
        // Not the page behind it.
        RpcError::Transport(TransportErrorKind::HttpError(http)) => format!("HTTP {}", http.status),
        // This process's own words, without the library's word for them.
        RpcError::LocalUsageError(why) => without_addresses(why.to_string()),
        other => without_addresses(other.to_string()),
    }
}

fn block(number: u64, hash: B256) -> Block {
    Block { number, hash: Hash(hash.0) }
}

fn hex_of(bytes: &[u8]) -> String {
    hex::encode_prefixed(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fee_of_a_rollup_is_that_of_both_chains() {
        let receipt = json!({
            "transactionHash": B256::ZERO, "blockHash": B256::ZERO, "blockNumber": "0x7",
            "status": "0x1", "gasUsed": "0x5208", "effectiveGasPrice": "0x2",
        });
        let fee = |receipt: &serde_json::Value| {
            let receipt: RpcReceipt = serde_json::from_value(receipt.clone()).expect("a receipt");
            receipt_of(&receipt).fee
        };
        assert_eq!(fee(&receipt), Some(42_000));
        let mut rollup = receipt;
        rollup["l1Fee"] = json!("0x3e8");
        assert_eq!(fee(&rollup), Some(43_000));
    }

    #[tokio::test]
    async fn an_address_with_a_key_in_it_is_never_shown() {
        let secret = "0123456789abcdef";
        let url = format!("http://user:{secret}@127.0.0.1:1/v3/{secret}");
        let chain = EthereumChain::new(&url, EthereumOptions::default()).expect("a URL");
        let account = AccountId::new([1; 20]).expect("20 bytes");
        let head = chain.head(&account).await.expect_err("no node listens there").to_string();
        let id = chain.chain_id().await.expect_err("no node listens there").to_string();
        let sent = chain.submit(&account, 0, Bytes::from_static(b"x")).await;
        let Outcome::Uncertain(sent) = sent.outcome else { panic!("{sent:?}") };
        let malformed =
            EthereumChain::new(&format!("ht tp://{secret}"), EthereumOptions::default());
        let malformed = malformed.expect_err("no URL").to_string();
        for text in [head, id, sent, malformed, format!("{chain:?}")] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}
