//! Substrate JSON-RPC over WebSocket.
//!
//! `author_submitAndWatchExtrinsic` gives each extrinsic a subscription of its own with all ten
//! statuses. What it cannot do is watch an extrinsic that is in the pool already (error 1013): then
//! the account's nonce tells when it was used, and a search over the account's nonces at past
//! blocks tells by which extrinsic.
//!
//! A refusal is looked at closely before it counts, and one that cannot be looked at is uncertain. A final
//! extrinsic is told with its receipt: the block's events say whether its call succeeded, and why not.
//!
//! How an extrinsic is encoded and signed depends on the runtime: [`SubstrateSigner`] reads its
//! metadata; a program ([`CommandSigner`]) or any other [`crate::account::Signer`] may sign instead.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use tenure_tx::chain::substrate::{Key, SubstrateChain, SubstrateSigner};
//! use tenure_tx::{Chain, Signer};
//!
//! # async fn open() -> Result<(Arc<dyn Chain>, Arc<dyn Signer>), Box<dyn std::error::Error>> {
//! let chain = SubstrateChain::new("ws://127.0.0.1:9944", Duration::from_secs(5))?;
//! let scheme = chain.scheme(None).await?;
//! let signer = SubstrateSigner::new(&chain, Key::from_env("RELAYER_KEY", scheme)?);
//! # Ok((Arc::new(chain), Arc::new(signer)))
//! # }
//! ```

mod answer;
mod call;
mod command;
mod events;
mod extrinsic;
mod key;
mod line;
mod metadata;
mod past;
mod runtimes;
mod signer;
mod value;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use blake2::Digest as _;
use blake2::digest::consts::U32;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use subxt_rpcs::Error as RpcError;
use subxt_rpcs::client::{RpcClient, RpcSubscription, rpc_params};
use subxt_rpcs::methods::legacy::TransactionStatus as RpcStatus;
use tokio::time::timeout;

use super::quiet::quietly;
use super::{
    Block, Chain, ChainError, ChainIdentity, Head, Inspected, Located, Outcome, Receipt, Report,
    Sought, Submission,
};
use crate::account::{AccountId, MalformedAccount};
use crate::status::{Hash, TransactionStatus, unhex};
use answer::{Refusal, refusal};
use extrinsic::block;
use line::{Line, Unread, late};
use past::Past;

pub use call::SubstrateCall;
pub use command::CommandSigner;
pub use extrinsic::Period;
pub use key::{Key, Scheme};
pub use metadata::{Runtime, RuntimeError, Version};
pub use signer::SubstrateSigner;

/// The hash a Substrate chain gives an extrinsic: BLAKE2b-256 of its bytes.
#[must_use]
pub fn extrinsic_hash(raw: &[u8]) -> Hash {
    Hash(blake2::Blake2b::<U32>::digest(raw).into())
}

/// An account in SS58 with the generic prefix 42, as every node accepts it. Accounts of 20 bytes
/// (Ethereum-compatible runtimes) are written in hex.
#[must_use]
pub fn address(account: &AccountId) -> String {
    if account.as_bytes().len() == 20 {
        return account.to_string();
    }
    let mut bytes = vec![42];
    bytes.extend_from_slice(account.as_bytes());
    let checksum =
        blake2::Blake2b512::new().chain_update(b"SS58PRE").chain_update(&bytes).finalize();
    bytes.extend_from_slice(&checksum[..2]);
    bs58::encode(bytes).into_string()
}

/// The account of an SS58 address of any network, or of hex.
///
/// # Errors
/// [`MalformedAccount`], also if the checksum is not right.
pub fn account_of(text: &str) -> Result<AccountId, MalformedAccount> {
    if text.starts_with("0x") {
        return text.parse();
    }
    let bytes = bs58::decode(text).into_vec().map_err(|_| MalformedAccount)?;
    // Networks above 63 have a prefix of two bytes.
    let prefix = bytes.first().map_or(0, |first| 1 + usize::from(first >> 6 & 1));
    let (body, checksum) =
        bytes.split_at_checked(bytes.len().saturating_sub(2)).unwrap_or_default();
    let hash = blake2::Blake2b512::new().chain_update(b"SS58PRE").chain_update(body).finalize();
    match body.get(prefix..) {
        Some(account) if account.len() == 32 && checksum == &hash[..2] => AccountId::new(account),
        Some(_) | None => Err(MalformedAccount),
    }
}

