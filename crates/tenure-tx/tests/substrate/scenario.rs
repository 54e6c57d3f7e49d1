//! What a real node does to extrinsics, and what the adapter makes of it: one list, played on the
//! development node (`make test-substrate`) and from its recordings (`make test`).

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tenure_testkit::substrate::ScriptedNode;
use tenure_testkit::substrate::development::runtime;
use tenure_tx::account::{SignError, Signer as _, Unsigned};
use tenure_tx::chain::substrate::{Scheme, SubstrateChain, address};
use tenure_tx::chain::{Chain as _, ChainError, Located, Outcome, Receipt, Shortfall};
use tenure_tx::status::TransactionStatus::{
    Dropped, Finalized, Future, InBlock, Invalid, Ready, Retracted, Usurped,
};
use tenure_tx::status::unhex;

use crate::stage::{Setting, Stage, USUAL, call, remark, signer};

#[tokio::test]
async fn a_remark_goes_to_finality_and_its_fee_is_known_before() {
    let stage = Stage::open("a_remark_goes_to_finality_and_its_fee_is_known_before", USUAL).await;
    let one = stage.sign(0, 5, &remark("gm")).await;
    let raw = format!("0x{}", hex::encode(&one.raw));
    let info = stage.call("payment_queryInfo", json!([raw])).await;
    let fee: u128 = info["partialFee"].as_str().and_then(|fee| fee.parse().ok()).expect("a fee");
    let thrifty = signer(&stage.chain, USUAL.key, 64).max_fee(Some(fee + 4));
    let dear = stage.sign_with(&thrifty, 0, 5, &remark("gm")).await.expect_err("above the cap");
    assert_eq!(dear, SignError::TooDear { cost: fee + 5, cap: fee + 4 });
    let mut watch = stage.pooled(0, &one).await;
    assert_eq!(watch.next().await, Ready);
    assert_eq!(stage.refused(0, &one.raw).await, Outcome::AlreadyKnown);
    assert_eq!(stage.locate(0, &[one.hash]).await, Located::Free);
    let block = stage.block().await;
    assert_eq!(watch.next().await, InBlock(block));
    let head = stage.head().await;
    assert_eq!((head.best_nonce, head.finalized_nonce, head.pool_nonce), (1, 0, 1));
    let placed =
        |finalized, receipt| Located::InBlock { hash: one.hash, block, finalized, receipt };
    assert_eq!(stage.locate(0, &[one.hash]).await, placed(false, None));
    stage.finalize(block).await;
    let end = watch.report().await;
    assert_eq!(end.status, Finalized(block));
    // What was paid is what the node had said, and the tip.
    let wanted = Receipt { number: Some(1), success: Some(true), reason: None, fee: Some(fee + 5) };
    assert_eq!(end.receipt, Some(wanted.clone()));
    assert_eq!(stage.locate(0, &[one.hash]).await, placed(true, Some(wanted)));
    // The pool may keep what is final for a while.
    let again = stage.refused(0, &one.raw).await;
    assert!(matches!(again, Outcome::Outdated | Outcome::AlreadyKnown), "{again:?}");
    // Another content under this nonce: it is told by what it was usurped.
    assert_eq!(stage.locate(0, &[]).await, Located::Usurped { by: Some(one.hash) });
    stage.close();
}

