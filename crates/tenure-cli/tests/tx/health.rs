//! Several endpoints, and a role that goes to a node that reaches its chain.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::anvil::{ADDRESS, Anvil};
use tenure_testkit::rpc_proxy::{Fault, RpcProxy, SEND};
use tenure_testkit::{Child, Database, Signal, shared_cluster};
use tokio::time::{sleep, timeout};

use crate::kit::{json_of, node_at, run};

fn call(to: u64) -> String {
    json!({"to": format!("0x{:040x}", 0xaa00 + to), "value": "0x5", "gas": 21_000}).to_string()
}

/// A member of a group that lets another lead after a second and a half without its chain.
async fn member(name: &str, database: &Database, rpc: &str) -> (Child, String) {
    let dsn = database.dsn();
    let arguments = ["--dsn", &dsn, "--instance", name, "--lease", "5s"];
    let patience = ["--chain-lost-after", "1500ms"];
    node_at(rpc, &[&arguments[..], &patience].concat()).await
}

/// Which member leads, by its instance name, and its epoch.
async fn leads(database: &Database) -> Option<(String, i64)> {
    let client = database.client().await.expect("it answers");
    let holder = "select holder, epoch from tenure.role where name like 'tx:%'";
    let row = client.query_opt(holder, &[]).await.expect("readable")?;
    let holder = row.get::<_, Option<String>>(0)?;
    Some((holder, row.get(1)))
}

/// Waits until the member of this instance name leads.
async fn led_by(database: &Database, name: &str) -> i64 {
    let led = async {
        loop {
            match leads(database).await {
                Some((holder, epoch)) if holder.contains(name) => return epoch,
                Some(_) | None => sleep(Duration::from_millis(20)).await,
            }
        }
    };
    timeout(Duration::from_secs(60), led).await.expect("it leads")
}

/// Waits until the table says how many candidates are ready.
async fn ready(database: &Database, wanted: i64) {
    let client = database.client().await.expect("it answers");
    let count = "select count(*) from tenure.candidate where ready";
    tenure_testkit::until("so many that are ready", async || {
        client.query_one(count, &[]).await.expect("readable").get::<_, i64>(0) == wanted
    })
    .await;
}

#[tokio::test]
async fn a_leader_without_its_chain_hands_over_to_a_member_that_reaches_it_and_to_no_other() {
    let database = shared_cluster().await.database().await.expect("a database");
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (one, two) = (RpcProxy::start(&anvil.url).await, RpcProxy::start(&anvil.url).await);
    let (_first, first) = member("first", &database, &one.url).await;
    led_by(&database, "first").await;
    let (mut second_child, second) = member("second", &database, &two.url).await;
    let all = format!("{first},{second}");
    ready(&database, 2).await;

    // The leader accepts, and its endpoint answers with nothing but refusals: another member sends
    // what it accepted.
    one.rule(|_, _| Fault::Say(-32005, "limit exceeded".to_owned()));
    let sent = run(&["send", "--node", &all, "--request-id", "rent", "--call", &call(1)]).await;
    assert!(sent.status.success(), "{sent:?}");
    let epoch = led_by(&database, "second").await;
    anvil.pooled(1).await;

    // Now all are dead. The first one is not ready; the role stays where it is.
    two.rule(|_, _| Fault::Cut);
    ready(&database, 0).await;
    // Each has looked for another that is ready, in vain, at least twice by then.
    two.asked(8).await;
    assert_eq!(leads(&database).await.map(|led| led.1), Some(epoch), "the role went round");
    // A member that is gone is no reason to hand over, although it was ready: a row alone proves
    // nothing. The first one's endpoint comes back, the second one's stays dead.
    one.well();
    let back = led_by(&database, "first").await;
    assert!(back > epoch);
    two.well();
    ready(&database, 2).await;
    second_child.signal(Signal::KILL);
    second_child.wait(Duration::from_secs(10)).await.expect("gone");
    one.rule(|_, _| Fault::Cut);
    ready(&database, 0).await;
    assert_eq!(leads(&database).await.map(|led| led.1), Some(back), "handed over to a dead member");
    one.well();
    let sent = run(&["send", "--node", &all, "--json", "--call", &call(2)]).await;
    assert_eq!(json_of(&sent)[0]["nonce"], 1);
}

