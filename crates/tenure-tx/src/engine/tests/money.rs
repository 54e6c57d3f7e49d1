//! What is paid, and what is not: tips, replacements, the base fee, an empty account.

use super::*;

#[test]
fn only_the_lowest_unmined_nonce_is_replaced_and_only_so_often() {
    let mut engine = watching();
    request(&mut engine, None, 100, true).expect("leads");
    engine.handle(T0, Input::Built { nonce: 1, attempt: attempt(2, 100) });
    engine.handle(T0, Input::Submitted { nonce: 1, hash: hash(2), outcome: Outcome::Pooled });
    let mut tip = 100;
    let mut now = 0;
    for round in 0..EngineConfig::default().max_replacements {
        now += 61;
        assert!(engine.handle(at(now), Input::Head(block(round.into()))).is_empty());
        let effects = later(&mut engine, now);
        let [Effect::Build { nonce: 0, tip: bumped, noop: None, .. }] = effects[..] else {
            panic!("expected one replacement of nonce 0, got {effects:?}");
        };
        assert!(bumped >= tip + tip / 10, "a pool wants at least a tenth more");
        tip = bumped;
        let tag = 100 + u8::try_from(round).expect("few rounds");
        engine.handle(at(now), Input::Built { nonce: 0, attempt: attempt(tag, tip) });
        let outcome = Outcome::Pooled;
        engine.handle(at(now), Input::Submitted { nonce: 0, hash: hash(tag), outcome });
    }
    let effects = later(&mut engine, now + 61);
    assert!(matches!(effects[..], [Effect::Submit { nonce: 0, .. }]), "bounded: {effects:?}");
}

#[test]
fn a_replacement_waits_for_a_block_and_for_its_pause() {
    let mut engine = watching();
    let outbid = || Outcome::Underpriced(Shortfall::Outbid, "underpriced".to_owned());
    assert!(matches!(later(&mut engine, 61)[..], [Effect::Build { tip: 125, .. }]));
    engine.handle(at(61), Input::Built { nonce: 0, attempt: attempt(2, 125) });
    let submitted = |tag| Input::Submitted { nonce: 0, hash: hash(tag), outcome: outbid() };
    let is_build = |effects: &[Effect]| effects.iter().any(|e| matches!(e, Effect::Build { .. }));
    assert!(!is_build(&engine.handle(at(62), submitted(2))), "a second one within a second");
    let effects = engine.handle(at(80), Input::TimePassed);
    assert!(matches!(effects[..], [Effect::Submit { .. }]), "{effects:?}");
    assert!(!is_build(&engine.handle(at(80), submitted(2))), "no block has come");
    engine.handle(at(90), Input::Head(block(1)));
    engine.handle(at(110), Input::TimePassed);
    assert!(is_build(&engine.handle(at(110), submitted(2))), "a block and a pause later");
}

#[test]
fn a_base_fee_that_outgrew_the_bid_is_followed_however_often() {
    let mut engine = watching();
    let mut now = 0;
    for round in 1..=30u8 {
        now += 61;
        let base_fee = 100 * u128::from(round) + 1;
        engine.handle(at(now), Input::Head(Head { base_fee, ..block(round.into()) }));
        let effects = later(&mut engine, now);
        let [Effect::Build { tip, .. }] = effects[..] else { panic!("{round}: {effects:?}") };
        let bid = Some(base_fee + 99);
        let attempt = Attempt { bid, ..attempt(100 + round, tip) };
        engine.handle(at(now), Input::Built { nonce: 0, attempt });
        let outcome = Outcome::Pooled;
        engine.handle(at(now), Input::Submitted { nonce: 0, hash: hash(100 + round), outcome });
    }
}

