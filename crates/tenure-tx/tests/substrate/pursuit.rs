//! The whole service on a real node: what a pool lets go of, bans or outlives is pursued to its end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tenure_core::epoch::Epoch;
use tenure_testkit::Database;
use tenure_testkit::substrate::development::{DevelopmentNode, runtime};
use tenure_tx::account::Signer as _;
use tenure_tx::chain::substrate::{Scheme, SubstrateChain, SubstrateSigner};
use tenure_tx::service::{Mode, SendRequest, TransactionHandle, TransactionService};
use tenure_tx::status::{EndKind, Hash, State};
use tokio::time::timeout;

use crate::kit::{E1, ManualElection, bump, database, impatient, is, store_of, until};
use crate::stage::{call, remark, signer};

/// Ecdsa's Alice may upgrade the runtime.
const ALICE: (&str, Scheme) = ("//Alice", Scheme::Ecdsa);

async fn node(arguments: &[&str]) -> DevelopmentNode {
    let mut all = vec!["--finality-lag", "none"];
    all.extend(arguments);
    DevelopmentNode::start("dev32", &all).await
}

async fn service(
    db: &Database,
    node: &DevelopmentNode,
    period: u64,
) -> (ManualElection, TransactionService) {
    let chain = SubstrateChain::new(&node.url, Duration::from_secs(5)).expect("a URL");
    let signer: SubstrateSigner = signer(&chain, ALICE, period);
    let election = ManualElection::new("a");
    let store = store_of(&db.dsn(), "a", signer.account().clone());
    let mode = Mode::Group { election: election.election.clone(), store };
    let service = TransactionService::builder(mode, Arc::new(chain), Arc::new(signer));
    let service = service.options(impatient()).start().await.expect("starts");
    election.lead(E1);
    service.recovered().await.expect("leads");
    (election, service)
}

async fn ask(node: &DevelopmentNode, method: &str, params: Value) -> Value {
    node.call(method, &params).await.unwrap_or_else(|error| panic!("{method}: {error}"))
}

/// A final block with what is ready.
async fn seal(node: &DevelopmentNode) {
    ask(node, "engine_createBlock", json!([true, true, null])).await;
}

async fn pending(node: &DevelopmentNode) -> Vec<Value> {
    let listed = ask(node, "author_pendingExtrinsics", json!([])).await;
    listed.as_array().expect("a list").clone()
}

