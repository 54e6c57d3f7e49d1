//! Substrate JSON-RPC over WebSocket.
//!
//! `author_submitAndWatchExtrinsic` gives each extrinsic a subscription of its own with all ten
//! statuses. What it cannot do is watch an extrinsic that is in the pool already (error 1013): then
//! the account's nonce tells when it was used, and a search over the account's nonces at past
//! blocks tells by which extrinsic.
//!
//! | error | outcome |
//! |---|---|
//! | 1010 outdated | outdated: which attempt was it? |
//! | 1010 ancient birth block | expired: sign anew |
//! | 1010 anything else | refused |
//! | 1012 temporarily banned | already known if it is pending, else uncertain: it may be there |
//! | 1013 already imported | already known, unwatched |
//! | 1014 priority too low | underpriced: higher tip |
//! | 1011 unknown validity, 1016 dropped at once | busy: later |
//! | others, or nothing | uncertain: it may be there |
//!
//! How an extrinsic is encoded and signed depends on the runtime: the caller brings the
//! [`crate::account::Signer`] (with subxt, say), or a program ([`CommandSigner`]);
//! [`extrinsic_hash`] gives the hash it has to report.

mod command;

use std::time::Duration;

use async_trait::async_trait;
use blake2::Digest as _;
use blake2::digest::consts::U32;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use subxt_rpcs::client::{RpcClient, RpcParams, RpcSubscription, rpc_params};
use subxt_rpcs::methods::legacy::TransactionStatus as RpcStatus;
use subxt_rpcs::{Error as RpcError, UserError};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::quiet::quietly;
use super::{
    Block, Chain, ChainError, ChainIdentity, Head, Inspected, Located, Outcome, Report, Shortfall,
    Sought, Submission, without_addresses,
};
use crate::account::{AccountId, MalformedAccount};
use crate::status::{Hash, TransactionStatus, unhex};

pub use command::CommandSigner;

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

/// One Substrate node. Connects when first used, and again when the line broke.
pub struct SubstrateChain {
    url: String,
    timeout: Duration,
    client: Mutex<Option<RpcClient>>,
}

impl std::fmt::Debug for SubstrateChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubstrateChain").finish_non_exhaustive()
    }
}

#[derive(Debug, Deserialize)]
struct Header {
    number: String,
}

#[derive(Debug, Deserialize)]
struct SignedBlock {
    block: BlockBody,
}

#[derive(Debug, Deserialize)]
struct BlockBody {
    extrinsics: Vec<String>,
}

