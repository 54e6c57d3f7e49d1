//! The service on a real anvil and a real PostgreSQL.
#![cfg(feature = "ethereum")]

mod kit;
#[allow(dead_code, reason = "only its heart is run here, not its main")]
#[path = "../examples/relayer.rs"]
mod relayer;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use kit::anvil::{chain, chain_at, pay, signer};
use kit::node::Node;
use kit::{E1, bump, database, impatient, is, until};
use serde_json::{Value, json};
use tenure_core::epoch::Epoch;
use tenure_testkit::anvil::{ADDRESS, Anvil, KEY};
use tenure_testkit::rpc_proxy::{Fault, RpcProxy, SEND};
use tenure_tx::account::{Signer as _, Unsigned};
use tenure_tx::chain::ethereum::{EthereumSigner, Fees};
use tenure_tx::chain::{Chain as _, Head, Outcome};
use tenure_tx::election::NodeRole;
use tenure_tx::engine::NonceError;
use tenure_tx::service::{
    Mode, Payload, SendError, SendRequest, ServiceError, ServiceOptions, TransactionHandle,
    TransactionService,
};
use tenure_tx::status::{EndKind, State};
use tenure_tx::store::{StoreError, StoredTransaction};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;

async fn send(node: &Node, tag: u64) -> TransactionHandle {
    node.service.send(SendRequest::call(pay(tag, 1))).await.expect("accepted")
}

#[tokio::test]
async fn a_transaction_is_mined_finalised_and_recorded() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let node = Node::leader(&db.dsn(), &anvil).await;
    let mut handle = send(&node, 1).await;
    assert_eq!(handle.nonce, 0);
    until(&mut handle, is(State::InBlock)).await;
    anvil.mine(3).await;
    until(&mut handle, is(State::Finalized)).await;
    assert!(handle.state().ended());
    // The same request again is the same transaction.
    let id = handle.request_id.clone();
    let again = SendRequest::call(pay(1, 1)).with_id(id);
    let again = node.service.send(again).await.expect("known");
    assert_eq!(again.nonce, 0);
    assert_eq!(anvil.nonce().await, 1);
}

#[tokio::test]
async fn a_reorganised_transaction_is_retracted_and_mined_again() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let node = Node::leader(&db.dsn(), &anvil).await;
    anvil.mine(3).await;
    let mut handle = send(&node, 1).await;
    until(&mut handle, is(State::Ready)).await;
    anvil.mine(1).await;
    until(&mut handle, is(State::InBlock)).await;
    let first = handle.state().status.block();
    anvil.call("anvil_reorg", json!([1, []])).await;
    until(&mut handle, |s| s.state() != State::InBlock).await;
    anvil.pooled(1).await;
    anvil.mine(1).await;
    until(&mut handle, |s| s.state() == State::InBlock && s.block() != first).await;
    anvil.mine(3).await;
    until(&mut handle, is(State::Finalized)).await;
    assert_ne!(handle.state().status.block(), first);
    assert_eq!(anvil.mined().await.len(), 1);
}

#[tokio::test]
async fn a_transaction_the_pool_drops_is_sent_again() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let node = Node::leader(&db.dsn(), &anvil).await;
    let mut handle = send(&node, 1).await;
    until(&mut handle, is(State::Ready)).await;
    let hash = handle.state().hash;
    anvil.call("anvil_dropTransaction", json!([hash.to_string()])).await;
    until(&mut handle, is(State::Dropped)).await;
    until(&mut handle, is(State::Ready)).await;
    assert_eq!(handle.state().hash, hash, "the same bytes");
    anvil.mine(4).await;
    until(&mut handle, is(State::Finalized)).await;
}

#[tokio::test]
async fn a_stuck_transaction_is_replaced_by_a_higher_fee() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let node = Node::leader(&db.dsn(), &anvil).await;
    let mut handle = send(&node, 1).await;
    until(&mut handle, is(State::Ready)).await;
    let first = handle.state().hash;
    let replaced = async {
        while handle.state().hash == first {
            handle.changed().await.expect("leads");
        }
    };
    timeout(Duration::from_secs(20), replaced).await.expect("replaced");
    until(&mut handle, is(State::Ready)).await;
    anvil.mine(4).await;
    until(&mut handle, is(State::Finalized)).await;
    let mined = anvil.mined().await;
    assert_eq!(mined.len(), 1);
    assert_eq!(mined[0]["hash"], handle.state().hash.to_string());
    assert_ne!(handle.state().hash, first);
}

