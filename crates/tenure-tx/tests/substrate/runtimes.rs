//! The chain's runtimes, as a node before several of them reads and keeps them.

use std::time::Duration;

use bytes::Bytes;
use frame_metadata::{RuntimeMetadata, RuntimeMetadataPrefixed};
use parity_scale_codec::{Decode as _, Encode as _};
use tenure_testkit::substrate::{ScriptedNode, storagehub_parachain};
use tenure_tx::account::{Signed, Signer as _, Unsigned};
use tenure_tx::chain::substrate::{Scheme, SubstrateChain, SubstrateSigner, extrinsic_hash};
use tenure_tx::chain::{Chain as _, ChainError, Located, Outcome, Sought};

use crate::stage::{remark, signer};

const ALICE: (&str, Scheme) = ("//Alice", Scheme::Ecdsa);

/// The same runtime, with nonce and tip in the other order.
fn swapped() -> Vec<u8> {
    let mut all = RuntimeMetadataPrefixed::decode(&mut &storagehub_parachain()[..]).expect("ours");
    let RuntimeMetadata::V14(metadata) = &mut all.1 else { panic!("another version") };
    let extensions = &mut metadata.extrinsic.signed_extensions;
    let place = |name| extensions.iter().position(|one| one.identifier == name).expect(name);
    let (nonce, tip) = (place("CheckNonce"), place("ChargeTransactionPayment"));
    extensions.swap(nonce, tip);
    all.encode()
}

async fn node() -> ScriptedNode {
    let node = ScriptedNode::start().await;
    node.ledger.lock().expect("unpoisoned").metadata = storagehub_parachain();
    node
}

fn group(node: &ScriptedNode) -> (SubstrateChain, SubstrateSigner) {
    let chain = SubstrateChain::new(&node.url, Duration::from_secs(5)).expect("a URL");
    let signer = signer(&chain, ALICE, 64);
    (chain, signer)
}

/// Nonce 5, tip 0.
async fn sign(chain: &SubstrateChain, signer: &SubstrateSigner) -> Signed {
    let head = chain.head(signer.account()).await.expect("answers");
    let call = remark("gm");
    let unsigned = Unsigned { nonce: 5, tip: 0, call: Some(&call), head: &head, replaces: None };
    signer.sign(unsigned).await.expect("signs")
}

fn read(chain: &SubstrateChain, raw: &Bytes) -> (Option<u64>, Option<u128>) {
    let seen = chain.inspect(raw).expect("an extrinsic");
    (seen.nonce, seen.tip)
}

#[tokio::test]
async fn bytes_are_read_by_the_present_runtime_also_when_an_older_one_was_read_last() {
    let node = node().await;
    let old = b"\x08ab";
    node.mine(&[old]);
    node.mine(&[]);
    node.finalize();
    {
        let mut ledger = node.ledger.lock().expect("unpoisoned");
        ledger.upgrades.push(2);
        ledger.later_metadata = Some((2, swapped()));
    }
    let (chain, signer) = group(&node);
    let signed = sign(&chain, &signer).await;
    assert_eq!(read(&chain, &signed.raw), (Some(5), Some(0)));
    // The receipt of a block before the upgrade is read with the runtime of its time.
    let attempts = vec![extrinsic_hash(old)];
    let sought = [Sought { nonce: 0, attempts, since: 0, block: None }];
    let located = chain.locate(signer.account(), &sought).await;
    assert!(matches!(located[..], [Located::InBlock { finalized: true, .. }]), "{located:?}");
    assert_eq!(read(&chain, &signed.raw), (Some(5), Some(0)), "not tip 5 at nonce 0");
}

