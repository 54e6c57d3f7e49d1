//! A real Ethereum node, restarted and reorganised at will.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::{Child, Signal};

/// The first of anvil's well-known keys.
pub const KEY: &str = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
/// Its account.
pub const ADDRESS: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";

/// A running `anvil`, the node of Foundry; it ends with this value.
#[derive(Debug)]
pub struct Anvil {
    child: Child,
    /// Where it answers JSON-RPC.
    pub url: String,
    arguments: Vec<String>,
    port: u16,
}

fn binary() -> PathBuf {
    let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.tools/bin/anvil");
    let path = std::env::var_os("TENURE_ANVIL").map_or_else(|| PathBuf::from(tools), PathBuf::from);
    assert!(path.exists(), "anvil is missing: run scripts/setup.sh chain, or set TENURE_ANVIL");
    path
}

impl Anvil {
    /// Starts a node on a free port; its finalised block is two below the latest, or twice as many
    /// as `--slots-in-an-epoch` says.
    pub async fn start(arguments: &[&str]) -> Self {
        let mut arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        if arguments.iter().any(|argument| argument == "--state") {
            // Anvil makes a first block at every start and keeps the one it loads as well; which of them it has after
            // the next start is chance. With one time for all starts they are one block.
            let now = UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
            arguments.extend(["--timestamp".to_owned(), now.to_string()]);
        }
        let (child, port) = launch(&arguments, 0).await;
        Anvil { child, url: format!("http://127.0.0.1:{port}"), arguments, port }
    }

    /// Ends the node in good order and starts it again on the same port: the pool is lost, and no
    /// block is.
    ///
    /// # Panics
    /// If the node that comes back has used nonces that none of its blocks holds.
    pub async fn restart(&mut self) {
        self.stop_mining().await;
        self.child.signal(Signal::TERM);
        self.child.wait(Duration::from_secs(20)).await.expect("it ends");
        let (child, _) = launch(&self.arguments, self.port).await;
        self.child = child;
        // The nonce first: a block mined between the two looks only adds to the second.
        let used = self.nonce().await;
        let mined = self.mined().await.len();
        assert!(mined as u64 >= used, "anvil came back with {used} nonces used, {mined} in blocks");
    }

    /// Ends the node and starts another chain on the same port: its first block is another one, and nothing of
    /// the chain before is left.
    pub async fn reset(&mut self) {
        self.child.signal(Signal::TERM);
        self.child.wait(Duration::from_secs(20)).await.expect("it ends");
        // Anvil's first block says when it was made, unless it is told.
        self.arguments.extend(["--timestamp".to_owned(), "1700000000".to_owned()]);
        let (child, _) = launch(&self.arguments, self.port).await;
        self.child = child;
    }

    /// Empties the pool and waits until no block is being made. Anvil writes down its blocks first
    /// and its accounts afterwards: a block made in between would be in the accounts only, and its
    /// transactions nowhere.
    async fn stop_mining(&self) {
        self.call("evm_setIntervalMining", json!([0])).await;
        // A block that was due before has begun by then.
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.call("anvil_dropAllTransactions", json!([])).await;
        // Blocks are made one at a time, so this one, without the pool, waits for the last.
        self.call("evm_mine", json!([])).await;
    }

    /// Calls a method and gives its result.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer = post(&self.url, &body).await;
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Mines that many blocks.
    pub async fn mine(&self, blocks: u64) {
        self.call("anvil_mine", json!([blocks])).await;
    }

    /// The account's next nonce.
    pub async fn nonce(&self) -> u64 {
        let count = self.call("eth_getTransactionCount", json!([ADDRESS, "latest"])).await;
        number(&count)
    }

    /// Waits until the best chain has used the account's nonces below this one.
    pub async fn used(&self, next: u64) {
        let wait = async {
            while self.nonce().await < next {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("in a block");
    }

    /// Waits until the pool holds the account's transactions up to this nonce.
    pub async fn pooled(&self, next: u64) {
        let wait = async {
            let pending = json!([ADDRESS, "pending"]);
            while number(&self.call("eth_getTransactionCount", pending.clone()).await) < next {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("in the pool");
    }

    /// All transactions of the account in the chain, in order.
    pub async fn mined(&self) -> Vec<Value> {
        let latest = number(&self.call("eth_blockNumber", json!([])).await);
        let mut all = Vec::new();
        for block in 0..=latest {
            let place = json!([format!("{block:#x}"), true]);
            // The number of a block that is being made is told before the block is there.
            let made = async {
                loop {
                    let block = self.call("eth_getBlockByNumber", place.clone()).await;
                    if let Some(transactions) = block["transactions"].as_array() {
                        return transactions.clone();
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            let made = tokio::time::timeout(Duration::from_secs(20), made).await;
            all.extend(made.unwrap_or_else(|_| panic!("block {block} is missing")));
        }
        all.retain(|tx| tx["from"] == ADDRESS);
        all
    }
}

async fn launch(arguments: &[String], port: u16) -> (Child, u16) {
    let mut command = Command::new(binary());
    command.args(["--port", &port.to_string()]).args(arguments);
    if !arguments.iter().any(|argument| argument == "--slots-in-an-epoch") {
        command.args(["--slots-in-an-epoch", "1"]);
    }
    let mut child = Child::spawn(command).expect("anvil starts");
    let line = child
        .wait_line(|line| line.contains("Listening on"), Duration::from_secs(20))
        .await
        .expect("anvil listens");
    let port = line.rsplit(':').next().and_then(|p| p.trim().parse().ok()).expect("a port");
    (child, port)
}

/// The number that a JSON-RPC answer writes in hex.
pub fn number(hex: &Value) -> u64 {
    let text = hex.as_str().expect("a hex number").trim_start_matches("0x");
    u64::from_str_radix(text, 16).expect("a hex number")
}

/// One HTTP request by hand: the test needs no client library for it.
pub(crate) async fn post(url: &str, body: &Value) -> Value {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let address = url.trim_start_matches("http://");
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("the node listens");
    let body = body.to_string();
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}
