//! The line to one node: requests with a deadline, a new connection where one broke, and what is
//! read of the chain.

use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use parity_scale_codec::Decode as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use subxt_rpcs::Error as RpcError;
use subxt_rpcs::client::{RpcClient, RpcParams, rpc_params};
use tenure_core::clock::{BootClock, Clock as _};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::events;
use super::metadata::{Runtime, RuntimeError, Version};
use super::past::Events;
use super::runtimes::{Mark, Reading, Runtimes};
use crate::account::AccountId;
use crate::chain::quiet::quietly;
use crate::chain::{Block, ChainError, ChainIdentity, without_addresses};
use crate::status::{Hash, unhex};

/// Where a state has its runtime's code: `:code`.
const CODE: &str = "0x3a636f6465";

pub(super) struct Line {
    url: String,
    pub(super) timeout: Duration,
    client: Mutex<Connection>,
    /// Never locked across an await.
    runtimes: RwLock<Runtimes>,
    /// One task at a time reads metadata, which is long.
    reading: Mutex<()>,
    /// Which chain it is, as the node first said.
    genesis: OnceLock<Hash>,
}

/// The connection for new requests.
#[derive(Default)]
struct Connection {
    client: Option<RpcClient>,
    /// How many there have been.
    number: u64,
}

/// Something could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unread {
    #[error(transparent)]
    Node(#[from] RpcError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl Unread {
    /// Whether the node has thrown the state away, so that asking again is of no use.
    pub(super) fn is_pruned(&self) -> bool {
        match self {
            Unread::Node(RpcError::User(error)) => {
                let data = error.data.as_ref().map_or("", |data| data.get());
                let pruned = |text: &str| text.contains("State already discarded");
                pruned(&error.message) || pruned(data)
            }
            Unread::Node(_) | Unread::Runtime(_) => false,
        }
    }

    pub(super) fn plainly(&self) -> String {
        match self.foreign() {
            Some(foreign) => foreign.to_string(),
            None => without_addresses(self.to_string()),
        }
    }

    /// The node is of another chain than before.
    fn foreign(&self) -> Option<&ChainError> {
        match self {
            Unread::Node(RpcError::Client(inner)) => inner.downcast_ref(),
            Unread::Node(_) | Unread::Runtime(_) => None,
        }
    }

    /// Why the chain did not answer.
    pub(super) fn told(&self) -> ChainError {
        self.foreign().cloned().unwrap_or_else(|| ChainError::Unreachable(self.plainly()))
    }
}

#[derive(Debug, Deserialize)]
struct Header {
    number: String,
    #[serde(rename = "parentHash")]
    parent: Option<String>,
}

#[derive(Debug, Deserialize)]
struct SignedBlock {
    block: BlockBody,
}

