//! One promise each. The promises about all sequences are in `tests/engine_properties.rs`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::*;

fn hash(tag: u8) -> Hash {
    Hash([tag; 32])
}

fn attempt(tag: u8, tip: u128) -> Attempt {
    Attempt { hash: hash(tag), tip, ..Attempt::default() }
}

fn head(best: u64, finalized: u64, pool: u64) -> Head {
    Head { best_nonce: best, finalized_nonce: finalized, pool_nonce: pool, ..Head::default() }
}

const T0: Tick = Tick::from_nanos(1_000_000_000_000);

/// Asks for a nonce under an id of its own: the nonce of the first attempt, or why there is none.
fn request(
    engine: &mut Engine,
    nonce: Option<u64>,
    tip: u128,
    resignable: bool,
) -> Result<u64, NonceError> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let id = SERIAL.fetch_add(1, Ordering::Relaxed).to_string();
    let asked =
        Input::Requested(Request { id: id.clone(), nonce, tip, resignable, deadline: None });
    match &engine.handle(T0, asked)[..] {
        [Effect::Build { nonce, attempt: 1, tip: first, noop: None }] => {
            assert_eq!((*first, engine.nonce_of(&id)), (tip, Some(*nonce)));
            assert_eq!(engine.request_at(*nonce), Some(&*id));
            Ok(*nonce)
        }
        [Effect::Refuse { request, error }] => {
            assert_eq!((request, engine.nonce_of(&id)), (&id, None));
            Err(error.clone())
        }
        other => panic!("a request is built or refused: {other:?}"),
    }
}

fn leading(rows: Vec<OpenTransaction>, at: Head) -> (Engine, Vec<Effect>) {
    let mut engine = Engine::new(EngineConfig::default());
    let effects = engine.handle(T0, Input::Recovered { rows, consumed: 0, head: at });
    (engine, effects)
}

/// An engine whose nonce 0 is in the pool with `hash(1)`.
fn watching() -> Engine {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    assert_eq!(request(&mut engine, None, 100, true), Ok(0));
    let effects = engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 100) });
    assert_eq!(effects, [Effect::Submit { nonce: 0, hash: hash(1) }]);
    answer(&mut engine, 1, Outcome::Pooled);
    report(&mut engine, 1, TransactionStatus::Ready);
    engine
}

fn answer(engine: &mut Engine, tag: u8, outcome: Outcome) -> Vec<Effect> {
    engine.handle(T0, Input::Submitted { nonce: 0, hash: hash(tag), outcome })
}

fn report(engine: &mut Engine, tag: u8, status: TransactionStatus) -> Vec<Effect> {
    engine.handle(T0, Input::Status { nonce: 0, hash: hash(tag), status })
}

fn noted_as(status: TransactionStatus) -> Effect {
    Effect::Record { nonce: 0, hash: hash(1), status, note: Note::default() }
}

fn assert_ended(effects: &[Effect], wanted: &TransactionStatus) {
    let [Effect::Record { nonce: 0, status, note, .. }] = effects else { panic!("{effects:?}") };
    assert_eq!(status, wanted);
    assert!(note.end.is_some(), "{effects:?}");
}

fn later(engine: &mut Engine, seconds: u64) -> Vec<Effect> {
    engine.handle(T0 + Duration::from_secs(seconds), Input::TimePassed)
}

#[test]
fn a_follower_gives_no_nonce_and_has_no_effects() {
    let mut engine = Engine::new(EngineConfig::default());
    assert_eq!(request(&mut engine, None, 0, true), Err(NonceError::NotLeading));
    assert!(engine.handle(T0, Input::TimePassed).is_empty());
    let mut leader = watching();
    assert!(leader.handle(T0, Input::Demoted).is_empty());
    assert!(report(&mut leader, 1, TransactionStatus::Dropped).is_empty());
    assert!(later(&mut leader, 3_600).is_empty());
}

