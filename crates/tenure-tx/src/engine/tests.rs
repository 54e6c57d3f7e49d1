//! One promise each. The promises about all sequences are in `tests/engine_properties.rs`.

mod calls;
mod money;
mod permit;
mod provisional;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::*;
use crate::chain::Block;
use crate::status::{End, EndKind};

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
    let effects =
        engine.handle(T0, Input::Recovered { rows, consumed: 0, provisional: vec![], head: at });
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

fn not_built(nonce: u64) -> Input {
    Input::BuildFailed { nonce, reason: "the signer is away".to_owned(), too_dear: false }
}

fn answer(engine: &mut Engine, tag: u8, outcome: Outcome) -> Vec<Effect> {
    engine.handle(T0, Input::Submitted { nonce: 0, hash: hash(tag), outcome })
}

fn report(engine: &mut Engine, tag: u8, status: TransactionStatus) -> Vec<Effect> {
    engine.handle(T0, Input::Status { nonce: 0, hash: hash(tag), report: status.into() })
}

fn noted_as(status: TransactionStatus) -> Effect {
    Effect::Record { nonce: 0, hash: hash(1), status, note: Note::default() }
}

fn assert_ended(effects: &[Effect], wanted: &TransactionStatus) {
    let [Effect::Record { nonce: 0, status, note, .. }] = effects else { panic!("{effects:?}") };
    assert_eq!(status, wanted);
    assert!(note.end.is_some(), "{effects:?}");
}

fn at(seconds: u64) -> Tick {
    T0 + Duration::from_secs(seconds)
}

/// A head at which nonce 0 is not used yet.
fn block(number: u64) -> Head {
    let best = Block { number, ..Block::default() };
    Head { best, ..head(0, 0, 1) }
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
        dropped: false,
    }];
    let mut engine = Engine::new(EngineConfig::default());
    // A node that lags behind must not hand out a nonce the table knows to be used.
    engine.handle(
        T0,
        Input::Recovered { rows, consumed: 8, provisional: vec![], head: head(3, 2, 3) },
    );
    assert_eq!(request(&mut engine, None, 0, true), Ok(8), "the first gap");
    assert_eq!(request(&mut engine, None, 0, true), Ok(10));
}

#[test]
fn a_nonce_that_was_never_stored_is_given_again() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    assert_eq!(request(&mut engine, None, 0, true), Ok(0));
    assert_eq!(request(&mut engine, None, 0, true), Ok(1));
    let freed = engine.handle(T0, not_built(0));
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
        dropped: false,
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
    engine.handle(T0, not_built(0));
    assert_eq!(engine.gaps(8), [0]);
    assert!(later(&mut engine, 0).is_empty());
    let filled = later(&mut engine, 31);
    assert_eq!(filled, [Effect::Build { nonce: 0, attempt: 1, tip: 0, noop: Some(Permit::Gap) }]);
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
        dropped: false,
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
fn any_form_in_a_block_is_told_and_one_that_finalised_wins() {
    let mut engine = watching();
    let effects = later(&mut engine, 61);
    assert!(matches!(effects[..], [Effect::Build { nonce: 0, .. }]));
    engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(2, 125) });
    assert!(report(&mut engine, 1, TransactionStatus::Usurped(Some(hash(2)))).is_empty());
    let status = TransactionStatus::InBlock(hash(50));
    let note = Note { form: Some(hash(1)), ..Note::default() };
    let told = Effect::Record { nonce: 0, hash: hash(2), status: status.clone(), note };
    assert_eq!(report(&mut engine, 1, status), [told], "the older form is in a block");
    assert!(report(&mut engine, 9, TransactionStatus::Finalized(hash(50))).is_empty(), "foreign");
    let status = TransactionStatus::Finalized(hash(50));
    let ended = report(&mut engine, 1, status.clone());
    assert_ended(&ended, &status);
}

