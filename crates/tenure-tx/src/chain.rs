//! What a chain must offer: the account's nonces, a submission that is watched, and an answer to
//! the question which transaction used a nonce.

#[cfg(feature = "ethereum")]
pub mod ethereum;
#[cfg(any(feature = "ethereum", feature = "substrate"))]
mod quiet;
#[cfg(feature = "substrate")]
pub mod substrate;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

use crate::account::AccountId;
use crate::status::{Hash, TransactionStatus};

/// The place of one block in its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Block {
    pub number: u64,
    pub hash: Hash,
}

/// The chain as one account sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// The latest block of the chain that the node follows; it may yet be left.
    pub best: Block,
    /// The last finalised block.
    pub finalized: Block,
    /// The account's next nonce in the best block.
    pub best_nonce: u64,
    /// The account's next nonce in the finalised block.
    pub finalized_nonce: u64,
    /// The account's next nonce, the node's pool counted in.
    pub pool_nonce: u64,
    /// What the next block asks for each unit of work (on Ethereum: gas), beside the tip, in the chain's
    /// smallest unit; 0 if the chain has no such fee.
    pub base_fee: u128,
    /// What recent blocks were tipped for each unit of work, in the same unit; 0 if the node does not say.
    pub tip: u128,
    /// The most the account pays for each unit of work, if it has such a cap.
    pub fee_cap: Option<u128>,
    /// What the account owns, in the chain's smallest unit, if the node says so.
    pub balance: Option<u128>,
}

impl Head {
    /// Whether the next block asks for more than the account pays: then it waits.
    #[must_use]
    pub fn is_above_cap(&self) -> bool {
        self.fee_cap.is_some_and(|cap| self.base_fee > cap)
    }
}

/// Which chain a node is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainIdentity {
    /// The number that its signatures cover, if it has one.
    pub id: Option<u64>,
    /// The hash of its first block.
    pub genesis: Hash,
}

/// As it is stored with the account.
impl std::fmt::Display for ChainIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.id {
            Some(id) => write!(f, "{id} with genesis {}", self.genesis),
            None => write!(f, "with genesis {}", self.genesis),
        }
    }
}

/// How a price was too low. A closed set: what is paid next depends on which of them it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortfall {
    /// A transaction with this nonce is in the pool and pays as much or more.
    Outbid,
    /// The node takes nothing this cheap; the least tip it takes, if it says so.
    BelowMinimum {
        /// In the unit of [`Head::tip`].
        needed: Option<u128>,
    },
    /// The block asks for more than it offers in all.
    BelowBaseFee,
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
    /// It offers too little.
    Underpriced(Shortfall, String),
    /// Its last valid block has passed.
    Expired,
    /// The account cannot pay for it now.
    Unfunded(String),
    /// Not now: the pool is full, or an earlier nonce is missing. The node may keep it for later.
    Busy(String),
    /// It never left this process.
    NotSent(String),
    /// Not these bytes any more, although some node may have had them: signed anew, the same content
    /// may be taken.
    Unwanted(String),
    /// Not this, on its merits: a bad signature, too large, a call that cannot be.
    Refused(String),
    /// No answer, or one that this version does not know. The node may have it.
    Uncertain(String),
}

impl Outcome {
    /// What the node said, if it was not a yes.
    #[must_use]
    pub fn answer(&self) -> Option<&str> {
        match self {
            Outcome::Pooled | Outcome::AlreadyKnown | Outcome::Outdated => None,
            Outcome::Expired => Some("its last valid block has passed"),
            Outcome::Underpriced(_, said)
            | Outcome::Unfunded(said)
            | Outcome::Busy(said)
            | Outcome::NotSent(said)
            | Outcome::Unwanted(said)
            | Outcome::Refused(said)
            | Outcome::Uncertain(said) => Some(said),
        }
    }
}

/// What the chain says of a transaction in a block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The block's number.
    pub number: Option<u64>,
    /// Whether its call succeeded, if the node says so.
    pub success: Option<bool>,
    /// Why it failed, if the node says so.
    pub reason: Option<String>,
    /// What the account paid for it, in the chain's smallest unit, if the node says so.
    pub fee: Option<u128>,
}