/// One Substrate node. Connects when first used, and again when the connection broke. Cheap to clone.
#[derive(Clone)]
pub struct SubstrateChain {
    line: Arc<Line>,
}

impl std::fmt::Debug for SubstrateChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubstrateChain").finish_non_exhaustive()
    }
}

/// How many earlier births of a mortal extrinsic are tried before its signature is called bad.
const BIRTHS: u64 = 16;

/// How many blocks are read, one by one, for an extrinsic whose states are gone.
const WALK: u64 = 4096;

impl SubstrateChain {
    /// Names the node, without connecting; `timeout` bounds each request.
    ///
    /// # Errors
    /// [`ChainError::BadAddress`] if it is not a WebSocket URL.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, ChainError> {
        if !url.starts_with("ws://") && !url.starts_with("wss://") {
            return Err(ChainError::BadAddress("ws:// or wss://"));
        }
        Ok(SubstrateChain { line: Arc::new(Line::new(url, timeout)) })
    }

    async fn view(&self, account: &AccountId) -> Result<Head, RpcError> {
        let line = &self.line;
        let finalized: String = line.request("chain_getFinalizedHead", rpc_params![]).await?;
        let best: String = line.request("chain_getBlockHash", rpc_params![]).await?;
        let (finalized, best) = (line.block(finalized).await?, line.block(best).await?);
        let finalized_nonce = line.nonce_at(account, finalized.hash).await?;
        let best_nonce = line.nonce_at(account, best.hash).await?;
        let params = rpc_params![address(account)];
        let pool_nonce = line.request("system_accountNextIndex", params).await?;
        self.know_runtime(best).await;
        Ok(Head { best, finalized, best_nonce, finalized_nonce, pool_nonce, ..Head::default() })
    }

    /// Bytes that a caller signed are read with the runtime's metadata, which is best known before they
    /// come. A chain whose metadata cannot be read works without.
    async fn know_runtime(&self, best: Block) {
        if let Err(Unread::Node(error)) = self.line.present_runtime(best).await {
            let error = Unread::from(error).plainly();
            tracing::debug!(error, "the runtime is not known yet; asked again with the next head");
        }
    }

    /// The first block after which the account's nonce is above that of `one`.
    async fn search(
        past: &mut Past<'_>,
        one: &Sought,
        (mut low, mut high): (u64, u64),
    ) -> Result<Hash, Unread> {
        while low < high {
            let middle = low.midpoint(high);
            let at = past.hash_at(middle).await?;
            if past.nonce_at(at).await? > one.nonce {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        past.hash_at(low).await
    }

    /// Which of a block's extrinsics used the nonce: one of the attempts, or another one.
    async fn user_of(
        &self,
        past: &mut Past<'_>,
        account: &AccountId,
        one: &Sought,
        found: Hash,
    ) -> Result<Result<Hash, Option<Hash>>, Unread> {
        let all = past.extrinsics(found).await?;
        let mut hashes = all.iter().map(|raw| extrinsic_hash(raw));
        if let Some(ours) = hashes.find(|hash| one.attempts.contains(hash)) {
            return Ok(Ok(ours));
        }
        // Which other one it was is good to know, and no more than that.
        let runtimes = self.line.runtimes();
        let other = all.iter().find(|raw| {
            let parsed = runtimes.iter().find_map(|runtime| runtime.parse(raw).ok());
            parsed.is_some_and(|extrinsic| {
                extrinsic.account == account.as_bytes() && extrinsic.nonce == Some(one.nonce)
            })
        });
        Ok(Err(other.map(|raw| extrinsic_hash(raw))))
    }

    async fn locate_one(
        &self,
        past: &mut Past<'_>,
        account: &AccountId,
        one: &Sought,
        head: &Head,
    ) -> Result<Located, Unread> {
        if one.nonce >= head.best_nonce {
            return Ok(Located::Free);
        }
        let finalized = one.nonce < head.finalized_nonce;
        let range = if finalized {
            (one.since.min(head.finalized.number), head.finalized.number)
        } else {
            (head.finalized.number, head.best.number)
        };
        let found = match Self::search(past, one, range).await {
            Ok(found) => found,
            Err(error) if error.is_pruned() && finalized => {
                return Self::walk(past, one, range).await;
            }
            Err(error) => return Err(error),
        };
        match self.user_of(past, account, one, found).await? {
            Ok(hash) => Self::placed(past, hash, found, finalized).await,
            Err(by) if finalized => Ok(Located::Usurped { by }),
            Err(_) => Ok(Located::Unknown),
        }
    }

    /// Reads final blocks one by one: the states that would tell are gone.
    async fn walk(
        past: &mut Past<'_>,
        one: &Sought,
        (low, high): (u64, u64),
    ) -> Result<Located, Unread> {
        for number in low..=high.min(low.saturating_add(WALK)) {
            let at = past.hash_at(number).await?;
            let all = past.extrinsics(at).await?;
            let mut hashes = all.iter().map(|raw| extrinsic_hash(raw));
            if let Some(hash) = hashes.find(|hash| one.attempts.contains(hash)) {
                return Self::placed(past, hash, at, true).await;
            }
        }
        // None of the blocks since it was built has it; of a longer past that is not known.
        let whole = high - low <= WALK;
        Ok(if whole { Located::Usurped { by: None } } else { Located::Missing })
    }

    async fn placed(
        past: &mut Past<'_>,
        hash: Hash,
        at: Hash,
        finalized: bool,
    ) -> Result<Located, Unread> {
        let receipt = if finalized { past.receipt(at, hash).await? } else { None };
        Ok(Located::InBlock { hash, block: at, finalized, receipt })
    }

    /// What a refusal means when it is looked at closely. What cannot be looked at is uncertain.
    async fn examined(&self, account: &AccountId, nonce: u64, raw: &[u8], no: Refusal) -> Outcome {
        let (text, outcome) = match no {
            Refusal::Clear(outcome) => return outcome,
            Refusal::TooManySubscriptions(text) => return Outcome::Busy(text),
            Refusal::BadSignature(text) => (text.clone(), self.bad_signature(raw, text).await),
            Refusal::Failed(text) => (text.clone(), self.failed(raw, text).await),
            Refusal::Banned(text) => (text.clone(), self.banned(account, nonce, raw, text).await),
        };
        outcome.unwrap_or_else(|error| Outcome::Uncertain(format!("{text}; {}", error.plainly())))
    }

    /// An extrinsic whose era has passed is read as born a period later, and then its signature is
    /// of another block. So earlier births are tried before it is called bad.
    async fn bad_signature(&self, raw: &[u8], text: String) -> Result<Outcome, Unread> {
        let best = self.line.best().await?;
        let present = self.line.present_runtime(best).await?;
        let genesis = self.line.genesis().await?;
        for runtime in self.line.runtimes() {
            let is_present = Arc::ptr_eq(&runtime, &present);
            let Ok(extrinsic) = runtime.parse(raw) else { continue };
            let Some(era) = extrinsic.era else {
                if !is_present && runtime.was_signed(&extrinsic, block(0, genesis)) {
                    return Ok(Outcome::Unwanted(format!("{text}; signed for a runtime before")));
                }
                continue;
            };
            let newest = era.birth(best.number + 1);
            for earlier in 0..BIRTHS {
                let number = newest.checked_sub(earlier * era.period.blocks());
                let Some(number) = number else { break };
                if number > best.number {
                    continue;
                }
                let birth = block(number, self.line.hash_at(number).await?);
                if runtime.was_signed(&extrinsic, birth) {
                    return Ok(match (is_present, earlier) {
                        (true, 0) => Outcome::Uncertain(format!("{text}; it verifies here")),
                        (false, 0) => {
                            Outcome::Unwanted(format!("{text}; signed for a runtime before"))
                        }
                        (_, _) => Outcome::Expired,
                    });
                }
            }
        }
        Ok(Outcome::Refused(text))
    }

    /// A runtime fails at bytes that are no extrinsic of it, and it may fail for other reasons.
    async fn failed(&self, raw: &[u8], text: String) -> Result<Outcome, Unread> {
        let best = self.line.best().await?;
        let runtime = self.line.present_runtime(best).await?;
        if runtime.parse(raw).is_ok() {
            return Ok(Outcome::Uncertain(text));
        }
        // After an upgrade the runtime may fail at what the one before it reads.
        self.bad_signature(raw, format!("{text}; not an extrinsic of this runtime")).await
    }

    async fn banned(
        &self,
        account: &AccountId,
        nonce: u64,
        raw: &[u8],
        text: String,
    ) -> Result<Outcome, Unread> {
        let best = self.line.best().await?;
        if self.line.nonce_at(account, best.hash).await? > nonce {
            return Ok(Outcome::Outdated);
        }
        // Lists those that are ready; one that waits for an earlier nonce would not be banned.
        let pending: Vec<String> =
            self.line.request("author_pendingExtrinsics", rpc_params![]).await?;
        let known = pending.iter().any(|one| unhex(one).is_some_and(|bytes| bytes == raw));
        Ok(if known { Outcome::AlreadyKnown } else { Outcome::Unwanted(text) })
    }
}

#[async_trait]
impl Chain for SubstrateChain {
    async fn head(&self, account: &AccountId) -> Result<Head, ChainError> {
        self.view(account).await.map_err(|error| Unread::from(error).told())
    }

    async fn submit(&self, account: &AccountId, nonce: u64, raw: Bytes) -> Submission {
        let hash = extrinsic_hash(&raw);
        let text = format!("0x{}", hex::encode(&raw));
        let mut full = None;
        // A second time on a new connection, if the first has no room for the subscription.
        for _ in 0..2 {
            let (number, client) = match self.line.client().await {
                Ok(client) => client,
                // Nothing left this process, but a node may have it from before.
                Err(error) => {
                    let why = Unread::from(error).plainly();
                    return Submission::answer(Outcome::Uncertain(why));
                }
            };
            let (asking, params) = (client.clone(), rpc_params![&text]);
            let (watch, unwatch) = ("author_submitAndWatchExtrinsic", "author_unwatchExtrinsic");
            let subscribe = quietly(async move { asking.subscribe(watch, params, unwatch).await });
            let answer = timeout(self.line.timeout, subscribe).await;
            let answer = answer.unwrap_or_else(|_| Err(late()));
            match self.line.checked(number, answer).await {
                Ok(subscription) => {
                    let line = Arc::clone(&self.line);
                    return Submission::watched(statuses(line, client, subscription, hash));
                }
                Err(RpcError::User(error)) => match refusal(&error) {
                    no @ Refusal::TooManySubscriptions(_) => {
                        self.line.leave(number).await;
                        full = Some(no);
                    }
                    no => return Submission::answer(self.examined(account, nonce, &raw, no).await),
                },
                Err(error) => {
                    let why = Unread::from(error).plainly();
                    return Submission::answer(Outcome::Uncertain(why));
                }
            }
        }
        let no = full.expect("the loop goes on only where there was no room");
        Submission::answer(self.examined(account, nonce, &raw, no).await)
    }

    async fn identity(&self) -> Result<ChainIdentity, ChainError> {
        let genesis = self.line.genesis_now().await;
        let genesis = genesis.map_err(|error| Unread::from(error).told())?;
        Ok(ChainIdentity { id: None, genesis })
    }

    async fn locate(&self, account: &AccountId, sought: &[Sought]) -> Vec<Located> {
        let Ok(head) = self.view(account).await else {
            return vec![Located::Unknown; sought.len()];
        };
        let mut past = Past::new(&self.line, account);
        let mut located = Vec::with_capacity(sought.len());
        for one in sought {
            let found = self.locate_one(&mut past, account, one, &head).await;
            located.push(found.unwrap_or(Located::Unknown));
        }
        located
    }

    fn inspect(&self, raw: &[u8]) -> Result<Inspected, ChainError> {
        if compact_length(raw) != Some(raw.len()) {
            let message = "an extrinsic begins with its own length".to_owned();
            return Err(ChainError::Malformed(message));
        }
        let hash = extrinsic_hash(raw);
        // Account, nonce and tip can be read only with the runtime's metadata.
        let runtimes = self.line.runtimes();
        let read = runtimes.iter().find_map(|runtime| runtime.parse(raw).ok());
        let Some(read) = read else {
            return Ok(Inspected { hash, account: None, nonce: None, tip: None });
        };
        let account = AccountId::new(read.account).ok();
        Ok(Inspected { hash, account, nonce: read.nonce, tip: read.tip })
    }
}

/// The total length an extrinsic claims: SCALE's compact prefix and what it counts.
fn compact_length(raw: &[u8]) -> Option<usize> {
    let first = *raw.first()?;
    let (prefix, width) = match first & 0b11 {
        0 => (1, 1),
        1 => (2, 2),
        2 => (4, 4),
        _ => {
            let width = usize::from(first >> 2) + 4;
            let mut bytes = [0; 8];
            bytes.get_mut(..width)?.copy_from_slice(raw.get(1..=width)?);
            return usize::try_from(u64::from_le_bytes(bytes)).ok()?.checked_add(1 + width);
        }
    };
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(raw.get(..prefix)?);
    Some(usize::try_from(u64::from_le_bytes(bytes) >> 2).ok()? + prefix)
}

/// The watch keeps its connection: without the client the subscription would end.
fn statuses(
    line: Arc<Line>,
    client: RpcClient,
    subscription: RpcSubscription<RpcStatus<Hash>>,
    hash: Hash,
) -> super::StatusStream {
    let begin = (line, client, subscription);
    let watch = stream::unfold(begin, move |(line, client, mut subscription)| async move {
        // An error is the end of the watch, not of the transaction.
        let status = translate(subscription.next().await?.ok()?);
        let mut report = Report::from(status);
        if let TransactionStatus::Finalized(block) = report.status {
            // Without its receipt a final extrinsic is not told: a look at the chain tells it later.
            report.receipt = Some(receipt(&line, block, hash).await?);
        }
        Some((report, (line, client, subscription)))
    });
    watch.boxed()
}

async fn receipt(line: &Line, block: Hash, extrinsic: Hash) -> Option<Receipt> {
    let all = line.extrinsics(block).await.ok()?;
    let place = all.iter().position(|raw| extrinsic_hash(raw) == extrinsic)?;
    let events = line.events(block).await.ok()?;
    Some(events.receipt(u32::try_from(place).ok()?))
}

fn translate(status: RpcStatus<Hash>) -> TransactionStatus {
    match status {
        RpcStatus::Future => TransactionStatus::Future,
        RpcStatus::Ready => TransactionStatus::Ready,
        RpcStatus::Broadcast(peers) => TransactionStatus::Broadcast(peers),
        RpcStatus::InBlock(block) => TransactionStatus::InBlock(block),
        RpcStatus::Retracted(block) => TransactionStatus::Retracted(block),
        RpcStatus::FinalityTimeout(block) => TransactionStatus::FinalityTimeout(block),
        RpcStatus::Finalized(block) => TransactionStatus::Finalized(block),
        RpcStatus::Usurped(by) => TransactionStatus::Usurped(Some(by)),
        RpcStatus::Dropped => TransactionStatus::Dropped,
        RpcStatus::Invalid => TransactionStatus::Invalid(None),
    }
}

#[cfg(test)]
mod tests;