/// Makes final blocks until the transaction has ended.
async fn ended(node: &DevelopmentNode, handle: &mut TransactionHandle) -> (EndKind, Hash) {
    let wait = async {
        while !handle.state().ended() {
            seal(node).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(60), wait).await.expect("ends");
    let state = handle.state();
    (state.note.end.as_ref().expect("it ended").kind, state.hash)
}

/// How many extrinsics of the chain carry this text.
async fn count(node: &DevelopmentNode, text: &str) -> usize {
    let digits = hex::encode(text);
    let mut hash = ask(node, "chain_getBlockHash", json!([])).await;
    let mut found = 0;
    loop {
        let block = ask(node, "chain_getBlock", json!([hash])).await;
        let all = block["block"]["extrinsics"].as_array().expect("a list");
        found += all.iter().filter(|one| one.as_str().expect("text").ends_with(&digits)).count();
        let header = &block["block"]["header"];
        if header["number"] == "0x0" {
            return found;
        }
        hash = header["parentHash"].clone();
    }
}

async fn send(service: &TransactionService, call: Bytes) -> TransactionHandle {
    service.send(SendRequest::call(call)).await.expect("accepted")
}

#[tokio::test]
#[ignore = "needs the development node: make test-substrate"]
async fn banned_bytes_are_signed_anew_and_executed_once() {
    let (db, node) = (database().await, node(&["--ban-seconds", "1800"]).await);
    let (_election, service) = service(&db, &node, 64).await;
    let mut handle = send(&service, remark("gm")).await;
    until(&mut handle, is(State::Ready)).await;
    let first = handle.state().hash;
    // The pool lets go of it, and takes these bytes no more.
    let all: Vec<Value> =
        pending(&node).await.into_iter().map(|raw| json!({"extrinsic": raw})).collect();
    assert_eq!(all.len(), 1);
    ask(&node, "author_removeExtrinsic", json!([all])).await;
    let (kind, hash) = ended(&node, &mut handle).await;
    assert_eq!(kind, EndKind::Executed);
    assert_ne!(hash, first, "the bytes that were banned are not those that ended it");
}

#[tokio::test]
#[ignore = "needs the development node: make test-substrate"]
async fn what_waits_at_an_upgrade_is_signed_anew_and_executed_once() {
    let (db, node) = (database().await, node(&[]).await);
    let (_election, service) = service(&db, &node, 64).await;
    let code = std::fs::read(runtime("dev32-next")).expect("the next runtime");
    let code = json!({"System": {"set_code": {"code": format!("0x{}", hex::encode(code))}}});
    let weight = json!({"ref_time": 0, "proof_size": 0});
    let args = json!({"call": code, "weight": weight});
    let mut upgrade = send(&service, call("Sudo", "sudo_unchecked_weight", args)).await;
    until(&mut upgrade, is(State::Ready)).await;
    // Too long for the block of the upgrade: it waits in the pool, signed for the runtime before.
    // System.remark in SCALE, whose length is a compact number of four bytes.
    let length = 3_700_000_u32;
    let mut heavy = vec![0, 0];
    heavy.extend((length << 2 | 2).to_le_bytes());
    heavy.resize(heavy.len() + length as usize, 0);
    let heavy = Bytes::from(heavy);
    let mut handle = send(&service, heavy).await;
    until(&mut handle, is(State::Ready)).await;
    let first = handle.state().hash;
    assert_eq!(ended(&node, &mut upgrade).await.0, EndKind::Executed);
    let version = ask(&node, "state_getRuntimeVersion", json!([])).await;
    assert_eq!(version["specVersion"], 2);
    let (kind, hash) = ended(&node, &mut handle).await;
    assert_eq!(kind, EndKind::Executed);
    assert_ne!(hash, first, "signed for the new runtime");
}

#[tokio::test]
#[ignore = "needs the development node: make test-substrate"]
async fn a_failed_call_ends_as_reverted_with_the_modules_error() {
    let (db, node) = (database().await, node(&[]).await);
    let (_election, service) = service(&db, &node, 64).await;
    let failing = call("System", "apply_authorized_upgrade", json!({"code": "0x00"}));
    let mut handle = send(&service, failing).await;
    until(&mut handle, is(State::Ready)).await;
    assert_eq!(ended(&node, &mut handle).await.0, EndKind::Reverted);
    let end = handle.state().note.end.clone().expect("it ended");
    assert!(end.reason.expect("why").starts_with("System.NothingAuthorized"));
}

#[tokio::test]
#[ignore = "needs the development node: make test-substrate"]
async fn what_a_full_pool_dropped_is_executed_once() {
    for pool in ["fork-aware", "single-state"] {
        let (db, node) = (
            database().await,
            node(&["--pool", pool, "--pool-limit", "3", "--ban-seconds", "1800"]).await,
        );
        let (_election, service) = service(&db, &node, 64).await;
        let mut all = Vec::new();
        for number in 0..3 {
            let mut handle = send(&service, remark(&format!("number {number}"))).await;
            until(&mut handle, is(State::Ready)).await;
            all.push(handle);
        }
        // A better one drives them out, and cannot come before them.
        let better = SendRequest::call(remark("number 3")).with_tip(100_000_000_000);
        let emptied = async {
            while !pending(&node).await.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (better, ()) = tokio::join!(service.send(better), emptied);
        all.push(better.expect("accepted"));
        for (number, mut handle) in all.into_iter().enumerate() {
            assert_eq!(ended(&node, &mut handle).await.0, EndKind::Executed, "{pool} {number}");
            assert_eq!(count(&node, &format!("number {number}")).await, 1, "{pool} {number}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the development node: make test-substrate"]
async fn what_outlived_its_era_is_executed_once_in_every_phase() {
    let (db, node) = (database().await, node(&[]).await);
    let (election, service) = service(&db, &node, 4).await;
    for (epoch, passed) in (1..).zip(4..=8) {
        // The answer of the node tells that it expired, or the head does where its end is final.
        for is_final in [false, true] {
            let text = format!("{passed} blocks, final: {is_final}");
            let mut handle = send(&service, remark(&text)).await;
            until(&mut handle, is(State::Ready)).await;
            let first = handle.state().hash;
            election.depose();
            let raw = pending(&node).await.into_iter().map(|raw| json!({"extrinsic": raw}));
            let raw: Vec<Value> = raw.collect();
            assert_eq!(raw.len(), 1);
            ask(&node, "author_removeExtrinsic", json!([raw])).await;
            for _ in 0..passed {
                ask(&node, "engine_createBlock", json!([true, is_final, null])).await;
            }
            bump(&db).await;
            election.lead(Epoch(2 * epoch + i64::from(is_final)));
            service.recovered().await.expect("leads");
            let id = handle.request_id.clone();
            let again = SendRequest::call(remark(&text)).with_id(id);
            let mut handle = service.send(again).await.expect("it is open");
            let (kind, hash) = ended(&node, &mut handle).await;
            assert_eq!(kind, EndKind::Executed, "{text}");
            assert_ne!(hash, first, "{text}");
            assert_eq!(count(&node, &text).await, 1, "{text}");
        }
    }
}
