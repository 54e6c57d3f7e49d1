//! Ethereum JSON-RPC over HTTP.
//!
//! A node has no subscription that follows one transaction, so this adapter keeps one follower per
//! chain: each poll reads the latest block, walks back to the last one it knew, and tells every
//! watch what that means. What is in no block is looked up every few polls; a
//! transaction the node does not know, twice in a row, was dropped.
//!
//! | node says | outcome |
//! |---|---|
//! | accepted, already known | pooled, watched (already known, if it is watched) |
//! | nonce too low | outdated: which attempt was it? |
//! | replacement underpriced, fee below the base fee | underpriced: higher tip |
//! | insufficient funds, bad gas, bad signature | refused |
//! | pool full, rate limit | busy: later |
//! | nothing, or anything unclear | unreachable: it may be there |

mod follower;
mod rpc;
mod signer;

use std::sync::Arc;
use std::time::Duration;

use alloy_consensus::transaction::SignerRecoverable as _;
use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2718::Decodable2718 as _;
use alloy_json_rpc::{ErrorPayload, RpcError};
use alloy_primitives::{B256, hex};
use alloy_transport::TransportErrorKind;
use async_trait::async_trait;
use bytes::Bytes;
use url::Url;

use super::{
    Block, Chain, ChainError, Head, Inspected, Located, Outcome, Submission, without_addresses,
};
use crate::account::AccountId;
use crate::status::Hash;
use follower::Follower;
use rpc::Rpc;
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
    /// How often the latest block is read. Default 1 s; a third of the block time is plenty.
    pub poll: Duration,
    /// How long one request may take. Default 5 s.
    pub timeout: Duration,
    /// When a block is final. Default the node's tag.
    pub finality: Finality,
    /// Every how many polls transactions outside any block are looked up. Default 5.
    pub lookup_every: u32,
}

impl Default for EthereumOptions {
    fn default() -> Self {
        EthereumOptions {
            poll: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
            finality: Finality::Tag,
            lookup_every: 5,
        }
    }
}

/// One Ethereum node. Cheap to clone; the follower ends with the last clone.
#[derive(Clone)]
pub struct EthereumChain {
    rpc: Rpc,
    follower: Arc<Follower>,
    fees: Fees,
}

