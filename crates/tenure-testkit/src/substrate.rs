//! A Substrate node that says what the test tells it to, over a real WebSocket.

use std::path::Path;
use std::sync::{Arc, Mutex};

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc};
use tokio_tungstenite::tungstenite::Message;

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
}

impl Ledger {
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
            while let Ok((stream, _)) = listener.accept().await {
                let connection =
                    serve(stream, Arc::clone(&shared), arrived.clone(), cutter.subscribe());
                tokio::spawn(connection);
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
    stream: tokio::net::TcpStream,
    ledger: Arc<Mutex<Ledger>>,
    arrived: mpsc::UnboundedSender<Arrived>,
    mut cut: broadcast::Receiver<()>,
) {
    let Ok(socket) = tokio_tungstenite::accept_async(stream).await else { return };
    let (mut sink, mut source) = socket.split();
    let (out, mut outbox) = mpsc::unbounded_channel::<Value>();
    let mut subscriptions = 0;
    loop {
        tokio::select! {
            _ = cut.recv() => return,
            Some(value) = outbox.recv() => {
                if sink.send(Message::text(value.to_string())).await.is_err() {
                    return;
                }
            }
            message = source.next() => {
                let Some(Ok(message)) = message else { return };
                let Ok(text) = message.to_text() else { continue };
                let Ok(request) = serde_json::from_str::<Value>(text) else { continue };
                let id = request["id"].clone();
                if request["method"] == "author_submitAndWatchExtrinsic" {
                    subscriptions += 1;
                    let (say, orders) = mpsc::unbounded_channel();
                    let raw = decode(request["params"][0].as_str().unwrap_or_default());
                    let subscription = format!("sub-{subscriptions}");
                    tokio::spawn(obey(orders, id, subscription, out.clone()));
                    let _ = arrived.send(Arrived { raw, say });
                } else {
                    let answer = answer(&request, &ledger.lock().expect("unpoisoned"));
                    let _ = out.send(json!({"jsonrpc": "2.0", "id": id, "result": answer}));
                }
            }
        }
    }
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

fn answer(request: &Value, ledger: &Ledger) -> Value {
    let params = &request["params"];
    let number = |hash: &Value| {
        let hash = decode(hash.as_str().unwrap_or_default());
        let number = hash.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        usize::try_from(number).expect("small").min(ledger.blocks.len() - 1)
    };
    let best = ledger.blocks.len() - 1;
    match request["method"].as_str().unwrap_or_default() {
        "chain_getFinalizedHead" => json!(block_hash(ledger.finalized)),
        "chain_getBlockHash" => match params[0].as_u64() {
            Some(number) => json!(block_hash(number as usize)),
            None => json!(block_hash(best)),
        },
        "chain_getHeader" => json!({"number": format!("{:#x}", number(&params[0]))}),
        "chain_getBlock" => {
            let extrinsics: Vec<String> =
                ledger.blocks[number(&params[0])].iter().map(|e| encode(e)).collect();
            json!({"block": {"extrinsics": extrinsics}})
        }
        "state_call" => {
            let nonce = u32::try_from(ledger.nonce(number(&params[2]))).expect("small");
            json!(encode(&nonce.to_le_bytes()))
        }
        "system_accountNextIndex" => json!(ledger.nonce(best) + ledger.pending.len()),
        "author_pendingExtrinsics" => {
            json!(ledger.pending.iter().map(|e| encode(e)).collect::<Vec<_>>())
        }
        _ => Value::Null,
    }
}

fn encode(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("0x{digits}")
}

fn decode(text: &str) -> Vec<u8> {
    let digits = text.trim_start_matches("0x");
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex");
    (0..digits.len()).step_by(2).map(byte).collect()
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