#[test]
fn usurped_is_told_only_when_finality_says_it() {
    // The pool lost it and the nonce is used: nothing is claimed, the chain is asked.
    let mut engine = watching();
    let effects = report(&mut engine, 1, TransactionStatus::Usurped(None));
    assert_eq!(effects, [Effect::Locate { nonce: 0, hashes: vec![hash(1)] }]);
    // Nothing found is no proof, however often: the past may be hidden, and the transaction ours.
    let mut used = head(1, 1, 1);
    for second in 0..20 {
        let now = second * 60;
        used.finalized.number += 40;
        engine.handle(at(now), Input::Head(used));
        let located = Located::Missing;
        let effects = engine.handle(at(now), Input::Located { nonce: 0, located });
        let ends =
            |effect: &Effect| matches!(effect, Effect::Record { note, .. } if note.end.is_some());
        assert!(!effects.iter().any(ends), "{effects:?}");
        later(&mut engine, now + 40);
    }
    assert_eq!(engine.holds().uncertain, 1, "it is said aloud");
    // An order ends it: the no-op finds the nonce used, and nothing is found again.
    engine.handle(at(1_250), Input::Located { nonce: 0, located: Located::Missing });
    let effects = engine.cancel(0).expect("open");
    assert!(matches!(effects[..], [Effect::Build { noop: Some(Permit::Drop), .. }]), "{effects:?}");
    let noop = Attempt { noop: true, permit: Some(Permit::Drop), ..attempt(2, 125) };
    engine.handle(at(1_250), Input::Built { nonce: 0, attempt: noop });
    let outdated = Input::Submitted { nonce: 0, hash: hash(2), outcome: Outcome::Outdated };
    let effects = engine.handle(at(1_250), outdated);
    assert!(matches!(effects[..], [Effect::Locate { nonce: 0, .. }]), "{effects:?}");
    let ended = engine.handle(at(1_250), Input::Located { nonce: 0, located: Located::Missing });
    assert_ended(&ended, &TransactionStatus::Usurped(None));
}

#[test]
fn a_usurper_that_was_read_in_a_final_block_is_believed_at_its_third_sight() {
    let mut engine = watching();
    report(&mut engine, 1, TransactionStatus::Usurped(Some(hash(9))));
    let effects = engine.handle(T0, Input::Head(head(1, 1, 1)));
    assert!(matches!(effects[..], [Effect::Locate { nonce: 0, .. }]));
    let mut ended = vec![];
    for second in 0..3 {
        let located = Located::Usurped { by: Some(hash(9)) };
        ended = engine.handle(at(second * 60), Input::Located { nonce: 0, located });
        later(&mut engine, second * 60 + 40);
    }
    assert_ended(&ended, &TransactionStatus::Usurped(Some(hash(9))));
}

#[test]
fn a_look_that_found_nothing_does_not_count_as_one_that_found_a_usurper() {
    let mut engine = watching();
    report(&mut engine, 1, TransactionStatus::Usurped(None));
    let mut used = head(1, 1, 1);
    used.best.number = 100;
    engine.handle(T0, Input::Head(used));
    let by = Some(hash(9));
    let mut now = 0;
    let mut look = |located: Located| {
        now += 60;
        let effects = engine.handle(at(now), Input::Located { nonce: 0, located });
        later(&mut engine, now + 40);
        effects
    };
    for located in [
        Located::Usurped { by },
        Located::Usurped { by },
        Located::Missing,
        Located::Missing,
        Located::Missing,
        Located::Usurped { by },
        Located::Usurped { by },
    ] {
        let effects = look(located);
        assert!(effects.is_empty(), "{effects:?}");
    }
    assert_ended(&look(Located::Usurped { by }), &TransactionStatus::Usurped(by));
}

