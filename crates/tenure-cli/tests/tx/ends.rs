//! How a request ended is told as such: to its caller, by id, through any node and from the table.

use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::anvil::{ADDRESS, Anvil};
use tenure_testkit::rpc_proxy::{Fault, RpcProxy};
use tenure_testkit::shared_cluster;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::kit::{node, node_at, run};

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
    tenure_testkit::until("the transaction in the pool", async || {
        !anvil.call("eth_getTransactionByHash", json!([hash])).await.is_null()
    })
    .await;
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
    // What has ended is not dropped any more, and how it ended is the answer, by id and by nonce.
    for which in [&["--request-id", "rent"][..], &["0"]] {
        let late = run(&[&["drop", "--node", &all], which].concat()).await;
        let said = String::from_utf8_lossy(&late.stdout).into_owned();
        assert_eq!(late.status.code(), Some(1), "{late:?}");
        assert!(said.contains("not dropped") && said.contains("executed"), "{said}");
    }
    for which in [&["--request-id", "0"][..], &["1"]] {
        let again = run(&[&["drop", "--node", &all], which].concat()).await;
        assert_eq!(again.status.code(), Some(0), "the order was carried out: {again:?}");
    }
    let unknown = run(&["drop", "--node", &all, "--request-id", "nothing"]).await;
    assert_eq!(unknown.status.code(), Some(7), "{unknown:?}");
    // The id of one request and the nonce of another: neither is guessed.
    let ambiguous = run(&[&["show", "0"], &read[..]].concat()).await;
    assert_eq!(ambiguous.status.code(), Some(2), "{ambiguous:?}");
    let (_, row) = told(&run(&[&["show", "--nonce", "0"], &read[..]].concat()).await);
    assert_eq!(row["request_id"], "rent");
    let unknown = run(&["wait", "--node", &first, "--for", "1s", "nothing"]).await;
    assert_eq!(unknown.status.code(), Some(7), "{unknown:?}");
}

/// Sends a request, has it mined, and waits until the node has seen it in its block.
async fn in_a_block(anvil: &Anvil, dsn: &str, address: &str, id: &str) {
    let sent = run(&["send", "--node", address, "--request-id", id, "--call", &call(7)]).await;
    assert!(sent.status.success(), "{sent:?}");
    anvil.pooled(1).await;
    anvil.mine(1).await;
    let show = ["show", "--id", id, "--dsn", dsn, "--account", ADDRESS, "--json"];
    let seen = async { while told(&run(&show).await).1["state"] != json!("in_block") {} };
    timeout(Duration::from_secs(20), seen).await.expect("seen in its block");
}

#[tokio::test]
async fn a_request_in_a_block_is_not_dropped_and_that_is_said() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (_child, address) = node(&["--dsn", &dsn], &anvil).await;
    in_a_block(&anvil, &dsn, &address, "rent").await;
    let read = ["--dsn", &dsn, "--account", ADDRESS, "--json"];
    let dropped = run(&["drop", "--node", &address, "--request-id", "rent"]).await;
    let said = String::from_utf8_lossy(&dropped.stdout).into_owned();
    assert_eq!(dropped.status.code(), Some(1), "{said}");
    assert!(said.contains("not dropped") && said.contains("in block"), "{said}");
    let (_, row) = told(&run(&[&["show", "--id", "rent"], &read[..]].concat()).await);
    assert_eq!((&row["noop"], &row["state"]), (&json!(false), &json!("in_block")), "{row}");

    // Told to wait, it answers nothing before that block is final: until then neither yes nor no is true.
    let wait = ["drop", "--node", &address, "--json", "--request-id", "rent", "--wait"];
    let (code, rent) = told(&run(&[&wait[..], &["1s"]].concat()).await);
    assert_eq!((code, &rent["ended"]), (Some(10), &json!(false)), "{rent}");
    let (code, rent) = told(&mining(&anvil, &[&wait[..], &["30s"]].concat()).await);
    assert_eq!((code, &rent["end"]["kind"]), (Some(1), &json!("executed")), "{rent}");

    let wait = ["drop", "--node", &address, "--wait", "30s", "--request-id"];
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