#[test]
fn an_account_without_funds_waits_and_loses_nothing() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    for nonce in 0..3 {
        assert_eq!(request(&mut engine, None, 0, true), Ok(nonce));
        let tag = 1 + u8::try_from(nonce).expect("small");
        engine.handle(T0, Input::Built { nonce, attempt: attempt(tag, 0) });
        let outcome = Outcome::Unfunded("insufficient funds".to_owned());
        engine.handle(T0, Input::Submitted { nonce, hash: hash(tag), outcome });
    }
    assert_eq!(engine.holds().unfunded, 3);
    let mut asked = 0;
    for second in 1..3_600 {
        for effect in later(&mut engine, second) {
            assert_eq!(effect, Effect::Submit { nonce: 0, hash: hash(1) }, "only the lowest");
            asked += 1;
            let outcome = Outcome::Unfunded("insufficient funds".to_owned());
            engine.handle(at(second), Input::Submitted { nonce: 0, hash: hash(1), outcome });
        }
    }
    assert!((60..300).contains(&asked), "{asked} times in an hour");
    assert_eq!(engine.open(), 3);
    // Funded: what waited goes at once.
    while later(&mut engine, 3_660).is_empty() {}
    let (nonce, outcome) = (0, Outcome::Pooled);
    engine.handle(at(3_660), Input::Submitted { nonce, hash: hash(1), outcome });
    let effects = later(&mut engine, 3_661);
    let all =
        [Effect::Submit { nonce: 1, hash: hash(2) }, Effect::Submit { nonce: 2, hash: hash(3) }];
    assert_eq!(effects, all);
}

/// A pool may know what it refused for want of funds, and answer the same bytes with "already imported".
#[test]
fn an_account_without_funds_has_some_only_when_a_pool_takes_its_request_or_a_block_has_it() {
    let nothing_said = [
        Outcome::AlreadyKnown,
        Outcome::Busy("the pool is full".to_owned()),
        Outcome::NotSent("no connection".to_owned()),
        Outcome::Uncertain("timed out".to_owned()),
    ];
    let submitted = |outcome| Input::Submitted { nonce: 0, hash: hash(1), outcome };
    for outcome in nothing_said {
        let mut engine = unfunded(2);
        for second in [9, 99, 999] {
            assert!(matches!(
                later(&mut engine, second)[..],
                [Effect::Submit { nonce: 0, .. }, ..]
            ));
            let effects = engine.handle(at(second), submitted(outcome.clone()));
            let took_back =
                |one: &Effect| matches!(one, Effect::Record { note, .. } if note.answer.is_none());
            assert!(!effects.iter().any(took_back), "{outcome:?}: {effects:?}");
            let holds = engine.holds();
            assert_eq!((holds.unfunded, holds.lowest_unfunded), (2, Some(0)), "{outcome:?}");
        }
        later(&mut engine, 9_999);
        engine.handle(at(9_999), submitted(Outcome::Pooled));
        assert!(engine.holds().lowest_unfunded != Some(0), "{outcome:?}");
    }
    let mut engine = unfunded(1);
    later(&mut engine, 9);
    engine.handle(at(9), submitted(Outcome::AlreadyKnown));
    let report = Report { status: TransactionStatus::InBlock(hash(77)), receipt: None };
    engine.handle(at(10), Input::Status { nonce: 0, hash: hash(1), report });
    assert_eq!(engine.holds().unfunded, 0);
}

/// The node that said so may have been wrong, and say something else the next time.
#[test]
fn what_waits_behind_an_unfunded_nonce_goes_on_whatever_is_said_of_it_next() {
    for outcome in [Outcome::AlreadyKnown, Outcome::Uncertain("timed out".to_owned())] {
        let mut engine = unfunded(3);
        assert!(matches!(later(&mut engine, 9)[..], [Effect::Submit { nonce: 0, .. }]));
        engine.handle(at(9), Input::Submitted { nonce: 0, hash: hash(1), outcome });
        let effects = later(&mut engine, 10);
        assert!(
            effects.iter().any(|one| matches!(one, Effect::Submit { nonce: 1, .. })),
            "{effects:?}"
        );
    }
}

