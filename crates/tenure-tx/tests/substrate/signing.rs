//! A key of this process on a chain with real metadata: what is signed, what is signed anew, and how
//! a call's end is told.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tenure_testkit::Database;
use tenure_testkit::substrate::{Arrived, ScriptedNode, block_hash, storagehub_parachain};
use tenure_tx::account::{AccountId, SignError, Signed, Signer as _, Unsigned};
use tenure_tx::chain::substrate::{
    CommandSigner, Key, Period, Scheme, SubstrateCall, SubstrateChain, SubstrateSigner,
};
use tenure_tx::chain::{Chain as _, Located, Outcome, Receipt, Sought};
use tenure_tx::service::{Mode, SendError, SendRequest, ServiceOptions, TransactionService};
use tenure_tx::status::{EndKind, State};
use tokio::time::timeout;

use crate::kit::{E1, ManualElection, database, impatient, is, store_of, until};

async fn node() -> ScriptedNode {
    let node = ScriptedNode::start().await;
    node.ledger.lock().expect("unpoisoned").metadata = storagehub_parachain();
    node
}

async fn signer(node: &ScriptedNode) -> (SubstrateChain, SubstrateSigner) {
    let chain = SubstrateChain::new(&node.url, Duration::from_secs(5)).expect("a URL");
    let scheme = chain.scheme(Some(Scheme::Ecdsa)).await.expect("the runtime takes it");
    // A deterministic scheme: the same input gives the same bytes.
    let key = Key::from_suri("//Alice", scheme).expect("a key");
    let signer = SubstrateSigner::new(&chain, key).mortal(Period::new(4));
    (chain, signer)
}

fn remark(text: &str) -> Bytes {
    let args = json!({"remark": format!("0x{}", hex::encode(text))});
    SubstrateCall { pallet: "System".to_owned(), call: "remark".to_owned(), args }.encode()
}

async fn sign(
    chain: &SubstrateChain,
    signer: &SubstrateSigner,
    nonce: u64,
) -> Result<Signed, SignError> {
    let head = chain.head(signer.account()).await.expect("answers");
    let call = remark("gm");
    let call = Some(&call[..]);
    signer.sign(Unsigned { nonce, tip: 0, call, head: &head, replaces: None }).await
}

async fn service(
    db: &Database,
    chain: &SubstrateChain,
    signer: SubstrateSigner,
) -> (ManualElection, TransactionService) {
    let election = ManualElection::new("a");
    let store = store_of(&db.dsn(), "a", signer.account().clone());
    let mode = Mode::Group { election: election.election.clone(), store };
    let service = TransactionService::builder(mode, Arc::new(chain.clone()), Arc::new(signer));
    let service = service.options(impatient()).start().await.expect("starts");
    election.lead(E1);
    service.recovered().await.expect("leads");
    (election, service)
}