#[test]
fn nonces_start_above_chain_pool_and_table() {
    let (mut engine, _) = leading(vec![], head(3, 2, 5));
    assert_eq!(request(&mut engine, None, 0, true), Ok(5));
    assert_eq!(request(&mut engine, None, 0, true), Ok(6));
    let rows = vec![OpenTransaction {
        request: "open".to_owned(),
        nonce: 9,
        attempts: vec![attempt(1, 0)],
        status: TransactionStatus::Ready,
        resignable: true,
        deadline: None,
    }];
    let mut engine = Engine::new(EngineConfig::default());
    // A node that lags behind must not hand out a nonce the table knows to be used.
    engine.handle(T0, Input::Recovered { rows, consumed: 8, head: head(3, 2, 3) });
    assert_eq!(request(&mut engine, None, 0, true), Ok(8), "the first gap");
    assert_eq!(request(&mut engine, None, 0, true), Ok(10));
}

#[test]
fn a_nonce_that_was_never_stored_is_given_again() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    assert_eq!(request(&mut engine, None, 0, true), Ok(0));
    assert_eq!(request(&mut engine, None, 0, true), Ok(1));
    let freed = engine.handle(T0, Input::BuildFailed { nonce: 0 });
    assert_eq!(freed, [Effect::Free { nonce: 0 }], "what it carried is forgotten");
    assert_eq!(engine.request_at(0), None);
    assert_eq!(request(&mut engine, None, 0, true), Ok(0));
}

#[test]
fn an_open_request_never_gets_a_second_nonce() {
    let row = OpenTransaction {
        request: "invoice-7".to_owned(),
        nonce: 3,
        attempts: vec![attempt(1, 0)],
        status: TransactionStatus::Ready,
        resignable: true,
        deadline: None,
    };
    let (mut engine, _) = leading(vec![row], head(3, 3, 3));
    let again = Request {
        id: "invoice-7".to_owned(),
        nonce: None,
        tip: 9,
        resignable: true,
        deadline: None,
    };
    let effects = engine.handle(T0, Input::Requested(again));
    let error = NonceError::Given(3);
    assert_eq!(effects, [Effect::Refuse { request: "invoice-7".to_owned(), error }]);
    assert_eq!(engine.open(), 1);
}

#[test]
fn an_old_gap_is_filled_with_a_no_op() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    request(&mut engine, None, 0, true).expect("leads");
    request(&mut engine, None, 0, true).expect("leads");
    engine.handle(T0, Input::BuildFailed { nonce: 0 });
    assert_eq!(engine.gaps(8), [0]);
    assert!(later(&mut engine, 0).is_empty());
    let filled = later(&mut engine, 31);
    assert_eq!(filled, [Effect::Build { nonce: 0, attempt: 1, tip: 0, noop: Some(Order::Gap) }]);
    assert!(engine.gaps(8).is_empty());
}

#[test]
fn an_absurd_nonce_in_the_table_is_survived() {
    let rows = vec![OpenTransaction {
        request: "open".to_owned(),
        nonce: u64::MAX / 4,
        attempts: vec![attempt(1, 0)],
        status: TransactionStatus::Ready,
        resignable: true,
        deadline: None,
    }];
    let (mut engine, _) = leading(rows, head(0, 0, 0));
    assert!(later(&mut engine, 1).len() < 100);
    assert!(later(&mut engine, 100).len() < 100);
}

#[test]
fn a_callers_own_nonce_is_checked() {
    let (mut engine, _) = leading(vec![], head(5, 5, 5));
    assert_eq!(
        request(&mut engine, Some(4), 0, false),
        Err(NonceError::BelowChain { nonce: 4, next: 5 })
    );
    assert_eq!(request(&mut engine, Some(5), 0, false), Ok(5));
    assert_eq!(request(&mut engine, Some(5), 0, false), Err(NonceError::Taken(5)));
    assert!(matches!(
        request(&mut engine, Some(50_000), 0, false),
        Err(NonceError::TooFarAhead { .. })
    ));
}