#[test]
fn a_gap_is_filled_with_the_tip_that_the_chain_takes_and_raised_to_what_the_node_asks() {
    let mut going = head(0, 0, 0);
    going.tip = 7;
    let (mut engine, _) = leading(vec![], going);
    for nonce in 0..2 {
        let id = nonce.to_string();
        let low = Request { id, nonce: None, tip: 0, resignable: true, deadline: None };
        let built = engine.handle(T0, Input::Requested(low));
        assert_eq!(built, [Effect::Build { nonce, attempt: 1, tip: 7, noop: None }]);
    }
    engine.handle(T0, not_built(0));
    later(&mut engine, 0);
    let filled = later(&mut engine, 31);
    assert_eq!(filled, [Effect::Build { nonce: 0, attempt: 1, tip: 7, noop: Some(Permit::Gap) }]);
    let noop = Attempt { noop: true, permit: Some(Permit::Gap), ..attempt(1, 7) };
    engine.handle(at(31), Input::Built { nonce: 0, attempt: noop });
    let needed = Some(25_000_000_000);
    let outcome = Outcome::Underpriced(Shortfall::BelowMinimum { needed }, "minimum".to_owned());
    engine.handle(at(31), Input::Submitted { nonce: 0, hash: hash(1), outcome });
    let effects = later(&mut engine, 40);
    let tip = 25_000_000_000;
    assert_eq!(effects, [Effect::Build { nonce: 0, attempt: 2, tip, noop: Some(Permit::Gap) }]);
}

#[test]
fn no_tip_is_above_the_bound_whatever_recent_blocks_were_tipped() {
    let mut engine = Engine::new(EngineConfig { max_tip: 5, ..EngineConfig::default() });
    let head = Head { tip: 7, ..head(0, 0, 0) };
    engine.handle(T0, Input::Recovered { rows: vec![], consumed: 0, provisional: vec![], head });
    for nonce in 0..2 {
        let id = nonce.to_string();
        let low = Request { id, nonce: None, tip: 0, resignable: true, deadline: None };
        let built = engine.handle(T0, Input::Requested(low));
        assert_eq!(built, [Effect::Build { nonce, attempt: 1, tip: 5, noop: None }]);
    }
    engine.handle(T0, not_built(0));
    let filled = engine.cancel(0).expect("a gap");
    assert_eq!(filled, [Effect::Build { nonce: 0, attempt: 1, tip: 5, noop: Some(Permit::Gap) }]);
}

#[test]
fn what_no_node_was_sent_is_not_paid_more_for() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    request(&mut engine, None, 100, true).expect("leads");
    engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 100) });
    answer(&mut engine, 1, Outcome::NotSent("no line".to_owned()));
    for second in 1..600 {
        for effect in later(&mut engine, second) {
            assert_eq!(effect, Effect::Submit { nonce: 0, hash: hash(1) });
            let outcome = Outcome::NotSent("no line".to_owned());
            engine.handle(at(second), Input::Submitted { nonce: 0, hash: hash(1), outcome });
        }
    }
    while later(&mut engine, 660).is_empty() {}
    let submitted = Input::Submitted { nonce: 0, hash: hash(1), outcome: Outcome::Pooled };
    engine.handle(at(660), submitted);
    assert!(later(&mut engine, 719).is_empty(), "a pool has it for less than a minute");
    let effects = later(&mut engine, 720);
    assert!(matches!(effects[..], [Effect::Build { tip: 125, .. }]), "{effects:?}");
}

#[test]
fn a_node_that_calls_every_tip_too_low_is_not_paid_ever_more() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    assert_eq!(request(&mut engine, None, 1_000, true), Ok(0));
    let mut tip = 1_000;
    for round in 0..100u8 {
        let now = at(u64::from(round) * 60);
        let built = Input::Built { nonce: 0, attempt: attempt(round + 1, tip) };
        for effect in engine.handle(now, built) {
            assert!(matches!(effect, Effect::Submit { .. } | Effect::Record { .. }), "{effect:?}");
        }
        let low = Shortfall::BelowMinimum { needed: None };
        let outcome = Outcome::Underpriced(low, "transaction underpriced".to_owned());
        engine.handle(now, Input::Submitted { nonce: 0, hash: hash(round + 1), outcome });
        let effects = engine.handle(now + Duration::from_secs(59), Input::TimePassed);
        let [Effect::Build { tip: next, .. }] = effects[..] else { panic!("{effects:?}") };
        tip = next;
    }
    assert_eq!(engine.open(), 1, "it waits");
    assert!((9_000..10_000).contains(&tip), "ten bumps of a quarter, and no more: {tip}");
}

