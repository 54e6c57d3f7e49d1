//! Signs with a key of this process, as the chain's own metadata says.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use subxt_rpcs::Error as RpcError;
use tokio::time::sleep;

use super::extrinsic::{Period, Terms};
use super::key::{Key, Scheme};
use super::line::{Line, Unread};
use super::metadata::Runtime;
use super::{SubstrateChain, extrinsic_hash};
use crate::account::{AccountId, SignError, Signed, Signer, Unsigned};
use crate::chain::{Block, ChainError, Head};
use crate::status::Hash;

/// How often a node that does not answer is asked again, and how long after.
const PATIENCE: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);

/// A local key that signs extrinsics. It is never printed.
///
/// What a signature covers is read from the runtime's metadata. The runtime's version is looked at
/// with each new best block, so that after an upgrade nothing is signed for the runtime before it.
pub struct SubstrateSigner {
    key: Key,
    line: Arc<Line>,
    period: Period,
    max_fee: Option<u128>,
}

impl std::fmt::Debug for SubstrateSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubstrateSigner").field("key", &self.key).finish_non_exhaustive()
    }
}

impl SubstrateChain {
    /// The scheme that was chosen, or the chain's usual one, if its runtime takes such signatures and
    /// asks for nothing that is not known here.
    ///
    /// # Errors
    /// [`ChainError::Unsupported`] if it does not; others: ask again.
    pub async fn scheme(&self, chosen: Option<Scheme>) -> Result<Scheme, ChainError> {
        let runtime = self.best_runtime().await?;
        let scheme = chosen.unwrap_or_else(|| runtime.usual_scheme());
        let terms = Terms { nonce: 0, tip: 0, mortal: None };
        let able = runtime.signature_tag(scheme).and(runtime.payload(&[], &terms));
        able.map_err(|error| ChainError::Unsupported(error.to_string()))?;
        Ok(scheme)
    }

    /// How many bytes an account of this chain has.
    ///
    /// # Errors
    /// [`ChainError::Unsupported`] if its metadata cannot be read; others: ask again.
    pub async fn account_len(&self) -> Result<usize, ChainError> {
        Ok(self.best_runtime().await?.account_len)
    }

    async fn best_runtime(&self) -> Result<Arc<Runtime>, ChainError> {
        let best = self.line.best().await.map_err(Unread::from);
        let runtime = match best {
            Ok(best) => self.line.runtime_at(best.hash).await,
            Err(error) => Err(error),
        };
        runtime.map_err(|error| match error {
            Unread::Node(_) => error.told(),
            Unread::Runtime(error) => ChainError::Unsupported(error.to_string()),
        })
    }
}

impl SubstrateSigner {
    /// Signs for this chain with this key; [`SubstrateChain::scheme`] tells the key's scheme.
    #[must_use]
    pub fn new(chain: &SubstrateChain, key: Key) -> Self {
        SubstrateSigner {
            key,
            line: Arc::clone(&chain.line),
            period: Period::default(),
            max_fee: None,
        }
    }

    /// How long an extrinsic lives. Default 64 blocks. Too short and a slow pool outlives it; too long and
    /// a lost one is waited for.
    #[must_use]
    pub fn mortal(self, period: Period) -> Self {
        SubstrateSigner { period, ..self }
    }

    /// The most that one extrinsic may cost, fee and tip together, in the chain's smallest unit. Default:
    /// no cap. With one, the node is asked for the fee of each extrinsic before it is accepted.
    #[must_use]
    pub fn max_fee(self, max_fee: Option<u128>) -> Self {
        SubstrateSigner { max_fee, ..self }
    }

    /// The block that an extrinsic is born in: a final one, which no fork takes away, unless finality
    /// is so far behind that little would be left of its life.
    fn birth(&self, head: &Head) -> Block {
        let lag = head.best.number.saturating_sub(head.finalized.number);
        if lag <= self.period.blocks() / 2 { head.finalized } else { head.best }
    }

    async fn check_fee(&self, raw: &[u8], tip: u128) -> Result<(), SignError> {
        let Some(cap) = self.max_fee else { return Ok(()) };
        let mut tries = 0;
        let fee = loop {
            match self.line.fee(raw).await.map_err(Unread::from) {
                Ok(fee) => break fee,
                Err(error) if is_silence(&error) && tries < PATIENCE => {
                    tries += 1;
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(silent(&error)),
            }
        };
        let cost = fee.saturating_add(tip);
        if cost > cap { Err(SignError::TooDear { cost, cap }) } else { Ok(()) }
    }
}

/// The runtime that a call is signed for now.
pub(super) async fn runtime_for(line: &Line, best: Hash) -> Result<Arc<Runtime>, SignError> {
    let mut tries = 0;
    loop {
        match line.runtime_at(best).await {
            Ok(runtime) => return Ok(runtime),
            Err(error) if is_silence(&error) && tries < PATIENCE => {
                tries += 1;
                sleep(PAUSE).await;
            }
            Err(error @ Unread::Node(_)) => return Err(silent(&error)),
            Err(Unread::Runtime(error)) => return Err(SignError::Key(error.to_string())),
        }
    }
}

/// The chain's node does not say what a signature needs.
fn silent(error: &Unread) -> SignError {
    let why = error.plainly();
    SignError::Unavailable(format!("the chain's node does not answer: {why}; check that it runs"))
}

/// Whether a node that is being restarted may be the reason: that should not cost a request, so it is asked
/// again. What signs is bounded as a whole by its caller.
fn is_silence(error: &Unread) -> bool {
    matches!(error, Unread::Node(error) if !matches!(error, RpcError::User(_)))
}

#[async_trait]
impl Signer for SubstrateSigner {
    fn account(&self) -> &AccountId {
        self.key.account()
    }

    async fn sign(&self, unsigned: Unsigned<'_>) -> Result<Signed, SignError> {
        let runtime = runtime_for(&self.line, unsigned.head.best.hash).await?;
        let call = runtime.call_of(unsigned.call)?;
        let birth = self.birth(unsigned.head);
        let mortal = Some((self.period, birth));
        let terms = Terms { nonce: unsigned.nonce, tip: unsigned.tip, mortal };
        let raw = runtime.sign(&call, &terms, &self.key)?;
        self.check_fee(&raw, unsigned.tip).await?;
        // It may be in blocks from its birth on, and in as many as its period.
        let valid_until = Some(birth.number + self.period.blocks() - 1);
        let (hash, tip) = (extrinsic_hash(&raw), Some(unsigned.tip));
        Ok(Signed { hash, raw: raw.into(), valid_until, tip, bid: None })
    }
}