#[tokio::test]
async fn extrinsics_out_of_order_wait_unlisted_for_the_first() {
    let stage = Stage::open("extrinsics_out_of_order_wait_unlisted_for_the_first", USUAL).await;
    let mut all = Vec::new();
    for nonce in 0..3 {
        all.push(stage.sign(nonce, 0, &remark(&format!("number {nonce}"))).await);
    }
    let mut third = stage.pooled(2, &all[2]).await;
    assert_eq!(third.next().await, Future);
    let mut second = stage.pooled(1, &all[1]).await;
    assert_eq!(second.next().await, Future);
    assert_eq!(stage.listed().await, 0, "what waits is not listed");
    assert_eq!(stage.head().await.pool_nonce, 0);
    assert_eq!(stage.refused(2, &all[2].raw).await, Outcome::AlreadyKnown);
    let mut first = stage.pooled(0, &all[0]).await;
    for watch in [&mut first, &mut second, &mut third] {
        assert_eq!(watch.next().await, Ready);
    }
    assert_eq!(stage.head().await.pool_nonce, 3);
    let block = stage.block().await;
    stage.finalize(block).await;
    for watch in [&mut first, &mut second, &mut third] {
        assert_eq!(watch.next().await, InBlock(block));
        let end = watch.report().await;
        assert_eq!(end.status, Finalized(block));
        assert_eq!(end.receipt.expect("told with it").success, Some(true));
    }
    stage.close();
}

#[tokio::test]
async fn a_ready_extrinsic_is_replaced_by_a_higher_tip_only() {
    let stage = Stage::open("a_ready_extrinsic_is_replaced_by_a_higher_tip_only", USUAL).await;
    let one = stage.sign(0, 1_000_000, &remark("one")).await;
    let mut watch = stage.pooled(0, &one).await;
    assert_eq!(watch.next().await, Ready);
    let low = stage.sign(0, 0, &remark("low")).await;
    let outcome = stage.refused(0, &low.raw).await;
    assert!(matches!(outcome, Outcome::Underpriced(Shortfall::Outbid, _)), "{outcome:?}");
    let high = stage.sign(0, 100_000_000_000, &remark("high")).await;
    let mut winner = stage.pooled(0, &high).await;
    assert_eq!(watch.next().await, Usurped(Some(high.hash)));
    assert_eq!(winner.next().await, Ready);
    let block = stage.block().await;
    assert_eq!(winner.next().await, InBlock(block));
    stage.finalize(block).await;
    assert_eq!(winner.next().await, Finalized(block));
    let both = stage.locate(0, &[one.hash, high.hash]).await;
    assert!(matches!(both, Located::InBlock { hash, finalized: true, .. } if hash == high.hash));
    let ours = stage.locate(0, &[one.hash]).await;
    assert_eq!(ours, Located::Usurped { by: Some(high.hash) });
    stage.close();
}

#[tokio::test]
async fn waiting_extrinsics_of_one_nonce_wait_side_by_side_and_the_best_wins() {
    let name = "waiting_extrinsics_of_one_nonce_wait_side_by_side_and_the_best_wins";
    let stage = Stage::open(name, USUAL).await;
    let low = stage.sign(1, 1_000_000, &remark("low")).await;
    let high = stage.sign(1, 100_000_000_000, &remark("high")).await;
    let mut losing = stage.pooled(1, &low).await;
    let mut winning = stage.pooled(1, &high).await;
    assert_eq!((losing.next().await, winning.next().await), (Future, Future));
    let first = stage.sign(0, 0, &remark("first")).await;
    let mut watch = stage.pooled(0, &first).await;
    assert_eq!((watch.next().await, winning.next().await), (Ready, Ready));
    let mut last = losing.next().await;
    if last == Ready {
        last = losing.next().await;
    }
    // The pool names the extrinsic that came last, not the one that has the nonce now.
    assert_eq!(last, Usurped(Some(first.hash)));
    let block = stage.block().await;
    assert_eq!(winning.next().await, InBlock(block));
    stage.close();
}