#[tokio::test]
async fn bytes_are_read_by_the_present_runtime_of_a_chain_that_was_reset() {
    let node = node().await;
    (0..3).for_each(|_| drop(node.mine(&[])));
    {
        let mut ledger = node.ledger.lock().expect("unpoisoned");
        ledger.upgrades.push(2);
        ledger.later_metadata = Some((2, swapped()));
    }
    let (chain, signer) = group(&node);
    let signed = sign(&chain, &signer).await;
    assert_eq!(read(&chain, &signed.raw), (Some(5), Some(0)));
    // It begins anew, below the block that was seen, with another runtime, and passes that block.
    {
        let mut ledger = node.ledger.lock().expect("unpoisoned");
        ledger.blocks.truncate(2);
        (ledger.upgrades, ledger.later_metadata) = (Vec::new(), None);
    }
    (0..3).for_each(|_| drop(node.mine(&[])));
    let signed = sign(&chain, &signer).await;
    assert_eq!(read(&chain, &signed.raw), (Some(5), Some(0)), "not tip 5 at nonce 0");
}

#[tokio::test]
async fn metadata_that_change_under_the_same_version_are_read_anew() {
    let node = node().await;
    let (chain, signer) = group(&node);
    let first = sign(&chain, &signer).await;
    node.ledger.lock().expect("unpoisoned").later_metadata = Some((1, swapped()));
    node.mine(&[]);
    let second = sign(&chain, &signer).await;
    assert_ne!(second.raw, first.raw);
    // The signatures differ, and nonce and tip stand in the other order: 5 and 0, as compact numbers.
    let has = |signed: &Signed, part: [u8; 2]| signed.raw.windows(2).rposition(|two| two == part);
    assert!(has(&first, [5 << 2, 0]).is_some() && has(&second, [0, 5 << 2]).is_some());
    assert_eq!(read(&chain, &second.raw), (Some(5), Some(0)));
}

#[tokio::test]
async fn metadata_that_could_not_be_had_are_asked_for_again() {
    let node = node().await;
    let (chain, signer) = group(&node);
    let (elsewhere, own) = group(&node);
    let signed = sign(&elsewhere, &own).await;
    node.ledger.lock().expect("unpoisoned").failing.push("state_getMetadata");
    chain.head(signer.account()).await.expect("a head needs no metadata");
    assert_eq!(read(&chain, &signed.raw), (None, None));
    node.ledger.lock().expect("unpoisoned").failing.clear();
    chain.head(signer.account()).await.expect("answers");
    assert_eq!(read(&chain, &signed.raw), (Some(5), Some(0)));
}

#[tokio::test]
async fn of_metadata_that_is_too_new_an_older_version_is_asked_for() {
    let (plain, newer) = (node().await, ScriptedNode::start().await);
    let (chain, signer) = group(&plain);
    let expected = sign(&chain, &signer).await;
    let new = b"meta\x10 and what this version cannot read".to_vec();
    newer.ledger.lock().expect("unpoisoned").metadata = new;
    let (chain, _) = group(&newer);
    let refused = chain.scheme(None).await.expect_err("nothing else is offered");
    assert!(refused.to_string().contains("version 16"), "{refused}");
    newer.ledger.lock().expect("unpoisoned").offered.insert(14, storagehub_parachain());
    let (chain, signer) = group(&newer);
    assert_eq!(sign(&chain, &signer).await.raw, expected.raw);
}

#[tokio::test]
async fn a_node_that_comes_back_as_one_of_another_chain_gets_nothing() {
    let mut node = node().await;
    let (chain, signer) = group(&node);
    chain.identity().await.expect("answers");
    let signed = sign(&chain, &signer).await;
    let begin_anew = |genesis: Option<usize>| {
        let genesis = genesis.map(tenure_testkit::substrate::block_hash);
        node.ledger.lock().expect("unpoisoned").genesis = genesis;
        node.cut();
    };
    begin_anew(Some(999));
    // The first answer may still be that the connection broke.
    tenure_testkit::until("a refusal", async || {
        let foreign = |error| matches!(error, Err(ChainError::Foreign { .. }));
        foreign(chain.head(signer.account()).await.map(drop))
            && foreign(chain.identity().await.map(drop))
    })
    .await;
    let outcome = chain.submit(signer.account(), 5, signed.raw.clone()).await.outcome;
    let Outcome::Uncertain(said) = &outcome else { panic!("{outcome:?}") };
    assert!(said.contains("another chain"), "{said}");
    // The chain is back.
    begin_anew(None);
    tenure_testkit::until("the chain", async || chain.identity().await.is_ok()).await;
    assert!(node.arrivals.try_recv().is_err(), "nothing was submitted");
}
