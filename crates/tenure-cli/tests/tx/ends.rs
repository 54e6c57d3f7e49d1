//! How a request ended is told as such: to its caller, by id, through any node and from the table.

use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::anvil::{ADDRESS, Anvil};
use tenure_testkit::shared_cluster;
use tokio::time::timeout;

use crate::kit::{node, run};

fn call(to: u64) -> String {
    json!({"to": format!("0x{:040x}", 0xaa00 + to), "value": "0x5", "gas": 21_000}).to_string()
}

/// The last line, as JSON, with the exit code.
fn told(output: &Output) -> (Option<i32>, Value) {
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().last().unwrap_or_else(|| panic!("no line; {said}"));
    (output.status.code(), serde_json::from_str(line).expect("JSON"))
}

/// Waits until the node of the chain has this transaction: stored is not yet sent.
async fn pooled(anvil: &Anvil, hash: &Value) {
    let there = async {
        while anvil.call("eth_getTransactionByHash", json!([hash])).await.is_null() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(20), there).await.expect("in the pool");
}

/// Mines until a command has ended.
async fn mining(anvil: &Anvil, arguments: &[&str]) -> Output {
    let running = run(arguments);
    tokio::pin!(running);
    loop {
        // Cancel-safe: the command is polled by reference, and the timer may be dropped.
        tokio::select! {
            output = &mut running => return output,
            () = tokio::time::sleep(Duration::from_millis(100)) => anvil.mine(1).await,
        }
    }
}

#[tokio::test]
async fn a_dropped_request_is_told_as_replaced_and_a_mined_one_as_executed() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let anvil = Anvil::start(&["--no-mining"]).await;
    let lease = ["--dsn", &dsn, "--lease", "1500ms", "--instance"];
    let (_a, first) = node(&[&lease[..], &["a"]].concat(), &anvil).await;
    let (_b, second) = node(&[&lease[..], &["b"]].concat(), &anvil).await;
    let all = format!("{first},{second}");
    let read = ["--dsn", &dsn, "--account", ADDRESS, "--json"];
    for (id, to) in [("rent", 7), ("0", 8)] {
        let accepted =
            run(&["send", "--node", &all, "--request-id", id, "--call", &call(to)]).await;
        assert!(accepted.status.success(), "{accepted:?}");
    }
    anvil.pooled(2).await;
    // It says so when the order is stored, and not before: the table has it.
    let dropped = run(&["drop", "--node", &all, "--request-id", "0", "--json"]).await;
    let (code, order) = told(&dropped);
    assert_eq!((code, &order["nonce"]), (Some(0), &json!(1)), "{order}");
    let (_, row) = told(&run(&[&["show", "--id", "0"], &read[..]].concat()).await);
    assert_eq!((&row["noop"], &row["hash"]), (&json!(true), &order["ordered"]["hash"]), "{row}");
    pooled(&anvil, &row["hash"]).await;

    // In time for neither: as it stands, and that is no end.
    let waited = run(&["wait", "--node", &second, "--for", "0s", "--json", "rent"]).await;
    let (code, rent) = told(&waited);
    assert_eq!((code, &rent["ended"]), (Some(10), &json!(false)), "{rent}");
    let wait = ["wait", "--node", &second, "--json", "rent"];
    let (code, rent) = told(&mining(&anvil, &wait).await);
    assert_eq!(code, Some(0), "{rent}");
    assert_eq!((&rent["end"]["kind"], &rent["nonce"]), (&json!("executed"), &json!(0)), "{rent}");
    let mined = anvil.mined().await;
    assert_eq!(rent["end"]["hash"], mined[0]["hash"], "{rent}");
    assert_eq!(rent["end"]["block"], mined[0]["blockHash"], "{rent}");

    // Each way to ask tells that it did not execute.
    let ways: [Vec<&str>; 4] = [
        vec!["wait", "--node", &first, "--json", "0"],
        vec!["send", "--node", &all, "--request-id", "0", "--json", "--wait", "30s", "--call"],
        [&["watch", "--until-id", "0"], &read[..]].concat(),
        [&["watch", "--until", "1"], &read[..]].concat(),
    ];
    let again = call(8);
    for mut way in ways {
        if way[0] == "send" {
            way.push(&again);
        }
        let (code, told) = told(&mining(&anvil, &way).await);
        assert_eq!(code, Some(9), "{way:?}: {told}");
        assert_eq!(told["end"]["kind"], json!("replaced"), "{way:?}: {told}");
        assert_eq!((&told["noop"], &told["ended"]), (&json!(true), &json!(true)), "{told}");
    }
    let plain = run(&["send", "--node", &all, "--request-id", "0", "--call", &again]).await;
    let said = String::from_utf8_lossy(&plain.stdout).into_owned();
    assert!(said.contains("not executed, replaced by a no-op"), "{said}");
    let listed = run(&["list", "--dsn", &dsn, "--account", ADDRESS]).await;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("replaced") && listed.contains("executed"), "{listed}");
    assert!(listed.lines().all(|line| line.chars().count() <= 80), "{listed}");
    // What has ended is not dropped any more.
    let late = run(&["drop", "--node", &all, "--request-id", "rent"]).await;
    assert_eq!(late.status.code(), Some(7), "{late:?}");
    // The id of one request and the nonce of another: neither is guessed.
    let ambiguous = run(&[&["show", "0"], &read[..]].concat()).await;
    assert_eq!(ambiguous.status.code(), Some(2), "{ambiguous:?}");
    let (_, row) = told(&run(&[&["show", "--nonce", "0"], &read[..]].concat()).await);
    assert_eq!(row["request_id"], "rent");
    let unknown = run(&["wait", "--node", &first, "--for", "1s", "nothing"]).await;
    assert_eq!(unknown.status.code(), Some(7), "{unknown:?}");
}