/// One that answers, and does not say what a leader needs, is as good as none.
#[tokio::test]
async fn a_leader_whose_endpoint_names_no_final_block_hands_over() {
    let database = shared_cluster().await.database().await.expect("a database");
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (one, two) = (RpcProxy::start(&anvil.url).await, RpcProxy::start(&anvil.url).await);
    let (_first, first) = member("first", &database, &one.url).await;
    led_by(&database, "first").await;
    let (_second, second) = member("second", &database, &two.url).await;
    ready(&database, 2).await;
    one.rule(|_, params| match params[0] == json!("finalized") {
        true => Fault::Null,
        false => Fault::Pass,
    });
    // The head is read again when there is another block.
    anvil.mine(1).await;
    led_by(&database, "second").await;
    let all = format!("{first},{second}");
    let sent = run(&["send", "--node", &all, "--call", &call(1)]).await;
    assert!(sent.status.success(), "{sent:?}");
    anvil.pooled(1).await;
}

/// An endpoint that goes on answering and has stopped to follow its chain tells that only by what other
/// members see. Where no block comes at all, none of them is behind.
#[tokio::test]
async fn a_leader_whose_only_endpoint_stands_still_hands_over_to_a_member_that_sees_farther() {
    let database = shared_cluster().await.database().await.expect("a database");
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (one, two) = (RpcProxy::start(&anvil.url).await, RpcProxy::start(&anvil.url).await);
    let (_first, first) = member("first", &database, &one.url).await;
    let epoch = led_by(&database, "first").await;
    let (_second, second) = member("second", &database, &two.url).await;
    ready(&database, 2).await;
    // A chain that makes no block, seen alike by all: twice the patience, and a look every 0.5 s.
    told(&database, 12).await;
    assert_eq!(leads(&database).await.map(|led| led.1), Some(epoch), "handed over for nothing");

    // From now on the leader's endpoint shows the chain as it is now, and takes what it is sent.
    freeze(&one, &anvil).await;
    anvil.mine(1).await;
    led_by(&database, "second").await;
    let all = format!("{first},{second}");
    let sent = run(&["send", "--node", &all, "--call", &call(1)]).await;
    assert!(sent.status.success(), "{sent:?}");
    anvil.pooled(1).await;
    ready(&database, 1).await;
    // It follows its chain again, and is as good as any.
    one.well();
    ready(&database, 2).await;
}

/// From now on the gateway shows the latest block as it is now.
async fn freeze(gateway: &RpcProxy, anvil: &Anvil) {
    let block = anvil.call("eth_getBlockByNumber", json!(["latest", false])).await;
    gateway.rule(move |method, params| match (method, params[0].as_str()) {
        ("eth_getBlockByNumber", Some("latest")) => Fault::Answer(block.clone()),
        _ => Fault::Pass,
    });
}

/// Waits until all members together have told so many more times how far they see.
async fn told(database: &Database, times: usize) {
    let client = database.client().await.expect("it answers");
    let sights = "select array_agg(seen_at::text order by member) from tenure_tx.sight";
    let wait = async {
        let (mut last, mut seen) = (Vec::new(), 0);
        while seen <= times {
            let row = client.query_one(sights, &[]).await.expect("readable");
            let now: Vec<String> = row.get::<_, Option<Vec<String>>>(0).unwrap_or_default();
            seen += usize::from(now != last);
            last = now;
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), wait).await.expect("they tell");
}