#[tokio::test]
async fn a_full_pool_is_busy_and_takes_the_same_bytes_when_there_is_room() {
    let setting = Setting { arguments: &["--pool-limit", "3", "--ban-seconds", "1800"], ..USUAL };
    let name = "a_full_pool_is_busy_and_takes_the_same_bytes_when_there_is_room";
    let stage = Stage::open(name, setting).await;
    let mut watches = Vec::new();
    for nonce in 0..3 {
        let one = stage.sign(nonce, 0, &remark(&format!("number {nonce}"))).await;
        let mut watch = stage.pooled(nonce, &one).await;
        assert_eq!(watch.next().await, Ready);
        watches.push(watch);
    }
    let fourth = stage.sign(3, 0, &remark("number 3")).await;
    let outcome = stage.refused(3, &fourth.raw).await;
    assert!(matches!(&outcome, Outcome::Busy(why) if why.contains("1016")), "{outcome:?}");
    let block = stage.block().await;
    for watch in &mut watches {
        assert_eq!(watch.next().await, InBlock(block));
    }
    stage.finalize(block).await;
    let mut watch = stage.pooled(3, &fourth).await;
    assert_eq!(watch.next().await, Ready);
    let block = stage.block().await;
    assert_eq!(watch.next().await, InBlock(block));
    stage.close();
}

/// A better one of the same account cannot go without those before it: the pool drops them all, and
/// the better one with them.
#[tokio::test]
async fn what_a_full_pool_drops_is_known_to_it_or_banned_and_never_refused() {
    let setting = Setting { arguments: &["--pool-limit", "3", "--ban-seconds", "1800"], ..USUAL };
    let stage =
        Stage::open("what_a_full_pool_drops_is_known_to_it_or_banned_and_never_refused", setting)
            .await;
    let mut all = Vec::new();
    for nonce in 0..3 {
        let one = stage.sign(nonce, 0, &remark(&format!("number {nonce}"))).await;
        let mut watch = stage.pooled(nonce, &one).await;
        assert_eq!(watch.next().await, Ready);
        all.push((one, watch));
    }
    let better = stage.sign(3, 100_000_000_000, &remark("number 3")).await;
    let outcome = stage.refused(3, &better.raw).await;
    assert!(matches!(outcome, Outcome::Busy(_)), "{outcome:?}");
    for (_, watch) in &mut all {
        assert_eq!(watch.next().await, Dropped);
    }
    assert_eq!(stage.listed().await, 0);
    // For a moment the pool has it still; after that these bytes are banned, and are signed anew.
    let again = stage.refused(0, &all[0].0.raw).await;
    assert!(matches!(again, Outcome::AlreadyKnown | Outcome::Unwanted(_)), "{again:?}");
    stage.close();
}

/// A pool takes bytes that it was told to let go of no more for a while.
#[tokio::test]
async fn banned_bytes_are_unwanted_until_they_are_signed_anew() {
    // The pool that follows forks has such bytes still, and says so instead.
    let setting =
        Setting { arguments: &["--pool", "single-state", "--ban-seconds", "1800"], ..USUAL };
    let stage = Stage::open("banned_bytes_are_unwanted_until_they_are_signed_anew", setting).await;
    let one = stage.sign(0, 0, &remark("gm")).await;
    let mut watch = stage.pooled(0, &one).await;
    assert_eq!(watch.next().await, Ready);
    let raw = json!({"extrinsic": format!("0x{}", hex::encode(&one.raw))});
    stage.call("author_removeExtrinsic", json!([[raw]])).await;
    assert_eq!(watch.next().await, Invalid(None));
    let outcome = stage.refused(0, &one.raw).await;
    assert!(matches!(&outcome, Outcome::Unwanted(why) if why.contains("1012")), "{outcome:?}");
    // Another birth makes other bytes of the same content.
    stage.pass(1).await;
    let anew = stage.sign(0, 0, &remark("gm")).await;
    assert_ne!(anew.hash, one.hash);
    let mut watch = stage.pooled(0, &anew).await;
    assert_eq!(watch.next().await, Ready);
    let block = stage.block().await;
    assert_eq!(watch.next().await, InBlock(block));
    stage.finalize(block).await;
    assert_eq!(watch.next().await, Finalized(block));
    // Banned as well, for it is in a block: then its nonce is what counts.
    let again = stage.refused(0, &anew.raw).await;
    assert!(matches!(again, Outcome::Outdated | Outcome::AlreadyKnown), "{again:?}");
    let outcome = stage.refused(0, &one.raw).await;
    assert_eq!(outcome, Outcome::Outdated, "banned, and its nonce is used");
    stage.close();
}

