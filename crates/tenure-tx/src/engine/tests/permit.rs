//! An order to give a request up holds, whatever becomes of the no-op.

use super::*;

fn is_noop(effects: &[Effect], permit: Permit) -> bool {
    matches!(effects, [Effect::Build { nonce: 0, noop: Some(by), .. }] if *by == permit)
}

#[test]
fn a_drop_whose_no_op_could_not_be_stored_is_not_forgotten() {
    let mut engine = watching();
    assert!(is_noop(&engine.cancel(0).expect("open"), Permit::Drop));
    engine.handle(T0, not_built(0));
    // Asked again, it is tried again at once.
    assert!(is_noop(&engine.cancel(0).expect("open"), Permit::Drop));
    for second in 1..3_600 {
        let failed = engine.handle(at(second), not_built(0));
        // The row may be told why; nothing else comes of it.
        let told = |one: &Effect| matches!(one, Effect::Record { note, .. } if note.end.is_none());
        assert!(failed.iter().all(told), "{failed:?}");
        report(&mut engine, 1, TransactionStatus::Dropped);
        let effects = later(&mut engine, second);
        assert!(effects.is_empty() || is_noop(&effects, Permit::Drop), "{second}: {effects:?}");
    }
    engine.handle(at(3_600), not_built(0));
    assert!(is_noop(&later(&mut engine, 3_700), Permit::Drop));
    let permit = Some(Permit::Drop);
    let noop = Attempt { noop: true, permit, ..attempt(2, 125) };
    let effects = engine.handle(at(3_700), Input::Built { nonce: 0, attempt: noop });
    assert_eq!(effects, [Effect::Submit { nonce: 0, hash: hash(2) }]);
}

#[test]
fn a_deadline_whose_no_op_could_not_be_stored_is_not_forgotten() {
    let (mut engine, _) = leading(vec![], head(0, 0, 0));
    let (id, deadline) = ("due".to_owned(), Some(at(5)));
    let due = Request { id, nonce: None, tip: 100, resignable: true, deadline };
    engine.handle(T0, Input::Requested(due));
    engine.handle(T0, Input::Built { nonce: 0, attempt: attempt(1, 100) });
    answer(&mut engine, 1, Outcome::Pooled);
    assert!(is_noop(&later(&mut engine, 5), Permit::Deadline));
    engine.handle(at(5), not_built(0));
    assert!(later(&mut engine, 5).is_empty(), "it waits before it tries again");
    assert!(is_noop(&later(&mut engine, 60), Permit::Deadline));
}
