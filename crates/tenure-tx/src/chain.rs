//! What a chain must offer: the account's nonces, a submission that is watched, and an answer to
//! the question which transaction used a nonce.

#[cfg(feature = "ethereum")]
pub mod ethereum;
#[cfg(feature = "substrate")]
pub mod substrate;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

use crate::account::AccountId;
use crate::status::{Hash, TransactionStatus};

/// A block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Block {
    pub number: u64,
    pub hash: Hash,
}

/// The chain as one account sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// The best block.
    pub best: Block,
    /// The last finalised block.
    pub finalized: Block,
    /// The account's next nonce in the best block.
    pub best_nonce: u64,
    /// The account's next nonce in the finalised block.
    pub finalized_nonce: u64,
    /// The account's next nonce, the node's pool counted in.
    pub pool_nonce: u64,
}

/// A node's answer to a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// In the pool; the watch that came with the answer reports what follows.
    Pooled,
    /// It was there already, and no watch could be had.
    AlreadyKnown,
    /// Its nonce is used: this one, or another, is in a block.
    Outdated,
    /// Another transaction with this nonce pays as much or more.
    Underpriced,
    /// Its last valid block has passed.
    Expired,
    /// Not now: the pool is full, or bans it for a while.
    Busy(String),
    /// Not this: a bad signature, no funds, a call that cannot be.
    Refused(String),
    /// No answer, so it may be there.
    Unreachable(String),
}

/// Which transaction used a nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum Located {
    /// This one, in this block.
    InBlock { hash: Hash, block: Hash, finalized: bool },
    /// The finalised state is past the nonce and none of the attempts is in the chain.
    Consumed,
    /// The best state is not past the nonce.
    Free,
    /// The node cannot answer now; ask again.
    Unknown,
}

/// The statuses of one submission, until one that ends or until the connection does.
pub type StatusStream = BoxStream<'static, TransactionStatus>;

/// A node's answer with the watch that belongs to it.
#[allow(missing_docs, reason = "the names say it")]
pub struct Submission {
    pub outcome: Outcome,
    /// Present if and only if the outcome is [`Outcome::Pooled`].
    pub watch: Option<StatusStream>,
}

impl Submission {
    /// An answer without a watch.
    #[must_use]
    pub fn answer(outcome: Outcome) -> Self {
        Submission { outcome, watch: None }
    }

    /// In the pool and watched.
    #[must_use]
    pub fn watched(watch: StatusStream) -> Self {
        Submission { outcome: Outcome::Pooled, watch: Some(watch) }
    }
}

impl std::fmt::Debug for Submission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Submission")
            .field("outcome", &self.outcome)
            .field("watched", &self.watch.is_some())
            .finish()
    }
}

/// What can be read from signed bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Inspected {
    pub hash: Hash,
    /// The signer's account, if it can be read.
    pub account: Option<AccountId>,
    /// Its nonce, if it can be read.
    pub nonce: Option<u64>,
    /// Its tip, if it can be read: a replacement has to exceed it.
    pub tip: Option<u128>,
}

/// A chain's node. Every call has its own deadline and may be dropped at any await.
#[async_trait]
pub trait Chain: Send + Sync + 'static {
    /// Nonces and blocks. All five values belong together as well as the node allows; where they
    /// were read one after the other, the pool's is read last, so that it is never too low.
    ///
    /// # Errors
    /// [`ChainError::Unreachable`]: ask again.
    async fn head(&self, account: &AccountId) -> Result<Head, ChainError>;

    /// Hands signed bytes to the node and watches them. The same bytes may be handed over again, also
    /// after a restart. An answer that does not come is [`Outcome::Unreachable`].
    async fn submit(&self, account: &AccountId, nonce: u64, raw: Bytes) -> Submission;

    /// Tells which of `attempts` used `nonce`. `since` is the best block's number when the first
    /// was built: no attempt is in an earlier block.
    async fn locate(
        &self,
        account: &AccountId,
        nonce: u64,
        attempts: &[Hash],
        since: u64,
    ) -> Located;

    /// Reads signed bytes.
    ///
    /// # Errors
    /// [`ChainError::Malformed`] if they are not a transaction of this chain.
    fn inspect(&self, raw: &[u8]) -> Result<Inspected, ChainError>;
}

/// A chain could not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// No answer in time, or a broken connection. A retry helps.
    #[error("the chain's node does not answer: {0}; check its address and that it runs")]
    Unreachable(String),
    /// An answer that makes no sense.
    #[error("the chain's node gave an answer this version cannot read: {0}")]
    Unreadable(String),
    /// Not an address of a node. The address itself is not shown: it often holds a key.
    #[error("the node's address is not a URL that begins with {0}; check --rpc")]
    BadAddress(&'static str),
    /// Bytes that are not a transaction.
    #[error("not a signed transaction: {0}; pass the bytes exactly as signed")]
    Malformed(String),
}

/// A transport's text without the address it failed to reach, which often holds a key.
#[cfg(any(feature = "ethereum", feature = "substrate"))]
pub(crate) fn without_addresses(mut text: String) -> String {
    while let Some(colon) = text.find("://") {
        let begin =
            text[..colon].rfind(|c: char| !c.is_ascii_alphanumeric()).map_or(0, |at| at + 1);
        let end = text[colon..].find([')', ' ', '"', '\'']).map_or(text.len(), |end| colon + end);
        text.replace_range(begin..end, "its address");
    }
    text
}