/// A request that a node refused on its merits, as it stands before its third refusal.
fn refused(times: u8) -> (Engine, Vec<Effect>) {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    request(&mut engine, None, 0, true).expect("leads");
    let mut effects = engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 0) });
    for tag in 1..=times {
        assert!(matches!(effects[..], [Effect::Submit { .. }]), "{effects:?}");
        effects = answer(&mut engine, tag, Outcome::Refused("bad gas".to_owned()));
        if tag < times {
            let rebuilt = later(&mut engine, 60);
            assert!(matches!(rebuilt[..], [Effect::Build { noop: None, .. }]), "{rebuilt:?}");
            let attempt = attempt(tag + 1, 0);
            effects = engine.handle(T0, Input::Built { nonce: 0, attempt });
        }
    }
    (engine, effects)
}

fn end_of(effects: &[Effect]) -> End {
    let Some(Effect::Record { note, .. }) = effects.last() else { panic!("{effects:?}") };
    *note.end.clone().expect("an end")
}

#[test]
fn a_refused_transaction_ends_with_its_reason_and_frees_its_nonce_if_no_node_can_have_it() {
    let (mut engine, effects) = refused(3);
    let end = end_of(&effects);
    assert_eq!((end.kind, end.reason.as_deref()), (EndKind::Refused, Some("bad gas")));
    assert_eq!(request(&mut engine, None, 0, true), Ok(0));
}

#[test]
fn bytes_that_a_pool_wants_no_more_are_signed_anew_and_never_given_up() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    request(&mut engine, None, 0, true).expect("leads");
    engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 0) });
    for tag in 1..20 {
        for effect in answer(&mut engine, tag, Outcome::Unwanted("banned".to_owned())) {
            assert!(matches!(&effect, Effect::Record { note, .. } if note.end.is_none()));
        }
        let rebuilt = later(&mut engine, 60);
        let same = matches!(rebuilt[..], [Effect::Build { nonce: 0, tip: 0, noop: None, .. }]);
        assert!(same, "the same content for the same tip: {rebuilt:?}");
        engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(tag + 1, 0) });
    }
}

#[test]
fn bytes_that_a_node_may_have_are_never_given_up_without_an_order() {
    for resignable in [true, false] {
        let (mut engine, _) = leading(vec![], head(0, 0, 0));
        request(&mut engine, Some(0), 0, resignable).expect("leads");
        engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 0) });
        let effects = answer(&mut engine, 1, Outcome::Uncertain("timed out".to_owned()));
        let [Effect::Record { note, .. }] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(note.answer.as_deref(), Some("timed out"), "the row has the last answer");
        assert_eq!(engine.holds().uncertain, 1);
        let mut tag = 1;
        for round in 1..50 {
            for effect in later(&mut engine, round * 60) {
                match effect {
                    Effect::Build { noop, tip, .. } => {
                        assert_eq!(noop, None, "a no-op without a permit");
                        tag += 1;
                        let attempt = attempt(tag, tip);
                        engine.handle(at(round * 60), Input::Built { nonce: 0, attempt });
                    }
                    Effect::Submit { .. } | Effect::Record { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            let outcome = Outcome::Refused("so it goes".to_owned());
            let submitted = Input::Submitted { nonce: 0, hash: hash(tag), outcome };
            for effect in engine.handle(at(round * 60), submitted) {
                assert!(matches!(&effect, Effect::Record { note, .. } if note.end.is_none()));
            }
        }
        assert_eq!(engine.open(), 1);
        // The order permits it.
        let effects = engine.cancel(0).expect("open");
        assert!(matches!(effects[..], [Effect::Build { noop: Some(Permit::Drop), .. }]));
    }
}

#[test]
fn a_deadline_gives_up_at_once_what_no_node_can_have_and_orders_a_no_op_for_the_rest() {
    let due = |outcome: Outcome| {
        let (mut engine, _) = leading(vec![], head(0, 0, 0));
        let (id, deadline) = ("due".to_owned(), Some(at(100)));
        let due = Request { id, nonce: None, tip: 0, resignable: true, deadline };
        engine.handle(T0, Input::Requested(due));
        engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 0) });
        answer(&mut engine, 1, outcome);
        engine.handle(at(99), Input::TimePassed);
        let nonce = Input::Submitted { nonce: 0, hash: hash(1), outcome: Outcome::AlreadyKnown };
        (engine, nonce)
    };
    let (mut unfunded, _) = due(Outcome::Unfunded("no funds".to_owned()));
    let outcome = Outcome::Unfunded("no funds".to_owned());
    unfunded.handle(at(99), Input::Submitted { nonce: 0, hash: hash(1), outcome });
    let effects = later(&mut unfunded, 100);
    assert_eq!(end_of(&effects).kind, EndKind::Expired);
    assert_eq!(unfunded.open(), 0);
    let (mut sent, again) = due(Outcome::AlreadyKnown);
    sent.handle(at(99), again);
    let effects = later(&mut sent, 100);
    assert!(matches!(effects[..], [Effect::Build { noop: Some(Permit::Deadline), .. }]));
}

