//! A Substrate node that says what the test tells it to, over a real WebSocket.

mod conversation;
pub mod development;
pub mod gateway;
pub mod imitation;
pub mod tape;

use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, mpsc};

use conversation::converse;

/// What the node does about a submission.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Say {
    Pool,
    Refuse(i32, &'static str, &'static str),
    Status(Value),
}

/// An extrinsic that arrived.
#[derive(Debug)]
pub struct Arrived {
    /// Its bytes.
    pub raw: Vec<u8>,
    /// Which connection it came by, from 0.
    pub connection: usize,
    /// Dropping it ends the subscription without a word.
    pub say: mpsc::UnboundedSender<Say>,
}

impl Arrived {
    /// Takes it into the pool, and answers with a subscription.
    pub fn pool(&self) -> &Self {
        self.say.send(Say::Pool).expect("the node lives");
        self
    }

    /// Sends a status to the subscription.
    pub fn status(&self, status: Value) -> &Self {
        self.say.send(Say::Status(status)).expect("the node lives");
        self
    }

    /// Refuses it with an error.
    pub fn refuse(&self, code: i32, message: &'static str, data: &'static str) {
        self.say.send(Say::Refuse(code, message, data)).expect("the node lives");
    }
}

/// The chain: block 0 is empty; each extrinsic uses one nonce of the one account.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Ledger {
    pub blocks: Vec<Vec<Vec<u8>>>,
    pub finalized: usize,
    pub pending: Vec<Vec<u8>>,
    /// The runtime's metadata, as bytes; none by default, which no signer can read.
    pub metadata: Vec<u8>,
    /// Other metadata, from that block on.
    pub later_metadata: Option<(usize, Vec<u8>)>,
    /// Metadata of other versions, as the runtime offers them beside.
    pub offered: HashMap<u32, Vec<u8>>,
    /// Methods that the node answers with an error.
    pub failing: Vec<&'static str>,
    /// The blocks after which the runtime was another one: its version is their number and one.
    pub upgrades: Vec<usize>,
    /// The events of each block, encoded.
    pub events: HashMap<usize, Vec<u8>>,
    /// What every extrinsic costs.
    pub fee: u128,
    /// The states of the blocks below are gone.
    pub pruned_below: usize,
    /// The hash of the first block, if it is not the usual one.
    pub genesis: Option<String>,
}

impl Ledger {
    fn metadata_at(&self, block: usize) -> &[u8] {
        let later = self.later_metadata.as_ref().filter(|(since, _)| *since <= block);
        later.map_or(&self.metadata, |(_, metadata)| metadata)
    }

    fn nonce(&self, block: usize) -> usize {
        self.blocks[..=block].iter().map(Vec::len).sum()
    }
}

/// A node that answers as its chain's script says.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ScriptedNode {
    pub url: String,
    pub ledger: Arc<Mutex<Ledger>>,
    pub arrivals: mpsc::UnboundedReceiver<Arrived>,
    cut: broadcast::Sender<()>,
}

/// The hash of the block of that number, in hex.
pub fn block_hash(number: usize) -> String {
    let mut bytes = [0xb0; 32];
    bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
    encode(&bytes)
}

