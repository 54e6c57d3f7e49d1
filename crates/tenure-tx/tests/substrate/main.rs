//! The Substrate adapter and the service on it: against a node that follows a script, and against a
//! real one or its recording.
#![cfg(feature = "substrate")]

#[path = "../kit/mod.rs"]
mod kit;
mod provider;
mod pursuit;
#[allow(dead_code, reason = "only its heart is run here, not its main")]
#[path = "../../examples/relayer.rs"]
mod relayer;
mod runtimes;
mod scenario;
mod signing;
mod stage;
#[allow(dead_code, reason = "only its heart is run here, not its main")]
#[path = "../../examples/storagehub.rs"]
mod storagehub;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use kit::substrate_node::block_hash;
use kit::{E1, ManualElection, database, impatient, is, store_of, until};
use serde_json::json;
use tenure_testkit::Database;
use tenure_testkit::substrate::{ScriptedNode, signer_script, storagehub_parachain};
use tenure_tx::account::{AccountId, SignError, Signed, Signer, Unsigned};
use tenure_tx::chain::substrate::{SubstrateChain, extrinsic_hash};
use tenure_tx::chain::{Chain as _, Located, Outcome, Receipt, Report, Shortfall, Sought};
use tenure_tx::service::{Mode, SendError, SendRequest, ServiceOptions, TransactionService};
use tenure_tx::status::{Hash, State, TransactionStatus};
use tokio::time::timeout;

fn account() -> AccountId {
    AccountId::new([0xd4; 32]).expect("32 bytes")
}

/// Extrinsics of a runtime with one call: length, nonce, tip, a serial number, the call.
struct ToySigner {
    account: AccountId,
    serial: AtomicU32,
    mortal: Option<u64>,
}

#[async_trait]
impl Signer for ToySigner {
    fn account(&self) -> &AccountId {
        &self.account
    }

    async fn sign(&self, unsigned: Unsigned<'_>) -> Result<Signed, SignError> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let mut body = vec![u8::try_from(unsigned.nonce).expect("few")];
        body.extend_from_slice(&serial.to_be_bytes());
        body.extend_from_slice(unsigned.call.unwrap_or(b"noop"));
        let mut raw = vec![u8::try_from(body.len() << 2).expect("short")];
        raw.extend(body);
        let valid_until = self.mortal.map(|period| unsigned.head.best.number + period);
        Ok(Signed {
            hash: extrinsic_hash(&raw),
            raw: raw.into(),
            valid_until,
            tip: None,
            bid: None,
        })
    }
}

fn chain(node: &ScriptedNode) -> SubstrateChain {
    SubstrateChain::new(&node.url, Duration::from_secs(5)).expect("a URL")
}

async fn service(
    db: &Database,
    node: &ScriptedNode,
    mortal: Option<u64>,
) -> (ManualElection, TransactionService) {
    let (election, service) = member(db, node, "a", mortal, impatient()).await;
    election.lead(E1);
    service.recovered().await.expect("leads");
    (election, service)
}

/// A node of the group that does not lead yet.
async fn member(
    db: &Database,
    node: &ScriptedNode,
    name: &str,
    mortal: Option<u64>,
    options: ServiceOptions,
) -> (ManualElection, TransactionService) {
    let election = ManualElection::new(name);
    let signer = ToySigner { account: account(), serial: AtomicU32::new(0), mortal };
    let store = store_of(&db.dsn(), name, account());
    let mode = Mode::Group { election: election.election.clone(), store };
    let service = TransactionService::builder(mode, Arc::new(chain(node)), Arc::new(signer));
    let service = service.options(options).start().await.expect("starts");
    (election, service)
}

