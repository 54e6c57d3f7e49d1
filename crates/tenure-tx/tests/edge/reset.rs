//! A development chain that is reset while nodes run: they accept nothing for the one that is gone, and say what to
//! do. Until the next look at the head finds the other chain, a request may still be sent to it: an id of its own
//! protects a chain from that. Afterwards nothing is.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure_core::epoch::Epoch;
use tenure_testkit::anvil::{ADDRESS, Anvil, number};
use tenure_testkit::rpc_proxy::{Fault, RpcProxy};
use tenure_testkit::{Database, until};
use tenure_tx::service::{Mode, SendError, SendRequest, TransactionService};
use tenure_tx::status::{EndKind, State};

use crate::kit::anvil::{chain, pay, signer};
use crate::kit::log::{Log, listen};
use crate::kit::node::Node;
use crate::kit::{bump, database, impatient, is};
use crate::{end, leader, leader_with, send};

const TABLES: [&str; 3] = ["pending_transactions", "past_transactions", "account"];

/// Asks until a request is refused because of the chain; what is said.
async fn refused(service: &TransactionService) -> String {
    let mut said = None;
    until("a refusal", async || {
        let request = SendRequest::call(pay(99, 1)).with_id("too late");
        // Before: not noticed yet, or the new epoch is not read yet.
        if let Err(SendError::Foreign(why)) = service.send(request).await {
            said = Some(why);
        }
        said.is_some()
    })
    .await;
    said.expect("refused")
}

async fn rows(db: &Database, table: &str) -> i64 {
    let client = db.client().await.expect("it answers");
    let count = format!("select count(*) from tenure_tx.{table}");
    client.query_one(&count, &[]).await.expect("readable").get(0)
}

/// Waits until an endpoint is known to be of another chain: what is sent before may reach it.
async fn noticed(log: &Log) {
    let said = async || !log.lines_with("IS OF ANOTHER CHAIN").is_empty();
    until("the other chain to be noticed", said).await;
}

/// The new chain got nothing, not even what would wait there for a lower nonce.
async fn has_nothing(anvil: &Anvil) {
    let pending = anvil.call("eth_getTransactionCount", json!([ADDRESS, "pending"])).await;
    let pool = anvil.call("txpool_status", json!([])).await;
    let counts = [&pending, &pool["pending"], &pool["queued"]].map(number);
    assert_eq!(counts, [0, 0, 0], "the new chain got what was of the old one: {pool}");
}

#[tokio::test]
async fn a_chain_that_is_reset_gets_nothing_and_the_old_one_is_not_written_back() {
    let db = database().await;
    let mut anvil = Anvil::start(&["--no-mining"]).await;
    let (log, _guard) = listen();
    let node = Node::leader(&db.dsn(), &anvil).await;
    let mut handle = send(&node, 0).await;
    crate::until(&mut handle, is(State::Ready)).await;
    anvil.reset().await;
    noticed(&log).await;
    let said = refused(&node.service).await;
    assert!(said.contains("another chain"), "{said}");
    assert!(said.contains("stop every node"), "{said}");
    for table in TABLES {
        assert!(said.contains(&format!("tenure_tx.{table}")), "{said}");
    }
    let dropped = node.service.cancel(0).await;
    assert!(matches!(&dropped, Err(SendError::Foreign(why)) if *why == said), "{dropped:?}");
    // The rows are removed while the node runs, against that advice, and it is elected again: it writes
    // nothing of the chain that is gone.
    let client = db.client().await.expect("it answers");
    for table in TABLES {
        client.batch_execute(&format!("delete from tenure_tx.{table}")).await.expect("deleted");
    }
    node.election.depose();
    bump(&db).await;
    node.election.lead(Epoch(2));
    refused(&node.service).await;
    for table in TABLES {
        assert_eq!(rows(&db, table).await, 0, "{table}");
    }
    has_nothing(&anvil).await;
    // Started again, a node works on the new chain.
    drop(node);
    bump(&db).await;
    let node = Node::follower("b", &db.dsn(), &anvil, impatient()).await;
    node.election.lead(Epoch(3));
    let mut handle = send(&node, 1).await;
    assert_eq!(handle.nonce, 0);
    assert_eq!(end(&anvil, &mut handle).await.kind, EndKind::Executed);
}

#[tokio::test]
async fn a_reset_that_no_call_failed_at_is_seen_by_a_block_that_does_not_continue_the_last() {
    let db = database().await;
    let (old, new) =
        (Anvil::start(&["--no-mining"]).await, Anvil::start(&["--timestamp", "1700000000"]).await);
    old.mine(5).await;
    let gateway = RpcProxy::start(&old.url).await;
    let (log, _guard) = listen();
    let node = leader(&db.dsn(), &gateway).await;
    let mut handle = send(&node, 0).await;
    crate::until(&mut handle, is(State::Ready)).await;
    gateway.lead_to(&new.url);
    noticed(&log).await;
    assert!(refused(&node.service).await.contains("another chain"));
    has_nothing(&new).await;
    // It was a mistake of the gateway: the chain is back, and the request goes on.
    gateway.lead_to(&old.url);
    assert_eq!(end(&old, &mut handle).await.kind, EndKind::Executed);
}