/// Beyond the life of an extrinsic a real runtime calls it badly signed in all phases but one.
#[tokio::test]
async fn an_extrinsic_is_expired_in_every_phase_of_its_era() {
    let setting = Setting { period: 4, ..USUAL };
    let stage = Stage::open("an_extrinsic_is_expired_in_every_phase_of_its_era", setting).await;
    stage.pass(1).await;
    let one = stage.sign(0, 0, &remark("gm")).await;
    assert_eq!(one.valid_until, Some(4), "born in block 1, for four blocks");
    let mut spoilt = one.raw.to_vec();
    // A byte of the signature.
    spoilt[60] ^= 1;
    let spoilt = Bytes::from(spoilt);
    for best in 1..12 {
        if best < 4 {
            let outcome = stage.refused(0, &spoilt).await;
            assert!(matches!(outcome, Outcome::Refused(_)), "at {best}: {outcome:?}");
        } else {
            assert_eq!(stage.refused(0, &one.raw).await, Outcome::Expired, "at {best}");
            // In one phase of four the node says that it is too old before it looks at the signature.
            let outcome = stage.refused(0, &spoilt).await;
            let is_early = best % 4 == 0 && outcome == Outcome::Expired;
            assert!(is_early || matches!(outcome, Outcome::Refused(_)), "at {best}: {outcome:?}");
        }
        stage.pass(1).await;
    }
    // Signed anew it is taken.
    let anew = stage.sign(0, 0, &remark("gm")).await;
    let mut watch = stage.pooled(0, &anew).await;
    assert_eq!(watch.next().await, Ready);
    stage.close();
}

#[tokio::test]
async fn an_extrinsic_that_expires_while_it_waits_is_dropped() {
    let setting = Setting { period: 4, ..USUAL };
    let stage = Stage::open("an_extrinsic_that_expires_while_it_waits_is_dropped", setting).await;
    let one = stage.sign(1, 0, &remark("gm")).await;
    let mut watch = stage.pooled(1, &one).await;
    assert_eq!(watch.next().await, Future);
    for _ in 0..8 {
        stage.pass(1).await;
    }
    assert_eq!(watch.next().await, Dropped);
    stage.close();
}

#[tokio::test]
async fn a_fork_under_the_pool_that_follows_forks_is_told_by_a_second_block() {
    let name = "a_fork_under_the_pool_that_follows_forks_is_told_by_a_second_block";
    let stage = Stage::open(name, USUAL).await;
    let root = stage.pass(1).await;
    let one = stage.sign(0, 0, &remark("gm")).await;
    let mut watch = stage.pooled(0, &one).await;
    assert_eq!(watch.next().await, Ready);
    let left = stage.block().await;
    assert_eq!(watch.next().await, InBlock(left));
    let taken = stage.block_on(root).await;
    let best = stage.block_on(taken).await;
    stage.maintained(best, false).await;
    assert_eq!(watch.next().await, InBlock(taken));
    let now = stage.locate(0, &[one.hash]).await;
    assert!(matches!(now, Located::InBlock { block, .. } if block == taken), "{now:?}");
    stage.finalize(best).await;
    assert_eq!(watch.next().await, Finalized(taken));
    stage.close();
}

