//! A Substrate chain of one account, with a pool that is imitated: nonces in order, blocks by time,
//! forks, a lost pool and a restart by order. It takes every signature, so it is no proof that a real
//! chain would.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc};

use super::conversation::converse;
use super::{decode, encode};

/// What the node reads of an extrinsic.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Fields {
    pub nonce: u64,
    pub tip: u128,
    /// Its hash in hex.
    pub hash: String,
}

/// Reads an extrinsic; `None` if it is none.
pub type Reader = Arc<dyn Fn(&[u8]) -> Option<Fields> + Send + Sync>;

/// The node; it ends with this value.
pub struct ImitatedNode {
    /// Where it answers.
    pub url: String,
    state: Arc<Mutex<State>>,
    cut: broadcast::Sender<()>,
    tasks: tokio::task::JoinSet<()>,
}

impl std::fmt::Debug for ImitatedNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImitatedNode").field("url", &self.url).finish_non_exhaustive()
    }
}

/// How many blocks finality stays behind the best.
const LAG: usize = 2;

/// Where statuses of one extrinsic go.
struct Subscriber {
    subscription: String,
    out: mpsc::UnboundedSender<Value>,
}

impl Subscriber {
    fn say(&self, status: &Value) {
        let params = json!({"subscription": self.subscription, "result": status});
        let _ = self
            .out
            .send(json!({"jsonrpc": "2.0", "method": "author_extrinsicUpdate", "params": params}));
    }
}

/// A block, of the chain or of a branch that was left.
#[derive(Debug, Clone)]
struct Sealed {
    number: usize,
    parent: String,
    extrinsics: Vec<Vec<u8>>,
    /// The account's nonce after it.
    nonce: u64,
}

struct State {
    metadata: String,
    reader: Reader,
    /// The best chain's blocks by number.
    chain: Vec<String>,
    finalized: usize,
    /// Every block that was ever made.
    blocks: HashMap<String, Sealed>,
    pool: BTreeMap<u64, Vec<u8>>,
    watches: HashMap<Vec<u8>, Vec<Subscriber>>,
    subscriptions: u64,
}

impl ImitatedNode {
    /// Starts it on a free port, with a block every so often.
    pub async fn start(metadata: &[u8], every: Duration, reader: Reader) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("ws://{}", listener.local_addr().expect("bound"));
        let mut state = State {
            metadata: encode(metadata),
            reader,
            chain: Vec::new(),
            finalized: 0,
            blocks: HashMap::new(),
            pool: BTreeMap::new(),
            watches: HashMap::new(),
            subscriptions: 0,
        };
        state.seal(Vec::new());
        let (state, cut) = (Arc::new(Mutex::new(state)), broadcast::Sender::new(4));
        let (shared, cutter) = (Arc::clone(&state), cut.clone());
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                tokio::spawn(converse(stream, cutter.subscribe(), move |request, out| {
                    respond(&mut state.lock().expect("unpoisoned"), request, out);
                }));
            }
        });
        let shared = Arc::clone(&state);
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                shared.lock().expect("unpoisoned").make_block();
            }
        });
        ImitatedNode { url, state, cut, tasks }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("unpoisoned")
    }

    /// Another branch without the last blocks' extrinsics becomes the best chain; they are in the pool
    /// again. A pool that follows forks says nothing of it, an older one says `retracted`.
    pub fn fork(&self, depth: usize, aloud: bool) {
        self.state().fork(depth, aloud);
    }

    /// The pool lets go of everything, and says so to each watch.
    pub fn lose_pool(&self) {
        let mut state = self.state();
        let lost = std::mem::take(&mut state.pool);
        for raw in lost.into_values() {
            let watches = state.watches.remove(&raw).unwrap_or_default();
            watches.iter().for_each(|watch| watch.say(&json!("dropped")));
        }
    }

    /// The node is started again: its connections and its pool are gone, its blocks are not.
    pub fn restart(&self) {
        let mut state = self.state();
        state.pool.clear();
        state.watches.clear();
        let _ = self.cut.send(());
    }

    /// All extrinsics of final blocks, in order, each with its block's hash.
    #[must_use]
    pub fn finalized(&self) -> Vec<(Vec<u8>, String)> {
        let state = self.state();
        let hashes = state.chain[..=state.finalized].iter();
        let of = |hash: &String| {
            let extrinsics = state.blocks[hash].extrinsics.clone().into_iter();
            extrinsics.map(|raw| (raw, hash.clone())).collect::<Vec<_>>()
        };
        hashes.flat_map(of).collect()
    }

    /// Ends it.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