#[tokio::test]
async fn a_node_with_several_endpoints_works_as_long_as_one_of_them_does() {
    let database = shared_cluster().await.database().await.expect("a database");
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (one, two) = (RpcProxy::start(&anvil.url).await, RpcProxy::start(&anvil.url).await);
    let dead = "http://127.0.0.1:9";
    let rpc = format!("{dead}, {} ,{}", one.url, two.url);
    let (_child, address) = node_at(&rpc, &["--dsn", &database.dsn()]).await;
    let mut hashes = Vec::new();
    for (turn, fault) in [Fault::Pass, Fault::Http(503), Fault::LoseAnswer].into_iter().enumerate()
    {
        let fault = fault.clone();
        one.rule(move |_, _| fault.clone());
        let sent = run(&["send", "--node", &address, "--json", "--call", &call(turn as u64)]).await;
        let sent: Value = json_of(&sent).remove(0);
        assert_eq!(sent["nonce"], turn);
        hashes.push(sent["hash"].clone());
        anvil.pooled(turn as u64 + 1).await;
    }
    assert!(!two.sent().is_empty(), "the second endpoint took over");
    // Nothing but refusals of one, and the other has it: not refused.
    one.rule(|method, _| match method {
        SEND => Fault::Say(-32000, "intrinsic gas too low".to_owned()),
        _ => Fault::Pass,
    });
    let sent = run(&["send", "--node", &address, "--json", "--call", &call(9)]).await;
    hashes.push(json_of(&sent)[0]["hash"].clone());
    anvil.pooled(hashes.len() as u64).await;
    anvil.mine(1).await;
    let mined = anvil.mined().await;
    assert_eq!(mined.iter().map(|tx| tx["hash"].clone()).collect::<Vec<_>>(), hashes);
    assert!(mined.iter().all(|tx| tx["from"] == ADDRESS));
    // An incomplete list is an error, and its addresses are not shown.
    let wrong = ["node", "--rpc", "http://user:hunter2@127.0.0.1:1,ftp://hunter2", "--key-env"];
    let refused = run(&[&wrong[..], &["RELAYER_KEY", "--dsn", &database.dsn()]].concat()).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--rpc") && !said.contains("hunter2"), "{said}");
}

#[tokio::test]
async fn an_endpoint_that_does_not_say_what_is_needed_or_is_behind_is_passed_over() {
    let database = shared_cluster().await.database().await.expect("a database");
    let anvil = Anvil::start(&["--block-time", "0.2"]).await;
    let rules: [fn(&str, &Value) -> Fault; 3] = [
        |method, _| match method {
            "eth_getTransactionCount" => Fault::Say(-32005, "limit exceeded".to_owned()),
            _ => Fault::Pass,
        },
        |_, params| match params[0] == json!("finalized") {
            true => Fault::Null,
            false => Fault::Pass,
        },
        // What the table knows to be final it has never seen.
        |method, _| match method {
            "eth_getTransactionCount" => Fault::Answer(json!("0x0")),
            _ => Fault::Pass,
        },
    ];
    for (turn, rule) in rules.into_iter().enumerate() {
        let (one, two) = (RpcProxy::start(&anvil.url).await, RpcProxy::start(&anvil.url).await);
        one.rule(rule);
        let rpc = format!("{},{}", one.url, two.url);
        let (mut child, address) = node_at(&rpc, &["--dsn", &database.dsn()]).await;
        let ask = ["send", "--node", &address, "--json", "--wait", "50s", "--call"];
        let sent = run(&[&ask[..], &[&call(turn as u64)]].concat()).await;
        assert_eq!(json_of(&sent)[0]["nonce"], turn, "with rule {turn}");
        assert!(!two.sent().is_empty(), "with rule {turn}");
        child.signal(Signal::TERM);
        child.wait(Duration::from_secs(20)).await.expect("it ends");
    }
}

#[tokio::test]
async fn a_follower_is_ready_only_while_its_sync_command_succeeds() {
    let anvil = Anvil::start(&[]).await;
    let database = shared_cluster().await.database().await.expect("a database");
    let (_leader, _) = member("first", &database, &anvil.url).await;
    led_by(&database, "first").await;
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy");
    let command = format!("test -e {}", copy.display());
    let dsn = database.dsn();
    let arguments = ["--dsn", &dsn, "--instance", "second", "--sync-command", &command];
    let (_follower, _) = node_at(&anvil.url, &arguments).await;
    let client = database.client().await.expect("it answers");
    let behind = "select count(*) from tenure.candidate where not ready and member like '%second%'";
    tenure_testkit::until("a follower that is behind", async || {
        client.query_one(behind, &[]).await.expect("readable").get::<_, i64>(0) == 1
    })
    .await;
    std::fs::write(&copy, "data").expect("written");
    ready(&database, 2).await;
}
