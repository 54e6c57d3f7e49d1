//! The program from outside: node, send, list, show, watch, gaps, drop.
#![cfg(feature = "cli")]

mod kit;

use std::process::Output;
use std::time::Duration;

use kit::anvil::{ADDRESS, Anvil, KEY};
use serde_json::{Value, json};
use tenure_testkit::{Child, Signal, shared_cluster};
use tokio::process::Command;
use tokio::time::timeout;

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-tx"));
    command.env("RELAYER_KEY", KEY).env("RUST_LOG", "error").env_remove("SH_PENDING_DB_URL");
    command
}

async fn node(arguments: &[&str], anvil: &Anvil) -> (Child, String) {
    let mut command = program();
    command.args(["node", "--rpc", &anvil.url, "--key-env", "RELAYER_KEY", "--poll", "100ms"]);
    command.args(arguments);
    let mut child = Child::spawn(command).expect("starts");
    let listening = |line: &str| line.contains("listening");
    let line = child.wait_line(listening, Duration::from_secs(30)).await.expect("listens");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["account"], ADDRESS);
    (child, line["address"].as_str().expect("an address").to_owned())
}

async fn run(arguments: &[&str]) -> Output {
    let output = program().args(arguments).output();
    timeout(Duration::from_secs(60), output).await.expect("ends").expect("runs")
}

fn json_of(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect()
}

#[tokio::test]
async fn a_transaction_can_be_sent_listed_shown_dropped_and_watched_to_its_end() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (mut child, address) = node(&["--dsn", &dsn, "--instance", "a"], &anvil).await;
    let call = json!({"to": format!("0x{:040x}", 7), "value": "0x5", "gas": 21_000}).to_string();
    let send = ["send", "--node", &address, "--json", "--request-id", "seven", "--call", &call];
    let first = json_of(&run(&send).await);
    assert_eq!(first[0]["nonce"], 0);
    let again = json_of(&run(&send).await);
    assert_eq!(again[0]["nonce"], 0, "the same id is the same transaction");
    let plain = run(&["send", "--node", &address, "--call", &call]).await;
    assert!(String::from_utf8_lossy(&plain.stdout).contains("nonce 1"), "{plain:?}");

    let read = ["--dsn", &dsn, "--account", ADDRESS];
    let with = |head: &[&'static str]| {
        let mut all: Vec<String> = head.iter().map(ToString::to_string).collect();
        all.extend(read.iter().map(ToString::to_string));
        all
    };
    let ask = async |head: &[&'static str]| {
        let arguments = with(head);
        run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
    };
    let listed = json_of(&ask(&["list", "--json", "--open"]).await);
    assert_eq!(
        listed.iter().map(|row| row["nonce"].as_u64()).collect::<Vec<_>>(),
        [Some(0), Some(1)]
    );
    assert_eq!(listed[0]["request_id"], "seven");
    assert_eq!(listed[0]["creator_id"], "a");
    let table = ask(&["list"]).await;
    assert!(String::from_utf8_lossy(&table.stdout).contains("seven"));
    let shown = json_of(&ask(&["show", "seven", "--json"]).await);
    assert!(shown[0]["raw"].as_str().is_some_and(|raw| raw.starts_with("0x02")));
    assert_eq!(ask(&["show", "nothing"]).await.status.code(), Some(4));
    assert_eq!(json_of(&ask(&["gaps", "--json"]).await)[0]["gaps"], json!([]));

    anvil.pooled(2).await;
    let dropped = run(&["drop", "--node", &address, "1"]).await;
    assert!(dropped.status.success(), "{dropped:?}");
    let missing = run(&["drop", "--node", &address, "99"]).await;
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
    let replaced =
        async { while json_of(&ask(&["show", "1", "--json"]).await)[0]["noop"] != json!(true) {} };
    timeout(Duration::from_secs(20), replaced).await.expect("replaced");
    let watching = tokio::spawn({
        let arguments = with(&["watch", "--json", "--until", "1"]);
        async move { run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await }
    });
    // Blocks until both are final.
    while !watching.is_finished() {
        anvil.mine(1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let seen = json_of(&watching.await.expect("no panic"));
    let last = seen.last().expect("something was seen");
    assert_eq!((&last["state"], &last["noop"]), (&json!("finalized"), &json!(true)));
    let mined = anvil.mined().await;
    assert_eq!(mined.len(), 2);
    assert_eq!(mined[0]["value"], "0x5");
    assert_eq!(mined[1]["to"], ADDRESS, "the no-op");

    child.signal(Signal::TERM);
    let status = child.wait(Duration::from_secs(20)).await.expect("ends");
    assert!(status.success(), "{status:?}");
    assert!(child.lines().iter().any(|line| line.contains("drained")));
    let nobody = run(&["send", "--node", &address, "--within", "1s", "--call", &call]).await;
    assert!(!nobody.status.success());
}

#[tokio::test]
async fn without_a_database_a_node_starts_only_when_told_standalone() {
    let anvil = Anvil::start(&[]).await;
    let refused = run(&["node", "--rpc", &anvil.url, "--key-env", "RELAYER_KEY"]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--standalone"));
    let (_child, address) = node(&["--standalone"], &anvil).await;
    let call = json!({"to": format!("0x{:040x}", 7), "value": "0x5", "gas": 21_000}).to_string();
    let sent = json_of(&run(&["send", "--node", &address, "--json", "--call", &call]).await);
    assert_eq!(sent[0]["nonce"], 0);
}
