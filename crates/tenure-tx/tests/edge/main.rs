//! The edge to the chain: a real anvil behind a gateway that misbehaves, a real PostgreSQL. Whatever
//! a node says, every accepted request executes once, or ends with a reason that is true.
#![cfg(feature = "ethereum")]

mod calls;
#[path = "../kit/mod.rs"]
mod kit;
mod lookup;
mod orders;
mod reset;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kit::anvil::{chain_at, pay};
use kit::node::Node;
use kit::{E1, database, impatient, is, until};
use serde_json::json;
use tenure_testkit::anvil::{ADDRESS, Anvil, number};
use tenure_testkit::rpc_proxy::{Fault, RpcProxy, SEND};
use tenure_tx::service::{Dropped, SendError, SendRequest, ServiceOptions, TransactionHandle};
use tenure_tx::status::{End, EndKind, State};
use tokio::time::timeout;

/// A leader whose only way to the chain is the gateway.
async fn leader(dsn: &str, gateway: &RpcProxy) -> Node {
    leader_with(dsn, &[&gateway.url], impatient()).await
}

async fn leader_with(dsn: &str, urls: &[&str], options: ServiceOptions) -> Node {
    let node = Node::on("a", dsn, chain_at(urls), options).await;
    node.election.lead(E1);
    node.service.recovered().await.expect("leads");
    node
}

async fn send(node: &Node, tag: u64) -> TransactionHandle {
    let request = SendRequest::call(pay(tag, 1)).with_id(format!("request-{tag}"));
    node.service.send(request).await.expect("accepted")
}

/// Mines until it has ended.
async fn end(anvil: &Anvil, handle: &mut TransactionHandle) -> End {
    let ended = async {
        while !handle.state().ended() {
            anvil.mine(1).await;
            let _ = timeout(Duration::from_millis(100), handle.changed()).await;
        }
    };
    if timeout(Duration::from_secs(60), ended).await.is_err() {
        panic!("never ended: {:?}", handle.state());
    }
    *handle.state().note.end.expect("ended")
}

/// What the account paid to the addresses that end in these tags, each in one transaction.
async fn paid(anvil: &Anvil, tags: std::ops::Range<u64>) {
    let mined = anvil.mined().await;
    for tag in tags {
        let to = format!("0x1000000000000000000000000000{tag:012x}");
        let times = mined.iter().filter(|tx| tx["to"] == to.as_str()).count();
        assert_eq!(times, 1, "{to} was paid {times} times");
    }
}

/// The next `times` submissions are faulty.
fn first(times: usize, fault: Fault) -> impl Fn(&str, &serde_json::Value) -> Fault + Send + Sync {
    let left = AtomicUsize::new(times);
    move |method, _| {
        let take = |left: usize| left.checked_sub(1);
        let faulty =
            method == SEND && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        if faulty { fault.clone() } else { Fault::Pass }
    }
}

#[tokio::test]
async fn already_known_in_any_clients_words_is_a_yes() {
    let words = ["AlreadyKnown", "tx already in mempool", "Known transaction", "already known"];
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    let mut handles = Vec::new();
    for (tag, words) in (0..).zip(words) {
        // The answer is lost; asked again, the node has it, in its own words; and a look-up finds
        // nothing, as behind a balancer.
        let asked = AtomicBool::new(false);
        gateway.rule(move |method, _| match method {
            SEND if !asked.swap(true, Ordering::Relaxed) => Fault::LoseAnswer,
            SEND => Fault::Say(-32000, words.to_owned()),
            "eth_getTransactionByHash" => Fault::Null,
            _ => Fault::Pass,
        });
        let mut handle = send(&node, tag).await;
        until(&mut handle, is(State::Ready)).await;
        gateway.well();
        handles.push(handle);
    }
    for handle in &mut handles {
        assert_eq!(end(&anvil, handle).await.kind, EndKind::Executed);
    }
    paid(&anvil, 0..4).await;
}