#[tokio::test]
async fn all_ten_statuses_are_understood() {
    let mut node = ScriptedNode::start().await;
    let chain = chain(&node);
    node.mine(&[&[4, 1]]);
    let block = block_hash(1);
    let script = [
        (json!("future"), TransactionStatus::Future),
        (json!("ready"), TransactionStatus::Ready),
        (json!({"broadcast": ["p"]}), TransactionStatus::Broadcast(vec!["p".into()])),
        (json!({"inBlock": block}), TransactionStatus::InBlock(block)),
        (json!({"retracted": block}), TransactionStatus::Retracted(block)),
        (json!({"finalityTimeout": block}), TransactionStatus::FinalityTimeout(block)),
        (json!({"finalized": block}), TransactionStatus::Finalized(block)),
        (json!({"usurped": block}), TransactionStatus::Usurped(Some(block))),
        (json!("dropped"), TransactionStatus::Dropped),
        (json!("invalid"), TransactionStatus::Invalid(None)),
    ];
    let submit =
        tokio::spawn(async move { chain.submit(&account(), 0, Bytes::from_static(&[4, 1])).await });
    let arrived = node.arrival().await;
    arrived.pool();
    for (status, _) in &script {
        arrived.status(status.clone());
    }
    let submission = submit.await.expect("no panic");
    assert_eq!(submission.outcome, Outcome::Pooled);
    let watch = submission.watch.expect("watched");
    let seen: Vec<_> = timeout(Duration::from_secs(10), watch.take(10).collect::<Vec<_>>())
        .await
        .expect("ten statuses");
    let mut wanted = script.map(|(_, status)| Report::from(status));
    // The final one is told with its receipt; without metadata there is little in it.
    wanted[6].receipt = Some(Receipt { number: Some(1), ..Receipt::default() });
    assert_eq!(seen, wanted);
}

#[tokio::test]
async fn errors_of_the_pool_are_told_apart() {
    let mut node = ScriptedNode::start().await;
    node.ledger.lock().expect("unpoisoned").metadata = storagehub_parachain();
    let chain = Arc::new(chain(&node));
    let raw = Bytes::from_static(&[4, 1]);
    let cases = [
        (1001, "Extrinsic has invalid format", Outcome::Refused(String::new())),
        (1002, "wasm trap: unreachable", Outcome::Refused(String::new())),
        (1010, "Transaction is outdated", Outcome::Outdated),
        (1010, "Transaction has an ancient birth block", Outcome::Expired),
        (1010, "Transaction has a bad signature", Outcome::Refused(String::new())),
        (1011, "unknown validity", Outcome::Busy(String::new())),
        (1010, "Inability to pay some fees", Outcome::Unfunded(String::new())),
        (1010, "Transaction will be valid in the future", Outcome::Busy(String::new())),
        (1012, "temporarily banned", Outcome::Unwanted(String::new())),
        (1013, "already imported", Outcome::AlreadyKnown),
        (1014, "priority is too low", Outcome::Underpriced(Shortfall::Outbid, String::new())),
        (1015, "cycle detected", Outcome::Refused(String::new())),
        (1016, "immediately dropped", Outcome::Busy(String::new())),
        (1017, "unactionable", Outcome::Busy(String::new())),
        (-32603, "internal error", Outcome::Uncertain(String::new())),
    ];
    for (code, data, wanted) in cases {
        let (line, raw) = (Arc::clone(&chain), raw.clone());
        let submit = tokio::spawn(async move { line.submit(&account(), 0, raw).await });
        node.arrival().await.refuse(code, "refused", data);
        let outcome = submit.await.expect("no panic").outcome;
        let same = std::mem::discriminant(&outcome) == std::mem::discriminant(&wanted);
        assert!(same, "{code} {data}: {outcome:?}");
    }
    // Banned, but in the pool all the same.
    node.ledger.lock().expect("unpoisoned").pending.push(raw.to_vec());
    let line = Arc::clone(&chain);
    let submit = tokio::spawn(async move { line.submit(&account(), 0, raw).await });
    node.arrival().await.refuse(1012, "refused", "temporarily banned");
    assert_eq!(submit.await.expect("no panic").outcome, Outcome::AlreadyKnown);
}

