//! Which chain the endpoints are of. The first answer counts for as long as this process runs: nonces and
//! signed bytes of one chain mean nothing, or something else, on another.

use std::sync::atomic::Ordering;
use std::time::Duration;

use alloy_json_rpc::RpcError;
use alloy_primitives::U64;
use serde_json::{Value, json};
use tenure_core::clock::Tick;

use super::rpc::{Call, Rpc, RpcBlock, late, read, tick};
use super::{TransportError, plainly};
use crate::chain::{ChainError, ChainIdentity};
use crate::status::Hash;

/// For so long the answer of an endpoint that has not failed since, and whose blocks go on, counts as a new one:
/// providers count calls.
const TRUSTED: Duration = Duration::from_secs(60);

impl Rpc {
    /// Which chain the first endpoint that answers and is of the same chain as before is of.
    pub(super) async fn identity(&self) -> Result<ChainIdentity, ChainError> {
        let mut last = None;
        for index in self.order() {
            let endpoint = &self.endpoints[index];
            let is_old = |at: Tick| tick() >= at + TRUSTED;
            if endpoint.health().verified.is_some_and(is_old) {
                endpoint.doubt();
            }
            match self.verify(index).await {
                Ok(identity) => return Ok(identity),
                Err(error) => last = Some(error),
            }
        }
        Err(told(&last.unwrap_or_else(late)))
    }

    /// Makes sure that an endpoint is of the same chain as the others, and as it was before it failed: an
    /// address may lead elsewhere by now.
    pub(super) async fn verify(&self, index: usize) -> Result<ChainIdentity, TransportError> {
        let endpoint = &self.endpoints[index];
        if let Some(known) = self.identity.get().filter(|_| endpoint.health().verified.is_some()) {
            return Ok(*known);
        }
        let is = identity_of(self.ask(index, &identity_calls()).await?)?;
        let was = *self.identity.get_or_init(async || is).await;
        if is != was {
            // Once: many calls may wait for it, and it is asked again after its rest.
            if !std::mem::replace(&mut endpoint.health().foreign, true) {
                let endpoint = index + 1;
                tracing::error!(endpoint, %is, %was, "THIS RPC ENDPOINT IS OF ANOTHER CHAIN: not used");
            }
            endpoint.failed();
            return Err(RpcError::LocalUsageError(Box::new(ChainError::Foreign { is, was })));
        }
        let mut health = endpoint.health();
        (health.verified, health.foreign) = (Some(tick()), false);
        Ok(was)
    }

    /// Asks the preferred endpoint again which chain it is of, if its latest block does not continue the one
    /// before: a development chain may have been reset between two calls. Most often blocks left the chain.
    pub(super) async fn verify_continued(
        &self,
        before: &RpcBlock,
        latest: &RpcBlock,
    ) -> Result<(), TransportError> {
        let (last, next) = (before.number.to::<u64>(), latest.number.to::<u64>());
        let left = match next.checked_sub(last) {
            None => true,
            Some(0) => latest.hash != before.hash,
            Some(1) => latest.parent_hash != before.hash,
            // The blocks between the two are not known here.
            Some(_) => false,
        };
        if !left {
            return Ok(());
        }
        let index = self.preferred.load(Ordering::Relaxed);
        self.endpoints[index].doubt();
        self.verify(index).await.map(drop)
    }
}

fn identity_calls() -> [Call; 2] {
    [("eth_chainId", json!([])), ("eth_getBlockByNumber", json!(["0x0", false]))]
}

fn identity_of(
    answers: Vec<Result<Value, TransportError>>,
) -> Result<ChainIdentity, TransportError> {
    let mut answers = answers.into_iter();
    let id: U64 = read(answers.next().unwrap_or_else(|| Err(late())))?;
    let first: RpcBlock = read(answers.next().unwrap_or_else(|| Err(late())))?;
    Ok(ChainIdentity { id: Some(id.to()), genesis: Hash(first.hash.0) })
}

/// Why the chain did not answer.
pub(super) fn told(error: &TransportError) -> ChainError {
    match error {
        RpcError::LocalUsageError(inner) => inner.downcast_ref::<ChainError>().cloned(),
        _ => None,
    }
    .unwrap_or_else(|| ChainError::Unreachable(plainly(error)))
}