#[tokio::test]
async fn sending_the_same_bytes_again_leaves_their_watch_alone() {
    let anvil = Anvil::start(&["--no-mining"]).await;
    let chain = chain(&anvil);
    let signer = signer(&chain).await;
    let head = chain.head(signer.account()).await.expect("answers");
    let call = pay(1, 1);
    let unsigned = Unsigned { nonce: 0, tip: 1, call: Some(&call), head: &head, replaces: None };
    let raw = signer.sign(unsigned).await.expect("signs").raw;
    let first = chain.submit(signer.account(), 0, raw.clone()).await;
    assert_eq!(first.outcome, Outcome::Pooled);
    let mut watch = first.watch.expect("watched");
    for _ in 0..3 {
        let again = chain.submit(signer.account(), 0, raw.clone()).await;
        assert_eq!(again.outcome, Outcome::AlreadyKnown);
        assert!(again.watch.is_none());
    }
    anvil.mine(1).await;
    let mined = async {
        while let Some(status) = watch.next().await {
            if status.status.state() == State::InBlock {
                return true;
            }
        }
        false
    };
    assert!(timeout(Duration::from_secs(10), mined).await.expect("in time"), "it ended");
}

#[tokio::test]
async fn a_node_that_restarts_with_an_empty_pool_gets_everything_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let state = dir.path().join("state.json");
    let state = state.to_str().expect("plain").to_owned();
    let db = database().await;
    let arguments = ["--no-mining", "--state", &state, "--preserve-historical-states"];
    let mut anvil = Anvil::start(&arguments).await;
    let node = Node::leader(&db.dsn(), &anvil).await;
    anvil.mine(1).await;
    let mut handles = Vec::new();
    for tag in 0..5 {
        handles.push(send(&node, tag).await);
    }
    for handle in &mut handles {
        until(handle, is(State::Ready)).await;
    }
    anvil.restart().await;
    anvil.pooled(5).await;
    anvil.mine(4).await;
    for handle in &mut handles {
        until(handle, is(State::Finalized)).await;
    }
    assert_eq!(anvil.mined().await.len(), 5);
}

#[tokio::test]
async fn what_was_accepted_for_one_chain_is_never_sent_to_another() {
    let db = database().await;
    let anvil = Anvil::start(&["--no-mining"]).await;
    let node = Node::leader(&db.dsn(), &anvil).await;
    let handle = send(&node, 0).await;
    assert_eq!(handle.nonce, 0);
    node.election.depose();
    let other = Anvil::start(&["--chain-id", "777"]).await;
    let (_election, builder) = Node::builder("b", &db.dsn(), &other).await;
    let error = builder.options(impatient()).start().await.expect_err("another chain");
    let ServiceError::Store(StoreError::Bound(why)) = &error else { panic!("{error:?}") };
    assert!(why.contains("777"), "{why}");
    assert_eq!(other.nonce().await, 0);
}