#[tokio::test]
async fn a_used_nonce_is_traced_to_its_extrinsic() {
    let node = ScriptedNode::start().await;
    let chain = chain(&node);
    let extrinsic = |n: u8| vec![8, n, n];
    for n in 0..20u8 {
        node.mine(&[]);
        node.mine(&[&extrinsic(n)]);
    }
    node.finalize();
    node.mine(&[&extrinsic(20)]);
    let ours = [extrinsic_hash(&extrinsic(13))];
    let best = [extrinsic_hash(&extrinsic(20))];
    let sought = |nonce, attempts: &[Hash]| {
        let attempts = attempts.to_vec();
        Sought { nonce, attempts, since: 0, block: None }
    };
    let all = [sought(13, &ours), sought(12, &ours), sought(20, &best), sought(21, &best)];
    let in_block = |hash, number: usize, finalized: bool| {
        // Without metadata the node's events cannot be read, and that is no reason to wait.
        let bare = Receipt { number: Some(number as u64), ..Receipt::default() };
        let (block, receipt) = (block_hash(number), finalized.then_some(bare));
        Located::InBlock { hash, block, finalized, receipt }
    };
    let wanted = [
        in_block(ours[0], 28, true),
        Located::Usurped { by: None },
        in_block(best[0], 41, false),
        Located::Free,
    ];
    assert_eq!(chain.locate(&account(), &all).await, wanted);
    let head = chain.head(&account()).await.expect("answers");
    assert_eq!((head.best_nonce, head.finalized_nonce, head.pool_nonce), (21, 20, 21));
}

#[tokio::test]
async fn an_extrinsic_goes_through_a_reorganisation_to_finality() {
    let (db, mut node) = (database().await, ScriptedNode::start().await);
    let (_election, service) = service(&db, &node, None).await;
    let mut handle =
        service.send(SendRequest::call(Bytes::from_static(b"pay"))).await.expect("accepted");
    let arrived = node.arrival().await;
    let first = Hash([1; 32]);
    arrived.pool().status(json!("ready")).status(json!({"inBlock": first}));
    until(&mut handle, is(State::InBlock)).await;
    arrived.status(json!({"retracted": first}));
    until(&mut handle, is(State::Retracted)).await;
    let second: Hash = node.mine(&[&arrived.raw]).parse().expect("a hash");
    node.finalize();
    arrived.status(json!({"inBlock": second})).status(json!({"finalized": second}));
    until(&mut handle, is(State::Finalized)).await;
    assert_eq!(handle.state().status.block(), Some(second));
    assert!(handle.state().ended());
}

const PAUSE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_followers_stream_rebuilds_all_ten_statuses_with_their_blocks() {
    let (db, mut node) = (database().await, ScriptedNode::start().await);
    // A reader sees the last state, not each: the leader gives it time before it signs anew.
    let mut patient = impatient();
    (patient.engine.retry, patient.engine.retry_max) = (PAUSE, PAUSE);
    patient.engine.stuck_after = Duration::from_secs(60);
    let (election, leader) = member(&db, &node, "a", None, patient.clone()).await;
    election.lead(E1);
    leader.recovered().await.expect("leads");
    let (_follower, follower) = member(&db, &node, "b", None, patient).await;
    let mut stream = follower.statuses();
    let _kept = leader.send(SendRequest::call(Bytes::from_static(b"pay"))).await.expect("accepted");
    let mut next = async |wanted: &dyn Fn(&TransactionStatus) -> bool| {
        let seen = async {
            loop {
                let row = stream.recv().await.expect("the feed goes on");
                if wanted(&row.status) {
                    break (row.status.clone(), row.ended);
                }
            }
        };
        timeout(Duration::from_secs(20), seen).await.expect("the follower sees it")
    };
    let (a, b) = (Hash([1; 32]), Hash([2; 32]));
    // Each said by the node only after the follower saw the one before.
    let arrived = node.arrival().await;
    arrived.pool();
    next(&|s| *s == TransactionStatus::Future).await;
    let peers = vec!["p".to_owned()];
    for (said, status) in [
        (json!("ready"), TransactionStatus::Ready),
        (json!({"broadcast": peers}), TransactionStatus::Broadcast(peers.clone())),
        (json!({"inBlock": a}), TransactionStatus::InBlock(a)),
        (json!({"retracted": a}), TransactionStatus::Retracted(a)),
        (json!({"inBlock": b}), TransactionStatus::InBlock(b)),
        (json!({"finalityTimeout": b}), TransactionStatus::FinalityTimeout(b)),
    ] {
        arrived.status(said);
        assert_eq!(next(&|s| *s == status).await, (status.clone(), false));
    }
    // The watch is over and the duty is not: the nonce is free, so the same bytes go out again.
    let again = node.arrival().await;
    assert_eq!(again.raw, arrived.raw);
    again.pool().status(json!("dropped"));
    assert!(!next(&|s| *s == TransactionStatus::Dropped).await.1, "the duty goes on");
    let again = node.arrival().await;
    again.pool().status(json!("invalid"));
    next(&|s| s.state() == State::Invalid).await;
    let anew = node.arrival().await;
    anew.pool().status(json!({"usurped": a}));
    assert_eq!(next(&|s| s.state() == State::Usurped).await.0, TransactionStatus::Usurped(Some(a)));
    // It was in a block all the same.
    let block = node.mine(&[&anew.raw]).parse().expect("a hash");
    node.finalize();
    let end = next(&|s| s.state() == State::Finalized).await;
    assert_eq!(end, (TransactionStatus::Finalized(block), true));
}