#[tokio::test]
async fn a_request_in_a_block_is_not_dropped_and_that_is_said() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (_child, address) = node(&["--dsn", &dsn], &anvil).await;
    let sent = run(&["send", "--node", &address, "--request-id", "rent", "--call", &call(7)]).await;
    assert!(sent.status.success(), "{sent:?}");
    anvil.pooled(1).await;
    anvil.mine(1).await;
    let read = ["--dsn", &dsn, "--account", ADDRESS, "--json"];
    let seen = async {
        while told(&run(&[&["show", "--id", "rent"], &read[..]].concat()).await).1["state"]
            != json!("in_block")
        {}
    };
    timeout(Duration::from_secs(20), seen).await.expect("seen in its block");
    let wait = ["drop", "--node", &address, "--wait", "30s", "--request-id"];
    let dropped = run(&[&wait[..], &["rent"]].concat()).await;
    let said = String::from_utf8_lossy(&dropped.stdout).into_owned();
    assert_eq!(dropped.status.code(), Some(1), "{said}");
    assert!(said.contains("not dropped") && said.contains("in block"), "{said}");
    let (_, row) = told(&run(&[&["show", "--id", "rent"], &read[..]].concat()).await);
    assert_eq!((&row["noop"], &row["state"]), (&json!(false), &json!("in_block")), "{row}");

    // Told to wait, an order is answered when it is final which of the two counts.
    let sent = run(&["send", "--node", &address, "--request-id", "food", "--call", &call(8)]).await;
    assert!(sent.status.success(), "{sent:?}");
    anvil.pooled(2).await;
    let unsure = run(&["drop", "--node", &address, "--wait", "0s", "--request-id", "food"]).await;
    assert_eq!(unsure.status.code(), Some(10), "{unsure:?}");
    let (_, row) = told(&run(&[&["show", "--id", "food"], &read[..]].concat()).await);
    pooled(&anvil, &row["hash"]).await;
    let (code, food) = told(&mining(&anvil, &[&wait[..], &["food", "--json"]].concat()).await);
    assert_eq!((code, &food["end"]["kind"]), (Some(0), &json!("replaced")), "{food}");
    let by_nonce = run(&["drop", "--node", &address, "--wait", "1s", "7"]).await;
    assert_eq!(by_nonce.status.code(), Some(2), "{by_nonce:?}");
}

#[tokio::test]
async fn a_request_that_is_in_no_block_at_its_deadline_is_given_up_by_whichever_node_leads() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (mut child, address) = node(&["--dsn", &dsn, "--lease", "1500ms"], &anvil).await;
    let send = ["send", "--node", &address, "--request-id", "rent", "--deadline", "3s"];
    let sent = run(&[&send[..], &["--call", &call(7)]].concat()).await;
    assert!(sent.status.success(), "{sent:?}");
    anvil.pooled(1).await;
    // The deadline is the request's, not the process's.
    child.kill().await.expect("killed");
    let (_child, address) = node(&["--dsn", &dsn, "--lease", "1500ms"], &anvil).await;
    let read = ["--dsn", &dsn, "--account", ADDRESS, "--json"];
    let given_up = async {
        while told(&run(&[&["show", "--id", "rent"], &read[..]].concat()).await).1["noop"]
            != json!(true)
        {}
    };
    timeout(Duration::from_secs(30), given_up).await.expect("a no-op is stored");
    let (_, row) = told(&run(&[&["show", "--id", "rent"], &read[..]].concat()).await);
    pooled(&anvil, &row["hash"]).await;
    let wait = ["wait", "--node", &address, "--json", "rent"];
    let (code, rent) = told(&mining(&anvil, &wait).await);
    assert_eq!((code, &rent["end"]["kind"]), (Some(9), &json!("expired")), "{rent}");
    assert_eq!(anvil.mined().await[0]["to"], ADDRESS, "the no-op");
}
