//! No address of the chain's nodes, no user information and no key in anything a program says, at any
//! level of logging.

use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::anvil::{ADDRESS, Anvil, KEY};
use tenure_testkit::rpc_proxy::{Fault, RpcProxy, SEND};
use tenure_testkit::{Child, shared_cluster};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::kit::program;

const USER: &str = "sesame-user";
const PASSWORD: &str = "hunter2-password";
const API_KEY: &str = "0123456789abcdef-api-key";

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
    let addresses = addresses.iter().map(|url| url.trim_start_matches("http://"));
    for secret in [USER, PASSWORD, API_KEY, KEY].into_iter().chain(addresses) {
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
        let complained = async {
            while !std::fs::read_to_string(&log).expect("a log").contains(words) {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(20), complained).await.expect("it complains");
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