/// What a watch ([`StatusStream`]) reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The transaction's status.
    pub status: TransactionStatus,
    /// Of a final one: what the chain says of it.
    pub receipt: Option<Receipt>,
}

impl From<TransactionStatus> for Report {
    fn from(status: TransactionStatus) -> Self {
        Report { status, receipt: None }
    }
}

/// A nonce and the signed forms that may have used it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sought {
    /// The account's nonce that all these forms share.
    pub nonce: u64,
    /// The hashes of all its forms.
    pub attempts: Vec<Hash>,
    /// The best block's number when the first form was built: none is in an earlier block.
    pub since: u64,
    /// The block in which one of its forms was last seen: a hint, so that many are found with one look.
    pub block: Option<Hash>,
}

/// Which transaction used a nonce.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum Located {
    /// This one, in this block of the best chain.
    InBlock { hash: Hash, block: Hash, finalized: bool, receipt: Option<Receipt> },
    /// Another one, in a final block that was read; its hash, if it is known.
    Usurped { by: Option<Hash> },
    /// The finalised state is past the nonce, and the node finds none of the attempts. It may not
    /// have looked everywhere.
    Missing,
    /// The best state is not past the nonce.
    Free,
    /// The node cannot answer now; ask again.
    Unknown,
}

/// The statuses of one submission, until one that ends or until the connection does.
pub type StatusStream = BoxStream<'static, Report>;

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

/// A chain's node, or several. An implementation gives every call a deadline of its own. The service may
/// drop a call at any await; bytes that were being submitted may have arrived then.
#[async_trait]
pub trait Chain: Send + Sync + 'static {
    /// Blocks, nonces, fees and balance. They belong together as well as the node allows; where they were
    /// read one after the other, the pool's nonce is read last, so that it is never too low.
    ///
    /// # Errors
    /// [`ChainError`]; the service asks again, whichever it is.
    async fn head(&self, account: &AccountId) -> Result<Head, ChainError>;

    /// Which chain the node is of now, as far as can be told: a development chain may be reset while this process
    /// runs. It never changes for one value of this type.
    ///
    /// # Errors
    /// [`ChainError`]; the service asks again, whichever it is. [`ChainError::Foreign`] if it would be another
    /// one than before.
    async fn identity(&self) -> Result<ChainIdentity, ChainError>;

    /// Tells the chain that what its node said cannot be so, because the table knows more: another node is
    /// asked next, if there is one. The default does nothing.
    fn distrust(&self) {}

    /// Hands signed bytes to the node and watches them. The same bytes may be handed over again, also
    /// after a restart. An answer that does not come, or that is not understood, is
    /// [`Outcome::Uncertain`], unless the node says elsewhere that it has them. Never take silence for a
    /// refusal: after [`Outcome::Refused`] the nonce may be given to another request.
    async fn submit(&self, account: &AccountId, nonce: u64, raw: Bytes) -> Submission;

    /// Tells, for each nonce, which of its attempts used it; one answer each, in order. What cannot be
    /// answered now is [`Located::Unknown`].
    async fn locate(&self, account: &AccountId, sought: &[Sought]) -> Vec<Located>;

    /// Reads signed bytes, without asking the node; it must not block.
    ///
    /// # Errors
    /// [`ChainError::Malformed`] if they are not a transaction of this chain.
    fn inspect(&self, raw: &[u8]) -> Result<Inspected, ChainError>;
}

/// A chain could not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// No answer in time, or a broken connection. A retry may help.
    #[error("the chain's node does not answer: {0}; check its address and that it runs")]
    Unreachable(String),
    /// The node is of another chain than it was when this process first asked. Nothing may be sent to it.
    #[error("another chain: the node's is {is}, and this process began on {was}")]
    Foreign {
        /// The chain that the node is of now.
        is: ChainIdentity,
        /// The one that it was of before.
        was: ChainIdentity,
    },
    /// The node has no block that it calls final. A retry helps only if the chain will have one.
    #[error(
        "the chain's node knows no finalised block; on a chain without finality give --confirmations"
    )]
    NoFinality,
    /// An answer that makes no sense.
    #[error("the chain's node gave an answer this version cannot read: {0}")]
    Unreadable(String),
    /// A chain that this version cannot work with as it was asked to; the text says what to do.
    #[error("{0}")]
    Unsupported(String),
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
