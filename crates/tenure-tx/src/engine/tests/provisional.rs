//! Ends that no block proves are compared with the chain, once it is final there.

use super::*;

/// An engine whose nonce 0 was refused, with `hash(1)`.
fn refused() -> Engine {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    let first =
        Request { id: "rent".to_owned(), nonce: None, tip: 0, resignable: false, deadline: None };
    engine.handle(T0, Input::Requested(first));
    engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 0) });
    let effects = answer(&mut engine, 1, Outcome::Refused("too large".to_owned()));
    assert_eq!(end_of(&effects[effects.len() - 1..]).kind, EndKind::Refused);
    engine
}

fn final_head() -> Head {
    Head { finalized: Block { number: 9, ..Block::default() }, ..head(1, 1, 1) }
}

fn reexamined(engine: &mut Engine, seconds: u64, located: Located) -> Vec<Effect> {
    let request = "rent".to_owned();
    engine.handle(at(seconds), Input::Reexamined { nonce: 0, request, located })
}

fn is_asked(effects: &[Effect]) -> bool {
    let wanted = Effect::Reexamine { nonce: 0, request: "rent".to_owned(), hashes: vec![hash(1)] };
    effects.contains(&wanted)
}

#[test]
fn a_refused_request_that_is_in_a_final_block_is_corrected_with_what_was_told() {
    let mut engine = refused();
    let effects = engine.handle(T0, Input::Head(head(1, 0, 1)));
    assert!(!is_asked(&effects), "its nonce is not final yet: {effects:?}");
    let effects = engine.handle(T0, Input::Head(final_head()));
    assert!(is_asked(&effects), "{effects:?}");
    let again = engine.handle(T0, Input::Head(final_head()));
    assert!(!is_asked(&again), "asked once: {again:?}");
    let receipt = Some(Receipt { success: Some(true), fee: Some(7), ..Receipt::default() });
    let found = Located::InBlock { hash: hash(1), block: hash(50), finalized: true, receipt };
    let effects = reexamined(&mut engine, 0, found);
    let [Effect::Correct { nonce: 0, request, hash: form, status, note }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((request.as_str(), *form), ("rent", hash(1)));
    assert_eq!(*status, TransactionStatus::Finalized(hash(50)));
    let (end, told) = (note.end.as_ref().expect("ended"), note.corrected.as_ref());
    assert_eq!((end.kind, end.fee), (EndKind::Executed, Some(7)));
    assert_eq!(told.expect("what was told").kind, EndKind::Refused);
    assert!(!is_asked(&engine.handle(at(86_400), Input::Head(final_head()))), "once for all");
}

#[test]
fn an_end_is_proved_by_another_transaction_in_its_place_and_not_by_silence() {
    let mut engine = refused();
    assert!(is_asked(&engine.handle(T0, Input::Head(final_head()))));
    for (seconds, located) in [(0, Located::Missing), (40, Located::Unknown), (120, Located::Free)]
    {
        assert!(reexamined(&mut engine, seconds, located).is_empty());
        let soon = engine.handle(at(seconds + 1), Input::Head(final_head()));
        assert!(!is_asked(&soon), "not without a pause");
        let later = [40, 120, 300].into_iter().find(|later| *later > seconds).expect("one");
        assert!(is_asked(&engine.handle(at(later), Input::Head(final_head()))), "{later}");
    }
    let effects = reexamined(&mut engine, 300, Located::Usurped { by: Some(hash(9)) });
    assert_eq!(effects, [Effect::Settle { nonce: 0, request: "rent".to_owned() }]);
    assert!(!is_asked(&engine.handle(at(86_400), Input::Head(final_head()))));
}

#[test]
fn the_next_owner_of_a_nonce_proves_the_end_of_the_last_one_or_hears_that_it_was_wrong() {
    let own = |engine: &mut Engine| {
        let id = "next".to_owned();
        let next = Request { id, nonce: None, tip: 0, resignable: true, deadline: None };
        engine.handle(T0, Input::Requested(next));
        engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(2, 0) });
        engine.handle(T0, Input::Submitted { nonce: 0, hash: hash(2), outcome: Outcome::Pooled });
    };
    let mut engine = refused();
    own(&mut engine);
    let effects = engine.handle(T0, Input::Head(final_head()));
    assert!(!is_asked(&effects), "the open one's end decides: {effects:?}");
    report(&mut engine, 2, TransactionStatus::Finalized(hash(50)));
    assert!(!is_asked(&engine.handle(at(1), Input::Head(final_head()))), "proved");

    let mut engine = refused();
    own(&mut engine);
    let mut ended = vec![];
    report(&mut engine, 2, TransactionStatus::Usurped(None));
    engine.handle(T0, Input::Head(final_head()));
    for round in 0..3 {
        let located = Located::Usurped { by: Some(hash(1)) };
        ended = engine.handle(at(60 * round), Input::Located { nonce: 0, located });
        later(&mut engine, 60 * (round + 1));
    }
    if ended.is_empty() {
        panic!("three sights end it: {engine:?}");
    }
    let end = end_of(&ended);
    assert_eq!(end.kind, EndKind::Usurped);
    assert!(end.reason.as_ref().is_some_and(|why| why.contains("request rent")), "{end:?}");
    assert!(is_asked(&engine.handle(at(600), Input::Head(final_head()))), "and is asked about");
}

#[test]
fn a_new_leader_goes_on_with_what_the_last_one_left() {
    let mut engine = Engine::new(EngineConfig::default());
    let provisional = vec![Provisional {
        request: "rent".to_owned(),
        nonce: 0,
        attempts: vec![attempt(1, 0)],
        end: End::new(EndKind::Usurped),
    }];
    let rows = vec![];
    let recovered = Input::Recovered { rows, consumed: 1, provisional, head: final_head() };
    assert!(is_asked(&engine.handle(T0, recovered)));
}
