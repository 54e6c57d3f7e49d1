//! The program under test, started as a user starts it.

use std::process::Output;
use std::time::Duration;

use serde_json::Value;
use tenure_testkit::Child;
use tenure_testkit::anvil::{ADDRESS, Anvil, KEY};
use tokio::process::Command;
use tokio::time::timeout;

pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    let log = std::env::var("TENURE_LOG").unwrap_or_else(|_| "error".into());
    command.arg("tx").env("RELAYER_KEY", KEY).env("TENURE_LOG", log);
    for name in ["SH_PENDING_DB_URL", "TENURE_DSN", "TENURE_TX_NODES", "TENURE_TX_ACCOUNT"] {
        command.env_remove(name);
    }
    command
}

pub(crate) async fn node(arguments: &[&str], anvil: &Anvil) -> (Child, String) {
    node_at(&anvil.url, arguments).await
}

/// A node whose endpoints are these.
pub(crate) async fn node_at(rpc: &str, arguments: &[&str]) -> (Child, String) {
    let mut command = program();
    command.args(["node", "--rpc", rpc, "--key-env", "RELAYER_KEY", "--poll", "100ms"]);
    command.args(arguments);
    let mut child = Child::spawn(command).expect("starts");
    let listening = |line: &str| line.contains("listening");
    let line = child.wait_line(listening, Duration::from_secs(30)).await.expect("listens");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["account"], ADDRESS);
    (child, line["address"].as_str().expect("an address").to_owned())
}

pub(crate) async fn run(arguments: &[&str]) -> Output {
    let output = program().args(arguments).output();
    timeout(Duration::from_secs(60), output).await.expect("ends").expect("runs")
}

pub(crate) fn json_of(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    lines_of(output)
}

/// As [`json_of`], whatever the exit code.
pub(crate) fn lines_of(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect()
}