impl ScriptedNode {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("ws://{}", listener.local_addr().expect("bound"));
        let ledger = Arc::new(Mutex::new(Ledger { blocks: vec![vec![]], ..Ledger::default() }));
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let cut = broadcast::Sender::new(4);
        let (shared, cutter) = (Arc::clone(&ledger), cut.clone());
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                let served = serve(
                    stream,
                    connection,
                    Arc::clone(&shared),
                    arrived.clone(),
                    cutter.subscribe(),
                );
                tokio::spawn(served);
            }
        });
        ScriptedNode { url, ledger, arrivals, cut }
    }

    /// Breaks every connection.
    pub fn cut(&self) {
        let _ = self.cut.send(());
    }

    /// The next extrinsic that arrives.
    pub async fn arrival(&mut self) -> Arrived {
        let wait = tokio::time::timeout(std::time::Duration::from_secs(20), self.arrivals.recv());
        wait.await.expect("something is submitted").expect("the node lives")
    }

    /// Mines a block with these extrinsics; returns its hash.
    pub fn mine(&self, extrinsics: &[&[u8]]) -> String {
        let mut ledger = self.ledger.lock().expect("unpoisoned");
        ledger.pending.retain(|p| !extrinsics.contains(&p.as_slice()));
        ledger.blocks.push(extrinsics.iter().map(|e| e.to_vec()).collect());
        block_hash(ledger.blocks.len() - 1)
    }

    /// Makes every block so far final.
    pub fn finalize(&self) {
        let mut ledger = self.ledger.lock().expect("unpoisoned");
        ledger.finalized = ledger.blocks.len() - 1;
    }
}

async fn serve(
    stream: TcpStream,
    connection: usize,
    ledger: Arc<Mutex<Ledger>>,
    arrived: mpsc::UnboundedSender<Arrived>,
    cut: broadcast::Receiver<()>,
) {
    let mut subscriptions = 0;
    converse(stream, cut, |request, out| {
        let id = request["id"].clone();
        if request["method"] == "author_submitAndWatchExtrinsic" {
            subscriptions += 1;
            let (say, orders) = mpsc::unbounded_channel();
            let raw = decode(request["params"][0].as_str().unwrap_or_default());
            let subscription = format!("sub-{subscriptions}");
            tokio::spawn(obey(orders, id, subscription, out.clone()));
            let _ = arrived.send(Arrived { raw, connection, say });
        } else {
            let answer = match answer(request, &ledger.lock().expect("unpoisoned")) {
                Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                Err(error) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
            };
            let _ = out.send(answer);
        }
    })
    .await;
}

async fn obey(
    mut orders: mpsc::UnboundedReceiver<Say>,
    id: Value,
    subscription: String,
    out: mpsc::UnboundedSender<Value>,
) {
    while let Some(order) = orders.recv().await {
        let message = match order {
            Say::Pool => json!({"jsonrpc": "2.0", "id": id, "result": subscription}),
            Say::Refuse(code, message, data) => json!({"jsonrpc": "2.0", "id": id,
                "error": {"code": code, "message": message, "data": data}}),
            Say::Status(status) => json!({"jsonrpc": "2.0", "method": "author_extrinsicUpdate",
                "params": {"subscription": subscription, "result": status}}),
        };
        let _ = out.send(message);
    }
}