#[test]
fn a_closed_watch_is_looked_up_not_taken_for_dropped() {
    let mut engine = watching();
    let silent = engine.handle(T0, Input::WatchClosed { nonce: 0, hash: hash(1) });
    assert!(silent.is_empty());
    assert_eq!(engine.status(0), Some(&TransactionStatus::Ready));
    assert_eq!(later(&mut engine, 0), [Effect::Submit { nonce: 0, hash: hash(1) }]);
}

#[test]
fn a_dropped_transaction_is_sent_again_with_the_same_bytes() {
    let mut engine = watching();
    let noted = report(&mut engine, 1, TransactionStatus::Dropped);
    let status = TransactionStatus::Dropped;
    assert_eq!(noted, [noted_as(status)]);
    assert_eq!(later(&mut engine, 1), [Effect::Submit { nonce: 0, hash: hash(1) }]);
}

#[test]
fn a_retracted_transaction_may_be_mined_again() {
    let mut engine = watching();
    for status in [
        TransactionStatus::InBlock(hash(50)),
        TransactionStatus::Retracted(hash(50)),
        TransactionStatus::InBlock(hash(51)),
    ] {
        let noted = report(&mut engine, 1, status.clone());
        assert_eq!(noted, [noted_as(status)]);
    }
    let status = TransactionStatus::Finalized(hash(51));
    let ended = report(&mut engine, 1, status.clone());
    assert_ended(&ended, &status);
    assert_eq!(engine.open(), 0);
    // The node's head lags: the nonce is used all the same.
    assert_eq!(request(&mut engine, None, 0, true), Ok(1));
}

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
        let effects = later(&mut engine, now);
        let [Effect::Build { nonce: 0, tip: bumped, noop: None, .. }] = effects[..] else {
            panic!("expected one replacement of nonce 0, got {effects:?}");
        };
        assert!(bumped >= tip + tip / 10, "a pool wants at least a tenth more");
        tip = bumped;
        let tag = 100 + u8::try_from(round).expect("few rounds");
        let at = T0 + Duration::from_secs(now);
        engine.handle(at, Input::Built { nonce: 0, attempt: attempt(tag, tip) });
        let outcome = Outcome::Pooled;
        engine.handle(at, Input::Submitted { nonce: 0, hash: hash(tag), outcome });
    }
    let effects = later(&mut engine, now + 61);
    assert!(matches!(effects[..], [Effect::Submit { nonce: 0, .. }]), "bounded: {effects:?}");
}

#[test]
fn a_status_of_an_older_attempt_is_ignored_unless_it_finalised() {
    let mut engine = watching();
    let effects = later(&mut engine, 61);
    assert!(matches!(effects[..], [Effect::Build { nonce: 0, .. }]));
    engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(2, 125) });
    assert!(report(&mut engine, 1, TransactionStatus::Usurped(Some(hash(2)))).is_empty());
    assert!(report(&mut engine, 1, TransactionStatus::InBlock(hash(50))).is_empty());
    assert!(report(&mut engine, 9, TransactionStatus::Finalized(hash(50))).is_empty(), "foreign");
    let status = TransactionStatus::Finalized(hash(50));
    let ended = report(&mut engine, 1, status.clone());
    assert_ended(&ended, &status);
}

#[test]
fn usurped_is_believed_only_after_the_chain_said_it_three_times() {
    let mut engine = watching();
    report(&mut engine, 1, TransactionStatus::Usurped(Some(hash(9))));
    let effects = engine.handle(T0, Input::Head(head(1, 1, 1)));
    assert!(matches!(effects[..], [Effect::Locate { nonce: 0, .. }]));
    let mut ended = vec![];
    for second in 0..3 {
        let at = T0 + Duration::from_secs(second * 60);
        ended = engine.handle(at, Input::Located { nonce: 0, located: Located::Consumed });
        later(&mut engine, second * 60 + 40);
    }
    let status = TransactionStatus::Usurped(None);
    assert_ended(&ended, &status);
}