#[test]
fn recent_blocks_multiply_a_tip_by_ten_at_most() {
    let (mut engine, _) = leading(vec![], Head { tip: 500, ..head(0, 0, 0) });
    for (asked, tip) in [(1, 10), (100, 500), (600, 600)] {
        let id = asked.to_string();
        let request = Request { id, nonce: None, tip: asked, resignable: true, deadline: None };
        let effects = engine.handle(T0, Input::Requested(request));
        assert!(matches!(effects[..], [Effect::Build { tip: first, .. }] if first == tip));
    }
}

#[test]
fn a_cap_that_keeps_one_request_down_is_told_with_its_nonce() {
    let (mut engine, _) = leading(vec![], Head { base_fee: 50, ..head(0, 0, 0) });
    for (nonce, bid) in [(0, 100), (1, 40)] {
        assert_eq!(request(&mut engine, None, 0, true), Ok(nonce));
        let tag = 1 + u8::try_from(nonce).expect("small");
        let attempt = Attempt { bid: Some(bid), ..attempt(tag, 0) };
        engine.handle(T0, Input::Built { nonce, attempt });
        engine.handle(T0, Input::Submitted { nonce, hash: hash(tag), outcome: Outcome::Pooled });
    }
    let holds = engine.holds();
    assert_eq!((holds.above_cap, holds.lowest_capped), (true, Some(1)));
    // The fee falls below what it offers.
    engine.handle(T0, Input::Head(Head { base_fee: 40, ..head(0, 0, 2) }));
    assert_eq!(engine.holds(), Holds::default());
}

#[test]
fn signing_the_same_bytes_again_at_the_cap_is_no_replacement_and_no_higher_tip() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    assert_eq!(request(&mut engine, None, 1_000, true), Ok(0));
    engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 1_000) });
    answer(&mut engine, 1, Outcome::Pooled);
    for minute in 1..100u64 {
        engine.handle(at(61 * minute), Input::Head(block(minute)));
        let effects = later(&mut engine, 61 * minute);
        let [Effect::Build { tip: 1_250, .. }] = effects[..] else { panic!("{effects:?}") };
        // The signer is at its cap: the same bytes.
        let built = Input::Built { nonce: 0, attempt: attempt(1, 1_000) };
        engine.handle(at(61 * minute), built);
        let outcome = Outcome::Pooled;
        engine.handle(at(61 * minute), Input::Submitted { nonce: 0, hash: hash(1), outcome });
    }
    assert_eq!(engine.attempts(0).len(), 1);
}

#[test]
fn a_request_that_costs_too_much_to_be_signed_anew_says_so_until_it_is_signed() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    request(&mut engine, None, 7, true).expect("leads");
    let mortal = Attempt { valid_until: Some(64), ..attempt(1, 7) };
    engine.handle(T0, Input::Built { nonce: 0, attempt: mortal });
    answer(&mut engine, 1, Outcome::Pooled);
    let passed = Head { finalized: Block { number: 65, ..Block::default() }, ..head(0, 0, 1) };
    let anew = || Effect::Build { nonce: 0, attempt: 2, tip: 7, noop: None };
    assert_eq!(engine.handle(T0, Input::Head(passed)), [anew()]);
    assert!(!engine.holds().above_cap);
    let dear = || {
        let reason = "it would cost 9, and at most 8 is paid".to_owned();
        Input::BuildFailed { nonce: 0, reason, too_dear: true }
    };
    let told = engine.handle(T0, dear());
    let [Effect::Record { note, .. }] = &told[..] else { panic!("{told:?}") };
    assert_eq!(note.answer.as_deref(), Some("it would cost 9, and at most 8 is paid"));
    assert!(note.end.is_none());
    let holds = engine.holds();
    assert_eq!((holds.above_cap, holds.lowest_capped), (true, Some(0)));
    // The dead bytes are not sent again; the same words are recorded once.
    assert_eq!(later(&mut engine, 60), [anew()]);
    assert_eq!(engine.handle(at(60), dear()), []);
    assert_eq!(later(&mut engine, 120), [anew()]);
    engine.handle(at(120), Input::Built { nonce: 0, attempt: attempt(2, 7) });
    assert_eq!(engine.holds(), Holds::default());
}