#[tokio::test]
async fn a_chain_that_lost_its_state_gets_nothing_until_it_has_caught_up() {
    let db = database().await;
    // A fixed first block: it is the same chain, although it forgot the rest.
    let mut anvil = Anvil::start(&["--timestamp", "1700000000"]).await;
    let node = Node::leader(&db.dsn(), &anvil).await;
    for tag in 0..3 {
        let mut handle = send(&node, tag).await;
        until(&mut handle, is(State::InBlock)).await;
        anvil.mine(3).await;
        until(&mut handle, is(State::Finalized)).await;
    }
    // Without its state: the account begins at nonce 0 again, and three nonces were final.
    anvil.restart().await;
    let paused = async { while node.service.open().await > 0 {} };
    timeout(Duration::from_secs(10), paused).await.expect("nothing is open");
    let lost = Duration::from_secs(2);
    let late = timeout(lost, node.service.send(SendRequest::call(pay(9, 1)).with_id("late"))).await;
    if let Ok(Ok(handle)) = &late {
        // Accepted before the loss was noticed: stored, and not at a nonce that was used.
        assert_eq!(handle.nonce, 3);
    }
    assert_eq!(anvil.nonce().await, 0, "no nonce is used a second time");
    // A new leader sees it at once, and waits.
    node.election.depose();
    bump(&db).await;
    let next = Node::follower("b", &db.dsn(), &anvil, impatient()).await;
    next.election.lead(Epoch(2));
    let early = timeout(Duration::from_secs(1), next.service.recovered()).await;
    assert!(early.is_err(), "{early:?}");
    // The chain catches up: what was owed is sent.
    anvil.call("anvil_setNonce", json!([ADDRESS, "0x3"])).await;
    anvil.mine(1).await;
    let took = timeout(Duration::from_secs(10), next.service.recovered()).await;
    assert!(took.expect("recovers").is_some());
    let request = SendRequest::call(pay(9, 1)).with_id("late");
    let mut handle = next.service.send(request).await.expect("accepted");
    assert_eq!(handle.nonce, 3);
    until(&mut handle, is(State::InBlock)).await;
}

#[tokio::test]
async fn a_new_leader_finishes_what_the_old_one_stored() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let old = Node::leader(&db.dsn(), &anvil).await;
    let new = Node::follower("b", &db.dsn(), &anvil, impatient()).await;
    assert_eq!(new.service.role(), NodeRole::Follower);
    let refused = new.service.send(SendRequest::call(pay(9, 1))).await;
    assert!(matches!(refused, Err(SendError::NotLeader)), "{refused:?}");
    let mut statuses = new.service.statuses();
    let mut handle = send(&old, 1).await;
    let other = send(&old, 2).await;
    until(&mut handle, is(State::Ready)).await;
    old.election.depose();
    bump(&db).await;
    assert!(
        timeout(Duration::from_secs(10), async { while handle.changed().await.is_some() {} })
            .await
            .is_ok(),
        "a demoted node's handles end"
    );
    let refused = old.service.send(SendRequest::call(pay(9, 1))).await;
    assert!(matches!(refused, Err(SendError::NotLeader)), "{refused:?}");
    new.election.lead(Epoch(2));
    assert!(new.service.recovered().await.is_some());
    // The caller asks the new leader with the id the old one gave: nothing is sent twice.
    let request = SendRequest::call(pay(2, 1)).with_id(other.request_id.clone());
    let mut taken = new.service.send(request).await.expect("known");
    assert_eq!(taken.nonce, other.nonce);
    let third = send(&new, 3).await;
    assert_eq!(third.nonce, 2);
    anvil.pooled(3).await;
    anvil.mine(4).await;
    until(&mut taken, is(State::Finalized)).await;
    let mined = anvil.mined().await;
    assert_eq!(mined.len(), 3);
    // The follower that was saw it all in the table, with the block.
    let seen = async {
        loop {
            let row = statuses.recv().await.expect("the feed goes on");
            if row.nonce == 1 && row.status.state() == State::Finalized {
                break row.status.block();
            }
        }
    };
    let block = timeout(Duration::from_secs(10), seen).await.expect("seen");
    assert_eq!(block.map(|b| b.to_string()), mined[1]["blockHash"].as_str().map(str::to_owned));
}

#[tokio::test]
async fn cancelling_puts_a_no_op_in_its_place() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let node = Node::leader(&db.dsn(), &anvil).await;
    let mut handle = send(&node, 7).await;
    until(&mut handle, is(State::Ready)).await;
    let first = handle.state().hash;
    node.service.cancel(0).await.expect("open");
    let replaced = async {
        while handle.state().hash == first || handle.state().status.state() != State::Ready {
            handle.changed().await.expect("leads");
        }
    };
    timeout(Duration::from_secs(20), replaced).await.expect("replaced");
    anvil.mine(4).await;
    until(&mut handle, is(State::Finalized)).await;
    let mined = anvil.mined().await;
    assert_eq!(mined[0]["to"], ADDRESS, "to oneself");
    assert_eq!(mined[0]["value"], "0x0");
}