#[tokio::test]
async fn a_promotion_goes_on_past_a_resubmission_that_fails() {
    let (db, mut node) = (database().await, ScriptedNode::start().await);
    let store = store_of(&db.dsn(), "old", account());
    let raw = |nonce: u8| Bytes::from(vec![8, nonce, nonce]);
    let rows: Vec<_> = (0..5u8)
        .map(|nonce| {
            let mut row = kit::row(nonce.into(), nonce, &format!("r{nonce}"));
            row.raw = raw(nonce);
            row.attempt.hash = extrinsic_hash(&raw(nonce));
            row
        })
        .collect();
    assert_eq!(store.accept(E1, 0, &rows).await.expect("leads").len(), 5);
    let (_election, service) = service(&db, &node, None).await;
    // The first answers are an error, silence on a broken line, and a refusal; all five arrive.
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 5 {
        let arrived = node.arrival().await;
        match seen.len() {
            0 => arrived.refuse(-32603, "Internal error", ""),
            1 => drop(arrived.say),
            2 => arrived.refuse(1010, "Invalid Transaction", "Transaction has a bad signature"),
            _ => drop(arrived.pool().status(json!("ready"))),
        }
        seen.insert(arrived.raw);
    }
    assert_eq!(service.open().await, 5, "none is given up");
}

#[tokio::test]
async fn a_dropped_subscription_is_looked_up_and_not_taken_for_dropped() {
    let (db, mut node) = (database().await, ScriptedNode::start().await);
    let (_election, service) = service(&db, &node, None).await;
    let mut handle =
        service.send(SendRequest::call(Bytes::from_static(b"pay"))).await.expect("accepted");
    let arrived = node.arrival().await;
    arrived.pool().status(json!("ready"));
    until(&mut handle, is(State::Ready)).await;
    // The line breaks while it is in the pool; the node knows it when it is sent again.
    node.ledger.lock().expect("unpoisoned").pending.push(arrived.raw.clone());
    node.cut();
    let again = node.arrival().await;
    assert_eq!(again.raw, arrived.raw, "the same bytes");
    again.refuse(1013, "Transaction Already Imported", "");
    assert_eq!(handle.state().status, TransactionStatus::Ready);
    // No subscription watches it any more: the account's nonce tells.
    let block = node.mine(&[&arrived.raw]).parse().expect("a hash");
    until(&mut handle, is(State::InBlock)).await;
    assert_eq!(handle.state().status.block(), Some(block));
    node.finalize();
    until(&mut handle, is(State::Finalized)).await;
}