/// Submits, and lets the node refuse it.
async fn refused(
    node: &mut ScriptedNode,
    chain: &SubstrateChain,
    account: &AccountId,
    raw: &Bytes,
    (code, data): (i32, &'static str),
) -> Outcome {
    let (line, account, raw) = (chain.clone(), account.clone(), raw.clone());
    let submit = tokio::spawn(async move { line.submit(&account, 0, raw).await });
    node.arrival().await.refuse(code, "Invalid Transaction", data);
    submit.await.expect("no panic").outcome
}

const BAD_SIGNATURE: (i32, &str) = (1010, "Transaction has a bad signature");

#[tokio::test]
async fn a_key_signs_by_the_metadata_and_signed_bytes_tell_their_nonce() {
    let (db, mut node) = (database().await, node().await);
    let (chain, signer) = signer(&node).await;
    let account = signer.account().clone();
    let (next, foreign) = (sign(&chain, &signer, 1).await.expect("signs"), foreign(&chain).await);
    let (_election, service) = service(&db, &chain, signer).await;
    let first = service.send(SendRequest::call(remark("gm"))).await.expect("accepted");
    let arrived = node.arrival().await;
    let seen = chain.inspect(&arrived.raw).expect("an extrinsic");
    assert_eq!((seen.account, seen.nonce, seen.tip), (Some(account), Some(0), Some(0)));
    assert_eq!(seen.hash, first.state().hash);
    let second = service.send(SendRequest::signed(next.raw.clone())).await.expect("accepted");
    assert_eq!((second.nonce, second.state().hash), (1, next.hash));
    // The same bytes under another id are no reason to sign again.
    let again = service.send(SendRequest::signed(next.raw.clone()).with_id("again")).await;
    let Err(SendError::SameBytes { request_id, end: None }) = &again else { panic!("{again:?}") };
    assert_eq!(*request_id, second.request_id);
    let refused = service.send(SendRequest::signed(foreign)).await;
    assert!(matches!(refused, Err(SendError::ForeignAccount(_))), "{refused:?}");
    let wrong = SubstrateCall { pallet: "System".into(), call: "remrk".into(), args: json!({}) };
    let refused = service.send(SendRequest::call(wrong.encode())).await;
    let Err(SendError::Sign(SignError::Malformed(why))) = refused else { panic!("{refused:?}") };
    assert!(why.contains("remrk"), "{why}");
}

#[tokio::test]
async fn a_program_that_takes_too_long_is_named_with_its_limit() {
    let (db, node) = (database().await, node().await);
    let (chain, signer) = signer(&node).await;
    let account = signer.account().clone();
    let program = CommandSigner::new(account.clone(), "sleep 60").expect("named");
    let election = ManualElection::new("a");
    let mode = Mode::Group {
        election: election.election.clone(),
        store: store_of(&db.dsn(), "a", account),
    };
    let options = ServiceOptions { sign: Duration::from_millis(100), ..impatient() };
    let service = TransactionService::builder(mode, Arc::new(chain), Arc::new(program));
    let service = service.options(options).start().await.expect("starts");
    election.lead(E1);
    let call = Bytes::from_static(b"\x00\x00\x08gm");
    let refused = service.send(SendRequest::call(call)).await.expect_err("no signature");
    let why = refused.to_string();
    assert!(why.contains("the signer's command") && why.contains("100ms"), "{why}");
}

/// A program that signs another nonce would let one request execute twice.
#[tokio::test]
async fn what_a_program_signs_is_of_the_account_nonce_and_call_that_were_asked() {
    let node = node().await;
    let (chain, signer) = signer(&node).await;
    let own = sign(&chain, &signer, 2).await.expect("signs");
    let later = sign(&chain, &signer, 3).await.expect("signs");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sign.sh");
    let command = format!("sh {}", path.display());
    let program = CommandSigner::new(signer.account().clone(), &command).expect("named");
    let program = program.encoding_for(&chain);
    let head = chain.head(signer.account()).await.expect("answers");
    let signs = async |raw: &[u8], nonce: u64, call: Option<Bytes>| {
        std::fs::write(&path, format!("echo 0x{}", hex::encode(raw))).expect("written");
        let call = call.as_deref();
        program.sign(Unsigned { nonce, tip: 0, call, head: &head, replaces: None }).await
    };
    let signed = signs(&own.raw, 2, Some(remark("gm"))).await.expect("as asked");
    assert_eq!(signed.hash, own.hash);
    signs(&own.raw, 2, None).await.expect("a no-op may be any call");
    // What the metadata cannot read is the program's word.
    signs(&[8, 1, 2], 2, Some(remark("gm"))).await.expect("believed");
    let foreign = foreign(&chain).await;
    let wrong: [(&[u8], u64, Option<Bytes>, &str); 4] = [
        (&later.raw, 2, Some(remark("gm")), "nonce 3, asked was 2"),
        (&later.raw, 2, None, "nonce 3, asked was 2"),
        (&own.raw, 2, Some(remark("gn")), "another call"),
        (&foreign, 0, Some(remark("gm")), "account 0x"),
    ];
    for (raw, nonce, call, why) in wrong {
        let refused = signs(raw, nonce, call).await;
        let Err(SignError::Mismatch(said)) = &refused else { panic!("{why}: {refused:?}") };
        assert!(said.contains(why), "{said}");
    }
}

/// Bytes that another account signed.
async fn foreign(chain: &SubstrateChain) -> Bytes {
    let bob = SubstrateSigner::new(chain, Key::from_suri("//Bob", Scheme::Sr25519).expect("a key"));
    sign(chain, &bob, 0).await.expect("signs").raw
}

#[tokio::test]
async fn an_expired_extrinsic_that_looks_badly_signed_is_expired_in_every_phase_of_its_era() {
    let mut node = node().await;
    let (chain, signer) = signer(&node).await;
    for _ in 0..3 {
        node.mine(&[]);
    }
    node.finalize();
    let signed = sign(&chain, &signer, 0).await.expect("signs");
    assert_eq!(signed.valid_until, Some(6), "born in block 3, for four blocks");
    let mut spoilt = signed.raw.to_vec();
    // A byte of the signature.
    spoilt[60] ^= 1;
    let spoilt = Bytes::from(spoilt);
    // While it is valid, a node that calls it bad is not believed.
    let outcome = refused(&mut node, &chain, signer.account(), &signed.raw, BAD_SIGNATURE).await;
    assert!(matches!(outcome, Outcome::Uncertain(_)), "{outcome:?}");
    for _ in 3..6 {
        node.mine(&[]);
    }
    for phase in 0..5 {
        node.mine(&[]);
        let account = signer.account();
        let outcome = refused(&mut node, &chain, account, &signed.raw, BAD_SIGNATURE).await;
        assert_eq!(outcome, Outcome::Expired, "phase {phase}");
        let outcome = refused(&mut node, &chain, account, &spoilt, BAD_SIGNATURE).await;
        assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
    }
}

#[tokio::test]
async fn bytes_that_no_runtime_can_read_are_refused_and_others_at_which_it_failed_are_not() {
    let mut node = node().await;
    let (chain, signer) = signer(&node).await;
    let signed = sign(&chain, &signer, 0).await.expect("signs");
    let failed = (1002, "wasm trap: wasm `unreachable` instruction executed");
    let outcome = refused(&mut node, &chain, signer.account(), &signed.raw, failed).await;
    assert!(matches!(outcome, Outcome::Uncertain(_)), "{outcome:?}");
    let mut cut = signed.raw.to_vec();
    cut.truncate(cut.len() - 1);
    let outcome = refused(&mut node, &chain, signer.account(), &cut.into(), failed).await;
    assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
}

#[tokio::test]
async fn after_a_runtime_upgrade_what_is_in_no_block_is_signed_anew() {
    let (db, mut node) = (database().await, node().await);
    let (chain, signer) = signer(&node).await;
    let again =
        SubstrateSigner::new(&chain, Key::from_suri("//Alice", Scheme::Ecdsa).expect("a key"))
            .mortal(Period::new(4));
    let (_election, service) = service(&db, &chain, signer).await;
    let mut handle = service.send(SendRequest::call(remark("gm"))).await.expect("accepted");
    let first = node.arrival().await;
    first.pool().status(json!("ready"));
    until(&mut handle, is(State::Ready)).await;
    node.ledger.lock().expect("unpoisoned").upgrades.push(1);
    node.mine(&[]);
    // The pool finds its signature wrong now.
    let old = Bytes::from(first.raw.clone());
    let (line, account) = (chain.clone(), again.account().clone());
    let submit = tokio::spawn(async move { line.submit(&account, 0, old).await });
    node.arrival().await.refuse(1010, "Invalid Transaction", BAD_SIGNATURE.1);
    let outcome = submit.await.expect("no panic").outcome;
    assert!(matches!(&outcome, Outcome::Unwanted(why) if why.contains("runtime")), "{outcome:?}");
    first.status(json!("invalid"));
    let second = node.arrival().await;
    let expected = sign(&chain, &again, 0).await.expect("signs");
    assert_eq!(second.raw, expected.raw, "the same call and nonce, for the new runtime");
    assert_ne!(second.raw, first.raw);
    finish(&node, &second, &[]);
    until(&mut handle, is(State::Finalized)).await;
}

/// Puts an extrinsic into a final block with these events, and says so.
fn finish(node: &ScriptedNode, arrived: &Arrived, events: &[u8]) {
    let block = node.mine(&[&arrived.raw]);
    let number = node.ledger.lock().expect("unpoisoned").blocks.len() - 1;
    node.ledger.lock().expect("unpoisoned").events.insert(number, events.to_vec());
    node.finalize();
    arrived.pool().status(json!({"inBlock": block})).status(json!({"finalized": block}));
}

/// `System.ExtrinsicSuccess` or `ExtrinsicFailed` of the first extrinsic of a block.
fn events(error: Option<[u8; 6]>) -> Vec<u8> {
    let mut bytes = vec![1 << 2, 0, 0, 0, 0, 0, 0, u8::from(error.is_some())];
    bytes.extend(error.into_iter().flatten());
    // Weight, class, whether it pays; no topics.
    bytes.extend([4, 0, 0, 0, 0]);
    bytes
}

#[tokio::test]
async fn a_failed_call_ends_as_reverted_with_the_modules_error() {
    let (db, mut node) = (database().await, node().await);
    let (chain, signer) = signer(&node).await;
    let (_election, service) = service(&db, &chain, signer).await;
    // The error of a module: System's, the sixth.
    let module = [3, 0, 5, 0, 0, 0];
    for (error, kind, said) in [
        (None, EndKind::Executed, None),
        (Some(module), EndKind::Reverted, Some("System.CallFiltered")),
    ] {
        let mut handle = service.send(SendRequest::call(remark("gm"))).await.expect("accepted");
        let arrived = node.arrival().await;
        finish(&node, &arrived, &events(error));
        let ended = timeout(Duration::from_secs(20), handle.ended()).await.expect("ends");
        let end = ended.expect("leads").note.end.expect("it ended");
        assert_eq!(end.kind, kind, "{end:?}");
        let reason = end.reason.as_deref();
        assert_eq!(reason.is_some(), said.is_some(), "{end:?}");
        assert!(reason.unwrap_or_default().starts_with(said.unwrap_or_default()), "{end:?}");
        assert!(end.block_number.is_some());
    }
}

#[tokio::test]
async fn a_transaction_that_costs_more_than_the_cap_is_not_accepted() {
    let (db, node) = (database().await, node().await);
    node.ledger.lock().expect("unpoisoned").fee = 1_000;
    let (chain, signer) = signer(&node).await;
    let signer = signer.max_fee(Some(999));
    let (_election, service) = service(&db, &chain, signer).await;
    let refused = service.send(SendRequest::call(remark("gm"))).await;
    let Err(SendError::Sign(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error, SignError::TooDear { cost: 1_000, cap: 999 });
    node.ledger.lock().expect("unpoisoned").fee = 999;
    service.send(SendRequest::call(remark("gm"))).await.expect("the chain asks for less now");
}

#[tokio::test]
async fn an_accepted_request_that_costs_too_much_to_be_signed_anew_says_so_and_goes_on_later() {
    let (db, mut node) = (database().await, node().await);
    node.ledger.lock().expect("unpoisoned").fee = 999;
    let (chain, signer) = signer(&node).await;
    let (_election, service) = service(&db, &chain, signer.max_fee(Some(999))).await;
    let mut handle = service.send(SendRequest::call(remark("gm"))).await.expect("accepted");
    let first = node.arrival().await;
    first.pool().status(json!("ready"));
    until(&mut handle, is(State::Ready)).await;
    node.ledger.lock().expect("unpoisoned").fee = 1_000;
    // Past its last valid block.
    for _ in 0..6 {
        node.mine(&[]);
    }
    node.finalize();
    let told = async {
        while !handle.state().note.answer.as_deref().is_some_and(|said| said.contains("999")) {
            handle.changed().await.expect("leads");
        }
    };
    timeout(Duration::from_secs(20), told).await.expect("it names the cap");
    assert!(!handle.state().ended());
    node.ledger.lock().expect("unpoisoned").fee = 999;
    let anew = node.arrival().await;
    assert_ne!(anew.raw, first.raw);
    finish(&node, &anew, &events(None));
    until(&mut handle, is(State::Finalized)).await;
}

#[tokio::test]
async fn a_connection_without_room_for_a_subscription_is_followed_by_a_new_one() {
    let mut node = node().await;
    let (chain, signer) = signer(&node).await;
    let signed = sign(&chain, &signer, 0).await.expect("signs");
    let (line, account) = (chain.clone(), signer.account().clone());
    let submit = tokio::spawn(async move { line.submit(&account, 0, signed.raw).await });
    let first = node.arrival().await;
    first.refuse(-32006, "Too many subscriptions on the connection", "Exceeded max limit of 1");
    let second = node.arrival().await;
    second.pool();
    assert_ne!(first.connection, second.connection);
    assert_eq!(submit.await.expect("no panic").outcome, Outcome::Pooled);
}

#[tokio::test]
async fn bytes_that_the_pool_banned_are_signed_anew_under_their_nonce() {
    let (db, mut node) = (database().await, node().await);
    let (chain, signer) = signer(&node).await;
    let (_election, service) = service(&db, &chain, signer).await;
    let mut handle = service.send(SendRequest::call(remark("gm"))).await.expect("accepted");
    let first = node.arrival().await;
    first.pool().status(json!("dropped"));
    let again = node.arrival().await;
    assert_eq!(again.raw, first.raw, "dropped is not refused: the same bytes");
    // A later birth, so that the next form is another one.
    node.mine(&[]);
    node.finalize();
    again.refuse(1012, "Transaction is temporarily banned", "");
    let anew = loop {
        let arrived = node.arrival().await;
        if arrived.raw != first.raw {
            break arrived;
        }
        arrived.refuse(1012, "Transaction is temporarily banned", "");
    };
    assert_eq!(chain.inspect(&anew.raw).expect("an extrinsic").nonce, Some(0), "the same nonce");
    finish(&node, &anew, &events(None));
    until(&mut handle, is(State::Finalized)).await;
}

#[tokio::test]
async fn where_states_are_gone_blocks_are_read_for_the_extrinsic() {
    let node = node().await;
    let (chain, signer) = signer(&node).await;
    let signed = sign(&chain, &signer, 0).await.expect("signs");
    node.mine(&[]);
    node.mine(&[&signed.raw]);
    for _ in 0..10 {
        node.mine(&[]);
    }
    node.finalize();
    node.ledger.lock().expect("unpoisoned").pruned_below = 12;
    let sought = |attempts| Sought { nonce: 0, attempts, since: 0, block: None };
    let all = [sought(vec![signed.hash]), sought(vec![])];
    let block = block_hash(2).parse().expect("a hash");
    let receipt = Some(Receipt { number: Some(2), ..Receipt::default() });
    let ours = Located::InBlock { hash: signed.hash, block, finalized: true, receipt };
    let found = chain.locate(signer.account(), &all).await;
    assert_eq!(found, [ours, Located::Usurped { by: None }]);
}