#[tokio::test]
async fn what_a_caller_signed_is_outbid_by_what_replaces_it() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let node = Node::leader(&db.dsn(), &anvil).await;
    let chain = chain(&anvil);
    let ours = signer(&chain).await;
    let head = chain.head(ours.account()).await.expect("answers");
    let call = pay(1, 1);
    // Far above what the group tips by itself.
    let unsigned =
        Unsigned { nonce: 0, tip: 50_000_000_000, call: Some(&call), head: &head, replaces: None };
    let payload = Payload::Signed(ours.sign(unsigned).await.expect("signs").raw);
    let request = SendRequest::new(payload);
    let mut handle = node.service.send(request).await.expect("accepted");
    until(&mut handle, is(State::Ready)).await;
    let first = handle.state().hash;
    node.service.cancel(0).await.expect("open");
    let replaced = async {
        while handle.state().hash == first || handle.state().status.state() != State::Ready {
            handle.changed().await.expect("leads");
        }
    };
    timeout(Duration::from_secs(20), replaced).await.expect("replaced");
    anvil.mine(1).await;
    until(&mut handle, is(State::InBlock)).await;
    let mined = anvil.mined().await;
    assert_eq!(mined[0]["to"], ADDRESS, "the no-op");
}

#[tokio::test]
async fn bad_input_is_refused_with_its_reason_and_nothing_is_sent() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let options = ServiceOptions { max_bytes: 1_000, ..impatient() };
    let node = Node::follower("a", &db.dsn(), &anvil, options).await;
    node.election.lead(E1);
    node.service.recovered().await.expect("leads");
    let send = async |payload| node.service.send(SendRequest::new(payload)).await;
    let error = send(Payload::Call("not json".into())).await.expect_err("malformed");
    assert!(matches!(error, SendError::Sign(_)), "{error:?}");
    let error = send(Payload::Call(vec![b' '; 1_001].into())).await.expect_err("oversized");
    assert!(matches!(error, SendError::TooLarge { .. }), "{error:?}");
    let error = send(Payload::Signed("junk".into())).await.expect_err("malformed");
    assert!(matches!(error, SendError::Chain(_)), "{error:?}");
    // Signed by another key.
    let other = "59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d";
    let foreign = EthereumSigner::from_hex(other, 31_337, Fees::default()).expect("a key");
    let head = Head::default();
    let unsigned = Unsigned { nonce: 0, tip: 1, call: None, head: &head, replaces: None };
    let raw = foreign.sign(unsigned.clone()).await.expect("signs").raw;
    let error = send(Payload::Signed(raw)).await.expect_err("foreign");
    assert!(matches!(error, SendError::ForeignAccount(_)), "{error:?}");
    // Signed by ours: a nonce that is used, then a good one.
    let mut handle = node.service.send(SendRequest::call(pay(1, 1))).await.expect("accepted");
    until(&mut handle, is(State::InBlock)).await;
    let chain = chain(&anvil);
    let ours = EthereumSigner::from_hex(KEY, 31_337, chain.fees()).expect("a key");
    let low = ours.sign(Unsigned { tip: 3_000_000_000, ..unsigned.clone() }).await.expect("signs");
    let below = async {
        loop {
            let error = send(Payload::Signed(low.raw.clone())).await.expect_err("used");
            // Until the head is read again the entry itself is in the way.
            match error {
                SendError::Nonce(NonceError::BelowChain { nonce: 0, .. }) => return,
                SendError::Nonce(NonceError::Taken(0)) => tokio::task::yield_now().await,
                other => panic!("{other:?}"),
            }
        }
    };
    timeout(Duration::from_secs(20), below).await.expect("below the chain");
    let good = Unsigned { nonce: 1, tip: 3_000_000_000, ..unsigned };
    let good = ours.sign(good).await.expect("signs");
    let mut handle = send(Payload::Signed(good.raw)).await.expect("accepted");
    until(&mut handle, is(State::InBlock)).await;
    assert_eq!(anvil.nonce().await, 2);
    let id = "x".repeat(201);
    let error = node.service.send(SendRequest::call(pay(1, 1)).with_id(id)).await;
    assert!(matches!(error, Err(SendError::BadRequestId)), "{error:?}");
}

