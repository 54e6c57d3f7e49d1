//! No address of the chain's nodes, no user information and no key in anything a program says, at any
//! level of logging.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::anvil::{ADDRESS, Anvil, KEY};
use tenure_testkit::rpc_proxy::{Fault, RpcProxy, SEND};
use tenure_testkit::substrate::{ScriptedNode, storagehub_parachain};
use tenure_testkit::{Child, shared_cluster};
use tokio::process::Command;
use tokio::time::timeout;

use crate::kit::program;

const USER: &str = "sesame-user";
const PASSWORD: &str = "hunter2-password";
const API_KEY: &str = "0123456789abcdef-api-key";

/// The beginning of a key's phrase, and the password that belongs to it.
const PHRASE: &str = "bottom drive obey";
const SURI_PASSWORD: &str = "sesame-suri-password";

/// Every library at its loudest, whichever variable it listens to.
fn loud(mut command: Command) -> Command {
    for name in ["TENURE_LOG", "RUST_LOG", "TENURE_CONSOLE_LOG"] {
        command.env(name, "trace");
    }
    command.env("RUST_BACKTRACE", "1");
    command
}

/// An endpoint as providers hand them out: with a login and a key in its path and in its query.
fn dressed(url: &str) -> String {
    let address = url.trim_start_matches("http://");
    format!("http://{USER}:{PASSWORD}@{address}/v3/{API_KEY}?apikey={API_KEY}")
}

fn is_clean(what: &str, text: &str, addresses: &[&str]) {
    let addresses =
        addresses.iter().map(|url| url.trim_start_matches("http://").trim_start_matches("ws://"));
    let secrets = [USER, PASSWORD, API_KEY, KEY, PHRASE, SURI_PASSWORD];
    for secret in secrets.into_iter().chain(addresses) {
        if let Some(line) = text.lines().find(|line| line.contains(secret)) {
            panic!("{what} shows {secret}: {line}");
        }
    }
}

fn said(output: &Output) -> String {
    let both = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

async fn ran(command: Command) -> Output {
    let mut command = command;
    timeout(Duration::from_secs(60), command.output()).await.expect("ends").expect("runs")
}

#[tokio::test]
async fn no_level_of_logging_shows_an_address_a_login_or_a_key() {
    let database = shared_cluster().await.database().await.expect("a database");
    let anvil = Anvil::start(&[]).await;
    let (one, two) = (RpcProxy::start(&anvil.url).await, RpcProxy::start(&anvil.url).await);
    let hidden = [one.url.as_str(), two.url.as_str()];
    let rpc = format!("{},{}", dressed(&one.url), dressed(&two.url));
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let mut command = loud(program());
    command.args(["node", "--key-env", "RELAYER_KEY", "--poll", "100ms"]);
    // Not an argument: `ps` shows those.
    command.env("TENURE_TX_RPC", &rpc).env("TENURE_DSN", database.dsn());
    command.args(["--chain-lost-after", "1s"]);
    command.stderr(std::fs::File::create(&log).expect("a file"));
    let mut child = Child::spawn(command).expect("starts");
    let listening = |line: &str| line.contains("listening");
    let line = child.wait_line(listening, Duration::from_secs(30)).await.expect("listens");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    let node = line["address"].as_str().expect("an address");
    let call = |to: u64| {
        let to = format!("0x{:040x}", 0xaa00 + to);
        json!({"to": to, "value": "0x5", "gas": 21_000}).to_string()
    };
    let send = async |to: u64| {
        let mut command = loud(program());
        let id = format!("request-{to}");
        command.args(["send", "--node", node, "--request-id", &id, "--call", &call(to)]);
        // A user may keep all settings in one environment.
        command.env("TENURE_TX_RPC", &rpc);
        ran(command).await
    };
    let sent = send(1).await;
    assert!(sent.status.success(), "{sent:?}");
    is_clean("tx send", &said(&sent), &hidden);
    // A node that quotes its own address, line breaks, HTTP errors, silence: each is complained of.
    let quoting = format!("cannot reach {} and {}", dressed(&one.url), dressed(&two.url));
    let faults = [Fault::Say(-32000, quoting), Fault::Http(503), Fault::Cut, Fault::LoseAnswer];
    for (turn, fault) in (2..).zip(faults) {
        for gateway in [&one, &two] {
            let fault = fault.clone();
            gateway.rule(move |method, _| match method {
                SEND => fault.clone(),
                "eth_getTransactionByHash" => Fault::Null,
                _ => Fault::Pass,
            });
        }
        let sent = send(turn).await;
        is_clean("tx send", &said(&sent), &hidden);
    }
    let complains = async |words: &str| {
        tenure_testkit::until("its complaint", async || {
            std::fs::read_to_string(&log).expect("a log").contains(words)
        })
        .await;
    };
    complains("tx_not_taken").await;
    for gateway in [&one, &two] {
        gateway.rule(|_, _| Fault::Cut);
    }
    complains("tx_chain_lost").await;
    complains("an RPC endpoint failed").await;
    // What the table keeps of the answers, as its readers see it.
    for what in [&["list"][..], &["show", "--nonce", "1"], &["show", "--nonce", "1", "--json"]] {
        let mut command = loud(program());
        command.args(what).args(["--account", ADDRESS]).env("TENURE_DSN", database.dsn());
        is_clean("a reader", &said(&ran(command).await), &hidden);
    }
    child.kill().await.expect("killed");
    let printed = child.lines().join("\n");
    is_clean("standard output", &printed, &hidden);
    let log = std::fs::read_to_string(&log).expect("a log");
    assert!(log.lines().count() > 100, "trace was not on: {} lines", log.lines().count());
    is_clean("the log", &log, &hidden);
}

#[tokio::test]
async fn no_mistake_in_an_address_shows_it() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    for rpc in [
        format!("http://{USER}:{PASSWORD}@[::1/{API_KEY}"),
        format!("ftp://{USER}:{PASSWORD}@127.0.0.1/{API_KEY}"),
        API_KEY.to_owned(),
        format!("http://127.0.0.1:1,,http://{USER}:{PASSWORD}@127.0.0.1:1/"),
    ] {
        let mut command = loud(program());
        command.args(["node", "--rpc", &rpc, "--key-env", "RELAYER_KEY", "--dsn", &dsn]);
        let refused = ran(command).await;
        assert_eq!(refused.status.code(), Some(2), "{rpc}: {refused:?}");
        is_clean("the error", &said(&refused), &[]);
    }
}