#[tokio::test]
async fn a_gateway_that_times_out_after_it_passed_the_bytes_on_ends_nothing() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    let timed_out = || Fault::PassAndSay(-32000, "upstream request timed out".to_owned());
    // Also the look-up knows nothing, so that nothing but the chain can say it.
    gateway.rule(move |method, _| match method {
        SEND => timed_out(),
        "eth_getTransactionByHash" => Fault::Null,
        _ => Fault::Pass,
    });
    let mut handle = send(&node, 1).await;
    let told = async {
        while handle.state().note.answer.as_deref() != Some("upstream request timed out") {
            handle.changed().await.expect("leads");
        }
    };
    timeout(Duration::from_secs(20), told).await.expect("the last answer is in the note");
    // The table has it a moment after the handle.
    let stored = async {
        loop {
            let row = node.store.by_nonce(0).await.expect("read").expect("a row");
            assert!(!row.ended, "{row:?}");
            if row.note.answer.is_some() {
                return;
            }
        }
    };
    timeout(Duration::from_secs(20), stored).await.expect("and in the row");
    assert_eq!(end(&anvil, &mut handle).await.kind, EndKind::Executed);
    paid(&anvil, 1..2).await;
}

#[tokio::test]
async fn http_errors_and_broken_lines_lose_and_double_nothing() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    let faults = [
        Fault::Http(429),
        Fault::Http(503),
        Fault::PassAndHttp(502),
        Fault::PassAndHttp(504),
        Fault::Cut,
        Fault::LoseAnswer,
        Fault::Say(-32603, "internal error".to_owned()),
    ];
    let mut handles = Vec::new();
    for (tag, fault) in (0..).zip(faults) {
        gateway.rule(first(3, fault));
        handles.push(send(&node, tag).await);
        let mut handle = handles.last().expect("just pushed").clone();
        until(&mut handle, is(State::Ready)).await;
    }
    gateway.well();
    for handle in &mut handles {
        assert_eq!(end(&anvil, handle).await.kind, EndKind::Executed);
    }
    paid(&anvil, 0..7).await;
}

#[tokio::test]
async fn a_body_that_is_too_large_ends_with_its_reason_and_blocks_nothing() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    gateway.rule(|method, _| if method == SEND { Fault::Http(413) } else { Fault::Pass });
    let mut large = send(&node, 1).await;
    let refused = timeout(Duration::from_secs(20), large.ended()).await.expect("ends");
    let refused = *refused.expect("leads").note.end.expect("ended");
    assert_eq!(refused.kind, EndKind::Refused);
    assert!(refused.reason.expect("a reason").contains("413"));
    gateway.well();
    let mut next = send(&node, 2).await;
    assert_eq!(next.nonce, large.nonce, "its nonce is free again");
    assert_eq!(end(&anvil, &mut next).await.kind, EndKind::Executed);
    // What no node can ever take is not accepted at all.
    let data = format!("0x{}", "ff".repeat(200_000));
    let call = json!({"to": ADDRESS, "gas": 30_000_000, "data": data}).to_string();
    let refused = node.service.send(SendRequest::call(call)).await;
    assert!(matches!(refused, Err(SendError::Sign(_))), "{refused:?}");
}

#[tokio::test]
async fn an_account_without_money_waits_and_pays_all_when_it_has_some() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    let balance = anvil.call("eth_getBalance", json!([ADDRESS, "latest"])).await;
    let mut handles = Vec::new();
    // First in anvil's own words, then in those of the clients whose codes say something else.
    anvil.call("anvil_setBalance", json!([ADDRESS, "0x0"])).await;
    for tag in 0..20 {
        handles.push(send(&node, tag).await);
    }
    let poor = |handle: &TransactionHandle| {
        let answer = handle.state().note.answer.unwrap_or_default().to_lowercase();
        answer.contains("funds") || answer.contains("balance")
    };
    let told = async {
        while !poor(&handles[0]) {
            handles[0].changed().await.expect("leads");
        }
    };
    timeout(Duration::from_secs(20), told).await.expect("said so");
    for words in ["InsufficientFunds, balance is 0", "Upfront cost exceeds account balance"] {
        let seen = Arc::new(AtomicUsize::new(0));
        let asked = Arc::clone(&seen);
        gateway.rule(move |method, _| {
            if method != SEND {
                return Fault::Pass;
            }
            asked.fetch_add(1, Ordering::Relaxed);
            Fault::Say(if words.starts_with('I') { -32010 } else { -32004 }, words.to_owned())
        });
        tenure_testkit::until("question after question", async || {
            seen.load(Ordering::Relaxed) >= 4
        })
        .await;
    }
    assert!(handles.iter().all(|handle| !handle.state().ended()), "nothing is lost");
    gateway.well();
    anvil.call("anvil_setBalance", json!([ADDRESS, balance])).await;
    anvil.pooled(20).await;
    for handle in &mut handles {
        assert_eq!(end(&anvil, handle).await.kind, EndKind::Executed);
    }
    paid(&anvil, 0..20).await;
}