/// The node passes the bytes on, and says that they are refused; nor does it find them, or count them.
fn lie(gateway: &RpcProxy, send: Fault, next: u64) {
    gateway.rule(move |method, params| match method {
        SEND => send.clone(),
        "eth_getTransactionByHash" => Fault::Null,
        "eth_getTransactionCount" if params[1] == json!("pending") => {
            Fault::Answer(json!(format!("{next:#x}")))
        }
        _ => Fault::Pass,
    });
}

fn refused() -> Fault {
    Fault::PassAndSay(-32000, "intrinsic gas too low".to_owned())
}

/// Mines until the request's row is as wanted.
async fn corrected(
    anvil: &Anvil,
    node: &Node,
    id: &str,
    wanted: impl Fn(&StoredTransaction) -> bool,
) -> StoredTransaction {
    let mut changes = node.service.statuses();
    let there = async {
        loop {
            let row = node.service.find(id).await.expect("readable").expect("a row");
            if wanted(&row) {
                return row;
            }
            anvil.mine(1).await;
            let _ = timeout(Duration::from_millis(100), changes.recv()).await;
        }
    };
    match timeout(Duration::from_secs(60), there).await {
        Ok(row) => row,
        Err(_) => panic!("never corrected: {:?}", node.service.find(id).await),
    }
}

#[tokio::test]
async fn an_end_that_the_chain_proves_wrong_is_corrected_and_told() {
    let (log, _guard) = kit::log::listen();
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = Node::on("a", &db.dsn(), chain_at(&[&gateway.url]), impatient()).await;
    node.election.lead(E1);
    node.service.recovered().await.expect("leads");
    let after = node.store.newest_change().await.expect("readable");
    // The row is still the nonce's own when the truth is found.
    lie(&gateway, refused(), 0);
    let rent = SendRequest::call(pay(1, 1)).with_id("rent");
    let mut handle = node.service.send(rent.clone()).await.expect("accepted");
    let ended = timeout(Duration::from_secs(20), handle.ended()).await.expect("ends");
    assert_eq!(ended.expect("leads").note.end.expect("ended").kind, EndKind::Refused);
    gateway.well();
    let is_corrected = |row: &StoredTransaction| row.note.corrected.is_some();
    let row = corrected(&anvil, &node, "rent", is_corrected).await;
    let end = row.note.end.as_ref().expect("ended");
    assert_eq!((end.kind, row.status.state()), (EndKind::Executed, State::Finalized));
    assert_eq!(row.note.corrected.as_ref().expect("told before").kind, EndKind::Refused);
    assert!(end.hash == Some(row.hash) && end.fee.is_some_and(|fee| fee > 0), "{end:?}");
    // A reader of changes hears it, and so does a caller that asks again.
    let mut heard = Vec::new();
    for row in node.store.changes(after).await.expect("readable") {
        heard.extend(row.note.end.map(|end| end.kind));
    }
    assert_eq!(heard.last(), Some(&EndKind::Executed), "{heard:?}");
    let again = node.service.send(rent).await.expect("known").state();
    assert_eq!(again.note.end.expect("ended").kind, EndKind::Executed);

    // The nonce has been given to another request by then: that one never executes, and hears why.
    lie(&gateway, refused(), 1);
    let mut wages =
        node.service.send(SendRequest::call(pay(2, 1)).with_id("wages")).await.expect("accepted");
    timeout(Duration::from_secs(20), wages.ended()).await.expect("ends").expect("leads");
    lie(&gateway, Fault::Say(-32000, "txpool is full".to_owned()), 1);
    let mut heir =
        node.service.send(SendRequest::call(pay(3, 1)).with_id("heir")).await.expect("accepted");
    assert_eq!(heir.nonce, wages.nonce, "the nonce of what was refused");
    anvil.mine(1).await;
    gateway.well();
    let row = corrected(&anvil, &node, "wages", is_corrected).await;
    assert_eq!(row.note.end.expect("ended").kind, EndKind::Executed);
    let heir = timeout(Duration::from_secs(20), heir.ended()).await.expect("ends").expect("leads");
    let end = heir.note.end.expect("ended");
    assert_eq!(end.kind, EndKind::Usurped);
    assert!(end.reason.as_ref().is_some_and(|why| why.contains("wages")), "{end:?}");
    let loud = log.lines_with("tx_corrected");
    assert_eq!(loud.len(), 2, "{loud:?}");
    // What the last look proved is not looked at again, by no leader.
    let open = "select count(*) from tenure_tx.pending_transactions where provisional";
    let settled = async {
        let client = db.client().await.expect("it answers");
        while client.query_one(open, &[]).await.expect("readable").get::<_, i64>(0) > 0 {
            anvil.mine(1).await;
        }
    };
    timeout(Duration::from_secs(60), settled).await.expect("every end is proved");
}