#[test]
fn a_refused_transaction_ends_and_frees_its_nonce_only_if_no_node_ever_took_it() {
    let refuse = || Outcome::Refused("no funds".to_owned());
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    request(&mut engine, None, 0, true).expect("leads");
    let mut effects = engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 0) });
    for tag in 1..=3 {
        assert!(matches!(effects[..], [Effect::Submit { .. }]), "{effects:?}");
        effects = answer(&mut engine, tag, refuse());
        if tag < 3 {
            let rebuilt = later(&mut engine, 60);
            assert!(matches!(rebuilt[..], [Effect::Build { noop: None, .. }]), "{rebuilt:?}");
            let attempt = attempt(tag + 1, 0);
            effects = engine.handle(T0, Input::Built { nonce: 0, attempt });
        }
    }
    assert_ended(&effects, &TransactionStatus::Invalid(Some("no funds".to_owned())));
    assert_eq!(request(&mut engine, None, 0, true), Ok(0));

    // Signed by the caller, and once perhaps taken: a no-op must settle the nonce.
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    request(&mut engine, Some(0), 0, false).expect("leads");
    engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 0) });
    answer(&mut engine, 1, Outcome::Unreachable("cut".to_owned()));
    later(&mut engine, 60);
    let effects = answer(&mut engine, 1, refuse());
    assert!(
        matches!(effects[..], [Effect::Record { .. }, Effect::Build { noop: Some(_), .. }]),
        "{effects:?}"
    );
}

#[test]
fn an_expired_transaction_is_signed_anew_under_its_nonce() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    request(&mut engine, None, 7, true).expect("leads");
    let mortal = Attempt { valid_until: Some(64), ..attempt(1, 7) };
    engine.handle(T0, Input::Built { nonce: 0, attempt: mortal });
    answer(&mut engine, 1, Outcome::Pooled);
    let mut now = head(0, 0, 1);
    now.finalized.number = 64;
    assert!(engine.handle(T0, Input::Head(now)).is_empty(), "still valid in block 64");
    now.finalized.number = 65;
    let effects = engine.handle(T0, Input::Head(now));
    assert_eq!(effects, [Effect::Build { nonce: 0, attempt: 2, tip: 7, noop: None }]);
}

#[test]
fn a_finality_timeout_is_pursued_to_finality() {
    let mut engine = watching();
    report(&mut engine, 1, TransactionStatus::InBlock(hash(50)));
    report(&mut engine, 1, TransactionStatus::FinalityTimeout(hash(50)));
    let effects = engine.handle(T0, Input::Head(head(1, 1, 1)));
    assert_eq!(effects, [Effect::Locate { nonce: 0, hashes: vec![hash(1)] }]);
    let located = Located::InBlock { hash: hash(1), block: hash(50), finalized: true };
    let effects = engine.handle(T0, Input::Located { nonce: 0, located });
    let status = TransactionStatus::Finalized(hash(50));
    assert_ended(&effects, &status);
}

#[test]
fn a_cancelled_request_that_was_not_sent_yet_never_leaves() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    request(&mut engine, None, 0, true).expect("leads");
    assert_eq!(engine.cancel(0), Ok(vec![]));
    let effects = engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 0) });
    assert!(matches!(effects[..], [Effect::Build { noop: Some(Order::Drop), .. }]), "{effects:?}");
    assert_eq!(engine.cancel(7), Err(NonceError::NotOpen(7)));
}

#[test]
fn a_new_leader_resubmits_open_rows_and_asks_about_used_nonces() {
    let row = |nonce, tag| OpenTransaction {
        request: format!("row-{nonce}"),
        nonce,
        attempts: vec![attempt(tag, 0)],
        status: TransactionStatus::Future,
        resignable: true,
        deadline: None,
    };
    let (_, effects) = leading(vec![row(4, 1), row(5, 2)], head(5, 4, 5));
    assert_eq!(
        effects,
        [
            Effect::Locate { nonce: 4, hashes: vec![hash(1)] },
            Effect::Submit { nonce: 5, hash: hash(2) },
        ]
    );
}