#[tokio::test]
async fn a_deadline_and_a_drop_end_what_the_account_cannot_pay() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    anvil.call("anvil_setBalance", json!([ADDRESS, "0x0"])).await;
    let request = SendRequest::call(pay(1, 1)).with_deadline(Duration::from_millis(1_500));
    let mut due = node.service.send(request).await.expect("accepted");
    let mut other = send(&node, 2).await;
    let ended = timeout(Duration::from_secs(20), due.ended()).await.expect("ends");
    assert_eq!(ended.expect("leads").note.end.expect("ended").kind, EndKind::Expired);
    let dropped = node.service.cancel(other.nonce).await.expect("open");
    let ended = timeout(Duration::from_secs(20), other.ended()).await;
    if let Ok(Some(state)) = ended {
        assert_eq!(state.note.end.expect("ended").kind, EndKind::Withdrawn, "{dropped:?}");
    } else {
        panic!("{dropped:?}: {:?}", other.state());
    }
}

#[tokio::test]
async fn a_drop_is_answered_when_its_no_op_is_stored_and_its_end_is_told() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    let mut handle = send(&node, 1).await;
    until(&mut handle, is(State::Ready)).await;
    let dropped = node.service.cancel(0).await.expect("open");
    let Dropped::Ordered { hash } = dropped else { panic!("{dropped:?}") };
    let row = node.store.by_nonce(0).await.expect("read").expect("a row");
    assert!(row.noop && row.hash == hash, "stored before it is answered: {row:?}");
    let ended = end(&anvil, &mut handle).await;
    assert_eq!((ended.kind, ended.hash), (EndKind::Replaced, Some(hash)));
    assert!(ended.block.is_some() && ended.fee.is_some(), "{ended:?}");
    // One that is in a block is not dropped, and the answer says so.
    let mut mined = send(&node, 2).await;
    until(&mut mined, is(State::Ready)).await;
    anvil.mine(1).await;
    until(&mut mined, is(State::InBlock)).await;
    let dropped = node.service.cancel(1).await.expect("open");
    assert!(matches!(dropped, Dropped::Mined { .. }), "{dropped:?}");
    assert_eq!(end(&anvil, &mut mined).await.kind, EndKind::Executed);
}

#[tokio::test]
async fn a_reverted_call_is_told_as_reverted_with_its_fee() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    // A contract that reverts whatever it is called with.
    let contract = "0x2000000000000000000000000000000000000001";
    anvil.call("anvil_setCode", json!([contract, "0x5f5ffd"])).await;
    let call = json!({"to": contract, "gas": 100_000}).to_string();
    let mut handle = node.service.send(SendRequest::call(call)).await.expect("accepted");
    let ended = end(&anvil, &mut handle).await;
    assert_eq!(ended.kind, EndKind::Reverted);
    assert!(ended.fee.is_some_and(|fee| fee > 0) && ended.reason.is_some(), "{ended:?}");
}

/// Most nodes' receipts give no reason.
#[tokio::test]
async fn why_a_call_reverted_is_told_in_the_contracts_words() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    // A contract that reverts with Error("too late"), whatever it is called with.
    let contract = "0x2000000000000000000000000000000000000002";
    let words = "746f6f206c617465";
    let error = format!("08c379a0{:064x}{:064x}{words:0<64}", 32, 8);
    let code = format!("0x6064600c60003960646000fd{error}");
    anvil.call("anvil_setCode", json!([contract, code])).await;
    let call = json!({"to": contract, "gas": 100_000}).to_string();
    let mut handle = node.service.send(SendRequest::call(call)).await.expect("accepted");
    let ended = end(&anvil, &mut handle).await;
    assert_eq!((ended.kind, ended.reason.as_deref()), (EndKind::Reverted, Some("too late")));
}