/// A server that never stops talking; returns its address, and how much it was let say.
async fn talker() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let said = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&said);
    tokio::spawn(async move {
        while let Ok((mut caller, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                // An answer to what was not asked yet would be no answer.
                let _ = caller.read(&mut [0; 4096]).await;
                let header = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n\"";
                let mut more = caller.write_all(header).await;
                let words = vec![b'x'; 1 << 20];
                while more.is_ok() {
                    more = caller.write_all(&words).await;
                    count.fetch_add(words.len(), Ordering::Relaxed);
                }
            });
        }
    });
    (url, said)
}

#[tokio::test]
async fn an_endpoint_that_never_stops_talking_is_not_listened_to_for_long() {
    let (url, said) = talker().await;
    let error = chain_at(&[&url]).chain_id().await.expect_err("no answer");
    assert!(error.to_string().contains("16 MiB"), "{error}");
    let said = said.load(Ordering::Relaxed) >> 20;
    assert!(said < 64, "{said} MiB were taken");
}

#[tokio::test]
async fn why_calls_failed_is_asked_beside_all_else_and_of_the_next_endpoint_if_one_does_not_say() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let other = RpcProxy::start(&anvil.url).await;
    let chain = chain_at(&[&gateway.url, &other.url]);
    let node = Node::on("a", &db.dsn(), chain, impatient()).await;
    node.election.lead(E1);
    node.service.recovered().await.expect("leads");
    // A contract that reverts whatever it is called with, and a node that is silent when a call is repeated.
    let contract = "0x2000000000000000000000000000000000000001";
    anvil.call("anvil_setCode", json!([contract, "0x5f5ffd"])).await;
    let repeated = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&repeated);
    let is_silent = move |method: &str, _: &Value| match method {
        "eth_call" => {
            count.fetch_add(1, Ordering::Relaxed);
            Fault::Hang
        }
        _ => Fault::Pass,
    };
    gateway.rule(is_silent.clone());
    // The other one is asked for the reason, before that which chain it is of, and for its height if no block came
    // for a while.
    let matters = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&matters);
    other.rule(move |method, params| {
        let beside = ["eth_call", "eth_getTransactionByHash", "eth_chainId", "eth_blockNumber"];
        let explains = beside.contains(&method);
        let asked = !explains && params[0] != json!("0x0");
        count.fetch_add(usize::from(asked), Ordering::Relaxed);
        Fault::Pass
    });
    let fail = async |tag: u64| {
        let call = json!({"to": contract, "gas": 100_000, "value": format!("{tag:#x}")});
        node.service.send(SendRequest::call(call.to_string())).await.expect("accepted")
    };
    let mut failing = Vec::new();
    for tag in 0..10 {
        failing.push(fail(tag).await);
    }
    let mut paid = send(&node, 1).await;
    until(&mut paid, is(State::Ready)).await;
    anvil.mine(6).await;
    until(&mut paid, is(State::Finalized)).await;
    assert_eq!(paid.state().note.end.expect("ended").kind, EndKind::Executed);
    for handle in &mut failing {
        until(handle, is(State::Finalized)).await;
        let end = handle.state().note.end.expect("ended");
        assert_eq!(end.kind, EndKind::Reverted);
        assert!(end.reason.as_ref().is_some_and(|why| why.contains("reverted")), "{end:?}");
    }
    let asked = repeated.load(Ordering::Relaxed);
    assert!(asked < 10, "all of a block are one question, not {asked}; a look-up may ask it again");
    // What is sent next, and its block, are asked of the same endpoint.
    let mut next = send(&node, 2).await;
    until(&mut next, is(State::Ready)).await;
    anvil.mine(6).await;
    until(&mut next, is(State::Finalized)).await;
    assert_eq!(matters.load(Ordering::Relaxed), 0, "the first endpoint answers all that matters");
    // Where none says it, that is told, and the end waits no longer.
    other.rule(is_silent);
    let mut last = fail(11).await;
    until(&mut last, is(State::Ready)).await;
    anvil.mine(6).await;
    until(&mut last, is(State::Finalized)).await;
    let end = last.state().note.end.expect("ended");
    assert!(end.reason.as_ref().is_some_and(|why| why.contains("reason in time")), "{end:?}");
}

