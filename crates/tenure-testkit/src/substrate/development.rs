//! A real Substrate node: the SDK's own client and transaction pool around a small runtime, with blocks
//! that the test orders. Its source is in the folder `substrate` of the repository.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::anvil::post;
use crate::{Child, Signal};

/// A running development node; it ends with this value.
#[derive(Debug)]
pub struct DevelopmentNode {
    child: Child,
    /// Where it answers.
    pub url: String,
    runtime: String,
    arguments: Vec<String>,
    port: u16,
}

/// It compiles its runtime when it starts, which takes long on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn binary() -> PathBuf {
    let built = || PathBuf::from(ROOT).join("target/substrate/node/debug/tenure-substrate-node");
    let path = std::env::var_os("TENURE_SUBSTRATE_NODE").map_or_else(built, PathBuf::from);
    assert!(path.exists(), "the development node is missing: run make test-substrate");
    path
}

/// The file of a runtime: `dev32`, its successor `dev32-next`, or `dev20` with Ethereum's accounts.
#[must_use]
pub fn runtime(name: &str) -> PathBuf {
    PathBuf::from(ROOT).join(format!("substrate/blobs/{name}.wasm"))
}

impl DevelopmentNode {
    /// Starts a node with this runtime on a free port. The arguments are in `substrate/node/src/options.rs`.
    pub async fn start(name: &str, arguments: &[&str]) -> Self {
        let runtime = runtime(name).display().to_string();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let (child, port) = launch(&runtime, &arguments, 0).await;
        let url = format!("ws://127.0.0.1:{port}");
        DevelopmentNode { child, url, runtime, arguments, port }
    }

    /// Ends the node in good order and starts it again on the same port: its pool is lost, and with
    /// `--folder` no block is.
    pub async fn restart(&mut self) {
        self.child.signal(Signal::TERM);
        self.child.wait(PATIENCE).await.expect("it ends");
        let (child, _) = launch(&self.runtime, &self.arguments, self.port).await;
        self.child = child;
    }

    /// Calls a method; the error as the node says it.
    ///
    /// # Errors
    /// The node's error object.
    pub async fn call(&self, method: &str, params: &Value) -> Result<Value, Value> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer = post(&format!("http://127.0.0.1:{}", self.port), &body).await;
        match answer.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(answer["result"].clone()),
        }
    }
}

async fn launch(runtime: &str, arguments: &[String], port: u16) -> (Child, u16) {
    let mut command = Command::new(binary());
    command.args(["--runtime", runtime, "--port", &port.to_string()]).args(arguments);
    let mut child = Child::spawn(command).expect("the node starts");
    let listening = |line: &str| line.starts_with("listening on ws://");
    let line = child.wait_line(listening, PATIENCE).await.expect("it listens");
    let address = line.split_whitespace().nth(2).expect("an address");
    let port = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    (child, port)
}