#[tokio::test]
async fn a_receipt_that_is_late_is_waited_for_and_no_end_is_told_without_it() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    let mut handle = send(&node, 1).await;
    until(&mut handle, is(State::Ready)).await;
    let polls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&polls);
    gateway.rule(move |method, params| match method {
        "eth_getTransactionReceipt" | "eth_getBlockReceipts" => Fault::Null,
        "eth_getBlockByNumber" if params[0] == json!("latest") => {
            count.fetch_add(1, Ordering::Relaxed);
            Fault::Pass
        }
        _ => Fault::Pass,
    });
    anvil.mine(6).await;
    until(&mut handle, is(State::InBlock)).await;
    let from = polls.load(Ordering::Relaxed);
    tenure_testkit::until("reading after reading", async || {
        polls.load(Ordering::Relaxed) >= from + 40
    })
    .await;
    assert!(!handle.state().ended(), "{:?}", handle.state());
    gateway.well();
    assert_eq!(end(&anvil, &mut handle).await.kind, EndKind::Executed);
}

#[tokio::test]
async fn a_block_learnt_by_a_look_up_is_taken_back_like_any_other() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    anvil.mine(5).await;
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    for tag in 0..4 {
        let mut handle = send(&node, tag).await;
        anvil.pooled(tag + 1).await;
        // Two blocks at once, so that the first is not seen as the latest, and both are replaced.
        anvil.mine(2).await;
        until(&mut handle, is(State::InBlock)).await;
        anvil.call("anvil_reorg", json!([2, []])).await;
        let ended = end(&anvil, &mut handle).await;
        assert_eq!(ended.kind, EndKind::Executed);
        let number = format!("{:#x}", ended.block_number.expect("known"));
        let block = anvil.call("eth_getBlockByNumber", json!([number, false])).await;
        let (hash, tx) = (ended.block.expect("known"), ended.hash.expect("known").to_string());
        assert_eq!(block["hash"], hash.to_string(), "final, and not the chain's block");
        let holds = block["transactions"].as_array().is_some_and(|all| all.contains(&json!(tx)));
        assert!(holds, "{tx} is not in {block}");
    }
    paid(&anvil, 0..4).await;
}

/// A node's word about a transaction, receipt included, is compared with the block that the chain has at
/// that height: a final number alone ends nothing.
#[tokio::test]
async fn a_block_that_is_not_the_chains_at_its_height_is_never_final() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    // The second block is final, and below all that is followed.
    anvil.mine(6).await;
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    let left = format!("0x{}", "2b".repeat(32));
    gateway.rule(move |method, params| {
        let answer = json!({"blockNumber": "0x2", "blockHash": left, "status": "0x1",
                            "transactionHash": params[0]});
        match method {
            "eth_getTransactionByHash" | "eth_getTransactionReceipt" => Fault::Answer(answer),
            _ => Fault::Pass,
        }
    });
    let mut handle = send(&node, 0).await;
    until(&mut handle, is(State::InBlock)).await;
    until(&mut handle, is(State::Retracted)).await;
    gateway.asked(20).await;
    assert!(!handle.state().ended(), "{:?}", handle.state());
    gateway.well();
    let ended = end(&anvil, &mut handle).await;
    assert_eq!(ended.kind, EndKind::Executed);
    assert!(ended.block_number.is_some_and(|number| number > 6), "{ended:?}");
    paid(&anvil, 0..1).await;
}