#[tokio::test]
async fn one_endpoint_that_leads_to_another_chain_does_not_keep_the_others_from_being_used() {
    let db = database().await;
    let (old, new) =
        (Anvil::start(&["--no-mining"]).await, Anvil::start(&["--timestamp", "1700000000"]).await);
    old.mine(5).await;
    let (first, second) = (RpcProxy::start(&old.url).await, RpcProxy::start(&old.url).await);
    let (log, _guard) = listen();
    let node = leader_with(&db.dsn(), &[&first.url, &second.url], impatient()).await;
    // Nothing is watched: it is the next look at the head that finds the other chain.
    let mut handle = send(&node, 0).await;
    assert_eq!(end(&old, &mut handle).await.kind, EndKind::Executed);
    first.lead_to(&new.url);
    // A look that had begun finds a nonce that cannot be: also then the endpoint is left alone.
    let words = ["IS OF ANOTHER CHAIN", "is left alone"];
    let seen = async || words.iter().any(|words| !log.lines_with(words).is_empty());
    until("the other chain to be seen", seen).await;
    let mut next = send(&node, 1).await;
    assert_eq!(end(&old, &mut next).await.kind, EndKind::Executed);
    assert_eq!(log.lines_with("took over").len(), 1, "it led all the time");
    has_nothing(&new).await;
}

/// A chain of the same id whose blocks do not show that they are not the next ones: it is further by some.
async fn longer_than(old: &Anvil) -> Anvil {
    let new = Anvil::start(&["--timestamp", "1700000000"]).await;
    let height = number(&old.call("eth_blockNumber", json!([])).await);
    new.mine(height + 50).await;
    new
}

#[tokio::test]
async fn an_endpoint_that_was_set_aside_says_which_chain_it_is_of_before_it_is_used_again() {
    let (db, old) = (database().await, Anvil::start(&["--no-mining"]).await);
    let (first, second) = (RpcProxy::start(&old.url).await, RpcProxy::start(&old.url).await);
    let (log, _guard) = listen();
    let node = leader_with(&db.dsn(), &[&first.url, &second.url], impatient()).await;
    let mut handle = send(&node, 0).await;
    assert_eq!(end(&old, &mut handle).await.kind, EndKind::Executed);
    let new = longer_than(&old).await;
    first.lead_to(&new.url);
    // Its next nonce is below what is final.
    let left = async || !log.lines_with("is left alone").is_empty();
    until("the endpoint to be left alone", left).await;
    // No other is left, and a request waits to be sent.
    second.rule(|_, _| Fault::Cut);
    let mut next = send(&node, 1).await;
    noticed(&log).await;
    has_nothing(&new).await;
    second.well();
    assert_eq!(end(&old, &mut next).await.kind, EndKind::Executed);
    has_nothing(&new).await;
}

#[tokio::test]
async fn a_nonce_that_cannot_be_shows_a_reset_that_the_blocks_do_not() {
    let (db, old) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&old.url).await;
    let (log, _guard) = listen();
    let node = leader(&db.dsn(), &gateway).await;
    let mut handle = send(&node, 0).await;
    assert_eq!(end(&old, &mut handle).await.kind, EndKind::Executed);
    let new = longer_than(&old).await;
    gateway.lead_to(&new.url);
    noticed(&log).await;
    assert!(refused(&node.service).await.contains("another chain"));
    has_nothing(&new).await;
}

#[tokio::test]
async fn a_standalone_nodes_journal_is_named_when_its_chain_is_reset() {
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal");
    let mut anvil = Anvil::start(&["--no-mining"]).await;
    let start = async |anvil: &Anvil| {
        let (mode, chain) = (Mode::Standalone { journal: journal.clone() }, chain(anvil));
        let signer = signer(&chain).await;
        let builder = TransactionService::builder(mode, Arc::new(chain), Arc::new(signer));
        builder.options(impatient()).start().await.expect("starts")
    };
    let (log, _guard) = listen();
    let service = start(&anvil).await;
    service.send(SendRequest::call(pay(0, 1))).await.expect("accepted");
    anvil.reset().await;
    noticed(&log).await;
    let path = journal.display().to_string();
    // While it runs, and when it is started again.
    let said = refused(&service).await;
    assert!(said.contains("another chain") && said.contains(&path), "{said}");
    let _ = service.shutdown(Duration::ZERO).await;
    let service = start(&anvil).await;
    let said = refused(&service).await;
    assert!(said.contains("not of 31337") && said.contains("remove its journal"), "{said}");
    has_nothing(&anvil).await;
    let _ = service.shutdown(Duration::ZERO).await;
    std::fs::remove_file(&journal).expect("removed");
    let handle = start(&anvil).await.send(SendRequest::call(pay(0, 1))).await.expect("accepted");
    assert_eq!(handle.nonce, 0);
}