impl SubstrateChain {
    /// Names the node; `timeout` bounds each request.
    ///
    /// # Errors
    /// [`ChainError::BadAddress`] if it is not a WebSocket URL.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, ChainError> {
        if !url.starts_with("ws://") && !url.starts_with("wss://") {
            return Err(ChainError::BadAddress("ws:// or wss://"));
        }
        Ok(SubstrateChain { url: url.to_owned(), timeout, client: Mutex::new(None) })
    }

    async fn client(&self) -> Result<RpcClient, RpcError> {
        let mut slot = self.client.lock().await;
        if let Some(client) = slot.as_ref() {
            return Ok(client.clone());
        }
        // The caller chose the scheme; plain text is its decision.
        let url = self.url.clone();
        let connect = quietly(async move { RpcClient::from_insecure_url(url).await });
        let client = timeout(self.timeout, connect).await.map_err(|_| late())??;
        *slot = Some(client.clone());
        Ok(client)
    }

    /// A line that broke or fell silent is not used again.
    async fn checked<T>(&self, outcome: Result<T, RpcError>) -> Result<T, RpcError> {
        match &outcome {
            Ok(_) | Err(RpcError::User(_)) => {}
            Err(_) => drop(self.client.lock().await.take()),
        }
        outcome
    }

    async fn request<R: DeserializeOwned>(
        &self,
        method: &str,
        params: RpcParams,
    ) -> Result<R, RpcError> {
        let client = self.client().await?;
        let answer = timeout(self.timeout, client.request(method, params)).await;
        self.checked(answer.unwrap_or_else(|_| Err(late()))).await
    }

    async fn block(&self, hash: String) -> Result<Block, RpcError> {
        let header: Option<Header> = self.request("chain_getHeader", rpc_params![&hash]).await?;
        let header = header.ok_or_else(|| unreadable("the node does not know its own block"))?;
        let digits = header.number.trim_start_matches("0x");
        let number =
            u64::from_str_radix(digits, 16).map_err(|_| unreadable("a block number is not hex"))?;
        let hash = hash.parse().map_err(|_| unreadable("a block hash is not 32 bytes"))?;
        Ok(Block { number, hash })
    }

    async fn nonce_at(&self, account: &AccountId, block: Hash) -> Result<u64, RpcError> {
        let params =
            rpc_params!["AccountNonceApi_account_nonce", account.to_string(), block.to_string()];
        let answer: String = self.request("state_call", params).await?;
        let bytes = unhex(&answer).filter(|b| b.len() <= 8);
        let bytes = bytes.ok_or_else(|| unreadable("an account's nonce is not an integer"))?;
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(&bytes);
        Ok(u64::from_le_bytes(wide))
    }

    async fn hash_at(&self, number: u64) -> Result<Hash, RpcError> {
        let hash: Option<String> = self.request("chain_getBlockHash", rpc_params![number]).await?;
        let hash = hash.ok_or_else(|| unreadable("the node has no such block"))?;
        hash.parse().map_err(|_| unreadable("a block hash is not 32 bytes"))
    }

    async fn view(&self, account: &AccountId) -> Result<Head, RpcError> {
        let finalized: String = self.request("chain_getFinalizedHead", rpc_params![]).await?;
        let best: String = self.request("chain_getBlockHash", rpc_params![]).await?;
        let (finalized, best) = (self.block(finalized).await?, self.block(best).await?);
        let finalized_nonce = self.nonce_at(account, finalized.hash).await?;
        let best_nonce = self.nonce_at(account, best.hash).await?;
        let params = rpc_params![address(account)];
        let pool_nonce = self.request("system_accountNextIndex", params).await?;
        Ok(Head { best, finalized, best_nonce, finalized_nonce, pool_nonce, ..Head::default() })
    }

    /// The first block after which the account's nonce is above `nonce`, and which of `attempts`
    /// is in it.
    async fn search(
        &self,
        account: &AccountId,
        nonce: u64,
        attempts: &[Hash],
        (mut low, mut high): (u64, u64),
    ) -> Result<(Hash, Option<Hash>), RpcError> {
        while low < high {
            let middle = low.midpoint(high);
            let at = self.hash_at(middle).await?;
            if self.nonce_at(account, at).await? > nonce {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let block = self.hash_at(low).await?;
        let found: Option<SignedBlock> =
            self.request("chain_getBlock", rpc_params![block.to_string()]).await?;
        let found = found.ok_or_else(|| unreadable("the node has no such block"))?;
        let hashes = found.block.extrinsics.iter().filter_map(|extrinsic| unhex(extrinsic));
        let ours = hashes.map(|raw| extrinsic_hash(&raw)).find(|hash| attempts.contains(hash));
        Ok((block, ours))
    }

    async fn locate_one(&self, account: &AccountId, one: &Sought, head: &Head) -> Located {
        let Sought { nonce, ref attempts, since, block: _ } = *one;
        if nonce >= head.best_nonce {
            return Located::Free;
        }
        let finalized = nonce < head.finalized_nonce;
        let range = if finalized {
            (since.min(head.finalized.number), head.finalized.number)
        } else {
            (head.finalized.number, head.best.number)
        };
        match self.search(account, nonce, attempts, range).await {
            Ok((block, Some(hash))) => Located::InBlock { hash, block, finalized, receipt: None },
            Ok((_, None)) if finalized => Located::Usurped { by: None },
            Ok((_, None)) | Err(_) => Located::Unknown,
        }
    }

    async fn is_pending(&self, raw: &[u8]) -> bool {
        let pending: Result<Vec<String>, _> =
            self.request("author_pendingExtrinsics", rpc_params![]).await;
        pending.is_ok_and(|all| all.iter().any(|one| unhex(one).is_some_and(|bytes| bytes == raw)))
    }
}

#[async_trait]
impl Chain for SubstrateChain {
    async fn head(&self, account: &AccountId) -> Result<Head, ChainError> {
        self.view(account).await.map_err(|error| ChainError::Unreachable(plainly(&error)))
    }

    async fn submit(&self, _account: &AccountId, _nonce: u64, raw: Bytes) -> Submission {
        let client = match self.client().await {
            Ok(client) => client,
            // Nothing left this process, but a node may have it from before.
            Err(error) => return Submission::answer(Outcome::Uncertain(plainly(&error))),
        };
        let params = rpc_params![format!("0x{}", hex::encode(&raw))];
        let subscribe =
            client.subscribe("author_submitAndWatchExtrinsic", params, "author_unwatchExtrinsic");
        let answer = timeout(self.timeout, subscribe).await;
        match self.checked(answer.unwrap_or_else(|_| Err(late()))).await {
            Ok(subscription) => Submission::watched(statuses(client, subscription)),
            Err(RpcError::User(error)) => {
                let mut outcome = outcome_of(&error);
                if error.code == 1012 && self.is_pending(&raw).await {
                    outcome = Outcome::AlreadyKnown;
                }
                Submission::answer(outcome)
            }
            Err(error) => Submission::answer(Outcome::Uncertain(plainly(&error))),
        }
    }

    async fn identity(&self) -> Result<ChainIdentity, ChainError> {
        let genesis = self.hash_at(0).await;
        let genesis = genesis.map_err(|error| ChainError::Unreachable(plainly(&error)))?;
        Ok(ChainIdentity { id: None, genesis })
    }

    async fn locate(&self, account: &AccountId, sought: &[Sought]) -> Vec<Located> {
        let Ok(head) = self.view(account).await else {
            return vec![Located::Unknown; sought.len()];
        };
        let mut located = Vec::with_capacity(sought.len());
        for one in sought {
            located.push(self.locate_one(account, one, &head).await);
        }
        located
    }

    fn inspect(&self, raw: &[u8]) -> Result<Inspected, ChainError> {
        if compact_length(raw) != Some(raw.len()) {
            let message = "an extrinsic begins with its own length".to_owned();
            return Err(ChainError::Malformed(message));
        }
        // Account and nonce can be read only with the runtime's metadata.
        Ok(Inspected { hash: extrinsic_hash(raw), account: None, nonce: None, tip: None })
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

/// The watch keeps its line: without the client the subscription would end.
fn statuses(
    client: RpcClient,
    subscription: RpcSubscription<RpcStatus<Hash>>,
) -> super::StatusStream {
    let watch = stream::unfold((client, subscription), |(client, mut subscription)| async {
        // An error is the end of the watch, not of the transaction.
        let status = subscription.next().await?.ok()?;
        Some((Report::from(translate(status)), (client, subscription)))
    });
    watch.boxed()
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

fn outcome_of(error: &UserError) -> Outcome {
    let detail = error.data.as_ref().map(|d| d.get().trim_matches('"')).unwrap_or_default();
    let text = format!("{} ({}): {detail}", error.message, error.code);
    match error.code {
        1010 if detail.contains("outdated") => Outcome::Outdated,
        1010 if detail.contains("ancient birth block") => Outcome::Expired,
        1010 | 1015 | 1017 | 1018 => Outcome::Refused(text),
        1013 => Outcome::AlreadyKnown,
        1014 => Outcome::Underpriced(Shortfall::Outbid, text),
        1011 | 1016 => Outcome::Busy(text),
        // A transaction that is banned was in the pool before; all else is the node's own trouble.
        _ => Outcome::Uncertain(text),
    }
}

fn plainly(error: &RpcError) -> String {
    without_addresses(error.to_string())
}

fn late() -> RpcError {
    RpcError::Client("no answer in time".into())
}

fn unreadable(what: &'static str) -> RpcError {
    RpcError::Client(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_written_in_ss58() {
        let alice = "d43593c715fdd31c61141abd04a99fd6822c8558854ccde39a5684e7a56da27d";
        let alice: AccountId = alice.parse().expect("32 bytes");
        assert_eq!(address(&alice), "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY");
    }

    #[test]
    fn an_address_of_any_network_is_read_and_a_mistyped_one_is_not() {
        let alice = "0xd43593c715fdd31c61141abd04a99fd6822c8558854ccde39a5684e7a56da27d";
        for text in [
            alice,
            "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
            "15oF4uVJwmo4TdGW7VfQxNLavjCXviqxT9S1MgbjMNHr6Sp5",
        ] {
            assert_eq!(account_of(text).map(|a| a.to_string()).as_deref(), Ok(alice), "{text}");
        }
        for text in ["", "5", "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQX", "0xzz"] {
            assert!(account_of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_extrinsic_must_be_as_long_as_it_says() {
        let of = |prefix: &[u8], body: usize| {
            let mut raw = prefix.to_vec();
            raw.resize(prefix.len() + body, 0);
            compact_length(&raw) == Some(raw.len())
        };
        assert!(of(&[3 << 2], 3));
        assert!(!of(&[3 << 2], 4));
        assert!(of(&[0x91, 0x01], 100));
        assert!(of(&[0x02, 0x00, 0x04, 0x00], 65_536));
        assert!(!of(&[], 0));
        assert!(!of(&[0xff; 9], 0));
    }
}
