use std::{sync::Mutex, thread};

use super::*;
use crate::bug::Bug;

/// Runs seeds on two threads; what broke, in order.
fn broken(range: std::ops::Range<u64>, bugs: Bugs) -> Vec<(u64, Violation)> {
    let found = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for half in 0..2 {
            let (range, found) = (range.clone(), &found);
            scope.spawn(move || {
                for seed in range.filter(|s| s % 2 == half) {
                    if let Err(v) = storm(seed, bugs) {
                        found.lock().expect("no panic holds it").push((seed, v));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().expect("no panic held it");
    found.sort_by_key(|(s, _)| *s);
    found
}

/// `TENURE_SIM_SEEDS=10000` runs more than the 500 of every test run.
fn seeds() -> u64 {
    std::env::var("TENURE_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(500)
}

#[test]
fn nothing_diverges_and_everything_recovers_in_a_storm_of_faults() {
    let broken = broken(0..seeds(), Bugs::default());
    assert!(broken.is_empty(), "{} broken: {:?}", broken.len(), &broken[..broken.len().min(5)]);
}

#[test]
fn one_seed_is_one_trace() {
    let trace = |seed| storm(seed, Bugs::default()).expect("a sound seed").trace;
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}

/// Of 40 storms with `bug` put back in, those an invariant or the liveness check caught.
fn caught(bug: Bug) -> Vec<String> {
    broken(0..40, Bugs::only(bug)).into_iter().map(|(_, v)| v.what).collect()
}

#[test]
fn skipping_a_transaction_on_timeout_is_caught() {
    let caught = caught(Bug::SkipOnTimeout);
    assert!(caught.iter().any(|w| w.contains("without having applied")), "{caught:?}");
}

#[test]
fn voting_within_a_lease_is_caught() {
    let caught = caught(Bug::VoteWithinLease);
    assert!(caught.iter().any(|w| w.contains("are open at once")), "{caught:?}");
}

#[test]
fn sending_before_persisting_is_caught() {
    assert!(!caught(Bug::SendBeforePersist).is_empty());
}

#[test]
fn forgetting_which_transactions_committed_is_caught() {
    let caught = caught(Bug::ForgetTransactions);
    assert!(caught.iter().any(|w| w.contains("in the history already")), "{caught:?}");
}

#[test]
fn a_gate_that_follows_the_hint_is_caught() {
    let caught = caught(Bug::GateOnHint);
    assert!(caught.iter().any(|w| w.contains("are open at once")), "{caught:?}");
}