impl EthereumChain {
    /// Names the node and starts the follower; the first request is made when needed. Needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// [`ChainError::BadAddress`] if it is not an HTTP URL.
    pub fn new(url: &str, options: EthereumOptions) -> Result<Self, ChainError> {
        let url: Url = url.parse().map_err(|_| ChainError::BadAddress("http:// or https://"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(ChainError::BadAddress("http:// or https://"));
        }
        let rpc = Rpc::new(url, options.timeout, options.finality);
        let follower = Follower::start(rpc.clone(), &options);
        Ok(EthereumChain { rpc, follower, fees: Fees::default() })
    }

    /// The chain's id, which a signature covers.
    ///
    /// # Errors
    /// [`ChainError`].
    pub async fn chain_id(&self) -> Result<u64, ChainError> {
        self.rpc.chain_id().await
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
        let view = self.rpc.view(account).await?;
        self.fees.set_base(view.base_fee);
        Ok(view.head)
    }

    async fn submit(&self, account: &AccountId, nonce: u64, raw: Bytes) -> Submission {
        let hash = Hash(alloy_primitives::keccak256(&raw).0);
        let outcome = self.rpc.send_raw(&raw).await.map_err(|error| outcome_of(&error));
        match outcome {
            Ok(()) | Err(Outcome::AlreadyKnown) => {
                match self.follower.watch(account, nonce, hash) {
                    Some(watch) => Submission::watched(watch),
                    None => Submission::answer(Outcome::AlreadyKnown),
                }
            }
            Err(outcome) => Submission::answer(outcome),
        }
    }

    async fn locate(
        &self,
        account: &AccountId,
        nonce: u64,
        attempts: &[Hash],
        _since: u64,
    ) -> Located {
        // The nonces first: whatever they count is then in a receipt.
        let Ok(view) = self.rpc.view(account).await else {
            return Located::Unknown;
        };
        let hashes: Vec<B256> = attempts.iter().map(|h| B256::from(h.0)).collect();
        let Ok(receipts) = self.rpc.receipts(&hashes).await else {
            return Located::Unknown;
        };
        for (hash, receipt) in attempts.iter().zip(receipts) {
            if let Some(receipt) = receipt {
                return Located::InBlock {
                    hash: *hash,
                    block: Hash(receipt.block_hash.0),
                    finalized: receipt.block_number.to::<u64>() <= view.head.finalized.number,
                };
            }
        }
        if nonce < view.head.finalized_nonce {
            Located::Consumed
        } else if nonce >= view.head.best_nonce {
            Located::Free
        } else {
            Located::Unknown
        }
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

type TransportError = RpcError<TransportErrorKind>;

fn plainly(error: &TransportError) -> String {
    without_addresses(error.to_string())
}

/// What a failed `eth_sendRawTransaction` means.
fn outcome_of(error: &TransportError) -> Outcome {
    match error.as_error_resp() {
        Some(payload) => outcome_of_answer(payload),
        None => match error {
            RpcError::Transport(TransportErrorKind::HttpError(http)) if http.status == 429 => {
                Outcome::Busy("HTTP 429".to_owned())
            }
            // A gateway's own error may come after its node has taken the bytes.
            other => Outcome::Unreachable(plainly(other)),
        },
    }
}

fn outcome_of_answer(payload: &ErrorPayload) -> Outcome {
    let message = payload.message.to_lowercase();
    let says = |any: &[&str]| any.iter().any(|part| message.contains(part));
    if says(&["already known", "already imported", "known transaction"]) {
        Outcome::AlreadyKnown
    } else if says(&["nonce too low", "nonce is too low"]) {
        Outcome::Outdated
    } else if says(&["underpriced", "less than block base fee", "fee too low", "feetoolow"]) {
        Outcome::Underpriced
    } else if says(&["pool is full", "rate limit", "too many", "nonce too high", "nonce gap"]) {
        Outcome::Busy(payload.message.to_string())
    } else if matches!(payload.code, -32000 | -32003 | -32602) {
        // The codes of a refused transaction.
        Outcome::Refused(payload.message.to_string())
    } else {
        // The node's own trouble: how far it came is unknown.
        Outcome::Unreachable(payload.message.to_string())
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

    fn answer(code: i64, message: &str) -> Outcome {
        let payload = ErrorPayload { code, message: message.to_owned().into(), data: None };
        outcome_of_answer(&payload)
    }

    #[test]
    fn answers_of_geth_and_anvil_are_told_apart() {
        assert_eq!(answer(-32000, "already known"), Outcome::AlreadyKnown);
        assert_eq!(answer(-32003, "transaction already imported"), Outcome::AlreadyKnown);
        assert_eq!(answer(-32000, "nonce too low: next nonce 3, tx nonce 1"), Outcome::Outdated);
        assert_eq!(answer(-32000, "replacement transaction underpriced"), Outcome::Underpriced);
        assert_eq!(
            answer(-32000, "max fee per gas less than block base fee: ..."),
            Outcome::Underpriced
        );
        assert!(matches!(answer(-32000, "txpool is full"), Outcome::Busy(_)));
        assert!(matches!(
            answer(-32003, "Insufficient funds for gas * price + value"),
            Outcome::Refused(_)
        ));
        assert!(matches!(answer(-32603, "internal error"), Outcome::Unreachable(_)));
    }

    #[tokio::test]
    async fn an_address_with_a_key_in_it_is_never_shown() {
        let secret = "0123456789abcdef";
        let url = format!("http://user:{secret}@127.0.0.1:1/v3/{secret}");
        let chain = EthereumChain::new(&url, EthereumOptions::default()).expect("a URL");
        let account = AccountId::new([1; 20]).expect("20 bytes");
        let head = chain.head(&account).await.expect_err("nobody listens there").to_string();
        let id = chain.chain_id().await.expect_err("nobody listens there").to_string();
        let sent = chain.submit(&account, 0, Bytes::from_static(b"x")).await;
        let Outcome::Unreachable(sent) = sent.outcome else { panic!("{sent:?}") };
        let malformed =
            EthereumChain::new(&format!("ht tp://{secret}"), EthereumOptions::default());
        let malformed = malformed.expect_err("no URL").to_string();
        for text in [head, id, sent, malformed, format!("{chain:?}")] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}