/// Passes questions on to a node; its address, and the last question.
async fn relay(node: String) -> (String, watch::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let (asked, questions) = watch::channel(String::new());
    tokio::spawn(async move {
        while let Ok((caller, _)) = listener.accept().await {
            let (mut caller, mut line) = (BufReader::new(caller), String::new());
            caller.read_line(&mut line).await.expect("a question");
            let mut node = BufReader::new(TcpStream::connect(&node).await.expect("connects"));
            node.write_all(line.as_bytes()).await.expect("written");
            asked.send_replace(line.clone());
            line.clear();
            node.read_line(&mut line).await.expect("an answer");
            // The caller may be gone by now.
            let _ = caller.write_all(line.as_bytes()).await;
        }
    });
    (address, questions)
}

#[tokio::test]
async fn a_drop_that_waits_tells_what_is_true_after_the_requests_block_has_left_the_chain() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (_child, address) = node(&["--dsn", &dsn], &anvil).await;
    in_a_block(&anvil, &dsn, &address, "rent").await;
    let (relay, mut questions) = relay(address.clone()).await;
    let waiting = tokio::spawn(async move {
        let wait = ["drop", "--json", "--wait", "50s", "--request-id", "rent", "--node", &relay];
        run(&wait).await
    });
    // The order was answered: a block has it. What is final is asked for from now on.
    let asks_on = questions.wait_for(|last| last.contains(r#""op":"wait""#));
    timeout(Duration::from_secs(20), asks_on).await.expect("in time").map(drop).expect("lives");
    // The block leaves the chain, and the pool forgets the request: it is sent again.
    anvil.call("anvil_reorg", json!([1, []])).await;
    anvil.call("anvil_dropAllTransactions", json!([])).await;
    anvil.pooled(1).await;
    // A second order, now that no block has it, puts a no-op in its place.
    let ordered = async {
        loop {
            let order = run(&["drop", "--node", &address, "--json", "--request-id", "rent"]).await;
            let (_, order) = told(&order);
            match order.get("ordered") {
                Some(form) => return form["hash"].clone(),
                // The node has not yet seen that the block is gone.
                None => assert!(order.get("mined").is_some(), "{order}"),
            }
        }
    };
    let noop = timeout(Duration::from_secs(30), ordered).await.expect("ordered");
    pooled(&anvil, &noop).await;
    assert!(!waiting.is_finished(), "nothing is final yet");
    let wait = ["wait", "--node", &address, "--json", "rent"];
    let (code, rent) = told(&mining(&anvil, &wait).await);
    assert_eq!((code, &rent["end"]["kind"]), (Some(9), &json!("replaced")), "{rent}");
    // The first order's caller hears the same: the request was dropped.
    let (code, rent) = told(&waiting.await.expect("no panic"));
    assert_eq!((code, &rent["end"]["kind"]), (Some(0), &json!("replaced")), "{rent}");
    assert_eq!(anvil.mined().await[0]["hash"], noop);
}

#[tokio::test]
async fn while_the_table_is_locked_a_wait_ends_in_time_and_says_that_the_outcome_is_unknown() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (_child, address) = node(&["--dsn", &dsn], &anvil).await;
    let sent = run(&["send", "--node", &address, "--request-id", "rent", "--call", &call(7)]).await;
    assert!(sent.status.success(), "{sent:?}");
    let client = database.client().await.expect("it answers");
    let lock = "begin; lock table tenure_tx.pending_transactions in access exclusive mode";
    client.batch_execute(lock).await.expect("locked");
    // As of three nodes, each of which waits for the lock.
    let all = [&*address; 3].join(",");
    let wait = async |id| {
        let begun = std::time::Instant::now();
        let waited = run(&["wait", "--node", &all, "--for", "3s", "--json", id]).await;
        (begun.elapsed(), waited)
    };
    let list = ["list", "--dsn", &dsn, "--account", ADDRESS];
    let (one, other, list) = tokio::join!(wait("rent"), wait("nothing"), run(&list));
    for (took, waited) in [one, other] {
        let (code, error) = told(&waited);
        assert_eq!((code, &error["error"]["exit"]), (Some(10), &json!(10)), "{error}");
        let said = error["error"]["message"].as_str().unwrap_or_default();
        assert!(said.contains("nothing was changed, ask again"), "{said}");
        // A wait whose nodes do not share its time takes 7.5 s; starting the processes takes time too.
        assert!(took < Duration::from_secs(7), "{took:?} of 3s");
    }
    // A command that reads the table does not ask for the table to be read.
    let said = String::from_utf8_lossy(&list.stderr).into_owned();
    assert_eq!(list.status.code(), Some(5), "{said}");
    assert!(said.contains("did not answer") && said.contains("locked"), "{said}");
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

#[tokio::test]
async fn a_request_without_an_id_can_be_asked_for_again_whatever_becomes_of_its_node() {
    let anvil = Anvil::start(&["--no-mining"]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal").display().to_string();
    let alone = ["--standalone", "--journal", &journal];
    let (mut child, address) = node(&alone, &anvil).await;
    let call = call(7);
    let begun = std::time::Instant::now();
    let sending = tokio::spawn({
        let (address, call) = (address.clone(), call.clone());
        async move {
            run(&["send", "--node", &address, "--json", "--wait", "4s", "--call", &call]).await
        }
    });
    anvil.pooled(1).await;
    child.kill().await.expect("killed");
    let sent = sending.await.expect("no panic");
    // As long as it was told to wait, not as long as a leader is looked for.
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    let (code, error) = told(&sent);
    assert_eq!(code, Some(10), "{sent:?}");
    let id = error["error"]["request_id"].as_str().expect("its id").to_owned();
    let said = String::from_utf8_lossy(&sent.stderr).into_owned();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "when it was sent, and when it was given up: {said}");
    assert!(lines.iter().all(|line| line.contains(&format!("--request-id {id}"))), "{said}");
    let (_child, address) = node(&alone, &anvil).await;
    let again = ["send", "--node", &address, "--request-id", &id, "--json", "--wait", "30s"];
    let (code, again) = told(&mining(&anvil, &[&again[..], &["--call", &call]].concat()).await);
    assert_eq!((code, &again["nonce"]), (Some(0), &json!(0)), "{again}");
    assert_eq!(anvil.mined().await.len(), 1, "paid once");
}

#[tokio::test]
async fn what_the_account_cannot_pay_is_shown_withdrawn_and_holds_up_nothing() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (_child, address) = node(&["--dsn", &dsn], &anvil).await;
    let huge = format!("0x{}", "f".repeat(32));
    let huge = json!({"to": ADDRESS, "value": huge, "gas": 21_000}).to_string();
    for (id, call) in [("big", huge), ("behind", call(8))] {
        let sent = run(&["send", "--node", &address, "--request-id", id, "--call", &call]).await;
        assert!(sent.status.success(), "{sent:?}");
    }
    let listed = async {
        loop {
            let listed = run(&["list", "--dsn", &dsn, "--account", ADDRESS]).await;
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            if listed.contains("nonce 0 waits") && listed.contains("drop --request-id big") {
                return;
            }
        }
    };
    timeout(Duration::from_secs(30), listed).await.expect("the list says what waits, and for what");
    let dropped = run(&["drop", "--node", &address, "--request-id", "big"]).await;
    let said = String::from_utf8_lossy(&dropped.stdout).into_owned();
    assert_eq!(dropped.status.code(), Some(0), "{said}");
    assert!(said.starts_with("dropped: nonce 0") && !said.contains("no-op"), "{said}");
    // A no-op takes the nonce at once, long before a gap would be filled.
    let wait = ["wait", "--node", &address, "--for", "25s", "--json", "behind"];
    let (code, behind) = told(&mining(&anvil, &wait).await);
    assert_eq!((code, &behind["nonce"]), (Some(0), &json!(1)), "{behind}");
    let again = run(&["drop", "--node", &address, "--request-id", "big"]).await;
    assert_eq!(again.status.code(), Some(0), "an answer that was lost is given again: {again:?}");
    let (code, big) = told(&run(&["wait", "--node", &address, "--json", "big"]).await);
    assert_eq!((code, &big["end"]["kind"]), (Some(9), &json!("withdrawn")), "{big}");
    for unknown in [&["wait", "none"][..], &["drop", "--request-id", "none"]] {
        let asked = [unknown, &["--node", &address, "--json"]].concat();
        let (code, failed) = told(&run(&asked).await);
        assert_eq!((code, &failed["error"]["exit"]), (Some(7), &json!(7)), "{failed}");
        assert_eq!(failed["error"]["request_id"], "none");
    }
}