fn answer(request: &Value, ledger: &Ledger) -> Result<Value, Value> {
    let params = &request["params"];
    let best = ledger.blocks.len() - 1;
    let number = |hash: &Value| {
        let Some(hash) = hash.as_str() else { return best };
        let number = decode(hash).first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        usize::try_from(number).expect("small").min(best)
    };
    // As a node says it.
    let kept = |block: usize| match block < ledger.pruned_below {
        true => Err(json!({"code": 4003, "message":
            format!("Client error: UnknownBlock: State already discarded for {}", block_hash(block))})),
        false => Ok(block),
    };
    let method = request["method"].as_str().unwrap_or_default();
    if ledger.failing.contains(&method) {
        return Err(json!({"code": -32603, "message": "Internal error"}));
    }
    Ok(match method {
        "chain_getFinalizedHead" => json!(block_hash(ledger.finalized)),
        "chain_getBlockHash" => match params[0].as_u64() {
            Some(0) => json!(ledger.genesis.clone().unwrap_or_else(|| block_hash(0))),
            Some(number) => json!(block_hash(number as usize)),
            None => json!(block_hash(best)),
        },
        "chain_getHeader" => {
            let number = number(&params[0]);
            let parent = block_hash(number.saturating_sub(1));
            json!({"number": format!("{number:#x}"), "parentHash": parent})
        }
        "chain_getBlock" => {
            let extrinsics: Vec<String> =
                ledger.blocks[number(&params[0])].iter().map(|e| encode(e)).collect();
            json!({"block": {"extrinsics": extrinsics}})
        }
        "state_call" if params[0] == "Metadata_metadata_at_version" => {
            let version = decode(params[1].as_str().unwrap_or_default());
            let version = version.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            json!(encode(&optional(ledger.offered.get(&version))))
        }
        "state_call" => {
            let block = kept(number(&params[2]))?;
            let nonce = u32::try_from(ledger.nonce(block)).expect("small");
            json!(encode(&nonce.to_le_bytes()))
        }
        "state_getRuntimeVersion" => {
            let block = kept(number(&params[0]))?;
            let version = 1 + ledger.upgrades.iter().filter(|at| **at <= block).count();
            json!({"specVersion": version, "transactionVersion": 1})
        }
        "state_getMetadata" => {
            let block = kept(number(&params[0]))?;
            json!(encode(ledger.metadata_at(block)))
        }
        // Of the code: other metadata come from other code.
        "state_getStorageHash" => {
            let block = kept(number(&params[1]))?;
            json!(encode(&Sha256::digest(ledger.metadata_at(block))))
        }
        "state_getStorage" => {
            let block = kept(number(&params[1]))?;
            ledger.events.get(&block).map_or(Value::Null, |events| json!(encode(events)))
        }
        "payment_queryInfo" => json!({"weight": {"ref_time": 1, "proof_size": 1},
            "class": "normal", "partialFee": ledger.fee.to_string()}),
        "system_accountNextIndex" => json!(ledger.nonce(best) + ledger.pending.len()),
        "author_pendingExtrinsics" => {
            json!(ledger.pending.iter().map(|e| encode(e)).collect::<Vec<_>>())
        }
        _ => Value::Null,
    })
}

/// Bytes that may be absent, in SCALE; their length is a compact number of four bytes.
fn optional(bytes: Option<&Vec<u8>>) -> Vec<u8> {
    let Some(bytes) = bytes else { return vec![0] };
    let length = u32::try_from(bytes.len()).expect("short") << 2 | 2;
    [&[1], &length.to_le_bytes()[..], bytes].concat()
}

fn encode(bytes: &[u8]) -> String {
    format!("0x{}", hex::encode(bytes))
}

fn decode(text: &str) -> Vec<u8> {
    hex::decode(text.trim_start_matches("0x")).expect("hex")
}

/// A signer for a runtime with one call, as a program: length, nonce, the call or nothing. Few
/// bytes, so the length fits into one.
pub fn signer_script(folder: &Path) -> String {
    let path = folder.join("sign.sh");
    let script = r#"read -r question
nonce=${question#*\"nonce\":}; nonce=${nonce%%[,\}]*}
call=${question#*\"call\":}; call=${call%%[,\}]*}; call=${call#\"0x}; call=${call%\"}
[ "$call" = null ] && call=
body=$(printf '%02x%s' "$nonce" "$call")
printf '0x%02x%s\n' $((${#body} / 2 * 4)) "$body"
"#;
    std::fs::write(&path, script).expect("written");
    format!("sh {}", path.display())
}

/// The metadata of StorageHub's chain with accounts of 32 bytes.
pub fn storagehub_parachain() -> Vec<u8> {
    unpacked(include_bytes!("../vectors/storagehub-parachain.scale.zst"))
}

/// The metadata of StorageHub's chain with Ethereum's accounts.
pub fn storagehub_solochain() -> Vec<u8> {
    unpacked(include_bytes!("../vectors/storagehub-solochain-evm.scale.zst"))
}

/// Extrinsics of both chains that another library signed, as JSON; see the folder's README.
pub const SIGNED_ELSEWHERE: &str = include_str!("../vectors/extrinsics.json");

/// What zstd compressed.
pub fn unpacked(compressed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut decoder =
        ruzstd::decoding::StreamingDecoder::new(compressed).expect("compressed with zstd");
    decoder.read_to_end(&mut bytes).expect("whole");
    bytes
}
