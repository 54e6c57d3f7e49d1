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

    /// Whether the latest block may be of another chain than the one before: a development chain may have been
    /// reset between two calls. Most often blocks left the chain.
    pub(super) fn is_doubtful(&self, before: &RpcBlock, latest: &RpcBlock) -> bool {
        match continues(before, latest) {
            Some(continues) => !continues,
            None => {
                let preferred = self.preferred.load(Ordering::Relaxed);
                self.endpoints[preferred].health().verified.is_some_and(is_old)
            }
        }
    }
}

fn is_old(verified: Tick) -> bool {
    tick() >= verified + TRUSTED
}

/// Whether a block is the one before, or the next after it; `None` if blocks between the two are not known here.
fn continues(before: &RpcBlock, latest: &RpcBlock) -> Option<bool> {
    match latest.number.to::<u64>().checked_sub(before.number.to()) {
        None => Some(false),
        Some(0) => Some(latest.hash == before.hash),
        Some(1) => Some(latest.parent_hash == before.hash),
        Some(_) => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::ethereum::EthereumOptions;

    fn block(number: u64, tag: u8, parent: u8) -> RpcBlock {
        let hash = |tag: u8| format!("0x{}", format!("{tag:02x}").repeat(32));
        let number = U64::from(number);
        let block = json!({"number": number, "hash": hash(tag), "parentHash": hash(parent)});
        read(Ok(block)).expect("a block")
    }

    #[test]
    fn blocks_that_do_not_show_whether_they_go_on_are_trusted_for_a_minute() {
        let url = "http://127.0.0.1:1".parse().expect("an address");
        let rpc = Rpc::new(vec![url], &EthereumOptions::default());
        let verified = |at| rpc.endpoints[0].health().verified = Some(at);
        let before = block(7, 7, 6);
        let doubtful = |latest| rpc.is_doubtful(&before, &latest);
        verified(tick());
        assert!(!doubtful(block(7, 7, 6)), "the same");
        assert!(!doubtful(block(8, 8, 7)), "the next");
        assert!(doubtful(block(7, 9, 6)), "another one at the same place");
        assert!(doubtful(block(8, 8, 9)), "the next of another one");
        assert!(doubtful(block(6, 6, 5)), "an earlier one");
        assert!(!doubtful(block(9, 9, 8)), "the block between the two is not known");
        verified(tick().saturating_sub(TRUSTED));
        assert!(doubtful(block(9, 9, 8)), "and the last answer is old");
        assert!(!doubtful(block(8, 8, 7)), "the next shows that it is the same chain");
    }
}