#[test]
fn a_nonce_called_used_and_free_in_turn_is_asked_ever_more_slowly() {
    let mut engine = watching();
    engine.handle(T0, Input::WatchClosed { nonce: 0, hash: hash(1) });
    let mut asked = 0;
    for second in 0..600 {
        for effect in later(&mut engine, second) {
            match effect {
                Effect::Submit { nonce, hash } => {
                    asked += 1;
                    let outcome = Outcome::Outdated;
                    engine.handle(at(second), Input::Submitted { nonce, hash, outcome });
                    let located = Located::Free;
                    engine.handle(at(second), Input::Located { nonce, located });
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(asked < 40, "{asked} times in ten minutes");
    assert_eq!(engine.holds().uncertain, 1, "the account waits, and says so");
    // Found in a block, it waits for nothing but finality.
    while later(&mut engine, 660).is_empty() {}
    answer(&mut engine, 1, Outcome::Outdated);
    let (hash, block, receipt) = (hash(1), hash(50), None);
    let located = Located::InBlock { hash, block, finalized: false, receipt };
    engine.handle(at(660), Input::Located { nonce: 0, located });
    assert_eq!(engine.holds(), Holds::default());
}

#[test]
fn bytes_whose_nonce_a_node_calls_used_may_be_in_its_block() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    request(&mut engine, None, 0, true).expect("leads");
    engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 0) });
    answer(&mut engine, 1, Outcome::Outdated);
    engine.handle(T0, Input::Located { nonce: 0, located: Located::Free });
    let effects = engine.cancel(0).expect("open");
    assert!(matches!(effects[..], [Effect::Build { noop: Some(Permit::Drop), .. }]), "{effects:?}");
}

#[test]
fn what_is_in_a_block_is_looked_at_when_the_chain_moves_and_not_all_the_time() {
    let row = OpenTransaction {
        request: "taken over".to_owned(),
        nonce: 0,
        attempts: vec![attempt(1, 0)],
        status: TransactionStatus::InBlock(hash(50)),
        resignable: true,
        deadline: None,
        dropped: false,
    };
    let (mut engine, effects) = leading(vec![row], head(1, 0, 1));
    assert!(matches!(effects[..], [Effect::Locate { .. }]), "{effects:?}");
    let in_block = |finalized| {
        let (hash, block, receipt) = (hash(1), hash(50), None);
        let located = Located::InBlock { hash, block, finalized, receipt };
        Input::Located { nonce: 0, located }
    };
    assert!(engine.handle(T0, in_block(false)).is_empty(), "known already");
    for second in 1..30 {
        assert!(later(&mut engine, second).is_empty());
        assert!(engine.handle(at(second), Input::Head(head(1, 0, 1))).is_empty());
    }
    let effects = engine.handle(at(30), Input::Head(head(1, 1, 1)));
    assert!(matches!(effects[..], [Effect::Locate { .. }]), "{effects:?}");
    assert_ended(&engine.handle(at(30), in_block(true)), &TransactionStatus::Finalized(hash(50)));
}