#[tokio::test]
async fn a_receipt_that_no_endpoint_has_leaves_all_endpoints_in_use() {
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (first, second) = (RpcProxy::start(&anvil.url).await, RpcProxy::start(&anvil.url).await);
    let asked = Arc::new(AtomicUsize::new(0));
    let without_receipts = |gateway: &RpcProxy, busy: bool| {
        let asked = Arc::clone(&asked);
        gateway.rule(move |method, _| match method {
            "eth_getTransactionReceipt" => {
                asked.fetch_add(usize::from(!busy), Ordering::Relaxed);
                Fault::Null
            }
            SEND if busy => Fault::Say(-32005, "too many requests".to_owned()),
            _ => Fault::Pass,
        });
    };
    let chain = chain_at(&[&first.url, &second.url]);
    let signer = signer(&chain).await;
    let head = chain.head(signer.account()).await.expect("answers");
    let call = pay(1, 1);
    let unsigned = Unsigned { nonce: 0, tip: 1, call: Some(&call), head: &head, replaces: None };
    let raw = signer.sign(unsigned).await.expect("signs").raw;
    let submission = chain.submit(signer.account(), 0, raw).await;
    assert_eq!(submission.outcome, Outcome::Pooled);
    let _watch = submission.watch.expect("watched");
    without_receipts(&first, true);
    without_receipts(&second, false);
    anvil.mine(6).await;
    tenure_testkit::until("the question to the second", async || {
        asked.load(Ordering::Relaxed) != 0
    })
    .await;
    // The poll that asked is over.
    first.asked(2).await;
    let next = Unsigned { nonce: 1, tip: 1, call: Some(&call), head: &head, replaces: None };
    let raw = signer.sign(next).await.expect("signs").raw;
    let submission = chain.submit(signer.account(), 1, raw).await;
    assert_eq!(submission.outcome, Outcome::Pooled, "the second takes what the first cannot");
}