#[tokio::test]
async fn no_level_of_logging_shows_a_substrate_nodes_address_or_a_key_in_a_file() {
    let database = shared_cluster().await.database().await.expect("a database");
    let mut chain = ScriptedNode::start().await;
    chain.ledger.lock().expect("unpoisoned").metadata = storagehub_parachain();
    let bare = chain.url.trim_start_matches("ws://").to_owned();
    let rpc = format!("ws://{USER}:{PASSWORD}@{bare}/v3/{API_KEY}?apikey={API_KEY}");
    let hidden = [bare.as_str()];
    let folder = tempfile::tempdir().expect("a folder");
    let (log, key) = (folder.path().join("log"), folder.path().join("key"));
    let phrase = format!("{PHRASE} lake curtain smoke basket hold race lonely fit walk");
    std::fs::write(&key, format!("{phrase}//Alice///{SURI_PASSWORD}\n")).expect("written");
    let node = || {
        let mut command = loud(program());
        command.args(["node", "--chain", "substrate", "--poll", "100ms", "--key-file"]).arg(&key);
        command.args(["--chain-lost-after", "1s", "--max-fee", "1000planck"]);
        command.env("TENURE_TX_RPC", &rpc).env("TENURE_DSN", database.dsn());
        command
    };
    // A key that other users can read is not used.
    let mode = |mode| std::fs::set_permissions(&key, Permissions::from_mode(mode)).expect("set");
    mode(0o644);
    let refused = ran(node()).await;
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(said(&refused).contains("chmod 600"), "{refused:?}");
    is_clean("the refusal", &said(&refused), &hidden);
    mode(0o600);
    let mut command = node();
    command.stderr(std::fs::File::create(&log).expect("a file"));
    let mut child = Child::spawn(command).expect("starts");
    let listening = |line: &str| line.contains("listening");
    let line = child.wait_line(listening, Duration::from_secs(30)).await.expect("listens");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    let (node, account) = (line["address"].clone(), line["account"].clone());
    let (node, account) = (node.as_str().expect("text"), account.as_str().expect("text"));
    let send = async |id: &str| {
        let mut command = loud(program());
        command.args(["send", "--node", node, "--request-id", id, "--within", "5s"]);
        command.args(["--call", "0x000008676d"]).env("TENURE_TX_RPC", &rpc);
        let sent = ran(command).await;
        is_clean("tx send", &said(&sent), &hidden);
        sent
    };
    assert!(send("one").await.status.success());
    chain.arrival().await.pool().status(json!("ready"));
    assert!(send("two").await.status.success());
    // A node that quotes its own address; then its line breaks, and then it does not answer.
    let quoting: &'static str = format!("cannot reach {rpc}").leak();
    chain.arrival().await.refuse(-32000, quoting, quoting);
    let complains = async |words: &str| {
        tenure_testkit::until("its complaint", async || {
            std::fs::read_to_string(&log).expect("a log").contains(words)
        })
        .await;
    };
    complains("tx_not_taken").await;
    chain.ledger.lock().expect("unpoisoned").fee = 1_001;
    assert!(!send("dear").await.status.success());
    complains("tx_not_signed").await;
    chain.ledger.lock().expect("unpoisoned").failing.push("chain_getFinalizedHead");
    chain.cut();
    complains("tx_chain_lost").await;
    for what in [&["list"][..], &["show", "two"], &["show", "two", "--json"]] {
        let mut command = loud(program());
        command.args(what).args(["--account", account]).env("TENURE_DSN", database.dsn());
        is_clean("a reader", &said(&ran(command).await), &hidden);
    }
    child.kill().await.expect("killed");
    is_clean("standard output", &child.lines().join("\n"), &hidden);
    let log = std::fs::read_to_string(&log).expect("a log");
    assert!(log.lines().count() > 100, "trace was not on: {} lines", log.lines().count());
    is_clean("the log", &log, &hidden);
}