/// A node that gives these answers, one after the other, and then the last one on and on.
async fn answering(codes: &[&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let codes = codes.to_vec();
    tokio::spawn(async move {
        let mut codes = codes.into_iter().peekable();
        while let Ok((caller, _)) = listener.accept().await {
            let (mut caller, mut line) = (BufReader::new(caller), String::new());
            caller.read_line(&mut line).await.expect("a question");
            let code = codes.peek().expect("one is left");
            let answer = json!({"error": {"code": code, "message": "so", "request_id": "rent"}});
            let answer = format!("{answer}\n");
            caller.write_all(answer.as_bytes()).await.expect("heard");
            if codes.len() > 1 {
                codes.next();
            }
        }
    });
    address
}

#[tokio::test]
async fn a_refusal_after_an_unknown_outcome_does_not_make_it_known() {
    let call = call(7);
    for after in [&["uncertain", "not_leader"][..], &["uncertain", "store"]] {
        for (command, more) in [("send", &["--call", &call][..]), ("drop", &[])] {
            let address = answering(after).await;
            let asked = ["--node", &address, "--within", "500ms", "--json", "--request-id", "rent"];
            let (code, said) = told(&run(&[&[command], &asked[..], more].concat()).await);
            assert_eq!(code, Some(10), "{command}, {after:?}: {said}");
            assert_eq!(said["error"]["request_id"], "rent", "{said}");
        }
    }
}

#[tokio::test]
async fn a_follower_that_does_not_know_a_request_does_not_speak_for_the_leader() {
    let (follower, leader) = (answering(&["not_found"]).await, answering(&["uncertain"]).await);
    let wait = ["wait", "rent", "--json", "--for", "500ms", "--node", &follower];
    let (code, said) = told(&run(&[&wait[..], &["--node", &leader]].concat()).await);
    assert_eq!(code, Some(10), "{said}");
    let (code, said) = told(&run(&[&wait[..], &["--node", &follower]].concat()).await);
    assert_eq!(code, Some(7), "no node knows it: {said}");
}

#[tokio::test]
async fn a_request_that_waits_for_its_acceptance_is_not_told_as_one_that_was_not_accepted() {
    let anvil = Anvil::start(&["--no-mining"]).await;
    let gateway = RpcProxy::start(&anvil.url).await;
    // Which chain it is, is told; its head is not.
    gateway.rule(|_, parameters| match parameters[0].as_str() {
        Some("latest") => Fault::Cut,
        _ => Fault::Pass,
    });
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal");
    let standalone = ["--standalone", "--journal", journal.to_str().expect("text")];
    let (_child, address) = node_at(&gateway.url, &standalone).await;
    let asked = ["--node", &address, "--within", "1s", "--json"];
    let call = call(7);
    let send = [&["send", "--request-id", "rent", "--call", &call], &asked[..]].concat();
    let (code, sent) = told(&run(&send).await);
    assert_eq!(code, Some(10), "{sent}");
    let (code, waits) = told(&run(&[&["wait", "rent", "--for", "1s"], &asked[..]].concat()).await);
    assert_eq!(code, Some(10), "{waits}");
    let (code, other) = told(&run(&[&["wait", "food", "--for", "1s"], &asked[..]].concat()).await);
    assert_eq!(code, Some(7), "nothing was asked for under this id: {other}");
    gateway.well();
    let wait = ["wait", "rent", "--node", &address, "--json"];
    let (code, rent) = told(&mining(&anvil, &wait).await);
    assert_eq!((code, &rent["end"]["kind"]), (Some(0), &json!("executed")), "{rent}");
}