#[tokio::test]
async fn a_standalone_node_corrects_its_journal_too() {
    let anvil = Anvil::start(&["--no-mining"]).await;
    let gateway = RpcProxy::start(&anvil.url).await;
    let folder = tempfile::tempdir().expect("a folder");
    let begin = async || {
        let chain = chain_at(&[&gateway.url]);
        let signer = Arc::new(signer(&chain).await);
        let mode = Mode::Standalone { journal: folder.path().join("journal") };
        let builder = TransactionService::builder(mode, Arc::new(chain), signer);
        builder.options(impatient()).start().await.expect("starts")
    };
    let service = begin().await;
    lie(&gateway, refused(), 0);
    let rent = SendRequest::call(pay(1, 1)).with_id("rent");
    let mut handle = service.send(rent).await.expect("accepted");
    let ended = timeout(Duration::from_secs(20), handle.ended()).await.expect("ends");
    assert_eq!(ended.expect("leads").note.end.expect("ended").kind, EndKind::Refused);
    // What is in doubt outlives the process.
    let _ = service.shutdown(Duration::from_secs(5)).await;
    gateway.well();
    let service = begin().await;
    let found = async {
        loop {
            let row = service.find("rent").await.expect("readable").expect("a row");
            if row.note.corrected.is_some() {
                return row;
            }
            anvil.mine(1).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let row = timeout(Duration::from_secs(60), found).await.expect("corrected");
    assert_eq!(row.note.end.expect("ended").kind, EndKind::Executed);
}

#[tokio::test]
async fn a_handle_asked_for_while_its_end_is_being_stored_hears_it() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let node = Node::leader(&db.dsn(), &anvil).await;
    let rent = SendRequest::call(pay(1, 1)).with_id("rent");
    let mut first = node.service.send(rent.clone()).await.expect("accepted");
    until(&mut first, is(State::Ready)).await;
    anvil.mine(1).await;
    until(&mut first, is(State::InBlock)).await;
    // Every write waits, and readers see the row as it was.
    let client = db.client().await.expect("it answers");
    let lock = "begin; lock table tenure_tx.pending_transactions in exclusive mode";
    client.batch_execute(lock).await.expect("locked");
    anvil.mine(4).await;
    timeout(Duration::from_secs(20), first.ended()).await.expect("ends").expect("leads");
    let mut second = node.service.send(rent).await.expect("known");
    let ended = timeout(Duration::from_secs(20), second.ended()).await.expect("in time");
    let end = ended.expect("this node leads all the time").note.end.expect("ended");
    assert_eq!(end.kind, EndKind::Executed);
    client.batch_execute("rollback").await.expect("unlocked");
}

#[tokio::test]
async fn a_table_that_refuses_every_status_is_read_again_ever_more_slowly() {
    let (log, _guard) = kit::log::listen();
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let node = Node::leader(&db.dsn(), &anvil).await;
    let client = db.client().await.expect("it answers");
    let refuse = "alter table tenure_tx.pending_transactions add check (state = 'future')";
    client.batch_execute(refuse).await.expect("altered");
    let began = Instant::now();
    send(&node, 1).await;
    tenure_testkit::until("reading after reading", async || {
        log.lines_with("reading the table again").len() >= 7
    })
    .await;
    // 50 ms, doubled up to half a second: five pauses, each at least half of that.
    let took = began.elapsed();
    assert!(took > Duration::from_millis(600), "seven readings in {took:?}");
}

#[tokio::test]
async fn standalone_sends_without_a_table() {
    let anvil = Anvil::start(&[]).await;
    let chain = chain(&anvil);
    let signer = signer(&chain).await;
    let folder = tempfile::tempdir().expect("a folder");
    let mode = Mode::Standalone { journal: folder.path().join("journal") };
    let service = TransactionService::builder(mode, Arc::new(chain), Arc::new(signer));
    let service = service.options(impatient()).start().await.expect("starts");
    assert_eq!(service.role(), NodeRole::Standalone);
    let request = SendRequest::call(pay(1, 1)).with_id("once");
    let mut handle = service.send(request.clone()).await.expect("accepted");
    assert_eq!(service.send(request).await.expect("open").nonce, handle.nonce);
    until(&mut handle, is(State::InBlock)).await;
}

#[tokio::test]
async fn an_act_that_no_lease_can_cover_keeps_a_service_from_starting() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let (_election, builder) = Node::builder("a", &db.dsn(), &anvil).await;
    let options = ServiceOptions { act: Duration::from_secs(3), ..impatient() };
    let refused = builder.options(options).start().await.expect_err("nothing would be sent");
    assert!(refused.to_string().starts_with("act must be below the lease of 3s"), "{refused}");
}

#[tokio::test]
async fn the_example_pays_every_second() {
    let db = tenure_testkit::shared_cluster().await.database().await.expect("a database");
    let anvil = Anvil::start(&[]).await;
    let (dsn, url) = (db.dsn(), anvil.url.clone());
    let work = relayer::ethereum(&url, KEY).await.expect("a chain and a key");
    // Cancel-safe: the example is dropped when it has paid.
    tokio::select! {
        ended = relayer::relay(&dsn, work) => panic!("{ended:?}"),
        () = anvil.used(2) => {}
    }
    assert!(anvil.mined().await.iter().all(|tx| tx["value"] == "0x1"));
}