#[test]
fn an_end_says_what_the_chain_says() {
    let ended = |success, permit: Option<Permit>| {
        let mut engine = watching();
        if let Some(permit) = permit {
            engine.give_up(0, permit, &mut Vec::new());
            let noop = Attempt { noop: true, permit: Some(permit), ..attempt(2, 200) };
            engine.handle(T0, Input::Built { nonce: 0, attempt: noop });
        }
        let form = if permit.is_some() { 2 } else { 1 };
        let fee = Some(42);
        let receipt = Some(Receipt { number: Some(5), success, reason: None, fee });
        let report = Report { status: TransactionStatus::Finalized(hash(50)), receipt };
        let effects = engine.handle(T0, Input::Status { nonce: 0, hash: hash(form), report });
        let end = end_of(&effects);
        assert_eq!((end.hash, end.block), (Some(hash(form)), Some(hash(50))));
        assert_eq!((end.block_number, end.fee), (Some(5), Some(42)));
        end.kind
    };
    assert_eq!(ended(Some(true), None), EndKind::Executed);
    assert_eq!(ended(Some(false), None), EndKind::Reverted);
    assert_eq!(ended(None, None), EndKind::Included, "nothing says that it succeeded");
    assert_eq!(ended(Some(true), Some(Permit::Drop)), EndKind::Replaced);
    assert_eq!(ended(Some(true), Some(Permit::Deadline)), EndKind::Expired);
}

#[test]
fn a_row_whose_last_valid_block_is_final_is_signed_anew_and_not_sent() {
    let row = |resignable| OpenTransaction {
        request: "old".to_owned(),
        nonce: 0,
        attempts: vec![Attempt { valid_until: Some(64), ..attempt(1, 7) }],
        status: TransactionStatus::Ready,
        resignable,
        deadline: None,
        dropped: false,
    };
    let at = |number| Head { finalized: Block { number, ..Block::default() }, ..head(0, 0, 0) };
    let anew = Effect::Build { nonce: 0, attempt: 2, tip: 7, noop: None };
    let sent = || Effect::Submit { nonce: 0, hash: hash(1) };
    assert_eq!(leading(vec![row(true)], at(64)).1, [sent()], "it may still be in time");
    assert_eq!(leading(vec![row(true)], at(65)).1, [anew]);
    assert_eq!(
        leading(vec![row(false)], at(65)).1,
        [sent()],
        "the node says what a caller's bytes are"
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
    let (form, block, receipt) = (hash(1), hash(50), None);
    let located = Located::InBlock { hash: form, block, finalized: true, receipt };
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
    assert_eq!(end_of(&effects).kind, EndKind::Withdrawn, "and no no-op has to be paid for");
    assert_eq!(effects.len(), 1, "{effects:?}");
    assert_eq!(engine.cancel(7), Err(NonceError::NotOpen(7)));

    // Signed anew, while a node may have its first form.
    let mut engine = watching();
    let effects = later(&mut engine, 60);
    assert!(matches!(effects[..], [Effect::Build { noop: None, .. }]), "{effects:?}");
    assert_eq!(engine.cancel(0), Ok(vec![]));
    let effects = engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(2, 0) });
    assert!(matches!(effects[..], [Effect::Build { noop: Some(Permit::Drop), .. }]), "{effects:?}");
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
        dropped: false,
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

/// A leader with requests at nonces 0 to `count`, the first of which no node has.
fn unfunded(count: u64) -> Engine {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    for nonce in 0..count {
        assert_eq!(request(&mut engine, None, 0, true), Ok(nonce));
        let tag = 1 + u8::try_from(nonce).expect("small");
        engine.handle(T0, Input::Built { nonce, attempt: attempt(tag, 0) });
        let outcome = Outcome::Unfunded("insufficient funds".to_owned());
        engine.handle(T0, Input::Submitted { nonce, hash: hash(tag), outcome });
    }
    engine
}

