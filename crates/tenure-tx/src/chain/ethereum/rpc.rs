//! The handful of JSON-RPC calls the adapter makes, each with a deadline.

use std::time::Duration;

use alloy_json_rpc::{RpcError, RpcRecv, RpcSend};
use alloy_primitives::{B256, U64, U128};
use alloy_rpc_client::RpcClient;
use alloy_transport::TransportErrorKind;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;
use url::Url;

use super::{Finality, TransportError, block, hex_of, plainly};
use crate::account::AccountId;
use crate::chain::{ChainError, Head};

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
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RpcReceipt {
    pub(super) block_number: U64,
    pub(super) block_hash: B256,
}

/// Where a transaction is, if the node knows it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RpcTransaction {
    pub(super) block_hash: Option<B256>,
    pub(super) block_number: Option<U64>,
}

/// The chain as an account sees it, with the fee of the next block.
pub(super) struct View {
    pub(super) head: Head,
    pub(super) base_fee: u128,
}

/// How many calls go into one batch: most nodes take 100.
const BATCH: usize = 100;

#[derive(Clone)]
pub(super) struct Rpc {
    client: RpcClient,
    timeout: Duration,
    finality: Finality,
}

impl Rpc {
    pub(super) fn new(url: Url, timeout: Duration, finality: Finality) -> Self {
        Rpc { client: RpcClient::new_http(url), timeout, finality }
    }

    async fn call<P: RpcSend, R: RpcRecv>(
        &self,
        method: &'static str,
        params: P,
    ) -> Result<R, TransportError> {
        match timeout(self.timeout, self.client.request(method, params)).await {
            Ok(answer) => answer,
            Err(_) => Err(late()),
        }
    }

    /// Many calls of one method in few requests; one result each, in order.
    async fn calls<R: RpcRecv>(
        &self,
        method: &'static str,
        params: Vec<Value>,
    ) -> Result<Vec<R>, TransportError> {
        let mut answers = Vec::with_capacity(params.len());
        for chunk in params.chunks(BATCH) {
            let mut batch = self.client.new_batch();
            let waiters = chunk
                .iter()
                .map(|p| batch.add_call::<_, R>(method, p))
                .collect::<Result<Vec<_>, _>>()?;
            let all = async {
                batch.send().await?;
                futures_util::future::try_join_all(waiters).await
            };
            answers.extend(timeout(self.timeout, all).await.map_err(|_| late())??);
        }
        Ok(answers)
    }

    pub(super) async fn chain_id(&self) -> Result<u64, ChainError> {
        let id: U64 = self.call("eth_chainId", ()).await.map_err(|error| unreachable(&error))?;
        Ok(id.to())
    }

    pub(super) async fn send_raw(&self, raw: &[u8]) -> Result<(), TransportError> {
        self.call::<_, B256>("eth_sendRawTransaction", (hex_of(raw),)).await.map(drop)
    }

    pub(super) async fn latest(&self) -> Result<RpcBlock, TransportError> {
        self.call("eth_getBlockByNumber", ("latest", false)).await
    }

    pub(super) async fn by_hash(&self, hash: B256) -> Result<Option<RpcBlock>, TransportError> {
        self.call("eth_getBlockByHash", (hash, false)).await
    }

    /// The last final block, given the latest.
    pub(super) async fn finalized(&self, latest: &RpcBlock) -> Result<RpcBlock, TransportError> {
        match self.finality {
            Finality::Tag => self.call("eth_getBlockByNumber", ("finalized", false)).await,
            Finality::Confirmations(depth) => {
                let number = latest.number.to::<u64>().saturating_sub(depth);
                self.call("eth_getBlockByNumber", (U64::from(number), false)).await
            }
        }
    }

    pub(super) async fn receipts(
        &self,
        hashes: &[B256],
    ) -> Result<Vec<Option<RpcReceipt>>, TransportError> {
        let params = hashes.iter().map(|h| serde_json::json!([h])).collect();
        self.calls("eth_getTransactionReceipt", params).await
    }

    pub(super) async fn transactions(
        &self,
        hashes: &[B256],
    ) -> Result<Vec<Option<RpcTransaction>>, TransportError> {
        let params = hashes.iter().map(|h| serde_json::json!([h])).collect();
        self.calls("eth_getTransactionByHash", params).await
    }

    pub(super) async fn nonce(&self, account: &str, at: Value) -> Result<u64, TransportError> {
        let count: U64 = self.call("eth_getTransactionCount", (account, at)).await?;
        Ok(count.to())
    }

    pub(super) async fn view(&self, account: &AccountId) -> Result<View, ChainError> {
        let account = account.to_string();
        let view = async {
            let latest = self.latest().await?;
            let finalized = self.finalized(&latest).await?;
            let at = |b: &RpcBlock| serde_json::json!(b.number);
            let (best_nonce, finalized_nonce) = tokio::join!(
                self.nonce(&account, at(&latest)),
                self.nonce(&account, at(&finalized)),
            );
            // Read last, so that it is never below what is in a block.
            let pool_nonce = self.nonce(&account, "pending".into()).await?;
            let head = Head {
                best: block(latest.number.to(), latest.hash),
                finalized: block(finalized.number.to(), finalized.hash),
                best_nonce: best_nonce?,
                // A node without the old state cannot say: zero claims nothing.
                finalized_nonce: finalized_nonce.unwrap_or(0),
                pool_nonce,
            };
            let base_fee = latest.base_fee_per_gas.unwrap_or_default().to();
            Ok::<_, TransportError>(View { head, base_fee })
        };
        view.await.map_err(|error| unreachable(&error))
    }
}

fn late() -> TransportError {
    RpcError::Transport(TransportErrorKind::Custom("no answer in time".into()))
}

fn unreachable(error: &TransportError) -> ChainError {
    ChainError::Unreachable(plainly(error))
}