#[tokio::test]
async fn receipts_of_a_block_that_left_the_chain_prove_nothing() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    anvil.mine(5).await;
    let gateway = RpcProxy::start(&anvil.url).await;
    let old = leader(&db.dsn(), &gateway).await;
    let mut handles = [send(&old, 0).await, send(&old, 1).await];
    anvil.pooled(2).await;
    anvil.mine(1).await;
    for handle in &mut handles {
        until(handle, is(State::InBlock)).await;
    }
    let block = handles[0].state().status.block().expect("in a block").to_string();
    tenure_testkit::until("its block in the table", async || {
        !old.store.list(0).await.expect("readable").iter().any(|row| row.status.block().is_none())
    })
    .await;
    let receipts = anvil.call("eth_getBlockReceipts", json!([block])).await;
    assert_eq!(receipts.as_array().map(Vec::len), Some(2));
    old.election.depose();
    drop(old);
    kit::bump(&db).await;
    // The next leader's node has kept what the chain has not.
    anvil.call("anvil_reorg", json!([1, []])).await;
    gateway.rule(move |method, params| match method {
        "eth_getBlockReceipts" if params[0] == json!(block) => Fault::Answer(receipts.clone()),
        _ => Fault::Pass,
    });
    let new = Node::on("b", &db.dsn(), chain_at(&[&gateway.url]), impatient()).await;
    new.election.lead(tenure_core::epoch::Epoch(2));
    new.service.recovered().await.expect("leads");
    let mut handles = [send(&new, 0).await, send(&new, 1).await];
    for handle in &mut handles {
        assert_eq!(end(&anvil, handle).await.kind, EndKind::Executed);
    }
    paid(&anvil, 0..2).await;
}

#[tokio::test]
async fn receipts_that_are_late_do_not_make_an_executed_request_usurped() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    let mut handle = send(&node, 1).await;
    until(&mut handle, is(State::Ready)).await;
    // A node that has not indexed its past: many answers, no blocks, and then some.
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    gateway.rule(move |method, params| match method {
        "eth_getTransactionReceipt" | "eth_getTransactionByHash" => {
            count.fetch_add(1, Ordering::Relaxed);
            Fault::Null
        }
        // Nor has it the old state, or the block's transactions.
        "eth_getBlockByNumber" if params[1] == json!(true) => Fault::Null,
        _ => Fault::Pass,
    });
    anvil.mine(6).await;
    tenure_testkit::until("question after question", async || asked.load(Ordering::Relaxed) >= 12)
        .await;
    assert!(!handle.state().ended(), "{:?}", handle.state());
    gateway.well();
    assert_eq!(end(&anvil, &mut handle).await.kind, EndKind::Executed);
}

#[tokio::test]
async fn the_next_endpoint_takes_over_and_one_of_another_chain_is_never_used() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let foreign = Anvil::start(&["--no-mining", "--chain-id", "777"]).await;
    let (one, two) = (RpcProxy::start(&anvil.url).await, RpcProxy::start(&anvil.url).await);
    let other = RpcProxy::start(&foreign.url).await;
    let urls = [one.url.as_str(), &other.url, &two.url];
    let node = leader_with(&db.dsn(), &urls, impatient()).await;
    let mut first = send(&node, 0).await;
    until(&mut first, is(State::Ready)).await;
    one.rule(|_, _| Fault::Cut);
    let mut second = send(&node, 1).await;
    until(&mut second, is(State::Ready)).await;
    two.rule(|_, _| Fault::Http(503));
    one.well();
    let mut third = send(&node, 2).await;
    until(&mut third, is(State::Ready)).await;
    for handle in [&mut first, &mut second, &mut third] {
        assert_eq!(end(&anvil, handle).await.kind, EndKind::Executed);
    }
    paid(&anvil, 0..3).await;
    assert_eq!(foreign.nonce().await, 0);
    let pending = foreign.call("eth_getTransactionCount", json!([ADDRESS, "pending"])).await;
    assert_eq!(number(&pending), 0, "another chain's node got the bytes");
}

#[tokio::test]
async fn a_price_that_the_next_endpoint_calls_too_low_is_no_proof_that_the_first_has_nothing() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let (one, two) = (RpcProxy::start(&anvil.url).await, RpcProxy::start(&anvil.url).await);
    let node = leader_with(&db.dsn(), &[&one.url, &two.url], impatient()).await;
    one.rule(|method, _| match method {
        SEND => Fault::LoseAnswer,
        "eth_getTransactionByHash" => Fault::Null,
        _ => Fault::Pass,
    });
    two.rule(|method, _| match method {
        SEND => Fault::Say(-32000, "transaction underpriced".to_owned()),
        "eth_getTransactionByHash" => Fault::Null,
        _ => Fault::Pass,
    });
    let mut handle = send(&node, 1).await;
    let told = async {
        while handle.state().note.answer.is_none() {
            handle.changed().await.expect("leads");
        }
    };
    timeout(Duration::from_secs(20), told).await.expect("the answer is told");
    anvil.pooled(1).await;
    // Whichever form the chain takes now, the end is the one that the chain has.
    node.service.cancel(handle.nonce).await.expect("open");
    one.well();
    two.well();
    let ended = end(&anvil, &mut handle).await;
    anvil.mine(1).await;
    let to = format!("0x1000000000000000000000000000{:012x}", 1);
    let is_paid = anvil.mined().await.iter().any(|tx| tx["to"] == to.as_str());
    assert_eq!(ended.kind == EndKind::Executed, is_paid, "{ended:?}");
}