#[derive(Debug, Deserialize)]
struct BlockBody {
    extrinsics: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuntimeVersion {
    spec_version: u32,
    transaction_version: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DispatchInfo {
    partial_fee: Value,
}

impl Line {
    pub(super) fn new(url: &str, timeout: Duration) -> Self {
        Line {
            url: url.to_owned(),
            timeout,
            client: Mutex::default(),
            runtimes: RwLock::default(),
            reading: Mutex::default(),
            genesis: OnceLock::new(),
        }
    }

    /// The connection, and its number among those of this line.
    pub(super) async fn client(&self) -> Result<(u64, RpcClient), RpcError> {
        let mut slot = self.client.lock().await;
        if let Some(client) = &slot.client {
            return Ok((slot.number, client.clone()));
        }
        // The caller chose the scheme; plain text is its decision.
        let url = self.url.clone();
        let connect = quietly(async move { RpcClient::from_insecure_url(url).await });
        let client = timeout(self.timeout, connect).await.map_err(|_| late())??;
        // A node that was away may come back as one of another chain, which must get nothing of this one.
        if let Some(was) = self.genesis.get().copied() {
            let asking = client.clone();
            let first =
                async move { asking.request("chain_getBlockHash", rpc_params![0u64]).await };
            let first = timeout(self.timeout, quietly(first)).await.map_err(|_| late())??;
            match hash_of(first)? {
                is if is == was => {}
                is => return Err(foreign(is, was)),
            }
        }
        slot.number += 1;
        slot.client = Some(client.clone());
        Ok((slot.number, client))
    }

    /// That connection is not used for new requests; its subscriptions go on.
    pub(super) async fn leave(&self, number: u64) {
        let mut slot = self.client.lock().await;
        if slot.number == number {
            slot.client = None;
        }
    }

    /// A line that broke or fell silent is not used again.
    pub(super) async fn checked<T>(
        &self,
        number: u64,
        outcome: Result<T, RpcError>,
    ) -> Result<T, RpcError> {
        match &outcome {
            Ok(_) | Err(RpcError::User(_)) => {}
            Err(_) => self.leave(number).await,
        }
        outcome
    }

    pub(super) async fn request<R: DeserializeOwned + Send + 'static>(
        &self,
        method: &'static str,
        params: RpcParams,
    ) -> Result<R, RpcError> {
        let (number, client) = self.client().await?;
        // The client logs whole answers, and a gateway may quote the address that it could not reach.
        let request = quietly(async move { client.request(method, params).await });
        let answer = timeout(self.timeout, request).await;
        self.checked(number, answer.unwrap_or_else(|_| Err(late()))).await
    }

    async fn header(&self, hash: &str) -> Result<(u64, Option<Hash>), RpcError> {
        let header: Option<Header> = self.request("chain_getHeader", rpc_params![hash]).await?;
        let header = header.ok_or_else(|| unreadable("the node does not know its own block"))?;
        let digits = header.number.trim_start_matches("0x");
        let number =
            u64::from_str_radix(digits, 16).map_err(|_| unreadable("a block number is not hex"))?;
        let parent = header.parent.and_then(|hash| hash.parse().ok());
        Ok((number, parent))
    }

    pub(super) async fn block(&self, hash: String) -> Result<Block, RpcError> {
        let (number, _) = self.header(&hash).await?;
        let hash = hash.parse().map_err(|_| unreadable("a block hash is not 32 bytes"))?;
        Ok(Block { number, hash })
    }

    pub(super) async fn best(&self) -> Result<Block, RpcError> {
        let best: String = self.request("chain_getBlockHash", rpc_params![]).await?;
        self.block(best).await
    }

    pub(super) async fn nonce_at(&self, account: &AccountId, block: Hash) -> Result<u64, RpcError> {
        let params =
            rpc_params!["AccountNonceApi_account_nonce", account.to_string(), block.to_string()];
        let answer: String = self.request("state_call", params).await?;
        let bytes = unhex(&answer).filter(|bytes| bytes.len() <= 8);
        let bytes = bytes.ok_or_else(|| unreadable("an account's nonce is not an integer"))?;
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(&bytes);
        Ok(u64::from_le_bytes(wide))
    }

    pub(super) async fn hash_at(&self, number: u64) -> Result<Hash, RpcError> {
        hash_of(self.request("chain_getBlockHash", rpc_params![number]).await?)
    }

    /// The bytes of a block's extrinsics, in order.
    pub(super) async fn extrinsics(&self, block: Hash) -> Result<Vec<Vec<u8>>, RpcError> {
        let params = rpc_params![block.to_string()];
        let found: Option<SignedBlock> = self.request("chain_getBlock", params).await?;
        let found = found.ok_or_else(|| unreadable("the node has no such block"))?;
        let extrinsics = found.block.extrinsics.iter().map(|text| unhex(text));
        let all: Option<Vec<Vec<u8>>> = extrinsics.collect();
        all.ok_or_else(|| unreadable("an extrinsic is not hex"))
    }

    pub(super) async fn genesis(&self) -> Result<Hash, RpcError> {
        match self.genesis.get() {
            Some(genesis) => Ok(*genesis),
            None => self.genesis_now().await,
        }
    }

    /// The first block as the node has it now; an error if it was another one before.
    pub(super) async fn genesis_now(&self) -> Result<Hash, RpcError> {
        let is = self.hash_at(0).await?;
        let was = *self.genesis.get_or_init(|| is);
        if is == was { Ok(is) } else { Err(foreign(is, was)) }
    }

    /// The runtime of the state after a block: the one that makes the next. Its metadata is read once; an
    /// upgrade is seen by its version or its code.
    pub(super) async fn runtime_at(&self, block: Hash) -> Result<Arc<Runtime>, Unread> {
        if let Some(seen) = self.seen_at(block) {
            return Ok(seen?);
        }
        let at = block.to_string();
        let mark = self.mark(&at).await?;
        if let Some(known) = self.known().find(mark) {
            return Ok(known?);
        }
        let _reading = self.reading.lock().await;
        if let Some(known) = self.known().find(mark) {
            return Ok(known?);
        }
        let reading = self.read(&at, mark.version).await?.map(Arc::new);
        let (spec, transaction) = (mark.version.spec, mark.version.transaction);
        match &reading {
            Ok(_) => tracing::info!(spec, transaction, "a runtime was read"),
            Err(error) => tracing::warn!(
                spec,
                transaction,
                %error,
                "the runtime's metadata is not read: signed bytes and dispatch errors stay unread"
            ),
        }
        self.runtimes.write().unwrap_or_else(PoisonError::into_inner).keep(mark, reading.clone());
        Ok(reading?)
    }

    /// The runtime of the best block: bytes are read with it before any other.
    pub(super) async fn present_runtime(&self, best: Block) -> Result<Arc<Runtime>, Unread> {
        let reading = match self.runtime_at(best.hash).await {
            Ok(runtime) => Ok(runtime),
            Err(Unread::Runtime(error)) => Err(error),
            Err(error @ Unread::Node(_)) => return Err(error),
        };
        let mut runtimes = self.runtimes.write().unwrap_or_else(PoisonError::into_inner);
        runtimes.look(best, reading.clone(), BootClock.now());
        Ok(reading?)
    }

    fn known(&self) -> RwLockReadGuard<'_, Runtimes> {
        self.runtimes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen_at(&self, block: Hash) -> Option<Reading> {
        self.known().seen_at(block)
    }

    async fn mark(&self, at: &str) -> Result<Mark, RpcError> {
        let version = self.request("state_getRuntimeVersion", rpc_params![at]);
        let code = self.request("state_getStorageHash", rpc_params![CODE, at]);
        let (version, code): (Result<RuntimeVersion, _>, Result<Option<Hash>, _>) =
            tokio::join!(version, code);
        let version = version?;
        let version =
            Version { spec: version.spec_version, transaction: version.transaction_version };
        // An endpoint that does not offer it leaves the version to tell alone.
        let code = match code {
            Ok(code) => code,
            Err(RpcError::User(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(Mark { version, code })
    }

    /// Reads the metadata of a state. A node whose usual metadata is too new may offer older ones beside.
    async fn read(
        &self,
        at: &str,
        version: Version,
    ) -> Result<Result<Runtime, RuntimeError>, RpcError> {
        let genesis = self.genesis().await?;
        let metadata: String = self.request("state_getMetadata", rpc_params![at]).await?;
        let metadata = unhex(&metadata).ok_or_else(|| unreadable("metadata is not hex"))?;
        let mut read = Runtime::read(&metadata, version, genesis);
        for older in [15u32, 14] {
            if !matches!(read, Err(RuntimeError::Version(_))) {
                break;
            }
            let argument = format!("0x{}", hex::encode(older.to_le_bytes()));
            let params = rpc_params!["Metadata_metadata_at_version", argument, at];
            let offered: String = match self.request("state_call", params).await {
                Ok(offered) => offered,
                // A runtime that has no such function.
                Err(RpcError::User(_)) => break,
                Err(error) => return Err(error),
            };
            let offered = unhex(&offered).ok_or_else(|| unreadable("metadata is not hex"))?;
            if let Ok(Some(metadata)) = Option::<Vec<u8>>::decode(&mut &offered[..]) {
                read = Runtime::read(&metadata, version, genesis);
            }
        }
        Ok(read)
    }

    /// The runtimes that were read, the present one first, then the newest.
    pub(super) fn runtimes(&self) -> Vec<Arc<Runtime>> {
        self.known().in_order()
    }

    /// What the chain asks for an extrinsic, without its tip.
    pub(super) async fn fee(&self, raw: &[u8]) -> Result<u128, RpcError> {
        let params = rpc_params![format!("0x{}", hex::encode(raw))];
        let info: DispatchInfo = self.request("payment_queryInfo", params).await?;
        let text = info.partial_fee.as_str().map(str::to_owned);
        let text = text.unwrap_or_else(|| info.partial_fee.to_string());
        let fee = match text.strip_prefix("0x") {
            Some(digits) => u128::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        fee.ok_or_else(|| unreadable("a fee is not a number"))
    }

    /// A block's events, with the runtime that made them.
    pub(super) async fn events(&self, block: Hash) -> Result<Events, Unread> {
        let (number, parent) = self.header(&block.to_string()).await?;
        match self.told(block, parent).await {
            Ok(told) => Ok(Events { number, told: Some(told) }),
            // Of a state that is gone, and of a runtime that cannot be read, no later answer tells more.
            Err(error) if error.is_pruned() || matches!(error, Unread::Runtime(_)) => {
                Ok(Events { number, told: None })
            }
            Err(error) => Err(error),
        }
    }

    async fn told(
        &self,
        block: Hash,
        parent: Option<Hash>,
    ) -> Result<(Arc<Runtime>, Vec<u8>), Unread> {
        // The runtime of the state before the block made it, also where the block upgraded it.
        let runtime = self.runtime_at(parent.unwrap_or(block)).await?;
        let params = rpc_params![events::KEY, block.to_string()];
        let events: Option<String> = self.request("state_getStorage", params).await?;
        let events = events.as_deref().map_or(Some(Vec::new()), unhex);
        let events = events.ok_or_else(|| unreadable("a block's events are not hex"))?;
        Ok((runtime, events))
    }
}

pub(super) fn late() -> RpcError {
    RpcError::Client("no answer in time".into())
}

fn hash_of(answer: Option<String>) -> Result<Hash, RpcError> {
    let hash = answer.ok_or_else(|| unreadable("the node has no such block"))?;
    hash.parse().map_err(|_| unreadable("a block hash is not 32 bytes"))
}

fn foreign(is: Hash, was: Hash) -> RpcError {
    let identity = |genesis| ChainIdentity { id: None, genesis };
    let (is, was) = (identity(is), identity(was));
    RpcError::Client(Box::new(ChainError::Foreign { is, was }))
}

fn unreadable(what: &'static str) -> RpcError {
    RpcError::Client(what.into())
}