#[tokio::test]
async fn a_fork_under_the_older_pool_is_told_as_retracted() {
    let setting = Setting { arguments: &["--pool", "single-state"], ..USUAL };
    let stage = Stage::open("a_fork_under_the_older_pool_is_told_as_retracted", setting).await;
    let root = stage.pass(1).await;
    let one = stage.sign(0, 0, &remark("gm")).await;
    let mut watch = stage.pooled(0, &one).await;
    assert_eq!(watch.next().await, Ready);
    let left = stage.block().await;
    assert_eq!(watch.next().await, InBlock(left));
    let other = stage.block_on(root).await;
    let best = stage.block_on(other).await;
    stage.maintained(best, false).await;
    assert_eq!(watch.next().await, Retracted(left));
    assert_eq!(stage.locate(0, &[one.hash]).await, Located::Free);
    assert_eq!(watch.next().await, Ready);
    let taken = stage.block().await;
    assert_eq!(watch.next().await, InBlock(taken));
    stage.finalize(taken).await;
    assert_eq!(watch.next().await, Finalized(taken));
    stage.close();
}

#[tokio::test]
async fn bytes_that_no_runtime_reads_are_refused() {
    let stage = Stage::open("bytes_that_no_runtime_reads_are_refused", USUAL).await;
    let one = stage.sign(0, 0, &remark("gm")).await;
    // Without its last byte: the length at its beginning is wrong.
    let short = one.raw.slice(..one.raw.len() - 1);
    // As long as it says, and of a pallet that is not there.
    let mut unknown = one.raw.to_vec();
    let at = unknown.len() - 5;
    unknown[at] = 0xee;
    for (raw, code) in [(short, "1001"), (Bytes::from(unknown), "1002")] {
        let outcome = stage.refused(0, &raw).await;
        let Outcome::Refused(why) = outcome else { panic!("{code}: {outcome:?}") };
        assert!(why.contains(code), "{why}");
        assert!(!why.contains("backtrace"), "a failing runtime's page of words is cut: {why}");
    }
    stage.close();
}

#[tokio::test]
async fn where_states_are_gone_the_blocks_tell() {
    let setting = Setting { arguments: &["--states", "4"], ..USUAL };
    let stage = Stage::open("where_states_are_gone_the_blocks_tell", setting).await;
    let one = stage.sign(0, 0, &remark("gm")).await;
    let mut watch = stage.pooled(0, &one).await;
    assert_eq!(watch.next().await, Ready);
    let block = stage.block().await;
    stage.finalize(block).await;
    for _ in 0..12 {
        stage.pass(1).await;
    }
    let found = stage.locate(0, &[one.hash]).await;
    // Neither success nor fee: the events are gone with the state.
    let receipt = Some(Receipt { number: Some(1), ..Receipt::default() });
    let wanted = Located::InBlock { hash: one.hash, block, finalized: true, receipt };
    assert_eq!(found, wanted);
    assert_eq!(stage.locate(0, &[]).await, Located::Usurped { by: None });
    stage.close();
}

#[tokio::test]
async fn a_connection_without_room_for_a_subscription_is_followed_by_another() {
    let name = "a_connection_without_room_for_a_subscription_is_followed_by_another";
    let setting = Setting { arguments: &["--subscriptions", "1"], ..USUAL };
    let stage = Stage::open(name, setting).await;
    let (one, two) =
        (stage.sign(0, 0, &remark("one")).await, stage.sign(1, 0, &remark("two")).await);
    let mut first = stage.pooled(0, &one).await;
    assert_eq!(stage.gateway.connections(), 1);
    let mut second = stage.pooled(1, &two).await;
    assert_eq!(stage.gateway.connections(), 2);
    assert_eq!((first.next().await, second.next().await), (Ready, Ready));
    // The watch on the full connection goes on.
    let block = stage.block().await;
    assert_eq!((first.next().await, second.next().await), (InBlock(block), InBlock(block)));
    stage.close();
}