#[test]
fn a_request_that_no_node_had_is_withdrawn_and_its_nonce_holds_up_no_other() {
    let mut engine = unfunded(2);
    let effects = engine.cancel(0).expect("open");
    let [Effect::Record { note, .. }, Effect::Build { nonce: 0, noop: Some(Permit::Gap), .. }] =
        &effects[..]
    else {
        panic!("{effects:?}")
    };
    let end = note.end.as_ref().expect("an end");
    assert_eq!((end.kind, end.hash), (EndKind::Withdrawn, None), "there is no no-op in its place");
    // Nothing is behind the last one: its nonce stays free for the next request.
    let effects = engine.cancel(1).expect("open");
    assert_eq!(end_of(&effects).kind, EndKind::Withdrawn);
    assert_eq!(request(&mut engine, None, 0, true), Ok(1));
}

#[test]
fn what_the_account_cannot_pay_is_given_up_when_the_submission_under_way_is_answered() {
    let under_way = || {
        let mut engine = unfunded(1);
        let effects = later(&mut engine, 60);
        assert!(matches!(effects[..], [Effect::Submit { nonce: 0, .. }]), "{effects:?}");
        engine
    };
    let answer = |engine: &mut Engine, outcome: Outcome| {
        engine.handle(at(61), Input::Submitted { nonce: 0, hash: hash(1), outcome })
    };
    let mut engine = under_way();
    for _ in 0..2 {
        let none = engine.cancel(0);
        assert_eq!(none, Ok(vec![]), "no no-op, which the account could not pay either");
    }
    let effects = answer(&mut engine, Outcome::Unfunded("insufficient funds".to_owned()));
    assert_eq!(end_of(&effects).kind, EndKind::Withdrawn);
    let mut engine = under_way();
    assert_eq!(engine.cancel(0), Ok(vec![]));
    let effects = answer(&mut engine, Outcome::Expired);
    assert_eq!(end_of(&effects).kind, EndKind::Withdrawn, "nor is it signed anew");
    // The account can pay by now, or the answer is none: then some node may have it.
    for outcome in [Outcome::Pooled, Outcome::Uncertain("silence".to_owned())] {
        let mut engine = under_way();
        assert_eq!(engine.cancel(0), Ok(vec![]));
        let effects = answer(&mut engine, outcome);
        let noop = |one: &Effect| matches!(one, Effect::Build { noop: Some(Permit::Drop), .. });
        assert_eq!(effects.iter().filter(|one| noop(one)).count(), 1, "{effects:?}");
    }
}

#[test]
fn what_is_overdue_is_not_sent_by_a_new_leader_and_not_after_it_was_stored() {
    let overdue = OpenTransaction {
        request: "due".to_owned(),
        nonce: 0,
        attempts: vec![attempt(1, 0)],
        status: TransactionStatus::Future,
        resignable: true,
        deadline: Some(T0),
        dropped: false,
    };
    let (mut engine, effects) = leading(vec![overdue], head(0, 0, 0));
    assert_eq!(effects, [], "not once more");
    let effects = later(&mut engine, 0);
    assert!(matches!(effects[..], [Effect::Build { noop: Some(Permit::Deadline), .. }]));

    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    let (id, deadline) = ("slow".to_owned(), Some(at(10)));
    let slow = Request { id, nonce: None, tip: 0, resignable: true, deadline };
    engine.handle(T0, Input::Requested(slow));
    let stored = engine.handle(at(10), Input::Built { nonce: 0, attempt: attempt(1, 0) });
    assert_eq!(stored, [], "stored too late to be sent");
    assert_eq!(end_of(&later(&mut engine, 10)).kind, EndKind::Expired);
}

#[test]
fn a_pool_that_claims_to_be_absurdly_far_ahead_is_not_believed() {
    let (mut engine, _) = leading(vec![], head(3, 3, 1_000_000));
    assert_eq!(request(&mut engine, None, 0, true), Ok(3));
    let (mut engine, _) = leading(vec![], head(3, 3, 900));
    assert_eq!(request(&mut engine, None, 0, true), Ok(900), "another program's are believed");
}