impl State {
    fn best(&self) -> &Sealed {
        &self.blocks[self.chain.last().expect("the first block is always there")]
    }

    fn seal(&mut self, extrinsics: Vec<Vec<u8>>) -> String {
        let (number, made) = (self.chain.len(), self.blocks.len());
        let mut hash = [0xb1; 32];
        hash[..8].copy_from_slice(&(number as u64).to_be_bytes());
        hash[8..16].copy_from_slice(&(made as u64).to_be_bytes());
        let hash = encode(&hash);
        let parent = self.chain.last().cloned().unwrap_or_else(|| encode(&[0; 32]));
        let before = self.blocks.get(&parent).map_or(0, |parent| parent.nonce);
        let nonce = before + extrinsics.len() as u64;
        self.blocks.insert(hash.clone(), Sealed { number, parent, extrinsics, nonce });
        self.chain.push(hash.clone());
        hash
    }

    fn tell(&self, raw: &[u8], status: &Value) {
        for watch in self.watches.get(raw).into_iter().flatten() {
            watch.say(status);
        }
    }

    fn make_block(&mut self) {
        let mut next = self.best().nonce;
        self.pool.retain(|nonce, _| *nonce >= next);
        let mut taken = Vec::new();
        while let Some(raw) = self.pool.remove(&next) {
            taken.push(raw);
            next += 1;
        }
        let hash = self.seal(taken.clone());
        for raw in &taken {
            self.tell(raw, &json!({"inBlock": hash}));
        }
        let last = (self.chain.len() - 1).saturating_sub(LAG);
        for number in self.finalized + 1..=last {
            let hash = self.chain[number].clone();
            for raw in self.blocks[&hash].extrinsics.clone() {
                self.tell(&raw, &json!({"finalized": hash}));
                self.watches.remove(&raw);
            }
        }
        self.finalized = self.finalized.max(last);
    }

    fn fork(&mut self, depth: usize, aloud: bool) {
        let depth = depth.min(self.chain.len() - 1 - self.finalized);
        for _ in 0..depth {
            let hash = self.chain.pop().expect("above the final one");
            for raw in self.blocks[&hash].extrinsics.clone() {
                if aloud {
                    self.tell(&raw, &json!({"retracted": hash}));
                }
                if let Some(fields) = (self.reader)(&raw) {
                    self.pool.entry(fields.nonce).or_insert(raw);
                }
            }
        }
        // The other branch is as long.
        for _ in 0..depth {
            self.seal(Vec::new());
        }
    }

    /// Whether the pool takes an extrinsic; else the error, as a node says it.
    fn submit(&mut self, raw: &[u8]) -> Result<bool, Value> {
        let error = |code: i32, message: &str, data: &str| json!({"code": code, "message": message, "data": data});
        let Some(fields) = (self.reader)(raw) else {
            return Err(error(1002, "Verification Error", "unreachable"));
        };
        let next = self.best().nonce;
        if fields.nonce < next {
            return Err(error(1010, "Invalid Transaction", "Transaction is outdated"));
        }
        if let Some(other) = self.pool.get(&fields.nonce).cloned() {
            if other == raw {
                return Err(error(1013, "Transaction Already Imported", ""));
            }
            let tip = (self.reader)(&other).map_or(0, |other| other.tip);
            if fields.tip <= tip {
                return Err(error(1014, "Priority is too low", "the other tips as much"));
            }
            self.tell(&other, &json!({"usurped": fields.hash}));
            self.watches.remove(&other);
        }
        self.pool.insert(fields.nonce, raw.to_vec());
        Ok((next..=fields.nonce).all(|nonce| self.pool.contains_key(&nonce)))
    }