#[tokio::test]
async fn a_restarted_node_has_its_blocks_and_no_pool() {
    let setting = Setting { arguments: &["--folder", "FOLDER"], ..USUAL };
    let stage = Stage::open("a_restarted_node_has_its_blocks_and_no_pool", setting).await;
    let one = stage.sign(0, 0, &remark("one")).await;
    let mut watch = stage.pooled(0, &one).await;
    assert_eq!(watch.next().await, Ready);
    let block = stage.block().await;
    assert_eq!(watch.next().await, InBlock(block));
    stage.finalize(block).await;
    assert_eq!(watch.next().await, Finalized(block));
    let two = stage.sign(1, 0, &remark("two")).await;
    let mut watch = stage.pooled(1, &two).await;
    assert_eq!(watch.next().await, Ready);
    stage.gateway.restart().await;
    watch.ended().await;
    let head = stage.head_after_a_break().await;
    assert_eq!((head.finalized.hash, head.finalized_nonce, head.pool_nonce), (block, 1, 1));
    let mut watch = stage.pooled(1, &two).await;
    assert_eq!(watch.next().await, Ready);
    let block = stage.block().await;
    assert_eq!(watch.next().await, InBlock(block));
    stage.finalize(block).await;
    assert_eq!(watch.next().await, Finalized(block));
    stage.close();
}

#[tokio::test]
async fn what_was_signed_before_an_upgrade_is_unwanted_and_signed_anew_by_the_new_metadata() {
    let name = "what_was_signed_before_an_upgrade_is_unwanted_and_signed_anew_by_the_new_metadata";
    let stage = Stage::open(name, USUAL).await;
    let code = std::fs::read(runtime("dev32-next")).expect("the next runtime");
    let code = json!({"System": {"set_code": {"code": format!("0x{}", hex::encode(code))}}});
    let weight = json!({"ref_time": 0, "proof_size": 0});
    let args = json!({"call": code, "weight": weight});
    let upgrade = stage.sign(0, 0, &call("Sudo", "sudo_unchecked_weight", args)).await;
    let old = stage.sign(1, 0, &remark("old")).await;
    let mut watch = stage.pooled(0, &upgrade).await;
    assert_eq!(watch.next().await, Ready);
    let block = stage.block().await;
    assert_eq!(watch.next().await, InBlock(block));
    stage.finalize(block).await;
    let end = watch.report().await;
    assert_eq!(end.receipt.expect("told with it").success, Some(true));
    let outcome = stage.refused(1, &old.raw).await;
    assert!(matches!(&outcome, Outcome::Unwanted(why) if why.contains("runtime")), "{outcome:?}");
    let anew = stage.sign(1, 0, &remark("old")).await;
    let mut watch = stage.pooled(1, &anew).await;
    assert_eq!(watch.next().await, Ready);
    let block = stage.block().await;
    assert_eq!(watch.next().await, InBlock(block));
    stage.finalize(block).await;
    let end = watch.report().await;
    assert_eq!(end.status, Finalized(block));
    assert_eq!(end.receipt.expect("told with it").success, Some(true));
    stage.close();
}

#[tokio::test]
async fn an_account_without_funds_is_told_so() {
    let setting = Setting { key: ("//Nothing", Scheme::Ecdsa), ..USUAL };
    let stage = Stage::open("an_account_without_funds_is_told_so", setting).await;
    let one = stage.sign(0, 0, &remark("gm")).await;
    let outcome = stage.refused(0, &one.raw).await;
    assert!(matches!(outcome, Outcome::Unfunded(_)), "{outcome:?}");
    stage.close();
}

#[tokio::test]
async fn a_call_that_failed_is_told_with_its_modules_error() {
    let stage = Stage::open("a_call_that_failed_is_told_with_its_modules_error", USUAL).await;
    let too_much = json!({"dest": {"Id": address(stage.signer.account())},
        "value": "2000000000000000000"});
    let calls = [
        (
            call("System", "apply_authorized_upgrade", json!({"code": "0x00"})),
            "System.NothingAuthorized",
        ),
        (call("Balances", "transfer_allow_death", too_much), "Token.FundsUnavailable"),
        (
            call(
                "Balances",
                "force_adjust_total_issuance",
                json!({"direction": "Increase", "delta": 1}),
            ),
            "BadOrigin",
        ),
    ];
    for (nonce, (call, wanted)) in (0..).zip(calls) {
        let one = stage.sign(nonce, 0, &call).await;
        let mut watch = stage.pooled(nonce, &one).await;
        assert_eq!(watch.next().await, Ready);
        let block = stage.block().await;
        assert_eq!(watch.next().await, InBlock(block));
        stage.finalize(block).await;
        let receipt = watch.report().await.receipt.expect("told with it");
        assert_eq!(receipt.success, Some(false), "{wanted}");
        let reason = receipt.reason.expect("it says why");
        assert!(reason.starts_with(wanted), "{reason}");
        assert!(receipt.fee.is_some_and(|fee| fee > 0), "a failed call is paid for");
    }
    stage.close();
}

