//! The chain under the remarks: an imitated node, or a real one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_testkit::substrate::development::DevelopmentNode;
use tenure_testkit::substrate::imitation::{Fields, ImitatedNode};
use tenure_testkit::substrate::storagehub_parachain;
use tenure_tx::chain::substrate::{Runtime, Version, extrinsic_hash};
use tenure_tx::status::{Hash, unhex};

/// The time between two blocks.
const EVERY: Duration = Duration::from_millis(300);

pub(crate) type Reader = Arc<dyn Fn(&[u8]) -> Option<Fields> + Send + Sync>;

pub(crate) enum Chain {
    Imitated(ImitatedNode),
    Real { node: Box<DevelopmentNode>, _folder: TempDir },
}

impl Chain {
    pub(crate) async fn imitated() -> Self {
        let read = reader(&storagehub_parachain(), Hash::default());
        Chain::Imitated(ImitatedNode::start(&storagehub_parachain(), EVERY, read).await)
    }

    pub(crate) async fn real() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().display().to_string();
        let every = EVERY.as_millis().to_string();
        let arguments = ["--block-ms", &every, "--finality-lag", "6", "--folder", &place];
        let node = Box::new(DevelopmentNode::start("dev32", &arguments).await);
        Chain::Real { node, _folder: folder }
    }

    pub(crate) fn url(&self) -> &str {
        match self {
            Chain::Imitated(node) => &node.url,
            Chain::Real { node, .. } => &node.url,
        }
    }

    /// What this chain reads of an extrinsic.
    pub(crate) async fn reader(&self) -> Reader {
        match self {
            Chain::Imitated(_) => reader(&storagehub_parachain(), Hash::default()),
            Chain::Real { node, .. } => {
                let metadata = text(node, "state_getMetadata", json!([])).await;
                let genesis = text(node, "chain_getBlockHash", json!([0])).await;
                let metadata = unhex(&metadata).expect("hex");
                reader(&metadata, genesis.parse().expect("a hash"))
            }
        }
    }

    pub(crate) async fn restart(&mut self) {
        match self {
            Chain::Imitated(node) => node.restart(),
            Chain::Real { node, .. } => node.restart().await,
        }
    }

    /// Another branch becomes the best chain; whether it did. Whether that is told is the pool's choice
    /// where it is real.
    pub(crate) async fn fork(&self, aloud: bool) -> bool {
        match self {
            Chain::Imitated(node) => {
                node.fork(2, aloud);
                true
            }
            Chain::Real { node, .. } => overtake(node).await,
        }
    }

    pub(crate) async fn lose_pool(&self) {
        match self {
            Chain::Imitated(node) => node.lose_pool(),
            Chain::Real { node, .. } => {
                let listed = asked(node, "author_pendingExtrinsics", json!([])).await;
                let all = listed.as_array().expect("a list").iter();
                let all: Vec<Value> = all.map(|raw| json!({"extrinsic": raw})).collect();
                asked(node, "author_removeExtrinsic", json!([all])).await;
            }
        }
    }

    /// All signed extrinsics of final blocks, in order, each with its block's hash.
    pub(crate) async fn finalized(&self) -> Vec<(Vec<u8>, String)> {
        let node = match self {
            Chain::Imitated(node) => return node.finalized(),
            Chain::Real { node, .. } => node,
        };
        let read = self.reader().await;
        let last = text(node, "chain_getFinalizedHead", json!([])).await;
        let mut all = Vec::new();
        for number in 1..=number(node, &last).await {
            let hash = text(node, "chain_getBlockHash", json!([number])).await;
            let block = asked(node, "chain_getBlock", json!([hash])).await;
            let extrinsics = block["block"]["extrinsics"].as_array().expect("a list").clone();
            let bytes = extrinsics.iter().map(|raw| unhex(raw.as_str().expect("text")));
            // The time of the block is an extrinsic that no account signed.
            let signed = bytes.map(|raw| raw.expect("hex")).filter(|raw| read(raw).is_some());
            all.extend(signed.map(|raw| (raw, hash.clone())));
        }
        all
    }
}

fn reader(metadata: &[u8], genesis: Hash) -> Reader {
    let version = Version { spec: 1, transaction: 1 };
    let runtime = Runtime::read(metadata, version, genesis).expect("read");
    Arc::new(move |raw| {
        let (nonce, tip) = runtime.nonce_and_tip(raw)?;
        Some(Fields { nonce, tip, hash: extrinsic_hash(raw).to_string() })
    })
}

async fn asked(node: &DevelopmentNode, method: &str, params: Value) -> Value {
    let answer = node.call(method, &params).await;
    answer.unwrap_or_else(|error| panic!("{method}: {error}"))
}

async fn text(node: &DevelopmentNode, method: &str, params: Value) -> String {
    asked(node, method, params).await.as_str().expect("text").to_owned()
}

async fn number(node: &DevelopmentNode, hash: &str) -> u64 {
    let header = asked(node, "chain_getHeader", json!([hash])).await;
    let number = header["number"].as_str().expect("text").trim_start_matches("0x").to_owned();
    u64::from_str_radix(&number, 16).expect("hex")
}

/// Builds a branch beside the best block until it is the longer one. Blocks are made by time as well, so it
/// may take several; where finality comes first, there is no fork.
async fn overtake(node: &DevelopmentNode) -> bool {
    let best = text(node, "chain_getBlockHash", json!([])).await;
    let Some(fork) = number(node, &best).await.checked_sub(1) else { return false };
    let mut parent = text(node, "chain_getBlockHash", json!([fork])).await;
    let mut first = None;
    for _ in 0..8 {
        match node.call("engine_createBlock", &json!([true, false, parent])).await {
            Ok(made) => parent = made["hash"].as_str().expect("text").to_owned(),
            Err(_) => return false,
        }
        let first = first.get_or_insert_with(|| parent.clone());
        if *first == text(node, "chain_getBlockHash", json!([fork + 1])).await {
            return true;
        }
    }
    false
}
