//! For any number of rows the node is asked little, and one answer that is wrong costs little.

use super::*;

fn row(nonce: u64, status: TransactionStatus) -> OpenTransaction {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&nonce.to_be_bytes());
    let attempts = vec![Attempt { hash: Hash(bytes), ..Attempt::default() }];
    let request = format!("row-{nonce}");
    OpenTransaction {
        request,
        nonce,
        attempts,
        status,
        resignable: true,
        deadline: None,
        dropped: false,
    }
}

/// What a node that always answers alike is asked in ten minutes of five ticks and one head a second.
fn asked(engine: &mut Engine, head: Head, outcome: &Outcome, located: &Located) -> usize {
    let mut asked = 0;
    for step in 0..3_000u64 {
        let now = T0 + Duration::from_millis(200 * step);
        let input = if step.is_multiple_of(5) { Input::Head(head) } else { Input::TimePassed };
        let mut effects = engine.handle(now, input);
        while let Some(effect) = effects.pop() {
            let (outcome, located) = (outcome.clone(), located.clone());
            match effect {
                Effect::Submit { nonce, hash } => {
                    asked += 1;
                    engine.handle(now, Input::Submitted { nonce, hash, outcome });
                }
                Effect::Locate { nonce, .. } => {
                    asked += 1;
                    engine.handle(now, Input::Located { nonce, located });
                }
                // The lowest is paid more for when it is stuck.
                Effect::Build { nonce: 0, tip, .. } => {
                    let mut hash = [9; 32];
                    hash[..8].copy_from_slice(&step.to_be_bytes());
                    let attempt = Attempt { hash: Hash(hash), tip, ..Attempt::default() };
                    effects.extend(engine.handle(now, Input::Built { nonce: 0, attempt }));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    asked
}

#[test]
fn a_busy_node_is_sent_little_again_however_many_rows_wait() {
    let rows = (0..300).map(|nonce| row(nonce, TransactionStatus::Future)).collect();
    let (mut engine, first) = leading(rows, head(0, 0, 0));
    assert_eq!(first.len(), 300, "each is sent once by a new leader");
    let busy = Outcome::Busy("txpool is full".to_owned());
    for effect in first {
        let Effect::Submit { nonce, hash } = effect else { panic!("{effect:?}") };
        engine.handle(T0, Input::Submitted { nonce, hash, outcome: busy.clone() });
    }
    let sent = asked(&mut engine, head(0, 0, 0), &busy, &Located::Unknown);
    assert!(sent <= 700, "{sent} in ten minutes");
    // It has room again: all are taken within seconds.
    for step in 0..100 {
        let now = at(700) + Duration::from_millis(200 * step);
        for effect in engine.handle(now, Input::TimePassed) {
            // The lowest has waited long enough to be paid more for.
            let Effect::Submit { nonce, hash } = effect else { continue };
            engine.handle(now, Input::Submitted { nonce, hash, outcome: Outcome::Pooled });
        }
    }
    let leading = engine.leading.as_ref().expect("leads");
    let behind = leading.entries.range(1..).map(|(_, entry)| entry.phase);
    let waiting = behind.filter(|phase| *phase != Phase::Watching).count();
    assert_eq!(waiting, 0, "all are in the pool");
}

#[test]
fn the_lowest_nonce_in_no_block_is_never_held_back() {
    let in_block = row(10, TransactionStatus::InBlock(hash(50)));
    let waiting = (11..310).map(|nonce| row(nonce, TransactionStatus::Future));
    let rows = std::iter::once(in_block).chain(waiting).collect();
    let (mut engine, mut effects) = leading(rows, head(11, 10, 11));
    let busy = Outcome::Busy("txpool is full".to_owned());
    let mut sent = 0;
    for step in 0..300 {
        let now = T0 + Duration::from_millis(200 * step);
        let leading = engine.leading.as_ref().expect("leads");
        let due = matches!(leading.entries[&11].phase, Phase::Waiting { until } if until <= now);
        effects.extend(engine.handle(now, Input::TimePassed));
        let mut lowest = false;
        for effect in effects.drain(..) {
            // The lowest is paid more for when it is stuck, and that is not looked at here.
            let Effect::Submit { nonce, hash } = effect else { continue };
            lowest |= nonce == 11;
            engine.handle(now, Input::Submitted { nonce, hash, outcome: busy.clone() });
        }
        assert!(lowest || !due, "held back at step {step}");
        sent += usize::from(lowest);
    }
    assert!(sent > 5, "sent {sent} times");
}

#[test]
fn receipts_that_are_late_are_asked_for_ever_more_slowly_whatever_heads_come() {
    let rows = (0..300).map(|nonce| row(nonce, TransactionStatus::Ready)).collect();
    let passed = head(300, 300, 300);
    let (mut engine, first) = leading(rows, passed);
    assert_eq!(first.len(), 300, "each is looked for once");
    for nonce in 0..300 {
        engine.handle(T0, Input::Located { nonce, located: Located::Unknown });
    }
    let busy = Outcome::Busy(String::new());
    let looked = asked(&mut engine, passed, &busy, &Located::Unknown);
    assert!(looked <= 400, "{looked} looks in ten minutes");
}

#[test]
fn what_a_new_leader_finds_in_blocks_is_looked_at_when_it_is_final_and_not_before() {
    let in_block = |nonce| row(nonce, TransactionStatus::InBlock(hash(50)));
    let (mut engine, first) = leading((10..310).map(in_block).collect(), head(310, 10, 310));
    assert_eq!(first, [], "heads tell when one is final");
    let (busy, unknown) = (Outcome::Busy(String::new()), Located::Unknown);
    assert_eq!(asked(&mut engine, head(310, 10, 310), &busy, &unknown), 0);
    let effects = engine.handle(at(700), Input::Head(head(310, 13, 310)));
    assert_eq!(effects.len(), 3, "those that are final: {effects:?}");
    // A node that knows no old state says nothing of finality: it is asked.
    let (_, first) = leading(vec![in_block(10)], head(310, 0, 310));
    assert!(matches!(first[..], [Effect::Locate { .. }]), "{first:?}");
}

#[test]
fn a_head_that_is_absurdly_far_ahead_is_believed_at_its_third_sight() {
    let (mut engine, _) = leading(vec![], head(3, 3, 3));
    let other = head(90_000, 90_000, 90_000);
    for _ in 0..2 {
        assert!(engine.disbelieves(&other));
        engine.handle(T0, Input::Head(other));
        assert_eq!((engine.consumed(), engine.open()), (3, 0));
    }
    // The address leads to its own network again.
    engine.handle(T0, Input::Head(head(4, 4, 4)));
    engine.handle(T0, Input::Head(other));
    assert_eq!(request(&mut engine, None, 0, true), Ok(4));
    engine.handle(T0, Input::Head(other));
    assert!(!engine.disbelieves(&other), "and at the third in a row it is so");
    engine.handle(T0, Input::Head(other));
    assert_eq!(engine.consumed(), 90_000);
}

#[test]
fn a_gap_that_is_absurdly_wide_is_told_and_not_filled_without_an_order() {
    let far = row(5_000, TransactionStatus::Ready);
    let (mut engine, _) = leading(vec![far], head(0, 0, 0));
    for second in 0..600 {
        for effect in later(&mut engine, second) {
            assert!(!matches!(effect, Effect::Build { .. }), "{effect:?}");
        }
    }
    assert_eq!(engine.holds().wide_gap, Some(0));
    let filled = engine.cancel(0).expect("a gap");
    assert!(matches!(filled[..], [Effect::Build { nonce: 0, noop: Some(Permit::Gap), .. }]));
}

#[test]
fn the_lowest_open_nonce_has_an_age_whatever_holds_it_up() {
    let mut engine = watching();
    assert_eq!(request(&mut engine, None, 0, true), Ok(1));
    engine.handle(T0, Input::Head(block(1)));
    assert_eq!(engine.lowest_open(at(9)), Some((0, Duration::from_secs(9))));
    // Another try is no progress; a block is.
    report(&mut engine, 1, TransactionStatus::Dropped);
    later(&mut engine, 60);
    assert_eq!(engine.lowest_open(at(70)), Some((0, Duration::from_secs(70))));
    engine.handle(at(80), Input::Head(head(1, 0, 1)));
    assert_eq!(engine.lowest_open(at(81)), Some((1, Duration::from_secs(1))));
}