    fn answer(&self, request: &Value) -> Value {
        let params = &request["params"];
        let block = |hash: &Value| {
            let known = hash.as_str().and_then(|hash| self.blocks.get(hash));
            known.unwrap_or_else(|| self.best())
        };
        match request["method"].as_str().unwrap_or_default() {
            "chain_getFinalizedHead" => json!(self.chain[self.finalized]),
            "chain_getBlockHash" => match params[0].as_u64() {
                Some(number) => json!(self.chain.get(number as usize)),
                None => json!(self.chain.last()),
            },
            "chain_getHeader" => {
                let block = block(&params[0]);
                json!({"number": format!("{:#x}", block.number), "parentHash": block.parent})
            }
            "chain_getBlock" => {
                let all = block(&params[0]).extrinsics.iter();
                json!({"block": {"extrinsics": all.map(|raw| encode(raw)).collect::<Vec<_>>()}})
            }
            "state_call" => {
                let nonce = u32::try_from(block(&params[2]).nonce).expect("small");
                json!(encode(&nonce.to_le_bytes()))
            }
            "state_getRuntimeVersion" => json!({"specVersion": 1, "transactionVersion": 1}),
            "state_getMetadata" => json!(self.metadata),
            "state_getStorage" => json!(encode(&successes(block(&params[1]).extrinsics.len()))),
            "payment_queryInfo" => json!({"partialFee": "1000"}),
            "system_accountNextIndex" => {
                let next = self.best().nonce;
                json!((next..).find(|nonce| !self.pool.contains_key(nonce)))
            }
            "author_pendingExtrinsics" => {
                json!(self.pool.values().map(|raw| encode(raw)).collect::<Vec<_>>())
            }
            _ => Value::Null,
        }
    }
}

/// The events of a block whose calls all succeeded.
fn successes(count: usize) -> Vec<u8> {
    let mut bytes = match u16::try_from(count) {
        Ok(count) if count < 64 => vec![(count as u8) << 2],
        Ok(count) => (count << 2 | 1).to_le_bytes().to_vec(),
        Err(_) => panic!("a block of the tests is small"),
    };
    for place in 0..count as u32 {
        bytes.push(0);
        bytes.extend(place.to_le_bytes());
        // System.ExtrinsicSuccess; its weight, class and whether it pays; no topics.
        bytes.extend([0, 0, 4, 0, 0, 0, 0]);
    }
    bytes
}

fn respond(state: &mut State, request: &Value, out: &mpsc::UnboundedSender<Value>) {
    let id = &request["id"];
    if request["method"] != "author_submitAndWatchExtrinsic" {
        let _ = out.send(json!({"jsonrpc": "2.0", "id": id, "result": state.answer(request)}));
        return;
    }
    let raw = decode(request["params"][0].as_str().unwrap_or_default());
    match state.submit(&raw) {
        Ok(ready) => {
            state.subscriptions += 1;
            let subscription = format!("sub-{}", state.subscriptions);
            let _ = out.send(json!({"jsonrpc": "2.0", "id": id, "result": subscription}));
            let watch = Subscriber { subscription, out: out.clone() };
            watch.say(&json!(if ready { "ready" } else { "future" }));
            state.watches.entry(raw).or_default().push(watch);
        }
        Err(error) => {
            let _ = out.send(json!({"jsonrpc": "2.0", "id": id, "error": error}));
        }
    }
}