#[tokio::test]
async fn accounts_of_twenty_bytes_sign_as_ethereum_does() {
    // A key of the development chains of this kind.
    let alith = "0x5fb92d6e98884f76de468fa3f6278f8807c48bebc13595d45af5bdc4da702133";
    let setting = Setting { runtime: "dev20", key: (alith, Scheme::Ethereum), ..USUAL };
    let stage = Stage::open("accounts_of_twenty_bytes_sign_as_ethereum_does", setting).await;
    assert_eq!(stage.chain.scheme(None).await, Ok(Scheme::Ethereum));
    let other = stage.chain.scheme(Some(Scheme::Ecdsa)).await;
    assert!(matches!(other, Err(ChainError::Unsupported(_))), "{other:?}");
    let inner = json!({"System": {"remark": {"remark": "0x676d"}}});
    let calls = [
        (remark("gm"), None),
        (call("Sudo", "sudo", json!({"call": inner})), Some("Sudo.RequireSudo")),
    ];
    for (nonce, (call, wanted)) in (0..).zip(calls) {
        let one = stage.sign(nonce, 0, &call).await;
        let mut watch = stage.pooled(nonce, &one).await;
        assert_eq!(watch.next().await, Ready);
        let block = stage.block().await;
        assert_eq!(watch.next().await, InBlock(block));
        stage.finalize(block).await;
        let receipt = watch.report().await.receipt.expect("told with it");
        assert_eq!(receipt.success, Some(wanted.is_none()));
        let reason = receipt.reason.unwrap_or_default();
        assert!(reason.starts_with(wanted.unwrap_or_default()), "{reason}");
    }
    stage.close();
}

#[tokio::test]
async fn metadata_of_version_15_sign_the_same_as_those_of_version_14() {
    let stage =
        Stage::open("metadata_of_version_15_sign_the_same_as_those_of_version_14", USUAL).await;
    let usual = stage.call("state_getMetadata", json!([])).await;
    let usual = unhex(usual.as_str().expect("text")).expect("hex");
    let params = json!(["Metadata_metadata_at_version", "0x0f000000"]);
    let newer = stage.call("state_call", params).await;
    let newer = unhex(newer.as_str().expect("text")).expect("hex");
    // An option, and the length in four bytes.
    let newer = newer[5..].to_vec();
    assert_eq!((usual[4], newer[4]), (14, 15));
    let mut signed = Vec::new();
    for metadata in [usual, newer] {
        let node = ScriptedNode::start().await;
        node.ledger.lock().expect("unpoisoned").metadata = metadata;
        let chain = SubstrateChain::new(&node.url, Duration::from_secs(60)).expect("a URL");
        let signer = signer(&chain, USUAL.key, USUAL.period);
        let head = chain.head(signer.account()).await.expect("answers");
        let call = call(
            "Utility",
            "batch",
            json!({"calls": [
                {"System": {"remark": {"remark": "0x676d"}}},
                {"Balances": {"transfer_keep_alive": {"dest": address(signer.account()), "value": 5}}},
            ]}),
        );
        let unsigned =
            Unsigned { nonce: 7, tip: 9, call: Some(&call), head: &head, replaces: None };
        signed.push(signer.sign(unsigned).await.expect("signs"));
    }
    assert_eq!(signed[0], signed[1]);
    stage.close();
}