#[tokio::test]
async fn a_base_fee_above_the_cap_is_waited_out() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let cap = 20_000_000_000u128;
    anvil.call("anvil_setNextBlockBaseFeePerGas", json!(["0xba43b7400"])).await;
    anvil.mine(1).await;
    let chain = kit::anvil::capped(&anvil.url, cap);
    let node = Node::on("a", &db.dsn(), chain, impatient()).await;
    node.election.lead(E1);
    node.service.recovered().await.expect("leads");
    let mut handle = send(&node, 1).await;
    let told = async {
        while handle.state().note.answer.is_none() {
            handle.changed().await.expect("leads");
        }
    };
    timeout(Duration::from_secs(20), told).await.expect("the node's answer is told");
    assert!(!handle.state().ended() && anvil.nonce().await == 0, "{:?}", handle.state());
    anvil.call("anvil_setNextBlockBaseFeePerGas", json!(["0x1"])).await;
    anvil.mine(1).await;
    let ended = async {
        while !handle.state().ended() {
            anvil.call("anvil_setNextBlockBaseFeePerGas", json!(["0x1"])).await;
            anvil.mine(1).await;
            let _ = timeout(Duration::from_millis(100), handle.changed()).await;
        }
    };
    timeout(Duration::from_secs(60), ended).await.expect("it ends");
    let ended = *handle.state().note.end.expect("ended");
    assert_eq!(ended.kind, EndKind::Executed);
    for tx in anvil.mined().await {
        let bid = u128::from(number(&tx["maxFeePerGas"]));
        assert!(bid <= cap, "{bid} is above the cap");
    }
}

#[tokio::test]
async fn a_busy_endpoint_may_have_kept_what_another_one_will_not_have() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let (one, two) = (RpcProxy::start(&anvil.url).await, RpcProxy::start(&anvil.url).await);
    for (gateway, words) in
        [(&one, "nonce too high"), (&two, "insufficient funds for gas * price + value")]
    {
        gateway.rule(move |method, _| match method {
            SEND => Fault::Say(-32000, words.to_owned()),
            _ => Fault::Pass,
        });
    }
    let node = leader_with(&db.dsn(), &[&one.url, &two.url], impatient()).await;
    let mut handle = send(&node, 1).await;
    let asked = async {
        while handle.state().note.answer.is_none() {
            handle.changed().await.expect("leads");
        }
    };
    timeout(Duration::from_secs(20), asked).await.expect("asked");
    let dropped = node.service.cancel(handle.nonce).await.expect("open");
    assert!(matches!(dropped, Dropped::Ordered { .. }), "only a no-op is certain: {dropped:?}");
}

#[tokio::test]
async fn a_refusal_that_no_look_up_confirms_ends_nothing() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&asked);
    gateway.rule(move |method, _| match method {
        SEND => {
            seen.fetch_add(1, Ordering::Relaxed);
            Fault::Say(-32000, "intrinsic gas too low".to_owned())
        }
        "eth_getTransactionByHash" => Fault::Say(-32600, "Invalid API key".to_owned()),
        _ => Fault::Pass,
    });
    let mut handle = send(&node, 1).await;
    tenure_testkit::until("question after question", async || asked.load(Ordering::Relaxed) >= 6)
        .await;
    assert!(!handle.state().ended(), "{:?}", handle.state());
    gateway.well();
    assert_eq!(end(&anvil, &mut handle).await.kind, EndKind::Executed);
    paid(&anvil, 1..2).await;
}