#[tokio::test]
async fn an_expired_extrinsic_is_signed_anew_under_its_nonce() {
    let (db, mut node) = (database().await, ScriptedNode::start().await);
    let (_election, service) = service(&db, &node, Some(2)).await;
    let mut handle =
        service.send(SendRequest::call(Bytes::from_static(b"pay"))).await.expect("accepted");
    let first = node.arrival().await;
    first.pool().status(json!("ready"));
    until(&mut handle, is(State::Ready)).await;
    for _ in 0..4 {
        node.mine(&[]);
    }
    node.finalize();
    let second = node.arrival().await;
    assert_ne!(second.raw, first.raw);
    assert_eq!(second.raw[1], first.raw[1], "the same nonce");
    second.refuse(1010, "Invalid Transaction", "Transaction has an ancient birth block");
    let third = node.arrival().await;
    assert_ne!(third.raw, second.raw);
    let block: Hash = node.mine(&[&third.raw]).parse().expect("a hash");
    node.finalize();
    third.pool().status(json!({"finalized": block}));
    until(&mut handle, is(State::Finalized)).await;
}

#[tokio::test]
async fn a_foreign_extrinsic_that_takes_the_nonce_usurps_ours() {
    let (db, mut node) = (database().await, ScriptedNode::start().await);
    let (_election, service) = service(&db, &node, None).await;
    let mut handle =
        service.send(SendRequest::call(Bytes::from_static(b"pay"))).await.expect("accepted");
    let arrived = node.arrival().await;
    arrived.pool().status(json!("ready")).status(json!({"usurped": Hash([7; 32])}));
    until(&mut handle, is(State::Usurped)).await;
    assert!(!handle.state().ended(), "a pool's word is not the chain's");
    node.mine(&[&[8, 9, 9]]);
    node.finalize();
    let ended = timeout(Duration::from_secs(20), handle.ended()).await.expect("ends");
    assert_eq!(ended.expect("leads").status.state(), State::Usurped);
    // The next one takes the next nonce.
    let next = service.send(SendRequest::call(Bytes::from_static(b"pay"))).await.expect("accepted");
    assert_eq!(next.nonce, 1);
}

#[tokio::test]
async fn a_refused_extrinsic_ends_and_frees_its_nonce() {
    let (db, mut node) = (database().await, ScriptedNode::start().await);
    let (_election, service) = service(&db, &node, None).await;
    let mut handle =
        service.send(SendRequest::call(Bytes::from_static(b"bad"))).await.expect("accepted");
    for _ in 0..3 {
        node.arrival().await.refuse(
            1010,
            "Invalid Transaction",
            "Transaction call is not expected",
        );
    }
    let ended = timeout(Duration::from_secs(20), handle.ended()).await.expect("ends");
    let ended = ended.expect("leads");
    let TransactionStatus::Invalid(Some(reason)) = ended.status else { panic!("{ended:?}") };
    assert!(reason.contains("not expected"), "{reason}");
    let next =
        service.send(SendRequest::call(Bytes::from_static(b"good"))).await.expect("accepted");
    assert_eq!(next.nonce, 0, "the nonce is free again");
    let refused = service.send(SendRequest::signed(Bytes::from_static(&[4, 1]))).await;
    assert!(matches!(refused, Err(SendError::Chain(_))), "{refused:?}");
}

#[tokio::test]
async fn the_example_relays_through_a_signer_that_is_a_program() {
    let db = tenure_testkit::shared_cluster().await.database().await.expect("a database");
    let mut node = ScriptedNode::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let signer = signer_script(folder.path());
    let alice = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    let (dsn, url) = (db.dsn(), node.url.clone());
    let work = relayer::substrate(&url, alice, &signer, "0xbeef").expect("a chain and a signer");
    let relay = relayer::relay(&dsn, work);
    let arrived = async {
        let arrived = node.arrival().await;
        arrived.pool().status(json!("ready"));
        arrived
    };
    // Cancel-safe: the example is dropped when the extrinsic has arrived.
    let arrived = tokio::select! {
        ended = relay => panic!("{ended:?}"),
        arrived = arrived => arrived,
    };
    // Length, nonce 0, the call.
    assert_eq!(arrived.raw, [12, 0, 0xbe, 0xef]);
}
